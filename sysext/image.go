// SPDX-License-Identifier: Apache-2.0

package sysext

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/erofs/go-erofs"

	"github.com/noderefit/noderefit/machineconfig"
)

// The superblock of an erofs begins with a number, at this place.
const (
	erofsAt    = 1024
	erofsMagic = 0xE0F5E1E2
)

// imageFS is the file system of an image. It reads no file that says that it is larger than the image: the sizes in a
// damaged image are any numbers.
type imageFS struct {
	fs.FS

	bytes int64
}

func (i *imageFS) read(name string) ([]byte, error) {
	info, err := fs.Stat(i.FS, name)
	if err != nil {
		return nil, err
	}
	if info.Size() > i.bytes {
		return nil, fmt.Errorf("%s is larger than its image", name)
	}
	return fs.ReadFile(i.FS, name)
}

// once fails for a directory that the walk has seen: in a damaged image a directory may be in itself.
func once(d fs.DirEntry, seen map[uint64]bool) error {
	info, err := d.Info()
	if err != nil {
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

// image returns the file system of a raw image of the configuration. The result is nil for an extension that is no
// image, for one whose bytes the configuration does not have, and for an image of another kind than erofs.
func (e Extension) image(cfg *machineconfig.Config) *imageFS {
	at := slices.IndexFunc(cfg.Files, func(f machineconfig.File) bool { return path.Clean(f.Path) == e.Place })
	if !e.Raw || at < 0 {
		return nil
	}
	data := cfg.Files[at].Contents
	if len(data) < erofsAt+4 || binary.LittleEndian.Uint32(data[erofsAt:]) != erofsMagic {
		return nil
	}
	img, err := erofs.Open(bytes.NewReader(data))
	if err != nil {
		return nil
	}
	return &imageFS{img, int64(len(data))}
}

// each calls do with the regular files of an extension that lie over the host: with the path there, and with the bytes.
// do gets no bytes where they can't be read, as in a compressed image.
func (e Extension) each(cfg *machineconfig.Config, do func(at string, read func() ([]byte, error)) error) error {
	laid := func(at string) bool {
		return slices.ContainsFunc(e.class.over, func(over string) bool { return strings.HasPrefix(at, over+"/") })
	}
	if img := e.image(cfg); img != nil {
		seen := map[uint64]bool{}
		return fs.WalkDir(img, ".", func(name string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				err = once(d, seen)
			}
			if err != nil || !d.Type().IsRegular() || !laid("/"+name) {
				return err
			}
			return do("/"+name, func() ([]byte, error) { return img.read(name) })
		})
	}
	dir := e.inside(cfg)
	for _, f := range cfg.Files {
		at, below := strings.CutPrefix(path.Clean(f.Path), dir)
		if dir == "" || !below || f.NoContents || !laid(at) {
			continue
		}
		if err := do(at, func() ([]byte, error) { return f.Contents, nil }); err != nil {
			return err
		}
	}
	return nil
}

// releaseOf returns the file of an extension that says which OS the extension is for, with its path. known is false
// where nothing here can tell, and err is of fs.ErrNotExist where the extension lacks the file.
func (e Extension) releaseOf(cfg *machineconfig.Config) (name string, text []byte, known bool, err error) {
	inside := path.Join(e.class.release, "extension-release."+e.Name)
	if img := e.image(cfg); img != nil {
		name = e.Place + ": " + inside
		if text, err = img.read(inside); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return name, nil, false, nil
		}
		return name, text, true, err
	}
	dir := e.inside(cfg)
	name = path.Join(dir, inside)
	at := slices.IndexFunc(cfg.Files, func(f machineconfig.File) bool { return path.Clean(f.Path) == name })
	switch {
	case dir == "":
	case at >= 0:
		return name, cfg.Files[at].Contents, true, nil
	case dir == e.Place:
		return name, nil, true, fs.ErrNotExist
	}
	return name, nil, false, nil
}
