// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/transaction"
)

// extensionDir is where the extensions of these tests are.
const extensionDir = "/etc/extensions/"

// extensionTree makes a directory with the /usr of an extension: a program that says which version it is, and the OS that
// the extension is for.
func extensionTree(t *testing.T, name, version, osVersion string) string {
	t.Helper()
	dir := t.TempDir()
	for file, text := range map[string]string{
		"usr/bin/" + name: "#!/bin/sh\necho " + version + "\n",
		"usr/lib/extension-release.d/extension-release." + name: "ID=debian\nVERSION_ID=" + osVersion + "\n",
	} {
		at := filepath.Join(dir, file)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// tool runs a program of this machine, and returns its standard output.
func tool(t *testing.T, stdin io.Reader, name string, args ...string) string {
	t.Helper()
	program, err := find(name)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, args...)
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = stdin, &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %v: %v: %s%s", name, args, err, out, stderr.Bytes())
	}
	return string(out)
}

func readFile(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// diskExtension makes a disk image as systemd-repart does: a partition for /usr, and one with the hashes of it. It returns
// the image and the hash over all hashes.
func diskExtension(t *testing.T, name, version, osVersion string) (image []byte, hash string) {
	t.Helper()
	dir := t.TempDir()
	files, hashes, disk := filepath.Join(dir, "files"), filepath.Join(dir, "hashes"), filepath.Join(dir, "disk")
	tool(t, nil, "mkfs.erofs", files, filepath.Join(extensionTree(t, name, version, osVersion), "usr"))
	for line := range strings.Lines(tool(t, nil, "veritysetup", "format", files, hashes)) {
		if value, is := strings.CutPrefix(line, "Root hash:"); is {
			hash = strings.TrimSpace(value)
		}
	}
	if len(hash) != 64 {
		t.Fatalf("veritysetup says no hash: %q", hash)
	}
	uuid := func(of string) string {
		return of[:8] + "-" + of[8:12] + "-" + of[12:16] + "-" + of[16:20] + "-" + of[20:]
	}
	const sector, first = 512, 64
	parts := [][]byte{readFile(t, files), readFile(t, hashes)}
	second := first + (len(parts[0])+sector-1)/sector
	image = make([]byte, (second+(len(parts[1])+sector-1)/sector+64)*sector)
	if err := os.WriteFile(disk, image, 0o600); err != nil {
		t.Fatal(err)
	}
	tool(t, strings.NewReader(fmt.Sprintf("label: gpt\nfirst-lba: %d\n"+
		"start=%d, size=%d, type=8484680c-9521-48c6-9c11-b0720656f69e, uuid=%s\n"+
		"start=%d, size=%d, type=77ff5f63-e7b6-4633-acf4-1565b864c0e6, uuid=%s\n",
		first, first, second-first, uuid(hash[:32]), second, len(parts[1])/sector, uuid(hash[32:]))), "sfdisk", "-q", disk)
	image = readFile(t, disk)
	copy(image[first*sector:], parts[0])
	copy(image[second*sector:], parts[1])
	return image, hash
}

// squashedExtension makes an image as mksquashfs does without being told anything.
func squashedExtension(t *testing.T, name, version, osVersion string) []byte {
	t.Helper()
	file := filepath.Join(t.TempDir(), "image")
	tool(t, nil, "mksquashfs", extensionTree(t, name, version, osVersion), file, "-all-root", "-quiet", "-no-progress")
	return readFile(t, file)
}

// rawDocument is a configuration with these files. Its kubelet writes down what it sees of the extensions when it starts,
// and does not start where one of their programs fails.
func rawDocument(t *testing.T, name string, files map[string][]byte) []byte {
	t.Helper()
	const dropin = `[Service]
ExecStartPre=/bin/sh -ec 'if [ -e /usr/bin/disk ]; then disk; squashed; else echo nothing; fi >/run/kubelet-saw'
`
	var list []any
	for _, path := range slices.Sorted(maps.Keys(files)) {
		list = append(list, map[string]any{"path": path, "mode": 0o644, "contents": map[string]any{
			"source": "data:;base64," + base64.StdEncoding.EncodeToString(files[path])}})
	}
	text, err := json.Marshal(map[string]any{"apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig",
		"metadata": map[string]any{"name": name}, "spec": map[string]any{"config": map[string]any{
			"ignition": map[string]any{"version": "3.2.0"}, "storage": map[string]any{"files": list},
			"systemd": map[string]any{"units": []any{map[string]any{"name": "kubelet.service", "dropins": []any{
				map[string]any{"name": "10-extensions.conf", "contents": dropin}}}}}}}})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// livePolicy lets a machine take other extensions without a boot.
const livePolicy = `apiVersion: operator.openshift.io/v1
kind: MachineConfiguration
metadata: {name: cluster}
spec:
  nodeDisruptionPolicy:
    files:
    - path: /etc/extensions
      actions: [{type: Restart, restart: {serviceName: kubelet.service}}]
`

// rawFiles are the files of two images with one version, for a version of Debian, and the hash of the first one.
func rawFiles(t *testing.T, version, osVersion string) (files map[string][]byte, hash string) {
	t.Helper()
	disk, hash := diskExtension(t, "disk", version, osVersion)
	return map[string][]byte{extensionDir + "disk.raw": disk, extensionDir + "disk.usrhash": []byte(hash + "\n"),
		extensionDir + "squashed.raw": squashedExtension(t, "squashed", version, osVersion)}, hash
}

// TestRawExtensionsAreMergedAndTakenBack brings two images: of a disk with verity, and of squashfs. The kernel of a virtual
// machine has what systemd merges them with.
func TestRawExtensionsAreMergedAndTakenBack(t *testing.T) {
	ctx := context.Background()
	h := newHost(ctx, t, "raw-extensions", packages)
	// verity is the hash of the disk that is mounted. The kernel may remove the device of the former disk later.
	merged := func(config string, state transaction.State, says, verity string) {
		t.Helper()
		s, err := h.settled(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if s.Config.Committed != config || s.State != state {
			t.Fatalf("on %s, %s: %s; want %s, %s", s.Config.Committed, s.State, s.Reason, config, state)
		}
		said := mustOutput(ctx, t, h.Machine, "sh", "-c", `systemctl is-active kubelet.service; cat /run/kubelet-saw
cd /etc/extensions && cat disk.usrhash /usr/.systemd-sysext/extensions; ls -d /usr/bin/squashed; true`)
		if said != "active\n"+says {
			t.Fatalf("on %s: %q, not %q", config, said, says)
		}
		names := mustOutput(ctx, t, h.Machine, "sh", "-c", "cat /sys/block/dm-*/dm/name; true")
		if verity != "" && !slices.Contains(strings.Fields(names), verity+"-verity") {
			t.Errorf("on %s, verity is on %q, not on %s", config, names, verity)
		}
		mustOutput(ctx, t, h.Machine, agent, "verify")
		t.Logf("on %s", config)
	}
	has := func(version, hash string) string {
		return fmt.Sprintf("%[1]s\n%[1]s\n%[2]s\ndisk\nsquashed\n/usr/bin/squashed", version, hash)
	}

	// What does not fit is refused before anything is drained.
	one, first := rawFiles(t, "one", "13")
	other, _ := rawFiles(t, "other", "12")
	mixed := maps.Clone(one)
	mixed[extensionDir+"disk.raw"] = other[extensionDir+"disk.raw"]
	for says, files := range map[string]map[string][]byte{
		"/etc/extensions/disk.raw: usr/lib/extension-release.d/extension-release.disk says VERSION_ID=12":         other,
		"/etc/extensions/squashed.raw: usr/lib/extension-release.d/extension-release.squashed says VERSION_ID=12": other,
		"/etc/extensions/disk.usrhash is not the hash of a partition for /usr in the image":                       mixed,
	} {
		exit, said, err := h.try(ctx, rawDocument(t, "refused", files), ignore)
		if err != nil || exit != host.ExitUnreconcilable || !strings.Contains(said, says) {
			t.Errorf("exit %d, %v, does not say %q: %s", exit, err, says, said)
		}
	}
	t.Log("others are refused")

	// They are merged in the first boot, before the kubelet starts.
	h.updateBy(ctx, "one", rawDocument(t, "one", one), "--verdict-timeout=20m")
	merged("one", transaction.Done, has("one", first), first)
	boots := h.Boots()

	// Where a policy lets it, others are merged on the running machine, and taken back where they break the kubelet.
	const policy = "/var/tmp/policy.yaml"
	if err := h.Put(ctx, policy, []byte(livePolicy), 0o600); err != nil {
		t.Fatal(err)
	}
	live := func(name string, exit int, files map[string][]byte) {
		t.Helper()
		got, said, err := h.try(ctx, rawDocument(t, name, files), ignore, "--policy", policy)
		if err != nil || got != exit {
			t.Fatalf("%s: exit %d, %v: %s", name, got, err, said)
		}
	}
	two, second := rawFiles(t, "two", "13")
	live("two", 0, two)
	merged("two", transaction.Done, has("two", second), second)
	bad, _ := rawFiles(t, "bad; exit 1", "13")
	live("bad", host.ExitFailed, bad)
	merged("two", transaction.RolledBack, has("two", second), second)
	live("none", 0, nil)
	merged("none", transaction.Done, "nothing", "")
	if h.Boots() != boots {
		t.Errorf("%d boots", h.Boots()-boots)
	}
}
