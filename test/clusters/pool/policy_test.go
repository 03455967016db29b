// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/test/lab/cluster"
	"github.com/noderefit/noderefit/test/schemas"
)

const (
	policiesPath = "/apis/noderefit.dev/v1alpha1/rolloutpolicies"
	configA      = "rendered-worker-a"
	configB      = "rendered-worker-b"
)

// policy applies a RolloutPolicy with that spec, JSON, and says what the API server says.
func (l *lab) policy(name, spec string) error {
	return l.Client.CoreV1().RESTClient().Post().AbsPath(policiesPath).SetHeader("Content-Type", "application/json").
		Body([]byte(`{"apiVersion":"noderefit.dev/v1alpha1","kind":"RolloutPolicy","metadata":{"name":"` + name +
			`"},"spec":` + spec + `}`)).Do(l.ctx).Error()
}

func (l *lab) mustPolicy(name, spec string) {
	l.t.Helper()
	if err := l.policy(name, spec); err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) getPolicy(name string) api.RolloutPolicy {
	l.t.Helper()
	data, err := l.Client.CoreV1().RESTClient().Get().AbsPath(policiesPath, name).DoRaw(l.ctx)
	if err != nil {
		l.t.Fatal(err)
	}
	var p api.RolloutPolicy
	if err := json.Unmarshal(data, &p); err != nil {
		l.t.Fatal(err)
	}
	return p
}

// ready is the condition of a policy, as "status reason".
func (l *lab) ready(name string) string {
	l.t.Helper()
	for _, c := range l.getPolicy(name).Status.Conditions {
		if c.Type == api.RolloutReady {
			return string(c.Status) + " " + c.Reason
		}
	}
	return ""
}

// setClock has our programs believe that it is that time now, or later as time goes by.
func (l *lab) setClock(at time.Time) {
	l.t.Helper()
	next := l.clock + ".next"
	ahead := time.Until(at)
	if err := os.WriteFile(next, []byte(ahead.String()), 0o600); err != nil {
		l.t.Fatal(err)
	}
	if err := os.Rename(next, l.clock); err != nil {
		l.t.Fatal(err)
	}
	l.ahead.Store(int64(ahead))
	// It sleeps for as long as it thinks that nothing changes, and looks up when anything does.
	l.change("worker", fmt.Sprintf(`{"metadata":{"annotations":{"test/clock":%q}}}`, at.Format(time.RFC3339Nano)))
}

