// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/hands"
	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/plan"
	"github.com/noderefit/noderefit/transaction"
)

// busyHost is a host that has drifted, and on which other work is in progress.
type busyHost struct {
	forced  bool
	asked   int
	refuses error
}

func (b *busyHost) Verify(context.Context) (*host.Verification, error) {
	return &host.Verification{Config: cfgA, Forced: b.forced, Drift: []host.Drift{{Kind: "file", Path: "/a", What: "contents"}}}, nil
}

func (b *busyHost) Repair(context.Context, hands.RepairRequest) (*host.Result, error) {
	b.asked++
	return nil, b.refuses
}

// policyOf makes a head see a configuration with a drift policy.
func policyOf(t *testing.T, h *Head, config, policy string) {
	t.Helper()
	w := &configWatch{informer: cache.NewSharedIndexInformer(&cache.ListWatch{}, &metav1.PartialObjectMetadata{}, 0,
		cache.Indexers{})}
	meta := metav1.ObjectMeta{Name: config, Annotations: map[string]string{api.DriftPolicyKey: policy}}
	if err := w.informer.GetStore().Add(&metav1.PartialObjectMetadata{ObjectMeta: meta}); err != nil {
		t.Fatal(err)
	}
	h.cluster.watched[config] = w
}

// at returns a node at rest in a phase.
func at(p Phase, desired string, now time.Time) *situation {
	v := &situation{now: now, exists: true, host: &host.Status{State: transaction.Done}}
	v.node.Desired, v.host.Config.Committed = desired, cfgA
	if p == PhaseRolledBack {
		v.host.State = transaction.RolledBack
	}
	return v
}

