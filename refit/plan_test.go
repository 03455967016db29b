// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/plan"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/rollout"
)

// planned is what a plan of these two configurations says of nodes.
func planned(t testing.TB, from, to *machineconfig.Config, nodes ...string) *PlanDocument {
	t.Helper()
	p, err := between(from, to, nil, plan.ImageUnknown)
	if err != nil {
		t.Fatal(err)
	}
	d := &PlanDocument{
		Pool: "worker", Current: from.Name, Desired: to.Name, MaxUnavailable: 1, Order: nodes,
		Groups: []planGroup{{Current: from.Name, Nodes: nodes, Plan: p, Diffs: plan.Diffs(from, to, p.Changes)}},
	}
	d.Counts.HeldPods = new(0)
	d.count()
	return d
}

// outputs are what a plan prints, by format.
func outputs(t testing.TB, d *PlanDocument) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, all := range []bool{false, true} {
		var text strings.Builder
		if err := d.WriteText(&text, all, time.UTC); err != nil {
			t.Fatal(err)
		}
		out[fmt.Sprintf("text, all %t", all)] = text.String()
	}
	var text strings.Builder
	if err := d.WriteMarkdown(&text); err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	out["markdown"], out["json"] = text.String(), string(data)
	return out
}

func file(path, contents string) machineconfig.File {
	return machineconfig.File{Path: path, Mode: 0o644, Contents: []byte(contents)}
}

func TestNoOutputShowsASecret(t *testing.T) {
	const (
		secret = "c0ffee-never-to-be-said"
		key    = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBmF9m9ZelpzBdRciaxenan/2x6tf9Z8hfPYG84hnn3b"
	)
	config := func(name, version string) *machineconfig.Config {
		hidden := version + secret
		return &machineconfig.Config{
			Name: name,
			Files: []machineconfig.File{
				file("/etc/a", "version "+version+"\npassword: "+hidden), file("/etc/tls.key", hidden),
				{Path: "/etc/b", Mode: 0o600, Contents: []byte(hidden)}, file("/etc/open", "seen "+version+"\n"),
				file("/var/lib/kubelet/config.json", `{"auths":{"r":{"auth":"`+hidden+`"}}}`),
			},
			Units: []machineconfig.Unit{{
				Name: "a.service", Contents: "[Service]\nEnvironment=A_TOKEN=" + hidden,
				Dropins: []machineconfig.Dropin{{Name: "b.conf", Contents: "[Service]\nExecStart=/bin/x --password " + hidden}},
			}},
			Users: []machineconfig.User{{
				Name: "core", PasswordHash: new("$6$" + hidden), Keys: []string{key + " core@" + version},
			}},
			KernelArguments: []string{"quiet", "rd.iscsi.password=" + hidden, "v=" + version},
		}
	}
	for name, text := range outputs(t, planned(t, config("old", "1"), config("new", "2"), "a", "b")) {
		if strings.Contains(text, secret) || strings.Contains(text, "AAAAC3") {
			t.Errorf("%s:\n%s", name, text)
		}
		for _, want := range []string{"/etc/tls.key", "SHA256:uH/zip", "core@2", "seen 2", "masked: ", "rd.iscsi.password=(masked)", "v=2"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s lacks %q:\n%s", name, want, text)
			}
		}
	}
}

func TestATerminalIsShownTheBeginningUnlessAllIsAskedFor(t *testing.T) {
	var many []plan.Diff
	for i := range 20 {
		many = append(many, plan.Diff{Diff: fmt.Sprintf("file %d\n", i) + strings.Repeat("+x\n", 30)})
	}
	long := strings.Repeat("é", 2*shortLine)
	for _, test := range []struct {
		name  string
		diffs []plan.Diff
		lines int
		last  string
	}{
		{"what fits", many[:2], 63, "+x"},
		{"one that is long", []plan.Diff{{Diff: strings.Repeat("+y\n", 100)}}, shortDiff + 1, "… 60 more lines: --diff all shows them"},
		{"one that is as long as may be", []plan.Diff{{Diff: strings.Repeat("+y\n", shortDiff)}}, shortDiff, "+y"},
		{"many", many, 13*32 + 1, "… 7 more differences: --diff all shows them"},
		{"a long line", []plan.Diff{{Diff: long + "\n"}}, 1, strings.Repeat("é", shortLine) + "…"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := differences(test.diffs, false)
			if len(got) != test.lines || got[len(got)-1] != test.last {
				t.Errorf("%d lines, the last %q; want %d and %q", len(got), got[len(got)-1], test.lines, test.last)
			}
			var whole []string
			for _, d := range test.diffs {
				whole = append(whole, d.Diff)
			}
			if all := strings.Join(differences(test.diffs, true), "\n") + "\n"; all != strings.Join(whole, "\n") {
				t.Errorf("all is %q", all)
			}
		})
	}
}

