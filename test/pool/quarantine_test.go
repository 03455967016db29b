// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

// stopped is a pool of four nodes in which the first rolled back from rendered-worker-bad while the second was on its way
// there, and was called back.
func stopped(t *testing.T) *lab {
	t.Helper()
	l := newLab(t)
	for i := range 4 {
		l.node(fmt.Sprintf("q-%d", i), "worker", "rendered-worker-a")
	}
	l.agents.ends("rendered-worker-bad", api.RolledBack)
	l.agents.hold("q-0", true)
	l.agents.hold("q-1", true)
	l.pool("worker", "rendered-worker-bad", maxUnavailable("2"))
	l.alone()
	l.until("two are in their drain", func() bool { return l.stand("q-0").Cordoned && l.stand("q-1").Cordoned })
	l.agents.hold("q-0", false)
	l.phase("q-0", "rendered-worker-bad", progress.PhaseRolledBack)
	l.until("q-1 is called back", func() bool { return l.stand("q-1").Desired == "rendered-worker-a" })
	l.agents.hold("q-1", false)
	return l
}

func TestAConfigurationThatFailedIsOfferedToNoOtherNode(t *testing.T) {
	l := stopped(t)
	l.until("the one that was on its way serves again where it was", func() bool {
		n := l.stand("q-1")
		return n.Desired == "rendered-worker-a" && n.Settled() && n.Serving() && !n.Tainted
	})
	l.until("the pool says which node and why", func() bool {
		return strings.Contains(l.condition("worker", api.PoolQuarantined), "failed on node q-0 at ") &&
			strings.HasSuffix(l.condition("worker", api.PoolQuarantined), "lifted: kubelet is down") &&
			l.condition("worker", mcfgv1.MachineConfigPoolNodeDegraded) == `True Node q-0 is reporting: "kubelet is down"` &&
			strings.HasPrefix(l.condition("worker", mcfgv1.MachineConfigPoolDegraded), "True rendered-worker-bad failed on node q-0")
	})
	told, _, _ := l.eye.seen()
	want := map[string][]string{"q-0": {"rendered-worker-bad"}, "q-1": {"rendered-worker-bad", "rendered-worker-a"}}
	if diff := cmp.Diff(want, told); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}

	// The node that knew is gone; the pool remembers.
	if err := l.Client.CoreV1().Nodes().Delete(l.ctx, "q-0", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	l.until("the node is not counted", func() bool { return l.getPool("worker").Status.MachineCount == 3 })
	if got := l.condition("worker", mcfgv1.MachineConfigPoolNodeDegraded); !strings.Contains(got, "failed on node q-0 at ") {
		t.Errorf("NodeDegraded is %q", got)
	}
	l.agents.ends("rendered-worker-bad", "")
	l.node("q-4", "worker", "rendered-worker-a")
	l.until("a new node is counted", func() bool { return l.getPool("worker").Status.MachineCount == 4 })
	if told, _, _ := l.eye.seen(); told["q-4"] != nil || told["q-2"] != nil || len(told["q-1"]) != 2 {
		t.Errorf("it was offered again: %v", told)
	}

	// Other content goes on, and the same content again is still refused.
	l.target("worker", "rendered-worker-good")
	l.updated("worker", "rendered-worker-good")
	l.target("worker", "rendered-worker-bad")
	l.until("the pool refuses it", func() bool {
		return l.condition("worker", mcfgv1.MachineConfigPoolUpdating) ==
			"False Configuration is quarantined; will not update to rendered-worker-bad"
	})
	l.target("worker", "rendered-worker-good")
	l.updated("worker", "rendered-worker-good")
}

func TestTakingAConfigurationBackHealsThePoolThatItStopped(t *testing.T) {
	l := stopped(t)
	l.target("worker", "rendered-worker-a")
	l.updated("worker", "rendered-worker-a")
	l.until("nothing is degraded", func() bool { return l.condition("worker", mcfgv1.MachineConfigPoolDegraded) == "False" })
	if told, _, _ := l.eye.seen(); told["q-2"] != nil || told["q-3"] != nil {
		t.Errorf("others were told something: %v", told)
	}
}

func TestALiftedQuarantineLetsTheNodeTryAgain(t *testing.T) {
	l := stopped(t)
	l.until("the pool is stopped", func() bool { return l.condition("worker", api.PoolQuarantined) != "False" })
	l.until("q-1 is back", func() bool { return l.stand("q-1").Settled() })
	l.change("worker", `{"spec":{"maxUnavailable":1}}`) // q-0 is to try alone
	lift := func() {
		l.change("worker", `{"metadata":{"annotations":{"`+api.LiftedKey+`":`+
			api.Encode(api.Encode([]api.Lifted{{Config: "rendered-worker-bad", At: time.Now()}}))+`}}}`)
	}
	// It fails again: then it is refused again, and not tried for ever.
	failedAt := l.stand("q-0").Quarantined[0].Since
	lift()
	l.until("it failed again", func() bool {
		q := l.stand("q-0").Quarantined
		return len(q) == 1 && q[0].Since.After(failedAt) && l.stand("q-0").State == api.RolledBack
	})
	l.until("it is refused again, and the lift is withdrawn", func() bool {
		return strings.Contains(l.condition("worker", api.PoolQuarantined), "failed on node q-0") && l.stand("q-0").Lift == ""
	})
	l.until("everybody else is where he was", func() bool {
		for _, name := range []string{"q-1", "q-2", "q-3"} {
			if n := l.stand(name); n.Desired != "rendered-worker-a" || !n.Settled() {
				return false
			}
		}
		return true
	})
	// It was mended from outside, and lifted again.
	l.agents.ends("rendered-worker-bad", "")
	lift()
	l.updated("worker", "rendered-worker-bad")
	l.until("nothing is left of it", func() bool {
		_, there := l.getPool("worker").Annotations[api.PoolQuarantineKey]
		return !there && l.condition("worker", mcfgv1.MachineConfigPoolDegraded) == "False"
	})
}
