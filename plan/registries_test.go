// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"strings"
	"testing"

	mc "github.com/noderefit/noderefit/machineconfig"
)

const registriesPath = "/etc/containers/registries.conf"

const baseRegistries = `
unqualified-search-registries = ["one.example", "two.example"]
short-name-mode = "enforcing"

[[registry]]
prefix = "a.example"
location = "a.example"
  [[registry.mirror]]
  location = "m1.example"
  pull-from-mirror = "digest-only"
  [[registry.mirror]]
  location = "m2.example"

[[registry]]
location = "b.example"
mirror-by-digest-only = true
  [[registry.mirror]]
  location = "m3.example"
`

func TestRegistriesConf(t *testing.T) {
	swap := func(from, to string) string {
		if strings.Count(baseRegistries, from) != 1 {
			t.Fatalf("%q is not there once", from)
		}
		return strings.Replace(baseRegistries, from, to, 1)
	}
	first := [2]int{strings.Index(baseRegistries, "[[registry]]"), strings.LastIndex(baseRegistries, "[[registry]]")}
	for _, c := range []struct {
		name    string
		changed string
		unsafe  string // part of the reason; "" where the change is safe
	}{
		{"a comment", baseRegistries + "# x\n", ""},
		{"another order of registries", baseRegistries[:first[0]] + baseRegistries[first[1]:] + baseRegistries[first[0]:first[1]], ""},
		{"search registry at the end", swap(`"two.example"]`, `"two.example", "three.example"]`), ""},
		{"search registry removed", swap(`, "two.example"]`, `]`), "unqualified-search-registries"},
		{"search registries reordered", swap(`"one.example", "two.example"`, `"two.example", "one.example"`), "unqualified-search-registries"},
		{"search registry in front", swap(`["one.example"`, `["zero.example", "one.example"`), "unqualified-search-registries"},
		{"registry removed", baseRegistries[:strings.LastIndex(baseRegistries, "[[registry]]")], "registry b.example was removed"},
		{"prefix", swap("prefix = \"a.example\"\n", ""), "registry a.example: prefix changed"},
		{"location", swap("\nlocation = \"a.example\"", "\nlocation = \"c.example\""), "registry a.example: location changed"},
		{"blocked", swap("prefix = \"a.example\"", "prefix = \"a.example\"\nblocked = true"), "registry a.example: blocked changed"},
		{"insecure", swap("prefix = \"a.example\"", "prefix = \"a.example\"\ninsecure = true"), "registry a.example: insecure changed"},
		{"mirror removed", swap("  [[registry.mirror]]\n  location = \"m2.example\"\n", ""), "mirror m2.example was removed"},
		{"mirror becomes insecure", swap("  location = \"m2.example\"", "  location = \"m2.example\"\n  insecure = true"), "insecure of mirror m2.example"},
		{"mirror becomes digest-only", swap("  location = \"m2.example\"", "  location = \"m2.example\"\n  pull-from-mirror = \"digest-only\""), ""},
		{"mirror becomes tag-only", swap("  location = \"m2.example\"", "  location = \"m2.example\"\n  pull-from-mirror = \"tag-only\""), "mirror m2.example is no longer pulled from as before"},
		{"mirror says what it was", swap("  location = \"m2.example\"", "  location = \"m2.example\"\n  pull-from-mirror = \"all\""), ""},
		{"mirror stops being digest-only", swap("  pull-from-mirror = \"digest-only\"\n", ""), "mirror m1.example"},
		{"registry becomes digest-only", swap("prefix = \"a.example\"", "prefix = \"a.example\"\nmirror-by-digest-only = true"), ""},
		{"registry stops being digest-only", swap("mirror-by-digest-only = true\n", ""), "mirror m3.example"},
		{"digest-only mirror added", swap("  location = \"m2.example\"", "  location = \"m2.example\"\n  [[registry.mirror]]\n  location = \"n.example\"\n  pull-from-mirror = \"digest-only\""), ""},
		{"digest-only mirror added in front", swap("  [[registry.mirror]]\n  location = \"m1.example\"", "  [[registry.mirror]]\n  location = \"n.example\"\n  pull-from-mirror = \"digest-only\"\n  [[registry.mirror]]\n  location = \"m1.example\""), ""},
		{"other mirror added", swap("  location = \"m2.example\"", "  location = \"m2.example\"\n  [[registry.mirror]]\n  location = \"n.example\""), "new mirror n.example is not digest-only"},
		{"mirror asked by tag too, as another one", swap("  pull-from-mirror = \"digest-only\"\n", "  pull-from-mirror = \"digest-only\"\n  [[registry.mirror]]\n  location = \"m1.example\"\n  pull-from-mirror = \"tag-only\"\n"), "new mirror m1.example is not digest-only"},
		{"mirror added to a digest-only registry", baseRegistries + "  [[registry.mirror]]\n  location = \"n.example\"\n", ""},
		{"tag-only mirror added to a digest-only registry", baseRegistries + "  [[registry.mirror]]\n  location = \"n.example\"\n  pull-from-mirror = \"tag-only\"\n", "new mirror n.example"},
		{"registry with a digest-only mirror added", baseRegistries + "[[registry]]\nlocation = \"c.example\"\n[[registry.mirror]]\nlocation = \"n.example\"\npull-from-mirror = \"digest-only\"\n", ""},
		{"digest-only registry added", baseRegistries + "[[registry]]\nlocation = \"c.example\"\nmirror-by-digest-only = true\n[[registry.mirror]]\nlocation = \"n.example\"\n", ""},
		{"digest-only registry without mirrors added", baseRegistries + "[[registry]]\nlocation = \"c.example\"\nmirror-by-digest-only = true\n", ""},
		{"other registry added", baseRegistries + "[[registry]]\nlocation = \"c.example\"\n", "new registry c.example is not digest-only"},
		{"registry with another mirror added", baseRegistries + "[[registry]]\nlocation = \"c.example\"\n[[registry.mirror]]\nlocation = \"n.example\"\n", "new registry c.example has the mirror n.example"},
		{"blocked registry added", baseRegistries + "[[registry]]\nlocation = \"c.example\"\nblocked = true\nmirror-by-digest-only = true\n", "new registry c.example is blocked"},
		{"insecure registry added", baseRegistries + "[[registry]]\nlocation = \"c.example\"\ninsecure = true\nmirror-by-digest-only = true\n", "new registry c.example is insecure"},
		{"registry elsewhere added", baseRegistries + "[[registry]]\nprefix = \"c.example\"\nlocation = \"d.example\"\nmirror-by-digest-only = true\n", "new registry c.example is at another location"},
		{"key that no rule is about", swap(`"enforcing"`, `"disabled"`), "short-name-mode changed"},
		{"no TOML", baseRegistries + "SECRET = \n", "its new contents do not parse (line 19, column "},
		{"wrong type", swap("mirror-by-digest-only = true", "mirror-by-digest-only = \"SECRET\""), "its new contents do not parse"},
	} {
		t.Run(c.name, func(t *testing.T) {
			current := &mc.Config{Files: []mc.File{file(registriesPath, baseRegistries)}}
			desired := &mc.Config{Files: []mc.File{file(registriesPath, c.changed)}}
			p := mustMake(t, current, desired, Options{})
			if c.unsafe == "" {
				check(t, "actions", p.Actions, []Action{{ActionReload, "crio.service",
					"file /etc/containers/registries.conf: default policy for file /etc/containers/registries.conf, a change that is safe for running pods"}})
				check(t, "drain", p.Drain, false)
				return
			}
			check(t, "actions", steps(p.Actions), []string{"Drain", "Reload crio.service"})
			check(t, "drain without reboot", p.Drain && !p.Reboot, true)
			if why := p.Actions[0].Because; !strings.Contains(why, c.unsafe) || strings.Contains(why, "SECRET") {
				t.Errorf("because %s, without %q", why, c.unsafe)
			}
		})
	}
}

