// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/noderefit/noderefit/api"
)

// Staging is how far a pool's nodes are with staging its target ahead.
type Staging struct {
	// Staged are the nodes that have staged the target and were not sent yet. Of is their number together with the nodes
	// that can still stage it.
	Staged []string
	Of     int
	// Unable are nodes that could not stage, each with the reason. No other node waits for them.
	Unable []NodeProblem
	// Digests are the nodes that have staged an OS, by its digest.
	Digests map[string][]string
	// Required reports whether a person has to approve the staged target. Approval is a person's approval of the target;
	// nil if no person gave one.
	Required bool
	Approval *api.Approval
	// Order is the order to nodes to stage. A node that is sent without having been asked gets the order too, because
	// the approval counts for that node as well.
	Order *api.StageOrder
}

// Differs returns the digests, each with the nodes that have it.
func (s *Staging) Differs() string {
	var parts []string
	for _, digest := range slices.Sorted(maps.Keys(s.Digests)) {
		nodes := s.Digests[digest]
		text := nodes[0]
		if len(nodes) > 1 {
			text += fmt.Sprintf(" and %d more", len(nodes)-1)
		}
		parts = append(parts, digest+" on "+text)
	}
	return strings.Join(parts, ", ")
}

// Digest returns the digest that was staged, empty if no OS was staged. Digest returns false if nodes have different
// digests.
func (s *Staging) Digest() (string, bool) {
	for digest := range s.Digests {
		return digest, len(s.Digests) == 1
	}
	return "", true
}
