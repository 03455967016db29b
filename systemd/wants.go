// SPDX-License-Identifier: Apache-2.0

// Package systemd knows the effect of units on a host: the files and links that a configuration wants (Wants, pure
// except for reading the host). Manager tells a running systemd and logind about them over D-Bus.
package systemd

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/noderefit/noderefit/files"
)

// Unit is a unit of a configuration.
type Unit struct {
	Name     string
	Contents string // "": the unit file is not ours
	Enabled  *bool
	Mask     *bool // nil: unset; false: a mask must be removed
	Dropins  []Dropin
	// Preset means that the unit is new or changed and that Enabled is nil, so that the host's presets decide now.
	Preset bool
	// Released means that the last configuration had the unit file, or a mask, and this one does not. The caller removes
	// or restores it, and it counts here as already gone.
	Released bool
}

// Dropin is NAME in /etc/systemd/system/UNIT.d. Empty Contents mean that no such file may exist.
type Dropin struct {
	Name     string
	Contents string
}

// fate is the decision on one unit's enablement.
type fate struct {
	enable bool
	by     string // the unit of the configuration that decided
	direct bool   // not through Also=
	preset bool
}

// decider collects the fates of all units before it judges any link, because one unit's Also= may name another unit.
type decider struct {
	tree     *tree
	fates    map[string]fate
	files    map[string]*unitFile // of the enabled units
	order    []string             // of the enabled units
	kept     map[string]bool      // units of the configuration whose links are not touched
	warnings []string
}

// Link is an enablement link: its absolute path, and its target as written. An empty target means that no link is at
// that path.
type Link struct{ Path, Target string }

// Past tells what units become when a configuration releases them, which depends on what was there before the
// configuration.
type Past interface {
	// UnitFile returns the node that the unit's own path gets, and whether that differs from the present one.
	UnitFile(name string) (n files.Node, lets bool, err error)
	// Links returns how the unit was enabled before a configuration named it. known reports whether that was recorded.
	Links(unit string) (links []Link, known bool, err error)
}

// Enablement returns the links that disabling a unit would remove, including those of the units in its Also=, and
// whether the host has the unit.
func Enablement(host Host, unit string) (links []Link, there bool, err error) {
	if splitName(unit).kind == invalidName {
		return nil, false, nil
	}
	d := newDecider(newTree(host))
	switch _, err := d.tree.traverse(unit, false, false); {
	case err == nil, errors.Is(err, errMasked):
		there = true
	case !asRefusal(err):
		return nil, false, err
	}
	d.set(unit, fate{by: unit, direct: true}, nil)
	if err := d.decideAlso(); err != nil {
		return nil, false, err
	}
	found, err := d.tree.enablementLinks(UnitDir)
	if err != nil {
		return nil, false, err
	}
	for _, e := range found {
		if _, ok := d.decidedBy(e); ok {
			links = append(links, Link{e.path, e.target})
		}
	}
	return links, there, nil
}

func newDecider(t *tree) *decider {
	return &decider{tree: t, fates: map[string]fate{}, files: map[string]*unitFile{}, kept: map[string]bool{}}
}

