// SPDX-License-Identifier: Apache-2.0

package packaging

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/test/lab/programs"
)

const (
	actionDir     = root + "/packaging/ci/plan-comment"
	componentFile = root + "/packaging/ci/gitlab/templates/plan-comment.yml"

	forgeToken = "t0ken-of-the-forge"
	// secretText is in a file that nobody but root may read.
	secretText = "hunter2-hunter2"
)

// note is a comment as a forge has it.
type note struct {
	ID       int
	By, Body string
}

// forge plays the part of GitHub's and GitLab's HTTP API that has to do with comments of request 7.
type forge struct {
	*testing.T
	http.Handler

	gitlab bool
	me     string // whose the token is
	limit  int
	broken string // what a list of comments is answered with
	denied bool   // nobody may write

	mu    sync.Mutex
	notes []note
	next  int
	race  func() // runs while a comment is made
}

func newForge(t *testing.T, gitlab bool) (*forge, string) {
	t.Helper()
	f := &forge{T: t, gitlab: gitlab, me: "github-actions[bot]", limit: 65536, next: 1}
	list, one, update := "/repos/o/r/issues/7/comments", "/repos/o/r/issues/comments", "PATCH"
	if gitlab {
		f.me, f.limit = "project_1_bot", 1_000_000
		list, update = "/projects/5/merge_requests/7/notes", "PUT"
		one = list
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /user", func(w http.ResponseWriter, _ *http.Request) {
		if !f.gitlab { // a workflow's token may not ask
			f.answer(w, http.StatusForbidden, map[string]any{"message": "Resource not accessible by integration"})
			return
		}
		f.answer(w, http.StatusOK, map[string]any{"username": f.me})
	})
	mux.HandleFunc("GET "+list, f.list)
	mux.HandleFunc("POST "+list, f.create)
	mux.HandleFunc(update+" "+one+"/{id}", f.change)
	mux.HandleFunc("DELETE "+one+"/{id}", f.remove)
	f.Handler = mux
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if r.Header.Get("Authorization") != "Bearer "+forgeToken && r.Header.Get("Private-Token") != forgeToken {
			f.answer(w, http.StatusUnauthorized, map[string]any{"message": "Bad credentials"})
			return
		}
		if f.denied && r.Method != http.MethodGet {
			f.answer(w, http.StatusForbidden, map[string]any{"message": "Resource not accessible by integration"})
			return
		}
		f.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return f, server.URL
}

func (f *forge) answer(w http.ResponseWriter, code int, body any) {
	w.WriteHeader(code)
	if err := json.NewEncoder(w).Encode(body); err != nil {
		f.Error(err)
	}
}

func (f *forge) shown(n note) map[string]any {
	if f.gitlab {
		return map[string]any{"id": n.ID, "body": n.Body, "author": map[string]any{"username": n.By}}
	}
	return map[string]any{"id": n.ID, "body": n.Body, "user": map[string]any{"login": n.By}}
}

func (f *forge) add(by, body string) note {
	n := note{f.next, by, body}
	f.next++
	f.notes = append(f.notes, n)
	return n
}

func (f *forge) list(w http.ResponseWriter, r *http.Request) {
	if f.broken != "" {
		fmt.Fprintln(w, f.broken)
		return
	}
	page, _ := strconv.Atoi(r.URL.Query().Get("page"))
	size, _ := strconv.Atoi(r.URL.Query().Get("per_page"))
	shown := []any{}
	for i := (page - 1) * size; i < min(page*size, len(f.notes)); i++ {
		shown = append(shown, f.shown(f.notes[i]))
	}
	f.answer(w, http.StatusOK, shown)
}

// body is that of a request; a forge refuses one that is too long.
func (f *forge) body(w http.ResponseWriter, r *http.Request) (string, bool) {
	var sent struct{ Body string }
	if err := json.NewDecoder(r.Body).Decode(&sent); err != nil || sent.Body == "" || len([]rune(sent.Body)) > f.limit {
		f.answer(w, http.StatusUnprocessableEntity, map[string]any{"message": "Body is too long"})
		return "", false
	}
	return sent.Body, true
}

func (f *forge) create(w http.ResponseWriter, r *http.Request) {
	body, ok := f.body(w, r)
	if !ok {
		return
	}
	if f.race != nil {
		f.race()
	}
	f.answer(w, http.StatusCreated, f.shown(f.add(f.me, body)))
}

