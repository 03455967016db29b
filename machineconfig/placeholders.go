// SPDX-License-Identifier: Apache-2.0

package machineconfig

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/coreos/ignition/v2/config/util"
	"github.com/coreos/ignition/v2/config/v3_6/types"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/message"
	"github.com/noderefit/noderefit/values"
)

const (
	// placeholdersKey is the annotation of a MachineConfig whose texts may name values of a node: "true" as people write
	// it, on a rendered configuration the list of the texts that name some. Without it no text names any.
	placeholdersKey = "noderefit.dev/placeholders"
	// NamedKey is the annotation of a rendered configuration that lists the values that it names, as TYPE:KEY.
	NamedKey = "noderefit.dev/named-values"
	// valuesKey is the annotation of a host's own copy of a configuration: the values by their keys, as JSON.
	valuesKey = "noderefit.dev/values"
	// withoutValues is the value of valuesKey of a configuration that leaves out what names values.
	withoutValues = "none"
)

// Resolve returns the values of placeholders by their keys. Keys that it does not know are left out.
type Resolve func([]values.Placeholder) (map[string]string, error)

// places are the texts that name values of a node, each with its placeholders, by the name of the text: "file PATH",
// "unit NAME", "dropin UNIT NAME", "argument TEXT".
type places map[string][]values.Placeholder

func (p places) sorted() []string { return slices.Sorted(maps.Keys(p)) }

func (p places) named() []values.Placeholder {
	var out []values.Placeholder
	for _, list := range p {
		out = append(out, list...)
	}
	return values.Sort(out)
}

// note writes the texts into the annotation of a rendered configuration.
func (p places) note(mc *mcfgv1.MachineConfig) {
	if len(p) == 0 {
		return
	}
	text, err := json.Marshal(p.sorted())
	if err != nil {
		panic(err) // strings alone
	}
	metav1.SetMetaDataAnnotation(&mc.ObjectMeta, placeholdersKey, string(text))
	var named []string
	for _, one := range p.named() {
		named = append(named, one.String())
	}
	if text, err = json.Marshal(named); err != nil {
		panic(err) // strings alone
	}
	metav1.SetMetaDataAnnotation(&mc.ObjectMeta, NamedKey, string(text))
}

// texts calls f with each text of a document that may name values: its name, its place, and where it is. f may change
// the text. The texts are copies.
func (p *parsed) texts(f func(name string, place values.Place, text *string) error) error {
	var errs []error
	call := func(field, name string, place values.Place, text *string) {
		if err := f(name, place, text); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", field, err))
		}
	}
	for i := range p.cfg.Storage.Files {
		file := &p.cfg.Storage.Files[i]
		field, name, at := fmt.Sprintf("spec.config.storage.files[%d]", i), "file "+file.Path, file.Path
		if source := file.Contents.Source; source != nil {
			text := string(p.contents[source])
			call(field+".contents ("+at+")", name, values.PlaceOf(at), &text)
			if text != string(p.contents[source]) {
				own := "data:,"
				p.contents[&own] = []byte(text)
				file.Contents = types.Resource{Source: &own}
			}
		}
		call(field+".path ("+at+")", name, values.Path, &file.Path)
	}
	for i := range p.cfg.Systemd.Units {
		u := &p.cfg.Systemd.Units[i]
		field := fmt.Sprintf("spec.config.systemd.units[%d]", i)
		if util.NotEmpty(u.Contents) {
			text := *u.Contents
			call(field+".contents ("+u.Name+")", "unit "+u.Name, values.Unit, &text)
			u.Contents = &text
		}
		for j := range u.Dropins {
			if d := &u.Dropins[j]; util.NotEmpty(d.Contents) {
				text := *d.Contents
				call(fmt.Sprintf("%s.dropins[%d].contents (%s of %s)", field, j, d.Name, u.Name),
					"dropin "+u.Name+" "+d.Name, values.Unit, &text)
				d.Contents = &text
			}
		}
	}
	for i := range p.spec.KernelArguments {
		a := &p.spec.KernelArguments[i]
		call(fmt.Sprintf("spec.kernelArguments[%d]", i), "argument "+*a, values.Argument, a)
	}
	return errors.Join(errs...)
}

