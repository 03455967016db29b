// SPDX-License-Identifier: Apache-2.0

package ostree

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestASoftRebootKeepsTheSELinuxPolicy(t *testing.T) {
	const booted, next = "ostree/deploy/testos/deploy/" + one + ".0/", "ostree/deploy/testos/deploy/" + one + ".1/"
	const given, used = "usr/etc/selinux/targeted/policy/policy.33", "etc/selinux/targeted/policy/policy.33"
	for _, c := range []struct {
		name  string
		files map[string]string
		says  string
	}{
		{"none", nil, ""},
		{"the same", map[string]string{booted + given: "a", next + given: "a", booted + used: "b", next + used: "b"}, ""},
		{"another with the image", map[string]string{booted + given: "a", next + given: "b"}, "/" + given},
		{"another of the host's", map[string]string{booted + given: "a", next + given: "a", booted + used: "b", next + used: "bc"}, "/" + used},
		{"one more", map[string]string{next + given: "a"}, "/" + given},
		{"one less", map[string]string{booted + used: "a"}, "/" + used},
	} {
		h := newSoftHost(t)
		for name, text := range c.files {
			at := filepath.Join(h.root, name)
			if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(text), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		err := NewPlain(h.run, h.root).PrepareSoftReboot(t.Context(), "testos/"+one+".1")
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), "SELinux policy differs ("+c.says+")") {
			t.Errorf("%s: %v", c.name, err)
		}
		if err != nil && len(h.ran) > 0 {
			t.Errorf("%s: ran %q", c.name, h.ran)
		}
	}
}
