// SPDX-License-Identifier: Apache-2.0

// Package stream follows the releases of operating systems. It asks the sources of OSStreams what they offer, has
// package releases choose a release for each pool, and writes a MachineConfig with its image by digest. Everything else
// is as for any other MachineConfig: nodes stage ahead, wait for approvals and windows, and quarantine what fails.
package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	configv1 "github.com/openshift/api/config/v1"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	operatorv1alpha1 "github.com/openshift/api/operator/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/controller/imagemirror"
	"github.com/noderefit/noderefit/controller/source"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/releases"
)

// Name is the controller's name.
const Name = "stream"

const (
	// pace is the time between two looks without a change. Nodes arrive and fail without a change that is watched.
	pace = 10 * time.Second
	// retryFrom is how long after a failure a source is asked again: doubled each time, to the interval at most.
	retryFrom = 15 * time.Second
	// interval is how often a source is asked where the stream does not say.
	interval = 30 * time.Minute
)

// Add adds the controller to a manager. The MachineConfigs that it makes name version as their maker, "unknown" if
// empty. The manager's cache should have source.CacheOptions.
func Add(mgr ctrl.Manager, version string) error {
	scheme := mgr.GetScheme()
	err := errors.Join(mcfgv1.Install(scheme), configv1.Install(scheme), operatorv1alpha1.Install(scheme),
		api.Install(scheme))
	if err != nil {
		return fmt.Errorf("adding controller %s: %w", Name, err)
	}
	r := &reconciler{
		client: mgr.GetClient(), live: mgr.GetAPIReader(), version: cmp.Or(version, "unknown"),
		sources: map[string]*asked{}, images: map[string]string{}, gauges: newGauges(),
	}
	if err := metrics.Registry.Register(r.gauges); err != nil && !errors.As(err, &alreadyRegistered) {
		return fmt.Errorf("adding controller %s: %w", Name, err)
	}
	kinds := append([]client.Object{&api.OSStream{}}, imagemirror.Kinds()...)
	return source.Controller{Name: Name, Kinds: kinds, Look: r.look, Every: pace}.Add(mgr)
}

// reconciler is used by one worker. Only asking the sources is done by several goroutines, each for another stream.
type reconciler struct {
	client  client.Client
	live    client.Reader
	version string
	sources map[string]*asked
	// images has the image of each rendered configuration, whose content never changes.
	images map[string]string
	gauges *gauges
}

// asked is what a source said.
type asked struct {
	fetcher *fetcher
	// generation and arches are what the source was asked for.
	generation int64
	arches     []string
	offer      *releases.Offer
	away       error
	failures   int
	next       time.Time
}

func (r *reconciler) look(ctx context.Context, has func(client.Object) bool) error {
	if !has(&api.OSStream{}) {
		return nil
	}
	var list api.OSStreamList
	if err := r.client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing OSStreams: %w", err)
	}
	w, err := r.world(ctx)
	if err != nil {
		return err
	}
	mirrors, err := imagemirror.Sources(ctx, r.client, has)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	var anew atomic.Bool
	streams := make([]*followed, len(list.Items))
	known := map[string]*asked{}
	for i := range list.Items {
		s := &list.Items[i]
		a := r.sources[s.Name]
		if a == nil {
			a = &asked{}
		}
		known[s.Name] = a
		streams[i] = &followed{OSStream: s}
		q := question{source: &s.Spec.Source, arches: w.arches(s), mirrors: mirrors, listed: s.Status.Releases}
		wg.Go(func() {
			if r.ask(ctx, s, a, q, w.now) {
				anew.Store(true)
			}
			streams[i].offer, streams[i].away = a.offer, a.away
		})
	}
	wg.Wait()
	if anew.Load() { // sources may take half a minute, in which nodes go to a release
		if w, err = r.world(ctx); err != nil {
			return err
		}
	}
	r.sources = known
	slices.SortFunc(streams, func(a, b *followed) int { return cmp.Compare(a.Name, b.Name) })
	for _, s := range streams {
		s.seen()
	}
	r.gauges.say(streams)
	return r.carryOut(ctx, w, streams, decide(w, streams))
}

// ask asks a source if that is due, and reports whether it was. A source that does not answer changes nothing of what
// it said before.
func (r *reconciler) ask(ctx context.Context, s *api.OSStream, a *asked, q question, now time.Time) bool {
	if a.generation != s.Generation {
		*a = asked{generation: s.Generation, fetcher: newFetcher()}
	}
	if !slices.Equal(a.arches, q.arches) {
		a.arches, a.next = q.arches, time.Time{}
	}
	if now.Before(a.next) || check(s) != nil {
		return false
	}
	every := cmp.Or(time.Duration(s.Spec.IntervalSeconds)*time.Second, interval)
	offer, err := r.fetch(ctx, s, a, q)
	if err != nil {
		a.away = err
		a.next = now.Add(min(every, retryFrom<<min(a.failures, 10)))
		a.failures++
		logf.FromContext(ctx).Info("the source does not answer", "stream", s.Name, "error", err.Error(), "again", a.next)
		return true
	}
	a.offer, a.away, a.failures, a.next = offer, nil, 0, now.Add(every)
	return true
}

