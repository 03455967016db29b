// SPDX-License-Identifier: Apache-2.0

package api

import (
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// RolloutPolicy says how an update goes through the nodes of pools: in which stages, when, and how many may fail. A
// pool that no policy selects goes by its own maxUnavailable alone.
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=rolloutpolicies,scope=Cluster,shortName=rop,categories=noderefit
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Pools",type=string,JSONPath=`.status.pools[*].name`
// +kubebuilder:printcolumn:name="Held",type=string,JSONPath=`.status.pools[*].held`
// +kubebuilder:printcolumn:name="Next window",type=string,JSONPath=`.status.nextWindow`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type RolloutPolicy struct {
	metav1.TypeMeta   `json:",inline"` //nolint:revive // the generator of schemas needs the word
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec RolloutPolicySpec `json:"spec"`
	// +optional
	Status RolloutPolicyStatus `json:"status,omitempty"`
}

// RolloutPolicyList is a list of RolloutPolicies.
// +kubebuilder:object:root=true
type RolloutPolicyList struct {
	metav1.TypeMeta `json:",inline"` //nolint:revive // the generator of schemas needs the word
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []RolloutPolicy `json:"items"`
}

// RolloutPolicySpec is what people ask for.
// +kubebuilder:object:generate=true
// +kubebuilder:validation:XValidation:rule="has(self.pools) || has(self.poolSelector)",message="pools or poolSelector is needed: a policy that selects no pool is for nothing"
// +kubebuilder:validation:XValidation:rule="!has(self.dependsOn) || !has(self.pools) || !self.dependsOn.exists(d, d in self.pools)",message="dependsOn names a pool of the policy itself"
// +kubebuilder:validation:XValidation:rule="!has(self.rebootWindows) || !has(self.reboots) || self.reboots != 'Never'",message="rebootWindows has no use with reboots Never: leave one of them out"
type RolloutPolicySpec struct {
	// pools are MachineConfigPools by name. A pool that two policies select updates nobody until one lets go.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	// +listType=set
	// +optional
	Pools []string `json:"pools,omitempty"`
	// poolSelector selects MachineConfigPools by their labels, beside those that are named.
	// +optional
	PoolSelector *metav1.LabelSelector `json:"poolSelector,omitempty"`
	// stages are groups of nodes, one after the other: a stage begins when all nodes of those before it have arrived
	// and soaked. Nodes that no stage takes are the last stage.
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	// +optional
	Stages []RolloutStage `json:"stages,omitempty"`
	// minReadySeconds is how long a node that has arrived must have been ready before it no longer takes one of the
	// places of maxUnavailable: the time between one node and the next.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=604800
	// +optional
	MinReadySeconds int32 `json:"minReadySeconds,omitempty"`
	// dependsOn are pools that have to be updated as a whole before a node of these pools is.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	// +listType=set
	// +optional
	DependsOn []string `json:"dependsOn,omitempty"`
	// failureBudget is on how many nodes of a pool a configuration may fail before it is offered to no other: a number or
	// a percentage of the pool's nodes, rounded down, at least 1. It is 1 where nothing is said.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=4
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 1 && self <= 5000 : self.matches('^([1-9]|[1-9][0-9]|100)%$')",message="has to be a number from 1 to 5000 or a percentage from 1% to 100%"
	// +optional
	FailureBudget *intstr.IntOrString `json:"failureBudget,omitempty"`
	// notReady is how the rollout treats nodes that were not ready when the rollout came to them. Without notReady such a
	// node takes one of the places of maxUnavailable for as long as it is not ready.
	// +optional
	NotReady *NotReadyPolicy `json:"notReady,omitempty"`
	// gates are asked about every node that has arrived and soaked: it takes its place of maxUnavailable until all pass.
	// +kubebuilder:validation:MaxItems=8
	// +listType=map
	// +listMapKey=name
	// +optional
	Gates []Gate `json:"gates,omitempty"`
	// windows are when nodes may begin. Without them: at any time.
	// +optional
	Windows *RolloutWindows `json:"windows,omitempty"`
	// notifications are who is told of rollouts, and which alerts are silent meanwhile.
	// +optional
	Notifications *Notifications `json:"notifications,omitempty"`
	// drain is how nodes are drained. Without it every pod is waited for, for as long as it takes.
	// +optional
	Drain *DrainPolicy `json:"drain,omitempty"`
	// reboots is what happens on nodes whose hosts want a reboot for another reason than a configuration. Report shows it,
	// and is what counts where nothing is said. Roll has the rollout reboot them, a node in its turn. Never shows it, and
	// people cannot order such a reboot without a bypass. Manual is as Report, and configurations are committed without
	// their reboot too: a node then says NeedsReboot, and serves until a person orders the reboot.
	// +optional
	Reboots RebootMode `json:"reboots,omitempty"`
	// rebootMethod is how the hosts reboot. Full is an orderly reboot of the machine. Soft restarts the userspace alone,
	// where the changes need no more. Kexec has the running kernel start the next one, without firmware and boot loader.
	// Command runs /etc/noderefit/reboot-command of the host. What a host can't do becomes a full reboot, and the node
	// says why. Where nothing is said, the flag --soft-reboot of the agent counts, and without the flag the reboot is
	// full.
	// +optional
	RebootMethod RebootMethod `json:"rebootMethod,omitempty"`
	// rebootWindows are when nodes may begin such a reboot. Without them windows count.
	// +optional
	RebootWindows *RolloutWindows `json:"rebootWindows,omitempty"`
	// controlPlane is what counts besides for the pools of the control plane.
	// +optional
	ControlPlane *ControlPlanePolicy `json:"controlPlane,omitempty"`
	// staging has nodes stage the pool's configuration ahead, while they serve. A node begins when it has staged it.
	// +optional
	Staging *RolloutStaging `json:"staging,omitempty"`
	// approval has nodes stage the pool's configuration ahead, and begin when somebody has approved what was staged.
	// +optional
	Approval *RolloutApproval `json:"approval,omitempty"`
}

