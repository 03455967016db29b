// SPDX-License-Identifier: Apache-2.0

package api

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// OSStream follows the releases of an operating system for pools. Of what its source offers it chooses a release for
// each pool, and writes a MachineConfig with that release's image by digest.
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=osstreams,scope=Cluster,shortName=oss,categories=noderefit
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Source",type=string,JSONPath=`.status.conditions[?(@.type=="SourceAvailable")].status`
// +kubebuilder:printcolumn:name="Pools",type=string,JSONPath=`.status.pools[*].name`
// +kubebuilder:printcolumn:name="Versions",type=string,JSONPath=`.status.pools[*].version`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type OSStream struct {
	metav1.TypeMeta   `json:",inline"` //nolint:revive // the generator of schemas needs the word
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec OSStreamSpec `json:"spec"`
	// +optional
	Status OSStreamStatus `json:"status,omitempty"`
}

// OSStreamList is a list of OSStreams.
// +kubebuilder:object:root=true
type OSStreamList struct {
	metav1.TypeMeta `json:",inline"` //nolint:revive // the generator of schemas needs the word
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []OSStream `json:"items"`
}

// OSStreamSpec is what people ask for.
// +kubebuilder:object:generate=true
// +kubebuilder:validation:XValidation:rule="has(self.pools) || has(self.poolSelector)",message="pools or poolSelector is needed: a stream that selects no pool is for nothing"
type OSStreamSpec struct {
	// pools are MachineConfigPools by name. A pool that two streams select keeps what it has until one lets go.
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
	// source is where the releases come from.
	Source OSStreamSource `json:"source"`
	// approval is Manual where a person approves each release before it is chosen: kubectl refit streams approve.
	// +kubebuilder:default=Automatic
	// +optional
	Approval OSStreamApproval `json:"approval,omitempty"`
	// highestVersion is the highest version that is chosen, such as 44 or 1.9: 44 has all versions that begin with it.
	// +kubebuilder:validation:Pattern=`^v?[0-9]+(\.[0-9]+)*$`
	// +kubebuilder:validation:MaxLength=64
	// +optional
	HighestVersion string `json:"highestVersion,omitempty"`
	// minAgeMinutes is how old a release must be before it is chosen.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=525600
	// +optional
	MinAgeMinutes int32 `json:"minAgeMinutes,omitempty"`
	// signature is the policy that an image must pass. With HostPolicy each host's policy.json decides. With Required it
	// must demand a signature, and hosts refuse the image otherwise.
	// +kubebuilder:default=HostPolicy
	// +optional
	Signature OSStreamSignature `json:"signature,omitempty"`
	// intervalSeconds is the time between two questions to the source.
	// +kubebuilder:validation:Minimum=10
	// +kubebuilder:validation:Maximum=86400
	// +kubebuilder:default=1800
	// +optional
	IntervalSeconds int32 `json:"intervalSeconds,omitempty"`
	// pullSecret is a Secret of the type kubernetes.io/dockerconfigjson in the namespace of the controller.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	PullSecret string `json:"pullSecret,omitempty"`
}

// OSStreamApproval is who lets a release be chosen.
// +kubebuilder:validation:Enum=Automatic;Manual
type OSStreamApproval string

// Who lets a release be chosen.
const (
	StreamAutomatic OSStreamApproval = "Automatic"
	StreamManual    OSStreamApproval = "Manual"
)

// OSStreamSignature is what an image must pass on the hosts.
// +kubebuilder:validation:Enum=HostPolicy;Required
type OSStreamSignature string

// What an image must pass.
const (
	SignatureHostPolicy OSStreamSignature = "HostPolicy"
	SignatureRequired   OSStreamSignature = "Required"
)

