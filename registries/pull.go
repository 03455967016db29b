// SPDX-License-Identifier: Apache-2.0

package registries

import (
	"fmt"
	"strings"
)

// Pull returns the repositories from which a client pulls what it knows by its digest: the mirrors that the file has
// for the repository, and then the place of the repository itself. Places without TLS are left out. A blocked
// repository is an error.
func (c *Conf) Pull(repository string) ([]string, error) {
	r := closest(c.entries, repository)
	if r == nil {
		return []string{repository}, nil
	}
	if r.blocked {
		return nil, fmt.Errorf("%s is blocked by %s", repository, Path)
	}
	rest := repository[covers(r.scope(), repository):]
	var out []string
	for _, m := range r.mirrors {
		if !m.insecure && r.pull(m) != tagOnly {
			out = append(out, strings.TrimSuffix(m.location, "/")+rest)
		}
	}
	switch {
	case r.insecure:
	case r.location == "":
		out = append(out, repository)
	default:
		out = append(out, strings.TrimSuffix(r.location, "/")+rest)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s has no place with TLS in %s", repository, Path)
	}
	return out, nil
}