// NotReadyPolicy is how a rollout treats nodes that are not ready.
// +kubebuilder:object:generate=true
type NotReadyPolicy struct {
	// passOverAfterSeconds is how long a node must have been not ready before the rollout passes over it: stages go on
	// without the node. The node is sent all the same, and begins when it can. A node that has begun is never passed over,
	// nor is a node of a control plane.
	// +kubebuilder:validation:Minimum=60
	// +kubebuilder:validation:Maximum=2592000
	PassOverAfterSeconds int32 `json:"passOverAfterSeconds"`
	// counts has the nodes that are passed over take places of maxUnavailable all the same.
	// +optional
	Counts bool `json:"counts,omitempty"`
}

// RolloutStage is a group of a pool's nodes.
// +kubebuilder:object:generate=true
type RolloutStage struct {
	// name is for people. The stage of the nodes that no other takes is called rest.
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self != 'rest'",message="rest is the stage of the nodes that no other takes"
	Name string `json:"name"`
	// nodeSelector selects nodes of the pool by their labels; without it any node that is in no stage before. A pool that
	// has nodes, and none that it matches, is held where the stage has a soak or gates.
	// +optional
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`
	// nodes is how many of them: a number, or a percentage of the pool's nodes, rounded up. Without it all.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=4
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 1 && self <= 5000 : self.matches('^([1-9]|[1-9][0-9]|100)%$')",message="has to be a number from 1 to 5000 or a percentage from 1% to 100%"
	// +optional
	Nodes *intstr.IntOrString `json:"nodes,omitempty"`
	// maxUnavailable is used while this stage is the one at work, in the place of the pool's: a number, or a percentage
	// of the pool's nodes. A control plane's pool stays at one node at a time.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=4
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 1 && self <= 5000 : self.matches('^([1-9]|[1-9][0-9]|100)%$')",message="has to be a number from 1 to 5000 or a percentage from 1% to 100%"
	// +optional
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
	// soakSeconds is for how long all nodes of the stage must have been ready, since the last of them arrived, before the
	// next stage begins.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2592000
	// +optional
	SoakSeconds int32 `json:"soakSeconds,omitempty"`
	// gates are asked about the stage once it has arrived and soaked, and until the rollout is over: the next stage begins
	// while all pass.
	// +kubebuilder:validation:MaxItems=8
	// +listType=map
	// +listMapKey=name
	// +optional
	Gates []Gate `json:"gates,omitempty"`
}

// WindowClose is what happens at the end of a window to nodes that are on their way.
// +kubebuilder:validation:Enum=TakeBackServing;TakeBackDraining;Finish
type WindowClose string

// What happens to them.
const (
	// CloseTakesBackServing: those that still serve are taken back, those that left service finish. It is the default.
	CloseTakesBackServing WindowClose = "TakeBackServing"
	// CloseTakesBackDraining: those that are being drained are taken back, too; those past it finish.
	CloseTakesBackDraining WindowClose = "TakeBackDraining"
	// CloseFinishes: all that were sent finish.
	CloseFinishes WindowClose = "Finish"
)

// RolloutWindows are times in which nodes may begin an update.
// +kubebuilder:object:generate=true
// +kubebuilder:validation:XValidation:rule="has(self.open) || has(self.blackouts)",message="open or blackouts is needed"
type RolloutWindows struct {
	// timeZone is that of all times here, an IANA name such as Europe/Berlin.
	// +kubebuilder:validation:XValidation:rule="!(self in ['Local', 'localtime'])",message="local time is another one for each reader: write an IANA name, such as UTC or Europe/Berlin"
	// +kubebuilder:validation:Pattern=`^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$`
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:default=UTC
	// +optional
	TimeZone string `json:"timeZone,omitempty"`
	// open are the times in which nodes may begin: in any of them. Without any, always but for the blackouts.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +listType=atomic
	// +optional
	Open []Window `json:"open,omitempty"`
	// blackouts are times in which none begins, whatever is open.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	Blackouts []Window `json:"blackouts,omitempty"`
	// onClose is what happens to nodes that are on their way when a window closes.
	// +kubebuilder:default=TakeBackServing
	// +optional
	OnClose WindowClose `json:"onClose,omitempty"`
}

// Window is a time, once or again and again: by cron and a duration, by rrule with a start and a duration, or from one
// time until another.
// +kubebuilder:object:generate=true
// +kubebuilder:validation:XValidation:rule="[has(self.cron), has(self.rrule), has(self.from)].filter(x, x).size() == 1",message="exactly one of cron, rrule and from is needed"
// +kubebuilder:validation:XValidation:rule="has(self.rrule) == has(self.start)",message="rrule and start belong together"
// +kubebuilder:validation:XValidation:rule="has(self.from) == has(self.until)",message="from and until belong together"
// +kubebuilder:validation:XValidation:rule="has(self.from) != has(self.durationMinutes)",message="durationMinutes belongs to cron and rrule, and is needed there"
type Window struct {
	// name is for people.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Name string `json:"name,omitempty"`
	// cron is when it opens: minute, hour, day, month and weekday.
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[0-9*,/-]+ +[0-9*,/-]+ +[0-9*?,/-]+ +([0-9*,/-]|[A-Za-z]{3})+ +([0-9*?,/-]|[A-Za-z]{3})+$`
	// +optional
	Cron string `json:"cron,omitempty"`
	// rrule is when it opens as a recurrence rule of RFC 5545, such as FREQ=MONTHLY;BYDAY=2SA.
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^([A-Z]+=[^;=]+;)*FREQ=(HOURLY|DAILY|WEEKLY|MONTHLY|YEARLY)(;[A-Z]+=[^;=]+)*$`
	// +optional
	RRule string `json:"rrule,omitempty"`
	// start is the first time of an rrule, local: 2026-01-10T22:00:00.
	// +kubebuilder:validation:Pattern=`^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}$`
	// +kubebuilder:validation:MaxLength=19
	// +optional
	Start string `json:"start,omitempty"`
	// durationMinutes is for how long it is open.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=44640
	// +optional
	DurationMinutes int32 `json:"durationMinutes,omitempty"`
	// from is a day, 2026-12-20, or a local time, 2026-12-20T18:00:00.
	// +kubebuilder:validation:Pattern=`^[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2}:[0-9]{2}:[0-9]{2})?$`
	// +kubebuilder:validation:MaxLength=19
	// +optional
	From string `json:"from,omitempty"`
	// until is a day, which is the last one, or a local time.
	// +kubebuilder:validation:Pattern=`^[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2}:[0-9]{2}:[0-9]{2})?$`
	// +kubebuilder:validation:MaxLength=19
	// +optional
	Until string `json:"until,omitempty"`
}

// RolloutPolicyStatus is what the pool controller says.
// +kubebuilder:object:generate=true
type RolloutPolicyStatus struct {
	// observedGeneration is that of the spec which this is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// conditions: Ready is false where the policy makes no sense, and holds all of its pools.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// nextWindow is when the next window opens, while none is open.
	// +optional
	NextWindow *metav1.Time `json:"nextWindow,omitempty"`
	// pools are those that the policy is for, by name.
	// +listType=map
	// +listMapKey=name
	// +optional
	Pools []RolloutPolicyPool `json:"pools,omitempty"`
	// notifications are what was said of rollouts.
	// +optional
	Notifications *NotificationStatus `json:"notifications,omitempty"`
	// gates are the questions that are open.
	// +listType=atomic
	// +optional
	Gates []RolloutGate `json:"gates,omitempty"`
}

// RolloutPolicyPool is where a pool stands.
// +kubebuilder:object:generate=true
type RolloutPolicyPool struct {
	// name of the MachineConfigPool.
	Name string `json:"name"`
	// stage is the one at work; empty: none, all nodes are updated.
	// +optional
	Stage string `json:"stage,omitempty"`
	// held is why none of its nodes is sent now, in one word; empty: nothing of the policy holds it.
	// +optional
	Held string `json:"held,omitempty"`
	// message says the same in a sentence.
	// +optional
	Message string `json:"message,omitempty"`
	// failed counts the nodes on which the pool's configuration failed.
	// +optional
	Failed int32 `json:"failed,omitempty"`
	// failedNodes are these, sorted, the first 100 of them.
	// +kubebuilder:validation:MaxItems=100
	// +listType=atomic
	// +optional
	FailedNodes []string `json:"failedNodes,omitempty"`
	// failureBudget is at how many of them the rollout stops.
	// +optional
	FailureBudget int32 `json:"failureBudget,omitempty"`
}

// RolloutReady is the condition of a RolloutPolicy that says whether it makes sense.
const RolloutReady = "Ready"

// Reasons of RolloutReady.
const (
	RolloutInForce  = "InForce"
	RolloutInvalid  = "InvalidSpec"
	RolloutConflict = "PoolOfTwoPolicies"
	RolloutNoPool   = "NoSuchPool"
	RolloutNoNodes  = "StageWithoutNodes"
)

// ArrivedKey is the annotation of a Node that holds an Arrival: that a rollout under a policy sent it, and since when
// it is there. The pool controller writes it, with DesiredConfig in one patch.
const ArrivedKey = ownPrefix + "arrived"

// Arrival is since when a node has been ready at a configuration that a rollout sent it to.
type Arrival struct {
	Config string `json:"config"`
	// Since is zero until it has arrived.
	Since time.Time `json:"since,omitzero"`
	// Passed is when all gates that are asked about nodes had passed, or were skipped; zero: they have not, or there are
	// none.
	Passed time.Time `json:"passed,omitzero"`
}

// OrdersKey is the annotation of a Node that holds Orders: what the RolloutPolicy of its pool asks of its agent. The
// pool controller writes it, in one patch with DesiredConfig, and takes it away where there is nothing to ask.
const OrdersKey = ownPrefix + "orders"

// Orders are what a RolloutPolicy asks of a node's agent, beside where to go.
type Orders struct {
	// Stage is what the node makes ready while it serves; nil: nothing.
	Stage *StageOrder `json:"stage,omitempty"`
	// Drain is how the node is drained; nil: as without a policy.
	Drain *DrainPolicy `json:"drain,omitempty"`
	// Reboot has the node reboot once; nil: nothing of that kind.
	Reboot *RebootOrder `json:"reboot,omitempty"`
	// ManualReboots has the node commit a configuration without its reboot, and without cordon and drain: reboots: Manual.
	// Such a configuration boots with the next Reboot order, or when a person boots the host.
	ManualReboots bool `json:"manualReboots,omitempty"`
	// RebootMethod is how the host reboots; empty: as the agent was started.
	RebootMethod RebootMethod `json:"rebootMethod,omitempty"`
}

// Equal says that they ask the same. Most orders of a rollout share their parts, which is seen at once.
func (o Orders) Equal(other Orders) bool {
	stage := o.Stage == other.Stage || o.Stage != nil && other.Stage != nil && *o.Stage == *other.Stage
	reboot := o.Reboot == other.Reboot || o.Reboot != nil && other.Reboot != nil && *o.Reboot == *other.Reboot
	return stage && reboot && o.ManualReboots == other.ManualReboots && o.RebootMethod == other.RebootMethod &&
		(o.Drain == other.Drain || equality.Semantic.DeepEqual(o.Drain, other.Drain))
}

// RolloutPolicyKey is the annotation of a MachineConfigPool that holds a PolicyNote: the RolloutPolicy that is in force
// for the pool. The pool controller writes it. Where the definition of RolloutPolicies is away with all its objects,
// the note is what a controller that begins knows of them: without it the pool would go on as if it had no policy.
const RolloutPolicyKey = ownPrefix + "rollout-policy"

// PolicyNote is which RolloutPolicy is in force for a pool.
type PolicyNote struct {
	Name string `json:"name"`
	// Created is when the policy was made: a definition that is younger took the policy along.
	Created time.Time `json:"created"`
	// FailureBudget is what the policy says of failures. Those that it forgives stay forgiven while it is away.
	FailureBudget *intstr.IntOrString `json:"failureBudget,omitempty"`
}

// BypassKey is the annotation of a MachineConfigPool that holds a Bypass. People write it, by kubectl refit.
const BypassKey = ownPrefix + "bypass"

// Bypass lets one configuration go through a pool without most of its policy. How many nodes may be out of service and
// may fail counts still.
type Bypass struct {
	Config string    `json:"config"`
	By     string    `json:"by"`
	Why    string    `json:"why"`
	Since  time.Time `json:"since"`
}

// PoolHeld is the condition of a MachineConfigPool that its RolloutPolicy lets no node begin, with the reason in one
// word.
const PoolHeld = "Held"

// PoolWritesRefused is the condition of a MachineConfigPool that what the pool controller writes about it or its nodes
// is refused, such as by a webhook that does not answer.
const PoolWritesRefused = "WritesRefused"

// PoolBypassed is the condition of a MachineConfigPool that somebody lets its present configuration go through without
// most of its RolloutPolicy.
const PoolBypassed = "Bypassed"
