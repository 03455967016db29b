// SPDX-License-Identifier: Apache-2.0

package api

import "embed"

//go:generate ./crds.sh

// CRDs are the definitions of the kinds that we speak, a YAML file each, below crds/. They are OpenShift's own
// but for a default: observedGeneration is -1 until somebody has looked.
//
//go:embed crds/*.yaml
var CRDs embed.FS
