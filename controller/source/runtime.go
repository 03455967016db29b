// SPDX-License-Identifier: Apache-2.0

package source

import (
	"fmt"
	"strings"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

// Values of the annotation api.Runtime.
const (
	CRIO       = "crio"
	Containerd = "containerd"
)

// Runtime is the set of container runtimes that the Nodes of a pool have.
type Runtime struct{ CRIO, Containerd bool }

// Runtimes finds the runtimes of each pool. The pool's annotation counts first, then what the kubelets of its Nodes
// report. If they report nothing, or an unknown runtime, the pool has CRI-O, as upstream. A pool can have both. A Node
// whose kubelet has not reported yet does not count.
func Runtimes(pools []*mcfgv1.MachineConfigPool, nodes []*corev1.Node) (map[string]Runtime, map[string]error) {
	values := make([]mcfgv1.MachineConfigPool, 0, len(pools))
	for _, p := range pools {
		values = append(values, *p)
	}
	members := progress.NewMembership(values)
	found, wrong := map[string]Runtime{}, map[string]error{}
	for _, n := range nodes {
		pool, _ := members.Of(n)
		r := found[pool]
		switch version := n.Status.NodeInfo.ContainerRuntimeVersion; {
		case version == "":
		case strings.HasPrefix(version, Containerd+"://"):
			r.Containerd = true
		default:
			r.CRIO = true
		}
		found[pool] = r
	}
	out := map[string]Runtime{}
	for _, p := range pools {
		switch said := p.Annotations[api.Runtime]; said {
		case CRIO:
			out[p.Name] = Runtime{CRIO: true}
		case Containerd:
			out[p.Name] = Runtime{Containerd: true}
		case "":
			out[p.Name] = found[p.Name]
			if found[p.Name] == (Runtime{}) {
				out[p.Name] = Runtime{CRIO: true}
			}
		default:
			wrong[p.Name] = fmt.Errorf("MachineConfigPool/%s: the annotation %s is %q and neither %s nor %s", p.Name,
				api.Runtime, said, CRIO, Containerd)
		}
	}
	return out, wrong
}
