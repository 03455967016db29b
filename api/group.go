// SPDX-License-Identifier: Apache-2.0

package api

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is that of the kinds which are ours.
var GroupVersion = schema.GroupVersion{Group: "noderefit.dev", Version: "v1alpha1"}

// Install adds the kinds which are ours to a scheme.
func Install(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &NodeHook{}, &NodeHookList{}, &NodeValues{}, &NodeValuesList{},
		&OSStream{}, &OSStreamList{}, &RolloutPolicy{}, &RolloutPolicyList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
