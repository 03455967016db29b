// SPDX-License-Identifier: Apache-2.0

package machineconfig

import (
	"bytes"
	"cmp"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"sigs.k8s.io/yaml"
)

// The paths of a ControllerConfig's certificates on a host. The paths are OpenShift's (machine-config-operator,
// pkg/daemon/constants).
const (
	KubeletCAPath    = "/etc/kubernetes/kubelet-ca.crt"
	cloudCAPath      = "/etc/kubernetes/static-pod-resources/configmaps/cloud-config/ca-bundle.pem"
	TrustBundlePath  = "/etc/pki/ca-trust/source/anchors/openshift-config-user-ca-bundle.crt"
	pullSecretPath   = "/etc/mco/internal-registry-pull-secret.json"
	registryCAFolder = "/etc/docker/certs.d"
)

// Bundle is a field of a ControllerConfig that holds certificates.
type Bundle struct {
	// Name is the bundle's name upstream, in status.controllerCertificates. A registry's bundle has the registry's host as
	// its name, with ".." for ":".
	Name string
	// Field is the bundle's place in the ControllerConfig, such as spec.rootCAData.
	Field string
	// Path is where the bundle is delivered on a host, beside the configurations. It is empty for a bundle that is not
	// delivered.
	Path string
	Data []byte
	// Wrong is the reason why the bundle cannot be delivered. It is nil where no such reason is known.
	Wrong error
}

// registryHost matches a name, with or without a port, that can be the name of a folder.
var registryHost = regexp.MustCompile(`^[A-Za-z0-9\[][A-Za-z0-9.:_\[\]-]*$`)

// Bundles returns the bundles of a ControllerConfig in its order, the empty bundles too.
func Bundles(s *mcfgv1.ControllerConfigSpec) []Bundle {
	out := []Bundle{
		{Name: "KubeAPIServerServingCAData", Field: "spec.kubeAPIServerServingCAData", Path: KubeletCAPath,
			Data: s.KubeAPIServerServingCAData},
		{Name: "CloudProviderCAData", Field: "spec.cloudProviderCAData", Path: cloudCAPath, Data: s.CloudProviderCAData},
		{Name: "RootCAData", Field: "spec.rootCAData", Data: s.RootCAData},
		{Name: "AdditionalTrustBundle", Field: "spec.additionalTrustBundle", Path: TrustBundlePath,
			Data: s.AdditionalTrustBundle},
	}
	for _, list := range []struct {
		field   string
		bundles []mcfgv1.ImageRegistryBundle
	}{
		{"spec.imageRegistryBundleData", s.ImageRegistryBundleData},
		{"spec.imageRegistryBundleUserData", s.ImageRegistryBundleUserData},
	} {
		for i, b := range list.bundles {
			bundle := Bundle{Name: b.File, Field: fmt.Sprintf("%s[%d]", list.field, i), Data: b.Data}
			if host := strings.ReplaceAll(b.File, "..", ":"); registryHost.MatchString(host) {
				bundle.Path = path.Join(registryCAFolder, host, "ca.crt")
			} else {
				bundle.Wrong = fmt.Errorf("file: %q is no host of a registry", b.File)
			}
			out = append(out, bundle)
		}
	}
	return out
}

// Certificates reads a bundle. With an error it still returns the certificates that it could read. The error shows
// nothing of the rest.
func (b Bundle) Certificates() (out []*x509.Certificate, err error) {
	data := b.Data
	for n := 1; ; n++ {
		block, rest := pem.Decode(data)
		if block == nil {
			if len(bytes.TrimSpace(data)) > 0 {
				err = fmt.Errorf("%s: after %d certificates there is something that is no PEM", b.Field, len(out))
			}
			return out, err
		}
		data = rest
		if block.Type != "CERTIFICATE" {
			return out, fmt.Errorf("%s: block %d is no certificate", b.Field, n)
		}
		c, wrong := x509.ParseCertificate(block.Bytes)
		if wrong != nil {
			return out, fmt.Errorf("%s: block %d can't be read as a certificate", b.Field, n)
		}
		out = append(out, c)
	}
}

