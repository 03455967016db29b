// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// Drift is what on a node's host is not as its configuration says, on the host's word: names, and no contents or
// digests of them.
type Drift struct {
	Config string      `json:"config"`
	Items  []DriftItem `json:"items"`
	// More counts what was left out of Items.
	More int `json:"more,omitempty"`
}

// DriftItem is one thing on the host that differs.
type DriftItem struct {
	// Kind and Name are those of a plan: the name is a path, a unit, a unit's drop-in or a user, as the kind is; empty
	// for the OS and its kernel arguments.
	Kind string `json:"kind"`
	Name string `json:"name,omitempty"`
	// What differs, such as contents, mode or missing.
	What []string `json:"what"`
	// Since is when it was found.
	Since time.Time `json:"since"`
	// Repairs counts how often it was written back and changed again, and Again is when it is written back next; zero
	// where that is not to be.
	Repairs int       `json:"repairs,omitempty"`
	Again   time.Time `json:"again,omitzero"`
	// Failed says why it could not be written back.
	Failed string `json:"failed,omitempty"`
}

// Subject names what differs.
func (i DriftItem) Subject() string { return strings.TrimSpace(i.Kind + " " + i.Name) }

func (i DriftItem) String() string { return i.Subject() + " (" + strings.Join(i.What, ", ") + ")" }

// The bounds of a Drift: an annotation is no log, and whoever reads one believes no more than an agent writes.
const (
	driftItems    = 20
	driftName     = 300
	driftText     = 200
	driftAspects  = 8
	driftWordSize = 32
)

// NewDrift is the Drift of these items, cut to what an annotation takes; nil: nothing differs.
func NewDrift(config string, items []DriftItem) *Drift {
	if len(items) == 0 {
		return nil
	}
	d := &Drift{Config: config, Items: slices.Clone(items)}
	return d.believed()
}

func (d *Drift) believed() *Drift {
	if d == nil || len(d.Items) == 0 {
		return nil
	}
	if left := len(d.Items) - driftItems; left > 0 {
		d.Items, d.More = d.Items[:driftItems], d.More+left
	}
	for i := range d.Items {
		item := &d.Items[i]
		item.Kind, item.Name = shorten(item.Kind, driftWordSize), shorten(item.Name, driftName)
		item.Failed = shorten(item.Failed, driftText)
		item.What = slices.Clone(item.What[:min(len(item.What), driftAspects)])
		for j := range item.What {
			item.What[j] = shorten(item.What[j], driftWordSize)
		}
	}
	return d
}

// Since is when the oldest of it was found; the zero time where nothing is.
func (d *Drift) Since() time.Time {
	var first time.Time
	if d == nil {
		return first
	}
	for _, i := range d.Items {
		if first.IsZero() || i.Since.Before(first) {
			first = i.Since
		}
	}
	return first
}

// Count is how many things differ.
func (d *Drift) Count() int {
	if d == nil {
		return 0
	}
	return len(d.Items) + d.More
}

// Names are the first few of what differs, and how many more there are.
func (d *Drift) Names(most int) string {
	if d == nil {
		return ""
	}
	var names []string
	for _, i := range d.Items[:min(most, len(d.Items))] {
		names = append(names, i.String())
	}
	if more := d.Count() - len(names); more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}

// SameAs says that the same things differ in the same way, whenever that was found.
func (d *Drift) SameAs(o *Drift) bool {
	if d == nil || o == nil {
		return d == nil && o == nil
	}
	return d.More == o.More && slices.EqualFunc(d.Items, o.Items, func(a, b DriftItem) bool {
		return a.Kind == b.Kind && a.Name == b.Name && slices.Equal(a.What, b.What)
	})
}

// What is done about drift at rest.
const (
	DriftReport = "report"
	DriftRepair = "repair"
)

// What an update does about it.
const (
	driftOverwrite = "overwrite"
	driftStrict    = "strict"
)

// DriftPolicy says what is done about drift on a pool's nodes. The zero value reports it and overwrites it.
type DriftPolicy struct {
	// Policy is DriftReport, which "" stands for, or DriftRepair.
	Policy string `json:"policy,omitempty"`
	// Exceptions go before Policy; of several that fit, the last one counts.
	Exceptions []DriftException `json:"exceptions,omitempty"`
	// Updates is DriftOverwrite, which "" stands for, or DriftStrict: an update waits until nothing differs.
	Updates string `json:"updates,omitempty"`
	// Paused is the render controller's: nothing is written back while somebody holds the pool still.
	Paused bool `json:"paused,omitempty"`
}

