// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/message"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/rollout"
)

// Streams are the OSStreams of a cluster.
type Streams []streamDocument

// streamDocument is what an OSStream follows and chose, and its JSON.
type streamDocument struct {
	api.Header

	Name   string `json:"name"`
	Source string `json:"source"`
	// Ready is why the stream is not in force, empty while it is. Away is since when and why the source does not answer.
	Ready string      `json:"ready,omitempty"`
	Away  *streamAway `json:"away,omitempty"`
	// Approval is the person's approval of a release.
	Approval *api.StreamApproval `json:"approval,omitempty"`
	// Releases are what the source offers, the newest first.
	Releases []streamRelease `json:"releases"`
	Pools    []streamPool    `json:"pools"`
}

// streamAway is since when a source does not answer, and why.
type streamAway struct {
	Since  time.Time `json:"since"`
	Reason string    `json:"reason"`
}

// streamRelease is a release that the source offers.
type streamRelease struct {
	Version string            `json:"version"`
	Since   time.Time         `json:"since"`
	Images  map[string]string `json:"images,omitempty"`
}

// streamPool is what was chosen for a pool.
type streamPool struct {
	Name     string    `json:"name"`
	Version  string    `json:"version,omitempty"`
	Image    string    `json:"image,omitempty"`
	Since    time.Time `json:"since,omitzero"`
	Withheld string    `json:"withheld,omitempty"`
	Message  string    `json:"message,omitempty"`
	// Skipped are the newer releases that were not chosen. Quarantined are the versions that failed in the pool.
	Skipped     []streamSkipped `json:"skipped"`
	Quarantined []string        `json:"quarantined,omitempty"`
}

