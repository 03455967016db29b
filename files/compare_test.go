// SPDX-License-Identifier: Apache-2.0

package files_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	"github.com/noderefit/noderefit/files"
	"golang.org/x/sys/unix"
)

func digest(s string) string { return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(s))) }

// differences are "what: expected, found", or the error.
func differences(t *testing.T, r *files.Root, w files.Want) []string {
	t.Helper()
	ds, err := r.Compare(w)
	must(t, err)
	var out []string
	for _, d := range ds {
		if diff := cmp.Diff(w, d.Want); diff != "" {
			t.Errorf("the difference is about another path: %s", diff)
		}
		out = append(out, fmt.Sprintf("%s: %s, %s", d.What, d.Expected, d.Found))
		if s := d.String(); !strings.HasPrefix(s, w.Path+": ") || !strings.Contains(s, d.Found) {
			t.Errorf("it prints as %q", s)
		}
	}
	return out
}

func TestCompare(t *testing.T) {
	r, dir := host(t, "etc/file=right", "etc/hard=x", "etc/link -> file", "etc/dir/", "home -> var/home", "var/home/",
		"dangling -> nowhere", "tofile -> etc/file")
	must(t, os.Chmod(filepath.Join(dir, "etc/file"), 0o640))
	must(t, os.Chmod(filepath.Join(dir, "etc/dir"), 0o750))
	must(t, os.Link(filepath.Join(dir, "etc/hard"), filepath.Join(dir, "etc/hard2")))
	must(t, unix.Mkfifo(filepath.Join(dir, "etc/fifo"), 0o640))
	uid, gid := os.Getuid(), os.Getgid()
	me, other := fmt.Sprintf("%d:%d", uid, gid), fmt.Sprintf("%d:%d", uid+1, gid)
	dirNode := mine(files.Node{Type: files.Directory, Mode: 0o750})
	linkNode := mine(files.Node{Type: files.Symlink, Target: "file"})
	absent := files.Node{Type: files.Absent}
	node := func(n files.Node, change func(*files.Node)) files.Node { change(&n); return n }

	for _, tt := range []struct {
		name string
		want files.Want
		diff []string
	}{
		{"equal file", files.Want{Path: "/etc/file", Node: file("right")}, nil},
		{"equal link", files.Want{Path: "/etc/link", Node: linkNode}, nil},
		{"equal directory", files.Want{Path: "/etc/dir", Node: dirNode}, nil},
		{"absent", files.Want{Path: "/etc/none", Node: absent}, nil},
		{"absent below a file", files.Want{Path: "/etc/file/x", Node: absent}, nil},

		{"other bytes", files.Want{Path: "/etc/file", Node: file("wrong")},
			[]string{"contents: " + digest("wrong") + ", " + digest("right")}},
		{"other length", files.Want{Path: "/etc/file", Node: file("right, and more")},
			[]string{"contents: " + digest("right, and more") + ", " + digest("right")}},
		{"empty wanted", files.Want{Path: "/etc/file", Node: file("")},
			[]string{"contents: " + digest("") + ", " + digest("right")}},
		{"mode", files.Want{Path: "/etc/file", Node: node(file("right"), func(n *files.Node) { n.Mode = 0o600 })},
			[]string{"mode: 0600, 0640"}},
		{"setuid", files.Want{Path: "/etc/file", Node: node(file("right"), func(n *files.Node) { n.Mode = 0o4640 })},
			[]string{"mode: 4640, 0640"}},
		{"user", files.Want{Path: "/etc/file", Node: node(file("right"), func(n *files.Node) { n.UID++ })},
			[]string{"owner: " + other + ", " + me}},
		{"group", files.Want{Path: "/etc/dir", Node: node(dirNode, func(n *files.Node) { n.GID++ })},
			[]string{fmt.Sprintf("owner: %d:%d, %s", uid, gid+1, me)}},
		{"label", files.Want{Path: "/etc/none", Node: node(file(""), func(n *files.Node) { n.Label = etcLabel })},
			[]string{"missing: file, absent"}},
		{"everything of a file", files.Want{Path: "/etc/file",
			Node: node(file("wrong"), func(n *files.Node) { n.Mode, n.UID = 0o4755, n.UID+1 })},
			[]string{"contents: " + digest("wrong") + ", " + digest("right"), "mode: 4755, 0640", "owner: " + other + ", " + me}},
		{"directory mode", files.Want{Path: "/etc/dir", Node: node(dirNode, func(n *files.Node) { n.Mode = 0o755 })},
			[]string{"mode: 0755, 0750"}},
		{"link target", files.Want{Path: "/etc/link", Node: node(linkNode, func(n *files.Node) { n.Target = "/etc/file" })},
			[]string{"target: /etc/file, file"}},
		{"link owner", files.Want{Path: "/etc/link", Node: node(linkNode, func(n *files.Node) { n.UID++ })},
			[]string{"owner: " + other + ", " + me}},
		{"a link has no mode", files.Want{Path: "/etc/link", Node: node(linkNode, func(n *files.Node) { n.Mode = 0o600 })}, nil},

		{"missing file", files.Want{Path: "/etc/none", Node: file("")}, []string{"missing: file, absent"}},
		{"missing below a file", files.Want{Path: "/etc/file/x", Node: linkNode}, []string{"missing: link, absent"}},
		{"missing below a dangling link", files.Want{Path: "/dangling/x", Node: dirNode}, []string{"missing: directory, absent"}},
		{"link for a file", files.Want{Path: "/etc/link", Node: file("right")}, []string{"type: file, link"}},
		{"file for a link", files.Want{Path: "/etc/file", Node: linkNode}, []string{"type: link, file"}},
		{"directory for a file", files.Want{Path: "/etc/dir", Node: file("")}, []string{"type: file, directory"}},
		{"FIFO for a file", files.Want{Path: "/etc/fifo", Node: file("")}, []string{"type: file, other"}},
		{"file that should go", files.Want{Path: "/etc/file", Node: absent}, []string{"type: absent, file"}},
		{"link that should go", files.Want{Path: "/dangling", Node: absent}, []string{"type: absent, link"}},

		{"parent", files.Want{Path: "/etc/dir", Exists: true}, nil},
		{"parent through a link", files.Want{Path: "/home", Exists: true}, nil},
		{"the root", files.Want{Path: "/", Exists: true}, nil},
		{"parent that is missing", files.Want{Path: "/srv/x", Exists: true}, []string{"missing: directory, absent"}},
		{"parent that is a file", files.Want{Path: "/etc/file", Exists: true}, []string{"type: directory, file"}},
		{"parent that is a link to a file", files.Want{Path: "/tofile", Exists: true}, []string{"type: directory, link"}},
		{"parent that is a broken link", files.Want{Path: "/dangling", Exists: true}, []string{"type: directory, link"}},

		{"hard link", files.Want{Path: "/etc/hard2", HardTo: "/etc/hard"}, nil},
		{"hard link by another way", files.Want{Path: "/etc/hard2", HardTo: "/home/../etc/hard"}, nil},
		{"hard link to another file", files.Want{Path: "/etc/hard2", HardTo: "/etc/file"},
			[]string{"target: hard link to /etc/file, file"}},
		{"hard link missing", files.Want{Path: "/etc/none", HardTo: "/etc/file"},
			[]string{"missing: hard link to /etc/file, absent"}},
		{"hard link to nothing", files.Want{Path: "/etc/hard", HardTo: "/etc/none"},
			[]string{"target: hard link to /etc/none, file"}},
		{"hard link that is a link", files.Want{Path: "/etc/link", HardTo: "/etc/file"},
			[]string{"target: hard link to /etc/file, link"}},
		{"a directory is no hard link", files.Want{Path: "/etc/dir", HardTo: "/etc/dir"},
			[]string{"target: hard link to /etc/dir, directory"}},

		{"enablement link missing", files.Want{Path: "/etc/none", Node: linkNode, Aspect: files.Enabled},
			[]string{"enabled: link, absent"}},
		{"enablement link too many", files.Want{Path: "/etc/link", Node: absent, Aspect: files.Enabled},
			[]string{"enabled: absent, link"}},
		{"mask that leads elsewhere", files.Want{Path: "/etc/link",
			Node: node(linkNode, func(n *files.Node) { n.Target = "/dev/null" }), Aspect: files.Masked},
			[]string{"masked: /dev/null, file"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.diff, differences(t, r, tt.want)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestCompareLabels(t *testing.T) {
	needRoot(t)
	r, _ := host(t, "etc/")
	n := file("x")
	n.Label = "unconfined_u:object_r:etc_t:s0"
	must(t, r.Stage("/etc", "file", n))
	for label, want := range map[string][]string{
		"":               nil, // not managed
		n.Label:          nil,
		etcLabel:         nil, // who made it does not matter
		shadowLabel:      {"label: " + shadowLabel + ", " + n.Label},
		etcLabel + ":c1": {"label: " + etcLabel + ":c1, " + n.Label},
	} {
		wanted := n
		wanted.Label = label
		if diff := cmp.Diff(want, differences(t, r, files.Want{Path: "/etc/file", Node: wanted})); diff != "" {
			t.Errorf("%q, -want +got:\n%s", label, diff)
		}
	}
	n.Mode, n.Data, n.UID, n.Label = 0o600, []byte("y"), 1, shadowLabel
	if got := differences(t, r, files.Want{Path: "/etc/file", Node: n}); len(got) != 4 {
		t.Errorf("everything differs, found %q", got)
	}
	must(t, unix.Removexattr(filepath.Join(r.Path(), "etc/file"), "security.selinux"))
	n.Mode, n.Data, n.UID = 0o640, []byte("x"), 0
	if got := differences(t, r, files.Want{Path: "/etc/file", Node: n}); len(got) != 1 {
		t.Errorf("the label is missing, found %q", got)
	}
}

// What is found is compared by bytes and shown by digest.
func TestComparePrintsNoContents(t *testing.T) {
	r, _ := host(t, "etc/file=hunter2")
	got := fmt.Sprint(differences(t, r, files.Want{Path: "/etc/file", Node: file("correct horse")}))
	if strings.Contains(got, "hunter2") || strings.Contains(got, "horse") {
		t.Errorf("it prints %s", got)
	}
}

// A FIFO's other end must not notice, and neither must a device: nothing but a regular file is ever opened.
func TestCompareOpensNoFIFO(t *testing.T) {
	r, dir := host(t, "etc/")
	fifo := filepath.Join(dir, "etc/fifo")
	must(t, unix.Mkfifo(fifo, 0o640))
	watch, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	must(t, err)
	defer func() { _ = unix.Close(watch) }()
	_, err = unix.InotifyAddWatch(watch, fifo, unix.IN_OPEN)
	must(t, err)

	for _, w := range []files.Want{
		{Path: "/etc/fifo", Node: file("x")}, {Path: "/etc/fifo", Exists: true}, {Path: "/etc/fifo", HardTo: "/etc/fifo"},
	} {
		if got := differences(t, r, w); len(got) != 1 {
			t.Errorf("%+v: %q", w, got)
		}
	}
	for _, get := range []func(string) ([]byte, error){r.Contents, r.ReadFile} {
		if _, err := get("/etc/fifo"); err == nil {
			t.Error("read a FIFO")
		}
	}
	must(t, r.SetMeta("/etc/fifo", mine(files.Node{Type: files.Other, Mode: 0o600})))
	if n, err := unix.Read(watch, make([]byte, 1024)); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("the FIFO was opened (%d bytes of events, %v)", n, err)
	}
	// The watch sees what it is there for.
	fd, err := unix.Open(fifo, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	must(t, err)
	must(t, unix.Close(fd))
	if n, err := unix.Read(watch, make([]byte, 1024)); err != nil || n == 0 {
		t.Errorf("the watch sees nothing: %v", err)
	}
}

func TestCompareOfAnUnreadableFileIsAnError(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root reads everything")
	}
	r, dir := host(t, "etc/file=x", "closed/file=x")
	must(t, os.Chmod(filepath.Join(dir, "etc/file"), 0))
	must(t, os.Chmod(filepath.Join(dir, "closed"), 0))
	defer func() { must(t, os.Chmod(filepath.Join(dir, "closed"), 0o700)) }()
	for _, name := range []string{"/etc/file", "/closed/file"} {
		_, err := r.Compare(files.Want{Path: name, Node: file("y")})
		if !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A file that the disk can't read any more is drift, which the next apply replaces: as an error it would stop every
// update, also the one that writes it anew.
func TestAFileThatTheDiskCannotReadDiffers(t *testing.T) {
	needRoot(t)
	r, dir := host(t, "etc/file=x")
	mount(t, "/proc/self/mem", filepath.Join(dir, "etc/file"), "", unix.MS_BIND, "") // of no size, and whose first byte is EIO
	w := files.Want{Path: "/etc/file", Node: file("")}
	w.Node.Mode, w.Node.UID, w.Node.GID = 0o600, 0, 0
	d, err := r.Compare(w)
	if err != nil || len(d) != 1 || d[0].What != files.Contents || d[0].Found != "unreadable: input/output error" {
		t.Errorf("%v, %v", d, err)
	}
}

// BenchmarkCompare100 is one drift check of a usual worker: a hundred files of 1 to 8 KiB that are all as they should be.
func BenchmarkCompare100(b *testing.B) {
	r, dir := host(b, "etc/")
	var wants []files.Want
	for i := range 100 {
		sub := fmt.Sprintf("etc/%d/conf.d", i%10)
		mkdir(b, filepath.Join(dir, sub))
		n := file(strings.Repeat("x", 1024+i*7168/99))
		must(b, r.Stage("/"+sub, fmt.Sprint(i), n))
		wants = append(wants, files.Want{Path: fmt.Sprintf("/%s/%d", sub, i), Node: n})
	}
	for b.Loop() {
		for _, w := range wants {
			if d, err := r.Compare(w); err != nil || len(d) > 0 {
				b.Fatal(d, err)
			}
		}
	}
}

func TestAFileHasTheBytesOfAReader(t *testing.T) {
	dir := t.TempDir()
	r, err := files.Open(dir)
	must(t, err)
	defer r.Close()
	const piece = 64 << 10
	for _, size := range []int{0, 1, piece - 1, piece, piece + 1, 3 * piece} {
		data := strings.Repeat("a", size)
		must(t, os.WriteFile(filepath.Join(dir, "file"), []byte(data), 0o600))
		wants := map[string]bool{data: true, data + "a": false, data + "\x00": false}
		if size > 0 {
			wants[data[1:]], wants[data[1:]+"b"], wants["b"+data[1:]] = false, false, false
		}
		for want, is := range wants {
			if has, err := r.Has("/file", iotest.HalfReader(strings.NewReader(want))); has != is || err != nil {
				t.Errorf("of %d bytes, asked for %d: %t, %v", size, len(want), has, err)
			}
		}
	}
	must(t, os.Symlink("file", filepath.Join(dir, "link")))
	for _, name := range []string{"/link", "/none", "/"} {
		if has, err := r.Has(name, strings.NewReader("")); has || err != nil {
			t.Errorf("%s: %t, %v", name, has, err)
		}
	}
	// Also an error that would make an unreadable file another one is no error of the file.
	for _, fails := range []error{fs.ErrInvalid, unix.EIO} {
		if has, err := r.Has("/file", iotest.ErrReader(fails)); has || !errors.Is(err, fails) || strings.Contains(err.Error(), "/file") {
			t.Errorf("a reader that fails with %v: %t, %v", fails, has, err)
		}
	}
}
