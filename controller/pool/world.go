// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"cmp"
	"slices"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/rollout"
)

// world is the cluster at a moment: its pools with their nodes.
type world struct {
	pools []member
	self  string
	// single is true where only one node of the cluster could take our pods.
	single bool
	// controlPlane has the shares of the control plane's pools, by pool.
	controlPlane map[string]share
	// findings are the reports about RolloutPolicies. next is when to look again although nothing has happened; zero if
	// that is not needed.
	findings []rollout.Finding
	next     time.Time
	now      time.Time
	// asked are the open questions of gates.
	asked []rollout.Ask
	// expirys are the ends of the certificates that all nodes have from the ControllerConfig.
	expirys []mcfgv1.CertExpiry
}

// share counts the nodes of a pool that use up what may be out of service, and how many of these are stuck.
type share struct{ taking, stuck int }

func shareOf(p *progress.Pool) share {
	s := share{}
	for i := range p.Nodes {
		if n := &p.Nodes[i]; p.Takes(n) {
			s.taking++
			s.stuck += rank(stuck(n, p.Target))
		}
	}
	return s
}

type member struct {
	object *mcfgv1.MachineConfigPool
	state  progress.Pool
}

// assemble sorts the nodes into the pools, and applies the policies.
func assemble(pools []*mcfgv1.MachineConfigPool, nodes []*corev1.Node, read *readings, policies []api.RolloutPolicy,
	etcd *progress.Etcd, answers rollout.Answers, self string, now time.Time,
) *world {
	pools = slices.Clone(pools)
	slices.SortFunc(pools, func(a, b *mcfgv1.MachineConfigPool) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(nodes, func(a, b *corev1.Node) int { return cmp.Compare(a.Name, b.Name) })
	values := make([]mcfgv1.MachineConfigPool, 0, len(pools))
	for _, p := range pools {
		values = append(values, *p)
	}
	membership := progress.NewMembership(values)
	read.belong(membership)
	problems, members, linux := map[string][]progress.NodeProblem{}, map[string][]*reading{}, 0
	for _, n := range nodes {
		known := read.of(n)
		linux += rank(!known.belongs.windows)
		if conflict := known.belongs.conflict; conflict != nil {
			for _, p := range conflict.Pools {
				problems[p] = append(problems[p], progress.NodeProblem{Node: n.Name, Text: conflict.String()})
			}
		}
		if pool := known.belongs.pool; pool != "" {
			members[pool] = append(members[pool], known)
		}
	}
	w := &world{self: self, now: now, single: linux == 1, controlPlane: map[string]share{}}
	for _, object := range pools {
		state := progress.NewPool(object, read.group(object.Name, members[object.Name]))
		if problem := membership.Problem(object.Name); problem != "" {
			state.Problems = append(state.Problems, problem)
		}
		state.NodeProblems = append(state.NodeProblems, problems[object.Name]...)
		state.Etcd = etcd
		w.pools = append(w.pools, member{object, state})
	}
	states := make([]*progress.Pool, 0, len(w.pools))
	for i := range w.pools {
		states = append(states, &w.pools[i].state)
	}
	progress.Share(states)
	book := read.policies(policies, answers)
	book.Follow(states, now, self)
	w.findings, w.asked = book.Findings(states), book.Asked()
	for _, p := range states {
		w.wakeForVerdicts(p)
		w.wake(p.Rules.Next)
		if progress.ControlPlane(p.Name) {
			w.controlPlane[p.Name] = shareOf(p)
		}
	}
	return w
}

// wakeForVerdicts has the world looked at again when the next awaited verdict will be overdue. Times that have passed
// are left out: this look itself notes the verdict as overdue.
func (w *world) wakeForVerdicts(p *progress.Pool) {
	for i := range p.Nodes {
		if due := p.Nodes[i].VerdictDue(); due.After(w.now) {
			w.wake(due)
		}
	}
}

// wake has the world looked at again at a time. A zero time does nothing.
func (w *world) wake(at time.Time) {
	if !at.IsZero() && (w.next.IsZero() || at.Before(w.next)) {
		w.next = at
	}
}

// options returns the bounds for the decision about a pool.
func (w *world) options(i int) bounds {
	pool := w.pools[i].object
	o := bounds{Now: w.now, Self: w.self, SingleReplica: w.single && pool.Annotations[api.DrainSingleNode] != "true"}
	if progress.ControlPlane(pool.Name) {
		for name, s := range w.controlPlane {
			if name != pool.Name {
				o.Elsewhere += s.taking
				o.StuckElsewhere += s.stuck
			}
		}
	}
	return o
}

// taken counts the nodes that a decision sent, for the pools that come after this one.
func (w *world) taken(i int, d decision) {
	if name := w.pools[i].object.Name; progress.ControlPlane(name) {
		s := w.controlPlane[name]
		w.controlPlane[name] = share{s.taking + d.Taken, s.stuck - d.Unstuck}
	}
}
