// SPDX-License-Identifier: Apache-2.0

package machineconfig

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"

	"github.com/noderefit/noderefit/butane"
)

func TestReadConfigTakesEveryKindOfDocument(t *testing.T) {
	dir := t.TempDir()
	write := func(name, data string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const ignition = `{"ignition":{"version":"3.2.0"},"storage":{"files":[{"path":"/a","contents":{"source":"data:,b"}}]}}`
	const object = "apiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfig\nmetadata: {name: x}\nspec: {config: " + ignition + "}\n"
	want := mustParse(t, withConfig("3.2.0", files(`{"path":"/a","contents":{"source":"data:,b"}}`))).Digest
	for path, name := range map[string]string{
		write("a.ign", ignition): "config-" + want[:32],
		write("a.mc", object):    "x",
		write("a.bu", "variant: fcos\nversion: 1.4.0\nstorage: {files: [{path: /a, contents: {inline: b}}]}\n"):            "config-" + want[:32],
		write("b.yaml", "variant: fcos\nversion: 1.4.0\nstorage: {files: [{path: /a, contents: {inline: b}}]}\n"):          "config-" + want[:32],
		write("c.yaml", "apiVersion: v1\nkind: List\nitems: []\n--- # the one\n"+object+"---\nkind: Secret\nmetadata: {}"): "x",
	} {
		c, _, err := ReadConfig(butane.Translate, path)
		if err != nil {
			t.Error(err)
			continue
		}
		if c.Digest != want || c.Name != name {
			t.Errorf("%s: name %s, digest %s, should be %s, %s", path, c.Name, c.Digest, name, want)
		}
		stored, err := c.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		var mc mcfgv1.MachineConfig
		if err := json.Unmarshal(stored, &mc); err != nil {
			t.Fatal(err)
		}
		if again := mustParse(t, &mc); again.Digest != want || again.Name != name {
			t.Errorf("%s: stored as %s, digest %s", path, again.Name, again.Digest)
		}
	}
	for _, path := range []string{write("none.yaml", "# nothing\n"), write("two.yaml", object+"---\n"+strings.Replace(object, "name: x", "name: z", 1))} {
		if _, _, err := ReadConfig(butane.Translate, path); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "exactly one") {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, _, err := ReadConfig(butane.Translate, filepath.Join(dir, "gone")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
}

func TestReadTakesAMountedConfigMapOnce(t *testing.T) {
	dir := t.TempDir()
	version := filepath.Join(dir, "..2026")
	if err := os.Mkdir(version, 0o700); err != nil {
		t.Fatal(err)
	}
	data := "apiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfig\nmetadata: {name: x}\n"
	if err := os.WriteFile(filepath.Join(version, "a.yaml"), []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
	for link, target := range map[string]string{"..data": "..2026", "a.yaml": "..data/a.yaml"} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	docs, warnings, err := Read(butane.Translate, dir)
	if err != nil || len(docs.Configs) != 1 || len(warnings) != 0 {
		t.Errorf("%d documents, warnings %q, %v", len(docs.Configs), warnings, err)
	}
}

func TestReadPassesNothingOverInSilence(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a.txt", ".b.yaml", "c.yaml"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("kind: Secret\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, warnings, err := Read(butane.Translate, dir)
	if err != nil || len(warnings) != 3 {
		t.Fatalf("warnings %q, %v", warnings, err)
	}
	for i, name := range []string{".b.yaml", "a.txt", "c.yaml"} {
		if !strings.Contains(warnings[i], name) {
			t.Errorf("no warning about %s: %q", name, warnings)
		}
	}
}

func TestBareDocumentsBelongToEveryPool(t *testing.T) {
	r := &reader{translate: butane.Translate}
	if err := r.data("node.ign", []byte(`{"ignition":{"version":"3.2.0"}} {"ignition":{"version":"3.2.0"}}`)); err != nil {
		t.Fatal(err)
	}
	selected, err := Select("any", &r.docs)
	if err != nil || len(selected) != 2 || selected[0].Object.Name != "node" || selected[1].Object.Name != "node-2" {
		t.Errorf("%v, %v", selected, err)
	}
}
