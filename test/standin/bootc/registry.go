// SPDX-License-Identifier: Apache-2.0

package bootc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/noderefit/noderefit/test/lab"
)

// Registry is where a host finds images by name: a directory of the host for the stand-in, and for a real bootc a
// registry on this machine's loopback.
type Registry struct {
	host *lab.Host
	port int // 0 for the stand-in
}

// lacking returns what this machine, or the hosts made of base, lack for a real bootc. Each is named with what brings
// it.
func lacking(base *lab.Base) []string {
	var lacks []string
	if _, err := os.Stat(Real()); err != nil {
		lacks = append(lacks, err.Error())
	}
	for _, program := range []string{"docker-registry", "skopeo"} {
		if _, err := exec.LookPath(program); err != nil {
			lacks = append(lacks, program+" on this machine (apt-get install "+program+")")
		}
	}
	for _, program := range []string{"podman", "skopeo"} {
		if !base.Has("/usr/bin/" + program) {
			lacks = append(lacks, program+" on the lab's hosts (LAB_PACKAGES=\"podman skopeo\")")
		}
	}
	return lacks
}

// Need fails if the tests are to use a real bootc, and something that it takes is missing.
func Need(t testing.TB, base *lab.Base) {
	t.Helper()
	if Real() == "" {
		return
	}
	if lacks := lacking(base); len(lacks) > 0 {
		t.Fatalf("a real bootc lacks %s", strings.Join(lacks, "; "))
	}
}

// NewRegistry makes a registry for a host that runs. It ends with ctx.
func NewRegistry(ctx context.Context, host *lab.Host, dir string) (*Registry, error) {
	r := &Registry{host: host}
	if Real() == "" {
		return r, nil
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err == nil {
		r.port, err = strconv.Atoi(port)
	}
	if err := errors.Join(err, listener.Close()); err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "registry.yml")
	text := fmt.Sprintf("version: 0.1\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: %s}\n",
		filepath.Join(dir, "registry"), r.address())
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "docker-registry", "serve", config)
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting a registry: %w", err)
	}
	go func() { _ = cmd.Wait() }() // it ends with ctx
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.address()+"/v2/", nil)
		if err != nil {
			return nil, err
		}
		if response, err := http.DefaultClient.Do(request); err == nil {
			_ = response.Body.Close()
			break
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for a registry: %w", ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
	const insecure = "/etc/containers/registries.conf.d/lab.conf"
	at := host.HostPath(insecure)
	text = fmt.Sprintf("[[registry]]\nlocation = %q\ninsecure = true\n", r.address())
	err = errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(text), 0o644))
	return r, errors.Join(err, host.Connect(r.port))
}

func (r *Registry) address() string { return "127.0.0.1:" + strconv.Itoa(r.port) }

// Repository returns the name that images of a repository have.
func (r *Registry) Repository(name string) string {
	if r.port == 0 {
		return "registry.example/" + name
	}
	return r.address() + "/" + name
}

// Push makes an image of a ref of the host's repository, by a name of Repository and a tag, and returns its digest.
func (r *Registry) Push(ctx context.Context, ref, version, image string) (digest string, err error) {
	target := "registry:" + image
	const layout = "/var/lib/images/pushed"
	if r.port != 0 {
		target = "oci:" + layout
		if err := lab.RemoveTree(r.host.HostPath(layout)); err != nil {
			return "", err
		}
	}
	if err := os.MkdirAll(filepath.Dir(r.host.HostPath(layout)), 0o755); err != nil {
		return "", err
	}
	digest, err = r.host.Output(ctx, "bootc", "internals", "ostree-ext", "container", "encapsulate", "--repo=/ostree/repo",
		"--label=containers.bootc=1", "--label=org.opencontainers.image.version="+version, ref, target)
	if err != nil || r.port == 0 {
		return strings.TrimSpace(digest), err
	}
	file := r.host.HostPath(layout + ".digest")
	output, err := exec.CommandContext(ctx, "skopeo", "copy", "--preserve-digests", "--dest-tls-verify=false",
		"--digestfile", file, "oci:"+r.host.HostPath(layout), "docker://"+image).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("pushing %s: %w: %s", image, err, output)
	}
	text, err := os.ReadFile(file)
	return strings.TrimSpace(string(text)), err
}
