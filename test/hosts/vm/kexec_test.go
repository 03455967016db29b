// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/transaction"
)

// way is what the host says of its latest reboot.
func (h *softHost) way(ctx context.Context) string {
	h.t.Helper()
	s, err := h.settled(ctx)
	if err != nil {
		h.t.Fatal(err)
	}
	return s.RebootWay.String()
}

// killsAtLoad has the program kexec kill the agent, which is its parent, once the kernel is loaded.
const killsAtLoad = `set -e
cp /usr/sbin/kexec /var/tmp/kexec
cat >/var/tmp/kexec.sh <<'E'
#!/bin/sh
/var/tmp/kexec "$@" || exit
case "$*" in *-l*) kill -KILL $PPID ;; esac
E
chmod 755 /var/tmp/kexec.sh
mount --bind /var/tmp/kexec.sh /usr/sbin/kexec`

// unloads has the agent killed after the load of a kernel, and gives the update up: the kernel forgets the other one.
func (h *softHost) unloads(ctx context.Context) {
	h.t.Helper()
	const at, loaded = "/var/tmp/config.json", "/sys/kernel/kexec_loaded"
	boots, was := h.Boots(), h.boot(ctx)
	mustOutput(ctx, h.t, h.Machine, "sh", "-c", killsAtLoad)
	if err := h.Put(ctx, at, softDocument("given-up", `"given=up"`, ""), 0o600); err != nil {
		h.t.Fatal(err)
	}
	// The agent is killed, so its exit code says nothing.
	said := mustOutput(ctx, h.t, h.Machine, "sh", "-c", agent+" apply --config "+at+" --reboot-method=kexec 2>&1; true")
	if got := mustOutput(ctx, h.t, h.Machine, "cat", loaded); got != "1" {
		h.t.Fatalf("kexec_loaded is %s: %s", got, said)
	}
	mustOutput(ctx, h.t, h.Machine, agent, "rollback")
	if got := mustOutput(ctx, h.t, h.Machine, "cat", loaded); got != "0" || h.Boots() != boots || h.boot(ctx) != was {
		h.t.Errorf("after the rollback kexec_loaded is %s, and the machine has booted %d times", got, h.Boots()-boots)
	}
	mustOutput(ctx, h.t, h.Machine, "sh", "-c", "umount /usr/sbin/kexec && rm /var/tmp/kexec /var/tmp/kexec.sh")
	h.on(ctx, "two", transaction.Done)
}

// TestTheKernelOfAnUpdateIsStartedByKexec goes to another kernel argument by kexec, which leads past the boot loader, and
// to the next one from there. A kernel whose update is given up is unloaded. A configuration that can't prove healthy is
// left by a full reboot. So is a kernel that may load no other one.
func TestTheKernelOfAnUpdateIsStartedByKexec(t *testing.T) {
	ctx := context.Background()
	h := newHost(ctx, t, "kexec", Options{})
	first := h.boot(ctx)
	if line := h.cmdline(ctx); !strings.Contains(line, " BOOT_IMAGE=") {
		t.Fatalf("the boot loader started: %s", line)
	}

	said, took := h.updateBy(ctx, "one", softDocument("one", `"one=1"`, ""), "--reboot-method=kexec")
	if way := h.way(ctx); way != "Kexec" {
		t.Fatalf("the host says %q: %s", way, said)
	}
	h.on(ctx, "one", transaction.Done)
	second, line := h.boot(ctx), h.cmdline(ctx)
	if second.kernel == first.kernel || second.soft != "0" || strings.Contains(line, "BOOT_IMAGE=") ||
		!strings.Contains(line, " one=1 ") || strings.Count(line, " "+transaction.KexecArgument) != 1 {
		t.Errorf("boot %v after %v, with %s: %s", second, first, line, said)
	}
	t.Logf("from the reboot until the verdict: %v by kexec, %s", took, line)

	// A kernel that was started by kexec starts the next one as well.
	said, _ = h.updateBy(ctx, "two", softDocument("two", `"two=2"`, ""), "--reboot-method=kexec")
	h.on(ctx, "two", transaction.Done)
	if line := h.cmdline(ctx); h.way(ctx) != "Kexec" || strings.Count(line, " "+transaction.KexecArgument) != 1 ||
		strings.Contains(line, " one=1 ") || !strings.Contains(line, " two=2 ") {
		t.Errorf("%q, %s: %s", h.way(ctx), line, said)
	}

	h.unloads(ctx)

	// What is given up goes back through the boot loader.
	h.updateBy(ctx, "bad", softDocument("bad", `"two=2"`,
		`{"path":"/etc/kubernetes/crio.conf","mode":420,"contents":{"source":"data:,fail%0A"}},`), "--verdict-timeout=2m",
		"--reboot-method=kexec")
	h.on(ctx, "two", transaction.RolledBack)
	if line := h.cmdline(ctx); !strings.Contains(line, " BOOT_IMAGE=") {
		t.Errorf("back by another way than the boot loader's: %s", line)
	}

	mustOutput(ctx, t, h.Machine, "sh", "-c", "echo 1 >/proc/sys/kernel/kexec_load_disabled")
	said, _ = h.updateBy(ctx, "three", softDocument("three", "", ""), "--reboot-method=kexec")
	h.on(ctx, "three", transaction.Done)
	if way, line := h.way(ctx), h.cmdline(ctx); !strings.HasPrefix(way, "Full, and not Kexec: ") ||
		!strings.Contains(way, "kexec_load_disabled") || !strings.Contains(line, " BOOT_IMAGE=") {
		t.Errorf("%q, %s: %s", way, line, said)
	}
}
