// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

// requires reports whether a person has to approve what was staged.
func (p *policy) requires() bool {
	a := p.spec.Approval
	return a != nil && (a.Required == nil || *a.Required)
}

// stagesAhead reports whether nodes stage before they are sent.
func (p *policy) stagesAhead() bool { return p.spec.Staging != nil || p.requires() }

// stagingSpec returns the limits of staging.
func (p *policy) stagingSpec() api.RolloutStaging {
	if p.spec.Staging == nil {
		return api.RolloutStaging{}
	}
	return *p.spec.Staging
}

// readStaging reads the staging part of a policy.
func (p *policy) readStaging() error {
	spec := p.stagingSpec()
	var err error
	if p.stagingTimes, err = readCalendar(spec.Windows); err != nil {
		err = errors.New(strings.ReplaceAll(err.Error(), "spec.windows", "spec.staging.windows"))
	}
	if b := spec.Bandwidth; b != nil && b.Value() < api.LeastBandwidth {
		err = errors.Join(err, fmt.Errorf("spec.staging.bandwidth: %s is less than 16Ki bytes a second", b))
	}
	return errors.Join(err, checkShare("spec.staging.maxConcurrent", spec.MaxConcurrent))
}

// ordered reports whether a node has the order to stage that content.
func ordered(n *progress.Node, config string) bool {
	return n.Orders.Stage != nil && api.SameContent(n.Orders.Stage.Config, config)
}

// ahead is the state of a pool's nodes before any node gets the order to stage.
type ahead struct {
	*progress.Staging

	// left is the number of nodes that have staged the target and are only counted.
	left  int
	limit int
	// busy is the number of nodes that stage now, or may.
	busy int
	// times is the present state of the windows for staging.
	times moment
	// fresh nodes never had the order. due nodes failed long enough ago.
	fresh, due []*progress.Node
	// begun reports whether a node was sent to the target.
	begun bool
}

// stageAhead has nodes stage the target, and holds nodes that have not staged it. If an approval is needed, it holds
// all nodes. stageAhead comes after everything else that may hold the pool.
func (j *judge) stageAhead(nodes []*progress.Node) {
	if !j.stagesAhead() || j.pool.Target == "" || j.pool.Quarantine() != nil {
		return
	}
	a := &ahead{times: moment{open: true},
		limit: share(j.stagingSpec().MaxConcurrent, j.pool.Machines, false, max(1, j.pool.Machines/10)),
		left:  j.pool.Left.Waiting, begun: j.pool.Left.Arrived > 0,
		Staging: &progress.Staging{Required: j.requires(), Digests: map[string][]string{}}}
	if j.stagingTimes != nil {
		a.times = j.stagingTimes.at(j.now)
		j.lookAgain(a.times.until)
	}
	if approval := j.pool.Approval; a.Required && approval != nil && api.SameContent(approval.Config, j.pool.Target) {
		a.Approval = approval
	}
	a.Order = j.stageOrder()
	a.Of = a.left
	if a.Approval != nil && !j.bypassed {
		a.Order.Digest = a.Approval.Digest
	}
	if j.rules.Orders == nil {
		j.rules.Orders = make(map[string]api.Orders, len(nodes))
	}
	for _, n := range nodes {
		j.survey(a, n)
	}
	slices.SortStableFunc(a.due, func(x, y *progress.Node) int { return x.Staged.Since.Compare(y.Staged.Since) })
	if a.times.open && !j.pool.Paused && !j.stopped() {
		for _, n := range append(a.fresh, a.due...) {
			if a.busy >= a.limit {
				break
			}
			j.askToStage(a, n)
			a.busy++
		}
	}
	j.rules.Staging = a.Staging
	if j.bypassed || j.pool.Updated == j.pool.Machines {
		return
	}
	if hold := j.approval(a); hold != nil && !j.stopped() {
		j.rules.Hold = hold
	}
	j.holdUnstaged(a, nodes)
}

