// SPDX-License-Identifier: Apache-2.0

package render

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"

	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/plan"
)

// present returns the names of the configurations that the nodes of a pool have or are on the way to, except next.
func present(pool *mcfgv1.MachineConfigPool, next string) []string {
	var out []string
	for _, name := range []string{pool.Spec.Configuration.Name, pool.Status.Configuration.Name} {
		if name != "" && name != next && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	// Going back to what the whole pool still has needs no comparison.
	if next == pool.Status.Configuration.Name {
		return nil
	}
	return out
}

// unreachable returns what of a configuration can't be reached from any configuration that the nodes have. The result
// is nil if one of these leads there. Nodes that have the other report the obstacle themselves.
func unreachable(
	from []*machineconfig.Config, to *machineconfig.Config, policy *plan.Policy, image plan.Image,
) ([]plan.Unreconcilable, error) {
	var out []plan.Unreconcilable
	for i, c := range from {
		p, err := plan.Make(c, to, plan.Options{Policy: policy})
		if err != nil {
			return nil, fmt.Errorf("comparing MachineConfig/%s with MachineConfig/%s: %w", c.Name, to.Name, err)
		}
		found := slices.Concat(p.Unreconcilable, image.Refuses(c, to))
		if len(found) == 0 {
			return nil, nil
		}
		if i == 0 {
			out = found
		}
	}
	return out, nil
}

// blame returns the failure that names the MachineConfigs that ask for what can't be reached. Each is compared by
// itself with what the pool has. Where no MachineConfig asks for it, the failure names the former sources that are
// gone.
func blame(
	pool *mcfgv1.MachineConfigPool, from *machineconfig.Config, to *rendering, policy *plan.Policy,
	unreached []plan.Unreconcilable,
) *failure {
	without := reasons(from, &machineconfig.Document{Object: &mcfgv1.MachineConfig{}}, policy, to.image)
	alone := map[*machineconfig.Document]map[string]string{}
	for _, d := range to.selected {
		alone[d] = reasons(from, d, policy, to.image)
	}
	var gone []string
	for _, s := range pool.Spec.Configuration.Source {
		if !slices.ContainsFunc(to.selected, func(d *machineconfig.Document) bool { return d.Object.Name == s.Name }) {
			gone = append(gone, "MachineConfig/"+s.Name)
		}
	}
	var lines []string
	for _, u := range unreached {
		var culprits []string
		for _, d := range to.selected {
			// A document is not to blame for an obstacle that an empty document has too.
			if why := alone[d][u.Field]; why != "" && why != without[u.Field] {
				culprits = append(culprits, d.String())
			}
		}
		who := strings.Join(culprits, ", ")
		if who == "" && len(gone) > 0 {
			who = strings.Join(gone, ", ") + ", now gone"
		}
		lines = append(lines, fmt.Sprintf("%s: %s: %s", cmp.Or(who, "MachineConfig/"+to.config.Name), u.Field, u.Reason))
	}
	whence := "can't be reached from " + from.Name
	if from.Name == "" {
		whence = "no node can have it"
	}
	return &failure{reasonUnreconcilable, whence + ": " + strings.Join(lines, "; ")}
}

// reasons returns why a document alone can't be reached, by field.
func reasons(
	from *machineconfig.Config, d *machineconfig.Document, policy *plan.Policy, image plan.Image,
) map[string]string {
	c, err := machineconfig.Parse(d.Object)
	if err != nil {
		return nil // the document is valid only together with the others
	}
	p, err := plan.Make(from, c, plan.Options{Policy: policy})
	if err != nil {
		return nil
	}
	out := map[string]string{}
	for _, u := range append(p.Unreconcilable, image.Refuses(from, c)...) {
		out[u.Field] += u.Reason
	}
	return out
}
