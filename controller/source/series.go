// SPDX-License-Identifier: Apache-2.0

package source

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/noderefit/noderefit/api"
)

// lastNumber is the highest place that an object can have, since names sort by one digit.
const lastNumber = 9

// Reasons of the conditions of objects in a series.
const (
	ReasonRendered   = "Rendered"
	ReasonInvalid    = "Invalid"      // the object itself is wrong
	ReasonSelector   = "NoPool"       // the object is for no pool
	ReasonOrder      = "NoOrder"      // it has no place of its own among the objects of its pools
	ReasonBase       = "BaseUnusable" // the configuration beneath it can't be read
	ReasonForeign    = "NameTaken"    // a MachineConfig of another maker has the name
	ReasonUnselected = "NotSelected"  // the pool does not select the MachineConfig
	ReasonOverridden = "Overridden"   // a MachineConfig of higher precedence wins
	reasonWrite      = "WriteFailed"  // the API server refused the MachineConfig
)

// Series is a kind of objects. Several of them can be for one pool, each on top of earlier ones. T is the kind. S is
// the content of an object's spec, without the selector of its pools.
type Series[T client.Object, S any] struct {
	// Kind is the kind of the objects. What is the word for the kind in the names of MachineConfigs.
	Kind, What string
	// Spec returns the content of an object, and the selector of its pools.
	Spec func(T) (*S, *metav1.LabelSelector)
	// Base returns what a pool has without the objects.
	Base func(w *World, pool *mcfgv1.MachineConfigPool, around *Around) (Layer[S], error)
}

// Layer is the merged content of a pool's objects so far.
type Layer[S any] interface {
	// Over returns the layer with one more object on top, and does not change the layer itself. Errors name the wrong
	// field of the object.
	Over(spec *S) (Layer[S], error)
	// Ignition returns the config that brings the content to a host. paths are those that have no effect if a later
	// MachineConfig has them.
	Ignition() (config []byte, paths []string, err error)
}

// Decision is what is to be done, by names in order.
type Decision struct {
	// Write are MachineConfigs as they are to be. Remove are MachineConfigs that are to be deleted.
	Write, Remove []*mcfgv1.MachineConfig
	// Objects has all objects, by name.
	Objects map[string]*Verdict
}

// Verdict is the result for one object.
type Verdict struct {
	Object client.Object
	// Number is the object's place, -1 if it has none.
	Number int
	// Configs are the object's MachineConfigs: the existing ones and the desired ones.
	Configs map[string]bool

	pools    []*mcfgv1.MachineConfigPool
	problems []problem
	// unread means that the object's pools are not known, so all its MachineConfigs stay. misplaced means that its place
	// in them is not known.
	unread, misplaced bool
}

// problem is a problem of an object. waits means that the object need not change, since what it lacks may come.
type problem struct {
	reason, message string
	waits           bool
}

