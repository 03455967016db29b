// SPDX-License-Identifier: Apache-2.0

package files_test

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/noderefit/noderefit/files"
	"golang.org/x/sys/unix"
)

// A lookup inside the root gives what the host itself would give, and never what is outside.
func TestConfinementOfReads(t *testing.T) {
	outside := tree(t, "secret=outside", "dir/secret=outside")
	deep := strings.Repeat("../", 30)
	r, _ := host(t,
		"etc/file=inside",
		"var/data/file=data",
		"abs-in -> /var/data",
		"etc/abs-in -> /var/data/file",
		"etc/rel-in -> ../var/data/file",
		"etc/too-far -> "+deep+"var/data/file",
		"abs-out -> "+outside,
		"rel-out -> "+deep+outside,
		"etc/mid -> "+deep+outside+"/dir",
		"etc/file-out -> "+outside+"/secret",
		"etc/file-rel-out -> "+deep+outside+"/secret",
		"etc/magic -> /proc/self/root"+outside+"/secret",
		"loop -> loop2", "loop2 -> loop",
		"self -> self/x",
		"dangling -> nowhere",
	)
	for _, tt := range []struct {
		name string
		want string
		err  error
	}{
		{"/etc/file", "inside", nil},
		{"/abs-in/file", "data", nil},
		{"/etc/abs-in", "data", nil},
		{"/etc/rel-in", "data", nil},
		{"/etc/too-far", "data", nil},
		{"/../../etc/file", "inside", nil},
		{"/abs-out/secret", "", fs.ErrNotExist},
		{"/rel-out/secret", "", fs.ErrNotExist},
		{"/etc/mid/secret", "", fs.ErrNotExist},
		{"/etc/file-out", "", fs.ErrNotExist},
		{"/etc/file-rel-out", "", fs.ErrNotExist},
		{"/etc/magic", "", fs.ErrNotExist},
		{outside + "/secret", "", fs.ErrNotExist},
		{deep + outside + "/secret", "", fs.ErrNotExist},
		{"/loop", "", unix.ELOOP},
		{"/loop/x", "", unix.ELOOP},
		{"/self", "", unix.ELOOP},
		{"/dangling", "", fs.ErrNotExist},
		{"/etc/file/x", "", unix.ENOTDIR},
	} {
		got, err := r.ReadFile(tt.name)
		if string(got) != tt.want || !errors.Is(err, tt.err) {
			t.Errorf("ReadFile(%s) = %q, %v, want %q, %v", tt.name, got, err, tt.want, tt.err)
		}
		if _, err := r.Contents(tt.name); err == nil && tt.err != nil {
			t.Errorf("Contents(%s) found something", tt.name)
		}
	}
	for _, name := range []string{"/abs-out", "/rel-out", "/etc/mid"} {
		if r.IsDir(name) {
			t.Errorf("IsDir(%s) follows a link out of the root", name)
		}
		if names, err := r.ReadDir(name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("ReadDir(%s) = %v, %v", name, names, err)
		}
	}
	if n, err := r.Inspect("/abs-out/secret"); err != nil || n.Type != files.Absent {
		t.Errorf("Inspect through a link out of the root: %v, %v", n, err)
	}
}

// An absolute link means the path of the host that the tree is, even where the same path exists outside.
func TestAbsoluteLinksAreTheHosts(t *testing.T) {
	outside := tree(t, "secret=outside", "dir/")
	r, dir := host(t, "link -> "+outside, "final -> "+outside+"/secret", strings.TrimPrefix(outside, "/")+"/secret=inside")
	for _, name := range []string{"/link/secret", "/final"} {
		if got, err := r.ReadFile(name); string(got) != "inside" || err != nil {
			t.Errorf("ReadFile(%s) = %q, %v", name, got, err)
		}
	}
	before := state(t, outside)
	must(t, r.Stage("/link", "new", file("x")))
	must(t, r.Remove("/link/secret"))
	unchanged(t, outside, before)
	if got, err := r.ReadDir("/link"); err != nil || !slices.Equal(got, []string{"new"}) {
		t.Errorf("ReadDir = %v, %v", got, err)
	}
	if got := read(t, filepath.Join(dir, outside, "new")); got != "x" {
		t.Errorf("staged %q", got)
	}
}

