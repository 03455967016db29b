// SPDX-License-Identifier: Apache-2.0

package notifications

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/notify"
)

// silencer keeps the alerts of nodes under update silent. What it remembers saves requests to the Alertmanager.
type silencer struct {
	*desk

	tries   tries[string]
	settled map[string]settled // by policy; used by one worker only
}

// settled is what an Alertmanager was last told, and until when that is valid.
type settled struct {
	generation int64
	holds      []notify.Hold
	until      time.Time
}

// Reconcile brings the silences of one policy up to date.
func (s *silencer) Reconcile(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
	if wait := s.tries.wait(r.Name); wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	seen, err := s.see(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	var p *api.RolloutPolicy
	if seen != nil {
		p = seen.policies[r.Name]
	}
	if p == nil || p.Spec.Notifications == nil || p.Spec.Notifications.Alertmanager == nil {
		// The policy's Alertmanager is no longer known. Its silences end by themselves after some minutes.
		delete(s.settled, r.Name)
		s.tries.worked(r.Name)
		s.counts.silence(r.Name, -1, false)
		return reconcile.Result{}, nil
	}
	var holds []notify.Hold
	for _, f := range seen.findings {
		for _, pool := range f.Pools {
			if f.Policy == p.Name {
				holds = append(holds, notify.Holds(*pool)...)
			}
		}
	}
	last, known := s.settled[p.Name]
	if left := time.Until(last.until); known && last.generation == p.Generation && slices.Equal(last.holds, holds) &&
		(left > 0 || len(holds) == 0) {
		return reconcile.Result{RequeueAfter: max(left, 0)}, nil
	}
	return s.settle(ctx, p, holds)
}

func (s *silencer) settle(ctx context.Context, p *api.RolloutPolicy, holds []notify.Hold) (reconcile.Result, error) {
	spec := *p.Spec.Notifications.Alertmanager
	access, err := s.access(ctx, spec.URL, spec.SecretRef)
	silences := notify.Silences{Access: access, Spec: spec, Policy: p.Name, UID: p.UID}
	silent := 0
	if err == nil {
		silent, err = silences.Settle(ctx, holds, time.Now())
	}
	if ctx.Err() != nil {
		return reconcile.Result{}, nil //nolint:nilerr // somebody else goes on
	}
	s.counts.silence(p.Name, silent, err != nil)
	if err != nil {
		delete(s.settled, p.Name)
		again := s.tries.failed(p.Name, err.Error())
		log.FromContext(ctx).Info("the Alertmanager could not be told", "policy", p.Name, "again", again.String(),
			"error", err.Error())
		return reconcile.Result{RequeueAfter: again}, s.say(ctx, p, notify.Short(err.Error()))
	}
	s.tries.worked(p.Name)
	now := settled{generation: p.Generation, holds: holds}
	result := reconcile.Result{}
	if len(holds) > 0 {
		result.RequeueAfter = silences.Again()
		now.until = time.Now().Add(result.RequeueAfter)
	}
	s.settled[p.Name] = now
	return result, s.say(ctx, p, "")
}

// say puts the text into the policy's condition if it differs, and makes an event of a failure.
func (s *silencer) say(ctx context.Context, p *api.RolloutPolicy, text string) error {
	c := meta.FindStatusCondition(p.Status.Conditions, api.RolloutSilenced)
	if c != nil && c.Message == text {
		return nil
	}
	became := false
	err := s.change(ctx, p.Name, p.UID, func(p *api.RolloutPolicy) {
		became = condition(p, api.RolloutSilenced, "Reached", "Unreached", text, time.Now())
	})
	if err == nil && became && text != "" {
		s.events.Eventf(p, nil, corev1.EventTypeWarning, "AlertmanagerUnreached", "AlertmanagerUnreached", "%s",
			text)
	}
	return err
}
