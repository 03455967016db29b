// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/rollout"
)

// Fleet is what a simulated rollout is about: one pool with all its nodes.
type Fleet struct {
	// Pool has the target in spec.configuration.
	Pool     *mcfgv1.MachineConfigPool
	Nodes    []progress.Node
	Policies []api.RolloutPolicy
	// Self is the node that the controller runs on; empty if the controller runs elsewhere.
	Self  string
	Start time.Time
	// Update is how long one node takes from being sent until it serves again.
	Update time.Duration
	// Staging is how long one node takes to stage ahead. Approve is how long an approval takes; less than 0 means that no
	// person approves.
	Staging, Approve time.Duration
	// Fails has the nodes on which the configuration fails its verdict.
	Fails map[string]bool
	// Limit is how long a rollout is followed.
	Limit time.Duration
}

// The events of a simulated rollout.
const (
	eventSent       = "sent"
	eventArrived    = "arrived"
	eventTakenBack  = "taken back"
	eventRolledBack = "rolled back"
	StageBegun      = "stage"
	eventHeld       = "held"
	eventReboots    = "reboots"
	eventRebooted   = "rebooted"
	Finished        = "finished"
	Stuck           = "stuck"
)

// Entry is one line of a rollout's timeline.
type Entry struct {
	At   time.Time `json:"at"`
	What string    `json:"what"`
	Node string    `json:"node,omitempty"`
	// Stage is the stage at work.
	Stage string `json:"stage,omitempty"`
	// Because is why no node goes on, for eventHeld and Stuck.
	Because string `json:"because,omitempty"`
}

// TimelineEntry is an Entry as programs get it.
type TimelineEntry struct {
	api.Header
	Entry
}

// NewTimeline returns the entries of a rollout as programs get them.
func NewTimeline(log []Entry) []TimelineEntry {
	out := make([]TimelineEntry, len(log))
	for i, e := range log {
		out[i] = TimelineEntry{api.NewHeader("TimelineEntry"), e}
	}
	return out
}

// Simulate follows a rollout by the controller's own decisions. It ends when all nodes have arrived, or when nothing
// more would happen. Each question of a gate is answered with yes.
func Simulate(f Fleet) []Entry {
	s := newSimulation(f)
	for s.turn() {
	}
	return s.log
}

func newSimulation(f Fleet) *simulation {
	book := rollout.NewBook(f.Policies, rollout.Passing)
	s := &simulation{Fleet: f, book: book, now: f.Start, due: map[string]time.Time{}, boots: map[string]time.Time{}}
	s.ahead.due = map[string]time.Time{}
	s.Nodes = slices.Clone(f.Nodes)
	slices.SortFunc(s.Nodes, func(a, b progress.Node) int { return cmp.Compare(a.Name, b.Name) })
	// Nodes that are to reboot have arrived: a decision about the others alone would leave them out.
	s.whole = f.Pool.Annotations[api.RebootKey] != "" || slices.ContainsFunc(s.Nodes, func(n progress.Node) bool {
		return n.RebootWanted != nil || n.Reboot != nil || n.Orders.Reboot != nil
	})
	s.at = make(map[string]int, len(s.Nodes))
	for i := range s.Nodes {
		s.at[s.Nodes[i].Name] = i
	}
	return s
}

type simulation struct {
	Fleet

	book *rollout.Book
	now  time.Time
	at   map[string]int       // by name, the index of a node in Nodes
	due  map[string]time.Time // by name, when a node on its way arrives
	// boots is when a node that was ordered to reboot is back, by name.
	boots map[string]time.Time
	log   []Entry
	// stage and held are the stage and the hold that were logged last.
	stage, held string
	ahead       ahead
	// few is nil while decisions are about the whole pool. With whole they always are.
	few   *shortlist
	whole bool
	// most is how many nodes the pool itself may have out of service, without the limits of stages.
	most int
	// looked counts the nodes that the decisions were about.
	looked int
}

// turn makes one decision, or moves the time on to the next change. turn returns false if no decision is left to make.
func (s *simulation) turn() bool {
	p := s.look()
	d := decide(p, bounds{Now: s.now, Self: s.Self})
	s.tell(p)
	s.asks(p)
	moved := false
	for _, step := range d.Steps {
		moved = s.take(step) || moved
	}
	switch {
	case moved:
		return true
	case p.Complete() && p.Rules.Reboots == nil:
		s.say(Finished, "", "")
		return false
	}
	s.leaveOut(&p, d)
	return s.pass(p)
}

func (s *simulation) say(what, node, because string) {
	s.log = append(s.log, Entry{At: s.now, What: what, Node: node, Stage: s.stage, Because: because})
}

// tell logs what is new about the pool as a whole.
func (s *simulation) tell(p progress.Pool) {
	if p.Rules.Stage != s.stage {
		s.stage = p.Rules.Stage
		if s.stage != "" {
			s.say(StageBegun, "", "")
		}
	}
	text := ""
	if h := holds(p); h != nil {
		text = h.Because
	}
	if text != s.held {
		s.held = text
		// A hold that lasted no time is not worth reading.
		if end := len(s.log) - 1; end >= 0 && s.log[end].What == eventHeld && s.log[end].At.Equal(s.now) {
			s.log = s.log[:end]
		}
		if text != "" {
			s.say(eventHeld, "", text)
		}
	}
}

