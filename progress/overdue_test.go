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
	type at struct {
		minute int
		do     func(*Node)
		want   bool
	}
	look := func(*Node) {}
	now := start
	send := func(config string) func(*Node) {
		return func(n *Node) { n.Awaited, n.Desired = n.AwaitedStill(now), config }
	}
	proves := func(n *Node) { n.Reason = "plans " + n.Desired }
	reboots := func(n *Node) { n.Rebooting, n.Drained = true, "" }
	for name, turns := range map[string][]at{
		"overdue, and sent elsewhere":        {{31, look, true}, {32, send(c), true}, {90, look, true}},
		"and again, and back to where it is": {{31, look, true}, {32, send(c), true}, {33, send(d), true}, {34, send(a), true}},
		"and to the same again":              {{31, look, true}, {32, send(c), true}, {33, send(b), true}, {90, look, true}},
		"sent elsewhere before it is due":    {{20, send(c), false}, {29, look, false}, {31, look, true}},
		"again and again before it is due":   {{10, send(c), false}, {20, send(d), false}, {31, look, true}},
		"it reboots, and was not drained":    {{1, reboots, false}, {20, send(c), false}, {31, look, true}, {90, send(d), true}},
		"it answers":                         {{31, look, true}, {32, send(c), true}, {33, proves, false}, {90, look, false}},
		"it answers before it is due":        {{20, send(c), false}, {21, proves, false}, {31, look, false}},
		"it answers, is drained, and reboots": {{31, look, true}, {32, send(c), true}, {33, proves, false},
			{40, func(n *Node) { n.Drained, n.Rebooting = c, true }, false}, {69, look, false}, {70, look, true}},
		"it answers, and goes to the same again": {{31, look, true}, {32, send(c), true}, {33, send(b), true},
			{34, proves, false}, {63, look, false}, {64, look, true}},
		"it has arrived": {{31, look, true}, {32, send(c), true},
			{33, func(n *Node) { n.Current, n.State = c, api.Done }, false}},
		"it went back": {{31, look, true}, {32, send(c), true}, {33, func(n *Node) { n.State = api.RolledBack }, false}},
	} {
		t.Run(name, func(t *testing.T) {
			n := Node{Name: "n"}
			n.Current, n.Desired, n.State, n.Drained = a, b, api.Working, b
			n.Awaited = n.Await(start)
			for _, turn := range turns {
				now = start.Add(time.Duration(turn.minute) * time.Minute)
				n.Awaited = n.Await(now)
				turn.do(&n)
				n.Awaited = n.Await(now)
				if n.Overdue() != turn.want || n.Failing() != (turn.want || n.State.Bad()) {
					t.Fatalf("after %d minutes overdue is %v, want %v: %+v", turn.minute, n.Overdue(), turn.want, n.Awaited)
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
			corev1.ConditionTrue, "has done neither: proving b"},
		"the host is away": {map[string]string{api.PostConfigAction: api.PostConfigActionRebooting},
			corev1.ConditionUnknown, "the node is not ready: Ready=Unknown"},
		"the host is away, and the agent had spoken": {map[string]string{
			api.PostConfigAction: api.PostConfigActionRebooting, api.Reason: "the reboot is inhibited by x"},
			corev1.ConditionUnknown, "Ready=Unknown; its agent last said: the reboot is inhibited by x"},
		"only the agent is away": {map[string]string{api.PostConfigAction: api.PostConfigActionRebooting},
			corev1.ConditionTrue, "its agent has not been heard of since before the reboot"},
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
