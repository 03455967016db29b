// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/hands"
	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/message"
	"github.com/noderefit/noderefit/plan"
)

// touch makes the head compare the host soon. During an update the head does not compare: the update compares by
// itself, and the host is compared at its end. An update that waits until drift is undone tries again.
func (h *Head) touch(now time.Time) {
	if h.resting() {
		h.askAt = time.Time{} // a status costs little, and shows whether packages want a reboot
	}
	if f := h.way.failure; f != nil && f.reason == reasonDrift {
		if soon := h.drift.pace.touched(now, f.retry); soon.Before(f.retry) {
			f.retry = soon
		}
		return
	}
	if !atRest(h.phase) {
		h.drift.unseen = true
		return
	}
	h.verifyAt = h.drift.pace.touched(now, h.verifyAt)
}

// strict reports whether the update to the desired configuration waits while the host has drifted. The way back to the
// proved configuration is always open.
func (h *Head) strict(v *situation) bool {
	return leaves(v) && h.cluster.driftPolicy(v.node.Desired).Strict()
}

// leaves reports whether the host is to leave the proved configuration on which it rests.
func leaves(v *situation) bool {
	return v.host != nil && !v.pending() && v.host.Config.Committed != "" && v.host.Config.Committed != v.node.Desired
}

// policyPatience is how long an update waits for the watch that brings its pool's drift policy.
const policyPatience = 10 * time.Second

// preflight compares the host with its present configuration before an update begins. desired is the watch of the
// desired configuration, whose policy decides; nil: no policy decides.
func (h *Head) preflight(ctx context.Context, r *hands.Request, desired *configWatch, e *jobEnd) error {
	if desired != nil {
		if err := desired.known(ctx, r.Name); err != nil {
			return err
		}
		r.Strict = desired.driftPolicy(r.Name).Strict()
	}
	found, err := h.o.Verifier.Verify(ctx)
	if err != nil {
		if r.Strict {
			return err
		}
		h.log.Warn("comparing the host before the update", zap.Error(err))
		return nil
	}
	e.drift = found
	r.Strict = r.Strict && !found.Forced
	// An update away from a deployment that somebody else has booted mends that drift, and loses nothing of a person.
	differs := slices.DeleteFunc(slices.Clone(found.Drift), func(d host.Drift) bool {
		return d.Kind == host.DriftDeployment
	})
	if r.Strict && len(differs) > 0 {
		return &host.DriftError{Config: found.Config, Drift: differs}
	}
	return nil
}

// warnOverwrite announces that an update starts on a host that has drifted.
func (h *Head) warnOverwrite(e jobEnd) {
	node := h.cluster.current()
	if e.drift == nil || len(e.drift.Drift) == 0 || h.way.overwrites || node == nil || e.drift.Config == h.way.to {
		return
	}
	h.way.overwrites = true
	h.cluster.event(node, corev1.EventTypeWarning, "UpdateOverwritesDrift",
		"The update to "+h.way.to+" starts on a host that does not match "+e.drift.Config+": "+
			api.NewDrift(e.drift.Config, h.drift.items).Names(driftNames)+
			"; the update overwrites the drift at paths that it manages, and keeps a copy on the host, below "+
			"/var/lib/machine-config-daemon/drift")
}

// warnPlan announces what the plan of an update warns of, and what the update removes that others have staged. Each
// text is announced once on a way.
func (h *Head) warnPlan(p *plan.Plan) {
	node := h.cluster.current()
	if p == nil || node == nil {
		return
	}
	texts := slices.Clone(p.Warnings)
	if len(p.Lost) > 0 {
		texts = append(texts, "The update to "+h.way.to+" removes deployments that others have staged on the host: "+
			strings.Join(p.Lost, ", "))
	}
	for _, text := range texts {
		if !slices.Contains(h.way.warned, text) {
			h.way.warned = append(h.way.warned, text)
			h.cluster.event(node, corev1.EventTypeWarning, "UpdateWarning", text)
		}
	}
}

// verified takes over the result of a comparison of the host with its configuration.
func (h *Head) verified(e jobEnd, now time.Time) {
	h.verifyAt = now.Add(jitter(verifyPace))
	if e.err != nil || e.drift == nil {
		if h.o.Monitor != nil && e.err != nil {
			h.verifyAt = now.Add(jitter(touchSlowest)) // the changed paths are still to be compared
		}
		return
	}
	h.found(e.drift, now, now.Sub(e.job.began))
	if h.drift.pace.last.After(e.job.began) {
		h.verifyAt = h.drift.pace.touched(now, h.verifyAt) // that path may have been compared before it changed
	}
}

