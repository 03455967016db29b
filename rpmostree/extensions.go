// SPDX-License-Identifier: Apache-2.0

package rpmostree

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/noderefit/noderefit/message"
	"github.com/noderefit/noderefit/osimage"
	"github.com/noderefit/noderefit/ostree"
	"github.com/noderefit/noderefit/systemd"
)

// An image of extensions is a repository of packages in a container image. podman pulls it and mounts it, and what it
// has mounted is bound to a directory in /run: podman's own mounts reach nobody who has a mount namespace of his own,
// as rpm-ostree's daemon has. While it composes, a file among those of the host's repositories names that directory.
// Nothing is copied.
const (
	sourceUnit  = "noderefit-extensions"
	sourceMount = "/run/noderefit-extensions"
	// sourceRepo is where rpm-ostree reads which repositories there are, and nowhere else: in the running /etc.
	sourceRepo = "/etc/yum.repos.d/noderefit-extensions.repo"
	// sourceNote is there from before the first of these effects until after the last of them is undone, through a power
	// cut too.
	sourceNote = "/var/lib/machine-config-daemon/extensions.json"
	// sourcePackages is the repository in such an image.
	sourcePackages = "/usr/share/rpm-ostree/extensions"
)

// sourceFile is the text of sourceRepo. Packages have the keys of whoever built the image, which a host need not have;
// what is pulled is held to the host's policy for images instead. It may be skipped, so that what a power cut leaves of
// it does not break rpm-ostree for others; a package that is missing then is an error all the same.
const sourceFile = `# Of the update that is being composed. machine-config-daemon removes it.
[noderefit-extensions]
name=Extensions of the operating system
baseurl=file://` + sourceMount + sourcePackages + `/
enabled=1
gpgcheck=0
metadata_expire=1
skip_if_unavailable=True
`

// extensionsImage is the text of sourceNote.
type extensionsImage struct {
	Image string `json:"image"` // as podman names it
	// Ours says that the image was not there before: it goes again.
	Ours bool `json:"ours"`
}

// offer makes the packages of an image known to rpm-ostree, until Withdraw. What the network breaks is tried again. A
// dozen forks.
func (r *Driver) offer(ctx context.Context, image osimage.Image) error {
	doing := "fetching the extensions of " + image.String()
	failed := func(err error) error {
		if err == nil || errors.As(err, new(*ostree.Error)) {
			return err
		}
		return &ostree.Error{Class: ostree.Failed, Doing: doing, Err: err}
	}
	name := image.Target()
	note, err := r.offered()
	if err != nil {
		return failed(err)
	}
	switch {
	case note != nil && note.Image != name:
		if err := r.Withdraw(ctx); err != nil {
			return err
		}
		note = nil
	case note != nil:
		if err := r.tools.Wait(ctx, sourceUnit); err != nil {
			return failed(err)
		}
		if err := r.unmount(ctx); err != nil {
			return failed(err)
		}
	}
	podman := r.tools.In(sourceUnit, systemd.Command{Description: "podman pull " + name,
		EnvironmentFiles: []string{osimage.ProxyFile}})
	if note == nil {
		there, err := imageExists(ctx, podman, name)
		if err != nil {
			return r.podmanFailing(doing, image, err)
		}
		if err := r.note(extensionsImage{Image: name, Ours: !there}); err != nil {
			return failed(err)
		}
	}
	if err := r.pullSource(ctx, doing, image, podman); err != nil {
		return err
	}
	output, err := podman(ctx, "podman", "image", "mount", name)
	if err != nil {
		return r.podmanFailing(doing, image, err)
	}
	at := message.LastLine(string(output))
	if !strings.HasPrefix(at, "/") {
		return failed(fmt.Errorf("podman image mount said %q, which is no path", at))
	}
	if err := os.MkdirAll(r.host(sourceMount), 0o755); err != nil {
		return failed(err)
	}
	if _, err := podman(ctx, "mount", "-o", "bind,ro", at, sourceMount); err != nil {
		return failed(err)
	}
	return failed(replaceFile(r.host(sourceRepo), []byte(sourceFile), 0o644))
}

// imageExists says whether podman has an image. It says no by exit status 1, without a word; an image of somebody's is
// not to be taken for ours because it could not be asked.
func imageExists(ctx context.Context, podman ostree.Runner, name string) (bool, error) {
	_, err := podman(ctx, "podman", "image", "exists", name)
	command, _ := errors.AsType[*ostree.CommandError](err)
	if no := (systemd.Ended{Result: "exit-code", Status: 1}); errors.Is(err, no) && command.Stderr == "" {
		return false, nil
	}
	return err == nil, err
}

