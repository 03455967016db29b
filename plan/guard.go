// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/systemd/syntax"
)

// The units that an update leaves on the host. RecoverUnit brings the host to one side of what was interrupted.
// ProveUnit holds the deadline of the verdict and rolls back. RebootUnit ends an orderly reboot that does not end by
// itself.
const (
	RecoverUnit = "machine-config-daemon-recover.service"
	ProveUnit   = "machine-config-daemon-prove.service"
	RebootUnit  = "machine-config-daemon-reboot.service"
)

// OwnUnits are the units that the agent installs or runs. They are those above, a unit for each command of the head,
// and the unit of the hooks. No configuration may have a unit of such a name.
var OwnUnits = []string{RecoverUnit, ProveUnit, RebootUnit,
	"machine-config-daemon-apply.service", "machine-config-daemon-before-drain.service",
	"machine-config-daemon-ordered-reboot.service", "machine-config-daemon-wants-reboot.service",
	"machine-config-daemon-deliver.service", "machine-config-daemon-hook.service",
	"machine-config-daemon-plan.service", "machine-config-daemon-repair.service",
	"machine-config-daemon-stage.service", "machine-config-daemon-status.service",
	"machine-config-daemon-verify.service"}

// OwnDropin is the name of the agent's drop-in for its own units. systemd reads all drop-ins for a unit in the order of
// their names, including those for all services. A drop-in that is read after this one could take something away.
const OwnDropin = "~noderefit.conf"

// Needed are the units that the agent's own units need to be started, or that the host needs to reboot.
var Needed = []string{"sysinit.target", "reboot.target", "shutdown.target", "umount.target", "final.target",
	"systemd-reboot.service", "system.slice"}

// needed are the Needed units and those of a soft reboot, which not every host has.
var needed = slices.Concat(Needed, []string{"soft-reboot.target", "systemd-soft-reboot.service"})

// boots are the targets that a boot leads to. away are the targets that end a boot, or stop it before the host serves.
var (
	boots = []string{"default.target", "multi-user.target", "graphical.target", "runlevel2.target", "runlevel3.target",
		"runlevel4.target", "runlevel5.target"}
	away = []string{"emergency", "rescue", "runlevel1", "halt", "poweroff", "runlevel0", "reboot", "runlevel6", "kexec",
		"soft-reboot", "exit", "shutdown", "umount", "final", "suspend", "hibernate", "hybrid-sleep",
		"suspend-then-hibernate", "sleep", "ctrl-alt-del", "factory-reset", "initrd", "initrd-switch-root",
		"kernel-command-line", "system-update", "storage-target-mode"}
)

// unitDirs are the directories where systemd finds unit files.
var unitDirs = []string{"/etc/systemd/system", "/etc/systemd/system.control", "/etc/systemd/system.attached",
	"/run/systemd/system", "/run/systemd/system.control", "/run/systemd/system.attached", "/run/systemd/transient",
	"/run/systemd/generator", "/run/systemd/generator.early", "/run/systemd/generator.late",
	"/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"}

// disarming finds entries that would keep a host from coming back by itself. They take away the agent's units, or what
// starts these units. What a configuration's own programs do, such as a generator, can't be foreseen.
func disarming(c *machineconfig.Config, skipOS bool) []Unreconcilable {
	g := newGuard(c)
	for _, u := range c.Units {
		g.unit(u)
	}
	for _, f := range c.Files {
		contents := text(&f)
		g.path("storage.files", "file "+f.Path, f.Path, "", &contents)
	}
	for _, l := range c.Links {
		g.path("storage.links", "link "+l.Path, l.Path, l.Target, nil)
	}
	for _, d := range c.Directories {
		why := takesPlace(g.relative(d.Path))
		if why == holdsLinks {
			why = ""
			if d.Mode&0o022 != 0 || !isRoot(d.Owner) {
				why = "users other than root could take away the links in it that start the agent's units; leave owner and mode out"
			}
		}
		if why != "" {
			g.refuse("storage.directories", "directory "+d.Path, why)
		}
	}
	if !skipOS {
		for _, a := range c.KernelArguments {
			if why := argument(a); why != "" {
				g.refuse("kernelArguments", "argument "+a, why)
			}
		}
	}
	return g.found
}

