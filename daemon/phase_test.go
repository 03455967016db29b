// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/drain"
	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/plan"
	"github.com/noderefit/noderefit/transaction"
)

const (
	cfgA = "rendered-worker-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	cfgB = "rendered-worker-bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
	cfgC = "rendered-worker-cccccccccccccccccccccccccccccccc"
)

var then = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// hostAt returns a host with a record.
func hostAt(committed, pending string, phase transaction.Phase, state transaction.State) *host.Status {
	s := &host.Status{State: state, Phase: string(phase)}
	s.Config.Committed, s.Config.Pending = committed, pending
	return s
}

func rebootPlan() *plan.Plan {
	return &plan.Plan{Current: cfgA, Desired: cfgB, Drain: true, Reboot: true,
		Changes: []plan.Change{{Kind: plan.Kargs, Append: []string{"quiet"}}},
		Actions: []plan.Action{{Type: plan.ActionDrain, Because: "kernelArguments"}, {Type: plan.ActionReboot, Because: "kernelArguments"}}}
}

func livePlan() *plan.Plan {
	return &plan.Plan{Current: cfgA, Desired: cfgB, Changes: []plan.Change{{Kind: plan.File, Path: "/etc/a", Op: plan.Add}},
		Actions: []plan.Action{{Type: plan.ActionRestart, Service: "crio.service", Because: "/etc/a"}}}
}

func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("rewrite", strconv.FormatBool(*update)); err != nil {
		panic(err)
	}
	m.Run()
}

// stages are the situations of testdata/phases.txt, one for each phase.
var stages = func() map[Phase]func() *situation {
	text, err := os.ReadFile("testdata/phases.txt")
	if err != nil {
		panic(err)
	}
	rows := regexp.MustCompile(`(?m)^decide(.*)\n----\n(.*)$`).FindAllStringSubmatch(string(text), -1)
	all := map[Phase]func() *situation{}
	for _, row := range rows {
		all[Phase(row[2])] = func() *situation {
			v := updating()
			for text := range strings.FieldsSeq(row[1]) {
				key, value, _ := strings.Cut(text, "=")
				words[key](v, wordOf(value))
			}
			return v
		}
	}
	return all
}()

// updating returns a node that was just told to go from A to B.
func updating() *situation {
	return &situation{now: then, exists: true, ready: true, hold: drain.Free, hostSince: then, verdict: 10 * time.Minute,
		host: hostAt(cfgA, "", "", transaction.Done), node: api.Node{Current: cfgA, Desired: cfgB, State: api.Working}}
}

func (v *situation) cordoned() *situation {
	v.hold, v.node.Cordon = drain.Ours, &api.Cordon{By: api.Daemon, Config: cfgB}
	return v
}

// word is the value of a word of the tables: text, or a configuration and more after a slash.
type word struct{ text, config, more string }

func wordOf(value string) word {
	name, more, _ := strings.Cut(value, "/")
	return word{value, map[string]string{"a": cfgA, "b": cfgB, "c": cfgC}[name], more}
}