func TestRepairThatDoesNotBeginIsFollowedByAPause(t *testing.T) {
	answers := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`))
	}))
	defer answers.Close()
	away := httptest.NewServer(http.NotFoundHandler())
	away.Close()
	refused := &host.Refused{Err: errors.New("another update of the OS is under way")}
	for _, c := range []struct {
		name, server, policy string
		host                 busyHost
	}{
		{"the host is busy", answers.URL, api.DriftRepair, busyHost{refuses: refused}},
		{"the host is busy, with a force file", answers.URL, api.DriftReport, busyHost{refuses: refused, forced: true}},
		{"a force file, and it fails", answers.URL, api.DriftReport, busyHost{refuses: errors.New("no space"), forced: true}},
		{"the API server is away", away.URL, api.DriftRepair, busyHost{}},
	} {
		h, _ := quietHead(t)
		h.cluster.kube = clientOf(t, c.server)
		policyOf(t, h, cfgA, c.policy)
		h.o.Verifier, h.way, h.phase = &c.host, way{from: cfgA, to: cfgA}, PhaseDone
		tries := 0
		now := time.Now()
		for range 20 {
			h.start(t.Context(), at(PhaseDone, cfgA, now), phase{name: PhaseDone})
			if h.job == nil {
				break
			}
			if h.job.phase == phaseRepair {
				tries++
			}
			h.take(<-h.ended)
			now = time.Now()
		}
		if tries != 1 || h.job != nil {
			t.Errorf("%s: %d tries on end", c.name, tries)
		}
		// After another comparison the repair still waits.
		h.verifyAt = now
		for range 3 {
			if h.start(t.Context(), at(PhaseDone, cfgA, now), phase{name: PhaseDone}); h.job != nil {
				if h.job.phase == phaseRepair {
					t.Errorf("%s: a comparison has it tried again at once", c.name)
				}
				h.take(<-h.ended)
			}
		}
		if wait := row(t, string(phaseRepair)).dueAt(h, at(PhaseDone, cfgA, now)).Sub(now); wait < repairFirst/2 || wait > 2*repairFirst {
			t.Errorf("%s: tried again in %s", c.name, wait)
		}
	}
}

// A node whose update was rolled back has a configuration too, with its own policy.
func TestHostIsComparedWhereverItRests(t *testing.T) {
	for _, p := range []Phase{PhaseRolledBack, PhaseHold, PhaseDone} {
		h, _ := quietHead(t)
		desired := cfgA
		if p == PhaseRolledBack {
			desired = cfgB
			policyOf(t, h, cfgB, api.DriftReport)
		}
		policyOf(t, h, cfgA, api.DriftRepair)
		h.cluster.kube = clientOf(t, "http://127.0.0.1:1")
		h.o.Verifier, h.way, h.phase = &busyHost{}, way{from: cfgA, to: desired}, p
		h.read, h.verifyAt = true, then.Add(time.Hour)
		h.touch(then)
		if due := h.verifyAt.Sub(then); due > time.Minute {
			t.Errorf("%s: what is touched is looked at in %s", p, due)
		}
		h.askAt = then.Add(time.Hour)
		if pause := h.pause(at(p, desired, then), then); pause > time.Minute {
			t.Errorf("%s: the next turn is in %s", p, pause)
		}
		now := then.Add(2 * time.Minute)
		v := at(p, desired, now)
		h.start(t.Context(), v, phase{name: p})
		if h.job == nil || h.job.phase != phaseVerify {
			t.Errorf("%s: the host is not compared: %+v", p, h.job)
			continue
		}
		if !h.clear(v, phase{name: p}) {
			t.Errorf("%s: the comparison is cancelled", p)
		}
		h.take(<-h.ended)
		if h.drift.report.Count() != 1 {
			t.Errorf("%s: nothing is known of drift", p)
		}
		h.verifyAt = now.Add(time.Hour)
		if h.start(t.Context(), v, phase{name: p}); h.job == nil || h.job.phase != phaseRepair {
			t.Errorf("%s: not written back as its configuration says", p)
			continue
		}
		h.take(<-h.ended)
	}
}

// An update that is rolled back leaves the host where it was: nothing else makes the head compare the host.
func TestTouchDuringAnUpdateIsLookedAtAfterIt(t *testing.T) {
	for _, c := range []struct {
		name    string
		through []Phase
		touched bool
		soon    bool
	}{
		{"touched in an update", []Phase{PhaseDone, PhasePlan, PhaseApply, PhaseDone}, true, true},
		{"an update", []Phase{PhaseDone, PhaseStage, PhaseRolledBack}, false, true},
		{"touched while the host was not read", []Phase{PhaseDone, PhaseObserve, PhaseDone}, true, true},
		{"a head that starts", []Phase{PhaseAbsent, PhaseObserve, PhaseDone}, false, false},
		{"nothing", []Phase{PhaseDone, PhaseDone}, false, false},
	} {
		h, _ := quietHead(t)
		h.verifyAt = then.Add(time.Hour)
		for i, p := range c.through {
			h.enter(&situation{now: then}, p)
			if c.touched && i == 1 {
				h.touch(then)
			}
		}
		if soon := h.verifyAt.Equal(then); soon != c.soon {
			t.Errorf("%s: looked at in %s", c.name, h.verifyAt.Sub(then))
		}
	}
}

type comparer struct{ found host.Verification }

func (c comparer) Verify(context.Context) (*host.Verification, error) { return &c.found, nil }

func (c comparer) Repair(context.Context, hands.RepairRequest) (*host.Result, error) {
	return nil, errors.New("not asked for")
}

func TestAStrictUpdateDoesNotWaitForADeploymentThatSomebodyElseHasBooted(t *testing.T) {
	another := host.Drift{Kind: host.DriftDeployment, What: "another"}
	file := host.Drift{Kind: "file", Path: "/etc/a", What: "contents"}
	for _, c := range []struct {
		found []host.Drift
		waits []host.Drift
	}{
		{[]host.Drift{another}, nil},
		{[]host.Drift{another, file}, []host.Drift{file}},
	} {
		h, _ := quietHead(t)
		h.o.Verifier = comparer{host.Verification{Config: cfgA, Drift: c.found}}
		err := h.preflight(t.Context(), &hands.Request{Strict: true}, nil, &jobEnd{})
		var waits []host.Drift
		if drifted, is := errors.AsType[*host.DriftError](err); is {
			waits = drifted.Drift
		} else if err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(c.waits, waits, cmpopts.IgnoreUnexported(host.Drift{})); diff != "" {
			t.Errorf("%v (-want +got):\n%s", c.found, diff)
		}
	}
}

func TestWhatAnUpdateRemovesOfOthersIsAnnouncedOnce(t *testing.T) {
	h, events := quietHead(t)
	h.way.to = cfgB
	p := &plan.Plan{Warnings: []string{"a warning"}, Lost: []string{"os.1: sysstat", "os.2: other"}}
	h.warnPlan(p)
	h.warnPlan(p)
	h.warnPlan(nil)
	close(events.Events)
	var got []string
	for event := range events.Events {
		got = append(got, event)
	}
	want := []string{"Warning UpdateWarning a warning", "Warning UpdateWarning The update to " + cfgB +
		" removes deployments that others have staged on the host: os.1: sysstat, os.2: other"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
