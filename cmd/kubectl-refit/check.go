// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/checkup"
	"github.com/noderefit/noderefit/cli"
)

func checkCommand(o *options) *cobra.Command {
	var c checkup.CheckOptions
	var strict, manifest bool
	cmd := &cobra.Command{
		Use:   "check [--pre]",
		Short: "Check an installation, or with --pre whether a cluster is ready for one",
		Long: `Checks an installation: definitions, controller, agents and plugin, their versions, admission policies, pools,
and which alerts would fire. With --pre, checks a cluster before an installation: its version, your rights, the nodes
and what else updates them. Nothing is changed.

--probe runs a short-lived pod on one node of each kind of host, which reads what updates that host. The pods are
removed again. --registry says where an installation would pull its images from.`,
		Example: `  kubectl refit check --pre
  kubectl refit check --pre --registry registry.example.com/noderefit --probe
  kubectl refit check -o json`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(cmd); err != nil {
				return err
			}
			cluster, err := o.checkup(cmd)
			if err != nil {
				return err
			}
			doc, err := cluster.Check(cmd.Context(), c)
			if err != nil {
				return err
			}
			if manifest {
				_, err = io.WriteString(cmd.OutOrStdout(), doc.Manifest)
				return err
			}
			return errors.Join(o.print(cmd, doc, doc.WriteText), doc.Err(strict))
		},
	}
	o.outputFlag(cmd)
	f := cmd.Flags()
	f.BoolVar(&c.Pre, "pre", false, "check whether the cluster is ready for an installation")
	f.BoolVar(&strict, "strict", false, "fail where there are warnings")
	f.BoolVar(&c.Probe, "probe", false,
		"with --pre: run a pod on one node of each kind of host, which reads what updates the host")
	f.StringSliceVar(&c.Nodes, "node", nil, "with --pre: run that pod on this node; may be repeated")
	f.StringVar(&c.Registry, "registry", "", "with --pre: where an installation would pull its images from")
	f.StringVar(&c.Tag, "tag", "", "tag of these images (default: the plugin's version)")
	f.BoolVar(&manifest, "manifest", false,
		"with --pre: print only the MachineConfigs that mask what else updates the hosts")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		for _, name := range []string{"probe", "node", "registry", "tag", "manifest"} {
			if cmd.Flags().Changed(name) && !c.Pre {
				return cli.Usagef("flag --%s: goes with --pre alone", name)
			}
		}
		if manifest && cmd.Flags().Changed("output") {
			return cli.Usagef("flag --manifest: prints YAML, and does not go with -o")
		}
		return nil
	}
	return cmd
}

// checkAfter checks the installation that a command has just changed, and prints the check.
func (o *options) checkAfter(ctx context.Context, cmd *cobra.Command) error {
	cluster, err := o.checkup(cmd)
	if err != nil {
		return err
	}
	doc, err := cluster.Check(ctx, checkup.CheckOptions{})
	if err != nil {
		return err
	}
	return errors.Join(doc.WriteText(forPeople(cmd.OutOrStdout())), doc.Err(false))
}

func (o *options) checkup(cmd *cobra.Command) (*checkup.Cluster, error) {
	cfg, err := o.config()
	if err != nil {
		return nil, err
	}
	co := checkup.Options{Plugin: version, Namespace: api.Namespace}
	if cmd.Flags().Changed("namespace") {
		co.Namespace = *o.kube.Namespace
	}
	return checkup.Connect(cfg, co)
}

// versionCommand replaces the command that all programs have.
func versionCommand(o *options, root *cobra.Command) *cobra.Command {
	for _, c := range root.Commands() {
		if c.Name() == "version" {
			root.RemoveCommand(c)
		}
	}
	var client bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the versions of the plugin, the installation and the server",
		Long: `Prints the versions of the plugin, the definitions, the controller, the agents and the server, and warns of
versions that do not go together. With --client, and without a kubeconfig, only the plugin's version is printed.`,
		Example: `  kubectl refit version
  kubectl refit version --client
  kubectl refit version -o json`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(cmd); err != nil {
				return err
			}
			v := checkup.PluginVersion(version)
			var err error
			if !client {
				v, err = o.versions(cmd)
			}
			if errors.Is(err, errNoCluster) { // the question was about this program, then
				fmt.Fprintln(cmd.ErrOrStderr(), err)
				err = nil
			}
			return errors.Join(o.print(cmd, v, v.WriteText), err)
		},
	}
	o.outputFlag(cmd)
	cmd.Flags().BoolVar(&client, "client", false, "print only the plugin's version, and ask no cluster")
	return cmd
}

func (o *options) versions(cmd *cobra.Command) (checkup.Versions, error) {
	cluster, err := o.checkup(cmd)
	if err != nil {
		return checkup.PluginVersion(version), err
	}
	return cluster.Versions(cmd.Context())
}