// words are what the words of the tables change.
var words = map[string]func(*situation, word){
	"gone":      func(v *situation, _ word) { v.exists = false },
	"ready":     func(v *situation, _ word) { v.ready = true },
	"not-ready": func(v *situation, _ word) { v.ready = false },
	"unread":    func(v *situation, _ word) { v.host = nil },
	"desired":   func(v *situation, w word) { v.node.Desired = w.config },
	"current":   func(v *situation, w word) { v.node.Current = w.config },
	"state":     func(v *situation, w word) { v.node.State = api.State(strings.TrimPrefix(w.text, "nothing")) },
	"told": func(v *situation, w word) {
		v.node.Desired, v.plan, v.staged, v.failure = w.config, nil, false, nil
		v.rebooting, v.drained = time.Time{}, time.Time{}
	},
	"host": func(v *situation, w word) { v.host = hostAt(w.config, "", "", transaction.State(w.more)) },
	"pending": func(v *situation, w word) {
		v.host = hostAt(v.host.Config.Committed, w.config, transaction.Phase(w.more), transaction.Working)
	},
	"previous": func(v *situation, w word) { v.host.Config.Previous = w.config },
	"quarantined": func(v *situation, w word) {
		v.refuse(transaction.Quarantined{Config: w.config, Reason: "kubelet", Since: then})
	},
	"same-content": func(v *situation, _ word) {
		v.refuse(transaction.Quarantined{Config: "rendered-infra-x", Digest: strings.Repeat("b", 64)})
	},
	"said": func(v *situation, _ word) { v.node.Reason = v.whyRolledBack() },
	"stuck": func(v *situation, _ word) {
		if v.host != nil {
			v.host.Stuck = true
		}
	},
	"proved": func(v *situation, w word) {
		if v.host != nil {
			v.host = hostAt(w.config, "", "", transaction.Done)
		}
	},
	"plan": func(v *situation, w word) {
		v.plan = map[string]*plan.Plan{"reboot": rebootPlan(), "live": livePlan(), "nothing": {}}[w.text]
	},
	"staged":    func(v *situation, _ word) { v.staged = true },
	"asked":     func(v *situation, _ word) { v.asked = true },
	"drained":   func(v *situation, _ word) { v.drained = then },
	"rebooting": func(v *situation, _ word) { v.rebooting = then },
	"applying":  func(v *situation, _ word) { v.applying = true },
	"manual":    func(v *situation, _ word) { v.node.Orders.ManualReboots = true },
	"left":      func(v *situation, _ word) { v.host.NeedsReboot = true },
	"order": func(v *situation, w word) {
		v.node.Orders.Reboot = &api.RebootOrder{ID: w.text, Why: "packages"}
		v.followOrder()
	},
	"rebooted": func(v *situation, w word) {
		v.host.Rebooted = &api.Rebooted{ID: w.text, Begun: then}
		if w.more != "" || !v.pending() {
			v.host.Rebooted.Ended = then
		}
	},
	"as-is": func(v *situation, _ word) {
		v.host.Transaction = &transaction.Progress{Road: transaction.RoadReboot}
	},
	"bootc":          func(v *situation, _ word) { v.node.Bootc = true },
	"lost":           func(v *situation, _ word) { v.plan.Lost = []string{"quay.io/os:43"} },
	"single-replica": func(v *situation, _ word) { v.node.SingleReplica = true },
	"other":          func(v *situation, w word) { v.other = &job{phase: PhaseApply, config: w.config, began: then} },
	"failed": func(v *situation, _ word) {
		v.failure = &failure{phase: PhaseStage, kind: failDegraded, reason: reasonStaging, text: "no space", since: then,
			retry: then.Add(time.Second)}
	},
	"cordon": func(v *situation, w word) {
		if v.hold = map[string]drain.Hold{"theirs": drain.Theirs, "lost": drain.Lost}[w.text]; w.text == "ours" {
			v.cordoned()
		}
	},
	"uncordoned": func(v *situation, _ word) {
		if v.hold == drain.Ours {
			v.hold, v.drained = drain.Lost, time.Time{}
		}
	},
	"ledger": func(v *situation, w word) {
		if v.hold == drain.Ours {
			v.node.Cordon = &api.Cordon{By: api.Daemon, Config: w.config}
		}
	},
	"lift": func(v *situation, w word) { v.node.Lift = w.config },
	"on-node": func(v *situation, w word) {
		at, err := time.Parse("15:04", w.more)
		if err != nil {
			panic(err)
		}
		since := then.Truncate(24 * time.Hour).Add(time.Duration(at.Hour()) * time.Hour)
		v.node.Quarantined = []api.Quarantine{{Config: w.config, Since: since}}
	},
	"passes": func(v *situation, w word) {
		d, err := time.ParseDuration(w.text)
		if err != nil {
			panic(err)
		}
		v.now = v.now.Add(d)
	},
}

func (v *situation) refuse(q transaction.Quarantined) {
	v.host.Quarantined = append(v.host.Quarantined, q)
}

// change changes the situation as a row of the tables says.
func (v *situation) change(t *testing.T, row *datadriven.TestData) *situation {
	t.Helper()
	for _, arg := range row.CmdArgs {
		change := words[arg.Key]
		if change == nil {
			t.Fatalf("nothing reads the word %s", arg)
		}
		change(v, wordOf(strings.Join(arg.Vals, "")))
	}
	return v
}

