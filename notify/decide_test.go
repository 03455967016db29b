// SPDX-License-Identifier: Apache-2.0

package notify

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

var morning = time.Date(2026, 3, 2, 8, 0, 0, 0, time.UTC)

// fleet is a pool whose nodes a test moves.
type fleet struct {
	t      *testing.T
	pool   mcfgv1.MachineConfigPool
	nodes  map[string]*corev1.Node
	rules  progress.Rules
	states map[string]*mcfgv1.MachineConfigNode
	memory api.NotifiedPool
	now    time.Time
	// ids are all that there ever were.
	ids map[string]string
}

// newFleet has nodes "name current[>desired] state", separated by commas, and the target.
func newFleet(t *testing.T, target, nodes string) *fleet {
	t.Helper()
	f := &fleet{t: t, nodes: map[string]*corev1.Node{}, now: morning, ids: map[string]string{}}
	f.pool.Name, f.pool.UID, f.pool.Generation = "worker", "pool-uid", 1
	f.pool.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{api.NodeRole + "worker": ""}}
	f.pool.Spec.Configuration.Name, f.pool.Status.Configuration.Name = target, "A"
	f.are(nodes)
	return f
}

// are sets where nodes stand.
func (f *fleet) are(nodes string) {
	f.t.Helper()
	for text := range strings.SplitSeq(nodes, ",") {
		words := strings.Fields(text)
		current, desired, moves := strings.Cut(words[1], ">")
		if !moves {
			desired = current
		}
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: words[0], Labels: map[string]string{
			api.NodeRole + "worker": "",
		}, Annotations: map[string]string{
			api.CurrentConfig: current, api.DesiredConfig: desired, api.StateKey: words[2], api.Reason: "the kubelet is down",
		}}}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		if api.State(words[2]) == api.RolledBack {
			n.Annotations[api.QuarantinedKey] = api.Encode([]api.Quarantine{{
				Config: desired, Reason: "the kubelet is down", Since: morning,
			}})
		}
		f.nodes[n.Name] = n
	}
}

func (f *fleet) target(config string) {
	f.pool.Spec.Configuration.Name = config
	f.pool.Generation++
}

func (f *fleet) seen(ask bool) Seen {
	view := progress.View{Pools: []mcfgv1.MachineConfigPool{f.pool}, Follow: func(pools []*progress.Pool) {
		pools[0].Rules = f.rules
	}}
	for _, n := range f.nodes {
		view.Nodes = append(view.Nodes, *n)
	}
	report := progress.NewReport(view)
	s := Seen{Policy: "careful", PolicyUID: "policy-uid", UID: f.pool.UID, Generation: f.pool.Generation}
	s.Pool, _ = report.Pool("worker")
	s.Answer, _ = report.ExplainPool("worker")
	if ask {
		view.States = f.states
		report = progress.NewReport(view)
		s.Waits = map[string]progress.Answer{}
		for _, name := range MayWait(s.Pool) {
			s.Waits[name], _ = report.ExplainNode(name)
		}
	}
	return s
}

// told is what one look says: the kinds, each with its reason and nodes. What is remembered goes through JSON, as it does
// between two controllers.
func (f *fleet) told(ask bool) string {
	f.t.Helper()
	after, news := Decide(f.memory, f.seen(ask), f.now)
	again, repeated := Decide(f.memory, f.seen(ask), f.now)
	if api.Encode(after) != api.Encode(again) || api.Encode(news) != api.Encode(repeated) {
		f.t.Errorf("the same was decided otherwise:\n%s\n%s", api.Encode(news), api.Encode(repeated))
	}
	f.memory = api.NotifiedPool{}
	if err := json.Unmarshal([]byte(api.Encode(after)), &f.memory); err != nil {
		f.t.Fatal(err)
	}
	var words []string
	for _, n := range news {
		if f.ids[n.ID] != "" {
			f.t.Errorf("%s and %s have the same id", f.ids[n.ID], n.Text)
		}
		f.ids[n.ID] = n.Text
		words = append(words, strings.TrimSpace(fmt.Sprintf("%s %s %s", n.Kind, n.Reason, strings.Join(n.Nodes, "+"))))
	}
	return strings.Join(words, ", ")
}

// expect looks as events make us look, and twice: what was told is not told again.
func (f *fleet) expect(want string) {
	f.t.Helper()
	if got := f.told(false); got != want {
		f.t.Errorf("told %q, want %q", got, want)
	}
	if got := f.told(false); got != "" {
		f.t.Errorf("told again: %q", got)
	}
}

