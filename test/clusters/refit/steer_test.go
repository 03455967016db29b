// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/plan"
)

// file writes a document for -f.
func (l *lab) file(name string, doc any) string {
	l.t.Helper()
	text, ok := doc.(string)
	if !ok {
		data, err := yaml.Marshal(doc)
		l.must(err)
		text = string(data)
	}
	path := filepath.Join(l.t.TempDir(), name)
	l.must(os.WriteFile(path, []byte(text), 0o600))
	return path
}

type planned struct {
	Current, Desired string
	Groups           []struct {
		Current, Error string
		Nodes          []string
		Plan           *plan.Plan
		Diffs          []plan.Diff
	}
	Counts         struct{ Nodes, Going, Drained, Reboots, HeldPods int }
	Estimate       *estimated
	MaxUnavailable int
	Order, Notes   []string
	Deleted        []string
	Warnings       []string
	Budgets        []struct{ Node, Namespace, Pod, Budget, Placement string }
}

type estimated struct {
	Nodes, Seconds, SlowestSeconds, BasedOn int

	Policy struct {
		Name                    string
		Seconds, SlowestSeconds int
	}
}

func (r result) planned(t *testing.T) planned {
	t.Helper()
	var doc planned
	if err := json.Unmarshal([]byte(r.stdout), &doc); err != nil {
		t.Fatalf("%v\n%s%s", err, r.stdout, r.stderr)
	}
	return doc
}

func TestAPlanSaysWhatEachGroupOfNodesWouldDo(t *testing.T) {
	l := newLab(t)
	one, two := l.config("plan", "50-one", "/etc/one", "1"), l.config("plan", "60-two", "/etc/two", "2")
	old := l.render("plan", one)
	now := l.render("plan", one, two)
	l.source(one)
	l.source(two)
	l.pool("plan", now, old, nil)
	l.node("plan-1", "plan", now, now, api.Done, nil)
	l.node("plan-2", "plan", now, now, api.Done, nil)
	l.node("plan-3", "plan", old, old, api.Done, nil)
	l.workload("plan", "db-1", "plan-2", "db")

	change := l.file("two.yaml", l.config("plan", "60-two", "/etc/two", "changed"))
	r := l.refit("plan", "plan", "-f", change).ok(t)
	l.golden("plan.txt", r.stdout)
	doc := l.refit("plan", "plan", "-f", change, "-o", "json").ok(t).planned(t)
	if len(doc.Groups) != 2 || !slices.Equal(doc.Groups[0].Nodes, []string{"plan-1", "plan-2"}) ||
		doc.Groups[0].Plan.Changes[0].Op != plan.Modify || doc.Groups[1].Plan.Changes[0].Op != plan.Add {
		t.Errorf("groups: %+v", doc.Groups)
	}
	if len(doc.Order) != 3 || doc.MaxUnavailable != 1 {
		t.Errorf("order: %v, %d at a time", doc.Order, doc.MaxUnavailable)
	}
	if len(doc.Budgets) != 1 || doc.Budgets[0].Node != "plan-2" || doc.Budgets[0].Budget != "db" ||
		!strings.HasPrefix(doc.Budgets[0].Placement, "0 of ") {
		t.Errorf("budgets: %+v", doc.Budgets)
	}

	// Two files as the shell spells them, one of which makes the pool faster.
	pool := l.readPool("plan")
	pool.TypeMeta = metav1.TypeMeta{APIVersion: mcfgv1.GroupVersion.String(), Kind: "MachineConfigPool"}
	pool.Spec.MaxUnavailable = new(intstr.FromInt32(2))
	doc = l.refit("plan", "plan", "-o", "json", "-f", change, l.file("pool.yaml", pool)).ok(t).planned(t)
	if doc.MaxUnavailable != 2 || len(doc.Order) != 3 {
		t.Errorf("with a faster pool: %+v", doc)
	}

	part := "apiVersion: " + mcfgv1.GroupVersion.String() + "\nkind: MachineConfigPool\nmetadata: {name: plan}\n" +
		"spec: {maxUnavailable: 3}\n"
	whole := doc.Desired
	doc = l.refit("plan", "plan", "-o", "json", "-f", change, l.file("part.yaml", part)).ok(t).planned(t)
	if doc.MaxUnavailable != 3 || len(doc.Order) != 3 || doc.Desired != whole {
		t.Errorf("with a file that says a part of the pool: %+v", doc)
	}

	doc = l.refit("plan", "plan", "--delete", "60-two", "-o", "json").ok(t).planned(t)
	if doc.Desired != old || doc.Groups[0].Plan.Changes[0].Op != plan.Remove || len(doc.Groups[1].Plan.Changes) != 0 {
		t.Errorf("without 60-two: %+v", doc)
	}
	doc = l.refit("plan", "plan", "-o", "json").ok(t).planned(t)
	if doc.Desired != now || !slices.Equal(doc.Order, []string{"plan-3"}) || !strings.Contains(doc.Notes[0], "already") {
		t.Errorf("as it is: %+v", doc)
	}
	l.refit("plan", "plan", "--delete", "70-none").fails(t, 1, "no MachineConfig 70-none")
	l.refit("plan", "plan", "--delete", "60-two", "-f", change).fails(t, 2, "60-two")
	l.refit("plan", "plan", "-f", "no-such-file.yaml").fails(t, 1, "no-such-file.yaml")
	l.refit("plan").fails(t, 2, "POOL is needed")
}

