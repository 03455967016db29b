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

// GRUB is a host's boot loader as the one that counts boots, by the protocol of greenboot's and Fedora's files:
// with boot_counter in its environment and boot_success=0 each boot takes one off the counter. At 0 it is the entry
// after the default one that boots, from then on, with the counter at -1. It keeps nothing between two calls.
type GRUB struct {
	root      string
	overwrite func(path string, block []byte) error
	// writes refuses a file that GRUB can't write to.
	writes func(file *os.File) error
}

// NewGRUB returns the boot loader of the host whose root this process sees at root, whatever it is. overwrite puts a
// block where path, one of the host's own that is no link, is on the disk, and makes that durable.
func NewGRUB(root string, overwrite func(path string, block []byte) error) *GRUB {
	g := &GRUB{root: root, overwrite: overwrite}
	g.writes = g.checkDisk
	return g
}

// uncounted is the error that says why the boots of a host are not counted.
type uncounted struct{ Reason string }

func (e *uncounted) Error() string { return e.Reason }

const (
	counterName = "boot_counter"
	successName = "boot_success"
	// environmentHeader begins an environment block, which GRUB can't grow and so never is of another size.
	environmentHeader = "# GRUB Environment Block\n"
	environmentSize   = 1024
)

// grubDirs are where GRUB has its configuration, that of Fedora and its like first.
var grubDirs = []string{"/boot/grub2", "/boot/grub"}

// counting is how a configuration that counts writes down how far it is; without that it does not count.
var counting = regexp.MustCompile(`(?m)^[^#\n]*\bsave_env\b[^#\n]*\b` + counterName + `\b`)

// Counts says whether boots are counted: nil, why they are not, or that it could not be found out. What GRUB reads at
// boot decides, not which packages there are. No fork.
func (g *GRUB) Counts() error {
	_, _, err := g.find()
	return err
}

// Limit is how often a deployment may boot before GRUB gives it up: greenboot's own setting where there is one.
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

// Set has GRUB count the boots from the next one on, and give up after that many; false if it does not count. No fork,
// one fsync.
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

// Left is how many boots are left, -1 when GRUB has given up and booted the entry after the default one; false where
// none are counted now. No fork.
func (g *GRUB) Left() (int, bool, error) {
	_, block, err := g.environment()
	if err != nil || !isEnvironment(block) {
		return 0, false, err
	}
	value, ok := environmentValue(block, counterName)
	left, err := strconv.Atoi(value)
	return left, ok && err == nil, nil
}

// Clear has GRUB count no more. No fork, and one fsync if it did count.
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
	if errors.Is(err, fs.ErrNotExist) { // it will be in this directory
		opened, err = os.Open(g.host(path.Dir(file)))
	}
	if err != nil {
		return "", nil, err
	}
	defer func() { _ = opened.Close() }()
	return file, block, g.writes(opened)
}

// config returns the directory of GRUB's configuration, "" if there is none, and its text.
func (g *GRUB) config() (dir, text string, err error) {
	for _, dir := range grubDirs {
		text, err := os.ReadFile(g.host(dir + "/grub.cfg"))
		if !errors.Is(err, fs.ErrNotExist) {
			return dir, string(text), err
		}
	}
	return "", "", nil
}

// reads says whether the configuration, or a part of it beside it which it names, keeps the counter.
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
	return err != nil // a pattern of ours is well formed
}

// environment returns where GRUB's environment is, or would be, and what it has: a new one where there is none.
func (g *GRUB) environment() (file string, block []byte, err error) {
	// Where the configuration is, whatever else has the name of such a directory.
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
	// On older hosts with UEFI it is a link into another file system.
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

// zfsMagic is what a file of ZFS, which is not in the kernel, says that its file system is.
const zfsMagic = 0x2fc12fc1

// checkDisk knows what GRUB can't write to, of what it reads: it changes no file system, and puts new bytes where the
// old ones are. That is not possible where no block is written twice, nor through LVM, RAID or encryption.
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
	if err == nil && !strings.Contains(string(mapped), "mpath-") { // several ways to one disk, which GRUB sees as such
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

// environmentLines are the lines of a block without what fills it up. A value has its line breaks behind backslashes.
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

// changeEnvironment gives variables other values, or takes those away whose value is "". What changes stands first in
// the block, and so in its first sector.
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
