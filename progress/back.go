// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"slices"

	"github.com/noderefit/noderefit/api"
)

// ComesBack says that the node has something newer than the whole pool ever had, and that the pool is to have again
// what all of its nodes had last. What is asked of it stays as it is until it has arrived, so that no node is turned
// round on its way.
//
// Of a node with something else it can't be told that it is newer unless the node itself had the target right before,
// was sent by a rollout under a policy, or has what somebody rolled back from. One of which none is true, such as one
// that registers anew after it was away for weeks, is updated as any other, and so is one that comes from another pool.
// Once it was sent it can't be told from the others, and finishes.
func (p *Pool) ComesBack(n *Node) bool {
	if p.Target == "" || p.Target != p.Previous || n.Current == "" || n.Current == p.Target ||
		slices.Contains(p.had, n.Current) || elsewhere(p.Name, n.Current) {
		return false
	}
	rolledBack := p.pin.Config == p.Target && p.pin.From == n.Current
	return n.Previous == p.Target || n.Arrived.Config != "" || rolledBack
}

// elsewhere says that a configuration was rendered for another pool.
func elsewhere(pool, config string) bool {
	content := api.Content(config)
	return content != config && config != "rendered-"+pool+"-"+content
}
