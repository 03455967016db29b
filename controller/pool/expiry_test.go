// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
)

// A pool says when the certificates end that its nodes know the API server by, and says it anew when they are renewed.
func TestAPoolSaysWhenCertificatesEnd(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	authority := func(name string, end time.Time) []byte {
		c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: end}
		der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	}
	end := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	cc := &mcfgv1.ControllerConfig{ObjectMeta: metav1.ObjectMeta{Name: api.ControllerConfig}}
	cc.Spec.RootCAData = authority("not of the kubelet", end)
	cc.Spec.KubeAPIServerServingCAData = append(authority("old", end), authority("new", end.Add(time.Hour))...)
	b := newBehind(t, "a")
	if err := b.Create(t.Context(), cc); err != nil {
		t.Fatal(err)
	}
	r := newReconciler(b)
	r.certified, r.client = true, b.Client // one that is not behind
	says := func() []mcfgv1.CertExpiry {
		t.Helper()
		reconcileNow(t, r)
		var pools mcfgv1.MachineConfigPoolList
		if err := r.client.List(t.Context(), &pools); err != nil {
			t.Fatal(err)
		}
		return pools.Items[0].Status.CertExpirys
	}
	got := says()
	if len(got) != 2 || got[0].Bundle != "KubeAPIServerServingCAData" || got[0].Subject != "CN=old" ||
		!got[0].Expiry.Time.Equal(end) || got[1].Subject != "CN=new" {
		t.Errorf("%+v", got)
	}
	cc.Spec.KubeAPIServerServingCAData = []byte("garbage")
	if err := b.Update(t.Context(), cc); err != nil {
		t.Fatal(err)
	}
	if got := says(); len(got) != 0 {
		t.Errorf("of what can't be read: %+v", got)
	}
}
