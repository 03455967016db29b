// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/test/schemas"
)

// A repair decides nothing: the host has one configuration before and after. Cut at any point, it leaves less drift
// than there was and never other drift, and the next one, or an update, finishes and cleans up.
func TestRepairThatIsCutLeavesDriftAtMost(t *testing.T) {
	f := newFixture(t, everyKindA, everyKindB)
	start, err := copyTree(f.onA)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(start) })
	f.drift(t, start)
	before := f.drifts(t, start)
	command := []string{"repair", "--os", "none"}
	s := &scenario{name: "repair", start: start, command: command, again: command,
		from: side{config: "a", doc: f.docs["a"], drifted: true}, to: side{config: "a", doc: f.docs["a"]}}
	points := s.prepare(t, f.binary)
	for _, mode := range []string{"kill", "error"} {
		for _, n := range selected(len(points)) {
			where := fmt.Sprintf("%s at %d, %s", mode, n, points[n-1])
			root, r, err := s.cut(f.binary, mode, n)
			if err != nil {
				t.Errorf("%s: %v", where, err)
				continue
			}
			left := f.drifts(t, root)
			for _, d := range left {
				if !slices.Contains(before, d) {
					t.Errorf("%s: new drift %s, after %s", where, d, r)
				}
			}
			again := command
			if n%2 == 0 {
				again = []string{"apply", "--config", f.docs["a"]}
			}
			if _, err := must(f.binary, root, again...); err != nil {
				t.Errorf("%s: again: %v", where, err)
			}
			if left := f.drifts(t, root); len(left) > 0 {
				t.Errorf("%s: drift after %v: %v", where, again, left)
			}
			report(t, where, s.ends(f.binary, root, &s.to))
			_ = os.RemoveAll(root)
		}
	}
}

// drifts are what verify says of a tree.
func (f *fixture) drifts(t *testing.T, root string) []string {
	t.Helper()
	r, err := run(f.binary, root, "", "verify", "-o", "json")
	if err != nil || r.exit != 0 && r.exit != 4 {
		t.Fatalf("verify: %s, %v", r, err)
	}
	var v host.Verification
	if err := errors.Join(schemas.Check([]byte(r.stdout)), json.Unmarshal([]byte(r.stdout), &v)); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, d := range v.Drift {
		out = append(out, d.Kind+" "+d.Path+d.Name+d.User+" "+d.What)
	}
	return out
}
