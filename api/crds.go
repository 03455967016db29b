// SPDX-License-Identifier: Apache-2.0

package api

import "embed"

//go:generate ./crds.sh

// CRDs are the definitions of the kinds that we speak, a YAML file each, below crds/. They are OpenShift's own, so that
// on a cluster that has them already nothing changes.
//
//go:embed crds/*.yaml
var CRDs embed.FS