// stopped reports whether the pool has a hold that waiting does not end.
func (j *judge) stopped() bool {
	h := j.rules.Hold
	lasting := []progress.Verdict{progress.PolicyUnusable, progress.FailureBudget, progress.GateFailed}
	return h != nil && slices.Contains(lasting, h.Verdict)
}

// able reports whether a node that was not sent can stage. Of the other nodes some are sent all the same, since the
// target may heal them.
func (j *judge) able(n *progress.Node) bool {
	return n.AtRest() && n.Desired != j.pool.Target && !j.pool.FailedOn(n)
}

// survey finds the state of a node's staging, and keeps the node's order where it still applies. A node that could not
// stage makes room for others until it is due again. So does a node that is not ready, since its state is not known.
// The room is free only once the order was taken back: the next controller may find that it was not.
func (j *judge) survey(a *ahead, n *progress.Node) {
	target := j.pool.Target
	a.begun = a.begun || n.Desired == target
	asked := ordered(n, target)
	if asked && n.Desired != target && !n.Staged.Is(target) {
		a.busy++
	}
	switch {
	case j.absent(n) && n.Desired != target:
	case n.Updated(target), j.pool.FailedOn(n), j.back[n.Name] && n.Desired != target && !asked:
	case n.Desired == target:
		if asked {
			j.askToStage(a, n)
		}
		if n.Moving() && !n.Staged.Is(target) {
			a.busy++ // the node stages on its way
		}
	case asked && n.Staged.Is(target):
		j.askToStage(a, n)
		a.Staged = append(a.Staged, n.Name)
		a.Of++
		if d := n.Staged.Digest; d != "" {
			a.Digests[d] = append(a.Digests[d], n.Name)
		}
	case !j.able(n):
	case n.Staged.Failed(target):
		a.Unable = append(a.Unable, progress.NodeProblem{Node: n.Name, Text: n.Staged.Error})
		since := n.Staged.Since
		if since.After(j.now) {
			since = time.Time{} // the time came from a clock that was ahead
		}
		if again := since.Add(api.StageRetry(n.Staged.Tries)); again.After(j.now) {
			j.lookAgain(again)
		} else if !asked {
			a.due = append(a.due, n)
		} else if a.times.open {
			j.askToStage(a, n)
		}
	case asked:
		a.Of++
		if a.times.open || j.stagingTimes.onClose == api.CloseFinishes {
			j.askToStage(a, n)
		}
	default:
		a.Of++
		a.fresh = append(a.fresh, n)
	}
}

func (j *judge) askToStage(a *ahead, n *progress.Node) {
	o := j.rules.Orders[n.Name]
	o.Stage = a.Order
	j.rules.Orders[n.Name] = o
}

// stageOrder returns the order that nodes get.
func (j *judge) stageOrder() *api.StageOrder {
	spec := j.stagingSpec()
	o := &api.StageOrder{Config: j.pool.Target, MinFreeMebibytes: spec.MinFreeMebibytes, IOWeight: spec.IOWeight,
		CPUWeight: spec.CPUWeight}
	if spec.Bandwidth != nil {
		o.Bandwidth = spec.Bandwidth.Value()
	}
	return o
}

// approval returns why no node begins before the staged target is approved, and nil if it is approved or needs no
// approval. Once a node was sent, nodes that come later, such as one that was away, wait singly.
func (j *judge) approval(a *ahead) *progress.Hold {
	if !a.Required || a.begun && a.Approval != nil {
		return nil
	}
	target := j.pool.Target
	if len(a.Staged)+a.left < a.Of || a.Of == 0 && a.Approval == nil {
		return j.staging(a)
	}
	h := &progress.Hold{
		Verdict: progress.NeedsApproval, Blocking: &progress.Object{Kind: "MachineConfigPool", Name: j.pool.Name},
		Because: fmt.Sprintf("%s is %s, and waits for an approval%s", target, a.far(), a.without()),
		Do:      fmt.Sprintf("check the staged OS and approve it: kubectl refit approve %s%s", j.pool.Name, j.orBypass()),
	}
	digests := slices.Sorted(maps.Keys(a.Digests))
	switch {
	case a.Approval != nil && (a.Of == 0 || len(digests) == 0 && a.Approval.Digest == "" ||
		a.Digests[a.Approval.Digest] != nil):
		return nil // a node with another digest is held singly
	case len(digests) > 1:
		h.Because = fmt.Sprintf("%s is not the same OS on all nodes: %s", target, a.Differs())
		h.Do = fmt.Sprintf("name the image by its digest in osImageURL: its tag or ref now means another OS. "+
			"Or approve one of the digests, and nodes with other digests wait: kubectl refit approve %s --digest DIGEST",
			j.pool.Name)
	case a.Approval != nil:
		h.Because += fmt.Sprintf("; the approval by %s is for %s", a.Approval.By, cmp.Or(a.Approval.Digest, "no OS"))
	}
	return h
}

