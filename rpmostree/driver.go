// SPDX-License-Identifier: Apache-2.0

// Package rpmostree composes the OS of an rpm-ostree host: its image, packages and extensions.
package rpmostree

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/noderefit/noderefit/osimage"
	"github.com/noderefit/noderefit/ostree"
)

// Driver works the OS of an rpm-ostree host: the image, the packages that are layered on it, and those of it that are
// left out. It never sets kernel arguments, never reboots, and what it has rpm-ostree stage is locked: it cannot boot.
// A deployment that boots is Plain's to make, of the commit that Compose gives. Calls that change something are to be
// made one after the other.
type Driver struct {
	// Progress, if it is set before the first call, is told what a transaction says of itself, and who is waited for: a
	// line of text about once a second, from other goroutines too.
	Progress func(text string)

	run   ostree.Runner
	tools *ostree.Tools
	root  string
	plain *ostree.Plain
	// delays are the pauses between attempts that the network made fail; one attempt more than delays.
	delays []time.Duration
}

// New returns a Driver for the host that plain is for. run asks rpm-ostree; the transactions are among the tools, which
// outlive this process.
func New(run ostree.Runner, tools *ostree.Tools, plain *ostree.Plain) *Driver {
	return &Driver{run: run, tools: tools, root: tools.Root, plain: plain, delays: plain.PullDelays}
}

// busyPatience is for how long the transactions of others are waited for: they pull and compose as we do.
const busyPatience = 30 * time.Minute

// baseRef is our ref beside composedRef: the commit below its packages.
const baseRef = "noderefit/base"

// composingMark is there from the first transaction to Drop: what is staged and locked then is ours. It goes with the
// staged deployment when the machine goes down.
const composingMark = "/run/" + transactionUnit + ".composing"

// Current is what the booted deployment is. Image is as a configuration would name it. One fork.
func (r *Driver) Current(ctx context.Context) (osimage.System, error) {
	s, err := r.status(ctx, "reading what runs")
	if err != nil {
		return osimage.System{}, err
	}
	return s.booted().system(), nil
}

// Compose makes sure that the commit of want is in the host's repository, with a staged deployment of it that cannot
// boot if it is not the booted one's, and holds it by a ref until Drop. It takes minutes; what is there already costs
// no transaction. Where another transaction is at work it is waited for, and one of an earlier call that
// is still going on is waited for if it is on the way, else cancelled. What the network breaks is tried again for about
// half a minute. Without a digest or a checksum, an image of the same name as the booted one's is the booted one.
//
// After an error nothing of it is staged any more; but when ctx is done a transaction goes on by itself, for the next
// call to join, or for Drop to cancel. A registered update driver that is active is an error: rpm-ostree would let us
// bypass it, but then two would decide about the host.
func (r *Driver) Compose(ctx context.Context, want osimage.System) (osimage.Composed, error) {
	return r.ComposeFor(ctx, want, nil)
}

// ComposeFor is Compose of an image whose release may have other packages than the one that runs: want has what they
// would be if it is the same. As soon as the image is in the repository, which may be after a transaction, choose says
// what they are.
func (r *Driver) ComposeFor(ctx context.Context, want osimage.System, choose Choose) (osimage.Composed, error) {
	doing := "composing " + describe(want.Image, want.Packages, want.Removed)
	t, err := targetOf(want)
	if err != nil {
		return osimage.Composed{}, &ostree.Error{Class: ostree.Invalid, Doing: doing, Err: err}
	}
	if want.Image != "" {
		if t.image, err = osimage.Admitted(r.root, want.Image); err != nil {
			return osimage.Composed{}, err
		}
	}
	choice := &baseChoice{choose: choose}
	if want.Source != "" {
		if choice.source, err = osimage.ParseSource(want.Source); err != nil {
			return osimage.Composed{}, err
		}
		if _, err = osimage.Admitted(r.root, want.Source); err != nil {
			return osimage.Composed{}, osimage.OfExtensions(err)
		}
	}
	composed, err := r.compose(ctx, doing, t, choice)
	if ctx.Err() != nil {
		return composed, err
	}
	if err != nil {
		if clearErr := r.clear(ctx); clearErr != nil {
			err = fmt.Errorf("%w; then %w", err, clearErr)
		}
	}
	// What boots gets the /etc that there is by then.
	if withdrawErr := r.Withdraw(ctx); err == nil {
		err = withdrawErr
	}
	return composed, err
}

