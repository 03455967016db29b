// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
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
	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/test/lab/cluster"
	"github.com/noderefit/noderefit/test/lab/fleet"
	"github.com/noderefit/noderefit/test/lab/transcript"
)

var update = flag.Bool("update", false, "write into docs/quickstart.md what its commands print")

const (
	quickstart = repository + "/docs/quickstart.md"
	// published is where the page has the images of a release.
	published = "registry.example.com"
)

// reader is somebody who follows the page: in a folder of their own, with what a release has.
type reader struct {
	*fleet.Fleet

	page   *transcript.Page
	images *Images
	dir    string
}

func TestQuickstart(t *testing.T) {
	base := lab.NeedContainers(t)
	cluster.Need(t)
	ctx, cancel := context.WithTimeoutCause(t.Context(), 3*patience, errors.New("the page takes too long"))
	defer cancel()
	r := newReader(ctx, t, base)
	before := map[string]func(){
		"kubectl refit upgrade": func() { r.underWay(ctx, t) },
	}
	began := time.Now()
	for _, c := range r.page.Commands {
		if prepare := before[c.Text]; prepare != nil {
			prepare()
		}
		r.follow(ctx, t, c)
		t.Logf("%s  %s", time.Since(began).Round(time.Second), c.Text)
	}
	r.nothingLeft(ctx, t)
	if *update && !t.Failed() {
		must(t, os.WriteFile(quickstart, []byte(r.page.String()), 0o600))
	}
}

// newReader makes a cluster that has nothing of ours, and the releases of the page.
func newReader(ctx context.Context, t *testing.T, base *lab.Base) *reader {
	t.Helper()
	text, err := os.ReadFile(quickstart)
	must(t, err)
	page, err := transcript.Read(string(text))
	must(t, err)
	images, err := Serve(ctx, repository, t.TempDir())
	must(t, err)
	t.Cleanup(images.Close)
	r := &reader{page: page, images: images, dir: t.TempDir()}
	began := time.Now()
	var plugins []string
	for _, version := range []string{"v0.1.0", "v0.2.0"} {
		dist, err := images.Release(ctx, version)
		must(t, err)
		name := "kubectl-refit_" + version + "_linux_"
		plugin := t.TempDir()
		text, err := exec.CommandContext(ctx, "tar", "-xzf", filepath.Join(dist, name+runtime.GOARCH+".tar.gz"),
			"-C", plugin, "kubectl-refit").CombinedOutput()
		if err != nil {
			t.Fatalf("unpacking the plugin: %v: %s", err, text)
		}
		plugins = append(plugins, filepath.Join(plugin, "kubectl-refit"))
		must(t, os.Rename(filepath.Join(dist, name+runtime.GOARCH+".tar.gz"), filepath.Join(r.dir, name+"amd64.tar.gz")))
		must(t, lab.RemoveTree(dist))
	}
	t.Logf("releases after %s", time.Since(began).Round(time.Second))
	// The cluster of the page is one without a network: all of its images come out of bundles.
	must(t, images.Carry(ctx, plugins...))
	t.Logf("carried after %s", time.Since(began).Round(time.Second))
	kubebox, err := cluster.Kubebox(ctx, io.Discard)
	must(t, err, os.Mkdir(filepath.Join(r.dir, "bin"), 0o755),
		os.Symlink(kubebox, filepath.Join(r.dir, "bin/kubectl")))
	for name, text := range page.Files {
		must(t, os.WriteFile(filepath.Join(r.dir, name), []byte(text), 0o600))
	}
	r.Fleet, err = images.Start(ctx, base, "", fleet.Options{Empty: true, Labels: map[string]string{},
		Hosts: []string{"worker-0", "worker-1", "worker-2"}})
	must(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			r.Tell(t.Logf)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Logf("fleet after %s", time.Since(began).Round(time.Second))
	return r
}

// follow types a command, and compares what it prints with the page.
func (r *reader) follow(ctx context.Context, t *testing.T, c *transcript.Command) {
	t.Helper()
	cmd := exec.CommandContext(ctx, "bash", "-euc", c.Text)
	cmd.Dir = r.dir
	cmd.Env = []string{"HOME=" + r.dir, "PATH=" + r.dir + "/bin:" + os.Getenv("PATH"), "KUBECONFIG=" + r.Kubeconfig,
		"LANG=C.UTF-8"}
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		t.Fatalf("%s: %v\n%s", c.Text, context.Cause(ctx), out)
	}
	out = bytes.ReplaceAll(out, []byte(r.images.Address), []byte(published))
	said := string(out)
	if failed := strings.Contains("\n"+said, "\nerror: "); failed != (err != nil) {
		t.Fatalf("%s: %v\n%s", c.Text, err, said)
	}
	if diff := cmp.Diff(lasting(c.Text, c.Output), lasting(c.Text, said)); diff != "" {
		c.Output = said
		if !*update {
			t.Errorf("line %d of %s: %s prints (+) something else (go test -update writes it there):\n%s", c.Line,
				filepath.Base(quickstart), c.Text, diff)
		}
	}
}