// pullSource pulls an image with podman. What is there already is only looked up.
func (r *Driver) pullSource(ctx context.Context, doing string, image osimage.Image, podman ostree.Runner) error {
	argv := []string{"podman", "pull", "--quiet"}
	for _, path := range append(slices.Clip(osimage.AuthPaths), osimage.KubeletAuthPath) {
		if _, err := os.Stat(r.host(path)); err == nil {
			argv = append(argv, "--authfile="+path)
			break
		}
	}
	argv = append(argv, image.Target())
	return ostree.Retry(ctx, r.delays, r.say, func() error {
		r.say("pulling " + image.String())
		if _, err := podman(ctx, argv...); err != nil {
			return r.podmanFailing(doing, image, err)
		}
		return nil
	})
}

// podmanFailing makes an Error of what podman came to: below it are the libraries that are below bootc.
func (r *Driver) podmanFailing(doing string, image osimage.Image, err error) error {
	return r.withHint(osimage.Failing(doing, nil, err), image)
}

// Withdraw takes back that the packages of an image are known to rpm-ostree, whoever has begun it, and removes the
// image if it was not there before. No fork where there is none.
func (r *Driver) Withdraw(ctx context.Context) error {
	const doing = "letting go of the image of extensions"
	failed := func(err error) error { return &ostree.Error{Class: ostree.Failed, Doing: doing, Err: err} }
	note, err := r.offered()
	if err != nil {
		return failed(err)
	}
	if note == nil {
		return nil
	}
	if err := r.tools.Stop(ctx, sourceUnit); err != nil {
		return failed(err)
	}
	if err := r.unmount(ctx); err != nil {
		return failed(err)
	}
	podman := r.tools.In(sourceUnit, systemd.Command{Description: "podman image rm " + note.Image})
	if _, err := podman(ctx, "podman", "image", "unmount", "--force", note.Image); err != nil && !unknownImage(err) {
		return failed(err)
	}
	if note.Ours {
		if _, err := podman(ctx, "podman", "image", "rm", note.Image); err != nil && !unknownImage(err) {
			if !strings.Contains(err.Error(), "image is in use") {
				return failed(err)
			}
			r.say("leaving the image " + note.Image + ": " + err.Error())
		}
	}
	if err := os.Remove(r.host(sourceNote)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return failed(err)
	}
	return nil
}

// unmount takes the repository from rpm-ostree, through a power cut too: the note may be on another disk, and nobody
// looks for it without that. The image stays.
func (r *Driver) unmount(ctx context.Context) error {
	for _, path := range []string{sourceRepo, sourceRepo + replaceSuffix} {
		err := os.Remove(r.host(path))
		if err == nil {
			err = syncDir(filepath.Dir(r.host(path)))
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if _, err := os.Stat(r.host(sourceMount)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	host := r.tools.In(sourceUnit, systemd.Command{Description: "umount " + sourceMount})
	// Whoever reads a package of it ends with that; the next one finds nothing.
	_, err := host(ctx, "umount", "--lazy", sourceMount)
	if command, is := errors.AsType[*ostree.CommandError](err); err != nil &&
		(!is || !strings.Contains(command.Stderr, "not mounted") && !strings.Contains(command.Stderr, "no mount point")) {
		return err
	}
	err = os.Remove(r.host(sourceMount))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// unknownImage says whether podman failed because there is no such image.
func unknownImage(err error) bool {
	command, is := errors.AsType[*ostree.CommandError](err)
	return is && strings.Contains(command.Stderr, "image not known")
}

// offered is the note of what was begun, nil if nothing was.
func (r *Driver) offered() (*extensionsImage, error) {
	text, err := os.ReadFile(r.host(sourceNote))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var note extensionsImage
	if err := json.Unmarshal(text, &note); err != nil {
		return nil, fmt.Errorf("reading %s: %w", sourceNote, err)
	}
	return &note, nil
}

func (r *Driver) note(n extensionsImage) error {
	text, err := json.Marshal(n)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(r.host(sourceNote)), 0o700); err != nil {
		return err
	}
	return replaceFile(r.host(sourceNote), text, 0o600)
}

// replaceSuffix is what the name of a file has while it is written.
const replaceSuffix = ".new"

// replaceFile writes a file so that it is there whole or not at all, through a power cut too.
func replaceFile(at string, text []byte, mode fs.FileMode) error {
	file, err := os.OpenFile(at+replaceSuffix, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(at+replaceSuffix, at)
	}
	if err != nil {
		return err
	}
	return syncDir(filepath.Dir(at))
}

// syncDir makes durable which names a directory has.
func syncDir(name string) error {
	dir, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
