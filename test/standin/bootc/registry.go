// SPDX-License-Identifier: Apache-2.0

package bootc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/noderefit/noderefit/test/lab"
)

// Registry is where a host finds images by name: a registry on this machine's loopback, or for the stand-in a directory
// of the host.
type Registry struct {
	host    *lab.Host
	address string // "" for the directory
}

// lacking returns what this machine, or the hosts made of base, lack for a real bootc. Each is named with what brings
// it.
func lacking(base *lab.Base) []string {
	var lacks []string
	if _, err := os.Stat(Real()); err != nil {
		lacks = append(lacks, err.Error())
	}
	if err := lab.RegistryAvailable(); err != nil {
		lacks = append(lacks, err.Error())
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

// NewRegistry makes a registry for a host that runs: a real one for a real bootc. The registry ends with ctx.
func NewRegistry(ctx context.Context, host *lab.Host, dir string) (*Registry, error) {
	if Real() == "" {
		return &Registry{host: host}, nil
	}
	server, err := lab.StartRegistry(ctx, dir)
	if err != nil {
		return nil, err
	}
	return RegistryAt(host, server.Address)
}

// RegistryAt returns the registry at an address of this machine's loopback, which programs on the host reach from then
// on at the same address.
func RegistryAt(host *lab.Host, address string) (*Registry, error) {
	const insecure = "/etc/containers/registries.conf.d/lab.conf"
	at := host.HostPath(insecure)
	text := fmt.Sprintf("[[registry]]\nlocation = %q\ninsecure = true\n", address)
	return &Registry{host: host, address: address}, errors.Join(os.MkdirAll(filepath.Dir(at), 0o755),
		os.WriteFile(at, []byte(text), 0o644), host.ConnectAt(address, address))
}

// Repository returns the name that images of a repository have.
func (r *Registry) Repository(name string) string {
	if r.address == "" {
		return "registry.example/" + name
	}
	return r.address + "/" + name
}

// Push makes an image of a ref of the host's repository, by a name of Repository and a tag, and returns its digest.
func (r *Registry) Push(ctx context.Context, ref, version, image string) (digest string, err error) {
	const pushed = "/var/lib/images/pushed"
	target := "registry:" + image
	if r.address != "" {
		target = "oci:" + pushed
		at := r.host.HostPath(pushed)
		if err := errors.Join(lab.RemoveTree(at), os.MkdirAll(filepath.Dir(at), 0o755)); err != nil {
			return "", err
		}
	}
	digest, err = r.host.Output(ctx, "bootc", "internals", "ostree-ext", "container", "encapsulate", "--repo=/ostree/repo",
		"--label=containers.bootc=1", "--label=org.opencontainers.image.version="+version, ref, target)
	if err != nil || r.address == "" {
		return strings.TrimSpace(digest), err
	}
	return copied(ctx, r.host.HostPath(pushed), image)
}

// copied copies the one image of a layout to a registry.
func copied(ctx context.Context, from, to string) (digest string, err error) {
	index, err := layout.ImageIndexFromPath(from)
	if err != nil {
		return "", err
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return "", err
	}
	if len(manifest.Manifests) != 1 {
		return "", fmt.Errorf("pushing %s: there are %d images in %s", to, len(manifest.Manifests), from)
	}
	single, err := index.Image(manifest.Manifests[0].Digest)
	if err != nil {
		return "", err
	}
	ref, err := name.NewTag(to)
	if err != nil {
		return "", err
	}
	return manifest.Manifests[0].Digest.String(), remote.Write(ref, single, remote.WithContext(ctx))
}
