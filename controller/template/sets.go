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

// builtin are the sets that the program brings. A set never changes: otherwise a newer controller would begin a rollout
// that no person asked for. An improved set gets the next number.
//
//go:embed all:sets
var builtin embed.FS

// Sets are the available sets of templates.
type Sets struct {
	// Dir is a folder with further sets, "" for none. A set there replaces a built-in set of the same name.
	Dir string
}

// Open finds a set by name. If the set does not exist, the error names the existing ones.
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