func TestConfinementOfWrites(t *testing.T) {
	outside := tree(t, "secret=outside", "dir/file=outside")
	deep := strings.Repeat("../", 30)
	for _, target := range []string{outside, deep + outside, "/proc/self/root" + outside} {
		r, dir := host(t, "etc/out -> "+target, "etc/in=inside")
		inside := state(t, dir)
		before := state(t, outside)
		for op, err := range map[string]error{
			"Stage":            r.Stage("/etc/out", "new", file("x")),
			"Mkdir":            r.Mkdir("/etc/out/new", mine(files.Node{Mode: 0o755})),
			"MkdirAll":         r.MkdirAll("/etc/out/new/x", 0o755),
			"WriteRecord":      r.WriteRecord("/etc/out/secret", []byte("x"), 0o600),
			"Replace to":       r.Replace("/etc", "in", "/etc/out/secret"),
			"Replace from":     r.Replace("/etc/out", "secret", "/etc/in"),
			"Link to":          r.Link("/etc/in", "/etc/out", "new"),
			"Link from":        r.Link("/etc/out/secret", "/etc", "new"),
			"Preserve to":      r.Preserve("/etc/in", "/etc/out", "new", 1<<20),
			"Preserve from":    r.Preserve("/etc/out/secret", "/etc", "new", 1<<20),
			"SetMeta":          r.SetMeta("/etc/out/secret", mine(files.Node{Type: files.Regular, Mode: 0o600})),
			"SetMeta of final": r.SetMeta("/etc/out", mine(files.Node{Type: files.Directory, Mode: 0o700})),
			"Touch":            r.Touch("/etc/out/secret", time.Unix(1, 0)),
			"Fsync":            r.Fsync("/etc/out/secret"),
		} {
			if err == nil {
				t.Errorf("%s through a link to %s worked", op, target)
			}
		}
		if f, err := r.Lock("/etc/out/secret", "x"); err == nil {
			_ = f.Close()
			t.Errorf("Lock through a link to %s worked", target)
		}
		// These three find nothing to do.
		must(t, r.Remove("/etc/out/secret"))
		must(t, r.RemoveAll("/etc/out/dir"))
		must(t, r.SyncFS("/etc/out"))
		unchanged(t, outside, before)
		unchanged(t, dir, inside)
	}
}

// A name in a directory is one component: a handle of a directory leads anywhere otherwise.
func TestEntryNamesAreOneComponent(t *testing.T) {
	outer := tree(t, "secret=outside", "root/etc/in=inside")
	r := open(t, filepath.Join(outer, "root"))
	before := state(t, outer)
	for _, name := range []string{"", ".", "..", "../x", "../../secret", "/x", "x/y", filepath.Join(outer, "secret")} {
		for op, err := range map[string]error{
			"Stage":    r.Stage("/etc", name, file("x")),
			"Replace":  r.Replace("/etc", name, "/etc/in"),
			"Link":     r.Link("/etc/in", "/etc", name),
			"Preserve": r.Preserve("/etc/in", "/etc", name, 1<<20),
		} {
			if !errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), "/etc") {
				t.Errorf("%s of %q: %v", op, name, err)
			}
		}
	}
	unchanged(t, outer, before)
}

