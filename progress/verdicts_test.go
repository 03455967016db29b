// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"

	"github.com/noderefit/noderefit/api"
)

var update = flag.Bool("update", false, "write the verdicts into their page and the decisions into the tables below testdata")

const (
	page   = "../docs/troubleshooting.md"
	begin  = "<!-- Made of progress/verdicts.go by make generate: begin -->\n"
	finish = "<!-- end -->\n"
)

// declared are the constants of type Verdict in this folder, each by its value.
func declared(t *testing.T) []Verdict {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var out []Verdict
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok {
				return true
			}
			if kind, ok := spec.Type.(*ast.Ident); !ok || kind.Name != "Verdict" || len(spec.Values) == 0 {
				return true
			}
			for i, name := range spec.Names {
				value, err := strconv.Unquote(spec.Values[i].(*ast.BasicLit).Value)
				if err != nil || value != name.Name {
					t.Errorf("%s is %q: a verdict is spelt as its name", name.Name, value)
				}
				out = append(out, Verdict(value))
			}
			return true
		})
	}
	return out
}

func TestEveryVerdictHasOneRow(t *testing.T) {
	var rows []Verdict
	for _, m := range Verdicts {
		rows = append(rows, m.Verdict)
		if m.Means == "" || m.Do == "" || m.About == "" || strings.ContainsAny(m.Means+m.Do, "|\n") {
			t.Errorf("%s: means %q, do %q, about %q", m.Verdict, m.Means, m.Do, m.About)
		}
	}
	code := declared(t)
	if len(code) < 20 {
		t.Fatalf("found no more constants than %q", code)
	}
	slices.Sort(rows)
	slices.Sort(code)
	if diff := cmp.Diff(code, rows); diff != "" {
		t.Errorf("constants and rows of Verdicts differ (-constant +row):\n%s", diff)
	}
}