func (f *forge) at(r *http.Request) int {
	id, _ := strconv.Atoi(r.PathValue("id"))
	return slices.IndexFunc(f.notes, func(n note) bool { return n.ID == id })
}

func (f *forge) change(w http.ResponseWriter, r *http.Request) {
	i := f.at(r)
	body, ok := f.body(w, r)
	if !ok || i < 0 {
		return
	}
	f.notes[i].Body = body
	f.answer(w, http.StatusOK, f.shown(f.notes[i]))
}

func (f *forge) remove(w http.ResponseWriter, r *http.Request) {
	if i := f.at(r); i >= 0 {
		f.notes = slices.Delete(f.notes, i, i+1)
	}
	w.WriteHeader(http.StatusNoContent)
}

// own are the comments of the account.
func (f *forge) own() (own []note) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range f.notes {
		if n.By == f.me {
			own = append(own, n)
		}
	}
	return own
}

// only is the one comment that the account has.
func (f *forge) only() string {
	f.Helper()
	own := f.own()
	if len(own) != 1 {
		f.Fatalf("the account has %d comments: %v", len(own), own)
	}
	return own[0].Body
}

// pipeline is a folder in which an action or a job runs, and what it has around it.
type pipeline struct {
	*testing.T

	dir, url string            // of the documents; of the forge
	inputs   map[string]string // beside the defaults
	released string            // the folder of the release
}

// write writes the documents, and removes what was there.
func (p pipeline) write(documents map[string]string) {
	p.Helper()
	if err := os.RemoveAll(p.dir + "/machines"); err != nil {
		p.Fatal(err)
	}
	for name, text := range documents {
		path := filepath.Join(p.dir, "machines", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			p.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			p.Fatal(err)
		}
	}
}

var expression = regexp.MustCompile(`\$\{\{ *(.*?) *\}\}|\$\[\[ *(.*?) *\]\]`)

// expand puts the values of expressions into a text, as a forge does.
func (p pipeline) expand(text string, values map[string]string) string {
	p.Helper()
	return expression.ReplaceAllStringFunc(text, func(found string) string {
		match := expression.FindStringSubmatch(found)
		value, known := values[match[1]+match[2]]
		if !known {
			p.Fatalf("%s is not known in %q", found, text)
		}
		return value
	})
}

