// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"strings"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/hands"
	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/message"
)

// touch has the host looked at soon. On the way to something else nothing is: the update compares for itself, and at
// its end, which may be where it began, the host is looked at. One that waits for drift to be undone tries again.
func (h *Head) touch(now time.Time) {
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

// strict says that the update to what is desired waits as long as the host has drifted. The way back to what the host
// proved is always open.
func (h *Head) strict(v *situation) bool {
	return leaves(v) && h.cluster.driftPolicy(v.node.Desired).Strict()
}

// leaves says that the host is to leave what it has proved and is at rest on.
func leaves(v *situation) bool {
	return v.host != nil && !v.pending() && v.host.Config.Committed != "" && v.host.Config.Committed != v.node.Desired
}

// policyPatience is how long an update waits for the watch that says what its pool wants of drift.
const policyPatience = 10 * time.Second

// preflight compares the host with what it has before an update begins. desired is the watch of what it goes to, where
// that has a say; nil: it has none.
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
	if r.Strict && len(found.Drift) > 0 {
		return &host.DriftError{Config: found.Config, Drift: found.Drift}
	}
	return nil
}

// warnOverwrite says that an update starts on a host that has drifted.
func (h *Head) warnOverwrite(e jobEnd) {
	node := h.cluster.current()
	if e.drift == nil || len(e.drift.Drift) == 0 || h.way.overwrites || node == nil || e.drift.Config == h.way.to {
		return
	}
	h.way.overwrites = true
	h.cluster.event(node, corev1.EventTypeWarning, "UpdateOverwritesDrift",
		"The update to "+h.way.to+" starts on a host that does not match "+e.drift.Config+": "+
			api.NewDrift(e.drift.Config, h.drift.items).Names(driftNames)+
			"; what of it the update manages is overwritten, and a copy is kept on the host, below "+
			"/var/lib/machine-config-daemon/drift")
}

// verified takes the answer to whether the host matches its configuration.
func (h *Head) verified(e jobEnd, now time.Time) {
	h.verifyAt = now.Add(jitter(verifyPace))
	if e.err != nil || e.drift == nil {
		if h.o.Monitor != nil && e.err != nil {
			h.verifyAt = now.Add(jitter(touchSlowest)) // what was touched is still to be looked at
		}
		return
	}
	h.found(e.drift, now, now.Sub(e.job.began))
	if h.drift.pace.last.After(e.job.began) {
		h.verifyAt = h.drift.pace.touched(now, h.verifyAt) // it may have been compared before it changed
	}
}

// found takes what the host says of itself, and watches what it names.
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
		// What changed between the comparison and the watch nobody has seen.
		h.drift.config = v.Config
		h.verifyAt = h.drift.pace.touched(now, h.verifyAt)
	}
	blind := ""
	if err := h.o.Monitor.Blind(); err != nil {
		blind = err.Error()
	}
	if blind != h.drift.blind && blind != "" {
		h.log.Warn("the kernel does not tell of all changes on the host: they are looked for", zap.String("error", blind))
	} else if blind != h.drift.blind {
		h.log.Info("the kernel tells of changes on the host again")
	}
	h.drift.blind = blind
}

// announceDrift tells people of a change of what the Node says of drift.
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

// mend writes back what the policy says is to be. While somebody has cordoned the node nothing is: whoever works on it
// would have the ground pulled from under them. A force file is that person's own word.
func (h *Head) mend(ctx context.Context, v *situation) {
	// That of what the host has: after a rollback it is not what is desired.
	policy := h.cluster.driftPolicy(v.host.Config.Committed)
	subjects, next := h.drift.due(policy, v.now)
	h.repairAt = next
	if v.now.Before(h.drift.after) || !h.drift.forced && (len(subjects) == 0 || v.hold.Cordoned()) {
		return
	}
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

// mended takes what became of writing back, and has it looked at.
func (h *Head) mended(e jobEnd, now time.Time) {
	h.metrics.repairs.WithLabelValues(outcomeOf(e.err)).Inc()
	forced := h.drift.forced
	h.drift.forced = false // read anew below
	h.verifyAt = now
	failed := ""
	if e.err != nil {
		failed = message.OneLine(e.err.Error())
		h.verifyAt = now.Add(jitter(repairFirst))
		h.log.Warn("writing back what has drifted", zap.Strings("items", e.repaired), zap.Error(e.err))
		kind, _ := h.classify(phaseRepair, e.err)
		untried := kind == failTransient || kind == failRefused || errors.Is(e.err, context.Canceled)
		if untried || forced { // a force file asks for everything, however often it failed
			h.drift.spared(now)
		}
		if untried {
			return
		}
	}
	h.drift.repaired(e.repaired, failed, now)
	if node := h.cluster.current(); node != nil && failed == "" && len(e.repaired) > 0 {
		h.log.Info("wrote back what had drifted", zap.String("items", strings.Join(e.repaired, ", ")))
		h.cluster.event(node, corev1.EventTypeNormal, "ConfigDriftRepaired", repairText(e.repaired, e.result))
	}
}
