// SPDX-License-Identifier: Apache-2.0

package machineconfig

import (
	"fmt"
	"regexp"
	"strings"
)

// nameDigits is how many hex digits of the digest go into a name.
const nameDigits = 32

var rendered = regexp.MustCompile(fmt.Sprintf(`^rendered-(.+)-[0-9a-f]{%d}$`, nameDigits))

// PoolOf is the pool that a rendered configuration was made for, "" for what is no rendered configuration. It goes by
// the name alone, so that nothing that looks like an outcome ever becomes a source.
func PoolOf(name string) string {
	if m := rendered.FindStringSubmatch(name); m != nil {
		return m[1]
	}
	return ""
}

// NamedBy reports whether the name of a rendered configuration is that of content with this digest. One whose content
// has another digest was changed, or written by hand.
func NamedBy(name, digest string) bool {
	return len(digest) >= nameDigits && strings.HasSuffix(name, "-"+digest[:nameDigits])
}