// A file that is a secret, a unit and a kernel argument with one, and a file that is none: people and programs see that
// all of them change, and of the last one how.
func TestAPlanShowsContentsButNoSecretInAnyFormat(t *testing.T) {
	l := newLab(t)
	const secret = "c0ffee-never-to-be-said"
	document := func(version string) *mcfgv1.MachineConfig {
		mc := l.config("shown", "50-shown", "/etc/shown", "")
		mc.Spec.Config.Raw = fmt.Appendf(nil, `{"ignition":{"version":"3.5.0"},"storage":{"files":[
			{"path":"/etc/shown","contents":{"source":"data:,version%%20%[1]s%%0A"}},
			{"path":"/etc/token","mode":384,"contents":{"source":"data:,%[1]s%[2]s"}}]},"systemd":{"units":[
			{"name":"shown.service","contents":"[Service]\nEnvironment=A_TOKEN=%[1]s%[2]s\n"}]}}`, version, secret)
		mc.Spec.KernelArguments = []string{"rd.iscsi.password=" + version + secret}
		return mc
	}
	old := document("1")
	now := l.render("shown", old)
	l.source(old)
	l.pool("shown", now, now, nil)
	l.node("shown-1", "shown", now, now, api.Done, nil)
	l.node("shown-2", "shown", now, now, api.Done, nil)
	l.workload("shown", "db-1", "shown-2", "db")
	l.report("shown-1", "shown", now, updated(now, ago(30), 6*time.Minute))
	l.report("shown-2", "shown", now, updated(now, ago(20), 8*time.Minute))
	change := l.file("shown.yaml", document("2"))

	r := l.refit("plan", "shown", "-f", change, "-o", "json").ok(t)
	doc := r.planned(t)
	if c := doc.Counts; c.Nodes != 2 || c.Going != 2 || c.Drained != 2 || c.Reboots != 2 || c.HeldPods != 1 {
		t.Errorf("counts: %+v", c)
	}
	if e := doc.Estimate; e == nil || e.Nodes != 2 || e.Seconds != 14*60 || e.SlowestSeconds != 16*60 || e.BasedOn != 2 {
		t.Errorf("estimate: %+v", e)
	}
	if e := l.underPolicy(`{"pools":["shown"],"stages":[{"name":"canary","nodes":1,"soakSeconds":3600}]}`, change); e == nil ||
		e.Policy.Name != "shown" || e.Policy.Seconds != (7+60+7)*60 || e.Policy.SlowestSeconds != (8+60+8)*60 {
		t.Errorf("estimate by the policy: %+v", e)
	}
	diffs := doc.Groups[0].Diffs
	if len(diffs) != 3 || diffs[0].Path != "/etc/shown" || diffs[0].Masked || !diffs[1].Masked || !diffs[2].Masked ||
		!strings.Contains(diffs[0].Diff, "-version 1\n+version 2\n") {
		t.Errorf("diffs: %+v", diffs)
	}
	for _, args := range [][]string{nil, {"--diff", "all"}, {"-o", "markdown"}, {"-o", "json"}} {
		out := l.refit(append([]string{"plan", "shown", "-f", change}, args...)...).ok(t).stdout
		if strings.Contains(out, secret) || !strings.Contains(out, "version 2") {
			t.Errorf("%v:\n%s", args, out)
		}
		if slices.Contains(args, "markdown") {
			l.golden("plan.md", out)
		}
	}
	if out := l.refit("diff", "shown-1").ok(t).stdout; strings.Contains(out, secret) {
		t.Error(out)
	}
	if doc := l.refit("plan", "shown", "-f", change, "--diff", "none", "-o", "json").ok(t).planned(t); len(doc.Groups[0].Diffs) != 0 {
		t.Errorf("diffs: %+v", doc.Groups[0].Diffs)
	}
	l.refit("plan", "shown", "-f", change, "--diff", "some").fails(t, 2, "--diff", `"some"`)
	l.refit("status", "-o", "markdown").fails(t, 2, `"markdown"`)
}

