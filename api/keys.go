// SPDX-License-Identifier: Apache-2.0

// Package api is what the parts of Noderefit say to each other through the cluster: keys, states, reasons and the small
// documents that annotations hold. What OpenShift has a word for keeps that word, so that existing YAML, dashboards and
// runbooks work (openshift/machine-config-operator, pkg/daemon/constants); the rest is below noderefit.dev.
//
// +groupName=noderefit.dev
// +versionName=v1alpha1
package api

import (
	"strings"
	"time"
)

// Namespace is where everything runs that is not on a host.
const Namespace = "openshift-machine-config-operator"

// The names of our workloads and of their service accounts.
const (
	Daemon     = "machine-config-daemon"
	Controller = "machine-config-controller"
	Server     = "machine-config-server"
)

// ControllerConfig is the name of the one ControllerConfig.
const ControllerConfig = "machine-config-controller"

// MachineConfiguration is the name of the one MachineConfiguration.
const MachineConfiguration = "cluster"

const (
	prefix    = "machineconfiguration.openshift.io/"
	ownPrefix = "noderefit.dev/"
)

// Annotations of a Node that OpenShift has too.
const (
	// CurrentConfig is the rendered configuration that the node proved healthy on. The daemon writes it.
	CurrentConfig = prefix + "currentConfig"
	// DesiredConfig is the one that it should have. The pool controller writes it, once per node and update.
	DesiredConfig = prefix + "desiredConfig"
	// StateKey holds a State, Reason why it is that, at most ReasonLimit bytes. The daemon writes both.
	StateKey = prefix + "state"
	Reason   = prefix + "reason"
	// DesiredDrain and LastAppliedDrain are "drain-<config>" and "uncordon-<config>": asked for, and done. Our daemon
	// drains by itself and writes both, for those who watch them.
	DesiredDrain     = prefix + "desiredDrain"
	LastAppliedDrain = prefix + "lastAppliedDrain"
	// PostConfigAction is PostConfigActionRebooting from the commit until the daemon has seen the boot after it.
	PostConfigAction = prefix + "post-config-action"
	// SyncedControllerConfig is the resource version of the ControllerConfig whose certificates the host has. It moves
	// when these do, and not with what else the object says. The daemon writes it.
	SyncedControllerConfig = prefix + "lastSyncedControllerConfigResourceVersion"
	// ControlPlaneTopology is SingleReplica where nothing could take a drained pod. The pool controller writes it.
	ControlPlaneTopology = prefix + "controlPlaneTopology"
)

// Values of annotations.
const (
	PostConfigActionRebooting = "Rebooting"
	TopologySingleReplica     = "SingleReplica"
	TopologyHighlyAvailable   = "HighlyAvailable"
	// ReasonLimit is the longest reason, in bytes: an annotation is no log.
	ReasonLimit = 2000
)

// Annotations of a Node that are ours.
const (
	// CordonKey holds a Cordon: that the node was cordoned by us, and why. Without it a cordon is somebody else's.
	CordonKey = ownPrefix + "cordon"
	// PreviousConfig is the configuration that a rollback would go back to: it is kept from garbage collection.
	PreviousConfig = ownPrefix + "previousConfig"
	// QuarantinedKey holds the []Quarantine of the host. The daemon writes it.
	QuarantinedKey = ownPrefix + "quarantined"
	// Lift is the name of a configuration that the node shall try again although it failed here. The pool controller
	// writes it, in the patch that sets DesiredConfig.
	Lift = ownPrefix + "lift"
	// AwaitedKey holds an Awaited: since when a verdict is waited for. The pool controller writes it, by its own clock.
	AwaitedKey = ownPrefix + "awaited"
	// VerdictTimeoutKey is how long after a boot the host waits for a verdict, where that is not the default. The daemon
	// writes it with the reboot.
	VerdictTimeoutKey = ownPrefix + "verdict-timeout"
	// DriftKey holds a Drift: what on the host is not as its configuration says. The daemon writes it.
	DriftKey = ownPrefix + "drift"
	// UndeliveredKey holds an Undelivered: why the certificates of the ControllerConfig are not on the host. The daemon
	// writes it.
	UndeliveredKey = ownPrefix + "certificates"
	// OSKey is how the OS of the host is managed: rpm-ostree, bootc, ostree, or none. The daemon writes it.
	OSKey = ownPrefix + "os"
)

// OfAgent reports whether an annotation of a Node is one that its agent alone writes: each below our prefixes that is
// neither the controller's nor a person's. The admission policies of the two accounts grant by the same list.
func OfAgent(key string) bool {
	switch key {
	case DesiredConfig, ControlPlaneTopology, ArrivedKey, AwaitedKey, OrdersKey, Lift, HoldKey, TrialKey, TriedKey,
		RebootKey, ValuesKey, EntriesKey, PinOrderKey:
		return false
	}
	return Owned(key) && !strings.HasPrefix(key, AskPrefix)
}

