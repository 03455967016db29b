// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/noderefit/noderefit/ostree"
)

// forks is what a runner has run.
type forks struct{ argv [][]string }

// runner runs tools on the present boot of a host.
func runner(host *Host, count *forks) ostree.Runner {
	return func(ctx context.Context, argv ...string) ([]byte, error) {
		if count != nil {
			count.argv = append(count.argv, argv)
		}
		stdout, stderr, exit, err := host.Exec(ctx, nil, argv...)
		if err == nil && exit != 0 {
			err = fmt.Errorf("exit status %d", exit)
		}
		if err != nil {
			err = &ostree.CommandError{Argv: argv, Stderr: strings.TrimSpace(string(stderr)), Err: err}
		}
		return stdout, err
	}
}

// plain is a Plain for the present boot of a host.
func plain(host *Host, count *forks) *ostree.Plain {
	return ostree.NewPlain(runner(host, count), fmt.Sprintf("/proc/%d/root", host.Leader()))
}

func status(ctx context.Context, t *testing.T, p *ostree.Plain) []ostree.Deployment {
	t.Helper()
	deployments, err := p.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return deployments
}

func booted(t *testing.T, deployments []ostree.Deployment) ostree.Deployment {
	t.Helper()
	i := slices.IndexFunc(deployments, func(d ostree.Deployment) bool { return d.Booted })
	if i < 0 {
		t.Fatalf("none is booted: %+v", deployments)
	}
	return deployments[i]
}

func TestDeploymentIsMadeChosenAndTakenBack(t *testing.T) {
	ctx, host := boot(t, Options{})
	p := plain(host, nil)
	if err := p.Supported(ctx); err != nil {
		t.Fatal(err)
	}
	a := booted(t, status(ctx, t, p))
	if a.ID != host.BootedDeployment() || !a.Default || a.Refspec != RefV1 || a.Version != "v1" ||
		!slices.Equal(a.KernelArguments, KernelArguments) {
		t.Fatalf("the booted deployment is %+v", a)
	}

	checksum, err := p.Stage(ctx, RefV2)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.BootSpace(ctx, status(ctx, t, p), OS, checksum); err != nil {
		t.Error(err)
	}
	arguments := append(slices.Clone(KernelArguments),
		"console=tty1", "dup", "dup", `quoted="a b"`, "console=tty0", "a=1")
	b, err := p.Materialise(ctx, ostree.Request{OS: OS, Checksum: checksum, OriginOf: a.ID, KernelArguments: arguments})
	if err != nil {
		t.Fatal(err)
	}
	if b.Default || b.Booted || b.Checksum != checksum || b.Refspec != RefV1 || !slices.Equal(b.KernelArguments, arguments) {
		t.Errorf("made %+v", b)
	}
	if !booted(t, status(ctx, t, p)).Default {
		t.Error("the default has changed")
	}
	if err := p.SetDefault(ctx, b.ID); err != nil {
		t.Fatal(err)
	}
	if err := p.SetDefault(ctx, b.ID); err != nil {
		t.Errorf("making it the default twice: %v", err)
	}
	if err := host.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	if host.BootedDeployment() != b.ID {
		t.Fatalf("booted %s, want %s", host.BootedDeployment(), b.ID)
	}
	if !strings.HasPrefix(host.Kargs(), strings.Join(arguments, " ")) {
		t.Errorf("booted with %q", host.Kargs())
	}

	p = plain(host, nil)
	if err := p.Discard(ctx, b.ID); ostree.ClassOf(err) != ostree.Invalid {
		t.Errorf("discarding what runs: %v", err)
	}
	if err := p.SetDefault(ctx, a.ID); err != nil {
		t.Fatal(err)
	}
	if err := host.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	p = plain(host, nil)
	if host.BootedDeployment() != a.ID {
		t.Fatalf("booted %s, want %s", host.BootedDeployment(), a.ID)
	}
	if err := p.Discard(ctx, b.ID); err != nil {
		t.Fatal(err)
	}
	if err := p.Discard(ctx, b.ID); err != nil {
		t.Errorf("discarding it twice: %v", err)
	}
	if err := p.Cleanup(ctx); err != nil {
		t.Error(err)
	}
	if left := status(ctx, t, p); len(left) != 1 || left[0].ID != a.ID {
		t.Errorf("left are %+v", left)
	}
	if err := p.SetDefault(ctx, b.ID); ostree.ClassOf(err) != ostree.Invalid {
		t.Errorf("choosing what is gone: %v", err)
	}
}

