// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/host"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func TestSingleChangeIsLookedAtWithinSeconds(t *testing.T) {
	var p touchPace
	later := noon.Add(30 * time.Minute)
	if due := p.touched(noon, later); !due.Equal(noon.Add(touchDebounce)) {
		t.Errorf("due after %s", due.Sub(noon))
	}
	// Changes at nearly the same time wait for no second comparison.
	if due := p.touched(noon.Add(400*time.Millisecond), noon.Add(time.Second)); !due.Equal(noon.Add(time.Second)) {
		t.Errorf("due after %s", due.Sub(noon))
	}
	p.looked(noon.Add(1200*time.Millisecond), 100*time.Millisecond)
	// A person undoes the change a little later.
	at := noon.Add(10 * time.Second)
	if due := p.touched(at, later); !due.Equal(at.Add(touchDebounce)) {
		t.Errorf("due after %s", due.Sub(at))
	}
}

// A program writes ten times a second, for an hour.
func TestStormOfChangesIsNoStormOfLooks(t *testing.T) {
	var p touchPace
	const took = 300 * time.Millisecond
	due := noon.Add(30 * time.Minute)
	looks := 0
	for at := noon; at.Before(noon.Add(time.Hour)); at = at.Add(100 * time.Millisecond) {
		due = p.touched(at, due)
		if !at.Before(due.Add(-100 * time.Millisecond)) {
			looks++
			p.looked(at, took)
			due = at.Add(30 * time.Minute)
		}
	}
	if looks < 55 || looks > 75 {
		t.Errorf("%d looks in an hour", looks)
	}
	// Once the storm is over, a change is noticed at once again.
	calm := noon.Add(2 * time.Hour)
	if due := p.touched(calm, calm.Add(time.Hour)); !due.Equal(calm.Add(touchDebounce)) {
		t.Errorf("due after %s", due.Sub(calm))
	}
}

func TestSlowComparisonIsFollowedByAPause(t *testing.T) {
	var p touchPace
	p.touched(noon, noon.Add(time.Hour))
	p.looked(noon.Add(time.Second), time.Second)
	at := noon.Add(2 * time.Second)
	if due := p.touched(at, at.Add(time.Hour)); !due.Equal(noon.Add(6 * time.Second)) {
		t.Errorf("due after %s", due.Sub(noon))
	}
	p.looked(noon.Add(time.Hour), 10*time.Minute)
	at = noon.Add(time.Hour).Add(time.Second)
	if due := p.touched(at, at.Add(time.Hour)); due.Sub(at) > touchSlowest {
		t.Errorf("due after %s", due.Sub(at))
	}
}

