// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/noderefit/noderefit/test/lab/snapshot"
)

// mount mounts a file system at a directory of the tree, and takes it away at the end of the test.
func (tr *tree) mount(source, dir, kind string, flags uintptr, data string) {
	tr.Helper()
	at := tr.path(dir)
	tr.must(os.MkdirAll(at, 0o755))
	tr.must(os.NewSyscallError("mount", unix.Mount(source, at, kind, flags, data)))
	tr.Cleanup(func() { tr.must(os.NewSyscallError("umount", unix.Unmount(at, unix.MNT_DETACH))) })
}

func (tr *tree) tmpfs(dir, options string) {
	tr.Helper()
	tr.mount("tmpfs", dir, "tmpfs", 0, "mode=0755,"+options)
}

func (tr *tree) readOnly(dir string) {
	tr.Helper()
	tr.must(os.MkdirAll(tr.path(dir), 0o755))
	tr.mount(tr.path(dir), dir, "", unix.MS_BIND, "")
	tr.must(os.NewSyscallError("remount", unix.Mount("", tr.path(dir), "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")))
}

// immutable is chattr +i until the end of the test.
func (tr *tree) immutable(name string) {
	tr.Helper()
	set := func(flags int) error {
		f, err := os.Open(tr.path(name))
		if err != nil {
			return err
		}
		defer f.Close()
		return unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags)
	}
	const immutableFlag = 0x10
	tr.must(set(immutableFlag))
	tr.Cleanup(func() { tr.must(set(0)) })
}

// changed differs from managed in everything.
func changed(more ...part) []part {
	return append([]part{
		withFile("/etc/f", "other", mode(0o644)),
		withFile("/etc/new/deep/f", "1"),
		withDir("/etc/d", mode(0o700), obj{"user": obj{"id": 3}}),
		withDir("/etc/dd"),
		withLink("/etc/l", "/etc/passwd"),
		withLink("/etc/ll", "/etc/passwd"),
		withFile("/etc/motd", "ours"),
		withUnit("a.service", contents("# more\n"+install), obj{"enabled": false}),
		withUnit("off.service", contents(install), obj{"enabled": true}),
		withUnit("m.service", contents(install)),
		withUnit("b.service", contents(install), obj{"enabled": true}),
		withUnit("crio.service", dropin("y.conf", "[Unit]\n")),
		withUser("core", obj{"passwordHash": "$6$other", "sshAuthorizedKeys": []string{"ssh-rsa BBBB"}}),
		withUser("chrony", obj{"sshAuthorizedKeys": []string{"ssh-rsa CCCC"}}),
	}, more...)
}

type failure struct {
	name   string
	before func(*tree)
	bad    part
	says   []string
	cured  bool // by the configuration alone: the tree can take another one as it is
	// invalid documents are refused before the host is looked at, so that its status stays.
	invalid bool
}

