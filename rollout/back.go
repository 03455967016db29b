// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"slices"

	"github.com/noderefit/noderefit/progress"
)

// findBack finds the nodes that go back to what the whole pool had: somebody took a configuration back in the middle of
// its rollout. That is a repair, and waits for nothing that a policy says of when, and of who comes first.
func (j *judge) findBack() {
	j.back = map[string]bool{}
	for i := range j.pool.Nodes {
		if n := &j.pool.Nodes[i]; j.pool.ComesBack(n) {
			j.back[n.Name] = true
		}
	}
}

// letBack has what holds the whole pool hold all nodes but those that go back, unless something is broken: these two
// alone do not end by themselves, and a repair may be what ends the others.
func (j *judge) letBack() {
	h := j.rules.Hold
	broken := []progress.Verdict{progress.PolicyUnusable, progress.FailureBudget}
	if h == nil || len(j.back) == 0 || h != j.missing && h != j.shut && slices.Contains(broken, h.Verdict) {
		return
	}
	j.rules.Hold = nil
	if j.rules.Holds == nil {
		j.rules.Holds = map[string]*progress.Hold{}
	}
	for i := range j.pool.Nodes {
		if name := j.pool.Nodes[i].Name; !j.back[name] {
			j.rules.Holds[name] = h
		}
	}
}
