// SPDX-License-Identifier: Apache-2.0

package progress

// Verdict is the cause that keeps a node or a pool from where it should be, in one word.
type Verdict string

// The verdicts. Verdicts has the meaning of each.
const (
	NoPool         Verdict = "NoPool"
	SeveralPools   Verdict = "SeveralPools"
	ConfigMissing  Verdict = "ConfigMissing"
	RolledBack     Verdict = "RolledBack"
	Unreconcilable Verdict = "Unreconcilable"
	Degraded       Verdict = "Degraded"
	Rebooting      Verdict = "Rebooting"
	RebootFailed   Verdict = "RebootFailed"
	NeedsReboot    Verdict = "NeedsReboot"
	RebootWanted   Verdict = "RebootWanted"
	NotReady       Verdict = "NotReady"
	NoDaemon       Verdict = "NoDaemon"
	NotTakenUp     Verdict = "NotTakenUp"
	HeldByHook     Verdict = "HeldByHook"
	Draining       Verdict = "Draining"
	DrainHeld      Verdict = "DrainHeld"
	Updating       Verdict = "Updating"
	Undelivered    Verdict = "Undelivered"
	Misconfigured  Verdict = "Misconfigured"
	RenderDegraded Verdict = "RenderDegraded"
	RenderPending  Verdict = "RenderPending"
	NotRendered    Verdict = "NotRendered"
	NoNodes        Verdict = "NoNodes"
	Quarantined    Verdict = "Quarantined"
	Withheld       Verdict = "Withheld"
	Paused         Verdict = "Paused"
	PolicyUnusable Verdict = "PolicyUnusable"
	FailureBudget  Verdict = "FailureBudget"
	WaitsForPool   Verdict = "WaitsForPool"
	OutsideWindow  Verdict = "OutsideWindow"
	StagingAhead   Verdict = "StagingAhead"
	NeedsApproval  Verdict = "NeedsApproval"
	CannotStage    Verdict = "CannotStage"
	WaitsForStage  Verdict = "WaitsForStage"
	HeldByPerson   Verdict = "HeldByPerson"
	Skipped        Verdict = "Skipped"
	Trying         Verdict = "Trying"
	BootcOperator  Verdict = "BootcOperator"
	Soaking        Verdict = "Soaking"
	Cordoned       Verdict = "Cordoned"
	Drifted        Verdict = "Drifted"
	UpToDate       Verdict = "UpToDate"
	GateClosed     Verdict = "GateClosed"
	GateFailed     Verdict = "GateFailed"
	GoingBack      Verdict = "GoingBack"
	EtcdUnhealthy  Verdict = "EtcdUnhealthy"
	WaitsForTurn   Verdict = "WaitsForTurn"
	NotOffered     Verdict = "NotOffered"
)

// About is the kind of object that a verdict is about.
type About string

// A pool repeats the verdict of its worst node, and a waiting node that of its pool. The verdict stays about the same
// object.
const (
	AboutNode About = "node"
	AboutPool About = "pool"
	AboutBoth About = "node or pool"
)

// end is what a verdict means for a pool that has no node on its way.
type end int

const (
	goesOn  end = iota // the pool goes on by itself
	arrives            // the pool has arrived if all nodes have; the verdict holds nothing up
	stops              // the pool waits until a person acts
)

// Meaning explains a verdict for any cluster. An Answer adds the names.
type Meaning struct {
	Verdict Verdict
	About   About
	// Means and Do are Markdown, as in docs/troubleshooting.md. See is the anchor of the heading there that has more.
	Means, Do string
	See       string

	end end
	// rank orders the verdicts of a pool's nodes. Verdicts that need a person come first, and those that only take time
	// last.
	rank int
}

//go:generate go test . -run TestTheTroubleshootingPageHasTheTable -update

