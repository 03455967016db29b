// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/noderefit/noderefit/test/lab/snapshot"
	"github.com/noderefit/noderefit/test/schemas"
)

const daemon = "machine-config-daemon"

type obj = map[string]any

// part puts something into a MachineConfig's spec; ign is its Ignition config.
type part func(spec, ign obj)

// doc is a rendered MachineConfig of these parts.
func doc(name string, parts ...part) string {
	ign := obj{"ignition": obj{"version": "3.5.0"}}
	spec := obj{"config": ign}
	for _, p := range parts {
		p(spec, ign)
	}
	out, err := json.Marshal(obj{
		"apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig",
		"metadata": obj{"name": name}, "spec": spec,
	})
	if err != nil {
		panic(err)
	}
	return string(out)
}

// listed appends to a list of a section, such as storage and files.
func listed(section, list string, entry obj, more ...obj) part {
	for _, m := range more {
		maps.Copy(entry, m)
	}
	return func(_, ign obj) {
		s, _ := ign[section].(obj)
		if s == nil {
			s = obj{}
			ign[section] = s
		}
		entries, _ := s[list].([]any)
		s[list] = append(entries, entry)
	}
}

func withFile(path, contents string, more ...obj) part {
	return listed("storage", "files", obj{"path": path, "mode": 0o644, "contents": obj{"source": dataURL(contents)}}, more...)
}

func withDir(path string, more ...obj) part {
	return listed("storage", "directories", obj{"path": path}, more...)
}

func withLink(path, target string, more ...obj) part {
	return listed("storage", "links", obj{"path": path, "target": target}, more...)
}

func withUnit(name string, more ...obj) part {
	return listed("systemd", "units", obj{"name": name}, more...)
}

func withUser(name string, more ...obj) part {
	return listed("passwd", "users", obj{"name": name}, more...)
}

func withSpec(field string, value any) part { return func(spec, _ obj) { spec[field] = value } }

func withKargs(args ...string) part { return withSpec("kernelArguments", args) }

func mode(m int) obj { return obj{"mode": m} }

func contents(text string) obj { return obj{"contents": text} }

func dropin(name, text string) obj { return obj{"dropins": []any{obj{"name": name, "contents": text}}} }

func dataURL(contents string) string {
	return "data:;base64," + base64.StdEncoding.EncodeToString([]byte(contents))
}

// gzipped is the contents of a file in its compressed spelling.
func gzipped(text string) obj {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err := z.Write([]byte(text))
	if err := errors.Join(err, z.Close()); err != nil {
		panic(err)
	}
	return obj{"contents": obj{"source": dataURL(b.String()), "compression": "gzip"}}
}

// The agent's own state below a root.
var ownState = []string{"etc/machine-config-daemon", "run/machine-config-daemon", "var/lib/machine-config-daemon"}

// tree is a directory that looks like a host.
type tree struct {
	*testing.T
	root string
	docs string // where its documents are written, outside the root
}

// newTree makes a host of a few users and units. Its times lie in the past, so that a write shows.
func newTree(t *testing.T) *tree {
	t.Helper()
	tr := &tree{T: t, root: t.TempDir(), docs: t.TempDir()}
	tr.plant()
	return tr
}

func (tr *tree) plant() {
	tr.Helper()
	for path, text := range map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/bin/bash\n" +
			"core:x:1000:1001:CoreOS Admin:/home/core:/bin/bash\nchrony:x:994:993::/var/lib/chrony:/sbin/nologin\n",
		"etc/group":  "root:x:0:\ncore:x:1001:\nchrony:x:993:\n",
		"etc/shadow": "root:*:19000:0:99999:7:::\ncore:!!:19000:0:99999:7:::\nchrony:!!:19000::::::\n",

		"usr/lib/systemd/system/multi-user.target": "[Unit]\nDescription=Multi-User\n",
		"usr/lib/systemd/system/chronyd.service":   "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n",
		"usr/lib/systemd/system/crio.service":      "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n",
		"usr/lib/systemd/system/nopreset.service":  "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n",
		"usr/lib/systemd/system-preset/90-default.preset": "enable chronyd.service\nenable wanted.service\n" +
			"disable *\n",
		"etc/chrony.conf":     "the image's\n",
		"usr/etc/chrony.conf": "the image's\n",
	} {
		tr.put(path, text, 0o644)
	}
	tr.must(os.Chmod(tr.path("etc/shadow"), 0))
	for _, dir := range append([]string{"etc/systemd/system", "home/core", "var/tmp", "root"}, ownState...) {
		tr.must(os.MkdirAll(tr.path(dir), 0o755))
	}
	tr.must(os.Chown(tr.path("home/core"), 1000, 1001))
	tr.age()
}

