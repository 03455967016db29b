// SPDX-License-Identifier: Apache-2.0

package machineconfig

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"

	"github.com/coreos/go-semver/semver"
)

// referring returns a configuration with one file whose contents are that JSON object.
func referring(t *testing.T, path, contents string) (*Config, error) {
	t.Helper()
	return Parse(withConfig("3.4.0", files(`{"path":"`+path+`","contents":`+contents+`}`)))
}

func TestContentsAtAnotherPlaceNeedAHash(t *testing.T) {
	sum := strings.Repeat("A", 64)
	digest := "sha256:" + strings.Repeat("a", 64)
	hash := `"verification":{"hash":"sha256-` + sum + `"}`
	for _, c := range []struct {
		name, path, contents string
		says                 string // "" where it is taken
	}{
		{"a URL", "/opt/a", `{"source":"https://files.example/a",` + hash + `}`, ""},
		{"a compressed one", "/opt/a", `{"source":"https://files.example/a","compression":"gzip",` + hash + `}`, ""},
		{"an image", "/opt/a", `{"source":"oci://registry.example:5000/tools/a@` + digest + `"}`, ""},
		{"an image with a hash", "/opt/a", `{"source":"oci://registry.example/a@` + digest + `",` + hash + `}`, ""},
		{"no hash", "/opt/a", `{"source":"https://files.example/a"}`, "contents.source (/opt/a): contents must be in the document itself, or have a verification.hash"},
		{"half a hash", "/opt/a", `{"source":"https://files.example/a","verification":{"hash":"sha256-aa"}}`, "contents.verification.hash"},
		{"an unknown hash", "/opt/a", `{"source":"https://files.example/a","verification":{"hash":"md5-aa"}}`, "contents.verification.hash"},
		{"no TLS", "/opt/a", `{"source":"http://files.example/a",` + hash + `}`, `not at "http:"`},
		{"another scheme", "/opt/a", `{"source":"s3://files/a",` + hash + `}`, `not at "s3:"`},
		{"a tag", "/opt/a", `{"source":"oci://registry.example/a:latest"}`, "oci://REGISTRY/REPOSITORY@sha256:DIGEST"},
		{"a password", "/opt/a", `{"source":"https://joe:x@files.example/a",` + hash + `}`, "credentials in a URL"},
		{"a signed URL", "/opt/a", `{"source":"https://files.example/a?X-Signature=x",` + hash + `}`, "credentials in a URL"},
		{"headers", "/opt/a", `{"source":"https://files.example/a","httpHeaders":[{"name":"A","value":"b"}],` + hash + `}`, "contents.httpHeaders"},
		{"a unit", "/etc/systemd/system/a.service", `{"source":"https://files.example/a",` + hash + `}`, "are judged before"},
		{"registries.conf", "/etc/containers/registries.conf", `{"source":"https://files.example/a",` + hash + `}`, "are judged before"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg, err := referring(t, c.path, c.contents)
			if c.says != "" {
				if err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "spec.config.storage.files[0]") {
					t.Fatalf("%q is not in: %v", c.says, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if f := cfg.Files[0]; f.Reference == nil || f.NoContents || f.Contents != nil {
				t.Errorf("read as %+v", f)
			}
		})
	}
}

func TestAReferenceIsPartOfTheName(t *testing.T) {
	data := []byte("hello")
	hash := fmt.Sprintf("sha256-%x", sha256.Sum256(data))
	parse := func(contents string) *Config {
		c, err := referring(t, "/opt/a", contents)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	at := func(place, hash string) *Config {
		return parse(`{"source":"https://` + place + `","verification":{"hash":"` + hash + `"}}`)
	}
	here, there, upper := at("a.example/f", hash), at("b.example/f", hash), at("a.example/f", "sha256-"+strings.ToUpper(hash[7:]))
	inline := parse(`{"source":"data:,hello"}`)
	other := at("a.example/f", "sha256-"+strings.Repeat("0", 64))
	if here.Digest == there.Digest || here.Digest == inline.Digest || here.Digest == other.Digest {
		t.Error("another reference has the same digest: a corrected one would reach no node")
	}
	if here.Digest != upper.Digest {
		t.Error("the spelling of the hash matters")
	}
	for _, c := range []struct {
		name string
		a, b *Config
		same bool
	}{
		{"two places", here, there, true}, {"two hashes", here, other, false},
		{"the bytes in the document", here, inline, true}, {"other bytes in the document", inline, other, false},
	} {
		if got := SameContents(&c.a.Files[0], &c.b.Files[0]); got != c.same {
			t.Errorf("%s: same contents: %t", c.name, got)
		}
		if got := SameContents(&c.b.Files[0], &c.a.Files[0]); got != c.same {
			t.Errorf("%s, the other way: same contents: %t", c.name, got)
		}
	}
}

func TestAReferenceSurvivesRendering(t *testing.T) {
	doc := withConfig("3.4.0", files(`{"path":"/opt/a","contents":{"source":"oci://registry.example/a@sha256:`+strings.Repeat("a", 64)+`"}}`))
	doc.Labels = map[string]string{"machineconfiguration.openshift.io/role": "worker"}
	first, err := Parse(doc)
	if err != nil {
		t.Fatal(err)
	}
	// A part that not all versions have in common takes another way through the library.
	rare := withConfig("3.4.0", files(`{"path":"/opt/a","mode":420,"contents":{"source":"oci://registry.example/a@sha256:`+
		strings.Repeat("a", 64)+`"}}`)+`,"kernelArguments":{"shouldExist":["quiet"]}`)
	second, err := Parse(rare)
	if err != nil || *first.Files[0].Reference != *second.Files[0].Reference {
		t.Errorf("read as %+v: %v", second, err)
	}
	merged := mustMerge(t, &Document{Object: doc}, &Document{Object: withConfig("3.4.0", files(`{"path":"/opt/b"}`))})
	again, err := Parse(merged.Object)
	if err != nil || *again.Files[0].Reference != *first.Files[0].Reference || again.Digest != merged.Digest {
		t.Errorf("rendered as %+v: %v", again, err)
	}
}

func TestIgnitionGetsNoFileThatItCantFetch(t *testing.T) {
	hash := strings.Repeat("a", 64)
	mc := withConfig("3.4.0", files(`{"path":"/opt/a","contents":{"source":"oci://registry.example/a@sha256:`+hash+`"}},
		{"path":"/opt/b","contents":{"source":"https://files.example/b","verification":{"hash":"sha256-`+hash+`"}}}`))
	s, err := Serve(mc)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := s.Document(Extra{}, *semver.New("3.4.0"), false)
	if err != nil || strings.Contains(string(raw), "/opt/a") || !strings.Contains(string(raw), "https://files.example/b") {
		t.Errorf("%s %v", raw, err)
	}
}
