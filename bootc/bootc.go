// SPDX-License-Identifier: Apache-2.0

// Package bootc composes the OS of a host that bootc manages.
package bootc

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/noderefit/noderefit/osimage"
	"github.com/noderefit/noderefit/ostree"
	"github.com/noderefit/noderefit/systemd"
)

// Driver composes the OS of a host that bootc manages: whole images, no packages. Plain makes the deployments.
//
// bootc switch always stages what it has pulled, and can't lock it. A shutdown before the lock would boot the new OS
// without its configuration. So nothing is staged on the host itself. ostree notes the staged deployment in
// /run/ostree. The bootc that Driver runs has a mount namespace with another directory there. bootc sees the host
// otherwise unchanged, and stages into that directory. The shutdown, and every other program, finds nothing staged. The
// results are the commit, which a ref holds, and the text of the origin file.
type Driver struct {
	// Progress, if set before the first call, gets the messages of a switch: one line of text at a time, from another
	// goroutine.
	Progress func(text string)

	run   ostree.Runner
	tools *ostree.Tools
	root  string
	plain *ostree.Plain
	// delays are the pauses between attempts that fail because of the network. One more attempt follows the last pause.
	delays []time.Duration
	// lockWait is how long another program may hold the lock of the sysroot before Driver gives up without starting bootc.
	lockWait time.Duration
}

// New returns a Driver for the host that plain is for. run asks bootc. tools run a switch, which outlives this process.
func New(run ostree.Runner, tools *ostree.Tools, plain *ostree.Plain) *Driver {
	return &Driver{run: run, tools: tools, root: tools.Root, plain: plain,
		delays: plain.PullDelays, lockWait: 10 * time.Minute}
}

const (
	// switchUnit is the unit that a switch runs in.
	switchUnit = "noderefit-bootc"
	// ostreeState is the directory where ostree notes what lasts until the next boot.
	ostreeState = "/run/ostree"
	// stateDir is the directory in its place while bootc runs.
	stateDir = "/run/" + switchUnit
	// rebootRequired is the file that bootc writes for programs that reboot machines.
	rebootRequired = "/run/reboot-required"
)

func (b *Driver) host(path string) string { return filepath.Join(b.root, path) }

// Current returns the booted system. An image from a registry has the digest that it was pulled with, even if the host
// was given a tag only. One fork.
func (b *Driver) Current(ctx context.Context) (osimage.System, error) {
	const doing = "reading what is booted"
	host, err := b.status(ctx, b.run)
	if err != nil {
		return osimage.System{}, err
	}
	booted, err := host.bootedOSTree()
	if err != nil {
		return osimage.System{}, &ostree.Error{Class: ostree.NeedsAdmin, Doing: doing, Err: err}
	}
	if booted.Image != nil {
		image, err := booted.Image.reference()
		if err != nil {
			return osimage.System{}, &ostree.Error{Class: ostree.Failed, Doing: doing, Err: err}
		}
		return osimage.System{Image: image.String()}, nil
	}
	// bootc reports nothing about a deployment that it did not make.
	origin, err := b.plain.KeyFile(booted.OSTree.dir() + ".origin")
	if err != nil {
		return osimage.System{}, fmt.Errorf("%s: %w", doing, err)
	}
	list := func(group, key string) []string {
		return strings.FieldsFunc(origin[group][key], func(r rune) bool { return r == ';' })
	}
	return osimage.System{
		Image: cmp.Or(origin["origin"]["container-image-reference"], origin["origin"]["refspec"],
			origin["origin"]["baserefspec"]),
		Packages: list("packages", "requested"),
		Removed:  list("overrides", "remove"),
	}, nil
}

