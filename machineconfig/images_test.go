// SPDX-License-Identifier: Apache-2.0

package machineconfig

import (
	"testing"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestAnImageOfAGeneratedMachineConfigNeverBeatsAPersons(t *testing.T) {
	document := func(name, image string, generated bool) *Document {
		mc := &mcfgv1.MachineConfig{ObjectMeta: metav1.ObjectMeta{Name: name}}
		mc.Spec.OSImageURL, mc.Spec.BaseOSExtensionsContainerImage = image, image
		mc.Spec.Config.Raw = []byte(`{"ignition":{"version":"3.4.0"}}`)
		if generated {
			mc.Annotations = map[string]string{generatedBy: "v1"}
		}
		return &Document{Object: mc}
	}
	base := document("base", "q.io/base", false)
	for name, c := range map[string]struct {
		docs []*Document
		base *Document
		want string
	}{
		"a person's comes before": {[]*Document{document("00-our-os", "q.io/ours", false),
			document("01-worker-kubelet", "q.io/old", true)}, nil, "q.io/ours"},
		"a person's comes after": {[]*Document{document("01-worker-kubelet", "q.io/old", true),
			document("99-our-os", "q.io/ours", false)}, nil, "q.io/ours"},
		"the later of two persons'": {[]*Document{document("00-a", "q.io/a", false), document("01-b", "q.io/b", false)}, base, "q.io/b"},
		"the default as it is now":  {[]*Document{document("01-worker-kubelet", "q.io/old", true)}, base, "q.io/base"},
		"there is no other":         {[]*Document{document("01-worker-kubelet", "q.io/old", true)}, nil, "q.io/old"},
	} {
		t.Run(name, func(t *testing.T) {
			config, _, err := Merge("worker", c.docs, c.base)
			if err != nil {
				t.Fatal(err)
			}
			if config.OSImageURL != c.want || config.Object.Spec.BaseOSExtensionsContainerImage != c.want {
				t.Errorf("images %s and %s, want %s", config.OSImageURL, config.Object.Spec.BaseOSExtensionsContainerImage, c.want)
			}
		})
	}
}

func TestAFollowedReleaseBeatsTheDefaultAndNoPerson(t *testing.T) {
	document := func(name, image, extensions string, annotations map[string]string) *Document {
		mc := &mcfgv1.MachineConfig{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}}
		mc.Spec.OSImageURL, mc.Spec.BaseOSExtensionsContainerImage = image, extensions
		mc.Spec.Config.Raw = []byte(`{"ignition":{"version":"3.4.0"}}`)
		return &Document{Object: mc}
	}
	base := document("base", "q.io/base", "q.io/base-extensions", nil)
	old := document("01-worker-kubelet", "q.io/old", "q.io/old", map[string]string{generatedBy: "v1"})
	release := document("99-worker-generated-osstream", "q.io/next", "", map[string]string{
		generatedBy: "v1", ReleaseKey: "fcos 44",
	})
	claimed := document("99-claims", "q.io/mine", "", map[string]string{ReleaseKey: "fcos 44"})
	for name, c := range map[string]struct {
		docs              []*Document
		image, extensions string
	}{
		"the default is there":     {[]*Document{old, release}, "q.io/next", ""},
		"a person names another":   {[]*Document{release, document("00-mine", "q.io/mine", "", nil)}, "q.io/mine", ""},
		"a person names its own":   {[]*Document{release, document("00-mine", "", "q.io/more", nil)}, "q.io/next", "q.io/more"},
		"no controller made it":    {[]*Document{claimed, release}, "q.io/mine", ""},
		"there is no such release": {[]*Document{old}, "q.io/base", "q.io/base-extensions"},
	} {
		t.Run(name, func(t *testing.T) {
			config, _, err := Merge("worker", c.docs, base)
			if err != nil {
				t.Fatal(err)
			}
			if config.OSImageURL != c.image || config.Object.Spec.BaseOSExtensionsContainerImage != c.extensions {
				t.Errorf("images %q and %q", config.OSImageURL, config.Object.Spec.BaseOSExtensionsContainerImage)
			}
		})
	}
}
