// SPDX-License-Identifier: Apache-2.0

package rpmostree

import (
	"encoding/json"
	"testing"

	"github.com/noderefit/noderefit/ostree"
)

func TestWhatAnAdministratorHasStagedIsDescribedWhole(t *testing.T) {
	for want, theirs := range map[string]deployment{
		"os:test, version 43.2":                     {},
		"os:test with p, q without r, version 43.2": {Packages: []string{"q", "p"}, Removed: []string{"r"}},
		"os:test, version 43.2, the local packages a-1:2-1.x86_64, b-1-1.noarch": {localChanges: localChanges{
			LocalPackages: []string{"0f1e:b-1-1.noarch"}, LocalFileOverrides: []string{"0f1f:a-1:2-1.x86_64"}}},
		"os:test, version 43.2, the local replacements kernel-1-1.x86_64": {localChanges: localChanges{
			LocalReplacements: []string{"0f1e:kernel-1-1.x86_64"}}},
		`os:test, version 43.2, the replacements {"repo=updates":["kernel"]}`: {localChanges: localChanges{
			RemoteReplacements: json.RawMessage(`{"repo=updates": ["kernel"]}`)}},
		"os:test, version 43.2, an initramfs of its own": {localChanges: localChanges{InitramfsFiles: []string{"/etc/x"}}},
		"os:test, version 43.2, an initramfs of its own, and other kernel arguments": {localChanges: localChanges{Initramfs: true,
			InitramfsArguments: []string{"-v"}}},
	} {
		h := newFakeHost(t)
		theirs.OS, theirs.Checksum, theirs.Base, theirs.Staged, theirs.Origin = "testos", two, one, true, "os:test"
		h.bootedIs = &deployment{OS: "testos", Checksum: one, Booted: true, Origin: "os:test"}
		h.statuses = []fixture{{staged: &theirs}}
		one := ostree.Deployment{ID: theirs.id(), Version: "43.2", KernelArguments: []string{"a"}}
		booted := ostree.Deployment{Booted: true, KernelArguments: []string{"a"}}
		if theirs.Initramfs {
			booted.KernelArguments = []string{"b"}
		}
		d := Deployments{Driver: h.driver(), known: []ostree.Deployment{one, booted}}
		if got := d.Describe(t.Context(), one); got != theirs.id()+": "+want {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
}
