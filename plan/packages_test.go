// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"
	"strings"
	"testing"

	mc "github.com/noderefit/noderefit/machineconfig"
)

func catalogue(t *testing.T, host string) *Catalogue {
	t.Helper()
	c, err := NewCatalogue([]byte(host))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestKernelTypeTakesThePlaceOfTheBaseKernel(t *testing.T) {
	const (
		base8 = "kernel kernel-core kernel-modules kernel-modules-extra"
		base  = "kernel kernel-core kernel-modules kernel-modules-core kernel-modules-extra"
		rt    = "kernel-rt-core kernel-rt-modules kernel-rt-modules-extra"
		large = "kernel-64k-core kernel-64k-modules kernel-64k-modules-core kernel-64k-modules-extra"
	)
	c := catalogue(t, "")
	for _, test := range []struct {
		id, version, arch, kernel string
		install, remove           string
	}{
		{"rhcos", "8.6", "amd64", mc.KernelRealtime, rt + " kernel-rt-kvm", base8},
		{"rhcos", "9.2", "amd64", mc.KernelRealtime, rt + " kernel-rt-kvm", base},
		{"rhel", "9.6", "arm64", mc.KernelRealtime, rt + " kernel-rt-kvm", base},
		{"rhel", "9.7", "amd64", mc.KernelRealtime, rt, base},
		{"rhel", "9.10", "amd64", mc.KernelRealtime, rt, base}, // which is not 9.1
		{"rhel", "10.2", "amd64", mc.KernelRealtime, rt, base},
		{"centos", "9", "amd64", mc.KernelRealtime, rt, base},
		{"scos", "9", "arm64", mc.Kernel64kPages, large, base},
		{"rhel", "10.0", "arm64", mc.Kernel64kPages, large, base},
		{"rhel", "9.6", "amd64", mc.KernelDefault, "", ""},
		{"rhel", "9.6", "amd64", "", "", ""},
		{"fedora", "44", "amd64", mc.KernelDefault, "", ""},
		{"debian", "13", "amd64", mc.KernelDefault, "", ""}, // nothing is asked of the catalogue
	} {
		p := Platform{ID: test.id, Version: test.version, Arch: test.arch}
		install, remove, err := c.Packages(p, test.kernel, nil)
		if err != nil || strings.Join(install, " ") != test.install || strings.Join(remove, " ") != test.remove {
			t.Errorf("%s of %s: install %q, remove %q (%v), instead of %q and %q", test.kernel, p, install, remove, err,
				test.install, test.remove)
		}
	}
}

func TestExtensionIsThePackagesOfTheRelease(t *testing.T) {
	c := catalogue(t, "")
	for _, test := range []struct {
		id, version string
		extensions  string
		install     string
	}{
		{"rhel", "9.6", "usbguard", "usbguard"},
		{"rhel", "9.6", "kerberos kernel-devel", "krb5-workstation libkadm5 kernel-devel kernel-headers"},
		{"rhel", "9.6", "ipsec", "NetworkManager-libreswan libreswan openvswitch3.5-ipsec"},
		{"rhcos", "9.4", "ipsec", "NetworkManager-libreswan libreswan"},
		{"rhcos", "8.6", "ipsec", "NetworkManager-libreswan libreswan"},
		{"centos", "10", "two-node-ha", "pacemaker pcs fence-agents-all"},
		{"fedora", "44", "sandboxed-containers sysstat", "kata-containers sysstat"},
		{"rhel", "10.0", "sysstat sysstat", "sysstat"},
	} {
		p := Platform{ID: test.id, Version: test.version, Arch: "amd64"}
		install, remove, err := c.Packages(p, "", strings.Fields(test.extensions))
		if err != nil || strings.Join(install, " ") != test.install || len(remove) > 0 {
			t.Errorf("%s of %s: install %q, remove %q (%v) instead of %q", test.extensions, p, install, remove, err,
				test.install)
		}
	}
	// Whatever a configuration may ask for is known where the extensions come from.
	for _, p := range []Platform{{"rhel", "9.6", "amd64"}, {"rhel", "10.2", "s390x"}, {"fedora", "44", "arm64"}} {
		for _, name := range []string{"ipsec", "kerberos", "kernel-devel", "sandboxed-containers", "sysstat",
			"two-node-ha", "usbguard"} {
			if len(c.Extension(p, name)) == 0 {
				t.Errorf("%s has no packages on %s", name, p)
			}
		}
	}
}

func TestUnknownNamesAreRefusedWithThoseThatAreKnown(t *testing.T) {
	c := catalogue(t, "")
	rhel, fedora := Platform{"rhel", "9.6", "amd64"}, Platform{"fedora", "44", "amd64"}
	for _, test := range []struct {
		name       string
		platform   Platform
		kernel     string
		extensions []string
		want       []string
		not        string
	}{
		{"64k on another machine", rhel, mc.Kernel64kPages, nil,
			[]string{"kernelType: ", mc.Kernel64kPages + " on rhel 9.6 on amd64", "default, realtime"}, "extensions:"},
		{"64k of a release whose pages are that large", Platform{"rhcos", "8.6", "arm64"}, mc.Kernel64kPages, nil,
			[]string{"kernelType: ", "only for default;"}, "extensions:"},
		{"realtime of Fedora", fedora, mc.KernelRealtime, nil, []string{"kernelType: ", "fedora 44"}, "64k"},
		{"an extension", rhel, "", []string{"usbguard", "wasm"},
			[]string{"extensions: ", "wasm on rhel", "ipsec, kerberos", "usbguard"}, "kernelType:"},
		{"an extension that the release lacks", Platform{"rhcos", "8.6", "amd64"}, "", []string{"two-node-ha"},
			[]string{"extensions: ", "two-node-ha on rhcos 8.6"}, "two-node-ha,"},
		{"both", rhel, mc.Kernel64kPages, []string{"wasm"}, []string{"kernelType: ", "; extensions: "}, "\n"},
		{"an OS", Platform{"debian", "13", "amd64"}, "", []string{"usbguard"},
			[]string{"extensions: ", "debian 13", CataloguePath}, "only for"},
		{"no os-release", Platform{Arch: "amd64"}, mc.KernelRealtime, nil, []string{"an unknown OS", "only for default;"}, "  "},
	} {
		t.Run(test.name, func(t *testing.T) {
			install, remove, err := c.Packages(test.platform, test.kernel, test.extensions)
			if err == nil {
				t.Fatalf("install %q, remove %q", install, remove)
			}
			for _, part := range append(test.want, CataloguePath) {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not have %q", err, part)
				}
			}
			if strings.Contains(err.Error(), test.not) {
				t.Errorf("%q has %q", err, test.not)
			}
		})
	}
}

