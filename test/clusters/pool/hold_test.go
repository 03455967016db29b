// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/test/lab/cluster"
)

func TestAHeldNodeStaysWhileTheOthersGoAndGoesWhenReleased(t *testing.T) {
	l, _ := workers(t, 3, "1")
	l.refit("hold", "w-0", "--why", "a trace is running")
	l.target("worker", configB)
	for _, name := range []string{"w-1", "w-2"} {
		l.phase(name, configB, progress.PhaseUpdated)
	}
	l.explained("node/w-0", "HeldByPerson", "a trace is running")
	l.explained("pool/worker", "HeldByPerson", "2 of 3 nodes updated")
	l.heldBy("worker", "HeldByPerson", "a trace is running")
	l.told(map[string][]string{"w-1": {configB}, "w-2": {configB}})
	if said := l.refit("release", "w-0"); !strings.Contains(said, "is released") {
		t.Error(said)
	}
	l.updated("worker", configB)
}

func TestAHoldEndsAtItsTime(t *testing.T) {
	l, _ := workers(t, 2, "1")
	l.refit("hold", "w-0", "--why", "a trace is running", "--for", "1h")
	l.target("worker", configB)
	l.phase("w-1", configB, progress.PhaseUpdated)
	l.explained("node/w-0", "HeldByPerson", "a trace is running")
	l.setClock(time.Now().Add(61 * time.Minute))
	l.updated("worker", configB)
}

func TestASkippedNodeIsTakenBackAndGoesWithTheNextConfiguration(t *testing.T) {
	l, _ := workers(t, 3, "1")
	l.agents.hold("w-0", true)
	l.target("worker", configB)
	l.until("w-0 drains", func() bool { return l.stand("w-0").Cordoned })
	l.refit("skip", "w-0", "--why", "its pods do not end")
	for _, name := range []string{"w-1", "w-2"} {
		l.phase(name, configB, progress.PhaseUpdated)
	}
	l.told(map[string][]string{"w-0": {configB, configA}, "w-1": {configB}, "w-2": {configB}})
	if n := l.stand("w-0"); n.Cordoned || n.Current != configA {
		t.Errorf("w-0 does not serve on %s: %+v", configA, n)
	}
	l.explained("node/w-0", "Skipped", "its pods do not end")
	l.agents.hold("w-0", false)
	const next = "rendered-worker-c"
	l.target("worker", next)
	l.updated("worker", next)
}

func TestASkippedNodeIsTriedAgain(t *testing.T) {
	l, _ := workers(t, 2, "1")
	l.target("worker", configB)
	l.until("a node is sent", func() bool { told, _, _ := l.eye.seen(); return len(told) > 0 })
	l.updated("worker", configB)
	l.target("worker", configA)
	l.refit("skip", "w-1", "--why", "its pods do not end")
	l.phase("w-0", configA, progress.PhaseUpdated)
	l.refit("retry", "w-1")
	l.updated("worker", configA)
}

func TestANodeOnWhichAConfigurationFailedTriesItAgainAlone(t *testing.T) {
	l, _ := workers(t, 2, "1")
	l.agents.breakOn("w-0", "w-1")
	l.target("worker", configB)
	l.until("the pool is stopped", func() bool { return strings.HasPrefix(l.condition("worker", api.PoolQuarantined), "True") })
	failed := "w-0"
	if l.stand("w-1").State == api.RolledBack {
		failed = "w-1"
	}
	l.agents.mend(failed)
	l.refit("retry", failed, "--why", "the disk was changed")
	l.phase(failed, configB, progress.PhaseUpdated)
	if got := l.getPool("worker").Annotations[api.LiftedKey]; !strings.Contains(got, "the disk was changed") ||
		!strings.Contains(got, failed) {
		t.Errorf("the record of the lift: %s", got)
	}
}

// dead makes a node that nobody plays: the node has not been ready for that long.
func (l *lab) dead(name string, long time.Duration) {
	l.t.Helper()
	n := cluster.KwokNode(name, map[string]string{api.NodeRole + "worker": ""})
	delete(n.Labels, "kwok.x-k8s.io/node")
	n.Annotations = map[string]string{api.CurrentConfig: configA, api.DesiredConfig: configA, api.StateKey: string(api.Done)}
	if _, err := l.Client.CoreV1().Nodes().Create(l.ctx, n, metav1.CreateOptions{}); err != nil {
		l.t.Fatal(err)
	}
	l.mustPatchNode(name, fmt.Sprintf(`{"status":{"conditions":[{"type":"Ready","status":"Unknown","lastTransitionTime":%q}]}}`,
		time.Now().Add(-long).UTC().Format(time.RFC3339)), "status")
}

func TestARolloutPassesOverADeadNodeAsItsPolicySays(t *testing.T) {
	l := newLab(t)
	l.dead("w-0", 10*time.Minute)
	for _, name := range []string{"w-1", "w-2"} {
		l.node(name, "worker", configA)
		l.reports(name)
	}
	l.pool("worker", configB)
	l.alone()
	l.until("w-0 is sent", func() bool { return l.stand("w-0").Desired == configB })
	l.explained("node/w-1", "WaitsForTurn", "w-0")
	l.mustPolicy("patient", `{"pools":["worker"],"notReady":{"passOverAfterSeconds":3600}}`)
	l.explained("node/w-1", "WaitsForTurn", "w-0")
	l.setClock(time.Now().Add(55 * time.Minute))
	for _, name := range []string{"w-1", "w-2"} {
		l.phase(name, configB, progress.PhaseUpdated)
	}
	if _, _, most := l.eye.seen(); most != 2 {
		t.Errorf("%d nodes were out of service, want the dead one and one more", most)
	}
}