// DriftException is about one thing: exactly one of Path, Unit and User is set.
type DriftException struct {
	// Path is a file, directory or link, and everything below it.
	Path string `json:"path,omitempty"`
	// Unit stands for its file, its drop-ins, and whether it is enabled or masked.
	Unit string `json:"unit,omitempty"`
	// User stands for its keys and its password.
	User   string `json:"user,omitempty"`
	Policy string `json:"policy"`
}

// Careful is the policy of a pool whose own can't be read: nothing is written that nobody may have wanted.
func Careful() DriftPolicy { return DriftPolicy{Policy: DriftReport, Updates: driftStrict} }

// ParseDriftPolicy reads what people write: a single word, report or repair, or a document in YAML or JSON. Nothing is
// the zero value.
func ParseDriftPolicy(text string) (DriftPolicy, error) {
	var p DriftPolicy
	if text = strings.TrimSpace(text); text == "" {
		return p, nil
	}
	if strings.ContainsAny(text, ":{\n") {
		if err := yaml.UnmarshalStrict([]byte(text), &p); err != nil {
			return p, fmt.Errorf("annotation %s: %w", DriftPolicyKey, err)
		}
	} else {
		p.Policy = text
	}
	if err := p.check(); err != nil {
		return p, fmt.Errorf("annotation %s: %w", DriftPolicyKey, err)
	}
	return p, nil
}

func (p DriftPolicy) check() error {
	errs := []error{oneOf("policy", p.Policy, "", DriftReport, DriftRepair),
		oneOf("updates", p.Updates, "", driftOverwrite, driftStrict)}
	for i, e := range p.Exceptions {
		field := fmt.Sprintf("exceptions[%d]", i)
		errs = append(errs, oneOf(field+".policy", e.Policy, DriftReport, DriftRepair))
		set := 0
		for _, of := range []string{e.Path, e.Unit, e.User} {
			if of != "" {
				set++
			}
		}
		if set != 1 {
			errs = append(errs, fmt.Errorf("%s: needs exactly one of path, unit and user", field))
		}
		if e.Path != "" && (!path.IsAbs(e.Path) || path.Clean(e.Path) != strings.TrimSuffix(e.Path, "/") && e.Path != "/") {
			errs = append(errs, fmt.Errorf("%s.path: %q is no absolute, clean path", field, e.Path))
		}
	}
	return errors.Join(errs...)
}

func oneOf(field, value string, of ...string) error {
	if slices.Contains(of, value) {
		return nil
	}
	of = slices.DeleteFunc(slices.Clone(of), func(s string) bool { return s == "" })
	return fmt.Errorf("%s: %q is not one of %s", field, value, strings.Join(of, ", "))
}

// Strict says that an update waits until nothing differs.
func (p DriftPolicy) Strict() bool { return p.Updates == driftStrict }

// WritesBack says that anything is written back at all.
func (p DriftPolicy) WritesBack() bool {
	return p.Policy == DriftRepair || slices.ContainsFunc(p.Exceptions, func(e DriftException) bool {
		return e.Policy == DriftRepair
	})
}

// Repairs says whether a thing on the host, named as in a DriftItem, is to be written back at rest. What takes another
// deployment never is.
func (p DriftPolicy) Repairs(kind, name string) bool {
	if p.Paused {
		return false
	}
	policy := p.Policy
	switch kind {
	case "kargs", "osImage", "kernelType", "extensions", "deployment":
		return false
	}
	for _, e := range p.Exceptions {
		if e.about(kind, name) {
			policy = e.Policy
		}
	}
	return policy == DriftRepair
}

func (e DriftException) about(kind, name string) bool {
	switch kind {
	case "unit", "dropin":
		unit, _, _ := strings.Cut(name, "/")
		return e.Unit != "" && unit == e.Unit
	case "sshkeys", "password", "user":
		return e.User != "" && name == e.User
	}
	at := path.Clean(e.Path)
	return e.Path != "" && (name == at || at == "/" || strings.HasPrefix(name, at+"/"))
}
