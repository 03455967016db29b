// SPDX-License-Identifier: Apache-2.0

// Package tally counts what the suites that cut updates short do and find. They end by saying it, in these two lines:
//
//	cuts: <n> torn: <n> lost: <n>
//	boots: <n> updates: <n> ended on neither A nor B: <n>
package tally

import (
	"fmt"
	"sync/atomic"
)

// Tally counts for one suite. The zero value is ready, and safe for concurrent use.
type Tally struct {
	Cuts  atomic.Int64 // of the power, or of processes where that is as good
	Boots atomic.Int64 // of machines and hosts, after a cut or in order
	Torn  atomic.Int64 // states between two configurations
	Lost  atomic.Int64 // states of which the agent could not say which it is, or named another than the disk has

	updates, neither atomic.Int64
}

// Ended counts an update that is over, cut or not, when the machine was looked at: whole is that all of it is on one of
// the two configurations.
func (t *Tally) Ended(whole bool) {
	t.updates.Add(1)
	if !whole {
		t.neither.Add(1)
	}
}

// Bad says whether something was found that must never be.
func (t *Tally) Bad() bool { return t.Torn.Load()+t.Lost.Load()+t.neither.Load() > 0 }

// String is the lines that the package's comment shows.
func (t *Tally) String() string {
	return fmt.Sprintf("cuts: %d torn: %d lost: %d\nboots: %d updates: %d ended on neither A nor B: %d",
		t.Cuts.Load(), t.Torn.Load(), t.Lost.Load(), t.Boots.Load(), t.updates.Load(), t.neither.Load())
}
