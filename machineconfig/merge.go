// SPDX-License-Identifier: Apache-2.0

package machineconfig

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	cjson "github.com/clarketm/json"
	"github.com/coreos/ignition/v2/config/util"
	"github.com/coreos/ignition/v2/config/v3_6"
	"github.com/coreos/ignition/v2/config/v3_6/types"
	"github.com/coreos/ignition/v2/config/validate"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/noderefit/noderefit/message"
)

const (
	// roleLabel names the role of the nodes for which a MachineConfig is.
	roleLabel  = "machineconfiguration.openshift.io/role"
	roleWorker = "worker"

	// maxObjectSize, in bytes of JSON, is the largest object that an API server's store accepts.
	maxObjectSize = 1572864

	// Rendered configs are written in the oldest version that can express all of the config, for the sake of older
	// readers.
	writtenVersion = "3.5.0"
	newestMinor    = 6
)

// plainRoles are the pools that exist in every cluster; the nodes of any other pool are workers as well.
var plainRoles = map[string]bool{"master": true, roleWorker: true, "arbiter": true}

// Render selects a pool's documents and merges them over base. base may be nil.
func Render(pool string, docs *Documents, base *Document) (*mcfgv1.MachineConfig, []string, error) {
	var warnings []string
	unheard, meant := unheardOf(pool, docs)
	switch {
	case meant != "":
		return nil, nil, fmt.Errorf("selecting for pool %s: %s; did you mean %s? If not, give the %s %s as well",
			pool, unheard, meant, kindPool, pool)
	case unheard != "":
		warnings = []string{fmt.Sprintf("pool %s: %s; it gets what the role %s gets", pool, unheard, roleWorker)}
	}
	selected, err := Select(pool, docs)
	if err != nil {
		return nil, warnings, err
	}
	c, more, err := Merge(pool, selected, base)
	warnings = append(warnings, more...)
	if err != nil {
		return nil, warnings, err
	}
	return c.Object, warnings, nil
}

// Defaults returns the defaults of a ControllerConfig for every pool, the OS images, as the document of lowest
// precedence.
func Defaults(cc *mcfgv1.ControllerConfig) *Document {
	return &Document{Object: &mcfgv1.MachineConfig{
		ObjectMeta: metav1.ObjectMeta{Name: "ControllerConfig/" + cc.Name},
		Spec: mcfgv1.MachineConfigSpec{
			OSImageURL:                     cmp.Or(cc.Spec.BaseOSContainerImage, cc.Spec.OSImageURL),
			BaseOSExtensionsContainerImage: cc.Spec.BaseOSExtensionsContainerImage,
		},
	}}
}

// ErrNoneSelected is the error of a pool without documents.
var ErrNoneSelected = errors.New("no document matches")

// RoleSelector returns the machineConfigSelector of a pool that no object defines: it selects the pool as the role. A
// pool that is not one of the three of every cluster also selects the role worker.
func RoleSelector(pool string) *metav1.LabelSelector {
	roles := []string{pool}
	if !plainRoles[pool] {
		roles = append(roles, roleWorker)
	}
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: roleLabel, Operator: metav1.LabelSelectorOpIn, Values: roles},
	}}
}

// Select returns the documents of a pool. These are the documents that the machineConfigSelector of the pool's object
// matches. Without such an object, these are the documents with the pool as their role. A pool that is not one of the
// three of every cluster also has those with role worker. Documents without labels always belong to the pool. The error
// is ErrNoneSelected if no document belongs to it.
func Select(pool string, docs *Documents) ([]*Document, error) {
	var selector labels.Selector
	by := "no " + kindPool + " of that name is given, so by role label"
	for _, p := range docs.Pools {
		if p.Object.Name != pool {
			continue
		}
		var err error
		if selector, err = metav1.LabelSelectorAsSelector(p.Object.Spec.MachineConfigSelector); err != nil {
			return nil, fmt.Errorf("%s: spec.machineConfigSelector: %w", p, err)
		}
		by = p.String() + " by spec.machineConfigSelector"
	}
	if selector == nil {
		var err error
		if selector, err = metav1.LabelSelectorAsSelector(RoleSelector(pool)); err != nil {
			return nil, fmt.Errorf("selecting for pool %s: %w", pool, err)
		}
	}
	var selected []*Document
	for _, d := range docs.Configs {
		if d.Bare || selector.Matches(labels.Set(d.Object.Labels)) {
			selected = append(selected, d)
		}
	}
	if len(docs.Configs) == 0 {
		return nil, fmt.Errorf("selecting for pool %s: %w: there is no MachineConfig at all", pool, ErrNoneSelected)
	}
	if len(selected) == 0 {
		return nil, fmt.Errorf("selecting for pool %s: %w, of %d (%s: %s)",
			pool, ErrNoneSelected, len(docs.Configs), by, describe(selector))
	}
	return selected, nil
}

