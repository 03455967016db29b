// SPDX-License-Identifier: Apache-2.0

package api

import "time"

const (
	// RebootWantedKey is the annotation of a Node that holds a RebootWanted: why the host needs a reboot. The daemon writes
	// it, and takes it away when nothing wants a reboot any more.
	RebootWantedKey = ownPrefix + "reboot-wanted"
	// RebootKey is the annotation of a Node or a MachineConfigPool that holds a RebootRequest. People write it, by
	// kubectl refit reboot.
	RebootKey = ownPrefix + "reboot"
	// RebootedKey is the annotation of a Node that holds a Rebooted: what became of the latest RebootOrder. The daemon
	// writes it.
	RebootedKey = ownPrefix + "rebooted"
)

// RebootKind is what wants a reboot.
type RebootKind string

// What wants a reboot of a host.
const (
	// RebootPackages: /run/reboot-required, or needs-restarting.
	RebootPackages RebootKind = "Packages"
	// RebootKernel: a newer kernel is installed than the one that runs.
	RebootKernel RebootKind = "Kernel"
	// RebootDeployment: another program staged a deployment.
	RebootDeployment RebootKind = "Deployment"
	// RebootHook: a hook of the host says so.
	RebootHook RebootKind = "Hook"
	// RebootConfiguration: a configuration is committed, and its reboot is left to people (reboots: Manual).
	RebootConfiguration RebootKind = "Configuration"
)

// RebootWanted is why a host needs a reboot.
type RebootWanted struct {
	// Reasons are sorted by kind. Each kind is there once.
	Reasons []RebootReason `json:"reasons"`
}

// RebootReason is one cause.
type RebootReason struct {
	Kind RebootKind `json:"kind"`
	// Message is one line for people.
	Message string `json:"message"`
	// Packages are those that asked, at most 20, and More counts the others.
	Packages []string  `json:"packages,omitempty"`
	More     int       `json:"more,omitempty"`
	Since    time.Time `json:"since"`
}

// RebootRequest is a person's order that a node, or each node of a pool, reboots once.
type RebootRequest struct {
	By    string    `json:"by"`
	Why   string    `json:"why"`
	Since time.Time `json:"since"`
	// Soft is true where a restart of the userspace is enough.
	Soft bool `json:"soft,omitempty"`
	// Bypass is true where windows do not count.
	Bypass bool `json:"bypass,omitempty"`
}

// RebootOrder has a node's agent drain the node, reboot the host once, and ask for the verdict.
type RebootOrder struct {
	// ID names the order. An order whose ID is in the Node's Rebooted is over.
	ID string `json:"id"`
	// Why is shown to people: the wanted reasons, or the person's.
	Why  string `json:"why"`
	By   string `json:"by,omitempty"`
	Soft bool   `json:"soft,omitempty"`
}

// Rebooted is what became of a RebootOrder.
type Rebooted struct {
	ID    string    `json:"id"`
	Why   string    `json:"why,omitempty"`
	Begun time.Time `json:"begun"`
	// Ended is when the verdict came; zero before that.
	Ended time.Time `json:"ended,omitzero"`
	// Failed is why the boot was not healthy, or the order could not be carried out; empty: it was healthy.
	Failed string `json:"failed,omitempty"`
	// TakenBack is true where the host went back to the deployment before.
	TakenBack bool `json:"takenBack,omitempty"`
}
