// SPDX-License-Identifier: Apache-2.0

// Package daemon is the state machine of a node. It watches the Node object and decides the next phase on the way to
// the desired configuration (phase.go). The hands do the phase on the host, and the package reports to the cluster.
package daemon

import (
	"context"
	"time"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/drain"
	"github.com/noderefit/noderefit/hands"
	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/pins"
	"github.com/noderefit/noderefit/plan"
)

// Hands do the work on the host. Each operation is a process of the host: an operation that changes the host continues
// when the caller ends. Errors are a *Refused (another operation is at work: try again), an *UnreachableError (the
// configuration can't be reached from here), or an error that another try may mend.
type Hands interface {
	// Status reads the state of the host.
	Status(ctx context.Context) (*host.Status, error)
	// Plan returns the plan from the host's configuration to the requested one. It changes nothing.
	Plan(ctx context.Context, r hands.Request) (*plan.Plan, error)
	// Stage refuses an update that can't work, and brings the OS to the disk. It attaches to a running stage of the same
	// configuration. It is stopped when ctx ends with the cause ErrSuperseded, and otherwise continues.
	Stage(ctx context.Context, r hands.Request) error
	// Unstage stops a running stage, and removes an OS that was brought to the disk and did not boot. Unstage is stopped
	// as Stage is, and the next call continues the work.
	Unstage(ctx context.Context) error
	// Apply carries the plan out. It attaches to an apply of the same configuration that is already running. When ctx
	// ends, the operation goes on.
	Apply(ctx context.Context, r hands.Request) (*host.Result, error)
}

// Senses are the other messages between head and host.
type Senses interface {
	// Config returns the host's copy of a rendered configuration: a MachineConfig as JSON.
	Config(ctx context.Context, name string) ([]byte, error)
	// NodeReady reports the API server's view of the node to the verdict on the host. heard is when the node's kubelet has
	// last spoken to the API server; the zero time where that is not known.
	NodeReady(ctx context.Context, ready bool, why string, heard time.Time) error
	// NodeHeld reports to an apply on the host whether the node is as the drain left it, or may have pods again. An update
	// on a node that may have pods is not committed.
	NodeHeld(ctx context.Context, held bool, why string) error
	// Changed delivers when the host's record may have changed. It is never closed.
	Changed() <-chan struct{}
}

// Asker asks the hooks of the host, and those that the request names, whether a drain may begin.
type Asker interface {
	// Ask runs the hooks one after the other. A refusal is a *hooks.Error. Ask is stopped as Stage is.
	Ask(ctx context.Context, r hands.Request) error
}

// Rebooter knows what wants a reboot of the host, and carries out an ordered one.
type Rebooter interface {
	// RebootWanted asks everything that may want a reboot of the host. The next status has the answer.
	RebootWanted(ctx context.Context) error
	// Reboot reboots the host once, as the request orders. An order that was carried out is not carried out again.
	Reboot(ctx context.Context, r hands.Request) (*host.Result, error)
}

// Pinner keeps images on the host, by its container runtime.
type Pinner interface {
	// Keep pulls and pins images for a while, and unpins those of ours that are not wanted. It ends soon when ctx ends.
	// The error is that of a runtime that can't be asked.
	Keep(ctx context.Context, o pins.Order) (pins.State, error)
}

// Verifier compares the host with its committed configuration, and writes back differences.
type Verifier interface {
	Verify(ctx context.Context) (*host.Verification, error)
	// Repair changes files, links, units and users, and never reboots or drains. It is all or nothing.
	Repair(ctx context.Context, r hands.RepairRequest) (*host.Result, error)
}

// Deliverer writes the files that are renewed beside the configurations. It never reboots or drains, and is refused
// while an update is under way on the host. An error together with a Delivery is about a part: the rest was delivered.
type Deliverer interface {
	Deliver(ctx context.Context, r hands.DeliverRequest) (*host.Delivery, error)
}

// Monitor announces possible drift of the host.
type Monitor interface {
	// Watch replaces the watched paths: those of a Verification.
	Watch(paths []string)
	// Touched delivers when the content of a watched path may have changed. It is never closed.
	Touched() <-chan struct{}
	// Blind returns the reason why a change may be announced late or not at all; nil: every change is announced.
	Blind() error
}

// Drainer empties the node of the pods that can run elsewhere; see package drain. It never touches the cordon.
type Drainer interface {
	// Forecast returns what a drain by a policy, or without a policy, would wait for, before anything is evicted.
	Forecast(ctx context.Context, policy *api.DrainPolicy) (api.Drain, error)
	// Run returns nil when every pod that has to go is gone. Run calls report with what the drain waits for, at each
	// change.
	Run(ctx context.Context, r drain.Request, report func(api.Drain)) error
}
