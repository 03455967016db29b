// SPDX-License-Identifier: Apache-2.0

// Package sysext is about extensions of the system: directories that systemd-sysext lays over /usr and /opt. It finds
// those that a configuration brings, judges whether they fit an OS before that OS boots, and finds out whether they are
// there after it has:
//
//	wrong := sysext.Judge(configuration, osRelease)
//	err := sysext.Merged(root, configuration)
//
// A raw image is known by its name alone: nothing reads the image.
package sysext

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"runtime"
	"slices"
	"strings"

	"github.com/noderefit/noderefit/machineconfig"
)

// Unit merges the extensions in each boot, and does so anew when it is reloaded.
const Unit = "systemd-sysext.service"

// dirs are the directories of extensions that a configuration can write to, in the order in which systemd looks.
var dirs = []string{"/etc/extensions", "/var/lib/extensions"}

// Extension is an extension that a configuration brings.
type Extension struct {
	Name string
	// Place is the path of its directory, or of its raw image.
	Place string
	Raw   bool
}

// rawSuffix ends the file name of an image.
const rawSuffix = ".raw"

// Of returns the extensions of a configuration by name. Of two with one name, systemd takes the first place.
func Of(cfg *machineconfig.Config) []Extension {
	if cfg == nil {
		return nil
	}
	found := map[string]Extension{}
	add := func(name string, file bool) {
		for _, dir := range dirs {
			rest, below := strings.CutPrefix(path.Clean(name), dir+"/")
			if !below {
				continue
			}
			first, _, deeper := strings.Cut(rest, "/")
			if strings.HasPrefix(first, ".") || !deeper && file && !strings.HasSuffix(first, rawSuffix) {
				continue // systemd passes over it
			}
			e := Extension{Name: strings.TrimSuffix(first, rawSuffix), Place: path.Join(dir, first),
				Raw: strings.HasSuffix(first, rawSuffix)}
			if had, ok := found[e.Name]; !ok || slices.Index(dirs, path.Dir(had.Place)) >= slices.Index(dirs, dir) {
				found[e.Name] = e
			}
		}
	}
	for _, d := range cfg.Directories {
		add(d.Path, false)
	}
	for _, f := range cfg.Files {
		add(f.Path, true)
	}
	for _, l := range cfg.Links {
		add(l.Path, false)
	}
	out := make([]Extension, 0, len(found))
	for _, e := range found {
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b Extension) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// Touches reports whether a path belongs to an extension.
func Touches(name string) bool {
	name = path.Clean(name)
	return slices.ContainsFunc(dirs, func(dir string) bool { return name == dir || strings.HasPrefix(name, dir+"/") })
}

// inside returns the directory with the files of an extension: that of its link, where it is one. It is "" for an image
// and for a relative link.
func (e Extension) inside(cfg *machineconfig.Config) string {
	for _, l := range cfg.Links {
		if path.Clean(l.Path) != e.Place {
			continue
		}
		if l.Hard || !path.IsAbs(l.Target) {
			return ""
		}
		return path.Clean(l.Target)
	}
	if e.Raw {
		return ""
	}
	return e.Place
}

// Wrong is an extension that does not fit an OS.
type Wrong struct{ Place, Reason string }

// architectures are the names of systemd for architectures.
var architectures = map[string]string{"amd64": "x86-64", "arm64": "arm64", "ppc64le": "ppc64-le", "s390x": "s390x",
	"riscv64": "riscv64"}

// Judge returns the extensions that systemd would not merge on an OS, by the rules of extension-release.d. The OS is
// given as its os-release. Only directories whose files the configuration has are judged.
func Judge(cfg *machineconfig.Config, osRelease []byte) (wrong []Wrong) {
	for _, e := range Of(cfg) {
		dir := e.inside(cfg)
		if dir == "" {
			continue
		}
		name := path.Join(dir, "usr/lib/extension-release.d/extension-release."+e.Name)
		at := slices.IndexFunc(cfg.Files, func(f machineconfig.File) bool { return path.Clean(f.Path) == name })
		switch {
		case at >= 0:
			if why := mismatch(variables(cfg.Files[at].Contents), variables(osRelease)); why != "" {
				wrong = append(wrong, Wrong{e.Place, name + " " + why})
			}
		case dir == e.Place:
			wrong = append(wrong, Wrong{e.Place, "the extension has no file " + name +
				", without which systemd does not merge it"})
		}
	}
	return wrong
}

const anything = "_any"

// mismatch returns why an extension does not fit, "" where it does.
func mismatch(e, os map[string]string) string {
	says := func(key string) string { return fmt.Sprintf("says %s=%s", key, e[key]) }
	if a := e["ARCHITECTURE"]; a != "" && a != anything && a != architectures[runtime.GOARCH] {
		return says("ARCHITECTURE") + ", and this host has " + architectures[runtime.GOARCH]
	}
	if s := e["SYSEXT_SCOPE"]; s != "" && !slices.Contains(strings.Fields(s), "system") {
		return says("SYSEXT_SCOPE") + ", which is not for a system that has booted"
	}
	differs := func(key string) string {
		return fmt.Sprintf("%s, and the OS that is to boot has %s=%s: bring the extension that is made for it",
			says(key), key, os[key])
	}
	switch id := e["ID"]; {
	case id == "":
		return "has no ID: write the ID of the OS, or ID=_any"
	case id == anything:
		return ""
	case id != os["ID"]:
		return differs("ID")
	case os["SYSEXT_LEVEL"] != "" && e["SYSEXT_LEVEL"] != "":
		if os["SYSEXT_LEVEL"] != e["SYSEXT_LEVEL"] {
			return differs("SYSEXT_LEVEL")
		}
	case os["VERSION_ID"] != "" && e["VERSION_ID"] != os["VERSION_ID"]:
		return differs("VERSION_ID")
	}
	return ""
}

// variables reads a file such as os-release.
func variables(text []byte) map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(string(text)) {
		key, value, is := strings.Cut(strings.TrimSpace(line), "=")
		if is && !strings.HasPrefix(key, "#") {
			out[key] = strings.Trim(value, `"'`)
		}
	}
	return out
}

