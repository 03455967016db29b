// SPDX-License-Identifier: Apache-2.0

// Package server gives new machines the Ignition config of their pool. That is the pool's proven configuration, with
// what the agent needs to take the machine over. Paths, negotiation and additions are those of OpenShift's
// machine-config-server, except that not every client is told secrets. A request changes nothing.
package server

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/message"
)

// unknownPoolError is the error about a pool that does not exist.
type unknownPoolError struct{ Pool string }

func (e *unknownPoolError) Error() string {
	return fmt.Sprintf("there is no MachineConfigPool %q", e.Pool)
}

// Source has the pools and configurations. What a Source returns is not changed.
type Source interface {
	// Pool returns a pool, and an unknownPoolError if the pool does not exist.
	Pool(ctx context.Context, name string) (*mcfgv1.MachineConfigPool, error)
	// Config returns a rendered configuration of a pool, by name, and its version. Another content has another version.
	Config(ctx context.Context, pool *mcfgv1.MachineConfigPool, name string) (*mcfgv1.MachineConfig, string, error)
	// Version returns the version of what Config returns now, at less cost than Config.
	Version(ctx context.Context, pool *mcfgv1.MachineConfigPool, name string) (string, error)
}

// Options are the options of a Server.
type Options struct {
	Source Source
	Gate   Gate
	Log    logr.Logger
	// BootstrapKubeconfig is a file that new machines get; empty for no file. BootstrapKubeconfigPath is its path on the
	// machine; empty for OpenShift's path.
	BootstrapKubeconfig, BootstrapKubeconfigPath string
	// DaemonImage is the image from which new machines take the agent; empty if their OS image has the agent.
	DaemonImage string
}

// Server is a handler of /config/<pool> and /healthz. It makes one answer for all clients with the same recipe.
type Server struct {
	o        Options
	answers  *answers
	asking   works[string]
	making   works[struct{}]
	reviews  chan struct{}
	requests *prometheus.CounterVec
	made     prometheus.Counter
	held     prometheus.GaugeFunc
}

// New returns a server.
func New(o Options) *Server {
	s := &Server{
		o: o, answers: newAnswers(answersLimit), reviews: make(chan struct{}, reviewsAtOnce),
		asking: works[string]{slots: make(chan struct{}, asksAtOnce), fresh: true},
		making: works[struct{}]{slots: make(chan struct{}, makesAtOnce)},
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "noderefit_server_requests_total",
			Help: "Requests for the configuration of a pool, by pool (empty: one that there is not, or refused) and status.",
		}, []string{"pool", "code"}),
		made: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "noderefit_server_answers_made_total",
			Help: "Answers that were made; other requests got one that was there.",
		}),
	}
	s.held = prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "noderefit_server_answers_bytes",
		Help: "Bytes of answers in memory, those that clients still read among them.",
	}, func() float64 { return float64(s.answers.held()) })
	return s
}

func (s *Server) metrics() []prometheus.Collector {
	return []prometheus.Collector{s.requests, s.made, s.held}
}

// Describe implements prometheus.Collector.
func (s *Server) Describe(out chan<- *prometheus.Desc) {
	for _, c := range s.metrics() {
		c.Describe(out)
	}
}

// Collect implements prometheus.Collector.
func (s *Server) Collect(out chan<- prometheus.Metric) {
	for _, c := range s.metrics() {
		c.Collect(out)
	}
}

// ServeHTTP implements http.Handler.
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
	by := &reader{cut: func() { _ = http.NewResponseController(w).SetWriteDeadline(time.Now()) }}
	made := work(r.Context())
	one, name, who, err := s.config(r, pool, by)
	made()
	if one != nil {
		defer s.answers.leave(one, by)
		err = one.err
	}
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
		"authenticated", who.kind == shown)
	if err != nil {
		log.Info("answering", "error", err.Error())
		if code == http.StatusUnauthorized {
			w.Header().Set("WWW-Authenticate", `Bearer realm="machine-config-server"`)
		}
		if code == http.StatusServiceUnavailable {
			w.Header().Set("Retry-After", "10")
		}
		http.Error(w, "error: "+message.OneLine(publicly(err)), code)
		return
	}
	log.Info("answering")
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(one.body)))
	w.Header().Set("Cache-Control", "no-store")
	if r.Method == http.MethodGet {
		_, _ = w.Write(one.body) // fails only if the client went away
	}
}

