// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/controller/source"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/osimage"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/releases"
)

// what is the part of source.Name that the MachineConfigs have.
const what = "osstream"

// kind is the kind of the controller's objects.
const kind = "OSStream"

// What the lists of a status have at most.
const (
	mostListed      = releases.MostSkipped
	mostQuarantined = 64
)

// world is what a decision depends on besides the streams.
type world struct {
	*source.World
	report *progress.Report
	// members are the nodes of each pool.
	members map[string][]*corev1.Node
	// images has the image of each rendered configuration that a pool or a node has.
	images map[string]string
	now    time.Time
}

// followed is a stream, and what its source said.
type followed struct {
	*api.OSStream
	// offer is nil while the source has never answered.
	offer *releases.Offer
	// away is why the source did not answer the last time, nil if it did, or was not asked.
	away error
}

// decision is what is to be done.
type decision struct {
	write  []*mcfgv1.MachineConfig
	remove []*mcfgv1.MachineConfig
	// status has the status of each stream, by name.
	status map[string]*api.OSStreamStatus
	// withheld has what no further node of a pool goes to; nil: nothing. A pool that is not in it keeps what it has.
	withheld map[string]*api.Withheld
}

// decide chooses a release for each pool of each stream.
func decide(w *world, streams []*followed) decision {
	d := decision{status: map[string]*api.OSStreamStatus{}, withheld: map[string]*api.Withheld{}}
	takers := map[string][]string{}
	for _, s := range streams {
		for _, p := range w.Pools {
			if w.takes(s.OSStream, p) {
				takers[p.Name] = append(takers[p.Name], s.Name)
			}
		}
	}
	keep := map[string]bool{}
	for _, s := range streams {
		status := s.Status.DeepCopy()
		status.Pools = nil
		ready := condition(api.StreamReady, metav1.ConditionTrue, api.StreamInForce, "")
		for _, p := range w.Pools {
			if !slices.Contains(takers[p.Name], s.Name) {
				continue
			}
			name := source.Name(p.Name, what, "")
			keep[name] = true
			if len(takers[p.Name]) > 1 {
				was := entry(&s.Status, p.Name)
				was.Message = fmt.Sprintf("several streams select the pool, which keeps what it has: %s",
					strings.Join(takers[p.Name], ", "))
				status.Pools = append(status.Pools, was)
				ready = condition(api.StreamReady, metav1.ConditionFalse, api.StreamConflict, p.Name+": "+was.Message)
				continue
			}
			o := follow(w, s, p)
			if o.config != nil {
				d.write = append(d.write, o.config)
			}
			keep[name] = !o.remove
			d.withheld[p.Name] = o.withheld
			status.Pools = append(status.Pools, o.entry)
			if o.entry.Message != "" && ready.Status == metav1.ConditionTrue {
				ready = condition(api.StreamReady, metav1.ConditionFalse, api.StreamBlocked, p.Name+": "+o.entry.Message)
			}
		}
		if len(status.Pools) == 0 {
			ready = condition(api.StreamReady, metav1.ConditionFalse, api.StreamNoPool, "no MachineConfigPool is selected")
		}
		if err := check(s.OSStream); err != nil {
			ready = condition(api.StreamReady, metav1.ConditionFalse, api.StreamInvalid, err.Error())
		}
		s.report(status, ready, w.now)
		d.status[s.Name] = status
	}
	for _, mc := range w.Configs {
		if ours(mc) && !keep[mc.Name] {
			d.remove = append(d.remove, mc)
		}
	}
	for _, p := range w.Pools {
		if _, said := d.withheld[p.Name]; !said && len(takers[p.Name]) == 0 {
			d.withheld[p.Name] = nil
		}
	}
	return d
}

