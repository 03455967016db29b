// SPDX-License-Identifier: Apache-2.0

package api

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	// RebootWantedKey is the annotation of a Node that holds a RebootWanted: why the host needs a reboot. The daemon
	// writes it, and takes it away when nothing wants a reboot any more.
	RebootWantedKey = ownPrefix + "reboot-wanted"
	// RebootKey is the annotation of a Node or a MachineConfigPool that holds a RebootRequest. People write it, by
	// kubectl refit reboot.
	RebootKey = ownPrefix + "reboot"
	// RebootedKey is the annotation of a Node that holds a Rebooted: what became of the latest RebootOrder. The daemon
	// writes it.
	RebootedKey = ownPrefix + "rebooted"
	// RebootWayKey is the annotation of a Node that holds a RebootWay: how the agent rebooted the host last, where another
	// method than Full was asked for. The daemon writes it.
	RebootWayKey = ownPrefix + "reboot-way"
)

// RebootMethod is how a host reboots.
// +kubebuilder:validation:Enum=Full;Soft;Kexec;Command
type RebootMethod string

// The methods. What a host can't do becomes a full reboot, and RebootWay has the reason.
const (
	// RebootFull: an orderly reboot of the machine, with its firmware and boot loader.
	RebootFull RebootMethod = "Full"
	// RebootSoft: of the userspace alone, where the changes need no more.
	RebootSoft RebootMethod = "Soft"
	// RebootKexec: the running kernel starts the next one, without firmware and boot loader.
	RebootKexec RebootMethod = "Kexec"
	// RebootCommand: a command of the host's own reboots it.
	RebootCommand RebootMethod = "Command"
)

// RebootMethods are all methods.
var RebootMethods = []RebootMethod{RebootFull, RebootSoft, RebootKexec, RebootCommand}

// RebootWay is how a host was rebooted, where another method than RebootFull was asked for.
type RebootWay struct {
	Asked RebootMethod `json:"asked"`
	// Started is the method by which the reboot was started. Took is the method that the boot proved; empty before it.
	Started RebootMethod `json:"started"`
	Took    RebootMethod `json:"took,omitempty"`
	// Why is why Started or Took is another method than Asked.
	Why string `json:"why,omitempty"`
}

// believed is what can be true of it.
func (w *RebootWay) believed() *RebootWay {
	if w == nil || !slices.Contains(RebootMethods, w.Asked) || !slices.Contains(RebootMethods, w.Started) ||
		w.Took != "" && !slices.Contains(RebootMethods, w.Took) {
		return nil
	}
	w.Why = line(w.Why, quarantineReason)
	return w
}

// FellBack reports whether the host took another method than the one that was asked for.
func (w *RebootWay) FellBack() bool { return w != nil && w.Why != "" }

// String returns the way for people.
func (w *RebootWay) String() string {
	text := string(w.Took)
	if w.Took == "" {
		text = string(w.Started) + ", which is under way"
	}
	if w.FellBack() {
		text += ", and not " + string(w.Asked) + ": " + w.Why
	}
	return text
}

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

// ReasonNeedsReboot begins the reason of a node whose configuration is committed, and whose reboot is left to people.
// Its state is Working, and it serves.
const ReasonNeedsReboot = "NeedsReboot: "

// RebootKinds are all kinds.
var RebootKinds = []RebootKind{RebootConfiguration, RebootDeployment, RebootHook, RebootKernel, RebootPackages}

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

// Text returns the message with the packages that asked, for people.
func (r RebootReason) Text() string {
	text := cmp.Or(r.Message, string(r.Kind))
	if len(r.Packages) == 0 {
		return text
	}
	text += " (" + strings.Join(r.Packages, ", ")
	if r.More > 0 {
		text += fmt.Sprintf(" and %d more", r.More)
	}
	return text + ")"
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
	// Soft is true where only the userspace was restarted.
	Soft bool `json:"soft,omitempty"`
}

// RebootMode is what a RolloutPolicy does about hosts that want a reboot.
// +kubebuilder:validation:Enum=Report;Roll;Never;Manual
type RebootMode string

