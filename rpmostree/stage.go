// SPDX-License-Identifier: Apache-2.0

package rpmostree

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/noderefit/noderefit/osimage"
	"github.com/noderefit/noderefit/ostree"
)

// ErrNotStaged is the error for a commit that was staged once and is not staged any more: it has to be composed again.
var ErrNotStaged = errors.New("the composed commit is not staged any more")

// Stage makes sure that a staged and locked deployment of a commit has exactly these kernel arguments, in this order,
// and returns that deployment. The commit is the booted one, or one that Compose returned and that has been staged
// since. Stage takes one transaction where the arguments differ. The deployment does not boot before Plain.Release.
//
// With its arguments rpm-ostree composes layered packages anew, into another commit of the same content. So the
// deployment may have another commit than was asked for. The ref that holds the commit until Drop follows it, and the
// next call must name the new one.
//
// If the booted deployment already is what was asked for, nothing can be staged, and that is an error. The staged
// deployment must contain rpm-ostree: without it, the host could not return from that deployment.
func (r *Driver) Stage(ctx context.Context, checksum string, arguments []string) (ostree.Deployment, error) {
	doing := "staging " + checksum
	for _, argument := range arguments {
		if err := ostree.CheckArgument(argument); err != nil {
			return ostree.Deployment{}, &ostree.Error{Class: ostree.Invalid, Doing: doing, Err: err}
		}
	}
	d, err := r.stage(ctx, doing, checksum, arguments)
	if err != nil && ctx.Err() == nil && !errors.Is(err, ErrNotStaged) {
		if clearErr := r.clear(ctx); clearErr != nil {
			err = fmt.Errorf("%w; then %w", err, clearErr)
		}
	}
	return d, err
}

func (r *Driver) stage(ctx context.Context, doing, checksum string, arguments []string) (ostree.Deployment, error) {
	failed := func(format string, args ...any) (ostree.Deployment, error) {
		return ostree.Deployment{}, &ostree.Error{Class: ostree.Failed, Doing: doing, Err: fmt.Errorf(format, args...)}
	}
	if err := r.joinArguments(ctx, doing, arguments); err != nil {
		return ostree.Deployment{}, err
	}
	done := progress{limit: -1}
	var want *deployment
	for {
		s, err := r.settle(ctx, doing, nil)
		if err != nil {
			return ostree.Deployment{}, err
		}
		if want == nil {
			if want = s.of(checksum); want == nil {
				return ostree.Deployment{}, &ostree.Error{Class: ostree.NeedsAdmin, Doing: doing, Err: ErrNotStaged}
			}
		}
		steps, d, err := remainingArguments(s, *want, arguments)
		if err != nil {
			return ostree.Deployment{}, &ostree.Error{Class: ostree.NeedsAdmin, Doing: doing, Err: err}
		}
		switch {
		case done.limit >= 0 && len(steps) > done.limit:
			return failed("after %s the first deployment is %s with the kernel arguments %q, and not locked %q of %s",
				strings.Join(done.last, " "), s.listed[0].ID, s.listed[0].KernelArguments, arguments, checksum)
		case len(steps) == 0 && !d.Staged:
			return failed("%s is already as requested", d.ID)
		case len(steps) == 0:
			if err := r.follow(ctx, checksum, d.Checksum); err != nil {
				return ostree.Deployment{}, err
			}
			return d, r.canComeBack(doing, d)
		case done.last == nil:
			if err := r.begin(ctx, doing, target{}, s); err != nil {
				return ostree.Deployment{}, err
			}
		}
		done.last, done.before = steps[0], len(steps)
		if err := r.step(ctx, doing, &done); err != nil {
			return ostree.Deployment{}, err
		}
	}
}

// follow moves the ref that holds a commit until Drop to the commit that has taken its place.
func (r *Driver) follow(ctx context.Context, checksum, now string) error {
	held, err := r.held(ostree.ComposedRef)
	if err != nil || held != checksum {
		return err
	}
	return r.hold(ctx, ostree.ComposedRef, now)
}

