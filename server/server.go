// SPDX-License-Identifier: Apache-2.0

// Package server gives new machines the Ignition config of their pool: its proven configuration, and with it what the
// agent needs to take the machine over. Paths, negotiation and what is appended are those of OpenShift's
// machine-config-server; but not everybody is told secrets. A request changes nothing.
package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/go-logr/logr"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/noderefit/noderefit/machineconfig"
)

// UnknownPoolError is the error of a pool that there is not.
type UnknownPoolError struct{ Pool string }

func (e *UnknownPoolError) Error() string {
	return fmt.Sprintf("there is no MachineConfigPool %q", e.Pool)
}

// Source is where pools and configurations are. What it returns is not changed.
type Source interface {
	// Pool returns an UnknownPoolError where there is no such pool.
	Pool(ctx context.Context, name string) (*mcfgv1.MachineConfigPool, error)
	// Config returns a rendered configuration, of a pool, by name.
	Config(ctx context.Context, pool *mcfgv1.MachineConfigPool, name string) (*mcfgv1.MachineConfig, error)
}

// Options are what a Server does its work with.
type Options struct {
	Source Source
	Gate   Gate
	Log    logr.Logger
	// BootstrapKubeconfig is a file that new machines get, empty: none; at BootstrapKubeconfigPath, empty: where
	// OpenShift has it.
	BootstrapKubeconfig, BootstrapKubeconfigPath string
	// DaemonImage is the image that new machines take the agent from; empty: their OS image has it.
	DaemonImage string
}

// atOnce is how many answers are made at a time: each holds a configuration in memory some times over.
const atOnce = 16

// Server is a handler of /config/<pool> and /healthz.
type Server struct {
	o        Options
	slots    chan struct{}
	reviews  chan struct{}
	requests *prometheus.CounterVec
}

// New returns a server.
func New(o Options) *Server {
	return &Server{
		o: o, slots: make(chan struct{}, atOnce), reviews: make(chan struct{}, reviewsAtOnce),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "noderefit_server_requests_total",
			Help: "Requests for the configuration of a pool, by pool (empty: one that there is not, or refused) and status.",
		}, []string{"pool", "code"}),
	}
}

// Describe is prometheus'.
func (s *Server) Describe(out chan<- *prometheus.Desc) { s.requests.Describe(out) }

// Collect is prometheus'.
func (s *Server) Collect(out chan<- prometheus.Metric) { s.requests.Collect(out) }

// ServeHTTP answers.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	pool, config := strings.CutPrefix(r.URL.Path, "/config/")
	if config = config && pool != "" && !strings.Contains(pool, "/"); !config && r.URL.Path != "/healthz" {
		http.NotFound(w, r)
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "only GET and HEAD are answered", http.StatusMethodNotAllowed)
		return
	}
	if !config {
		w.Header().Set("Content-Length", "0")
		return
	}
	body, name, who, err := s.config(r, pool)
	code := http.StatusOK
	if err != nil {
		code = status(err)
	}
	label := pool
	if name == "" {
		label = ""
	}
	s.requests.WithLabelValues(label, strconv.Itoa(code)).Inc()
	log := s.o.Log.WithValues("pool", pool, "config", name, "client", r.RemoteAddr, "agent", r.UserAgent(), "status", code,
		"authenticated", who == shown)
	if err != nil {
		log.Info("answering", "error", err.Error())
		if code == http.StatusUnauthorized {
			w.Header().Set("WWW-Authenticate", `Bearer realm="machine-config-server"`)
		}
		if code == http.StatusServiceUnavailable {
			w.Header().Set("Retry-After", "10")
		}
		http.Error(w, "error: "+oneLine(publicly(err)), code)
		return
	}
	log.Info("answering")
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.Header().Set("Cache-Control", "no-store")
	if r.Method == http.MethodGet {
		//nolint:gosec // JSON of the cluster's own, and no page
		_, _ = w.Write(body) // a client that went away
	}
}

// config makes the answer; with it comes the name of the configuration as soon as that is known, and who asks.
func (s *Server) config(r *http.Request, pool string) (body []byte, name string, who asker, err error) {
	if who, err = s.o.Gate.admit(r, s.reviews); err != nil {
		return nil, "", who, err
	}
	want, err := negotiate(r.Header.Get("Accept"))
	if err != nil {
		return nil, "", who, refusal{http.StatusBadRequest, err.Error()}
	}
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-r.Context().Done():
		return nil, "", who, unavailable{r.Context().Err()}
	}
	p, err := s.o.Source.Pool(r.Context(), pool)
	if err != nil {
		return nil, "", who, err
	}
	if name, err = choose(p); err != nil {
		return nil, "", who, err
	}
	mc, err := s.o.Source.Config(r.Context(), p, name)
	if err != nil {
		return nil, name, who, err
	}
	body, err = s.make(mc, want, who != stranger)
	return body, name, who, err
}

func (s *Server) make(mc *mcfgv1.MachineConfig, want wish, known bool) ([]byte, error) {
	served, err := machineconfig.Serve(mc)
	if err != nil {
		return nil, err
	}
	if !known {
		if secrets := served.Secrets(); len(secrets) > 0 {
			return nil, refusal{http.StatusUnauthorized, closed(mc.Name, secrets) + "; " + s.o.Gate.how()}
		}
	}
	extra, err := s.extra(mc, served.Arguments(want.version), known)
	if err != nil {
		return nil, err
	}
	return served.Document(extra, want.version, want.newest)
}

// closed says why a configuration is not for everybody.
func closed(name string, secrets []string) string {
	text := name + " holds a secret, " + secrets[0]
	if more := len(secrets) - 1; more > 0 {
		text += fmt.Sprintf(" (and %d more)", more)
	}
	return text
}

// status is what Ignition is told: it tries again on 5xx, and gives up, so that somebody looks, on the others.
func status(err error) int {
	var refused refusal
	switch {
	case errors.As(err, &refused):
		return refused.code
	case errors.As(err, new(*UnknownPoolError)):
		return http.StatusNotFound
	case errors.As(err, new(*machineconfig.InexpressibleError)):
		return http.StatusNotAcceptable
	case errors.As(err, new(unavailable)), errors.As(err, new(behind)):
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

// publicly is what a client is told of an error: all, unless it is about what is behind the server.
func publicly(err error) string {
	if errors.As(err, new(behind)) {
		return "not now; the server's log says why"
	}
	return err.Error()
}

func oneLine(s string) string {
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}