func TestHostAddsToTheCatalogueAndTakesAway(t *testing.T) {
	c := catalogue(t, `
systems:
- ids: [debian, rhel]
  versions: ["13", "9.6"]
  kernels:
    default: {packages: [linux-image-amd64]}
    realtime: {packages: [linux-image-rt-amd64], release: '-rt-'}
  extensions:
    usbguard: [usbguard-next]
    sysstat: []
- ids: [rhel]
  versions: ["9"]
  extensions:
    usbguard: [usbguard-9]
- ids: [rhel]
  extensions:
    usbguard: [usbguard-any]
    wasm: [crun-wasm]
`)
	for _, test := range []struct {
		platform        Platform
		kernel          string
		extensions      string
		install, remove string
		refused         bool
	}{
		{Platform{"debian", "13", "amd64"}, mc.KernelRealtime, "usbguard", "linux-image-rt-amd64 usbguard-next",
			"linux-image-amd64", false},
		{Platform{"debian", "12", "amd64"}, "", "usbguard", "", "", true},
		// The more exact entry wins within the file, and the file wins over a more exact one of ours.
		{Platform{"rhel", "9.6", "amd64"}, mc.KernelRealtime, "usbguard", "linux-image-rt-amd64 usbguard-next",
			"linux-image-amd64", false},
		{Platform{"rhel", "9.4", "amd64"}, "", "usbguard wasm", "usbguard-9 crun-wasm", "", false},
		{Platform{"rhel", "10.4", "amd64"}, "", "usbguard", "usbguard-any", "", false},
		{Platform{"rhel", "9.6", "amd64"}, "", "sysstat", "", "", true},
		{Platform{"rhel", "9.4", "amd64"}, "", "sysstat kerberos", "sysstat krb5-workstation libkadm5", "", false},
		{Platform{"centos", "9", "amd64"}, "", "wasm", "", "", true},
	} {
		install, remove, err := c.Packages(test.platform, test.kernel, strings.Fields(test.extensions))
		if (err != nil) != test.refused || strings.Join(install, " ") != test.install ||
			strings.Join(remove, " ") != test.remove {
			t.Errorf("%s of %s: install %q, remove %q, %v", test.extensions, test.platform, install, remove, err)
		}
	}
	if got := c.RunningKernel(Platform{"debian", "13", "amd64"}, "6.12.9-rt-amd64"); got != mc.KernelRealtime {
		t.Errorf("the host's kernel is taken for %s", got)
	}
}