// joinArguments ends the transaction that an earlier call of Stage has left running. A possible step to the arguments
// is waited for, any other transaction is cancelled.
func (r *Driver) joinArguments(ctx context.Context, doing string, arguments []string) error {
	words, err := r.running(ctx)
	if err != nil {
		return &ostree.Error{Class: ostree.Failed, Doing: doing, Err: err}
	}
	if words == "" {
		return nil
	}
	all, err := r.plain.Status(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	ours := slices.ContainsFunc(all, func(d ostree.Deployment) bool {
		step, err := argumentsStep(d.KernelArguments, arguments)
		return err == nil && strings.Join(step, " ") == words
	})
	return r.end(ctx, doing, words, ours || words == strings.Join(cleanupPending, " "))
}

// canComeBack refuses a deployment from which the host could not return.
func (r *Driver) canComeBack(doing string, d ostree.Deployment) error {
	_, err := os.Stat(r.host(d.Dir + "/usr/bin/rpm-ostree"))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &ostree.Error{Class: ostree.Invalid, Doing: doing, Err: errors.New(
			"the image has no rpm-ostree, and without rpm-ostree this host could not come back from the image")}
	case err != nil:
		return &ostree.Error{Class: ostree.Failed, Doing: doing, Err: err}
	}
	return nil
}

// remainingArguments returns the transactions that give a staged deployment of the same content as want these kernel
// arguments. If there are none, it returns the deployment that has them. The present arguments are those of the
// deployment on which rpm-ostree builds, if its content is the wanted one. An administrator's own changes must be those
// of the booted deployment.
func remainingArguments(s hostStatus, want deployment, arguments []string) ([][]string, ostree.Deployment, error) {
	booted, first, all := s.booted(), s.first(), s.listed
	find := func(d deployment) int { return slices.IndexFunc(all, ostree.ByID(d.id())) }
	from, at := first, find(first)
	usable := at >= 0 && sameContent(first, want) && sameOthers(first, booted)
	var steps [][]string
	switch {
	case usable && first.Staged && all[at].Locked, usable && first.Booted:
	case !sameContent(booted, want):
		return nil, ostree.Deployment{}, ErrNotStaged
	case s.pending():
		from, at, steps = booted, find(booted), [][]string{cleanupPending}
	case usable:
	default:
		return nil, ostree.Deployment{}, fmt.Errorf("the deployment %s stands before the booted deployment: %w",
			first.id(), errPinned)
	}
	if at < 0 {
		return nil, ostree.Deployment{}, fmt.Errorf("the deployment %s does not exist any more", from.id())
	}
	step, err := argumentsStep(all[at].KernelArguments, arguments)
	if err != nil {
		return nil, ostree.Deployment{}, err
	}
	if step != nil {
		steps = append(steps, step)
	}
	return steps, all[at], nil
}

// argumentsStep returns the transaction that turns the present kernel arguments into exactly the wanted ones, nil if
// they are equal. rpm-ostree deletes first, then appends. Of equal arguments it deletes the first one. It deletes a key
// alone only where the key occurs once. So the step keeps the longest possible beginning of the wanted arguments, and
// appends the others.
func argumentsStep(present, wanted []string) ([]string, error) {
	if slices.Equal(present, wanted) {
		return nil, nil
	}
	var why error
	for n := min(len(present), len(wanted)); n >= 0; n-- {
		deleted, err := reduce(present, wanted[:n])
		if err != nil {
			why = err
			continue
		}
		argv := []string{"rpm-ostree", "kargs"}
		for _, a := range deleted {
			argv = append(argv, "--delete="+a)
		}
		for _, a := range wanted[n:] {
			argv = append(argv, "--append="+a)
		}
		return append(argv, ostree.WithLock), nil
	}
	return nil, fmt.Errorf("setting the kernel arguments %q instead of %q: %w", wanted, present, why)
}

// reduce returns the arguments to delete, one after the other, so that exactly rest is left.
func reduce(present, rest []string) ([]string, error) {
	surplus := map[string]int{}
	for _, a := range present {
		surplus[a]++
	}
	for _, a := range rest {
		surplus[a]--
	}
	var deleted []string
	left := slices.Clone(present)
	for _, a := range present {
		if surplus[a] <= 0 {
			continue
		}
		surplus[a]--
		key, value, _ := strings.Cut(a, "=")
		same := 0
		for _, b := range left {
			if k, _, _ := strings.Cut(b, "="); k == key {
				same++
			}
		}
		if value == "" && same > 1 {
			return nil, fmt.Errorf("rpm-ostree can't delete %s, which occurs several times", a)
		}
		left = slices.Delete(left, slices.Index(left, a), slices.Index(left, a)+1)
		deleted = append(deleted, a)
	}
	if !slices.Equal(left, rest) {
		return nil, errors.New("rpm-ostree can't bring the arguments into that order")
	}
	return deleted, nil
}

