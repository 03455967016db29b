// SPDX-License-Identifier: Apache-2.0

package firstboot

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/test/schemas"
	"github.com/noderefit/noderefit/transaction"
)

// example has what a configuration of a node has: files in /etc and elsewhere, a directory, a link, units.
const example = `{
  "ignition": {"version": "3.5.0"},
  "storage": {
    "files": [
      {"path": "/etc/chrony.conf", "mode": 420, "overwrite": true, "contents": {"source": "data:,server%20ntp.example.com"}},
      {"path": "/var/lib/example/secret", "mode": 384, "overwrite": true, "contents": {"source": "data:;base64,c2VjcmV0"}}
    ],
    "directories": [{"path": "/etc/example.d", "mode": 488}],
    "links": [{"path": "/etc/localtime", "target": "../usr/share/zoneinfo/UTC", "overwrite": true}]
  },
  "systemd": {"units": [
    {"name": "example.service", "enabled": true,
     "contents": "[Service]\nType=oneshot\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n"},
    {"name": "chrony.service", "dropins": [{"name": "10-x.conf", "contents": "[Service]\nNice=-1\n"}]},
    {"name": "debug-shell.service", "mask": true}
  ]}
}`

// tree is a directory that looks like a host which Ignition can work on.
func tree(t *testing.T) string {
	t.Helper()
	return grow(t, t.TempDir())
}