// The methods that act on what stands at a path act on a link itself.
func TestFinalLinksAreNotFollowed(t *testing.T) {
	for _, target := range []string{"target", "/etc/target"} {
		r, dir := host(t, "etc/target=target", "etc/link -> "+target, "etc/dir/x=x", "etc/dirlink -> dir")
		at := filepath.Join(dir, "etc/target")
		before := state(t, at)

		if n, err := r.Inspect("/etc/link"); err != nil || n.Type != files.Symlink || n.Target != target || n.Mode != 0 {
			t.Errorf("Inspect = %+v, %v", n, err)
		}
		if b, err := r.Contents("/etc/link"); err == nil {
			t.Errorf("Contents = %q", b)
		}
		if err := r.SetMeta("/etc/link", mine(files.Node{Type: files.Regular, Mode: 0o777})); !errors.Is(err, unix.EINVAL) {
			t.Errorf("SetMeta of a file on a link: %v", err)
		}
		must(t, r.SetMeta("/etc/link", mine(files.Node{Type: files.Symlink, Mode: 0o777})))
		if err := r.Stage("/etc", "link", file("x")); !errors.Is(err, fs.ErrExist) {
			t.Errorf("Stage over a link: %v", err)
		}
		if _, err := r.Lock("/etc/link", "x"); !errors.Is(err, unix.ELOOP) {
			t.Errorf("Lock of a link: %v", err)
		}
		must(t, r.Touch("/etc/link", time.Unix(1_000_000, 0)))
		if got := stat(t, filepath.Join(dir, "etc/link")).Mtim.Sec; got != 1_000_000 {
			t.Errorf("the link is of %d", got)
		}
		must(t, r.Preserve("/etc/link", "/etc", "kept", 1<<20))
		if got, err := os.Readlink(filepath.Join(dir, "etc/kept")); err != nil || got != target {
			t.Errorf("Preserve kept %s, %v", got, err)
		}
		must(t, r.Stage("/etc", ".new", file("new")))
		must(t, r.Replace("/etc", ".new", "/etc/link"))
		if n, err := r.Inspect("/etc/link"); err != nil || n.Type != files.Regular {
			t.Errorf("Replace left %+v, %v", n, err)
		}
		must(t, r.Remove("/etc/kept"))
		must(t, r.RemoveAll("/etc/dirlink"))
		if got := read(t, filepath.Join(dir, "etc/dir/x")); got != "x" {
			t.Errorf("RemoveAll of a link emptied its target")
		}
		unchanged(t, at, before)
	}
}

func TestConfinementWithoutOpenat2(t *testing.T) {
	if os.Getenv(withoutOpenat2) != "" {
		return
	}
	again(t, "^Test(Exposed|LinksIn|Confinement|AbsoluteLinks|EntryNames|FinalLinks|RootItself|Ancestor|Resolve|Compare|Stage|Remove)",
		withoutOpenat2+"=1")
}

// Whoever changes links while the agent works gets nothing read or written outside.
func TestConfinementAgainstARace(t *testing.T) {
	outer := tree(t,
		"outside/file=secret", "outside/deep/file=secret", "file=secret",
		"root/etc/real/file=inside", "root/etc/real/deep/x/y=", "root/etc/evil -> ../../outside",
		"root/etc/final=inside", "root/etc/final-evil -> ../../outside/file",
		"root/etc/up -> real/deep/x/../../file",
	)
	must(t, os.Symlink(filepath.Join(outer, "outside"), filepath.Join(outer, "root/etc/evil-abs")))
	must(t, os.Chmod(filepath.Join(outer, "outside/file"), 0o600))
	r := open(t, filepath.Join(outer, "root"))
	before := state(t, filepath.Join(outer, "outside"))

	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		etc := filepath.Join(outer, "root/etc")
		swap := func(a, b string) {
			_ = unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
		}
		for {
			select {
			case <-stop:
				return
			default:
			}
			for range 2 { // there and back, so that the next one starts from the same place
				swap(etc+"/real", etc+"/evil")
			}
			for range 2 {
				swap(etc+"/real", etc+"/evil-abs")
			}
			for range 2 {
				swap(etc+"/final", etc+"/final-evil")
			}
			// A directory that leaves the root while a lookup is in it: its ".." is outside then.
			_ = os.Rename(etc+"/real/deep/x", outer+"/x")
			_ = os.Rename(outer+"/x", etc+"/real/deep/x")
		}
	}()

	reads, writes := 0, 0
	for deadline := time.Now().Add(200 * time.Millisecond); time.Now().Before(deadline); {
		for _, name := range []string{"/etc/real/file", "/etc/up", "/etc/final"} {
			for _, get := range []func(string) ([]byte, error){r.ReadFile, r.Contents} {
				b, err := get(name)
				if err == nil && string(b) == "secret" {
					t.Errorf("%s read from outside", name)
				}
				if err == nil {
					reads++
				}
			}
		}
		for _, err := range []error{
			r.Stage("/etc/real", "staged", file("x")),
			r.SetMeta("/etc/final", mine(files.Node{Type: files.Regular, Mode: 0o644})),
			r.SetMeta("/etc/real/file", mine(files.Node{Type: files.Regular, Mode: 0o644})),
			r.Touch("/etc/real/file", time.Now()),
			r.Touch("/etc/final", time.Now()),
			r.Replace("/etc/real", "staged", "/etc/real/replaced"),
			r.Remove("/etc/real/replaced"),
			r.Remove("/etc/real/staged"),
		} {
			if err == nil {
				writes++
			}
		}
	}
	close(stop)
	<-stopped
	unchanged(t, filepath.Join(outer, "outside"), before)
	if reads == 0 || writes == 0 {
		t.Errorf("%d reads and %d writes got through: the race tested nothing", reads, writes)
	}
}

