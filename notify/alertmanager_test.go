// SPDX-License-Identifier: Apache-2.0

package notify

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

// book is what an Alertmanager knows, on paper: test/clusters/pool has a real one.
type book struct {
	list []silence
	next int
}

func (b *book) settle(t *testing.T, s Silences, holds []Hold, now time.Time) (posts int) {
	t.Helper()
	for i := range b.list {
		b.list[i].Status = &silenceStatus{State: "active"}
		if !b.list[i].EndsAt.After(now) {
			b.list[i].Status.State = expired
		}
	}
	post, end, _ := s.plan(slices.Clone(b.list), holds, now)
	for _, one := range post {
		if one.Status != nil || len(one.Matchers) == 0 || !one.EndsAt.After(now) {
			t.Errorf("a silence that an Alertmanager refuses: %+v", one)
		}
		if one.ID == "" {
			b.next++
			one.ID = fmt.Sprint(b.next)
			b.list = append(b.list, one)
			continue
		}
		b.list[slices.IndexFunc(b.list, func(o silence) bool { return o.ID == one.ID })] = one
	}
	for _, id := range end {
		b.list[slices.IndexFunc(b.list, func(o silence) bool { return o.ID == id })].EndsAt = now
	}
	return len(post)
}

// silent are the values of what is silenced now, those of label node alone.
func (b *book) silent(now time.Time) string {
	var out []string
	for _, one := range b.list {
		if one.EndsAt.After(now) && one.Matchers[0].Name == "node" {
			out = append(out, one.Matchers[0].Value)
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

var quietly = Silences{
	Spec:   api.NotificationAlertmanager{MatchLabels: map[string]string{"cluster": "prod"}, SilenceMinutes: 30, MaxMinutes: 120},
	Policy: "careful", UID: "uid",
}

func hold(node string) Hold { return Hold{Node: node, Pool: "worker", Config: "B"} }

func TestANodeIsSilentWhileItIsUpdatedAndNoLonger(t *testing.T) {
	t.Parallel()
	b := &book{list: []silence{{ID: "x", CreatedBy: "ann", Matchers: []matcher{{Name: "node", Value: "z"}},
		EndsAt: morning.Add(time.Hour * 24)}}}
	now := morning
	if n := b.settle(t, quietly, []Hold{hold("a.b")}, now); n != 2 || b.silent(now) != `a\.b(:[0-9]+)? z` {
		t.Fatalf("%d posts, silent: %s", n, b.silent(now))
	}
	if m := b.list[1].Matchers; len(m) != 2 || m[1] != (matcher{Name: "cluster", Value: "prod", IsEqual: true}) {
		t.Errorf("it matches %+v", m)
	}
	// Held by one controller after the other: found again, and prolonged only when it is time.
	if n := b.settle(t, quietly, []Hold{hold("a.b")}, now.Add(time.Minute)); n != 0 {
		t.Errorf("%d posts for what is there", n)
	}
	for range 7 {
		now = now.Add(15 * time.Minute)
		b.settle(t, quietly, []Hold{hold("a.b")}, now)
		if b.silent(now) != `a\.b(:[0-9]+)? z` || len(b.list) != 3 {
			t.Fatalf("after %s silent: %s, and there are %d", now.Sub(morning), b.silent(now), len(b.list))
		}
	}
	b.settle(t, quietly, nil, now)
	if b.silent(now) != "z" {
		t.Errorf("silent after it is done: %s", b.silent(now))
	}
	// Another update of the same node is another matter.
	b.settle(t, quietly, []Hold{hold("a.b")}, now.Add(time.Second))
	if b.silent(now.Add(time.Second)) != `a\.b(:[0-9]+)? z` {
		t.Errorf("silent when it is tried again: %s", b.silent(now))
	}
}

func TestAnUpdateThatTakesTooLongIsHeard(t *testing.T) {
	t.Parallel()
	b, now := &book{}, morning
	for now.Sub(morning) < 5*time.Hour {
		if posts := b.settle(t, quietly, []Hold{hold("a")}, now); posts > 0 && now.Sub(morning) > 105*time.Minute {
			t.Errorf("%d posts after %s for what can't be longer", posts, now.Sub(morning))
		}
		if got, want := b.silent(now) != "", now.Sub(morning) < 2*time.Hour; got != want {
			t.Fatalf("after %s silent: %t", now.Sub(morning), got)
		}
		now = now.Add(7 * time.Minute)
	}
}

func TestDoublesAreEnded(t *testing.T) {
	t.Parallel()
	b, now := &book{}, morning
	b.settle(t, quietly, []Hold{hold("a")}, now)
	twice := b.list[0]
	twice.ID, twice.StartsAt = "twice", now.Add(time.Second)
	b.list = append(b.list, twice)
	b.settle(t, quietly, []Hold{hold("a")}, now.Add(time.Minute))
	if b.silent(now.Add(time.Minute)) != "a(:[0-9]+)?" {
		t.Errorf("silent: %s", b.silent(now.Add(time.Minute)))
	}
}

func TestANodeThatFailedIsHeard(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "B", "a A>B Working,b A>B RolledBack,c A>B Degraded,d A Done,e B Done")
	if got := Holds(f.seen(false).Pool); !slices.Equal(got, []Hold{hold("a")}) {
		t.Errorf("held: %+v", got)
	}
	var none progress.Pool
	if got := Holds(none); len(got) > 0 {
		t.Errorf("held of nothing: %+v", got)
	}
}

// What an Alertmanager still lists of an update to the same configuration is not the one that is under way, once the
// node was updated to something else in between.
func TestASecondUpdateToTheSameConfigurationIsSilent(t *testing.T) {
	t.Parallel()
	b, now := &book{}, morning
	for now.Sub(morning) < 3*time.Hour { // the first one takes too long
		b.settle(t, quietly, []Hold{hold("a")}, now)
		now = now.Add(7 * time.Minute)
	}
	b.settle(t, quietly, nil, now)
	now = now.Add(time.Hour)
	back := Hold{Node: "a", Pool: "worker", Config: "A"}
	b.settle(t, quietly, []Hold{back}, now)
	now = now.Add(5 * time.Minute)
	b.settle(t, quietly, nil, now)
	now = now.Add(time.Minute)
	b.settle(t, quietly, []Hold{hold("a")}, now)
	if b.silent(now) == "" {
		t.Error("the second update is heard from its beginning")
	}
	b.settle(t, quietly, []Hold{hold("a")}, now.Add(time.Minute))
	if got := len(b.list); got != 6 {
		t.Errorf("there are %d silences, two for each of three updates are 6", got)
	}
}