// Owned reports whether an annotation of a Node is Noderefit's, whoever writes it.
func Owned(key string) bool {
	return strings.HasPrefix(key, prefix) || strings.HasPrefix(key, ownPrefix)
}

// DefaultVerdictTimeout is how long a booted configuration may take to prove healthy: longer than a slow machine needs
// for its services, short enough that a bad one is gone before a person is at the desk.
const DefaultVerdictTimeout = 10 * time.Minute

// DriftPolicyKey holds a DriftPolicy: on a MachineConfigPool as people write it, on the pool's rendered configurations
// as the render controller carries it to the nodes.
const DriftPolicyKey = ownPrefix + "drift-policy"

// SignaturesKey holds signatures of configurations, a line each: a digest and the signature in base64. People write it
// on a MachineConfig, by kubectl refit sign. The render controller carries each signature to the rendered configuration
// with that digest.
const SignaturesKey = ownPrefix + "signatures"

// SignedByKey is the annotation of a MachineConfigPool that holds public keys in PEM: the pool is sent only to
// configurations that one of them signed. People write it.
const SignedByKey = ownPrefix + "signed-by"

// DrainKey is the annotation of a MachineConfigNode that holds a Drain: what a drain that waits is waiting for.
const DrainKey = ownPrefix + "drain"

// UpdateKey is the annotation of a MachineConfigNode that holds an Update: when the node's last one began. The daemon
// writes it along with the configuration that is desired.
const UpdateKey = ownPrefix + "update"

// Annotations of a MachineConfigPool that are ours.
const (
	// PoolQuarantineKey holds the []Quarantine of a pool: configurations that some node rolled back from. The pool
	// controller writes it.
	PoolQuarantineKey = ownPrefix + "quarantined"
	// LiftedKey holds the []Lifted: quarantines that somebody took back. People write it, by kubectl refit.
	LiftedKey = ownPrefix + "lifted"
	// PinKey holds a Pin: the configuration that the pool shall have instead of what its MachineConfigs render to.
	// People write it, by kubectl refit; the render controller removes it once the MachineConfigs render to something else
	// than what was rolled back from.
	PinKey = ownPrefix + "pin"
	// HistoryKey holds the names of the configurations that the whole pool had before the present one, as a JSON list,
	// the latest first: what a rollback may go back to. The pool controller writes it.
	HistoryKey = ownPrefix + "history"
	// Runtime is "crio" or "containerd": the container runtime of a pool whose Nodes do not say it, or not yet. People
	// write it.
	Runtime = ownPrefix + "container-runtime"
	// RenderedGeneration is the generation of the pool that the render controller has looked at to the end. It writes it,
	// so that the pool's status does not claim to have seen a change that only one of two controllers has.
	RenderedGeneration = ownPrefix + "rendered-generation"
	// DrainSingleNode is "true" where the only node of a cluster shall be drained all the same.
	DrainSingleNode = ownPrefix + "drain-single-node"
)

// NameSuffix is the annotation of a KubeletConfig or ContainerRuntimeConfig that says where it stands among those of
// its pools: "" is the first, then "1" to "9", and a later one wins. It ends the names of its MachineConfigs. Their
// controllers write it where nobody else did.
const NameSuffix = prefix + "mc-name-suffix"

// GeneratedBy is the annotation of what a controller made: the controller's version.
const GeneratedBy = prefix + "generated-by-controller-version"

// AcceptedKey is the annotation of a MachineConfig that was made of a KubeletConfig, a ContainerRuntimeConfig or
// mirrors: what was asked for there when it was last accepted, as JSON. Their controllers write it.
const AcceptedKey = ownPrefix + "accepted"

// UnmadeKey is the annotation of an object that MachineConfigs are made of and that has no status, such as an
// ImageDigestMirrorSet. It holds an Unmade while something is wrong. The controller writes it.
const UnmadeKey = ownPrefix + "failure"

// RestoredFrom is the annotation of a rendered MachineConfig that somebody had deleted and a node gave back: the node.
const RestoredFrom = ownPrefix + "restored-from"

// Annotations of the ControllerConfig that are ours. People write them.
const (
	// Templates names the set of templates that MachineConfigs are made of. Without it none are made.
	Templates = ownPrefix + "templates"
	// TemplateValue, with a name behind it, is the prefix of what the set is told.
	TemplateValue = "templates." + ownPrefix
)

// MadeAs is the annotation of a MachineConfig that was made of templates: its name, a slash, and a digest of what it
// was made as. So a copy is told from it, and what somebody changed of it from what the templates did. The template
// controller writes it.
const MadeAs = ownPrefix + "made-as"

