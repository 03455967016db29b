// SPDX-License-Identifier: Apache-2.0

package sysext

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
)

// What is read of a squashfs: places in its first bytes, and in what is found from there. All numbers begin with their
// last byte.
const (
	squashMagic = "hsqs"
	squashHead  = 96
	squashGzip  = 1 // the compression that mksquashfs takes by default

	metadataSize = 8192 // of a block of metadata, uncompressed
	metadataKept = 16   // blocks
	noFragment   = 0xFFFFFFFF
	plainBlock   = 1 << 24 // in the size of a block of a file: it is not compressed

	pathSize = 4096 // of the longest path
	// squashFiles is more than an extension has. A damaged directory can list any number.
	squashFiles = 1 << 20
	// squashRatio is more than programs shrink by. A file that shrinks more is not read, for the memory that it would
	// take.
	squashRatio = 32
)

var errSquash = errors.New("the squashfs is damaged")

// squashFS is a squashfs with gzip's compression.
type squashFS struct {
	data                    []byte
	block                   uint64   // the size of a block of a file
	root                    uint64   // where the inode of the root is
	inodes, dirs, fragments uint64   // where the tables begin
	content                 unpacked // the latest block of files, for the next file in it
	meta                    map[uint64]unpacked
}

// unpacked is a block that was read: where it is, its bytes, and where the next one is.
type unpacked struct {
	at, next uint64
	bytes    []byte
}

// openSquash returns the file system, nil for one that can't be read.
func openSquash(data []byte) *squashFS {
	head := cut(data, 0, squashHead)
	number := binary.LittleEndian
	if !bytes.HasPrefix(head, []byte(squashMagic)) || number.Uint16(head[20:]) != squashGzip ||
		number.Uint16(head[28:]) != 4 || number.Uint16(head[22:]) < 12 || number.Uint16(head[22:]) > 20 {
		return nil
	}
	s := &squashFS{data: data, meta: map[uint64]unpacked{}, block: 1 << number.Uint16(head[22:]),
		root: number.Uint64(head[32:]), inodes: number.Uint64(head[64:]), dirs: number.Uint64(head[72:]),
		fragments: number.Uint64(head[80:])}
	if _, err := s.inode(s.root); err != nil {
		return nil
	}
	return s
}

// unpack returns what is compressed in some bytes: at most limit bytes.
func unpack(packed []byte, limit uint64) ([]byte, error) {
	r, err := zlib.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	out, err := io.ReadAll(io.LimitReader(r, int64(limit)+1))
	if err == nil && uint64(len(out)) > limit {
		err = errSquash
	}
	return out, err
}

// metadata returns the block of metadata at a place, and the place of the next one.
func (s *squashFS) metadata(at uint64) (out []byte, next uint64, err error) {
	if had, is := s.meta[at]; is {
		return had.bytes, had.next, nil
	}
	head := cut(s.data, at, 2)
	if head == nil {
		return nil, 0, errSquash
	}
	size := uint64(binary.LittleEndian.Uint16(head))
	plain := size&0x8000 != 0
	size &= 0x7FFF
	if out = cut(s.data, at+2, size); out == nil {
		return nil, 0, errSquash
	}
	if !plain {
		if out, err = unpack(out, metadataSize); err != nil {
			return nil, 0, err
		}
	}
	if len(s.meta) == metadataKept {
		clear(s.meta)
	}
	s.meta[at] = unpacked{at, at + 2 + size, out}
	return out, at + 2 + size, nil
}

// stream reads metadata from a place on: the block at a place, and what is in it.
type stream struct {
	s    *squashFS
	at   uint64
	rest []byte
}

// from returns a stream that begins at an offset in the block of metadata at a place.
func (s *squashFS) from(at, offset uint64) (*stream, error) {
	block, next, err := s.metadata(at)
	if err == nil && offset > uint64(len(block)) {
		err = errSquash
	}
	if err != nil {
		return nil, err
	}
	return &stream{s, next, block[offset:]}, nil
}

