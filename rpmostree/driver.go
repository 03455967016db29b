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
	"github.com/noderefit/noderefit/pace"
)

// Driver changes the OS of an rpm-ostree host: the image, the packages layered on it, and the image's own packages that
// are left out. A Driver never sets kernel arguments, except in Stage, and never reboots. What it has rpm-ostree stage
// is locked and cannot boot. Plain makes the deployment that boots, of the commit that Compose returns. Calls that
// change something must be made one after the other.
type Driver struct {
	// Progress, if set before the first call, receives a line of text about once a second: what a transaction reports, and
	// what is waited for. The calls come from other goroutines too.
	Progress func(text string)

	run   ostree.Runner
	tools *ostree.Tools
	root  string
	plain *ostree.Plain
	// delays are the pauses between attempts that failed because of the network. The number of attempts is one more.
	delays []time.Duration
}

// New returns a Driver for the host of plain. run asks rpm-ostree questions. The transactions run as tools, which
// outlive this process.
func New(run ostree.Runner, tools *ostree.Tools, plain *ostree.Plain) *Driver {
	return &Driver{run: run, tools: tools, root: tools.Root, plain: plain, delays: plain.PullDelays}
}

// busyPatience is how long to wait for transactions of other programs. They pull and compose as we do.
const busyPatience = 30 * time.Minute

// baseRef is our ref beside composedRef: the commit below the layered packages.
const baseRef = "noderefit/base"

// composingMark is a file that exists from the first transaction until Drop. While it exists, a staged and locked
// deployment is ours. Like the staged deployment, the file is gone after the machine goes down.
const composingMark = "/run/" + transactionUnit + ".composing"

// Current returns the OS of the booted deployment. Image is written as in a configuration. One fork.
func (r *Driver) Current(ctx context.Context) (osimage.System, error) {
	s, err := r.status(ctx, "reading the booted deployment")
	if err != nil {
		return osimage.System{}, err
	}
	return s.booted().system(), nil
}

// Compose makes sure that the commit of want is in the host's repository, and holds the commit by a ref until Drop. If
// the booted deployment does not have that commit, a staged deployment has it that cannot boot. Compose takes minutes,
// but what is already there costs no transaction.
//
// Compose waits for a transaction of another program. For a transaction that an earlier call has left running, Compose
// waits if the transaction leads to want, and cancels it otherwise. After a network error Compose tries again for about
// half a minute. An image without a digest or a checksum is the booted image if the names are equal.
//
// After an error nothing of want is staged any more. But when ctx is done, a transaction goes on by itself: the next
// call joins it, or Drop cancels it. A registered update driver that rpm-ostree heeds is an error, unless the driver is
// the agent. rpm-ostree would let us bypass the driver, but then two programs would decide about the host.
//
// With the bandwidth of a context, what rpm-ostree's daemon would fetch is refused. A deployment of the host that is
// want is taken as it is.
func (r *Driver) Compose(ctx context.Context, want osimage.System) (osimage.Composed, error) {
	return r.ComposeFor(ctx, want, nil)
}

