// SPDX-License-Identifier: Apache-2.0

package source

import (
	"cmp"
	"slices"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
)

// seating is which object of a series has which place. An object's place in a pool is the number of its MachineConfig
// there. No object loses the place that it has before it has another.
type seating struct {
	kind, what string
	// all are the objects, the oldest first.
	all     []*Verdict
	configs map[string]*mcfgv1.MachineConfig
	// holders are the objects that have the MachineConfigs, by the MachineConfig's name; nil if that object is gone.
	holders map[string]*Verdict
}

// seat is the place of an object in one pool.
type seat struct {
	*Verdict
	number int
	// held is the number of the MachineConfig that the object has, -1 for none.
	held int
	// stays means that the object can't have its desired place, or that this place is not known. The object keeps its last
	// accepted content at the place that it has.
	stays bool
}

func (s *seating) name(pool *mcfgv1.MachineConfigPool, number int) string {
	if number < 0 {
		return ""
	}
	return Name(pool.Name, s.what, SuffixOf(number))
}

// place finds the number of each object. Its annotation counts first, then the MachineConfig that it has. Otherwise it
// comes behind the others that share a pool with it, the oldest first. So a later object wins, and no object changes
// its place.
func (s *seating) place() {
	slices.SortFunc(s.all, func(a, b *Verdict) int {
		made, other := a.Object.GetCreationTimestamp(), b.Object.GetCreationTimestamp()
		return cmp.Or(made.Compare(other.Time), cmp.Compare(a.Object.GetName(), b.Object.GetName()))
	})
	for _, v := range s.all {
		suffix, said := v.Object.GetAnnotations()[api.NameSuffix]
		if !said {
			continue
		}
		v.Number = slices.Index([]string{"", "1", "2", "3", "4", "5", "6", "7", "8", "9"}, suffix)
		if v.Number < 0 {
			v.misplaced = true
			v.say(ReasonOrder, "metadata.annotations[%s]: %q is neither empty nor 1 to %d", api.NameSuffix, suffix, lastNumber)
		}
	}
	s.findHolders()
	for _, v := range s.all {
		if v.Number >= 0 || v.misplaced || len(v.pools) == 0 {
			continue
		}
		own, last, by := s.around(v)
		switch {
		case own >= 0:
			v.Number = own
		case last == lastNumber:
			v.say(ReasonOrder, "no place is left behind %s/%s, whose suffix is %d: with the annotation %s, give that object a "+
				"lower place that is free, or give this object a place", s.kind, by.Object.GetName(), lastNumber, api.NameSuffix)
		default:
			v.Number = last + 1
		}
	}
}

// around finds the number that an object already has, and the last number that another object has in the same pools.
func (s *seating) around(v *Verdict) (own, last int, by *Verdict) {
	own, last = -1, -1
	for _, pool := range v.pools {
		own = max(own, s.held(pool, v))
		for _, other := range s.all {
			if other == v {
				continue
			}
			at := s.held(pool, other)
			if slices.Contains(other.pools, pool) {
				at = max(at, other.Number)
			}
			if at > last {
				last, by = at, other
			}
		}
	}
	return own, last, by
}

// findHolders finds the objects that have the MachineConfigs. If an object was deleted and made anew under its name, it
// has the MachineConfigs of the old one. If a marked MachineConfig has lost its owners, an object's finalizers identify
// it.
func (s *seating) findHolders() {
	s.holders = map[string]*Verdict{}
	for name, mc := range s.configs {
		if !IsNamed(name, s.what) {
			continue
		}
		owner := metav1.GetControllerOf(mc)
		var found *Verdict
		for _, v := range s.all {
			switch {
			case owner == nil:
				if marked(mc) && slices.Contains(v.Object.GetFinalizers(), name) && (found == nil || s.wants(v, name)) {
					found = v
				}
			case owner.UID == v.Object.GetUID(), owner.Name == v.Object.GetName() && found == nil:
				found = v
			}
		}
		if owner != nil && owner.Kind == s.kind || owner == nil && found != nil {
			s.holders[name] = found
		}
	}
}

