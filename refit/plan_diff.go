// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"context"
	"fmt"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/cli"
	"github.com/noderefit/noderefit/plan"
	"github.com/noderefit/noderefit/progress"
)

// Diff plans from the present configuration of a node or a pool to its desired one. The plan names the differences, and
// holds no contents.
func (c *Cluster) Diff(ctx context.Context, name string) (Difference, error) {
	p, err := c.diff(ctx, name)
	return Difference{api.NewHeader("Diff"), p}, err
}

// Difference is the result of diff, and its JSON.
type Difference struct {
	api.Header
	*plan.Plan
}

func (c *Cluster) diff(ctx context.Context, name string) (*plan.Plan, error) {
	pools, err := c.pools(ctx)
	if err != nil {
		return nil, err
	}
	nodes, err := c.nodes(ctx)
	if err != nil {
		return nil, err
	}
	current, desired, err := ends(progress.NewReport(progress.View{Pools: pools, Nodes: nodes}), name)
	if err != nil {
		return nil, err
	}
	want, err := c.rendered(ctx, desired)
	if err != nil {
		return nil, err
	}
	policy, err := c.policy(ctx)
	if err != nil {
		return nil, err
	}
	from, err := c.had(ctx, current)
	if err != nil {
		return nil, err
	}
	// Both were rendered, so the controller has judged paths in an OS image already.
	return between(from, want, policy, plan.ImageAbsent)
}

// ends returns the present and the desired configuration of a node or a pool.
func ends(r *progress.Report, name string) (current, desired string, err error) {
	s, err := subject(r, name)
	if err != nil {
		return "", "", err
	}
	if s.Kind == kindPool {
		p, _ := r.Pool(s.Name)
		current, desired = p.Previous, p.Target
	} else {
		n, pool, _ := r.Node(s.Name)
		current, desired = n.Current, n.Desired
		if p, ok := r.Pool(pool); ok && (n.Settled() || desired == "") && p.Target != "" {
			// The node was not told its next configuration yet.
			desired = p.Target
		}
	}
	if desired == "" {
		return "", "", fmt.Errorf("%s shall have no configuration yet", s)
	}
	return current, desired, nil
}

// Reconcilable returns an error where a plan can't be carried out.
func Reconcilable(p *plan.Plan) error {
	if len(p.Unreconcilable) == 0 {
		return nil
	}
	u := p.Unreconcilable[0]
	return cli.Unreachablef("%s can't be reached from %s: %s: %s", p.Desired, p.Current, u.Field, u.Reason)
}