func TestRootItself(t *testing.T) {
	r, _ := host(t, "etc/x=", "var/")
	for _, name := range []string{"/", "", ".", "//", "/..", "/etc/.."} {
		if got, err := r.ReadDir(name); err != nil || !slices.Equal(got, []string{"etc", "var"}) {
			t.Errorf("ReadDir(%q) = %v, %v", name, got, err)
		}
		if !r.IsDir(name) {
			t.Errorf("%q is no directory", name)
		}
		if got, err := r.Ancestor(name); err != nil || got != "/" {
			t.Errorf("Ancestor(%q) = %s, %v", name, got, err)
		}
		if s, err := r.Space(name); err != nil || s.Device == 0 || s.Inodes == 0 {
			t.Errorf("Space(%q) = %+v, %v", name, s, err)
		}
		if n, err := r.Inspect(name); err != nil || n.Type != files.Directory {
			t.Errorf("Inspect(%q) = %+v, %v", name, n, err)
		}
		must(t, r.SyncFS(name))
		must(t, r.Fsync(name))
		must(t, r.MkdirAll(name, 0o755))
		must(t, r.Touch(name, time.Unix(1_000_000, 0)))
		if got, err := r.ModTime(name); err != nil || got.Unix() != 1_000_000 {
			t.Errorf("ModTime(%q) = %v, %v", name, got, err)
		}
		if got, err := r.Resolve(name); err != nil || got != "/" {
			t.Errorf("Resolve(%q) = %s, %v", name, got, err)
		}
		for op, err := range map[string]error{
			"Remove": r.Remove(name), "RemoveAll": r.RemoveAll(name), "Replace": r.Replace("/", "etc", name),
			"Mkdir": r.Mkdir(name, mine(files.Node{})), "Link": r.Link(name, "/", "x"),
		} {
			if !errors.Is(err, unix.EBUSY) {
				t.Errorf("%s(%q): %v", op, name, err)
			}
		}
	}
}

func TestOpenRefusesWhatIsNoDirectory(t *testing.T) {
	dir := tree(t, "file=")
	for name, want := range map[string]error{
		"": fs.ErrNotExist, filepath.Join(dir, "none"): fs.ErrNotExist, filepath.Join(dir, "file"): unix.ENOTDIR,
	} {
		if _, err := files.Open(name); !errors.Is(err, want) || !strings.Contains(err.Error(), name) {
			t.Errorf("Open(%q): %v", name, err)
		}
		if _, err := files.OpenWritable(name); err == nil {
			t.Errorf("OpenWritable(%q) worked", name)
		}
	}
}

// However the root's directory is spelled, and wherever the process goes later, paths of the host come out.
func TestRootIsSpelledAnyWay(t *testing.T) {
	dir := tree(t, "host/var/home/x=x", "host/home -> var/home", "elsewhere/")
	t.Chdir(dir)
	for _, spelled := range []string{"host", "./host", "host/", "elsewhere/../host", dir + "//host/."} {
		t.Chdir(dir)
		r := open(t, spelled)
		t.Chdir(filepath.Join(dir, "elsewhere"))
		if got, err := r.Resolve("/home/x"); err != nil || got != "/var/home/x" {
			t.Errorf("with %s, Resolve = %s, %v", spelled, got, err)
		}
		if got, err := r.ReadFile("/home/x"); err != nil || string(got) != "x" {
			t.Errorf("with %s, ReadFile = %s, %v", spelled, got, err)
		}
		if r.Path() != filepath.Join(dir, "host") {
			t.Errorf("with %s, Path = %s", spelled, r.Path())
		}
	}
}

