// SPDX-License-Identifier: Apache-2.0

package progress

// Left counts nodes of a pool that are not among its Nodes. They are at rest and serve, nothing is to be said to them,
// and how many they are is all that is asked of them: so a simulated decision costs what changes.
type Left struct {
	// Arrived are at the target, and past all that a policy waits for on single nodes. In each stage, a node that became
	// ready no earlier is among the Nodes.
	Arrived int
	// Waiting are to go there, and have staged what they are to stage. A node of the stage at work is among the Nodes if
	// its turn is before theirs. So is, of all that later stages hold, the first by name.
	Waiting int
	// Seats are how many of both are seated in each stage, and behind the last; nil without stages.
	Seats []int
}

// Any reports whether nodes are left out.
func (l Left) Any() bool { return l.Arrived+l.Waiting > 0 }

// Seated is how many of the nodes that are left out have a seat in a stage.
func (l Left) Seated(stage int) int {
	if stage >= len(l.Seats) {
		return 0
	}
	return l.Seats[stage]
}

// LeaveOut counts nodes in that are left out of a pool's Nodes. Of all of them together most may be out of service.
func (p *Pool) LeaveOut(left Left, most int) {
	p.Left, p.MaxUnavailable = left, most
	p.Machines += left.Arrived + left.Waiting
	p.Updated += left.Arrived
	p.Ready += left.Arrived
}
