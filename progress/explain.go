// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"maps"
	"slices"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/api"
)

// Object names something in the cluster.
type Object struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

func (o Object) String() string {
	if o.Namespace != "" {
		return o.Kind + " " + o.Namespace + "/" + o.Name
	}
	return o.Kind + " " + o.Name
}

// Answer says why a node or a pool is not, or not yet, where it should be.
type Answer struct {
	Subject Object  `json:"subject"`
	Verdict Verdict `json:"verdict"`
	// Blocking is the object that everything waits for; nil: there is none.
	Blocking *Object `json:"blocking,omitempty"`
	// Since is when that began, as far as anybody knows.
	Since time.Time `json:"since,omitzero"`
	// Until is when it ends by itself; zero: that is not known.
	Until   time.Time `json:"until,omitzero"`
	Because string    `json:"because"`
	// Output is what a program that has a say printed last, a line each.
	Output []string `json:"output,omitempty"`
	// Do is what a person can do about it; empty: nothing is to be done.
	Do string `json:"do,omitempty"`
}

// Sentence is the answer on one line, as in a condition.
func (a Answer) Sentence() string {
	text := a.Because
	if a.Do != "" {
		text += "; " + a.Do
	}
	return text
}

// Daemon is what is known of the daemon's pod on a node.
type Daemon struct {
	Namespace, Pod string // no Pod: there is none
	// Trouble says why it does not work; empty: it does.
	Trouble string
	Since   time.Time
}

// View is what is known of a cluster when somebody asks. What is nil is not known, and nothing is concluded from it.
type View struct {
	Pools []mcfgv1.MachineConfigPool
	Nodes []corev1.Node
	// States and Daemons are by the node's name.
	States  map[string]*mcfgv1.MachineConfigNode
	Daemons map[string]Daemon
	// Drains are fresher than what States say.
	Drains map[string]*api.Drain
	// Missing are rendered configurations that something asks for and that do not exist.
	Missing map[string]bool
	// Follow sets the Rules of pools, all of the cluster's at once; nil: no policies are known.
	Follow func([]*Pool)
}

// Report explains a View.
type Report struct {
	view    View
	pools   map[string]*poolReport
	names   []string // of the pools, sorted
	nodes   map[string]*nodeReport
	members Membership
}

type poolReport struct {
	Pool

	object *mcfgv1.MachineConfigPool
	// taking are the nodes that count against MaxUnavailable, those of the whole control plane in its pools.
	taking []*nodeReport
	// waiting are the nodes that have not been told yet, in the order in which they will be.
	waiting   []*nodeReport
	conflicts []Conflict
	// first is one of the nodes on which the configuration failed and that try it again before all others; nil: none.
	first *Node
}

type nodeReport struct {
	Node

	pool     *poolReport // nil: none
	conflict *Conflict
	state    *mcfgv1.MachineConfigNode
	step     step
	drain    *api.Drain
	stop     *api.HookStop
}

// NewReport brings together what belongs together.
func NewReport(v View) *Report {
	r := &Report{
		view: v, pools: map[string]*poolReport{}, nodes: map[string]*nodeReport{}, members: NewMembership(v.Pools),
	}
	nodes := map[string][]Node{}
	for i := range v.Nodes {
		n := &nodeReport{Node: ReadNode(&v.Nodes[i]), state: v.States[v.Nodes[i].Name]}
		n.readState(v.Drains[n.Name])
		r.nodes[n.Name] = n
		var pool string
		if pool, n.conflict = r.members.Of(&v.Nodes[i]); pool != "" {
			nodes[pool] = append(nodes[pool], n.Node)
		}
	}
	for i := range v.Pools {
		p := &poolReport{Pool: NewPool(&v.Pools[i], nodes[v.Pools[i].Name]), object: &v.Pools[i]}
		r.pools[p.Name] = p
		r.names = append(r.names, p.Name)
		for _, n := range p.Nodes {
			r.nodes[n.Name].pool = p
		}
		if problem := r.members.Problem(p.Name); problem != "" {
			p.Problems = append(p.Problems, problem)
		}
	}
	pools := make([]*Pool, 0, len(r.pools))
	for _, name := range slices.Sorted(maps.Keys(r.pools)) {
		pools = append(pools, &r.pools[name].Pool)
	}
	Share(pools)
	if v.Follow != nil {
		v.Follow(pools)
	}
	slices.Sort(r.names)
	r.order()
	return r
}

// readState takes from the MachineConfigNode what is about the present update; fresh, where given, replaces its drain.
func (n *nodeReport) readState(fresh *api.Drain) {
	n.drain = fresh
	if n.state == nil {
		return
	}
	if n.state.Spec.ConfigVersion.Desired == n.Desired {
		n.step = readStep(n.state)
	}
	// As below: one that can't be read is none.
	n.stop, _ = api.Decode[*api.HookStop](n.state.Annotations, api.HookStopKey)
	if n.stop != nil && n.stop.Config != n.Desired {
		n.stop = nil
	}
	if n.drain == nil {
		// One that can't be read is as if it were not there: the step says still that the node is draining.
		n.drain, _ = api.Decode[*api.Drain](n.state.Annotations, api.DrainKey)
	}
	if n.drain != nil && n.drain.Config != n.Desired {
		n.drain = nil
	}
}

