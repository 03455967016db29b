// SPDX-License-Identifier: Apache-2.0

package drain

import (
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/noderefit/noderefit/api"
)

// Request asks for a drain.
type Request struct {
	// Config is the configuration for which the node is drained.
	Config string
	// Policy is how the node is drained. With nil every pod goes, without a time limit.
	Policy *api.DrainPolicy
	// Cordoned is when the node was cordoned for Config. Earlier times in Last belong to an earlier try.
	Cordoned time.Time
	// Excluded is when we took the node out of the load balancers; zero: the node is in them.
	Excluded time.Time
	// Last is the last report of an earlier call for this node, or nil.
	Last *api.Drain
}

// TimeoutError is the error of a drain that has reached a limit at which its policy holds the node. The node is still
// cordoned.
type TimeoutError struct {
	Phase api.DrainPhase
	After time.Duration
	// Waits is what the drain waited for.
	Waits string
}

func (e *TimeoutError) Error() string {
	what := "its pods were not gone"
	if e.Phase == api.DrainDetaches {
		what = "its volumes were not detached"
	}
	return strings.TrimSuffix(fmt.Sprintf("%s after %s: %s", what, e.After, e.Waits), ": ")
}

// lateStart is the shortest time for a phase whose limit an earlier process has used up. In this time the new process
// can check for itself.
const lateStart = 30 * time.Second

// clock measures the phases of a drain. Without a policy it adds nothing to a report.
type clock struct {
	policy *api.DrainPolicy
	phase  api.DrainPhase
	since  map[api.DrainPhase]time.Time
	// least is the earliest end of a phase that an earlier process began.
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

// enter records that the drain is in a phase. A phase that is entered again keeps its first start.
func (c *clock) enter(p api.DrainPhase, now time.Time) {
	c.phase = p
	if _, known := c.since[p]; !known {
		c.since[p] = now.UTC().Truncate(time.Second)
	}
}

// allowed returns how long the phase may take. 0 means no limit.
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

// limit returns when the phase has to be over. The zero time means never.
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

// over returns the action for a phase that has reached its limit. It is empty before the limit.
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

// stamp adds the phase of the drain to a report.
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

// selectors returns what selects the pods that stay by a policy.
func selectors(p *api.DrainPolicy) ([]labels.Selector, error) {
	if p == nil {
		return nil, nil
	}
	var out []labels.Selector
	for i := range p.SkipPodSelectors {
		selector, err := metav1.LabelSelectorAsSelector(&p.SkipPodSelectors[i])
		if err != nil {
			return nil, fmt.Errorf("skipPodSelectors[%d]: %w", i, err)
		}
		out = append(out, selector)
	}
	return out, nil
}

// StepText returns what a drain waits for besides pods. It is empty where the drain waits only for pods.
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