// Of returns what a deployment contains, with exactly the image that is there. The image has its digest or checksum
// where the booted image has the same name and other content. One fork.
func (r *Driver) Of(ctx context.Context, id string) (osimage.System, error) {
	system, _, err := r.read(ctx, id)
	return system, err
}

// read is Of, with the changes that a System does not describe.
func (r *Driver) read(ctx context.Context, id string) (osimage.System, localChanges, error) {
	doing := "reading what " + id + " is"
	s, err := r.status(ctx, doing)
	if err != nil {
		return osimage.System{}, localChanges{}, err
	}
	at := slices.IndexFunc(s.Deployments, func(d deployment) bool { return d.id() == id })
	if at < 0 {
		return osimage.System{}, localChanges{}, &ostree.Error{Class: ostree.Invalid, Doing: doing,
			Err: errors.New("there is no such deployment")}
	}
	system, now, local := s.Deployments[at].system(), s.booted().system(), s.Deployments[at].localChanges
	image, err := osimage.ParseImage(system.Image)
	if err != nil || !now.Runs(system.Image) || now.Reported == system.Reported || system.Reported == "" {
		return system, local, nil //nolint:nilerr // the name is all that there is
	}
	if image.Kind == osimage.OSTreeCommit {
		image.Ref, image.Checksum = "", system.Reported
	} else {
		image.Tag, image.Digest = "", system.Reported
	}
	system.Image = image.String()
	return system, local, nil
}

// MakeDefault makes a deployment with a boot entry boot next, for an ostree that has no command for this. rpm-ostree
// puts the deployment after the booted one first or, where the booted one is the last, the booted one. What is staged
// is removed, as with SetDefault. rpm-ostree needs the bus, which does not run early in a boot; the error is Retryable
// then.
func (r *Driver) MakeDefault(ctx context.Context, id string) error {
	doing := "making " + id + " the default"
	for attempt := 0; ; attempt++ {
		all, err := r.plain.Status(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", doing, err)
		}
		argv, err := defaultStep(all, id)
		staged := slices.IndexFunc(all, func(d ostree.Deployment) bool { return d.Staged })
		switch {
		case err != nil:
			return &ostree.Error{Class: ostree.Invalid, Doing: doing, Err: err}
		case argv == nil && staged < 0:
			return nil
		case attempt == 3:
			return &ostree.Error{Class: ostree.Retryable, Doing: doing,
				Err: errors.New("another program keeps changing the deployments")}
		case staged >= 0:
			if err := r.plain.Discard(ctx, all[staged].ID); err != nil {
				return err
			}
			continue
		}
		up, err := r.tools.Units.ActiveState(ctx, "sysinit.target")
		if err != nil {
			return &ostree.Error{Class: ostree.Failed, Doing: doing, Err: err}
		}
		if up != "active" {
			return &ostree.Error{Class: ostree.Retryable, Doing: doing,
				Err: errors.New("rpm-ostree does not answer this early in a boot")}
		}
		if err := r.transact(ctx, argv...); err != nil {
			trouble, err := failing(doing, err)
			if trouble == refused || ctx.Err() != nil || attempt > 0 && trouble != busy {
				return err
			}
			if err := sleep(ctx, ostree.UnitPoll); err != nil {
				return &ostree.Error{Class: ostree.Retryable, Doing: doing, Err: err}
			}
		}
	}
}

// defaultStep returns the transaction that makes a deployment with a boot entry boot next, nil if it boots next anyway.
// A staged deployment comes before all others and must be gone by then.
func defaultStep(all []ostree.Deployment, id string) ([]string, error) {
	at := slices.IndexFunc(all, ostree.ByID(id))
	booted := slices.IndexFunc(all, func(d ostree.Deployment) bool { return d.Booted })
	switch {
	case at < 0:
		return nil, errors.New("there is no such deployment")
	case all[at].Staged:
		return nil, errors.New("the deployment is staged, and boots after the next shutdown if it is unlocked")
	case booted < 0:
		return nil, errors.New("none of the deployments is the booted one")
	case all[at].Default:
		return nil, nil
	}
	last := booted == len(all)-1 || all[booted+1].OS != all[booted].OS
	switch {
	case at == booted+1, at == booted && last:
		return []string{"rpm-ostree", "rollback"}, nil
	case at == booted:
		return cleanupPending, nil // a rollback would choose the deployment after it
	}
	return nil, errors.New("rpm-ostree can only choose the booted deployment and the one after it")
}
