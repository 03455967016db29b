// SPDX-License-Identifier: Apache-2.0

package notifications

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/notify"
	"github.com/noderefit/noderefit/progress"
)

var morning = time.Date(2026, 3, 2, 8, 0, 0, 0, time.UTC)

// sees has one node of pool worker that was sent to a configuration.
func sees(config string) []notify.Seen {
	n := progress.Node{Name: "a"}
	n.Current, n.Desired, n.State = "old", config, api.Working
	return []notify.Seen{{
		Policy: "careful", UID: "pool", Generation: 1,
		Pool: progress.Pool{Name: "worker", Target: config, Nodes: []progress.Node{n}, Counts: progress.Counts{Machines: 1}},
	}}
}

func policyWith(hooks ...api.NotificationWebhook) *api.RolloutPolicy {
	p := &api.RolloutPolicy{}
	p.Name, p.UID = "careful", types.UID("policy")
	p.Spec.Notifications = &api.Notifications{Webhooks: hooks}
	return p
}

func waiting(p *api.RolloutPolicy) []string {
	var out []string
	for _, n := range p.Status.Notifications.Undelivered {
		out = append(out, fmt.Sprint(n.To, n.Webhooks))
	}
	return out
}

func TestWhatWaitsForAWebhookIsInTheStatusUntilItIsTaken(t *testing.T) {
	t.Parallel()
	p := policyWith(api.NotificationWebhook{Name: "all"},
		api.NotificationWebhook{Name: "none", Events: []api.NotificationKind{api.RolloutDone}}, api.NotificationWebhook{Name: "more"})
	p.Status.Notifications, _, _ = draft(p, sees("B"), morning)
	if got := waiting(p); !slices.Equal(got, []string{"B[all more]"}) {
		t.Fatalf("it waits: %v", got)
	}
	p.Status.Notifications, _, _ = draft(p, sees("C"), morning)
	if got := waiting(p); !slices.Equal(got, []string{"B[all more]", "C[all more]"}) {
		t.Fatalf("it waits: %v", got)
	}
	n, to := next(p, "more")
	if n == nil || n.To != "B" || to.Name != "more" {
		t.Fatalf("next is %+v for %+v", n, to)
	}
	take(p, n.ID, "more")
	if got := waiting(p); !slices.Equal(got, []string{"B[all]", "C[all more]"}) {
		t.Errorf("it waits: %v", got)
	}
	if got := lanes(t.Context(), p); !slices.Equal(got, []lane{{"careful", "all"}, {"careful", "more"}}) {
		t.Errorf("the lanes are %v", got)
	}
	// A webhook that somebody takes out is not waited for, and one that is new is told only what is new.
	p.Spec.Notifications.Webhooks = []api.NotificationWebhook{{Name: "more"}, {Name: "new"}}
	p.Status.Notifications, _, _ = draft(p, sees("D"), morning)
	if got := waiting(p); !slices.Equal(got, []string{"C[more]", "D[more new]"}) {
		t.Errorf("it waits: %v", got)
	}
	if n, _ := next(p, "all"); n != nil {
		t.Errorf("next for one that is not there: %+v", n)
	}
}

func TestWhatWaitsIsBounded(t *testing.T) {
	t.Parallel()
	p, lost := policyWith(api.NotificationWebhook{Name: "down"}), 0
	for i := range keptNews + 5 {
		var dropped int
		p.Status.Notifications, _, dropped = draft(p, sees(fmt.Sprintf("C%03d", i)), morning)
		lost += dropped
	}
	if got := waiting(p); len(got) != keptNews || got[0] != "C005[down]" || lost != 5 {
		t.Errorf("%d wait from %s on, %d are lost", len(got), got[0], lost)
	}
}

func TestATryThatFailedIsRepeatedLaterAndLater(t *testing.T) {
	t.Parallel()
	var t1 tries[string]
	last := time.Duration(0)
	for range 12 {
		pause := t1.failed("a", "because")
		if wait := t1.wait("a"); pause < last || pause > lastPause || wait <= 0 || wait > pause {
			t.Fatalf("pause %s after %s, waits %s", pause, last, wait)
		}
		last = pause
	}
	if last != lastPause || t1.wait("b") > 0 || t1.reasons()["a"] != "because" {
		t.Errorf("pause %s, %v", last, t1.reasons())
	}
	t1.worked("a")
	if t1.wait("a") > 0 || len(t1.reasons()) > 0 || t1.failed("a", "") != firstPause {
		t.Error("it is remembered after it worked")
	}
}