// script runs a script as a forge does, in an environment of its own, and returns the exit code and what it said.
func (p pipeline) script(env []string, argv ...string) (int, string) {
	p.Helper()
	cmd := exec.CommandContext(p.Context(), argv[0], argv[1:]...)
	cmd.Dir = p.dir
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + p.dir, "TMPDIR=" + p.TempDir()}, env...)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		p.Fatal(err)
	}
	if strings.Contains(string(out), forgeToken) || strings.Contains(string(out), secretText) {
		p.Errorf("the log has a secret: %s", out)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

// given are the values of the inputs of an action or component: what is said, or else the default.
func (p pipeline) given(defaults map[string]*string, values map[string]string, changes []string) map[string]string {
	p.Helper()
	said := maps.Clone(p.inputs)
	for _, change := range changes {
		name, value, _ := strings.Cut(change, "=")
		said[name] = value
	}
	for name := range said {
		if _, known := defaults[name]; !known {
			p.Fatalf("there is no input %s", name)
		}
	}
	for name, preset := range defaults {
		value, is := said[name]
		if !is && preset == nil {
			p.Fatalf("input %s is needed", name)
		} else if !is {
			value = p.expand(*preset, values)
		}
		values["inputs."+name] = value
	}
	return values
}

// github runs the steps of the action.
func (p pipeline) github(changes ...string) (int, string) {
	p.Helper()
	var action struct {
		Name, Description, Author string
		Branding                  map[string]string
		Inputs                    map[string]struct {
			Description string
			Required    bool
			Default     *string
		}
		Runs struct {
			Using string
			Steps []step
		}
	}
	if err := yaml.UnmarshalStrict([]byte(read(p.T, actionDir, "action.yml")), &action); err != nil {
		p.Fatal(err)
	}
	defaults := map[string]*string{}
	for name, input := range action.Inputs {
		defaults[name] = input.Default
		if input.Description == "" || input.Required != (input.Default == nil) {
			p.Errorf("input %s: %+v", name, input)
		}
	}
	values := p.given(defaults, map[string]string{"github.token": forgeToken, "github.event.pull_request.number": "7",
		"github.event.pull_request.head.sha": strings.Repeat("ab", 20)}, changes)
	if action.Runs.Using != "composite" || len(action.Runs.Steps) == 0 {
		p.Fatalf("the action is %+v", action)
	}
	folder, err := filepath.Abs(actionDir)
	if err != nil {
		p.Fatal(err)
	}
	said := ""
	for _, s := range action.Runs.Steps {
		if s.Shell != "bash" || strings.Contains(s.Run, "${{") {
			p.Errorf("step %q: shell %q, %q", s.Name, s.Shell, s.Run)
		}
		env := []string{"GITHUB_ACTION_PATH=" + folder, "GITHUB_API_URL=" + p.url, "GITHUB_REPOSITORY=o/r", "GITHUB_RUN_ID=9",
			"GITHUB_SERVER_URL=https://github.example", "GITHUB_STEP_SUMMARY=" + p.dir + "/summary.md"}
		for name, value := range s.Env {
			env = append(env, name+"="+p.expand(value, values))
		}
		code, out := p.script(env, "bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", s.Run)
		if said += out; code != 0 {
			return code, said
		}
	}
	return 0, said
}

// gitlabJob is what of a job of GitLab's is run or kept.
type gitlabJob struct {
	Variables    map[string]string `json:"variables"`
	BeforeScript []string          `json:"before_script"` //nolint:tagliatelle // GitLab's name
	Script       []string          `json:"script"`
	Kept         struct {
		When  string   `json:"when"`
		Paths []string `json:"paths"`
	} `json:"artifacts"` //nolint:misspell // GitLab's name
}

// job runs the job of GitLab's component. The header of the file and the job are two documents.
func (p pipeline) job(changes ...string) (int, string) {
	p.Helper()
	header, text, found := strings.Cut(read(p.T, componentFile), "\n---\n")
	var spec struct {
		Spec struct {
			Inputs map[string]struct {
				Description, Type, Regex string
				Options                  []any
				Default                  any
			}
		}
	}
	if err := yaml.UnmarshalStrict([]byte(header), &spec); err != nil || !found {
		p.Fatal(err)
	}
	defaults := map[string]*string{}
	for name, input := range spec.Spec.Inputs {
		if defaults[name] = nil; input.Default != nil {
			defaults[name] = new(fmt.Sprint(input.Default))
		}
	}
	values := p.given(defaults, map[string]string{}, changes)
	var jobs map[string]gitlabJob
	if err := yaml.Unmarshal([]byte(p.expand(text, values)), &jobs); err != nil || len(jobs) != 1 {
		p.Fatal(jobs, err)
	}
	job := jobs[values["inputs.job"]]
	if !slices.Equal(job.Kept.Paths, []string{"plan.md"}) || job.Kept.When != "always" {
		p.Errorf("what is kept is %+v", job.Kept)
	}
	kubeconfig := filepath.Join(p.dir, "KUBECONFIG_PLANS") // a variable of type file
	if err := os.WriteFile(kubeconfig, []byte(p.kubeconfig()), 0o600); err != nil {
		p.Fatal(err)
	}
	env := []string{"CI_API_V4_URL=" + p.url, "CI_PROJECT_ID=5", "CI_MERGE_REQUEST_IID=7", "CI_JOB_URL=https://gitlab.example/9",
		"CI_COMMIT_SHA=" + strings.Repeat("ab", 20), "KUBECONFIG_PLANS=" + kubeconfig, "PLAN_COMMENT_TOKEN=" + forgeToken}
	for name, value := range job.Variables {
		env = append(env, name+"="+value)
	}
	return p.script(env, "bash", "-eo", "pipefail", "-c", strings.Join(append(job.BeforeScript, job.Script...), "\n"))
}

func (p pipeline) kubeconfig() string { return read(p.T, p.released, "kubeconfig") }

const commentedVersion = "v0.1.0"

// release makes a folder with what of a release the comment needs, of the plugin as it is. It is not compressed.
func release(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	at := filepath.Join(dir, commentedVersion)
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	program, err := programs.Build(t.Context(), t.TempDir(), "cmd/kubectl-refit")
	if err != nil {
		t.Fatal(err)
	}
	text := read(t, program)
	var archive bytes.Buffer
	stored, err := gzip.NewWriterLevel(&archive, gzip.NoCompression)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(stored)
	err = w.WriteHeader(&tar.Header{Name: "kubectl-refit", Mode: 0o755, Size: int64(len(text))})
	if err == nil {
		_, err = w.Write([]byte(text))
	}
	if err := errors.Join(err, w.Close(), stored.Close()); err != nil {
		t.Fatal(err)
	}
	sums := ""
	for name, data := range map[string]string{
		"kubectl-refit_" + commentedVersion + "_linux_" + runtime.GOARCH + ".tar.gz": archive.String(),
		"plan-comment.sh": read(t, actionDir, "plan-comment.sh"),
	} {
		if err := os.WriteFile(filepath.Join(at, name), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
		sums += sumOf(data) + "  " + name + "\n"
	}
	if err := os.WriteFile(filepath.Join(at, "SHA256SUMS"), []byte(sums), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func sumOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// document is a MachineConfig of a pool with one file.
func document(pool, name, path, mode, content string) string {
	return fmt.Sprintf(`apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata: {name: %s, labels: {%s: %s}}
spec:
  config:
    ignition: {version: 3.4.0}
    storage:
      files: [{path: %s, mode: %s, contents: {source: %q}}]
`, name, api.Role, pool, path, mode, "data:,"+content)
}

// pooled makes pools with a node each, and a kubeconfig of an account that may look.
func pooled(t *testing.T, pools ...string) string {
	t.Helper()
	c := installed(t)
	who := admin(t, c)
	const namespace, account = "ci-comments", "plans"
	_, kubeconfig, err := c.ServiceAccountConfig(t.Context(), namespace, account, "")
	if err != nil {
		t.Fatal(err)
	}
	_, err = who.kube.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: namespace},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: viewRole},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: account}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, pool := range pools {
		_, err := who.kube.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: pool + "-1", Labels: map[string]string{api.NodeRole + pool: ""},
		}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		object := &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: pool}}
		object.Spec.MachineConfigSelector = &metav1.LabelSelector{MatchLabels: map[string]string{api.Role: pool}}
		object.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{api.NodeRole + pool: ""}}
		if _, err := who.mc.MachineconfigurationV1().MachineConfigPools().Create(t.Context(), object,
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return read(t, kubeconfig)
}

