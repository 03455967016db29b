// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"maps"
	"strings"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
)

func TestAVerdictThatDoesNotComeIsOverdueByTheControllersClock(t *testing.T) {
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	const a, b = "rendered-worker-a", "rendered-worker-b"
	waiting := func(change func(*Node)) Node {
		n := Node{Name: "n"}
		n.Current, n.Desired, n.State, n.Drained = a, b, api.Working, b
		if change != nil {
			change(&n)
		}
		return n
	}
	for name, c := range map[string]struct {
		node    Node
		after   time.Duration
		overdue bool
	}{
		"within the time":                   {waiting(nil), 30*time.Minute - time.Second, false},
		"at its end":                        {waiting(nil), 30 * time.Minute, true},
		"reboots, and was not drained":      {waiting(func(n *Node) { n.Drained, n.Rebooting = "", true }), 31 * time.Minute, true},
		"its host has longer":               {waiting(func(n *Node) { n.VerdictTimeout = time.Hour }), 79 * time.Minute, false},
		"longer is over too":                {waiting(func(n *Node) { n.VerdictTimeout = time.Hour }), 80 * time.Minute, true},
		"it is still being drained":         {waiting(func(n *Node) { n.Drained = "" }), 24 * time.Hour, false},
		"drained for something else":        {waiting(func(n *Node) { n.Drained = a }), 24 * time.Hour, false},
		"it has said that it failed":        {waiting(func(n *Node) { n.State = api.RolledBack }), 24 * time.Hour, false},
		"it has arrived":                    {waiting(func(n *Node) { n.Current, n.State = b, api.Done }), 24 * time.Hour, false},
		"what it says of itself is no word": {waiting(func(n *Node) { n.Reason = "proving b" }), time.Hour, true},
	} {
		t.Run(name, func(t *testing.T) {
			n := c.node
			n.Awaited = n.Await(start)
			if !n.Awaited.Overdue.IsZero() {
				t.Fatal("overdue at once")
			}
			n.Awaited = n.Await(start.Add(c.after))
			if n.Overdue() != c.overdue || c.overdue != n.Failing() && !n.State.Bad() {
				t.Fatalf("overdue is %v, failing %v: %+v", n.Overdue(), n.Failing(), n.Awaited)
			}
			if !c.overdue {
				return
			}
			if p := n.Phase(b); p != PhaseDegraded {
				t.Errorf("the phase is %s", p)
			}
			for change, moved := range map[string]Node{
				"arrived":   func(n Node) Node { n.Current, n.State = b, api.Done; return n }(n),
				"went back": func(n Node) Node { n.State = api.RolledBack; return n }(n),
			} {
				if moved.Overdue() {
					t.Errorf("%s, and overdue still", change)
				}
			}
		})
	}
}

