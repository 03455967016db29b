// SPDX-License-Identifier: Apache-2.0

package files

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// ext4Checkpoint is EXT4_IOC_CHECKPOINT of Linux 5.14 and later, see Documentation/filesystems/ext4 of the kernel.
const ext4Checkpoint = 0x4004662b

// Checkpoint writes what is only in the journal of a file system to its own place. A boot loader reads no journal. name
// is a directory of the file system. A file system that only a freeze makes do so gives an error that satisfies
// errors.Is(err, errors.ErrUnsupported).
func (r *Root) Checkpoint(name string) error {
	f, err := r.open(name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return wrapPath("emptying the journal of the file system of", name, checkpoint(int(f.Fd())))
}

func checkpoint(fd int) error {
	var sf unix.Statfs_t
	if err := errors.Join(unix.Syncfs(fd), unix.Fstatfs(fd, &sf)); err != nil {
		return err
	}
	switch sf.Type {
	case unix.EXT4_SUPER_MAGIC: // ext3's as well
		switch err := unix.IoctlSetPointerInt(fd, ext4Checkpoint, 0); err {
		case nil, unix.ENODEV: // without a journal syncfs has done everything
			return nil
		case unix.ENOTTY, unix.EOPNOTSUPP:
			return fmt.Errorf("%w by this kernel", errors.ErrUnsupported)
		default:
			return err
		}
	case unix.XFS_SUPER_MAGIC:
		return fmt.Errorf("%w by XFS", errors.ErrUnsupported)
	}
	return nil // vfat and an overlay have no journal, and what btrfs has is of one fsync only
}
