// SPDX-License-Identifier: Apache-2.0

package template

import (
	"embed"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
)

// builtin are the sets that the program brings. What is in one never changes, for then a newer controller would be a
// rollout that nobody asked for: what is better gets the next number.
//
//go:embed all:sets
var builtin embed.FS

// Sets are the sets of templates that there are.
type Sets struct {
	// Dir is a folder of further sets, "" for none. One of the same name as a built-in one replaces it.
	Dir string
}

// Open finds a set by name. It is an error, which names those that there are, if there is none.
func (s Sets) Open(name string) (fs.FS, error) {
	inside, err := fs.Sub(builtin, "sets")
	if err != nil {
		return nil, fmt.Errorf("reading templates: %w", err)
	}
	known, err := folders(inside, ".")
	if err != nil {
		return nil, err
	}
	from := map[string]fs.FS{}
	for _, n := range known {
		from[n] = inside
	}
	if s.Dir != "" {
		outside := os.DirFS(s.Dir)
		if _, err := fs.Stat(outside, "."); err != nil {
			return nil, fmt.Errorf("reading templates in %s: %w", s.Dir, err)
		}
		more, err := folders(outside, ".")
		if err != nil {
			return nil, err
		}
		for _, n := range more {
			from[n] = outside
		}
		known = slices.Compact(slices.Sorted(slices.Values(slices.Concat(known, more))))
	}
	if from[name] == nil {
		return nil, fmt.Errorf("there is no set of templates %q: there are %s", name, strings.Join(known, ", "))
	}
	return fs.Sub(from[name], name)
}