// updatedIn is a node whose last update took so long.
func updatedIn(minutes int) *mcfgv1.MachineConfigNode {
	began := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	s := &mcfgv1.MachineConfigNode{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
		api.UpdateKey: api.Encode(api.Update{Config: "old", Since: began}),
	}}}
	s.Status.ConfigVersion = &mcfgv1.MachineConfigNodeStatusMachineConfigVersion{Current: "old"}
	for kind, status := range map[mcfgv1.StateProgress]metav1.ConditionStatus{
		mcfgv1.MachineConfigNodeUpdated: metav1.ConditionTrue, mcfgv1.MachineConfigNodeUpdatePrepared: metav1.ConditionFalse,
		mcfgv1.MachineConfigNodeUpdateRebooted: metav1.ConditionFalse,
	} {
		s.Status.Conditions = append(s.Status.Conditions, metav1.Condition{
			Type: string(kind), Status: status,
			LastTransitionTime: metav1.NewTime(began.Add(time.Duration(minutes) * time.Minute)),
		})
	}
	return s
}

func TestAPlanCountsWhoGoesAndSaysHowLongThatTakes(t *testing.T) {
	old := &machineconfig.Config{Name: "old", Files: []machineconfig.File{file("/etc/a", "1")}}
	d := planned(t, old, &machineconfig.Config{Name: "new"}, "a", "b", "c")
	d.Order = d.Order[:2] // c is on its way
	d.Counts = planCounts{}
	d.count()
	if want := (planCounts{Nodes: 3, Going: 2, Drained: 2, Reboots: 2}); d.Counts != want {
		t.Errorf("%+v, want %+v", d.Counts, want)
	}
	pool := progress.Pool{Nodes: []progress.Node{{Name: "a"}, {Name: "b"}, {Name: "c"}}}
	d.estimate(pool, map[string]*mcfgv1.MachineConfigNode{"a": updatedIn(4), "c": updatedIn(8), "another pool's": updatedIn(90)}, 1)
	if want := (planEstimate{Nodes: 2, Seconds: 12 * 60, SlowestSeconds: 16 * 60, BasedOn: 2}); d.Estimate == nil || *d.Estimate != want {
		t.Errorf("%+v, want %+v", d.Estimate, want)
	}
	if got := d.duration(); !strings.Contains(got, "about 12m, or 16m if") || !strings.HasSuffix(got, "by the last updates of 2 nodes") {
		t.Error(got)
	}
	d.Estimate = nil
	d.estimate(pool, nil, 1)
	if got := d.duration(); d.Estimate != nil || !strings.Contains(got, "not known") {
		t.Error(got)
	}
	d.refused = true
	if d.count(); d.Counts.Going != 0 {
		t.Errorf("of what is refused: %+v", d.Counts)
	}
}

