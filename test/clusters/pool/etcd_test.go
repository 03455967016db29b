// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/progress"
)

// member makes the pod of an etcd member on a node, as kubeadm's kubelets do.
func (l *lab) member(node string) {
	l.t.Helper()
	pods := l.Client.CoreV1().Pods(metav1.NamespaceSystem)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "etcd-" + node, Labels: map[string]string{"component": "etcd"}},
		Spec: corev1.PodSpec{
			NodeName: node, Containers: []corev1.Container{{Name: "etcd", Image: "none"}},
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		},
	}
	if _, err := pods.Create(l.ctx, p, metav1.CreateOptions{}); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() {
		none := int64(0)
		if err := pods.Delete(context.Background(), p.Name, metav1.DeleteOptions{GracePeriodSeconds: &none}); err != nil {
			l.t.Error(err)
		}
	})
	l.until("member "+p.Name+" is ready", func() bool {
		p, err := pods.Get(l.ctx, p.Name, metav1.GetOptions{})
		return err == nil && len(progress.ReadEtcd([]corev1.Pod{*p}).Members) == 1 &&
			progress.ReadEtcd([]corev1.Pod{*p}).Members[0].Trouble == ""
	})
}

// memberReady has a member say whether it is ready.
func (l *lab) memberReady(node string, ready corev1.ConditionStatus) {
	l.t.Helper()
	pods := l.Client.CoreV1().Pods(metav1.NamespaceSystem)
	p, err := pods.Get(l.ctx, "etcd-"+node, metav1.GetOptions{})
	if err != nil {
		l.t.Fatal(err)
	}
	for i := range p.Status.Conditions {
		if c := &p.Status.Conditions[i]; c.Type == corev1.PodReady {
			c.Status, c.Message = ready, "its probe failed"
		}
	}
	if _, err := pods.UpdateStatus(l.ctx, p, metav1.UpdateOptions{}); err != nil {
		l.t.Fatal(err)
	}
}

func TestNoControlPlaneNodeIsSentWhileAMemberOfEtcdIsNotReady(t *testing.T) {
	l := newLab(t)
	names := []string{"cp-0", "cp-1", "cp-2"}
	for _, name := range names {
		l.node(name, "master", "rendered-master-a")
		l.reports(name)
		l.member(name)
	}
	l.pool("master", "rendered-master-a")
	l.mustPolicy("control-plane", `{"pools":["master"]}`)
	c := l.alone()
	l.updated("master", "rendered-master-a")
	l.eye.forget()

	l.memberReady("cp-2", corev1.ConditionFalse)
	l.target("master", "rendered-master-b")
	// The node of the member that is not ready goes: to lose that costs nothing. Nobody else may, before and after.
	l.agents.hold("cp-2", true)
	l.until("the node of the bad member is sent", func() bool { return l.stand("cp-2").Desired == "rendered-master-b" })
	l.agents.hold("cp-2", false)
	l.until("it has arrived", func() bool { return l.stand("cp-2").Updated("rendered-master-b") })
	l.heldBy("master", "EtcdUnhealthy", "etcd member etcd-cp-2 on node cp-2 is not ready (its probe failed)")
	l.event("master", "Held", "etcd-cp-2")
	l.explained("node/cp-0", "EtcdUnhealthy", "etcd-cp-2")
	if text := c.metric(t, `noderefit_pool_held{policy="control-plane",pool="master",reason="EtcdUnhealthy"}`); text != "1" {
		t.Errorf("the metric is %q", text)
	}
	l.told(map[string][]string{"cp-2": {"rendered-master-b"}})

	// It comes back. The next node goes, and its member fails after it has arrived: the last one waits for that.
	l.agents.hold("cp-0", true)
	l.agents.hold("cp-1", true)
	l.memberReady("cp-2", corev1.ConditionTrue)
	l.until("the next node is sent", func() bool { _, order, _ := l.eye.seen(); return len(order) == 2 })
	_, order, _ := l.eye.seen()
	l.memberReady(order[1], corev1.ConditionFalse)
	l.agents.hold("cp-0", false)
	l.agents.hold("cp-1", false)
	l.until("it has arrived", func() bool { return l.stand(order[1]).Updated("rendered-master-b") })
	l.heldBy("master", "EtcdUnhealthy", "etcd-"+order[1])
	last := "cp-0"
	if order[1] == last {
		last = "cp-1"
	}
	l.agents.hold(last, true)
	l.memberReady(order[1], corev1.ConditionTrue)

	// The rollout is not over before etcd is whole after the last node.
	l.until("the last node is sent", func() bool { return l.stand(last).Desired == "rendered-master-b" })
	l.memberReady(last, corev1.ConditionFalse)
	l.agents.hold(last, false)
	l.until("it has arrived", func() bool { return l.stand(last).Updated("rendered-master-b") })
	l.heldBy("master", "EtcdUnhealthy", "etcd-"+last)
	l.explained("master", "EtcdUnhealthy", "etcd-"+last)
	l.memberReady(last, corev1.ConditionTrue)
	l.updated("master", "rendered-master-b")
	l.heldBy("master", "", "")
	if _, _, most := l.eye.seen(); most != 1 {
		t.Errorf("%d nodes of the control plane were out of service at one time", most)
	}
}

func TestEtcdCountsOnlyWhereAPolicyHasItCount(t *testing.T) {
	for name, spec := range map[string]string{
		"no policy": "", "ignored": `{"pools":["master"],"controlPlane":{"etcd":"Ignore"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			for _, name := range []string{"cp-0", "cp-1"} {
				l.node(name, "master", "rendered-master-a")
				l.member(name)
			}
			l.memberReady("cp-1", corev1.ConditionFalse)
			l.pool("master", "rendered-master-a")
			if spec != "" {
				l.mustPolicy("control-plane", spec)
			}
			l.alone()
			l.updated("master", "rendered-master-a")
			l.target("master", "rendered-master-b")
			l.updated("master", "rendered-master-b")
		})
	}
}

// Where no member is a pod, the API server is asked, which reaches etcd here.
func TestAControlPlaneWithoutEtcdPodsIsUpdated(t *testing.T) {
	l := newLab(t)
	l.node("cp-0", "master", "rendered-master-a")
	l.pool("master", "rendered-master-a")
	l.mustPolicy("control-plane", `{"pools":["master"]}`)
	l.alone()
	l.updated("master", "rendered-master-a")
	l.target("master", "rendered-master-b")
	l.updated("master", "rendered-master-b")
}
