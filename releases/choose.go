// SPDX-License-Identifier: Apache-2.0

package releases

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Reason is why a release is not chosen, in one word.
type Reason string

// The reasons.
const (
	Unusable       Reason = "Unusable"       // it has no image by digest
	Quarantined    Reason = "Quarantined"    // it failed in the pool
	DeadEnd        Reason = "DeadEnd"        // no update leads away from it
	UnknownVersion Reason = "UnknownVersion" // the graph does not know what a node runs
	BarrierFirst   Reason = "BarrierFirst"   // an older release has to be gone to first
	NoEdge         Reason = "NoEdge"         // the graph has no update from what a node runs
	Withdrawn      Reason = "Withdrawn"      // the source no longer has it
	NoImage        Reason = "NoImage"        // it has no image for an architecture of the pool
	SeveralImages  Reason = "SeveralImages"  // no one image serves all architectures of the pool
	AboveHighest   Reason = "AboveHighest"
	TooYoung       Reason = "TooYoung"
	Wariness       Reason = "Wariness" // its phased rollout has not come far enough
	Signature      Reason = "Signature"
	NeedsApproval  Reason = "NeedsApproval"
)

// Rules are what a stream says about releases.
type Rules struct {
	// Highest is the highest version, empty for none.
	Highest string
	MinAge  time.Duration
	// Wariness is how far a phased rollout has to be, from 0 to 1.
	Wariness float64
	// Manual means that a release is chosen only if it is Approved, a version.
	Manual   bool
	Approved string
	// Admit returns why hosts would refuse an image, as far as that is known. Nil admits all.
	Admit func(image string) error
}

// Node is a node of the pool.
type Node struct {
	Name, Arch string
	// Version is the release that the node runs, empty where the source does not know it. Image is the image that the node
	// was proved to run, or goes to already.
	Version, Image string
}

// Taken is a release that was chosen.
type Taken struct{ Version, Image string }

// Failure is a release that failed in the pool.
type Failure struct{ Version, Image, Node, Reason string }

// Input is everything that a choice depends on.
type Input struct {
	Offer *Offer
	Rules
	Nodes []Node
	// Current is what the pool has now, Previous what it had before; nil: nothing.
	Current, Previous *Taken
	Failures          []Failure
	Now               time.Time
}

// MostSkipped is how many releases a Choice explains. An explanation goes through the whole graph.
const MostSkipped = 20

// Skipped is a release that was not chosen, and why.
type Skipped struct {
	Version string
	Reason  Reason
	Message string
}

// Choice is what a pool takes.
type Choice struct {
	// Take is nil where the pool takes nothing.
	Take *Taken
	// Back reports whether Take is what the pool had before.
	Back bool
	// Skipped are the releases that are newer than Take, the newest first, MostSkipped at most.
	Skipped []Skipped
	// Withheld is why nodes that have not gone to Take stay where they are.
	Withheld string
	// Next is when a reason ends by itself, zero: none does.
	Next time.Time
}

// Choose chooses the newest release that nothing speaks against. It never chooses one that is older than the pool's,
// with one exception: if something speaks against the pool's own release, and no node has gone there, the pool takes
// what it had before. If some nodes have gone, the others are held.
func Choose(in Input) Choice {
	c := chooser{Input: in}
	at := -1
	if in.Current != nil {
		at = in.Offer.of(in.Current.Version, in.Current.Image)
	}
	for i := len(in.Offer.Releases) - 1; i > at; i-- {
		r := &in.Offer.Releases[i]
		if at < 0 && in.Current != nil && c.older(r) {
			break
		}
		image, reason, message := c.judge(r)
		if reason == "" {
			c.choice.Take = &Taken{r.Version, image}
			return c.choice
		}
		c.skip(r.Version, reason, message)
	}
	if in.Current == nil {
		return c.choice
	}
	c.keep(at)
	return c.choice
}

type chooser struct {
	Input
	choice Choice
}

