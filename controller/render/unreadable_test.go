// SPDX-License-Identifier: Apache-2.0

package render

import (
	"strings"
	"testing"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/machineconfig"
)

func TestNothingIsRenderedOfWhatCanNotBeRead(t *testing.T) {
	mark := map[string]string{api.UnreadableKey: "spec.x can't be read: y"}
	config := func(name, role string, annotations map[string]string) *mcfgv1.MachineConfig {
		mc := &mcfgv1.MachineConfig{ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{api.Role: role}, Annotations: annotations,
		}}
		mc.Spec.Config.Raw = []byte(`{"ignition":{"version":"3.4.0"}}`)
		return mc
	}
	for name, c := range map[string]struct {
		pool, selected, other, base map[string]string
		named                       string
	}{
		"all can be read":                  {},
		"the pool can't":                   {pool: mark, named: "MachineConfigPool/worker: spec.x"},
		"a MachineConfig can't":            {selected: mark, named: "MachineConfig/50-mine: spec.x"},
		"one that is not the pool's can't": {other: mark},
		"the default images can't":         {base: mark, named: "ControllerConfig/machine-config-controller: spec.x"},
	} {
		t.Run(name, func(t *testing.T) {
			pool := &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: "worker", Annotations: c.pool}}
			pool.Spec.MachineConfigSelector = &metav1.LabelSelector{MatchLabels: map[string]string{api.Role: "worker"}}
			sources := []*mcfgv1.MachineConfig{config("50-mine", "worker", c.selected), config("50-other", "infra", c.other)}
			base := &machineconfig.Document{Object: config("base", "", c.base)}
			_, failure := renderPool(pool, sources, base)
			switch {
			case c.named == "" && failure != nil:
				t.Errorf("not rendered: %+v", failure)
			case c.named != "" && (failure == nil || failure.reason != reasonUnreadable || !strings.HasPrefix(failure.message, c.named)):
				t.Errorf("failure %+v, want one of %s", failure, c.named)
			}
		})
	}
}
