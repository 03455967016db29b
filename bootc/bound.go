// SPDX-License-Identifier: Apache-2.0

package bootc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/noderefit/noderefit/osimage"
	"github.com/noderefit/noderefit/ostree"
)

const (
	// boundDir is the directory where an image links the units whose container images it is bound to.
	boundDir = "/usr/lib/bootc/bound-images.d"
	// boundStore is bootc's own storage of container images, and boundLink is its name for people.
	boundStore = "/sysroot/ostree/bootc/storage"
	boundLink  = "/usr/lib/bootc/storage"
	// scratchDir is an empty storage for the podman that looks into bootc's. podman writes into the one that it is run on,
	// and /sysroot is read-only.
	scratchDir = stateDir + ".podman"
)

// BoundCheck returns the two parts of the question whether all images are there that a commit is bound to. ask looks
// for them, and fails where it can't. lacks is for the time after ask, and returns the error of an image that is not
// there. Once all are there, they are not looked for again: bootc keeps the images of a deployment.
func (b *Driver) BoundCheck(checksum string) (ask func(context.Context) error, lacks func(context.Context) error) {
	image, whole := "", false
	ask = func(ctx context.Context) (err error) {
		if !whole {
			image, err = b.lostBound(ctx, checksum)
			whole = err == nil && image == ""
		}
		return err
	}
	lacks = func(context.Context) error {
		if image == "" {
			return nil
		}
		return fmt.Errorf("the container image %s, which the booted image is bound to, is not in %s: something has removed "+
			"the container image; stage the configuration again, for which bootc fetches the container image", image, boundLink)
	}
	return ask, lacks
}

// lostBound returns a container image that a commit is bound to and that bootc's storage lacks, and "" if none is
// lacking. bootc pulls them before it stages, and a later clean-up of bootc removes them, if no deployment is bound to
// them. One fork if it is bound to none, otherwise one more, and three for each image.
func (b *Driver) lostBound(ctx context.Context, checksum string) (string, error) {
	doing := "looking for the images that " + checksum + " is bound to"
	dir, err := b.resolve(ctx, doing, checksum, boundDir)
	if err != nil || dir == "" {
		return "", err
	}
	listing, err := b.run(ctx, "ostree", "ls", checksum, dir)
	if err != nil {
		return "", ostree.Failing(doing, listing, err)
	}
	for line := range strings.Lines(string(listing)) {
		link, _, isLink := strings.Cut(strings.TrimSpace(line), " -> ")
		at := strings.Index(link, " "+dir+"/")
		if !isLink || at < 0 {
			continue
		}
		unit := link[at+1:]
		text, err := b.read(ctx, doing, checksum, unit)
		if err != nil {
			return "", err
		}
		image, err := boundImage(path.Ext(unit), string(text))
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
	// podman fails if the storage is not there.
	if _, err := os.Stat(b.host(boundStore)); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	output, err := b.run(ctx, "podman", "--root", scratchDir+"/root", "--runroot", scratchDir+"/run",
		"--storage-opt", "additionalimagestore="+boundStore, "image", "exists", "--", image)
	if removeErr := os.RemoveAll(b.host(scratchDir)); removeErr != nil && b.Progress != nil {
		b.Progress("an empty storage of podman is left: " + removeErr.Error()) // podman has answered all the same
	}
	ended, ok := errors.AsType[interface {
		error
		ExitCode() int
	}](err)
	switch {
	case err == nil:
		return true, nil
	case !ok || ended.ExitCode() < 0: // podman did not run, or was stopped
		return false, osimage.Failing(doing, output, err)
	case ended.ExitCode() == 1:
		return false, nil
	}
	// podman's texts are not those of registries.
	return false, wrapFailed(doing, err)
}
