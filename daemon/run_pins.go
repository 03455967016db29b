// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/hands"
	"github.com/noderefit/noderefit/message"
	"github.com/noderefit/noderefit/pins"
)

// namedImages is how many images a report names that could not be pulled.
const namedImages = 3

const (
	// pinPause is the time between two rounds of pulls, and readSpread that in which nodes read changed sets.
	pinPause   = time.Second
	readSpread = 5 * time.Second
	// unreadTries is how often sets are read before the Node says that they can't be read.
	unreadTries = 3
)

// pinsState is what the head knows about the images that the node is to have pinned.
type pinsState struct {
	known  bool        // the Node's own report was read
	report *api.Pinned // the wanted report on the Node; nil: none
	order  string      // the digest of the order that the rest is about
	pull   bool        // whether that order allows to pull
	at     time.Time   // when the runtime is asked again
	sets   []imageSet  // nil: not read yet
	last   []imageSet  // the sets that were read last: what has not changed is not read again
	unread int         // how often the sets could not be read
	// failed has the images that could not be pulled since the last pause. They are not tried again before the next one.
	failed map[string]string
	cancel context.CancelCauseFunc // of the work beside the loop; nil: there is none
}

// imageSet is a PinnedImageSet that was read.
type imageSet struct {
	api.PinnedSet

	images []string
	lacks  bool   // an image is missing, as far as known
	error  string // why; empty: it comes
}

// see takes over the order and the Node's report. rests reports whether the node is at rest: an update comes first.
func (s *pinsState) see(v *situation, rests bool) {
	if !v.exists {
		return
	}
	if !s.known {
		s.known, s.report, s.at = true, v.node.Pinned, v.now.Add(jitter(verifyFirst))
	}
	digest, pull := "", false
	if o := v.node.Pins; o != nil {
		digest, pull = o.Digest(), o.Pull
	} else {
		s.report = nil
	}
	changed := s.order != digest
	if changed {
		s.sets, s.failed, s.unread = nil, nil, 0
	}
	if changed || s.pull != pull {
		s.order, s.pull = digest, pull
		if s.report == nil || s.report.Order != digest || !pull || s.report.Missing > 0 {
			s.at = v.now
			if changed {
				s.at = v.now.Add(rand.N(readSpread)) //nolint:gosec // nothing secret
			}
		}
		changed = true
	}
	if s.cancel != nil && (changed || !rests) {
		s.cancel(hands.ErrSuperseded)
	}
	v.pinned = s.report
}

// pinDue returns when the runtime is asked for the images again.
func (h *Head) pinDue(v *situation) time.Time {
	return v.from(h.o.Pinner != nil && v.exists && v.node.Pins != nil && atRest(h.phase), h.pins.at)
}

// pin has the runtime pull and pin images for a while. Images are unpinned only after all sets were read.
func (h *Head) pin(ctx context.Context, v *situation) work {
	s, o := &h.pins, v.node.Pins
	ctx, s.cancel = context.WithCancelCause(ctx)
	sets, last, failed, runtime := s.sets, s.last, s.failed, h.cluster.runtime()
	return func() func() {
		var err error
		if sets == nil {
			sets, err = h.cluster.imageSets(ctx, o, last)
		}
		var state pins.State
		if err == nil {
			state, err = h.o.Pinner.Keep(ctx, pins.Order{Images: imagesOf(sets), Pull: o.Pull, Skip: failed,
				MinFree: uint64(o.MinFreeMebibytes) << 20, Runtime: runtime})
		}
		return func() { h.finishPin(o, sets, state, err) }
	}
}

// finishPin takes over what the runtime has.
func (h *Head) finishPin(o *api.PinOrder, sets []imageSet, state pins.State, err error) {
	s, now := &h.pins, time.Now()
	s.cancel(nil)
	s.cancel = nil
	if s.order != o.Digest() || errors.Is(err, context.Canceled) {
		return // the present order is due
	}
	s.sets = sets
	if sets != nil {
		s.last, s.unread = sets, 0
	}
	if errors.As(err, new(*clusterError)) {
		h.log.Info("reading pinned image sets", zap.Error(err))
		if s.silent(o) {
			s.at = now.Add(jitter(unstagePace))
			return
		}
	}
	s.ended(o, state, err, now)
	if err != nil {
		h.log.Warn("pinning images", zap.Error(err))
	}
}

// silent counts that the sets could not be read, and reports whether the Node says nothing of that: at first, and where
// all images of the order are pinned already.
func (s *pinsState) silent(o *api.PinOrder) bool {
	s.unread++
	return s.unread < unreadTries || s.report.Keeps(o)
}