// What is not known and what stands in the plan of a group counts as a warning about a document does. Files that are no
// documents are passed over.
func TestAStrictPlanFailsForEachOfItsWarnings(t *testing.T) {
	t.Parallel()
	var said strings.Builder
	c := &Cluster{warnings: &said}
	for what, doubt := range map[string]func(d *PlanDocument){
		"":                    func(d *PlanDocument) { d.Warnings = append(d.Warnings, "a.txt: passed over") },
		"budgets: not known":  func(d *PlanDocument) { c.warnAll(d, []string{"budgets: not known"}) },
		"the update loses it": func(d *PlanDocument) { d.Groups[1].Plan.Warnings = []string{"the update loses it"} },
	} {
		d := &PlanDocument{Groups: []planGroup{{Plan: &plan.Plan{}}, {Nodes: []string{"a"}, Plan: &plan.Plan{Drain: true}}},
			Order: []string{"a"}}
		doubt(d)
		if err := d.Err(); err != nil {
			t.Errorf("%q, not strict: %v", what, err)
		}
		d.strict = true
		if err := d.Err(); (err == nil) != (what == "") || err != nil && err.Error() != "flag --strict: "+what {
			t.Errorf("%q, strict: %v", what, err)
		}
		if d.count(); d.Counts.Going != 1 {
			t.Errorf("%q: a warning keeps no node: %+v", what, d.Counts)
		}
	}
	if said.String() != "warning: budgets: not known\n" {
		t.Errorf("printed: %q", said.String())
	}
}

func TestAPlanReckonsWithThePolicyOfThePool(t *testing.T) {
	old := &machineconfig.Config{Name: "old", Files: []machineconfig.File{file("/etc/a", "1")}}
	d := planned(t, old, &machineconfig.Config{Name: "new"}, "a", "b", "c", "d", "e")
	p := progress.Pool{Name: "worker", Target: "new", Rules: progress.Rules{Policy: "careful"}}
	for _, name := range d.Order {
		p.Nodes = append(p.Nodes, progress.Node{Name: name, Node: api.Node{Current: "old", Desired: "old", State: api.Done}})
	}
	p.Nodes = append(p.Nodes, progress.Node{Name: "f", Node: api.Node{Current: "new", Desired: "new", State: api.Done}})
	pool := &mcfgv1.MachineConfigPool{}
	pool.Spec.MaxUnavailable = new(intstr.FromInt32(2))
	past := []progress.Update{{Took: 10 * time.Minute, Rebooted: true}, {Took: 20 * time.Minute, Rebooted: true},
		{Took: 12 * time.Minute, Rebooted: true}}
	canary := api.RolloutStage{Name: "canary", Nodes: new(intstr.FromInt32(2)), SoakSeconds: 3600}
	night := &api.RolloutWindows{Open: []api.Window{{Cron: "0 22 * * *", DurationMinutes: 60}}, OnClose: api.CloseFinishes}
	evening := time.Date(2026, 3, 2, 21, 0, 0, 0, time.UTC)
	for _, test := range []struct {
		name             string
		spec             api.RolloutPolicySpec
		typical, slowest time.Duration
	}{
		{"without stages, two at a time", api.RolloutPolicySpec{}, 36 * time.Minute, 60 * time.Minute},
		// One canary goes: f has it already. An hour, then two at a time.
		{
			"a stage that soaks", api.RolloutPolicySpec{Stages: []api.RolloutStage{canary}}, 96 * time.Minute,
			2 * time.Hour,
		},
		// After an hour for another one, then it is the next night.
		{
			"a window", api.RolloutPolicySpec{Stages: []api.RolloutStage{canary}, Windows: night},
			25*time.Hour + 24*time.Minute, 25*time.Hour + 40*time.Minute,
		},
		{
			"what it can't know", api.RolloutPolicySpec{DependsOn: []string{"infra"}, Approval: &api.RolloutApproval{}},
			36 * time.Minute, time.Hour,
		},
	} {
		policy := &api.RolloutPolicy{ObjectMeta: metav1.ObjectMeta{Name: "careful"}, Spec: test.spec}
		got := d.simulate(p, policy, pool, past, evening)
		want := &policyEstimate{"careful", int(test.typical.Seconds()), int(test.slowest.Seconds())}
		if got == nil || *got != *want {
			t.Errorf("%s: %+v, want %+v", test.name, got, want)
		}
		d.Estimate = &planEstimate{Policy: got, BasedOn: 3}
		if said := d.duration(); !strings.Contains(said, "windows of RolloutPolicy careful and the last updates of 3 nodes") {
			t.Error(said)
		}
	}
	never := &api.RolloutPolicy{Spec: api.RolloutPolicySpec{Windows: &api.RolloutWindows{
		Blackouts: []api.Window{{From: "2026-01-01", Until: "2027-12-31"}},
	}}}
	if got := d.simulate(p, never, pool, past, evening); got != nil {
		t.Errorf("of what does not end: %+v", got)
	}
	d.Estimate, d.policy = &planEstimate{}, "careful"
	if said := d.duration(); !strings.HasSuffix(said, "all that RolloutPolicy careful waits for comes on top") {
		t.Error(said)
	}
}

