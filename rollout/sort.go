// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"slices"

	"github.com/noderefit/noderefit/progress"
)

// sorted returns the pool's nodes sorted; no two nodes are equal. Sorting begins with the order of the book's last
// Follow, since few nodes have moved, and those forward. That saves time and does not change the result.
func (j *judge) sorted(compare func(a, b int) int) []*progress.Node {
	before, of := j.last[j.pool.Name], j.pool.Nodes
	if len(before) != len(of) {
		before = make([]int, len(of))
		for i := range before {
			before[i] = i
		}
	}
	stay, moved := make([]int, 0, len(of)), []int(nil)
	for _, i := range before {
		if len(stay) == 0 || compare(stay[len(stay)-1], i) <= 0 {
			stay = append(stay, i)
		} else {
			moved = append(moved, i)
		}
	}
	slices.SortFunc(moved, compare)
	order := merge(stay, moved, compare)
	if j.last == nil {
		j.last = map[string][]int{}
	}
	j.last[j.pool.Name] = order
	nodes := make([]*progress.Node, len(of))
	for at, i := range order {
		nodes[at] = &of[i]
	}
	return nodes
}

// merge merges two sorted lists. The second list is usually short.
func merge(long, short []int, less func(a, b int) int) []int {
	out := make([]int, 0, len(long)+len(short))
	for _, i := range short {
		at, _ := slices.BinarySearchFunc(long, i, less)
		out = append(append(out, long[:at]...), i)
		long = long[at:]
	}
	return append(out, long...)
}
