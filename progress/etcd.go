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

// EtcdPlace names the namespace and the label of pods that are members of etcd.
type EtcdPlace struct{ Namespace, Label, Value string }

// EtcdPlaces are the places that kubeadm and OpenShift use.
var EtcdPlaces = []EtcdPlace{
	{"kube-system", "component", "etcd"},
	{"openshift-etcd", "app", "etcd"},
}

// Etcd is the known health of etcd.
type Etcd struct {
	// Members are the members that run as pods, sorted by name. An empty list means that the members are not known.
	Members []EtcdMember
	// Trouble is why the API server does not reach etcd, for use where no members are known. Empty means that the API
	// server reaches etcd.
	Trouble string
}

// EtcdMember is a member of etcd that runs as a pod.
type EtcdMember struct {
	Namespace, Pod, Node string
	// Trouble is why the member is not ready; empty if the member is ready.
	Trouble string
}

// ReadEtcd finds the members of etcd among pods.
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

// memberTrouble returns why a member is not ready, from the pod's condition Ready. A pod that is being deleted counts
// as not ready.
func memberTrouble(p *corev1.Pod) string {
	if !p.DeletionTimestamp.IsZero() {
		return "the pod is being deleted"
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			if c.Status == corev1.ConditionTrue {
				return ""
			}
			return cmp.Or(c.Message, c.Reason, "the pod is not ready")
		}
	}
	return "the pod has never been ready"
}

// StripEtcd drops from a Pod the fields that ReadEtcd does not use.
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

// Hold returns why a node of the control plane may not be taken out of service, because etcd could lose its quorum.
// Hold returns nil if the node may go. nodes are the nodes of the whole control plane. The node's own member does not
// count, since losing a broken member costs nothing. All other members have to be ready, which is more than a quorum in
// any etcd that can lose a member.
func (e *Etcd) Hold(node string, nodes []string) *Hold {
	if e == nil {
		return nil
	}
	const ignore = "; if etcd does not run on these nodes: spec.controlPlane.etcd: Ignore"
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
				Do:      "see why etcd does not run on the node (crictl ps on the host)" + ignore,
			}
		}
	}
	return nil
}

// EtcdReadyPath is the path where an API server reports whether it reaches etcd.
const EtcdReadyPath = "/readyz/etcd"

// EtcdTrouble reads the answer of EtcdReadyPath and returns why the API server does not reach etcd. EtcdTrouble returns
// an empty string if the API server reaches etcd, or does not have that path.
func EtcdTrouble(answer []byte, err error) string {
	if err == nil || apierrors.IsNotFound(err) {
		return ""
	}
	return cmp.Or(strings.TrimSpace(string(answer)), err.Error())
}
