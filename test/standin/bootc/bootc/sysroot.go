// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/noderefit/noderefit/ostree"
)

// guard is set in the environment of a program that has a mount namespace of its own.
const guard = "_ostree_unshared"

// enterNamespace makes /sysroot writable for this program alone: in a mount namespace that it makes, by running itself
// again, unless the caller has made one.
func enterNamespace() error {
	if os.Geteuid() != 0 {
		return failf("This command requires full root privileges (CAP_SYS_ADMIN)")
	}
	if _, err := os.Stat("/run/ostree-booted"); err != nil {
		return errors.New("this command requires a booted host system")
	}
	first, err := os.Readlink("/proc/1/ns/mnt")
	if err != nil {
		return err
	}
	own, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return err
	}
	if first == own {
		if os.Getenv(guard) != "" {
			return failf("Failed to unshare mount namespace")
		}
		self, err := os.Readlink("/proc/self/exe")
		if err != nil {
			return err
		}
		unshare, err := exec.LookPath("unshare")
		if err != nil {
			return err
		}
		argv := append([]string{"unshare", "--mount", "--", self}, os.Args[1:]...)
		return unix.Exec(unshare, argv, append(os.Environ(), guard+"=1"))
	}
	return unix.Mount("", "/sysroot", "", unix.MS_REMOUNT|unix.MS_BIND, "")
}

// tool runs one of ostree's and gives what it writes.
func tool(ctx context.Context, argv ...string) (string, error) {
	output, err := ostree.Exec(ctx, argv...)
	return strings.TrimSpace(string(output)), err
}

// lockPath is the file on which ostree takes the lock of the sysroot.
const lockPath = "/sysroot/ostree/lock"

// lock takes the lock of the sysroot, however long that takes, without a word to anything but a terminal. It returns
// what gives the lock back, once.
func lock() (unlock func(), err error) {
	for ; ; time.Sleep(100 * time.Millisecond) {
		file, err := os.OpenFile(lockPath, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		err = unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
		if err == nil && same(file) {
			return sync.OnceFunc(func() { _, _ = os.Remove(lockPath), file.Close() }), nil
		}
		_ = file.Close()
		if err != nil && !errors.Is(err, unix.EAGAIN) {
			return nil, err
		}
	}
}

// same says whether a lock is on the file that the next one will be taken on: ostree removes it when it gives it back.
func same(file *os.File) bool {
	ours, err := file.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(lockPath)
	return err == nil && os.SameFile(ours, there)
}

// touch sets the time by which others see that something has changed.
func touch() error {
	const dir = "/sysroot/ostree/bootc"
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	now := time.Now()
	return os.Chtimes(dir, now, now)
}

// markReboot tells whoever reboots machines by it that this one wants a reboot.
func markReboot(digest string) error {
	const mark = "/run/reboot-required"
	text := "bootc: Reboot required for image: " + digest
	if err := os.WriteFile(mark+".new", []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(mark+".new", mark)
}
