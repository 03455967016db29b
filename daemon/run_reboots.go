// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"slices"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/plan"
	"github.com/noderefit/noderefit/transaction"
)

// wantedLimit bounds the question whether anything wants a reboot: hooks have limits of their own.
const wantedLimit = 20 * time.Minute

// wantedDue returns when everything that may want a reboot is asked again. Files, kernels and deployments are seen with
// each status.
func (h *Head) wantedDue(v *situation) time.Time {
	return v.from(h.o.Rebooter != nil && v.host != nil && atRest(h.phase), h.wantedAt)
}

func (h *Head) askWanted(ctx context.Context, v *situation) work {
	h.wantedAt = v.now.Add(jitter(restPace))
	return func() func() {
		ctx, cancel := context.WithTimeout(ctx, wantedLimit)
		defer cancel()
		err := h.o.Rebooter.RebootWanted(ctx)
		return func() {
			if err != nil {
				h.log.Warn("asking what wants a reboot", zap.Error(err))
				return
			}
			h.askAt = time.Time{}
		}
	}
}

// announceWanted announces each kind of reason for a reboot that appears on the Node.
func (h *Head) announceWanted(before, after *corev1.Node) {
	was, _ := api.Decode[api.RebootWanted](before.Annotations, api.RebootWantedKey)
	is, _ := api.Decode[api.RebootWanted](after.Annotations, api.RebootWantedKey)
	for _, r := range is.Reasons {
		if !slices.ContainsFunc(was.Reasons, func(o api.RebootReason) bool { return o.Kind == r.Kind }) {
			h.cluster.event(after, corev1.EventTypeNormal, "RebootWanted", "The host wants a reboot: "+r.Message)
		}
	}
	h.announceRebooted(before, after)
}

// announceWay announces a reboot of another method than the one that was asked for.
func (h *Head) announceWay(was, is *api.RebootWay, after *corev1.Node) {
	if is.FellBack() && is.Took != "" && (was == nil || *was != *is) {
		h.cluster.event(after, corev1.EventTypeNormal, "RebootFellBack", "The host has rebooted: "+is.String())
	}
}

// announceRebooted announces the end of an ordered reboot.
func (h *Head) announceRebooted(before, after *corev1.Node) {
	was, _ := api.Decode[api.Rebooted](before.Annotations, api.RebootedKey)
	is, _ := api.Decode[api.Rebooted](after.Annotations, api.RebootedKey)
	switch {
	case is.Ended.IsZero() || was.ID == is.ID && !was.Ended.IsZero():
	case is.Failed == "":
		h.cluster.event(after, corev1.EventTypeNormal, "Rebooted", "The host has rebooted and is healthy: "+is.Why)
	default:
		h.cluster.event(after, corev1.EventTypeWarning, "RebootFailed", "The reboot has failed: "+is.Failed)
	}
}

// ordered returns the ID of the ordered reboot, "" where none is ordered.
func (v *situation) ordered() string {
	if o := v.node.Orders.Reboot; o != nil {
		return o.ID
	}
	return ""
}

// bootsAsIs reports whether the host reboots, or has rebooted, without a change of its configuration, and waits for the
// verdict.
func (v *situation) bootsAsIs() bool {
	return v.pending() && v.host.Transaction != nil && v.host.Transaction.Road == transaction.RoadReboot
}

// due returns the ordered reboot that is still to be begun, nil where there is none.
func (v *situation) due() *api.RebootOrder {
	o := v.node.Orders.Reboot
	if o == nil || o.ID == "" || v.host == nil {
		return nil
	}
	if b := v.host.Rebooted; b != nil && b.ID == o.ID && (!b.Ended.IsZero() || !v.inPhase(transaction.PhaseBoot)) {
		return nil
	}
	return o
}

// reboots reports whether the host is to reboot as it is, because that was ordered.
func (v *situation) reboots() bool {
	return v.due() != nil && (v.resting() || v.bootsAsIs() && v.host.Config.Pending == v.node.Desired)
}

// leftToPeople reports whether the desired configuration is committed and waits for people to boot it.
func (v *situation) leftToPeople() bool {
	return v.host.NeedsReboot && v.host.Config.Pending == v.node.Desired && v.node.Orders.ManualReboots && v.due() == nil
}

// followOrder makes the plan that of the orders: a reboot without a change, or an update whose reboot is left to
// people, which disrupts nothing.
func (v *situation) followOrder() {
	if v.host == nil {
		return
	}
	if o := v.due(); o != nil && v.reboots() {
		v.plan, v.staged = &plan.Plan{Current: v.host.Config.Committed, Desired: v.node.Desired, Drain: true, Reboot: true,
			SoftReboot: o.Soft, Actions: []plan.Action{{Type: plan.ActionDrain, Because: o.Why},
				{Type: plan.ActionReboot, Because: o.Why}}}, true
		return
	}
	if v.node.Orders.ManualReboots && v.due() == nil && v.undrained() && v.plan != nil && v.plan.Reboot {
		quiet := *v.plan
		quiet.Drain, quiet.Reboot = false, false
		v.plan, v.manual = &quiet, true
	}
}

// undrained reports whether no update is under way that the node was drained for, and that reboots the host itself. A
// commit whose reboot is left to people is made without a cordon, and the host notes at the end that people reboot it.
func (v *situation) undrained() bool {
	commits := v.inPhase(transaction.PhasePrepare) || v.inPhase(transaction.PhaseBoot)
	return !v.pending() || v.host.NeedsReboot || commits && v.node.Cordon == nil
}
