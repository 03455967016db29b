// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"testing"

	"github.com/noderefit/noderefit/api"
)

func TestExplainSaysHowManyImagesOfItsSetsANodeHas(t *testing.T) {
	t.Parallel()
	order := &api.PinOrder{Pull: true, Sets: []api.PinnedSet{{Name: "base", Generation: 2, Digest: "d"}}}
	turn := &api.PinOrder{Sets: order.Sets}
	digest := order.Digest()
	for want, c := range map[string]struct {
		order *api.PinOrder
		says  *api.Pinned
	}{
		"":                     {nil, nil},
		"30 images are pinned": {order, &api.Pinned{Order: digest, Images: 30}},
		"2 of 30 images are missing, and are being pulled":                     {order, &api.Pinned{Order: digest, Images: 30, Missing: 2}},
		"2 of 30 images are missing, and the node waits for its turn to pull":  {turn, &api.Pinned{Order: digest, Images: 30, Missing: 2}},
		"1 of 30 images are missing (tries: 3): q.io/a: not found":             {order, &api.Pinned{Order: digest, Images: 30, Missing: 1, Error: "q.io/a: not found", Tries: 3}},
		"its images are not known (tries: 1): reading PinnedImageSet base: no": {order, &api.Pinned{Order: digest, Error: "reading PinnedImageSet base: no", Tries: 1, Unread: true}},
		"the last try failed (tries: 2): no runtime":                           {order, &api.Pinned{Order: digest, Error: "no runtime", Tries: 2}},
		"the agent has not reported on them yet":                               {order, nil},
	} {
		w := newWorld()
		w.at(w.a, renderedA, renderedA, api.Done, "")
		if c.order != nil {
			w.a.Annotations[api.PinOrderKey] = api.Encode(c.order)
		}
		if c.says != nil {
			w.a.Annotations[api.PinnedKey] = api.Encode(c.says)
		}
		a, _ := NewReport(w.View).ExplainNode("a")
		if a.Images != want {
			t.Errorf("%q, want %q", a.Images, want)
		}
		// What an answer says already is not said twice.
		w.at(w.a, renderedA, renderedA, api.Degraded, want)
		if a, _ = NewReport(w.View).ExplainNode("a"); a.Verdict != Degraded || a.Images != "" {
			t.Errorf("%+v", a)
		}
	}
}
