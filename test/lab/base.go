// SPDX-License-Identifier: Apache-2.0

// Package lab makes real hosts: a Debian tree as an ostree commit, deployed in a sysroot of its own and booted in a
// container, with the lab as its firmware.
//
// The firmware reads the boot loader entries and boots the entry with the highest version. So a reboot boots what
// ostree made the default, and nothing else. Pulling the plug is SIGKILL for everything that runs, at once. A container
// can't show three things: the real boot loader, the initramfs, and what a disk loses that was never flushed. Virtual
// machines show these.
//
// A Base is built once on a machine and cached. A Host is a private copy of the Base that takes a fraction of a second.
// Anything else that many hosts have in common is put on one host, which then is a Base for the others.
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

// OS is the name of the operating system (in ostree: the stateroot) of every host.
const OS = "testos"

// The commits. RefV1 is the OS of a fresh host. RefV2 is in the host's repository too. It has another kernel, another
// /usr/lib/testos/version, and a changed default in /usr/etc/testos. RefV3 is v1 with another version and the same
// kernel. It is only in the remote Remote.
const (
	RefV1  = "os/test"
	RefV2  = "os/test2"
	RefV3  = "os/test3"
	Remote = "lab"
)

// KernelArguments are the kernel arguments of a fresh host, without the ostree= that ostree adds.
var KernelArguments = []string{"root=LABEL=root", "rw", "console=ttyS0", "systemd.show_status=0"}

// The tree is made of Debian's minimal base of this suite, and of packages.
const suite = "trixie"

// LAB_PACKAGES in the environment has more of them, for what a host is to be tried with by hand.
var packages = append([]string{
	"systemd", "systemd-sysv", "dbus", "libpam-systemd", "ostree", "ostree-boot",
	"procps", "util-linux", "mount", "strace", "iproute2", "ca-certificates",
}, strings.Fields(os.Getenv("LAB_PACKAGES"))...)

//go:embed tree.sh
var treeScript []byte

// recipe is raised when Base is built in another way with the same packages and treeScript.
const recipe = "1"

// variant is a kind of Base: the packages of its tree, and what is done to the tree after treeScript.
type variant struct {
	packages []string
	script   []byte
}

// stock is the Base whose kubelet and container runtime only pretend.
var stock = variant{packages: packages}

// tools are the programs that the lab runs on this machine, with the Debian packages that contain them.
var tools = []struct{ program, debian string }{
	{"systemd-nspawn", "systemd-container"},
	{"mmdebstrap", "mmdebstrap"},
	{"ostree", "ostree"},
	{"unshare", "util-linux"},
	{"nsenter", "util-linux"},
	{"setpriv", "util-linux"},
	{"journalctl", "systemd"},
}

// Available returns the reason why this machine can't run the lab, nil if it can. The reason names missing programs
// with their Debian packages.
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

// Install installs the Debian packages of the programs that the lab needs and this machine lacks.
func Install(ctx context.Context, log io.Writer) error {
	if err := InstallPackages(ctx, log, missingPackages()); err != nil {
		return fmt.Errorf("installing packages for the host lab: %w", err)
	}
	return nil
}

// InstallPackages installs Debian packages by test/deps.sh, which names them first and changes nothing else of the
// machine. With an empty list it does nothing.
func InstallPackages(ctx context.Context, log io.Writer, packages []string) error {
	if len(packages) == 0 {
		return nil
	}
	root, err := Repository()
	if err != nil {
		return err
	}
	// This command is not killed with this process: dpkg would stop in the middle of its work.
	return run(ctx, log, 0, nil, append([]string{filepath.Join(root, "test/deps.sh")}, packages...)...)
}

// Base is the start of every Host. A built Base is never changed.
type Base struct {
	cache      string
	sysroot    string
	remote     string
	containers bool // its hosts have a container runtime
}

func newBase(cache, dir string) *Base {
	return &Base{cache: cache, sysroot: filepath.Join(dir, "sysroot"), remote: filepath.Join(dir, "remote")}
}

// Has reports whether the tree of a fresh host has a file.
func (b *Base) Has(path string) bool {
	found, err := filepath.Glob(filepath.Join(b.sysroot, "ostree/deploy", OS, "deploy", "*.0", path))
	return err == nil && len(found) > 0
}

// need returns the Base that the tests of one process share.
var need = sync.OnceValues(func() (*Base, error) {
	return Prepare(context.Background(), "", os.Stderr)
})

