// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/controller/containerruntimeconfig"
	"github.com/noderefit/noderefit/controller/imagemirror"
	"github.com/noderefit/noderefit/controller/kubeletconfig"
	"github.com/noderefit/noderefit/controller/source"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/plan"
)

// turnsAtMost is how often the controllers look until nothing changes. What each makes depends on MachineConfigs before
// its own alone, so a few turns are enough.
const turnsAtMost = 20

// simulate lets the controllers look at the objects in turns, until none of them changes anything. What they say in the
// last turn counts.
func (m *Made) simulate(objects []client.Object) {
	w := &source.World{Pools: m.pools}
	documents := map[*mcfgv1.MachineConfig]*machineconfig.Document{}
	for _, d := range m.docs.Configs {
		documents[d.Object] = d
		if !d.Bare && machineconfig.PoolOf(d.Object.Name) == "" {
			w.Configs = append(w.Configs, d.Object)
		}
	}
	slices.SortFunc(w.Configs, func(a, b *mcfgv1.MachineConfig) int { return cmp.Compare(a.Name, b.Name) })
	admitted := len(m.wrong)
	for turn := range turnsAtMost {
		m.wrong, m.unordered = m.wrong[:admitted], map[string][]string{}
		if !m.turn(w, objects) {
			break
		}
		if turn == turnsAtMost-1 {
			m.wrong = append(m.wrong, wrong{any: true, err: fmt.Errorf("the controllers still change MachineConfigs after %d "+
				"turns: this is a fault of Noderefit", turnsAtMost)})
		}
	}
	for _, mc := range w.Configs {
		d := documents[mc]
		if d == nil {
			d = &machineconfig.Document{Object: mc}
			if by := metav1.GetControllerOf(mc); by != nil {
				d.Origin = "made of " + by.Kind + "/" + by.Name
			} else if strings.HasSuffix(mc.Name, "-generated-registries") {
				d.Origin = "made of image mirrors and policies"
			}
		}
		m.configs = append(m.configs, d)
	}
	for _, d := range m.docs.Configs {
		if d.Bare {
			m.configs = append(m.configs, d)
			m.refuseBare(d, objects)
		}
	}
}

// refuseBare notes that an Ignition config, which belongs to no cluster, stands beside objects that are made for one.
// The controllers would not see what it brings.
func (m *Made) refuseBare(d *machineconfig.Document, objects []client.Object) {
	for _, o := range objects {
		if cc, is := o.(*mcfgv1.ControllerConfig); is && cc.Annotations[api.Templates] == "" {
			continue
		}
		if _, is := o.(*mcfgv1.OSImageStream); is {
			continue
		}
		m.wrong = append(m.wrong, wrong{any: true, err: fmt.Errorf("%s: a cluster has no such document, so %s can't be put "+
			"on top: write it as a MachineConfig with the label %s", d, m.origin(o), api.Role)})
		return
	}
}

// turn has each controller look once, and reports whether one of them changed a MachineConfig.
func (m *Made) turn(w *source.World, objects []client.Object) (changed bool) {
	var kubelets []*mcfgv1.KubeletConfig
	var runtimes []*mcfgv1.ContainerRuntimeConfig
	var mirrors []client.Object
	for _, object := range objects {
		switch o := object.(type) {
		case *mcfgv1.ControllerConfig:
			changed = m.templates(w, o) || changed
		case *mcfgv1.OSImageStream:
			m.streams = o
		case *mcfgv1.KubeletConfig:
			kubelets = append(kubelets, o)
		case *mcfgv1.ContainerRuntimeConfig:
			runtimes = append(runtimes, o)
		default:
			mirrors = append(mirrors, o)
		}
	}
	m.relies = len(runtimes)+len(mirrors) > 0
	changed = decide(m, containerruntimeconfig.Series, w, runtimes) || changed
	changed = decide(m, kubeletconfig.Series, w, kubelets) || changed
	write, remove, problems := imagemirror.Decide(mirrors, w, m.o.Version)
	for _, p := range problems {
		m.note(p.Object, p.Err, wrong{pools: []string{p.Pool}, any: p.Pool == "", waits: p.Beside})
	}
	return w.Apply(write, remove) || changed
}

