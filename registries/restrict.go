// SPDX-License-Identifier: Apache-2.0

package registries

import "github.com/pelletier/go-toml/v2"

// SearchPath is the file that says where short names of images are looked up, by OpenShift's name. It is read after
// registries.conf, whose list it replaces.
const SearchPath = "/etc/containers/registries.conf.d/01-image-searchRegistries.conf"

// Search returns the text of the file that has short names looked up in these registries, in this order.
func Search(registries []string) ([]byte, error) {
	return toml.Marshal(map[string]any{searchKey: registries})
}

// Restrict has scopes be insecure or blocked, with all their parts: an entry of a part counts alone, so that it has to
// say the same. A mirror at an insecure place is asked as such.
func (c *Conf) Restrict(insecure, blocked []string) {
	for _, scopes := range [][]string{blocked, insecure} {
		for _, scope := range scopes {
			if e := closest(c.entries, scope); e == nil || e.scope() != scope {
				c.entries = append(c.entries, entry(scope, e))
			}
		}
	}
	for _, e := range c.entries {
		e.blocked = e.blocked || WithinAny(e.scope(), blocked)
		e.insecure = e.insecure || WithinAny(e.scope(), insecure)
		for i := range e.mirrors {
			e.mirrors[i].insecure = e.mirrors[i].insecure || WithinAny(e.mirrors[i].location, insecure)
		}
	}
}
