// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

//go:embed packages.sh
var packagesScript []byte

// ofPackages is the Base whose hosts have what hosts of packages have: GRUB's programs and settings, rpm, and dnf with
// its plugin needs-restarting, without the program of that name, as most have. apt is in every Base.
var ofPackages = variant{
	packages: slices.Concat(packages, []string{"grub-common", "grub2-common", "dnf", "dnf-plugins-core", "rpm"}),
	script:   packagesScript,
}

// needPackages returns the Base of hosts of packages that the tests of one process share.
var needPackages = sync.OnceValues(func() (*Base, error) {
	return prepare(context.Background(), "", ofPackages, os.Stderr)
})

// NeedPackages returns the Base whose hosts can have a Loader, as Need returns the other one.
func NeedPackages(t testing.TB) *Base {
	t.Helper()
	return needed(t, Available, needPackages)
}

// Loader is the boot loader that the lab plays for a host without ostree, and where that has the kernel arguments from.
type Loader string

const (
	// GRUB reads /boot/grub/grub.cfg, which the host's own grub-mkconfig makes. The host is one of apt.
	GRUB Loader = "grub"
	// Entries are those of /boot/loader/entries. The host is one of dnf.
	Entries Loader = "entries"
)

// kernelRelease is the release of the kernel of a fresh host.
const kernelRelease = "6.12.0-lab"

// furnishLoader gives a host without ostree a /boot of its own. ostree's entries are kept aside: they are no part of
// such a host. With no Loader the lab passes the arguments of a fresh host, wherever a host would have them from.
func (h *Host) furnishLoader(entry Entry, machineID string) error {
	boot := filepath.Join(h.Sysroot(), "boot")
	if err := errors.Join(os.Rename(boot, filepath.Join(h.dir, "boot.ostree")), os.Mkdir(boot, 0o755)); err != nil {
		return err
	}
	at := slices.IndexFunc(splitOptions(entry.Options), func(o string) bool { return strings.HasPrefix(o, "ostree=") })
	entry.Options = strings.Join(slices.Delete(splitOptions(entry.Options), at, at+1), " ")
	h.fixed = &entry
	deployment := filepath.Join(h.Sysroot(), entry.Dir)
	made := filepath.Join(deployment, "usr/lib/testos/boot")
	switch h.options.Loader {
	case GRUB:
		return os.CopyFS(boot, os.DirFS(made))
	case Entries:
		for name, text := range map[string]string{
			"vmlinuz-" + kernelRelease: "kernel of v1\n", "initramfs-" + kernelRelease + ".img": "initramfs of v1\n",
			"loader/entries/" + machineID + "-" + kernelRelease + ".conf": "title Test OS (" + kernelRelease + ")\nversion " +
				kernelRelease + "\nmachine-id " + machineID + "\nsort-key testos\noptions " + entry.Options +
				" admin=1\nlinux /vmlinuz-" + kernelRelease + "\ninitrd /initramfs-" + kernelRelease + ".img\n",
			"loader/loader.conf": "timeout 0\n",
		} {
			name = filepath.Join(boot, name)
			if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o644)); err != nil {
				return err
			}
		}
		etc := filepath.Join(deployment, "etc")
		release, err := os.ReadFile(filepath.Join(deployment, "usr/lib/os-release"))
		if err != nil {
			return err
		}
		release = regexp.MustCompile(`(?m)^ID=.*$`).ReplaceAll(release, []byte("ID=testos\nID_LIKE=\"rhel fedora\""))
		return errors.Join(RemoveTree(filepath.Join(etc, "default/grub.d")),
			RemoveTree(filepath.Join(etc, "default/grub")), RemoveTree(filepath.Join(etc, "os-release")),
			os.WriteFile(filepath.Join(etc, "os-release"), release, 0o644),
			os.MkdirAll(filepath.Join(etc, "kernel"), 0o755),
			os.WriteFile(filepath.Join(etc, "kernel/install.conf"), []byte("layout=bls\nBOOT_ROOT=/boot\n"), 0o644),
			os.WriteFile(filepath.Join(etc, "kernel/cmdline"), []byte(entry.Options+" admin=1\n"), 0o644))
	}
	return nil
}

// next returns what the boot loader boots, with the entry of that number in its order.
func (h *Host) next(number int) (Entry, error) {
	if h.fixed == nil {
		return entry(h.Sysroot(), number)
	}
	out := *h.fixed
	name, err := h.loaderFile()
	if err != nil || name == "" {
		return out, err
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return out, fmt.Errorf("the boot loader: %w", err)
	}
	pattern := linuxLine
	if h.options.Loader == Entries {
		pattern = optionsLine
	}
	found := pattern.FindSubmatch(text)
	if found == nil {
		return out, fmt.Errorf("the boot loader finds no kernel in %s:\n%s", name, text)
	}
	out.Options = string(bytes.TrimSpace(found[1]))
	return out, nil
}

// What a boot loader reads the arguments from.
var (
	linuxLine   = regexp.MustCompile(`(?m)^menuentry (?s:.*?)^\s*linux\s+\S+(.*)$`)
	optionsLine = regexp.MustCompile(`(?m)^options (.*)$`)
)

// loaderFile returns the file from which the boot loader of a host without ostree has the kernel arguments, "" where it
// has them from none.
func (h *Host) loaderFile() (string, error) {
	boot := filepath.Join(h.Sysroot(), "boot")
	switch h.options.Loader {
	case GRUB:
		return filepath.Join(boot, "grub/grub.cfg"), nil
	case Entries:
		all, err := filepath.Glob(filepath.Join(boot, "loader/entries/[^.]*.conf"))
		if err == nil && len(all) == 0 {
			err = fmt.Errorf("the boot loader finds no entry in %s/loader/entries: %w", boot, fs.ErrNotExist)
		}
		if err != nil {
			return "", err
		}
		return slices.Max(all), nil
	}
	return "", nil
}
