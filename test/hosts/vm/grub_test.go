// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/noderefit/noderefit/transaction"
)

// stuck is a configuration whose kernel has no initramfs, finds nothing to start, and panics. It boots again by itself if the machine does
// so after a panic, as it does with the arguments that it was made with; with halts it stands still.
func stuck(name string, halts bool) []byte {
	arguments := `"kernelArguments":["initcall_blacklist=populate_rootfs",`
	if halts {
		arguments += `"panic=0",`
	}
	return bytes.Replace(document(name, RefV2), []byte(`"kernelArguments":[`), []byte(arguments), 1)
}

// panicked is how often kernels have panicked on the machine's console. One that stands still says so twice.
func (h *vmHost) panicked() (int, error) {
	text, err := h.Console()
	const line = "Kernel panic - not syncing"
	return strings.Count(text, line) - strings.Count(text, "end "+line), err
}

// panics waits until kernels have panicked n times.
func (h *vmHost) panics(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, BootLimit, fmt.Errorf("%d panics did not come", n))
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		if seen, err := h.panicked(); err != nil || seen >= n {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w; the console ends: %s", context.Cause(ctx), h.consoleEnd())
		case <-tick.C:
		}
	}
}

// uncounted says what the boot loader still counts, "" if nothing, and whether greenboot's own check has had to act.
func (h *vmHost) uncounted(ctx context.Context) (string, error) {
	return h.Output(ctx, "sh", "-c", `grep -a boot_counter /boot/grub2/grubenv
test "$(systemctl show -P ConditionResult greenboot-rpm-ostree-grub2-check-fallback)" = yes &&
	systemctl show -P ExecMainStartTimestamp greenboot-rpm-ostree-grub2-check-fallback
true`)
}

// counting is the scene on a machine whose boot loader counts boots.
func counting(t *testing.T) *scene {
	t.Helper()
	if testing.Short() {
		t.Skip("an image and a scene of their own take minutes")
	}
	return set(t, Options{Loader: GRUB})
}

// TestBootLoaderTakesBackWhatNeverComesUp goes from a to kernels that never get as far as the agent, on a machine whose
// boot loader counts boots. It is back on a in the end, with nobody's help but that of who resets what hangs.
func TestBootLoaderTakesBackWhatNeverComesUp(t *testing.T) {
	s := counting(t)
	ctx := context.Background()
	t.Parallel()
	for _, c := range []struct {
		name  string
		halts bool
		limit int
	}{
		{"panics", false, 3}, // GRUB's own number, which greenboot's is as well
		{"hangs", true, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h, err := s.resume(ctx, c.name, s.saved["a"])
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				counted.Boots.Add(int64(h.Boots() - 1 + c.limit))
				closeMachine(t, h.Machine)
			})
			if c.limit != 3 {
				conf := fmt.Appendf(nil, "GREENBOOT_MAX_BOOT_ATTEMPTS=%d\n", c.limit)
				if err := h.Put(ctx, "/etc/greenboot/greenboot.conf", conf, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			status, err := h.status(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if want := fmt.Sprintf("%d boots", c.limit); status.BootLimit != want {
				t.Errorf("status has %q, want %q", status.BootLimit, want)
			}
			sides := map[string]picture{}
			if sides["a"], err = h.take(ctx); err != nil {
				t.Fatal(err)
			}
			if err := h.apply(ctx, c.name, ignore); err != nil {
				t.Fatal(err)
			}
			for n := range c.limit {
				if err := h.panics(ctx, n+1); err != nil {
					t.Fatal(err)
				}
				if c.halts {
					if err := h.Reset(); err != nil {
						t.Fatal(err)
					}
				}
			}
			at, status, err := h.judge(ctx, sides)
			if err != nil {
				t.Fatal(err)
			}
			why := fmt.Sprintf("the boot loader gave %s up after %d boots, of which none came up", c.name, c.limit)
			if at != "a" || status.State != transaction.RolledBack || status.Reason != why {
				t.Errorf("on %s, %s: %q; want a, RolledBack: %q", at, status.State, status.Reason, why)
			}
			if len(status.Quarantined) != 1 || status.Quarantined[0].Config != c.name {
				t.Errorf("quarantined %+v", status.Quarantined)
			}
			for _, d := range status.Deployments {
				if d.Default != d.Booted || d.Booted && d.Config != "a" {
					t.Errorf("deployment %+v", d)
				}
			}
			if seen, err := h.panicked(); err != nil || seen != c.limit {
				t.Errorf("%d panics, %v", seen, err)
			}
			if left, err := h.uncounted(ctx); left != "" || err != nil {
				t.Errorf("the boot loader counts %q, %v", left, err)
			}
		})
	}
}

