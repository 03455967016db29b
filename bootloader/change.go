// SPDX-License-Identifier: Apache-2.0

package bootloader

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/kargs"
)

// Arguments is what is to change of the kernel arguments.
type Arguments struct {
	// Delete and Append lead from CommandLine to the new command line, see kargs.Apply.
	Delete, Append []string
	// Owned are the arguments that are ours afterwards, and Wanted those that the configuration asks for.
	Owned, Wanted []string
	// Managed reports whether the configuration itself has a file of that path. It may be nil.
	Managed func(path string) bool
}

// role is what a file is for.
type role string

const (
	roleOurs      role = "ours"      // settings that have nothing but our arguments
	roleSettings  role = "settings"  // GRUB's settings, which an admin has too
	roleGenerated role = "generated" // what the generator makes of the settings
	roleEntry     role = "entry"     // an entry of one kernel
	roleLine      role = "line"      // the arguments of kernels that are installed later
)

// file is a file on both sides of a change. Without contents it is absent.
type file struct {
	Path string `json:"path"`
	Role role   `json:"role"`
	Old  []byte `json:"old"`
	New  []byte `json:"new"`
}

// change is a prepared change of kernel arguments.
type change struct {
	Delete []string `json:"delete,omitempty"`
	Append []string `json:"append,omitempty"`
	// Old and New are the command lines of both sides.
	Old []string `json:"old"`
	New []string `json:"new"`
	// Generator is the program that makes the generated file.
	Generator string `json:"generator,omitempty"`
	Files     []file `json:"files"`
}

// Prepare decides what changes in the boot loader's files, and changes nothing. The result is nil where nothing is to
// change.
func (l *Loader) Prepare(ctx context.Context, a Arguments) ([]byte, error) {
	if !l.Known() {
		return nil, refuse("%s", l.Refusal("kernelArguments"))
	}
	for _, arg := range slices.Concat(a.Append, a.Owned) {
		if !plain.MatchString(arg) {
			return nil, refuse("argument %s has a character that the boot loader's configuration would change", arg)
		}
	}
	old, err := l.CommandLine()
	if err != nil {
		return nil, err
	}
	c := &change{Delete: a.Delete, Append: a.Append, Old: old, New: kargs.Apply(old, a.Delete, a.Append)}
	if l.kind == generated {
		err = l.prepareGenerated(ctx, c, a)
	} else {
		err = l.prepareEntries(c, a)
	}
	if err != nil {
		return nil, err
	}
	if missing := kargs.Missing(c.New, a.Wanted); len(missing) > 0 {
		return nil, refuse("%s is not on the command line after all: the boot loader's own settings leave it out, or put "+
			"others after it", kargs.Join(missing))
	}
	c.Files = slices.DeleteFunc(c.Files, func(f file) bool { return same(f.Old, f.New) })
	for _, f := range c.Files {
		if a.Managed != nil && a.Managed(f.Path) {
			return nil, refuse("%s is a file of the configuration, and has kernel arguments; leave one of them out", f.Path)
		}
	}
	if len(c.Files) == 0 {
		return nil, nil
	}
	if err := l.room(c); err != nil {
		return nil, err
	}
	return json.Marshal(c)
}

// room refuses a change that the file systems have no room for, or that are read-only. The other side needs no room.
func (l *Loader) room(c *change) error {
	needs := map[uint64]uint64{}
	for _, f := range c.Files {
		dir, err := l.root.Ancestor(f.Path)
		if err == nil {
			err = l.root.Changeable(dir)
		}
		if err != nil {
			return fmt.Errorf("checking the boot loader's files: %w", err)
		}
		space, err := l.root.Space(dir)
		if err != nil {
			return fmt.Errorf("checking space: %w", err)
		}
		needs[space.Device] += (uint64(len(f.New)) + 4095) &^ 4095
		if need := needs[space.Device]; need > space.Bytes {
			return fmt.Errorf("checking space: the file system of %s has %d bytes free, the kernel arguments need %d: %w",
				dir, space.Bytes, need, unix.ENOSPC)
		}
	}
	return nil
}

