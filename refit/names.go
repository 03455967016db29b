// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"slices"

	"github.com/noderefit/noderefit/progress"
)

// Names returns the pools and nodes of a status.
func (d StatusDocument) Names() []progress.Object {
	var out []progress.Object
	for _, p := range d.Pools {
		out = append(out, progress.Object{Kind: kindPool, Name: p.Name})
	}
	for _, n := range d.Nodes {
		out = append(out, progress.Object{Kind: kindNode, Name: n.Name})
	}
	return out
}

// Names returns the node or the pool.
func (e Explanation) Names() []progress.Object { return []progress.Object{e.Subject} }

// Names returns the nodes that would go, in their order.
func (d *PlanDocument) Names() []progress.Object {
	out := make([]progress.Object, len(d.Order))
	for i, n := range d.Order {
		out[i] = progress.Object{Kind: kindNode, Name: n}
	}
	return out
}

// Names returns the pool.
func (a Approved) Names() []progress.Object { return []progress.Object{{Kind: kindPool, Name: a.Pool}} }

// Names returns the configurations that are in quarantine, each once.
func (rows Quarantines) Names() []progress.Object {
	var out []progress.Object
	for _, q := range rows {
		o := progress.Object{Kind: "MachineConfig", Name: q.Config}
		if q.Lifted == nil && !slices.Contains(out, o) {
			out = append(out, o)
		}
	}
	return out
}
