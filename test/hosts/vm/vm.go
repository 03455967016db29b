// SPDX-License-Identifier: Apache-2.0

// Package vm makes virtual machines: the hosts of the host lab with a real boot loader, kernel and initramfs. Their
// disk loses in a power cut everything that was not flushed.
//
// An Image is built once on a machine and cached, together with a Machine that has just booted. A copy of that Machine
// runs within seconds. Hardware virtualisation is not needed, but is used where a probe shows that it works.
//
// The tests take minutes, so they run only where VM_TESTS is set. If it is "require", a machine that can't run the
// tests is a failure. With any other value, the tests are skipped on such a machine. Short mode has the tests that
// every change must pass: an update, its ways back, and a few cuts.
package vm

import (
	"context"
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
	"testing"

	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/test/lab/programs"
)

// The OS images in a machine's repository. A fresh machine runs RefV1. Both are the host lab's commits with a kernel.
// RefV2 has another initramfs, which writes its version to /run/testos/initramfs.
const (
	RefV1 = lab.RefV1
	RefV2 = lab.RefV2
)

// Options select the kind of machine. The zero value is the simplest: ostree with extlinux, a tree of hard links, no
// SELinux.
type Options struct {
	Loader    Loader
	Composefs bool
	SELinux   bool
	// Packages makes a Debian of packages, without ostree. Its kernel, initramfs and boot loader are as Debian's own
	// scripts make them. Its Loader is GRUB or SystemdBoot.
	Packages bool
}

// Loader is the boot loader.
type Loader string

const (
	// Extlinux boots the first of ostree's entries, even after a boot that failed.
	Extlinux Loader = ""
	// GRUB counts boots as greenboot configures it, and boots the second entry after too many boots. With Packages it
	// boots what update-grub found, and counts nothing.
	GRUB Loader = "grub"
	// SystemdBoot is started by UEFI firmware, and boots what kernel-install put on the EFI system partition. It goes
	// with Packages alone, and counts nothing.
	SystemdBoot Loader = "systemd-boot"
)

// name returns a name for the variant.
func (o Options) name() string {
	words := []string{"vm"}
	if o.Loader != Extlinux {
		words = append(words, string(o.Loader))
	}
	if o.Composefs {
		words = append(words, "composefs")
	}
	if o.SELinux {
		words = append(words, "selinux")
	}
	if o.Packages {
		words = append(words, "packages")
	}
	return strings.Join(words, "-")
}

// counts reports whether the boot loader counts boots.
func (o Options) counts() bool { return o.Loader == GRUB && !o.Packages }

// environment returns the environment of the recipe.
func (o Options) environment() []string {
	loader := o.Loader
	if loader == Extlinux {
		loader = "extlinux"
	}
	env := []string{"LOADER=" + string(loader)}
	for name, on := range map[string]bool{"COMPOSEFS": o.Composefs, "SELINUX": o.SELinux} {
		if on {
			env = append(env, name+"=1")
		} else {
			env = append(env, name+"=")
		}
	}
	slices.Sort(env)
	return env
}

// The recipes of images with ostree and of those without, of the tree that the latter begin with, and what both read.
var (
	//go:embed image.sh
	imageScript []byte
	//go:embed packages.sh
	packagesScript []byte
	//go:embed debian.sh
	debianScript []byte
	//go:embed parts.sh
	partsScript []byte
)

// recipe returns the script that makes the image.
func (o Options) recipe() []byte {
	if o.Packages {
		return packagesScript
	}
	return imageScript
}

// suite is the Debian suite of the kernel. The host lab's tree is of the same suite.
const suite = "trixie"

// tools are the programs and files that this lab needs besides the host lab's, with the Debian packages that contain
// them.
var tools = []struct{ program, debian string }{
	{"qemu-system-x86_64", "qemu-system-x86"},
	{"extlinux", "extlinux"},
	{"grub-mkimage", "grub-common"},
	{"/usr/lib/grub/i386-pc/boot.img", "grub-pc-bin"},
	{"sfdisk", "fdisk"},
	{"mkfs.ext4", "e2fsprogs"},
	{"mformat", "mtools"},
	{ovmf + "CODE_4M.fd", "ovmf"},
	{"mkfs.erofs", "erofs-utils"},
	{"mksquashfs", "squashfs-tools"},
	{"veritysetup", "cryptsetup-bin"},
	{"losetup", "mount"},
}

