// SPDX-License-Identifier: Apache-2.0

package bootc

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/noderefit/noderefit/bootc"
	"github.com/noderefit/noderefit/osimage"
	"github.com/noderefit/noderefit/ostree"
	"github.com/noderefit/noderefit/systemd"
	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/test/standin/bootc/fault"
)

func (s *scene) driver() *bootc.Driver { return s.driverWith(s.run, nil, nil) }
func (s *scene) plain() *ostree.Plain  { return ostree.NewPlain(s.run, s.root()) }

// driverWith is a driver of which run hears what it runs by itself, and before and stopped what it has a unit do.
func (s *scene) driverWith(run ostree.Runner, before func(line string), stopped func() error) *bootc.Driver {
	units := s.host.Units()
	s.Cleanup(units.Close)
	tools := &ostree.Tools{Units: heard{units, before, stopped}, Root: s.root()}
	return bootc.New(run, tools, ostree.NewPlain(run, s.root()))
}

// heard are units that tell a test what is asked of them.
type heard struct {
	*systemd.Units

	before  func(line string)
	stopped func() error
}

func (h heard) Run(ctx context.Context, c systemd.Command) (systemd.Ended, error) {
	if h.before != nil {
		h.before(strings.Join(c.Argv, " "))
	}
	return h.Units.Run(ctx, c)
}

func (h heard) Stop(ctx context.Context, name string) error {
	err := h.Units.Stop(ctx, name)
	if h.stopped != nil {
		err = errors.Join(err, h.stopped())
	}
	return err
}

// act is a host with two images in its registry, by their digests: a is of RefV2 and brings two kernel arguments, b of
// RefV1 and keeps one of them. repository is the name of both, and digested what is before a digest.
type act struct {
	*scene

	a, b                 string
	repository, digested string
}

// Each part leaves the host as it was, but for the last one.
func TestDriver(t *testing.T) {
	s := newScene(t)
	s.commit("test/a", lab.RefV2, map[string]string{argumentsFile: `kargs = ["lab.a=1", "lab.both"]`})
	s.commit("test/b", lab.RefV1, map[string]string{argumentsFile: `kargs = ["lab.both lab.b=2"]`})
	repository := s.repository("os/lab")
	a := s.push("test/a", "v2", repository+":a")
	b := s.push("test/b", "v1", repository+":b")
	for _, part := range []struct {
		name   string
		faults bool // those of the stand-in are needed
		play   func(*act)
	}{
		{"what goes wrong is classed", true, whatGoesWrongIsClassed},
		{"progress of a compose is passed on", false, progressOfComposeIsPassedOn},
		{"switch outlives its agent and gives way to another", true, switchOutlivesItsAgent},
		{"orderly reboot at any point of compose boots the old", true, orderlyRebootAtAnyPoint},
		{"image is composed, booted and taken back", false, imageIsComposedBootedAndTakenBack},
	} {
		t.Run(part.name, func(t *testing.T) {
			if part.faults && Real() != "" {
				t.Skip("the stand-in's faults are needed")
			}
			part.play(&act{s.in(t), a, b, repository, repository + "@"})
		})
	}
}

func (s *scene) compose(image string) osimage.Composed {
	s.Helper()
	c, err := s.driver().Compose(s.ctx, osimage.System{Image: image})
	if err != nil {
		s.Fatal(err)
	}
	return c
}

// untouched fails if anything of a composed system shows: to ostree, to the boot loader, or to whoever reboots machines.
func (s *scene) untouched(deployments ...string) {
	s.Helper()
	list, err := s.plain().Status(s.ctx)
	if err != nil {
		s.Fatal(err)
	}
	var ids []string
	for _, d := range list {
		ids = append(ids, d.ID)
	}
	if !slices.Equal(ids, deployments) {
		s.Errorf("the deployments are %q, want %q", ids, deployments)
	}
	dirs, err := filepath.Glob(s.host.Sysroot() + "/ostree/deploy/" + lab.OS + "/deploy/*.[0-9]")
	if err != nil || len(dirs) != len(deployments) {
		s.Errorf("the directories of deployments are %q (%v)", dirs, err)
	}
	for _, path := range []string{"/run/ostree/staged-deployment", "/run/reboot-required", "/run/noderefit-bootc"} {
		if _, err := os.Lstat(s.root() + path); !errors.Is(err, os.ErrNotExist) {
			s.Errorf("%s is there (%v)", path, err)
		}
	}
	if next, err := lab.DefaultEntry(s.host.Sysroot()); err != nil || next.Deployment != s.host.BootedDeployment() {
		s.Errorf("next boots %s (%v)", next.Deployment, err)
	}
}

