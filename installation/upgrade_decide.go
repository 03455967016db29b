// SPDX-License-Identifier: Apache-2.0

package installation

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/noderefit/noderefit/checkup"
)

// move brings an installation to a version, or its values to others.
type move struct {
	// now are the versions that may be at work, from those of them that are not the target.
	now, from []string
	to        string
	// back is true for a move to an older version.
	back  bool
	steps []step
	// said is what people should know before.
	said []string
}

// step is a stage of a move, and what is done to its objects.
type step struct {
	stage string
	do    deed
}

// deed is what a step does to the objects of its stage.
type deed string

const (
	// apply makes each object what the release has, but definitions of a newer release.
	apply deed = "apply"
	// add makes objects that are missing, and leaves those that are there.
	add deed = "add"
)

// upwards is an upgrade. New definitions have all that older programs know, and the controller speaks to agents of
// both versions.
var upwards = []step{
	{"definitions", apply},
	{"namespace", apply},
	{"accounts and rights", apply},
	{"policies", apply},
	{"pools and configuration", add},
	{"controller", apply},
	{"agents", apply},
	{"server", apply},
	{"monitoring", apply},
}

// downwards is the way back. Its parts go in the other order, so that the same pairs of versions are at work as during
// the upgrade. What the older version has and the newer one lacks comes first. Definitions stay: older ones would drop
// fields of objects.
var downwards = []step{
	{"definitions", add},
	{"accounts and rights", add},
	{"monitoring", apply},
	{"server", apply},
	{"agents", apply},
	{"controller", apply},
	{"pools and configuration", add},
	{"policies", apply},
	{"accounts and rights", apply},
	{"namespace", apply},
}

// decideUpgrade decides how an installation gets a version. definitions are the versions of its definitions.
func decideUpgrade(f *found, definitions []string, version string) (*move, error) {
	if err := errors.Join(f.foreign(), f.byOthers()); err != nil {
		return nil, err
	}
	r := f.record
	switch {
	case r == nil:
		return nil, errors.New("the plugin has not installed Noderefit here: use kubectl refit install")
	case r.Phase != installed && r.Phase != installing && r.Phase != upgrading:
		return nil, fmt.Errorf("another command has begun and has not ended, the installation is %s: end that command first",
			r.Phase)
	}
	m := &move{to: version, steps: upwards, now: append([]string{r.Version}, r.From...)}
	for _, v := range m.now {
		if v != version {
			m.from = append(m.from, v)
		}
	}
	for _, v := range m.from {
		if newer(v, version) {
			m.back, m.steps = true, downwards
		}
		if parsed(v) == nil || parsed(version) == nil {
			m.said = append(m.said, fmt.Sprintf("whether %s and %s work together is not known: they are not both versions of "+
				"releases", v, version))
		}
	}
	if err := m.distance(); err != nil {
		return nil, err
	}
	return m, m.skew(definitions)
}

// newer reports whether a is a newer version than b. What is no version is not newer.
func newer(a, b string) bool {
	one, other := parsed(a), parsed(b)
	return one != nil && other != nil && one.GreaterThan(other)
}

// distance refuses versions whose agents and controllers would not work together, and names those in between.
func (m *move) distance() error {
	for _, from := range m.from {
		pair := map[checkup.Part][]string{checkup.Agents: {from}, checkup.Controller: {m.to}}
		if len(checkup.Skews(pair)) == 0 {
			continue
		}
		a, b := parsed(from), parsed(m.to)
		if a.Major() != b.Major() {
			return fmt.Errorf("%s and %s are of different major versions, whose parts do not work together: see docs/upgrade.md",
				from, m.to)
		}
		return fmt.Errorf("%s and %s are more than one minor version apart, and their parts do not work together: go "+
			"through %s, each with its own kubectl-refit", from, m.to, strings.Join(between(a, b), ", "))
	}
	return nil
}

// between names the minor versions between two, in the order of the way.
func between(a, b *semver.Version) []string {
	var out []string
	for minor := min(a.Minor(), b.Minor()) + 1; minor < max(a.Minor(), b.Minor()); minor++ {
		out = append(out, fmt.Sprintf("v%d.%d", a.Major(), minor))
	}
	if b.LessThan(a) {
		slices.Reverse(out)
	}
	return out
}

// skew refuses a move that would put versions side by side that do not work together, and are not side by side yet.
func (m *move) skew(definitions []string) error {
	at := map[checkup.Part][]string{checkup.Definitions: definitions, checkup.Controller: m.now, checkup.Agents: m.now}
	known := checkup.Skews(at)
	for _, s := range m.steps {
		if s.do != apply {
			continue
		}
		switch s.stage {
		case "definitions":
			at[checkup.Definitions] = []string{m.to}
			for _, v := range definitions {
				if newer(v, m.to) {
					at[checkup.Definitions] = append(at[checkup.Definitions], v)
				}
			}
		case "controller":
			at[checkup.Controller] = []string{m.to}
		case "agents":
			at[checkup.Agents] = []string{m.to}
		}
		for _, bad := range checkup.Skews(at) {
			if !slices.Contains(known, bad) {
				return fmt.Errorf("after the step %q, %s: %s", s.stage, bad, instead(bad, m))
			}
		}
	}
	return nil
}

// instead is what to do about a pair of versions that a move would make.
func instead(bad checkup.Mismatch, m *move) string {
	if m.back && bad.Part == checkup.Definitions {
		return "a way back leaves the definitions as they are; apply the older definitions (crds.yaml) first, which loses " +
			"the fields that they do not have: docs/upgrade.md"
	}
	return bad.Do
}

// union is what a record notes during a move: the objects of all versions, the target's last.
func union(before, now []reference) []reference {
	out := slices.DeleteFunc(slices.Clone(before), func(r reference) bool { return slices.ContainsFunc(now, r.same) })
	return append(out, now...)
}

// same reports whether both name one object, in whatever version of its kind.
func (r reference) same(other reference) bool {
	return r == reference{other.Group, r.Version, other.Kind, other.Namespace, other.Name}
}

// gone lists what a release no longer has, in the order in which it is removed: the last that went in goes first.
// Definitions, the namespace and what people own stay.
func gone(noted, now []reference) []reference {
	out := slices.DeleteFunc(slices.Clone(noted), func(ref reference) bool {
		at := ref.stage()
		return at <= 1 || at < len(stages) && stages[at].kept || slices.ContainsFunc(now, ref.same)
	})
	slices.SortStableFunc(out, func(a, b reference) int { return b.stage() - a.stage() })
	return out
}

// stage returns the index of the stage that the object belongs to, len(stages) where it belongs to none.
func (r reference) stage() int {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(r.gvk())
	object.SetName(r.Name)
	return stageOf(object)
}