// same reports whether two files are alike. A file without bytes is not an absent one.
func same(a, b []byte) bool { return bytes.Equal(a, b) && (a == nil) == (b == nil) }

// read returns the contents of a file, nil where it is absent.
func (l *Loader) read(name string) ([]byte, error) {
	data, err := l.root.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil && data == nil {
		data = []byte{}
	}
	return data, err
}

// preview runs the generator in a mount namespace where one file of its settings is another. "$2" is the file's path
// below /etc/default, "$3" its text; without a third word the file is absent.
const preview = `set -e
mount -t tmpfs -o mode=1777 noderefit /tmp
cp -a /etc/default /tmp/default
mkdir -p "/tmp/default/${2%/*}"
rm -f "/tmp/default/$2"
[ $# -lt 3 ] || printf %s "$3" >"/tmp/default/$2"
mount --bind /tmp/default /etc/default
exec "$1"
`

// generating bounds one run of the generator, which may look for other systems on all disks.
const generating = 5 * time.Minute

// prepareGenerated makes GRUB's configuration of the new settings, without changing the settings.
func (l *Loader) prepareGenerated(ctx context.Context, c *change, a Arguments) error {
	source := file{Path: l.source, Role: roleOurs, New: settings(a.Owned)}
	var err error
	if source.Old, err = l.read(l.source); err != nil {
		return err
	}
	if l.source != ours {
		text, err := changeSettings(string(source.Old), func(args []string) []string {
			return kargs.Apply(args, a.Delete, a.Append)
		})
		if err != nil {
			return err
		}
		source.Role, source.New = roleSettings, []byte(text)
	}
	made := file{Path: l.config, Role: roleGenerated}
	if made.Old, err = l.read(l.config); err != nil {
		return err
	}
	argv := []string{"unshare", "--mount", "--propagation", "private", "--", "sh", "-c", preview, "sh", l.generator,
		strings.TrimPrefix(l.source, "/etc/default/")}
	if source.New != nil {
		argv = append(argv, string(source.New))
	}
	ctx, cancel := context.WithTimeout(ctx, generating)
	defer cancel()
	if made.New, err = l.run(ctx, argv...); err != nil {
		return fmt.Errorf("making GRUB's configuration with other kernel arguments: %w", err)
	}
	if c.New = grubLine(string(made.New)); c.New == nil {
		return fmt.Errorf("making GRUB's configuration with other kernel arguments: %s printed no entry that boots Linux",
			l.generator)
	}
	c.Generator, c.Files = l.generator, []file{source, made}
	return nil
}

// prepareEntries changes each entry, and the places from which later entries have their arguments.
func (l *Loader) prepareEntries(c *change, a Arguments) error {
	apply := func(args []string) []string { return kargs.Apply(args, a.Delete, a.Append) }
	all, err := l.entries()
	if err != nil {
		return err
	}
	for _, e := range all {
		c.Files = append(c.Files, file{e.path, roleEntry, []byte(e.text), []byte(e.withArguments(apply(e.arguments())))})
	}
	old, err := l.read(defaults)
	if err != nil {
		return err
	}
	if old != nil {
		text, err := changeSettings(string(old), apply)
		if err != nil {
			return err
		}
		c.Files = append(c.Files, file{defaults, roleSettings, old, []byte(text)})
	}
	// The last one: Fedora's grub2-mkconfig makes it anew where it is older than the settings.
	if old, err = l.read(kernelLine); err != nil {
		return err
	}
	vendor, err := l.read(vendorLine)
	if err != nil {
		return err
	}
	if base := old; base != nil || vendor != nil {
		if base == nil {
			base = vendor
		}
		args := apply(kargs.Split(string(base)))
		f := file{kernelLine, roleLine, old, []byte(kargs.Join(args) + "\n")}
		if vendor != nil && len(a.Owned) == 0 && slices.Equal(args, kargs.Split(string(vendor))) {
			f.New = nil
		}
		c.Files = append(c.Files, f)
	}
	return nil
}