// hangsAt waits until a switch has come to a step; that a Compose ends before is an error.
func (s *scene) hangsAt(step fault.Step, ended <-chan error) {
	s.Helper()
	for ; !fault.Hangs(s.root(), step); time.Sleep(20 * time.Millisecond) {
		select {
		case err := <-ended:
			s.Fatalf("before %s it has ended: %v", step, err)
		case <-s.ctx.Done():
			s.Fatalf("bootc has not come to %s", step)
		default:
		}
	}
}

// move makes what was composed what runs, as the agent does, and returns its deployment.
func (s *scene) move(c osimage.Composed, own ...string) ostree.Deployment {
	s.Helper()
	d := s.materialise(c, own...)
	if err := s.plain().SetDefault(s.ctx, d.ID); err != nil {
		s.Fatal(err)
	}
	s.reboot()
	if s.host.BootedDeployment() != d.ID {
		s.Fatalf("booted %s, want %s", s.host.BootedDeployment(), d.ID)
	}
	return d
}

func (s *scene) materialise(c osimage.Composed, own ...string) ostree.Deployment {
	s.Helper()
	added, removed, err := s.driver().KernelArguments(s.ctx, c)
	if err != nil {
		s.Fatal(err)
	}
	arguments := slices.DeleteFunc(s.arguments(), func(a string) bool {
		return slices.Contains(removed, a) || strings.HasPrefix(a, "own")
	})
	arguments = slices.Concat(arguments, added, own)
	d, err := s.plain().Materialise(s.ctx, ostree.Request{OS: lab.OS, Checksum: c.Checksum, Origin: c.Origin, KernelArguments: arguments})
	if err != nil {
		s.Fatal(err)
	}
	return d
}

