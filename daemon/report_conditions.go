// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"fmt"
	"slices"
	"strings"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/drain"
	"github.com/noderefit/noderefit/plan"
)

// The reasons of the condition NodeDegraded and of the metric mcd_state: few, and each for another action.
const (
	reasonConfigMissing  = "ConfigMissing"
	reasonConfigInvalid  = "ConfigInvalid"
	reasonConfigMismatch = "ConfigMismatch"
	reasonUnreconcilable = "Unreconcilable"
	reasonRefused        = "HostBusy"
	reasonPlanning       = "PlanningFailed"
	reasonStaging        = "StagingFailed"
	reasonDraining       = "DrainFailed"
	reasonApplying       = "ApplyFailed"
	reasonRebooting      = "RebootFailed"
	reasonObserving      = "HostUnreadable"
	reasonRolledBack     = "RolledBack"
	reasonChanged        = "HostChanged"
	reasonDrift          = "ConfigDrift"
	reasonHook           = "HookFailed"
	reasonDrainHeld      = "DrainHeld"
)

// reasonNotYet is OpenShift's reason for a condition of a step that the update has not reached yet.
const reasonNotYet = "NotYetOccurred"

// typedError is an error with a reason of its own.
type typedError struct {
	reason string
	err    error
}

func (e *typedError) Error() string { return e.err.Error() }
func (e *typedError) Unwrap() error { return e.err }

// disruption describes in one phrase what a plan does to the node, the strongest action first, and why.
func disruption(p *plan.Plan) string {
	if len(p.Changes) == 0 && len(p.Actions) == 0 {
		return "no change"
	}
	for _, strongest := range []plan.ActionType{plan.ActionReboot, plan.ActionDrain, plan.ActionRestart, plan.ActionReload,
		plan.ActionDaemonReload} {
		i := slices.IndexFunc(p.Actions, func(a plan.Action) bool { return a.Type == strongest })
		if i < 0 {
			continue
		}
		a := p.Actions[i]
		what := strings.TrimSpace(strings.ToLower(string(a.Type)) + " " + a.Service)
		others := 0
		for _, other := range p.Actions {
			if other.Type != plan.ActionNone && other.Type != plan.ActionDrain && other.Type != a.Type {
				others++
			}
		}
		if others > 0 {
			what += fmt.Sprintf(" and %d more", others)
		}
		return what + ", because of " + a.Because
	}
	return "no action: writing the files is enough"
}

// conditionRow is a condition of a MachineConfigNode that follows an update: in progress from the phase begins on, and
// true from the phase holds on.
type conditionRow struct {
	kind          mcfgv1.StateProgress
	begins, holds Phase
	needs         func(*plan.Plan) bool // nil: every update
	skipped       string                // the message where the plan does not need the step
}

func needsDrain(p *plan.Plan) bool  { return p.Drain || p.Reboot }
func needsReboot(p *plan.Plan) bool { return p.Reboot }

var conditionRows = []conditionRow{
	{mcfgv1.MachineConfigNodeUpdatePrepared, PhaseStage, PhaseCordon, nil, ""},
	{mcfgv1.MachineConfigNodeUpdateExecuted, PhaseCordon, PhaseProve, nil, ""},
	{mcfgv1.MachineConfigNodeUpdateCordoned, PhaseCordon, PhaseDrain, needsDrain, "no drain is needed"},
	{mcfgv1.MachineConfigNodeUpdateDrained, PhaseDrain, PhaseApply, needsDrain, "no drain is needed"},
	{mcfgv1.MachineConfigNodeUpdateFilesAndOS, PhaseApply, PhaseReboot, nil, ""},
	{mcfgv1.MachineConfigNodeUpdatePostActionComplete, PhaseReboot, PhaseProve, nil, ""},
	{mcfgv1.MachineConfigNodeUpdateRebooted, PhaseReboot, PhaseProve, needsReboot, "no reboot is needed"},
	{mcfgv1.MachineConfigNodeResumed, PhaseProve, PhaseSettle, nil, ""},
	{mcfgv1.MachineConfigNodeUpdateComplete, PhaseProve, PhaseSettle, nil, ""},
	{mcfgv1.MachineConfigNodeUpdateUncordoned, PhaseSettle, PhaseDone, needsDrain, "no drain is needed"},
}

