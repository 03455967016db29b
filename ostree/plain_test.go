// SPDX-License-Identifier: Apache-2.0

package ostree

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

const (
	one = "63bcf5d8b40c877405c835d895399a8e2500938f044a0557e08f76eca8bdcfba"
	two = "2026311abe525ab63acbe1f5c00ba62dfd8bb328b246281b0625cbcfa1473861"
)

// As ostree 2025.2 prints it.
const stagedText = `  testos ` + two + `.0 (staged)
    Version: v2
    origin refspec: os/test2
* testos ` + one + `.0
    Version: v1
    Pinned: yes
    origin refspec: os/test
  testos ` + one + `.1 (rollback)
    Version: v1
    origin refspec: ` + one + `
`

const pendingText = `  testos ` + one + `.1 (pending)
    Version: v1
    origin refspec: lab:os/test3
* testos ` + one + `.0
    Unlocked: hotfix
    origin: <unknown origin type>
    ` + "`- a source title" + `
    GPG: Signature made Mon 01 Jan 2024 using RSA key ID 0000
  other ` + two + `.12
    origin: none
`

// As ostree prints it from 2025.3 on, the same as pendingText.
//
//nolint:misspell // ostree's own words
const pendingJSON = `{
   "deployments": [
      {
         "checksum": "` + one + `",
         "stateroot": "testos",
         "refspec": "lab:os/test3",
         "serial": 1,
         "index": 0,
         "booted": false,
         "pending": true,
         "rollback": false,
         "finalization-locked": false,
         "soft-reboot-target": false,
         "staged": false,
         "pinned": false,
         "unlocked": "none",
         "version": "v1"
      },{
         "checksum": "` + one + `",
         "stateroot": "testos",
         "serial": 0,
         "index": 1,
         "booted": true,
         "pending": false,
         "rollback": false,
         "finalization-locked": false,
         "soft-reboot-target": false,
         "staged": false,
         "pinned": false,
         "unlocked": "hotfix"
      },{
         "checksum": "` + two + `",
         "stateroot": "other",
         "serial": 12,
         "index": 2,
         "booted": false,
         "pending": false,
         "rollback": false,
         "finalization-locked": false,
         "soft-reboot-target": false,
         "staged": false,
         "pinned": false,
         "unlocked": "none"
      }
   ]
}
`

func deployment(os, checksum string, serial, index int, change func(*Deployment)) Deployment {
	d := Deployment{OS: os, Checksum: checksum, Serial: serial, Index: index,
		ID:  fmt.Sprintf("%s/%s.%d", os, checksum, serial),
		Dir: fmt.Sprintf("/ostree/deploy/%s/deploy/%s.%d", os, checksum, serial)}
	change(&d)
	return d
}

