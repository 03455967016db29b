// SPDX-License-Identifier: Apache-2.0

// Command bootc stands for the real bootc on hosts of the lab: switch, upgrade, rollback and status with the words, the
// exit codes and the JSON of the real one, on real deployments of ostree. It differs in what it cannot do:
//
//   - An image has one layer, which names a commit of the host's own repository; container encapsulate makes such
//     images. A registry is a directory of the host, or a real one at 127.0.0.1.
//   - The lock of the sysroot is given back before the deployment is staged, because ostree's tool takes it then.
//   - status speaks JSON alone, and nothing can be rebooted softly.
//   - podman, which this program is too if it is called so, keeps names alone. It pulls from the same registries.
//   - Signatures are not looked at, but for the policy without any, which bootc refuses to go by.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
)

func main() {
	root, says, failed := &cobra.Command{Use: "bootc", Version: "1.16.9"}, "error: ", 1
	if filepath.Base(os.Args[0]) == "podman" {
		root, says, failed = podmanCommand(), "Error: ", 125
	}
	root.SilenceErrors, root.SilenceUsage = true, true
	if root.Use == "bootc" {
		root.AddCommand(switchCommand(), upgradeCommand(), rollbackCommand(), statusCommand(), internalsCommand())
	}
	err := root.ExecuteContext(context.Background())
	if errors.Is(err, errAbsent) {
		os.Exit(1)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, says+err.Error())
		os.Exit(failed)
	}
}

func switchCommand() *cobra.Command {
	var transport string
	var enforce, retain bool
	cmd := &cobra.Command{Use: "switch TARGET", Args: cobra.ExactArgs(1)}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return within(cmd.Context(), "Switching: Switching (ostree)", func(h *host) error {
			return h.switchTo(cmd.Context(), reference{Image: args[0], Transport: transport}.signedIf(enforce), retain)
		})
	}
	cmd.Flags().StringVar(&transport, "transport", "registry", "")
	cmd.Flags().BoolVar(&enforce, "enforce-container-sigpolicy", false, "")
	cmd.Flags().BoolVar(&retain, "retain", false, "")
	cmd.Flags().Bool("quiet", false, "")
	tellProgress(cmd)
	return cmd
}

func upgradeCommand() *cobra.Command {
	var check bool
	cmd := &cobra.Command{Use: "upgrade", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		return within(cmd.Context(), "Upgrading", func(h *host) error { return h.upgrade(cmd.Context(), check) })
	}}
	cmd.Flags().BoolVar(&check, "check", false, "")
	cmd.Flags().Bool("quiet", false, "")
	tellProgress(cmd)
	return cmd
}

func rollbackCommand() *cobra.Command {
	return &cobra.Command{Use: "rollback", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		return within(cmd.Context(), "Performing rollback", func(h *host) error { return h.rollback(cmd.Context()) })
	}}
}

func statusCommand() *cobra.Command {
	var asJSON, booted bool
	var format string
	cmd := &cobra.Command{Use: "status", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		if !asJSON && format != "json" {
			return failf("Status: the stand-in speaks JSON alone")
		}
		return within(cmd.Context(), "Status", func(h *host) error { return h.print(os.Stdout, booted) })
	}}
	cmd.Flags().BoolVar(&asJSON, "json", false, "")
	cmd.Flags().StringVar(&format, "format", "", "")
	cmd.Flags().Int("format-version", 1, "")
	cmd.Flags().BoolVar(&booted, "booted", false, "")
	return cmd
}

func internalsCommand() *cobra.Command {
	internals := &cobra.Command{Use: "internals", Hidden: true}
	cleanup := &cobra.Command{Use: "cleanup", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		return within(cmd.Context(), "Internals", func(h *host) error { return h.prune(cmd.Context()) })
	}}
	var repo string
	var labels []string
	encapsulate := &cobra.Command{Use: "encapsulate REF IMAGE", Args: cobra.ExactArgs(2)}
	encapsulate.RunE = func(cmd *cobra.Command, args []string) error {
		return pack(cmd.Context(), repo, labels, args[0], args[1])
	}
	encapsulate.Flags().StringVar(&repo, "repo", "/ostree/repo", "")
	encapsulate.Flags().StringArrayVar(&labels, "label", nil, "")
	ext := &cobra.Command{Use: "ostree-ext"}
	container := &cobra.Command{Use: "container"}
	container.AddCommand(encapsulate)
	ext.AddCommand(container)
	internals.AddCommand(cleanup, ext)
	return internals
}

// within runs a command on the booted host, in a mount namespace in which /sysroot is writable, under the lock of the
// sysroot. What goes wrong begins with what bootc was doing.
func within(ctx context.Context, doing string, run func(*host) error) error {
	err := enterNamespace()
	var unlock func()
	if err == nil {
		unlock, err = lock()
	}
	if err == nil {
		defer unlock()
		var h *host
		if h, err = readHost(ctx); err == nil {
			h.unlock = unlock
			err = run(h)
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return nil
}

// failf is fmt.Errorf for what bootc says, which begins and ends as bootc likes.
func failf(format string, args ...any) error { return fmt.Errorf(format, args...) }
