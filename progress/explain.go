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
	// Blocking is the object that everything waits for; nil if no object blocks.
	Blocking *Object `json:"blocking,omitempty"`
	// Since is when the cause began, where that is known.
	Since time.Time `json:"since,omitzero"`
	// Until is when the cause ends by itself; zero if that is not known.
	Until   time.Time `json:"until,omitzero"`
	Because string    `json:"because"`
	// Output is the last output of a program that decides, such as a hook, one line each.
	Output []string `json:"output,omitempty"`
	// Warnings say that the pool's configuration, or how the node was rebooted, may not be what its author meant. They
	// hold nothing up.
	Warnings []string `json:"warnings,omitempty"`
	// Do is what a person can do about the cause; empty if nothing is to be done.
	Do string `json:"do,omitempty"`
	// Images is what a node has of the images of its PinnedImageSets; empty: it has none to have, or Because says so.
	Images string `json:"images,omitempty"`
}

// Sentence returns the answer on one line, as in a condition.
func (a Answer) Sentence() string {
	text := a.Because
	if a.Do != "" {
		text += "; " + a.Do
	}
	return text
}

// Daemon is the known state of the daemon's pod on a node.
type Daemon struct {
	Namespace, Pod string // Pod is empty if the node has no pod
	// Trouble is why the pod does not work; empty if the pod works.
	Trouble string
	Since   time.Time
}

// View is the known state of a cluster at the time of a question. A nil field is not known, and no conclusion is drawn
// from it.
type View struct {
	Pools []mcfgv1.MachineConfigPool
	Nodes []corev1.Node
	// States and Daemons are keyed by the node's name.
	States  map[string]*mcfgv1.MachineConfigNode
	Daemons map[string]Daemon
	// Drains are newer than the drains in States.
	Drains map[string]*api.Drain
	// Missing are rendered configurations that a pool or a node refers to and that do not exist.
	Missing map[string]bool
	// Follow sets the Rules of all the cluster's pools together; nil if no policies are known.
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
	// taking are the nodes that count against MaxUnavailable. In a pool of the control plane, nodes of the whole control
	// plane count.
	taking []*nodeReport
	// waiting are the nodes that have not been sent yet, in the order in which they will be sent.
	waiting   []*nodeReport
	conflicts []Conflict
	// first is one of the nodes on which the target failed and that try it again before all others; nil if no node does.
	first *Node
}

type nodeReport struct {
	Node

	pool     *poolReport // nil: the node belongs to no pool
	conflict *Conflict
	state    *mcfgv1.MachineConfigNode
	step     step
	drain    *api.Drain
	stop     *api.HookStop
}

// NewReport matches the pools of a view with their nodes, and the nodes with their states.
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
			known := r.nodes[n.Name]
			known.Node, known.pool = n, p // what the node has depends on the pool, where that names values
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

// readState takes what concerns the present update from the MachineConfigNode. A fresh drain replaces the drain
// recorded there.
func (n *nodeReport) readState(fresh *api.Drain) {
	n.drain = fresh
	if n.state == nil {
		return
	}
	if n.state.Spec.ConfigVersion.Desired == n.Desired {
		n.step = readStep(n.state)
	}
	// A hook's stop that cannot be read counts as missing, like a drain below.
	n.stop, _ = api.Decode[*api.HookStop](n.state.Annotations, api.HookStopKey)
	if n.stop != nil && api.Rendered(n.stop.Config) != api.Rendered(n.Desired) {
		n.stop = nil
	}
	if n.drain == nil {
		// A drain that cannot be read counts as missing: the step still shows that the node is draining.
		n.drain, _ = api.Decode[*api.Drain](n.state.Annotations, api.DrainKey)
	}
	if n.drain != nil && api.Rendered(n.drain.Config) != api.Rendered(n.Desired) {
		n.drain = nil
	}
}

// order finds which nodes are out of service and which come next.
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
		if n.Desired != n.pool.Target && !n.Moving() && n.pool.Rules.Kept[n.Name] == nil {
			n.pool.waiting = append(n.pool.waiting, n)
		}
	}
	for _, p := range r.pools {
		slices.SortStableFunc(p.waiting, func(a, b *nodeReport) int { return p.Turn(&a.Node, &b.Node) })
		p.first = p.Retrier()
	}
}

// Pools returns the names of the pools, sorted.
func (r *Report) Pools() []string { return r.names }

// Nodes returns the names of all nodes, sorted.
func (r *Report) Nodes() []string { return slices.Sorted(maps.Keys(r.nodes)) }

// Pool returns the state of a pool, and false if the report has no such pool.
func (r *Report) Pool(name string) (Pool, bool) {
	p, ok := r.pools[name]
	if !ok {
		return Pool{}, false
	}
	return p.Pool, true
}

// Order returns the nodes of a pool that have not been sent yet, in the order in which they will be sent.
func (r *Report) Order(pool string) []string {
	p, ok := r.pools[pool]
	if !ok {
		return nil
	}
	return nodeNames(p.waiting)
}

// Stray returns the nodes that belong to no pool, sorted.
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

// Node returns the state of a node, and the pool that the node belongs to. The pool is empty if the node belongs to
// none.
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

// At returns the phase of a node and when the phase began. For a node that is updating, it returns the step instead.
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

// doing returns the step of a node that is updating, and when the step began.
func (n *nodeReport) doing() (string, time.Time) {
	switch {
	case n.NeedsReboot():
		return string(NeedsReboot), n.reason(api.RebootConfiguration).Since
	case n.Rebooting && n.NotReady != "" && n.step.Name != stepRebooting:
		return stepRebooting, n.NotReadySince
	case n.drain != nil && n.drain.Left > 0:
		return stepDraining, n.drain.Since
	case n.step.Name != "":
		return n.step.Name, n.step.Since
	}
	return string(PhaseUpdating), time.Time{}
}

// condition returns since when a condition of the MachineConfigNode is true.
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

// Ended reports whether a pool goes no further by itself. done is true if all nodes are where they should be; otherwise
// ExplainPool has the reason. A pool with a node on its way has not ended.
func (r *Report) Ended(pool string) (done, ended bool) {
	p, ok := r.pools[pool]
	if !ok {
		return false, true
	}
	for _, n := range p.Nodes {
		if n.Moving() && !n.NeedsReboot() || n.RebootOrdered() != nil {
			return false, false
		}
	}
	if p.backText() != "" && !p.Paused {
		return false, false // nodes that still have the target go back
	}
	if r := p.Reported; p.Rules.Policy == "" && r != nil && (r.Verdict == GateClosed || r.Verdict == GateFailed) {
		return false, r.Verdict == GateFailed // a caller that may not read policies relies on the controller's conditions
	}
	a := r.explainPool(p)
	switch a.Verdict.meaning().end {
	case arrives:
		done = p.Complete() || len(p.Nodes) == 0 && p.unwritten()
		return done, done
	case stops:
		return false, a.Until.IsZero() // a person's hold may end by itself
	case goesOn:
	}
	return false, false
}
