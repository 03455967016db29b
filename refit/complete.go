// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"context"
	"slices"
	"strings"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// PoolNames returns the names of all pools, for a shell.
func (c *Cluster) PoolNames(ctx context.Context) ([]string, error) {
	return c.objects(ctx, mcfgv1.GroupVersion.WithResource("machineconfigpools"))
}

// NodeNames returns the names of all nodes, for a shell.
func (c *Cluster) NodeNames(ctx context.Context) ([]string, error) {
	return c.objects(ctx, corev1.SchemeGroupVersion.WithResource("nodes"))
}

// ConfigNames returns the names of MachineConfigs, for a shell: the rendered ones of a pool, or all that people made.
func (c *Cluster) ConfigNames(ctx context.Context, rendered bool, pool string) ([]string, error) {
	names, err := c.objects(ctx, mcfgv1.GroupVersion.WithResource("machineconfigs"))
	return slices.DeleteFunc(names, func(name string) bool {
		if !rendered {
			return strings.HasPrefix(name, "rendered-")
		}
		return !strings.HasPrefix(name, "rendered-"+pool+"-")
	}), err
}

// QuarantinedNames returns the configurations that are in quarantine in a pool, for a shell.
func (c *Cluster) QuarantinedNames(ctx context.Context, pool string) ([]string, error) {
	rows, err := c.Quarantines(ctx, []string{pool})
	var names []string
	for _, o := range rows.Names() {
		names = append(names, o.Name)
	}
	return names, err
}

// objects returns the names of all objects of a kind, and reads nothing but their metadata.
func (c *Cluster) objects(ctx context.Context, kind schema.GroupVersionResource) ([]string, error) {
	all, err := c.meta.Resource(kind).List(ctx, fromCache)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(all.Items))
	for i := range all.Items {
		names[i] = all.Items[i].Name
	}
	slices.Sort(names)
	return names, nil
}
