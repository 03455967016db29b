// SPDX-License-Identifier: Apache-2.0

package sysext

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/erofs/go-erofs"

	"github.com/noderefit/noderefit/machineconfig"
)

// The superblock of an erofs begins with a number, and says what a reader has to know.
const (
	erofsAt       = 1024
	erofsMagic    = 0xE0F5E1E2
	erofsFeatures = erofsAt + 80
)

// usr is where a partition for /usr is mounted.
const usr = "usr/"

// fileSystem is a file system in an image.
type fileSystem interface {
	// open returns the bytes of a regular file. The reader need not be closed.
	open(name string) (io.Reader, error)
	// walk calls do with the regular files: with their paths, and with what open would return.
	walk(do visit) error
}

type visit func(name string, open func() (io.Reader, error)) error

// work is what may still be done to read an image, in bytes that are read or unpacked. An image of a few bytes can name
// one large file a million times.
type work int64

const (
	// mostWork is more than an extension takes.
	mostWork = 4 << 30
	// entryWork is for an entry of a directory, whose inode is looked at: 262,144 entries are looked at.
	entryWork = 16 << 10
	// listWork is for a byte of a directory. Most entries have 64 bytes.
	listWork = entryWork / 64
)

var errWork = errors.New("the image has too much to be read")

// spend fails where no work is left.
func (w *work) spend(n int) error {
	if *w -= work(n); *w < 0 {
		*w = 0
		return errWork
	}
	return nil
}

// open returns the file system that begins with the first byte, nil for one that can't be read.
func open(data []byte) fileSystem {
	if s := openSquash(data); s != nil {
		return s
	}
	if magic := cut(data, erofsAt, 4); magic == nil || binary.LittleEndian.Uint32(magic) != erofsMagic {
		return nil
	}
	img, err := erofs.Open(compressed(data))
	if err != nil {
		return nil
	}
	return &erofsFS{img, int64(len(data)), mostWork}
}

// compressed are the bytes of an erofs that may have compressed files. The library opens no image that says so of
// itself, though each file says so as well. These bytes say nothing of the image.
type compressed []byte

func (c compressed) ReadAt(p []byte, off int64) (int, error) {
	n, err := bytes.NewReader(c).ReadAt(p, off)
	for i := max(erofsFeatures-off, 0); i < min(erofsFeatures+6-off, int64(n)); i++ {
		switch i + off - erofsFeatures {
		case 0: // the features that are needed to read the image
			p[i] &^= 0x13 // what says that files are compressed
		case 4, 5: // how it is compressed
			p[i] = 0
		}
	}
	return n, err
}

// erofsFS reads no file that says that it is larger than the image: the sizes in a damaged image are any numbers.
type erofsFS struct {
	fs.FS
	bytes int64
	work  work
}

func (e *erofsFS) open(name string) (io.Reader, error) {
	f, err := e.Open(name)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && info.Size() > e.bytes {
		err = fmt.Errorf("%s is larger than its image", name)
	}
	return &erofsFile{f, e}, err
}

type erofsFile struct {
	fs.File
	of *erofsFS
}

func (f *erofsFile) Read(p []byte) (int, error) {
	n, err := f.File.Read(p)
	return n, cmp.Or(f.of.work.spend(n), err)
}

func (e *erofsFS) walk(do visit) error {
	seen := map[uint64]bool{}
	return fs.WalkDir(e.FS, ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			err = e.mayList(name, d, seen)
		}
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		return do(name, func() (io.Reader, error) { return e.open(name) })
	})
}

// mayList fails for a directory that the walk has seen: in a damaged image a directory may be in itself. mayList fails
// too where the lists are longer than an extension's: many directories may have one list.
func (e *erofsFS) mayList(name string, d fs.DirEntry, seen map[uint64]bool) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	if len(name) > pathSize || info.Size() > e.bytes {
		return fmt.Errorf("directory %s is too large for its image", d.Name())
	}
	if err := e.work.spend(entryWork + int(info.Size())*listWork); err != nil {
		return err
	}
	if node, is := info.(interface{ Ino() uint64 }); is {
		if seen[node.Ino()] {
			return fmt.Errorf("directory %s has two places in its image", d.Name())
		}
		seen[node.Ino()] = true
	}
	return nil
}

// mounted are the file systems of an image, by the directory that systemd mounts them at: "" for the whole, or usr.
type mounted map[string]fileSystem

// of returns the file system with a path, nil where there is none, and the path in it.
func (m mounted) of(name string) (fileSystem, string) {
	if below, is := strings.CutPrefix(name, usr); is && m[usr] != nil {
		return m[usr], below
	}
	return m[""], name
}

func (m mounted) open(name string) (io.Reader, error) {
	from, below := m.of(name)
	if from == nil {
		return nil, fs.ErrNotExist
	}
	return from.open(below)
}

func (m mounted) walk(do visit) error {
	for _, dir := range slices.Sorted(maps.Keys(m)) {
		if err := m[dir].walk(func(name string, open func() (io.Reader, error)) error {
			if from, _ := m.of(dir + name); from != m[dir] {
				return nil // it is covered
			}
			return do(dir+name, open)
		}); err != nil {
			return err
		}
	}
	return nil
}

