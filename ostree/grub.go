// SPDX-License-Identifier: Apache-2.0

package ostree

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// GRUB is a host's boot loader that counts boots, by the protocol of greenboot's and Fedora's files. With boot_counter
// in GRUB's environment and boot_success=0, each boot takes one off the counter. At 0, GRUB boots the entry after the
// default one from then on, with the counter at -1. A GRUB keeps nothing between two calls.
type GRUB struct {
	root      string
	overwrite func(path string, block []byte) error
	// writes refuses a file that GRUB can't write to.
	writes func(file *os.File) error
}

// NewGRUB returns the boot loader of the host whose root this process sees at root, whichever boot loader that is.
// overwrite puts a block on the disk in place of the content of path, and makes that durable. path is a path of the
// host and not a link.
func NewGRUB(root string, overwrite func(path string, block []byte) error) *GRUB {
	g := &GRUB{root: root, overwrite: overwrite}
	g.writes = g.checkDisk
	return g
}

// uncounted is the error, with its reason, for a host whose boots are not counted.
type uncounted struct{ Reason string }

func (e *uncounted) Error() string { return e.Reason }

const (
	counterName = "boot_counter"
	successName = "boot_success"
	// environmentHeader begins an environment block. GRUB can't grow the block, so it never has another size.
	environmentHeader = "# GRUB Environment Block\n"
	environmentSize   = 1024
)

// grubDirs are the directories where GRUB has its configuration. The one of Fedora and its derivatives comes first.
var grubDirs = []string{"/boot/grub2", "/boot/grub"}

// counting matches the command by which a configuration saves the counter. A configuration without it does not count.
var counting = regexp.MustCompile(`(?m)^[^#\n]*\bsave_env\b[^#\n]*\b` + counterName + `\b`)

// Counts returns nil if boots are counted. Otherwise it returns why they are not, or why that could not be found out.
// The configuration that GRUB reads at boot decides, not the installed packages. No fork.
func (g *GRUB) Counts() error {
	_, _, err := g.find()
	return err
}

// Limit returns how often a deployment may boot before GRUB gives it up: greenboot's own setting, if the host has one.
func (g *GRUB) Limit() int {
	const setting, otherwise = "GREENBOOT_MAX_BOOT_ATTEMPTS=", 3
	text, err := os.ReadFile(g.host("/etc/greenboot/greenboot.conf"))
	if err != nil {
		return otherwise
	}
	limit := otherwise
	for line := range strings.Lines(string(text)) {
		value, ok := strings.CutPrefix(strings.TrimSpace(line), setting)
		if n, err := strconv.Atoi(strings.Trim(value, `"'`)); ok && err == nil && n > 0 {
			limit = n
		}
	}
	return limit
}

// Set makes GRUB count the boots from the next one on, and give up after that many. Set returns false if GRUB does not
// count. No fork, one fsync.
func (g *GRUB) Set(boots int) (bool, error) {
	const doing = "having the boots counted"
	file, block, err := g.find()
	if errors.As(err, new(*uncounted)) {
		return false, nil
	}
	if err == nil {
		err = g.save(file, block, map[string]string{counterName: strconv.Itoa(boots), successName: "0"})
	}
	if err != nil {
		return false, fmt.Errorf("%s: %w", doing, err)
	}
	return true, nil
}

// Left returns how many boots are left. The number is -1 when GRUB has given up and booted the entry after the default
// one. Left returns false if no boots are counted now. No fork.
func (g *GRUB) Left() (int, bool, error) {
	_, block, err := g.environment()
	if err != nil || !isEnvironment(block) {
		return 0, false, err
	}
	value, ok := environmentValue(block, counterName)
	left, err := strconv.Atoi(value)
	return left, ok && err == nil, nil
}

// Chosen returns the variable, with its value, by which a person or a program has chosen an entry for the next boot or
// for each boot. The result is "" where no entry is chosen. The entry 0 is the first one, which boots by default
// anyway. No fork.
func (g *GRUB) Chosen() (string, error) {
	_, block, err := g.environment()
	if err != nil || !isEnvironment(block) {
		return "", err
	}
	for _, name := range []string{"next_entry", "saved_entry"} {
		if value, _ := environmentValue(block, name); value != "" && value != "0" {
			return name + "=" + value, nil
		}
	}
	return "", nil
}

// Clear makes GRUB stop counting. No fork, and one fsync if GRUB did count.
func (g *GRUB) Clear() error {
	file, block, err := g.environment()
	if err != nil || !isEnvironment(block) {
		return err
	}
	if _, counts := environmentValue(block, counterName); !counts {
		return nil
	}
	if err := g.save(file, block, map[string]string{counterName: ""}); err != nil {
		return fmt.Errorf("having the boots counted no more: %w", err)
	}
	return nil
}

// find returns the environment of a GRUB that counts.
func (g *GRUB) find() (file string, block []byte, err error) {
	dir, text, err := g.config()
	switch {
	case err != nil:
		return "", nil, fmt.Errorf("reading the configuration of GRUB: %w", err)
	case dir == "":
		return "", nil, &uncounted{"there is no configuration of GRUB in " + strings.Join(grubDirs, " or ")}
	case !g.reads(dir, text):
		return "", nil, &uncounted{dir + "/grub.cfg keeps no " + counterName}
	}
	if file, block, err = g.environment(); err != nil {
		return "", nil, err
	}
	if !isEnvironment(block) {
		return "", nil, &uncounted{file + " is no environment block of GRUB's"}
	}
	opened, err := os.Open(g.host(file))
	if errors.Is(err, fs.ErrNotExist) { // the environment is to be created in this directory
		opened, err = os.Open(g.host(path.Dir(file)))
	}
	if err != nil {
		return "", nil, err
	}
	defer func() { _ = opened.Close() }()
	return file, block, g.writes(opened)
}

