// SPDX-License-Identifier: Apache-2.0

package pins

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/osimage"
	"github.com/noderefit/noderefit/systemd"
)

// Order asks for images on a host.
type Order struct {
	// Images are the names of images, by digest. Images that we pinned and that are not among them are unpinned.
	Images []string
	// Skip has images that are not pulled this time.
	Skip map[string]string
	// Pull allows to pull images. Without it those that the host has are pinned.
	Pull bool
	// MinFree is how many bytes stay free on the disk; zero: a share of it, see spareShare.
	MinFree uint64
	// Runtime is the name of the node's runtime: containerd or cri-o.
	Runtime string
}

// State is what a host has of an Order.
type State struct {
	// Missing are the images that are not pinned on the host, each with the reason, which is empty for an image whose turn
	// has not come.
	Missing map[string]string
}

// roundLimit is how long after the beginning of Keep a pull may begin. So the state is known while many are pulled.
const roundLimit = 30 * time.Second

// spareShare is the share of the file system that stays free where nothing else is ordered: the kubelet evicts pods
// below 15 % of the file system with the images.
const spareShare = 15

// shownLimit is how long a runtime may take until it shows an image as pinned.
const shownLimit = 10 * time.Second

// sockets are where runtimes listen, by their names.
var sockets = map[string][]string{
	"containerd": {"/run/containerd/containerd.sock", "/run/k3s/containerd/containerd.sock"},
	"cri-o":      {"/run/crio/crio.sock"},
}

// containerdNamespace is the namespace in which containerd has the kubelet's images.
const containerdNamespace = "k8s.io"

// Host is a host whose root is mounted at a directory.
type Host struct {
	// Space returns the free space of the file system that holds a directory of the host: New sets files.Root's.
	Space func(directory string) (files.Space, error)

	root  *files.Root
	mount string
	// crioTold is told of crio.
	crioTold bool
}

// New returns the host whose root is at mount.
func New(mount string) (*Host, error) {
	root, err := files.Open(mount)
	if err != nil {
		return nil, err
	}
	return &Host{root: root, mount: root.Path(), Space: root.Space}, nil
}

// Close releases the host.
func (h *Host) Close() error { return h.root.Close() }

// connect finds the socket of the runtime.
func (h *Host) connect(runtime string) (*conn, engine, error) {
	of := sockets[runtime]
	if of == nil {
		return nil, nil, fmt.Errorf("pinning images: the node's runtime is %q, and only containerd and cri-o can pin images",
			runtime)
	}
	for _, socket := range of {
		dir, err := h.root.Resolve(path.Dir(socket))
		if err != nil {
			continue
		}
		at := path.Join(h.mount, dir, path.Base(socket))
		if is, err := os.Stat(at); err != nil || is.Mode().Type() != fs.ModeSocket {
			continue
		}
		if runtime == "cri-o" {
			return dial(at, socket, ""), crio{h.root, h.reloadCRIO, &h.crioTold}, nil
		}
		c := dial(at, socket, containerdNamespace)
		return c, containerd{c}, nil
	}
	return nil, nil, fmt.Errorf("pinning images: %s does not listen at %s: is it running?", runtime,
		strings.Join(of, " or "))
}

func (h *Host) reloadCRIO(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	m, err := systemd.ConnectAt(ctx, h.mount)
	if err != nil {
		return err
	}
	defer m.Close()
	return m.ReloadUnit(ctx, "crio.service")
}

