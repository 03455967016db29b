// SPDX-License-Identifier: Apache-2.0

package rivals

import (
	"strings"
	"testing"

	"github.com/noderefit/noderefit/api"
)

func TestRivalIsNamedWithWhatToDo(t *testing.T) {
	kured := []string{"/usr/bin/kured", "--period=1m"}
	for _, c := range []struct {
		what   string
		signs  Signs
		off    string
		live   bool
		exists string
		want   []string // none: no other manager
	}{
		{what: "a host of one's own"},
		{what: "an agent of ours", signs: Signs{Processes: [][]string{
			{"/var/lib/machine-config-daemon/bin/machine-config-daemon", "apply"}, {"/machine-config-daemon", "run"}}}},
		{what: "zincati", signs: Signs{Units: map[string]string{"zincati.service": "active"}},
			want: []string{"zincati.service", "disable"}},
		{what: "zincati that waits", signs: Signs{Units: map[string]string{"zincati.service": "inactive"}}},
		{what: "zincati that the configuration turns off",
			signs: Signs{Units: map[string]string{"zincati.service": "active"}}, off: "zincati.service"},
		{what: "zincati, and no reboot", signs: Signs{Units: map[string]string{"zincati.service": "active"}}, live: true},
		{what: "bootc", signs: Signs{Units: map[string]string{"bootc-fetch-apply-updates.timer": "active"}},
			want: []string{"bootc-fetch-apply-updates.timer"}},
		{what: "rpm-ostree that applies",
			signs: Signs{Units: map[string]string{api.UnitRPMOSTree: "activating"}, Automatic: "apply"}, want: []string{api.UnitRPMOSTree}},
		{what: "rpm-ostree that stages",
			signs: Signs{Units: map[string]string{api.UnitRPMOSTree: "active"}, Automatic: "stage"}, want: []string{api.UnitRPMOSTree}},
		{what: "rpm-ostree with a policy of a later version",
			signs: Signs{Units: map[string]string{api.UnitRPMOSTree: "active"}, Automatic: "new"}, want: []string{api.UnitRPMOSTree}},
		{what: "rpm-ostree that looks for updates",
			signs: Signs{Units: map[string]string{api.UnitRPMOSTree: "active"}, Automatic: "check"}},
		{what: "rpm-ostree that does nothing",
			signs: Signs{Units: map[string]string{api.UnitRPMOSTree: "active"}, Automatic: "none"}},
		{what: "rpm-ostree as it comes", signs: Signs{Units: map[string]string{api.UnitRPMOSTree: "active"}}},
		{what: "upstream's agent", live: true,
			signs: Signs{Processes: [][]string{{"/usr/bin/machine-config-daemon", "start", "--payload-version=4.20"}}},
			want:  []string{"machine-config-operator", "/usr/bin/machine-config-daemon start", "remove it"}},
		{what: "upstream's first boot", live: true,
			signs: Signs{Units: map[string]string{"machine-config-daemon-firstboot.service": "activating"}},
			want:  []string{"machine-config-operator", "machine-config-daemon-firstboot.service"}},
		{what: "our own first boot, which is called the same",
			signs: Signs{Units: map[string]string{api.FirstbootUnit: "activating"},
				Texts: map[string]string{api.FirstbootUnit: api.FirstbootUnitText}}},
		{what: "upstream's, by what it says",
			signs: Signs{Units: map[string]string{api.FirstbootUnit: "activating"}, Texts: map[string]string{
				api.FirstbootUnit: "[Unit]\nDescription=Machine Config Daemon Firstboot\n"}},
			want: []string{api.FirstbootUnit}},
		{what: "our own first boot, and upstream's pull", signs: Signs{
			Units: map[string]string{api.FirstbootUnit: "active", "machine-config-daemon-pull.service": "active"},
			Texts: map[string]string{api.FirstbootUnit: api.FirstbootUnitText}},
			want: []string{"machine-config-daemon-pull.service"}},
		{what: "our own first boot, where upstream's agent was before", signs: Signs{CurrentConfig: true,
			Units: map[string]string{api.FirstbootUnit: "inactive"},
			Texts: map[string]string{api.FirstbootUnit: api.FirstbootUnitText}}},
		{what: "what upstream's agent left, and its units", live: true,
			signs: Signs{Units: map[string]string{"machine-config-daemon-pull.service": "inactive"}, CurrentConfig: true},
			want:  []string{"currentconfig", "machine-config-daemon-pull.service", "mask"}},
		{what: "what upstream's agent left, with its units masked",
			signs: Signs{Units: map[string]string{"machine-config-daemon-pull.service": "masked"}, CurrentConfig: true}},
		{what: "what upstream's agent left, with its units turned off",
			signs: Signs{Units: map[string]string{"machine-config-daemon-pull.service": "inactive"}, CurrentConfig: true},
			off:   "machine-config-daemon-pull.service"},
		{what: "what upstream's agent left", signs: Signs{CurrentConfig: true,
			Units: map[string]string{"machine-config-daemon-pull.service": "not-found"}}},
		{what: "kured without a reason", signs: Signs{Processes: [][]string{kured}}},
		{what: "a reason without kured", exists: api.KuredSentinel},
		{what: "kured with a reason", signs: Signs{Processes: [][]string{kured}}, exists: api.KuredSentinel,
			want: []string{"kured", api.KuredSentinel}},
		{what: "kured with a reason, and no reboot", signs: Signs{Processes: [][]string{kured}}, exists: api.KuredSentinel,
			live: true},
		{what: "kured with a reason of another name", exists: "/run/please",
			signs: Signs{Processes: [][]string{{"kured", "--reboot-sentinel", "/run/please"}}}, want: []string{"/run/please"}},
		{what: "kured that asks a command", exists: api.KuredSentinel,
			signs: Signs{Processes: [][]string{{"kured", "--reboot-sentinel-command=needs-restarting -r"}}}},
	} {
		c.signs.Exists = func(path string) bool { return path == c.exists && path != "" }
		got := Of(c.signs, func(unit string) bool { return unit == c.off }, !c.live)
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
