// SPDX-License-Identifier: Apache-2.0

package template

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"text/template"

	configv1 "github.com/openshift/api/config/v1"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/machineconfig"
)

// values is what templates see, under upstream's names. Of the ControllerConfig it has what is neither a secret nor
// renewed automatically. It has no certificates and no pull secrets. In a MachineConfig everybody could read these,
// they would wait while a pool is paused, and each renewal would be a rollout.
type values struct {
	// Role is the folder that is rendered, such as worker.
	Role string
	// Values are the values of the set, each from the ControllerConfig, or else from the set.
	Values map[string]string
	// Platform is the name of a platform's folders, "none" without a platform.
	Platform string

	ClusterDNSIP                   string
	CloudProviderConfig            string
	Images                         map[string]string
	BaseOSContainerImage           string
	BaseOSExtensionsContainerImage string
	ReleaseImage                   string
	Proxy                          *configv1.ProxyStatus
	Infra                          *configv1.Infrastructure
	DNS                            *configv1.DNS
	IPFamilies                     mcfgv1.IPFamiliesType
	NetworkType                    string
	Network                        *mcfgv1.NetworkInfo
}

const (
	// shared is the folder whose content the first MachineConfig of every role gets too.
	shared = "common"
	// valuesFile declares the values that a set knows.
	valuesFile = "values.yaml"
	base       = "_base"
)

// onPremises are the platforms that share a folder upstream.
var onPremises = []string{"baremetal", "kubevirt", "nutanix", "openstack", "ovirt", "vsphere"}

// value is a value that a set declares.
type value struct {
	About   string   `json:"about"`
	Default string   `json:"default"`
	OneOf   []string `json:"oneOf,omitempty"`
}

// Generate renders a set of templates: <role>/<name>/<layer>/<kind>/<file>, as upstream has them. Of files with the
// same name the one in the latest layer counts. A file that renders to nothing removes those of earlier layers. The
// MachineConfigs are sorted by name. Errors name file and line, and show nothing of what was rendered.
func Generate(set fs.FS, cc *mcfgv1.ControllerConfig) ([]*mcfgv1.MachineConfig, error) {
	data, err := dataOf(set, cc)
	if err != nil {
		return nil, err
	}
	roles, err := folders(set, ".")
	if err != nil {
		return nil, err
	}
	layers := layersOf(data)
	var out []*mcfgv1.MachineConfig
	var wrong []error
	first := map[string]string{}
	for _, role := range roles {
		if role == shared {
			continue
		}
		names, err := folders(set, role)
		if err != nil {
			return nil, err
		}
		data.Role = role
		for i, name := range names {
			if other, twice := first[name]; twice {
				wrong = append(wrong, fmt.Errorf("%s/%s: there is %s/%s, and MachineConfigs have one name each", role, name,
					other, name))
				continue
			}
			first[name] = role
			from := []string{path.Join(role, name)}
			if i == 0 {
				from = []string{shared, from[0]}
			}
			mc, err := generate(set, role, name, from, layers, data)
			if err != nil {
				wrong = append(wrong, err)
				continue
			}
			out = append(out, mc)
		}
	}
	if len(wrong) > 0 {
		return nil, errors.Join(wrong...)
	}
	if len(out) == 0 {
		return nil, errors.New("the set has no template, such as <role>/<name>/_base/files/<file>.yaml")
	}
	slices.SortFunc(out, func(a, b *mcfgv1.MachineConfig) int { return cmp.Compare(a.Name, b.Name) })
	return out, nil
}

// dataOf returns what templates see of a ControllerConfig. A value that the set does not declare is an error, since it
// is misspelt.
func dataOf(set fs.FS, cc *mcfgv1.ControllerConfig) (values, error) {
	s := &cc.Spec
	d := values{
		Platform: "none", Values: map[string]string{}, ClusterDNSIP: s.ClusterDNSIP,
		CloudProviderConfig: s.CloudProviderConfig, Images: s.Images, BaseOSContainerImage: s.BaseOSContainerImage,
		BaseOSExtensionsContainerImage: s.BaseOSExtensionsContainerImage, ReleaseImage: s.ReleaseImage, Proxy: s.Proxy,
		Infra: s.Infra, DNS: s.DNS, IPFamilies: s.IPFamilies, NetworkType: s.NetworkType, Network: s.Network,
	}
	if s.Platform != "" {
		d.Platform = strings.ToLower(s.Platform)
	}
	if s.Infra != nil && s.Infra.Status.PlatformStatus != nil && s.Infra.Status.PlatformStatus.Type != "" {
		d.Platform = strings.ToLower(string(s.Infra.Status.PlatformStatus.Type))
	}
	if strings.HasPrefix(d.Platform, "_") || len(validation.IsDNS1123Label(d.Platform)) > 0 {
		return d, fmt.Errorf("spec.platform: %q can't be the name of a folder", d.Platform)
	}
	known := map[string]value{}
	text, err := fs.ReadFile(set, valuesFile)
	if err == nil {
		err = yaml.UnmarshalStrict(text, &known)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return d, fmt.Errorf("%s: %w", valuesFile, err)
	}
	for name, v := range known {
		d.Values[name] = v.Default
	}
	for _, key := range slices.Sorted(maps.Keys(cc.Annotations)) {
		name, ours := strings.CutPrefix(key, api.TemplateValue)
		if !ours {
			continue
		}
		v, ok := known[name]
		if !ok {
			return d, fmt.Errorf("annotation %s: the set knows no such value; it knows %s", key, list(known))
		}
		is := cc.Annotations[key]
		if len(v.OneOf) > 0 && !slices.Contains(v.OneOf, is) {
			return d, fmt.Errorf("annotation %s: has to be one of %s", key, strings.Join(v.OneOf, ", "))
		}
		d.Values[name] = is
	}
	return d, nil
}

