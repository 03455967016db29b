// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/noderefit/noderefit/kargs"
)

// WriteText writes the plan for people: one line for each change, action and obstacle. WriteText shows names and
// settings, and never the contents of files or hashes.
func (p *Plan) WriteText(w io.Writer) error {
	out := bufio.NewWriter(w)
	fmt.Fprintf(out, "%s -> %s\n", cmp.Or(p.Current, "(never configured)")+p.apart(0), p.Desired+p.apart(1))
	if p.Unread != "" {
		fmt.Fprintf(out, "\nNo comparison with %s is possible: %s.\n", p.Current, p.Unread)
	}
	section := func(title string, lines []string) {
		if len(lines) > 0 {
			fmt.Fprintf(out, "\n%s\n  %s\n", title, strings.Join(lines, "\n  "))
		}
	}
	var changes, skipped, unwritten, left, actions, obstacles []string
	for _, c := range p.Changes {
		changes = append(changes, c.String())
	}
	for _, c := range p.Skipped {
		skipped = append(skipped, c.String())
	}
	for _, c := range p.Unwritten {
		unwritten = append(unwritten, c.String())
	}
	for _, l := range p.Left {
		left = append(left, l.Reason) // the reason has the path
	}
	for i, a := range p.Actions {
		actions = append(actions, fmt.Sprintf("%d. %s", i+1, a))
		if a.Type != ActionReboot {
			continue
		}
		if p.SoftReboot {
			actions = append(actions, "   a soft reboot: of the userspace only, with the running kernel")
		} else if p.FullReboot != "" {
			actions = append(actions, "   a full reboot, because of "+p.FullReboot)
		}
	}
	for _, u := range p.Unreconcilable {
		obstacles = append(obstacles, u.Field+": "+u.Reason)
	}
	section("Impossible on this host, so nothing will be changed:", obstacles)
	section("Changes:", changes)
	section("Skipped, still to be done on the OS:", skipped)
	section("On the host already, nothing is written:", unwritten)
	section("Left unchanged, in places that users other than root can write to:", left)
	section("Staged by others, and removed by this update:", p.Lost)
	section("Actions:", actions)
	if p.directory && len(actions) > 0 {
		fmt.Fprint(out, "\nThese actions are for a host that runs. On a directory none of them happens.\n")
	}
	section("Warnings:", p.Warnings)
	switch {
	case len(p.Changes) == 0 && len(p.Unreconcilable) == 0:
		fmt.Fprint(out, "\nNothing to do.\n")
	case len(p.Changes) > 0 && len(p.Actions) == 0:
		fmt.Fprint(out, "\nNo action is needed: no drain, no reboot.\n")
	case len(p.Changes) > 0 && !p.Drain:
		fmt.Fprint(out, "\nNo drain, no reboot.\n")
	}
	return out.Flush()
}

// apart returns what tells the two configurations of a plan apart where they have the same name.
func (p *Plan) apart(i int) string {
	if p.Current != p.Desired || p.digests[0] == p.digests[1] || p.digests[i] == "" {
		return ""
	}
	return " (" + p.digests[i][:min(8, len(p.digests[i]))] + ")"
}

// String returns the change on one line: + is added, - is removed, ~ is changed.
func (c Change) String() string {
	switch c.Kind {
	case Kargs:
		var parts []string
		if len(c.Delete) > 0 {
			parts = append(parts, "delete "+kargs.Join(c.Delete))
		}
		if len(c.Append) > 0 {
			parts = append(parts, "append "+kargs.Join(c.Append))
		}
		return "~ kernel arguments: " + strings.Join(parts, "; ")
	case KernelType, OSImage:
		return fmt.Sprintf("~ %s: %s -> %s", c.object(), cmp.Or(c.From, "(unknown)"), c.To)
	case Extensions:
		var parts []string
		if len(c.Install) > 0 {
			parts = append(parts, "install "+c.withPackages(c.Install))
		}
		if len(c.Uninstall) > 0 {
			parts = append(parts, "uninstall "+c.withPackages(c.Uninstall))
		}
		return "~ extensions: " + strings.Join(parts, "; ")
	default:
		sign := map[Op]string{Add: "+", Modify: "~", Remove: "-"}[c.Op]
		line := sign + " " + c.object()
		if len(c.What) > 0 && c.Kind != SSHKeys && c.Kind != Password {
			words := make([]string, len(c.What))
			for i, w := range c.What {
				words[i] = string(w)
			}
			line += " (" + strings.Join(words, ", ") + ")"
		}
		if c.Contents != "" {
			line += ", contents from " + c.Contents
		}
		return line
	}
}

// withPackages returns the names of extensions, each with its packages unless these are just its name.
func (c Change) withPackages(names []string) string {
	parts := make([]string, len(names))
	for i, name := range names {
		parts[i] = name
		if p := c.Packages[name]; len(p) != 1 || p[0] != name {
			parts[i] += " (" + strings.Join(p, ", ") + ")"
		}
	}
	return strings.Join(parts, ", ")
}

func (a Action) String() string {
	return strings.TrimSpace(string(a.Type)+" "+a.Service) + ", because of " + a.Because
}
