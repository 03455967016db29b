// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/noderefit/noderefit/hands"
	"github.com/noderefit/noderefit/hooks"
	"github.com/noderefit/noderefit/host"
)

func hooksCommand() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "hooks",
		Short: "List the host's own hooks, in the order in which they run",
		RunE: func(*cobra.Command, []string) error {
			h, err := o.look()
			if err != nil {
				return err
			}
			defer h.Close()
			list, err := h.Hooks()
			if err != nil {
				return err
			}
			for _, w := range list.Warnings {
				fmt.Fprintln(os.Stderr, "warning:", w)
			}
			return o.show(hands.NewHooksDocument(list))
		},
	}
	o.flags(cmd)
	return cmd
}

func beforeDrainCommand() *cobra.Command {
	var o options
	var to, hooks string
	cmd := &cobra.Command{
		Use:   "before-drain [--to NAME]",
		Short: "Ask the hooks whether a drain may begin",
		Long: `before-drain runs the hooks that are asked before a node is drained, one after the other until one says no,
which is exit code 5. The agent runs it before it cordons the node. Run by hand it tries hooks out.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			doc, err := readHooks(hooks)
			if err != nil {
				return err
			}
			return o.work(func(h *host.Host) (*host.Result, error) {
				return nil, h.AskBeforeDrain(cmd.Context(), to, doc)
			})
		},
	}
	o.flags(cmd)
	cmd.Flags().StringVar(&to, "to", "", "name of the configuration that the node is to go to, for the hooks to read")
	hooksFlag(cmd, &hooks)
	return cmd
}

func hooksFlag(cmd *cobra.Command, file *string) {
	cmd.Flags().StringVar(file, "hooks", "", "what the cluster has to say of hooks; the agent in the cluster passes it")
}

// readHooks returns the zero value where no file is given.
func readHooks(path string) (doc hooks.Document, err error) {
	if path == "" {
		return doc, nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return doc, fmt.Errorf("reading hooks: %w", err)
	}
	if err := json.Unmarshal(data, &doc); err != nil {
		return doc, fmt.Errorf("reading hooks: %s: %w", path, err)
	}
	return doc, handover.Taken(path)
}
