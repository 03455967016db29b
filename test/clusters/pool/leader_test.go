// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
)

// namespace makes the one in which controllers have their lease and their Secrets.
func (l *lab) namespace() {
	l.t.Helper()
	_, err := l.Client.CoreV1().Namespaces().Create(l.ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: api.Namespace}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		l.t.Fatal(err)
	}
}

func TestALeaderThatDiesMidRolloutLosesAndRepeatsNothing(t *testing.T) {
	l := newLab(t)
	l.namespace()
	const nodes = 12
	want := map[string][]string{}
	for i := range nodes {
		name := fmt.Sprintf("l-%02d", i)
		l.node(name, "worker", "rendered-worker-a")
		want[name] = []string{"rendered-worker-b"}
	}
	l.pool("worker", "rendered-worker-a", maxUnavailable("3"))
	first := l.controller()
	l.updated("worker", "rendered-worker-a")
	second := l.controller()

	// Three are under way when the leader dies, and stay so until the next one leads.
	for _, name := range []string{"l-04", "l-05", "l-06"} {
		l.agents.hold(name, true)
	}
	l.target("worker", "rendered-worker-b")
	l.until("the rollout is in the middle", func() bool {
		_, order, _ := l.eye.seen()
		return len(order) >= 7
	})
	leader := l.leader()
	first.stop(t, syscall.SIGKILL)
	begin := time.Now()
	l.until("the other one leads", func() bool { return l.leader() != leader })
	_, before, _ := l.eye.seen()
	if len(before) == nodes {
		t.Fatal("nothing was left for the second to do: the test shows nothing")
	}
	t.Logf("%d of %d nodes were sent by the first; the second led after %v", len(before), nodes,
		time.Since(begin).Round(10*time.Millisecond))
	l.agents.hold("l-05", false)
	l.agents.hold("l-06", false)
	l.until("it goes on", func() bool {
		_, order, _ := l.eye.seen()
		return len(order) > len(before)
	})
	// And one that is told to go hands over at once.
	third := l.controller()
	second.stop(t, syscall.SIGTERM)
	l.agents.hold("l-04", false)
	l.updated("worker", "rendered-worker-b")
	third.stop(t, syscall.SIGTERM)

	told, _, most := l.eye.seen()
	if diff := cmp.Diff(want, told); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
	if most > 3 {
		t.Errorf("%d were out of service at one time", most)
	}
}

// leader is who holds the lease.
func (l *lab) leader() string {
	l.t.Helper()
	lease, err := l.Client.CoordinationV1().Leases(api.Namespace).Get(l.ctx, api.Controller, metav1.GetOptions{})
	if err != nil || lease.Spec.HolderIdentity == nil {
		l.t.Fatalf("nobody leads: %v", err)
	}
	return *lease.Spec.HolderIdentity
}
