// SPDX-License-Identifier: Apache-2.0

// Command machine-config-controller decides which configuration each pool of nodes has, and which node goes to it when.
package main

import (
	"errors"
	"fmt"
	"os"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/butane"
	"github.com/noderefit/noderefit/cli"
	"github.com/noderefit/noderefit/controller/bootstrap"
	"github.com/noderefit/noderefit/controller/template"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/message"
	"github.com/noderefit/noderefit/signature"
)

// version is set by the build.
var version = "dev"

func main() {
	executed, err := command().ExecuteC()
	os.Exit(cli.End(os.Stderr, executed, err))
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use:   "machine-config-controller",
		Short: "Render MachineConfigs for pools of nodes, and roll them out",
		Args:  cli.NoCommand,
		RunE: func(*cobra.Command, []string) error {
			return cli.Usagef("a command is needed; see machine-config-controller --help")
		},
	}
	cli.Root(root, version)
	root.AddCommand(run(), render(), templates(), simulate(), clusterAPI())
	cli.Examples(root, examples)
	return root
}

func render() *cobra.Command {
	var pool, base string
	var strict bool
	var o bootstrap.Options
	cmd := &cobra.Command{
		Use:   "render --pool NAME [--base FILE] [--container-runtime NAME] [--templates DIR] [--strict] FILE|DIR...",
		Short: "Print the merged configuration of a pool, from files, without a cluster",
		Long: `render prints the configuration of a pool, under the name that a cluster with these documents gives it. Besides
MachineConfigs and MachineConfigPools it takes what the controllers make MachineConfigs of: KubeletConfigs,
ContainerRuntimeConfigs, ImageDigestMirrorSets, ImageTagMirrorSets, ImageContentSourcePolicies, the Image and policies
of images, the OSImageStream with its status, and a ControllerConfig with its templates and default images. A document
that the controllers would refuse is an error. What a cluster learns from its Nodes has to be said: a warning names it
where it matters.`,
		Args: func(_ *cobra.Command, args []string) error {
			if pool == "" {
				return cli.Usagef("--pool is required")
			}
			if len(validation.IsDNS1123Subdomain(pool)) > 0 {
				return cli.Usagef("--pool: %q is not a name: %s", pool, machineconfig.NameRule)
			}
			if err := o.Check(); err != nil {
				return cli.UsageError{Err: err}
			}
			if len(args) == 0 {
				return cli.Usagef("at least one file or directory is required")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, paths []string) error {
			o.Version = version
			rendered, err := renderFiles(o, pool, base, paths, strict, func(w string) {
				fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s\n", message.OneLine(w))
			})
			if err != nil {
				return err
			}
			out, err := yaml.Marshal(rendered)
			if err != nil {
				return fmt.Errorf("printing MachineConfig/%s: %w", rendered.Name, err)
			}
			if _, err := cmd.OutOrStdout().Write(out); err != nil {
				return fmt.Errorf("printing MachineConfig/%s: %w", rendered.Name, err)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&pool, "pool", "", "name of the pool to render")
	cmd.Flags().StringVar(&base, "base", "", "MachineConfig of lowest precedence, such as the default OS image")
	cmd.Flags().BoolVar(&strict, "strict", false, "refuse documents that there is a warning about, such as unknown fields")
	cmd.Flags().StringVar(&o.Runtime, "container-runtime", "", bootstrap.RuntimeUsage)
	cmd.Flags().StringVar(&o.Sets.Dir, "templates", "", templatesUsage)
	return cmd
}

// renderFiles renders a pool from files. With strict, a warning about a document is an error.
func renderFiles(
	o bootstrap.Options, pool, base string, paths []string, strict bool, warn func(string),
) (*mcfgv1.MachineConfig, error) {
	say := func(warnings []string) {
		for _, w := range warnings {
			warn(w)
		}
	}
	docs, warnings, err := o.Read(paths...)
	say(warnings)
	if err != nil {
		return nil, err
	}
	doubts := docs.Doubts
	if base != "" {
		o.Base, warnings, err = machineconfig.ReadDocument(butane.Translate, base)
		say(warnings)
		doubts = append(doubts, warnings...)
		if err != nil {
			return nil, err
		}
	}
	made := o.Make(docs, pool)
	rendered, warnings, err := made.Render(pool)
	switch {
	case err == nil:
		warnings = append(warnings, made.Unsaid(pool, rendered)...)
	case errors.Is(err, bootstrap.ErrRefused):
		err = cli.UnreachableError{Err: err}
	}
	say(warnings)
	if err == nil {
		signature.Carry(rendered, docs)
	}
	if err != nil || !strict {
		return rendered, err
	}
	return rendered, machineconfig.Strict(append(doubts, warnings...))
}

const templatesUsage = "folder of further sets of templates, as <set>/<role>/<name>/_base/files/*.yaml"

func templates() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "templates FILE",
		Short: "Print the MachineConfigs that a ControllerConfig's templates make, from files, without a cluster",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return cli.Usagef("a file with a ControllerConfig is required")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := os.ReadFile(args[0])
			if err != nil {
				return fmt.Errorf("reading the ControllerConfig: %w", err)
			}
			cc := &mcfgv1.ControllerConfig{}
			if err := yaml.UnmarshalStrict(text, cc); err != nil {
				return fmt.Errorf("reading the ControllerConfig in %s: %w", args[0], err)
			}
			name := cc.Annotations[api.Templates]
			if cc.Kind != "ControllerConfig" || name == "" {
				return fmt.Errorf("%s: there has to be a ControllerConfig with the annotation %s", args[0], api.Templates)
			}
			set, err := template.Sets{Dir: dir}.Open(name)
			if err != nil {
				return err
			}
			made, err := template.Generate(set, cc)
			if err != nil {
				return fmt.Errorf("templates %s: %w", name, err)
			}
			for _, mc := range made {
				out, err := yaml.Marshal(mc)
				if err != nil {
					return fmt.Errorf("printing MachineConfig/%s: %w", mc.Name, err)
				}
				if _, err := fmt.Fprintf(cmd.OutOrStdout(), "---\n%s", out); err != nil {
					return fmt.Errorf("printing MachineConfig/%s: %w", mc.Name, err)
				}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&dir, "templates", "", templatesUsage)
	return cmd
}
