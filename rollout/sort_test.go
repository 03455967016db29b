// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/noderefit/noderefit/progress"
)

func TestNodesAreSortedWhateverTheyWereBefore(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	j := &judge{policy: &policy{}, pool: &progress.Pool{Name: "worker"}}
	for range 200 {
		if random.IntN(5) == 0 {
			j.pool.Nodes = make([]progress.Node, random.IntN(30))
		}
		for i := range j.pool.Nodes {
			if n := &j.pool.Nodes[i]; n.Name == "" || random.IntN(4) == 0 {
				n.Name = fmt.Sprintf("n-%03d-%d", random.IntN(1000), i)
			}
		}
		byName := func(a, b *progress.Node) int { return cmp.Compare(a.Name, b.Name) }
		got := j.sorted(func(a, b int) int { return byName(&j.pool.Nodes[a], &j.pool.Nodes[b]) })
		want := make([]*progress.Node, 0, len(j.pool.Nodes))
		for i := range j.pool.Nodes {
			want = append(want, &j.pool.Nodes[i])
		}
		slices.SortFunc(want, byName)
		if !slices.Equal(got, want) {
			t.Fatalf("of %d nodes", len(want))
		}
	}
}