func TestResolve(t *testing.T) {
	outside := t.TempDir()
	r, _ := host(t,
		"var/home/core/", "home -> var/home",
		"var/usrlocal/bin/", "usr/local -> ../var/usrlocal",
		"opt -> /var/opt",
		"abs -> "+outside, "up -> ../../../..", "etc/file=", "etc/link -> file",
		"loop -> loop",
	)
	for name, want := range map[string]string{
		"/etc/file":               "/etc/file",
		"/home/core/.ssh/x":       "/var/home/core/.ssh/x",
		"/usr/local/bin/tool":     "/var/usrlocal/bin/tool",
		"/opt/cni/bin/x":          "/var/opt/cni/bin/x", // the link's target is not there yet
		"/no/such/dir/x":          "/no/such/dir/x",
		"/etc/link":               "/etc/link", // the last component stays
		"/home":                   "/home",
		"/up/etc/file":            "/etc/file",
		"/abs/x":                  path.Join(outside, "x"), // a path of the host
		"/../../etc//./file":      "/etc/file",
		"/etc/file/below":         "/etc/file/below",
		"/home/core/../../../etc": "/etc",
	} {
		if got, err := r.Resolve(name); err != nil || got != want {
			t.Errorf("Resolve(%s) = %s, %v, want %s", name, got, err, want)
		}
	}
	if got, err := r.Resolve("/loop/x"); !errors.Is(err, unix.ELOOP) || !strings.Contains(err.Error(), "/loop/x") {
		t.Errorf("Resolve of a loop = %s, %v", got, err)
	}
}

func TestAncestor(t *testing.T) {
	r, _ := host(t, "etc/a/b/", "etc/file=", "home -> var/home", "var/home/core/", "opt -> /var/opt", "srv -> etc/file",
		"loop -> loop")
	for name, want := range map[string]string{
		"/etc/a/b/c":       "/etc/a/b",
		"/etc/a/x/y/z":     "/etc/a",
		"/none/x":          "/",
		"/x":               "/",
		"/home/core/x":     "/home/core",
		"/home/other/x":    "/home",
		"/etc/a/b/c/d/e/f": "/etc/a/b",
	} {
		if got, err := r.Ancestor(name); err != nil || got != want {
			t.Errorf("Ancestor(%s) = %s, %v, want %s", name, got, err, want)
		}
	}
	for name, want := range map[string]struct {
		err  error
		path string
	}{
		"/etc/file/x":     {unix.ENOTDIR, "/etc/file"},
		"/etc/file/x/y/z": {unix.ENOTDIR, "/etc/file"},
		"/opt/cni/x":      {unix.ENOENT, "/opt"},
		"/srv/x":          {unix.ENOTDIR, "/srv"},
		"/loop/x":         {unix.ELOOP, "/loop"},
	} {
		got, err := r.Ancestor(name)
		var pe *fs.PathError
		if !errors.Is(err, want.err) || !errors.As(err, &pe) || pe.Path != want.path {
			t.Errorf("Ancestor(%s) = %s, %v, want %v at %s", name, got, err, want.err, want.path)
		}
	}
}

