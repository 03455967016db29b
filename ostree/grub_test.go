// SPDX-License-Identifier: Apache-2.0

package ostree

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// What greenboot puts into GRUB's configuration, shortened, and Fedora's own words for it where the environment may be
// elsewhere.
const (
	greenbootConfig = "insmod increment\nif [ -n \"${boot_counter}\" -a \"${boot_success}\" = \"0\" ]; then\n" +
		"  decrement boot_counter\n  save_env boot_counter\nfi\nset boot_success=0\nsave_env boot_success\n"
	fedoraConfig = "if [ \"${env_block}\" ]; then\n  save_env -f \"${env_block}\" boot_counter\nfi\n"
	staticConfig = "if [ -f $prefix/custom.cfg ]; then\n  source $prefix/custom.cfg\nfi\nblscfg\n"
)

// grubHost is a host with these files.
func grubHost(t *testing.T, files map[string]string) *GRUB {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		at := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	g := NewGRUB(root, func(path string, block []byte) error { return os.WriteFile(filepath.Join(root, path), block, 0o600) })
	g.writes = func(*os.File) error { return nil } // whatever the tests' own files are on
	return g
}

func TestGRUBCountsWhereItsConfigurationDoes(t *testing.T) {
	env := string(newEnvironment())
	for _, c := range []struct {
		name   string
		files  map[string]string
		reason string // "" where it counts
	}{
		{"no GRUB", map[string]string{"/boot/loader/x": ""}, "no configuration of GRUB in /boot/grub2 or /boot/grub"},
		{"greenboot", map[string]string{"/boot/grub2/grub.cfg": greenbootConfig, "/boot/grub2/grubenv": env}, ""},
		{"Fedora", map[string]string{"/boot/grub2/grub.cfg": fedoraConfig, "/boot/grub2/grubenv": env}, ""},
		{"Debian's place", map[string]string{"/boot/grub/grub.cfg": greenbootConfig, "/boot/grub/grubenv": env}, ""},
		{"no environment yet", map[string]string{"/boot/grub2/grub.cfg": greenbootConfig}, ""},
		{"an empty one", map[string]string{"/boot/grub2/grub.cfg": greenbootConfig, "/boot/grub2/grubenv": ""}, ""},
		{"in a part that is read", map[string]string{"/boot/grub2/grub.cfg": staticConfig,
			"/boot/grub2/custom.cfg": greenbootConfig, "/boot/grub2/grubenv": env}, ""},
		{"in a part that nothing reads", map[string]string{"/boot/grub2/grub.cfg": staticConfig,
			"/boot/grub2/old.cfg": greenbootConfig}, "/boot/grub2/grub.cfg keeps no boot_counter"},
		{"commented out", map[string]string{"/boot/grub2/grub.cfg": "# save_env boot_counter\nblscfg\n"}, "keeps no boot_counter"},
		{"read and never kept", map[string]string{"/boot/grub2/grub.cfg": "if [ ${boot_counter} = 0 ]; then\nfi\n"}, "keeps no"},
		{"greenboot is installed, and not in the configuration", map[string]string{"/boot/grub2/grub.cfg": staticConfig,
			"/usr/libexec/greenboot/greenboot": "", "/etc/greenboot/greenboot.conf": ""}, "keeps no boot_counter"},
		{"a damaged environment", map[string]string{"/boot/grub2/grub.cfg": greenbootConfig, "/boot/grub2/grubenv": env[1:]},
			"/boot/grub2/grubenv is no environment block"},
	} {
		g := grubHost(t, c.files)
		err := g.Counts()
		if c.reason == "" && err != nil ||
			c.reason != "" && (!errors.As(err, new(*uncounted)) || !strings.Contains(err.Error(), c.reason)) {
			t.Errorf("%s: %v", c.name, err)
		}
		set, err := g.Set(3)
		if err != nil || set != (c.reason == "") {
			t.Errorf("%s: Set says %v, %v", c.name, set, err)
		}
		left, counted, err := g.Left()
		if err != nil || counted != set || set && left != 3 {
			t.Errorf("%s: %d left, %v, %v", c.name, left, counted, err)
		}
		if err := g.Clear(); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if _, counted, err = g.Left(); counted || err != nil {
			t.Errorf("%s: after Clear: %v, %v", c.name, counted, err)
		}
	}
}

func TestGRUBEnvironmentIsBesideTheConfiguration(t *testing.T) {
	env := string(newEnvironment())
	g := grubHost(t, map[string]string{"/boot/grub2/themes/x": "", "/boot/grub2/grubenv": env,
		"/boot/grub/grub.cfg": greenbootConfig, "/boot/grub/grubenv": env})
	if set, err := g.Set(3); !set || err != nil {
		t.Fatalf("%v, %v", set, err)
	}
	for name, want := range map[string]bool{"/boot/grub/grubenv": true, "/boot/grub2/grubenv": false} {
		text, err := os.ReadFile(g.host(name))
		if err != nil || strings.Contains(string(text), "boot_counter=3") != want {
			t.Errorf("%s has %q, %v", name, strings.TrimRight(string(text), "#"), err)
		}
	}
	if left, counted, err := g.Left(); left != 3 || !counted || err != nil {
		t.Errorf("%d left, %v, %v", left, counted, err)
	}
}

