// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// document is a MachineConfig with an Ignition section, and whatever else its spec has.
func document(name, more, ignition string) []byte {
	return []byte(fmt.Sprintf(`{"apiVersion":"machineconfiguration.openshift.io/v1","kind":"MachineConfig",
"metadata":{"name":%q},"spec":{%s"config":{"ignition":{"version":"3.4.0"},%s}}}`, name, more, ignition))
}

// zipped is a contents object of compressed text.
func zipped(text string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write([]byte(text))
	_ = w.Close()
	return fmt.Sprintf(`{"compression":"gzip","source":"data:;base64,%s"}`, base64.StdEncoding.EncodeToString(b.Bytes()))
}

// everyKindA and everyKindB differ in every way that two configurations of a tree can: what is added, changed and
// removed of every kind, in mode alone, in owner alone, in type, below links, and let go of with and without something
// to come back.
var everyKindA = `"storage":{"files":[
 {"path":"/etc/changed.conf","mode":420,"contents":{"source":"data:,changed%20A%0A"}},
 {"path":"/etc/same.conf","mode":420,"contents":{"source":"data:,same%0A"}},
 {"path":"/etc/only-a.conf","mode":384,"contents":{"source":"data:,only%20A%0A"}},
 {"path":"/etc/mode.conf","mode":420,"contents":{"source":"data:,mode%0A"}},
 {"path":"/etc/owner.conf","mode":416,"contents":{"source":"data:,owner%0A"}},
 {"path":"/etc/chrony.conf","mode":420,"contents":{"source":"data:,pool%20a%0A"}},
 {"path":"/etc/admin.conf","mode":420,"contents":{"source":"data:,ours%0A"}},
 {"path":"/etc/zipped.conf","mode":420,"contents":` + zipped("zipped A\n") + `},
 {"path":"/etc/deep-a/one/two/file","mode":420,"contents":{"source":"data:,deep%20A%0A"}},
 {"path":"/etc/file-to-dir","mode":420,"contents":{"source":"data:,a%20file%0A"}},
 {"path":"/etc/file-to-link","mode":420,"contents":{"source":"data:,a%20file%0A"}},
 {"path":"/etc/dir-to-link/inside","mode":420,"contents":{"source":"data:,inside%0A"}},
 {"path":"/etc/dir-to-file/sub/inside","mode":420,"contents":{"source":"data:,inside%0A"}},
 {"path":"/home/core/only-a","mode":384,"user":{"name":"core"},"group":{"name":"core"},"contents":{"source":"data:,home%0A"}},
 {"path":"/usr/local/bin/tool","mode":493,"contents":{"source":"data:,tool%20A%0A"}},
 {"path":"/var/lib/data/state","mode":384,"contents":{"source":"data:,state%20A%0A"}}],
"directories":[
 {"path":"/etc/dir-a","mode":493},{"path":"/etc/dir-mode","mode":493},{"path":"/etc/dir-owner","mode":493},
 {"path":"/etc/dir-to-link","mode":493},{"path":"/etc/dir-to-file","mode":493},{"path":"/etc/dir-to-file/sub","mode":493}],
"links":[
 {"path":"/etc/link-a","target":"changed.conf"},{"path":"/etc/link-changed","target":"one"},
 {"path":"/etc/link-to-file","target":"/etc/same.conf"},
 {"path":"/etc/hard","target":"/etc/changed.conf","hard":true},
 {"path":"/etc/hard-a","target":"/etc/same.conf","hard":true}]},
"systemd":{"units":[
 {"name":"only-a.service","enabled":true,"contents":"[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n"},
 {"name":"changed.service","enabled":true,"contents":"[Service]\nExecStart=/bin/true A\n[Install]\nWantedBy=multi-user.target\nAlias=old-name.service\n"},
 {"name":"mask-a.service","mask":true},
 {"name":"to-mask.service","enabled":true,"contents":"[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=basic.target\n"},
 {"name":"crio.service","enabled":true,"dropins":[{"name":"10-a.conf","contents":"[Service]\nNice=1\n"},{"name":"20-both.conf","contents":"[Service]\nNice=2\n"}]},
 {"name":"vendor.service","enabled":false}]},
"passwd":{"users":[
 {"name":"core","passwordHash":"$6$aaaa$aaaa","sshAuthorizedKeys":["ssh-ed25519 AAAA one","ssh-ed25519 BBBB two"]},
 {"name":"ops","passwordHash":"$6$oooo$oooo","sshAuthorizedKeys":["ssh-ed25519 CCCC ops"]}]}`

