// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

var now = time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)

// node is written "name current>desired state", and behind that what else there is to say: key=value is a label,
// arrived=D, ready=D say how long ago, notready, failed=config.
func node(t *testing.T, text string) progress.Node {
	t.Helper()
	words := strings.Fields(text)
	n := progress.Node{Name: words[0], Labels: map[string]string{}}
	n.Current, n.Desired, _ = strings.Cut(words[1], ">")
	if n.Desired == "" {
		n.Desired = n.Current
	}
	n.State = api.State(words[2])
	for _, word := range words[3:] {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "arrived":
			n.Arrived = api.Arrival{Config: n.Desired, Since: ago(t, value)}
		case "sent":
			n.Arrived = api.Arrival{Config: n.Desired}
		case "previous":
			n.Previous = value
		case "ready":
			n.ReadySince = ago(t, value)
		case "notready":
			n.NotReady = "Ready=Unknown"
		case "failed":
			n.Quarantined = append(n.Quarantined, api.Quarantine{Config: value, Reason: "no", Since: now.Add(-time.Hour)})
		default:
			n.Labels[key] = value
		}
	}
	return n
}

func ago(t *testing.T, text string) time.Time {
	t.Helper()
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return now.Add(-d)
}

// pool is worker, or name, at target B.
func pool(t *testing.T, name string, nodes ...string) *progress.Pool {
	t.Helper()
	return poolThatFailed(t, name, nil, nodes...)
}

// poolThatFailed knows of failures.
func poolThatFailed(t *testing.T, name string, failures []api.Quarantine, nodes ...string) *progress.Pool {
	t.Helper()
	object := &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: map[string]string{"name": name}, Annotations: map[string]string{},
	}}
	if failures != nil {
		object.Annotations[api.PoolQuarantineKey] = api.Encode(failures)
	}
	object.Spec.Configuration.Name = "B"
	var list []progress.Node
	for _, text := range nodes {
		list = append(list, node(t, text))
	}
	p := progress.NewPool(object, list)
	return &p
}

func follow(policies []api.RolloutPolicy, pools ...*progress.Pool) {
	progress.Share(pools)
	NewBook(policies, Unasked).Follow(pools, now, "")
}

func policyOf(spec api.RolloutPolicySpec, pools ...string) api.RolloutPolicy {
	if len(pools) == 0 {
		pools = []string{"worker"}
	}
	spec.Pools = pools
	return api.RolloutPolicy{ObjectMeta: metav1.ObjectMeta{Name: "careful"}, Spec: spec}
}

func number(text string) *intstr.IntOrString {
	v := intstr.Parse(text)
	return &v
}

// held are the nodes that may not begin, each with the verdict.
func held(p *progress.Pool) string {
	var out []string
	for _, n := range p.Nodes {
		if h := p.Held(&n); h != nil {
			out = append(out, n.Name+":"+string(h.Verdict))
		}
	}
	return strings.Join(out, " ")
}

