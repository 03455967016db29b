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

// etc is where systemd-confext lays extensions over the files of a configuration, read-only.
const etc = "/etc"

const ostreeBooted = "/run/ostree-booted"

type anchor struct{ mount, marker string }

// uncovered is the environment variable of a process that sees the places that mounts of others have covered. Its value
// lists the mount points, separated by colons.
const uncovered = "NODEREFIT_UNCOVERED"

// Uncover makes this program see the files that a rollback needs where something else, such as a unit, has mounted over
// them, and the files of /etc that extensions cover. The program is executed again in its own mount namespace, without
// those mounts. Uncover returns where nothing is covered, or where the new execution fails.
func Uncover() error {
	if os.Geteuid() != 0 {
		return nil
	}
	var away []string
	if os.Getenv(uncovered) == "" && (exists(ostreeBooted) || exists("/ostree")) { // a host with ostree
		var err error
		if away, err = covered(); err != nil {
			return err
		}
	}
	if !etcUncovered() && EtcExtended() {
		away = append(away, etc)
	}
	if len(away) == 0 {
		return nil
	}
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread has another view of the host, and ends with its goroutine
		failed <- uncover(away)
	}()
	return <-failed
}

// uncover returns only where it fails.
func uncover(away []string) error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("making a mount namespace: %w", err)
	}
	// The host's later mounts appear here too, and unmounting here changes nothing on the host.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("separating the mounts from the host's: %w", err)
	}
	for _, at := range away {
		for hidden(at) {
			if err := unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
				return fmt.Errorf("looking below what is mounted at %s: %w", at, err)
			}
		}
	}
	if slices.Contains(away, etc) {
		if err := keepEtc(); err != nil {
			return err
		}
	}
	names := append(already(), away...)
	environment := append(os.Environ(), uncovered+"="+strings.Join(names, ":"))
	//nolint:gosec // this very program with its own arguments
	if err := syscall.Exec("/proc/self/exe", os.Args, environment); err != nil {
		return fmt.Errorf("executing this program anew: %w", err)
	}
	return nil
}

// hidden reports whether a mount hides what is needed at a mount point, in the mount namespace of this thread.
func hidden(at string) bool {
	if at == etc {
		return extended("/proc/thread-self/mountinfo")
	}
	return slices.ContainsFunc(anchors, func(a anchor) bool { return a.mount == at && !exists(a.marker) })
}

// keepEtc has the extensions of /etc that are merged from now on stay away from here.
func keepEtc() error {
	err := unix.Mount("", etc, "", unix.MS_PRIVATE, "")
	if errors.Is(err, unix.EINVAL) { // no mount point of its own
		err = unix.Mount("", "/", "", unix.MS_PRIVATE, "")
	}
	if err != nil {
		return fmt.Errorf("separating /etc from the host's: %w", err)
	}
	return nil
}

// already returns the mount points that an earlier execution of this program has uncovered.
func already() []string {
	return strings.FieldsFunc(os.Getenv(uncovered), func(c rune) bool { return c == ':' })
}

// etcUncovered reports whether this program sees the /etc below the extensions that the host has merged.
func etcUncovered() bool { return slices.Contains(already(), etc) }

// EveryonesRoot is the path of the root directory as the other programs of the host see it.
func EveryonesRoot() string {
	if etcUncovered() {
		return "/proc/1/root"
	}
	return "/"
}

// EtcExtended reports whether extensions are merged into the host's /etc.
func EtcExtended() bool { return extended("/proc/1/mountinfo") }

// extended reports whether systemd-confext has the uppermost mount at /etc. A mountinfo that can't be read has none.
func extended(mountinfo string) (is bool) {
	text, err := os.ReadFile(mountinfo)
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 4 && fields[4] == etc {
			is = strings.Contains(line, " - overlay confext ")
		}
	}
	return is
}

// covered returns the mount points of the anchors that something else is mounted over.
func covered() ([]string, error) {
	var missing []string
	for _, r := range anchors {
		if !exists(r.marker) {
			missing = append(missing, r.mount)
		}
	}
	if len(missing) == 0 {
		return nil, nil
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("reading the mounts: %w", err)
	}
	return slices.DeleteFunc(missing, func(at string) bool { return mountedAt(string(mounts), at) < 2 }), nil
}

// CoveredMounts returns the mount points of the anchors that are covered for the other processes of this host.
func CoveredMounts() ([]string, error) {
	if names := already(); len(names) > 0 {
		return slices.DeleteFunc(names, func(name string) bool { return name == etc }), nil
	}
	return covered()
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
