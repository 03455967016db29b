// SPDX-License-Identifier: Apache-2.0

package bootc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
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

// entryText is an entry of a status as bootc 1.9 prints it, of an image by name.
func entryText(checksum, name, digest, signature string) string {
	return fmt.Sprintf(`{"image":{"image":{"image":%q,"transport":"registry"%s},"version":"9.4","timestamp":`+
		`"2025-01-01T00:00:00Z","imageDigest":%q,"architecture":"amd64"},"cachedUpdate":null,"incompatible":false,`+
		`"pinned":false,"softRebootCapable":false,"downloadOnly":false,"store":"ostreeContainer","ostree":`+
		`{"stateroot":"default","checksum":%q,"deploySerial":1},"composefs":null}`, name, signature, digest, checksum)
}

func statusText(staged, booted string) string {
	return `{"apiVersion":"org.containers.bootc/v1","kind":"BootcHost","metadata":{"name":"host"},"spec":{"image":null,` +
		`"bootOrder":"default"},"status":{"staged":` + staged + `,"booted":` + booted +
		`,"rollback":null,"rollbackQueued":false,"type":"bootcHost"}}`
}

func TestBootcStatusIsRead(t *testing.T) {
	host, err := parseStatus([]byte(statusText("null", entryText(one, "quay.io/os:9", digestOne, ""))))
	if err != nil {
		t.Fatal(err)
	}
	booted, err := host.bootedOSTree()
	if err != nil {
		t.Fatal(err)
	}
	if got := booted.OSTree.dir(); got != "/ostree/deploy/default/deploy/"+one+".1" {
		t.Errorf("it is in %s", got)
	}
	for _, c := range []struct{ name, text string }{
		{"no JSON", "error"},
		{"another document", `{"kind":"Pod"}`},
		{"a path as the checksum", strings.ReplaceAll(statusText("null", entryText("../x", "a", digestOne, "")), one, two)},
		{"a path as the OS", strings.ReplaceAll(statusText(entryText(one, "a", digestOne, ""), "null"), `"default","checksum`, `"..","checksum`)},
	} {
		if host, err := parseStatus([]byte(c.text)); err == nil {
			t.Errorf("%s gives %+v", c.name, host)
		}
	}
	for _, c := range []struct{ booted, says string }{
		{"null", "does not know"},
		{`{"image":null,"incompatible":false,"ostree":null,"composefs":{"verity":"00"}}`, "composefs"},
	} {
		host, err := parseStatus([]byte(statusText("null", c.booted)))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := host.bootedOSTree(); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("booted %s gives %v", c.booted, err)
		}
	}
}

func TestImageOfBootcIsAReferenceWithItsDigest(t *testing.T) {
	for _, c := range []struct {
		transport, image, signature string
		want                        string // "" for an error
	}{
		{"registry", "quay.io/os:9", "", "ostree-unverified-registry:quay.io/os:9@" + digestOne},
		{"registry", "quay.io/os@" + digestTwo, `"insecure"`, "ostree-unverified-registry:quay.io/os@" + digestTwo},
		{"registry", "quay.io/os", `"containerPolicy"`, "ostree-image-signed:docker://quay.io/os@" + digestOne},
		{"registry", "quay.io/os", `{"ostreeRemote":"fedora"}`, "ostree-remote-image:fedora:docker://quay.io/os@" + digestOne},
		{"oci", "/srv/os:9", "", "ostree-unverified-image:oci:/srv/os:9"},
		{"containers-storage", "localhost/os", "null", "ostree-unverified-image:containers-storage:localhost/os"},
		{"registry", "quay.io/os", `"quantum"`, ""},
		{"pigeon", "quay.io/os", "", ""},
	} {
		i := imageStatus{Digest: digestOne,
			Image: imageReference{Image: c.image, Transport: c.transport, Signature: json.RawMessage(c.signature)}}
		got, err := i.reference()
		if (err != nil) != (c.want == "") || err == nil && got.String() != c.want {
			t.Errorf("%s:%s %s gives %s, %v; want %q", c.transport, c.image, c.signature, got, err, c.want)
		}
	}
}

func TestWhatBootcMadeIsComparedWithWhatWasAsked(t *testing.T) {
	for _, c := range []struct {
		name, image, os string
		entry           string
		runs, is        bool
	}{
		{"the same tag", "quay.io/os:9", "default", entryText(one, "quay.io/os:9", digestOne, ""), true, true},
		{"the tag's digest", "quay.io/os@" + digestOne, "default", entryText(one, "quay.io/os:9", digestOne, ""), false, true},
		{"another digest", "quay.io/os@" + digestTwo, "default", entryText(one, "quay.io/os:9", digestOne, ""), false, false},
		{"the digest of a list", "quay.io/os@" + digestTwo, "default", entryText(one, "quay.io/os@"+digestTwo, digestOne, ""), true, true},
		{"another tag", "quay.io/os:10", "default", entryText(one, "quay.io/os:9", digestOne, ""), false, false},
		{"another OS", "quay.io/os:9", "other", entryText(one, "quay.io/os:9", digestOne, ""), true, false},
		{"signed is another spelling", "ostree-image-signed:docker://quay.io/os:9", "default",
			entryText(one, "quay.io/os:9", digestOne, ""), false, true},
		{"signed", "ostree-image-signed:docker://quay.io/os:9", "default",
			entryText(one, "quay.io/os:9", digestOne, `,"signature":"containerPolicy"`), true, true},
		{"no image", "quay.io/os:9", "default", `{"image":null,"ostree":{"stateroot":"default","checksum":"` + one + `","deploySerial":0}}`,
			false, false},
	} {
		var entry bootEntry
		if err := json.Unmarshal([]byte(c.entry), &entry); err != nil {
			t.Fatal(err)
		}
		want, err := osimage.ParseImage(c.image)
		if err != nil {
			t.Fatal(err)
		}
		if runs, err := entry.runs(want), entry.differs(want, c.os); runs != c.runs || (err == nil) != c.is {
			t.Errorf("%s: runs it %t, differs by %v", c.name, runs, err)
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
		root := newRoot(t, map[string]string{"run/x": "", "usr/bin/bootc": ""})
		if err := os.Chmod(filepath.Join(root, "usr/bin/bootc"), 0o755); err != nil {
			t.Fatal(err)
		}
		units := &refusing{root: root}
		run := func(_ context.Context, argv ...string) ([]byte, error) {
			if argv[0] == "bootc" {
				return []byte(statusText("null", entryText(one, "quay.io/os:8", digestOne, ""))), nil
			}
			return nil, nil
		}
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

func TestLockThatIsHeldForTooLongIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root := newRoot(t, map[string]string{"ostree/lock": ""})
		b := New(nil, &ostree.Tools{Root: root}, ostree.NewPlain(nil, root))
		if err := b.awaitLock(t.Context()); err != nil {
			t.Errorf("without a lock: %v", err)
		}
		file, err := os.OpenFile(filepath.Join(root, "ostree/lock"), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if err := unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if err := b.awaitLock(t.Context()); err == nil || time.Since(began) < b.lockWait {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := b.awaitLock(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("with a deadline: %v", err)
		}
	})
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
