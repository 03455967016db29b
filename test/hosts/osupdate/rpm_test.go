// SPDX-License-Identifier: Apache-2.0

package osupdate

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/noderefit/noderefit/osimage"
	"github.com/noderefit/noderefit/ostree"
	"github.com/noderefit/noderefit/pace"
	driver "github.com/noderefit/noderefit/rpmostree"
	"github.com/noderefit/noderefit/systemd"
	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/test/standin/rpmostree"
	"github.com/noderefit/noderefit/test/standin/rpmostree/fault"
)

var realtime = []string{"kernel-rt-core", "kernel-rt-modules", "kernel-rt-modules-extra"}

// system is an image with the real-time kernel and an extension.
func system(image string) osimage.System {
	packages := append([]string{"usbguard"}, realtime...)
	slices.Sort(packages)
	return osimage.System{Image: image, Packages: packages, Removed: slices.Sorted(slices.Values(rpmostree.KernelPackages))}
}

// running is a system as it is told of where it runs, of an image that is named by its digest.
func running(s osimage.System) osimage.System {
	_, s.Reported, _ = strings.Cut(s.Image, "@")
	return s
}

// bootInto materialises what was composed, with the kernel arguments that there are, and boots it.
func (m *machine) bootInto(ctx context.Context, c osimage.Composed) {
	m.t.Helper()
	p := m.plain()
	deployments, err := p.Status(ctx)
	if err != nil {
		m.t.Fatal(err)
	}
	booted := deployments[slices.IndexFunc(deployments, func(d ostree.Deployment) bool { return d.Booted })]
	made, err := p.Materialise(ctx, ostree.Request{OS: lab.OS, Checksum: c.Checksum, Origin: c.Origin,
		KernelArguments: append(booted.KernelArguments, "composed=1"), KeepRollback: true})
	if err != nil {
		m.t.Fatal(err)
	}
	if err := p.SetDefault(ctx, made.ID); err != nil {
		m.t.Fatal(err)
	}
	if err := m.Reboot(ctx); err != nil {
		m.t.Fatal(err)
	}
	if m.BootedDeployment() != made.ID {
		m.t.Fatalf("%s has booted instead of %s", m.BootedDeployment(), made.ID)
	}
}

