// SPDX-License-Identifier: Apache-2.0

package fakeruntime

import (
	"maps"
	"os"
	"strings"
	"testing"

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
			root, err := os.MkdirTemp("", "pins") //nolint:usetesting // a socket's path may not be long
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(root)
			if err := os.MkdirAll(root+"/var", 0o755); err != nil {
				t.Fatal(err)
			}
			runtime, err := Start(root)
			if err != nil {
				t.Fatal(err)
			}
			defer runtime.Close()
			runtime.Offer(image)
			c.runtime(runtime)
			host, err := pins.New(root)
			if err != nil {
				t.Fatal(err)
			}
			defer host.Close()
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
