// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"

	"github.com/noderefit/noderefit/cli"
)

// tlsOptions are the TLS flags of the listener, with the names of OpenShift's server.
type tlsOptions struct {
	cert, key, clientCA string
	minVersion          string
	suites              []string
}

var versions = map[string]uint16{"VersionTLS12": tls.VersionTLS12, "VersionTLS13": tls.VersionTLS13}

func (o *tlsOptions) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.cert, "cert", "/etc/ssl/mcs/tls.crt",
		"file of the server's certificate, with its chain; read again when it changes")
	f.StringVar(&o.key, "key", "/etc/ssl/mcs/tls.key", "file of its key")
	f.StringVar(&o.clientCA, "client-ca", "",
		"file of certificates; whose client certificate one of them has signed may read")
	f.StringVar(&o.minVersion, "tls-min-version", "VersionTLS12", "oldest version of TLS: VersionTLS12 or VersionTLS13")
	f.StringSliceVar(&o.suites, "tls-cipher-suites", nil, "names of the cipher suites of TLS 1.2; empty: Go's own choice")
}

func (o *tlsOptions) check() error {
	if versions[o.minVersion] == 0 {
		return fmt.Errorf("--tls-min-version: %q is not one of %s", o.minVersion,
			strings.Join(slices.Sorted(maps.Keys(versions)), ", "))
	}
	_, err := o.ids()
	return err
}

// ids returns the numbers of the cipher suites. Suites with known weaknesses are refused.
func (o *tlsOptions) ids() ([]uint16, error) {
	var ids []uint16
	for _, name := range o.suites {
		i := slices.IndexFunc(tls.CipherSuites(), func(s *tls.CipherSuite) bool { return s.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("--tls-cipher-suites: %q is not known, or not secure", name)
		}
		ids = append(ids, tls.CipherSuites()[i].ID)
	}
	return ids, nil
}

// config returns a configuration that follows the files from then on, and registers when the certificate ends.
func (o *tlsOptions) config(ctx context.Context, group *errgroup.Group, metrics prometheus.Registerer, log logr.Logger,
) (*tls.Config, error) {
	ids, err := o.ids()
	if err != nil {
		return nil, err
	}
	watcher, err := certwatcher.New(o.cert, o.key)
	if err != nil {
		return nil, fmt.Errorf("reading the certificate %s and its key, which --cert and --key name: %w", o.cert, err)
	}
	group.Go(func() error { return watcher.Start(ctx) })
	err = metrics.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "noderefit_server_certificate_not_after_seconds",
		Help: "When the certificate that new machines are shown ends, or the first one of its chain: seconds since 1970.",
	}, func() float64 {
		shown, err := watcher.GetCertificate(nil)
		if err != nil {
			return 0
		}
		return ends(shown)
	}))
	if err != nil {
		return nil, err
	}
	c := &tls.Config{
		GetCertificate: watcher.GetCertificate,
		MinVersion:     versions[o.minVersion],
		CipherSuites:   ids,
		NextProtos:     []string{"http/1.1"}, // as OpenShift's server: a new machine makes one request
	}
	if o.clientCA == "" {
		return c, nil
	}
	authorities, err := cli.NewAuthorities(o.clientCA, func(err error) {
		log.Error(err, "clients are verified by the authorities that the file had")
	})
	if err != nil {
		return nil, err
	}
	c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		one := c.Clone()
		one.GetConfigForClient = nil
		one.ClientAuth, one.ClientCAs = tls.VerifyClientCertIfGiven, authorities.Pool()
		// A session from before a change of the authorities would keep its verification by the old ones.
		one.SessionTicketsDisabled = true
		return one, nil
	}
	return c, nil
}

// ends returns when the first certificate of a chain ends, in seconds since 1970.
func ends(chain *tls.Certificate) float64 {
	var first time.Time
	for _, der := range chain.Certificate {
		if c, err := x509.ParseCertificate(der); err == nil && (first.IsZero() || c.NotAfter.Before(first)) {
			first = c.NotAfter
		}
	}
	return float64(first.Unix())
}
