// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/godbus/dbus/v5"
	"github.com/spf13/cobra"
)

func statusCommand() *cobra.Command {
	var asJSON, booted, verbose, advisories, pendingExit bool
	cmd := &cobra.Command{Use: "status", Args: cobra.NoArgs}
	set := cmd.Flags()
	set.BoolVar(&asJSON, "json", false, "Output JSON")
	set.BoolVarP(&booted, "booted", "b", false, "Only print the booted deployment")
	set.BoolVarP(&verbose, "verbose", "v", false, "Print additional fields")
	set.BoolVarP(&advisories, "advisories", "a", false, "Expand advisories listing")
	set.BoolVar(&pendingExit, "pending-exit-77", false, "If pending deployment available, exit 77")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := connect(cmd.Context(), cmd.OutOrStdout())
		if err != nil {
			return err
		}
		all, err := c.deployments()
		if err != nil {
			return err
		}
		shown := all
		if booted {
			shown = nil
			for _, m := range all {
				if vardict(m).yes("booted") {
					shown = append(shown, m)
				}
			}
		}
		value, err := c.sysroot.GetProperty(sysrootInterface + ".ActiveTransaction")
		if err != nil {
			return plainError(err)
		}
		txn, _ := value.Value().([]any)
		switch {
		case asJSON:
			err = showJSON(cmd.OutOrStdout(), shown, txn)
		default:
			title, client := c.under(cmd.Context())
			showText(cmd.OutOrStdout(), shown, title, client)
		}
		if err == nil && pendingExit && len(all) > 0 && !vardict(all[0]).yes("booted") {
			return errUnchanged
		}
		return err
	}
	return cmd
}

// showJSON shows the whole status. There is never a cached update: nothing here checks for one by itself.
func showJSON(out io.Writer, deployments []map[string]dbus.Variant, txn []any) error {
	status := struct {
		Deployments  []any         `json:"deployments"`
		Transaction  any           `json:"transaction"`
		CachedUpdate any           `json:"cached-update"` //nolint:tagliatelle // rpm-ostree's key
		UpdateDriver *updateDriver `json:"update-driver"` //nolint:tagliatelle // rpm-ostree's key
	}{Deployments: []any{}}
	for _, m := range deployments {
		status.Deployments = append(status.Deployments, bare(m))
	}
	if len(txn) > 0 && txn[0] != "" {
		status.Transaction = txn
	}
	var err error
	if status.UpdateDriver, err = readDriver(); err != nil {
		return err
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(status); err != nil {
		return err
	}
	_, err = out.Write(keyOfLine.ReplaceAll(text.Bytes(), []byte("$1 :")))
	return err
}

// keyOfLine is a key in JSON with a line for each: json-glib has a blank before the colon.
var keyOfLine = regexp.MustCompile(`(?m)^( *"[^"]*"):`)

// bare is a value of the bus without its variants.
func bare(value any) any {
	switch v := value.(type) {
	case dbus.Variant:
		return bare(v.Value())
	case map[string]dbus.Variant:
		m := map[string]any{}
		for key, one := range v {
			m[key] = bare(one)
		}
		return m
	case [][]any:
		list := []any{}
		for _, one := range v {
			list = append(list, bare(one))
		}
		return list
	}
	return value
}

// under is what the active transaction is called and who began it, as it says itself; nothing if there is none.
func (c *client) under(ctx context.Context) (title, client string) {
	path, err := c.sysroot.GetProperty(sysrootInterface + ".ActiveTransactionPath")
	address, _ := path.Value().(string)
	if err != nil || address == "" {
		return "", ""
	}
	peer, err := dbus.Dial(address, dbus.WithContext(ctx))
	if err != nil {
		return "", "" // it is over
	}
	defer peer.Close()
	if err := peer.Auth(nil); err != nil {
		return "", ""
	}
	for name, value := range map[string]*string{"Title": &title, "InitiatingClientDescription": &client} {
		if property, err := peer.Object("", "/").GetProperty(transactionInterface + "." + name); err == nil {
			*value, _ = property.Value().(string)
		}
	}
	return title, client
}

// showText shows what people look for. The driver reads the JSON, so not every line of the original is here.
func showText(out io.Writer, deployments []map[string]dbus.Variant, title, client string) {
	if title != "" {
		fmt.Fprintf(out, "State: busy\nTransaction: %s\n  Initiator: %s\n", title, client)
	} else {
		fmt.Fprintln(out, "State: idle")
	}
	fmt.Fprintln(out, "Deployments:")
	for i, m := range deployments {
		d := vardict(m)
		mark := " "
		if d.yes("booted") {
			mark = "●"
		}
		name := d.text("container-image-reference")
		if name == "" {
			name = d.text("origin")
		}
		if i > 0 {
			fmt.Fprintln(out)
		}
		fmt.Fprintf(out, "%s %s\n", mark, name)
		row := func(key, value string) {
			if value != "" && value != "no" {
				fmt.Fprintf(out, "%25s: %s\n", key, value)
			}
		}
		row("Digest", d.text("container-image-reference-digest"))
		row("Version", d.text("version"))
		if base := d.text("base-checksum"); base != "" {
			row("BaseCommit", base)
		} else {
			row("Commit", d.text("checksum"))
		}
		row("RemovedBasePackages", strings.Join(d.list("requested-base-removals"), " "))
		row("LayeredPackages", strings.Join(d.list("packages"), " "))
		if d.yes("staged") {
			row("Staged", "yes")
		}
		if d.yes("pinned") {
			row("Pinned", "yes")
		}
	}
}
