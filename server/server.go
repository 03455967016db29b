// SPDX-License-Identifier: Apache-2.0

// Package server gives new machines the Ignition config of their pool: its proven configuration, and with it what the
// agent needs to take the machine over. Paths, negotiation and what is appended are those of OpenShift's
// machine-config-server; but not everybody is told secrets. A request changes nothing.
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

// unknownPoolError is the error of a pool that there is not.
type unknownPoolError struct{ Pool string }

func (e *unknownPoolError) Error() string {
	return fmt.Sprintf("there is no MachineConfigPool %q", e.Pool)
}

// Source is where pools and configurations are. What it returns is not changed.
type Source interface {
	// Pool returns an unknownPoolError where there is no such pool.
	Pool(ctx context.Context, name string) (*mcfgv1.MachineConfigPool, error)
	// Config returns a rendered configuration, of a pool, by name, and its version: another content has another one.
	Config(ctx context.Context, pool *mcfgv1.MachineConfigPool, name string) (*mcfgv1.MachineConfig, string, error)
	// Version returns the version of what Config returns now, and takes less than that.
	Version(ctx context.Context, pool *mcfgv1.MachineConfigPool, name string) (string, error)
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

// Server is a handler of /config/<pool> and /healthz. An answer is made once for all who are to have it.
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

// Describe is prometheus'.
func (s *Server) Describe(out chan<- *prometheus.Desc) {
	for _, c := range s.metrics() {
		c.Describe(out)
	}
}

// Collect is prometheus'.
func (s *Server) Collect(out chan<- prometheus.Metric) {
	for _, c := range s.metrics() {
		c.Collect(out)
	}
}

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
		"authenticated", who == shown)
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
		_, _ = w.Write(one.body) // a client that went away
	}
}

// config finds the answer and holds it for a reader, or makes it; with it comes the name of the configuration as soon
// as that is known, and who asks. What the answer is a function of is asked for anew with each request.
func (s *Server) config(r *http.Request, pool string, by *reader) (one *answer, name string, who asker, err error) {
	ctx := r.Context()
	if who, err = s.o.Gate.admit(r, s.reviews); err != nil {
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
	of := recipe{config: name, version: want.version, newest: want.newest, known: who != stranger}
	join, err := s.join(of.known)
	if err != nil {
		return nil, name, who, err
	}
	of.join = sha256.Sum256(join)
	// What was just made may be of another version by now, or had to go again for others.
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

// make has the answer found, unless the configuration has changed since. The error is of the moment.
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
	case errors.As(err, new(*unknownPoolError)):
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