// underPolicy is the estimate of a plan for pool shown while a RolloutPolicy with that spec is there.
func (l *lab) underPolicy(spec, change string) *estimated {
	l.t.Helper()
	const path = "/apis/noderefit.dev/v1alpha1/rolloutpolicies"
	rest := l.Client.CoreV1().RESTClient()
	body := `{"apiVersion":"noderefit.dev/v1alpha1","kind":"RolloutPolicy","metadata":{"name":"shown"},"spec":` + spec + `}`
	l.must(rest.Post().AbsPath(path).SetHeader("Content-Type", "application/json").Body([]byte(body)).Do(l.ctx).Error())
	defer func() { l.must(rest.Delete().AbsPath(path, "shown").Do(l.ctx).Error()) }()
	return l.refit("plan", "shown", "-f", change, "-o", "json").ok(l.t).planned(l.t).Estimate
}

// updated has a daemon say that its node went to a configuration, with a reboot.
func updated(config string, began metav1.Time, took time.Duration) func(*mcfgv1.MachineConfigNode) {
	return func(s *mcfgv1.MachineConfigNode) {
		s.Annotations = map[string]string{api.UpdateKey: api.Encode(api.Update{Config: config, Since: began.Time})}
		s.Status.ConfigVersion = &mcfgv1.MachineConfigNodeStatusMachineConfigVersion{Current: config, Desired: config}
		s.Status.Conditions = nil
		for kind, status := range map[mcfgv1.StateProgress]metav1.ConditionStatus{
			mcfgv1.MachineConfigNodeUpdated: metav1.ConditionTrue, mcfgv1.MachineConfigNodeUpdatePrepared: metav1.ConditionFalse,
			mcfgv1.MachineConfigNodeUpdateRebooted: metav1.ConditionFalse,
		} {
			s.Status.Conditions = append(s.Status.Conditions, metav1.Condition{
				Type: string(kind), Status: status, Reason: string(kind), LastTransitionTime: metav1.NewTime(began.Add(took)),
			})
		}
	}
}

