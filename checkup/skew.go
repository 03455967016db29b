// SPDX-License-Identifier: Apache-2.0

package checkup

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/coreos/go-semver/semver"
)

// Part is a part of Noderefit that has a version of its own.
type Part string

// The parts.
const (
	plugin      Part = "plugin"
	Definitions Part = "definitions"
	Controller  Part = "controller"
	Agents      Part = "agents"
)

// skew is a row of the table of supported skews: by how many minor versions the part may be older or newer than the
// other part. docs/kubectl-refit.md and docs/upgrade.md have the table for people.
type skew struct {
	part, of     Part
	older, newer int64
	// do is what to do about a skew that is not supported.
	do string
}

// skews are the supported skews. Patch versions never matter. An upgrade goes from the definitions to the controller to
// the agents, and back the other way.
var skews = []skew{
	{Definitions, Controller, 0, 1, "apply the definitions of the controller's version (crds.yaml)"},
	{Definitions, Agents, 0, 1, "apply the definitions of the agents' version (crds.yaml)"},
	{Agents, Controller, 1, 1, "bring agents and controller to versions that are one minor version apart at most"},
	{plugin, Controller, 1, 1, "install a plugin of the controller's version"},
}

// Mismatch is a pair of versions that is not supported.
type Mismatch struct {
	Part, Of      Part
	Version, With string
	// Do is what to do about it.
	Do string
}

func (s Mismatch) String() string {
	return fmt.Sprintf("%s %s with %s %s is not supported", s.Part, s.Version, s.Of, s.With)
}

// Skews returns the pairs of versions that are not supported. A part may have several versions at once, as during an
// upgrade. Versions that are not semantic, such as that of a build without a release, are passed over.
func Skews(versions map[Part][]string) []Mismatch {
	var out []Mismatch
	for _, row := range skews {
		for _, a := range versions[row.part] {
			for _, b := range versions[row.of] {
				if !row.allows(a, b) {
					out = append(out, Mismatch{row.part, row.of, a, b, row.do})
				}
			}
		}
	}
	return out
}

// allows judges two versions. Before 1.0 too, the minor version counts. Two major versions never go together.
func (row skew) allows(part, of string) bool {
	a, b := semantic(part), semantic(of)
	switch {
	case a == nil || b == nil:
		return true
	case a.Major != b.Major:
		return false
	case a.Minor < b.Minor:
		return b.Minor-a.Minor <= row.older
	}
	return a.Minor-b.Minor <= row.newer
}

// semantic reads a version such as v1.2.3. It is nil for a version of another form.
func semantic(version string) *semver.Version {
	v, err := semver.NewVersion(strings.TrimPrefix(version, "v"))
	if err != nil {
		return nil
	}
	return v
}

// sortedCounts lists versions with their counts, as "v0.1.0 (3), v0.2.0".
func sortedCounts(counts map[string]int) string {
	var out []string
	for _, version := range slices.Sorted(maps.Keys(counts)) {
		text := orUnknown(version)
		if len(counts) > 1 {
			text = fmt.Sprintf("%s (%d)", text, counts[version])
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}

func orUnknown(version string) string {
	if version == "" {
		return "of no known version"
	}
	return version
}
