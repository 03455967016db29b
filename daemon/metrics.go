// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/host"
)

// Metrics are the metrics of a head. Names that OpenShift's daemon has too mean the same as there. No label holds text
// from an error or from a person.
type Metrics struct {
	registry *prometheus.Registry

	state, updateState, hostVersion *prometheus.GaugeVec
	drift                           prometheus.Gauge
	driftPaths                      prometheus.Gauge
	undelivered                     prometheus.Gauge
	rebootsFailed                   prometheus.Counter
	repairs, hookRuns               *prometheus.CounterVec
	hookHolds                       prometheus.Gauge
	rebootWanted                    *prometheus.GaugeVec
	phases, commands                *prometheus.HistogramVec
	waiting                         *prometheus.GaugeVec
	volumes, drainHolds             prometheus.Gauge
	drainForced                     prometheus.Counter

	mu       sync.Mutex
	notReady time.Time // since when the node is not ready; zero: the node is ready
	shown    [2]string // state, reason
	config   [2]string // config, reason
	due      time.Time // the latest time for the loop to report again; zero: not begun
}

// Outcomes of a phase, a command or a repair.
const (
	outcomeDone      = "done"
	outcomeFailed    = "failed"
	outcomeCancelled = "cancelled"
	outcomeRefused   = "refused"
)

var outcomes = []string{outcomeDone, outcomeFailed, outcomeCancelled, outcomeRefused}

// outcomeOf returns the outcome of an operation that ended with err.
func outcomeOf(err error) string {
	switch {
	case err == nil:
		return outcomeDone
	case errors.Is(err, context.Canceled):
		return outcomeCancelled
	case errors.As(err, new(*host.Refused)):
		return outcomeRefused
	}
	return outcomeFailed
}

// drainWaits are the reasons for which a drain may wait; they are labels.
var drainWaits = []string{api.DrainWaitBudget, api.DrainWaitTerminating, api.DrainWaitRefused, api.DrainWaitError,
	api.DrainWaitComesBack}

// NewMetrics returns the metrics of one head, in a registry of their own.
func NewMetrics() *Metrics {
	gauge := func(name, help string) prometheus.GaugeOpts { return prometheus.GaugeOpts{Name: name, Help: help} }
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		state: prometheus.NewGaugeVec(gauge("mcd_state", "State of the node and why, as the time since when."),
			[]string{"state", "reason"}),
		updateState: prometheus.NewGaugeVec(gauge("mcd_update_state",
			"Desired configuration, and why the node does not have it, as the time since when."), []string{"config", "err"}),
		hostVersion: prometheus.NewGaugeVec(gauge("mcd_host_os_and_version", "How the OS is managed, and its version."),
			[]string{"os", "version"}),
		drift: prometheus.NewGauge(gauge("mcd_config_drift",
			"Time at which the host was found to differ from its configuration; 0: the host matches.")),
		driftPaths: prometheus.NewGauge(gauge("noderefit_drift_items",
			"Paths and settings on the host that differ from its configuration.")),
		undelivered: prometheus.NewGauge(gauge("noderefit_certificates_undelivered",
			"Time since which certificates of the ControllerConfig could not be delivered to the host; 0: all are delivered.")),
		repairs: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "noderefit_drift_repairs_total",
			Help: "Times that drift was written back, by outcome."}, []string{"outcome"}),
		hookRuns: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "noderefit_hook_asks_total",
			Help: "Times that the hooks ran before a drain, by outcome; refused: a hook said no."}, []string{"outcome"}),
		hookHolds: prometheus.NewGauge(gauge("noderefit_hook_holds",
			"Time since when a hook holds an update; 0: no hook does.")),
		rebootWanted: prometheus.NewGaugeVec(gauge("noderefit_reboot_wanted",
			"Time since when the host wants a reboot, by what wants it; 0: that wants none."), []string{"kind"}),
		rebootsFailed: prometheus.NewCounter(prometheus.CounterOpts{Name: "mcd_reboots_failed_total",
			Help: "Reboots that were started and did not happen."}),
		phases: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "noderefit_phase_seconds",
			Help:    "How long the phases of updates took, by outcome.",
			Buckets: []float64{.1, .5, 1, 5, 15, 30, 60, 120, 300, 600, 1800, 3600}}, []string{"phase", "outcome"}),
		commands: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "noderefit_host_command_seconds",
			Help:    "How long commands on the host took, from the call to the answer, by outcome.",
			Buckets: []float64{.01, .05, .1, .5, 1, 5, 15, 30, 60, 300, 1800}}, []string{"verb", "outcome"}),
		waiting: prometheus.NewGaugeVec(gauge("noderefit_drain_waiting_pods", "Pods that a drain waits for, by reason."),
			[]string{"reason"}),
		volumes: prometheus.NewGauge(gauge("noderefit_drain_waiting_volumes",
			"Volumes that a drain waits for to be detached.")),
		drainForced: prometheus.NewCounter(prometheus.CounterOpts{Name: "noderefit_drain_forced_pods_total",
			Help: "Pods that refused eviction and were deleted, because a RolloutPolicy demands it."}),
		drainHolds: prometheus.NewGauge(gauge("noderefit_drain_held_until",
			"Time until which a drain that reached its limit is given up; 0: no drain is.")),
	}
	kubelet := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "mcd_kubelet_state",
		Help: "Whole minutes for which the Node has not been ready."}, m.kubelet)
	m.registry.MustRegister(m.state, m.updateState, m.hostVersion, m.drift, m.driftPaths, m.undelivered, m.repairs,
		m.hookRuns, m.hookHolds, m.rebootWanted, m.rebootsFailed,
		m.phases, m.commands, m.waiting, m.volumes, m.drainForced, m.drainHolds, kubelet, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.drain(nil)
	m.wanted(nil)
	// A series that begins with 1 has not risen: the alert on repeated drift would miss the first repair of each series.
	for _, outcome := range outcomes {
		m.repairs.WithLabelValues(outcome)
		m.hookRuns.WithLabelValues(outcome)
	}
	return m
}

