// SPDX-License-Identifier: Apache-2.0

package bootloader

import (
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/noderefit/noderefit/kargs"
)

// entry is a boot loader entry (type 1 of the Boot Loader Specification).
type entry struct{ path, text string }

// values returns the values of a key, in the order of the entry.
func (e entry) values(key string) (out []string) {
	for line := range strings.Lines(e.text) {
		if name, value, _ := strings.Cut(strings.TrimSpace(strings.ReplaceAll(line, "\t", " ")), " "); name == key {
			out = append(out, strings.TrimSpace(value))
		}
	}
	return out
}

// machineName matches a file name that begins with the ID of a machine.
var machineName = regexp.MustCompile(`^([0-9a-f]{32})-`)

// of reports whether the entry boots a kernel of that machine, with its own arguments. ostree's entries belong to
// deployments.
func (e entry) of(machine string) bool {
	if len(e.values("linux")) == 0 || len(e.values("options")) == 0 {
		return false
	}
	for _, id := range e.values("machine-id") {
		if machine != "" && id != machine {
			return false
		}
	}
	if found := machineName.FindStringSubmatch(path.Base(e.path)); found != nil && machine != "" && found[1] != machine {
		return false
	}
	return !slices.ContainsFunc(e.arguments(), func(a string) bool { return strings.HasPrefix(a, "ostree=") })
}

// boots reports whether the entry is of that kernel release.
func (e entry) boots(release string) bool {
	return slices.Contains(e.values("version"), release) ||
		slices.ContainsFunc(e.values("linux"), func(p string) bool { return strings.Contains(p, release) })
}

func (e entry) arguments() []string { return kargs.Split(strings.Join(e.values("options"), " ")) }

// withArguments returns the entry's text with other arguments. All other lines stay.
func (e entry) withArguments(args []string) string {
	var out strings.Builder
	written := false
	for line := range strings.Lines(e.text) {
		name, _, _ := strings.Cut(strings.TrimSpace(strings.ReplaceAll(line, "\t", " ")), " ")
		switch {
		case name != "options":
			out.WriteString(line)
		case !written:
			out.WriteString("options " + kargs.Join(args) + "\n")
			written = true
		}
	}
	return out.String()
}

// linuxCommand matches the command of GRUB that loads Linux: the image, and the arguments.
var linuxCommand = regexp.MustCompile(`(?m)^[ \t]*linux(?:16|efi)?[ \t]+\S+(.*)$`)

// grubLine returns the kernel arguments of the first entry of the host's own kernels in GRUB's configuration. The
// result is nil without such an entry.
func grubLine(text string) []string {
	if _, own, ok := strings.Cut(text, "### BEGIN /etc/grub.d/10_linux"); ok {
		text = own
	}
	found := linuxCommand.FindStringSubmatch(text)
	if found == nil {
		return nil
	}
	return append([]string{}, kargs.Split(found[1])...)
}

// settings returns the text of our file of GRUB's settings, nil for no arguments.
func settings(args []string) []byte {
	if len(args) == 0 {
		return nil
	}
	return []byte("# The kernel arguments of this node's MachineConfigs. Noderefit writes this file.\n" +
		`GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT ` + kargs.Join(args) + "\"\n")
}

// plain matches an argument that neither a shell, nor GRUB, nor a reader of entries changes.
var plain = regexp.MustCompile(`^[A-Za-z0-9_.,:=/@%+~!?*\[\]^-]+$`)

// assignment matches a simple assignment of GRUB_CMDLINE_LINUX in GRUB's settings: in double quotes, in single quotes,
// or without.
var (
	assigned   = regexp.MustCompile(`(?m)^[ \t]*(?:export[ \t]+)?GRUB_CMDLINE_LINUX\+?=.*$`)
	assignment = regexp.MustCompile(`^[ \t]*GRUB_CMDLINE_LINUX=(?:"([^"$\\` + "`" + `]*)"|'([^']*)'|` +
		`([A-Za-z0-9_.,:=/@%+-]*))[ \t]*(?:#.*)?$`)
)

// changeSettings returns GRUB's settings with other arguments in GRUB_CMDLINE_LINUX.
func changeSettings(text string, change func([]string) []string) (string, error) {
	all := assigned.FindAllStringIndex(text, -1)
	switch len(all) {
	case 0:
		args := change(nil)
		if len(args) == 0 {
			return text, nil
		}
		if text != "" && !strings.HasSuffix(text, "\n") {
			text += "\n"
		}
		return text + `GRUB_CMDLINE_LINUX="` + kargs.Join(args) + "\"\n", nil
	case 1:
		at := all[0]
		if found := assignment.FindStringSubmatch(text[at[0]:at[1]]); found != nil {
			args := kargs.Split(found[1] + found[2] + found[3])
			changed := change(slices.Clone(args))
			if slices.Equal(args, changed) {
				return text, nil
			}
			return text[:at[0]] + `GRUB_CMDLINE_LINUX="` + kargs.Join(changed) + `"` + text[at[1]:], nil
		}
	}
	return "", refuse("%s sets GRUB_CMDLINE_LINUX in another way than by one plain assignment; kernels that are "+
		"installed later would not get the arguments", defaults)
}
