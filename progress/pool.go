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

// PoolMisconfigured is a condition of a MachineConfigPool: its own selector or maxUnavailable says nothing sensible, or
// it claims nodes that another custom pool claims as well.
const PoolMisconfigured mcfgv1.MachineConfigPoolConditionType = "Misconfigured"

const (
	// quarantineLimit is how many configurations that failed a pool remembers: the latest, and beyond these all that it
	// could come to again.
	quarantineLimit = 16
	// rememberedNodes is how many of the nodes on which one configuration failed it remembers: the first.
	rememberedNodes = 8
)

// Pool is where a pool stands.
type Pool struct {
	Name string
	// Target is the configuration that the pool shall have; empty: none was rendered yet.
	Target string
	// Previous is the one that all its nodes last had.
	Previous string
	Paused   bool
	// Unread is why the pool's object can't be read as a whole; empty: it can. Its nodes are left alone until it can.
	Unread string
	// Ignored are the fields of the pool's spec that have no effect here, with what to do instead.
	Ignored []string
	// MaxUnavailable is how many nodes may be out of service for an update.
	MaxUnavailable int
	// Nodes by name.
	Nodes []Node
	// Quarantined are the failures that the pool knows of and nobody took back: one for each content and node, what was
	// seen first comes last. A node's clock has no say in that.
	Quarantined []api.Quarantine
	// Elsewhere are those that only other pools know of. Content fails, not a name: they count here, too.
	Elsewhere []api.Quarantine
	// Lifts are what people took back in this pool, the latest first.
	Lifts []api.Lifted
	// Problems are what is wrong with the pool itself, a sentence each.
	Problems []string
	// NodeProblems are what is wrong with nodes, so that less is known of them than should be.
	NodeProblems []NodeProblem
	Counts
	// Left are the nodes that are left out of Nodes; the zero value: none is. They are counted all the same.
	Left Left

	Labels map[string]string
	// Rendering: the configuration that the pool shall have is about to be another one.
	Rendering bool
	// Bypass is that somebody lets the target go through without most of the pool's rules; nil: nobody does.
	Bypass *api.Bypass
	// Approval is what somebody approved of what was staged; nil: nothing.
	Approval *api.Approval
	// Noted is the policy that was in force when the controller last looked; nil: none was. One whose note can't be read
	// has no name that a policy can have.
	Noted *api.PolicyNote
	// Reported is what holds the pool as of its condition api.PoolHeld; nil: nothing.
	Reported *Hold
	// Refused says what is written about the pool and its nodes in vain, and why; empty: nothing. It is the caller's to
	// set.
	Refused string
	// Rules are what a RolloutPolicy says about the pool now. They are the caller's to set, after Share.
	Rules Rules
	// Etcd is what is known of etcd, where its health counts for the pool; nil: nothing is. It is the caller's to set,
	// before the rules are.
	Etcd *Etcd

	known  []api.Quarantine // lifted or not
	fresh  int              // how many of them the pool does not remember yet
	lifted []api.Lifted     // in any pool
	inUse  map[string]bool  // content that the pool could come to, or come back to
	had    []string         // what all its nodes had before Previous
	pin    api.Pin
}

// NodeProblem is what is wrong with one node, in a sentence that names it.
type NodeProblem struct{ Node, Text string }

// Counts of a pool's nodes, as in the status of a MachineConfigPool.
type Counts struct {
	Machines, Updated, Ready, Unavailable, Degraded int
}

