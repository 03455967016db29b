// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/message"
)

// Cordon is an entry of the cordon ledger: who cordoned a node, since when and why.
type Cordon struct {
	By     string    `json:"by"`
	Config string    `json:"config"`
	Reason string    `json:"reason"`
	Since  time.Time `json:"since"`
}

// Quarantine is a configuration that failed its verdict on a node.
type Quarantine struct {
	Config string    `json:"config"`
	Node   string    `json:"node,omitempty"`
	Reason string    `json:"reason"`
	Since  time.Time `json:"since"`
	// Gate of a RolloutPolicy that was closed at its deadline, about no single node; empty: the verdict was no.
	Gate string `json:"gate,omitempty"`
}

// Lifted is a quarantine that somebody took back: the failures that they knew of, and no later one.
type Lifted struct {
	Config   string    `json:"config"`
	Failures []Failure `json:"failures"`
	// By is who took it back as the API server knows them, Since when by their own clock, and Why in their own words. Each
	// may be missing.
	By    string    `json:"by,omitempty"`
	Since time.Time `json:"since,omitzero"`
	Why   string    `json:"why,omitempty"`
}

// Failure names a Quarantine of a configuration. Since is the node's own word and is compared for equality alone: no
// two machines have the same clock.
type Failure struct {
	Node  string    `json:"node"`
	Since time.Time `json:"since"`
}

// Covers says that q is among what was taken back.
func (l Lifted) Covers(q Quarantine) bool {
	return SameContent(l.Config, q.Config) && slices.ContainsFunc(l.Failures, func(f Failure) bool {
		return f.Node == q.Node && f.Since.Equal(q.Since)
	})
}

// Unmade says of an object whose kind has no status why no MachineConfig is made of it, of which generation, and for
// which pools: for all if Pools is empty.
type Unmade struct {
	Reason     string    `json:"reason"`
	Generation int64     `json:"generation"`
	Since      time.Time `json:"since"`
	Pools      []string  `json:"pools,omitempty"`
}

// digits is how long the digest in a rendered configuration's name is.
const digits = 32

// Content is what stands in a rendered configuration's name for what is in it, whichever pool it was rendered for; of
// any other name it is the name.
func Content(config string) string {
	rest, is := strings.CutPrefix(config, "rendered-")
	at := len(rest) - digits - 1
	if !is || at < 1 || rest[at] != '-' || strings.Trim(rest[at+1:], "0123456789abcdef") != "" {
		return config
	}
	return rest[at+1:]
}

// SameContent says that two configurations, by their names, are the same but for the pool.
func SameContent(a, b string) bool { return a != "" && (a == b || Content(a) == Content(b)) }

// Pin holds a pool at Config, until it is taken away or the pool's MachineConfigs render to something else than From.
type Pin struct {
	Config string    `json:"config"`
	From   string    `json:"from"`
	Since  time.Time `json:"since"`
}

// Update is when a node began to go to a configuration, by its own clock as the times of its conditions are.
type Update struct {
	Config string    `json:"config"`
	Since  time.Time `json:"since"`
}

// Awaited is since when a node is known to reboot into a configuration or to prove it, and since when that takes longer
// than it may; zero: it does not. Both are by the clock of who writes it: a host that has lost its own way back says
// nothing of that.
type Awaited struct {
	Config  string    `json:"config"`
	Since   time.Time `json:"since"`
	Overdue time.Time `json:"overdue,omitzero"`
	// Said is a digest of what the node said of itself when it was sent elsewhere; empty: it was not. Until the node says
	// something else, it has not answered, and Config is waited for still.
	Said string `json:"said,omitempty"`
}

// Drain is where a drain is: what it waits for, and what it is expected to wait for.
type Drain struct {
	Config string    `json:"config"`
	Since  time.Time `json:"since"`
	// Left counts the pods that still have to go; Waiting has the first of them, those that are blocked first.
	Left    int          `json:"left"`
	Waiting []WaitingPod `json:"waiting,omitempty"`
	// Phase and what follows is said where a policy says how the node is drained: since when it is at that, and when that
	// has to be over, zero: never. OnTimeout is what happens then.
	Phase      DrainPhase   `json:"phase,omitempty"`
	PhaseSince time.Time    `json:"phaseSince,omitzero"`
	Limit      time.Time    `json:"limit,omitzero"`
	OnTimeout  DrainTimeout `json:"onTimeout,omitempty"`
	// Volumes are attached still.
	Volumes []WaitingVolume `json:"volumes,omitempty"`
	// Forced are the pods that were deleted although they refused to go, as namespace/name.
	Forced []string `json:"forced,omitempty"`
}

