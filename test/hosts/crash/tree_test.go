// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/test/lab/snapshot"
	"github.com/noderefit/noderefit/test/schemas"
	"github.com/noderefit/noderefit/transaction"
)

// own are the agent's own places below a root; everything else is the node's.
var own = []string{"var/lib/machine-config-daemon", "etc/machine-config-daemon", "run/machine-config-daemon"}

// picture is the node as a configuration has it: everything outside the agent's own places, with the names that are one
// file brought together.
type picture struct {
	tree  snapshot.Tree
	links map[string]string // path -> first path of the same inode, where a file has several
}

func take(root string) (picture, error) {
	tree, err := snapshot.Take(root, own...)
	if err != nil {
		return picture{}, err
	}
	p := picture{tree: tree, links: map[string]string{}}
	names := map[uint64][]string{}
	for name, e := range tree {
		if e.Mode&unix.S_IFMT == unix.S_IFREG {
			names[e.Inode] = append(names[e.Inode], name)
		}
	}
	for _, same := range names {
		if slices.Sort(same); len(same) > 1 {
			for _, name := range same {
				p.links[name] = same[0]
			}
		}
	}
	return p, nil
}

// differs says how p is not what want is.
func (p picture) differs(want picture) []string {
	out := snapshot.Diff(want.tree, p.tree, snapshot.Content)
	for name := range p.tree {
		if p.links[name] != want.links[name] {
			out = append(out, fmt.Sprintf("%s: one file with %q, was with %q", name, p.links[name], want.links[name]))
		}
	}
	return out
}

// side is one of the two ends of an update.
type side struct {
	config  string // "" before the first
	doc     string // the file that it was applied from
	picture picture
	drifted bool // the host does not match the configuration that it has
}

// scenario is an update from one tree to another, by one command.
type scenario struct {
	name     string
	start    string // a tree to be copied
	command  []string
	from, to side
	again    []string // what must work afterwards, and end at to
}

func (s *scenario) String() string { return s.name }

// errLost and errTorn are what a cut must never leave.
var (
	errTorn = errors.New("torn")
	errLost = errors.New("lost")
)

// judge asks the agent and the disk where the tree at root is, and whether they agree. It returns the side: an update
// has ended there.
func (s *scenario) judge(binary, root string) (*side, error) {
	at, err := s.where(binary, root)
	counted.Ended(at != nil)
	return at, err
}

func (s *scenario) where(binary, root string) (*side, error) {
	found, err := take(root)
	if err != nil {
		return nil, err
	}
	toFrom, toTo := found.differs(s.from.picture), found.differs(s.to.picture)
	var at *side
	switch {
	case len(toTo) == 0:
		at = &s.to
	case len(toFrom) == 0:
		at = &s.from
	default:
		near, far, other := &s.from, &s.to, len(toTo)
		if len(toTo) < len(toFrom) {
			near, far, other, toFrom = &s.to, &s.from, len(toFrom), toTo
		}
		return nil, fmt.Errorf("%w: %d differences from %q, and from %q these %d:\n  %s", errTorn,
			other, far.config, near.config, len(toFrom), strings.Join(toFrom[:min(len(toFrom), 30)], "\n  "))
	}
	r, err := must(binary, root, "status", "-o", "json")
	if err != nil {
		return at, fmt.Errorf("%w: %w", errLost, err)
	}
	status := host.Status{}
	if err := errors.Join(schemas.Check([]byte(r.stdout)), json.Unmarshal([]byte(r.stdout), &status)); err != nil {
		return at, fmt.Errorf("%w: status printed %q: %w", errLost, r.stdout, err)
	}
	if status.Config.Committed != at.config || status.Config.Pending != "" {
		return at, fmt.Errorf("%w: the disk has %q, status says committed %q, pending %q (%s: %s)", errLost,
			at.config, status.Config.Committed, status.Config.Pending, status.State, status.Reason)
	}
	return at, nil
}

// verified holds the agent's own comparison against the disk's side.
func (s *scenario) verified(binary, root string, at *side) error {
	if at.config == "" {
		return nil
	}
	r, err := run(binary, root, "", "verify", "--config", at.doc)
	if err != nil || at.drifted && r.exit == 4 || r.exit == 0 && r.errorLine() == "" {
		return err
	}
	return fmt.Errorf("%w: verify with %q on the disk: %s", errTorn, at.config, r)
}

