// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

// Question is what a gate asks about a stage or a node. A stage or node that has arrived anew is a new question.
type Question struct {
	Policy, Pool, Config string
	// Either Stage or Node is empty.
	Stage, Node string
	Gate        string
	// Arrived is when the last of the question's nodes arrived, or when a quarantine of the configuration was lifted, if
	// that is later. Arrived is empty if no rollout sent the nodes.
	Arrived string
}

// About returns the stage or node that the question is about.
func (q Question) About() string {
	if q.Node != "" {
		return "node " + q.Node
	}
	return "stage " + q.Stage
}

// Ask is an open question, and how to ask it.
type Ask struct {
	Question

	How *api.Gate
	// Nodes are the names of the nodes that the question is about.
	Nodes []string
}

// Answer is the known answer to a question. At is zero if the question was not asked yet.
type Answer struct {
	Passed bool
	// Message is why the gate has not passed.
	Message string
	// At is when the question was last asked. Since is when the present answer first came.
	At, Since time.Time
	// First is when the question was first asked, as far as that is known. No deadline counts from an earlier time.
	First time.Time
	// Closed is when the gate closed after it had passed; zero if it never did.
	Closed time.Time
}

// Answers returns the known answer to a question.
type Answers func(Question) Answer

// Unasked has no answer to any question, so that all gates are closed.
func Unasked(Question) Answer { return Answer{} }

// Passing answers every question so that the gate passes.
func Passing(Question) Answer { return Answer{Passed: true} }

// Reported returns the answers from the status of policies, for callers that ask no questions themselves.
func Reported(policies []api.RolloutPolicy) Answers {
	known := map[Question]Answer{}
	for i := range policies {
		p := &policies[i]
		for _, g := range p.Status.Gates {
			a := Answer{Passed: g.Passed, Message: g.Message, At: g.Since.Time, Since: g.Since.Time}
			if !g.Passed {
				a.First = g.Since.Time
			}
			if g.Closed != nil {
				a.Closed = g.Closed.Time
			}
			known[Question{
				Policy: p.Name, Pool: g.Pool, Config: g.Config, Stage: g.Stage, Node: g.Node, Gate: g.Gate,
				Arrived: g.Arrived,
			}] = a
		}
	}
	return func(q Question) Answer { return known[q] }
}

// Report returns a question with its answer, for a policy's status.
func (q Question) Report(a Answer) api.RolloutGate {
	g := api.RolloutGate{
		Pool: q.Pool, Gate: q.Gate, Stage: q.Stage, Node: q.Node, Config: q.Config, Arrived: q.Arrived, Passed: a.Passed,
		Message: a.Message, Since: metav1.NewTime(a.Since),
	}
	if !a.Closed.IsZero() {
		closed := metav1.NewTime(a.Closed)
		g.Closed = &closed
	}
	return g
}

// checkGates returns what is wrong with gates, by field.
func checkGates(field string, gates []api.Gate, ofStage bool) error {
	var errs []error
	for i := range gates {
		if err := checkGate(&gates[i], ofStage); err != nil {
			errs = append(errs, fmt.Errorf("%s[%d].%w", field, i, err))
		}
	}
	return errors.Join(errs...)
}

func checkGate(g *api.Gate, ofStage bool) error {
	kinds := 0
	for _, has := range []bool{g.CEL != nil, g.Prometheus != nil, g.Job != nil, g.HostCheck != nil, g.Annotation != nil} {
		if has {
			kinds++
		}
	}
	switch {
	case kinds != 1:
		return fmt.Errorf("name %s: exactly one of cel, prometheus, job, hostCheck and annotation is needed", g.Name)
	case g.CEL != nil:
		if _, err := Compile(g.CEL, ofStage); err != nil {
			return fmt.Errorf("cel.expression: %w", err)
		}
		if _, err := metav1.LabelSelectorAsSelector(g.CEL.LabelSelector); err != nil {
			return fmt.Errorf("cel.labelSelector: %w", err)
		}
	case g.Prometheus != nil:
		u, err := url.Parse(g.Prometheus.URL)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" {
			return fmt.Errorf("prometheus.url: %q is not http:// or https://, a host and maybe a path", g.Prometheus.URL)
		}
	}
	return nil
}

// asks reports whether the pool's gates are asked. They are asked while the target is not quarantined, and the pool has
// not had it as a whole yet.
func (j *judge) asks() bool {
	return j.pool.Target != "" && j.pool.Target != j.pool.Previous && j.pool.Quarantine() == nil
}

// gateNodes finds the nodes that have arrived and whose gates have not passed. A node whose gates have passed once is
// not asked again.
func (j *judge) gateNodes() {
	if len(j.spec.Gates) == 0 || !j.asks() {
		return
	}
	j.rules.Gated, j.rules.Passed = map[string]*progress.Hold{}, map[string]bool{}
	for i := range j.pool.Nodes {
		n := &j.pool.Nodes[i]
		if !n.Updated(j.pool.Target) || n.Arrived.Config != j.pool.Target || !n.Arrived.Passed.IsZero() {
			continue
		}
		since, waits := j.readySince(n)
		end, soaks := j.rules.Soaking[n.Name]
		switch {
		case waits || n.NotReady != "":
			j.rules.Gated[n.Name] = j.waits(n, "has arrived, and has not been ready since")
		case soaks:
			j.rules.Gated[n.Name] = j.soaking("node "+n.Name, end)
		default:
			q := Question{Node: n.Name}
			if hold := j.gates(q, j.spec.Gates, []*progress.Node{n}, j.soaked(since)); hold != nil {
				j.rules.Gated[n.Name] = hold
			} else {
				j.rules.Passed[n.Name] = true
			}
		}
	}
}