func failures() []failure {
	big := strings.Repeat("0123456789abcdef", 16<<10) // 256 KiB
	long := strings.Repeat("x", 256)
	file := func(path string) part { return withFile(path, "1") }
	nothing := func(*tree) {}
	return []failure{
		{"too few bytes", func(tr *tree) { tr.tmpfs("srv/small", "size=64k") }, withFile("/srv/small/f", big), []string{"/srv/small", "bytes"}, true, false},
		{"too few inodes", func(tr *tree) { tr.tmpfs("srv/small", "nr_inodes=3") },
			both(file("/srv/small/1"), file("/srv/small/2"), file("/srv/small/3"), file("/srv/small/4")), []string{"/srv/small", "inodes"}, true, false},
		{"a read-only mount", func(tr *tree) { tr.readOnly("srv/ro") }, file("/srv/ro/f"), []string{"/srv/ro", "read-only"}, true, false},
		{"a file to go from a read-only mount", func(tr *tree) {
			tr.put("etc/ro/theirs", "1", 0o644)
			tr.apply(doc("a0", append(managed(), file("/etc/ro/f"))...))
			tr.readOnly("etc/ro")
		}, both(), []string{"/etc/ro/f", "read-only"}, false, false},
		{"a mode on a read-only mount", func(tr *tree) {
			tr.put("srv/ro/f", "1", 0o600)
			tr.readOnly("srv/ro")
		}, file("/srv/ro/f"), []string{"/srv/ro/f", "read-only"}, true, false},
		{"an immutable directory", func(tr *tree) {
			tr.must(os.MkdirAll(tr.path("srv/fixed"), 0o755))
			tr.immutable("srv/fixed")
		}, file("/srv/fixed/f"), []string{"/srv/fixed", "not permitted"}, true, false},
		{"an immutable file", func(tr *tree) {
			tr.put("srv/fixed", "theirs", 0o644)
			tr.immutable("srv/fixed")
		}, file("/srv/fixed"), []string{"/srv/fixed", "not permitted"}, true, false},
		{"an immutable file's mode", func(tr *tree) {
			tr.put("srv/fixed", "1", 0o600)
			tr.immutable("srv/fixed")
		}, file("/srv/fixed"), []string{"/srv/fixed", "not permitted"}, true, false},
		{"an unknown user of a file", nothing, withFile("/srv/f", "1", obj{"user": obj{"name": "stranger"}}), []string{"storage.files", "/srv/f", "user", "stranger"}, true, false},
		{"an unknown group of a file", nothing, withFile("/srv/f", "1", obj{"group": obj{"name": "stranger"}}), []string{"storage.files", "/srv/f", "group", "stranger"}, true, false},
		{"an unknown user of a directory", nothing, withDir("/srv/d", obj{"user": obj{"name": "stranger"}}), []string{"storage.directories", "/srv/d", "user", "stranger"}, true, false},
		{"an unknown group of a link", nothing, withLink("/srv/l", "/x", obj{"group": obj{"name": "stranger"}}), []string{"storage.links", "/srv/l", "group", "stranger"}, true, false},
		{"an unknown user of the machine that this runs on", nothing, withFile("/srv/f", "1", obj{"user": obj{"name": "daemon"}}), []string{"storage.files", "/srv/f", "user", "daemon"}, true, false},
		{"a user that is not there", nothing, withUser("stranger", obj{"sshAuthorizedKeys": []string{"ssh-rsa A"}}), []string{"passwd.users", "stranger"}, true, false},
		{"a path below a file", func(tr *tree) { tr.put("srv/file", "theirs", 0o600) }, file("/srv/file/f"), []string{"storage.files", "/srv/file"}, true, false},
		{"a directory below a file", func(tr *tree) { tr.put("srv/file", "theirs", 0o600) }, withDir("/srv/file/d"), []string{"storage.directories", "/srv/file"}, true, false},
		{"a path below a FIFO", func(tr *tree) {
			tr.must(os.Mkdir(tr.path("srv"), 0o755))
			tr.must(unix.Mkfifo(tr.path("srv/fifo"), 0o600))
		}, file("/srv/fifo/f"), []string{"storage.files", "/srv/fifo"}, true, false},
		{"a path below a link to a file", func(tr *tree) { tr.symlink("/etc/passwd", "srv/l") }, file("/srv/l/f"), []string{"storage.files", "/srv/l"}, true, false},
		{"a path below a link to nowhere", func(tr *tree) { tr.symlink("/no/where", "srv/l") }, file("/srv/l/f"), []string{"storage.files", "/srv/l"}, true, false},
		{"a path below a link in a circle", func(tr *tree) { tr.symlink("l", "srv/l") }, file("/srv/l/f"), []string{"storage.files", "/srv/l"}, true, false},
		{"an invalid unit", nothing, withUnit("bad.service", contents("[Service]\nno assignment\n")), []string{"systemd.units", "bad.service"}, true, true},
		{"an invalid drop-in", nothing, withUnit("bad.service", dropin("x.conf", "[Unit]\nno assignment\n")), []string{"systemd.units", "bad.service", "dropins[0]"}, true, true},
		{"an instance of a type without templates", nothing, withUnit("bad@x.slice", contents("[Slice]\n")), []string{"systemd.units", "bad@x.slice"}, true, false},
		{"a file name that is too long", nothing, file("/srv/" + long), []string{"storage.files", long[:100], "too long"}, true, false},
		{"a directory name that is too long", nothing, file("/srv/" + long + "/f"), []string{"storage.files", long[:100], "too long"}, true, false},
		{"a path that is too long", nothing, file("/srv" + strings.Repeat("/directory", 500)), []string{"storage.files", "/srv/directory", "too long"}, true, false},
		{"a FIFO", func(tr *tree) {
			tr.must(os.Mkdir(tr.path("srv"), 0o755))
			tr.must(unix.Mkfifo(tr.path("srv/f"), 0o600))
		}, file("/srv/f"), []string{"storage.files", "/srv/f", "FIFO"}, true, false},
		{"a device where a directory is wanted", func(tr *tree) {
			tr.must(os.Mkdir(tr.path("srv"), 0o755))
			tr.must(unix.Mknod(tr.path("srv/d"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))))
		}, withDir("/srv/d"), []string{"storage.directories", "/srv/d"}, true, false},
		{"a directory that others use", func(tr *tree) { tr.put("srv/f/theirs", "1", 0o600) }, file("/srv/f"), []string{"storage.files", "/srv/f", "theirs"}, true, false},
		{"a mount point", func(tr *tree) { tr.tmpfs("srv/f", "size=64k") }, file("/srv/f"), []string{"/srv/f"}, true, false},
		{"a hard link to nothing", nothing, withLink("/srv/h", "/srv/gone", obj{"hard": true}), []string{"storage.links", "/srv/h", "/srv/gone"}, true, false},
		{"a hard link to a directory", nothing, withLink("/srv/h", "/etc", obj{"hard": true}), []string{"storage.links", "/srv/h", "/etc"}, true, false},
		{"a hard link to another file system", func(tr *tree) {
			tr.tmpfs("srv/other", "size=64k")
			tr.put("srv/other/f", "1", 0o644)
		}, withLink("/srv/h", "/srv/other/f", obj{"hard": true}), []string{"storage.links", "/srv/h", "/srv/other/f"}, true, false},
		{"no /etc/shadow to write to", func(tr *tree) {
			tr.must(os.Remove(tr.path("etc/shadow")))
			tr.must(os.Mkdir(tr.path("etc/shadow"), 0o700))
		}, both(), []string{"passwd.users", "/etc/shadow"}, false, false},
		{"a record that can't be written", func(tr *tree) { tr.readOnly("var/lib/machine-config-daemon") }, both(), []string{"/var/lib/machine-config-daemon", "read-only"}, false, false},
		{"a record that has no room", func(tr *tree) {
			tr.tmpfs("var/lib/machine-config-daemon", "size=16k")
		}, both(withFile("/srv/f", big), withFile("/etc/chrony.conf", "2")), []string{"/var/lib/machine-config-daemon", "bytes"}, false, false},
	}
}

