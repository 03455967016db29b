// SPDX-License-Identifier: Apache-2.0

// Package releases decides which release of an operating system a pool takes. The package is pure. What a source
// offers, the rules of a stream, the pool's nodes and the time go in. A choice comes out, with a reason for each newer
// release that was not chosen:
//
//	choice := releases.Choose(releases.Input{Offer: offer, Rules: rules, Nodes: nodes, Current: current, Now: now})
//
// The package also reads the documents of update graphs, and puts their releases in order.
package releases

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Any is the architecture of an image or a graph that is for all architectures.
const Any = ""

// Release is one release of an operating system.
type Release struct {
	Version string
	// Images has the image of each architecture, by Go's name for it, as REPOSITORY@DIGEST.
	Images map[string]string
	// Since is when the release was made, or else when it was seen first.
	Since time.Time
	// Barrier and DeadEnd are the reasons that the graph gives, empty where the release is neither.
	Barrier, DeadEnd string
	// Rollout is the phased rollout of the release, nil where it has none.
	Rollout *Rollout
	// Problem is why the release has no image that can be used, empty where it has one.
	Problem string
}

// Rollout is a phased rollout.
type Rollout struct {
	Start time.Time
	// Value is the part that has the release at the start, from 0 to 1.
	Value float64
	// Duration is how long it takes until all have it; 0 means that Value stays.
	Duration time.Duration
}

// progress returns the part that has the release at a time, from 0 to 1.
func (r *Rollout) progress(now time.Time) float64 {
	switch gone := now.Sub(r.Start); {
	case gone < 0:
		return 0
	case r.Duration == 0:
		return r.Value
	default:
		return min(1, r.Value+(1-r.Value)*float64(gone)/float64(r.Duration))
	}
}

// reaches returns when the rollout has come to a part. The second result is false where it never does.
func (r *Rollout) reaches(part float64) (time.Time, bool) {
	switch {
	case part <= r.Value:
		return r.Start, true
	case r.Duration == 0:
		return time.Time{}, false
	default:
		return r.Start.Add(time.Duration((part - r.Value) / (1 - r.Value) * float64(r.Duration))), true
	}
}

// Offer is what a source offers.
type Offer struct {
	// Releases are in order, the oldest first.
	Releases []Release
	// Latest means that the source names its newest release alone. A release that it no longer names was replaced, and
	// not withdrawn.
	Latest bool
	// Edges are the updates that a graph allows, by architecture and version; nil: every newer release can be gone to.
	Edges map[string]map[string][]string
}

func (o *Offer) find(image string) int {
	return slices.IndexFunc(o.Releases, func(r Release) bool { return r.has(image) })
}

// of returns where a release is that has a version and an image, and -1 where it is not. Where a source has many
// releases, a version is one release: Fedora's graph gives some versions another image every other minute. A tag may
// have the same version again, where the label of the next image was not changed.
func (o *Offer) of(version, image string) int {
	if i := o.find(image); i >= 0 || o.Latest {
		return i
	}
	return o.version(version)
}

func (o *Offer) version(version string) int {
	return slices.IndexFunc(o.Releases, func(r Release) bool { return r.Version == version })
}

// VersionOf returns the version of an image, and "" where the source does not offer it.
func (o *Offer) VersionOf(image string) string {
	if i := o.find(image); i >= 0 {
		return o.Releases[i].Version
	}
	return ""
}

// VersionIn returns the version that a text names, such as the description of a node's OS, and "" if it names none.
func (o *Offer) VersionIn(text string) string {
	words := strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" ()[],;/", r) })
	for _, r := range slices.Backward(o.Releases) {
		if slices.Contains(words, r.Version) {
			return r.Version
		}
	}
	return ""
}

func (r *Release) has(image string) bool {
	for _, own := range r.Images {
		if sameDigest(own, image) {
			return true
		}
	}
	return false
}

// Digest returns the digest of an image that is named by one, in any form of an osImageURL, and "" otherwise.
func Digest(image string) string {
	_, digest, _ := strings.Cut(image, "@")
	return digest
}

func sameDigest(a, b string) bool { return Digest(a) != "" && Digest(a) == Digest(b) }

// image returns the one image that serves all architectures. lacking are the architectures that have none. several
// reports whether no one image serves all.
func (r *Release) image(arches []string) (image string, lacking []string, several bool) {
	if len(arches) == 0 {
		arches = slices.Sorted(maps.Keys(r.Images))
	}
	for _, arch := range arches {
		own := cmp.Or(r.Images[arch], r.Images[Any])
		switch {
		case own == "":
			lacking = append(lacking, arch)
		case image == "":
			image = own
		case !sameDigest(image, own):
			several = true
		}
	}
	return image, lacking, several
}

// above reports whether a version is above the highest one. 44 as the highest has all versions that begin with it. The
// second result is false where the version has no numbers to compare.
func above(version, highest string) (is, known bool) {
	limits, ok := numbers(highest)
	have, both := numbers(version)
	if !ok || !both {
		return false, false
	}
	return slices.Compare(have[:min(len(have), len(limits))], limits) > 0, true
}

// numbers returns the numbers of a version, without what follows a hyphen or a plus.
func numbers(version string) ([]int, bool) {
	version, _, _ = strings.Cut(strings.TrimPrefix(version, "v"), "+")
	version, _, _ = strings.Cut(version, "-")
	var out []int
	for part := range strings.SplitSeq(version, ".") {
		n, err := strconv.Atoi(part)
		if err != nil {
			return nil, false
		}
		out = append(out, n)
	}
	return out, true
}
