// SPDX-License-Identifier: Apache-2.0

package osimage

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"sigs.k8s.io/json"

	"github.com/noderefit/noderefit/ostree"
)

// PolicyPath is the host's policy on the signatures of container images, containers-policy.json(5).
const PolicyPath = "/etc/containers/policy.json"

// policyPaths are the places where the tools look for the policy: the first file that is there counts. The second place
// is where newer distributions have the policy that they ship.
var policyPaths = []string{PolicyPath, "/usr/share/containers/policy.json"}

// Requirement is a demand of a policy on an image, by its type in policy.json.
type Requirement string

// The requirements, from the weakest to the strongest.
const (
	AcceptAnything Requirement = "insecureAcceptAnything"
	SignedBy       Requirement = "signedBy"       // simple signing, by a GPG key
	SigstoreSigned Requirement = "sigstoreSigned" // sigstore, as cosign makes it
	Reject         Requirement = "reject"
)

var requirements = []Requirement{AcceptAnything, SignedBy, SigstoreSigned, Reject}

// Policy is the part of a policy.json that decides what may be pulled. Keys and identities are left to the tool that
// pulls and verifies. So are the places of signatures (registries.d) and the mirrors (registries.conf), since a policy
// is about the name in the configuration. A nil Policy, of a host without the file, demands nothing.
type Policy struct {
	path     string
	fallback []Requirement
	// scopes has the requirements of each scope, for each transport by its name in the file.
	scopes map[string]map[string][]Requirement
}

// ParsePolicy reads the policy.json of a path. ParsePolicy refuses what the container tools refuse as a whole, and so
// an unknown type of requirement. ParsePolicy does not check the fields of known types.
func ParsePolicy(path string, data []byte) (*Policy, error) {
	doing := "parsing " + path
	type list []map[string]any
	var document struct {
		Default    list                       `json:"default"`
		Transports map[string]map[string]list `json:"transports"`
	}
	failed := func(err error) (*Policy, error) {
		return nil, &ostree.Error{Class: ostree.NeedsAdmin, Doing: doing, Err: err}
	}
	strict, err := json.UnmarshalStrict(data, &document)
	if err = errors.Join(append(strict, err)...); err != nil {
		return failed(errors.New(strings.ReplaceAll(err.Error(), "\n", "; ")))
	}
	types := func(scope string, from list) ([]Requirement, error) {
		var out []Requirement
		for _, item := range from {
			text, _ := item["type"].(string)
			if !slices.Contains(requirements, Requirement(text)) {
				return nil, fmt.Errorf("%s has a requirement of type %q, which is not one of %q", scope, text, requirements)
			}
			out = append(out, Requirement(text))
		}
		if len(out) == 0 {
			return nil, fmt.Errorf("%s has no requirement", scope)
		}
		return out, nil
	}
	p := &Policy{path: path, scopes: make(map[string]map[string][]Requirement)}
	if p.fallback, err = types(defaultScope, document.Default); err != nil {
		return failed(err)
	}
	for _, transport := range slices.Sorted(maps.Keys(document.Transports)) {
		p.scopes[transport] = make(map[string][]Requirement)
		for _, scope := range slices.Sorted(maps.Keys(document.Transports[transport])) {
			p.scopes[transport][scope], err = types(scopeName(transport, scope), document.Transports[transport][scope])
			if err != nil {
				return failed(err)
			}
		}
	}
	return p, nil
}

// defaultScope is the scope that applies where no scope of a transport does.
const defaultScope = "default"

func scopeName(transport, scope string) string {
	return fmt.Sprintf("transports.%s[%q]", transport, scope)
}

// Verdict is what a policy demands of one image.
type Verdict struct {
	// Requirement is the strongest of the scope's requirements. An image must meet all of them.
	Requirement Requirement
	// Scope is the place in the file: default, or transports.docker["quay.io/os"].
	Scope string
}

// signed reports whether the image must have a signature.
func (v Verdict) signed() bool { return v.Requirement == SignedBy || v.Requirement == SigstoreSigned }

// Verdict returns what applies to a container image: the most specific scope of its transport, else the transport's
// default, else the default. Verdict follows no links: a scope on a path is found by the path in the configuration.
func (p *Policy) Verdict(image Image) Verdict {
	if p == nil {
		return Verdict{AcceptAnything, "no policy"}
	}
	transport := string(image.Transport)
	if image.Transport == Registry {
		transport = "docker"
	}
	for _, scope := range append(image.scopes(), "") {
		if found, ok := p.scopes[transport][scope]; ok {
			return Verdict{strongest(found), scopeName(transport, scope)}
		}
	}
	return Verdict{strongest(p.fallback), defaultScope}
}

func strongest(list []Requirement) Requirement {
	return slices.MaxFunc(list, func(a, b Requirement) int {
		return slices.Index(requirements, a) - slices.Index(requirements, b)
	})
}

