// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"slices"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

// timeLeft is an estimate of the time until a rollout ends, and its JSON.
type timeLeft struct {
	Seconds        int `json:"seconds"`
	SlowestSeconds int `json:"slowestSeconds"`
	// Policy is the RolloutPolicy whose windows, stages and soaks are included. Gates, approvals and other pools are not.
	Policy string `json:"policy,omitempty"`
}

// String returns the time in a few letters. A pool without an estimate has "".
func (l *timeLeft) String() string {
	if l == nil {
		return ""
	}
	return "~" + duration.HumanDuration(time.Duration(l.Seconds)*time.Second)
}

// left estimates the rest of a pool's rollout, by the last updates of the pool's nodes. It is nil where no rollout is
// under way, where the rollout does not go on by itself, and where no node has told how long such an update took.
func left(r *progress.Report, v progress.View, policies []api.RolloutPolicy, name string, now time.Time) *timeLeft {
	p, ok := r.Pool(name)
	if _, ended := r.Ended(name); !ok || ended || p.Paused || p.Target == "" {
		return nil
	}
	var past, present []progress.Update
	var going []string
	var ahead time.Duration // how long the latest of the nodes on their way has been so
	waiting, moving := 0, 0
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if u, ok := progress.LastUpdate(v.States[n.Name]); ok {
			past = append(past, u)
			if n.Current == p.Target {
				present = append(present, u)
			}
		}
		switch {
		case n.Updated(p.Target), n.Failing(), p.Rules.Kept[n.Name] != nil:
			continue
		case n.Moving():
			took := time.Duration(0)
			if s := v.States[n.Name]; s != nil {
				began, _ := api.Decode[api.Update](s.Annotations, api.UpdateKey)
				if began.Config == n.Desired && began.Since.Before(now) {
					took = now.Sub(began.Since)
				}
			}
			if moving++; moving == 1 || took < ahead {
				ahead = took
			}
		default:
			waiting++
		}
		going = append(going, n.Name)
	}
	counts := planCounts{Nodes: len(p.Nodes), Going: len(going)}
	if rebootsLikely(past, present) {
		counts.Reboots = counts.Going
	}
	one, slowest := eachTakes(counts, past)
	if len(going) == 0 || one == 0 {
		return nil
	}
	if p.Rules.Policy != "" {
		return leftByPolicy(p, v, policies, counts, going, past, now)
	}
	rounds := (waiting + max(p.MaxUnavailable, 1) - 1) / max(p.MaxUnavailable, 1)
	rest := func(each time.Duration) int {
		total := float64(rounds) * each.Seconds()
		if moving > 0 {
			total += max(each-ahead, 0).Seconds()
		}
		return int(total)
	}
	return &timeLeft{Seconds: rest(one), SlowestSeconds: rest(slowest)}
}

// rebootsLikely reports whether the present rollout reboots nodes: as it did so far, or else as the one before did.
func rebootsLikely(past, present []progress.Update) bool {
	if len(present) > 0 {
		past = present
	}
	return slices.ContainsFunc(past, func(u progress.Update) bool { return u.Rebooted })
}

// leftByPolicy follows the rest of a rollout by the decisions of the controller, as plan does.
func leftByPolicy(p progress.Pool, v progress.View, policies []api.RolloutPolicy, counts planCounts, going []string,
	past []progress.Update, now time.Time,
) *timeLeft {
	policy := slices.IndexFunc(policies, func(one api.RolloutPolicy) bool { return one.Name == p.Rules.Policy })
	object := slices.IndexFunc(v.Pools, func(one mcfgv1.MachineConfigPool) bool { return one.Name == p.Name })
	if policy < 0 || object < 0 {
		return nil
	}
	d := PlanDocument{Desired: p.Target, Order: going, Counts: counts}
	e := d.simulate(p, &policies[policy], &v.Pools[object], past, now)
	if e == nil {
		return nil
	}
	return &timeLeft{Seconds: e.Seconds, SlowestSeconds: e.SlowestSeconds, Policy: e.Name}
}
