// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/registries"
	"github.com/noderefit/noderefit/sysext"
)

// crio reads registries.conf anew when it is reloaded.
const crio = "crio.service"

const mergedAnew = "an extension of the system is merged anew"

// step is an action without the reason for it.
type step struct {
	action  ActionType
	service string
}

// decide returns the actions that the changes take, each once, in the order in which they run. The drain comes before
// anything is disturbed, and the daemon-reload before the services that the units describe. Services keep the order in
// which they were first decided. A reboot replaces all of these except the drain, and always comes with a drain.
func decide(changes []Change, policy *Policy, current, desired *machineconfig.Config) []Action {
	var order []step
	why := make(map[step]*reason)
	for _, c := range changes {
		rule, steps := policy.decide(c, current, desired)
		for _, s := range steps {
			if why[s] == nil {
				why[s] = &reason{object: c.object(), rule: rule, last: c.object()}
				order = append(order, s)
			} else if why[s].last != c.object() {
				why[s].more++
				why[s].last = c.object()
			}
		}
	}
	actions := []Action{}
	take := func(s step) { actions = append(actions, Action{s.action, s.service, why[s].String()}) }
	for _, c := range changes {
		unit := sysext.UnitOf(c.Path)
		if c.Path == "" || unit == "" {
			continue
		}
		merge, at := step{ActionReload, unit}, c.object()
		if m := why[merge]; m == nil || m.rule != mergedAnew {
			order = slices.Insert(slices.DeleteFunc(order, func(s step) bool { return s == merge }), 0, merge)
			why[merge] = &reason{object: at, rule: mergedAnew, last: at}
		}
		// The first extension makes /etc read-only. Programs that write there show in a boot, which is proved as a whole.
		first := unit == sysext.ConfextUnit && !slices.Contains(sysext.Units(current), unit)
		if boot := (step{action: ActionReboot}); first && why[boot] == nil {
			why[boot] = &reason{object: at, rule: "the first extension of /etc takes a boot", last: at}
		}
	}
	drain, reboot := step{action: ActionDrain}, step{action: ActionReboot}
	if why[reboot] != nil {
		if why[drain] == nil {
			why[drain] = why[reboot]
		}
		take(drain)
		take(reboot)
		return actions
	}
	for _, s := range []step{drain, {action: ActionDaemonReload}} {
		if why[s] != nil {
			take(s)
		}
	}
	for _, s := range order {
		if s.action == ActionRestart || s.action == ActionReload && why[step{ActionRestart, s.service}] == nil {
			take(s)
		}
	}
	if none := (step{action: ActionNone}); len(actions) == 0 && why[none] != nil {
		take(none)
	}
	return actions
}

// reason is the first change that asked for an action, the rule that decided, and the number of further changes.
type reason struct {
	object, rule string
	more         int
	last         string
}

func (r *reason) String() string {
	s := r.object + ": " + r.rule
	switch r.more {
	case 0:
		return s
	case 1:
		return s + " (and 1 more change)"
	}
	return fmt.Sprintf("%s (and %d more changes)", s, r.more)
}

// object returns the name of a change's object.
func (c Change) object() string {
	switch c.Kind {
	case File, Directory, Link:
		return string(c.Kind) + " " + c.Path
	case Unit, Dropin:
		return string(c.Kind) + " " + c.Name
	case User:
		return "user " + c.User
	case SSHKeys:
		return "SSH keys of " + c.User
	case Password:
		return "password of " + c.User
	case Kargs:
		return "kernel arguments"
	case KernelType:
		return "kernel type"
	case OSImage:
		return "OS image"
	default:
		return string(c.Kind)
	}
}

// covering returns the rule for a change, and nil if none covers it.
func (p *Policy) covering(c Change) *rule {
	switch c.Kind {
	case File, Directory, Link:
		return p.forPath(c.Path)
	case Unit:
		return p.units.by[c.Name]
	case Dropin:
		unit, _, _ := strings.Cut(c.Name, "/")
		return p.units.by[unit]
	case User, SSHKeys, Password:
		return p.sshkey
	default:
		return nil
	}
}

// decide returns the rule for a change and the steps that it takes. A change that no rule covers needs a reboot,
// because no person has said that less is enough.
func (p *Policy) decide(c Change, current, desired *machineconfig.Config) (why string, steps []step) {
	if c.Kind.OS() {
		return "a change of the OS takes effect with a reboot", []step{{action: ActionReboot}}
	}
	r := p.covering(c)
	if r == nil {
		return "no policy covers it", []step{{action: ActionReboot}}
	}
	if r.hosts {
		if c.Kind != File || path.Base(c.Path) != "hosts.toml" {
			return "no policy covers it", []step{{action: ActionReboot}}
		}
		if unsafe := registries.UnsafeHosts(contentsOf(current, c.Path), contentsOf(desired, c.Path)); unsafe != "" {
			return r.name + ", not safe for running pods: " + unsafe, []step{{action: ActionDrain}}
		}
		return r.name + ", a change that is safe for running pods", []step{{action: ActionNone}}
	}
	if !r.registries {
		return r.name, r.steps
	}
	reload := step{ActionReload, crio}
	unsafe := "the path is not a regular file"
	if c.Kind == File {
		unsafe = registries.Unsafe(contentsOf(current, c.Path), contentsOf(desired, c.Path))
	}
	if unsafe == "" {
		return r.name + ", a change that is safe for running pods", []step{reload}
	}
	return r.name + ", not safe for running pods: " + unsafe, []step{{action: ActionDrain}, reload}
}

// forPath returns the rule with the longest path that is name or a parent directory of name.
func (p *Policy) forPath(name string) *rule {
	for name = path.Clean(name); ; name = path.Dir(name) {
		if r, ok := p.files.by[name]; ok {
			return r
		}
		if name == path.Dir(name) {
			return nil
		}
	}
}

func contentsOf(c *machineconfig.Config, name string) []byte {
	at := slices.IndexFunc(c.Files, func(f machineconfig.File) bool { return f.Path == name })
	if at < 0 {
		return nil
	}
	return c.Files[at].Contents
}