// defaultStore is the store of containers-storage that a reference means if it names no store.
const defaultStore = "[overlay@/var/lib/containers/storage]"

// scopes returns the scopes that a policy may have for a container image, the most specific one first.
func (i Image) scopes() []string {
	switch i.Transport {
	case Registry:
		scopes := append([]string{i.expanded() + i.suffix()}, parents(i.expanded())...)
		host, _, _ := strings.Cut(i.registryHost(), ":")
		for _, domain, found := strings.Cut(host, "."); found; _, domain, found = strings.Cut(domain, ".") {
			scopes = append(scopes, "*."+domain)
		}
		return scopes
	case ContainersStorage:
		store, name := defaultStore, i.Name
		if end := strings.Index(name, "]"); end >= 0 {
			store, name = normalStore(name[:end+1]), name[end+1:]
		}
		_, root, _ := strings.Cut(strings.Trim(store, "[]"), "@")
		driverless := "[" + root + "]"
		if ostree.IsChecksum(strings.TrimPrefix(name, "@")) { // an image's ID
			return []string{store + "@" + strings.TrimPrefix(name, "@"), store, driverless}
		}
		full := Image{Name: name, Tag: i.Tag, Digest: i.Digest}.expanded()
		scopes := []string{store + full + i.suffix()}
		for _, parent := range parents(full) {
			scopes = append(scopes, store+parent)
		}
		return append(scopes, store, driverless)
	case OCIDirectory, OCIArchive, PlainDirectory:
		return slices.DeleteFunc(parents(path.Clean(i.Name)), func(s string) bool { return s == "" })
	}
	return nil // no scope applies to a docker-archive
}

// suffix returns what follows an image's name in a policy's scope.
func (i Image) suffix() string {
	switch {
	case i.Digest != "":
		return "@" + i.Digest
	case i.Tag != "":
		return ":" + i.Tag
	}
	return ":" + latest
}

// parents returns a path and its parents, the longest first.
func parents(name string) []string {
	out := []string{name}
	for at := strings.LastIndex(name, "/"); at >= 0; at = strings.LastIndex(name, "/") {
		name = name[:at]
		out = append(out, name)
	}
	return out
}

// normalStore returns [DRIVER@ROOT] for [[DRIVER@]ROOT[+RUNROOT][:OPTIONS]].
func normalStore(store string) string {
	store = strings.Trim(store, "[]")
	store, _, _ = strings.Cut(store, "+")
	store, _, _ = strings.Cut(store, ":")
	if !strings.Contains(store, "@") {
		store = "overlay@" + store
	}
	return "[" + store + "]"
}

// Admit decides how the signatures of an image are verified, before anything of the image is pulled. An image without a
// verification gets one from the policy's requirement. Admit refuses three kinds of images:
//
//   - an image that the policy rejects;
//   - an image that is to be signed, where the policy would accept anything;
//   - an image that is to be unverified, where the policy demands a signature.
//
// The error is an *Error of the class Invalid that names osImageURL, policy.json and the scope. No policy applies to an
// ostree commit.
//
// The tools refuse every signed reference (ostree-image-signed, --enforce-container-sigpolicy) while the policy's
// default is insecureAcceptAnything. They verify the same either way, because they pull through skopeo, which checks
// each image against the policy. So for such a policy, the other form of the reference meets the demand.
func (p *Policy) Admit(image Image) (Image, error) {
	if image.Kind != ContainerImage {
		return image, nil
	}
	path := PolicyPath
	if p != nil {
		path = p.path
	}
	refused := func(format string, args ...any) (Image, error) {
		return Image{}, &ostree.Error{Class: ostree.Invalid, Err: fmt.Errorf(format, args...),
			Doing: fmt.Sprintf("holding osImageURL %q to %s", image, path)}
	}
	v := p.Verdict(image)
	signable := p != nil && !slices.Equal(p.fallback, []Requirement{AcceptAnything})
	switch {
	case v.Requirement == Reject:
		return refused("%s rejects it", v.Scope)
	case image.Verify == VerifyPolicy && !v.signed():
		return refused("it is to be signed, and the policy accepts anything (%s); have the policy demand signedBy or "+
			"sigstoreSigned of it", v.Scope)
	case image.Verify == VerifyPolicy && !signable:
		return refused("the tools refuse %s: while %q is %s; make it %s, or leave %s: out: the policy demands %s of the "+
			"image anyway (%s)", schemeSigned, defaultScope, AcceptAnything, Reject, schemeSigned, v.Requirement, v.Scope)
	case image.Verify == VerifyNothing && v.signed():
		return refused("it is to be unverified, and the policy demands %s of it (%s); leave out what is before the "+
			"image's name, or have it %s:", v.Requirement, v.Scope, schemeSigned)
	case image.Verify == VerifyUnsaid && v.signed() && signable:
		image.Verify = VerifyPolicy
	case image.Verify == VerifyUnsaid:
		image.Verify = VerifyNothing
	}
	return image, nil
}
