// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/noderefit/noderefit/cli"
	"github.com/noderefit/noderefit/hands"
	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/transaction"
)

func rebootCommand() *cobra.Command {
	var o options
	var order host.RebootOrder
	var hooks string
	var soft bool
	cmd := &cobra.Command{
		Use:   "reboot [--why TEXT] [--soft]",
		Short: "Reboot the host once, and have the boot proved as that of an update",
		Long: `reboot runs the hooks that run before a drain, and reboots the host. The boot has a verdict, with the checks,
the deadline and the baseline of an update. The boot may lead to a deployment that another program has staged or made
the default. A no then takes the host back to the deployment before, and the host does not boot the bad one again.
Without a deployment to go back to, the host is Degraded and names the reason. A committed configuration that waits for
its reboot boots with this command. The command does not drain the node.`,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			switch {
			case order.Method == transaction.MethodSoft:
				return cli.Usagef("flag --reboot-method: a soft reboot is ordered by --soft")
			case soft && order.Method != "":
				return cli.Usagef("flags --soft and --reboot-method=%s exclude each other",
					(*cli.RebootMethod)(&order.Method))
			case soft:
				order.Method = transaction.MethodSoft
			}
			if err := checkTimeout(order.Timeout); err != nil {
				return err
			}
			if order.Hooks, err = readHooks(hooks); err != nil {
				return err
			}
			return o.act(cmd.Context(), "reboot", func(h *host.Host) (*host.Result, error) {
				return h.Reboot(cmd.Context(), order)
			})
		},
	}
	o.flags(cmd)
	o.osFlag(cmd)
	cmd.Flags().StringVar(&order.Why, "why", "", "why the host reboots, for status")
	cmd.Flags().BoolVar(&soft, "soft", false, "restart the userspace alone; refused where the host can't")
	cmd.Flags().Var((*cli.RebootMethod)(&order.Method), "reboot-method", cli.RebootMethodUsage)
	cmd.Flags().StringVar(&order.ID, "id", "", "name of the order: one that was carried out is not carried out again")
	cmd.Flags().BoolVar(&order.Cluster, "cluster", false,
		"make what the cluster says of the node part of the verdict; the agent in the cluster passes it")
	timeoutFlag(cmd, &order.Timeout)
	hooksFlag(cmd, &hooks)
	return cmd
}

func rebootWantedCommand() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "wants-reboot",
		Short: "Ask everything that may want a reboot of the host: packages, kernels, deployments, hooks",
		Long: `wants-reboot looks for /run/reboot-required, for a newer kernel than the running one, and for a deployment that
another program has staged or made the default. The command runs needs-restarting -r, where the host has that program,
and the hooks in reboot-wanted.d. status shows the answers until the command runs again. The command reboots nothing.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			h, err := o.look()
			if err != nil {
				return err
			}
			defer h.Close()
			if err := h.Readable(); err != nil {
				return err
			}
			answer, err := h.RebootWanted(cmd.Context())
			if err != nil {
				return err
			}
			for _, w := range answer.Warnings {
				fmt.Fprintln(os.Stderr, "warning:", w)
			}
			return o.show(hands.NewWantedDocument(answer))
		},
	}
	o.flags(cmd)
	return cmd
}
