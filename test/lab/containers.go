// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

//go:embed containers.sh
var containersScript []byte

// containers is the Base whose hosts have Debian's containerd, and what a kubelet needs beside it.
var containers = variant{
	packages: slices.Concat(packages, []string{"containerd", "runc", "containernetworking-plugins"}),
	script:   containersScript,
}

// needContainers returns the Base with a container runtime that the tests of one process share.
var needContainers = sync.OnceValues(func() (*Base, error) {
	return PrepareContainers(context.Background(), "", os.Stderr)
})

// NeedContainers returns the Base whose hosts have a container runtime, as Need returns the other one.
func NeedContainers(t testing.TB) *Base {
	t.Helper()
	return needed(t, ContainersAvailable, needContainers)
}

// PrepareContainers returns the Base whose hosts have a container runtime, as Prepare returns the other one. This Base
// has all that the other one has; containerd.service is Debian's. Building takes a minute or more, most of it for
// downloads.
func PrepareContainers(ctx context.Context, cacheDir string, log io.Writer) (*Base, error) {
	if err := ContainersAvailable(); err != nil && os.Getenv("LAB_INSTALL") != "1" {
		return nil, err
	}
	base, err := prepare(ctx, cacheDir, containers, log)
	if err != nil {
		return nil, err
	}
	base.containers = true
	return base, nil
}

// ContainersAvailable returns the reason why hosts on this machine can't have containers, nil if they can.
func ContainersAvailable() error {
	if err := Available(); err != nil {
		return err
	}
	legacy, err := legacyRoots()
	if err != nil {
		return fmt.Errorf("checking the host lab: %w", err)
	}
	if !slices.ContainsFunc(legacy, func(dir string) bool { return filepath.Base(dir) == "memory" }) {
		return errors.New("checking the host lab: containers need cgroup's memory controller in a hierarchy of its own, " +
			"below /sys/fs/cgroup/memory, which a machine with cgroup2 alone does not have; leave these tests out there, " +
			"and do not set LAB=require")
	}
	return nil
}

// legacyRoots returns where this machine has controllers in hierarchies of their own, and the hierarchy named systemd,
// which containerd looks for. The last part of each path is the name of the controllers in it.
func legacyRoots() ([]string, error) {
	entries, err := os.ReadDir("/sys/fs/cgroup")
	if err != nil {
		return nil, err
	}
	var roots []string
	for _, entry := range entries {
		path := filepath.Join("/sys/fs/cgroup", entry.Name())
		var stat unix.Statfs_t
		if !entry.IsDir() || unix.Statfs(path, &stat) != nil {
			continue
		}
		if stat.Type == unix.CGROUP_SUPER_MAGIC && stat.Flags&unix.ST_RDONLY == 0 {
			roots = append(roots, path)
		}
	}
	return roots, nil
}

// legacy returns the host's cgroups in the hierarchies of the controllers.
func (r registered) legacy() ([]string, error) {
	roots, err := legacyRoots()
	for i := range roots {
		roots[i] = filepath.Join(roots[i], filepath.Base(r.cgroup))
	}
	return roots, err
}

// makeLegacy makes the host's cgroups in the hierarchies of the controllers.
func (r registered) makeLegacy() ([]string, error) {
	dirs, err := r.legacy()
	if err != nil {
		return nil, err
	}
	for _, dir := range dirs {
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("making cgroup: %w", err)
		}
		// A new group of cpuset has no processors and no memory, and takes no process.
		for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
			value, err := os.ReadFile(filepath.Join(filepath.Dir(dir), name))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return nil, err
			}
			if err := os.WriteFile(filepath.Join(dir, name), value, 0); err != nil {
				return nil, err
			}
		}
	}
	return dirs, nil
}

// intoCgroups is the first part of a boot of a host with containers: it puts the boot into the cgroups that are
// its first argument, so that their names on the host begin there.
const intoCgroups = `
for dir in $1; do
	echo 0 >"$dir/cgroup.procs"
done
shift
exec "$@"
`