// Delivery is a file that goes to every host beside the configurations.
type Delivery struct {
	Path string `json:"path"`
	Mode uint32 `json:"mode"`
	Data []byte `json:"data"`
}

// Deliveries returns the files that a host should have from a ControllerConfig, given the files delivered before. Three
// files stay as they were when their field is empty now, because nothing else would take their place. These are the CA
// of the API server's clients, the cloud's CA and the pull secret. CAs of registries and the bundle that people add go
// with their entry, as they are no longer trusted. A wrong bundle stays as it was and is reported in problems, by its
// field. The problems show nothing of a bundle's content.
func Deliveries(s *mcfgv1.ControllerConfigSpec, before []Delivery) (out []Delivery, problems []error) {
	had := map[string]Delivery{}
	for _, d := range before {
		had[d.Path] = d
	}
	at := map[string]Delivery{}
	keep := func(name string) {
		if d, is := had[name]; is {
			at[name] = d
		}
	}
	for _, b := range Bundles(s) {
		lasts := b.Path == KubeletCAPath || b.Path == cloudCAPath
		switch wrong := b.check(); {
		case b.Path == "" && b.Wrong == nil: // not delivered
		case wrong != nil:
			problems = append(problems, wrong)
			keep(b.Path)
		case !b.empty():
			at[b.Path] = Delivery{b.Path, 0o644, b.Data} // of two bundles for one registry, the later one is people's own
		case lasts:
			keep(b.Path)
		}
	}
	keep(pullSecretPath)
	if secret := s.InternalRegistryPullSecret; len(bytes.TrimSpace(secret)) > 0 {
		var object map[string]any
		if json.Unmarshal(secret, &object) != nil || object == nil {
			problems = append(problems, errors.New("spec.internalRegistryPullSecret: is no JSON object"))
		} else {
			at[pullSecretPath] = Delivery{pullSecretPath, 0o600, secret}
		}
	}
	return ordered(at), problems
}

// empty reports whether the bundle has no data. Some of the fields are required, and hold an empty line then.
func (b Bundle) empty() bool { return len(bytes.TrimSpace(b.Data)) == 0 }

// check returns the reason why the bundle must not go to a host.
func (b Bundle) check() error {
	if b.Wrong != nil {
		return fmt.Errorf("%s.%w", b.Field, b.Wrong)
	}
	found, err := b.Certificates()
	if err == nil && len(found) == 0 && !b.empty() {
		err = fmt.Errorf("%s: holds no certificate", b.Field)
	}
	if err != nil && strings.HasPrefix(b.Field, "spec.imageRegistryBundle") {
		err = fmt.Errorf("%w (registry %s)", err, b.Name)
	}
	return err
}

// ParseControllerConfig reads one ControllerConfig, YAML or JSON.
func ParseControllerConfig(data []byte) (*mcfgv1.ControllerConfig, error) {
	cc := &mcfgv1.ControllerConfig{}
	if err := yaml.Unmarshal(data, cc); err != nil {
		return nil, fmt.Errorf("reading ControllerConfig: %s", strings.ReplaceAll(err.Error(), "\n", " "))
	}
	if cc.Kind != "ControllerConfig" {
		return nil, fmt.Errorf("reading ControllerConfig: kind: is %q", cc.Kind)
	}
	return cc, nil
}

// Over returns the configuration, in which delivered files replace the configuration's own entries at these paths. The
// result has the same name and digest, and is nil only for a nil configuration. Where nothing was delivered the result
// is the configuration itself.
func (c *Config) Over(delivered []Delivery) *Config {
	if c == nil || len(delivered) == 0 {
		return c
	}
	out := *c
	at := map[string]bool{}
	for _, f := range delivered {
		at[f.Path] = true
	}
	out.Files = slices.DeleteFunc(slices.Clone(c.Files), func(f File) bool { return at[f.Path] })
	out.Links = slices.DeleteFunc(slices.Clone(c.Links), func(l Link) bool { return at[l.Path] })
	for _, f := range delivered {
		out.Files = append(out.Files, File{Path: f.Path, Mode: f.Mode, Contents: f.Data})
	}
	slices.SortFunc(out.Files, func(a, b File) int { return cmp.Compare(a.Path, b.Path) })
	return &out
}
