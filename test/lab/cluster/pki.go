// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// pair is a certificate and its key, both as PEM.
type pair struct{ cert, key []byte }

// authority is the cluster's certificate authority.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

// lifetime is how long the authority's certificate, and every certificate of the authority, is valid.
const lifetime = 7 * 24 * time.Hour

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "cluster lab"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(lifetime),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	return &authority{cert: cert, key: key, pem: encode("CERTIFICATE", der)}, nil
}

// client returns the certificate of a user with that name and these groups.
func (a *authority) client(name string, groups ...string) (pair, error) {
	return a.issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: name, Organization: groups}, //nolint:misspell // the standard library spells it
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

func (a *authority) server() (pair, error) {
	return a.issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: "kube-apiserver"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:    []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv4(10, 0, 0, 1)},
	})
}

func (a *authority) issue(cert *x509.Certificate) (pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pair{}, err
	}
	cert.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return pair{}, err
	}
	cert.NotBefore, cert.NotAfter, cert.KeyUsage = a.cert.NotBefore, a.cert.NotAfter, x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, cert, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return pair{}, err
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return pair{}, err
	}
	return pair{encode("CERTIFICATE", der), encode("EC PRIVATE KEY", private)}, nil
}

// write writes to dir what the control plane reads: the authority with its key, the API server's certificate, and the
// key that signs the tokens of service accounts.
func (a *authority) write(dir string) error {
	server, err := a.server()
	if err != nil {
		return err
	}
	kubelet, err := a.client("kube-apiserver", "system:masters")
	if err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	signing, err := x509.MarshalECPrivateKey(a.key)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return err
	}
	var errs []error
	for name, data := range map[string][]byte{
		"ca.crt": a.pem, "ca.key": encode("EC PRIVATE KEY", signing), "server.crt": server.cert, "server.key": server.key,
		"kubelet.crt": kubelet.cert, "kubelet.key": kubelet.key,
		"sa.key": encode("EC PRIVATE KEY", private), "sa.pub": encode("PUBLIC KEY", public),
	} {
		errs = append(errs, os.WriteFile(filepath.Join(dir, name), data, 0o600))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("writing the cluster's keys: %w", err)
	}
	return nil
}

// SelfSigned makes a server's certificate for 127.0.0.1, which is its own authority, and its key. Both are in PEM.
func SelfSigned(t testing.TB) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "machine-config-server"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return encode("CERTIFICATE", der), encode("PRIVATE KEY", raw)
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
