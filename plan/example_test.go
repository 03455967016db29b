// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"os"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/plan"
)

// What a change of a kernel argument and of a file does to a node.
func ExampleMake() {
	config := func(name, ignition string, arguments ...string) *machineconfig.Config {
		c, err := machineconfig.Parse(&mcfgv1.MachineConfig{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: mcfgv1.MachineConfigSpec{KernelArguments: arguments,
				Config: runtime.RawExtension{Raw: []byte(ignition)}},
		})
		if err != nil {
			panic(err)
		}
		return c
	}
	current := config("rendered-worker-a", `{"ignition":{"version":"3.5.0"}}`)
	desired := config("rendered-worker-b", `{"ignition":{"version":"3.5.0"},"storage":{"files":[
		{"path":"/etc/motd","mode":420,"contents":{"source":"data:,hello"}}]}}`, "audit=1")

	p, err := plan.Make(current, desired, plan.Options{})
	if err != nil {
		panic(err)
	}
	if err := p.WriteText(os.Stdout); err != nil {
		panic(err)
	}
	// Output:
	// rendered-worker-a -> rendered-worker-b
	//
	// Changes:
	//   + file /etc/motd
	//   ~ kernel arguments: append audit=1
	//
	// Actions:
	//   1. Drain, because of file /etc/motd: no policy covers it (and 1 more change)
	//   2. Reboot, because of file /etc/motd: no policy covers it (and 1 more change)
}
