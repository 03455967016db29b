// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"testing"
	"time"

	"github.com/noderefit/noderefit/api"
)

func TestWhatADrainByAPolicyIsAtIsExplained(t *testing.T) {
	t.Parallel()
	limit := began.Add(10 * time.Minute)
	at := func(change func(*api.Drain)) func(*world) {
		return func(w *world) {
			w.draining(w.b, 0)
			d := api.Drain{Config: renderedB, Since: began, PhaseSince: began.Add(time.Minute), Limit: limit}
			change(&d)
			w.States["b"].Annotations[api.DrainKey] = api.Encode(d)
		}
	}
	until := limit.UTC().Format(time.RFC3339)
	for name, c := range map[string]struct {
		given func(*world)
		want  explanation
		until time.Time
	}{
		"load balancers": {at(func(d *api.Drain) { d.Phase = api.DrainExcludes }), explanation{
			verdict: Updating, since: 1, says: []string{"begins at " + until, "load balancers"},
		}, limit},
		"pods": {at(func(d *api.Drain) {
			d.Phase, d.OnTimeout, d.Left, d.Waiting = api.DrainEvicts, api.DrainHolds, 1, []api.WaitingPod{router}
		}), explanation{
			verdict: Draining, blocking: "PodDisruptionBudget shop/router", since: 1, do: "describe pdb router",
			says: []string{"its limit is " + until + ": the node is then uncordoned and held"},
		}, time.Time{}},
		"volumes": {at(func(d *api.Drain) {
			d.Phase, d.OnTimeout = api.DrainDetaches, api.DrainForces
			d.Volumes = []api.WaitingVolume{{Attachment: "csi-1", Volume: "pv-1", Message: "disk is busy"}, {Attachment: "csi-2"}}
		}), explanation{
			verdict: Draining, blocking: "VolumeAttachment csi-1", since: 1, do: "kubectl describe volumeattachment csi-1",
			says: []string{"2 volumes are still attached", "PersistentVolume pv-1 (disk is busy), VolumeAttachment csi-2",
				"its limit is " + until + ": the update then continues without these volumes"},
		}, time.Time{}},
		"held": {func(w *world) {
			w.at(w.b, renderedA, renderedB, api.Working, "")
			w.b.Annotations[api.DrainHeldKey] = api.Encode(api.DrainHold{
				Config: renderedB, Since: began, Until: limit, Why: "its pods were not gone after 1m0s",
			})
		}, explanation{
			verdict: DrainHeld, blocking: "Node b", since: 0, do: "kubectl annotate node b noderefit.dev/drain-held-",
			says: []string{"the node serves", "its pods were not gone after 1m0s"},
		}, limit},
		"held for something else": {func(w *world) {
			w.at(w.b, renderedA, renderedB, api.Working, "")
			w.b.Annotations[api.DrainHeldKey] = api.Encode(api.DrainHold{Config: renderedA, Since: began, Until: limit})
		}, explanation{verdict: Updating, since: -1, says: []string{"updating from"}}, time.Time{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld()
			c.given(w)
			a, _ := NewReport(w.View).ExplainNode("b")
			check(t, a, "Node b", c.want)
			if !a.Until.Equal(c.until) {
				t.Errorf("until %v, want %v", a.Until, c.until)
			}
		})
	}
}

func TestWhatIsRefreshedKeepsWhatTheDrainIsAt(t *testing.T) {
	t.Parallel()
	reported := api.Drain{Config: renderedB, Since: began, Phase: api.DrainEvicts, Limit: began.Add(time.Hour), Left: 2}
	got := Refresh(reported, api.Drain{Left: 1})
	if got.Phase != api.DrainEvicts || !got.Limit.Equal(reported.Limit) || got.Left != 1 {
		t.Errorf("%+v", got)
	}
}
