// SPDX-License-Identifier: Apache-2.0

package ostree

import (
	"strings"
	"testing"
)

func TestABootLoaderThatCountsByTheNamesOfEntriesIsRecognised(t *testing.T) {
	const asked = "[core]\nmode=bare\n[sysroot]\nboot-counting-tries=3\n"
	// As the kernel has the variable: attributes, and the text in UTF-16.
	info := "\x06\x00\x00\x00" + strings.ReplaceAll("systemd-boot 257", "", "\x00")[1:]
	for _, c := range []struct {
		name, config, info, entry string
		want                      int
		says                      string
	}{
		{"not asked for", "[core]\nmode=bare\n", info, "ostree-1.conf", 0, ""},
		{"switched off", "[sysroot]\nboot-counting-tries=0\n", info, "ostree-1.conf", 0, ""},
		{"asked for, of systemd-boot", asked, info, "ostree-1+3.conf", 3, ""},
		{"asked for, of GRUB", asked, "", "ostree-1+3.conf", 0, "has counted none"},
		{"not counted yet", asked, "", "ostree-1+3-0.conf", 0, "has counted none"},
		{"counted", asked, "", "ostree-1+2-1.conf", 3, ""},
	} {
		files := map[string]string{"ostree/repo/config": c.config, "boot/loader.1/entries/x": "", "boot/loader.1/entries/" + c.entry: " "}
		if c.info != "" {
			files[strings.TrimPrefix(loaderInfo, "/")] = c.info
		}
		got, err := NewPlain(nil, hostTree(t, files)).Tries()
		if got != c.want || (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %d, %v", c.name, got, err)
		}
	}
}
