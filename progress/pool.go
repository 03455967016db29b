// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"cmp"
	"fmt"
	"slices"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/noderefit/noderefit/api"
)

// PoolMisconfigured is a condition of a MachineConfigPool: its own selector or maxUnavailable says nothing sensible, or
// it claims nodes that another custom pool claims as well.
const PoolMisconfigured mcfgv1.MachineConfigPoolConditionType = "Misconfigured"

// QuarantineLimit is how many quarantined configurations a pool remembers, the latest.
const QuarantineLimit = 16

// Pool is where a pool stands.
type Pool struct {
	Name string
	// Target is the configuration that the pool shall have; empty: none was rendered yet.
	Target string
	// Previous is the one that all its nodes last had.
	Previous string
	Paused   bool
	// MaxUnavailable is how many nodes may be out of service for an update.
	MaxUnavailable int
	// Nodes by name.
	Nodes []Node
	// Quarantined are the configurations that failed on a node and were not lifted since, the latest first.
	Quarantined []api.Quarantine
	// Problems are what is wrong with the pool itself, a sentence each.
	Problems []string
	Counts
}

// Counts of a pool's nodes, as in the status of a MachineConfigPool.
type Counts struct {
	Machines, Updated, Ready, Unavailable, Degraded int
}

// NewPool reads a pool with the nodes that belong to it. Nodes is sorted in place.
func NewPool(pool *mcfgv1.MachineConfigPool, nodes []Node) Pool {
	slices.SortFunc(nodes, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	p := Pool{
		Name: pool.Name, Target: pool.Spec.Configuration.Name, Previous: pool.Status.Configuration.Name,
		Paused: pool.Spec.Paused, Nodes: nodes,
	}
	p.Counts = count(nodes, p.Target)
	var err error
	if p.MaxUnavailable, err = MaxUnavailable(pool.Spec.MaxUnavailable, len(nodes)); err != nil {
		p.Problems = append(p.Problems, err.Error())
	}
	if ControlPlane(pool.Name) {
		p.MaxUnavailable = 1
	}
	if p.Quarantined, err = quarantined(pool, nodes); err != nil {
		p.Problems = append(p.Problems, err.Error())
	}
	for _, n := range nodes {
		if n.Unread != "" {
			p.Problems = append(p.Problems, n.Unread)
		}
	}
	return p
}

func count(nodes []Node, target string) Counts {
	c := Counts{Machines: len(nodes)}
	for _, n := range nodes {
		if n.Updated(target) {
			c.Updated++
			if n.Serving() {
				c.Ready++
			}
		}
		if n.Unavailable() {
			c.Unavailable++
		}
		if n.Failing() {
			c.Degraded++
		}
	}
	return c
}

// Complete says that every node is at the target and serves.
func (p Pool) Complete() bool {
	return p.Target != "" && p.Updated == p.Machines && p.Ready == p.Machines && p.Unavailable == 0
}

// Quarantine is why the target is offered to no further node; nil: it is.
func (p Pool) Quarantine() *api.Quarantine { return p.quarantine(p.Target) }

func (p Pool) quarantine(config string) *api.Quarantine {
	for i := range p.Quarantined {
		if p.Quarantined[i].Config == config {
			return &p.Quarantined[i]
		}
	}
	return nil
}

// Refuses says that the configuration failed on a node of the pool and was not lifted since.
func (p Pool) Refuses(config string) bool { return p.quarantine(config) != nil }

// Taking are the nodes that use up MaxUnavailable.
func (p Pool) Taking() []Node {
	return slices.DeleteFunc(slices.Clone(p.Nodes), func(n Node) bool { return !n.Takes(p.Target) })
}

// ControlPlane says that the pool's nodes hold the cluster's state: they are taken out of service one at a time, the
// pools together.
func ControlPlane(pool string) bool {
	return pool == api.PoolMaster || pool == api.PoolControlPlane || pool == api.PoolArbiter
}

// MaxUnavailable is how many of a pool's nodes may be out of service: 1 where nothing is said, percentages rounded
// down, never less than 1 (what stops a rollout is paused). With an error, which names the value, it is 1.
func MaxUnavailable(v *intstr.IntOrString, nodes int) (int, error) {
	if v == nil {
		return 1, nil
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(v, nodes, false)
	if err != nil || n < 0 {
		return 1, fmt.Errorf("spec.maxUnavailable: %q is neither a number of nodes nor a percentage: 1 is used", v.String())
	}
	return max(n, 1), nil
}

// quarantined is what the pool remembers and what its nodes report, the first report of each configuration, without
// what was lifted since. A configuration that failed again after it was lifted is there again.
func quarantined(pool *mcfgv1.MachineConfigPool, nodes []Node) ([]api.Quarantine, error) {
	known, err := api.Decode[[]api.Quarantine](pool.Annotations, api.PoolQuarantineKey)
	lifted, liftedErr := Lifted(pool)
	for _, n := range nodes {
		for _, q := range n.Quarantined {
			q.Node = n.Name
			known = append(known, q)
		}
	}
	known = slices.DeleteFunc(known, func(q api.Quarantine) bool {
		return slices.ContainsFunc(lifted, func(l api.Lifted) bool { return l.Config == q.Config && !l.At.Before(q.Since) })
	})
	slices.SortStableFunc(known, func(a, b api.Quarantine) int { return a.Since.Compare(b.Since) })
	var out []api.Quarantine
	for _, q := range known {
		if !slices.ContainsFunc(out, func(o api.Quarantine) bool { return o.Config == q.Config }) {
			out = append(out, q)
		}
	}
	slices.Reverse(out)
	out = out[:min(len(out), QuarantineLimit)]
	return out, cmp.Or(err, liftedErr)
}

// Lifted are the quarantines of a pool that somebody took back.
func Lifted(pool *mcfgv1.MachineConfigPool) ([]api.Lifted, error) {
	return api.Decode[[]api.Lifted](pool.Annotations, api.LiftedKey)
}