// take takes a step, and reports whether the step changed anything.
func (s *simulation) take(step nodeStep) bool {
	n := &s.Nodes[s.at[step.Node]]
	changed := step.sends() || step.Lift != n.Lift || step.Arrived != n.Arrived ||
		!step.Orders.Equal(n.Orders)
	if step.sends() {
		s.moves(n, step.Desired != n.Current)
	}
	n.Tainted, n.Lift, n.Arrived, n.SingleReplica = step.Tainted, step.Lift, step.Arrived, step.SingleReplica
	n.Desired = step.Desired
	s.order(n, step.Orders)
	if step.Answered {
		n.Reboot, changed = nil, true
	}
	s.reboots(n)
	if !step.sends() {
		return changed
	}
	if n.Desired == n.Current {
		delete(s.due, n.Name)
		n.State, n.Cordoned, n.Cordon = api.Done, false, nil
		s.say(eventTakenBack, n.Name, "")
		return true
	}
	s.due[n.Name] = s.now.Add(s.Update)
	n.State, n.Cordoned = api.Working, true
	n.Cordon = &api.Cordon{By: api.Daemon, Config: n.Desired, Since: s.now}
	s.say(eventSent, n.Name, "")
	return true
}

// pass moves the time on until a node arrives or the rules change. It returns false if neither happens within the
// limit.
func (s *simulation) pass(p progress.Pool) bool {
	next := p.Rules.Next
	for _, at := range s.due {
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	for _, at := range s.boots {
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	next = s.soonest(next)
	switch {
	case next.IsZero() && p.Complete():
		s.say(Finished, "", "")
		return false
	case next.IsZero():
		s.say(Stuck, "", whyStuck(p))
		return false
	case next.After(s.Start.Add(s.Limit)):
		s.say(Stuck, "", s.limited(p, next))
		return false
	}
	s.now = next
	s.stages()
	for _, n := range s.come(s.due) {
		s.arrive(n)
	}
	for _, n := range s.come(s.boots) {
		s.rebooted(n)
	}
	return true
}

// reboots has a node begin to reboot, where it was ordered to.
func (s *simulation) reboots(n *progress.Node) {
	if o := n.RebootOrdered(); o != nil && s.boots[n.Name].IsZero() {
		s.boots[n.Name] = s.now.Add(s.Update)
		n.Rebooted = &api.Rebooted{ID: o.ID, Why: o.Why, Begun: s.now}
		n.Cordoned, n.Cordon = true, &api.Cordon{By: api.Daemon, Config: n.Desired, Since: s.now}
		s.say(eventReboots, n.Name, "")
	}
}

// rebooted has a node be back from a reboot that was ordered. The reboot answers all that wanted one.
func (s *simulation) rebooted(n *progress.Node) {
	n.Rebooted = &api.Rebooted{ID: n.Rebooted.ID, Why: n.Rebooted.Why, Begun: n.Rebooted.Begun, Ended: s.now}
	n.RebootWanted, n.Cordoned, n.Cordon, n.ReadySince = nil, false, nil, s.now
	s.say(eventRebooted, n.Name, "")
}

// come removes the nodes from due whose time has come, and returns them by name.
func (s *simulation) come(due map[string]time.Time) []*progress.Node {
	var names []string
	for name, at := range due {
		if !at.After(s.now) {
			names = append(names, name)
			delete(due, name)
		}
	}
	slices.Sort(names)
	out := make([]*progress.Node, 0, len(names))
	for _, name := range names {
		out = append(out, &s.Nodes[s.at[name]])
	}
	return out
}

func (s *simulation) arrive(n *progress.Node) {
	s.moves(n, !s.Fails[n.Name])
	n.Cordoned, n.Cordon, n.ReadySince = false, nil, s.now
	if !s.Fails[n.Name] {
		n.Previous, n.Current, n.State = n.Current, n.Desired, api.Done
		s.say(eventArrived, n.Name, "")
		return
	}
	s.few = nil // the failure changes what all other nodes do
	n.State, n.Reason = api.RolledBack, "its verdict was no"
	n.Quarantined = append(n.Quarantined, api.Quarantine{Config: n.Desired, Reason: n.Reason, Since: s.now})
	s.say(eventRolledBack, n.Name, "")
}

// whyStuck returns why nothing more happens.
func whyStuck(p progress.Pool) string {
	if q := p.Quarantine(); q != nil {
		return quarantineText(p)
	}
	if h := holds(p); h != nil {
		return h.Because
	}
	return cmp.Or(nodesText(p), takenText(p), "no node may be taken out of service")
}

// limited returns that the rollout is followed no further, and what the rollout waits for.
func (s *simulation) limited(p progress.Pool, next time.Time) string {
	return fmt.Sprintf("the limit of %s is over before anything more happens, at %s: %s", s.Limit,
		next.UTC().Format(time.RFC3339), whyStuck(p))
}

// takenText names the nodes that are out of service and stay so, while other nodes wait for their places.
func takenText(p progress.Pool) string {
	var texts []string
	for _, n := range p.Taking() {
		why := "is cordoned"
		switch {
		case n.Moving():
			why = "is on its way"
		case n.NotReady != "":
			why = "is not ready: " + n.NotReady
		case n.Serving():
			why = "soaks, or waits for its gates"
		}
		texts = append(texts, fmt.Sprintf("node %s %s", n.Name, why))
	}
	if len(texts) == 0 {
		return ""
	}
	return fmt.Sprintf("%s; at most %d may be out of service", strings.Join(few(texts, "%d more nodes are out of service"),
		", "), p.MaxUnavailable)
}