// Handler serves /metrics and /healthz, which fails once the loop is stuck.
func (m *Metrics) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		if m.stuck() {
			http.Error(w, "the agent's loop does not continue", http.StatusServiceUnavailable)
		}
	})
	return mux
}

// expect records that the loop runs, and the time within which the loop must report again.
func (m *Metrics) expect(within time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.due = time.Now().Add(within)
}

// stuck reports whether the loop is overdue. A wait for the API server before the loop begins does not count.
func (m *Metrics) stuck() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.due.IsZero() && time.Now().After(m.due)
}

// kubelet returns the value that the kubelet's alert expects: OpenShift's daemon counts failed health checks, one each
// 30 s.
func (m *Metrics) kubelet() float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.notReady.IsZero() {
		return 0
	}
	return float64(time.Since(m.notReady) / time.Minute)
}

// show sets the node's state and configuration. Each has only one series, so that no old value is shown beside the new
// one.
func (m *Metrics) show(ready bool, state api.State, config, reason string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case ready:
		m.notReady = time.Time{}
	case m.notReady.IsZero():
		m.notReady = time.Now()
	}
	if now := [2]string{string(state), reason}; now != m.shown {
		m.shown = now
		m.state.Reset()
		m.state.WithLabelValues(now[:]...).SetToCurrentTime()
	}
	if now := [2]string{config, reason}; now != m.config {
		m.config = now
		m.updateState.Reset()
		m.updateState.WithLabelValues(now[:]...).SetToCurrentTime()
	}
}

// host sets the version of the OS.
func (m *Metrics) host(s *host.Status) {
	version := ""
	for _, d := range s.Deployments {
		if d.Booted {
			version = d.Version
		}
	}
	m.hostVersion.Reset()
	m.hostVersion.WithLabelValues(string(s.OS), version).Set(1)
}

// drain sets the pods and volumes that a drain waits for; nil: no drain.
func (m *Metrics) drain(d *api.Drain) {
	counts := map[string]int{}
	if d != nil {
		for _, w := range d.Waiting {
			counts[w.Why]++
		}
	}
	m.volumes.Set(0)
	if d != nil {
		m.volumes.Set(float64(len(d.Volumes)))
	}
	for _, why := range drainWaits {
		m.waiting.WithLabelValues(why).Set(float64(counts[why]))
	}
}

// drainHeld sets until when a drain is suspended; nil: no drain is.
func (m *Metrics) drainHeld(hold *api.DrainHold) {
	if hold == nil {
		m.drainHolds.Set(0)
	} else {
		m.drainHolds.Set(float64(hold.Until.Unix()))
	}
}

// drifted sets the number of drifted subjects, and since when the host has drifted.
func (m *Metrics) drifted(d *api.Drift) {
	m.driftPaths.Set(float64(d.Count()))
	if d == nil {
		m.drift.Set(0)
	} else {
		m.drift.Set(float64(d.Since().Unix()))
	}
}

// delivered sets since when certificates could not be delivered; nil: they were delivered.
func (m *Metrics) delivered(u *api.Undelivered) {
	if u == nil {
		m.undelivered.Set(0)
	} else {
		m.undelivered.Set(float64(u.Since.Unix()))
	}
}

// held sets since when a hook holds an update; nil: no hook does.
func (m *Metrics) held(s *api.HookStop) {
	if s == nil {
		m.hookHolds.Set(0)
	} else {
		m.hookHolds.Set(float64(s.Since.Unix()))
	}
}

// wanted sets since when the host wants a reboot; nil: nothing wants one.
func (m *Metrics) wanted(w *api.RebootWanted) {
	for _, kind := range api.RebootKinds {
		m.rebootWanted.WithLabelValues(string(kind)).Set(0)
	}
	if w == nil {
		return
	}
	for _, r := range w.Reasons {
		m.rebootWanted.WithLabelValues(string(r.Kind)).Set(float64(r.Since.Unix()))
	}
}

// passed counts a phase that ended.
func (m *Metrics) passed(p Phase, outcome string, took time.Duration) {
	m.phases.WithLabelValues(string(p), outcome).Observe(took.Seconds())
}

// Command counts a command on the host; it is meant for the Observe option of hands.
func (m *Metrics) Command(verb string, took time.Duration, err error) {
	m.commands.WithLabelValues(verb, outcomeOf(err)).Observe(took.Seconds())
}
