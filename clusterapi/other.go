// SPDX-License-Identifier: Apache-2.0

package clusterapi

import (
	"reflect"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// untouched are the fields of a Machine that never make Cluster API replace it (its CleanupMachineSpecForDiff).
var untouched = [][]string{{"clusterName"}, {"bootstrap"}, {"infrastructureRef"}, {"providerID"}, {"minReadySeconds"},
	{"readinessGates"}, {"taints"}, {"deletion", "nodeDrainTimeoutSeconds"},
	{"deletion", "nodeVolumeDetachTimeoutSeconds"}, {"deletion", "nodeDeletionTimeoutSeconds"}}

// objects are the objects of a question, by their names.
type objects map[string]map[string]any

// other returns which of the named objects has changed otherwise than by the files of its last, the bootstrap
// configuration; empty if none has. Cluster API replaces machines then, whatever is said of the files.
func other(q change[objects], machine, infrastructure, bootstrap string) string {
	for _, one := range []struct {
		name string
		but  [][]string
	}{{machine, untouched}, {infrastructure, nil}, {bootstrap, [][]string{{"files"}}}} {
		if !reflect.DeepEqual(specOf(q.Current, one.name, one.but), specOf(q.Desired, one.name, one.but)) {
			return one.name
		}
	}
	return ""
}

// specOf returns the spec of an object, or of its template, without some fields and without what is empty.
func specOf(all objects, name string, but [][]string) any {
	spec, _ := all[name]["spec"].(map[string]any)
	if template, is := spec["template"].(map[string]any); is {
		spec, _ = template["spec"].(map[string]any)
	}
	for _, path := range but {
		unstructured.RemoveNestedField(spec, path...)
	}
	return pruned(spec)
}

// pruned returns a value without the objects in it that are empty, which say nothing.
func pruned(v any) any {
	fields, is := v.(map[string]any)
	if !is {
		return v
	}
	out := map[string]any{}
	for key, value := range fields {
		value = pruned(value)
		if inner, is := value.(map[string]any); !is || len(inner) > 0 {
			out[key] = value
		}
	}
	return out
}
