// SPDX-License-Identifier: Apache-2.0

// Package kubeletconfig makes MachineConfigs of KubeletConfigs: what each says of the kubelet's configuration, on top
// of what the MachineConfigs of its pools say without it.
package kubeletconfig

import (
	"cmp"
	"context"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/noderefit/noderefit/controller/generated"
)

// Name is what the controller is called on the command line.
const Name = "kubeletconfig"

// Add adds the controller to a manager, whose cache should have generated.CacheOptions. The MachineConfigs that it
// makes say that they were made by version, "unknown" if empty.
func Add(mgr ctrl.Manager, version string) error {
	return generated.SeriesController[*mcfgv1.KubeletConfig, mcfgv1.KubeletConfigSpec]{
		Series: series, Name: Name, Version: cmp.Or(version, "unknown"), New: &mcfgv1.KubeletConfig{},
		List: func(ctx context.Context, from client.Reader) (out []*mcfgv1.KubeletConfig, err error) {
			list := &mcfgv1.KubeletConfigList{}
			err = from.List(ctx, list, client.UnsafeDisableDeepCopy)
			for i := range list.Items {
				out = append(out, &list.Items[i])
			}
			return out, err
		},
		Status: func(o *mcfgv1.KubeletConfig) (observed int64, said []metav1.Condition) {
			for _, c := range o.Status.Conditions {
				said = append(said, metav1.Condition{
					Type: string(c.Type), Status: metav1.ConditionStatus(c.Status), LastTransitionTime: c.LastTransitionTime,
					Reason: c.Reason, Message: c.Message,
				})
			}
			return o.Status.ObservedGeneration, said
		},
		SetStatus: func(o *mcfgv1.KubeletConfig, observed int64, conditions []metav1.Condition) {
			o.Status.ObservedGeneration, o.Status.Conditions = observed, nil
			for _, c := range conditions {
				o.Status.Conditions = append(o.Status.Conditions, mcfgv1.KubeletConfigCondition{
					Type: mcfgv1.KubeletConfigStatusConditionType(c.Type), Status: corev1.ConditionStatus(c.Status),
					LastTransitionTime: c.LastTransitionTime, Reason: c.Reason, Message: c.Message,
				})
			}
		},
	}.Add(mgr)
}
