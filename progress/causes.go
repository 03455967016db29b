// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/api"
)

// nodeCauses are tried in this order for a node that belongs to a pool. The first cause that returns an answer wins.
var nodeCauses = []func(*Report, *nodeReport) *Answer{
	(*Report).overdue,
	(*Report).rebootOrdered,
	(*Report).needsReboot,
	(*Report).configMissing,
	(*Report).failed,
	(*Report).rebootFailed,
	(*Report).rebooting,
	(*Report).kept,
	(*Report).notReady,
	(*Report).noDaemon,
	(*Report).notTakenUp,
	(*Report).heldByHook,
	(*Report).drainHeld,
	(*Report).draining,
	(*Report).needsReboot,
	(*Report).underWay,
	(*Report).undelivered,
	(*Report).poolStops,
	(*Report).unread,
	(*Report).goesBack,
	(*Report).cordoned,
	(*Report).drifted,
	(*Report).rebootWanted,
	(*Report).gated,
	(*Report).upToDate,
	(*Report).lacksValues,
	(*Report).heldByPolicy,
	(*Report).writesRefused,
	(*Report).waitsForTurn,
	(*Report).notOffered,
}

// ExplainNode returns why a node is not where its pool wants it, and false if the report has no such node.
func (r *Report) ExplainNode(name string) (Answer, bool) {
	n, ok := r.nodes[name]
	if !ok {
		return Answer{}, false
	}
	if n.pool == nil {
		return r.unmanaged(n), true
	}
	for _, cause := range nodeCauses {
		if a := cause(r, n); a != nil {
			a.Subject = Object{Kind: "Node", Name: n.Name}
			if n.RebootWay.FellBack() {
				a.Warnings = append(a.Warnings, "the latest reboot: "+n.RebootWay.String())
			}
			if images := PinsText(&n.Node); !strings.Contains(a.Because, images) {
				a.Images = images
			}
			return *a, true
		}
	}
	panic("the last cause applies to every node") // notOffered applies to every node
}

// ExplainPool returns why a pool is not where it should be, and false if the report has no such pool.
func (r *Report) ExplainPool(name string) (Answer, bool) {
	p, ok := r.pools[name]
	if !ok {
		return Answer{}, false
	}
	a := r.explainPool(p)
	a.Subject = Object{Kind: "MachineConfigPool", Name: p.Name}
	if c := p.isTrue(api.PoolRenderWarning); c != nil {
		a.Warnings = append(a.Warnings, c.Message)
	}
	return a, true
}

func (r *Report) explainPool(p *poolReport) Answer {
	if a := p.malformed(); a != nil {
		return *a
	}
	if len(p.Nodes) == 0 {
		if a := p.refused(); a != nil {
			return *a
		}
		if len(p.conflicts) > 0 {
			return conflicting(p.conflicts[0])
		}
		return Answer{
			Verdict: NoNodes, Because: "no node matches the pool's spec.nodeSelector, or other pools come before it",
			Do: "label nodes for it, or delete the pool",
		}
	}
	if a := p.writesRefused(); a != nil {
		return *a
	}
	worst := r.worst(p)
	if a := p.stops(); a != nil {
		// The cause came from a node. That node's own answer is better only where the node is stuck anew.
		return *a
	}
	if a := p.heldWhole(worst); a != nil {
		return *a
	}
	if worst == nil {
		if a := r.nodeProblem(p); a != nil {
			return *a
		}
		if a := p.refused(); a != nil {
			return *a
		}
		if a := p.held(p.Rules.Unproved); a != nil {
			a.Because = fmt.Sprintf("all %s have %s; %s", number(p.Machines, "node"), p.Target, a.Because)
			return *a
		}
		if p.Complete() {
			return Answer{Verdict: UpToDate, Because: fmt.Sprintf("all %s have %s", number(p.Machines, "node"), p.Target)}
		}
		return Answer{Verdict: NotOffered, Blocking: &controllerDeployment,
			Because: "the pool controller has not read the pool yet", Do: lookAtController}
	}
	a, _ := r.ExplainNode(worst.Name)
	a.Because = fmt.Sprintf("%d of %s updated; node %s: %s", p.Updated, number(p.Machines, "node"), worst.Name, a.Because)
	if a.Blocking == nil && !a.Fine() {
		a.Blocking = &Object{Kind: "Node", Name: worst.Name}
	}
	return a
}

