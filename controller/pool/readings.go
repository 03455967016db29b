// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/rollout"
)

// readings is what was read of Nodes at the last look. Most Nodes have not changed since. The zero value is empty.
type readings struct {
	nodes map[string]*reading
	// names are the names of all Nodes, sorted.
	names []string
	// pools has the nodes of each pool at the last look. A list that was handed out is never changed.
	pools map[string]group
	// orders has the orders by the text of their annotation, so that nodes with the same orders share them.
	orders map[string]api.Orders
	// membership is the membership by which the Nodes were read.
	membership progress.Membership
	// lost is why policies are missing that people did not delete. lost is empty if people deleted all missing policies.
	lost string
	// book is made of policies of these versions.
	book     *rollout.Book
	versions []string
}

// reading is what was read of one version of a Node. A reading is never changed.
type reading struct {
	uid     types.UID
	version string
	node    progress.Node
	belongs belonging
}

// belonging is where a Node belongs by a membership.
type belonging struct {
	pool     string
	conflict *progress.Conflict
	windows  bool
}

type group struct {
	readings []*reading
	nodes    []progress.Node
}

// of reads a Node, unless the Node is unchanged.
func (r *readings) of(n *corev1.Node) *reading {
	if known := r.nodes[n.Name]; known != nil && n.ResourceVersion != "" && known.version == n.ResourceVersion &&
		known.uid == n.UID {
		return known
	}
	read := &reading{uid: n.UID, version: n.ResourceVersion, node: progress.ReadNode(n)}
	read.belongs.pool, read.belongs.conflict = r.membership.Of(n)
	read.belongs.windows = progress.Windows(n)
	if text := n.Annotations[api.OrdersKey]; text != "" {
		read.node.Orders = r.shared(text, read.node.Orders)
	}
	if r.nodes == nil {
		r.nodes = map[string]*reading{}
	}
	r.nodes[n.Name] = read
	return read
}

// belong sets the membership by which Nodes belong to pools.
func (r *readings) belong(m progress.Membership) {
	if !m.Equal(r.membership) {
		r.membership, r.nodes = m, nil
	}
}

// policies reads policies, unless they are unchanged.
func (r *readings) policies(policies []api.RolloutPolicy, answers rollout.Answers) *rollout.Book {
	versions := make([]string, 0, len(policies))
	versioned := true
	for i := range policies {
		p := &policies[i]
		versions = append(versions, string(p.UID)+" "+p.ResourceVersion)
		versioned = versioned && p.ResourceVersion != ""
	}
	slices.Sort(versions) // a cache lists its objects in any order
	if r.book == nil || !versioned || !slices.Equal(r.versions, versions) {
		r.book, r.versions = rollout.NewBook(policies, answers), versions
	}
	r.book.Answered(answers)
	r.book.Lose(rollout.LostAs(r.lost))
	return r.book
}

// mostOrders is how many different orders are kept to share. A rollout has two or three.
const mostOrders = 50

func (r *readings) shared(text string, orders api.Orders) api.Orders {
	if known, is := r.orders[text]; is {
		return known
	}
	if r.orders == nil || len(r.orders) >= mostOrders {
		r.orders = map[string]api.Orders{}
	}
	r.orders[text] = orders
	return orders
}

// group returns the nodes of a pool in the given order. The result is the same list as before where no node has
// changed.
func (r *readings) group(pool string, of []*reading) []progress.Node {
	if before := r.pools[pool]; slices.Equal(before.readings, of) {
		return before.nodes
	}
	nodes := make([]progress.Node, len(of))
	for i, read := range of {
		nodes[i] = read.node
	}
	if r.pools == nil {
		r.pools = map[string]group{}
	}
	r.pools[pool] = group{of, nodes}
	return nodes
}

// sorted returns Nodes by name. The names are mostly those of the last look.
func (r *readings) sorted(nodes map[string]*corev1.Node) []*corev1.Node {
	out := make([]*corev1.Node, 0, len(nodes))
	for _, name := range r.names {
		if n := nodes[name]; n != nil {
			out = append(out, n)
		}
	}
	if len(out) < len(nodes) || len(out) < len(r.names) {
		r.names = slices.Sorted(maps.Keys(nodes))
		out = out[:0]
		for _, name := range r.names {
			out = append(out, nodes[name])
		}
	}
	return out
}

// forget drops what was read of Nodes and pools that are gone.
func (r *readings) forget(nodes map[string]*corev1.Node, pools map[string]bool) {
	maps.DeleteFunc(r.nodes, func(name string, _ *reading) bool { return nodes[name] == nil })
	maps.DeleteFunc(r.pools, func(name string, _ group) bool { return !pools[name] })
}
