// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"encoding/json"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

// reboot plays what an agent does by an order to reboot, and where reboots are left to people. mine is false where a
// node has neither to do.
func (a *agents) reboot(n progress.Node) (patch string, mine bool) {
	o := n.RebootOrdered()
	a.mu.Lock()
	fails, held := a.breaks[n.Name], a.held[n.Name]
	a.mu.Unlock()
	annotations, spec := map[string]any{}, map[string]any{}
	switch now := a.l.now().UTC(); {
	case o == nil && n.Orders.ManualReboots && n.Desired != n.Current && n.Current != "":
		if n.Committed() {
			return "", true
		}
		annotations[api.StateKey] = string(api.Working)
		annotations[api.RebootWantedKey] = wanted(api.RebootConfiguration, now)
	case o == nil:
		return "", false
	case n.Rebooted == nil || n.Rebooted.ID != o.ID:
		annotations[api.RebootedKey] = api.Encode(api.Rebooted{ID: o.ID, Why: o.Why, Begun: now})
		annotations[api.StateKey] = string(api.Working)
		annotations[api.CordonKey] = api.Encode(api.Cordon{By: api.Daemon, Config: n.Desired, Since: now})
		spec["unschedulable"] = true
	case held:
		return "", true
	case !n.Rebooting:
		annotations[api.PostConfigAction] = api.PostConfigActionRebooting
	default:
		r := *n.Rebooted
		if r.Ended = now; fails {
			r.Failed = "kubelet is down"
		}
		annotations[api.RebootedKey], annotations[api.StateKey] = api.Encode(r), string(api.Done)
		annotations[api.CurrentConfig] = n.Desired
		annotations[api.PostConfigAction], annotations[api.CordonKey], annotations[api.RebootWantedKey] = nil, nil, nil
		spec["unschedulable"] = nil
	}
	data, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}, "spec": spec})
	if err != nil {
		a.l.t.Error(err)
	}
	return string(data), true
}

func wanted(kind api.RebootKind, since time.Time) string {
	return api.Encode(api.RebootWanted{Reasons: []api.RebootReason{
		{Kind: kind, Message: "a reboot is required", Packages: []string{"libc6"}, Since: since.Truncate(time.Second)},
	}})
}

// want has hosts want a reboot, as the agent reports after an upgrade of packages.
func (l *lab) want(nodes ...string) {
	l.t.Helper()
	for _, name := range nodes {
		l.mustPatchNode(name, `{"metadata":{"annotations":{"`+api.RebootWantedKey+`":`+
			quoted(wanted(api.RebootPackages, l.now().UTC()))+`}}}`)
	}
}

func (l *lab) rebooted(nodes ...string) {
	l.t.Helper()
	for _, name := range nodes {
		l.until(name+" has rebooted, and has no order any more", func() bool {
			n := l.stand(name)
			return n.Rebooted != nil && !n.Rebooted.Ended.IsZero() && n.Orders.Reboot == nil && n.Serving() && n.RebootWanted == nil
		})
	}
}

// unordered fails where a node has an order to reboot, or had one.
func (l *lab) unordered(nodes ...string) {
	l.t.Helper()
	for _, name := range nodes {
		if n := l.stand(name); n.Orders.Reboot != nil || n.Rebooted != nil {
			l.t.Errorf("%s was ordered to reboot: %+v, %+v", name, n.Orders.Reboot, n.Rebooted)
		}
	}
}

func TestWantedRebootsGoThroughWindowStageAndGateAndStopWhereOneFails(t *testing.T) {
	l, c := workers(t, 4, "1")
	l.health(false)
	l.want("w-1", "w-2", "w-3")
	// Without a policy they are shown.
	l.explained("node/w-1", "RebootWanted", "its host wants a reboot: a reboot is required (libc6)")
	l.explained("pool/worker", "RebootWanted", "3 of them want a reboot")
	l.until("the condition says so", func() bool {
		return strings.Contains(l.condition("worker", api.PoolRebootsWanted), "node w-1 since ")
	})
	l.until("a metric has the reboot that w-1 wants", func() bool {
		return c.metric(t, `noderefit_node_reboot_wanted{kind="Packages",node="w-1",pool="worker"}`) != ""
	})
	l.mustPatchNode("w-1", `{"metadata":{"labels":{"canary":"yes"}}}`)
	l.governed("careful", `{"pools":["worker"],"reboots":"Roll",
		"rebootWindows":{"open":[{"cron":"0 3 * * *","durationMinutes":180}]},
		"stages":[{"name":"canary","nodeSelector":{"matchLabels":{"canary":"yes"}},"gates":[`+healthGate("")+`]}]}`)
	if hour := time.Now().UTC().Hour(); hour < 2 || hour >= 6 {
		l.explained("node/w-1", "RebootWanted", "and waits: no window is open")
		l.unordered("w-0", "w-1", "w-2", "w-3")
	}
	now := l.now().UTC()
	night := time.Date(now.Year(), now.Month(), now.Day()+1, 3, 5, 0, 0, time.UTC)
	l.setClock(night)
	l.rebooted("w-1")
	l.explained("node/w-2", "RebootWanted", "and waits: gate healthy of stage canary is closed")
	l.unordered("w-0", "w-2", "w-3")
	l.agents.breakOn("w-2")
	l.health(true)
	l.explained("node/w-2", "RebootFailed", "kubelet is down")
	l.explained("node/w-3", "RebootWanted", "and waits: the reboot of node w-2 failed: kubelet is down")
	l.explained("pool/worker", "RebootFailed", "node w-2")
	l.unordered("w-0", "w-3")
	if n := l.stand("w-3"); !n.Serving() {
		t.Errorf("w-3 does not serve: %+v", n)
	}
	l.until("an event says so", func() bool { return l.hasEvent("RebootFailed", "w-2") })
	l.agents.mend("w-2")
	l.refit("retry", "w-2", "--why", "the disk was replaced")
	l.rebooted("w-2", "w-3")
	l.unordered("w-0")
	l.explained("pool/worker", "UpToDate", "all 4 nodes have")
	l.until("the order of the person is gone", func() bool { return l.getNode("w-2").Annotations[api.RebootKey] == "" })
	if _, _, most := l.eye.seen(); most > 1 {
		t.Errorf("%d nodes were out of service at a time", most)
	}
}