func TestStagesComeOneAfterTheOther(t *testing.T) {
	t.Parallel()
	canary := api.RolloutStage{Name: "canary", Nodes: number("1"), SoakSeconds: 600}
	tenth := api.RolloutStage{Name: "tenth", Nodes: number("40%")}
	for name, c := range map[string]struct {
		stages []api.RolloutStage
		budget string
		nodes  []string
		held   string
		stage  string
	}{
		"at first only the first stage": {
			stages: []api.RolloutStage{canary, tenth},
			nodes:  []string{"a A Done", "b A Done", "c A Done", "d A Done", "e A Done"},
			held:   "b:WaitsForStage c:WaitsForStage d:WaitsForStage e:WaitsForStage", stage: "canary",
		},
		"a node that failed before comes last": {
			stages: []api.RolloutStage{canary},
			nodes:  []string{"a A Done failed=X", "b A Done"},
			held:   "a:WaitsForStage", stage: "canary",
		},
		"a node that is out of service is no canary": {
			stages: []api.RolloutStage{canary},
			nodes:  []string{"a A Done notready", "b A Done"},
			held:   "a:WaitsForStage", stage: "canary",
		},
		"while the canary is on its way": {
			stages: []api.RolloutStage{canary},
			nodes:  []string{"a A Done", "b A>B Working sent"},
			held:   "a:WaitsForStage", stage: "canary",
		},
		"arrived, and not noted yet": {
			stages: []api.RolloutStage{canary}, nodes: []string{"a A Done", "b B Done sent"},
			held: "a:WaitsForStage", stage: "canary",
		},
		"it soaks": {
			stages: []api.RolloutStage{canary}, nodes: []string{"a A Done", "b B Done arrived=9m59s"},
			held: "a:Soaking", stage: "canary",
		},
		"it has soaked": {
			stages: []api.RolloutStage{canary, tenth},
			nodes:  []string{"a A Done", "b B Done arrived=10m", "c A Done", "d A Done", "e A Done"},
			held:   "d:WaitsForStage e:WaitsForStage", stage: "tenth",
		},
		"a node that was not ready in between soaks anew": {
			stages: []api.RolloutStage{canary}, nodes: []string{"a A Done", "b B Done arrived=20m ready=5m"},
			held: "a:Soaking", stage: "canary",
		},
		"a canary that falls over holds the rest": {
			stages: []api.RolloutStage{canary}, nodes: []string{"a A Done", "b B Done arrived=20m notready"},
			held: "a:WaitsForStage", stage: "canary",
		},
		"one that was there before anybody sent it does not soak": {
			stages: []api.RolloutStage{canary}, nodes: []string{"a A Done", "b B Done previous=A"},
			held: "", stage: "rest",
		},
		"the canary is degraded": {
			stages: []api.RolloutStage{canary}, nodes: []string{"a A Done", "b A>B Degraded sent"},
			held: "a:WaitsForStage", stage: "canary",
		},
		"what the failure budget forgives does not hold a stage in which others arrived": {
			stages: []api.RolloutStage{{Name: "two", Nodes: number("2")}}, budget: "2",
			nodes: []string{"a A Done", "b B Done arrived=1m", "c A>B RolledBack failed=B"},
			held:  "", stage: "rest",
		},
		"but one in which none arrived": {
			stages: []api.RolloutStage{{Name: "one", Nodes: number("1")}}, budget: "2",
			nodes: []string{"a A Done", "c A>B RolledBack failed=B"},
			held:  "a:WaitsForStage", stage: "one",
		},
		"by label": {
			stages: []api.RolloutStage{
				{Name: "lab", NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "lab"}}},
			},
			nodes: []string{"a A Done", "b A Done tier=lab", "c A Done tier=lab"},
			held:  "a:WaitsForStage", stage: "lab",
		},
		"a stage that nobody is in is passed": {
			stages: []api.RolloutStage{
				{Name: "lab", NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "lab"}}},
			},
			nodes: []string{"a A Done"}, held: "", stage: "rest",
		},
		"all there": {
			stages: []api.RolloutStage{canary}, nodes: []string{"a B Done arrived=1m", "b B Done arrived=20m"},
			held: "", stage: "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spec := api.RolloutPolicySpec{Stages: c.stages}
			if c.budget != "" {
				spec.FailureBudget = number(c.budget)
			}
			p := pool(t, "worker", c.nodes...)
			follow([]api.RolloutPolicy{policyOf(spec)}, p)
			if got := held(p); got != c.held || p.Rules.Stage != c.stage {
				t.Errorf("held %q, stage %q; want %q, %q", got, p.Rules.Stage, c.held, c.stage)
			}
		})
	}
}

func TestANodeThatHasToTryAgainGoesBeforeAllStages(t *testing.T) {
	t.Parallel()
	object := &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: "worker"}}
	object.Spec.Configuration.Name = "B"
	object.Annotations = map[string]string{api.LiftedKey: api.Encode([]api.Lifted{
		{Config: "B", Failures: []api.Failure{{Node: "b", Since: now.Add(-time.Hour)}}},
	})}
	p := progress.NewPool(object, []progress.Node{
		node(t, "a A Done tier=lab"), node(t, "b A>B RolledBack failed=B"), node(t, "c A Done"),
	})
	follow([]api.RolloutPolicy{policyOf(api.RolloutPolicySpec{Stages: []api.RolloutStage{
		{Name: "lab", NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "lab"}}},
	}})}, &p)
	if got := held(&p); got != "c:WaitsForStage" {
		t.Errorf("held: %q", got)
	}
}

func TestAStageHasItsOwnMaxUnavailable(t *testing.T) {
	t.Parallel()
	stages := []api.RolloutStage{{Name: "half", Nodes: number("50%"), MaxUnavailable: number("2")}}
	nodes := []string{"a A Done", "b A Done", "c A Done", "d A Done"}
	p, master := pool(t, "worker", nodes...), pool(t, api.PoolMaster, nodes...)
	follow([]api.RolloutPolicy{policyOf(api.RolloutPolicySpec{Stages: stages}, "worker", api.PoolMaster)}, p, master)
	if p.MaxUnavailable != 2 || master.MaxUnavailable != 1 {
		t.Errorf("worker %d, master %d; want 2 and 1", p.MaxUnavailable, master.MaxUnavailable)
	}
}

