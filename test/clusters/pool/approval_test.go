// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

const (
	osX = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	osY = "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

// ahead is how nodes stage ahead.
type ahead struct {
	slow   map[string]bool   // they take for ever
	unable map[string]string // they can't, and why
	os     map[string]string // what they find under the image's name, if not osX
}

func newAhead() ahead {
	return ahead{slow: map[string]bool{}, unable: map[string]string{}, os: map[string]string{}}
}

// change changes how nodes stage ahead.
func (a *agents) change(change func(*ahead)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change(&a.ahead)
}

// stageAhead carries out an order; empty: there is nothing to be said of one.
func (a *agents) stageAhead(n progress.Node) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	o := n.Orders.Stage
	switch {
	case o == nil && n.Staged != nil && n.Staged.Error == "":
		return fmt.Sprintf(`{"metadata":{"annotations":{%q:null}}}`, api.StagedKey)
	case o == nil, n.NotReady != "", api.SameContent(o.Config, n.Desired), n.Staged.Is(o.Config), a.ahead.slow[n.Name]:
		return ""
	}
	staged := api.Staged{Config: o.Config, Digest: osX, Since: time.Now()}
	if other := a.ahead.os[n.Name]; other != "" {
		staged.Digest = other
	}
	if why := a.ahead.unable[n.Name]; why != "" {
		if n.Staged.Failed(o.Config) {
			return ""
		}
		staged.Digest, staged.Error, staged.Tries = "", why, 1
	}
	return fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, api.StagedKey, api.Encode(staged))
}

// pulling counts the nodes that are asked to stage and have not.
func pulling(nodes map[string]progress.Node) int {
	count := 0
	for _, n := range nodes {
		o := n.Orders.Stage
		if o != nil && !n.Staged.Is(o.Config) && !n.Staged.Failed(o.Config) && !api.SameContent(o.Config, n.Desired) {
			count++
		}
	}
	return count
}

func (e *eye) pulled() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.pulls
}

// orders are the nodes that are asked to stage, each with what.
func (l *lab) orders(names ...string) map[string]string {
	l.t.Helper()
	out := map[string]string{}
	for _, name := range names {
		if o := l.stand(name).Orders.Stage; o != nil {
			out[name] = o.Config
		}
	}
	return out
}

// refused runs the plugin, which has to refuse and to say something.
func (l *lab) refused(says string, args ...string) {
	l.t.Helper()
	path, err := refit()
	if err != nil {
		l.t.Fatal(err)
	}
	cmd := exec.CommandContext(l.ctx, path, append(args, "--kubeconfig="+l.Kubeconfig)...)
	cmd.Env = append(os.Environ(), "NODEREFIT_TEST_CLOCK="+l.clock)
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), says) {
		l.t.Errorf("kubectl refit %s: %v, want that it says %s\n%s", strings.Join(args, " "), err, says, out)
	}
}

func (l *lab) inForce(policy string) {
	l.t.Helper()
	l.until("the policy is read", func() bool { return l.ready(policy) == "True "+api.RolloutInForce })
}

