// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"strings"
	"testing"

	"github.com/noderefit/noderefit/machineconfig"
)

func TestExtensionsAreMergedBeforeServicesRestart(t *testing.T) {
	at := func(text string) *machineconfig.Config {
		return &machineconfig.Config{Name: text, Digest: text, Files: []machineconfig.File{
			{Path: "/etc/extensions/kubelet/usr/bin/kubelet", Contents: []byte(text)}}}
	}
	changes, err := differences(at("1"), at("2"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	said := func(p *Policy) string {
		var out []string
		for _, a := range decide(changes, p, at("1"), at("2")) {
			out = append(out, strings.TrimSpace(string(a.Type)+" "+a.Service))
		}
		return strings.Join(out, ", ")
	}
	live := &Policy{files: rules{by: map[string]*rule{"/etc/extensions": {name: "ours",
		steps: []step{{ActionRestart, "kubelet.service"}, {action: ActionDaemonReload}}}}}}
	if got, want := said(live), "DaemonReload, Reload systemd-sysext.service, Restart kubelet.service"; got != want {
		t.Errorf("%s, not %s", got, want)
	}
	quiet := &Policy{files: rules{by: map[string]*rule{"/etc/extensions": {name: "ours", steps: []step{{action: ActionNone}}}}}}
	if got, want := said(quiet), "Reload systemd-sysext.service"; got != want {
		t.Errorf("%s, not %s", got, want)
	}
	if got, want := said(&Policy{}), "Drain, Reboot"; got != want {
		t.Errorf("%s, not %s", got, want)
	}
}

func TestTheFirstExtensionOfEtcTakesABoot(t *testing.T) {
	at := func(text string) *machineconfig.Config {
		cfg := &machineconfig.Config{Name: text, Digest: text}
		if text != "" {
			cfg.Files = []machineconfig.File{{Path: "/var/lib/confexts/site/etc/site.conf", Contents: []byte(text)}}
		}
		return cfg
	}
	live := &Policy{files: rules{by: map[string]*rule{"/var/lib/confexts": {name: "ours", steps: []step{{action: ActionNone}}}}}}
	for _, c := range []struct{ from, to, want string }{
		{"", "1", "Drain, Reboot"}, {"1", "2", "Reload systemd-confext.service"}, {"2", "", "Reload systemd-confext.service"},
	} {
		changes, err := differences(at(c.from), at(c.to), Options{})
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, a := range decide(changes, live, at(c.from), at(c.to)) {
			out = append(out, strings.TrimSpace(string(a.Type)+" "+a.Service))
		}
		if got := strings.Join(out, ", "); got != c.want {
			t.Errorf("from %q to %q: %s, not %s", c.from, c.to, got, c.want)
		}
	}
}
