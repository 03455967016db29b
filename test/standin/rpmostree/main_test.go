// SPDX-License-Identifier: Apache-2.0

package rpmostree

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/test/standin/rpmostree/fault"
)

var (
	program  Program
	prepared *lab.Host // with the program; nil until a test needs it
)

// Names that are spelt their own way.
const (
	lock         = "--lock-finalization"   //nolint:misspell // rpm-ostree's own word
	lockedKey    = "finalization-locked"   //nolint:misspell // rpm-ostree's own word
	finalizeName = "finalize-deployment"   //nolint:misspell // rpm-ostree's own word
	lockedMark   = "(finalization locked)" //nolint:misspell // ostree's own word
)

func TestMain(m *testing.M) {
	code := func() int {
		if lab.Available() == nil {
			dir, err := os.MkdirTemp("", "noderefit-rpm-ostree-")
			if err == nil {
				defer os.RemoveAll(dir)
				program, err = Find(context.Background(), dir)
			}
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
		}
		code := m.Run()
		for _, h := range []*lab.Host{shared, prepared} {
			if h == nil {
				continue
			}
			if err := h.Close(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				code = 1
			}
		}
		return code
	}()
	os.Exit(code)
}

// host is a host with rpm-ostree, and the test that it serves.
type host struct {
	*lab.Host

	t   *testing.T
	ctx context.Context //nolint:containedctx // the test's
}

// limit is how long a test may take at most, on a machine that does other things too.
const limit = 3 * time.Minute

// need is the base of hosts with the program.
func need(ctx context.Context, t *testing.T) *lab.Base {
	t.Helper()
	base := lab.Need(t)
	if prepared == nil {
		h, err := Prepare(ctx, base, program, Options{})
		if err != nil {
			t.Fatal(err)
		}
		prepared = h
	}
	return prepared.Base()
}

// boot makes a host for one test.
func boot(t *testing.T) *host {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	base := need(ctx, t)
	h, err := base.Boot(ctx, lab.Options{Name: "rpm", Fuse: program.Real})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		showJournal(t, h)
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return &host{h, t, ctx}
}

func showJournal(t *testing.T, h *lab.Host) {
	t.Helper()
	if t.Failed() {
		if text, err := h.Journal(context.Background()); err == nil {
			t.Log(text)
		}
	}
}

// shared is the host of those tests that leave its deployments as they are, but for a staged one.
var shared *lab.Host

// share is the shared host, without what the test before may have left.
func share(t *testing.T) *host {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	base := need(ctx, t)
	if shared == nil {
		h, err := base.Boot(ctx, lab.Options{Name: "shared", Fuse: program.Real})
		if err != nil {
			t.Fatal(err)
		}
		shared = h
	}
	t.Cleanup(func() { showJournal(t, shared) })
	h := &host{shared, t, ctx}
	h.shell("rm -rf " + fault.Dir + " /etc/rpm-ostreed.conf; systemctl stop rpm-ostreed")
	h.ok("cleanup", "-p")
	return h
}

// standIn skips a test, or a part of one, that a real rpm-ostree can't take.
func standIn(t *testing.T, why string) {
	t.Helper()
	if program.Real {
		t.Skip("not on a real rpm-ostree: " + why)
	}
}

// Why not.
const (
	faults = "it has no faults to switch on"
	images = "the lab has no registry, and no container storage"
)

// answer is what a program said and how it ended.
type answer struct {
	stdout, stderr string
	exit           int
}

// run runs a program on the host.
func (h *host) run(argv ...string) answer {
	h.t.Helper()
	stdout, stderr, exit, err := h.Exec(h.ctx, nil, argv...)
	if err != nil {
		h.t.Fatal(err)
	}
	return answer{string(stdout), string(stderr), exit}
}

// asUnit runs a program on the host as a systemd unit of its own.
func (h *host) asUnit(argv ...string) answer {
	h.t.Helper()
	return h.run(append([]string{"systemd-run", "--quiet", "--pipe", "--wait"}, argv...)...)
}

// withdraw takes the packages of a name out of the repository.
func (h *host) withdraw(name string) {
	h.t.Helper()
	h.shell("rm " + repository + "/" + name + "-[0-9]*.rpm")
}

// ok runs rpm-ostree, which has to succeed, and returns what it said.
func (h *host) ok(args ...string) string {
	h.t.Helper()
	a := h.run(append([]string{"rpm-ostree"}, args...)...)
	if a.exit != 0 || a.stderr != "" {
		h.t.Fatalf("rpm-ostree %s: exit %d: %s%s", strings.Join(args, " "), a.exit, a.stdout, a.stderr)
	}
	return a.stdout
}

// refused runs rpm-ostree, which has to fail with this text after "error: ".
func (h *host) refused(text string, args ...string) {
	h.t.Helper()
	a := h.run(append([]string{"rpm-ostree"}, args...)...)
	if a.exit != 1 || a.stderr != "error: "+text+"\n" {
		h.t.Errorf("rpm-ostree %s: exit %d: %q, want 1 with %q", strings.Join(args, " "), a.exit, a.stderr, text)
	}
}

// shell runs a line of shell, which has to succeed.
func (h *host) shell(line string) string {
	h.t.Helper()
	text, err := h.Output(h.ctx, "sh", "-ec", line)
	if err != nil {
		h.t.Fatal(err)
	}
	return strings.TrimSpace(text)
}

func (d deployment) yes(key string) bool {
	b, _ := d[key].(bool)
	return b
}

// deployment is a deployment of status --json.
type deployment map[string]any

func (d deployment) text(key string) string {
	s, _ := d[key].(string)
	return s
}

func (d deployment) list(key string) []string {
	all, _ := d[key].([]any)
	list := []string{}
	for _, one := range all {
		s, _ := one.(string)
		list = append(list, s)
	}
	return list
}

// status is what status --json says.
type status struct {
	Deployments  []deployment      `json:"deployments"`
	Transaction  []string          `json:"transaction"`
	CachedUpdate any               `json:"cached-update"` //nolint:tagliatelle // rpm-ostree's key
	UpdateDriver map[string]string `json:"update-driver"` //nolint:tagliatelle // rpm-ostree's key
}

func (h *host) status() status {
	h.t.Helper()
	var s status
	if err := json.Unmarshal([]byte(h.ok("status", "--json")), &s); err != nil {
		h.t.Fatal(err)
	}
	return s
}

// staged is the first deployment, which has to be staged.
func (h *host) staged() deployment {
	h.t.Helper()
	d := h.status().Deployments[0]
	if !d.yes("staged") {
		h.t.Fatalf("nothing is staged: %v", d)
	}
	return d
}

// locked says whether ostree will leave the staged deployment alone at shutdown.
func (h *host) locked() bool {
	return strings.Contains(h.shell("ostree admin status"), lockedMark)
}

// arguments are the kernel arguments of the first deployment but for ostree=.
func (h *host) arguments() string {
	all := slices.DeleteFunc(strings.Fields(h.ok("kargs")), func(a string) bool { return strings.HasPrefix(a, "ostree=") })
	return strings.Join(all, " ")
}
