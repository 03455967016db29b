// SPDX-License-Identifier: Apache-2.0

package imagemirror

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	configv1 "github.com/openshift/api/config/v1"

	"github.com/noderefit/noderefit/registries"
)

// Podman reads registries.conf by the library that CRI-O reads it by. Its attempts reach nobody: each mirror is a port of
// this machine where nothing listens.
func TestPodmanPullsFromWhereItIsTold(t *testing.T) {
	podman, err := exec.LookPath("podman")
	if err != nil {
		if os.Getenv("LAB") == "require" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	conf, err := registries.Parse([]byte("[[registry]]\nlocation = 'base.invalid'\nmirror-by-digest-only = true\n" +
		"[[registry.mirror]]\nlocation = '127.0.0.1:1/base'\n"))
	if err != nil {
		t.Fatal(err)
	}
	err = conf.Merge(sources(counting(arrange([]*origin{
		idms("d", "source.invalid/x", configv1.NeverContactSource, "127.0.0.1:1/d", "127.0.0.1:1/both"),
		itms("t", "source.invalid/x", "", "127.0.0.1:1/both", "127.0.0.1:1/t"),
		itms("w", "*.wild.invalid", configv1.NeverContactSource, "127.0.0.1:1/w"),
		icsp("b", "base.invalid", "127.0.0.1:1/more"),
		icsp("c", "base.invalid/part", "127.0.0.1:1/c"),
	}), nil)))
	if err != nil {
		t.Fatal(err)
	}
	text, err := conf.Text()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "mirrors-") //nolint:usetesting // podman takes no long names
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	file := filepath.Join(dir, "registries.conf")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	const digest = "@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	for image, want := range map[string][]string{
		"source.invalid/x" + digest: {"127.0.0.1:1/d" + digest, "127.0.0.1:1/both" + digest, "source.invalid/x" + digest},
		"source.invalid/x:1":        {"127.0.0.1:1/both:1", "127.0.0.1:1/t:1", "source.invalid/x:1"},
		"source.invalid/y:1":        {"source.invalid/y:1"},
		"a.wild.invalid/y:1":        {"127.0.0.1:1/w/y:1", "a.wild.invalid/y:1"},
		"base.invalid/z" + digest: {"127.0.0.1:1/base/z" + digest, "127.0.0.1:1/more/z" + digest,
			"base.invalid/z" + digest},
		"base.invalid/z:1": {"base.invalid/z:1"},
		"base.invalid/part/z" + digest: {"127.0.0.1:1/base/part/z" + digest, "127.0.0.1:1/c/z" + digest,
			"base.invalid/part/z" + digest},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		cmd := exec.CommandContext(ctx, podman, "--root", filepath.Join(dir, "root"), "--runroot", filepath.Join(dir, "run"),
			"--storage-driver=vfs", "--log-level=debug", "pull", image)
		cmd.Env = append(os.Environ(), "CONTAINERS_REGISTRIES_CONF="+file)
		out, err := cmd.CombinedOutput()
		cancel()
		if err == nil {
			t.Fatalf("%s was pulled", image)
		}
		var tried []string
		for line := range strings.Lines(string(out)) {
			if _, at, found := strings.Cut(line, `Trying to access \"`); found {
				at, _, _ = strings.Cut(at, `\"`)
				tried = append(tried, at)
			}
		}
		if !slices.Equal(tried, want) {
			t.Errorf("%s: tried %v, want %v\n%s", image, tried, want, out)
		}
		last := want[len(want)-1]
		blocked := strings.Contains(string(out), last+`\" failed: registry `) && strings.Contains(string(out), " is blocked in ")
		if never := !strings.Contains(image, "base") && !strings.Contains(image, "/y:1") || strings.Contains(image, "wild"); blocked != never {
			t.Errorf("%s: blocked is %v\n%s", image, blocked, out)
		}
	}
}
