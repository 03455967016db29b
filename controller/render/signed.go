// SPDX-License-Identifier: Apache-2.0

package render

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/signature"
)

// unsigned returns what a pool that demands signatures waits for. A configuration that the pool had before needs no
// signature: the way back is always open.
func (in *input) unsigned(nodes []corev1.Node) []string {
	demand := in.pool.Annotations[api.SignedByKey]
	if demand == "" || in.failure != nil || !in.moves() || had(in.pool, nodes, in.rendering.config.Name) {
		return nil
	}
	name := in.rendering.config.Name
	keys, err := signature.ParseKeys([]byte(demand))
	if err != nil {
		return []string{fmt.Sprintf("MachineConfigPool/%s: annotation %s: %v; no configuration can be signed until the "+
			"annotation has a key", in.pool.Name, api.SignedByKey, err)}
	}
	why := signature.Missing(keys, in.rendering.config.Digest, in.signatures...)
	if why == "" {
		return nil
	}
	return []string{fmt.Sprintf("MachineConfig/%s: the pool demands a signature by a key in its annotation %s: %s; sign "+
		"it with kubectl refit sign %s, and apply what that prints", name, api.SignedByKey, why, in.pool.Name)}
}
