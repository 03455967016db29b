// SPDX-License-Identifier: Apache-2.0

package packaging

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

// step is a step of a workflow or of an action of GitHub.
type step struct {
	Name  string            `json:"name"`
	ID    string            `json:"id"`
	If    string            `json:"if"`
	Uses  string            `json:"uses"`
	With  map[string]any    `json:"with"`
	Run   string            `json:"run"`
	Shell string            `json:"shell"`
	Env   map[string]string `json:"env"`
}

// workflow is a workflow of GitHub. "on" is what YAML 1.1 takes for true.
type workflow struct {
	Name        string         `json:"name"`
	On          map[string]any `json:"true"`
	Concurrency any            `json:"concurrency"`
	Defaults    struct {
		Run struct {
			Shell string `json:"shell"`
		} `json:"run"`
	} `json:"defaults"`
	Permissions map[string]string `json:"permissions"`
	Env         map[string]string `json:"env"`
	Jobs        map[string]struct {
		Needs       string            `json:"needs"`
		RunsOn      string            `json:"runs-on"` //nolint:tagliatelle // GitHub's name
		Permissions map[string]string `json:"permissions"`
		Steps       []step            `json:"steps"`
	} `json:"jobs"`
}

func releasing(t *testing.T) (w workflow) {
	t.Helper()
	text := strings.Replace(read(t, root, ".github/workflows/release.yaml"), "\non:\n", "\n\"true\":\n", 1)
	if err := yaml.UnmarshalStrict([]byte(text), &w); err != nil {
		t.Fatal(err)
	}
	return w
}

func TestTheWorkflowOfAReleaseHasTheRightsThatItNeeds(t *testing.T) {
	w := releasing(t)
	if w.Permissions == nil || len(w.Permissions) != 0 {
		t.Errorf("a job that asks for no rights has %v", w.Permissions)
	}
	rights := map[string]map[string]string{}
	for name, job := range w.Jobs {
		rights[name] = job.Permissions
	}
	if diff := cmp.Diff(map[string]map[string]string{
		"build":   {"contents": "read"},
		"publish": {"contents": "write", "packages": "write", "id-token": "write"},
	}, rights); diff != "" {
		t.Errorf("rights (-want +got):\n%s", diff)
	}
	if w.Jobs["publish"].Needs != "build" {
		t.Errorf("publish needs %q", w.Jobs["publish"].Needs)
	}
	// bash, when a workflow names it, is run with pipefail.
	if w.Defaults.Run.Shell != "bash" {
		t.Errorf("the shell is %q", w.Defaults.Run.Shell)
	}
	for name, job := range w.Jobs {
		for _, s := range job.Steps {
			switch action, _, _ := strings.Cut(s.Uses, "@"); action {
			case "actions/checkout":
				if fmt.Sprint(s.With["persist-credentials"]) != "false" {
					t.Errorf("%s: the checkout leaves its token: %v", name, s.With)
				}
			case "actions/setup-go":
				if fmt.Sprint(s.With["cache"]) != "false" {
					t.Errorf("%s: the build takes a cache that other workflows write: %v", name, s.With)
				}
			case "actions/cache":
				t.Errorf("%s has a cache", name)
			}
			if strings.Contains(s.Run, "${{") {
				t.Errorf("%s: %q has an expression in a script", name, s.Run)
			}
			if strings.Contains(s.Run, "xargs") && !strings.Contains(s.Run, "xargs -r ") {
				t.Errorf("%s: %q signs something where nothing was published", name, s.Run)
			}
			if strings.Contains(s.Run, "make release") && name != "build" || strings.Contains(s.Run, "sign.sh") && name != "publish" {
				t.Errorf("%s has %q", name, s.Run)
			}
		}
	}
}

// stepOf is the one step whose script has a text.
func stepOf(t *testing.T, w workflow, has string) string {
	t.Helper()
	var found []string
	for _, job := range w.Jobs {
		for _, s := range job.Steps {
			if strings.Contains(s.Run, has) {
				found = append(found, s.Run)
			}
		}
	}
	if len(found) != 1 {
		t.Fatalf("%q is in the steps %q", has, found)
	}
	return found[0]
}

