// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/noderefit/noderefit/installation"
)

func uninstallCommand(o *options) *cobra.Command {
	var f installFlags
	var want installation.Removal
	var yes bool
	cmd := &cobra.Command{
		Use:   "uninstall [--keep-nodes] [--delete-configuration] [--yes]",
		Short: "Remove an installation from the cluster and from its hosts",
		Long: `Removes what kubectl refit install has made: controllers, agents, rights, policies. On each host a pod takes
away the agent's program, units and record, and the Node loses what Noderefit has written there. The files, units and OS
that a configuration brought stay. Pools and MachineConfigs stay, too, unless --delete-configuration is given.

Nothing is removed while a node is in the middle of an update. A command that was stopped is given again, and goes on.
After helm uninstall the command cleans hosts and Nodes.`,
		Example: `  kubectl refit uninstall --dry-run
  kubectl refit uninstall
  kubectl refit uninstall --delete-configuration --yes`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			release, err := installation.NewRelease(version, registry)
			if err != nil {
				return err
			}
			c, err := o.installation(cmd)
			if err != nil {
				return err
			}
			want.Change = installation.Change{Release: release, Values: f.values(cmd)}
			ctx, cancel := within(cmd, f.timeout)
			defer cancel()
			var confirm func(string) error
			if !yes {
				confirm = func(what string) error { return agreed(cmd, what) }
			}
			return stopped(c.Uninstall(ctx, want, f.dryRun, confirm))
		},
	}
	f.add(cmd)
	limits(cmd, &f.dryRun, &f.timeout, "say what would be removed, and change nothing")
	flags := cmd.Flags()
	flags.BoolVar(&want.KeepNodes, "keep-nodes", false, "leave hosts and Nodes as they are")
	flags.BoolVar(&want.DeleteConfiguration, "delete-configuration", false,
		"remove the definitions, with all pools, MachineConfigs and policies")
	flags.BoolVar(&want.Force, "force", false,
		"go on where nodes are in the middle of an update, and leave their hosts alone")
	flags.BoolVarP(&yes, "yes", "y", false, "do not ask")
	return cmd
}

// agreed asks the person at the terminal.
func agreed(cmd *cobra.Command, what string) error {
	in, is := cmd.InOrStdin().(interface{ Fd() uintptr })
	if !is || !term.IsTerminal(int(in.Fd())) {
		return errors.New("nothing was removed: there is no terminal to ask at; --yes removes without a question")
	}
	fmt.Fprintf(cmd.OutOrStdout(), "This goes, in this order:\n%s\nRemove it? [y/N] ", what)
	answer, err := bufio.NewReader(cmd.InOrStdin()).ReadString('\n')
	if err != nil || !strings.EqualFold(strings.TrimSpace(answer), "y") {
		return errors.New("nothing was removed")
	}
	return nil
}
