// SPDX-License-Identifier: Apache-2.0

// Package plan decides what an update changes, from two configurations and a policy. The package decides which actions
// the update takes, and finds changes that can't be made on a running host. The package is pure: it reads only its
// arguments and changes nothing.
package plan

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/noderefit/noderefit/machineconfig"
)

// Kind is the kind of a Change's object.
type Kind string

// The kinds, in the order in which a Plan lists them.
const (
	File       Kind = "file"
	Directory  Kind = "directory"
	Link       Kind = "link"
	Unit       Kind = "unit"
	Dropin     Kind = "dropin"
	User       Kind = "user"
	SSHKeys    Kind = "sshkeys"
	Password   Kind = "password"
	Kargs      Kind = "kargs"
	KernelType Kind = "kernelType"
	Extensions Kind = "extensions"
	OSImage    Kind = "osImage"
)

// OS reports whether only a deployment of the operating system can carry out a change of this kind.
func (k Kind) OS() bool {
	return k == Kargs || k == KernelType || k == Extensions || k == OSImage
}

// Op is the operation on a Change's object.
type Op string

// The operations. A path that becomes another kind of object is one removal and one addition.
const (
	Add    Op = "add"
	Modify Op = "change"
	Remove Op = "remove"
)

// What is an aspect in which a Change's object changes.
type What string

// The aspects, in the words of verify.
const (
	Contents What = "contents"
	Target   What = "target"
	Mode     What = "mode"
	Owner    What = "owner"
	Type     What = "type" // a hard link becomes a symbolic one, or a symbolic one a hard one
	Enabled  What = "enabled"
	Masked   What = "masked"
	Account  What = "account" // of a user
)

// Change is one difference. Kind decides which fields have a meaning.
type Change struct {
	Kind Kind   `json:"kind"`
	Path string `json:"path,omitempty"` // file, directory, link
	Name string `json:"name,omitempty"` // unit: crio.service; dropin: crio.service/10-x.conf
	User string `json:"user,omitempty"` // user, sshkeys, password
	Op   Op     `json:"op,omitempty"`   // not for OS kinds
	What []What `json:"what,omitempty"` // with Op Modify

	Delete []string `json:"delete,omitempty"` // kargs, in the order of the command line
	Append []string `json:"append,omitempty"` // kargs, in the order to append

	From string `json:"from,omitempty"` // kernelType, osImage
	To   string `json:"to,omitempty"`

	// Contents is where the node fetches the wanted contents of a file, with their hash; "" where the document has them.
	Contents string `json:"contents,omitempty"`

	Install   []string            `json:"install,omitempty"`   // extensions, by name
	Uninstall []string            `json:"uninstall,omitempty"` // extensions, by name
	Packages  map[string][]string `json:"packages,omitempty"`  // for each of these extensions
}

// MarshalJSON writes the fields that belong to the kind. A list is never null.
func (c Change) MarshalJSON() ([]byte, error) {
	type plain Change // without this method
	switch c.Kind {
	case Kargs:
		return json.Marshal(struct {
			Kind   Kind     `json:"kind"`
			Delete []string `json:"delete"`
			Append []string `json:"append"`
		}{c.Kind, list(c.Delete), list(c.Append)})
	case KernelType, OSImage:
		return json.Marshal(struct {
			Kind Kind   `json:"kind"`
			From string `json:"from"`
			To   string `json:"to"`
		}{c.Kind, c.From, c.To})
	case Extensions:
		return json.Marshal(struct {
			Kind      Kind                `json:"kind"`
			Install   []string            `json:"install"`
			Uninstall []string            `json:"uninstall"`
			Packages  map[string][]string `json:"packages"`
		}{c.Kind, list(c.Install), list(c.Uninstall), c.Packages})
	default:
		return json.Marshal(plain(c))
	}
}

// list returns s, or an empty list instead of nil, which JSON would show as null.
func list(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}

// ActionType is a kind of action that a node takes for changes.
type ActionType string

// The action types.
const (
	ActionNone         ActionType = "None"
	ActionDrain        ActionType = "Drain"
	ActionDaemonReload ActionType = "DaemonReload"
	ActionReload       ActionType = "Reload"
	ActionRestart      ActionType = "Restart"
	ActionReboot       ActionType = "Reboot"
)

