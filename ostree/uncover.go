// SPDX-License-Identifier: Apache-2.0

package ostree

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

// anchors are the mount points below which ostree finds the mark of a booted host, the deployments and the boot
// loader's entries. Each has a marker, a file or link that exists on every host whose OS this agent switches. systemd
// listens below /run, too.
var anchors = []anchor{{"/run", ostreeBooted}, {"/sysroot", "/sysroot/ostree/repo"}, {"/boot", "/boot/loader"}}

const ostreeBooted = "/run/ostree-booted"

type anchor struct{ mount, marker string }

// uncovered is the environment variable of a process that sees the places that mounts of others have covered. Its value
// lists the mount points, separated by colons.
const uncovered = "NODEREFIT_UNCOVERED"

// Uncover makes this program see the files that a rollback needs where something else, such as a unit, has mounted over
// them. The program is executed again in its own mount namespace, without those mounts. Uncover returns where nothing
// is covered, or where the new execution fails.
func Uncover() error {
	if os.Getenv(uncovered) != "" || os.Geteuid() != 0 {
		return nil
	}
	if !exists(ostreeBooted) && !exists("/ostree") {
		return nil // not a host with ostree
	}
	covered, err := covered()
	if err != nil || len(covered) == 0 {
		return err
	}
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread has another view of the host, and ends with its goroutine
		failed <- uncover(covered)
	}()
	return <-failed
}

// uncover returns only where it fails.
func uncover(covered []anchor) error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("making a mount namespace: %w", err)
	}
	// The host's later mounts appear here too, and unmounting here changes nothing on the host.
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

// covered returns the anchors that something else is mounted over.
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

// CoveredMounts returns the mount points of the anchors that are covered for the other processes of this host.
func CoveredMounts() ([]string, error) {
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
