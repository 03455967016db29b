// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/test/hosts/node"
	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/test/lab/programs"
	"github.com/noderefit/noderefit/transaction"
)

// runtimeProfile has the rules of AppArmor that container runtimes have by default, without those for /proc and /sys.
// What no rule allows is refused, and no rule is about D-Bus. Ubuntu's kernel refuses D-Bus therefore. Debian's kernel
// has no rules for D-Bus.
const runtimeProfile = `abi <abi/3.0>,
include <tunables/global>
profile runtime flags=(attach_disconnected,mediate_deleted) {
  include <abstractions/base>
  network,
  capability,
  file,
  umount,
  signal (receive) peer=unconfined,
  signal (send,receive) peer=runtime,
  deny mount,
  ptrace (trace,read,tracedby,readby) peer=runtime,
}
`

// compiled returns a profile as a kernel with AppArmor reads it. This machine's kernel may have no AppArmor.
func compiled(ctx context.Context, t *testing.T, text string) []byte {
	t.Helper()
	parser, err := find("apparmor_parser")
	if err != nil && os.Getenv("LAB_INSTALL") == "1" {
		if err := lab.InstallPackages(ctx, os.Stderr, []string{"apparmor"}); err != nil {
			t.Fatal(err)
		}
		parser, err = find("apparmor_parser")
	}
	if err != nil {
		const missing = "apparmor_parser is missing; apt-get install apparmor, or set LAB_INSTALL=1"
		if os.Getenv("VM_TESTS") == "require" {
			t.Fatal(missing)
		}
		t.Skip(missing)
	}
	cmd := exec.CommandContext(ctx, parser, "--skip-cache", "--skip-kernel-load", "--stdout",
		"--kernel-features=/etc/apparmor.d/abi/3.0")
	cmd.Stdin = strings.NewReader(text)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("compiling a profile: %v", err)
	}
	return out
}

// TestAPodDrivesAHostWithAppArmor gives a machine AppArmor by an update of its kernel arguments. Then a pod finds and
// mends drift there: once without a profile, as the agent is installed, and once with that of a runtime, as where
// somebody's policy takes the field away.
func TestAPodDrivesAHostWithAppArmor(t *testing.T) {
	if testing.Short() {
		t.Skip("a way to package the agent")
	}
	ctx := context.Background()
	image := Need(t, Options{})
	t.Parallel()
	profile := compiled(ctx, t, runtimeProfile)
	m, err := image.Booted(ctx, "apparmor")
	if err != nil {
		t.Fatal(err)
	}
	h := &vmHost{m}
	t.Cleanup(func() {
		counted.Boots.Add(int64(m.Boots() - 1))
		closeMachine(t, m)
	})
	const pod = "/var/usrlocal/bin/agents-pod"
	dir := t.TempDir()
	for at, build := range map[string]func() (string, error){
		agent: func() (string, error) { return node.Build(ctx, dir) },
		pod:   func() (string, error) { return programs.Build(ctx, dir, "test/hosts/node/head") },
	} {
		path, err := build()
		if err != nil {
			t.Fatal(err)
		}
		program, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := h.Put(ctx, at, program, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	h.mediate(ctx, t, profile)

	for _, name := range []string{"", "runtime"} {
		text := mustOutput(ctx, t, m, "sh", "-ec", `export HEAD_PROFILE="$1"
echo drifted >/etc/chrony.conf
"$0" pod verify
"$0" pod repair
"$0" pod verify
cat /etc/chrony.conf`, pod, name)
		lines := strings.Split(text, "\n")
		const drifted = `"path":"/etc/chrony.conf","what":"contents"`
		if len(lines) != 4 || !strings.Contains(lines[0], drifted) || strings.Contains(text, `"error"`) ||
			!strings.Contains(lines[2], `"drift":[]`) || lines[3] != "mediated" {
			t.Errorf("with profile %q: %s", name, text)
		}
	}
}

// mediate updates a machine to a kernel that has AppArmor, and loads a profile with the name runtime.
func (h *vmHost) mediate(ctx context.Context, t *testing.T, profile []byte) {
	t.Helper()
	next := h.Boots() + 1
	document := softDocument("mediated", `"lsm=capability,apparmor"`, "")
	if exit, said, err := h.try(ctx, document, ignore); err != nil || exit > 0 {
		t.Fatalf("applying: exit %d, %v: %s", exit, err, said)
	}
	if err := h.WaitBoot(ctx, next); err != nil {
		t.Fatal(err)
	}
	s, err := h.settled(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if s.State != transaction.Done || s.Config.Committed != "mediated" {
		t.Fatalf("on %s, %s: %s", s.Config.Committed, s.State, s.Reason)
	}
	const at = "/run/profile"
	if err := h.Put(ctx, at, profile, 0o600); err != nil {
		t.Fatal(err)
	}
	// The profile is in force where it refuses what the kernel allows without it.
	text := mustOutput(ctx, t, h.Machine, "sh", "-ec", `security=/sys/kernel/security
mountpoint -q $security || mount -t securityfs securityfs $security
cat "$0" >$security/apparmor/.load
for name in runtime unconfined; do
	systemd-run --quiet --pipe --wait --property=AppArmorProfile=$name \
		sh -c 'cat /proc/self/attr/current; readlink /proc/1/root || echo refused'
done`, at)
	if text != "runtime (enforce)\nrefused\nunconfined\n/" {
		t.Fatalf("profiles are not in force: %q", text)
	}
}
