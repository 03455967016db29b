// SPDX-License-Identifier: Apache-2.0

package imagemirror

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	configv1 "github.com/openshift/api/config/v1"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	operatorv1alpha1 "github.com/openshift/api/operator/v1alpha1"
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

// Problem is what is wrong with an object, for one pool or, if Pool is empty, for all pools.
type Problem struct {
	Object client.Object
	Pool   string
	Err    error
}

// Decide returns the MachineConfigs to be written and removed where the World has these objects, and what is wrong with
// the objects. Objects of other kinds than the three are left out. version is the maker's version.
func Decide(
	objects []client.Object, w *source.World, version string,
) (write, remove []*mcfgv1.MachineConfig, wrong []Problem) {
	var origins []*origin
	for _, object := range objects {
		switch o := object.(type) {
		case *configv1.ImageDigestMirrorSet:
			origins = append(origins, digests(o))
		case *configv1.ImageTagMirrorSet:
			origins = append(origins, tags(o))
		case *operatorv1alpha1.ImageContentSourcePolicy:
			origins = append(origins, policies(o))
		}
	}
	d := decide(origins, w, version)
	for _, o := range origins {
		if o.err != nil {
			wrong = append(wrong, Problem{o.object, "", o.err})
		}
		for _, pool := range slices.Sorted(maps.Keys(o.pools)) {
			wrong = append(wrong, Problem{o.object, pool, o.pools[pool]})
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
// pull. The rules of other objects, and the MachineConfigs beneath, count as they are now.
func merge(origins []*origin, w *source.World) decision {
	origins = arrange(origins)
	wrong := slices.ContainsFunc(origins, func(o *origin) bool { return o.err != nil })
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
		counts := counting(origins, noted)
		all := sources(counts)
		if len(all) == 0 {
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
			mc, err = forPool(p, all, on, w)
		}
		for _, o := range origins {
			if err != nil {
				o.fail(p.Name, err)
			} else if on.Containerd {
				o.failContainerd(p.Name, all)
			}
		}
		if !slices.ContainsFunc(origins, func(o *origin) bool { return o.pools[p.Name] != nil }) {
			mc.Annotations = map[string]string{api.AcceptedKey: api.Encode(counts)}
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

// counted is the rules of an object that count.
type counted struct {
	Object string  `json:"object"`
	Rules  []asked `json:"rules"`
}

// counting returns the rules of all objects that count, in the order of the objects. Of a wrong object, the rules that
// were accepted last count.
func counting(origins []*origin, accepted []counted) []counted {
	var out []counted
	for _, o := range origins {
		c := counted{Object: o.String()}
		if o.err == nil {
			for _, r := range o.rules {
				c.Rules = append(c.Rules, r.asked)
			}
		} else if i := slices.IndexFunc(accepted, func(a counted) bool { return a.Object == c.Object }); i >= 0 {
			c.Rules = accepted[i].Rules
		}
		if c.Rules != nil {
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
	for _, r := range o.rules {
		if err := inexpressible(r, all); err != nil {
			o.fail(pool, fmt.Errorf("MachineConfigPool/%s: %w", pool, err))
		}
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

// forPool makes the MachineConfig of a pool. It merges the mirrors with what the pool's other MachineConfigs bring.
func forPool(
	p *mcfgv1.MachineConfigPool, all []registries.Source, on source.Runtime, w *source.World,
) (*mcfgv1.MachineConfig, error) {
	name := source.Name(p.Name, what, "")
	if selected, err := source.Selected(p, p.Name); err != nil {
		return nil, err
	} else if !selected {
		return nil, fmt.Errorf("MachineConfigPool/%s: spec.machineConfigSelector: does not select %s=%s, which %s has",
			p.Name, api.Role, p.Name, name)
	}
	around, err := source.AroundOf(p, w.Configs, name, ours)
	if err != nil {
		return nil, err
	}
	beneath, err := around.Beneath(p.Name)
	if err != nil {
		return nil, err
	}
	conf, err := registries.Parse(source.Contents(beneath, registries.Path))
	if err != nil {
		return nil, fmt.Errorf("MachineConfigPool/%s: %s as its MachineConfigs bring it: %w", p.Name, registries.Path, err)
	}
	var files []source.File
	if on.Containerd {
		for _, f := range registries.Hosts(all, conf.Insecure) {
			files = append(files, source.File(f))
		}
	}
	if err := conf.Merge(all); err != nil {
		return nil, fmt.Errorf("MachineConfigPool/%s: %s as its MachineConfigs bring it: %w", p.Name, registries.Path, err)
	}
	text, err := conf.Text()
	if err != nil {
		return nil, fmt.Errorf("writing %s: %w", registries.Path, err)
	}
	paths := []string{registries.Path}
	for _, f := range files {
		if source.Contents(beneath, f.Path) != nil {
			return nil, fmt.Errorf("MachineConfigPool/%s: its MachineConfigs bring %s, which can't be merged with mirrors",
				p.Name, f.Path)
		}
		paths = append(paths, f.Path)
	}
	if err := around.Replaced(paths...); err != nil {
		return nil, fmt.Errorf("MachineConfigPool/%s: %w, to be merged with the mirrors", p.Name, err)
	}
	raw, err := source.Ignition(append(files, source.File{Path: registries.Path, Contents: text}), nil, nil)
	if err != nil {
		return nil, err
	}
	return source.Config(p.Name, name, raw), nil
}

// ours reports whether this controller made a MachineConfig.
func ours(mc *mcfgv1.MachineConfig) bool {
	_, marked := mc.Annotations[api.GeneratedBy]
	return marked && source.IsNamed(mc.Name, what)
}
