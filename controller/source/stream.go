// SPDX-License-Identifier: Apache-2.0

package source

import (
	"fmt"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"

	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/releases"
)

// OSImageStreams is the name of the one OSImageStream.
const OSImageStreams = "cluster"

// Streamed returns the document of lowest precedence of a pool: base with the images of the OSImageStream that the pool
// names, or else of the default stream where base has no image. streams and base may be nil. The error says why the
// pool's stream can't be followed.
func Streamed(
	pool *mcfgv1.MachineConfigPool, streams *mcfgv1.OSImageStream, base *machineconfig.Document,
) (*machineconfig.Document, error) {
	name := pool.Spec.OSImageStream.Name
	set, err := releases.StreamOf(streams, name)
	if err != nil {
		return nil, fmt.Errorf("MachineConfigPool/%s: spec.osImageStream.name: %w", pool.Name, err)
	}
	if set == nil || name == "" && base != nil && base.Object.Spec.OSImageURL != "" {
		return base, nil
	}
	out := &machineconfig.Document{Object: &mcfgv1.MachineConfig{}}
	out.Object.Name = "OSImageStream/" + OSImageStreams
	if base != nil {
		out.Object.Annotations = base.Object.Annotations
	}
	out.Object.Spec.OSImageURL = string(set.OSImage)
	out.Object.Spec.BaseOSExtensionsContainerImage = string(set.OSExtensionsImage)
	return out, nil
}
