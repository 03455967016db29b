// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"time"
)

// Verb is a command that the agent's pod runs on the host. One command of each name runs at a time, as a unit with a
// fixed name. So an agent finds a command that the previous agent has started, and people find the command in the
// journal.
type Verb struct {
	Name string
	unit string // the name in the unit's, where that is another one
	// joins: a caller waits for a running command of the same request instead of starting another.
	Joins bool
	// outlives: the command keeps running when the caller's context ends. Another command that joins is stopped for
	// hands.ErrSuperseded alone.
	Outlives bool
	Nice     int
	Limit    time.Duration // how long it may run; 0: without a limit
	// Grace is how long the command may take to end when it is stopped.
	Grace time.Duration
}

// unitPrefix begins the name of each unit of the agent.
const unitPrefix = "machine-config-daemon-"

// Unit returns the name of the unit that runs the verb.
func (v Verb) Unit() string { return unitPrefix + cmp.Or(v.unit, v.Name) + ".service" }

// A command that only reads has a limit of a hundred times its usual duration, so that a command that hangs is noticed.
// A live change that was decided finishes its restarts before it ends.
var (
	StatusVerb = Verb{Name: "status", Limit: time.Minute, Grace: 10 * time.Second}
	PlanVerb   = Verb{Name: "plan", Limit: 5 * time.Minute, Grace: 10 * time.Second}
	RepairVerb = Verb{Name: "repair", Limit: 10 * time.Minute, Grace: 5 * time.Minute}
	// DeliverVerb may be stopped: the next command rolls forward what deliver has recorded.
	DeliverVerb = Verb{Name: "deliver", Limit: 10 * time.Minute, Grace: 5 * time.Minute}
	VerifyVerb  = Verb{Name: "verify", Limit: 5 * time.Minute, Grace: 10 * time.Second}
	StageVerb   = Verb{Name: "stage", Joins: true, Nice: 10, Grace: 30 * time.Second}
	AskVerb     = Verb{Name: "before-drain", Joins: true, Grace: 30 * time.Second}
	// RebootVerb's unit has another name than plan.RebootUnit.
	RebootVerb = Verb{Name: "reboot", unit: "ordered-reboot", Joins: true, Outlives: true, Grace: 5 * time.Minute}
	// WantedVerb asks hooks, which have limits of their own.
	WantedVerb = Verb{Name: "wants-reboot", Nice: 10, Limit: 15 * time.Minute, Grace: 30 * time.Second}
	ApplyVerb  = Verb{Name: "apply", Joins: true, Outlives: true, Grace: 5 * time.Minute}
)

// Verbs are all verbs.
var Verbs = []Verb{StatusVerb, PlanVerb, VerifyVerb, RepairVerb, DeliverVerb, StageVerb, AskVerb, WantedVerb,
	RebootVerb, ApplyVerb}