// TestBootLoaderTakesBackADeploymentOfSomebodyElse orders a reboot into a deployment that another program has staged and
// whose kernel never gets as far as the agent. The boot loader counts these boots too.
func TestBootLoaderTakesBackADeploymentOfSomebodyElse(t *testing.T) {
	s := counting(t)
	ctx := context.Background()
	t.Parallel()
	h, err := s.resume(ctx, "somebody-else", s.saved["a"])
	if err != nil {
		t.Fatal(err)
	}
	const limit = 3
	t.Cleanup(func() {
		counted.Boots.Add(int64(h.Boots() - 1 + limit))
		closeMachine(t, h.Machine)
	})
	sides := map[string]picture{}
	if sides["a"], err = h.take(ctx); err != nil {
		t.Fatal(err)
	}
	mustOutput(ctx, t, h.Machine, "ostree", "admin", "deploy", "--stage", "--karg-append=initcall_blacklist=populate_rootfs", RefV2)
	var said bytes.Buffer
	if exit, err := h.Run(ctx, nil, io.Discard, &said, agent, "reboot", "--why", "a test"); err != nil || exit > 0 {
		t.Fatalf("ordering a reboot: exit %d, %s, %v", exit, said.String(), err)
	}
	if err := h.panics(ctx, limit); err != nil {
		t.Fatal(err)
	}
	if err := h.WaitBoot(ctx, h.Boots()+1); err != nil {
		t.Fatal(err)
	}
	at, status, err := h.judge(ctx, sides)
	if err != nil {
		t.Fatal(err)
	}
	if at != "a" || status.State != transaction.Done {
		t.Errorf("on %s, %s: %s", at, status.State, status.Reason)
	}
	if r := status.Rebooted; r == nil || !r.TakenBack || !strings.Contains(r.Failed, "after 3 boots, of which none came up") {
		t.Errorf("the order ended as %+v", r)
	}
	if len(status.RebootsWithheld) != 1 {
		t.Errorf("withheld are %+v", status.RebootsWithheld)
	}
	for _, d := range status.Deployments {
		if d.Default != d.Booted {
			t.Errorf("deployment %+v", d)
		}
	}
	if seen, err := h.panicked(); err != nil || seen != limit {
		t.Errorf("%d panics, %v", seen, err)
	}
	if left, err := h.uncounted(ctx); left != "" || err != nil {
		t.Errorf("the boot loader counts %q, %v", left, err)
	}
}

// TestGoodUpdateIsCountedNoMore looks at a machine whose boot loader counts boots, and which has gone from a to b.
func TestGoodUpdateIsCountedNoMore(t *testing.T) {
	s := counting(t)
	ctx := context.Background()
	t.Parallel()
	h, err := s.resume(ctx, "counted", s.saved["b"])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeMachine(t, h.Machine) })
	at, status, err := h.judge(ctx, s.sides)
	if err != nil {
		t.Fatal(err)
	}
	if at != "b" || status.State != transaction.Done {
		t.Errorf("on %s, %s: %s", at, status.State, status.Reason)
	}
	if left, err := h.uncounted(ctx); left != "" || err != nil {
		t.Errorf("the boot loader counts %q, %v", left, err)
	}
	// It did: what it takes with each boot is written down there too.
	if env, err := h.Read(ctx, "/boot/grub2/grubenv"); err != nil || !strings.Contains(env, "boot_success=0") {
		t.Errorf("its environment is %q, %v", env, err)
	}
}
