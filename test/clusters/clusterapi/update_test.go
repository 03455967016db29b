// SPDX-License-Identifier: Apache-2.0

package clusterapi

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
)

const update = "updatemachine/update-machine"

// A change of a template's files is made in place by the pool. A change that fails its verdict is a failure of its
// machine and is taken back; the next change comes by another machine. What new machines do not boot with goes.
func TestAChangeOfFilesIsMadeInPlaceAndItsVerdictIsTheMachines(t *testing.T) {
	l := newLab(t)
	l.node("node-1", "m1")
	l.node("node-2", "m2")
	l.until("the pool is rendered", func() (bool, any) {
		name, is := l.configuration("")
		return is, name
	})

	can := l.ask("canupdatemachineset/can-update-machine-set")
	if can.Status != "Success" || can.BootstrapConfigTemplatePatch == nil ||
		!strings.Contains(string(can.BootstrapConfigTemplatePatch.Patch), "/spec/template/spec/files") {
		t.Fatalf("%+v", can)
	}
	if no := l.ask("canupdatemachineset/can-update-machine-set", `"noderefit.dev/pool": "worker"`,
		`"noderefit.dev/pool": "gpu"`); no.BootstrapConfigTemplatePatch != nil || !strings.Contains(no.Message, "gpu") {
		t.Errorf("a pool that there is not: %+v", no)
	}

	second := []string{`"name": "m1"`, `"name": "m2"`, "lab://m1", "lab://m2"}
	l.until("the first machine has its files", func() (bool, any) {
		a := l.ask(update)
		return a.Status == "Success" && a.RetryAfterSeconds == 0, a
	})
	name, with := l.configuration("Mgo=")
	if n, err := l.Client.CoreV1().Nodes().Get(t.Context(), "node-1", metav1.GetOptions{}); err != nil || !with ||
		n.Annotations[api.CurrentConfig] != name {
		t.Errorf("the machine is done, and its node has not proved %s, which has the files: %t; %v, %v", name, with,
			n.Annotations, err)
	}
	l.until("the second machine has its files", func() (bool, any) {
		a := l.ask(update, second...)
		return a.Status == "Success" && a.RetryAfterSeconds == 0, a
	})
	mc, err := l.MachineConfigs.MachineconfigurationV1().MachineConfigs().Get(t.Context(), made, metav1.GetOptions{})
	if err != nil || mc.Labels[api.Role] != pool || !strings.Contains(string(mc.Spec.Config.Raw), "/etc/b") {
		t.Errorf("%+v, %v", mc, err)
	}

	// The next files fail on the first node. Nodes are held until the pool's configuration with the files is known.
	failing := []string{`"content": "2"`, `"content": "fails"`}
	l.pause(true)
	if a := l.ask(update, failing...); a.Status != "Success" || a.RetryAfterSeconds == 0 {
		t.Fatalf("%+v", a)
	}
	l.until("the pool is rendered with the files", func() (bool, any) {
		name, is := l.configuration("ZmFpbHMK")
		l.bad.Store(&name)
		return is, name
	})
	l.until("it says that the pool is paused", func() (bool, any) {
		a := l.ask(update, failing...)
		return a.Status == "Success" && a.RetryAfterSeconds > 0 && strings.Contains(a.Message, "paused"), a
	})
	l.pause(false)
	l.until("the machine has failed", func() (bool, any) {
		a := l.ask(update, failing...)
		return a.Status == "Failure" && strings.Contains(a.Message, "example.service failed"), a
	})
	l.until("the pool has what it had", func() (bool, any) {
		name, is := l.configuration("Mgo=")
		return is, name
	})
	if a := l.ask("canupdatemachineset/can-update-machine-set", failing...); a.Status != "Failure" {
		t.Errorf("files that failed, for the next machines: %+v", a)
	}
	corrected := append([]string{`"content": "2"`, `"content": "corrected"`}, second...)
	l.until("the corrected files are there", func() (bool, any) {
		a := l.ask(update, corrected...)
		return a.Status == "Success" && a.RetryAfterSeconds == 0, a
	})
	if a := l.ask(update, failing...); a.Status != "Failure" || !strings.Contains(a.Message, "delete Machine fleet/m1") {
		t.Errorf("the machine that failed: %+v", a)
	}

	// New machines boot with other files. Cluster API may make them once the pool has let go of its own.
	l.until("new machines may be made", func() (bool, any) {
		a := l.ask("canupdatemachineset/can-update-machine-set", `"content": "2"`, `"content": "newer","owner":"etcd:etcd"`)
		return a.Status == "Success" && a.BootstrapConfigTemplatePatch == nil, a
	})
	if name, still := l.configuration("Y29ycmVjdGVk"); still {
		t.Errorf("%s still has the corrected file", name)
	}
}

// The account of the extension makes its own MachineConfigs alone.
func TestTheExtensionMakesItsOwnMachineConfigsAlone(t *testing.T) {
	l := newCluster(t)
	for name, test := range map[string]struct {
		manifest string
		refused  bool
	}{
		"its own":          {of("50-cluster-api-worker", "worker", "noderefit.dev/cluster-api: x"), false},
		"another name":     {of("99-own", "worker", "noderefit.dev/cluster-api: x"), true},
		"another pool":     {of("50-cluster-api-worker", "master", "noderefit.dev/cluster-api: x"), true},
		"without a record": {of("50-cluster-api-infra", "infra", "a: b"), true},
	} {
		l.until(name, func() (bool, any) { // a policy is in force a moment after it was made
			out, err := l.apply(test.manifest)
			return err == nil && !test.refused ||
				err != nil && test.refused && strings.Contains(err.Error(), "50-cluster-api-POOL"), out
		})
	}
}