// nodeProblem returns what is wrong with a node that the pool selects, where the pool has no other problem. nodeProblem
// returns nil if no node has a problem.
func (r *Report) nodeProblem(p *poolReport) *Answer {
	for i := range p.Nodes {
		if a := r.unread(r.nodes[p.Nodes[i].Name]); a != nil {
			return a
		}
	}
	if len(p.conflicts) > 0 {
		a := conflicting(p.conflicts[0])
		return &a
	}
	var first *nodeReport
	count := 0
	for i := range p.Nodes {
		n := r.nodes[p.Nodes[i].Name]
		if n.Drift == nil {
			continue
		}
		if count++; first == nil || n.Drift.Since().Before(first.Drift.Since()) {
			first = n
		}
	}
	if a := r.firstUndelivered(p); a != nil {
		return a
	}
	if first == nil {
		return r.firstReboot(p)
	}
	a := r.drifted(first)
	if a == nil {
		return r.firstReboot(p)
	}
	a.Because = fmt.Sprintf("all %s have %s; %d of them drifted; node %s: %s", number(p.Machines, "node"), p.Target, count,
		first.Name, a.Because)
	return a
}

// driftNames is the greatest number of drifted things that an answer names.
const driftNames = 5

// drifted answers for a node that has its configuration, on a host that has drifted from it.
func (r *Report) drifted(n *nodeReport) *Answer {
	d := n.Drift
	if d == nil || !n.Updated(n.pool.Target) {
		return nil
	}
	a := &Answer{Verdict: Drifted, Since: d.Since(),
		Because: fmt.Sprintf("the host has drifted from %s: %s", n.Current, d.Names(driftNames))}
	for _, i := range d.Items {
		if i.Failed != "" {
			a.Because += fmt.Sprintf("; %s could not be written back: %s", i.Subject(), i.Failed)
		} else if i.Repairs > 0 {
			a.Because += fmt.Sprintf("; %s was written back %s and changed again, the next try is at %s", i.Subject(),
				number(i.Repairs, "time"), i.Again.UTC().Format(time.RFC3339))
		}
	}
	a.Do = fmt.Sprintf("undo the change on the host, or put it into a MachineConfig. To have drift repaired: kubectl "+
		"annotate mcp %s %s=repair. The next update overwrites the change and keeps a copy", n.pool.Name, api.DriftPolicyKey)
	policy, err := api.ParseDriftPolicy(n.pool.object.Annotations[api.DriftPolicyKey])
	fought := slices.ContainsFunc(d.Items, func(i api.DriftItem) bool { return i.Repairs > 0 })
	switch {
	case slices.ContainsFunc(d.Items, func(i api.DriftItem) bool { return i.Kind == "deployment" }):
		a.Do = "boot the configuration's deployment again (machine-config-daemon status on the host lists all of them), or " +
			"apply the configuration there: the apply adopts the OS that runs"
	case err == nil && policy.Strict():
		a.Do = "undo the change on the host, or put it into a MachineConfig: updates of the node wait until then"
	case err == nil && policy.WritesBack() && n.pool.Paused:
		a.Do = "undo the change on the host, or resume the pool: a paused pool repairs nothing"
	case err == nil && policy.WritesBack() && fought:
		a.Do = "find the program that changes the path (journalctl, auditctl -w PATH -p wa), or have the policy report drift"
	}
	return a
}

// undelivered answers for a node whose host lacks the certificates that it should have. The node's configuration does
// not matter.
func (r *Report) undelivered(n *nodeReport) *Answer {
	u := n.Undelivered
	if u == nil {
		return nil
	}
	return &Answer{
		Verdict: Undelivered, Blocking: &Object{Kind: "ControllerConfig", Name: api.ControllerConfig}, Since: u.Since,
		Because: "the host does not have the certificates of the ControllerConfig: " + u.Reason,
		Do: "correct the named field (kubectl edit controllerconfig " + api.ControllerConfig + "); after a problem of " +
			"the host, the agent tries again",
	}
}

// firstUndelivered returns the undelivered answer of the pool's node that has waited longest.
func (r *Report) firstUndelivered(p *poolReport) *Answer {
	var first *nodeReport
	count := 0
	for i := range p.Nodes {
		n := r.nodes[p.Nodes[i].Name]
		if n.Undelivered == nil {
			continue
		}
		if count++; first == nil || n.Undelivered.Since.Before(first.Undelivered.Since) {
			first = n
		}
	}
	if first == nil {
		return nil
	}
	a := r.undelivered(first)
	a.Because = fmt.Sprintf("%d of %s; node %s: %s", count, number(p.Machines, "node"), first.Name, a.Because)
	return a
}

