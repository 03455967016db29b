// SPDX-License-Identifier: Apache-2.0

package machineconfig

import "testing"

// A pattern that does not compile is found here, and not on a host.
func TestEveryPatternOfASecretCompiles(*testing.T) {
	all := []*pattern{likelyPaths, plainName, credentialPaths, privateKey, kubeconfig, credentialField, registryAuth,
		password, userToken, packedKey, header, tomlAuth, wireGuard, assigned, signature, secretArgument}
	for _, l := range likely {
		all = append(all, l.pattern)
	}
	for _, p := range all {
		p.matchString("x")
	}
}
