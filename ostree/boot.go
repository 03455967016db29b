// SPDX-License-Identifier: Apache-2.0

package ostree

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// BootEntry is what the boot loader starts for a deployment.
type BootEntry struct {
	// Kernel and Initrds are paths on the host. Arguments is the kernel's command line.
	Kernel    string
	Initrds   []string
	Arguments string
	// Others are the keys of the entry that name further things for the kernel, such as a device tree.
	Others []string
}

// BootEntry returns the boot loader's entry of a deployment. No fork.
func (p *Plain) BootEntry(id string) (BootEntry, error) {
	entries, err := readEntries(p.root)
	if err != nil {
		return BootEntry{}, fmt.Errorf("reading the boot entry of %s: %w", id, err)
	}
	e, is := entries[id]
	if !is {
		return BootEntry{}, fmt.Errorf("reading the boot entry of %s: there is none", id)
	}
	out := BootEntry{Arguments: e.options, Others: e.others}
	for _, name := range slices.Concat([]string{e.linux}, e.initrds) {
		at := path.Join("/boot", name) // by the root of the file system that /boot is, or has
		if _, err := os.Stat(p.host(at)); err != nil {
			at = path.Clean(name)
			if _, err := os.Stat(p.host(at)); err != nil {
				return BootEntry{}, fmt.Errorf("reading the boot entry of %s: %w", id, err)
			}
		}
		if out.Kernel == "" {
			out.Kernel = at
		} else {
			out.Initrds = append(out.Initrds, at)
		}
	}
	return out, nil
}

// entry is a boot loader entry that ostree wrote.
type entry struct {
	version    int
	deployment string // ID
	arguments  []string
	options    string   // as the entry has them
	linux      string   // the kernel, a path in /boot
	kernel     string   // directory of the kernel
	initrds    []string // paths in /boot, in order
	others     []string // see BootEntry
	extra      Extra
	file       string // as this process sees it
}

// parseEntry reads an entry. link is the path that ostree= names; e.deployment is not set yet. ok is false for an entry
// that ostree did not write.
func parseEntry(text string) (e entry, link string, ok bool, err error) {
	for line := range strings.Lines(text) {
		key, value, separated := strings.Cut(strings.Replace(strings.Trim(line, "\r\n"), "\t", " ", 1), " ")
		value = strings.TrimSpace(value)
		if separated && strings.HasPrefix(key, extraPrefix) {
			if e.extra == nil {
				e.extra = Extra{}
			}
			e.extra[key] = value
		}
		switch key {
		case "version":
			if e.version, err = strconv.Atoi(value); err != nil {
				return entry{}, "", false, fmt.Errorf("version: %w", err)
			}
		case "linux":
			e.linux, e.kernel = value, path.Dir(value)
		case "initrd":
			e.initrds = append(e.initrds, value)
		case "devicetree", "devicetree-overlay", "efi", "uki":
			e.others = append(e.others, key)
		case "options":
			e.options = strings.TrimSpace(e.options + " " + value)
			for _, argument := range SplitArguments(value) {
				if target, found := strings.CutPrefix(argument, "ostree="); found {
					link = target
					continue
				}
				e.arguments = append(e.arguments, argument)
			}
		}
	}
	return e, link, link != "", nil
}

// readEntries reads the boot loader's entries below root, by deployment ID. Neither an entry's file name nor its title
// tells which deployment it belongs to. The link that the entry hands to the initramfs does. If ostree swaps the
// entries while they are read, they are read again.
func readEntries(root string) (map[string]entry, error) {
	for {
		before := swapMark(root)
		entries, err := readEntriesOnce(root)
		if swapMark(root) == before {
			return entries, err
		}
	}
}

// swapMark returns the targets of the links that ostree replaces in an update of the boot loader's entries. At least
// one target differs after an update.
func swapMark(root string) [3]string {
	var mark [3]string
	for i, link := range []string{"boot/loader", "ostree/boot.0", "ostree/boot.1"} {
		// One of the last two is usually missing.
		mark[i], _ = os.Readlink(filepath.Join(root, link))
	}
	return mark
}

