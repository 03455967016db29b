// SPDX-License-Identifier: Apache-2.0

package imagemirror

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/controller/source"
	"github.com/noderefit/noderefit/registries"
)

// what is the part of source.Name that the MachineConfigs have.
const what = "registries"

// decision is what to do.
type decision struct {
	write  []*mcfgv1.MachineConfig
	remove []*mcfgv1.MachineConfig
}

// Problem is what is wrong with an object, for one pool or, if Pool is empty, for all pools. Beside is true if the rest
// goes on without that part of the object.
type Problem struct {
	Object client.Object
	Pool   string
	Beside bool
	Err    error
}

// Decide returns the MachineConfigs to be written and removed where the World has these objects, and what is wrong with
// the objects. Objects of other kinds than Kinds are left out. version is the maker's version.
func Decide(
	objects []client.Object, w *source.World, version string,
) (write, remove []*mcfgv1.MachineConfig, wrong []Problem) {
	var origins []*origin
	for _, object := range objects {
		if o := originOf(object); o != nil {
			origins = append(origins, o)
		}
	}
	d := decide(origins, w, version)
	for _, o := range origins {
		if o.err != nil {
			wrong = append(wrong, Problem{o.object, "", o.tenant(), o.err})
		}
		if o.beside != nil {
			wrong = append(wrong, Problem{o.object, "", true, o.beside})
		}
		for _, pool := range slices.Sorted(maps.Keys(o.pools)) {
			wrong = append(wrong, Problem{o.object, pool, o.tenant(), o.pools[pool]})
		}
	}
	return d.write, d.remove, wrong
}

// decide makes the MachineConfig of each pool, and notes in the objects what is wrong with them. A MachineConfig of
// another maker keeps its name.
func decide(origins []*origin, w *source.World, version string) decision {
	for _, o := range origins {
		o.err = errors.Join(api.Unreadable(o.object), o.err)
	}
	made := merge(origins, w)
	out := decision{remove: made.remove}
	for _, mc := range made.write {
		mc.Annotations[api.GeneratedBy] = version
		is := w.Config(mc.Name)
		if is == nil || ours(is) {
			out.write = append(out.write, source.Onto(is, mc))
			continue
		}
		for _, o := range origins {
			o.fail(mc.Labels[api.Role], fmt.Errorf("MachineConfig/%s is there, and not of the controller's making: rename or "+
				"delete it", mc.Name))
		}
	}
	return out
}

// merge makes the MachineConfig of each pool, and notes in the objects what is wrong with them. The rules of a wrong
// object stay as they were accepted last. Without its mirrors, images could be pulled from where people do not want to
// pull. The rules of other objects, and the MachineConfigs beneath, count as they are now. What is wrong with an object
// of a tenant holds nothing else up.
func merge(origins []*origin, w *source.World) decision {
	origins = arrange(origins)
	wrong := slices.ContainsFunc(origins, func(o *origin) bool { return o.err != nil && !o.tenant() })
	var out decision
	runtimes, unknown := source.Runtimes(w.Pools, w.Nodes)
	made := map[string]bool{}
	for _, p := range w.Pools {
		name := source.Name(p.Name, what, "")
		is := w.Config(name)
		noted := accepted(is)
		if wrong && is != nil && noted == nil {
			made[name] = true // its former rules are not known, so it stays
			continue
		}
		if noted == nil {
			noted = anywhere(w.Configs)
		}
		asks := wanted(counting(origins, noted))
		if asks.none() {
			continue
		}
		made[name] = true
		if other, err := byAnother(p, w.Pools); err == nil && other {
			made[name] = false
			continue
		}
		on, err := runtimes[p.Name], unknown[p.Name]
		var mc *mcfgv1.MachineConfig
		if err == nil {
			asks, mc, err = forTenants(p, asks, on, w, origins)
		}
		if asks.none() {
			made[name] = false
			continue
		}
		for _, o := range origins {
			if err != nil {
				o.fail(p.Name, err)
			} else if on.Containerd {
				o.failContainerd(p.Name, asks.sources)
			}
		}
		held := slices.ContainsFunc(origins, func(o *origin) bool { return o.pools[p.Name] != nil && !o.tenant() })
		if err == nil && !held {
			mc.Annotations = map[string]string{}
			if note := api.Encode(asks.counts); len(note) <= noteAtMost {
				mc.Annotations[api.AcceptedKey] = note
			}
			out.write = append(out.write, mc)
		}
	}
	for _, mc := range w.Configs {
		if ours(mc) && !made[mc.Name] {
			out.remove = append(out.remove, mc)
		}
	}
	return out
}