func isRoot(o machineconfig.Owner) bool {
	return (o.UID == nil || *o.UID == 0) && (o.User == "" || o.User == "root")
}

// guard collects the refused entries of a configuration.
type guard struct {
	links    map[string]string // targets by path
	contents map[string]string // of files, by path
	found    []Unreconcilable
}

// text returns the contents of a file as the guard reads them. A file that was fetched may be an image of a gigabyte,
// which is no text, and which is not copied.
func text(f *machineconfig.File) string {
	if f.Reference != nil && len(f.Contents) > 1<<20 {
		return ""
	}
	return string(f.Contents)
}

func newGuard(c *machineconfig.Config) *guard {
	g := &guard{links: map[string]string{}, contents: map[string]string{}}
	for _, l := range c.Links {
		g.links[path.Clean(l.Path)] = l.Target
	}
	for _, f := range c.Files {
		g.contents[path.Clean(f.Path)] = text(&f)
	}
	return g
}

func (g *guard) refuse(field, subject, why string) {
	g.found = append(g.found, Unreconcilable{field, subject + ": " + why})
}

// backends are paths where people may install programs by which the agent tells how the OS of a host is managed.
var backends = []string{"/usr/local/bin/rpm-ostree", "/usr/local/bin/bootc"}

const (
	isOwn  = "the agent needs this to bring the host back from a bad configuration; leave it out"
	isRoad = "the start of the agent's units, or the reboot of this host, depends on it; leave it out"
	// holdsLinks is the reason against everything that replaces such a directory, except a directory.
	holdsLinks = "systemd finds the links there that start the agent's units, and only in a directory; leave it out, or " +
		"make it a directory"
	leads   = "this host would not boot into service; name multi-user.target or graphical.target"
	tooLate = "systemd reads this file after the agent's own drop-in " + OwnDropin + "; give it a name that sorts before"
)

// unit judges an entry of systemd.units.
func (g *guard) unit(u machineconfig.Unit) {
	const field = "systemd.units"
	subject := "unit " + u.Name
	masked := u.Mask != nil && *u.Mask
	switch {
	case slices.Contains(OwnUnits, u.Name):
		if u.Contents != "" || u.Mask != nil || u.Enabled != nil || len(u.Dropins) == 0 {
			g.refuse(field, subject, isOwn)
		}
		for _, d := range u.Dropins {
			g.refuse(field, "drop-in "+u.Name+"/"+d.Name, isOwn)
		}
		return
	case slices.Contains(needed, u.Name) && (masked || u.Contents != ""):
		g.refuse(field, subject, isRoad)
		return
	case masked && u.Name == "default.target":
		g.refuse(field, subject, leads)
		return
	}
	if why := judgeText(u.Name, u.Contents); why != "" {
		g.refuse(field, subject, why)
	}
	for _, d := range u.Dropins {
		if why := judgeDropin(u.Name+".d", d.Name, d.Contents); why != "" {
			g.refuse(field, "drop-in "+u.Name+"/"+d.Name, why)
		}
	}
}