func TestPeopleOrderReboots(t *testing.T) {
	l, c := workers(t, 3, "1")
	l.want("w-1")
	l.refit("reboot", "w-0", "--why", "a hung mount")
	l.rebooted("w-0")
	l.until("the order is gone", func() bool { return l.getNode("w-0").Annotations[api.RebootKey] == "" })
	l.unordered("w-1", "w-2")
	// Each node of the pool once, also where the leader dies in the middle.
	l.agents.hold("w-1", true)
	first := l.stand("w-0").Rebooted.ID
	l.setClock(l.now().Add(2 * time.Minute))
	l.refit("reboot", "pool/worker", "--why", "CVE-2026-1")
	l.refused("is to reboot already, by ", "reboot", "pool/worker", "--why", "again")
	l.until("w-1 is under way", func() bool { return l.stand("w-1").RebootBegun() })
	l.explained("node/w-1", "Updating", "CVE-2026-1")
	before := l.stand("w-1").Orders.Reboot.ID
	c.stop(t, syscall.SIGKILL)
	l.alone()
	l.agents.hold("w-1", false)
	l.until("the order of the pool is gone", func() bool { return l.getPool("worker").Annotations[api.RebootKey] == "" })
	l.rebooted("w-0", "w-1", "w-2")
	if id := l.stand("w-1").Rebooted.ID; id != before {
		t.Errorf("w-1 was ordered %s, and another controller ordered %s", before, id)
	}
	if l.stand("w-0").Rebooted.ID == first {
		t.Error("w-0 did not reboot for the pool")
	}
	// An order that is taken back. Orders have seconds, and what is played reboots in less.
	l.setClock(l.now().Add(2 * time.Minute))
	l.mustPolicy("closed", `{"pools":["worker"],"reboots":"Never"}`)
	l.inForce("closed")
	l.refused("has reboots: Never", "reboot", "w-0", "--why", "no matter")
	l.mustPatchNode("w-0", `{"spec":{"unschedulable":true}}`)
	l.until("w-0 is cordoned", func() bool { return l.stand("w-0").Cordoned })
	l.refit("reboot", "w-2", "--why", "later", "--bypass")
	l.explained("node/w-2", "RebootWanted", "and waits for its turn")
	l.refit("reboot", "w-2", "--cancel")
	l.explained("node/w-2", "UpToDate", "")
	l.refit("hold", "w-2", "--why", "a trace")
	l.refused("kubectl refit release w-2 comes first", "reboot", "w-2", "--why", "now", "--bypass")
}

func TestManualRebootsAreLeftToPeople(t *testing.T) {
	l, _ := workers(t, 3, "1")
	l.governed("by-hand", `{"pools":["worker"],"reboots":"Manual"}`)
	names := []string{"w-0", "w-1", "w-2"}
	l.until("the agents are told so", func() bool {
		return !slices.ContainsFunc(names, func(name string) bool { return !l.stand(name).Orders.ManualReboots })
	})
	l.target("worker", configB)
	for _, name := range names {
		l.explained("node/"+name, "NeedsReboot", configB+" is committed on the host")
	}
	l.explained("pool/worker", "NeedsReboot", "0 of 3 nodes updated")
	if p := l.getPool("worker"); p.Status.UnavailableMachineCount != 0 || p.Status.UpdatedMachineCount != 0 {
		t.Errorf("%+v", p.Status)
	}
	// One boots by a person's order, and the others when the policy is no longer Manual: in their turns.
	l.refit("reboot", "w-1", "--why", "our night")
	l.rebooted("w-1")
	if n := l.stand("w-1"); !n.Updated(configB) {
		t.Errorf("w-1 has not arrived: %+v", n)
	}
	err := l.Client.CoreV1().RESTClient().Patch(types.MergePatchType).AbsPath(policiesPath, "by-hand").
		Body([]byte(`{"spec":{"reboots":"Report"}}`)).Do(l.ctx).Error()
	if err != nil {
		t.Fatal(err)
	}
	l.updated("worker", configB)
	if _, _, most := l.eye.seen(); most > 1 {
		t.Errorf("%d nodes were out of service at a time", most)
	}
}

func TestAPolicyOfRebootsThatMakesNoSenseIsRefusedByField(t *testing.T) {
	l := newLab(t)
	for spec, says := range map[string]string{
		`{"pools":["worker"],"reboots":"Sometimes"}`:                                                                 "spec.reboots",
		`{"pools":["worker"],"reboots":"Never","rebootWindows":{"open":[{"cron":"0 3 * * *","durationMinutes":5}]}}`: "rebootWindows",
		`{"pools":["worker"],"reboots":"Roll","rebootWindows":{"open":[{"cron":"0 3 * * *"}]}}`:                      "spec.rebootWindows",
	} {
		if err := l.policy("wrong", spec); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want that it names %s", spec, err, says)
		}
	}
}
