// SPDX-License-Identifier: Apache-2.0

package notifications

import (
	"context"
	"errors"
	"slices"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/notify"
	"github.com/noderefit/noderefit/progress"
)

// keptNews is the greatest number of notifications that wait for webhooks. Of more, the oldest are dropped.
const keptNews = 100

// editor decides what to tell, and makes events of it.
type editor struct {
	*desk

	asked time.Time // when nodes were last asked what they wait for; used by one worker only
}

// Reconcile looks at all pools that have a policy.
func (e *editor) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	s, err := e.see(ctx)
	if err != nil || s == nil {
		return reconcile.Result{}, err
	}
	now := e.now()
	ask := now.Sub(e.asked) >= pace
	if ask {
		e.asked = now
	}
	var errs []error
	for _, f := range s.findings {
		var seen []notify.Seen
		for _, p := range f.Pools {
			seen = append(seen, e.seen(ctx, s, f.Policy, p.Name, ask))
		}
		errs = append(errs, e.edit(ctx, s, s.policies[f.Policy], seen, now))
	}
	return reconcile.Result{RequeueAfter: pace}, errors.Join(errs...)
}

func (e *editor) seen(ctx context.Context, s *scene, policy, pool string, ask bool) notify.Seen {
	object, p := s.pools[pool], s.policies[policy]
	state, _ := s.report.Pool(pool)
	answer, _ := s.report.ExplainPool(pool)
	seen := notify.Seen{
		Policy: policy, PolicyUID: p.UID, UID: object.UID, Generation: object.Generation, Pool: state, Answer: answer,
	}
	if n := p.Spec.Notifications; n != nil {
		seen.Cluster = n.Cluster
	}
	if ask {
		seen.Waits = e.waits(ctx, s, state)
	}
	return seen
}

// waits returns what those nodes of a pool wait for that are not as they should be. Their MachineConfigNodes have that.
// They are read for these few nodes only, and not watched.
func (e *editor) waits(ctx context.Context, s *scene, p progress.Pool) map[string]progress.Answer {
	out := map[string]progress.Answer{}
	view := s.view
	view.States = map[string]*mcfgv1.MachineConfigNode{}
	var names []string
	for _, name := range notify.MayWait(p) {
		state := &mcfgv1.MachineConfigNode{}
		err := e.live.Get(ctx, client.ObjectKey{Name: name}, state)
		if err != nil && !apierrors.IsNotFound(err) {
			log.FromContext(ctx).Error(err, "asking what a node waits for", "node", name)
			continue
		}
		if err == nil {
			view.States[name] = state
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		return out
	}
	report := progress.NewReport(view)
	for _, name := range names {
		out[name], _ = report.ExplainNode(name)
	}
	return out
}

// edit puts the news into the policy's status. Nothing is told that is not in the status.
func (e *editor) edit(ctx context.Context, s *scene, policy *api.RolloutPolicy, seen []notify.Seen,
	now time.Time,
) error {
	after, _, _ := draft(policy, seen, now)
	if equality.Semantic.DeepEqual(after, policy.Status.Notifications) && !idle(policy) {
		return nil
	}
	var told []api.Notification
	dropped := 0
	err := e.change(ctx, policy.Name, policy.UID, func(p *api.RolloutPolicy) {
		p.Status.Notifications, told, dropped = draft(p, seen, now)
		if idle(p) {
			condition(p, api.RolloutNotified, "Delivered", "", "", time.Now())
		}
	})
	if err != nil {
		return err
	}
	e.counts.dropped(policy.Name, dropped)
	for _, n := range told {
		log.FromContext(ctx).Info("told", "policy", policy.Name, "pool", n.Pool, "kind", n.Kind, "text", n.Text)
		state, _ := s.report.Pool(n.Pool)
		if state.Rules.Policy == policy.Name && newEvent(n) {
			e.events.Eventf(s.pools[n.Pool], nil, corev1.EventTypeWarning, string(n.Kind), string(n.Kind), "%s", n.Text)
		}
	}
	return nil
}

// idle reports whether a policy's condition is about a webhook that has no waiting notifications, because a person
// removed the webhook.
func idle(p *api.RolloutPolicy) bool {
	n := p.Status.Notifications
	return (n == nil || len(n.Undelivered) == 0) && meta.IsStatusConditionFalse(p.Status.Conditions, api.RolloutNotified)
}

// draft returns the policy's new status, the news in it, and the number of notifications without room.
func draft(p *api.RolloutPolicy, seen []notify.Seen, now time.Time) (
	after *api.NotificationStatus, told []api.Notification, dropped int,
) {
	before := p.Status.Notifications
	if before == nil {
		before = &api.NotificationStatus{}
	}
	after = &api.NotificationStatus{}
	for _, one := range seen {
		memory := api.NotifiedPool{}
		at := slices.IndexFunc(before.Pools, func(m api.NotifiedPool) bool { return m.Name == one.Pool.Name })
		if at >= 0 {
			memory = before.Pools[at]
		}
		next, news := notify.Decide(memory, one, now)
		if next.Name != "" {
			after.Pools = append(after.Pools, next)
		}
		told = append(told, news...)
	}
	for _, n := range slices.Concat(before.Undelivered, told) {
		if n.Webhooks = receivers(p.Spec.Notifications, n, before.Undelivered); len(n.Webhooks) > 0 {
			after.Undelivered = append(after.Undelivered, n)
		}
	}
	if dropped = len(after.Undelivered) - keptNews; dropped > 0 {
		after.Undelivered = after.Undelivered[dropped:]
	}
	return after, told, max(dropped, 0)
}

// receivers returns the webhooks that still have to get a notification. For a waiting notification these are the
// remaining webhooks that still exist. For a new one these are all webhooks that want its kind.
func receivers(spec *api.Notifications, n api.Notification, waiting []api.Notification) []string {
	if spec == nil {
		return nil
	}
	waits := slices.ContainsFunc(waiting, func(w api.Notification) bool { return w.ID == n.ID })
	var out []string
	for _, w := range spec.Webhooks {
		wants := len(w.Events) == 0 || slices.Contains(w.Events, n.Kind)
		if waits && slices.Contains(n.Webhooks, w.Name) || !waits && wants {
			out = append(out, w.Name)
		}
	}
	return out
}

// newEvent reports whether the notification needs an event, because the pool controller makes none for it.
func newEvent(n api.Notification) bool {
	switch n.Kind {
	case api.RolloutStarted, api.RolloutDone:
		return false // Updating, Completed
	case api.RolloutNeedsYou:
		switch progress.Verdict(n.Reason) {
		case progress.Quarantined, progress.Misconfigured, progress.PolicyUnusable, progress.FailureBudget:
			return false // Quarantined, Misconfigured, Held
		default:
			return true
		}
	case api.RolloutBlocked, api.RolloutRolledBack:
	}
	return true
}