func TestAStagesOwnMaxUnavailableIsSaidAndCountsForItAlone(t *testing.T) {
	old := &machineconfig.Config{Name: "old", Files: []machineconfig.File{file("/etc/a", "1")}}
	nodes := strings.Fields("a b c d e f g h i j")
	d := planned(t, old, &machineconfig.Config{Name: "new"}, nodes...)
	object := &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: "worker"}}
	object.Spec.MaxUnavailable, object.Spec.Configuration.Name = new(intstr.FromInt32(3)), "new"
	var list []progress.Node
	for _, name := range nodes {
		list = append(list, progress.Node{Name: name, Node: api.Node{Current: "old", Desired: "old", State: api.Done}})
	}
	p := progress.NewPool(object, list)
	policy := api.RolloutPolicy{ObjectMeta: metav1.ObjectMeta{Name: "careful"}, Spec: api.RolloutPolicySpec{
		Pools: []string{"worker"}, Stages: []api.RolloutStage{
			{Name: "canary", Nodes: new(intstr.FromInt32(1)), MaxUnavailable: new(intstr.FromInt32(1))},
		},
	}}
	rollout.NewBook([]api.RolloutPolicy{policy}, rollout.Passing).Follow([]*progress.Pool{&p}, time.Unix(0, 0), "")
	most := d.most(p, object)
	if most != 3 || d.MaxUnavailable != 1 || d.atATime() != "at most 1 at a time in stage canary" {
		t.Errorf("%d, %d, %s", most, d.MaxUnavailable, d.atATime())
	}
	took := d.estimate(p, map[string]*mcfgv1.MachineConfigNode{"a": updatedIn(10)}, most)
	if d.Estimate == nil || d.Estimate.Seconds != 4*600 {
		t.Errorf("without the policy: %+v", d.Estimate)
	}
	// One, then nine by three.
	if got := d.simulate(p, &policy, object, took, time.Unix(0, 0)); got == nil || got.Seconds != 4*600 {
		t.Errorf("with it: %+v", got)
	}
	plain := &PlanDocument{}
	plain.most(progress.NewPool(object, list), object)
	if got := plain.atATime(); got != "at most 3 at a time" {
		t.Error(got)
	}
}

func TestWhatAGateRefusedIsSaidWithItsName(t *testing.T) {
	q := api.Quarantine{Config: "rendered-worker-b", Gate: "smoke", Reason: "was closed", Since: time.Unix(1, 0)}
	d := &PlanDocument{Desired: q.Config}
	d.note(progress.Pool{Name: "worker", Target: q.Config, Quarantined: []api.Quarantine{q}})
	if got := strings.Join(d.Notes, "\n"); !d.refused || !strings.Contains(got, "gate smoke was closed; until that is lifted") {
		t.Error(got)
	}
	var out strings.Builder
	lifted := quarantineRow{Pool: "worker", Quarantine: api.Quarantine{Config: q.Config}, Lifted: &liftedRow{By: "jane"}}
	rows := Quarantines{{Pool: "worker", Quarantine: q}, lifted}
	if err := rows.WriteText(&out, time.Unix(61, 0)); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out.String(), "\n")
	if words := strings.Fields(lines[1]); words[2] != "-" || !strings.HasSuffix(lines[1], "gate smoke was closed") {
		t.Error(lines[1])
	}
	if words := strings.Fields(lines[4]); len(words) != 6 || words[2] != "-" {
		t.Error(lines[4])
	}
}

