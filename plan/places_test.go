// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"testing"

	"github.com/noderefit/noderefit/machineconfig"
)

func TestPathsThatNoHostCanHave(t *testing.T) {
	t.Parallel()
	file := func(paths ...string) *machineconfig.Config {
		c := &machineconfig.Config{}
		for _, p := range paths {
			c.Files = append(c.Files, machineconfig.File{Path: p})
		}
		return c
	}
	linked := file("/etc/a/b")
	linked.Links = []machineconfig.Link{{Path: "/etc/a", Target: "../usr/share/a"}}
	for name, test := range map[string]struct {
		current, desired *machineconfig.Config
		image, agent     bool
	}{
		"below /usr":                  {nil, file("/usr/lib/a"), true, false},
		"/usr itself":                 {nil, file("/usr"), true, false},
		"below /usr/local":            {nil, file("/usr/local/bin/a"), false, false},
		"a name that begins like it":  {nil, file("/usrlocal/a", "/var/lib/machine-config-daemons/a"), false, false},
		"by a link of its own":        {nil, linked, true, false},
		"by two dots":                 {nil, file("/etc/../usr/a"), true, false},
		"that was there before":       {file("/usr/lib/a"), file("/usr/lib/a"), false, false},
		"that was spelled otherwise":  {file("/usr//lib/../lib/a"), file("/usr/lib/a"), false, false},
		"beside one that was":         {file("/usr/lib/a"), file("/usr/lib/a", "/usr/lib/b"), true, false},
		"the agent's record":          {nil, file("/var/lib/machine-config-daemon/boot.json"), false, true},
		"the agent's runtime":         {nil, file("/run/machine-config-daemon/lock"), false, true},
		"what the agent keeps":        {nil, file("/etc/machine-config-daemon/orig/a"), false, true},
		"the committed configuration": {nil, file("/etc/machine-config-daemon/currentconfig"), false, true},
		"an admin's, beside these":    {nil, file("/etc/machine-config-daemon/packages.yaml"), false, false},
	} {
		image := len(ImageThere.Refuses(test.current, test.desired)) > 0
		if warned := len(ImageUnknown.Warnings(test.current, test.desired)) > 0; warned != image ||
			ImageUnknown.Refuses(test.current, test.desired) != nil || ImageThere.Warnings(test.current, test.desired) != nil ||
			ImageAbsent.Refuses(test.current, test.desired) != nil || ImageAbsent.Warnings(test.current, test.desired) != nil {
			t.Errorf("%s: warned %t", name, warned)
		}
		p, err := Make(test.current, test.desired, Options{})
		if err != nil || image != test.image || len(p.Unreconcilable) > 0 != test.agent {
			t.Errorf("%s: in the image %t, unreconcilable %v, %v", name, image, p.Unreconcilable, err)
		}
		if found := len(Refused(test.desired, ImageUnknown)) > 0; test.current == nil && found != test.agent {
			t.Errorf("%s: misplaced %t where nothing is known of the hosts", name, found)
		}
		if found := len(Refused(test.desired, ImageThere)) > 0; test.current == nil && found != (test.image || test.agent) {
			t.Errorf("%s: misplaced %t", name, found)
		}
	}
}

func TestAConfigurationWithAnImageIsForHostsThatBootOne(t *testing.T) {
	t.Parallel()
	c := &machineconfig.Config{OSImageURL: "r/i@sha256:1", Files: []machineconfig.File{{Path: "/usr/lib/a"}}}
	if found := ImageUnknown.Refuses(nil, c); len(found) != 1 || ImageUnknown.Warnings(nil, c) != nil {
		t.Errorf("nothing is known of the hosts: %v, %q", found, ImageUnknown.Warnings(nil, c))
	}
	if found := ImageAbsent.Refuses(nil, c); found != nil {
		t.Errorf("hosts without an image: %v", found)
	}
}

func TestUnitsOfTheAgentAreRefusedBeforeThereIsAConfiguration(t *testing.T) {
	t.Parallel()
	for _, c := range []machineconfig.Config{aMask(ProveUnit), aFile(forceFile, ""), arguments("systemd.mask=" + RecoverUnit)} {
		if found := Refused(&c, ImageAbsent); len(found) == 0 {
			t.Errorf("%+v is not refused", c)
		}
	}
	if harmless := aUnit("a.service", ""); len(Refused(&harmless, ImageThere)) > 0 {
		t.Error("a unit of people is refused")
	}
}

func TestWhatIsKnownOfHostsAndTheirImages(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		managed []string
		want    Image
	}{
		{nil, ImageUnknown},
		{[]string{""}, ImageUnknown},
		{[]string{"none", ""}, ImageUnknown},
		{[]string{"none", "none"}, ImageAbsent},
		{[]string{"none", "rpm-ostree", ""}, ImageThere},
		{[]string{"bootc (composefs, bls)"}, ImageThere},
	} {
		if got := ImageOf(test.managed); got != test.want {
			t.Errorf("%q: %v, want %v", test.managed, got, test.want)
		}
	}
}
