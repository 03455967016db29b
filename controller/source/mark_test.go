// SPDX-License-Identifier: Apache-2.0

package source

import (
	"testing"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/noderefit/noderefit/api"
)

func TestAMachineConfigOfTemplatesIsAlteredWhenItsSpecIsAnother(t *testing.T) {
	t.Parallel()
	made := &mcfgv1.MachineConfig{}
	made.Name = "00-worker"
	made.Spec.Config = runtime.RawExtension{Raw: []byte(`{"ignition":{"version":"3.5.0"},"storage":{"files":[{"path":"/a"}]}}`)}
	made.Annotations = map[string]string{api.MadeAs: Mark(made)}
	for name, c := range map[string]struct {
		change func(*mcfgv1.MachineConfig)
		want   bool
	}{
		"as it was made": {func(*mcfgv1.MachineConfig) {}, false},
		"spelt another way": {func(mc *mcfgv1.MachineConfig) {
			mc.Spec.Config.Raw = []byte(`{ "storage": {"files": [ {"path": "/a"} ]}, "ignition": {"version": "3.5.0"} }`)
			mc.Spec.KernelArguments = []string{}
		}, false},
		"another file": {func(mc *mcfgv1.MachineConfig) {
			mc.Spec.Config.Raw = []byte(`{"ignition":{"version":"3.5.0"},"storage":{"files":[{"path":"/b"}]}}`)
		}, true},
		"another argument": {func(mc *mcfgv1.MachineConfig) { mc.Spec.KernelArguments = []string{"quiet"} }, true},
		"a copy":           {func(mc *mcfgv1.MachineConfig) { mc.Name, mc.Spec.FIPS = "01-copy", true }, false},
		"somebody's own": {func(mc *mcfgv1.MachineConfig) {
			mc.Annotations, mc.Spec.FIPS = nil, true
		}, false},
	} {
		mc := made.DeepCopy()
		c.change(mc)
		if got := Altered(mc); got != c.want {
			t.Errorf("%s: altered is %v", name, got)
		}
	}
}