// check returns what is wrong with a stream. Where the schema is in force, it refuses most of it before.
func check(s *api.OSStream) error {
	var errs []error
	errs = append(errs, api.Unreadable(s))
	if s.Spec.PoolSelector != nil {
		if _, err := metav1.LabelSelectorAsSelector(s.Spec.PoolSelector); err != nil {
			errs = append(errs, fmt.Errorf("spec.poolSelector: %w", err))
		}
	}
	if v := s.Spec.Source.Versions; v != nil {
		_, err := releases.Range(v.Range, nil, 1)
		errs = append(errs, err)
	}
	if _, err := api.Decode[*api.StreamApproval](s.Annotations, api.StreamApprovedKey); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// takes reports whether a stream is for a pool. A stream that can't be read is for the pools that it was for before.
func (w *world) takes(s *api.OSStream, p *mcfgv1.MachineConfigPool) bool {
	if s.DeletionTimestamp != nil {
		return false
	}
	if slices.Contains(s.Spec.Pools, p.Name) {
		return true
	}
	selector := labels.Nothing()
	err := api.Unreadable(s)
	if err == nil && s.Spec.PoolSelector != nil {
		selector, err = metav1.LabelSelectorAsSelector(s.Spec.PoolSelector)
	}
	if err != nil {
		is := w.Config(source.Name(p.Name, what, ""))
		return is != nil && metav1.IsControlledBy(is, s)
	}
	return selector.Matches(labels.Set(p.Labels))
}

// entry returns what a status says of a pool.
func entry(of *api.OSStreamStatus, pool string) api.OSStreamPool {
	for _, p := range of.Pools {
		if p.Name == pool {
			return *p.DeepCopy()
		}
	}
	return api.OSStreamPool{Name: pool}
}

// accepted is what a MachineConfig was made of. It takes the place of a status that is lost.
type accepted struct {
	Stream   string              `json:"stream"`
	Version  string              `json:"version"`
	Image    string              `json:"image"`
	Previous *api.OSStreamChoice `json:"previous,omitempty"`
}

// outcome is the result for one pool.
type outcome struct {
	entry    api.OSStreamPool
	config   *mcfgv1.MachineConfig
	remove   bool
	withheld *api.Withheld
}

// follow chooses a release for one pool.
func follow(w *world, s *followed, p *mcfgv1.MachineConfigPool) outcome {
	is := w.Config(source.Name(p.Name, what, ""))
	o := outcome{entry: entry(&s.Status, p.Name)}
	if noted, err := api.Decode[*accepted](annotations(is), api.AcceptedKey); o.entry.Image == "" && is != nil &&
		err == nil && noted != nil && noted.Stream == s.Name {
		o.entry.Version, o.entry.Image, o.entry.Previous = noted.Version, noted.Image, noted.Previous
	}
	o.entry.Message = ""
	remember(w, &o.entry, p)
	held, _ := api.Decode[*api.Withheld](p.Annotations, api.WithheldKey)
	if o.withheld = held; s.offer != nil && check(s.OSStream) == nil {
		choice := releases.Choose(s.input(w, p, &o.entry))
		o.apply(choice, w.now)
		o.hold(w, p, s, held, choice.Withheld)
	}
	if o.entry.Image == "" {
		o.remove = true
		return o
	}
	if is != nil && !ours(is) {
		o.entry.Message = fmt.Sprintf("MachineConfig/%s is there, and not of the controller's making: rename or delete it",
			is.Name)
		return o
	}
	mc, err := s.config(p, &o.entry)
	if err != nil {
		o.entry.Message = err.Error()
		return o
	}
	if o.config = source.Onto(is, mc); source.Same(is, o.config) {
		o.config = nil
	}
	o.entry.Message = overridden(w, p, mc)
	return o
}

func annotations(mc *mcfgv1.MachineConfig) map[string]string {
	if mc == nil {
		return nil
	}
	return mc.Annotations
}

// apply writes a choice into the entry. A stream that chooses nothing leaves what the pool has, unless the pool has to
// go back.
func (o *outcome) apply(c releases.Choice, now time.Time) {
	e := &o.entry
	e.Skipped = nil
	for _, skipped := range c.Skipped {
		e.Skipped = append(e.Skipped, api.OSStreamSkipped{
			Version: skipped.Version, Reason: string(skipped.Reason), Message: api.ShortReason(skipped.Message),
		})
	}
	e.Withheld = api.ShortReason(c.Withheld)
	switch {
	case c.Take != nil && releases.Digest(c.Take.Image) == releases.Digest(e.Image):
		e.Version, e.Image = c.Take.Version, c.Take.Image
		return
	case c.Take == nil && !c.Back:
		return
	}
	e.Previous, e.Since = nil, nil
	if !c.Back && e.Image != "" {
		e.Previous = &api.OSStreamChoice{Version: e.Version, Image: e.Image}
	}
	e.Version, e.Image = "", ""
	if c.Take != nil {
		e.Version, e.Image, e.Since = c.Take.Version, c.Take.Image, &metav1.Time{Time: now.Truncate(time.Second)}
	}
}

// hold finds out what no further node of the pool goes to. What was withheld stays so until the pool's target has
// another image.
func (o *outcome) hold(w *world, p *mcfgv1.MachineConfigPool, s *followed, was *api.Withheld, why string) {
	switch {
	case why != "":
		o.withheld = &api.Withheld{
			Stream: s.Name, Version: o.entry.Version, Image: o.entry.Image, Reason: api.ShortReason(why),
			Since: w.now.UTC().Truncate(time.Second),
		}
		if was != nil && was.Stream == s.Name && was.Image == o.entry.Image {
			o.withheld.Since = was.Since
		}
	case was != nil && releases.Digest(was.Image) == releases.Digest(o.entry.Image),
		was != nil && releases.Digest(was.Image) != releases.Digest(w.images[p.Spec.Configuration.Name]):
		o.withheld = nil
	}
}

// input is what a choice depends on.
func (s *followed) input(w *world, p *mcfgv1.MachineConfigPool, e *api.OSStreamPool) releases.Input {
	in := releases.Input{Offer: s.offer, Now: w.now, Rules: releases.Rules{
		Highest: s.Spec.HighestVersion, MinAge: time.Duration(s.Spec.MinAgeMinutes) * time.Minute,
		Manual: s.Spec.Approval == api.StreamManual, Wariness: 0.5, Admit: s.admit(w, p),
	}}
	if f := s.Spec.Source.FedoraCoreOS; f != nil && f.WarinessPercent != nil {
		in.Wariness = float64(*f.WarinessPercent) / 100
	} else if f == nil {
		in.Wariness = 1
	}
	if a, err := api.Decode[*api.StreamApproval](s.Annotations, api.StreamApprovedKey); err == nil && a != nil {
		in.Approved = a.Version
	}
	if e.Image != "" {
		in.Current = &releases.Taken{Version: e.Version, Image: e.Image}
	}
	if e.Previous != nil {
		in.Previous = &releases.Taken{Version: e.Previous.Version, Image: e.Previous.Image}
	}
	for _, q := range e.Quarantined {
		in.Failures = append(in.Failures, releases.Failure{
			Version: q.Version, Image: q.Image, Node: q.Node, Reason: q.Reason,
		})
	}
	for _, n := range w.members[p.Name] {
		in.Nodes = append(in.Nodes, s.node(w, n))
	}
	return in
}

// node finds out which release a node runs: by the image of its configuration, or else by how it describes its OS. A
// node that is on its way counts as there, and a node that has only committed its configuration does not.
func (s *followed) node(w *world, n *corev1.Node) releases.Node {
	out := releases.Node{Name: n.Name, Arch: cmp.Or(n.Status.NodeInfo.Architecture, n.Labels[corev1.LabelArchStable])}
	current, desired := n.Annotations[api.CurrentConfig], n.Annotations[api.DesiredConfig]
	out.Image = w.images[current]
	out.Version = cmp.Or(s.offer.VersionOf(out.Image), s.offer.VersionIn(n.Status.NodeInfo.OSImage))
	going := current != desired && api.State(n.Annotations[api.StateKey]) == api.Working
	if is, _, known := w.report.Node(n.Name); going && (!known || !is.OnlyCommitted()) {
		out.Image = w.images[desired]
	}
	return out
}

// admit returns the check of the signature policy that the pool's MachineConfigs bring. Where they bring none, the
// policy of each host decides, which is not known here.
func (s *followed) admit(w *world, p *mcfgv1.MachineConfigPool) func(string) error {
	around, err := source.AroundOf(p, w.Configs, "~", ours)
	if err != nil {
		return nil // the pool reports the error
	}
	beneath, err := around.Beneath(p.Name)
	if err != nil {
		return nil
	}
	text := source.Contents(beneath, osimage.PolicyPath)
	if text == nil {
		return nil
	}
	return func(image string) error {
		policy, err := osimage.ParsePolicy(osimage.PolicyPath, text)
		if err != nil {
			return fmt.Errorf("the pool's MachineConfigs bring a signature policy that can't be read: %w", err)
		}
		parsed, err := osimage.ParseImage(s.reference(image))
		if err == nil {
			_, err = policy.Admit(parsed)
		}
		return err
	}
}

// reference returns the osImageURL of an image.
func (s *followed) reference(image string) string {
	if s.Spec.Signature == api.SignatureRequired {
		return "ostree-image-signed:docker://" + image
	}
	return image
}

// config makes the MachineConfig of a pool.
func (s *followed) config(p *mcfgv1.MachineConfigPool, e *api.OSStreamPool) (*mcfgv1.MachineConfig, error) {
	raw, err := source.Ignition(nil, nil, nil)
	if err != nil {
		return nil, err
	}
	mc := source.Config(p.Name, source.Name(p.Name, what, ""), raw)
	mc.Spec.OSImageURL = s.reference(e.Image)
	mc.Annotations = map[string]string{
		api.AcceptedKey:          api.Encode(accepted{s.Name, e.Version, e.Image, e.Previous}),
		machineconfig.ReleaseKey: s.Name + " " + e.Version,
	}
	mc.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: api.GroupVersion.String(), Kind: kind, Name: s.Name, UID: s.UID, Controller: new(true),
	}}
	return mc, nil
}