// table is Verdicts as the page has it.
func table() string {
	var b strings.Builder
	b.WriteString("| verdict | about | means | do |\n|---|---|---|---|\n")
	for _, m := range Verdicts {
		do := m.Do
		if m.See != "" {
			do += ". [more](#" + m.See + ")"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", m.Verdict, m.About, m.Means, do)
	}
	return b.String()
}

func TestTheTroubleshootingPageHasTheTable(t *testing.T) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(text), begin)
	has, after, ends := strings.Cut(rest, finish)
	if !found || !ends {
		t.Fatalf("%s has no place for the table, between %q and %q", page, begin, finish)
	}
	if *update {
		if err := os.WriteFile(page, []byte(before+begin+table()+finish+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(table(), has); diff != "" {
		t.Errorf("%s is not what the code says; make generate writes it (-code +page):\n%s", page, diff)
	}
}

// What an emergency passes over is told at several places, and at all of them the same.
func TestThePagesSayWhatAnEmergencyPassesOver(t *testing.T) {
	for _, name := range []string{"../docs/rollout-policies.md", page, "../docs/kubectl-refit.md"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		said := strings.Join(strings.Fields(strings.ReplaceAll(string(text), "`", "")), " ")
		if !strings.Contains(said, Bypassed) {
			t.Errorf("%s does not say: without %s", name, Bypassed)
		}
	}
	text, err := os.ReadFile("../docs/rollout-policies.md")
	if err != nil {
		t.Fatal(err)
	}
	said := strings.Join(strings.Fields(strings.ReplaceAll(string(text), "`", "")), " ")
	if !strings.Contains(said, "What counts still: "+NotBypassed) {
		t.Errorf("docs/rollout-policies.md does not say: what counts still: %s", NotBypassed)
	}
}

// ruled is a world in which the policies say that. Package rollout shows when they do.
func ruled(v Verdict) func(*world) {
	return func(w *world) {
		w.Follow = func(pools []*Pool) {
			for _, p := range pools {
				p.Rules = Rules{Policy: "careful", Hold: &Hold{Verdict: v, Because: "of a rule", Do: "wait"}}
			}
		}
	}
}

// keptAs is a world in which a person holds or skips node a.
func keptAs(v Verdict) func(*world) {
	return func(w *world) {
		w.Follow = func(pools []*Pool) {
			for _, p := range pools {
				p.Rules = Rules{Kept: map[string]*Hold{"a": {Verdict: v, Because: "ann says so", Do: "release it"}}}
			}
		}
	}
}

func wantsReboot(kind api.RebootKind) api.RebootWanted {
	return api.RebootWanted{Reasons: []api.RebootReason{
		{Kind: kind, Message: "a newer one is installed", Packages: []string{"libc6", "linux-image"}, More: 3, Since: began},
	}}
}

// reached has for each verdict a world in which the node a says it, or where it is never a node's, the pool worker.
var reached = map[Verdict]func(*world){
	NoPool: func(w *world) { w.a.Labels = nil },
	SeveralPools: func(w *world) {
		for _, name := range []string{"infra", "storage"} {
			p := w.pool.DeepCopy()
			p.Name = name
			w.Pools = append(w.Pools, *p)
		}
	},
	ConfigMissing: func(w *world) {
		w.moving(w.a, mcfgv1.MachineConfigNodeUpdatePrepared)
		w.Missing = map[string]bool{renderedB: true}
	},
	RolledBack:     func(w *world) { w.at(w.a, renderedA, renderedB, api.RolledBack, "kubelet") },
	Unreconcilable: func(w *world) { w.at(w.a, renderedA, renderedB, api.Unreconcilable, "disks") },
	Degraded:       func(w *world) { w.at(w.a, renderedA, renderedB, api.Degraded, "no space") },
	RebootFailed: func(w *world) {
		w.at(w.a, renderedB, renderedB, api.Done, "")
		w.a.Annotations[api.RebootedKey] = api.Encode(api.Rebooted{
			ID: "one", Begun: began, Ended: began, Failed: "the kubelet is down",
		})
	},
	NeedsReboot: func(w *world) {
		w.at(w.a, renderedA, renderedB, api.Working, "")
		w.a.Annotations[api.RebootWantedKey] = api.Encode(wantsReboot(api.RebootConfiguration))
	},
	RebootWanted: func(w *world) {
		w.at(w.a, renderedB, renderedB, api.Done, "")
		w.a.Annotations[api.RebootWantedKey] = api.Encode(wantsReboot(api.RebootPackages))
	},
	Rebooting: func(w *world) { w.moving(w.a, mcfgv1.MachineConfigNodeUpdateRebooted) },
	NotReady:  func(w *world) { notReadyNow(w.a) },
	NoDaemon:  func(w *world) { delete(w.Daemons, "a") },
	NotTakenUp: func(w *world) {
		w.moving(w.a, mcfgv1.MachineConfigNodeUpdatePrepared)
		w.States["a"].Spec.ConfigVersion.Desired = renderedA
	},
	HeldByHook: func(w *world) {
		w.moving(w.a, mcfgv1.MachineConfigNodeUpdatePrepared)
		stop := api.HookStop{Config: renderedB, Hook: "backup", Why: "exit status 1", Since: began}
		w.States["a"].Annotations = map[string]string{api.HookStopKey: api.Encode(stop)}
	},
	Draining: func(w *world) { w.draining(w.a, 1, router) },
	DrainHeld: func(w *world) {
		w.moving(w.a, mcfgv1.MachineConfigNodeUpdatePrepared)
		w.a.Annotations[api.DrainHeldKey] = api.Encode(api.DrainHold{
			Config: renderedB, Why: "pod a/b is not gone", Since: began, Until: began.Add(time.Hour),
		})
	},
	Updating: func(w *world) { w.moving(w.a, mcfgv1.MachineConfigNodeUpdatePrepared) },
	Undelivered: func(w *world) {
		u := api.Undelivered{Reason: "spec.rootCAData", Since: began}
		w.a.Annotations[api.UndeliveredKey] = api.Encode(u)
	},
	Misconfigured: func(w *world) { w.a.Annotations[api.CordonKey] = "{" },
	RenderDegraded: func(w *world) {
		w.poolCondition(mcfgv1.MachineConfigPoolRenderDegraded, "MachineConfig/50-bad: no")
	},
	RenderPending: func(w *world) { w.poolCondition(api.PoolRenderPending, "KubeletConfig/small since 12:00") },
	NotRendered:   func(w *world) { w.pool.Spec.Configuration.Name = "" },
	NoNodes:       func(w *world) { w.Nodes = nil },
	Withheld: func(w *world) {
		w.Follow = func(pools []*Pool) {
			for _, p := range pools {
				p.Rules.Hold = &Hold{Verdict: Withheld, Because: "withdrawn", Do: "wait"}
			}
		}
	},
	Quarantined: func(w *world) {
		w.at(w.b, renderedA, renderedB, api.RolledBack, "")
		quarantineOn(w.b)
	},
	Paused:         func(w *world) { w.pool.Spec.Paused = true },
	PolicyUnusable: ruled(PolicyUnusable),
	FailureBudget:  ruled(FailureBudget),
	WaitsForPool:   ruled(WaitsForPool),
	OutsideWindow:  ruled(OutsideWindow),
	WaitsForStage:  ruled(WaitsForStage),
	HeldByPerson:   keptAs(HeldByPerson),
	Skipped:        keptAs(Skipped),
	Trying:         keptAs(Trying),
	BootcOperator:  keptAs(BootcOperator),
	StagingAhead:   ruled(StagingAhead),
	NeedsApproval:  ruled(NeedsApproval),
	CannotStage:    ruled(CannotStage),
	Soaking:        ruled(Soaking),
	GateClosed:     ruled(GateClosed),
	GateFailed:     ruled(GateFailed),
	GoingBack: func(w *world) {
		w.at(w.a, renderedB, renderedB, api.Done, "")
		w.pool.Annotations = map[string]string{api.PoolQuarantineKey: api.Encode([]api.Quarantine{
			{Config: renderedB, Gate: "smoke", Since: began},
		})}
	},
	EtcdUnhealthy: ruled(EtcdUnhealthy),
	Cordoned: func(w *world) {
		w.at(w.a, renderedB, renderedB, api.Done, "")
		w.a.Spec.Unschedulable = true
	},
	Drifted: func(w *world) {
		w.at(w.a, renderedB, renderedB, api.Done, "")
		item := api.DriftItem{Kind: "file", Name: "/etc/a", What: []string{"contents"}, Since: began}
		w.a.Annotations[api.DriftKey] = api.Encode(api.NewDrift(renderedB, []api.DriftItem{item}))
	},
	UpToDate:     func(w *world) { w.at(w.a, renderedB, renderedB, api.Done, "") },
	WaitsForTurn: func(w *world) { w.moving(w.b, mcfgv1.MachineConfigNodeUpdateFilesAndOS) },
	NotOffered:   func(*world) {},
}

func TestEveryVerdictIsReached(t *testing.T) {
	for _, m := range Verdicts {
		t.Run(string(m.Verdict), func(t *testing.T) {
			change := reached[m.Verdict]
			if change == nil {
				t.Fatal("no world is known in which anything says this")
			}
			w := newWorld()
			change(w)
			r := NewReport(w.View)
			a, ok := r.ExplainNode("a")
			if !ok {
				a, _ = r.ExplainPool("worker")
			}
			if a.Verdict != m.Verdict || a.Because == "" {
				t.Errorf("%+v", a)
			}
			if fine := m.Do == "Nothing"; fine != a.Fine() || fine != (a.Do == "") {
				t.Errorf("the table says to do %q, the answer %q", m.Do, a.Do)
			}
		})
	}
}

// What needs a person must not hide behind what only takes time. Nodes that a person holds or skips need nobody: people
// want to read how the other nodes are.
func TestNodesThatNeedAPersonComeBeforeThoseThatTakeTime(t *testing.T) {
	for _, m := range Verdicts {
		for _, later := range []Verdict{Rebooting, Updating, NotOffered, WaitsForTurn} {
			decided := m.Verdict == HeldByPerson || m.Verdict == Skipped || m.Verdict == Trying
			if m.About == AboutNode && m.end == stops && !decided && m.Verdict.Compare(later) >= 0 {
				t.Errorf("%s comes after %s", m.Verdict, later)
			}
		}
	}
}
