// SPDX-License-Identifier: Apache-2.0

// Package house tests what holds for the tree as a whole: that its folders and their imports are those of the table in
// docs/architecture.md, that every source file names its licence, and that pages lead and point to what is there.
package house

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	root         = "../.."
	architecture = "docs/architecture.md"
	module       = "github.com/noderefit/noderefit"
)

func TestEveryFolderHasARowInTheTable(t *testing.T) {
	for _, wrong := range checkFolders(readTable(t), tree(t)) {
		t.Error(wrong)
	}
}

// The imports are parsed from the files rather than listed by the go command, so that build constraints hide none of
// them and the test's cached result falls with any file that it read.
func TestEveryImportIsGrantedByTheTable(t *testing.T) {
	var sources []source
	for _, file := range tree(t) {
		if !strings.HasSuffix(file, ".go") || inTestdata(file) {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, file), nil, parser.ImportsOnly)
		if err != nil {
			t.Errorf("parsing the imports of %s: %v", file, err)
			continue
		}
		s := source{file: file}
		for _, spec := range parsed.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatalf("%s: import %s: %v", file, spec.Path.Value, err)
			}
			s.imports = append(s.imports, imported)
		}
		sources = append(sources, s)
	}
	if len(sources) == 0 {
		t.Fatal("found no Go file to check")
	}
	for _, wrong := range checkImports(readTable(t), module, sources) {
		t.Error(wrong)
	}
}

func TestClientGoIsReachedOnlyFromFoldersThatMay(t *testing.T) {
	list := exec.CommandContext(t.Context(), "go", "list", "-e", "-json=ImportPath,Deps", "./...")
	list.Dir = root
	var stderr bytes.Buffer
	list.Stderr = &stderr
	out, err := list.Output()
	if err != nil {
		t.Fatalf("listing the packages: %v\n%s", err, &stderr)
	}
	deps := map[string][]string{}
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var pkg struct {
			ImportPath string   `json:"ImportPath"` //nolint:tagliatelle // the go command's own spelling
			Deps       []string `json:"Deps"`       //nolint:tagliatelle // likewise
		}
		if err := decoder.Decode(&pkg); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("reading the list of packages: %v", err)
		}
		deps[pkg.ImportPath] = pkg.Deps
	}
	if len(deps[module+"/machineconfig"]) == 0 {
		t.Fatal("the list of packages has no machineconfig/ with dependencies: nothing was checked")
	}
	for _, wrong := range checkReach(readTable(t), module, deps) {
		t.Error(wrong)
	}
	// The kernel keeps most of this program in the memory of each node. Each of these would double its size.
	inPod := deps[module+"/cmd/machine-config-daemon-run"]
	if !slices.Contains(inPod, "k8s.io/client-go/rest") {
		t.Error("the program of the pod speaks to no API server: its dependencies were not checked")
	}
	for _, large := range []string{"k8s.io/client-go/kubernetes/scheme", "k8s.io/client-go/discovery", "k8s.io/kubectl/pkg/drain",
		"github.com/coreos/butane/config"} {
		if slices.Contains(inPod, large) {
			t.Errorf("cmd/machine-config-daemon-run depends on %s: see docs/own-code.md for how it goes without", large)
		}
	}
	// This program is copied to each node and starts in each of its boots.
	onHost := deps[module+"/cmd/machine-config-daemon"]
	if !slices.Contains(onHost, "github.com/openshift/api/machineconfiguration/v1") {
		t.Error("the program of the host reads no MachineConfigs: its dependencies were not checked")
	}
	if large := "github.com/openshift/api/operator/v1"; slices.Contains(onHost, large) {
		t.Errorf("cmd/machine-config-daemon depends on %s: see docs/own-code.md for how it goes without", large)
	}
	// People have the plugin on macOS and Windows too. These folders build on Linux alone.
	plugin := deps[module+"/cmd/kubectl-refit"]
	if !slices.Contains(plugin, module+"/bundle") {
		t.Error("the plugin makes no bundles: its dependencies were not checked")
	}
	for _, folder := range []string{"files", "ostree", "systemd", "transaction"} {
		if slices.Contains(plugin, module+"/"+folder) {
			t.Errorf("cmd/kubectl-refit depends on %s/, so it builds on Linux alone", folder)
		}
	}
}

