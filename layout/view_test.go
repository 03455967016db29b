// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/machineconfig"
)

// The bytes of a file without contents are read when a configuration gives the file up. Its user moves it away and back
// meanwhile, which is no reason to refuse a configuration.
func TestAFileThatComesAndGoesStopsNoCompile(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give files to users")
	}
	dir := t.TempDir()
	home := filepath.Join(dir, "home/u")
	at := filepath.Join(home, "f")
	users := "root:x:0:0::/root:/bin/sh\nu:x:1500:1500::/home/u:/bin/sh\n"
	root, openErr := files.Open(dir)
	err := errors.Join(openErr, os.MkdirAll(home, 0o755), os.Mkdir(filepath.Join(dir, "etc"), 0o755),
		os.WriteFile(filepath.Join(dir, "etc/passwd"), []byte(users), 0o600),
		os.WriteFile(at, nil, 0o600), os.Chown(home, 1500, 1500), os.Chown(at, 1500, 1500))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()

	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				_ = os.Rename(at, at+".away")
				_ = os.Rename(at+".away", at)
			}
		}
	}()
	defer func() { close(stop); <-stopped }()
	with := machineconfig.File{Path: "/home/u/f", Mode: 0o600, NoContents: true}
	old := &machineconfig.Config{Name: "a", Files: []machineconfig.File{with}}
	failed, compiled := 0, 0
	for deadline := time.Now().Add(2 * time.Second); time.Now().Before(deadline); compiled++ {
		if _, err := Make(View{Host: root}, &machineconfig.Config{Name: "b"}, old, nil); err != nil {
			if failed++; failed == 1 {
				t.Error(err)
			}
		}
	}
	t.Logf("%d of %d failed", failed, compiled)
}
