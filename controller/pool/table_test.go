// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"cmp"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

//nolint:gochecknoinits // flags have to be known before the tests begin
func init() {
	flag.BoolFunc("update", "write the decisions of the code into the tables below testdata", func(string) error {
		return flag.Set("rewrite", "true")
	})
}

// runTable runs a file below testdata, whose README.md has the words.
func runTable(t *testing.T, file string) {
	t.Helper()
	datadriven.RunTest(t, "testdata/"+file, func(t *testing.T, d *datadriven.TestData) string {
		t.Helper()
		s := readSituation(t, d)
		switch d.Cmd {
		case "send":
			return s.send(t)
		case "tell":
			return s.tell(t)
		case "held":
			c := heldCondition(s.pooled(t))
			return conditionText(&c)
		case "status":
			return s.status(t)
		}
		d.Fatalf(t, "%q is no command", d.Cmd)
		return ""
	})
}

// situation is what a row of a table is about.
type situation struct {
	setup

	current      string // that of the pool's status
	rules        progress.Rules
	renderFailed string
}

func readSituation(t *testing.T, d *datadriven.TestData) *situation {
	t.Helper()
	s := &situation{setup: setup{annotations: map[string]string{}, options: bounds{Now: t0}}}
	for _, a := range d.CmdArgs {
		switch value := strings.Join(a.Vals, ""); a.Key {
		case "self":
			s.options.Self = value
		case "elsewhere":
			s.options.Elsewhere = count(t, value)
		case "stuck-elsewhere":
			s.options.StuckElsewhere = count(t, value)
		case "single":
			s.options.SingleReplica = true
		default:
			d.Fatalf(t, "%q is no word of %s", a.Key, d.Cmd)
		}
	}
	var quarantined []api.Quarantine
	var lifted []api.Lifted
	for line := range strings.Lines(d.Input) {
		line, message, _ := strings.Cut(strings.TrimSpace(line), ": ")
		what, text, _ := strings.Cut(line, " ")
		words := strings.Fields(text)
		switch what {
		case "pool":
			s.pool = words[0]
			s.readPool(t, words[1:])
		case "node":
			if state := api.State(words[2]); !state.Bad() && state != "-" && state != api.Done && state != api.Working {
				d.Fatalf(t, "%q is no state of a node", state)
			}
			s.nodes = append(s.nodes, text)
		case "quarantined":
			quarantined = append(quarantined, api.Quarantine{Config: words[0], Node: words[1], Reason: message, Since: t0})
		case "lifted":
			l := api.Lifted{Config: words[0]}
			for _, word := range words[1:] {
				name, at, early := strings.Cut(word, "@")
				f := api.Failure{Node: name, Since: t0}
				if early {
					f.Since = clock(t, at)
				}
				l.Failures = append(l.Failures, f)
			}
			lifted = append(lifted, l)
		case "rules":
			s.rules.Policy = "careful"
			s.readRules(t, words)
		case "render":
			s.renderFailed = message
		default:
			d.Fatalf(t, "%q is no word of a situation", what)
		}
	}
	if quarantined != nil {
		s.annotations[api.PoolQuarantineKey] = api.Encode(quarantined)
	}
	if lifted != nil {
		s.annotations[api.LiftedKey] = api.Encode(lifted)
	}
	return s
}

func (s *situation) readPool(t *testing.T, words []string) {
	t.Helper()
	for _, word := range words {
		switch key, value, _ := strings.Cut(word, "="); key {
		case "target":
			s.target = value
		case "current":
			s.current = value
		case "maxUnavailable":
			s.maxUnavailable = value
		case "paused":
			s.paused = true
		default:
			t.Fatalf("%q is no word of a pool", word)
		}
	}
}

func (s *situation) readRules(t *testing.T, words []string) {
	t.Helper()
	for _, word := range words {
		key, value, _ := strings.Cut(word, "=")
		node, verdict, one := strings.Cut(value, ":")
		switch {
		case key == "held" && one:
			s.rules.Holds = map[string]*progress.Hold{node: holdOf(t, verdict)}
		case key == "held":
			s.rules.Hold = holdOf(t, value)
		case key == "kept":
			s.rules.Kept = map[string]*progress.Hold{node: holdOf(t, verdict)}
		case key == "uncounted":
			s.rules.Uncounted = map[string]bool{value: true}
		case key == "onClose":
			s.rules.OnClose = api.WindowClose(value)
			if !slices.Contains(
				[]api.WindowClose{api.CloseFinishes, api.CloseTakesBackServing, api.CloseTakesBackDraining}, s.rules.OnClose) {
				t.Fatalf("%q is nothing that comes of nodes when a window closes", value)
			}
		case key == "failureBudget":
			s.rules.FailureBudget = count(t, value)
		case key == "soaking":
			s.rules.Soaking = map[string]time.Time{value: t0.Add(time.Minute)}
		case key == "order":
			s.rules.Places = map[string]int{}
			for i, name := range strings.Split(value, ",") {
				s.rules.Places[name] = i
			}
		default:
			t.Fatalf("%q is no word of rules", word)
		}
	}
}

func holdOf(t *testing.T, verdict string) *progress.Hold {
	t.Helper()
	if !slices.ContainsFunc(progress.Verdicts, func(m progress.Meaning) bool { return string(m.Verdict) == verdict }) {
		t.Fatalf("%q is no verdict", verdict)
	}
	return &progress.Hold{Verdict: progress.Verdict(verdict), Because: "so the rules say"}
}

