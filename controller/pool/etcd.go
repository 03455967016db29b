// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"context"
	"fmt"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/rollout"
)

// etcdNamespaces returns the namespaces and labels of the pods in which members of etcd run. The cache keeps no other
// pod.
func etcdNamespaces() map[string]cache.Config {
	out := map[string]cache.Config{}
	for _, at := range progress.EtcdPlaces {
		out[at.Namespace] = cache.Config{LabelSelector: labels.SelectorFromSet(labels.Set{at.Label: at.Value})}
	}
	return out
}

// etcdAgain is how long the API server's answer about etcd counts.
const etcdAgain = 10 * time.Second

// etcd returns what is known of etcd. The result is nil unless a policy of a control plane's pool guards etcd. Where no
// members are known, etcd asks the API server, while a node of such a pool is not where it should be.
func (r *reconciler) etcd(ctx context.Context, pools []*mcfgv1.MachineConfigPool, policies []api.RolloutPolicy,
) (*progress.Etcd, error) {
	asked, moves := guarded(pools, policies)
	if !r.governed || !asked {
		return nil, nil
	}
	var pods corev1.PodList
	if err := r.client.List(ctx, &pods); err != nil {
		return nil, fmt.Errorf("listing the members of etcd: %w", err)
	}
	e := progress.ReadEtcd(pods.Items)
	if len(e.Members) == 0 && moves {
		if now := r.now(); now.Sub(r.etcdAsked).Abs() >= etcdAgain {
			r.etcdTrouble = progress.EtcdTrouble(r.askEtcd(ctx))
			r.etcdAsked = now
		}
		e.Trouble = r.etcdTrouble
	}
	return e, nil
}

// guarded reports whether a policy guards etcd while the control plane's pools are updated, and whether one of these
// pools is being updated.
func guarded(pools []*mcfgv1.MachineConfigPool, policies []api.RolloutPolicy) (asked, moves bool) {
	for _, p := range pools {
		if !progress.ControlPlane(p.Name) {
			continue
		}
		moves = moves || p.Status.UpdatedMachineCount < p.Status.MachineCount ||
			p.Status.Configuration.Name != p.Spec.Configuration.Name
		for i := range policies {
			c := policies[i].Spec.ControlPlane
			asked = asked || (c == nil || c.Etcd != api.EtcdIgnored) && rollout.Selects(&policies[i], p.Name, p.Labels)
		}
	}
	return asked, moves
}

// etcdTimeout is how long the API server may take to answer whether it reaches etcd.
const etcdTimeout = 5 * time.Second

func (r *reconciler) askEtcd(ctx context.Context) ([]byte, error) {
	return r.raw.Get().AbsPath(progress.EtcdReadyPath).Timeout(etcdTimeout).DoRaw(ctx)
}
