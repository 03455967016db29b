// SPDX-License-Identifier: Apache-2.0

package containerruntimeconfig

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"github.com/pelletier/go-toml/v2"

	"github.com/noderefit/noderefit/controller/source"
	"github.com/noderefit/noderefit/machineconfig"
)

// The files, at upstream's paths. containerd has no directory for drop-ins of its own. Its configuration has to import
// this file, as the configuration of containerd 2 does.
const (
	storagePath    = "/etc/containers/storage.conf"
	crioDropin     = "/etc/crio/crio.conf.d/01-ctrcfg-"
	containerdPath = "/etc/containerd/conf.d/01-ctrcfg-logLevel.toml"
)

// The least values, in processes and in bytes. conmon reads log lines of 8 KiB.
const (
	leastPids    = 20
	leastLogSize = 8192
)

var logLevels = []string{"error", "fatal", "panic", "warn", "info", "debug", "trace"}

// check validates a configuration. Its errors name the field.
func check(c *mcfgv1.ContainerRuntimeConfiguration) error {
	if c == nil {
		return errors.New("spec.containerRuntimeConfig: is required")
	}
	var errs []error
	wrong := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("spec.containerRuntimeConfig."+field+": "+format, args...))
	}
	if p := c.PidsLimit; p != nil && *p != 0 && *p < leastPids {
		wrong("pidsLimit", "%d is less than %d, and not 0 for no limit", *p, leastPids)
	}
	if c.LogLevel != "" && !slices.Contains(logLevels, c.LogLevel) {
		wrong("logLevel", "%q is not one of %q", c.LogLevel, logLevels)
	}
	if s := c.LogSizeMax; s != nil && s.Value() >= 0 && s.Value() < leastLogSize && !s.IsZero() {
		wrong("logSizeMax", "%s is less than %d bytes, and not negative for no limit", s, leastLogSize)
	}
	if s := c.OverlaySize; s != nil && s.Sign() < 0 {
		wrong("overlaySize", "%s is negative", s)
	}
	switch c.DefaultRuntime {
	case mcfgv1.ContainerRuntimeDefaultRuntimeEmpty, mcfgv1.ContainerRuntimeDefaultRuntimeCrun,
		mcfgv1.ContainerRuntimeDefaultRuntimeRunc:
	default:
		wrong("defaultRuntime", "%q is neither crun nor runc", c.DefaultRuntime)
	}
	by := stores(c)
	for _, field := range slices.Sorted(maps.Keys(by)) {
		paths := by[field]
		for i, p := range paths {
			if slices.Contains(paths[:i], p) {
				wrong(fmt.Sprintf("%s[%d].path", field, i), "%q is there twice", p)
			}
		}
	}
	return errors.Join(errs...)
}

// stores returns the additional stores by field.
func stores(c *mcfgv1.ContainerRuntimeConfiguration) map[string][]string {
	out := map[string][]string{}
	for _, s := range c.AdditionalLayerStores {
		out["additionalLayerStores"] = append(out["additionalLayerStores"], string(s.Path))
	}
	for _, s := range c.AdditionalImageStores {
		out["additionalImageStores"] = append(out["additionalImageStores"], string(s.Path))
	}
	for _, s := range c.AdditionalArtifactStores {
		out["additionalArtifactStores"] = append(out["additionalArtifactStores"], string(s.Path))
	}
	return out
}

// checkContainerd refuses settings that containerd can't have. Each error names what has the setting instead.
func checkContainerd(c *mcfgv1.ContainerRuntimeConfiguration) error {
	const kubelet = "the kubelet has it instead: set %s in a KubeletConfig"
	var errs []error
	wrong := func(set bool, field, format string, args ...any) {
		if set {
			errs = append(errs, fmt.Errorf("spec.containerRuntimeConfig."+field+": containerd has no such setting; "+format,
				args...))
		}
	}
	wrong(c.PidsLimit != nil, "pidsLimit", kubelet, "podPidsLimit")
	wrong(c.LogSizeMax != nil, "logSizeMax", kubelet, "containerLogMaxSize")
	wrong(c.OverlaySize != nil, "overlaySize", "the disk's quotas do it")
	wrong(c.DefaultRuntime != "", "defaultRuntime",
		"its runtimes are in its config.toml, which a MachineConfig has to bring as a whole")
	const none = "it has one content store"
	wrong(c.AdditionalLayerStores != nil, "additionalLayerStores", none)
	wrong(c.AdditionalImageStores != nil, "additionalImageStores", none)
	wrong(c.AdditionalArtifactStores != nil, "additionalArtifactStores", none)
	return errors.Join(errs...)
}

