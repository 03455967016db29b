// SPDX-License-Identifier: Apache-2.0

// Package packages installs, upgrades, removes and purges the deb and rpm packages of a release: the debs with dpkg on a
// lab host that runs, the rpms with rpm in a tree. The programs in the packages are those of this tree; the packages are
// made by packaging/release.sh.
package packages

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/test/lab/programs"
)

const root = "../../.."

// missing ends a test that needs a program which this machine does not have.
func missing(t *testing.T, program, debian string) {
	t.Helper()
	if _, err := exec.LookPath(program); err == nil {
		return
	}
	if os.Getenv("LAB") == "require" {
		t.Fatalf("%s is missing: apt-get install %s, or make deps", program, debian)
	}
	t.Skipf("%s is missing: apt-get install %s, or make deps", program, debian)
}

func run(ctx context.Context, t *testing.T, dir string, env []string, argv ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, &out)
	}
	return out.String(), nil
}

// made makes the packages of two versions of the same programs, in folders of their own.
func made(ctx context.Context, t *testing.T) (first, second string) {
	t.Helper()
	lab.Sources(t)
	inputs(t)
	work := t.TempDir()
	platform, manuals := filepath.Join(work, "programs/linux_"+runtime.GOARCH), filepath.Join(work, "manuals")
	for _, name := range []string{"machine-config-daemon", "machine-config-daemon-run", "kubectl-refit"} {
		if _, err := programs.Build(ctx, platform, "cmd/"+name); err != nil {
			t.Fatal(err)
		}
		if name == "machine-config-daemon-run" {
			continue
		}
		// The real pages and completions, of the two programs that have a package.
		writer, err := programs.Build(ctx, filepath.Join(work, "manual"), "cmd/"+name, "-tags", "manual")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := run(ctx, t, "", nil, writer, "manual", manuals+"/man"); err != nil {
			t.Fatal(err)
		}
		for shell, file := range map[string]string{"bash": name, "zsh": "_" + name, "fish": name + ".fish"} {
			text, err := run(ctx, t, "", nil, writer, "completion", shell)
			if err == nil {
				err = os.MkdirAll(filepath.Join(manuals, "completions", shell), 0o755)
			}
			if err == nil {
				err = os.WriteFile(filepath.Join(manuals, "completions", shell, file), []byte(text), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	pages, err := filepath.Glob(manuals + "/man/*.1")
	if err != nil || len(pages) < 10 {
		t.Fatalf("found the pages %v, %v", pages, err)
	}
	if _, err := run(ctx, t, "", nil, append([]string{"gzip", "-9n"}, pages...)...); err != nil {
		t.Fatal(err)
	}
	versions := map[string]string{"v1.0.0-rc.1": filepath.Join(work, "first"), "v1.0.0": filepath.Join(work, "second")}
	for version, out := range versions {
		_, err := run(ctx, t, "", []string{"VERSION=" + version, "OUT=" + out, "PLATFORMS=linux/" + runtime.GOARCH,
			"PROGRAMS=" + filepath.Dir(platform), "MANUALS=" + manuals, "GOPROXY=off"}, root+"/packaging/release.sh", "packages")
		if err != nil {
			t.Fatal(err)
		}
		names(t, out)
	}
	return versions["v1.0.0-rc.1"], versions["v1.0.0"]
}

// names fails where a file of a release has a name that GitHub would change, so that SHA256SUMS would not fit it.
func names(t *testing.T, out string) {
	t.Helper()
	files, err := os.ReadDir(out)
	if err != nil || len(files) != 5 {
		t.Fatalf("the release has %v, %v", files, err)
	}
	for _, file := range files {
		if strings.Trim(file.Name(), "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ._-") != "" ||
			strings.ContainsAny(file.Name(), "~+: ") {
			t.Errorf("%s has another name on the page of the release", file.Name())
		}
	}
}

// inputs looks at the files that the packages are made of, so that a changed one expires what go test has cached.
func inputs(t *testing.T) {
	t.Helper()
	for _, pattern := range []string{"release.sh", "packages/*", "systemd/*", "completions/*"} {
		files, err := filepath.Glob(filepath.Join(root, "packaging", pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("packaging/%s: found %v, %v", pattern, files, err)
		}
		for _, file := range files {
			if _, err := os.Stat(file); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// one is the one file of a folder with such a name.
func one(t *testing.T, dir, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s/%s: found %v, %v", dir, pattern, found, err)
	}
	return found[0]
}

func TestPackages(t *testing.T) {
	base := lab.Need(t)
	missing(t, "rpm", "rpm")
	missing(t, "dpkg-deb", "dpkg")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	first, second := made(ctx, t)
	var pending []byte
	t.Run("deb", func(t *testing.T) { pending = debs(ctx, t, base, first, second) })
	if pending == nil {
		t.Fatal("no update was under way")
	}
	if testing.Short() {
		return // the scripts are those of the debs
	}
	t.Run("rpm", func(t *testing.T) { rpms(ctx, t, base, first, second, pending) })
}
