// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/hands"
	"github.com/noderefit/noderefit/host"
)

func rebootCommand() *cobra.Command {
	var o options
	var order host.RebootOrder
	var hooks string
	cmd := &cobra.Command{
		Use:   "reboot [--why TEXT] [--soft]",
		Short: "Reboot the host once, and have the boot proved as that of an update",
		Long: `reboot runs the hooks that run before a drain, reboots the host, and has the boot proved: the same checks, the
same deadline, the same baseline as after an update. Where the boot leads to a deployment that somebody else has staged
or made the default, a no takes the host back to the deployment before, and that one is not booted again. Where there is
nothing to go back to, the host is Degraded and says why. A configuration that is committed and waits for its reboot is
what boots. The command does not drain the node.`,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if err := checkTimeout(host.RebootOptions{Timeout: order.Timeout}); err != nil {
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
	cmd.Flags().BoolVar(&order.Soft, "soft", false, "restart the userspace alone; refused where the host can't")
	cmd.Flags().StringVar(&order.ID, "id", "", "name of the order: one that was carried out is not carried out again")
	cmd.Flags().BoolVar(&order.Cluster, "cluster", false,
		"make what the cluster says of the node part of the verdict; the agent in the cluster passes it")
	cmd.Flags().DurationVar(&order.Timeout, "verdict-timeout", api.DefaultVerdictTimeout,
		"how long the host may take to prove healthy after the boot")
	hooksFlag(cmd, &hooks)
	return cmd
}

func rebootWantedCommand() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "wants-reboot",
		Short: "Ask everything that may want a reboot of the host: packages, kernels, deployments, hooks",
		Long: `wants-reboot looks for /run/reboot-required, for a newer kernel than the running one, and for a deployment that
somebody else staged or made the default. It asks needs-restarting -r, where the host has it, and the hooks in
reboot-wanted.d. status shows what they said until they are asked again. The command reboots nothing.`,
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