// wants reports whether a MachineConfig has the name that goes with the object's place.
func (s *seating) wants(v *Verdict, name string) bool {
	return slices.ContainsFunc(v.pools, func(p *mcfgv1.MachineConfigPool) bool { return s.name(p, v.Number) == name })
}

// marked reports whether a MachineConfig has the annotations that only those of a series have.
func marked(mc *mcfgv1.MachineConfig) bool {
	_, accepted := mc.Annotations[api.AcceptedKey]
	return accepted && mc.Annotations[api.GeneratedBy] != ""
}

// ours reports whether a MachineConfig exists and was made of an object of the series.
func (s *seating) ours(name string) bool {
	mc := s.configs[name]
	if mc == nil {
		return false
	}
	_, held := s.holders[name]
	return held || IsNamed(name, s.what) && metav1.GetControllerOf(mc) == nil && marked(mc)
}

// leaves reports whether a MachineConfig was made of an object that is gone, or that is no longer for the pool.
func (s *seating) leaves(name string, keep map[string]bool) bool {
	_, held := s.holders[name]
	return held && !keep[name]
}

// held returns the number of the MachineConfig that an object has in a pool, and -1 if it has none. If it has several,
// its desired place counts, or else the last one.
func (s *seating) held(pool *mcfgv1.MachineConfigPool, v *Verdict) int {
	has := func(number int) bool { return s.holders[s.name(pool, number)] == v }
	if v.Number >= 0 && has(v.Number) {
		return v.Number
	}
	for number := lastNumber; number >= 0; number-- {
		if has(number) {
			return number
		}
	}
	return -1
}

// of returns the seats of a pool; the last one wins. An object that has a place, or stays in it, keeps it. If several
// objects come to a free place, the oldest gets it. The others stay at the places that they have, if any.
func (s *seating) of(pool *mcfgv1.MachineConfigPool) []*seat {
	var seats []*seat
	for _, v := range s.all {
		switch held := s.held(pool, v); {
		case slices.Contains(v.pools, pool) && v.Number >= 0:
			seats = append(seats, &seat{Verdict: v, number: v.Number, held: held})
		case held >= 0 && (v.unread || slices.Contains(v.pools, pool)):
			seats = append(seats, &seat{Verdict: v, number: held, held: held, stays: true})
		}
	}
	for again := true; again; { // an object that stays can be in the way of another
		again = false
		for i, o := range seats {
			if !o.stays && s.refused(pool, seats, i) {
				o.number, o.stays, again = o.held, true, true
			}
		}
	}
	seats = slices.DeleteFunc(seats, func(o *seat) bool { return o.number < 0 })
	slices.SortFunc(seats, func(a, b *seat) int { return cmp.Compare(a.number, b.number) })
	return seats
}

// refused reports whether another object has the name of the MachineConfig at an object's place, or gets the place
// first. refused notes the reason in the object's Verdict.
func (s *seating) refused(pool *mcfgv1.MachineConfigPool, seats []*seat, i int) bool {
	o := seats[i]
	name := s.name(pool, o.number)
	if s.configs[name] != nil && !s.ours(name) {
		o.say(ReasonForeign, "MachineConfig/%s is there, and was not made of a %s: rename or delete it", name, s.kind)
		return true
	}
	for j, other := range seats {
		first := other.stays || other.held == o.number || o.held != o.number && j < i
		if i != j && other.number == o.number && first {
			o.say(ReasonOrder, "metadata.annotations[%s]: %q is taken in MachineConfigPool/%s, %s/%s has it: give one of them "+
				"another place", api.NameSuffix, SuffixOf(o.number), pool.Name, s.kind, other.Object.GetName())
			return true
		}
	}
	return false
}