// A host that is dead does not come to life by what its pool wants.
func TestANodeThatIsSentElsewhereIsWaitedForUntilItAnswers(t *testing.T) {
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	const a, b, c, d = "rendered-worker-a", "rendered-worker-b", "rendered-worker-c", "rendered-worker-d"
	// turn changes the annotations of a Node.
	type turn map[string]string
	type at struct {
		minute int
		send   string
		says   turn
		want   bool
	}
	proves := turn{api.Reason: "plans"}
	reboots := turn{api.PostConfigAction: api.PostConfigActionRebooting, api.LastAppliedDrain: ""}
	for name, turns := range map[string][]at{
		"overdue, and sent elsewhere":        {{31, "", nil, true}, {32, c, nil, true}, {90, "", nil, true}},
		"and again, and back to where it is": {{31, "", nil, true}, {32, c, nil, true}, {33, d, nil, true}, {34, a, nil, true}},
		"and to the same again":              {{31, "", nil, true}, {32, c, nil, true}, {33, b, nil, true}, {90, "", nil, true}},
		"sent elsewhere before it is due":    {{20, c, nil, false}, {29, "", nil, false}, {31, "", nil, true}},
		"again and again before it is due":   {{10, c, nil, false}, {20, d, nil, false}, {31, "", nil, true}},
		"it reboots, and was not drained": {{1, "", reboots, false}, {20, c, nil, false}, {31, "", nil, true},
			{90, d, nil, true}},
		"it answers":                  {{31, "", nil, true}, {32, c, nil, true}, {33, "", proves, false}, {90, "", nil, false}},
		"it answers before it is due": {{20, c, nil, false}, {21, "", proves, false}, {31, "", nil, false}},
		"it says what only a later controller reads": {{31, "", nil, true}, {32, c, nil, true},
			{33, "", turn{"noderefit.dev/of-a-later-release": "x"}, false}},
		"it answers, is drained, and reboots": {{31, "", nil, true}, {32, c, nil, true}, {33, "", proves, false},
			{40, "", turn{api.LastAppliedDrain: "drain-" + c, api.PostConfigAction: api.PostConfigActionRebooting}, false},
			{69, "", nil, false}, {70, "", nil, true}},
		"it answers, and goes to the same again": {{31, "", nil, true}, {32, c, nil, true}, {33, b, nil, true},
			{34, "", proves, false}, {63, "", nil, false}, {64, "", nil, true}},
		"it has arrived": {{31, "", nil, true}, {32, c, nil, true},
			{33, "", turn{api.CurrentConfig: c, api.StateKey: string(api.Done)}, false}},
		"it went back": {{31, "", nil, true}, {32, c, nil, true},
			{33, "", turn{api.StateKey: string(api.RolledBack)}, false}},
		"others write on its Node": {{31, "", nil, true}, {32, c, nil, true}, {33, "", turn{
			api.ControlPlaneTopology: api.TopologySingleReplica, api.Lift: c, api.ArrivedKey: "{}", api.OrdersKey: "{}",
			api.AskPrefix + "gate": "1", "example.com/answer": "yes", "volumes.kubernetes.io/controller-managed": "true",
		}, true}},
	} {
		t.Run(name, func(t *testing.T) {
			node := waitingNode(a, b)
			note := func(awaited api.Awaited) { node.Annotations[api.AwaitedKey] = api.Encode(awaited) }
			n := ReadNode(node)
			note(n.Await(start))
			for _, turn := range turns {
				now := start.Add(time.Duration(turn.minute) * time.Minute)
				n = ReadNode(node)
				note(n.Await(now))
				if turn.send != "" {
					n = ReadNode(node)
					note(n.AwaitedStill(now))
					node.Annotations[api.DesiredConfig] = turn.send
				}
				maps.Copy(node.Annotations, turn.says)
				n = ReadNode(node)
				note(n.Await(now))
				n = ReadNode(node)
				if n.Overdue() != turn.want || n.Failing() != (turn.want || n.State.Bad()) {
					t.Fatalf("after %d minutes overdue is %v, want %v: %+v", turn.minute, n.Overdue(), turn.want, n.Awaited)
				}
			}
		})
	}
}

// waitingNode is a Node that was drained on its way from a to b.
func waitingNode(a, b string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Annotations: map[string]string{
		api.CurrentConfig: a, api.DesiredConfig: b, api.StateKey: string(api.Working), api.LastAppliedDrain: "drain-" + b,
	}}}
}

// The digests are literal, as an earlier release noted them. A controller that reads a Node otherwise has heard nothing of it.
func TestAnotherReleaseOfTheControllerIsNoAnswerOfTheNode(t *testing.T) {
	since := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	now := since.Add(time.Hour)
	const a, b, c = "rendered-worker-a", "rendered-worker-b", "rendered-worker-c"
	for name, said := range map[string]string{
		"of the annotations":                       "annotations:2691c2eaff6f1d21",
		"of what a release with fewer fields read": "0011223344556677",
	} {
		t.Run(name, func(t *testing.T) {
			node := waitingNode(a, b)
			node.Annotations[api.DesiredConfig] = c
			noted := api.Awaited{Config: b, Since: since, Overdue: since.Add(30 * time.Minute), Said: said}
			node.Annotations[api.AwaitedKey] = api.Encode(noted)
			n := ReadNode(node)
			if !n.Overdue() || n.Await(now).Config != b || !n.Await(now).Since.Equal(since) {
				t.Fatalf("it counts as heard: %+v", n.Await(now))
			}
			node.Annotations[api.AwaitedKey] = api.Encode(n.Await(now))
			node.Annotations[api.Reason] = "plans " + c
			if n = ReadNode(node); n.Overdue() || n.Await(now) != (api.Awaited{}) {
				t.Errorf("it has answered, and is waited for still: %+v", n.Awaited)
			}
			for answer, says := range map[string]map[string]string{
				"arrived":   {api.CurrentConfig: c, api.StateKey: string(api.Done)},
				"went back": {api.StateKey: string(api.RolledBack)},
			} {
				node := node.DeepCopy()
				node.Annotations[api.AwaitedKey] = api.Encode(api.Awaited{Config: b, Since: since, Said: said})
				maps.Copy(node.Annotations, says)
				if n := ReadNode(node); n.Await(now) != (api.Awaited{}) {
					t.Errorf("it %s before the controller looked, and is waited for still: %+v", answer, n.Await(now))
				}
			}
		})
	}
}

