// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/noderefit/noderefit/cli"
	"github.com/noderefit/noderefit/output"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/refit"
)

// poolCommand is a command that changes the pool of its first argument, and prints the result.
func poolCommand(o *options, use, short string, extra int,
	change func(ctx context.Context, c *refit.Cluster, pool string, args []string) (said string, err error),
) *cobra.Command {
	cmd := &cobra.Command{
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
			return say(cmd, said)
		},
	}
	o.argumentsFrom(cmd, false, pools)
	return cmd
}

func pauseCommand(o *options) *cobra.Command {
	cmd := poolCommand(o, "pause POOL", "Tell no further node of a pool to change its configuration", 0,
		func(ctx context.Context, c *refit.Cluster, pool string, _ []string) (string, error) {
			return c.Pause(ctx, pool)
		})
	cmd.Example = `  kubectl refit pause worker`
	return cmd
}

func resumeCommand(o *options) *cobra.Command {
	var keepPin bool
	cmd := poolCommand(o, "resume POOL", "Resume a pool that is paused, or pinned by a rollback", 0,
		func(ctx context.Context, c *refit.Cluster, pool string, _ []string) (string, error) {
			return c.Resume(ctx, pool, keepPin)
		})
	cmd.Long = `Ends the pause of a pool, and its pin to an earlier configuration. The pool's nodes then go to the
configuration that its MachineConfigs render to.`
	cmd.Flags().BoolVar(&keepPin, "keep-pin", false, "go on to the configuration that the pool was rolled back to")
	cmd.Example = `  kubectl refit resume worker
  kubectl refit resume worker --keep-pin`
	return cmd
}

func rollbackCommand(o *options) *cobra.Command {
	var to string
	var resume bool
	cmd := poolCommand(o, "rollback POOL [--to RENDERED] [--resume]", "Take a pool back to a configuration that it had", 0,
		func(ctx context.Context, c *refit.Cluster, pool string, _ []string) (string, error) {
			return c.Rollback(ctx, pool, to, resume)
		})
	cmd.Long = `Takes a pool back to an earlier configuration: the one that all its nodes had last, or the one that --to
names. The pool is pinned there until kubectl refit resume, or until its MachineConfigs render to a configuration
other than the one it left. Nodes are updated as always: one after the other, drained, with a verdict. In the middle of
a rollout, nodes that return to the configuration before the rollout wait for no window, stage, approval or other pool
of a RolloutPolicy.`
	cmd.Flags().StringVar(&to, "to", "", "rendered configuration to go back to")
	cmd.Flags().BoolVar(&resume, "resume", false, "end the pause of a paused pool, so that its nodes go back now")
	cmd.Example = `  kubectl refit rollback worker
  kubectl refit rollback worker --resume
  kubectl refit rollback worker --to rendered-worker-164f2a075f165d0e8b4c621a6fffae36`
	completes(cmd, "to", o.complete(rendered))
	return cmd
}

func approveCommand(o *options) *cobra.Command {
	var digest, why string
	cmd := &cobra.Command{
		Use: "approve POOL [--digest DIGEST] [--why TEXT]",
		Example: `  kubectl refit approve worker --why "tested in staging"
  kubectl refit approve worker -o json`,
		Short: "Approve a pool's configuration as its nodes have staged it",
		Args:  arguments(1, 1, "POOL"),
		Long: `Approves the desired configuration of a pool, as its nodes staged it, where the pool's
RolloutPolicy asks for an approval. With --digest, as in a CI job that has tested an OS, only nodes with that OS begin.
The pool and an event record the approval with its author and time. Another configuration needs another approval.`,
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
	o.outputFlag(cmd, output.Name)
	cmd.Flags().StringVar(&digest, "digest", "", "the digest that has to be the one that was staged")
	cmd.Flags().StringVar(&why, "why", "", "the reason, for the record")
	o.argumentsFrom(cmd, false, pools)
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
	cmd.Example = `  kubectl refit bypass worker --why "CVE-2026-1234 is exploited"
  kubectl refit bypass worker --end`
	return cmd
}

func quarantineCommand(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "quarantine",
		Short: "List the configurations that failed, and let one be tried again",
		Example: `  kubectl refit quarantine list
  kubectl refit quarantine lift worker --why "the registry was down"`,
		Args: cli.NoCommand,
		RunE: func(*cobra.Command, []string) error {
			return cli.Usagef("quarantine list or quarantine lift is needed")
		},
	}
	cmd.AddCommand(quarantineList(o), quarantineLift(o))
	return cmd
}

func quarantineList(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "list [POOL]",
		Example: `  kubectl refit quarantine list
  kubectl refit quarantine list worker -o name`,
		Short: "List the configurations in quarantine, which no node is sent to, and the lifted ones",
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
	o.outputFlag(cmd, output.Name)
	everywhere(cmd)
	o.argumentsFrom(cmd, false, pools)
	return cmd
}

func quarantineLift(o *options) *cobra.Command {
	var why string
	cmd := poolCommand(o, "lift POOL [CONFIG] [--why TEXT]", "Allow a failed configuration to be tried again", 1,
		func(ctx context.Context, c *refit.Cluster, pool string, args []string) (string, error) {
			var config *string
			if len(args) > 0 {
				config = &args[0]
			}
			return c.Lift(ctx, pool, config, why)
		})
	cmd.Long = `Lifts the quarantine of a configuration that failed on a node. That node tries the configuration first and
alone; a second failure quarantines the configuration again. The lift holds for all pools with the same content. Without
CONFIG, the desired configuration of the pool is lifted, or the only one in quarantine. The pool records the author, the
time and the reason; kubectl refit quarantine list shows them.`
	cmd.Flags().StringVar(&why, "why", "", "reason for the lift, which the pool records")
	cmd.Example = `  kubectl refit quarantine lift worker --why "the registry was down"`
	o.argumentsFrom(cmd, false, pools, quarantined)
	return cmd
}
