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

// An image of extensions is a repository of packages in a container image. podman pulls and mounts the image. The mount
// is bound to a directory in /run, because a process with its own mount namespace, such as rpm-ostree's daemon, does
// not see podman's mounts. During the composing, a file among the host's repositories names that directory. Nothing is
// copied.
const (
	sourceUnit  = "noderefit-extensions"
	sourceMount = "/run/noderefit-extensions"
	// sourceRepo is a file in the running /etc, which is the only place where rpm-ostree looks for repositories.
	sourceRepo = "/etc/yum.repos.d/noderefit-extensions.repo"
	// sourceNote exists from before the first of these effects until after the last of them is undone. It survives a power
	// cut.
	sourceNote = "/var/lib/machine-config-daemon/extensions.json"
	// sourcePackages is the repository in such an image.
	sourcePackages = "/usr/share/rpm-ostree/extensions"
)

// sourceFile is the text of sourceRepo. The packages are signed with the keys of the image's builder, which a host need
// not have. Instead, the image has to satisfy the host's policy for images. rpm-ostree may skip the repository, so what
// a power cut leaves behind does not break rpm-ostree for other callers. A package that is missing then is still an
// error.
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
	Image string `json:"image"` // podman's name for the image
	// Ours means that the image was not on the host before, so it is removed again.
	Ours bool `json:"ours"`
}

// offer lets rpm-ostree find the packages of an image, until Withdraw. After a network error offer tries again. About
// twelve forks.
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
		return failed(fmt.Errorf("podman image mount printed %q, which is not a path", at))
	}
	if err := os.MkdirAll(r.host(sourceMount), 0o755); err != nil {
		return failed(err)
	}
	if _, err := podman(ctx, "mount", "-o", "bind,ro", at, sourceMount); err != nil {
		return failed(err)
	}
	return failed(replaceFile(r.host(sourceRepo), []byte(sourceFile), 0o644))
}

// imageExists reports whether podman has an image. podman answers no with exit status 1 and no text. Any other failure
// is an error: otherwise an image of the admin's would be taken for ours.
func imageExists(ctx context.Context, podman ostree.Runner, name string) (bool, error) {
	_, err := podman(ctx, "podman", "image", "exists", name)
	command, _ := errors.AsType[*ostree.CommandError](err)
	if no := (systemd.Ended{Result: "exit-code", Status: 1}); errors.Is(err, no) && command.Stderr == "" {
		return false, nil
	}
	return err == nil, err
}

// pullSource pulls an image with podman. An image that is already there is only looked up.
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

// podmanFailing makes an Error of podman's failure. podman uses the same libraries as bootc.
func (r *Driver) podmanFailing(doing string, image osimage.Image, err error) error {
	return r.withHint(osimage.Failing(doing, nil, err), image)
}

// Withdraw hides the packages of an image from rpm-ostree again, also if another process has offered them. It removes
// the image if that was not there before. No fork where nothing was offered.
func (r *Driver) Withdraw(ctx context.Context) error {
	const doing = "releasing the image of extensions"
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

// unmount takes the repository from rpm-ostree. The removal of its file is made durable, because the note may be on
// another disk: without the note, nothing looks for the file after a power cut. The image stays.
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
	// A process that is reading a package can finish it. The next process finds nothing.
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

// unknownImage reports whether podman failed because it does not have the image.
func unknownImage(err error) bool {
	command, is := errors.AsType[*ostree.CommandError](err)
	return is && strings.Contains(command.Stderr, "image not known")
}

// offered returns the note on what was begun, nil if nothing was.
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

// replaceSuffix ends the name of a file while it is written.
const replaceSuffix = ".new"

// replaceFile writes a file completely or not at all, even if the power goes meanwhile.
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

// syncDir makes the names in a directory durable.
func syncDir(name string) error {
	dir, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
