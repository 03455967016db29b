// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"slices"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/progress"
)

func TestOnlyWhatIsStagedCanBeApproved(t *testing.T) {
	t.Parallel()
	one := map[string][]string{"x": {"a", "b"}}
	digest := func(text string) *string { return &text }
	for name, c := range map[string]struct {
		staging *progress.Staging
		updated int
		want    *string
		digest  string
		others  []string // that have staged another
		err     string
	}{
		"no policy":       {err: "asks for no approval"},
		"not asked for":   {staging: &progress.Staging{Staged: []string{"a"}, Of: 1}, err: "asks for no approval"},
		"all are there":   {staging: &progress.Staging{Required: true}, updated: 2, err: "nothing waits for an approval"},
		"too early":       {staging: &progress.Staging{Required: true, Staged: []string{"a"}, Of: 2}, err: "staged on 1 of 2 nodes"},
		"nobody is there": {staging: &progress.Staging{Required: true}, want: digest("x"), digest: "x"},
		"nobody can":      {staging: &progress.Staging{Required: true, Unable: []progress.NodeProblem{{Node: "a", Text: "no space"}}}, err: "staged on 0 of 0 nodes"},
		"as it is":        {staging: &progress.Staging{Required: true, Staged: []string{"a", "b"}, Of: 2, Digests: one}, digest: "x"},
		"by its digest":   {staging: &progress.Staging{Required: true, Staged: []string{"a", "b"}, Of: 2, Digests: one}, want: digest("x"), digest: "x"},
		"another digest":  {staging: &progress.Staging{Required: true, Staged: []string{"a", "b"}, Of: 2, Digests: one}, want: digest("y"), err: "the nodes have staged x, and not y"},
		"no OS":           {staging: &progress.Staging{Required: true, Staged: []string{"a"}, Of: 1}, want: digest("")},
		"an OS for none":  {staging: &progress.Staging{Required: true, Staged: []string{"a"}, Of: 1}, want: digest("x"), err: "the nodes have staged no OS, and not x"},
		"different ones": {
			staging: &progress.Staging{
				Required: true, Staged: []string{"a", "b", "c"}, Of: 3, Digests: map[string][]string{"x": {"a"}, "y": {"b", "c"}},
			},
			err: "x on a, y on b and 1 more",
		},
		"one of different ones": {
			staging: &progress.Staging{
				Required: true, Staged: []string{"a", "b", "c"}, Of: 3, Digests: map[string][]string{"x": {"a"}, "y": {"b", "c"}},
			},
			want: digest("y"), digest: "y", others: []string{"a"},
		},
		"none of different ones": {
			staging: &progress.Staging{
				Required: true, Staged: []string{"a", "b"}, Of: 2, Digests: map[string][]string{"x": {"a"}, "y": {"b"}},
			},
			want: digest("z"), err: "x on a, y on b",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := progress.Pool{Name: "worker", Target: "B", Counts: progress.Counts{Machines: 2, Updated: c.updated}}
			p.Rules.Staging = c.staging
			a, err := approve(p, c.want)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("got %v, want %s", err, c.err)
				}
				return
			}
			if err != nil || a.Config != "B" || a.Digest != c.digest || a.Nodes == nil || len(a.Nodes) != len(c.staging.Staged)-len(c.others) ||
				!slices.Equal(a.Others, c.others) {
				t.Errorf("%+v, %v", a, err)
			}
		})
	}
}
