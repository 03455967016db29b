// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"strings"
	"testing"

	"github.com/noderefit/noderefit/machineconfig"
)

const (
	varMount  = "[Unit]\nDescription=Data\n[Mount]\nWhat=/dev/vdb\nWhere=/var\n[Install]\nRequiredBy=local-fs.target\n"
	otherDisk = "[Mount]\nWhat=/dev/vdc\nWhere=/var\n"
	unitsDir  = "/etc/systemd/system/"
)

// both has the units, files, links and arguments of all.
func both(all ...machineconfig.Config) machineconfig.Config {
	var c machineconfig.Config
	for _, o := range all {
		c.Units, c.Files = append(c.Units, o.Units...), append(c.Files, o.Files...)
		c.Links, c.KernelArguments = append(c.Links, o.Links...), append(c.KernelArguments, o.KernelArguments...)
	}
	return c
}

func enabled(c machineconfig.Config, is bool) machineconfig.Config {
	c.Units[0].Enabled = &is
	return c
}

func TestWhatIsMountedOverWhatAHostComesBackWithStays(t *testing.T) {
	none := machineconfig.Config{}
	mount, table := aUnit("var.mount", varMount), aFile("/etc/fstab", "/dev/vdb /var xfs defaults 0 0\n")
	for name, c := range map[string]struct {
		from, to machineconfig.Config
		field    string // "": it is accepted
		names    string
	}{
		"the same":       {mount, mount, "", ""},
		"added":          {none, mount, "systemd.units", "unit var.mount would change what is mounted at /var"},
		"left out":       {mount, none, "systemd.units", "unit var.mount"},
		"another disk":   {mount, aUnit("var.mount", otherDisk), "systemd.units", "What=/dev/vdc"},
		"another type":   {mount, aUnit("var.mount", varMount+"[Mount]\nType=xfs\n"), "systemd.units", "Type=xfs"},
		"other options":  {mount, aUnit("var.mount", varMount+"[Mount]\nOptions=ro\n"), "systemd.units", "Options=ro"},
		"a condition":    {mount, aUnit("var.mount", varMount+"[Unit]\nConditionPathExists=/x\n"), "systemd.units", "Condition"},
		"enabled":        {mount, enabled(aUnit("var.mount", varMount), true), "systemd.units", "enabled"},
		"disabled":       {enabled(aUnit("var.mount", varMount), true), enabled(aUnit("var.mount", varMount), false), "systemd.units", "disabled"},
		"masked":         {mount, aMask("var.mount"), "systemd.units", "masked"},
		"a description":  {mount, aUnit("var.mount", strings.Replace(varMount, "Data", "The data", 1)), "", ""},
		"an order":       {mount, aUnit("var.mount", "[Unit]\nAfter=x.service\n"+varMount), "", ""},
		"as a file":      {mount, aFile(unitsDir+"var.mount", varMount), "", ""},
		"by a file":      {none, aFile(unitsDir+"var.mount", varMount), "storage.files", unitsDir + "var.mount"},
		"by /usr/local":  {none, aFile("/usr/local/lib/systemd/system/var.mount", varMount), "storage.files", "/var"},
		"an empty file":  {mount, aFile(unitsDir+"var.mount", ""), "storage.files", "masked"},
		"by a link":      {none, both(aLink(unitsDir+"var.mount", "../../mine"), aFile("/etc/mine", varMount)), "storage.links", "/dev/vdb"},
		"a link to null": {none, aLink(unitsDir+"var.mount", "/dev/null"), "storage.links", "masked"},
		"another unit":   {none, aLink(unitsDir+"var.mount", "srv.mount"), "storage.links", "as in srv.mount"},
		"wanted":         {none, aLink(unitsDir+"local-fs.target.wants/var.mount", "../var.mount"), "storage.links", "enabled"},
		"a drop-in": {mount, both(mount, aFile(unitsDir+"var.mount.d/a.conf", "[Mount]\nWhat=/dev/vdc\n")), "storage.files",
			"var.mount.d/a.conf"},
		"a drop-in of the unit": {mount, machineconfig.Config{Units: []machineconfig.Unit{{Name: "var.mount", Contents: varMount,
			Dropins: []machineconfig.Dropin{{Name: "a.conf", Contents: "[Mount]\nWhat=/dev/vdc\n"}}}}}, "systemd.units", "a.conf"},
		"a drop-in that says the same": {mount, both(mount, aFile(unitsDir+"var.mount.d/a.conf", "[Mount]\nWhat=/dev/vdb\n")), "", ""},
		"no drop-in":                   {mount, both(mount, aFile(unitsDir+"var.mount.d/a.txt", otherDisk)), "", ""},
		"of all below":                 {none, aFile(unitsDir+"var-.mount.d/a.conf", "[Mount]\nOptions=ro\n"), "storage.files", "Options=ro"},
		"of all mounts":                {none, aFile(unitsDir+"mount.d/a.conf", "[Mount]\nWhat=/dev/vdc\n"), "storage.files", "/dev/vdc"},
		"a limit of all mounts":        {none, aFile(unitsDir+"mount.d/a.conf", "[Mount]\nTimeoutSec=9\n"), "", ""},
		"an automount":                 {none, aUnit("var.automount", "[Automount]\nWhere=/var\n"), "systemd.units", "var.automount"},
		"below /var": {none, aUnit(`var-lib-machine\x2dconfig\x2ddaemon.mount`, "[Mount]\nWhat=tmpfs\n"), "systemd.units",
			"/var/lib/machine-config-daemon"},
		"beside it":         {none, aUnit("var-lib-etcd.mount", "[Mount]\nWhat=/dev/vdc\n"), "", ""},
		"the boot loader's": {none, aMask("boot.mount"), "systemd.units", "/boot"},
		"the deployments'":  {none, aUnit("sysroot.mount", "[Mount]\nWhat=tmpfs\n"), "systemd.units", "/sysroot"},

		"an entry":           {none, table, "storage.files", "/etc/fstab"},
		"no entry":           {table, none, "storage.files", "/etc/fstab"},
		"an entry's options": {table, aFile("/etc/fstab", "/dev/vdb /var xfs ro\n"), "storage.files", "/dev/vdb xfs ro"},
		"how it is checked":  {table, aFile("/etc/fstab", "# /dev/a /var xfs\n/dev/vdb\t/var/ xfs\ndefaults 0 2\n/dev/c /srv xfs\n"), "", ""},
		"one more":           {table, aFile("/etc/fstab", "/dev/vdb /var xfs\n/dev/vdb /var xfs\n"), "storage.files", "/var"},
		"a table elsewhere":  {none, both(aLink("/etc/fstab", "mine"), aFile("/etc/mine", "/dev/vdb /var xfs\n")), "storage.links", "/dev/vdb"},
		"an unknown table":   {none, aLink("/etc/fstab", "/nonexistent"), "storage.links", "/etc/fstab"},
		"by a link of its own": {none, both(aLink("/etc/data", "/var"), aFile("/etc/fstab", "/dev/vdb /etc/data xfs\n")),
			"storage.files", "/var"},

		"an argument":         {none, arguments("systemd.mount-extra=tmpfs:/var:tmpfs"), "kernelArguments", "at /var (tmpfs tmpfs defaults)"},
		"an argument below":   {none, arguments(`systemd.mount_extra="tmpfs:/var/lib"`), "kernelArguments", "/var/lib"},
		"of the initramfs":    {none, arguments("rd.systemd.mount-extra=tmpfs:/sysroot/var:tmpfs"), "kernelArguments", "/var"},
		"an argument beside":  {none, arguments("systemd.mount-extra=tmpfs:/srv:tmpfs"), "", ""},
		"no table":            {none, arguments("fstab=no"), "kernelArguments", "fstab=no"},
		"a table after all":   {arguments("fstab=0"), none, "kernelArguments", "fstab=0"},
		"said otherwise":      {arguments("fstab=0"), arguments("fstab=off"), "", ""},
		"a table as ever":     {none, arguments("fstab=yes"), "", ""},
		"masked by argument":  {none, arguments("systemd.mask=var.mount"), "kernelArguments", "systemd.mask=var.mount"},
		"masked both ways":    {aMask("var.mount"), arguments("systemd.mask=var.mount"), "", ""},
		"another is masked":   {none, arguments("systemd.mask=srv.mount"), "", ""},
		"a table by argument": {none, arguments("systemd.set_credential=fstab.extra:/dev/vdb /var xfs"), "kernelArguments", "/var"},
	} {
		p, err := Make(&c.from, &c.to, Options{})
		if err != nil {
			t.Fatal(err)
		}
		switch found := p.Unreconcilable; {
		case c.field == "" && len(found) > 0, c.field != "" && len(found) != 1:
			t.Errorf("%s: %+v", name, found)
		case c.field != "" && (found[0].Field != c.field || !strings.Contains(found[0].Reason, c.names)):
			t.Errorf("%s: %+v; want %s, and %q", name, found, c.field, c.names)
		}
		if p, err := Make(nil, &c.to, Options{}); err != nil || len(p.Unreconcilable) > 0 {
			t.Errorf("%s: a machine is made with it: %+v, %v", name, p.Unreconcilable, err)
		}
		if p, err := Make(&none, &c.to, Options{Committed: &c.to}); err != nil || len(p.Unreconcilable) > 0 {
			t.Errorf("%s: it has drifted: %+v, %v", name, p.Unreconcilable, err)
		}
	}
	if p, err := Make(&none, new(arguments("fstab=no")), Options{SkipOS: true}); err != nil || len(p.Unreconcilable) > 0 {
		t.Errorf("arguments are skipped: %+v, %v", p.Unreconcilable, err)
	}
}
