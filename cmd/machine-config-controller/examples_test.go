// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestEveryCommandHasExamplesThatCanBeTyped(t *testing.T) {
	t.Parallel()
	var names []string
	for _, c := range append([]*cobra.Command{command()}, command().Commands()...) {
		if names = append(names, c.Name()); c.Example == "" && c.IsAvailableCommand() {
			t.Errorf("%s has no Example", c.CommandPath())
		}
	}
	for name, text := range examples {
		if !slices.Contains(names, name) {
			t.Errorf("there are examples of %s, which is no command", name)
		}
		for line := range strings.Lines(text) {
			words := strings.Fields(strings.ReplaceAll(line, `"file /etc/chrony.conf"`, "file"))
			if at := slices.Index(words, ">"); at > 0 {
				words = words[:at]
			}
			program := command()
			if !strings.HasPrefix(line, "  ") || words[0] != program.Name() {
				t.Errorf("%q does not begin with %s", line, program.Name())
				continue
			}
			found, rest, err := program.Find(words[1:])
			if err != nil || found == program || name != program.Name() && name != found.Name() {
				t.Errorf("%q is an example of %s, %v", line, found.Name(), err)
				continue
			}
			if err := found.ParseFlags(rest); err != nil {
				t.Errorf("%q: %v", line, err)
			} else if err := found.ValidateArgs(found.Flags().Args()); err != nil && !found.DisableFlagParsing {
				t.Errorf("%q: %v", line, err)
			}
		}
	}
}
