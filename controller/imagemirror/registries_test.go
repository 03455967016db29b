// SPDX-License-Identifier: Apache-2.0

package imagemirror

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	configv1 "github.com/openshift/api/config/v1"

	"github.com/noderefit/noderefit/registries"
)

func TestMirrorsAreMergedWithWhatTheFileHas(t *testing.T) {
	for _, test := range []struct {
		what, base string
		origins    []*origin
		want       string
	}{
		{"nothing beneath", "", []*origin{icsp("tmp", "quay.io/xiaoyun/test", "hub.iefcu.cn/xiaoyun/test")}, `
[[registry]]
location = 'quay.io/xiaoyun/test'

[[registry.mirror]]
location = 'hub.iefcu.cn/xiaoyun/test'
pull-from-mirror = 'digest-only'
`},
		{"tags, and a wildcard", "", []*origin{itms("a", "*.example.com", "", "m.example")}, `
[[registry]]
prefix = '*.example.com'

[[registry.mirror]]
location = 'm.example'
pull-from-mirror = 'tag-only'
`},
		{"digests and tags of one mirror", "", []*origin{idms("a", "a.example", "", "m"), itms("b", "a.example", "", "m")}, `
[[registry]]
location = 'a.example'

[[registry.mirror]]
location = 'm'
`},
		{"the source is never asked", "", []*origin{idms("a", "a.example", configv1.NeverContactSource, "m")}, `
[[registry]]
blocked = true
location = 'a.example'

[[registry.mirror]]
location = 'm'
pull-from-mirror = 'digest-only'
`},
		{"everything else stays, and mirrors come behind those that are there", `
unqualified-search-registries = ["one.example"]
short-name-mode = "enforcing"
credential-helpers = ["x"]
[[registry]]
prefix = "a.example"
location = "b.example"
[[registry.mirror]]
location = "m"
insecure = true
[aliases]
"fedora" = "registry.fedoraproject.org/fedora"
`, []*origin{idms("a", "a.example", "", "n"), idms("b", "c.example", "", "n")}, `
credential-helpers = ['x']
short-name-mode = 'enforcing'
unqualified-search-registries = ['one.example']

[aliases]
fedora = 'registry.fedoraproject.org/fedora'

[[registry]]
location = 'b.example'
prefix = 'a.example'

[[registry.mirror]]
insecure = true
location = 'm'

[[registry.mirror]]
location = 'n'
pull-from-mirror = 'digest-only'

[[registry]]
location = 'c.example'

[[registry.mirror]]
location = 'n'
pull-from-mirror = 'digest-only'
`},
		{"the older word for digests is put into the newer one", `
[[registry]]
location = "a.example"
mirror-by-digest-only = true
[[registry.mirror]]
location = "m"
`, []*origin{itms("a", "a.example", "", "m", "n")}, `
[[registry]]
location = 'a.example'

[[registry.mirror]]
location = 'm'

[[registry.mirror]]
location = 'n'
pull-from-mirror = 'tag-only'
`},
		{"a mirror that the file has twice, by digest and by tag", `
[[registry]]
location = "a.example"
[[registry.mirror]]
location = "m"
pull-from-mirror = "digest-only"
[[registry.mirror]]
location = "m"
pull-from-mirror = "tag-only"
`, []*origin{idms("a", "a.example", "", "n")}, `
[[registry]]
location = 'a.example'

[[registry.mirror]]
location = 'm'

[[registry.mirror]]
location = 'n'
pull-from-mirror = 'digest-only'
`},
		{"a part of a registry is reached as the registry was", `
[[registry]]
location = "a.example"
insecure = true
[[registry]]
prefix = "*.b.example"
location = "b.mirror.example"
`, []*origin{idms("a", "a.example/x", "", "m"), idms("b", "q.b.example/y", "", "m")}, `
[[registry]]
insecure = true
location = 'a.example'

[[registry]]
location = 'b.mirror.example'
prefix = '*.b.example'

[[registry]]
insecure = true
location = 'a.example/x'

[[registry.mirror]]
location = 'm'
pull-from-mirror = 'digest-only'

[[registry]]
location = 'b.mirror.example/y'
prefix = 'q.b.example/y'

[[registry.mirror]]
location = 'm'
pull-from-mirror = 'digest-only'
`},
		{"a mirror that the file calls insecure", `
[[registry]]
location = "m.lab:5000"
insecure = true
`, []*origin{idms("a", "quay.io", "", "m.lab:5000/quay", "n")}, `
[[registry]]
insecure = true
location = 'm.lab:5000'

[[registry]]
location = 'quay.io'

[[registry.mirror]]
insecure = true
location = 'm.lab:5000/quay'
pull-from-mirror = 'digest-only'

[[registry.mirror]]
location = 'n'
pull-from-mirror = 'digest-only'
`},
		{"a part keeps the mirrors that the file has for the whole", `
[[registry]]
location = "a.example"
[[registry.mirror]]
location = "m/a"
`, []*origin{idms("a", "a.example/x", "", "n")}, `
[[registry]]
location = 'a.example'

[[registry.mirror]]
location = 'm/a'

[[registry]]
location = 'a.example/x'

[[registry.mirror]]
location = 'm/a/x'

[[registry.mirror]]
location = 'n'
pull-from-mirror = 'digest-only'
`},
		{"a part that is in the file has what is asked for the whole", `
[[registry]]
location = "a.example/x"
insecure = true
[[registry.mirror]]
location = "m"
`, []*origin{idms("a", "a.example", configv1.NeverContactSource, "n")}, `
[[registry]]
blocked = true
insecure = true
location = 'a.example/x'

[[registry.mirror]]
location = 'm'

[[registry.mirror]]
location = 'n/x'
pull-from-mirror = 'digest-only'

[[registry]]
blocked = true
location = 'a.example'

[[registry.mirror]]
location = 'n'
pull-from-mirror = 'digest-only'
`},
		{"never a registry, but for a part, and not for a part of that", "", []*origin{
			idms("a", "a.example", configv1.NeverContactSource, "m"), idms("b", "a.example/x", configv1.AllowContactingSource),
			idms("c", "a.example/x/y", configv1.NeverContactSource, "n"), idms("d", "a.example/z", "", "n"),
		}, `
[[registry]]
blocked = true
location = 'a.example'

[[registry.mirror]]
location = 'm'
pull-from-mirror = 'digest-only'

[[registry]]
location = 'a.example/x'

[[registry]]
blocked = true
location = 'a.example/x/y'

[[registry.mirror]]
location = 'n'
pull-from-mirror = 'digest-only'

[[registry]]
blocked = true
location = 'a.example/z'

[[registry.mirror]]
location = 'n'
pull-from-mirror = 'digest-only'
`},
	} {
		t.Run(test.what, func(t *testing.T) {
			conf, err := registries.Parse([]byte(test.base))
			if err != nil {
				t.Fatal(err)
			}
			if err := conf.Merge(sources(counting(arrange(test.origins), nil))); err != nil {
				t.Fatal(err)
			}
			text, err := conf.Text()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(strings.TrimSpace(test.want), strings.TrimSpace(string(text))); diff != "" {
				t.Error(diff)
			}
			again, err := registries.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			if err := again.Merge(sources(counting(arrange(test.origins), nil))); err != nil {
				t.Fatal(err)
			}
			if twice, err := again.Text(); err != nil || string(twice) != string(text) {
				t.Errorf("a second time it becomes %s, %v", twice, err)
			}
		})
	}
}