func decided(t *testing.T, row *datadriven.TestData) string {
	t.Helper()
	v := updating().change(t, row)
	v.followOrder()
	return string(decide(v).name) + "\n"
}

func TestEveryPhaseHasItsSituation(t *testing.T) {
	datadriven.RunTest(t, "testdata/phases.txt", decided)
	for _, p := range phases {
		if stages[p.name] == nil {
			t.Errorf("%s: no situation", p.name)
		}
	}
}

func TestDecide(t *testing.T) {
	datadriven.RunTest(t, "testdata/events.txt", func(t *testing.T, row *datadriven.TestData) string {
		t.Helper()
		var moves strings.Builder
		for _, p := range phases {
			if to := decide(stages[p.name]().change(t, row)).name; to != p.name {
				fmt.Fprintf(&moves, "%s -> %s\n", p.name, to)
			}
		}
		return cmp.Or(moves.String(), "all stay\n")
	})
}

func TestWaysThatNeedLess(t *testing.T) {
	datadriven.RunTest(t, "testdata/ways.txt", decided)
}

func TestPhasesArePrinted(t *testing.T) {
	var out bytes.Buffer
	if err := WritePhases(&out); err != nil {
		t.Fatal(err)
	}
	for _, p := range phases {
		if !strings.Contains(out.String(), string(p.name)) || p.when == "" {
			t.Errorf("%s is missing in\n%s", p.name, &out)
		}
	}
	t.Logf("\n%s", &out)
	for _, p := range road {
		if !slices.ContainsFunc(phases, func(row phase) bool { return row.name == p }) {
			t.Errorf("%s is on the road and no phase", p)
		}
	}
}

func TestPausesBetweenTries(t *testing.T) {
	for tries, want := range map[int]time.Duration{1: time.Second, 2: 2 * time.Second, 6: 32 * time.Second, 7: time.Minute, 100: time.Minute} {
		if got := nextTry(tries); got != want {
			t.Errorf("after %d tries: %s, want %s", tries, got, want)
		}
	}
}

func TestFirstErrorIsKept(t *testing.T) {
	f := fail(nil, PhaseApply, failDegraded, reasonApplying, "unit a failed after 3 s", then)
	f = fail(f, PhaseApply, failDegraded, reasonApplying, "unit a failed after 5 s", then)
	if f.text != "unit a failed after 3 s" || f.tries != 2 {
		t.Errorf("the same again: %q after %d tries", f.text, f.tries)
	}
	f = fail(f, PhaseStage, failDegraded, reasonStaging, "content mismatch", then)
	if f.text != "unit a failed after 3 s; later: content mismatch" || f.reason != reasonApplying || f.phase != PhaseApply {
		t.Errorf("a consequence hides its cause: %+v", f)
	}
	f = fail(f, PhasePlan, failTransient, "", "connection refused", then)
	if f.kind != failDegraded || strings.Contains(f.text, "refused") {
		t.Errorf("an outage is shown as the node's failure: %+v", f)
	}
	f = fail(f, PhaseStage, failDegraded, reasonStaging, "no space", then)
	if f.text != "unit a failed after 3 s; later: no space" {
		t.Errorf("texts pile up: %q", f.text)
	}
}

func TestOthersAtWorkAreNoFailureForAWhile(t *testing.T) {
	f := fail(nil, PhaseApply, failRefused, reasonRefused, "zincati is at work", then)
	if f.bad(then.Add(time.Minute)) || !f.bad(then.Add(refusedFor)) {
		t.Error("a refusal has to count from refusedFor on")
	}
}

func TestWhatIsStagedForAnotherConfigurationIsLeftOver(t *testing.T) {
	b := strings.Repeat("b", 64)
	v := updating()
	for _, c := range []struct {
		staged, desired string
		want            bool
	}{{"", cfgA, false}, {b, cfgB, false}, {b, cfgA, true}, {"unknown", cfgA, true}} {
		v.host.Staged, v.node.Desired = c.staged, c.desired
		if got := v.leftover(); got != c.want {
			t.Errorf("%q is staged and %s desired: left over %t", c.staged, c.desired, got)
		}
	}
}
