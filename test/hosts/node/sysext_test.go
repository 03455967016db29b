// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/erofs/go-erofs"
	"sigs.k8s.io/yaml"

	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/transaction"
)

// extendedPolicy lets a host take another extension without a boot.
const extendedPolicy = `apiVersion: operator.openshift.io/v1
kind: MachineConfiguration
metadata: {name: cluster}
spec:
  nodeDisruptionPolicy:
    files:
    - path: /etc/extensions
      actions: [{type: Restart, restart: {serviceName: kubelet.service}}]
`

// kubeletFrom returns the example of the docs, with its kubelet in an extension in dir, for a version of the lab's OS.
func kubeletFrom(t *testing.T, s *shelf, dir, program, version string) string {
	t.Helper()
	example, err := os.ReadFile("../../../docs/examples/system-extensions/60-worker-kubelet.yaml")
	if err != nil {
		t.Fatal(err)
	}
	name := strings.Fields(program)[0]
	text := []byte("#!/bin/sh\n# kubelet " + program + "\n")
	s.put(name, text)
	doc := string(example)
	for _, change := range [][2]string{
		{"/etc/extensions", dir}, {"https://dl.k8s.io/release/VERSION/bin/linux/amd64/kubelet", s.URL + "/" + name},
		{"HASH", fmt.Sprintf("%x", sha512.Sum512(text))}, {"ID=fedora%0AVERSION_ID=42", "ID=debian%0AVERSION_ID=" + version},
		{"60-worker-kubelet", name}, {"Restart=always", "Restart=no"}, // a kubelet that has failed is waited for no longer
	} {
		if !strings.Contains(doc, change[0]) {
			t.Fatalf("the example has no %s", change[0])
		}
		doc = strings.ReplaceAll(doc, change[0], change[1])
	}
	out, err := yaml.YAMLToJSON([]byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

const runs = "\nexec sleep infinity"

func TestTheKubeletComesFromAnExtensionOfTheSystem(t *testing.T) {
	ctx, n := start(t)
	s := newShelf(t, n)
	extended := func(state transaction.State, config, program string) {
		t.Helper()
		if st, err := n.WaitState(ctx, transaction.Done, transaction.RolledBack); err != nil || st.State != state ||
			st.Config.Committed != config {
			t.Fatalf("%+v %v", st, err)
		}
		if _, err := n.WaitRunning(ctx); err != nil {
			t.Fatal(err)
		}
		if out, exit := shell(ctx, t, n, "systemctl is-active kubelet.service && sed -n 2p /usr/bin/kubelet && "+
			"systemd-sysext status --json=short"); exit != 0 || !strings.Contains(out, "# kubelet "+program+"\n") ||
			!strings.Contains(out, `"kubelet"`) {
			t.Fatalf("%d: %s", exit, out)
		}
		verified(ctx, t, n)
	}
	kubelet := func(dir, program, version string) []byte {
		t.Helper()
		return []byte(kubeletFrom(t, s, dir, program, version))
	}
	const etc = "/etc/extensions"

	// An extension for another OS is refused before anything is drained.
	refused(ctx, t, n, kubelet(etc, "one"+runs, "12"), host.ExitUnreconcilable,
		"/etc/extensions/kubelet", "says VERSION_ID=12, and the OS that is to boot has VERSION_ID=13")

	// The first boot merges the extension before the kubelet starts, and so does the boot of the next version.
	boots := n.Boots()
	apply(ctx, t, n, kubelet(etc, "one"+runs, "13"))
	extended(transaction.Done, "one", "one")
	apply(ctx, t, n, kubelet(etc, "two"+runs, "13"))
	extended(transaction.Done, "two", "two")
	if n.Boots() != boots+2 {
		t.Errorf("%d boots", n.Boots()-boots)
	}

	// A version that does not come up goes back, together with everything else.
	apply(ctx, t, n, kubelet(etc, "bad\nexit 1", "13"))
	extended(transaction.RolledBack, "two", "two")
	if n.Boots() != boots+4 {
		t.Errorf("%d boots", n.Boots()-boots)
	}

	// Where a policy lets it, another version is merged on the running system, and goes back there.
	policy, err := n.Document("extended.yaml", []byte(extendedPolicy))
	if err != nil {
		t.Fatal(err)
	}
	boots = n.Boots()
	res := apply(ctx, t, n, kubelet(etc, "three"+runs, "13"), "--policy", policy)
	extended(transaction.Done, "three", "three")
	if len(res.Acted) < 2 || res.Acted[0].Service != "systemd-sysext.service" || n.Boots() != boots {
		t.Errorf("%+v, %d boots", res.Acted, n.Boots()-boots)
	}
	if _, exit, err := n.Apply(ctx, kubelet(etc, "worse\nexit 1", "13"), "--policy", policy); exit != host.ExitFailed {
		t.Errorf("exit %d, %v", exit, err)
	}
	extended(transaction.RolledBack, "three", "three")
	if n.Boots() != boots {
		t.Errorf("%d boots", n.Boots()-boots)
	}

	// Below /var, which deployments share, recovery brings the files of the deployment that boots.
	apply(ctx, t, n, kubelet("/var/lib/extensions", "four"+runs, "13"))
	extended(transaction.Done, "four", "four")
	apply(ctx, t, n, kubelet("/var/lib/extensions", "dead\nexit 1", "13"))
	extended(transaction.RolledBack, "four", "four")

	// Without an extension, the kubelet of the image is back.
	apply(ctx, t, n, mc("none", bootFile("none")))
	settled(ctx, t, n, "none")
	if out, exit := shell(ctx, t, n, "systemctl is-active kubelet.service && test ! -e /usr/bin/kubelet && "+
		"test ! -e /etc/systemd/system/sysinit.target.wants/systemd-sysext.service"); exit != 0 {
		t.Errorf("%d: %s", exit, out)
	}
}

// settingsPolicy lets a host take other settings without a boot.
const settingsPolicy = `apiVersion: operator.openshift.io/v1
kind: MachineConfiguration
metadata: {name: cluster}
spec:
  nodeDisruptionPolicy:
    files:
    - path: /var/lib/confexts
      actions: [{type: None}]
    - path: /etc/plain.conf
      actions: [{type: None}]
`

// TestExtensionsOfEtcAreSwitchedAndTakenBack has an extension of /etc over the /etc that the agent writes to.
func TestExtensionsOfEtcAreSwitchedAndTakenBack(t *testing.T) {
	ctx, n := start(t)
	extensionsOfEtc(ctx, t, n)
}

func TestExtensionsOfEtcOnAHostWithoutOSTree(t *testing.T) {
	if testing.Short() {
		t.Skip("the same as on a host with ostree, by another road")
	}
	ctx, n := startAs(t, plain, packages)
	extensionsOfEtc(ctx, t, n)
}

// erofsOf returns a raw image with these files.
func erofsOf(t *testing.T, files map[string]string) string {
	t.Helper()
	of := fstest.MapFS{}
	for name, text := range files {
		of[name] = &fstest.MapFile{Data: []byte(text), Mode: 0o644}
	}
	out, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	w := erofs.Create(out)
	if err := errors.Join(w.CopyFrom(of), w.Close()); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func extensionsOfEtc(ctx context.Context, t *testing.T, n *Node) {
	t.Helper()
	const dir = "/var/lib/confexts/site"
	site := func(name, version string, more ...string) []byte {
		files := []any{fileAt("/etc/plain.conf", name), fileAt(dir+"/etc/site.conf", name),
			fileAt(dir+"/etc/extension-release.d/extension-release.site", "ID=debian\nVERSION_ID="+version+"\n")}
		for _, path := range more {
			files = append(files, fileAt(path, name))
		}
		units := []any{}
		if name == "bad" {
			units = append(units, map[string]any{"name": "bad.service", "enabled": true,
				"contents": "[Service]\nType=oneshot\nExecStart=/bin/false\n[Install]\nWantedBy=multi-user.target\n"})
		}
		spec, err := json.Marshal(map[string]any{"config": map[string]any{"ignition": map[string]any{"version": "3.2.0"},
			"storage": map[string]any{"files": files}, "systemd": map[string]any{"units": units}}})
		if err != nil {
			t.Fatal(err)
		}
		return mc(name, string(spec))
	}
	has := func(state transaction.State, config string) {
		t.Helper()
		if s, err := n.WaitState(ctx, transaction.Done, transaction.RolledBack); err != nil || s.State != state ||
			s.Config.Committed != config {
			t.Fatalf("%+v %v", s, err)
		}
		if _, err := n.WaitRunning(ctx); err != nil {
			t.Fatal(err)
		}
		if out, exit := shell(ctx, t, n, "cat /etc/site.conf /etc/plain.conf && ! touch /etc/x 2>/dev/null"); exit != 0 ||
			out != config+config {
			t.Fatalf("%d: %s", exit, out)
		}
		verified(ctx, t, n)
	}

	raw := erofsOf(t, map[string]string{"usr/lib/extension-release.d/extension-release.raw": "ID=fedora\nVERSION_ID=42\n"})
	refused(ctx, t, n, mc("raw", fmt.Sprintf(`{"config":{"ignition":{"version":"3.2.0"},"storage":{"files":[
 {"path":"/var/lib/extensions/raw.raw","contents":{"source":"data:;base64,%s"}}]}}}`, base64.StdEncoding.EncodeToString([]byte(raw)))),
		host.ExitUnreconcilable, "/var/lib/extensions/raw.raw", "says ID=fedora, and the OS that is to boot has ID=debian")
	refused(ctx, t, n, site("other", "12"), host.ExitUnreconcilable, dir, "says VERSION_ID=12, and the OS that is to boot")
	refused(ctx, t, n, site("hiding", "13", dir+"/etc/plain.conf"), host.ExitUnreconcilable,
		"/etc/plain.conf is in the extension and in the configuration")

	// The first extension takes a boot, whatever the policy says. Later ones do not, and neither do files below them.
	policy, err := n.Document("settings.yaml", []byte(settingsPolicy))
	if err != nil {
		t.Fatal(err)
	}
	if res := apply(ctx, t, n, site("one", "13"), "--policy", policy); res.Reboot != host.RebootStarted {
		t.Errorf("no boot: %+v", res)
	}
	has(transaction.Done, "one")
	boots := n.Boots()
	apply(ctx, t, n, site("two", "13"), "--policy", policy)
	has(transaction.Done, "two")
	if n.Boots() != boots {
		t.Errorf("%d boots", n.Boots()-boots)
	}
	apply(ctx, t, n, site("bad", "13"))
	has(transaction.RolledBack, "two")

	// Somebody's own change of the /etc below is drift, which a repair writes back and shows.
	if out, exit := shell(ctx, t, n, "systemd-confext unmerge && echo mine >/etc/plain.conf && systemd-confext merge"); exit != 0 {
		t.Fatalf("%d: %s", exit, out)
	}
	run(ctx, t, n, 0, "repair")
	has(transaction.RolledBack, "two")

	apply(ctx, t, n, mc("none", bootFile("none")))
	settled(ctx, t, n, "none")
	if out, exit := shell(ctx, t, n, "test ! -e /etc/site.conf && touch /etc/x && rm /etc/x"); exit != 0 {
		t.Errorf("%d: %s", exit, out)
	}
}
