// SPDX-License-Identifier: Apache-2.0

package imagemirror

import (
	"bytes"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"

	"github.com/noderefit/noderefit/registries"
)

// hostsFile is containerd's hosts.toml, by its docs/hosts.md. What stands at the top is about the server.
type hostsFile struct {
	Server string `toml:"server"`
	hostFields
	Host map[string]hostFields `toml:"host"`
}

type hostFields struct {
	Capabilities []string `toml:"capabilities"`
	OverridePath bool     `toml:"override_path"`
	SkipVerify   bool     `toml:"skip_verify"`
}

// registriesFile is containers-registries.conf(5), version 2.
type registriesFile struct {
	UnqualifiedSearchRegistries []string `toml:"unqualified-search-registries"`
	ShortNameMode               string   `toml:"short-name-mode"`
	Registry                    []struct {
		Prefix             string `toml:"prefix"`
		Location           string `toml:"location"`
		Insecure           bool   `toml:"insecure"`
		Blocked            bool   `toml:"blocked"`
		MirrorByDigestOnly bool   `toml:"mirror-by-digest-only"`
		Mirror             []struct {
			Location       string `toml:"location"`
			Insecure       bool   `toml:"insecure"`
			PullFromMirror string `toml:"pull-from-mirror"`
		} `toml:"mirror"`
	} `toml:"registry"`
}

// asDocumented decodes a file by the tables that its reader knows.
func asDocumented(t *testing.T, path string, contents []byte) {
	t.Helper()
	var into any = &registriesFile{}
	if strings.HasSuffix(path, "/hosts.toml") {
		into = &hostsFile{}
	}
	if err := toml.NewDecoder(bytes.NewReader(contents)).DisallowUnknownFields().Decode(into); err != nil {
		t.Errorf("%s: %v\n%s", path, err, contents)
	}
}

func TestHostsAreWrittenInTheTablesThatContainerdReads(t *testing.T) {
	for _, never := range []bool{false, true} {
		files := registries.Hosts([]registries.Source{{Scope: "q.io", Blocked: never, Mirrors: []registries.Mirror{
			{Location: "a.example/a", Tags: true}, {Location: "b.example"}, {Location: "c.example"},
		}}}, func(location string) bool { return location == "b.example" }, nil)
		if len(files) != 1 || files[0].Path != "/etc/containerd/certs.d/q.io/hosts.toml" {
			t.Fatalf("got %v", files)
		}
		asDocumented(t, files[0].Path, files[0].Contents)
	}
}