func TestSameCommitGetsADeploymentOfItsOwn(t *testing.T) {
	ctx, host := boot(t, Options{})
	p := plain(host, nil)
	a := booted(t, status(ctx, t, p))
	// Nothing but ostree= on the command line; the origin is one of our own.
	b, err := p.Materialise(ctx, ostree.Request{OS: a.OS, Checksum: a.Checksum, Origin: "[origin]\nrefspec=lab:" + RefV3 + "\n"})
	if err != nil {
		t.Fatal(err)
	}
	if b.ID == a.ID || len(b.KernelArguments) != 0 || b.Refspec != "lab:"+RefV3 {
		t.Errorf("made %+v", b)
	}
	if left := output(ctx, t, host, "find", "/run", "-name", "noderefit-origin-*"); left != "" {
		t.Errorf("origin files are left: %s", left)
	}
	for _, c := range []struct {
		name    string
		request ostree.Request
	}{
		{"no such deployment", ostree.Request{OS: a.OS, Checksum: a.Checksum, OriginOf: "testos/x.0"}},
		{"no origin", ostree.Request{OS: a.OS, Checksum: a.Checksum}},
		{"no such OS", ostree.Request{OS: "nope", Checksum: a.Checksum, OriginOf: a.ID}},
		{"no such commit", ostree.Request{OS: a.OS, Checksum: strings.Repeat("0", 64), OriginOf: a.ID}},
		{"no one argument", ostree.Request{OS: a.OS, Checksum: a.Checksum, OriginOf: a.ID, KernelArguments: []string{"a b"}}},
	} {
		if _, err := p.Materialise(ctx, c.request); ostree.ClassOf(err) != ostree.Invalid {
			t.Errorf("%s: class %s: %v", c.name, ostree.ClassOf(err), err)
		}
	}
}

