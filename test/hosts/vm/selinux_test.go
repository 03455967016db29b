// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/transaction"
)

// TestUpdateComesBackWithSELinuxEnforcing holds all that is on the machine to the labels that its policy has for it: on
// b, after a configuration that came back by itself, and on a after a rollback. What a fresh machine has wrong is the
// image's fault, and it has nothing wrong.
func TestUpdateComesBackWithSELinuxEnforcing(t *testing.T) {
	ctx := context.Background()
	h, s := updated(ctx, t, Options{SELinux: true})
	labelled(ctx, t, h.Machine)
	marked(ctx, t, h.Machine, "b")
	// Somebody relabels everything. What is kept of a is then labelled by where it is kept.
	mustOutput(ctx, t, h.Machine, "restorecon", "-R", "/etc", "/var")
	comesBack(ctx, t, h, s)
	labelled(ctx, t, h.Machine)
	marked(ctx, t, h.Machine, "a")

	fresh, err := s.resume(ctx, "selinux-fresh", s.saved[""])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeMachine(t, fresh.Machine) })
	labelled(ctx, t, fresh.Machine)
}

// marked fails the test where what a side manages has not the types that the policy is known to have for it: a policy
// that tells nothing apart would find no label wrong.
func marked(ctx context.Context, t *testing.T, m *Machine, side string) {
	t.Helper()
	const types = `for path in /etc/chrony.conf /etc/link /var/usrlocal/bin/tool /var/lib/vm /var/home/core/.ssh \
/etc/systemd/system/both.service; do stat -c %C "$path" | cut -d: -f3; done`
	if got, want := mustOutput(ctx, t, m, "sh", "-c", types),
		"chronyd_conf_t\netc_t\nbin_t\nvar_lib_t\nssh_home_t\nsystemd_unit_t"; got != want {
		t.Errorf("on %s: the policy is not what this test was made for: %q, want %q", side, got, want)
	}
}

// labelled fails the test where a machine does not enforce, where a label is not the one that restorecon would give, and
// where the policy refused something to the agent or to what it runs.
func labelled(ctx context.Context, t *testing.T, m *Machine) {
	t.Helper()
	if got := mustOutput(ctx, t, m, "getenforce"); got != "Enforcing" {
		t.Errorf("SELinux is %s", got)
	}
	// What the journal keeps of before keeps the label that it had at its place.
	for line := range strings.Lines(mustOutput(ctx, t, m, "restorecon", "-n", "-R", "-v", "/etc", "/var")) {
		if !strings.Contains(line, transaction.StateDir+"/transactions/") || !strings.Contains(line, "/keep-") {
			t.Errorf("a label is wrong: %s", line)
		}
	}
	for line := range strings.Lines(mustOutput(ctx, t, m, "dmesg")) {
		if !strings.Contains(line, "avc:  denied") {
			continue
		}
		t.Log(strings.TrimSpace(line))
		for _, ours := range []string{`comm="machine-config-`, `comm="ostree"`, `comm="systemctl"`} {
			if strings.Contains(line, ours) {
				t.Errorf("refused: %s", line)
			}
		}
	}
}