// What a pull request asks for: a directory is all that people have for a pool, and what is gone from it goes.
func TestAPlanOfADirectoryIsWithoutWhatIsGoneFromIt(t *testing.T) {
	l := newLab(t)
	one, two := l.config("repo", "50-repo-one", "/etc/one", "1"), l.config("repo", "60-repo-two", "/etc/two", "2")
	two.Labels["app"] = "machines"
	made := l.config("repo", "99-repo-generated-kubelet", "/etc/kubelet", "3")
	made.Annotations = map[string]string{api.GeneratedBy: "test"}
	now := l.render("repo", one, two, made)
	for _, mc := range []*mcfgv1.MachineConfig{one, two, made} {
		l.source(mc)
	}
	l.pool("repo", now, now, nil)
	l.node("repo-1", "repo", now, now, api.Done, nil)

	dir := filepath.Dir(l.file("one.yaml", one))
	more := filepath.Join(dir, "pools", "more")
	l.must(os.MkdirAll(more, 0o755))
	kubelet := "apiVersion: " + mcfgv1.GroupVersion.String() + "\nkind: KubeletConfig\nmetadata: {name: x}\n"
	l.must(os.WriteFile(filepath.Join(more, "kubelet.yaml"), []byte(kubelet), 0o600))

	r := l.refit("plan", "repo", "-f", dir, "-o", "json")
	if doc := r.planned(t); r.code != 0 || doc.Desired != now || len(doc.Deleted) != 0 || len(doc.Warnings) != 1 ||
		!strings.Contains(doc.Warnings[0], "KubeletConfig") || !strings.Contains(r.stderr, doc.Warnings[0]) {
		t.Errorf("without --prune: %+v\n%s", doc, r.stderr)
	}
	r = l.refit("plan", "repo", "-f", dir, "--prune", "-o", "json")
	doc := r.planned(t)
	if want := l.render("repo", one, made); r.code != 0 || doc.Desired != want ||
		!slices.Equal(doc.Deleted, []string{"60-repo-two"}) || doc.Groups[0].Plan.Changes[0].Op != plan.Remove {
		t.Errorf("with --prune: %+v, want %s", doc, want)
	}
	text := l.refit("plan", "repo", "-f", dir, "--prune").stdout
	if !strings.Contains(text, "without MachineConfig 60-repo-two\n") {
		t.Error(text)
	}
	for selector, want := range map[string][]string{"app=machines": {"60-repo-two"}, "app=other": {}} {
		doc := l.refit("plan", "repo", "-f", dir, "--prune", "-l", selector, "-o", "json").planned(t)
		if !slices.Equal(doc.Deleted, want) {
			t.Errorf("-l %s deletes %v", selector, doc.Deleted)
		}
	}
	doc = l.refitReading(string(mustYAML(t, one)), "plan", "repo", "-f", "-", "--prune", "-o", "json").ok(t).planned(t)
	if !slices.Equal(doc.Deleted, []string{"60-repo-two"}) {
		t.Errorf("from the standard input: %+v", doc)
	}
	l.refitReading("kind: MachineConfig\n", "plan", "repo", "-f", "-").fails(t, 1, "standard input")
	l.refit("plan", "repo", "--prune").fails(t, 2, "--prune")
	l.refit("plan", "repo", "-f", dir, "-l", "a=b").fails(t, 2, "--selector")
	l.refit("plan", "repo", "-f", dir, "--prune", "-l", "a in").fails(t, 2, "--selector")
}

// A pull request may bring the pool itself, and its nodes are another pool's until then.
func TestWhatIsSignedIsWhatAPlanNames(t *testing.T) {
	l := newLab(t)
	now := l.render("signs", l.config("signs", "50-signs", "/etc/a", "1"))
	l.source(l.config("signs", "50-signs", "/etc/a", "1"))
	l.pool("signs", now, now, nil)
	file := l.file("more.yaml", l.config("signs", "60-signs", "/etc/b", "2"))
	for want, args := range map[string][]string{
		now: {"signs"},
		l.refit("plan", "signs", "-f", file, "-o", "json").ok(t).planned(t).Desired: {"signs", "-f", file},
	} {
		payload := l.refit(append([]string{"sign", "--payload"}, args...)...).ok(t).stdout
		if _, digest, _ := strings.Cut(strings.TrimSpace(payload), "sha256:"); !machineconfig.NamedBy(want, digest) {
			t.Errorf("sign %v signs %q, want the digest of %s", args, payload, want)
		}
	}
	l.refit("sign", "no-pool", "--payload").fails(t, 1, "no-pool")
}

func TestAPlanOfAPoolThatIsNotThereYet(t *testing.T) {
	l := newLab(t)
	base := l.config("worker", "50-fresh-base", "/etc/base", "1")
	own := l.config("fresh", "60-fresh", "/etc/fresh", "1")
	now := l.render("worker", base)
	l.source(base)
	l.pool("worker", now, now, nil)
	l.node("fresh-1", "worker", now, now, api.Done, func(n *corev1.Node) { n.Labels[api.NodeRole+"fresh"] = "" })
	pool := &mcfgv1.MachineConfigPool{
		TypeMeta:   metav1.TypeMeta{APIVersion: mcfgv1.GroupVersion.String(), Kind: "MachineConfigPool"},
		ObjectMeta: metav1.ObjectMeta{Name: "fresh"},
	}
	pool.Spec.MachineConfigSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
		Key: api.Role, Operator: metav1.LabelSelectorOpIn, Values: []string{"worker", "fresh"},
	}}}
	pool.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{api.NodeRole + "fresh": ""}}
	doc := l.refit("plan", "fresh", "-f", l.file("pool.yaml", pool), l.file("own.yaml", own), "-o", "json").ok(t).planned(t)
	if doc.Current != "" || len(doc.Groups) != 1 || doc.Groups[0].Current != now ||
		!slices.Equal(doc.Groups[0].Nodes, []string{"fresh-1"}) || len(doc.Groups[0].Plan.Changes) != 1 {
		t.Errorf("%+v", doc)
	}
	l.refit("plan", "fresh", "-f", l.file("own.yaml", own)).fails(t, 1, "there is no MachineConfigPool fresh")
}