func TestARolloutIsToldFromItsStartToItsEndOnce(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "A", "a A Done,b A Done")
	f.expect("")
	f.target("B")
	f.expect("")
	f.are("a A>B Working")
	f.expect("Started  a")
	f.are("a B Done")
	f.expect("")
	f.are("b A>B Working")
	f.expect("")
	f.are("b B Done")
	f.expect("Done")
	f.are("c A>B Working") // one that joins later is no rollout
	f.expect("")
	f.are("c B Done")
	f.expect("")
	f.pool.Status.Configuration.Name = "B"
	f.target("A")
	f.are("a B>A Working")
	f.expect("Started  a")
}

func TestARolloutThatNobodySawOnItsWayIsToldAsAWhole(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "A", "a A Done")
	f.expect("")
	f.target("B")
	f.expect("")
	f.are("a B Done")
	f.expect("Started, Done")
	f.target("C")
	f.are("a C Done")
	f.expect("Started, Done")
}

func TestAPoolWithoutNodesHasNoRollout(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "A", "a A Done")
	f.expect("")
	delete(f.nodes, "a")
	f.target("B")
	f.expect("")
	f.are("b B Done")
	f.expect("")
}

func TestARolloutUnderWayIsToldWhenItIsSeenFirst(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "B", "a A>B Working,b A Done")
	f.expect("Started  a")
}

func TestAFailedNodeIsToldAndThatSomebodyIsNeeded(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "B", "a A>B Working,b A Done")
	f.expect("Started  a")
	f.are("a A>B RolledBack")
	f.expect("RolledBack RolledBack a, NeedsYou Quarantined")
	// A restart, days later, tells nothing anew.
	f.now = f.now.Add(72 * time.Hour)
	f.expect("")
	// Lifted, tried again, and failed again after a while: that is news.
	lifted := api.Encode([]api.Lifted{{Config: "B", Failures: []api.Failure{{Node: "a", Since: morning}}}})
	f.pool.Annotations = map[string]string{api.LiftedKey: lifted}
	f.are("a A>B Working")
	f.expect("")
	f.now = f.now.Add(time.Hour)
	f.pool.Annotations = nil
	f.are("a A>B RolledBack")
	f.expect("RolledBack RolledBack a, NeedsYou Quarantined")
}

func TestAFailureThatTheBudgetForgivesNeedsNobodyWhileOthersGo(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "B", "a A>B RolledBack,b A>B Working,c A Done")
	f.rules = progress.Rules{Policy: "brave", FailureBudget: 3}
	f.expect("Started  a+b, RolledBack RolledBack a")
	f.are("b B Done") // c is about to be sent
	f.expect("")
	f.are("c A>B Working")
	f.expect("")
	f.are("c B Done")
	f.expect("NeedsYou RolledBack")
}

func TestACanaryThatFailsNeedsSomebodyWhereTheOthersWaitForIt(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "B", "a A>B RolledBack,b A Done")
	f.rules = progress.Rules{Policy: "brave", FailureBudget: 3, Holds: map[string]*progress.Hold{
		"b": {Verdict: progress.WaitsForStage, Because: "stage canary comes first"},
	}}
	f.expect("Started  a, RolledBack RolledBack a, NeedsYou RolledBack")
}

func TestANodeThatComesAndGoesIsToldOnce(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "B", "a A>B Degraded,b A Done")
	f.expect("Started  a, NeedsYou Degraded a")
	for range 5 {
		f.now = f.now.Add(5 * time.Minute)
		f.are("a A>B Working")
		f.expect("")
		f.now = f.now.Add(5 * time.Minute)
		f.are("a A>B Degraded")
		f.expect("")
	}
	f.are("a A>B Working")
	f.expect("")
	f.now = f.now.Add(time.Hour)
	f.are("a A>B Degraded")
	f.expect("NeedsYou Degraded a")
}

func TestAPolicyThatIsWrongNeedsSomebodyAndAWindowDoesNot(t *testing.T) {
	t.Parallel()
	for verdict, want := range map[progress.Verdict]string{
		progress.PolicyUnusable: "NeedsYou PolicyUnusable", progress.FailureBudget: "NeedsYou FailureBudget",
		progress.NeedsApproval: "NeedsYou NeedsApproval", progress.GateFailed: "NeedsYou GateFailed",
		progress.StagingAhead: "", progress.OutsideWindow: "", progress.Soaking: "", progress.WaitsForPool: "", progress.WaitsForStage: "",
	} {
		t.Run(string(verdict), func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, "B", "a A Done,b A Done")
			f.rules = progress.Rules{Policy: "careful", Hold: &progress.Hold{Verdict: verdict, Because: "so it is"}}
			f.expect(want)
			f.now = f.now.Add(24 * time.Hour)
			if got := f.told(true); got != "" {
				t.Errorf("told %q a day later", got)
			}
		})
	}
}

