// SPDX-License-Identifier: Apache-2.0

package bootc

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/noderefit/noderefit/ostree"
)

// maxLinks is how many links a path may have, as for the kernel.
const maxLinks = 40

// resolve follows all links of a path in a commit, in directories too, and returns the path without them. It is "" if
// there is no such file. The root of the commit is the root of each link, as for bootc. One fork, and one for each
// link.
func (b *Driver) resolve(ctx context.Context, doing, checksum, name string) (string, error) {
	parts := strings.Split(name, "/")
	for range maxLinks {
		steps := walk(parts)
		argv := []string{"ostree", "ls", "-d", checksum}
		for _, s := range steps {
			argv = append(argv, s.path)
		}
		// ostree lists what comes before a path that is not there.
		output, err := b.run(ctx, argv...)
		at, target := firstLink(steps, string(output))
		if at < 0 {
			if ostree.Lacks(err) {
				return "", nil
			}
			return steps[len(steps)-1].path, ostree.Failing(doing, output, err)
		}
		parts = slices.Concat(strings.Split(path.Dir(steps[at].path), "/"), strings.Split(target, "/"), steps[at].rest)
		if path.IsAbs(target) {
			parts = slices.Concat(strings.Split(target, "/"), steps[at].rest)
		}
	}
	return "", &ostree.Error{Class: ostree.Invalid, Doing: doing,
		Err: fmt.Errorf("following %s of the image: it has more than %d links", name, maxLinks)}
}

// step is a path on the way to a file, and the names that are still to follow.
type step struct {
	path string
	rest []string
}

// walk returns the steps of a path from the root. The root is its own parent.
func walk(parts []string) []step {
	steps := []step{{"/", parts}}
	at := "/"
	for i, part := range parts {
		if part == "" || part == "." {
			continue
		}
		at = path.Join(at, part)
		steps = append(steps, step{at, parts[i+1:]})
	}
	return steps
}

// firstLink returns which step is the first link of a listing, and its target, and -1 if none is a link.
func firstLink(steps []step, listing string) (at int, target string) {
	for line := range strings.Lines(listing) {
		line = strings.TrimSuffix(line, "\n")
		for i, s := range steps {
			if _, target, found := strings.Cut(line, " "+s.path+" -> "); found && line[0] == 'l' {
				return i, target
			}
		}
	}
	return -1, ""
}

// read returns the text of a file in a commit, with links followed. Two forks, and one for each link.
func (b *Driver) read(ctx context.Context, doing, checksum, name string) ([]byte, error) {
	file, err := b.resolve(ctx, doing, checksum, name)
	if err != nil {
		return nil, err
	}
	if file == "" {
		return nil, &ostree.Error{Class: ostree.Invalid, Doing: doing,
			Err: fmt.Errorf("reading %s of the image: it leads to no file", name)}
	}
	text, err := b.run(ctx, "ostree", "cat", checksum, file)
	return text, ostree.Failing(doing, text, err)
}