// decode reads a prepared change.
func decode(data []byte) (*change, error) {
	c := &change{}
	if err := json.Unmarshal(data, c); err != nil {
		return nil, fmt.Errorf("reading a change of kernel arguments: %w", err)
	}
	return c, nil
}

// goal returns the command line of a side, and the other one.
func (c *change) goal(old bool) (goal, other []string) {
	if old {
		return c.Old, c.New
	}
	return c.New, c.Old
}

func count(args []string, arg string) (n int) {
	for _, a := range args {
		if a == arg {
			n++
		}
	}
	return n
}

func key(arg string) string {
	name, _, _ := strings.Cut(arg, "=")
	return name
}

// has reports whether a command line is of that side: it has the arguments of all keys that change, in their order, and
// none that only the other side has.
func (c *change) has(line []string, old bool) bool {
	goal, other := c.goal(old)
	var want []string
	for _, arg := range goal {
		if slices.ContainsFunc(slices.Concat(c.Delete, c.Append), func(x string) bool { return key(x) == key(arg) }) {
			want = append(want, arg)
		}
	}
	if len(kargs.Missing(line, want)) > 0 {
		return false
	}
	return !slices.ContainsFunc(slices.Concat(c.Delete, c.Append), func(x string) bool {
		n := count(goal, x)
		return n < count(other, x) && count(line, x) > n
	})
}

// moved returns arguments that are neither side's on that side.
func (c *change) moved(args []string, old bool) []string {
	goal, _ := c.goal(old)
	add, remove := c.Append, c.Delete
	if old {
		add, remove = c.Delete, c.Append
	}
	var del []string
	for _, x := range remove {
		if count(args, x)-count(del, x) > count(goal, x) {
			del = append(del, x)
		}
	}
	args = kargs.Apply(args, del, nil)
	return kargs.Apply(args, nil, kargs.Missing(args, add))
}

// write is a file that has to be written, and its contents; nil removes it.
type write struct {
	file
	data []byte
	// generate means that the generator makes the contents.
	generate bool
}

// writes returns what is not on that side yet: first the settings, then what is made of them.
func (l *Loader) writes(c *change, old bool) ([]write, error) {
	all := slices.Clone(c.Files)
	if c.Generator == "" {
		now, err := l.entries()
		if err != nil {
			return nil, err
		}
		for _, e := range now { // of kernels that were installed meanwhile
			if !slices.ContainsFunc(all, func(f file) bool { return f.Path == e.path }) {
				all = append(all, file{Path: e.path, Role: roleEntry})
			}
		}
	}
	var out []write
	for _, f := range all {
		found, err := l.read(f.Path)
		if err != nil {
			return nil, err
		}
		w, err := c.turn(f, found, old)
		if err != nil {
			return nil, err
		}
		if w != nil {
			out = append(out, *w)
		}
	}
	return out, nil
}

// turn returns what brings a file to a side, nil where it is there.
func (c *change) turn(f file, found []byte, old bool) (*write, error) {
	goal, other := f.New, f.Old
	if old {
		goal, other = other, goal
	}
	known := f.Old != nil || f.New != nil
	switch {
	case known && same(found, goal):
		return nil, nil
	case known && same(found, other) || f.Role == roleOurs:
		return &write{file: f, data: goal}, nil
	case f.Role == roleGenerated:
		if line := grubLine(string(found)); line != nil && c.has(line, old) {
			return nil, nil
		}
		return &write{file: f, generate: true}, nil
	case found == nil:
		return nil, nil // another program has removed it, as with an old kernel
	}
	text := string(found)
	switch f.Role {
	case roleEntry:
		e := entry{f.Path, text}
		if args := c.moved(e.arguments(), old); !slices.Equal(args, e.arguments()) {
			text = e.withArguments(args)
		}
	case roleLine:
		if args := c.moved(kargs.Split(text), old); !slices.Equal(args, kargs.Split(text)) {
			text = kargs.Join(args) + "\n"
		}
	case roleSettings:
		var err error
		if text, err = changeSettings(text, func(args []string) []string { return c.moved(args, old) }); err != nil {
			return nil, err
		}
	}
	if text == string(found) {
		return nil, nil
	}
	return &write{file: f, data: []byte(text)}, nil
}

