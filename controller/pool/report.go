// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"sync"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

// The first five have OpenShift's names and meanings, except that the reason of mco_state is always empty. In OpenShift
// the reason holds whole error texts, and each makes a series of its own.
var (
	machines    = poolMetric("mco_machine_count", "Nodes of the pool.")
	updated     = poolMetric("mco_updated_machine_count", "Nodes at the pool's configuration.")
	degraded    = poolMetric("mco_degraded_machine_count", "Nodes that can't get to their configuration or stay there.")
	unavailable = poolMetric("mco_unavailable_machine_count", "Nodes that are out of service or about to be.")
	state       = prometheus.NewDesc("mco_state", "State of each node: the Unix time since when this process has seen it.",
		[]string{"node", "pool", "state", "reason"}, nil)
	overdue = prometheus.NewDesc("noderefit_node_overdue",
		"Unix time since when a node's verdict is waited for, where it has not come in the time that it may take.",
		[]string{"node", "pool"}, nil)
	rebootWanted = prometheus.NewDesc("noderefit_node_reboot_wanted",
		"Unix time since when the host of a node wants a reboot, by kind of reason.", []string{"node", "pool", "kind"}, nil)
	rebootFailed = prometheus.NewDesc("noderefit_node_reboot_failed",
		"Unix time since when the latest ordered reboot of a node is known to have failed.", []string{"node", "pool"}, nil)
	rebootsRolled = poolMetric("noderefit_pool_reboots_rolled",
		"1 where wanted reboots of the pool's nodes are rolled out by its RolloutPolicy.")
	phases = prometheus.NewDesc("noderefit_pool_nodes", "Nodes of the pool by phase.",
		[]string{"pool", "phase"}, nil)
	allowed       = poolMetric("noderefit_pool_max_unavailable", "Nodes that may be out of service for an update.")
	paused        = poolMetric("noderefit_pool_paused", "1 where the pool is paused.")
	quarantined   = poolMetric("noderefit_pool_quarantined", "1 where the pool's configuration failed on a node.")
	misconfigured = poolMetric("noderefit_pool_misconfigured", "1 where something is wrong with the pool itself.")
	held          = prometheus.NewDesc("noderefit_pool_held",
		"1 where the pool's RolloutPolicy lets no node begin, by the reason; 0, without one, where it does.",
		[]string{"pool", "policy", "reason"}, nil)
	gatesClosed = prometheus.NewDesc("noderefit_pool_gates_closed",
		"Nodes or stages for which a gate of the pool's RolloutPolicy is closed, by gate.",
		[]string{"pool", "policy", "gate"}, nil)
	failed     = poolMetric("noderefit_pool_failed_nodes", "Nodes on which the pool's configuration failed.")
	staged     = poolMetric("noderefit_pool_staged_nodes", "Nodes that have staged the pool's configuration ahead.")
	unstaged   = poolMetric("noderefit_pool_unstaged_nodes", "Nodes that are still to stage it, or could not.")
	budget     = poolMetric("noderefit_pool_failure_budget", "At how many failed nodes the rollout stops.")
	nextWindow = poolMetric("noderefit_pool_next_window_timestamp_seconds",
		"Unix time at which the pool's next window opens; 0 while one is open, or there is none.")
)

func poolMetric(name, help string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, []string{"pool"}, nil)
}

// report holds what the last look saw, for metrics. Each look replaces the whole, so a node or pool that went away
// leaves nothing behind.
type report struct {
	mu    sync.Mutex
	pools []progress.Pool
	nodes map[string]seen
}

// seen is the state that a node last reported and since when, and its configuration.
type seen struct {
	state   api.State
	current string
	since   time.Time
}

// change is an annotation of a node that the node's agent changed.
type change struct {
	pool             *mcfgv1.MachineConfigPool
	node, key, value string
}

func newReport() *report { return &report{} }

