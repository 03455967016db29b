// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// boot returns a context for one test and a host that runs.
func boot(t *testing.T, options Options) (context.Context, *Host) {
	t.Helper()
	base := Need(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	host, err := base.NewHost(ctx, "", options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := host.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := host.Start(ctx); err != nil {
		t.Fatal(err)
	}
	return ctx, host
}

func output(ctx context.Context, t *testing.T, host *Host, argv ...string) string {
	t.Helper()
	text, err := host.Output(ctx, argv...)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(text)
}

func TestHostBootsAsAnOSTreeHost(t *testing.T) {
	ctx, host := boot(t, Options{Name: "node", Hostname: "node-0"})
	for _, c := range []struct {
		what string
		argv []string
		want string
	}{
		{"system state", []string{"systemctl", "is-system-running"}, "running"},
		{"kubelet", []string{"systemctl", "is-active", "kubelet.service"}, "active"},
		{"kubelet's enablement", []string{"systemctl", "is-enabled", "kubelet.service"}, "enabled"},
		{"host name", []string{"hostname"}, "node-0"},
		{"version", []string{"cat", "/usr/lib/testos/version"}, "v1"},
		{"home", []string{"stat", "-c", "%U:%G %a", "/home/core"}, "core:core 700"},
		{"owner names", []string{"getent", "passwd", "_chrony"}, "_chrony:x:991:991::/var/lib/chrony:/usr/sbin/nologin"},
		{"/sysroot", []string{"findmnt", "-no", "VFS-OPTIONS", "/sysroot"}, "ro,relatime"},
		{"/boot", []string{"findmnt", "-no", "VFS-OPTIONS", "/boot"}, "ro,relatime"},
		{"/usr", []string{"findmnt", "-no", "VFS-OPTIONS", "/usr"}, "ro,relatime"},
		{"failed units", []string{"systemctl", "list-units", "--failed", "--no-legend"}, ""},
		{"interfaces", []string{"ls", "/sys/class/net"}, "lo"},
	} {
		if got := output(ctx, t, host, c.argv...); got != c.want {
			t.Errorf("%s is %q, want %q", c.what, got, c.want)
		}
	}
	if status := output(ctx, t, host, "ostree", "admin", "status"); !strings.HasPrefix(status, "* "+OS+" ") {
		t.Errorf("ostree does not say that it is booted:\n%s", status)
	}
	cmdline := output(ctx, t, host, "sh", "-c", "tr '\\0' ' ' </proc/1/cmdline")
	if !strings.Contains(cmdline, host.Kargs()) {
		t.Errorf("PID 1 has %q, the boot loader passed %q", cmdline, host.Kargs())
	}
	if _, err := host.Output(ctx, "touch", "/usr/x"); err == nil {
		t.Error("/usr can be written")
	}
}

func TestRebootBootsWhatSetDefaultChose(t *testing.T) {
	ctx, host := boot(t, Options{})
	first := host.BootedDeployment()
	output(ctx, t, host, "sh", "-c", "echo mine >/etc/mine.conf")
	output(ctx, t, host, "ostree", "admin", "deploy", "--os="+OS, "--not-as-default", `--karg-append=quoted="a b"`, RefV2)
	if err := host.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	if got := host.BootedDeployment(); got != first {
		t.Fatalf("booted %s although the default was %s", got, first)
	}
	output(ctx, t, host, "ostree", "admin", "set-default", "1")
	if err := host.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	if got := host.BootedDeployment(); got == first {
		t.Fatalf("booted %s again", got)
	}
	if got := output(ctx, t, host, "cat", "/usr/lib/testos/version", "/etc/mine.conf", "/etc/testos/new.conf"); got != "v2\nmine\nnew in v2" {
		t.Errorf("the second deployment has %q", got)
	}
	if !strings.HasSuffix(host.Kargs(), ` quoted="a b"`) {
		t.Errorf("the kernel arguments are %q", host.Kargs())
	}
	if got := host.Boots(); got != 3 {
		t.Errorf("%d boots, want 3", got)
	}
}

func TestBootLoaderThatCountsBootsTheEntryBeforeOnce(t *testing.T) {
	ctx, host := boot(t, Options{})
	first := host.BootedDeployment()
	output(ctx, t, host, "ostree", "admin", "deploy", "--os="+OS, RefV2)
	for _, before := range []bool{true, false} {
		if err := host.PowerCut(); err != nil {
			t.Fatal(err)
		}
		on := host.PowerOn
		if before {
			on = host.PowerOnFallback
		}
		boots := host.Boots()
		if err := errors.Join(on(), host.WaitBoot(ctx, boots+1)); err != nil {
			t.Fatal(err)
		}
		if got := host.BootedDeployment(); (got == first) != before {
			t.Errorf("it booted %s; the deployment before is %s: %t is wanted", got, first, before)
		}
	}
}

func TestPowerCutLeavesOldOrNew(t *testing.T) {
	for _, c := range []struct {
		name       string
		setDefault bool
		version    string
	}{
		{"before set-default", false, "v1"},
		{"after set-default", true, "v2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, host := boot(t, Options{})
			output(ctx, t, host, "ostree", "admin", "deploy", "--os="+OS, "--not-as-default", "--karg-append=cfg=2", RefV2)
			if c.setDefault {
				output(ctx, t, host, "ostree", "admin", "set-default", "1")
			}
			if err := host.PowerCut(); err != nil {
				t.Fatal(err)
			}
			if _, _, _, err := host.Exec(ctx, nil, "true"); !errors.Is(err, ErrOff) {
				t.Errorf("running something on a host that is off: %v", err)
			}
			text, err := os.ReadFile(host.HostPath("/usr/lib/testos/version"))
			if err != nil || strings.TrimSpace(string(text)) != c.version {
				t.Errorf("the disk's default is %q (%v), want %s", text, err, c.version)
			}
			if err := host.Start(ctx); err != nil {
				t.Fatal(err)
			}
			if got := output(ctx, t, host, "cat", "/usr/lib/testos/version"); got != c.version {
				t.Errorf("booted %s, want %s", got, c.version)
			}
			if got := strings.HasSuffix(host.Kargs(), " cfg=2"); got != c.setDefault {
				t.Errorf("booted with %q", host.Kargs())
			}
		})
	}
}

func TestExecGivesStreamsAndStatus(t *testing.T) {
	ctx, host := boot(t, Options{})
	stdout, stderr, exit, err := host.Exec(ctx, strings.NewReader("in"), "sh", "-c", "cat; echo bad >&2; exit 7")
	if string(stdout) != "in" || string(stderr) != "bad\n" || exit != 7 || err != nil {
		t.Errorf("got %q, %q, %d, %v", stdout, stderr, exit, err)
	}
	if got := output(ctx, t, host, "env"); strings.Contains(got, "GOPATH") || !strings.Contains(got, "HOME=/root") {
		t.Errorf("the environment is %q", got)
	}
	short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	if _, _, _, err := host.Exec(short, nil, "sleep", "4711"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a program that outlives its context: %v", err)
	}
	if left := output(ctx, t, host, "sh", "-c", "pgrep -f 'sleep 471[1]' || true"); left != "" {
		t.Errorf("the program is still there: %s", left)
	}
	if _, err := host.Output(ctx, "ostree", "pull", Remote, RefV3); err != nil {
		t.Error(err)
	}
	journal, err := host.Journal(ctx)
	if err != nil || !strings.Contains(journal, "Started kubelet.service") {
		t.Errorf("the journal has no kubelet (%v):\n%s", err, journal)
	}
}

// The clock, the modules and the devices of this machine are no host's to change.
func TestCommandsHaveWhatTheRootOfTheHostHas(t *testing.T) {
	ctx, host := boot(t, Options{Name: "caps"})
	sets := func(of string) map[string]string {
		found := map[string]string{}
		for line := range strings.Lines(output(ctx, t, host, "cat", of)) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
			if name == "CapPrm" || name == "CapEff" || name == "CapBnd" {
				found[name] = strings.TrimSpace(value)
			}
		}
		return found
	}
	root, own := sets("/proc/1/status"), sets("/proc/self/status")
	if len(root) != 3 || !maps.Equal(root, own) {
		t.Errorf("a command has %v, PID 1 %v", own, root)
	}
	effective, err := strconv.ParseUint(own["CapEff"], 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	for name, bit := range map[string]uint{"CAP_SYS_TIME": unix.CAP_SYS_TIME, "CAP_SYS_MODULE": unix.CAP_SYS_MODULE,
		"CAP_SYS_RAWIO": unix.CAP_SYS_RAWIO} {
		if effective&(1<<bit) != 0 {
			t.Errorf("a command has %s", name)
		}
	}
	if t.Failed() {
		return // the clock that is set now would be this machine's
	}
	_, stderr, exit, err := host.Exec(ctx, nil, "sh", "-c", `exec date -s "$(date +%FT%T.%N)"`)
	if err != nil || exit == 0 || !strings.Contains(string(stderr), "Operation not permitted") {
		t.Errorf("setting the clock to what it is: exit %d, %v: %s", exit, err, stderr)
	}
}

// ostree freezes the file system that /boot is on; that must never be this machine's own.
// systemd stops every process before it kills them at shutdown.
func TestStoppedProgramDoesNotKeepTheHostFromRebooting(t *testing.T) {
	ctx, host := boot(t, Options{Name: "stopped"})
	ended := make(chan int)
	go func() {
		_, _, exit, err := host.Exec(ctx, nil, "sh", "-c", "kill -STOP $$; exec sleep 60")
		if err != nil {
			t.Error(err)
		}
		ended <- exit
	}()
	for {
		state, err := host.Output(ctx, "sh", "-c", "cat /proc/[0-9]*/stat | grep -c ') T ' || true")
		if err != nil {
			t.Fatal(err)
		}
		if strings.TrimSpace(state) == "1" {
			break
		}
	}
	if err := host.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	if exit := <-ended; exit != -1 {
		t.Errorf("exit status of a killed program: %d", exit)
	}
}

func TestFreezingBootDoesNotReachThisMachine(t *testing.T) {
	ctx, host := boot(t, Options{})
	_, stderr, _, err := host.Exec(ctx, nil, "fsfreeze", "--freeze", "/boot")
	if err != nil || !bytes.Contains(stderr, []byte("not supported")) {
		t.Errorf("freezing /boot: %v: %s", err, stderr)
	}
}

func TestHostsDoNotDisturbEachOther(t *testing.T) {
	ctx, one := boot(t, Options{Name: "one"})
	_, two := boot(t, Options{Name: "two", WritableSysroot: true, HostNetwork: true})
	output(ctx, t, one, "sh", "-c", "echo one >/etc/who; systemctl stop crio.service")
	if err := one.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	if err := one.PowerCut(); err != nil {
		t.Fatal(err)
	}
	if got := output(ctx, t, two, "systemctl", "is-active", "crio.service"); got != "active" {
		t.Errorf("crio.service on the other host is %s", got)
	}
	if _, err := os.Stat(two.HostPath("/etc/who")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the other host has the first one's file: %v", err)
	}
	if got := output(ctx, t, two, "findmnt", "-no", "VFS-OPTIONS", "/sysroot"); !strings.HasPrefix(got, "rw") {
		t.Errorf("/sysroot is %s", got)
	}
	if a, b := output(ctx, t, two, "cat", "/etc/machine-id"), read(t, one.HostPath("/etc/machine-id")); a == b {
		t.Errorf("both have the machine id %s", a)
	}
}

func TestPowerOffIsNotAFailure(t *testing.T) {
	ctx, host := boot(t, Options{})
	output(ctx, t, host, "systemctl", "poweroff", "--no-block")
	if err := host.WaitOff(ctx); err != nil {
		t.Fatal(err)
	}
	if host.failure != nil {
		t.Error(host.failure)
	}
	if err := host.WaitBoot(ctx, 2); !errors.Is(err, ErrOff) {
		t.Errorf("waiting for a boot of a host that is off: %v", err)
	}
}

// A test that is killed can't clean up. What it left must die by itself, and be removed by whoever prepares next.
func TestKilledProcessLeavesNothing(t *testing.T) {
	const key = "LAB_TEST_DIE"
	if cache := os.Getenv(key); cache != "" {
		_, host := boot(t, Options{Name: "orphan"})
		if err := os.WriteFile(cache, []byte(host.dir+"\n"+host.machine.cgroup), 0o600); err != nil {
			t.Fatal(err)
		}
		select {}
	}
	base := Need(t)
	note := filepath.Join(t.TempDir(), "note")
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilledProcessLeavesNothing$")
	cmd.Env = append(os.Environ(), key+"="+note)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var places []string
	for deadline := time.Now().Add(30 * time.Second); len(places) < 2; time.Sleep(poll) {
		text, _ := os.ReadFile(note)
		places = strings.Fields(string(text))
		if time.Now().After(deadline) {
			t.Fatal("the other process did not boot a host")
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	dead := registered{cgroup: places[1]}
	if err := dead.waitEmpty(); err != nil {
		t.Error(err)
	}
	if _, err := Prepare(t.Context(), base.cache, t.Output()); err != nil {
		t.Fatal(err)
	}
	for _, place := range places {
		if _, err := os.Stat(place); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is still there: %v", place, err)
		}
	}
}

func TestCloseLeavesNothing(t *testing.T) {
	_, host := boot(t, Options{})
	if err := host.Close(); err != nil {
		t.Fatal(err)
	}
	for _, place := range []string{host.dir, host.machine.cgroup, host.machine.record} {
		if _, err := os.Stat(place); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is still there: %v", place, err)
		}
	}
	mounts := read(t, "/proc/self/mountinfo")
	if strings.Contains(mounts, host.dir) {
		t.Error("something of it is still mounted")
	}
}

func TestSplitOptionsKeepsTheLine(t *testing.T) {
	for _, c := range []struct {
		line string
		want []string
	}{
		{"a b=c", []string{"a", "b=c"}},
		{`a="b c" d`, []string{`a="b c"`, "d"}},
		{"  a \t b ", []string{"a", "b"}},
		{`a=b"c d`, []string{`a=b"c d`}},
		{"", nil},
	} {
		if got := splitOptions(c.line); !slices.Equal(got, c.want) {
			t.Errorf("%q gives %q, want %q", c.line, got, c.want)
		}
	}
}

func TestDefaultEntryIsTheHighestVersion(t *testing.T) {
	sysroot := t.TempDir()
	entries := filepath.Join(sysroot, "boot/loader/entries")
	deployment := filepath.Join(sysroot, "ostree/deploy/testos/deploy")
	for _, dir := range []string{entries, filepath.Join(sysroot, "ostree/boot.1.1/testos/abc")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("boot.1.1", filepath.Join(sysroot, "ostree/boot.1")); err != nil {
		t.Fatal(err)
	}
	if _, err := DefaultEntry(sysroot); err == nil {
		t.Error("a disk without entries boots")
	}
	for i, version := range []string{"9", "10"} {
		name := "c" + version + ".0"
		if err := errors.Join(
			os.MkdirAll(filepath.Join(deployment, name), 0o755),
			os.Symlink("../../../deploy/testos/deploy/"+name, filepath.Join(sysroot, "ostree/boot.1.1/testos/abc", version)),
			os.WriteFile(filepath.Join(entries, "ostree-"+string(rune('9'-i))+".conf"),
				[]byte("title x\nversion "+version+"\noptions rw ostree=/ostree/boot.1/testos/abc/"+version+"\n"), 0o600),
		); err != nil {
			t.Fatal(err)
		}
	}
	entry, err := DefaultEntry(sysroot)
	if err != nil {
		t.Fatal(err)
	}
	want := Entry{"rw ostree=/ostree/boot.1/testos/abc/10", "testos/c10.0", "ostree/deploy/testos/deploy/c10.0"}
	if entry != want {
		t.Errorf("got %+v, want %+v", entry, want)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}
