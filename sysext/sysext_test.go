// SPDX-License-Identifier: Apache-2.0

package sysext

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/erofs/go-erofs"

	"github.com/noderefit/noderefit/machineconfig"
)

// tree is a directory that stands for a host.
type tree string

func (d tree) ReadFile(name string) ([]byte, error) {
	return os.ReadFile(filepath.Join(string(d), name))
}

func (d tree) Has(name string, want io.Reader) (bool, error) {
	data, err := io.ReadAll(want)
	if err != nil {
		return false, err
	}
	found, err := d.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return bytes.Equal(found, data), err
}

// file returns a file of a configuration.
func file(path, text string) machineconfig.File {
	return machineconfig.File{Path: path, Contents: []byte(text)}
}

func TestExtensionsOfAConfiguration(t *testing.T) {
	cfg := &machineconfig.Config{
		Files: []machineconfig.File{
			file("/etc/extensions/kubelet/usr/bin/kubelet", ""), file("/var/lib/extensions/kubelet/usr/bin/other", ""),
			file("/etc/extensions/tools.raw", ""), file("/etc/extensions/README", ""), file("/etc/extensionsX/a/usr/x", ""),
			file("/etc/extensions/.hidden/usr/x", ""), file("/var/lib/confexts/kubelet/etc/a", ""),
			file("/etc/confexts/a/etc/x", ""),
		},
		Directories: []machineconfig.Directory{{Path: "/var/lib/extensions"}, {Path: "/var/lib/extensions/empty"}},
		Links: []machineconfig.Link{{Path: "/etc/extensions/linked", Target: "/var/ext/linked-1"},
			// Links to files are passed over as files are, and so are those that are beside an image.
			{Path: "/etc/extensions/notes", Target: "../extensions/README"},
			{Path: "/etc/extensions/same", Target: "/var/ext/any", Hard: true},
			{Path: "/etc/extensions/later", Target: "notes"}, {Path: "/etc/extensions/loop", Target: "loop"},
			{Path: "/etc/extensions/masked", Target: "/dev/null"}, {Path: "/etc/extensions/masked.raw", Target: "masked"},
			{Path: "/etc/extensions/tools.usrhash", Target: "/var/ext/tools-1.usrhash"},
			{Path: "/etc/extensions/tools.verity", Target: "/var/ext/tools-1.verity"},
			{Path: "/etc/extensions/tools.roothash.p7s", Target: "/var/ext/tools-1.roothash.p7s"}},
	}
	const want = "empty /var/lib/extensions/empty false, kubelet /etc/extensions/kubelet false, " +
		"kubelet /var/lib/confexts/kubelet false, linked /etc/extensions/linked false, loop /etc/extensions/loop false, tools /etc/extensions/tools.raw true"
	var found []string
	for _, e := range Of(cfg) {
		found = append(found, fmt.Sprint(e.Name, " ", e.Place, " ", e.Raw))
	}
	if got := strings.Join(found, ", "); got != want {
		t.Errorf("found %s, not %s", got, want)
	}
	const programs, settings = "systemd-sysext.service", "systemd-confext.service"
	if got := fmt.Sprint(Units(cfg)); got != "["+programs+" "+settings+"]" || len(Of(nil)) > 0 {
		t.Error("units are mistaken:", got)
	}
	for name, unit := range map[string]string{"/etc/extensions": programs, "/var/lib/extensions/a/b": programs,
		"/etc/extensionsX": "", "/var/lib/confexts/a/etc/b": settings, "/etc/confexts/a": ""} {
		if got := UnitOf(name); got != unit {
			t.Errorf("%s is merged by %q", name, got)
		}
	}
}