// config finds or makes the answer, and holds it for a reader. It also returns the client, and the name of the
// configuration as soon as the name is known. Each request asks anew for what the answer depends on.
func (s *Server) config(r *http.Request, pool string, by *reader) (one *answer, name string, who visitor, err error) {
	ctx := r.Context()
	if who, err = s.o.Gate.admit(r, s.reviews); err != nil {
		return nil, "", who, err
	}
	if err := who.may(pool); err != nil {
		return nil, "", who, err
	}
	want, err := negotiate(r.Header.Get("Accept"))
	if err != nil {
		return nil, "", who, refusal{http.StatusBadRequest, err.Error()}
	}
	p, err := s.o.Source.Pool(ctx, pool)
	if err != nil {
		return nil, "", who, err
	}
	if name, err = choose(p); err != nil {
		return nil, "", who, err
	}
	of := recipe{config: name, version: want.version, newest: want.newest, known: who.kind != stranger}
	join, err := s.join(who)
	if err != nil {
		return nil, name, who, err
	}
	of.join = sha256.Sum256(join)
	// An answer that was just made may have an old version by now, or may have been dropped for other answers.
	for range 3 {
		of.content, err = s.asking.do(ctx, pool+"/"+name, func(ctx context.Context) (string, error) {
			return s.o.Source.Version(ctx, p, name)
		})
		if err != nil {
			return nil, name, who, err
		}
		if one := s.answers.take(of, by); one != nil {
			return one, name, who, nil
		}
		if err := s.make(ctx, p, of, join); err != nil {
			return nil, name, who, err
		}
		if one := s.answers.take(of, by); one != nil {
			return one, name, who, nil
		}
	}
	return nil, name, who, unavailable{fmt.Errorf("%s: the configuration changes, or others ask for too much", name)}
}

// make makes the answer be found, unless the configuration has changed since. The error of make is temporary. A lasting
// error becomes part of the answer.
func (s *Server) make(ctx context.Context, p *mcfgv1.MachineConfigPool, of recipe, join []byte) error {
	_, err := s.making.do(ctx, fmt.Sprintf("%+v", of), func(ctx context.Context) (done struct{}, err error) {
		if s.answers.has(of) {
			return done, nil
		}
		s.made.Inc()
		mc, content, err := s.o.Source.Config(ctx, p, of.config)
		if content != of.content {
			return done, err
		}
		one := &answer{recipe: of}
		if err == nil {
			one.body, err = s.document(mc, of, join)
		}
		if err != nil && !lasts(err) {
			return done, err
		}
		one.err = err
		return done, s.answers.put(ctx, one)
	})
	return err
}

func (s *Server) document(mc *mcfgv1.MachineConfig, of recipe, join []byte) ([]byte, error) {
	served, err := machineconfig.Serve(mc)
	if err != nil {
		return nil, err
	}
	if !of.known {
		if secrets := served.Secrets(); len(secrets) > 0 {
			return nil, refusal{http.StatusUnauthorized, closed(mc.Name, secrets) + "; " + s.o.Gate.how()}
		}
	}
	extra, err := s.extra(mc, served.Arguments(of.version), join)
	if err != nil {
		return nil, err
	}
	return served.Document(extra, of.version, of.newest)
}

// closed returns why a configuration is not for every client.
func closed(name string, secrets []string) string {
	text := name + " holds a secret, " + secrets[0]
	if more := len(secrets) - 1; more > 0 {
		text += fmt.Sprintf(" (and %d more)", more)
	}
	return text
}

// status returns the HTTP status for an error. Ignition tries again after 5xx. After others it gives up, so that a
// person looks.
func status(err error) int {
	var refused refusal
	switch {
	case errors.As(err, &refused):
		return refused.code
	case errors.As(err, new(*unknownPoolError)):
		return http.StatusNotFound
	case errors.As(err, new(*machineconfig.InexpressibleError)):
		return http.StatusNotAcceptable
	case errors.As(err, new(unavailable)), errors.As(err, new(behind)):
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

// publicly returns what a client is told of an error: all of it, unless the error is about what is behind the server.
func publicly(err error) string {
	if errors.As(err, new(behind)) {
		return "not now; the server's log says why"
	}
	return err.Error()
}
