// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"time"
)

// chore is a row of the table of the head's work beside the phases.
type chore struct {
	name, does string // in words
	while      while
	// due returns the time from which the chore is to be done, the zero time for not at all. due changes nothing.
	due func(*Head, *situation) time.Time
	// now does the chore in the loop, or begins its operation. beside begins the chore, and returns the work for a
	// goroutine. Where both are nil, each turn does the chore, and the row only makes the next turn come in time.
	now    func(*Head, context.Context, *situation)
	beside func(*Head, context.Context, *situation) work
}

// while is a condition that several chores share, in words.
type while string

const (
	whileAny  while = ""
	whileFree while = "no operation for another purpose is in the way" // see Head.clear
	whileIdle while = "the node is at rest, and no operation compares or changes the host"
)

// work is the part of a chore that runs in a goroutine. It returns the function that takes over its result in the loop.
type work func() (take func())

// end is the end of a chore's work, or of an operation.
type end struct {
	of   string // the name of the chore, or the operation's phase
	take func()
}

// The names of chores to which other parts of the head refer.
const (
	choreRead    = "read"
	choreDeliver = "deliver"
)

// chores are the head's work beside the phases, in the order in which a turn does what is due. A chore that runs is not
// due.
var chores = []chore{
	{name: choreRead, due: (*Head).readDue, beside: (*Head).ask,
		does: "read the host's status: after a change on the host, every 20 s during an update, every 10 minutes at rest"},
	{name: "restore", due: (*Head).restoreDue, beside: (*Head).restore,
		does: "create a deleted MachineConfig again, from the copy on a host that has the configuration"},
	{name: "readiness", due: (*Head).vouchDue, beside: (*Head).vouch,
		does: "tell the host whether its Node is ready: for an apply and for the verdict"},
	{name: "warn the host", due: (*Head).warnHostDue, now: (*Head).warnHost,
		does: "tell a running apply that the node was uncordoned after its drain"},
	{name: "announce a limit", does: "announce that a drain goes on beyond the limit of its phase",
		due: func(h *Head, _ *situation) time.Time { return h.drainLimit() },
		now: func(h *Head, _ context.Context, v *situation) { h.overdue(v.now) }},
	{name: "complain", does: "announce what a drain waits for: after an hour, then every 4 hours",
		due: func(h *Head, _ *situation) time.Time { return h.complainDue() },
		now: func(h *Head, _ context.Context, v *situation) { h.complain(v.now) }},
	{name: choreDeliver, while: whileFree, due: (*Head).deliverDue, beside: (*Head).deliver,
		does: "write changed certificates of the ControllerConfig to the host, while no operation changes its files"},
	{name: "reboot wanted", due: (*Head).wantedDue, beside: (*Head).askWanted,
		does: "ask everything that may want a reboot of the host, every 10 minutes at rest"},
	{name: "pin images", due: (*Head).pinDue, beside: (*Head).pin,
		does: "pull and pin the images of PinnedImageSets, one after the other, while the node is at rest"},
	{name: string(phaseAhead), while: whileIdle, due: (*Head).aheadDue, now: (*Head).startAhead,
		does: "stage the OS that a RolloutPolicy orders, unless the node is on hold"},
	{name: string(phaseUnstage), while: whileIdle, due: (*Head).unstageDue, now: (*Head).unstage,
		does: "remove an OS that was composed for a configuration that the node no longer needs"},
	{name: string(phaseVerify), while: whileIdle, due: (*Head).verifyDue, now: (*Head).verify,
		does: "compare the host with its configuration: after a change of a watched path, and every 30 minutes"},
	{name: string(phaseRepair), while: whileIdle, due: (*Head).repairDue, now: (*Head).repair,
		does: "write drifted files back, if the drift policy or a force file demands it"},
	{name: "look again", due: (*Head).besideDue, now: (*Head).lookAgain,
		does: "plan anew while an update waits for bootc-operator, every 2 minutes"},
	{name: "report", due: (*Head).reportDue,
		does: "report changes on the Node and the MachineConfigNode; report what an update waits for once a minute"},
}

// dueAt returns the time from which a chore is to be done, the zero time for not at all as far as known.
func (c *chore) dueAt(h *Head, v *situation) time.Time {
	idle := atRest(h.phase) && h.job == nil && !h.running[choreDeliver]
	if h.running[c.name] || c.while == whileIdle && !idle {
		return time.Time{}
	}
	return c.due(h, v)
}

// begin begins a chore that is due.
func (c *chore) begin(ctx context.Context, h *Head, v *situation) {
	switch {
	case !isDue(c.dueAt(h, v), v.now):
	case c.now != nil:
		c.now(h, ctx, v)
	case c.beside != nil:
		work := c.beside(h, ctx, v)
		h.running[c.name] = true
		go func() { h.ended <- end{c.name, work()} }()
	}
}

// do begins the chores of a kind that are due.
func (h *Head) do(ctx context.Context, v *situation, kind while) {
	for i := range chores {
		if chores[i].while == kind {
			chores[i].begin(ctx, h, v)
		}
	}
}

// take takes over the result of work beside the loop.
func (h *Head) take(e end) {
	delete(h.running, e.of)
	e.take()
}

// pause returns the time from now until something is due. v is the situation of the turn, which has looked at
// everything that was due by then. What has become due since is not lost.
func (h *Head) pause(v *situation, now time.Time) time.Duration {
	times := []time.Time{now.Add(restPace)}
	if f := h.way.failure; f != nil && h.job == nil {
		times = append(times, f.retry)
	}
	for i := range chores {
		times = append(times, chores[i].dueAt(h, v))
	}
	return max(soonest(v.now, times...).Sub(now), 10*time.Millisecond)
}

// reportDue returns when a turn has to report again: when a failed write is tried again, or the text about a wait may
// change.
func (h *Head) reportDue(v *situation) time.Time {
	var loud time.Time
	if d := h.waiting(); d != nil {
		loud = d.Since.Add(drainQuiet)
	}
	return soonest(v.now, h.nodeWrites.next, h.objectWrites.next, h.held.due, loud)
}

// isDue reports whether a due time is reached.
func isDue(due, now time.Time) bool { return !due.IsZero() && !due.After(now) }

// from returns when a chore is due that waits for a time, where the chore is to be done at all.
func (v *situation) from(is bool, at time.Time) time.Time {
	if !is {
		return time.Time{}
	}
	return later(at, v.now)
}

// later returns the later of two times.
func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// soonest returns the first time after now, the zero time if none is after now.
func soonest(now time.Time, times ...time.Time) time.Time {
	var first time.Time
	for _, t := range times {
		if t.After(now) && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	return first
}
