// SPDX-License-Identifier: Apache-2.0

package rpmostree

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/noderefit/noderefit/osimage"
	"github.com/noderefit/noderefit/ostree"
	"github.com/noderefit/noderefit/pace"
	"github.com/noderefit/noderefit/systemd"
)

var errStatus = errors.New("exit status 1")

const (
	one = "63bcf5d8b40c877405c835d895399a8e2500938f044a0557e08f76eca8bdcfba"
	two = "2026311abe525ab63acbe1f5c00ba62dfd8bb328b246281b0625cbcfa1473861"

	digestA = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	digestB = "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"

	three  = "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"
	imageA = "quay.io/example/os@" + digestA
	imageB = "quay.io/example/os@" + digestB
)

func TestRPMStatusIsRead(t *testing.T) {
	output, err := os.ReadFile("testdata/rpm-status.json")
	if err != nil {
		t.Fatal(err)
	}
	s, err := parseStatus(output)
	if err != nil {
		t.Fatal(err)
	}
	var systems []osimage.System
	for _, d := range s.Deployments {
		systems = append(systems, d.system())
	}
	want := []osimage.System{
		{Image: imageB, Packages: []string{"kernel-rt-core", "usbguard"}, Removed: []string{"kernel", "kernel-core"},
			Reported: digestB},
		{Image: "ostree-image-signed:docker://quay.io/example/os:stable", Reported: digestA},
		{Image: "fedora:fedora/x86_64/coreos/stable", Reported: strings.Repeat("c", 64)},
	}
	if d := cmp.Diff(want, systems); d != "" {
		t.Error(d)
	}
	if got := s.first().id(); got != "testos/"+two+".0" {
		t.Errorf("the first is %s", got)
	}
	if got := s.booted(); got.id() != "testos/"+one+".0" || !got.Pinned || got.base() != one {
		t.Errorf("the booted one is %+v", got)
	}
	if got := s.first(); !got.Staged || got.base() != three || got.Digest != digestB || sameOthers(got, s.booted()) {
		t.Errorf("the staged one is %+v", got)
	}
	if got := s.who(); got != "install for the client :1.42" {
		t.Errorf("at work is %q", got)
	}
	if s.Driver == nil || *s.Driver != (updateDriver{Name: "Zincati", Unit: "zincati.service"}) {
		t.Errorf("the driver is %+v", s.Driver)
	}
}

