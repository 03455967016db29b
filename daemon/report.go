// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/drain"
	"github.com/noderefit/noderefit/transaction"
)

// cordoning is the change of the node's cordon in a phase.
type cordoning int

const (
	keepCordon cordoning = iota
	takeCordon
	dropCordon
)

// nodeReport is the report for a Node: a patch, from which unchanged values are left out.
type nodeReport struct {
	annotations drain.Annotations
	cordon      cordoning
	entry       api.Cordon // with takeCordon
	configured  bool       // the startup taint, if there is one, is removed
}

func (r *nodeReport) set(key, value string) { r.annotations[key] = &value }
func (r *nodeReport) drop(key string)       { r.annotations[key] = nil }

func (r *nodeReport) drops(key string) bool {
	value, is := r.annotations[key]
	return is && value == nil
}

// drained reports on the Node that the drain for a configuration is over.
func (r *nodeReport) drained(config string) {
	r.set(api.DesiredDrain, "drain-"+config)
	r.set(api.LastAppliedDrain, "drain-"+config)
}

// state sets state and reason, which always go together.
func (r *nodeReport) state(s api.State, reason string) {
	r.set(api.StateKey, string(s))
	r.set(api.Reason, api.ShortReason(reason))
}

// missing returns the annotations without those that the Node already has.
func (r *nodeReport) missing(have map[string]string) drain.Annotations {
	out := drain.Annotations{}
	for key, want := range r.annotations {
		value, is := have[key]
		if want == nil && is || want != nil && (!is || value != *want) {
			out[key] = want
		}
	}
	return out
}

// phrase adds the Node's report in a phase. It reports whether anything in the report is new.
type phrase func(v *situation, p Phase, r *nodeReport) bool

// always returns the phrase of a phase whose report is always the same.
func always(say func(v *situation, r *nodeReport)) phrase {
	return func(v *situation, _ Phase, r *nodeReport) bool {
		say(v, r)
		return true
	}
}

// phrases are the reports on the Node, by phase. A phase without a row reports nothing new.
var phrases = map[Phase]phrase{
	PhaseUnconfigured: sayUnconfigured,
	PhasePlan:         sayOnTheWay,
	PhaseBackoff:      sayOnTheWay,
	PhaseStage:        always(sayState),
	PhaseHooks:        always(sayState),
	PhaseDrain:        always(sayState),
	PhaseCordon:       always(sayCordon),
	PhaseApply:        sayDisruption,
	PhaseReboot:       sayDisruption,
	PhaseProve:        always(sayProve),
	PhaseNeedsReboot: always(func(v *situation, r *nodeReport) {
		r.state(api.Working, api.ReasonNeedsReboot+v.node.Desired+" is committed, and the next reboot leads to it; the "+
			"RolloutPolicy leaves that to people (reboots: Manual), and the node serves")
		r.cordon = v.uncordon()
	}),
	PhaseHold: always(func(v *situation, r *nodeReport) {
		r.state(api.Degraded, holdReason+": "+v.host.Reason+"; repairing the host takes "+disruption(v.plan)+
			", which the agent does only for another desired configuration, or when a person runs apply on the host")
	}),
	PhaseRolledBack: always(func(v *situation, r *nodeReport) {
		r.state(api.RolledBack, v.whyRolledBack())
		r.cordon = v.uncordon()
	}),
	PhaseReturn: always(func(v *situation, r *nodeReport) {
		r.state(api.Working, "the host is going back: "+v.host.Reason)
	}),
	PhaseWait: always(func(v *situation, r *nodeReport) {
		r.state(api.Working, fmt.Sprintf("waits for the apply of %s, which can't be interrupted, since %s",
			v.other.config, v.other.began.UTC().Format(time.RFC3339)))
	}),
	PhaseBeside: always(func(v *situation, r *nodeReport) {
		r.state(api.Working, v.beside())
		r.cordon = v.uncordon() // the node may as well serve
	}),
	PhaseSettle: always(func(_ *situation, r *nodeReport) {
		r.state(api.Working, "waiting for the node to be ready before it is uncordoned")
	}),
	PhaseDone: always(func(v *situation, r *nodeReport) {
		r.state(api.Done, "")
		r.cordon, r.configured = v.uncordon(), true
	}),
}