// conditions returns the conditions of the MachineConfigNode in a phase. had are the present ones: their message keeps
// the action that the update began with, which a head that started after the boot can't know otherwise.
func conditions(v *situation, p Phase, waiting *api.Drain, had []metav1.Condition) []metav1.Condition {
	at := p
	switch p {
	case PhaseBackoff:
		at = v.failure.phase
	case PhaseNeedsReboot:
		at = PhaseReboot
	}
	idle := !slices.Contains(road, at) || at == PhaseDone || at == PhasePlan
	action := updateAction(v, had)
	const updated = mcfgv1.MachineConfigNodeUpdated
	out := []metav1.Condition{condition(updated, p == PhaseDone, string(updated), action)}
	for _, row := range conditionRows {
		c := metav1.Condition{Type: string(row.kind), Status: metav1.ConditionFalse, Reason: reasonNotYet, Message: action}
		switch {
		case idle:
		case v.skips(row):
			c.Message = action + "; " + row.skipped
		case !before(at, row.holds):
			c.Status, c.Reason = metav1.ConditionTrue, string(row.kind)
		case !before(at, row.begins):
			c.Status, c.Reason = metav1.ConditionUnknown, string(row.kind)
		}
		if row.kind == mcfgv1.MachineConfigNodeUpdateDrained && at == PhaseDrain && waiting != nil &&
			len(waiting.Waiting) > 0 {
			first := waiting.Waiting[0]
			c.Reason = first.Why
			c.Message = fmt.Sprintf("%s; waiting for %d pods, among them %s", action, waiting.Left, drain.Sentence(first))
		}
		if step := drain.StepText(waiting); row.kind == mcfgv1.MachineConfigNodeUpdateDrained && at == PhaseDrain &&
			step != "" {
			c.Reason, c.Message = string(waiting.Phase), action+"; "+step
		}
		if row.kind == mcfgv1.MachineConfigNodeUpdatePrepared && at == PhaseStage && v.held != "" {
			c.Message = action + "; " + v.held
		}
		if row.kind == mcfgv1.MachineConfigNodeUpdatePrepared && at == PhaseHooks && v.failure != nil {
			c.Message = action + "; " + v.failure.text
		}
		if p == PhaseBeside && row.kind == mcfgv1.MachineConfigNodeUpdatePrepared {
			c.Message = action + "; " + v.beside()
		}
		if p == PhaseNeedsReboot && row.kind == mcfgv1.MachineConfigNodeUpdateRebooted {
			c.Status, c.Reason = metav1.ConditionUnknown, "NeedsReboot"
			c.Message = action + "; the reboot is left to people"
		}
		if row.kind == mcfgv1.MachineConfigNodeUpdateRebooted && v.host != nil && v.host.RebootWay != nil {
			c.Message += "; the latest reboot: " + v.host.RebootWay.String()
		}
		out = append(out, c)
	}
	out = append(out, degraded(v, p))
	for i := range out {
		keepTime(&out[i], had, v.now)
	}
	return out
}

func (v *situation) skips(row conditionRow) bool {
	if row.needs == nil {
		return false
	}
	if v.plan != nil {
		return !row.needs(v.plan) || v.node.SingleReplica && row.kind != mcfgv1.MachineConfigNodeUpdateRebooted
	}
	// After a boot the plan is gone; the cordon still shows that there was a drain, and the boot that there was a reboot.
	return row.kind != mcfgv1.MachineConfigNodeUpdateRebooted && v.node.Cordon == nil
}

// updateAction describes the update, what it does to the node, and why.
func updateAction(v *situation, had []metav1.Condition) string {
	text := "Action during update to " + v.node.Desired + ": "
	if v.plan != nil && (len(v.plan.Changes) > 0 || len(v.plan.Actions) > 0) {
		return text + disruption(v.plan)
	}
	for _, c := range had {
		if c.Type == string(mcfgv1.MachineConfigNodeUpdated) && strings.HasPrefix(c.Message, text) {
			return c.Message
		}
	}
	switch {
	case v.plan != nil:
		return text + disruption(v.plan)
	case v.resting():
		return text + "nothing had to be done"
	}
	return text + "not known yet"
}

func condition(kind mcfgv1.StateProgress, holds bool, reason, message string) metav1.Condition {
	c := metav1.Condition{Type: string(kind), Status: metav1.ConditionFalse, Reason: reason, Message: message}
	if holds {
		c.Status = metav1.ConditionTrue
	}
	return c
}

func degraded(v *situation, p Phase) metav1.Condition {
	const kind = mcfgv1.MachineConfigNodeNodeDegraded
	switch {
	case p == PhaseRolledBack:
		return condition(kind, true, reasonRolledBack, v.whyRolledBack())
	case p == PhaseHold:
		return condition(kind, true, reasonChanged, holdReason+": "+v.host.Reason)
	case p != PhaseDone && p != PhaseProve && v.failure.bad(v.now):
		return condition(kind, true, v.failure.reason, v.failure.text)
	}
	return condition(kind, false, "AsExpected", "")
}

// keepTime keeps the time of a condition whose status has not changed.
func keepTime(c *metav1.Condition, had []metav1.Condition, now time.Time) {
	const longest = 32768 // the API's limit of a message
	if len(c.Message) > longest {
		c.Message = strings.ToValidUTF8(c.Message[:longest], "")
	}
	c.LastTransitionTime = metav1.NewTime(now.UTC().Truncate(time.Second))
	for _, old := range had {
		if old.Type == c.Type && old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
	}
}

// reports decides whether a phase deserves a status of the MachineConfigNode. Phases that pass at once, or that know
// nothing yet, do not.
func reports(p Phase) bool {
	return !slices.Contains([]Phase{PhaseAbsent, PhaseObserve, PhaseUnconfigured, PhasePlan, PhaseCordon}, p)
}
