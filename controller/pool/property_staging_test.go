// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

// staging is what a made-up rollout is about, where its nodes stage ahead.
type staging struct {
	chance  *rand.Rand // of its own, so that a seed stays what it was
	limit   int        // 0: they do not
	times   [][2]time.Time
	approve bool // it is needed
}

func (w *walk) makeStaging(seed uint64) {
	s := &w.staging
	s.chance = rand.New(rand.NewPCG(seed, 2))
	if s.chance.IntN(2) == 0 {
		return
	}
	s.limit = 1 + s.chance.IntN(3)
	v := intstr.FromInt32(int32(s.limit))
	w.policy.Spec.Staging = &api.RolloutStaging{MaxConcurrent: &v}
	if s.approve = s.chance.IntN(2) == 0; s.approve {
		w.policy.Spec.Approval = &api.RolloutApproval{}
	}
	if s.chance.IntN(2) == 0 {
		return
	}
	windows := &api.RolloutWindows{OnClose: []api.WindowClose{"", api.CloseFinishes}[s.chance.IntN(2)]}
	open := func(begin, end time.Time) {
		s.times = append(s.times, [2]time.Time{begin, end})
		windows.Open = append(windows.Open, api.Window{
			From: begin.Format("2006-01-02T15:04:05"), Until: end.Format("2006-01-02T15:04:05"),
		})
	}
	begin := w.now.Add(time.Duration(s.chance.IntN(60)) * time.Minute)
	for range 10 {
		end := begin.Add(time.Duration(10+s.chance.IntN(60)) * time.Minute)
		open(begin, end)
		begin = end.Add(time.Duration(10+s.chance.IntN(100)) * time.Minute)
	}
	open(begin, begin.AddDate(1, 0, 0)) // as with the windows of the rollout
	w.policy.Spec.Staging.Windows = windows
}

// stages says that a node is asked to stage and has not, as far as it says.
func stages(n progress.Node) bool {
	return n.Orders.Stage != nil && !n.Staged.Is("B") && n.Desired != "B"
}

// checkStaging holds what is about to be said to the promises of staging and approvals. A controller may die after any
// of the steps.
func (w *walk) checkStaging(steps []nodeStep) error {
	s := &w.staging
	busy := 0
	for _, n := range w.nodes {
		busy += rank(stages(n))
	}
	for _, step := range steps {
		n := w.nodes[w.index(step.Node)]
		before := stages(n)
		after := n
		after.Orders, after.Desired = step.Orders, step.Desired
		busy += rank(stages(after)) - rank(before)
		switch {
		case s.limit == 0 && step.Orders.Stage != nil:
			return fmt.Errorf("%s is asked to stage, and the policy says nothing of that", n.Name)
		case !before && stages(after) && busy > s.limit:
			return fmt.Errorf("%s is asked to stage, as %d are, and %d may", n.Name, busy, s.limit)
		case !before && stages(after) && !within(s.times, w.now):
			return fmt.Errorf("%s is asked to stage at %s, outside all windows", n.Name, w.now)
		case s.limit == 0 || !step.sends() || step.Desired != "B" || n.Current == "B":
		case s.approve && w.object.Annotations[api.ApprovedKey] == "":
			return fmt.Errorf("%s is sent, and nobody approved it", n.Name)
		case n.NotReady == "" && n.Settled() && !n.Staged.Is("B"):
			return fmt.Errorf("%s is sent, and has not staged", n.Name)
		}
	}
	return nil
}

func within(times [][2]time.Time, now time.Time) bool {
	return times == nil || slices.ContainsFunc(times, func(o [2]time.Time) bool { return !now.Before(o[0]) && now.Before(o[1]) })
}

// stage has a node's agent carry out its order, or fail at it.
func (w *walk) stage(n *progress.Node) {
	chance := w.staging.chance
	said := n.Staged
	switch {
	case n.NotReady != "":
	case n.Orders.Stage == nil:
		if said.Is("B") {
			n.Staged = nil
		}
	case said.Is("B") || said.Failed("B") && w.now.Sub(said.Since) < api.StageRetry(said.Tries):
	case !w.calm && chance.IntN(6) == 0:
		failed := &api.Staged{Config: "B", Error: "no", Tries: 1, Since: w.now}
		if said != nil {
			failed.Tries += said.Tries
		}
		n.Staged = failed
		w.tell("%s could not stage", n.Name)
	case w.calm || chance.IntN(3) == 0:
		n.Staged = &api.Staged{Config: "B", Digest: "x", Since: w.now}
		w.tell("%s has staged", n.Name)
	}
}

// approve has a person look now and then.
func (w *walk) approve(p progress.Pool) {
	h := p.Rules.Hold
	if h == nil || h.Verdict != progress.NeedsApproval || !w.calm && w.staging.chance.IntN(3) > 0 {
		return
	}
	digest, _ := p.Rules.Staging.Digest()
	w.object.Annotations = map[string]string{api.ApprovedKey: api.Encode(api.Approval{Config: "B", Digest: digest, By: "ann"})}
	w.tell("approved")
}

// stagesStill says that nodes are still to stage, which takes time by itself.
func (w *walk) stagesStill() bool {
	return w.staging.limit > 0 && slices.ContainsFunc(w.nodes, func(n progress.Node) bool {
		return n.Desired != "B" && !n.Staged.Is("B")
	})
}
