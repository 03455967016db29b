// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// UnreadableKey marks, in the memory of our programs alone, an object that has fields which our Go types can't hold. It
// names each, and why. The API server never has it: package intake sets it on what comes from there.
const UnreadableKey = ownPrefix + "unreadable"

// UnreadableSeparator is between two fields.
const UnreadableSeparator = "; "

// Unreadable is why a decision by the object would be one by half of what it asks for; nil: all of it could be read.
// What can't be read of a status is no reason: its writer writes it anew.
func Unreadable(o metav1.Object) error {
	said := o.GetAnnotations()[UnreadableKey]
	if said == "" {
		return nil
	}
	var wrong []string
	for problem := range strings.SplitSeq(said, UnreadableSeparator) {
		if !strings.HasPrefix(problem, "status") {
			wrong = append(wrong, problem)
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	return errors.New(strings.Join(wrong, UnreadableSeparator))
}

// UnreadableStatus reports whether something of an object's status could not be read: what is known of that is not what
// the API server has, even where it is what should be there.
func UnreadableStatus(o metav1.Object) bool {
	for problem := range strings.SplitSeq(o.GetAnnotations()[UnreadableKey], UnreadableSeparator) {
		if strings.HasPrefix(problem, "status") {
			return true
		}
	}
	return false
}

// UnreadableField reports whether a field of an object, or one that it is part of, could not be read.
func UnreadableField(o metav1.Object, field string) bool {
	err := Unreadable(o)
	if err == nil {
		return false
	}
	for problem := range strings.SplitSeq(err.Error(), UnreadableSeparator) {
		name, _, _ := strings.Cut(problem, " ")
		if name == "spec" || name == field || strings.HasPrefix(name, field+".") || strings.HasPrefix(name, field+"[") {
			return true
		}
	}
	return false
}

// UnreadableImages is why it is not known which images every configuration begins with; nil: it is.
func UnreadableImages(cc metav1.Object) error {
	for _, field := range []string{"spec.osImageURL", "spec.baseOSContainerImage", "spec.baseOSExtensionsContainerImage"} {
		if UnreadableField(cc, field) {
			return Unreadable(cc)
		}
	}
	return nil
}
