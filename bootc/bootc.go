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
// results are the commit, which refs hold, and the text of the origin file.
//
// Newer versions can lock (--download-only). Driver does not need that: what counts is the commit.
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
	// silent means that this host's bootc or systemd can't pass on the progress of a switch.
	silent bool
}

// New returns a Driver for the host that plain is for. tools run a switch, which outlives this process. run runs what
// takes less.
func New(run ostree.Runner, tools *ostree.Tools, plain *ostree.Plain) *Driver {
	return &Driver{run: plain.Bounded(run, ostree.UsualLimits), tools: tools, root: tools.Root, plain: plain,
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
	booted, err := b.booted(ctx, doing)
	if err != nil {
		return osimage.System{}, err
	}
	system, err := booted.system()
	return system, wrapFailed(doing, err)
}

// Compose has bootc fetch the image of s. A deployment that another program has staged is removed, as with any bootc
// switch. Compose waits for a run of an earlier process, or ends that run if it is for another image. A dozen forks.
//
// If the host runs the very same reference, word by word, it is not looked up again. The booted system is the result
// then, unless it has lost a layer.
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
	var argv []string
	if s.Image != "" {
		var err error
		if want, err = osimage.Admitted(b.root, s.Image); err != nil {
			return osimage.Composed{}, err
		}
		if argv, err = switchTo(want); err != nil {
			return osimage.Composed{}, err
		}
	}
	if err := b.settle(ctx, argv); err != nil {
		return osimage.Composed{}, osimage.Failing(doing, nil, err)
	}
	booted, err := b.booted(ctx, doing)
	if err != nil {
		return osimage.Composed{}, err
	}
	if booted.incompatible() {
		return refuse(ostree.NeedsAdmin, errors.New("the booted deployment contains local rpm-ostree modifications, "+
			"on which bootc does not work; `rpm-ostree reset` undoes them"))
	}
	if s.Image == "" {
		return b.hold(ctx, doing, booted, 0)
	}
	for again := false; ; again = true {
		c, err := b.composeImage(ctx, doing, argv, want, booted)
		// bootc has pulled more than the commit, and another program's clean-up may have been quicker than hold.
		if lost, is := errors.AsType[*lostError](err); !is || again {
			return c, err
		} else if b.Progress != nil {
			b.Progress("trying again: " + lost.Error())
		}
	}
}

// lostError is the error of a composed commit without which bootc cannot do any more.
type lostError struct{ what string }

func (e *lostError) Error() string { return e.what + " is gone; a clean-up of bootc has removed it" }

// composeImage brings an image to the disk, if the booted deployment is not of it, and holds it.
func (b *Driver) composeImage(ctx context.Context, doing string, argv []string, want osimage.Image,
	booted *entry) (osimage.Composed, error) {
	gone, err := b.lostLayer(booted.Checksum)
	if err != nil {
		return osimage.Composed{}, wrapFailed(doing, err)
	}
	if gone == "" && booted.runs(want) {
		return b.hold(ctx, doing, booted, 0)
	}
	if gone != "" {
		if err := b.restore(ctx, doing, booted); err != nil {
			return osimage.Composed{}, err
		}
	}
	e, err := b.fetch(ctx, doing, argv)
	if err != nil {
		read := func(path string) ([]byte, error) { return os.ReadFile(b.host(path)) }
		return osimage.Composed{}, osimage.WithHint(err, want, read)
	}
	if e == nil {
		e = booted
	}
	if err := e.differs(want, booted.OS); err != nil {
		return osimage.Composed{}, wrapFailed(doing, err)
	}
	c, err := b.hold(ctx, doing, e, 1)
	if err != nil {
		return c, err
	}
	lost, err := b.lost(ctx, c.Checksum)
	if err != nil {
		return c, fmt.Errorf("%s: %w", doing, err)
	}
	if lost != nil {
		return c, &ostree.Error{Class: ostree.Retryable, Doing: doing, Err: lost}
	}
	return c, nil
}

