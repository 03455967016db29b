// SPDX-License-Identifier: Apache-2.0

package osupdate

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/noderefit/noderefit/test/hosts/node"
	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/test/standin/rpmostree"
	"github.com/noderefit/noderefit/test/standin/rpmostree/catalogue"
	"github.com/noderefit/noderefit/test/standin/rpmostree/fault"
	"github.com/noderefit/noderefit/transaction"
)

const extensionsFile = `systems:
- ids: [debian]
  extensions:
    sysstat: [only-there]
`

// podmanOn puts this machine's podman on a host, with a registry of which quay.example/os is.
func podmanOn(ctx context.Context, t *testing.T, h *lab.Host, registry string) {
	t.Helper()
	const home = "/var/lib/podman-of-the-lab"
	write := func(at, text string, mode os.FileMode) {
		t.Helper()
		at = h.HostPath(at)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"podman", "conmon", "crun"} {
		path, err := exec.LookPath(name)
		if err != nil {
			if os.Getenv("LAB") == "require" {
				t.Fatal(err)
			}
			t.Skip(err)
		}
		paths := []string{path}
		text, err := exec.CommandContext(ctx, "ldd", path).Output()
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			library, rest, linked := strings.Cut(strings.TrimSpace(line), " => ")
			at, _, _ := strings.Cut(rest, " ")
			if linked && !strings.HasPrefix(library, "libc.so") {
				paths = append(paths, at)
			}
		}
		for _, path := range paths {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			write(home+"/"+filepath.Base(path), string(data), 0o755)
		}
	}
	write("/var/usrlocal/bin/podman", "#!/bin/sh\nexport LD_LIBRARY_PATH="+home+"\nexec "+home+"/podman --conmon="+home+"/conmon "+
		"--runtime="+home+"/crun --cgroup-manager=cgroupfs \"$@\"\n", 0o755)
	write("/etc/containers/policy.json", `{"default":[{"type":"insecureAcceptAnything"}]}`, 0o644)
	write("/etc/containers/registries.conf", "[[registry]]\nprefix=\"quay.example/os\"\nlocation=\""+registry+
		"/os\"\ninsecure=true\n", 0o644)
}

