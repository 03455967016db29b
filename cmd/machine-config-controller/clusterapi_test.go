// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"strings"
	"testing"
)

// A certificate of the authority is not enough: it may have signed others.
func TestAClientIsKnownByItsName(t *testing.T) {
	o := &clusterAPIOptions{clients: []string{"capi", "kcp.example.com"}}
	demanded := o.demand(&tls.Config{MinVersion: tls.VersionTLS12}, x509.NewCertPool())
	if demanded.ClientAuth != tls.RequireAndVerifyClientCert || demanded.ClientCAs == nil {
		t.Fatalf("%+v", demanded)
	}
	for name, test := range map[string]struct {
		cert x509.Certificate
		good bool
	}{
		"common name":  {x509.Certificate{Subject: pkix.Name{CommonName: "capi"}}, true},
		"DNS name":     {x509.Certificate{DNSNames: []string{"a", "kcp.example.com"}}, true},
		"another name": {x509.Certificate{Subject: pkix.Name{CommonName: "capi2"}, DNSNames: []string{"a.capi"}}, false},
		"no name":      {x509.Certificate{}, false},
	} {
		shown := tls.ConnectionState{PeerCertificates: []*x509.Certificate{&test.cert}}
		if err := demanded.VerifyConnection(shown); (err == nil) != test.good {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTheExtensionHasToKnowItsMachinesAndItsClients(t *testing.T) {
	all := []string{"--cluster=c", "--namespace=n", "--client-ca=/no/such/file", "--client-name=capi"}
	for _, without := range all {
		cmd := clusterAPI()
		flag, _, _ := strings.Cut(without, "=")
		for _, arg := range all {
			if arg != without {
				if err := cmd.ParseFlags([]string{arg}); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := cmd.Args(cmd, nil); err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("without %s: %v", flag, err)
		}
	}
}
