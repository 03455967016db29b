// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/noderefit/noderefit/cli"
	"github.com/noderefit/noderefit/output"
	"github.com/noderefit/noderefit/refit"
)

func statusCommand(o *options) *cobra.Command {
	var q refit.StatusQuestion
	var chosen selector
	var follow watchFlags
	var all, watch bool
	cmd := &cobra.Command{
		Use: "status [POOL]",
		Example: `  kubectl refit status
  kubectl refit status worker --not-updated
  kubectl refit status worker -o jsonpath='{.pools[0].updated}'`,
		Short: "Show pools and their nodes: configuration, phase, since when, and what they wait for",
		Args:  arguments(0, 1, "POOL"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.connect(cmd)
			if err != nil {
				return err
			}
			if watch {
				return follow.watch(cmd, c, args, chosen.Selector)
			}
			q.Pools, q.Labels = args, chosen.Selector
			doc, err := c.Status(cmd.Context(), q)
			if err != nil {
				return err
			}
			return o.print(cmd, doc, func(w io.Writer) error {
				look := refit.NewLook(cmd.OutOrStdout(), os.Getenv, time.Now())
				look.Wide, look.All = o.output == output.Wide, all || q.NotUpdated
				return doc.WriteText(w, look)
			})
		},
	}
	o.outputFlag(cmd, output.Wide, output.Name)
	chosen.flag(cmd, "labels of the nodes to show")
	everywhere(cmd)
	cmd.Flags().BoolVar(&q.NotUpdated, "not-updated", false, "show only nodes that do not have the pool's configuration")
	cmd.Flags().BoolVar(&all, "all", false, "list all nodes of a large pool, instead of counting those that are updated")
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "follow the rollout, as kubectl refit watch does")
	follow.add(cmd)
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		for _, flag := range []string{"settle", "timeout"} {
			if cmd.Flags().Changed(flag) && !watch {
				return cli.Usagef("flag --%s: is for --watch", flag)
			}
		}
		if watch && o.output != cli.Text {
			return cli.Usagef("flag --watch: has no output format %q: use kubectl refit status -o %s again and again",
				o.output, o.output)
		}
		return follow.check()
	}
	o.argumentsFrom(cmd, false, pools)
	return cmd
}

func explainCommand(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "explain NODE|POOL",
		Example: `  kubectl refit explain worker-3
  kubectl refit explain pool/worker -o yaml`,
		Short: "Say why a node or a pool is not (yet) where it should be",
		Long: `Says why a node or a pool is not (yet) where it should be: one answer, with the object that everything waits
for, since when, and what to do. A name that a node and a pool share is told apart as node/NAME and pool/NAME.`,
		Args: arguments(1, 1, "NODE or POOL"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.connect(cmd)
			if err != nil {
				return err
			}
			a, err := c.Explain(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return o.print(cmd, a, func(w io.Writer) error { return refit.WriteAnswer(w, a.Answer, time.Now()) })
		},
	}
	o.outputFlag(cmd, output.Name)
	o.argumentsFrom(cmd, false, nodesAndPools)
	return cmd
}

func watchCommand(o *options) *cobra.Command {
	var chosen selector
	var follow watchFlags
	cmd := &cobra.Command{
		Use: "watch [POOL]",
		Example: `  kubectl refit watch worker
  kubectl refit watch worker --timeout 30m | tee rollout.log`,
		Short: "Follow a rollout until the pool is updated or goes no further",
		Long: `Follows a rollout. A terminal shows a picture that stays in its place: a bar for each pool, and a line for
each node that is updating, has failed, or differs from its configuration. A pipe, or a terminal with TERM=dumb, gets a
line for each change of a node or a pool, with the duration of the step before. The command ends when the pools are
updated (exit code 0) or cannot continue by themselves (exit code 1, with the reason).`,
		Args: arguments(0, 1, "POOL"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.connect(cmd)
			if err != nil {
				return err
			}
			return follow.watch(cmd, c, args, chosen.Selector)
		},
	}
	chosen.flag(cmd, "labels of the nodes to show; the end is that of the pools")
	everywhere(cmd)
	follow.add(cmd)
	cmd.PreRunE = func(*cobra.Command, []string) error { return follow.check() }
	o.argumentsFrom(cmd, false, pools)
	return cmd
}

