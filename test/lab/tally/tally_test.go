// SPDX-License-Identifier: Apache-2.0

package tally

import "testing"

func TestTallySaysWhatWasFound(t *testing.T) {
	var all Tally
	all.Cuts.Add(3)
	all.Boots.Add(4)
	all.Ended(true)
	all.Ended(true)
	if all.Bad() {
		t.Error("nothing bad was found, and it says so")
	}
	if got, want := all.String(), "cuts: 3 torn: 0 lost: 0\nboots: 4 updates: 2 ended on neither A nor B: 0"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	all.Ended(false)
	if got, want := all.String(), "cuts: 3 torn: 0 lost: 0\nboots: 4 updates: 3 ended on neither A nor B: 1"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	for what, found := range map[string]func(*Tally){
		"torn":    func(t *Tally) { t.Torn.Add(1) },
		"lost":    func(t *Tally) { t.Lost.Add(1) },
		"neither": func(t *Tally) { t.Ended(false) },
	} {
		var one Tally
		if found(&one); !one.Bad() {
			t.Errorf("%s is nothing bad", what)
		}
	}
}
