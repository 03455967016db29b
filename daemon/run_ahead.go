// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/hands"
	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/message"
)

// aheadState is what the head knows of staging ahead: what a RolloutPolicy asks of the node while it serves.
type aheadState struct {
	known  bool        // the Node's own word was taken up
	report *api.Staged // what the Node is to say; nil: nothing
	// retry is when it is tried again where that is nothing to be said of the node, such as when the API server is away.
	retry time.Time
}

// order is what the node is to stage ahead; nil: nothing that it has not, and is not sent to, as far as that is known.
func (v *situation) order() *api.StageOrder {
	o := v.node.Orders.Stage
	if o == nil || v.host == nil || o.Config == "" || api.SameContent(o.Config, v.node.Desired) ||
		api.SameContent(o.Config, v.host.Config.Committed) {
		return nil
	}
	return o
}

// aheadDue says that the order is to be carried out now. Where that failed the Node says how often, and when it is
// tried again follows from that.
func (v *situation) aheadDue() bool {
	if v.order() == nil || v.ahead != nil && v.ahead.Error == "" || v.now.Before(v.aheadRetry) {
		return false
	}
	return v.ahead == nil || v.now.Sub(v.ahead.Since) >= api.StageRetry(v.ahead.Tries) || v.ahead.Since.After(v.now)
}

// see takes what the Node says and what the host has into account. read says that the host was read since the last
// operation.
func (s *aheadState) see(v *situation, read bool) {
	if !v.exists {
		return
	}
	if !s.known {
		s.known, s.report = true, v.node.Staged
	}
	o := v.node.Orders.Stage
	switch r := s.report; {
	case r == nil:
	case o == nil:
		// That it could not is what whoever gives orders decides by when to ask again.
		if r.Error == "" || v.host != nil && api.SameContent(r.Config, v.host.Config.Committed) {
			s.report = nil
		}
	case !api.SameContent(r.Config, o.Config):
		s.report = nil
	case r.Error == "" && r.Digest != "" && v.host != nil && read && v.order() != nil && !v.has(o, r.Digest):
		s.report = nil // somebody let go of it
	}
	if o == nil {
		s.retry = time.Time{}
	}
	v.ahead, v.aheadRetry = s.report, s.retry
}

// stages says that a job carries out the present order.
func (v *situation) stages(j *job) bool {
	o := v.order()
	return o != nil && o.Config == j.config
}

// has says that the host has that OS staged for the order.
func (v *situation) has(o *api.StageOrder, digest string) bool {
	return machineconfig.NamedBy(o.Config, v.host.Staged) && v.host.StagedOS == digest
}

// reportAhead is what the Node is to say of it.
func (v *situation) reportAhead(r *nodeReport) {
	if v.ahead == nil {
		r.drop(api.StagedKey)
		return
	}
	r.set(api.StagedKey, api.Encode(v.ahead))
}

// startAhead begins to stage what is ordered.
func (h *Head) startAhead(ctx context.Context, v *situation) {
	o := *v.order()
	h.run(ctx, phaseAhead, o.Config, func(ctx context.Context, e *jobEnd) (err error) {
		r := hands.Request{Name: o.Config, Order: &o}
		if r.Config, err = h.cluster.document(ctx, o.Config); err != nil {
			return err
		}
		if r.Policy, err = h.cluster.policy(ctx); err != nil {
			return err
		}
		return h.stageOrdered(ctx, r, e)
	})
}

// stageOrdered stages what a policy orders, and finds out what that is.
func (h *Head) stageOrdered(ctx context.Context, r hands.Request, e *jobEnd) error {
	if err := h.o.Hands.Stage(ctx, r); err != nil {
		return err
	}
	s, err := h.o.Hands.Status(ctx)
	if err != nil {
		return err
	}
	e.staged = &api.Staged{Config: r.Name, Since: time.Now().UTC().Truncate(time.Second)}
	if machineconfig.NamedBy(r.Name, s.Staged) {
		e.staged.Digest = s.StagedOS
	}
	return nil
}

// stageApproved stages what the node is about to go to: what was staged before, where a policy ordered that, and
// nothing else than was approved.
func (h *Head) stageApproved(ctx context.Context, r hands.Request, e *jobEnd) error {
	if r.Order == nil {
		return h.o.Hands.Stage(ctx, r)
	}
	if err := h.stageOrdered(ctx, r, e); err != nil {
		return err
	}
	return unapproved(r.Order, e.staged)
}

// unapproved is that the node, on its way to what was approved, has something else; nil: it has not.
func unapproved(o *api.StageOrder, staged *api.Staged) error {
	if o.Digest == "" || staged.Digest == "" || o.Digest == staged.Digest {
		return nil
	}
	return &typedError{reason: reasonStaging, err: host.NotApproved(o.Config, staged.Digest, o.Digest)}
}

// unapproved is about what failed, and may have because the host has another OS than was approved. Where an apply finds
// that out, what was staged had gone: to stage again says what it is now. Where that does, the node may as well serve.
func (h *Head) unapproved(e *jobEnd) {
	switch f := h.way.failure; {
	case e.job.phase == PhaseApply && e.job.approved != "" && errors.As(e.err, new(*host.Refused)):
		h.way.staged = false
	case e.job.phase == PhaseStage && e.staged != nil && f != nil && before(PhaseStage, f.phase):
		f.phase = PhaseStage
	}
}

// aheadEnded takes what became of staging ahead. A node that could not stays as it is: nothing is wrong with it.
func (h *Head) aheadEnded(e jobEnd, now time.Time) {
	s := &h.ahead
	switch {
	case e.err == nil:
		s.report, s.retry = e.staged, time.Time{}
	case errors.Is(e.err, context.Canceled):
	case errors.As(e.err, new(*host.Refused)), errors.As(e.err, new(*clusterError)):
		s.retry = now.Add(jitter(unstagePace)) // which says nothing of what is to be staged
	default:
		tries := 1
		if r := s.report; r.Failed(e.job.config) {
			tries += r.Tries
		}
		s.report = &api.Staged{Config: e.job.config, Error: api.ShortReason(message.OneLine(e.err.Error())), Tries: tries,
			Since: now.UTC().Truncate(time.Second)}
	}
	if e.err != nil {
		h.log.Info("staging ahead", zap.String("config", e.job.config), zap.Error(e.err))
	}
}

// sawStaged notes what the node has staged on its way to what was ordered before.
func (h *Head) sawStaged(staged *api.Staged) {
	if was := h.ahead.report; was.Is(staged.Config) && was.Digest == staged.Digest {
		return
	}
	h.ahead.report = staged
}

// announceStaged tells people what became of staging ahead.
func (h *Head) announceStaged(was, is *api.Staged, node *corev1.Node) {
	switch {
	case is == nil || was != nil && *was == *is:
	case is.Error == "":
		h.cluster.event(node, corev1.EventTypeNormal, "Staged", fmt.Sprintf("Staged %s (%s) ahead: the node serves, and "+
			"boots nothing of it", is.Config, cmp.Or(is.Digest, "no OS")))
	case was == nil || was.Error != is.Error:
		h.cluster.event(node, corev1.EventTypeWarning, "StagingFailed", fmt.Sprintf("Staging %s ahead failed, the node "+
			"serves as before: %s", is.Config, is.Error))
	}
}