// overridden returns why the MachineConfig that was made has no effect.
func overridden(w *world, p *mcfgv1.MachineConfigPool, mc *mcfgv1.MachineConfig) string {
	selected, err := source.Selected(p, p.Name)
	if err != nil {
		return err.Error()
	}
	if !selected {
		return fmt.Sprintf("spec.machineConfigSelector of MachineConfigPool/%s does not select MachineConfigs labelled "+
			"%s=%s, such as %s", p.Name, api.Role, p.Name, mc.Name)
	}
	selector, err := metav1.LabelSelectorAsSelector(p.Spec.MachineConfigSelector)
	if err != nil {
		return err.Error()
	}
	for _, other := range w.Configs {
		if other.Spec.OSImageURL != "" && other.Annotations[api.GeneratedBy] == "" &&
			selector.Matches(labels.Set(other.Labels)) {
			return fmt.Sprintf("MachineConfig/%s sets osImageURL, which wins: take it away, and the stream's release counts",
				other.Name)
		}
	}
	return ""
}

// ours reports whether this controller made a MachineConfig.
func ours(mc *mcfgv1.MachineConfig) bool {
	_, marked := mc.Annotations[api.GeneratedBy]
	return marked && source.IsNamed(mc.Name, what)
}

// remember notes that the pool's release failed, and forgets failures whose quarantine was lifted. The release failed
// if a configuration with its image is quarantined, and the node that it failed on has another image. Otherwise the
// node had the image before, and something else of the configuration failed.
func remember(w *world, e *api.OSStreamPool, p *mcfgv1.MachineConfigPool) {
	lifts, _ := progress.Lifted(p)
	e.Quarantined = slices.DeleteFunc(e.Quarantined, func(q api.OSStreamQuarantined) bool {
		return slices.ContainsFunc(lifts, func(l api.Lifted) bool { return l.Covers(q.AsQuarantine()) })
	})
	pool, known := w.report.Pool(p.Name)
	if !known || !stopped(p) {
		return
	}
	q, image := pool.Quarantine(), w.images[pool.Target]
	if q == nil || e.Image == "" || releases.Digest(image) != releases.Digest(e.Image) || !blamed(w, p, q, image) ||
		slices.ContainsFunc(e.Quarantined, func(o api.OSStreamQuarantined) bool {
			return releases.Digest(o.Image) == releases.Digest(image)
		}) {
		return
	}
	noted := api.OSStreamQuarantined{
		Version: e.Version, Image: e.Image, Config: q.Config, Node: q.Node, Reason: api.ShortReason(q.Reason),
	}
	if !q.Since.IsZero() {
		noted.Since = &metav1.Time{Time: q.Since}
	}
	e.Quarantined = append(e.Quarantined[max(0, len(e.Quarantined)+1-mostQuarantined):], noted)
}

