// SPDX-License-Identifier: Apache-2.0

package api

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// OnDeadline is what happens where a gate has not passed by its deadline.
// +kubebuilder:validation:Enum=Hold;Skip;RollBack
type OnDeadline string

// What happens then.
const (
	// DeadlineHolds: nothing more begins until the gate passes. It is the default.
	DeadlineHolds OnDeadline = "Hold"
	// DeadlineSkips: the rollout goes on as if it had passed.
	DeadlineSkips OnDeadline = "Skip"
	// DeadlineRollsBack: the configuration is quarantined, and the nodes that have it go back to the one before.
	DeadlineRollsBack OnDeadline = "RollBack"
)

// Gate is a question that is asked about nodes which have arrived, until the answer is yes.
// +kubebuilder:object:generate=true
// +kubebuilder:validation:XValidation:rule="[has(self.cel), has(self.prometheus), has(self.job), has(self.hostCheck), has(self.annotation)].filter(x, x).size() == 1",message="exactly one of cel, prometheus, job, hostCheck and annotation is needed"
// +kubebuilder:validation:XValidation:rule="!has(self.onDeadline) || has(self.deadlineSeconds)",message="onDeadline belongs to deadlineSeconds",fieldPath=".onDeadline"
type Gate struct {
	// name is for people.
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +kubebuilder:validation:MaxLength=40
	Name string `json:"name"`
	// cel asks objects of the cluster.
	// +optional
	CEL *CELGate `json:"cel,omitempty"`
	// prometheus asks for metrics.
	// +optional
	Prometheus *PrometheusGate `json:"prometheus,omitempty"`
	// job runs one.
	// +optional
	Job *JobGate `json:"job,omitempty"`
	// hostCheck asks for what a check of the host's verdict said.
	// +optional
	HostCheck *HostCheckGate `json:"hostCheck,omitempty"`
	// annotation asks whoever watches Nodes, by an annotation, and is answered by one.
	// +optional
	Annotation *AnnotationGate `json:"annotation,omitempty"`
	// deadlineSeconds is how long the gate may take, from when what it is about has arrived and soaked, or from when it
	// closed again. Without it: for as long as it takes.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2592000
	// +optional
	DeadlineSeconds int32 `json:"deadlineSeconds,omitempty"`
	// onDeadline is what happens then; Hold where nothing is said.
	// +optional
	OnDeadline OnDeadline `json:"onDeadline,omitempty"`
}

// CELGate asks an expression about objects of one kind.
// +kubebuilder:object:generate=true
// +kubebuilder:validation:XValidation:rule="!has(self.name) || !has(self.labelSelector)",message="name and labelSelector exclude each other",fieldPath=".labelSelector"
type CELGate struct {
	// apiVersion of the objects.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^([a-z0-9.-]+/)?v[a-z0-9]+$`
	APIVersion string `json:"apiVersion"`
	// kind of the objects.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Z][A-Za-z0-9]*$`
	Kind string `json:"kind"`
	// namespace of the objects; without it all, or none where the kind has none.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// name of one object, which is variable object of the expression. $(NODE) stands for the node's name, where the gate
	// is about nodes.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Name string `json:"name,omitempty"`
	// labelSelector selects the objects that are variable objects of the expression, where no name is given; without it
	// all of the kind.
	// +optional
	LabelSelector *metav1.LabelSelector `json:"labelSelector,omitempty"`
	// expression is true where the gate passes. Beside object or objects it has node, the Node that the gate is about,
	// or for a stage nodes, a list.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Expression string `json:"expression"`
}

// PrometheusGate passes where a query gives at least one sample, and none that is 0 or not a number.
// +kubebuilder:object:generate=true
type PrometheusGate struct {
	// url of the server, without /api/v1.
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="isURL(self) && url(self).getScheme() in ['http', 'https'] && url(self).getHost() != \"\" && !self.contains('@') && url(self).getQuery().size() == 0",message="has to be http:// or https://, a host and maybe a path, without a password or a query"
	URL string `json:"url"`
	// query is an instant query. $(NODE) stands for the node's name, where the gate is about nodes.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Query string `json:"query"`
	// secretName is a Secret beside the controller: its key token is sent as a bearer token, and its key ca.crt says whom
	// to trust.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	SecretName string `json:"secretName,omitempty"`
}

// JobGate passes where a Job completes, which is made of a CronJob's template once for each configuration and stage or
// node.
// +kubebuilder:object:generate=true
type JobGate struct {
	// namespace of the CronJob, and of the Job.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// cronJob is the name of the CronJob, which may be suspended.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=52
	CronJob string `json:"cronJob"`
}

// HostCheckGate passes where a check of the host said yes in the verdict on the configuration.
// +kubebuilder:object:generate=true
type HostCheckGate struct {
	// name is the file name of a check script, in required.d or wanted.d.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[^/]+$`
	Name string `json:"name"`
}

// AnnotationGate passes where the Node has an annotation that says so, since it was asked.
// +kubebuilder:object:generate=true
type AnnotationGate struct {
	// key of the annotation that answers. It is taken away when the Node is asked, and so can be none that Kubernetes,
	// OpenShift or the agents keep on Nodes.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`
	// +kubebuilder:validation:XValidation:rule="!self.matches('^([^/]*[.])?(noderefit[.]dev|openshift[.]io|(x-)?k8s[.]io|kubernetes[.]io)/')",message="the answer needs a key of its own: those of noderefit.dev, openshift.io, k8s.io and kubernetes.io are kept by others"
	Key string `json:"key"`
	// value is the answer that is a yes. Without it, it is the value of the annotation that asks.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Value string `json:"value,omitempty"`
}

// RolloutGate is a question that is open, and what was answered last.
// +kubebuilder:object:generate=true
type RolloutGate struct {
	// pool that it is about.
	Pool string `json:"pool"`
	// gate by its name.
	Gate string `json:"gate"`
	// stage that it is about, or node.
	// +optional
	Stage string `json:"stage,omitempty"`
	// +optional
	Node string `json:"node,omitempty"`
	// config is the configuration that it is about.
	Config string `json:"config"`
	// arrived is when the last of what it is about arrived, or when a quarantine was lifted after that.
	// +optional
	Arrived string `json:"arrived,omitempty"`
	// passed says whether it passes.
	Passed bool `json:"passed"`
	// message says why not.
	// +optional
	Message string `json:"message,omitempty"`
	// since is when that began.
	Since metav1.Time `json:"since"`
	// closed is when it closed after it had passed.
	// +optional
	Closed *metav1.Time `json:"closed,omitempty"`
}

// AskPrefix begins the annotation of a Node by which a gate asks; the gate's name follows. Its value is the
// configuration, and after a space the time at which the node or the stage arrived. The pool controller writes it.
const AskPrefix = ownPrefix + "ask-"

// ChecksKey is the annotation of a Node that holds Checks. Its agent writes it.
const ChecksKey = ownPrefix + "checks"

// Checks are what the check scripts of a host said in the verdict on a configuration.
type Checks struct {
	Config string    `json:"config"`
	At     time.Time `json:"at"`
	// Said is by script, its file name: empty is a yes, else why not.
	Said map[string]string `json:"said"`
}

// GatesRoleLabel is the label of a ClusterRole, with value "true", whose rules the pool controller gets beside its own:
// what gates need to read or to make.
const GatesRoleLabel = "rbac." + ownPrefix + "aggregate-to-gates"

// JobGateLabel is on a Job that a gate made, with the gate's name as its value.
const JobGateLabel = ownPrefix + "gate"
