// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"context"
	"fmt"
	"slices"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

// etcdNamespaces are those that members of etcd run in as pods, and their labels. No other pod is kept.
func etcdNamespaces() map[string]cache.Config {
	out := map[string]cache.Config{}
	for _, at := range progress.EtcdPlaces {
		out[at.Namespace] = cache.Config{LabelSelector: labels.SelectorFromSet(labels.Set{at.Label: at.Value})}
	}
	return out
}

// etcd is what is known of etcd, where a policy may ask for that; nil: nobody asks. Where no members are known, the API
// server is asked, while a node of the control plane is not where it should be.
func (r *reconciler) etcd(ctx context.Context, pools []*mcfgv1.MachineConfigPool, policies []api.RolloutPolicy,
) (*progress.Etcd, error) {
	asks := slices.ContainsFunc(policies, func(p api.RolloutPolicy) bool {
		return p.Spec.ControlPlane == nil || p.Spec.ControlPlane.Etcd != api.EtcdIgnored
	})
	if !r.governed || !asks {
		return nil, nil
	}
	var pods corev1.PodList
	if err := r.client.List(ctx, &pods); err != nil {
		return nil, fmt.Errorf("listing the members of etcd: %w", err)
	}
	e := progress.ReadEtcd(pods.Items)
	moves := slices.ContainsFunc(pools, func(p *mcfgv1.MachineConfigPool) bool {
		return progress.ControlPlane(p.Name) &&
			(p.Status.UpdatedMachineCount < p.Status.MachineCount || p.Status.Configuration.Name != p.Spec.Configuration.Name)
	})
	if len(e.Members) == 0 && moves {
		e.Trouble = progress.EtcdTrouble(r.askEtcd(ctx))
	}
	return e, nil
}

// etcdTimeout is how long the API server may take to say whether it reaches etcd.
const etcdTimeout = 5 * time.Second

func (r *reconciler) askEtcd(ctx context.Context) ([]byte, error) {
	return r.raw.Get().AbsPath(progress.EtcdReadyPath).Timeout(etcdTimeout).DoRaw(ctx)
}
