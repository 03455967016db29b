// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/controller/source"
	"github.com/noderefit/noderefit/progress"
)

const (
	// historyLimit is how many configurations a rollback may choose from.
	historyLimit = 3
	// namedNodes is how many nodes a condition names before it counts the rest.
	namedNodes = 10
	// driftNames is how many drifted paths a condition names of a node.
	driftNames = 3
)

// annotations returns the controller's annotations of the pool with the values that they should have. An empty value
// removes the annotation. An annotation that can't be read is not in the result: it is left for a person to look at.
func annotations(pool *mcfgv1.MachineConfigPool, p progress.Pool, now time.Time) map[string]string {
	out := map[string]string{}
	if _, err := api.Decode[[]api.Quarantine](pool.Annotations, api.PoolQuarantineKey); err == nil {
		out[api.PoolQuarantineKey] = encodeList(p.Remembered(now))
	}
	if history, err := api.Decode[[]string](pool.Annotations, api.HistoryKey); err == nil {
		if left := pool.Status.Configuration.Name; p.Complete() && left != "" && left != p.Target {
			history = append([]string{left}, slices.DeleteFunc(history, func(c string) bool {
				return c == left || c == p.Target
			})...)
		}
		out[api.HistoryKey] = encodeList(history[:min(len(history), historyLimit)])
	}
	if known, err := api.Decode[[]api.PastRollout](pool.Annotations, api.RolloutsKey); err == nil {
		out[api.RolloutsKey] = encodeList(rollouts(known, p, now))
	}
	if p.RebootAnswered() {
		out[api.RebootKey] = ""
	}
	if note := p.Rules.Note; note != nil {
		out[api.RolloutPolicyKey] = api.Encode(note)
	} else if p.Rules.Policy == "" {
		out[api.RolloutPolicyKey] = ""
	}
	return out
}

func encodeList[T any](list []T) string {
	if len(list) == 0 {
		return ""
	}
	return api.Encode(list)
}

// annotationPatch returns the merge patch that brings the pool's annotations up to date, and nil if they are.
func annotationPatch(pool *mcfgv1.MachineConfigPool, p progress.Pool, now time.Time) []byte {
	changes := map[string]any{}
	for key, want := range annotations(pool, p, now) {
		switch have, there := pool.Annotations[key]; {
		case want == "" && there:
			changes[key] = nil
		case want != have:
			changes[key] = want
		}
	}
	if len(changes) == 0 {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": pool.ResourceVersion, "annotations": changes,
	}})
	if err != nil {
		panic(err) // strings only
	}
	return patch
}

// status returns the status that a pool should have. Conditions of other writers stay as they are.
func status(pool *mcfgv1.MachineConfigPool, p progress.Pool, now time.Time) mcfgv1.MachineConfigPoolStatus {
	s := *pool.Status.DeepCopy()
	s.ObservedGeneration = observed(pool)
	s.MachineCount, s.UpdatedMachineCount = int32(p.Machines), int32(p.Updated)
	s.ReadyMachineCount, s.UnavailableMachineCount = int32(p.Ready), int32(p.Unavailable)
	s.DegradedMachineCount = int32(p.Degraded)
	if p.Complete() {
		s.Configuration = *pool.Spec.Configuration.DeepCopy()
	}
	source.SetPoolConditions(&s.Conditions, metav1.NewTime(now.Truncate(time.Second)), conditions(p, &s)...)
	return s
}

func conditions(p progress.Pool, s *mcfgv1.MachineConfigPoolStatus) []mcfgv1.MachineConfigPoolCondition {
	out := updates(p)
	quarantined := condition(api.PoolQuarantined, quarantineText(p))
	failing := condition(mcfgv1.MachineConfigPoolNodeDegraded, failingText(p))
	if p.Degraded > 0 {
		failing.Reason = fmt.Sprintf("%d nodes are reporting degraded status on sync", p.Degraded)
	}
	wrong := condition(progress.PoolMisconfigured, wrongText(p))
	because := cmp.Or(quarantined.Message, failing.Message, said(s, mcfgv1.MachineConfigPoolRenderDegraded), wrong.Message)
	held := heldCondition(p)
	stopped := held
	if r := progress.Verdict(held.Reason); !needsSomebody[r] {
		stopped.Status = corev1.ConditionFalse // the other holds end by themselves
	}
	reconciling, stalled := health(p, s, quarantined, wrong, stopped)
	return append(out, failing, condition(mcfgv1.MachineConfigPoolDegraded, because), quarantined, wrong,
		condition(api.PoolDrifted, driftText(p)), rebootsCondition(p), held, condition(api.PoolBypassed, bypassText(p)),
		condition(api.PoolApproved, approvedText(p)), condition(api.PoolWritesRefused, p.Refused),
		reconciling, stalled)
}

