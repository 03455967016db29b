// SPDX-License-Identifier: Apache-2.0

package files_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/noderefit/noderefit/files"
	"golang.org/x/sys/unix"
)

// exposedHost has a directory of each kind that users other than root can write to, and of kinds that they can't.
func exposedHost(t *testing.T) (*files.Root, string) {
	t.Helper()
	needRoot(t)
	r, dir := host(t, "var/home/core/.ssh/", "home -> var/home", "etc/keys=root's", "var/staff/in/", "tmp/a/b/",
		"var/lib/svc/x/", "var/root/x/", "var/roots-in-tmp -> /tmp/a")
	for name, do := range map[string]func(string) error{
		"var/home/core": func(p string) error {
			return errors.Join(os.Chown(p, 1000, 1000), os.Chown(filepath.Join(p, ".ssh"), 1000, 1000))
		},
		"var/staff":   func(p string) error { return errors.Join(os.Chown(p, 0, 50), os.Chmod(p, 0o2775)) },
		"tmp":         func(p string) error { return os.Chmod(p, 0o777|os.ModeSticky) },
		"var/lib/svc": func(p string) error { return os.Chown(p, 990, 0) },
	} {
		must(t, do(filepath.Join(dir, name)))
	}
	return r, dir
}

func TestExposedNamesTheOutermostDirectoryThatOthersCanWriteTo(t *testing.T) {
	r, _ := exposedHost(t)
	for name, want := range map[string]string{
		"/etc/keys":                 "",
		"/var/home/core":            "", // the entry itself is root's to exchange
		"/var/home/core/.ssh":       "/var/home/core",
		"/home/core/.ssh/a/b":       "/var/home/core", // through root's link
		"/home/core/none/x":         "/var/home/core",
		"/var/staff/in/x":           "/var/staff",
		"/tmp/a/b/c":                "/tmp", // root's own directories in it can be replaced with it
		"/var/roots-in-tmp/b":       "/tmp",
		"/var/lib/svc/x/y":          "/var/lib/svc",
		"/var/root/x/y":             "",
		"/none/at/all":              "",
		"/":                         "",
		"/var/home/core/../../root": "",
	} {
		if got := r.Exposed(name); got != want {
			t.Errorf("Exposed(%s) = %q, want %q", name, got, want)
		}
	}
}

// Whose tree it is decides about all of it, whoever works on it.
func TestNothingIsExposedToTheOwnerOfATree(t *testing.T) {
	needRoot(t)
	dir := tree(t, "etc/x=1", "link -> etc")
	for _, name := range []string{"", "etc", "etc/x"} {
		must(t, os.Lchown(filepath.Join(dir, name), 1000, 1000))
		must(t, os.Chmod(filepath.Join(dir, name), 0o775))
	}
	r := open(t, dir)
	if got := r.Exposed("/link/x"); got != "" {
		t.Errorf("exposed: %s", got)
	}
	if got, err := r.ReadFile("/link/x"); string(got) != "1" {
		t.Errorf("ReadFile = %q, %v", got, err)
	}
}

func TestLinksInExposedDirectoriesLeadNowhere(t *testing.T) {
	for _, tt := range []struct{ link, target string }{
		{"var/home/core/link", "/etc"},
		{"var/home/core/.ssh/link", "../../../../etc"},
		{"var/staff/in/link", "/etc"},
		{"tmp/a/link", "../../etc"},
		{"var/lib/svc/link", "/proc/self/root/etc"},
	} {
		for _, owner := range []int{0, 1000} {
			r, dir := exposedHost(t)
			must(t, os.Symlink(tt.target, filepath.Join(dir, tt.link)))
			must(t, os.Lchown(filepath.Join(dir, tt.link), owner, owner))
			before := state(t, filepath.Join(dir, "etc"))
			at := "/" + tt.link
			for op, err := range map[string]error{
				"Stage":         r.Stage(at, "new", file("x")),
				"Mkdir":         r.Mkdir(at+"/new", mine(files.Node{Mode: 0o755})),
				"Replace to":    r.Replace("/etc", "keys", at+"/new"),
				"Replace from":  r.Replace(at, "keys", "/var/new"),
				"Link to":       r.Link("/etc/keys", at, "new"),
				"Link from":     r.Link(at+"/keys", "/var", "new"),
				"Preserve from": r.Preserve(at+"/keys", "/var", "new", 1<<20),
				"SetMeta":       r.SetMeta(at+"/keys", mine(files.Node{Type: files.Regular, Mode: 0o666})),
				"SetMetaOf": r.SetMetaOf(at+"/keys", mine(files.Node{Type: files.Regular}),
					mine(files.Node{Type: files.Regular, Mode: 0o666})),
				"SetLabel": r.SetLabel(at+"/keys", "a:b:c:s0"),
				"Touch":    r.Touch(at+"/keys", time.Unix(1, 0)),
				"Fsync":    r.Fsync(at + "/keys"),
			} {
				var exposed *files.ExposedError
				if !errors.As(err, &exposed) || !errors.Is(err, unix.ENOTDIR) || exposed.At != at {
					t.Errorf("%s through %s of %d: %v", op, at, owner, err)
				}
			}
			if err := r.MkdirAll(at+"/new/x", 0o755); !errors.Is(err, unix.ENOTDIR) {
				t.Errorf("MkdirAll through %s of %d: %v", at, owner, err)
			}
			must(t, r.Remove(at+"/keys"))
			must(t, r.RemoveAll(at+"/keys"))
			unchanged(t, filepath.Join(dir, "etc"), before)
			if got, err := r.ReadFile(at + "/keys"); err == nil {
				t.Errorf("read %q through %s", got, at)
			}
			if n, err := r.Inspect(at + "/keys"); err != nil || n.Type != files.Absent {
				t.Errorf("Inspect through %s: %v, %v", at, n, err)
			}
			if got, err := r.Resolve(at + "/keys"); err != nil || got != at+"/keys" {
				t.Errorf("Resolve through %s: %s, %v", at, got, err)
			}
			if n, err := r.Inspect(at); err != nil || n.Type != files.Symlink {
				t.Errorf("the link itself is %v, %v", n, err)
			}
		}
	}
}