// bash runs a script as GitHub does where bash is named.
func bash(t *testing.T, dir, script string, env ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	return run(cmd)
}

func TestATagThatIsNotOnMainIsNoRelease(t *testing.T) {
	dir := t.TempDir()
	made, err := bash(t, dir, `git init --quiet --initial-branch=main origin && cd origin
export GIT_AUTHOR_NAME=x GIT_AUTHOR_EMAIL=x@example.org GIT_COMMITTER_NAME=x GIT_COMMITTER_EMAIL=x@example.org
git commit --quiet --allow-empty -m one && git tag v0.1.0 && git commit --quiet --allow-empty -m two
git checkout --quiet -b other && git commit --quiet --allow-empty -m three && git tag v0.2.0
git clone --quiet . ../clone && git rev-parse v0.1.0 v0.2.0`)
	commits := strings.Fields(made)
	if err != nil || len(commits) != 2 {
		t.Fatal(made, err)
	}
	script := stepOf(t, releasing(t), "merge-base")
	if _, err := bash(t, dir+"/clone", script, "REVISION="+commits[0], "VERSION=v0.1.0"); err != nil {
		t.Error(err)
	}
	if _, err := bash(t, dir+"/clone", script, "REVISION="+commits[1], "VERSION=v0.2.0"); err == nil ||
		!strings.Contains(err.Error(), "v0.2.0 is not on main") {
		t.Errorf("of a tag on another branch: %v", err)
	}
}

