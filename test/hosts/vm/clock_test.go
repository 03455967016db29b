// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/noderefit/noderefit/transaction"
)

const (
	year   = 365 * 24 * time.Hour
	decade = 10 * year
)

// held is a check script that says yes as soon as it may.
const held = "#!/bin/sh\nuntil [ -e /run/go ]; do sleep 0.2; done\n"

// clocked is a machine on a, whose clock the test sets, and whose verdicts wait for /run/go.
func clocked(ctx context.Context, t *testing.T, name string) *vmHost {
	t.Helper()
	s := counting(t)
	t.Parallel()
	h, err := s.resume(ctx, name, s.saved["a"])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		counted.Boots.Add(int64(h.Boots() - 1))
		closeMachine(t, h.Machine)
	})
	if err := h.Put(ctx, "/etc/greenboot/check/required.d/held.sh", []byte(held), 0o755); err != nil {
		t.Fatal(err)
	}
	return h
}

// shows is what the machine's clock shows.
func (h *vmHost) shows(ctx context.Context, t *testing.T) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, mustOutput(ctx, t, h.Machine, "date", "-u", "+%Y-%m-%dT%H:%M:%SZ"))
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// jump sets the machine's clock, by so much.
func (h *vmHost) jump(ctx context.Context, t *testing.T, by time.Duration) {
	t.Helper()
	mustOutput(ctx, t, h.Machine, "date", "-u", "-s", fmt.Sprintf("@%d", h.shows(ctx, t).Add(by).Unix()))
}

// proving waits until the machine, in its next boot, proves what it has booted.
func (h *vmHost) proving(ctx context.Context, t *testing.T, boot int) {
	t.Helper()
	if err := h.WaitBoot(ctx, boot); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, BootLimit, fmt.Errorf("no verdict begins within %v", BootLimit))
	defer cancel()
	for {
		status, err := h.status(ctx)
		switch {
		case err == nil && status.Phase == string(transaction.PhaseProve):
			return
		case err == nil && status.Config.Pending == "":
			t.Fatalf("the verdict is over: %s: %s", status.State, status.Reason)
		case ctx.Err() != nil:
			t.Fatalf("%v: %v", context.Cause(ctx), err)
		}
	}
}

// TestClockThatJumpsWhileProvingDecidesNothing sets the clock while a good configuration is proved: the verdict is
// neither over at once nor never.
func TestClockThatJumpsWhileProvingDecidesNothing(t *testing.T) {
	ctx := context.Background()
	h := clocked(ctx, t, "clock-good")
	boot := h.Boots() + 1
	if err := h.apply(ctx, "b", ignore); err != nil {
		t.Fatal(err)
	}
	h.proving(ctx, t, boot)
	for _, by := range []time.Duration{year, -year - decade} {
		h.jump(ctx, t, by)
		status, err := h.status(ctx)
		if err != nil || status.Phase != string(transaction.PhaseProve) || status.State != transaction.Working || status.Stuck {
			t.Errorf("after a jump by %v: %s %s: %s, %v", by, status.State, status.Phase, status.Reason, err)
		}
	}
	mustOutput(ctx, t, h.Machine, "touch", "/run/go")
	h.proved(ctx, t, boot)
}

// TestClockThatJumpsDoesNotMoveTheDeadline sets the clock back while a configuration is proved that can't be.
func TestClockThatJumpsDoesNotMoveTheDeadline(t *testing.T) {
	ctx := context.Background()
	h := clocked(ctx, t, "clock-bad")
	boot := h.Boots() + 1
	if err := h.apply(ctx, "b", ignore, "--verdict-timeout=1m"); err != nil {
		t.Fatal(err)
	}
	h.proving(ctx, t, boot)
	began := time.Now()
	h.jump(ctx, t, -decade)
	if err := h.WaitBoot(ctx, boot+1); err != nil {
		t.Fatal(err)
	}
	t.Logf("given up, and booted again, %v after the jump", time.Since(began).Round(time.Second))
	h.gaveUp(ctx, t)
}

// TestWrongHardwareClockAtTheBootDecidesNothing cuts the power before the boot of a new configuration, and has a clock
// that is years off when it comes back.
func TestWrongHardwareClockAtTheBootDecidesNothing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		by   time.Duration
		good bool
	}{
		{"future-bad", decade, false}, {"past-good", -decade, true},
		{"past-bad", -decade, false}, {"future-good", decade, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx := context.Background()
			h := clocked(ctx, t, "clock-"+c.name)
			boot := h.Boots() + 1
			flags := []string{"--no-reboot"}
			if !c.good {
				flags = append(flags, "--verdict-timeout=1m")
			}
			if err := h.apply(ctx, "b", ignore, flags...); err != nil {
				t.Fatal(err)
			}
			if _, err := h.Cut(nil); err != nil {
				t.Fatal(err)
			}
			h.clock = time.Now().Add(c.by)
			if err := h.PowerOn(ctx); err != nil {
				t.Fatal(err)
			}
			h.proving(ctx, t, boot)
			began := time.Now()
			// systemd sets a clock that is behind its own release forward to that.
			if off := h.shows(ctx, t).Sub(began); off.Abs() < 100*24*time.Hour {
				t.Fatalf("the clock is off by no more than %v", off)
			}
			if c.good {
				mustOutput(ctx, t, h.Machine, "touch", "/run/go")
				h.proved(ctx, t, boot)
				return
			}
			if err := h.WaitBoot(ctx, boot+1); err != nil {
				t.Fatal(err)
			}
			t.Logf("given up, and booted again, %v after the verdict was asked for", time.Since(began).Round(time.Second))
			h.gaveUp(ctx, t)
		})
	}
}

// gaveUp fails unless an update to b has ended with its deadline, and the machine is back on a.
func (h *vmHost) gaveUp(ctx context.Context, t *testing.T) {
	t.Helper()
	status, err := h.settled(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if status.State != transaction.RolledBack || status.Config.Committed != "a" ||
		!strings.Contains(status.Reason, "no verdict by the deadline") {
		t.Errorf("on %s, %s: %s", status.Config.Committed, status.State, status.Reason)
	}
}

// proved fails unless an update to b has ended well in that boot, and the status says so with the machine's own time.
func (h *vmHost) proved(ctx context.Context, t *testing.T, boot int) {
	t.Helper()
	status, err := h.settled(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if status.State != transaction.Done || status.Config.Committed != "b" || h.Boots() != boot {
		t.Fatalf("on %s, %s, in boot %d: %s", status.Config.Committed, status.State, h.Boots(), status.Reason)
	}
	since, err := time.Parse(time.RFC3339, status.Since)
	if age := h.shows(ctx, t).Sub(since); err != nil || age < 0 || age > BootLimit {
		t.Errorf("%s since %q, %v ago, %v", status.State, status.Since, age, err)
	}
	mustOutput(ctx, t, h.Machine, agent, "verify")
}
