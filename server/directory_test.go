// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"

	"github.com/noderefit/noderefit/butane"
	"github.com/noderefit/noderefit/machineconfig"
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

// plain renders MachineConfigs alone.
type plain struct{}

func (plain) Read(paths ...string) (*machineconfig.Documents, []string, error) {
	return machineconfig.Read(butane.Translate, paths...)
}

func (plain) Render(
	docs *machineconfig.Documents, pools []string,
) (map[string]*mcfgv1.MachineConfig, map[string]error, []string) {
	rendered, wrong, warnings := map[string]*mcfgv1.MachineConfig{}, map[string]error{}, []string(nil)
	for _, pool := range pools {
		mc, said, err := machineconfig.Render(pool, docs, nil)
		rendered[pool], wrong[pool], warnings = mc, err, append(warnings, said...)
	}
	return rendered, wrong, warnings
}

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
	d, err := OpenDirectory(dir, plain{}, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	stopped := sync.OnceFunc(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stopped)
	serves := func(want string) {
		t.Helper()
		deadline := time.After(time.Minute)
		for tick := time.NewTicker(10 * time.Millisecond); ; {
			p, err := d.Pool(t.Context(), "worker")
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
	write(t, dir+"/machine-pools/worker.yaml", poolText, "a")
	serves("a")

	stopped() // from here on the files are read when the test says so
	write(t, dir+"/machine-pools/worker.yaml", poolText, "nowhere")
	d.reload()
	serves("a")
	if d.said == "" {
		t.Error("the error was not said")
	}
	write(t, dir+"/machine-pools/worker.yaml", poolText, "b")
	d.reload()
	serves("b")
	if d.said != "" {
		t.Errorf("the error is still said: %s", d.said)
	}
}

func TestAnErrorOfAPoolIsSaidByFileAndFieldAndTheOtherPoolsAreServed(t *testing.T) {
	for _, test := range []struct {
		name, pool, config, want string
		code                     int
		told                     bool // the client is told what the log says
	}{
		{"a field of the wrong type", poolText, strings.Replace(configText, "MODE", `"x"`, 1),
			"machine-configs/c.yaml): spec.config.storage.files[0].mode", 503, false},
		{"a file of garbage", poolText, "}{", "machine-configs/c.yaml", 503, false},
		{"a field that there is not", poolText + "  pauzed: true\n", configText, "machine-pools/p.yaml", 503, false},
		{"a configuration that there is not", strings.Replace(poolText, "NAME", "z", 1), configText,
			"machine-pools/p.yaml): spec.configuration.name", 503, true},
		{"no configuration, and no MachineConfig of its role", strings.Replace(poolText, "{name: NAME}", "{}", 1), configText,
			"MachineConfigPool/worker is not rendered: selecting for pool worker: no document matches", 503, false},
		{"two of the same name", poolText + "---\n" + poolText, configText, "machine-pools/p.yaml", 503, false},
		{"two configurations of the same name", poolText, configText + "---\n" + configText, "machine-configs/c.yaml", 503, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir+"/machine-pools/p.yaml", test.pool, "a")
			write(t, dir+"/machine-configs/c.yaml", test.config, "a")
			write(t, dir+"/machine-pools/infra.yaml", strings.Replace(poolText, "worker", "infra", 1), "b")
			write(t, dir+"/machine-configs/b.yaml", configText, "b")
			var log strings.Builder
			d, err := OpenDirectory(dir, plain{}, funcr.New(func(_, args string) { log.WriteString(args + "\n") }, funcr.Options{}))
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(log.String(), test.want) || strings.Contains(log.String(), `"notServed"=["infra"`) {
				t.Errorf("the log has %s, want %s", &log, test.want)
			}
			s := New(Options{Source: d, Gate: Gate{Open: true}, Log: logr.Discard()})
			if w := get(t, s, "GET", "/config/infra", "Accept", ignition35); w.Code != 200 {
				t.Errorf("the other pool: %d %s", w.Code, w.Body)
			}
			w := get(t, s, "GET", "/config/worker", "Accept", ignition35)
			if w.Code != test.code || strings.Contains(w.Body.String(), test.want) != test.told {
				t.Errorf("the pool with the error: %d %s", w.Code, w.Body)
			}
			// Put right, it is served.
			write(t, dir+"/machine-pools/p.yaml", poolText, "a")
			write(t, dir+"/machine-configs/c.yaml", configText, "a")
			d.reload()
			if w := get(t, s, "GET", "/config/worker", "Accept", ignition35); w.Code != 200 {
				t.Errorf("put right: %d %s", w.Code, w.Body)
			}
			if w := get(t, s, "GET", "/config/nobody", "Accept", ignition35); w.Code != 404 {
				t.Errorf("a pool that there is not: %d %s", w.Code, w.Body)
			}
		})
	}
}

