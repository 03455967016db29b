// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/values"
)

// valuesIn reads the sources of values from a Node.
func valuesIn(n *corev1.Node) values.Node {
	out := values.Node{Name: n.Name, Zone: n.Labels[api.Zone], Labels: under(n.Labels), Annotations: under(n.Annotations)}
	for _, a := range n.Status.Addresses {
		out.Addresses = append(out.Addresses, values.Address{Type: string(a.Type), Address: a.Address})
	}
	// An annotation that can't be read is as if there were none: each key that it had is missing, and is named.
	entries, _ := api.Decode[api.Entries](n.Annotations, api.EntriesKey)
	out.Entries, out.Refused = entries.Values, entries.Refused
	return out
}

// under returns the labels or annotations that are values, without their prefix.
func under(all map[string]string) map[string]string {
	var out map[string]string
	for key, value := range all {
		if name, is := strings.CutPrefix(key, api.ValuePrefix); is {
			if out == nil {
				out = map[string]string{}
			}
			out[name] = value
		}
	}
	return out
}

// withValues returns nodes as they are towards a target that names values of nodes. A node that has the target with its
// present values has the target. A node that has it with other values has something else: MadeName. Nodes are shared,
// so the result is a copy where anything changes.
func withValues(pool *mcfgv1.MachineConfigPool, nodes []Node) ([]Node, error) {
	named, err := api.Decode[api.NamedValues](pool.Annotations, api.NamedValuesKey)
	target := pool.Spec.Configuration.Name
	if err != nil || target == "" || named.Config != target || len(named.Values) == 0 {
		return nodes, err
	}
	placeholders, err := parse(named.Values)
	if err != nil {
		return nodes, err
	}
	nodes = slices.Clone(nodes)
	for i := range nodes {
		nodes[i].towards(target, placeholders)
	}
	for i := range nodes {
		nodes[i].blame(target, nodes)
	}
	return nodes, nil
}

// towards sets what the node is to be told with the target, and whether the node has that.
func (n *Node) towards(target string, named []values.Placeholder) {
	given, err := n.sources.Of(named)
	n.Told = api.ToldValues{Config: target}
	if err != nil {
		n.Lacks = err.Error()
	} else {
		n.Told.Values, n.Told.Digest = given, values.Digest(given)
	}
	n.made = api.MadeName(target, n.Told.Digest)
	for _, name := range []*string{&n.Current, &n.Desired, &n.Lift, &n.Drained} {
		switch *name {
		case n.made:
			*name = target
		case target:
			*name = api.MadeName(target, "") // it was told no values
		}
	}
}

// ValuesFor returns what the node is told with a configuration, nil where that names no values. Of what the host has
// already, the node is told the digest alone.
func (n *Node) ValuesFor(config string) *api.ToldValues {
	if config == n.Told.Config && config != "" {
		return &n.Told
	}
	for _, had := range []string{config, n.Current, n.Previous} {
		if digest := api.ValuesOf(had); digest != "" && api.Rendered(had) == api.Rendered(config) {
			return &api.ToldValues{Config: api.Rendered(config), Digest: digest}
		}
	}
	return nil
}

// blame decides about each failure of the target on the node whether the target failed, or the node's values did. The
// values are to blame where the same target was proved: by another node, or by this one with other values.
func (n *Node) blame(target string, nodes []Node) {
	proved := func(o Node) bool {
		return api.Rendered(o.Current) == target && (o.Name == n.Name || o.State == api.Done)
	}
	if len(n.Quarantined) == 0 && n.RolledBackFrom() == "" {
		return
	}
	values := slices.ContainsFunc(nodes, proved)
	n.Quarantined = slices.Clone(n.Quarantined)
	for i := range n.Quarantined {
		q := &n.Quarantined[i]
		if api.Rendered(q.Config) != target || q.Config == target {
			continue
		}
		if !values {
			q.Config = target
			continue
		}
		n.BadValues = n.BadValues || q.Config == n.made
	}
	if from := n.RolledBackFrom(); !values && from != target && api.Rendered(from) == target {
		n.Reason = strings.Replace(n.Reason, from, target, 1)
	}
}

// lacksValues answers for a node that its pool's configuration names values of which it does not have.
func (r *Report) lacksValues(n *nodeReport) *Answer {
	if n.Lacks == "" {
		return nil
	}
	return &Answer{
		Verdict: Misconfigured, Blocking: &Object{Kind: "Node", Name: n.Name},
		Because: fmt.Sprintf("the node is left on %s and serves: %s names values of the node, and %s",
			cmp.Or(n.Current, "what it has"), n.pool.Target, n.Lacks),
		Do: "give the node its values: labels and annotations " + api.ValuePrefix + "NAME, or NodeValues/" + n.Name,
	}
}

// mostMade is how many groups of nodes are listed with their values.
const mostMade = 20

// Makes returns what the pool's nodes would make of a configuration: each group of nodes with the same values in a
// sentence, the nodes that would be held first. named is the list of the values that the configuration names, as JSON;
// empty: it names none.
func (p *Pool) Makes(named string) []string {
	var texts []string
	if named == "" || json.Unmarshal([]byte(named), &texts) != nil {
		return nil
	}
	placeholders, err := parse(texts)
	if err != nil {
		return []string{err.Error()}
	}
	nodes := map[string][]string{}
	var held, gets []string
	for i := range p.Nodes {
		n := &p.Nodes[i]
		given, err := n.sources.Of(placeholders)
		if err != nil {
			held = append(held, fmt.Sprintf("node %s would be left as it is: %s", n.Name, err))
			continue
		}
		words := make([]string, 0, len(given))
		for _, key := range slices.Sorted(maps.Keys(given)) {
			words = append(words, fmt.Sprintf("%s=%q", key, given[key]))
		}
		text := strings.Join(words, ", ")
		if nodes[text] == nil {
			gets = append(gets, text)
		}
		nodes[text] = append(nodes[text], n.Name)
	}
	out := held
	for _, text := range gets {
		out = append(out, fmt.Sprintf("values %s: %s", cmp.Or(text, "of the host alone"), strings.Join(nodes[text], ", ")))
	}
	if more := len(out) - mostMade; more > 0 {
		out = append(out[:mostMade], fmt.Sprintf("%d more groups of nodes have values of their own", more))
	}
	return out
}

func parse(texts []string) ([]values.Placeholder, error) {
	out := make([]values.Placeholder, 0, len(texts))
	for _, text := range texts {
		p, err := values.ParsePlaceholder(text)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}