// Annotations for machines of Cluster API.
const (
	// MachinePoolKey is the annotation of a Machine that names the pool of its node. People write it in the template of a
	// MachineDeployment.
	MachinePoolKey = ownPrefix + "pool"
	// ClusterAPIKey is the annotation of the MachineConfig that the extension for Cluster API made for a pool: JSON, what
	// was asked for, and by which nodes. The extension writes it.
	ClusterAPIKey = ownPrefix + "cluster-api"
)

// Labels.
const (
	// Role says, on a MachineConfig, which pools select it.
	Role = prefix + "role"
	// NodeRole, with a role behind it, is the label that puts a node into that role.
	NodeRole = "node-role.kubernetes.io/"
	// Zone orders a rollout.
	Zone = "topology.kubernetes.io/zone"
)

// The pools that need no object to be known by name.
const (
	PoolMaster       = "master"
	PoolControlPlane = "control-plane"
	PoolWorker       = "worker"
	PoolArbiter      = "arbiter"
)

// UpdateInProgressTaint is on a node that is not at its pool's configuration yet, with the effect PreferNoSchedule:
// what is evicted elsewhere had better not land where it will be evicted again.
const UpdateInProgressTaint = "UpdateInProgress"

// StartupTaint keeps pods away from a node that joins, until it is at its configuration: the kubelet registers with it,
// where it is told to, and the node's agent takes it away. OpenShift has no word for it.
const StartupTaint = ownPrefix + "not-configured"

// State is what a node says about itself.
type State string

// The states. RolledBack is ours; the others are OpenShift's.
const (
	Done           State = "Done"
	Working        State = "Working"
	Degraded       State = "Degraded"
	Unreconcilable State = "Unreconcilable"
	// RolledBack: the configuration that the node was to get failed its verdict, the node is back on the one before and
	// serves. It stays so until it is pointed elsewhere.
	RolledBack State = "RolledBack"
)

// Bad says that the node can't get to its desired configuration without somebody changing something.
func (s State) Bad() bool { return s == Degraded || s == Unreconcilable || s == RolledBack }

// NoMachineConfigs is the reason of PoolRenderPending that there is no MachineConfig for the pool, and never was one.
const NoMachineConfigs = "NoMachineConfigs"

// PartRefused is the reason of PoolRenderPending that something the pool's configuration is made of was not accepted as
// it is. What it was before stays, and everything else goes on.
const PartRefused = "Refused"

// Rendering is the reason of PoolRenderPending that something has changed which the pool's configuration is made of:
// it is about to be rendered again.
const Rendering = "Rendering"

// RenderPinned is the reason of RenderDegraded, which is false then, that a rollback holds the pool at a configuration
// that its MachineConfigs do not make.
const RenderPinned = "Pinned"

// Conditions that kstatus knows, and by it Flux, Argo CD and others: on the way, and stuck until somebody changes
// something. An object has them as well as those of its own kind.
const (
	Reconciling = "Reconciling"
	Stalled     = "Stalled"
)

// NodeDisruptionPolicyDegraded is the condition of the MachineConfiguration that is ours: its node disruption policies
// can't be honoured as they are. It is named as upstream's about boot images.
const NodeDisruptionPolicyDegraded = "NodeDisruptionPolicyDegraded"

// Reasons of NodeDisruptionPolicyDegraded.
const (
	PolicyInForce = "AsExpected"
	// PolicyInvalid: nodes refuse the policies, and do not update.
	PolicyInvalid = "InvalidSpec"
	// PolicyWithoutEffect: an entry covers nothing; the others are in force.
	PolicyWithoutEffect = "EntriesWithoutEffect"
)

// Conditions of a MachineConfigPool that are ours, beside those of openshift/api.
const (
	// PoolRenderPending: something that the pool's configuration is made of is not finished, such as a KubeletConfig, or
	// there is nothing yet to make its first one of, which is the reason NoMachineConfigs.
	PoolRenderPending = "RenderPending"
	// PoolRenderWarning: the pool's configuration was rendered, and a part of it may be a mistake, such as a field that
	// does not exist. The condition holds nothing up.
	PoolRenderWarning = "RenderWarning"
	// PoolQuarantined: the pool's configuration failed on a node and is offered to no other.
	PoolQuarantined = "Quarantined"
	// PoolDrifted: a node's host is not as its configuration says. It holds nothing up.
	PoolDrifted = "Drifted"
)

// Ignored is the condition of the MachineConfiguration that fields of its spec have no effect
// here. It holds nothing up. NotSupported is its reason while there are any, and AllSupported once there are none.
const (
	Ignored      = "FieldsIgnored"
	NotSupported = "NotSupported"
	AllSupported = "AsExpected"
)