// mergedPath is where systemd-sysext writes which extensions lie over /usr or /opt.
const mergedPath = ".systemd-sysext/extensions"

// Host is a host as extensions see it.
type Host interface {
	ReadFile(name string) ([]byte, error)
	// Has reports whether there is a regular file with these bytes.
	Has(name string, data []byte) (bool, error)
}

// Merged returns an error that names an extension of the configuration that is not merged, or a file of an extension
// that is not what the configuration has.
func Merged(root Host, cfg *machineconfig.Config) error {
	all := Of(cfg)
	if len(all) == 0 {
		return nil
	}
	there := map[string]bool{}
	for _, hierarchy := range []string{"/usr", "/opt"} {
		text, err := root.ReadFile(path.Join(hierarchy, mergedPath))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for name := range strings.FieldsSeq(string(text)) {
			there[name] = true
		}
	}
	for _, e := range all {
		if !there[e.Name] {
			return fmt.Errorf("extension %s (%s) is not merged: journalctl -u %s shows why", e.Name, e.Place, Unit)
		}
		dir := e.inside(cfg)
		for _, f := range cfg.Files {
			rest, below := strings.CutPrefix(path.Clean(f.Path), dir+"/")
			if dir == "" || !below || f.NoContents || !strings.HasPrefix(rest, "usr/") && !strings.HasPrefix(rest, "opt/") {
				continue
			}
			same, err := root.Has("/"+rest, f.Contents)
			if err != nil {
				return err
			}
			if !same {
				return fmt.Errorf("extension %s: /%s does not have the bytes of %s", e.Name, rest, f.Path)
			}
		}
	}
	return nil
}
