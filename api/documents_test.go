// SPDX-License-Identifier: Apache-2.0

package api

import "testing"

func TestTheContentOfAConfigurationIsItsDigest(t *testing.T) {
	t.Parallel()
	const digest = "0123456789abcdef0123456789abcdef"
	for name, want := range map[string]string{
		"rendered-worker-" + digest:                          digest,
		"rendered-my-pool-" + digest:                         digest,
		"rendered--" + digest:                                "rendered--" + digest,
		"rendered-" + digest:                                 "rendered-" + digest,
		"rendered-worker-0" + digest:                         "rendered-worker-0" + digest,
		"rendered-worker-" + digest[1:]:                      "rendered-worker-" + digest[1:],
		"rendered-worker-g" + digest[1:]:                     "rendered-worker-g" + digest[1:],
		"rendered-worker-" + digest[:16] + "-" + digest[:15]: "rendered-worker-" + digest[:16] + "-" + digest[:15],
		"worker-" + digest:                                   "worker-" + digest,
		"":                                                   "",
	} {
		if got := Content(name); got != want {
			t.Errorf("%q: %q", name, got)
		}
	}
	if !SameContent("rendered-a-"+digest, "rendered-b-"+digest) || SameContent("", "") || !SameContent("x", "x") ||
		SameContent("rendered-a-"+digest, "rendered-a-x") {
		t.Error("what is the same is not")
	}
}

func TestOrdersAreEqualByWhatTheyAsk(t *testing.T) {
	t.Parallel()
	full := func() Orders {
		return Orders{Stage: &StageOrder{Config: "B"}, Drain: &DrainPolicy{TimeoutSeconds: 5}}
	}
	other := full()
	other.Drain.TimeoutSeconds = 6
	staged := full()
	staged.Stage.Digest = "sha256:1"
	if !full().Equal(full()) || !(Orders{}).Equal(Orders{}) {
		t.Error("the same is not equal")
	}
	for _, o := range []Orders{other, staged, {}, {Stage: full().Stage}, {Drain: full().Drain}} {
		if full().Equal(o) || o.Equal(full()) {
			t.Errorf("equal to %+v", o)
		}
	}
}
