// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"slices"

	"github.com/noderefit/noderefit/api"
)

// ComesBack reports whether the node is newer than its pool: the node's content is newer than any that the whole pool
// had. The pool is to return to what all of its nodes had last. The node's desired configuration stays until the node
// has arrived, so that no node is turned round on its way.
//
// A node with other content counts as newer in three cases only. The node itself had the target right before. Or a
// rollout under a policy sent the node. Or the node has the configuration that a person rolled back from. Any other
// node is updated like the rest: one that registers anew after weeks away, for example, or one that comes from another
// pool. Once such a node is sent, it cannot be told from the others, and finishes.
func (p *Pool) ComesBack(n *Node) bool {
	if p.Target == "" || p.Target != p.Previous || n.Current == "" || n.Current == p.Target ||
		slices.Contains(p.had, n.Current) || elsewhere(p.Name, n.Current) {
		return false
	}
	rolledBack := p.pin.Config == p.Target && p.pin.From == n.Current
	return n.Previous == p.Target || n.Arrived.Config != "" || rolledBack
}

// elsewhere reports whether a configuration was rendered for another pool.
func elsewhere(pool, config string) bool {
	content := api.Content(config)
	return content != config && config != "rendered-"+pool+"-"+content
}
