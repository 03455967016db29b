// SPDX-License-Identifier: Apache-2.0

package plan

import "sync"

// upstream is the platform whose packages an extension has where no host is asked: the present RHEL CoreOS.
var upstream = Platform{ID: "rhel", Version: "9.6", Arch: "amd64"}

var known = sync.OnceValue(func() *Catalogue {
	c, err := NewCatalogue(nil)
	if err != nil { // the file is part of this program, and its tests read it
		return &Catalogue{}
	}
	return c
})

// packagesOf returns the packages that make up an extension on RHEL CoreOS. An unknown extension is a package of the
// same name.
func packagesOf(extension string) []string {
	if p := known().Extension(upstream, extension); p != nil {
		return p
	}
	return []string{extension}
}
