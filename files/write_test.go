// SPDX-License-Identifier: Apache-2.0

package files_test

import (
	"bufio"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/noderefit/noderefit/files"
	"golang.org/x/sys/unix"
)

const etcLabel, shadowLabel = "system_u:object_r:etc_t:s0", "system_u:object_r:shadow_t:s0"

func TestStageMakesWhatInspectFinds(t *testing.T) {
	r, dir := host(t, "etc/")
	for _, n := range []files.Node{
		{Type: files.Regular, Mode: 0o644, Data: []byte("x\n")},
		{Type: files.Regular, Mode: 0o4755, Data: []byte("setuid")},
		{Type: files.Regular, Mode: 0o2711},
		{Type: files.Regular, Mode: 0o666}, // whatever the umask
		{Type: files.Regular, Mode: 0},
		{Type: files.Directory, Mode: 0o1777},
		{Type: files.Directory, Mode: 0o700},
		{Type: files.Symlink, Target: "/dev/null"},
		{Type: files.Symlink, Target: "../var/x"},
	} {
		n = mine(n)
		must(t, r.Stage("/etc", "new", n))
		found, err := r.Inspect("/etc/new")
		must(t, err)
		if found.Type != n.Type || found.Mode != n.Mode || found.UID != n.UID || found.GID != n.GID || found.Target != n.Target {
			t.Errorf("staged %+v, found %+v", n, found)
		}
		if n.Type == files.Regular && n.Mode != 0 {
			if got := read(t, filepath.Join(dir, "etc/new")); got != string(n.Data) {
				t.Errorf("staged %q, found %q", n.Data, got)
			}
		}
		must(t, r.Remove("/etc/new"))
	}
	for _, typ := range []files.Type{files.Absent, files.Other, ""} {
		if err := r.Stage("/etc", "new", mine(files.Node{Type: typ})); err == nil {
			t.Errorf("staged a node of type %q", typ)
		}
	}
}

func TestStageGivesOwnersAway(t *testing.T) {
	needRoot(t)
	r, _ := host(t, "etc/")
	for _, n := range []files.Node{
		{Type: files.Regular, Mode: 0o4755, UID: 1000, GID: 1001, Data: []byte("x")}, // chown would clear the bit
		{Type: files.Regular, Mode: 0o6755, UID: 0, GID: 10},
		{Type: files.Directory, Mode: 0o2750, UID: 1000, GID: 1000},
		{Type: files.Symlink, Target: "x", UID: 1000, GID: 1000},
	} {
		must(t, r.Stage("/etc", "new", n))
		for range 2 {
			found, err := r.Inspect("/etc/new")
			must(t, err)
			if found.Mode != n.Mode || found.UID != n.UID || found.GID != n.GID {
				t.Errorf("wanted %+v, found %+v", n, found)
			}
			n.UID, n.GID = 7, 8
			must(t, r.SetMeta("/etc/new", n))
		}
		must(t, r.Remove("/etc/new"))
	}
}

func TestLabelsAreSetAndFound(t *testing.T) {
	needRoot(t)
	r, _ := host(t, "etc/", "copies/")
	for _, n := range []files.Node{
		{Type: files.Regular, Mode: 0o640, Label: etcLabel, Data: []byte("x")},
		{Type: files.Directory, Mode: 0o750, Label: etcLabel},
		{Type: files.Symlink, Target: "nowhere", Label: etcLabel},
	} {
		must(t, r.Stage("/etc", "new", n))
		if found, err := r.Inspect("/etc/new"); err != nil || found.Label != etcLabel {
			t.Errorf("a %s has label %q, %v", n.Type, found.Label, err)
		}
		n.Label = shadowLabel
		must(t, r.SetMeta("/etc/new", n))
		n.Label = "" // not managed: stays
		must(t, r.SetMeta("/etc/new", n))
		if found, err := r.Inspect("/etc/new"); err != nil || found.Label != shadowLabel {
			t.Errorf("a %s has label %q after SetMeta, %v", n.Type, found.Label, err)
		}
		must(t, r.Remove("/etc/new"))
	}
}