// With another name of a file of root's, or a directory of root's that lies about, a user would be given what is not
// theirs.
func TestMetaIsGivenOnlyToWhatWasMeant(t *testing.T) {
	r, dir := exposedHost(t)
	at := filepath.Join(dir, "var/home/core")
	user := files.Node{Type: files.Regular, Mode: 0o600, UID: 1000, GID: 1000}
	must(t, os.WriteFile(at+"/other", nil, 0o600))
	must(t, os.Link(filepath.Join(dir, "etc/keys"), at+"/keys"))
	must(t, os.WriteFile(at+"/mine", nil, 0o644))
	must(t, os.Chown(at+"/mine", 1000, 1000))
	must(t, os.MkdirAll(at+"/roots/x", 0o700))
	for name, want := range map[string]error{"keys": unix.EPERM, "other": unix.EPERM, "mine": nil, "roots": unix.EPERM} {
		n := user
		if name == "roots" {
			n.Type = files.Directory
		}
		if err := r.SetMetaOf("/home/core/"+name, n, n); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
	if st := stat(t, filepath.Join(dir, "etc/keys")); st.Uid != 0 {
		t.Errorf("root's file belongs to %d", st.Uid)
	}
	if st := stat(t, at+"/mine"); st.Mode&0o777 != 0o600 {
		t.Errorf("the user's file has mode %o", st.Mode)
	}
}

// Whoever swaps a directory of theirs for a link, as fast as the kernel can, gets nothing written elsewhere.
func TestNoSwapInAHomeLeadsElsewhere(t *testing.T) {
	r, dir := exposedHost(t)
	home := filepath.Join(dir, "var/home/core")
	must(t, os.Symlink("/etc", home+"/link"))
	before := state(t, filepath.Join(dir, "etc"))
	stop, swaps := make(chan struct{}), make(chan int)
	go func() {
		n := 0
		for ; ; n++ {
			select {
			case <-stop:
				swaps <- n
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, home+"/.ssh", unix.AT_FDCWD, home+"/link", unix.RENAME_EXCHANGE)
			}
		}
	}()
	done, refused := 0, 0
	for deadline := time.Now().Add(time.Second); time.Now().Before(deadline); {
		for _, err := range []error{
			r.Stage("/home/core/.ssh", "new", file("x")),
			r.Replace("/home/core/.ssh", "new", "/home/core/.ssh/keys"),
			r.Mkdir("/home/core/.ssh/dir", mine(files.Node{Mode: 0o700})),
			r.SetMeta("/home/core/.ssh/keys", mine(files.Node{Type: files.Regular, Mode: 0o666})),
			r.Link("/home/core/.ssh/keys", "/home/core/.ssh", "linked"),
			r.Remove("/home/core/.ssh/linked"), r.Remove("/home/core/.ssh/keys"), r.Remove("/home/core/.ssh/dir"),
			r.Remove("/home/core/.ssh/new"),
		} {
			switch {
			case err == nil:
				done++
			case errors.Is(err, unix.ENOTDIR):
				refused++
			}
		}
	}
	close(stop)
	n := <-swaps
	unchanged(t, filepath.Join(dir, "etc"), before)
	if done == 0 || refused == 0 {
		t.Errorf("%d swaps, %d done, %d refused: the race tested nothing", n, done, refused)
	}
	t.Logf("%d swaps, %d done, %d refused", n, done, refused)
}

