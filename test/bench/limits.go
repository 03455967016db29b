// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"time"
)

// limit is what a step may cost at most; reloads is what it costs exactly.
type limit struct {
	durable, writes, reloads int
	// own is durable for the agent alone: what ostree syncs while it makes a deployment is its own business.
	own int
	// forks counts processes of any program; anyFork allows those that are not in forbidden.
	anyFork bool
}

// unlimited stands for a count that nothing was promised of.
const unlimited = 1 << 30

// maxProgram is how large the program of the host may be, in MB: each node keeps a copy, and each boot reads one.
const maxProgram = 25

// maxInPod is how large the program of the pod may be, in MB. maxAtRest is how much memory it may take at rest, in MB:
// most of that is the program itself, in the page cache.
const (
	maxInPod  = 26
	maxAtRest = 35
)

// maxStart and maxResident are what a start of the host's program may take: of CPU, and of memory in MB.
const (
	maxStart    = 15 * time.Millisecond
	maxResident = 18
)

// maxDurable is how many fsyncs an update may take, syncfs among them, whatever the size of the configuration: the
// journal, everything staged, the boot record and its directory, everything renamed, and the record again.
const maxDurable = 8

// forbidden are the programs that no update may start, for each path or unit or at all.
var forbidden = []string{"systemctl", "rpm", "rpm-ostree"}

var (
	changes = limit{durable: maxDurable, writes: unlimited}
	reloads = limit{durable: maxDurable, writes: unlimited, reloads: 1}
)

// limits are the promises, by step. On a host of an ostree its own program is asked which deployment is booted.
var limits = map[string]limit{
	"apply.bare":       reloads,
	"apply.first":      reloads,
	"apply.same":       {},
	"apply.onefile":    changes,
	"apply.onefile300": changes,
	"apply.oneunit":    reloads,
	"plan.onefile":     {anyFork: true},
	"verify":           {anyFork: true},
	"verify.owned":     {anyFork: true},
	"live.first":       {durable: maxDurable, writes: unlimited, reloads: 1, anyFork: true},
	"live.same":        {anyFork: true},
	"live.onefile":     {durable: maxDurable, writes: unlimited, anyFork: true},
	"live.oneunit":     {durable: maxDurable, writes: unlimited, reloads: 1, anyFork: true},
	"switch.first":     {durable: unlimited, own: maxDurable, writes: unlimited, anyFork: true},
	"switch.onefile":   {durable: unlimited, own: maxDurable, writes: unlimited, anyFork: true},
}

// What one update of everything that rpm-ostree does for a host may take: the new image is one transaction, what is
// layered on it and left out of it another. The kernel arguments are none, and neither is what makes it boot.
const (
	maxTransactions = 2
	updateReboots   = 1
)

// judgeOSUpdate holds an update of the OS against what is promised of it.
func judgeOSUpdate(c osCost) []check {
	return []check{
		{fmt.Sprintf("%d rpm-ostree transactions of at most %d", c.made.transactions, maxTransactions),
			c.made.transactions > 0 && c.made.transactions <= maxTransactions},
		{fmt.Sprintf("%d reboots, to be %d", c.reboots, updateReboots), c.reboots == updateReboots},
	}
}

// check is one promise and what became of it.
type check struct {
	what    string
	reached bool
}

// judge holds the counts of a step against its limit. A step that nothing was promised of has no checks.
func judge(name string, c counts) []check {
	l, ok := limits[name]
	if !ok {
		return nil
	}
	var out []check
	add := func(reached bool, format string, args ...any) {
		out = append(out, check{fmt.Sprintf(format, args...), reached})
	}
	if l.durable != unlimited {
		add(c.durable() <= l.durable, "%d fsyncs and syncfs of at most %d", c.durable(), l.durable)
	}
	if l.own > 0 {
		add(c.Own <= l.own, "%d fsyncs and syncfs of the agent's own of at most %d", c.Own, l.own)
	}
	if l.writes != unlimited {
		add(c.Writes <= l.writes, "%d calls that write, of at most %d", c.Writes, l.writes)
	}
	if !l.anyFork {
		add(c.Forks == 0, "%d forks of none (%s)", c.Forks, c.programs())
	}
	bad := 0
	for _, program := range forbidden {
		bad += c.Programs[program]
	}
	add(bad == 0, "%d forks of systemctl, rpm or rpm-ostree", bad)
	add(c.Reloads == l.reloads, "%d daemon-reloads, to be %d", c.Reloads, l.reloads)
	return out
}

// missed returns the promises that were not kept, as sentences.
func missed(name string, c counts) []string {
	var out []string
	for _, ch := range judge(name, c) {
		if !ch.reached {
			out = append(out, ch.what)
		}
	}
	if len(out) > 0 && slices.Contains([]string{"apply.same", "live.same"}, name) {
		out = append(out, c.Changed...)
	}
	return out
}
