// SPDX-License-Identifier: Apache-2.0

package imagemirror

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/controller/source"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/osimage"
	"github.com/noderefit/noderefit/registries"
)

// want is all that objects ask for.
type want struct {
	counts   []counted
	sources  []registries.Source
	settings *settings
}

func wanted(counts []counted) *want {
	w := &want{counts: counts, sources: sources(counts), settings: &settings{}}
	for _, c := range counts {
		if c.Settings != nil {
			w.settings = c.Settings
		}
	}
	return w
}

func (w *want) none() bool { return len(w.sources) == 0 && w.settings.none() && !w.demands() }

// demands reports whether signatures are demanded.
func (w *want) demands() bool {
	return slices.ContainsFunc(w.counts, func(c counted) bool { return c.Demand != nil })
}

// making is the MachineConfig of a pool while its files are put together.
type making struct {
	*want
	pool *mcfgv1.MachineConfigPool
	// beneath is what the pool's earlier MachineConfigs bring. whole is what all of them bring.
	beneath, whole *machineconfig.Config
	conf           *registries.Conf
	files          []source.File
	// merged are the paths of files that are merged with what is beneath.
	merged []string
}

// forPool makes the MachineConfig of a pool. It merges what is asked for with what the pool's other MachineConfigs
// bring.
func forPool(
	p *mcfgv1.MachineConfigPool, asks *want, on source.Runtime, w *source.World, origins []*origin,
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
	m := &making{want: asks, pool: p}
	if m.beneath, err = around.Beneath(p.Name); err != nil {
		return nil, err
	}
	if err := m.registries(on); err != nil {
		return nil, err
	}
	if len(asks.settings.Allowed)+len(asks.settings.Blocked) > 0 || asks.demands() {
		if m.whole, err = around.Whole(p.Name); err != nil {
			m.whole = m.beneath // the pool reports a later MachineConfig that can't be read
		}
		if err := m.signatures(on, origins); err != nil {
			return nil, err
		}
	}
	var paths []string
	for _, f := range m.files {
		if !slices.Contains(m.merged, f.Path) && source.Contents(m.beneath, f.Path) != nil {
			return nil, fmt.Errorf("MachineConfigPool/%s: its MachineConfigs bring %s, which can't be merged: leave that file "+
				"to the objects that ask for the same", p.Name, f.Path)
		}
		paths = append(paths, f.Path)
	}
	if err := around.Replaced(paths...); err != nil {
		return nil, fmt.Errorf("MachineConfigPool/%s: %w, to be merged with what objects ask for", p.Name, err)
	}
	raw, err := source.Ignition(m.files, nil, nil)
	if err != nil {
		return nil, err
	}
	return source.Config(p.Name, name, raw), nil
}

func (m *making) put(path string, contents []byte) {
	m.files = append(m.files, source.File{Path: path, Contents: contents})
}

// brought returns an error about a file that the pool's MachineConfigs bring.
func (m *making) brought(path string, err error) error {
	return fmt.Errorf("MachineConfigPool/%s: %s as its MachineConfigs bring it: %w", m.pool.Name, path, err)
}

// registries makes the files that say where images come from.
func (m *making) registries(on source.Runtime) error {
	conf, err := registries.Parse(source.Contents(m.beneath, registries.Path))
	if err != nil {
		return m.brought(registries.Path, err)
	}
	m.conf = conf
	s := m.settings
	if on.Containerd {
		insecure := func(location string) bool {
			return conf.Insecure(location) || registries.WithinAny(location, s.Insecure)
		}
		open := slices.DeleteFunc(slices.Clone(s.Insecure), func(scope string) bool {
			return strings.ContainsAny(scope, "*/") // what containerd can't have is an error of the Image
		})
		for _, f := range registries.Hosts(m.sources, insecure, open) {
			m.put(f.Path, f.Contents)
		}
	}
	if len(s.Search) > 0 {
		text, err := registries.Search(s.Search)
		if err != nil {
			return fmt.Errorf("writing %s: %w", registries.SearchPath, err)
		}
		m.put(registries.SearchPath, text)
	}
	if len(m.sources)+len(s.Insecure)+len(s.Blocked) == 0 {
		return nil
	}
	if err := conf.Merge(m.sources); err != nil {
		return m.brought(registries.Path, err)
	}
	conf.Restrict(s.Insecure, s.Blocked)
	text, err := conf.Text()
	if err != nil {
		return fmt.Errorf("writing %s: %w", registries.Path, err)
	}
	m.put(registries.Path, text)
	m.merged = append(m.merged, registries.Path)
	return nil
}

// signatures makes the files that say which images are accepted.
func (m *making) signatures(on source.Runtime, origins []*origin) error {
	s := m.settings
	was := source.Contents(m.beneath, registries.PolicyPath)
	if was != nil {
		if _, err := osimage.ParsePolicy(registries.PolicyPath, was); err != nil {
			return m.brought(registries.PolicyPath, err)
		}
	}
	cluster, err := registries.ParsePolicy(was)
	if err != nil {
		return m.brought(registries.PolicyPath, err)
	}
	var scopes []string
	for _, c := range m.counts {
		if d := c.Demand; d != nil && d.Namespace == "" {
			for _, scope := range d.Scopes {
				cluster.Require(scope, d.Requirement)
			}
			scopes = append(scopes, d.Scopes...)
		}
	}
	if err := cluster.Restrict(s.Allowed, s.Blocked); err != nil {
		return fmt.Errorf("%s: %w", theImage, m.brought(registries.PolicyPath, err))
	}
	text, err := m.policy(registries.PolicyPath, cluster)
	if err != nil {
		return err
	}
	m.merged = append(m.merged, registries.PolicyPath)
	if err := s.refuses(text, m.whole.OSImageURL); err != nil {
		return fmt.Errorf("MachineConfigPool/%s: %w", m.pool.Name, err)
	}
	spaces, more := m.spaces(origins, cluster)
	if on.CRIO {
		for _, at := range slices.Sorted(maps.Keys(spaces)) {
			if _, err := m.policy(at, spaces[at]); err != nil {
				return err
			}
		}
		scopes = append(scopes, more...)
	}
	return m.attachments(scopes)
}

func (m *making) policy(path string, p *registries.Policy) ([]byte, error) {
	text, err := p.Text()
	if err != nil {
		return nil, fmt.Errorf("writing %s: %w", path, err)
	}
	m.put(path, text)
	return text, nil
}

// attachments makes the file that says where signatures are.
func (m *making) attachments(scopes []string) error {
	text, err := m.conf.Attachments(scopes)
	if err != nil || text == nil {
		return err
	}
	ours, err := registries.Attached(text)
	if err != nil {
		return err
	}
	for _, f := range m.whole.Files {
		read := path.Dir(f.Path) == registries.AttachmentsDir && path.Ext(f.Path) == ".yaml"
		if !read || f.Path == registries.AttachmentsPath {
			continue
		}
		theirs, err := registries.Attached(f.Contents)
		if err != nil {
			return m.brought(f.Path, err)
		}
		for _, scope := range theirs {
			if slices.Contains(ours, scope) {
				return m.brought(f.Path, fmt.Errorf("says where the signatures of %s are, as %s does: take one of them away",
					scope, registries.AttachmentsPath))
			}
		}
	}
	m.put(registries.AttachmentsPath, text)
	return nil
}