func TestDriftOfOneThingIsOneItem(t *testing.T) {
	found := []host.Drift{
		{Kind: "unit", Name: "b.service", What: "enabled"},
		{Kind: "file", Path: "/etc/x", What: "mode"},
		{Kind: "file", Path: "/etc/x", What: "contents", Expected: "sha256:1", Found: "sha256:2"},
		{Kind: "file", Path: "/etc/x", What: "contents"},
		{Kind: "sshkeys", User: "core", What: "missing"},
		{Kind: "kargs", What: "missing", Expected: "secret=1"},
	}
	known := []api.DriftItem{{Kind: "file", Name: "/etc/x", What: []string{"mode"}, Since: noon},
		{Kind: "file", Name: "/etc/gone", What: []string{"mode"}, Since: noon}}
	now := noon.Add(time.Hour)
	got := driftItems(found, known, now)
	want := []api.DriftItem{
		{Kind: "file", Name: "/etc/x", What: []string{"contents", "mode"}, Since: noon},
		{Kind: "kargs", What: []string{"missing"}, Since: now},
		{Kind: "sshkeys", Name: "core", What: []string{"missing"}, Since: now},
		{Kind: "unit", Name: "b.service", What: []string{"enabled"}, Since: now},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
	if text := api.Encode(api.NewDrift("c", got)); strings.Contains(text, "sha256") || strings.Contains(text, "secret") {
		t.Errorf("it tells more than names: %s", text)
	}
}

func fileDrift(paths ...string) *host.Verification {
	v := &host.Verification{Config: "c"}
	for _, p := range paths {
		v.Drift = append(v.Drift, host.Drift{Kind: "file", Path: p, What: "contents"})
	}
	return v
}

func TestWhatSomebodyKeepsChangingIsWrittenBackMoreAndMoreSeldom(t *testing.T) {
	repair := api.DriftPolicy{Policy: api.DriftRepair}
	var s driftState
	if subjects, _ := s.due(repair, noon); subjects != nil {
		t.Errorf("due before the host was asked: %v", subjects)
	}
	var at []time.Duration
	for now := noon; now.Before(noon.Add(5 * time.Hour)); now = now.Add(time.Second) {
		s.found(fileDrift("/etc/x"), repair, now)
		if subjects, _ := s.due(repair, now); len(subjects) == 1 {
			at = append(at, now.Sub(noon))
			s.repaired(subjects, "", now)
		}
	}
	want := []time.Duration{0, time.Minute, 3 * time.Minute, 7 * time.Minute, 15 * time.Minute, 31 * time.Minute,
		63 * time.Minute, 123 * time.Minute, 183 * time.Minute, 243 * time.Minute}
	if !slices.Equal(at, want) {
		t.Errorf("written back at %v", at)
	}
	item := s.report.Items[0]
	if item.Repairs != len(want) || item.Again != noon.Add(303*time.Minute) {
		t.Errorf("%+v", item)
	}
	// Another head continues where this head was.
	var next driftState
	next.recall(s.report)
	now := noon.Add(5 * time.Hour)
	next.found(fileDrift("/etc/x", "/etc/y"), repair, now)
	subjects, again := next.due(repair, now)
	if !slices.Equal(subjects, []string{"file /etc/y"}) || again != item.Again {
		t.Errorf("another head: %v, %s", subjects, again)
	}
	// A clock that was set back does not move the next try into the far future.
	var behind driftState
	behind.recall(s.report)
	behind.found(fileDrift("/etc/x"), repair, now.Add(-10*24*time.Hour))
	if subjects, again := behind.due(repair, now.Add(-10*24*time.Hour)); len(subjects) != 1 {
		t.Errorf("after the clock was set back it is repaired at %s", again)
	}
	// A subject that stayed repaired for long starts again with no history.
	next.found(fileDrift(), repair, now.Add(time.Second))
	next.found(fileDrift("/etc/x"), repair, now.Add(repairForget))
	if subjects, _ := next.due(repair, now.Add(repairForget)); len(subjects) != 1 {
		t.Error("a repair of long ago still counts")
	}
}

func TestWhatIsOnlyReportedIsNotWrittenBack(t *testing.T) {
	some := api.DriftPolicy{Exceptions: []api.DriftException{{Path: "/etc/x", Policy: api.DriftRepair}}}
	var s driftState
	s.found(fileDrift("/etc/x", "/etc/y"), some, noon)
	if subjects, _ := s.due(some, noon); !slices.Equal(subjects, []string{"file /etc/x"}) {
		t.Errorf("%v", subjects)
	}
	if subjects, _ := s.due(api.DriftPolicy{}, noon); subjects != nil {
		t.Errorf("by default: %v", subjects)
	}
	forced := fileDrift("/etc/x", "/etc/y")
	forced.Forced = true
	forced.Drift = append(forced.Drift, host.Drift{Kind: "kargs", What: "missing"})
	s.repaired([]string{"file /etc/x"}, "", noon)
	s.found(forced, api.DriftPolicy{}, noon)
	if subjects, _ := s.due(api.DriftPolicy{}, noon); !slices.Equal(subjects, []string{"file /etc/x", "file /etc/y"}) {
		t.Errorf("with a force file: %v", subjects)
	}
}

func TestEachChangeOfDriftIsToldOnce(t *testing.T) {
	drift := func(repairs int, names ...string) *api.Drift {
		var items []api.DriftItem
		for _, n := range names {
			items = append(items, api.DriftItem{Kind: "file", Name: n, What: []string{"mode"}, Since: noon, Repairs: repairs,
				Again: noon.Add(time.Minute)})
		}
		return api.NewDrift("c", items)
	}
	mended := func(name string) map[string]bool { return map[string]bool{"file " + name: true} }
	for _, c := range []struct {
		name                string
		was, is             *api.Drift
		mended              map[string]bool
		warned, gone, fight string
	}{
		{"nothing", nil, nil, nil, "", "", ""},
		{"the first", nil, drift(0, "/a"), nil, "file /a (mode);", "", ""},
		{"the same", drift(0, "/a"), drift(0, "/a"), nil, "", "", ""},
		{"one more", drift(0, "/a"), drift(0, "/a", "/b"), nil, "file /a (mode), file /b (mode);", "", ""},
		{"one less", drift(0, "/a", "/b"), drift(0, "/b"), nil, "file /b (mode);", "", ""},
		{"undone", drift(0, "/a"), nil, nil, "", "matches c again: file /a", ""},
		{"written back", drift(0, "/a"), nil, mended("/a"), "", "", ""},
		{"one was written back before", drift(0, "/b"), nil, mended("/a"), "", "matches c again: file /b", ""},
		{"one was written back, one undone", drift(0, "/a", "/b"), nil, mended("/a"), "", "matches c again: file /b (mode)", ""},
		{"changed again", nil, drift(1, "/a"), nil, "file /a", "", "file /a was written back once and is changed again"},
		{"and again", drift(1, "/a"), drift(2, "/a"), nil, "", "", "file /a was written back 2 times"},
		{"still", drift(2, "/a"), drift(2, "/a"), nil, "", "", ""},
	} {
		warned, gone := driftEvents(c.was, c.is, c.mended)
		for what, got := range map[string][2]string{"warned": {strings.Join(warned, "|"), c.warned}, "gone": {gone, c.gone},
			"fight": {strings.Join(fightEvents(c.was, c.is), "|"), c.fight}} {
			if !strings.Contains(got[0], got[1]) || got[1] == "" && got[0] != "" {
				t.Errorf("%s: %s %q, want %q", c.name, what, got[0], got[1])
			}
		}
	}
}

// A repair is forgotten when its subject changes again: if a person then undoes that change, the end of the drift is
// announced.
func TestPartialRepairHidesNothingOfTheRest(t *testing.T) {
	repair := api.DriftPolicy{Policy: api.DriftRepair}
	var s driftState
	s.found(fileDrift("/a", "/b"), repair, noon)
	s.repaired([]string{"file /a"}, "", noon)
	s.found(fileDrift("/b"), repair, noon)
	was := s.report
	s.found(fileDrift(), repair, noon)
	if _, gone := driftEvents(was, s.report, s.mended); !strings.Contains(gone, "file /b") {
		t.Errorf("what stayed and was undone by hand: %q", gone)
	}
	s.repaired([]string{"file /a"}, "", noon)
	s.found(fileDrift("/a"), repair, noon)
	was = s.report
	s.found(fileDrift(), repair, noon)
	if _, gone := driftEvents(was, s.report, s.mended); !strings.Contains(gone, "file /a") {
		t.Errorf("what was changed again and undone by hand: %q", gone)
	}
}

// Other work on the host, or an API server that is away, for three hours.
func TestRepairThatCanNotBeginIsTriedSeldom(t *testing.T) {
	for _, forced := range []bool{false, true} {
		policy := api.DriftPolicy{Policy: api.DriftRepair}
		if forced {
			policy = api.DriftPolicy{}
		}
		found := fileDrift("/etc/x")
		found.Forced = forced
		var s driftState
		tries := 0
		for now := noon; now.Before(noon.Add(3 * time.Hour)); now = now.Add(time.Second) {
			s.found(found, policy, now)
			subjects, next := s.due(policy, now)
			if len(subjects) == 0 && !next.After(now) {
				t.Fatalf("forced %t: after %s nothing is due, and nothing later", forced, now.Sub(noon))
			}
			if len(subjects) > 0 {
				tries++
				s.spared(now)
			}
		}
		if tries < 15 || tries > 30 {
			t.Errorf("forced %t: %d tries in three hours", forced, tries)
		}
		now := noon.Add(4 * time.Hour)
		s.found(found, policy, now)
		subjects, _ := s.due(policy, now)
		s.repaired(subjects, "", now)
		if s.spared(now); s.after.Sub(now) > 2*repairFirst {
			t.Errorf("forced %t: tries of before the last that worked count: %s", forced, s.after.Sub(now))
		}
	}
}
