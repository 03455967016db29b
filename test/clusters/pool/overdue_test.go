// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"strings"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"

	"github.com/noderefit/noderefit/api"
)

func TestANodeWhoseVerdictDoesNotComeIsNamedByTheControllersClock(t *testing.T) {
	l := newLab(t)
	const a, b, c = "rendered-worker-a", "rendered-worker-b", "rendered-worker-c"
	for _, name := range []string{"p-0", "p-1"} {
		l.node(name, "worker", a)
		l.agents.hold(name, true)
	}
	l.pool("worker", b)
	run := l.alone()
	var gone, other string
	l.until("a node is drained", func() bool {
		for _, n := range []string{"p-0", "p-1"} {
			if l.stand(n).Cordoned {
				gone = n
			}
		}
		return gone != ""
	})
	if other = "p-0"; gone == other {
		other = "p-1"
	}
	// Its agent says that it proves, and nothing after that: the host has lost what was to decide.
	l.mustPatchNode(gone, `{"metadata":{"annotations":{"`+api.LastAppliedDrain+`":"drain-`+b+`","`+api.Reason+`":"proving b",
		"`+api.VerdictTimeoutKey+`":"15m0s"}}}`)
	l.until("the controller has noted since when it waits", func() bool {
		return l.stand(gone).Awaited.Config == b
	})
	since := l.stand(gone).Awaited.Since
	l.setClock(since.Add(34 * time.Minute))
	if strings.HasPrefix(l.condition("worker", mcfgv1.MachineConfigPoolDegraded), "True") {
		t.Error("the pool is Degraded before the time is over")
	}
	l.setClock(since.Add(36 * time.Minute))
	said := "Node " + gone + " is overdue: the node has neither proved " + b + " nor gone back within 35m0s, since " +
		since.Format(time.RFC3339) + ": proving b"
	l.until("the pool is Degraded and says why", func() bool {
		return strings.Contains(l.condition("worker", mcfgv1.MachineConfigPoolDegraded), "True "+said) &&
			l.getPool("worker").Status.DegradedMachineCount == 1
	})
	l.until("a metric names the node", func() bool {
		return run.metric(t, `noderefit_node_overdue{node="`+gone+`",pool="worker"}`) != ""
	})
	out := l.refit("explain", "node/"+gone)
	if !strings.Contains(out, "within 35m0s") || !strings.Contains(out, "machine-config-daemon-prove") {
		t.Errorf("kubectl refit explain says:\n%s", out)
	}
	if l.stand(other).Desired != a {
		t.Errorf("node %s was sent after it", other)
	}

	// A change of mind reaches it, and is no sign of life of it.
	l.target("worker", c)
	l.until("the node is sent elsewhere", func() bool { return l.stand(gone).Desired == c })
	l.until("the pool says that it has not answered", func() bool {
		said := l.condition("worker", mcfgv1.MachineConfigPoolDegraded)
		return strings.HasPrefix(said, "True") && strings.Contains(said, "the node was sent to "+c+", and has not answered since")
	})
	if n := l.stand(gone); !n.Overdue() || !n.Awaited.Since.Equal(since) {
		t.Errorf("once it was sent elsewhere, it is waited for as %+v", n.Awaited)
	}
	l.mustPatchNode(gone, `{"metadata":{"annotations":{"`+api.Reason+`":"staging c"}}}`)
	l.until("it has answered", func() bool {
		return !l.stand(gone).Overdue() && strings.HasPrefix(l.condition("worker", mcfgv1.MachineConfigPoolDegraded), "False")
	})
	l.agents.hold("p-0", false)
	l.agents.hold("p-1", false)
	l.updated("worker", c)
	l.until("nothing is left of it", func() bool {
		return l.getNode(gone).Annotations[api.AwaitedKey] == "" &&
			strings.HasPrefix(l.condition("worker", mcfgv1.MachineConfigPoolDegraded), "False")
	})
}
