// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/noderefit/noderefit/api"
)

// Conflict is a node that several custom pools select. The node is left alone until only one of them selects it.
type Conflict struct {
	Node  string
	Pools []string
}

func (c Conflict) String() string {
	return fmt.Sprintf("node %s belongs to %d custom pools (%s): the node is left alone until only one pool selects it",
		c.Node, len(c.Pools), strings.Join(c.Pools, ", "))
}

// Membership knows which pool each node belongs to.
type Membership struct {
	pools     []string
	selectors map[string]labels.Selector
	problems  map[string]string
}

// NewMembership reads the selectors of all pools. A pool without a selector, or with an empty one, selects nothing.
func NewMembership(pools []mcfgv1.MachineConfigPool) Membership {
	m := Membership{selectors: map[string]labels.Selector{}, problems: map[string]string{}}
	for i := range pools {
		p := &pools[i]
		selector, err := metav1.LabelSelectorAsSelector(p.Spec.NodeSelector)
		switch {
		case api.UnreadableField(p, "spec.nodeSelector"):
			m.problems[p.Name] = fmt.Sprintf("%v: the pool's nodes are left alone", api.Unreadable(p))
		case err != nil:
			m.problems[p.Name] = fmt.Sprintf("spec.nodeSelector: %v: the pool's nodes are left alone", err)
		case !selector.Empty():
			m.pools = append(m.pools, p.Name)
			m.selectors[p.Name] = selector
		}
	}
	slices.Sort(m.pools)
	return m
}

// Equal reports whether both give the same answers for every node.
func (m Membership) Equal(other Membership) bool {
	return slices.Equal(m.pools, other.pools) && maps.Equal(m.problems, other.problems) &&
		maps.EqualFunc(m.selectors, other.selectors, func(a, b labels.Selector) bool { return a.String() == b.String() })
}

// Problem returns what is wrong with a pool's selector; empty if nothing is.
func (m Membership) Problem(pool string) string { return m.problems[pool] }

// Of returns the pool that a node belongs to, empty if the node belongs to none. The control plane's pools come before
// any custom pool, and a custom pool comes before worker. A node that several custom pools select belongs to no pool,
// not even to worker.
func (m Membership) Of(n *corev1.Node) (string, *Conflict) {
	if Windows(n) || m.stranded(n) {
		return "", nil
	}
	var custom []string
	matched := map[string]bool{}
	for _, pool := range m.pools {
		if !m.selectors[pool].Matches(labels.Set(n.Labels)) {
			continue
		}
		matched[pool] = true
		if !ControlPlane(pool) && pool != api.PoolWorker {
			custom = append(custom, pool)
		}
	}
	for _, pool := range []string{api.PoolMaster, api.PoolControlPlane, api.PoolArbiter} {
		if matched[pool] {
			return pool, nil
		}
	}
	switch {
	case len(custom) > 1:
		return "", &Conflict{Node: n.Name, Pools: custom}
	case len(custom) == 1:
		return custom[0], nil
	case matched[api.PoolWorker]:
		return api.PoolWorker, nil
	}
	return "", nil
}

// Windows reports whether the node runs Windows, which cannot be configured here.
func Windows(n *corev1.Node) bool { return n.Labels[corev1.LabelOSStable] == "windows" }

// stranded reports whether the node's pool has a selector that cannot be read. Such a node must not fall to another
// pool: a typing error must not refit nodes.
func (m Membership) stranded(n *corev1.Node) bool {
	for pool := range m.problems {
		if rest, ok := strings.CutPrefix(n.Annotations[api.DesiredConfig], "rendered-"+pool+"-"); ok &&
			!strings.Contains(rest, "-") {
			return true
		}
	}
	return false
}
