// SPDX-License-Identifier: Apache-2.0

package registries

import "strings"

// Locations returns the repositories from which images of a repository are pulled, in the order in which they are
// asked: its mirrors, and then the repository itself where that is allowed. tags means that an image is named by its
// tag, and not by its digest.
func Locations(sources []Source, repository string, tags bool) []string {
	var out []string
	if s := nearest(sources, repository, func(s Source) bool { return len(s.Mirrors) > 0 }); s != nil {
		rest := repository[covers(s.Scope, repository):]
		for _, m := range s.Mirrors {
			if tags && m.Tags || !tags && m.Digests {
				out = append(out, strings.TrimSuffix(m.Location, "/")+rest)
			}
		}
	}
	if !Never(sources, repository) {
		out = append(out, repository)
	}
	return out
}