// reportNode returns the report on the Node in a phase; nil: nothing new. The report depends only on known facts, so
// that a head that has just started reports the same as the head before.
func reportNode(v *situation, p Phase) *nodeReport {
	r := &nodeReport{annotations: drain.Annotations{}}
	if p == PhaseObserve && v.failure.bad(v.now) {
		r.state(v.state()) // the host could not be read: nothing else is known about it
		return r
	}
	if say := phrases[p]; say == nil || !say(v, p, r) {
		return nil
	}
	if !v.booting(p) || p == PhaseNeedsReboot {
		r.drop(api.PostConfigAction)
	}
	if v.hold == drain.Lost && v.node.Cordon != nil && (p == PhaseReturn || p == PhaseProve || p == PhaseReboot) {
		// It is too late to drain again. But no more pods may come to a node that is about to go down, or may be.
		r.cordon, r.entry = takeCordon, v.entry(v.node.Cordon.Config, v.node.Cordon.Reason)
	}
	if v.drainHold != nil && p == PhaseBackoff {
		r.set(api.DrainHeldKey, api.Encode(v.drainHold))
	} else {
		r.drop(api.DrainHeldKey)
	}
	v.reportHost(r)
	return r
}

func sayState(v *situation, r *nodeReport) { r.state(v.state()) }

func sayUnconfigured(v *situation, _ Phase, r *nodeReport) bool {
	joining := v.host.Config.Committed != "" && !v.pending() && v.host.State == transaction.Done
	if v.node.State == "" && v.node.Cordon == nil && !joining {
		return false // the node never had a configuration
	}
	if !v.pending() {
		r.cordon = v.uncordon() // the host stays as it is
		if v.host.State == transaction.Done {
			r.state(api.Done, "")
		}
	}
	return true
}

func sayOnTheWay(v *situation, p Phase, r *nodeReport) bool {
	if p == PhasePlan && v.failure == nil && !v.node.State.Bad() {
		return false // the plan shows whether there is anything to do
	}
	r.state(v.state())
	held := p == PhaseBackoff && v.failure.kind == failHeld
	if held || v.failure.bad(v.now) && before(v.failure.phase, PhaseCordon) {
		// The node stays as it is for now, so it may as well serve.
		r.cordon = v.uncordon()
	}
	return true
}

func sayCordon(v *situation, r *nodeReport) {
	r.state(v.state())
	r.cordon = takeCordon
	r.entry = v.entry(v.node.Desired, "update to "+v.node.Desired+": "+disruption(v.plan))
	if v.excludes() {
		r.set(api.ExcludedKey, api.Encode(api.Exclusion{Since: v.now.UTC().Truncate(time.Second)}))
	}
}

func sayProve(v *situation, r *nodeReport) {
	r.state(v.state())
	if entry := v.node.Cordon; v.hold == drain.Ours && entry != nil && entry.Config == v.node.Desired {
		if v.reboots() {
			r.set(api.PostConfigAction, api.PostConfigActionRebooting)
		}
		r.drained(v.node.Desired) // the reboot may have been quicker than the agent
	}
}

// sayDisruption reports the reboot and everything that comes before it in one write: the host is about to be gone.
func sayDisruption(v *situation, p Phase, r *nodeReport) bool {
	r.state(v.state())
	if v.drains() && (v.booting(p) || !v.plan.Reboot || v.inPhase(transaction.PhaseProve)) {
		r.drained(v.node.Desired)
	}
	if v.plan.Reboot && v.booting(p) {
		r.set(api.PostConfigAction, api.PostConfigActionRebooting)
		if v.verdict != api.DefaultVerdictTimeout {
			r.set(api.VerdictTimeoutKey, v.verdict.String())
		} else {
			r.drop(api.VerdictTimeoutKey)
		}
	}
	return true
}

// booting reports whether the host has decided on another deployment, and the reboot into that has begun or is still to
// come.
func (v *situation) booting(p Phase) bool {
	return p == PhaseReboot || v.inPhase(transaction.PhaseBoot)
}