// say adds a problem. The same problem in several pools is added once.
func (v *Verdict) say(reason, format string, args ...any) {
	v.add(problem{reason, strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; "), false})
}

// wait adds that something is lacking. Pools and their objects are often applied together, in any order. So the first
// look at one is no failure if the other is missing.
func (v *Verdict) wait(reason, format string, args ...any) {
	v.add(problem{reason, strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; "), true})
}

func (v *Verdict) add(p problem) {
	if !slices.Contains(v.problems, p) {
		v.problems = append(v.problems, p)
	}
}

// Findings are what was found about an object.
type Findings struct {
	// Wrong is what is wrong with the object. Waits is what the object waits for. Each is nil if there is none.
	Wrong, Waits error
	// Pools are the names of the pools that the object is for. Unread means that they are not known.
	Pools  []string
	Unread bool
}

// Found returns what was found about an object.
func (v *Verdict) Found() Findings {
	f := Findings{Unread: v.unread}
	for _, p := range v.problems {
		to := &f.Wrong
		if p.waits {
			to = &f.Waits
		}
		*to = errors.Join(*to, errors.New(p.message))
	}
	for _, p := range v.pools {
		f.Pools = append(f.Pools, p.Name)
	}
	return f
}

// Conditions returns the conditions of an object. Readers use the last one; Success is its older name. Failure comes
// first, and only while there is one: operators take an object for failed if Failure is the first of the conditions
// that have changed last.
func (v *Verdict) Conditions() []metav1.Condition {
	good, waits, bad := metav1.ConditionTrue, metav1.ConditionFalse, metav1.ConditionFalse
	reason, message := ReasonRendered, "Success"
	if len(v.problems) > 0 {
		var said []string
		for _, p := range v.problems {
			said = append(said, p.message)
		}
		good, reason = metav1.ConditionFalse, v.problems[0].reason
		if waits = metav1.ConditionTrue; slices.ContainsFunc(v.problems, func(p problem) bool { return !p.waits }) {
			waits, bad = metav1.ConditionFalse, metav1.ConditionTrue
		}
		message = api.ShortReason(strings.Join(said, "; "))
	}
	out := []metav1.Condition{
		{Type: string(mcfgv1.KubeletConfigSuccess), Status: good, Reason: reason, Message: message},
		{Type: api.Reconciling, Status: waits, Reason: reason, Message: message},
		{Type: api.Stalled, Status: bad, Reason: reason, Message: message},
		{Type: string(mcfgv1.KubeletConfigAccepted), Status: good, Reason: reason, Message: message},
	}
	if len(v.problems) == 0 {
		return out
	}
	failure := metav1.Condition{
		Type: string(mcfgv1.KubeletConfigFailure), Status: metav1.ConditionTrue, Reason: reason, Message: message,
	}
	return slices.Insert(out, 0, failure)
}

// timed sets the times of conditions at an instant. A condition keeps its time while its status stays. The first
// condition reports whether the object has failed. It gets a new time whenever another condition gets one.
func timed(conditions, before []metav1.Condition, now metav1.Time) {
	for i, next := range conditions {
		conditions[i].LastTransitionTime = now
		for _, old := range before {
			if old.Type == next.Type && old.Status == next.Status {
				conditions[i].LastTransitionTime = old.LastTransitionTime
			}
		}
		if first := &conditions[0].LastTransitionTime; first.Before(&conditions[i].LastTransitionTime) {
			*first = conditions[i].LastTransitionTime
		}
	}
}

// SuffixOf returns the suffix for a place.
func SuffixOf(number int) string {
	if number == 0 {
		return ""
	}
	return strconv.Itoa(number)
}

// Decide makes all decisions of a series. If an object is wrong, its last accepted content stays in force, for itself
// and in the objects above it. A wrong object holds up neither other objects nor those below it.
func (s Series[T, S]) Decide(w *World, objects []T, version string) *Decision {
	d := &Decision{Objects: map[string]*Verdict{}}
	at := s.seat(w, objects)
	keep := map[string]bool{}
	for _, v := range at.all {
		d.Objects[v.Object.GetName()] = v
	}
	for name, v := range at.holders {
		if v != nil {
			v.Configs[name] = true
			keep[name] = v.unread
		}
	}
	for _, pool := range inOrder(w.Pools) {
		for _, mc := range s.renderPool(w, pool, at, version, keep) {
			if !Same(at.configs[mc.Name], mc) {
				d.Write = append(d.Write, mc)
			}
			at.configs[mc.Name], keep[mc.Name] = mc, true
		}
		for number := range lastNumber + 1 { // a MachineConfig to be removed must not go over to another pool
			if name := at.name(pool, number); at.leaves(name, keep) {
				delete(at.configs, name)
			}
		}
	}
	for _, mc := range w.Configs {
		if at.leaves(mc.Name, keep) {
			d.Remove = append(d.Remove, mc)
		}
	}
	return d
}

// seat finds the pools of each object, and its place among the objects that share a pool with it.
func (s Series[T, S]) seat(w *World, objects []T) *seating {
	at := &seating{kind: s.Kind, what: s.What, configs: map[string]*mcfgv1.MachineConfig{}}
	for _, mc := range w.Configs {
		at.configs[mc.Name] = mc
	}
	for _, o := range objects {
		v := &Verdict{Object: o, Number: -1, Configs: map[string]bool{}}
		_, selector := s.Spec(o)
		v.selectPools(selector, w.Pools)
		at.all = append(at.all, v)
	}
	at.place()
	return at
}

// inOrder returns the pools with the pool of all workers first, since custom pools take over its MachineConfigs.
func inOrder(pools []*mcfgv1.MachineConfigPool) []*mcfgv1.MachineConfigPool {
	return slices.SortedFunc(slices.Values(pools), func(a, b *mcfgv1.MachineConfigPool) int {
		if (a.Name == api.PoolWorker) != (b.Name == api.PoolWorker) {
			return map[bool]int{true: -1, false: 1}[a.Name == api.PoolWorker]
		}
		return cmp.Compare(a.Name, b.Name)
	})
}

// selectPools finds the pools that the object is for. An object that is being deleted is for none.
func (v *Verdict) selectPools(of *metav1.LabelSelector, pools []*mcfgv1.MachineConfigPool) {
	if v.Object.GetDeletionTimestamp() != nil {
		return
	}
	if api.UnreadableField(v.Object, "spec.machineConfigPoolSelector") {
		v.unread = true
		v.say(ReasonSelector, "%v", api.Unreadable(v.Object))
		return
	}
	selector, err := metav1.LabelSelectorAsSelector(of)
	if err != nil {
		v.unread = true
		v.say(ReasonSelector, "spec.machineConfigPoolSelector: %v", err)
		return
	}
	for _, pool := range pools {
		if pool.DeletionTimestamp == nil && !selector.Empty() && selector.Matches(labels.Set(pool.Labels)) {
			v.pools = append(v.pools, pool)
		}
	}
	if len(v.pools) == 0 {
		v.wait(ReasonSelector, "spec.machineConfigPoolSelector: no MachineConfigPool has the labels %q",
			metav1.FormatLabelSelector(of))
	}
}

// renderPool makes the MachineConfigs of a pool. Each has the content of all earlier objects too, since of files with
// one path only the last has an effect. So if one MachineConfig can't be made, those above it stay as they are, and
// keep has their names.
func (s Series[T, S]) renderPool(
	w *World, pool *mcfgv1.MachineConfigPool, at *seating, version string, keep map[string]bool,
) (out []*mcfgv1.MachineConfig) {
	seats := at.of(pool)
	if len(seats) == 0 {
		return nil
	}
	own := map[string]bool{}
	for number := range lastNumber + 1 {
		own[at.name(pool, number)] = true
	}
	around, stuck := AroundOf(pool, slices.Collect(maps.Values(at.configs)), at.name(pool, 0),
		func(mc *mcfgv1.MachineConfig) bool { return own[mc.Name] })
	var top Layer[S]
	if stuck == nil {
		top, stuck = s.Base(w, pool, around)
	}
	for _, o := range seats {
		name, held := at.name(pool, o.number), at.configs[at.name(pool, o.held)]
		var next *made[S]
		if stuck != nil {
			o.say(ReasonBase, "%v", stuck)
		} else if next, stuck = s.make(top, o, held); next == nil && stuck == nil {
			continue // the object has never been accepted
		}
		if stuck != nil {
			for _, stays := range []string{name, at.name(pool, o.held)} {
				keep[stays] = keep[stays] || at.ours(stays)
			}
			continue
		}
		top = next.layer
		mc := Config(pool.Name, name, next.config)
		mc.Annotations = map[string]string{api.GeneratedBy: version, api.AcceptedKey: api.Encode(next.spec)}
		// The owner's deletion is not blocked: the finalizers of this controller enforce the order.
		mc.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: mcfgv1.GroupVersion.String(), Kind: s.Kind, Name: o.Object.GetName(), UID: o.Object.GetUID(),
			Controller: new(true),
		}}
		o.Configs[name] = true
		out = append(out, Onto(at.configs[name], mc))
		if selected, err := Selected(pool, pool.Name); err != nil || !selected {
			o.say(ReasonUnselected, "spec.machineConfigSelector of MachineConfigPool/%s does not select MachineConfigs "+
				"labelled %s=%s, such as %s", pool.Name, api.Role, pool.Name, name)
		}
		if err := around.Replaced(next.paths...); err != nil {
			o.say(ReasonOverridden, "%v, or move what it says into a %s", err, s.Kind)
		}
	}
	return out
}

// made is the result of an object in a pool: its spec, the layer with earlier objects, and the results of
// Layer.Ignition.
type made[S any] struct {
	spec   *S
	layer  Layer[S]
	config []byte
	paths  []string
}

// make puts an object on top of earlier ones, as it is now, or else as it was accepted, which held records. make
// returns nil if the object was never accepted. make returns an error if the accepted content no longer fits.
func (s Series[T, S]) make(top Layer[S], o *seat, held *mcfgv1.MachineConfig) (*made[S], error) {
	on := func(spec *S) (*made[S], error) {
		layer, err := top.Over(spec)
		if err != nil {
			return nil, err
		}
		config, paths, err := layer.Ignition()
		return &made[S]{spec, layer, config, paths}, err
	}
	if object, ok := o.Object.(T); ok && !o.stays {
		spec, _ := s.Spec(object)
		wrong := api.Unreadable(object)
		if wrong == nil {
			var next *made[S]
			if next, wrong = on(spec); wrong == nil {
				return next, nil
			}
		}
		o.say(ReasonInvalid, "%v", wrong)
		if held == nil {
			return nil, nil
		}
	}
	spec := accepted[S](held)
	if spec == nil {
		return nil, fmt.Errorf("%s/%s comes before it, and MachineConfig/%s does not say what it was made of",
			s.Kind, o.Object.GetName(), held.Name)
	}
	next, wrong := on(spec)
	if wrong != nil {
		if o.stays {
			o.say(ReasonInvalid, "as it was accepted: %v", wrong)
		}
		return nil, fmt.Errorf("%s/%s comes before it, and what it was when it was accepted does not fit any more: %w",
			s.Kind, o.Object.GetName(), wrong)
	}
	return next, nil
}

// accepted returns the spec that a MachineConfig was made of, and nil if that is not known.
func accepted[S any](mc *mcfgv1.MachineConfig) *S {
	if mc == nil {
		return nil
	}
	spec, err := api.Decode[*S](mc.Annotations, api.AcceptedKey)
	if err != nil {
		return nil
	}
	return spec
}
