// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"encoding/base64"
	"path"
	"slices"
	"strings"
)

// bare are arguments without a value that lead systemd to a target which never comes into service.
var bare = []string{"emergency", "-b", "rescue", "single", "-s", "s", "S", "1", "rd.emergency", "rd.rescue", "rd.break"}

// optional are the values of ostree.prepare-root.composefs with which a host boots also without composefs.
var optional = []string{"maybe", "no", "false", "0"}

// argument returns why a host that boots with a kernel argument would not start the agent's units, and "" if it would.
func argument(a string) string {
	a = strings.ReplaceAll(a, `"`, "")
	key, value, valued := strings.Cut(a, "=")
	name := strings.ReplaceAll(key, "-", "_") // - and _ are the same character to systemd
	unit := value
	if path.Ext(unit) == "" {
		unit += ".target"
	}
	switch {
	case a == "--":
		return "init gets the arguments that follow, and may start another program; leave it out"
	case !valued && slices.Contains(bare, a) || key == "rd.break":
		return leads
	case name == "systemd.unit" && !slices.Contains(boots, unit):
		return leads + ", or link default.target to a target of your own"
	case name == "rd.systemd.unit" && unit != "initrd.target" && unit != "default.target":
		return "the initramfs would not lead to this host's own system; leave it out"
	case (name == "systemd.mask") && (slices.Contains(OwnUnits, value) || slices.Contains(needed, value) ||
		value == "default.target"):
		return isRoad
	case name == "systemd.wants" && (goesAway(unit) || value == RebootUnit):
		return leads
	case name == "systemd.run":
		return "this host would run the command in place of its services; make it a unit"
	case name == "systemd.volatile" && !slices.Contains([]string{"no", "0", "false", "off", "n", "f"}, value):
		return "/var, with the agent's record, would be empty in each boot; leave it out"
	case key == "init" && !slices.Contains(inits, path.Clean(value)):
		return "the host would not start systemd, so the agent's units would not start; leave it out"
	case key == "rdinit" && value != "/init":
		return "the initramfs would not lead to this host's own system; leave it out"
	case key == "ostree":
		return "the boot loader's entries say which deployment is booted; leave it out"
	case key == "ostree.prepare-root.composefs" && valued && !slices.Contains(optional, value):
		return "the root would not be mounted if ostree has made no such image of it; set this in the image, in " +
			"/usr/lib/ostree/prepare-root.conf"
	case name == "systemd.set_credential" || name == "systemd.set_credential_binary":
		return credentialArgument(a)
	case valued && environment(a):
		return "systemd would look for its units elsewhere; leave it out"
	}
	return ""
}

// credential returns the name and the text of a credential that a kernel argument gives to systemd.
func credential(a string) (name, text string, ok bool) {
	key, value, _ := strings.Cut(a, "=")
	key = strings.ReplaceAll(key, "-", "_")
	name, text, _ = strings.Cut(value, ":")
	switch key {
	case "systemd.set_credential":
		return name, text, true
	case "systemd.set_credential_binary":
		decoded, err := base64.StdEncoding.DecodeString(text)
		return name, string(decoded), err == nil
	}
	return "", "", false
}

// credentialArgument judges a kernel argument that gives systemd a credential. Early boot makes lines of tmpfiles.d, a
// unit or a drop-in from such a credential.
func credentialArgument(a string) string {
	name, text, ok := credential(a)
	if !ok {
		return ""
	}
	if name == tmpfilesCredential {
		return tmpfilesText(text, path.Clean)
	}
	if unit, is := strings.CutPrefix(name, "systemd.extra-unit."); is {
		return cmp.Or(takesPlace(unit), judgeText(unit, text))
	}
	if unit, is := strings.CutPrefix(name, "systemd.unit-dropin."); is {
		unit, dropin, _ := strings.Cut(unit, "~")
		at := path.Join(unit+".d", cmp.Or(dropin, "50-credential")+".conf")
		return cmp.Or(takesPlace(at), judgeDropin(unit+".d", path.Base(at), text))
	}
	return ""
}

// inits are the paths where hosts have systemd.
var inits = []string{"/sbin/init", "/usr/sbin/init", "/bin/init", "/usr/bin/init", "/init", "/lib/systemd/systemd",
	"/usr/lib/systemd/systemd"}
