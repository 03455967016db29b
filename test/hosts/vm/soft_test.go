// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/noderefit/noderefit/test/hosts/node"
	"github.com/noderefit/noderefit/transaction"
)

// softDocument is a configuration without an OS image: of what a deployment carries, of what it does not, and of the
// kernel arguments and further files that are given.
func softDocument(name, arguments, files string) []byte {
	return []byte(strings.NewReplacer("NAME", name, "ARGUMENTS", arguments, "FILES", files).Replace(`{
"apiVersion":"machineconfiguration.openshift.io/v1","kind":"MachineConfig","metadata":{"name":"NAME"},"spec":{
"kernelArguments":[ARGUMENTS],"config":{"ignition":{"version":"3.2.0"},"storage":{"files":[FILES
 {"path":"/etc/chrony.conf","mode":420,"contents":{"source":"data:,NAME%0A"}},
 {"path":"/etc/only-NAME.conf","mode":384,"contents":{"source":"data:,NAME%0A"}},
 {"path":"/usr/local/bin/only-NAME","mode":493,"contents":{"source":"data:,NAME%0A"}}]},
"systemd":{"units":[{"name":"only-NAME.service","enabled":true,
 "contents":"[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n"}]}}}}`))
}

// softHost is a machine whose userspace can be started again alone.
type softHost struct {
	*vmHost
	t *testing.T
}

// boot is a boot of the machine's: the kernel's, and the how-manieth of the userspace since.
type boot struct{ kernel, soft string }

func (h *softHost) boot(ctx context.Context) boot {
	h.t.Helper()
	return boot{strings.TrimSpace(mustOutput(ctx, h.t, h.Machine, "cat", "/proc/sys/kernel/random/boot_id")),
		strings.TrimSpace(mustOutput(ctx, h.t, h.Machine, "systemctl", "show", "-P", "SoftRebootsCount"))}
}

// update applies a configuration with soft reboots allowed, as updateBy does.
func (h *softHost) update(ctx context.Context, name string, document []byte, flags ...string) (string, time.Duration) {
	h.t.Helper()
	return h.updateBy(ctx, name, document, append([]string{"--soft-reboot=auto"}, flags...)...)
}

// updateBy applies a configuration. It returns what apply said, and how long it took from the reboot until the machine
// was at rest again.
func (h *softHost) updateBy(ctx context.Context, name string, document []byte, flags ...string) (string, time.Duration) {
	h.t.Helper()
	const at = "/var/tmp/config.json"
	if err := h.Put(ctx, at, document, 0o600); err != nil {
		h.t.Fatal(err)
	}
	next := h.Boots() + 1
	var down time.Time
	progress := &lines{each: func(line string) {
		if strings.HasPrefix(line, "reboot") {
			down = time.Now()
		}
	}}
	args := append([]string{agent, "apply", "--config", at}, flags...)
	if exit, err := h.Run(ctx, nil, &bytes.Buffer{}, progress, args...); err != nil || exit > 0 {
		h.t.Fatalf("applying %s: exit %d, %v: %s", name, exit, err, progress.all.String())
	}
	if err := h.WaitBoot(ctx, next); err != nil {
		h.t.Fatal(err)
	}
	if _, err := h.settled(ctx); err != nil {
		h.t.Fatal(err)
	}
	return progress.all.String(), time.Since(down).Round(100 * time.Millisecond)
}

// on fails unless the machine is at rest on a configuration, in all that it has to show for it.
func (h *softHost) on(ctx context.Context, name string, state transaction.State) {
	h.t.Helper()
	s, err := h.settled(ctx)
	if err != nil {
		h.t.Fatal(err)
	}
	if s.Config.Committed != name || s.State != state {
		h.t.Fatalf("on %s, %s: %s; want %s, %s", s.Config.Committed, s.State, s.Reason, name, state)
	}
	for _, d := range s.Deployments {
		if (d.Config == name) != d.Booted || d.Booted != d.Default {
			h.t.Errorf("deployment %+v", d)
		}
	}
	mustOutput(ctx, h.t, h.Machine, agent, "verify")
	if text := mustOutput(ctx, h.t, h.Machine, "sh", "-c",
		"cat /etc/chrony.conf; cd /etc; ls only-*; cd /usr/local/bin; ls only-*; systemctl is-active 'only-"+name+".service'"); text !=
		fmt.Sprintf("%[1]s\nonly-%[1]s.conf\nonly-%[1]s\nactive", name) {
		h.t.Errorf("on %s: %q", name, text)
	}
	if text := mustOutput(ctx, h.t, h.Machine, "sh", "-c",
		"systemctl --failed --plain --no-legend; ls /run/ostree/nextroot-booted 2>/dev/null; ls /run/systemd/transient; true"); text != "" {
		h.t.Errorf("left behind: %s", text)
	}
}

// newSoftHost is one that has just booted, has the agent, and no configuration.
func newSoftHost(ctx context.Context, t *testing.T, name string) *softHost {
	t.Helper()
	return newHost(ctx, t, name, Options{Composefs: true})
}