// refit runs the plugin.
func (l *lab) refit(args ...string) string {
	l.t.Helper()
	path, err := refit()
	if err != nil {
		l.t.Fatal(err)
	}
	cmd := exec.CommandContext(l.ctx, path, append(args, "--kubeconfig="+l.Kubeconfig)...)
	cmd.Env = append(os.Environ(), "NODEREFIT_TEST_CLOCK="+l.clock)
	out, err := cmd.CombinedOutput()
	if err != nil {
		l.t.Fatalf("kubectl refit %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	if err := schemas.CheckPrinted(string(out), args...); err != nil {
		l.t.Error(err)
	}
	return string(out)
}

// explained waits until an explanation of a node or pool begins with a verdict and says something.
func (l *lab) explained(subject, verdict, says string) {
	l.t.Helper()
	var got struct{ Verdict, Because string }
	defer func() { l.t.Logf("%s: %s: %s", subject, got.Verdict, got.Because) }()
	l.until(fmt.Sprintf("%s is explained by %s: %s", subject, verdict, says), func() bool {
		if err := json.Unmarshal([]byte(l.refit("explain", subject, "-o", "json")), &got); err != nil {
			l.t.Fatal(err)
		}
		return got.Verdict == verdict && strings.Contains(got.Because, says)
	})
}

// heldBy waits for the condition Held with a reason, and what it says.
func (l *lab) heldBy(pool, reason, says string) {
	l.t.Helper()
	l.until(fmt.Sprintf("pool %s is held by %s: %s", pool, reason, says), func() bool {
		for _, c := range l.getPool(pool).Status.Conditions {
			if c.Type == api.PoolHeld {
				return c.Reason == reason && strings.Contains(c.Message, says)
			}
		}
		return reason == "" && says == ""
	})
}

// holds waits until a policy holds a pool, and everything that a user reads says so: the condition, an event, the metric,
// the policy's status and the explanation of a node that waits.
func (l *lab) holds(c *controller, policy, reason, says, node string) {
	l.t.Helper()
	l.heldBy("worker", reason, says)
	l.event("worker", "Held", says)
	l.explained(node, reason, says)
	series := fmt.Sprintf(`noderefit_pool_held{policy=%q,pool="worker",reason=%q}`, policy, reason)
	l.until("the metric and the policy's status say "+reason, func() bool {
		pools := l.getPolicy(policy).Status.Pools
		return c.metric(l.t, series) == "1" && len(pools) == 1 && pools[0].Held == reason
	})
}

// event waits for an event about a pool.
func (l *lab) event(pool, reason, says string) {
	l.t.Helper()
	l.until(fmt.Sprintf("an event %s of pool %s: %s", reason, pool, says), func() bool {
		list, err := l.Client.EventsV1().Events("").List(l.ctx, metav1.ListOptions{})
		if err != nil {
			l.t.Fatal(err)
		}
		for _, e := range list.Items {
			if e.Regarding.Name == pool && e.Reason == reason && strings.Contains(e.Note, says) {
				return true
			}
		}
		return false
	})
}

func (l *lab) told(want map[string][]string) {
	l.t.Helper()
	told, _, _ := l.eye.seen()
	if diff := cmp.Diff(want, told); diff != "" {
		l.t.Errorf("told (-want +got):\n%s", diff)
	}
}

// reports makes the object that an agent makes when it first runs on a node: without it nothing else is worth explaining.
func (l *lab) reports(node string) {
	l.t.Helper()
	states := l.MachineConfigs.MachineconfigurationV1().MachineConfigNodes()
	l.t.Cleanup(func() {
		if err := states.Delete(context.Background(), node, metav1.DeleteOptions{}); err != nil {
			l.t.Error(err)
		}
	})
	_, err := states.Create(l.ctx, &mcfgv1.MachineConfigNode{
		ObjectMeta: metav1.ObjectMeta{Name: node},
		Spec: mcfgv1.MachineConfigNodeSpec{
			Node: mcfgv1.MCOObjectReference{Name: node}, Pool: mcfgv1.MCOObjectReference{Name: "worker"},
			ConfigVersion: mcfgv1.MachineConfigNodeSpecMachineConfigVersion{Desired: configA},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		l.t.Fatal(err)
	}
}

// workers is a pool of so many nodes, all at configuration A, and its controller.
func workers(t *testing.T, count int, most string) (*lab, *controller) {
	t.Helper()
	l := newLab(t)
	for i := range count {
		name := fmt.Sprintf("w-%d", i)
		l.node(name, "worker", configA)
		l.reports(name)
	}
	l.pool("worker", configA, maxUnavailable(most))
	c := l.alone()
	l.updated("worker", configA)
	l.eye.forget()
	return l, c
}

func TestTheRestWaitsUntilTheCanaryHasSoaked(t *testing.T) {
	l, c := workers(t, 4, "2")
	l.mustPolicy("careful", `{"pools":["worker"],"stages":[{"name":"canary","nodes":1,"soakSeconds":3600}]}`)
	l.until("the policy is read", func() bool { return l.ready("careful") == "True "+api.RolloutInForce })
	l.target("worker", configB)
	l.holds(c, "careful", "Soaking", "stage canary has arrived and soaks until", "w-3")
	l.explained("worker", "Soaking", "1 of 4 nodes updated")
	if s := l.getPolicy("careful").Status.Pools[0]; s.Stage != "canary" {
		t.Errorf("the policy's status: %+v", s)
	}
	l.told(map[string][]string{"w-0": {configB}})

	l.setClock(time.Now().Add(59 * time.Minute))
	l.heldBy("worker", "Soaking", "stage canary has arrived")
	l.told(map[string][]string{"w-0": {configB}})
	l.setClock(time.Now().Add(61 * time.Minute))
	l.updated("worker", configB)
	l.heldBy("worker", "", "")
}

func TestACanaryThatFailsStopsTheRollout(t *testing.T) {
	l, c := workers(t, 4, "2")
	l.mustPolicy("careful", `{"pools":["worker"],"stages":[{"name":"canary","nodes":1}],"failureBudget":2}`)
	l.until("the policy is read", func() bool { return l.ready("careful") == "True "+api.RolloutInForce })
	l.agents.ends(configB, api.RolledBack)
	l.target("worker", configB)
	l.holds(c, "careful", "WaitsForStage", "node w-0 failed", "w-3")
	l.explained("w-0", "RolledBack", "failed here and the node went back")
	l.explained("w-1", "WaitsForStage", "stage canary comes first")
	l.told(map[string][]string{"w-0": {configB}})
}

func TestAFailureBudgetIsSpent(t *testing.T) {
	l, c := workers(t, 6, "1")
	l.mustPolicy("brave", `{"pools":["worker"],"failureBudget":"50%"}`)
	l.until("the policy is read", func() bool { return l.ready("brave") == "True "+api.RolloutInForce })
	l.agents.ends(configB, api.RolledBack)
	l.target("worker", configB)
	l.until("the rollout has stopped", func() bool {
		return strings.HasPrefix(l.condition("worker", api.PoolQuarantined), "True "+configB+" failed on node")
	})
	l.explained("worker", "Quarantined", "is offered to no other node")
	l.event("worker", "Quarantined", configB+" failed on node")
	l.told(map[string][]string{"w-0": {configB}, "w-1": {configB}, "w-2": {configB}})
	l.until("the metrics say so", func() bool {
		return c.metric(t, `noderefit_pool_failed_nodes{pool="worker"}`) == "3" &&
			c.metric(t, `noderefit_pool_failure_budget{pool="worker"}`) == "3"
	})
}

// started is when the tests began. A test may run over midnight.
var started = time.Now().UTC()

// evening is the time of the tests' clock at which windows open, of a day to come.
func evening(hour, minute int) time.Time {
	day := started.AddDate(0, 0, 2)
	return time.Date(day.Year(), day.Month(), day.Day(), hour, minute, 0, 0, time.UTC)
}

// windowTime is how a sentence has the time at which a window opens.
func windowTime(at time.Time) string { return at.Format("2006-01-02T15:04:05-07:00") }

// number is a metric's value.
func number(t *testing.T, text string) int64 {
	t.Helper()
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0
	}
	return int64(v)
}

func TestAWindowOpensAndClosesInTheMiddleOfARollout(t *testing.T) {
	l, c := workers(t, 4, "2")
	l.setClock(evening(12, 0))
	l.mustPolicy("nightly", `{"pools":["worker"],"windows":{"open":[{"cron":"0 22 * * *","durationMinutes":60}]}}`)
	l.until("the policy is read", func() bool { return l.ready("nightly") == "True "+api.RolloutInForce })
	opens := windowTime(evening(22, 0))
	for _, name := range []string{"w-0", "w-1"} {
		l.agents.hold(name, true)
	}
	l.agents.stage("w-1", true)
	l.target("worker", configB)
	l.holds(c, "nightly", "OutsideWindow", "the next one opens at "+opens, "w-3")
	l.explained("worker", "OutsideWindow", "the next one opens at "+opens)
	l.until("the next window is said", func() bool {
		at := l.getPolicy("nightly").Status.NextWindow
		return at != nil && at.Equal(new(metav1.NewTime(evening(22, 0)))) &&
			number(t, c.metric(t, `noderefit_pool_next_window_timestamp_seconds{pool="worker"}`)) == evening(22, 0).Unix()
	})
	l.told(map[string][]string{})

	// It opens: two begin, of which one is drained when it closes and the other still serves.
	l.setClock(evening(22, 1))
	l.until("one is in its drain", func() bool { return l.stand("w-0").Cordoned && l.stand("w-1").Desired == configB })
	l.setClock(evening(23, 1))
	l.until("the one that serves is taken back", func() bool { return l.stand("w-1").Desired == configA })
	l.agents.hold("w-0", false)
	l.until("the one that left service arrives", func() bool { return l.stand("w-0").Updated(configB) })
	l.heldBy("worker", "OutsideWindow", "no window is open")
	l.told(map[string][]string{"w-0": {configB}, "w-1": {configB, configA}})

	// An emergency does not wait, and is on record.
	l.agents.hold("w-1", false)
	l.agents.stage("w-1", false)
	l.refit("bypass", "worker", "--why", "a hole in the kernel")
	l.updated("worker", configB)
	l.event("worker", "Bypassed", "a hole in the kernel")
	if got := l.condition("worker", api.PoolBypassed); !strings.Contains(got, "by ") || !strings.Contains(got, "a hole") {
		t.Errorf("condition Bypassed is %q", got)
	}
}

func TestABlackoutHoldsWhateverIsOpen(t *testing.T) {
	l, c := workers(t, 2, "1")
	from := time.Now().UTC()
	l.mustPolicy("freeze", fmt.Sprintf(`{"pools":["worker"],"windows":{"blackouts":[{"name":"quarter end","from":%q,"until":%q}]}}`,
		from.Format("2006-01-02"), from.AddDate(0, 0, 3).Format("2006-01-02")))
	l.until("the policy is read", func() bool { return l.ready("freeze") == "True "+api.RolloutInForce })
	l.target("worker", configB)
	l.holds(c, "freeze", "OutsideWindow", "blackout quarter end is in force", "w-0")
	l.told(map[string][]string{})
	l.setClock(from.AddDate(0, 0, 5))
	l.updated("worker", configB)
}

func TestAPoolWaitsForTheOneThatComesFirst(t *testing.T) {
	l, c := workers(t, 2, "1")
	l.node("c-0", "canary", configA)
	l.pool("canary", configA)
	l.updated("canary", configA)
	l.mustPolicy("order", `{"pools":["worker"],"dependsOn":["canary"]}`)
	l.until("the policy is read", func() bool { return l.ready("order") == "True "+api.RolloutInForce })
	l.eye.forget()
	l.agents.hold("c-0", true)
	l.target("canary", configB)
	l.until("the first pool is at work", func() bool { return l.stand("c-0").Cordoned })
	l.target("worker", configB)
	l.holds(c, "order", "WaitsForPool", "pool canary comes first: 0 of its 1 nodes are updated", "w-0")
	l.told(map[string][]string{"c-0": {configB}})
	l.agents.hold("c-0", false)
	l.updated("worker", configB)
}

func TestTwoPoliciesForAPoolHoldIt(t *testing.T) {
	l, _ := workers(t, 2, "1")
	l.mustPolicy("first", `{"pools":["worker"]}`)
	l.mustPolicy("second", `{"pools":["worker"]}`)
	l.target("worker", configB)
	l.heldBy("worker", "PolicyUnusable", "2 RolloutPolicies select pool worker: first, second")
	l.until("both say so", func() bool {
		return l.ready("first") == "False "+api.RolloutConflict && l.ready("second") == "False "+api.RolloutConflict
	})
	l.until("it is stalled", func() bool {
		return strings.HasPrefix(l.condition("worker", mcfgv1.MachineConfigPoolConditionType(api.Stalled)), "True")
	})
	if err := l.Client.CoreV1().RESTClient().Delete().AbsPath(policiesPath, "second").Do(l.ctx).Error(); err != nil {
		t.Fatal(err)
	}
	l.updated("worker", configB)
}

func TestAPolicyThatMakesNoSenseIsRefusedByField(t *testing.T) {
	l := newLab(t)
	for spec, field := range map[string]string{
		`{}`:                                   "pools or poolSelector is needed",
		`{"pools":["a"],"dependsOn":["a"]}`:    "dependsOn names a pool of the policy itself",
		`{"pools":["a"],"failureBudget":"0%"}`: "spec.failureBudget",
		`{"pools":["a"],"failureBudget":0}`:    "spec.failureBudget",
		`{"pools":["a"],"stages":[{"name":"x","nodes":"101%"}]}`:                                                   "spec.stages[0].nodes",
		`{"pools":["a"],"stages":[{"name":"x"},{"name":"x"}]}`:                                                     "spec.stages[1]",
		`{"pools":["a"],"stages":[{"name":"X y"}]}`:                                                                "spec.stages[0].name",
		`{"pools":["a"],"stages":[{"name":"rest"}]}`:                                                               "spec.stages[0].name",
		`{"pools":["a"],"minReadySeconds":-1}`:                                                                     "spec.minReadySeconds",
		`{"pools":["a"],"windows":{}}`:                                                                             "open or blackouts is needed",
		`{"pools":["a"],"windows":{"open":[{"cron":"every day","durationMinutes":1}]}}`:                            "spec.windows.open[0].cron",
		`{"pools":["a"],"windows":{"open":[{"cron":"0 1 * * *"}]}}`:                                                "durationMinutes belongs to cron and rrule",
		`{"pools":["a"],"windows":{"open":[{"rrule":"FREQ=DAILY","durationMinutes":1}]}}`:                          "rrule and start belong together",
		`{"pools":["a"],"windows":{"open":[{"cron":"0 1 * * *","from":"2026-01-01","until":"2026-01-02"}]}}`:       "exactly one of cron, rrule and from",
		`{"pools":["a"],"windows":{"timeZone":"../etc","blackouts":[{"from":"2026-01-01","until":"2026-01-02"}]}}`: "spec.windows.timeZone",
		`{"pools":["a"],"windows":{"timeZone":"localtime","open":[{"cron":"0 1 * * *","durationMinutes":1}]}}`:     "local time is another one for each reader",
		`{"pools":["a"],"rebootWindows":{"timeZone":"Local","open":[{"cron":"0 1 * * *","durationMinutes":1}]}}`:   "local time is another one for each reader",
	} {
		if err := l.policy("wrong", spec); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v; want an error that says %s", spec, err, field)
		}
	}
	// What the schema can't see, the controller says.
	l.pool("worker", configA)
	l.alone()
	l.mustPolicy("zone", `{"pools":["worker"],"windows":{"timeZone":"Middle/Earth","open":[{"cron":"0 1 * * *","durationMinutes":1}]}}`)
	l.until("it says what is wrong", func() bool { return l.ready("zone") == "False "+api.RolloutInvalid })
}

// restarts is how often the controller is killed in the middle of one rollout.
const restarts = 50

// One that leads writes when it wants; it is killed at any time after that. On its way are a canary that soaks, a gate
// that opens late, nodes that have to stay ready for a while, and some that fail, as many as are forgiven.
func TestAControllerThatIsKilledFiftyTimesSendsEachNodeOnce(t *testing.T) {
	const nodes = 60
	l, c := workers(t, nodes, "4")
	l.health(false)
	l.governed("careful", `{"pools":["worker"],"minReadySeconds":1,"failureBudget":4,"stages":[
		{"name":"canary","nodes":1,"soakSeconds":2},
		{"name":"tenth","nodes":"10%","maxUnavailable":2,"gates":[`+healthGate(`,"deadlineSeconds":3600`)+`]}]}`)
	broken := []string{"w-20", "w-33", "w-47"}
	l.agents.breakOn(broken...)
	chance := rand.New(rand.NewPCG(1, 2))
	opensAt := restarts / 4
	l.target("worker", configB)
	for i := range restarts {
		_, before, _ := l.eye.seen()
		time.Sleep(time.Duration(chance.IntN(120)) * time.Millisecond) //nolint:forbidigo // any time is as good
		c.stop(t, syscall.SIGKILL)
		if i == opensAt {
			// What those before have asked and said is not forgotten: the rest still waits for the gate.
			if len(before) != 7 {
				t.Errorf("%d nodes were sent before the gate of the second stage was open, want 7", len(before))
			}
			l.health(true)
		}
		c = l.alone()
		if len(before) < 7 || i >= opensAt && len(before) < nodes-4 {
			l.until("another node was sent", func() bool {
				_, order, _ := l.eye.seen()
				return len(order) > len(before)
			})
		}
	}
	l.until("all that can be are updated", func() bool { return l.getPool("worker").Status.UpdatedMachineCount == nodes-3 })
	told, order, most := l.eye.seen()
	want := map[string][]string{}
	for i := range nodes {
		want[fmt.Sprintf("w-%d", i)] = []string{configB}
	}
	if diff := cmp.Diff(want, told); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
	if most > 4 {
		t.Errorf("%d were out of service at one time", most)
	}
	for _, name := range broken {
		l.explained(name, "RolledBack", "failed here and the node went back")
	}
	t.Logf("%d nodes were sent by %d controllers", len(order), restarts+1)
}

// entry is a line of a simulated timeline.
type entry struct {
	At                         time.Time
	What, Node, Stage, Because string
}

// simulated is the timeline of a rollout through the cluster's nodes that begins at that time, as the simulator has it.
func (l *lab) simulated(spec, most string, start time.Time, nodeTime time.Duration) []entry {
	l.t.Helper()
	nodes, err := l.Kubectl(l.ctx, "get", "nodes", "-o", "json")
	if err != nil {
		l.t.Fatal(err)
	}
	dir := l.t.TempDir()
	policy := `{"apiVersion":"noderefit.dev/v1alpha1","kind":"RolloutPolicy","metadata":{"name":"careful"},"spec":` + spec + `}`
	for name, text := range map[string]string{"nodes.json": nodes, "policy.yaml": policy} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			l.t.Fatal(err)
		}
	}
	path, err := program()
	if err != nil {
		l.t.Fatal(err)
	}
	out, err := exec.CommandContext(l.ctx, path, "simulate", "--policy", filepath.Join(dir, "policy.yaml"), "--nodes",
		filepath.Join(dir, "nodes.json"), "--max-unavailable", most, "--start", start.Format(time.RFC3339),
		"--node-time", nodeTime.String(), "-o", "json").Output()
	if err != nil {
		l.t.Fatal(err)
	}
	var log []entry
	if err := errors.Join(schemas.Check(out), json.Unmarshal(out, &log)); err != nil {
		l.t.Fatal(err)
	}
	return log
}