// take returns the next bytes.
func (m *stream) take(size int) (out []byte, err error) {
	for len(m.rest) < size {
		more, next, err := m.s.metadata(m.at)
		if err != nil || len(more) == 0 {
			return nil, errSquash
		}
		m.rest, m.at = append(bytes.Clone(m.rest), more...), next
	}
	out, m.rest = m.rest[:size], m.rest[size:]
	return out, nil
}

// inode is a directory or a regular file. The kind of all others is 0.
type inode struct {
	kind  uint16
	start uint64 // a directory's block in the table, a file's first block
	size  uint64
	// offset is a directory's in its block, a file's in its fragment.
	offset, fragment uint64
	sizes            []byte // of the blocks of a file
}

const (
	isDirectory     = 1
	isFile          = 2
	isLongDirectory = 8
	isLongFile      = 9
)

// inode reads the inode at a place: a block of metadata, and 16 bits with the offset in the block.
func (s *squashFS) inode(place uint64) (n inode, err error) {
	m, err := s.from(s.inodes+place>>16, place&0xFFFF)
	if err != nil {
		return n, err
	}
	head, err := m.take(16)
	if err != nil {
		return n, err
	}
	number := binary.LittleEndian
	kind := number.Uint16(head)
	size := map[uint16]int{isDirectory: 16, isLongDirectory: 24, isFile: 16, isLongFile: 40}[kind]
	b, err := m.take(size)
	if err != nil {
		return n, err
	}
	switch kind {
	case isDirectory:
		n = inode{kind: isDirectory, start: uint64(number.Uint32(b)), size: uint64(number.Uint16(b[8:])),
			offset: uint64(number.Uint16(b[10:]))}
	case isLongDirectory:
		n = inode{kind: isDirectory, start: uint64(number.Uint32(b[8:])), size: uint64(number.Uint32(b[4:])),
			offset: uint64(number.Uint16(b[18:]))}
	case isFile:
		n = inode{kind: isFile, start: uint64(number.Uint32(b)), fragment: uint64(number.Uint32(b[4:])),
			offset: uint64(number.Uint32(b[8:])), size: uint64(number.Uint32(b[12:]))}
	case isLongFile:
		n = inode{kind: isFile, start: number.Uint64(b), size: number.Uint64(b[8:]),
			fragment: uint64(number.Uint32(b[28:])), offset: uint64(number.Uint32(b[32:]))}
	}
	if n.kind != isFile {
		return n, nil
	}
	if n.size > squashRatio*uint64(len(s.data)) {
		return n, fmt.Errorf("a file of %d bytes is too large for its image", n.size)
	}
	blocks := n.size / s.block
	if n.fragment == noFragment {
		blocks = (n.size + s.block - 1) / s.block
	}
	n.sizes, err = m.take(int(blocks) * 4)
	return n, err
}

