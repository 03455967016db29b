// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"fmt"
	"slices"
	"strings"

	"github.com/noderefit/noderefit/systemd/syntax"
)

// Validate returns what is wrong with a unit before anything is written: an invalid name, a drop-in that systemd would
// never read, contents that do not parse. Errors name the unit, the drop-in and the line. Text outside of any section
// passes, because systemd itself only warns about it, as upstream does.
func Validate(u Unit) error {
	n := splitName(u.Name)
	if n.kind == invalidName {
		return fmt.Errorf("unit %q: not a valid unit name", u.Name)
	}
	if n.kind != plainName && !slices.Contains(templatedTypes, n.typ) {
		return fmt.Errorf("unit %s: a %s unit can't be a template or an instance", u.Name, n.typ)
	}
	if _, err := syntax.Parse(u.Contents, true); err != nil {
		return fmt.Errorf("unit %s: %w", u.Name, err)
	}
	seen := map[string]bool{}
	for _, d := range u.Dropins {
		base, isConf := strings.CutSuffix(d.Name, ".conf")
		if !isConf || base == "" || len(d.Name) >= maxName || strings.ContainsAny(d.Name, "/\x00") {
			return fmt.Errorf("unit %s: drop-in %q: not a file name that ends in .conf", u.Name, d.Name)
		}
		if seen[d.Name] {
			return fmt.Errorf("unit %s: drop-in %s: given twice", u.Name, d.Name)
		}
		seen[d.Name] = true
		if _, err := syntax.Parse(d.Contents, true); err != nil {
			return fmt.Errorf("unit %s: drop-in %s: %w", u.Name, d.Name, err)
		}
	}
	return nil
}