func TestImageKernelAndExtensionAreTwoTransactionsAndBootOnlyWhenTheyAreMadeTo(t *testing.T) {
	ctx, m := boot(t)
	before := m.BootedDeployment()
	was, err := m.rpm().Current(ctx)
	if err != nil || was.Image != lab.RefV1 {
		t.Fatalf("runs %+v, %v", was, err)
	}
	m.transactions()
	want := system(m.push(ctx, "43"))
	// An administrator is told who updates the host. The agent's own steps pass.
	m.register(ctx, "Noderefit")
	if out, err := m.run(ctx, "systemd-run", "--wait", "--pipe", "--quiet", "rpm-ostree", "upgrade"); err == nil ||
		!strings.Contains(err.Error(), "Updates and deployments are driven by Noderefit (noderefit-update-driver.service)\n"+
			"See Noderefit's documentation at https://github.com/noderefit/noderefit\nUse --bypass-driver") {
		t.Errorf("upgrade of an administrator: %v: %s", err, out)
	}
	// What it says is looked at once in a second: a transaction that is over sooner would say nothing.
	m.breaks(fault.Fault{Step: fault.End, Action: fault.Slow, Seconds: 3, Times: 1})
	c := m.compose(ctx, want, 2)
	if _, digest, _ := strings.Cut(want.Image, "@"); c.Base != digest {
		t.Errorf("its base is %s", c.Base)
	}
	if staged := m.staged(ctx); staged == nil || staged.Checksum != c.Checksum {
		t.Errorf("staged is %+v", staged)
	}
	if now, err := m.rpm().Current(ctx); err != nil || cmp.Diff(was, now) != "" {
		t.Errorf("runs %+v, %v", now, err)
	}
	m.compose(ctx, want, 0)
	if !slices.ContainsFunc(m.said, func(text string) bool { return strings.HasPrefix(text, "Staging deployment") }) {
		t.Errorf("its progress was %q", m.said)
	}

	// Nothing of it boots by itself, and neither a boot nor a cleanup loses it.
	if err := m.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	if m.BootedDeployment() != before || m.staged(ctx) != nil {
		t.Fatalf("%s has booted, staged is %+v", m.BootedDeployment(), m.staged(ctx))
	}
	m.output(ctx, "rpm-ostree", "cleanup", "-p", "-r", "-b", "-m")
	m.output(ctx, "ostree", "admin", "cleanup")
	if there, err := m.rpm().Present(ctx, want, c); !there || err != nil {
		t.Fatalf("it is there: %v, %v", there, err)
	}
	m.bootInto(ctx, c)
	if now, err := m.rpm().Current(ctx); err != nil || cmp.Diff(running(want), now) != "" {
		t.Errorf("runs %+v, %v\n%s", now, err, cmp.Diff(running(want), now))
	}
	if got := m.output(ctx, "cat", "/usr/bin/usbguard", "/usr/lib/testos/image", "/etc/usbguard.default"); got !=
		"usbguard 1.0\n43\nusbguard" {
		t.Errorf("it has %q", got)
	}
	if got := m.output(ctx, "sh", "-c", "ls /usr/lib/modules/*/vmlinuz"); got !=
		"/usr/lib/modules/6.12.0-lab+rt/vmlinuz" {
		t.Errorf("its kernels are %q", got)
	}
	m.compose(ctx, want, 0)
	if err := m.rpm().Drop(ctx); err != nil {
		t.Fatal(err)
	}

	// And all of it back, to another image.
	want = osimage.System{Image: m.push(ctx, "44")}
	c = m.compose(ctx, want, 2)
	m.bootInto(ctx, c)
	if now, err := m.rpm().Current(ctx); err != nil || cmp.Diff(running(want), now) != "" {
		t.Errorf("runs %+v, %v", now, err)
	}
	if err := m.rpm().Drop(ctx); err != nil {
		t.Fatal(err)
	}
	if refs := m.output(ctx, "ostree", "refs"); strings.Contains(refs, "noderefit/") {
		t.Errorf("left are %s", refs)
	}
}

func TestWayBackNeedsNoRefThatARebaseHasDeleted(t *testing.T) {
	ctx, m := boot(t)
	ref := rpmostree.Remote + ":" + rpmostree.RefV4
	m.bootInto(ctx, m.compose(ctx, osimage.System{Image: ref}, 1))
	if err := m.rpm().Drop(ctx); err != nil {
		t.Fatal(err)
	}
	before := m.BootedDeployment()
	m.bootInto(ctx, m.compose(ctx, osimage.System{Image: m.push(ctx, "43")}, 1))
	if err := m.rpm().Drop(ctx); err != nil {
		t.Fatal(err)
	}
	if refs := m.output(ctx, "ostree", "refs"); strings.Contains(refs, ref) {
		t.Fatalf("rpm-ostree keeps the ref that it leaves: %s", refs)
	}
	m.output(ctx, "ostree", "admin", "cleanup")
	m.output(ctx, "rpm-ostree", "cleanup", "-b")

	// The commit is held by its deployment, and that is all that it takes to go back, and on from there.
	m.output(ctx, "rpm-ostree", "rollback")
	if err := m.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	if m.BootedDeployment() != before {
		t.Fatalf("%s has booted", m.BootedDeployment())
	}
	if now, err := m.rpm().Current(ctx); err != nil || now.Image != ref {
		t.Errorf("runs %+v, %v", now, err)
	}
	want := osimage.System{Image: ref, Packages: []string{"usbguard"}}
	m.bootInto(ctx, m.compose(ctx, want, 1))
	if now, err := m.rpm().Current(ctx); err != nil || now.Image != ref || !slices.Equal(now.Packages, want.Packages) {
		t.Errorf("runs %+v, %v", now, err)
	}
	if err := m.rpm().Drop(ctx); err != nil {
		t.Fatal(err)
	}
	m.output(ctx, "rpm-ostree", "upgrade")
}