// NewPool reads a pool with the nodes that belong to it. Nodes is sorted in place.
func NewPool(pool *mcfgv1.MachineConfigPool, nodes []Node) Pool {
	if !byName(nodes) {
		slices.SortFunc(nodes, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	}
	p := Pool{
		Name: pool.Name, Target: pool.Spec.Configuration.Name, Previous: pool.Status.Configuration.Name,
		Paused: pool.Spec.Paused, Nodes: nodes, Labels: pool.Labels,
	}
	p.Counts = count(nodes, p.Target)
	if name := pool.Spec.OSImageStream.Name; name != "" {
		p.Ignored = append(p.Ignored, fmt.Sprintf("spec.osImageStream (%s) has no effect here: name the image in osImageURL "+
			"of a MachineConfig", name))
	}
	if len(pool.Spec.PinnedImageSets) > 0 {
		p.Ignored = append(p.Ignored, fmt.Sprintf("spec.pinnedImageSets (%s) has no effect here: no image is pulled or "+
			"pinned by it", pool.Spec.PinnedImageSets[0].Name))
	}
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
	var err error
	if p.Bypass, err = api.Decode[*api.Bypass](pool.Annotations, api.BypassKey); err != nil {
		p.Problems = append(p.Problems, err.Error())
	}
	if p.Approval, err = api.Decode[*api.Approval](pool.Annotations, api.ApprovedKey); err != nil {
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
		p.Problems = append(p.Problems, err.Error()+": until that is corrected nothing is written back on the pool's nodes, "+
			"and updates of those that have drifted wait")
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
	}
	return p
}

// unreadNote is the name of a policy whose note can't be read. A policy was in force all the same.
const unreadNote = "(unknown)"

// Noted is the note on a pool of the policy that was in force; nil: none was.
func Noted(pool *mcfgv1.MachineConfigPool) *api.PolicyNote {
	note, err := api.Decode[*api.PolicyNote](pool.Annotations, api.RolloutPolicyKey)
	if err != nil || note != nil && note.Name == "" {
		return &api.PolicyNote{Name: unreadNote}
	}
	return note
}

// byName says that nodes are sorted. A Node is large: to sort them compares copies of them.
func byName(nodes []Node) bool {
	for i := 1; i < len(nodes); i++ {
		if nodes[i].Name < nodes[i-1].Name {
			return false
		}
	}
	return true
}

// Share lets what failed in one pool count in all of them, and what was taken back in one be taken back in all: a node
// may have moved, and pools may render to the same.
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

// Complete says that every node is at the target and serves, and that no gate of a policy is asked any more.
func (p *Pool) Complete() bool {
	return p.Target != "" && p.Updated == p.Machines && p.Ready == p.Machines && p.Unavailable == 0 &&
		p.Rules.Unproved == nil && p.gateFailed() == nil
}

// Quarantine is why the target is offered to no further node, the first failure; nil: it is offered.
func (p *Pool) Quarantine() *api.Quarantine { return p.quarantine(p.Target) }

func (p *Pool) quarantine(config string) *api.Quarantine {
	var first *api.Quarantine
	nodes := map[string]bool{}
	for _, list := range [][]api.Quarantine{p.Quarantined, p.Elsewhere} {
		for i := range slices.Backward(list) {
			if api.SameContent(list[i].Config, config) {
				if list[i].Gate != "" {
					return &list[i] // no budget is about that
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

// Refuses says that the content failed on a node and that nobody took it back.
func (p *Pool) Refuses(config string) bool { return p.quarantine(config) != nil }

// FailedOn says that the target failed on the node and that nobody took that back: it is not offered there again, even
// where the failure budget has it offered to others.
func (p *Pool) FailedOn(n *Node) bool {
	if len(p.Quarantined)+len(p.Elsewhere) == 0 {
		return false // as for most nodes at every look
	}
	stands := func(q api.Quarantine) bool { return q.Node == n.Name && api.SameContent(q.Config, p.Target) }
	return slices.ContainsFunc(p.Quarantined, stands) || slices.ContainsFunc(p.Elsewhere, stands)
}

// Tries says that the target once failed on the node, that somebody took that back, and that the node has not proved
// it yet. Until it has, nobody else is sent there.
func (p *Pool) Tries(n *Node) bool {
	if len(p.lifted) == 0 || p.Target == "" || n.Updated(p.Target) {
		return false
	}
	return slices.ContainsFunc(p.lifted, func(l api.Lifted) bool {
		return api.SameContent(l.Config, p.Target) &&
			slices.ContainsFunc(l.Failures, func(f api.Failure) bool { return f.Node == n.Name })
	})
}

// Trial is the first node that Tries the target; nil: none does.
func (p *Pool) Trial() *Node {
	for i := range p.Nodes {
		if n := &p.Nodes[i]; p.Tries(n) {
			return n
		}
	}
	return nil
}

// Remembered is what the pool has to remember of its failures, the latest seen first. What a node says without a time
// gets one, so that it can be taken back by it; it is kept after that for as long as the node says it.
func (p *Pool) Remembered(now time.Time) []api.Quarantine {
	of := map[string]int{}
	keep := make([]bool, len(p.known))
	for i, q := range slices.Backward(p.known) {
		content := api.Content(q.Config)
		keep[i] = (of[content] < rememberedNodes || q.Gate != "") && (p.unlisted(q) || find(p.Quarantined, q) >= 0)
		of[content] += rank(keep[i])
	}
	// What is not remembered comes from a node, which says it again: it gets in where there is room, and drives nothing
	// out.
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

// unlisted says that the failure is one which its node only implies.
func (p *Pool) unlisted(q api.Quarantine) bool {
	return slices.ContainsFunc(p.Nodes, func(n Node) bool {
		return n.Name == q.Node && api.SameContent(n.unlisted(), q.Config)
	})
}

// Taking are the nodes that use up MaxUnavailable.
func (p *Pool) Taking() []Node {
	var out []Node
	for i := range p.Nodes {
		if p.takes(&p.Nodes[i]) {
			out = append(out, p.Nodes[i])
		}
	}
	return out
}

// Takes says that the node uses up one of the nodes that the pool may have out of service. One that came back and
// serves is the failure budget's to count, where there is one.
func (p *Pool) Takes(n *Node) bool { return p.takes(n) }

func (p *Pool) takes(n *Node) bool {
	forgiven := p.Rules.FailureBudget > 1 && n.State == api.RolledBack && !n.Unavailable()
	_, soaks := p.Rules.Soaking[n.Name]
	return n.Takes(p.Target) && !forgiven || soaks || p.Rules.Gated[n.Name] != nil
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

// failures are what the pool remembers and what its nodes report, lifted or not: one for each content and node, what
// was seen first comes last. What a node reports replaces what is remembered of it, and a node that has proved the
// content has taken its failure back. Those that the pool does not remember come first, and are counted.
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

// find is where a list has an entry about the same content and node as q; -1: nowhere.
func find(list []api.Quarantine, q api.Quarantine) int {
	return slices.IndexFunc(list, func(o api.Quarantine) bool {
		return o.Node == q.Node && api.SameContent(o.Config, q.Config)
	})
}

// standing are the failures that nobody took back.
func standing(known []api.Quarantine, lifted []api.Lifted) []api.Quarantine {
	var out []api.Quarantine
	for _, q := range known {
		if !slices.ContainsFunc(lifted, func(l api.Lifted) bool { return l.Covers(q) }) {
			out = append(out, q)
		}
	}
	return out
}

// inUse is the content that the pool or a node of it has, had, or is to have. What can't be read names nothing.
func inUse(pool *mcfgv1.MachineConfigPool, nodes []Node) map[string]bool {
	out := map[string]bool{}
	history, _ := api.Decode[[]string](pool.Annotations, api.HistoryKey)
	pin, _ := api.Decode[api.Pin](pool.Annotations, api.PinKey)
	names := []string{pin.Config, pin.From, pool.Spec.Configuration.Name, pool.Status.Configuration.Name}
	names = append(names, history...)
	var last [3]string // mostly those of the next node, too
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

// Lifted are the quarantines of a pool that somebody took back.
func Lifted(pool *mcfgv1.MachineConfigPool) ([]api.Lifted, error) {
	return api.Decode[[]api.Lifted](pool.Annotations, api.LiftedKey)
}