// own makes the lists of the document its own, so that they can be changed.
func (p *parsed) own() {
	p.cfg.Storage.Files = slices.Clone(p.cfg.Storage.Files)
	p.cfg.Systemd.Units = slices.Clone(p.cfg.Systemd.Units)
	for i := range p.cfg.Systemd.Units {
		p.cfg.Systemd.Units[i].Dropins = slices.Clone(p.cfg.Systemd.Units[i].Dropins)
	}
	p.spec.KernelArguments = slices.Clone(p.spec.KernelArguments)
	p.contents = maps.Clone(p.contents)
	if p.contents == nil {
		p.contents = contents{}
	}
}

// place finds the texts that name values, where the document says that there may be some.
func (p *parsed) place() error {
	note := p.doc.Object.Annotations[placeholdersKey]
	if note == "" || note == "false" {
		return nil
	}
	var only map[string]bool
	if note != "true" {
		var list []string
		if err := json.Unmarshal([]byte(note), &list); err != nil {
			return fmt.Errorf("metadata.annotations[%s]: %q is not true", placeholdersKey, note)
		}
		only = make(map[string]bool, len(list))
		for _, name := range list {
			only[name] = true
		}
	}
	p.own()
	p.places = places{}
	err := p.texts(func(name string, place values.Place, text *string) error {
		if only != nil && !only[name] || !values.Named(*text) {
			return nil
		}
		named, err := values.In(*text, place)
		p.places[name] = append(p.places[name], named...)
		return err
	})
	for i := range p.cfg.Storage.Directories {
		err = errors.Join(err, misplaced("directories", i, p.cfg.Storage.Directories[i].Path, only))
	}
	for i := range p.cfg.Storage.Links {
		l := &p.cfg.Storage.Links[i]
		err = errors.Join(err, misplaced("links", i, l.Path, only), misplaced("links", i, *l.Target, only))
	}
	return err
}

// misplaced refuses a placeholder where a new document has it in a place that takes none.
func misplaced(list string, i int, text string, only map[string]bool) error {
	if only != nil || !values.Named(text) {
		return nil
	}
	return fmt.Errorf("spec.config.storage.%s[%d] (%s): a value may stand in a file, its path, a unit or a kernel "+
		"argument", list, i, text)
}

// over takes the texts of one more document, which wins over those so far.
func (p places) over(d *parsed) {
	for i := range d.cfg.Storage.Files {
		f := &d.cfg.Storage.Files[i]
		if f.Contents.Source != nil {
			delete(p, "file "+f.Path)
		}
	}
	for i := range d.cfg.Systemd.Units {
		u := &d.cfg.Systemd.Units[i]
		if u.Contents != nil {
			delete(p, "unit "+u.Name)
		}
		for j := range u.Dropins {
			if u.Dropins[j].Contents != nil {
				delete(p, "dropin "+u.Name+" "+u.Dropins[j].Name)
			}
		}
	}
	maps.Copy(p, d.places)
}

// resolve completes the values that the document has by those that resolve knows.
func (p *parsed) resolve(resolve Resolve) error {
	note := p.doc.Object.Annotations[valuesKey]
	if note == withoutValues {
		return nil
	}
	given, err := givenIn(note)
	if err != nil {
		return err
	}
	var open []values.Placeholder
	for _, one := range p.places.named() {
		if _, has := given[one.Key]; !has {
			open = append(open, one)
		}
	}
	more, err := resolve(open)
	if err != nil {
		return err
	}
	for _, one := range open {
		if v, is := more[one.Key]; is {
			given[one.Key] = v
		}
	}
	p.doc.Object = With(p.doc.Object, given)
	return nil
}

func givenIn(note string) (map[string]string, error) {
	given := map[string]string{}
	if note == "" {
		return given, nil
	}
	if err := json.Unmarshal([]byte(note), &given); err != nil {
		return nil, fmt.Errorf("metadata.annotations[%s]: %w", valuesKey, err)
	}
	return given, nil
}

// With returns a MachineConfig with the values of a node. The contents are shared.
func With(mc *mcfgv1.MachineConfig, given map[string]string) *mcfgv1.MachineConfig {
	text, err := json.Marshal(given)
	if err != nil {
		panic(err) // strings alone
	}
	return annotated(mc, string(text))
}

// WithoutValues returns a MachineConfig that leaves out what names values of a node: what a machine is made of before
// it is a node. A MachineConfig that names none is returned as it is.
func WithoutValues(mc *mcfgv1.MachineConfig) *mcfgv1.MachineConfig {
	if !Names(mc) {
		return mc
	}
	return annotated(mc, withoutValues)
}