func imageIsComposedBootedAndTakenBack(s *act) {
	first := s.host.BootedDeployment()
	if system, err := s.driver().Current(s.ctx); err != nil || system.Image != lab.RefV1 {
		s.Errorf("current is %+v (%v)", system, err)
	}

	// What an administrator has staged goes, as with any switch.
	s.must("ostree", "admin", "deploy", "--stage", "--os="+lab.OS, lab.RefV2)
	c := s.compose(s.digested + s.a)
	if c.Base != s.a || c.Transactions != 1 || c.Origin != "[origin]\ncontainer-image-reference=ostree-unverified-registry:"+
		s.digested+s.a+"\n" {
		s.Errorf("composed %+v", c)
	}
	s.untouched(first)
	for image, want := range map[string]bool{s.digested + s.a: true, s.digested + s.b: false, s.repository + ":a": false, "": false} {
		if there, err := s.driver().Present(s.ctx, osimage.System{Image: image}, c); there != want || err != nil {
			s.Errorf("that %q is present is %t (%v)", image, there, err)
		}
	}
	// Neither a clean-up nor bootc's own takes it away, or a layer of it.
	s.must("bootc", "internals", "cleanup")
	s.must("ostree", "admin", "cleanup")
	if there, err := s.driver().Present(s.ctx, osimage.System{Image: s.digested + s.a}, c); !there || err != nil {
		s.Errorf("after a clean-up it is present: %t (%v)", there, err)
	}

	s.must("sh", "-c", "echo of the old >/etc/testos/mine")
	d := s.materialise(c, "own=1")
	got := s.status()
	if got.Status.Rollback.id() != d.ID || got.Status.RollbackQueued || got.Status.Rollback.of() != "registry:"+s.digested+s.a+" "+s.a {
		s.Errorf("with a deployment materialised status is %+v", got)
	}
	if err := s.plain().SetDefault(s.ctx, d.ID); err != nil {
		s.Fatal(err)
	}
	if got := s.status(); got.Status.Rollback.id() != d.ID || !got.Status.RollbackQueued {
		s.Errorf("with it the default status is %+v", got)
	}
	if err := os.WriteFile(s.host.Sysroot()+d.Dir+"/etc/testos/mine", []byte("of the new\n"), 0o644); err != nil {
		s.Fatal(err)
	}
	s.reboot()
	if got := s.status(); got.Status.Booted.id() != d.ID || got.Status.Rollback.id() != first || *got.Status.Type != "bootcHost" {
		s.Errorf("after the boot status is %+v", got)
	}
	if want := append(slices.Clone(lab.KernelArguments), "lab.a=1", "lab.both", "own=1"); !slices.Equal(s.arguments(), want) {
		s.Errorf("booted with %q", s.arguments())
	}
	if system, err := s.driver().Current(s.ctx); err != nil || system.Image != "ostree-unverified-registry:"+s.digested+s.a {
		s.Errorf("current is %+v (%v)", system, err)
	}
	if again := s.compose("ostree-unverified-registry:" + s.digested + s.a); again.Checksum != c.Checksum ||
		again.Origin != c.Origin || again.Base != c.Base || again.Transactions != 0 {
		s.Errorf("what is booted is composed as %+v", again)
	}

	// bootc leaves the tag out where there is a digest, and finds the same.
	if again := s.compose(s.repository + ":a@" + s.a); again.Checksum != c.Checksum || again.Origin != c.Origin {
		s.Errorf("by its tag and digest it is composed as %+v", again)
	}
	s.untouched(d.ID, first)

	// By a tag, from image to image, and back by bootc's own rollback.
	e := s.move(s.compose(s.repository+":b"), "own=2")
	if want := append(slices.Clone(lab.KernelArguments), "lab.both", "lab.b=2", "own=2"); !slices.Equal(s.arguments(), want) {
		s.Errorf("booted with %q", s.arguments())
	}
	if system, err := s.driver().Current(s.ctx); err != nil || system.Image != "ostree-unverified-registry:"+s.repository+":b@"+s.b {
		s.Errorf("current is %+v (%v)", system, err)
	}
	s.must("bootc", "rollback")
	s.reboot()
	if s.host.BootedDeployment() != d.ID || s.must("cat", "/etc/testos/mine") != "of the new" {
		s.Errorf("after bootc rollback %s is booted, with %q", s.host.BootedDeployment(), s.must("cat", "/etc/testos/mine"))
	}
	if want := append(slices.Clone(lab.KernelArguments), "lab.a=1", "lab.both", "own=1"); !slices.Equal(s.arguments(), want) {
		s.Errorf("booted with %q", s.arguments())
	}
	if got := s.status(); got.Status.Rollback.id() != e.ID || got.Status.RollbackQueued {
		s.Errorf("after bootc rollback status is %+v", got)
	}

	if err := s.driver().Drop(s.ctx); err != nil {
		s.Fatal(err)
	}
	if refs := s.must("ostree", "refs", "--list", "noderefit"); refs != "" {
		s.Errorf("refs are left: %s", refs)
	}
	s.untouched(d.ID, e.ID)
}

func orderlyRebootAtAnyPoint(s *act) {
	first := s.host.BootedDeployment()
	system := osimage.System{Image: s.digested + s.a}
	rebooted := func(what string) {
		s.Helper()
		boots := s.host.Boots()
		s.reboot()
		if s.host.Boots() != boots+1 || s.host.BootedDeployment() != first {
			s.Errorf("%s: boot %d is of %s", what, s.host.Boots(), s.host.BootedDeployment())
		}
	}
	for _, step := range []fault.Step{fault.Layers, fault.Stage, fault.Staged, fault.End} {
		if err := fault.Set(s.root(), step, fault.Hang, 0); err != nil {
			s.Fatal(err)
		}
		ctx, cancel := context.WithCancel(s.ctx)
		done := make(chan error, 1)
		go func() {
			_, err := s.driver().Compose(ctx, system)
			done <- err
		}()
		s.hangsAt(step, done)
		// The agent goes down first, and bootc goes on until the shutdown ends it.
		cancel()
		<-done
		rebooted("while bootc is at " + string(step))
		if err := fault.Lift(s.root(), step); err != nil {
			s.Fatal(err)
		}
	}
	// And between what the driver runs, from the end of the switch on.
	for _, before := range []string{"ostree admin status", "ostree refs", "ostree admin cleanup"} {
		ctx, cancel := context.WithCancel(s.ctx)
		switched := false
		hear := func(line string) {
			if switched && strings.Contains(line, before) {
				cancel()
			}
			switched = switched || strings.Contains(line, "/bootc switch")
		}
		run := func(ctx context.Context, argv ...string) ([]byte, error) {
			hear(strings.Join(argv, " "))
			return s.run(ctx, argv...)
		}
		if _, err := s.driverWith(run, hear, nil).Compose(ctx, system); err == nil || !switched || ctx.Err() == nil {
			s.Errorf("the driver has not come to %s: %v", before, err)
		}
		rebooted("before " + before)
		cancel()
		// Nobody wants the image any more.
		if err := s.driver().Drop(s.ctx); err != nil {
			s.Fatal(err)
		}
		s.untouched(first)
	}
	c := s.compose(system.Image)
	rebooted("with all composed")
	if there, err := s.driver().Present(s.ctx, system, c); !there || err != nil {
		s.Errorf("after the boot it is present: %t (%v)", there, err)
	}
	s.untouched(first)
}

