// SPDX-License-Identifier: Apache-2.0

// Package sysext is about extensions of the system: directories that systemd-sysext lays over /usr and /opt, and
// systemd-confext over /etc. It finds those that a configuration brings, judges whether they fit an OS before that OS
// boots, and finds out whether they are there after it has:
//
//	wrong := sysext.Judge(configuration, osRelease, false)
//	err := sysext.Merged(root, configuration)
//
// A raw image is read where it is an erofs or a squashfs, with or without a partition table. Another one is known by
// its name alone.
package sysext

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"runtime"
	"slices"
	"strings"

	"github.com/noderefit/noderefit/machineconfig"
)

// class is a kind of extensions: those of one directory for each name, that one unit merges.
type class struct {
	// unit merges the extensions in each boot, and does so anew when it is reloaded.
	unit string
	// dirs are the directories that a configuration can write to, in the order in which systemd looks.
	dirs []string
	// over are the directories of the host that extensions are laid over.
	over []string
	// merged is the file, in each of over, in which systemd writes which extensions lie there.
	merged string
	// release is the directory of an extension with the file that says which OS it is for.
	release string
	// variables begins the names of this file's variables.
	variables string
}

var classes = []*class{
	{unit: "systemd-sysext.service", dirs: []string{"/etc/extensions", "/var/lib/extensions"},
		over: []string{"/usr", "/opt"}, merged: ".systemd-sysext/extensions", release: "usr/lib/extension-release.d",
		variables: "SYSEXT"},
	{unit: ConfextUnit, dirs: []string{"/var/lib/confexts"}, over: []string{"/etc"},
		merged: ".systemd-confext/confexts", release: "etc/extension-release.d", variables: "CONFEXT"},
}

// ConfextUnit merges extensions of /etc.
const ConfextUnit = "systemd-confext.service"

// of returns the class of the extension that a path belongs to, and the directory of it; nil for other paths.
func of(name string) (*class, string) {
	for _, c := range classes {
		for _, dir := range c.dirs {
			if name == dir || strings.HasPrefix(name, dir+"/") {
				return c, dir
			}
		}
	}
	return nil, ""
}

// Extension is an extension that a configuration brings.
type Extension struct {
	Name string
	// Place is the path of its directory, or of its raw image.
	Place string
	Raw   bool
	class *class
}

// rawSuffix ends the file name of an image.
const rawSuffix = ".raw"

// Of returns the extensions of a configuration by name. Of two with one name, systemd takes the first place.
func Of(cfg *machineconfig.Config) []Extension {
	if cfg == nil {
		return nil
	}
	type key struct {
		class *class
		name  string
	}
	found := map[key]Extension{}
	add := func(name string, file bool) {
		c, dir := of(path.Clean(name))
		if c == nil || path.Clean(name) == dir {
			return
		}
		first, _, deeper := strings.Cut(strings.TrimPrefix(path.Clean(name), dir+"/"), "/")
		if strings.HasPrefix(first, ".") || !deeper && file && !strings.HasSuffix(first, rawSuffix) {
			return // systemd passes over it
		}
		e := Extension{Name: strings.TrimSuffix(first, rawSuffix), Place: path.Join(dir, first),
			Raw: strings.HasSuffix(first, rawSuffix), class: c}
		k := key{c, e.Name}
		if had, ok := found[k]; !ok || slices.Index(c.dirs, path.Dir(had.Place)) >= slices.Index(c.dirs, dir) {
			found[k] = e
		}
	}
	for _, d := range cfg.Directories {
		add(d.Path, false)
	}
	for _, f := range cfg.Files {
		add(f.Path, true)
	}
	for _, l := range cfg.Links {
		if UnitOf(l.Path) == "" {
			continue
		}
		if end, file := linked(cfg, path.Clean(l.Path)); end != "/dev/null" { // by which an admin masks a name
			add(l.Path, file || slices.Contains(besideImage, path.Ext(l.Path)))
		}
	}
	out := make([]Extension, 0, len(found))
	for _, e := range found {
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b Extension) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Place, b.Place))
	})
	return out
}

// besideImage are the ends of the names of files that belong to a raw image. A link with such a name leads to a file,
// though the configuration may not have the file.
var besideImage = []string{".roothash", ".usrhash", ".verity", ".p7s"}

// linksAtMost is how many links in a row the kernel follows.
const linksAtMost = 40