func count(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// clock is a time of the day of the tables.
func clock(t *testing.T, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.DateTime, t0.Format(time.DateOnly)+" "+text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// pooled is the pool of the row, by its rules.
func (s *situation) pooled(t *testing.T) progress.Pool {
	t.Helper()
	p := s.state(t)
	p.Rules = s.rules
	return p
}

// send says which nodes are sent somewhere or let try again, in the order in which they go.
func (s *situation) send(t *testing.T) string {
	t.Helper()
	var out strings.Builder
	p := s.pooled(t)
	d := decide(p, s.options)
	for i := range d.Steps {
		fmt.Fprint(&out, sent(&p, &d.Steps[i]))
	}
	if out.Len() == 0 {
		return "no node is sent"
	}
	return out.String()
}

func nodeOf(p *progress.Pool, name string) *progress.Node {
	for i := range p.Nodes {
		if p.Nodes[i].Name == name {
			return &p.Nodes[i]
		}
	}
	return nil
}

// sent says where a step sends its node; empty: nowhere.
func sent(p *progress.Pool, s *nodeStep) string {
	var text string
	switch n := nodeOf(p, s.Node); {
	case s.sends() && s.Desired != p.Target:
		text = "turn " + s.Node + " back to " + s.Desired
	case s.sends() && s.Desired == n.Current:
		text = "let " + s.Node + " stay at " + s.Desired
	case s.sends():
		text = "send " + s.Node + " to " + s.Desired
	case s.Lift != n.Lift && s.Lift != "":
		text = "let " + s.Node + " try " + s.Lift + " again"
	case s.Lift != n.Lift:
		return "withdraw that " + s.Node + " may try " + n.Lift + " again\n"
	default:
		return ""
	}
	if s.Lift != "" {
		text += ", although it failed there"
	}
	if s.Held != "" {
		text += ": " + s.Held
	}
	return text + "\n"
}

// tell says all that the nodes are told.
func (s *situation) tell(t *testing.T) string {
	t.Helper()
	var out strings.Builder
	say := func(is bool, format string, args ...any) {
		if is {
			fmt.Fprintf(&out, format+"\n", args...)
		}
	}
	p := s.pooled(t)
	d := decide(p, s.options)
	for i := range d.Steps {
		step := &d.Steps[i]
		n := nodeOf(&p, step.Node)
		fmt.Fprint(&out, sent(&p, step))
		say(step.sends() && step.Lift == "" && n.Lift != "", "withdraw that %s may try %s again", n.Name, n.Lift)
		say(step.Tainted && !n.Tainted, "taint %s", n.Name)
		say(!step.Tainted && n.Tainted, "take the taint from %s", n.Name)
		say(step.SingleReplica && !n.SingleReplica, "tell %s that it is the only node", n.Name)
		say(!step.SingleReplica && n.SingleReplica, "tell %s that it is not the only node", n.Name)
		if a := step.Arrived; a != n.Arrived {
			say(a.Since.IsZero(), "note that %s was sent to %s", n.Name, a.Config)
			say(!a.Since.IsZero(), "note that %s arrived at %s at %s", n.Name, a.Config, a.Since.Format(time.TimeOnly))
		}
	}
	// Told beside that: what this does not say would be a step without a line.
	say(len(d.Steps) > 0 && out.Len() == 0, "%+v", d.Steps)
	say(d.DefersSelf, "%s would be next: the controller runs there, so that it goes last", s.options.Self)
	say(len(d.Steps) == 0, "no node is told anything")
	return out.String()
}

// status says what the pool's status has.
func (s *situation) status(t *testing.T) string {
	t.Helper()
	object := s.object()
	object.Generation = 7
	object.Status.Configuration.Name = s.current
	if s.renderFailed != "" {
		object.Status.Conditions = []mcfgv1.MachineConfigPoolCondition{{
			Type: mcfgv1.MachineConfigPoolRenderDegraded, Status: corev1.ConditionTrue, Message: s.renderFailed,
		}}
	}
	is := status(object, progress.NewPool(object, nodes(t, s.nodes...)), t0)
	var out strings.Builder
	fmt.Fprintf(&out, "configuration: %s\nobservedGeneration: %d of %d\nmachines %d, updated %d, ready %d, unavailable %d, "+
		"degraded %d\n", cmp.Or(is.Configuration.Name, "none"), is.ObservedGeneration, object.Generation, is.MachineCount,
		is.UpdatedMachineCount, is.ReadyMachineCount, is.UnavailableMachineCount, is.DegradedMachineCount)
	var rest []string
	for _, c := range is.Conditions {
		if c.Status == corev1.ConditionFalse && c.Reason+c.Message == "" {
			rest = append(rest, string(c.Type))
			continue
		}
		fmt.Fprintln(&out, conditionText(&c))
	}
	fmt.Fprintf(&out, "False: %s\n", strings.Join(rest, ", "))
	return out.String()
}

func conditionText(c *mcfgv1.MachineConfigPoolCondition) string {
	text := strings.TrimSpace(fmt.Sprintf("%s=%s %s", c.Type, c.Status, c.Reason))
	if c.Message != "" {
		text += ": " + c.Message
	}
	return text
}