// grow makes such a tree of a directory.
func grow(t *testing.T, root string) string {
	t.Helper()
	for name, text := range map[string]string{
		"etc/os-release": "ID=fedora\n", "etc/passwd": "root:x:0:0::/root:/bin/sh\n", "etc/group": "root:x:0:\n",
		"etc/selinux/config": "SELINUX=permissive\nSELINUXTYPE=targeted\n",
		contexts[1:]:         "/.* system_u:object_r:etc_t:s0\n",
		"usr/lib/systemd/system/multi-user.target": "[Unit]\n",
	} {
		if err := os.MkdirAll(filepath.Join(root, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"var/lib", "run", "proc", "tmp", "usr/bin"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// firstboot runs the command on a tree.
func firstboot(t *testing.T, root string, args ...string) (res host.Result, said string, exit int) {
	t.Helper()
	stdout, said, exit := run(t, program("machine-config-daemon"),
		append([]string{"firstboot", "--root=" + root, "-o", "json"}, args...)...)
	if stdout != "" {
		if err := errors.Join(schemas.Check([]byte(stdout)), json.Unmarshal([]byte(stdout), &res)); err != nil {
			t.Fatalf("%v: %s", err, stdout)
		}
	}
	return res, said, exit
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// The real Ignition fetches what the real server serves, says by itself what it reads, and writes it; after that
// nothing is left to do.
func TestWhatIgnitionMadeOfTheServersAnswerIsTakenOverAsItIs(t *testing.T) {
	ignition := needIgnition(t)
	s := serve(t, "rendered-worker-a", `{"config":`+example+`}`)
	root := tree(t)
	s.provision(t, ignition, root)

	for path, want := range map[string]string{
		"/etc/chrony.conf": "server ntp.example.com", "/var/lib/example/secret": "secret",
	} {
		if got, err := os.ReadFile(root + path); err != nil || string(got) != want {
			t.Fatalf("Ignition made %s %q, %v", path, got, err)
		}
	}
	if !exists(root + api.EncapsulatedPath) {
		t.Fatal("the machine was not given its configuration")
	}
	res, said, exit := firstboot(t, root)
	if exit != 0 || len(res.Plan.Changes) != 0 || res.Reboot != host.RebootNone {
		t.Fatalf("exit %d, %+v: %s", exit, res, said)
	}
	if res.Status.State != transaction.Done || res.Status.Config.Committed != "rendered-worker-a" {
		t.Errorf("the host says %+v", res.Status)
	}
	for _, path := range []string{api.EncapsulatedPath, api.EncapsulatedPath + ".bak", "/etc/systemd/system-preset/20-ignition.preset"} {
		if exists(root + path) {
			t.Errorf("%s is still there", path)
		}
	}
	if stdout, said, exit := run(t, program("machine-config-daemon"), "verify", "--root="+root); exit != 0 {
		t.Errorf("verify: exit %d: %s%s", exit, stdout, said)
	}
	if _, said, exit := firstboot(t, root); exit != 0 {
		t.Errorf("a second time: exit %d: %s", exit, said)
	}
}

func TestWhatDiffersIsMadeAndTheFileIsKeptByAnotherName(t *testing.T) {
	ignition := needIgnition(t)
	s := serve(t, "rendered-worker-a", `{"config":`+example+`}`)
	root := tree(t)
	s.provision(t, ignition, root)
	if err := os.WriteFile(root+"/etc/chrony.conf", []byte("another"), 0o644); err != nil {
		t.Fatal(err)
	}
	res, said, exit := firstboot(t, root)
	if exit != 0 || len(res.Plan.Changes) != 1 || res.Plan.Changes[0].Path != "/etc/chrony.conf" {
		t.Fatalf("exit %d, %+v: %s", exit, res.Plan, said)
	}
	if text, err := os.ReadFile(root + "/etc/chrony.conf"); err != nil || string(text) != "server ntp.example.com" {
		t.Errorf("%s, %v", text, err)
	}
	if exists(root+api.EncapsulatedPath) || !exists(root+api.EncapsulatedPath+".bak") {
		t.Error("the file is not kept by its other name")
	}
}

// put makes a machine as Ignition leaves it, without Ignition.
func put(t *testing.T, root, document string) {
	t.Helper()
	if err := os.WriteFile(root+api.EncapsulatedPath, []byte(document), 0o600); err != nil {
		t.Fatal(err)
	}
}

func document(name, spec string) string {
	return `{"apiVersion":"machineconfiguration.openshift.io/v1","kind":"MachineConfig","metadata":{"name":"` + name +
		`"},"spec":` + spec + `}`
}

func TestWhatATreeCannotBeGivenLeavesTheFileAndSaysSo(t *testing.T) {
	root := tree(t)
	put(t, root, document("rendered-worker-a", `{"kernelArguments":["a=1"],"config":{"ignition":{"version":"3.5.0"}}}`))
	for range 2 {
		_, said, exit := firstboot(t, root)
		if exit != 3 || !strings.Contains(said, "kernelArguments") {
			t.Errorf("exit %d: %s", exit, said)
		}
		if !exists(root + api.EncapsulatedPath) {
			t.Fatal("the file is gone and the machine is not what it says")
		}
	}
	if _, said, exit := firstboot(t, root, "--skip-os"); exit != 0 || exists(root+api.EncapsulatedPath) {
		t.Errorf("--skip-os: exit %d: %s", exit, said)
	}
}

func TestKernelArgumentsThatIgnitionWasTooOldForAreNotForgotten(t *testing.T) {
	root := tree(t)
	put(t, root, `{"kind":"MachineConfig","metadata":{"name":"rendered-worker-a","annotations":{"`+api.LeftArguments+
		`":"[\"a=1\"]"}},"spec":{"config":{"ignition":{"version":"3.5.0"},"kernelArguments":{"shouldExist":["a=1"]}}}}`)
	if _, said, exit := firstboot(t, root); exit != 3 || !strings.Contains(said, "kernelArguments") {
		t.Errorf("exit %d: %s", exit, said)
	}
	res, said, exit := firstboot(t, root, "--skip-os")
	if exit != 0 {
		t.Fatalf("--skip-os: exit %d: %s", exit, said)
	}
	// What the machine is on is the configuration of that name, with nothing of how this machine came to it.
	stored, err := filepath.Glob(root + "/var/lib/machine-config-daemon/configs/*")
	if err != nil || len(stored) != 1 || res.Status.Config.Committed != "rendered-worker-a" {
		t.Fatalf("%v, %v, %+v", stored, err, res.Status)
	}
	if text, err := os.ReadFile(stored[0]); err != nil || strings.Contains(string(text), api.LeftArguments) {
		t.Errorf("%v: %s", err, text)
	}
}

func TestAMachineThatWentOnDoesNotGoBackToWhatItWasMadeFrom(t *testing.T) {
	root := tree(t)
	newer := filepath.Join(t.TempDir(), "newer.json")
	file := func(text string) string {
		return `{"config":{"ignition":{"version":"3.5.0"},"storage":{"files":[{"path":"/etc/a","contents":{"source":"data:,` +
			text + `"}}]}}}`
	}
	if err := os.WriteFile(newer, []byte(document("rendered-worker-b", file("new"))), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, said, exit := run(t, program("machine-config-daemon"), "apply", "--root="+root, "--config="+newer); exit != 0 {
		t.Fatal(said)
	}
	put(t, root, document("rendered-worker-a", file("old")))
	res, said, exit := firstboot(t, root)
	if exit != 0 || res.Status.Config.Committed != "rendered-worker-b" || exists(root+api.EncapsulatedPath) {
		t.Errorf("exit %d, %+v: %s", exit, res.Status, said)
	}
	if text, err := os.ReadFile(root + "/etc/a"); err != nil || string(text) != "new" {
		t.Errorf("%s, %v", text, err)
	}
}

func TestFirstbootSaysWhatIsWrongWithTheFile(t *testing.T) {
	for name, text := range map[string]string{
		"nothing": "", "cut short": `{"kind":"MachineConfig"`, "no name": document("", `{}`),
		"spec.config": document("a", `{"config":{"ignition":{"version":"9.9.9"}}}`),
	} {
		root := tree(t)
		put(t, root, text)
		if _, said, exit := firstboot(t, root); exit != 1 || !strings.HasPrefix(said, "error: ") ||
			!strings.Contains(said, api.EncapsulatedPath) {
			t.Errorf("%s: exit %d: %s", name, exit, said)
		}
		if !exists(root + api.EncapsulatedPath) {
			t.Errorf("%s: the file is gone", name)
		}
	}
	if _, said, exit := firstboot(t, tree(t)); exit != 0 {
		t.Errorf("without the file: exit %d: %s", exit, said)
	}
	if _, _, exit := firstboot(t, tree(t), "--machineconfig-file=relative"); exit != 2 {
		t.Errorf("a relative file: exit %d", exit)
	}
}

// A kill at each point of the way, and the command again, ends where an undisturbed one does.
func TestACutAtAnyPointIsMadeGoodByTheNextFirstboot(t *testing.T) {
	for n := 1; ; n++ {
		root := tree(t)
		put(t, root, document("rendered-worker-a", `{"config":`+example+`}`))
		cmd := command(t, faultyAgent(), "firstboot", "--root="+root)
		cmd.Env = append(os.Environ(), "NODEREFIT_FAULT=firstboot kill "+itoa(n))
		out, err := cmd.CombinedOutput()
		killed := cmd.ProcessState.ExitCode() == -1
		if err != nil && !killed {
			t.Fatalf("point %d: %v: %s", n, err, out)
		}
		if !killed && n < 5 {
			t.Fatalf("only %d points are passed: the cuts test nothing", n-1)
		}
		if killed {
			if !exists(root+api.EncapsulatedPath) && !exists(root+api.EncapsulatedPath+".bak") {
				t.Fatalf("point %d: what was to be done is forgotten: %s", n, out)
			}
			if res, said, exit := firstboot(t, root); exit != 0 || res.Status.Config.Committed != "rendered-worker-a" ||
				res.Status.Config.Pending != "" || exists(root+api.EncapsulatedPath) {
				t.Fatalf("point %d: exit %d, %+v: %s", n, exit, res.Status, said)
			}
			if _, said, exit := run(t, program("machine-config-daemon"), "verify", "--root="+root); exit != 0 {
				t.Fatalf("point %d: %s", n, said)
			}
			continue
		}
		if entries, err := os.ReadDir(root + "/etc/example.d"); err != nil || len(entries) != 0 {
			t.Error(slices.Collect(names(entries)), err)
		}
		t.Logf("%d points", n-1)
		return
	}
}

// However little room there is: the machine has all of its configuration or none of it, says what is missing, and is
// completed once there is enough.
func TestADiskThatIsFullIsSaidAndMadeGoodByTheNextFirstboot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("to mount a file system takes root")
	}
	for what, fill := range map[string]func(dir string, free *unix.Statfs_t, spare uint64) error{
		"bytes": func(dir string, free *unix.Statfs_t, spare uint64) error {
			return os.WriteFile(filepath.Join(dir, "f"), make([]byte, (free.Bfree-spare)*uint64(free.Bsize)), 0o600)
		},
		"inodes": func(dir string, free *unix.Statfs_t, spare uint64) error {
			var errs []error
			for i := range free.Ffree - spare {
				errs = append(errs, os.Mkdir(filepath.Join(dir, itoa(int(i))), 0o700))
			}
			return errors.Join(errs...)
		},
	} {
		t.Run(what, func(t *testing.T) {
			full := 0
			for spare := uint64(0); wasFull(t, spare, fill); spare = max(1, spare*2) {
				full++
			}
			if full < 3 {
				t.Errorf("it was full only %d times: that tests nothing", full)
			}
			t.Logf("full %d times", full)
		})
	}
}

// wasFull completes a machine that has so few pages or inodes left, and says whether they were too few.
func wasFull(t *testing.T, spare uint64, fill func(string, *unix.Statfs_t, uint64) error) bool {
	t.Helper()
	root := t.TempDir()
	if err := unix.Mount("tmpfs", root, "tmpfs", 0, "size=2m,nr_inodes=256"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(root, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	put(t, grow(t, root), document("rendered-worker-a", `{"config":`+example+`}`))
	filler := filepath.Join(root, "filler")
	var free unix.Statfs_t
	if err := errors.Join(os.Mkdir(filler, 0o700), unix.Statfs(root, &free), fill(filler, &free, spare)); err != nil {
		t.Fatal(err)
	}

	_, said, exit := firstboot(t, root)
	full := exit != 0
	if full {
		if exit != 1 || !strings.Contains(said, "error: ") || !strings.Contains(said, unix.ENOSPC.Error()) {
			t.Errorf("%d spare: exit %d: %s", spare, exit, said)
		}
		for _, path := range []string{"/etc/chrony.conf", "/var/lib/example", "/etc/example.d",
			"/etc/systemd/system/example.service"} {
			if exists(root + path) {
				t.Errorf("%d spare: %s is there: %s", spare, path, said)
			}
		}
		if err := os.RemoveAll(filler); err != nil {
			t.Fatal(err)
		}
		if !exists(root + api.EncapsulatedPath) {
			t.Fatalf("%d spare: what was to be done is forgotten: %s", spare, said)
		}
		if _, said, exit = firstboot(t, root); exit != 0 {
			t.Fatalf("%d spare, and then enough: exit %d: %s", spare, exit, said)
		}
	}
	if exists(root+api.EncapsulatedPath) || !exists(root+api.EncapsulatedPath+".bak") {
		t.Errorf("%d spare: the file is not kept by its other name", spare)
	}
	if stdout, said, exit := run(t, program("machine-config-daemon"), "verify", "--root="+root); exit != 0 ||
		!strings.Contains(stdout+said, "rendered-worker-a") {
		t.Errorf("%d spare: verify: exit %d: %s%s", spare, exit, stdout, said)
	}
	return full
}
