// SPDX-License-Identifier: Apache-2.0

package template

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"slices"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// certificates are those in a ControllerConfig, in the order of the bundles, under upstream's names for these. No
// bundle is an error: one that can't be read is said, by its field, and the others count.
func certificates(s *mcfgv1.ControllerConfigSpec) (out []mcfgv1.ControllerCertificate, unreadable []string) {
	type bundle struct {
		file, field string
		data        []byte
	}
	bundles := []bundle{
		{"KubeAPIServerServingCAData", "spec.kubeAPIServerServingCAData", s.KubeAPIServerServingCAData},
		{"CloudProviderCAData", "spec.cloudProviderCAData", s.CloudProviderCAData},
		{"RootCAData", "spec.rootCAData", s.RootCAData},
		{"AdditionalTrustBundle", "spec.additionalTrustBundle", s.AdditionalTrustBundle},
	}
	for i, b := range slices.Concat(s.ImageRegistryBundleData, s.ImageRegistryBundleUserData) {
		field := fmt.Sprintf("spec.imageRegistryBundleData[%d]", i)
		if n := len(s.ImageRegistryBundleData); i >= n {
			field = fmt.Sprintf("spec.imageRegistryBundleUserData[%d]", i-n)
		}
		bundles = append(bundles, bundle{b.File, field, b.Data})
	}
	for _, b := range bundles {
		found, err := parseBundle(b.data)
		if err != nil {
			unreadable = append(unreadable, b.field+": "+err.Error())
		}
		for _, c := range found {
			from, to := metav1.NewTime(c.NotBefore), metav1.NewTime(c.NotAfter)
			out = append(out, mcfgv1.ControllerCertificate{
				Subject: c.Subject.String(), Signer: c.Issuer.String(), NotBefore: &from, NotAfter: &to, BundleFile: b.file,
			})
		}
	}
	return out, unreadable
}

// parseBundle reads the certificates of a bundle. Its errors show nothing of it.
func parseBundle(data []byte) (out []*x509.Certificate, err error) {
	for n := 1; ; n++ {
		block, rest := pem.Decode(data)
		if block == nil {
			if len(bytes.TrimSpace(data)) > 0 {
				err = fmt.Errorf("after %d certificates there is something that is no PEM", len(out))
			}
			return out, err
		}
		data = rest
		if block.Type != "CERTIFICATE" {
			return out, fmt.Errorf("block %d is no certificate", n)
		}
		c, wrong := x509.ParseCertificate(block.Bytes)
		if wrong != nil {
			return out, fmt.Errorf("block %d can't be read as a certificate", n)
		}
		out = append(out, c)
	}
}
