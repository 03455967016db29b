// SPDX-License-Identifier: Apache-2.0

package kubeletconfig

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"dario.cat/mergo"
	"github.com/coreos/ignition/v2/config/v3_5/types"
	configv1 "github.com/openshift/api/config/v1"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/controller/source"
)

// Paths on the host.
const (
	// wholePath is the kubelet's whole configuration where MachineConfigs bring it, as in OpenShift. On a host of
	// kubeadm's that path has something else, the kubelet's credentials. So the file is written only where a MachineConfig
	// brings it.
	wholePath = "/etc/kubernetes/kubelet.conf"
	// dropinDir is the directory where a kubelet finds what overrides the host's own configuration. dropinPath is the file
	// of this controller.
	dropinDir  = "/etc/kubernetes/kubelet.conf.d"
	dropinPath = dropinDir + "/90-kubeletconfig.conf"
	// argsPath makes kubeadm's unit for the kubelet look into dropinDir. It comes after kubeadm's own drop-in,
	// 10-kubeadm.conf.
	argsPath = "/etc/systemd/system/kubelet.service.d/20-kubeletconfig.conf"
	argsText = "[Service]\nEnvironment=\"KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml --config-dir=" +
		dropinDir + "\"\n"
	// logPath and sizingPath are read by OpenShift's unit for the kubelet and by sizingUnit.
	logPath    = "/etc/systemd/system/kubelet.service.d/20-logging.conf"
	sizingPath = "/etc/node-sizing-enabled.env"
	// sizingUnit computes on the host what is reserved for the system. OpenShift's MachineConfigs bring such a unit.
	sizingUnit = "kubelet-auto-node-size.service"
	// sizingEnabled comes before true or false in sizingPath.
	sizingEnabled = "NODE_SIZING_ENABLED="
)

// settings are what a pool's nodes are to have, by KubeletConfigs and the configuration below them.
type settings struct {
	pool string
	doc  document
	// whole means that doc is the kubelet's whole configuration. Otherwise doc overrides the host's own.
	whole bool
	// sizes means that MachineConfigs of the pool bring sizingUnit. calculates means that this controller brings it.
	sizes, calculates bool
	// sizing is the last value of autoSizingReserved. sized means that a KubeletConfig has set what is reserved.
	sizing, sized bool
	logLevel      *int32
}

// clone returns a copy that shares nothing which merging would change.
func (s settings) clone() (settings, error) {
	doc, err := copied(s.doc)
	s.doc = doc
	return s, err
}

func copied(doc document) (document, error) {
	raw, err := json.Marshal(doc)
	if err != nil {
		return nil, fmt.Errorf("copying a configuration: %w", err)
	}
	return parse(raw)
}

// parse decodes JSON or YAML, and keeps numbers as they were written.
func parse(text []byte) (document, error) {
	raw, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return nil, err
	}
	var doc document
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &doc); err != nil {
		return nil, err
	}
	return doc, nil
}

// Over returns apply's result as a layer.
func (s settings) Over(spec *mcfgv1.KubeletConfigSpec) (source.Layer[mcfgv1.KubeletConfigSpec], error) {
	return s.apply(spec)
}

// apply returns what nodes have with spec on top of what they have without it. The fields of spec override one by one.
// Maps are merged by key, lists are replaced, and false, 0 and "" are values. apply returns an error if spec itself is
// wrong, or if no kubelet would start with the result.
func (s settings) apply(spec *mcfgv1.KubeletConfigSpec) (settings, error) {
	over, err := override(s.pool, spec)
	if err != nil {
		return s, err
	}
	out, err := s.clone()
	if err != nil {
		return s, err
	}
	sizing := spec.AutoSizingReserved != nil && *spec.AutoSizingReserved
	if sizing {
		if s.whole && !s.sizes {
			return s, fmt.Errorf("spec.autoSizingReserved: no MachineConfig of pool %s brings %s, which would work it out",
				s.pool, sizingUnit)
		}
		delete(out.doc, "systemReserved")
		out.calculates = !s.sizes
	}
	if at(over, "reservedSystemCPUs") != nil && at(over, "systemReservedCgroup") == nil &&
		at(out.doc, "systemReservedCgroup") != nil {
		// The two exclude each other. As upstream, the CPUs win over a default.
		delete(out.doc, "systemReservedCgroup")
		out.doc["enforceNodeAllocatable"] = []any{"pods"}
	}
	if err := mergo.Merge(&out.doc, over, mergo.WithOverride); err != nil {
		return s, fmt.Errorf("spec.kubeletConfig: %w", err)
	}
	if err := check(out.doc); err != nil {
		return s, err
	}
	if reserves := at(over, "systemReserved") != nil; reserves || spec.AutoSizingReserved != nil {
		out.sizing, out.sized = sizing, true
	}
	if spec.LogLevel != nil {
		out.logLevel = spec.LogLevel
	}
	return out, nil
}

