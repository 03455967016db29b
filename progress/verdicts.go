// SPDX-License-Identifier: Apache-2.0

package progress

// Verdict is the cause that keeps a node or a pool from where it should be, in one word.
type Verdict string

// The verdicts; what each means stands in Verdicts.
const (
	NoPool         Verdict = "NoPool"
	SeveralPools   Verdict = "SeveralPools"
	ConfigMissing  Verdict = "ConfigMissing"
	RolledBack     Verdict = "RolledBack"
	Unreconcilable Verdict = "Unreconcilable"
	Degraded       Verdict = "Degraded"
	Rebooting      Verdict = "Rebooting"
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
	Paused         Verdict = "Paused"
	PolicyUnusable Verdict = "PolicyUnusable"
	FailureBudget  Verdict = "FailureBudget"
	WaitsForPool   Verdict = "WaitsForPool"
	OutsideWindow  Verdict = "OutsideWindow"
	StagingAhead   Verdict = "StagingAhead"
	NeedsApproval  Verdict = "NeedsApproval"
	CannotStage    Verdict = "CannotStage"
	WaitsForStage  Verdict = "WaitsForStage"
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

// About says whose matter a verdict is.
type About string

// A pool says what its worst node says, and a node that waits what its pool says; the matter stays the same one's.
const (
	AboutNode About = "node"
	AboutPool About = "pool"
	AboutBoth About = "node or pool"
)

// end is what a verdict means for a pool of which no node is on its way.
type end int

const (
	goesOn  end = iota // by itself
	arrives            // if all nodes have; what else there is to say holds nothing up
	stops              // until somebody does something
)

// Meaning is what holds for a verdict whatever the cluster. What an Answer says besides has the names in it.
type Meaning struct {
	Verdict Verdict
	About   About
	// Means and Do are Markdown, as in docs/troubleshooting.md, of which See is the heading that has more, by its anchor.
	Means, Do string
	See       string

	end end
	// rank orders the verdicts of a pool's nodes: what needs a person comes first, what only takes time last.
	rank int
}

//go:generate go test . -run TestTheTroubleshootingPageHasTheTable -update

// Verdicts has every verdict once. Of a node the first that applies is the answer.
var Verdicts = []Meaning{
	{NoPool, AboutNode, "No pool selects the node, so nobody configures it",
		"Label it as the `spec.nodeSelector` of a pool wants it", "", goesOn, 1},
	{SeveralPools, AboutNode, "More than one custom pool selects the node, so that it is left alone",
		"Take away the label by which one of them selects it", "", stops, 1},
	{ConfigMissing, AboutNode, "The node shall go to a rendered configuration that is not in the cluster",
		"Wait half a minute: what a pool renders to is made again. Else resume the pool, or change its MachineConfigs",
		"a-rendered-configuration-is-gone", goesOn, 2},
	{RolledBack, AboutNode, "The configuration failed on the node, which went back and serves on the one before",
		"Change or revert the MachineConfigs: the node tries the outcome first. Where the cause was something else: " +
			"`kubectl refit quarantine lift POOL`", "a-node-says-rolledback", stops, 1},
	{Unreconcilable, AboutNode, "No way leads to the configuration on a host that lives",
		"Take what is named out of the MachineConfigs, or provision the node anew",
		"a-node-is-degraded-or-unreconcilable", stops, 1},
	{Degraded, AboutNode, "The node can't get to its configuration, or can't stay there",
		"Mend what the reason names, or revert the MachineConfigs. It is tried again by itself",
		"a-node-is-degraded-or-unreconcilable", stops, 1},
	{Rebooting, AboutNode, "The node was to reboot and has not reported since",
		"Wait: a host that does not prove healthy in time goes back by itself. See the console of one that stays away",
		"notready-rebooting", goesOn, 9},
	{NotReady, AboutNode, "The kubelet or the node controller says that the node is not ready",
		"`kubectl describe node NODE`; on the host `systemctl status kubelet`", "notready-rebooting", goesOn, 5},
	{NoDaemon, AboutNode, "No pod of the daemon is on the node, or it does not run, or it has never reported",
		"`kubectl describe` what is named; of a daemon that runs, see its log", "nodaemon-nottakenup", goesOn, 3},
	{NotTakenUp, AboutNode, "The daemon still works for another configuration",
		"When that lasts for more than some seconds, see its log", "nodaemon-nottakenup", goesOn, 6},
	{HeldByHook, AboutNode, "A hook that is asked before the drain says no. The node serves",
		"Do what its last lines ask for. It is asked again by itself, once a minute", "a-node-says-heldbyhook", goesOn, 4},
	{Draining, AboutNode, "The drain waits for a pod, and for the budget, webhook or end that keeps it",
		"Give the workload another replica or a node that it may run on, or widen the budget. The drain goes on by itself",
		"a-drain-waits", goesOn, 4},
	{DrainHeld, AboutNode, "The drain has reached the limit of the RolloutPolicy: what it waited for. The node serves",
		"Do away with what is named. It is tried again by itself, at the time that is said", "a-drain-waits", goesOn, 4},
	{Updating, AboutBoth, "On its way, and nothing is in it", "Nothing", "", goesOn, 10},
	{Undelivered, AboutNode, "The host has not the certificates of the ControllerConfig. It holds nothing up",
		"Correct the field that is named. What failed on the host is tried again by itself",
		"a-node-says-undelivered", arrives, 7},
	{Misconfigured, AboutBoth, "A selector, `maxUnavailable`, a NodeHook or an annotation makes no sense",
		"Correct what is named, or take the annotation away", "", stops, 7},
	{RenderDegraded, AboutPool, "The pool's MachineConfigs make no configuration. The nodes stay as they are",
		"Correct or delete what is named", "renderdegraded-renderpending", stops, 0},
	{RenderPending, AboutPool, "Something that the configuration is made of is not finished, or was refused",
		"See the status of what is named. What was refused holds nothing else up", "renderdegraded-renderpending", goesOn, 0},
	{NotRendered, AboutPool, "No configuration was rendered for the pool yet",
		"See whether the controller runs, and whether `spec.machineConfigSelector` matches any MachineConfig",
		"renderdegraded-renderpending", goesOn, 0},
	{NoNodes, AboutPool, "Nothing matches `spec.nodeSelector`, or other pools come before it",
		"Label nodes, or delete the pool. The control plane's pools come before custom pools, these before `worker`",
		"", arrives, 0},
	{Quarantined, AboutPool, "The pool's configuration failed on a node, and is offered to no other",
		"Change or revert the MachineConfigs. Where the cause was something else: `kubectl refit quarantine lift POOL`",
		"a-node-says-rolledback", stops, 0},
	{Paused, AboutPool, "`spec.paused` is true, and not all nodes are there", "`kubectl refit resume POOL`", "", stops, 0},
	{PolicyUnusable, AboutPool, "The pool's RolloutPolicy makes no sense, names a pool that is not there, waits for " +
		"itself, has no window to come, or there are two; or the pool has no node of a stage that soaks or has gates; " +
		"or the policy went with its definition. No node begins", "`kubectl get rolloutpolicy`, and correct what it or " +
		"condition `Ready` names; or install the definition that is named, and apply the policies again",
		"a-rolloutpolicy-holds-the-pool", stops, 7},
	{FailureBudget, AboutPool, "The configuration failed on as many nodes as the RolloutPolicy allows: which",
		"Mend the nodes that are named, or change or revert the MachineConfigs", "a-rolloutpolicy-holds-the-pool", stops, 7},
	{WaitsForPool, AboutPool, "Another pool comes first by the RolloutPolicy, and is not updated as a whole",
		"Wait, or explain that pool", "a-rolloutpolicy-holds-the-pool", goesOn, 13},
	{OutsideWindow, AboutPool, "No window of the RolloutPolicy is open, or a blackout is in force, and until when",
		"Wait. When it can't: `kubectl refit bypass POOL --why TEXT`", "a-rolloutpolicy-holds-the-pool", goesOn, 13},
	{StagingAhead, AboutPool, "Nodes stage ahead before any may begin, or wait for a window in which they may: how " +
		"many have",
		"Wait. When it can't: `kubectl refit bypass POOL --why TEXT`", "a-rolloutpolicy-holds-the-pool", goesOn, 13},
	{NeedsApproval, AboutPool, "What was staged waits for an approval, or is not what was approved",
		"`kubectl refit approve POOL`. Where nodes have staged different digests, name the image by its digest",
		"a-rolloutpolicy-holds-the-pool", stops, 7},
	{CannotStage, AboutNode, "The node serves, and could not stage ahead: why. The others go",
		"Mend what is named. It is tried again by itself", "a-rolloutpolicy-holds-the-pool", goesOn, 8},
	{WaitsForStage, AboutPool, "A stage comes first: which of its nodes is waited for, and why",
		"Wait, or explain the node that is named", "a-rolloutpolicy-holds-the-pool", goesOn, 14},
	{Soaking, AboutPool, "The stage before has arrived, and has to stay well until the time that is said",
		"Wait. When it can't: `kubectl refit bypass POOL --why TEXT`", "a-rolloutpolicy-holds-the-pool", goesOn, 13},
	{GateFailed, AboutPool, "A gate of the RolloutPolicy is closed past its deadline: no node begins until it passes",
		"Mend what it says: the rollout goes on by itself then", "a-rolloutpolicy-holds-the-pool", stops, 7},
	{GateClosed, AboutPool, "A gate of the RolloutPolicy has not passed yet: which, and what it says",
		"Mend what it says, or wait. In an emergency: `kubectl refit bypass POOL --why TEXT`",
		"a-rolloutpolicy-holds-the-pool", goesOn, 13},
	{GoingBack, AboutNode, "A gate was closed at its deadline: the node goes back when its turn comes",
		"Wait. When the cause is gone: `kubectl refit quarantine lift POOL`", "a-rolloutpolicy-holds-the-pool", goesOn, 10},
	{EtcdUnhealthy, AboutPool, "A member of etcd is not ready, or a node of the control plane has none: which. No " +
		"other node goes",
		"Wait while a node of the control plane comes back; else mend the pod that is named",
		"a-rolloutpolicy-holds-the-pool", goesOn, 8},
	{Cordoned, AboutNode, "The node is where it should be, and somebody else has cordoned it. It counts as out of service",
		"`kubectl uncordon NODE`, when its time has come", "somebodys-cordon-stays", goesOn, 8},
	{Drifted, AboutNode, "The node is where it should be, and the host was changed since. It holds nothing up",
		"Undo it on the host, or put it into a MachineConfig", "a-node-says-drifted", arrives, 12},
	{UpToDate, AboutBoth, "It is where it should be", "Nothing", "", arrives, 13},
	{WaitsForTurn, AboutPool, "As many nodes as may be are out of service; it names them",
		"Wait, or explain the node that is named. One that is cordoned or not ready counts, whoever did it", "", goesOn, 12},
	{NotOffered, AboutPool, "It is a node's turn, and the controller has not told it",
		"See whether the controller runs: `kubectl -n openshift-machine-config-operator get deployment,lease " +
			"machine-config-controller`. Where OpenShift's controller has the lease, ours waits", "", goesOn, 11},
}

var meanings = func() map[Verdict]*Meaning {
	m := make(map[Verdict]*Meaning, len(Verdicts))
	for i := range Verdicts {
		m[Verdicts[i].Verdict] = &Verdicts[i]
	}
	return m
}()

// meaning is the row of a verdict; of none, one that says nothing.
func (v Verdict) meaning() Meaning {
	if m, ok := meanings[v]; ok {
		return *m
	}
	return Meaning{}
}

// Compare orders the verdicts of a pool's nodes: what needs a person comes first, what only takes time last.
func (v Verdict) Compare(w Verdict) int { return v.meaning().rank - w.meaning().rank }

// Fine says that there is nothing to explain.
func (a Answer) Fine() bool { return a.Verdict == UpToDate || a.Verdict == Updating }

// Stops says that it goes no further until somebody does something.
func (a Answer) Stops() bool { return a.Verdict.meaning().end == stops }

// OfPool says that the node of which this is the answer waits for its pool, as all nodes do that are not there.
func (a Answer) OfPool() bool {
	if a.Verdict == Misconfigured { // by its pool, or by an annotation of its own
		return a.Blocking == nil || a.Blocking.Kind != "Node"
	}
	return a.Verdict.meaning().About == AboutPool
}