// Wants returns the paths that units need on host, sorted by path, each path once. released are units that the last
// configuration had and this one does not. The caller releases their files and drop-ins, and past tells what becomes of
// them; only the enablement of released units is decided here. warnings are sentences about units for which the request
// is impossible, each naming its unit. They are not errors, as they are none to systemctl's users upstream.
//
// Enablement is computed as in systemd's own install logic (the behaviour of version 257; the tests compare with
// systemctl --root of the installed version). The differences are all on the careful side:
//
//   - The links are those of the new configuration only: enabling also removes links of a former [Install]. Another
//     instance of an enabled template is a unit of its own and keeps its links.
//   - A unit that the configuration names directly is not enabled or disabled by another unit's Also=.
//   - A link to /dev/null is a mask, and never counts as enablement. Nor does default.target, the machine's own choice.
//   - A link that already leads to the same unit as systemd's link keeps its target: /lib for /usr/lib (as Debian 12
//     writes it), or a relative target. systemctl leaves such links alone too.
//   - Generated and transient units do not count as unit files.
//
// A link that storage.links of the same configuration wants has precedence over an Absent of this list.
func Wants(host Host, units []Unit, released []string, past Past) (wants []files.Want, warnings []string, err error) {
	t := newTree(host)
	w := &wantSet{at: map[string]files.Want{}}
	for _, u := range units {
		if err := Validate(u); err != nil {
			return nil, nil, err
		}
		if err := w.unit(t, u); err != nil {
			return nil, nil, fmt.Errorf("unit %s: %w", u.Name, err)
		}
		if !u.Released {
			continue
		}
		if err := w.releaseFile(t, u.Name, past); err != nil {
			return nil, nil, fmt.Errorf("unit %s: %w", u.Name, err)
		}
	}
	named := map[string]bool{}
	for _, u := range units {
		named[u.Name] = true
	}
	released = slices.DeleteFunc(slices.Clone(released), func(r string) bool {
		return named[r] || splitName(r).kind == invalidName
	})
	slices.Sort(released)
	released = slices.Compact(released)
	for _, r := range released {
		if err := w.release(t, r, past); err != nil {
			return nil, nil, fmt.Errorf("unit %s: %w", r, err)
		}
	}
	if err := t.overlay(w.over()); err != nil {
		return nil, nil, err
	}

	d := newDecider(t)
	for _, u := range units {
		if err := d.decideUnit(u); err != nil {
			return nil, nil, fmt.Errorf("unit %s: %w", u.Name, err)
		}
	}
	var fromDefaults []files.Want
	for _, r := range released {
		back, err := d.decideReleased(r, past)
		if err != nil {
			return nil, nil, fmt.Errorf("unit %s: %w", r, err)
		}
		fromDefaults = append(fromDefaults, back...)
	}
	if len(d.fates) > 0 {
		if err := d.decideAlso(); err != nil {
			return nil, nil, err
		}
		if err := d.enablement(w, fromDefaults); err != nil {
			return nil, nil, err
		}
	}
	for _, p := range sortedKeys(w.at) {
		wants = append(wants, w.at[p])
	}
	return wants, d.warnings, nil
}

// wantSet has the wants so far, by path.
type wantSet struct {
	at      map[string]files.Want
	gone    []string // paths that the caller releases
	goneDir []string
}

func (w *wantSet) add(want files.Want) { w.at[want.Path] = want }

// unit adds the wants of a unit, except for its enablement.
func (w *wantSet) unit(t *tree, u Unit) error {
	at := UnitDir + "/" + u.Name
	want := files.Want{Path: at, Kind: "unit", Name: u.Name}
	switch {
	case u.masked():
		want.Node, want.Aspect = files.Node{Type: files.Symlink, Target: "/dev/null"}, files.Masked
		w.add(want)
	case u.Contents != "":
		want.Node = files.Node{Type: files.Regular, Mode: 0o644, Data: []byte(u.Contents)}
		w.add(want)
	case u.Mask != nil:
		// Only a mask must be removed: any other node there belongs to an admin.
		n, err := t.host.Inspect(at)
		if err != nil {
			return err
		}
		if n.Type == files.Symlink && path.Clean(n.Target) == "/dev/null" {
			want.Node, want.Aspect = files.Node{Type: files.Absent}, files.Masked
			w.add(want)
		}
	}
	for _, d := range u.Dropins {
		want := files.Want{Path: at + ".d/" + d.Name, Kind: "dropin", Name: u.Name + "/" + d.Name}
		want.Node = files.Node{Type: files.Absent}
		if d.Contents != "" {
			want.Node = files.Node{Type: files.Regular, Mode: 0o644, Data: []byte(d.Contents)}
		}
		w.add(want)
	}
	return nil
}

