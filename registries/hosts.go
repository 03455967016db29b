// SPDX-License-Identifier: Apache-2.0

package registries

import (
	"bytes"
	"fmt"
	"maps"
	"path"
	"reflect"
	"slices"
	"strings"
)

// HostsDir has a directory with a hosts.toml for each registry. containerd reads the file at each pull if its
// config_path names HostsDir.
const HostsDir = "/etc/containerd/certs.d"

// Docker Hub is the only registry whose address differs from its name.
const dockerHub, dockerHubHost = "docker.io", "registry-1.docker.io"

// Under returns the location of a mirror without the path of its source, if the mirror ends in that path.
func Under(location, path string) (root string, ok bool) {
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

// File is a hosts.toml to write.
type File struct {
	Path     string
	Contents []byte
}

// Hosts returns the files for containerd, one for each registry that has mirrors or is in open. insecure reports
// whether a location may be reached without TLS, or with TLS that can't be verified. The registries in open are
// themselves reached in that way.
func Hosts(sources []Source, insecure func(location string) bool, open []string) []File {
	lists, known, never := map[string][][]string{}, map[string]map[string]endpoint{}, map[string]bool{}
	for _, r := range sources {
		host, below := Split(r.Scope)
		never[host] = never[host] || r.Blocked && below == ""
		var urls []string
		for _, m := range r.Mirrors {
			root, ok := Under(m.Location, below)
			if !ok {
				continue // the object that asks for this mirror reports the error
			}
			at, prefix := Split(root)
			if at == dockerHub {
				at = dockerHubHost
			}
			e := endpoint{url: "https://" + at, tags: m.Tags, insecure: insecure(m.Location)}
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
	for _, host := range open {
		if known[host] == nil {
			known[host] = map[string]endpoint{}
		}
	}
	var out []File
	for _, host := range slices.Sorted(maps.Keys(known)) {
		var endpoints []endpoint
		for _, url := range InOrder(lists[host]) {
			endpoints = append(endpoints, known[host][url])
		}
		if slices.Contains(open, host) && !never[host] {
			endpoints = append(endpoints, endpoint{url: "https://" + host, tags: true, insecure: true},
				endpoint{url: "http://" + host, tags: true})
		}
		out = append(out, File{Path: path.Join(HostsDir, host, "hosts.toml"), Contents: hostsToml(endpoints, never[host])})
	}
	return out
}

// hostsToml writes a file by hand, because containerd asks the hosts in the order of the tables. Where the registry
// itself must not be asked, the last mirror takes its place.
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

// UnsafeHosts returns the part of a change of a hosts.toml that could change the source of an image which a running pod
// may pull again. It returns "" where the change only adds hosts that are asked for images by digest.
func UnsafeHosts(before, after []byte) string {
	if bytes.Equal(before, after) {
		return ""
	}
	old, changed, wrong := both(before, after, parseHosts)
	if wrong != "" {
		return wrong
	}
	for _, key := range slices.Sorted(maps.Keys(union(old.rest, changed.rest))) {
		if !reflect.DeepEqual(old.rest[key], changed.rest[key]) {
			return key + " changed"
		}
	}
	for _, name := range slices.Sorted(maps.Keys(old.hosts)) {
		if is, ok := changed.hosts[name]; !ok {
			return fmt.Sprintf("host %s was removed", name)
		} else if !reflect.DeepEqual(old.hosts[name], is) {
			return fmt.Sprintf("host %s changed", name)
		}
	}
	resolving := 0
	for _, name := range slices.Sorted(maps.Keys(changed.hosts)) {
		if !resolves(changed.hosts[name]) {
			continue
		}
		if _, ok := old.hosts[name]; !ok {
			return fmt.Sprintf("new host %s resolves tags", name)
		}
		resolving++
	}
	if resolving > 1 {
		return "several hosts resolve tags, and their order may have changed"
	}
	return ""
}

type hosts struct{ hosts, rest map[string]any }

func parseHosts(data []byte) (*hosts, error) {
	rest, err := parseTOML(data)
	if err != nil {
		return nil, err
	}
	h := &hosts{rest: rest}
	h.hosts, _ = rest["host"].(map[string]any)
	if h.hosts != nil {
		delete(h.rest, "host")
	}
	return h, nil
}

// resolves reports whether a host is asked which image a tag names. A host without a list of capabilities is asked too.
func resolves(host any) bool {
	table, ok := host.(map[string]any)
	if !ok {
		return true
	}
	list, ok := table["capabilities"].([]any)
	return !ok || slices.Contains(list, any("resolve"))
}
