// SPDX-License-Identifier: Apache-2.0

package rpmostree

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/noderefit/noderefit/osimage"
	"github.com/noderefit/noderefit/ostree"
)

// target is a System as rpm-ostree is to make it.
type target struct {
	image    osimage.Image // the zero value: the base that the host runs
	packages []string
	removed  []string
}

// targetOf reads what is asked for. Every name becomes a word of a command line.
func targetOf(s osimage.System) (target, error) {
	t := target{packages: sorted(s.Packages), removed: sorted(s.Removed)}
	for _, name := range slices.Concat(t.packages, t.removed) {
		if name == "" || strings.HasPrefix(name, "-") ||
			strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '$' }) {
			return t, fmt.Errorf("%q is not the name of a package", name)
		}
	}
	for _, name := range t.packages {
		if slices.Contains(t.removed, name) {
			return t, fmt.Errorf("the package %s is to be layered and to be left out", name)
		}
	}
	if s.Image == "" {
		return t, nil
	}
	var err error
	t.image, err = osimage.ParseImage(s.Image)
	if err == nil && strings.Contains(s.Image, "$") {
		err = errors.New("no image has a $ in its name")
	}
	return t, err
}

// has says whether the image of d is the one that is asked for.
func (t target) has(d deployment) bool {
	if t.image == (osimage.Image{}) {
		return true
	}
	image, reported, err := d.image()
	return err == nil && t.image.SatisfiedBy(image, reported)
}

// rebase is what rpm-ostree is asked to rebase to. A commit is named after a colon, whatever remote it is from: it has
// been pulled then.
func (t target) rebase() string {
	if t.image.Checksum != "" {
		return ":" + t.image.Checksum
	}
	return t.image.Refspec()
}

// String is what an error calls it.
func (t target) String() string {
	var image string
	if t.image != (osimage.Image{}) {
		image = t.image.String()
	}
	return describe(image, t.packages, t.removed)
}

// describe names an image with what is layered on it and left out of it.
func describe(image string, packages, removed []string) string {
	var words []string
	if image != "" {
		words = append(words, image)
	}
	if len(packages) > 0 {
		words = append(words, "with "+strings.Join(packages, ", "))
	}
	if len(removed) > 0 {
		words = append(words, "without "+strings.Join(removed, ", "))
	}
	if len(words) == 0 {
		return "the bare base"
	}
	return strings.Join(words, " ")
}

// difference says in which ways d is not what is asked for, "" if it is.
func (t target) difference(d deployment) string {
	var parts []string
	differ := func(what, is, want string) {
		if is != want {
			parts = append(parts, fmt.Sprintf("%s %s instead of %s", what, is, want))
		}
	}
	list := func(names []string) string {
		if len(names) == 0 {
			return "none"
		}
		return strings.Join(names, ", ")
	}
	if !t.has(d) {
		is := d.Container
		if d.Digest != "" {
			is += " (" + d.Digest + ")"
		}
		if is == "" {
			is = strings.TrimSpace(d.Origin + " (commit " + d.base() + ")")
		}
		differ("the image is", is, t.image.String())
	}
	differ("the layered packages are", list(sorted(d.Packages)), list(t.packages))
	differ("the packages left out are", list(sorted(d.Removed)), list(t.removed))
	return strings.Join(parts, "; ")
}

// steps are the transactions, as few as rpm-ostree's command line allows, that make from a deployment what is asked
// for: none if it is that, one for an image with packages, two where packages of the base are left out or come back as
// well.
//
// With a new image, what comes back into the base goes first and what is left out last, everything layered comes off in
// the first step and on in the last: so packages are resolved once, against the image and the repositories of the new
// OS, and the steps before that are mere checkouts. A package that stands in for one that stays left out (a kernel)
// can't go meanwhile, nor can what a local package may need.
func (t target) steps(from deployment) [][]string {
	on, off := without(t.packages, from.Packages), without(from.Packages, t.packages)
	remove, reset := without(t.removed, from.Removed), without(from.Removed, t.removed)
	stay := without(from.Removed, reset)
	step := func(install, uninstall []string, words ...string) []string {
		argv := append([]string{"rpm-ostree"}, words...)
		for _, name := range install {
			argv = append(argv, "--install="+name)
		}
		for _, name := range uninstall {
			argv = append(argv, "--uninstall="+name)
		}
		return append(argv, ostree.WithLock)
	}
	rebase := []string{"rebase", t.rebase()}
	if image, _, err := from.image(); err == nil && image.Kind == osimage.OSTreeCommit &&
		image.Remote == "" && image.Ref != "" {
		// rpm-ostree would delete the ref that it leaves. Whoever goes back to it can't pull it again.
		rebase = append(rebase, "--skip-purge")
	}
	overrideReset := append([]string{"override", "reset"}, reset...)
	overrideRemove := append([]string{"override", "remove"}, remove...)
	if t.has(from) {
		switch {
		case len(reset) > 0 && len(remove) > 0:
			return [][]string{step(nil, off, overrideReset...), step(on, nil, overrideRemove...)}
		case len(reset) > 0:
			return [][]string{step(on, off, overrideReset...)}
		case len(remove) > 0:
			return [][]string{step(on, off, overrideRemove...)}
		case len(on) > 0:
			return [][]string{step(nil, off, append([]string{"install", "--idempotent"}, on...)...)}
		case len(off) > 0:
			return [][]string{step(nil, nil, append([]string{"uninstall", "--idempotent"}, off...)...)}
		}
		return nil
	}
	if len(remove)+len(reset) == 0 {
		return [][]string{step(on, off, rebase...)}
	}
	if len(stay)+len(from.LocalPackages)+len(from.LocalFileOverrides) == 0 {
		on, off = t.packages, sorted(from.Packages)
	}
	switch {
	case len(remove) == 0:
		return [][]string{step(nil, off, overrideReset...), step(on, nil, rebase...)}
	case len(reset) > 0:
		return [][]string{step(nil, off, overrideReset...), step(nil, nil, rebase...),
			step(on, nil, overrideRemove...)}
	case len(stay) > 0:
		return [][]string{step(nil, nil, rebase...), step(on, off, overrideRemove...)}
	}
	return [][]string{step(nil, off, rebase...), step(on, nil, overrideRemove...)}
}

// leads says whether a transaction, by the words of its command line, is one on the way to what is asked for.
func (t target) leads(s hostStatus, words string) bool {
	steps := slices.Concat(t.steps(s.booted()), t.steps(s.first()), [][]string{cleanupPending})
	return slices.ContainsFunc(steps, func(argv []string) bool { return strings.Join(argv, " ") == words })
}

// without are the names in a that are not in b, sorted.
func without(a, b []string) []string {
	return sorted(slices.DeleteFunc(slices.Clone(a), func(name string) bool { return slices.Contains(b, name) }))
}

// cleanupPending removes every deployment before the booted one that isn't pinned: what was staged is gone.
var cleanupPending = []string{"rpm-ostree", "cleanup", "-p"}

// cleanupBase removes what no deployment and no ref needs. No deployment is touched.
var cleanupBase = []string{"rpm-ostree", "cleanup", "-b"}

// errPinned is a deployment in the way that must not be removed.
var errPinned = errors.New("it is pinned, and what an administrator has changed in it is not in the booted one: " +
	"rpm-ostree would build on it; unpin it, or make the booted one the default")

// remaining are the transactions from the present state to what is asked for, and the deployment that is it when there
// are none. locked says that the staged deployment, if there is one, can't boot.
//
// What is staged and locked is built on where that is a shorter way: it is what an interrupted call has left, and an
// image is not pulled twice. Anything else before the booted deployment is removed first, because rpm-ostree would
// build on that.
func (t target) remaining(s hostStatus, locked bool) ([][]string, deployment, error) {
	booted, first := s.booted(), s.first()
	steps := t.steps(booted)
	switch {
	case len(steps) == 0:
		return nil, booted, nil
	case first.Booted:
		return steps, deployment{}, nil
	case first.Staged && locked && sameOthers(first, booted):
		further := t.steps(first)
		if len(further) < len(steps) || len(further) == len(steps) && t.has(first) && !t.has(booted) {
			return further, first, nil
		}
	}
	if s.pending() {
		return append([][]string{cleanupPending}, steps...), deployment{}, nil
	}
	if !sameOthers(first, booted) {
		return nil, first, fmt.Errorf("the deployment %s stands before the booted one: %w", first.id(), errPinned)
	}
	return t.steps(first), first, nil
}