func (r *Driver) compose(ctx context.Context, doing string, t target, choice *baseChoice) (osimage.Composed, error) {
	if err := r.join(ctx, doing, &t, choice); err != nil {
		return osimage.Composed{}, err
	}
	s, err := r.settle(ctx, doing, &t)
	if err != nil {
		return osimage.Composed{}, err
	}
	done := progress{limit: -1}
	for {
		if other, err := r.fit(ctx, doing, &t, s, choice); err != nil {
			return osimage.Composed{}, err
		} else if other {
			done.limit, done.before = -1, 0
		}
		lock, err := ostree.StagedLocked(r.root)
		if err != nil {
			return osimage.Composed{}, &ostree.Error{Class: ostree.Failed, Doing: doing, Err: err}
		}
		steps, d, err := t.remaining(s, lock)
		if err != nil {
			return osimage.Composed{}, &ostree.Error{Class: ostree.NeedsAdmin, Doing: doing, Err: err}
		}
		if done.limit >= 0 && len(steps) > done.limit {
			return osimage.Composed{}, &ostree.Error{Class: ostree.Failed, Doing: doing,
				Err: fmt.Errorf("after %s %s", strings.Join(done.last, " "), t.complaint(s, lock))}
		}
		if done.last != nil && done.limit < 0 && len(steps) < done.before {
			done.transactions++ // it was done, although nobody could say so
		}
		if len(steps) == 0 {
			return r.keep(ctx, doing, t, d, s, done.transactions)
		}
		if done.last == nil {
			if err := r.begin(ctx, doing, t, s); err != nil {
				return osimage.Composed{}, err
			}
			if choice.source != (osimage.Image{}) {
				if err := r.offer(ctx, choice.source); err != nil {
					return osimage.Composed{}, err
				}
			}
		}
		done.last, done.before = steps[0], len(steps)
		if err := r.step(ctx, doing, &done); err != nil {
			if choice.pulled || ostree.ClassOf(err) != ostree.Invalid {
				return osimage.Composed{}, r.withHint(err, t.image)
			}
			// It may be the packages of the release that runs that the other one has not.
			choice.pulled = true
			if other, fitErr := r.fit(ctx, doing, &t, s, choice); fitErr != nil {
				return osimage.Composed{}, fitErr
			} else if !other {
				return osimage.Composed{}, err
			}
			done.limit, done.before = -1, 0
		}
		if s, err = r.settle(ctx, doing, &t); err != nil {
			return osimage.Composed{}, err
		}
	}
}

// progress is how far a Compose is.
type progress struct {
	transactions int
	last         []string // the step that was run last
	before       int      // how many there were to do when it was
	limit        int      // how many there may be now; -1 if nothing is known about the last one
	network      int      // attempts that the network made fail since the last success
	lost         int
	busySince    time.Time
}

// lostTries is how often in one Compose the daemon or the client may go away, an idle exit among them.
const lostTries = 5

// step runs done.last, and waits where it is worth another attempt. An error is final.
func (r *Driver) step(ctx context.Context, doing string, done *progress) error {
	err := r.transact(ctx, done.last...)
	if err == nil {
		done.transactions++
		done.limit, done.network, done.busySince = done.before-1, 0, time.Time{}
		return nil
	}
	if ctx.Err() != nil {
		return &ostree.Error{Class: ostree.Retryable, Doing: doing, Err: err}
	}
	trouble, err := failing(doing, err)
	pause := ostree.UnitPoll
	switch trouble {
	case refused:
		return err
	case network:
		if done.network == len(r.delays) {
			return err
		}
		pause = r.delays[done.network]
		done.network++
	case lost:
		if done.lost++; done.lost > lostTries {
			return err
		}
		done.limit = -1
	case busy:
		if done.busySince.IsZero() {
			done.busySince = time.Now()
		} else if time.Since(done.busySince) > busyPatience {
			return err
		}
		done.limit = -1
	}
	r.say("trying again: " + err.Error())
	if sleep(ctx, pause) != nil {
		return err
	}
	return nil
}