// unread answers for a node with an annotation that cannot be read.
func (r *Report) unread(n *nodeReport) *Answer {
	if n.Unread == "" {
		return nil
	}
	if strings.Contains(n.Unread, api.HoldKey) {
		return &Answer{
			Verdict: Misconfigured, Blocking: &Object{Kind: "Node", Name: n.Name}, Because: n.Unread,
			Do: "the node is held until then: kubectl refit release " + n.Name + ", and hold or skip the node anew if needed",
		}
	}
	return &Answer{
		Verdict: Misconfigured, Blocking: &Object{Kind: "Node", Name: n.Name}, Because: n.Unread,
		Do: "take that annotation away: its writer writes it anew where it is needed",
	}
}

// worst returns the node of a pool with the most urgent answer, and nil if all nodes are where they should be.
func (r *Report) worst(p *poolReport) *nodeReport {
	var worst *nodeReport
	var at Answer
	for i := range p.Nodes {
		n := r.nodes[p.Nodes[i].Name]
		if n.Updated(p.Target) && n.Serving() {
			continue
		}
		a, _ := r.ExplainNode(n.Name)
		if worst == nil || cmp.Or(a.Verdict.Compare(at.Verdict), earlier(a.Since, at.Since)) < 0 {
			worst, at = n, a
		}
	}
	return worst
}

// Worst returns the name of the node that ExplainPool speaks of. The name is empty if ExplainPool speaks of no node.
func (r *Report) Worst(pool string) string {
	if p, ok := r.pools[pool]; ok {
		if n := r.worst(p); n != nil {
			return n.Name
		}
	}
	return ""
}

// earlier compares times. An unknown time comes last.
func earlier(a, b time.Time) int {
	switch {
	case a.IsZero() && b.IsZero():
		return 0
	case a.IsZero():
		return 1
	case b.IsZero():
		return -1
	}
	return a.Compare(b)
}

func (r *Report) unmanaged(n *nodeReport) Answer {
	var a Answer
	if n.conflict != nil {
		a = conflicting(*n.conflict)
	} else {
		a = Answer{
			Verdict: NoPool, Because: "no MachineConfigPool selects the node, so the node has no configuration",
			Do: "give the node the labels of a pool's spec.nodeSelector",
		}
		for _, name := range r.names {
			if problem := r.members.Problem(name); problem != "" && strings.HasPrefix(n.Desired, "rendered-"+name+"-") {
				a = Answer{
					Verdict: Misconfigured, Blocking: poolObject(name), Because: "the node's pool selects nothing: " + problem,
					Do: "correct the pool's spec.nodeSelector",
				}
			}
		}
	}
	a.Subject = Object{Kind: "Node", Name: n.Name}
	return a
}

func conflicting(c Conflict) Answer {
	return Answer{
		Verdict: SeveralPools, Blocking: poolObject(c.Pools[len(c.Pools)-1]), Because: c.String(),
		Do: fmt.Sprintf("remove from node %s the label by which one of the pools selects the node", c.Node),
	}
}

// malformed returns what is wrong with the pool object, or with the objects that its configuration is made of. No
// node is considered before that.
func (p *poolReport) malformed() *Answer {
	if len(p.Problems) > 0 {
		return &Answer{
			Verdict: Misconfigured, Blocking: poolObject(p.Name), Because: strings.Join(p.Problems, "; "),
			Do: "correct the named field of the pool",
		}
	}
	if c := p.isTrue(mcfgv1.MachineConfigPoolRenderDegraded); c != nil && c.Reason == api.HooksUnusable {
		return &Answer{
			Verdict: Misconfigured, Blocking: cmp.Or(culprit(c.Message), poolObject(p.Name)), Since: c.LastTransitionTime.Time,
			Because: "the hooks for the pool's nodes are not known: " + c.Message,
			Do:      "correct the named object; no update begins until then, and the nodes stay as they are",
		}
	} else if c != nil {
		return &Answer{
			Verdict: RenderDegraded, Blocking: cmp.Or(culprit(c.Message), poolObject(p.Name)),
			Since: c.LastTransitionTime.Time, Because: "the pool's MachineConfigs make no configuration: " + c.Message,
			Do: "correct or delete the named object; the nodes stay as they are until then",
		}
	}
	c := p.isTrue(api.PoolRenderPending)
	if p.unwritten() {
		if len(p.Nodes) == 0 {
			return nil // such a pool holds nothing up: an installation makes some, and they may stay so
		}
		return &Answer{
			Verdict: RenderPending, Blocking: poolObject(p.Name), Since: c.LastTransitionTime.Time,
			Because: "the pool has no MachineConfigs and never had any: " + c.Message,
			Do: "create a MachineConfig with the labels that the pool's spec.machineConfigSelector asks for; until then " +
				"nothing is changed on the nodes",
		}
	}
	if c != nil && c.Reason != api.PartRefused {
		return &Answer{
			Verdict: RenderPending, Blocking: cmp.Or(culprit(c.Message), poolObject(p.Name)),
			Since: c.LastTransitionTime.Time, Because: "the pool's configuration waits to be rendered: " + c.Message,
			Do: "see the status of the named object; the nodes stay as they are until then",
		}
	}
	if p.Target == "" {
		return &Answer{
			Verdict: NotRendered, Blocking: &controllerDeployment, Since: p.object.CreationTimestamp.Time,
			Because: "no configuration was rendered for the pool yet",
			Do:      lookAtController + "; does its spec.machineConfigSelector match any MachineConfig?",
		}
	}
	return nil
}