func TestWhatAClockThatWasAheadHasNotedBeginsAnew(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	const config = "rendered-worker-b"
	anew := api.Awaited{Config: config, Since: now}
	for name, c := range map[string]struct{ noted, want api.Awaited }{
		"its beginning is to come": {api.Awaited{Config: config, Since: now.Add(365 * 24 * time.Hour)}, anew},
		"its end is to come": {
			api.Awaited{Config: config, Since: now.Add(-time.Minute), Overdue: now.Add(time.Hour)}, anew,
		},
		"both are": {api.Awaited{Config: config, Since: now.Add(time.Hour), Overdue: now.Add(2 * time.Hour)}, anew},
		"both are now": {
			api.Awaited{Config: config, Since: now, Overdue: now}, api.Awaited{Config: config, Since: now, Overdue: now},
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := Node{Name: "n"}
			n.Current, n.Desired, n.State, n.Drained, n.Awaited = "rendered-worker-a", config, api.Working, config, c.noted
			if got := n.Await(now); got != c.want {
				t.Errorf("it is %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestAnOverdueNodeIsExplained(t *testing.T) {
	since := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	awaited := api.Encode(api.Awaited{Config: "rendered-worker-b", Since: since, Overdue: since.Add(30 * time.Minute)})
	pool := mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: "worker"}}
	pool.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"w": ""}}
	pool.Spec.Configuration.Name = "rendered-worker-b"
	for name, c := range map[string]struct {
		annotations map[string]string
		ready       corev1.ConditionStatus
		why         string
	}{
		"the agent speaks": {map[string]string{api.LastAppliedDrain: "drain-rendered-worker-b", api.Reason: "proving b"},
			corev1.ConditionTrue, "since 2026-03-01T12:00:00Z: proving b"},
		"the host is away": {map[string]string{api.PostConfigAction: api.PostConfigActionRebooting},
			corev1.ConditionUnknown, "the node is not ready: Ready=Unknown"},
		"the host is away, and the agent had spoken": {map[string]string{
			api.PostConfigAction: api.PostConfigActionRebooting, api.Reason: "the reboot is inhibited by x"},
			corev1.ConditionUnknown, "Ready=Unknown; the agent's last report: the reboot is inhibited by x"},
		"only the agent is away": {map[string]string{api.PostConfigAction: api.PostConfigActionRebooting},
			corev1.ConditionTrue, "the agent has not reported since before the reboot"},
	} {
		t.Run(name, func(t *testing.T) {
			node := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"w": ""}}}
			node.Annotations = map[string]string{
				api.CurrentConfig: "rendered-worker-a", api.DesiredConfig: "rendered-worker-b",
				api.StateKey: string(api.Working), api.AwaitedKey: awaited,
			}
			maps.Copy(node.Annotations, c.annotations)
			node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: c.ready}}
			answer, _ := NewReport(View{Pools: []mcfgv1.MachineConfigPool{pool}, Nodes: []corev1.Node{node}}).ExplainNode("n")
			if answer.Verdict != Degraded || !answer.Since.Equal(since) || answer.Blocking == nil || answer.Blocking.Name != "n" ||
				!strings.Contains(answer.Because, "within 30m0s, since 2026-03-01T12:00:00Z") || !strings.Contains(answer.Because, c.why) ||
				!strings.Contains(answer.Do, "systemctl status machine-config-daemon-prove") {
				t.Errorf("explained as %+v", answer)
			}
		})
	}
}
