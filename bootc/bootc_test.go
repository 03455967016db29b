// SPDX-License-Identifier: Apache-2.0

package bootc

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/noderefit/noderefit/osimage"
	"github.com/noderefit/noderefit/ostree"
	"github.com/noderefit/noderefit/systemd"
)

const (
	one = "63bcf5d8b40c877405c835d895399a8e2500938f044a0557e08f76eca8bdcfba"
	two = "2026311abe525ab63acbe1f5c00ba62dfd8bb328b246281b0625cbcfa1473861"

	digestOne = "sha256:" + one
	digestTwo = "sha256:" + two
)

// baseLayer is the ref of the first layer of the image that the commit of newHost is of, whose digest is digestOne.
const baseLayer = "/ostree/repo/refs/heads/" + layerRefs + "sha256_3A_" + two

// newHost is the root of a host that runs a deployment of commit one with an origin, and the Runner that tells so.
func newHost(t *testing.T, origin string) (root string, run ostree.Runner) {
	t.Helper()
	commit, err := os.ReadFile("../ostree/testdata/image.commit")
	if err != nil {
		t.Fatal(err)
	}
	root = newRoot(t, map[string]string{"run/x": "", "usr/bin/bootc": "", "usr/bin/podman": "", baseLayer: two,
		"ostree/deploy/default/deploy/" + one + ".0.origin":          origin,
		"ostree/repo/objects/" + one[:2] + "/" + one[2:] + ".commit": string(commit),
		"boot/loader/entries/ostree-1.conf":                          "options rw ostree=/ostree/boot.1/default/x/0\n",
		"ostree/boot.1/default/x/y":                                  ""})
	link := filepath.Join(root, "ostree/boot.1/default/x/0")
	if err := os.Symlink("../../../deploy/default/deploy/"+one+".0", link); err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{"bootc", "podman"} {
		if err := os.Chmod(filepath.Join(root, "usr/bin", program), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return root, func(_ context.Context, argv ...string) ([]byte, error) {
		if slices.Contains(argv, "status") {
			return []byte("* default " + one + ".0\n    Version: 9.4\n"), nil
		}
		return nil, nil
	}
}

func TestWhatRunsIsKnownWithoutBootc(t *testing.T) {
	const group, own = "[origin]\ncontainer-image-reference=", "\n[libostree-transient]\npinned=true\n"
	for _, c := range []struct {
		origin string
		want   osimage.System
	}{
		{group + "ostree-unverified-registry:quay.io/os:9" + own,
			osimage.System{Image: "ostree-unverified-registry:quay.io/os:9@" + digestOne}},
		{group + "ostree-unverified-registry:quay.io/os@" + digestTwo,
			osimage.System{Image: "ostree-unverified-registry:quay.io/os@" + digestTwo}},
		{group + "ostree-image-signed:docker://quay.io/os", osimage.System{Image: "ostree-image-signed:docker://quay.io/os@" + digestOne}},
		{group + "ostree-unverified-image:oci:/srv/os:9", osimage.System{Image: "ostree-unverified-image:oci:/srv/os:9"}},
		{"[origin]\nrefspec=fedora:fedora/stable\n", osimage.System{Image: "fedora:fedora/stable"}},
		{group + "ostree-unverified-registry:quay.io/os:9\n[packages]\nrequested=usbguard;nano;\n[overrides]\nremove=vim;\n",
			osimage.System{Image: "ostree-unverified-registry:quay.io/os:9", Packages: []string{"usbguard", "nano"}, Removed: []string{"vim"}}},
	} {
		root, run := newHost(t, c.origin)
		asked := func(ctx context.Context, argv ...string) ([]byte, error) {
			if argv[0] == "bootc" {
				t.Errorf("bootc was run: %q", argv)
			}
			return run(ctx, argv...)
		}
		got, err := New(asked, &ostree.Tools{Root: root}, ostree.NewPlain(asked, root)).Current(t.Context())
		if err != nil || got.Image != c.want.Image || !slices.Equal(got.Packages, c.want.Packages) || !slices.Equal(got.Removed, c.want.Removed) {
			t.Errorf("%q is %+v, %v", c.origin, got, err)
		}
	}
	root, run := newHost(t, group+"ostree-unverified-image:pigeon:quay.io/os\n")
	if got, err := New(run, &ostree.Tools{Root: root}, ostree.NewPlain(run, root)).Current(t.Context()); err == nil {
		t.Errorf("an unknown transport is %+v", got)
	}
}

func TestWhatBootcMadeIsComparedWithWhatWasAsked(t *testing.T) {
	const tag, digested = "ostree-unverified-registry:quay.io/os:9", "ostree-unverified-registry:quay.io/os@" + digestTwo
	for _, c := range []struct {
		name, image, os string
		made            string
		runs, is        bool
	}{
		{"the same tag", "quay.io/os:9", "default", tag, true, true},
		{"the tag's digest", "quay.io/os@" + digestOne, "default", tag, false, true},
		{"another digest", "quay.io/os@" + digestTwo, "default", tag, false, false},
		{"the digest of a list", "quay.io/os@" + digestTwo, "default", digested, true, true},
		{"another tag", "quay.io/os:10", "default", tag, false, false},
		{"another OS", "quay.io/os:9", "other", tag, true, false},
		{"signed is another spelling", "ostree-image-signed:docker://quay.io/os:9", "default", tag, false, true},
		{"signed", "ostree-image-signed:docker://quay.io/os:9", "default", "ostree-image-signed:docker://quay.io/os:9", true, true},
		{"verified by a remote", "quay.io/os:9", "default", "ostree-remote-registry:fedora:quay.io/os:9", false, true},
		{"no image", "quay.io/os:9", "default", "", false, false},
	} {
		e := &entry{Deployment: ostree.Deployment{OS: "default", Checksum: one}, digest: digestOne,
			groups: map[string]map[string]string{"origin": {"container-image-reference": c.made}}}
		want, err := osimage.ParseImage(c.image)
		if err != nil {
			t.Fatal(err)
		}
		if runs, err := e.runs(want), e.differs(want, c.os); runs != c.runs || (err == nil) != c.is {
			t.Errorf("%s: runs it %t, differs by %v", c.name, runs, err)
		}
	}
}

func TestLayerThatBootcNeedsIsLookedFor(t *testing.T) {
	root, run := newHost(t, "[origin]\n")
	b := New(run, &ostree.Tools{Root: root}, ostree.NewPlain(run, root))
	if lost, err := b.lostLayer(one); lost != "" || err != nil {
		t.Errorf("with the layer: %q, %v", lost, err)
	}
	if masks, err := b.masks(t.Context()); len(masks) > 0 || err != nil {
		t.Errorf("with the layer bootc does not see %v, %v", masks, err)
	}
	if err := os.Remove(filepath.Join(root, baseLayer)); err != nil {
		t.Fatal(err)
	}
	if lost, err := b.lostLayer(one); lost != layerRefs+"sha256_3A_"+two || err != nil {
		t.Errorf("without it: %q, %v", lost, err)
	}
	masks, err := b.masks(t.Context())
	if err != nil || len(masks) != 1 || masks[0].At != "/sysroot/ostree/deploy/default/deploy/"+one+".0.origin" {
		t.Fatalf("without it bootc does not see %v, %v", masks, err)
	}
	if text, err := os.ReadFile(filepath.Join(root, masks[0].Source)); err != nil || strings.Contains(string(text), "image") {
		t.Errorf("bootc sees %q (%v)", text, err)
	}
}

func TestImageThatAUnitIsBoundToIsRead(t *testing.T) {
	for _, c := range []struct{ extension, text, want string }{
		{".container", "[Unit]\nImage=no\n[Container]\nImage=quay.io/app:1\n", "quay.io/app:1"},
		{".image", "[Image]\n# a comment\nImage = quay.io/app%%x:1\n", "quay.io/app%x:1"},
		{".container", "[Image]\nImage=quay.io/app:1\n", ""},
		{".kube", "[Container]\nImage=quay.io/app:1\n", ""},
	} {
		if got, err := boundImage(c.extension, c.text); got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%q of %s is bound to %q, %v", c.text, c.extension, got, err)
		}
	}
}

// exited is how a command of a test ended.
type exited int

func (e exited) Error() string { return fmt.Sprintf("exit status %d", int(e)) }
func (e exited) ExitCode() int { return int(e) }

// tree is a commit for the commands of ostree that read one: the text of each file, or the target of a link after "-> ".
type tree map[string]string

func (tr tree) run(_ context.Context, argv ...string) ([]byte, error) {
	paths := slices.Sorted(maps.Keys(tr))
	line := func(name string) string {
		text, is := tr[name]
		target, link := strings.CutPrefix(text, "-> ")
		below := slices.ContainsFunc(paths, func(p string) bool { return strings.HasPrefix(p, strings.TrimSuffix(name, "/")+"/") })
		switch {
		case link:
			return "l00777 0 0      0 " + name + " -> " + target + "\n"
		case is:
			return "-00644 0 0      3 " + name + "\n"
		case below:
			return "d00755 0 0      0 " + name + "\n"
		}
		return ""
	}
	lacks := func(name string) error {
		return &ostree.CommandError{Argv: argv, Err: exited(1), Stderr: "error: Inspecting path '" + name + "': No such file or directory"}
	}
	output := ""
	switch {
	case argv[1] == "cat" && line(argv[3]) == "-00644 0 0      3 "+argv[3]+"\n":
		return []byte(tr[argv[3]]), nil
	case argv[1] == "cat":
		return nil, lacks(argv[3])
	case argv[2] == "-d":
		for _, name := range argv[4:] {
			if line(name) == "" {
				return []byte(output), lacks(name)
			}
			output += line(name)
		}
		return []byte(output), nil
	}
	dir, names := argv[len(argv)-1], slices.Contains(argv, "--nul-filenames-only")
	for _, name := range append([]string{dir}, paths...) {
		switch at := line(name); {
		case name != dir && filepath.Dir(name) != dir:
		case at == "":
			return nil, lacks(name)
		case names:
			output += name + "\x00"
		default:
			output += at
		}
	}
	return []byte(output), nil
}

func TestLinksAreFollowedInsideOfTheCommit(t *testing.T) {
	const dir = "/usr/lib/bootc/bound-images.d"
	tr := tree{"/etc/passwd": "the image's", "/usr/lib/app/app.container": "text",
		"/usr/share/containers/systemd/app.container": "-> ../../../lib/app/app.container",
		dir + "/direct.container":                     "text",
		dir + "/absolute.container":                   "-> /usr/lib/app/app.container",
		dir + "/relative.container":                   "-> ../../app/app.container",
		dir + "/chain.container":                      "-> /usr/share/containers/systemd/app.container",
		"/lib":                                        "-> usr/lib",
		dir + "/directory.container":                  "-> /lib/app/app.container",
		"/usr/lib/deep":                               "-> ../share/containers",
		dir + "/parent.container":                     "-> ../../deep/../../lib/app/app.container",
		dir + "/outside.container":                    "-> ../../../../../../../etc/passwd",
		dir + "/gone.container":                       "-> /usr/lib/none/x",
		dir + "/loop.container":                       "-> loop.container",
		dir + "/a -> b.container":                     "-> /usr/lib/app/app.container",
	}
	b := New(tr.run, &ostree.Tools{}, ostree.NewPlain(tr.run, t.TempDir()))
	const app = "/usr/lib/app/app.container"
	for name, want := range map[string]string{"direct": dir + "/direct.container", "absolute": app, "relative": app, "chain": app,
		"directory": app, "parent": app, "outside": "/etc/passwd", "gone": "", "a -> b": app, "never": ""} {
		got, err := b.resolve(t.Context(), "reading", one, dir+"/"+name+".container")
		if got != want || err != nil {
			t.Errorf("%s leads to %q, %v", name, got, err)
		}
	}
	if got, err := b.resolve(t.Context(), "reading", one, dir+"/loop.container"); ostree.ClassOf(err) != ostree.Invalid {
		t.Errorf("a loop leads to %q, %v", got, err)
	}
	if text, err := b.read(t.Context(), "reading", one, dir+"/gone.container"); ostree.ClassOf(err) != ostree.Invalid {
		t.Errorf("a link to nothing is read as %q, %v", text, err)
	}
}

func TestBoundImagesAreLookedForInTheStorageOfBootc(t *testing.T) {
	const missing = "Error: configure storage: overlay: can't stat imageStore dir /x: stat /x: no such file or directory"
	for _, c := range []struct {
		name    string
		storage bool
		exits   error
		want    string
		class   ostree.Class // of the error, "" for none
	}{
		{"there", true, nil, "", ""},
		{"gone", true, exited(1), "--quiet", ""},
		{"the whole storage is gone", false, exited(125), "--quiet", ""},
		{"podman fails", true, exited(125), "--quiet", ostree.Failed},
		{"podman has no time", true, context.DeadlineExceeded, "--quiet", ostree.Retryable},
	} {
		files := map[string]string{"run/x": ""}
		if c.storage {
			files[boundStore+"/overlay-images/x"] = ""
		}
		root := newRoot(t, files)
		commit := tree{boundDir + "/app.container": "-> /usr/share/app.container", boundDir + "/README": "text",
			"/usr/share/app.container": "-> ../lib/app", "/usr/lib/app": "[Container]\nImage=--quiet\n"}
		run := func(ctx context.Context, argv ...string) ([]byte, error) {
			if argv[0] != "podman" {
				return commit.run(ctx, argv...)
			}
			if !slices.Equal(argv[len(argv)-4:], []string{"image", "exists", "--", "--quiet"}) {
				t.Errorf("%s: %q is run", c.name, argv)
			}
			if c.exits != nil {
				return nil, &ostree.CommandError{Argv: argv, Err: c.exits, Stderr: missing}
			}
			return nil, nil
		}
		got, err := New(run, &ostree.Tools{Root: root}, ostree.NewPlain(run, root)).lostBound(t.Context(), one)
		if got != c.want || (err != nil) != (c.class != "") || err != nil && ostree.ClassOf(err) != c.class {
			t.Errorf("%s: %q, class %s, %v", c.name, got, ostree.ClassOf(err), err)
		}
	}
	run := tree{"/usr/lib/x": ""}.run
	if got, err := New(run, &ostree.Tools{}, ostree.NewPlain(run, "")).lostBound(t.Context(), one); got != "" || err != nil {
		t.Errorf("without a directory of units: %q, %v", got, err)
	}
}

func TestVerdictNamesAnImageThatTheBootedOneIsBoundToAndLacks(t *testing.T) {
	root := newRoot(t, map[string]string{"run/x": "", boundStore + "/overlay-images/x": ""})
	commit := tree{boundDir + "/app.container": "-> /usr/lib/app", "/usr/lib/app": "[Container]\nImage=quay.io/app:1\n"}
	asked := 0
	exits := []error{context.DeadlineExceeded, exited(1), nil}
	run := func(ctx context.Context, argv ...string) ([]byte, error) {
		if argv[0] != "podman" {
			return commit.run(ctx, argv...)
		}
		asked++
		if err := exits[asked-1]; err != nil {
			return nil, &ostree.CommandError{Argv: argv, Err: err}
		}
		return nil, nil
	}
	ask, lacks := New(run, &ostree.Tools{Root: root}, ostree.NewPlain(run, root)).BoundCheck(one)
	if err := ask(t.Context()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("without an answer: %v", err)
	}
	if err := errors.Join(ask(t.Context()), lacks(t.Context())); err == nil ||
		!strings.HasPrefix(err.Error(), "the container image quay.io/app:1, which") {
		t.Errorf("without the image: %v", err)
	}
	for range 2 {
		if err := errors.Join(ask(t.Context()), lacks(t.Context())); err != nil || asked != 3 {
			t.Errorf("with it, asked %d times: %v", asked, err)
		}
	}
}

func TestEmptyStorageThatStaysDoesNotDecide(t *testing.T) {
	root := newRoot(t, map[string]string{boundStore + "/x": "", "run/x": ""})
	if err := os.Symlink("loop", filepath.Join(root, "loop")); err != nil {
		t.Fatal(err)
	}
	// Its parent directory is one into which nothing leads, so that its removal fails.
	if err := errors.Join(os.RemoveAll(filepath.Join(root, "run")), os.Symlink("loop", filepath.Join(root, "run"))); err != nil {
		t.Fatal(err)
	}
	run := func(context.Context, ...string) ([]byte, error) { return nil, nil }
	b := New(run, &ostree.Tools{Root: root}, ostree.NewPlain(run, root))
	said := ""
	b.Progress = func(text string) { said = text }
	if there, err := b.stored(t.Context(), "looking", "quay.io/app:1"); !there || err != nil || !strings.Contains(said, "is left") {
		t.Errorf("%t, %v; said %q", there, err, said)
	}
}

func TestKernelArgumentsAreReadFromTheCommit(t *testing.T) {
	image := tree{argumentsDir + "/10-a.toml": `kargs = ["a"]`, argumentsDir + "/20-b.toml": "-> /usr/share/b.toml",
		"/usr/share/b.toml": "-> ../lib/b", "/usr/lib/b": `kargs = ["b"]`, argumentsDir + "/README": "no"}
	for _, c := range []struct {
		name string
		of   tree
		want []string
		has  bool
	}{
		{"with links", image, []string{"a", "b"}, true},
		{"none", tree{"/usr/lib/x": ""}, nil, false},
		{"a directory that is a link", tree{argumentsDir: "-> /usr/share/args", "/usr/share/args/1.toml": `kargs = ["c"]`}, []string{"c"}, true},
	} {
		got, has, err := New(c.of.run, &ostree.Tools{}, ostree.NewPlain(c.of.run, "")).argumentsOf(t.Context(), "reading", one, ostree.Invalid)
		if !slices.Equal(got, c.want) || has != c.has || err != nil {
			t.Errorf("%s: %q, %t, %v", c.name, got, has, err)
		}
	}
}

func TestOriginWithoutAnImageIsNoReasonToFail(t *testing.T) {
	for _, origin := range []string{"[origin]\nrefspec=" + one + "\n",
		"[origin]\ncontainer-image-reference=ostree-unverified-image:pigeon:quay.io/os\n"} {
		root, run := newHost(t, origin)
		b := New(run, &ostree.Tools{Root: root}, ostree.NewPlain(run, root))
		booted, err := b.booted(t.Context(), "reading")
		if err != nil {
			t.Fatal(err)
		}
		if err := b.restore(t.Context(), "composing", booted); err != nil {
			t.Errorf("%q: %v", origin, err)
		}
	}
}

func TestArgumentsChangeAsWithBootc(t *testing.T) {
	for _, c := range []struct{ name, before, after, line, added, removed string }{
		{"new and gone", "a=1 both", "both b", "root=x a=1 both", "b", "a=1"},
		{"- and _ are one in a key", "a_b=1", "a-b=1", "a_b=1", "", ""},
		{"and not in a value", "a=x_y", "a=x-y", "a=x_y", "a=x-y", "a=x_y"},
		{"gone, as the line has it", "a-b=1", "", "a_b=1 c", "", "a_b=1"},
		{"there already", "", "c", "c", "", ""},
		{"twice", "", "c c", "", "c", ""},
		{"gone by hand", "a", "", "c", "", ""},
	} {
		added, removed := change(strings.Fields(c.before), strings.Fields(c.after), strings.Fields(c.line))
		if strings.Join(added, " ") != c.added || strings.Join(removed, " ") != c.removed {
			t.Errorf("%s: adds %q, removes %q", c.name, added, removed)
		}
	}
}

func TestKernelArgumentsOfAnImageAreRead(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       []string // nil for an error
	}{
		{"a list", `kargs = ["a=1", "b"]`, []string{"first", "a=1", "b"}},
		{"several in one", `kargs = ["a=1 b", 'c="x y"']`, []string{"first", "a=1", "b", `c="x y"`}},
		{"this architecture", "kargs = [\"a\"]\nmatch-architectures = [\"aarch64\", \"x86_64\"]", []string{"first", "a"}},
		{"another architecture", "kargs = [\"a\"]\nmatch-architectures = [\"aarch64\"]", []string{"first"}},
		{"no architecture", "kargs = [\"a\"]\nmatch-architectures = []", []string{"first"}},
		{"no TOML", "kargs", nil},
		{"unknown key", "kargs = [\"a\"]\ncolour = 1", nil},
		{"ostree's own", `kargs = ["ostree=/x"]`, nil},
		{"open quote", `kargs = ["a=\"x"]`, nil},
	} {
		got, err := appendArguments([]string{"first"}, []byte(c.text), "amd64")
		if (err != nil) != (c.want == nil) || !slices.Equal(got, c.want) {
			t.Errorf("%s gives %q, %v", c.name, got, err)
		}
	}
}