// A failure half-way leaves nothing under the name, so that the next attempt can use it.
func TestFailedStageLeavesNothing(t *testing.T) {
	r, _ := host(t, "etc/")
	for _, typ := range []files.Type{files.Regular, files.Directory, files.Symlink} {
		// No file system takes such a label, and only root may set one at all.
		n := mine(files.Node{Type: typ, Mode: 0o644, Target: "x", Label: strings.Repeat("x", 1<<17)})
		if err := r.Stage("/etc", "new", n); err == nil || !strings.Contains(err.Error(), "staging /etc/new: ") {
			t.Errorf("Stage of an impossible %s: %v", typ, err)
		}
	}
	if err := r.Mkdir("/etc/new", mine(files.Node{Label: strings.Repeat("x", 1<<17)})); err == nil {
		t.Error("Mkdir with an impossible label worked")
	}
	if got, err := r.ReadDir("/etc"); err != nil || len(got) > 0 {
		t.Errorf("left behind: %v, %v", got, err)
	}
}

func TestFullFileSystemIsNamed(t *testing.T) {
	needRoot(t)
	r, dir := host(t, "full/")
	mount(t, "tmpfs", filepath.Join(dir, "full"), "tmpfs", 0, "size=64k,nr_inodes=3")
	big := file(strings.Repeat("x", 1<<20))
	must(t, os.WriteFile(filepath.Join(dir, "from"), big.Data, 0o600))
	for op, err := range map[string]error{
		"Stage":       r.Stage("/full", "big", big),
		"WriteRecord": r.WriteRecord("/full/big", big.Data, 0o600),
		"Preserve":    r.Preserve("/from", "/full", "big", 1<<20),
	} {
		if !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "/full/") || !strings.Contains(err.Error(), "big") {
			t.Errorf("%s: %v", op, err)
		}
	}
	if got, err := r.ReadDir("/full"); err != nil || len(got) > 0 {
		t.Errorf("left behind: %v, %v", got, err)
	}
	must(t, r.Stage("/full", "1", file("")))
	must(t, r.Stage("/full", "2", file("")))
	if err := r.Stage("/full", "3", file("")); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("Stage without inodes: %v", err)
	}
}

func TestReadOnlyFileSystemIsNamed(t *testing.T) {
	needRoot(t)
	r, dir := host(t, "ro/file=x", "ro/dir/", "rw/file=x")
	mountReadOnly(t, filepath.Join(dir, "ro"))
	_, lockErr := r.Lock("/ro/lock", "x")
	for op, err := range map[string]error{
		"Stage":       r.Stage("/ro", "new", file("x")),
		"Mkdir":       r.Mkdir("/ro/new", files.Node{}),
		"MkdirAll":    r.MkdirAll("/ro/new/x", 0o755),
		"SetMeta":     r.SetMeta("/ro/file", files.Node{Type: files.Regular, Mode: 0o600}),
		"Link":        r.Link("/ro/file", "/ro", "new"),
		"Preserve":    r.Preserve("/rw/file", "/ro", "new", 1<<20), // the copy, since it is another mount
		"Remove":      r.Remove("/ro/file"),
		"Touch":       r.Touch("/ro/file", time.Now()),
		"WriteRecord": r.WriteRecord("/ro/file", []byte("y"), 0o600),
		"Lock":        lockErr,
	} {
		var pe *fs.PathError
		if !errors.Is(err, unix.EROFS) || !errors.As(err, &pe) || !strings.HasPrefix(pe.Path, "/ro/") {
			t.Errorf("%s: %v", op, err)
		}
	}
	if got, err := r.ReadFile("/ro/file"); err != nil || string(got) != "x" {
		t.Errorf("ReadFile: %q, %v", got, err)
	}
}

func TestImmutableFileIsNamedAndKept(t *testing.T) {
	needRoot(t)
	r, dir := host(t, "etc/file=old")
	f, err := os.Open(filepath.Join(dir, "etc/file"))
	must(t, err)
	defer func() { _ = f.Close() }()
	const immutable = 0x10 // FS_IMMUTABLE_FL of linux/fs.h
	if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, immutable); errors.Is(err, unix.ENOTTY) ||
		errors.Is(err, unix.EOPNOTSUPP) {
		t.Skip("this file system has no immutable files")
	} else if err != nil {
		t.Fatal(err)
	}
	defer func() { must(t, unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, 0)) }()

	must(t, r.Stage("/etc", ".new", file("new")))
	for op, err := range map[string]error{
		"Replace": r.Replace("/etc", ".new", "/etc/file"),
		"Remove":  r.Remove("/etc/file"),
		"SetMeta": r.SetMeta("/etc/file", file("")),
	} {
		if !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "/etc/file") {
			t.Errorf("%s: %v", op, err)
		}
	}
	must(t, r.Preserve("/etc/file", "/etc", "kept", 1<<20)) // it can't have another name, but a copy
	if got := read(t, filepath.Join(dir, "etc/kept")); got != "old" {
		t.Errorf("kept %q", got)
	}
}

