// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/noderefit/noderefit/cli"
	"github.com/noderefit/noderefit/refit"
)

// nodeCommand is a command that changes the node of its argument, and prints the result.
func nodeCommand(o *options, use, short, long string,
	change func(ctx context.Context, c *refit.Cluster, node string) (said string, err error),
) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Long: long, Args: arguments(1, 1, "NODE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.connect(cmd)
			if err != nil {
				return err
			}
			said, err := change(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), said)
			return err
		},
	}
}

func holdCommand(o *options) *cobra.Command {
	var why string
	var long time.Duration
	cmd := nodeCommand(o, "hold NODE --why TEXT [--for DURATION]", "Leave a node as it is, while rollouts go on",
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
	return cmd
}

func releaseCommand(o *options) *cobra.Command {
	return nodeCommand(o, "release NODE", "End the hold of a node",
		`Ends the hold of a node, or that the node is skipped. The rollouts of its pool include the node again.`,
		func(ctx context.Context, c *refit.Cluster, node string) (string, error) { return c.Release(ctx, node) })
}

func skipCommand(o *options) *cobra.Command {
	var why string
	cmd := nodeCommand(o, "skip NODE --why TEXT", "Have the present rollout go on without a node",
		`Skips a node for the configuration that its pool has now: the rollout goes on without the node, and the next
configuration includes the node. A node that is on its way returns to the configuration that it has, unless it reboots
already. A skipped node that is out of service takes no place of maxUnavailable once it is at rest, except on the
control plane. The Node records the author, the time and the reason. kubectl refit retry sends the node after all.`,
		func(ctx context.Context, c *refit.Cluster, node string) (string, error) {
			return c.Skip(ctx, node, why)
		})
	cmd.Flags().StringVar(&why, "why", "", "reason, which the Node records")
	cmd.PreRunE = func(*cobra.Command, []string) error { return needsWhy(why) }
	return cmd
}

func retryCommand(o *options) *cobra.Command {
	var why string
	cmd := nodeCommand(o, "retry NODE [--why TEXT]", "Have a node try the configuration of its pool again",
		`Has a node try the configuration of its pool again, where the node was skipped for it, or where the configuration
failed on the node. Failures on other nodes stay: kubectl refit quarantine lift is for the whole pool.`,
		func(ctx context.Context, c *refit.Cluster, node string) (string, error) {
			return c.Retry(ctx, node, why)
		})
	cmd.Flags().StringVar(&why, "why", "", "reason, which the pool records")
	cmd.PreRunE = func(*cobra.Command, []string) error { return refit.CheckWhy(why) }
	return cmd
}

func needsWhy(why string) error {
	if why == "" {
		return cli.Usagef("flag --why: a reason is needed, for the record")
	}
	return refit.CheckWhy(why)
}