// What it does.
const (
	// RebootsReport: the wanted reboot is shown. It is the default.
	RebootsReport RebootMode = "Report"
	// RebootsRoll: nodes reboot in their turn.
	RebootsRoll RebootMode = "Roll"
	// RebootsNever: the wanted reboot is shown, and a person's order needs a bypass.
	RebootsNever RebootMode = "Never"
	// RebootsManual: configurations too are committed without their reboot, which people order.
	RebootsManual RebootMode = "Manual"
)

// PoolRebootsWanted is the condition of a MachineConfigPool that hosts of its nodes want a reboot.
const PoolRebootsWanted = "RebootsWanted"

// What is believed of a Node's reboots: a node that writes more than an agent does must not fill up its pool.
const (
	rebootReasons  = 8
	rebootPackages = 20
	rebootID       = 128
)

// rebootsOf reads what a Node says of reboots. A reason that is not whole counts as no reason, and a request that is
// not whole as no request: a slip of the pen must not reboot a node.
func rebootsOf(annotations map[string]string) (*RebootWanted, *RebootRequest, *Rebooted, error) {
	wanted, wantedErr := Decode[*RebootWanted](annotations, RebootWantedKey)
	request, requestErr := RequestedReboot(annotations)
	rebooted, rebootedErr := Decode[*Rebooted](annotations, RebootedKey)
	if rebootedErr == nil && rebooted != nil && (rebooted.ID == "" || len(rebooted.ID) > rebootID) {
		rebooted, rebootedErr = nil, fmt.Errorf("annotation %s: an id of 1 to %d bytes is needed", RebootedKey, rebootID)
	}
	return wanted.believed(), request, rebooted.believed(), errors.Join(wantedErr, requestErr, rebootedErr)
}

// RequestedReboot reads a person's order in the annotations of a Node or a pool. Without an order the result is nil.
func RequestedReboot(annotations map[string]string) (*RebootRequest, error) {
	r, err := Decode[*RebootRequest](annotations, RebootKey)
	if err == nil && r != nil && (r.By == "" || r.Since.IsZero()) {
		err = fmt.Errorf("annotation %s: by and since are needed", RebootKey)
	}
	if err != nil || r == nil {
		return nil, err
	}
	r.By, r.Why = line(r.By, longestName), line(r.Why, quarantineReason)
	return r, nil
}

// believed are the reasons that can be true, sorted by kind, each kind once.
func (w *RebootWanted) believed() *RebootWanted {
	if w == nil {
		return nil
	}
	var reasons []RebootReason
	for _, r := range w.Reasons {
		known := slices.Contains([]RebootKind{RebootPackages, RebootKernel, RebootDeployment, RebootHook,
			RebootConfiguration}, r.Kind)
		there := slices.ContainsFunc(reasons, func(o RebootReason) bool { return o.Kind == r.Kind })
		if !known || there || r.Since.IsZero() || len(reasons) == rebootReasons {
			continue
		}
		r.Message = line(r.Message, quarantineReason)
		more := max(r.More, 0)
		if rest := len(r.Packages) - rebootPackages; rest > 0 {
			r.Packages, more = r.Packages[:rebootPackages], more+rest
		}
		r.Packages, r.More = slices.Clone(r.Packages), more
		for i := range r.Packages {
			r.Packages[i] = line(r.Packages[i], longestName)
		}
		reasons = append(reasons, r)
	}
	if len(reasons) == 0 {
		return nil
	}
	slices.SortFunc(reasons, func(a, b RebootReason) int { return cmp.Compare(a.Kind, b.Kind) })
	return &RebootWanted{Reasons: reasons}
}

func (r *Rebooted) believed() *Rebooted {
	if r != nil {
		r.Why, r.Failed = line(r.Why, quarantineReason), line(r.Failed, quarantineReason)
	}
	return r
}

// String says what became of the order, for people.
func (r *Rebooted) String() string {
	text := "ordered " + r.Begun.UTC().Format(time.RFC3339)
	if r.Why != "" {
		text += " (" + r.Why + ")"
	}
	switch {
	case r.Ended.IsZero():
		return text + ", under way"
	case r.Failed == "":
		return text + ", healthy since " + r.Ended.UTC().Format(time.RFC3339)
	case r.TakenBack:
		return text + ", taken back: " + r.Failed
	}
	return text + ", failed: " + r.Failed
}
