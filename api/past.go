// SPDX-License-Identifier: Apache-2.0

package api

import "time"

// RolloutsKey is the annotation of a MachineConfigPool that holds the []PastRollout of its last rollouts, the latest
// first. The pool controller writes it.
const RolloutsKey = ownPrefix + "rollouts"

// PastRollout is how one configuration went through a pool. The latest is under way for as long as it has no end.
type PastRollout struct {
	Config string `json:"config"`
	// Wanted is when the pool was first seen to be on its way to it, Began when a node was first seen to be sent there,
	// and Ended when all nodes had it, or the pool was to have another.
	Wanted time.Time `json:"wanted"`
	Began  time.Time `json:"began,omitzero"`
	Ended  time.Time `json:"ended,omitzero"`
	// Nodes is how many the pool had at the end, and Updated how many of these had the configuration.
	Nodes   int `json:"nodes,omitempty"`
	Updated int `json:"updated,omitempty"`
	// Failed is on how many nodes it failed, at the most that were seen at a time.
	Failed int `json:"failed,omitempty"`
	// Replaced says that it ended because the pool was to have another configuration.
	Replaced bool `json:"replaced,omitempty"`
}
