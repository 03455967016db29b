// SPDX-License-Identifier: Apache-2.0

package cli_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/noderefit/noderefit/cli"
)

func TestABrokenFileLeavesTheAuthoritiesThatItHad(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "ca.crt")
	put := func(text []byte) {
		t.Helper()
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put([]byte("none"))
	if _, err := cli.NewAuthorities(file, nil); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a file without a certificate: %v", err)
	}
	one, two := authority(t), authority(t)
	both := slices.Concat(one, two)
	put(both)
	var said []string
	a, err := cli.NewAuthorities(file, func(err error) { said = append(said, err.Error()) })
	if err != nil {
		t.Fatal(err)
	}
	first := a.Pool()
	for _, text := range [][]byte{
		nil,
		both[:len(both)-10],
		slices.Concat(one[:len(one)/2], two),
		slices.Concat(one, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("damaged")})),
	} {
		said = nil
		put(text)
		for range 2 {
			if !a.Pool().Equal(first) {
				t.Errorf("%q changes the authorities", text)
			}
		}
		if len(said) != 1 || !strings.Contains(said[0], file) {
			t.Errorf("%q: %q was said", text, said)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if !a.Pool().Equal(first) || len(said) != 2 || !strings.Contains(said[1], "no such file") {
		t.Errorf("without the file: %q", said)
	}
	put(one)
	if a.Pool().Equal(first) {
		t.Error("the next authorities are not read")
	}
	said = nil
	put(nil)
	if a.Pool(); len(said) != 1 {
		t.Errorf("a file that is broken again: %q", said)
	}
}

func authority(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "test"}, IsCA: true}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
