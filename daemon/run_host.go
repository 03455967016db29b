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

// hostAnswer is the host's status, or why there is none.
type hostAnswer struct {
	status *host.Status
	err    error
}

// ask has the host read where that is due.
func (h *Head) ask(ctx context.Context, now time.Time) {
	if h.asking || now.Before(h.askAt) {
		return
	}
	h.asking = true
	// Until the answer is there, what changed meanwhile is not lost: it makes the next one due at once.
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

// resting: nothing on the host is going to change by us.
func (h *Head) resting() bool {
	return h.phase == PhaseDone || h.phase == PhaseUnconfigured || h.phase == PhaseAbsent || h.phase == PhaseRolledBack
}

// readHost takes the host's answer.
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
	h.hostSince, h.tellAt = now, time.Time{} // after a boot the host knows no word
	if a.status.Config.Pending == "" {
		// An attempt has ended, somehow: what was found out for it may not be so any more.
		h.way.plan, h.way.staged, h.way.rebooting = nil, false, time.Time{}
	}
	if f := h.way.failure; f != nil && f.kind == failUnreconcilable {
		f.retry = now
	}
}

// recordOf is what of a status decides what is to be done.
func recordOf(s *host.Status) string {
	return strings.Join([]string{s.Config.Committed, s.Config.Pending, s.Phase, string(s.State)}, "|")
}

// vouch tells the host what the API server says of the Node: before an apply begins, which takes it for how the node
// was before the update, and as long as there is a verdict to be found. It is asked each time: a watch does not tell
// news from silence.
func (h *Head) vouch(ctx context.Context, v *situation, p Phase) {
	listens := p == PhaseApply || h.job != nil && h.job.phase == PhaseApply
	if !listens && (v.host == nil || !v.inPhase(transaction.PhaseProve)) {
		h.tellAt, h.spoke = time.Time{}, time.Time{}
		return
	}
	// Whatever came of it, it is not asked again soon; but what the watch shows is news.
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

// warnHost tells an apply that may still be held up that the node has taken pods since it was drained. It is said
// before the node is cordoned again, and for as long as nobody has drained it again.
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

// tellHold tells the host whether the node is held. It is a small file: there is nothing to wait for.
func (h *Head) tellHold(ctx context.Context, held bool, why string) {
	h.opened = !held
	if err := h.o.Senses.NodeHeld(ctx, held, why); err != nil {
		h.log.Warn("telling the host about the hold on the Node", zap.Error(err))
	}
}

// vouched takes what became of telling the host.
func (h *Head) vouched(err error) {
	h.telling, h.spoke = false, time.Now()
	if err != nil && !away(err) {
		h.log.Warn("telling the host about the Node", zap.Error(err))
	}
}
