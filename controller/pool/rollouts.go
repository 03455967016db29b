// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"slices"
	"time"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

// rolloutsLimit is how many rollouts a pool remembers.
const rolloutsLimit = 10

// rollouts returns what a pool has to remember of its rollouts now. The result follows from what is remembered, the
// pool and the time alone. It changes when a rollout begins, fails on a node or ends. So a pool of thousands of nodes
// writes no more than a pool of two nodes.
//
// A configuration that all nodes have already is no rollout. An example is a pool that is empty, or that was just made
// of nodes of another pool. A node that joins later begins no new rollout.
func rollouts(known []api.PastRollout, p progress.Pool, now time.Time) []api.PastRollout {
	out := slices.Clone(known)
	now = now.UTC().Truncate(time.Second)
	if p.Target != "" && (len(out) == 0 || out[0].Config != p.Target) {
		if len(out) > 0 && out[0].Ended.IsZero() {
			out[0].Ended, out[0].Replaced = now, true
			out[0].Nodes, out[0].Updated = p.Machines, having(p, out[0].Config)
		}
		if p.Updated < p.Machines {
			out = slices.Insert(out, 0, api.PastRollout{Config: p.Target, Wanted: now})
		}
	}
	if len(out) > 0 && out[0].Config == p.Target && out[0].Ended.IsZero() {
		follow(&out[0], p, now)
	}
	return out[:min(len(out), rolloutsLimit)]
}

// follow updates the rollout of the pool's target.
func follow(r *api.PastRollout, p progress.Pool, now time.Time) {
	for i := 0; r.Began.IsZero() && i < len(p.Nodes); i++ {
		if p.Nodes[i].Desired == p.Target {
			r.Began = now
		}
	}
	r.Failed = max(r.Failed, len(p.Failed()))
	if p.Complete() {
		r.Ended, r.Nodes, r.Updated = now, p.Machines, p.Updated
	}
}

// having returns how many nodes have a configuration, wherever they go next.
func having(p progress.Pool, config string) int {
	count := 0
	for i := range p.Nodes {
		count += rank(p.Nodes[i].Current == config)
	}
	return count
}