// refused answers for a pool where a part of the configuration was not accepted. Such a part holds nothing up.
func (p *poolReport) refused() *Answer {
	c := p.isTrue(api.PoolRenderPending)
	if c == nil || c.Reason != api.PartRefused {
		return nil
	}
	return &Answer{
		Verdict: RenderPending, Blocking: cmp.Or(culprit(c.Message), poolObject(p.Name)), Since: c.LastTransitionTime.Time,
		Because: "a part of the pool's configuration was not accepted: " + c.Message,
		Do:      "correct or delete the named object; everything else continues",
	}
}

// stops returns why the pool goes no further although some of its nodes have not arrived.
func (p *poolReport) stops() *Answer {
	if p.Updated == p.Machines && p.gateFailed() == nil {
		return nil
	}
	if q := p.Quarantine(); q != nil {
		return &Answer{
			Verdict: Quarantined, Blocking: &Object{Kind: "MachineConfig", Name: q.Config}, Since: q.Since,
			Because: WhyRefused(q) + p.backText(),
			Do: fmt.Sprintf("change or revert the MachineConfigs of the pool, or, when the cause is gone: "+
				"kubectl refit quarantine lift %s", p.Name),
		}
	}
	if p.Paused {
		return &Answer{
			Verdict: Paused, Blocking: poolObject(p.Name),
			Because: "the pool is paused; will not update to " + p.Target,
			Do:      "kubectl refit resume " + p.Name,
		}
	}
	return nil
}

// heldWhole answers for a pool whose policy lets no node begin. heldWhole returns nil if the worst node is on its way,
// failing or unavailable: the answer of that node is more to the point.
func (p *poolReport) heldWhole(worst *nodeReport) *Answer {
	if worst == nil || p.Rules.Hold == nil || worst.Moving() || worst.Failing() || worst.Unavailable() {
		return nil
	}
	a := p.held(p.Rules.Hold)
	a.Because = fmt.Sprintf("%d of %s updated; %s", p.Updated, number(p.Machines, "node"), a.Because)
	return a
}

// failed answers for a node that itself reports a failure. A failure is over once the node is to go elsewhere.
func (r *Report) failed(n *nodeReport) *Answer {
	if !n.Failing() {
		return nil
	}
	a := &Answer{Since: n.condition(mcfgv1.MachineConfigNodeNodeDegraded)}
	reason := cmp.Or(n.Reason, "the node reports no reason")
	onTarget := n.Desired == n.pool.Target
	switch n.State {
	case api.RolledBack:
		for _, q := range n.Quarantined {
			if api.SameContent(q.Config, n.Desired) {
				a.Since, reason = q.Since, cmp.Or(q.Reason, reason)
			}
		}
		a.Verdict, a.Blocking = RolledBack, &Object{Kind: "MachineConfig", Name: n.Desired}
		a.Because = fmt.Sprintf("%s failed here and the node went back to %s, on which it serves: %s",
			n.Desired, n.Current, reason)
		if n.BadValues {
			a.Verdict, a.Blocking = RolledBack, &Object{Kind: "Node", Name: n.Name}
			a.Because = fmt.Sprintf("%s failed here with the values of this node, and not without them: the node went back to "+
				"%s, on which it serves: %s", n.Desired, n.Current, reason)
			a.Do = "change the node's values (labels and annotations " + api.ValuePrefix + "NAME, or NodeValues/" + n.Name +
				"): the node is sent again then"
			break
		}
		a.Do = fmt.Sprintf("change or revert the MachineConfigs of pool %s (kubectl refit diff node/%s shows what was new), "+
			"or, when the cause is gone: kubectl refit quarantine lift %s", n.pool.Name, n.Name, n.pool.Name)
	case api.Unreconcilable:
		a.Verdict, a.Blocking = Unreconcilable, &Object{Kind: "MachineConfig", Name: n.Desired}
		a.Because = fmt.Sprintf("%s can't be reached from %s on a running host: %s", n.Desired, n.Current, reason)
		a.Do = "remove the named fields from the MachineConfigs, or provision the node anew"
	default:
		a.Verdict, a.Blocking = Degraded, &Object{Kind: "Node", Name: n.Name}
		a.Because = reason
		a.Do = "correct what the reason names, or revert the MachineConfigs: the agent tries again by itself"
	}
	switch kept := n.pool.Rules.Kept[n.Name]; {
	case kept != nil:
		a.Because, a.Do = a.Because+"; "+kept.Because, kept.Do
	case !onTarget:
		a.Do = fmt.Sprintf("nothing: the pool controller sends the node to %s next", n.pool.Target)
		if stop := n.pool.stops(); stop != nil && stop.Verdict == Paused {
			a.Do = stop.Do + fmt.Sprintf(": then the node goes to %s", n.pool.Target)
		}
	}
	return a
}