func TestWrongFileOfTheHostIsRefusedByItsField(t *testing.T) {
	entry := func(rest string) string { return "systems:\n- ids: [rhel]\n  " + rest }
	for text, part := range map[string]string{
		"systems: {}":                                                 "unmarshal",
		"system: []":                                                  "system",
		"systems:\n- versions: ['9']":                                 "systems[0].ids",
		entry("extension: {}"):                                        "extension",
		entry("extensions: {a: ['-y']}"):                              `systems[0].extensions.a[0]: "-y"`,
		entry("extensions: {a: [b, /c.rpm]}"):                         `systems[0].extensions.a[1]`,
		entry("extensions: {a: ['b c']}"):                             `systems[0].extensions.a[0]`,
		entry("kernels: {rt: {packages: [a], release: b}}"):           "kernels.rt: is not one of default, realtime, 64k",
		entry("kernels: {realtime: {packages: [a]}}"):                 "systems[0].kernels.realtime.release: is missing",
		entry("kernels: {realtime: {packages: [a], release: '+rt'}}"): "systems[0].kernels.realtime.release: ",
		entry("kernels: {realtime: {packages: ['@a'], release: rt}}"): "systems[0].kernels.realtime.packages[0]",
		entry("kernels: {default: {packages: [a], release: rt}}"):     "systems[0].kernels.default: may have packages only",
		entry("kernels: {realtime: {packages: [a], remove: [b]}}"):    "remove",
	} {
		if _, err := NewCatalogue([]byte(text)); err == nil || !strings.Contains(err.Error(), part) ||
			!strings.Contains(err.Error(), CataloguePath) {
			t.Errorf("%s: %v instead of an error about %s", text, err, part)
		}
	}
}

func TestRunningKernelIsKnownByItsRelease(t *testing.T) {
	c := catalogue(t, "")
	for _, test := range []struct {
		id, version, arch, release, want string
	}{
		{"rhcos", "8.6", "amd64", "4.18.0-372.40.1.el8_6.x86_64", mc.KernelDefault},
		{"rhcos", "8.6", "amd64", "4.18.0-305.34.2.rt7.107.el8_4.x86_64", mc.KernelRealtime},
		{"rhcos", "9.2", "amd64", "5.14.0-284.11.1.rt14.296.el9_2.x86_64", mc.KernelRealtime},
		{"rhel", "9.6", "amd64", "5.14.0-570.12.1.el9_6.x86_64", mc.KernelDefault},
		{"rhel", "9.6", "amd64", "5.14.0-570.12.1.el9_6.x86_64+rt", mc.KernelRealtime},
		{"rhel", "9.6", "amd64", "5.14.0-570.12.1.el9_6.x86_64+debug", mc.KernelDefault},
		{"rhel", "10.0", "arm64", "6.12.0-55.9.1.el10_0.aarch64+64k", mc.Kernel64kPages},
		{"rhel", "10.0", "arm64", "6.12.0-55.9.1.el10_0.aarch64+rt-64k", mc.KernelRealtime},
		{"centos", "9", "arm64", "5.14.0-600.el9.aarch64+64k", mc.Kernel64kPages},
		{"fedora", "44", "amd64", "6.19.3-200.fc44.x86_64", mc.KernelDefault},
		{"debian", "13", "amd64", "6.12.48+deb13-rt-amd64", mc.KernelDefault},
	} {
		if got := c.RunningKernel(Platform{test.id, test.version, test.arch}, test.release); got != test.want {
			t.Errorf("%s is taken for %s instead of %s", test.release, got, test.want)
		}
	}
}

