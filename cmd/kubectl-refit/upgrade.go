// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/cobra"

	"github.com/noderefit/noderefit/installation"
)

func upgradeCommand(o *options) *cobra.Command {
	var f installFlags
	cmd := &cobra.Command{
		Use:   "upgrade [--registry REGISTRY] [--values FILE]... [--set NAME=VALUE]...",
		Short: "Bring an installation to the version of this program, or to other values",
		Long: `Brings an installation that kubectl refit install made to the version of this program: definitions, rights,
controllers, agents, one after the other. The values that are recorded stay, and those of the flags go over them. What
this version does not have any more is removed at the end, but no definition, no pool and no ControllerConfig.

No node changes: an upgrade is no rollout, and a rollout in the middle goes on meanwhile. A command that was stopped is
given again, and goes on. The upgrade command of the program before goes back, by one minor version at most.`,
		Example: `  kubectl refit upgrade --dry-run
  kubectl refit upgrade
  kubectl refit upgrade --set monitoring.enabled=true`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			release, err := installation.NewRelease(version, registry)
			if err != nil {
				return err
			}
			c, err := o.installation(cmd)
			if err != nil {
				return err
			}
			ctx, cancel := within(cmd, f.timeout)
			defer cancel()
			err = c.Upgrade(ctx, installation.Change{Release: release, Values: f.values(cmd)}, f.dryRun)
			if err == nil && f.dryRun {
				return nil
			}
			return o.finish(ctx, cmd, err)
		},
	}
	f.add(cmd)
	limits(cmd, &f.dryRun, &f.timeout, "say what would be done, and change nothing")
	return cmd
}
