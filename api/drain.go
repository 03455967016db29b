// SPDX-License-Identifier: Apache-2.0

package api

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DrainTimeout says what happens when a phase of a drain has reached its limit.
// +kubebuilder:validation:Enum=Retry;Hold;Force
type DrainTimeout string

// What happens then.
const (
	// DrainRetries: it is said, and the drain goes on trying, as without a limit. It is the default.
	DrainRetries DrainTimeout = "Retry"
	// DrainHolds: the node is uncordoned and serves. The drain is tried again after HoldSeconds, or when what was asked
	// for changes.
	DrainHolds DrainTimeout = "Hold"
	// DrainForces: pods that refuse to go are deleted, whatever their disruption budget says; volumes that are attached
	// still are not waited for.
	DrainForces DrainTimeout = "Force"
)

// DrainPolicy says how a node is drained. Its phases come one after the other, and each has a limit of its own: pods
// are evicted, volumes are detached. The wait for load balancers before them has an end anyway.
// +kubebuilder:object:generate=true
// +kubebuilder:validation:XValidation:rule="!has(self.onTimeout) || self.onTimeout == 'Retry' || has(self.timeoutSeconds) || has(self.waitForVolumeDetachSeconds)",message="onTimeout needs timeoutSeconds or waitForVolumeDetachSeconds: without a limit nothing times out"
// +kubebuilder:validation:XValidation:rule="!has(self.holdSeconds) || has(self.onTimeout) && self.onTimeout == 'Hold'",message="holdSeconds belongs to onTimeout Hold"
type DrainPolicy struct {
	// timeoutSeconds is how long the eviction of a node's pods may take before onTimeout happens. Without it: for ever.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=604800
	// +optional
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`
	// onTimeout is what happens when a phase has reached its limit.
	// +kubebuilder:default=Retry
	// +optional
	OnTimeout DrainTimeout `json:"onTimeout,omitempty"`
	// holdSeconds is for how long a node that was uncordoned again serves before the drain is tried again. An hour where
	// nothing is said.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=604800
	// +optional
	HoldSeconds int32 `json:"holdSeconds,omitempty"`
	// skipPodSelectors are labels of pods that are not evicted, as those of DaemonSets are not. They end with the node.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="self.all(s, has(s.matchLabels) && s.matchLabels.size() > 0 || has(s.matchExpressions) && s.matchExpressions.size() > 0)",message="a selector without labels has every pod, so that nothing would be drained"
	// +listType=atomic
	// +optional
	SkipPodSelectors []metav1.LabelSelector `json:"skipPodSelectors,omitempty"`
	// waitForVolumeDetachSeconds is how long the volumes of the pods that went may take to be detached from the node
	// before onTimeout happens. Without it they are not waited for.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=604800
	// +optional
	WaitForVolumeDetachSeconds int32 `json:"waitForVolumeDetachSeconds,omitempty"`
	// excludeFromLoadBalancersSeconds is how long the node is out of the cluster's external load balancers before its
	// first pod is evicted. Without this it stays in them.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	// +optional
	ExcludeFromLoadBalancersSeconds int32 `json:"excludeFromLoadBalancersSeconds,omitempty"`
}

// holdDefault is how long a node is held where the policy does not say.
const holdDefault = time.Hour

// HoldFor is how long a node serves before its drain is tried again.
func (p *DrainPolicy) HoldFor() time.Duration {
	if p == nil || p.HoldSeconds == 0 {
		return holdDefault
	}
	return time.Duration(p.HoldSeconds) * time.Second
}

// Excludes says that the node is to be out of the load balancers before it is drained.
func (p *DrainPolicy) Excludes() bool { return p != nil && p.ExcludeFromLoadBalancersSeconds > 0 }

// ExcludeLabel keeps a Node out of the load balancers of the cluster's cloud. It is Kubernetes' own.
const ExcludeLabel = "node.kubernetes.io/exclude-from-external-load-balancers"

// ExcludedKey is the annotation of a Node that holds an Exclusion: that its ExcludeLabel is ours, so that it goes with
// the cordon. Without it the label is somebody else's. The daemon writes it.
const ExcludedKey = ownPrefix + "excluded-from-load-balancers"

// Exclusion is since when a node is out of the load balancers by us.
type Exclusion struct {
	Since time.Time `json:"since"`
}

// DrainHeldKey is the annotation of a Node that holds a DrainHold. The daemon writes it.
const DrainHeldKey = ownPrefix + "drain-held"

// DrainHold is a drain that has reached its limit, so that the node serves again.
type DrainHold struct {
	Config string    `json:"config"`
	Since  time.Time `json:"since"`
	// Until is when the drain is tried again.
	Until time.Time `json:"until"`
	// Why says what was waited for at the end.
	Why string `json:"why"`
	// Policy is what the drain went by. Another one has it tried again at once.
	Policy *DrainPolicy `json:"policy,omitempty"`
}

// skipSelectors is how many skipPodSelectors a policy can have.
const skipSelectors = 16

// Lasts reports whether a hold is in force at now. A host whose clock was set back, to before the hold began, does not
// wait for a time that may never come.
func (h *DrainHold) Lasts(now time.Time) bool { return !now.Before(h.Since) && now.Before(h.Until) }

func (h *DrainHold) believed() *DrainHold {
	if h == nil || len(h.Config) > longestName || h.Policy != nil && len(h.Policy.SkipPodSelectors) > skipSelectors {
		return nil
	}
	h.Why = ShortReason(h.Why)
	return h
}

// DrainPhase is what a drain is at.
type DrainPhase string

// The phases, in their order.
const (
	DrainExcludes DrainPhase = "LoadBalancers"
	DrainEvicts   DrainPhase = "Eviction"
	DrainDetaches DrainPhase = "VolumeDetach"
)

// WaitingVolume is a volume that a drain waits for to be detached.
type WaitingVolume struct {
	// Attachment is the name of the VolumeAttachment, Volume that of the PersistentVolume, where it is one.
	Attachment string `json:"attachment"`
	Volume     string `json:"volume,omitempty"`
	// Message is what its driver says about the last try.
	Message string `json:"message,omitempty"`
}

func (w WaitingVolume) String() string {
	name := "VolumeAttachment " + w.Attachment
	if w.Volume != "" {
		name = "PersistentVolume " + w.Volume
	}
	if w.Message != "" {
		name += " (" + w.Message + ")"
	}
	return name
}

// EtcdRule says whether the health of etcd counts.
// +kubebuilder:validation:Enum=Require;Ignore
type EtcdRule string

// Whether it counts.
const (
	EtcdRequired EtcdRule = "Require"
	EtcdIgnored  EtcdRule = "Ignore"
)

// ControlPlanePolicy is what counts for the pools of the control plane.
// +kubebuilder:object:generate=true
type ControlPlanePolicy struct {
	// etcd says whether a node of the control plane begins only while the members of etcd on all others are ready.
	// +kubebuilder:default=Require
	// +optional
	Etcd EtcdRule `json:"etcd,omitempty"`
}
