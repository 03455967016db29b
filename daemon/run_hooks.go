// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/hooks"
	"github.com/noderefit/noderefit/message"
)

// hooks returns the cluster's hooks for the update to a configuration. Where waits is true the method waits until they
// are known.
func (h *Head) hooks(ctx context.Context, w *configWatch, config string, waits bool) (hooks.Document, error) {
	doc := hooks.Document{Node: h.o.Node}
	if w == nil {
		return doc, nil
	}
	if waits {
		if err := w.known(ctx, config); err != nil {
			return doc, err
		}
	}
	var err error
	if doc.Hooks, err = api.Decode[[]api.Hook](w.annotations(config), api.HooksKey); err != nil {
		return doc, &hooks.Error{When: hooks.BeforeDrain, Hook: api.HooksKey, Why: message.OneLine(err.Error())}
	}
	for _, hook := range doc.Hooks {
		// The question is not known, so that the hook can't have agreed.
		if hook.Problem != "" && waits {
			return doc, &hooks.Error{When: hooks.BeforeDrain, Hook: api.NodeHookPrefix + hook.Name, Why: hook.Problem}
		}
	}
	return doc, nil
}

// heldBy takes over a hook's refusal, and announces it once.
func (h *Head) heldBy(err error, now time.Time) {
	no, is := errors.AsType[*hooks.Error](err)
	if !is {
		return
	}
	was := h.stop
	stop := &api.HookStop{Config: h.way.to, Hook: no.Hook, Why: no.Why, Output: no.Output,
		Since: now.UTC().Truncate(time.Second)}
	again := was != nil && was.Config == stop.Config && was.Hook == stop.Hook
	if again {
		stop.Since = was.Since
	}
	h.stop = stop
	if !again {
		h.cluster.announce(corev1.EventTypeWarning, "UpdateHeldByHook",
			"The update to "+stop.Config+" waits, and the node serves: "+no.Error())
	}
}

// agreed records that all hooks have agreed.
func (h *Head) agreed() {
	stop := h.stop
	h.way.asked, h.stop = true, nil
	if stop != nil && stop.Config == h.way.to {
		h.cluster.announce(corev1.EventTypeNormal, "HooksAgree",
			"The update to "+stop.Config+" continues: hook "+stop.Hook+" held the update since "+stop.Since.Format(time.RFC3339))
	}
}

// stopped returns the hook that holds the update, as far as known: while that hook is asked again, it still holds the
// update. nil: none.
func (h *Head) stopped(v *situation, p Phase) *api.HookStop {
	asking := p == PhasePlan || p == PhaseStage || p == PhaseHooks || p == PhaseBackoff
	if h.stop == nil || h.stop.Config != v.node.Desired || h.way.asked || !asking {
		return nil
	}
	return h.stop
}