// Compose has bootc fetch the image of s. A deployment that another program has staged is removed, as with any bootc
// switch. Compose waits for a run of an earlier process, or ends that run if it is for another image. A dozen forks.
//
// If the host runs the very same reference, word by word, it is not looked up again. The booted system is the result
// then.
func (b *Driver) Compose(ctx context.Context, s osimage.System) (osimage.Composed, error) {
	doing := "composing " + cmp.Or(s.Image, "what is booted")
	refuse := func(class ostree.Class, err error) (osimage.Composed, error) {
		return osimage.Composed{}, &ostree.Error{Class: class, Doing: doing, Err: err}
	}
	if len(s.Packages)+len(s.Removed) > 0 {
		return refuse(ostree.Invalid, fmt.Errorf("bootc can neither layer packages nor leave them out (%s): "+
			"use an image that was built so", strings.Join(slices.Concat(s.Packages, s.Removed), ", ")))
	}
	var want osimage.Image
	argv := []string{"bootc", "switch"}
	if s.Image != "" {
		var err error
		if want, err = osimage.Admitted(b.root, s.Image); err != nil {
			return osimage.Composed{}, err
		}
		transport, target, enforce, err := want.Bootc()
		if err != nil {
			return osimage.Composed{}, err
		}
		argv = append(argv, "--transport", transport)
		if enforce {
			argv = append(argv, "--enforce-container-sigpolicy")
		}
		// Without --retain bootc deletes the ref that the booted deployment came from.
		argv = append(argv, "--retain", target)
	}
	if err := b.settle(ctx, argv); err != nil {
		return osimage.Composed{}, osimage.Failing(doing, nil, err)
	}
	host, err := b.status(ctx, b.run)
	if err != nil {
		return osimage.Composed{}, fmt.Errorf("%s: %w", doing, err)
	}
	booted, err := host.bootedOSTree()
	if err != nil {
		return refuse(ostree.NeedsAdmin, err)
	}
	if booted.Incompatible {
		return refuse(ostree.NeedsAdmin, errors.New("the booted deployment contains local rpm-ostree modifications, "+
			"on which bootc does not work; `rpm-ostree reset` undoes them"))
	}
	entry, transactions := booted, 0
	if s.Image != "" && !booted.runs(want) {
		staged, err := b.fetch(ctx, doing, argv)
		if err != nil {
			read := func(path string) ([]byte, error) { return os.ReadFile(b.host(path)) }
			return osimage.Composed{}, osimage.WithHint(err, want, read)
		}
		if staged != nil {
			entry = staged
		}
		transactions = 1
	}
	if err := entry.differs(want, booted.OSTree.Stateroot); s.Image != "" && err != nil {
		return refuse(ostree.Failed, err)
	}
	return b.hold(ctx, doing, entry, transactions)
}

// settle waits for a command in the Driver's unit that equals argv, and ends any other command there.
func (b *Driver) settle(ctx context.Context, argv []string) error {
	running, err := b.tools.Running(ctx, switchUnit)
	if err != nil || running == "" {
		return err
	}
	if running == strings.Join(argv, " ") {
		return b.tools.Wait(ctx, switchUnit)
	}
	return b.tools.Stop(ctx, switchUnit)
}

// fetch runs bootc switch and returns the entry that it has staged in stateDir. fetch returns nil if bootc had
// nothing to do.
func (b *Driver) fetch(ctx context.Context, doing string, argv []string) (*bootEntry, error) {
	if err := b.awaitLock(ctx); err != nil {
		return nil, &ostree.Error{Class: ostree.Retryable, Doing: doing, Err: err}
	}
	if err := b.dropStaged(ctx); err != nil {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	var staged *bootEntry
	err := ostree.Retry(ctx, b.delays, b.Progress, func() (err error) {
		staged, err = b.attempt(ctx, doing, argv)
		return err
	})
	if err != nil && ctx.Err() == nil {
		if tidyErr := b.tidy(ctx); tidyErr != nil {
			err = fmt.Errorf("%w; then %w", err, tidyErr)
		}
	}
	return staged, err
}

func (b *Driver) attempt(ctx context.Context, doing string, argv []string) (*bootEntry, error) {
	before, err := os.ReadFile(b.host(rebootRequired))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, wrapFailed(doing, err)
	}
	inside, err := b.inside(argv)
	if err != nil {
		return nil, wrapFailed(doing, err)
	}
	stop := b.tools.Follow(ctx, switchUnit, b.Progress)
	output, err := inside(ctx, argv...)
	stop()
	if err != nil {
		return nil, osimage.Failing(doing, output, err)
	}
	if bytes.Contains(output, []byte("Image specification is unchanged.")) {
		return nil, nil
	}
	if err := b.takeBackReboot(before); err != nil {
		return nil, wrapFailed(doing, err)
	}
	host, err := b.status(ctx, inside)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	if host.Status.Staged == nil || host.Status.Staged.OSTree == nil {
		return nil, wrapFailed(doing, errors.New("bootc has staged nothing"))
	}
	return host.Status.Staged, nil
}

