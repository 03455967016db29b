// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/noderefit/noderefit/cli"
	"github.com/noderefit/noderefit/refit"
)

// selector is the flag -l, which chooses nodes.
type selector struct{ labels.Selector }

func (s *selector) String() string {
	if s.Selector == nil {
		return ""
	}
	return s.Selector.String()
}

// Set reads labels as kubectl does.
func (s *selector) Set(text string) (err error) {
	s.Selector, err = labels.Parse(text)
	return err
}

// Type names the values in a help text.
func (s *selector) Type() string { return "LABELS" }

func (s *selector) flag(cmd *cobra.Command, usage string) {
	cmd.Flags().VarP(s, "selector", "l", usage+", such as zone=a or zone in (a,b)")
}

// everywhere gives a command the flag -A, which changes nothing: pools and nodes are in no namespace.
func everywhere(cmd *cobra.Command) {
	cmd.Flags().BoolP("all-namespaces", "A", false, "accepted as of kubectl; pools and nodes are in no namespace")
	_ = cmd.Flags().MarkHidden("all-namespaces") // the flag exists
}

// watchFlags are the flags of a command that follows a rollout.
type watchFlags struct {
	settle, timeout time.Duration
}

func (w *watchFlags) add(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&w.settle, "settle", 10*time.Second,
		"how long pools that are updated or stopped from the beginning must stay so before watch believes it")
	cmd.Flags().DurationVar(&w.timeout, "timeout", 0,
		"end with exit code 1 after this time, such as 30m; 0 waits for as long as it takes")
}

func (w *watchFlags) check() error {
	if w.timeout < 0 || w.settle < 0 {
		return cli.Usagef("flags --timeout, --settle: a time cannot be negative; write, for example, 30m")
	}
	return nil
}

// watch follows the pools.
func (w *watchFlags) watch(cmd *cobra.Command, c *refit.Cluster, pools []string, nodes labels.Selector) error {
	return c.Watch(cmd.Context(), refit.Watch{
		Zone: here,
		In:   os.Stdin,
		Out:  cmd.OutOrStdout(), Env: os.Getenv, Pools: pools, Nodes: nodes, Settle: w.settle, Timeout: w.timeout,
	})
}
