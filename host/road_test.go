// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/layout"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/ostree"
	"github.com/noderefit/noderefit/rpmostree"
	"github.com/noderefit/noderefit/transaction"
)

// A return to an old deployment gives up its later changes of /etc. A question without an answer is no reason for that.
func TestOnlyAHostWithoutARoadReturnsToAnOldDeployment(t *testing.T) {
	const checksum = "63bcf5d8b40c877405c835d895399a8e2500938f044a0557e08f76eca8bdcfba"
	for _, c := range []struct {
		name, version string // "": ostree does not answer
		returns       bool
	}{
		{"no answer", "", false},
		{"no road", "2022.1", true},
	} {
		root := t.TempDir()
		for _, dir := range []string{"run", "boot/loader.1/entries", "ostree/repo", "ostree/boot.1/testos/7c32"} {
			if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		entry := "version 1\noptions ostree=/ostree/boot.1/testos/7c32/0\n"
		for name, text := range map[string]string{"run/ostree-booted": "", "ostree/repo/config": "",
			"boot/loader.1/entries/ostree-1-testos.conf": entry} {
			if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		for name, target := range map[string]string{"boot/loader": "loader.1",
			"ostree/boot.1/testos/7c32/0": "../../../deploy/testos/deploy/" + checksum + ".1"} {
			if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
				t.Fatal(err)
			}
		}
		plain := ostree.NewPlain(func(_ context.Context, argv ...string) ([]byte, error) {
			switch {
			case argv[1] == "admin":
				return []byte("* testos " + checksum + ".1\n  testos " + checksum + ".0\n"), nil
			case c.version == "" && argv[1] == "--version":
				return nil, &ostree.CommandError{Argv: argv, Err: context.DeadlineExceeded}
			}
			return []byte("libostree:\n Version: '" + c.version + "'\n"), nil
		}, root)
		plain.Arch = "amd64"
		h := &Host{os: OSOstree, plain: plain, deployments: &rpmostree.Deployments{Plain: plain}}
		a := &attempt{cfg: &machineconfig.Config{Name: "a", Digest: "1"}, update: &update{reboot: true},
			compiled: &layout.Layout{}, booted: ostree.Deployment{ID: "testos/" + checksum + ".1"},
			record: &transaction.Record{Previous: &transaction.Revision{Config: "a", Digest: "1",
				Deployment: "testos/" + checksum + ".0"}}}
		err := h.chooseRoad(t.Context(), a)
		if a.update.returns != c.returns || (err == nil) != c.returns {
			t.Errorf("%s: returns: %t, %v", c.name, a.update.returns, err)
		}
		if err != nil && !strings.Contains(err.Error(), "asking ostree for its version") {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