// config returns the directory of GRUB's configuration and its text. The directory is "" if the host has none.
func (g *GRUB) config() (dir, text string, err error) {
	for _, dir := range grubDirs {
		text, err := os.ReadFile(g.host(dir + "/grub.cfg"))
		if !errors.Is(err, fs.ErrNotExist) {
			return dir, string(text), err
		}
	}
	return "", "", nil
}

// reads reports whether the configuration keeps the counter, itself or in a file beside it that it names.
func (g *GRUB) reads(dir, text string) bool {
	if counting.MatchString(text) {
		return true
	}
	parts, err := filepath.Glob(g.host(dir + "/*.cfg"))
	for _, part := range parts {
		if !strings.Contains(text, "/"+filepath.Base(part)) {
			continue
		}
		if text, err := os.ReadFile(part); err == nil && counting.Match(text) {
			return true
		}
	}
	return err != nil // nil, as the pattern is well formed
}

// environment returns the path of GRUB's environment and its content. If that file does not exist, it returns the path
// where one would be and a new environment.
func (g *GRUB) environment() (file string, block []byte, err error) {
	// A directory with the configuration comes first, then any directory of that name.
	for _, name := range []string{"/grub.cfg", ""} {
		for _, dir := range grubDirs {
			if _, err := os.Stat(g.host(dir + name)); err == nil && file == "" {
				file = dir + "/grubenv"
			}
		}
	}
	if file == "" {
		return "", newEnvironment(), nil
	}
	// On older hosts with UEFI the file is a link into another file system.
	if target, err := filepath.EvalSymlinks(g.host(file)); err == nil {
		file = "/" + strings.TrimPrefix(strings.TrimPrefix(target, filepath.Clean(g.root)), "/")
	}
	block, err = os.ReadFile(g.host(file))
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(block) == 0 {
		return file, newEnvironment(), nil
	}
	if err != nil {
		return "", nil, fmt.Errorf("reading the environment of GRUB: %w", err)
	}
	return file, block, nil
}

func (g *GRUB) save(file string, block []byte, change map[string]string) error {
	changed, err := changeEnvironment(block, change)
	if err != nil {
		return fmt.Errorf("changing %s: %w", file, err)
	}
	return g.overwrite(file, changed)
}

// zfsMagic is the type of file system that files on ZFS report. ZFS is not in the kernel, nor is this constant.
const zfsMagic = 0x2fc12fc1

// checkDisk refuses a file that GRUB can read but not write to. GRUB changes no file system: it puts new bytes where
// the old ones are. That is impossible on file systems that write no block twice, and through LVM, RAID or encryption.
func (g *GRUB) checkDisk(file *os.File) error {
	var fsys unix.Statfs_t
	if err := unix.Fstatfs(int(file.Fd()), &fsys); err != nil {
		return err
	}
	var stat unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &stat); err != nil {
		return err
	}
	return g.checkDevice(file.Name(), uint32(fsys.Type), unix.Major(stat.Dev), unix.Minor(stat.Dev))
}

func (g *GRUB) checkDevice(file string, fsys, major, minor uint32) error {
	switch fsys {
	case unix.BTRFS_SUPER_MAGIC, zfsMagic:
		return &uncounted{"GRUB can't write to the file system of " + file}
	}
	device := fmt.Sprintf("/sys/dev/block/%d:%d", major, minor)
	mapped, err := os.ReadFile(g.host(device + "/dm/uuid"))
	if err == nil && !strings.Contains(string(mapped), "mpath-") { // mpath: one disk by several ways, plain to GRUB
		return &uncounted{"GRUB can't write to the device of " + file + ", which is " + strings.TrimSpace(string(mapped))}
	}
	if _, err := os.Stat(g.host(device + "/md")); err == nil {
		return &uncounted{"GRUB can't write to the device of " + file + ", which is RAID"}
	}
	return nil
}

func (g *GRUB) host(name string) string { return filepath.Join(g.root, name) }

func isEnvironment(block []byte) bool {
	return len(block) == environmentSize && bytes.HasPrefix(block, []byte(environmentHeader))
}

// environmentLines returns the lines of a block without its padding. In a value, a line break follows a backslash.
func environmentLines(block []byte) [][]byte {
	var lines [][]byte
	for start, i := 0, 0; i < len(block); i++ {
		switch block[i] {
		case '\\':
			i++
		case '\n':
			lines = append(lines, block[start:i+1])
			start = i + 1
		}
	}
	return lines
}

func newEnvironment() []byte {
	return append([]byte(environmentHeader), bytes.Repeat([]byte("#"), environmentSize-len(environmentHeader))...)
}

func environmentValue(block []byte, name string) (string, bool) {
	for _, line := range environmentLines(block) {
		if value, ok := bytes.CutPrefix(line, []byte(name+"=")); ok {
			return string(bytes.TrimSuffix(value, []byte("\n"))), true
		}
	}
	return "", false
}

// changeEnvironment sets variables to new values, and removes variables whose new value is "". The changed variables
// come first in the block, and so are in its first sector.
func changeEnvironment(block []byte, change map[string]string) ([]byte, error) {
	out := []byte(environmentHeader)
	for _, name := range []string{counterName, successName} {
		if value := change[name]; value != "" {
			out = append(out, name+"="+value+"\n"...)
		}
	}
	for _, line := range environmentLines(block)[1:] {
		name, _, _ := strings.Cut(string(line), "=")
		if _, changed := change[name]; !changed {
			out = append(out, line...)
		}
	}
	if len(out) > len(block) {
		return nil, fmt.Errorf("%d bytes are too few", len(block))
	}
	return append(out, bytes.Repeat([]byte("#"), len(block)-len(out))...), nil
}
