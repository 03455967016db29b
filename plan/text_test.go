// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"strings"
	"testing"

	"github.com/noderefit/noderefit/machineconfig"
)

func TestConfigurationsOfOneNameAreToldApart(t *testing.T) {
	t.Parallel()
	file := func(name, digest, text string) *machineconfig.Config {
		return &machineconfig.Config{Name: name, Digest: digest, Files: []machineconfig.File{{Path: "/etc/motd", Contents: []byte(text)}}}
	}
	was := file("50-motd", "1111111122", "a")
	for _, test := range []struct {
		desired   *machineconfig.Config
		directory bool
		begins    string
	}{
		{file("50-motd", "3333333344", "b"), true, "50-motd (11111111) -> 50-motd (33333333)\n"},
		{file("60-motd", "3333333344", "b"), false, "50-motd -> 60-motd\n"},
		{was, true, "50-motd -> 50-motd\n"},
	} {
		var out strings.Builder
		p := mustMake(t, was, test.desired, Options{Directory: test.directory})
		if err := p.WriteText(&out); err != nil || !strings.HasPrefix(out.String(), test.begins) {
			t.Errorf("%v; want %q\n%s", err, test.begins, out.String())
		}
		idle := test.directory && len(p.Actions) > 0
		if said := strings.Contains(out.String(), "On a directory none of them happens."); said != idle {
			t.Errorf("no action happens: said %t, want %t\n%s", said, idle, out.String())
		}
	}
}