func (c *chooser) skip(version string, reason Reason, message string) {
	if len(c.choice.Skipped) < MostSkipped {
		c.choice.Skipped = append(c.choice.Skipped, Skipped{version, reason, message})
	}
}

// older reports whether a release is no newer than the pool's, which the source no longer has.
func (c *chooser) older(r *Release) bool {
	_, known := numbers(c.Current.Version)
	_, both := numbers(r.Version)
	return known && both && !c.Offer.Latest && Compare(r.Version, c.Current.Version) <= 0
}

// keep finds out whether the pool keeps the release that it has.
func (c *chooser) keep(at int) {
	reason, message := c.against(at)
	c.choice.Take = c.Current
	if reason == "" {
		return
	}
	gone := 0
	for _, n := range c.Nodes {
		if sameDigest(n.Image, c.Current.Image) {
			gone++
		}
	}
	switch {
	case gone == 0:
		c.choice.Take, c.choice.Back = c.Previous, true
		c.skip(c.Current.Version, reason, message)
	case gone < len(c.Nodes):
		c.choice.Withheld = message
	}
}

// against returns what speaks against the release that the pool has. Its age and its rollout no longer do.
func (c *chooser) against(at int) (Reason, string) {
	if failed := c.failed(c.Current.Version, c.Current.Image); failed != nil {
		return Quarantined, failed.text()
	}
	if at < 0 {
		if c.Offer.Latest {
			return "", ""
		}
		return Withdrawn, "the source no longer has " + c.Current.Version
	}
	r := &c.Offer.Releases[at]
	if reason, message := c.way(r); reason != "" {
		return reason, message
	}
	return c.highest(r)
}

func (c *chooser) failed(version, image string) *Failure {
	i := slices.IndexFunc(c.Failures, func(f Failure) bool {
		return sameDigest(f.Image, image) || !c.Offer.Latest && f.Version == version
	})
	if i < 0 {
		return nil
	}
	return &c.Failures[i]
}

func (f *Failure) text() string {
	if f.Node == "" {
		return fmt.Sprintf("%s failed in the pool: %s", f.Version, f.Reason)
	}
	return fmt.Sprintf("%s failed on node %s: %s", f.Version, f.Node, f.Reason)
}

// judge returns the image of a release, or what speaks against the release.
func (c *chooser) judge(r *Release) (image string, reason Reason, message string) {
	if r.Problem != "" {
		return "", Unusable, r.Problem
	}
	for _, own := range r.Images {
		if f := c.failed(r.Version, own); f != nil {
			return "", Quarantined, f.text()
		}
	}
	if reason, message = c.way(r); reason != "" {
		return "", reason, message
	}
	image, lacking, several := r.image(c.arches())
	switch {
	case len(lacking) > 0:
		return "", NoImage, "no image for " + strings.Join(lacking, ", ")
	case image == "":
		return "", Unusable, "it has no image"
	case several:
		return "", SeveralImages, fmt.Sprintf("its images for %s have different digests: make a pool for each architecture, "+
			"or follow a tag whose manifest list has all of them", strings.Join(c.arches(), ", "))
	}
	for _, check := range []func(*Release) (Reason, string){c.highest, c.age, c.phase} {
		if reason, message = check(r); reason != "" {
			return "", reason, message
		}
	}
	if c.Admit != nil {
		if err := c.Admit(image); err != nil {
			return "", Signature, err.Error()
		}
	}
	if c.Manual && c.Approved != r.Version {
		return "", NeedsApproval, "nobody has approved it: kubectl refit streams approve"
	}
	return image, "", ""
}