// Verdicts has every verdict once. The first verdict that applies to a node is the answer.
var Verdicts = []Meaning{
	{NoPool, AboutNode, "No pool selects the node, so nothing configures it",
		"Give the node the labels that the `spec.nodeSelector` of a pool asks for", "", goesOn, 1},
	{SeveralPools, AboutNode, "More than one custom pool selects the node, so no pool changes the node",
		"Remove the label by which one of these pools selects the node", "", stops, 1},
	{ConfigMissing, AboutNode, "The node's desired configuration is not in the cluster",
		"Wait half a minute: the controller makes a pool's configuration again. Otherwise resume the pool, or " +
			"change its MachineConfigs",
		"a-rendered-configuration-is-gone", goesOn, 2},
	{RolledBack, AboutNode,
		"The configuration failed on the node. The node went back and serves on the configuration before",
		"Change or revert the MachineConfigs: the node tries the new configuration first. If the cause was " +
			"something else: `kubectl refit quarantine lift POOL`", "a-node-says-rolledback", stops, 1},
	{Unreconcilable, AboutNode, "A running host cannot be changed to this configuration",
		"Remove the named sections from the MachineConfigs, or provision the node again",
		"a-node-is-degraded-or-unreconcilable", stops, 1},
	{Degraded, AboutNode, "The node cannot reach its configuration, or cannot keep it",
		"Correct what the reason names, or revert the MachineConfigs. The agent tries again by itself",
		"a-node-is-degraded-or-unreconcilable", stops, 1},
	{RebootFailed, AboutNode,
		"The node was ordered to reboot, and did not come back healthy. No other node of the pool is rebooted",
		"Repair the host, and have it reboot again: `kubectl refit retry NODE`", "a-host-wants-a-reboot", stops, 1},
	{Rebooting, AboutNode, "The node began to reboot and has not reported since",
		"Wait: a host that does not prove healthy in time goes back by itself. If the node stays away, see its console",
		"notready-rebooting", goesOn, 9},
	{NotReady, AboutNode, "The kubelet or the node controller says that the node is not ready",
		"`kubectl describe node NODE`; on the host `systemctl status kubelet`", "notready-rebooting", goesOn, 5},
	{NoDaemon, AboutNode, "The node has no pod of the daemon, or the pod does not run",
		"`kubectl describe` the named object. If the daemon runs, see its log", "nodaemon-nottakenup", goesOn, 3},
	{NotTakenUp, AboutNode, "The daemon still works on another configuration, or has not reported yet",
		"If this lasts for more than some seconds, see the daemon's log", "nodaemon-nottakenup", goesOn, 6},
	{HeldByHook, AboutNode, "A hook that runs before the drain refuses. The node serves",
		"Do what the last lines of the hook ask for. The agent asks the hook again once a minute",
		"a-node-says-heldbyhook", goesOn, 4},
	{Draining, AboutNode, "The drain waits for a pod: a budget or a webhook keeps the pod, or the pod is still ending",
		"Give the workload another replica or a node that it may run on, or widen the budget. The drain " +
			"continues by itself",
		"a-drain-waits", goesOn, 4},
	{DrainHeld, AboutNode,
		"The drain has reached the limit of the RolloutPolicy. The node serves; the answer names what the " +
			"drain waited for",
		"Remove the named obstacle. The agent drains again by itself, at the named time", "a-drain-waits", goesOn, 4},
	{NeedsReboot, AboutNode, "The configuration is committed on the host, and the node serves until a person has it " +
		"reboot: the RolloutPolicy has `reboots: Manual`",
		"`kubectl refit reboot NODE --why TEXT`, or reboot the host", "a-host-wants-a-reboot", stops, 7},
	{Updating, AboutBoth, "The update is under way, and nothing blocks it", "Nothing", "", goesOn, 10},
	{Undelivered, AboutNode, "The host does not have the certificates of the ControllerConfig. Updates continue",
		"Correct the named field. The agent tries again by itself what failed on the host",
		"a-node-says-undelivered", arrives, 7},
	{Misconfigured, AboutBoth, "A selector, `maxUnavailable`, a NodeHook or an annotation is not valid",
		"Correct the named field, or remove the annotation", "", stops, 7},
	{RenderDegraded, AboutPool, "The pool's MachineConfigs cannot be rendered. The nodes keep their configuration",
		"Correct or delete the named object", "renderdegraded-renderpending", stops, 0},
	{RenderPending, AboutPool, "A source of the configuration is not finished, or was refused",
		"See the status of the named object. A refused object blocks no other",
		"renderdegraded-renderpending", goesOn, 0},
	{NotRendered, AboutPool, "No configuration was rendered for the pool yet",
		"See whether the controller runs, and whether `spec.machineConfigSelector` matches any MachineConfig",
		"renderdegraded-renderpending", goesOn, 0},
	{NoNodes, AboutPool, "No node matches `spec.nodeSelector`, or other pools take precedence",
		"Label nodes, or delete the pool. The control plane's pools come before custom pools, these before `worker`",
		"", arrives, 0},
	{Quarantined, AboutPool, "The pool's configuration failed on a node, and no other node gets it",
		"Change or revert the MachineConfigs. If the cause was something else: `kubectl refit quarantine lift POOL`",
		"a-node-says-rolledback", stops, 0},
	{Withheld, AboutPool, "An OSStream has no newer release, and something speaks against the pool's: it failed, was " +
		"withdrawn or is a dead end. Nodes that have not gone to the release stay where they are",
		"Wait for the next release, or see `kubectl refit streams`. If the release failed for another cause: " +
			"`kubectl refit quarantine lift POOL`", "", stops, 7},
	{Paused, AboutPool,
		"`spec.paused` is true, and not all nodes have the configuration", "`kubectl refit resume POOL`", "", stops, 0},
	{PolicyUnusable, AboutPool, "The pool's RolloutPolicy is not valid, names a pool that does not exist, waits for " +
		"itself or has no window left. Or two policies select the pool. Or the pool has no node of a stage " +
		"that soaks or has gates. Or the policy was deleted with its definition. No node begins",
		"`kubectl get rolloutpolicy`, and correct what its condition `Ready` names. If a definition is named: install " +
			"the definition, and apply the policies again",
		"a-rolloutpolicy-holds-the-pool", stops, 7},
	{FailureBudget, AboutPool,
		"The configuration failed on as many nodes as the RolloutPolicy allows; the answer names them",
		"Repair the named nodes, or change or revert the MachineConfigs", "a-rolloutpolicy-holds-the-pool", stops, 7},
	{WaitsForPool, AboutPool, "The RolloutPolicy updates another pool first, and that pool is not done",
		"Wait, or explain that pool", "a-rolloutpolicy-holds-the-pool", goesOn, 13},
	{OutsideWindow, AboutPool,
		"No window of the RolloutPolicy is open, or a blackout is in force; the answer says until when",
		"Wait. If the update cannot wait: `kubectl refit bypass POOL --why TEXT`",
		"a-rolloutpolicy-holds-the-pool", goesOn, 13},
	{StagingAhead, AboutPool, "Nodes stage ahead before any node may begin, or wait for a window of staging; the " +
		"answer counts the nodes that have staged",
		"Wait. If the update cannot wait: `kubectl refit bypass POOL --why TEXT`",
		"a-rolloutpolicy-holds-the-pool", goesOn, 13},
	{NeedsApproval, AboutPool, "The staged OS waits for an approval, or differs from the approved OS",
		"`kubectl refit approve POOL`. If nodes have staged different digests, name the image by its digest",
		"a-rolloutpolicy-holds-the-pool", stops, 7},
	{CannotStage, AboutNode, "The node serves, and could not stage ahead for the reason given. The other nodes continue",
		"Correct the named problem. The agent tries again by itself", "a-rolloutpolicy-holds-the-pool", goesOn, 8},
	{HeldByPerson, AboutNode, "A person holds the node, as `kubectl refit hold` does. Rollouts go on without the node",
		"`kubectl refit release NODE`, or wait if the answer names an end", "a-person-holds-a-node", stops, 15},
	{Skipped, AboutNode, "A person has the node skipped for this configuration, as `kubectl refit skip` does. The " +
		"next configuration includes the node", "`kubectl refit retry NODE`", "a-person-holds-a-node", stops, 15},
	{Trying, AboutNode, "The node tries a configuration that is not its pool's, as `kubectl refit try` asks. Rollouts " +
		"go on without the node, which goes back by itself",
		"Wait until the named time, or `kubectl refit try --node NODE --end`", "a-node-tries-a-configuration", goesOn, 12},
	{BootcOperator, AboutNode, "bootc-operator manages the node's OS, and somebody other than the agent has cordoned " +
		"the node. Rollouts go on without the node", "Wait until bootc-operator is done, or uncordon the node",
		"bootc-operator-manages-the-os", goesOn, 12},
	{WaitsForStage, AboutPool,
		"An earlier stage is not done; the answer names the node that the stage waits for, and why",
		"Wait, or explain the named node", "a-rolloutpolicy-holds-the-pool", goesOn, 14},
	{Soaking, AboutPool, "The stage before has arrived, and has to stay healthy until the named time",
		"Wait. If the update cannot wait: `kubectl refit bypass POOL --why TEXT`",
		"a-rolloutpolicy-holds-the-pool", goesOn, 13},
	{GateFailed, AboutPool, "A gate of the RolloutPolicy is closed past its deadline: no node begins until it passes",
		"Correct what the gate reports: the rollout then continues by itself",
		"a-rolloutpolicy-holds-the-pool", stops, 7},
	{GateClosed, AboutPool, "A gate of the RolloutPolicy has not passed yet; the answer names the gate and its report",
		"Correct what the gate reports, or wait. In an emergency: `kubectl refit bypass POOL --why TEXT`",
		"a-rolloutpolicy-holds-the-pool", goesOn, 13},
	{GoingBack, AboutNode, "A gate was closed at its deadline: the node goes back when its turn comes",
		"Wait. After the cause is gone: `kubectl refit quarantine lift POOL`",
		"a-rolloutpolicy-holds-the-pool", goesOn, 10},
	{EtcdUnhealthy, AboutPool, "A member of etcd is not ready, or a node of the control plane has no member. No " +
		"other node begins",
		"Wait while a node of the control plane comes back. Otherwise repair the named pod",
		"a-rolloutpolicy-holds-the-pool", goesOn, 8},
	{Cordoned, AboutNode,
		"The node has its configuration, and a person or another program cordoned it. The node counts as out of service",
		"`kubectl uncordon NODE`, when the reason for the cordon is gone", "somebodys-cordon-stays", goesOn, 8},
	{Drifted, AboutNode, "The node has its configuration, and the host was changed since. Updates continue",
		"Undo the change on the host, or put the change into a MachineConfig", "a-node-says-drifted", arrives, 12},
	{RebootWanted, AboutNode, "The node has its configuration, and its host wants a reboot, or a person ordered one. " +
		"The answer names the reason, and what the reboot waits for",
		"`kubectl refit reboot NODE --why TEXT`, or `reboots: Roll` in the RolloutPolicy", "a-host-wants-a-reboot",
		arrives, 12},
	{UpToDate, AboutBoth, "All is as configured", "Nothing", "", arrives, 13},
	{WaitsForTurn, AboutPool, "As many nodes as allowed are out of service; the answer names them",
		"Wait, or explain the named node. Cordoned and not ready nodes count, whatever the cause", "", goesOn, 12},
	{NotOffered, AboutPool, "It is a node's turn, and the controller has not sent the node to its configuration",
		"See whether the controller runs: `kubectl -n openshift-machine-config-operator get deployment,lease " +
			"machine-config-controller`. If OpenShift's controller holds the lease, ours waits", "", goesOn, 11},
}

