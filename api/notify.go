// SPDX-License-Identifier: Apache-2.0

package api

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// NotificationKind is what a rollout can have to say.
// +kubebuilder:validation:Enum=Started;Blocked;NeedsYou;RolledBack;Done
type NotificationKind string

// What it can be.
const (
	// RolloutStarted: the first node was sent to a new configuration.
	RolloutStarted NotificationKind = "Started"
	// RolloutBlocked: a node has waited for long for something that may pass by itself.
	RolloutBlocked NotificationKind = "Blocked"
	// RolloutNeedsYou: it goes no further until a person does something.
	RolloutNeedsYou NotificationKind = "NeedsYou"
	// RolloutRolledBack: the configuration failed on a node, which went back to the one before.
	RolloutRolledBack NotificationKind = "RolledBack"
	// RolloutDone: all nodes have the configuration and serve.
	RolloutDone NotificationKind = "Done"
)

// Notifications are who is told of rollouts.
// +kubebuilder:object:generate=true
// +kubebuilder:validation:XValidation:rule="has(self.webhooks) || has(self.alertmanager)",message="webhooks or alertmanager is needed"
type Notifications struct {
	// cluster is a name by which those who hear of several clusters tell this one.
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?$`
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Cluster string `json:"cluster,omitempty"`
	// webhooks are sent a CloudEvent each time.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +listType=map
	// +listMapKey=name
	// +optional
	Webhooks []NotificationWebhook `json:"webhooks,omitempty"`
	// alertmanager is where the alerts of nodes are silenced while they are updated.
	// +optional
	Alertmanager *NotificationAlertmanager `json:"alertmanager,omitempty"`
}

// NotificationWebhook is a receiver of CloudEvents.
// +kubebuilder:object:generate=true
// +kubebuilder:validation:XValidation:rule="!has(self.secretRef) || self.url.startsWith('https://')",message="url has to be https: a token is sent with secretRef"
type NotificationWebhook struct {
	// name is for people, and for what was not delivered yet.
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// url is where the events are posted.
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="isURL(self) && url(self).getScheme() in ['http', 'https'] && url(self).getHost() != ''",message="has to be an http or https URL with a host"
	URL string `json:"url"`
	// events are those that it is told of; without it all. (It is not called on, which YAML reads as true.)
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=5
	// +listType=set
	// +optional
	Events []NotificationKind `json:"events,omitempty"`
	// secretRef names a Secret for it.
	// +optional
	SecretRef *NotificationSecret `json:"secretRef,omitempty"`
}

// NotificationSecret names a Secret with token, which is sent as a bearer token, ca.crt, the certificates that the
// server is known by, or both. The controller has to be allowed to read it.
// +kubebuilder:object:generate=true
type NotificationSecret struct {
	// name of the Secret.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// namespace of the Secret; without it that of the controller.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +optional
	Namespace string `json:"namespace,omitempty"`
}

// Keys of such a Secret.
const (
	SecretToken = "token"
	SecretCA    = "ca.crt"
)

// NotificationAlertmanager is an Alertmanager in which nodes are silent while they are updated.
// +kubebuilder:object:generate=true
// +kubebuilder:validation:XValidation:rule="!has(self.secretRef) || self.url.startsWith('https://')",message="url has to be https: a token is sent with secretRef"
// +kubebuilder:validation:XValidation:rule="self.silenceMinutes <= self.maxMinutes",message="maxMinutes has to be at least silenceMinutes"
type NotificationAlertmanager struct {
	// url is that of its web page, without /api/v2.
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="isURL(self) && url(self).getScheme() in ['http', 'https'] && url(self).getHost() != ''",message="has to be an http or https URL with a host"
	URL string `json:"url"`
	// secretRef names a Secret for it.
	// +optional
	SecretRef *NotificationSecret `json:"secretRef,omitempty"`
	// labels are those by which alerts name a node, with or without a port: a node has a silence for each.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=4
	// +kubebuilder:validation:items:Pattern=`^[a-zA-Z_][a-zA-Z0-9_]*$`
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:default={node,instance}
	// +listType=set
	// +optional
	Labels []string `json:"labels,omitempty"`
	// matchLabels are what alerts must have besides, such as the cluster's name where an Alertmanager serves several.
	// +kubebuilder:validation:MaxProperties=8
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.matches('^[a-zA-Z_][a-zA-Z0-9_]*$') && self[k] != '')",message="has to map names of labels to values"
	// +optional
	MatchLabels map[string]string `json:"matchLabels,omitempty"`
	// silenceMinutes is for how long a silence is made. It is prolonged while the update goes on; so this is for how long
	// it outlives the controller.
	// +kubebuilder:validation:Minimum=2
	// +kubebuilder:validation:Maximum=1440
	// +kubebuilder:default=30
	// +optional
	SilenceMinutes int32 `json:"silenceMinutes,omitempty"`
	// maxMinutes is for how long an update of a node may keep it silent: one that takes longer is worth an alert.
	// +kubebuilder:validation:Minimum=2
	// +kubebuilder:validation:Maximum=10080
	// +kubebuilder:default=120
	// +optional
	MaxMinutes int32 `json:"maxMinutes,omitempty"`
}

// NotificationStatus is what was said of rollouts, so that a controller which starts anew goes on from there.
// +kubebuilder:object:generate=true
type NotificationStatus struct {
	// pools are what was said of each.
	// +listType=map
	// +listMapKey=name
	// +optional
	Pools []NotifiedPool `json:"pools,omitempty"`
	// undelivered is what some webhook has not taken yet, the oldest first.
	// +listType=atomic
	// +optional
	Undelivered []Notification `json:"undelivered,omitempty"`
}

// NotifiedPool is what was said of a pool's present rollout.
// +kubebuilder:object:generate=true
type NotifiedPool struct {
	// name of the MachineConfigPool, uid that of the object, generation the latest that was seen.
	Name       string    `json:"name"`
	UID        types.UID `json:"uid,omitempty"`
	Generation int64     `json:"generation,omitempty"`
	// config is what the rollout is to, from what all nodes had before.
	// +optional
	Config string `json:"config,omitempty"`
	// +optional
	From string `json:"from,omitempty"`
	// sequence counts what was said of the pool.
	// +optional
	Sequence int64 `json:"sequence,omitempty"`
	// started and done say that this was said, done also of a pool that needed no rollout.
	// +optional
	Started bool `json:"started,omitempty"`
	// +optional
	Done bool `json:"done,omitempty"`
	// rolledBack are nodes of which that was said.
	// +listType=set
	// +optional
	RolledBack []string `json:"rolledBack,omitempty"`
	// needsYou and blocked are what was said last.
	// +optional
	NeedsYou *NotifiedCause `json:"needsYou,omitempty"`
	// +optional
	Blocked *NotifiedCause `json:"blocked,omitempty"`
	// waiting are nodes for which something is waited for that does not say since when.
	// +listType=atomic
	// +optional
	Waiting []NotifiedCause `json:"waiting,omitempty"`
}

// NotifiedCause is a cause, since when it is there, or was said, and when it was over: what comes back soon is not
// news.
// +kubebuilder:object:generate=true
type NotifiedCause struct {
	Cause string      `json:"cause"`
	Since metav1.Time `json:"since"`
	// +optional
	Over *metav1.Time `json:"over,omitempty"`
}

// Notification is one thing that was said.
// +kubebuilder:object:generate=true
type Notification struct {
	// id is the CloudEvent's, sequence its place among those of the pool.
	ID       string           `json:"id"`
	Sequence int64            `json:"sequence"`
	Kind     NotificationKind `json:"kind"`
	Time     metav1.Time      `json:"time"`
	// webhooks have not taken it yet.
	// +listType=set
	// +optional
	Webhooks []string `json:"webhooks,omitempty"`

	RolloutNews `json:",inline"` //nolint:revive // the generator of schemas needs the word
}

// RolloutNews is the data of a CloudEvent.
// +kubebuilder:object:generate=true
type RolloutNews struct {
	// +optional
	Cluster string `json:"cluster,omitempty"`
	Policy  string `json:"policy"`
	Pool    string `json:"pool"`
	// from and to are configurations; from is empty where the pool never had one as a whole.
	// +optional
	From string `json:"from,omitempty"`
	// +optional
	To string `json:"to,omitempty"`
	// machines, updated and failed count the pool's nodes.
	Machines int32 `json:"machines"`
	Updated  int32 `json:"updated"`
	Failed   int32 `json:"failed"`
	// nodes are those that it is about; where they are many, the first.
	// +listType=atomic
	// +optional
	Nodes []string `json:"nodes,omitempty"`
	// reason is a verdict of kubectl refit explain, because its sentence, do what a person can do, and object what
	// everything waits for.
	// +optional
	Reason string `json:"reason,omitempty"`
	// +optional
	Because string `json:"because,omitempty"`
	// +optional
	Do string `json:"do,omitempty"`
	// +optional
	Object string `json:"object,omitempty"`
	// text is all of that in a line.
	Text string `json:"text"`
}

// Conditions of a RolloutPolicy about its notifications.
const (
	// RolloutNotified is False while something could not be delivered.
	RolloutNotified = "NotificationsDelivered"
	// RolloutSilenced is False while the Alertmanager can't be talked to.
	RolloutSilenced = "AlertmanagerReached"
)