func TestReplaceIsOneStep(t *testing.T) {
	r, dir := host(t, "etc/file=old", "staging/", "etc/empty/", "etc/link -> file")
	for _, to := range []string{"/etc/file", "/etc/new", "/etc/link"} {
		must(t, r.Stage("/staging", "new", file("new")))
		staged := stat(t, filepath.Join(dir, "staging/new")).Ino
		must(t, r.Replace("/staging", "new", to))
		if got := stat(t, filepath.Join(dir, to)).Ino; got != staged {
			t.Errorf("%s has inode %d, staged was %d", to, got, staged)
		}
	}
	must(t, r.Stage("/staging", "new", mine(files.Node{Type: files.Directory, Mode: 0o755})))
	must(t, r.Replace("/staging", "new", "/etc/empty"))
	if got, err := r.ReadDir("/staging"); err != nil || len(got) > 0 {
		t.Errorf("left in staging: %v, %v", got, err)
	}
}

func TestPreserveKeepsTheInode(t *testing.T) {
	r, dir := host(t, "etc/file=old", "etc/link -> file", "keep/")
	old := time.Unix(1_000_000, 5)
	must(t, r.Touch("/etc/file", old))
	must(t, os.Chmod(filepath.Join(dir, "etc/file"), 0o751))
	want := stat(t, filepath.Join(dir, "etc/file"))
	must(t, r.Preserve("/etc/file", "/keep", "1", 1<<20))
	must(t, r.Preserve("/etc/link", "/keep", "2", 1<<20))
	must(t, r.Stage("/etc", ".new", file("new")))
	must(t, r.Replace("/etc", ".new", "/etc/file"))

	got := stat(t, filepath.Join(dir, "keep/1"))
	if got.Ino != want.Ino || got.Mode != want.Mode || got.Uid != want.Uid || got.Mtim != want.Mtim || got.Atim != want.Atim {
		t.Errorf("kept %+v, was %+v", got, want)
	}
	if got := read(t, filepath.Join(dir, "keep/1")); got != "old" {
		t.Errorf("kept %q", got)
	}
	if n, err := r.Inspect("/keep/2"); err != nil || n.Type != files.Symlink || n.Target != "file" {
		t.Errorf("kept link is %+v, %v", n, err)
	}
	// And back again, by the same rename.
	must(t, r.Replace("/keep", "1", "/etc/file"))
	if got := stat(t, filepath.Join(dir, "etc/file")); got.Ino != want.Ino || got.Mtim != want.Mtim {
		t.Errorf("back is %+v, was %+v", got, want)
	}
}