// restore has bootc fetch the image of the booted deployment again, which has lost its first layer. It does so for the
// people who use bootc on this host: it works again then. If the origin names no image, or the image can't be had any
// more, the update does not need it. The error is that of the context alone.
func (b *Driver) restore(ctx context.Context, doing string, booted *entry) error {
	if booted.image() == "" {
		return nil // the origin names no image, so bootc reports none
	}
	image, err := booted.reference()
	var argv []string
	if err == nil {
		argv, err = switchTo(image)
	}
	if err == nil {
		_, err = b.fetch(ctx, doing, argv)
	}
	if err != nil && ctx.Err() == nil && b.Progress != nil {
		b.Progress("the layers of " + booted.image() + ", which runs, are gone: " + err.Error())
	}
	return ctx.Err()
}

// switchTo returns the command that has bootc fetch an image.
func switchTo(image osimage.Image) ([]string, error) {
	transport, target, enforce, err := image.Bootc()
	if err != nil {
		return nil, err
	}
	argv := []string{"bootc", "switch", "--transport", transport}
	if enforce {
		argv = append(argv, "--enforce-container-sigpolicy")
	}
	// Without --retain bootc deletes the ref that the booted deployment came from.
	return append(argv, "--retain", target), nil
}

// lost returns what bootc would need of a commit and does not have any more: its first layer, or an image that it is
// bound to. lost returns nil if all is there. One fork if the commit is bound to none.
func (b *Driver) lost(ctx context.Context, checksum string) (*lostError, error) {
	ref, err := b.lostLayer(checksum)
	if err != nil {
		return nil, wrapFailed("looking for the layers of "+checksum, err)
	}
	if ref != "" {
		return &lostError{"the layer " + ref}, nil
	}
	image, err := b.lostBound(ctx, checksum)
	if err != nil || image == "" {
		return nil, err
	}
	return &lostError{"the image " + image + ", which it is bound to,"}, nil
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
func (b *Driver) fetch(ctx context.Context, doing string, argv []string) (*entry, error) {
	if err := b.plain.AwaitLock(ctx, b.lockWait, b.Progress); err != nil {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	if err := b.dropStaged(ctx); err != nil {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	var staged *entry
	var gaveUp error // another attempt would wait as long again
	err := ostree.Retry(ctx, b.delays, b.Progress, func() (err error) {
		staged, gaveUp, err = b.attempt(ctx, doing, argv)
		return err
	})
	if err == nil {
		err = gaveUp
	}
	if err != nil && ctx.Err() == nil {
		if tidyErr := b.tidy(ctx); tidyErr != nil {
			err = fmt.Errorf("%w; then %w", err, tidyErr)
		}
	}
	return staged, err
}

// attempt runs bootc switch once. gaveUp is set if the switch was ended because of the lock of the sysroot.
func (b *Driver) attempt(ctx context.Context, doing string, argv []string) (staged *entry, gaveUp, err error) {
	before, err := os.ReadFile(b.host(rebootRequired))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, wrapFailed(doing, err)
	}
	like, err := b.inside(ctx, argv)
	if err != nil {
		return nil, nil, wrapFailed(doing, err)
	}
	stop := b.tools.Follow(ctx, switchUnit, b.Progress)
	waited := b.watchLock(ctx)
	output, err := b.runSwitch(ctx, like, argv)
	stop()
	if waited := waited(); waited != nil && err != nil {
		return nil, fmt.Errorf("%s: %w", doing, waited), nil
	}
	if err != nil {
		return nil, nil, b.failing(doing, output, err)
	}
	if bytes.Contains(output, []byte("Image specification is unchanged.")) {
		return nil, nil, nil
	}
	if err := b.takeBackReboot(before); err != nil {
		return nil, nil, wrapFailed(doing, err)
	}
	deployments, err := ostree.NewPlain(b.tools.In(switchUnit, like), b.root).Status(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", doing, err)
	}
	at := slices.IndexFunc(deployments, func(d ostree.Deployment) bool { return d.Staged })
	if at < 0 {
		return nil, nil, wrapFailed(doing, errors.New("bootc has staged nothing"))
	}
	staged, err = b.readEntry(deployments[at])
	if err != nil {
		// Another program may have cleaned up as soon as bootc released the lock of the sysroot.
		return nil, nil, &ostree.Error{Class: ostree.Retryable, Doing: doing, Err: err}
	}
	return staged, nil, nil
}

// lockWatch is how often a switch is looked at that may wait for the lock. While bootc has the lock, a look reads what
// files its own processes have open, and otherwise those of all processes.
const lockWatch = 10 * time.Second

// watchLock ends the switch if it waits for the lock of the sysroot for longer than lockWait, which bootc does without
// a word. Another program may have taken the lock since it was looked at. ended stops the watch, and returns why the
// watch has ended the switch, nil if it has not.
func (b *Driver) watchLock(ctx context.Context) (ended func() error) {
	ctx, cancel := context.WithCancel(ctx)
	result := make(chan error, 1)
	go func() {
		result <- b.untilLocked(ctx)
	}()
	return func() error {
		cancel()
		return <-result
	}
}

// untilLocked is watchLock until ctx ends.
func (b *Driver) untilLocked(ctx context.Context) error {
	tick := time.NewTicker(lockWatch)
	defer tick.Stop()
	for since := time.Now(); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		const unit = switchUnit + ".service"
		holder, err := b.plain.LockHolder(unit)
		waits := err == nil && holder != nil && holder.PID != 0 && holder.Unit != unit
		if !waits {
			since = time.Now()
			continue
		}
		if b.Progress != nil {
			b.Progress("waiting for the lock of the sysroot, which " + holder.String() + " holds")
		}
		if time.Since(since) >= b.lockWait {
			err := fmt.Errorf("bootc has waited for %s for the lock of the sysroot, which %s holds", b.lockWait, holder)
			return &ostree.Error{Class: ostree.Retryable, Doing: "waiting for bootc",
				Err: errors.Join(err, b.tools.Stop(ctx, switchUnit))}
		}
	}
}

// failing makes an Error of a switch that has failed.
func (b *Driver) failing(doing string, output []byte, err error) error {
	if command, ok := errors.AsType[*ostree.CommandError](err); ok {
		// bootc asks podman for every image, and podman says at length that it knows it not. bootc's own words come last.
		if _, own, found := strings.Cut("\n"+command.Stderr, "\nerror: "); found {
			err = &ostree.CommandError{Argv: command.Argv, Stderr: "error: " + own, Err: command.Err}
		}
		if !b.tools.Has("podman") {
			return &ostree.Error{Class: ostree.NeedsAdmin, Doing: doing,
				Err: fmt.Errorf("the host has no podman, which bootc runs in every switch; install it: %w", err)}
		}
	}
	return osimage.Failing(doing, output, err)
}

// tidy removes what a switch has left besides the commit: its state, and the deployment without a boot entry.
func (b *Driver) tidy(ctx context.Context) error {
	if err := errors.Join(os.RemoveAll(b.host(stateDir)), os.RemoveAll(b.host(originsDir))); err != nil {
		return wrapFailed("removing what a switch has left", err)
	}
	return b.plain.Cleanup(ctx)
}

// statePattern matches the names in /run/ostree that bootc gets to see. ostree uses plain names there.
var statePattern = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*$`)

// inside returns what commands are like that have a fresh state directory of their own, in which nothing is staged. The
// directory has everything else of the real one, such as the credentials for registries. argv is the unit's
// description, so that settle can tell its purpose.
func (b *Driver) inside(ctx context.Context, argv []string) (like systemd.Command, err error) {
	state := b.host(stateDir)
	if err := errors.Join(os.RemoveAll(state), os.Mkdir(state, 0o755)); err != nil {
		return like, err
	}
	masks, err := b.masks(ctx)
	if err != nil {
		return like, err
	}
	like = systemd.Command{Description: strings.Join(argv, " "), EnvironmentFiles: []string{osimage.ProxyFile},
		Binds: append([]systemd.Bind{{Source: stateDir, At: ostreeState}}, masks...), Limit: ostree.UsualLimits.Pull}
	entries, err := os.ReadDir(b.host(ostreeState))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return like, err
	}
	for _, entry := range entries {
		if name := entry.Name(); statePattern.MatchString(name) && !strings.HasPrefix(name, "staged-") {
			like.Binds = append(like.Binds, systemd.Bind{Source: ostreeState + "/" + name, At: ostreeState + "/" + name})
		}
	}
	return like, nil
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

// hold makes the commit of an entry and its layers stay, and removes everything else that the switch has left.
func (b *Driver) hold(ctx context.Context, doing string, e *entry, transactions int) (osimage.Composed, error) {
	for _, ref := range heldRefs {
		if output, err := b.run(ctx, "ostree", "refs", "--force", "--create="+ref, e.Checksum); err != nil {
			return osimage.Composed{}, osimage.Failing(doing, output, err)
		}
	}
	if transactions > 0 {
		if err := b.tidy(ctx); err != nil {
			return osimage.Composed{}, fmt.Errorf("%s: %w", doing, err)
		}
	}
	return osimage.Composed{Checksum: e.Checksum, Origin: e.origin, Base: cmp.Or(e.digest, e.Checksum),
		Transactions: transactions}, nil
}

// Present reports whether the result of Compose for s is still held as a whole, with all that bootc needs of it, and is
// s. One fork, and two for each container image that it is bound to.
func (b *Driver) Present(ctx context.Context, s osimage.System, c osimage.Composed) (bool, error) {
	doing := "looking for the composed " + cmp.Or(s.Image, c.Checksum)
	if len(s.Packages)+len(s.Removed) > 0 || !ostree.IsChecksum(c.Checksum) {
		return false, nil
	}
	for _, ref := range heldRefs {
		held, err := b.plain.RefCommit(ref)
		if err != nil || held != c.Checksum {
			return false, wrapFailed(doing, err)
		}
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
	if err != nil || !want.SatisfiedBy(have, c.Base) {
		return false, nil //nolint:nilerr // what has no image is not the wanted one
	}
	lost, err := b.lost(ctx, c.Checksum)
	if err != nil {
		return false, fmt.Errorf("%s: %w", doing, err)
	}
	return lost == nil, nil
}

// originImage returns the image that an origin file names, or "" if it names none.
func originImage(origin string) string {
	return ostree.ParseKeyFile(origin)["origin"]["container-image-reference"]
}

// Drop releases what Compose holds, ends a Compose that still runs, and removes what an interrupted one has left.
// Objects of a deployment stay. Two forks if nothing is to be dropped.
func (b *Driver) Drop(ctx context.Context) error {
	const doing = "dropping what was composed"
	if err := b.settle(ctx, nil); err != nil {
		return osimage.Failing(doing, nil, err)
	}
	held := false
	for _, ref := range heldRefs {
		commit, err := b.plain.RefCommit(ref)
		if err != nil {
			return wrapFailed(doing, err)
		}
		held = held || commit != ""
	}
	left, err := b.left(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	if !held && !left {
		return nil
	}
	if output, err := b.run(ctx, slices.Concat([]string{"ostree", "refs", "--delete"}, heldRefs)...); err != nil {
		return osimage.Failing(doing, output, err)
	}
	// The command is not a stable part of bootc's interface. Without it the layers stay until bootc fetches the next
	// image. So no other program is waited for.
	if holder, err := b.plain.LockHolder(""); err == nil && holder == nil {
		if _, err := b.run(ctx, "bootc", "internals", "cleanup"); err != nil && ctx.Err() != nil {
			return osimage.Failing(doing, nil, err)
		}
	}
	return b.tidy(ctx)
}

// left reports whether an interrupted switch has left something: its state, or after a boot the directory of a
// deployment that ostree does not know.
func (b *Driver) left(ctx context.Context) (bool, error) {
	for _, dir := range []string{stateDir, originsDir} {
		if _, err := os.Stat(b.host(dir)); !errors.Is(err, fs.ErrNotExist) {
			return err == nil, err
		}
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

// KernelArguments returns the arguments that the composed image has and the booted one lacks, and those that only the
// booted image has. bootc itself would have changed the command line so at the switch. Materialise makes the change.
// First every argument that equals one of removed is dropped, then added follow, then the configuration's own
// arguments. As to bootc, - and _ are one in a key: removed are spelled as the booted command line has them, and what
// is there is not added. An image without a kargs.d changes nothing. Two forks for each file of an image, and three to
// five more.
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
	after, has, err := b.argumentsOf(ctx, doing, c.Checksum, ostree.Invalid)
	if err != nil || !has {
		return nil, nil, err
	}
	before, _, err := b.argumentsOf(ctx, doing, booted.Checksum, ostree.Failed)
	if err != nil {
		return nil, nil, err
	}
	added, removed = change(before, after, booted.KernelArguments)
	return added, removed, nil
}
