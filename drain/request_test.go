// SPDX-License-Identifier: Apache-2.0

package drain

import (
	"testing"
	"time"

	"github.com/noderefit/noderefit/api"
)

func TestEachPhaseHasALimitOfItsOwn(t *testing.T) {
	p := &api.DrainPolicy{TimeoutSeconds: 60, WaitForVolumeDetachSeconds: 30, OnTimeout: api.DrainHolds}
	c := newClock(Request{Config: "b", Policy: p}, noon)
	c.enter(api.DrainEvicts, noon)
	if c.over(noon.Add(59*time.Second)) != "" || c.over(noon.Add(time.Minute)) != api.DrainHolds {
		t.Error("pods do not have a minute")
	}
	later := noon.Add(50 * time.Second)
	c.enter(api.DrainDetaches, later)
	if c.over(noon.Add(79*time.Second)) != "" || c.over(noon.Add(80*time.Second)) != api.DrainHolds {
		t.Error("volumes do not have half a minute")
	}
	// A pod that comes to the node in between gets no minute of its own.
	c.enter(api.DrainEvicts, later)
	if c.over(noon.Add(time.Minute)) != api.DrainHolds {
		t.Error("the time begins anew")
	}
}

func TestWithoutALimitNothingTimesOut(t *testing.T) {
	for _, p := range []*api.DrainPolicy{nil, {OnTimeout: api.DrainForces}, {WaitForVolumeDetachSeconds: 1}} {
		c := newClock(Request{Config: "b", Policy: p}, noon)
		c.enter(api.DrainEvicts, noon)
		if got := c.over(noon.AddDate(1, 0, 0)); got != "" {
			t.Errorf("%+v: %s", p, got)
		}
	}
	c := newClock(Request{Config: "b", Policy: &api.DrainPolicy{TimeoutSeconds: 1}}, noon)
	c.enter(api.DrainEvicts, noon)
	if got := c.over(noon.Add(time.Second)); got != api.DrainRetries {
		t.Errorf("where nothing is said of it: %q", got)
	}
}

func TestAnotherProcessGoesOnWithTheTimeOfTheSameTry(t *testing.T) {
	p := &api.DrainPolicy{TimeoutSeconds: 600}
	began := noon.Add(-9 * time.Minute)
	last := &api.Drain{Config: "b", Phase: api.DrainEvicts, PhaseSince: began}
	for name, c := range map[string]struct {
		request Request
		want    time.Time
	}{
		"the same":               {Request{Config: "b", Cordoned: began.Add(-time.Second), Last: last}, began.Add(10 * time.Minute)},
		"for something else":     {Request{Config: "c", Last: last}, noon.Add(10 * time.Minute)},
		"before it was held":     {Request{Config: "b", Cordoned: began.Add(time.Second), Last: last}, noon.Add(10 * time.Minute)},
		"nothing is known":       {Request{Config: "b"}, noon.Add(10 * time.Minute)},
		"another phase of it":    {Request{Config: "b", Last: &api.Drain{Config: "b", Phase: api.DrainDetaches, PhaseSince: began}}, noon.Add(10 * time.Minute)},
		"it was away for longer": {Request{Config: "b", Last: &api.Drain{Config: "b", Phase: api.DrainEvicts, PhaseSince: noon.Add(-time.Hour)}}, noon.Add(lateStart)},
	} {
		c.request.Policy = p
		clock := newClock(c.request, noon)
		clock.enter(api.DrainEvicts, noon)
		if got := clock.limit(); !got.Equal(c.want) {
			t.Errorf("%s: the limit is %v, want %v", name, got, c.want)
		}
	}
}
