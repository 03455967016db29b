// SPDX-License-Identifier: Apache-2.0

package transaction

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/noderefit/noderefit/files"
)

// DeploymentSpace refuses a host without room for another deployment.
func DeploymentSpace(ctx context.Context, root *files.Root) error {
	return errors.Join(entrySpace(root), checkoutSpace(ctx, root))
}

// The space that ostree needs in /boot for one more deployment whose kernel is there: a second copy of the boot
// loader's entries, and links. An entry is a few hundred bytes.
const (
	entryBytes  = 64 << 10
	entryInodes = 16
)

// entrySpace refuses a /boot without room for another entry; the room for kernels has been checked before.
func entrySpace(root *files.Root) error {
	room, err := root.Space("/boot")
	if err != nil {
		return err
	}
	if room.Bytes < entryBytes || room.Inodes < entryInodes {
		return fmt.Errorf("checking space: a boot entry needs %d bytes and %d inodes in /boot, where %d bytes and %d inodes "+
			"are free: %w", entryBytes, entryInodes, room.Bytes, room.Inodes, unix.ENOSPC)
	}
	return nil
}

// checkoutSpace refuses a disk without room for another deployment. A deployment has its own directories and its own
// /etc; its other files are hard links to those of the repository. The running deployment is the measure.
func checkoutSpace(ctx context.Context, root *files.Root) error {
	var bytes, nodes uint64
	count := func(dir string, whole bool) error {
		return filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case err != nil || !whole && !d.IsDir():
				return err
			}
			nodes++
			bytes += 4096
			if info, err := d.Info(); err == nil && d.Type().IsRegular() {
				bytes += uint64(max(info.Size(), 0))
			}
			return nil
		})
	}
	for dir, whole := range map[string]bool{"/usr": false, "/etc": true} {
		if err := count(dir, whole); err != nil {
			return fmt.Errorf("measuring the running deployment: %w", err)
		}
	}
	room, err := root.Space("/ostree/deploy")
	if err != nil {
		return err
	}
	if room.Bytes < bytes || room.Inodes < nodes {
		return fmt.Errorf("checking space: a new deployment needs %d bytes and %d inodes on the file system of "+
			"/ostree/deploy, where %d bytes and %d inodes are free: %w", bytes, nodes, room.Bytes, room.Inodes, unix.ENOSPC)
	}
	return nil
}
