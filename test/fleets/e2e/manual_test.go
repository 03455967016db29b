// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/test/lab/fleet"
)

// manualPolicy leaves reboots to people, who have a window for them. The hosts reboot by a command of their own.
const manualPolicy = `apiVersion: noderefit.dev/v1alpha1
kind: RolloutPolicy
metadata:
  name: by-hand
spec:
  pools: [worker]
  reboots: Manual
  rebootMethod: Command
  rebootWindows:
    open:
    - {from: %s, until: %s}
`

// ownCommand says on the disk that it ran, and reboots.
const ownCommand = "#!/bin/sh\necho once >>/var/lib/own-command\nexec systemctl reboot\n"

// bootedByPeople has w0 run a pod that no drain gets past. So the commit disrupts nothing, and the reboot comes after a
// drain. Of the hosts w0 alone has the command by which the policy has them reboot.
func bootedByPeople(ctx context.Context, t *testing.T, f *fleet.Fleet) {
	at := f.Node("w0").HostPath("/etc/noderefit/reboot-command")
	must(t, os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(ownCommand), 0o755))
	must(t, f.Apply(ctx, window(manualPolicy, time.Now().Add(24*time.Hour))), f.Pinned(ctx, "guarded", "w0"))
	for _, name := range names(f) {
		must(t, f.WaitNodeSays(ctx, name, "told that people boot it", func(says api.Node, _ *corev1.Node) bool {
			return says.Orders.ManualReboots
		}))
	}
	booted := boots(f)
	before, after := change(ctx, t, f, fleet.WorkerFile("60-blocked", "fourth"))
	for _, name := range names(f) {
		explains(ctx, t, f, name, progress.NeedsReboot, after+" is committed on the host")
	}
	text, exit, err := f.Refit(ctx, "reboot", "worker", "--why", "our night")
	must(t, err)
	if exit != 0 {
		t.Fatal(text)
	}
	for _, name := range names(f) {
		explains(ctx, t, f, name, progress.NeedsReboot, "no window is open")
		if says, n, err := f.Says(ctx, name); err != nil || says.Current != before || says.Cordon != nil || n.Spec.Unschedulable {
			t.Errorf("%s does not serve: %+v, %v", name, says, err)
		}
	}
	must(t, rebootsOf(f, booted, nil))

	must(t, f.Apply(ctx, window(manualPolicy, time.Now().Add(-time.Minute))),
		f.WaitNodeSays(ctx, "w0", "cordoned for its reboot", func(says api.Node, n *corev1.Node) bool {
			return says.Cordon != nil && n.Spec.Unschedulable
		}), waitsForBudget(ctx, f))
	if f.Node("w0").Boots() != booted["w0"] {
		t.Fatal("w0 has booted with a pod on it")
	}
	must(t, f.Unpin(ctx, "guarded"), f.WaitAt(ctx, after, names(f)...), f.WaitPool(ctx, "worker", "updated", fleet.Updated(2)))
	bootedOnce(t, f, booted, names(f)...)
	ran, err := f.Node("w0").Output(ctx, "cat", "/var/lib/own-command")
	if must(t, err); ran != "once\n" {
		t.Errorf("w0 has run its command %q", ran)
	}
	wentBy(ctx, t, f, "w0", api.RebootCommand, "")
	wentBy(ctx, t, f, "w1", api.RebootFull, "the host has no /etc/noderefit/reboot-command")
	_, err = f.Kubectl(ctx, "delete", "rolloutpolicy", "by-hand")
	must(t, err)
}

// wentBy holds the record of a host, its Node and its MachineConfigNode to the way of its latest reboot, which was asked
// to be one by the host's command. Where another way was taken, an event and explain say why.
func wentBy(ctx context.Context, t *testing.T, f *fleet.Fleet, name string, took api.RebootMethod, why string) {
	t.Helper()
	want := string(took)
	if why != "" {
		want += ", and not Command: " + why
	}
	s, err := f.Node(name).Status(ctx)
	if must(t, err); s.RebootWay == nil || s.RebootWay.Asked != api.RebootCommand || s.RebootWay.Took != took ||
		!strings.HasPrefix(s.RebootWay.String(), want) {
		t.Errorf("the record of %s says %+v, not %s", name, s.RebootWay, want)
	}
	must(t, f.WaitNodeSays(ctx, name, "rebooted by "+want, func(says api.Node, _ *corev1.Node) bool {
		return says.RebootWay != nil && *says.RebootWay == *s.RebootWay
	}), fleet.Until(ctx, "the MachineConfigNode of "+name+" says "+want, func(ctx context.Context) (bool, string, error) {
		text, err := f.Kubectl(ctx, "get", "machineconfignode", name, "-o",
			`jsonpath={.status.conditions[?(@.type=="RebootedNode")].message}`)
		return strings.Contains(text, "the latest reboot: "+want), text, err
	}))
	text, _, err := f.Refit(ctx, "explain", name)
	if must(t, err); strings.Contains(text, "the latest reboot: "+want) != (why != "") {
		t.Errorf("explain %s: %s", name, text)
	}
	if why != "" {
		told(ctx, t, f, name, "RebootFellBack", want)
	}
}