// What people paste into a pull request is what the page shows.
func TestAPlanInMarkdown(t *testing.T) {
	from := &machineconfig.Config{Name: "rendered-worker-1", Files: []machineconfig.File{file("/etc/a|b", "1\n")}}
	to := &machineconfig.Config{
		Name: "rendered-worker-2", Files: []machineconfig.File{file("/etc/a|b", "```\n<b>2</b>\n")},
		Units: []machineconfig.Unit{{Name: "a.service", Contents: "[Service]\nEnvironment=A_TOKEN=x\n"}},
	}
	d := planned(t, from, to, "w-1", "w-2")
	d.Notes, d.Warnings, d.Deleted = []string{"the pool is <paused>"}, []string{"a_b: passed over"}, []string{"50-x"}
	d.Budgets = []heldPod{{Node: "w-2", Namespace: "shop", Pod: "db-0", Budget: "db", Placement: "0 of 2 nodes could take it"}}
	d.Counts.HeldPods = new(1)
	d.Estimate = &planEstimate{Nodes: 2, Seconds: 360, SlowestSeconds: 600, BasedOn: 2}
	got := outputs(t, d)["markdown"]
	for _, want := range []string{
		"<!-- kubectl refit plan worker -->\n", "**Drain**, **Reboot** | file /etc/a&#124;b: no policy covers it",
		"\n````diff\n--- /etc/a|b\n", "+<b>2</b>\n", "masked: nothing -> ", "- the pool is &#60;paused&#62;\n",
		"- a&#95;b: passed over\n", "- 50-x\n", "| w-2 | shop/db-0 | db | 0 | 0 of 2 nodes could take it |\n",
		"Duration: about 6m, or 10m if", "</details>\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("it lacks %q:\n%s", want, got)
		}
	}
}

func TestACommentIsCutAndItsSummaryIsNot(t *testing.T) {
	from, to := &machineconfig.Config{Name: "old"}, &machineconfig.Config{Name: "new"}
	for i := range 100 {
		path := fmt.Sprintf("/etc/file%d", i)
		from.Files = append(from.Files, file(path, strings.Repeat("old and long\n", 200)))
		to.Files = append(to.Files, file(path, strings.Repeat("new and long `code`\n", 200)))
	}
	d := planned(t, from, to, "a", "b")
	d.Groups = append(d.Groups, d.Groups[0], d.Groups[0])
	d.Notes = slices.Repeat([]string{"the pool is paused"}, mostListed+5)
	whole := d.comment(100 << 20)
	summary, _, _ := strings.Cut(whole, "\n<details>")
	if strings.Contains(whole, "Cut to fit") {
		t.Error("cut although there is room")
	}
	if strings.Count(summary, "\n- ") != mostListed+1 || !strings.Contains(summary, "\n- and 5 more\n") {
		t.Errorf("a list has no end:\n%s", summary)
	}
	for _, limit := range []int{commentLimit, 20000, 5000, len(summary) + 400, len(summary)} {
		got := d.comment(limit)
		if limit > len(summary)+300 && len(got) > limit {
			t.Errorf("%d bytes, limit %d", len(got), limit)
		}
		if !strings.HasPrefix(got, summary) || !strings.Contains(got, "Cut to fit into a comment") {
			t.Errorf("limit %d: %s", limit, got)
		}
		if strings.Count(got, "<details>") != strings.Count(got, "</details>") || strings.Count(got, "\n```")%2 != 0 {
			t.Errorf("limit %d: what begins does not end:\n%s", limit, got)
		}
	}
	if got := len(d.comment(commentLimit)); got < commentLimit*9/10 {
		t.Errorf("only %d bytes are used", got)
	}
}

func TestNothingInATextIsMarkup(t *testing.T) {
	for text, want := range map[string]string{
		"file /etc/a: no policy": "file /etc/a: no policy",
		"a|b":                    "a&#124;b",
		"<!-- -->`*_[x]@all#1":   "&#60;&#33;-- --&#62;&#96;&#42;&#95;&#91;x&#93;&#64;<!-- -->all&#35;<!-- -->1",
		"two\nlines":             "two lines",
		"\x1b[31m":               "U+001B&#91;31m",
	} {
		if got := escaped(text); got != want {
			t.Errorf("%q is %s, want %s", text, got, want)
		}
	}
	for text, mark := range map[string]string{"a\n": "```", "`": "```", "```\n": "````", "x ````` y": "``````"} {
		if got := fenced("diff", text); got != "\n"+mark+"diff\n"+strings.TrimSuffix(text, "\n")+"\n"+mark+"\n" {
			t.Errorf("%q is fenced as %q", text, got)
		}
	}
}