// configMissing answers for a node whose desired rendered configuration does not exist.
func (r *Report) configMissing(n *nodeReport) *Answer {
	if n.Settled() || n.State == api.RolledBack || !r.view.Missing[n.Desired] {
		return nil
	}
	return &Answer{
		Verdict: ConfigMissing, Blocking: &Object{Kind: "MachineConfig", Name: n.Desired},
		Because: fmt.Sprintf("the node's desired configuration %s is not in the cluster: it was deleted", n.Desired),
		Do: fmt.Sprintf("if pool %s still renders to this configuration, the render controller creates it again; "+
			"if not, the pool sends the node elsewhere once the pool is resumed or rendered anew", n.pool.Name),
	}
}

// rebooting comes before the causes that every rebooting node shows as well, such as notReady.
func (r *Report) rebooting(n *nodeReport) *Answer {
	// The node reports the reboot from before it begins until the daemon is back.
	if !n.Moving() || n.step.Name != stepRebooting && (!n.Rebooting || n.NotReady == "") {
		return nil
	}
	_, since := n.doing()
	a := &Answer{
		Verdict: Rebooting, Since: since,
		Because: fmt.Sprintf("the node reboots into %s and has not reported since", n.Desired),
		Do: "wait: a host that does not prove healthy in time goes back by itself; " +
			"if the host stays away for longer than a few boots take, see its console",
	}
	if n.NotReady != "" {
		a.Blocking = &Object{Kind: "Node", Name: n.Name}
	}
	return a
}

func (r *Report) notReady(n *nodeReport) *Answer {
	if n.NotReady == "" {
		return nil
	}
	return &Answer{
		Verdict: NotReady, Blocking: &Object{Kind: "Node", Name: n.Name}, Since: n.NotReadySince,
		Because: "the node is not ready: " + n.NotReady + n.passedOver(),
		Do:      "see kubectl describe node " + n.Name + ", and on the host: systemctl status kubelet",
	}
}

// passedOver ends the sentence about a node that is not ready and that the rollout passes over.
func (n *nodeReport) passedOver() string {
	if !n.pool.Rules.Absent[n.Name] {
		return ""
	}
	return "; by RolloutPolicy " + n.pool.Rules.Policy + " the rollout passes over the node"
}

// noDaemon answers only where the node has something to do. A node that is where it should be needs no daemon now.
func (r *Report) noDaemon(n *nodeReport) *Answer {
	if n.Updated(n.pool.Target) {
		return nil
	}
	workload := &Object{Kind: "DaemonSet", Namespace: api.Namespace, Name: api.Daemon}
	if r.view.Daemons != nil {
		d := r.view.Daemons[n.Name]
		if d.Pod == "" {
			return &Answer{
				Verdict: NoDaemon, Blocking: workload,
				Because: "no pod of the daemon runs on the node, so no update can run there",
				Do: fmt.Sprintf("see why the DaemonSet has no pod there: kubectl -n %s describe daemonset %s",
					api.Namespace, api.Daemon),
			}
		}
		if d.Trouble != "" {
			return &Answer{
				Verdict: NoDaemon, Blocking: &Object{Kind: "Pod", Namespace: d.Namespace, Name: d.Pod}, Since: d.Since,
				Because: "the daemon does not run on the node: " + d.Trouble,
				Do:      fmt.Sprintf("kubectl -n %s describe pod %s", d.Namespace, d.Pod),
			}
		}
	}
	// A daemon first reports when its node is offered a configuration: before, it has nothing to say.
	if r.view.States == nil || n.state != nil || n.Desired == "" {
		return nil
	}
	// It takes a moment to make the MachineConfigNode: nobody is to blame for that.
	return &Answer{
		Verdict: NotTakenUp, Blocking: r.daemon(n),
		Because: fmt.Sprintf("the node was offered %s; its agent has not reported yet", n.Desired),
		Do:      "if this lasts for more than some seconds, see the log of the agent: " + r.daemonLog(n),
	}
}