// Action is an action of the node, with the first change and rule that asked for it.
type Action struct {
	Type    ActionType `json:"type"`
	Service string     `json:"service,omitempty"` // of Reload and Restart
	Because string     `json:"because"`
}

// Unreconcilable is a field of the desired configuration that can't be reached from the current one on this host.
type Unreconcilable struct {
	Field  string `json:"field"`
	Reason string `json:"reason"`
}

// Plan has the changes and actions of an update. A Plan without Changes does nothing. A Plan with Unreconcilable must
// not be carried out at all.
type Plan struct {
	Current string `json:"current"` // "" for a host that was never configured
	// Unread is why the current configuration could not be read, and what to do; "" if it could be read. With Unread, the
	// changes are those of a host that was never configured.
	Unread  string   `json:"unread,omitempty"`
	Desired string   `json:"desired"`
	Changes []Change `json:"changes"`
	Actions []Action `json:"actions"` // in the order in which they run
	Drain   bool     `json:"drain"`
	Reboot  bool     `json:"reboot"`
	// SoftReboot means that the reboot is one of the userspace alone: Options allow that, and the changes need no more.
	// FullReboot is why the changes need more, where Options allow a soft reboot.
	SoftReboot     bool             `json:"softReboot,omitempty"`
	FullReboot     string           `json:"fullRebootBecause,omitempty"`
	Unreconcilable []Unreconcilable `json:"unreconcilable"`
	// Skipped has the OS changes that Options.SkipOS left out.
	Skipped []Change `json:"skipped,omitempty"`
	// Unwritten has what differs between the configurations but is already so on the host. Nothing is written for it, so
	// it takes no action. For a host that was never configured, Unwritten is empty.
	Unwritten []Change `json:"unwritten,omitempty"`
	// Lost has what others have staged on the host, in words for people: the update removes that, since it would boot
	// instead.
	Lost []string `json:"lost,omitempty"`
	// Left has the changed paths that stay as they are, because users other than root could interfere there.
	Left []Left `json:"left,omitempty"`
	// Warnings are for people: what the update does to things that are not its own.
	Warnings []string `json:"warnings,omitempty"`
	// What only the text for people has: the digests of the two configurations, and whether no host runs.
	digests   [2]string
	directory bool
}

// Left is a path that an update leaves as it is.
type Left struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
}

// Options are what a plan depends on besides the two configurations. The zero value plans from documents alone, with
// the default policy, for a host that can do everything.
type Options struct {
	// Policy decides the actions, and which provisioning sections may differ; nil means the default table.
	Policy *Policy
	// Satisfied, if set, reports whether the host is already as a change asks for. Such a change is left out. So a host
	// that was never configured adopts a configuration that it matches. Files of an admin that are as the configuration
	// asks for cost no reboot. Satisfied is also asked about drop-ins that must not exist and that the current
	// configuration did not have. Without Satisfied these are taken to be absent.
	Satisfied func(Change) bool
	// Kargs, if set, is the host's command line. It replaces the current configuration in the decision about kernel
	// arguments.
	Kargs *HostKargs
	// OS, if set, is the part of the OS sections that is in effect on the host, if the current configuration differs from
	// it. After SkipOS no part of them is in effect. Going back to a configuration without these sections must not look
	// like an OS change.
	OS *OS
	// Committed, if set, is the current configuration without drift. It tells what is mounted.
	Committed *machineconfig.Config
	// NoOS means that the host can't change its operating system, so each OS change is Unreconcilable. With Kargs the host
	// can change its kernel arguments all the same.
	NoOS bool
	// WithoutOS, if set, returns why the host can't change that part, and what to do.
	WithoutOS func(Kind) string
	// SoftReboot allows a restart of the userspace instead of a reboot, if that is enough for the changes.
	SoftReboot bool
	// Directory is true where no host runs, so that no action happens.
	Directory bool
	// SkipOS leaves OS changes out and lists them in Plan.Skipped.
	SkipOS bool
}

// HostKargs is a host's kernel command line.
type HostKargs struct {
	CommandLine []string
	Owned       []string // the arguments that the agent added, in their order; see kargs.Own
}

