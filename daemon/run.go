// SPDX-License-Identifier: Apache-2.0

// Package daemon is the state machine of a node. It watches the Node object, decides the next phase on the way to the
// desired configuration (phase.go), has the hands do the phase on the host, and reports to the cluster.
package daemon

import (
	"context"
	"time"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/drain"
	"github.com/noderefit/noderefit/hands"
	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/plan"
)

// Hands do on the host what has to be done there. Each operation is a process of the host's: that the caller goes away
// ends none that changes anything. Errors are a *Refused (something else is at work: try again), an *UnreachableError
// (it can't be reached from here) or something that another try may mend.
type Hands interface {
	// Status reads where the host is.
	Status(ctx context.Context) (*host.Status, error)
	// Plan is the way from what the host has to what the request names. It touches nothing.
	Plan(ctx context.Context, r hands.Request) (*plan.Plan, error)
	// Stage refuses what can't work and brings the OS to the disk. It attaches to one of the same configuration that is
	// already running. It is stopped when ctx ends with the cause ErrSuperseded, and otherwise goes on.
	Stage(ctx context.Context, r hands.Request) error
	// Unstage stops a stage that still runs and lets go of what was brought to the disk and did not boot. It is stopped
	// as Stage is, and takes up what was left the next time.
	Unstage(ctx context.Context) error
	// Apply carries the plan out. It attaches to an apply of the same configuration that is already running. When ctx
	// ends, the operation goes on.
	Apply(ctx context.Context, r hands.Request) (*host.Result, error)
}

// Senses are what head and host tell each other besides.
type Senses interface {
	// Config is the host's copy of a rendered configuration: a MachineConfig as JSON.
	Config(ctx context.Context, name string) ([]byte, error)
	// NodeReady tells the verdict on the host what the API server says of the node, and when its kubelet had last spoken
	// to that; the zero time where it does not say.
	NodeReady(ctx context.Context, ready bool, why string, heard time.Time) error
	// NodeHeld tells an apply on the host whether the node is as the drain has left it, or may have pods again since. What
	// was told that it may is not committed.
	NodeHeld(ctx context.Context, held bool, why string) error
	// Changed delivers when the host's record may have changed. It is never closed.
	Changed() <-chan struct{}
}

// Asker asks the hooks of the host, and those that the request names, whether a drain may begin.
type Asker interface {
	// Ask runs them one after the other. A no is a *hooks.Error. It is stopped as Stage is.
	Ask(ctx context.Context, r hands.Request) error
}

// Verifier compares the host with its committed configuration, and writes back what differs.
type Verifier interface {
	Verify(ctx context.Context) (*host.Verification, error)
	// Repair changes files, links, units and users, and never reboots or drains. It is all or nothing.
	Repair(ctx context.Context, r hands.RepairRequest) (*host.Result, error)
}

// Deliverer writes what is renewed beside the configurations. It never reboots or drains, and is refused while an
// update is under way on the host. An error that comes with a Delivery is about a part: the rest was delivered.
type Deliverer interface {
	Deliver(ctx context.Context, r hands.DeliverRequest) (*host.Delivery, error)
}

// Monitor tells when the host may have drifted.
type Monitor interface {
	// Watch replaces the paths that are watched: those of a Verification.
	Watch(paths []string)
	// Touched delivers when something at one of them may have changed. It is never closed.
	Touched() <-chan struct{}
	// Blind says why a change may be told late or not at all; nil: none is.
	Blind() error
}

// Drainer empties the node of the pods that can run elsewhere; see package drain. It never touches the cordon.
type Drainer interface {
	// Forecast is what a drain by a policy, or by none, would wait for, before anything is evicted.
	Forecast(ctx context.Context, policy *api.DrainPolicy) (api.Drain, error)
	// Run returns nil when every pod that has to go is gone. report is told what it waits for, whenever that changes.
	Run(ctx context.Context, r drain.Request, report func(api.Drain)) error
}