// The image is on the disk with its packages.
func TestWithABandwidthAHostGoesBackToWhereItCameFrom(t *testing.T) {
	ctx, m := boot(t)
	slow, err := pace.Listen(ctx, 1<<20, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	before := osimage.System{Image: m.push(ctx, "43"), Packages: []string{"usbguard"}}
	for _, s := range []osimage.System{before, {Image: m.push(ctx, "44")}} {
		m.bootInto(ctx, m.compose(ctx, s, 1))
		if err := m.rpm().Drop(ctx); err != nil {
			t.Fatal(err)
		}
	}
	m.transactions()
	c, err := m.rpm().Compose(slow.In(ctx), before)
	if err != nil || len(m.transactions()) > 0 {
		t.Fatalf("gave %+v, %v", c, err)
	}
	m.bootInto(ctx, c)
	if now, err := m.rpm().Current(ctx); err != nil || cmp.Diff(running(before), now) != "" {
		t.Errorf("runs %+v, %v", now, err)
	}
}

// The real systemd lets the proxy's variables count more than those of the host's own file, and tells them to nobody.
func TestAToolAloneHasThePasswordOfTheProxy(t *testing.T) {
	ctx, m := boot(t)
	p, err := pace.Listen(ctx, 1<<20, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	m.output(ctx, "sh", "-c", "mkdir -p /etc/mco; echo HTTPS_PROXY=http://proxy.example:3128 >"+osimage.ProxyFile)
	units := m.Units()
	defer units.Close()
	run := (&ostree.Tools{Units: units, Root: m.root()}).In("paced", systemd.Command{Description: "a tool that fetches",
		EnvironmentFiles: []string{osimage.ProxyFile}})
	out, err := run(p.In(ctx), "sh", "-c", "env; echo; systemctl show paced.service; cat /proc/$$/cmdline")
	has, told, _ := strings.Cut(string(out), "\n\n")
	if err != nil || !strings.Contains(told, "/run/paced.env") {
		t.Fatalf("%v: %s", err, out)
	}
	for _, variable := range pace.Environment(p.In(ctx)) {
		name, at, _ := strings.Cut(variable, "=")
		if !slices.Contains(strings.Split(has, "\n"), variable) {
			t.Errorf("%s is not the proxy's: %s", name, has)
		}
		if at != "" && strings.Contains(told, at) {
			t.Errorf("everyone is told of %s: %s", variable, told)
		}
	}
	if mode := m.output(ctx, "stat", "-c", "%a %u", "/run/paced.env"); mode != "600 0" {
		t.Errorf("the file is %s", mode)
	}
}

// register registers the agent with rpm-ostree. who is the driver that is registered then. A second registration
// has to run nothing.
func (m *machine) register(ctx context.Context, who string) {
	m.t.Helper()
	units := m.Units()
	defer units.Close()
	kept := &keeping{Units: units}
	for range 2 {
		if err := driver.Register(ctx, func(path string) ([]byte, error) { return os.ReadFile(m.root() + path) }, kept); err != nil {
			m.t.Error(err)
		}
	}
	if got := m.output(ctx, "rpm-ostree", "status", "--json"); !strings.Contains(got, `"driver-name" : "`+who+`"`) {
		m.t.Errorf("the update driver is not %s: %s", who, got)
	}
	if want := map[bool]int{true: 1}[who == "Noderefit"]; kept.times != want {
		m.t.Errorf("%s: %d registrations, want %d", who, kept.times, want)
	}
}

// keeping counts the commands whose units are kept.
type keeping struct {
	*systemd.Units

	times int
}

func (k *keeping) Keep(ctx context.Context, c systemd.Command) error {
	k.times++
	return k.Units.Keep(ctx, c)
}

func TestWhatCannotSucceedIsRefusedAndLeavesNothing(t *testing.T) {
	ctx, m := boot(t)
	image := m.push(ctx, "43")
	commit, err := rpmostree.Commit(ctx, m.Host, lab.RefV2)
	if err != nil {
		t.Fatal(err)
	}
	refuse := func(s osimage.System, class ostree.Class, text string) {
		t.Helper()
		_, err := m.rpm().Compose(ctx, s)
		if err == nil || ostree.ClassOf(err) != class || !strings.Contains(err.Error(), text) {
			t.Errorf("%+v gave %q: %v", s, ostree.ClassOf(err), err)
		}
		if staged := m.staged(ctx); staged != nil {
			t.Errorf("%+v is left of %+v", staged, s)
		}
		if entries := m.output(ctx, "ls", "/boot/loader/entries"); strings.Count(entries, ".conf") != 1 {
			t.Errorf("the boot entries are %s", entries)
		}
	}
	unknown := strings.Replace(image, image[len(image)-8:], "00000000", 1)
	refuse(osimage.System{Image: unknown}, ostree.Invalid, "manifest unknown")
	refuse(osimage.System{Image: image, Packages: []string{"nosuch"}}, ostree.Invalid, "Packages not found: nosuch")
	refuse(osimage.System{Packages: []string{"broken"}}, ostree.Invalid, "nothing-of-the-kind")
	refuse(osimage.System{Packages: []string{"chrony"}}, ostree.Invalid, "already provided by")
	refuse(osimage.System{Removed: []string{"nosuch"}}, ostree.Invalid, "nosuch")
	refuse(osimage.System{Image: image, Removed: []string{"nosuch"}, Packages: []string{"usbguard"}}, ostree.Invalid, "nosuch")
	refuse(osimage.System{Image: "nosuch/ref"}, ostree.Invalid, "nosuch/ref")
	refuse(osimage.System{Image: strings.Repeat("0", 64)}, ostree.Invalid, "not in the repository")

	m.breaks(fault.Fault{Step: fault.Compose, Action: fault.NoSpace})
	refuse(osimage.System{Packages: []string{"usbguard"}}, ostree.NeedsAdmin, "No space left on device")
	m.mend()
	// Without a policy it is refused before rpm-ostree is asked, and where the two disagree, by rpm-ostree.
	signed := osimage.System{Image: "ostree-image-signed:docker://" + image}
	refuse(signed, ostree.Invalid, "the policy accepts anything")
	m.output(ctx, "sh", "-c", `mkdir -p /etc/containers && echo '{"default":[{"type":"reject"}],"transports":{"docker":{`+
		`"quay.example":[{"type":"signedBy","keyType":"GPGKeys","keyPath":"/etc/key"}]}}}' >/etc/containers/policy.json`)
	m.breaks(fault.Fault{Step: fault.Pull, Action: fault.Fail, Text: "Preparing import: Fetching manifest: " +
		"containers-policy.json specifies a default of `insecureAcceptAnything`; refusing usage"})
	refuse(signed, ostree.Invalid, "refusing usage")
	m.mend()
	m.output(ctx, "rm", "/etc/containers/policy.json")

	// The daemon fetches, and goes by no proxy of ours.
	slow, err := pace.Listen(ctx, 1<<20, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	other := m.push(ctx, "44") // 43 is on the disk by now
	m.transactions()
	if _, err := m.rpm().Compose(slow.In(ctx), osimage.System{Image: other}); ostree.ClassOf(err) != ostree.NeedsAdmin ||
		!strings.Contains(err.Error(), "remove spec.staging.bandwidth") || len(m.transactions()) > 0 {
		t.Errorf("with a bandwidth: %v", err)
	}

	m.output(ctx, "sh", "-c", "printf '[Daemon]\\nLockLayering=true\\n' >/etc/rpm-ostreed.conf; systemctl restart rpm-ostreed")
	refuse(osimage.System{Packages: []string{"usbguard"}}, ostree.NeedsAdmin, "LockLayering=true")
	m.output(ctx, "sh", "-c", "rm /etc/rpm-ostreed.conf; systemctl restart rpm-ostreed")

	// Somebody else's host, as long as its unit is active.
	m.output(ctx, "systemd-run", "--unit=driver", "sh", "-c",
		"rpm-ostree deploy '' --register-driver=Zincati; exec sleep infinity")
	m.soon(ctx, "the driver is registered", func() bool {
		return strings.Contains(m.output(ctx, "rpm-ostree", "status", "--json"), "driver.service")
	})
	refuse(osimage.System{Image: image}, ostree.NeedsAdmin, "Zincati (driver.service)")
	m.register(ctx, "Zincati")
	m.output(ctx, "systemctl", "stop", "driver")

	// What can't be built on.
	m.output(ctx, "ostree", "admin", "deploy", "--os="+lab.OS, "--retain", commit)
	m.output(ctx, "ostree", "admin", "pin", "0")
	c := m.compose(ctx, osimage.System{Image: lab.RefV2, Packages: []string{"usbguard"}}, 1)
	if staged := m.staged(ctx); staged == nil || staged.Checksum != c.Checksum {
		t.Errorf("staged is %+v", staged)
	}
	if err := m.rpm().Drop(ctx); err != nil {
		t.Fatal(err)
	}
	if status := m.output(ctx, "ostree", "admin", "status"); !strings.Contains(status, commit+".0 (pending)") ||
		strings.Contains(status, "staged") {
		t.Errorf("the deployments are %s", status)
	}
}

func TestTroubleThatPassesIsWaitedFor(t *testing.T) {
	ctx, m := boot(t)
	image := m.push(ctx, "43")
	want := osimage.System{Image: image, Packages: []string{"usbguard"}}
	again := func(what string, transactions int) {
		t.Helper()
		c := m.compose(ctx, want, transactions)
		if staged := m.staged(ctx); staged == nil || staged.Checksum != c.Checksum {
			t.Errorf("%s: staged is %+v", what, staged)
		}
		m.mend()
		if err := m.rpm().Drop(ctx); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if staged := m.staged(ctx); staged != nil {
			t.Errorf("%s: %+v is left", what, staged)
		}
	}
	refused := "Creating importer: failed to invoke method OpenImage: pinging container registry quay.example: " +
		`Get "https://quay.example/v2/": dial tcp 192.0.2.1:443: connect: connection refused`
	m.breaks(fault.Fault{Step: fault.Pull, Action: fault.Fail, Text: refused, Times: 2})
	again("a registry that was away", 1)

	m.breaks(fault.Fault{Step: fault.Stage, Action: fault.Vanish, Times: 1})
	again("a daemon that was killed before it staged", 1)
	m.breaks(fault.Fault{Step: fault.End, Action: fault.Vanish, Times: 1})
	again("a daemon that was killed when all was done", 1)

	m.output(ctx, "systemctl", "stop", "rpm-ostreed")
	m.breaks(fault.Fault{Step: fault.Start, Action: fault.Slow, Seconds: 3, Times: 1})
	again("a daemon that starts slowly", 1)
	m.breaks(fault.Fault{Step: fault.Register, Action: fault.Vanish, Times: 1})
	again("a daemon that leaves as idle", 1)

	m.output(ctx, "sh", "-c", "printf '[Daemon]\\nIdleExitTimeout=1\\n' >/etc/rpm-ostreed.conf; systemctl restart rpm-ostreed")
	again("a daemon that does not stay", 1)
	m.output(ctx, "sh", "-c", "rm /etc/rpm-ostreed.conf; systemctl restart rpm-ostreed")

	// The lock of the sysroot, which ostree and bootc hold.
	m.output(ctx, "systemd-run", "--unit=holder", "flock", "/ostree/lock", "sleep", "3")
	again("another program", 1)

	// The same, by another client. What it has staged is not ours to remove.
	m.breaks(fault.Fault{Step: fault.Compose, Action: fault.Hang})
	m.output(ctx, "systemd-run", "--unit=same", "rpm-ostree", "rebase", "ostree-unverified-registry:"+image,
		"--install=usbguard", "--lock-finalization") //nolint:misspell // rpm-ostree's own word
	m.soon(ctx, "the other client is at work", m.busy(ctx))
	m.mendOnce(ctx, "waiting: rpm-ostree works for another program")
	m.compose(ctx, want, 0)
	if err := m.rpm().Drop(ctx); err != nil {
		t.Fatal(err)
	}
	if m.staged(ctx) == nil {
		t.Error("what the other client has staged is gone")
	}
	m.output(ctx, "rpm-ostree", "cleanup", "-p")

	// Another client, which stages what could boot.
	m.breaks(fault.Fault{Step: fault.Compose, Action: fault.Hang})
	m.output(ctx, "systemd-run", "--unit=client", "rpm-ostree", "install", "sysstat")
	m.soon(ctx, "the other client is at work", m.busy(ctx))
	m.mendOnce(ctx, "waiting: rpm-ostree works for another program")
	again("another client", 2)
	if !slices.ContainsFunc(m.said, func(text string) bool { return strings.Contains(text, "works for another program") }) {
		t.Errorf("it said %q", m.said)
	}
}

// busy asks whether a transaction is active.
func (m *machine) busy(ctx context.Context) func() bool {
	return func() bool {
		return !strings.Contains(m.output(ctx, "rpm-ostree", "status", "--json"), `"transaction" : null`)
	}
}

// hanging runs Compose until the packages are about to be layered, and gives what ends it and its result.
func (m *machine) hanging(ctx context.Context, s osimage.System) (func(), <-chan error) {
	m.t.Helper()
	return m.hangingAt(ctx, s, fault.Fault{Step: fault.Compose, Action: fault.Hang})
}

// hangingAt does so with any fault that hangs.
func (m *machine) hangingAt(ctx context.Context, s osimage.System, f fault.Fault) (func(), <-chan error) {
	m.t.Helper()
	m.breaks(f)
	m.transactions()
	own, stop := context.WithCancelCause(ctx)
	result := make(chan error, 1)
	go func() {
		_, err := m.rpm().Compose(own, s)
		result <- err
	}()
	m.soon(ctx, "a transaction is active", m.busy(ctx))
	if f.Times > 0 {
		m.soon(ctx, "it hangs", func() bool {
			_, err := os.Stat(filepath.Join(m.HostPath(fault.Dir), string(f.Step)))
			return errors.Is(err, fs.ErrNotExist) // it has lifted itself
		})
	}
	return func() { stop(errRestart) }, result
}

var errRestart = errors.New("the agent restarts")

// mendOnce lifts the faults when the driver says something from now on that begins like that. It returns at once.
func (m *machine) mendOnce(ctx context.Context, says string) {
	m.mu.Lock()
	m.said = nil
	m.mu.Unlock()
	go func() {
		m.soon(ctx, says, func() bool {
			m.mu.Lock()
			defer m.mu.Unlock()
			return slices.ContainsFunc(m.said, func(text string) bool { return strings.HasPrefix(text, says) })
		})
		m.mend()
	}()
}

func TestTransactionOutlivesUsAndIsJoinedOrCancelled(t *testing.T) {
	ctx, m := boot(t)
	want := osimage.System{Image: m.push(ctx, "43"), Packages: []string{"usbguard"}}

	// The same is wanted after a restart.
	restart, result := m.hanging(ctx, want)
	restart()
	if err := <-result; !errors.Is(err, errRestart) || ostree.ClassOf(err) != ostree.Retryable {
		t.Fatalf("gave %v", err)
	}
	m.mendOnce(ctx, "waiting for the transaction of an earlier")
	m.compose(ctx, want, 0)
	if err := m.rpm().Drop(ctx); err != nil {
		t.Fatal(err)
	}

	// Something else is wanted after a restart. The transaction hangs until it is cancelled: a transaction that is let go
	// may stage before the next Compose looks, and costs that Compose a clean-up.
	restart, result = m.hangingAt(ctx, want, fault.Fault{Step: fault.Compose, Action: fault.Hang, Times: 1})
	restart()
	<-result
	other := osimage.System{Packages: []string{"sysstat"}}
	m.compose(ctx, other, 1)
	if err := m.rpm().Drop(ctx); err != nil {
		t.Fatal(err)
	}

	// Nothing is wanted any more.
	restart, result = m.hanging(ctx, want)
	restart()
	<-result
	if err := m.rpm().Drop(ctx); err != nil {
		t.Fatal(err)
	}
	m.mend()
	if m.busy(ctx)() || m.staged(ctx) != nil || m.output(ctx, "systemctl", "is-system-running") != "running" {
		t.Errorf("left is %s", m.output(ctx, "rpm-ostree", "status"))
	}

	// The client died, nothing is wanted any more, and the transaction would go on for long.
	restart, result = m.hangingAt(ctx, want, fault.Fault{Step: fault.Compose, Action: fault.Slow, Seconds: 600, Times: 1})
	restart()
	<-result
	m.output(ctx, "systemctl", "kill", "--signal=KILL", "noderefit-rpm-ostree.service")
	if !m.busy(ctx)() {
		t.Error("the transaction ended with its client")
	}
	if err := m.rpm().Drop(ctx); err != nil {
		t.Fatal(err)
	}
	if m.busy(ctx)() || m.staged(ctx) != nil {
		t.Errorf("left is %s", m.output(ctx, "rpm-ostree", "status"))
	}

	// Somebody else's is waited for.
	m.breaks(fault.Fault{Step: fault.Compose, Action: fault.Hang})
	m.output(ctx, "systemd-run", "--unit=client", "rpm-ostree", "install", "sysstat")
	m.soon(ctx, "the other client is at work", m.busy(ctx))
	m.mendOnce(ctx, "waiting: rpm-ostree works for another program")
	m.compose(ctx, osimage.System{Packages: []string{"usbguard"}}, 2)
	if failed := m.output(ctx, "sh", "-c", "systemctl is-failed client.service; true"); failed == "failed" {
		t.Error("somebody else's transaction was cancelled")
	}
	if err := m.rpm().Drop(ctx); err != nil {
		t.Fatal(err)
	}

	// The client dies, and the transaction goes on.
	_, result = m.hanging(ctx, want)
	m.output(ctx, "systemctl", "kill", "--signal=KILL", "noderefit-rpm-ostree.service")
	m.mend()
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	m.compose(ctx, want, 0)
}

func TestWhatWasStagedIsComposedAgainAfterAPowerCut(t *testing.T) {
	ctx, m := boot(t)
	before := m.BootedDeployment()
	want := osimage.System{Image: m.push(ctx, "43"), Packages: []string{"usbguard"}}
	restart, result := m.hanging(ctx, want)
	restart()
	<-result
	counted.Cuts.Add(1)
	if err := m.PowerCut(); err != nil {
		t.Fatal(err)
	}
	m.mend()
	if err := m.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if m.BootedDeployment() != before || m.staged(ctx) != nil {
		t.Errorf("%s has booted, staged is %+v", m.BootedDeployment(), m.staged(ctx))
	}
	c := m.compose(ctx, want, 1)
	counted.Cuts.Add(1)
	if err := m.PowerCut(); err != nil {
		t.Fatal(err)
	}
	if err := m.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if there, err := m.rpm().Present(ctx, want, c); !there || err != nil || m.BootedDeployment() != before {
		t.Errorf("it is there: %v, %v; %s has booted", there, err, m.BootedDeployment())
	}
	m.bootInto(ctx, c)
	if now, err := m.rpm().Current(ctx); err != nil || cmp.Diff(running(want), now) != "" {
		t.Errorf("runs %+v, %v", now, err)
	}
}

func TestFailureOfTheLastShutdownIsTold(t *testing.T) {
	ctx, m := boot(t)
	if why, err := m.rpm().FailedFinalization(ctx); why != "" || err != nil {
		t.Errorf("before any: %q, %v", why, err)
	}
	// ostree itself says it: the kernel of what was staged is gone by then.
	m.output(ctx, "rpm-ostree", "install", "usbguard")
	m.output(ctx, "unshare", "--mount", "sh", "-c", "mount -o remount,rw /sysroot; rm "+m.staged(ctx).Dir+"/usr/lib/modules/*/vmlinuz")
	if err := m.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	if why, err := m.rpm().FailedFinalization(ctx); why != "Installing kernel: Failed to find kernel in /usr/lib/modules, /usr/lib/ostree-boot or /boot" || err != nil {
		t.Errorf("after one: %q, %v", why, err)
	}
	m.compose(ctx, osimage.System{Packages: []string{"usbguard"}}, 1)
	if !slices.ContainsFunc(m.said, func(text string) bool { return strings.Contains(text, "Failed to find kernel") }) {
		t.Errorf("it said %q", m.said)
	}
}

func TestChangesAreTold(t *testing.T) {
	ctx, m := boot(t)
	own, stop := context.WithCancel(ctx)
	changes, err := m.rpm().Watch(own)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-changes:
		t.Error("a change was told before there was one")
	default:
	}
	ended := make(chan error)
	go func() {
		_, err := m.Output(ctx, "rpm-ostree", "install", "usbguard")
		ended <- err
	}()
	for m.staged(ctx) == nil {
		select {
		case _, open := <-changes:
			if !open {
				t.Fatal("the bus went away")
			}
		case <-ctx.Done():
			t.Fatal("nothing was told")
		}
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	stop()
	for open := true; open; {
		select {
		case _, open = <-changes:
		case <-ctx.Done():
			t.Fatal("it goes on")
		}
	}
}

func TestInterruptedAnywhereAndRevertedLeavesNothing(t *testing.T) {
	ctx, m := boot(t)
	want := system(m.push(ctx, "43"))
	// Of ostree's own refs, those of deployments have a number that changes with each change of them, and those of images
	// are left by the stand-in where rpm-ostree lets go of the images that no deployment has.
	things := func() string {
		return m.output(ctx, "sh", "-c", `
			ls -d /ostree/deploy/testos/deploy/* /boot/ostree/* /boot/loader/entries/* /run/ostree /run/ostree/* /run/*.composing
			ostree refs | grep -v ^ostree/; ostree admin status; rpm-ostree status; systemctl is-system-running; true`)
	}
	m.output(ctx, "rpm-ostree", "cleanup", "-p", "-b")
	before := things()
	same := func(what string) {
		t.Helper()
		if d := cmp.Diff(strings.Split(before, "\n"), strings.Split(things(), "\n")); d != "" {
			t.Errorf("%s, left is:\n%s", what, d)
		}
	}
	for _, step := range []fault.Step{fault.Begin, fault.Pull, fault.Stage, fault.End, fault.Compose} {
		restart, result := m.hangingAt(ctx, want, fault.Fault{Step: step, Action: fault.Hang, Times: 1})
		restart()
		<-result
		// As when nobody is left to wait: a transaction that is cancelled ends, and what it has staged goes.
		if err := m.rpm().Drop(ctx); err != nil {
			t.Fatalf("%s: %v", step, err)
		}
		m.mend()
		same("interrupted at " + string(step))
	}
	m.compose(ctx, want, 2)
	if err := m.rpm().Drop(ctx); err != nil {
		t.Fatal(err)
	}
	same("composed")

	// A power cut takes what is staged and leaves its checkout.
	m.compose(ctx, want, 2)
	counted.Cuts.Add(1)
	if err := m.PowerCut(); err != nil {
		t.Fatal(err)
	}
	if err := m.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if err := m.rpm().Drop(ctx); err != nil {
		t.Fatal(err)
	}
	same("composed, and the power was cut")
}