func TestPreserveCopiesAcrossMounts(t *testing.T) {
	needRoot(t)
	r, dir := host(t, "etc/file=old", "etc/link -> file", "etc/dir/", "keep/")
	mount(t, filepath.Join(dir, "keep"), filepath.Join(dir, "keep"), "", unix.MS_BIND, "")
	at := filepath.Join(dir, "etc/file")
	must(t, os.Chown(at, 1000, 1001))
	must(t, os.Chmod(at, 0o751|os.ModeSetuid))
	must(t, unix.Setxattr(at, "security.selinux", []byte(shadowLabel+"\x00"), 0))
	must(t, unix.Setxattr(at, "user.note", []byte("a note"), 0))
	must(t, unix.Setxattr(at, "trusted.note", []byte{1, 0, 2}, 0))
	capability := []byte{1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0} // cap_net_bind_service=ep
	must(t, unix.Setxattr(at, "security.capability", capability, 0))
	old := unix.NsecToTimespec(1_000_000_000_000_007)
	must(t, unix.UtimesNano(at, []unix.Timespec{old, old}))
	must(t, r.Touch("/etc/link", time.Unix(1_000_000, 7)))
	want := stat(t, at)

	if err := r.Link("/etc/file", "/keep", "1"); !errors.Is(err, unix.EXDEV) {
		t.Fatalf("a link across mounts: %v", err)
	}
	must(t, r.Preserve("/etc/file", "/keep", "1", 1<<20))
	got := stat(t, filepath.Join(dir, "keep/1"))
	if got.Ino == want.Ino || got.Mode != want.Mode || got.Uid != want.Uid || got.Gid != want.Gid ||
		got.Mtim != want.Mtim || got.Atim != old || got.Size != want.Size {
		t.Errorf("the copy is %+v, was %+v", got, want)
	}
	if got := read(t, filepath.Join(dir, "keep/1")); got != "old" {
		t.Errorf("the copy has %q", got)
	}
	for name, want := range map[string]string{
		"security.selinux": shadowLabel + "\x00", "user.note": "a note", "trusted.note": "\x01\x00\x02",
		"security.capability": string(capability),
	} {
		value := make([]byte, 100)
		n, err := unix.Getxattr(filepath.Join(dir, "keep/1"), name, value)
		if err != nil || string(value[:n]) != want {
			t.Errorf("the copy's %s is %q, %v", name, value[:max(n, 0)], err)
		}
	}

	must(t, r.Preserve("/etc/link", "/keep", "2", 1<<20))
	if n, err := r.Inspect("/keep/2"); err != nil || n.Target != "file" {
		t.Errorf("the copied link is %+v, %v", n, err)
	}
	if got := stat(t, filepath.Join(dir, "keep/2")).Mtim; got.Sec != 1_000_000 || got.Nsec != 7 {
		t.Errorf("the copied link is of %v", got)
	}
	if err := r.Preserve("/etc/file", "/keep", "1", 1<<20); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a copy over another: %v", err)
	}
	if err := r.Preserve("/etc/dir", "/keep", "3", 1<<20); err == nil || !strings.Contains(err.Error(), "/etc/dir") {
		t.Errorf("a copied directory: %v", err)
	}
	if got, err := r.ReadDir("/keep"); err != nil || !slices.Equal(got, []string{"1", "2"}) {
		t.Errorf("kept %v, %v", got, err)
	}
}

func TestMkdirAll(t *testing.T) {
	needRoot(t)
	r, dir := host(t, "home -> var/home", "var/home/", "etc/a/")
	must(t, os.Chmod(filepath.Join(dir, "etc/a"), 0o700))
	must(t, r.MkdirAll("/home/core/.ssh", 0o711))
	must(t, r.MkdirAll("/etc/a/b", 0o755))
	for name, want := range map[string]uint32{
		"var/home/core": 0o711, "var/home/core/.ssh": 0o711, "etc/a": 0o700, "etc/a/b": 0o755,
	} {
		if got := stat(t, filepath.Join(dir, name)).Mode & 0o7777; got != want {
			t.Errorf("%s has mode %o, want %o", name, got, want)
		}
	}
}

