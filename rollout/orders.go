// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

// kept returns the orders that the nodes have. A policy that makes no sense, or a second policy, gives nodes on their
// way no new orders. A typing error must not evict pods that were to stay, nor make nodes release what they have
// pulled. Orders to stage content that no policy can want any more are dropped.
func kept(pool *progress.Pool) map[string]api.Orders {
	out := map[string]api.Orders{}
	for i := range pool.Nodes {
		n := &pool.Nodes[i]
		o := n.Orders
		o.Reboot = nil // which orders to reboot go on is decided for each node
		if !ordered(n, pool.Target) || n.Updated(pool.Target) || pool.Quarantine() != nil {
			o.Stage = nil
		}
		if o != (api.Orders{}) {
			out[n.Name] = o
		}
	}
	return out
}