// linked returns the path that a clean path leads to over the links of a configuration, and reports whether a file is
// there, as far as the configuration says. A hard link leads to a file.
func linked(cfg *machineconfig.Config, name string) (end string, file bool) {
	end = name
	for range linksAtMost {
		at := slices.IndexFunc(cfg.Links, func(l machineconfig.Link) bool { return path.Clean(l.Path) == end })
		if at < 0 {
			break
		}
		l := cfg.Links[at]
		if file = file || l.Hard; path.IsAbs(l.Target) {
			end = path.Clean(l.Target)
		} else {
			end = path.Join(path.Dir(end), l.Target)
		}
	}
	return end, file || fileAt(cfg, end) != nil
}

// fileAt returns the file that a configuration has at a clean path, nil for none.
func fileAt(cfg *machineconfig.Config, name string) *machineconfig.File {
	at := slices.IndexFunc(cfg.Files, func(f machineconfig.File) bool { return path.Clean(f.Path) == name })
	if at < 0 {
		return nil
	}
	return &cfg.Files[at]
}

// Units returns the units that merge the extensions of a configuration.
func Units(cfg *machineconfig.Config) (out []string) {
	for _, e := range Of(cfg) {
		if !slices.Contains(out, e.class.unit) {
			out = append(out, e.class.unit)
		}
	}
	return out
}

// UnitOf returns the unit that merges the extension which a path belongs to, "" for other paths.
func UnitOf(name string) string {
	if c, _ := of(path.Clean(name)); c != nil {
		return c.unit
	}
	return ""
}

// inside returns the directory with the files of an extension: the one that the extension's link leads to, where the
// extension is a link. The result is "" for an image.
func (e Extension) inside(cfg *machineconfig.Config) string {
	dir, file := linked(cfg, e.Place)
	if file || e.Raw && dir == e.Place {
		return ""
	}
	return dir
}

// Wrong is an extension that does not fit an OS.
type Wrong struct{ Place, Reason string }

// architectures are the names of systemd for architectures.
var architectures = map[string]string{"amd64": "x86-64", "arm64": "arm64", "ppc64le": "ppc64-le", "s390x": "s390x",
	"riscv64": "riscv64"}

// Judge returns the extensions that systemd would not merge on an OS, by the rules of extension-release.d, and those
// that would hide what the configuration has. The OS is given as its os-release. Directories are judged whose
// files the configuration has, and images that can be read. transient means that the host's /etc ends with each boot.
func Judge(cfg *machineconfig.Config, osRelease []byte, transient bool) (wrong []Wrong) {
	for _, e := range Of(cfg) {
		if transient && e.class.unit == ConfextUnit {
			wrong = append(wrong, Wrong{e.Place, "the /etc of this host is written anew in each boot, which an extension of " +
				"/etc prevents: use files below /etc"})
		}
		img, unmounted := e.image(cfg)
		name, text, known, err := e.releaseOf(cfg, img)
		if err != nil {
			wrong = append(wrong, Wrong{e.Place, "the extension has no file " + name +
				", without which systemd does not merge it"})
		} else if known {
			why := mismatch(variables(text), variables(osRelease), e.class.variables)
			if why != "" {
				wrong = append(wrong, Wrong{e.Place, name + " " + why})
			}
		}
		if unmounted != "" {
			wrong = append(wrong, Wrong{e.Place, unmounted})
		}
		wrong = append(wrong, e.hides(cfg, img)...)
	}
	return wrong
}

// agents begin the paths below /etc that are the agent's own.
var agents = []string{"/etc/machine-config-daemon/", "/etc/systemd/system/machine-config-daemon-"}

// hides returns the files of an extension of /etc that the configuration, or the agent, has at the same path. The
// extension would hide the other file.
func (e Extension) hides(cfg *machineconfig.Config, img fileSystem) (wrong []Wrong) {
	if e.class.unit != ConfextUnit {
		return nil
	}
	managed := map[string]bool{}
	for _, f := range cfg.Files {
		managed[path.Clean(f.Path)] = true
	}
	for _, l := range cfg.Links {
		managed[path.Clean(l.Path)] = true
	}
	for _, u := range cfg.Units {
		managed[path.Join("/etc/systemd/system", u.Name)] = true
		for _, d := range u.Dropins {
			managed[path.Join("/etc/systemd/system", u.Name+".d", d.Name)] = true
		}
	}
	// A damaged image is not merged, which the verdict notices.
	_ = e.each(cfg, img, func(at string, _ func() (io.Reader, error)) error {
		if len(wrong) == hiddenNamed {
			return errWork
		}
		switch own := func(begins string) bool { return strings.HasPrefix(at, begins) }; {
		case managed[at]:
			wrong = append(wrong, Wrong{e.Place, at + " is in the extension and in the configuration: leave one of them out"})
		case slices.ContainsFunc(agents, own):
			wrong = append(wrong, Wrong{e.Place, at + " belongs to the agent: leave it out of the extension"})
		}
		return nil
	})
	return wrong
}