var everyKindB = `"storage":{"files":[
 {"path":"/etc/changed.conf","mode":420,"contents":{"source":"data:,changed%20B%20which%20is%20longer%0A"}},
 {"path":"/etc/same.conf","mode":420,"contents":{"source":"data:,same%0A"}},
 {"path":"/etc/only-b.conf","mode":384,"contents":{"source":"data:,only%20B%0A"}},
 {"path":"/etc/mode.conf","mode":384,"contents":{"source":"data:,mode%0A"}},
 {"path":"/etc/owner.conf","mode":416,"user":{"id":7},"group":{"name":"core"},"contents":{"source":"data:,owner%0A"}},
 {"path":"/etc/zipped.conf","mode":420,"contents":` + zipped("zipped B\n") + `},
 {"path":"/etc/deep-b/one/two/file","mode":420,"contents":{"source":"data:,deep%20B%0A"}},
 {"path":"/etc/file-to-dir/now/inside","mode":420,"contents":{"source":"data:,inside%0A"}},
 {"path":"/etc/dir-to-file","mode":420,"contents":{"source":"data:,a%20file%20now%0A"}},
 {"path":"/etc/link-to-file","mode":420,"contents":{"source":"data:,a%20file%20now%0A"}},
 {"path":"/home/core/only-b","mode":384,"user":{"name":"core"},"group":{"name":"core"},"contents":{"source":"data:,home%0A"}},
 {"path":"/usr/local/bin/tool","mode":493,"contents":{"source":"data:,tool%20B%0A"}},
 {"path":"/usr/local/bin/new-tool","mode":493,"contents":{"source":"data:,new%0A"}},
 {"path":"/var/lib/data/state","mode":384,"contents":{"source":"data:,state%20B%0A"}}],
"directories":[
 {"path":"/etc/dir-b","mode":448},{"path":"/etc/dir-mode","mode":448},
 {"path":"/etc/dir-owner","mode":493,"user":{"name":"core"}},{"path":"/etc/file-to-dir","mode":493}],
"links":[
 {"path":"/etc/link-b","target":"changed.conf"},{"path":"/etc/link-changed","target":"two"},
 {"path":"/etc/file-to-link","target":"same.conf"},{"path":"/etc/dir-to-link","target":"dir-b"},
 {"path":"/etc/hard","target":"/etc/changed.conf","hard":true},
 {"path":"/etc/hard-b","target":"/etc/same.conf","hard":true}]},
"systemd":{"units":[
 {"name":"only-b.service","enabled":true,"contents":"[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n"},
 {"name":"changed.service","enabled":true,"contents":"[Service]\nExecStart=/bin/true B\n[Install]\nWantedBy=basic.target\nAlias=new-name.service\n"},
 {"name":"mask-b.service","mask":true},
 {"name":"to-mask.service","mask":true},
 {"name":"crio.service","enabled":false,"dropins":[{"name":"20-both.conf","contents":"[Service]\nNice=3\n"},{"name":"30-b.conf","contents":"[Service]\nNice=4\n"}]},
 {"name":"vendor.service","enabled":true}]},
"passwd":{"users":[
 {"name":"core","passwordHash":"$6$bbbb$bbbb","sshAuthorizedKeys":["ssh-ed25519 AAAA one"]}]}`

// littleA and littleB are one of each kind of step, for what costs the square of their number.
var littleA = `"storage":{"files":[
 {"path":"/etc/changed.conf","mode":420,"contents":{"source":"data:,A%0A"}},
 {"path":"/etc/only-a.conf","mode":420,"contents":{"source":"data:,A%0A"}},
 {"path":"/etc/mode.conf","mode":420,"contents":{"source":"data:,mode%0A"}},
 {"path":"/etc/file-to-dir","mode":420,"contents":{"source":"data:,a%20file%0A"}},
 {"path":"/etc/dir-to-link/inside","mode":420,"contents":{"source":"data:,inside%0A"}}],
"directories":[{"path":"/etc/dir-to-link","mode":493}],
"links":[{"path":"/etc/hard","target":"/etc/changed.conf","hard":true},{"path":"/etc/link","target":"one"}]}`