func TestNodesOfAllStagesGoByThePoolsOwnMaxUnavailable(t *testing.T) {
	t.Parallel()
	spec := api.RolloutPolicySpec{Stages: []api.RolloutStage{{Name: "half", Nodes: number("50%"), MaxUnavailable: number("3")}}}
	bypassed := pool(t, "worker", "a A Done", "b A Done", "c A Done", "d A Done")
	bypassed.Bypass = &api.Bypass{Config: "B", By: "ann", Why: "CVE"}
	back := pool(t, "worker", "a A Done", "b A Done", "c B Done failed=B", "d B Done")
	follow([]api.RolloutPolicy{policyOf(spec)}, bypassed)
	follow([]api.RolloutPolicy{policyOf(spec)}, back)
	if bypassed.MaxUnavailable != 1 || back.MaxUnavailable != 1 {
		t.Errorf("bypassed %d, going back %d; want 1 and 1", bypassed.MaxUnavailable, back.MaxUnavailable)
	}
}

func TestANodeThatJoinedWithTheTargetIsNoCanary(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		canaries string
		nodes    []string
		held     string
	}{
		"the one that was sent soaks": {
			"1", []string{"a A Done", "joined B Done", "sent B Done arrived=1m"}, "a:Soaking",
		},
		"the second canary is on its way": {
			"2", []string{"a A Done", "b A>B Working sent", "c B Done arrived=2h", "joined B Done"}, "a:WaitsForStage",
		},
		"the second canary is still to be sent": {
			"2", []string{"a A Done", "b A Done", "c B Done arrived=2h", "joined B Done"}, "b:WaitsForStage",
		},
		"the canary was deleted": {
			"1", []string{"a A Done", "b A Done", "joined B Done"}, "b:WaitsForStage",
		},
		"all joined": {"1", []string{"joined B Done"}, ""},
	} {
		p := pool(t, "worker", c.nodes...)
		follow([]api.RolloutPolicy{policyOf(api.RolloutPolicySpec{Stages: []api.RolloutStage{
			{Name: "canary", Nodes: number(c.canaries), SoakSeconds: 600},
		}})}, p)
		if got := held(p); got != c.held {
			t.Errorf("%s: held %q, want %q", name, got, c.held)
		}
	}
}

func TestASlipInAPolicyKeepsItsFailureBudget(t *testing.T) {
	t.Parallel()
	slip := &api.RolloutWindows{TimeZone: "Middle/Earth"}
	for name, specs := range map[string][]api.RolloutPolicySpec{
		"a policy that makes no sense": {{FailureBudget: number("2"), Windows: slip}},
		"two policies":                 {{FailureBudget: number("2")}, {}},
	} {
		p := pool(t, "worker", "a A Done", "b A>B RolledBack failed=B", "c B Done")
		p.Previous = "A"
		var policies []api.RolloutPolicy
		for _, s := range specs {
			policies = append(policies, policyOf(s))
		}
		follow(policies, p)
		if p.Rules.FailureBudget != 2 || p.GoesBack() || p.Rules.Hold == nil {
			t.Errorf("%s: a budget of %d, goes back: %v", name, p.Rules.FailureBudget, p.GoesBack())
		}
	}
}

func TestNodesThatArrivedCountForAWhile(t *testing.T) {
	t.Parallel()
	p := pool(t, "worker", "a B Done arrived=1m", "b B Done arrived=10m", "c B Done sent", "d B Done", "e A Done")
	follow([]api.RolloutPolicy{policyOf(api.RolloutPolicySpec{MinReadySeconds: 300})}, p)
	soaking := strings.Join(slices.Sorted(maps.Keys(p.Rules.Soaking)), " ")
	if soaking != "a c" || !p.Rules.Next.Equal(now.Add(4*time.Minute)) || len(p.Taking()) != 2 {
		t.Errorf("soaking %q, next %s, %d take a place", soaking, p.Rules.Next, len(p.Taking()))
	}
	unseen := pool(t, "worker", "c B Done sent", "e A Done")
	follow([]api.RolloutPolicy{policyOf(api.RolloutPolicySpec{MinReadySeconds: 300})}, unseen)
	if next := unseen.Rules.Next; !next.IsZero() || unseen.Rules.Soaking["c"].IsZero() {
		t.Errorf("not seen ready yet: by itself something changes at %s", next)
	}
}

