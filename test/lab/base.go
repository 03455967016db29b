// SPDX-License-Identifier: Apache-2.0

// Package lab makes real hosts: a Debian tree as an ostree commit, deployed in a sysroot of its own and booted in a
// container, with the lab as its firmware.
//
// The firmware reads the boot loader entries and boots the one with the highest version, so a reboot boots what ostree
// made the default and nothing else. Pulling the plug is SIGKILL of everything that runs, at once. What a container
// can't show are the real boot loader, the initramfs and what a disk loses that was never flushed; for these there are
// virtual machines.
//
// A Base is built once a machine and cached. A Host is a private copy of it that costs a fraction of a second; and what
// many hosts have in common besides is put on one, which is a Base for the others.
package lab

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// OS is the name of the operating system (ostree: the stateroot) that every host has.
const OS = "testos"

// The commits. RefV1 is what a fresh host runs. RefV2 is in its repository too: another kernel, another
// /usr/lib/testos/version, a changed default in /usr/etc/testos. RefV3, v1 with another version and the same kernel,
// is only in the remote Remote.
const (
	RefV1  = "os/test"
	RefV2  = "os/test2"
	RefV3  = "os/test3"
	Remote = "lab"
)

// KernelArguments are those of a fresh host, without the ostree= that ostree adds.
var KernelArguments = []string{"root=LABEL=root", "rw", "console=ttyS0", "systemd.show_status=0"}

// suite and packages are what the tree is made of, besides Debian's minimal base.
const suite = "trixie"

var packages = []string{
	"systemd", "systemd-sysv", "dbus", "libpam-systemd", "ostree", "ostree-boot",
	"procps", "util-linux", "mount", "strace", "iproute2", "ca-certificates",
}

//go:embed tree.sh
var treeScript []byte

// recipe is raised when Base is built another way although packages and treeScript stay the same.
const recipe = "1"

// tools are the programs that the lab runs on this machine, and the Debian packages that have them.
var tools = []struct{ program, debian string }{
	{"systemd-nspawn", "systemd-container"},
	{"mmdebstrap", "mmdebstrap"},
	{"ostree", "ostree"},
	{"unshare", "util-linux"},
	{"nsenter", "util-linux"},
	{"setpriv", "util-linux"},
	{"journalctl", "systemd"},
}

// Available says why this machine can't run the lab: nil if it can. Missing programs are named with their Debian
// packages.
func Available() error {
	if os.Geteuid() != 0 {
		return errors.New("checking the host lab: it needs root")
	}
	if missing := missingPackages(); len(missing) > 0 {
		return fmt.Errorf("checking the host lab: programs are missing; apt-get install %s, or set LAB_INSTALL=1",
			strings.Join(missing, " "))
	}
	filesystems, err := os.ReadFile("/proc/filesystems")
	if err != nil {
		return fmt.Errorf("checking the host lab: %w", err)
	}
	for _, need := range []string{"overlay", "cgroup2"} {
		if !bytes.Contains(filesystems, []byte("\t"+need+"\n")) {
			return fmt.Errorf("checking the host lab: the kernel has no %s file system", need)
		}
	}
	if _, err := cgroupRoot(); err != nil {
		return fmt.Errorf("checking the host lab: %w", err)
	}
	return nil
}

func missingPackages() []string {
	var missing []string
	for _, t := range tools {
		if _, err := exec.LookPath(t.program); err != nil && !slices.Contains(missing, t.debian) {
			missing = append(missing, t.debian)
		}
	}
	return missing
}

// Install installs, with apt-get, the packages whose programs are missing.
func Install(ctx context.Context, log io.Writer) error {
	if err := InstallPackages(ctx, log, missingPackages()); err != nil {
		return fmt.Errorf("installing packages for the host lab: %w", err)
	}
	return nil
}

// InstallPackages installs Debian packages with apt-get; of none it does nothing.
func InstallPackages(ctx context.Context, log io.Writer, packages []string) error {
	if len(packages) == 0 {
		return nil
	}
	// They are not killed with this process: dpkg would be left in the middle.
	if err := run(ctx, log, 0, nil, "apt-get", "update", "-q"); err != nil {
		return err
	}
	install := []string{"apt-get", "install", "-q", "-y", "--no-install-recommends"}
	return run(ctx, log, 0, nil, append(install, packages...)...)
}

// Base is what every Host starts from. It is never changed once it is built.
type Base struct {
	cache   string
	sysroot string
	remote  string
}

func newBase(cache, dir string) *Base {
	return &Base{cache: cache, sysroot: filepath.Join(dir, "sysroot"), remote: filepath.Join(dir, "remote")}
}

// need is the Base that the tests of one process share.
var need = sync.OnceValues(func() (*Base, error) {
	return Prepare(context.Background(), "", os.Stderr)
})