// begin does what has to be before the first transaction.
func (r *Driver) begin(ctx context.Context, doing string, t target, s hostStatus) error {
	if s.Driver != nil {
		active, err := r.active(ctx, s.Driver.Unit)
		if err != nil {
			return &ostree.Error{Class: ostree.Failed, Doing: doing, Err: err}
		}
		// rpm-ostree ignores one that isn't active, too.
		if active {
			return &ostree.Error{Class: ostree.NeedsAdmin, Doing: doing, Err: fmt.Errorf(
				"%s (%s) is registered as what updates this host; stop and disable it", s.Driver.Name, s.Driver.Unit)}
		}
	}
	// It is not in the way, but whoever looks at what becomes of this may want to know.
	if why, err := r.FailedFinalization(ctx); err != nil {
		return err
	} else if why != "" {
		r.say("at the last shutdown ostree could not make what was staged boot: " + why)
	}
	if t.image.Checksum != "" && !t.has(s.booted()) {
		if _, err := r.plain.Stage(ctx, t.image.Refspec()); err != nil {
			return fmt.Errorf("%s: %w", doing, err)
		}
	}
	if err := os.WriteFile(r.host(composingMark), nil, 0o600); err != nil {
		return &ostree.Error{Class: ostree.Failed, Doing: doing, Err: err}
	}
	return nil
}

// active reports whether a unit of the host is active.
func (r *Driver) active(ctx context.Context, unit string) (bool, error) {
	state, err := r.tools.Units.ActiveState(ctx, unit)
	return state == "active", err
}

// complaint says what is wrong with what is staged.
func (t target) complaint(s hostStatus, lock bool) string {
	first := s.first()
	switch {
	case first.Booted:
		return "nothing is staged"
	case first.Staged && !lock:
		return fmt.Sprintf("the staged deployment %s is not locked: it would boot after the next shutdown", first.id())
	case !sameOthers(first, s.booted()):
		return fmt.Sprintf("%s has other local packages, replacements or initramfs settings than what runs", first.id())
	}
	return fmt.Sprintf("what is staged (%s) is not what was asked for: %s", first.id(), t.difference(first))
}

// keep holds the commit of the deployment d by our refs and says what it is.
func (r *Driver) keep(ctx context.Context, doing string, t target, d deployment, s hostStatus,
	transactions int) (osimage.Composed, error) {
	// What runs may have been of that name before the ref moved, or before rpm-ostree deleted it as it left the name.
	if t.image.Ref != "" && transactions > 0 && !t.has(s.booted()) {
		output, err := r.run(ctx, "ostree", "rev-parse", t.image.Refspec())
		if err != nil {
			return osimage.Composed{}, ostree.Failing(doing, output, err)
		}
		if commit := strings.TrimSpace(string(output)); commit != d.base() {
			return osimage.Composed{}, &ostree.Error{Class: ostree.Failed, Doing: doing, Err: fmt.Errorf(
				"%s is commit %s, and what rpm-ostree has staged is based on %s", t.image, commit, d.base())}
		}
	}
	origin, err := r.origin(d)
	if err != nil {
		return osimage.Composed{}, &ostree.Error{Class: ostree.Failed, Doing: doing, Err: err}
	}
	if err := r.hold(ctx, ostree.ComposedRef, d.Checksum); err != nil {
		return osimage.Composed{}, err
	}
	if err := r.hold(ctx, baseRef, d.base()); err != nil {
		return osimage.Composed{}, err
	}
	composed := osimage.Composed{Checksum: d.Checksum, Origin: origin, Base: d.base(), Transactions: transactions}
	if d.Container != "" {
		composed.Base = d.Digest
	}
	return composed, nil
}

// origin is the text of the origin file of d, without what is of that deployment alone, such as its pin.
func (r *Driver) origin(d deployment) (string, error) {
	return r.plain.Origin(fmt.Sprintf("/ostree/deploy/%s/deploy/%s.%d", d.OS, d.Checksum, d.Serial))
}