// tidy removes what a switch has left besides the commit: its state, and the deployment without a boot entry.
func (b *Driver) tidy(ctx context.Context) error {
	if err := os.RemoveAll(b.host(stateDir)); err != nil {
		return wrapFailed("removing what a switch has left", err)
	}
	return b.plain.Cleanup(ctx)
}

// statePattern matches the names in /run/ostree that bootc gets to see. ostree uses plain names there.
var statePattern = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*$`)

// inside returns a Runner for commands with a fresh state directory of their own, in which nothing is staged. The
// directory has everything else of the real one, such as the credentials for registries. argv is the unit's
// description, so that settle can tell its purpose.
func (b *Driver) inside(argv []string) (ostree.Runner, error) {
	state := b.host(stateDir)
	if err := errors.Join(os.RemoveAll(state), os.Mkdir(state, 0o755)); err != nil {
		return nil, err
	}
	like := systemd.Command{Description: strings.Join(argv, " "), EnvironmentFiles: []string{osimage.ProxyFile},
		Binds: []systemd.Bind{{Source: stateDir, At: ostreeState}}}
	entries, err := os.ReadDir(b.host(ostreeState))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, entry := range entries {
		if name := entry.Name(); statePattern.MatchString(name) && !strings.HasPrefix(name, "staged-") {
			like.Binds = append(like.Binds, systemd.Bind{Source: ostreeState + "/" + name, At: ostreeState + "/" + name})
		}
	}
	return b.tools.In(switchUnit, like), nil
}

// status asks bootc, run by run, about the host. One fork.
func (b *Driver) status(ctx context.Context, run ostree.Runner) (*hostStatus, error) {
	const doing = "asking bootc for its status"
	output, err := run(ctx, "bootc", "status", "--json")
	if err != nil {
		return nil, osimage.Failing(doing, output, err)
	}
	host, err := parseStatus(output)
	if err != nil {
		return nil, &ostree.Error{Class: ostree.Failed, Doing: doing, Err: err}
	}
	return host, nil
}

// dropStaged removes a deployment that another program has staged. In bootc's view of the host that deployment is not
// staged, so bootc would remove its files.
func (b *Driver) dropStaged(ctx context.Context) error {
	if _, err := os.Stat(b.host(ostreeState + "/staged-deployment")); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	deployments, err := b.plain.Status(ctx)
	if err != nil {
		return err
	}
	for _, d := range deployments {
		if d.Staged {
			return b.plain.Discard(ctx, d.ID)
		}
	}
	return nil
}

// takeBackReboot removes bootc's request for a reboot, which would now reach nothing, and restores the text from
// before. The same text was there before only if a process of the agent ended between a switch and takeBackReboot.
func (b *Driver) takeBackReboot(before []byte) error {
	path := b.host(rebootRequired)
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) || err == nil && !bytes.HasPrefix(text, []byte("bootc: ")):
		return nil
	case err != nil:
		return err
	case before == nil || bytes.Equal(before, text):
		return os.Remove(path)
	}
	return os.WriteFile(path, before, 0o644)
}

// hold makes the commit of an entry stay, and removes everything else that the switch has left.
func (b *Driver) hold(ctx context.Context, doing string, entry *bootEntry,
	transactions int) (osimage.Composed, error) {
	checksum := entry.OSTree.Checksum
	// Another program may have cleaned up as soon as bootc released the lock of the sysroot.
	text, err := os.ReadFile(b.host(entry.OSTree.dir() + ".origin"))
	if err != nil {
		return osimage.Composed{}, &ostree.Error{Class: ostree.Retryable, Doing: doing, Err: err}
	}
	if output, err := b.run(ctx, "ostree", "refs", "--force", "--create="+ostree.ComposedRef, checksum); err != nil {
		return osimage.Composed{}, osimage.Failing(doing, output, err)
	}
	if transactions > 0 {
		if err := b.tidy(ctx); err != nil {
			return osimage.Composed{}, fmt.Errorf("%s: %w", doing, err)
		}
	}
	base := checksum
	if entry.Image != nil {
		base = entry.Image.Digest
	}
	// The last part of an origin concerns that deployment alone, such as its pin.
	origin, _, _ := strings.Cut(string(text), "[libostree-transient]")
	return osimage.Composed{Checksum: checksum, Origin: origin, Base: base, Transactions: transactions}, nil
}

// Present reports whether the result of Compose for s is still held as a whole, and is s. One fork if s is booted, else
// none.
func (b *Driver) Present(ctx context.Context, s osimage.System, c osimage.Composed) (bool, error) {
	doing := "looking for the composed " + cmp.Or(s.Image, c.Checksum)
	if len(s.Packages)+len(s.Removed) > 0 || !ostree.ChecksumPattern.MatchString(c.Checksum) {
		return false, nil
	}
	held, err := b.held()
	if err != nil || held != c.Checksum {
		return false, wrapFailed(doing, err)
	}
	whole, err := b.plain.Complete(c.Checksum)
	if err != nil || !whole {
		return false, wrapFailed(doing, err)
	}
	if s.Image == "" {
		deployments, err := b.plain.Status(ctx)
		isIt := func(d ostree.Deployment) bool { return d.Booted && d.Checksum == c.Checksum }
		return slices.ContainsFunc(deployments, isIt), err
	}
	want, err := osimage.ParseImage(s.Image)
	if err != nil {
		return false, err
	}
	have, err := osimage.ParseImage(originImage(c.Origin))
	return err == nil && want.SatisfiedBy(have, c.Base), nil
}

// originImage returns the image that an origin file names, or "" if it names none.
func originImage(origin string) string {
	for line := range strings.Lines(origin) {
		if image, ok := strings.CutPrefix(line, "container-image-reference="); ok {
			return strings.TrimSpace(image)
		}
	}
	return ""
}

// held returns the commit that ComposedRef holds, or "" if the ref does not exist.
func (b *Driver) held() (string, error) {
	text, err := os.ReadFile(b.host("/ostree/repo/refs/heads/" + ostree.ComposedRef))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return strings.TrimSpace(string(text)), err
}

// Drop releases what Compose holds, ends a Compose that still runs, and removes what an interrupted one has left.
// Objects of a deployment stay. Two forks if nothing is to be dropped.
func (b *Driver) Drop(ctx context.Context) error {
	const doing = "dropping what was composed"
	if err := b.settle(ctx, nil); err != nil {
		return osimage.Failing(doing, nil, err)
	}
	held, err := b.held()
	if err != nil {
		return wrapFailed(doing, err)
	}
	left, err := b.left(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	if held == "" && !left {
		return nil
	}
	if output, err := b.run(ctx, "ostree", "refs", "--delete", ostree.ComposedRef); err != nil {
		return osimage.Failing(doing, output, err)
	}
	// The command is not a stable part of bootc's interface. Without it the layers stay until bootc fetches the next
	// image.
	if _, err := b.run(ctx, "bootc", "internals", "cleanup"); err != nil && ctx.Err() != nil {
		return osimage.Failing(doing, nil, err)
	}
	return b.tidy(ctx)
}

// left reports whether an interrupted switch has left something: its state, or after a boot the directory of a
// deployment that ostree does not know.
func (b *Driver) left(ctx context.Context) (bool, error) {
	if _, err := os.Stat(b.host(stateDir)); !errors.Is(err, fs.ErrNotExist) {
		return err == nil, err
	}
	deployments, err := b.plain.Status(ctx)
	if err != nil {
		return false, err
	}
	origins, err := filepath.Glob(b.host("/ostree/deploy/*/deploy/*.origin"))
	return len(origins) > len(deployments), err
}

func wrapFailed(doing string, err error) error {
	if err == nil {
		return nil
	}
	return &ostree.Error{Class: ostree.Failed, Doing: doing, Err: err}
}

// lockPoll is how often the lock of the sysroot is looked at.
const lockPoll = 500 * time.Millisecond

// awaitLock waits until no process has the lock of the sysroot. bootc would wait too, but without a limit.
func (b *Driver) awaitLock(ctx context.Context) error {
	for deadline := time.Now().Add(b.lockWait); ; {
		held, err := sysrootLocked(b.host("/ostree/lock"))
		if err != nil || !held {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("another program has held the lock of the sysroot for %s", b.lockWait)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("another program holds the lock of the sysroot: %w", context.Cause(ctx))
		case <-time.After(lockPoll):
		}
	}
}

// sysrootLocked reports whether a process holds the lock on a file, as ostree takes it.
func sysrootLocked(path string) (bool, error) {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer file.Close()
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(file.Fd(), unix.F_OFD_GETLK, &lock); err != nil {
		return false, fmt.Errorf("looking at the lock %s: %w", path, err)
	}
	return lock.Type != unix.F_UNLCK, nil
}

// KernelArguments returns the arguments that the composed image has and the booted one lacks, and those that only the
// booted image has. bootc itself would have changed the command line so at the switch. Materialise makes the change.
// First every argument that equals one of removed is dropped, then added follow, then the configuration's own
// arguments. An image without a kargs.d changes nothing. One fork for each file of the image, and one or two more.
func (b *Driver) KernelArguments(ctx context.Context, c osimage.Composed) (added, removed []string, err error) {
	doing := "reading the kernel arguments of " + c.Checksum
	deployments, err := b.plain.Status(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", doing, err)
	}
	at := slices.IndexFunc(deployments, func(d ostree.Deployment) bool { return d.Booted })
	if at < 0 {
		return nil, nil, &ostree.Error{Class: ostree.Failed, Doing: doing,
			Err: errors.New("none of the deployments is booted")}
	}
	booted := deployments[at]
	if booted.Checksum == c.Checksum {
		return nil, nil, nil
	}
	paths, err := filepath.Glob(b.host(booted.Dir + argumentsDir + "/*.toml"))
	if err != nil {
		return nil, nil, wrapFailed(doing, err)
	}
	var before, after []string
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err == nil {
			before, err = appendArguments(before, text, b.plain.Arch)
		}
		if err != nil {
			return nil, nil, wrapFailed(doing, fmt.Errorf("reading %s: %w", path, err))
		}
	}
	output, err := b.run(ctx, "ostree", "ls", "--nul-filenames-only", c.Checksum, argumentsDir)
	command, ok := errors.AsType[*ostree.CommandError](err)
	if ok && strings.Contains(command.Stderr, "No such file or directory") {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, ostree.Failing(doing, output, err)
	}
	for path := range strings.SplitSeq(string(output), "\x00") {
		if filepath.Ext(path) != ".toml" {
			continue
		}
		text, err := b.run(ctx, "ostree", "cat", c.Checksum, path)
		if err != nil {
			return nil, nil, ostree.Failing(doing, text, err)
		}
		if after, err = appendArguments(after, text, b.plain.Arch); err != nil {
			return nil, nil, &ostree.Error{Class: ostree.Invalid, Doing: doing, Err: fmt.Errorf("reading %s: %w", path, err)}
		}
	}
	lacks := func(list []string) func(string) bool {
		return func(argument string) bool { return slices.Contains(list, argument) }
	}
	return slices.DeleteFunc(slices.Clone(after), lacks(before)), slices.DeleteFunc(before, lacks(after)), nil
}
