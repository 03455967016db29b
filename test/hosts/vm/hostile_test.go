// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/noderefit/noderefit/transaction"
)

// hostile counts the configurations that break the host, and those of which it did not come back.
var hostile struct{ all, stuck atomic.Int64 }

// watchdogPatience is how long a machine may take until it takes commands: three times a boot where others work too.
const watchdogPatience = 2 * time.Minute

// hostileDocument is a configuration of another OS that has one piece more, at the beginning of a list of document's.
func hostileDocument(name, list, piece string) []byte {
	at := []byte(`"` + list + `":[`)
	return bytes.Replace(document(name, RefV2), at, append(at, piece+","...), 1)
}

// watch resets the machine whenever it has taken no commands for a time, as a hardware watchdog does, until ctx ends.
func (h *vmHost) watch(ctx context.Context) {
	for ctx.Err() == nil {
		booting, cancel := context.WithTimeout(ctx, watchdogPatience)
		err := h.wait(booting, func() (bool, error) { return h.up, nil })
		cancel()
		if err == nil {
			_ = h.wait(ctx, func() (bool, error) { return !h.up, nil })
		} else if ctx.Err() == nil {
			_ = h.Reset() // a machine that is off is seen by who waits for it
		}
	}
}

// TestArgumentsAndTargetsThatDisarmAreRefused tries on one machine what would keep the agent's units from being started.
func TestArgumentsAndTargetsThatDisarmAreRefused(t *testing.T) {
	s := counting(t)
	ctx := context.Background()
	t.Parallel()
	h, err := s.resume(ctx, "refuses", s.saved["a"])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeMachine(t, h.Machine) })
	before, err := h.take(ctx)
	if err != nil {
		t.Fatal(err)
	}
	const link = `{"path":"/etc/systemd/system/default.target","target":"/usr/lib/systemd/system/emergency.target"}`
	for _, c := range []struct{ name, list, piece, named string }{
		{"unit", "kernelArguments", `"systemd.unit=emergency.target"`, "systemd.unit=emergency.target"},
		{"init", "kernelArguments", `"init=/bin/sh"`, "init=/bin/sh"},
		{"rdinit", "kernelArguments", `"rdinit=/nonexistent"`, "rdinit=/nonexistent"},
		{"mask", "kernelArguments", `"systemd.mask=` + transaction.ProveUnit + `"`, transaction.ProveUnit},
		{"target", "links", link, "emergency.target"},
	} {
		hostile.all.Add(1)
		exit, said, err := h.try(ctx, hostileDocument(c.name, c.list, c.piece), ignore)
		if err != nil || exit != 3 || !strings.Contains(said, c.named) {
			hostile.stuck.Add(1)
			t.Errorf("%s: exit %d, %v: %s", c.name, exit, err, said)
		}
	}
	status, err := h.status(ctx)
	if err != nil || status.Config.Committed != "a" || status.Config.Pending != "" || h.Boots() != 1 {
		t.Errorf("status %+v, %d boots, %v", status, h.Boots(), err)
	}
	after, err := h.take(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if differs := after.differs(before); len(differs) > 0 {
		t.Errorf("changed: %q", differs)
	}
}

// TestArgumentsAndTargetsThatBreakTheBootAreTakenBack goes to what can't be foreseen. Where no boot gets as far as the
// agent, the boot loader counts, and a watchdog resets what hangs. Otherwise the agent's deadline does it.
func TestArgumentsAndTargetsThatBreakTheBootAreTakenBack(t *testing.T) {
	s := counting(t)
	t.Parallel()
	const hangs = `{"name":"hangs.service","enabled":true,"contents":"[Unit]\nDefaultDependencies=no\n` +
		`Before=sysinit.target\n[Service]\nType=oneshot\nTimeoutStartSec=infinity\nExecStart=/bin/sleep infinity\n` +
		`[Install]\nRequiredBy=sysinit.target\n"}`
	const waits = `{"name":"waits.target","enabled":true,"contents":"[Unit]\nRequires=hangs.service\n` +
		`After=hangs.service\n[Install]\nAlias=default.target\n"},` +
		`{"name":"hangs.service","contents":"[Service]\nType=oneshot\nTimeoutStartSec=infinity\nExecStart=/bin/sleep infinity\n"}`
	const starves = `{"path":"/etc/systemd/system/system.slice.d/10-a.conf","mode":420,"contents":{"source":` +
		`"data:,%5BSlice%5D%0AMemoryMax=1M%0AMemorySwapMax=0%0ATasksMax=1%0A"}}`
	for _, c := range []struct{ name, list, piece, why string }{
		{"root", "kernelArguments", `"root=LABEL=missing"`, "of which none came up"},
		{"module", "kernelArguments", `"module_blacklist=virtio_blk"`, "of which none came up"},
		{"impatient", "kernelArguments", `"systemd.default_timeout_start_sec=1ms"`, ""},
		{"sysinit", "units", hangs, "hangs.service"},
		{"target", "units", waits, "hangs.service"},
		{"slice", "files", starves, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			hostile.all.Add(1)
			reason, err := s.breaks(t, c.name, hostileDocument(c.name, c.list, c.piece))
			if err != nil {
				hostile.stuck.Add(1)
				t.Fatal(err)
			}
			t.Log(reason)
			if !strings.Contains(reason, c.why) {
				t.Errorf("taken back because %s; want %s", reason, c.why)
			}
		})
	}
}

// breaks goes from a to a document that breaks the host, and returns why a is back. A harmless configuration works then.
func (s *scene) breaks(t *testing.T, name string, document []byte) (string, error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	h, err := s.resume(ctx, "hostile-"+name, s.saved["a"])
	if err != nil {
		return "", err
	}
	t.Cleanup(func() {
		counted.Boots.Add(int64(h.Boots() - 1))
		closeMachine(t, h.Machine)
	})
	if err := h.Put(ctx, "/etc/greenboot/greenboot.conf", []byte("GREENBOOT_MAX_BOOT_ATTEMPTS=2\n"), 0o644); err != nil {
		return "", err
	}
	before, err := h.take(ctx)
	if err != nil {
		return "", err
	}
	watched, unwatch := context.WithCancel(ctx)
	defer unwatch()
	go h.watch(watched)
	if exit, said, err := h.try(ctx, document, ignore, "--verdict-timeout=1m"); err != nil || exit > 0 {
		return "", fmt.Errorf("applying %s: exit %d, %w: %s", name, exit, err, said)
	}
	at, status, err := h.judge(ctx, map[string]picture{"a": before})
	if err != nil {
		return "", err
	}
	if at != "a" || status.State != transaction.RolledBack || len(status.Quarantined) != 1 ||
		status.Quarantined[0].Config != name {
		return "", fmt.Errorf("on %s, %s: %s; quarantined %+v", at, status.State, status.Reason, status.Quarantined)
	}
	unwatch() // what is to boot is given the time that it takes
	return status.Reason, h.moveTo(ctx, "harmless", ignore)
}