func list[V any](of map[string]V) string {
	return cmp.Or(strings.Join(slices.Sorted(maps.Keys(of)), ", "), "none")
}

// layersOf returns the layers of a MachineConfig that count, in upstream's order. A later layer replaces an earlier
// one.
func layersOf(d values) []string {
	out := []string{base}
	if slices.Contains(onPremises, d.Platform) {
		out = append(out, "on-prem")
	}
	out = append(out, d.Platform)
	if d.Infra != nil && d.Infra.Status.ControlPlaneTopology == configv1.SingleReplicaTopologyMode {
		out = append(out, "sno")
	}
	return out
}

// folders returns the names of the folders in a folder. folders follows links: a mounted ConfigMap is made of links
// that lead into hidden folders.
func folders(set fs.FS, in string) ([]string, error) {
	return entries(set, in, true)
}

func entries(set fs.FS, in string, dirs bool) ([]string, error) {
	list, err := fs.ReadDir(set, in)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading templates: %w", err)
	}
	var out []string
	for _, e := range list {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		info, err := fs.Stat(set, path.Join(in, e.Name()))
		if err != nil {
			return nil, fmt.Errorf("reading templates: %w", err)
		}
		if info.IsDir() == dirs {
			out = append(out, e.Name())
		}
	}
	return out, nil
}

// generate renders one MachineConfig.
func generate(set fs.FS, role, name string, from, layers []string, data values) (*mcfgv1.MachineConfig, error) {
	if why := validation.IsDNS1123Subdomain(name); len(why) > 0 {
		return nil, fmt.Errorf("%s/%s: is no name for a MachineConfig: %s", role, name, why[0])
	}
	// rendered is keyed by the kind of the fragment, then by the file's name.
	rendered := map[string]map[string]fragment{}
	for _, k := range kinds {
		rendered[k.name] = map[string]fragment{}
	}
	var wrong []error
	for _, folder := range from {
		// The shared files come before those of a single MachineConfig, in any layer.
		for _, layer := range layers {
			for _, k := range kinds {
				in := path.Join(folder, layer, k.name)
				names, err := entries(set, in, false)
				if err != nil {
					return nil, err
				}
				for _, file := range names {
					text, err := execute(set, path.Join(in, file), data)
					switch {
					case err != nil:
						wrong = append(wrong, err)
					case blank(text):
						delete(rendered[k.name], file)
					default:
						rendered[k.name][file] = fragment{path.Join(in, file), text}
					}
				}
			}
		}
	}
	if len(wrong) > 0 {
		return nil, errors.Join(wrong...)
	}
	mc := &mcfgv1.MachineConfig{
		TypeMeta:   metav1.TypeMeta{APIVersion: mcfgv1.GroupVersion.String(), Kind: "MachineConfig"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{api.Role: role}},
	}
	sum := ignition{}
	for _, k := range kinds {
		for _, file := range slices.Sorted(maps.Keys(rendered[k.name])) {
			if err := k.add(rendered[k.name][file], &sum, mc); err != nil {
				wrong = append(wrong, err)
			}
		}
	}
	if len(wrong) > 0 {
		return nil, errors.Join(wrong...)
	}
	if sum.Ignition.Version != "" {
		raw, err := json.Marshal(sum)
		if err != nil {
			return nil, fmt.Errorf("writing MachineConfig/%s: %w", name, err)
		}
		mc.Spec.Config.Raw = raw
	}
	// Each fragment is valid by itself. Parse checks all of them together, for example for one path in two files.
	if _, err := machineconfig.Parse(mc); err != nil {
		return nil, fmt.Errorf("%s/%s: %w", role, name, err)
	}
	return mc, nil
}

// execute renders a template.
func execute(set fs.FS, at string, data values) ([]byte, error) {
	text, err := fs.ReadFile(set, at)
	if err != nil {
		return nil, fmt.Errorf("reading templates: %w", err)
	}
	t, err := template.New(at).Option("missingkey=error").Funcs(functions).Parse(string(text))
	if err != nil {
		return nil, named(err)
	}
	var out bytes.Buffer
	if err := t.Execute(&out, data); err != nil {
		// The text of an error can quote a value, as after a range over a value that is no list.
		if at, _, found := strings.Cut(named(err).Error(), "range can't iterate over"); found {
			return nil, errors.New(at + "range can't iterate over this: it is no list")
		}
		return nil, named(err)
	}
	return out.Bytes(), nil
}

// named returns an error of text/template without its prefix. The error then begins with file and line.
func named(err error) error { return errors.New(strings.TrimPrefix(err.Error(), "template: ")) }

// blank reports whether a file has nothing but comments.
func blank(text []byte) bool {
	for line := range bytes.Lines(text) {
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' {
			return false
		}
	}
	return true
}
