// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"cmp"
	"fmt"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

// findTrials finds what the trials of the pool's nodes need next.
func (c *chooser) findTrials() {
	for i := range c.pool.Nodes {
		n := &c.pool.Nodes[i]
		if n.Trial == nil && n.Tried == nil {
			continue
		}
		if c.trials == nil {
			c.trials = map[*progress.Node]progress.TrialStep{}
		}
		c.trials[n] = c.pool.TrialStep(n, c.options.Now)
	}
}

// tried reports whether the node tries a configuration, or is still to leave it. The rollout passes such a node by.
func (c *chooser) tried(n *progress.Node) bool {
	return n.OnTrial(c.pool.Target) && (c.trials[n].Tried == nil || !c.trials[n].Tried.Kept)
}

// sendTrials lets trials begin and end within maxUnavailable. Nodes that go back come first.
func (c *chooser) sendTrials() {
	if len(c.trials) == 0 {
		return
	}
	takes := shareOf(&c.pool).taking + c.options.Elsewhere + c.taken
	for _, begins := range [...]bool{false, true} {
		for i := range c.pool.Nodes {
			n := &c.pool.Nodes[i]
			s := c.trials[n]
			if s.Send == "" || s.Begins != begins {
				continue
			}
			own := rank(c.pool.Takes(n))
			// A node that is out of service, or has already gone back by itself, takes no further node out of service.
			free := s.Send == n.Current || own == 1 && !progress.ControlPlane(c.pool.Name)
			if !free && takes-own >= c.pool.MaxUnavailable {
				s.Send = ""
				if begins {
					s.Tried = n.Tried
				}
				c.trials[n] = s
				continue
			}
			if !free {
				takes += 1 - own
				c.taken += 1 - own
			}
		}
	}
}

// tellTrial makes an event of a trial that began, was proved or ended.
func (r *reconciler) tellTrial(pool *mcfgv1.MachineConfigPool, before, after *corev1.Node, s nodeStep) {
	t := s.Tried
	if t == nil || triedText(t) == before.Annotations[api.TriedKey] {
		return
	}
	was, _ := api.Decode[api.Tried](before.Annotations, api.TriedKey) // an unreadable record counts as none
	same := was.Ordered.Equal(t.Ordered)
	by := cmp.Or(t.By, "somebody")
	var reason, text string
	level := corev1.EventTypeNormal
	switch {
	case !t.Ended.IsZero():
		reason, text = "TrialEnded", fmt.Sprintf("Node %s tried %s, by %s: %s", s.Node, t.Config, by, t.Because)
		if !t.Kept && was.Proved.IsZero() {
			level = corev1.EventTypeWarning
		}
	case !t.Proved.IsZero() && (!same || was.Proved.IsZero()):
		reason, text = "TrialProved", fmt.Sprintf("Node %s has proved %s, and goes back to %s at %s", s.Node, t.Config,
			t.From, t.Until.UTC().Format(time.RFC3339))
	case !same:
		reason, text = "TrialBegan", fmt.Sprintf("Node %s tries %s, by %s: %s", s.Node, t.Config, by,
			cmp.Or(t.Why, "no reason was given"))
	default:
		return
	}
	r.events.Eventf(pool, after, level, reason, "Try", "%s", note(text))
}
