// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"sync"
)

// Authorities are the certificates of a file that changes without notice. A server verifies its clients by them.
type Authorities struct {
	file string
	say  func(err error)

	mu   sync.Mutex
	last *x509.CertPool
	said string
}

// NewAuthorities reads the file, which has certificates as PEM. say is told why a later state of the file can't be
// read, once for each reason.
func NewAuthorities(file string, say func(err error)) (*Authorities, error) {
	pool, err := readPool(file)
	return &Authorities{file: file, say: say, last: pool}, err
}

// Pool reads the file anew. While the file can't be read whole, Pool returns the authorities that the file last had. A
// server without authorities would refuse all clients with a certificate, and one with a part of them some clients.
func (a *Authorities) Pool() *x509.CertPool {
	a.mu.Lock()
	defer a.mu.Unlock()
	pool, err := readPool(a.file)
	if err == nil {
		a.last, a.said = pool, ""
		return pool
	}
	if a.said != err.Error() {
		a.said = err.Error()
		a.say(err)
	}
	return a.last
}

func readPool(file string) (*x509.CertPool, error) {
	failed := func(err error) (*x509.CertPool, error) {
		return nil, fmt.Errorf("reading the authorities of clients, which --client-ca names: %w", err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return failed(err)
	}
	pool, blocks, certificates := x509.NewCertPool(), 0, 0
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		blocks++
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return failed(fmt.Errorf("%s: block %d: %w", file, blocks, err))
		}
		pool.AddCert(c)
		certificates++
	}
	switch begun := bytes.Count(text, []byte("-----BEGIN ")); {
	case begun != blocks:
		return failed(fmt.Errorf("%s: %d of %d blocks are cut or damaged", file, begun-blocks, begun))
	case certificates == 0:
		return failed(fmt.Errorf("%s has no certificate", file))
	}
	return pool, nil
}
