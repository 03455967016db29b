// SPDX-License-Identifier: Apache-2.0

package packaging

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// released makes parts of a release in a folder of its own.
func released(t *testing.T, version string, parts ...string) string {
	t.Helper()
	out := t.TempDir()
	cmd := exec.CommandContext(t.Context(), root+"/packaging/release.sh", parts...)
	// Nothing is fetched: what the tools need is there since they were built.
	cmd.Env = append(os.Environ(), "VERSION="+version, "OUT="+out, "GOPROXY=off")
	if _, err := run(cmd); err != nil {
		t.Fatal(err)
	}
	return out
}

func read(t *testing.T, path ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestAReleaseHasItsVersionEverywhere(t *testing.T) {
	inputs(t)
	const version = "v1.2.3-rc.1"
	out := released(t, version, "chart", "manifests")
	if again := released(t, version, "chart", "manifests"); read(t, out, "SHA256SUMS") != read(t, again, "SHA256SUMS") {
		t.Errorf("two runs differ:\n%s", cmp.Diff(read(t, out, "SHA256SUMS"), read(t, again, "SHA256SUMS")))
	}
	about := helm(t, "show", "chart", out+"/noderefit-1.2.3-rc.1.tgz")
	for _, want := range []string{"\nversion: 1.2.3-rc.1\n", "\nappVersion: " + version + "\n"} {
		if !strings.Contains("\n"+about, want) {
			t.Errorf("the chart says %q, want %q", about, want)
		}
	}
	if !strings.Contains(read(t, out, "noderefit-1.2.3-rc.1_oci.tar"), "application/vnd.cncf.helm.chart.content.v1.tar+gzip") {
		t.Error("the artefact of the chart has no chart")
	}
	for _, file := range []string{"crds.yaml", "install.yaml"} {
		for name, object := range objects(t, read(t, out, file)) {
			metadata := object["metadata"].(map[string]any)
			labels, _ := metadata["labels"].(map[string]any)
			// The pools are people's, from the moment that they are there.
			if labels["app.kubernetes.io/version"] != version && !strings.HasPrefix(name, "MachineConfigPool/") {
				t.Errorf("%s: %s has labels %v", file, name, labels)
			}
		}
	}
	// Installed without a word of where the images are, it takes those of the release.
	if made := read(t, out, "install.yaml"); strings.Count(made, "image: ghcr.io/noderefit/") != 2 ||
		strings.Count(made, ":"+version+"\n") != 2 {
		t.Errorf("install.yaml has other images:\n%s", made)
	}
}

func TestAVersionOfAReleaseIsSemantic(t *testing.T) {
	inputs(t)
	for _, version := range []string{"", "1.2.3", "v1.2", "v01.2.3", "v1.2.3+x", "v1.2.3-", "latest"} {
		cmd := exec.CommandContext(t.Context(), root+"/packaging/release.sh", "krew")
		cmd.Env = append(os.Environ(), "VERSION="+version, "OUT="+t.TempDir())
		if text, err := run(cmd); err == nil || !strings.Contains(err.Error(), "semantic version") {
			t.Errorf("%q: %v\n%s", version, err, text)
		}
	}
}

// What was there before would be published and signed with the rest.
func TestAReleaseIsBuiltIntoAnEmptyFolder(t *testing.T) {
	inputs(t)
	out := t.TempDir()
	if err := os.WriteFile(out+"/other", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), root+"/packaging/release.sh", "krew")
	cmd.Env = append(os.Environ(), "VERSION=v1.2.3", "OUT="+out)
	if text, err := run(cmd); err == nil || !strings.Contains(err.Error(), "OUT: "+out+" has files") {
		t.Errorf("%v: %s", err, text)
	}
}

// What a program says without a release: a version that comes after the last one and before the next.
func TestTheSourcesHaveASemanticVersion(t *testing.T) {
	inputs(t)
	dir := t.TempDir()
	if err := os.MkdirAll(dir+"/packaging", 0o755); err != nil {
		t.Fatal(err)
	}
	script := dir + "/packaging/version.sh"
	if err := os.WriteFile(script, []byte(read(t, root, "packaging/version.sh")), 0o600); err != nil {
		t.Fatal(err)
	}
	says := func() string {
		t.Helper()
		text, err := run(exec.CommandContext(t.Context(), "bash", script))
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(text)
	}
	git := func(args ...string) string {
		t.Helper()
		text, err := run(exec.CommandContext(t.Context(), "git", append([]string{"-C", dir, "-c", "user.name=x", "-c",
			"user.email=x@example.org", "-c", "init.defaultBranch=main"}, args...)...))
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(text)
	}
	if got := says(); got != "v0.0.0-dev" {
		t.Errorf("without a history: %s", got)
	}
	git("init", "--quiet")
	git("add", ".")
	git("commit", "--quiet", "--message=one")
	if got, want := says(), "v0.0.0-dev.g"+git("rev-parse", "--short", "HEAD"); got != want {
		t.Errorf("without a tag: %s, want %s", got, want)
	}
	for _, test := range []struct{ tag, at, after string }{
		{"v0.1.0-rc.1", "v0.1.0-rc.1", "v0.1.0-rc.1.dev.1.g"}, {"v0.1.0", "v0.1.0", "v0.1.1-dev.1.g"},
	} {
		git("tag", test.tag)
		if got := says(); got != test.at {
			t.Errorf("at %s: %s", test.tag, got)
		}
		git("commit", "--quiet", "--allow-empty", "--message=more")
		if got, want := says(), test.after+git("rev-parse", "--short", "HEAD"); got != want {
			t.Errorf("after %s: %s, want %s", test.tag, got, want)
		}
	}
	if err := os.WriteFile(script, []byte(read(t, root, "packaging/version.sh")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := says(); !strings.HasSuffix(got, ".dirty") {
		t.Errorf("changed: %s", got)
	}
}