// OSStreamSource is exactly one source of releases.
// +kubebuilder:object:generate=true
// +kubebuilder:validation:XValidation:rule="[has(self.tag), has(self.versions), has(self.fedoraCoreOS), has(self.cincinnati)].filter(x, x).size() == 1",message="exactly one of tag, versions, fedoraCoreOS and cincinnati is needed"
type OSStreamSource struct {
	// tag is an image by its tag: the release is what the tag names.
	// +optional
	Tag *TagSource `json:"tag,omitempty"`
	// versions are the tags of a repository that are semantic versions.
	// +optional
	Versions *VersionsSource `json:"versions,omitempty"`
	// fedoraCoreOS is a stream of Fedora CoreOS.
	// +optional
	FedoraCoreOS *FedoraCoreOSSource `json:"fedoraCoreOS,omitempty"` //nolint:tagliatelle // the name of the product
	// cincinnati is an update graph whose payloads are images by digest.
	// +optional
	Cincinnati *CincinnatiSource `json:"cincinnati,omitempty"`
}

// TagSource is a tag of an image.
// +kubebuilder:object:generate=true
type TagSource struct {
	// image is HOST[:PORT]/NAME:TAG.
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9.-]+(:[0-9]+)?(/[a-z0-9._-]+)+:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`
	Image string `json:"image"`
}

// VersionsSource is a range of versions.
// +kubebuilder:object:generate=true
type VersionsSource struct {
	// repository is HOST[:PORT]/NAME.
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9.-]+(:[0-9]+)?(/[a-z0-9._-]+)+$`
	Repository string `json:"repository"`
	// range is a range of semantic versions, such as ">=1.4 <2" or "~1.4". Versions such as 1.5.0-rc.1 are only in a
	// range that names one.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Range string `json:"range"`
}

// FedoraCoreOSSource is a stream of Fedora CoreOS with its update graph.
// +kubebuilder:object:generate=true
type FedoraCoreOSSource struct {
	// stream is stable, testing or next.
	// +kubebuilder:validation:Pattern=`^[a-z][a-z0-9-]*$`
	// +kubebuilder:validation:MaxLength=63
	Stream string `json:"stream"`
	// warinessPercent is how much of a phased rollout has to be over before its release is chosen: 0 is at once, 100 at
	// its end.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	// +kubebuilder:default=50
	// +optional
	WarinessPercent *int32 `json:"warinessPercent,omitempty"`
	// graphURL is where the update graph is. It is Fedora's where nothing is said.
	// +kubebuilder:validation:Pattern=`^https?://[^ ]+$`
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	GraphURL string `json:"graphURL,omitempty"`
	// releasesURL is where the index of the stream's releases is, which has their images. It is Fedora's where nothing is
	// said.
	// +kubebuilder:validation:Pattern=`^https?://[^ ]+$`
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	ReleasesURL string `json:"releasesURL,omitempty"`
}

// CincinnatiSource is an update graph.
// +kubebuilder:object:generate=true
type CincinnatiSource struct {
	// url is where the graph is.
	// +kubebuilder:validation:Pattern=`^https?://[^ ]+$`
	// +kubebuilder:validation:MaxLength=1024
	URL string `json:"url"`
	// channel is the parameter channel of the request.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Channel string `json:"channel,omitempty"`
	// arch is the parameter arch of the request. Without it the graph is for all architectures.
	// +kubebuilder:validation:Enum=amd64;arm64;ppc64le;s390x
	// +optional
	Arch string `json:"arch,omitempty"`
}

// OSStreamStatus is what the stream controller says.
// +kubebuilder:object:generate=true
type OSStreamStatus struct {
	// observedGeneration is that of the spec which this is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// conditions: Ready is false where the stream makes no sense or can't be carried out, SourceAvailable is false since
	// the source does not answer.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// releases are what the source offers, the newest first, the first 20 of them.
	// +kubebuilder:validation:MaxItems=20
	// +listType=atomic
	// +optional
	Releases []OSStreamRelease `json:"releases,omitempty"`
	// pools are those that the stream is for, by name.
	// +listType=map
	// +listMapKey=name
	// +optional
	Pools []OSStreamPool `json:"pools,omitempty"`
}