func TestAPlanThatCantBeCarriedOutExitsWithThree(t *testing.T) {
	l := newLab(t)
	base := l.config("fixed", "50-base", "/etc/one", "1")
	now := l.render("fixed", base)
	l.source(base)
	l.pool("fixed", now, now, nil)
	l.node("fixed-1", "fixed", now, now, api.Done, nil)
	disks := l.config("fixed", "60-disks", "/etc/two", "2")
	disks.Spec.Config.Raw = []byte(
		`{"ignition":{"version":"3.5.0"},"storage":{"disks":[{"device":"/dev/vdb","wipeTable":true}]}}`)
	r := l.refit("plan", "fixed", "-f", l.file("disks.yaml", disks), "-o", "json").fails(t, 3, "storage.disks")
	if doc := r.planned(t); doc.Groups[0].Plan.Unreconcilable[0].Field != "storage.disks" {
		t.Errorf("%+v", doc)
	}
	bad := l.file("bad.yaml", strings.Replace(string(mustYAML(t, base)), "data:,1", "ftp://x/1", 1))
	l.refit("plan", "fixed", "-f", bad).fails(t, 1, "50-base")
	// A configuration that failed would be refused again.
	failed := l.render("fixed", l.config("fixed", "50-base", "/etc/one", "bad"))
	p := l.readPool("fixed")
	p.Annotations = map[string]string{api.PoolQuarantineKey: api.Encode([]api.Quarantine{{
		Config: failed, Node: "fixed-1", Reason: "kubelet", Since: ago(5).Time,
	}})}
	l.update(p)
	r = l.refit("plan", "fixed", "-f", l.file("again.yaml", l.config("fixed", "50-base", "/etc/one", "bad")))
	r.fails(t, 3, "quarantined")
	if !strings.Contains(r.stdout, "failed on node fixed-1") {
		t.Error(r.stdout)
	}
	// So is a rendered configuration that is not what its name says.
	mcs := l.MachineConfigs.MachineconfigurationV1().MachineConfigs()
	forged, err := mcs.Get(l.ctx, now, getOptions)
	l.must(err)
	forged.Spec.Config.Raw = []byte(strings.Replace(string(forged.Spec.Config.Raw), "data:,1", "data:,9", 1))
	_, err = mcs.Update(l.ctx, forged, updateOptions)
	l.must(err)
	l.refit("diff", "fixed").fails(t, 1, "somebody changed the object")
}