// notTakenUp answers for a node whose daemon has not read the desired configuration.
func (r *Report) notTakenUp(n *nodeReport) *Answer {
	if n.state == nil || n.Settled() || n.state.Spec.ConfigVersion.Desired == n.Desired {
		return nil
	}
	return &Answer{
		Verdict: NotTakenUp, Blocking: r.daemon(n),
		Because: fmt.Sprintf("the node's desired configuration is %s; its agent still reports %s",
			n.Desired, cmp.Or(n.state.Spec.ConfigVersion.Desired, "nothing")),
		Do: "if this lasts for more than some seconds, see the log of the agent: " + r.daemonLog(n),
	}
}

// daemon returns the daemon's pod on a node, and nil if no pod is known.
func (r *Report) daemon(n *nodeReport) *Object {
	if d := r.view.Daemons[n.Name]; d.Pod != "" {
		return &Object{Kind: "Pod", Namespace: d.Namespace, Name: d.Pod}
	}
	return nil
}

// daemonLog returns how to read the log of a node's daemon.
func (r *Report) daemonLog(n *nodeReport) string {
	if d := r.view.Daemons[n.Name]; d.Pod != "" {
		return fmt.Sprintf("kubectl -n %s logs %s", d.Namespace, d.Pod)
	}
	return "journalctl -u " + api.Daemon + " on the host"
}

// draining names the first pod that the drain waits for, and the object that keeps that pod.
func (r *Report) draining(n *nodeReport) *Answer {
	if a := n.drainStep(); a != nil {
		return a
	}
	if n.resting() || n.drain == nil || n.drain.Left == 0 {
		return nil
	}
	a := &Answer{Verdict: Draining, Since: n.drain.Since}
	if len(n.drain.Waiting) == 0 {
		a.Verdict = Updating
		a.Because = fmt.Sprintf("the node is drained for %s: %s left", n.Desired, number(n.drain.Left, "pod")) +
			limitText(n.drain)
		return a
	}
	w := n.drain.Waiting[0]
	pod := Object{Kind: "Pod", Namespace: w.Namespace, Name: w.Name}
	a.Since = w.Since
	a.Blocking = &pod
	var why string
	switch w.Why {
	case api.DrainWaitBudget:
		a.Blocking = &Object{Kind: "PodDisruptionBudget", Namespace: w.Namespace, Name: w.Budget}
		why = fmt.Sprintf("is held by PodDisruptionBudget %s, which allows %s now",
			w.Budget, number(int(w.Allowed), "disruption"))
		a.Do = fmt.Sprintf("give the pod's workload another ready replica, or widen the budget "+
			"(kubectl -n %s describe pdb %s); the drain continues by itself", w.Namespace, w.Budget)
	case api.DrainWaitTerminating:
		why = "is terminating"
		a.Do = fmt.Sprintf("see what delays the pod (its grace period, finalizers): kubectl -n %s describe pod %s",
			w.Namespace, w.Name)
	case api.DrainWaitRefused:
		why = "was refused eviction"
		a.Do = "see the webhook or quota that the message names"
	case api.DrainWaitComesBack:
		why = "comes back to the cordoned node"
		a.Do = "the drain continues without this pod; remove the pod's toleration of node.kubernetes.io/unschedulable"
	default:
		why = "could not be evicted"
		a.Do = "the daemon tries again by itself; see the message"
	}
	a.Because = fmt.Sprintf("the drain for %s waits: pod %s/%s %s", n.Desired, w.Namespace, w.Name, why)
	for _, more := range []string{w.Placement, w.Message} {
		if more != "" {
			a.Because += "; " + strings.TrimSuffix(more, ".")
		}
	}
	if n.drain.Left > 1 {
		a.Because += fmt.Sprintf("; and %s", number(n.drain.Left-1, "more pod"))
	}
	a.Because += limitText(n.drain)
	return a
}

// heldByHook answers for a node that serves until a hook lets its update go on.
func (r *Report) heldByHook(n *nodeReport) *Answer {
	if n.resting() || n.stop == nil {
		return nil
	}
	a := &Answer{Verdict: HeldByHook, Blocking: &Object{Kind: "Hook", Name: n.stop.Hook}, Since: n.stop.Since,
		Because: fmt.Sprintf("the update to %s waits, and the node serves: before-drain hook %s says no: %s",
			n.Desired, n.stop.Hook, n.stop.Why),
		Output: n.stop.Output,
		Do:     "do what the hook asks for; the agent asks the hook again once a minute, and when the pool's hooks change"}
	if name, is := strings.CutPrefix(n.stop.Hook, api.NodeHookPrefix); is {
		a.Blocking = &Object{Kind: "NodeHook", Name: name}
	}
	return a
}