func TestPlatformIsReadFromOSRelease(t *testing.T) {
	for name, test := range map[string]struct {
		text        string
		id, version string
	}{
		"RHEL CoreOS 4.19 and later": {"NAME=\"Red Hat Enterprise Linux\"\nVERSION=\"9.6.20250826-1\"\nID=\"rhel\"\n" +
			"ID_LIKE=\"fedora\"\nVERSION_ID=\"9.6\"\nVARIANT_ID=coreos\nOPENSHIFT_VERSION=\"4.19\"\n", "rhel", "9.6"},
		"RHEL CoreOS before": {"ID=\"rhcos\"\nVERSION=\"414.92.202309222337-0\"\nVERSION_ID=\"4.14\"\n" +
			"OPENSHIFT_VERSION=\"4.14\"\nRHEL_VERSION=\"9.2\"\n", "rhcos", "9.2"},
		"CentOS Stream CoreOS before": {"ID=\"scos\"\nVERSION=\"413.9.202302130811-0\"\nVERSION_ID=\"4.13\"\n" +
			"OPENSHIFT_VERSION=\"4.13\"\n", "scos", "9"},
		"Fedora CoreOS":  {"# os-release\nID=fedora\n\nVERSION_ID=44\nVARIANT_ID=coreos\n", "fedora", "44"},
		"single quotes":  {"ID='centos'\nVERSION_ID='10'", "centos", "10"},
		"no version":     {"ID=arch\n", "arch", ""},
		"nothing":        {"", "", ""},
		"no assignments": {"ID\n=\nfoo bar\n", "", ""},
	} {
		if got := ParsePlatform([]byte(test.text), "arm64"); got != (Platform{test.id, test.version, "arm64"}) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestWhatOnlyAnotherReleaseHasIsKnownToBeThere(t *testing.T) {
	c, err := NewCatalogue([]byte("systems:\n- ids: [rhel]\n  versions: ['9.9']\n  extensions: {late: [late]}"))
	if err != nil {
		t.Fatal(err)
	}
	eight := Platform{"rhel", "8.6", "amd64"}
	for _, test := range []struct {
		kernel     string
		extensions []string
		ever       bool
	}{
		{"", []string{"two-node-ha"}, true},
		{"", []string{"late", "usbguard"}, true},
		{"realtime", nil, true},
		{"64k-pages", nil, false}, // of another architecture
		{"", []string{"never"}, false},
	} {
		if got := c.Ever(eight, test.kernel, test.extensions); got != test.ever {
			t.Errorf("%+v: %v", test, got)
		}
	}
	if c.Ever(Platform{"debian", "13", "amd64"}, "", []string{"usbguard"}) {
		t.Error("an OS of which nothing is known")
	}
	// What is known goes on with the error.
	install, remove, err := c.Packages(eight, "realtime", []string{"usbguard", "two-node-ha"})
	want := []string{"kernel-rt-core", "kernel-rt-modules", "kernel-rt-modules-extra", "kernel-rt-kvm", "usbguard"}
	if err == nil || !slices.Equal(install, want) || len(remove) != 4 {
		t.Errorf("%v %v %v", install, remove, err)
	}
}

func FuzzCatalogue(f *testing.F) {
	f.Add("systems:\n- ids: [a]\n  versions: ['1.2']\n  kernels: {realtime: {packages: [x], release: 'y'}}",
		"a", "1.2.3", "xyz")
	f.Add("systems:\n- ids: [rhel]\n  extensions: {usbguard: []}", "rhel", "9.6", "+rt")
	f.Fuzz(func(t *testing.T, text, id, version, release string) {
		c, err := NewCatalogue([]byte(text))
		if err != nil {
			return
		}
		p := Platform{id, version, "amd64"}
		if kernel := c.RunningKernel(p, release); !slices.Contains(kernelTypes, kernel) {
			t.Fatalf("%q is taken for %q", release, kernel)
		}
		for _, kernel := range kernelTypes {
			install, remove, err := c.Packages(p, kernel, []string{"usbguard"})
			for _, name := range slices.Concat(install, remove) {
				if !packagePattern.MatchString(name) {
					t.Fatalf("%q is to be a package (%v)", name, err)
				}
			}
			if err == nil && !c.Ever(p, kernel, []string{"usbguard"}) {
				t.Fatalf("%s has them, and no release ever", p)
			}
		}
	})
}