// soaked returns when a node that is ready since a time has soaked for long enough.
func (j *judge) soaked(since time.Time) time.Time {
	return since.Add(time.Duration(j.spec.MinReadySeconds) * time.Second)
}

// unproved finds what is still to be waited for when all nodes have arrived. If nothing is, the rollout is over.
func (j *judge) unproved(nodes []*progress.Node) {
	if !j.asks() {
		return
	}
	for _, n := range nodes {
		if hold := j.rules.Gated[n.Name]; hold != nil {
			j.rules.Unproved = hold
			return
		}
	}
	seats := j.seats(nodes)
	for at, s := range j.stages {
		if len(s.spec.Gates) == 0 {
			continue
		}
		if hold := j.passed(at, seats[at]); hold != nil {
			j.rules.Stage, j.rules.Unproved = s.name, hold
			return
		}
	}
}

// gates asks all gates of a question's subject, which has soaked since a time. gates returns the hold of the first gate
// that is closed, and nil if none is. A gate that has failed comes before gates that are merely closed.
func (j *judge) gates(q Question, gates []api.Gate, nodes []*progress.Node, since time.Time) *progress.Hold {
	q.Policy, q.Pool, q.Config = j.name, j.pool.Name, j.pool.Target
	q.Arrived = j.arrived(nodes)
	names := make([]string, 0, len(nodes))
	for _, n := range nodes {
		names = append(names, n.Name)
	}
	slices.Sort(names)
	var first *progress.Hold
	for i := range gates {
		q.Gate = gates[i].Name
		j.asked = append(j.asked, Ask{Question: q, How: &gates[i], Nodes: names})
		hold := j.gate(q, &gates[i], since)
		if hold == nil {
			continue
		}
		if j.rules.Closed == nil {
			j.rules.Closed = map[string]int{}
		}
		j.rules.Closed[q.Gate]++
		if first == nil || first.Verdict == progress.GateClosed && hold.Verdict == progress.GateFailed {
			first = hold
		}
	}
	return first
}

// arrived returns when the last of these nodes arrived, or when the target's failure was lifted, if that is later.
func (j *judge) arrived(nodes []*progress.Node) string {
	last := j.pool.LiftedAt(j.pool.Target)
	for _, n := range nodes {
		if n.Arrived.Config == j.pool.Target && n.Arrived.Since.After(last) {
			last = n.Arrived.Since
		}
	}
	if last.IsZero() {
		return ""
	}
	return last.UTC().Format(time.RFC3339)
}

// gate returns why a gate holds what comes after it, and nil if it does not.
func (j *judge) gate(q Question, g *api.Gate, since time.Time) *progress.Hold {
	a := j.answers(q)
	if a.Passed {
		return nil
	}
	why := a.Message
	if a.At.IsZero() {
		why = "the gate has not been evaluated yet"
	}
	hold := &progress.Hold{
		Verdict: progress.GateClosed, Blocking: policyObject(j.name),
		Because: fmt.Sprintf("gate %s of %s is closed: %s", g.Name, q.About(), why),
		Do:      "correct what the gate reports, or wait" + j.orBypass(),
	}
	end := j.deadline(g, a, since)
	switch {
	case end.IsZero():
		return hold
	case end.After(j.now):
		j.lookAgain(end)
		return j.before(g, hold, end)
	case a.At.IsZero():
		return hold // the gate has neither failed nor is skipped: a controller that has just started asks first
	case g.OnDeadline == api.DeadlineSkips:
		return nil
	}
	hold.Verdict = progress.GateFailed
	hold.Because += ", and its deadline was at " + end.UTC().Format(time.RFC3339)
	if g.OnDeadline != api.DeadlineRollsBack {
		hold.Do = "correct what the gate reports: the rollout then continues by itself" + j.orBypass()
	} else if j.rules.Fails == nil {
		j.rules.Fails = &api.Quarantine{
			Config: j.pool.Target, Gate: g.Name, Since: j.now.UTC().Truncate(time.Second),
			Reason: api.ShortReason(fmt.Sprintf("of %s was closed at its deadline: %s", q.About(), why)),
		}
	}
	j.failed = cmp.Or(j.failed, hold) // no node of the pool begins until the gate passes
	return hold
}

// before adds to a hold what happens at the gate's deadline.
func (j *judge) before(g *api.Gate, hold *progress.Hold, end time.Time) *progress.Hold {
	at := end.UTC().Format(time.RFC3339)
	switch g.OnDeadline {
	case api.DeadlineSkips:
		hold.Until = end
		hold.Because += "; the gate is skipped at " + at
	case api.DeadlineRollsBack:
		hold.Because += "; at " + at + " the nodes go back"
	default:
		hold.Because += "; its deadline is at " + at
	}
	return hold
}

// deadline returns the deadline of a gate; zero if the gate has none.
func (j *judge) deadline(g *api.Gate, a Answer, since time.Time) time.Time {
	if g.DeadlineSeconds == 0 {
		return time.Time{}
	}
	if since.IsZero() {
		// No rollout sent these nodes: the deadline counts from the first time that they were asked about.
		since = a.Since
	}
	if since.IsZero() {
		since = j.now
	}
	for _, later := range []time.Time{a.First, a.Closed, j.pool.LiftedAt(j.pool.Target)} {
		if later.After(since) {
			since = later
		}
	}
	return since.Add(time.Duration(g.DeadlineSeconds) * time.Second)
}
