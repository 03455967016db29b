// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/noderefit/noderefit/pins"
	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/test/lab/fakeruntime"
)

// containerdAlone is the configuration of a containerd that no kubelet uses.
const containerdAlone = `version = 2

[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
`

// runtimed is a host with a container runtime.
type runtimed interface {
	// root is the directory at which an agent sees the host.
	root() string
	// push puts an image into the registry, and returns its name by digest.
	push(repository string) string
	// other returns the name of an image that the registry does not have.
	other(repository string) string
	// labels returns the labels of an image; empty: the runtime does not have it.
	labels(image string) string
	// label has somebody else pin an image.
	label(image string)
	faulty
}

// faulty is what may happen to a runtime and to a registry.
type faulty interface {
	restart()
	// away ends the registry.
	away()
}

// holder is a host with a real containerd, and a registry that the host reaches.
type holder struct {
	*lab.Host

	t        *testing.T
	ctx      context.Context //nolint:containedctx // a holder lives as long as its test
	registry *lab.Registry
	gone     context.CancelFunc // ends the registry
}

func newHolder(t *testing.T) *holder {
	t.Helper()
	base := lab.NeedContainers(t)
	if err := lab.RegistryAvailable(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), patience, errors.New("the test takes too long"))
	t.Cleanup(cancel)
	host, err := base.Boot(ctx, lab.Options{Name: "pins"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			journal, _ := host.Journal(context.Background())
			t.Log(journal[max(0, len(journal)-8000):])
		}
		if err := host.Close(); err != nil {
			t.Error(err)
		}
	})
	lives, gone := context.WithCancel(ctx)
	t.Cleanup(gone)
	registry, err := lab.StartRegistry(lives, t.TempDir())
	must(t, err, host.ConnectAt(registry.Address, registry.Address),
		os.MkdirAll(host.HostPath("/etc/containerd"), 0o755),
		os.WriteFile(host.HostPath("/etc/containerd/config.toml"), []byte(containerdAlone), 0o644))
	h := &holder{Host: host, t: t, ctx: ctx, registry: registry, gone: gone}
	h.restart()
	return h
}

// restart restarts containerd, and waits until it answers.
func (h *holder) restart() {
	h.t.Helper()
	_, err := h.Output(h.ctx, "systemctl", "restart", "containerd.service")
	must(h.t, err)
}

func (h *holder) push(repository string) string {
	h.t.Helper()
	image, err := random.Image(1<<20, 2)
	must(h.t, err)
	to, err := name.NewTag(h.registry.Address + "/" + repository + ":1")
	must(h.t, err)
	must(h.t, remote.Write(to, image, remote.WithContext(h.ctx)))
	sum, err := image.Digest()
	must(h.t, err)
	return h.registry.Address + "/" + repository + "@" + sum.String()
}

func (h *holder) other(repository string) string {
	return h.registry.Address + "/" + repository + "@sha256:" + strings.Repeat("c", 64)
}

func (h *holder) root() string { return fmt.Sprintf("/proc/%d/root", h.Leader()) }

func (h *holder) away() { h.gone() }

func (h *holder) label(image string) {
	h.t.Helper()
	_, err := h.Output(h.ctx, "ctr", "-n", "k8s.io", "images", "label", image, "io.cri-containerd.pinned=pinned")
	must(h.t, err)
}

// labels returns containerd's own list of an image's labels; empty: it does not have the image.
func (h *holder) labels(image string) string {
	h.t.Helper()
	text, err := h.Output(h.ctx, "ctr", "-n", "k8s.io", "images", "list", "name=="+image)
	must(h.t, err)
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if len(lines) < 2 {
		return ""
	}
	return lines[1]
}

// played is a host whose containerd is played.
type played struct {
	*fakeruntime.Runtime

	t   *testing.T
	dir string
}

func newPlayed(t *testing.T) *played {
	t.Helper()
	dir, err := os.MkdirTemp("", "pins") //nolint:usetesting // a socket's path may not be long
	must(t, err, os.MkdirAll(dir+"/var", 0o755))
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	runtime, err := fakeruntime.Start(dir)
	must(t, err)
	t.Cleanup(runtime.Close)
	return &played{Runtime: runtime, t: t, dir: dir}
}

func (p *played) root() string { return p.dir }
func (p *played) restart()     {}
func (p *played) away()        {}

func (p *played) push(repository string) string {
	image := "quay.io/" + repository + "@sha256:" + strings.Repeat(repository[len(repository)-1:], 64)
	p.Offer(image)
	return image
}

func (p *played) other(repository string) string {
	return "quay.io/" + repository + "@sha256:" + strings.Repeat("c", 64)
}

func (p *played) labels(image string) string {
	var out []string
	for key, value := range p.Labels(image) {
		out = append(out, key+"="+value)
	}
	return strings.Join(out, ",")
}

func (p *played) label(image string) { p.Label(image, "io.cri-containerd.pinned", "pinned") }

// keep does what an agent in a pod does.
func keep(t *testing.T, h runtimed, o pins.Order) map[string]string {
	t.Helper()
	host, err := pins.New(h.root())
	must(t, err)
	defer host.Close()
	o.Runtime = "containerd"
	s, err := host.Keep(t.Context(), o)
	must(t, err)
	return s.Missing
}