// unheardOf returns what to say of a pool that no document names. The result is "" where documents name no pool and no
// role. meant is the pool or role of which the name is a misspelling. It is "" for a custom pool that has nothing of
// its own yet.
func unheardOf(pool string, docs *Documents) (text, meant string) {
	var roles, pools []string
	for _, d := range docs.Configs {
		if role := d.Object.Labels[roleLabel]; role != "" {
			roles = append(roles, role)
		}
	}
	for _, p := range docs.Pools {
		pools = append(pools, p.Object.Name)
	}
	if plainRoles[pool] || len(docs.Configs) == 0 || slices.Contains(roles, pool) || slices.Contains(pools, pool) {
		return "", ""
	}
	known := func(names []string) string {
		slices.Sort(names)
		return cmp.Or(strings.Join(slices.Compact(names), ", "), "none")
	}
	meant = misspelt(pool, slices.Concat(pools, roles, slices.Sorted(maps.Keys(plainRoles))))
	if len(roles) > 0 || meant != "" {
		text = fmt.Sprintf("there is neither a %s of that name nor a %s with that role; pools are: %s; roles are: %s",
			kindPool, kindConfig, known(pools), known(roles))
	}
	return text, meant
}

func describe(s labels.Selector) string {
	if _, selectable := s.Requirements(); !selectable {
		return "nothing"
	}
	return cmp.Or(s.String(), "everything")
}

// Merge validates documents, merges them over base into the configuration of a pool, and validates the result. base has
// the lowest precedence and may be nil. Documents with the role worker come first, then all others, each by name. A
// later document wins: for spec.config by Ignition's rules, for the other fields as described at accumulator.add.
// Warnings name documents.
func Merge(pool string, docs []*Document, base *Document) (*Config, []string, error) {
	docs = slices.SortedStableFunc(slices.Values(docs), func(a, b *Document) int { return Precedence(a.Object, b.Object) })
	if base != nil {
		docs = append([]*Document{base}, docs...)
	}
	var warnings []string
	parts := make([]*parsed, len(docs))
	expanded := 0
	for i, d := range docs {
		p, more, err := d.parse(offered)
		if err != nil {
			return nil, warnings, fmt.Errorf("merging for pool %s: %w", pool, err)
		}
		warnings = append(warnings, more...)
		p.base = base != nil && i == 0
		parts[i] = p
		if expanded += p.expanded(); expanded > maxExpanded {
			return nil, warnings, fmt.Errorf("merging for pool %s: %w; largest are %s", pool, errExpanded, swollen(parts[:i+1]))
		}
	}
	whole := merge(parts)
	if err := whole.check(); err != nil {
		return nil, warnings, fmt.Errorf("merging for pool %s: %w; each document is valid, together these are not: %s",
			pool, errors.New(message.OneLine(err.Error())), names(culprits(parts)))
	}
	c, err := whole.config()
	if err != nil {
		return nil, warnings, fmt.Errorf("merging for pool %s: %w", pool, err)
	}
	c.Name = "rendered-" + pool + "-" + c.Digest[:nameDigits]
	if c.Object, err = whole.object(c.Name); err != nil {
		return nil, warnings, fmt.Errorf("merging for pool %s: %w", pool, err)
	}
	small := *c.Object
	small.Spec.Config.Raw = nil
	raw, err := json.Marshal(small)
	if err != nil {
		return nil, warnings, fmt.Errorf("merging for pool %s: %w", pool, err)
	}
	size := len(raw) + len(c.Object.Spec.Config.Raw)
	switch {
	case size > maxObjectSize:
		return nil, warnings, fmt.Errorf("merging for pool %s: MachineConfig/%s is %d bytes large, at most %d can be "+
			"stored; largest are %s", pool, c.Name, size, maxObjectSize, largest(docs))
	case size > maxObjectSize/5*4:
		warnings = append(warnings, fmt.Sprintf("MachineConfig/%s is %d bytes large, %d %% of the %d that can be stored; "+
			"largest are %s", c.Name, size, size*100/maxObjectSize, maxObjectSize, largest(docs)))
	}
	return c, warnings, nil
}

// Precedence is negative where a is merged before b, so that b wins. It is positive where a is merged after b.
func Precedence(a, b *mcfgv1.MachineConfig) int {
	return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Name, b.Name))
}