func (u Unit) masked() bool { return u.Mask != nil && *u.Mask }

// release records that a unit's own files are removed.
func (w *wantSet) release(t *tree, name string, past Past) error {
	w.goneDir = append(w.goneDir, UnitDir+"/"+name+".d")
	return w.releaseFile(t, name, past)
}

func (w *wantSet) releaseFile(t *tree, name string, past Past) error {
	n, lets, err := past.UnitFile(name)
	switch {
	case err != nil || !lets:
		return err
	case n.Type == files.Absent:
		w.gone = append(w.gone, UnitDir+"/"+name)
	default:
		t.over[UnitDir+"/"+name] = n
	}
	return nil
}

// over returns the tree's changes once these wants are met.
func (w *wantSet) over() (map[string]files.Node, []string) {
	over := map[string]files.Node{}
	for _, p := range w.gone {
		over[p] = files.Node{Type: files.Absent}
	}
	for p, want := range w.at {
		over[p] = want.Node
	}
	return over, w.goneDir
}

// overlay adds the future nodes to the tree. It must be called before anything is read.
func (t *tree) overlay(over map[string]files.Node, hidden []string) error {
	for _, dir := range []string{"/etc", "/etc/systemd", UnitDir} {
		n, err := t.node(dir)
		if err != nil {
			return err
		}
		if n.Type == files.Absent {
			t.over[dir] = files.Node{Type: files.Directory}
		}
	}
	for p, n := range over {
		if _, ours := t.over[p]; ours && n.Type == files.Absent {
			continue
		}
		t.over[p] = n
		if dir := path.Dir(p); dir != UnitDir && n.Type != files.Absent {
			t.over[dir] = files.Node{Type: files.Directory}
		}
	}
	for _, dir := range hidden {
		t.hidden[dir] = true
	}
	return nil
}

func (d *decider) warn(unit, format string, a ...any) {
	d.warnings = append(d.warnings, fmt.Sprintf("unit %s: %s", unit, fmt.Sprintf(format, a...)))
}

// set records a direct decision. The first decision on a unit counts, except that a unit's own name has precedence over
// an alias.
func (d *decider) set(unit string, f fate, u *unitFile) {
	if old, ok := d.fates[unit]; ok && (old.by == unit || f.by != unit) {
		if old.enable != f.enable {
			d.warn(f.by, "the unit is %s, which the configuration treats otherwise under the name %s: the latter counts",
				unit, old.by)
		}
		return
	}
	if f.enable {
		if _, again := d.files[unit]; !again {
			d.order = append(d.order, unit)
		}
		d.files[unit] = u
	} else {
		delete(d.files, unit)
	}
	d.fates[unit] = f
}

func (d *decider) decideUnit(u Unit) error {
	name := u.Name
	f := fate{by: name, direct: true}
	switch {
	case u.masked() && u.Enabled != nil:
		if *u.Enabled {
			d.warn(name, "the unit is both masked and enabled: the mask counts")
		}
		d.set(name, f, nil)
		return nil
	case u.masked() || u.Enabled == nil && !u.Preset:
		d.kept[name] = true
		return nil
	case u.Enabled == nil:
		return d.preset(name)
	case !*u.Enabled:
		return d.disable(name)
	}

	f.enable = true
	found, err := d.tree.traverse(name, true, false)
	switch {
	case errors.Is(err, errMissing):
		d.warn(name, "enabled, but the unit has neither contents nor a unit file on this host: skipped")
		if u.Released { // the links belong to the former unit file
			f.enable = false
			d.set(name, f, nil)
			return nil
		}
	case asRefusal(err):
		d.warn(name, "enabled, but %v: skipped", err)
	case err != nil:
		return err
	case found.empty() && u.Contents == "":
		d.warn(name, "enabled, but the unit has no [Install] section: nothing to do")
	default:
		if found.empty() {
			d.warn(name, "enabled, but its contents have no [Install] section: nothing to do")
		}
		d.set(found.name, f, found)
		return nil
	}
	d.kept[name] = true
	return nil
}

