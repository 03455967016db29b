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

// aheadState is what the head knows about staging ahead: the staging that a RolloutPolicy asks for while the node
// serves.
type aheadState struct {
	known  bool        // the Node's own report was read
	report *api.Staged // the wanted report on the Node; nil: none
	// retry is the time of the next try after an error that is no fault of the node. An API server that is away is such an
	// error.
	retry time.Time
}

// order returns the order to stage ahead. It is nil where the node already has that configuration, or is on the way to
// it, as far as known. With other values of the node it is another configuration.
func (v *situation) order() *api.StageOrder {
	o := v.node.Orders.Stage
	if o == nil || v.host == nil || o.Config == "" || api.SameContent(o.Config, v.node.Desired) ||
		api.SameContent(o.Config, v.host.Config.Committed) {
		return nil
	}
	return o
}

// aheadDue returns when the order is to be carried out; the zero time: not at all. After a failure the Node reports the
// number of tries, and the time of the next try follows from that number.
func (v *situation) aheadDue() time.Time {
	at, said := v.aheadRetry, v.ahead
	if said != nil && !said.Since.After(v.now) {
		at = later(at, said.Since.Add(api.StageRetry(said.Tries)))
	}
	return v.from(v.order() != nil && (said == nil || said.Error != ""), at)
}

func (h *Head) aheadDue(v *situation) time.Time {
	if h.phase == PhaseHold {
		return time.Time{}
	}
	return v.aheadDue()
}

// see takes over the Node's report, and compares it with the host's state. read reports whether the host was read since
// the last operation.
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
		// The pool controller needs a reported failure to decide when to ask again.
		if r.Error == "" || v.host != nil && api.SameContent(r.Config, v.host.Config.Committed) {
			s.report = nil
		}
	case !api.SameContent(r.Config, o.Config):
		s.report = nil
	case r.Error == "" && r.Digest != "" && v.host != nil && read && v.order() != nil && !v.has(o, r.Digest):
		s.report = nil // the staged OS was removed on the host
	}
	if o == nil {
		s.retry = time.Time{}
	}
	v.ahead, v.aheadRetry = s.report, s.retry
}

// stages reports whether a job carries out the present order.
func (v *situation) stages(j *job) bool {
	o := v.order()
	return o != nil && o.Config == j.config
}

// has reports whether the host has that OS staged for the order.
func (v *situation) has(o *api.StageOrder, digest string) bool {
	return machineconfig.NamedBy(o.Config, v.host.Staged) && v.host.StagedOS == digest
}

// reportAhead adds the report on staging ahead.
func (v *situation) reportAhead(r *nodeReport) {
	if v.ahead == nil {
		r.drop(api.StagedKey)
		return
	}
	r.set(api.StagedKey, api.Encode(v.ahead))
}

// startAhead begins to stage the ordered configuration.
func (h *Head) startAhead(ctx context.Context, v *situation) {
	o := *v.order()
	h.run(ctx, phaseAhead, o.Config, func(ctx context.Context, e *jobEnd) (err error) {
		r := hands.Request{Name: o.Config, Order: &o, Beside: v.node.Bootc}
		if r.Config, err = h.cluster.document(ctx, o.Config); err != nil {
			return err
		}
		if r.Config, err = leftOut(r.Config); err != nil {
			return err
		}
		if r.Policy, err = h.cluster.policy(ctx); err != nil {
			return err
		}
		return h.stageOrdered(ctx, r, e)
	})
}

// stageOrdered stages the ordered configuration, and finds out which OS that is.
func (h *Head) stageOrdered(ctx context.Context, r hands.Request, e *jobEnd) error {
	if err := h.o.Hands.Stage(ctx, r); err != nil {
		return err
	}
	s, err := h.o.Hands.Status(ctx)
	if err != nil {
		return err
	}
	e.staged = &api.Staged{Config: api.Rendered(r.Name), Since: time.Now().UTC().Truncate(time.Second)}
	if machineconfig.NamedBy(r.Name, s.Staged) {
		e.staged.Digest = s.StagedOS
	}
	return nil
}

// stageApproved stages the configuration that the node is about to go to. Where a policy ordered to stage it ahead, the
// OS staged then is used, and no other than the approved OS.
func (h *Head) stageApproved(ctx context.Context, r hands.Request, e *jobEnd) error {
	if r.Order == nil {
		return h.o.Hands.Stage(ctx, r)
	}
	if err := h.stageOrdered(ctx, r, e); err != nil {
		return err
	}
	return unapproved(r.Order, e.staged)
}

// unapproved returns an error where the staged OS is not the approved one, nil where it is.
func unapproved(o *api.StageOrder, staged *api.Staged) error {
	if o.Digest == "" || staged.Digest == "" || o.Digest == staged.Digest {
		return nil
	}
	return &typedError{reason: reasonStaging, err: host.NotApproved(o.Config, staged.Digest, o.Digest)}
}

// unapproved handles a failure whose cause may be that the host has an OS other than the approved one. When an apply
// finds that out, the staged OS had been removed: another stage shows which OS the image names now. When a stage finds
// that out, the node may as well serve.
func (h *Head) unapproved(e *jobEnd) {
	switch f := h.way.failure; {
	case e.job.phase == PhaseApply && e.job.approved != "" && errors.As(e.err, new(*host.Refused)):
		h.way.staged = false
	case e.job.phase == PhaseStage && e.staged != nil && f != nil && before(PhaseStage, f.phase):
		f.phase = PhaseStage
	}
}

// aheadEnded takes over the result of staging ahead. A failure changes nothing on the node: nothing is wrong with the
// node.
func (h *Head) aheadEnded(e jobEnd, now time.Time) {
	s := &h.ahead
	switch {
	case e.err == nil:
		s.report, s.retry = e.staged, time.Time{}
	case errors.Is(e.err, context.Canceled):
	case errors.As(e.err, new(*host.Refused)), errors.As(e.err, new(*clusterError)):
		s.retry = now.Add(jitter(unstagePace)) // such an error proves nothing about the ordered OS
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

// sawStaged records the OS that the node has staged on its way to a configuration that was ordered before.
func (h *Head) sawStaged(staged *api.Staged) {
	if was := h.ahead.report; was.Is(staged.Config) && was.Digest == staged.Digest {
		return
	}
	h.ahead.report = staged
}

// announceStaged announces the result of staging ahead.
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
