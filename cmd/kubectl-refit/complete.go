// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/noderefit/noderefit/refit"
)

// patience is how long a person waits for a completion.
const patience = 3 * time.Second

// source returns the words that a shell may complete. args are the arguments before.
type source func(ctx context.Context, c *refit.Cluster, args []string) ([]string, error)

func pools(ctx context.Context, c *refit.Cluster, _ []string) ([]string, error) {
	return c.PoolNames(ctx)
}

func nodes(ctx context.Context, c *refit.Cluster, args []string) ([]string, error) {
	names, err := c.NodeNames(ctx)
	return slices.DeleteFunc(names, func(name string) bool { return slices.Contains(args, name) }), err
}

// nodesAndPools are the arguments of explain and diff. A name that a node and a pool share comes with its kind.
func nodesAndPools(ctx context.Context, c *refit.Cluster, _ []string) ([]string, error) {
	ofPools, err := c.PoolNames(ctx)
	if err != nil {
		return nil, err
	}
	ofNodes, err := c.NodeNames(ctx)
	var names []string
	for _, name := range ofPools {
		if slices.Contains(ofNodes, name) {
			names = append(names, "node/"+name, "pool/"+name)
		} else {
			names = append(names, name)
		}
	}
	for _, name := range ofNodes {
		if !slices.Contains(ofPools, name) {
			names = append(names, name)
		}
	}
	return names, err
}

func rendered(ctx context.Context, c *refit.Cluster, args []string) ([]string, error) {
	if len(args) == 0 {
		return nil, nil
	}
	return c.ConfigNames(ctx, true, args[0])
}

func made(ctx context.Context, c *refit.Cluster, _ []string) ([]string, error) {
	return c.ConfigNames(ctx, false, "")
}

func quarantined(ctx context.Context, c *refit.Cluster, args []string) ([]string, error) {
	return c.QuarantinedNames(ctx, args[0])
}

// complete returns the completion of words that the cluster knows. What is not known is no error in a shell.
func (o *options) complete(from source) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		cmd.SetErr(io.Discard)
		ctx, cancel := context.WithTimeout(cmd.Context(), patience)
		defer cancel()
		c, err := o.connect(cmd)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		names, _ := from(ctx, c, args)
		return beginning(names, begun), cobra.ShellCompDirectiveNoFileComp
	}
}

func beginning(words []string, begun string) []string {
	return slices.DeleteFunc(words, func(word string) bool { return !strings.HasPrefix(word, begun) })
}

// argumentsFrom completes each argument from a source of its own. With many, the last source is also that of all
// further arguments.
func (o *options) argumentsFrom(cmd *cobra.Command, many bool, sources ...source) {
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		at := len(args)
		if many {
			at = min(at, len(sources)-1)
		}
		if at >= len(sources) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return o.complete(sources[at])(cmd, args, begun)
	}
}

// words completes the value of a flag.
func words(cmd *cobra.Command, flag string, values ...string) {
	completes(cmd, flag, func(_ *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
		directive := cobra.ShellCompDirectiveNoFileComp
		found := beginning(slices.Clone(values), begun)
		if len(found) == 1 && strings.HasSuffix(found[0], "=") {
			directive |= cobra.ShellCompDirectiveNoSpace
		}
		return found, directive
	})
}

func completes(cmd *cobra.Command, flag string, by cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, by); err != nil {
		panic(err) // the program's own mistake: there is no such flag
	}
}

// kubeconfigFlags completes kubectl's own flags from the kubeconfig.
func (o *options) kubeconfigFlags(root *cobra.Command) {
	for flag, names := range map[string]func(api.Config) []string{
		"context": func(c api.Config) []string { return slices.Sorted(maps.Keys(c.Contexts)) },
		"cluster": func(c api.Config) []string { return slices.Sorted(maps.Keys(c.Clusters)) },
		"user":    func(c api.Config) []string { return slices.Sorted(maps.Keys(c.AuthInfos)) },
	} {
		completes(root, flag, func(_ *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
			config, err := o.kube.ToRawKubeConfigLoader().RawConfig()
			if err != nil {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return beginning(names(config), begun), cobra.ShellCompDirectiveNoFileComp
		})
	}
}
