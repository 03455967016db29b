// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"fmt"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

// Pulling is what a pool's policy says about images that its nodes pull ahead.
type Pulling struct {
	// Most is how many nodes pull at once.
	Most int
	// Open reports whether nodes may begin. Where it is not, Stop has those end that pull.
	Open, Stop       bool
	MinFreeMebibytes int32
}

// PullingOf returns what the policy of a pool says, for a pool with so many nodes. Without a policy, and with several,
// Pulling is what a policy without further fields says. A policy that makes no sense lets no node begin.
//
// lost is the pool's note of a policy, where no policy selects the pool and the noted one is not there: the policy may
// have gone with its definition. The pool controller takes the note away when a person deleted the policy.
func PullingOf(policies []api.RolloutPolicy, pool *mcfgv1.MachineConfigPool, nodes int, now time.Time,
) (out Pulling, lost *api.PolicyNote) {
	b := NewBook(policies, nil)
	var mine []*policy
	for _, p := range b.policies {
		if p.takes(pool.Name, pool.Labels) {
			mine = append(mine, p)
		}
	}
	if note := progress.Noted(pool); len(mine) == 0 && b.misses(note) {
		return Pulling{}, note
	}
	usual := max(1, nodes/10)
	if len(mine) != 1 {
		return Pulling{Most: usual, Open: true}, nil
	}
	p := mine[0]
	spec := p.stagingSpec()
	out = Pulling{Most: share(spec.MaxConcurrent, nodes, false, usual), Open: p.problem == nil,
		MinFreeMebibytes: spec.MinFreeMebibytes}
	if p.problem == nil && p.stagingTimes != nil {
		out.Open = p.stagingTimes.at(now).open
		out.Stop = !out.Open && p.stagingTimes.onClose != api.CloseFinishes
	}
	return out, nil
}

// waitForPins holds nodes that lack images of their pool, for a limited time. Nodes that stageAhead holds already, and
// those that may be healed by the target, are left out.
func (j *judge) waitForPins(nodes []*progress.Node) {
	wait := j.stagingSpec().WaitForPinnedImages
	if wait == nil || j.pool.Target == "" || j.bypassed || j.stopped() {
		return
	}
	limit := time.Duration(wait.TimeoutSeconds) * time.Second
	if limit == 0 {
		limit = defaultPinsLimit
	}
	for _, n := range nodes {
		if n.Pins == nil || len(n.Pins.Sets) == 0 || n.Pinned.Keeps(n.Pins) || !j.able(n) || j.back[n.Name] ||
			j.rules.Holds[n.Name] != nil {
			continue
		}
		end := n.Pins.Since.Add(limit)
		if !end.After(j.now) || n.Pins.Since.Sub(j.now) > limit {
			continue // its time is over, or came from a clock so far ahead that the wait would have no useful end
		}
		j.lookAgain(end)
		j.holdNode(n.Name, j.unpinned(n, end))
	}
}

// defaultPinsLimit is how long a node waits for its images where the policy names no time.
const defaultPinsLimit = time.Hour

// unpinned returns the hold of a node that lacks images, until a time.
func (j *judge) unpinned(n *progress.Node, end time.Time) *progress.Hold {
	h := &progress.Hold{
		Verdict: progress.StagingAhead, Blocking: policyObject(j.name), Until: end,
		Because: "the node does not have the images of its pool's PinnedImageSets: " + progress.PinsText(n),
		Do:      "wait" + j.orBypass(),
	}
	if n.Pinned.Fails(n.Pins) {
		h.Verdict, h.Blocking = progress.CannotStage, &progress.Object{Kind: "Node", Name: n.Name}
		h.Do = fmt.Sprintf("correct the named problem: the agent tries again by itself. The node goes without the images "+
			"at %s%s", end.UTC().Format(time.RFC3339), j.orBypass())
	}
	return h
}
