// SPDX-License-Identifier: Apache-2.0

package machineconfig

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"slices"
	"strings"
	"testing"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
)

// authority is the certificate of a CA of that name, in PEM.
func authority(t *testing.T, name string) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func TestDeliveriesAreWhatAHostIsToHave(t *testing.T) {
	t.Parallel()
	type spec = mcfgv1.ControllerConfigSpec
	a, b := authority(t, "a"), authority(t, "b")
	host := func(name string) string { return registryCAFolder + "/" + name + "/ca.crt" }
	registry := func(name string, data []byte) []mcfgv1.ImageRegistryBundle {
		return []mcfgv1.ImageRegistryBundle{{File: name, Data: data}}
	}
	had := []Delivery{{KubeletCAPath, 0o644, a}, {cloudCAPath, 0o644, a}, {TrustBundlePath, 0o644, a},
		{pullSecretPath, 0o600, []byte("{}")}, {host("r:5000"), 0o644, a}}
	for name, tt := range map[string]struct {
		spec   spec
		before []Delivery
		want   map[string]string
		wrong  string // what the one problem says; empty: there is none
	}{
		"nothing": {},
		"all": {spec{KubeAPIServerServingCAData: a, CloudProviderCAData: b, AdditionalTrustBundle: slices.Concat(a, b),
			InternalRegistryPullSecret: []byte(`{"a":1}`), ImageRegistryBundleData: registry("r..5000", a)}, nil,
			map[string]string{KubeletCAPath: string(a), cloudCAPath: string(b), TrustBundlePath: string(a) + string(b),
				pullSecretPath: `{"a":1}`, host("r:5000"): string(a)}, ""},
		"the root CA goes nowhere": {spec{RootCAData: a}, nil, nil, ""},
		"people's own CA of a registry counts": {spec{ImageRegistryBundleData: registry("r", a),
			ImageRegistryBundleUserData: registry("r", b)}, nil, map[string]string{host("r"): string(b)}, ""},
		"an empty line is nothing": {spec{KubeAPIServerServingCAData: []byte("\n"), InternalRegistryPullSecret: []byte("\n")},
			nil, nil, ""},
		"what only is not said any more stays, what is not trusted any more goes": {spec{}, had, map[string]string{
			KubeletCAPath: string(a), cloudCAPath: string(a), pullSecretPath: "{}"}, ""},
		"what is wrong stays as it was": {spec{KubeAPIServerServingCAData: []byte("x"), AdditionalTrustBundle: b}, had,
			map[string]string{KubeletCAPath: string(a), cloudCAPath: string(a), TrustBundlePath: string(b),
				pullSecretPath: "{}"}, "spec.kubeAPIServerServingCAData: after 0 certificates"},
		"a wrong CA of a registry stays": {spec{ImageRegistryBundleUserData: registry("r..5000", []byte("x"))}, had[4:],
			map[string]string{host("r:5000"): string(a)}, "spec.imageRegistryBundleUserData[0]: after 0 certificates there is " +
				"something that is no PEM (registry r..5000)"},
		"a key is no certificate": {spec{CloudProviderCAData: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY"})}, nil, nil,
			"spec.cloudProviderCAData: block 1 is no certificate"},
		"a list is no pull secret": {spec{InternalRegistryPullSecret: []byte("[]")}, nil, nil, "spec.internalRegistryPullSecret"},
		"a host that is none": {spec{ImageRegistryBundleData: registry("../x", a)}, nil, nil,
			`spec.imageRegistryBundleData[0].file: "../x"`},
		"a folder that is none": {spec{ImageRegistryBundleData: registry("..", a)}, nil, nil,
			`spec.imageRegistryBundleData[0].file: ".."`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, problems := Deliveries(&tt.spec, tt.before)
			for _, d := range got {
				if tt.want[d.Path] != string(d.Data) || d.Mode != 0o644 && d.Path != pullSecretPath {
					t.Errorf("%s, %o: %q", d.Path, d.Mode, d.Data)
				}
			}
			if len(got) != len(tt.want) {
				t.Errorf("%d files, should be %d", len(got), len(tt.want))
			}
			if (len(problems) > 0) != (tt.wrong != "") || tt.wrong != "" && !strings.HasPrefix(problems[0].Error(), tt.wrong) {
				t.Errorf("problems: %v", problems)
			}
		})
	}
}
