// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/drain"
	"github.com/noderefit/noderefit/hands"
	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/osimage"
	"github.com/noderefit/noderefit/transaction"
)

// quietHead returns a head that sees a node and does nothing, and the recorder of the head's events.
func quietHead(t *testing.T) (*Head, *record.FakeRecorder) {
	t.Helper()
	events := record.NewFakeRecorder(10)
	h := NewHead(HeadOptions{Node: "a", Log: zap.NewNop()})
	h.cluster.events = events
	h.cluster.node = cache.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.Node{}, 0, cache.Indexers{})
	if err := h.cluster.node.GetStore().Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}); err != nil {
		t.Fatal(err)
	}
	return h, events
}

func TestDriftIsToldWithoutContents(t *testing.T) {
	h, events := quietHead(t)
	verified := func(found ...host.Drift) {
		h.verified(jobEnd{job: &job{began: then}, drift: &host.Verification{Config: cfgA, Drift: found}}, then)
	}
	verified(host.Drift{Kind: "file", Path: "/etc/a.conf", What: "contents", Expected: "sha256:1111", Found: "sha256:2222"})
	node := h.cluster.current()
	h.announceDrift(nil, h.drift.report, node)
	got := <-events.Events
	if !strings.Contains(got, "ConfigDriftDetected") || !strings.Contains(got, "file /etc/a.conf (contents)") {
		t.Errorf("event %q", got)
	}
	if got += api.Encode(h.drift.report); strings.Contains(got, "1111") || strings.Contains(got, "2222") {
		t.Errorf("a digest of contents in %q", got)
	}
	if next := h.verifyAt.Sub(then); next < verifyPace*3/4 || next > verifyPace*5/4 {
		t.Errorf("the next look is in %s", next)
	}
	was := h.drift.report
	verified()
	h.announceDrift(was, h.drift.report, node)
	if got := <-events.Events; !strings.Contains(got, "ConfigDriftResolved") {
		t.Errorf("event %q", got)
	}
	if h.drift.report != nil {
		t.Error("a host that matches still drifts")
	}
}

// A turn may be slow. A comparison that became due meanwhile must not wait for ten minutes.
func TestComparisonThatComesDueDuringATurnIsNotLost(t *testing.T) {
	now := time.Now()
	for name, set := range map[string]func(*Head){
		"a comparison": func(h *Head) { h.verifyAt = now.Add(-time.Millisecond) },
		"a repair": func(h *Head) {
			policyOf(t, h, cfgA, api.DriftRepair)
			h.verifyAt, h.drift.known, h.drift.items = now.Add(time.Hour), true, []api.DriftItem{{Kind: "file", Name: "/a"}}
			h.drift.fights = map[string]fight{"file /a": {times: 1, last: now.Add(-repairFirst - time.Millisecond)}}
		},
	} {
		h, _ := quietHead(t)
		h.o.Verifier, h.phase, h.read, h.askAt = &hands.Client{}, PhaseDone, true, now.Add(restPace)
		set(h)
		if pause := h.pause(at(PhaseDone, cfgA, now.Add(-time.Second)), now); pause > time.Second {
			t.Errorf("%s: the next turn is in %s", name, pause)
		}
	}
}

// A path that changed while the host compared itself may have been compared before the change.
func TestTouchDuringAComparisonIsNotLost(t *testing.T) {
	h, _ := quietHead(t)
	h.phase, h.verifyAt = PhaseDone, then
	h.touch(then.Add(time.Second))
	h.verified(jobEnd{job: &job{began: then}, drift: &host.Verification{Config: cfgA}}, then.Add(1100*time.Millisecond))
	if next := h.verifyAt.Sub(then); next > 10*time.Second {
		t.Errorf("the next look is in %s", next)
	}
	again := &job{began: then.Add(5 * time.Second)}
	h.verified(jobEnd{job: again, drift: &host.Verification{Config: cfgA}}, then.Add(6*time.Second))
	if next := h.verifyAt.Sub(then); next < verifyPace/2 {
		t.Errorf("it compares itself without end: %s", next)
	}
}

func TestLongDrainIsComplainedOfNowAndThen(t *testing.T) {
	h, events := quietHead(t)
	h.way.to, h.job = cfgB, &job{phase: PhaseDrain, config: cfgB}
	h.draining(held())
	complain := func(now time.Time) { row(t, "complain").begin(t.Context(), h, &situation{now: now}) }
	for _, c := range []struct {
		after time.Duration
		want  int
	}{{time.Minute, 0}, {drainLong, 1}, {drainLong + time.Minute, 0}, {drainLong + drainAgain, 1}, {2 * drainAgain, 0}} {
		complain(then.Add(c.after))
		if len(events.Events) != c.want {
			t.Errorf("after %s: %d complaints, want %d", c.after, len(events.Events), c.want)
		}
		for range len(events.Events) {
			if got := <-events.Events; !strings.Contains(got, "FailedToDrain") || !strings.Contains(got, "router") {
				t.Errorf("event %q", got)
			}
		}
		h.draining(held()) // a report is no reason for another warning
	}
	again := held()
	again.Since, h.drain = then.Add(3*drainAgain), nil
	h.draining(again)
	complain(again.Since.Add(drainLong))
	if len(events.Events) != 1 {
		t.Errorf("%d complaints about the next drain", len(events.Events))
	}
}

