// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/test/lab"
)

// gallery is a real registry behind TLS, which the host trusts.
type gallery struct {
	*httptest.Server

	registry *lab.Registry
	forged   atomic.Pointer[[]byte] // what every blob is instead
}

func newGallery(t *testing.T, n *Node) *gallery {
	t.Helper()
	g := &gallery{registry: lab.NeedRegistry(t)}
	g.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if forged := g.forged.Load(); forged != nil && strings.Contains(r.URL.Path, "/blobs/") {
			_, _ = w.Write(*forged)
			return
		}
		g.registry.ServeHTTP(w, r)
	}))
	t.Cleanup(g.Close)
	at := g.Listener.Addr().String()
	if err := n.ConnectAt(at, at); err != nil {
		t.Fatal(err)
	}
	put(t, n, "/etc/ssl/certs/gallery.pem",
		string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: g.Certificate().Raw})), 0o644)
	return g
}

// push pushes a file as oras push does, as the one layer of an image, and returns the image's digest.
func (g *gallery) push(t *testing.T, repository string, data []byte) string {
	t.Helper()
	image, err := mutate.AppendLayers(mutate.MediaType(empty.Image, types.OCIManifestSchema1),
		static.NewLayer(data, "application/octet-stream"))
	if err != nil {
		t.Fatal(err)
	}
	ref, err := name.NewTag(g.registry.Address + "/" + repository + ":v1")
	if err == nil {
		err = remote.Write(ref, image, remote.WithContext(t.Context()))
	}
	if err != nil {
		t.Fatal(err)
	}
	digest, err := image.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return digest.String()
}

// at returns contents in the registry, as a configuration refers to them. more is further JSON.
func (g *gallery) at(repository, digest, more string) string {
	return fmt.Sprintf(`{"source":"oci://%s/%s@%s"%s}`, g.Listener.Addr(), repository, digest, more)
}

// A file in a registry is fetched while the host serves. The switch, the way back and a repair need no registry then.
func TestContentsByReferenceComeFromARegistryOnceAndOutliveIt(t *testing.T) {
	ctx, n := start(t)
	g := newGallery(t, n)
	tool, other := bytes.Repeat([]byte("tool\n"), 1<<18), []byte("another tool\n")
	digest, othersDigest := g.push(t, "tools/tool", tool), g.push(t, "tools/other", other)
	const path = "/etc/testos/tool"
	of := func(contents string) string { return referring(map[string]string{path: contents}) }

	// A digest of nothing, or of something else than what is wanted or sent, is refused before anything is touched.
	nothing := "sha256:" + strings.Repeat("0", 64)
	refused(ctx, t, n, mc("a", of(g.at("tools/tool", nothing, ""))), host.ExitFailed, "file "+path, nothing, "404")
	refused(ctx, t, n, mc("a", of(g.at("tools/tool", digest, fmt.Sprintf(`,"verification":{"hash":%q}`, hashOf(other))))),
		host.ExitUnreconcilable, "file "+path, hashOf(other))
	g.forged.Store(&other)
	refused(ctx, t, n, mc("a", of(g.at("tools/tool", digest, ""))), host.ExitUnreconcilable, "file "+path)
	g.forged.Store(nil)
	if _, exit := shell(ctx, t, n, "test -e "+path); exit == 0 {
		t.Error("the file of a configuration that was refused is there")
	}

	// What is staged is all there is to fetch.
	doc, err := n.Document("a.json", mc("a", of(g.at("tools/tool", digest, ""))))
	if err != nil {
		t.Fatal(err)
	}
	boots := n.Boots()
	g.registry.Asked() // by the configurations that were refused
	if _, errs, exit, err := n.Agent(ctx, "stage", "--config", doc); err != nil || exit != 0 {
		t.Fatalf("%d %s %v", exit, errs, err)
	}
	if _, exit := shell(ctx, t, n, "test -e "+path); exit == 0 || n.Boots() != boots {
		t.Error("the stage has changed the host")
	}
	if _, errs, exit, err := n.Agent(ctx, "stage", "--config", doc); err != nil || exit != 0 {
		t.Fatalf("once more: %d %s %v", exit, errs, err)
	}
	fetched := 0
	for _, asked := range g.registry.Asked() {
		if asked.Method == http.MethodGet && asked.Status == http.StatusOK && strings.Contains(asked.Path, "tools/tool/blobs/") {
			fetched++
		}
	}
	if fetched != 1 {
		t.Errorf("the blob was fetched %d times", fetched)
	}
	g.Close()
	apply(ctx, t, n, mc("a", of(g.at("tools/tool", digest, ""))))
	settled(ctx, t, n, "a")
	if n.Boots() != boots+1 || read(t, n, path) != string(tool) {
		t.Errorf("%d boots, or other contents", n.Boots()-boots)
	}
	put(t, n, path, "by hand", 0o755)
	if _, errs, exit, err := n.Agent(ctx, "repair"); err != nil || exit != 0 || read(t, n, path) != string(tool) {
		t.Errorf("repair: %d %s %v", exit, errs, err)
	}

	// Of a registry that is gone nothing new can be had, which the host says while it serves.
	refused(ctx, t, n, mc("b", of(g.at("tools/other", othersDigest, ""))), host.ExitFailed, "file "+path, "tools/other@"+othersDigest)
	apply(ctx, t, n, mc("c", bootFile("c")))
	settled(ctx, t, n, "c")
	if _, exit := shell(ctx, t, n, "test -e "+path); exit == 0 {
		t.Error("the file stays without the configuration that has it")
	}
	boots = n.Boots()
	if _, errs, exit, err := n.Agent(ctx, "rollback"); err != nil || exit != 0 {
		t.Fatalf("rollback: %d %s %v", exit, errs, err)
	}
	if err := n.WaitBoot(ctx, boots+1); err != nil {
		t.Fatal(err)
	}
	settled(ctx, t, n, "a")
	if read(t, n, path) != string(tool) {
		t.Error("the way back has other contents")
	}
}
