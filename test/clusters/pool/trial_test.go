// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"context"
	"strings"
	"syscall"
	"testing"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

const configTried = "rendered-worker-tried"

// try orders a trial, as kubectl refit try does. A zero time takes the order away.
func (l *lab) try(node string, since time.Time, change ...func(*api.Trial)) {
	l.t.Helper()
	value := "null"
	if !since.IsZero() {
		order := api.Trial{
			Config: configTried, From: configA, By: "ann", Why: "is it faster", Since: since.UTC().Truncate(time.Second), Seconds: 1800,
		}
		for _, f := range change {
			f(&order)
		}
		value = quoted(api.Encode(order))
	}
	l.mustPatchNode(node, `{"metadata":{"annotations":{"`+api.TrialKey+`":`+value+`}}}`)
}

func quoted(text string) string { return `"` + strings.ReplaceAll(text, `"`, `\"`) + `"` }

// triedUntil waits for the end of a trial, and returns its record.
func (l *lab) triedUntil(node string) api.Tried {
	l.t.Helper()
	l.until("the trial of "+node+" ends", func() bool {
		n := l.stand(node)
		return n.Tried != nil && !n.Tried.Ended.IsZero() && n.Updated(configA)
	})
	return *l.stand(node).Tried
}

func TestANodeTriesAConfigurationAndGoesBackAtItsTime(t *testing.T) {
	l, _ := workers(t, 3, "1")
	l.try("w-0", time.Now())
	l.until("w-0 has proved what it tries", func() bool {
		n := l.stand("w-0")
		return n.Updated(configTried) && n.Tried != nil && !n.Tried.Proved.IsZero()
	})
	l.explained("node/w-0", "Trying", ", by ann (is it faster); proved, and goes back to "+configA+" at")
	l.explained("pool/worker", "Trying", "2 of 3 nodes updated")
	// A rollout passes the node by.
	l.target("worker", configB)
	for _, name := range []string{"w-1", "w-2"} {
		l.phase(name, configB, progress.PhaseUpdated)
	}
	if n := l.stand("w-0"); !n.Updated(configTried) || n.Tainted || n.Cordoned {
		t.Errorf("w-0 does not serve on what it tries: %+v", n)
	}
	l.setClock(time.Now().Add(31 * time.Minute))
	l.updated("worker", configB)
	told, _, most := l.eye.seen()
	if got := strings.Join(told["w-0"], " "); got != configTried+" "+configA+" "+configB && got != configTried+" "+configA {
		// The node may be told the pool's new configuration while it goes back.
		t.Errorf("w-0 was sent to %s", got)
	}
	if most > 1 {
		t.Errorf("%d nodes were out of service at a time", most)
	}
	if tried := l.stand("w-0").Tried; tried.Because != "its time is over" {
		t.Errorf("%+v", tried)
	}
	l.explained("node/w-0", "UpToDate", ": its time is over")
	for _, reason := range []string{"TrialBegan", "TrialProved", "TrialEnded"} {
		l.until("event "+reason, func() bool { return l.hasEvent(reason, "w-0") })
	}
}

// hasEvent reports whether an event about an object has a reason.
func (l *lab) hasEvent(reason, about string) bool {
	list, err := l.Client.EventsV1().Events("").List(context.Background(), metav1.ListOptions{})
	return err == nil && len(filtered(list.Items, reason, about)) > 0
}

func filtered(list []eventsv1.Event, reason, about string) (out []eventsv1.Event) {
	for _, e := range list {
		if e.Reason == reason && strings.Contains(e.Note, about) {
			out = append(out, e)
		}
	}
	return out
}

func TestATrialEndsWhenItsOrderGoes(t *testing.T) {
	l, _ := workers(t, 2, "1")
	l.try("w-0", time.Now())
	l.until("w-0 has what it tries", func() bool { return l.stand("w-0").Updated(configTried) })
	l.refit("try", "--node", "w-0", "--end")
	if tried := l.triedUntil("w-0"); tried.Because != "a person ended the trial" {
		t.Errorf("%+v", tried)
	}
	l.updated("worker", configA)
}

func TestATrialThatFailsComesBackAndStopsNoRollout(t *testing.T) {
	l, _ := workers(t, 2, "1")
	l.agents.ends(configTried, api.RolledBack)
	l.try("w-0", time.Now())
	tried := l.triedUntil("w-0")
	if !strings.Contains(tried.Because, "kubelet is down") || !tried.Proved.IsZero() {
		t.Errorf("%+v", tried)
	}
	// The same content is not tried again.
	l.try("w-0", time.Now().Add(time.Second))
	l.until("the second order is refused", func() bool {
		n := l.stand("w-0")
		return n.Tried != nil && n.Tried.Ordered.After(tried.Ordered) && strings.Contains(n.Tried.Because, "quarantined")
	})
	l.target("worker", configB)
	l.updated("worker", configB)
}

func TestATrialWaitsForTheWindowUnlessItIsBypassed(t *testing.T) {
	l, _ := workers(t, 2, "1")
	l.mustPolicy("closed", `{"pools":["worker"],"windows":{"timeZone":"UTC","open":[{"cron":"0 3 1 1 *","durationMinutes":5}]}}`)
	l.until("the policy is read", func() bool { return l.ready("closed") == "True "+api.RolloutInForce })
	l.try("w-0", time.Now())
	l.explained("node/w-0", "UpToDate", "is to try "+configTried+", and waits: no window is open")
	l.try("w-0", time.Now().Add(time.Second), func(o *api.Trial) { o.Bypass = true })
	l.until("w-0 has what it tries", func() bool { return l.stand("w-0").Updated(configTried) })
	// The way back waits for no window.
	l.try("w-0", time.Time{})
	l.triedUntil("w-0")
}

func TestTheControllerThatIsRestartedEndsATrial(t *testing.T) {
	l, c := workers(t, 2, "1")
	l.try("w-0", time.Now())
	l.until("w-0 has what it tries", func() bool { return l.stand("w-0").Tried != nil && !l.stand("w-0").Tried.Proved.IsZero() })
	c.stop(t, syscall.SIGKILL)
	l.setClock(time.Now().Add(31 * time.Minute))
	l.alone()
	if tried := l.triedUntil("w-0"); tried.Because != "its time is over" {
		t.Errorf("%+v", tried)
	}
}
