// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"crypto/x509"
	"errors"
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

// Pool reads the file anew. While the file can't be read, Pool returns the authorities that the file last had: a server
// with a broken file would serve nobody.
func (a *Authorities) Pool() *x509.CertPool {
	pool, err := readPool(a.file)
	a.mu.Lock()
	defer a.mu.Unlock()
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
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading the authorities of clients, which --client-ca names: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, errors.New("reading the authorities of clients, which --client-ca names: there is no certificate in " +
			file)
	}
	return pool, nil
}