// Need returns the Base, built if it must be. On a machine that can't run the lab the test is skipped with the reason;
// with LAB=require in the environment it fails.
func Need(t testing.TB) *Base {
	t.Helper()
	Sources(t)
	if err := Available(); err != nil && (os.Getenv("LAB_INSTALL") != "1" || os.Geteuid() != 0) {
		if os.Getenv("LAB") == "require" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	base, err := need()
	if err != nil {
		t.Fatal(err)
	}
	return base
}

// Prepare returns the Base, which it builds if cacheDir has none of the present recipe yet (about half a minute, most
// of it downloading); log gets what the tools say meanwhile. An empty cacheDir means CacheDir. With LAB_INSTALL=1 in
// the environment missing Debian packages are installed first. Whatever hosts of dead processes left behind in this
// cache is removed.
func Prepare(ctx context.Context, cacheDir string, log io.Writer) (*Base, error) {
	if os.Getenv("LAB_INSTALL") == "1" && os.Geteuid() == 0 {
		if err := Install(ctx, log); err != nil {
			return nil, err
		}
	}
	if err := Available(); err != nil {
		return nil, err
	}
	if cacheDir == "" {
		var err error
		if cacheDir, err = CacheDir(); err != nil {
			return nil, fmt.Errorf("preparing the host lab: %w", err)
		}
	}
	cacheDir, err := filepath.Abs(cacheDir)
	if err != nil {
		return nil, fmt.Errorf("preparing the host lab: %w", err)
	}
	if err := os.MkdirAll(filepath.Join(cacheDir, "hosts"), 0o755); err != nil {
		return nil, fmt.Errorf("preparing the host lab: %w", err)
	}
	lock, err := LockFile(ctx, filepath.Join(cacheDir, "lock"))
	if err != nil {
		return nil, fmt.Errorf("preparing the host lab: %w", err)
	}
	defer lock.Close()
	if err := removeStale(cacheDir); err != nil {
		return nil, fmt.Errorf("preparing the host lab: %w", err)
	}

	dir := filepath.Join(cacheDir, recipeKey())
	if _, err := os.Stat(dir); err == nil {
		return newBase(cacheDir, dir), nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("preparing the host lab: %w", err)
	}
	work := filepath.Join(cacheDir, "building")
	if err := removeBuild(work); err != nil {
		return nil, fmt.Errorf("preparing the host lab: %w", err)
	}
	if err := build(ctx, work, bootstrap(filepath.Join(work, tree)), log); err != nil {
		return nil, errors.Join(fmt.Errorf("building the host lab's base: %w", err), removeBuild(work))
	}
	if err := os.Rename(filepath.Join(work, "base"), dir); err != nil {
		return nil, fmt.Errorf("preparing the host lab: %w", err)
	}
	if err := removeBuild(work); err != nil {
		return nil, fmt.Errorf("preparing the host lab: %w", err)
	}
	return newBase(cacheDir, dir), nil
}

// CacheDir is where the labs keep what they build: $NODEREFIT_LAB_CACHE, else /var/cache/noderefit-lab; who is not root
// has it among what other programs cache.
func CacheDir() (string, error) {
	if dir := os.Getenv("NODEREFIT_LAB_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	if os.Geteuid() == 0 {
		return "/var/cache/noderefit-lab", nil
	}
	dir, err := os.UserCacheDir()
	return filepath.Join(dir, "noderefit-lab"), err
}

// recipeKey names the Base that the present recipe makes.
func recipeKey() string {
	digest := sha256.New()
	fmt.Fprintln(digest, recipe, suite, packages, KernelArguments)
	digest.Write(treeScript)
	return "base-" + hex.EncodeToString(digest.Sum(nil))[:16]
}

// tree is where, below the directory of a build, the root file system grows.
const tree = "tree"

// bootstrap is the command that makes the root file system.
func bootstrap(at string) []string {
	return []string{"mmdebstrap", "--variant=minbase", "--include=" + strings.Join(packages, ","),
		"--aptopt=Acquire::Languages \"none\"", "--aptopt=APT::Install-Recommends \"false\"",
		"--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/locale/*",
		"--dpkgopt=path-exclude=/usr/share/doc/*", suite, at}
}

// build makes work/base: a sysroot with RefV1 deployed and RefV2 in its repository, and the archive that is the
// remote. The first of its commands is bootstrap.
func build(ctx context.Context, work string, bootstrap []string, log io.Writer) error {
	tree, base := filepath.Join(work, tree), filepath.Join(work, "base")
	sysroot, remote := filepath.Join(base, "sysroot"), filepath.Join(base, "remote")
	repo, archive := "--repo="+filepath.Join(sysroot, "ostree/repo"), "--repo="+remote
	script := filepath.Join(work, "tree.sh")
	for _, dir := range []string{sysroot, remote} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := os.WriteFile(script, treeScript, 0o755); err != nil {
		return err
	}
	commit := func(ref, version string, trees ...string) []string {
		args := []string{"ostree", repo, "commit", "--branch=" + ref, "--subject=" + version, "--bootable",
			"--add-metadata-string=version=" + version, "--timestamp=2025-01-01T00:00:00Z"}
		return append(args, trees...)
	}
	deploy := []string{"ostree", "admin", "--sysroot=" + sysroot, "deploy", "--os=" + OS}
	for _, arg := range KernelArguments {
		deploy = append(deploy, "--karg="+arg)
	}
	for _, argv := range [][]string{
		bootstrap,
		{"sh", script, tree, work},
		{"ostree", "admin", "init-fs", "--modern", sysroot},
		{"ostree", "admin", "--sysroot=" + sysroot, "os-init", OS},
		{"ostree", repo, "config", "set", "sysroot.bootloader", "none"},
		{"ostree", repo, "config", "set", "sysroot.readonly", "true"},
		{"ostree", repo, "config", "set", "core.fsync", "false"},
		commit(RefV1, "v1", "--consume", "--tree=dir="+tree),
		commit(RefV2, "v2", "--tree=ref="+RefV1, "--tree=dir="+filepath.Join(work, "v2")),
		commit(RefV3, "v3", "--tree=ref="+RefV1, "--tree=dir="+filepath.Join(work, "v3")),
		{"ostree", archive, "init", "--mode=archive"},
		{"ostree", archive, "config", "set", "archive.zlib-level", "1"},
		{"ostree", archive, "config", "set", "core.fsync", "false"},
		{"ostree", archive, "pull-local", filepath.Join(sysroot, "ostree/repo"), RefV1, RefV2, RefV3},
		{"ostree", archive, "summary", "--update"},
		{"ostree", repo, "refs", "--delete", RefV3},
		append(deploy, RefV1),
		{"ostree", repo, "prune", "--refs-only"},
		{"ostree", repo, "config", "unset", "core.fsync"},
		{"ostree", repo, "remote", "add", "--no-gpg-verify", Remote, "file://" + guestRemote},
	} {
		if err := Run(ctx, log, nil, argv...); err != nil {
			return err
		}
	}
	return nil
}

// removeBuild removes what a build has left, finished or not. Builds of earlier versions of the lab made their mounts
// in this machine's own view, where one that was killed left them. Those places are the build's and nobody else's, so
// they are unmounted.
func removeBuild(work string) error {
	real, err := realPath(work)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, place := range []string{"proc", "sys", "dev"} {
		mounts, err := mountsBelow(filepath.Join(real, tree, place))
		if err != nil {
			return err
		}
		for _, at := range mounts {
			if err := unix.Unmount(at, unix.UMOUNT_NOFOLLOW); err != nil {
				return fmt.Errorf("unmounting %s, which a build that was killed has left: %w", at, err)
			}
		}
	}
	return RemoveTree(work)
}

// apart is what a tool is run by that may mount something: in mount and PID namespaces of its own. When it is killed,
// or this process is, everything that it started is killed with it, and what it had mounted is gone with the last of
// them.
var apart = []string{"unshare", "--fork", "--kill-child", "--pid", "--mount", "--mount-proc", "--propagation=private",
	"--"}

// Run runs one tool of a build with its output in log, apart from this machine: it sees the machine's mounts, and what
// it mounts itself is seen by what it starts and nobody else. Its environment is this process's with more in it. The
// end of what it wrote is in the error.
func Run(ctx context.Context, log io.Writer, environment []string, argv ...string) error {
	// The death of the thread that started a process counts as the parent's, so this one stays until it has ended.
	return elsewhere(func() error {
		return run(ctx, log, syscall.SIGKILL, environment, append(slices.Clone(apart), argv...)...)
	})
}

// run runs one tool, which gets the signal end when the thread that started it ends before it does.
func run(ctx context.Context, log io.Writer, end syscall.Signal, environment []string, argv ...string) error {
	var output bytes.Buffer
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(append(os.Environ(), "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive"), environment...)
	cmd.Stdout = io.MultiWriter(log, &output)
	cmd.Stderr = cmd.Stdout
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: end}
	if err := cmd.Run(); err != nil {
		tail := bytes.TrimSpace(output.Bytes())
		tail = tail[max(0, len(tail)-1000):]
		return fmt.Errorf("running %s: %w: %s", strings.Join(argv, " "), err, tail)
	}
	return nil
}

// LockFile takes the lock on path, made if need be; closing the file gives it back, and so does the end of the
// process.
func LockFile(ctx context.Context, path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	// flock can't be interrupted by a context, so it is asked for until it is granted.
	for {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return file, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			file.Close()
			return nil, fmt.Errorf("locking %s: %w", path, err)
		}
		select {
		case <-ctx.Done():
			file.Close()
			return nil, fmt.Errorf("waiting for the lock on %s: %w", path, context.Cause(ctx))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// newID makes a name that no other host has, whichever process made it.
func newID(name string) string {
	return name + "-" + strings.ToLower(rand.Text()[:8])
}
