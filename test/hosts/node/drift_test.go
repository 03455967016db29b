// SPDX-License-Identifier: Apache-2.0

package node

import (
	"slices"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/host"
)

// A pod without capabilities sees through its mount what somebody changes on the host, whatever way that leads, and
// has it written back without a reboot: services are told as the policy says, and nothing else happens to them.
func TestHeadInAPodSeesDriftAndHasItWrittenBack(t *testing.T) {
	ctx, n := startHead(t)
	p := policy(t, n)
	live := document(t, n, "live.json", mc("live", liveConfig("1", "ok")))
	if a := head(ctx, t, n, "apply", "--config", live, "--policy", p, "--name", "live"); a.Error != "" {
		t.Fatalf("%+v", a)
	}
	v := head(ctx, t, n, "verify", "--times", "10")
	if v.Error != "" || len(v.Verification.Drift) > 0 || len(v.Verification.Paths) == 0 {
		t.Fatalf("%+v", v)
	}
	t.Logf("verify: first %.1f ms, then %.1f ms, of %d paths", v.Took[0], slices.Min(v.Took), len(v.Verification.Paths))
	const readRecord = "cat /var/lib/machine-config-daemon/boot.json"
	record, _ := shell(ctx, t, n, readRecord)
	boots := n.Boots()
	for _, c := range []struct{ name, meddle, drift, acts string }{
		{"a file that is edited", "echo mine > /etc/kubernetes/crio.conf",
			"file /etc/kubernetes/crio.conf contents", "restart"},
		{"a file whose action is a reload", "echo mine > /etc/crio/crio.conf.d/10-x.conf",
			"file /etc/crio/crio.conf.d/10-x.conf contents", "reload"},
		{"a directory that goes", "rm -r /etc/crio/crio.conf.d", "file /etc/crio/crio.conf.d/10-x.conf missing", "reload"},
		{"a directory that is replaced", "mv /etc/kubernetes /etc/k && mkdir /etc/kubernetes",
			"file /etc/kubernetes/crio.conf missing", "restart"},
		{"a unit that is disabled", "systemctl disable extra.service", "unit extra.service enabled", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := log(ctx, t, n, "crio")
			shell(ctx, t, n, "rm -f /run/head-watches.ready")
			r := begin(ctx, t, n, "watch")
			shell(ctx, t, n, "while ! test -e /run/head-watches.ready; do sleep 0.02; done")
			shell(ctx, t, n, c.meddle)
			a := r.answer(t)
			if a.Error != "" {
				t.Fatalf("%+v", a)
			}
			var drift []string
			for _, d := range a.Verification.Drift {
				drift = append(drift, strings.Join([]string{d.Kind, d.Path + d.Name + d.User, d.What}, " "))
			}
			if !slices.Contains(drift, c.drift) {
				t.Errorf("drift %q, want %q", drift, c.drift)
			}
			a = head(ctx, t, n, "repair", "--policy", p)
			if a.Error != "" || a.Result.Reboot != host.RebootNone {
				t.Fatalf("%+v", a)
			}
			t.Logf("repair: %.1f ms", a.Took[0])
			if v := head(ctx, t, n, "verify"); len(v.Verification.Drift) > 0 {
				t.Errorf("left: %+v", v.Verification.Drift)
			}
			did := strings.TrimSpace(strings.TrimPrefix(log(ctx, t, n, "crio"), before))
			want := map[string]string{"restart": "start", "reload": "reload"}[c.acts]
			if want == "" && did != "" || !strings.Contains(did, want) {
				t.Errorf("crio did %q, want %q", did, c.acts)
			}
		})
	}
	if n.Boots() != boots {
		t.Error("it rebooted")
	}
	if now, _ := shell(ctx, t, n, readRecord); now != record {
		t.Error("the record was touched")
	}
	nothingLeft(ctx, t, n)
}