// find is exec.LookPath that also searches the directories of administrators' programs, and accepts a file by its path.
func find(program string) (string, error) {
	if filepath.IsAbs(program) {
		_, err := os.Stat(program)
		return program, err
	}
	path, err := exec.LookPath(program)
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if err == nil {
			break
		}
		path, err = exec.LookPath(filepath.Join(dir, program))
	}
	return path, err
}

func missingPackages() []string {
	var missing []string
	for _, t := range tools {
		if _, err := find(t.program); err != nil && !slices.Contains(missing, t.debian) {
			missing = append(missing, t.debian)
		}
	}
	return missing
}

// Available returns the reason why this machine can't run the lab, nil if it can.
func Available() error {
	if err := lab.Available(); err != nil {
		return err
	}
	if missing := missingPackages(); len(missing) > 0 {
		return fmt.Errorf("checking the VM lab: programs are missing; apt-get install %s, or set LAB_INSTALL=1",
			strings.Join(missing, " "))
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		return fmt.Errorf("checking the VM lab: no loop devices: %w", err)
	}
	return nil
}

// Install installs the Debian packages of missing programs with apt-get.
func Install(ctx context.Context, log io.Writer) error {
	if err := lab.Install(ctx, log); err != nil {
		return err
	}
	if err := lab.InstallPackages(ctx, log, missingPackages()); err != nil {
		return fmt.Errorf("installing packages for the VM lab: %w", err)
	}
	return nil
}

// Image is the start of machines. A built Image is never changed.
type Image struct {
	options Options
	dir     string // disk.img, vmlinuz, initramfs.img, and saved machines
	accel   []string
	booted  *Saved
	log     io.Writer
}

// needed has, for the tests of one process, a function for each Options that prepares the Image once.
var needed sync.Map

// Need returns the Image of those options, and builds it if necessary. It skips or fails the test as the package's
// comment describes.
func Need(t testing.TB, options Options) *Image {
	t.Helper()
	if os.Getenv("VM_TESTS") == "" {
		t.Skip("virtual machines take minutes: set VM_TESTS, or make test-vm")
	}
	lab.Sources(t)
	if err := Available(); err != nil && (os.Getenv("LAB_INSTALL") != "1" || os.Geteuid() != 0) {
		if os.Getenv("VM_TESTS") == "require" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	once, _ := needed.LoadOrStore(options, sync.OnceValues(func() (*Image, error) {
		return Prepare(context.Background(), options, os.Stderr)
	}))
	image, err := once.(func() (*Image, error))()
	if err != nil {
		t.Fatal(err)
	}
	return image
}

// Prepare returns the Image of those options. If the labs' cache has no Image of the present recipe yet, Prepare builds
// one. That takes about a minute where the host lab's base exists; log gets the tools' output. With LAB_INSTALL=1 in
// the environment missing Debian packages are installed first.
func Prepare(ctx context.Context, options Options, log io.Writer) (*Image, error) {
	if os.Getenv("LAB_INSTALL") == "1" && os.Geteuid() == 0 {
		if err := Install(ctx, log); err != nil {
			return nil, err
		}
	}
	if err := Available(); err != nil {
		return nil, err
	}
	base, err := lab.Prepare(ctx, "", log)
	if err != nil {
		return nil, err
	}
	image, err := prepare(ctx, base, options, log)
	if err != nil {
		return nil, fmt.Errorf("preparing the VM lab: %w", err)
	}
	return image, nil
}

func prepare(ctx context.Context, base *lab.Base, options Options, log io.Writer) (_ *Image, err error) {
	cache, err := lab.CacheDir()
	if err != nil {
		return nil, err
	}
	lock, err := lab.LockFile(ctx, filepath.Join(cache, "vm.lock"))
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	scratch, err := os.MkdirTemp("", "noderefit-vm-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, lab.RemoveTree(scratch)) }()
	guest, err := programs.Build(ctx, scratch, "test/hosts/vm/guest")
	if err != nil {
		return nil, err
	}
	program, err := os.ReadFile(guest)
	if err != nil {
		return nil, err
	}
	// The repository is that of a host that never runs.
	host, err := base.NewHost(ctx, "", lab.Options{Name: "vm-image", HostNetwork: true})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, host.Close()) }()
	repo := filepath.Join(host.Sysroot(), "ostree/repo")
	digest := sha256.New()
	for _, ref := range []string{RefV1, RefV2} {
		commit, err := exec.CommandContext(ctx, "ostree", "--repo="+repo, "rev-parse", ref).Output()
		if err != nil {
			return nil, fmt.Errorf("asking the host lab for %s: %w", ref, err)
		}
		digest.Write(commit)
	}
	digest.Write(options.recipe())
	if options.Packages {
		digest.Write(debianScript)
	}
	digest.Write(partsScript)
	digest.Write(program)
	fmt.Fprintln(digest, options.environment())
	name := options.name() + "-" + hex.EncodeToString(digest.Sum(nil))[:16]
	image := &Image{options: options, dir: filepath.Join(cache, name), log: log}
	if _, err := os.Stat(image.dir); errors.Is(err, fs.ErrNotExist) {
		if err := image.build(ctx, repo, guest); err != nil {
			return nil, err
		}
	} else if err != nil {
		return nil, err
	}
	if image.accel, err = image.accelerator(ctx); err != nil {
		return nil, err
	}
	image.booted, err = image.bootOnce(ctx)
	return image, err
}

