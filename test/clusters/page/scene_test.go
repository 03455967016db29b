// SPDX-License-Identifier: Apache-2.0

package page

import (
	"fmt"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/noderefit/noderefit/api"
)

// The configurations of the scene. The controllers name them by their contents.
const (
	masterConfig = "rendered-master-41d0c5b8f7a9e2630d1c84f5b7a6e930"
	workerOld    = "rendered-worker-0b6f1e9d2c7a45838f30d1c2b4a59e67"
	workerNew    = "rendered-worker-9c2e7d41a05f4b6c8d93e1f027b6a58c"
	gpuOld       = "rendered-gpu-57a1c9e30b2d4f6881e0d3c5a7b9f214"
	gpuNew       = "rendered-gpu-e83b0d6f94c24a7db15f7083c2ea961d"
	edgeOld      = "rendered-edge-2f4d8a61c03b4e95a7d0f18c6b3e7952"
	edgeNew      = "rendered-edge-b70c93e5d1f84a2680ce4d7a95f1b36e"
)

// scene is a cluster at work: a rollout half way, a drain that a budget holds up, a configuration that failed, and a pool
// whose window is not open.
func (l *lab) scene() {
	l.t.Helper()
	now := time.Now().Truncate(time.Second)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	const day = 24 * time.Hour
	l.pool("master", masterConfig, masterConfig, rollouts(
		api.PastRollout{Config: masterConfig, Wanted: ago(9 * day), Began: ago(9 * day), Ended: ago(9*day - 34*time.Minute), Nodes: 3, Updated: 3},
	))
	for i := range 3 {
		l.node(fmt.Sprintf("master-%d", i+1), "master", done(masterConfig, ago(9*day)))
	}
	l.workers(now)

	failed := []api.Quarantine{{
		Config: gpuNew, Reason: "check nvidia-driver: exit status 9: no device was found", Since: ago(95 * time.Minute).UTC(),
	}}
	l.pool("gpu", gpuNew, gpuOld, rollouts(api.PastRollout{Config: gpuNew, Wanted: ago(2 * time.Hour), Began: ago(2 * time.Hour)}))
	l.node("gpu-1", "gpu", stand{
		current: gpuOld, desired: gpuNew, state: api.RolledBack, condition: mcfgv1.MachineConfigNodeNodeDegraded,
		status: metav1.ConditionTrue, since: ago(95 * time.Minute),
		node: map[string]string{
			api.QuarantinedKey: api.Encode(failed),
			api.Reason:         "rolled back from " + gpuNew + " to " + gpuOld + ": " + failed[0].Reason,
		},
	})
	for i := range 3 {
		l.node(fmt.Sprintf("gpu-%d", i+2), "gpu", done(gpuOld, ago(30*day)))
	}

	nights := &api.RolloutPolicy{ObjectMeta: metav1.ObjectMeta{Name: "weekend-nights"}}
	nights.Spec.Pools = []string{"edge"}
	// Three days from now, so that it is closed whenever this runs.
	from := now.UTC().Add(3 * day)
	nights.Spec.Windows = &api.RolloutWindows{Open: []api.Window{{
		From: from.Format(time.DateOnly) + "T22:00:00", Until: from.Add(day).Format(time.DateOnly) + "T04:00:00",
	}}}
	l.apply(nights)
	l.pool("edge", edgeNew, edgeOld, rollouts(api.PastRollout{Config: edgeNew, Wanted: ago(5 * time.Hour)}))
	for i := range 6 {
		l.node(fmt.Sprintf("edge-%d", i+1), "edge", done(edgeOld, ago(20*day)))
	}
}

// workers are 24 nodes, half of which are updated.
func (l *lab) workers(now time.Time) {
	l.t.Helper()
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	const day = 24 * time.Hour
	const reverted = "rendered-worker-6d15a0c7e4b94f3f92d80b7c1e5fa324"
	l.pool("worker", workerNew, workerOld, func(p *mcfgv1.MachineConfigPool) {
		p.Spec.MaxUnavailable = new(intstr.FromInt32(3))
	}, rollouts(
		api.PastRollout{Config: workerNew, Wanted: ago(75 * time.Minute), Began: ago(61 * time.Minute)},
		api.PastRollout{
			Config: workerOld, Wanted: ago(6 * day), Began: ago(6 * day), Ended: ago(6*day - 109*time.Minute), Nodes: 24, Updated: 24,
		},
		api.PastRollout{
			Config: reverted, Wanted: ago(6*day + 40*time.Minute), Began: ago(6*day + 38*time.Minute), Ended: ago(6 * day), Nodes: 24,
			Updated: 1, Failed: 2, Replaced: true,
		},
	))
	policy := &api.RolloutPolicy{ObjectMeta: metav1.ObjectMeta{Name: "careful"}}
	policy.Spec.Pools = []string{"worker"}
	policy.Spec.Stages = []api.RolloutStage{{Name: "canary", Nodes: new(intstr.FromInt32(2))}}
	policy.Spec.FailureBudget = new(intstr.FromInt32(2))
	l.apply(policy)
	for i := range 24 {
		s := done(workerOld, ago(6*day))
		switch {
		case i < 12:
			s = done(workerNew, ago(time.Duration(58-4*i)*time.Minute))
		case i == 12:
			s = draining(now)
		case i == 13:
			s = moving(mcfgv1.MachineConfigNodeUpdateRebooted, ago(2*time.Minute))
			s.notReady = "Kubelet stopped posting node status."
			s.node[api.PostConfigAction] = api.PostConfigActionRebooting
		case i == 14:
			s = moving(mcfgv1.MachineConfigNodeUpdatePrepared, ago(time.Minute))
			s.cordoned = false
			delete(s.node, api.CordonKey)
		}
		l.node(fmt.Sprintf("worker-%02d", i+1), "worker", s)
	}
}

func moving(step mcfgv1.StateProgress, since time.Time) stand {
	return stand{
		current: workerOld, desired: workerNew, state: api.Working, cordoned: true, condition: step,
		status: metav1.ConditionUnknown, since: since, node: map[string]string{
			api.CordonKey: api.Encode(api.Cordon{By: api.Daemon, Config: workerNew, Reason: "update", Since: since.UTC()}),
		},
	}
}

func rollouts(list ...api.PastRollout) func(*mcfgv1.MachineConfigPool) {
	return func(p *mcfgv1.MachineConfigPool) {
		for i := range list {
			for _, at := range []*time.Time{&list[i].Wanted, &list[i].Began, &list[i].Ended} {
				if !at.IsZero() {
					*at = at.UTC()
				}
			}
		}
		p.Annotations[api.RolloutsKey] = api.Encode(list)
	}
}

// apply makes a RolloutPolicy.
func (l *lab) apply(p *api.RolloutPolicy) {
	l.t.Helper()
	p.APIVersion, p.Kind = api.GroupVersion.String(), "RolloutPolicy"
	l.must(l.Client.CoreV1().RESTClient().Post().AbsPath("/apis/noderefit.dev/v1alpha1/rolloutpolicies").
		SetHeader("Content-Type", "application/json").Body([]byte(api.Encode(p))).Do(l.ctx).Error())
}
