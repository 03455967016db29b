// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"cmp"
	"fmt"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/api"
)

// ReadDaemons reads the state of the daemon's pods, by node. ReadDaemons returns nil if there are no pods at all, for
// example because the daemon is a service of the hosts.
func ReadDaemons(pods []corev1.Pod) map[string]Daemon {
	if len(pods) == 0 {
		return nil
	}
	daemons := make(map[string]Daemon, len(pods))
	for i := range pods {
		p := &pods[i]
		d := Daemon{Namespace: p.Namespace, Pod: p.Name}
		d.Trouble, d.Since = trouble(p)
		// While a pod is replaced the node has two pods. The one that works counts.
		if old, ok := daemons[p.Spec.NodeName]; !ok || old.Trouble != "" {
			daemons[p.Spec.NodeName] = d
		}
	}
	return daemons
}

// trouble returns why a pod does not work, and since when. The text is empty if the pod works.
func trouble(p *corev1.Pod) (string, time.Time) {
	for _, c := range p.Status.Conditions {
		if c.Type != corev1.PodReady || c.Status == corev1.ConditionTrue {
			continue
		}
		for _, s := range p.Status.ContainerStatuses {
			if w := s.State.Waiting; w != nil {
				return fmt.Sprintf("container %s: %s", s.Name, cmp.Or(w.Message, w.Reason)), c.LastTransitionTime.Time
			}
		}
		return cmp.Or(c.Message, c.Reason, "the pod is not ready"), c.LastTransitionTime.Time
	}
	if p.Status.Phase == corev1.PodRunning {
		return "", time.Time{}
	}
	return "the pod is " + string(p.Status.Phase), p.CreationTimestamp.Time
}

// MissingConfigs returns the configurations that pools and nodes shall have and that do not exist.
func MissingConfigs(pools []mcfgv1.MachineConfigPool, nodes []corev1.Node, exists map[string]bool) map[string]bool {
	out := map[string]bool{}
	add := func(name string) {
		if name != "" && !exists[name] {
			out[name] = true
		}
	}
	for i := range pools {
		add(pools[i].Spec.Configuration.Name)
	}
	for i := range nodes {
		add(nodes[i].Annotations[api.DesiredConfig])
	}
	return out
}
