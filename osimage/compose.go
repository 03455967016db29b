// SPDX-License-Identifier: Apache-2.0

package osimage

import (
	"errors"
	"fmt"
	"strings"

	"github.com/noderefit/noderefit/ostree"
)

// System is the content of a deployment's OS, without its kernel arguments.
type System struct {
	// Image is as a configuration names it (osImageURL): a reference to a container image, or an argument of Stage. Empty
	// means the base that the host runs.
	Image string `json:"image,omitempty"`
	// Packages are all packages that are layered on the base, by the names that they are requested by.
	Packages []string `json:"packages,omitempty"`
	// Removed are the packages of the base that are left out.
	Removed []string `json:"removed,omitempty"`
	// Source is a container image with packages, used beside the repositories of the host. Empty means no such image. The
	// Source of a running system is not known.
	Source string `json:"source,omitempty"`

	// Reported is the digest or checksum that the host reports of a running system's image; "" for a desired system.
	Reported string `json:"-"`
}

// Runs reports whether the system has the image that a configuration names.
func (s System) Runs(image string) bool {
	if image == s.Image || image == s.Reported {
		return true
	}
	want, err := ParseImage(image)
	if err != nil {
		return false
	}
	have, err := ParseImage(s.Image)
	return err == nil && want.SatisfiedBy(have, s.Reported)
}

// Composed is what a System has become on the disk. It cannot boot before a deployment of it is materialised.
type Composed struct {
	Checksum string `json:"checksum"` // of the commit to deploy
	// Origin is the text of the origin file for its deployment.
	Origin string `json:"origin"`
	// Base is the checksum of the commit below the packages, or the digest (sha256:...) of the container image.
	Base string `json:"base,omitempty"`
	// Transactions is the number of transactions of the OS manager that composing took, 0 if everything was there.
	Transactions int `json:"transactions"`
}

// ParseSource reads System.Source: the name of an image in a registry, without a prefix. An error is an *Error of the
// class Invalid.
func ParseSource(text string) (Image, error) {
	image, err := ParseImage(text)
	if err == nil && (image.Kind != ContainerImage || image.Transport != Registry || image.Verify != VerifyUnsaid) {
		err = &ostree.Error{Class: ostree.Invalid, Doing: fmt.Sprintf("parsing osImageURL %q", text),
			Err: errors.New("it is not the name of a container image in a registry")}
	}
	return image, OfExtensions(err)
}

// OfExtensions marks an error of this package as about the image of the extensions, not about the OS image.
func OfExtensions(err error) error {
	typed, is := errors.AsType[*ostree.Error](err)
	if !is {
		return err
	}
	doing := strings.Replace(typed.Doing, "osImageURL", "baseOSExtensionsContainerImage", 1)
	return &ostree.Error{Class: typed.Class, Doing: doing, Err: typed.Err}
}