// merge returns the settings of under, replaced by those that over sets.
func merge(under, over mcfgv1.ContainerRuntimeConfiguration) mcfgv1.ContainerRuntimeConfiguration {
	out := under
	out.LogLevel = cmp.Or(over.LogLevel, under.LogLevel)
	out.DefaultRuntime = cmp.Or(over.DefaultRuntime, under.DefaultRuntime)
	if over.PidsLimit != nil {
		out.PidsLimit = over.PidsLimit
	}
	if over.LogSizeMax != nil {
		out.LogSizeMax = over.LogSizeMax
	}
	if over.OverlaySize != nil {
		out.OverlaySize = over.OverlaySize
	}
	if over.AdditionalLayerStores != nil {
		out.AdditionalLayerStores = over.AdditionalLayerStores
	}
	if over.AdditionalImageStores != nil {
		out.AdditionalImageStores = over.AdditionalImageStores
	}
	if over.AdditionalArtifactStores != nil {
		out.AdditionalArtifactStores = over.AdditionalArtifactStores
	}
	return out
}

// files returns the files of a configuration for the runtimes of a pool, on top of the configuration beneath.
func files(
	c mcfgv1.ContainerRuntimeConfiguration, on source.Runtime, beneath *machineconfig.Config,
) ([]source.File, error) {
	var out []source.File
	put := func(path string, table any) error {
		data, err := toml.Marshal(table)
		if err != nil {
			return fmt.Errorf("writing %s: %w", path, err)
		}
		out = append(out, source.File{Path: path, Contents: data})
		return nil
	}
	var errs []error
	if on.CRIO {
		dropin := func(field, key string, value any) {
			runtime := map[string]any{"runtime": map[string]any{key: value}}
			errs = append(errs, put(crioDropin+field, map[string]any{"crio": runtime}))
		}
		if c.LogLevel != "" {
			dropin("logLevel", "log_level", c.LogLevel)
		}
		if c.PidsLimit != nil {
			dropin("pidsLimit", "pids_limit", *c.PidsLimit)
		}
		if c.LogSizeMax != nil {
			size := c.LogSizeMax.Value()
			if size == 0 {
				size = -1 // CRI-O's value for no limit
			}
			dropin("logSizeMax", "log_size_max", size)
		}
		if c.DefaultRuntime != "" {
			dropin("defaultRuntime", "default_runtime", string(c.DefaultRuntime))
		}
		if paths := stores(&c)["additionalArtifactStores"]; paths != nil {
			dropin("additionalArtifactStores", "additional_artifact_stores", paths) //nolint:misspell // CRI-O's
		}
		table, err := storage(c, beneath)
		if err == nil && table != nil {
			err = put(storagePath, table)
		}
		errs = append(errs, err)
	}
	if on.Containerd && c.LogLevel != "" {
		errs = append(errs, put(containerdPath,
			map[string]any{"version": 2, "debug": map[string]any{"level": c.LogLevel}}))
	}
	return out, errors.Join(errs...)
}

// storage returns the content of storage.conf, and nil if the configuration sets nothing in it. The file replaces the
// distribution's, so it names all places even if nothing beneath does.
func storage(c mcfgv1.ContainerRuntimeConfiguration, beneath *machineconfig.Config) (map[string]any, error) {
	if c.OverlaySize == nil && c.AdditionalLayerStores == nil && c.AdditionalImageStores == nil {
		return nil, nil
	}
	conf := map[string]any{"storage": map[string]any{
		"driver": "overlay", "runroot": "/run/containers/storage", "graphroot": "/var/lib/containers/storage",
	}}
	for _, f := range beneath.Files {
		if f.Path != storagePath {
			continue
		}
		conf = nil
		if err := toml.Unmarshal(f.Contents, &conf); err != nil {
			return nil, fmt.Errorf("the pool's MachineConfigs bring %s, which does not parse: %w", storagePath, where(err))
		}
	}
	options, err := table(conf, "storage", "options")
	if err != nil {
		return nil, err
	}
	if c.OverlaySize != nil {
		overlay, err := table(conf, "storage", "options", "overlay")
		if err != nil {
			return nil, err
		}
		options["size"], overlay["size"] = c.OverlaySize.String(), c.OverlaySize.String()
		if c.OverlaySize.IsZero() { // no limit, even if the configuration beneath has one
			delete(options, "size")
			delete(overlay, "size")
		}
	}
	if paths := stores(&c)["additionalImageStores"]; paths != nil {
		options["additionalimagestores"] = paths
	}
	if paths := stores(&c)["additionalLayerStores"]; paths != nil {
		for i := range paths {
			paths[i] += ":ref" // such stores hold images by reference
		}
		options["additionallayerstores"] = paths
	}
	return conf, nil
}

// table finds or makes a table within others.
func table(in map[string]any, keys ...string) (map[string]any, error) {
	for _, key := range keys {
		switch next := in[key].(type) {
		case nil:
			made := map[string]any{}
			in[key], in = made, made
		case map[string]any:
			in = next
		default:
			return nil, fmt.Errorf("the pool's MachineConfigs bring %s, where %s is no table", storagePath, key)
		}
	}
	return in, nil
}

// where returns the position of a syntax error without its text, which may quote the file.
func where(err error) error {
	if syntax, ok := errors.AsType[*toml.DecodeError](err); ok {
		line, column := syntax.Position()
		return fmt.Errorf("line %d, column %d", line, column)
	}
	return errors.New("not TOML")
}
