// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/spf13/cobra"
)

func cancelCommand() *cobra.Command {
	return &cobra.Command{Use: "cancel", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		ctx, out := cmd.Context(), cmd.OutOrStdout()
		c, err := connect(ctx, out)
		if err != nil {
			return err
		}
		path, err := c.sysroot.GetProperty(sysrootInterface + ".ActiveTransactionPath")
		if err != nil {
			return plainError(err)
		}
		address, _ := path.Value().(string)
		if address == "" {
			fmt.Fprintln(out, "No active transaction.")
			return nil
		}
		peer, err := dbus.Dial(address)
		if err != nil {
			return err
		}
		defer peer.Close()
		if err := peer.Auth(nil); err != nil {
			return err
		}
		object := peer.Object("", "/")
		title, err := object.GetProperty(transactionInterface + ".Title")
		if err != nil {
			return plainError(err)
		}
		fmt.Fprintf(out, "Cancelling transaction: %v\n", title.Value())
		if err := object.CallWithContext(ctx, transactionInterface+".Cancel", 0).Err; err != nil {
			return plainError(err)
		}
		// Whoever listens keeps the transaction from going.
		peer.Close()
		for ; ; time.Sleep(20 * time.Millisecond) {
			now, err := c.sysroot.GetProperty(sysrootInterface + ".ActiveTransactionPath")
			if err != nil {
				return plainError(err)
			}
			if now.Value() != address {
				fmt.Fprintln(out, "Cancelled.")
				return nil
			}
		}
	}}
}