func TestWhatHoldsAWholePool(t *testing.T) {
	t.Parallel()
	closed := &api.RolloutWindows{Open: []api.Window{{Cron: "0 22 * * *", DurationMinutes: 60}}}
	blackout := &api.RolloutWindows{Blackouts: []api.Window{{Name: "freeze", From: "2026-03-01", Until: "2026-03-03"}}}
	for name, c := range map[string]struct {
		specs   []api.RolloutPolicySpec
		nodes   []string
		other   []string // of pool canary
		verdict progress.Verdict
		says    string
		until   string
	}{
		"nothing": {
			specs: []api.RolloutPolicySpec{{}}, nodes: []string{"a A Done"},
		},
		"no window is open": {
			specs: []api.RolloutPolicySpec{{Windows: closed}}, nodes: []string{"a A Done"},
			verdict: progress.OutsideWindow, says: "the next one opens at 2026-03-02T22:00:00Z", until: "2026-03-02T22:00:00Z",
		},
		"a blackout": {
			specs: []api.RolloutPolicySpec{{Windows: blackout}}, nodes: []string{"a A Done"},
			verdict: progress.OutsideWindow, says: "blackout freeze is in force", until: "2026-03-04T00:00:00Z",
		},
		"another pool comes first": {
			specs: []api.RolloutPolicySpec{{DependsOn: []string{"canary"}}},
			nodes: []string{"a A Done"}, other: []string{"x B Done", "y A>B Working"},
			verdict: progress.WaitsForPool, says: "pool canary comes first: 1 of its 2 nodes are updated",
		},
		"another pool has come and does not serve": {
			specs: []api.RolloutPolicySpec{{DependsOn: []string{"canary"}}},
			nodes: []string{"a A Done"}, other: []string{"x B Done", "y B Done notready"},
			verdict: progress.WaitsForPool, says: "2 of its 2 nodes are updated, and node y does not serve",
		},
		"no window will ever open again": {
			specs: []api.RolloutPolicySpec{{Windows: &api.RolloutWindows{Open: []api.Window{{From: "2026-01-01", Until: "2026-01-02"}}}}},
			nodes: []string{"a A Done"}, verdict: progress.PolicyUnusable, says: "by spec.windows none will ever open again",
		},
		"another pool has come": {
			specs: []api.RolloutPolicySpec{{DependsOn: []string{"canary"}}},
			nodes: []string{"a A Done"}, other: []string{"x B Done"},
		},
		"a pool that is not there": {
			specs:   []api.RolloutPolicySpec{{DependsOn: []string{"none"}}},
			nodes:   []string{"a A Done"},
			verdict: progress.PolicyUnusable, says: "spec.dependsOn names pool none",
		},
		"two policies": {
			specs: []api.RolloutPolicySpec{{}, {}}, nodes: []string{"a A Done"},
			verdict: progress.PolicyUnusable, says: "2 RolloutPolicies select pool worker",
		},
		"a policy that makes no sense": {
			specs: []api.RolloutPolicySpec{{FailureBudget: number("none")}}, nodes: []string{"a A Done"},
			verdict: progress.PolicyUnusable, says: "spec.failureBudget",
		},
		"the failure budget is spent by nodes that can't get there": {
			specs:   []api.RolloutPolicySpec{{FailureBudget: number("2")}},
			nodes:   []string{"a A Done", "b A>B Degraded", "c A>B RolledBack failed=B"},
			verdict: progress.FailureBudget, says: "B failed on 2 of at most 2 nodes: b, c",
		},
		"the failure budget has room": {
			specs: []api.RolloutPolicySpec{{FailureBudget: number("3")}},
			nodes: []string{"a A Done", "b A>B Degraded", "c A>B RolledBack failed=B"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, other := pool(t, "worker", c.nodes...), pool(t, "canary", c.other...)
			var policies []api.RolloutPolicy
			for _, s := range c.specs {
				policies = append(policies, policyOf(s))
			}
			follow(policies, p, other)
			h := p.Rules.Hold
			if c.verdict == "" {
				if h != nil {
					t.Fatalf("held: %+v", h)
				}
				return
			}
			if h == nil || h.Verdict != c.verdict || !strings.Contains(h.Because, c.says) || h.Do == "" {
				t.Fatalf("got %+v, want %s: %s", h, c.verdict, c.says)
			}
			if c.until != "" && !h.Until.Equal(at(t, c.until)) {
				t.Errorf("until %s, want %s", h.Until, c.until)
			}
		})
	}
}