func TestRegistriesConfThatComesOrGoes(t *testing.T) {
	none := &mc.Config{}
	at := func(contents string) *mc.Config { return &mc.Config{Files: []mc.File{file(registriesPath, contents)}} }
	safe := []string{"Reload crio.service"}
	unsafe := []string{"Drain", "Reload crio.service"}
	digest := "[[registry]]\nlocation = \"c.example\"\nmirror-by-digest-only = true\n"
	check(t, "a safe one added", steps(mustMake(t, none, at(digest), Options{}).Actions), safe)
	check(t, "another one added", steps(mustMake(t, none, at("[[registry]]\nlocation = \"c.example\"\n"), Options{}).Actions), unsafe)
	check(t, "removed", steps(mustMake(t, at(digest), none, Options{}).Actions), unsafe)
	check(t, "mode only, though it does not parse", steps(mustMake(t,
		&mc.Config{Files: []mc.File{{Path: registriesPath, Mode: 0o600, Contents: []byte("=")}}},
		&mc.Config{Files: []mc.File{{Path: registriesPath, Mode: 0o644, Contents: []byte("=")}}}, Options{}).Actions), safe)
	broken := mustMake(t, at("="), at(digest), Options{})
	check(t, "repaired", steps(broken.Actions), unsafe)
	if why := broken.Actions[0].Because; !strings.Contains(why, "its current contents do not parse") {
		t.Errorf("because %s", why)
	}
	link := &mc.Config{Links: []mc.Link{{Path: registriesPath, Target: "/x"}}}
	check(t, "a link", steps(mustMake(t, none, link, Options{}).Actions), unsafe)
}
