// SPDX-License-Identifier: Apache-2.0

package progress

// Left counts nodes of a pool that are not among its Nodes. These nodes are at rest and serve, they are to be told
// nothing, and only their number matters. So the cost of a simulated decision depends only on what changes.
type Left struct {
	// Arrived is the number of nodes that are at the target and past everything that a policy waits for on single nodes.
	// In each stage, one of the Nodes became ready no earlier than any of these.
	Arrived int
	// Waiting is the number of nodes that are still to go, and have staged what they are to stage. A node of the stage at
	// work is among the Nodes if its turn comes earlier. So is the first node by name of all that later stages hold.
	Waiting int
	// Seats has the number of arrived and waiting nodes seated in each stage, and last the number without a seat. Seats is
	// nil without stages.
	Seats []int
}

// Any reports whether nodes are left out.
func (l Left) Any() bool { return l.Arrived+l.Waiting > 0 }

// Seated returns the number of left-out nodes that have a seat in a stage.
func (l Left) Seated(stage int) int {
	if stage >= len(l.Seats) {
		return 0
	}
	return l.Seats[stage]
}

// LeaveOut counts in the nodes that are left out of a pool's Nodes. most is how many of all its nodes may be out of
// service.
func (p *Pool) LeaveOut(left Left, most int) {
	p.Left, p.MaxUnavailable = left, most
	p.Machines += left.Arrived + left.Waiting
	p.Updated += left.Arrived
	p.Ready += left.Arrived
}