func (c *chooser) arches() []string {
	var out []string
	for _, n := range c.Nodes {
		if n.Arch != "" {
			out = append(out, n.Arch)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (c *chooser) highest(r *Release) (Reason, string) {
	if c.Highest == "" {
		return "", ""
	}
	switch is, known := above(r.Version, c.Highest); {
	case !known:
		return AboveHighest, fmt.Sprintf("its version has no numbers to compare with spec.highestVersion %s", c.Highest)
	case is:
		return AboveHighest, "it is above spec.highestVersion " + c.Highest
	}
	return "", ""
}

func (c *chooser) age(r *Release) (Reason, string) {
	until := r.Since.Add(c.MinAge)
	if c.MinAge == 0 || !c.Now.Before(until) {
		return "", ""
	}
	c.wake(until)
	return TooYoung, fmt.Sprintf("it is of %s, and old enough at %s", stamp(r.Since), stamp(until))
}

func (c *chooser) phase(r *Release) (Reason, string) {
	if r.Rollout == nil {
		return "", ""
	}
	part := r.Rollout.progress(c.Now)
	if part >= c.Wariness && !c.Now.Before(r.Rollout.Start) {
		return "", ""
	}
	text := fmt.Sprintf("its rollout is at %.0f%%, and the wariness is %.0f%%", 100*part, 100*c.Wariness)
	if at, ever := r.Rollout.reaches(c.Wariness); ever {
		c.wake(at)
		return Wariness, text + ": at " + stamp(at)
	}
	return Wariness, text + ": the rollout has no end"
}

func (c *chooser) wake(at time.Time) {
	if c.choice.Next.IsZero() || at.Before(c.choice.Next) {
		c.choice.Next = at
	}
}

func stamp(at time.Time) string { return at.UTC().Format(time.RFC3339) }

// way returns why some node of the pool can't go to a release by the graph.
func (c *chooser) way(r *Release) (Reason, string) {
	if r.DeadEnd != "" {
		return DeadEnd, "it is a dead end: " + r.DeadEnd
	}
	if c.Offer.Edges == nil {
		return "", ""
	}
	for _, n := range c.Nodes {
		edges := c.Offer.Edges[n.Arch]
		if edges == nil {
			edges = c.Offer.Edges[Any]
		}
		switch {
		case n.Version == r.Version || slices.Contains(edges[n.Version], r.Version):
		case n.Version == "" && c.Approved == r.Version:
		case n.Version == "":
			return UnknownVersion, fmt.Sprintf("the graph does not have what node %s runs: approve %s, and the pool goes there "+
				"all the same", n.Name, r.Version)
		case len(c.choice.Skipped) == MostSkipped:
			return NoEdge, "" // nobody is told of it
		default:
			return c.detour(edges, n, r)
		}
	}
	return "", ""
}

// detour explains why a node has no direct update to a release.
func (c *chooser) detour(edges map[string][]string, n Node, r *Release) (Reason, string) {
	if i := c.Offer.version(n.Version); i >= 0 && c.Offer.Releases[i].DeadEnd != "" {
		return NoEdge, fmt.Sprintf("node %s runs %s, a dead end: %s", n.Name, n.Version, c.Offer.Releases[i].DeadEnd)
	}
	reached, first := map[string]bool{n.Version: true}, ""
	queue := []string{n.Version}
	for ; len(queue) > 0 && !reached[r.Version]; queue = queue[1:] {
		for _, next := range edges[queue[0]] {
			if !reached[next] {
				reached[next] = true
				queue = append(queue, next)
			}
		}
	}
	if !reached[r.Version] {
		return NoEdge, fmt.Sprintf("the graph has no update from %s, which node %s runs", n.Version, n.Name)
	}
	for _, next := range edges[n.Version] {
		if i := c.Offer.version(next); i >= 0 && c.Offer.Releases[i].Barrier != "" {
			first = fmt.Sprintf("%s, a barrier (%s)", next, c.Offer.Releases[i].Barrier)
		}
	}
	if first == "" {
		first = strings.Join(edges[n.Version], " or ")
	}
	return BarrierFirst, fmt.Sprintf("node %s, which runs %s, goes to %s first", n.Name, n.Version, first)
}
