// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/noderefit/noderefit/api"
)

// PoolMisconfigured is a condition of a MachineConfigPool. It is true if the pool's selector or maxUnavailable makes no
// sense, or if the pool selects nodes that another custom pool selects as well.
const PoolMisconfigured mcfgv1.MachineConfigPoolConditionType = "Misconfigured"

const (
	// quarantineLimit is how many failed configurations a pool remembers, the latest ones. A pool also remembers all
	// failed configurations that it could come to again.
	quarantineLimit = 16
	// rememberedNodes is how many nodes a pool remembers for each failed configuration: the nodes that failed first.
	rememberedNodes = 8
)

// Pool is the state of a pool.
type Pool struct {
	Name string
	// Target is the configuration that the pool shall have; empty if no configuration was rendered yet.
	Target string
	// Previous is the configuration that all the pool's nodes last had.
	Previous string
	Paused   bool
	// Unread is why the pool's object can't be read as a whole; empty if it can be read. The pool's nodes are left alone
	// until then.
	Unread string
	// MaxUnavailable is how many nodes may be out of service for an update.
	MaxUnavailable int
	// Nodes are the pool's nodes, sorted by name.
	Nodes []Node
	// Quarantined are the pool's known failures that no person has lifted, one for each content and node. The failure that
	// was seen first comes last. The order does not depend on the clocks of nodes.
	Quarantined []api.Quarantine
	// Elsewhere are failures that only other pools know of. They count here too, because content fails, not a name.
	Elsewhere []api.Quarantine
	// Lifts are the quarantines that people lifted in this pool, the latest first.
	Lifts []api.Lifted
	// Problems are the errors of the pool itself, one sentence each.
	Problems []string
	// NodeProblems are the errors on Node objects, because of which the state of these nodes is only partly known.
	NodeProblems []NodeProblem
	Counts
	// Left counts the nodes that are left out of Nodes; the zero value means that none are. Counts includes these nodes.
	Left Left

	Labels map[string]string
	// Rendering reports whether the pool's target is about to change.
	Rendering bool
	// Bypass is a person's order to let the target pass most of the pool's rules; nil if no person gave one.
	Bypass *api.Bypass
	// Reboot is a person's order that each node reboots once; nil if no person gave one.
	Reboot *api.RebootRequest
	// Approval is what a person approved of what was staged; nil if nothing was approved.
	Approval *api.Approval
	// Withheld is the release that no further node goes to, which is the OS of the target; nil if nothing is withheld.
	Withheld *api.Withheld
	// Noted is the policy that was in force when the controller last looked; nil if no policy was. A note that cannot be
	// read has a name that no policy can have.
	Noted *api.PolicyNote
	// Reported is the hold that the pool's condition api.PoolHeld shows; nil if it shows none.
	Reported *Hold
	// Refused says which writes to the pool and its nodes are refused, and why; empty if none are. The caller sets it.
	Refused string
	// Rules are the present rules of a RolloutPolicy for the pool. The caller sets them, after Share.
	Rules Rules
	// Etcd is the known health of etcd, where that matters for the pool; nil if it does not, or is not known. The caller
	// sets Etcd before the rules.
	Etcd *Etcd

	known  []api.Quarantine // lifted or not
	fresh  int              // how many of known the pool does not remember yet
	lifted []api.Lifted     // in any pool
	inUse  map[string]bool  // content that the pool could come to, or return to
	had    []string         // what all the pool's nodes had before Previous
	pin    api.Pin
}

// NodeProblem is an error on one Node object, in a sentence that names the node.
type NodeProblem struct{ Node, Text string }

// Counts are the numbers of a pool's nodes, as in the status of a MachineConfigPool.
type Counts struct {
	Machines, Updated, Ready, Unavailable, Degraded int
}