func TestAPlanIsTheOneCommentOfARequest(t *testing.T) {
	t.Parallel()
	kubeconfig := pooled(t, "commented", "wide")
	released := release(t)
	if err := os.WriteFile(released+"/kubeconfig", []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	downloads := httptest.NewServer(http.FileServer(http.Dir(released)))
	t.Cleanup(downloads.Close)
	start := func(t *testing.T, gitlab bool) (*forge, pipeline) {
		t.Helper()
		f, url := newForge(t, gitlab)
		p := pipeline{T: t, dir: t.TempDir(), url: url, released: released, inputs: map[string]string{
			"version": commentedVersion, "pools": "commented", "downloads": downloads.URL,
		}}
		if !gitlab {
			p.inputs["kubeconfig"] = kubeconfig
		}
		p.write(map[string]string{"50.yaml": document("commented", "50-commented", "/etc/first", "384", secretText)})
		return f, p
	}
	t.Run("on GitHub", func(t *testing.T) { commentOnGitHub(t, start) })
	t.Run("on GitLab", func(t *testing.T) { commentOnGitLab(t, start) })
	t.Run("what is wrong", func(t *testing.T) { codesOfComments(t, start) })
	t.Run("long plans", func(t *testing.T) { longComment(t, start) })
	t.Run("a release that is not as its sums say", func(t *testing.T) { spoiltRelease(t, start, released) })
	t.Run("a forge that refuses", func(t *testing.T) { refusedComment(t, start) })
}

type starter func(t *testing.T, gitlab bool) (*forge, pipeline)

// ends fails where a run ends with another code, or does not say something.
func ends(t *testing.T, want int, says string) func(int, string) {
	t.Helper()
	return func(code int, said string) {
		t.Helper()
		if code != want || !strings.Contains(said, says) {
			t.Fatalf("exit %d, want %d and %q: %s", code, want, says, said)
		}
	}
}

func commentOnGitHub(t *testing.T, start starter) {
	t.Helper()
	t.Parallel()
	f, p := start(t, false)
	// A stranger can write what begins as the comment does, and there may be many.
	f.add("stranger", "<!-- noderefit plan -->\nfake")
	for i := range 104 {
		f.add("somebody", fmt.Sprint("remark ", i))
	}
	ends(t, 0, "")(p.github())
	first := f.only()
	for _, want := range []string{"<!-- noderefit plan -->\n", "Pool <code>commented</code>", "/etc/first", "Commit abababababab, ",
		"[exit code 0](https://github.example/o/r/actions/runs/9)"} {
		if !strings.Contains(first, want) {
			t.Errorf("the comment has no %q:\n%s", want, first)
		}
	}
	if strings.Contains(first, secretText) {
		t.Errorf("what may be a secret is in the comment:\n%s", first)
	}
	p.write(map[string]string{"50.yaml": document("commented", "50-commented", "/etc/second", "420", "x")})
	ends(t, 0, "")(p.github())
	if second := f.only(); !strings.Contains(second, "/etc/second") || strings.Contains(second, "/etc/first") {
		t.Errorf("the comment was not updated:\n%s", second)
	}
	if f.notes[0].Body != "<!-- noderefit plan -->\nfake" || len(f.notes) != 106 {
		t.Errorf("another's comment was touched: %v of %d", f.notes[0], len(f.notes))
	}
	// Of another cluster.
	ends(t, 0, "")(p.github("key=staging"))
	if own := f.own(); len(own) != 2 || !strings.HasPrefix(own[1].Body, "<!-- noderefit plan staging -->\n") {
		t.Errorf("with a key there are %v", own)
	}
	// Another run of the same request writes its own meanwhile.
	f, p = start(t, false)
	f.race = func() {
		f.race = nil
		f.add(f.me, "<!-- noderefit plan -->\nolder")
	}
	ends(t, 0, "")(p.github())
	if body := f.only(); !strings.Contains(body, "/etc/first") {
		t.Errorf("of two runs at a time is left: %s", body)
	}
}

func commentOnGitLab(t *testing.T, start starter) {
	t.Helper()
	t.Parallel()
	f, p := start(t, true)
	f.add("stranger", "<!-- noderefit plan -->\nfake")
	ends(t, 0, "")(p.job("checksum=" + sumOf(read(t, p.released, commentedVersion, "SHA256SUMS"))))
	if body := f.only(); !strings.Contains(body, "/etc/first") || !strings.Contains(body, "(https://gitlab.example/9)") {
		t.Errorf("the comment is\n%s", body)
	}
	if whole := read(t, p.dir, "plan.md"); !strings.Contains(whole, "/etc/first") || strings.Contains(whole, secretText) {
		t.Errorf("the artefact is\n%s", whole)
	}
	p.write(map[string]string{"50.yaml": document("commented", "50-commented", "/var/lib/machine-config-daemon/second", "420", "x")})
	ends(t, 3, "")(p.job("strict=true"))
	if body := f.only(); !strings.Contains(body, "/var/lib/machine-config-daemon/second") || !strings.Contains(body, "[exit code 3]") {
		t.Errorf("the comment was not updated:\n%s", body)
	}
	ends(t, 1, "")(p.job("checksum=" + strings.Repeat("0", 64)))
}

// codesOfComments are those of the plan, and a comment says what was wrong.
func codesOfComments(t *testing.T, start starter) {
	t.Helper()
	t.Parallel()
	f, p := start(t, false)
	unknown := strings.Replace(document("commented", "50-commented", "/etc/first", "420", "x"), "storage:", "stores: {}\n    storage:", 1)
	p.write(map[string]string{"50.yaml": unknown})
	ends(t, 0, "stores")(p.github())
	ends(t, 1, "stores")(p.github("strict=true"))
	for _, want := range []string{"Pool <code>commented</code>: no plan", "    error: ", "50.yaml", "stores", "[exit code 1]"} {
		if body := f.only(); !strings.Contains(body, want) {
			t.Errorf("the comment has no %q:\n%s", want, body)
		}
	}
	// Of several pools a document that makes no plan counts for more than a node that can't get there.
	p.write(map[string]string{
		"50.yaml": document("commented", "50-commented", "/var/lib/machine-config-daemon/x", "420", "x"), "60.yaml": document("wide", "50-wide", "/etc/x", "420", "x"),
	})
	ends(t, 3, "")(p.github("pools=commented wide"))
	ends(t, 1, "")(p.github("pools=commented no-such-pool"))
	if body := f.only(); !strings.Contains(body, "/var/lib/machine-config-daemon/x") || !strings.Contains(body, "Pool <code>no-such-pool</code>: no plan") {
		t.Errorf("the comment is\n%s", body)
	}
	// Butane is read by the plugin itself.
	p.write(map[string]string{"50.bu": "variant: openshift\nversion: 4.18.0\nmetadata:\n  name: 50-commented\n  labels:\n    " +
		api.Role + ": commented\nstorage:\n  files:\n    - {path: /etc/butane, mode: 0644, contents: {inline: x}}\n"})
	ends(t, 0, "")(p.github("prune=true", "selector=a=b", "diff=none"))
	if body := f.only(); !strings.Contains(body, "/etc/butane") {
		t.Errorf("the comment is\n%s", body)
	}
	for change, says := range map[string]string{
		"version=latest": "version:", "version=v1.0.0/../x": "version:", "pools=": "pools:", "pools=--help": "pools:", "prune=yes": "prune:",
		"kubeconfig=": "a request from a fork gets no secrets", "token=": "token:", "token=a\"b": "token:", "key=a-->": "key:",
		"number=": "number:", "commit=x": "commit:",
	} {
		ends(t, 2, says)(p.github(change))
	}
}

// longComment fits into a comment, has each fence and fold ended, and says where the rest is.
func longComment(t *testing.T, start starter) {
	t.Helper()
	t.Parallel()
	f, p := start(t, false)
	long := func(what string) string {
		var text strings.Builder
		for i := range 9000 {
			fmt.Fprintf(&text, "%s%%20%d%%0A", what, i)
		}
		return text.String()
	}
	p.write(map[string]string{
		"a.yaml": document("commented", "50-commented", "/etc/long", "420", long("line")),
		"b.yaml": document("wide", "50-wide", "/etc/wide", "420", long("row")),
	})
	ends(t, 0, "")(p.github("pools=commented\nwide"))
	body := f.only()
	if strings.Count(body, "_Cut to fit into a comment. The whole plan of pool") != 2 || !strings.Contains(body, "/etc/wide") ||
		!strings.Contains(body, "is in the summary of [the job](") || len(body) < 50000 {
		t.Errorf("the comment has %d characters and ends with %s", len(body), body[max(0, len(body)-1000):])
	}
	fence, folds := false, 0
	for line := range strings.Lines(body) {
		switch {
		case strings.HasPrefix(line, "```"):
			fence = !fence
		case strings.HasPrefix(line, "<details>"):
			folds++
		case strings.HasPrefix(line, "</details>"):
			folds--
		case strings.HasPrefix(line, "_Cut to fit") && (fence || folds != 0):
			t.Errorf("above %q a fence (%v) or a fold (%d) is not ended", line, fence, folds)
		}
	}
	if whole := read(t, p.dir, "summary.md"); len(whole) < 2*60000 {
		t.Errorf("the summary has %d characters", len(whole))
	}
}

// spoiltRelease is not run, and makes no comment.
func spoiltRelease(t *testing.T, start starter, released string) {
	t.Helper()
	t.Parallel()
	f, p := start(t, false)
	ends(t, 1, "is it a release?")(p.github("version=v9.9.9"))
	ends(t, 1, "checksum: 0000")(p.github("checksum=" + strings.Repeat("0", 64)))
	// The same for each forge: another archive, or another script, under the sums of the first.
	dir := t.TempDir()
	if err := os.CopyFS(dir+"/v0.1.0", os.DirFS(released+"/v0.1.0")); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.FileServer(http.Dir(dir)))
	t.Cleanup(server.Close)
	archives, err := filepath.Glob(dir + "/v0.1.0/*.tar.gz")
	if err != nil || len(archives) != 1 {
		t.Fatal(archives, err)
	}
	spoil := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	spoil(archives[0], "x")
	ends(t, 1, "is not what SHA256SUMS of v0.1.0 says; nothing of it was run")(p.github("downloads=" + server.URL))
	if own := f.own(); len(own) != 0 {
		t.Errorf("there are the comments %v", own)
	}
	spoil(dir+"/v0.1.0/plan-comment.sh", "touch ran\n")
	g, q := start(t, true)
	ends(t, 1, "")(q.job("downloads=" + server.URL))
	if _, err := os.Stat(q.dir + "/ran"); err == nil || len(g.own()) != 0 {
		t.Error("a script that is not that of the release was run")
	}
}

