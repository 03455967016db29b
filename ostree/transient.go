// SPDX-License-Identifier: Apache-2.0

package ostree

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
)

// Waker is a unit that the image itself must have on hosts with a transient /etc. Every boot begins there with the
// image's /etc, so no unit that the host wrote is known to systemd.
type Waker struct {
	Name     string
	Command  string // the line ExecStart= of the unit's file
	WantedBy []string
}

// wakingHint says what to do about a missing Waker.
const wakingHint = "build the image with the units that docs/os-updates.md names for a transient /etc"

// unitDirs are the directories of an image where units are found, and links to them.
var unitDirs = []string{"/usr/lib/systemd/system", "/usr/etc/systemd/system"}

// TransientEtc reports whether the running /etc is an overlay in memory, which ends with the boot. The mounts are read
// once: no running system changes the kind of its /etc.
func (p *Plain) TransientEtc() (bool, error) {
	if known := p.transient.Load(); known != nil {
		return *known, nil
	}
	mounts, err := os.ReadFile(p.host("/proc/self/mountinfo"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, &Error{Class: Failed, Doing: "looking how /etc is mounted", Err: err}
	}
	transient := transientEtc(string(mounts))
	p.transient.Store(&transient)
	return transient, nil
}

// transientUpper begins the directory in which the initramfs of ostree keeps a transient /etc. Other overlays of /etc,
// such as those of systemd-confext, lie over an /etc that lasts, or over a transient one.
const transientUpper = "/run/ostree/transient-etc"

// transientEtc reads mountinfo for a mount of /etc that is ostree's own.
func transientEtc(mountinfo string) (transient bool) {
	for line := range strings.Lines(mountinfo) {
		head, tail, _ := strings.Cut(line, " - ")
		fields, rest := strings.Fields(head), strings.Fields(tail)
		if len(fields) < 5 || len(rest) < 3 || fields[4] != "/etc" {
			continue
		}
		own := slices.ContainsFunc(strings.Split(rest[2], ","), func(option string) bool {
			return strings.HasPrefix(option, "upperdir="+transientUpper)
		})
		transient = transient || rest[0] == "overlay" && own
	}
	return transient
}

// wakes returns what the running image lacks of the Wakers, "" if it has all.
func (p *Plain) wakes() (string, error) {
	return lacksWaker(p.Wakers, func(at string) (string, error) {
		text, err := os.ReadFile(p.host(at))
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		if err != nil {
			return "", &Error{Class: Failed, Doing: "looking for the units of the image", Err: err}
		}
		return string(text), nil
	}, func(at string) (bool, error) {
		_, err := os.Lstat(p.host(at))
		return err == nil, nil
	})
}

// judgeWakers refuses a commit that lacks a Waker. Up to eight forks.
func (p *Plain) judgeWakers(ctx context.Context, doing, checksum string) error {
	listed := map[string][]string{}
	without, err := lacksWaker(p.Wakers, func(at string) (string, error) {
		text, err := p.run(ctx, "ostree", "cat", checksum, at)
		if Lacks(err) {
			return "", nil
		}
		return string(text), Failing(doing, text, err)
	}, func(at string) (bool, error) {
		dir := path.Dir(at)
		if _, known := listed[dir]; !known {
			names, err := p.filesIn(ctx, doing, checksum, dir)
			if err != nil {
				return false, err
			}
			listed[dir] = names
		}
		return slices.Contains(listed[dir], at), nil
	})
	if err == nil && without != "" {
		err = &Error{Class: Invalid, Doing: doing, Err: &Unfit{without, "", "it is missing, and on a host whose /etc is " +
			"transient nothing else brings the configuration back in each boot", wakingHint}}
	}
	return err
}

// lacksWaker returns the first path that an image lacks of the wakers, "" if it has all.
func lacksWaker(wakers []Waker, read func(at string) (string, error),
	there func(at string) (bool, error)) (string, error) {
	for _, w := range wakers {
		found := ""
		for _, dir := range unitDirs {
			text, err := read(path.Join(dir, w.Name))
			if err != nil {
				return "", err
			}
			if slices.Contains(strings.Split(text, "\n"), "ExecStart="+w.Command) {
				found = dir
			}
		}
		if found == "" {
			return path.Join(unitDirs[0], w.Name), nil
		}
		for _, target := range w.WantedBy {
			linked := false
			for _, dir := range unitDirs {
				yes, err := there(path.Join(dir, target+".wants", w.Name))
				if err != nil {
					return "", err
				}
				linked = linked || yes
			}
			if !linked {
				return path.Join(unitDirs[0], target+".wants", w.Name), nil
			}
		}
	}
	return "", nil
}