func TestRPMStatusMayLackAllThatIsNotNeeded(t *testing.T) {
	s, err := parseStatus([]byte(`{"deployments":[{"osname":"a","checksum":"` + one + `","booted":true}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(osimage.System{Image: one}, s.booted().system()); d != "" || s.Driver != nil || len(s.Transaction) > 0 {
		t.Errorf("%s%+v", d, s)
	}
	for _, bad := range []string{
		"", "[]", `{}`, `{"deployments":null}`, `{"deployments":[{"osname":"a","checksum":"` + one + `"}]}`,
		`{"deployments":[{"osname":"a","checksum":"../x","booted":true}]}`,
		`{"deployments":[{"osname":"../a","checksum":"` + one + `","booted":true}]}`,
		`{"deployments":[{"osname":"a","checksum":"` + one + `","booted":true,"serial":-1}]}`,
	} {
		if s, err := parseStatus([]byte(bad)); err == nil {
			t.Errorf("%s gave %+v", bad, s)
		}
	}
}

var (
	rtKernel = []string{"kernel-rt-core", "kernel-rt-modules"}
	kernel   = []string{"kernel", "kernel-core"}
)

func TestStepsAreAsFewAsTheCommandLineAllows(t *testing.T) {
	plainA := deployment{Container: "ostree-unverified-registry:" + imageA, Digest: digestA}
	with := func(d deployment, change func(*deployment)) deployment { change(&d); return d }
	realtime := with(plainA, func(d *deployment) { d.Packages, d.Removed = append([]string{"usbguard"}, rtKernel...), kernel })
	all := append([]string{"usbguard"}, rtKernel...)
	const b = "rebase ostree-unverified-registry:" + imageB
	for _, c := range []struct {
		name string
		from deployment
		want osimage.System
		said []string
	}{
		{"nothing", plainA, osimage.System{Image: imageA}, nil},
		{"the base that runs", plainA, osimage.System{}, nil},
		{"the same by digest, by another name", plainA, osimage.System{Image: "mirror.example/os:tag@" + digestA}, nil},
		{"image", plainA, osimage.System{Image: imageB}, []string{b}},
		{"packages", plainA, osimage.System{Image: imageA, Packages: []string{"b", "a"}}, []string{"install --idempotent a b"}},
		{"other packages", realtime, osimage.System{Packages: append([]string{"kerberos"}, rtKernel...), Removed: kernel},
			[]string{"install --idempotent kerberos --uninstall=usbguard"}},
		{"fewer packages", realtime, osimage.System{Packages: rtKernel, Removed: kernel}, []string{"uninstall --idempotent usbguard"}},
		{"image and packages", plainA, osimage.System{Image: imageB, Packages: []string{"usbguard"}},
			[]string{b + " --install=usbguard"}},
		{"image, packages stay", realtime, osimage.System{Image: imageB, Packages: all, Removed: kernel}, []string{b}},
		{"kernel", plainA, osimage.System{Packages: rtKernel, Removed: kernel},
			[]string{"override remove kernel kernel-core --install=kernel-rt-core --install=kernel-rt-modules"}},
		{"image, kernel and packages", plainA, osimage.System{Image: imageB, Packages: all, Removed: kernel}, []string{b,
			"override remove kernel kernel-core --install=kernel-rt-core --install=kernel-rt-modules --install=usbguard"}},
		{"image and kernel, and a package stays", with(plainA, func(d *deployment) { d.Packages = []string{"usbguard"} }),
			osimage.System{Image: imageB, Packages: all, Removed: kernel}, []string{b + " --uninstall=usbguard",
				"override remove kernel kernel-core --install=kernel-rt-core --install=kernel-rt-modules --install=usbguard"}},
		{"all of it back", realtime, osimage.System{Image: imageB}, []string{
			"override reset kernel kernel-core --uninstall=kernel-rt-core --uninstall=kernel-rt-modules --uninstall=usbguard",
			b}},
		{"image and kernel back", realtime, osimage.System{Image: imageB, Packages: []string{"usbguard"}}, []string{
			"override reset kernel kernel-core --uninstall=kernel-rt-core --uninstall=kernel-rt-modules --uninstall=usbguard",
			b + " --install=usbguard"}},
		{"kernel back", realtime, osimage.System{Packages: []string{"usbguard"}}, []string{
			"override reset kernel kernel-core --uninstall=kernel-rt-core --uninstall=kernel-rt-modules"}},
		{"another kernel for that", realtime, osimage.System{Packages: []string{"kernel-64k-core", "usbguard"}, Removed: kernel},
			[]string{"install --idempotent kernel-64k-core --uninstall=kernel-rt-core --uninstall=kernel-rt-modules"}},
		{"image, and another kernel for that", realtime,
			osimage.System{Image: imageB, Packages: []string{"kernel-64k-core", "usbguard"}, Removed: kernel},
			[]string{b + " --install=kernel-64k-core --uninstall=kernel-rt-core --uninstall=kernel-rt-modules"}},
		{"image, and more left out", realtime, osimage.System{Image: imageB, Packages: rtKernel, Removed: append([]string{"nano"}, kernel...)},
			[]string{b, "override remove nano --uninstall=usbguard"}},
		{"others left out", realtime, osimage.System{Packages: []string{"vim"}, Removed: []string{"nano"}}, []string{
			"override reset kernel kernel-core --uninstall=kernel-rt-core --uninstall=kernel-rt-modules --uninstall=usbguard",
			"override remove nano --install=vim"}},
		{"image, and others left out", realtime, osimage.System{Image: imageB, Packages: []string{"vim"}, Removed: []string{"nano"}},
			[]string{
				"override reset kernel kernel-core --uninstall=kernel-rt-core --uninstall=kernel-rt-modules --uninstall=usbguard",
				b, "override remove nano --install=vim"}},
		{"image and kernel back, with a local package",
			with(realtime, func(d *deployment) { d.LocalPackages = []string{"sha256:x"} }),
			osimage.System{Image: imageB, Packages: []string{"usbguard"}}, []string{
				"override reset kernel kernel-core --uninstall=kernel-rt-core --uninstall=kernel-rt-modules", b}},
		{"a commit", plainA, osimage.System{Image: "lab:" + one}, []string{"rebase :" + one}},
		{"a ref", plainA, osimage.System{Image: "lab:os/stable"}, []string{"rebase lab:os/stable"}},
		{"from a ref that nobody could pull again", deployment{Checksum: two, Origin: "os/stable"}, osimage.System{Image: imageB},
			[]string{b + " --skip-purge"}},
		{"from a ref of a remote", deployment{Checksum: two, Origin: "lab:os/stable"}, osimage.System{Image: imageB}, []string{b}},
		{"the ref that runs", deployment{Checksum: two, Origin: "lab:os/stable"}, osimage.System{Image: "lab:os/stable"}, nil},
		{"the commit that runs", deployment{Checksum: two, Base: one, Origin: "lab:os/stable"}, osimage.System{Image: one}, nil},
		{"a signed image", plainA, osimage.System{Image: "ostree-image-signed:docker://quay.io/example/os@" + digestB},
			[]string{"rebase ostree-image-signed:docker://quay.io/example/os@" + digestB}},
	} {
		target, err := targetOf(c.want)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		var want [][]string
		for _, words := range c.said {
			want = append(want, strings.Fields("rpm-ostree "+words+" "+ostree.WithLock))
		}
		if d := cmp.Diff(want, target.steps(c.from)); d != "" {
			t.Errorf("%s:\n%s", c.name, d)
		}
	}
}

func TestNamesThatAreNoneAreRefusedBeforeAnythingIsRun(t *testing.T) {
	for _, s := range []osimage.System{
		{Packages: []string{"-y"}}, {Packages: []string{"a b"}}, {Removed: []string{""}}, {Packages: []string{"$HOME"}},
		{Packages: []string{"a"}, Removed: []string{"a"}}, {Image: "not an image"}, {Image: "oci-archive:/$x"},
		{Image: "ostree-unverified-image:oci:/$HOME"},
	} {
		r := newFakeHost(t).driver()
		if _, err := r.Compose(t.Context(), s); ostree.ClassOf(err) != ostree.Invalid {
			t.Errorf("%+v: %v", s, err)
		}
	}
}

//nolint:misspell // the tools' own words
func TestErrorsOfRPMOSTreeAreClassed(t *testing.T) {
	for _, c := range []struct {
		stderr  string
		class   ostree.Class
		trouble failureKind
	}{
		{"error: Transaction in progress: deploy --lock-finalization revision=abc \n" +
			" You can cancel the current transaction with `rpm-ostree cancel`", ostree.Retryable, busy},
		{"error: System transaction in progress", ostree.Retryable, busy},
		{"error: Reboot initiated, cannot start new transaction", ostree.Retryable, refused},
		{"error: GDBus.Error:org.freedesktop.DBus.Error.NoReply: Message recipient disconnected from message bus without " +
			"replying", ostree.Retryable, lost},
		{"error: Loading sysroot: Failed to invoke RegisterClient: GDBus.Error:org.freedesktop.DBus.Error.NameHasNoOwner: " +
			"Could not activate remote peer 'org.projectatomic.rpmostree1': unit failed", ostree.Retryable, lost},
		{"error: Failed to activate service 'org.projectatomic.rpmostree1': timed out (service_start_timeout=25000ms)",
			ostree.Retryable, lost},
		{"Job for rpm-ostreed.service failed because the control process exited with error code.\nerror: exit status: 1",
			ostree.Retryable, lost},
		// As the real one says it: systemctl's reasons, and then only that there was one.
		{"Job for rpm-ostreed.service failed because the control process exited with error code.\nSee \"systemctl status " +
			"rpm-ostreed.service\" and \"journalctl -xeu rpm-ostreed.service\" for details.\n" +
			"error: Loading sysroot: exit status: 1", ostree.Retryable, lost},
		{"error: Timeout was reached", ostree.Retryable, lost},
		{"error: Committing: Operation was cancelled", ostree.Failed, refused},
		{"error: Could not depsolve transaction; 1 problem detected:\n Problem: package kernel-core-6.12.0-1.x86_64 from " +
			"@System requires kernel-modules-core, but none of the providers can be installed\n  - conflicting requests",
			ostree.Invalid, refused},
		{"error: Creating importer: error", ostree.NeedsAdmin, refused},
		{"", ostree.Retryable, lost},
		{"error: Old and new refs are equal: os/test", ostree.Invalid, refused},
		{"error: Packages not found: nosuch", ostree.Invalid, refused},
		{`error: "bash" is already provided by: bash-5.2-1.fc42.x86_64. Use --allow-inactive to explicitly require it.`,
			ostree.Invalid, refused},
		{"error: Package/capability 'usbguard' is already requested", ostree.Invalid, refused},
		{`error: Package "kernel-rt" not found`, ostree.Invalid, refused},
		{"error: No overrides for package 'kernel'", ostree.Invalid, refused},
		{"error: Could not depsolve transaction; 1 problem detected:\n Problem: conflicting requests\n  - nothing provides x",
			ostree.Invalid, refused},
		{"error: Cannot operate; `LockLayering=true` in configuration.", ostree.NeedsAdmin, refused},
		{"error: Updates and deployments are driven by Zincati (zincati.service)\nSee Zincati's documentation\n" +
			"Use --bypass-driver to bypass Zincati and perform the operation anyways", ostree.NeedsAdmin, refused},
		{"error: This system was not booted via libostree. Currently, most rpm-ostree commands only work on ostree-based " +
			"host systems.", ostree.NeedsAdmin, refused},
		{"error: Unknown option --lock-finalization", ostree.NeedsAdmin, refused},
		{"error: Creating importer: failed to invoke method OpenImage: failed to invoke method OpenImage: reading manifest v2 " +
			"in quay.io/a/b: unauthorized: access to the requested resource is not authorized", ostree.NeedsAdmin, refused},
		{"error: Creating importer: Failed to invoke skopeo proxy method OpenImage: remote error: Requesting bearer token: " +
			"invalid status code from registry 403 (Forbidden)", ostree.NeedsAdmin, refused},
		{"error: Writing content object: No space left on device", ostree.NeedsAdmin, refused},
		{"error: Creating importer: Failed to invoke skopeo proxy method OpenImage: remote error: reading manifest lol in " +
			"ghcr.io/a/b: manifest unknown", ostree.Invalid, refused},
		{"error: Preparing import: Fetching manifest: containers-policy.json specifies a default of " +
			"'insecureAcceptAnything'; refusing usage", ostree.Invalid, refused},
		{"error: Creating importer: failed to invoke method OpenImage: Source image rejected: A signature was required, but " +
			"no signature exists", ostree.Invalid, refused},
		{"error: Creating importer: failed to invoke method OpenImage: pinging container registry quay.io: Get " +
			"\"https://quay.io/v2/\": dial tcp: lookup quay.io on 10.0.0.2:53: no such host", ostree.Retryable, network},
		{"error: Creating importer: failed to invoke method OpenImage: pinging container registry quay.io: Get " +
			"\"https://quay.io/v2/\": dial tcp 10.0.0.1:443: connect: connection refused", ostree.Retryable, network},
		{"error: Creating importer: failed to invoke method OpenImage: received unexpected HTTP status: " +
			"503 Service Unavailable", ostree.Retryable, network},
		{"error: Updating rpm-md repo 'updates': cannot update repo 'updates': Cannot prepare internal mirrorlist: Curl " +
			"error (6): Couldn't resolve host name for https://mirrors.example/x", ostree.Retryable, network},
		{"error: Updating rpm-md repo 'x': cannot update repo 'x': Cannot download repomd.xml: Cannot download " +
			"repodata/repomd.xml: All mirrors were tried; Last error: Status code: 404 for https://x", ostree.Invalid, refused},
		{"error: Updating rpm-md repo 'x': cannot update repo 'x': Cannot download repomd.xml: Curl error (28): Timeout was " +
			"reached for https://x", ostree.Retryable, network},
		{"error: While pulling os/test: While fetching http://x/refs: [7] Could not connect to server", ostree.Retryable, network},
		{"error: something that nobody knows", ostree.Failed, refused},
	} {
		trouble, err := failing("composing x", &ostree.CommandError{Stderr: c.stderr, Err: errStatus})
		if ostree.ClassOf(err) != c.class || trouble != c.trouble {
			t.Errorf("%s\nis %s, %d; want %s, %d", c.stderr, ostree.ClassOf(err), trouble, c.class, c.trouble)
		}
		if line := errorLine(c.stderr); line != "" && !strings.HasPrefix(err.Error(), "composing x: rpm-ostree: "+line) {
			t.Errorf("%s\nbecame %s", c.stderr, err)
		}
		for part, want := range map[string]string{
			"Job for ": "Job for rpm-ostreed.service failed", "importer: error": "as the user rpm-ostree",
		} {
			if strings.Contains(c.stderr, part) && !strings.Contains(err.Error(), want) {
				t.Errorf("%s\ndoes not say %s: %s", c.stderr, want, err)
			}
		}
	}
	_, missing := (&ostree.Tools{Root: t.TempDir()}).In("x", systemd.Command{})(t.Context(), "rpm-ostree", "upgrade")
	if trouble, err := failing("composing x", missing); ostree.ClassOf(err) != ostree.NeedsAdmin || trouble != refused {
		t.Errorf("no rpm-ostree is %s, %d: %v", ostree.ClassOf(err), trouble, err)
	}
}

// fakeHost is a host on which rpm-ostree does what a test says.
type fakeHost struct {
	t      *testing.T
	root   string
	status fixture
	// statuses come before status, one a question; one with an error fails with that on standard error.
	statuses []fixture
	// transactions are what is to be asked for, in this order.
	transactions []transaction
	unit         []string // the description of a run that an earlier process has begun, one a question
	units        map[string]string
	interrupted  bool
	failure      string // standard error of the last transaction
	reloads      int
	asked        []string
	releases     map[string]string // the os-release of each commit
	bootedIs     *deployment       // the booted one, if it is another
	text         string            // of rpm-ostree status
	cancelled    int
}

// fixture is what rpm-ostree status says, without the booted deployment and what is the same in all tests.
type fixture struct {
	staged  *deployment
	before  []deployment // before the booted one
	after   []deployment
	busy    []string
	driver  *updateDriver
	failure string
}

// transaction is a transaction and what comes of it.
type transaction struct {
	words    string // without rpm-ostree and the lock
	staged   *deployment
	unlocked bool
	failure  string // standard error
	killed   bool
	before   func()
}

func newFakeHost(t *testing.T) *fakeHost {
	t.Helper()
	h := &fakeHost{t: t, root: t.TempDir(), units: map[string]string{}}
	writeAll(t, h.root, map[string]string{
		"/boot/loader/entries/1.conf": "version 1\noptions ostree=/ostree/boot.1/testos/x/0\nlinux /x\n",
		"/ostree/boot.1/testos/x/y":   "",
		"/run/x":                      "",
		"/usr/bin/rpm-ostree":         "",
		"/ostree/deploy/testos/deploy/" + one + ".0.origin": "[origin]\ncontainer-image-reference=a\n\n[libostree-transient]\npinned=true\n",
		"/ostree/deploy/testos/deploy/" + two + ".0.origin": "[origin]\ncontainer-image-reference=b\n",
		"/ostree/repo/refs/heads/os/test":                   one + "\n",
	})
	if err := os.Chmod(filepath.Join(h.root, "/usr/bin/rpm-ostree"), 0o755); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(h.root, "/ostree/boot.1/testos/x/0")
	if err := os.Symlink("../../../deploy/testos/deploy/"+one+".0", link); err != nil {
		t.Fatal(err)
	}
	for _, checksum := range []string{one, two, three} {
		writeAll(t, h.root, map[string]string{"/ostree/repo/objects/" + checksum[:2] + "/" + checksum[2:] + ".commit": ""})
	}
	return h
}

func (h *fakeHost) driver() *Driver {
	return New(h.run, &ostree.Tools{Units: h, Root: h.root}, ostree.NewPlain(h.run, h.root))
}

func (h *fakeHost) booted() deployment {
	if h.bootedIs != nil {
		return *h.bootedIs
	}
	return deployment{OS: "testos", Checksum: one, Booted: true,
		Container: "ostree-unverified-registry:" + imageA, Digest: digestA}
}

// stagedB is a staged deployment of imageB.
func stagedB(packages, removed []string) *deployment {
	d := &deployment{OS: "testos", Checksum: two, Staged: true, Packages: packages, Removed: removed,
		Container: "ostree-unverified-registry:" + imageB, Digest: digestB}
	if len(packages)+len(removed) > 0 {
		d.Base = three
	}
	return d
}

func (h *fakeHost) fails(argv []string, stderr string) ([]byte, error) {
	return nil, &ostree.CommandError{Argv: argv, Stderr: stderr, Err: errStatus}
}

// stage makes what is staged, nothing with nil.
func (h *fakeHost) stage(d *deployment, state string) {
	h.status.staged = d
	if d == nil {
		if err := os.RemoveAll(filepath.Join(h.root, ostree.StagedState)); err != nil {
			h.t.Fatal(err)
		}
		return
	}
	text, err := os.ReadFile("../ostree/testdata/" + state)
	if err != nil {
		h.t.Fatal(err)
	}
	writeAll(h.t, h.root, map[string]string{ostree.StagedState: string(text)})
}

func (h *fakeHost) run(ctx context.Context, argv ...string) ([]byte, error) {
	line := strings.Join(argv, " ")
	if ctx.Err() != nil {
		return nil, &ostree.CommandError{Argv: argv, Err: context.Cause(ctx)}
	}
	name, rest, _ := strings.Cut(line, " ")
	switch name {
	case "env":
		switch argv[len(argv)-1] {
		case "status":
			return []byte(h.text), nil
		case "cancel":
			h.cancelled++
			h.statuses = nil
			return nil, nil
		}
		return h.answerStatus(argv)
	case "rpm-ostree":
		h.reloads++
		return nil, nil
	case "ostree":
		switch {
		case argv[1] == "admin":
			return h.answerAdmin()
		case argv[1] == "cat" && argv[3] == "/usr/lib/os-release":
			return []byte(h.releases[argv[2]]), nil
		}
		h.asked = append(h.asked, rest)
		switch {
		case argv[1] == "refs" && argv[2] == "--force":
			ref := strings.TrimPrefix(argv[3], "--create=")
			writeAll(h.t, h.root, map[string]string{"/ostree/repo/refs/heads/" + ref: argv[4] + "\n"})
			return nil, nil
		case argv[1] == "refs" && argv[2] == "--delete":
			return nil, os.Remove(filepath.Join(h.root, "/ostree/repo/refs/heads", argv[3]))
		case argv[1] == "rev-parse":
			return os.ReadFile(filepath.Join(h.root, "/ostree/repo/refs/heads", argv[2]))
		}
	}
	h.t.Errorf("%s was run", line)
	return h.fails(argv, "no such command")
}

// deployments are all of a status, in their order.
func (h *fakeHost) deployments(s fixture) []deployment {
	var all []deployment
	if s.staged != nil {
		all = append(all, *s.staged)
	}
	return slices.Concat(all, s.before, []deployment{h.booted()}, s.after)
}

// answerAdmin is what ostree says of the same.
func (h *fakeHost) answerAdmin() ([]byte, error) {
	var all []map[string]any
	for i, d := range h.deployments(h.status) {
		all = append(all, map[string]any{"checksum": d.Checksum, "stateroot": d.OS, "serial": d.Serial, "index": i,
			"booted": d.Booted, "staged": d.Staged, "pinned": d.Pinned})
	}
	return json.Marshal(map[string]any{"deployments": all})
}

func (h *fakeHost) answerStatus(argv []string) ([]byte, error) {
	s := h.status
	if len(h.statuses) > 0 {
		s, h.statuses = h.statuses[0], h.statuses[1:]
	}
	if s.failure != "" {
		return h.fails(argv, s.failure)
	}
	return json.Marshal(hostStatus{Deployments: h.deployments(s), Transaction: s.busy, Driver: s.driver})
}

// Service is what an earlier process has begun, as long as there is more of it.
func (h *fakeHost) Service(_ context.Context, name string) (systemd.Service, error) {
	if name != transactionUnit+".service" {
		h.t.Errorf("%s was asked for", name)
	}
	if len(h.unit) == 0 {
		return systemd.Service{State: "inactive", Description: transactionUnit + ".service"}, nil
	}
	words := h.unit[0]
	h.unit = h.unit[1:]
	return systemd.Service{State: "active", Description: words}, nil
}

func (h *fakeHost) ActiveState(_ context.Context, name string) (string, error) {
	return h.units[name], nil
}

func (h *fakeHost) Kill(_ context.Context, name string, signal syscall.Signal) error {
	h.interrupted = name == transactionUnit+".service" && signal == syscall.SIGINT
	return nil
}

func (h *fakeHost) Stop(context.Context, string) error { return nil }

// Run is a transaction.
func (h *fakeHost) Run(ctx context.Context, c systemd.Command) (systemd.Ended, error) {
	if err := h.transact(ctx, c.Argv); err != nil {
		return systemd.Ended{}, err
	}
	if h.failure == "" {
		return systemd.Ended{Result: "success"}, nil
	}
	writeAll(h.t, h.root, map[string]string{c.Stderr: h.failure})
	return systemd.Ended{Result: "exit-code", Status: 1}, nil
}

func (h *fakeHost) transact(ctx context.Context, argv []string) error {
	line := strings.TrimSuffix(strings.TrimPrefix(strings.Join(argv, " "), "/usr/bin/rpm-ostree "), " "+ostree.WithLock)
	h.asked = append(h.asked, line)
	if len(h.transactions) == 0 || h.transactions[0].words != line {
		h.t.Errorf("the transaction %q was asked for; expected is %+v", line, h.transactions)
		return errStatus
	}
	next := h.transactions[0]
	h.transactions = h.transactions[1:]
	if next.before != nil {
		next.before()
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	h.failure = next.failure
	switch {
	case next.failure == "" && line == cleanupWord:
		h.stage(nil, "")
		h.status.before = nil
	case next.staged != nil && next.unlocked:
		h.stage(next.staged, "rpm-staged")
	case next.staged != nil:
		h.stage(next.staged, "rpm-staged-locked")
	}
	if next.killed {
		return systemd.ErrUnitGone
	}
	return nil
}

const (
	rebaseB     = "rebase ostree-unverified-registry:" + imageB
	swap        = "override remove kernel kernel-core --install=kernel-rt-core --install=kernel-rt-modules --install=usbguard"
	cleanupWord = "cleanup -p"
)

var (
	wantB    = osimage.System{Image: imageB}
	wantAll  = osimage.System{Image: imageB, Packages: []string{"kernel-rt-core", "kernel-rt-modules", "usbguard"}, Removed: kernel}
	doneAll  = stagedB(wantAll.Packages, wantAll.Removed)
	composed = osimage.Composed{Checksum: two, Origin: "[origin]\ncontainer-image-reference=b\n", Base: digestB}
)

func TestComposeGoesTheShortestWayAndHoldsWhatItGot(t *testing.T) {
	unlockedOther := &deployment{OS: "testos", Checksum: three, Staged: true, Packages: []string{"vim"},
		Container: "ostree-unverified-registry:" + imageA, Digest: digestA}
	for _, c := range []struct {
		name         string
		set          func(h *fakeHost)
		want         osimage.System
		transactions []transaction
		composed     osimage.Composed
		done         int
	}{
		{name: "image", want: wantB, transactions: []transaction{{words: rebaseB, staged: stagedB(nil, nil)}}, done: 1},
		{name: "everything", want: wantAll, done: 2,
			transactions: []transaction{{words: rebaseB, staged: stagedB(nil, nil)}, {words: swap, staged: doneAll}}},
		{name: "what runs", want: osimage.System{Image: imageA},
			composed: osimage.Composed{Checksum: one, Origin: "[origin]\ncontainer-image-reference=a\n\n", Base: digestA}},
		{name: "what is staged and locked", want: wantAll,
			set: func(h *fakeHost) { h.stage(doneAll, "rpm-staged-locked") }},
		{name: "the rest, after an interrupted call", want: wantAll, done: 1,
			set:          func(h *fakeHost) { h.stage(stagedB(nil, nil), "rpm-staged-locked") },
			transactions: []transaction{{words: swap, staged: doneAll}}},
		{name: "what is staged, but could boot", want: wantB, done: 2,
			set:          func(h *fakeHost) { h.stage(stagedB(nil, nil), "rpm-staged") },
			transactions: []transaction{{words: cleanupWord}, {words: rebaseB, staged: stagedB(nil, nil)}}},
		{name: "over what somebody else has staged", want: wantB, done: 2,
			set:          func(h *fakeHost) { h.stage(unlockedOther, "rpm-staged") },
			transactions: []transaction{{words: cleanupWord}, {words: rebaseB, staged: stagedB(nil, nil)}}},
		{name: "over a rollback that waits for its boot", want: wantB, done: 2,
			set: func(h *fakeHost) {
				h.status.before = []deployment{{OS: "testos", Checksum: three, Container: "ostree-unverified-registry:" + imageB}}
			},
			transactions: []transaction{{words: cleanupWord}, {words: rebaseB, staged: stagedB(nil, nil)}}},
		{name: "on a pinned one, which cleanup keeps", want: wantB, done: 1,
			set: func(h *fakeHost) {
				h.status.before = []deployment{{OS: "testos", Checksum: three, Pinned: true, Packages: []string{"vim"},
					Container: "ostree-unverified-registry:" + imageA, Digest: digestA}}
			},
			transactions: []transaction{{words: rebaseB + " --uninstall=vim", staged: stagedB(nil, nil)}}},
		{name: "a driver that is registered and not active", want: wantB, done: 1,
			set: func(h *fakeHost) {
				h.status.driver = &updateDriver{Name: "Zincati", Unit: "zincati.service"}
				h.units["zincati.service"] = "inactive"
			},
			transactions: []transaction{{words: rebaseB, staged: stagedB(nil, nil)}}},
		{name: "the daemon starts slowly and is busy for others", want: wantB, done: 1,
			set: func(h *fakeHost) {
				h.statuses = []fixture{
					{failure: "error: Loading sysroot: Failed to invoke RegisterClient: GDBus.Error:org.freedesktop.DBus.Error." +
						"NameHasNoOwner: Could not activate remote peer 'org.projectatomic.rpmostree1': unit failed"},
					{failure: "error: GDBus.Error:org.freedesktop.DBus.Error.NoReply: Message recipient disconnected"},
					{busy: []string{"upgrade", ":1.7", "/x"}},
					{busy: []string{"upgrade", ":1.7", "/x"}},
				}
			},
			transactions: []transaction{{words: rebaseB, staged: stagedB(nil, nil)}}},
		{name: "the daemon has not heard yet that what was staged is gone", want: wantB, done: 1,
			set:          func(h *fakeHost) { h.statuses = []fixture{{staged: stagedB(nil, nil)}, {staged: stagedB(nil, nil)}} },
			transactions: []transaction{{words: rebaseB, staged: stagedB(nil, nil)}}},
		{name: "others are quicker, twice", want: wantB, done: 1,
			transactions: []transaction{
				{words: rebaseB, failure: "error: Transaction in progress: upgrade \n You can cancel the current transaction"},
				{words: rebaseB, failure: "error: System transaction in progress"},
				{words: rebaseB, staged: stagedB(nil, nil)},
			}},
		{name: "the network is away for a while", want: wantB, done: 1,
			transactions: []transaction{
				{words: rebaseB, failure: "error: Creating importer: dial tcp 10.0.0.1:443: connect: connection refused"},
				{words: rebaseB, failure: "error: Creating importer: dial tcp 10.0.0.1:443: connect: connection refused"},
				{words: rebaseB, staged: stagedB(nil, nil)},
			}},
		{name: "the client dies, and the transaction goes on", want: wantAll, done: 2,
			set: func(h *fakeHost) {
				h.transactions[0].before = func() { h.statuses = []fixture{{busy: []string{"rebase", ":1.9", "/x"}}} }
			},
			transactions: []transaction{{words: rebaseB, staged: stagedB(nil, nil), killed: true}, {words: swap, staged: doneAll}}},
		{name: "the client dies before the transaction begins", want: wantB, done: 1,
			transactions: []transaction{{words: rebaseB, killed: true}, {words: rebaseB, staged: stagedB(nil, nil)}}},
		{name: "the daemon leaves as idle in between", want: wantB, done: 1,
			transactions: []transaction{
				{words: rebaseB, failure: "error: GDBus.Error:org.freedesktop.DBus.Error.NoReply: Remote peer disconnected"},
				{words: rebaseB, staged: stagedB(nil, nil)},
			}},
		{name: "joins what an earlier process has begun", want: wantAll, done: 1,
			set: func(h *fakeHost) {
				words := "rpm-ostree " + rebaseB + " " + ostree.WithLock
				h.unit = []string{words, words, words}
				h.statuses = []fixture{{busy: []string{"rebase", ":1.9", "/x"}}}
				h.stage(stagedB(nil, nil), "rpm-staged-locked")
			},
			transactions: []transaction{{words: swap, staged: doneAll}}},
		{name: "cancels what an earlier process has begun for something else", want: wantB, done: 1,
			set:          func(h *fakeHost) { h.unit = []string{"rpm-ostree rebase x", "rpm-ostree rebase x"} },
			transactions: []transaction{{words: rebaseB, staged: stagedB(nil, nil)}}},
		{name: "a local ref", want: osimage.System{Image: "os/test"}, done: 1,
			transactions: []transaction{{words: "rebase os/test", staged: &deployment{OS: "testos", Checksum: two,
				Base: one, Staged: true, Origin: "os/test"}}},
			composed: osimage.Composed{Checksum: two, Origin: composed.Origin, Base: one}},
		{name: "a commit that is there", want: osimage.System{Image: "lab:" + three}, done: 1,
			transactions: []transaction{{words: "rebase :" + three, staged: &deployment{OS: "testos", Checksum: two,
				Base: three, Staged: true, Origin: three}}},
			composed: osimage.Composed{Checksum: two, Origin: composed.Origin, Base: three}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newFakeHost(t)
				h.transactions = c.transactions
				if c.set != nil {
					c.set(h)
				}
				want := c.composed
				if want == (osimage.Composed{}) {
					want = composed
				}
				want.Transactions = c.done
				r := h.driver()
				got, err := r.Compose(t.Context(), c.want)
				if err != nil || got != want || len(h.transactions) > 0 {
					t.Fatalf("gave %+v, %v; asked for %q, left are %+v", got, err, h.asked, h.transactions)
				}
				if interrupted := strings.HasPrefix(c.name, "cancels"); h.interrupted != interrupted {
					t.Errorf("interrupted: %v", h.interrupted)
				}
				if there, err := r.Present(t.Context(), c.want, got); !there || err != nil {
					t.Errorf("it is there: %v, %v", there, err)
				}
				held, err := r.held(ostree.ComposedRef)
				if err != nil || held != got.Checksum {
					t.Errorf("the ref holds %q, %v", held, err)
				}
				// Again it costs nothing.
				h.asked = nil
				want.Transactions = 0
				if again, err := r.Compose(t.Context(), c.want); err != nil || again != want || len(h.asked) > 0 {
					t.Errorf("again it gave %+v, %v and asked for %q", again, err, h.asked)
				}
			})
		})
	}
}

func TestWithABandwidthNothingIsFetchedThatRPMOSTreeWouldFetch(t *testing.T) {
	p, err := pace.Listen(t.Context(), 1<<20, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	const refused = "keeps no bandwidth: remove spec.staging.bandwidth"
	layered := func(h *fakeHost) {
		d := h.booted()
		d.Packages, d.Removed = wantAll.Packages, kernel
		h.bootedIs = &d
	}
	from := func(d deployment) func(h *fakeHost) {
		d.Staged = false
		return func(h *fakeHost) { h.status.after = []deployment{d} }
	}
	own := *doneAll
	own.LocalPackages = []string{"tool"}
	imported := map[string]string{importedRefs + "/docker_3A__2F__2F_quay_2E_io/example/os_40_sha256_3A_" +
		strings.TrimPrefix(digestB, "sha256:"): three + "\n"}
	for _, c := range []struct {
		name         string
		set          func(h *fakeHost)
		want         osimage.System
		transactions []transaction
		fails        bool
	}{
		{name: "an image", want: wantB, fails: true},
		{name: "a ref of a remote", want: osimage.System{Image: "lab:os/test"}, fails: true},
		{name: "a package", want: osimage.System{Image: imageA, Packages: []string{"usbguard"}}, fails: true},
		{name: "a package less, for which the others are resolved", fails: true, set: layered,
			want: osimage.System{Image: imageA, Packages: rtKernel, Removed: kernel}},
		{name: "what runs", want: osimage.System{Image: imageA}},
		{name: "where the node comes from", want: wantB, set: from(*stagedB(nil, nil))},
		{name: "where the node comes from, with packages", want: wantAll, set: from(*doneAll)},
		{name: "a deployment with somebody's own package", want: wantAll, set: from(own), fails: true},
		{name: "an image that is here", want: wantB,
			set:          func(h *fakeHost) { writeAll(t, h.root, imported) },
			transactions: []transaction{{words: rebaseB, staged: stagedB(nil, nil)}}},
		{name: "an image that is here, with packages", want: wantAll, fails: true,
			set: func(h *fakeHost) { writeAll(t, h.root, imported) }},
		{name: "a ref that is here", want: osimage.System{Image: "os/test"},
			transactions: []transaction{{words: "rebase os/test", staged: &deployment{OS: "testos", Checksum: two,
				Base: one, Staged: true, Origin: "os/test"}}}},
		{name: "a commit, which ostree pulls", want: osimage.System{Image: "lab:" + three},
			transactions: []transaction{{words: "rebase :" + three, staged: &deployment{OS: "testos", Checksum: two,
				Base: three, Staged: true, Origin: three}}}},
		{name: "all packages off", want: osimage.System{Image: imageA}, set: layered,
			transactions: []transaction{{words: "override reset kernel kernel-core --uninstall=kernel-rt-core " +
				"--uninstall=kernel-rt-modules --uninstall=usbguard", staged: &deployment{OS: "testos", Checksum: two, Staged: true,
				Container: "ostree-unverified-registry:" + imageA, Digest: digestA}}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newFakeHost(t)
			h.transactions = c.transactions
			if c.set != nil {
				c.set(h)
			}
			got, err := h.driver().Compose(p.In(t.Context()), c.want)
			if len(h.transactions) > 0 {
				t.Errorf("left are %+v", h.transactions)
			}
			if c.fails {
				if ostree.ClassOf(err) != ostree.NeedsAdmin || !strings.Contains(err.Error(), refused) || len(h.asked) > 0 {
					t.Errorf("gave %+v, %v, and asked for %q", got, err, h.asked)
				}
				return
			}
			checksum := two
			if c.name == "what runs" {
				checksum = one
			}
			if err != nil || got.Checksum != checksum || got.Transactions != len(c.transactions) {
				t.Errorf("gave %+v, %v", got, err)
			}
		})
	}
}

func TestPackagesAreThoseOfTheReleaseThatIsGoneTo(t *testing.T) {
	const imported = importedRefs + "/docker_3A__2F__2F_quay_2E_io/example/os_40_sha256_3A_"
	const notFound = "error: Packages not found: old"
	onB := func(packages ...string) *deployment { return stagedB(packages, nil) }
	realtime := func(h *fakeHost, d deployment) deployment {
		d.Packages, d.Removed = []string{"kernel-rt-core", "old"}, kernel
		h.bootedIs = &d
		return d
	}
	digest := strings.TrimPrefix(digestB, "sha256:")
	for _, c := range []struct {
		name         string
		set          func(h *fakeHost)
		guess        osimage.System
		choice       []string
		removed      []string
		transactions []transaction
		done         int
		fails        string
	}{
		{name: "the same", guess: osimage.System{Image: imageB, Packages: []string{"old"}}, choice: []string{"old"}, done: 1,
			transactions: []transaction{{words: rebaseB + " --install=old", staged: onB("old")}}},
		{name: "others, and both are there", guess: osimage.System{Image: imageB, Packages: []string{"old"}}, done: 2,
			choice: []string{"new", "old"},
			transactions: []transaction{{words: rebaseB + " --install=old", staged: onB("old")},
				{words: "install --idempotent new", staged: onB("new", "old")}}},
		{name: "others, and the old ones are gone", guess: osimage.System{Image: imageB, Packages: []string{"old"}}, done: 1,
			choice: []string{"new"},
			transactions: []transaction{
				{words: rebaseB + " --install=old", failure: notFound, before: nil},
				{words: rebaseB + " --install=new", staged: onB("new")}}},
		{name: "others, of an image that was pulled before", choice: []string{"new"}, done: 1,
			guess:        osimage.System{Image: imageB, Packages: []string{"old"}},
			set:          func(h *fakeHost) { writeAll(t, h.root, map[string]string{imported + digest: three + "\n"}) },
			transactions: []transaction{{words: rebaseB + " --install=new", staged: onB("new")}}},
		{name: "another kernel's, with the kernel", choice: []string{"kernel-rt-core"}, removed: kernel, done: 2,
			guess: osimage.System{Image: imageB, Packages: []string{"kernel-rt-core", "old"}, Removed: kernel},
			transactions: []transaction{{words: rebaseB, staged: stagedB(nil, nil)},
				{words: "override remove kernel kernel-core --install=kernel-rt-core",
					staged: stagedB([]string{"kernel-rt-core"}, kernel)}}},
		{name: "a kernel that stays has fewer", choice: []string{"kernel-rt-core"}, removed: kernel, done: 1,
			guess: osimage.System{Image: imageB, Packages: []string{"kernel-rt-core", "old"}, Removed: kernel},
			set:   func(h *fakeHost) { realtime(h, h.booted()) },
			transactions: []transaction{{words: rebaseB, failure: notFound},
				{words: rebaseB + " --uninstall=old", staged: stagedB([]string{"kernel-rt-core"}, kernel)}}},
		{name: "the same, and they are nowhere", guess: osimage.System{Image: imageB, Packages: []string{"old"}},
			choice: []string{"old"}, fails: "Packages not found: old",
			transactions: []transaction{{words: rebaseB + " --install=old", failure: notFound}}},
		{name: "others, and they are nowhere", guess: osimage.System{Image: imageB, Packages: []string{"old"}},
			choice: []string{"new"}, fails: "Packages not found: new",
			transactions: []transaction{{words: rebaseB + " --install=old", failure: notFound},
				{words: rebaseB + " --install=new", failure: "error: Packages not found: new"}}},
		{name: "none, of a release that nobody knows", guess: osimage.System{Image: imageB, Packages: []string{"old"}},
			fails: "nothing is known of release " + three,
			transactions: []transaction{{words: rebaseB + " --install=old", staged: onB("old")},
				{words: cleanupWord}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newFakeHost(t)
			h.releases = map[string]string{one: one, two: three, three: three}
			h.transactions = c.transactions
			if len(c.transactions) > 1 || c.fails != "" {
				// The image is there however the transaction ends.
				h.transactions[0].before = func() {
					writeAll(t, h.root, map[string]string{imported + digest: three + "\n"})
				}
			}
			if c.set != nil {
				c.set(h)
			}
			got, err := h.driver().ComposeFor(t.Context(), c.guess, func(release []byte) ([]string, []string, error) {
				if string(release) != three {
					t.Errorf("asked for release %s", release)
				}
				if c.choice == nil {
					return nil, nil, fmt.Errorf("nothing is known of release %s", release)
				}
				return c.choice, c.removed, nil
			})
			if len(h.transactions) > 0 {
				t.Errorf("asked for %q, left are %+v", h.asked, h.transactions)
			}
			if c.fails != "" {
				if ostree.ClassOf(err) != ostree.Invalid || !strings.Contains(err.Error(), c.fails) {
					t.Errorf("gave %v", err)
				}
				return
			}
			if err != nil || got.Checksum != two || got.Transactions != c.done {
				t.Errorf("gave %+v, %v", got, err)
			}
		})
	}
}

func TestTransactionOfADeadClientIsCancelledOnlyIfItIsOurs(t *testing.T) {
	// As rpm-ostree writes it.
	under := func(title, id string) string {
		return "State: busy\nAutomaticUpdates: disabled\nTransaction: " + title + " \n  Initiator: client(id:" + id +
			" dbus:1.28 unit:x.service uid:0)\nDeployments:\n● ostree://fedora:stable\n"
	}
	const theirs = "waiting: rpm-ostree works for another program: UpdateDeployment for the client :1.28"
	const own = "waiting: rpm-ostree still works on the transaction of an earlier attempt: "
	for _, c := range []struct {
		name, text string
		cancelled  int
		said       string
	}{
		{"ours, for something else", under("rebase elsewhere", clientID), 1, own + "rebase elsewhere"},
		{"ours, for this", under(rebaseB+" "+ostree.WithLock, clientID), 0, own + rebaseB + " " + ostree.WithLock},
		{"somebody else's", under("rebase elsewhere", "cli"), 0, theirs},
		{"of one that has a name like ours", under("rebase elsewhere", clientID+"-2"), 0, theirs},
		{"over meanwhile", "State: idle\nDeployments:\n  Initiator: client(id:" + clientID + " \n", 0, theirs},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newFakeHost(t)
				h.text = c.text
				busy := fixture{busy: []string{"UpdateDeployment", ":1.28", "/x"}}
				h.statuses = []fixture{busy, busy, busy}
				h.transactions = []transaction{{words: rebaseB, staged: stagedB(nil, nil)}}
				var mu sync.Mutex
				var said []string
				r := h.driver()
				r.Progress = func(text string) {
					mu.Lock()
					defer mu.Unlock()
					if strings.HasPrefix(text, "waiting: ") {
						said = append(said, text)
					}
				}
				_, err := r.Compose(t.Context(), wantB)
				mu.Lock()
				if err != nil || h.cancelled != c.cancelled || !slices.Equal(said, []string{c.said}) {
					t.Errorf("gave %v; cancelled %d; said %q", err, h.cancelled, said)
				}
				mu.Unlock()

				// To drop it, nothing of ours is worth waiting for.
				h.stage(nil, "")
				h.text, h.cancelled, h.statuses = c.text, 0, []fixture{busy, busy}
				h.transactions = []transaction{{words: "cleanup -b"}}
				want := c.cancelled
				if strings.Contains(c.text, "client(id:"+clientID+" dbus") {
					want = 1
				}
				if err := h.driver().Drop(t.Context()); err != nil || h.cancelled != want {
					t.Errorf("drop gave %v; cancelled %d", err, h.cancelled)
				}
			})
		})
	}
}

func TestNamesOfImportedImagesAreRead(t *testing.T) {
	for name, want := range map[string]string{
		"docker_3A__2F__2F_quay_2E_io/a__b/os_3A_1":             "docker://quay.io/a_b/os:1",
		"docker_3A_/_2F_quay_2E_example/os/node_40_sha256_3A_0": "docker://quay.example/os/node@sha256:0",
		"oci_3A_/var/x": "oci:/var/x",
		"plain":         "plain", "_": "_", "a_b": "a_b", "a_zz_": "a_zz_", "": "",
	} {
		if got := unescapedRef(name); got != want {
			t.Errorf("%s is %s, not %s", name, got, want)
		}
	}
}

//nolint:misspell // a registry's own word
func TestFailedComposeSaysWhyAndLeavesNothingStaged(t *testing.T) {
	busy := transaction{words: rebaseB, failure: "error: System transaction in progress"}
	refused := "error: Creating importer: dial tcp 10.0.0.1:443: connect: connection refused"
	for _, c := range []struct {
		name         string
		set          func(h *fakeHost)
		want         osimage.System
		transactions []transaction
		class        ostree.Class
		text         string
	}{
		{name: "the second of two", want: wantAll, class: ostree.Invalid, text: "rpm-ostree: Packages not found: usbguard",
			transactions: []transaction{{words: rebaseB, staged: stagedB(nil, nil)},
				{words: swap, failure: "error: Packages not found: usbguard"}, {words: cleanupWord}}},
		{name: "another image than asked for", want: wantB, class: ostree.Failed,
			text: "the image is ostree-unverified-registry:" + imageA + " (" + digestA + ") instead of ostree-unverified-registry:" + imageB,
			transactions: []transaction{{words: rebaseB, staged: &deployment{OS: "testos", Checksum: two, Staged: true,
				Container: "ostree-unverified-registry:" + imageA, Digest: digestA}}, {words: cleanupWord}}},
		{name: "a package is missing", want: osimage.System{Image: imageB, Packages: []string{"a", "b"}}, class: ostree.Failed,
			text: "the layered packages are a instead of a, b",
			transactions: []transaction{
				{words: rebaseB + " --install=a --install=b", staged: stagedB([]string{"a"}, nil)}, {words: cleanupWord}}},
		{name: "a package is still there", want: wantAll, class: ostree.Failed,
			text: "the packages left out are kernel instead of kernel, kernel-core",
			transactions: []transaction{{words: rebaseB, staged: stagedB(nil, nil)},
				{words: swap, staged: stagedB(wantAll.Packages, kernel[:1])}, {words: cleanupWord}}},
		{name: "it is not locked", want: wantB, class: ostree.Failed, text: "testos/" + two + ".0 is not locked",
			transactions: []transaction{{words: rebaseB, staged: stagedB(nil, nil), unlocked: true}, {words: cleanupWord}}},
		{name: "no credentials", want: wantB, class: ostree.NeedsAdmin,
			text: "unauthorized; /etc/ostree/auth.json, the only file that is looked at, has no credentials for quay.io; " +
				osimage.KubeletAuthPath + " has some: link /run/ostree/auth.json to it",
			set: func(h *fakeHost) {
				writeAll(t, h.root, map[string]string{
					"/etc/ostree/auth.json": `{"auths":{"registry.example":{"auth":"eDp5"}}}`,
					osimage.KubeletAuthPath: `{"auths":{"quay.io":{"auth":"eDp5"}}}`,
				})
			},
			transactions: []transaction{{words: rebaseB, failure: "error: Creating importer: failed to invoke method " +
				"OpenImage: failed to invoke method OpenImage: reading manifest in quay.io/example/os: unauthorized"}}},
		{name: "nothing came of it", want: wantB, class: ostree.Failed, text: "nothing is staged",
			transactions: []transaction{{words: rebaseB}}},
		{name: "the image has the package itself, since 2026.1", want: osimage.System{Packages: []string{"a", "b"}},
			class: ostree.Invalid, text: "nothing is staged: the image already has a, b,",
			transactions: []transaction{{words: "install --idempotent a b"}}},
		{name: "somebody's changes are lost", want: wantB, class: ostree.Failed, text: "other local packages",
			transactions: []transaction{{words: rebaseB, staged: func() *deployment {
				d := stagedB(nil, nil)
				d.LocalPackages = []string{"sha256:foo"}
				return d
			}()}, {words: cleanupWord}}},
		{name: "the local ref is another commit", want: osimage.System{Image: "os/test"}, class: ostree.Failed,
			text: "os/test is commit " + one + ", and rpm-ostree's staged deployment is based on " + three,
			transactions: []transaction{{words: "rebase os/test", staged: &deployment{OS: "testos", Checksum: two,
				Base: three, Staged: true, Origin: "os/test"}}, {words: cleanupWord}}},
		{name: "a driver", want: wantB, class: ostree.NeedsAdmin, text: "Zincati (zincati.service)",
			set: func(h *fakeHost) {
				h.status.driver = &updateDriver{Name: "Zincati", Unit: "zincati.service"}
				h.units["zincati.service"] = "active"
			}},
		{name: "a driver that has crashed", want: wantB, class: ostree.NeedsAdmin, text: "run systemctl reset-failed zincati.service",
			set: func(h *fakeHost) {
				h.status.driver = &updateDriver{Name: "Zincati", Unit: "zincati.service"}
				h.units["zincati.service"] = "failed"
			}},
		{name: "a pinned one of other changes", want: wantB, class: ostree.NeedsAdmin, text: three + ".0 stands before the booted deployment",
			set: func(h *fakeHost) {
				h.status.before = []deployment{{OS: "testos", Checksum: three, Pinned: true,
					localChanges: localChanges{LocalPackages: []string{"x"}}}}
			}},
		{name: "layering is locked", want: osimage.System{Packages: []string{"a"}}, class: ostree.NeedsAdmin, text: "LockLayering",
			transactions: []transaction{{words: "install --idempotent a",
				failure: "error: Cannot operate; `LockLayering=true` in configuration."}}},
		{name: "a commit that is not there", want: osimage.System{Image: "dddddddddddddddddddddddddddddddd" +
			"dddddddddddddddddddddddddddddddd"}, class: ostree.Invalid, text: "not in the repository"},
		{name: "the network stays away", want: wantB, class: ostree.Retryable, text: "connection refused",
			transactions: slices.Repeat([]transaction{{words: rebaseB, failure: refused}}, 6)},
		{name: "others never end", want: wantB, class: ostree.Retryable, text: "System transaction in progress",
			transactions: slices.Repeat([]transaction{busy}, int(busyPatience/ostree.UnitPoll)+2)},
		{name: "others never end, says the status", want: wantB, class: ostree.Retryable, text: "upgrade for the client :1.7",
			set: func(h *fakeHost) { h.status.busy = []string{"upgrade", ":1.7", "/x"} }},
		{name: "the daemon never comes", want: wantB, class: ostree.Retryable, text: "unit failed",
			set: func(h *fakeHost) {
				h.status.failure = "error: Could not activate remote peer 'org.projectatomic.rpmostree1': unit failed"
			}},
		{name: "the daemon never hears what ostree has done", want: wantB, class: ostree.Retryable, text: "does not report",
			set: func(h *fakeHost) { h.statuses = slices.Repeat([]fixture{{staged: stagedB(nil, nil)}}, statusTries) }},
		{name: "the client always dies", want: wantB, class: ostree.Retryable,
			transactions: slices.Repeat([]transaction{{words: rebaseB, killed: true}}, lostTries+1)},
		{name: "not an ostree host", want: wantB, class: ostree.NeedsAdmin, text: "This system was not booted via libostree.",
			set: func(h *fakeHost) { h.status.failure = "error: This system was not booted via libostree." }},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newFakeHost(t)
				h.transactions = c.transactions
				if c.set != nil {
					c.set(h)
				}
				_, err := h.driver().Compose(t.Context(), c.want)
				if ostree.ClassOf(err) != c.class || err == nil || !strings.Contains(err.Error(), c.text) {
					t.Errorf("failed with %q: %v", ostree.ClassOf(err), err)
				}
				if len(h.transactions) > 0 {
					t.Errorf("%+v were not asked for, but %q", h.transactions, h.asked)
				}
				if h.status.staged != nil {
					t.Errorf("%+v is left", h.status.staged)
				}
				if stale := strings.HasPrefix(c.name, "the daemon never hears"); stale != (h.reloads > 0) {
					t.Errorf("%d reloads", h.reloads)
				}
			})
		})
	}
}

func TestContextThatEndsLeavesTheTransactionToTheNextCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newFakeHost(t)
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("another configuration is wanted")
		h.transactions = []transaction{{words: rebaseB, before: func() { cancel(why) }}}
		if _, err := h.driver().Compose(ctx, wantB); !errors.Is(err, why) || ostree.ClassOf(err) != ostree.Retryable {
			t.Errorf("gave %v", err)
		}
		if len(h.asked) != 1 {
			t.Errorf("asked for %q", h.asked)
		}
	})
}

func TestProgressIsTheLastLineOfTheOutput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newFakeHost(t)
		var said []string
		h.transactions = []transaction{{words: rebaseB, staged: stagedB(nil, nil), before: func() {
			for _, text := range []string{"Pulling manifest\n", "Pulling manifest\n[1/3] Fetching\r[2/3] Fetching\n\n", ""} {
				if text != "" {
					writeAll(t, h.root, map[string]string{"/run/" + transactionUnit + ".stdout": text})
				}
				<-time.After(ostree.UnitPoll * 3 / 2)
			}
		}}}
		r := h.driver()
		r.Progress = func(text string) { said = append(said, text) }
		if _, err := r.Compose(t.Context(), wantB); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff([]string{"Pulling manifest", "[2/3] Fetching"}, said); d != "" {
			t.Error(d)
		}
	})
}

func TestPresentMissesACommitThatNothingHolds(t *testing.T) {
	h := newFakeHost(t)
	r := h.driver()
	for _, c := range []struct {
		checksum string
		set      func()
		want     bool
	}{
		{"", nil, false},
		{one, nil, false},
		{three, nil, false},
		{three, func() {
			writeAll(t, h.root, map[string]string{"/ostree/repo/refs/heads/" + ostree.ComposedRef: three + "\n"})
		}, true},
		{three, func() {
			writeAll(t, h.root, map[string]string{"/ostree/repo/state/" + three + ".commitpartial": ""})
		}, false},
	} {
		if c.set != nil {
			c.set()
		}
		if got, err := r.Present(t.Context(), osimage.System{}, osimage.Composed{Checksum: c.checksum}); got != c.want || err != nil {
			t.Errorf("%q: %v, %v", c.checksum, got, err)
		}
	}
}

func TestDropLetsGoOfTheRefs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newFakeHost(t)
		r := h.driver()
		h.transactions = []transaction{{words: rebaseB, staged: stagedB(nil, nil)}, {words: "cleanup -b"}}
		if _, err := r.Compose(t.Context(), wantB); err != nil {
			t.Fatal(err)
		}
		h.stage(nil, "") // as when something is deployed
		// What a transaction may leave that ends while it stages.
		writeAll(t, h.root, map[string]string{ostree.StagedLock: ""})
		for range 2 {
			if err := r.Drop(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := os.Stat(filepath.Join(h.root, ostree.StagedLock)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the lock is left: %v", err)
		}
		want := []string{rebaseB, "refs --force --create=" + ostree.ComposedRef + " " + two, "refs --force --create=" + baseRef + " " + two,
			"refs --delete " + ostree.ComposedRef, "refs --delete " + baseRef, "cleanup -b"}
		if d := cmp.Diff(want, h.asked); d != "" {
			t.Error(d)
		}
		if left, err := filepath.Glob(h.root + "/run/noderefit*"); err != nil || len(left) > 0 {
			t.Errorf("%q are left, %v", left, err)
		}
	})
}

//nolint:misspell // ostree's own words
func TestFailedFinalizationIsTold(t *testing.T) {
	for _, c := range []struct {
		name  string
		stamp string
		state string
		log   string
		want  string
	}{
		{"none", "", "inactive", "", ""},
		{"the stamp is there", "error: during finalize: no space\n", "", "", "error: during finalize: no space"},
		{"the boot has told it", "", "failed", "Starting\nerror: ostree-finalize-staged.service failed on previous boot: no space\n",
			"no space"},
	} {
		root := t.TempDir()
		if c.stamp != "" {
			writeAll(t, root, map[string]string{finalizeFailure: c.stamp})
		}
		run := func(_ context.Context, argv ...string) ([]byte, error) {
			if argv[0] == "journalctl" {
				return []byte(c.log), nil
			}
			return nil, errStatus
		}
		tools := &ostree.Tools{Root: root, Units: &fakeHost{t: t, units: map[string]string{"ostree-boot-complete.service": c.state}}}
		if got, err := New(run, tools, ostree.NewPlain(run, root)).FailedFinalization(t.Context()); got != c.want || err != nil {
			t.Errorf("%s: %q, %v", c.name, got, err)
		}
	}
}

func writeAll(t *testing.T, root string, files map[string]string) {
	t.Helper()
	for path, text := range files {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