func TestAVersionBeforeAReleaseIsMarkedAsOne(t *testing.T) {
	script := stepOf(t, releasing(t), "gh release create")
	dir := t.TempDir()
	for _, name := range []string{"bin", "dist"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(dir+"/bin/gh", []byte("#!/bin/sh\nprintf '%s\\n' \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/dist/file", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for version, want := range map[string]bool{"v0.1.0": false, "v0.1.0-rc.1": true, "v1.2.3-alpha": true} {
		said, err := bash(t, dir, script, "VERSION="+version, "RUNNER_TEMP=/tmp", "PATH="+dir+"/bin:"+os.Getenv("PATH"))
		told := strings.Fields(said)
		if err != nil || slices.Contains(told, "--prerelease") != want || !slices.Contains(told, "dist/file") ||
			!slices.Contains(told, "--verify-tag") {
			t.Errorf("%s: gh is told %q, %v", version, told, err)
		}
	}
}

// Who verifies a release by the page takes nothing that another workflow, branch or repository has signed.
func TestThePageVerifiesTheIdentityOfTheWorkflowAlone(t *testing.T) {
	found := regexp.MustCompile(`'(\^https://[^']*)'`).FindAllStringSubmatch(read(t, root, "docs/releasing.md"), -1)
	if len(found) != 1 {
		t.Fatalf("found the expressions %q", found)
	}
	identity, err := regexp.Compile(found[0][1])
	if err != nil {
		t.Fatal(err)
	}
	const home = "https://github.com/noderefit/noderefit/.github/workflows/"
	for name, want := range map[string]bool{
		home + "release.yaml@refs/tags/v0.1.0":       true,
		home + "release.yaml@refs/tags/v1.20.3-rc.1": true,
		home + "release.yaml@refs/heads/main":        false,
		home + "release.yaml@refs/heads/v0.1.0":      false,
		home + "release.yaml@refs/tags/v0.1.0/x":     false,
		home + "release.yaml@refs/tags/x":            false,
		home + "releaseXyaml@refs/tags/v0.1.0":       false,
		home + "other.yaml@refs/tags/v0.1.0":         false,
		"https://github.com/noderefitXnoderefit/noderefit/.github/workflows/release.yaml@refs/tags/v0.1.0": false,
		"https://githubXcom/noderefit/noderefit/.github/workflows/release.yaml@refs/tags/v0.1.0":           false,
		"x" + home + "release.yaml@refs/tags/v0.1.0":                                                       false,
	} {
		if identity.MatchString(name) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
}

// What was built stays until another release has been built, and a version is never a part of the shell's line.
func TestMakeReleaseReplacesWhatIsThereAtTheEnd(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"Makefile":             read(t, root, "Makefile"),
		"dist/old":             "",
		"packaging/release.sh": "#!/bin/sh\nset -e\n: \"${VERSION:?has to be the version}\"\nmkdir \"$OUT\"\nprintf %s \"$VERSION\" >\"$OUT/version\"\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if said, err := bash(t, dir, "unset VERSION; make release"); err == nil || !strings.Contains(err.Error(), "has to be the version") {
		t.Errorf("without a version: %v: %s", err, said)
	}
	if _, err := os.Stat(dir + "/dist/old"); err != nil {
		t.Errorf("what was built before is gone: %v", err)
	}
	const version = `v1.0.0'; touch made; $(touch made) "`
	if _, err := bash(t, dir, `make release VERSION="$SAID"`, "SAID="+strings.ReplaceAll(version, "$", "$$")); err != nil {
		t.Fatal(err)
	}
	if got := read(t, dir, "dist/version"); got != version {
		t.Errorf("the version is %q, want %q", got, version)
	}
	if files, err := filepath.Glob(dir + "/dist/*"); err != nil || len(files) != 1 {
		t.Errorf("dist has %v, %v", files, err)
	}
	if _, err := os.Stat(dir + "/made"); err == nil {
		t.Error("a part of the version was run")
	}
}

// Two people who build one commit get the same bytes, whatever their settings of Go are.
func TestThePlatformOfAProgramIsNotThatOfItsBuilder(t *testing.T) {
	inputs(t)
	dir := t.TempDir()
	const says = "#!/bin/sh\nenv | grep -E '^(GO(FLAGS|EXPERIMENT|AMD64|ARM64|FIPS140|TOOLCHAIN)|CGO_ENABLED)=' | sort\n"
	if err := os.WriteFile(dir+"/go", []byte(says), 0o755); err != nil {
		t.Fatal(err)
	}
	var first string
	for i, env := range [][]string{nil, {"GOFLAGS=-race", "GOAMD64=v3", "GOARM64=v9.0,lse", "GOEXPERIMENT=x", "GOFIPS140=latest",
		"GOTOOLCHAIN=go1.99.0"}} {
		cmd := exec.CommandContext(t.Context(), root+"/packaging/programs.sh", t.TempDir(), "kubectl-refit")
		cmd.Env = append(append(os.Environ(), "VERSION=v1.0.0", "PATH="+dir+":"+os.Getenv("PATH")), env...)
		said, err := run(cmd)
		if err != nil || !strings.Contains(said, "GOAMD64=v1\n") {
			t.Fatal(said, err)
		}
		if i == 0 {
			first = said
		} else if said != first {
			t.Errorf("with %v: %s", env, cmp.Diff(first, said))
		}
	}
}

// A second build that takes what the first one has left shows nothing.
func TestTheSecondBuildTakesNothingOfTheFirst(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"packaging/reproducible.sh": read(t, root, "packaging/reproducible.sh"),
		"packaging/release.sh": "#!/bin/sh\nset -e\necho \"cache ${GOCACHE:-none}\" >&2\nmkdir -p \"$OUT\" && cd \"$OUT\"\n" +
			"echo \"$WHAT\" >file && sha256sum file >SHA256SUMS\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	const script = `git init --quiet && git add packaging && git -c user.name=x -c user.email=x@example.org commit --quiet -m x
OUT=$PWD/dist WHAT=a packaging/release.sh 2>/dev/null
GOCACHE=/nowhere/mine WHAT=a packaging/reproducible.sh 2>&1
if WHAT=b packaging/reproducible.sh 2>/dev/null; then exit 1; fi`
	said, err := bash(t, dir, script)
	if err != nil || !regexp.MustCompile(`cache /.*/cache\n`).MatchString(said) || strings.Contains(said, "/nowhere/mine") ||
		!strings.Contains(said, "1 files are the same in two builds") {
		t.Errorf("%v: %s", err, said)
	}
}
