// SPDX-License-Identifier: Apache-2.0

package machineconfig

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/coreos/ignition/v2/config/util"
	"github.com/coreos/ignition/v2/config/v3_6/types"
	"github.com/vincent-petithory/dataurl"
)

// maxExpanded, in bytes, limits the decompressed size of all compressed contents together. The limit is for one
// configuration, and for the documents that are merged to one. gzip makes up to 1032 bytes of one. So a document that
// fits into an API object could otherwise exhaust the memory of each program that reads it.
const maxExpanded = 64 << 20

// maxRatio is the largest number of bytes that deflate makes of one byte.
const maxRatio = 1032

// errExpanded is the error of contents that are larger than maxExpanded.
var errExpanded = fmt.Errorf("the compressed contents grow beyond %d MiB together; take files out, or have a unit "+
	"fetch them", maxExpanded>>20)

// contents holds the decoded and decompressed contents of resources, by the address of their source. Ignition's merge
// moves that address along with the resource. So each source of a document is decoded once, however often the resource
// is merged.
type contents map[*string][]byte

// contentsDecoder decodes the resources of one configuration. It keeps the values that are expensive to make again for
// each file.
type contentsDecoder struct {
	gunzip   *gzip.Reader
	prefixes map[string]encoding
	expanded int64 // bytes that were decompressed so far
}

type encoding int

const (
	encodingUnknown encoding = iota // the library has to read the whole URL
	encodingBase64
	encodingText
)

// urlCharacter holds the characters that the data URL library accepts in data that is not base64.
var urlCharacter = func() (ok [256]bool) {
	for c := byte(0x21); c < 0x7f; c++ {
		ok[c] = !strings.ContainsRune("<>#\"{}|\\^[]`", rune(c))
	}
	return ok
}()

// data decodes a data URL without the library's lexer. That lexer costs more than all other work of reading a
// configuration. data returns false for a URL that it does not know for certain to be valid. Then the library has to
// decide.
func (d *contentsDecoder) data(source string) ([]byte, bool) {
	comma := strings.IndexByte(source, ',')
	if comma < 0 {
		return nil, false
	}
	prefix, body := source[:comma+1], source[comma+1:]
	switch d.encoding(prefix) {
	case encodingBase64:
		// The decoder would skip line breaks, but a URL may not have them.
		if strings.ContainsAny(body, "\r\n") {
			return nil, false
		}
		data, err := base64.StdEncoding.DecodeString(body)
		return data, err == nil
	case encodingText:
		for i := range len(body) {
			if !urlCharacter[body[i]] {
				return nil, false
			}
		}
		data, err := dataurl.Unescape(body)
		return data, err == nil
	default:
		return nil, false
	}
}

func (d *contentsDecoder) encoding(prefix string) encoding {
	if e, ok := d.prefixes[prefix]; ok {
		return e
	}
	e := encodingUnknown
	plain := !strings.ContainsFunc(strings.TrimSuffix(strings.TrimPrefix(prefix, "data:"), ","), func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("/;=.+_-", r)
	})
	if u, err := dataurl.DecodeString(prefix); plain && err == nil {
		e = encodingText
		if u.Encoding == dataurl.EncodingBase64 {
			e = encodingBase64
		}
	}
	if d.prefixes == nil {
		d.prefixes = map[string]encoding{}
	}
	d.prefixes[prefix] = e
	return e
}

// resource returns the contents of a resource, decompressed and verified, and whether its source is valid beyond doubt.
// A resource without a source has no contents here, and neither has one that is fetched. The error begins with the
// wrong field of the resource.
func (d *contentsDecoder) resource(res types.Resource) (data []byte, certain bool, err error) {
	if util.NilOrEmpty(res.Source) {
		if util.NotEmpty(res.Verification.Hash) {
			return nil, false, verify(nil, *res.Verification.Hash)
		}
		return nil, false, nil
	}
	if data, certain = d.data(*res.Source); !certain {
		if fetched(*res.Source) {
			_, err := referable(res)
			return nil, strings.HasPrefix(*res.Source, ociScheme), err
		}
		u, err := dataurl.DecodeString(*res.Source)
		if err != nil {
			return nil, false, fmt.Errorf("source: decoding data URL: %w", err)
		}
		data = u.Data
	}
	if util.NotEmpty(res.Compression) {
		if data, err = d.decompress(data); err != nil {
			return nil, false, fmt.Errorf("compression: decompressing: %w", err)
		}
	}
	if util.NotEmpty(res.Verification.Hash) {
		if err := verify(data, *res.Verification.Hash); err != nil {
			return nil, false, err
		}
	}
	return data, certain, nil
}

func (d *contentsDecoder) decompress(data []byte) ([]byte, error) {
	if d.gunzip == nil {
		d.gunzip = new(gzip.Reader)
	}
	if err := d.gunzip.Reset(bytes.NewReader(data)); err != nil {
		return nil, fmt.Errorf("the contents are no gzip (%w); write gzip's output as base64, or leave compression out", err)
	}
	left := maxExpanded - d.expanded
	var out bytes.Buffer
	out.Grow(int(min(claimedSize(data), left+1)) + bytes.MinRead)
	n, err := out.ReadFrom(io.LimitReader(d.gunzip, left+1))
	d.expanded += n
	switch {
	case err != nil:
		return nil, err
	case n > left:
		return nil, errExpanded
	}
	return out.Bytes(), nil
}

// claimedSize returns the decompressed size that the end of a gzip stream claims, up to the size that is possible.
func claimedSize(data []byte) int64 {
	if len(data) < 4 {
		return 0
	}
	return min(int64(binary.LittleEndian.Uint32(data[len(data)-4:])), maxRatio*int64(len(data)))
}

// verify compares contents, decompressed as Ignition expects them, with a hash such as sha256-<hex digits>.
func verify(data []byte, want string) error {
	function, sum, _ := strings.Cut(want, "-")
	var got string
	switch function {
	case "sha256":
		s := sha256.Sum256(data)
		got = hex.EncodeToString(s[:])
	case "sha512":
		s := sha512.Sum512(data)
		got = hex.EncodeToString(s[:])
	default:
		return fmt.Errorf("verification.hash: function %q is neither sha256 nor sha512", function)
	}
	if !strings.EqualFold(got, sum) {
		return errors.New("verification.hash: does not match the contents")
	}
	return nil
}