// hold makes one of our refs name a commit. One fork if it doesn't.
func (r *Driver) hold(ctx context.Context, ref, checksum string) error {
	now, err := r.held(ref)
	if err != nil || now == checksum {
		return err
	}
	output, err := r.run(ctx, "ostree", "refs", "--force", "--create="+ref, checksum)
	return ostree.Failing("holding the commit "+checksum, output, err)
}

// held is the commit that one of our refs names, "" if there is none.
func (r *Driver) held(ref string) (string, error) {
	text, err := os.ReadFile(r.host("/ostree/repo/refs/heads/" + ref))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", &ostree.Error{Class: ostree.Failed, Doing: "reading the ref " + ref, Err: err}
	}
	return strings.TrimSpace(string(text)), nil
}

// Present says whether the commit that Compose gave is still there whole, and held by our ref. No fork.
func (r *Driver) Present(_ context.Context, _ osimage.System, c osimage.Composed) (bool, error) {
	if !ostree.ChecksumPattern.MatchString(c.Checksum) {
		return false, nil
	}
	there, err := r.plain.Complete(c.Checksum)
	if err != nil {
		return false, &ostree.Error{Class: ostree.Failed, Doing: "looking for the composed commit " + c.Checksum, Err: err}
	}
	if !there {
		return false, nil
	}
	now, err := r.held(ostree.ComposedRef)
	return err == nil && now == c.Checksum, err
}

// Drop cancels a transaction of ours that is going on, removes what is staged of ours, and lets go of the commits that
// our refs hold; what of them no deployment needs goes from the disk. Deployments that have been materialised stay. One
// fork where there is nothing to do.
func (r *Driver) Drop(ctx context.Context) error {
	const doing = "dropping what was composed"
	failed := func(err error) error { return &ostree.Error{Class: ostree.Failed, Doing: doing, Err: err} }
	if words, err := r.running(ctx); err != nil {
		return failed(err)
	} else if words != "" {
		if err := r.interrupt(ctx); err != nil {
			return failed(err)
		}
	}
	if err := r.Withdraw(ctx); err != nil {
		return err
	}
	composed, err := r.held(ostree.ComposedRef)
	if err != nil {
		return err
	}
	for _, ref := range []string{ostree.ComposedRef, baseRef} {
		if now, err := r.held(ref); err != nil {
			return err
		} else if now == "" {
			continue
		}
		if output, err := r.run(ctx, "ostree", "refs", "--delete", ref); err != nil {
			return ostree.Failing(doing, output, err)
		}
	}
	_, err = os.Stat(r.host(composingMark))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return failed(err)
	}
	composing := err == nil
	if composing {
		// The daemon may go on where the client is dead.
		if _, err := r.settle(ctx, doing, nil); err != nil {
			return err
		}
		if err := r.unstage(ctx, doing); err != nil {
			return err
		}
	}
	if composing || composed != "" {
		if used, err := r.deployed(ctx, doing, composed); err != nil {
			return err
		} else if !used {
			// Only now rpm-ostree lets go of its part: the image, the base, packages, checkouts that were given up.
			if err := r.transact(ctx, cleanupBase...); err != nil {
				_, err = failing(doing, err)
				return err
			}
		}
	}
	if err := os.Remove(r.host(composingMark)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return failed(err)
	}
	return nil
}

// deployed says whether there is a deployment of a commit. One fork.
func (r *Driver) deployed(ctx context.Context, doing, checksum string) (bool, error) {
	deployments, err := r.plain.Status(ctx)
	if err != nil {
		return false, fmt.Errorf("%s: %w", doing, err)
	}
	return slices.ContainsFunc(deployments, func(d ostree.Deployment) bool { return d.Checksum == checksum }), nil
}

