// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
)

const (
	poolText = `apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfigPool
metadata: {name: worker}
spec:
  configuration: {name: NAME}
`
	configText = `apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata: {name: NAME}
spec:
  config:
    ignition: {version: 3.5.0}
    storage:
      files:
        - path: /etc/motd
          mode: MODE
          contents: {source: "data:,NAME"}
`
)

func write(t *testing.T, path, text, name string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	text = strings.ReplaceAll(strings.ReplaceAll(text, "NAME", name), "MODE", "420")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestADirectoryIsReadAgainWhenItChangesAndKeepsWhatWasGood(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/machine-pools/worker.yaml", poolText, "a")
	write(t, dir+"/machine-configs/a.yaml", configText, "a")
	d, err := OpenDirectory(dir, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	serves := func(want string) {
		t.Helper()
		deadline := time.After(time.Minute)
		for tick := time.NewTicker(10 * time.Millisecond); ; {
			p, err := d.Pool(ctx, "worker")
			if err == nil && p.Spec.Configuration.Name == want {
				tick.Stop()
				return
			}
			select {
			case <-tick.C:
			case <-deadline:
				t.Fatalf("still not %s: %v, %v", want, p, err)
			}
		}
	}
	serves("a")
	write(t, dir+"/machine-configs/b.yaml", configText, "b")
	write(t, dir+"/machine-pools/worker.yaml", poolText, "b")
	serves("b")
	write(t, dir+"/machine-pools/worker.yaml", poolText, "nowhere")
	d.reload()
	serves("b")
	if d.said == "" {
		t.Error("the error was not said")
	}
	write(t, dir+"/machine-pools/worker.yaml", poolText, "a")
	serves("a")
}

func TestADirectorysErrorsNameTheFileAndTheField(t *testing.T) {
	for _, test := range []struct{ name, pool, config, want string }{
		{"a field of the wrong type", poolText, strings.Replace(configText, "MODE", `"x"`, 1),
			"machine-configs/c.yaml): spec.config.storage.files[0].mode"},
		{"a field that there is not", poolText + "  pauzed: true\n", configText, "machine-pools/p.yaml"},
		{"a configuration that there is not", strings.Replace(poolText, "NAME", "b", 1), configText,
			"machine-pools/p.yaml): spec.configuration.name"},
		{"no configuration", strings.Replace(poolText, "{name: NAME}", "{}", 1), configText,
			"machine-pools/p.yaml): spec.configuration.name"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir+"/machine-pools/p.yaml", test.pool, "a")
			write(t, dir+"/machine-configs/c.yaml", test.config, "a")
			if _, err := OpenDirectory(dir, logr.Discard()); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want one with %s", err, test.want)
			}
		})
	}
	if _, err := OpenDirectory(t.TempDir(), logr.Discard()); err == nil || !strings.Contains(err.Error(), "machine-pools") {
		t.Errorf("an empty directory: %v", err)
	}
}