func pinned(h runtimed, image string) bool {
	text := h.labels(image)
	return strings.Contains(text, "io.cri-containerd.pinned=pinned") && strings.Contains(text, "noderefit.dev/pinned=true")
}

func misses(t *testing.T, what string, got map[string]string, image, says string) {
	t.Helper()
	if why, is := got[image]; len(got) != 1 || !is || !strings.Contains(why, says) {
		t.Errorf("%s: missing is %q, want %s alone, with %q", what, got, image, says)
	}
}

func TestContainerdPullsPinsAndUnpins(t *testing.T) { pullsPinsAndUnpins(t, newHolder(t)) }

// What other tests take for containerd does what the real one does.
func TestThePlayedRuntimeDoesWhatContainerdDoes(t *testing.T) { pullsPinsAndUnpins(t, newPlayed(t)) }

func pullsPinsAndUnpins(t *testing.T, h runtimed) {
	a, b := h.push("shop/a"), h.push("shop/b")
	wrong := a[:len(a)-4] + "0000"

	if got := keep(t, h, pins.Order{Images: []string{a, b}}); len(got) != 2 || got[a] != "" || h.labels(a) != "" {
		t.Errorf("before its turn the host misses %q, and has %q", got, h.labels(a))
	}
	misses(t, "a wrong digest", keep(t, h, pins.Order{Images: []string{wrong, a, b}, Pull: true}), wrong, "not found")
	if !pinned(h, a) || !pinned(h, b) {
		t.Errorf("the labels are\n%s\n%s", h.labels(a), h.labels(b))
	}
	// The runtime has them pinned after a restart, and nobody asks the registry.
	h.restart()
	h.away()
	if got := keep(t, h, pins.Order{Images: []string{a, b}, Pull: true}); len(got) > 0 {
		t.Errorf("after a restart and without the registry the host misses %q", got)
	}
	other := h.other("shop/c")
	misses(t, "the registry is gone", keep(t, h, pins.Order{Images: []string{a, other, b}, Pull: true}), other, "pulling it: ")
	low := keep(t, h, pins.Order{Images: []string{other, a}, Pull: true, MinFree: 1 << 60})
	misses(t, "the disk has a floor", low, other, "have to stay free on the file system of /var")

	// An image that is not wanted any more is unpinned, and stays. That of somebody else stays pinned.
	if text := h.labels(b); text == "" || strings.Contains(text, "pinned") {
		t.Errorf("what is not wanted has the labels %q", text)
	}
	h.label(b)
	for _, images := range [][]string{{a, b}, {}} {
		if got := keep(t, h, pins.Order{Images: images, Pull: true}); len(got) > 0 {
			t.Errorf("of %q the host misses %q", images, got)
		}
	}
	if text := h.labels(a); text == "" || strings.Contains(text, "pinned") {
		t.Errorf("what is not wanted has the labels %q", text)
	}
	if text := h.labels(b); !strings.Contains(text, "io.cri-containerd.pinned=pinned") || strings.Contains(text, "noderefit") {
		t.Errorf("what somebody else has pinned has the labels %q", text)
	}
}

// silent is a registry that takes connections, and answers none. The host reaches it at the address of the listener.
func (h *holder) silent() net.Listener {
	h.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(h.t, err)
	h.t.Cleanup(func() { _ = listener.Close() })
	must(h.t, h.ConnectAt(listener.Addr().String(), listener.Addr().String()))
	return listener
}

// A pull that is under way ends when the agent gives it up: containerd closes its connection to the registry.
func TestAPullThatIsGivenUpEnds(t *testing.T) {
	h := newHolder(t)
	host, err := pins.New(h.root())
	must(t, err)
	defer host.Close()
	registry := h.silent()
	a := registry.Addr().String() + "/shop/a@sha256:" + strings.Repeat("a", 64)
	ctx, cancel := context.WithCancelCause(h.ctx)
	stop := errors.New("an update comes first")
	pulls := make(chan net.Conn, 1)
	go func() {
		defer close(pulls)
		if pull, err := registry.Accept(); err == nil {
			pulls <- pull
			cancel(stop)
		}
	}()
	if _, err := host.Keep(ctx, pins.Order{Images: []string{a}, Pull: true, Runtime: "containerd"}); !errors.Is(err, stop) {
		t.Errorf("the pull ends with %v", err)
	}
	must(t, registry.Close())
	if pull := <-pulls; pull == nil {
		t.Error("no pull has begun")
	} else {
		defer pull.Close()
		must(t, pull.SetReadDeadline(time.Now().Add(patience)))
		if _, err := io.Copy(io.Discard, pull); err != nil {
			t.Errorf("containerd goes on with the pull: %v", err)
		}
	}
	for _, runtime := range []string{"cri-o", "docker"} {
		_, err := host.Keep(h.ctx, pins.Order{Images: []string{a}, Pull: true, Runtime: runtime})
		if err == nil || !strings.Contains(err.Error(), runtime) {
			t.Errorf("%s: %v", runtime, err)
		}
	}
	_, err = h.Output(h.ctx, "systemctl", "stop", "containerd.service")
	must(t, err)
	_, err = host.Keep(h.ctx, pins.Order{Images: []string{a}, Pull: true, Runtime: "containerd"})
	if err == nil || !slices.ContainsFunc([]string{"does not listen", "connection refused"}, func(part string) bool {
		return strings.Contains(err.Error(), part)
	}) {
		t.Errorf("a runtime that does not run: %v", err)
	}
}
