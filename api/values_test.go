// SPDX-License-Identifier: Apache-2.0

package api

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestANodesOwnConfigurationHasANameOfItsOwn(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		annotations                      map[string]string
		current, desired, previous, lift string
	}{
		"no values": {map[string]string{CurrentConfig: "a", DesiredConfig: "b", PreviousConfig: "c", Lift: "b"}, "a", "b", "c", "b"},
		"values of what is desired": {map[string]string{CurrentConfig: "a", DesiredConfig: "b", Lift: "b",
			ValuesKey: `{"config":"b","digest":"1"}`}, "a", "b+1", "", "b+1"},
		"values of something else": {map[string]string{CurrentConfig: "a", DesiredConfig: "b",
			ValuesKey: `{"config":"a","digest":"1"}`}, "a", "b", "", ""},
		"made": {map[string]string{CurrentConfig: "a", DesiredConfig: "a", PreviousConfig: "c",
			MadeKey: `{"config":"a+1","previous":"c+2"}`, ValuesKey: `{"config":"a","digest":"1"}`}, "a+1", "a+1", "c+2", ""},
		"made of something else": {map[string]string{CurrentConfig: "a", PreviousConfig: "c",
			MadeKey: `{"config":"b+1","previous":"b+2"}`}, "a", "", "c", ""},
		"a damaged annotation": {map[string]string{CurrentConfig: "a", DesiredConfig: "a", ValuesKey: "{"}, "a", "a", "", ""},
	} {
		n, err := ReadNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: test.annotations}})
		if n.Current != test.current || n.Desired != test.desired || n.Previous != test.previous || n.Lift != test.lift {
			t.Errorf("%s: current %q, desired %q, previous %q, lift %q", name, n.Current, n.Desired, n.Previous, n.Lift)
		}
		if (err != nil) != (name == "a damaged annotation") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if Rendered("a+1") != "a" || ValuesOf("a+1") != "1" || Rendered("a") != "a" || ValuesOf("a") != "" ||
		SameContent(MadeName("a", "1"), "a") {
		t.Error("a name and its parts do not fit")
	}
}