// underWay answers for a node that is on its way without a problem.
func (r *Report) underWay(n *nodeReport) *Answer {
	if !n.Moving() {
		return nil
	}
	what, since := n.doing()
	what = strings.ToLower(what)
	because := fmt.Sprintf("the node is updating from %s to %s: %s", cmp.Or(n.Current, "nothing"), n.Desired, what)
	if n.step.Message != "" {
		because += " (" + n.step.Message + ")"
	}
	if n.Reason != "" && !strings.HasSuffix(n.step.Message, n.Reason) {
		because += "; " + n.Reason
	}
	because += n.pool.back(n)
	return &Answer{Verdict: Updating, Since: since, Because: because}
}

// poolStops answers for a node that waits only for its pool.
func (r *Report) poolStops(n *nodeReport) *Answer {
	if a := n.pool.malformed(); a != nil {
		return a
	}
	if n.Updated(n.pool.Target) {
		return nil
	}
	return n.pool.stops()
}

// cordoned answers for a node that is where it should be and takes no pods. Where the node's own ledger has the cordon,
// the cordon is about to end.
func (r *Report) cordoned(n *nodeReport) *Answer {
	switch {
	case !n.Updated(n.pool.Target) || !n.Cordoned:
		return nil
	case n.Cordon != nil:
		return &Answer{
			Verdict: Updating, Since: n.Cordon.Since,
			Because: "the node has the pool's configuration and is still cordoned by " + n.Cordon.By + ": " + n.Cordon.Reason,
		}
	}
	return &Answer{
		Verdict: Cordoned, Blocking: &Object{Kind: "Node", Name: n.Name},
		Because: "the node has the pool's configuration, and somebody else cordoned the node: the cordon stays, " +
			"and counts against the pool's maxUnavailable",
		Do: "kubectl uncordon " + n.Name,
	}
}

func (r *Report) upToDate(n *nodeReport) *Answer {
	if !n.Updated(n.pool.Target) {
		return nil
	}
	a := &Answer{
		Verdict: UpToDate, Since: n.condition(mcfgv1.MachineConfigNodeUpdated), Because: "the node has " + n.Current,
	}
	if n.Bootc {
		a.Because += ", without its OS: label " + api.BootcManaged + " leaves image, kernel type, extensions and kernel " +
			"arguments to bootc-operator"
	}
	if hold := n.pool.Rules.Kept[n.Name]; hold != nil {
		a.Because += "; " + hold.Because
	}
	if note := n.pool.Rules.Trials[n.Name]; note != "" {
		a.Because += "; " + note
	}
	return a
}

// waitsForTurn answers where as many nodes are out of service as the pool allows.
func (r *Report) waitsForTurn(n *nodeReport) *Answer {
	if a := n.pool.retries(n); a != nil {
		return a
	}
	taking := slices.DeleteFunc(slices.Clone(n.pool.taking), func(t *nodeReport) bool { return t == n })
	// Nodes that soak are named last: they need no care.
	slices.SortStableFunc(taking, func(a, b *nodeReport) int { return rank(a.soaks()) - rank(b.soaks()) })
	if len(taking) < n.pool.MaxUnavailable {
		return nil
	}
	a := &Answer{Verdict: WaitsForTurn, Blocking: &Object{Kind: "Node", Name: taking[0].Name}}
	const most = 3
	var words []string
	for _, t := range taking[:min(len(taking), most)] {
		text, since := r.occupied(t)
		words = append(words, t.Name+" ("+text+")")
		if t == taking[0] {
			a.Since = since
		}
	}
	if len(taking) > most {
		words = append(words, fmt.Sprintf("%d more", len(taking)-most))
	}
	ahead := slices.IndexFunc(n.pool.waiting, func(w *nodeReport) bool { return w == n })
	a.Because = fmt.Sprintf("the node waits for its turn: %s of pool %s may be out of service, taken by %s",
		number(n.pool.MaxUnavailable, "node"), n.pool.Name, strings.Join(words, ", "))
	if ahead > 0 {
		a.Because += fmt.Sprintf("; %s before it", number(ahead, "node"))
	}
	a.Do = "wait, or see kubectl refit explain node/" + taking[0].Name
	return a
}

