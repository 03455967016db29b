// SPDX-License-Identifier: Apache-2.0

package hands

import (
	"context"
	"fmt"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/hooks"
)

// Request asks the Client for a configuration.
type Request struct {
	Name string
	// Config is the MachineConfig as JSON, Policy the MachineConfiguration as JSON or nil.
	Config, Policy []byte
	// Lift takes the configuration out of the host's quarantine first.
	Lift bool
	// Strict refuses a host that does not match its present configuration, with a *DriftError.
	Strict bool
	// Order is a RolloutPolicy's order for the staging: the OS that was staged before is used, even if the image's name
	// now means another OS. Of the order, only the minimum of free disk space makes another request: a running staging
	// with a minimum would fail because of it.
	Order *api.StageOrder
	// Beside leaves the OS to another manager: its part of the configuration is left out, and an update that would remove
	// what that manager has staged is a *Refused.
	Beside bool
	// NoReboot leaves the reboot of the update to people. Reboot is an ordered reboot; an update that reboots carries it
	// out.
	NoReboot bool
	Reboot   *api.RebootOrder
	// Method is how the host reboots, by a RolloutPolicy; "": as the Client was told.
	Method api.RebootMethod
	// Document has the cluster's hooks. A changed Document makes no other request.
	hooks.Document

	repair []string // the subjects of a RepairRequest
	asks   string   // distinguishes the requests of an Asker
}

// RepairRequest asks the host to write back drift from the committed configuration.
type RepairRequest struct {
	// Policy is the MachineConfiguration as JSON or nil.
	Policy []byte
	// Subjects are kinds and names, as in "file /etc/chrony.conf"; none: everything that can be written back.
	Subjects []string
}

// ErrSuperseded is the cause of a context that ends because another operation comes first, and not because the caller
// ends.
var ErrSuperseded = fmt.Errorf("the head wants another operation: %w", context.Canceled)

// DeliverRequest asks for the certificates of a ControllerConfig on the host.
type DeliverRequest struct {
	// Name is the name and resource version of the ControllerConfig.
	Name string
	// Config is the ControllerConfig as JSON, with the fields that are delivered.
	Config []byte
	// Policy is the MachineConfiguration as JSON or nil.
	Policy []byte
}
