// SPDX-License-Identifier: Apache-2.0

package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/cli"
	"github.com/noderefit/noderefit/refit"
)

func tryCommand(o *options) *cobra.Command {
	var order refit.TryOrder
	var end bool
	cmd := &cobra.Command{
		Use:   "try --node NODE {-f FILE [--for DURATION] [--keep] | --end}",
		Short: "Have one node try a configuration, and go back by itself",
		Long: `Sends one node to the configuration of its pool with the documents of files, which the pool does not get. The
node takes the usual way: budgets, drain, reboot if needed, verdict. After the time of --for the node goes back to the
configuration of its pool, and at once if the configuration fails. Rollouts pass the node by meanwhile. The cluster
keeps the time: this program may end.

With --keep this program waits until the time is over, and then writes the documents as MachineConfigs: the pool gets
what the node has. Without --for, --keep waits for the verdict alone. If this program ends before, the node goes back.`,
		Args: cli.NoCommand,
		PreRunE: func(cmd *cobra.Command, _ []string) error {
			files := len(order.Files) > 0
			switch {
			case order.Node == "":
				return cli.Usagef("flag --node: a node is needed")
			case end == files:
				return cli.Usagef("either -f with what the node is to try, or --end is needed")
			case end && (order.Keep || order.Bypass || cmd.Flags().Changed("for")):
				return cli.Usagef("flag --end: goes with --node alone")
			case order.For < 0 || order.For > api.LongestTrial-time.Hour:
				return cli.Usagef("flag --for: %s is not from 0 to %s", order.For, api.LongestTrial-time.Hour)
			case order.Bypass && order.Why == "":
				return needsWhy("")
			}
			if order.Keep && !cmd.Flags().Changed("for") {
				order.For = 0
			}
			return refit.CheckWhy(order.Why)
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := o.connect(cmd)
			if err != nil {
				return err
			}
			if end {
				said, err := c.EndTrial(cmd.Context(), order.Node)
				if err == nil {
					err = say(cmd, said)
				}
				return err
			}
			order.Out = forPeople(cmd.OutOrStdout())
			return c.Try(cmd.Context(), order)
		},
	}
	f := cmd.Flags()
	f.StringVar(&order.Node, "node", "", "node that tries the configuration")
	f.StringSliceVarP(&order.Files, "filename", "f", nil,
		"file or directory with documents, - for the standard input; may be repeated")
	f.DurationVar(&order.For, "for", 30*time.Minute, "time after the verdict for which the node keeps the configuration")
	f.BoolVar(&order.Keep, "keep", false, "wait, and hand the documents to the pool after the time")
	f.BoolVar(&end, "end", false, "end the trial of the node now: the node goes back")
	f.StringVar(&order.Why, "why", "", "reason, which the Node records")
	f.BoolVar(&order.Bypass, "bypass", false, "begin although the pool's RolloutPolicy lets no node begin; needs --why")
	completes(cmd, "node", o.complete(nodes))
	cmd.Example = `  kubectl refit try -f 50-sysctl.yaml --node worker-3
  kubectl refit try -f 50-sysctl.yaml --node worker-3 --for 2h --why "is the latency better?"
  kubectl refit try -f 50-sysctl.yaml --node worker-3 --for 10m --keep
  kubectl refit try --node worker-3 --end`
	return cmd
}