func mustYAML(t *testing.T, v any) []byte {
	t.Helper()
	data, err := yaml.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestAPoolIsPausedAndResumed(t *testing.T) {
	l := newLab(t)
	now := l.render("brake", l.config("brake", "50-brake", "/etc/one", "1"))
	l.pool("brake", now, now, nil)
	l.refit("pause", "brake").ok(t)
	if !l.readPool("brake").Spec.Paused {
		t.Error("not paused")
	}
	if got := l.refit("pause", "brake").ok(t).stdout; !strings.Contains(got, "already") {
		t.Error(got)
	}
	l.refit("resume", "brake").ok(t)
	if l.readPool("brake").Spec.Paused {
		t.Error("still paused")
	}
	if got := l.refit("resume", "brake").ok(t).stdout; !strings.Contains(got, "neither paused nor held") {
		t.Error(got)
	}
}

func TestARollbackPinsThePoolUntilItIsResumed(t *testing.T) {
	l := newLab(t)
	first := l.render("back", l.config("back", "50-back", "/etc/one", "1"))
	second := l.render("back", l.config("back", "50-back", "/etc/one", "2"))
	third := l.render("back", l.config("back", "50-back", "/etc/one", "3"))
	l.pool("back", third, second, func(p *mcfgv1.MachineConfigPool) {
		p.Annotations[api.HistoryKey] = api.Encode([]string{first, "rendered-back-gone"})
	})
	pinned := func() *api.Pin {
		t.Helper()
		pin, err := api.Decode[*api.Pin](l.readPool("back").Annotations, api.PinKey)
		l.must(err)
		return pin
	}
	// In the middle of a rollout, what the whole pool had is where it goes.
	said := l.refit("rollback", "back").ok(t).stdout
	t.Log(said)
	if !strings.Contains(said, "goes back to "+second) {
		t.Error(said)
	}
	if pin := pinned(); pin == nil || pin.Config != second || pin.From != third || time.Since(pin.Since) > time.Minute {
		t.Errorf("pin: %+v", pin)
	}
	// The render controller follows; going back further still says what the first rollback left.
	p := l.readPool("back")
	p.Spec.Configuration.Name = second
	l.update(p)
	l.refit("rollback", "back").ok(t)
	if pin := pinned(); pin == nil || pin.Config != first || pin.From != third {
		t.Errorf("pin: %+v", pin)
	}
	l.refit("rollback", "back", "--to", second).fails(t, 1, "has "+second+" already")
	l.refit("rollback", "back", "--to", "rendered-back-gone").fails(t, 1, "there is no MachineConfig rendered-back-gone")
	l.refit("rollback", "back", "--to", "rendered-worker-x").fails(t, 2, "not a rendered configuration of pool back")

	l.refit("pause", "back").ok(t)
	if got := l.refit("rollback", "back", "--to", first).ok(t).stdout; !strings.Contains(got, "resume back --keep-pin") {
		t.Error(got)
	}
	l.refit("resume", "back", "--keep-pin").ok(t)
	if pin := pinned(); pin == nil || l.readPool("back").Spec.Paused {
		t.Errorf("pin: %+v", pin)
	}
	l.refit("resume", "back").ok(t)
	if pin := pinned(); pin != nil {
		t.Errorf("still pinned: %+v", pin)
	}
	l.pool("fresh", first, first, nil)
	l.refit("rollback", "fresh").fails(t, 1, "no other configuration")
}

func TestAQuarantineIsListedAndLifted(t *testing.T) {
	l := newLab(t)
	bad := l.render("ill", l.config("ill", "50-ill", "/etc/ill", "bad"))
	worse := l.render("ill", l.config("ill", "50-ill", "/etc/ill", "worse"))
	good := l.render("ill", l.config("ill", "50-ill", "/etc/ill", "good"))
	l.pool("ill", bad, good, func(p *mcfgv1.MachineConfigPool) {
		p.Annotations[api.PoolQuarantineKey] = api.Encode([]api.Quarantine{
			{Config: worse, Node: "ill-2", Reason: "kubelet", Since: ago(90).Time},
		})
	})
	// The pool controller has not read this one yet. The node's clock is an hour ahead.
	failedAt := ago(-60).Time
	l.node("ill-1", "ill", good, bad, api.RolledBack, func(n *corev1.Node) {
		q := api.Quarantine{Config: bad, Reason: "kubelet", Since: failedAt}
		n.Annotations[api.QuarantinedKey] = api.Encode([]api.Quarantine{q})
	})
	var rows []struct {
		Pool, Config, Node string
		Present            bool
	}
	l.must(json.Unmarshal([]byte(l.refit("quarantine", "list", "ill", "-o", "json").ok(t).stdout), &rows))
	if len(rows) != 2 || rows[0].Config != bad || rows[0].Node != "ill-1" || !rows[0].Present || rows[1].Present {
		t.Errorf("%+v", rows)
	}
	l.refit("rollback", "ill", "--to", worse).fails(t, 1, "quarantine lift ill "+worse)
	l.refit("quarantine", "lift", "ill", good).fails(t, 1, good+" is not quarantined")
	l.refit("quarantine", "lift", "ill", "--why", strings.Repeat("x", 501)).fails(t, 2, "--why")
	got := l.refit("quarantine", "lift", "ill", "--why", "the registry was down").ok(t).stdout
	if !strings.HasPrefix(got, bad+" is no longer quarantined") {
		t.Error(got)
	}
	l.refit("quarantine", "lift", "ill", worse).ok(t)
	lifted := l.lifted("ill")
	if len(lifted) != 2 || lifted[0].Config != worse || lifted[1].Config != bad ||
		len(lifted[1].Failures) != 1 || lifted[1].Failures[0].Node != "ill-1" || !lifted[1].Failures[0].Since.Equal(failedAt) {
		t.Errorf("%+v", lifted)
	}
	if lifted[0].Why != "" || lifted[1].Why != "the registry was down" || lifted[1].By == "" ||
		time.Since(lifted[1].Since) > 5*time.Minute {
		t.Errorf("who, when and why: %+v", lifted)
	}
	got = l.refit("quarantine", "list", "ill").ok(t).stdout
	if !strings.HasPrefix(got, "nothing is quarantined\n\nPOOL  LIFTED ") || strings.Count(got, lifted[1].By) != 2 ||
		strings.Count(got, "the registry was down") != 1 {
		t.Error(got)
	}
	t.Log("\n" + got)
	l.refit("quarantine", "lift", "ill").fails(t, 1, "nothing is quarantined in pool ill")
	if notes := l.notes("ill"); len(notes) != 2 ||
		notes[0] != lifted[1].By+" lifted the quarantine of "+bad+": the registry was down" {
		t.Errorf("events: %q", notes)
	}
}

// lifted are the lifts on record with a pool.
func (l *lab) lifted(pool string) []api.Lifted {
	l.t.Helper()
	lifted, err := api.Decode[[]api.Lifted](l.readPool(pool).Annotations, api.LiftedKey)
	l.must(err)
	return lifted
}

// notes are what the events about a pool say, the earliest first.
func (l *lab) notes(pool string) []string {
	l.t.Helper()
	events, err := l.Client.EventsV1().Events(metav1.NamespaceDefault).List(l.ctx, metav1.ListOptions{})
	l.must(err)
	slices.SortFunc(events.Items, func(a, b eventsv1.Event) int { return a.EventTime.Compare(b.EventTime.Time) })
	var notes []string
	for _, e := range events.Items {
		if e.Regarding.Kind == "MachineConfigPool" && e.Regarding.Name == pool {
			notes = append(notes, e.Note)
		}
	}
	return notes
}

// What failed is content: another pool's name for it is stopped by it too, and it can be lifted by that.
func TestWhatFailedIsKnownByAnotherPoolsNameAndLiftedByIt(t *testing.T) {
	l := newLab(t)
	here := l.render("sour", l.config("sour", "50-sour", "/etc/sour", "bad"))
	there := l.render("sweet", l.config("sweet", "60-sweet", "/etc/sour", "bad"))
	if here == there || !api.SameContent(here, there) {
		t.Fatalf("%s and %s", here, there)
	}
	l.pool("sour", here, here, func(p *mcfgv1.MachineConfigPool) {
		p.Annotations[api.PoolQuarantineKey] = api.Encode([]api.Quarantine{
			{Config: here, Node: "sour-1", Reason: "kubelet", Since: ago(5).Time},
		})
	})
	l.pool("sweet", there, there, nil)
	if got := l.refit("quarantine", "list", "sweet").ok(t).stdout; !strings.Contains(got, here) || !strings.Contains(got, "yes") {
		t.Error(got)
	}

	// Whoever may change pools may lift, and what else they lack holds nothing up.
	_, err := l.Client.RbacV1().ClusterRoles().Create(l.ctx, &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "lifter"},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{mcfgv1.GroupName}, Resources: []string{"machineconfigpools"}, Verbs: []string{"get", "list", "patch"}},
			{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"list"}},
		},
	}, metav1.CreateOptions{})
	l.must(err)
	_, err = l.Client.RbacV1().ClusterRoleBindings().Create(l.ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "lifter"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "lifter"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "jane"}},
	}, metav1.CreateOptions{})
	l.must(err)
	var r result
	for range 50 { // until the rights have come to be known
		if r = l.refit("quarantine", "lift", "sweet", "--as=jane"); r.code == 0 {
			break
		}
	}
	r.ok(t)
	if lifted := l.lifted("sweet"); len(lifted) != 1 || lifted[0].By != "jane" || lifted[0].Config != there ||
		len(lifted[0].Failures) != 1 || lifted[0].Failures[0].Node != "sour-1" {
		t.Errorf("%+v", lifted)
	}
	if notes := l.notes("sweet"); len(notes) != 0 {
		t.Errorf("events of who may not write any: %q", notes)
	}
	if got := l.refit("quarantine", "list", "sour").ok(t).stdout; got != "nothing is quarantined\n" {
		t.Error(got)
	}
}
