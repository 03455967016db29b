// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"strings"
	"testing"
	"time"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

func TestANodeWaitsForTheImagesOfItsPoolAndNotForEver(t *testing.T) {
	t.Parallel()
	sets := []api.PinnedSet{{Name: "base", Generation: 2, Digest: "d"}}
	told := func(ago time.Duration) *api.PinOrder {
		return &api.PinOrder{Sets: sets, Pull: true, Since: now.Add(-ago)}
	}
	digest := told(0).Digest()
	for name, test := range map[string]struct {
		order   *api.PinOrder
		pinned  *api.Pinned
		staging *api.RolloutStaging // nil: the usual one, which waits
		change  func(*progress.Pool)
		verdict progress.Verdict // empty: the node is not held
		says    string
		until   time.Time
	}{
		"no sets":            {nil, nil, nil, nil, "", "", time.Time{}},
		"sets that are gone": {&api.PinOrder{Since: now}, nil, nil, nil, "", "", time.Time{}},
		"all there":          {told(time.Minute), &api.Pinned{Order: digest, Images: 3}, nil, nil, "", "", time.Time{}},
		"nothing said": {told(time.Minute), nil, nil, nil, progress.StagingAhead, "the agent has not reported",
			now.Add(59 * time.Minute)},
		"another order": {told(time.Minute), &api.Pinned{Order: "x", Images: 3}, nil, nil, progress.StagingAhead,
			"the agent has not reported", now.Add(59 * time.Minute)},
		"on the way": {told(time.Minute), &api.Pinned{Order: digest, Images: 3, Missing: 2}, nil, nil, progress.StagingAhead,
			"2 of 3 images are missing, and are being pulled", now.Add(59 * time.Minute)},
		"failed": {told(time.Minute), &api.Pinned{Order: digest, Images: 3, Missing: 1, Error: "q.io/a: not found", Tries: 2}, nil,
			nil, progress.CannotStage, "1 of 3 images are missing (tries: 2): q.io/a: not found", now.Add(59 * time.Minute)},
		"its time is over": {told(time.Hour), &api.Pinned{Order: digest, Images: 3, Missing: 1, Error: "no"}, nil, nil, "", "",
			time.Time{}},
		"a clock that was ahead": {told(-time.Minute), nil, nil, nil, progress.StagingAhead, "not reported",
			now.Add(61 * time.Minute)},
		"a clock that was far ahead": {told(-61 * time.Minute), nil, nil, nil, "", "", time.Time{}},
		"nobody waits":               {told(time.Minute), nil, &api.RolloutStaging{}, nil, "", "", time.Time{}},
		"a time of its own": {told(time.Minute), nil, &api.RolloutStaging{WaitForPinnedImages: &api.RolloutPinnedImages{TimeoutSeconds: 90}},
			nil, progress.StagingAhead, "not reported", now.Add(30 * time.Second)},
		"an emergency": {told(time.Minute), nil, nil, func(p *progress.Pool) { p.Bypass = &api.Bypass{Config: "B"} }, "", "",
			time.Time{}},
		"a node on its way": {told(time.Minute), nil, nil, func(p *progress.Pool) { p.Nodes[0].Desired = "B" }, "", "", time.Time{}},
		"a node that is not ready": {told(time.Minute), nil, nil, func(p *progress.Pool) { p.Nodes[0].NotReady = "Ready=False" }, "",
			"", time.Time{}},
	} {
		p := pool(t, "worker", "a A Done")
		n := &p.Nodes[0]
		n.Pins, n.Pinned = test.order, test.pinned
		n.Orders.Stage, n.Staged = &api.StageOrder{Config: "B"}, &api.Staged{Config: "B"}
		if test.change != nil {
			test.change(p)
		}
		staging := test.staging
		if staging == nil {
			staging = &api.RolloutStaging{WaitForPinnedImages: &api.RolloutPinnedImages{}}
		}
		follow([]api.RolloutPolicy{policyOf(api.RolloutPolicySpec{Staging: staging}, "worker")}, p)
		h := p.Rules.Holds["a"]
		if h == nil {
			h = &progress.Hold{}
		}
		if h.Verdict != test.verdict || !strings.Contains(h.Because, test.says) || !h.Until.Equal(test.until) {
			t.Errorf("%s: %+v", name, h)
		}
		if !test.until.IsZero() && !p.Rules.Next.Equal(test.until) {
			t.Errorf("%s: it is looked at again at %s", name, p.Rules.Next)
		}
		if test.verdict == progress.CannotStage && !strings.Contains(h.Do, "goes without the images at "+test.until.Format(time.RFC3339)) {
			t.Errorf("%s: to do is %q", name, h.Do)
		}
	}
}