// entry returns the new entry of the ledger.
func (v *situation) entry(config, reason string) api.Cordon {
	return api.Cordon{By: api.Daemon, Config: config, Since: v.now.UTC().Truncate(time.Second), Reason: reason}
}

// uncordon gives the node back as soon as the node is ready to serve.
func (v *situation) uncordon() cordoning {
	if v.hold == drain.Ours && !v.ready {
		return keepCordon
	}
	return dropCordon
}

// state returns the state and reason of a node on its way. A failure shows until its phase is passed, and not only
// between the tries.
func (v *situation) state() (api.State, string) {
	if v.failure == nil || v.failure.kind == failTransient {
		return api.Working, v.held
	}
	return v.failure.state(v.now), v.failure.text
}

// reportHost adds the facts of the host's record, in every phase.
func (v *situation) reportHost(r *nodeReport) {
	if v.host.Config.Committed != "" {
		r.set(api.CurrentConfig, api.Rendered(v.host.Config.Committed))
	}
	made := api.Made{Config: v.host.Config.Committed}
	if api.ValuesOf(v.host.Config.Previous) != "" {
		made.Previous = v.host.Config.Previous
	}
	if api.ValuesOf(made.Config) != "" || made.Previous != "" {
		r.set(api.MadeKey, api.Encode(made))
	} else {
		r.drop(api.MadeKey)
	}
	if v.host.OS != "" {
		r.set(api.OSKey, string(v.host.OS))
	}
	if v.host.Config.Previous != "" {
		r.set(api.PreviousConfig, api.Rendered(v.host.Config.Previous))
	} else {
		r.drop(api.PreviousConfig)
	}
	if v.drift != nil {
		r.set(api.DriftKey, api.Encode(v.drift))
	} else {
		r.drop(api.DriftKey)
	}
	v.delivery.report(r)
	if c := v.host.Checks; c != nil && len(c.Said) > 0 {
		r.set(api.ChecksKey, api.Encode(c))
	} else {
		r.drop(api.ChecksKey)
	}
	v.reportAhead(r)
	v.reportPins(r)
	if o := v.host.Rebooted; o != nil && o.ID != "" {
		r.set(api.RebootedKey, api.Encode(o))
	} else {
		r.drop(api.RebootedKey)
	}
	if w := v.host.RebootWay; w != nil {
		r.set(api.RebootWayKey, api.Encode(w))
	} else {
		r.drop(api.RebootWayKey)
	}
	if w := v.host.RebootWanted; w != nil {
		r.set(api.RebootWantedKey, api.Encode(w))
	} else {
		r.drop(api.RebootWantedKey)
	}
	if q := quarantines(v.host.Quarantined); len(q) > 0 {
		r.set(api.QuarantinedKey, api.Encode(q))
	} else {
		r.drop(api.QuarantinedKey)
	}
	// A lift is used up when the host no longer quarantines the lifted configuration, or when that configuration failed
	// again.
	if v.node.Lift != "" && (!v.lifted() || !v.rolledBack()) {
		r.drop(api.Lift)
	}
}

// A Node's annotations are limited to 256 KiB, and its quarantine is a list for people and for its pool.
const (
	quarantinesShown = 10
	quarantineReason = 400
)

// quarantines returns the host's latest quarantines, without the node's name, which the Node has.
func quarantines(host []transaction.Quarantined) []api.Quarantine {
	var out []api.Quarantine
	for _, q := range host {
		reason := api.ShortReason(q.Reason)
		if len(reason) > quarantineReason {
			reason = strings.ToValidUTF8(reason[:quarantineReason], "") + "…"
		}
		out = append(out, api.Quarantine{Config: q.Config, Reason: reason, Since: q.Since})
	}
	slices.SortStableFunc(out, func(a, b api.Quarantine) int { return a.Since.Compare(b.Since) })
	return out[max(0, len(out)-quarantinesShown):]
}

func (v *situation) whyRolledBack() string {
	why := v.host.Reason
	if q := v.quarantined(); q != nil {
		why = q.Reason
	}
	return fmt.Sprintf("%s%s to %s: %s", api.ReasonRolledBack, v.node.Desired, v.host.Config.Committed, why)
}
