// SPDX-License-Identifier: Apache-2.0

package rpmostree

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/noderefit/noderefit/osimage"
	"github.com/noderefit/noderefit/ostree"
)

// Choose returns the packages to layer on a base, and those to leave out of it, for the base's os-release(5). An error
// is final.
type Choose func(osRelease []byte) (packages, removed []string, err error)

// baseChoice is what Compose knows about the base of its target.
type baseChoice struct {
	choose Choose
	base   string        // the commit that choose was asked for last
	pulled bool          // a transaction has at least brought the image to the repository
	source osimage.Image // of packages; the zero value: the host's repositories alone
}

// fit calls choose for the base of t, once that base is in the repository. It reports whether t has changed for it. Two
// forks for each base.
func (r *Driver) fit(ctx context.Context, doing string, t *target, s hostStatus, c *baseChoice) (bool, error) {
	if c.choose == nil || t.image == (osimage.Image{}) {
		return false, nil
	}
	base, err := r.baseOf(ctx, *t, s, c.pulled)
	if err != nil {
		return false, &ostree.Error{Class: ostree.Failed, Doing: doing, Err: err}
	}
	if base == "" || base == c.base {
		return false, nil
	}
	release, err := r.run(ctx, "ostree", "cat", base, "/usr/lib/os-release")
	if err != nil {
		return false, ostree.Failing(doing+": reading the os-release of "+base, release, err)
	}
	packages, removed, err := c.choose(release)
	if err != nil {
		return false, &ostree.Error{Class: ostree.Invalid, Doing: doing, Err: err}
	}
	fitting, err := targetOf(osimage.System{Packages: packages, Removed: removed})
	if err != nil {
		return false, &ostree.Error{Class: ostree.Invalid, Doing: doing, Err: err}
	}
	fitting.image, c.base = t.image, base
	if fitting.String() == t.String() {
		return false, nil
	}
	r.say(fmt.Sprintf("the release of %s has other packages: %s", t.image, fitting))
	*t = fitting
	return true, nil
}

// baseOf returns the commit of t's image, "" where the commit is not known yet. The commit of a name is known after the
// pull, or where the name has no remote to pull from.
func (r *Driver) baseOf(ctx context.Context, t target, s hostStatus, pulled bool) (string, error) {
	for _, d := range []deployment{s.first(), s.booted()} {
		if t.has(d) {
			return d.base(), nil
		}
	}
	switch {
	case t.image.Checksum != "":
		whole, err := r.plain.Complete(t.image.Checksum)
		if err != nil || !whole {
			return "", err
		}
		return t.image.Checksum, nil
	case t.image.Ref != "" && (pulled || t.image.Remote == ""):
		output, err := r.run(ctx, "ostree", "rev-parse", t.image.Refspec())
		if _, failed := errors.AsType[*ostree.CommandError](err); failed && ctx.Err() == nil {
			return "", nil // rpm-ostree will report the error
		}
		return strings.TrimSpace(string(output)), err
	case t.image.Kind == osimage.ContainerImage && (pulled || t.image.Digest != ""):
		return r.imported(t.image)
	}
	return "", nil
}

// importedRefs is the directory in which rpm-ostree has a ref for each container image in the repository. An image
// whose packages could not be layered has a ref too. The name of a ref is the image's transport and name, with _XX_ for
// each character that no ref may have.
const importedRefs = "/ostree/repo/refs/heads/ostree/container/image"

// imported returns the commit of a container image in the repository, "" if the image is not there.
func (r *Driver) imported(image osimage.Image) (string, error) {
	want := strings.TrimPrefix(image.Target(), "//")
	transport := string(image.Transport)
	if image.Transport == osimage.Registry {
		transport, want = "docker", "//"+want
	}
	ref, top := "", r.host(importedRefs)
	err := filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && unescapedRef(strings.TrimPrefix(path, top+"/")) == transport+":"+want {
			ref = path
		}
		return err
	})
	var text []byte
	if err == nil && ref != "" {
		text, err = os.ReadFile(ref)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil // no ref, or a cleanup is removing them
	}
	commit := strings.TrimSpace(string(text))
	if err != nil || commit == "" {
		return "", err
	}
	if whole, err := r.plain.Complete(commit); err != nil || !whole {
		return "", err
	}
	return commit, nil
}

// unescapedRef decodes the name of a ref: _XX_ is the character with that hexadecimal number, and __ is _.
func unescapedRef(name string) string {
	var text strings.Builder
	for {
		plain, rest, found := strings.Cut(name, "_")
		text.WriteString(plain)
		if !found {
			return text.String()
		}
		number, after, closed := strings.Cut(rest, "_")
		code, err := strconv.ParseUint(number, 16, 8)
		switch {
		case closed && number == "":
			text.WriteByte('_')
		case closed && err == nil:
			text.WriteByte(byte(code))
		default: // not such a name
			return text.String() + "_" + rest
		}
		name = after
	}
}
