// SPDX-License-Identifier: Apache-2.0

package template

import (
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/machineconfig"
)

// certificates returns the certificates in a ControllerConfig, in the order of the bundles, under upstream's names. A
// bundle that can't be read is not an error: it is reported by its field, and the other bundles count.
func certificates(s *mcfgv1.ControllerConfigSpec) (out []mcfgv1.ControllerCertificate, unreadable []string) {
	for _, b := range machineconfig.Bundles(s) {
		found, err := b.Certificates()
		if err != nil {
			unreadable = append(unreadable, err.Error())
		}
		for _, c := range found {
			from, to := metav1.NewTime(c.NotBefore), metav1.NewTime(c.NotAfter)
			out = append(out, mcfgv1.ControllerCertificate{
				Subject: c.Subject.String(), Signer: c.Issuer.String(), NotBefore: &from, NotAfter: &to, BundleFile: b.Name,
			})
		}
	}
	return out, unreadable
}