func TestAFailedApplyLeavesNoTrace(t *testing.T) {
	for _, tt := range failures() {
		t.Run(tt.name, func(t *testing.T) {
			tr := newTree(t)
			tr.put("etc/motd", "admin's", 0o600)
			tr.must(os.MkdirAll(tr.path("var/lib/chrony"), 0o750))
			tr.must(unix.Setxattr(tr.path("etc/motd"), "user.mine", []byte("1"), 0))
			tr.apply(doc("a", managed()...))
			tr.age()
			tt.before(tr)
			before := tr.take()

			r := tr.tryApply(doc("bad", changed(tt.bad)...), "-o", "json")
			r.is(t, 1, tt.says...)
			tr.same(before, tr.take(), snapshot.Times)
			if !tt.cured {
				return
			}
			if tt.invalid {
				tr.committed("a")
				return
			}
			var res resultDoc
			r.json(t, &res)
			if res.Status.State != "Degraded" || res.Status.Config.Committed != "a" || res.Status.Config.Pending != "" ||
				res.Status.Reason == "" || len(res.Status.Quarantined) != 0 {
				t.Errorf("status %+v", res.Status)
			}
			if s := tr.status(); s.State != "Degraded" || !strings.Contains(s.Reason, tt.says[len(tt.says)-1]) {
				t.Errorf("status %+v", s)
			}
			tr.verified()
			// The same again fails the same: nothing was left half-way. And a mind can be changed, to and fro.
			tr.tryApply(doc("bad", changed(tt.bad)...)).is(t, 1, tt.says...)
			tr.same(before, tr.take(), snapshot.Times)
			tr.run("recover").ok(t)
			tr.same(before, tr.take(), snapshot.Times)
			tr.settled("a", managed()...)
			tr.settled("c", changed()...)
			tr.settled("a", managed()...)
		})
	}
}