// found takes over the host's comparison, and watches the paths of that comparison.
func (h *Head) found(v *host.Verification, now time.Time, took time.Duration) {
	h.drift.pace.looked(now, took)
	was := h.drift.report
	h.drift.found(v, h.cluster.driftPolicy(v.Config), now)
	if !h.drift.report.SameAs(was) {
		h.log.Info("drift", zap.String("config", v.Config), zap.Int("items", h.drift.report.Count()))
	}
	if h.o.Monitor == nil {
		return
	}
	h.o.Monitor.Watch(v.Paths)
	if first := h.drift.config != v.Config; first {
		// Changes between the comparison and the watch are still unknown.
		h.drift.config = v.Config
		h.verifyAt = h.drift.pace.touched(now, h.verifyAt)
	}
	blind := ""
	if err := h.o.Monitor.Blind(); err != nil {
		blind = err.Error()
	}
	if blind != h.drift.blind && blind != "" {
		h.log.Warn("the kernel does not report all changes on the host: the agent compares the host regularly instead",
			zap.String("error", blind))
	} else if blind != h.drift.blind {
		h.log.Info("the kernel reports changes on the host again")
	}
	h.drift.blind = blind
}

// announceDrift announces a change of the drift that the Node reports.
func (h *Head) announceDrift(was, is *api.Drift, node *corev1.Node) {
	warnings, gone := driftEvents(was, is, h.drift.mended)
	for _, text := range warnings {
		h.cluster.event(node, corev1.EventTypeWarning, "ConfigDriftDetected", text)
	}
	for _, text := range fightEvents(was, is) {
		h.cluster.event(node, corev1.EventTypeWarning, "ConfigDriftComesBack", text)
	}
	if gone != "" {
		h.cluster.event(node, corev1.EventTypeNormal, "ConfigDriftResolved", gone)
	}
	if is == nil {
		h.drift.mended = nil
	}
}

// compares reports whether the host can be compared with its configuration.
func (h *Head) compares(v *situation) bool {
	return h.o.Verifier != nil && v.host.Config.Committed != ""
}

// verifyDue returns when the host is compared: soon where the paths of another configuration are watched.
func (h *Head) verifyDue(v *situation) time.Time {
	other := h.o.Monitor != nil && h.drift.known && h.drift.config != v.host.Config.Committed &&
		h.compared != v.host.Config.Committed
	if other && h.verifyAt.After(v.now.Add(touchDebounce)) {
		return v.from(h.compares(v), v.now)
	}
	return v.from(h.compares(v), h.verifyAt)
}

func (h *Head) verify(ctx context.Context, v *situation) {
	h.compared = v.host.Config.Committed
	h.run(ctx, phaseVerify, v.node.Desired, func(ctx context.Context, e *jobEnd) (err error) {
		e.drift, err = h.o.Verifier.Verify(ctx)
		return err
	})
}

// drifted returns the subjects to write back now, and when more subjects are due. The policy is that of the host's
// configuration: after a rollback that is not the desired one.
func (h *Head) drifted(v *situation) (subjects []string, next time.Time) {
	return h.drift.due(h.cluster.driftPolicy(v.host.Config.Committed), v.now)
}

// repairDue returns when drift is written back. While another person or tool has cordoned the node, nothing is written
// back: a repair would disturb their work on the node. A force file is their own request.
func (h *Head) repairDue(v *situation) time.Time {
	if !h.compares(v) {
		return time.Time{}
	}
	subjects, next := h.drifted(v)
	if !v.now.Before(h.drift.after) && (h.drift.forced || len(subjects) > 0 && !v.hold.Cordoned()) {
		return v.now
	}
	return next
}

// repair writes back the drift that the policy demands to repair.
func (h *Head) repair(ctx context.Context, v *situation) {
	subjects, _ := h.drifted(v)
	h.run(ctx, phaseRepair, v.node.Desired, func(ctx context.Context, e *jobEnd) error {
		e.repaired = subjects
		r := hands.RepairRequest{Subjects: subjects}
		var err error
		if r.Policy, err = h.cluster.policy(ctx); err != nil {
			return err // what a repair may restart is not known
		}
		e.result, err = h.o.Verifier.Repair(ctx, r)
		return err
	})
}

// mended takes over the result of a repair, and lets the host be compared again.
func (h *Head) mended(e jobEnd, now time.Time) {
	h.metrics.repairs.WithLabelValues(outcomeOf(e.err)).Inc()
	forced := h.drift.forced
	h.drift.forced = false // the comparison below reads the force file anew
	h.verifyAt = now
	failed := ""
	if e.err != nil {
		failed = message.OneLine(e.err.Error())
		h.verifyAt = now.Add(jitter(repairFirst))
		h.log.Warn("writing drifted files back", zap.Strings("items", e.repaired), zap.Error(e.err))
		kind, _ := h.classify(phaseRepair, e.err)
		untried := kind == failTransient || kind == failRefused || errors.Is(e.err, context.Canceled)
		if untried || forced { // a force file asks for everything, however often that failed
			h.drift.spared(now)
		}
		if untried {
			return
		}
	}
	h.drift.repaired(e.repaired, failed, now)
	if failed == "" && len(e.repaired) > 0 {
		h.log.Info("wrote drifted files back", zap.String("items", strings.Join(e.repaired, ", ")))
		h.cluster.announce(corev1.EventTypeNormal, "ConfigDriftRepaired", repairText(e.repaired, e.result))
	}
}