func rank(mc *mcfgv1.MachineConfig) int {
	if mc.Labels[roleLabel] == roleWorker {
		return 0
	}
	return 1
}

func names(docs []*Document) string {
	var out []string
	for _, d := range docs {
		out = append(out, d.String())
	}
	return strings.Join(out, ", ")
}

// largest names the three documents that take the most room.
func largest(docs []*Document) string {
	docs = slices.SortedStableFunc(slices.Values(docs), func(a, b *Document) int {
		return cmp.Compare(len(b.Object.Spec.Config.Raw), len(a.Object.Spec.Config.Raw))
	})
	var out []string
	for _, d := range docs[:min(3, len(docs))] {
		out = append(out, fmt.Sprintf("%s with %d", d, len(d.Object.Spec.Config.Raw)))
	}
	return strings.Join(out, ", ")
}

// expanded returns the decompressed size, in bytes, of the compressed contents of a document.
func (p *parsed) expanded() (bytes int) {
	add := func(res types.Resource) {
		if util.NotEmpty(res.Compression) {
			bytes += len(p.contents[res.Source])
		}
	}
	for i := range p.cfg.Storage.Files {
		f := &p.cfg.Storage.Files[i]
		add(f.Contents)
		for _, a := range f.Append {
			add(a)
		}
	}
	return bytes
}

// swollen names the three documents with the largest decompressed contents.
func swollen(parts []*parsed) string {
	parts = slices.SortedStableFunc(slices.Values(parts), func(a, b *parsed) int {
		return cmp.Compare(b.expanded(), a.expanded())
	})
	var out []string
	for _, p := range parts[:min(3, len(parts))] {
		out = append(out, fmt.Sprintf("%s with %d MiB", p.doc, p.expanded()>>20))
	}
	return strings.Join(out, ", ")
}

// culprits returns a smallest set of documents that is still invalid when merged. It leaves out halves, then smaller
// and smaller pieces, as long as the rest stays invalid.
func culprits(parts []*parsed) []*Document {
	for size := (len(parts) + 1) / 2; size > 0; size /= 2 {
		for from := 0; from < len(parts); {
			rest := slices.Concat(parts[:from], parts[min(from+size, len(parts)):])
			if len(rest) > 0 && merge(rest).check() != nil {
				parts = rest
				continue
			}
			from += size
		}
	}
	var docs []*Document
	for _, p := range parts {
		docs = append(docs, p.doc)
	}
	return docs
}

// merge merges documents in time linear in their size. Only entries with the same key go through Ignition's merge,
// which otherwise copies the whole result so far for each further document.
func merge(parts []*parsed) *parsed {
	a := accumulator{
		files: map[string]types.File{}, dirs: map[string]types.Directory{}, links: map[string]types.Link{},
		units: map[string]types.Unit{}, users: map[string]types.PasswdUser{}, contents: contents{}, places: places{},
	}
	for _, p := range parts {
		a.add(p)
	}
	return a.result()
}

// accumulator is the merged configuration so far, with entries by key. rest is everything except files, directories,
// links, units and users: few, rarely changed settings.
type accumulator struct {
	spec mcfgv1.MachineConfigSpec
	// osImage and extensionsImage are the images of generated documents. They count where no other document names an
	// image.
	osImage, extensionsImage string
	// base has the images of the base. release is the image of a release that is followed.
	base    mcfgv1.MachineConfigSpec
	release string

	minor    int64
	files    map[string]types.File
	dirs     map[string]types.Directory
	links    map[string]types.Link
	units    map[string]types.Unit
	users    map[string]types.PasswdUser
	rest     types.Config
	contents contents
	places   places
}

// generatedBy is the annotation of a MachineConfig that a controller made.
const generatedBy = "machineconfiguration.openshift.io/generated-by-controller-version"

// ReleaseKey is the annotation of a MachineConfig that a controller made of a release that it follows: the release. Its
// image wins over the cluster's default, and not over an image that a person names.
const ReleaseKey = "noderefit.dev/release"

