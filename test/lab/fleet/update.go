// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"fmt"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
)

// Render waits until the pool's configuration differs from before, and returns its name.
func (f *Fleet) Render(ctx context.Context, pool, before string) (string, error) {
	var name string
	err := f.WaitPool(ctx, pool, "another configuration than "+before, func(p *mcfgv1.MachineConfigPool) bool {
		name = p.Spec.Configuration.Name
		return name != "" && name != before
	})
	return name, err
}

// Configuration returns the pool's configuration.
func (f *Fleet) Configuration(ctx context.Context, pool string) (string, error) {
	p, err := f.MachineConfigs.MachineconfigurationV1().MachineConfigPools().Get(ctx, pool, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	return p.Spec.Configuration.Name, nil
}

// WaitAt waits until every listed node has the configuration, serves, and has nothing more to do.
func (f *Fleet) WaitAt(ctx context.Context, config string, nodes ...string) error {
	for _, name := range nodes {
		err := f.WaitNodeSays(ctx, name, "at "+config+" and serving", func(says api.Node, n *corev1.Node) bool {
			return says.Current == config && says.Desired == config && says.State == api.Done &&
				!n.Spec.Unschedulable && says.Cordon == nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Pinned makes a workload of one pod that can run on that node only. Its budget never lets the pod go.
func (f *Fleet) Pinned(ctx context.Context, name, node string) error {
	err := f.workload(ctx, name, 1, fmt.Sprintf("nodeSelector: {kubernetes.io/hostname: %s}", node), "maxUnavailable: 0")
	if err != nil {
		return err
	}
	return Until(ctx, "the budget of "+name+" counts its pod", func(ctx context.Context) (bool, string, error) {
		b, err := f.Client.PolicyV1().PodDisruptionBudgets("default").Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		return b.Status.ObservedGeneration == b.Generation && b.Status.CurrentHealthy == 1, fmt.Sprint(b.Status), nil
	})
}

// Unpin removes what Pinned made.
func (f *Fleet) Unpin(ctx context.Context, name string) error {
	_, err := f.Kubectl(ctx, "delete", "poddisruptionbudget/"+name, "deployment/"+name)
	return err
}
