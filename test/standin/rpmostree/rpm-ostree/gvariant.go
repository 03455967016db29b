// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// errVariant is serialised data that does not have the type that it should have.
var errVariant = errors.New("malformed GVariant data")

// variant reads a value of GVariant's serialised form, little-endian, as ostree writes its commits and the state of a
// staged deployment: strings, []string for as, map[string]any for a{sv}, []any for other arrays and tuples, []byte for
// ay, Go's own types for the rest.
func variant(kind string, data []byte) (any, error) {
	switch kind[0] {
	case 'b':
		return len(data) == 1 && data[0] != 0, nil
	case 'y':
		if len(data) != 1 {
			return nil, errVariant
		}
		return data[0], nil
	case 'n', 'q', 'i', 'u', 'h', 'x', 't', 'd':
		return number(kind[0], data)
	case 's', 'o', 'g':
		text, ok := bytes.CutSuffix(data, []byte{0})
		if !ok {
			return nil, errVariant
		}
		return string(text), nil
	case 'v':
		at := bytes.LastIndexByte(data, 0)
		if at < 0 || at == len(data)-1 {
			return nil, errVariant
		}
		inner := string(data[at+1:])
		if typeEnd(inner) != len(inner) {
			return nil, errVariant
		}
		return variant(inner, data[:at])
	case 'a':
		return array(kind[1:], data)
	case '(', '{':
		return tuple(kind[1:len(kind)-1], data)
	}
	return nil, fmt.Errorf("%w: type %q", errVariant, kind)
}

func number(kind byte, data []byte) (any, error) {
	if size, _ := layout(string(kind)); size != len(data) {
		return nil, errVariant
	}
	switch kind {
	case 'n':
		return int16(binary.LittleEndian.Uint16(data)), nil
	case 'q':
		return binary.LittleEndian.Uint16(data), nil
	case 'i', 'h':
		return int32(binary.LittleEndian.Uint32(data)), nil
	case 'u':
		return binary.LittleEndian.Uint32(data), nil
	case 'x':
		return int64(binary.LittleEndian.Uint64(data)), nil
	}
	return binary.LittleEndian.Uint64(data), nil
}

// array reads the elements, which are either of one size or have their ends listed behind the last of them.
func array(element string, data []byte) (any, error) {
	size, align := layout(element)
	if element == "y" {
		return data, nil
	}
	var parts [][]byte
	if size > 0 {
		for at := 0; at+size <= len(data); at += size {
			parts = append(parts, data[at:at+size])
		}
	} else if len(data) > 0 {
		width := offsetWidth(len(data))
		table, err := offset(data, len(data)-width, width)
		if err != nil {
			return nil, err
		}
		start := 0
		for at := table; at < len(data); at += width {
			end, err := offset(data, at, width)
			start = aligned(start, align)
			if err != nil || start > end || end > table {
				return nil, errVariant
			}
			parts = append(parts, data[start:end])
			start = end
		}
	}
	texts, dict, all := []string{}, map[string]any{}, []any{}
	for _, part := range parts {
		value, err := variant(element, part)
		if err != nil {
			return nil, err
		}
		switch pair, isPair := value.([]any); {
		case element == "s":
			texts = append(texts, value.(string))
		case element == "{sv}" && isPair:
			dict[pair[0].(string)] = pair[1]
		default:
			all = append(all, value)
		}
	}
	switch element {
	case "s":
		return texts, nil
	case "{sv}":
		return dict, nil
	}
	return all, nil
}

// tuple reads members, of which those without a fixed size have their ends listed backwards from the end of the data,
// but for the last one.
func tuple(members string, data []byte) (any, error) {
	width, at, table := offsetWidth(len(data)), 0, len(data)
	all := []any{}
	for members != "" {
		n := typeEnd(members)
		if n == 0 {
			return nil, errVariant
		}
		member := members[:n]
		members = members[n:]
		size, align := layout(member)
		at = aligned(at, align)
		end := at + size
		if size == 0 && members == "" {
			end = table
		} else if size == 0 {
			table -= width
			var err error
			if end, err = offset(data, table, width); err != nil {
				return nil, err
			}
		}
		if at > end || end > len(data) {
			return nil, errVariant
		}
		value, err := variant(member, data[at:end])
		if err != nil {
			return nil, err
		}
		all = append(all, value)
		at = end
	}
	return all, nil
}

// typeEnd is the length of the first complete type of a signature, 0 if there is none.
func typeEnd(signature string) int {
	if signature == "" {
		return 0
	}
	switch signature[0] {
	case 'a', 'm':
		if n := typeEnd(signature[1:]); n > 0 {
			return n + 1
		}
		return 0
	case '(', '{':
		depth := 0
		for i, c := range signature {
			switch c {
			case '(', '{':
				depth++
			case ')', '}':
				depth--
			}
			if depth == 0 {
				return i + 1
			}
		}
		return 0
	}
	if strings.ContainsRune("bynqiuhxtdsogv", rune(signature[0])) {
		return 1
	}
	return 0
}

// layout is the size of a type, 0 where its values differ in it, and its alignment.
func layout(kind string) (size, align int) {
	switch kind[0] {
	case 'b', 'y':
		return 1, 1
	case 'n', 'q':
		return 2, 2
	case 'i', 'u', 'h':
		return 4, 4
	case 'x', 't', 'd':
		return 8, 8
	case 'v':
		return 0, 8
	case 'a', 'm':
		_, align = layout(kind[1:])
		return 0, align
	case '(', '{':
		align = 1
		fixed := true
		for members := kind[1 : len(kind)-1]; members != ""; {
			n := typeEnd(members)
			if n == 0 {
				return 0, align
			}
			s, a := layout(members[:n])
			fixed = fixed && s > 0
			size, align = aligned(size, a)+s, max(align, a)
			members = members[n:]
		}
		if !fixed {
			return 0, align
		}
		return aligned(size, align), align
	}
	return 0, 1
}

func aligned(at, align int) int { return (at + align - 1) / align * align }

// offsetWidth is how many bytes an offset within a container of this size has.
func offsetWidth(size int) int {
	switch {
	case size <= 0xff:
		return 1
	case size <= 0xffff:
		return 2
	}
	return 4
}

func offset(data []byte, at, width int) (int, error) {
	if at < 0 || at+width > len(data) {
		return 0, errVariant
	}
	value := 0
	for i := range width {
		value |= int(data[at+i]) << (8 * i)
	}
	if value > len(data) {
		return 0, errVariant
	}
	return value, nil
}

// textVariant is a GVariant of the type a{sv} whose values are strings. It is shorter than 256 bytes, so an offset is
// one byte.
func textVariant(pairs ...[2]string) []byte {
	pad := func(data []byte) []byte { return append(data, make([]byte, aligned(len(data), 8)-len(data))...) }
	var all, ends []byte
	for _, pair := range pairs {
		entry := pad(append([]byte(pair[0]), 0))
		entry = append(append(entry, pair[1]...), 0, 0, 's', byte(len(pair[0])+1))
		all = append(pad(all), entry...)
		ends = append(ends, byte(len(all)))
	}
	return append(all, ends...)
}
