// SPDX-License-Identifier: Apache-2.0

package registries

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
)

// PolicyPath is the place of the policy on signatures of images, containers-policy.json(5).
const PolicyPath = "/etc/containers/policy.json"

// Requirement is one demand of a policy on an image, such as {"type": "sigstoreSigned", ...}.
type Requirement map[string]any

// The types of requirements that have a meaning here.
const (
	anything = "insecureAcceptAnything"
	reject   = "reject"
)

// The transports of images that come from a registry. Both have the same scopes, as in OpenShift: docker is what
// runtimes and podman pull by, and atomic is an older name of OpenShift's own registry.
const docker, atomic = "docker", "atomic"

// atomicScope matches the scopes that the transport atomic has: HOST[:PORT][/NAMESPACE[/STREAM[:TAG]]]. A file with
// another one can't be read.
var atomicScope = regexp.MustCompile(`^[^/]*(/[^:/]*(/[^:/]*(:[^:/]*)?)?)?$`)

// Policy is a policy.json. A policy has a list of requirements for each scope, all of which an image has to meet. For
// an image the longest scope counts, and no other.
type Policy struct {
	Default    []Requirement                       `json:"default"`
	Transports map[string]map[string][]Requirement `json:"transports,omitempty"`
}

// ParsePolicy reads a policy.json. Without contents the policy is the one that OpenShift's hosts have: any image is
// accepted.
func ParsePolicy(data []byte) (*Policy, error) {
	p := &Policy{}
	if data == nil {
		accept := []Requirement{{"type": anything}}
		p.Default, p.Transports = accept, map[string]map[string][]Requirement{"docker-daemon": {"": accept}}
		return p, nil
	}
	if err := json.Unmarshal(data, p); err != nil {
		return nil, fmt.Errorf("is not a policy: %w", err)
	}
	return p, nil
}

// Text returns the text of the policy.
func (p *Policy) Text() ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(p)
	return b.Bytes(), err
}

// Clone returns a policy that changes by itself.
func (p *Policy) Clone() *Policy {
	out := &Policy{Default: slices.Clone(p.Default), Transports: map[string]map[string][]Requirement{}}
	for name, scopes := range p.Transports {
		out.Transports[name] = map[string][]Requirement{}
		for scope, list := range scopes {
			out.Transports[name][scope] = slices.Clone(list)
		}
	}
	return out
}

// Require adds a requirement to a scope. It stands beside those that the scope has, and an image has to meet all.
func (p *Policy) Require(scope string, r Requirement) {
	p.change(scope, func(list []Requirement) []Requirement {
		list = slices.DeleteFunc(slices.Clone(list), func(is Requirement) bool {
			return is["type"] == anything || reflect.DeepEqual(is, r)
		})
		return append(list, r)
	})
}

// change sets the requirements of a scope of the transports of registries.
func (p *Policy) change(scope string, to func([]Requirement) []Requirement) {
	for _, transport := range []string{docker, atomic} {
		if transport == atomic && !atomicScope.MatchString(scope) {
			continue
		}
		if p.Transports == nil {
			p.Transports = map[string]map[string][]Requirement{}
		}
		if p.Transports[transport] == nil {
			p.Transports[transport] = map[string][]Requirement{}
		}
		p.Transports[transport][scope] = to(p.Transports[transport][scope])
	}
}

// Restrict has the policy reject what comes from a blocked scope, and all that does not come from an allowed one if any
// is allowed. The policy accepts nothing that it did not accept before: a demand of a signature stays, and so does the
// default of the policy for each allowed scope. The error names the first scope about which policy and restriction say
// opposite things.
func (p *Policy) Restrict(allowed, blocked []string) error {
	for _, scope := range p.permitted() {
		if i := slices.IndexFunc(blocked, func(b string) bool { return within(scope, b) }); i >= 0 {
			return fmt.Errorf("permits images of %s, which is within %s: take the scope out of the one or the other", scope,
				blocked[i])
		}
		if len(allowed) > 0 && !WithinAny(scope, allowed) {
			return fmt.Errorf("permits images of %s, which is not within an allowed registry: allow it, or take the scope out",
				scope)
		}
	}
	// A scope that has a demand already, itself or by a scope around it, keeps that demand: an entry of its own would be
	// the one that counts.
	held := slices.DeleteFunc(slices.Collect(maps.Keys(p.Transports[docker])), func(s string) bool { return s == "" })
	was := p.unlisted()
	for _, scope := range allowed {
		if WithinAny(scope, held) {
			continue
		}
		if rejects(was) {
			return fmt.Errorf("rejects images of %s, which is allowed: write the scope into the file, or do not allow it", scope)
		}
		p.change(scope, func([]Requirement) []Requirement { return slices.Clone(was) })
	}
	closed := []Requirement{{"type": reject}}
	if len(allowed) > 0 {
		p.Default = closed
		for _, transport := range []string{docker, atomic} {
			if _, has := p.Transports[transport][""]; has {
				p.Transports[transport][""] = closed
			}
		}
	}
	for _, scope := range blocked {
		p.change(scope, func([]Requirement) []Requirement { return closed })
	}
	return nil
}

// unlisted returns what counts for the images of a registry that has no scope in the policy.
func (p *Policy) unlisted() []Requirement {
	if all, has := p.Transports[docker][""]; has {
		return all
	}
	return p.Default
}

// permitted returns the scopes of registries of which the policy does not reject every image, in order.
func (p *Policy) permitted() []string {
	var out []string
	for _, scope := range slices.Sorted(maps.Keys(p.Transports[docker])) {
		if scope != "" && !rejects(p.Transports[docker][scope]) {
			out = append(out, scope)
		}
	}
	return out
}

func rejects(list []Requirement) bool {
	return slices.ContainsFunc(list, func(r Requirement) bool { return r["type"] == reject })
}

// Demands returns the scope that demands something of the images of a scope, which may be the scope itself, and ""
// where the policy accepts anything. The scope of the policy's default is "the default".
func (p *Policy) Demands(scope string) string {
	of, list := "", p.unlisted()
	for _, s := range slices.Sorted(maps.Keys(p.Transports[docker])) {
		// Of a wildcard and a host that are equally long the host counts, which sorts behind the wildcard.
		if s != "" && within(scope, s) && len(s) >= len(of) {
			of, list = s, p.Transports[docker][s]
		}
	}
	if slices.ContainsFunc(list, func(r Requirement) bool { return r["type"] != anything }) {
		if of == "" {
			return "the default"
		}
		return of
	}
	return ""
}

// WithinAny reports whether a scope is within one of several.
func WithinAny(scope string, of []string) bool {
	return slices.ContainsFunc(of, func(outer string) bool { return within(scope, outer) })
}

// within reports whether every image of a scope is of another scope too. Scopes of a policy are registries, parts of
// registries, wildcards such as *.example.com, and single images by tag or digest.
func within(scope, outer string) bool {
	if scope == outer {
		return true
	}
	if rest, wild := strings.CutPrefix(outer, "*"); wild {
		host, _ := Split(scope)
		host, _, _ = strings.Cut(host, ":") // a wildcard is about hosts, whatever the port
		return strings.HasSuffix(host, rest)
	}
	return covers(outer, Repository(scope)) >= 0
}

// Repository returns a scope without the tag and the digest that a scope of a single image has.
func Repository(scope string) string {
	scope, _, _ = strings.Cut(scope, "@")
	slash, colon := strings.LastIndex(scope, "/"), strings.LastIndex(scope, ":")
	if slash >= 0 && colon > slash {
		scope = scope[:colon]
	}
	return scope
}
