// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/noderefit/noderefit/output"
	"github.com/noderefit/noderefit/refit"
)

func streamsCommand(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "streams [NAME]",
		Short: "Show which releases of an OS are followed, and why no newer one was chosen",
		Long: `Shows the OSStreams of the cluster: what the source of each offers, which release was chosen for each pool, and
why each newer release was not.`,
		Example: `  kubectl refit streams
  kubectl refit streams fedora -o json`,
		Args: arguments(0, 1, "NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.connect(cmd)
			if err != nil {
				return err
			}
			all, err := c.Streams(cmd.Context(), args)
			if err != nil {
				return err
			}
			return o.print(cmd, all, func(w io.Writer) error { return all.WriteText(w, time.Now()) })
		},
	}
	o.outputFlag(cmd, output.Name)
	o.argumentsFrom(cmd, false, streams)
	cmd.AddCommand(streamsApprove(o))
	return cmd
}

func streamsApprove(o *options) *cobra.Command {
	var why string
	cmd := &cobra.Command{
		Use:   "approve NAME VERSION [--why TEXT]",
		Short: "Let a stream choose a release",
		Long: `Approves a release of an OSStream whose spec.approval is Manual. Pools whose nodes run an OS that the update
graph does not know can go there too. The OSStream records the approval with its author, time and reason. The approval
is for this release alone: a newer one needs another.`,
		Example: `  kubectl refit streams approve fedora 44.20260101.3.0 --why "tested in staging"`,
		Args:    arguments(2, 2, "NAME and VERSION"),
		PreRunE: func(*cobra.Command, []string) error { return refit.CheckWhy(why) },
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.connect(cmd)
			if err != nil {
				return err
			}
			said, err := c.ApproveRelease(cmd.Context(), args[0], args[1], why)
			if err != nil {
				return err
			}
			return say(cmd, said)
		},
	}
	cmd.Flags().StringVar(&why, "why", "", "the reason, for the record")
	o.argumentsFrom(cmd, false, streams)
	return cmd
}

func streams(ctx context.Context, c *refit.Cluster, _ []string) ([]string, error) {
	return c.StreamNames(ctx)
}