func TestContainerdIsToldWhatItCanDo(t *testing.T) {
	for _, test := range []struct {
		what, base string
		origins    []*origin
		want       map[string]string
		wrong      string // of the first object
	}{
		{"a registry, by digest", "", []*origin{idms("a", "quay.io", "", "m.example:5000", "n.example/proxy")},
			map[string]string{"quay.io": `[host."https://m.example:5000"]
  capabilities = ["pull"]

[host."https://n.example/v2/proxy"]
  capabilities = ["pull"]
  override_path = true
`}, ""},
		{"a registry, by tag", "", []*origin{itms("a", "docker.io", "", "m.example")},
			map[string]string{"docker.io": `[host."https://m.example"]
  capabilities = ["pull", "resolve"]
`}, ""},
		{"parts of a registry, by digest", "[[registry]]\nlocation = 'hub.iefcu.cn'\ninsecure = true\n", []*origin{
			icsp("tmp", "quay.io/xiaoyun/test", "hub.iefcu.cn/xiaoyun/test"), icsp("u", "quay.io/b", "m/x/b", "hub.iefcu.cn/b"),
		}, map[string]string{"quay.io": `[host."https://m/v2/x"]
  capabilities = ["pull"]
  override_path = true

[host."https://hub.iefcu.cn"]
  capabilities = ["pull"]
  skip_verify = true
`}, ""},
		{"never the registry itself", "", []*origin{idms("a", "quay.io", configv1.NeverContactSource, "docker.io/x", "n")},
			map[string]string{"quay.io": `server = "https://n"
capabilities = ["pull"]

[host."https://registry-1.docker.io/v2/x"]
  capabilities = ["pull"]
  override_path = true
`}, ""},
		{"another path", "", []*origin{icsp("a", "quay.io/a/b", "m/x/y")}, nil,
			"spec.repositoryDigestMirrors[0].mirrors[0]: containerd keeps the path"},
		{"tags of a part", "", []*origin{itms("a", "quay.io/a", "", "m/a")}, nil, "spec.imageTagMirrors[0].source"},
		{"wildcards", "", []*origin{idms("a", "*.quay.io", "", "m")}, nil, "spec.imageDigestMirrors[0].source"},
		{"never a part", "", []*origin{idms("a", "quay.io/a", configv1.NeverContactSource, "m/a")}, nil,
			"spec.imageDigestMirrors[0].mirrorSourcePolicy"},
		{"never a registry but for a part", "", []*origin{idms("a", "quay.io/a", configv1.AllowContactingSource, "m/a"),
			idms("b", "quay.io", configv1.NeverContactSource, "m")}, nil, "cannot block quay.io and allow quay.io/a"},
	} {
		t.Run(test.what, func(t *testing.T) {
			all := sources(counting(arrange(test.origins), nil))
			if err := inexpressible(test.origins[0].rules[0], all); test.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), test.wrong) {
					t.Errorf("got %v", err)
				}
				return
			} else if err != nil {
				t.Fatal(err)
			}
			conf, err := registries.Parse([]byte(test.base))
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]string{}
			for _, f := range registries.Hosts(all, conf.Insecure, nil) {
				host := strings.TrimSuffix(strings.TrimPrefix(f.Path, "/etc/containerd/certs.d/"), "/hosts.toml")
				got[host] = string(f.Contents)
				asDocumented(t, f.Path, f.Contents)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
