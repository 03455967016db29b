// SPDX-License-Identifier: Apache-2.0

package render

import (
	"context"
	"fmt"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/plan"
	"github.com/noderefit/noderefit/progress"
)

// lookAgain is how long after a refusal the nodes of a pool are looked at again.
const lookAgain = time.Minute

// place finds out what is known of the pool's hosts where a rendering has paths that a host with an OS image refuses.
func (r *reconciler) place(ctx context.Context, pool *mcfgv1.MachineConfigPool, out *rendering) error {
	if out == nil || len(plan.ImageThere.Refuses(nil, out.config)) == 0 {
		return nil
	}
	pools, nodes := &mcfgv1.MachineConfigPoolList{}, &corev1.NodeList{}
	if err := r.cached.List(ctx, pools, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing MachineConfigPools: %w", err)
	}
	if err := r.cached.List(ctx, nodes, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing Nodes: %w", err)
	}
	out.placeOn(imageOf(pool.Name, pools.Items, nodes.Items))
	return nil
}

// imageOf returns what is known of the OS of a pool's nodes.
func imageOf(pool string, pools []mcfgv1.MachineConfigPool, nodes []corev1.Node) plan.Image {
	members := progress.NewMembership(pools)
	var managed []string
	for i := range nodes {
		if of, _ := members.Of(&nodes[i]); of == pool {
			managed = append(managed, nodes[i].Annotations[api.OSKey])
		}
	}
	return plan.ImageOf(managed)
}

// placeOn adds the warnings about paths that hosts may refuse. A warning names the document where one document alone
// has the path.
func (r *rendering) placeOn(image plan.Image) {
	r.image = image
	var warnings []string
	for _, d := range r.selected {
		c, err := machineconfig.Parse(d.Object)
		if err != nil {
			continue // the document is valid only together with the others
		}
		for _, w := range image.Warnings(nil, c) {
			warnings = append(warnings, d.String()+": "+w)
		}
	}
	if len(warnings) == 0 {
		warnings = image.Warnings(nil, r.config)
	}
	r.warnings = append(r.warnings, warnings...)
}
