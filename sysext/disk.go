// SPDX-License-Identifier: Apache-2.0

package sysext

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"runtime"
	"slices"
	"strings"
)

// A partition table of the kind GPT: the places of what is read of the header in the second sector, and of an entry.
const (
	tableMagic = "EFI PART"
	headerSize = 92
	entrySize  = 128  // no other size is Linux's
	entries    = 1024 // a table that says that it has more is not read

	// notAutomatic is the flag of a partition that no program takes by its type.
	notAutomatic = 1 << 63
)

// role is what a partition is for: the directory of an image where it is mounted, on machines of an architecture.
type role struct{ place, architecture string }

// roles are the types of partitions that systemd takes from an image. They are of the Discoverable Partitions
// Specification.
var roles = map[string]role{
	"4f68bce3-e8cd-4db1-96e7-fbcaf984b709": {"", "amd64"},
	"8484680c-9521-48c6-9c11-b0720656f69e": {usr, "amd64"},
	"b921b045-1df0-41c3-af44-4c6f280d3fae": {"", "arm64"},
	"b0e01050-ee5f-4390-949a-9101b17104e9": {usr, "arm64"},
	"c31c45e6-3f39-412e-80fb-4809c4980599": {"", "ppc64le"},
	"15bb03af-77e7-4d4a-b12b-c0d084f7491c": {usr, "ppc64le"},
	"5eead9a9-fe09-4a1e-a1d7-520d00531306": {"", "s390x"},
	"8a4f5770-50aa-4ed3-874a-99b710db6fea": {usr, "s390x"},
	"72ec70a6-cf74-40e6-bd49-4bda08e8f224": {"", "riscv64"},
	"beaec34b-8442-439b-a40b-984381ed097d": {usr, "riscv64"},
}

// anyLinux is the type of a partition for any purpose. The only one is the whole, where none has a role.
const anyLinux = "0fc63daf-8483-4772-8e79-3d69d8477de4"

// partition is a partition of an image, with its type and its own UUID in lower case.
type partition struct {
	kind, id string
	data     []byte
}

// partitions returns the partitions of an image that may be taken by their type. The result is nil for an image without
// a whole table. The bytes are those of data.
func partitions(data []byte) (out []partition) {
	for sector := uint64(512); sector <= 4096; sector *= 2 {
		header := cut(data, sector, headerSize)
		if !bytes.HasPrefix(header, []byte(tableMagic)) {
			continue
		}
		number := binary.LittleEndian
		summed := bytes.Clone(header)
		clear(summed[16:20])
		if number.Uint32(header[12:]) != headerSize || number.Uint32(header[16:]) != crc32.ChecksumIEEE(summed) ||
			number.Uint32(header[84:]) != entrySize {
			return nil
		}
		if number.Uint32(header[80:]) > entries {
			return nil
		}
		table := sectors(data, sector, number.Uint64(header[72:]), entrySize*uint64(number.Uint32(header[80:])))
		if table == nil || number.Uint32(header[88:]) != crc32.ChecksumIEEE(table) {
			return nil
		}
		for ; len(table) > 0; table = table[entrySize:] {
			first, last := number.Uint64(table[32:]), number.Uint64(table[40:])
			size := uint64(len(data)) / sector
			if last < first || last >= size || number.Uint64(table[48:])&notAutomatic != 0 {
				continue
			}
			out = append(out, partition{uuid(table), uuid(table[16:]),
				sectors(data, sector, first, (last-first+1)*sector)})
		}
		return out
	}
	return nil
}

// cut returns size bytes from a place on, nil where there are none.
func cut(data []byte, from, size uint64) []byte {
	all := uint64(len(data))
	if from > all || size > all-from {
		return nil
	}
	return data[from : from+size : from+size]
}

// sectors is cut for a place in sectors.
func sectors(data []byte, sector, first, size uint64) []byte {
	if first > uint64(len(data))/sector {
		return nil
	}
	return cut(data, first*sector, size)
}

// uuid reads a UUID as a partition table has it: three numbers, the last byte first, and eight bytes.
func uuid(b []byte) string {
	number := binary.LittleEndian
	return fmt.Sprintf("%08x-%04x-%04x-%x-%x", number.Uint32(b), number.Uint16(b[4:]), number.Uint16(b[6:]), b[8:10],
		b[10:16])
}

// rootHash is the hash over the hashes of a file system with verity, from the file beside an image, and the directory
// where the file system is mounted.
type rootHash struct {
	file, place string
	value       []byte
}

// ids returns the UUIDs of the two partitions that the hash belongs to: the one with the file system, and the one with
// its hashes.
func (h *rootHash) ids() (data, hashes string) {
	text := func(b []byte) string { return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:16]) }
	return text(h.value), text(h.value[len(h.value)-16:])
}

// places returns the partitions of an image that systemd mounts for an extension, by the directory. wrong says why
// systemd mounts none, "" where it may.
func places(all []partition, hash *rootHash) (at map[string][]byte, wrong string) {
	if len(all) == 0 {
		return nil, ""
	}
	at = map[string][]byte{}
	for _, place := range []string{"", usr} {
		found := candidates(all, place, hash)
		if len(found) > 1 {
			return nil, "" // systemd compares their names
		}
		if len(found) == 1 {
			at[place] = found[0].data
		}
	}
	isAny := func(p partition) bool { return p.kind == anyLinux }
	if i := slices.IndexFunc(all, isAny); hash == nil && len(at) == 0 && i >= 0 && !slices.ContainsFunc(all[i+1:], isAny) {
		at[""] = all[i].data
	}
	if hash == nil {
		return at, ""
	}
	_, hashes := hash.ids()
	if at[hash.place] == nil || !slices.ContainsFunc(all, func(p partition) bool { return p.id == hashes }) {
		return nil, fmt.Sprintf("%s is not the hash of a partition for %s in the image: bring the two files that were made "+
			"together", hash.file, "/"+strings.TrimSuffix(hash.place, "/"))
	}
	return at, ""
}

// candidates returns the partitions for a place: those for this machine, or those for other ones where there are none.
func candidates(all []partition, place string, hash *rootHash) []partition {
	var own, foreign []partition
	for _, p := range all {
		if hash != nil && hash.place == place {
			if data, _ := hash.ids(); p.id != data {
				continue
			}
		}
		switch r := roles[p.kind]; {
		case r == role{place, runtime.GOARCH}:
			own = append(own, p)
		case r.architecture != "" && r.place == place:
			foreign = append(foreign, p)
		}
	}
	if len(own) > 0 {
		return own
	}
	return foreign
}