var (
	// ends matches what watch says of the end of a pool, or of a node that went back. The rest of the line is its group.
	ends = regexp.MustCompile(`^TIME (\S+ \S+ (?:- Updated|- Quarantined|\S+ RolledBack)(?: .*)?|error: .*)$`)
	// took matches how long a phase took, and which one was seen last.
	took = regexp.MustCompile(` \(.* took .*\)`)
	// which matches a node: which one is the first of a pool follows from where the controllers run.
	which = regexp.MustCompile(`\bworker-\d\b`)
	// waits matches what an installation waits for.
	waits = regexp.MustCompile(`^ (\S+ \S+: (\d+ of \d+ (nodes )?are ready|it is being removed)|the pods of|hosts:)`)
	// moment matches what a check says of agents and pools, which in a rollout is a matter of the moment.
	moment = regexp.MustCompile(`^( .*|\S (agents|pools|alerts) .*|Noderefit works.*|.* failed, .*)$`)
	digits = regexp.MustCompile(`\d+`)
)

// lasting returns what of an output is the same each time. Of watch these are the ends alone: which phases it sees is a
// matter of the moment, and so is what an upgrade waits for.
func lasting(command, output string) []string {
	lines := strings.Split(which.ReplaceAllString(transcript.Masked(output), "worker-N"), "\n")
	lines = slices.DeleteFunc(lines, waits.MatchString)
	verb, _, _ := strings.Cut(strings.TrimPrefix(command, "kubectl refit "), " ")
	switch verb {
	case "watch":
		var out []string
		for _, line := range lines {
			if end := ends.FindStringSubmatch(line); end != nil {
				out = append(out, took.ReplaceAllString(end[1], ""))
			}
		}
		lines = out
		slices.Sort(lines)
	case "status":
		slices.Sort(lines)
	case "upgrade":
		lines = slices.DeleteFunc(lines, moment.MatchString)
	case "collect":
		lines = strings.Split(digits.ReplaceAllString(lines[0], "N"), "\n")
	}
	return lines
}

// underWay waits until a node is on its way to what its pool has for it.
func (r *reader) underWay(ctx context.Context, t *testing.T) {
	t.Helper()
	must(t, r.WaitNodeSays(ctx, "worker-0", "under way", func(says api.Node, n *corev1.Node) bool {
		return says.Current != says.Desired && n.Spec.Unschedulable
	}))
}

// nothingLeft wants nothing of ours on the hosts and Nodes.
func (r *reader) nothingLeft(ctx context.Context, t *testing.T) {
	t.Helper()
	for _, n := range r.Nodes {
		left, err := n.Output(ctx, "sh", "-c", traces)
		if err != nil || strings.TrimSpace(left) != "" {
			t.Errorf("%s has %s: %v", n.Name, left, err)
		}
		kept, err := n.Output(ctx, "cat", "/etc/motd")
		if err != nil || !strings.Contains(kept, "Noderefit") {
			t.Errorf("%s lost its configuration: %q, %v", n.Name, kept, err)
		}
		unmarked(ctx, t, r.Fleet, n.Name)
	}
}
