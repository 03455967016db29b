// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	"k8s.io/client-go/util/cert"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"

	"github.com/noderefit/noderefit/page"
	"github.com/noderefit/noderefit/rollout"
)

const (
	// nowhere is the address of a server that is off, as everywhere in controller-runtime.
	nowhere = "0"
	// The time limits for reading a request of a page, for answering it, and for ending the process. Requests are only
	// headers.
	pageReads, pageAnswers, pageEnds = 10 * time.Second, time.Minute, 2 * time.Second
	pageHeaders                      = 64 << 10
)

// pageOptions are the address and the certificate of the web page, and the cluster's name on it.
type pageOptions struct{ address, cert, key, cluster string }

func (o *pageOptions) flags(f *pflag.FlagSet) {
	f.StringVar(&o.address, "page-bind-address", nowhere,
		"address to serve the web page on, over HTTPS and with a check of rights; 0: no web page")
	f.StringVar(&o.cert, "page-cert", "",
		"file of the web page's certificate, with its chain; read again when it changes. Without the file the controller "+
			"makes a certificate that no browser trusts, and the address has to be a loopback address")
	f.StringVar(&o.key, "page-key", "", "file of its key")
	f.StringVar(&o.cluster, "page-cluster-name", "",
		"name of the cluster in the titles of the web page (default the host of the API server)")
}

func (o *pageOptions) check() error {
	if (o.cert == "") != (o.key == "") {
		return errors.New("--page-cert and --page-key: set both, or neither")
	}
	if o.address == nowhere || o.cert != "" {
		return nil
	}
	host, _, err := net.SplitHostPort(o.address)
	if err != nil {
		return fmt.Errorf("--page-bind-address: %w", err)
	}
	if ip := net.ParseIP(host); host != "localhost" && !ip.IsLoopback() {
		return fmt.Errorf("--page-bind-address: %s is reached from elsewhere, and browsers send tokens there: it takes a "+
			"certificate, by --page-cert and --page-key", o.address)
	}
	return nil
}

// add makes a manager serve the page, whether it leads or not: a leader is needed only for writes.
func (o *pageOptions) add(mgr ctrl.Manager, node string) error {
	if o.address == nowhere {
		return nil
	}
	own, err := cache.New(mgr.GetConfig(), cache.Options{
		HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(), ByObject: page.CacheOptions(),
	})
	if err != nil {
		return fmt.Errorf("serving the web page: %w", err)
	}
	source := page.Source{Controllers: mgr.GetClient(), Own: own, Self: node, Now: rollout.Now}
	pages := page.New(page.Options{
		Read: source.Read, Now: rollout.Now, Version: version, Cluster: cmp.Or(o.cluster, server(mgr.GetConfig().Host)),
	})
	asks := *mgr.GetHTTPClient()
	line := &page.Line{Next: asks.Transport}
	asks.Transport = line
	filter, err := filters.WithAuthenticationAndAuthorization(mgr.GetConfig(), &asks)
	if err != nil {
		return fmt.Errorf("serving the web page: %w", err)
	}
	log := mgr.GetLogger().WithName("page")
	guarded, err := page.Guard(pages, line, func(h http.Handler) (http.Handler, error) { return filter(log, h) })
	if err != nil {
		return err
	}
	listener, err := o.listen(mgr)
	if err != nil {
		return fmt.Errorf("serving the web page: %w", err)
	}
	// Objects that are watched for the page alone have a cache of their own. So the controllers' caches do not wait for
	// them.
	return errors.Join(mgr.Add(own), mgr.Add(&manager.Server{
		Name: "page", Listener: listener, ShutdownTimeout: new(pageEnds), Server: &http.Server{
			Handler: guarded, ReadTimeout: pageReads, WriteTimeout: pageAnswers, MaxHeaderBytes: pageHeaders,
			ErrorLog: slog.NewLogLogger(logr.ToSlogHandler(log), slog.LevelDebug),
		},
	}))
}

// server returns the host of an API server's address.
func server(address string) string {
	if u, err := url.Parse(address); err == nil && u.Host != "" {
		return u.Host
	}
	return address
}

func (o *pageOptions) listen(mgr ctrl.Manager) (net.Listener, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
	if o.cert != "" {
		watcher, err := certwatcher.New(o.cert, o.key)
		if err != nil {
			return nil, fmt.Errorf("reading the certificate %s and its key: %w", o.cert, err)
		}
		config.GetCertificate = watcher.GetCertificate
		if err := mgr.Add(watcher); err != nil {
			return nil, err
		}
	} else {
		chain, key, err := cert.GenerateSelfSignedCertKey("localhost", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
		if err != nil {
			return nil, fmt.Errorf("making a certificate: %w", err)
		}
		pair, err := tls.X509KeyPair(chain, key)
		if err != nil {
			return nil, fmt.Errorf("making a certificate: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return tls.Listen("tcp", o.address, config)
}
