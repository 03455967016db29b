// SPDX-License-Identifier: Apache-2.0

// Package plan decides, from two configurations and a policy, what an update changes, which actions it takes and what
// can't be done on a living host. It is pure: it reads nothing but its arguments and touches nothing.
package plan

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/noderefit/noderefit/machineconfig"
)

// Kind says what a Change is about.
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

// Op is what happens to the thing that a Change names.
type Op string

// The operations. A path that becomes another kind of thing is a removal of the one and an addition of the other.
const (
	Add    Op = "add"
	Modify Op = "change"
	Remove Op = "remove"
)

// What is an aspect in which a thing changes.
type What string

// The aspects, in the words of verify.
const (
	Contents What = "contents"
	Target   What = "target"
	Mode     What = "mode"
	Owner    What = "owner"
	Type     What = "type" // a hard link becomes a soft one or the other way round
	Enabled  What = "enabled"
	Masked   What = "masked"
	Account  What = "account" // of a user
)

// Change is one difference. Which fields mean something depends on Kind.
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

	Install   []string            `json:"install,omitempty"`   // extensions, by name
	Uninstall []string            `json:"uninstall,omitempty"` // extensions, by name
	Packages  map[string][]string `json:"packages,omitempty"`  // of each of these extensions
}

// MarshalJSON writes the fields that belong to the kind, with lists that are never null.
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

// list makes a list that JSON shows as one even where it is empty.
func list(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}

// ActionType is what the node does about changes.
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

// Action is something to do, and the first change and rule that asked for it.
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

// Plan is what an update would do. A Plan without Changes does nothing; one with Unreconcilable must not be carried
// out at all.
type Plan struct {
	Current string `json:"current"` // "" for a host that was never configured
	// Unread is why the current configuration could not be read, and what to do, "" where it could. The changes are then
	// those of a host that was never configured.
	Unread  string   `json:"unread,omitempty"`
	Desired string   `json:"desired"`
	Changes []Change `json:"changes"`
	Actions []Action `json:"actions"` // in the order in which they run
	Drain   bool     `json:"drain"`
	Reboot  bool     `json:"reboot"`
	// SoftReboot means that the reboot is one of the userspace alone: Options allow it, and nothing needs more.
	// FullReboot is what does, where they allow it.
	SoftReboot     bool             `json:"softReboot,omitempty"`
	FullReboot     string           `json:"fullRebootBecause,omitempty"`
	Unreconcilable []Unreconcilable `json:"unreconcilable"`
	// Skipped holds the OS changes that Options.SkipOS left out.
	Skipped []Change `json:"skipped,omitempty"`
	// Unwritten holds what differs between the configurations and not on the host, which has it already: nothing is
	// written for it, so it takes no action. Of a host that was never configured it says nothing.
	Unwritten []Change `json:"unwritten,omitempty"`
	// Left holds the paths among the changes that stay as they are, because others than root are in the way there.
	Left []Left `json:"left,omitempty"`
}

// Left is a path that an update leaves as it is.
type Left struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
}

// Options are what a plan depends on besides the two configurations. The zero value plans from documents alone, for a
// host that can do everything, with the default policy.
type Options struct {
	// Policy decides the actions and which provisioning sections may differ; nil is the default table.
	Policy *Policy
	// Satisfied, where set, is asked about each change, whether the host is like that already; then it is no change. So
	// a host that was never configured adopts a configuration that it matches, and what an admin had as a configuration
	// asks for it costs no reboot. It is also asked about drop-ins that must not be there and that the current
	// configuration did not have; without it they are taken to be absent.
	Satisfied func(Change) bool
	// Kargs, where set, is the host's command line, from which the change of kernel arguments is decided instead of
	// from the current configuration.
	Kargs *HostKargs
	// OS, where set, is what is in effect on the host of the OS sections, where that is not what the current
	// configuration says: after SkipOS nothing of them is, and going back to a configuration without them must not
	// look like an OS change.
	OS *OS
	// Committed, where set, is the current configuration without what has drifted: it says what is mounted.
	Committed *machineconfig.Config
	// NoOS means that the host can't change its operating system: each OS change is Unreconcilable.
	NoOS bool
	// SoftReboot allows a restart of the userspace to take the place of a reboot, where it does what the changes need.
	SoftReboot bool
	// SkipOS leaves OS changes out and lists them in Plan.Skipped.
	SkipOS bool
}

// HostKargs is a host's kernel command line.
type HostKargs struct {
	CommandLine []string
	Owned       []string // those which we added, in their order; see kargs.Own
}

// OS is the part of a configuration that a deployment of the operating system carries.
type OS struct {
	ImageURL        string
	KernelType      string // "" is the default one
	Extensions      []string
	KernelArguments []string
}

// Make plans the way from one configuration to another. A nil current is a host that was never configured: everything
// that the desired configuration has is added, and what only provisioning can make is taken as it is, because the
// machine was made with it, or without it and neither can be told.
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
	} // what a host lives with already is not refused to it
	for _, c := range changes {
		switch {
		case opts.Satisfied != nil && opts.Satisfied(c):
			if !fresh && c.Kind != User {
				p.Unwritten = append(p.Unwritten, c)
			}
		case c.Kind.OS() && opts.SkipOS:
			p.Skipped = append(p.Skipped, c)
		case c.Kind.OS() && opts.NoOS:
			p.Unreconcilable = append(p.Unreconcilable, withoutOS(c))
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

// NeedsFullReboot takes a soft reboot back that the host can't have, or that something else does not allow.
func (p *Plan) NeedsFullReboot(because string) {
	if p.SoftReboot {
		p.SoftReboot, p.FullReboot = false, because
	}
}
