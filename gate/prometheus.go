// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strings"
	"time"

	prometheus "github.com/prometheus/client_golang/api"
	prometheusv1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/rollout"
)

// Keys of the Secret of a Prometheus gate.
const (
	tokenKey = "token"
	caKey    = "ca.crt"
)

func (a *Asker) prometheus(ctx context.Context, ask rollout.Ask, g *api.PrometheusGate) (string, error) {
	transport, err := a.transport(ctx, g)
	if err != nil {
		return "", err
	}
	defer transport.base.CloseIdleConnections()
	server, err := prometheus.NewClient(prometheus.Config{Address: g.URL, RoundTripper: transport})
	if err != nil {
		return "", fmt.Errorf("prometheus.url: %w", err)
	}
	query := forNode(g.Query, ask)
	value, _, err := prometheusv1.NewAPI(server).Query(ctx, query, a.now(), prometheusv1.WithTimeout(patience))
	if err != nil {
		return "", fmt.Errorf("asking %s: %w", g.URL, err)
	}
	no, err := sampled(value)
	if no != "" {
		no += ": " + query
	}
	return no, err
}

// sampled returns why the result of a query is not a yes: it has no sample, or a sample that is 0 or not a number.
func sampled(value model.Value) (string, error) {
	switch v := value.(type) {
	case *model.Scalar:
		if bad(v.Value) {
			return "the query gives " + v.Value.String(), nil
		}
		return "", nil
	case model.Vector:
		if len(v) == 0 {
			return "the query gives nothing", nil
		}
		for _, s := range v {
			if bad(s.Value) {
				return fmt.Sprintf("the query gives %s for %s", s.Value, s.Metric), nil
			}
		}
		return "", nil
	}
	return "", fmt.Errorf("the query gives a %s: an instant vector or a scalar is needed", value.Type())
}

func bad(v model.SampleValue) bool { return v == 0 || math.IsNaN(float64(v)) }

// mostAnswer is the largest size of an answer, in bytes.
const mostAnswer = 8 << 20

// bearer sends a token only to its own server. A redirect may name other servers.
type bearer struct {
	base         *http.Transport
	scheme, host string
	token        string
}

// RoundTrip implements http.RoundTripper.
func (b *bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	if b.token != "" && r.URL.Scheme == b.scheme && r.URL.Host == b.host {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+b.token)
	}
	answer, err := b.base.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	answer.Body = http.MaxBytesReader(nil, answer.Body, mostAnswer)
	return answer, nil
}

// transport returns the transport for a server, with the Secret of the gate if it has one.
func (a *Asker) transport(ctx context.Context, g *api.PrometheusGate) (*bearer, error) {
	server, err := url.Parse(g.URL)
	if err != nil {
		return nil, fmt.Errorf("prometheus.url: %w", err)
	}
	secret := g.SecretName
	b := &bearer{scheme: server.Scheme, host: server.Host, base: &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSHandshakeTimeout: patience, ResponseHeaderTimeout: patience,
		IdleConnTimeout: time.Second, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12},
	}}
	if secret == "" {
		return b, nil
	}
	var s corev1.Secret
	if err := a.client.Get(ctx, client.ObjectKey{Namespace: api.Namespace, Name: secret}, &s); err != nil {
		return nil, fmt.Errorf("reading Secret %s/%s: %w", api.Namespace, secret, err)
	}
	b.token = strings.TrimSpace(string(s.Data[tokenKey]))
	if pem := s.Data[caKey]; len(pem) > 0 {
		b.base.TLSClientConfig.RootCAs = x509.NewCertPool()
		if !b.base.TLSClientConfig.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("reading Secret %s/%s: %s has no certificate", api.Namespace, secret, caKey)
		}
	} else if b.token == "" {
		return nil, fmt.Errorf("reading Secret %s/%s: it has neither %s nor %s", api.Namespace, secret, tokenKey, caKey)
	}
	return b, nil
}
