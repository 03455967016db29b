// SPDX-License-Identifier: Apache-2.0

package values

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
)

// Node is what the cluster knows of a node that has values. Labels and Annotations are without the prefix of their
// keys.
type Node struct {
	Name, Zone          string
	Addresses           []Address
	Labels, Annotations map[string]string
	// Entries are those of the object NodeValues of the node. Refused is why they are not in force; empty: they are.
	Entries map[string]string
	Refused string
}

// Address is an address of a node, with the cluster's type: InternalIP, Hostname.
type Address struct{ Type, Address string }

// Of returns the values of a node for placeholders, without facts of its host. The error is a MissingError or an
// InvalidError, or says why the entries are not in force: the node has to be left as it is.
func (n *Node) Of(named []Placeholder) (map[string]string, error) {
	out := map[string]string{}
	var missing []string
	var invalid error
	for _, p := range named {
		if strings.HasPrefix(p.Key, hostSource) {
			continue
		}
		if strings.HasPrefix(p.Key, entrySource) && n.Refused != "" {
			return nil, errors.New(n.Refused)
		}
		value, is := n.value(p.Key)
		if !is {
			missing = append(missing, p.Key)
			continue
		}
		invalid = errors.Join(invalid, p.check(value))
		out[p.Key] = value
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		return nil, &MissingError{slices.Compact(missing)}
	}
	if invalid != nil {
		return nil, invalid
	}
	return out, nil
}

func (n *Node) value(key string) (string, bool) {
	source, name, _ := strings.Cut(key, "/")
	value, is := "", false
	switch source {
	case "name":
		value = n.Name
	case "zone":
		value = n.Zone
	case "labels":
		value, is = n.Labels[name]
	case "annotations":
		value, is = n.Annotations[name]
	case "values":
		value, is = n.Entries[name]
	case "addresses":
		value = n.address(name)
	}
	return value, is || value != ""
}

// address returns the first address of a type. TYPE-4 and TYPE-6 are those of one version of IP.
func (n *Node) address(kind string) string {
	kind, version, _ := strings.Cut(kind, "-")
	for _, a := range n.Addresses {
		ip, err := netip.ParseAddr(a.Address)
		fits := version == "" || err == nil && (version == "4" && ip.Is4() || version == "6" && ip.Is6())
		if a.Type == kind && fits {
			return a.Address
		}
	}
	return ""
}