// retries answers where the target failed before on another node, which has to prove it first.
func (p *poolReport) retries(n *nodeReport) *Answer {
	if p.first == nil || p.Retries(&n.Node) {
		return nil
	}
	return &Answer{
		Verdict: WaitsForTurn, Blocking: &Object{Kind: "Node", Name: p.first.Name},
		Because: fmt.Sprintf("the node waits for its turn: %s failed on node %s, was lifted, and is tried there first",
			p.Target, p.first.Name),
		Do: "wait, or see kubectl refit explain node/" + p.first.Name,
	}
}

// occupied returns in a few words why a node counts against its pool's maxUnavailable, and since when.
func (r *Report) occupied(n *nodeReport) (string, time.Time) {
	switch {
	case n.soaks() && n.pool.Rules.Gated[n.Name] != nil:
		return "arrived, " + n.pool.Rules.Gated[n.Name].Because, n.Arrived.Since
	case n.soaks():
		return "arrived and soaks until " + n.pool.Rules.Soaking[n.Name].UTC().Format(time.RFC3339), n.Arrived.Since
	case n.Failing():
		return strings.ToLower(string(n.State)), n.condition(mcfgv1.MachineConfigNodeNodeDegraded)
	case n.Moving():
		what, since := n.doing()
		return strings.ToLower(what), since
	case n.NotReady != "":
		return "not ready", n.NotReadySince
	case n.Cordon == nil:
		return "cordoned by somebody else", time.Time{}
	}
	return "cordoned", n.Cordon.Since
}

// writesRefused answers for a node that is not sent because the pool controller cannot write.
func (r *Report) writesRefused(n *nodeReport) *Answer { return n.pool.writesRefused() }

func (p *poolReport) writesRefused() *Answer {
	c := p.isTrue(api.PoolWritesRefused)
	if c == nil {
		return nil
	}
	a := &Answer{
		Verdict: NotOffered, Blocking: &controllerDeployment, Since: c.LastTransitionTime.Time,
		Because: "the pool controller can't write: " + c.Message,
		Do:      "correct the named object; the controller continues by itself",
	}
	if webhook := webhookNamed.FindStringSubmatch(c.Message); webhook != nil {
		a.Blocking = &Object{Kind: "Webhook", Name: webhook[1]}
		a.Do = "repair the webhook, or remove it from its ValidatingWebhookConfiguration or MutatingWebhookConfiguration: " +
			"kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations; the controller continues by itself"
	}
	return a
}

// webhookNamed finds the webhook's name in the API server's message about a webhook that does not answer.
var webhookNamed = regexp.MustCompile(`failed calling webhook "([^"]+)"`)

// notOffered answers for a node that could be sent and was not. The cause applies to every node.
func (r *Report) notOffered(n *nodeReport) *Answer {
	return &Answer{
		Verdict: NotOffered, Blocking: &controllerDeployment,
		Because: fmt.Sprintf("it is the node's turn to go to %s, and the pool controller has not sent the node",
			n.pool.Target),
		Do: "if this lasts for more than some seconds, " + lookAtController,
	}
}

var controllerDeployment = Object{Kind: "Deployment", Namespace: api.Namespace, Name: api.Controller}

const lookAtController = "see whether the controller runs: kubectl -n " + api.Namespace + " get deployment " +
	api.Controller

func poolObject(name string) *Object { return &Object{Kind: "MachineConfigPool", Name: name} }

func (p *poolReport) isTrue(of mcfgv1.MachineConfigPoolConditionType) *mcfgv1.MachineConfigPoolCondition {
	for i, c := range p.object.Status.Conditions {
		if c.Type == of && c.Status == corev1.ConditionTrue {
			return &p.object.Status.Conditions[i]
		}
	}
	return nil
}

// unwritten reports whether the pool has no MachineConfigs, and never had any.
func (p *poolReport) unwritten() bool {
	c := p.isTrue(api.PoolRenderPending)
	return c != nil && c.Reason == api.NoMachineConfigs
}

var objectInText = regexp.MustCompile(`\b([A-Z][A-Za-z]*Config|NodeHook)[/ ]([a-z0-9](?:[a-z0-9.-]*[a-z0-9])?)`)

// culprit returns the object that a message of the render controller names first, and nil if the message names no
// object.
func culprit(message string) *Object {
	found := objectInText.FindStringSubmatch(message)
	if found == nil {
		return nil
	}
	return &Object{Kind: found[1], Name: found[2]}
}

func nodeNames(nodes []*nodeReport) []string {
	names := make([]string, len(nodes))
	for i, n := range nodes {
		names[i] = n.Name
	}
	return names
}

// number returns a count with its noun, in the plural where needed.
func number(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