// newRoot is the root of a host with nothing but what Bootc looks at.
func newRoot(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// refusing is a systemd on a host whose registry does not answer.
type refusing struct {
	ostree.Units

	root  string
	asked int
}

func (r *refusing) Run(_ context.Context, c systemd.Command) (systemd.Ended, error) {
	r.asked++
	err := os.WriteFile(filepath.Join(r.root, c.Stderr), []byte("error: Switching: connect: connection refused\n"), 0o600)
	return systemd.Ended{Result: "exit-code", Status: 1}, err
}

func (r *refusing) Service(context.Context, string) (systemd.Service, error) {
	return systemd.Service{State: "inactive"}, nil
}

func TestNetworkThatStaysAwayIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root, run := newHost(t, "[origin]\ncontainer-image-reference=ostree-unverified-registry:quay.io/os:8\n")
		units := &refusing{root: root}
		b := New(run, &ostree.Tools{Units: units, Root: root}, ostree.NewPlain(run, root))
		began := time.Now()
		_, err := b.Compose(t.Context(), osimage.System{Image: "quay.io/os:9"})
		if ostree.ClassOf(err) != ostree.Retryable || !strings.Contains(err.Error(), "connection refused") {
			t.Errorf("class %s: %v", ostree.ClassOf(err), err)
		}
		switches := units.asked
		if took := time.Since(began); switches != len(b.delays)+1 || took < 20*time.Second || took > time.Minute {
			t.Errorf("%d attempts in %s", switches, took)
		}
		if _, err := os.Stat(filepath.Join(root, stateDir)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("its state is left (%v)", err)
		}
	})
}