// settled judges a tree that was recovered, and then does again what was cut.
func (s *scenario) settled(binary, root string) error {
	at, err := s.judge(binary, root)
	if err != nil {
		return err
	}
	if err := s.verified(binary, root, at); err != nil {
		return err
	}
	if _, err := must(binary, root, s.again...); err != nil {
		return fmt.Errorf("%w: the update after the cut: %w", errTorn, err)
	}
	if err := s.ends(binary, root, &s.to); err != nil {
		return fmt.Errorf("after the update that followed the cut: %w", err)
	}
	return nil
}

// ends judges a tree that can only be on one side.
func (s *scenario) ends(binary, root string, want *side) error {
	at, err := s.judge(binary, root)
	if err != nil {
		return err
	}
	if at != want {
		return fmt.Errorf("%w: it is on %q", errTorn, at.config)
	}
	return tidy(root)
}

// tidy finds the temporary names that are still in a tree.
func tidy(root string) error {
	var left []string
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if strings.HasPrefix(filepath.Base(path), ".noderefit-") {
			left = append(left, strings.TrimPrefix(path, root))
		}
		return err
	})
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("%w: left behind: %v", errTorn, left)
	}
	return err
}

// report counts what a cut left, and fails the test where it may not.
func report(t *testing.T, where string, err error) {
	t.Helper()
	switch {
	case err == nil:
		return
	case errors.Is(err, errTorn):
		counted.Torn.Add(1)
	case errors.Is(err, errLost):
		counted.Lost.Add(1)
	}
	t.Errorf("%s: %v", where, err)
}

// trace returns the points that a command passes on a tree, in order, and leaves the tree as the command does.
func trace(binary, root string, command ...string) ([]string, error) {
	file := fmt.Sprintf("%s.trace", root)
	defer os.Remove(file)
	r, err := run(binary, root, command[0]+" trace "+file, command...)
	if err == nil && r.exit != 0 {
		err = fmt.Errorf("%s: %s", command[0], r)
	}
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n"), err
}

// prepare runs the scenario without a cut, takes the picture of its end, and returns its points.
func (s *scenario) prepare(t *testing.T, binary string) []string {
	t.Helper()
	var err error
	if s.from.picture, err = take(s.start); err != nil {
		t.Fatal(err)
	}
	root, err := copyTree(s.start)
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(root)
	points, err := trace(binary, root, s.command...)
	if err != nil {
		t.Fatalf("%s without a cut: %v", s, err)
	}
	if s.to.picture, err = take(root); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.ends(binary, root, &s.to), s.verified(binary, root, &s.to)); err != nil {
		t.Fatalf("%s without a cut: %v", s, err)
	}
	if len(s.to.picture.differs(s.from.picture)) == 0 {
		t.Fatalf("%s changes nothing", s)
	}
	if len(points) == 0 {
		t.Fatalf("%s passes no point", s)
	}
	return points
}

// cut copies the start, and runs the scenario's command with a fault at point n.
func (s *scenario) cut(binary, mode string, n int) (string, result, error) {
	root, err := copyTree(s.start)
	if err != nil {
		return "", result{}, err
	}
	r, err := run(binary, root, fmt.Sprintf("%s %s %d", s.command[0], mode, n), s.command...)
	if err == nil && mode == "kill" {
		counted.Cuts.Add(1)
		if !r.killed {
			err = fmt.Errorf("it was to be killed: %s", r)
		}
	}
	return root, r, err
}

// selected says which of n points are cut at: all of them, or in short mode one in seven.
func selected(n int) []int {
	var out []int
	for i := 1; i <= n; i++ {
		if !testing.Short() || i%7 == 1 {
			out = append(out, i)
		}
	}
	return out
}

// fixture is a tree at A, from which most scenarios start, and the documents.
type fixture struct {
	binary        string
	pristine, onA string
	docs          map[string]string
}

func newFixture(t *testing.T, a, b string) *fixture {
	t.Helper()
	f := &fixture{pristine: pristine(t), binary: binary(t, faulty), docs: documents(t, map[string]string{"a": a, "b": b})}
	var err error
	if f.onA, err = copyTree(f.pristine); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(f.onA); _ = os.RemoveAll(f.pristine) })
	f.do(t, f.onA, "apply", "--config", f.docs["a"])
	return f
}