// OS is the part of a configuration that a deployment of the operating system carries.
type OS struct {
	ImageURL        string
	KernelType      string // "" is the default one
	Extensions      []string
	KernelArguments []string
}

// Make plans the way from one configuration to another. A nil current means a host that was never configured. Then
// everything in the desired configuration is added. Differences in provisioning can't be seen on such a host, so its
// provisioning is taken to match.
func Make(current, desired *machineconfig.Config, opts Options) (*Plan, error) {
	if desired == nil {
		return nil, errors.New("planning: no desired configuration")
	}
	fresh := current == nil
	if fresh {
		current = &machineconfig.Config{}
	}
	if opts.Policy == nil {
		opts.Policy = defaultPolicy()
	}
	changes, err := differences(current, desired, opts)
	if err != nil {
		return nil, fmt.Errorf("planning from %q to %q: %w", current.Name, desired.Name, err)
	}
	p := &Plan{
		Current:        current.Name,
		Desired:        desired.Name,
		digests:        [2]string{current.Digest, desired.Digest},
		directory:      opts.Directory,
		Changes:        []Change{},
		Unreconcilable: []Unreconcilable{},
	}
	if !fresh {
		p.Unreconcilable = append(p.Unreconcilable, provisioned(current, desired, opts.Policy)...)
		p.Unreconcilable = append(p.Unreconcilable, displacing(cmp.Or(opts.Committed, current), desired, opts.SkipOS)...)
	}
	p.Unreconcilable = append(p.Unreconcilable, impossible(desired)...)
	if was := cmp.Or(opts.Committed, current); was.Digest == "" || was.Digest != desired.Digest {
		p.Unreconcilable = append(p.Unreconcilable, disarming(desired, opts.SkipOS)...)
	} // the content that a host already has is not refused
	for _, c := range changes {
		switch {
		case opts.Satisfied != nil && opts.Satisfied(c):
			if !fresh && c.Kind != User {
				p.Unwritten = append(p.Unwritten, c)
			}
		case c.Kind.OS() && opts.SkipOS:
			p.Skipped = append(p.Skipped, c)
		case c.Kind.OS() && opts.NoOS && (c.Kind != Kargs || opts.Kargs == nil):
			p.Unreconcilable = append(p.Unreconcilable, withoutOS(c, opts.WithoutOS))
		default:
			p.Changes = append(p.Changes, c)
		}
	}
	slices.SortStableFunc(p.Unreconcilable, byField)
	p.Actions = decide(p.Changes, opts.Policy, current, desired)
	for _, a := range p.Actions {
		p.Reboot = p.Reboot || a.Type == ActionReboot
		p.Drain = p.Drain || a.Type == ActionReboot || a.Type == ActionDrain
	}
	if p.Reboot && opts.SoftReboot {
		p.FullReboot = opts.Policy.fullReboot(p.Changes, current, desired)
		p.SoftReboot = p.FullReboot == ""
	}
	return p, nil
}

// Has reports whether the plan has a change of that kind.
func (p *Plan) Has(kind Kind) bool {
	return slices.ContainsFunc(p.Changes, func(c Change) bool { return c.Kind == kind })
}

// SkippedKinds returns the kinds of the changes that the plan leaves out.
func (p *Plan) SkippedKinds() []string {
	var out []string
	for _, c := range p.Skipped {
		out = append(out, string(c.Kind))
	}
	return out
}

// Refuse adds a reason why the plan must not be carried out. Without a reason the plan stays as it is.
func (p *Plan) Refuse(field, reason string) {
	if reason != "" {
		p.Unreconcilable = append(p.Unreconcilable, Unreconcilable{Field: field, Reason: reason})
	}
}

// Services returns the services that actions name.
func Services(actions []Action) []string {
	var out []string
	for _, a := range actions {
		if a.Service != "" {
			out = append(out, a.Service)
		}
	}
	return out
}

// NeedsFullReboot replaces a soft reboot by a full one, because the host can't do a soft reboot or another reason
// forbids it.
func (p *Plan) NeedsFullReboot(because string) {
	if p.SoftReboot {
		p.SoftReboot, p.FullReboot = false, because
	}
}