func TestGRUBLimitIsGreenboots(t *testing.T) {
	for text, want := range map[string]int{"": 3, "# GREENBOOT_MAX_BOOT_ATTEMPTS=5\n": 3,
		"A=1\nGREENBOOT_MAX_BOOT_ATTEMPTS=5\n": 5, `GREENBOOT_MAX_BOOT_ATTEMPTS="2"`: 2, "GREENBOOT_MAX_BOOT_ATTEMPTS=0\n": 3,
		"GREENBOOT_MAX_BOOT_ATTEMPTS=many\n": 3} {
		if got := grubHost(t, map[string]string{"/etc/greenboot/greenboot.conf": text}).Limit(); got != want {
			t.Errorf("%q: %d", text, got)
		}
	}
	if got := grubHost(t, nil).Limit(); got != 3 {
		t.Errorf("without greenboot: %d", got)
	}
}

// Everything else in the block stays: comments, other variables, and values that go over a line.
func TestGRUBEnvironmentKeepsWhatIsNotOurs(t *testing.T) {
	const others = "# WARNING: Do not edit this file\nsaved_entry=ostree-1\nboot_indeterminate=0\nnote=one\\\ntwo\\\\\n"
	pad := func(text string) string { return text + strings.Repeat("#", environmentSize-len(text)) }
	g := grubHost(t, map[string]string{"/boot/grub2/grub.cfg": greenbootConfig,
		"/boot/grub2/grubenv": pad(environmentHeader + others + "boot_success=1\nboot_counter=0\n")})
	check := func(what, want string) {
		t.Helper()
		if got, err := os.ReadFile(g.host("/boot/grub2/grubenv")); err != nil || string(got) != pad(environmentHeader+want) {
			t.Errorf("%s: %q, %v", what, strings.TrimRight(string(got), "#"), err)
		}
	}
	if _, err := g.Set(3); err != nil {
		t.Fatal(err)
	}
	check("set", "boot_counter=3\nboot_success=0\n"+others)
	if err := g.Clear(); err != nil {
		t.Fatal(err)
	}
	check("cleared", "boot_success=0\n"+others)
	full := pad(environmentHeader + "x=" + strings.Repeat("y", environmentSize-len(environmentHeader)-5) + "\n")
	if _, err := changeEnvironment([]byte(full), map[string]string{counterName: "3"}); err == nil {
		t.Error("a block without room for a variable took one")
	}
}

// The tool of GRUB's own reads what we write, and we what it writes.
func TestGRUBEnvironmentIsTheToolsOwn(t *testing.T) {
	tool, err := exec.LookPath("grub-editenv")
	if err != nil {
		if tool, err = exec.LookPath("grub2-editenv"); err != nil {
			t.Skip("neither grub-editenv nor grub2-editenv is here")
		}
	}
	g := grubHost(t, map[string]string{"/boot/grub2/grub.cfg": greenbootConfig})
	env := func(args ...string) string {
		t.Helper()
		out, err := exec.Command(tool, append([]string{g.host("/boot/grub2/grubenv")}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
		return string(out)
	}
	if set, err := g.Set(2); !set || err != nil {
		t.Fatalf("%v, %v", set, err)
	}
	if got := env("list"); got != "boot_counter=2\nboot_success=0\n" {
		t.Errorf("the tool reads %q", got)
	}
	env("set", "boot_counter=-1", `odd=back\slash`)
	if left, counted, err := g.Left(); left != -1 || !counted || err != nil {
		t.Errorf("the tool's -1 is %d, %v, %v", left, counted, err)
	}
	if err := g.Clear(); err != nil {
		t.Fatal(err)
	}
	if got := env("list"); got != "boot_success=0\nodd=back\\slash\n" {
		t.Errorf("after Clear the tool reads %q", got)
	}
	env("unset", "boot_success", "odd")
	if got, err := os.ReadFile(g.host("/boot/grub2/grubenv")); err != nil || !isEnvironment(got) {
		t.Errorf("the tool leaves %q, %v", got, err)
	}
	if err := g.Counts(); err != nil {
		t.Error(err)
	}
}

// GRUB changes no file system: it writes over blocks that a file has already.
func TestGRUBCantCountOnEveryDisk(t *testing.T) {
	for _, c := range []struct {
		name       string
		fsys       uint32
		file, text string
		counts     bool
	}{
		{"a disk", unix.EXT4_SUPER_MAGIC, "partition", "1\n", true},
		{"btrfs", unix.BTRFS_SUPER_MAGIC, "partition", "1\n", false},
		{"LVM", unix.XFS_SUPER_MAGIC, "dm/uuid", "LVM-FtR1\n", false},
		{"encryption", unix.EXT4_SUPER_MAGIC, "dm/uuid", "CRYPT-LUKS2-e2\n", false},
		{"several ways to a disk", unix.EXT4_SUPER_MAGIC, "dm/uuid", "mpath-3600\n", true},
		{"a partition of such a disk", unix.EXT4_SUPER_MAGIC, "dm/uuid", "part3-mpath-3600\n", true},
		{"RAID", unix.EXT4_SUPER_MAGIC, "md/level", "raid1\n", false},
	} {
		g := grubHost(t, map[string]string{"/sys/dev/block/253:3/" + c.file: c.text})
		err := g.checkDevice("/boot/grub2/grubenv", c.fsys, 253, 3)
		if (err == nil) != c.counts || err != nil && !errors.As(err, new(*uncounted)) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