// path judges an entry of storage at a path: a link to target, or a file with contents.
func (g *guard) path(field, subject, at, target string, contents *string) {
	at = g.follow(path.Clean(at))
	rel := relativeTo(at)
	why := cmp.Or(takesPlace(rel), mounts(at, target, contents), manager(at, contents), prepareRoot(at, contents))
	if why != "" {
		g.refuse(field, subject, why)
		return
	}
	if slices.Contains(backends, at) {
		g.refuse(field, subject, "the agent would find this program there and use it to manage the OS of this host; give it "+
			"another name")
	}
	if why := g.tmpfiles(at, target, contents); why != "" {
		g.refuse(field, subject, why)
	}
	if rel == "" {
		return
	}
	dir, name := path.Split(rel)
	dir = strings.TrimSuffix(dir, "/")
	if contents == nil {
		if within, kind := strings.TrimSuffix(dir, path.Ext(dir)), path.Ext(dir); inBoot(within) && goesAway(name) &&
			slices.Contains([]string{".wants", ".requires", ".upholds"}, kind) {
			g.refuse(field, subject, fmt.Sprintf("%s would start %s, with which %s", within, name, leads))
			return
		}
		to := g.leadsTo(at, target)
		nowhere := goesAway(path.Base(to)) || name == "default.target" && to == "/dev/null"
		if dir == "" && slices.Contains(boots, name) && nowhere {
			g.refuse(field, subject, fmt.Sprintf("it leads to %s, with which %s", target, leads))
			return
		}
		linked, known := g.contents[to]
		if !known {
			return
		}
		contents = &linked
	}
	if dir == "" {
		why = judgeText(name, *contents)
	} else if strings.HasSuffix(dir, ".d") {
		why = judgeDropin(dir, name, *contents)
	}
	if why != "" {
		g.refuse(field, subject, why)
	}
}

// leadsTo returns where a link at a path leads to.
func (g *guard) leadsTo(at, target string) string {
	if path.IsAbs(target) {
		return g.follow(path.Clean(target))
	}
	return g.follow(path.Join(path.Dir(at), target))
}

// follow resolves the configuration's own links in a path.
func (g *guard) follow(at string) string {
	for range 40 {
		next := at
		for dir := at; dir != "/" && dir != "."; dir = path.Dir(dir) {
			target, is := g.links[dir]
			if !is || dir == at {
				continue
			}
			if !path.IsAbs(target) {
				target = path.Join(path.Dir(dir), target)
			}
			next = path.Join(target, strings.TrimPrefix(at, dir))
			break
		}
		if next == at {
			break
		}
		at = next
	}
	return at
}

func (g *guard) relative(at string) string { return relativeTo(g.follow(path.Clean(at))) }

// relativeTo returns a path relative to its directory of units, and "" for a path in no such directory.
func relativeTo(at string) string {
	for _, dir := range unitDirs {
		if rel, is := strings.CutPrefix(at, dir+"/"); is {
			return rel
		}
	}
	return ""
}

// takesPlace judges an entry of any kind at a path below a directory of units.
func takesPlace(rel string) string {
	if rel == "" {
		return ""
	}
	first, rest, below := strings.Cut(rel, "/")
	base := path.Base(rel)
	for _, own := range OwnUnits {
		// The unit's file, its .d, .wants and .requires, or a link to the unit in such a directory of another unit.
		if first == own || strings.HasPrefix(first, own+".") || below && rest == base && base == own {
			return isOwn
		}
		if slices.Contains(prefixDirs(own), first) && (below || first == base) {
			return isOwn
		}
	}
	if !below && slices.Contains(needed, first) {
		return isRoad
	}
	if target, is := strings.CutSuffix(first, ".wants"); is && !below && slices.Contains(wantedBy, target) {
		return holdsLinks
	}
	return ""
}

// wantedBy are the targets that start the agent's units.
var wantedBy = []string{"sysinit.target", "default.target", "emergency.target", "rescue.target"}

// WantedBy returns the targets that start the agent's units. The first is for a usual boot, the second for a boot
// without it. A failed boot ends in one of the other two.
func WantedBy() []string { return slices.Clone(wantedBy) }

// prefixDirs returns the drop-in directories that a unit shares with other units whose names begin in the same way.
func prefixDirs(unit string) (dirs []string) {
	stem, typ, _ := strings.Cut(unit, ".")
	for i := strings.LastIndexByte(stem, '-'); i > 0; i = strings.LastIndexByte(stem[:i], '-') {
		dirs = append(dirs, stem[:i+1]+"."+typ+".d")
	}
	return dirs
}