// WaitingPod is a pod that a drain waits for.
type WaitingPod struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Since     time.Time `json:"since"`
	// Why is one of the DrainWait constants.
	Why string `json:"why"`
	// Budget is the PodDisruptionBudget that refuses, and Allowed how many disruptions it allows now.
	Budget  string `json:"budget,omitempty"`
	Allowed int32  `json:"allowed"`
	// Placement says whether any node could take the pod: counts of nodes by what rules them out, in words.
	Placement string `json:"placement,omitempty"`
	Message   string `json:"message,omitempty"`
}

// Why a drain waits for a pod: also the label of the metric, so the list stays short.
const (
	DrainWaitBudget      = "DisruptionBudget"
	DrainWaitTerminating = "Terminating"
	DrainWaitRefused     = "Refused" // an admission webhook or a quota
	DrainWaitError       = "Error"
	// DrainWaitComesBack: evicted, a pod of the same controller comes to the cordoned node again. It is waited for a
	// while, and then left there.
	DrainWaitComesBack = "ComesBack"
)

// Node is what a Node says in its annotations.
type Node struct {
	Current, Desired, Previous string
	State                      State
	Reason                     string
	Cordon                     *Cordon
	Quarantined                []Quarantine
	Lift                       string
	SingleReplica              bool
	Rebooting                  bool
	Drift                      *Drift
	// Synced is the resource version of the ControllerConfig whose certificates the host has, and Undelivered why it has
	// not those of the latest; nil: nothing is known to be wrong.
	Synced      string
	Undelivered *Undelivered
	// Drained is the configuration for which a drain was over; empty: none, or the node was uncordoned since.
	Drained string
	Arrived Arrival
	Orders  Orders
	Awaited Awaited
	// VerdictTimeout is how long the host waits for a verdict; zero: DefaultVerdictTimeout.
	VerdictTimeout time.Duration
	// Excluded is that the node is out of the load balancers by us, DrainHeld that its drain was given up for a while;
	// nil: it is not.
	Excluded  *Exclusion
	DrainHeld *DrainHold
	// Staged is what came of the order to stage ahead; nil: nothing is known.
	Staged *Staged
	// Hold is a person's order to leave the node as it is. It is nil without such an order.
	Hold *NodeHold
	// Trial is a person's order to try a configuration, and Tried how far a trial is. They are nil without one.
	Trial *Trial
	Tried *Tried
	// RebootWanted is why the host wants a reboot, Reboot a person's order for one, and Rebooted what became of the latest
	// order. Each is nil without one.
	RebootWanted *RebootWanted
	Reboot       *RebootRequest
	Rebooted     *Rebooted
	// Bootc reports that bootc-operator manages the node's OS; see BootcManaged.
	Bootc bool
	// RebootWay is how the host was rebooted last, nil where a full reboot was asked for.
	RebootWay *RebootWay
	// Values are the values of the node for Desired, where that names some. Desired, Current and Lift are then the names
	// of what the node makes of its pool's configuration; see MadeName.
	Values ToldValues
	// Pins are the sets of images that the node is to have, and Pinned what it has of them. They are nil without any.
	Pins   *PinOrder
	Pinned *Pinned
}

// Undelivered is why a host does not have the certificates of the ControllerConfig. The node's updates continue.
type Undelivered struct {
	Reason string    `json:"reason"`
	Since  time.Time `json:"since"`
}

func (u *Undelivered) believed() *Undelivered {
	if u != nil {
		u.Reason = shorten(u.Reason, quarantineReason)
	}
	return u
}

// What is believed of a Node's quarantine: a node that writes more than an agent does must not fill up its pool.
const (
	nodeQuarantines  = 10
	quarantineReason = 512
	longestName      = 253
	longestVerdict   = 24 * time.Hour
)