// bytesAt returns the bytes that a configuration has at a path, or at the path that a link there leads to.
func bytesAt(cfg *machineconfig.Config, name string) (data []byte, is bool) {
	end, _ := linked(cfg, name)
	f := fileAt(cfg, end)
	if f == nil || f.NoContents {
		return nil, false
	}
	return f.Contents, true
}

// image returns what is in a raw image of the configuration. The result is nil for an extension that is no image, for
// one whose bytes the configuration does not have, and for an image that can't be read. wrong says why systemd does not
// mount the image, "" where it may.
func (e Extension) image(cfg *machineconfig.Config) (img fileSystem, wrong string) {
	data, is := bytesAt(cfg, e.Place)
	if !e.Raw || !is {
		return nil, ""
	}
	hash, wrong := e.hash(cfg)
	if wrong != "" {
		return nil, wrong
	}
	if whole := open(data); whole != nil {
		return whole, ""
	}
	at, wrong := places(partitions(data), hash)
	if len(at) == 0 {
		return nil, wrong
	}
	found := mounted{}
	for dir, data := range at {
		if found[dir] = open(data); found[dir] == nil {
			return nil, ""
		}
	}
	return found, ""
}

// hash returns the hash that the configuration has beside a raw image, nil where there is none. wrong says why systemd
// does not mount the image, "" where it may.
func (e Extension) hash(cfg *machineconfig.Config) (hash *rootHash, wrong string) {
	for _, of := range []struct{ suffix, place string }{{".roothash", ""}, {".usrhash", usr}} {
		file := strings.TrimSuffix(e.Place, rawSuffix) + of.suffix
		text, is := bytesAt(cfg, file)
		if !is {
			continue
		}
		line := string(text)
		if end := strings.IndexAny(line, "\n\r\x00"); end >= 0 { // systemd reads no other line
			line = line[:end]
		}
		value, err := hex.DecodeString(strings.NewReplacer(" ", "", "\t", "").Replace(line))
		if err != nil || len(value) < 16 {
			return nil, file + " has no hash in its first line: bring the hash that was printed when the image was made"
		}
		return &rootHash{file, of.place, value}, ""
	}
	return nil, ""
}

// each calls do with the regular files of an extension that lie over the host: with the path there, and with the bytes.
// img is what the method image returned. do gets no bytes where they can't be read, as in a compressed image. The error
// is errWork for an image that has more than an extension has.
func (e Extension) each(cfg *machineconfig.Config, img fileSystem, do visit) error {
	laid := func(at string) bool {
		return slices.ContainsFunc(e.class.over, func(over string) bool { return strings.HasPrefix(at, over+"/") })
	}
	if img != nil {
		return img.walk(func(name string, open func() (io.Reader, error)) error {
			if !laid("/" + name) {
				return nil
			}
			return do("/"+name, open)
		})
	}
	dir := e.inside(cfg)
	for _, f := range cfg.Files {
		at, below := strings.CutPrefix(path.Clean(f.Path), dir)
		if dir == "" || !below || f.NoContents || !laid(at) {
			continue
		}
		if err := do(at, func() (io.Reader, error) { return bytes.NewReader(f.Contents), nil }); err != nil {
			return err
		}
	}
	return nil
}

// releaseOf returns the file of an extension that says which OS the extension is for, with its path. img is what the
// method image returned. known is false where nothing here can tell, and err is of fs.ErrNotExist where the extension
// lacks the file.
func (e Extension) releaseOf(cfg *machineconfig.Config, img fileSystem,
) (name string, text []byte, known bool, err error) {
	inside := path.Join(e.class.release, releaseName+e.Name)
	if img != nil {
		text, known, err = releaseIn(img, inside)
		return e.Place + ": " + inside, text, known, err
	}
	dir := e.inside(cfg)
	name = path.Join(dir, inside)
	f := fileAt(cfg, name)
	switch {
	case dir == "":
	case f != nil:
		return name, f.Contents, true, nil
	case dir == e.Place:
		return name, nil, true, fs.ErrNotExist
	}
	return name, nil, false, nil
}

const (
	releaseName = "extension-release." // the name of the extension follows
	// releaseSize is more than a release has. A larger one is not read.
	releaseSize = 64 << 10
)

// releaseIn reads the release of an image, which is at a path. known is false, too, where the image has the release of
// another name: systemd takes that one where an attribute of the file allows this, and the attribute is not read.
func releaseIn(img fileSystem, inside string) (text []byte, known bool, err error) {
	r, err := img.open(inside)
	if errors.Is(err, fs.ErrNotExist) {
		begins, others := path.Join(path.Dir(inside), releaseName), false
		err := img.walk(func(name string, _ func() (io.Reader, error)) error {
			others = others || strings.HasPrefix(name, begins)
			return nil
		})
		if others || err != nil {
			return nil, false, nil //nolint:nilerr // nothing here can tell
		}
		return nil, true, fs.ErrNotExist
	}
	if err == nil {
		text, err = io.ReadAll(io.LimitReader(r, releaseSize+1))
	}
	if err != nil || len(text) > releaseSize {
		return nil, false, nil //nolint:nilerr // nothing here can tell
	}
	return text, true, nil
}
