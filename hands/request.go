// SPDX-License-Identifier: Apache-2.0

package hands

import (
	"context"
	"fmt"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/host"
)

// Request asks the hands for a configuration.
type Request struct {
	Name string
	// Config is the MachineConfig as JSON, Policy the MachineConfiguration as JSON or nil.
	Config, Policy []byte
	// Lift takes the configuration out of the host's quarantine first.
	Lift bool
	// Strict refuses a host that does not match what it has, with a *DriftError.
	Strict bool
	// Order is what a RolloutPolicy says of how it is staged: what was staged before is used, whatever the image's name
	// means by now. Of what it says only the floor under the disk makes another request: a staging that has one would
	// end by it.
	Order *api.StageOrder
	// HookDocument is what the cluster has to say of hooks. Another one makes no other request.
	host.HookDocument

	repair []string // the subjects of a RepairRequest
	asks   string   // what tells one request of an Asker from another
}

// RepairRequest asks for what has drifted from the committed configuration to be written back.
type RepairRequest struct {
	// Policy is the MachineConfiguration as JSON or nil.
	Policy []byte
	// Subjects are kinds and names, as in "file /etc/chrony.conf"; none of them: everything that can be.
	Subjects []string
}

// ErrSuperseded is the cause of a context that ends because something else is to be done, and not because the caller
// goes away.
var ErrSuperseded = fmt.Errorf("something else is to be done: %w", context.Canceled)

// DeliverRequest asks for the certificates of a ControllerConfig to be on the host.
type DeliverRequest struct {
	// Name says which it is: its name and resource version.
	Name string
	// Config is the ControllerConfig as JSON, with the fields that are delivered.
	Config []byte
	// Policy is the MachineConfiguration as JSON or nil.
	Policy []byte
}
