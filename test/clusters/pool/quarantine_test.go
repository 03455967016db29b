// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

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

// failure is what a node says that failed on it.
func (l *lab) failure(node string) api.Failure {
	l.t.Helper()
	l.until("the node says what failed", func() bool { return len(l.stand(node).Quarantined) > 0 })
	return api.Failure{Node: node, Since: l.stand(node).Quarantined[0].Since}
}

// lift takes back a failure.
func (l *lab) lift(pool, config string, failed api.Failure) {
	l.t.Helper()
	l.change(pool, `{"metadata":{"annotations":{"`+api.LiftedKey+`":`+
		api.Encode(api.Encode([]api.Lifted{{Config: config, Failures: []api.Failure{failed}}}))+`}}}`)
}

func TestTheSameContentIsRefusedInEveryPool(t *testing.T) {
	const (
		digest = "0123456789abcdef0123456789abcdef"
		worker = "rendered-worker-" + digest
		infra  = "rendered-infra-" + digest
	)
	l := newLab(t)
	l.node("s-0", "worker", "rendered-worker-a")
	l.node("s-1", "infra", "rendered-infra-a")
	l.agents.ends(worker, api.RolledBack)
	l.pool("worker", worker)
	l.pool("infra", "rendered-infra-a")
	l.alone()
	l.phase("s-0", worker, progress.PhaseRolledBack)
	l.until("worker is stopped", func() bool { return l.condition("worker", api.PoolQuarantined) != "False" })
	l.target("infra", infra)
	l.until("infra is stopped", func() bool {
		return strings.Contains(l.condition("infra", api.PoolQuarantined), "failed on node s-0 at ")
	})
	// The node that knows moves to the other pool, and it is lifted there.
	l.mustPatchNode("s-0", `{"metadata":{"labels":{"`+api.NodeRole+`worker":null,"`+api.NodeRole+`infra":""}}}`)
	l.until("it is counted there", func() bool { return l.getPool("infra").Status.MachineCount == 2 })
	l.agents.hold("s-0", true)
	l.lift("infra", infra, l.failure("s-0"))
	l.until("it tries first", func() bool { return l.stand("s-0").Desired == infra && l.stand("s-0").Cordoned })
	if told, _, _ := l.eye.seen(); told["s-1"] != nil {
		t.Errorf("another was told: %v", told)
	}
	l.agents.hold("s-0", false)
	l.updated("infra", infra)
	l.until("nothing is left of it", func() bool {
		return l.condition("worker", api.PoolQuarantined) == "False" && l.condition("infra", api.PoolQuarantined) == "False"
	})
}

// A patch whose test fails is told from one that makes an object which is not valid: the first is tried again at once.
func TestHowAPatchIsRefused(t *testing.T) {
	l := newLab(t)
	l.node("r-0", "worker", "rendered-worker-a")
	for patch, causes := range map[string]bool{
		`[{"op":"test","path":"/metadata/annotations/nobody","value":"x"}]`: false,
		`[{"op":"add","path":"/metadata/annotations/~0~0","value":"x"}]`:    true,
	} {
		_, err := l.Client.CoreV1().Nodes().Patch(l.ctx, "r-0", types.JSONPatchType, []byte(patch), metav1.PatchOptions{})
		refused, ok := errors.AsType[*apierrors.StatusError](err)
		if !ok || !apierrors.IsInvalid(err) {
			t.Fatalf("%s: %v", patch, err)
		}
		details := refused.ErrStatus.Details
		if (details != nil && len(details.Causes) > 0) != causes {
			t.Errorf("%s: %+v", patch, details)
		}
	}
}

func TestALiftedQuarantineLetsTheNodeTryAgain(t *testing.T) {
	l := stopped(t)
	l.until("the pool is stopped", func() bool { return l.condition("worker", api.PoolQuarantined) != "False" })
	l.until("q-1 is back", func() bool { return l.stand("q-1").Settled() })
	lift := func(failed api.Failure) { l.lift("worker", "rendered-worker-bad", failed) }
	// It fails again: then it is refused again, and not tried for ever.
	first := l.failure("q-0")
	lift(first)
	l.until("it failed again", func() bool {
		q := l.stand("q-0").Quarantined
		return len(q) == 1 && q[0].Since.After(first.Since) && l.stand("q-0").State == api.RolledBack
	})
	l.until("it is refused again, and the lift is withdrawn", func() bool {
		return strings.Contains(l.condition("worker", api.PoolQuarantined), "failed on node q-0") && l.stand("q-0").Lift == ""
	})
	if told, _, _ := l.eye.seen(); len(told["q-1"]) != 2 || told["q-2"] != nil || told["q-3"] != nil {
		t.Errorf("it was not tried alone: %v", told)
	}
	l.until("everybody else is where he was", func() bool {
		for _, name := range []string{"q-1", "q-2", "q-3"} {
			if n := l.stand(name); n.Desired != "rendered-worker-a" || !n.Settled() {
				return false
			}
		}
		return true
	})
	// It was mended from outside, and lifted again. The agents here know at once what the end will be.
	second := l.failure("q-0")
	l.agents.ends("rendered-worker-bad", "")
	lift(second)
	l.updated("worker", "rendered-worker-bad")
	l.until("nothing is left of it", func() bool {
		_, there := l.getPool("worker").Annotations[api.PoolQuarantineKey]
		return !there && l.condition("worker", mcfgv1.MachineConfigPoolDegraded) == "False"
	})
}
