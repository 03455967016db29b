// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"time"
)

// HoldKey is the annotation of a Node that holds a NodeHold. People write it, by kubectl refit hold and skip.
const HoldKey = ownPrefix + "hold"

// NodeHold is a person's order to leave a node as it is, while rollouts pass it by.
type NodeHold struct {
	By    string    `json:"by"`
	Why   string    `json:"why"`
	Since time.Time `json:"since"`
	// Until is when the hold ends by itself; zero if only a person ends it.
	Until time.Time `json:"until,omitzero"`
	// Config, where set, is the one configuration that the node is not to get: the node is skipped for it.
	Config string `json:"config,omitempty"`
}

// Holds reports whether the order is in force for a target at a time.
func (h *NodeHold) Holds(target string, now time.Time) bool {
	return h != nil && (h.Until.IsZero() || now.Before(h.Until)) &&
		(h.Config == "" || SameContent(h.Config, target))
}

// heldByPerson reads the order. An order that cannot be read holds: a slip of the pen must not drain the node that a
// person wanted to keep.
func heldByPerson(annotations map[string]string) (*NodeHold, error) {
	hold, err := Decode[*NodeHold](annotations, HoldKey)
	if err == nil && hold != nil && len(hold.Config) > longestName {
		err = fmt.Errorf("annotation %s: config has more than %d bytes", HoldKey, longestName)
	}
	if err != nil {
		return &NodeHold{Why: shorten("the order cannot be read: "+err.Error(), quarantineReason)}, err
	}
	if hold != nil {
		hold.By, hold.Why = shorten(hold.By, longestName), shorten(hold.Why, quarantineReason)
	}
	return hold, nil
}