func (r *reconciler) fetch(ctx context.Context, s *api.OSStream, a *asked, q question) (*releases.Offer, error) {
	if name := s.Spec.PullSecret; name != "" {
		secret := &corev1.Secret{}
		if err := r.live.Get(ctx, client.ObjectKey{Namespace: api.Namespace, Name: name}, secret); err != nil {
			return nil, fmt.Errorf("spec.pullSecret: reading Secret/%s in %s: %w", name, api.Namespace, err)
		}
		q.secret = secret.Data[corev1.DockerConfigJsonKey]
		if q.secret == nil {
			return nil, fmt.Errorf("spec.pullSecret: Secret/%s in %s has no %s", name, api.Namespace, corev1.DockerConfigJsonKey)
		}
	}
	return a.fetcher.offer(ctx, q)
}

// seen gives each release without a time the time at which it was seen first.
func (s *followed) seen() {
	if s.offer == nil {
		return
	}
	offer := *s.offer
	offer.Releases = slices.Clone(offer.Releases)
	for i := range offer.Releases {
		r := &offer.Releases[i]
		for _, known := range s.Status.Releases {
			if r.Since.IsZero() && known.Version == r.Version && maps.Equal(known.Images, named(r.Images)) {
				r.Since = known.Since.Time
			}
		}
		if r.Since.IsZero() {
			r.Since = time.Now()
		}
	}
	s.offer = &offer
}

// world reads what a decision depends on.
func (r *reconciler) world(ctx context.Context) (*world, error) {
	read, err := source.Read(ctx, r.client)
	if err != nil {
		return nil, err
	}
	w := &world{World: read, members: map[string][]*corev1.Node{}, images: map[string]string{}, now: time.Now()}
	view := progress.View{}
	for _, p := range w.Pools {
		view.Pools = append(view.Pools, *p)
	}
	members := progress.NewMembership(view.Pools)
	needed := map[string]bool{}
	for _, n := range w.Nodes {
		view.Nodes = append(view.Nodes, *n)
		if pool, _ := members.Of(n); pool != "" {
			w.members[pool] = append(w.members[pool], n)
		}
		needed[n.Annotations[api.CurrentConfig]], needed[n.Annotations[api.DesiredConfig]] = true, true
	}
	for _, p := range w.Pools {
		needed[p.Spec.Configuration.Name] = true
	}
	w.report = progress.NewReport(view)
	delete(needed, "")
	for name := range needed {
		image, known := r.images[name]
		if !known {
			mc := &mcfgv1.MachineConfig{}
			if err := r.live.Get(ctx, client.ObjectKey{Name: name}, mc); apierrors.IsNotFound(err) {
				continue
			} else if err != nil {
				return nil, fmt.Errorf("reading MachineConfig/%s: %w", name, err)
			}
			image = mc.Spec.OSImageURL
		}
		w.images[name] = image
	}
	r.images = w.images
	return w, nil
}

// arches returns the architectures of a stream's pools.
func (w *world) arches(s *api.OSStream) []string {
	var out []string
	for _, p := range w.Pools {
		if !w.takes(s, p) {
			continue
		}
		for _, n := range w.members[p.Name] {
			if arch := cmp.Or(n.Status.NodeInfo.Architecture, n.Labels[corev1.LabelArchStable]); arch != "" {
				out = append(out, arch)
			}
		}
	}
	slices.Sort(out)
	if out = slices.Compact(out); len(out) == 0 {
		return []string{"amd64"}
	}
	return out
}

// carryOut writes what was decided. A failure is remembered, and nodes are held, before a MachineConfig changes.
func (r *reconciler) carryOut(ctx context.Context, w *world, streams []*followed, d decision) error {
	var errs []error
	for _, s := range streams {
		if s.DeletionTimestamp != nil || equality.Semantic.DeepEqual(&s.Status, d.status[s.Name]) {
			continue
		}
		changed := s.DeepCopy()
		changed.Status = *d.status[s.Name]
		patch := client.MergeFromWithOptions(client.Object(s.OSStream), client.MergeFromWithOptimisticLock{})
		if err := r.client.Status().Patch(ctx, changed, patch); err != nil {
			errs = append(errs, fmt.Errorf("setting the status of OSStream/%s: %w", s.Name, err))
		}
	}
	if len(errs) > 0 {
		return source.Worst(errs)
	}
	for _, p := range w.Pools {
		if want, said := d.withheld[p.Name]; said {
			errs = append(errs, r.withhold(ctx, p, want))
		}
	}
	for _, mc := range d.write {
		mc.Annotations[api.GeneratedBy] = r.version
		errs = append(errs, source.Write(ctx, r.client, w.Config(mc.Name), mc))
	}
	for _, mc := range d.remove {
		errs = append(errs, source.Remove(ctx, r.client, mc))
	}
	return source.Worst(errs)
}

// withhold writes the annotation of a pool, where it has changed.
func (r *reconciler) withhold(ctx context.Context, p *mcfgv1.MachineConfigPool, want *api.Withheld) error {
	text := ""
	if want != nil {
		text = api.Encode(want)
	}
	if p.Annotations[api.WithheldKey] == text {
		return nil
	}
	changed := p.DeepCopy()
	if changed.Annotations == nil {
		changed.Annotations = map[string]string{}
	}
	delete(changed.Annotations, api.WithheldKey)
	if text != "" {
		changed.Annotations[api.WithheldKey] = text
	}
	if err := r.client.Patch(ctx, changed, client.MergeFrom(p)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("holding MachineConfigPool/%s: %w", p.Name, err)
	}
	logf.FromContext(ctx).Info("said what is withheld", "pool", p.Name, "withheld", text)
	return nil
}
