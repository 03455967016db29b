// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
)

func TestForksOfRPMOSTreesDaemonAreNotCounted(t *testing.T) {
	const started = `execve("/usr/bin/ostree", ["ostree", "admin", "deploy"], 0x1 /* 3 vars */) = 0`
	texts := map[string]string{
		// PID 1 starts the daemon, a client, and a thread.
		"1": "clone3({flags=CLONE_VM|CLONE_VFORK, exit_signal=SIGCHLD}, 88) = 10\n" +
			"clone3({flags=CLONE_VM|CLONE_VFORK, exit_signal=SIGCHLD}, 88) = 20\n" +
			"clone3({flags=CLONE_VM|CLONE_THREAD}, 88) = 30\n" +
			"clone3({flags=CLONE_VM|CLONE_VFORK, exit_signal=SIGCHLD}, 88) = -1 EAGAIN (Resource temporarily unavailable)\n",
		"10": `execve("/usr/bin/rpm-ostree", ["/usr/bin/rpm-ostree", "start-daemon"], 0x1 /* 3 vars */) = 0` + "\n" +
			"clone(child_stack=0xc0, flags=CLONE_VM|CLONE_THREAD) = 11\n",
		"11": "clone(child_stack=NULL, flags=CLONE_VFORK|SIGCHLD) = 12\n",
		"12": started + "\nfork() = 13\n",
		"13": started + "\n",
		"20": `execve("/usr/bin/rpm-ostree", ["rpm-ostree", "rebase", "updates:x"], 0x1 /* 3 vars */) = 0` + "\n" +
			"vfork() = 21\n",
		"21": `execve("/usr/bin/systemctl", ["systemctl", "is-active", "rpm-ostreed"], 0x1 /* 3 vars */) = 0` + "\n",
	}
	if got := forksOf(texts); got != 3 {
		t.Errorf("%d forks: the daemon, the client and the client's child are 3", got)
	}
}

func TestUpdateOfTheOSMissesItsTargets(t *testing.T) {
	for name, test := range map[string]struct {
		cost   osCost
		missed string // the beginnings of the sentences, by comma
	}{
		"two transactions": {osCost{made: made{transactions: 2}, reboots: 1}, ""},
		"one transaction":  {osCost{made: made{transactions: 1}, reboots: 1}, ""},
		"three":            {osCost{made: made{transactions: 3}, reboots: 1}, "3 rpm-ostree"},
		"none was seen":    {osCost{reboots: 1}, "0 rpm-ostree"},
		"two reboots":      {osCost{made: made{transactions: 2}, reboots: 2}, "2 reboots,"},
		"no reboot":        {osCost{made: made{transactions: 2}}, "0 reboots,"},
	} {
		t.Run(name, func(t *testing.T) {
			var missed []string
			for _, c := range judgeOSUpdate(test.cost) {
				if !c.reached {
					missed = append(missed, strings.Join(strings.Fields(c.what)[:2], " "))
				}
			}
			if got := strings.Join(missed, "; "); got != test.missed {
				t.Errorf("missed %q, not %q", got, test.missed)
			}
		})
	}
}

func TestOfSeveralUpdatesTheTimesAreTypicalAndTheCountsTheWorst(t *testing.T) {
	got := typical([]osCost{
		{serving: 9, cordoned: 1, written: 20, made: made{1, 1, 3}, reboots: 1},
		{serving: 5, cordoned: 7, written: 10, made: made{3, 1, 2}, reboots: 2},
		{serving: 7, cordoned: 2, written: 90, made: made{2, 1, 3}, reboots: 1},
		{forks: 40}, // traced
	})
	want := osCost{serving: 7, cordoned: 2, written: 20, made: made{3, 1, 3}, reboots: 2, forks: 40}
	if got != want {
		t.Errorf("%+v instead of %+v", got, want)
	}
}

func TestWrittenBytesAreThoseOfAllProcesses(t *testing.T) {
	sum, err := sumWritten("rchar: 5\nwrite_bytes: 4096\ncancelled_write_bytes: 4096\nrchar: 1\nwrite_bytes: 8192\n")
	if err != nil || sum != 12288 {
		t.Errorf("%d %v", sum, err)
	}
	if sum, err := sumWritten("rchar: 5\n"); err == nil {
		t.Errorf("%d of a kernel that does not count", sum)
	}
}