// mounts judges entries that replace the generators for the mounts with the agent's record.
func mounts(at, target string, contents *string) string {
	dir, name := path.Split(at)
	if dir != "/etc/systemd/system-generators/" && dir != "/usr/local/lib/systemd/system-generators/" ||
		name != "ostree-system-generator" && name != "systemd-fstab-generator" {
		return ""
	}
	if target == "/dev/null" || contents != nil {
		return "the unit mounts the file systems with the agent's record; leave it out"
	}
	return ""
}

// capabilities are those without which no deployment can be left or removed.
var capabilities = []string{"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_LINUX_IMMUTABLE", "CAP_SYS_ADMIN",
	"CAP_SYS_CHROOT"}

// manager judges settings of systemd itself, which no unit can undo.
func manager(at string, contents *string) string {
	dir := path.Dir(at)
	if contents == nil || at != "/etc/systemd/system.conf" && dir != "/etc/systemd/system.conf.d" &&
		dir != "/usr/local/lib/systemd/system.conf.d" {
		return ""
	}
	all, err := syntax.Parse(*contents, false)
	if err != nil {
		return "" // systemd does not read such a file either
	}
	for _, a := range all {
		words, _ := syntax.Words(a.Value)
		switch {
		case a.Section != "Manager":
		case a.Key == "ManagerEnvironment" && slices.ContainsFunc(words, environment):
			return a.Key + "=" + a.Value + " makes systemd look for units elsewhere; leave it out"
		case a.Key == "CapabilityBoundingSet" && a.Value != "":
			list := strings.Fields(strings.ToUpper(strings.TrimPrefix(a.Value, "~")))
			for _, c := range capabilities {
				if slices.Contains(list, c) == strings.HasPrefix(a.Value, "~") {
					return a.Key + " takes the capability " + c + " from all services, including the agent's; leave the capability"
				}
			}
		}
	}
	return ""
}

// environment reports whether a NAME=value changes where systemd looks for units or generators, or what is loaded into
// systemd. init gets such values from the kernel's command line or from its settings.
func environment(variable string) bool {
	name, _, _ := strings.Cut(strings.Trim(variable, `"`), "=")
	return slices.Contains([]string{"SYSTEMD_UNIT_PATH", "SYSTEMD_GENERATOR_PATH", "LD_PRELOAD", "LD_LIBRARY_PATH"}, name)
}

// judgeText judges the contents of a unit file: what they do to the agent's units, and where they lead a boot.
func judgeText(unit, contents string) string {
	all, err := syntax.Parse(contents, false)
	if err != nil {
		return "" // such a file is refused as a whole
	}
	for _, a := range all {
		if why := cmp.Or(assignment(unit, a), pullsAway(unit, a), starves(unit, a)); why != "" {
			return why
		}
	}
	return ""
}

func assignment(unit string, a syntax.Assignment) string {
	words, _ := syntax.Words(a.Value)
	said := a.Key + "=" + a.Value
	switch {
	case slices.Contains(words, RebootUnit) && !slices.Contains([]string{"After", "Description"}, a.Key):
		return said + " would make a unit of the agent reboot this host; leave it out"
	case a.Section == "Install" && a.Key == "Alias":
		for _, alias := range words {
			switch {
			case slices.Contains(OwnUnits, alias):
				return said + " would replace a unit of the agent; leave it out"
			case slices.Contains(needed, alias):
				return said + ": " + isRoad
			case slices.Contains(boots, alias) && goesAway(unit):
				return said + ": " + leads
			}
		}
	case a.Section == "Install" && a.Key == "Also":
		for _, other := range words {
			if slices.Contains(OwnUnits, other) {
				return said + " would enable and disable a unit of the agent together with this unit; leave it out"
			}
		}
	case a.Section == "Unit" && slices.Contains([]string{"Conflicts", "PropagatesStopTo", "Before"}, a.Key):
		for _, other := range words {
			if slices.Contains(OwnUnits, other) {
				return said + " would keep a unit of the agent from running; leave it out"
			}
		}
	}
	return ""
}