// staging returns the hold for nodes that still stage.
func (j *judge) staging(a *ahead) *progress.Hold {
	h := &progress.Hold{
		Verdict: progress.StagingAhead, Blocking: policyObject(j.name),
		Because: fmt.Sprintf("%s is %s%s", j.pool.Target, a.far(), a.without()),
		Do:      "wait" + j.orBypass(),
	}
	if !a.times.open {
		h.Because += ", and no window for staging is open"
		if h.Until = a.times.until; !h.Until.IsZero() {
			h.Because += " before " + h.Until.UTC().Format(time.RFC3339)
		}
	}
	return h
}

func (a *ahead) far() string {
	return fmt.Sprintf("staged on %d of %d nodes", len(a.Staged)+a.left, a.Of)
}

// without names the nodes that could not stage.
func (a *ahead) without() string {
	if len(a.Unable) == 0 {
		return ""
	}
	var names []string
	for _, u := range a.Unable {
		names = append(names, u.Node)
	}
	return fmt.Sprintf("; not staged on %s: node %s: %s", some(names), a.Unable[0].Node,
		a.Unable[0].Text)
}

// holdUnstaged holds each node that would pull on its way, or would go to another digest than the approved one.
func (j *judge) holdUnstaged(a *ahead, nodes []*progress.Node) {
	for _, n := range nodes {
		h := j.unstaged(a, n)
		if h == nil || n.Desired == j.pool.Target || j.back[n.Name] ||
			h.Verdict == progress.StagingAhead && j.rules.Holds[n.Name] != nil {
			continue
		}
		j.holdNode(n.Name, h)
	}
}

func (j *judge) holdNode(name string, h *progress.Hold) {
	if j.rules.Holds == nil {
		j.rules.Holds = map[string]*progress.Hold{}
	}
	j.rules.Holds[name] = h
}

func (j *judge) unstaged(a *ahead, n *progress.Node) *progress.Hold {
	target := j.pool.Target
	switch {
	case n.Staged.Is(target) && ordered(n, target):
		if a.Approval == nil || n.Staged.Digest == "" || n.Staged.Digest == a.Approval.Digest {
			return nil
		}
		return &progress.Hold{
			Verdict: progress.NeedsApproval, Blocking: &progress.Object{Kind: "Node", Name: n.Name},
			Because: fmt.Sprintf("the node has staged %s of %s, and %s was approved by %s", n.Staged.Digest, target,
				cmp.Or(a.Approval.Digest, "no OS"), a.Approval.By),
			Do: "name the image by its digest in osImageURL: its tag or ref now means another OS",
		}
	case n.Moving():
	case !j.able(n):
		return nil
	case n.Staged.Failed(target):
		return &progress.Hold{
			Verdict: progress.CannotStage, Blocking: &progress.Object{Kind: "Node", Name: n.Name},
			Until: n.Staged.Since.Add(api.StageRetry(n.Staged.Tries)),
			Because: fmt.Sprintf("the node serves, and could not stage %s (tries: %d): %s", target,
				max(n.Staged.Tries, 1), n.Staged.Error),
			Do: "correct the named problem on the node: the agent tries again by itself",
		}
	}
	return j.staging(a)
}