// NewPool reads a pool and the nodes that belong to it. nodes is sorted in place.
func NewPool(pool *mcfgv1.MachineConfigPool, nodes []Node) Pool {
	if !byName(nodes) {
		slices.SortFunc(nodes, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	}
	nodes, valuesErr := withValues(pool, nodes)
	p := Pool{
		Name: pool.Name, Target: pool.Spec.Configuration.Name, Previous: pool.Status.Configuration.Name,
		Paused: pool.Spec.Paused, Nodes: nodes, Labels: pool.Labels,
	}
	p.Counts = count(nodes, p.Target)
	if err := api.Unreadable(pool); err != nil {
		p.Unread = err.Error()
		p.Problems = append(p.Problems, p.Unread+": the pool's nodes are left alone until that is corrected")
	}
	for _, c := range pool.Status.Conditions {
		if c.Type == api.PoolRenderPending && c.Status == corev1.ConditionTrue && c.Reason != api.PartRefused {
			p.Rendering = true
		}
		if c.Type == api.PoolHeld && c.Status == corev1.ConditionTrue {
			p.Reported = &Hold{Verdict: Verdict(c.Reason), Because: c.Message}
		}
	}
	if valuesErr != nil {
		p.Problems = append(p.Problems, valuesErr.Error())
	}
	var err error
	if p.Bypass, err = api.Decode[*api.Bypass](pool.Annotations, api.BypassKey); err != nil {
		p.Problems = append(p.Problems, err.Error())
	}
	if p.Reboot, err = api.RequestedReboot(pool.Annotations); err != nil {
		p.Problems = append(p.Problems, err.Error())
	}
	if p.Approval, err = api.Decode[*api.Approval](pool.Annotations, api.ApprovedKey); err != nil {
		p.Problems = append(p.Problems, err.Error())
	}
	if p.Withheld, err = api.Decode[*api.Withheld](pool.Annotations, api.WithheldKey); err != nil {
		p.Problems = append(p.Problems, err.Error())
	}
	if p.MaxUnavailable, err = MaxUnavailable(pool.Spec.MaxUnavailable, len(nodes)); err != nil {
		p.Problems = append(p.Problems, err.Error())
	}
	if ControlPlane(pool.Name) {
		p.MaxUnavailable = 1
	}
	if p.known, p.fresh, err = failures(pool, nodes); err != nil {
		p.Problems = append(p.Problems, err.Error())
	}
	if p.Lifts, err = Lifted(pool); err != nil {
		p.Problems = append(p.Problems, err.Error())
	}
	p.lifted = p.Lifts
	if _, err = api.ParseDriftPolicy(pool.Annotations[api.DriftPolicyKey]); err != nil {
		p.Problems = append(p.Problems, err.Error()+": until it is corrected, the pool's nodes are not repaired, "+
			"and updates of drifted nodes wait")
	}
	p.inUse = inUse(pool, nodes)
	p.Noted = Noted(pool)
	p.had, _ = api.Decode[[]string](pool.Annotations, api.HistoryKey)
	p.pin, _ = api.Decode[api.Pin](pool.Annotations, api.PinKey)
	p.Quarantined = standing(p.known, p.lifted)
	for i := range nodes {
		if n := &nodes[i]; n.Unread != "" {
			p.NodeProblems = append(p.NodeProblems, NodeProblem{n.Name, n.Unread})
		}
		if n := &nodes[i]; n.Lacks != "" {
			p.NodeProblems = append(p.NodeProblems, NodeProblem{n.Name, fmt.Sprintf("node %s is left as it is: for %s %s",
				n.Name, p.Target, n.Lacks)})
		}
	}
	return p
}

// unreadNote is the name of a policy whose note cannot be read. A policy was in force all the same.
const unreadNote = "(unknown)"

// Noted returns the pool's note of the policy that was in force; nil if no policy was.
func Noted(pool *mcfgv1.MachineConfigPool) *api.PolicyNote {
	note, err := api.Decode[*api.PolicyNote](pool.Annotations, api.RolloutPolicyKey)
	if err != nil || note != nil && note.Name == "" {
		return &api.PolicyNote{Name: unreadNote}
	}
	return note
}

// byName reports whether the nodes are sorted by name. A Node is large, and sorting compares copies of nodes.
func byName(nodes []Node) bool {
	for i := 1; i < len(nodes); i++ {
		if nodes[i].Name < nodes[i-1].Name {
			return false
		}
	}
	return true
}

// Share makes failures count in all pools, and lifted failures lifted in all pools. A node may have moved, and two
// pools may render to the same content.
func Share(pools []*Pool) {
	var lifted []api.Lifted
	for _, p := range pools {
		lifted = append(lifted, p.Lifts...)
	}
	for _, p := range pools {
		p.lifted = lifted
		p.Quarantined = standing(p.known, lifted)
	}
	for _, p := range pools {
		p.Elsewhere = nil
		for _, other := range pools {
			for _, q := range other.Quarantined {
				if other != p && find(p.Quarantined, q) < 0 && find(p.Elsewhere, q) < 0 {
					p.Elsewhere = append(p.Elsewhere, q)
				}
			}
		}
	}
}

func count(nodes []Node, target string) Counts {
	c := Counts{Machines: len(nodes)}
	for i := range nodes {
		n := &nodes[i]
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

// Complete reports whether every node is at the target and serves, and no gate of a policy is still asked.
func (p *Pool) Complete() bool {
	return p.Target != "" && p.Updated == p.Machines && p.Ready == p.Machines && p.Unavailable == 0 &&
		p.Rules.Unproved == nil && p.gateFailed() == nil
}

// Quarantine returns the first failure for which the target is offered to no further node; nil if the target is
// offered.
func (p *Pool) Quarantine() *api.Quarantine { return p.quarantine(p.Target) }

func (p *Pool) quarantine(config string) *api.Quarantine {
	var first *api.Quarantine
	nodes := map[string]bool{}
	for _, list := range [][]api.Quarantine{p.Quarantined, p.Elsewhere} {
		for i := range slices.Backward(list) {
			if api.SameContent(list[i].Config, config) {
				if list[i].Gate != "" {
					return &list[i] // a failure budget does not apply to gates
				}
				first = cmp.Or(first, &list[i])
				nodes[list[i].Node] = true
			}
		}
	}
	if len(nodes) < max(p.Rules.FailureBudget, 1) {
		return nil
	}
	return first
}

// Refuses reports whether the content is quarantined and no person has lifted that. Content is quarantined after a
// failed gate, or after failures on as many nodes as the failure budget allows.
func (p *Pool) Refuses(config string) bool { return p.quarantine(config) != nil }

// FailedOn reports whether the target failed on the node and no person has lifted that. The target is not offered to
// that node again, even where the failure budget lets others have it.
func (p *Pool) FailedOn(n *Node) bool {
	if n.BadValues {
		return true
	}
	if len(p.Quarantined)+len(p.Elsewhere) == 0 {
		return false // most nodes have none, and every look calls this
	}
	stands := func(q api.Quarantine) bool { return q.Node == n.Name && api.SameContent(q.Config, p.Target) }
	return slices.ContainsFunc(p.Quarantined, stands) || slices.ContainsFunc(p.Elsewhere, stands)
}

// Retries reports whether the target once failed on the node, a person lifted that, and the node has not proved the
// target yet. Until then no other node is sent to the target.
func (p *Pool) Retries(n *Node) bool {
	if len(p.lifted) == 0 || p.Target == "" || n.Updated(p.Target) {
		return false
	}
	return slices.ContainsFunc(p.lifted, func(l api.Lifted) bool {
		return api.SameContent(l.Config, p.Target) &&
			slices.ContainsFunc(l.Failures, func(f api.Failure) bool { return f.Node == n.Name })
	})
}

// Retrier returns the first node that Retries the target, and nil if no node does. No rollout waits for a node that a
// person holds or skips, or that the policy passes over.
func (p *Pool) Retrier() *Node {
	for i := range p.Nodes {
		if n := &p.Nodes[i]; p.Retries(n) && p.Rules.Kept[n.Name] == nil && !p.Rules.Absent[n.Name] {
			return n
		}
	}
	return nil
}

// Remembered returns the failures that the pool has to remember, the latest seen first. A failure that a node reports
// without a time gets one, so that a lift can refer to it. Such a failure is kept for as long as the node reports it.
func (p *Pool) Remembered(now time.Time) []api.Quarantine {
	of := map[string]int{}
	keep := make([]bool, len(p.known))
	for i, q := range slices.Backward(p.known) {
		content := api.Content(q.Config)
		keep[i] = (of[content] < rememberedNodes || q.Gate != "") && (p.unlisted(q) || find(p.Quarantined, q) >= 0)
		of[content] += rank(keep[i])
	}
	// A failure that is not yet remembered comes from a node, which will report it again. Such a failure is added where
	// there is room, and displaces nothing.
	contents := map[string]bool{}
	for step := range p.known {
		i := (p.fresh + step) % len(p.known)
		content := api.Content(p.known[i].Config)
		if keep[i] && !p.inUse[content] && !contents[content] {
			keep[i] = len(contents) < quarantineLimit
			contents[content] = keep[i]
		}
	}
	var out []api.Quarantine
	if q := p.Rules.Fails; q != nil {
		out = append(out, *q)
	}
	for i, q := range p.known {
		if !keep[i] || p.Rules.Fails != nil && find(out, q) >= 0 {
			continue
		}
		if q.Since.IsZero() {
			q.Since = now.UTC()
		}
		out = append(out, q)
	}
	return out
}

// unlisted reports whether the failure is one that its node only implies.
func (p *Pool) unlisted(q api.Quarantine) bool {
	return slices.ContainsFunc(p.Nodes, func(n Node) bool {
		return n.Name == q.Node && api.SameContent(n.unlisted(), q.Config)
	})
}

// Taking returns the nodes that use up MaxUnavailable.
func (p *Pool) Taking() []Node {
	var out []Node
	for i := range p.Nodes {
		if p.takes(&p.Nodes[i]) {
			out = append(out, p.Nodes[i])
		}
	}
	return out
}

// Takes reports whether the node uses up one of the nodes that the pool may have out of service. A node that rolled
// back and serves does not, where the failure budget counts it. A node that the rules leave uncounted does not either.
func (p *Pool) Takes(n *Node) bool { return p.takes(n) }

func (p *Pool) takes(n *Node) bool {
	forgiven := (p.Rules.FailureBudget > 1 || n.BadValues) && n.State == api.RolledBack && !n.Unavailable()
	_, soaks := p.Rules.Soaking[n.Name]
	if p.Rules.Uncounted[n.Name] {
		return false
	}
	return n.Takes(p.Target) && !forgiven || soaks || p.Rules.Gated[n.Name] != nil
}

// ControlPlane reports whether the pool's nodes hold the cluster's state. Such nodes are taken out of service one at a
// time, over all such pools together.
func ControlPlane(pool string) bool {
	return pool == api.PoolMaster || pool == api.PoolControlPlane || pool == api.PoolArbiter
}

// MaxUnavailable returns how many of a pool's nodes may be out of service. The default is 1. Percentages are rounded
// down, and the result is never less than 1: to stop a rollout, a person pauses the pool. With an error, which names
// the value, the result is 1.
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

// failures returns the failures that the pool remembers and that its nodes report, lifted or not, one for each content
// and node. The failure that was seen first comes last. A node's report replaces what is remembered of it. A node that
// has proved the content has ended its failure. Failures that the pool does not remember come first, and the second
// result is their number.
func failures(pool *mcfgv1.MachineConfigPool, nodes []Node) ([]api.Quarantine, int, error) {
	known, err := api.Decode[[]api.Quarantine](pool.Annotations, api.PoolQuarantineKey)
	fresh := 0
	for i := range nodes {
		n := &nodes[i]
		reports := n.failures()
		if len(reports) == 0 && len(known) == 0 {
			continue
		}
		known = slices.DeleteFunc(known, func(q api.Quarantine) bool {
			return q.Node == n.Name && n.State == api.Done && api.SameContent(n.Current, q.Config) && find(reports, q) < 0
		})
		for _, q := range reports {
			at := find(known, q)
			switch {
			case at < 0:
				known = slices.Insert(known, 0, q)
				fresh++
			case !q.Since.IsZero():
				known[at] = q
			}
		}
	}
	return known, fresh, err
}

// find returns the index of the entry about the same content and node as q, and -1 if the list has none.
func find(list []api.Quarantine, q api.Quarantine) int {
	return slices.IndexFunc(list, func(o api.Quarantine) bool {
		return o.Node == q.Node && api.SameContent(o.Config, q.Config)
	})
}

// standing returns the failures that no person has lifted.
func standing(known []api.Quarantine, lifted []api.Lifted) []api.Quarantine {
	var out []api.Quarantine
	for _, q := range known {
		if !slices.ContainsFunc(lifted, func(l api.Lifted) bool { return l.Covers(q) }) {
			out = append(out, q)
		}
	}
	return out
}

// inUse returns the content that the pool or one of its nodes has, had, or is to have. An annotation that can't be read
// adds nothing.
func inUse(pool *mcfgv1.MachineConfigPool, nodes []Node) map[string]bool {
	out := map[string]bool{}
	history, _ := api.Decode[[]string](pool.Annotations, api.HistoryKey)
	pin, _ := api.Decode[api.Pin](pool.Annotations, api.PinKey)
	names := []string{pin.Config, pin.From, pool.Spec.Configuration.Name, pool.Status.Configuration.Name}
	names = append(names, history...)
	var last [3]string // mostly the next node's configurations too
	for i := range nodes {
		these := [3]string{nodes[i].Current, nodes[i].Desired, nodes[i].Previous}
		if these == last {
			continue
		}
		last = these
		for _, name := range these {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	for _, name := range names {
		out[api.Content(name)] = true
	}
	return out
}

// Lifted returns the quarantines of a pool that a person lifted.
func Lifted(pool *mcfgv1.MachineConfigPool) ([]api.Lifted, error) {
	return api.Decode[[]api.Lifted](pool.Annotations, api.LiftedKey)
}

// WithTarget returns pools with one changed or added, and with its new target.
func WithTarget(pools []mcfgv1.MachineConfigPool, changed *mcfgv1.MachineConfigPool, target string,
) []mcfgv1.MachineConfigPool {
	out := slices.DeleteFunc(slices.Clone(pools), func(p mcfgv1.MachineConfigPool) bool { return p.Name == changed.Name })
	pool := changed.DeepCopy()
	pool.Spec.Configuration.Name = target
	return append(out, *pool)
}
