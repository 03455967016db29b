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

// Requirement is what a policy demands of an image, by its type in policy.json.
type Requirement string

// The requirements, from the one that gives way to all others to the one that beats them.
const (
	AcceptAnything Requirement = "insecureAcceptAnything"
	SignedBy       Requirement = "signedBy"       // simple signing, by a GPG key
	SigstoreSigned Requirement = "sigstoreSigned" // sigstore, as cosign makes it
	Reject         Requirement = "reject"
)

var requirements = []Requirement{AcceptAnything, SignedBy, SigstoreSigned, Reject}

// Policy is a policy.json, as far as it decides what may be pulled. Keys and identities are left to the tool that
// pulls and verifies, and so are where signatures are found (registries.d) and which mirrors are asked
// (registries.conf): a policy is about the name that the configuration has. A nil Policy, of a host without the file,
// demands nothing.
type Policy struct {
	fallback []Requirement
	// scopes has, for each transport by its name in the file, what each scope demands.
	scopes map[string]map[string][]Requirement
}

// ParsePolicy reads a policy.json. It refuses what the tools of containers refuse as a whole, and an unknown type of
// requirement with it; the fields of known types are not looked at.
func ParsePolicy(data []byte) (*Policy, error) {
	const doing = "parsing " + PolicyPath
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
	p := &Policy{scopes: make(map[string]map[string][]Requirement)}
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

// defaultScope is what applies where no transport has a scope that does.
const defaultScope = "default"

func scopeName(transport, scope string) string {
	return fmt.Sprintf("transports.%s[%q]", transport, scope)
}

// Verdict is what a policy demands of one image.
type Verdict struct {
	// Requirement is the strongest of the scope's requirements, all of which an image must meet.
	Requirement Requirement
	// Scope is where the file says so: default, or transports.docker["quay.io/os"].
	Scope string
}

// signed says whether the image must have a signature.
func (v Verdict) signed() bool { return v.Requirement == SignedBy || v.Requirement == SigstoreSigned }

// Verdict looks up what applies to a container image: the most specific scope of its transport, else the transport's
// default, else the default. It follows no links: a scope on a path is found by the path as the configuration has it.
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

// defaultStore is where containers-storage keeps images unless a reference says otherwise.
const defaultStore = "[overlay@/var/lib/containers/storage]"

// scopes are those under which a policy may have a container image, the most specific one first.
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
		if ostree.ChecksumPattern.MatchString(strings.TrimPrefix(name, "@")) { // an image's ID
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
	return nil // of a docker-archive no scope counts
}

// suffix is what an image has after its name in the eyes of a policy.
func (i Image) suffix() string {
	switch {
	case i.Digest != "":
		return "@" + i.Digest
	case i.Tag != "":
		return ":" + i.Tag
	}
	return ":" + latest
}

// parents are a path and what is left of it as its last parts go.
func parents(name string) []string {
	out := []string{name}
	for at := strings.LastIndex(name, "/"); at >= 0; at = strings.LastIndex(name, "/") {
		name = name[:at]
		out = append(out, name)
	}
	return out
}

// normalStore is [DRIVER@ROOT] of [[DRIVER@]ROOT[+RUNROOT][:OPTIONS]].
func normalStore(store string) string {
	store = strings.Trim(store, "[]")
	store, _, _ = strings.Cut(store, "+")
	store, _, _ = strings.Cut(store, ":")
	if !strings.Contains(store, "@") {
		store = "overlay@" + store
	}
	return "[" + store + "]"
}

// Admit settles how the signatures of an image are verified, before anything of it is pulled. An image that says
// nothing about it gets a Verify by what the policy demands. Refused are, as an *Error of the class Invalid that names
// osImageURL, policy.json and the scope: an image that the policy rejects; one that is to be signed where the policy
// would accept anything; one that is to be unverified where the policy demands a signature. An ostree commit is nothing
// that a policy is about.
//
// The tools refuse every signed reference (ostree-image-signed, --enforce-container-sigpolicy) while the default of the
// policy is insecureAcceptAnything. What they verify is the same either way, because they pull through skopeo, which
// holds each image to the policy: so a demand of such a policy is met by the other form.
func (p *Policy) Admit(image Image) (Image, error) {
	if image.Kind != ContainerImage {
		return image, nil
	}
	refused := func(format string, args ...any) (Image, error) {
		return Image{}, &ostree.Error{Class: ostree.Invalid, Err: fmt.Errorf(format, args...),
			Doing: fmt.Sprintf("holding osImageURL %q to %s", image, PolicyPath)}
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
			"image anyway (%s)", SchemeSigned, defaultScope, AcceptAnything, Reject, SchemeSigned, v.Requirement, v.Scope)
	case image.Verify == VerifyNothing && v.signed():
		return refused("it is to be unverified, and the policy demands %s of it (%s); leave out what is before the "+
			"image's name, or have it %s:", v.Requirement, v.Scope, SchemeSigned)
	case image.Verify == VerifyUnsaid && v.signed() && signable:
		image.Verify = VerifyPolicy
	case image.Verify == VerifyUnsaid:
		image.Verify = VerifyNothing
	}
	return image, nil
}
