// SPDX-License-Identifier: Apache-2.0

package imagemirror

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	configv1 "github.com/openshift/api/config/v1"

	"github.com/noderefit/noderefit/osimage"
	"github.com/noderefit/noderefit/registries"
)

// imageName is the name of the only Image that counts, as in OpenShift.
const imageName, theImage = "cluster", "Image/cluster"

// settings are the lists of an Image. The note of accepted objects has the same form.
type settings struct {
	Insecure []string `json:"insecure,omitempty"`
	Blocked  []string `json:"blocked,omitempty"`
	Allowed  []string `json:"allowed,omitempty"`
	Search   []string `json:"search,omitempty"`
}

const registrySources = "spec.registrySources."

// settingsOf reads an Image. The other fields are about OpenShift's image registry and image streams.
func settingsOf(o *configv1.Image) *origin {
	out := &origin{object: o, kind: "Image"}
	if o.Name != imageName {
		out.beside = fmt.Errorf("metadata.name: only the Image %s counts", imageName)
		return out
	}
	from := o.Spec.RegistrySources
	s := &settings{Insecure: from.InsecureRegistries, Blocked: from.BlockedRegistries, Allowed: from.AllowedRegistries,
		Search: from.ContainerRuntimeSearchRegistries}
	for _, list := range s.lists() {
		for i, scope := range list.scopes {
			wild := list.field != searchField && wildcard.MatchString(scope)
			if !wild && !location.MatchString(scope) {
				out.err = errors.Join(out.err, fmt.Errorf("%s%s[%d]: %q is neither host[:port][/namespace][/repository] nor *.host",
					registrySources, list.field, i, scope))
			}
		}
	}
	if len(s.Allowed) > 0 && len(s.Blocked) > 0 {
		out.err = errors.Join(out.err, fmt.Errorf("%s%s: excludes %s: what is not allowed is blocked", registrySources,
			allowedField, blockedField))
	}
	if name := o.Spec.AdditionalTrustedCA.Name; name != "" {
		out.beside = fmt.Errorf("spec.additionalTrustedCA: the ConfigMap %s is not read: write its certificates into "+
			"spec.imageRegistryBundleUserData of the ControllerConfig, from which every node gets them", name)
	}
	if !s.none() {
		out.settings = s
	}
	return out
}

// The fields of registrySources.
const (
	insecureField = "insecureRegistries"
	blockedField  = "blockedRegistries"
	allowedField  = "allowedRegistries"
	searchField   = "containerRuntimeSearchRegistries"
)

type scopeList struct {
	field  string
	scopes []string
}

func (s *settings) lists() []scopeList {
	return []scopeList{
		{insecureField, s.Insecure}, {blockedField, s.Blocked}, {allowedField, s.Allowed}, {searchField, s.Search},
	}
}

// none reports whether nothing is asked for.
func (s *settings) none() bool {
	return s == nil || !slices.ContainsFunc(s.lists(), func(l scopeList) bool { return len(l.scopes) > 0 })
}

// closed reports why no image of a scope may be pulled, and returns "" if some may.
func (s *settings) closed(scope string) string {
	switch {
	case s == nil:
	case registries.WithinAny(scope, s.Blocked):
		return "is within " + blockedField
	case len(s.Allowed) > 0 && !registries.WithinAny(scope, s.Allowed):
		return "is not within " + allowedField
	}
	return ""
}

// inexpressible returns an error for each setting that containerd lacks. containerd has settings of whole registries
// alone, and no setting for all other registries.
func (s *settings) inexpressible() error {
	var errs []error
	wrong := func(field string, i int, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s%s[%d]: "+format, append([]any{registrySources, field, i}, args...)...))
	}
	for i, scope := range s.Insecure {
		switch _, below := registries.Split(scope); {
		case strings.HasPrefix(scope, "*"):
			wrong(insecureField, i, "containerd has no wildcards; name each registry")
		case below != "":
			wrong(insecureField, i, "containerd has settings of whole registries only, and not of %s", scope)
		}
	}
	for i, scope := range s.Blocked {
		wrong(blockedField, i, "containerd can block a registry only where a mirror takes its place, and not %s: use an "+
			"ImageDigestMirrorSet with NeverContactSource", scope)
	}
	if len(s.Allowed) > 0 {
		wrong(allowedField, 0, "containerd can't be told from which registries alone it may pull")
	}
	if len(s.Search) > 0 {
		wrong(searchField, 0, "containerd looks up short names in docker.io alone")
	}
	return errors.Join(errs...)
}

// refuses returns an error if the policy of a pool rejects the OS image that the pool's MachineConfigs name: no node
// could get it. An image that is no registry's, or that can't be read, is not judged here.
func (s *settings) refuses(text []byte, image string) error {
	if s == nil || len(s.Allowed)+len(s.Blocked) == 0 || image == "" {
		return nil
	}
	parsed, err := osimage.ParseImage(image)
	if err != nil {
		return nil //nolint:nilerr // the pool reports an image that can't be read
	}
	policy, err := osimage.ParsePolicy(registries.PolicyPath, text)
	if err != nil {
		return err
	}
	if v := policy.Verdict(parsed); v.Requirement == osimage.Reject {
		return fmt.Errorf("%s: %s: the pool's OS image %s would be refused: allow its registry", theImage,
			strings.TrimSuffix(registrySources, "."), parsed)
	}
	return nil
}