func TestADirectoryWithoutDocumentsIsNotServed(t *testing.T) {
	empty := t.TempDir()
	for dir, want := range map[string]string{empty: empty + " has no document", empty + "/x": "no such file"} {
		if _, err := OpenDirectory(dir, plain{}, logr.Discard()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", dir, err)
		}
	}
}

// A pool that names no configuration is rendered from all documents, wherever they are. An error of theirs holds up
// neither a pool that names its configuration nor what was good before.
func TestAPoolIsRenderedFromItsDocumentsAndStaysAsItWasWhileOneIsWrong(t *testing.T) {
	dir := t.TempDir()
	const role = "machineconfiguration.openshift.io/role: "
	source := strings.Replace(configText, "{name: NAME}", "{name: NAME, labels: {"+role+"worker}}", 1)
	pool := strings.Replace(poolText, "configuration: {name: NAME}", "machineConfigSelector: {matchLabels: {"+role+"worker}}", 1)
	write(t, dir+"/pools/worker.yaml", pool, "")
	write(t, dir+"/50-a.yaml", source, "a")
	write(t, dir+"/.git/x.yaml", "}{", "")
	write(t, dir+"/machine-pools/infra.yaml", strings.Replace(poolText, "worker", "infra", 1), "b")
	write(t, dir+"/machine-configs/b.yaml", configText, "b")
	if err := os.MkdirAll(dir+"/more", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("more", dir+"/linked"); err != nil { // as in a mounted ConfigMap
		t.Fatal(err)
	}
	d, err := OpenDirectory(dir, plain{}, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	serves := func(when, name string, code int, contents string) string {
		t.Helper()
		s := New(Options{Source: d, Gate: Gate{Open: true}, Log: logr.Discard()})
		w := get(t, s, "GET", "/config/"+name, "Accept", ignition35)
		if w.Code != code || !strings.Contains(w.Body.String(), contents) {
			t.Errorf("%s: %s: %d %s", when, name, w.Code, w.Body)
		}
		return w.Body.String()
	}
	first := serves("rendered", "worker", 200, `"source":"data:,a"`)
	serves("as it is named", "infra", 200, `"source":"data:,b"`)
	write(t, dir+"/more/60-c.yaml", source, "c")
	d.reload()
	if changed := serves("with one more, that wins", "worker", 200, `"source":"data:,c"`); changed == first {
		t.Error("nothing changed")
	}
	for what, text := range map[string]string{
		"garbage": "}{", "a name that is there already": strings.ReplaceAll(source, "NAME", "a"),
		"an unknown field": strings.Replace(source, "spec:", "spec:\n  pauzed: 1", 1),
	} {
		write(t, dir+"/70-d.yaml", text, "d")
		d.reload()
		serves(what, "worker", 200, `"source":"data:,c"`)
		serves(what, "infra", 200, `"source":"data:,b"`)
		if !strings.Contains(d.said, "70-d.yaml") || !strings.Contains(d.said, "MachineConfigPool/worker is not rendered") {
			t.Errorf("%s: the log has %s", what, d.said)
		}
	}
	write(t, dir+"/70-d.yaml", source, "d")
	d.reload()
	if serves("put right", "worker", 200, `"source":"data:,d"`); d.said != "" {
		t.Errorf("the error is still said: %s", d.said)
	}
}

// A pool stays as it was, whole: also its configuration, of which there may be nothing left.
func TestWhatWasGoodIsServedWhileItsFilesHaveErrorsAndAPoolThatIsRemovedIsGone(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/machine-pools/worker.yaml", poolText, "a")
	write(t, dir+"/machine-pools/infra.yaml", strings.Replace(poolText, "worker", "infra", 1), "a")
	write(t, dir+"/machine-configs/a.yaml", configText, "a")
	d, err := OpenDirectory(dir, plain{}, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	s := New(Options{Source: d, Gate: Gate{Open: true}, Log: logr.Discard()})
	answers := func(when string, want map[string]int) {
		t.Helper()
		for name, code := range want {
			if w := get(t, s, "GET", "/config/"+name, "Accept", ignition35); w.Code != code {
				t.Errorf("%s: %s: %d %s, want %d", when, name, w.Code, w.Body, code)
			}
		}
	}
	write(t, dir+"/machine-configs/a.yaml", "}{", "")
	d.reload()
	answers("without its configuration", map[string]int{"worker": 200, "infra": 200, "other": 404})
	write(t, dir+"/machine-pools/worker.yaml", "}{", "")
	d.reload()
	answers("without its file", map[string]int{"worker": 200, "infra": 200, "other": 503})
	write(t, dir+"/machine-configs/a.yaml", configText, "a")
	if err := os.Remove(dir + "/machine-pools/worker.yaml"); err != nil {
		t.Fatal(err)
	}
	d.reload()
	answers("removed", map[string]int{"worker": 404, "infra": 200, "other": 404})
	if err := os.Rename(dir+"/machine-pools", t.TempDir()+"/away"); err != nil {
		t.Fatal(err)
	}
	d.reload()
	answers("without the folder", map[string]int{"infra": 200, "other": 503})
}

// A pool that is served as before has what its name stood for then, whatever another pool has of that name now.
func TestEachPoolHasItsOwnOfAName(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/machine-pools/p.yaml", poolText, "a")
	write(t, dir+"/machine-pools/infra.yaml", strings.Replace(poolText, "worker", "infra", 1), "a")
	write(t, dir+"/machine-configs/a.yaml", configText, "a")
	d, err := OpenDirectory(dir, plain{}, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir+"/machine-pools/p.yaml", poolText+"  pauzed: true\n", "a")
	write(t, dir+"/machine-configs/a.yaml", strings.Replace(configText, "data:,NAME", "data:,changed", 1), "a")
	d.reload()
	for name, want := range map[string]bool{"worker": false, "infra": true} {
		for range 50 {
			p, err := d.Pool(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			mc, _, err := d.Config(t.Context(), p, "a")
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Contains(string(mc.Spec.Config.Raw), "changed"); got != want {
				t.Fatalf("pool %s has the new contents: %t", name, got)
			}
		}
	}
}

// A link to itself, which can't be watched.
func TestFolderThatCanNotBeWatchedEndsNothing(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/machine-pools/p.yaml", poolText, "a")
	write(t, dir+"/machine-configs/a.yaml", configText, "a")
	var said []string
	d, err := OpenDirectory(dir, plain{}, funcr.New(func(_, text string) { said = append(said, text) }, funcr.Options{}))
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{os.RemoveAll(dir + "/machine-configs"), os.Symlink("machine-configs", dir+"/machine-configs")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Second)
	defer stop()
	if err := d.Run(ctx); err != nil || ctx.Err() == nil {
		t.Errorf("it ended: %v", err)
	}
	if text := strings.Join(said, "\n"); strings.Count(text, "not all files are watched") != 1 {
		t.Errorf("it says %s", text)
	}
	if p, err := d.Pool(t.Context(), "worker"); err != nil || p == nil {
		t.Errorf("what was served is not: %v", err)
	}
}
