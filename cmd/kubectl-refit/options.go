// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/rest"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/cli"
	"github.com/noderefit/noderefit/message"
	"github.com/noderefit/noderefit/output"
	"github.com/noderefit/noderefit/refit"
)

// options are the flags that all commands share.
type options struct {
	kube   *genericclioptions.ConfigFlags
	output string
}

func newOptions() *options {
	return &options{kube: genericclioptions.NewConfigFlags(true)}
}

const (
	// formats is the annotation of a command's flag -o with its allowed formats.
	formats        = "formats"
	formatMarkdown = "markdown"
)

// outputFlag gives a command -o, for text, the formats that show its document as it is, and its further formats.
func (o *options) outputFlag(cmd *cobra.Command, more ...string) {
	all := slices.Concat([]string{cli.Text, cli.JSON, output.YAML}, more, []string{output.JSONPath})
	cmd.Flags().StringVarP(&o.output, "output", "o", cli.Text, "output format: "+output.Either(all))
	cmd.Flags().Lookup("output").Annotations = map[string][]string{formats: all}
	values := slices.Clone(all)
	values[len(values)-1] = "jsonpath="
	words(cmd, "output", values...)
}

// print prints the result of a command: v for programs, or the output of text for people.
func (o *options) print(cmd *cobra.Command, v any, text func(io.Writer) error) error {
	if done, err := output.Print(cmd.OutOrStdout(), o.output, v); done {
		return err
	}
	return text(forPeople(cmd.OutOrStdout()))
}

// here is the time zone of the person who reads.
var here = time.Local //nolint:gosmopolitan // the reader's own machine

// forPeople returns a writer of text that shows times as the reader's clock does.
func forPeople(w io.Writer) io.Writer { return message.Local(w, here) }

// say prints what a command has done.
func say(cmd *cobra.Command, said string) error {
	_, err := fmt.Fprintln(forPeople(cmd.OutOrStdout()), said)
	return err
}

// asItIs returns a text for print in which no time is changed: a path may have one in its name.
func asItIs(cmd *cobra.Command, text func(io.Writer) error) func(io.Writer) error {
	return func(io.Writer) error { return text(cmd.OutOrStdout()) }
}

// check checks -o, where the command has that flag.
func (o *options) check(cmd *cobra.Command) error {
	flag := cmd.Flags().Lookup("output")
	if flag == nil || o.output == "" {
		return nil
	}
	return output.Check(o.output, flag.Annotations[formats])
}

func (o *options) connect(cmd *cobra.Command) (*refit.Cluster, error) {
	if err := o.check(cmd); err != nil {
		return nil, err
	}
	cfg, err := o.config()
	if err != nil {
		return nil, err
	}
	ro := refit.Options{Version: version, Namespace: api.Namespace, Warnings: forPeople(cmd.ErrOrStderr())}
	if cmd.Flags().Changed("namespace") {
		ro.Namespace = *o.kube.Namespace
	}
	return refit.Connect(cfg, ro)
}

// config returns how to reach the cluster.
func (o *options) config() (*rest.Config, error) {
	cfg, err := o.kube.ToRESTConfig()
	if err != nil {
		return nil, unreadable(err)
	}
	if raw, err := o.kube.ToRawKubeConfigLoader().RawConfig(); err == nil && len(raw.Clusters) == 0 &&
		cfg.Host == noServer && *o.kube.APIServer == "" {
		return nil, errNoCluster
	}
	return cfg, nil
}

var errNoCluster = errors.New("reading the kubeconfig: there is none, or it names no cluster; name one with " +
	"--kubeconfig or KUBECONFIG")

// noServer is the server that the library takes where nothing names one.
const noServer = "http://localhost:8080"

// unreadable returns the error of a kubeconfig. The library's own names its types where the file is something else.
func unreadable(err error) error {
	if file, _, is := strings.Cut(err.Error(), ": couldn't get version/kind"); is {
		return fmt.Errorf("reading the kubeconfig: %s: the file is no kubeconfig", file)
	}
	return fmt.Errorf("reading the kubeconfig: %w", err)
}

// arguments requires between least and most arguments. names are their names for people.
func arguments(least, most int, names string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return cli.Usagef("%s is needed", names)
		case len(args) > most:
			return cli.Usagef("unexpected argument %q", args[most])
		}
		return nil
	}
}
