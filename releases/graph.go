// SPDX-License-Identifier: Apache-2.0

package releases

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/Masterminds/semver/v3"
	"github.com/coreos/stream-metadata-go/arch"
	"github.com/coreos/stream-metadata-go/release"
)

// The metadata of a Cincinnati graph of Fedora CoreOS.
const (
	metaAge           = "org.fedoraproject.coreos.releases.age_index"
	metaBarrier       = "org.fedoraproject.coreos.updates.barrier"
	metaBarrierReason = "org.fedoraproject.coreos.updates.barrier_reason"
	metaDeadEnd       = "org.fedoraproject.coreos.updates.deadend"
	metaDeadEndReason = "org.fedoraproject.coreos.updates.deadend_reason"
	metaRollout       = "org.fedoraproject.coreos.updates.rollout"
	metaDuration      = "org.fedoraproject.coreos.updates.duration_minutes"
	metaStart         = "org.fedoraproject.coreos.updates.start_epoch"
	metaValue         = "org.fedoraproject.coreos.updates.start_value"
)

// The limits of what is believed of a graph. Those of Fedora CoreOS and of OpenShift have a few hundred releases.
const (
	mostReleases = 2000
	mostEdges    = 100000
	mostPayload  = 512 // bytes
)

// graph is the document of a Cincinnati server.
type graph struct {
	Nodes []struct {
		Version  string            `json:"version"`
		Payload  string            `json:"payload"`
		Metadata map[string]string `json:"metadata"`
	} `json:"nodes"`
	Edges [][2]int `json:"edges"`
}