// override returns what a KubeletConfig sets in the kubelet's configuration, including what its other fields imply.
func override(pool string, spec *mcfgv1.KubeletConfigSpec) (document, error) {
	var raw []byte
	if spec.KubeletConfig != nil {
		raw = spec.KubeletConfig.Raw
	}
	doc, err := read(raw)
	if err != nil {
		return nil, err
	}
	dropUnset(doc)
	var problems []error
	say := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if path, said := doc["staticPodPath"]; said && (path != "" || controlPlane(pool)) {
		say("spec.kubeletConfig: staticPodPath may not be set%s", map[bool]string{
			true:  ": the control plane's own pods are there",
			false: ", except to \"\"",
		}[controlPlane(pool)])
	}
	if reserved, _ := doc["systemReserved"].(document); len(reserved) > 0 &&
		spec.AutoSizingReserved != nil && *spec.AutoSizingReserved {
		say("spec.autoSizingReserved can't be set together with spec.kubeletConfig.systemReserved")
	}
	if level := spec.LogLevel; level != nil {
		switch {
		case *level < 0 || *level > 10:
			say("spec.logLevel: %d is not between 0 and 10", *level)
		case at(doc, "logging.verbosity") != nil:
			say("spec.logLevel can't be set together with spec.kubeletConfig.logging.verbosity")
		default:
			logging, _ := doc["logging"].(document)
			if logging == nil {
				logging = document{}
			}
			logging["verbosity"] = int64(*level)
			doc["logging"] = logging
		}
	}
	if spec.TLSSecurityProfile != nil {
		version, ciphers, err := profile(spec.TLSSecurityProfile)
		if err != nil {
			problems = append(problems, err)
		}
		// As upstream, a field that is set explicitly wins over the profile.
		if _, said := doc["tlsMinVersion"]; !said && version != "" {
			doc["tlsMinVersion"] = version
		}
		if _, said := doc["tlsCipherSuites"]; !said && len(ciphers) > 0 {
			doc["tlsCipherSuites"] = ciphers
		}
	}
	return doc, errors.Join(problems...)
}

func controlPlane(pool string) bool { return pool == api.PoolMaster || pool == api.PoolControlPlane }

// ciphers has OpenSSL's names of the suites that Go can negotiate, and so a kubelet accepts. All others are left out.
var ciphers = map[string]string{
	"ECDHE-ECDSA-AES128-GCM-SHA256": "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
	"ECDHE-RSA-AES128-GCM-SHA256":   "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
	"ECDHE-ECDSA-AES256-GCM-SHA384": "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
	"ECDHE-RSA-AES256-GCM-SHA384":   "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
	"ECDHE-ECDSA-CHACHA20-POLY1305": "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
	"ECDHE-RSA-CHACHA20-POLY1305":   "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
	"ECDHE-ECDSA-AES128-SHA256":     "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
	"ECDHE-RSA-AES128-SHA256":       "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
	"ECDHE-ECDSA-AES128-SHA":        "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
	"ECDHE-RSA-AES128-SHA":          "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
	"ECDHE-ECDSA-AES256-SHA":        "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
	"ECDHE-RSA-AES256-SHA":          "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
	"AES128-GCM-SHA256":             "TLS_RSA_WITH_AES_128_GCM_SHA256",
	"AES256-GCM-SHA384":             "TLS_RSA_WITH_AES_256_GCM_SHA384",
	"AES128-SHA256":                 "TLS_RSA_WITH_AES_128_CBC_SHA256",
	"AES128-SHA":                    "TLS_RSA_WITH_AES_128_CBC_SHA",
	"AES256-SHA":                    "TLS_RSA_WITH_AES_256_CBC_SHA",
	"DES-CBC3-SHA":                  "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
}