func whatGoesWrongIsClassed(s *act) {
	first := s.host.BootedDeployment()
	s.encapsulate(lab.RefV2, "v2", "oci:/var/lib/images/bare")
	// Nothing comes from the registry without its proxy, and without credentials, which are where the switch has another
	// directory.
	private := s.host.HostPath("/var/lib/bootc-stand-in/registry/" + s.repository + "/private")
	proxied := filepath.Join(filepath.Dir(private), "proxied")
	proxy := s.host.HostPath("/etc/mco/proxy.env")
	if err := errors.Join(os.WriteFile(private, nil, 0o644), os.WriteFile(proxied, nil, 0o644), os.MkdirAll(filepath.Dir(proxy), 0o755),
		os.WriteFile(proxy, []byte("HTTPS_PROXY=http://proxy.example:3128\n"), 0o644)); err != nil {
		s.Fatal(err)
	}
	defer os.Remove(proxied)
	defer os.Remove(private)
	for _, c := range []struct {
		name   string
		step   fault.Step
		action fault.Action
		system osimage.System
		class  ostree.Class
		says   string
	}{
		{"packages", "", "", osimage.System{Packages: []string{"usbguard"}}, ostree.Invalid, "use an image that was built so"},
		{"removals", "", "", osimage.System{Removed: []string{"nano"}}, ostree.Invalid, "(nano)"},
		{"no container", "", "", osimage.System{Image: "os/test2"}, ostree.Invalid, "ostree commit"},
		{"no such tag", "", "", osimage.System{Image: s.repository + ":none"}, ostree.Invalid, "manifest unknown"},
		{"no such directory", "", "", osimage.System{Image: "ostree-unverified-image:oci:/nope"}, ostree.Invalid, "no such file"},
		{"no credentials", "", "", osimage.System{Image: s.digested + s.a}, ostree.NeedsAdmin,
			"authentication required; there are no credentials for registry.example"},
		{"no space", fault.Layers, fault.NoSpace, osimage.System{Image: s.digested + s.a}, ostree.NeedsAdmin, "min-free-space-percent"},
		{"killed", fault.Staged, fault.Die, osimage.System{Image: s.digested + s.a}, ostree.Failed, "bootc switch"},
	} {
		if c.step != "" {
			// As the kubelet has them.
			s.must("sh", "-ec", "mkdir -p /run/ostree; echo {} >/var/lib/kubelet/config.json; "+
				"ln -sf /var/lib/kubelet/config.json /run/ostree/auth.json")
			if err := fault.Set(s.root(), c.step, c.action, 1); err != nil {
				s.Fatal(err)
			}
		}
		_, err := s.driver().Compose(s.ctx, c.system)
		if ostree.ClassOf(err) != c.class || !strings.Contains(err.Error(), c.says) {
			s.Errorf("%s: class %s: %v", c.name, ostree.ClassOf(err), err)
		}
		s.untouched(first)
	}
	// What the network breaks is tried again.
	if err := fault.Set(s.root(), fault.Manifest, fault.Network, 1); err != nil {
		s.Fatal(err)
	}
	c := s.compose("ostree-unverified-image:oci:/var/lib/images/bare")
	if c.Transactions != 1 || !strings.HasPrefix(c.Base, "sha256:") {
		s.Errorf("composed %+v", c)
	}
	if added, removed, err := s.driver().KernelArguments(s.ctx, c); err != nil || len(added)+len(removed) > 0 {
		s.Errorf("an image without kernel arguments adds %q, removes %q (%v)", added, removed, err)
	}
	if left, err := os.ReadDir(s.root() + fault.Dir); err != nil || len(left) > 0 {
		s.Errorf("faults are left: %v (%v)", left, err)
	}
	s.untouched(first)
}

