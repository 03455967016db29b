// SPDX-License-Identifier: Apache-2.0

package registries

import (
	"fmt"
	"strings"
)

// Pull returns the repositories from which a client pulls what it knows by its digest: the mirrors that the file has
// for the repository, and then the place of the repository itself. Places without TLS and blocked places are left out:
// a blocked repository that has mirrors comes from these alone.
func (c *Conf) Pull(repository string) ([]string, error) {
	r := closest(c.entries, repository)
	if r == nil {
		return []string{repository}, nil
	}
	rest := repository[covers(r.scope(), repository):]
	var out []string
	for _, m := range r.mirrors {
		at := strings.TrimSuffix(m.location, "/") + rest
		by := closest(c.entries, at)
		if !m.insecure && r.pull(m) != tagOnly && (by == nil || !by.blocked) {
			out = append(out, at)
		}
	}
	switch {
	case r.insecure || r.blocked:
	case r.location == "":
		out = append(out, repository)
	default:
		out = append(out, strings.TrimSuffix(r.location, "/")+rest)
	}
	if len(out) == 0 && r.blocked {
		return nil, fmt.Errorf("%s is blocked by %s, which has no mirror with TLS for it", repository, Path)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s has no place with TLS in %s", repository, Path)
	}
	return out, nil
}