// take replaces what was seen. It returns the changes that are worth an event: a node has arrived, or has failed. The
// first look returns no changes.
func (r *report) take(w *world) []change {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.nodes
	r.nodes, r.pools = map[string]seen{}, nil
	var changes []change
	for _, m := range w.pools {
		r.pools = append(r.pools, m.state)
		for i := range m.state.Nodes {
			n := &m.state.Nodes[i]
			was, known := before[n.Name]
			now := seen{n.State, n.Current, time.Now()}
			if known && was.state == now.state {
				now.since = was.since
			}
			r.nodes[n.Name] = now
			if before == nil {
				continue
			}
			if was.current != now.current {
				changes = append(changes, change{m.object, n.Name, api.CurrentConfig, n.Current})
			}
			if was.state != now.state && n.Failing() {
				changes = append(changes, change{m.object, n.Name, api.StateKey, string(n.State)})
			}
		}
	}
	return changes
}

// Describe implements prometheus.Collector.
func (r *report) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		machines, updated, degraded, unavailable, state, overdue, phases, allowed, paused, quarantined, misconfigured, held,
		gatesClosed, failed, budget, nextWindow, staged, unstaged, rebootWanted, rebootFailed, rebootsRolled,
	} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (r *report) Collect(to chan<- prometheus.Metric) {
	r.mu.Lock()
	defer r.mu.Unlock()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for _, p := range r.pools {
		gauge(machines, float64(p.Machines), p.Name)
		gauge(updated, float64(p.Updated), p.Name)
		gauge(degraded, float64(p.Degraded), p.Name)
		gauge(unavailable, float64(p.Unavailable), p.Name)
		gauge(allowed, float64(p.MaxUnavailable), p.Name)
		gauge(paused, float64(rank(p.Paused)), p.Name)
		gauge(quarantined, float64(rank(p.Quarantine() != nil)), p.Name)
		gauge(misconfigured, float64(rank(len(p.Problems) > 0)), p.Name)
		gauge(failed, float64(len(p.Failed())), p.Name)
		if p.Rules.Policy != "" {
			gauge(budget, float64(p.Rules.FailureBudget), p.Name)
			gauge(nextWindow, unix(p.Rules.NextWindow), p.Name)
		}
		for gate, closed := range p.Rules.Closed {
			gauge(gatesClosed, float64(closed), p.Name, p.Rules.Policy, gate)
		}
		if s := p.Rules.Staging; s != nil {
			gauge(staged, float64(len(s.Staged)), p.Name)
			gauge(unstaged, float64(s.Of-len(s.Staged)+len(s.Unable)), p.Name)
		}
		if h := holds(p); h != nil {
			gauge(held, 1, p.Name, p.Rules.Policy, string(h.Verdict))
		} else if p.Rules.Policy != "" {
			gauge(held, 0, p.Name, p.Rules.Policy, "")
		}
		gauge(rebootsRolled, float64(rank(p.Rules.RebootMode == api.RebootsRoll)), p.Name)
		for i := range p.Nodes {
			n := &p.Nodes[i]
			if _, since := n.RebootFailure(); !since.IsZero() {
				gauge(rebootFailed, unix(since), n.Name, p.Name)
			}
			if n.RebootWanted == nil {
				continue
			}
			for _, reason := range n.RebootWanted.Reasons {
				gauge(rebootWanted, unix(reason.Since), n.Name, p.Name, string(reason.Kind))
			}
		}
		byPhase := map[progress.Phase]int{}
		for i := range p.Nodes {
			n := &p.Nodes[i]
			byPhase[n.Phase(p.Target)]++
			if n.Overdue() {
				gauge(overdue, unix(n.Awaited.Since), n.Name, p.Name)
			}
			if n.State != "" {
				gauge(state, float64(r.nodes[n.Name].since.Unix()), n.Name, p.Name, stateLabel(n.State), "")
			}
		}
		for _, phase := range progress.Phases {
			gauge(phases, float64(byPhase[phase]), p.Name, string(phase))
		}
	}
}

func unix(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.Unix())
}

// stateLabel returns a state for a label. Unknown states become one word, since a node could write any text and make
// series without end.
func stateLabel(s api.State) string {
	switch s {
	case api.Done, api.Working, api.Degraded, api.Unreconcilable, api.RolledBack:
		return string(s)
	default:
		return "Unknown"
	}
}

func objectName(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }
