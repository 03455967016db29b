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
	nameSize = 256  // of the longest name
	// squashRatio is more than programs shrink by. A file that shrinks more is not read: a damaged image can say any size.
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
	work                    work
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
	s := &squashFS{data: data, meta: map[uint64]unpacked{}, work: mostWork, block: 1 << number.Uint16(head[22:]),
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
	if out = cut(s.data, at+2, size); out == nil || size > metadataSize {
		return nil, 0, errSquash
	}
	if err := s.work.spend(metadataSize); err != nil { // for a smaller one, too: the effort is much the same
		return nil, 0, err
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
func (m *stream) take(size int) ([]byte, error) {
	if size <= len(m.rest) {
		out := m.rest[:size:size]
		m.rest = m.rest[size:]
		return out, m.s.work.spend(size)
	}
	out := make([]byte, 0, size)
	for {
		n := min(size-len(out), len(m.rest))
		out, m.rest = append(out, m.rest[:n]...), m.rest[n:]
		if len(out) == size {
			return out, m.s.work.spend(size)
		}
		more, next, err := m.s.metadata(m.at)
		if err == nil && len(more) == 0 {
			err = errSquash
		}
		if err != nil {
			return nil, err
		}
		m.rest, m.at = more, next
	}
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
			length := int(number.Uint16(entry[6:])) + 1
			if length > nameSize {
				return errSquash
			}
			name, err := m.take(length)
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
	seen := map[uint64]bool{}
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
			if err := s.work.spend(entryWork); err != nil {
				return err
			}
			if name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
				return errSquash
			}
			switch kind {
			case isDirectory:
				return below(dir+name+"/", place)
			case isFile:
				return do(dir+name, func() (io.Reader, error) { return s.openAt(name, place) })
			}
			return nil
		})
	}
	return below("", s.root)
}

func (s *squashFS) open(name string) (io.Reader, error) {
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
	return s.openAt(name, place)
}

// openAt returns the bytes of the file whose inode is at a place.
func (s *squashFS) openAt(name string, place uint64) (io.Reader, error) {
	n, err := s.inode(place)
	if err != nil {
		return nil, err
	}
	if n.kind != isFile {
		return nil, fmt.Errorf("%s is no regular file", name)
	}
	return &squashFile{s: s, inode: n, at: n.start}, nil
}

// squashFile reads a file. It holds one block at a time, because a small image may have a large file.
type squashFile struct {
	s *squashFS
	inode
	at   uint64 // the next block
	read uint64 // bytes of the file before the rest
	rest []byte // of the block that was read last
}

func (f *squashFile) Read(p []byte) (int, error) {
	if len(f.rest) == 0 {
		if f.read == f.size {
			return 0, io.EOF
		}
		block, err := f.next()
		if err != nil {
			return 0, err
		}
		f.rest, f.read = block, f.read+uint64(len(block))
	}
	n := copy(p, f.rest)
	f.rest = f.rest[n:]
	return n, f.s.work.spend(n)
}

// next returns the next block of the file, which has at least one byte.
func (f *squashFile) next() ([]byte, error) {
	if len(f.sizes) == 0 {
		return f.tail()
	}
	size := binary.LittleEndian.Uint32(f.sizes)
	f.sizes = f.sizes[4:]
	want := min(f.s.block, f.size-f.read)
	if size == 0 { // a hole
		return zeros[:want], nil
	}
	block, err := f.s.blockAt(f.at, size)
	if err == nil && uint64(len(block)) != want {
		err = errSquash
	}
	f.at += uint64(size &^ plainBlock)
	return block, err
}

// zeros are as many as the largest block has.
var zeros [1 << 20]byte

// tail returns the end of the file, from a block with the ends of several.
func (f *squashFile) tail() ([]byte, error) {
	const each, entry = metadataSize / 16, 16
	number := binary.LittleEndian
	table := cut(f.s.data, f.s.fragments+f.fragment/each*8, 8)
	if f.fragment == noFragment || table == nil {
		return nil, errSquash
	}
	m, err := f.s.from(number.Uint64(table), f.fragment%each*entry)
	if err != nil {
		return nil, err
	}
	where, err := m.take(entry)
	if err != nil {
		return nil, err
	}
	block, err := f.s.blockAt(number.Uint64(where), number.Uint32(where[8:]))
	if err != nil {
		return nil, err
	}
	tail := cut(block, f.offset, f.size-f.read)
	if tail == nil {
		return nil, errSquash
	}
	return tail, nil
}

// blockAt returns a block of a file, or one with the ends of several. No kernel reads one that compression made larger.
func (s *squashFS) blockAt(at uint64, size uint32) ([]byte, error) {
	packed := cut(s.data, at, uint64(size&^plainBlock))
	if packed == nil || uint64(len(packed)) > s.block {
		return nil, errSquash
	}
	if size&plainBlock != 0 {
		return packed, nil
	}
	if s.content.bytes == nil || s.content.at != at {
		if err := s.work.spend(int(s.block)); err != nil {
			return nil, err
		}
		out, err := unpack(packed, s.block)
		if err != nil {
			return nil, err
		}
		s.content = unpacked{at: at, bytes: out}
	}
	return s.content.bytes, nil
}
