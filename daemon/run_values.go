// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"encoding/json"
	"fmt"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/values"
)

// withValues puts the values that the node was told into a pool's configuration. A node that is sent back is told the
// digest alone: the host has the values in its copy.
func (h *Head) withValues(ctx context.Context, name string, document []byte, told api.ToldValues) ([]byte, error) {
	mc := &mcfgv1.MachineConfig{}
	if err := json.Unmarshal(document, mc); err != nil || !machineconfig.Names(mc) {
		return document, err
	}
	if told.Config == api.Rendered(name) && told.Digest != "" && told.Values == nil {
		data, err := h.o.Senses.Config(ctx, name)
		if err != nil {
			return nil, fmt.Errorf("reading the values of this node for %s from the host's copy: %w", mc.Name, err)
		}
		return data, nil
	}
	if told.Values != nil && values.Digest(told.Values) != told.Digest {
		return nil, fmt.Errorf("annotation %s: the values are not those of the digest %s: the pool controller writes both",
			api.ValuesKey, told.Digest)
	}
	return json.Marshal(machineconfig.With(mc, told.Values))
}

// leftOut returns a configuration for a staging ahead, without what names values: an OS has none of them, and the node
// is told its values with the update.
func leftOut(document []byte) ([]byte, error) {
	mc := &mcfgv1.MachineConfig{}
	if err := json.Unmarshal(document, mc); err != nil || !machineconfig.Names(mc) {
		return document, err
	}
	return json.Marshal(machineconfig.WithoutValues(mc))
}