// age puts all times of the tree back by an hour.
func (tr *tree) age() {
	tr.Helper()
	past := unix.NsecToTimespec(time.Now().Add(-time.Hour).UnixNano())
	var paths []string
	tr.must(filepath.WalkDir(tr.root, func(path string, _ fs.DirEntry, err error) error {
		paths = append(paths, path)
		return err
	}))
	for _, path := range paths {
		tr.must(unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{past, past}, unix.AT_SYMLINK_NOFOLLOW))
	}
}

func (tr *tree) must(err error) {
	tr.Helper()
	if err != nil {
		tr.Fatal(err)
	}
}

func (tr *tree) path(name string) string { return filepath.Join(tr.root, name) }

func (tr *tree) put(name, text string, perm os.FileMode) {
	tr.Helper()
	tr.must(os.MkdirAll(filepath.Dir(tr.path(name)), 0o755))
	tr.must(os.WriteFile(tr.path(name), []byte(text), perm))
	tr.must(os.Chmod(tr.path(name), perm))
}

func (tr *tree) symlink(target, name string) {
	tr.Helper()
	tr.must(os.MkdirAll(filepath.Dir(tr.path(name)), 0o755))
	tr.must(os.Symlink(target, tr.path(name)))
}

func (tr *tree) read(name string) string {
	tr.Helper()
	data, err := os.ReadFile(tr.path(name))
	tr.must(err)
	return string(data)
}

// run executes a verb on the tree.
func (tr *tree) run(verb string, args ...string) result {
	tr.Helper()
	return run(tr.T, tr.docs, daemon, append([]string{verb, "--root", tr.root}, args...)...)
}

// save writes a document and returns its path.
func (tr *tree) save(document string) string {
	tr.Helper()
	f, err := os.CreateTemp(tr.docs, "*.json")
	tr.must(err)
	_, err = f.WriteString(document)
	tr.must(errors.Join(err, f.Close()))
	return f.Name()
}

func (tr *tree) tryApply(document string, args ...string) result {
	tr.Helper()
	return tr.run("apply", append([]string{"--config", tr.save(document)}, args...)...)
}

func (tr *tree) apply(document string, args ...string) result {
	tr.Helper()
	return tr.tryApply(document, args...).ok(tr.T)
}

// take is a picture of all of the tree but the agent's own state.
func (tr *tree) take() snapshot.Tree {
	tr.Helper()
	s, err := snapshot.Take(tr.root, ownState...)
	tr.must(err)
	return s
}

// all is a picture of the tree with the agent's own state; a lock may be taken and released, and is not looked at.
func (tr *tree) all() snapshot.Tree {
	tr.Helper()
	s, err := snapshot.Take(tr.root, "run/machine-config-daemon")
	tr.must(err)
	return s
}

// same checks that two pictures do not differ to that depth.
func (tr *tree) same(before, after snapshot.Tree, depth snapshot.Depth) {
	tr.Helper()
	if diff := snapshot.Diff(before, after, depth); len(diff) > 0 {
		tr.Errorf("the tree changed:\n%s", strings.Join(diff, "\n"))
	}
}

// has checks what stands at paths: "absent", "file 0644 0:0 text", "dir 0755 0:0", "link 0:0 -> target".
func (tr *tree) has(want map[string]string) {
	tr.Helper()
	for _, path := range slices.Sorted(maps.Keys(want)) {
		if got := tr.what(path); got != want[path] {
			tr.Errorf("/%s is %q, should be %q", path, got, want[path])
		}
	}
}

