// SPDX-License-Identifier: Apache-2.0

package bootloader

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const diskBlock = 1024

// disk is a file system in a file, mounted at dir.
type disk struct{ image, dir string }

func newDisk(t *testing.T) disk {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("to mount a file system takes root")
	}
	d := disk{filepath.Join(t.TempDir(), "image"), t.TempDir()}
	if err := os.WriteFile(d.image, make([]byte, 4<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, argv := range [][]string{
		{"mkfs.ext4", "-q", "-b", "1024", d.image},
		{"mount", "-o", "loop,commit=300", d.image, d.dir},
	} {
		run(t, argv...)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(d.dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return d
}

func run(t *testing.T, argv ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), argv[0], argv[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %v: %s", argv, err, out)
	}
}

// written is what the kernel has written to the disk so far.
func (d disk) written(t *testing.T) []byte {
	t.Helper()
	data, err := os.ReadFile(d.image)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// look is a disk of that content for a program that reads no journal, as a boot loader does not.
type look struct{ file, commands *os.File }

func newLook(t *testing.T, names []string) look {
	t.Helper()
	dir := t.TempDir()
	file, err := os.Create(filepath.Join(dir, "disk"))
	commands, err2 := os.Create(filepath.Join(dir, "commands"))
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = file.Close(), commands.Close() })
	for _, name := range names {
		if _, err := commands.WriteString("cat " + name + "\n"); err != nil {
			t.Fatal(err)
		}
	}
	return look{file, commands}
}

func (l look) put(t *testing.T, data []byte, at int) {
	t.Helper()
	if _, err := l.file.WriteAt(data, int64(at)); err != nil {
		t.Fatal(err)
	}
}

// files are what the files have, or why they can't be read, each below its name.
func (l look) files(t *testing.T) string {
	t.Helper()
	// Without bitmaps and checksums, which no boot loader minds.
	text, err := exec.CommandContext(t.Context(), "debugfs", "-c", "-n", "-f", l.commands.Name(), l.file.Name()).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return string(text)
}

// partly calls do for disks of which any of the blocks are lost that were written between two moments, as a power cut
// may leave them: each alone, all but each, and some at random.
func (l look) partly(t *testing.T, before, after []byte, do func()) {
	t.Helper()
	var changed []int
	for at := 0; at < len(after); at += diskBlock {
		if !bytes.Equal(before[at:at+diskBlock], after[at:at+diskBlock]) {
			changed = append(changed, at)
		}
	}
	l.put(t, before, 0)
	mix := func(lasts func(n int) bool) {
		for n, at := range changed {
			from := before
			if lasts(n) {
				from = after
			}
			l.put(t, from[at:at+diskBlock], at)
		}
		do()
	}
	for k := range changed {
		mix(func(n int) bool { return n == k })
		mix(func(n int) bool { return n != k })
	}
	source := rand.New(rand.NewPCG(1, uint64(len(changed))))
	for range 20 {
		mix(func(int) bool { return source.IntN(2) == 0 })
	}
}

// A boot loader does not replay the journal of a file system. Whatever of the kernel's writes a power cut leaves, each
// file that the boot loader reads is one side's as a whole, and after Write the new side's.
func TestABootLoaderWithoutTheJournalSeesOneSideOfEachFile(t *testing.T) {
	t.Parallel()
	only := Arguments{Append: arguments.Append, Owned: arguments.Owned, Wanted: arguments.Wanted}
	for name, host := range map[string]map[string]string{"entries": fedora, "generated": debian} {
		for _, way := range []string{"checkpoint", "freeze"} {
			t.Run(name+" by "+way, func(t *testing.T) {
				t.Parallel()
				d := newDisk(t)
				root := madeAt(t, d.dir, host)
				generate := generator(root)
				moments := [][]byte{}
				moment := func() { moments = append(moments, d.written(t)) }
				l := Find(root, func(ctx context.Context, argv ...string) ([]byte, error) {
					if argv[0] != "sh" {
						return generate(ctx, argv...)
					}
					defer moment()
					return exec.CommandContext(ctx, argv[0], argv[1:]...).Output()
				})
				l.checkpoint = func(dir string) error {
					if way == "freeze" {
						return errors.ErrUnsupported
					}
					defer moment()
					return root.Checkpoint(dir)
				}
				change := prepared(t, l, only)
				if err := root.Checkpoint("/boot"); err != nil {
					t.Fatal(err)
				}
				moment()
				c, err := decode(change)
				if err != nil {
					t.Fatal(err)
				}
				c.Files = slices.DeleteFunc(c.Files, func(f file) bool { return !strings.HasPrefix(f.Path, "/boot") })
				var names []string
				for _, f := range c.Files {
					names = append(names, f.Path)
				}
				look, disks := newLook(t, names), 0
				for _, old := range []bool{false, true, false} {
					moments = moments[len(moments)-1:]
					if err := l.Write(t.Context(), change, old, nil); err != nil {
						t.Fatal(err)
					}
					for n := range moments[1:] {
						look.partly(t, moments[n], moments[n+1], func() {
							disks++
							text := look.files(t)
							for _, f := range c.Files {
								begin := "cat " + f.Path + "\n"
								if !strings.Contains(text, begin+string(f.Old)) && !strings.Contains(text, begin+string(f.New)) {
									t.Fatalf("old %t, moment %d: the boot loader sees %s", old, n, text)
								}
							}
						})
					}
					look.put(t, d.written(t), 0)
					text := look.files(t)
					for _, f := range c.Files {
						want := f.New
						if old {
							want = f.Old
						}
						if !strings.Contains(text, "cat "+f.Path+"\n"+string(want)) {
							t.Errorf("old %t: after all the boot loader sees %s", old, text)
						}
					}
					if err := l.Forget(change); err != nil {
						t.Fatal(err)
					}
				}
				if disks < 100 {
					t.Errorf("%d disks were looked at", disks)
				}
			})
		}
	}
}

// A rename on vfat frees the replaced file at once, and writes the new one's place in the directory later. After a cut at
// each moment the other side can be written, and no two files have the same clusters.
func TestASystemPartitionSurvivesACut(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("to mount a file system takes root")
	}
	if _, err := exec.LookPath("mkfs.vfat"); err != nil {
		t.Skipf("making a system partition: %v; apt-get install dosfstools", err)
	}
	mounted := func(image string) string {
		t.Helper()
		dir := t.TempDir()
		out, err := exec.CommandContext(t.Context(), "mount", "-t", "vfat", "-o", "loop", image, dir).CombinedOutput()
		if bytes.Contains(out, []byte("unknown filesystem type")) {
			t.Skip("this machine's kernel has no vfat")
		}
		if err != nil {
			t.Fatalf("mounting %s: %v: %s", image, err, out)
		}
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
		return dir
	}
	image := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(image, make([]byte, 4<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, "mkfs.vfat", image)
	// The kernel writes the blocks of a directory that it has just made with the directory above, until the next mount.
	dir := mounted(image)
	if err := errors.Join(madeAt(t, dir, fedora).Close(), unix.Unmount(dir, 0)); err != nil {
		t.Fatal(err)
	}
	root := madeAt(t, mounted(image))
	l := Find(root, nil)
	only := Arguments{Append: arguments.Append, Owned: arguments.Owned, Wanted: arguments.Wanted}
	change := prepared(t, l, only)
	var disks []string
	take := func(string) error {
		name := filepath.Join(t.TempDir(), "disk")
		disks = append(disks, name)
		return os.WriteFile(name, disk{image: image}.written(t), 0o600)
	}
	l.checkpoint = func(at string) error { return errors.Join(take(at), root.Checkpoint(at)) }
	if err := l.Write(t.Context(), change, false, take); err != nil {
		t.Fatal(err)
	}
	if len(disks) < 4 {
		t.Fatalf("%d disks were looked at", len(disks))
	}
	for n, name := range disks {
		dir := mounted(name)
		root := madeAt(t, dir)
		again := Find(root, nil)
		for _, old := range []bool{false, true} {
			if err := again.Write(t.Context(), change, old, nil); err != nil {
				t.Fatalf("disk %d, old %t: %v", n, old, err)
			}
		}
		if err := errors.Join(again.Forget(change), root.Close(), unix.Unmount(dir, 0)); err != nil {
			t.Fatal(err)
		}
		// What is left over of clusters is no harm; a file that has lost its own is.
		text, _ := exec.CommandContext(t.Context(), "fsck.vfat", "-n", name).CombinedOutput()
		for _, bad := range []string{"cluster chain length", "share", "Bad file name", "free cluster"} {
			if strings.Contains(string(text), bad) {
				t.Errorf("disk %d: %s", n, text)
			}
		}
	}
}