// forTenants makes the MachineConfig of a pool. If the demands of tenants are what the pool can't have, their objects
// get the error. The MachineConfig is made of the rest then, which forTenants returns too.
func forTenants(
	p *mcfgv1.MachineConfigPool, asks *want, on source.Runtime, w *source.World, origins []*origin,
) (*want, *mcfgv1.MachineConfig, error) {
	mc, err := forPool(p, asks, on, w, origins)
	if err == nil {
		return asks, mc, nil
	}
	var rest, tenants []counted
	for _, c := range asks.counts {
		if c.Demand != nil && c.Demand.Namespace != "" {
			tenants = append(tenants, c)
		} else {
			rest = append(rest, c)
		}
	}
	if _, without := forPool(p, wanted(rest), on, w, origins); len(tenants) == 0 || without != nil {
		return asks, nil, err
	}
	// Policies of namespaces don't depend on each other, so what the pool can have one by one, it can have together.
	kept := slices.Clone(rest)
	for _, c := range tenants {
		if _, err := forPool(p, wanted(slices.Concat(rest, []counted{c})), on, w, origins); err == nil {
			kept = append(kept, c)
			continue
		} else if i := slices.IndexFunc(origins, func(o *origin) bool { return o.String() == c.Object }); i >= 0 {
			origins[i].fail(p.Name, err)
		}
	}
	asks = wanted(kept)
	mc, err = forPool(p, asks, on, w, origins)
	return asks, mc, err
}

// noteAtMost is the size of what is noted of accepted objects, in bytes. The API takes 256 KiB of annotations. Without
// the note, a MachineConfig stays as it is while an object is wrong.
const noteAtMost = 200 << 10

// counted is what counts of an object.
type counted struct {
	Object   string    `json:"object"`
	Rules    []asked   `json:"rules,omitempty"`
	Settings *settings `json:"settings,omitempty"`
	Demand   *demand   `json:"demand,omitempty"`
}

// counting returns what counts of all objects, in the order of the objects. Of a wrong object, what was accepted last
// counts.
func counting(origins []*origin, accepted []counted) []counted {
	var out []counted
	for _, o := range origins {
		c := counted{Object: o.String()}
		if o.err == nil {
			for _, r := range o.rules {
				c.Rules = append(c.Rules, r.asked)
			}
			c.Settings, c.Demand = o.settings, o.demand
		} else if i := slices.IndexFunc(accepted, func(a counted) bool { return a.Object == c.Object }); i >= 0 {
			c = accepted[i]
		}
		if c.Rules != nil || c.Settings != nil || c.Demand != nil {
			out = append(out, c)
		}
	}
	return out
}

// accepted returns what a MachineConfig was made of, and nil if the MachineConfig does not tell.
func accepted(mc *mcfgv1.MachineConfig) []counted {
	if mc == nil || !ours(mc) {
		return nil
	}
	noted, err := api.Decode[[]counted](mc.Annotations, api.AcceptedKey)
	if err != nil {
		return nil // another program changed it; it is written anew when nothing is wrong
	}
	return noted
}

// anywhere returns what counts for a pool that has no mirrors yet: what the first MachineConfig with mirrors was made
// of.
func anywhere(configs []*mcfgv1.MachineConfig) []counted {
	for _, mc := range configs {
		if noted := accepted(mc); noted != nil {
			return noted
		}
	}
	return nil
}

func (o *origin) fail(pool string, err error) {
	if o.pools == nil {
		o.pools = map[string]error{}
	}
	o.pools[pool] = errors.Join(o.pools[pool], err)
}

func (o *origin) failContainerd(pool string, all []registries.Source) {
	wrong := func(err error) {
		if err != nil {
			o.fail(pool, fmt.Errorf("MachineConfigPool/%s: %w", pool, err))
		}
	}
	for _, r := range o.rules {
		wrong(inexpressible(r, all))
	}
	if o.settings != nil {
		wrong(o.settings.inexpressible())
	}
	if o.demand != nil {
		wrong(errors.New("spec.policy: containerd verifies no signatures"))
	}
}

// byAnother reports whether a pool does not select what would be made for it, but selects what is made for another
// pool.
func byAnother(p *mcfgv1.MachineConfigPool, pools []*mcfgv1.MachineConfigPool) (bool, error) {
	own, err := source.Selected(p, p.Name)
	if own || err != nil {
		return false, err
	}
	for _, other := range pools {
		selected, err := source.Selected(p, other.Name)
		made, errOther := source.Selected(other, other.Name)
		if err != nil || selected && made && errOther == nil {
			return err == nil, err
		}
	}
	return false, nil
}

// ours reports whether this controller made a MachineConfig.
func ours(mc *mcfgv1.MachineConfig) bool {
	_, marked := mc.Annotations[api.GeneratedBy]
	return marked && source.IsNamed(mc.Name, what)
}