// list calls do with what a directory has, and with the place of each inode.
func (s *squashFS) list(dir inode, do func(name string, kind uint16, place uint64) error) error {
	if dir.size <= 3 { // "." and "..", which are not written
		return nil
	}
	m, err := s.from(s.dirs+dir.start, dir.offset)
	if err != nil {
		return err
	}
	number := binary.LittleEndian
	for left := int64(dir.size) - 3; left > 0; {
		head, err := m.take(12)
		if err != nil {
			return err
		}
		count, block := uint64(number.Uint32(head))+1, uint64(number.Uint32(head[4:]))
		if count > 256 {
			return errSquash
		}
		left -= 12
		for range count {
			entry, err := m.take(8)
			if err != nil {
				return err
			}
			kind, offset := number.Uint16(entry[4:]), uint64(number.Uint16(entry))
			name, err := m.take(int(number.Uint16(entry[6:])) + 1)
			if err != nil {
				return err
			}
			left -= 8 + int64(len(name))
			if err := do(string(name), kind, block<<16|offset); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *squashFS) walk(do visit) error {
	seen, entries := map[uint64]bool{}, 0
	var below func(dir string, place uint64) error
	below = func(dir string, place uint64) error {
		if len(dir) > pathSize {
			return errSquash
		}
		if seen[place] {
			return fmt.Errorf("directory %s has two places in its image", dir)
		}
		seen[place] = true
		n, err := s.inode(place)
		if err != nil || n.kind != isDirectory {
			return errors.Join(err, errSquash)
		}
		return s.list(n, func(name string, kind uint16, place uint64) error {
			if entries++; entries > squashFiles || strings.Contains(name, "/") {
				return errSquash
			}
			switch kind {
			case isDirectory:
				return below(dir+name+"/", place)
			case isFile:
				return do(dir+name, func() ([]byte, error) { return s.readAt(name, place) })
			}
			return nil
		})
	}
	return below("", s.root)
}

func (s *squashFS) read(name string) ([]byte, error) {
	place := s.root
	for part := range strings.SplitSeq(name, "/") {
		dir, err := s.inode(place)
		if err != nil {
			return nil, err
		}
		if dir.kind != isDirectory {
			return nil, fmt.Errorf("%s: %s is not in a directory", name, part)
		}
		found := false
		if err := s.list(dir, func(name string, _ uint16, at uint64) error {
			if name == part {
				found, place = true, at
			}
			return nil
		}); err != nil {
			return nil, err
		}
		if !found {
			return nil, fs.ErrNotExist
		}
	}
	return s.readAt(name, place)
}

// readAt returns the bytes of the file whose inode is at a place.
func (s *squashFS) readAt(name string, place uint64) ([]byte, error) {
	n, err := s.inode(place)
	if err != nil {
		return nil, err
	}
	if n.kind != isFile {
		return nil, fmt.Errorf("%s is no regular file", name)
	}
	return s.contents(n)
}

func (s *squashFS) contents(n inode) (out []byte, err error) {
	number := binary.LittleEndian
	at := n.start
	for sizes := n.sizes; len(sizes) > 0; sizes = sizes[4:] {
		size := number.Uint32(sizes)
		want := min(s.block, n.size-uint64(len(out)))
		if size == 0 { // a hole
			out = append(out, make([]byte, want)...)
			continue
		}
		block, err := s.blockAt(at, size)
		if err != nil || uint64(len(block)) != want {
			return nil, errors.Join(err, errSquash)
		}
		out, at = append(out, block...), at+uint64(size&^plainBlock)
	}
	if n.fragment == noFragment || uint64(len(out)) == n.size {
		return out, nil
	}
	const each, entry = metadataSize / 16, 16
	table := cut(s.data, s.fragments+n.fragment/each*8, 8)
	if table == nil {
		return nil, errSquash
	}
	m, err := s.from(number.Uint64(table), n.fragment%each*entry)
	if err != nil {
		return nil, err
	}
	where, err := m.take(entry)
	if err != nil {
		return nil, err
	}
	block, err := s.blockAt(number.Uint64(where), number.Uint32(where[8:]))
	if err != nil {
		return nil, err
	}
	tail := cut(block, n.offset, n.size-uint64(len(out)))
	if tail == nil {
		return nil, errSquash
	}
	return append(out, tail...), nil
}

// blockAt returns a block of a file, or one with the ends of several.
func (s *squashFS) blockAt(at uint64, size uint32) ([]byte, error) {
	packed := cut(s.data, at, uint64(size&^plainBlock))
	if packed == nil {
		return nil, errSquash
	}
	if size&plainBlock != 0 {
		return packed, nil
	}
	if s.content.bytes == nil || s.content.at != at {
		out, err := unpack(packed, s.block)
		if err != nil {
			return nil, err
		}
		s.content = unpacked{at: at, bytes: out}
	}
	return s.content.bytes, nil
}