// fleet makes so many nodes of three zones, all at configuration A, without waiting for each.
func (l *lab) fleet(count int) {
	l.t.Helper()
	for i := range count {
		n := cluster.KwokNode(fmt.Sprintf("s-%03d", i), map[string]string{
			api.NodeRole + "worker": "", api.Zone: fmt.Sprintf("z%d", i%3),
		})
		n.Annotations = map[string]string{
			api.CurrentConfig: configA, api.DesiredConfig: configA, api.StateKey: string(api.Done),
		}
		if _, err := l.Client.CoreV1().Nodes().Create(l.ctx, n, metav1.CreateOptions{}); err != nil {
			l.t.Fatal(err)
		}
	}
}

// A window that is closed at first and stages that soak for hours make the timeline; nodes take seconds. The clock goes
// on as time does, and is put forward to a moment before and after the end of each wait.
func TestTheSimulatorSaysWhatThreeHundredNodesDoAndWhen(t *testing.T) {
	const (
		nodes = 300
		spec  = `{"pools":["worker"],"windows":{"open":[{"cron":"0 22 * * *","durationMinutes":480}]},"stages":[
			{"name":"canary","nodes":1,"soakSeconds":7200},
			{"name":"tenth","nodes":"10%","maxUnavailable":10,"soakSeconds":3600}]}`
		most = "30"
		near = 15 * time.Minute // for what the nodes take
	)
	l := newLab(t)
	l.fleet(nodes)
	l.pool("worker", configA, maxUnavailable(most))
	l.alone()
	l.updated("worker", configA)
	l.governed("careful", spec)
	log := l.simulated(spec, most, evening(20, 0), 5*time.Second)

	l.setClock(evening(20, 0))
	l.eye.forget()
	l.target("worker", configB)
	sent, order, stages := map[string]time.Time{}, []string{}, map[string]int{}
	for i, e := range log {
		switch e.What {
		case "sent":
			sent[e.Node], order = e.At, append(order, e.Node)
		case "stage":
			stages[e.Stage] = len(order)
		case "held":
			if next := log[i+1].At; next.Sub(e.At) > near {
				l.waitsUntil(next, len(order))
			}
		}
	}
	l.updated("worker", configB)
	_, seen, out := l.eye.seen()
	if diff := cmp.Diff(order, seen); diff != "" {
		t.Errorf("the order (-simulated +seen):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]int{"canary": 0, "tenth": 1, "rest": 31}, stages); diff != "" {
		t.Errorf("the stages of the simulation (-want +got):\n%s", diff)
	}
	for name, at := range sent {
		if got := l.eye.sentAt(name); got.Sub(at).Abs() > near {
			t.Errorf("%s was sent at %s, and in the simulation at %s", name, got, at)
		}
	}
	if end := log[len(log)-1]; end.What != "finished" || l.now().Sub(end.At).Abs() > near {
		t.Errorf("it is done at %s, and the simulation ends with %+v", l.now(), end)
	}
	if out > 30 {
		t.Errorf("%d were out of service at one time", out)
	}
}

// waitsUntil has the clock go on to that time, and sees that no other node is sent before.
func (l *lab) waitsUntil(next time.Time, sent int) {
	l.t.Helper()
	l.until(fmt.Sprintf("%d nodes have arrived and nothing goes on", sent), func() bool {
		_, order, _ := l.eye.seen()
		p := l.getPool("worker")
		held := false
		for _, c := range p.Status.Conditions {
			held = held || c.Type == api.PoolHeld && c.Status == "True"
		}
		return held && len(order) == sent && int(p.Status.UpdatedMachineCount) == sent
	})
	l.setClock(next.Add(-10 * time.Minute))
	for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(poll) {
		if _, order, _ := l.eye.seen(); len(order) != sent {
			l.t.Errorf("%d nodes were sent before %s, want %d", len(order), next, sent)
		}
	}
	l.setClock(next.Add(5 * time.Minute)) // by which those that took a little longer have soaked as well
}
