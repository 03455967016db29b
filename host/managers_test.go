// SPDX-License-Identifier: Apache-2.0

package host

import (
	"strings"
	"testing"

	"github.com/noderefit/noderefit/api"
)

func TestRivalIsNamedWithWhatToDo(t *testing.T) {
	kured := []string{"/usr/bin/kured", "--period=1m"}
	for _, c := range []struct {
		what   string
		signs  signs
		off    string
		live   bool
		exists string
		want   []string // none: no other manager
	}{
		{what: "a host of one's own"},
		{what: "an agent of ours", signs: signs{processes: [][]string{
			{"/var/lib/machine-config-daemon/bin/machine-config-daemon", "apply"}, {"/machine-config-daemon", "run"}}}},
		{what: "zincati", signs: signs{units: map[string]string{"zincati.service": "active"}},
			want: []string{"zincati.service", "disable"}},
		{what: "zincati that waits", signs: signs{units: map[string]string{"zincati.service": "inactive"}}},
		{what: "zincati that the configuration turns off",
			signs: signs{units: map[string]string{"zincati.service": "active"}}, off: "zincati.service"},
		{what: "zincati, and no reboot", signs: signs{units: map[string]string{"zincati.service": "active"}}, live: true},
		{what: "bootc", signs: signs{units: map[string]string{"bootc-fetch-apply-updates.timer": "active"}},
			want: []string{"bootc-fetch-apply-updates.timer"}},
		{what: "rpm-ostree that applies",
			signs: signs{units: map[string]string{rpmostreeTimer: "activating"}, automatic: "apply"}, want: []string{rpmostreeTimer}},
		{what: "rpm-ostree that stages",
			signs: signs{units: map[string]string{rpmostreeTimer: "active"}, automatic: "stage"}, want: []string{rpmostreeTimer}},
		{what: "rpm-ostree with a policy of a later version",
			signs: signs{units: map[string]string{rpmostreeTimer: "active"}, automatic: "new"}, want: []string{rpmostreeTimer}},
		{what: "rpm-ostree that looks for updates",
			signs: signs{units: map[string]string{rpmostreeTimer: "active"}, automatic: "check"}},
		{what: "rpm-ostree that does nothing",
			signs: signs{units: map[string]string{rpmostreeTimer: "active"}, automatic: "none"}},
		{what: "rpm-ostree as it comes", signs: signs{units: map[string]string{rpmostreeTimer: "active"}}},
		{what: "upstream's agent", live: true,
			signs: signs{processes: [][]string{{"/usr/bin/machine-config-daemon", "start", "--payload-version=4.20"}}},
			want:  []string{"machine-config-operator", "/usr/bin/machine-config-daemon start", "remove it"}},
		{what: "upstream's first boot", live: true,
			signs: signs{units: map[string]string{"machine-config-daemon-firstboot.service": "activating"}},
			want:  []string{"machine-config-operator", "machine-config-daemon-firstboot.service"}},
		{what: "our own first boot, which is called the same",
			signs: signs{units: map[string]string{api.FirstbootUnit: "activating"},
				texts: map[string]string{api.FirstbootUnit: api.FirstbootUnitText}}},
		{what: "upstream's, by what it says",
			signs: signs{units: map[string]string{api.FirstbootUnit: "activating"}, texts: map[string]string{
				api.FirstbootUnit: "[Unit]\nDescription=Machine Config Daemon Firstboot\n"}},
			want: []string{api.FirstbootUnit}},
		{what: "our own first boot, and upstream's pull", signs: signs{
			units: map[string]string{api.FirstbootUnit: "active", "machine-config-daemon-pull.service": "active"},
			texts: map[string]string{api.FirstbootUnit: api.FirstbootUnitText}},
			want: []string{"machine-config-daemon-pull.service"}},
		{what: "our own first boot, where upstream's agent was before", signs: signs{currentConfig: true,
			units: map[string]string{api.FirstbootUnit: "inactive"},
			texts: map[string]string{api.FirstbootUnit: api.FirstbootUnitText}}},
		{what: "what upstream's agent left, and its units", live: true,
			signs: signs{units: map[string]string{"machine-config-daemon-pull.service": "inactive"}, currentConfig: true},
			want:  []string{"currentconfig", "machine-config-daemon-pull.service", "mask"}},
		{what: "what upstream's agent left, with its units masked",
			signs: signs{units: map[string]string{"machine-config-daemon-pull.service": "masked"}, currentConfig: true}},
		{what: "what upstream's agent left, with its units turned off",
			signs: signs{units: map[string]string{"machine-config-daemon-pull.service": "inactive"}, currentConfig: true},
			off:   "machine-config-daemon-pull.service"},
		{what: "what upstream's agent left", signs: signs{currentConfig: true,
			units: map[string]string{"machine-config-daemon-pull.service": "not-found"}}},
		{what: "kured without a reason", signs: signs{processes: [][]string{kured}}},
		{what: "a reason without kured", exists: sentinel},
		{what: "kured with a reason", signs: signs{processes: [][]string{kured}}, exists: sentinel,
			want: []string{"kured", sentinel}},
		{what: "kured with a reason, and no reboot", signs: signs{processes: [][]string{kured}}, exists: sentinel,
			live: true},
		{what: "kured with a reason of another name", exists: "/run/please",
			signs: signs{processes: [][]string{{"kured", "--reboot-sentinel", "/run/please"}}}, want: []string{"/run/please"}},
		{what: "kured that asks a command", exists: sentinel,
			signs: signs{processes: [][]string{{"kured", "--reboot-sentinel-command=needs-restarting -r"}}}},
	} {
		c.signs.exists = func(path string) bool { return path == c.exists && path != "" }
		got := rival(c.signs, func(unit string) bool { return unit == c.off }, !c.live)
		if (got == "") != (len(c.want) == 0) {
			t.Errorf("%s: %q", c.what, got)
		}
		for _, part := range c.want {
			if !strings.Contains(got, part) {
				t.Errorf("%s: %q does not say %s", c.what, got, part)
			}
		}
	}
}

func TestPolicyOfAutomaticUpdatesIsRead(t *testing.T) {
	for config, want := range map[string]string{
		"": "",
		"[Daemon]\n#AutomaticUpdatePolicy=apply\n":                                        "",
		"[Daemon]\nAutomaticUpdatePolicy=check\n":                                         "check",
		"[Daemon]\nIdleExitTimeout=60\n AutomaticUpdatePolicy = stage \n[Experimental]\n": "stage",
		"[Experimental]\nAutomaticUpdatePolicy=apply\n":                                   "",
		"[Daemon]\nAutomaticUpdatePolicy=none\nAutomaticUpdatePolicy=apply":               "apply",
	} {
		if got := automaticPolicy(config); got != want {
			t.Errorf("%q: %q, want %q", config, got, want)
		}
	}
}