// profile returns what a TLS profile means to a kubelet. Without a type the profile is Intermediate, as upstream.
func profile(p *configv1.TLSSecurityProfile) (version string, names []any, err error) {
	kind := p.Type
	if kind == "" {
		kind = configv1.TLSProfileIntermediateType
	}
	spec := configv1.TLSProfiles[kind]
	if kind == configv1.TLSProfileCustomType {
		if p.Custom == nil {
			return "", nil, errors.New("spec.tlsSecurityProfile.custom: is missing, and the type is Custom")
		}
		spec = &p.Custom.TLSProfileSpec
	}
	if spec == nil {
		return "", nil, fmt.Errorf("spec.tlsSecurityProfile.type: %q is not one of Old, Intermediate, Modern, Custom", kind)
	}
	known := suites()
	for _, c := range spec.Ciphers {
		if iana, ok := ciphers[c]; ok {
			c = iana
		}
		if slices.Contains(known, c) && !slices.Contains(names, any(c)) {
			names = append(names, c)
		}
	}
	if len(spec.Ciphers) > 0 && len(names) == 0 {
		return "", nil, fmt.Errorf("spec.tlsSecurityProfile.custom.ciphers: a kubelet can negotiate none of %q", spec.Ciphers)
	}
	return string(spec.MinTLSVersion), names, nil
}

// reservation is a part of systemReserved that the host's own calculation gets, and not the kubelet's configuration.
// The calculating unit hands its result to the kubelet as flags, which win.
type reservation struct{ name, variable, fallback string }

var reservations = []reservation{
	{"memory", "SYSTEM_RESERVED_MEMORY", "1Gi"},
	{"cpu", "SYSTEM_RESERVED_CPU", "500m"},
	{"ephemeral-storage", "SYSTEM_RESERVED_ES", "1Gi"},
}

// Ignition returns the Ignition config that brings the settings to a host, and the paths that the kubelet reads them
// from.
func (s settings) Ignition() (config []byte, paths []string, err error) {
	own, err := s.clone()
	if err != nil {
		return nil, nil, err
	}
	return own.write()
}

// write makes Ignition of settings that the caller has not shared.
func (s settings) write() (config []byte, paths []string, err error) {
	s.doc["kind"], s.doc["apiVersion"] = documentKind, documentVersion
	var files []source.File
	put := func(path, text string) {
		files, paths = append(files, source.File{Path: path, Contents: []byte(text)}), append(paths, path)
	}
	switch {
	case s.sizes && s.sized:
		put(sizingPath, s.reserve())
	case s.calculates:
		put(sizingPath, fmt.Sprintf(sizingEnabled+"%t\n", s.sizing))
	}
	text, err := json.MarshalIndent(s.doc, "", "  ")
	if err != nil {
		return nil, nil, fmt.Errorf("writing the kubelet's configuration: %w", err)
	}
	path := dropinPath
	var links []types.Link
	var units []types.Unit
	if s.whole {
		path = wholePath
		if s.logLevel != nil {
			put(logPath, fmt.Sprintf("[Service]\nEnvironment=\"KUBELET_LOG_LEVEL=%d\"\n", *s.logLevel))
		}
	} else {
		paths = append(paths, wholePath) // kubelets with that file read no directory
		put(argsPath, argsText)
		if s.calculates {
			put(calculatorPath, calculator)
			links = append(links, types.Link{
				Node:          types.Node{Path: reservedLink, Overwrite: new(true)},
				LinkEmbedded1: types.LinkEmbedded1{Target: new(reservedPath)},
			})
			units = append(units, types.Unit{Name: sizingUnit, Enabled: new(true), Contents: new(calculatorUnit)})
		}
	}
	put(path, string(text)+"\n")
	config, err = source.Ignition(files, links, units)
	return config, paths, err
}

// reserve removes from the configuration what sizingUnit decides, and returns the text of the file that the unit reads.
func (s settings) reserve() string {
	said, _ := s.doc["systemReserved"].(document)
	var text strings.Builder
	fmt.Fprintf(&text, sizingEnabled+"%t\n", s.sizing)
	for _, r := range reservations {
		value, ok := said[r.name].(string)
		if delete(said, r.name); !ok {
			value = r.fallback
		}
		fmt.Fprintf(&text, "%s=%s\n", r.variable, value)
	}
	if len(said) == 0 {
		delete(s.doc, "systemReserved")
	}
	return text.String()
}
