// SPDX-License-Identifier: Apache-2.0

package ostree

import (
	"context"
	"path"
	"strings"
)

// Release is what a commit says of the OS in it.
type Release struct {
	Kernel  string // its version, "" if the kernel is not below /usr/lib/modules
	Version string // VERSION_ID of /usr/lib/os-release, "" if there is none
}

// Describe reads which kernel and which release a commit has, whether or not the commit is deployed. Three forks where
// the kernel is in its usual place.
func (p *Plain) Describe(ctx context.Context, checksum string) (out Release, err error) {
	doing := "reading the release of " + checksum
	names, err := p.kernelsIn(ctx, doing, checksum)
	if err != nil {
		return out, err
	}
	for _, name := range names {
		dir := path.Dir(name)
		if strings.HasPrefix(path.Base(name), "vmlinuz") && path.Dir(dir) == "/usr/lib/modules" {
			out.Kernel = path.Base(dir)
		}
	}
	text, err := p.OSRelease(ctx, checksum)
	if err != nil {
		return out, err
	}
	for line := range strings.Lines(string(text)) {
		if value, is := strings.CutPrefix(strings.TrimSpace(line), "VERSION_ID="); is {
			out.Version = strings.Trim(value, `"'`)
		}
	}
	return out, nil
}

// OSRelease returns the /usr/lib/os-release of a commit, empty where the commit has none.
func (p *Plain) OSRelease(ctx context.Context, checksum string) ([]byte, error) {
	text, err := p.run(ctx, "ostree", "cat", checksum, "/usr/lib/os-release")
	if Lacks(err) {
		return nil, nil
	}
	return text, Failing("reading the release of "+checksum, text, err)
}