// images takes the images of one more document. A document that a controller made only repeats the cluster's default at
// that time, unless it is of a release. As upstream, such an image wins neither over an image that a person names, nor
// over the present default.
func (a *accumulator) images(p *parsed) {
	if p.base {
		a.base.OSImageURL = p.spec.OSImageURL
		a.base.BaseOSExtensionsContainerImage = p.spec.BaseOSExtensionsContainerImage
		return
	}
	if p.doc != nil && p.doc.Object.Annotations[generatedBy] != "" && p.doc.Object.Annotations[ReleaseKey] != "" {
		a.release = cmp.Or(p.spec.OSImageURL, a.release)
		return
	}
	if p.doc != nil && p.doc.Object.Annotations[generatedBy] != "" {
		a.osImage = cmp.Or(p.spec.OSImageURL, a.osImage)
		a.extensionsImage = cmp.Or(p.spec.BaseOSExtensionsContainerImage, a.extensionsImage)
		return
	}
	a.spec.OSImageURL = cmp.Or(p.spec.OSImageURL, a.spec.OSImageURL)
	a.spec.BaseOSExtensionsContainerImage = cmp.Or(p.spec.BaseOSExtensionsContainerImage,
		a.spec.BaseOSExtensionsContainerImage)
}

// add merges one more document over the documents so far. Kernel type: the last that is set, so that an explicit
// default wins over a lower realtime. FIPS: set by any document. Kernel arguments: one document after the other.
// Extensions: all, once.
func (a *accumulator) add(p *parsed) {
	a.images(p)
	a.spec.KernelType = cmp.Or(p.spec.KernelType, a.spec.KernelType)
	a.spec.FIPS = a.spec.FIPS || p.spec.FIPS
	a.spec.KernelArguments = append(a.spec.KernelArguments, p.spec.KernelArguments...)
	a.spec.Extensions = append(a.spec.Extensions, p.spec.Extensions...)
	a.minor = max(a.minor, p.minor)
	maps.Copy(a.contents, p.contents)
	a.places.over(p)

	var m meeting
	a.addStorage(&p.cfg.Storage, &m)
	for _, u := range p.cfg.Systemd.Units {
		if had, ok := a.units[u.Name]; ok {
			m.parent.Systemd.Units = append(m.parent.Systemd.Units, had)
			m.child.Systemd.Units = append(m.child.Systemd.Units, u)
		} else {
			a.units[u.Name] = u
		}
	}
	for _, u := range p.cfg.Passwd.Users {
		if had, ok := a.users[u.Name]; ok {
			m.parent.Passwd.Users = append(m.parent.Passwd.Users, had)
			m.child.Passwd.Users = append(m.child.Passwd.Users, u)
		} else {
			a.users[u.Name] = u
		}
	}
	a.take(&m)
	if !onlyCommon(&p.cfg) {
		a.rest = v3_6.Merge(a.rest, withoutCommon(&p.cfg))
	}
}

// meeting holds the entries of two configurations that have a key in common: those so far, and those of one more
// document.
type meeting struct{ parent, child types.Config }

// addStorage takes the files, directories and links of one more document. Entries at new paths are taken unchanged, all
// others go into the meeting.
func (a *accumulator) addStorage(s *types.Storage, m *meeting) {
	for _, f := range s.Files {
		if !a.meets(f.Path, &m.parent.Storage) {
			a.files[f.Path] = f
			continue
		}
		// Contents are replaced as a whole. Otherwise a lower document's compression and hash would apply to a higher
		// document's source.
		files := m.parent.Storage.Files
		if n := len(files); n > 0 && files[n-1].Path == f.Path && f.Contents.Source != nil {
			files[n-1].Contents = types.Resource{}
		}
		if f.Contents.Source == nil {
			f.Contents = types.Resource{}
		}
		m.child.Storage.Files = append(m.child.Storage.Files, f)
	}
	for _, d := range s.Directories {
		if a.meets(d.Path, &m.parent.Storage) {
			m.child.Storage.Directories = append(m.child.Storage.Directories, d)
		} else {
			a.dirs[d.Path] = d
		}
	}
	for _, l := range s.Links {
		if a.meets(l.Path, &m.parent.Storage) {
			m.child.Storage.Links = append(m.child.Storage.Links, l)
		} else {
			a.links[l.Path] = l
		}
	}
}

// meets moves the entry at a path, of any kind, to the parent of a merge. It reports whether such an entry existed.
func (a *accumulator) meets(path string, parent *types.Storage) bool {
	if f, ok := a.files[path]; ok {
		parent.Files = append(parent.Files, f)
		delete(a.files, path)
		return true
	}
	if d, ok := a.dirs[path]; ok {
		parent.Directories = append(parent.Directories, d)
		delete(a.dirs, path)
		return true
	}
	if l, ok := a.links[path]; ok {
		parent.Links = append(parent.Links, l)
		delete(a.links, path)
		return true
	}
	return false
}