func TestPoolsThatWaitForEachOtherAreHeldAndSaySo(t *testing.T) {
	t.Parallel()
	a, b := pool(t, "a", "n A Done"), pool(t, "b", "m A Done")
	first := policyOf(api.RolloutPolicySpec{DependsOn: []string{"b"}}, "a")
	second := policyOf(api.RolloutPolicySpec{DependsOn: []string{"a"}}, "b")
	second.Name = "second"
	follow([]api.RolloutPolicy{first, second}, a, b)
	for _, p := range []*progress.Pool{a, b} {
		if h := p.Rules.Hold; h == nil || h.Verdict != progress.PolicyUnusable || !strings.Contains(h.Because, "waits for") {
			t.Errorf("pool %s: %+v", p.Name, h)
		}
	}
}

func TestABypassGoesForOneConfigurationAndKeepsTheBudget(t *testing.T) {
	t.Parallel()
	spec := api.RolloutPolicySpec{
		Windows:       &api.RolloutWindows{Open: []api.Window{{Cron: "0 22 * * *", DurationMinutes: 60}}},
		Stages:        []api.RolloutStage{{Name: "canary", Nodes: number("1"), SoakSeconds: 600}},
		FailureBudget: number("1"), MinReadySeconds: 600,
	}
	p := pool(t, "worker", "a A Done", "b B Done arrived=1m")
	p.Bypass = &api.Bypass{Config: "B", By: "ann", Why: "CVE"}
	follow([]api.RolloutPolicy{policyOf(spec)}, p)
	if got := held(p); got != "" || len(p.Rules.Soaking) > 0 {
		t.Errorf("bypassed, and held: %q, soaking %v", got, p.Rules.Soaking)
	}
	p = pool(t, "worker", "a A Done", "b B Done arrived=1m")
	p.Bypass = &api.Bypass{Config: "C", By: "ann", Why: "CVE"}
	follow([]api.RolloutPolicy{policyOf(spec)}, p)
	if got := held(p); got != "a:OutsideWindow b:OutsideWindow" {
		t.Errorf("bypassed for another configuration: %q", got)
	}
	p = pool(t, "worker", "a A Done", "b A>B Degraded")
	p.Bypass = &api.Bypass{Config: "B", By: "ann", Why: "CVE"}
	follow([]api.RolloutPolicy{policyOf(spec)}, p)
	if p.Rules.Hold == nil || p.Rules.Hold.Verdict != progress.FailureBudget {
		t.Errorf("the budget is bypassed: %+v", p.Rules.Hold)
	}
}

func TestANodeThatJoinsWaitsForNoWindow(t *testing.T) {
	t.Parallel()
	p := pool(t, "worker", "a A Done")
	p.Nodes = append(p.Nodes, progress.Node{Name: "b", Joining: true}, progress.Node{Name: "c"})
	follow([]api.RolloutPolicy{policyOf(api.RolloutPolicySpec{
		Windows: &api.RolloutWindows{Open: []api.Window{{Cron: "0 22 * * *", DurationMinutes: 60}}},
	})}, p)
	if got := held(p); got != "a:OutsideWindow c:OutsideWindow" {
		t.Errorf("held: %q", got)
	}
}

func TestFindingsSayWhatIsWrongWithEachPolicy(t *testing.T) {
	t.Parallel()
	good := policyOf(api.RolloutPolicySpec{}, "a")
	gone := policyOf(api.RolloutPolicySpec{}, "b", "nowhere")
	gone.Name = "gone"
	bad := policyOf(api.RolloutPolicySpec{FailureBudget: number("x")}, "c")
	bad.Name = "bad"
	selects := policyOf(api.RolloutPolicySpec{
		PoolSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"name": "d"}},
	}, "d")
	selects.Name, selects.Spec.Pools = "selects", nil
	pools := []*progress.Pool{pool(t, "a"), pool(t, "b"), pool(t, "c"), pool(t, "d")}
	book := NewBook([]api.RolloutPolicy{good, gone, bad, selects}, Unasked)
	progress.Share(pools)
	book.Follow(pools, now, "")
	got := map[string]string{}
	for _, f := range book.Findings(pools) {
		var names []string
		for _, p := range f.Pools {
			names = append(names, p.Name)
		}
		got[f.Policy] = f.Reason + " " + strings.Join(names, ",")
	}
	want := map[string]string{
		"careful": api.RolloutInForce + " a", "gone": api.RolloutNoPool + " b", "bad": api.RolloutInvalid + " c",
		"selects": api.RolloutInForce + " d",
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
