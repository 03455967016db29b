// SPDX-License-Identifier: Apache-2.0

package pool

import (
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/machineconfig"
)

// expirysLimit is how many certificates a pool's status names. They are those of one bundle, in which a renewal leaves
// two or three.
const expirysLimit = 20

// expirys returns when the certificates end by which kubelets know the API server. OpenShift has the same in the status
// of each pool. Certificates that can't be read are left out: the ControllerConfig and the nodes report these.
func expirys(cc *mcfgv1.ControllerConfig) []mcfgv1.CertExpiry {
	if cc == nil {
		return nil
	}
	var out []mcfgv1.CertExpiry
	for _, b := range machineconfig.Bundles(&cc.Spec) {
		if b.Path != machineconfig.KubeletCAPath {
			continue
		}
		found, _ := b.Certificates()
		for _, c := range found[:min(len(found), expirysLimit)] {
			end := metav1.NewTime(c.NotAfter)
			out = append(out, mcfgv1.CertExpiry{Bundle: b.Name, Subject: c.Subject.String(), Expiry: &end})
		}
	}
	return out
}