// templates has the template controller look at a ControllerConfig, whose images are the default of every pool.
func (m *Made) templates(w *source.World, cc *mcfgv1.ControllerConfig) (changed bool) {
	if cc.Name != api.ControllerConfig {
		m.note(cc, fmt.Errorf("metadata.name: only the ControllerConfig %s counts", api.ControllerConfig),
			wrong{any: true, waits: true})
		return false
	}
	base := machineconfig.Defaults(cc)
	images := base.Object.Spec.OSImageURL != "" || base.Object.Spec.BaseOSExtensionsContainerImage != ""
	if images && m.o.Base != nil {
		m.note(cc, fmt.Errorf("spec: names the default images, and so does %s: leave one of them out", m.o.Base),
			wrong{any: true})
	} else if images {
		m.base = base
	}
	write, remove, err := m.o.Sets.Decide(cc, w.Configs, m.o.Version)
	m.note(cc, err, wrong{any: true})
	return w.Apply(write, remove)
}

// decide has the controller of a series look at its objects.
func decide[T client.Object, S any](m *Made, s source.Series[T, S], w *source.World, objects []T) (changed bool) {
	if len(objects) == 0 {
		return false
	}
	d := s.Decide(w, objects, m.o.Version)
	for _, o := range objects {
		found := d.Objects[o.GetName()].Found()
		m.note(o, found.Wrong, wrong{pools: found.Pools, any: found.Unread})
		m.note(o, found.Waits, wrong{any: true, waits: true})
		created := o.GetCreationTimestamp()
		if _, said := o.GetAnnotations()[api.NameSuffix]; !said && created.IsZero() {
			m.unordered[s.Kind] = append(m.unordered[s.Kind], m.origin(o).String())
		}
	}
	return w.Apply(d.Write, d.Remove)
}

// Render returns the configuration of a pool as the render controller makes it. It returns an error if something is
// wrong with an object that the pool needs: nothing is made by halves. warnings are doubts about what was made.
func (m *Made) Render(pool string) (rendered *mcfgv1.MachineConfig, warnings []string, err error) {
	var errs []error
	for _, w := range m.wrong {
		switch about := w.any || slices.ContainsFunc(w.pools, func(of string) bool { return m.takes(pool, of) }); {
		case about && w.waits:
			warnings = append(warnings, w.err.Error())
		case about:
			errs = append(errs, w.err)
		}
	}
	if len(errs) > 0 {
		return nil, warnings, errors.Join(errs...)
	}
	docs := &machineconfig.Documents{Configs: m.configs, Pools: m.docs.Pools}
	base, err := source.Streamed(m.pool(pool), m.streams, m.base)
	if err != nil {
		return nil, warnings, err
	}
	rendered, more, err := machineconfig.Render(pool, docs, base)
	warnings = append(warnings, more...)
	if err != nil {
		return nil, warnings, err
	}
	config, err := machineconfig.Parse(rendered)
	if err != nil {
		return nil, warnings, err
	}
	if lines := m.refused(pool, docs, config); len(lines) > 0 {
		return nil, warnings, fmt.Errorf("rendering for pool %s: %w: %s", pool, ErrRefused, strings.Join(lines, "; "))
	}
	return rendered, append(warnings, plan.ImageUnknown.Warnings(nil, config)...), nil
}

// ErrRefused is the error of a configuration that each host refuses.
var ErrRefused = errors.New("no node can have it")