// Write brings the boot loader's files to one side of a change: with old to the one before it. Each file is written
// beside its place and renamed. before is called before each rename, and its error ends the work. Write can be repeated
// after a cut at any point, on either side.
func (l *Loader) Write(ctx context.Context, data []byte, old bool, before func(path string) error) error {
	c, err := decode(data)
	if err != nil {
		return err
	}
	todo, err := l.writes(c, old)
	if err != nil {
		return fmt.Errorf("reading the boot loader's files: %w", err)
	}
	together := max(1, len(todo))
	if c.Generator != "" {
		together = 1 // the generator reads the settings at their place
	}
	touched := slices.Clone(c.Files)
	for batch := range slices.Chunk(todo, together) {
		if err := l.replace(ctx, c, batch, old, before); err != nil {
			return err
		}
		for _, w := range batch {
			touched = append(touched, w.file)
		}
	}
	// Without anything to do, too: a run that was killed may have ended between its renames and here.
	return writing(l.settle(ctx, touched))
}

func writing(err error) error {
	if err != nil {
		return fmt.Errorf("writing the boot loader's files: %w", err)
	}
	return nil
}

// replace replaces files. A boot loader reads a disk without its journal: it does not see what the journal alone has,
// and of what the kernel then writes to its place a power cut leaves any part. So the new files have all of themselves
// in their places before the first rename. A replaced file is kept under another name until Forget, and stays whole for
// a boot loader that still sees the old directory.
func (l *Loader) replace(ctx context.Context, c *change, batch []write, old bool, before func(string) error) error {
	var next []file
	for i := range batch {
		if batch[i].generate {
			text, err := l.generate(ctx, c.Generator)
			if err != nil {
				return fmt.Errorf("making %s by %s: %w", batch[i].Path, c.Generator, err)
			}
			batch[i].data = text
		}
		if err := l.stage(batch[i], old); err != nil {
			return writing(err)
		}
		next = append(next, batch[i].file)
	}
	if err := l.settle(ctx, next); err != nil {
		return writing(err)
	}
	for _, w := range batch {
		if before != nil {
			if err := before(w.Path); err != nil {
				return err
			}
		}
		if err := l.rename(w); err != nil {
			return writing(err)
		}
	}
	return nil
}

func (l *Loader) generate(ctx context.Context, generator string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, generating)
	defer cancel()
	text, err := l.run(ctx, generator)
	if err == nil && grubLine(string(text)) == nil {
		err = errors.New("it printed no entry that boots Linux")
	}
	return text, err
}

// State reports whether the files are on that side, and whether this boot is.
func (l *Loader) State(data []byte, old bool) (written, booted bool, err error) {
	c, err := decode(data)
	if err != nil {
		return false, false, err
	}
	todo, err := l.writes(c, old)
	if err != nil {
		return false, false, fmt.Errorf("reading the boot loader's files: %w", err)
	}
	line, err := l.running()
	if err != nil {
		return false, false, fmt.Errorf("reading the kernel's command line: %w", err)
	}
	return len(todo) == 0, c.has(line, old), nil
}

// between is how the names begin of what lies beside the boot loader's files. No boot loader reads such a name.
const between = files.StagePrefix + "boot-"

// staged is the name of the new file beside the one that is at a path, until the rename.
func staged(at string) string { return between + path.Base(at) + "-next" }

