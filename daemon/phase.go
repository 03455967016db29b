// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/drain"
	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/plan"
	"github.com/noderefit/noderefit/transaction"
)

// Phase names the position of a node on the way to its desired configuration.
type Phase string

// The phases between which the head decides; see phases.
const (
	PhaseAbsent       Phase = "absent"
	PhaseObserve      Phase = "observe"
	PhaseUnconfigured Phase = "unconfigured"
	PhaseRolledBack   Phase = "rolled back"
	PhaseReturn       Phase = "return"
	PhaseProve        Phase = "prove"
	PhaseNeedsReboot  Phase = "needs reboot"
	PhaseSettle       Phase = "settle"
	PhaseDone         Phase = "done"
	PhaseWait         Phase = "wait"
	PhaseBackoff      Phase = "backoff"
	PhasePlan         Phase = "plan"
	PhaseHold         Phase = "hold"
	PhaseBeside       Phase = "beside"
	PhaseStage        Phase = "stage"
	PhaseHooks        Phase = "hooks"
	PhaseCordon       Phase = "cordon"
	PhaseDrain        Phase = "drain"
	PhaseReboot       Phase = "reboot"
	PhaseApply        Phase = "apply"

	// Only in logs and metrics: the work of a node at rest.
	phaseVerify  Phase = "verify"
	phaseRepair  Phase = "repair"
	phaseUnstage Phase = "unstage"
	phaseAhead   Phase = "ahead"
)

// situation is everything that the next step depends on. An unknown value is the zero value.
type situation struct {
	now time.Time

	// The Node. ready is the readiness that the Node reports for the host's current boot.
	exists, ready bool
	node          api.Node
	hold          drain.Hold
	excluded      bool // the Node is out of the load balancers, by us or by others

	// host is nil until the host was read. The host's record is unchanged since hostSince.
	host      *host.Status
	hostSince time.Time
	verdict   time.Duration // how long the host may take to prove healthy after a boot

	// What is known of the way from the host's configuration to node.Desired; all of it can be found out again.
	plan      *plan.Plan
	staged    bool
	asked     bool      // the hooks have agreed, or there is no Asker
	drained   time.Time // when the API server last showed no pod left; zero: it did not
	rebooting time.Time // when the host began to reboot for the update; zero: it did not
	failure   *failure
	drift     *api.Drift
	delivery  deliveryReport
	drainHold *api.DrainHold
	held      string // what the update waits for, if the wait is long
	applying  bool   // our apply of the desired configuration runs
	manual    bool   // the update's reboot is left to people
	other     *job   // an apply of another configuration

	// ahead is the result of the order to stage ahead, nil for none yet; aheadRetry is the time of the next try.
	ahead      *api.Staged
	aheadRetry time.Time
	// pinned is the report on pinned images, nil for none.
	pinned *api.Pinned
}

// failure is the reason why the way to a configuration is not passable now.
type failure struct {
	phase  Phase
	kind   failureKind
	reason string // one of the reasons of condition NodeDegraded
	text   string
	tries  int
	since  time.Time
	retry  time.Time
}

// failureKind is the meaning of a failure for the node.
type failureKind int

const (
	// failTransient: the API server could not be asked. Nothing is wrong with the node.
	failTransient failureKind = iota
	// failHeld: a hook refuses, or the drain has reached its limit. Nothing is wrong with the node, and the node serves
	// until the hook agrees, or the next try is due.
	failHeld
	// failRefused: another operation is at work on the host.
	failRefused
	// failDegraded: the operation failed; another try may help.
	failDegraded
	// failUnreconcilable: the configuration can't be reached from here. The head tries again all the same, because the
	// obstacle may go away on the host without a notice to the head.
	failUnreconcilable
)

// refusedFor is how long other operations may be at work on the host before a person should look.
const refusedFor = 5 * time.Minute

// state returns the state that the node reports because of the failure.
func (f *failure) state(now time.Time) api.State {
	switch f.kind {
	case failTransient, failHeld:
		return api.Working
	case failRefused:
		if now.Sub(f.since) < refusedFor {
			return api.Working
		}
		return api.Degraded
	case failUnreconcilable:
		return api.Unreconcilable
	default:
		return api.Degraded
	}
}

// bad reports whether the failure shows in the node's state.
func (f *failure) bad(now time.Time) bool { return f != nil && f.state(now).Bad() }

// phase is a row of phases.
type phase struct {
	name Phase
	when string // the condition in words
	is   func(*situation) bool
	// job: the phase has a long operation. Operations other than apply can be cancelled. The head cancels them when
	// another row counts.
	job bool
}

// How long the head waits for a step that the host takes by itself. After that the head asks the host to go on, which
// continues the work of a killed process.
const (
	returnPatience = 2 * time.Minute
	provePatience  = 5 * time.Minute // after the deadline of the verdict
)

