// SPDX-License-Identifier: Apache-2.0

package bootc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"github.com/noderefit/noderefit/osimage"
	"github.com/noderefit/noderefit/ostree"
)

const (
	// boundDir is the directory where an image links the units whose container images it is bound to.
	boundDir = "/usr/lib/bootc/bound-images.d"
	// boundStore is bootc's own storage of container images.
	boundStore = "/sysroot/ostree/bootc/storage"
	// scratchDir is an empty storage for the podman that looks into bootc's. podman writes into the one that it is run on,
	// and /sysroot is read-only.
	scratchDir = stateDir + ".podman"
)

// lostBound returns a container image that a commit is bound to and that bootc's storage lacks, and "" if none is
// lacking. bootc pulls them before it stages, and a later clean-up of bootc removes them, if no deployment is bound to
// them. One fork, and two for each image.
func (b *Driver) lostBound(ctx context.Context, checksum string) (string, error) {
	doing := "looking for the images that " + checksum + " is bound to"
	listing, err := b.run(ctx, "ostree", "ls", checksum, boundDir)
	if command, ok := errors.AsType[*ostree.CommandError](err); ok && strings.Contains(command.Stderr, noSuchFile) {
		return "", nil
	}
	if err != nil {
		return "", ostree.Failing(doing, listing, err)
	}
	for line := range strings.Lines(string(listing)) {
		name, unit, isLink := strings.Cut(strings.TrimSpace(line), " -> ")
		if !isLink {
			continue
		}
		if !path.IsAbs(unit) {
			unit = path.Join(boundDir, unit)
		}
		text, err := b.run(ctx, "ostree", "cat", checksum, unit)
		if err != nil {
			return "", ostree.Failing(doing, text, err)
		}
		image, err := boundImage(path.Ext(name), string(text))
		if err != nil {
			return "", &ostree.Error{Class: ostree.Invalid, Doing: doing, Err: fmt.Errorf("reading %s: %w", unit, err)}
		}
		there, err := b.stored(ctx, doing, image)
		if err != nil || !there {
			return image, err
		}
	}
	return "", nil
}

// boundImage returns the image of a unit, whose file has the extension .container or .image.
func boundImage(extension, text string) (string, error) {
	group := map[string]string{".container": "Container", ".image": "Image"}[extension]
	image := ostree.ParseKeyFile(text)[group]["Image"]
	if image == "" {
		return "", errors.New("it names no image")
	}
	return strings.ReplaceAll(image, "%%", "%"), nil
}

// stored reports whether bootc's storage has an image. One fork.
func (b *Driver) stored(ctx context.Context, doing, image string) (bool, error) {
	output, err := b.run(ctx, "podman", "--root", scratchDir+"/root", "--runroot", scratchDir+"/run",
		"--storage-opt", "additionalimagestore="+boundStore, "image", "exists", image)
	if removeErr := os.RemoveAll(b.host(scratchDir)); removeErr != nil {
		return false, wrapFailed(doing, removeErr)
	}
	if err == nil {
		return true, nil
	}
	if ended, ok := errors.AsType[interface {
		error
		ExitCode() int
	}](err); ok && ended.ExitCode() == 1 {
		return false, nil
	}
	return false, osimage.Failing(doing, output, err)
}
