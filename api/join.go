// SPDX-License-Identifier: Apache-2.0

package api

import (
	"slices"
	"strings"
)

// PoolGroup, with the name of a pool behind it, is a group of a bootstrap token. A machine that joins with such a token
// joins that pool, and no other.
const PoolGroup = "system:bootstrappers:noderefit:pool:"

// PoolsOfGroups returns the pools that groups of a token name, sorted. It is empty for a token that is for any pool.
func PoolsOfGroups(groups []string) []string {
	var pools []string
	for _, g := range groups {
		if pool, is := strings.CutPrefix(g, PoolGroup); is {
			pools = append(pools, pool)
		}
	}
	slices.Sort(pools)
	return slices.Compact(pools)
}