// needsSomebody has the reasons of holds that do not end without a person.
var needsSomebody = map[progress.Verdict]bool{
	progress.PolicyUnusable: true, progress.FailureBudget: true, progress.GateFailed: true, progress.Withheld: true,
}

// driftText names the nodes that have drifted.
func driftText(p progress.Pool) string {
	var texts []string
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if d := n.Drift; d != nil {
			texts = append(texts, fmt.Sprintf("Node %s since %s: %s", n.Name, d.Since().UTC().Format(time.RFC3339),
				d.Names(driftNames)))
		}
	}
	return strings.Join(few(texts, "%d more nodes have drifted"), "; ")
}

// updates returns the two conditions by which people and scripts follow an update, in OpenShift's words.
func updates(p progress.Pool) []mcfgv1.MachineConfigPoolCondition {
	updated := mcfgv1.MachineConfigPoolCondition{Type: mcfgv1.MachineConfigPoolUpdated, Status: corev1.ConditionFalse}
	updating := mcfgv1.MachineConfigPoolCondition{Type: mcfgv1.MachineConfigPoolUpdating, Status: corev1.ConditionFalse}
	switch {
	case p.Unread != "":
		updating.Message = "Pool can't be read; its nodes are left alone: " + p.Unread
	case p.Target == "":
		updating.Message = "Pool has no configuration yet"
	case p.Complete():
		updated.Status, updated.Message = corev1.ConditionTrue, "All nodes are updated with "+p.Target
	case p.Paused:
		updating.Message = "Pool is paused; will not update to " + p.Target
	case p.Quarantine() != nil:
		updating.Message = "Configuration is quarantined; will not update to " + p.Target
	default:
		updating.Status, updating.Message = corev1.ConditionTrue, "All nodes are updating to "+p.Target
	}
	return []mcfgv1.MachineConfigPoolCondition{updated, updating}
}

// condition returns a condition with the text as its message. The condition is true unless the text is empty.
func condition(kind mcfgv1.MachineConfigPoolConditionType, text string) mcfgv1.MachineConfigPoolCondition {
	c := mcfgv1.MachineConfigPoolCondition{Type: kind, Status: corev1.ConditionFalse, Message: text}
	if text != "" {
		c.Status = corev1.ConditionTrue
	}
	return c
}

func quarantineText(p progress.Pool) string {
	q := p.Quarantine()
	if q == nil {
		return ""
	}
	if q.Gate != "" {
		return fmt.Sprintf("%s, until the pool's MachineConfigs change or the quarantine is lifted", progress.WhyRefused(q))
	}
	at := ""
	if !q.Since.IsZero() {
		at = " at " + q.Since.UTC().Format(time.RFC3339)
	}
	return fmt.Sprintf("%s failed on node %s%s and is offered to no other node, until the pool's MachineConfigs "+
		"change or the quarantine is lifted: %s", q.Config, q.Node, at, q.Reason)
}

// wrongText names what is wrong with the pool, and after that with nodes.
func wrongText(p progress.Pool) string {
	texts := slices.Clone(p.Problems)
	for _, n := range p.NodeProblems {
		texts = append(texts, n.Text)
	}
	for i := range texts {
		texts[i] = api.ShortReason(texts[i])
	}
	return strings.Join(few(texts, "%d more things are wrong"), "; ")
}

// few cuts a list to the length that a condition names, and counts the rest in the words of more.
func few(texts []string, more string) []string {
	if rest := len(texts) - namedNodes; rest > 0 {
		return append(texts[:namedNodes], fmt.Sprintf(more, rest))
	}
	return texts
}

// failingText names the nodes that fail, as OpenShift does. Where the configuration failed on a node that is gone or
// was healed since, the text is about the quarantine.
func failingText(p progress.Pool) string {
	return cmp.Or(nodesText(p), quarantineText(p))
}

func nodesText(p progress.Pool) string {
	return listFailing(p.Nodes, func(*progress.Node) bool { return true })
}

func listFailing(nodes []progress.Node, which func(*progress.Node) bool) string {
	var texts []string
	for i := range nodes {
		switch n := &nodes[i]; {
		case !which(n):
		case n.Overdue():
			texts = append(texts, fmt.Sprintf("Node %s is overdue: %s", n.Name, n.OverdueText()))
		case n.Failing():
			texts = append(texts, fmt.Sprintf("Node %s is reporting: %q", n.Name, cmp.Or(n.Reason, string(n.State))))
		}
	}
	return strings.Join(few(texts, "%d more nodes are failing"), ", ")
}

// said returns the message of a condition that is true, or its reason. The result is empty if the condition is not
// true.
func said(s *mcfgv1.MachineConfigPoolStatus, kind mcfgv1.MachineConfigPoolConditionType) string {
	for _, c := range s.Conditions {
		if c.Type == kind && c.Status == corev1.ConditionTrue {
			return cmp.Or(c.Message, c.Reason, string(kind))
		}
	}
	return ""
}