// drain has a node wait for a PodDisruptionBudget since a time.
func (f *fleet) drain(node string, since time.Time) {
	state := &mcfgv1.MachineConfigNode{ObjectMeta: metav1.ObjectMeta{Name: node, Annotations: map[string]string{
		api.DrainKey: api.Encode(api.Drain{Config: "B", Since: since, Left: 1, Waiting: []api.WaitingPod{{
			Namespace: "shop", Name: "db-0", Why: api.DrainWaitBudget, Budget: "db", Since: since,
		}}}),
	}}}
	state.Spec.ConfigVersion.Desired = "B"
	f.states = map[string]*mcfgv1.MachineConfigNode{node: state}
}

func TestADrainThatWaitsForLongIsToldWithWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "B", "a A>B Working,b A Done")
	f.drain("a", f.now)
	f.expect("Started  a")
	f.now = f.now.Add(14 * time.Minute)
	if got := f.told(true); got != "" {
		t.Errorf("told %q too early", got)
	}
	f.now = f.now.Add(2 * time.Minute)
	if got, want := f.told(true), "Blocked Draining a"; got != want {
		t.Errorf("told %q, want %q", got, want)
	}
	f.now = f.now.Add(24 * time.Hour)
	if got := f.told(true); got != "" {
		t.Errorf("told again: %q", got)
	}
	if f.memory.Blocked == nil || f.memory.Blocked.Cause != "Draining PodDisruptionBudget shop/db" {
		t.Errorf("remembered %+v", f.memory.Blocked)
	}
	// It is over, and later there is another one.
	f.states["a"].Annotations = nil
	if got := f.told(true); got != "" || f.memory.Blocked != nil {
		t.Errorf("told %q, remembered %+v", got, f.memory.Blocked)
	}
	f.drain("a", f.now)
	f.now = f.now.Add(16 * time.Minute)
	if got, want := f.told(true), "Blocked Draining a"; got != want {
		t.Errorf("told %q, want %q", got, want)
	}
}

func TestAWaitThatDoesNotSaySinceWhenIsRememberedFromWhenItWasSeen(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "B", "a A>B Working,b A Done")
	f.states = map[string]*mcfgv1.MachineConfigNode{} // the agent never reported
	if got := f.told(true); got != "Started  a" {
		t.Errorf("told %q", got)
	}
	f.now = f.now.Add(8 * time.Minute)
	if got := f.told(true); got != "" {
		t.Errorf("told %q", got)
	}
	f.now = f.now.Add(8 * time.Minute)
	if got, want := f.told(true), "Blocked NotTakenUp a"; got != want {
		t.Errorf("told %q, want %q", got, want)
	}
}

func TestANodeThatIsNotReadyIsNoRollout(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "A", "a A Done,b A Done")
	f.nodes["b"].Status.Conditions[0].Status = corev1.ConditionFalse
	f.nodes["b"].Status.Conditions[0].LastTransitionTime = metav1.NewTime(f.now)
	f.expect("")
	f.now = f.now.Add(time.Hour)
	if got := f.told(true); got != "" {
		t.Errorf("told %q", got)
	}
	f.are("b A Done")
	f.expect("")
	// In the middle of one it is in the way.
	f.target("B")
	f.are("a A>B Working")
	f.expect("Started  a")
	f.are("a B Done")
	f.nodes["b"].Status.Conditions[0].Status = corev1.ConditionFalse
	f.nodes["b"].Status.Conditions[0].LastTransitionTime = metav1.NewTime(f.now)
	f.now = f.now.Add(time.Hour)
	f.states = map[string]*mcfgv1.MachineConfigNode{}
	if got, want := f.told(true), "Blocked NotReady b"; got != want {
		t.Errorf("told %q, want %q", got, want)
	}
}

func TestAnOldSightIsNothingToTell(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "A", "a A Done")
	f.target("B")
	f.are("a A>B Working")
	f.expect("Started  a")
	old := f.seen(false)
	old.Generation--
	old.Pool.Target = "A"
	if after, news := Decide(f.memory, old, f.now); len(news) > 0 || after.Config != "B" {
		t.Errorf("told %+v of what was before", news)
	}
}