// phases are the phases of a node: the first row that fits counts. An update passes plan, stage, hooks, cordon, drain,
// apply, reboot, prove, settle, done in this order. That is not the order of the rows: rows that hold an update come
// before rows that move the update on.
var phases = []phase{
	{PhaseAbsent, "the API server has not shown a Node of this name",
		func(v *situation) bool { return !v.exists }, false},
	{PhaseObserve, "the host's status has not been read yet",
		func(v *situation) bool { return v.host == nil }, false},
	{PhaseWait, "an apply of another configuration runs, which cannot be interrupted",
		func(v *situation) bool { return v.other != nil }, false},
	{PhaseUnconfigured, "no configuration is desired",
		func(v *situation) bool { return v.node.Desired == "" }, false},
	{PhaseReturn, "the host is going back to the configuration before",
		func(v *situation) bool { return v.inPhase(transaction.PhaseUndo) && v.patient(returnPatience) }, false},
	{PhaseRolledBack, "the host rolled back from the desired configuration, whose quarantine was not lifted since",
		func(v *situation) bool { return !v.pending() && v.rolledBack() && !v.lifted() }, false},
	{PhaseProve, "the host runs the desired configuration and waits for its verdict, or reboots as it is",
		func(v *situation) bool {
			return v.inPhase(transaction.PhaseProve) && v.host.Config.Pending == v.node.Desired &&
				!v.host.Stuck && v.patient(v.verdict+provePatience) || // a stuck host is asked to go on
				v.bootsAsIs() && v.inPhase(transaction.PhaseBoot) && v.patient(host.RebootPatience)
		}, false},
	{PhaseNeedsReboot, "the desired configuration is committed, and its reboot is left to people",
		func(v *situation) bool { return v.leftToPeople() }, false},
	{PhaseSettle, "the host proved the desired configuration; the node is not ready, and has the agent's cordon",
		func(v *situation) bool { return v.settled() && v.hold == drain.Ours && !v.ready }, false},
	{PhaseDone, "the host proved the desired configuration",
		func(v *situation) bool { return v.settled() }, false},
	{PhaseBackoff, "the last try failed, and the next try is not due",
		func(v *situation) bool { return v.failure != nil && v.now.Before(v.failure.retry) }, false},
	{PhasePlan, "the plan for the desired configuration is not known",
		func(v *situation) bool { return v.plan == nil }, true},
	{PhaseHold, "nothing new is desired, the host has drifted, and a repair would disrupt the node",
		func(v *situation) bool { return v.resting() && !v.reboots() && v.disrupts() && v.undisturbed() }, false},
	{PhaseBeside, "bootc-operator manages the node's OS: it has staged an OS, or another owner has cordoned the node",
		func(v *situation) bool { return v.beside() != "" }, false},
	{PhaseStage, "the configuration changes, and the OS may not be on the disk",
		func(v *situation) bool { return !v.staged && !v.pending() && len(v.plan.Changes) > 0 }, true},
	{PhaseHooks, "the update disrupts the node, and not all hooks have agreed",
		func(v *situation) bool { return v.asks() }, true},
	{PhaseCordon, "the update needs a drain, and the node takes pods or load, or our ledger names another update",
		func(v *situation) bool { return v.drains() && (!v.withdrawn() || v.excludes()) && !v.leaving() }, false},
	{PhaseDrain, "the update needs a drain, and pods may be left",
		func(v *situation) bool { return v.drains() && !v.holds() && !v.leaving() && !v.applying }, true},
	{PhaseReboot, "the host has begun to reboot",
		func(v *situation) bool { return v.leaving() }, false},
	{PhaseApply, "no other row applies",
		func(*situation) bool { return true }, true},
}

// decide returns the phase that the node is in.
func decide(v *situation) phase {
	return phases[slices.IndexFunc(phases, func(p phase) bool { return p.is(v) })]
}

// WritePhases prints the phases and their conditions.
func WritePhases(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "PHASE\tWHEN\tRUNS")
	for _, p := range phases {
		runs := ""
		if p.job {
			runs = "an operation"
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\n", p.name, p.when, runs)
	}
	return tw.Flush()
}

func (v *situation) pending() bool { return v.host.Config.Pending != "" }

func (v *situation) inPhase(p transaction.Phase) bool {
	return v.pending() && v.host.Phase == string(p)
}

func (v *situation) patient(limit time.Duration) bool { return v.now.Sub(v.hostSince) < limit }

// resting reports whether no update is under way and the host has the desired configuration, in any state.
func (v *situation) resting() bool { return !v.pending() && v.host.Config.Committed == v.node.Desired }

func (v *situation) settled() bool {
	return v.resting() && v.host.State == transaction.Done && !v.reboots()
}

// atRest reports whether a phase is the end of a way.
func atRest(p Phase) bool { return p == PhaseDone || p == PhaseRolledBack || p == PhaseHold }