var (
	// payloadPattern matches a registry's image by digest, as osImageURL has it. A payload with a scheme in front, such as
	// ostree-unverified-registry:, would choose how hosts verify signatures.
	payloadPattern = regexp.MustCompile(`^[A-Za-z0-9.-]+(?::[0-9]+)?(?:/[a-z0-9][a-z0-9._-]*)+@sha256:[0-9a-f]{64}$`)
	// versionPattern matches what is printed, and written into annotations, of a source's versions.
	versionPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+~^:-]{0,127}$`)
	// datedPattern matches a version of Fedora CoreOS, which has a date.
	datedPattern = regexp.MustCompile(`^[0-9]+\.([0-9]{8})\.[0-9]+\.[0-9]+$`)
)

// ParseGraph reads the graph of an architecture, Any for a graph of all of them. index has the images of releases whose
// payload is none, as Fedora's index of releases does; nil: there is none.
func ParseGraph(arch string, data []byte, index *release.Index) (*Offer, error) {
	var g graph
	if err := json.Unmarshal(data, &g); err != nil {
		return nil, fmt.Errorf("reading the update graph: %w", err)
	}
	if len(g.Nodes) > mostReleases || len(g.Edges) > mostEdges {
		return nil, fmt.Errorf("reading the update graph: it has %d releases and %d updates, and more than %d and %d are "+
			"not believed", len(g.Nodes), len(g.Edges), mostReleases, mostEdges)
	}
	if len(g.Nodes) == 0 { // Fedora's server answers so until it has read its own sources
		return nil, errors.New("reading the update graph: it has no release: the server has just started, or does not know " +
			"the stream or channel")
	}
	out := &Offer{Edges: map[string]map[string][]string{arch: {}}}
	ages := map[string]int{}
	for _, n := range g.Nodes {
		if !IsVersion(n.Version) || ages[n.Version] != 0 {
			return nil, fmt.Errorf("reading the update graph: %.100q is no version, or is there twice", n.Version)
		}
		age, err := strconv.Atoi(n.Metadata[metaAge])
		if err != nil || age < 0 {
			age = mostReleases
		}
		ages[n.Version] = age + 1
		r := Release{Version: n.Version, Images: map[string]string{}}
		r.describe(n.Metadata)
		if image := cmp.Or(fromPayload(n.Payload), fromIndex(index, n.Version, arch)); image != "" {
			r.Images[arch] = image
		} else {
			r.Problem = fmt.Sprintf("its payload in the graph is no image by digest: %.100q", n.Payload)
		}
		out.Releases = append(out.Releases, r)
	}
	for _, e := range g.Edges {
		if min(e[0], e[1]) < 0 || max(e[0], e[1]) >= len(g.Nodes) {
			return nil, errors.New("reading the update graph: an update is of a release that is not there")
		}
		from := g.Nodes[e[0]].Version
		out.Edges[arch][from] = append(out.Edges[arch][from], g.Nodes[e[1]].Version)
	}
	slices.SortStableFunc(out.Releases, func(a, b Release) int {
		return cmp.Or(cmp.Compare(ages[a.Version], ages[b.Version]), Compare(a.Version, b.Version))
	})
	return out, nil
}

// IsVersion reports whether a text can be the version of a release: letters, digits and ._+~^:-, 128 at most.
func IsVersion(text string) bool { return versionPattern.MatchString(text) }

func fromPayload(payload string) string {
	if len(payload) <= mostPayload && payloadPattern.MatchString(payload) {
		return payload
	}
	return ""
}

// NeedsIndex reports whether some release of a graph has no image of its own.
func (o *Offer) NeedsIndex() bool {
	return slices.ContainsFunc(o.Releases, func(r Release) bool { return len(r.Images) == 0 })
}

// ParseIndex reads Fedora's index of the releases of a stream.
func ParseIndex(data []byte) (*release.Index, error) {
	index := &release.Index{}
	if err := json.Unmarshal(data, index); err != nil {
		return nil, fmt.Errorf("reading the index of releases: %w", err)
	}
	return index, nil
}

func fromIndex(index *release.Index, version, of string) string {
	if index == nil {
		return ""
	}
	for _, r := range index.Releases {
		if r.Version != version {
			continue
		}
		for _, image := range r.OciImages {
			if arch.GoArch(image.Architecture) == of {
				return fromPayload(image.DigestRef)
			}
		}
	}
	return ""
}

// describe reads the metadata of a release. What can't be read counts as in Fedora's own server.
func (r *Release) describe(meta map[string]string) {
	if meta[metaBarrier] == "true" {
		r.Barrier = cmp.Or(meta[metaBarrierReason], "no reason given")
	}
	if meta[metaDeadEnd] == "true" {
		r.DeadEnd = cmp.Or(meta[metaDeadEndReason], "no reason given")
	}
	if dated := datedPattern.FindStringSubmatch(r.Version); dated != nil {
		r.Since, _ = time.Parse("20060102", dated[1])
	}
	if meta[metaRollout] != "true" {
		return
	}
	start, _ := strconv.ParseInt(meta[metaStart], 10, 64)
	value, err := strconv.ParseFloat(meta[metaValue], 64)
	if err != nil || value < 0 || value > 1 {
		value = 0
	}
	r.Rollout = &Rollout{Start: time.Unix(start, 0).UTC(), Value: value}
	if minutes, err := strconv.ParseInt(meta[metaDuration], 10, 32); err == nil {
		r.Rollout.Duration = time.Duration(max(minutes, 1)) * time.Minute
	}
	if start > 0 {
		r.Since = r.Rollout.Start
	}
}

// Join makes one offer of the graphs of several architectures.
func Join(offers []*Offer) *Offer {
	if len(offers) == 1 {
		return offers[0]
	}
	out := &Offer{Edges: map[string]map[string][]string{}}
	for _, o := range offers {
		maps.Copy(out.Edges, o.Edges)
		last := 0
		for _, r := range o.Releases {
			i := slices.IndexFunc(out.Releases, func(have Release) bool { return have.Version == r.Version })
			if i < 0 {
				out.Releases = slices.Insert(out.Releases, last, r)
				last++
				continue
			}
			have := &out.Releases[i]
			maps.Copy(have.Images, r.Images)
			have.DeadEnd, have.Barrier = cmp.Or(have.DeadEnd, r.DeadEnd), cmp.Or(have.Barrier, r.Barrier)
			have.Rollout = cmp.Or(have.Rollout, r.Rollout)
			if len(r.Images) > 0 {
				have.Problem = ""
			}
			last = i + 1
		}
	}
	return out
}

// Compare orders versions: semantic ones by their rules, others by their numbers, and the rest by their text.
func Compare(a, b string) int {
	x, errX := semver.StrictNewVersion(strings.TrimPrefix(a, "v"))
	y, errY := semver.StrictNewVersion(strings.TrimPrefix(b, "v"))
	if errX == nil && errY == nil {
		return x.Compare(y)
	}
	n, ok := numbers(a)
	m, both := numbers(b)
	if ok && both {
		return slices.Compare(n, m)
	}
	return strings.Compare(a, b)
}

// Range returns the tags in a range of semantic versions, the oldest first, the newest limit of them.
func Range(text string, tags []string, limit int) ([]string, error) {
	in, err := semver.NewConstraint(text)
	if err != nil {
		return nil, fmt.Errorf("spec.source.versions.range: %q is no range of semantic versions: %w", text, err)
	}
	type tagged struct {
		*semver.Version
		tag string
	}
	var found []tagged
	for _, tag := range tags {
		v, err := semver.StrictNewVersion(strings.TrimPrefix(tag, "v"))
		if err == nil && in.Check(v) {
			found = append(found, tagged{v, tag})
		}
	}
	slices.SortFunc(found, func(a, b tagged) int { return cmp.Or(a.Compare(b.Version), strings.Compare(a.tag, b.tag)) })
	var out []string
	for _, t := range found[max(0, len(found)-limit):] {
		out = append(out, t.tag)
	}
	return out, nil
}