// waiting is a systemd on a host whose bootc runs until it is stopped, or for a time. Right before, another program takes
// a lock.
type waiting struct {
	ostree.Units

	lock    func()
	takes   time.Duration
	stopped chan struct{}
	runs    int
}

func (w *waiting) Run(context.Context, systemd.Command) (systemd.Ended, error) {
	w.runs++
	w.lock()
	select {
	case <-w.stopped:
		return systemd.Ended{}, systemd.ErrUnitGone
	case <-time.After(w.takes):
		return systemd.Ended{Result: "exit-code", Status: 1}, nil
	}
}

func (w *waiting) Stop(context.Context, string) error {
	w.stopped <- struct{}{}
	return nil
}

// lockable is a host, and a function that takes a lock on a file there.
func lockable(t *testing.T) (root string, run ostree.Runner, take func(name string)) {
	t.Helper()
	root, run = newHost(t, "[origin]\ncontainer-image-reference=ostree-unverified-registry:quay.io/os:8\n")
	return root, run, func(name string) {
		file, err := os.Create(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = file.Close() })
		if err := unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSwitchThatWaitsForTheLockIsEndedInTimeAndOnce(t *testing.T) {
	root, run, take := lockable(t)
	if err := os.Symlink("/proc", filepath.Join(root, "proc")); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		units := &waiting{stopped: make(chan struct{}), takes: time.Hour, lock: func() { take("ostree/lock") }}
		b := New(run, &ostree.Tools{Units: units, Root: root}, ostree.NewPlain(run, root))
		began, said := time.Now(), ""
		b.Progress = func(text string) { said = text }
		b.silent = true // in the bubble nothing can be read from a pipe
		_, err := b.fetch(t.Context(), "composing", []string{"bootc", "switch"})
		holder := fmt.Sprintf("(process %d", os.Getpid())
		if ostree.ClassOf(err) != ostree.Retryable || !strings.Contains(err.Error(), holder) || !strings.Contains(said, holder) {
			t.Errorf("class %s: %v; said %q", ostree.ClassOf(err), err, said)
		}
		if took := time.Since(began); units.runs != 1 || took < b.lockWait || took > b.lockWait+time.Minute {
			t.Errorf("%d runs took %s", units.runs, took)
		}
	})
}

