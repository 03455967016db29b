// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"errors"
	"strings"
	"testing"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// etcdPod is "namespace node ready", or instead of ready what else its condition says.
func etcdPod(text string) corev1.Pod {
	words := strings.Fields(text)
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: words[0], Name: "etcd-" + words[1], Labels: map[string]string{"component": "etcd"},
	}}
	if words[0] == "openshift-etcd" {
		p.Labels = map[string]string{"app": "etcd"}
	}
	p.Spec.NodeName = words[1]
	switch words[2] {
	case "ready":
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	case "ending":
		p.DeletionTimestamp = &metav1.Time{Time: began}
	case "silent":
	default:
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse, Message: words[2]}}
	}
	return p
}

func TestANodeOfTheControlPlaneGoesWhenEtcdCanSpareIt(t *testing.T) {
	t.Parallel()
	three := []string{"a", "b", "c"}
	for name, c := range map[string]struct {
		pods  []string
		nodes []string
		node  string
		held  string // what blocks it; empty: it goes
	}{
		"all are ready":            {[]string{"kube-system a ready", "kube-system b ready", "kube-system c ready"}, three, "a", ""},
		"another one is not":       {[]string{"kube-system a ready", "kube-system b crashed", "kube-system c ready"}, three, "a", "Pod kube-system/etcd-b"},
		"its own is not":           {[]string{"kube-system a crashed", "kube-system b ready", "kube-system c ready"}, three, "a", ""},
		"its own and another":      {[]string{"kube-system a crashed", "kube-system b ready", "kube-system c crashed"}, three, "a", "Pod kube-system/etcd-c"},
		"another one ends":         {[]string{"kube-system a ready", "kube-system b ending", "kube-system c ready"}, three, "a", "Pod kube-system/etcd-b"},
		"another one never spoke":  {[]string{"kube-system a ready", "kube-system b silent", "kube-system c ready"}, three, "a", "Pod kube-system/etcd-b"},
		"another one is missing":   {[]string{"kube-system a ready", "kube-system c ready"}, three, "a", "Node b"},
		"its own is missing":       {[]string{"kube-system b ready", "kube-system c ready"}, three, "a", ""},
		"OpenShift's":              {[]string{"openshift-etcd a ready", "openshift-etcd b crashed"}, []string{"a", "b"}, "a", "Pod openshift-etcd/etcd-b"},
		"a member on another node": {[]string{"kube-system a ready", "kube-system x crashed"}, []string{"a"}, "a", "Pod kube-system/etcd-x"},
		"two members, both ready":  {[]string{"kube-system a ready", "kube-system b ready"}, []string{"a", "b"}, "a", ""},
		"one member":               {[]string{"kube-system a crashed"}, []string{"a"}, "a", ""},
		"none is known":            {nil, three, "a", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var pods []corev1.Pod
			for _, text := range c.pods {
				pods = append(pods, etcdPod(text))
			}
			hold := ReadEtcd(pods).Hold(c.node, c.nodes)
			got := ""
			if hold != nil {
				got = hold.Blocking.String()
			}
			if got != c.held || hold != nil && hold.Verdict != EtcdUnhealthy {
				t.Errorf("held by %q, want %q", got, c.held)
			}
		})
	}
}

func TestOnlyPodsOfEtcdAreMembers(t *testing.T) {
	t.Parallel()
	elsewhere, unplaced, other := etcdPod("default a ready"), etcdPod("kube-system b ready"), etcdPod("kube-system c ready")
	unplaced.Spec.NodeName = ""
	other.Labels = map[string]string{"component": "kube-apiserver"}
	if e := ReadEtcd([]corev1.Pod{elsewhere, unplaced, other}); len(e.Members) != 0 {
		t.Errorf("%+v", e.Members)
	}
}

func TestTheAPIServerSaysWhetherItReachesEtcdWhereNoMemberIsAPod(t *testing.T) {
	t.Parallel()
	missing := apierrors.NewNotFound(schema.GroupResource{}, "")
	for name, c := range map[string]struct {
		answer string
		err    error
		want   string
	}{
		"it does":                   {"ok", nil, ""},
		"it does not":               {"etcd failed: reason withheld", errors.New("500"), "etcd failed: reason withheld"},
		"it has no such word":       {"", missing, ""},
		"it does not answer at all": {"", errors.New("no route to host"), "no route to host"},
	} {
		e := &Etcd{Trouble: EtcdTrouble([]byte(c.answer), c.err)}
		hold := e.Hold("a", []string{"a", "b"})
		if e.Trouble != c.want || (hold == nil) != (c.want == "") {
			t.Errorf("%s: %q, %+v", name, e.Trouble, hold)
		}
	}
}

func TestOfAMemberNothingIsKeptThatIsNotAskedFor(t *testing.T) {
	t.Parallel()
	p := etcdPod("kube-system a ready")
	p.Spec.Containers = []corev1.Container{{Name: "etcd"}}
	p.Annotations = map[string]string{"x": "y"}
	p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.ContainersReady})
	kept, err := StripEtcd(&p)
	if err != nil {
		t.Fatal(err)
	}
	pod, is := kept.(*corev1.Pod)
	if !is || len(pod.Spec.Containers)+len(pod.Annotations) > 0 || len(pod.Status.Conditions) != 1 {
		t.Errorf("%+v", kept)
	}
	if e := ReadEtcd([]corev1.Pod{*pod}); len(e.Members) != 1 || e.Members[0] != (EtcdMember{"kube-system", "etcd-a", "a", ""}) {
		t.Errorf("%+v", e)
	}
}

func TestTheMemberOfANodeThatIsOnItsWayIsNoNews(t *testing.T) {
	t.Parallel()
	held := func(pools []*Pool) {
		pools[0].Rules = Rules{Policy: "careful", Holds: map[string]*Hold{"a": {
			Verdict: EtcdUnhealthy, Blocking: &Object{Kind: "Pod", Namespace: "kube-system", Name: "etcd-b"},
			Because: "etcd member etcd-b is not ready", Do: "see it",
		}}}
	}
	w := newWorld()
	w.Follow = held
	a, _ := NewReport(w.View).ExplainNode("a")
	check(t, a, "Node a", explanation{
		verdict: EtcdUnhealthy, blocking: "Pod kube-system/etcd-b", since: -1, says: []string{"etcd-b is not ready"}, do: "see it",
	})
	w.moving(w.b, mcfgv1.MachineConfigNodeUpdateRebooted)
	a, _ = NewReport(w.View).ExplainNode("a")
	if a.Verdict != WaitsForTurn {
		t.Errorf("while b reboots: %+v", a)
	}
}

// A member of etcd is away at each reboot of its node: who watches a rollout does not stop watching at that.
func TestAMemberOfEtcdThatIsAwayIsNoEnd(t *testing.T) {
	w := newWorld()
	ruled(EtcdUnhealthy)(w)
	r := NewReport(w.View)
	a, _ := r.ExplainPool("worker")
	if _, ended := r.Ended("worker"); a.Verdict != EtcdUnhealthy || a.Stops() || ended {
		t.Errorf("%s stops: %t, ended: %t", a.Verdict, a.Stops(), ended)
	}
}