func held() api.Drain {
	return api.Drain{Config: cfgB, Since: then, Left: 1,
		Waiting: []api.WaitingPod{{Namespace: "web", Name: "router-1", Why: api.DrainWaitBudget, Budget: "router"}}}
}

func TestNodeSaysWhatItsUpdateWaitsFor(t *testing.T) {
	d := held()
	pulling := &osimage.Pulling{Since: then.Format(time.RFC3339), Says: "layer 1"}
	cases := []struct {
		name   string
		phase  Phase
		ends   func(*Head)
		change func()
		first  string
		second string
	}{
		{"a drain", PhaseDrain, func(h *Head) { h.drain = nil }, func() { d.Waiting[0].Name = "router-2" },
			"router-1", "router-2"},
		{"a pull", PhaseStage, func(h *Head) { h.host.Pulling = nil }, func() { pulling.Says = "layer 2" },
			"layer 1", "layer 2"},
	}
	for _, c := range cases {
		h, _ := quietHead(t)
		h.way.to, h.drain, h.host = cfgB, &d, &host.Status{Pulling: pulling}
		h.job = &job{phase: c.phase, config: cfgB}
		says := func(after time.Duration) string {
			since, text := h.holds()
			return h.held.next(since, text, then.Add(after))
		}
		if got := says(heldShown / 2); got != "" {
			t.Errorf("%s, at once: %q", c.name, got)
		}
		first := says(heldShown)
		if !strings.Contains(first, c.first) {
			t.Errorf("%s, after a while: %q", c.name, first)
		}
		c.change()
		if got := says(heldShown + time.Second); got != first {
			t.Errorf("%s: each change is said at once: %q", c.name, got)
		}
		if got := says(2 * heldShown); !strings.Contains(got, c.second) {
			t.Errorf("%s: it never changes: %q", c.name, got)
		}
		v := stages[c.phase]()
		v.held = first
		if got := said(nil, reportNode(v, c.phase))[api.Reason]; got != first {
			t.Errorf("%s: the Node says %q", c.name, got)
		}
		told := slices.ContainsFunc(conditions(v, c.phase, nil, nil), func(c metav1.Condition) bool {
			return c.Type == string(mcfgv1.MachineConfigNodeUpdatePrepared) && strings.HasSuffix(c.Message, "; "+first)
		})
		if told != (c.phase == PhaseStage) {
			t.Errorf("%s: that it is prepared says so: %t", c.name, told)
		}
		c.ends(h)
		if got := says(3 * heldShown); got != "" {
			t.Errorf("%s, when it is over: %q", c.name, got)
		}
	}
}

func TestDrainIsAnnouncedOnceThereIsAnythingToSay(t *testing.T) {
	ending := func(at time.Time) *api.Drain {
		return &api.Drain{Config: cfgB, Since: at, Left: 1,
			Waiting: []api.WaitingPod{{Namespace: "web", Name: "router-1", Since: at, Why: api.DrainWaitTerminating}}}
	}
	blocked := held()
	asked := &api.Drain{Config: cfgB, Since: then, Left: 1}
	cases := []struct {
		name  string
		drain *api.Drain
		said  string // the MachineConfigNode's report of the drain before
		after time.Duration
		want  bool
	}{
		{"a pod ends", ending(then), "", drainQuiet - time.Second, false},
		{"a pod takes long to end", ending(then), "", drainQuiet, true},
		{"it was said that it waits", ending(then), api.Encode(blocked), time.Second, true},
		{"a budget holds a pod", &blocked, "", 0, true},
		{"an eviction has no answer yet", asked, "", time.Second, false},
		{"nor after a while", asked, "", drainQuiet, true},
	}
	for _, c := range cases {
		h, _ := quietHead(t)
		h.way.to, h.job, h.drain = cfgB, &job{phase: PhaseDrain, config: cfgB}, c.drain
		h.object.read, h.object.said.drain = true, c.said
		v := stages[PhaseDrain]()
		v.now = then.Add(c.after)
		h.object.want(h, v, PhaseDrain)
		if got := h.object.wanted.drain != ""; got != c.want {
			t.Errorf("%s: announced %t, want %t", c.name, got, c.want)
		}
	}
	h, _ := quietHead(t)
	h.way.to, h.job, h.drain = cfgB, &job{phase: PhaseDrain, config: cfgB}, ending(time.Now())
	h.askAt = time.Now().Add(time.Hour)
	if pause := h.pause(&situation{now: time.Now()}, time.Now()); pause > drainQuiet {
		t.Errorf("it is looked at again only in %s", pause)
	}
}