func TestSwitchThatHasTheLockIsLeftAlone(t *testing.T) {
	for name, units := range map[string][]string{
		"a lock elsewhere":       {"pod.scope"},
		"its own, and another's": {"pod.scope", switchUnit + ".service"},
	} {
		root, run, take := lockable(t)
		synctest.Test(t, func(t *testing.T) {
			lock := func() {
				take("ostree/lock")
				var stat unix.Stat_t
				if err := unix.Stat(filepath.Join(root, "ostree/lock"), &stat); err != nil {
					t.Fatal(err)
				}
				for i, unit := range units {
					dir := filepath.Join(root, "proc", strconv.Itoa(i+1))
					info := fmt.Sprintf("lock:\t1: OFDLCK ADVISORY  WRITE -1 00:01:%d 0 EOF\n", stat.Ino)
					file := "usr/bin/bootc"
					if unit == switchUnit+".service" {
						file = "ostree/lock"
					}
					err := errors.Join(os.MkdirAll(dir+"/fdinfo", 0o755), os.Mkdir(dir+"/fd", 0o755),
						os.WriteFile(dir+"/cgroup", []byte("0::/system.slice/"+unit+"\n"), 0o600),
						os.WriteFile(dir+"/fdinfo/3", []byte(info), 0o600), os.Symlink(filepath.Join(root, file), dir+"/fd/3"))
					if err != nil {
						t.Fatal(err)
					}
				}
			}
			units := &waiting{stopped: make(chan struct{}), takes: 20 * time.Minute, lock: lock}
			b := New(run, &ostree.Tools{Units: units, Root: root}, ostree.NewPlain(run, root))
			began := time.Now()
			_, gaveUp, err := b.attempt(t.Context(), "composing", []string{"bootc", "switch"})
			if gaveUp != nil || err == nil || time.Since(began) != units.takes {
				t.Errorf("%s: after %s it gave up with %v, %v", name, time.Since(began), gaveUp, err)
			}
		})
	}
}

