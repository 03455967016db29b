// SPDX-License-Identifier: Apache-2.0

package bootc

import (
	"path/filepath"
	"strings"

	"github.com/noderefit/noderefit/osimage"
	"github.com/noderefit/noderefit/ostree"
)

// Composefs is how a host boots on which bootc uses its composefs back end: without ostree, from an image by itself. ""
// is any other host.
type Composefs string

const (
	composefsBLS Composefs = "bls" // an entry of the boot loader has the kernel and its arguments
	composefsUKI Composefs = "uki" // one signed file has them: the image is sealed
)

// FindComposefs finds out how a host boots that ostree has not booted. read and exists are for the host's files.
func FindComposefs(read func(path string) ([]byte, error), exists func(path string) bool) Composefs {
	line, _ := read("/proc/cmdline") // without it nothing can be told from it
	digest := ""
	for _, argument := range ostree.SplitArguments(string(line)) {
		value, ok := strings.CutPrefix(argument, "composefs=")
		// The value is the digest of the root. The kernel does not verify a root whose digest has a question mark before it.
		sum := strings.TrimPrefix(value, "?")
		if ok && (osimage.IsDigest("sha256:"+sum) || osimage.IsDigest("sha512:"+sum)) {
			digest = sum
		}
	}
	if digest == "" && !exists("/run/composefs") {
		return ""
	}
	origin, _ := read(filepath.Join("/sysroot/state/deploy", digest, digest+".origin"))
	for line := range strings.Lines(string(origin)) {
		if key, value, _ := strings.Cut(line, "="); strings.TrimSpace(key) == "boot_type" {
			switch kind := Composefs(strings.ToLower(strings.TrimSpace(value))); kind {
			case composefsBLS, composefsUKI:
				return kind
			}
		}
	}
	if exists("/sys/firmware/efi/efivars/StubInfo-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f") { // systemd's part of such a file
		return composefsUKI
	}
	return composefsBLS
}

// String is the name of such a host's OS manager for people.
func (c Composefs) String() string { return "bootc (composefs, " + string(c) + ")" }

// Refusal returns why a field of a configuration can't be had on such a host, and what to do.
func (c Composefs) Refusal(field string) string {
	const why = "bootc runs this host with its composefs back end, which has no deployments of ostree; "
	switch {
	case field == "osImageURL":
		return why + "leave the field out, and change the image with bootc switch"
	case field != "kernelArguments":
		return why + "use an image that was built with it"
	case c == composefsUKI:
		return "the image is sealed: the kernel's arguments are part of its signed file; have the image built with them in " +
			argumentsDir
	}
	return why + "have the image bring them in " + argumentsDir
}