func TestExtensionsAreJudgedAsSystemdDoes(t *testing.T) {
	const debian = "ID=debian\nVERSION_ID=\"13\"\n"
	for _, c := range []struct{ name, release, os, says string }{
		{"the same", "ID=debian\nVERSION_ID=13\n", debian, ""},
		{"any", "ID=_any\n", debian, ""},
		{"any on another machine", "ID=_any\nARCHITECTURE=vax\n", debian, "ARCHITECTURE=vax"},
		{"any machine", "ID=debian\nVERSION_ID=13\nARCHITECTURE=_any\n", debian, ""},
		{"another OS", "ID=fedora\nVERSION_ID=13\n", debian, "says ID=fedora, and the OS that is to boot has ID=debian"},
		{"another version", "ID=debian\nVERSION_ID=12\n", debian, "says VERSION_ID=12, and the OS that is to boot has VERSION_ID=13"},
		{"no version", "ID=debian\n", debian, "says VERSION_ID=, and"},
		{"a rolling OS", "ID=arch\n", "ID=arch\n", ""},
		{"the same level", "ID=debian\nVERSION_ID=12\nSYSEXT_LEVEL=1\n", debian + "SYSEXT_LEVEL=1\n", ""},
		{"another level", "ID=debian\nVERSION_ID=13\nSYSEXT_LEVEL=2\n", debian + "SYSEXT_LEVEL=1\n", "SYSEXT_LEVEL=2"},
		{"a level that the OS has not", "ID=debian\nVERSION_ID=13\nSYSEXT_LEVEL=2\n", debian, ""},
		{"for the initrd", "ID=debian\nVERSION_ID=13\nSYSEXT_SCOPE=initrd\n", debian, "SYSEXT_SCOPE=initrd"},
		{"nothing", "", debian, "has no ID"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := &machineconfig.Config{Files: []machineconfig.File{
				file("/etc/extensions/x/usr/lib/extension-release.d/extension-release.x", c.release)}}
			wrong := Judge(cfg, []byte(c.os), false)
			if c.says == "" != (len(wrong) == 0) || len(wrong) > 0 &&
				(wrong[0].Place != "/etc/extensions/x" || !strings.Contains(wrong[0].Reason, c.says)) {
				t.Errorf("%+v does not say %q", wrong, c.says)
			}
			// The rules for extensions of /etc are the same, by other names.
			cfg.Files = []machineconfig.File{file("/var/lib/confexts/x/etc/extension-release.d/extension-release.x",
				strings.ReplaceAll(c.release, "SYSEXT", "CONFEXT"))}
			wrong = Judge(cfg, []byte(strings.ReplaceAll(c.os, "SYSEXT", "CONFEXT")), false)
			if says := strings.ReplaceAll(c.says, "SYSEXT", "CONFEXT"); says == "" != (len(wrong) == 0) ||
				len(wrong) > 0 && (wrong[0].Place != "/var/lib/confexts/x" || !strings.Contains(wrong[0].Reason, says)) {
				t.Errorf("of /etc: %+v does not say %q", wrong, says)
			}
		})
	}
	none := &machineconfig.Config{Files: []machineconfig.File{file("/etc/extensions/x/usr/bin/x", "")}}
	if wrong := Judge(none, []byte(debian), false); len(wrong) != 1 || !strings.Contains(wrong[0].Reason, "has no file") {
		t.Errorf("without a release: %+v", wrong)
	}
	raw := &machineconfig.Config{Files: []machineconfig.File{file("/etc/extensions/x.raw", "")}}
	if wrong := Judge(raw, []byte(debian), false); len(wrong) > 0 {
		t.Errorf("an image that nothing can read: %+v", wrong)
	}
	linked := &machineconfig.Config{
		Links: []machineconfig.Link{{Path: "/etc/extensions/x", Target: "/opt/x-2"}},
		Files: []machineconfig.File{file("/opt/x-2/usr/lib/extension-release.d/extension-release.x", "ID=fedora")},
	}
	if wrong := Judge(linked, []byte(debian), false); len(wrong) != 1 {
		t.Errorf("behind a link: %+v", wrong)
	}
	linked.Links = append(linked.Links, machineconfig.Link{Path: "/opt/x", Target: "x-2"})
	linked.Links[0].Target = "../../opt/x"
	if wrong := Judge(linked, []byte(debian), false); len(wrong) != 1 {
		t.Errorf("behind two relative links: %+v", wrong)
	}
}

