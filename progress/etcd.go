// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// EtcdPlace is where members of etcd run as pods.
type EtcdPlace struct{ Namespace, Label, Value string }

// EtcdPlaces are those of kubeadm and of OpenShift.
var EtcdPlaces = []EtcdPlace{
	{"kube-system", "component", "etcd"},
	{"openshift-etcd", "app", "etcd"},
}

// Etcd is what is known of the health of etcd.
type Etcd struct {
	// Members are those that run as pods, sorted by name; none: they are not known.
	Members []EtcdMember
	// Trouble is why the API server does not reach etcd, where no members are known; empty: it does.
	Trouble string
}

// EtcdMember is a member of etcd that runs as a pod.
type EtcdMember struct {
	Namespace, Pod, Node string
	// Trouble is why it is not ready; empty: it is.
	Trouble string
}

// ReadEtcd are the members among pods.
func ReadEtcd(pods []corev1.Pod) *Etcd {
	e := &Etcd{}
	for i := range pods {
		p := &pods[i]
		member := slices.ContainsFunc(EtcdPlaces, func(at EtcdPlace) bool {
			return p.Namespace == at.Namespace && p.Labels[at.Label] == at.Value
		})
		if member && p.Spec.NodeName != "" {
			e.Members = append(e.Members, EtcdMember{p.Namespace, p.Name, p.Spec.NodeName, memberTrouble(p)})
		}
	}
	slices.SortFunc(e.Members, func(a, b EtcdMember) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod))
	})
	return e
}

// memberTrouble asks the pod's condition Ready. A pod that is told to end is about not to be.
func memberTrouble(p *corev1.Pod) string {
	if !p.DeletionTimestamp.IsZero() {
		return "it is being deleted"
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			if c.Status == corev1.ConditionTrue {
				return ""
			}
			return cmp.Or(c.Message, c.Reason, "it is not ready")
		}
	}
	return "it has never reported that it is ready"
}

// StripEtcd drops from a Pod what ReadEtcd does not ask for.
func StripEtcd(o any) (any, error) {
	p, is := o.(*corev1.Pod)
	if !is {
		return o, nil
	}
	kept := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: p.Namespace, Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion, Labels: p.Labels,
		DeletionTimestamp: p.DeletionTimestamp,
	}}
	kept.Spec.NodeName = p.Spec.NodeName
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			c.LastProbeTime, c.LastTransitionTime = metav1.Time{}, metav1.Time{}
			kept.Status.Conditions = append(kept.Status.Conditions, c)
		}
	}
	return kept, nil
}

// Hold is why a node of the control plane may not be taken out of service, as etcd could lose its quorum by that;
// nil: it may. Nodes are those of the whole control plane. The node's own member does not count: to lose one that does
// not work costs nothing. All others have to be ready, which is more than a quorum wherever there is one to be kept.
func (e *Etcd) Hold(node string, nodes []string) *Hold {
	if e == nil {
		return nil
	}
	const ignore = "; where etcd does not run on these nodes: spec.controlPlane.etcd: Ignore"
	if len(e.Members) == 0 {
		if e.Trouble == "" {
			return nil
		}
		return &Hold{
			Verdict: EtcdUnhealthy, Because: "the API server does not reach etcd: " + e.Trouble,
			Do: "see kubectl get --raw '/readyz/etcd?verbose'" + ignore,
		}
	}
	for _, m := range e.Members {
		if m.Node != node && m.Trouble != "" {
			return &Hold{
				Verdict: EtcdUnhealthy, Blocking: &Object{Kind: "Pod", Namespace: m.Namespace, Name: m.Pod},
				Because: fmt.Sprintf("etcd member %s on node %s is not ready (%s), and etcd may not lose another one", m.Pod,
					m.Node, m.Trouble),
				Do: fmt.Sprintf("see kubectl -n %s describe pod %s%s", m.Namespace, m.Pod, ignore),
			}
		}
	}
	for _, other := range nodes {
		if other != node && !slices.ContainsFunc(e.Members, func(m EtcdMember) bool { return m.Node == other }) {
			return &Hold{
				Verdict: EtcdUnhealthy, Blocking: &Object{Kind: "Node", Name: other},
				Because: fmt.Sprintf("node %s of the control plane has no etcd member, and etcd may not lose one", other),
				Do:      "see why its etcd does not run (crictl ps on the host)" + ignore,
			}
		}
	}
	return nil
}

// EtcdReadyPath is where an API server says whether it reaches etcd.
const EtcdReadyPath = "/readyz/etcd"

// EtcdTrouble reads what it says there: why it does not; empty: it does, or has no such word.
func EtcdTrouble(answer []byte, err error) string {
	if err == nil || apierrors.IsNotFound(err) {
		return ""
	}
	return cmp.Or(strings.TrimSpace(string(answer)), err.Error())
}