func TestAGateThatStaysClosedIsToldAndOneThatPassesIsNot(t *testing.T) {
	t.Parallel()
	closed := &progress.Hold{Verdict: progress.GateClosed, Because: "gate smoke of node a is closed: no answer"}
	for name, test := range map[string]struct {
		rules progress.Rules
		nodes string
		want  string
	}{
		"of a stage": {
			progress.Rules{Policy: "careful", Holds: map[string]*progress.Hold{"b": closed}}, "a B Done,b A Done",
			"Blocked GateClosed",
		},
		"of a node": {
			progress.Rules{Policy: "careful", Gated: map[string]*progress.Hold{"a": closed}}, "a B Done,b A Done",
			"Blocked GateClosed a",
		},
		"a member of etcd": {
			progress.Rules{Policy: "careful", Hold: &progress.Hold{Verdict: progress.EtcdUnhealthy, Because: "it is not ready"}},
			"a A Done,b A Done", "Blocked EtcdUnhealthy",
		},
		"a node that can't stage": {
			progress.Rules{Policy: "careful", Holds: map[string]*progress.Hold{
				"b": {Verdict: progress.CannotStage, Because: "the disk is full"},
			}}, "a B Done,b A Done", "Blocked CannotStage b",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, "B", test.nodes)
			f.rules = test.rules
			f.states = map[string]*mcfgv1.MachineConfigNode{"a": {}, "b": {}}
			f.expect("") // nothing needs anybody yet
			told := f.told(true)
			for range 14 {
				f.now = f.now.Add(time.Minute)
				told += f.told(true)
			}
			if told != "" {
				t.Errorf("told %q too early", told)
			}
			f.now = f.now.Add(2 * time.Minute)
			if got := f.told(true); got != test.want {
				t.Errorf("told %q, want %q", got, test.want)
			}
			f.now = f.now.Add(time.Hour)
			if got := f.told(true); got != "" {
				t.Errorf("told again: %q", got)
			}
			f.rules = progress.Rules{Policy: "careful"}
			if got := f.told(true); got != "" || f.memory.Blocked != nil || len(f.memory.Waiting) > 0 {
				t.Errorf("told %q when it had passed, remembered %+v", got, f.memory)
			}
		})
	}
}

func TestThePageNamesTheVerdictsThatAreTold(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/notifications.md")
	if err != nil {
		t.Fatal(err)
	}
	var needed, late []string
	for _, m := range progress.Verdicts {
		a := progress.Answer{Verdict: m.Verdict}
		if needs(progress.Pool{}, a) {
			needed = append(needed, string(m.Verdict))
		}
		if slices.Contains(waits, m.Verdict) || slices.Contains(poolWaits, m.Verdict) {
			late = append(late, string(m.Verdict))
		}
	}
	for begin, want := range map[string][]string{"- `Blocked`, after": late, "- `NeedsYou`, at once": needed} {
		_, rest, found := strings.Cut(string(text), "\n"+begin)
		line, _, _ := strings.Cut(rest, "\n")
		var got []string
		for _, word := range regexp.MustCompile("`[A-Za-z]+`").FindAllString(line, -1) {
			got = append(got, strings.Trim(word, "`"))
		}
		slices.Sort(got)
		slices.Sort(want)
		if !found || !slices.Equal(got, want) {
			t.Errorf("docs/notifications.md has after %q\n%s, not\n%s", begin, got, want)
		}
	}
}

func TestAGateThatHasNodesGoBackIsToldOnce(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "B", "a A>B Working,b A Done")
	f.expect("Started  a")
	f.are("a B Done")
	f.expect("")
	failed := api.Encode([]api.Quarantine{{Config: "B", Gate: "smoke", Reason: "was closed", Since: morning}})
	f.pool.Annotations = map[string]string{api.PoolQuarantineKey: failed}
	_, news := Decide(f.memory, f.seen(false), f.now)
	if len(news) != 2 || !strings.Contains(news[0].Text, "gate smoke was closed; nodes with the configuration go back to A") {
		t.Errorf("told %+v", news)
	}
	f.expect("RolledBack Quarantined, NeedsYou Quarantined")
	f.are("a A Done")
	f.expect("")
	// Lifted, and closed again later.
	f.pool.Annotations = nil
	f.expect("")
	f.now = f.now.Add(time.Hour)
	f.pool.Annotations = map[string]string{api.PoolQuarantineKey: failed}
	f.expect("RolledBack Quarantined, NeedsYou Quarantined")
}

func TestNoNumberAndNoIDComesAgainWhenTheMemoryIsLost(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "B", "a A>B Working,b A Done")
	f.expect("Started  a")
	last := f.memory.Sequence
	f.memory, f.now = api.NotifiedPool{}, f.now.Add(time.Minute)
	f.told(false) // which looks for ids that were there
	if f.memory.Sequence <= last {
		t.Errorf("%d comes after %d", f.memory.Sequence, last)
	}
}
