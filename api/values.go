// SPDX-License-Identifier: Apache-2.0

package api

import "strings"

const (
	// ValuesKey is the annotation of a Node that holds ToldValues. The pool controller writes it, in the patch that sets
	// DesiredConfig.
	ValuesKey = ownPrefix + "values"
	// MadeKey is the annotation of a Node that holds a Made: what the host made of its configuration. The daemon writes
	// it.
	MadeKey = ownPrefix + "made"
	// NamedValuesKey is the annotation of a pool that holds NamedValues. The render controller writes it, in the patch
	// that sets spec.configuration.
	NamedValuesKey = ownPrefix + "named-values"
	// ValuePrefix begins the labels and annotations of a Node that a configuration may name.
	ValuePrefix = "values." + ownPrefix
)

// ToldValues are the values of a node for a configuration: what it was told with the configuration.
type ToldValues struct {
	Config string `json:"config"`
	// Digest is of the values. Without Values it means those that the host has.
	Digest string            `json:"digest"`
	Values map[string]string `json:"values,omitempty"`
}

// Made is the configuration that a host made of its pool's, by its own name.
type Made struct {
	Config string `json:"config"`
	// Previous is the one before, where that has values; else empty.
	Previous string `json:"previous,omitempty"`
}

// NamedValues are the values that a configuration names, as TYPE:KEY.
type NamedValues struct {
	Config string   `json:"config"`
	Values []string `json:"values"`
}

// MadeName is the name of what a node makes of a configuration, with a digest of its values.
func MadeName(config, digest string) string { return config + "+" + digest }

// Rendered is the configuration of the pool that a node's own was made of. Of any other name it is the name.
func Rendered(config string) string {
	config, _, _ = strings.Cut(config, "+")
	return config
}

// ValuesOf is the digest of the values of a node's own configuration; empty: it has none.
func ValuesOf(config string) string {
	_, digest, _ := strings.Cut(config, "+")
	return digest
}

// nameMade puts the names of what the host makes of its configurations in place of those of the pool's.
func nameMade(n *Node, a map[string]string) error {
	told, err := Decode[ToldValues](a, ValuesKey)
	if err == nil && told.Digest != "" && told.Config == n.Desired {
		n.Values = told
		if n.Lift == n.Desired {
			n.Lift = MadeName(told.Config, told.Digest)
		}
		n.Desired = MadeName(told.Config, told.Digest)
	}
	made, madeErr := Decode[Made](a, MadeKey)
	if madeErr == nil && made.Config != "" && Rendered(made.Config) == n.Current {
		n.Current = made.Config
	}
	if madeErr == nil && made.Previous != "" && Rendered(made.Previous) == n.Previous {
		n.Previous = made.Previous
	}
	if err == nil {
		err = madeErr
	}
	return err
}
