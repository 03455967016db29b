// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/noderefit/noderefit/plan"
	"github.com/noderefit/noderefit/progress"
)

func diffCommand(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "diff NODE|POOL",
		Short: "Show how what a node or a pool has differs from what it shall have",
		Long: `Shows how the configuration that a node has differs from the one that it shall have, or that its pool has for
it; of a pool, how the one that all its nodes last had differs from the one that they shall have. Paths and names are
shown, contents never. A name that a node and a pool share is told apart as node/NAME and pool/NAME.`,
		Args: arguments(1, 1, "NODE or POOL"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.connect(cmd)
			if err != nil {
				return err
			}
			p, err := c.diff(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return errors.Join(o.print(cmd, p, p.WriteText), reconcilable(p))
		},
	}
	o.outputFlag(cmd)
	return cmd
}

// reconcilable is an error where a plan can't be carried out.
func reconcilable(p *plan.Plan) error {
	if len(p.Unreconcilable) == 0 {
		return nil
	}
	u := p.Unreconcilable[0]
	return unreachableError{fmt.Errorf("%s can't be reached from %s: %s: %s", p.Desired, p.Current, u.Field, u.Reason)}
}

func (c *cluster) diff(ctx context.Context, name string) (*plan.Plan, error) {
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
	return between(from, want, policy)
}

// ends are the configurations between which a node or a pool is.
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
			// It was not told yet what is next.
			desired = p.Target
		}
	}
	if desired == "" {
		return "", "", fmt.Errorf("%s shall have no configuration yet", s)
	}
	return current, desired, nil
}
