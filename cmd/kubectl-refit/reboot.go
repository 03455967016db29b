// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/cobra"

	"github.com/noderefit/noderefit/cli"
	"github.com/noderefit/noderefit/refit"
)

func rebootCommand(o *options) *cobra.Command {
	var order refit.RebootOrder
	cmd := &cobra.Command{
		Use:   "reboot NODE|POOL {--why TEXT [--soft] [--bypass] | --cancel}",
		Short: "Have a node, or each node of a pool, reboot once",
		Long: `Orders that a node, or each node of a pool, reboots once. The node is drained in its turn, within
maxUnavailable and the windows of the pool's RolloutPolicy, and the boot has its verdict. The nodes of a pool go through
the stages and gates of the policy, and the first reboot that fails stops the others. With a policy that has reboots:
Manual, this is how a committed configuration is booted. The Node or the pool records the author, the time and the
reason.

The order waits in the cluster: this program may end. --cancel takes it back from the nodes that have not begun.`,
		Args: arguments(1, 1, "NODE|POOL"),
		PreRunE: func(*cobra.Command, []string) error {
			switch {
			case order.Cancel && (order.Soft || order.Bypass || order.Why != ""):
				return cli.Usagef("flag --cancel: goes without --why, --soft and --bypass")
			case order.Cancel:
				return nil
			}
			return needsWhy(order.Why)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.connect(cmd)
			if err != nil {
				return err
			}
			order.Name = args[0]
			said, err := c.Reboot(cmd.Context(), order)
			if err != nil {
				return err
			}
			return say(cmd, said)
		},
	}
	f := cmd.Flags()
	f.StringVar(&order.Why, "why", "", "reason for the reboot, which the Node or the pool records")
	f.BoolVar(&order.Soft, "soft", false, "restart the userspace alone, where that is enough and the host can")
	f.BoolVar(&order.Bypass, "bypass", false, "begin although no window is open, or the RolloutPolicy has reboots: Never")
	f.BoolVar(&order.Cancel, "cancel", false, "take the order back")
	o.argumentsFrom(cmd, false, nodesAndPools)
	cmd.Example = `  kubectl refit reboot worker-3 --why "the BMC was replaced"
  kubectl refit reboot pool/worker --why "CVE-2026-1234"
  kubectl refit reboot worker-3 --why "a hung mount" --bypass
  kubectl refit reboot pool/worker --cancel`
	return cmd
}