// registry serves the images that a host was given, as registries do, to whoever has the credentials while they are
// asked for.
func registry(t *testing.T, h *lab.Host) (address string, closed *atomic.Bool) {
	t.Helper()
	closed = new(atomic.Bool)
	mux := http.NewServeMux()
	blob := func(w http.ResponseWriter, r *http.Request, name, digest, kind string) {
		at := filepath.Join(h.HostPath(catalogue.Registries), "quay.example/os", name, "blobs", strings.Replace(digest, ":", "/", 1))
		if _, err := os.Stat(at); err != nil {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}`)
			return
		}
		w.Header().Set("Content-Type", kind)
		w.Header().Set("Docker-Content-Digest", digest)
		http.ServeFile(w, r, at)
	}
	mux.HandleFunc("GET /v2/", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /v2/os/{name}/blobs/{digest}", func(w http.ResponseWriter, r *http.Request) {
		blob(w, r, r.PathValue("name"), r.PathValue("digest"), "application/octet-stream")
	})
	mux.HandleFunc("GET /v2/os/{name}/manifests/{digest}", func(w http.ResponseWriter, r *http.Request) {
		blob(w, r, r.PathValue("name"), r.PathValue("digest"), "application/vnd.oci.image.manifest.v1+json")
	})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, _, _ := r.BasicAuth(); closed.Load() && user != "node" {
			w.Header().Set("WWW-Authenticate", `Basic realm="the lab"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://"), closed
}

// pushExtensions puts an image into the registry in which there is a package that is nowhere else.
func pushExtensions(t *testing.T, h *lab.Host) string {
	t.Helper()
	dir := t.TempDir()
	at, err := catalogue.Package{Name: "only-there", Version: "1.0", Release: "1", Arch: "x86_64",
		Files: map[string]string{"/usr/bin/only-there": "only there\n"}}.Write(dir)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(at)
	if err != nil {
		t.Fatal(err)
	}
	digest, err := rpmostree.Push(h, "quay.example/os/extensions:1", catalogue.Image{Version: "1",
		Files: map[string]string{"/usr/share/rpm-ostree/extensions/" + filepath.Base(at): string(text)}})
	if err != nil {
		t.Fatal(err)
	}
	return "quay.example/os/extensions@" + digest
}

// left is what there is of an image of extensions, in the running system and for the next one.
func left(ctx context.Context, t *testing.T, n *node.Node) string {
	t.Helper()
	return output(ctx, t, n, "sh", "-c", `podman image ls -q --no-trunc; ls -d /etc/yum.repos.d/noderefit* \
		/run/noderefit-extensions /var/lib/machine-config-daemon/extensions.json 2>/dev/null;
		grep noderefit-extensions /proc/self/mountinfo; true`)
}

func TestPackagesAreTakenFromTheImageOfExtensions(t *testing.T) {
	ctx, m := bootWith(t, lab.Options{Name: "rpm", HostNetwork: true}, false)
	n := agentOf(t, m, plain)
	if err := os.WriteFile(n.HostPath("/etc/machine-config-daemon/packages.yaml"), []byte(extensionsFile), 0o644); err != nil {
		t.Fatal(err)
	}
	address, closed := registry(t, n.Host)
	podmanOn(ctx, t, n.Host, address)
	image := pushExtensions(t, n.Host)
	update(ctx, t, n, config("a", "a", ""), transaction.Done)

	stage := func(what, more string, want int, says string) {
		t.Helper()
		at, err := n.Document("x.json", config("b", "b", more+`"extensions":["sysstat"],`))
		if err != nil {
			t.Fatal(err)
		}
		out, text, exit, err := n.Agent(ctx, "stage", "--config", at, "-o", "json")
		if err != nil || exit != want || !strings.Contains(text, says) {
			t.Errorf("%s: %d %v %s %s", what, exit, err, out, text)
		}
		if rest := left(ctx, t, n); rest != "" {
			t.Errorf("%s: left is\n%s", what, rest)
		}
	}
	field := func(image string) string { return fmt.Sprintf("%q:%q,", "baseOSExtensionsContainerImage", image) }
	stage("no image", "", 3, "Packages not found: only-there")
	stage("an image that is not there", field(image[:len(image)-8]+"00000000"), 3, "manifest unknown")
	stage("no name of an image", field("ostree-unverified-registry:"+image), 3, "parsing baseOSExtensionsContainerImage")
	closed.Store(true)
	stage("without credentials", field(image), 1, "there are no credentials for quay.example: none of /run/ostree/auth.json")
	output(ctx, t, n, "sh", "-c", `mkdir -p /etc/ostree; echo '{"auths":{"`+address+`":{"auth":"bm9kZTp4"}}}' >/etc/ostree/auth.json`)
	stage("with credentials", field(image), 0, "")
	closed.Store(false)
	policy := func(text string) {
		t.Helper()
		if err := os.WriteFile(n.HostPath("/etc/containers/policy.json"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	policy(`{"default":[{"type":"reject"}]}`)
	stage("against the policy", field(image), 3, "holding baseOSExtensionsContainerImage")
	policy(`{"default":[{"type":"insecureAcceptAnything"}]}`)

	// The power is cut while the packages are layered.
	if _, _, err := n.Apply(ctx, config("a", "a", "")); err != nil { // which lets go of what was staged
		t.Fatal(err)
	}
	b := config("b", "b", field(image)+`"extensions":["sysstat"],`)
	at, err := n.Document("b.json", b)
	if err != nil {
		t.Fatal(err)
	}
	m.breaks(fault.Fault{Step: fault.Stage, Action: fault.Hang})
	output(ctx, t, n, "systemd-run", "--unit=stage", "/var/usrlocal/bin/machine-config-daemon", "stage", "--config", at)
	m.soon(ctx, "the packages are layered", func() bool {
		return strings.Contains(output(ctx, t, n, "sh", "-c", "cat /run/noderefit-rpm-ostree.stdout; true"), "Writing OSTree commit")
	})
	if got := left(ctx, t, n); !strings.Contains(got, "noderefit-extensions.repo") || !strings.Contains(got, "sha256:") {
		t.Errorf("while it composes there is %s", got)
	}
	if err := m.PowerCut(); err != nil {
		t.Fatal(err)
	}
	m.mend()
	if err := m.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if got := left(ctx, t, n); !strings.Contains(got, "noderefit-extensions.repo") || !strings.Contains(got, "sha256:") {
		t.Errorf("after the power was cut there is %s", got)
	}
	// It holds nobody up, and what boots next has nothing of it, whatever that is.
	output(ctx, t, n, "rpm-ostree", "install", "usbguard")
	output(ctx, t, n, "rpm-ostree", "cleanup", "-p")
	update(ctx, t, n, config("c", "c", `"kernelArguments":["c"],`), transaction.Done)
	if rest := left(ctx, t, n); rest != "" {
		t.Errorf("after another update there is\n%s", rest)
	}

	update(ctx, t, n, b, transaction.Done)
	if got := output(ctx, t, n, "cat", "/usr/bin/only-there"); got != "only there" {
		t.Errorf("the package has %q", got)
	}
	if out, _, exit, err := n.Agent(ctx, "verify", "-o", "json"); err != nil || exit != 0 {
		t.Errorf("verify: %d %v %s", exit, err, out)
	}
	if rest := left(ctx, t, n); rest != "" {
		t.Errorf("after the update there is\n%s", rest)
	}
}
