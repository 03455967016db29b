// SPDX-License-Identifier: Apache-2.0

package pins

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/noderefit/noderefit/files"
)

// engine pins images. Each runtime does so in its own way: CRI tells whether an image is pinned, and pins none.
type engine interface {
	// want is told the normal names of all wanted images, before any of them is pulled or pinned. want takes back our pins
	// of all other images. These images stay until the kubelet needs their room.
	want(ctx context.Context, images []string) error
	// pin pins a wanted image that the runtime has.
	pin(ctx context.Context, image string) error
}

// containerd pins an image by a label, which its part for the kubelet reads.
type containerd struct{ *conn }

const (
	imagesService = "containerd.services.images.v1.Images/"
	// pinnedLabel is containerd's, and ourLabel tells our pins from those of others.
	pinnedLabel, pinnedValue = "io.cri-containerd.pinned", "pinned"
	ourLabel, ourValue       = "noderefit.dev/pinned", "true"
)

// ours returns the images that we pinned.
func (c containerd) ours(ctx context.Context) (out []string, err error) {
	answer, err := c.ask(ctx, imagesService+"List", message{}.text(1, fmt.Sprintf("labels.%q==%s", ourLabel, ourValue)))
	if err != nil {
		return nil, fmt.Errorf("listing the images that were pinned here: %w", err)
	}
	var inner error
	err = answer.each(func(field protowire.Number, image message, _ uint64) {
		if field != 1 {
			return
		}
		names, err := image.texts(1)
		inner = errors.Join(inner, err)
		out = append(out, names...)
	})
	return out, errors.Join(err, inner)
}

// want removes the labels of images that are not wanted: containerd removes labels without a value.
func (c containerd) want(ctx context.Context, images []string) error {
	ours, err := c.ours(ctx)
	if err != nil {
		return err
	}
	for _, image := range unwanted(images, ours) {
		if err := c.label(ctx, image, "", ""); err != nil {
			return fmt.Errorf("unpinning %s: %w", image, err)
		}
	}
	return nil
}

func (c containerd) pin(ctx context.Context, image string) error {
	return c.label(ctx, image, pinnedValue, ourValue)
}

// label sets the two labels, and leaves all others as they are. The image's target goes along, although it does not
// change: containerd 1.7 ends with a panic where it is missing.
func (c containerd) label(ctx context.Context, image, pinned, our string) error {
	target, err := c.target(ctx, image)
	if err != nil {
		return err
	}
	entry := func(key, value string) message { return message{}.text(1, key).text(2, value) }
	m := message{}.
		with(1, message{}.text(1, image).with(2, entry(pinnedLabel, pinned)).with(2, entry(ourLabel, our)).with(3, target)).
		with(2, message{}.text(1, "labels."+pinnedLabel).text(1, "labels."+ourLabel))
	_, err = c.ask(ctx, imagesService+"Update", m)
	return err
}

// target returns the descriptor that an image's name stands for.
func (c containerd) target(ctx context.Context, image string) (target message, err error) {
	answer, err := c.ask(ctx, imagesService+"Get", message{}.text(1, image))
	if err != nil {
		return nil, err
	}
	var inner error
	err = answer.each(func(field protowire.Number, is message, _ uint64) {
		if field != 1 {
			return
		}
		inner = is.each(func(field protowire.Number, value message, _ uint64) {
			if field == 3 {
				target = value
			}
		})
	})
	if err = errors.Join(err, inner); err == nil && len(target) == 0 {
		err = fmt.Errorf("containerd has no descriptor for %s", image)
	}
	return target, err
}

// crio pins the images that a drop-in names.
type crio struct {
	root   *files.Root
	reload func(ctx context.Context) error
	// told reports whether CRI-O was reloaded since this agent began, and since the drop-in last changed.
	told *bool
}

// crioDropIn is the drop-in of CRI-O with the pinned images. The machine-config-operator has the same path.
const crioDropIn = "/etc/crio/crio.conf.d/50-pinned-images"

// want writes the drop-in, and has CRI-O read the drop-in. An agent that ended in between has left no word of the
// change, so each agent has CRI-O read the drop-in once. CRI-O pins an image that the drop-in names as soon as CRI-O
// has the image.
func (c crio) want(ctx context.Context, images []string) error {
	before, err := c.root.ReadFile(crioDropIn)
	there := err == nil
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("reading CRI-O's pinned images: %w", err)
	}
	after := dropIn(images)
	if len(images) == 0 && there || len(images) > 0 && !bytes.Equal(before, after) {
		*c.told = false
		if err := c.put(after, len(images) > 0); err != nil {
			return err
		}
	}
	if *c.told {
		return nil
	}
	if err := c.reload(ctx); err != nil {
		return fmt.Errorf("having CRI-O read its pinned images: %w", err)
	}
	*c.told = true
	return nil
}

// put writes the drop-in, or removes it where there is to be none.
func (c crio) put(text []byte, there bool) error {
	err := c.root.MkdirAll(path.Dir(crioDropIn), 0o755)
	switch {
	case err != nil:
	case there:
		err = c.root.WriteRecord(crioDropIn, text, 0o644)
	default:
		err = c.root.Remove(crioDropIn)
	}
	if err != nil {
		return fmt.Errorf("writing CRI-O's pinned images: %w", err)
	}
	return nil
}

func (c crio) pin(context.Context, string) error { return nil }

// dropIn returns the drop-in that pins images.
func dropIn(images []string) []byte {
	var b bytes.Buffer
	b.WriteString("# Noderefit's agent writes this file, from PinnedImageSets.\n[crio.image]\npinned_images = [\n")
	for _, image := range slices.Sorted(slices.Values(images)) {
		fmt.Fprintf(&b, "  %q,\n", image)
	}
	b.WriteString("]\n")
	return b.Bytes()
}
