// SPDX-License-Identifier: Apache-2.0

// Package containerruntimeconfig makes MachineConfigs of ContainerRuntimeConfigs: the drop-ins of CRI-O and the
// storage.conf that they stand for, and what of them containerd has too.
package containerruntimeconfig

import (
	"cmp"
	"context"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/noderefit/noderefit/controller/source"
)

// Name is what the controller is called on the command line.
const Name = "containerruntimeconfig"

// Add adds the controller to a manager, whose cache should have source.CacheOptions. The MachineConfigs that it
// makes say that they were made by version, "unknown" if empty.
func Add(mgr ctrl.Manager, version string) error {
	return source.SeriesController[*mcfgv1.ContainerRuntimeConfig, mcfgv1.ContainerRuntimeConfiguration]{
		Series: series, Name: Name, Version: cmp.Or(version, "unknown"), New: &mcfgv1.ContainerRuntimeConfig{},
		List: func(ctx context.Context, from client.Reader) (out []*mcfgv1.ContainerRuntimeConfig, err error) {
			list := &mcfgv1.ContainerRuntimeConfigList{}
			err = from.List(ctx, list, client.UnsafeDisableDeepCopy)
			for i := range list.Items {
				out = append(out, &list.Items[i])
			}
			return out, err
		},
		Status: func(o *mcfgv1.ContainerRuntimeConfig) (observed int64, said []metav1.Condition) {
			return o.Status.ObservedGeneration, source.Conditions(o.Status.Conditions)
		},
		SetStatus: func(o *mcfgv1.ContainerRuntimeConfig, observed int64, conditions []metav1.Condition) {
			o.Status.ObservedGeneration = observed
			o.Status.Conditions = source.ConditionsAs[mcfgv1.ContainerRuntimeConfigCondition](conditions)
		},
	}.Add(mgr)
}
