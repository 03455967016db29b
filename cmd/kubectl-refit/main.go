// SPDX-License-Identifier: Apache-2.0

// Command kubectl-refit is the kubectl plugin for people who watch over pools of nodes. It shows what a rollout does,
// what it waits for, and what it would do. It stops a rollout and takes it back.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/cli"
	"github.com/noderefit/noderefit/refit"
)

// version is set by the build.
var version = "dev"

func main() {
	// The log of a client library repeats the errors, or is of no use to our readers.
	klog.SetLogger(logr.Discard())
	ctx, stop := cli.Signals()
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run executes a command line and returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cmd := root() //nolint:contextcheck // a command has its context from cobra
	cmd.SetArgs(args)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	executed, err := cmd.ExecuteContextC(ctx)
	if _, interrupted := errors.AsType[refit.InterruptedError](err); interrupted {
		fmt.Fprintln(forPeople(stderr), err) // no failure
	} else if err != nil {
		cli.Say(forPeople(stderr), refit.Describe(err)+cli.SeeHelp(executed, err))
	}
	return cli.ExitCode(err)
}

func root() *cobra.Command {
	o := newOptions()
	cmd := &cobra.Command{
		Use:   "kubectl-refit",
		Short: "See, explain and steer how pools of nodes get their configuration",
		Long: `kubectl refit shows how far pools of nodes are with their configuration, says of each node why it is not (yet)
where it should be, shows what a change would do before it is made, and pauses, resumes and takes back rollouts.

Exit codes: 0 done, 1 failed, 2 usage, 3 the desired state cannot be reached from here.`,
		Example: `  kubectl refit check --pre
  kubectl refit install
  kubectl refit plan worker -f 50-chrony.yaml
  kubectl refit watch worker
  kubectl refit explain worker`,
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl refit"},
		Args:        cli.NoCommand,
		RunE: func(*cobra.Command, []string) error {
			return cli.Usagef("a command is needed; see kubectl refit --help")
		},
	}
	cli.Root(cmd, version)
	cmd.CompletionOptions.HiddenDefaultCmd = false
	o.kube.AddFlags(cmd.PersistentFlags())
	cmd.PersistentFlags().Lookup("namespace").Usage = "namespace of the daemon's Pods, whatever the context says " +
		"(default " + api.Namespace + ")"
	o.kubeconfigFlags(cmd)
	cmd.AddCommand(statusCommand(o), explainCommand(o), watchCommand(o), planCommand(o), diffCommand(o),
		pauseCommand(o), resumeCommand(o), rollbackCommand(o), approveCommand(o), bypassCommand(o),
		holdCommand(o), releaseCommand(o), skipCommand(o), retryCommand(o), tryCommand(o), rebootCommand(o),
		quarantineCommand(o), streamsCommand(o), signCommand(o))
	refuseOtherShells(cmd)
	cmd.AddCommand(pageCommand(o))
	cmd.AddCommand(installCommand(o))
	cmd.AddCommand(upgradeCommand(o), uninstallCommand(o), bundleCommand(o))
	cmd.AddCommand(checkCommand(o), collectCommand(o), versionCommand(o, cmd))
	return cmd
}

// refuseOtherShells has completion refuse a shell that it does not know, which the library answers with the help.
func refuseOtherShells(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Name() == "completion" {
			c.Args = cli.NoCommand
			c.RunE = func(*cobra.Command, []string) error {
				return cli.Usagef("a shell is needed: bash, fish, powershell or zsh")
			}
		}
	}
}