func TestFailureOfASwitchIsToldByBootcAlone(t *testing.T) {
	root, run := newHost(t, "[origin]\n")
	b := New(run, &ostree.Tools{Root: root}, ostree.NewPlain(run, root))
	failed := &ostree.CommandError{Argv: []string{"bootc"}, Err: exited(1),
		Stderr: `Error: unsupported transport "oci" for looking up local images` + "\nerror: Switching: manifest unknown"}
	if err := b.failing("composing", nil, failed); ostree.ClassOf(err) != ostree.Invalid || strings.Contains(err.Error(), "unsupported") ||
		!strings.HasSuffix(err.Error(), "exit status 1: error: Switching: manifest unknown") {
		t.Errorf("class %s: %v", ostree.ClassOf(err), err)
	}
	if err := os.Remove(filepath.Join(root, "usr/bin/podman")); err != nil {
		t.Fatal(err)
	}
	if err := b.failing("composing", nil, failed); ostree.ClassOf(err) != ostree.NeedsAdmin || !strings.Contains(err.Error(), "no podman") {
		t.Errorf("without podman: class %s: %v", ostree.ClassOf(err), err)
	}
}

func TestRebootThatBootcAsksForIsTakenBack(t *testing.T) {
	const ours, theirs = "bootc: Reboot required for image: " + digestOne, "*** System restart required ***\n"
	for _, c := range []struct{ name, before, after, want string }{
		{"none before", "", ours, ""},
		{"somebody else's before", theirs, ours, theirs},
		{"bootc's before, for another image", ours + "x", ours, ours + "x"},
		{"left by an earlier switch", ours, ours, ""},
		{"bootc wrote none", theirs, theirs, theirs},
		{"nothing at all", "", "", ""},
	} {
		root := newRoot(t, map[string]string{"run/x": ""})
		path := filepath.Join(root, rebootRequired)
		if c.after != "" {
			if err := os.WriteFile(path, []byte(c.after), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		var before []byte
		if c.before != "" {
			before = []byte(c.before)
		}
		b := New(nil, &ostree.Tools{Root: root}, ostree.NewPlain(nil, root))
		if err := b.takeBackReboot(before); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if got, err := os.ReadFile(path); string(got) != c.want || err != nil && c.want != "" {
			t.Errorf("%s leaves %q (%v)", c.name, got, err)
		}
	}
}

func TestPolicyOfTheHostIsAskedFirst(t *testing.T) {
	root := newRoot(t, map[string]string{osimage.PolicyPath: `{"default":[{"type":"reject"}]}`})
	run := func(context.Context, ...string) ([]byte, error) {
		t.Error("something was run")
		return nil, nil
	}
	_, err := New(run, &ostree.Tools{Root: root}, ostree.NewPlain(run, root)).Compose(t.Context(), osimage.System{Image: "quay.io/os:9"})
	if ostree.ClassOf(err) != ostree.Invalid {
		t.Errorf("class %s: %v", ostree.ClassOf(err), err)
	}
}