// Unfilled returns a MachineConfig without the values of a node: the pool's configuration.
func Unfilled(mc *mcfgv1.MachineConfig) *mcfgv1.MachineConfig {
	out := *mc
	out.Annotations = maps.Clone(mc.Annotations)
	delete(out.Annotations, valuesKey)
	return &out
}

// Names reports whether a MachineConfig names values of a node.
func Names(mc *mcfgv1.MachineConfig) bool { return mc.Annotations[placeholdersKey] != "" }

func annotated(mc *mcfgv1.MachineConfig, note string) *mcfgv1.MachineConfig {
	out := *mc
	out.Annotations = maps.Clone(mc.Annotations)
	metav1.SetMetaDataAnnotation(&out.ObjectMeta, valuesKey, note)
	return &out
}

// made returns the configuration with the values that the document has. Without values it is as it is written.
func (p *parsed) made() (*Config, error) {
	c, err := p.config()
	if err != nil {
		return nil, err
	}
	c.Name = p.doc.Object.Name
	note, is := p.doc.Object.Annotations[valuesKey]
	if len(p.places) == 0 || !is {
		return c, nil
	}
	suffix := note
	var filled map[string]bool
	if note == withoutValues {
		p.leaveOut()
	} else if suffix, filled, err = p.fill(note); err != nil {
		return nil, err
	}
	template, name := c.Digest, c.Name
	p.places = nil
	if c, err = p.config(); err != nil {
		return nil, err
	}
	c.Name, c.Template = name+"+"+suffix, template
	for i := range c.Files {
		c.Files[i].FromValues = filled[c.Files[i].Path]
	}
	return c, nil
}

// fill puts values into the texts, and checks what came out. It returns the digest of the values, and the paths of the
// files that have values in them.
func (p *parsed) fill(note string) (digest string, filled map[string]bool, err error) {
	given, err := givenIn(note)
	if err != nil {
		return "", nil, err
	}
	missing := map[string]bool{}
	filled = map[string]bool{}
	err = p.texts(func(name string, place values.Place, text *string) error {
		if _, named := p.places[name]; !named {
			return nil
		}
		out, err := values.Expand(*text, place, given)
		if lacks, is := errors.AsType[*values.MissingError](err); is {
			for _, key := range lacks.Keys {
				missing[key] = true
			}
			return nil
		}
		if err != nil {
			return err
		}
		if *text = out; place == values.Path {
			filled[out] = true // both texts of a file have one name
		}
		return nil
	})
	if len(missing) > 0 {
		return "", nil, &values.MissingError{Keys: slices.Sorted(maps.Keys(missing))}
	}
	if err != nil {
		return "", nil, errors.New(message.OneLine(err.Error()))
	}
	seen := map[string]bool{}
	for _, f := range p.cfg.Storage.Files {
		if seen[f.Path] {
			err = errors.Join(err, fmt.Errorf("with the node's values there are two files %s", f.Path))
		}
		seen[f.Path] = true
	}
	if err = errors.Join(err, checkIgnition(&p.cfg), checkTogether(&p.cfg), checkSpec(&p.spec)); err != nil {
		return "", nil, errors.New("with the node's values: " + message.OneLine(err.Error()))
	}
	return values.Digest(given), filled, nil
}

// leaveOut drops the files, units, drop-ins and arguments that name values.
func (p *parsed) leaveOut() {
	p.own()
	has := func(name string) bool { _, is := p.places[name]; return is }
	p.cfg.Storage.Files = slices.DeleteFunc(p.cfg.Storage.Files, func(f types.File) bool { return has("file " + f.Path) })
	p.cfg.Systemd.Units = slices.DeleteFunc(p.cfg.Systemd.Units, func(u types.Unit) bool { return has("unit " + u.Name) })
	for i := range p.cfg.Systemd.Units {
		u := &p.cfg.Systemd.Units[i]
		u.Dropins = slices.DeleteFunc(u.Dropins, func(d types.Dropin) bool { return has("dropin " + u.Name + " " + d.Name) })
	}
	p.spec.KernelArguments = slices.DeleteFunc(p.spec.KernelArguments, func(a string) bool { return has("argument " + a) })
}
