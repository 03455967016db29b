// SPDX-License-Identifier: Apache-2.0

package pace

import (
	"cmp"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// program returns a program of this machine, or the one that the environment names: SKOPEO for skopeo.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(cmp.Or(os.Getenv(strings.ToUpper(name)), name))
	if err == nil {
		return path
	}
	if os.Getenv("LAB") == "require" {
		t.Fatal(err)
	}
	t.Skipf("install %s, or name one with %s: %v", name, strings.ToUpper(name), err)
	return ""
}

// ownAddress returns an address of this machine that programs do not take for the loopback interface: Go's own client
// asks no proxy for that.
func ownAddress(t *testing.T) string {
	t.Helper()
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if ip, is := a.(*net.IPNet); is && ip.IP.To4() != nil && !ip.IP.IsLoopback() {
			return ip.IP.String()
		}
	}
	const none = "this machine has no IPv4 address but those of the loopback interface"
	if os.Getenv("LAB") == "require" {
		t.Fatal(none)
	}
	t.Skip(none)
	return ""
}

// The real skopeo, as bootc and rpm-ostree run it, fetches a layer no faster than the proxy lets it.
func TestARealSkopeoKeepsTheBandwidth(t *testing.T) {
	skopeo := program(t, "skopeo")
	listener, err := net.Listen("tcp", ownAddress(t)+":0")
	if err != nil {
		t.Fatal(err)
	}
	s := &httptest.Server{Listener: listener}
	s.Config = httptest.NewUnstartedServer(registry.New()).Config
	s.Start()
	defer s.Close()
	const bandwidth, length = 1 << 20, 4 << 20
	image, err := random.Image(length, 1)
	if err != nil {
		t.Fatal(err)
	}
	at := listener.Addr().String() + "/os:v1"
	ref, err := name.ParseReference(at, name.Insecure)
	if err == nil {
		err = remote.Write(ref, image)
	}
	if err != nil {
		t.Fatal(err)
	}
	policy := t.TempDir() + "/policy.json"
	if err := os.WriteFile(policy, []byte(`{"default":[{"type":"insecureAcceptAnything"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	fetch := func(environment []string) time.Duration {
		t.Helper()
		began := time.Now()
		cmd := exec.CommandContext(t.Context(), skopeo, "--policy="+policy, "copy", "--src-tls-verify=false", "docker://"+at,
			"dir:"+t.TempDir())
		cmd.Env = append(os.Environ(), environment...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return time.Since(began)
	}
	p, err := Listen(t.Context(), bandwidth, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	free, paced := fetch(nil), fetch(Environment(p.In(t.Context())))
	t.Logf("4 MiB came in %s without a bandwidth, and in %s with one of 1 MiB a second", free, paced)
	if least := length*time.Second/bandwidth - time.Second/2; paced < least {
		t.Errorf("4 MiB came in %s, which takes at least %s", paced, least)
	}
}