// brought reports whether the configuration brings the file at p.
func (t *tree) brought(p string) bool { return t.over[p].Type == files.Regular }

func (d *decider) disable(name string) error {
	f := fate{by: name, direct: true}
	found, err := d.tree.traverse(name, false, false)
	switch {
	case errors.Is(err, errMasked):
		// An admin's mask; systemctl disable leaves the links of a masked unit too.
		d.kept[name] = true
	case asRefusal(err):
		// Links may be left of a unit file that no longer exists.
		d.set(name, f, nil)
	case err != nil:
		return err
	default:
		d.set(found.name, f, nil)
	}
	return nil
}

// preset applies the host's presets. Units for which this is impossible are skipped without a warning, as upstream
// does, because the configuration did not ask for it.
func (d *decider) preset(name string) error {
	found, err := d.tree.traverse(name, false, false)
	switch {
	case asRefusal(err):
		d.kept[name] = true
		return nil
	case err != nil:
		return err
	case found.name != name:
		// An alias: systemd applies the presets to the unit itself only.
		d.kept[name] = true
		return nil
	}
	rules, err := d.tree.presets()
	if err != nil {
		return fmt.Errorf("reading presets: %w", err)
	}
	action, instances := decide(rules, name)
	if action == presetEnable && found.empty() && !d.tree.brought(found.path) {
		d.kept[name] = true
		return nil
	}
	switch action {
	case presetIgnore:
		d.kept[name] = true
		return nil
	case presetDisable:
		return d.disable(name)
	}
	targets := instances
	if len(instances) == 0 {
		targets = []string{name}
	}
	for _, target := range targets {
		u, err := d.tree.traverse(target, true, false)
		switch {
		case asRefusal(err):
			d.kept[target] = true
		case err != nil:
			return err
		default:
			d.set(u.name, fate{enable: true, by: name, direct: true, preset: true}, u)
		}
	}
	return nil
}

// decideReleased restores a unit's enablement: the deployment's own links, else those from before a configuration named
// the unit. Without a record of these, the unit gets no links in a deployment that brings links of its own. Elsewhere
// the presets decide.
func (d *decider) decideReleased(name string, past Past) ([]files.Want, error) {
	back, has, err := d.defaultLinks(name)
	if err != nil {
		return nil, err
	}
	if len(back) == 0 {
		links, known, err := past.Links(name)
		if err != nil {
			return nil, err
		}
		for _, l := range links {
			n := files.Node{Type: files.Symlink, Target: l.Target}
			if l.Target == "" {
				n = files.Node{Type: files.Absent}
			}
			back = append(back, enablementWant(l.Path, name, n))
		}
		has = has || known
	}
	if has {
		d.set(name, fate{by: name, direct: true}, nil)
		return back, nil
	}
	if _, err := d.tree.traverse(name, false, false); err == nil {
		return nil, d.preset(name)
	} else if !asRefusal(err) {
		return nil, err
	}
	return nil, d.disable(name)
}

// defaultLinks returns the links of a unit that the deployment brings, and whether the deployment brings a directory of
// links at all.
func (d *decider) defaultLinks(name string) (back []files.Want, has bool, err error) {
	_, node, err := d.tree.follow(defaultDir)
	if err != nil || node.Type != files.Directory {
		return nil, false, err
	}
	found, err := d.tree.enablementLinks(defaultDir)
	if err != nil {
		return nil, false, err
	}
	for _, e := range found {
		if e.names(d.tree, name) {
			at := UnitDir + strings.TrimPrefix(e.path, defaultDir)
			back = append(back, enablementWant(at, name, files.Node{Type: files.Symlink, Target: e.target}))
		}
	}
	return back, true, nil
}