// ended makes the report of what the runtime has, and decides when the runtime is asked again.
func (s *pinsState) ended(o *api.PinOrder, state pins.State, err error, now time.Time) {
	images := imagesOf(s.sets)
	r := &api.Pinned{Order: s.order, Images: len(images), Missing: len(state.Missing),
		Unread: s.sets == nil, Since: now.UTC().Truncate(time.Second)}
	more := false
	if err != nil {
		r.Missing, r.Error = len(images), api.ShortReason(message.OneLine(err.Error()))
	} else {
		s.failed = failedOf(images, state.Missing, s.failed)
		r.Error = api.ShortReason(textOf(images, s.failed))
		more = o.Pull && len(s.failed) < len(state.Missing)
	}
	s.judge(state.Missing, r.Error, err != nil)
	was := s.report
	if was != nil && was.Order == r.Order {
		r.Tries = was.Tries
	}
	switch {
	case more:
		s.at = now.Add(pinPause)
		if was.Fails(o) && !was.Unread {
			r.Error = was.Error // until all have been tried
		} else {
			r.Error = ""
		}
	case r.Error != "":
		r.Tries++
		s.at, s.failed = now.Add(jitter(api.StageRetry(r.Tries))), nil
	default:
		r.Tries = 0
		s.at = now.Add(jitter(verifyPace))
	}
	if was != nil {
		same := *r
		if same.Since = was.Since; same == *was {
			return
		}
	}
	s.report = r
}

// judge notes which sets lack images.
func (s *pinsState) judge(missing map[string]string, why string, all bool) {
	for i := range s.sets {
		set := &s.sets[i]
		set.lacks, set.error = all, ""
		if all {
			set.error = why
		}
		var faulty []string
		for _, image := range set.images {
			_, lacks := missing[pins.Normal(image)]
			set.lacks = set.lacks || lacks
			if s.failed[pins.Normal(image)] != "" {
				faulty = append(faulty, image)
			}
		}
		if len(faulty) > 0 {
			set.error = textOf(faulty, s.failed)
		}
	}
}

// failedOf returns the missing images that failed now or before, with the reasons.
func failedOf(images []string, missing, before map[string]string) map[string]string {
	out := map[string]string{}
	for _, image := range images {
		image = pins.Normal(image)
		why, lacks := missing[image]
		if lacks && why == "" {
			why = before[image]
		}
		if why != "" {
			out[image] = why
		}
	}
	return out
}

// textOf names images that failed, in their order; empty: none failed.
func textOf(images []string, failed map[string]string) string {
	var texts []string
	for _, image := range images {
		if why := failed[pins.Normal(image)]; why != "" {
			texts = append(texts, image+": "+message.OneLine(why))
		}
	}
	if more := len(texts) - namedImages; more > 0 {
		texts = append(texts[:namedImages], fmt.Sprintf("%d more images", more))
	}
	return strings.Join(texts, "; ")
}

// imagesOf returns the images of sets, each once.
func imagesOf(sets []imageSet) (out []string) {
	seen := map[string]bool{}
	for _, set := range sets {
		for _, image := range set.images {
			if !seen[pins.Normal(image)] {
				seen[pins.Normal(image)] = true
				out = append(out, image)
			}
		}
	}
	return out
}

// runtime returns the name of the node's container runtime.
func (c *cluster) runtime() string {
	node := c.current()
	if node == nil {
		return ""
	}
	name, _, _ := strings.Cut(node.Status.NodeInfo.ContainerRuntimeVersion, "://")
	return name
}

const pinnedImageSetPath = "/apis/machineconfiguration.openshift.io/v1/pinnedimagesets/"

// imageSets reads the sets of an order, but those that were read last and have not changed. A set that is missing, or
// another one than the node was told of, is an error: the controller is about to tell the node something else, or the
// definition is away.
func (c *cluster) imageSets(ctx context.Context, o *api.PinOrder, last []imageSet) ([]imageSet, error) {
	out := []imageSet{}
	for _, told := range o.Sets {
		if at := slices.IndexFunc(last, func(s imageSet) bool { return s.PinnedSet == told }); at >= 0 {
			out = append(out, imageSet{PinnedSet: told, images: last[at].images})
			continue
		}
		data, err := c.get(ctx, pinnedImageSetPath+url.PathEscape(told.Name))
		set := &mcfgv1.PinnedImageSet{}
		if err == nil {
			err = json.Unmarshal(data, set)
		}
		if is := api.NewPinnedSet(set); err == nil && is != told {
			err = fmt.Errorf("it has generation %d with images %s, and the node was told of generation %d with images %s",
				is.Generation, is.Digest, told.Generation, told.Digest)
		}
		if err != nil {
			return nil, &clusterError{fmt.Errorf("reading PinnedImageSet %s: %w", told.Name, err)}
		}
		out = append(out, imageSet{PinnedSet: told, images: api.PinnedImages(set)})
	}
	return out, nil
}