func TestRemove(t *testing.T) {
	r, dir := host(t, "file=", "empty/", "link -> full", "full/x=", "full/deep/er/y=", "full/out -> ../kept", "kept/z=")
	must(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	for _, name := range []string{"/file", "/empty", "/link", "/fifo", "/none", "/none/x", "/kept/z/x"} {
		must(t, r.Remove(name))
		must(t, r.Remove(name))
		must(t, r.RemoveAll(name))
	}
	must(t, r.RemoveAll("/full"))
	if got, err := r.ReadDir("/"); err != nil || !slices.Equal(got, []string{"kept"}) {
		t.Errorf("left: %v, %v", got, err)
	}
	if got, err := r.ReadDir("/kept"); err != nil || !slices.Equal(got, []string{"z"}) {
		t.Errorf("left of what a removed link led to: %v, %v", got, err)
	}
}

func TestWriteRecordReplacesWhole(t *testing.T) {
	needRoot(t)
	r, dir := host(t, "var/state/", "lib -> var/state")
	for _, data := range []string{"first", "second, and longer", ""} {
		must(t, r.WriteRecord("/lib/boot.json", []byte(data), 0o600))
		if got := read(t, filepath.Join(dir, "var/state/boot.json")); got != data {
			t.Errorf("found %q, wrote %q", got, data)
		}
		if got := stat(t, filepath.Join(dir, "var/state/boot.json")).Mode; got != unix.S_IFREG|0o600 {
			t.Errorf("mode %o", got)
		}
	}
	// What a killed writer left does not stop the next one.
	must(t, os.WriteFile(filepath.Join(dir, "var/state", files.StagePrefix+"boot.json"), []byte("half"), 0o600))
	must(t, r.WriteRecord("/lib/boot.json", []byte("third"), 0o600))
	if got, err := r.ReadDir("/var/state"); err != nil || !slices.Equal(got, []string{"boot.json"}) {
		t.Errorf("left: %v, %v", got, err)
	}
	// A reader with the old file open keeps the old bytes: the record is never written in place.
	f, err := os.Open(filepath.Join(dir, "var/state/boot.json"))
	must(t, err)
	defer func() { _ = f.Close() }()
	must(t, r.WriteRecord("/lib/boot.json", []byte("fourth"), 0o600))
	b := make([]byte, 10)
	if n, err := f.Read(b); err != nil || string(b[:n]) != "third" {
		t.Errorf("the old file has %q, %v", b[:n], err)
	}
}

func TestWriteRecordThatFailsLeavesTheOldOne(t *testing.T) {
	needRoot(t)
	r, dir := host(t, "state/boot.json/x=")
	if err := r.WriteRecord("/state/boot.json", []byte("new"), 0o600); !errors.Is(err, unix.EISDIR) {
		t.Errorf("WriteRecord over a directory: %v", err)
	}
	if got, err := r.ReadDir("/state"); err != nil || !slices.Equal(got, []string{"boot.json"}) {
		t.Errorf("left: %v, %v", got, err)
	}
	if got := read(t, filepath.Join(dir, "state/boot.json/x")); got != "" {
		t.Errorf("found %q", got)
	}
}

func TestTouchSetsOnlyTheModificationTime(t *testing.T) {
	r, dir := host(t, "etc/file=x", "link -> etc")
	before := stat(t, filepath.Join(dir, "etc"))
	want := time.Unix(1_234_567, 890)
	must(t, r.Touch("/etc", want))
	got := stat(t, filepath.Join(dir, "etc"))
	if got.Atim != before.Atim || got.Mtim.Sec != 1_234_567 || got.Mtim.Nsec != 890 {
		t.Errorf("times are %v and %v, was %v", got.Atim, got.Mtim, before.Atim)
	}
	for _, name := range []string{"/etc", "/link"} {
		if got, err := r.ModTime(name); err != nil || !got.Equal(want) {
			t.Errorf("ModTime(%s) = %v, %v", name, got, err)
		}
	}
}

func TestSyncFSPassesOverWhatIsNotThere(t *testing.T) {
	r, _ := host(t, "etc/file=", "loop -> loop")
	must(t, r.SyncFS("/", "/etc", "/none", "/etc/file/x", "/etc"))
	must(t, r.SyncFS())
	if err := r.SyncFS("/loop"); !errors.Is(err, unix.ELOOP) {
		t.Errorf("SyncFS of a loop: %v", err)
	}
}

// holdLock takes the lock, says so and holds it until the process is killed, or nobody is there any more to kill it.
func holdLock(dir string) error {
	r, err := files.Open(dir)
	if err != nil {
		return err
	}
	f, err := r.Lock("/run/lock", lockHolderText)
	if err != nil {
		return err
	}
	if _, err := os.Stdout.WriteString(lockHolderReady + "\n"); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return errors.Join(err, f.Close())
}

func TestLockNamesItsHolderAndEndsWithIt(t *testing.T) {
	r, dir := host(t, "run/")
	must(t, os.WriteFile(filepath.Join(dir, "run/lock"), []byte(strings.Repeat("a holder of old\n", 10)), 0o600))
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), asLockHolder+"="+dir)
	_, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || strings.TrimSpace(line) != lockHolderReady {
		t.Fatalf("the holder says %q, %v", line, err)
	}

	_, err = r.Lock("/run/lock", "a second one")
	if !errors.Is(err, unix.EWOULDBLOCK) || !strings.HasSuffix(err.Error(), "held by "+lockHolderText) ||
		!strings.Contains(err.Error(), "/run/lock") {
		t.Errorf("a second holder gets %v", err)
	}
	must(t, cmd.Process.Kill())
	_ = cmd.Wait()
	f, err := r.Lock("/run/lock", "a third one")
	must(t, err)
	if got := read(t, filepath.Join(dir, "run/lock")); got != "a third one\n" {
		t.Errorf("the lock file says %q", got)
	}
	if _, err := r.Lock("/run/lock", "a fourth one"); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("a second holder in one process gets %v", err)
	}
	must(t, f.Close())
	f, err = r.Lock("/run/lock", "a fifth one")
	must(t, err)
	must(t, f.Close())
}

