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

// Question is what a gate asks, of a stage or of a node: one that has arrived anew is asked anew.
type Question struct {
	Policy, Pool, Config string
	// Stage or Node is empty.
	Stage, Node string
	Gate        string
	// Arrived is when the last of the nodes that it is about arrived, or when a quarantine of the configuration was
	// lifted after that; empty: no rollout sent them.
	Arrived string
}

// About names what the question is about.
func (q Question) About() string {
	if q.Node != "" {
		return "node " + q.Node
	}
	return "stage " + q.Stage
}

// Ask is a question that is open, and how to ask it.
type Ask struct {
	Question

	How *api.Gate
	// Nodes are those that it is about, by name.
	Nodes []string
}

// Answer is what is known of a question. One that was not asked yet has no time.
type Answer struct {
	Passed bool
	// Message says why not.
	Message string
	// At is when it was asked last, and Since when the answer was first as it is.
	At, Since time.Time
	// First is when it was first asked, as far as that is known: no deadline counts from before.
	First time.Time
	// Closed is when the gate closed after it had passed; zero: it never did.
	Closed time.Time
}

// Answers are what is known of questions.
type Answers func(Question) Answer

// Unasked is that nothing was asked: all gates are closed.
func Unasked(Question) Answer { return Answer{} }

// Passing is that all gates pass.
func Passing(Question) Answer { return Answer{Passed: true} }

// Reported are the answers that are in the status of policies, for those who ask nobody themselves.
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

// Report is a question with its answer for a policy's status.
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

// checkGates says what is wrong with gates, by field.
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

// asks says that the pool's gates are asked: it is on its way to something that it has not had as a whole, and that
// nothing is known to be wrong with.
func (j *judge) asks() bool {
	return j.pool.Target != "" && j.pool.Target != j.pool.Previous && j.pool.Quarantine() == nil
}

// gateNodes finds the nodes that have arrived and whose gates have not passed. A node that has passed them once is not
// asked again.
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
			j.rules.Gated[n.Name] = j.waits(n, "has arrived, and has not been seen ready there yet")
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

// soaked is when a node that is ready since a time has been so for long enough.
func (j *judge) soaked(since time.Time) time.Time {
	return since.Add(time.Duration(j.spec.MinReadySeconds) * time.Second)
}

// unproved is what is still to be waited for when all nodes have arrived; nil: nothing, the rollout is over.
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

// gates asks all gates of a subject, which has soaked since a time, and is why the first that is closed is; nil: none.
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

// arrived is when the last of these nodes arrived, or what had failed there was taken back.
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

// gate is why a gate holds what comes after it; nil: it does not.
func (j *judge) gate(q Question, g *api.Gate, since time.Time) *progress.Hold {
	a := j.answers(q)
	if a.Passed {
		return nil
	}
	why := a.Message
	if a.At.IsZero() {
		why = "it has not been asked yet"
	}
	hold := &progress.Hold{
		Verdict: progress.GateClosed, Blocking: policyObject(j.name),
		Because: fmt.Sprintf("gate %s of %s is closed: %s", g.Name, q.About(), why),
		Do:      "mend what it says, or wait" + j.orBypass(),
	}
	end := j.deadline(g, a, since)
	switch {
	case end.IsZero():
		return hold
	case end.After(j.now):
		j.lookAgain(end)
		return j.before(g, hold, end)
	case a.At.IsZero():
		return hold // it has not failed, and is not skipped: a controller that has just started asks first
	case g.OnDeadline == api.DeadlineSkips:
		return nil
	}
	hold.Verdict = progress.GateFailed
	hold.Because += ", and its deadline was at " + end.UTC().Format(time.RFC3339)
	if g.OnDeadline != api.DeadlineRollsBack {
		hold.Do = "mend what it says: the rollout goes on by itself then" + j.orBypass()
	} else if j.rules.Fails == nil {
		j.rules.Fails = &api.Quarantine{
			Config: j.pool.Target, Gate: g.Name, Since: j.now.UTC().Truncate(time.Second),
			Reason: api.ShortReason(fmt.Sprintf("of %s was closed at its deadline: %s", q.About(), why)),
		}
	}
	j.failed = cmp.Or(j.failed, hold) // nothing of the pool begins until it passes
	return hold
}

// before says what comes at a deadline.
func (j *judge) before(g *api.Gate, hold *progress.Hold, end time.Time) *progress.Hold {
	at := end.UTC().Format(time.RFC3339)
	switch g.OnDeadline {
	case api.DeadlineSkips:
		hold.Until = end
		hold.Because += "; it is skipped at " + at
	case api.DeadlineRollsBack:
		hold.Because += "; at " + at + " the nodes go back"
	default:
		hold.Because += "; its deadline is at " + at
	}
	return hold
}

// deadline of a gate; zero: it has none.
func (j *judge) deadline(g *api.Gate, a Answer, since time.Time) time.Time {
	if g.DeadlineSeconds == 0 {
		return time.Time{}
	}
	if since.IsZero() {
		// No rollout sent these nodes: it counts from when they were first asked.
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