var meanings = func() map[Verdict]*Meaning {
	m := make(map[Verdict]*Meaning, len(Verdicts))
	for i := range Verdicts {
		m[Verdicts[i].Verdict] = &Verdicts[i]
	}
	return m
}()

// meaning returns the row of a verdict, and an empty row for an unknown verdict.
func (v Verdict) meaning() Meaning {
	if m, ok := meanings[v]; ok {
		return *m
	}
	return Meaning{}
}

// Compare orders the verdicts of a pool's nodes. Verdicts that need a person come first, and those that only take time
// last.
func (v Verdict) Compare(w Verdict) int { return v.meaning().rank - w.meaning().rank }

// Fine reports whether the answer needs no explanation.
func (a Answer) Fine() bool { return a.Verdict == UpToDate || a.Verdict == Updating }

// Stops reports whether the subject goes no further until a person acts.
func (a Answer) Stops() bool { return a.Verdict.meaning().end == stops }

// OfPool reports whether the answer's node waits for its pool, like all nodes of the pool that have not arrived.
func (a Answer) OfPool() bool {
	if a.Verdict == Misconfigured { // the pool is misconfigured, or an annotation of the node itself
		return a.Blocking == nil || a.Blocking.Kind != "Node"
	}
	return a.Verdict.meaning().About == AboutPool
}
