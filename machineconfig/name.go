// SPDX-License-Identifier: Apache-2.0

package machineconfig

import (
	"fmt"
	"regexp"
	"strings"
	"sync"
)

// nameDigits is the number of hex digits of the digest in a name.
const nameDigits = 32

var rendered = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(fmt.Sprintf(`^rendered-(.+)-[0-9a-f]{%d}$`, nameDigits))
})

// PoolOf returns the pool for which a rendered configuration was made, "" for the name of another object. It looks only
// at the name, so that an object that looks like a rendered configuration never becomes a source.
func PoolOf(name string) string {
	name = ofPool(name)
	if m := rendered().FindStringSubmatch(name); m != nil {
		return m[1]
	}
	return ""
}

// NamedBy reports whether the name of a rendered configuration belongs to content with this digest. A configuration
// with another digest was changed, or written by hand.
func NamedBy(name, digest string) bool {
	return len(digest) >= nameDigits && strings.HasSuffix(ofPool(name), "-"+digest[:nameDigits])
}

// ofPool returns the name of the configuration that a node's own was made of. A node's own name is NAME+DIGEST, with
// the digest of the values that were told to the node. No object has such a name.
func ofPool(name string) string {
	name, _, _ = strings.Cut(name, "+")
	return name
}
