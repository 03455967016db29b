// SPDX-License-Identifier: Apache-2.0

package bootloader

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/noderefit/noderefit/files"
)

const machineID = "0123456789abcdef0123456789abcdef"

// fedora is what the boot loader of a host with entries reads, and what later kernels have their arguments from.
var fedora = map[string]string{
	"etc/machine-id":            machineID + "\n",
	"etc/default/grub":          "GRUB_TIMEOUT=5\nGRUB_CMDLINE_LINUX=\"rhgb quiet\"\nGRUB_DISABLE_RECOVERY=true\n",
	"etc/kernel/cmdline":        "root=UUID=1 ro rhgb quiet\n",
	"boot/grub2/grub.cfg":       "insmod blscfg\nblscfg\n",
	"proc/cmdline":              "BOOT_IMAGE=/vmlinuz-6.1 root=UUID=1 ro rhgb quiet\n",
	"proc/sys/kernel/osrelease": "6.1\n",
	"boot/loader/entries/" + machineID + "-6.1.conf": "title Fedora (6.1)\nversion 6.1\nlinux /vmlinuz-6.1\n" +
		"initrd /initramfs-6.1.img $tuned_initrd\noptions root=UUID=1 ro rhgb quiet $tuned_params\ngrub_class fedora\n",
	"boot/loader/entries/" + machineID + "-0-rescue.conf":         "title Rescue\nversion 0\nlinux /vmlinuz-0\noptions root=UUID=1 ro\n",
	"boot/loader/entries/ffffffffffffffffffffffffffffffff-9.conf": "linux /other\noptions root=UUID=2\n",
	"boot/loader/entries/memtest.conf":                            "title Memory test\nefi /memtest.efi\n",
}

// debian is what GRUB of a host with generated configuration reads.
var debian = map[string]string{
	"etc/default/grub":             "GRUB_CMDLINE_LINUX_DEFAULT=quiet\n",
	"usr/sbin/grub-mkconfig":       "#!/bin/sh\nfor x in ${sysconfdir}/default/grub.d/*.cfg ; do",
	"boot/grub/grub.cfg":           grubConfig("quiet"),
	"proc/cmdline":                 "BOOT_IMAGE=/vmlinuz-6.1 root=/dev/vda1 ro quiet\n",
	"etc/default/grub.d/admin.cfg": "",
}

// grubConfig is what grub-mkconfig prints for kernel arguments.
func grubConfig(arguments string) string {
	return "### BEGIN /etc/grub.d/00_header ###\nset default=0\n### END /etc/grub.d/00_header ###\n" +
		"### BEGIN /etc/grub.d/10_linux ###\nmenuentry 'Debian' {\n\tlinux\t/vmlinuz-6.1 root=/dev/vda1 ro " + arguments +
		"\n\tinitrd\t/initrd.img-6.1\n}\nsubmenu 'Advanced' {\n\tmenuentry 'recovery' {\n\t\tlinux\t/vmlinuz-6.1 root=/dev/vda1 ro single\n\t}\n}\n" +
		"### END /etc/grub.d/10_linux ###\n"
}

// made is a host with those files.
func made(t *testing.T, content ...map[string]string) *files.Root {
	t.Helper()
	return madeAt(t, t.TempDir(), content...)
}

func madeAt(t *testing.T, dir string, content ...map[string]string) *files.Root {
	t.Helper()
	for _, texts := range content {
		for name, text := range texts {
			name = filepath.Join(dir, name)
			if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o644)); err != nil {
				t.Fatal(err)
			}
		}
	}
	root, err := files.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	return root
}

// generator stands for grub-mkconfig: with the settings on the disk, or those of a preview.
func generator(root *files.Root) Run {
	return func(_ context.Context, argv ...string) ([]byte, error) {
		text, _ := root.ReadFile(ours)
		if argv[0] == "unshare" {
			if text = nil; strings.HasSuffix(argv[len(argv)-1], "\"\n") {
				text = []byte(argv[len(argv)-1])
			}
		}
		_, more, _ := strings.Cut(string(text), "GRUB_CMDLINE_LINUX_DEFAULT ")
		more, _, _ = strings.Cut(more, "\"")
		return []byte(grubConfig(strings.TrimSpace("quiet " + more))), nil
	}
}

