// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"strings"
	"time"

	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/drain"
	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/message"
	"github.com/noderefit/noderefit/transaction"
)

func (h *Head) readDue(v *situation) time.Time { return v.from(true, h.askAt) }

// ask reads the host.
func (h *Head) ask(ctx context.Context, v *situation) work {
	// A change before the answer arrives is not lost: the change makes the next read due at once.
	h.askAt = v.now.Add(jitter(workPace))
	if h.resting() {
		h.askAt = v.now.Add(jitter(restPace))
	}
	return func() func() {
		ctx, cancel := context.WithTimeout(ctx, statusLimit)
		defer cancel()
		s, err := h.o.Hands.Status(ctx)
		return func() { h.readHost(s, err) }
	}
}

// resting reports whether the head is not going to change anything on the host.
func (h *Head) resting() bool {
	return h.phase == PhaseDone || h.phase == PhaseUnconfigured || h.phase == PhaseAbsent || h.phase == PhaseRolledBack ||
		h.phase == PhaseNeedsReboot
}

// readHost takes over the host's status, or the error of reading it.
func (h *Head) readHost(status *host.Status, err error) {
	now := time.Now()
	if h.late {
		h.late, h.askAt = false, time.Time{}
		return
	}
	if err != nil {
		h.blind = fail(h.blind, PhaseObserve, failDegraded, reasonObserving,
			blindReason+": "+message.OneLine(err.Error()), now)
		h.log.Warn("reading the host", zap.Error(err))
		h.askAt = h.blind.retry
		return
	}
	h.blind = nil
	before := h.host
	h.host, h.read = status, true
	h.metrics.host(status)
	if before != nil && recordOf(before) == recordOf(status) {
		return
	}
	h.hostSince, h.tellAt = now, time.Time{} // after a boot the host has no report
	if status.Config.Pending == "" {
		// An attempt has ended in some way: what was found out for it may not be true any more.
		h.way.plan, h.way.staged, h.way.rebooting = nil, false, time.Time{}
	}
	if f := h.way.failure; f != nil && f.kind == failUnreconcilable {
		f.retry = now
	}
}

// recordOf returns the part of a status that decides the next step.
func recordOf(s *host.Status) string {
	return strings.Join([]string{s.Config.Committed, s.Config.Pending, s.Phase, string(s.State)}, "|")
}

// hears reports whether the host waits for reports on the Node. An apply needs one before it begins, as the state of
// the node before the update; a verdict needs reports until it is given.
func (h *Head) hears(v *situation) bool {
	return h.phase == PhaseApply || h.job != nil && h.job.phase == PhaseApply ||
		v.host != nil && v.inPhase(transaction.PhaseProve)
}

// vouchDue returns when the next report is due. A change that the watch shows is news.
func (h *Head) vouchDue(v *situation) time.Time {
	if v.ready != h.told {
		return v.from(h.hears(v), v.now)
	}
	return v.from(h.hears(v), h.tellAt)
}

// vouch reports the API server's view of the Node to the host. Each report comes from a new request, because a silent
// watch does not show whether the API server is away. The next request comes later, after a success as after a failure.
func (h *Head) vouch(ctx context.Context, v *situation) work {
	h.told, h.tellAt = v.ready, v.now.Add(jitter(wordPace))
	return func() func() {
		ctx, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		node, err := h.o.Kube.Nodes().Get(ctx, h.o.Node, metav1.GetOptions{})
		if err == nil {
			ready, why := nodeWord(node, h.o.Boot, time.Now(), transaction.Uptime())
			err = h.o.Senses.NodeReady(ctx, ready, why, nodeHeard(node))
		}
		return func() { h.vouched(err) }
	}
}

// warnHostDue returns when an apply that may still be stopped is to hear that the node has taken pods since its drain.
// The report is sent before the node is cordoned again, and repeated until the node has been drained again.
func (h *Head) warnHostDue(v *situation) time.Time {
	committing := h.job != nil && h.job.phase == PhaseApply ||
		v.host != nil && (v.inPhase(transaction.PhasePrepare) || v.inPhase(transaction.PhaseBoot))
	needed := v.hold == drain.Lost || committing && (h.opened || v.plan != nil && v.drains())
	return v.from(h.open && needed, h.openAt)
}

func (h *Head) warnHost(ctx context.Context, v *situation) {
	h.tellHold(ctx, false, "the node was uncordoned after the drain")
	h.openAt = v.now.Add(jitter(wordPace))
}

// tellHold reports to the host whether the node is held. The report is a small file: there is nothing to wait for.
func (h *Head) tellHold(ctx context.Context, held bool, why string) {
	h.opened, h.openAt = !held, time.Time{}
	if err := h.o.Senses.NodeHeld(ctx, held, why); err != nil {
		h.log.Warn("telling the host about the hold on the Node", zap.Error(err))
	}
}

// vouched takes over the result of a report to the host.
func (h *Head) vouched(err error) {
	h.spoke = time.Now()
	if err != nil && !away(err) {
		h.log.Warn("telling the host about the Node", zap.Error(err))
	}
}