// build makes the image, and gives it its name when it is complete.
func (i *Image) build(ctx context.Context, repo, guest string) error {
	env := i.options.environment()
	if i.options.Packages {
		tree, err := i.tree(ctx)
		if err != nil {
			return err
		}
		env = append(env, "TREE="+tree)
	}
	args := []string{repo, RefV1, RefV2, lab.OS, guest, suite}
	return i.cook(ctx, i.options.recipe(), env, args, func(work string) error {
		made := filepath.Join(work, "made")
		if err := os.Mkdir(made, 0o755); err != nil {
			return err
		}
		for _, name := range []string{"disk.img", "vmlinuz", "initramfs.img"} {
			if err := os.Rename(filepath.Join(work, name), filepath.Join(made, name)); err != nil {
				return err
			}
		}
		return os.Rename(made, i.dir)
	})
}

// tree returns the archive of the Debian that images of packages begin with, and makes the archive if necessary.
func (i *Image) tree(ctx context.Context) (string, error) {
	digest := sha256.Sum256(debianScript)
	tree := filepath.Join(filepath.Dir(i.dir), "vm-debian-"+hex.EncodeToString(digest[:])[:16]+".tar")
	if _, err := os.Stat(tree); !errors.Is(err, fs.ErrNotExist) {
		return tree, err
	}
	return tree, i.cook(ctx, debianScript, nil, []string{suite}, func(work string) error {
		return os.Rename(filepath.Join(work, "debian.tar"), tree)
	})
}

// cook runs a recipe in an empty directory, which is its last argument, and has keep take out what it has made.
func (i *Image) cook(ctx context.Context, recipe []byte, env, args []string, keep func(work string) error) error {
	dir := filepath.Join(filepath.Dir(i.dir), "vm-building")
	if err := lab.RemoveTree(dir); err != nil {
		return err
	}
	script, work := filepath.Join(dir, "recipe.sh"), filepath.Join(dir, "making")
	if err := os.MkdirAll(work, 0o755); err != nil {
		return err
	}
	for path, text := range map[string][]byte{script: recipe, filepath.Join(dir, "parts.sh"): partsScript} {
		if err := os.WriteFile(path, text, 0o755); err != nil {
			return err
		}
	}
	if err := lab.Run(ctx, i.log, env, append(append([]string{"sh", script}, args...), work)...); err != nil {
		return err
	}
	if err := keep(work); err != nil {
		return err
	}
	return lab.RemoveTree(dir)
}