// A tree that the host mounts read-only is writable through our own mount, and for nobody else.
func TestOpenWritable(t *testing.T) {
	needRoot(t)
	dir := tree(t, "sysroot/etc/file=old", "sysroot/home -> var/home", "sysroot/out -> /../../secret", "secret=outside",
		"sysroot/var/below=hidden")
	sysroot := filepath.Join(dir, "sysroot")
	mountReadOnly(t, sysroot)
	mount(t, "tmpfs", filepath.Join(sysroot, "var"), "tmpfs", 0, "size=64k")
	w, err := files.OpenWritable(sysroot)
	must(t, err)
	defer func() { _ = w.Close() }()

	must(t, w.Stage("/etc", ".new", file("new")))
	must(t, w.Replace("/etc", ".new", "/etc/file"))
	must(t, w.WriteRecord("/etc/record", []byte("x"), 0o600))
	must(t, w.Link("/etc/file", "/etc", "kept"))
	must(t, w.SyncFS("/"))
	for name, want := range map[string]string{"/etc/file": "new", "/var/below": "hidden"} {
		if got, err := w.ReadFile(name); err != nil || string(got) != want {
			t.Errorf("%s has %q, %v", name, got, err)
		}
	}
	if got, err := w.ReadFile("/out"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a link out of the tree gives %q, %v", got, err)
	}
	if got, err := w.Resolve("/home/x"); err != nil || got != "/var/home/x" {
		t.Errorf("Resolve = %s, %v", got, err)
	}
	if got := read(t, filepath.Join(sysroot, "etc/file")); got != "new" {
		t.Errorf("others see %q", got)
	}
	if err := os.WriteFile(filepath.Join(sysroot, "etc/file"), nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("others write: %v", err)
	}
	if err := open(t, sysroot).Remove("/etc/file"); !errors.Is(err, unix.EROFS) {
		t.Errorf("an ordinary root writes: %v", err)
	}
}

// A file system that is mounted read-only is writable through our own mount, and through no other.
func TestOpenRemounted(t *testing.T) {
	needRoot(t)
	dir := tree(t, "boot/")
	boot := filepath.Join(dir, "boot")
	mount(t, "tmpfs", boot, "tmpfs", 0, "size=64k")
	must(t, os.WriteFile(filepath.Join(boot, "file"), []byte("old"), 0o644))
	must(t, unix.Mount("", boot, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	w, err := files.OpenWritable(boot)
	must(t, err)
	if err := w.Overwrite("/file", []byte("new")); !errors.Is(err, unix.EROFS) {
		t.Errorf("a mount of our own alone writes: %v", err)
	}
	must(t, w.Close())
	w, err = files.OpenRemounted(boot)
	must(t, err)
	defer func() { _ = w.Close() }()
	must(t, w.Overwrite("/file", []byte("new")))
	if got := read(t, filepath.Join(boot, "file")); got != "new" {
		t.Errorf("others see %q", got)
	}
	if err := os.WriteFile(filepath.Join(boot, "file"), nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("others write: %v", err)
	}
	again, err := files.OpenRemounted(boot)
	must(t, err)
	must(t, again.Close())
}

func TestOverwriteStaysInPlace(t *testing.T) {
	dir := tree(t, "grubenv=0123456789", "link -> grubenv")
	r := open(t, dir)
	before, err := os.Stat(filepath.Join(dir, "grubenv"))
	must(t, err)
	must(t, r.Overwrite("/grubenv", []byte("abc")))
	after, err := os.Stat(filepath.Join(dir, "grubenv"))
	must(t, err)
	if got := read(t, filepath.Join(dir, "grubenv")); got != "abc3456789" || !os.SameFile(before, after) {
		t.Errorf("it has %q, the same file: %v", got, os.SameFile(before, after))
	}
	if err := r.Overwrite("/link", []byte("x")); !errors.Is(err, unix.ELOOP) {
		t.Errorf("through a link: %v", err)
	}
	must(t, r.Overwrite("/new", []byte("whole")))
	if info, err := os.Stat(filepath.Join(dir, "new")); err != nil || info.Mode() != 0o600 || read(t, filepath.Join(dir, "new")) != "whole" {
		t.Errorf("a new file: %v, %v", info, err)
	}
}