func TestInspect(t *testing.T) {
	r, dir := host(t, "etc/file=x", "etc/link -> file", "etc/dir/")
	must(t, unix.Mkfifo(filepath.Join(dir, "etc/fifo"), 0o600))
	must(t, os.Chmod(filepath.Join(dir, "etc/file"), 0o4750|os.ModeSetuid))
	must(t, os.Chmod(filepath.Join(dir, "etc/dir"), 0o750|os.ModeSticky))
	for name, want := range map[string]files.Node{
		"/etc/file":      mine(files.Node{Type: files.Regular, Mode: 0o4750}),
		"/etc/link":      mine(files.Node{Type: files.Symlink, Target: "file"}),
		"/etc/dir":       mine(files.Node{Type: files.Directory, Mode: 0o1750}),
		"/etc/fifo":      mine(files.Node{Type: files.Other, Mode: 0o600}),
		"/etc/none":      {Type: files.Absent},
		"/no/such/dir":   {Type: files.Absent},
		"/etc/file/x":    {Type: files.Absent},
		"/etc/link/x/y":  {Type: files.Absent},
		"/etc/file/../x": {Type: files.Absent},
	} {
		got, err := r.Inspect(name)
		got.Label = "" // the machine's own, where it has SELinux
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("Inspect(%s): %v\n%s", name, err, diff)
		}
	}
}

func TestReadingTakesRegularFilesOnly(t *testing.T) {
	r, dir := host(t, "etc/dir/")
	must(t, unix.Mkfifo(filepath.Join(dir, "etc/fifo"), 0o600))
	for _, name := range []string{"/etc/dir", "/etc/fifo", "/"} {
		for op, get := range map[string]func(string) ([]byte, error){"ReadFile": r.ReadFile, "Contents": r.Contents} {
			if _, err := get(name); err == nil || !strings.Contains(err.Error(), "not a regular file") {
				t.Errorf("%s(%s): %v", op, name, err)
			}
		}
	}
}

func TestSpace(t *testing.T) {
	needRoot(t)
	r, dir := host(t, "full/", "link -> full")
	mount(t, "tmpfs", filepath.Join(dir, "full"), "tmpfs", 0, "size=64k,nr_inodes=10")
	for _, name := range []string{"/full", "/link"} {
		s, err := r.Space(name)
		if err != nil || s.Bytes != 64<<10 || s.Inodes != 9 {
			t.Errorf("Space(%s) = %+v, %v", name, s, err)
		}
	}
	whole, err := r.Space("/")
	must(t, err)
	if full, _ := r.Space("/full"); full.Device == whole.Device {
		t.Error("two file systems have one device")
	}
	if _, err := r.Space("/none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Space of nothing: %v", err)
	}
}

