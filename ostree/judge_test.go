// SPDX-License-Identifier: Apache-2.0

package ostree

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestARootThatLeavesNoWayBackIsRefused(t *testing.T) {
	const transient, lasting = "[etc]\ntransient=true\n", "[etc]\ntransient=false\n"
	able := rootHere{version: "2025.2", composefs: true}
	const composefs = "[composefs]\nenabled=yes\n"
	for _, c := range []struct {
		name, own, given string
		here             func(*rootHere)
		says             string // "": it is taken
		arguments        []string
	}{
		{name: "nothing said"},
		{"what is no matter", "[sysroot]\nreadonly=true\n[root]\ntransient=true\n[composefs]\nenabled=maybe\n", "", nil, "", nil},
		{"a transient /etc", transient, "", nil, "etc.transient in the image's /usr/lib/ostree/prepare-root.conf: ", nil},
		{"a transient /etc, by the image's /etc", "", transient, nil, "in the image's /usr/etc/ostree/prepare-root.conf: ", nil},
		{"one that the host's own file replaces", "", transient, func(h *rootHere) { h.etc, h.kept = ParseKeyFile(lasting), true }, "", nil},
		{"one that goes with the image that had it", "", transient, func(h *rootHere) { h.etc = ParseKeyFile(lasting) }, "/usr/etc/", nil},
		{"an override that nothing shows to work", transient, "", func(h *rootHere) { h.etc, h.kept = ParseKeyFile(lasting), true }, "etc.transient", nil},
		{"an override that works here", transient, "",
			func(h *rootHere) { h.own, h.etc, h.kept = ParseKeyFile(transient), ParseKeyFile(lasting), true }, "", nil},
		{"a transient /etc on a host that has one", transient, "", func(h *rootHere) { h.transient = true }, "", nil},
		{"none on a host that has one", "", "", func(h *rootHere) { h.transient = true }, "the host's /etc is transient and the image's", nil},
		{"one that the image's /etc takes back", transient, lasting, func(h *rootHere) { h.transient = true }, "the host's /etc is transient", nil},
		{"composefs", "[composefs]\nenabled=yes\n", "", nil, "", nil},
		{"composefs and an ostree without it", "[composefs]\nenabled = true\n", "", func(h *rootHere) { h.composefs = false },
			"composefs.enabled=yes in the image's /usr/lib/ostree/prepare-root.conf: the host's ostree 2025.2 makes no composefs roots", nil},
		{"verity", "[composefs]\nenabled=verity\n", "", nil, "composefs.enabled=verity", nil},
		{"verity on a host that has it", "[composefs]\nenabled=verity\n", "", func(h *rootHere) { h.verity = true }, "", nil},
		{"signed", "[composefs]\nenabled=signed\n", "", nil, "composefs.enabled=signed", nil},
		{"composefs and an ostree that the repository has to tell", composefs, "", func(h *rootHere) { h.unasked = true },
			"set ex-integrity.composefs in /ostree/repo/config", nil},
		{"an argument", "", "", func(h *rootHere) { h.composefs = false },
			"the kernel argument ostree.prepare-root.composefs=1: the host's ostree 2025.2 makes no composefs roots", asked("1")},
		{"an argument that takes composefs back", composefs, "", func(h *rootHere) { h.composefs = false }, "", asked("no")},
		{"an argument that demands a signature", composefs, "", nil, "composefs=signed: the file system", asked("signed")},
		{"an argument that takes back the signature alone", "[composefs]\nenabled=signed\n", "", nil, "composefs=yes: the file system",
			asked("yes")},
		{"an argument that ostree does not know", "", "", nil, "composefs=verity: ostree can't read the argument", asked("verity")},
		{"the first of two arguments", "", "", func(h *rootHere) { h.composefs = false }, "", append(asked("0"), asked("1")...)},
	} {
		here := able
		if c.here != nil {
			c.here(&here)
		}
		own := ParseKeyFile(c.own)
		demand, err := demanded(own, c.arguments)
		if err == nil {
			err = errors.Join(judgeEtc(own, ParseKeyFile(c.given), here), judgeComposefs(demand, here))
		}
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", c.name, err, c.says)
		}
	}
}

// asked are the kernel arguments that ask for such a root.
func asked(value string) []string { return []string{"quiet", composefsArgument + "=" + value} }

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
		{"two kernels, one of them gone", []string{"/usr/bin/ostree", "/usr/lib/modules/6.11/modules.dep", kernel}, "", ""},
		{"without ostree", []string{kernel}, "", "the image's /usr/bin/ostree: the program is missing"},
		{"without a kernel", []string{"/usr/bin/ostree", "/usr/lib/modules/6.12/modules.dep"}, "", "/usr/lib/modules/VERSION/vmlinuz: the kernel is missing"},
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
			case slices.Contains(argv, "--recursive"):
				t.Errorf("%s: %q lists thousands of modules", c.name, argv)
				return nil, lacking
			default:
				var found []byte
				for _, file := range c.files {
					if file == at {
						found = append(append(found, file...), 0)
					} else if below, is := strings.CutPrefix(file, at+"/"); is { // one level
						name, _, _ := strings.Cut(below, "/")
						found = append(append(found, at+"/"+name...), 0)
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
		err := NewPlain(run, root).Judge(t.Context(), two, nil)
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
