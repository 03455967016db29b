// SPDX-License-Identifier: Apache-2.0

package notifications

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/notify"
)

// tooLate is the age from which a notification is no longer news.
const tooLate = 24 * time.Hour

// lane is the way to one webhook. One notification at a time goes on it, in order.
type lane struct{ Policy, Webhook string }

// lanes returns the lanes with waiting notifications.
func lanes(_ context.Context, o client.Object) []lane {
	p, ok := o.(*api.RolloutPolicy)
	if !ok || p.Status.Notifications == nil {
		return nil
	}
	var out []lane
	for _, n := range p.Status.Notifications.Undelivered {
		for _, name := range n.Webhooks {
			if l := (lane{p.Name, name}); !slices.Contains(out, l) {
				out = append(out, l)
			}
		}
	}
	return out
}

// courier delivers the notifications in the status of policies, and removes the delivered ones there. A courier that is
// killed in between delivers the same notification again, with the same id.
type courier struct {
	*desk

	tries tries[lane]
}

// Reconcile delivers all that waits for one webhook, until a delivery fails.
func (c *courier) Reconcile(ctx context.Context, l lane) (reconcile.Result, error) {
	for {
		if wait := c.tries.wait(l); wait > 0 {
			return reconcile.Result{RequeueAfter: wait}, nil
		}
		// The cache may not know yet what this courier has delivered.
		var p api.RolloutPolicy
		if err := c.live.Get(ctx, client.ObjectKey{Name: l.Policy}, &p); apierrors.IsNotFound(err) {
			c.forget(l)
			return reconcile.Result{}, nil
		} else if err != nil {
			return reconcile.Result{}, fmt.Errorf("reading RolloutPolicy %s: %w", l.Policy, err)
		}
		n, to := next(&p, l.Webhook)
		if n == nil {
			c.forget(l)
			return reconcile.Result{}, nil
		}
		again, err := c.deliver(ctx, &p, *n, *to)
		if err != nil || again > 0 {
			return reconcile.Result{RequeueAfter: again}, err
		}
	}
}

// next returns the first notification that waits for a webhook. next returns nil if none waits, or if the webhook no
// longer exists.
func next(p *api.RolloutPolicy, webhook string) (*api.Notification, *api.NotificationWebhook) {
	if p.Status.Notifications == nil || p.Spec.Notifications == nil {
		return nil, nil
	}
	hooks, waiting := p.Spec.Notifications.Webhooks, p.Status.Notifications.Undelivered
	to := slices.IndexFunc(hooks, func(w api.NotificationWebhook) bool { return w.Name == webhook })
	first := slices.IndexFunc(waiting, func(n api.Notification) bool { return slices.Contains(n.Webhooks, webhook) })
	if to < 0 || first < 0 {
		return nil, nil
	}
	return &waiting[first], &hooks[to]
}

// deliver tries once and returns after which time to try again; 0 means that the notification is finished.
func (c *courier) deliver(ctx context.Context, p *api.RolloutPolicy, n api.Notification, to api.NotificationWebhook) (
	again time.Duration, err error,
) {
	l := lane{p.Name, to.Name}
	access, err := c.access(ctx, to.URL, to.SecretRef)
	if err == nil {
		err = notify.Deliver(ctx, access, n)
	}
	if ctx.Err() != nil {
		return 0, nil //nolint:nilerr // somebody else goes on
	}
	result := delivered
	_, refused := errors.AsType[*notify.RefusedError](err)
	switch {
	case err == nil:
		c.tries.worked(l)
	case refused || c.now().Sub(n.Time.Time) > tooLate:
		result = droppedResult
		c.tries.worked(l)
		log.FromContext(ctx).Error(err, "a notification is given up", "policy", p.Name, "webhook", to.Name, "id", n.ID)
		c.events.Eventf(p, nil, corev1.EventTypeWarning, "NotificationDropped", "NotificationDropped",
			"%s", notify.Short(fmt.Sprintf("webhook %s will not be told %q of pool %s: %v", to.Name, n.Kind, n.Pool, err)))
	default:
		result = failed
		again = c.tries.failed(l, err.Error())
		log.FromContext(ctx).Info("a webhook could not be told", "policy", p.Name, "webhook", to.Name, "id", n.ID,
			"again", again.String(), "error", err.Error())
	}
	c.counts.tried(l, result)
	became := false
	text := c.trouble(p.Name)
	if err := c.change(ctx, p.Name, p.UID, func(p *api.RolloutPolicy) {
		if result != failed {
			take(p, n.ID, to.Name)
		}
		became = condition(p, api.RolloutNotified, "Delivered", "Undelivered", text, time.Now())
	}); err != nil {
		return 0, err
	}
	if became && text != "" {
		c.events.Eventf(p, nil, corev1.EventTypeWarning, "NotificationFailed", "NotificationFailed", "%s",
			notify.Short(text))
	}
	return again, nil
}

// take removes a webhook from those that a notification waits for.
func take(p *api.RolloutPolicy, id, webhook string) {
	if p.Status.Notifications == nil {
		return
	}
	var left []api.Notification
	for _, n := range p.Status.Notifications.Undelivered {
		if n.ID == id {
			n.Webhooks = slices.DeleteFunc(slices.Clone(n.Webhooks), func(name string) bool { return name == webhook })
		}
		if len(n.Webhooks) > 0 {
			left = append(left, n)
		}
	}
	p.Status.Notifications.Undelivered = left
}

// trouble returns what is wrong with the webhooks of a policy; empty if nothing is.
func (c *courier) trouble(policy string) string {
	var texts []string
	for l, why := range c.tries.reasons() {
		if l.Policy == policy {
			texts = append(texts, "webhook "+l.Webhook+": "+why)
		}
	}
	slices.Sort(texts)
	return strings.Join(texts, "; ")
}

// forget clears the state of a lane without waiting notifications.
func (c *courier) forget(l lane) {
	c.tries.worked(l)
	c.counts.idle(l)
}
