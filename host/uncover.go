// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// anchors are where ostree finds that it is booted, the deployments and the boot loader's entries, each with a file or
// link that is there on every host whose OS this agent switches. Below /run systemd listens, too.
var anchors = []anchor{{"/run", ostreeBooted}, {"/sysroot", "/sysroot/ostree/repo"}, {"/boot", "/boot/loader"}}

const ostreeBooted = "/run/ostree-booted"

type anchor struct{ mount, marker string }

// uncovered is the variable of a process that sees what others have covered: the mount points, separated by colons.
const uncovered = "NODEREFIT_UNCOVERED"

// Uncover has this program see what it goes back with where a unit, say, has mounted something over it: it is executed
// anew in a mount namespace of its own, without those mounts. It returns where nothing is covered, or where that can't
// be had.
func Uncover() error {
	if os.Getenv(uncovered) != "" || os.Geteuid() != 0 {
		return nil
	}
	if !exists(ostreeBooted) && !exists("/ostree") {
		return nil // no host with ostree
	}
	covered, err := covered()
	if err != nil || len(covered) == 0 {
		return err
	}
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: a thread that has another view of the host ends with its goroutine
		failed <- uncover(covered)
	}()
	return <-failed
}

// uncover returns only where it fails.
func uncover(covered []anchor) error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("making a mount namespace: %w", err)
	}
	// What the host mounts later is seen here, and what is unmounted here is not there.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("separating the mounts from the host's: %w", err)
	}
	var names []string
	for _, r := range covered {
		for !exists(r.marker) {
			if err := unix.Unmount(r.mount, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
				return fmt.Errorf("looking for %s below what is mounted at %s: %w", r.marker, r.mount, err)
			}
		}
		names = append(names, r.mount)
	}
	environment := append(os.Environ(), uncovered+"="+strings.Join(names, ":"))
	//nolint:gosec // this very program with its own arguments
	if err := syscall.Exec("/proc/self/exe", os.Args, environment); err != nil {
		return fmt.Errorf("executing this program anew: %w", err)
	}
	return nil
}

// covered are the anchors that something else is mounted over.
func covered() ([]anchor, error) {
	var missing []anchor
	for _, r := range anchors {
		if !exists(r.marker) {
			missing = append(missing, r)
		}
	}
	if len(missing) == 0 {
		return nil, nil
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("reading the mounts: %w", err)
	}
	return slices.DeleteFunc(missing, func(a anchor) bool { return mountedAt(string(mounts), a.mount) < 2 }), nil
}

// coveredMounts are the mount points of anchors that others on this host find something else at.
func coveredMounts() ([]string, error) {
	if text := os.Getenv(uncovered); text != "" {
		return strings.Split(text, ":"), nil
	}
	found, err := covered()
	var mounts []string
	for _, r := range found {
		mounts = append(mounts, r.mount)
	}
	return mounts, err
}

// mountedAt counts the mounts at a mount point, in the text of a mountinfo.
func mountedAt(mountinfo, at string) (n int) {
	for line := range strings.Lines(mountinfo) {
		if fields := strings.Fields(line); len(fields) > 4 && fields[4] == at {
			n++
		}
	}
	return n
}

func exists(name string) bool {
	_, err := os.Lstat(name)
	return !errors.Is(err, fs.ErrNotExist)
}
