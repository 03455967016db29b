// SPDX-License-Identifier: Apache-2.0

package source

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"

	"github.com/coreos/ignition/v2/config/v3_5/types"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"github.com/vincent-petithory/dataurl"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/machineconfig"
)

// Name returns the name of the MachineConfig that is made for a pool of an object with this suffix.
func Name(pool, what, suffix string) string {
	name := "99-" + pool + "-generated-" + what
	if suffix != "" {
		name += "-" + suffix
	}
	return name
}

// IsNamed reports whether Name returns this name for some pool.
func IsNamed(name, what string) bool {
	ok, err := regexp.MatchString(`^99-.+-generated-`+regexp.QuoteMeta(what)+`(-[1-9])?$`, name)
	return ok && err == nil
}

// File is a file of a MachineConfig, readable by everybody.
type File struct {
	Path     string
	Contents []byte
}

// Ignition returns the Ignition config of files in any order, links and units, as JSON.
func Ignition(files []File, links []types.Link, units []types.Unit) ([]byte, error) {
	files = slices.SortedFunc(slices.Values(files), func(a, b File) int { return cmp.Compare(a.Path, b.Path) })
	c := types.Config{Ignition: types.Ignition{Version: types.MaxVersion.String()}}
	c.Storage.Links, c.Systemd.Units = links, units
	for _, f := range files {
		source := dataurl.New(f.Contents, "text/plain", "charset", "utf-8").String()
		c.Storage.Files = append(c.Storage.Files, types.File{
			Node: types.Node{Path: f.Path, Overwrite: new(true)},
			FileEmbedded1: types.FileEmbedded1{
				Mode: new(0o644), Contents: types.Resource{Source: &source, Compression: new("")},
			},
		})
	}
	raw, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("writing an Ignition config: %w", err)
	}
	return raw, nil
}

// Config makes the MachineConfig of that name for a pool, from an Ignition config.
func Config(pool, name string, ignition []byte) *mcfgv1.MachineConfig {
	mc := &mcfgv1.MachineConfig{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{api.Role: pool}}}
	mc.Spec.Config.Raw = ignition
	return mc
}

// Around are the MachineConfigs of a pool before and after a MachineConfig that is made for it.
type Around struct {
	name  string
	under []*machineconfig.Document
	over  []*machineconfig.Document
}

// AroundOf finds the MachineConfigs around the one of that name. own reports which of them are left out, because they
// are made in the same way and together with it.
func AroundOf(
	pool *mcfgv1.MachineConfigPool, configs []*mcfgv1.MachineConfig, name string, own func(*mcfgv1.MachineConfig) bool,
) (*Around, error) {
	selector, err := metav1.LabelSelectorAsSelector(pool.Spec.MachineConfigSelector)
	if err != nil {
		return nil, fmt.Errorf("MachineConfigPool/%s: spec.machineConfigSelector: %w", pool.Name, err)
	}
	at := &mcfgv1.MachineConfig{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{api.Role: pool.Name}}}
	a := &Around{name: name}
	for _, mc := range configs {
		switch {
		case own(mc) || machineconfig.PoolOf(mc.Name) != "" || !selector.Matches(labels.Set(mc.Labels)):
		case machineconfig.Precedence(mc, at) < 0:
			a.under = append(a.under, &machineconfig.Document{Object: mc})
		default:
			a.over = append(a.over, &machineconfig.Document{Object: mc})
		}
	}
	for _, docs := range [][]*machineconfig.Document{a.under, a.over} {
		slices.SortFunc(docs, func(x, y *machineconfig.Document) int { return machineconfig.Precedence(x.Object, y.Object) })
	}
	return a, nil
}

// Beneath returns what the pool has without the MachineConfig.
func (a *Around) Beneath(pool string) (*machineconfig.Config, error) {
	if len(a.under) == 0 {
		return &machineconfig.Config{}, nil
	}
	c, _, err := machineconfig.Merge(pool, a.under, nil)
	return c, err
}

// Whole returns what the pool has with later MachineConfigs too.
func (a *Around) Whole(pool string) (*machineconfig.Config, error) {
	if len(a.under)+len(a.over) == 0 {
		return &machineconfig.Config{}, nil
	}
	c, _, err := machineconfig.Merge(pool, slices.Concat(a.under, a.over), nil)
	return c, err
}

// Bringing returns the name of the MachineConfig beneath whose file of that path counts, and "" if no such file exists.
func (a *Around) Bringing(path string) string {
	for _, d := range slices.Backward(a.under) {
		if brings(d, path) {
			return d.Object.Name
		}
	}
	return ""
}

// Replaced returns an error for each later MachineConfig that replaces one of these files.
func (a *Around) Replaced(paths ...string) error {
	var errs []error
	for _, d := range a.over {
		for _, path := range paths {
			if brings(d, path) {
				errs = append(errs, fmt.Errorf("MachineConfig/%s brings %s too, and wins by its name: rename it to sort before %s",
					d.Object.Name, path, a.name))
			}
		}
	}
	return errors.Join(errs...)
}

// brings reports whether a MachineConfig has a file. A MachineConfig that can't be read has none: the pool reports that
// error.
func brings(d *machineconfig.Document, path string) bool {
	c, err := machineconfig.Parse(d.Object)
	return err == nil && slices.ContainsFunc(c.Files, func(f machineconfig.File) bool { return f.Path == path })
}

// Contents returns the contents of a file in a configuration. Contents returns nil if the configuration has no file of
// that path, or no contents for it, and never otherwise.
func Contents(c *machineconfig.Config, path string) []byte {
	i := slices.IndexFunc(c.Files, func(f machineconfig.File) bool { return f.Path == path && !f.NoContents })
	if i < 0 {
		return nil
	}
	return append([]byte{}, c.Files[i].Contents...)
}

// Selected reports whether a pool selects what is made for another pool, or for itself.
func Selected(pool *mcfgv1.MachineConfigPool, by string) (bool, error) {
	s, err := metav1.LabelSelectorAsSelector(pool.Spec.MachineConfigSelector)
	if err != nil {
		return false, fmt.Errorf("MachineConfigPool/%s: spec.machineConfigSelector: %w", pool.Name, err)
	}
	return s.Matches(labels.Set{api.Role: by}), nil
}