// Every failure says what was tried, on which path of the host, and what the kernel said.
func TestErrorsNameOperationAndPath(t *testing.T) {
	r, _ := host(t, "etc/file=x", "etc/dir/x=", "loop -> loop")
	long := strings.Repeat("x", 300)
	lock := func(name string) error { _, err := r.Lock(name, "x"); return err }
	get := func(name string) error { _, err := r.ReadFile(name); return err }
	contents := func(name string) error { _, err := r.Contents(name); return err }
	dir := func(name string) error { _, err := r.ReadDir(name); return err }
	inspect := func(name string) error { _, err := r.Inspect(name); return err }
	modTime := func(name string) error { _, err := r.ModTime(name); return err }
	compare := func(name string) error { _, err := r.Compare(files.Want{Path: name}); return err }
	for _, tt := range []struct {
		name string
		err  error
		is   error
		path string
	}{
		{"ReadFile", get("/etc/none"), fs.ErrNotExist, "/etc/none"},
		{"ReadFile below a file", get("/etc/file/x"), unix.ENOTDIR, "/etc/file/x"},
		{"Contents", contents("/etc/none"), fs.ErrNotExist, "/etc/none"},
		{"ReadDir", dir("/none"), fs.ErrNotExist, "/none"},
		{"ReadDir of a file", dir("/etc/file"), unix.ENOTDIR, "/etc/file"},
		{"Inspect", inspect("/etc/" + long), unix.ENAMETOOLONG, "/etc/" + long},
		{"Inspect in a loop", inspect("/loop/x"), unix.ELOOP, "/loop/x"},
		{"Compare", compare("/etc/" + long), unix.ENAMETOOLONG, "/etc/" + long},
		{"ModTime", modTime("/none"), fs.ErrNotExist, "/none"},
		{"Stage", r.Stage("/none", "x", file("")), fs.ErrNotExist, "/none"},
		{"Stage in a file", r.Stage("/etc/file", "x", file("")), unix.ENOTDIR, "/etc/file"},
		{"Stage over a file", r.Stage("/etc", "file", file("")), fs.ErrExist, "/etc/file"},
		{"Stage over a directory", r.Stage("/etc", "dir", mine(files.Node{Type: files.Directory})), fs.ErrExist, "/etc/dir"},
		{"Stage of a long name", r.Stage("/etc", long, file("")), unix.ENAMETOOLONG, "/etc/" + long},
		{"SetMeta", r.SetMeta("/etc/none", files.Node{Type: files.Regular}), fs.ErrNotExist, "/etc/none"},
		{"Replace", r.Replace("/etc", "none", "/etc/file"), fs.ErrNotExist, "/etc/file"},
		{"Replace a directory", r.Replace("/etc", "file", "/etc/dir"), unix.EISDIR, "/etc/dir"},
		{"Replace in nothing", r.Replace("/etc", "file", "/none/x"), fs.ErrNotExist, "/none"},
		{"Link", r.Link("/etc/none", "/etc", "x"), fs.ErrNotExist, "/etc/x"},
		{"Link over a file", r.Link("/etc/dir/x", "/etc", "file"), fs.ErrExist, "/etc/file"},
		{"Preserve", r.Preserve("/etc/none", "/etc", "x", 1<<20), fs.ErrNotExist, "/etc/x"},
		{"Preserve over a file", r.Preserve("/etc/dir/x", "/etc", "file", 1<<20), fs.ErrExist, "/etc/file"},
		{"Touch", r.Touch("/etc/none", time.Now()), fs.ErrNotExist, "/etc/none"},
		{"Mkdir", r.Mkdir("/none/x", mine(files.Node{})), fs.ErrNotExist, "/none"},
		{"Mkdir over a file", r.Mkdir("/etc/file", mine(files.Node{})), fs.ErrExist, "/etc/file"},
		{"MkdirAll below a file", r.MkdirAll("/etc/file/x/y", 0o755), unix.ENOTDIR, "/etc/file"},
		{"Remove of a full directory", r.Remove("/etc/dir"), unix.ENOTEMPTY, "/etc/dir"},
		{"WriteRecord", r.WriteRecord("/none/x", nil, 0o600), fs.ErrNotExist, "/none"},
		{"Fsync", r.Fsync("/etc/none"), fs.ErrNotExist, "/etc/none"},
		{"Lock", lock("/none/x"), fs.ErrNotExist, "/none"},
		{"Lock of a directory", lock("/etc/dir"), unix.EISDIR, "/etc/dir"},
	} {
		var pe *fs.PathError
		if !errors.As(tt.err, &pe) || !errors.Is(tt.err, tt.is) || path.Clean(pe.Path) != tt.path || pe.Op == "" {
			t.Errorf("%s: %v, want %v at %s", tt.name, tt.err, tt.is, tt.path)
		}
	}
}

// FuzzResolve holds that whatever the links and the name say, a clean path of the host comes out.
func FuzzResolve(f *testing.F) {
	for _, seed := range [][3]string{
		{"/home/x", "var/home", "../.."}, {"a/../b", "/", "/b"}, {"/a/b/c", "../../..", "a/../../etc"},
		{"//a//", ".", "./././"}, {"\x00", "b", "a"}, {"/a/b", "b/a", "a/b"}, {"", "", ""},
	} {
		f.Add(seed[0], seed[1], seed[2])
	}
	dir := f.TempDir()
	r, err := files.Open(dir)
	must(f, err)
	defer func() { _ = r.Close() }()
	f.Fuzz(func(t *testing.T, name, a, b string) {
		for link, target := range map[string]string{"a": a, "b": b} {
			_ = os.Remove(filepath.Join(dir, link))
			_ = os.Symlink(target, filepath.Join(dir, link)) // the kernel refuses some; then there is no link
		}
		got, err := r.Resolve(name)
		if err == nil && (got != path.Clean(got) || !strings.HasPrefix(got, "/")) {
			t.Errorf("Resolve(%q) = %q", name, got)
		}
	})
}