var littleB = `"storage":{"files":[
 {"path":"/etc/changed.conf","mode":420,"contents":{"source":"data:,B%0A"}},
 {"path":"/etc/mode.conf","mode":384,"contents":{"source":"data:,mode%0A"}},
 {"path":"/etc/file-to-dir/inside","mode":420,"contents":{"source":"data:,inside%0A"}}],
"directories":[{"path":"/etc/file-to-dir","mode":493}],
"links":[{"path":"/etc/hard","target":"/etc/changed.conf","hard":true},{"path":"/etc/link","target":"two"},
 {"path":"/etc/dir-to-link","target":"changed.conf"}]}`

// manyFiles is a configuration of 300 files of which about half differ between two variants: changed, in one only, in
// another mode, on both sides of /var, with a few units and keys.
func manyFiles(variant string) string {
	var out []string
	for i := range 300 {
		where, what, mode := fmt.Sprintf("/etc/many/%02d/file-%d", i%20, i), "same", 0o644
		switch i % 6 {
		case 0:
			what = variant
		case 1:
			where = fmt.Sprintf("/etc/many/only-%s/%d", variant, i)
		case 2:
			if variant == "b" {
				mode = 0o600
			}
		case 3:
			where, what = fmt.Sprintf("/var/lib/many/%d", i), strings.Repeat(variant+"%0A", 200)
		}
		out = append(out, fmt.Sprintf(`{"path":%q,"mode":%d,"contents":{"source":"data:,%s%%20%d%%0A"}}`, where, mode, what, i))
	}
	return `"storage":{"files":[` + strings.Join(out, ",\n") + `]},
"systemd":{"units":[{"name":"many-` + variant + `.service","enabled":true,"contents":"[Service]\nType=oneshot\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n"}]},
"passwd":{"users":[{"name":"core","sshAuthorizedKeys":["ssh-ed25519 AAAA ` + variant + `"]}]}`
}

// documents writes configurations by name to files and returns their paths.
func documents(t *testing.T, ignition map[string]string) map[string]string {
	t.Helper()
	dir, out := t.TempDir(), map[string]string{}
	for name, text := range ignition {
		out[name] = filepath.Join(dir, name+".json")
		if err := os.WriteFile(out[name], document(name, "", text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// pristine makes a tree that looks like a host which no configuration has touched yet: users, vendor units and
// defaults, an admin's own files, and the links that an ostree host has into /var.
func pristine(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: the files of a configuration belong to it")
	}
	root, err := os.MkdirTemp(scratch, "pristine-") //nolint:usetesting // in memory
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"etc/systemd/system", "etc/ssh", "usr/lib/systemd/system", "usr/lib/systemd/system-preset", "usr/etc",
		"var/home/core", "var/home/ops", "var/usrlocal/bin", "var/lib", "run", "tmp"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{
		"etc/passwd":      "root:x:0:0:root:/root:/bin/bash\ncore:x:1000:1000::/home/core:/bin/bash\nops:x:1001:1001::/home/ops:/bin/bash\n",
		"etc/group":       "root:x:0:\ncore:x:1000:\nops:x:1001:\n",
		"etc/shadow":      "root:*:20000:0:99999:7:::\ncore:*:20000:0:99999:7:::\nops:!:20000:0:99999:7:::\n",
		"etc/chrony.conf": "pool vendor\n", "usr/etc/chrony.conf": "pool vendor\n",
		"etc/admin.conf": "the admin's own\n", "etc/untouched.conf": "nobody's business\n",
		"usr/lib/systemd/system/crio.service":            "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n",
		"usr/lib/systemd/system/vendor.service":          "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n",
		"usr/lib/systemd/system-preset/80-vendor.preset": "enable crio.service\ndisable *\n",
		"var/home/core/.profile":                         "PATH=$PATH\n",
	} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{"home": "var/home", "usr/local": "../var/usrlocal"} {
		if err := os.Symlink(target, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	for name, id := range map[string]int{"core": 1000, "ops": 1001} {
		if err := os.Chown(filepath.Join(root, "var/home", name), id, id); err != nil {
			t.Fatal(err)
		}
	}
	for name, mode := range map[string]os.FileMode{"etc/shadow": 0o600, "etc/admin.conf": 0o640, "var/home/core": 0o700} {
		if err := os.Chmod(filepath.Join(root, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	return root
}