// stopped reports whether the pool controller says that the pool's configuration is quarantined. It knows the failure
// budget of the pool's policy.
func stopped(p *mcfgv1.MachineConfigPool) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c mcfgv1.MachineConfigPoolCondition) bool {
		return c.Type == api.PoolQuarantined && c.Status == corev1.ConditionTrue
	})
}

func blamed(w *world, p *mcfgv1.MachineConfigPool, q *api.Quarantine, image string) bool {
	other := func(n *corev1.Node) bool {
		return releases.Digest(w.images[n.Annotations[api.CurrentConfig]]) != releases.Digest(image)
	}
	if q.Node == "" {
		return slices.ContainsFunc(w.members[p.Name], other)
	}
	for _, n := range w.Nodes {
		if n.Name == q.Node {
			return other(n)
		}
	}
	return true
}

// report writes what the source said, and whether the stream is in force.
func (s *followed) report(status *api.OSStreamStatus, ready metav1.Condition, now time.Time) {
	status.ObservedGeneration = s.Generation
	all := []metav1.Condition{ready}
	if s.away != nil {
		all = append(all, condition(api.StreamSource, metav1.ConditionFalse, api.StreamAway, "the source does not answer; "+
			"what was chosen stays: "+s.away.Error()))
	} else if s.offer != nil {
		all = append(all, condition(api.StreamSource, metav1.ConditionTrue, api.StreamAnswers, ""))
	}
	for _, c := range all {
		c.ObservedGeneration, c.LastTransitionTime = s.Generation, metav1.NewTime(now.Truncate(time.Second))
		meta.SetStatusCondition(&status.Conditions, c)
	}
	if s.offer == nil {
		return
	}
	status.Releases = nil
	for _, r := range slices.Backward(s.offer.Releases) {
		if len(status.Releases) == mostListed {
			break
		}
		status.Releases = append(status.Releases, api.OSStreamRelease{
			Version: r.Version, Images: named(r.Images), Since: metav1.NewTime(r.Since.Truncate(time.Second)),
		})
	}
}

// named returns images by architecture for people.
func named(images map[string]string) map[string]string {
	out := maps.Clone(images)
	if image, is := out[releases.Any]; is {
		delete(out, releases.Any)
		out["any"] = image
	}
	return out
}

func condition(name string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{Type: name, Status: status, Reason: reason, Message: api.ShortReason(message)}
}
