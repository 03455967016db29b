// SPDX-License-Identifier: Apache-2.0

package ostree

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestARootThatLeavesNoWayBackIsRefused(t *testing.T) {
	const transient, lasting = "[etc]\ntransient=true\n", "[etc]\ntransient=false\n"
	able := rootHere{version: "2025.2", composefs: true}
	for _, c := range []struct {
		name, own, given string
		here             func(*rootHere)
		says             string // "": it is taken
	}{
		{"nothing said", "", "", nil, ""},
		{"what is no matter", "[sysroot]\nreadonly=true\n[root]\ntransient=true\n[composefs]\nenabled=maybe\n", "", nil, ""},
		{"a transient /etc", transient, "", nil, "etc.transient in the image's /usr/lib/ostree/prepare-root.conf: "},
		{"a transient /etc, by the image's /etc", "", transient, nil, "in the image's /usr/etc/ostree/prepare-root.conf: "},
		{"one that the host's own file replaces", "", transient, func(h *rootHere) { h.etc, h.kept = ParseKeyFile(lasting), true }, ""},
		{"one that goes with the image that had it", "", transient, func(h *rootHere) { h.etc = ParseKeyFile(lasting) }, "/usr/etc/"},
		{"an override that nothing shows to work", transient, "", func(h *rootHere) { h.etc, h.kept = ParseKeyFile(lasting), true }, "etc.transient"},
		{"an override that works here", transient, "",
			func(h *rootHere) { h.own, h.etc, h.kept = ParseKeyFile(transient), ParseKeyFile(lasting), true }, ""},
		{"composefs", "[composefs]\nenabled=yes\n", "", nil, ""},
		{"composefs and an ostree without it", "[composefs]\nenabled = true\n", "", func(h *rootHere) { h.composefs = false },
			"composefs.enabled=yes in the image's /usr/lib/ostree/prepare-root.conf: the host's ostree 2025.2 makes no composefs roots"},
		{"verity", "[composefs]\nenabled=verity\n", "", nil, "composefs.enabled=verity"},
		{"verity on a host that has it", "[composefs]\nenabled=verity\n", "", func(h *rootHere) { h.verity = true }, ""},
		{"signed", "[composefs]\nenabled=signed\n", "", nil, "composefs.enabled=signed"},
	} {
		here := able
		if c.here != nil {
			c.here(&here)
		}
		err := judgeRoot(ParseKeyFile(c.own), ParseKeyFile(c.given), here)
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", c.name, err, c.says)
		}
	}
}

func TestACommitThatLeavesNoWayBackIsRefused(t *testing.T) {
	const version = "libostree:\n Version: '2025.2'\n Features:\n  - libcurl\n  - composefs\n"
	const kernel = "/usr/lib/modules/6.12/vmlinuz"
	for _, c := range []struct {
		name  string
		files []string // of the commit
		own   string
		says  string
	}{
		{"as any", []string{"/usr/bin/ostree", kernel}, "", ""},
		{"a kernel as of old", []string{"/usr/bin/ostree", "/usr/lib/ostree-boot/vmlinuz-6.12-abc"}, "", ""},
		{"without ostree", []string{kernel}, "", "the image's /usr/bin/ostree: it is missing"},
		{"without a kernel", []string{"/usr/bin/ostree", "/usr/lib/modules/6.12/modules.dep"}, "", "/usr/lib/modules/VERSION/vmlinuz: it is missing"},
		{"sealed", []string{"/usr/bin/ostree", "/boot/EFI/Linux/abc.efi"}, "", "the image is sealed: /boot/EFI/Linux/abc.efi"},
		{"transient", []string{"/usr/bin/ostree", kernel}, "[etc]\ntransient=1\n", "etc.transient"},
	} {
		run := func(_ context.Context, argv ...string) ([]byte, error) {
			lacking := &CommandError{Argv: argv, Stderr: "error: No such file or directory: x", Err: errors.New("exit status 1")}
			switch at := argv[len(argv)-1]; {
			case argv[1] == "--version":
				return []byte(version), nil
			case argv[1] == "admin":
				return []byte("* testos " + one + ".0\n"), nil
			case argv[1] == "cat" && at == ownRootConfig && c.own != "":
				return []byte(c.own), nil
			case argv[1] == "cat":
				return nil, lacking
			default:
				var found []byte
				for _, file := range c.files {
					if file == at || strings.HasPrefix(file, at+"/") {
						found = append(append(found, file...), 0)
					}
				}
				if found == nil {
					return nil, lacking
				}
				return found, nil
			}
		}
		root := hostTree(t, map[string]string{
			"boot/loader.1/entries/x":                    "",
			"boot/loader.1/entries/ostree-1-testos.conf": "version 1\noptions ostree=/ostree/boot.1/testos/7c32/0\n",
		})
		link(t, root, "ostree/boot.1/testos/7c32/0", "../../../deploy/testos/deploy/"+one+".0")
		err := NewPlain(run, root).Judge(t.Context(), two)
		if (err == nil) != (c.says == "") || err != nil && (!strings.Contains(err.Error(), c.says) || ClassOf(err) != Invalid) {
			t.Errorf("%s: %v, want %q", c.name, err, c.says)
		}
	}
}

func TestASignedRootTakesASignedCommit(t *testing.T) {
	const no = "error: No such metadata key 'ostree.sign.ed25519'"
	for stderr, class := range map[string]Class{"": "", no: Invalid, "error: something else": Failed} {
		p := NewPlain(func(_ context.Context, argv ...string) ([]byte, error) {
			if stderr == "" {
				return nil, nil
			}
			return nil, &CommandError{Argv: argv, Stderr: stderr, Err: errors.New("exit status 1")}
		}, t.TempDir())
		err := p.judgeSignature(t.Context(), "judging x", two)
		if (err == nil) != (class == "") || err != nil && ClassOf(err) != class {
			t.Errorf("%q: %v", stderr, err)
		}
	}
}

// link makes a link below root.
func link(t *testing.T, root, at, target string) {
	t.Helper()
	at = filepath.Join(root, at)
	if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.Symlink(target, at)); err != nil {
		t.Fatal(err)
	}
}
