// SPDX-License-Identifier: Apache-2.0

package imagemirror

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	configv1 "github.com/openshift/api/config/v1"

	"github.com/noderefit/noderefit/controller/source"
)

// certsDir is where containerd looks up a registry's hosts, if its config_path says so.
const certsDir = "/etc/containerd/certs.d/"

// The one registry whose address is not its name.
const dockerHub, dockerHubHost = "docker.io", "registry-1.docker.io"

// inexpressible says why containerd can't do what a rule asks for: it knows mirrors of whole registries alone. A mirror
// of a part of one can be asked for everything by digest, since that is the same everywhere; not for a tag.
func inexpressible(r rule, all []registry) error {
	host, path := split(r.Source)
	if strings.HasPrefix(host, "*") {
		return fmt.Errorf("%s.source: containerd has no wildcards; name each registry", r.field)
	}
	if r.Tags && path != "" && len(r.Mirrors) > 0 {
		return fmt.Errorf("%s.source: containerd has mirrors of whole registries alone, and one for %s would answer for "+
			"the tags of all of %s", r.field, r.Source, host)
	}
	if r.Policy == configv1.NeverContactSource && path != "" {
		return fmt.Errorf("%s.mirrorSourcePolicy: containerd can keep from whole registries alone, not from %s",
			r.field, r.Source)
	}
	if r.Policy == configv1.AllowContactingSource && path != "" && never(all, host) {
		return fmt.Errorf("%s.mirrorSourcePolicy: containerd can keep from whole registries alone, not from %s but for %s",
			r.field, host, r.Source)
	}
	for i, m := range r.Mirrors {
		if _, ok := under(m, path); !ok {
			return fmt.Errorf("%s.mirrors[%d]: containerd keeps the path of an image, so that a mirror of %s has to end in /%s",
				r.field, i, r.Source, path)
		}
	}
	return nil
}

// under takes a mirror of a source's path to its host and what it has before that path.
func under(location, path string) (root string, ok bool) {
	if path == "" {
		return location, true
	}
	root, ok = strings.CutSuffix(location, "/"+path)
	return root, ok
}

// endpoint is a mirror of a registry.
type endpoint struct {
	url      string
	override bool // the URL has a path
	tags     bool
	insecure bool
}

// hostFiles are the files for containerd, one for each registry that has mirrors.
func hostFiles(all []registry, insecure func(location string) bool) []source.File {
	lists, known, never := map[string][][]string{}, map[string]map[string]endpoint{}, map[string]bool{}
	for _, r := range all {
		host, path := split(r.source)
		never[host] = never[host] || r.blocked && path == ""
		var urls []string
		for _, m := range r.mirrors {
			root, ok := under(m.location, path)
			if !ok {
				continue // which is an error of the object that asks for it
			}
			at, prefix := split(root)
			if at == dockerHub {
				at = dockerHubHost
			}
			e := endpoint{url: "https://" + at, tags: m.tags, insecure: insecure(m.location)}
			if prefix != "" {
				e.url, e.override = e.url+"/v2/"+prefix, true
			}
			if known[host] == nil {
				known[host] = map[string]endpoint{}
			}
			had := known[host][e.url]
			e.tags, e.insecure = e.tags || had.tags, e.insecure || had.insecure
			known[host][e.url] = e
			urls = append(urls, e.url)
		}
		lists[host] = append(lists[host], urls)
	}
	var out []source.File
	for _, host := range slices.Sorted(maps.Keys(known)) {
		var endpoints []endpoint
		for _, url := range order(lists[host]) {
			endpoints = append(endpoints, known[host][url])
		}
		out = append(out, source.File{Path: certsDir + host + "/hosts.toml", Contents: hostsToml(endpoints, never[host])})
	}
	return out
}

// hostsToml writes a file by hand, since the order of its tables is the one in which they are asked. Where the registry
// itself is never to be asked, the last mirror stands in its place.
func hostsToml(endpoints []endpoint, never bool) []byte {
	var b strings.Builder
	say := func(e endpoint, indent string) {
		capabilities := `"pull"`
		if e.tags {
			capabilities += `, "resolve"`
		}
		fmt.Fprintf(&b, "%scapabilities = [%s]\n", indent, capabilities)
		if e.override {
			fmt.Fprintf(&b, "%soverride_path = true\n", indent)
		}
		if e.insecure {
			fmt.Fprintf(&b, "%sskip_verify = true\n", indent)
		}
	}
	if never {
		last := len(endpoints) - 1
		fmt.Fprintf(&b, "server = %q\n", endpoints[last].url)
		say(endpoints[last], "")
		endpoints = endpoints[:last]
	}
	for _, e := range endpoints {
		fmt.Fprintf(&b, "\n[host.%q]\n", e.url)
		say(e, "  ")
	}
	return []byte(strings.TrimLeft(b.String(), "\n"))
}
