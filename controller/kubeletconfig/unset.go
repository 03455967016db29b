// SPDX-License-Identifier: Apache-2.0

package kubeletconfig

import (
	"encoding/json"
	"reflect"
	"slices"
	"sync"

	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// defaulted are the durations that a kubelet replaces by its default if they are 0. A person has no reason to write 0.
var defaulted = []string{
	"syncFrequency", "fileCheckFrequency", "httpCheckFrequency", "nodeStatusUpdateFrequency", "imageMinimumGCAge",
	"volumeStatsAggPeriod", "cpuManagerReconcilePeriod", "runtimeRequestTimeout", "evictionPressureTransitionPeriod",
}

// printed returns the fields of an empty KubeletConfiguration that Go serialises.
var printed = sync.OnceValue(func() document {
	raw, err := json.Marshal(&kubeletv1beta1.KubeletConfiguration{})
	if err != nil {
		return nil
	}
	doc, err := parse(raw)
	if err != nil {
		return nil
	}
	return doc
})

// dropUnset removes the fields of a document that a program printed without having set them, such as an operator that
// serialises the kubelet's types. Such a document has every duration of defaulted, and at least one is 0. In any other
// document a person has written each field, and false, 0 and "" are values.
func dropUnset(doc document) {
	unset := func(field string) bool { return doc[field] == "0s" }
	lacks := func(field string) bool { _, said := doc[field]; return !said }
	if slices.ContainsFunc(defaulted, unset) && !slices.ContainsFunc(defaulted, lacks) {
		dropEqual(doc, printed())
	}
}

// dropEqual removes what two documents have in common, and maps that are empty then.
func dropEqual(doc, other document) {
	for key, value := range other {
		is, said := doc[key]
		if !said {
			continue
		}
		inner, isMap := is.(document)
		if of, both := value.(document); isMap && both {
			if dropEqual(inner, of); len(inner) == 0 {
				delete(doc, key)
			}
			continue
		}
		if reflect.DeepEqual(is, value) {
			delete(doc, key)
		}
	}
}
