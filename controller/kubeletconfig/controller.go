// SPDX-License-Identifier: Apache-2.0

// Package kubeletconfig makes MachineConfigs of KubeletConfigs. Each KubeletConfig sets fields of the kubelet's
// configuration, on top of what the other MachineConfigs of its pools set.
package kubeletconfig

import (
	"cmp"
	"context"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/noderefit/noderefit/controller/source"
)

// Name is the controller's name on the command line.
const Name = "kubeletconfig"

// Add adds the controller to a manager, whose cache should have source.CacheOptions. The MachineConfigs name version as
// their maker, "unknown" if version is empty.
func Add(mgr ctrl.Manager, version string) error {
	return source.SeriesController[*mcfgv1.KubeletConfig, mcfgv1.KubeletConfigSpec]{
		Series: Series, Name: Name, Version: cmp.Or(version, "unknown"), New: &mcfgv1.KubeletConfig{},
		List: func(ctx context.Context, from client.Reader) (out []*mcfgv1.KubeletConfig, err error) {
			list := &mcfgv1.KubeletConfigList{}
			err = from.List(ctx, list, client.UnsafeDisableDeepCopy)
			for i := range list.Items {
				out = append(out, &list.Items[i])
			}
			return out, err
		},
		Status: func(o *mcfgv1.KubeletConfig) (observed int64, said []metav1.Condition) {
			return o.Status.ObservedGeneration, source.Conditions(o.Status.Conditions)
		},
		SetStatus: func(o *mcfgv1.KubeletConfig, observed int64, conditions []metav1.Condition) {
			o.Status.ObservedGeneration = observed
			o.Status.Conditions = source.ConditionsAs[mcfgv1.KubeletConfigCondition](conditions)
		},
	}.Add(mgr)
}
