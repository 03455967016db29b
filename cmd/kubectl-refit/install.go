// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/noderefit/noderefit/cli"
	"github.com/noderefit/noderefit/installation"
)

// registry is set by the build of a release: where its images are.
var registry = ""

// installFlags are the flags of install.
type installFlags struct {
	registry string
	files    []string
	settings []string
	dryRun   bool
	timeout  time.Duration
}

func (f *installFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.registry, "registry", "", "registry of the images, such as registry.of.yours/noderefit")
	flags.StringArrayVar(&f.files, "values", nil, "file with values of the chart; - for the standard input")
	flags.StringArrayVar(&f.settings, "set", nil, "value of the chart, as NAME=VALUE")
}

// limits adds the flags of commands that change an installation.
func limits(cmd *cobra.Command, dryRun *bool, timeout *time.Duration, usage string) {
	cmd.Flags().BoolVar(dryRun, "dry-run", false, usage)
	cmd.Flags().DurationVar(timeout, "timeout", 10*time.Minute, "time after which the command gives up")
	cmd.Args = cli.NoArgs
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if *timeout <= 0 {
			return cli.Usagef("flag --timeout: %s is not a time in the future; write, for example, 10m", *timeout)
		}
		return nil
	}
}

// within gives a command its time.
func within(cmd *cobra.Command, limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(cmd.Context(), limit, fmt.Errorf("not within %s, the time of --timeout", limit))
}

func (f *installFlags) values(cmd *cobra.Command) func(installation.Values) (installation.Values, error) {
	return func(base installation.Values) (installation.Values, error) {
		return installation.ReadValues(base, f.files, f.settings, f.registry, func(name string) ([]byte, error) {
			if name == "-" {
				return io.ReadAll(cmd.InOrStdin())
			}
			return os.ReadFile(name)
		})
	}
}

// installation connects to the cluster for the commands about the installation itself.
func (o *options) installation(cmd *cobra.Command) (*installation.Cluster, error) {
	cfg, err := o.config()
	if err != nil {
		return nil, err
	}
	return installation.Connect(cfg, version, cmd.OutOrStdout())
}

func installCommand(o *options) *cobra.Command {
	var f installFlags
	cmd := &cobra.Command{
		Use:   "install [--registry REGISTRY] [--values FILE]... [--set NAME=VALUE]...",
		Short: "Install Noderefit in a cluster",
		Long: `Installs Noderefit: the definitions, the namespace, the rights and policies, the pools master and worker, the
controllers and the agents. The objects are those of the Helm chart of this version, which this program carries, and
take the chart's values. The command waits until controllers and agents are ready.

An OpenShift is refused, and so is a cluster with another version. A command that was stopped is given again: it goes
on, with the values that are recorded in the cluster. No node changes: a node is managed once it is in a pool, and a
pool without MachineConfigs changes nothing.`,
		Example: `  kubectl refit install
  kubectl refit install --registry registry.of.yours/noderefit --set monitoring.enabled=true
  kubectl refit install --values values.yaml --dry-run > noderefit.yaml`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			release, err := installation.NewRelease(version, registry)
			if err != nil {
				return err
			}
			if f.dryRun {
				return f.print(cmd, release)
			}
			c, err := o.installation(cmd)
			if err != nil {
				return err
			}
			ctx, cancel := within(cmd, f.timeout)
			defer cancel()
			err = c.Install(ctx, installation.Change{Release: release, Values: f.values(cmd)})
			return o.finish(ctx, cmd, err)
		},
	}
	f.add(cmd)
	limits(cmd, &f.dryRun, &f.timeout, "print the objects as YAML, and ask no cluster")
	return cmd
}

// print writes the objects of a release.
func (f *installFlags) print(cmd *cobra.Command, release *installation.Release) error {
	values, err := f.values(cmd)(nil)
	if err != nil {
		return err
	}
	objects, err := release.Render(values)
	if err != nil {
		return err
	}
	return installation.WriteYAML(cmd.OutOrStdout(), objects)
}

// finish ends install and upgrade.
func (o *options) finish(ctx context.Context, cmd *cobra.Command, err error) error {
	if err != nil {
		return stopped(err)
	}
	return o.checkAfter(ctx, cmd)
}

// stopped says that a command was stopped by a person.
func stopped(err error) error {
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("stopped: %w", err)
	}
	return err
}
