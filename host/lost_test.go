// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/ostree"
	"github.com/noderefit/noderefit/rpmostree"
)

// tuned is a host on which TuneD has isolcpus=1, and has other arguments staged.
func tuned(t *testing.T, version string) *Host {
	t.Helper()
	dir, one := t.TempDir(), strings.Repeat("1", 64)
	staged, err := os.ReadFile("../ostree/testdata/staged-extra")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"run/ostree-booted":                "",
		ostree.StagedState:                 string(staged),
		"ostree/repo/config":               "[core]\nrepo_version=1\n",
		"usr/lib/os-release":               "ID=fedora\nVERSION_ID=43\n",
		"usr/lib/ostree/prepare-root.conf": "",
		"boot/loader.1/entries/ostree-1-testos.conf": "version 1\noptions isolcpus=1 ostree=/ostree/boot.1/testos/7c32/0\n" +
			"x-options-source-tuned isolcpus=1\n",
	} {
		at := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range map[string]string{
		"boot/loader":                 "loader.1",
		"ostree/boot.1/testos/7c32/0": "../../../deploy/testos/deploy/" + one + ".0",
	} {
		at := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, at); err != nil {
			t.Fatal(err)
		}
	}
	h := openTree(t, dir)
	h.os = OSRpmOstree
	h.plain = ostree.NewPlain(func(_ context.Context, argv ...string) ([]byte, error) {
		if argv[1] == "--version" {
			return []byte("libostree:\n Version: '" + version + "'\n"), nil
		}
		return []byte("  testos " + one + ".1 (staged)\n* testos " + one + ".0\n"), nil
	}, dir)
	h.deployments = &rpmostree.Deployments{Plain: h.plain}
	return h
}

func TestArgumentsThatOthersHaveStagedAreTakenAlongOrLost(t *testing.T) {
	for version, along := range map[string]bool{"2025.6": true, "2023.5": false} {
		p, err := tuned(t, version).Plan(t.Context(), &machineconfig.Config{Name: "a", KernelArguments: []string{"a=1"}},
			PlanOptions{})
		if err != nil {
			t.Fatal(err)
		}
		text := strings.Join(p.Warnings, "; ")
		if warned := strings.Contains(text, "kernel arguments of tuned are staged"); warned != along || len(p.Lost) > 0 == along {
			t.Errorf("ostree %s: the plan warns %q, and loses %q", version, p.Warnings, p.Lost)
		}
	}
}
