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
	// Staged are the nodes that have and were not sent yet; Of is how many there are with those that can.
	Staged []string
	Of     int
	// Unable are nodes that could not, each with the reason. Nobody waits for them.
	Unable []NodeProblem
	// Digests are the nodes that have staged an OS, by its digest.
	Digests map[string][]string
	// Required: somebody has to approve it. Approval is what somebody said of the target; nil: nothing.
	Required bool
	Approval *api.Approval
	// Order is what nodes are asked. One that is sent without having been asked is told, too: what was approved counts
	// for it as well.
	Order *api.StageOrder
}

// Differs names the digests, each with the nodes that have it.
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

// Digest is what was staged, empty where it is no OS; false: nodes have different ones.
func (s *Staging) Digest() (string, bool) {
	for digest := range s.Digests {
		return digest, len(s.Digests) == 1
	}
	return "", true
}
