// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

// kept are the orders that the nodes have. A policy that makes no sense, or two, says nothing new to nodes that are on
// their way: pods that were to stay must not be evicted, and a fleet must not let go of what it has pulled, because of
// a slip. What is not to be staged any more whatever the policy says is let go of.
func kept(pool *progress.Pool) map[string]api.Orders {
	out := map[string]api.Orders{}
	for i := range pool.Nodes {
		n := &pool.Nodes[i]
		o := n.Orders
		if !ordered(n, pool.Target) || n.Updated(pool.Target) || pool.Quarantine() != nil {
			o.Stage = nil
		}
		if o != (api.Orders{}) {
			out[n.Name] = o
		}
	}
	return out
}