// lasting are settings of a unit that no later drop-in can undo. Some can't be undone at all, some not in systemd's own
// units. Others can't be undone without a warning of each systemd that does not know them.
var lasting = []string{"Requires", "Requisite", "BindsTo", "BindTo", "PartOf", "Conflicts", "Before", "After",
	"StopPropagatedFrom", "RequiresMountsFor", "WantsMountsFor", "RequiresOverridable", "RequisiteOverridable",
	"SuccessAction", "DefaultDependencies",
	"Sockets", "MemoryLimit", "BlockIOReadBandwidth", "BlockIOWriteBandwidth", // from systemd's first years
	"OpenFile", "RestartSteps", "PrivatePIDs", "PrivateBPF", "DelegateNamespaces", "LandlockConfig", "StartupMemoryHigh",
	"StartupMemoryMax", "StartupMemorySwapMax", "StartupMemoryZSwapMax"} // newer than the agent can rely on

// judgeDropin judges a drop-in in a directory that the agent's units share, or of a unit that they need.
func judgeDropin(dir, name, contents string) string {
	unit := strings.TrimSuffix(dir, ".d")
	all, err := syntax.Parse(contents, false)
	if err != nil || !strings.HasSuffix(name, ".conf") {
		return ""
	}
	switch {
	case unit == "service" && name >= OwnDropin:
		return tooLate
	case unit == "service":
		for _, a := range all {
			if a.Section != "Install" && a.Value != "" && slices.Contains(lasting, a.Key) {
				return fmt.Sprintf("%s=%s would apply to all services, including the agent's; set it in the services that need it",
					a.Key, a.Value)
			}
		}
	case reachesNeeded(unit):
		for _, a := range all {
			if unbounded(a) && slices.Contains([]string{"reboot.target", "soft-reboot.target", "target"}, unit) {
				return fmt.Sprintf("%s=%s: a service that does not stop would hold a reboot for ever; name a time, and "+
					"reboot-force", a.Key, a.Value)
			}
			if stops(a) {
				return fmt.Sprintf("%s=%s: %s", a.Key, a.Value, isRoad)
			}
		}
	}
	return judgeText(unit, contents)
}

// reachesNeeded reports whether systemd reads drop-ins of that name for a unit that the agent's units need.
func reachesNeeded(unit string) bool {
	return slices.ContainsFunc(needed, func(n string) bool {
		return unit == n || unit == path.Ext(n)[1:] || slices.Contains(prefixDirs(n), unit+".d")
	})
}

// unbounded reports whether a setting keeps systemd itself from ending an orderly reboot that does not end.
func unbounded(a syntax.Assignment) bool {
	switch {
	case a.Section != "Unit":
		return false
	case a.Key == "JobTimeoutSec":
		return slices.Contains([]string{"", "0", "infinity"}, a.Value)
	case a.Key == "JobTimeoutAction":
		return !strings.Contains(a.Value, "reboot-")
	}
	return false
}

// stops reports whether a setting may keep a unit from being started.
func stops(a syntax.Assignment) bool {
	if a.Value == "" || a.Section == "Install" {
		return false
	}
	for _, prefix := range []string{"Condition", "Assert", "Exec"} {
		if strings.HasPrefix(a.Key, prefix) {
			return true
		}
	}
	return slices.Contains([]string{"Requires", "Requisite", "BindsTo", "Conflicts", "RefuseManualStart", "User",
		"SuccessAction", "FailureAction"}, a.Key)
}

// goesAway reports whether a boot into a target never comes into service.
func goesAway(target string) bool {
	name, is := strings.CutSuffix(target, ".target")
	return is && slices.Contains(away, name)
}
