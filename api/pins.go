// SPDX-License-Identifier: Apache-2.0

package api

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
)

const (
	// PinOrderKey is the annotation of a Node that holds a PinOrder. The pinnedimages controller writes it.
	PinOrderKey = ownPrefix + "pin"
	// PinnedKey is the annotation of a Node that holds a Pinned. The daemon writes it.
	PinnedKey = ownPrefix + "pinned"
)

// PinOrder says which PinnedImageSets a node is to have. The node reads the images from the sets, by their names.
type PinOrder struct {
	// Sets may be empty: the node has had some, and is to have none any more.
	Sets []PinnedSet `json:"sets"`
	// Pull allows the node to pull images. Without it the node waits for its turn, and pins the images that it has.
	Pull bool `json:"pull,omitempty"`
	// PullSince is when the node's turn to pull images that it lacks began; zero: it has not begun, or is over.
	PullSince time.Time `json:"pullSince,omitzero"`
	// MinFreeMebibytes is that of RolloutStaging; 0: the agent's own floor.
	MinFreeMebibytes int32 `json:"minFreeMebibytes,omitempty"`
	// Since is when the node was told of these sets, or of the first ones since it last had all images.
	Since time.Time `json:"since"`
}

// PinnedSet is one generation of a PinnedImageSet. The digest is that of its images, since an object that is made again
// begins with the same generation.
type PinnedSet struct {
	Name       string `json:"name"`
	Generation int64  `json:"generation"`
	Digest     string `json:"digest"`
}

// NewPinnedSet returns what a node is told of a PinnedImageSet.
func NewPinnedSet(set *mcfgv1.PinnedImageSet) PinnedSet {
	sum := sha256.Sum256([]byte(strings.Join(PinnedImages(set), "\n")))
	return PinnedSet{Name: set.Name, Generation: set.Generation, Digest: hex.EncodeToString(sum[:6])}
}

// PinnedImages returns the names of the images of a set, in its order.
func PinnedImages(set *mcfgv1.PinnedImageSet) []string {
	out := make([]string, len(set.Spec.PinnedImages))
	for i, image := range set.Spec.PinnedImages {
		out[i] = string(image.Name)
	}
	return out
}

// Digest stands for the sets of an order, in their order.
func (o *PinOrder) Digest() string {
	sum := sha256.Sum256([]byte(Encode(o.Sets)))
	return hex.EncodeToString(sum[:6])
}

// Pinned is what a node has of its PinnedImageSets.
type Pinned struct {
	// Order is the digest of the PinOrder that the rest is about.
	Order string `json:"order"`
	// Images is how many images the sets have, and Missing how many of them are not pinned on the node. Unread means that
	// the agent can't read a set: then both are 0.
	Images  int  `json:"images"`
	Missing int  `json:"missing,omitempty"`
	Unread  bool `json:"unread,omitempty"`
	// Error is why images are missing; empty: they come, or wait for their turn. Tries counts how often that failed.
	Error string    `json:"error,omitempty"`
	Tries int       `json:"tries,omitempty"`
	Since time.Time `json:"since"`
}

// Keeps reports whether the node has all images of an order.
func (p *Pinned) Keeps(o *PinOrder) bool {
	return p.About(o) && p.Missing == 0 && p.Error == ""
}

// Fails reports whether the node could not get the images of an order.
func (p *Pinned) Fails(o *PinOrder) bool { return p.About(o) && p.Error != "" }

// About reports whether a report is about the sets of an order.
func (p *Pinned) About(o *PinOrder) bool { return p != nil && o != nil && p.Order == o.Digest() }

func pinsOf(a map[string]string) (*PinOrder, *Pinned, error) {
	order, orderErr := Decode[*PinOrder](a, PinOrderKey)
	pinned, pinnedErr := Decode[*Pinned](a, PinnedKey)
	if pinned != nil {
		pinned.Error = shorten(ShortReason(pinned.Error), quarantineReason)
	}
	return order, pinned, errors.Join(orderErr, pinnedErr)
}