// ComposeFor is Compose for an image whose release may have other packages than the running one. want has the packages
// for the running release. As soon as the image is in the repository, which may take a transaction, choose returns the
// packages for the release of the image.
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
	// The deployment that boots gets the /etc of a later time. By then the file of the repository must be gone from /etc.
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
			class, text := t.complaint(s, lock)
			return osimage.Composed{}, &ostree.Error{Class: class, Doing: doing,
				Err: fmt.Errorf("after %s %s", strings.Join(done.last, " "), text)}
		}
		if done.last != nil && done.limit < 0 && len(steps) < done.before {
			done.transactions++ // done, although the answer was lost
		}
		if len(steps) > 0 && pace.Of(ctx) != nil {
			if at := slices.IndexFunc(s.Deployments, t.stands(s.booted())); at >= 0 {
				steps, d = nil, s.Deployments[at]
			} else if err := r.unfetched(ctx, doing, t, s); err != nil {
				return osimage.Composed{}, err
			}
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
			// It may be that the other release does not have the packages of the running release.
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

// unfetched refuses what rpm-ostree's daemon would fetch for: an image that is not in the repository, and all that has
// it resolve packages, also where only some of them go. The daemon keeps no bandwidth. A commit is ostree's to pull.
func (r *Driver) unfetched(ctx context.Context, doing string, t target, s hostStatus) error {
	own := s.booted().localChanges
	resolved := len(t.packages) + len(t.removed) + len(own.LocalPackages) + len(own.LocalFileOverrides) +
		len(own.LocalReplacements) + len(compact(own.RemoteReplacements))
	base, err := r.baseOf(ctx, t, s, false)
	if err != nil {
		return &ostree.Error{Class: ostree.Failed, Doing: doing, Err: err}
	}
	if resolved == 0 && (base != "" || t.image.Checksum != "") {
		return nil
	}
	return &ostree.Error{Class: ostree.NeedsAdmin, Doing: doing, Err: errors.New("rpm-ostree's daemon would fetch, " +
		"and keeps no bandwidth: remove spec.staging.bandwidth of the RolloutPolicy, or give the node another policy")}
}

// progress is how far a Compose has come.
type progress struct {
	transactions int
	last         []string // the last step that was run
	before       int      // the number of steps to do before it
	limit        int      // the number of steps that may be left now; -1 if the result of the last step is not known
	network      int      // attempts that failed because of the network since the last success
	lost         int
	busySince    time.Time
}

// lostTries is how often the daemon or the client may go away in one Compose. An idle exit counts too.
const lostTries = 5

// step runs done.last, and waits where another attempt is useful. An error is final.
func (r *Driver) step(ctx context.Context, doing string, done *progress) error {
	argv, err := r.bypassing(done.last)
	if err != nil {
		return &ostree.Error{Class: ostree.Failed, Doing: doing, Err: err}
	}
	err = r.transact(ctx, argv...)
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

// begin does what has to be done before the first transaction.
func (r *Driver) begin(ctx context.Context, doing string, t target, s hostStatus) error {
	if s.Driver != nil && s.Driver.Unit != driverUnit {
		state, err := r.tools.Units.ActiveState(ctx, s.Driver.Unit)
		if err != nil {
			return &ostree.Error{Class: ostree.Failed, Doing: doing, Err: err}
		}
		if slices.Contains(ruling, state) {
			text := fmt.Sprintf("%s (%s) is registered as the update driver of this host; stop and disable it",
				s.Driver.Name, s.Driver.Unit)
			if state == "failed" {
				text += ", and run systemctl reset-failed " + s.Driver.Unit
			}
			return &ostree.Error{Class: ostree.NeedsAdmin, Doing: doing, Err: errors.New(text)}
		}
	}
	// The failure does not stop this update, but a reader of the progress may want to know about it.
	if why, err := r.FailedFinalization(ctx); err != nil {
		return err
	} else if why != "" {
		r.say("at the last shutdown, ostree could not make the staged deployment bootable: " + why)
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

// complaint returns what is wrong with the staged deployment. Since 2026.1 rpm-ostree takes no request for packages
// that a container image has itself, and calls that a success.
func (t target) complaint(s hostStatus, lock bool) (class ostree.Class, text string) {
	first := s.first()
	more, less := without(t.packages, first.Packages), without(t.removed, first.Removed)
	switch {
	case first.Booted && first.Container != "" && t.has(first) && len(more) > 0 && len(less) == 0:
		return ostree.Invalid, fmt.Sprintf("nothing is staged: the image already has %s, so rpm-ostree layers no package",
			strings.Join(more, ", "))
	case first.Booted:
		return ostree.Failed, "nothing is staged"
	case first.Staged && !lock:
		return ostree.Failed, fmt.Sprintf("the staged deployment %s is not locked: it would boot after the next shutdown",
			first.id())
	case !sameOthers(first, s.booted()):
		return ostree.Failed, fmt.Sprintf("%s has other local packages, replacements or initramfs settings than the "+
			"booted deployment", first.id())
	}
	return ostree.Failed, fmt.Sprintf("the staged deployment (%s) is not what was requested: %s", first.id(),
		t.difference(first))
}

// keep holds the commit of the deployment d by our refs, and returns what was composed.
func (r *Driver) keep(ctx context.Context, doing string, t target, d deployment, s hostStatus,
	transactions int) (osimage.Composed, error) {
	// The running deployment may have had that name before the ref moved. rpm-ostree may also have deleted the ref when
	// the host left that name. So its commit is not compared.
	if t.image.Ref != "" && transactions > 0 && !t.has(s.booted()) {
		output, err := r.run(ctx, "ostree", "rev-parse", t.image.Refspec())
		if err != nil {
			return osimage.Composed{}, ostree.Failing(doing, output, err)
		}
		if commit := strings.TrimSpace(string(output)); commit != d.base() {
			return osimage.Composed{}, &ostree.Error{Class: ostree.Failed, Doing: doing, Err: fmt.Errorf(
				"%s is commit %s, and rpm-ostree's staged deployment is based on %s", t.image, commit, d.base())}
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

// origin returns the text of the origin file of d, without what belongs to that deployment alone, such as its pin.
func (r *Driver) origin(d deployment) (string, error) {
	return r.plain.Origin(fmt.Sprintf("/ostree/deploy/%s/deploy/%s.%d", d.OS, d.Checksum, d.Serial))
}

// hold makes one of our refs name a commit. One fork if the ref names another commit or does not exist.
func (r *Driver) hold(ctx context.Context, ref, checksum string) error {
	now, err := r.held(ref)
	if err != nil || now == checksum {
		return err
	}
	output, err := r.run(ctx, "ostree", "refs", "--force", "--create="+ref, checksum)
	return ostree.Failing("holding the commit "+checksum, output, err)
}

// held returns the commit that one of our refs names, "" if the ref does not exist.
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

// Present reports whether the commit that Compose returned is still there, complete and held by our ref. No fork.
func (r *Driver) Present(_ context.Context, _ osimage.System, c osimage.Composed) (bool, error) {
	if !ostree.IsChecksum(c.Checksum) {
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

// Drop cancels our running transaction, removes our staged deployment, and releases the commits that our refs hold.
// What no deployment needs of those commits goes from the disk. Materialised deployments stay. One fork where nothing
// is to be done.
func (r *Driver) Drop(ctx context.Context) error {
	const doing = "dropping the composed OS"
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
		// The daemon may go on although the client is dead.
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
			// Only now does rpm-ostree release its part: the image, the base, packages, abandoned checkouts.
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

// deployed reports whether a deployment has that commit. One fork.
func (r *Driver) deployed(ctx context.Context, doing, checksum string) (bool, error) {
	deployments, err := r.plain.Status(ctx)
	if err != nil {
		return false, fmt.Errorf("%s: %w", doing, err)
	}
	return slices.ContainsFunc(deployments, func(d ostree.Deployment) bool { return d.Checksum == checksum }), nil
}

// unstage removes the staged deployment if that is locked, and nothing else. `cleanup -p` would also remove a
// deployment that is the default and has not booted yet.
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
	// Old ostree leaves the lock. The next program that stages would remove it.
	if err := os.Remove(r.host(ostree.StagedLock)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return &ostree.Error{Class: ostree.Failed, Doing: doing, Err: err}
	}
	return nil
}

// dropStrayLock removes old ostree's lock where nothing is staged. A transaction that ends while it stages may leave
// the lock.
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

// clear removes what a failed Compose has staged. The staged deployment may be without a lock, which is then why
// Compose has failed.
func (r *Driver) clear(ctx context.Context) error {
	const doing = "removing the staged deployment"
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

// join ends the transaction that an earlier call of Compose has left running. A step to t is waited for, any other is
// cancelled.
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

// end returns when a transaction of an earlier call is over. A transaction that leads to the target is waited for, any
// other is cancelled.
func (r *Driver) end(ctx context.Context, doing, words string, leads bool) error {
	var err error
	if leads {
		r.say("waiting for the transaction of an earlier attempt: " + words)
		err = r.tools.Wait(ctx, transactionUnit)
	} else {
		r.say("cancelling the transaction of an earlier attempt: " + words)
		err = r.interrupt(ctx)
	}
	if err != nil {
		return &ostree.Error{Class: ostree.Retryable, Doing: doing, Err: err}
	}
	return nil
}

// settle returns the status once no transaction is active. It waits for the transactions of other programs, up to
// busyPatience. It also waits until rpm-ostree has seen what ostree did without it: the daemon notices that a little
// later.
//
// A client of ours that died may have left a transaction. settle waits for that if it is a step to t. Otherwise, or if
// t is nil, settle cancels it. Two forks.
func (r *Driver) settle(ctx context.Context, doing string, t *target) (hostStatus, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var changes <-chan struct{}
	said, asked, own, stale := "", "", "", 0
	for begun := time.Now(); ; {
		s, err := r.status(ctx, doing)
		if err != nil {
			return s, err
		}
		var waitFor error
		pause := ostree.UnitPoll
		if len(s.Transaction) > 0 {
			if who := s.who(); who != asked {
				asked = who
				if own, err = r.cancelOrphan(ctx, s, t); err != nil {
					return s, &ostree.Error{Class: ostree.Retryable, Doing: doing, Err: err}
				}
			}
			waitFor = fmt.Errorf("rpm-ostree works for another program: %s", asked)
			if own != "" {
				waitFor = fmt.Errorf("rpm-ostree still works on the transaction of an earlier attempt: %s", own)
			}
			if changes == nil && said == "" {
				// On a host without a bus the polls are enough.
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
			waitFor = errors.New("rpm-ostree does not report the deployments that ostree lists")
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

// watchedPoll is the time between two requests for the status while a watch reports its changes.
const watchedPoll = 30 * time.Second

// statusTries is how often the status is asked for, once a poll, while the daemon is starting or stopping.
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

// finalizeFailure is the file in which ostree writes why it could not make the staged deployment bootable. The next
// boot logs the reason in the journal and removes the file.
const finalizeFailure = "/boot/ostree/finalize-failure.stamp"

// FailedFinalization returns why ostree could not make the staged deployment bootable at the last shutdown, "" if that
// did not fail. At most one fork.
func (r *Driver) FailedFinalization(ctx context.Context) (string, error) {
	const doing = "checking whether the last shutdown failed"
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

// withHint adds to a failed pull of an image what is wrong with the host's credentials, if they were the reason.
func (r *Driver) withHint(err error, image osimage.Image) error {
	return osimage.WithHint(err, image, func(path string) ([]byte, error) { return os.ReadFile(r.host(path)) })
}

// host returns the path under which this process finds a path of the host.
func (r *Driver) host(path string) string { return filepath.Join(r.root, path) }

func (r *Driver) say(text string) {
	if r.Progress != nil {
		r.Progress(text)
	}
}

// sleep waits for d. It returns an error if ctx is done first.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