func TestAFailedFirstApplyLeavesNoTrace(t *testing.T) {
	for _, tt := range failures() {
		if !tt.cured {
			continue
		}
		t.Run(tt.name, func(t *testing.T) {
			tr := newTree(t)
			tr.must(os.MkdirAll(tr.path("var/lib/chrony"), 0o750))
			tt.before(tr)
			before := tr.take()
			tr.tryApply(doc("bad", changed(tt.bad)...)).is(t, 1, tt.says...)
			tr.same(before, tr.take(), snapshot.Times)
			tr.run("rollback").is(t, 1, "previous")
			if s := tr.status(); s.State != "Degraded" && !tt.invalid || s.Config.Committed != "" {
				t.Errorf("status %+v", s)
			}
			tr.settled("a", managed()...)
		})
	}
}

func TestAFailureLeavesDriftWhereItWas(t *testing.T) {
	tr := newTree(t)
	tr.apply(doc("a", withFile("/etc/f", "1"), withFile("/etc/g", "1")))
	tr.put("etc/f", "mine", 0o644)
	tr.must(os.MkdirAll(tr.path("srv/fixed"), 0o755))
	tr.immutable("srv/fixed")
	before := tr.take()
	tr.tryApply(doc("b", withFile("/etc/f", "2"), withFile("/srv/fixed/f", "1"))).is(t, 1, "/srv/fixed")
	tr.same(before, tr.take(), snapshot.Times)
}

func TestAFailureOnAHostThatWasNeverTouched(t *testing.T) {
	tr := newTree(t)
	for _, dir := range ownState {
		tr.must(os.Remove(tr.path(dir)))
	}
	before := tr.take()
	tr.tryApply(doc("bad", withFile("/etc/f", "1"), withFile("/etc/passwd/f", "1"))).is(t, 1, "/etc/passwd")
	after := tr.take()
	for _, dir := range ownState { // the parents of the agent's own state
		parent := filepath.Dir(dir)
		delete(before, parent)
		delete(after, parent)
	}
	tr.same(before, after, snapshot.Times)
}

func TestARootThatIsNone(t *testing.T) {
	dir := write(t, map[string]string{"c.json": doc("a", withFile("/etc/f", "1")), "file": "1"})
	for _, root := range []string{"gone", "file", "file/below"} {
		for _, args := range [][]string{{"apply", "--config", "c.json"}, {"plan", "--desired", "c.json"}, {"verify"}, {"status"}, {"recover"}, {"rollback"}} {
			run(t, dir, daemon, append(args, "--root", root)...).fails(t, 1, root)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "gone")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a root was made: %v", err)
	}
}

func TestAnEmptyRootIsAHost(t *testing.T) {
	tr := &tree{T: t, root: t.TempDir(), docs: t.TempDir()}
	tr.settled("a", withFile("/etc/f", "1"), withUnit("a.service", contents(install), obj{"enabled": true}))
	tr.has(map[string]string{"etc": "dir 0755 0:0", "etc/f": "file 0644 0:0 1",
		"etc/systemd/system/multi-user.target.wants/a.service": "link 0:0 -> /etc/systemd/system/a.service"})
	tr.settled("b")
	tr.has(map[string]string{"etc/f": "absent"})
}
