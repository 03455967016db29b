// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"bytes"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/pelletier/go-toml/v2"
)

// containerdHosts has a directory for each registry, with its hosts.toml. containerd reads that at each pull.
const containerdHosts = "/etc/containerd/certs.d"

// unsafeHosts says what in a change of a hosts.toml could change where an image comes from that a running pod may pull
// again; "" where nothing could: where there are only more hosts, that are asked for what has a digest.
func unsafeHosts(before, after []byte) string {
	if bytes.Equal(before, after) {
		return ""
	}
	old, err := parseHosts(before)
	if err != nil {
		return "its current contents do not parse (" + err.Error() + ")"
	}
	changed, err := parseHosts(after)
	if err != nil {
		return "its new contents do not parse (" + err.Error() + ")"
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
	h := &hosts{rest: map[string]any{}}
	if err := toml.Unmarshal(data, &h.rest); err != nil {
		return nil, whereNot(err)
	}
	h.hosts, _ = h.rest["host"].(map[string]any)
	if h.hosts != nil {
		delete(h.rest, "host")
	}
	return h, nil
}

// resolves reports whether a host is asked what a tag means, as it is where it says nothing of what it can do.
func resolves(host any) bool {
	table, ok := host.(map[string]any)
	if !ok {
		return true
	}
	list, ok := table["capabilities"].([]any)
	return !ok || slices.Contains(list, any("resolve"))
}