// refusedComment never makes a second one: where nobody can tell whether there is one, none is written.
func refusedComment(t *testing.T, start starter) {
	t.Helper()
	t.Parallel()
	f, p := start(t, false)
	f.broken = `{"message": "x"}`
	ends(t, 4, "reading the comments")(p.github())
	f.broken = ""
	f.denied = true
	ends(t, 4, "pull-requests: write")(p.github())
	ends(t, 4, "Bad credentials")(p.github("token=other"))
	f.denied, f.me = false, "an-app[bot]"
	ends(t, 4, `author: comments of this token are by "an-app[bot]"`)(p.github())
	if own := f.own(); len(own) != 0 {
		t.Errorf("there are the comments %v", own)
	}
	ends(t, 0, "")(p.github("author=an-app[bot]"))
	f.only()
}

// What the example repository says to both is what they take.
func TestTheExampleGivesTheCommentWhatItTakes(t *testing.T) {
	var action struct {
		Inputs map[string]struct{ Required bool }
	}
	if err := yaml.Unmarshal([]byte(read(t, actionDir, "action.yml")), &action); err != nil {
		t.Fatal(err)
	}
	var spec struct {
		Spec struct{ Inputs map[string]map[string]any }
	}
	header, _, _ := strings.Cut(read(t, componentFile), "\n---\n")
	if err := yaml.Unmarshal([]byte(header), &spec); err != nil {
		t.Fatal(err)
	}
	var w struct {
		Jobs map[string]struct{ Steps []step }
	}
	if err := yaml.Unmarshal([]byte(read(t, root, "docs/examples/gitops/ci/github.yaml")), &w); err != nil {
		t.Fatal(err)
	}
	var pipeline struct {
		Include []struct {
			Remote string
			Inputs map[string]any
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, root, "docs/examples/gitops/ci/gitlab.yaml")), &pipeline); err != nil {
		t.Fatal(err)
	}
	ours := 0
	for _, s := range w.Jobs["plan"].Steps {
		folder, found := strings.CutPrefix(s.Uses, "noderefit/noderefit/")
		if !found {
			continue
		}
		ours++
		folder, version, _ := strings.Cut(folder, "@")
		if _, err := os.Stat(filepath.Join(root, folder, "action.yml")); err != nil || s.With["version"] != version {
			t.Errorf("%s with version %v: %v", s.Uses, s.With["version"], err)
		}
		for name := range s.With {
			if _, known := action.Inputs[name]; !known {
				t.Errorf("the action has no input %s", name)
			}
		}
		for name, input := range action.Inputs {
			if s.With[name] == nil && input.Required {
				t.Errorf("the example lacks input %s of the action", name)
			}
		}
	}
	for _, include := range pipeline.Include {
		ours++
		const home = "https://raw.githubusercontent.com/noderefit/noderefit/"
		version, path, _ := strings.Cut(strings.TrimPrefix(include.Remote, home), "/")
		if _, err := os.Stat(filepath.Join(root, path)); err != nil || include.Inputs["version"] != version {
			t.Errorf("%s with version %v: %v", include.Remote, include.Inputs["version"], err)
		}
		for name := range include.Inputs {
			if spec.Spec.Inputs[name] == nil {
				t.Errorf("the component has no input %s", name)
			}
		}
		for name, input := range spec.Spec.Inputs {
			if _, preset := input["default"]; !preset && include.Inputs[name] == nil {
				t.Errorf("the example lacks input %s of the component", name)
			}
		}
	}
	if ours != 2 {
		t.Errorf("the example has %d of the two", ours)
	}
}
