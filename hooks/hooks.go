// SPDX-License-Identifier: Apache-2.0

// Package hooks finds and runs the executables of people that the agent asks: before a drain of the node, and after its
// boot. The hooks of a host are a function of directories. A hook's no is an Error with the last lines of its output.
package hooks

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/noderefit/noderefit/files"
)

// When is the point of an update at which a hook is asked.
type When string

// The points.
const (
	// BeforeDrain: the update is staged, and the node still serves. A no holds the update.
	BeforeDrain When = "before-drain"
	// AfterBoot: the new configuration has booted, and its verdict is open. A no fails the update.
	AfterBoot When = "after-boot"
	// RebootWanted: no update is under way. A yes wants a reboot of the host, and its first line says why.
	RebootWanted When = "reboot-wanted"
)

// defaultLimit is how long a hook may run that sets no limit, like a check script. LongestLimit is the longest limit
// that a hook may set.
const (
	defaultLimit = 2 * time.Minute
	LongestLimit = time.Hour
)

// Hook is an executable to run.
type Hook struct {
	// Name is the hook's name for people: its path, or the object that it comes from.
	Name string
	// Path is the executable on the host. For a hook with a Script the file is written before it runs.
	Path   string
	Script string
	Args   []string
	Limit  time.Duration
}

// folders are the directories of a host's own hooks. A hook replaces a hook of the same name in a later directory.
var folders = []string{"/etc/noderefit/hooks", "/run/noderefit/hooks", "/usr/lib/noderefit/hooks"}

// limitSuffix follows the name of a hook in the name of the file with its time limit.
const limitSuffix = ".timeout"

// entry is a file or link in a directory of hooks.
type entry struct {
	path   string
	masked bool // an empty file, or a link to /dev/null
	runs   bool // an executable file, or a link to one
}

// Find returns the hooks of a host for a point, in the order in which they run. warnings name, for people, the entries
// that look like hooks and are none.
func Find(root *files.Root, when When) (found []Hook, warnings []string, err error) {
	entries := map[string]entry{}
	for _, dir := range slices.Backward(folders) {
		dir = path.Join(dir, string(when)+".d")
		names, err := root.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, nil, fmt.Errorf("looking for hooks: %w", err)
		}
		for _, name := range names {
			if entries[name], err = look(root, path.Join(dir, name)); err != nil {
				return nil, nil, fmt.Errorf("looking for hooks: %w", err)
			}
		}
	}
	found, warnings = choose(entries)
	for i := range found {
		h := &found[i]
		limit, is := entries[path.Base(h.Path)+limitSuffix]
		if !is || limit.masked {
			continue
		}
		text, err := root.ReadFile(limit.path)
		if err != nil {
			return nil, nil, fmt.Errorf("reading the time limit of a hook: %w", err)
		}
		if h.Limit, err = ParseLimit(string(text)); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", limit.path, err)
		}
	}
	return found, warnings, nil
}

// look returns the entry at name. It follows links: a hook may be a link to a program of a package.
func look(root *files.Root, name string) (entry, error) {
	e := entry{path: name}
	at := name
	for range 40 { // as many as the kernel follows
		n, size, err := root.InspectSized(at)
		if err != nil {
			return e, err
		}
		switch n.Type {
		case files.Symlink:
			if n.Target == "/dev/null" {
				e.masked = true
				return e, nil
			}
			if path.IsAbs(n.Target) {
				at = path.Clean(n.Target)
			} else {
				at = path.Join(path.Dir(at), n.Target)
			}
			continue
		case files.Regular:
			e.masked, e.runs = size == 0, n.Mode&0o111 != 0
			return e, nil
		}
		return e, nil
	}
	return e, fmt.Errorf("%s: too many links", name)
}

// leftBehind are the endings of the files that editors and package managers leave.
var leftBehind = []string{"~", ".bak", ".orig", ".swp", ".rpmnew", ".rpmorig", ".rpmsave", ".dpkg-dist", ".dpkg-new",
	".dpkg-old", ".dpkg-tmp", ".ignore"}

// choose returns the hooks among the entries, by name.
func choose(entries map[string]entry) (found []Hook, warnings []string) {
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		e := entries[name]
		skip := strings.HasPrefix(name, ".") || strings.HasSuffix(name, limitSuffix) ||
			slices.ContainsFunc(leftBehind, func(s string) bool { return strings.HasSuffix(name, s) })
		switch {
		case skip || e.masked:
		case !e.runs:
			warnings = append(warnings, e.path+" is not an executable file, so it is not run as a hook")
		default:
			found = append(found, Hook{Name: e.path, Path: e.path, Limit: defaultLimit})
		}
	}
	return found, warnings
}

// ParseLimit reads a time limit: a number of seconds, or a duration such as 90s or 5m.
func ParseLimit(text string) (time.Duration, error) {
	text = strings.TrimSpace(text)
	limit, err := time.ParseDuration(text)
	if seconds, number := strconv.Atoi(text); number == nil {
		limit, err = time.Duration(seconds)*time.Second, nil
	}
	if err != nil || limit < time.Second || limit > LongestLimit {
		return 0, fmt.Errorf("%q is not a time limit; write a duration from 1s to %s, or a number of seconds", text,
			LongestLimit)
	}
	return limit, nil
}
