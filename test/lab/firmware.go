// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Entry is a boot loader entry, as a boot loader reads it.
type Entry struct {
	Options    string // the kernel command line, with ostree=
	Deployment string // OS/CHECKSUM.SERIAL
	Dir        string // the deployment's directory, relative to the sysroot
}

// OS returns the operating system that the entry boots.
func (e Entry) OS() string {
	os, _, _ := strings.Cut(e.Deployment, "/")
	return os
}

// DefaultEntry returns the entry that a boot loader would boot from the disk at sysroot, which is the entry with the
// highest version.
func DefaultEntry(sysroot string) (Entry, error) { return entry(sysroot, 0) }

// entry returns entry number n in the boot loader's order; 0 is the default.
func entry(sysroot string, n int) (Entry, error) {
	found, err := readEntries(sysroot)
	if err != nil {
		return Entry{}, err
	}
	if n >= len(found) {
		return Entry{}, fmt.Errorf("reading boot loader entries: none with number %d in %s/boot/loader/entries", n, sysroot)
	}
	slices.SortFunc(found, func(a, b loaded) int { return b.version - a.version })
	return resolve(sysroot, found[n].options)
}

// loaded is what a boot loader has read from an entry.
type loaded struct {
	version int
	options string
	path    string
}

// BootedEntry returns the path of the boot loader entry of the deployment that runs, as this machine sees it. ostree
// may have rewritten the entry since the boot. On a host without ostree it is the file from which its boot loader has
// the arguments, "" where there is none.
func (h *Host) BootedEntry() (string, error) {
	if h.fixed != nil {
		return h.loaderFile()
	}
	found, err := readEntries(h.Sysroot())
	if err != nil {
		return "", err
	}
	for _, e := range found {
		if at, err := resolve(h.Sysroot(), e.options); err != nil || at.Deployment == h.BootedDeployment() {
			return e.path, err
		}
	}
	return "", fmt.Errorf("reading boot loader entries: none is of %s", h.BootedDeployment())
}

func readEntries(sysroot string) ([]loaded, error) {
	paths, err := filepath.Glob(filepath.Join(sysroot, "boot/loader/entries/*.conf"))
	if err != nil {
		return nil, fmt.Errorf("reading boot loader entries: %w", err)
	}
	var found []loaded
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("reading boot loader entries: %w", err)
		}
		e := loaded{version: -1, path: path}
		for field := range strings.Lines(string(text)) {
			key, value, _ := strings.Cut(strings.TrimSpace(field), " ")
			switch key {
			case "version":
				if e.version, err = strconv.Atoi(strings.TrimSpace(value)); err != nil {
					return nil, fmt.Errorf("reading boot loader entry %s: version: %w", path, err)
				}
			case "options":
				e.options = strings.TrimSpace(value)
			}
		}
		if e.version >= 0 {
			found = append(found, e)
		}
	}
	return found, nil
}

// resolve returns the deployment that a kernel command line boots.
func resolve(sysroot, options string) (Entry, error) {
	for _, option := range splitOptions(options) {
		link, ok := strings.CutPrefix(option, "ostree=")
		if !ok {
			continue
		}
		// The link may go through boot.0 or boot.1, which itself is a link that ostree swaps.
		target, err := filepath.EvalSymlinks(filepath.Join(sysroot, link))
		if err != nil {
			return Entry{}, fmt.Errorf("resolving %s: %w", option, err)
		}
		root, err := filepath.EvalSymlinks(sysroot)
		if err != nil {
			return Entry{}, fmt.Errorf("resolving %s: %w", option, err)
		}
		dir, err := filepath.Rel(root, target)
		if err != nil {
			return Entry{}, fmt.Errorf("resolving %s: %w", option, err)
		}
		parts := strings.Split(dir, "/")
		if len(parts) != 5 || parts[0] != "ostree" || parts[1] != "deploy" || parts[3] != "deploy" {
			return Entry{}, fmt.Errorf("resolving %s: %s is no deployment", option, dir)
		}
		return Entry{Options: options, Deployment: parts[2] + "/" + parts[4], Dir: dir}, nil
	}
	return Entry{}, fmt.Errorf("reading boot loader entries: no ostree= in %q", options)
}

// splitOptions splits a kernel command line at spaces outside double quotes. It keeps the quotes, so that the arguments
// of PID 1, joined by spaces, are the command line again.
func splitOptions(options string) []string {
	quoted := false
	return strings.FieldsFunc(options, func(r rune) bool {
		if r == '"' {
			quoted = !quoted
		}
		return !quoted && (r == ' ' || r == '\t' || r == '\n')
	})
}
