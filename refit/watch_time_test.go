// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"strings"
	"testing"
	"time"

	"github.com/noderefit/noderefit/progress"
)

func TestTheEndOfAHoldIsInTheTimeZoneOfWhoWatches(t *testing.T) {
	t.Parallel()
	berlin := zone(t, "Europe/Berlin")
	for want, c := range map[string]struct {
		at   time.Time
		zone *time.Location
	}{
		"":                             {at: noon},
		" until 13:00 UTC":             {at: noon.Add(time.Hour)},
		" until 14:00 CET":             {noon.Add(time.Hour), berlin},
		" until 2026-03-02 00:30 CET":  {noon.Add(11*time.Hour + 30*time.Minute), berlin},
		" until 23:30 UTC":             {at: noon.Add(11*time.Hour + 30*time.Minute)},
		" until 2026-06-09 14:00 CEST": {noon.AddDate(0, 0, 100), berlin},
	} {
		if got := until(noon, c.at, c.zone); got != want {
			t.Errorf("%q instead of %q", got, want)
		}
	}
}

func zone(t *testing.T, name string) *time.Location {
	t.Helper()
	z, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return z
}

func TestAPipeSaysTheDateAtFirstAndWhereTheDayChanges(t *testing.T) {
	t.Parallel()
	hold := &progress.Hold{
		Verdict: progress.Soaking, Because: "stage canary soaks until 2026-03-02T12:00:00Z", Until: noon.AddDate(0, 0, 1),
	}
	var out strings.Builder
	f := &follower{
		out: &out, zone: zone(t, "Europe/Berlin"),
		pools: map[string]poolMark{}, nodes: map[string]nodeMark{}, worked: map[string]bool{},
	}
	f.print(heldAt(nil, nil), noon)
	f.print(heldAt(hold, nil), noon.Add(10*time.Hour))
	f.print(heldAt(nil, nil), noon.Add(11*time.Hour))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 5 || !strings.Contains(lines[2], "Soaking until 2026-03-02T13:00:00+01:00: stage canary soaks until 2026-03-02T13:00:00+01:00") {
		t.Fatalf("the hold has other times, or the lines are not five:\n%s", out.String())
	}
	if lines[0] != noon.Format("2006-01-02")+" CET" || !strings.HasPrefix(lines[1], "13:00:00") ||
		!strings.HasPrefix(lines[2], "23:00:00") || lines[3] != noon.AddDate(0, 0, 1).Format("2006-01-02")+" CET" ||
		!strings.HasPrefix(lines[4], "00:00:00") {
		t.Errorf("the lines:\n%s", out.String())
	}
}

func TestAPoolOnItsWayHasTheTimeThatIsLeft(t *testing.T) {
	t.Parallel()
	r := progress.NewReport(twelve())
	p := paper{width: 200, height: 24, left: func(pool string) string {
		return map[string]string{"worker": "~12m", "master": "~9m"}[pool]
	}}
	text := strings.Join(picture(r, r.Pools(), noon, p), "\n")
	if !strings.Contains(text, "~12m left") || strings.Contains(text, "~9m") { // master is up to date
		t.Error(text)
	}
}