// take merges the entries of a meeting by Ignition's rules, and takes the result.
func (a *accumulator) take(m *meeting) {
	c := &m.child
	if c.Storage.Files == nil && c.Storage.Directories == nil && c.Storage.Links == nil &&
		c.Systemd.Units == nil && c.Passwd.Users == nil {
		return
	}
	merged := v3_6.Merge(m.parent, m.child)
	for _, f := range merged.Storage.Files {
		a.files[f.Path] = f
	}
	for _, d := range merged.Storage.Directories {
		a.dirs[d.Path] = d
	}
	for _, l := range merged.Storage.Links {
		a.links[l.Path] = l
	}
	for _, u := range merged.Systemd.Units {
		a.units[u.Name] = u
	}
	for _, u := range merged.Passwd.Users {
		a.users[u.Name] = u
	}
}

// result returns the merged configuration in canonical order.
func (a *accumulator) result() *parsed {
	p := &parsed{doc: &Document{Object: newObject("")}, spec: a.spec, minor: a.minor, cfg: a.rest, contents: a.contents,
		places: a.places}
	defaults := a.base
	if a.release != "" { // the default's extensions are of another OS
		defaults = mcfgv1.MachineConfigSpec{OSImageURL: a.release}
		a.extensionsImage = ""
	}
	p.spec.OSImageURL = cmp.Or(p.spec.OSImageURL, defaults.OSImageURL, a.osImage)
	p.spec.BaseOSExtensionsContainerImage = cmp.Or(p.spec.BaseOSExtensionsContainerImage,
		defaults.BaseOSExtensionsContainerImage, a.extensionsImage)
	p.spec.KernelType = cmp.Or(p.spec.KernelType, KernelDefault)
	p.spec.Extensions = append([]string{}, unique(p.spec.Extensions)...)
	p.spec.KernelArguments = append([]string{}, p.spec.KernelArguments...)
	p.cfg.Ignition.Version = types.MaxVersion.String()
	p.cfg.Storage.Files = ordered(a.files)
	for i := range p.cfg.Storage.Files {
		f := &p.cfg.Storage.Files[i]
		// Ignition refuses overwrite for a file without contents.
		if f.Overwrite == nil && f.Contents.Source != nil && len(f.Append) == 0 {
			f.Overwrite = new(true)
		}
	}
	p.cfg.Storage.Directories = ordered(a.dirs)
	p.cfg.Storage.Links = ordered(a.links)
	p.cfg.Systemd.Units = ordered(a.units)
	for i := range p.cfg.Systemd.Units {
		u := &p.cfg.Systemd.Units[i]
		u.Dropins = byKey(u.Dropins)
	}
	p.cfg.Passwd.Users = ordered(a.users)
	return p
}

func ordered[T any](m map[string]T) []T {
	var out []T
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, m[k])
	}
	return out
}

// check validates a merged configuration. Its contents and units were checked with their documents.
func (p *parsed) check() error {
	light := p.cfg
	short, section := "data:,", "[Unit]\n"
	light.Storage.Files = slices.Clone(p.cfg.Storage.Files)
	for i := range light.Storage.Files {
		if f := &light.Storage.Files[i]; f.Contents.Source != nil {
			f.Contents.Source = &short
		}
	}
	light.Systemd.Units = slices.Clone(p.cfg.Systemd.Units)
	for i := range light.Systemd.Units {
		u := &light.Systemd.Units[i]
		if util.NotEmpty(u.Contents) {
			u.Contents, u.Enabled = &section, nil
		}
		u.Dropins = slices.Clone(u.Dropins)
		for j := range u.Dropins {
			if util.NotEmpty(u.Dropins[j].Contents) {
				u.Dropins[j].Contents = &section
			}
		}
	}
	var err error
	if !onlyCommon(&light) || !clean(&light) {
		_, err = judge(&p.cfg, validate.ValidateWithContext(light, nil), nil, offered)
	}
	if err = errors.Join(err, checkTogether(&p.cfg)); err != nil {
		return fmt.Errorf("spec.config.%s", strings.ReplaceAll(err.Error(), "\n", "; spec.config."))
	}
	return checkSpec(&p.spec)
}

// object writes a merged configuration as a MachineConfig.
func (p *parsed) object(name string) (*mcfgv1.MachineConfig, error) {
	cfg := p.cfg
	if p.minor < newestMinor {
		cfg.Ignition.Version = writtenVersion
	}
	raw, err := cjson.Marshal(cfg)
	if err != nil {
		return nil, fmt.Errorf("writing MachineConfig/%s: %w", name, err)
	}
	mc := newObject(name)
	mc.Spec = p.spec
	mc.Spec.Config.Raw = raw
	p.places.note(mc)
	return mc, nil
}