func TestEverySourceFileNamesItsLicence(t *testing.T) {
	checked := 0
	for _, file := range tree(t) {
		if inTestdata(file) || !isSource(t, file) {
			continue
		}
		checked++
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		if !licensed(string(text)) {
			t.Errorf("%s: does not start with SPDX-License-Identifier: Apache-2.0 in a comment of its own", file)
		}
	}
	if checked == 0 {
		t.Fatal("found no source file to check")
	}
}

func TestTheTableIsReadAsItIsWritten(t *testing.T) {
	const head = "text\n\n| folder | what | may import |\n|---|---|---|\n"
	for _, test := range []struct {
		name, page string
		want       table
		fails      string
	}{
		{
			name: "every kind of grant",
			page: head + "| `a/` | x | libraries only |\n| `b/` | x | `a`, `client-go` |\n| `c/` | x | `b` |\n" +
				"| `d/` | x | all of the above |\n| `e/` | x | everything |\n| `f/` | x | no Go code |\n\nmore\n",
			want: table{
				"a": {},
				"b": {folders: []string{"a", "client-go"}},
				"c": {folders: []string{"b"}},
				"d": {folders: []string{"a", "b", "a", "client-go", "c", "b"}},
				"e": {everything: true},
				"f": {noGo: true},
			},
		},
		{
			name: "other tables are left alone",
			page: "| | promise |\n|---|---|\n| P1 | x |\n\n" + head + "| `a/` | x | libraries only |\n",
			want: table{"a": {}},
		},
		{name: "no table", page: "| folder | what |\n|---|---|\n| `a/` | x |\n", fails: "no table"},
		{name: "two tables", page: head + "| `a/` | x | everything |\n\n" + head, fails: "second table"},
		{name: "a row twice", page: head + "| `a/` | x | everything |\n| `a/` | x | everything |\n", fails: "two rows"},
		{name: "a row without a folder", page: head + "| a | x | everything |\n", fails: "is no folder"},
		{name: "a grant in free words", page: head + "| `a/` | x | what it likes |\n", fails: "fixed phrases"},
		{name: "an empty grant", page: head + "| `a/` | x | |\n", fails: "fixed phrases"},
		{name: "a grant of what is not there", page: head + "| `a/` | x | `b` |\n", fails: "which has no row"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := parseTable(test.page)
			if test.fails != "" {
				if err == nil || !strings.Contains(err.Error(), test.fails) {
					t.Fatalf("got error %v, want one with %q", err, test.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(row{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestAFolderOutsideTheHouseIsFound(t *testing.T) {
	house := table{"files": {}, "test": {everything: true}}
	for _, test := range []struct {
		file string
		want []string
	}{
		{"README.md", nil},
		{".ci/run", nil},
		{"files/root.go", nil},
		{"files/testdata/host/usr/share/common/x", nil},
		{"disk/disk.go", []string{"disk/: has no row in the table"}},
		{"util/x.go", []string{"util/: has no row in the table", "util/: is called util, which says nothing"}},
		{"test/lab/internal/x.go", []string{"test/lab/internal/: is called internal, which says nothing"}},
		{"files/pkg/x.txt", []string{"files/pkg/: is called pkg, which says nothing"}},
	} {
		t.Run(test.file, func(t *testing.T) {
			if diff := cmp.Diff(test.want, checkFolders(house, []string{test.file})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestAnImportAgainstTheTableIsFound(t *testing.T) {
	house := table{
		"files": {}, "systemd": {folders: []string{"files"}}, "drain": {folders: []string{clientGo}},
		"cmd": {everything: true}, "docs": {noGo: true},
	}
	for _, test := range []struct {
		name, file, imported, want string
	}{
		{"the standard library", "files/a.go", "os", ""},
		{"a library", "files/a.go", "golang.org/x/sys/unix", ""},
		{"what the row grants", "systemd/a.go", "example.org/m/files", ""},
		{"a subfolder of what the row grants", "systemd/a.go", "example.org/m/files/sub", ""},
		{"the folder itself", "files/sub/a.go", "example.org/m/files", ""},
		{"everything", "cmd/x/main.go", "example.org/m/systemd", ""},
		{"client-go where it is granted", "drain/a.go", "k8s.io/client-go/kubernetes", ""},
		{"a module whose path only starts alike", "files/a.go", "example.org/mod/systemd", ""},
		{
			"against the direction", "files/a.go", "example.org/m/systemd",
			"files/a.go: files/ may not import systemd (example.org/m/systemd)",
		},
		{
			"in a test", "files/a_test.go", "example.org/m/systemd",
			"files/a_test.go: files/ may not import systemd (example.org/m/systemd)",
		},
		{
			"client-go where it is not granted", "systemd/a.go", "k8s.io/client-go/rest",
			"systemd/a.go: systemd/ may not import client-go (k8s.io/client-go/rest)",
		},
		{"code among documents", "docs/a.go", "os", "docs/a.go: docs/ may hold no Go code"},
		{"code without a row", "disk/a.go", "os", "disk/a.go: disk/ may hold no Go code"},
		{"code at the root", "a.go", "os", "a.go: Go code at the root of the project"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := checkImports(house, "example.org/m", []source{{test.file, []string{test.imported}}})
			if strings.Join(got, "\n") != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestClientGoThroughAThirdPartyIsFound(t *testing.T) {
	house := table{"kargs": {}, "drain": {folders: []string{clientGo}}, "test": {everything: true}}
	far := []string{"example.org/helper", "k8s.io/client-go/rest"}
	got := checkReach(house, "example.org/m", map[string][]string{
		"example.org/m/kargs":    far,
		"example.org/m/kargs/ok": {"k8s.io/apimachinery/pkg/labels"},
		"example.org/m/drain":    far,
		"example.org/m/test/lab": far,
	})
	want := []string{"example.org/m/kargs: depends on client-go, which kargs/ may not"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestALicenceThatIsNotAtTheTopIsMissing(t *testing.T) {
	for _, test := range []struct {
		name, text string
		want       bool
	}{
		{"first line", "// SPDX-License-Identifier: Apache-2.0\n\npackage a\n", true},
		{"after a build constraint", "//go:build linux\n\n// SPDX-License-Identifier: Apache-2.0\npackage a\n", true},
		{"after the script's interpreter", "#!/bin/sh\n# SPDX-License-Identifier: Apache-2.0\n", true},
		{"empty", "", false},
		{"none", "package a\n", false},
		{"after the package clause", "package a\n// SPDX-License-Identifier: Apache-2.0\n", false},
		{"another licence", "// SPDX-License-Identifier: MIT\npackage a\n", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := licensed(test.text); got != test.want {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

func readTable(t *testing.T) table {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(root, architecture))
	if err != nil {
		t.Fatal(err)
	}
	house, err := parseTable(string(page))
	if err != nil {
		t.Fatalf("%s: %v", architecture, err)
	}
	return house
}

// tree is every regular file of the project by its path below the root, without what git and the build put there.
func tree(t *testing.T) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		below, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		switch {
		case below == ".git" || below == ".cache" || below == "bin":
			if d.IsDir() {
				return fs.SkipDir
			}
		case d.Type().IsRegular():
			files = append(files, filepath.ToSlash(below))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func inTestdata(file string) bool {
	return strings.Contains("/"+file, "/testdata/")
}

// isSource is true for Go files and for scripts, whatever these are called.
func isSource(t *testing.T, file string) bool {
	t.Helper()
	if ext := filepath.Ext(file); ext == ".go" || ext == ".sh" {
		return true
	}
	f, err := os.Open(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var start [2]byte
	n, err := f.Read(start[:])
	if err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	return string(start[:n]) == "#!"
}
