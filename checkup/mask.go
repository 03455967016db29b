// SPDX-License-Identifier: Apache-2.0

package checkup

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/noderefit/noderefit/api"
)

// ignition is the part of an Ignition document that masks units.
type ignition struct {
	Ignition struct {
		Version string `json:"version"`
	} `json:"ignition"`
	Systemd struct {
		Units []maskedUnit `json:"units"`
	} `json:"systemd"`
}

type maskedUnit struct {
	Name string `json:"name"`
	Mask bool   `json:"mask"`
}

// maskManifest returns the MachineConfigs that mask what else manages the OS on the hosts, as YAML: one for each pool
// with such a node. It is empty where nothing was found.
func maskManifest(f *facts) string {
	units := map[string]map[string]bool{}
	for i := range f.nodes.is {
		n := &f.nodes.is[i]
		masks := familyOf(n.Status.NodeInfo.OSImage).masks
		if p, ok := f.probes[n.Name]; ok {
			masks = p.host.updaters()
		}
		for _, unit := range masks {
			role := roleOf(n)
			if units[role] == nil {
				units[role] = map[string]bool{}
			}
			units[role][unit] = true
		}
	}
	if !f.pre {
		return ""
	}
	var out strings.Builder
	for _, role := range sortedNames(units) {
		mask(&out, role, slices.Sorted(maps.Keys(units[role])))
	}
	return out.String()
}

func mask(to *strings.Builder, role string, units []string) {
	var i ignition
	i.Ignition.Version = "3.5.0"
	for _, unit := range units {
		i.Systemd.Units = append(i.Systemd.Units, maskedUnit{unit, true})
	}
	raw, err := json.Marshal(i)
	if err == nil {
		raw, err = json.Marshal(map[string]any{
			"apiVersion": mcfgv1.GroupVersion.String(), "kind": "MachineConfig",
			"metadata": map[string]any{"name": "50-" + role + "-mask-updaters", "labels": map[string]string{api.Role: role}},
			"spec":     map[string]any{"config": runtime.RawExtension{Raw: raw}},
		})
	}
	if err == nil {
		raw, err = yaml.JSONToYAML(raw)
	}
	if err != nil {
		panic(fmt.Sprintf("writing a MachineConfig: %v", err)) // strings and booleans can be written
	}
	fmt.Fprintf(to, "---\n%s", raw)
}
