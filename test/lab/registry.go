// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// registryProgram is distribution, the registry that most others are made of, as Debian packages it.
const registryProgram = "docker-registry"

// listening matches what the registry says once it has a port, which nobody else gets then.
var listening = regexp.MustCompile(`listening on ([0-9.]+:[0-9]+)`)

// Registry is a real registry of container images on this machine. As a handler, Registry passes requests on and notes
// them.
type Registry struct {
	// Address is the registry's own, of the loopback interface. Requests to it are not noted.
	Address string

	proxy *httputil.ReverseProxy
	mu    sync.Mutex
	asked []Asked
}

// Asked is a request to a Registry.
type Asked struct {
	Method, Path, Agent string
	// Conditional is true where the request has the ETag of an earlier answer.
	Conditional bool
	Status      int
	At          time.Time
}

// RegistryAvailable returns the reason why this machine can't run a Registry, nil if it can.
func RegistryAvailable() error {
	if _, err := exec.LookPath(registryProgram); err != nil {
		return fmt.Errorf("checking for a registry: %w; make deps installs it", err)
	}
	return nil
}

// NeedRegistry starts a Registry for a test. On a machine that can't run one the test is skipped with the reason; with
// LAB=require in the environment it fails.
func NeedRegistry(t testing.TB) *Registry {
	t.Helper()
	if err := RegistryAvailable(); err != nil {
		if os.Getenv("LAB") == "require" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	r, err := StartRegistry(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// StartRegistry starts a registry, whose files are in dir. The registry ends with ctx.
func StartRegistry(ctx context.Context, dir string) (*Registry, error) {
	config := filepath.Join(dir, "registry.yml")
	text := fmt.Sprintf("version: 0.1\nlog: {level: info, accesslog: {disabled: true}}\n"+
		"storage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: \"127.0.0.1:0\"}\n", filepath.Join(dir, "registry"))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, registryProgram, "serve", config)
	said, err := cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting a registry: %w", err)
	}
	r := &Registry{}
	for lines := bufio.NewScanner(said); r.Address == "" && lines.Scan(); {
		if found := listening.FindStringSubmatch(lines.Text()); found != nil {
			r.Address = found[1]
		}
	}
	if r.Address == "" {
		return nil, fmt.Errorf("starting a registry: the registry has ended: %w", errors.Join(cmd.Wait(), ctx.Err()))
	}
	go func() {
		_, _ = io.Copy(io.Discard, said)
		_ = cmd.Wait()
	}()
	target := &url.URL{Scheme: "http", Host: r.Address}
	r.proxy = &httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(target)
			p.Out.Host = p.In.Host // the registry names places for uploads by it
		},
		ModifyResponse: r.note,
	}
	return r, nil
}

// ServeHTTP implements http.Handler.
func (r *Registry) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	r.proxy.ServeHTTP(w, request)
}

func (r *Registry) note(response *http.Response) error {
	q := response.Request
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, Asked{
		Method: q.Method, Path: q.URL.Path, Agent: q.UserAgent(), Conditional: q.Header.Get("If-None-Match") != "",
		Status: response.StatusCode, At: time.Now(),
	})
	return nil
}

// Asked returns the requests since the last call.
func (r *Registry) Asked() []Asked {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.asked
	r.asked = nil
	return out
}

// PushRelease pushes an image that has a version and no content, as REGISTRY/REPOSITORY:TAG, and returns its digest.
func PushRelease(ctx context.Context, to, version string) (digest string, err error) {
	config := &v1.ConfigFile{OS: "linux", Architecture: "amd64"}
	config.Config.Labels = map[string]string{"org.opencontainers.image.version": version}
	config.RootFS.Type = "layers"
	image, err := mutate.ConfigFile(empty.Image, config)
	if err != nil {
		return "", err
	}
	ref, err := name.NewTag(to)
	if err != nil {
		return "", err
	}
	if err := remote.Write(ref, image, remote.WithContext(ctx)); err != nil {
		return "", fmt.Errorf("pushing %s: %w", to, err)
	}
	sum, err := image.Digest()
	return sum.String(), err
}