func readEntriesOnce(root string) (map[string]entry, error) {
	files, err := filepath.Glob(filepath.Join(root, "boot/loader/entries/*.conf"))
	if err != nil {
		return nil, err
	}
	entries := map[string]entry{}
	for _, file := range files {
		if strings.HasPrefix(filepath.Base(file), ".") {
			continue // no boot loader reads it: a write that was cut left it
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		e, link, ok, err := parseEntry(string(text))
		if err != nil {
			return nil, fmt.Errorf("reading boot entry %s: %w", file, err)
		}
		if !ok {
			continue
		}
		target, err := os.Readlink(filepath.Join(root, link))
		if err != nil {
			return nil, fmt.Errorf("reading boot entry %s: ostree=%s: %w", file, link, err)
		}
		// ../../../deploy/OS/deploy/CHECKSUM.SERIAL
		parts := strings.Split(path.Clean(target), "/")
		if len(parts) < 4 || parts[len(parts)-4] != "deploy" || parts[len(parts)-2] != "deploy" {
			return nil, fmt.Errorf("reading boot entry %s: ostree=%s leads to %s, which is no deployment", file, link, target)
		}
		e.file = file
		e.deployment = parts[len(parts)-3] + "/" + parts[len(parts)-1]
		entries[e.deployment] = e
	}
	if len(entries) == 0 {
		return nil, errors.New("no entry of ostree's in /boot/loader/entries")
	}
	return entries, nil
}

// join adds to ostree's deployments what the boot loader's entries have about them.
func join(deployments []Deployment, entries map[string]entry) {
	highest := ""
	for id, e := range entries {
		if highest == "" || e.version > entries[highest].version {
			highest = id
		}
	}
	for i := range deployments {
		d := &deployments[i]
		e, ok := entries[d.ID]
		if !ok {
			continue
		}
		d.Default = d.ID == highest
		d.KernelArguments, d.kernel, d.Extra = e.arguments, e.kernel, e.extra
		for _, initrd := range e.initrds {
			if strings.Contains(initrd, "/initramfs-overlays/") {
				d.overlays = append(d.overlays, initrd)
			}
		}
	}
}

// NoBootSpace is the error for a commit whose kernel does not fit into /boot beside the kernels there.
type NoBootSpace struct {
	Checksum   string
	Need, Free uint64 // bytes
	// Reclaimable are the IDs of deployments that can be discarded to make room. They are of the same OS, come after the
	// booted deployment, are not pinned and do not boot next. The list is empty if discarding them would not help.
	Reclaimable []string
}

func (e *NoBootSpace) Error() string {
	text := fmt.Sprintf("the kernel of %s needs %d bytes in /boot, %d are free", e.Checksum, e.Need, e.Free)
	if len(e.Reclaimable) > 0 {
		text += "; discarding " + strings.Join(e.Reclaimable, ", ") + " makes room"
	}
	return text
}

// bootSlack is the space that the boot loader's configuration and the directories take besides the kernel, in bytes. It
// is rounded up generously, because ostree writes the whole configuration a second time before it swaps.
const bootSlack = 256 << 10

// object is a file of a commit.
type object struct {
	path     string
	size     uint64
	checksum string
}

// parseListing reads the output of ostree ls --recursive --checksum: type and mode, uid, gid, size, checksums, path.
func parseListing(output []byte) ([]object, error) {
	var objects []object
	lines := bufio.NewScanner(strings.NewReader(string(output)))
	for lines.Scan() {
		line := lines.Text()
		if !strings.HasPrefix(line, "-") {
			continue
		}
		fields := strings.Fields(line)
		if len(fields) < 6 || !IsChecksum(fields[4]) {
			return nil, fmt.Errorf("the line %q lists no file", line)
		}
		size, err := strconv.ParseUint(fields[3], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("the line %q: %w", line, err)
		}
		objects = append(objects, object{path: strings.Join(fields[5:], " "), size: size, checksum: fields[4]})
	}
	return objects, lines.Err()
}

// kernelFiles returns the files of a commit that ostree installs into /boot, the kernel first. simple is false if other
// files than a kernel and an initramfs are among them. Their part in ostree's boot checksum is not computed here.
func kernelFiles(objects []object) (files []object, simple bool) {
	var kernel, initramfs []object
	simple = true
	for _, o := range objects {
		rest, ok := strings.CutPrefix(o.path, "/usr/lib/modules/")
		_, name, _ := strings.Cut(rest, "/")
		switch {
		case !ok:
		case name == "vmlinuz":
			kernel = append(kernel, o)
		case name == "initramfs.img", name == "initramfs":
			initramfs = append(initramfs, o)
		case name == "devicetree", strings.HasPrefix(name, "dtb/"), name == ".vmlinuz.hmac", name == "aboot.img":
			simple = false
			initramfs = append(initramfs, o)
		}
	}
	return append(kernel, initramfs...), simple && len(kernel) == 1 && len(initramfs) <= 1
}

// bootChecksum returns the checksum that ostree names the directory of a kernel in /boot by: SHA-256 over kernel and
// initramfs. The objects are read from the repository below root, which keeps files as they are.
func bootChecksum(root string, files []object) (string, error) {
	digest := sha256.New()
	for _, o := range files {
		file, err := os.Open(filepath.Join(root, "ostree/repo/objects", o.checksum[:2], o.checksum[2:]+".file"))
		if err != nil {
			return "", err
		}
		_, err = io.Copy(digest, file)
		if err := errors.Join(err, file.Close()); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(digest.Sum(nil)), nil
}

// bootSpace checks whether files fit into the /boot below root.
func bootSpace(root, osName, checksum string, files []object, simple bool, deployments []Deployment) error {
	if simple {
		digest, err := bootChecksum(root, files)
		if err != nil {
			return err
		}
		_, err = os.Stat(filepath.Join(root, "boot/ostree", osName+"-"+digest))
		if err == nil {
			return nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	var stat unix.Statfs_t
	if err := unix.Statfs(filepath.Join(root, "boot"), &stat); err != nil {
		return fmt.Errorf("asking for the free space of /boot: %w", err)
	}
	block := uint64(stat.Bsize)
	need, free := uint64(bootSlack), stat.Bavail*block
	for _, o := range files {
		need += (o.size + block - 1) / block * block
	}
	if need <= free {
		return nil
	}
	refusal := &NoBootSpace{Checksum: checksum, Need: need, Free: free}
	discardable, kernels := reclaimable(osName, deployments)
	for _, kernel := range kernels {
		size, err := kernelSize(filepath.Join(root, "boot", kernel), block)
		if err != nil {
			return err
		}
		free += size
	}
	if need <= free {
		refusal.Reclaimable = discardable
	}
	return refusal
}

// reclaimable returns the deployments that ostree discards when the older ones are not kept, and the kernels that go
// with them.
func reclaimable(osName string, deployments []Deployment) (ids, kernels []string) {
	booted := slices.IndexFunc(deployments, func(d Deployment) bool { return d.Booted })
	goes := func(i int) bool {
		d := deployments[i]
		return booted >= 0 && i > booted && d.OS == osName && !d.Default && !d.Pinned && !d.Staged && d.kernel != ""
	}
	var kept []string
	for i, d := range deployments {
		if !goes(i) {
			kept = append(kept, d.kernel)
		}
	}
	for i, d := range deployments {
		if !goes(i) || slices.Contains(kept, d.kernel) {
			continue
		}
		ids = append(ids, d.ID)
		if !slices.Contains(kernels, d.kernel) {
			kernels = append(kernels, d.kernel)
		}
	}
	return ids, kernels
}

// kernelSize returns the space that a kernel's directory takes, in bytes.
func kernelSize(dir string, block uint64) (uint64, error) {
	var size uint64
	err := filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			size += (uint64(max(info.Size(), 0)) + block - 1) / block * block
		}
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return size, err
}