func (f *fixture) do(t *testing.T, root string, args ...string) {
	t.Helper()
	if _, err := must(f.binary, root, args...); err != nil {
		t.Fatal(err)
	}
}

// apply is the update of the tree at start, on from, to the configuration to.
func (f *fixture) apply(name, start, from, to string) *scenario {
	command := []string{"apply", "--config", f.docs[to]}
	return &scenario{name: name, start: start, command: command, again: command,
		from: side{config: from, doc: f.docs[from]}, to: side{config: to, doc: f.docs[to]}}
}

// scenarios are the ways between two configurations.
func (f *fixture) scenarios(t *testing.T) []*scenario {
	t.Helper()
	onB, err := copyTree(f.onA)
	if err != nil {
		t.Fatal(err)
	}
	drifted, err := copyTree(f.onA)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(onB); _ = os.RemoveAll(drifted) })
	f.do(t, onB, "apply", "--config", f.docs["b"])
	f.drift(t, drifted)

	back := f.apply("back from B to A", onB, "b", "a")
	back.command = []string{"rollback"}
	again := f.apply("A again over drift", drifted, "a", "a")
	over := f.apply("B over drift", drifted, "a", "b")
	again.from.drifted, over.from.drifted = true, true
	return []*scenario{
		f.apply("first A", f.pristine, "", "a"),
		f.apply("from A to B", f.onA, "a", "b"),
		back, again, over,
	}
}

