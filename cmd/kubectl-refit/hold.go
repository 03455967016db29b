// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/noderefit/noderefit/cli"
	"github.com/noderefit/noderefit/refit"
)

// nodeCommand is a command that changes the nodes of its arguments, or those with labels, and prints the results.
func nodeCommand(o *options, use, short, long string,
	change func(ctx context.Context, c *refit.Cluster, node string) (said string, err error),
) *cobra.Command {
	var chosen selector
	cmd := &cobra.Command{
		Use: use, Short: short, Long: long,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) == 0 && chosen.Selector == nil:
				return cli.Usagef("NODE is needed, or labels of nodes, by -l")
			case len(args) > 0 && chosen.Selector != nil:
				return cli.Usagef("flag -l: chooses the nodes; leave out NODE %s", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.connect(cmd)
			if err != nil {
				return err
			}
			if chosen.Selector != nil {
				if args, err = c.NodesWith(cmd.Context(), chosen.Selector); err != nil {
					return err
				}
			}
			var errs []error
			for _, node := range args {
				said, err := change(cmd.Context(), c, node)
				if err == nil {
					err = say(cmd, said)
				}
				errs = append(errs, err)
			}
			return errors.Join(errs...)
		},
	}
	o.argumentsFrom(cmd, true, nodes)
	chosen.flag(cmd, "labels of the nodes, instead of their names")
	return cmd
}

func holdCommand(o *options) *cobra.Command {
	var why string
	var long time.Duration
	cmd := nodeCommand(o, "hold NODE... --why TEXT [--for DURATION]", "Leave a node as it is, while rollouts go on",
		`Holds a node: rollouts leave the node as it is and go on without it. A node that is on its way returns to the
configuration that it has, unless it reboots already. The stages of a RolloutPolicy do not wait for the node. A held
node that is out of service still takes one of the places of maxUnavailable. The Node records the author, the time and
the reason. The hold lasts until kubectl refit release, or for the time of --for.`,
		func(ctx context.Context, c *refit.Cluster, node string) (string, error) {
			return c.Hold(ctx, node, why, long)
		})
	cmd.Flags().StringVar(&why, "why", "", "reason for the hold, which the Node records")
	cmd.Flags().DurationVar(&long, "for", 0, "time after which the hold ends by itself, such as 4h")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if cmd.Flags().Changed("for") && long <= 0 {
			return cli.Usagef("flag --for: %s is not a time in the future; write, for example, 4h", long)
		}
		return needsWhy(why)
	}
	cmd.Example = `  kubectl refit hold worker-3 --why "a trace is running" --for 4h
  kubectl refit hold -l zone=a --why "the rack moves"`
	return cmd
}

func releaseCommand(o *options) *cobra.Command {
	cmd := nodeCommand(o, "release NODE...", "End the hold of a node",
		`Ends the hold of a node, or that the node is skipped. The rollouts of its pool include the node again.`,
		func(ctx context.Context, c *refit.Cluster, node string) (string, error) { return c.Release(ctx, node) })
	cmd.Example = `  kubectl refit release worker-3
  kubectl refit release -l zone=a`
	return cmd
}

func skipCommand(o *options) *cobra.Command {
	var why string
	cmd := nodeCommand(o, "skip NODE... --why TEXT", "Have the present rollout go on without a node",
		`Skips a node for the configuration that its pool has now: the rollout goes on without the node, and the next
configuration includes the node. A node that is on its way returns to the configuration that it has, unless it reboots
already. A skipped node that is out of service takes no place of maxUnavailable once it is at rest, except on the
control plane. The Node records the author, the time and the reason. kubectl refit retry sends the node after all.`,
		func(ctx context.Context, c *refit.Cluster, node string) (string, error) {
			return c.Skip(ctx, node, why)
		})
	cmd.Flags().StringVar(&why, "why", "", "reason, which the Node records")
	cmd.PreRunE = func(*cobra.Command, []string) error { return needsWhy(why) }
	cmd.Example = `  kubectl refit skip worker-3 --why "its disk is broken"`
	return cmd
}

func retryCommand(o *options) *cobra.Command {
	var why string
	cmd := nodeCommand(o, "retry NODE... [--why TEXT]", "Have a node try the configuration of its pool again",
		`Has a node try the configuration of its pool again, where the node was skipped for it, or where the configuration
failed on the node. Where an ordered reboot failed, the node reboots again. Failures on other nodes stay: kubectl refit
quarantine lift is for the whole pool.`,
		func(ctx context.Context, c *refit.Cluster, node string) (string, error) {
			return c.Retry(ctx, node, why)
		})
	cmd.Flags().StringVar(&why, "why", "", "reason, which the pool records")
	cmd.PreRunE = func(*cobra.Command, []string) error { return refit.CheckWhy(why) }
	cmd.Example = `  kubectl refit retry worker-3 --why "the disk was replaced"`
	return cmd
}

func needsWhy(why string) error {
	if why == "" {
		return cli.Usagef("flag --why: a reason is needed, for the record")
	}
	return refit.CheckWhy(why)
}
