// SPDX-License-Identifier: Apache-2.0

package api

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

const (
	// EntriesKey is the annotation of a Node that holds Entries. The nodevalues controller writes it.
	EntriesKey = ownPrefix + "node-values"
	// ValuesSchemaKey is the annotation of a MachineConfigPool that holds a JSON Schema, as JSON or YAML. The values of
	// the NodeValues of the pool's nodes have to fit it. People write it.
	ValuesSchemaKey = ownPrefix + "values-schema"
)

// Entries are the values of the NodeValues of a node, or why they are not in force.
type Entries struct {
	Values  map[string]string `json:"values,omitempty"`
	Refused string            `json:"refused,omitempty"`
}

// NodeValues has values of the node of its name. A configuration names them as @{TYPE:values/KEY}. They are no place
// for secrets: each reader of Nodes can read them.
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=nodevalues,scope=Cluster,shortName=nv,categories=noderefit
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NodeValues struct {
	metav1.TypeMeta   `json:",inline"` //nolint:revive // the generator of schemas needs the word
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec NodeValuesSpec `json:"spec"`
	// +optional
	Status NodeValuesStatus `json:"status,omitempty"`
}

// NodeValuesList is a list of NodeValues.
// +kubebuilder:object:root=true
type NodeValuesList struct {
	metav1.TypeMeta `json:",inline"` //nolint:revive // the generator of schemas needs the word
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NodeValues `json:"items"`
}

// NodeValuesSpec has the values.
// +kubebuilder:object:generate=true
type NodeValuesSpec struct {
	// values are texts on one line by their keys. Placeholders check their types. The schema that the node's pool has in
	// the annotation noderefit.dev/values-schema checks all of them.
	// +kubebuilder:validation:MaxProperties=128
	Values map[string]NodeValue `json:"values"`
}

// NodeValue is one value.
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=1024
// +kubebuilder:validation:Pattern=`^[^\x00-\x1f\x7f]*$`
type NodeValue string

// NodeValuesStatus is what the nodevalues controller says.
// +kubebuilder:object:generate=true
type NodeValuesStatus struct {
	// observedGeneration is that of the spec which this is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// conditions: Ready is true while the node has these values.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ValuesReady is the condition of NodeValues that is true while the node has them.
const ValuesReady = "Ready"

// Reasons of ValuesReady.
const (
	ValuesInForce     = "InForce"
	ValuesRefused     = "RefusedBySchema"
	ValuesBadSchema   = "UnusableSchema"
	ValuesWithoutNode = "NoSuchNode"
	ValuesTooLarge    = "TooLarge"
)