func diffCommand(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "diff NODE|POOL",
		Example: `  kubectl refit diff worker-3
  kubectl refit diff pool/worker -o json`,
		Short: "Show how the present configuration of a node or a pool differs from the desired one",
		Long: `Shows how the configuration that a node has differs from the one that it shall have, or that its pool has for
it; of a pool, how the one that all its nodes last had differs from the one that they shall have. Paths and names are
shown, contents never. A name that a node and a pool share is told apart as node/NAME and pool/NAME.`,
		Args: arguments(1, 1, "NODE or POOL"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.connect(cmd)
			if err != nil {
				return err
			}
			p, err := c.Diff(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return errors.Join(o.print(cmd, p, asItIs(cmd, p.WriteText)), refit.Reconcilable(p.Plan))
		},
	}
	o.outputFlag(cmd)
	o.argumentsFrom(cmd, false, nodesAndPools)
	return cmd
}

func planCommand(o *options) *cobra.Command {
	var p refit.Proposal
	cmd := &cobra.Command{
		Use: "plan POOL -f FILE...",
		Example: `  kubectl refit plan worker -f motd.yaml
  kubectl refit plan worker -f machines/ --prune --strict -o markdown`,
		Short: "Show what a change would do to the nodes of a pool, before anything is applied",
		Long: `Shows what the nodes of a pool would do if the documents of the files were applied. The documents are
MachineConfigs, Butane (.bu) or Ignition documents, and a MachineConfigPool. A document replaces the object of its kind
and name that the cluster has. Nothing is written. With --prune, the files are all that people have for the pool: what
the files do not have is deleted, except what controllers make. Without files and deletions, the pool's MachineConfigs
are shown as they are.

Differences of files, units and SSH keys are shown. Of what may be a secret, only the sizes are shown. -o markdown is
for a comment of a pull request.`,
		Args: func(cmd *cobra.Command, args []string) error {
			// as with kubectl and a shell's pattern: -f a.yaml b.yaml
			if len(args) > 1 && len(p.Files) > 0 {
				p.Files = append(p.Files, args[1:]...)
				args = args[:1]
			}
			if err := p.Check(); err != nil {
				return err
			}
			return arguments(1, 1, "POOL")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.connect(cmd)
			if err != nil {
				return err
			}
			doc, err := c.Plan(cmd.Context(), args[0], p)
			if err != nil {
				return err
			}
			// The writer for people would change contents of files, too.
			text := func(io.Writer) error { return doc.WriteText(cmd.OutOrStdout(), p.Diff == refit.DiffAll, here) }
			if o.output == formatMarkdown {
				text = asItIs(cmd, doc.WriteMarkdown)
			}
			return errors.Join(o.print(cmd, doc, text), doc.Err())
		},
	}
	o.outputFlag(cmd, output.Name, formatMarkdown)
	cmd.Flags().StringSliceVarP(&p.Files, "filename", "f", nil,
		"file or directory with documents, - for the standard input; may be repeated")
	cmd.Flags().StringSliceVar(&p.Deletions, "delete", nil, "MachineConfig to plan without; may be repeated")
	cmd.Flags().BoolVar(&p.Prune, "prune", false, "plan without the pool's MachineConfigs that are in no file")
	cmd.Flags().StringVarP(&p.Selector, "selector", "l", "", "labels of what --prune may delete, all if empty")
	cmd.Flags().BoolVar(&p.Strict, "strict", false,
		"make each warning an error, such as one of an unknown field or of what could not be asked for")
	cmd.Flags().StringVar(&p.Diff, "diff", refit.DiffShort,
		"how much is shown of what differs in files: short, all or none; JSON and Markdown have all unless none")
	o.argumentsFrom(cmd, false, pools)
	completes(cmd, "delete", o.complete(made))
	words(cmd, "diff", refit.DiffShort, refit.DiffAll, refit.DiffNone)
	return cmd
}