// ReadNode reads a Node's annotations. What can't be read is as if it were not there, and named in the error; the rest
// is read all the same.
func ReadNode(n *corev1.Node) (Node, error) {
	a := n.Annotations
	out := Node{
		Current: a[CurrentConfig], Desired: a[DesiredConfig], Previous: a[PreviousConfig],
		State: State(a[StateKey]), Reason: ShortReason(a[Reason]), Lift: a[Lift],
		SingleReplica: a[ControlPlaneTopology] == TopologySingleReplica,
		Rebooting:     a[PostConfigAction] == PostConfigActionRebooting,
	}
	_, out.Bootc = n.Labels[BootcManaged]
	cordon, cordonErr := Decode[*Cordon](a, CordonKey)
	quarantined, quarantinedErr := Decode[[]Quarantine](a, QuarantinedKey)
	drift, driftErr := Decode[*Drift](a, DriftKey)
	undelivered, undeliveredErr := Decode[*Undelivered](a, UndeliveredKey)
	arrived, arrivedErr := Decode[Arrival](a, ArrivedKey)
	orders, ordersErr := Decode[Orders](a, OrdersKey)
	excluded, excludedErr := Decode[*Exclusion](a, ExcludedKey)
	held, heldErr := Decode[*DrainHold](a, DrainHeldKey)
	staged, stagedErr := Decode[*Staged](a, StagedKey)
	awaited, awaitedErr := Decode[Awaited](a, AwaitedKey)
	hold, holdErr := heldByPerson(a)
	trial, tried, trialErr := trialOf(a)
	var pinsErr error
	out.Pins, out.Pinned, pinsErr = pinsOf(a)
	var rebootErr error
	out.RebootWanted, out.Reboot, out.Rebooted, rebootErr = rebootsOf(a)
	way, wayErr := Decode[*RebootWay](a, RebootWayKey)
	out.RebootWay = way.believed()
	if limit, err := time.ParseDuration(a[VerdictTimeoutKey]); err == nil && limit > 0 {
		out.VerdictTimeout = min(limit, longestVerdict)
	}
	out.Awaited, out.Hold, out.Trial, out.Tried = awaited, hold, trial, tried
	if config, is := strings.CutPrefix(a[LastAppliedDrain], "drain-"); is {
		out.Drained = config
	}
	out.Arrived, out.Orders, out.Staged = arrived, orders, staged.believed()
	out.Excluded, out.DrainHeld = excluded, held.believed()
	out.Cordon, out.Quarantined, out.Drift = cordon, believed(quarantined), drift.believed()
	out.Synced, out.Undelivered = a[SyncedControllerConfig], undelivered.believed()
	err := errors.Join(nameMade(&out, a), cordonErr, quarantinedErr, driftErr, undeliveredErr, arrivedErr, ordersErr,
		excludedErr, heldErr, stagedErr, awaitedErr, holdErr, trialErr, rebootErr, pinsErr,
		wayErr)
	if err != nil {
		return out, fmt.Errorf("node %s: %w", n.Name, err)
	}
	return out, nil
}

// believed are the last entries of a Node's quarantine, which an agent writes in the order of their time.
func believed(list []Quarantine) []Quarantine {
	list = slices.DeleteFunc(list, func(q Quarantine) bool { return q.Config == "" || len(q.Config) > longestName })
	list = list[max(0, len(list)-nodeQuarantines):]
	for i := range list {
		list[i].Reason = shorten(list[i].Reason, quarantineReason)
	}
	return list
}

// Decode reads the document in an annotation; the zero value where there is none.
func Decode[T any](annotations map[string]string, key string) (T, error) {
	var v, none T
	text := annotations[key]
	if text == "" {
		return none, nil
	}
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		return none, fmt.Errorf("annotation %s: %w", key, err)
	}
	return v, nil
}

// Encode writes the document for an annotation.
func Encode(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err) // the types above have nothing that JSON can't hold
	}
	return string(data)
}

// ShortReason cuts a reason to what an annotation takes, on one line.
func ShortReason(text string) string {
	text = message.OneLine(text)
	return shorten(text, ReasonLimit)
}

func shorten(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return message.Cut(text, limit-len("…")) + "…"
}

// ReasonRolledBack begins the reason of a node in state RolledBack; the configuration that failed comes behind it.
const ReasonRolledBack = "rolled back from "

// RolledBackFrom is the configuration that a node says it came back from; empty: it says none.
func (n Node) RolledBackFrom() string {
	rest, ok := strings.CutPrefix(n.Reason, ReasonRolledBack)
	if !ok || n.State != RolledBack {
		return ""
	}
	config, _, ok := strings.Cut(rest, " to ")
	if !ok || len(config) > longestName {
		return ""
	}
	return config
}