// decideAlso extends decisions to the units that Also= names. A unit that one unit enables and another disables is
// enabled, because every enabled unit must work.
func (d *decider) decideAlso() error {
	for queue := slices.Clone(d.order); len(queue) > 0; queue = queue[1:] {
		u := d.files[queue[0]]
		if u == nil {
			continue
		}
		by := d.fates[u.name]
		for _, also := range u.also {
			a, err := d.tree.traverse(also, true, true)
			switch {
			case asRefusal(err):
				d.warn(by.by, "Also=%s: %v: skipped", also, err)
				continue
			case err != nil:
				return fmt.Errorf("unit %s: %w", also, err)
			}
			if f, ok := d.fates[a.name]; ok {
				if f.direct && !f.enable {
					d.warn(by.by, "Also=%s: that unit stays disabled, as the configuration demands", also)
				}
				continue
			}
			if !d.kept[a.name] {
				d.set(a.name, fate{enable: true, by: by.by, preset: by.preset}, a)
				queue = append(queue, a.name)
			}
		}
	}
	for queue := sortedKeys(d.fates); len(queue) > 0; queue = queue[1:] {
		f := d.fates[queue[0]]
		if f.enable {
			continue
		}
		u, err := d.tree.traverse(queue[0], false, false)
		if asRefusal(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("unit %s: %w", queue[0], err)
		}
		for _, also := range u.also {
			name := also
			a, err := d.tree.traverse(also, false, false)
			switch {
			case errors.Is(err, errMasked):
				continue
			case err == nil:
				name = a.name
			case !asRefusal(err):
				return fmt.Errorf("unit %s: %w", also, err)
			}
			if _, ok := d.fates[name]; !ok && !d.kept[name] {
				d.set(name, fate{by: f.by}, nil)
				queue = append(queue, name)
			}
		}
	}
	return nil
}

// existing is a link in a directory of units.
type existing struct {
	path, target string
	dependency   bool // in a .wants, .requires or .upholds directory
}