// image returns an erofs with these files.
func image(t *testing.T, files map[string]string) string {
	t.Helper()
	of := fstest.MapFS{}
	for name, text := range files {
		of[name] = &fstest.MapFile{Data: []byte(text), Mode: 0o644}
	}
	out, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	w := erofs.Create(out)
	if err := errors.Join(w.CopyFrom(of), w.Close()); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestAnImageIsReadWhereItIsAnErofs(t *testing.T) {
	const release = "usr/lib/extension-release.d/extension-release.x"
	whole := image(t, map[string]string{release: "ID=debian\nVERSION_ID=12\n", "usr/bin/x": "two"})
	for name, c := range map[string]struct{ at, bytes, says string }{
		"another version": {"/etc/extensions/x.raw", whole, "x.raw: " + release + " says VERSION_ID=12, and the OS that is to boot"},
		"no release":      {"/etc/extensions/x.raw", image(t, map[string]string{"usr/bin/x": ""}), "has no file /etc/extensions/x.raw: " + release},
		// systemd takes it where an attribute of the file says so.
		"of another name":     {"/etc/extensions/y.raw", whole, ""},
		"of a name with dots": {"/etc/extensions/x-v1.30.2.raw", whole, ""},
		"a release of 1 MiB":  {"/etc/extensions/x.raw", image(t, map[string]string{release: "ID=fedora\n" + strings.Repeat("#", 1<<20)}), ""},
		"it fits":             {"/etc/extensions/x.raw", image(t, map[string]string{release: "ID=debian\nVERSION_ID=13\n"}), ""},
		"settings":            {"/var/lib/confexts/x.raw", image(t, map[string]string{"etc/extension-release.d/extension-release.x": "ID=fedora\n"}), "says ID=fedora"},
		"settings that hide":  {"/var/lib/confexts/x.raw", image(t, map[string]string{"etc/extension-release.d/extension-release.x": "ID=_any\n", "etc/a": ""}), "/etc/a is in the extension and in"},
		"another squashfs":    {"/etc/extensions/x.raw", "hsqs" + strings.Repeat(" ", 4096), ""},
		"damaged":             {"/etc/extensions/x.raw", whole[:2048], ""},
		"a piece":             {"/etc/extensions/x.raw", whole[:64], ""},
	} {
		cfg := &machineconfig.Config{Files: []machineconfig.File{file(c.at, c.bytes), file("/etc/a", "")}}
		wrong := Judge(cfg, []byte("ID=debian\nVERSION_ID=13\n"), false)
		if c.says == "" != (len(wrong) == 0) || len(wrong) > 0 && (wrong[0].Place != c.at || !strings.Contains(wrong[0].Reason, c.says)) {
			t.Errorf("%s: %+v does not say %q", name, wrong, c.says)
		}
	}

	dir := t.TempDir()
	for name, text := range map[string]string{"/usr/.systemd-sysext/extensions": "x\n", "/usr/bin/x": "one"} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(dir+name), 0o755), os.WriteFile(dir+name, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	cfg := &machineconfig.Config{Files: []machineconfig.File{file("/etc/extensions/x.raw", image(t, map[string]string{"usr/bin/x": "two"}))}}
	if err := Merged(tree(dir), cfg); err == nil || !strings.Contains(err.Error(), "/usr/bin/x does not have the bytes of /etc/extensions/x.raw") {
		t.Errorf("another version is merged: %v", err)
	}
	if err := os.WriteFile(dir+"/usr/bin/x", []byte("two"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Merged(tree(dir), cfg); err != nil {
		t.Error(err)
	}
}

// An extension of /etc would hide a file, and the verdict would be on the other one.
func TestAnExtensionOfEtcHidesNothing(t *testing.T) {
	const dir = "/var/lib/confexts/x"
	release := file(dir+"/etc/extension-release.d/extension-release.x", "ID=_any\n")
	for name, c := range map[string]struct {
		inside    string
		transient bool
		says      string
	}{
		"another path":     {"/etc/other", false, ""},
		"a file":           {"/etc/a", false, "/etc/a is in the extension and in the configuration"},
		"a link":           {"/etc/l", false, "/etc/l is in the extension and in the configuration"},
		"a unit":           {"/etc/systemd/system/a.service", false, "a.service is in the extension and"},
		"a drop-in":        {"/etc/systemd/system/a.service.d/1.conf", false, "1.conf is in the extension and"},
		"the agent's unit": {"/etc/systemd/system/machine-config-daemon-prove.service", false, "belongs to the agent"},
		"no /etc to last":  {"/etc/other", true, "written anew in each boot"},
	} {
		cfg := &machineconfig.Config{
			Files: []machineconfig.File{release, file(dir+c.inside, ""), file("/etc/a", "")},
			Links: []machineconfig.Link{{Path: "/etc/l", Target: "a"}},
			Units: []machineconfig.Unit{{Name: "a.service", Dropins: []machineconfig.Dropin{{Name: "1.conf"}}}},
		}
		wrong := Judge(cfg, []byte("ID=debian\n"), c.transient)
		if c.says == "" != (len(wrong) == 0) || len(wrong) > 0 && !strings.Contains(wrong[0].Reason, c.says) {
			t.Errorf("%s: %+v does not say %q", name, wrong, c.says)
		}
	}
}

func TestSomeOfManyHiddenFilesAreNamed(t *testing.T) {
	cfg := &machineconfig.Config{Files: []machineconfig.File{
		file("/var/lib/confexts/x/etc/extension-release.d/extension-release.x", "ID=_any\n")}}
	for i := range 100 {
		cfg.Files = append(cfg.Files, file(fmt.Sprint("/etc/", i), ""), file(fmt.Sprint("/var/lib/confexts/x/etc/", i), ""))
	}
	if wrong := Judge(cfg, nil, false); len(wrong) != hiddenNamed {
		t.Errorf("%d are named", len(wrong))
	}
}

func TestWhatIsNotMergedIsNamed(t *testing.T) {
	dir := t.TempDir()
	root := tree(dir)
	write := func(name, text string) {
		t.Helper()
		at := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cfg := &machineconfig.Config{Files: []machineconfig.File{
		file("/etc/extensions/x/usr/bin/x", "two"), file("/etc/extensions/y.raw", "image")}}
	says := func(want string) {
		t.Helper()
		err := Merged(root, cfg)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
	says("extension x (/etc/extensions/x) is not merged")
	write("/usr/.systemd-sysext/extensions", "x\n")
	says("extension y (/etc/extensions/y.raw) is not merged")
	write("/usr/.systemd-sysext/extensions", "x\ny\n")
	says("/usr/bin/x does not have the bytes of /etc/extensions/x")
	write("/usr/bin/x", "one")
	says("/usr/bin/x does not have the bytes of")
	write("/usr/bin/x", "two")
	says("")

	// systemd shows one of two files with one path.
	cfg.Files = append(cfg.Files, file("/etc/extensions/z/usr/bin/x", "three"))
	write("/usr/.systemd-sysext/extensions", "x\ny\nz\n")
	says("")
	write("/usr/bin/x", "three")
	says("")
	write("/usr/bin/x", "four")
	says("extension x: /usr/bin/x does not have the bytes of /etc/extensions/x")
	write("/usr/bin/x", "two")

	cfg.Files = append(cfg.Files, file("/var/lib/confexts/x/etc/x", "conf"), file("/var/lib/confexts/x/usr/x", "is not laid"))
	says("journalctl -u systemd-confext.service")
	write("/etc/.systemd-confext/confexts", "x\n")
	says("/etc/x does not have the bytes of /var/lib/confexts/x")
	write("/etc/x", "conf")
	says("")
}