func TestErrorsMeanDifferentThings(t *testing.T) {
	h, _ := quietHead(t)
	unreachable := &url.Error{Op: "Get", URL: "https://api", Err: errors.New("connection refused")}
	cases := []struct {
		name  string
		phase Phase
		err   error
		want  failureKind
	}{
		{"the API server is away while planning", PhasePlan, &clusterError{unreachable}, failTransient},
		{"and while draining", PhaseDrain, unreachable, failTransient},
		{"a registry is away", PhaseStage, unreachable, failDegraded},
		{"the host is slow", PhasePlan, context.DeadlineExceeded, failDegraded},
		{"another manager", PhaseApply, &host.Refused{Err: errors.New("zincati")}, failRefused},
		{"it can't be", PhasePlan, &host.UnreachableError{Err: errors.New("fips")}, failUnreconcilable},
		{"it does not exist", PhasePlan, errMissing(cfgB), failDegraded},
		{"somebody uncordoned", PhaseDrain, drain.ErrUncordoned, failTransient},
	}
	for _, c := range cases {
		if got, _ := h.classify(c.phase, c.err); got != c.want {
			t.Errorf("%s: kind %d, want %d", c.name, got, c.want)
		}
	}
	h.cluster.noteAway(unreachable)
	if got, _ := h.classify(PhaseDrain, errors.New("watching the pods: no answer")); got != failTransient {
		t.Errorf("an odd error while the API server is away: kind %d", got)
	}
}

func TestDrainThatWorksAgainIsNoFailure(t *testing.T) {
	h, _ := quietHead(t)
	h.way.failure = fail(nil, PhaseDrain, failDegraded, reasonDraining, "listing the pods: no", then)
	h.draining(api.Drain{Config: cfgB, Since: then, Left: 1})
	if h.way.failure.bad(then) {
		t.Error("a drain that only waits shows as failed")
	}
	again := fail(h.way.failure, PhaseDrain, failDegraded, reasonDraining, "listing the pods: no", then)
	if !again.bad(then) || again.tries != 2 {
		t.Errorf("failed again: %+v", again)
	}
	h.way.failure = fail(nil, PhaseApply, failDegraded, reasonApplying, "no space", then)
	h.draining(api.Drain{Config: cfgB, Since: then, Left: 1})
	if !h.way.failure.bad(then) {
		t.Error("a drain hides the failure of an apply")
	}
}

func TestRebootThatDoesNotComeIsAFailure(t *testing.T) {
	h, _ := quietHead(t)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{api.DesiredConfig: cfgB}}}
	h.host = hostAt(cfgA, cfgB, transaction.PhaseBoot, transaction.Working)
	h.way = way{from: cfgA, to: cfgB, plan: rebootPlan(), rebooting: then}
	if v := h.situation(node, then.Add(host.RebootPatience-time.Second)); v.failure != nil || decide(v).name != PhaseReboot {
		t.Errorf("given up early: %+v", v.failure)
	}
	late := then.Add(host.RebootPatience)
	v := h.situation(node, late)
	if !v.failure.bad(late) || v.failure.reason != reasonRebooting || decide(v).name != PhaseBackoff {
		t.Errorf("failure %+v in phase %s", v.failure, decide(v).name)
	}
	h.situation(node, late.Add(time.Second))
	if !strings.Contains(scrape(t, h.metrics, "/metrics"), "mcd_reboots_failed_total 1") {
		t.Error("it is not counted once")
	}
}

func TestHeadWaitsForTheVerdictAsLongAsTheHostHasForIt(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{api.DesiredConfig: cfgB}}}
	for given, deadline := range map[time.Duration]time.Duration{
		0: api.DefaultVerdictTimeout, time.Minute: time.Minute, time.Hour: time.Hour,
	} {
		h, _ := quietHead(t)
		h.o.Verdict = given
		h.host, h.hostSince = hostAt(cfgA, cfgB, transaction.PhaseProve, transaction.Working), then
		for after, want := range map[time.Duration]Phase{
			deadline: PhaseProve, deadline + provePatience - time.Second: PhaseProve, deadline + provePatience: PhasePlan,
		} {
			if got := decide(h.situation(node, then.Add(after))).name; got != want {
				t.Errorf("--verdict-timeout %s, after %s: %s, want %s", given, after, got, want)
			}
		}
	}
}

func TestOnlyWhoGaveAConfigurationBackSaysSo(t *testing.T) {
	h, events := quietHead(t)
	h.finishRestore(restoreEnd{name: cfgA})
	h.finishRestore(restoreEnd{err: errors.New("no copy")})
	if len(events.Events) != 0 {
		t.Errorf("event %q", <-events.Events)
	}
	h.finishRestore(restoreEnd{name: cfgA, created: true})
	if got := <-events.Events; !strings.Contains(got, "ConfigRestored") || !strings.Contains(got, cfgA) {
		t.Errorf("event %q", got)
	}
}

func TestDeletedMachineConfigNodeIsMissed(t *testing.T) {
	h, _ := quietHead(t)
	server := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	h.cluster.kube = clientOf(t, server.URL)
	h.object.said = objectReport{node: "1", desired: cfgA}
	if err := h.object.look(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	if h.object.said.node != "" || !h.object.lookAt.After(time.Now().Add(restPace/2)) {
		t.Errorf("it is taken to say %+v, and looked for at %s", h.object.said, h.object.lookAt)
	}
}
