// SPDX-License-Identifier: Apache-2.0

package bootc

import (
	"io/fs"
	"strings"
	"testing"
)

func TestTheComposefsBackEndIsRecognised(t *testing.T) {
	digest := strings.Repeat("ab", 64)
	const stub = "/sys/firmware/efi/efivars/StubInfo-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
	at := "/sysroot/state/deploy/" + digest + "/" + digest + ".origin"
	for _, c := range []struct {
		name  string
		files map[string]string
		want  Composefs
	}{
		{"nothing", map[string]string{"/proc/cmdline": "root=LABEL=root rw"}, ""},
		{"another argument", map[string]string{"/proc/cmdline": "composefs=no x.composefs=" + digest}, ""},
		{"no digest", map[string]string{"/proc/cmdline": "composefs=" + digest[1:] + " composefs=sha512:" + digest + " composefs=" +
			strings.ToUpper(digest)}, ""},
		{"a digest of sha256", map[string]string{"/proc/cmdline": "composefs=" + digest[:64]}, composefsBLS},
		{"an entry", map[string]string{"/proc/cmdline": "rw composefs=" + digest, at: "[origin]\nx=y\n[boot]\nboot_type=bls\n"}, composefsBLS},
		{"a sealed image", map[string]string{"/proc/cmdline": "composefs=?" + digest + " rw\n", at: "[boot]\nboot_type = Uki\n"}, composefsUKI},
		{"a sealed image whose notes can't be read", map[string]string{"/proc/cmdline": "composefs=" + digest, stub: "x"}, composefsUKI},
		{"what is known at run time alone", map[string]string{"/run/composefs": ""}, composefsBLS},
	} {
		read := func(path string) ([]byte, error) {
			if text, ok := c.files[path]; ok {
				return []byte(text), nil
			}
			return nil, fs.ErrNotExist
		}
		if got := FindComposefs(read, func(path string) bool { _, ok := c.files[path]; return ok }); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestEachFieldIsRefusedByTheComposefsBackEnd(t *testing.T) {
	for field, want := range map[string]string{"osImageURL": "bootc switch", "kernelType": "use an image", "extensions": "use an image"} {
		for _, c := range []Composefs{composefsBLS, composefsUKI} {
			if got := c.Refusal(field); !strings.Contains(got, want) || !strings.Contains(got, "composefs back end") {
				t.Errorf("%s, %s: %s", c, field, got)
			}
		}
	}
	if got := composefsUKI.Refusal("kernelArguments"); !strings.Contains(got, "sealed") || !strings.Contains(got, "/usr/lib/bootc/kargs.d") {
		t.Error(got)
	}
	if got := composefsBLS.Refusal("kernelArguments"); strings.Contains(got, "sealed") || !strings.Contains(got, "/usr/lib/bootc/kargs.d") {
		t.Error(got)
	}
}