func switchOutlivesItsAgent(s *act) {
	first := s.host.BootedDeployment()
	// Another program has the lock for a while; then the agent goes away in the middle.
	lock, err := os.OpenFile(filepath.Join(s.host.Sysroot(), "ostree/lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		s.Fatal(err)
	}
	if err := unix.FcntlFlock(lock.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}); err != nil {
		s.Fatal(err)
	}
	if err := fault.Set(s.root(), fault.Layers, fault.Hang, 0); err != nil {
		s.Fatal(err)
	}
	start := func(image string) (stop context.CancelFunc, ended <-chan error) {
		ctx, cancel := context.WithCancel(s.ctx)
		done := make(chan error, 1)
		go func() {
			_, err := s.driver().Compose(ctx, osimage.System{Image: image})
			done <- err
		}()
		return cancel, done
	}
	stop, ended := start(s.digested + s.a)
	defer stop()
	select {
	case err := <-ended:
		s.Fatalf("without the lock it ended: %v", err)
	case <-time.After(2 * time.Second):
	}
	if got := s.must("systemctl", "show", "--property=ActiveState", "--value", "noderefit-bootc.service"); got != "inactive" {
		s.Errorf("without the lock bootc is %s", got)
	}
	if err := lock.Close(); err != nil {
		s.Fatal(err)
	}
	s.hangsAt(fault.Layers, ended)
	stop()
	if err := <-ended; ostree.ClassOf(err) != ostree.Retryable {
		s.Errorf("class %s: %v", ostree.ClassOf(err), err)
	}
	if got := s.must("systemctl", "show", "--property=ActiveState", "--value", "noderefit-bootc.service"); got != "active" {
		s.Errorf("without its agent bootc is %s", got)
	}
	// The next agent waits for it; the one after that wants something else.
	stop, ended = start(s.digested + s.a)
	defer stop()
	stop()
	if err := <-ended; err == nil {
		s.Error("it did not wait for the one that runs")
	}
	s.hangsAt(fault.Layers, nil)
	s.must("rm", fault.Dir+"/"+string(fault.Layers))
	if c := s.compose(s.digested + s.a); c.Base != s.a {
		s.Errorf("composed %+v", c)
	}
	if err := fault.Set(s.root(), fault.Stage, fault.Hang, 0); err != nil {
		s.Fatal(err)
	}
	stop, ended = start(s.digested + s.a)
	defer stop()
	s.hangsAt(fault.Stage, ended)
	stop()
	if err := <-ended; ostree.ClassOf(err) != ostree.Retryable {
		s.Errorf("class %s: %v", ostree.ClassOf(err), err)
	}
	stopped := false
	c, err := s.driverWith(s.run, nil, func() error {
		if stopped {
			return nil
		}
		stopped = true
		return fault.Lift(s.root(), fault.Stage)
	}).Compose(s.ctx, osimage.System{Image: s.digested + s.b})
	if err != nil || c.Base != s.b || !stopped {
		s.Errorf("composed %+v (%v); the one before was stopped: %t", c, err, stopped)
	}
	s.untouched(first)
	if err := s.driver().Drop(s.ctx); err != nil {
		s.Fatal(err)
	}
	if err := s.driver().Drop(s.ctx); err != nil {
		s.Errorf("dropping it twice: %v", err)
	}
	s.untouched(first)
	if refs := s.must("ostree", "refs", "--list", "noderefit") + s.must("ostree", "refs", "--list", "ostree/container"); refs != "" {
		s.Errorf("refs are left: %s", refs)
	}
}
