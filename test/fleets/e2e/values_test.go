// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/test/lab/fleet"
	"github.com/noderefit/noderefit/values"
)

// makeTheirOwn gives two hosts one configuration with a host name and an address of each. The object of one host comes
// late: until then that host serves, and the key is named.
func makeTheirOwn(ctx context.Context, t *testing.T, f *fleet.Fleet) {
	object := func(node, address string) error {
		return f.Apply(ctx, fmt.Sprintf("apiVersion: noderefit.dev/v1alpha1\nkind: NodeValues\nmetadata: {name: %s}\n"+
			"spec: {values: {address: %s}}\n", node, address))
	}
	before := boots(f)
	must(t, object("w0", "10.0.0.7/24"))
	was, config := change(ctx, t, f, strings.Replace(
		fleet.WorkerFile("75-address", "@%7Bhostname:name%7D%20@%7Bprefix:values/address%7D"),
		"metadata:\n", "metadata:\n  annotations: {noderefit.dev/placeholders: \"true\"}\n", 1))
	reached := func(node, address string) {
		t.Helper()
		own := api.MadeName(config, values.Digest(map[string]string{"name": node, "values/address": address}))
		must(t, f.WaitAt(ctx, own, node))
		text, err := f.Node(node).Output(ctx, "cat", "/etc/75-address.conf")
		must(t, err)
		if text != node+" "+address {
			t.Errorf("%s has %q", node, text)
		}
	}
	reached("w0", "10.0.0.7/24")
	must(t, f.WaitPool(ctx, "worker", "names the missing key", func(p *mcfgv1.MachineConfigPool) bool {
		for _, c := range p.Status.Conditions {
			if c.Type == progress.PoolMisconfigured {
				return c.Status == corev1.ConditionTrue && strings.Contains(c.Message, "w1") &&
					strings.Contains(c.Message, "no value for values/address")
			}
		}
		return false
	}))
	if says, n, err := f.Says(ctx, "w1"); err != nil || says.Desired != was || n.Spec.Unschedulable {
		t.Errorf("w1 without its value: %+v, %v", says, err)
	}
	if text, _, err := f.Refit(ctx, "explain", "w1"); err != nil || !strings.Contains(text, "no value for values/address") {
		t.Errorf("explain: %s, %v", text, err)
	}
	must(t, object("w1", "10.0.0.8/24"))
	reached("w1", "10.0.0.8/24")
	must(t, f.WaitPool(ctx, "worker", "updated", fleet.Updated(2)))
	bootedOnce(t, f, before, "w0", "w1")
	// A change of a value alone is an update of that node. The pool's configuration keeps its name.
	must(t, object("w0", "10.0.0.9/24"))
	reached("w0", "10.0.0.9/24")
	if now, err := f.Configuration(ctx, "worker"); err != nil || now != config {
		t.Errorf("the pool is at %s, which was %s: %v", now, config, err)
	}
	bootedOnce(t, f, before, "w1")
}