// enablementLinks lists the links below dir that can belong to an enablement: all except masks and default.target.
func (t *tree) enablementLinks(dir string) ([]existing, error) {
	var all []existing
	visit := func(d, name string, dependency bool) error {
		if splitName(name).kind == invalidName {
			return nil
		}
		if !dependency && name == "default.target" {
			return nil
		}
		real, node, err := t.chase(d+"/"+name, false)
		if err != nil || node.Type != files.Symlink || path.Clean(node.Target) == "/dev/null" {
			return err
		}
		if _, ours := t.over[real]; !ours {
			all = append(all, existing{d + "/" + name, node.Target, dependency})
		}
		return nil
	}
	names, err := t.list(dir)
	if err != nil {
		return nil, err
	}
	for _, n := range names {
		if suffix := path.Ext(n); suffix != ".wants" && suffix != ".requires" && suffix != ".upholds" {
			if err := visit(dir, n, false); err != nil {
				return nil, err
			}
			continue
		}
		inside, err := t.list(dir + "/" + n)
		if err != nil {
			return nil, err
		}
		for _, i := range inside {
			if err := visit(dir+"/"+n, i, true); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

// end returns the name of the file that the link leads to after all links, "" for a loop of links.
func (e existing) end(t *tree) string {
	real, _, err := t.follow(e.absTarget())
	if err != nil {
		return ""
	}
	return path.Base(real)
}

func (e existing) absTarget() string {
	if path.IsAbs(e.target) {
		return e.target
	}
	return path.Dir(e.path) + "/" + e.target
}

// names reports whether the link is part of the enablement of unit, by systemd's rules for disabling.
func (e existing) names(t *tree, unit string) bool {
	base := path.Base(e.path)
	return base == unit || splitName(base).template() == unit || e.end(t) == unit
}

// decidedBy returns the fate that applies to the link, if any.
func (d *decider) decidedBy(e existing) (fate, bool) {
	base := path.Base(e.path)
	if d.kept[base] {
		return fate{}, false
	}
	if f, ok := d.fates[base]; ok {
		return f, true
	}
	n := splitName(base)
	for _, name := range []string{n.template(), e.end(d.tree)} {
		f, ok := d.fates[name]
		if !ok || name == "" {
			continue
		}
		// An instance of an enabled template has its own enablement.
		if f.enable && n.kind == instance && splitName(name).kind == template {
			return fate{}, false
		}
		return f, true
	}
	return fate{}, false
}

// equivalent reports whether systemd treats two targets of one link as the same.
func (t *tree) equivalent(a, b string) bool {
	ra, _, errA := t.follow(a)
	rb, _, errB := t.follow(b)
	if errA == nil && errB == nil && ra == rb {
		return true
	}
	ca, cb := path.Clean(a), path.Clean(b)
	return path.Base(ca) == path.Base(cb) && inSearchPath(ca) && inSearchPath(cb)
}

func enablementWant(at, unit string, n files.Node) files.Want {
	return files.Want{Path: at, Node: n, Kind: "unit", Name: unit, Aspect: files.Enabled}
}

// enablement adds the links of the enabled units, and Absent for links that no decision wants any more.
func (d *decider) enablement(w *wantSet, fromDefaults []files.Want) error {
	found, err := d.tree.enablementLinks(UnitDir)
	if err != nil {
		return err
	}
	at := map[string]existing{}
	for _, e := range found {
		at[e.path] = e
	}
	for _, name := range d.order {
		u, f := d.files[name], d.fates[name]
		if u == nil {
			continue
		}
		links, problems, err := d.tree.links(u, f.preset)
		if err != nil {
			return fmt.Errorf("unit %s: %w", name, err)
		}
		for _, p := range problems {
			d.warn(f.by, "not wholly enabled: %s", p)
		}
		for _, l := range links {
			if err := d.place(w, at, l, f.by); err != nil {
				return fmt.Errorf("unit %s: %w", name, err)
			}
		}
	}
	for _, b := range fromDefaults {
		if old, taken := w.at[b.Path]; !taken || old.Node.Type == files.Absent {
			w.add(b)
		}
	}
	for _, e := range found {
		if _, wanted := w.at[e.path]; wanted {
			continue
		}
		if f, ok := d.decidedBy(e); ok {
			w.add(enablementWant(e.path, f.by, files.Node{Type: files.Absent}))
		}
	}
	return nil
}

// place adds a want for the link l, unless a node that must not be replaced is at its path.
func (d *decider) place(w *wantSet, at map[string]existing, l link, by string) error {
	target := l.target
	if old, taken := w.at[l.path]; taken && old.Node.Type != files.Absent {
		if old.Node.Type != files.Symlink || !d.tree.equivalent(old.Node.Target, target) {
			d.warn(by, "not wholly enabled: %s belongs to %s in this configuration", l.path, old.Name)
		}
		return nil
	}
	e, isLink := at[l.path]
	switch {
	case isLink && d.tree.equivalent(e.absTarget(), target):
		target = e.target
	case isLink && l.alias:
		_, end, err := d.tree.follow(e.absTarget())
		if err != nil && !errors.Is(err, errLoop) {
			return err
		}
		if _, decided := d.decidedBy(e); !decided && err == nil && end.Type != files.Absent {
			d.warn(by, "not wholly enabled: %s is a link to %s already", l.path, e.target)
			return nil
		}
	case !isLink:
		_, n, err := d.tree.chase(l.path, false)
		if err != nil {
			return err
		}
		// In a directory of dependencies systemd ignores nodes that are no links. Under another name of the unit the node is
		// a unit.
		if n.Type != files.Absent && l.alias {
			d.warn(by, "not wholly enabled: %s exists and is no link of an enabled unit", l.path)
			return nil
		}
	}
	w.add(enablementWant(l.path, by, files.Node{Type: files.Symlink, Target: target}))
	return nil
}
