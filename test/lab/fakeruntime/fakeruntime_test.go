// SPDX-License-Identifier: Apache-2.0

package fakeruntime

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/osimage"
	"github.com/noderefit/noderefit/pins"
)

// A runtime gets some seconds to show what it was told, which each of these waits for.
func TestAnImageThatTheRuntimeDoesNotShowHasAReason(t *testing.T) {
	t.Parallel()
	image := "quay.io/shop/a@sha256:" + strings.Repeat("a", 64)
	for what, c := range map[string]struct {
		runtime func(*Runtime)
		why     string // "": nothing is missing
	}{
		"it shows all":                  {func(*Runtime) {}, ""},
		"it has it under another name":  {func(r *Runtime) { r.Hide(image) }, "the runtime has pulled it, and does not show it under this name"},
		"it knows no pins":              {(*Runtime).HidePins, "the runtime has it, and does not show it as pinned: a newer containerd or CRI-O does"},
		"it has it, and knows no pins":  {func(r *Runtime) { r.keep(image); r.HidePins() }, "does not show it as pinned"},
		"it has it, and shows all":      {func(r *Runtime) { r.keep(image) }, ""},
		"its registry has another name": {func(r *Runtime) { r.withdraw(image) }, "pulling it: "},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			host, runtime, _ := hosted(t)
			runtime.Offer(image)
			c.runtime(runtime)
			got, err := host.Keep(t.Context(), pins.Order{Images: []string{image}, Pull: true, MinFree: 1, Runtime: "containerd"})
			why, missing := got.Missing[image]
			if err != nil || missing != (c.why != "") || !strings.Contains(why, c.why) || len(got.Missing) > 1 {
				t.Errorf("missing are %v, %v; want %q", maps.Clone(got.Missing), err, c.why)
			}
		})
	}
}

// keep gives the runtime an image that it has from somebody else.
func (r *Runtime) keep(image string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.has[image] = map[string]string{"io.cri-containerd.image": "managed"}
}

// withdraw takes an image out of the registry.
func (r *Runtime) withdraw(image string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.offers, image)
}

// hosted is a host whose containerd is played.
func hosted(t *testing.T) (*pins.Host, *Runtime, string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "pins") //nolint:usetesting // a socket's path may not be long
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.MkdirAll(dir+"/var", 0o755); err != nil {
		t.Fatal(err)
	}
	runtime, err := Start(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(runtime.Close)
	host, err := pins.New(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = host.Close() })
	return host, runtime, dir
}

func TestAPullHasTheCredentialsOfTheKubelet(t *testing.T) {
	t.Parallel()
	host, runtime, dir := hosted(t)
	a := "quay.io/x/a@sha256:" + strings.Repeat("a", 64)
	runtime.Offer(a)
	runtime.Guard("u", "p")
	at := filepath.Join(dir, osimage.KubeletAuthPath)
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		t.Fatal(err)
	}
	for file, says := range map[string]string{
		"":             "failed to authorize",
		`{"auths":{}}`: "failed to authorize",
		`{`:            osimage.KubeletAuthPath + " is no auth.json",
		`{"auths":{"quay.io":{"username":"u","password":"q"}}}`: "failed to authorize",
	} {
		if err := os.WriteFile(at, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		if file == "" {
			if err := os.Remove(at); err != nil {
				t.Fatal(err)
			}
		}
		s, err := host.Keep(t.Context(), pins.Order{Images: []string{a}, Pull: true, MinFree: 1, Runtime: "containerd"})
		if err != nil || !strings.Contains(s.Missing[a], says) {
			t.Errorf("with %q the host misses %q, %v", file, s.Missing, err)
		}
	}
	for user, file := range map[string]string{
		"u": `{"auths":{"quay.io":{"auth":"dTpw"}}}`,
		"":  `{"auths":{"quay.io":{"auth":"OnA="}}}`, // a token
	} {
		runtime.Remove(a)
		runtime.Guard(user, "p")
		if err := os.WriteFile(at, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := host.Keep(t.Context(), pins.Order{Images: []string{a}, Pull: true, MinFree: 1, Runtime: "containerd"})
		if err != nil || len(s.Missing) > 0 {
			t.Errorf("with user %q the host misses %q, %v", user, s.Missing, err)
		}
	}
}

// A pull that is under way ends when the disk comes below its floor, and images after that are not tried.
func TestAFallingFloorEndsThePullThatIsUnderWay(t *testing.T) {
	t.Parallel()
	host, runtime, _ := hosted(t)
	const mib = 1 << 20
	var asked atomic.Int32
	host.Space = func(place string) (files.Space, error) {
		if place != "/var" {
			t.Errorf("the space of %s is asked for", place)
		}
		switch asked.Add(1) {
		case 1:
			return files.Space{Bytes: 10 * mib}, nil
		case 2:
			return files.Space{}, errors.New("the disk does not say")
		default: // the pull has taken some of the space
			return files.Space{Bytes: 7 * mib}, nil
		}
	}
	a, b := "quay.io/x/a@sha256:"+strings.Repeat("a", 64), "quay.io/x/b@sha256:"+strings.Repeat("b", 64)
	runtime.Offer(a, b)
	goOn := runtime.Hold()
	defer goOn()
	s, err := host.Keep(t.Context(), pins.Order{Images: []string{a, b}, Pull: true, MinFree: 8 * mib, Runtime: "containerd"})
	if err != nil {
		t.Fatal(err)
	}
	const why = "pulling it: 8 MiB have to stay free on the file system of /var, and 7 MiB are free"
	if len(s.Missing) != 2 || !strings.HasSuffix(s.Missing[a], why) || s.Missing[b] != why {
		t.Errorf("the host misses %q", s.Missing)
	}
	if got := runtime.Asked("PullImage"); got != 1 || runtime.Labels(a) != nil {
		t.Errorf("%d pulls began, and the host has %v", got, runtime.Labels(a))
	}
	if got := asked.Load(); got != 3 {
		t.Errorf("the disk was asked %d times", got)
	}
}