// streamSkipped is a release that was not chosen, with the reason in one word and in a sentence.
type streamSkipped struct {
	Version string `json:"version"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

const streamResource = "osstreams"

// Streams lists what the cluster's OSStreams follow, all of them or the named one.
func (c *Cluster) Streams(ctx context.Context, only []string) (Streams, error) {
	var list api.OSStreamList
	err := c.own.Get().Resource(streamResource).Do(ctx).Into(&list)
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("listing OSStreams: %w", err)
	}
	out := Streams{}
	for i := range list.Items {
		if s := &list.Items[i]; len(only) == 0 || slices.Contains(only, s.Name) {
			out = append(out, document(s))
		}
	}
	if len(only) > 0 && len(out) == 0 {
		return nil, fmt.Errorf("there is no OSStream %s", only[0])
	}
	return out, nil
}

// StreamNames are the names of the cluster's OSStreams.
func (c *Cluster) StreamNames(ctx context.Context) ([]string, error) {
	all, err := c.Streams(ctx, nil)
	var out []string
	for _, s := range all {
		out = append(out, s.Name)
	}
	return out, err
}

func document(s *api.OSStream) streamDocument {
	d := streamDocument{
		Header: api.NewHeader("Stream"), Name: s.Name, Source: sourceText(&s.Spec.Source),
		Releases: []streamRelease{}, Pools: []streamPool{},
	}
	d.Approval, _ = api.Decode[*api.StreamApproval](s.Annotations, api.StreamApprovedKey)
	switch ready := meta.FindStatusCondition(s.Status.Conditions, api.StreamReady); {
	case ready == nil || s.Status.ObservedGeneration != s.Generation:
		d.Ready = "the controller has not looked at it yet"
	case ready.Status != metav1.ConditionTrue:
		d.Ready = ready.Message
	}
	away := meta.FindStatusCondition(s.Status.Conditions, api.StreamSource)
	if away != nil && away.Status == metav1.ConditionFalse {
		d.Away = &streamAway{away.LastTransitionTime.Time, away.Message}
	}
	for _, r := range s.Status.Releases {
		d.Releases = append(d.Releases, streamRelease{r.Version, r.Since.Time, r.Images})
	}
	for _, p := range s.Status.Pools {
		out := streamPool{
			Name: p.Name, Version: p.Version, Image: p.Image, Withheld: p.Withheld, Message: p.Message,
			Skipped: []streamSkipped{},
		}
		if p.Since != nil {
			out.Since = p.Since.Time
		}
		for _, skipped := range p.Skipped {
			out.Skipped = append(out.Skipped, streamSkipped(skipped))
		}
		for _, q := range p.Quarantined {
			out.Quarantined = append(out.Quarantined, q.Version)
		}
		d.Pools = append(d.Pools, out)
	}
	return d
}

func sourceText(s *api.OSStreamSource) string {
	switch {
	case s.Tag != nil:
		return "tag " + s.Tag.Image
	case s.Versions != nil:
		return fmt.Sprintf("versions %s of %s", s.Versions.Range, s.Versions.Repository)
	case s.FedoraCoreOS != nil:
		return "Fedora CoreOS " + s.FedoraCoreOS.Stream
	case s.Cincinnati != nil:
		return strings.TrimSpace("graph " + s.Cincinnati.URL + " " + s.Cincinnati.Channel)
	}
	return "none"
}

// Names implements named.
func (all Streams) Names() []progress.Object {
	var out []progress.Object
	for _, s := range all {
		out = append(out, progress.Object{Kind: "OSStream", Name: s.Name})
	}
	return out
}

// WriteText writes the streams for people.
func (all Streams) WriteText(w io.Writer, now time.Time) error {
	if len(all) == 0 {
		_, err := fmt.Fprintln(w, "the cluster follows no releases: no OSStream is there")
		return err
	}
	for i, s := range all {
		if i > 0 {
			fmt.Fprintln(w)
		}
		if err := s.writeText(w, now); err != nil {
			return err
		}
	}
	return nil
}

func (s *streamDocument) writeText(w io.Writer, now time.Time) error {
	fmt.Fprintf(w, "%s follows %s\n", s.Name, s.Source)
	if s.Ready != "" {
		fmt.Fprintf(w, "  not in force: %s\n", message.OneLine(s.Ready))
	}
	if s.Away != nil {
		fmt.Fprintf(w, "  away for %s: %s\n", age(now, s.Away.Since), message.OneLine(s.Away.Reason))
	}
	if a := s.Approval; a != nil {
		fmt.Fprintf(w, "  approved %s by %s, %s ago: %s\n", a.Version, a.By, age(now, a.Since),
			cmp.Or(a.Why, "no reason given"))
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for i, r := range s.Releases {
		if i == 0 {
			fmt.Fprintln(tw, "  RELEASE\tAGE\tFOR")
		}
		fmt.Fprintf(tw, "  %s\t%s\t%s\n", r.Version, age(now, r.Since), strings.Join(slices.Sorted(maps.Keys(r.Images)), ","))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	for _, p := range s.Pools {
		fmt.Fprintf(w, "  pool %s: %s %s\n", p.Name, cmp.Or(p.Version, "nothing chosen"), p.Image)
		if p.Withheld != "" {
			fmt.Fprintf(w, "    no further node goes there: %s\n", message.OneLine(p.Withheld))
		}
		for _, skipped := range p.Skipped {
			fmt.Fprintf(w, "    not %s: %s\n", skipped.Version, message.OneLine(skipped.Message))
		}
	}
	return nil
}

// ApproveRelease lets a stream choose a release. why is for the record.
func (c *Cluster) ApproveRelease(ctx context.Context, stream, version, why string) (said string, err error) {
	who, err := c.whoami(ctx)
	if err != nil {
		return "", err
	}
	approval := api.StreamApproval{
		Version: version, By: who, Why: message.OneLine(why), Since: rollout.Now().UTC().Truncate(time.Second),
	}
	err = retry.RetryOnConflict(meanwhile, func() error { return c.approveRelease(ctx, stream, approval) })
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("stream %s: approved %s", stream, version), nil
}

// approveRelease writes an approval of a release that the stream offers.
func (c *Cluster) approveRelease(ctx context.Context, stream string, approval api.StreamApproval) error {
	s := &api.OSStream{}
	if err := c.own.Get().Resource(streamResource).Name(stream).Do(ctx).Into(s); err != nil {
		return fmt.Errorf("reading OSStream %s: %w", stream, err)
	}
	var have []string
	for _, r := range s.Status.Releases {
		have = append(have, r.Version)
	}
	if !slices.Contains(have, approval.Version) {
		return fmt.Errorf("OSStream %s offers no release %s, but %s", stream, approval.Version,
			cmp.Or(strings.Join(have, ", "), "none yet"))
	}
	patch := api.Encode(map[string]any{"metadata": map[string]any{
		"resourceVersion": s.ResourceVersion, "annotations": map[string]any{api.StreamApprovedKey: api.Encode(approval)},
	}})
	err := c.own.Patch(types.MergePatchType).Resource(streamResource).Name(stream).
		Param("fieldManager", fieldManager).Body([]byte(patch)).Do(ctx).Error()
	if err != nil {
		return fmt.Errorf("changing OSStream %s: %w", stream, err)
	}
	return nil
}