// found is the boot loader of a host. The journal of the file system that the test is on stays as it is.
func found(root *files.Root) *Loader {
	l := Find(root, generator(root))
	l.checkpoint = func(string) error { return nil }
	return l
}

// contents are all files of a host.
func contents(t *testing.T, root *files.Root) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(root.Path(), func(name string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(name)
		rel, _ := filepath.Rel(root.Path(), name)
		out[rel] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func differing(a, b map[string]string) (out []string) {
	for name := range a {
		if b[name] != a[name] {
			out = append(out, name)
		}
	}
	for name := range b {
		if _, ok := a[name]; !ok {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func TestTheBootLoaderIsFoundByWhatItReads(t *testing.T) {
	for name, c := range map[string]struct {
		host, more map[string]string
		want       string
	}{
		"nothing":              {want: "unknown, kernel arguments are refused: there is no grub.cfg"},
		"fedora":               {host: fedora, want: "boot loader entries"},
		"debian":               {host: debian, want: "GRUB, kernel arguments by /etc/default/grub.d/90-noderefit.cfg and grub-mkconfig"},
		"no generator":         {host: debian, more: map[string]string{"usr/sbin/grub-mkconfig": "", "boot/grub/grub.cfg": "linux /vmlinuz a"}, want: "not made by grub-mkconfig"},
		"settings alone":       {host: debian, more: map[string]string{"usr/sbin/grub-mkconfig": "#!/bin/sh\n"}, want: "by /etc/default/grub and"},
		"kernelopts":           {host: fedora, more: map[string]string{"boot/loader/entries/" + machineID + "-6.1.conf": "linux /a\noptions $kernelopts\n"}, want: "kernelopts in GRUB's environment"},
		"ostree's own entries": {more: map[string]string{"boot/loader/entries/ostree-1.conf": "linux /a\noptions ostree=/ostree/boot.1\n"}, want: "unknown"},
		"systemd-boot": {host: debian, more: map[string]string{
			loaderInfo[1:]: "\x06\x00\x00\x00s\x00y\x00s\x00t\x00e\x00m\x00d\x00-\x00b\x00o\x00o\x00t\x00", "efi/loader/entries/a.conf": "linux /a\noptions a\n"},
			want: "boot loader entries"},
	} {
		l := Find(made(t, c.host, c.more), nil)
		if got := l.String(); !strings.Contains(got, c.want) || l.Known() == strings.HasPrefix(got, "unknown") {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// arguments is what two configurations of a node need.
var arguments = Arguments{Delete: []string{"quiet"}, Append: []string{"a=1", "b=2"}, Owned: []string{"a=1", "b=2"}, Wanted: []string{"a=1", "b=2"}}

func prepared(t *testing.T, l *Loader, a Arguments) []byte {
	t.Helper()
	change, err := l.Prepare(t.Context(), a)
	if err != nil || change == nil {
		t.Fatal(string(change), err)
	}
	return change
}

func TestAChangeHasBothOfItsSides(t *testing.T) {
	only := Arguments{Append: arguments.Append, Owned: arguments.Owned, Wanted: arguments.Wanted}
	for name, c := range map[string]struct {
		host    map[string]string
		a       Arguments
		changed []string
		has     string // of the default entry
	}{
		"entries": {fedora, arguments, []string{"boot/loader/entries/" + machineID + "-0-rescue.conf", "boot/loader/entries/" + machineID + "-6.1.conf",
			"etc/default/grub", "etc/kernel/cmdline"}, "options root=UUID=1 ro rhgb $tuned_params a=1 b=2\n"},
		"generated": {debian, only, []string{"boot/grub/grub.cfg", "etc/default/grub.d/90-noderefit.cfg"}, "ro quiet a=1 b=2\n"},
	} {
		t.Run(name, func(t *testing.T) {
			root := made(t, c.host)
			l := found(root)
			before := contents(t, root)
			change := prepared(t, l, c.a)
			if d := differing(before, contents(t, root)); len(d) > 0 {
				t.Fatalf("preparing has written %v", d)
			}
			for range 2 { // and again
				for _, old := range []bool{false, true} {
					stops := 0
					for { // an error before each file in turn
						n, failed := 0, errors.New("cut")
						err := l.Write(t.Context(), change, old, func(string) error {
							if n++; n > 1 {
								return failed
							}
							return nil
						})
						if err == nil {
							break
						}
						if stops++; !errors.Is(err, failed) || stops > 10 {
							t.Fatal(stops, err)
						}
					}
					if written, _, err := l.State(change, old); err != nil || !written {
						t.Fatal(written, err)
					}
					if written, _, err := l.State(change, !old); err != nil || written {
						t.Fatal(written, err)
					}
					if err := l.Forget(change); err != nil {
						t.Fatal(err)
					}
					after := contents(t, root)
					want := c.changed
					if old {
						want = nil
					}
					if d := differing(before, after); !slices.Equal(d, want) {
						t.Errorf("old %t: %v", old, d)
					}
					if text := after[c.changed[0]] + after[c.changed[1]]; strings.Contains(text, c.has) == old {
						t.Errorf("old %t: %s", old, text)
					}
				}
			}
		})
	}
}

// The disk fills up after the commit, and the way back needs no room.
func TestADiskThatIsFullKeepsNoSideFromComingBack(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("to mount a file system takes root")
	}
	long := func(host map[string]string) map[string]string { // more than a page each
		out := maps.Clone(host)
		for name, text := range out {
			if strings.HasSuffix(name, ".conf") || strings.HasSuffix(name, "grub.cfg") || strings.HasPrefix(name, "etc/default") {
				out[name] = strings.Repeat("# admin\n", 1000) + text
			}
		}
		return out
	}
	only := Arguments{Append: arguments.Append, Owned: arguments.Owned, Wanted: arguments.Wanted}
	lost := maps.Clone(debian)
	lost[ours[1:]], lost["boot/grub/grub.cfg"] = string(settings(arguments.Owned)), grubConfig("quiet a=1 b=2")
	for name, c := range map[string]struct {
		host map[string]string
		a    Arguments
	}{"entries": {fedora, only}, "generated": {debian, only}, "the last ones go": {lost, Arguments{Delete: arguments.Owned}}} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
					t.Error(err)
				}
			})
			root := madeAt(t, dir, long(c.host))
			l := found(root)
			before := contents(t, root)
			change := prepared(t, l, c.a)
			if err := l.Write(t.Context(), change, false, nil); err != nil {
				t.Fatal(err)
			}
			filler := filepath.Join(dir, "filler")
			if err := os.WriteFile(filler, make([]byte, 2<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
				t.Fatal(err)
			}
			if _, err := l.Prepare(t.Context(), Arguments{Append: []string{"c=1"}, Owned: []string{"c=1"}}); !errors.Is(err, unix.ENOSPC) {
				t.Errorf("prepared without room: %v", err)
			}
			if err := l.Write(t.Context(), change, true, nil); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(os.Remove(filler), l.Forget(change)); err != nil {
				t.Fatal(err)
			}
			if d := differing(before, contents(t, root)); len(d) > 0 {
				t.Errorf("not as before: %v", d)
			}
		})
	}
}

func TestABootIsOfASideByItsCommandLine(t *testing.T) {
	c := &change{Delete: []string{"console=a"}, Append: []string{"x=1", "console=a"}, Old: strings.Fields("root=1 console=a console=b admin"),
		New: strings.Fields("root=1 console=b admin x=1 console=a")}
	for line, want := range map[string][2]bool{ // of the new side, of the old one
		"BOOT_IMAGE=/a root=1 console=b admin x=1 console=a":       {true, false},
		"BOOT_IMAGE=/a root=1 console=a console=b admin":           {false, true},
		"root=1 console=a console=b admin x=1":                     {false, false},
		"root=1 tuned=1 console=b admin x=1 console=a initrd=/a.1": {true, false},
		"root=1": {false, false},
	} {
		args := strings.Fields(line)
		if got := [2]bool{c.has(args, false), c.has(args, true)}; got != want {
			t.Errorf("%s: %v", line, got)
		}
	}
}

// Another program has installed a kernel: it wrote the files anew.
func TestWhatOthersHaveWrittenIsBroughtToTheSide(t *testing.T) {
	root := made(t, fedora)
	l := Find(root, nil)
	change := prepared(t, l, arguments)
	name := "boot/loader/entries/" + machineID + "-6.2.conf"
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(root.Path(), name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("linux /vmlinuz-6.2\noptions root=UUID=1 ro rhgb quiet\n")
	for old, want := range map[bool]string{false: "ro rhgb a=1 b=2\n", true: "ro rhgb quiet\n"} {
		for range 2 {
			if err := l.Write(t.Context(), change, old, nil); err != nil {
				t.Fatal(err)
			}
			if text := contents(t, root)[name]; !strings.HasSuffix(text, want) {
				t.Errorf("old %t: %s", old, text)
			}
		}
	}
	if err := os.Remove(filepath.Join(root.Path(), "boot/loader/entries", machineID+"-0-rescue.conf")); err != nil {
		t.Fatal(err)
	}
	if err := l.Write(t.Context(), change, false, nil); err != nil {
		t.Fatal(err)
	}
	if _, there := contents(t, root)["boot/loader/entries/"+machineID+"-0-rescue.conf"]; there {
		t.Error("an entry without its kernel is back")
	}

	root = made(t, debian)
	l = found(root)
	change = prepared(t, l, Arguments{Append: arguments.Append, Owned: arguments.Owned, Wanted: arguments.Wanted})
	name = "boot/grub/grub.cfg"
	write("# anew\n" + grubConfig("quiet"))
	if err := l.Write(t.Context(), change, false, nil); err != nil {
		t.Fatal(err)
	}
	if text := contents(t, root)[name]; text != grubConfig("quiet a=1 b=2") {
		t.Errorf("not made again: %s", text)
	}
	again := "# anew, with our settings\n" + grubConfig("quiet a=1 b=2")
	write(again)
	if err := l.Write(t.Context(), change, false, nil); err != nil || contents(t, root)[name] != again {
		t.Errorf("made again, though it has the arguments: %v", err)
	}
}

func TestArgumentsThatDoNotArriveAreRefused(t *testing.T) {
	root := made(t, debian)
	for name, c := range map[string]struct {
		run  Run
		a    Arguments
		host map[string]string
		want string
	}{
		"quotes":      {nil, Arguments{Append: []string{`a="b c"`}}, debian, "has a character"},
		"dollar":      {nil, Arguments{Append: []string{`a=$b`}}, fedora, "has a character"},
		"overwritten": {func(context.Context, ...string) ([]byte, error) { return []byte(grubConfig("quiet")), nil }, arguments, debian, "not on the command line after all"},
		"managed": {generator(root), Arguments{Append: arguments.Append, Owned: arguments.Owned, Managed: func(p string) bool { return p == ours }},
			debian, "is a file of the configuration"},
		"settings": {nil, arguments, map[string]string{"boot/loader/entries/a.conf": "linux /a\noptions a\n",
			"etc/default/grub": "GRUB_CMDLINE_LINUX=\"$(cat /a)\"\n"}, "in another way than by one plain assignment"},
		"unknown": {nil, arguments, nil, "this host's boot loader is not known"},
	} {
		_, err := Find(made(t, c.host), c.run).Prepare(t.Context(), c.a)
		if err == nil || !errors.As(err, new(*Refusal)) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSettingsOfGRUBAreChangedInOneAssignment(t *testing.T) {
	add := func(args []string) []string { return append(args, "a=1") }
	for text, want := range map[string]string{
		"":                                             "GRUB_CMDLINE_LINUX=\"a=1\"\n",
		"A=1\nGRUB_CMDLINE_LINUX=\"\"\nB=2\n":          "A=1\nGRUB_CMDLINE_LINUX=\"a=1\"\nB=2\n",
		"GRUB_CMDLINE_LINUX='x y' # why\n":             "GRUB_CMDLINE_LINUX=\"x y a=1\"\n",
		"GRUB_CMDLINE_LINUX=quiet":                     "GRUB_CMDLINE_LINUX=\"quiet a=1\"",
		"#GRUB_CMDLINE_LINUX=\"x\"\n":                  "#GRUB_CMDLINE_LINUX=\"x\"\nGRUB_CMDLINE_LINUX=\"a=1\"\n",
		"GRUB_CMDLINE_LINUX=\"$A\"\n":                  "",
		"GRUB_CMDLINE_LINUX+=\" x\"\n":                 "",
		"GRUB_CMDLINE_LINUX=a\nGRUB_CMDLINE_LINUX=b\n": "",
	} {
		got, err := changeSettings(text, add)
		if (want == "") != (err != nil) || got != want {
			t.Errorf("%q: %q %v", text, got, err)
		}
	}
}

// Emptying the journal waits for the disk, and may take a freeze of the file system.
func TestTheJournalIsEmptiedTwiceForAllFiles(t *testing.T) {
	for name, host := range map[string]map[string]string{"entries": fedora, "generated": debian} {
		l := found(made(t, host))
		emptied := 0
		l.checkpoint = func(string) error { emptied++; return nil }
		change := prepared(t, l, Arguments{Append: arguments.Append, Owned: arguments.Owned, Wanted: arguments.Wanted})
		if err := l.Write(t.Context(), change, false, nil); err != nil {
			t.Fatal(err)
		}
		if emptied != 2 {
			t.Errorf("%s: emptied %d times", name, emptied)
		}
	}
}

func TestAFileThatCannotBeRenamedEndsTheWork(t *testing.T) {
	root := made(t, fedora)
	l := found(root)
	emptied := 0
	l.checkpoint = func(dir string) error {
		emptied++
		staged, err := filepath.Glob(filepath.Join(root.Path(), dir, between+"*-next"))
		for _, name := range staged {
			err = errors.Join(err, os.Remove(name))
		}
		return err
	}
	change := prepared(t, l, Arguments{Append: arguments.Append, Owned: arguments.Owned, Wanted: arguments.Wanted})
	if err := l.Write(t.Context(), change, false, nil); !errors.Is(err, unix.ENOENT) || emptied != 1 {
		t.Errorf("%v; the journal was emptied %d times", err, emptied)
	}
}

// Forget removes what the boot loader sees until the journal is emptied.
func TestARepeatedWriteEmptiesTheJournalAfterAKill(t *testing.T) {
	l := found(made(t, fedora))
	change := prepared(t, l, Arguments{Append: arguments.Append, Owned: arguments.Owned, Wanted: arguments.Wanted})
	cut, killed, emptied := errors.New("killed"), false, 0
	l.checkpoint = func(string) error {
		written, _, err := l.State(change, false)
		if written && !killed {
			killed = true
			return cut
		}
		emptied++
		return err
	}
	if err := l.Write(t.Context(), change, false, nil); !errors.Is(err, cut) {
		t.Fatalf("not killed after the last rename: %v", err)
	}
	emptied = 0
	if err := l.Write(t.Context(), change, false, nil); err != nil || emptied != 1 {
		t.Errorf("%v; the journal was emptied %d times", err, emptied)
	}
}