// refused returns what each host refuses of a pool's configuration, with the documents that ask for it.
func (m *Made) refused(pool string, docs *machineconfig.Documents, config *machineconfig.Config) (lines []string) {
	found := plan.Refused(config, plan.ImageUnknown)
	if len(found) == 0 {
		return nil
	}
	alone := map[plan.Unreconcilable][]string{}
	selected, err := machineconfig.Select(pool, docs)
	if err != nil {
		return []string{err.Error()}
	}
	for _, d := range selected {
		c, err := machineconfig.Parse(d.Object)
		if err != nil {
			continue // the document is valid only together with the others
		}
		for _, u := range plan.Refused(c, plan.ImageUnknown) {
			alone[u] = append(alone[u], d.String())
		}
	}
	for _, u := range found {
		of := cmp.Or(strings.Join(alone[u], ", "), "MachineConfig/"+config.Name)
		lines = append(lines, fmt.Sprintf("%s: %s: %s", of, u.Field, u.Reason))
	}
	return lines
}

// Render renders pools of documents. Each has a configuration or an error, by its name. The warnings are about what the
// documents leave open, and name the pools.
func (o Options) Render(
	docs *machineconfig.Documents, pools []string,
) (rendered map[string]*mcfgv1.MachineConfig, wrong map[string]error, warnings []string) {
	made := o.Make(docs)
	rendered, wrong = map[string]*mcfgv1.MachineConfig{}, map[string]error{}
	for _, pool := range pools {
		mc, said, err := made.Render(pool)
		if err != nil {
			wrong[pool] = err
			continue
		}
		rendered[pool] = mc
		warnings = append(append(warnings, said...), made.Unsaid(pool, mc)...)
	}
	slices.Sort(warnings)
	return rendered, wrong, slices.Compact(warnings)
}

// pool returns a pool by its name, which none of the documents may define.
func (m *Made) pool(name string) *mcfgv1.MachineConfigPool {
	if i := slices.IndexFunc(m.pools, func(p *mcfgv1.MachineConfigPool) bool { return p.Name == name }); i >= 0 {
		return m.pools[i]
	}
	return builtin(name)
}

// takes reports whether a pool has what is made for another pool, or for itself.
func (m *Made) takes(pool, of string) bool {
	i := slices.IndexFunc(m.pools, func(p *mcfgv1.MachineConfigPool) bool { return p.Name == pool })
	if pool == of || i < 0 {
		return true
	}
	selected, err := source.Selected(m.pools[i], of)
	return selected || err != nil
}

// Unsaid returns warnings about what a cluster would decide by something that no document says: the container runtime,
// which Nodes report, and the order of objects, which is the order in which they are made. There is a warning only
// where the pool's configuration would be another one.
func (m *Made) Unsaid(pool string, rendered *mcfgv1.MachineConfig) (warnings []string) {
	names := make([]string, 0, len(m.pools))
	var silent []string
	for _, p := range m.pools {
		names = append(names, p.Name)
		if p.Annotations[api.Runtime] == "" && m.takes(pool, p.Name) {
			silent = append(silent, "MachineConfigPool/"+p.Name)
		}
	}
	differs := func(o Options) bool {
		other, _, err := o.Make(m.docs, names...).Render(pool)
		return err != nil || other.Name != rendered.Name
	}
	if other := m.o; m.relies && len(silent) > 0 {
		if other.Runtime = source.Containerd; differs(other) {
			warnings = append(warnings, fmt.Sprintf("%s: metadata.annotations[%s]: is missing, and no Node says yet which "+
				"container runtime it has: rendered for %s. With %s it would be another configuration: set the annotation, or "+
				"--container-runtime", strings.Join(silent, ", "), api.Runtime, source.CRIO, source.Containerd))
		}
	}
	var said []string
	for _, kind := range slices.Sorted(maps.Keys(m.unordered)) {
		if of := m.unordered[kind]; len(of) > 1 {
			said = append(said, of...)
		}
	}
	other := m.o
	if other.reversed = true; len(said) > 0 && differs(other) {
		warnings = append(warnings, fmt.Sprintf("%s: metadata.annotations[%s]: is missing: the later one wins, and in a "+
			"cluster that is the one that was made later. Rendered in the order of their names: set the annotation on each, "+
			"empty for the first, then 1 to 9", strings.Join(said, ", "), api.NameSuffix))
	}
	return warnings
}