// drift changes what A put into a tree in every way that people do.
func (f *fixture) drift(t *testing.T, root string) {
	t.Helper()
	at := func(name string) string { return filepath.Join(root, name) }
	for _, err := range []error{
		os.WriteFile(at("etc/changed.conf"), []byte("by hand\n"), 0o644),
		os.WriteFile(at("etc/systemd/system/changed.service"), []byte("[Service]\nExecStart=/bin/false\n"), 0o644),
		os.Chmod(at("etc/mode.conf"), 0o666),
		os.Chown(at("etc/owner.conf"), 3, 4),
		os.Remove(at("etc/only-a.conf")),
		os.Remove(at("etc/systemd/system/multi-user.target.wants/only-a.service")),
		os.Remove(at("etc/link-changed")), os.Symlink("three", at("etc/link-changed")),
		os.Remove(at("etc/zipped.conf")), os.Symlink("same.conf", at("etc/zipped.conf")),
		os.Remove(at("etc/hard")), os.WriteFile(at("etc/hard"), []byte("a file of its own\n"), 0o600),
		os.Chmod(at("etc/dir-mode"), 0o700),
		os.WriteFile(at("var/home/core/.ssh/authorized_keys.d/ignition"), []byte("ssh-ed25519 EVIL\n"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestKillAtEveryPoint kills each way between two configurations at every point that it passes.
func TestKillAtEveryPoint(t *testing.T) {
	f := newFixture(t, everyKindA, everyKindB)
	for _, s := range f.scenarios(t) {
		t.Run(s.name, func(t *testing.T) {
			points := s.prepare(t, f.binary)
			chosen := selected(len(points))
			each(len(chosen), func(i int) {
				n := chosen[i-1]
				root, _, err := s.cut(f.binary, "kill", n)
				defer os.RemoveAll(root)
				if err == nil {
					err = f.recovers(s, root)
				}
				report(t, fmt.Sprintf("%s, killed at point %d (%s)", s, n, points[n-1]), err)
			})
		})
	}
}

// recovers recovers a tree that was cut, and holds it to what must be true then.
func (f *fixture) recovers(s *scenario, root string) error {
	if _, err := must(f.binary, root, "recover"); err != nil {
		return fmt.Errorf("%w: %w", errLost, err)
	}
	if err := tidy(root); err != nil {
		return fmt.Errorf("after recover: %w", err)
	}
	return s.settled(f.binary, root)
}

// TestUpdateAfterAKillNeedsNoRecover kills at every point, and then asks for the configuration before and for the new
// one, without anybody having called recover.
func TestUpdateAfterAKillNeedsNoRecover(t *testing.T) {
	f := newFixture(t, everyKindA, everyKindB)
	s := f.apply("from A to B", f.onA, "a", "b")
	points := s.prepare(t, f.binary)

	// Back on A after B was decided, there are still the directories that B's files needed.
	onB, err := copyTree(f.onA)
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(onB)
	f.do(t, onB, s.again...)
	home := f.apply("back to A", onB, "b", "a")
	home.prepare(t, f.binary)
	home.from = s.from // what it is as long as B was not decided

	chosen := selected(len(points))
	each(len(chosen), func(i int) {
		n := chosen[i-1]
		root, _, err := s.cut(f.binary, "kill", n)
		defer os.RemoveAll(root)
		if err == nil {
			if _, err = must(f.binary, root, home.command...); err == nil {
				_, err = home.judge(f.binary, root)
			}
		}
		if err == nil {
			if _, err = must(f.binary, root, s.command...); err == nil {
				err = s.ends(f.binary, root, &s.to)
			}
		}
		report(t, fmt.Sprintf("%s, killed at point %d (%s), no recover", s, n, points[n-1]), err)
	})
}

// TestKillRecoveryAtEveryPoint kills the update at every point, and then recovery from that at every one of its own.
func TestKillRecoveryAtEveryPoint(t *testing.T) {
	f := newFixture(t, littleA, littleB)
	s := f.apply("from A to B", f.onA, "a", "b")
	points := s.prepare(t, f.binary)
	chosen := selected(len(points))
	each(len(chosen), func(i int) {
		n := chosen[i-1]
		where := fmt.Sprintf("%s, killed at point %d (%s)", s, n, points[n-1])
		root, _, err := s.cut(f.binary, "kill", n)
		defer os.RemoveAll(root)
		if err != nil {
			report(t, where, err)
			return
		}
		clean, err := copyTree(root)
		defer os.RemoveAll(clean)
		var steps []string
		if err == nil {
			steps, err = trace(f.binary, clean, "recover")
		}
		if err == nil {
			_, err = s.judge(f.binary, clean)
		}
		report(t, where, err)
		for _, m := range selected(len(steps)) {
			report(t, fmt.Sprintf("%s, recover killed at point %d (%s)", where, m, steps[m-1]), f.twice(s, root, m))
		}
	})
}

// twice kills recovery of a cut tree at its point m, and recovers from that.
func (f *fixture) twice(s *scenario, cut string, m int) error {
	root, err := copyTree(cut)
	if err != nil {
		return err
	}
	defer os.RemoveAll(root)
	counted.Cuts.Add(1)
	r, err := run(f.binary, root, fmt.Sprintf("recover kill %d", m), "recover")
	if err == nil && !r.killed {
		err = fmt.Errorf("it was to be killed: %s", r)
	}
	if err != nil {
		return err
	}
	return f.recovers(s, root)
}

// TestErrorAtEveryPoint lets the effect at every point fail: then the update takes itself back, or is done, and nothing
// is left to recover.
func TestErrorAtEveryPoint(t *testing.T) {
	f := newFixture(t, everyKindA, everyKindB)
	for _, s := range f.scenarios(t) {
		t.Run(s.name, func(t *testing.T) {
			points := s.prepare(t, f.binary)
			chosen := selected(len(points))
			each(len(chosen), func(i int) {
				n := chosen[i-1]
				root, r, err := s.cut(f.binary, "error", n)
				defer os.RemoveAll(root)
				if err == nil {
					err = f.failed(s, root, r)
				}
				report(t, fmt.Sprintf("%s, error at point %d (%s)", s, n, points[n-1]), err)
			})
		})
	}
}

func (f *fixture) failed(s *scenario, root string, r result) error {
	at, err := s.judge(f.binary, root)
	if err != nil {
		return err
	}
	if at == &s.from && (r.exit == 0 || !strings.Contains(r.errorLine(), "fault injected")) {
		return fmt.Errorf("still on %q, and: %s", at.config, r)
	}
	if err := tidy(root); err != nil {
		return err
	}
	before, err := os.ReadFile(filepath.Join(root, transaction.StateDir, "boot.json"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if _, err := must(f.binary, root, "recover"); err != nil {
		return fmt.Errorf("%w: %w", errLost, err)
	}
	after, err := os.ReadFile(filepath.Join(root, transaction.StateDir, "boot.json"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if string(before) != string(after) {
		return fmt.Errorf("%w: something was left to recover: %s, then %s", errTorn, before, after)
	}
	return s.settled(f.binary, root)
}
