// SPDX-License-Identifier: Apache-2.0

package drain

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/kubectl/pkg/drain"

	"github.com/noderefit/noderefit/api"
)

// Request asks for a drain.
type Request struct {
	// Config is what it is for.
	Config string
	// Policy says how; nil: every pod goes, for as long as that takes.
	Policy *api.DrainPolicy
	// Cordoned is since when the node is cordoned for it. What Last says of times before is of an earlier try.
	Cordoned time.Time
	// Excluded is since when the node is out of the load balancers by us; zero: it is not.
	Excluded time.Time
	// Last is the last report of an earlier call for this node, or nil.
	Last *api.Drain
}

// TimeoutError is the error of a drain that has reached a limit at which its policy holds the node. The node is
// cordoned still.
type TimeoutError struct {
	Phase api.DrainPhase
	After time.Duration
	// Waits says what was waited for.
	Waits string
}

func (e *TimeoutError) Error() string {
	what := "its pods were not gone"
	if e.Phase == api.DrainDetaches {
		what = "its volumes were not detached"
	}
	return strings.TrimSuffix(fmt.Sprintf("%s after %s: %s", what, e.After, e.Waits), ": ")
}

// lateStart is the least that a phase gets of which an earlier process had used up the time: to see for itself.
const lateStart = 30 * time.Second

// clock is the time that the phases of a drain take. It says nothing where no policy does.
type clock struct {
	policy *api.DrainPolicy
	phase  api.DrainPhase
	since  map[api.DrainPhase]time.Time
	// least is when a phase that an earlier process began ends at the earliest.
	least map[api.DrainPhase]time.Time
}

func newClock(r Request, now time.Time) *clock {
	c := &clock{policy: r.Policy, since: map[api.DrainPhase]time.Time{}, least: map[api.DrainPhase]time.Time{}}
	if last := r.Last; last != nil && last.Config == r.Config && last.Phase != "" && !last.PhaseSince.IsZero() &&
		!last.PhaseSince.Before(r.Cordoned) {
		c.since[last.Phase], c.least[last.Phase] = last.PhaseSince, now.Add(lateStart)
	}
	if !r.Excluded.IsZero() {
		c.since[api.DrainExcludes] = r.Excluded
	}
	return c
}

// enter notes that the drain is at a phase. One that it comes back to has used up its time already.
func (c *clock) enter(p api.DrainPhase, now time.Time) {
	c.phase = p
	if _, known := c.since[p]; !known {
		c.since[p] = now.UTC().Truncate(time.Second)
	}
}

// allowed is how long the phase may take; 0: for ever.
func (c *clock) allowed() time.Duration {
	if c.policy == nil {
		return 0
	}
	seconds := map[api.DrainPhase]int32{
		api.DrainExcludes: c.policy.ExcludeFromLoadBalancersSeconds,
		api.DrainEvicts:   c.policy.TimeoutSeconds,
		api.DrainDetaches: c.policy.WaitForVolumeDetachSeconds,
	}[c.phase]
	return time.Duration(seconds) * time.Second
}

// limit is when the phase has to be over; zero: never.
func (c *clock) limit() time.Time {
	allowed := c.allowed()
	if allowed == 0 {
		return time.Time{}
	}
	at := c.since[c.phase].Add(allowed)
	if least := c.least[c.phase]; c.phase != api.DrainExcludes && at.Before(least) {
		return least
	}
	return at
}

// over is what is to happen as the phase has reached its limit; empty: it has not.
func (c *clock) over(now time.Time) api.DrainTimeout {
	limit := c.limit()
	switch {
	case limit.IsZero() || now.Before(limit):
		return ""
	case c.policy.OnTimeout == "":
		return api.DrainRetries
	}
	return c.policy.OnTimeout
}

// stamp says in a report what the drain is at.
func (c *clock) stamp(d api.Drain) api.Drain {
	if c.policy == nil || c.phase == "" {
		return d
	}
	d.Phase, d.PhaseSince, d.Limit = c.phase, c.since[c.phase], c.limit().UTC()
	if c.phase != api.DrainExcludes {
		d.OnTimeout = c.policy.OnTimeout
	}
	return d
}

// skips are the pods that a policy has stay, as a filter of kubectl's.
func skips(p *api.DrainPolicy) ([]drain.PodFilter, error) {
	if p == nil {
		return nil, nil
	}
	var filters []drain.PodFilter
	for i := range p.SkipPodSelectors {
		selector, err := metav1.LabelSelectorAsSelector(&p.SkipPodSelectors[i])
		if err != nil {
			return nil, fmt.Errorf("skipPodSelectors[%d]: %w", i, err)
		}
		filters = append(filters, func(pod corev1.Pod) drain.PodDeleteStatus {
			if selector.Matches(labels.Set(pod.Labels)) {
				return drain.MakePodDeleteStatusSkip()
			}
			return drain.MakePodDeleteStatusOkay()
		})
	}
	return filters, nil
}

// StepText says what a drain waits for that is no pod; empty: it does not.
func StepText(d *api.Drain) string {
	switch {
	case d == nil:
	case d.Phase == api.DrainExcludes:
		return "load balancers have until " + stamp(d.Limit) + " to send the node nothing new"
	case d.Phase == api.DrainDetaches && len(d.Volumes) > 0:
		const shown = 3
		var names []string
		for _, v := range d.Volumes[:min(shown, len(d.Volumes))] {
			names = append(names, v.String())
		}
		if more := len(d.Volumes) - len(names); more > 0 {
			names = append(names, fmt.Sprintf("and %d more", more))
		}
		return "volumes are still attached to the node: " + strings.Join(names, "; ")
	}
	return ""
}
