// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"strings"
	"testing"

	mc "github.com/noderefit/noderefit/machineconfig"
)

func TestHostsTomlOfContainerd(t *testing.T) {
	const path = "/etc/containerd/certs.d/quay.io/hosts.toml"
	const base = "server = \"https://quay.io\"\n[host.\"https://m\"]\ncapabilities = [\"pull\"]\n"
	const tags = "[host.\"https://t\"]\ncapabilities = [\"pull\", \"resolve\"]\n"
	const digests = "[host.\"https://d\"]\ncapabilities = [\"pull\"]\n"
	for _, c := range []struct {
		name          string
		before, after string
		unsafe        string // part of the reason; "" where the change is safe
	}{
		{"a comment", base, base + "# x\n", ""},
		{"a first one for digests", "", digests, ""},
		{"a first one for tags", "", tags, "new host https://t resolves tags"},
		{"one that does not say what for", "", "[host.\"https://m\"]\n", "new host https://m resolves tags"},
		{"a further one for digests", base, base + digests, ""},
		{"a further one beside one for tags", tags, tags + digests, ""},
		{"a further one for tags", base, base + tags, "new host https://t resolves tags"},
		{"one less", base + digests, base, "host https://d was removed"},
		{"none left", digests, "", "host https://d was removed"},
		{"another server", base, strings.Replace(base, "://quay.io", "://n", 1), "server changed"},
		{"another way to a host", base, base + "skip_verify = true\n", "host https://m changed"},
		{"two for tags, perhaps the other way round", tags + strings.Replace(tags, "//t", "//u", 1),
			strings.Replace(tags, "//t", "//u", 1) + tags, "several hosts resolve tags"},
		{"no TOML", base, base + "SECRET =", "its new contents do not parse"},
		{"no TOML before", "SECRET =", base, "its current contents do not parse"},
	} {
		t.Run(c.name, func(t *testing.T) {
			at := func(contents string) *mc.Config {
				if contents == "" {
					return &mc.Config{}
				}
				return &mc.Config{Files: []mc.File{file(path, contents)}}
			}
			p := mustMake(t, at(c.before), at(c.after), Options{})
			want := []string{"None"}
			if c.unsafe != "" {
				want = []string{"Drain"}
			}
			check(t, "actions", steps(p.Actions), want)
			why := p.Actions[0].Because
			if !strings.Contains(why, c.unsafe) || strings.Contains(why, "SECRET") || p.Reboot {
				t.Errorf("because %s, reboot %v", why, p.Reboot)
			}
		})
	}
	other := func(name, contents string) *mc.Config { return &mc.Config{Files: []mc.File{file(name, contents)}} }
	const ca = "/etc/containerd/certs.d/quay.io/ca.crt"
	check(t, "what else is there", steps(mustMake(t, other(ca, "1"), other(ca, "2"), Options{}).Actions),
		[]string{"Drain", "Reboot"})
}
