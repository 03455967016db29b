// SPDX-License-Identifier: Apache-2.0

package osimage

import (
	"errors"
	"fmt"
	"strings"

	"github.com/noderefit/noderefit/ostree"
)

// System is what the OS of a deployment consists of, besides its kernel arguments.
type System struct {
	// Image is as a configuration names it (osImageURL): a reference to a container image, or what Stage takes. Empty, it
	// is the base that the host runs.
	Image string `json:"image,omitempty"`
	// Packages are all that are layered on the base, by the name that they are requested by.
	Packages []string `json:"packages,omitempty"`
	// Removed are the packages of the base that are left out.
	Removed []string `json:"removed,omitempty"`
	// Source is a container image that packages are taken from, beside the repositories that the host has. Empty, there is
	// none. Of a system that runs nobody knows it.
	Source string `json:"source,omitempty"`

	// Reported is the digest or the checksum that the image of a system which runs is there as, "" for one that is wanted.
	Reported string `json:"-"`
}

// Runs says whether the system has the image that a configuration names.
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

// Composed is what a System has become on the disk. Nothing of it boots before a deployment of it is materialised.
type Composed struct {
	Checksum string `json:"checksum"` // of the commit to deploy
	// Origin is the text of the origin file that its deployment gets.
	Origin string `json:"origin"`
	// Base is the checksum of the commit below the packages, or the digest (sha256:...) of the container image.
	Base string `json:"base,omitempty"`
	// Transactions is how many of the OS manager's transactions it took, none if everything was there.
	Transactions int `json:"transactions"`
}

// ParseSource reads System.Source: the name of an image in a registry, with nothing before it. An error is an *Error of
// the class Invalid.
func ParseSource(text string) (Image, error) {
	image, err := ParseImage(text)
	if err == nil && (image.Kind != ContainerImage || image.Transport != Registry || image.Verify != VerifyUnsaid) {
		err = &ostree.Error{Class: ostree.Invalid, Doing: fmt.Sprintf("parsing osImageURL %q", text),
			Err: errors.New("it is not the name of a container image in a registry")}
	}
	return image, OfExtensions(err)
}

// OfExtensions is an error of this package about an image, of which it says that it is not the OS's.
func OfExtensions(err error) error {
	typed, is := errors.AsType[*ostree.Error](err)
	if !is {
		return err
	}
	doing := strings.Replace(typed.Doing, "osImageURL", "baseOSExtensionsContainerImage", 1)
	return &ostree.Error{Class: typed.Class, Doing: doing, Err: typed.Err}
}