func newHost(ctx context.Context, t *testing.T, name string, options Options) *softHost {
	t.Helper()
	if testing.Short() {
		t.Skip("a machine of its own takes minutes")
	}
	image := Need(t, options)
	t.Parallel()
	binary, err := node.Build(ctx, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	m, err := image.Booted(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	h := &softHost{&vmHost{m}, t}
	t.Cleanup(func() {
		counted.Boots.Add(int64(m.Boots() - 1))
		closeMachine(t, m)
	})
	if err := h.Put(ctx, agent, program, 0o755); err != nil {
		t.Fatal(err)
	}
	return h
}

// TestUserspaceIsBootedAloneWhereThatIsEnough goes from one configuration to the next by a soft reboot, by a full one
// where kernel arguments change, and back from one that can't prove healthy by a full one.
func TestUserspaceIsBootedAloneWhereThatIsEnough(t *testing.T) {
	ctx := context.Background()
	h := newSoftHost(ctx, t, "soft")
	m := h.Machine

	first := h.boot(ctx)
	said, soft := h.update(ctx, "one", softDocument("one", "", ""))
	h.on(ctx, "one", transaction.Done)
	if now := h.boot(ctx); now != (boot{first.kernel, "1"}) {
		t.Errorf("boot %v after %v: %s", now, first, said)
	}

	// The next one finds nothing of it in its way.
	said, again := h.update(ctx, "two", softDocument("two", "", ""))
	h.on(ctx, "two", transaction.Done)
	if now := h.boot(ctx); now != (boot{first.kernel, "2"}) {
		t.Errorf("boot %v after the second soft reboot: %s", now, said)
	}

	said, full := h.update(ctx, "three", softDocument("three", `"three=3"`, ""))
	h.on(ctx, "three", transaction.Done)
	third := h.boot(ctx)
	if third.kernel == first.kernel || third.soft != "0" || !strings.Contains(h.cmdline(ctx), " three=3 ") {
		t.Errorf("boot %v after one that changes kernel arguments, %v before: %s", third, first, said)
	}
	t.Logf("from the reboot until the verdict: %v and %v soft, %v full", soft, again, full)

	// What is given up goes back by a reboot that leaves nothing of it.
	h.update(ctx, "bad", softDocument("bad", `"three=3"`,
		`{"path":"/etc/kubernetes/crio.conf","mode":420,"contents":{"source":"data:,fail%0A"}},`), "--verdict-timeout=2m")
	h.on(ctx, "three", transaction.RolledBack)
	if now := h.boot(ctx); now.kernel == third.kernel || now.soft != "0" {
		t.Errorf("boot %v after going back, %v before", now, third)
	}

	// Power that is cut in the middle leads to the new one by the ordinary way.
	if err := h.Put(ctx, "/var/tmp/config.json", softDocument("five", `"three=3"`, ""), 0o600); err != nil {
		t.Fatal(err)
	}
	down := make(chan struct{})
	once := sync.OnceFunc(func() { close(down) })
	go func() {
		progress := &lines{each: func(line string) {
			if line == "reboot: of the userspace only" {
				once()
			}
		}}
		_, _ = h.Run(ctx, nil, &bytes.Buffer{}, progress, agent, "apply", "--config", "/var/tmp/config.json", "--soft-reboot=auto")
		once()
	}()
	<-down
	if _, err := m.Cut(nil); err != nil {
		t.Fatal(err)
	}
	counted.Cuts.Add(1)
	if err := m.Start(ctx); err != nil {
		t.Fatal(err)
	}
	h.on(ctx, "five", transaction.Done)
	if now := h.boot(ctx); now.soft != "0" {
		t.Errorf("boot %v after a cut", now)
	}

	// Who allows none gets none.
	var p struct {
		Plan struct{ Reboot, SoftReboot bool }
	}
	if err := h.Put(ctx, "/var/tmp/config.json", softDocument("four", `"three=3"`, ""), 0o600); err != nil {
		t.Fatal(err)
	}
	for flag, want := range map[string]bool{"--soft-reboot=never": false, "--soft-reboot=auto": true} {
		text := mustOutput(ctx, t, h.Machine, agent, "plan", "--desired", "/var/tmp/config.json", flag, "-o", "json")
		if err := json.Unmarshal([]byte(text), &p.Plan); err != nil || !p.Plan.Reboot || p.Plan.SoftReboot != want {
			t.Errorf("%s: %v: %s", flag, err, text)
		}
	}
}

func (h *softHost) cmdline(ctx context.Context) string {
	return " " + strings.TrimSpace(mustOutput(ctx, h.t, h.Machine, "cat", "/proc/cmdline")) + " "
}

// TestSoftRebootThatLeadsNowhereIsFollowedByAFullOne has something take the root away that a soft reboot is to lead to,
// at the last moment: the userspace starts again on the deployment before.
func TestSoftRebootThatLeadsNowhereIsFollowedByAFullOne(t *testing.T) {
	ctx := context.Background()
	h := newSoftHost(ctx, t, "soft-nowhere")
	const thief = "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=true\nExecStop=umount --lazy /run/nextroot\n"
	if err := h.Put(ctx, "/run/systemd/system/thief.service", []byte(thief), 0o644); err != nil {
		t.Fatal(err)
	}
	mustOutput(ctx, t, h.Machine, "systemctl", "daemon-reload")
	mustOutput(ctx, t, h.Machine, "systemctl", "start", "thief.service")
	first, boots := h.boot(ctx), h.Boots()
	said, took := h.update(ctx, "one", softDocument("one", "", ""))
	h.on(ctx, "one", transaction.Done)
	if now := h.boot(ctx); now.kernel == first.kernel || now.soft != "0" || h.Boots() != boots+2 {
		t.Errorf("boot %v after %v, %d in all: %s", now, first, h.Boots()-boots, said)
	}
	t.Logf("from the soft reboot that led nowhere until the verdict: %v", took)
}