func TestDefaultAndRollbackStayWhereAsked(t *testing.T) {
	ctx, host := boot(t, Options{})
	p := plain(host, nil)
	a := booted(t, status(ctx, t, p))
	add := func(keep bool) ostree.Deployment {
		t.Helper()
		d, err := p.Materialise(ctx, ostree.Request{OS: a.OS, Checksum: a.Checksum, OriginOf: a.ID,
			KernelArguments: a.KernelArguments, KeepRollback: keep})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	ids := func() string {
		var all []string
		for _, d := range status(ctx, t, p) {
			name := strings.TrimPrefix(d.ID, a.OS+"/"+a.Checksum)
			if d.Default {
				name += "*"
			}
			all = append(all, name)
		}
		return strings.Join(all, " ")
	}
	add(false)
	add(true)
	if got := ids(); got != ".0* .2 .1" {
		t.Errorf("with the rollback kept there are %s", got)
	}
	add(false)
	if got := ids(); got != ".0* .3" {
		t.Errorf("without it there are %s", got)
	}
	// One that was chosen and not booted yet stays the default.
	if err := p.SetDefault(ctx, a.OS+"/"+a.Checksum+".3"); err != nil {
		t.Fatal(err)
	}
	d := add(false)
	if got := ids(); got != ".3* .0 "+strings.TrimPrefix(d.ID, a.OS+"/"+a.Checksum) {
		t.Errorf("beside a pending one there are %s", got)
	}
}

func TestIndexThatMovesUnderOurHandsChoosesTheRightOneAllTheSame(t *testing.T) {
	ctx, host := boot(t, Options{})
	p := plain(host, nil)
	a := booted(t, status(ctx, t, p))
	b, err := p.Materialise(ctx, ostree.Request{OS: a.OS, Checksum: a.Checksum, OriginOf: a.ID})
	if err != nil {
		t.Fatal(err)
	}
	interfere, run := true, runner(host, nil)
	p = ostree.NewPlain(func(ctx context.Context, argv ...string) ([]byte, error) {
		if slices.Contains(argv, "set-default") && interfere {
			interfere = false
			output(ctx, t, host, "ostree", "admin", "deploy", "--not-as-default", "--retain-rollback", "--os="+a.OS, RefV2)
		}
		return run(ctx, argv...)
	}, fmt.Sprintf("/proc/%d/root", host.Leader()))
	if err := p.SetDefault(ctx, b.ID); err != nil || interfere {
		t.Fatal(interfere, err)
	}
	if next, err := DefaultEntry(host.Sysroot()); err != nil || next.Deployment != b.ID {
		t.Errorf("next boots %+v (%v), want %s", next, err, b.ID)
	}
}

func TestStagedOneGivesItsOriginAndCannotOverruleTheDefault(t *testing.T) {
	ctx, host := boot(t, Options{})
	p := plain(host, nil)
	stage := func(options ...string) {
		t.Helper()
		argv := append([]string{"ostree", "admin", "deploy", "--os=" + OS, "--stage"}, options...)
		if _, err := host.Output(ctx, append(argv, RefV2)...); err != nil {
			t.Fatal(err)
		}
	}
	stage("--lock-finalization") //nolint:misspell // ostree's own word
	all := status(ctx, t, p)
	if !all[0].Staged || all[0].Default || all[0].KernelArguments != nil || all[0].Pending {
		t.Fatalf("the staged one is %+v", all[0])
	}
	if err := p.SetDefault(ctx, all[0].ID); ostree.ClassOf(err) != ostree.Invalid {
		t.Errorf("choosing a staged one: %v", err)
	}
	b, err := p.Materialise(ctx, ostree.Request{OS: OS, Checksum: all[0].Checksum, OriginOf: all[0].ID, KernelArguments: []string{"a"}})
	if err != nil {
		t.Fatal(err)
	}
	if b.Refspec != RefV2 {
		t.Errorf("made %+v", b)
	}
	if err := p.SetDefault(ctx, b.ID); err != nil {
		t.Fatal(err)
	}
	// One that is staged after the choice would overrule it at shutdown.
	stage()
	if err := p.SetDefault(ctx, b.ID); err != nil {
		t.Fatal(err)
	}
	for _, d := range status(ctx, t, p) {
		if d.Staged {
			t.Errorf("%s is still staged", d.ID)
		}
	}
	if err := host.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	if host.BootedDeployment() != b.ID {
		t.Errorf("booted %s, want %s", host.BootedDeployment(), b.ID)
	}
}

func TestImageIsStagedWithoutADeployment(t *testing.T) {
	ctx, host := boot(t, Options{})
	p := plain(host, nil)
	before := status(ctx, t, p)
	pulled, err := p.Stage(ctx, Remote+":"+RefV3)
	if err != nil {
		t.Fatal(err)
	}
	for _, image := range []string{pulled, Remote + ":" + pulled, Remote + ":" + RefV3} {
		if got, err := p.Stage(ctx, image); got != pulled || err != nil {
			t.Errorf("%s gives %s, %v, want %s", image, got, err, pulled)
		}
	}
	for _, image := range []string{"nope", "nolab:os/test", Remote + ":nope", Remote + ":" + strings.Repeat("1", 64)} {
		if _, err := p.Stage(ctx, image); ostree.ClassOf(err) != ostree.Invalid {
			t.Errorf("%s: class %s: %v", image, ostree.ClassOf(err), err)
		}
	}
	if _, err := host.Output(ctx, "ostree", "remote", "add", "--no-gpg-verify", "dead", "http://127.0.0.1:1/"); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if _, err := p.Stage(short, "dead:x"); ostree.ClassOf(err) != ostree.Retryable {
		t.Errorf("a server that is down: class %s: %v", ostree.ClassOf(err), err)
	}
	if after := status(ctx, t, p); len(after) != len(before) || after[0].ID != before[0].ID {
		t.Errorf("the deployments are %+v", after)
	}
}

func TestKernelThatIsInBootAlreadyNeedsNoRoom(t *testing.T) {
	ctx, host := boot(t, Options{})
	p := plain(host, nil)
	// A /boot as it is, with room for nothing more.
	output(ctx, t, host, "sh", "-ec",
		"mkdir /run/b; cp -a /boot/. /run/b; mount -t tmpfs -o size=128k boot /boot; cp -a /run/b/. /boot")
	another, err := p.Stage(ctx, RefV2)
	if err != nil {
		t.Fatal(err)
	}
	same, err := p.Stage(ctx, Remote+":"+RefV3)
	if err != nil {
		t.Fatal(err)
	}
	var refusal *ostree.NoBootSpace
	err = p.BootSpace(ctx, status(ctx, t, p), OS, another)
	if !errors.As(err, &refusal) || ostree.ClassOf(err) != ostree.NeedsAdmin || refusal.Need <= refusal.Free {
		t.Errorf("another kernel: %v", err)
	}
	if err := p.BootSpace(ctx, status(ctx, t, p), OS, same); err != nil {
		t.Errorf("the kernel of the booted one: %v", err)
	}
}

func TestLockOfAnotherProgramIsWaitedForAsLongAsTheContextLasts(t *testing.T) {
	ctx, host := boot(t, Options{})
	p := plain(host, nil)
	a := booted(t, status(ctx, t, p))
	// The lock that ostree takes, on the file that it takes it on.
	file, err := os.OpenFile(filepath.Join(host.Sysroot(), "ostree/lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	request := ostree.Request{OS: a.OS, Checksum: a.Checksum, OriginOf: a.ID}
	if _, err := p.Materialise(short, request); ostree.ClassOf(err) != ostree.Retryable || !strings.Contains(err.Error(), "lock of the sysroot") {
		t.Errorf("class %s: %v", ostree.ClassOf(err), err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Materialise(ctx, request); err != nil {
		t.Errorf("after the lock is free: %v", err)
	}
}

func TestStatusIsOneFork(t *testing.T) {
	ctx, host := boot(t, Options{})
	var count forks
	p := plain(host, &count)
	status(ctx, t, p)
	count.argv = nil
	a := booted(t, status(ctx, t, p))
	if len(count.argv) != 1 {
		t.Errorf("Status ran %q", count.argv)
	}
	count.argv = nil
	if err := p.SetDefault(ctx, a.ID); err != nil || len(count.argv) != 1 {
		t.Errorf("SetDefault of the default ran %q, %v", count.argv, err)
	}
}