// unstage removes the staged deployment if it is locked. It alone: cleanup -p would take one with it that has been made
// the default and not booted yet.
func (r *Driver) unstage(ctx context.Context, doing string) error {
	lock, err := ostree.StagedLocked(r.root)
	if err != nil {
		return &ostree.Error{Class: ostree.Failed, Doing: doing, Err: err}
	}
	if !lock {
		return r.dropStrayLock(doing)
	}
	deployments, err := r.plain.Status(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	staged := slices.IndexFunc(deployments, func(d ostree.Deployment) bool { return d.Staged })
	if staged < 0 {
		return nil
	}
	if err := r.plain.Discard(ctx, deployments[staged].ID); err != nil {
		return err
	}
	// ostree leaves the lock of old; whoever stages next would remove it.
	if err := os.Remove(r.host(ostree.StagedLock)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return &ostree.Error{Class: ostree.Failed, Doing: doing, Err: err}
	}
	return nil
}

// dropStrayLock removes the lock of old where nothing is staged: a transaction that ends while it stages may leave it.
func (r *Driver) dropStrayLock(doing string) error {
	_, err := os.Stat(r.host(ostree.StagedState))
	if errors.Is(err, fs.ErrNotExist) {
		err = os.Remove(r.host(ostree.StagedLock))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return &ostree.Error{Class: ostree.Failed, Doing: doing, Err: err}
	}
	return nil
}

// clear removes what a failed Compose has staged. It may not be locked, and that is why it has failed.
func (r *Driver) clear(ctx context.Context) error {
	const doing = "removing what was staged"
	if _, err := os.Stat(r.host(composingMark)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	s, err := r.settle(ctx, doing, nil)
	if err != nil {
		return err
	}
	if s.first().Staged {
		if err := r.transact(ctx, cleanupPending...); err != nil {
			_, err = failing(doing, err)
			return err
		}
	}
	if err := os.Remove(r.host(composingMark)); err != nil {
		return &ostree.Error{Class: ostree.Failed, Doing: doing, Err: err}
	}
	return nil
}

// join ends what an earlier call of Compose has left going on: by waiting, if it is a step to t, else by cancelling it.
func (r *Driver) join(ctx context.Context, doing string, t *target, c *baseChoice) error {
	words, err := r.running(ctx)
	if err != nil {
		return &ostree.Error{Class: ostree.Failed, Doing: doing, Err: err}
	}
	if words == "" {
		return nil
	}
	s, err := r.status(ctx, doing)
	if err != nil {
		return err
	}
	leads := t.leads(s, words)
	if _, err := r.fit(ctx, doing, t, s, c); err != nil {
		return err
	}
	return r.end(ctx, doing, words, leads || t.leads(s, words))
}

// end returns when the transaction that an earlier call has begun is over: one that leads on is waited for, any other
// cancelled.
func (r *Driver) end(ctx context.Context, doing, words string, leads bool) error {
	var err error
	if leads {
		r.say("waiting for what an earlier attempt has begun: " + words)
		err = r.tools.Wait(ctx, transactionUnit)
	} else {
		r.say("cancelling what an earlier attempt has begun: " + words)
		err = r.interrupt(ctx)
	}
	if err != nil {
		return &ostree.Error{Class: ostree.Retryable, Doing: doing, Err: err}
	}
	return nil
}

// settle is the status when no transaction is active. It waits for those of others as long as it has patience, and
// until rpm-ostree has seen what ostree has done without it, which its daemon hears of a little later. One that a
// client of ours has left when it died is waited for if it is a step to t, and cancelled if not, or if t is nil. Two
// forks.
func (r *Driver) settle(ctx context.Context, doing string, t *target) (hostStatus, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var changes <-chan struct{}
	said, stale := "", 0
	for begun := time.Now(); ; {
		s, err := r.status(ctx, doing)
		if err != nil {
			return s, err
		}
		var waitFor error
		pause := ostree.UnitPoll
		if len(s.Transaction) > 0 {
			waitFor = fmt.Errorf("rpm-ostree is at work for another program: %s", s.who())
			if said == "" {
				if err := r.cancelOrphan(ctx, s, t); err != nil {
					return s, &ostree.Error{Class: ostree.Retryable, Doing: doing, Err: err}
				}
			}
			if changes == nil && said == "" {
				// Where there is no bus the polls are enough.
				changes, _ = r.Watch(ctx)
			} else if changes != nil {
				pause = watchedPoll
			}
		} else {
			deployments, err := r.plain.Status(ctx)
			if err != nil {
				return s, fmt.Errorf("%s: %w", doing, err)
			}
			if s.shows(deployments) {
				s.listed = deployments
				return s, nil
			}
			waitFor = errors.New("rpm-ostree does not see the deployments that ostree lists")
			stale++
			if output, err := r.run(ctx, "rpm-ostree", "reload"); err != nil && stale == statusTries {
				return s, ostree.Failing(doing, output, err)
			}
		}
		if time.Since(begun) > busyPatience || stale == statusTries {
			return s, &ostree.Error{Class: ostree.Retryable, Doing: doing, Err: waitFor}
		}
		if waitFor.Error() != said {
			said = waitFor.Error()
			r.say("waiting: " + said)
		}
		select {
		case <-ctx.Done():
			return s, &ostree.Error{Class: ostree.Retryable, Doing: doing,
				Err: fmt.Errorf("%w: %w", waitFor, context.Cause(ctx))}
		case _, open := <-changes:
			if !open {
				changes = nil
			}
		case <-time.After(pause):
		}
	}
}

// watchedPoll is how often the status is asked for while its changes are told.
const watchedPoll = 30 * time.Second

// statusTries is how often the status is asked for, once a poll, while the daemon is starting or leaving.
const statusTries = 10

// status asks rpm-ostree for its status. One fork, if the daemon answers.
func (r *Driver) status(ctx context.Context, doing string) (hostStatus, error) {
	for try := 1; ; try++ {
		output, err := r.run(ctx, "env", "LC_ALL=C.UTF-8", "RPMOSTREE_CLIENT_ID="+clientID,
			"rpm-ostree", "status", "--json")
		if err == nil {
			s, err := parseStatus(output)
			if err != nil {
				err = &ostree.Error{Class: ostree.Failed, Doing: doing, Err: fmt.Errorf("parsing rpm-ostree status: %w", err)}
			}
			return s, err
		}
		trouble, err := failing(doing, err)
		if trouble != lost && trouble != busy || try == statusTries || sleep(ctx, ostree.UnitPoll) != nil {
			return hostStatus{}, err
		}
	}
}

// finalizeFailure is where ostree leaves the reason when it could not make what was staged boot. The boot after it
// says it in the journal and removes it.
const finalizeFailure = "/boot/ostree/finalize-failure.stamp"

// FailedFinalization says why what was staged at the last shutdown has not become what boots: "" if there was no such
// failure. One fork at most.
func (r *Driver) FailedFinalization(ctx context.Context) (string, error) {
	const doing = "looking for a failure of the last shutdown"
	text, err := os.ReadFile(r.host(finalizeFailure))
	if err == nil {
		return strings.TrimSpace(string(text)), nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", &ostree.Error{Class: ostree.Failed, Doing: doing, Err: err}
	}
	const unit = "ostree-boot-complete.service"
	state, err := r.tools.Units.ActiveState(ctx, unit)
	if err != nil {
		return "", ostree.Failing(doing, nil, err)
	}
	if state != "failed" {
		return "", nil
	}
	output, err := r.run(ctx, "journalctl", "--boot", "--unit="+unit, "--output=cat", "--no-pager")
	if err != nil {
		return "", ostree.Failing(doing, output, err)
	}
	for line := range strings.Lines(string(output)) {
		if _, reason, found := strings.Cut(line, "failed on previous boot: "); found {
			return strings.TrimSpace(reason), nil
		}
	}
	return "", nil
}

// withHint adds to a failure to pull an image what is wrong with the host's credentials, if that was it.
func (r *Driver) withHint(err error, image osimage.Image) error {
	return osimage.WithHint(err, image, func(path string) ([]byte, error) { return os.ReadFile(r.host(path)) })
}

// host is where this process finds a path of the host.
func (r *Driver) host(path string) string { return filepath.Join(r.root, path) }

func (r *Driver) say(text string) {
	if r.Progress != nil {
		r.Progress(text)
	}
}

// sleep waits for d. The error is that ctx was done before.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