// stage makes the new file beside the old one, and keeps the old one under a second name. The other side links the kept
// file in again, which needs no room on a full disk.
func (l *Loader) stage(w write, old bool) error {
	at, err := l.root.Resolve(w.Path)
	if err != nil {
		return err
	}
	dir, base := path.Dir(at), path.Base(at)
	keep, kept := between+base+"-before-new", between+base+"-before-old"
	if old {
		keep, kept = kept, keep
	}
	if err := l.root.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if w.data != nil {
		if err := l.beside(at, kept, w.data); err != nil {
			return err
		}
	}
	if err := l.root.Remove(path.Join(dir, keep)); err != nil {
		return err
	}
	_ = l.root.Link(at, dir, keep) // a new file has none before it; a file system without links keeps no journal either
	return nil
}

// rename puts the new file in the place of the old one. vfat has no second names, and frees the clusters of a replaced
// file once no program has the file open. So rename keeps the old file open until the new file is on the disk under its
// name.
func (l *Loader) rename(w write) error {
	at, err := l.root.Resolve(w.Path)
	if err != nil {
		return err
	}
	dir := path.Dir(at)
	release, err := l.root.Hold(at)
	if err != nil {
		return err
	}
	if w.data == nil {
		err = l.root.Remove(at)
	} else {
		err = l.root.Replace(dir, staged(at), at)
	}
	err = errors.Join(err, l.root.Fsync(dir))
	if err == nil && w.data != nil {
		err = l.root.Fsync(at) // on vfat the place of the new contents is the file's to write, and not the directory's
	}
	return errors.Join(err, release())
}

// refreeze freezes the file system of "$1" for a moment, which empties its journal. Between the two only SIGKILL ends
// the shell. Another program, as one that makes a backup, may have frozen the file system already.
const refreeze = `trap '' HUP INT QUIT TERM
for pause in 1 1 2 3 5 8 10; do
	fsfreeze --freeze "$1" && exec fsfreeze --unfreeze "$1"
	sleep "$pause"
done
exit 1`

// settle empties the journal of each directory's file system in which the boot loader reads one of the files.
func (l *Loader) settle(ctx context.Context, all []file) error {
	var dirs []string
	for _, f := range all {
		if f.Role != roleGenerated && f.Role != roleEntry {
			continue
		}
		at, err := l.root.Resolve(f.Path)
		if err != nil {
			return err
		}
		dirs = append(dirs, path.Dir(at))
	}
	slices.Sort(dirs)
	for _, dir := range slices.Compact(dirs) {
		err := l.checkpoint(dir)
		if errors.Is(err, errors.ErrUnsupported) {
			_, err = l.run(context.WithoutCancel(ctx), "sh", "-c", refreeze, "sh", filepath.Join(l.root.Path(), dir))
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// beside makes contents durable beside the file that they are for, whose owner and mode they get.
func (l *Loader) beside(at, kept string, data []byte) error {
	dir, next := path.Dir(at), staged(at)
	if err := l.root.Remove(path.Join(dir, next)); err != nil {
		return err
	}
	was, err := l.read(path.Join(dir, kept))
	if err == nil && same(was, data) {
		err = l.root.Link(path.Join(dir, kept), dir, next)
	} else {
		err = l.create(at, next, data)
	}
	if err != nil {
		return err
	}
	return l.root.Fsync(path.Join(dir, next))
}

func (l *Loader) create(at, name string, data []byte) error {
	node, err := l.root.Inspect(at)
	if err != nil {
		return err
	}
	if node.Type != files.Regular {
		node = files.Node{Type: files.Regular, Mode: 0o644}
	}
	node.Data, node.Label = data, "" // the directory's policy labels it
	return l.root.Stage(path.Dir(at), name, node)
}

// Forget removes what Write has left beside the boot loader's files. The change can be written afterwards, too.
func (l *Loader) Forget(data []byte) error {
	c, err := decode(data)
	if err != nil {
		return err
	}
	var dirs []string
	for _, f := range c.Files {
		if at, err := l.root.Resolve(f.Path); err == nil {
			dirs = append(dirs, path.Dir(at))
		}
	}
	slices.Sort(dirs)
	for _, dir := range slices.Compact(dirs) {
		names, err := l.root.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		for _, name := range names {
			if strings.HasPrefix(name, between) {
				if err := l.root.Remove(path.Join(dir, name)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
