// SPDX-License-Identifier: Apache-2.0

package transaction

import (
	"strings"
	"testing"
	"time"

	"github.com/noderefit/noderefit/files"
)

func TestWhatATransientEtcHasTooLateIsRefused(t *testing.T) {
	root, err := files.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	image := "/usr/etc/crypttab"
	if err := root.MkdirAll("/usr/etc", 0o755); err != nil {
		t.Fatal(err)
	}
	same := files.Node{Type: files.Regular, Mode: 0o644, Data: []byte("the image's\n")}
	if err := root.Stage("/usr/etc", "crypttab", same); err != nil {
		t.Fatal(image, err)
	}
	file := func(at string) files.Want {
		return files.Want{Path: at, Kind: "file", Node: files.Node{Type: files.Regular, Mode: 0o600, Data: []byte("x")}}
	}
	unit := func(name, text string) files.Want {
		return files.Want{Path: "/etc/systemd/system/" + name, Kind: "unit", Name: name,
			Node: files.Node{Type: files.Regular, Mode: 0o644, Data: []byte(text)}}
	}
	crypttab := file("/etc/crypttab")
	crypttab.Node = same
	own := file("/etc/fstab")
	own.Kind = ""
	masked := unit("late.service", "")
	masked.Node = files.Node{Type: files.Symlink, Target: "/dev/null"}
	for _, c := range []struct {
		want files.Want
		says string
	}{
		{file("/etc/chrony.conf"), ""},
		{file("/etc/sysctl.d/x.conf"), ""},
		{file("/etc/modules-load.d/x.conf"), ""},
		{file("/etc/tmpfiles.d/x.conf"), ""},
		{file("/etc/systemd/journald.conf.d/x.conf"), ""},
		{file("/etc/nsswitch.conf"), ""},
		{file("/var/lib/fstab"), ""},
		{crypttab, ""},
		{own, ""},
		{masked, ""},
		{unit("late.service", "[Service]\n"), ""},
		{file("/etc/fstab"), "storage.files /etc/fstab is read early by the generators of mounts and disks"},
		{file("/etc/modprobe.d/x.conf"), "is read early by the loading of kernel modules"},
		{file("/etc/hostname"), "is read early by systemd itself"},
		{file("/etc/udev/rules.d/x.rules"), "is read early by udev"},
		{unit("var-lib-x.mount", "[Mount]\n"), "a unit of a type that is set up early"},
		{unit("early.service", "[Unit]\nDefaultDependencies=no\n"), "a unit without default dependencies"},
	} {
		err := WrittenInTime(root, []files.Want{c.want})
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.want.Path, err)
		}
	}
}

func TestWhatWasWrittenIsReadAgain(t *testing.T) {
	for at, want := range map[string]string{
		"/etc/sysctl.d/x.conf":                "systemd-sysctl.service",
		"/etc/modules-load.d/x.conf":          "systemd-modules-load.service",
		"/etc/binfmt.d/x.conf":                "systemd-binfmt.service",
		"/etc/sysusers.d/x.conf":              "systemd-sysusers.service",
		"/etc/systemd/journald.conf.d/x.conf": "systemd-journald.service",
		"/etc/chrony.conf":                    "",
	} {
		if _, service := tooEarly(at, nil); service != want {
			t.Errorf("%s: %q", at, service)
		}
	}
}

func TestAJournalLosesItsStepsInATransientEtcWithTheBoot(t *testing.T) {
	root, err := files.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	for _, c := range []struct {
		bootID    string
		transient bool
		want      string
	}{{"now", true, "/etc/x /var/x"}, {"before", true, "/var/x"}, {"before", false, "/etc/x /var/x"}} {
		e := &Engine{Root: root, BootID: "now"}
		if c.transient {
			e.BootEtc = func(*Revision) ([]files.Want, error) { return nil, nil }
		}
		j := &journal{BootID: c.bootID, Steps: []step{{Path: "/etc/x"}, {Path: "/var/x"}}}
		e.outlived(j)
		var got []string
		for _, st := range j.Steps {
			got = append(got, st.Path)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

func TestATransientEtcGetsNoSecondConfigurationInABoot(t *testing.T) {
	root, err := files.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	var written []string
	e := &Engine{Root: root, BootID: "now", Now: time.Now, Say: func(string, string) {},
		BootEtc: func(r *Revision) ([]files.Want, error) { written = append(written, r.Config); return nil, nil }}
	if err := e.markWritten("a", "begun"); err != nil {
		t.Fatal(err)
	}
	if err := e.writeBootEtc(t.Context(), &Revision{Config: "b", Digest: "b"}); err == nil || !strings.Contains(err.Error(), "reboot") {
		t.Errorf("b over a part of a: %v", err)
	}
	if err := e.writeBootEtc(t.Context(), &Revision{Config: "a", Digest: "a"}); err != nil || len(written) != 1 || written[0] != "a" {
		t.Errorf("written %v: %v", written, err)
	}
}

func TestATransientEtcIsWrittenOnceInABoot(t *testing.T) {
	root, err := files.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	written := 0
	e := &Engine{Root: root, BootID: "first", Now: time.Now, Say: func(string, string) {},
		BootEtc: func(*Revision) ([]files.Want, error) { written++; return nil, nil }}
	committed := &Record{Committed: &Revision{Config: "a", Digest: "a"}}
	for _, c := range []struct {
		boot   string
		record *Record
		want   int
	}{
		{"first", &Record{}, 0},
		{"first", committed, 0}, // the first configuration came without a boot
		{"second", committed, 1},
		{"second", committed, 1},
		{"second+1", committed, 2},
	} {
		e.BootID = c.boot
		if err := e.rewriteEtc(t.Context(), c.record, Nothing); err != nil || written != c.want {
			t.Errorf("%+v: written %d times, %v", c, written, err)
		}
	}
}