// reportPins adds the report on pinned images.
func (v *situation) reportPins(r *nodeReport) {
	if v.pinned == nil {
		r.drop(api.PinnedKey)
		return
	}
	r.set(api.PinnedKey, api.Encode(v.pinned))
}

// announcePins announces that all images are pinned, and each new reason why some are not.
func (h *Head) announcePins(was, is api.Node, after *corev1.Node) {
	switch n, old := is.Pinned, was.Pinned; {
	case n == nil || is.Pins == nil || len(is.Pins.Sets) == 0:
	case n.Keeps(is.Pins) && !old.Keeps(is.Pins):
		h.cluster.event(after, corev1.EventTypeNormal, "ImagesPinned", fmt.Sprintf("All %d images of the node's "+
			"PinnedImageSets are pinned", n.Images))
	case n.Error != "" && (old == nil || old.Error != n.Error):
		h.cluster.event(after, corev1.EventTypeWarning, "PinningFailed", pinningFailed(n))
	}
}

// pinningFailed says what failed. A node whose sets have no image gives up those that it has pinned.
func pinningFailed(n *api.Pinned) string {
	switch {
	case n.Unread:
		return "The images of the node's PinnedImageSets are not known: " + n.Error + "; the node serves and keeps the " +
			"images that it has. See that the set is there, and that the agent may get it. The agent tries again by itself"
	case n.Images == 0:
		return "Images that the node is to keep no longer may still be pinned, the node serves as before: " + n.Error
	}
	return fmt.Sprintf("%d of %d images are not pinned, the node serves as before: %s", n.Missing, n.Images, n.Error)
}

// pinnedSets returns the status of a MachineConfigNode about its sets. said is the present one. The API server takes no
// generation below the former one of the same set: where a set was made again, the set is left out once.
func (s *pinsState) pinnedSets(v *situation, said []mcfgv1.MachineConfigNodeStatusPinnedImageSet,
) (out []mcfgv1.MachineConfigNodeStatusPinnedImageSet) {
	o := v.node.Pins
	if o == nil {
		return nil
	}
	// Each of these takes a digest of all sets.
	about, keeps, fails := s.report.About(o), s.report.Keeps(o), s.report.Fails(o)
	for _, told := range o.Sets {
		is := mcfgv1.MachineConfigNodeStatusPinnedImageSet{Name: told.Name, DesiredGeneration: int32(told.Generation)}
		at := slices.IndexFunc(said, func(old mcfgv1.MachineConfigNodeStatusPinnedImageSet) bool {
			return old.Name == told.Name
		})
		if at >= 0 {
			if said[at].DesiredGeneration > is.DesiredGeneration {
				continue
			}
			is.CurrentGeneration = said[at].CurrentGeneration
			is.LastFailedGeneration, is.LastFailedGenerationError = said[at].LastFailedGeneration,
				said[at].LastFailedGenerationError
		}
		read := slices.IndexFunc(s.sets, func(set imageSet) bool { return set.PinnedSet == told })
		switch {
		case keeps || about && read >= 0 && !s.sets[read].lacks:
			is.CurrentGeneration = is.DesiredGeneration
			is.LastFailedGeneration, is.LastFailedGenerationError = 0, ""
		case fails && read >= 0 && s.sets[read].error != "":
			is.LastFailedGeneration, is.LastFailedGenerationError = is.DesiredGeneration, s.sets[read].error
		}
		out = append(out, is)
	}
	return out
}

// pinConditions returns the conditions of a MachineConfigNode about its sets; none for a node that never had any.
func pinConditions(v *situation, had []metav1.Condition) []metav1.Condition {
	const progressing, degraded = mcfgv1.MachineConfigNodePinnedImageSetsProgressing,
		mcfgv1.MachineConfigNodePinnedImageSetsDegraded
	o, p := v.node.Pins, v.pinned
	known := slices.ContainsFunc(had, func(c metav1.Condition) bool { return c.Type == string(progressing) })
	if o == nil && !known {
		return nil
	}
	moves := condition(progressing, o != nil && !p.Keeps(o) && !p.Fails(o), "AsExpected", "")
	fails := condition(degraded, p.Fails(o), "AsExpected", "")
	if moves.Status == metav1.ConditionTrue {
		moves.Reason = "ImagesMissing"
	}
	if fails.Status == metav1.ConditionTrue {
		fails.Reason, fails.Message = "PrefetchFailed", p.Error
	}
	out := []metav1.Condition{moves, fails}
	for i := range out {
		keepTime(&out[i], had, v.now)
	}
	return out
}