// hiddenNamed is how many files of an extension are named that hide another. An image can list one a million times.
const hiddenNamed = 8

const anything = "_any"

// mismatch returns why an extension does not fit, "" where it does. prefix begins the variables of its class.
func mismatch(e, os map[string]string, prefix string) string {
	says := func(key string) string { return fmt.Sprintf("says %s=%s", key, e[key]) }
	if a := e["ARCHITECTURE"]; a != "" && a != anything && a != architectures[runtime.GOARCH] {
		return says("ARCHITECTURE") + ", and this host has " + architectures[runtime.GOARCH]
	}
	scope, level := prefix+"_SCOPE", prefix+"_LEVEL"
	if s := e[scope]; s != "" && !slices.Contains(strings.Fields(s), "system") {
		return says(scope) + ", which is not for a system that has booted"
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
	case os[level] != "" && e[level] != "":
		if os[level] != e[level] {
			return differs(level)
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

// Host is a host as extensions see it.
type Host interface {
	ReadFile(name string) ([]byte, error)
	// Has reports whether there is a regular file with the bytes that want has from here on. It fails where want does.
	Has(name string, want io.Reader) (bool, error)
}

// Merged returns an error that names an extension of the configuration that is not merged, or a file of an extension
// that is not what the configuration has. Of two extensions with one path systemd shows one, whichever that is.
func Merged(root Host, cfg *machineconfig.Config) error {
	all := Of(cfg)
	if len(all) == 0 {
		return nil
	}
	there := map[string]bool{}
	for _, c := range classes {
		for _, hierarchy := range c.over {
			text, err := root.ReadFile(path.Join(hierarchy, c.merged))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			for name := range strings.FieldsSeq(string(text)) {
				there[c.unit+name] = true
			}
		}
	}
	for _, e := range all {
		if !there[e.class.unit+e.Name] {
			return fmt.Errorf("extension %s (%s) is not merged: journalctl -u %s shows why", e.Name, e.Place, e.class.unit)
		}
	}
	return proved(root, cfg, all)
}

// proved returns an error where the host does not have a file of the extensions.
func proved(root Host, cfg *machineconfig.Config, all []Extension) error {
	missing := map[string]error{} // by path: two classes lie over no path together
	for _, e := range all {
		img, _ := e.image(cfg)
		if err := e.each(cfg, img, func(at string, open func() (io.Reader, error)) error {
			same, err := shown(root, at, open)
			if err == nil && !same && missing[at] == nil {
				missing[at] = fmt.Errorf("extension %s: %s does not have the bytes of %s", e.Name, at, e.Place)
			}
			return err
		}); err != nil && !errors.Is(err, errWork) {
			return err
		}
	}
	for _, e := range all {
		if len(missing) == 0 {
			return nil
		}
		img, _ := e.image(cfg)
		if err := e.each(cfg, img, func(at string, open func() (io.Reader, error)) error {
			if missing[at] == nil {
				return nil
			}
			same, err := shown(root, at, open)
			if same {
				delete(missing, at) // another extension lies above the one that was named
			}
			return err
		}); err != nil && !errors.Is(err, errWork) {
			return err
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return missing[slices.Min(slices.Collect(maps.Keys(missing)))]
}

// shown reports whether the host has a file of an extension. A file that can't be read, as in a compressed image,
// counts as shown: systemd has merged the image.
func shown(root Host, at string, open func() (io.Reader, error)) (bool, error) {
	r, err := open()
	if err != nil {
		return true, nil //nolint:nilerr // see above
	}
	want := &readable{Reader: r}
	same, err := root.Has(at, want)
	if want.failed != nil {
		return true, nil //nolint:nilerr // see above
	}
	return same, err
}

// readable remembers why its bytes could not be read.
type readable struct {
	io.Reader
	failed error
}

func (r *readable) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err != nil && err != io.EOF {
		r.failed = err
	}
	return n, err
}
