// SPDX-License-Identifier: Apache-2.0

package render

import (
	"context"
	"fmt"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/machineconfig"
)

// nameValues writes to a pool's annotation which values of a node the pool's configuration names. The pool controller
// reads pools, and not the contents of their configurations.
func (r *reconciler) nameValues(ctx context.Context, pool *mcfgv1.MachineConfigPool) error {
	target := pool.Spec.Configuration.Name
	if target == "" {
		return nil
	}
	mc := &mcfgv1.MachineConfig{}
	err := r.cached.Get(ctx, client.ObjectKey{Name: target}, mc)
	if apierrors.IsNotFound(err) {
		// The cache may not have what was just made, and a configuration may be gone.
		err = r.live.Get(ctx, client.ObjectKey{Name: target}, mc)
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading MachineConfig/%s: %w", target, err)
	}
	named, err := api.Decode[[]string](mc.Annotations, machineconfig.NamedKey)
	if err != nil {
		return fmt.Errorf("MachineConfig/%s: %w", target, err)
	}
	if len(named) == 0 {
		delete(pool.Annotations, api.NamedValuesKey)
		return nil
	}
	metav1.SetMetaDataAnnotation(&pool.ObjectMeta, api.NamedValuesKey,
		api.Encode(api.NamedValues{Config: target, Values: named}))
	return nil
}
