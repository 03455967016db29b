// SPDX-License-Identifier: Apache-2.0

package packaging

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/server"
	"github.com/noderefit/noderefit/test/lab"
)

// one is a Source with one pool.
type one struct{}

func (one) Pool(context.Context, string) (*mcfgv1.MachineConfigPool, error) {
	p := &mcfgv1.MachineConfigPool{}
	p.Spec.Configuration.Name = "rendered"
	return p, nil
}

func (one) Config(context.Context, *mcfgv1.MachineConfigPool, string) (*mcfgv1.MachineConfig, string, error) {
	mc := &mcfgv1.MachineConfig{}
	mc.Name, mc.Spec.Config.Raw = "rendered", []byte(`{"ignition":{"version":"3.5.0"}}`)
	return mc, "1", nil
}

func (one) Version(context.Context, *mcfgv1.MachineConfigPool, string) (string, error) {
	return "1", nil
}

// pullCommand is what the unit that the server gives out runs, as systemd takes it apart, with the variables it sets.
func pullCommand(t *testing.T, image string) (script string, env map[string]string) {
	t.Helper()
	w := httptest.NewRecorder()
	server.New(server.Options{Source: one{}, DaemonImage: image, Log: logr.Discard()}).ServeHTTP(w,
		httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/config/worker", http.NoBody))
	var served struct {
		Systemd struct {
			Units []struct{ Name, Contents string }
		}
	}
	if err := json.Unmarshal(w.Body.Bytes(), &served); err != nil {
		t.Fatalf("%d %s: %v", w.Code, w.Body, err)
	}
	for _, u := range served.Systemd.Units {
		if u.Name != "machine-config-daemon-pull.service" {
			continue
		}
		env = map[string]string{}
		for _, m := range regexp.MustCompile(`(?m)^Environment=(\w+)=(.*)$`).FindAllStringSubmatch(u.Contents, -1) {
			env[m[1]] = m[2]
		}
		m := regexp.MustCompile(`(?s)ExecStart=/bin/sh -euc '(.*?)'\n`).FindStringSubmatch(u.Contents)
		if m == nil {
			break
		}
		return strings.NewReplacer("\\\n", " ", "$$", "$", "%%", "%").Replace(m[1]), env
	}
	t.Fatalf("the server gives out no such unit: %s", w.Body)
	return "", nil
}

// A machine has podman and no program of ours. The image has the program and no shell.
func TestPodmanBringsTheProgramOfTheImageToAMachine(t *testing.T) {
	if _, err := exec.LookPath("podman"); err != nil || os.Geteuid() != 0 {
		if os.Getenv("LAB") == "require" {
			t.Fatal("podman and root are needed")
		}
		t.Skip("podman and root are needed")
	}
	lab.Sources(t)
	inputs(t)
	// Podman names an image of a layout after the path to it, and names have no capitals, which those of tests do.
	layouts, err := os.MkdirTemp("", "noderefit-image-") //nolint:usetesting // podman would not take the name
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(layouts) })
	if err := os.CopyFS(layouts, os.DirFS(buildImages(t, api.Daemon))); err != nil {
		t.Fatal(err)
	}
	image := "oci:" + filepath.Join(layouts, api.Daemon)
	script, env := pullCommand(t, image)
	if env["IMAGE"] != image || env["TO"] != api.HostProgram {
		t.Fatalf("the unit sets %v", env)
	}
	dir := t.TempDir()
	to, conf, done := dir+api.HostProgram, dir+"/storage.conf", dir+env["DONE"]
	text := fmt.Sprintf("[storage]\ndriver = \"vfs\"\ngraphroot = %q\nrunroot = %q\n", dir+"/graph", dir+"/run")
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-euc", script)
	cmd.Env = append(os.Environ(), "CONTAINERS_STORAGE_CONF="+conf, "IMAGE="+image, "TO="+to, "DONE="+done)
	if _, err := run(cmd); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(done); err != nil || env["DONE"] == "" {
		t.Errorf("nothing says that it was brought: %v", err)
	}
	list := exec.CommandContext(t.Context(), "podman", "ps", "--all", "--quiet")
	list.Env = append(os.Environ(), "CONTAINERS_STORAGE_CONF="+conf)
	if left, err := run(list); err != nil || strings.TrimSpace(left) != "" {
		t.Errorf("a container is left: %s, %v", left, err)
	}
	if info, err := os.Stat(to); err != nil || info.Mode().Perm() != 0o755 {
		t.Fatalf("%v, %v", info, err)
	}
	if said, err := run(exec.CommandContext(t.Context(), to, "--version")); err != nil ||
		!strings.Contains(said, "v0.0.0-test") {
		t.Errorf("%s, %v", said, err)
	}
	if info, err := os.Stat(filepath.Dir(filepath.Dir(to))); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the state directory is %v, %v", info, err)
	}
}
