// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"context"
	"fmt"
	"slices"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/controller/pool"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/rollout"
)

type (
	// planEstimate is a progress.Estimate.
	planEstimate struct {
		Nodes          int `json:"nodes"`
		Seconds        int `json:"seconds"`
		SlowestSeconds int `json:"slowestSeconds"`
		BasedOn        int `json:"basedOn"`
		// Policy is the estimate by the pool's RolloutPolicy, for a start now. It is nil where the pool has no policy, or the
		// estimate is not known.
		Policy *policyEstimate `json:"policy,omitempty"`
	}
	policyEstimate struct {
		Name           string `json:"name"`
		Seconds        int    `json:"seconds"`
		SlowestSeconds int    `json:"slowestSeconds"`
	}
)

// most sets how many nodes may be out of service at first, which may be a stage's number. It returns the pool's own
// number.
func (d *PlanDocument) most(p progress.Pool, object *mcfgv1.MachineConfigPool) int {
	own := progress.NewPool(object, slices.Clone(p.Nodes)).MaxUnavailable
	if d.MaxUnavailable = p.MaxUnavailable; d.MaxUnavailable != own {
		d.Stage = p.Rules.Stage
	}
	return own
}

// atATime returns that number in words.
func (d *PlanDocument) atATime() string {
	text := fmt.Sprintf("at most %d at a time", d.MaxUnavailable)
	if d.Stage != "" {
		text += " in stage " + d.Stage
	}
	return text
}

// estimate sets how long the rollout would take, by the reports of the pool's nodes on their last updates. It returns
// these as past. most is how many nodes may be out of service without the pool's policy.
func (d *PlanDocument) estimate(p progress.Pool, states map[string]*mcfgv1.MachineConfigNode, most int,
) (past []progress.Update) {
	for _, n := range p.Nodes {
		if u, ok := progress.LastUpdate(states[n.Name]); ok {
			past = append(past, u)
		}
	}
	d.policy = p.Rules.Policy
	c := d.Counts
	if e, ok := progress.Forecast(c.Reboots, c.Going-c.Reboots, most, past); ok {
		d.Estimate = &planEstimate{
			Nodes: e.Nodes, Seconds: int(e.Typical.Seconds()), SlowestSeconds: int(e.Slowest.Seconds()), BasedOn: e.Updates,
		}
	}
	return past
}

// farthest is how far ahead a rollout is simulated.
const farthest = 30 * 24 * time.Hour

// byPolicy estimates a pool's rollout by its RolloutPolicy, and warns where the policy can't be read. most is the
// pool's own maxUnavailable, because progress has that of the present stage.
func (c *Cluster) byPolicy(ctx context.Context, doc *PlanDocument, p progress.Pool, most *mcfgv1.MachineConfigPool,
	past []progress.Update,
) {
	if doc.Estimate == nil || p.Rules.Policy == "" {
		return
	}
	policies, err := c.policies(ctx)
	if err != nil {
		c.warnAll(doc, []string{"how long the RolloutPolicy has it take: not known: " + Describe(err)})
		return
	}
	for i := range policies {
		if policies[i].Name == p.Rules.Policy {
			doc.Estimate.Policy = doc.simulate(p, &policies[i], most, past, rollout.Now())
		}
	}
}

// simulate follows the rollout by the decisions of the controller. It returns nil for a rollout that would not end in
// time. Nodes that do not go have the configuration already. The time of gates, approvals and other pools is not known,
// so they count as passed.
func (d *PlanDocument) simulate(p progress.Pool, policy *api.RolloutPolicy, most *mcfgv1.MachineConfigPool,
	past []progress.Update, now time.Time,
) *policyEstimate {
	policy = policy.DeepCopy()
	policy.Spec.Pools, policy.Spec.PoolSelector, policy.Spec.DependsOn = []string{p.Name}, nil, nil
	f := pool.Fleet{
		Pool:     &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: p.Name, Labels: p.Labels}},
		Policies: []api.RolloutPolicy{*policy}, Start: now, Limit: farthest,
	}
	f.Pool.Spec.MaxUnavailable, f.Pool.Spec.Configuration.Name = most.Spec.MaxUnavailable, d.Desired
	for _, n := range p.Nodes {
		has := d.Desired
		if slices.Contains(d.Order, n.Name) {
			has = n.Current
		}
		n.Node = api.Node{Current: has, Desired: has, State: api.Done}
		n.NotReady, n.Cordoned = "", false
		f.Nodes = append(f.Nodes, n)
	}
	out := &policyEstimate{Name: policy.Name}
	typical, slowest := eachTakes(d.Counts, past)
	for _, one := range []struct {
		took    time.Duration
		seconds *int
	}{{typical, &out.Seconds}, {slowest, &out.SlowestSeconds}} {
		f.Update = one.took
		log := pool.Simulate(f)
		last := log[len(log)-1]
		if last.What != pool.Finished {
			return nil
		}
		*one.seconds = int(last.At.Sub(now).Seconds())
	}
	return out
}

// eachTakes returns how long one node takes, typically and at most. Where some nodes reboot and some do not, the longer
// times count.
func eachTakes(c planCounts, past []progress.Update) (typical, slowest time.Duration) {
	for _, kind := range [][2]int{{min(c.Reboots, 1), 0}, {0, min(c.Going-c.Reboots, 1)}} {
		if e, ok := progress.Forecast(kind[0], kind[1], 1, past); ok {
			typical, slowest = max(typical, e.Typical), max(slowest, e.Slowest)
		}
	}
	return typical, slowest
}

// duration returns how long the rollout would take.
func (d *PlanDocument) duration() string {
	e := d.Estimate
	if e == nil {
		return "Duration: not known, as no node of the pool has told how long such an update took"
	}
	human := func(seconds int) string { return duration.HumanDuration(time.Duration(seconds) * time.Second) }
	text := fmt.Sprintf("Duration: about %s, or %s if each is as slow as the slowest, by the last updates of %s",
		human(e.Seconds), human(e.SlowestSeconds), number(e.BasedOn, "node"))
	switch {
	case e.Policy != nil:
		text = fmt.Sprintf("Duration: about %s from now, or %s if each node is as slow as the slowest, by the stages, soaks "+
			"and windows of RolloutPolicy %s and the last updates of %s; gates, approvals and other pools come on top",
			human(e.Policy.Seconds), human(e.Policy.SlowestSeconds), e.Policy.Name, number(e.BasedOn, "node"))
	case d.policy != "":
		text += "; all that RolloutPolicy " + d.policy + " waits for comes on top"
	}
	return text
}