// Keep brings the host nearer to an order, and returns what it lacks. It pulls one image after the other, for a while.
// The error is that of a host that can't be asked; what fails with one image is in the state.
func (h *Host) Keep(ctx context.Context, o Order) (State, error) {
	begun := time.Now()
	c, e, err := h.connect(o.Runtime)
	if err != nil {
		return State{}, err
	}
	defer c.close()
	has, err := c.images(ctx)
	if err != nil {
		return State{}, err
	}
	if err := e.want(ctx, normal(o.Images)); err != nil {
		return State{}, err
	}
	steps := decide(o.Images, has)
	s := State{Missing: map[string]string{}}
	for _, image := range steps.Pin {
		s.Missing[image] = because("pinning", e.pin(ctx, image))
	}
	var full error
	pulled := map[string]bool{}
	for _, image := range steps.Pull {
		s.Missing[image] = because("pulling", full) // the others would fail alike
		if full != nil || o.Skip[image] != "" || !o.Pull || time.Since(begun) > roundLimit {
			continue
		}
		err := h.pull(ctx, c, image, o.MinFree)
		if context.Cause(ctx) != nil {
			return State{}, context.Cause(ctx)
		}
		if s.Missing[image] = because("pulling", err); err == nil {
			pulled[image] = true
			s.Missing[image] = because("pinning", e.pin(ctx, image))
		}
		if errors.As(err, new(*files.LowDisk)) {
			full = err
		}
	}
	return s, h.confirm(ctx, c, o.Images, pulled, s)
}

func normal(images []string) []string {
	out := make([]string, len(images))
	for i, image := range images {
		out[i] = Normal(image)
	}
	return out
}

// because returns why an image is missing, empty where nothing is known.
func because(doing string, err error) string {
	if err == nil {
		return ""
	}
	return doing + " it: " + err.Error()
}

// confirm asks the runtime what it shows, and takes those images from the missing ones that are pinned. confirm asks
// again and again for a while: the part of containerd that speaks CRI learns of a label by an event, which comes a
// little after the label. An image that was pulled and is not shown has a reason too.
func (h *Host) confirm(ctx context.Context, c *conn, wanted []string, pulled map[string]bool, s State) error {
	if len(s.Missing) == 0 {
		return nil
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(shownLimit); ; {
		has, err := c.images(ctx)
		if err != nil {
			return err
		}
		left := decide(wanted, has)
		lacks, late := map[string]bool{}, false
		for _, image := range left.Pull {
			lacks[image] = true
			late = late || pulled[image] && s.Missing[image] == ""
		}
		for _, image := range left.Pin {
			lacks[image] = true
			late = late || s.Missing[image] == ""
		}
		if late && time.Now().Before(end) {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-tick.C:
			}
			continue
		}
		for _, image := range left.Pin {
			if s.Missing[image] == "" {
				s.Missing[image] = "the runtime has it, and does not show it as pinned: a newer containerd or CRI-O does"
			}
		}
		for _, image := range left.Pull {
			if pulled[image] && s.Missing[image] == "" {
				s.Missing[image] = "the runtime has pulled it, and does not show it under this name"
			}
		}
		for image := range s.Missing {
			if !lacks[image] {
				delete(s.Missing, image)
			}
		}
		return nil
	}
}

// pull pulls an image as long as the disk keeps its floor.
func (h *Host) pull(ctx context.Context, c *conn, image string, floor uint64) error {
	place, err := c.store(ctx)
	if err != nil {
		return err
	}
	look := func() error { return h.aboveFloor(place, floor) }
	if err := look(); err != nil {
		return err
	}
	repository, _, _ := strings.Cut(image, "@")
	user, password, err := osimage.KubeletLogin(h.root.ReadFile, repository)
	if err != nil {
		return err
	}
	return files.WhileAbove(ctx, look, func(ctx context.Context) error { return c.pull(ctx, image, user, password) })
}

// aboveFloor refuses a file system that has less free space than has to stay.
func (h *Host) aboveFloor(place string, floor uint64) error {
	if place == "" {
		place = "/var"
	}
	room, err := h.Space(place)
	if errors.Is(err, fs.ErrNotExist) {
		place = "/var"
		room, err = h.Space(place)
	}
	if err != nil {
		return err
	}
	if floor == 0 {
		floor = room.Total / 100 * spareShare
	}
	return room.Above(floor, place)
}