// What a user makes of a file is read up to a size; root's own is read whole.
func TestAFileOfTerabytesOfAUsersIsNotRead(t *testing.T) {
	r, dir := exposedHost(t)
	for name, want := range map[string]error{"/home/core/big": unix.EFBIG, "/home/core/small": nil, "/etc/keys": nil} {
		at := filepath.Join(dir, strings.Replace(name, "/home", "/var/home", 1))
		if name != "/etc/keys" {
			must(t, os.WriteFile(at, []byte("root's"), 0o600))
		}
		if want != nil {
			must(t, os.Truncate(at, 4<<40))
		}
		n, err := r.Read(name)
		if !errors.Is(err, want) || want == nil && string(n.Data) != "root's" {
			t.Errorf("Read(%s) = %q, %v, want %v", name, n.Data, err, want)
		}
	}
	for name, want := range map[string]files.Type{"/etc": files.Directory, "/home": files.Symlink, "/no": files.Absent} {
		if n, err := r.Read(name); err != nil || n.Type != want || n.Data != nil {
			t.Errorf("Read(%s) = %+v, %v", name, n, err)
		}
	}
}

// A mount that root can't read, as FUSE's are, is in the way like a file.
func TestWhatRootMayNotEnterIsNoDirectory(t *testing.T) {
	err := error(&files.ExposedError{Dir: "/home/core", At: "/home/core/.ssh", Err: unix.EACCES})
	if !errors.Is(err, unix.ENOTDIR) || !errors.Is(err, unix.EACCES) || errors.Is(err, fs.ErrNotExist) ||
		!strings.Contains(err.Error(), "/home/core/.ssh") {
		t.Error(err)
	}
}

// A user can mount a file system of their own over what is theirs (FUSE, as with sshfs), which root may not look at. It
// counts as not there, and no call on it is an error that stops anything else.
func TestAMountOfAUsersThatRootMayNotEnterIsNotThere(t *testing.T) {
	for _, mode := range []string{"40000", "100000"} {
		r, dir := exposedHost(t)
		fuse, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
		if err != nil {
			t.Skip(err)
		}
		t.Cleanup(func() { must(t, fuse.Close()) })
		at := filepath.Join(dir, "var/home/core/.ssh")
		if mode == "100000" {
			must(t, os.WriteFile(at+"/keys", nil, 0o600))
			at += "/keys"
		}
		mount(t, "fuse", at, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=%s,user_id=1000,group_id=1000", fuse.Fd(), mode))
		if n, err := r.Inspect("/home/core/.ssh/keys"); err != nil || n.Type != files.Absent {
			t.Errorf("Inspect: %v, %v", n, err)
		}
		if d, err := r.Compare(files.Want{Path: "/home/core/.ssh/keys", Node: file("x")}); err != nil || len(d) != 1 {
			t.Errorf("Compare: %v, %v", d, err)
		}
		if got := r.Exposed("/home/core/.ssh/keys"); got != "/var/home/core" {
			t.Errorf("Exposed: %s", got)
		}
		if _, err := r.Resolve("/home/core/.ssh/a/keys"); err != nil {
			t.Errorf("Resolve: %v", err)
		}
		if err := r.Stage("/home/core/.ssh", "new", file("x")); mode == "40000" && !errors.Is(err, unix.ENOTDIR) {
			t.Errorf("Stage: %v", err)
		}
	}
}

// A lease of the owner's holds a reader up for 45 seconds, each time.
func TestALeaseOfTheOwnersHoldsNobodyUp(t *testing.T) {
	r, dir := host(t, "etc/file=x")
	f, err := os.Open(filepath.Join(dir, "etc/file"))
	must(t, err)
	defer func() { must(t, f.Close()) }()
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK); err != nil {
		t.Skip(err)
	}
	w, err := os.OpenFile(filepath.Join(dir, "etc/other"), os.O_CREATE|os.O_WRONLY, 0o600)
	must(t, err)
	defer func() { must(t, w.Close()) }()
	if _, err := unix.FcntlInt(w.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Skip(err)
	}
	n := file("x")
	n.Mode = 0o600
	began := time.Now()
	d, err := r.Compare(files.Want{Path: "/etc/other", Node: n})
	if err != nil || len(d) == 0 {
		t.Errorf("%v, %v", d, err)
	}
	if lease, err := os.ReadFile("/proc/sys/fs/lease-break-time"); err == nil {
		if limit, err := strconv.Atoi(strings.TrimSpace(string(lease))); err == nil && limit > 5 &&
			time.Since(began) > time.Duration(limit)*time.Second/2 {
			t.Errorf("it took %v", time.Since(began))
		}
	}
}

// What a user owns in root's own directory can change at any moment, as if it were in their home.
func TestAFileOfAUsersIsExposedInADirectoryOfRoots(t *testing.T) {
	r, dir := exposedHost(t)
	for name, mode := range map[string]os.FileMode{"theirs": 0o644, "shared": 0o664, "roots": 0o644} {
		must(t, os.WriteFile(filepath.Join(dir, "etc", name), nil, mode))
		must(t, os.Chmod(filepath.Join(dir, "etc", name), mode))
	}
	must(t, os.Chown(filepath.Join(dir, "etc/theirs"), 1000, 1000))
	for name, want := range map[string]string{"/etc/theirs": "/etc/theirs", "/etc/shared": "/etc/shared", "/etc/roots": ""} {
		if got := r.Exposed(name); got != want {
			t.Errorf("Exposed(%s) = %q, want %q", name, got, want)
		}
	}
}
