// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// config is a configuration with everything decoded.
type config struct {
	Files []file `json:"files"`
	Units []unit `json:"units"`
}

type file struct {
	Path     string `json:"path"`
	Mode     uint32 `json:"mode"`
	Contents []byte `json:"contents"`
}

type unit struct {
	Name     string   `json:"name"`
	Contents string   `json:"contents"`
	Enabled  *bool    `json:"enabled"`
	Mask     *bool    `json:"mask"`
	Dropins  []dropin `json:"dropins"`
}

type dropin struct {
	Name     string `json:"name"`
	Contents string `json:"contents"`
}

func (u unit) masked() bool { return u.Mask != nil && *u.Mask }

const (
	unitDir = "/etc/systemd/system"
	origDir = "/etc/bench-originals"
)

func naive(verb, name string) error {
	data, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	var c config
	if err := json.Unmarshal(data, &c); err != nil {
		return err
	}
	if verb == "verify" {
		return verify(c)
	}
	return apply(c)
}

// verify reads every file and unit, and asks systemctl by a fork for each unit whose enablement is given and that is
// not masked. Owners, links, masks and keys are not looked at.
func verify(c config) error {
	same := func(path string, want []byte) error {
		if found, err := os.ReadFile(path); err != nil || !bytes.Equal(found, want) {
			return fmt.Errorf("%s does not match (%w)", path, err)
		}
		return nil
	}
	for _, f := range c.Files {
		info, err := os.Lstat(f.Path)
		if err != nil || info.Mode().Perm() != fs.FileMode(f.Mode) {
			return fmt.Errorf("%s does not match (%w)", f.Path, err)
		}
		if err := same(f.Path, f.Contents); err != nil {
			return err
		}
	}
	for _, u := range c.Units {
		for _, d := range u.Dropins {
			if err := same(filepath.Join(unitDir, u.Name+".d", d.Name), []byte(d.Contents)); err != nil {
				return err
			}
		}
		if u.masked() {
			continue
		}
		if err := same(filepath.Join(unitDir, u.Name), []byte(u.Contents)); err != nil {
			return err
		}
		if u.Enabled == nil {
			continue
		}
		if is := exec.Command("systemctl", "is-enabled", "--quiet", u.Name).Run() == nil; is != *u.Enabled {
			return fmt.Errorf("%s is enabled: %v", u.Name, is)
		}
	}
	return nil
}

// apply does what the upstream agent was measured to do, in its order and with its number of forks: every file and unit
// is written anew, with an fsync each; who owns a path is asked by a fork for each path that is there (of
// /usr/bin/stat, which stands for rpm -qf and is quicker); and systemctl is asked and told by a fork for each unit.
func apply(c config) error {
	for _, f := range c.Files {
		if err := original(f.Path); err != nil {
			return err
		}
		if err := write(f.Path, f.Contents, fs.FileMode(f.Mode)); err != nil {
			return err
		}
	}
	var enable, disable []string
	for _, u := range c.Units {
		path := filepath.Join(unitDir, u.Name)
		for _, d := range u.Dropins {
			if err := write(filepath.Join(unitDir, u.Name+".d", d.Name), []byte(d.Contents), 0o644); err != nil {
				return err
			}
		}
		if u.masked() {
			if err := link("/dev/null", path); err != nil {
				return err
			}
			continue
		}
		// A unit that is enabled is disabled before it is written, lest links of an old [Install] stay.
		if exec.Command("systemctl", "is-enabled", "--quiet", u.Name).Run() == nil {
			if err := systemctl("disable", u.Name); err != nil {
				return err
			}
		}
		if err := write(path, []byte(u.Contents), 0o644); err != nil {
			return err
		}
		switch {
		case u.Enabled == nil:
			if err := systemctl("preset", u.Name); err != nil {
				return err
			}
		case *u.Enabled:
			enable = append(enable, u.Name)
		default:
			disable = append(disable, u.Name)
		}
	}
	if len(enable) > 0 {
		if err := systemctl("enable", enable...); err != nil {
			return err
		}
	}
	if len(disable) > 0 {
		return systemctl("disable", disable...)
	}
	return nil
}

// original notes, once a path, that nobody's file was there before.
func original(path string) error {
	stamp := filepath.Join(origDir, path+".noorig")
	if _, err := os.Lstat(path); err == nil {
		if out, err := exec.Command("/usr/bin/stat", "--", path).CombinedOutput(); err != nil {
			return fmt.Errorf("asking who owns %s: %w: %s", path, err, out)
		}
		return nil
	}
	if _, err := os.Lstat(stamp); err == nil {
		return nil
	}
	return write(stamp, nil, 0o600)
}

// write is a temporary file, fsync, rename.
func write(path string, data []byte, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".naive-")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err := errors.Join(err, f.Chmod(mode), f.Chown(0, 0), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

func link(target, path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Symlink(target, path)
}

func systemctl(verb string, units ...string) error {
	out, err := exec.Command("systemctl", append([]string{verb, "--quiet"}, units...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("systemctl %s %s: %w: %s", verb, strings.Join(units, " "), err, out)
	}
	return nil
}
