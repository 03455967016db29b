// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"slices"

	"github.com/noderefit/noderefit/progress"
)

// findBack finds the nodes that go back to what the whole pool had. They do after a person took a configuration back in
// the middle of its rollout. Going back is a repair. Going back waits for no rule of a policy about when nodes begin
// and in which order.
func (j *judge) findBack() {
	j.back = map[string]bool{}
	for i := range j.pool.Nodes {
		if n := &j.pool.Nodes[i]; j.pool.ComesBack(n) {
			j.back[n.Name] = true
		}
	}
}

// letBack makes a hold of the whole pool a hold of each node, except the nodes that go back. A hold with the verdict
// PolicyUnusable or FailureBudget stays as it is, since it does not end by itself. Going back may end the other holds,
// and missing and shut count among these.
func (j *judge) letBack() {
	h := j.rules.Hold
	broken := []progress.Verdict{progress.PolicyUnusable, progress.FailureBudget}
	if h == nil || len(j.back) == 0 || h != j.missing && h != j.shut && slices.Contains(broken, h.Verdict) {
		return
	}
	j.rules.Hold = nil
	for i := range j.pool.Nodes {
		if name := j.pool.Nodes[i].Name; !j.back[name] {
			j.holdNode(name, h)
		}
	}
}
