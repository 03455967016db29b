// SPDX-License-Identifier: Apache-2.0

package packaging

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/test/lab/programs"
)

// whole is a release for this machine's platform alone, of programs that were built for other tests.
func whole(t *testing.T, version string) (out, built string) {
	t.Helper()
	lab.Sources(t)
	inputs(t)
	work := t.TempDir()
	platform := "linux_" + runtime.GOARCH
	if err := programs.All(t.Context(), filepath.Join(work, platform)); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"man", "completions/bash"} {
		if err := os.MkdirAll(filepath.Join(work, "manuals", dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	out = t.TempDir()
	cmd := exec.CommandContext(t.Context(), root+"/packaging/release.sh", "programs", "chart", "images", "krew")
	cmd.Env = append(os.Environ(), "VERSION="+version, "OUT="+out, "PROGRAMS="+work, "MANUALS="+work+"/manuals",
		"PLATFORMS=linux/"+runtime.GOARCH, "PLUGIN_PLATFORMS=linux/"+runtime.GOARCH, "REVISION=0123", "GOPROXY=off")
	if _, err := run(cmd); err != nil {
		t.Fatal(err)
	}
	return out, filepath.Join(work, platform)
}

func TestAReleaseIsPublishedAndSigned(t *testing.T) {
	const version = "v0.1.0"
	out, built := whole(t, version)
	platform := "linux_" + runtime.GOARCH
	t.Run("the plugin is what krew downloads", func(t *testing.T) {
		manifest := read(t, out, "refit.yaml")
		archive := "kubectl-refit_" + version + "_" + platform + ".tar.gz"
		sum := sha256.Sum256([]byte(read(t, out, archive)))
		for _, want := range []string{"version: " + version + "\n", "sha256: " + hex.EncodeToString(sum[:]),
			"uri: https://github.com/noderefit/noderefit/releases/download/v0.1.0/" + archive} {
			if !strings.Contains(manifest, want) {
				t.Errorf("the manifest for krew has no %q:\n%s", want, manifest)
			}
		}
		listed, err := run(exec.CommandContext(t.Context(), "tar", "--list", "--file", filepath.Join(out, archive)))
		if err != nil || listed != "LICENSE\nkubectl-refit\nkubectl_complete-refit\n" {
			t.Errorf("the archive has %q, %v", listed, err)
		}
	})
	t.Run("the script that comments is that of the action", func(t *testing.T) {
		if read(t, out, "plan-comment.sh") != read(t, actionDir, "plan-comment.sh") ||
			!strings.Contains(read(t, out, "SHA256SUMS"), "  plan-comment.sh\n") {
			t.Error("it is another, or has no sum")
		}
	})
	t.Run("the SBOM has the programs and what they were linked from", func(t *testing.T) {
		isDescribed(t, filepath.Join(out, "noderefit_"+version+"_"+platform+".spdx.json"), built)
	})
	at := serve(t)
	env := append(os.Environ(), "VERSION="+version, "REGISTRY="+at+"/noderefit", "GOPROXY=off")
	publish := exec.CommandContext(t.Context(), root+"/packaging/publish.sh", out)
	publish.Env = env
	said, err := run(publish)
	if err != nil {
		t.Fatal(err)
	}
	references := strings.Fields(said)
	if len(references) != 4 {
		t.Fatalf("published are %q", said)
	}
	t.Run("what is published is what was built", func(t *testing.T) {
		dir := t.TempDir()
		helm(t, "pull", "oci://"+at+"/noderefit/charts/noderefit", "--version", "0.1.0", "--plain-http", "--destination", dir)
		if read(t, dir, "noderefit-0.1.0.tgz") != read(t, out, "noderefit-0.1.0.tgz") {
			t.Error("the chart is another one")
		}
		for _, reference := range references[:3] {
			name, _, _ := strings.Cut(reference, "@")
			config, err := tool(t.Context(), "crane", "config", name+":"+version)
			if err != nil || !strings.Contains(config, `"org.opencontainers.image.version":"`+version+`"`) {
				t.Errorf("%s: %v: %s", name, err, config)
			}
		}
	})
	t.Run("a tag that is there is not moved", func(t *testing.T) {
		again := exec.CommandContext(t.Context(), root+"/packaging/publish.sh", out)
		again.Env = env
		if repeated, err := run(again); err != nil || repeated != said {
			t.Errorf("the same once more: %v: %s", err, repeated)
		}
		tag := at + "/noderefit/charts/noderefit:0.1.0"
		if _, err := tool(t.Context(), "crane", "tag", references[0], "0.1.0"); err != nil {
			t.Fatal(err)
		}
		if _, err := tool(t.Context(), "crane", "copy", references[0], tag); err != nil {
			t.Fatal(err)
		}
		other := exec.CommandContext(t.Context(), root+"/packaging/publish.sh", out)
		other.Env = env
		if _, err := run(other); err == nil || !strings.Contains(err.Error(), tag+" is there already, as sha256:") {
			t.Errorf("with another digest there: %v", err)
		}
	})
	t.Run("nothing is published to a registry that nobody names", func(t *testing.T) {
		cmd := exec.CommandContext(t.Context(), root+"/packaging/publish.sh", out)
		cmd.Env = append(slices.Clone(env), "REGISTRY=")
		if _, err := run(cmd); err == nil || !strings.Contains(err.Error(), "REGISTRY: has to be where the images go") {
			t.Error(err)
		}
	})
	t.Run("each digest is signed", func(t *testing.T) { isSigned(t, out, env, references) })
}

// isDescribed fails where an SPDX document lacks a program of a folder, with its sum, or a module of it.
func isDescribed(t *testing.T, document, programs string) {
	t.Helper()
	var found struct {
		SPDXVersion string `json:"spdxVersion"`
		Packages    []struct {
			Name, VersionInfo string
			Checksums         []struct{ ChecksumValue string }
		}
	}
	if err := json.Unmarshal([]byte(read(t, document)), &found); err != nil || found.SPDXVersion != "SPDX-2.3" {
		t.Fatalf("%s is of version %q, %v", document, found.SPDXVersion, err)
	}
	has := map[string]string{}
	for _, p := range found.Packages {
		has[p.Name] = p.VersionInfo
		if len(p.Checksums) == 1 {
			has[p.Name] = p.Checksums[0].ChecksumValue
		}
	}
	files, err := os.ReadDir(programs)
	if err != nil || len(files) < 5 {
		t.Fatalf("found %v, %v", files, err)
	}
	for _, file := range files {
		path := filepath.Join(programs, file.Name())
		sum := sha256.Sum256([]byte(read(t, path)))
		if has[file.Name()] != hex.EncodeToString(sum[:]) {
			t.Errorf("%s has the sum %s in the document", file.Name(), has[file.Name()])
		}
		info, err := buildinfo.ReadFile(path)
		if err != nil || len(info.Deps) == 0 {
			t.Fatalf("%s was linked from %v, %v", path, info, err)
		}
		for _, dep := range info.Deps {
			if dep.Replace == nil && has[dep.Path] != dep.Version {
				t.Errorf("%s of %s is %q in the document, want %s", dep.Path, file.Name(), has[dep.Path], dep.Version)
			}
		}
	}
}

// isSigned fails where packaging/sign.sh does not have all that is published signed. The stand-in for cosign notes what
// it is told.
func isSigned(t *testing.T, dist string, env, references []string) {
	t.Helper()
	cosign, told := filepath.Join(t.TempDir(), "cosign"), filepath.Join(t.TempDir(), "told")
	if err := os.WriteFile(cosign, []byte("#!/bin/sh\nset -e\nfor last; do :; done\necho \"$1 $last\" >>"+told+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), root+"/packaging/sign.sh", append([]string{dist}, references...)...)
	cmd.Env = append(slices.Clone(env), "COSIGN="+cosign, "REVISION=0123", "GITHUB_SERVER_URL=https://github.com",
		"GITHUB_REPOSITORY=noderefit/noderefit", "GITHUB_RUN_ID=7",
		"GITHUB_WORKFLOW_REF=noderefit/noderefit/.github/workflows/release.yaml@refs/tags/v0.1.0")
	if _, err := run(cmd); err != nil {
		t.Fatal(err)
	}
	want := []string{"sign-blob " + dist + "/SHA256SUMS", "attest-blob " + dist + "/SHA256SUMS"}
	digest := regexp.MustCompile(`@sha256:[0-9a-f]{64}$`)
	for _, reference := range references {
		if !digest.MatchString(reference) {
			t.Errorf("%s has no digest", reference)
		}
		want = append(want, "sign "+reference, "attest "+reference) // the provenance
		if strings.Contains(reference, "/machine-config-") {
			want = append(want, "attest "+reference) // the SBOM
		}
	}
	if diff := cmp.Diff(want, strings.Split(strings.TrimSpace(read(t, told)), "\n")); diff != "" {
		t.Errorf("what cosign is told (-want +got):\n%s", diff)
	}
	var provenance struct {
		RunDetails struct{ Builder struct{ ID string } }
	}
	if err := json.Unmarshal([]byte(read(t, dist, "provenance.json")), &provenance); err != nil ||
		provenance.RunDetails.Builder.ID !=
			"https://github.com/noderefit/noderefit/.github/workflows/release.yaml@refs/tags/v0.1.0" {
		t.Errorf("the provenance is %+v, %v", provenance, err)
	}
}

// serve runs a registry on this machine and returns its address.
func serve(t *testing.T) string {
	t.Helper()
	crane, err := goRuns(t.Context(), "tool", "-modfile="+toolsModule, "-n", "crane")
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	registry := exec.CommandContext(t.Context(), strings.TrimSpace(crane), "registry", "serve", "--address", "127.0.0.1:0",
		"--disk", t.TempDir())
	registry.Stdout, registry.Stderr = log, log
	if err := registry.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = registry.Wait() }) // it was killed: the test's context has ended
	port := regexp.MustCompile(`(?:127\.0\.0\.1:|port )(\d+)`)
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if found := port.FindStringSubmatch(read(t, log.Name())); found != nil {
			return "127.0.0.1:" + found[1]
		}
	}
	t.Fatalf("the registry does not say where it is: %s", read(t, log.Name()))
	return ""
}

// A release has a section in the changelog, which becomes its notes.
func TestTheChangelogHasItsReleases(t *testing.T) {
	inputs(t)
	said, err := run(exec.CommandContext(t.Context(), root+"/packaging/changes.sh", "v0.1.0"))
	if err != nil || !strings.Contains(said, "The first release.") || strings.Contains(said, "## ") {
		t.Errorf("%v: %s", err, said)
	}
	if said, err := run(exec.CommandContext(t.Context(), root+"/packaging/changes.sh", "v0.0.1")); err == nil ||
		!strings.Contains(err.Error(), `CHANGELOG.md has no "## v0.0.1"`) {
		t.Errorf("of a version that it does not have: %v: %s", err, said)
	}
}
