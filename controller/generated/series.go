// SPDX-License-Identifier: Apache-2.0

package generated

import (
	"cmp"
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

// lastNumber is the highest place that an object can have: names sort by one digit.
const lastNumber = 9

// Reasons of the conditions of objects in a series.
const (
	ReasonRendered   = "Rendered"
	ReasonInvalid    = "Invalid"      // the object itself is wrong
	ReasonSelector   = "NoPool"       // it is for no pool
	ReasonOrder      = "NoOrder"      // it has no place of its own among those of its pools
	ReasonBase       = "BaseUnusable" // what it is to come on top of can't be read
	ReasonForeign    = "NameTaken"    // somebody else has a MachineConfig of the name
	ReasonUnselected = "NotSelected"  // the pool would not take the MachineConfig
	ReasonOverridden = "Overridden"   // a MachineConfig of higher precedence wins
	ReasonWrite      = "WriteFailed"  // the API server did not take the MachineConfig
)

// Series is a kind of objects of which several can be for one pool, each on top of those before it: T is the kind, and
// S what is asked for in one, without the selector of its pools.
type Series[T client.Object, S any] struct {
	// Kind is what the objects are called, What what their MachineConfigs are called by.
	Kind, What string
	// Spec is what is asked for, and for which pools.
	Spec func(T) (*S, *metav1.LabelSelector)
	// Base is what a pool has without the objects.
	Base func(w *World, pool *mcfgv1.MachineConfigPool, around *Around) (Layer[S], error)
}

// Layer is what the objects of a pool come to so far.
type Layer[S any] interface {
	// Over is the layer with one more on top. It leaves the one beneath as it is. Errors say what is wrong with the
	// object, with the field.
	Over(spec *S) (Layer[S], error)
	// Ignition is the config that brings all of it to a host, and the paths in it that count for nothing if a later
	// MachineConfig has them.
	Ignition() (config []byte, paths []string, err error)
}

// Decision is what is to be done, by names in order.
type Decision struct {
	// Write are MachineConfigs as they are to be, Remove those that are to go.
	Write, Remove []*mcfgv1.MachineConfig
	// Objects has all objects, by name.
	Objects map[string]*Verdict
}

// Verdict is what is to be said of one object.
type Verdict struct {
	Object client.Object
	// Number is its place, -1 where it has none.
	Number int
	// Configs are its MachineConfigs: those that are there, and those that are to be.
	Configs map[string]bool

	kind     string
	pools    []*mcfgv1.MachineConfigPool
	problems []problem
	// frozen: nobody knows what it is to be, so all that it has stays.
	frozen bool
}

type problem struct{ reason, message string }

func (v *Verdict) say(reason, format string, args ...any) {
	v.problems = append(v.problems, problem{reason, strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; ")})
}

// made says that an object has a MachineConfig.
func (v *Verdict) made(mc *mcfgv1.MachineConfig) bool {
	owner := metav1.GetControllerOf(mc)
	return owner != nil && owner.Kind == v.kind && owner.UID == v.Object.GetUID()
}

// Conditions are what is said of an object. The last is the one that readers go by, the first its older name.
func (v *Verdict) Conditions() []metav1.Condition {
	good, bad, reason, message := metav1.ConditionTrue, metav1.ConditionFalse, ReasonRendered, "Success"
	if len(v.problems) > 0 {
		var said []string
		for _, p := range v.problems {
			said = append(said, p.message)
		}
		good, bad, reason = metav1.ConditionFalse, metav1.ConditionTrue, v.problems[0].reason
		message = api.ShortReason(strings.Join(said, "; "))
	}
	return []metav1.Condition{
		{Type: string(mcfgv1.KubeletConfigSuccess), Status: good, Reason: reason, Message: message},
		{Type: api.Stalled, Status: bad, Reason: reason, Message: message},
		{Type: string(mcfgv1.KubeletConfigAccepted), Status: good, Reason: reason, Message: message},
	}
}

// SuffixOf is how a place is spelled.
func SuffixOf(number int) string {
	if number == 0 {
		return ""
	}
	return strconv.Itoa(number)
}

// Decide is the whole of a series' mind. Whatever is wrong with an object, what it was when it was last right stays in
// force, and holds up neither others nor what is below it.
func (s Series[T, S]) Decide(w *World, objects []T, version string) *Decision {
	d := &Decision{Objects: map[string]*Verdict{}}
	keep := map[string]bool{}
	configs := map[string]*mcfgv1.MachineConfig{}
	for _, mc := range w.Configs {
		configs[mc.Name] = mc
	}
	all := s.place(w, objects)
	for _, v := range all {
		d.Objects[v.Object.GetName()] = v
		for name, mc := range configs {
			if v.made(mc) && IsNamed(name, s.What) {
				v.Configs[name] = true
				keep[name] = keep[name] || v.frozen
			}
		}
	}
	for _, pool := range inOrder(w.Pools) {
		for _, mc := range s.renderPool(w, pool, all, configs, version, keep) {
			if !Same(configs[mc.Name], mc) {
				d.Write = append(d.Write, mc)
			}
			configs[mc.Name], keep[mc.Name] = mc, true
		}
		for number := range lastNumber + 1 { // what goes is not what another pool is to take over
			if name := Name(pool.Name, s.What, SuffixOf(number)); s.leaves(configs[name], keep) {
				delete(configs, name)
			}
		}
	}
	for _, mc := range w.Configs {
		if s.leaves(mc, keep) {
			d.Remove = append(d.Remove, mc)
		}
	}
	return d
}

// leaves says that a MachineConfig was made of an object that is not for its pool any more, or is gone.
func (s Series[T, S]) leaves(mc *mcfgv1.MachineConfig, keep map[string]bool) bool {
	if mc == nil || keep[mc.Name] || !IsNamed(mc.Name, s.What) {
		return false
	}
	owner := metav1.GetControllerOf(mc)
	return owner != nil && owner.Kind == s.Kind
}

// inOrder has the pool of all workers first: custom pools take its MachineConfigs over.
func inOrder(pools []*mcfgv1.MachineConfigPool) []*mcfgv1.MachineConfigPool {
	return slices.SortedFunc(slices.Values(pools), func(a, b *mcfgv1.MachineConfigPool) int {
		if (a.Name == api.PoolWorker) != (b.Name == api.PoolWorker) {
			return map[bool]int{true: -1, false: 1}[a.Name == api.PoolWorker]
		}
		return cmp.Compare(a.Name, b.Name)
	})
}

// place finds the pools of each object, and its place among those that share a pool with it: what its annotation says,
// else behind the others, the oldest first. So a later one wins, and none ever changes its place.
func (s Series[T, S]) place(w *World, objects []T) []*Verdict {
	var all []*Verdict
	for _, o := range slices.SortedFunc(slices.Values(objects), func(a, b T) int {
		made := a.GetCreationTimestamp()
		return cmp.Or(made.Compare(b.GetCreationTimestamp().Time), cmp.Compare(a.GetName(), b.GetName()))
	}) {
		v := &Verdict{Object: o, Number: -1, Configs: map[string]bool{}, kind: s.Kind}
		_, selector := s.Spec(o)
		v.selectPools(selector, w.Pools)
		if suffix, said := o.GetAnnotations()[api.NameSuffix]; said {
			v.Number = slices.Index([]string{"", "1", "2", "3", "4", "5", "6", "7", "8", "9"}, suffix)
			if v.Number < 0 {
				v.frozen = true
				v.say(ReasonOrder, "metadata.annotations[%s]: %q is neither empty nor 1 to %d", api.NameSuffix, suffix, lastNumber)
			}
		}
		all = append(all, v)
	}
	for i, v := range all {
		if v.frozen || len(v.pools) == 0 {
			continue
		}
		unplaced, last := v.Number < 0, -1
		for j, other := range all {
			if i == j || other.Number < 0 || !v.meets(other, s.What) {
				continue
			}
			last = max(last, other.Number)
			if !unplaced && j < i && other.Number == v.Number && other.Object.GetDeletionTimestamp() == nil {
				v.frozen = true
				v.say(ReasonOrder, "metadata.annotations[%s]: %s/%s has %q too, and a pool in common: give one of them another "+
					"place", api.NameSuffix, s.Kind, other.Object.GetName(), v.Object.GetAnnotations()[api.NameSuffix])
			}
		}
		if !unplaced {
			continue
		}
		if last == lastNumber {
			v.frozen = true
			v.say(ReasonOrder, "a pool takes %d %ss, and a later one comes behind the last: no place is left behind suffix %d; "+
				"delete one, or say where this belongs with the annotation %s", lastNumber+1, s.Kind, lastNumber, api.NameSuffix)
			continue
		}
		v.Number = last + 1
	}
	return all
}

// selectPools finds the pools that the object is for.
func (v *Verdict) selectPools(of *metav1.LabelSelector, pools []*mcfgv1.MachineConfigPool) {
	selector, err := metav1.LabelSelectorAsSelector(of)
	if err != nil {
		v.frozen = true
		v.say(ReasonSelector, "spec.machineConfigPoolSelector: %v", err)
		return
	}
	if v.Object.GetDeletionTimestamp() != nil {
		return
	}
	for _, pool := range pools {
		if pool.DeletionTimestamp == nil && !selector.Empty() && selector.Matches(labels.Set(pool.Labels)) {
			v.pools = append(v.pools, pool)
		}
	}
	if len(v.pools) == 0 {
		v.say(ReasonSelector, "spec.machineConfigPoolSelector: no MachineConfigPool has the labels %q",
			metav1.FormatLabelSelector(of))
	}
}

// meets says that two objects have a pool in common, or a MachineConfig of one is still in the place.
func (v *Verdict) meets(other *Verdict, what string) bool {
	return slices.ContainsFunc(v.pools, func(p *mcfgv1.MachineConfigPool) bool {
		return slices.Contains(other.pools, p) || other.Object.GetDeletionTimestamp() != nil &&
			slices.Contains(other.Object.GetFinalizers(), Name(p.Name, what, SuffixOf(other.Number)))
	})
}

// members are the objects of a pool, the one that wins last.
func members(pool *mcfgv1.MachineConfigPool, all []*Verdict) []*Verdict {
	var out []*Verdict
	for _, v := range all {
		if !v.frozen && slices.Contains(v.pools, pool) {
			out = append(out, v)
		}
	}
	slices.SortStableFunc(out, func(a, b *Verdict) int { return cmp.Compare(a.Number, b.Number) })
	return out
}

// renderPool makes the MachineConfigs of a pool. Each has all that those before it say too, since of files with one
// path the last one wins whole. What is to stay as it is goes to keep.
func (s Series[T, S]) renderPool(
	w *World, pool *mcfgv1.MachineConfigPool, all []*Verdict, configs map[string]*mcfgv1.MachineConfig, version string,
	keep map[string]bool,
) (out []*mcfgv1.MachineConfig) {
	members := members(pool, all)
	if len(members) == 0 {
		return nil
	}
	for _, v := range members {
		if mc := configs[Name(pool.Name, s.What, SuffixOf(v.Number))]; mc != nil && v.made(mc) {
			keep[mc.Name] = true
		}
	}
	ours := map[string]bool{}
	for number := range lastNumber + 1 {
		ours[Name(pool.Name, s.What, SuffixOf(number))] = true
	}
	around, err := AroundOf(pool, slices.Collect(maps.Values(configs)), Name(pool.Name, s.What, ""),
		func(mc *mcfgv1.MachineConfig) bool { return ours[mc.Name] })
	var top Layer[S]
	if err == nil {
		top, err = s.Base(w, pool, around)
	}
	for _, v := range members {
		if err != nil {
			v.say(ReasonBase, "%v", err)
			continue
		}
		name := Name(pool.Name, s.What, SuffixOf(v.Number))
		found := configs[name]
		if found != nil && !v.made(found) {
			v.say(ReasonForeign, "MachineConfig/%s is there, and not of this object's making: rename or delete it", name)
			continue
		}
		object, ok := v.Object.(T)
		if !ok {
			continue // place made it of one
		}
		spec, _ := s.Spec(object)
		next, wrong := top.Over(spec)
		if wrong != nil {
			v.say(ReasonInvalid, "%v", wrong)
			if spec = accepted[S](found); spec == nil {
				continue
			}
			if next, wrong = top.Over(spec); wrong != nil {
				continue
			}
		}
		config, paths, wrong := next.Ignition()
		if wrong != nil {
			v.say(ReasonInvalid, "%v", wrong)
			continue
		}
		top = next
		mc := Config(pool.Name, name, config)
		mc.Annotations = map[string]string{api.GeneratedBy: version, api.AcceptedKey: api.Encode(spec)}
		// Nothing is blocked by what it belongs to: our finalizer sees to the order.
		mc.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: mcfgv1.GroupVersion.String(), Kind: s.Kind, Name: object.GetName(), UID: object.GetUID(),
			Controller: new(true),
		}}
		v.Configs[name] = true
		out = append(out, Onto(found, mc))
		if selected, err := Selected(pool, pool.Name); err != nil || !selected {
			v.say(ReasonUnselected, "spec.machineConfigSelector of MachineConfigPool/%s does not select MachineConfigs "+
				"labelled %s=%s, such as %s", pool.Name, api.Role, pool.Name, name)
		}
		if err := around.Replaced(paths...); err != nil {
			v.say(ReasonOverridden, "%v, or move what it says into a %s", err, s.Kind)
		}
	}
	return out
}

// accepted is what a MachineConfig was made of, nil where nobody knows.
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