func TestStatusIsRead(t *testing.T) {
	pending := []Deployment{
		deployment("testos", one, 1, 0, func(d *Deployment) { d.Pending, d.Version, d.Refspec = true, "v1", "lab:os/test3" }),
		deployment("testos", one, 0, 1, func(d *Deployment) { d.Booted = true }),
		deployment("other", two, 12, 2, func(*Deployment) {}),
	}
	withoutVersion := strings.Replace(pendingText, "    Version: v1\n", "", 1)
	pendingWithoutVersion := slices.Clone(pending)
	pendingWithoutVersion[0].Version = ""
	for _, c := range []struct {
		name, output string
		want         []Deployment
	}{
		{"text, staged and pinned", stagedText, []Deployment{
			deployment("testos", two, 0, 0, func(d *Deployment) { d.Staged, d.Version, d.Refspec = true, "v2", "os/test2" }),
			deployment("testos", one, 0, 1, func(d *Deployment) { d.Booted, d.Pinned, d.Version, d.Refspec = true, true, "v1", "os/test" }),
			deployment("testos", one, 1, 2, func(d *Deployment) { d.Rollback, d.Version, d.Refspec = true, "v1", one }),
		}},
		{"text, pending and another OS", pendingText, pending},
		{"JSON", pendingJSON, pending},
		{"text without a version", withoutVersion, pendingWithoutVersion},
		{"text with two states", "  testos " + two + ".0 (staged) (soft-reboot)\n", []Deployment{
			deployment("testos", two, 0, 0, func(d *Deployment) { d.Staged = true }),
		}},
		//nolint:misspell // ostree's own word
		{"text, staged and locked", "  testos " + two + ".0 (finalization locked)\n", []Deployment{
			deployment("testos", two, 0, 0, func(d *Deployment) { d.Staged = true }),
		}},
		{"text, none", "No deployments.\n", nil},
		{"JSON, none", "{\n   \"deployments\": [\n\n   ]\n}\n", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := parseStatus([]byte(c.output))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got, cmpopts.IgnoreUnexported(Deployment{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestStatusThatIsNoneIsRefused(t *testing.T) {
	for name, output := range map[string]string{
		"a line of something else": "bash: ostree: command not found\n",
		"a detail before any":      "    Version: v1\n",
		"a short checksum":         "* testos 63bc.0\n",
		"a serial that is none":    "* testos " + one + ".01\n",
		"broken JSON":              `{"deployments": [`,
		"JSON without a checksum":  `{"deployments": [{"stateroot": "testos"}]}`,
		"JSON with a path as OS":   `{"deployments": [{"stateroot": "../x", "checksum": "` + one + `"}]}`,
		"one twice":                "* testos " + one + ".0\n  testos " + one + ".0\n",
	} {
		if got, err := parseStatus([]byte(output)); err == nil {
			t.Errorf("%s: got %+v", name, got)
		}
	}
}

func FuzzStatus(f *testing.F) {
	for _, seed := range []string{stagedText, pendingText, pendingJSON, "No deployments.\n", ""} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, output []byte) {
		deployments, err := parseStatus(output)
		if err != nil {
			return
		}
		for i, d := range deployments {
			if d.Index != i || len(d.Checksum) != 64 || strings.Contains(d.OS, "/") ||
				d.Dir != filepath.Clean(d.Dir) || !strings.HasPrefix(d.Dir, "/ostree/deploy/"+d.OS+"/") {
				t.Errorf("deployment %d is %+v", i, d)
			}
		}
	})
}

func TestEntryIsRead(t *testing.T) {
	e, link, ok, err := parseEntry("title Test OS v2 (ostree:1)\nversion 12\n" +
		"options root=LABEL=root console=tty0 console=ttyS0 ostree=/ostree/boot.0/testos/7c32/0 x=\"a  b\" console=tty0\n" +
		"linux /ostree/testos-7c32/vmlinuz-6.12\ninitrd /ostree/testos-7c32/initramfs-6.12.img\n" +
		"initrd\t/ostree/initramfs-overlays/abc.img\n")
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	want := entry{version: 12, arguments: []string{"root=LABEL=root", "console=tty0", "console=ttyS0", `x="a  b"`, "console=tty0"},
		options: `root=LABEL=root console=tty0 console=ttyS0 ostree=/ostree/boot.0/testos/7c32/0 x="a  b" console=tty0`,
		linux:   "/ostree/testos-7c32/vmlinuz-6.12", kernel: "/ostree/testos-7c32", initrds: []string{"/ostree/testos-7c32/initramfs-6.12.img", "/ostree/initramfs-overlays/abc.img"}}
	if !reflect.DeepEqual(e, want) || link != "/ostree/boot.0/testos/7c32/0" {
		t.Errorf("got %+v, %s", e, link)
	}
	if _, _, ok, err := parseEntry("title Windows\nefi /EFI/x.efi\n"); ok || err != nil {
		t.Errorf("somebody else's entry is taken for ostree's: %v, %v", ok, err)
	}
	if _, _, _, err := parseEntry("version x\n"); err == nil {
		t.Error("a version that is no number is accepted")
	}
}

func TestKernelArgumentMustBeOne(t *testing.T) {
	for argument, fine := range map[string]bool{
		"quiet": true, "a=1": true, `x="a b"`: true, `"x=a b"`: true, "a=b=c": true, "mod.opt": true,
		"": false, "a b": false, `x="a`: false, "a\nb": false, " a": false, "ostree=/ostree/boot.0/x/y/0": false, "\t": false,
	} {
		if err := CheckArgument(argument); (err == nil) != fine {
			t.Errorf("%q: %v", argument, err)
		}
	}
}

func TestVersionTooOldForSetDefaultIsNamed(t *testing.T) {
	for _, c := range []struct {
		version string
		refused bool
	}{
		{"2018.10", true}, {"2022.7", true}, {"2023.5", true}, {"2023.6", false}, {"2023.10", false}, {"2025.2", false}, {"2026.4", false},
	} {
		p := NewPlain(func(context.Context, ...string) ([]byte, error) {
			return []byte("libostree:\n Version: '" + c.version + "'\n Git: abc\n Features:\n  - libcurl\n"), nil
		}, hostTree(t, nil))
		p.Arch = "amd64"
		err := p.Supported(t.Context())
		var unsupported *Unsupported
		if !c.refused {
			if err != nil {
				t.Errorf("%s: %v", c.version, err)
			}
			continue
		}
		if !errors.As(err, &unsupported) || unsupported.Reason != "too-old" || ClassOf(err) != NeedsAdmin ||
			!strings.Contains(err.Error(), c.version) || !strings.Contains(err.Error(), needsVersion) {
			t.Errorf("%s: %v", c.version, err)
		}
	}
}

// hostTree makes as much of a host as is looked at without ostree's help; a file with no text is removed again.
func hostTree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	all := map[string]string{"run/ostree-booted": " ", "ostree/repo/config": "[core]\nmode=bare\n", "boot/loader.1/entries/x": " "}
	maps.Copy(all, files)
	for path, text := range all {
		if text == "" {
			continue
		}
		path = filepath.Join(root, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if _, direct := files["boot/loader/entries/x"]; !direct {
		if err := os.Symlink("loader.1", filepath.Join(root, "boot/loader")); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestHostThatCannotSwitchIsRefusedWithTheReason(t *testing.T) {
	version := func(context.Context, ...string) ([]byte, error) { return []byte("Version: '2025.2'\n"), nil }
	for _, c := range []struct {
		name, arch string
		files      map[string]string
		reason     string
	}{
		{"an ostree host", "amd64", nil, ""},
		{"no ostree host", "amd64", map[string]string{"run/ostree-booted": ""}, "not-ostree"},
		{"s390x", "s390x", nil, "zipl"},
		{"zipl asked for", "amd64", map[string]string{"ostree/repo/config": "[sysroot]\nbootloader=zipl\n"}, "zipl"},
		{"boot entries that are no link", "amd64", map[string]string{"boot/loader/entries/x": " "}, "no-boot-link"},
		{"transient /etc", "amd64", map[string]string{"usr/lib/ostree/prepare-root.conf": "[etc]\ntransient = true\n"}, "transient-etc"},
		{"transient /etc that the admin switched off", "amd64", map[string]string{
			"usr/lib/ostree/prepare-root.conf": "[etc]\ntransient=true\n",
			"etc/ostree/prepare-root.conf":     "# ours\n[etc]\ntransient=false\n"}, ""},
		{"a transient /etc that is there, and no units", "amd64", map[string]string{
			"usr/lib/ostree/prepare-root.conf": "[etc]\ntransient=true\n", "proc/self/mountinfo": overlayEtc}, "transient-etc"},
		{"a transient /etc that is there", "amd64", map[string]string{
			"usr/lib/ostree/prepare-root.conf":                         "[etc]\ntransient=true\n",
			"proc/self/mountinfo":                                      overlayEtc,
			"usr/lib/systemd/system/wake.service":                      "[Service]\nExecStart=/usr/bin/env wake\n",
			"usr/etc/systemd/system/sysinit.target.wants/wake.service": "linked"}, ""},
		{"composefs", "amd64", map[string]string{"usr/lib/ostree/prepare-root.conf": "[composefs]\nenabled=yes\n"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := NewPlain(version, hostTree(t, c.files))
			p.Arch = c.arch
			p.Wakers = []Waker{{Name: "wake.service", Command: "/usr/bin/env wake", WantedBy: []string{"sysinit.target"}}}
			err := p.Supported(t.Context())
			var unsupported *Unsupported
			if errors.As(err, &unsupported) != (c.reason != "") || c.reason == "" && err != nil ||
				c.reason != "" && (unsupported.Reason != c.reason || ClassOf(err) != NeedsAdmin) {
				t.Errorf("got %v, want %q", err, c.reason)
			}
		})
	}
}

// What ostree and the libraries below it say (those of missing refs and hosts captured from 2025.2), and what comes of it.
func TestErrorsAreClassed(t *testing.T) {
	for _, c := range []struct {
		stderr string
		want   Class
	}{
		{"error: While fetching http://127.0.0.1:1/r/summary.sig: [7] Could not connect to server", Retryable},
		{"error: While fetching http://nosuch.invalid/r/summary.sig: [6] Could not resolve hostname", Retryable},
		{"error: While fetching https://x/r/config: [28] Timeout was reached", Retryable},
		{"error: While fetching https://x/r/config: [60] SSL peer certificate or SSH remote key was not OK", Failed},
		{"error: Server returned HTTP 503", Retryable},
		{"error: Server returned HTTP 404", Invalid},
		{"error: No such branch 'nope' in repository summary", Invalid},
		{`error: Remote "nolab" not found`, Invalid},
		{"error: Refspec 'nope' not found", Invalid},
		//nolint:misspell // ostree's own word
		{"error: Deploying tree: Initializing deployment: No such stateroot: nope", Invalid},
		{"error: Writing content object: fallocate: No space left on device", NeedsAdmin},
		{"error: Out of range deployment index 99, expected < 2", Failed},
	} {
		err := Failing("staging x", nil, &CommandError{Argv: []string{"ostree"}, Stderr: c.stderr, Err: errors.New("exit status 1")})
		if got := ClassOf(err); got != c.want {
			t.Errorf("%s is %s, want %s", c.stderr, got, c.want)
		}
		if !strings.HasPrefix(err.Error(), "staging x: ") || !strings.Contains(err.Error(), c.stderr) {
			t.Errorf("the error is %q", err)
		}
	}
}

func TestPullIsTriedAgainOnlyWhenTheNetworkFailed(t *testing.T) {
	for _, c := range []struct {
		name   string
		stderr string
		pulls  int
	}{
		{"network", "error: While fetching http://x/config: [7] Could not connect to server", 3},
		{"no such branch", "error: No such branch 'x' in repository summary", 1},
	} {
		pulls := 0
		p := NewPlain(func(_ context.Context, argv ...string) ([]byte, error) {
			pulls++
			return nil, &CommandError{Argv: argv, Stderr: c.stderr, Err: errors.New("exit status 1")}
		}, t.TempDir())
		p.PullDelays = []time.Duration{time.Microsecond, time.Microsecond}
		if _, err := p.Stage(t.Context(), "lab:x"); err == nil || pulls != c.pulls {
			t.Errorf("%s: %d pulls, want %d (%v)", c.name, pulls, c.pulls, err)
		}
	}
}

func TestImageThatPlainOSTreeCannotHaveIsRefused(t *testing.T) {
	p := NewPlain(func(_ context.Context, argv ...string) ([]byte, error) {
		t.Errorf("%q was run", argv)
		return nil, nil
	}, t.TempDir())
	for _, image := range []string{"", "registry.example/os@sha256:" + one, "ostree-unverified-registry:registry.example/os:1", "-x", "a:-b", "a b", "../x", one} {
		if _, err := p.Stage(t.Context(), image); ClassOf(err) != Invalid {
			t.Errorf("%q: %v", image, err)
		}
	}
}

func TestExecGivesTheEndOfStderrAndStopsTheWholeGroup(t *testing.T) {
	output, err := Exec(t.Context(), "sh", "-c", "echo out; head -c 5000 /dev/zero | tr '\\0' x >&2; echo end >&2; exit 3")
	var command *CommandError
	if string(output) != "out\n" || !errors.As(err, &command) || len(command.Stderr) > maxStderr || !strings.HasSuffix(command.Stderr, "xend") {
		t.Errorf("got %q, %v", output, err)
	}

	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	mark := filepath.Join(t.TempDir(), "mark")
	begun := time.Now()
	// The grandchild would hold standard output open and write the mark.
	_, err = Exec(ctx, "sh", "-c", "(sleep 5; touch "+mark+") & wait")
	if !errors.Is(err, context.DeadlineExceeded) || ClassOf(Failing("x", nil, err)) != Retryable {
		t.Errorf("got %v", err)
	}
	if took := time.Since(begun); took > 4*time.Second {
		t.Errorf("it took %s to stop", took)
	}
}

func TestAToolThatHangsIsAnErrorInTime(t *testing.T) {
	hangs := func(ctx context.Context, _ ...string) ([]byte, error) { return Exec(ctx, "sleep", "10") }
	run := NewPlain(nil, t.TempDir()).Bounded(hangs, Limits{Ask: 10 * time.Millisecond, Change: 20 * time.Millisecond,
		Deploy: 30 * time.Millisecond, Pull: 40 * time.Millisecond})
	for command, names := range map[string]string{"ostree --version": "10ms", "ostree admin status --json": "10ms",
		"ostree rev-parse x": "10ms", "ostree admin set-default 1": "20ms", "ostree admin undeploy 1": "20ms",
		"ostree admin cleanup": "30ms", "ostree ls x": "20ms", "ostree pull a b": "40ms", "ostree admin deploy x": "30ms", "podman ps": "20ms"} {
		output, err := run(t.Context(), strings.Fields(command)...)
		err = Failing("going back", output, err)
		if ClassOf(err) != Retryable || !strings.Contains(err.Error(), "within "+names) {
			t.Errorf("%s: %v", command, err)
		}
	}
}

func TestKernelThatIsThereNeedsNoSpaceAndAnotherIsRefusedByNumbers(t *testing.T) {
	root := t.TempDir()
	write := func(path, text string) {
		path = filepath.Join(root, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	objects, err := parseListing([]byte("d00755 0 0      0 " + one + " " + two + " /usr/lib/modules\n" +
		"-00644 0 0     6 " + one + " /usr/lib/modules/6.12/vmlinuz\n" +
		"-00644 0 0     9 " + two + " /usr/lib/modules/6.12/initramfs.img\n" +
		"-00644 0 0     9 " + two + " /usr/lib/modules/6.12/kernel/x y.ko\n"))
	if err != nil {
		t.Fatal(err)
	}
	files, simple := kernelFiles(objects)
	if len(files) != 2 || !simple {
		t.Fatalf("got %+v, %v", files, simple)
	}
	write("ostree/repo/objects/"+one[:2]+"/"+one[2:]+".file", "kernel")
	write("ostree/repo/objects/"+two[:2]+"/"+two[2:]+".file", "initramfs")
	digest, err := bootChecksum(root, files)
	if err != nil {
		t.Fatal(err)
	}
	deployments := []Deployment{
		{OS: "testos", ID: "new", kernel: "/ostree/a", Default: true},
		{OS: "testos", ID: "booted", kernel: "/ostree/b", Booted: true},
		{OS: "testos", ID: "pinned", kernel: "/ostree/c", Pinned: true},
		{OS: "testos", ID: "shares", kernel: "/ostree/a"},
		{OS: "testos", ID: "old", kernel: "/ostree/d"},
		{OS: "testos", ID: "as old", kernel: "/ostree/d"},
		{OS: "otheros", ID: "another", kernel: "/ostree/e"},
	}
	// Without blocks, so that it takes no room: larger than any disk here.
	write("boot/ostree/d/vmlinuz", "")
	if err := os.Truncate(filepath.Join(root, "boot/ostree/d/vmlinuz"), 1<<43); err != nil {
		t.Fatal(err)
	}
	files[0].size = 1 << 43
	write("boot/x", "")
	var room *NoBootSpace
	if err := bootSpace(root, "testos", one, files, simple, deployments); !errors.As(err, &room) ||
		!slices.Equal(room.Reclaimable, []string{"old", "as old"}) {
		t.Errorf("with what can go it is %v", err)
	}
	files[0].size = 1 << 60
	var refusal *NoBootSpace
	err = bootSpace(root, "testos", one, files, simple, deployments)
	if !errors.As(err, &refusal) || refusal.Need < 1<<60 || refusal.Free == 0 || refusal.Free > 1<<60 ||
		len(refusal.Reclaimable) > 0 ||
		!strings.Contains(err.Error(), fmt.Sprint(refusal.Need)) || !strings.Contains(err.Error(), fmt.Sprint(refusal.Free)) {
		t.Errorf("got %v", err)
	}
	write("boot/ostree/testos-"+digest+"/vmlinuz", "kernel")
	if err := bootSpace(root, "testos", one, files, simple, deployments); err != nil {
		t.Errorf("a kernel that is there is refused: %v", err)
	}
	if err := bootSpace(root, "otheros", one, files, simple, deployments); err == nil {
		t.Error("another OS's kernel counts as this one's")
	}
}
