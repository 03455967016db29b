// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/noderefit/noderefit/cli"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/refit"
)

// poolCommand is a command that changes the pool of its first argument, and prints the result.
func poolCommand(o *options, use, short string, extra int,
	change func(ctx context.Context, c *refit.Cluster, pool string, args []string) (said string, err error),
) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: arguments(1, 1+extra, "POOL"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.connect(cmd)
			if err != nil {
				return err
			}
			said, err := change(cmd.Context(), c, args[0], args[1:])
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), said)
			return err
		},
	}
}

func pauseCommand(o *options) *cobra.Command {
	return poolCommand(o, "pause POOL", "Tell no further node of a pool to change its configuration", 0,
		func(ctx context.Context, c *refit.Cluster, pool string, _ []string) (string, error) {
			return c.Pause(ctx, pool)
		})
}

func resumeCommand(o *options) *cobra.Command {
	var keepPin bool
	cmd := poolCommand(o, "resume POOL", "Let a pool go on that was paused, or held by a rollback", 0,
		func(ctx context.Context, c *refit.Cluster, pool string, _ []string) (string, error) {
			return c.Resume(ctx, pool, keepPin)
		})
	cmd.Long = `Lets a pool go on: it is no longer paused, and a rollback no longer holds it at an earlier configuration,
so that it goes to what its MachineConfigs render to.`
	cmd.Flags().BoolVar(&keepPin, "keep-pin", false, "go on to the configuration that the pool was rolled back to")
	return cmd
}

func rollbackCommand(o *options) *cobra.Command {
	var to string
	cmd := poolCommand(o, "rollback POOL [--to RENDERED]", "Take a pool back to a configuration that it had", 0,
		func(ctx context.Context, c *refit.Cluster, pool string, _ []string) (string, error) {
			return c.Rollback(ctx, pool, to)
		})
	cmd.Long = `Takes a pool back to a configuration that it had: the one that all its nodes had before the present one, or
the one that --to names. The pool is held there until its MachineConfigs render to something else than what it left, or
until kubectl refit resume. Nodes go the way of any update: one after the other, drained, with a verdict. In the middle
of a rollout those that go back to what all had before it wait for no window, stage, approval or other pool of a
RolloutPolicy.`
	cmd.Flags().StringVar(&to, "to", "", "rendered configuration to go back to")
	return cmd
}

func approveCommand(o *options) *cobra.Command {
	var digest, why string
	cmd := &cobra.Command{
		Use: "approve POOL [--digest DIGEST] [--why TEXT]", Short: "Let a pool's nodes go to what they have staged",
		Args: arguments(1, 1, "POOL"),
		Long: `Approves the configuration that a pool shall have, as its nodes have staged it, where the pool's RolloutPolicy
asks for that. With --digest it has to be that OS which was staged, as in a CI job that has tested it; nodes that have
staged another one wait. Who approved what, and when, is recorded at the pool and as an event. Another configuration
needs another approval.`,
		PreRunE: func(*cobra.Command, []string) error { return refit.CheckWhy(why) },
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.connect(cmd)
			if err != nil {
				return err
			}
			var want *string
			if cmd.Flags().Changed("digest") {
				want = &digest
			}
			a, err := c.Approve(cmd.Context(), args[0], want, why)
			if err != nil {
				return err
			}
			return o.print(cmd, a, a.WriteText)
		},
	}
	o.outputFlag(cmd)
	cmd.Flags().StringVar(&digest, "digest", "", "the digest that has to be the one that was staged")
	cmd.Flags().StringVar(&why, "why", "", "the reason, for the record")
	return cmd
}

func bypassCommand(o *options) *cobra.Command {
	var why string
	var end bool
	cmd := poolCommand(o, "bypass POOL --why TEXT", "Let a pool's update go on without most of its RolloutPolicy", 0,
		func(ctx context.Context, c *refit.Cluster, pool string, _ []string) (string, error) {
			if end {
				return c.EndBypass(ctx, pool)
			}
			return c.Bypass(ctx, pool, why)
		})
	cmd.Long = `Lets the configuration that a pool shall have now go through it without most of its RolloutPolicy:
` + progress.Bypassed + `.
What counts still:
` + progress.NotBypassed + `.
Who did it, when and why is recorded at the pool and as an event. It ends when the pool is to have another
configuration, or with --end.`
	cmd.Flags().StringVar(&why, "why", "", "the reason, for the record")
	cmd.Flags().BoolVar(&end, "end", false, "end the bypass")
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if end == (why != "") {
			return cli.Usagef("one of --why TEXT and --end is needed")
		}
		return refit.CheckWhy(why)
	}
	return cmd
}

func quarantineCommand(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "quarantine",
		Short: "List the configurations that failed, and lift what is to be tried again",
		Args:  arguments(0, 0, ""),
		RunE: func(*cobra.Command, []string) error {
			return cli.Usagef("quarantine list or quarantine lift is needed")
		},
	}
	cmd.AddCommand(quarantineList(o), quarantineLift(o))
	return cmd
}

func quarantineList(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list [POOL]",
		Short: "List the configurations that failed on a node and are offered to none, and those that were lifted",
		Args:  arguments(0, 1, "POOL"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.connect(cmd)
			if err != nil {
				return err
			}
			rows, err := c.Quarantines(cmd.Context(), args)
			if err != nil {
				return err
			}
			return o.print(cmd, rows, func(w io.Writer) error { return rows.WriteText(w, time.Now()) })
		},
	}
	o.outputFlag(cmd)
	return cmd
}

func quarantineLift(o *options) *cobra.Command {
	var why string
	cmd := poolCommand(o, "lift POOL [CONFIG] [--why TEXT]", "Let a configuration be tried again that failed", 1,
		func(ctx context.Context, c *refit.Cluster, pool string, args []string) (string, error) {
			var config *string
			if len(args) > 0 {
				config = &args[0]
			}
			return c.Lift(ctx, pool, config, why)
		})
	cmd.Long = `Lets a configuration be tried again that failed on a node: that node tries it first and alone, and when it
fails again it is quarantined again. It is lifted for all pools that have the same content. Without CONFIG it is the one
that the pool shall have, or the only one there is. Who lifted it, when, and why is kept with the pool and shown by
kubectl refit quarantine list.`
	cmd.Flags().StringVar(&why, "why", "", "why it may be tried again, for those who come later")
	return cmd
}
