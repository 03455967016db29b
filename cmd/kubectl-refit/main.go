// SPDX-License-Identifier: Apache-2.0

// Command kubectl-refit is the kubectl plugin for people who watch over pools of nodes: what a rollout does, what it
// waits for, what it would do, and how to stop it and take it back.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/noderefit/noderefit/message"
)

// version is set by the build.
var version = "dev"

// Exit codes (docs/kubectl-refit.md).
const (
	exitFailed         = 1
	exitUsage          = 2
	exitUnreconcilable = 3
)

type (
	// usageError is a command line that can't be meant.
	usageError struct{ error }
	// unreachableError is a desired state that can't be reached from where the nodes are.
	unreachableError struct{ error }
)

func main() {
	// What a client library logs is in the errors, or of no use to those who read ours.
	klog.SetLogger(logr.Discard())
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
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
	err := cmd.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintln(stderr, "error:", message.OneLine(describe(err)))
	var usage usageError
	var unreachable unreachableError
	switch {
	case errors.As(err, &usage):
		return exitUsage
	case errors.As(err, &unreachable):
		return exitUnreconcilable
	}
	return exitFailed
}

// describe is an error in words; where the cluster refuses, its own words say which right is missing.
func describe(err error) string {
	if !apierrors.IsForbidden(err) {
		return err.Error()
	}
	text := err.Error()
	if _, right, ok := strings.Cut(text, "is forbidden: "); ok {
		text = right
	}
	return "not allowed: " + text
}

func root() *cobra.Command {
	o := newOptions()
	cmd := &cobra.Command{
		Use:   "kubectl-refit",
		Short: "See, explain and steer how pools of nodes get their configuration",
		Long: `kubectl refit shows how far pools of nodes are with their configuration, says of each node why it is not (yet)
where it should be, shows what a change would do before it is made, and pauses, resumes and takes back rollouts.

Exit codes: 0 done, 1 failed, 2 usage, 3 the desired state cannot be reached from here.`,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl refit"},
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("unknown command %q", args[0])}
			}
			return nil
		},
		RunE: func(*cobra.Command, []string) error {
			return usageError{errors.New("a command is needed; see kubectl refit --help")}
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	cmd.CompletionOptions.HiddenDefaultCmd = true
	o.kube.AddFlags(cmd.PersistentFlags())
	cmd.AddCommand(statusCommand(o), explainCommand(o), watchCommand(o), planCommand(o), diffCommand(o),
		pauseCommand(o), resumeCommand(o), rollbackCommand(o), approveCommand(o), bypassCommand(o),
		quarantineCommand(o))
	return cmd
}

// arguments asks for between least and most arguments, named as people know them.
func arguments(least, most int, names string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return usageError{fmt.Errorf("%s is needed", names)}
		case len(args) > most:
			return usageError{fmt.Errorf("unexpected argument %q", args[most])}
		}
		return nil
	}
}