// order finds out who is out of service and who comes next.
func (r *Report) order() {
	for _, name := range slices.Sorted(maps.Keys(r.nodes)) {
		n := r.nodes[name]
		if n.conflict != nil {
			for _, pool := range n.conflict.Pools {
				p := r.pools[pool]
				p.conflicts = append(p.conflicts, *n.conflict)
				p.NodeProblems = append(p.NodeProblems, NodeProblem{n.Name, n.conflict.String()})
			}
		}
		if n.pool == nil {
			continue
		}
		if n.pool.Takes(&n.Node) {
			for _, p := range r.pools {
				if p == n.pool || ControlPlane(p.Name) && ControlPlane(n.pool.Name) {
					p.taking = append(p.taking, n)
				}
			}
		}
		if n.Desired != n.pool.Target && !n.Moving() {
			n.pool.waiting = append(n.pool.waiting, n)
		}
	}
	for _, p := range r.pools {
		slices.SortStableFunc(p.waiting, func(a, b *nodeReport) int { return p.Turn(&a.Node, &b.Node) })
		p.first = p.Trial()
	}
}

// Pools are the names of the pools, sorted.
func (r *Report) Pools() []string { return r.names }

// Pool is where a pool stands.
func (r *Report) Pool(name string) (Pool, bool) {
	p, ok := r.pools[name]
	if !ok {
		return Pool{}, false
	}
	return p.Pool, true
}

// Order is the nodes of a pool that have not been told yet, in the order in which they will be.
func (r *Report) Order(pool string) []string {
	p, ok := r.pools[pool]
	if !ok {
		return nil
	}
	return nodeNames(p.waiting)
}

// Stray are the nodes that belong to no pool, sorted.
func (r *Report) Stray() []string {
	var names []string
	for name, n := range r.nodes {
		if n.pool == nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Node is where a node stands, and the pool that it belongs to, empty where there is none.
func (r *Report) Node(name string) (node Node, pool string, ok bool) {
	n, ok := r.nodes[name]
	if !ok {
		return Node{}, "", false
	}
	if n.pool != nil {
		pool = n.pool.Name
	}
	return n.Node, pool, true
}

// At is the phase of a node, or while it is updating what it is doing, and since when that is so.
func (r *Report) At(name string) (what string, since time.Time) {
	n, ok := r.nodes[name]
	switch {
	case !ok:
		return "", since
	case n.pool == nil:
		return "Unmanaged", since
	}
	phase := n.Phase(n.pool.Target)
	switch phase {
	case PhaseUpdating:
		return n.doing()
	case PhaseUpdated:
		return string(phase), n.condition(mcfgv1.MachineConfigNodeUpdated)
	case PhaseDegraded, PhaseRolledBack:
		return string(phase), n.condition(mcfgv1.MachineConfigNodeNodeDegraded)
	case PhaseWaiting:
	}
	return string(phase), since
}

// doing is the step of a node that is updating.
func (n *nodeReport) doing() (string, time.Time) {
	switch {
	case n.Rebooting && n.NotReady != "" && n.step.Name != stepRebooting:
		return stepRebooting, n.NotReadySince
	case n.drain != nil && n.drain.Left > 0:
		return stepDraining, n.drain.Since
	case n.step.Name != "":
		return n.step.Name, n.step.Since
	}
	return string(PhaseUpdating), time.Time{}
}

// condition is since when a condition of the MachineConfigNode is true.
func (n *nodeReport) condition(of mcfgv1.StateProgress) time.Time {
	if n.state != nil {
		for _, c := range n.state.Status.Conditions {
			if c.Type == string(of) && c.Status == "True" {
				return c.LastTransitionTime.Time
			}
		}
	}
	return time.Time{}
}

// Ended says that a pool goes no further by itself: done, where all is as it should be, or not, with the reason in
// ExplainPool. As long as a node is on its way nothing has ended.
func (r *Report) Ended(pool string) (done, ended bool) {
	p, ok := r.pools[pool]
	if !ok {
		return false, true
	}
	for _, n := range p.Nodes {
		if n.Moving() {
			return false, false
		}
	}
	if p.backText() != "" && !p.Paused {
		return false, false // those that have it still go back
	}
	if r := p.Reported; p.Rules.Policy == "" && r != nil && (r.Verdict == GateClosed || r.Verdict == GateFailed) {
		return false, r.Verdict == GateFailed // who may not read policies goes by what the controller says
	}
	a := r.explainPool(p)
	switch a.Verdict.meaning().end {
	case arrives:
		return p.Complete(), p.Complete()
	case stops:
		return false, true
	case goesOn:
	}
	return false, false
}