// OSStreamRelease is a release that the source offers.
// +kubebuilder:object:generate=true
type OSStreamRelease struct {
	Version string `json:"version"`
	// images are its images by architecture, where they are known.
	// +optional
	Images map[string]string `json:"images,omitempty"`
	// since is when it was made, or else when the controller saw it first.
	// +optional
	Since metav1.Time `json:"since,omitempty"`
}

// OSStreamPool is what was chosen for a pool.
// +kubebuilder:object:generate=true
type OSStreamPool struct {
	// name of the MachineConfigPool.
	Name string `json:"name"`
	// version is the release that was chosen, image is its image by digest; empty: none was.
	// +optional
	Version string `json:"version,omitempty"`
	// +optional
	Image string `json:"image,omitempty"`
	// since is when it was chosen.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
	// previous is what was chosen before.
	// +optional
	Previous *OSStreamChoice `json:"previous,omitempty"`
	// withheld is why nodes that have not gone to the release stay where they are; empty: they go.
	// +optional
	Withheld string `json:"withheld,omitempty"`
	// skipped are the newer releases that were not chosen, the newest first, each with the reason.
	// +kubebuilder:validation:MaxItems=20
	// +listType=atomic
	// +optional
	Skipped []OSStreamSkipped `json:"skipped,omitempty"`
	// quarantined are the releases that failed in the pool. None is chosen again until its quarantine is lifted.
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	Quarantined []OSStreamQuarantined `json:"quarantined,omitempty"`
	// message is what keeps the pool's MachineConfig from its place; empty: nothing does.
	// +optional
	Message string `json:"message,omitempty"`
}

// OSStreamChoice is a release that was chosen.
// +kubebuilder:object:generate=true
type OSStreamChoice struct {
	Version string `json:"version"`
	Image   string `json:"image"`
}

// OSStreamSkipped is a release that was not chosen.
// +kubebuilder:object:generate=true
type OSStreamSkipped struct {
	Version string `json:"version"`
	// reason is one word, message a sentence.
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// OSStreamQuarantined is a release that failed in a pool.
// +kubebuilder:object:generate=true
type OSStreamQuarantined struct {
	Version string `json:"version"`
	Image   string `json:"image"`
	// config is the rendered configuration that failed, on node, since when and why.
	Config string `json:"config"`
	// +optional
	Node string `json:"node,omitempty"`
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
	// +optional
	Reason string `json:"reason,omitempty"`
}

// AsQuarantine returns the quarantine that q was noted of.
func (q *OSStreamQuarantined) AsQuarantine() Quarantine {
	out := Quarantine{Config: q.Config, Node: q.Node, Reason: q.Reason}
	if q.Since != nil {
		out.Since = q.Since.Time
	}
	return out
}

// Conditions of an OSStream.
const (
	// StreamReady is true while the stream makes sense and its MachineConfigs are written.
	StreamReady = "Ready"
	// StreamSource is true while the source answers the controller's requests.
	StreamSource = "SourceAvailable"
)

// Reasons of an OSStream's conditions.
const (
	StreamInForce  = "InForce"
	StreamInvalid  = "InvalidSpec"
	StreamConflict = "PoolOfTwoStreams"
	StreamNoPool   = "NoSuchPool"
	StreamBlocked  = "NotInForce"
	StreamAnswers  = "Answers"
	StreamAway     = "Away"
)

// StreamApprovedKey is the annotation of an OSStream that holds a StreamApproval. People write it, by kubectl refit, or
// by a CI job.
const StreamApprovedKey = ownPrefix + "approved-release"

// StreamApproval lets a release be chosen.
type StreamApproval struct {
	Version string    `json:"version"`
	By      string    `json:"by"`
	Since   time.Time `json:"since"`
	Why     string    `json:"why,omitempty"`
}

// WithheldKey is the annotation of a MachineConfigPool that holds a Withheld. The stream controller writes it.
const WithheldKey = ownPrefix + "withheld"

// Withheld is a release that no further node of a pool goes to. It is the image of the pool's target.
type Withheld struct {
	Stream  string    `json:"stream"`
	Version string    `json:"version"`
	Image   string    `json:"image"`
	Reason  string    `json:"reason"`
	Since   time.Time `json:"since"`
}
