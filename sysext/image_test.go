// SPDX-License-Identifier: Apache-2.0

package sysext

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/adler32"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/noderefit/noderefit/machineconfig"
)

// made returns an image in testdata. They were made by mkfs.erofs 1.5 (-zlz4hc), veritysetup 2.6.1 and sfdisk 2.38, and by
// mksquashfs 4.5.1 (-b 4096), and have an extension x for version 12 of Debian.
func made(t testing.TB, name string) string {
	t.Helper()
	packed, err := os.ReadFile("testdata/" + name + ".raw.gz")
	if err != nil {
		t.Fatal(err)
	}
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// diskHash is the hash over all hashes of testdata/disk.raw.
const diskHash = "24dc8017cf657598dbd7635f4b9afbdc622a7ff45e4c6eac548bf1168fd856cd"

// bringing returns a configuration with an image x.raw, and with files beside it.
func bringing(image string, beside ...machineconfig.File) *machineconfig.Config {
	return &machineconfig.Config{Files: append(beside, file("/etc/extensions/x.raw", image))}
}

// says returns what is wrong with the extensions of a configuration on Debian 13.
func says(cfg *machineconfig.Config) string {
	var all []string
	for _, w := range Judge(cfg, []byte("ID=debian\nVERSION_ID=13\n"), false) {
		all = append(all, w.Place+": "+w.Reason)
	}
	return strings.Join(all, "; ")
}

// all returns the bytes of a reader.
func all(r io.Reader, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

// inImage returns the files of an extension that are laid over the host. A file that can't be read is "?".
func inImage(t *testing.T, cfg *machineconfig.Config) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, e := range Of(cfg) {
		img, _ := e.image(cfg)
		if err := e.each(cfg, img, func(at string, open func() (io.Reader, error)) error {
			data, err := all(open())
			if err != nil {
				data = []byte("?")
			}
			found[at] = string(data)
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
	return found
}

func numbers(last int) string {
	var b strings.Builder
	for i := range last {
		fmt.Fprintln(&b, i+1)
	}
	return b.String()
}

func TestImagesAsToolsMakeThemAreRead(t *testing.T) {
	const release = "/usr/lib/extension-release.d/extension-release.x"
	for name, want := range map[string]map[string]string{
		"disk": {release: "ID=debian\nVERSION_ID=12\n", "/usr/bin/x": "two", "/usr/bin/long": "?"}, // that one is compressed
		"squashfs": {release: "ID=debian\nVERSION_ID=12\n", "/usr/bin/x": "two", "/usr/share/long": numbers(3000),
			"/usr/share/hole": strings.Repeat("\x00", 9000)},
	} {
		if name == "squashfs" {
			for i := range 300 {
				want[fmt.Sprintf("/usr/share/many/file-with-a-long-name-%d", i+1)] = fmt.Sprintln(i + 1)
			}
		}
		cfg := bringing(made(t, name))
		found := inImage(t, cfg)
		if len(found) != len(want) {
			t.Errorf("%s: %d files, not %d", name, len(found), len(want))
		}
		for at, text := range want {
			if found[at] != text {
				t.Errorf("%s: %s has %.40q, not %.40q", name, at, found[at], text)
			}
		}
		if got := says(cfg); !strings.Contains(got, "x.raw: usr/lib/extension-release.d/extension-release.x says VERSION_ID=12") {
			t.Errorf("%s: %q", name, got)
		}
		cfg.Files[0].Path = "/etc/extensions/other.raw"
		if got := says(cfg); got != "" { // systemd takes the release where an attribute of the file says so
			t.Errorf("%s under another name: %q", name, got)
		}
		linked := &machineconfig.Config{Files: []machineconfig.File{file("/var/lib/x-12.raw", made(t, name))},
			Links: []machineconfig.Link{{Path: "/etc/extensions/x.raw", Target: "/var/lib/x-12.raw"}}}
		if got := says(linked); !strings.Contains(got, "says VERSION_ID=12") {
			t.Errorf("%s behind a link: %q", name, got)
		}
	}
}

// part is a partition of an image that a test makes.
type part struct {
	kind, id    string
	first, last uint64 // sectors; 0 for where data comes to lie
	flags       uint64
	data        string
}

// uuidBytes are those of a UUID in a partition table.
func uuidBytes(t *testing.T, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(text, "-", ""))
	if err != nil || len(b) != 16 {
		t.Fatalf("%q: %v", text, err)
	}
	for _, r := range [][]byte{b[:4], b[4:6], b[6:8]} {
		for i, j := 0, len(r)-1; i < j; i, j = i+1, j-1 {
			r[i], r[j] = r[j], r[i]
		}
	}
	return b
}

// table makes a disk image. change has the header before its checksum is made.
func table(t *testing.T, sector int, change func(header []byte), parts ...part) string {
	t.Helper()
	number := binary.LittleEndian
	list := make([]byte, 128*128)
	image := make([]byte, 40*sector+len(list))
	for i, p := range parts {
		entry := list[128*i:]
		if p.id == "" {
			p.id = fmt.Sprintf("%032x", i+1)
		}
		copy(entry, uuidBytes(t, p.kind))
		copy(entry[16:], uuidBytes(t, p.id))
		if p.last == 0 {
			p.first = uint64(len(image) / sector)
			image = slices.Concat(image, []byte(p.data))
			image = slices.Concat(image, make([]byte, (sector-len(image)%sector)%sector))
			p.last = uint64(len(image)/sector) - 1
		}
		number.PutUint64(entry[32:], p.first)
		number.PutUint64(entry[40:], p.last)
		number.PutUint64(entry[48:], p.flags)
	}
	copy(image[2*sector:], list)
	header := image[sector:]
	copy(header, "EFI PART\x00\x00\x01\x00")
	for at, value := range map[int]uint32{12: 92, 24: 1, 72: 2, 80: 128, 84: 128, 88: crc32.ChecksumIEEE(list)} {
		number.PutUint32(header[at:], value)
	}
	change(header)
	number.PutUint32(header[16:], 0)
	number.PutUint32(header[16:], crc32.ChecksumIEEE(header[:92]))
	return string(image)
}

func TestTheRightPartitionOfADiskIsRead(t *testing.T) {
	number := binary.LittleEndian
	roots, usrs := map[string]string{}, map[string]string{}
	for kind, r := range roles {
		if r.place == usr {
			usrs[r.architecture] = kind
		} else {
			roots[r.architecture] = kind
		}
	}
	mine, foreign := runtime.GOARCH, "s390x"
	if mine == foreign {
		foreign = "amd64"
	}
	if roots[mine] == "" || usrs[mine] == "" || len(roots) != len(architectures) || len(usrs) != len(architectures) {
		t.Fatal("an architecture has no types")
	}
	files := func(version string, below string) string {
		return image(t, map[string]string{below + "lib/extension-release.d/extension-release.x": "ID=debian\nVERSION_ID=" + version + "\n"})
	}
	old, whole := files("12", ""), files("12", "usr/")
	const reads, nothing = "says VERSION_ID=12", ""
	const data, hashes = "00112233-4455-6677-8899-aabbccddeeff", "ffeeddcc-bbaa-9988-7766-554433221100"
	hash := strings.ReplaceAll(data+hashes, "-", "") + "\n"
	same := func([]byte) {}
	for name, c := range map[string]struct {
		image string
		hash  string // the file beside it
		says  string
	}{
		"/usr":                      {table(t, 512, same, part{kind: usrs[mine], data: old}), "", reads},
		"/":                         {table(t, 512, same, part{kind: roots[mine], data: whole}), "", reads},
		"large sectors":             {table(t, 4096, same, part{kind: usrs[mine], data: old}), "", reads},
		"another machine's":         {table(t, 512, same, part{kind: usrs[foreign], data: old}), "", reads},
		"one's own before others":   {table(t, 512, same, part{kind: usrs[foreign], data: files("13", "")}, part{kind: usrs[mine], data: old}), "", reads},
		"two of a kind":             {table(t, 512, same, part{kind: usrs[mine], data: old}, part{kind: usrs[mine], data: old}), "", nothing},
		"/usr over that of /":       {table(t, 512, same, part{kind: usrs[mine], data: old}, part{kind: roots[mine], data: files("13", "usr/")}), "", reads},
		"not to be taken":           {table(t, 512, same, part{kind: usrs[mine], data: old, flags: 1 << 63}), "", nothing},
		"read-only":                 {table(t, 512, same, part{kind: usrs[mine], data: old, flags: 1 << 60}), "", reads},
		"any Linux":                 {table(t, 512, same, part{kind: anyLinux, data: whole}), "", reads},
		"any Linux twice":           {table(t, 512, same, part{kind: anyLinux, data: whole}, part{kind: anyLinux, data: whole}), "", nothing},
		"any Linux beside /usr":     {table(t, 512, same, part{kind: anyLinux, data: whole}, part{kind: usrs[mine], data: files("13", "")}), "", nothing},
		"any Linux beside a hash":   {table(t, 512, same, part{kind: anyLinux, id: data, data: whole}, part{kind: roots[foreign], id: hashes, data: "x"}), "roothash", "x.roothash is not the hash of a partition for / in"},
		"another kind":              {table(t, 512, same, part{kind: "c12a7328-f81f-11d2-ba4b-00a0c93ec93b", data: whole}), "", nothing},
		"an unknown file system":    {table(t, 512, same, part{kind: roots[mine], data: strings.Repeat("x", 4096)}), "", nothing},
		"the hash of two of a kind": {table(t, 512, same, part{kind: usrs[mine], data: files("13", "")}, part{kind: usrs[mine], id: data, data: old}, part{kind: anyLinux, id: hashes, data: "x"}), "usrhash", reads},
		"a hash without hashes":     {table(t, 512, same, part{kind: usrs[mine], id: data, data: old}), "usrhash", "x.usrhash is not the hash of a partition for /usr"},
		"the hash of another image": {table(t, 512, same, part{kind: usrs[mine], data: old}, part{kind: anyLinux, id: hashes, data: "x"}), "usrhash", "x.usrhash is not the hash"},
		"a hash for /":              {table(t, 512, same, part{kind: usrs[mine], id: data, data: old}, part{kind: usrs[foreign], id: hashes, data: "x"}), "roothash", "x.roothash is not the hash of a partition for / in"},
		"a hash for no table":       {strings.Repeat("x", 8192), "roothash", nothing},

		// Damaged tables are no tables.
		"entries beyond the image": {table(t, 512, same, part{kind: usrs[mine], first: 40, last: 1 << 40}), "", nothing},
		"at the end of numbers":    {table(t, 512, same, part{kind: usrs[mine], first: 1<<64 - 2, last: 1<<64 - 1}), "", nothing},
		"the end before the start": {table(t, 512, same, part{kind: usrs[mine], first: 70, last: 60}), "", nothing},
		"over the table":           {table(t, 512, same, part{kind: usrs[mine], first: 0, last: 50}), "", nothing},
		"over each other":          {table(t, 512, same, part{kind: usrs[mine], data: old}, part{kind: roots[mine], first: 0, last: 72}), "", nothing},
		"many entries":             {table(t, 512, func(h []byte) { number.PutUint32(h[80:], 1<<32-1) }, part{kind: usrs[mine], data: old}), "", nothing},
		"large entries":            {table(t, 512, func(h []byte) { number.PutUint32(h[84:], 1<<32-1) }, part{kind: usrs[mine], data: old}), "", nothing},
		"small entries":            {table(t, 512, func(h []byte) { number.PutUint32(h[84:], 0) }, part{kind: usrs[mine], data: old}), "", nothing},
		"a table far away":         {table(t, 512, func(h []byte) { number.PutUint64(h[72:], 1<<64-1) }, part{kind: usrs[mine], data: old}), "", nothing},
		"a large header":           {table(t, 512, func(h []byte) { number.PutUint32(h[12:], 1<<32-1) }, part{kind: usrs[mine], data: old}), "", nothing},
		"changed entries":          {table(t, 512, func(h []byte) { h[88]++ }, part{kind: usrs[mine], data: old}), "", nothing},
		"no entries":               {table(t, 512, func(h []byte) { number.PutUint32(h[80:], 0); number.PutUint32(h[88:], 0) }), "", nothing},
		"the header alone":         {table(t, 512, same, part{kind: usrs[mine], data: old})[:512+92], "", nothing},
		"a changed header":         {strings.Replace(table(t, 512, same, part{kind: usrs[mine], data: old}), "EFI PART\x00", "EFI PART\x01", 1), "", nothing},
	} {
		t.Run(name, func(t *testing.T) {
			var beside []machineconfig.File
			if c.hash != "" {
				beside = append(beside, file("/etc/extensions/x."+c.hash, hash))
			}
			cfg := bringing(c.image, beside...)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			got := says(cfg)
			runtime.ReadMemStats(&after)
			if c.says == "" != (got == "") || !strings.Contains(got, c.says) {
				t.Errorf("%q does not say %q", got, c.says)
			}
			if used := after.TotalAlloc - before.TotalAlloc; used > 4<<20 {
				t.Errorf("%d bytes of memory for an image of %d", used, len(c.image))
			}
		})
	}
}

func TestATableOfManyPartitionsIsNotRead(t *testing.T) {
	const many = 1 << 16
	number := binary.LittleEndian
	data := make([]byte, 2*512+128*many)
	list := data[2*512:]
	for i := range many {
		for kind := range roles {
			copy(list[128*i:], uuidBytes(t, kind))
		}
		list[128*i+32], list[128*i+40] = 40, 40
	}
	header := data[512:]
	copy(header, "EFI PART\x00\x00\x01\x00")
	for at, value := range map[int]uint32{12: 92, 72: 2, 80: many, 84: 128, 88: crc32.ChecksumIEEE(list)} {
		number.PutUint32(header[at:], value)
	}
	number.PutUint32(header[16:], crc32.ChecksumIEEE(header[:92]))
	if found := partitions(data); found != nil {
		t.Errorf("%d partitions", len(found))
	}
	number.PutUint32(header[80:], 2)
	number.PutUint32(header[88:], crc32.ChecksumIEEE(list[:256]))
	number.PutUint32(header[16:], 0)
	number.PutUint32(header[16:], crc32.ChecksumIEEE(header[:92]))
	if found := partitions(data); len(found) != 2 {
		t.Errorf("%d partitions of 2", len(found))
	}
}

func TestAHashBelongsToItsImage(t *testing.T) {
	disk := made(t, "disk")
	for hash, want := range map[string]string{
		diskHash:                  "says VERSION_ID=12",
		diskHash[:63] + "0":       "x.usrhash is not the hash of a partition for /usr in the image",
		strings.Repeat("0", 64):   "x.usrhash is not the hash",
		"no hash":                 "x.usrhash has no hash in its first line",
		"":                        "x.usrhash has no hash",
		"\n" + diskHash:           "x.usrhash has no hash",
		diskHash + "\nof x\n":     "says VERSION_ID=12",
		strings.ToUpper(diskHash): "says VERSION_ID=12",
		" " + diskHash + " \n\n":  "says VERSION_ID=12",
		diskHash + "\rx":          "says VERSION_ID=12",
		diskHash + "\x00x":        "says VERSION_ID=12",
		diskHash + "\u00a0":       "x.usrhash has no hash",
		diskHash[:30]:             "x.usrhash has no hash",
		diskHash[:63]:             "x.usrhash has no hash",
	} {
		got := says(bringing(disk, file("/etc/extensions/x.usrhash", hash)))
		if !strings.Contains(got, want) {
			t.Errorf("%q: %q does not say %q", hash, got, want)
		}
	}
}

// ask asks all that is asked of an image.
func ask(data []byte) {
	cfg := bringing(string(data), file("/etc/extensions/x.usrhash", diskHash))
	Judge(cfg, []byte("ID=debian\n"), false)
	for _, e := range Of(cfg) {
		img, _ := e.image(cfg)
		_ = e.each(cfg, img, func(_ string, open func() (io.Reader, error)) error {
			if r, err := open(); err == nil {
				_, _ = io.Copy(io.Discard, r) // any answer is one
			}
			return nil
		})
	}
}

// The author of a MachineConfig can bring any bytes as an image. The agent judges them, and must not stop.
func TestADamagedImageEndsInAnAnswer(t *testing.T) {
	const whole, metadata = 0, 2000
	small := image(t, map[string]string{"usr/lib/extension-release.d/extension-release.x": "ID=debian\n", "usr/bin/x": "two",
		"usr/bin/y": "three", "opt/a/b": "c"})
	disk, squash := made(t, "disk"), made(t, "squashfs")
	random := rand.New(rand.NewPCG(1, 2))
	for name, c := range map[string]struct {
		image    string
		from, to int
	}{
		"erofs":                   {small, 1024, len(small)},
		"a table":                 {disk, 512, 3000},
		"a disk":                  {disk, 512, len(disk)},
		"the first of a squashfs": {squash, 4, 96},
		"the end of one":          {squash, len(squash) - metadata, len(squash)},
		"a squashfs":              {squash, whole, len(squash)},
	} {
		t.Run(name, func(*testing.T) {
			for range 200 {
				data := []byte(c.image)
				for range 1 + random.IntN(6) {
					data[c.from+random.IntN(c.to-c.from)] = byte(random.IntN(256))
				}
				ask(data)
			}
		})
	}
}

// squashWords are numbers as a squashfs has them.
func squashWords(values ...uint32) (out []byte) {
	for _, v := range values {
		out = binary.LittleEndian.AppendUint32(out, v)
	}
	return out
}

// squashEntry is what a directory has of a file.
func squashEntry(offset, kind uint16, name string) []byte {
	out := binary.LittleEndian.AppendUint16(nil, offset)
	out = binary.LittleEndian.AppendUint16(out, 0)
	out = binary.LittleEndian.AppendUint16(out, kind)
	return append(binary.LittleEndian.AppendUint16(out, uint16(len(name)-1)), name...)
}

// squashBlocks are blocks of metadata, each with as many bytes as size says.
func squashBlocks(size int, b ...[]byte) (out []byte) {
	for piece := range slices.Chunk(bytes.Join(b, nil), size) {
		out = append(binary.LittleEndian.AppendUint16(out, uint16(len(piece))|0x8000), piece...)
	}
	return out
}

// squashOf is a squashfs with these tables.
func squashOf(inodes, dirs []byte) []byte {
	number := binary.LittleEndian
	image := append(make([]byte, 96), "text"...)
	copy(image, squashMagic)
	for at, value := range map[int]uint16{20: squashGzip, 22: 12, 28: 4} {
		number.PutUint16(image[at:], value)
	}
	number.PutUint64(image[64:], uint64(len(image)))
	image = append(image, inodes...)
	number.PutUint64(image[72:], uint64(len(image)))
	image = append(image, dirs...)
	number.PutUint64(image[80:], uint64(len(image)))
	return image
}

func squashInode(kind uint32) []byte { return squashWords(kind, 0, 0, 1) }

// plainSquash is a squashfs whose metadata is not compressed, so that damage reaches what it says.
func plainSquash() []byte {
	list := append(squashWords(1, 0, 1), append(squashEntry(32, isDirectory, "usr"), squashEntry(64, isFile, "file")...)...)
	inner := append(squashWords(0, 0, 1), squashEntry(64, isFile, "file")...)
	return squashOf(squashBlocks(metadataSize, squashInode(isDirectory), squashWords(0, 2, uint32(len(list)+3), 1),
		squashInode(isDirectory), squashWords(0, 2, uint32(len(inner)+3)|uint32(len(list))<<16, 1),
		squashInode(isFile), squashWords(96, noFragment, 0, 4, 4|plainBlock)),
		squashBlocks(metadataSize, list, inner))
}

// squashOfHoles is a squashfs with one large file that is a hole, by many names. Its metadata is in blocks of a size.
func squashOfHoles(size uint32, block int, names ...string) string {
	var list []byte
	where, at := uint32(0), uint16(40)
	if block < metadataSize {
		where, at = uint32(at)*uint32(block+2)/uint32(block), 0
	}
	for some := range slices.Chunk(names, 256) {
		list = append(list, squashWords(uint32(len(some)-1), where, 1)...)
		for _, name := range some {
			list = append(list, squashEntry(at, isFile, name)...)
		}
	}
	image := squashOf(squashBlocks(block, squashInode(isLongDirectory), squashWords(2, uint32(len(list)+3), 0, 1, 0, 0),
		squashInode(isFile), squashWords(96, noFragment, 0, size), make([]byte, size/4096*4)), squashBlocks(block, list))
	return string(append(image, make([]byte, size/squashRatio)...))
}

// An image of a few bytes can say that it has large files, many times, and in the smallest of pieces.
func TestASmallImageTakesLittle(t *testing.T) {
	const large = 64 << 20
	many := make([]string, 200)
	for i := range many {
		many[i] = fmt.Sprintf("usr-%d", i)
	}
	for name, c := range map[string]struct {
		image string
		read  int64 // bytes of its files
		fails error
	}{
		"a large file":              {squashOfHoles(large, metadataSize, "f"), large, nil},
		"in pieces of a byte":       {squashOfHoles(large, 1, "f"), large, nil},
		"names of any size":         {squashOfHoles(large, 1, strings.Repeat("n", 1<<16)), 0, errSquash},
		"more names than are read":  {squashOfHoles(large, 1, many...), 7 * large, errWork},
		"more bytes than are read":  {squashOfHoles(large, metadataSize, many...), mostWork, errWork},
		"a name a million times":    {squashOfHoles(0, metadataSize, slices.Repeat([]string{"f"}, 1<<20)...), 0, errWork},
		"a name that leads further": {squashOfHoles(large, metadataSize, ".."), 0, errSquash},
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			read := int64(0)
			err := openSquash([]byte(c.image)).walk(func(_ string, open func() (io.Reader, error)) error {
				if r, err := open(); err == nil {
					n, _ := io.Copy(io.Discard, r)
					read += n
				}
				return nil
			})
			runtime.ReadMemStats(&after)
			if !errors.Is(err, c.fails) || read > c.read || read < c.read-large {
				t.Errorf("%d bytes were read, not %d: %v", read, c.read, err)
			}
			if used := int64(after.TotalAlloc-before.TotalAlloc) - int64(len(c.image)); used > 64<<20 {
				t.Errorf("%d bytes of memory for an image of %d", used, len(c.image))
			}
		})
	}
}

// hostWithAll has all files of an extension.
type hostWithAll struct{}

func (hostWithAll) ReadFile(string) ([]byte, error) { return []byte("x\n"), nil }

func (hostWithAll) Has(_ string, want io.Reader) (bool, error) {
	_, err := io.Copy(io.Discard, want)
	return err == nil, err
}

// systemd has merged the image: that the agent does not read all of it is no reason to go back.
func TestAnImageWithMoreThanIsReadIsProvedAsFarAsItGoes(t *testing.T) {
	cfg := bringing(made(t, "squashfs"))
	img, _ := Of(cfg)[0].image(cfg)
	for left := work(0); left < 1<<16; left += 512 {
		img.(*squashFS).work = left
		err := img.walk(func(at string, open func() (io.Reader, error)) error {
			_, err := shown(hostWithAll{}, at, open)
			return err
		})
		if err != nil && !errors.Is(err, errWork) {
			t.Errorf("with %d: %v", left, err)
		}
	}
	for _, text := range []string{made(t, "squashfs"), made(t, "disk")} {
		if err := Merged(hostWithAll{}, bringing(text)); err != nil {
			t.Error(err)
		}
	}
	disk, _ := Of(bringing(made(t, "disk")))[0].image(bringing(made(t, "disk")))
	listed := disk.(mounted)[usr]
	listed.(*erofsFS).work = 2 * entryWork
	if err := listed.walk(func(string, func() (io.Reader, error)) error { return nil }); !errors.Is(err, errWork) {
		t.Errorf("lists of any length are walked: %v", err)
	}
	var e erofsFS
	e.FS, e.bytes, e.work = fstest.MapFS{"a": {Data: []byte("abc")}}, 3, 3
	for _, want := range []error{nil, errWork} {
		if got, err := all(e.open("a")); !errors.Is(err, want) {
			t.Errorf("read %q: %v, not %v", got, err, want)
		}
	}
}

func FuzzImages(f *testing.F) {
	f.Add([]byte(made(f, "disk")))
	f.Add([]byte(made(f, "squashfs")))
	f.Add(plainSquash())
	f.Fuzz(func(_ *testing.T, data []byte) { ask(data) })
}

func TestASquashfsIsReadAsFarAsItGoes(t *testing.T) {
	number := binary.LittleEndian
	whole := plainSquash()
	inodes := int(number.Uint64(whole[64:])) + 2
	for name, c := range map[string]struct {
		change func(b []byte)
		read   string // of usr/file, "" for an error
		walked int    // files, -1 for an error
	}{
		"whole": {func([]byte) {}, "text", 2},
		"a directory in itself": {func(b []byte) {
			number.PutUint16(b[inodes+32+24:], number.Uint16(b[inodes+24:]))
			number.PutUint16(b[inodes+32+26:], 0)
		}, "text", -1},
		"a file of any size":     {func(b []byte) { number.PutUint32(b[inodes+64+28:], 1<<31) }, "", 2},
		"a block of any size":    {func(b []byte) { number.PutUint32(b[inodes+64+32:], 0xFFFFFF|plainBlock) }, "", 2},
		"a hole":                 {func(b []byte) { number.PutUint32(b[inodes+64+32:], 0) }, "\x00\x00\x00\x00", 2},
		"a block somewhere else": {func(b []byte) { number.PutUint32(b[inodes+64+16:], 1<<31) }, "", 2},
		"no such fragment":       {func(b []byte) { number.PutUint32(b[inodes+64+20:], 1<<31) }, "", 2},
		"a link":                 {func(b []byte) { number.PutUint16(b[inodes+64:], 3) }, "", 2},
		"a block that compression made larger": {func(b []byte) {
			at := len(b) - 6000 // of what follows the tables
			packed := append([]byte{0x78, 1}, bytes.Repeat([]byte{0, 0, 0, 0xFF, 0xFF}, 1000)...)
			packed = append(packed, 1, 4, 0, 0xFB, 0xFF, 't', 'e', 'x', 't')
			packed = binary.BigEndian.AppendUint32(packed, adler32.Checksum([]byte("text")))
			copy(b[at:], packed)
			number.PutUint32(b[inodes+64+16:], uint32(at))
			number.PutUint32(b[inodes+64+32:], uint32(len(packed)))
		}, "", 2},
		"another version": {func(b []byte) { number.PutUint16(b[28:], 5) }, "", 0},
		"zstd":            {func(b []byte) { number.PutUint16(b[20:], 6) }, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			data := append(bytes.Clone(whole), make([]byte, 6000)...)
			c.change(data)
			s := openSquash(data)
			if s == nil {
				if c.walked != 0 {
					t.Error("it can't be opened")
				}
				return
			}
			if got, err := all(s.open("usr/file")); string(got) != c.read || c.read == "" && err == nil {
				t.Errorf("read %q, %v", got, err)
			}
			walked := 0
			if err := s.walk(func(string, func() (io.Reader, error)) error { walked++; return nil }); err != nil {
				walked = -1
			}
			if walked != c.walked {
				t.Errorf("%d files, not %d", walked, c.walked)
			}
		})
	}
}