// leftover reports whether the host has an OS that was composed for a configuration other than the desired one. Either
// the node was sent elsewhere on the way, and no apply comes that would use or remove that OS. Or the OS was staged
// ahead, and is not wanted any more.
func (v *situation) leftover() bool {
	if o := v.node.Orders.Stage; o != nil && machineconfig.NamedBy(o.Config, v.host.Staged) {
		return false
	}
	return v.host.Staged != "" && !v.pending() && !machineconfig.NamedBy(v.node.Desired, v.host.Staged)
}

// quarantined returns the host's quarantine of the desired configuration, nil where the host has none. The name holds
// the content's digest, so that the same content under another pool's name is found too.
func (v *situation) quarantined() *transaction.Quarantined {
	for i, q := range v.host.Quarantined {
		if q.Config == v.node.Desired || machineconfig.NamedBy(v.node.Desired, q.Digest) {
			return &v.host.Quarantined[i]
		}
	}
	return nil
}

// rolledBack reports whether the host rolled back the desired configuration: after a negative verdict, or on the
// request of a person on the host. A host that rolled back another configuration, and is then sent on to the one
// before, has the same state: RolledBack, with the desired configuration as its previous one. So the Node must have
// been on the desired configuration, or must already report the rollback of it.
func (v *situation) rolledBack() bool {
	if v.host.Config.Committed == v.node.Desired {
		return false
	}
	if v.quarantined() != nil {
		return true
	}
	return v.host.State == transaction.RolledBack && v.host.Config.Previous == v.node.Desired &&
		(v.node.Current == v.node.Desired || strings.HasPrefix(v.node.Reason, api.ReasonRolledBack+v.node.Desired+" "))
}

// lifted reports whether a person asks for the desired configuration although it failed here. The request must have
// seen that failure, not an earlier one: otherwise a configuration that fails again would be tried for ever.
func (v *situation) lifted() bool {
	if v.node.Lift == "" || v.node.Lift != v.node.Desired {
		return false
	}
	q := v.quarantined()
	if q == nil {
		return true
	}
	return slices.ContainsFunc(v.node.Quarantined, func(seen api.Quarantine) bool {
		return seen.Config == q.Config && seen.Since.Equal(q.Since)
	})
}

// drains reports whether the way to the desired configuration needs the node empty. A host that waits for a verdict
// reboots when it is sent elsewhere, with any plan.
func (v *situation) drains() bool {
	if v.node.SingleReplica {
		return false
	}
	return v.inPhase(transaction.PhaseProve) || v.disrupts()
}

// asks reports whether the hooks must be asked. The ledger records that they were asked for the configuration that the
// ledger names. An update that is already under way asks no hook, since its way out must stay open.
func (v *situation) asks() bool {
	entry := v.node.Cordon
	return !v.asked && v.disrupts() && (!v.pending() || v.host.NeedsReboot) && !v.applying && !v.leaving() &&
		(entry == nil || entry.Config != v.node.Desired)
}

// withdrawn reports whether the node takes no pods and, where the cordon is ours, the ledger names no other
// configuration.
func (v *situation) withdrawn() bool {
	entry := v.node.Cordon
	return v.hold.Cordoned() && (v.hold != drain.Ours || entry == nil || entry.Config == v.node.Desired)
}

// drainHolds is how long the answer that the node is empty counts: until the next step, and no longer. A person may
// uncordon the node between two tries of a step.
const drainHolds = 15 * time.Second

func (v *situation) holds() bool { return !v.drained.IsZero() && v.now.Sub(v.drained) < drainHolds }

// undisturbed reports whether, as far as the cluster knows, the node is at rest on its desired configuration. A node
// whose host can't be read counts by its state before. Then no pool has granted the node the time out of service that a
// repair would take.
func (v *situation) undisturbed() bool {
	return v.node.Current == v.node.Desired &&
		(v.node.State == api.Done || strings.HasPrefix(v.node.Reason, holdReason) ||
			strings.HasPrefix(v.node.Reason, blindReason))
}

// holdReason begins the reason of a node that is on hold, blindReason that of a node whose host can't be read.
const (
	holdReason  = "the host is not as it was left"
	blindReason = "reading the host"
)

func (v *situation) disrupts() bool { return v.plan.Drain || v.plan.Reboot }

// leaving reports whether the reboot was started and may still come.
func (v *situation) leaving() bool {
	return !v.rebooting.IsZero() && v.now.Sub(v.rebooting) < host.RebootPatience
}

// before reports whether a comes before b in an update.
func before(a, b Phase) bool { return slices.Index(road, a) < slices.Index(road, b) }

// road is the order in which an update passes its phases.
var road = []Phase{PhasePlan, PhaseStage, PhaseHooks, PhaseCordon, PhaseDrain, PhaseApply, PhaseReboot, PhaseProve,
	PhaseSettle, PhaseDone}

// nextTry returns how long to wait after so many failures in a row: 1 s, doubled each time, at most 60 s.
func nextTry(tries int) time.Duration {
	const longest = time.Minute
	if tries > 6 {
		return longest
	}
	return min(time.Second<<max(tries-1, 0), longest)
}
