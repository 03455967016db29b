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

// target is a System in the form that rpm-ostree needs.
type target struct {
	image    osimage.Image // the zero value: the base that the host runs
	packages []string
	removed  []string
}

// targetOf reads a System. Every name becomes a word of a command line.
func targetOf(s osimage.System) (target, error) {
	t := target{packages: sorted(s.Packages), removed: sorted(s.Removed)}
	for _, name := range slices.Concat(t.packages, t.removed) {
		if name == "" || strings.HasPrefix(name, "-") ||
			strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '$' }) {
			return t, fmt.Errorf("%q is not a name of a package", name)
		}
	}
	for _, name := range t.packages {
		if slices.Contains(t.removed, name) {
			return t, fmt.Errorf("the package %s is both in the layered packages and in the packages left out", name)
		}
	}
	if s.Image == "" {
		return t, nil
	}
	var err error
	t.image, err = osimage.ParseImage(s.Image)
	if err == nil && strings.Contains(s.Image, "$") {
		err = errors.New("a name of an image can't contain a $")
	}
	return t, err
}

// has reports whether d has the image that is asked for.
func (t target) has(d deployment) bool {
	if t.image == (osimage.Image{}) {
		return true
	}
	image, reported, err := d.image()
	return err == nil && t.image.SatisfiedBy(image, reported)
}

// stands returns a function that reports whether a deployment is the target and can boot. It has the changes of an
// administrator that the booted one has.
func (t target) stands(booted deployment) func(deployment) bool {
	return func(d deployment) bool {
		return !d.Staged && d.OS == booted.OS && len(t.steps(d)) == 0 && sameOthers(d, booted)
	}
}

// rebase returns the argument of rpm-ostree rebase. A commit is written after a colon, without its remote: the commit
// has been pulled by then.
func (t target) rebase() string {
	if t.image.Checksum != "" {
		return ":" + t.image.Checksum
	}
	return t.image.Refspec()
}

// String returns the target as errors name it.
func (t target) String() string {
	var image string
	if t.image != (osimage.Image{}) {
		image = t.image.String()
	}
	return describe(image, t.packages, t.removed)
}

// describe names an image with the layered packages and the packages left out.
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

// difference returns how d differs from the target, "" if it does not.
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

// steps returns the transactions that turn a deployment into the target, as few as rpm-ostree's command line allows. A
// deployment that is the target already needs none. An image with packages needs one. A target needs two if packages of
// the base are also left out or come back. It needs three if both happen with a new image.
//
// With a new image, packages come back into the base first, and packages are left out last. All layered packages come
// off in the first step and on in the last. So packages are resolved once, against the image and the repositories of
// the new OS. The steps before that are mere checkouts. Two kinds of package can't come off meanwhile: a replacement (a
// kernel) of a package that stays left out, and what a local package may need.
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
		// rpm-ostree would delete the ref that it leaves. A host that goes back to that ref can't pull it again.
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

// leads reports whether a transaction, given as the words of its command line, is a step to the target.
func (t target) leads(s hostStatus, words string) bool {
	steps := slices.Concat(t.steps(s.booted()), t.steps(s.first()), [][]string{cleanupPending})
	words = withoutBypass(words)
	return slices.ContainsFunc(steps, func(argv []string) bool { return strings.Join(argv, " ") == words })
}

// without returns the names in a that are not in b, sorted.
func without(a, b []string) []string {
	return sorted(slices.DeleteFunc(slices.Clone(a), func(name string) bool { return slices.Contains(b, name) }))
}

// cleanupPending removes every deployment before the booted one that isn't pinned, staged ones included.
var cleanupPending = []string{"rpm-ostree", "cleanup", "-p"}

// cleanupBase removes what neither a deployment nor a ref needs. It touches no deployment.
var cleanupBase = []string{"rpm-ostree", "cleanup", "-b"}

// errPinned is the error for a deployment that prevents the update and must not be removed.
var errPinned = errors.New("the deployment is pinned, and has changes of an administrator that the booted deployment " +
	"lacks: rpm-ostree would build on it; unpin it, or make the booted deployment the default")

// remaining returns the transactions from the present state to the target. If there are none, it returns the deployment
// that is the target. locked means that the staged deployment, if any, can't boot.
//
// A staged and locked deployment comes from an interrupted call. The next step builds on that deployment where this is
// the shorter way, so that an image is not pulled twice. Any other deployment before the booted one is removed first,
// because rpm-ostree would build on it.
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
		return nil, first, fmt.Errorf("the deployment %s stands before the booted deployment: %w", first.id(), errPinned)
	}
	return t.steps(first), first, nil
}