func (tr *tree) what(name string) string {
	tr.Helper()
	var st unix.Stat_t
	err := unix.Lstat(tr.path(name), &st)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return "absent"
	}
	tr.must(err)
	perm := st.Mode &^ unix.S_IFMT
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return fmt.Sprintf("file %04o %d:%d %s", perm, st.Uid, st.Gid, tr.read(name))
	case unix.S_IFDIR:
		return fmt.Sprintf("dir %04o %d:%d", perm, st.Uid, st.Gid)
	case unix.S_IFLNK:
		target, err := os.Readlink(tr.path(name))
		tr.must(err)
		return fmt.Sprintf("link %d:%d -> %s", st.Uid, st.Gid, target)
	}
	return fmt.Sprintf("something of mode %o", st.Mode)
}

// json decodes a command's one document and fails where there is more than that on standard output, or where it is not
// as its schema says.
func (r result) json(t *testing.T, v any) {
	t.Helper()
	if err := schemas.Check([]byte(r.stdout)); err != nil {
		t.Error(err)
	}
	dec := json.NewDecoder(strings.NewReader(r.stdout))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		t.Fatalf("%v: standard output %.400s, standard error %s", err, r.stdout, r.stderr)
	}
	if rest := strings.TrimSpace(r.stdout[dec.InputOffset():]); rest != "" {
		t.Errorf("after the document: %.200s", rest)
	}
}

// is checks the exit code, that any but 0 comes with one error line, and what the line says.
func (r result) is(t *testing.T, code int, says ...string) {
	t.Helper()
	if r.code != code {
		t.Errorf("exit code %d, should be %d: %s", r.code, code, r.stderr)
	}
	errs := r.lines("error:")
	if len(errs) != min(code, 1) {
		t.Fatalf("%d error lines with exit code %d: %s", len(errs), r.code, r.stderr)
	}
	for _, s := range says {
		if !strings.Contains(errs[0], s) {
			t.Errorf("%q is not in the error: %s", s, errs[0])
		}
	}
}

// statusDoc is what status -o json prints.
type statusDoc struct {
	APIVersion, Kind string

	Unreadable bool `json:"unreadable"`

	Config struct{ Committed, Pending, Previous string }
	State  string
	Phase  string
	Reason string
	Since  string
	OS     string
	Road   string

	Host, Promises string

	Deployments []any
	Transaction obj
	Quarantined []any
	Skipped     []string
}

func (tr *tree) status() statusDoc {
	tr.Helper()
	var s statusDoc
	tr.run("status", "-o", "json").ok(tr.T).json(tr.T, &s)
	return s
}

// committed checks the configuration and that nothing is open.
func (tr *tree) committed(name string) {
	tr.Helper()
	s := tr.status()
	if s.Config.Committed != name || s.Config.Pending != "" || s.State != "Done" || s.Reason != "" {
		tr.Errorf("status is %+v, should be Done with %s", s, name)
	}
}

type driftDoc struct {
	APIVersion, Kind string

	Config string
	Drift  []struct{ Kind, Path, Name, User, What, Expected, Found string }
}

// lines are the drift as "kind subject what".
func (d driftDoc) lines() []string {
	out := []string{}
	for _, e := range d.Drift {
		out = append(out, fmt.Sprintf("%s %s %s", e.Kind, e.Path+e.Name+e.User, e.What))
	}
	slices.Sort(out)
	return out
}

func (tr *tree) verify(args ...string) (result, driftDoc) {
	tr.Helper()
	r := tr.run("verify", append([]string{"-o", "json"}, args...)...)
	var d driftDoc
	if r.code == 0 || r.code == 4 {
		r.json(tr.T, &d)
	}
	return r, d
}

// verified checks that the tree matches its committed configuration.
func (tr *tree) verified() {
	tr.Helper()
	r, d := tr.verify()
	if r.is(tr.T, 0); len(d.Drift) > 0 {
		tr.Errorf("drift: %v", d.Drift)
	}
}

func writeFile(path, text string) error { return os.WriteFile(path, []byte(text), 0o600) }