func TestAPoolIsStagedThenApprovedThenUpdated(t *testing.T) {
	l, c := workers(t, 5, "1")
	l.agents.change(func(a *ahead) { a.slow["w-4"] = true })
	l.mustPolicy("careful", `{"pools":["worker"],"approval":{},"staging":{"maxConcurrent":2,"minFreeMebibytes":512,"ioWeight":10}}`)
	l.inForce("careful")
	l.target("worker", configB)
	l.heldBy("worker", "StagingAhead", "staged on 4 of 5 nodes")
	l.explained("worker", "StagingAhead", "staged on 4 of 5 nodes")
	l.refused("too early", "approve", "worker")
	l.until("the node has its limits", func() bool {
		o := l.stand("w-4").Orders.Stage
		return o != nil && *o == api.StageOrder{Config: configB, MinFreeMebibytes: 512, IOWeight: 10}
	})

	l.agents.change(func(a *ahead) { a.slow = nil })
	l.heldBy("worker", "NeedsApproval", "staged on 5 of 5 nodes, and waits for an approval")
	l.event("worker", "Held", "waits for an approval")
	l.explained("worker", "NeedsApproval", "staged on 5 of 5 nodes")
	l.explained("w-2", "NeedsApproval", "staged on 5 of 5 nodes")
	for series, want := range map[string]string{
		`noderefit_pool_held{policy="careful",pool="worker",reason="NeedsApproval"}`: "1",
		`noderefit_pool_staged_nodes{pool="worker"}`:                                 "5",
		`noderefit_pool_unstaged_nodes{pool="worker"}`:                               "0",
	} {
		l.measures(c, series, want)
	}
	l.told(map[string][]string{})

	l.refused("and not "+osY, "approve", "worker", "--digest", osY)
	var said struct {
		api.Approval

		Nodes []string `json:"nodes"`
	}
	if err := json.Unmarshal([]byte(l.refit("approve", "worker", "--digest", osX, "--why", "tested", "-o", "json")), &said); err != nil {
		t.Fatal(err)
	}
	if said.Config != configB || said.Digest != osX || said.By == "" || said.Why != "tested" || len(said.Nodes) != 5 {
		t.Errorf("%+v", said)
	}
	l.updated("worker", configB)
	l.event("worker", "Approved", "was approved by "+said.By)
	if got := l.eye.pulled(); got > 2 {
		t.Errorf("%d nodes were to stage at once", got)
	}
	l.until("nothing is ordered any more", func() bool {
		n := l.stand("w-0")
		return n.Orders.Stage == nil && n.Staged == nil
	})
	l.refused("nothing waits for an approval", "approve", "worker")

	// What comes next needs an approval of its own.
	const configC = "rendered-worker-c"
	l.target("worker", configC)
	l.heldBy("worker", "NeedsApproval", configC+" is staged on 5 of 5 nodes")
}

func TestANodeThatCanNotStageStaysBehindAndServes(t *testing.T) {
	l, _ := workers(t, 3, "1")
	l.agents.change(func(a *ahead) { a.unable["w-1"] = "the disk is full" })
	l.mustPolicy("careful", `{"pools":["worker"],"approval":{"required":true},"staging":{"maxConcurrent":1}}`)
	l.inForce("careful")
	l.target("worker", configB)
	l.heldBy("worker", "NeedsApproval", "staged on 2 of 2 nodes, and waits for an approval; not staged on w-1")
	// As a CI job does it.
	l.change("worker", fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, api.ApprovedKey,
		`{"config":"`+configB+`","digest":"`+osX+`","by":"ci/42","since":"2026-03-01T00:00:00Z"}`))
	l.until("the others are updated", func() bool {
		return l.stand("w-0").Updated(configB) && l.stand("w-2").Updated(configB)
	})
	l.explained("w-1", "CannotStage", "the disk is full")
	if n := l.stand("w-1"); n.State != api.Done || n.Unavailable() || n.Current != configA {
		t.Errorf("w-1 is %s on %s", n.State, n.Current)
	}
	l.agents.change(func(a *ahead) { a.unable = nil })
	l.setClock(time.Now().Add(2 * time.Minute))
	l.updated("worker", configB)
}

func TestWhatDiffersBetweenNodesIsNotApproved(t *testing.T) {
	l, _ := workers(t, 3, "1")
	l.agents.change(func(a *ahead) { a.os["w-2"] = osY })
	l.mustPolicy("careful", `{"pools":["worker"],"approval":{},"staging":{"maxConcurrent":"100%"}}`)
	l.inForce("careful")
	l.target("worker", configB)
	l.heldBy("worker", "NeedsApproval", "is not the same OS on all nodes")
	l.refused(osX+" on w-0 and 1 more, "+osY+" on w-2", "approve", "worker")
	l.told(map[string][]string{})

	// The one that is odd does not hold the others up.
	l.refit("approve", "worker", "--digest", osX)
	l.until("the others are updated", func() bool {
		return l.stand("w-0").Updated(configB) && l.stand("w-1").Updated(configB)
	})
	l.explained("w-2", "NeedsApproval", "the node has staged "+osY)
	l.told(map[string][]string{"w-0": {configB}, "w-1": {configB}})
}

