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

// hostAnswer is the host's status, or the error of reading it.
type hostAnswer struct {
	status *host.Status
	err    error
}

// ask reads the host where that is due.
func (h *Head) ask(ctx context.Context, now time.Time) {
	if h.asking || now.Before(h.askAt) {
		return
	}
	h.asking = true
	// A change before the answer arrives is not lost: the change makes the next read due at once.
	h.askAt = now.Add(jitter(workPace))
	if h.resting() {
		h.askAt = now.Add(jitter(restPace))
	}
	go func() {
		ctx, cancel := context.WithTimeout(ctx, statusLimit)
		defer cancel()
		s, err := h.o.Hands.Status(ctx)
		h.statuses <- hostAnswer{s, err}
	}()
}

// resting: we are not going to change anything on the host.
func (h *Head) resting() bool {
	return h.phase == PhaseDone || h.phase == PhaseUnconfigured || h.phase == PhaseAbsent || h.phase == PhaseRolledBack
}

// readHost takes over the host's status.
func (h *Head) readHost(a hostAnswer) {
	now := time.Now()
	h.asking = false
	if h.late {
		h.late, h.askAt = false, time.Time{}
		return
	}
	if a.err != nil {
		h.blind = fail(h.blind, PhaseObserve, failDegraded, reasonObserving,
			blindReason+": "+message.OneLine(a.err.Error()), now)
		h.log.Warn("reading the host", zap.Error(a.err))
		h.askAt = h.blind.retry
		return
	}
	h.blind = nil
	before := h.host
	h.host, h.read = a.status, true
	h.metrics.host(a.status)
	if before != nil && recordOf(before) == recordOf(a.status) {
		return
	}
	h.hostSince, h.tellAt = now, time.Time{} // after a boot the host has no report
	if a.status.Config.Pending == "" {
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

// vouch reports the API server's view of the Node to the host. An apply needs the report before it begins, as the state
// of the node before the update; a verdict needs reports until it is given. Each report comes from a new request: a
// watch does not tell news from silence.
func (h *Head) vouch(ctx context.Context, v *situation, p Phase) {
	listens := p == PhaseApply || h.job != nil && h.job.phase == PhaseApply
	if !listens && (v.host == nil || !v.inPhase(transaction.PhaseProve)) {
		h.tellAt, h.spoke = time.Time{}, time.Time{}
		return
	}
	// Whatever the result, the next request comes later; but a change that the watch shows is news.
	if h.telling || v.ready == h.told && v.now.Before(h.tellAt) {
		return
	}
	h.telling, h.told, h.tellAt = true, v.ready, v.now.Add(jitter(wordPace))
	go func() {
		ctx, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		node, err := h.o.Kube.CoreV1().Nodes().Get(ctx, h.o.Node, metav1.GetOptions{})
		if err == nil {
			ready, why := nodeWord(node, h.o.Boot, time.Now(), host.Uptime())
			err = h.o.Senses.NodeReady(ctx, ready, why, nodeHeard(node))
		}
		h.words <- err
	}()
}

// warnHost reports to an apply that may still be stopped that the node has taken pods since its drain. The report is
// sent before the node is cordoned again, and repeated until the node has been drained again.
func (h *Head) warnHost(ctx context.Context, v *situation) {
	committing := h.job != nil && h.job.phase == PhaseApply ||
		v.host != nil && (v.inPhase(transaction.PhasePrepare) || v.inPhase(transaction.PhaseBoot))
	needed := v.hold == drain.Lost || committing && (h.opened || v.plan != nil && v.drains())
	if !h.open || !needed || h.opened && v.now.Before(h.openAt) {
		return
	}
	h.tellHold(ctx, false, "somebody uncordoned it after the drain")
	h.openAt = v.now.Add(jitter(wordPace))
}

// tellHold reports to the host whether the node is held. The report is a small file: there is nothing to wait for.
func (h *Head) tellHold(ctx context.Context, held bool, why string) {
	h.opened = !held
	if err := h.o.Senses.NodeHeld(ctx, held, why); err != nil {
		h.log.Warn("telling the host about the hold on the Node", zap.Error(err))
	}
}

// vouched takes over the result of a report to the host.
func (h *Head) vouched(err error) {
	h.telling, h.spoke = false, time.Now()
	if err != nil && !away(err) {
		h.log.Warn("telling the host about the Node", zap.Error(err))
	}
}