// Need returns the Base, and builds it if necessary. On a machine that can't run the lab the test is skipped with the
// reason; with LAB=require in the environment it fails.
func Need(t testing.TB) *Base {
	t.Helper()
	return needed(t, Available, need)
}

func needed(t testing.TB, available func() error, need func() (*Base, error)) *Base {
	t.Helper()
	Sources(t)
	if err := available(); err != nil && (os.Getenv("LAB_INSTALL") != "1" || os.Geteuid() != 0) {
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

// Prepare returns the Base. If cacheDir has no Base of the present recipe yet, Prepare builds one. That takes about
// half a minute, most of it for downloads; log gets the tools' output. An empty cacheDir means CacheDir. With
// LAB_INSTALL=1 in the environment missing Debian packages are installed first. Prepare removes from this cache what
// hosts of dead processes have left.
func Prepare(ctx context.Context, cacheDir string, log io.Writer) (*Base, error) {
	return prepare(ctx, cacheDir, stock, log)
}

func prepare(ctx context.Context, cacheDir string, of variant, log io.Writer) (*Base, error) {
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

	dir := filepath.Join(cacheDir, of.key())
	if _, err := os.Stat(dir); err == nil {
		return newBase(cacheDir, dir), nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("preparing the host lab: %w", err)
	}
	work := filepath.Join(cacheDir, "building")
	if err := removeBuild(work); err != nil {
		return nil, fmt.Errorf("preparing the host lab: %w", err)
	}
	if err := build(ctx, work, of.bootstrap(filepath.Join(work, tree)), of.script, log); err != nil {
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

// CacheDir returns the directory for everything that the labs build: $NODEREFIT_LAB_CACHE, else
// /var/cache/noderefit-lab. For users other than root the directory is in the user's own cache.
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

// key returns a name for the Base of the present recipe.
func (v variant) key() string {
	digest := sha256.New()
	fmt.Fprintln(digest, recipe, suite, v.packages, KernelArguments)
	digest.Write(treeScript)
	digest.Write(v.script)
	return "base-" + hex.EncodeToString(digest.Sum(nil))[:16]
}

// tree is the directory of the root file system, below the directory of a build.
const tree = "tree"

// bootstrap returns the command that makes the root file system.
func (v variant) bootstrap(at string) []string {
	return []string{"mmdebstrap", "--variant=minbase", "--include=" + strings.Join(v.packages, ","),
		"--aptopt=Acquire::Languages \"none\"", "--aptopt=APT::Install-Recommends \"false\"",
		"--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/locale/*",
		"--dpkgopt=path-exclude=/usr/share/doc/*", suite, at}
}

// build makes work/base: a sysroot in which RefV1 is deployed, with RefV2 in its repository, and the archive that
// serves as the remote. bootstrap is the first of its commands. further, where there is one, is a script that is run on
// the tree after treeScript.
func build(ctx context.Context, work string, bootstrap []string, further []byte, log io.Writer) error {
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
	if err := os.WriteFile(script+".further", further, 0o755); err != nil {
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
		{"sh", script + ".further", tree},
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

// removeBuild removes the files of a build, finished or not. Earlier versions of the lab made the mounts of a build in
// this machine's own view, and a killed build left them there. These places belong to the build alone, so they are
// unmounted.
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

// apart starts a tool that may mount something, in mount and PID namespaces of its own. When the tool or this process
// is killed, everything that the tool started is killed too. Its mounts end with the last of these processes.
var apart = []string{"unshare", "--fork", "--kill-child", "--pid", "--mount", "--mount-proc", "--propagation=private",
	"--"}

// Run runs one tool of a build, apart from this machine, with its output in log. The tool sees the machine's mounts.
// Only the tool and its children see what it mounts itself. The tool gets this process's environment and the additions
// in environment. An error has the end of the tool's output.
func Run(ctx context.Context, log io.Writer, environment []string, argv ...string) error {
	// When the thread that started a process ends, the kernel treats this as the death of the parent. So the thread stays
	// until the process has ended.
	return elsewhere(func() error {
		return run(ctx, log, syscall.SIGKILL, environment, append(slices.Clone(apart), argv...)...)
	})
}

// run runs one tool. The tool gets the signal end if the thread that started it ends first.
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

// LockFile takes the lock on path, and makes the file if necessary. The lock is released when the file is closed or the
// process ends.
func LockFile(ctx context.Context, path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	// A context can't interrupt flock, so flock is called without blocking until it succeeds.
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

// newID returns a name that no other host has, not even one of another process.
func newID(name string) string {
	return name + "-" + strings.ToLower(rand.Text()[:8])
}