func TestNodesStageInTheirWindowsAndGoInOthers(t *testing.T) {
	l, _ := workers(t, 2, "2")
	l.setClock(evening(10, 0))
	l.mustPolicy("nightly", `{"pools":["worker"],"windows":{"open":[{"cron":"0 22 * * *","durationMinutes":60}]},
		"staging":{"maxConcurrent":2,"windows":{"open":[{"cron":"0 12 * * *","durationMinutes":60}]}}}`)
	l.inForce("nightly")
	l.agents.change(func(a *ahead) { a.slow["w-1"] = true })
	l.target("worker", configB)
	l.heldBy("worker", "OutsideWindow", "the next one opens at "+windowTime(evening(22, 0)))
	if got := l.orders("w-0", "w-1"); len(got) > 0 {
		t.Errorf("asked outside the windows of staging: %v", got)
	}
	l.setClock(evening(12, 1))
	l.until("one has staged and one is at it", func() bool {
		return l.stand("w-0").Staged.Is(configB) && len(l.orders("w-0", "w-1")) == 2
	})
	l.setClock(evening(13, 1))
	l.until("the one that is late lets go", func() bool {
		return maps.Equal(l.orders("w-0", "w-1"), map[string]string{"w-0": configB})
	})
	l.setClock(evening(22, 1))
	l.until("the one that has staged is updated", func() bool { return l.stand("w-0").Updated(configB) })
	l.explained("w-1", "StagingAhead", "no window for staging is open before "+evening(36, 0).Format(time.RFC3339))
	l.told(map[string][]string{"w-0": {configB}})
}

func TestAnOrderIsTakenBackWithWhatItIsFor(t *testing.T) {
	l, c := workers(t, 2, "1")
	l.mustPolicy("careful", `{"pools":["worker"],"approval":{},"staging":{"maxConcurrent":2}}`)
	l.inForce("careful")
	l.target("worker", configB)
	l.heldBy("worker", "NeedsApproval", "staged on 2 of 2 nodes")
	// Another controller finds it as it is.
	c.stop(t, os.Interrupt)
	l.alone()
	l.change("worker", `{"spec":{"paused":true}}`)
	const configC = "rendered-worker-c"
	l.target("worker", configC)
	l.until("it lets go of what is not wanted, and a paused pool begins nothing", func() bool {
		return len(l.orders("w-0", "w-1")) == 0 && l.stand("w-0").Staged == nil && l.stand("w-1").Staged == nil
	})
	l.change("worker", `{"spec":{"paused":false}}`)
	l.heldBy("worker", "NeedsApproval", configC+" is staged on 2 of 2 nodes")
	if err := l.Client.CoreV1().RESTClient().Delete().AbsPath(policiesPath, "careful").Do(l.ctx).Error(); err != nil {
		t.Fatal(err)
	}
	l.updated("worker", configC)
	l.until("no order is left", func() bool { return len(l.orders("w-0", "w-1")) == 0 && l.stand("w-0").Staged == nil })
}

func TestStagingThatMakesNoSenseIsRefusedByField(t *testing.T) {
	l := newLab(t)
	for spec, field := range map[string]string{
		`{"pools":["a"],"staging":{"maxConcurrent":0}}`:      "spec.staging.maxConcurrent",
		`{"pools":["a"],"staging":{"maxConcurrent":"200%"}}`: "spec.staging.maxConcurrent",
		`{"pools":["a"],"staging":{"ioWeight":10001}}`:       "spec.staging.ioWeight",
		`{"pools":["a"],"staging":{"cpuWeight":-1}}`:         "spec.staging.cpuWeight",
		`{"pools":["a"],"staging":{"minFreeMebibytes":-1}}`:  "spec.staging.minFreeMebibytes",
		`{"pools":["a"],"staging":{"windows":{}}}`:           "open or blackouts is needed",
		`{"pools":["a"],"approval":{"required":"yes"}}`:      "spec.approval.required",
	} {
		if err := l.policy("wrong", spec); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v; want an error that says %s", spec, err, field)
		}
	}
}
