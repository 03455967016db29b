// SPDX-License-Identifier: Apache-2.0

package signature

import (
	"fmt"
	"strings"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/machineconfig"
)

// Document returns the MachineConfig that carries signatures, as a YAML document. Such a MachineConfig has no content,
// so a pool that selects it renders to the same name as before.
func Document(pool string, lines []string) string {
	return fmt.Sprintf(`apiVersion: %s
kind: MachineConfig
metadata:
  name: 99-%s-signatures
  labels:
    machineconfiguration.openshift.io/role: %s
  annotations:
    %s: |
      %s
spec: {}
`, mcfgv1.GroupVersion, pool, pool, api.SignaturesKey, strings.Join(lines, "\n      "))
}

// Of returns the annotations of MachineConfigs that have signatures.
func Of(configs []*mcfgv1.MachineConfig) []string {
	var out []string
	for _, mc := range configs {
		if text := mc.Annotations[api.SignaturesKey]; text != "" && mc.DeletionTimestamp == nil {
			out = append(out, text)
		}
	}
	return out
}

// Carry writes onto a rendered configuration the signatures that documents have of it.
func Carry(rendered *mcfgv1.MachineConfig, docs *machineconfig.Documents) {
	var configs []*mcfgv1.MachineConfig
	for _, d := range docs.Configs {
		configs = append(configs, d.Object)
	}
	lines := Carried(rendered.Name, rendered.Annotations[api.SignaturesKey], Of(configs))
	if lines == "" {
		return
	}
	if rendered.Annotations == nil {
		rendered.Annotations = map[string]string{}
	}
	rendered.Annotations[api.SignaturesKey] = lines
}
