// SPDX-License-Identifier: Apache-2.0

package transaction

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// The boot that a record was written in, and the next one.
const (
	thisBoot = "boot-1"
	softBoot = "boot-1+1" // the same kernel's, of a userspace that was started again
	nextBoot = "boot-2"
)

func switching(phase Phase, change func(*Pending)) *Record {
	p := &Pending{Revision: Revision{Config: "b", Digest: "bb", Deployment: "B"}, Phase: phase, Road: RoadSwitch, From: "A",
		BootID: thisBoot, MaxAttempts: 3, Timeout: time.Minute}
	if phase == PhasePrepare {
		p.Deployment = ""
	}
	if change != nil {
		change(p)
	}
	return &Record{Committed: &Revision{Config: "a", Digest: "aa", Deployment: "A"}, Pending: p}
}

func stagedRecord(phase Phase, change func(*Pending)) *Record {
	r := switching(phase, change)
	r.Pending.Road = RoadStaged
	return r
}

// filesAlone is an update of the staged road that has no deployment.
func filesAlone(phase Phase, change func(*Pending)) *Record {
	r := stagedRecord(phase, change)
	if phase != PhasePrepare {
		r.Pending.Deployment = "A"
	}
	return r
}

func here(phase Phase, road Road, from string) *Record {
	return &Record{Pending: &Pending{Revision: Revision{Config: "b", Deployment: from}, Phase: phase, Road: road, From: from, BootID: thisBoot}}
}

func TestRecoveryDecidesFromRecordAndBootedDeployment(t *testing.T) {
	const uptime = time.Hour
	proving := func(attempts int, deadline time.Duration) *Record {
		return switching(PhaseProve, func(p *Pending) { p.Attempts, p.Deadline = attempts, uptime+deadline })
	}
	liveProving := func(attempts int, deadline time.Duration) *Record {
		r := here(PhaseProve, RoadLive, "A")
		r.Pending.Attempts, r.Pending.MaxAttempts, r.Pending.Deadline = attempts, 3, uptime+deadline
		return r
	}
	settled := &Record{Committed: &Revision{Deployment: "B"}, Previous: &Revision{Deployment: "A"}}
	planned := func(p *Pending) { p.SoftReboot = SoftPlanned }
	started := func(p *Pending) { p.SoftReboot = SoftStarted }
	giveUp := func(p *Pending) { p.Quarantine, p.Reason = true, "bad" }
	once := func(p *Pending) { p.Attempts, p.Deadline = 1, uptime+time.Second }
	often := func(p *Pending) { p.Attempts, p.Deadline = 3, uptime+time.Second }
	again := func(p *Pending) { p.Attempts, p.Reread = 0, thisBoot }
	byHand := func(p *Pending) { p.Reason = "asked for" }
	for _, row := range []struct {
		name                string
		record              *Record
		booted, dflt, boot  string
		released, bootable  string // of staged deployments
		unfinished          string
		failed              bool
		want                Todo
		quarantine, deadEnd bool
	}{
		{name: "never touched, no ostree", record: &Record{}, want: Nothing},
		{name: "never touched", record: &Record{}, booted: "A", dflt: "A", want: Nothing},
		{name: "settled", record: settled, booted: "B", dflt: "B", want: Nothing},
		{name: "settled, the next default is somebody else's business", record: settled, booted: "B", dflt: "X", want: Nothing},
		{name: "went back after it was proved", record: settled, booted: "A", dflt: "B", want: WentBack},
		{name: "went back for good", record: settled, booted: "A", dflt: "A", want: WentBack},
		{name: "another OS", record: settled, booted: "X", dflt: "X", want: Foreign},

		{name: "cut while preparing", record: switching(PhasePrepare, nil), booted: "A", dflt: "A", boot: nextBoot, want: Abort},
		{name: "killed while preparing", record: switching(PhasePrepare, nil), booted: "A", dflt: "A", want: Abort},
		{name: "another OS while preparing", record: switching(PhasePrepare, nil), booted: "X", dflt: "X", boot: nextBoot, want: Foreign},

		{name: "killed before set-default", record: switching(PhaseBoot, nil), booted: "A", dflt: "A", want: Abort},
		{name: "committed, not rebooted", record: switching(PhaseBoot, nil), booted: "A", dflt: "B", want: AwaitBoot},
		{name: "cut before set-default", record: switching(PhaseBoot, nil), booted: "A", dflt: "A", boot: nextBoot, want: Abort},
		{name: "the boot loader fell back", record: switching(PhaseBoot, nil), booted: "A", dflt: "B", boot: nextBoot, want: Returned, quarantine: true},
		{name: "first boot", record: switching(PhaseBoot, nil), booted: "B", dflt: "B", boot: nextBoot, want: FirstBoot},
		{name: "first boot of a soft reboot", record: switching(PhaseBoot, started), booted: "B", dflt: "B", boot: softBoot, want: FirstBoot},
		{name: "a soft reboot that is still to come", record: switching(PhaseBoot, started), booted: "A", dflt: "B", want: AwaitBoot},
		{name: "a soft reboot that came up on the old one", record: switching(PhaseBoot, started), booted: "A", dflt: "B", boot: softBoot, want: BootFully},
		{name: "cut during a soft reboot, the boot loader fell back", record: switching(PhaseBoot, started), booted: "A", dflt: "B", boot: nextBoot, want: Returned, quarantine: true},
		{name: "cut during a soft reboot", record: switching(PhaseBoot, started), booted: "B", dflt: "B", boot: nextBoot, want: FirstBoot},
		{name: "killed before a soft reboot was decided", record: switching(PhaseBoot, planned), booted: "A", dflt: "A", want: Abort},
		{name: "somebody else's soft reboot before ours", record: switching(PhaseBoot, planned), booted: "A", dflt: "B", boot: softBoot, want: AwaitBoot},
		{name: "somebody else's soft reboot before a full one", record: switching(PhaseBoot, nil), booted: "A", dflt: "B", boot: softBoot, want: AwaitBoot},
		{name: "another OS instead of the first boot", record: switching(PhaseBoot, nil), booted: "X", dflt: "B", boot: nextBoot, want: Foreign},

		{name: "somebody else's soft reboot while being proved", record: proving(1, time.Second), booted: "B", dflt: "B", boot: softBoot, want: FirstBoot},
		{name: "out of attempts, soft ones too", record: proving(3, time.Second), booted: "B", dflt: "B", boot: softBoot, want: GoBack, quarantine: true},
		{name: "a soft reboot back while being proved", record: proving(1, time.Second), booted: "A", dflt: "B", boot: softBoot, want: Returned, quarantine: true},
		{name: "somebody else's soft reboot while giving up", record: switching(PhaseUndo, giveUp), booted: "B", dflt: "A", boot: softBoot, want: GoBack, quarantine: true},
		{name: "live, the userspace started again while being proved", record: liveProving(1, 0), booted: "A", boot: softBoot, want: FirstBoot},
		{name: "being proved", record: proving(1, time.Second), booted: "B", dflt: "B", want: AwaitProof},
		{name: "past the deadline", record: proving(1, -time.Second), booted: "B", dflt: "B", want: GoBack, quarantine: true},
		{name: "cut while being proved", record: proving(1, time.Second), booted: "B", dflt: "B", boot: nextBoot, want: FirstBoot},
		{name: "a machine that was off past the deadline", record: proving(1, -time.Hour), booted: "B", dflt: "B", boot: nextBoot, want: FirstBoot},
		{name: "out of attempts", record: proving(3, time.Second), booted: "B", dflt: "B", boot: nextBoot, want: GoBack, quarantine: true},
		{name: "a person chose the old one while being proved", record: proving(1, time.Second), booted: "A", dflt: "B", boot: nextBoot, want: Returned, quarantine: true},
		{name: "rpm-ostree rollback while being proved", record: proving(1, time.Second), booted: "A", dflt: "A", boot: nextBoot, want: Returned, quarantine: true},

		{name: "giving up, not rebooted", record: switching(PhaseUndo, giveUp), booted: "B", dflt: "A", want: GoBack, quarantine: true},
		{name: "cut while giving up", record: switching(PhaseUndo, giveUp), booted: "B", dflt: "B", boot: nextBoot, want: GoBack, quarantine: true},
		{name: "back on the old one", record: switching(PhaseUndo, giveUp), booted: "A", dflt: "A", boot: nextBoot, want: Returned, quarantine: true},
		{name: "back because a person asked", record: switching(PhaseUndo, byHand), booted: "A", dflt: "A", boot: nextBoot, want: Returned},

		{name: "tree, decided", record: here(PhaseApply, RoadTree, ""), want: RollForward},
		{name: "tree, decided, after a boot", record: here(PhaseApply, RoadTree, ""), boot: nextBoot, want: RollForward},
		{name: "tree, going back", record: here(PhaseUndo, RoadTree, ""), want: UndoHere},
		{name: "live, decided", record: here(PhaseApply, RoadLive, "A"), booted: "A", dflt: "A", boot: nextBoot, want: RollForward},
		{name: "live, going back", record: here(PhaseUndo, RoadLive, "A"), booted: "A", dflt: "A", want: UndoHere},
		{name: "live, being proved", record: liveProving(1, time.Second), booted: "A", dflt: "A", want: AwaitProof},
		{name: "live, past the deadline", record: liveProving(1, -time.Second), booted: "A", want: GoBack, quarantine: true},
		{name: "live, cut while being proved", record: liveProving(1, 0), booted: "A", boot: nextBoot, want: FirstBoot},
		{name: "live, out of attempts", record: liveProving(3, 0), booted: "A", boot: nextBoot, want: GoBack, quarantine: true},
		{name: "tree committed on a host with ostree", record: &Record{Committed: &Revision{Digest: "aa"}}, booted: "X", want: Nothing},
		{name: "live, and then another OS", record: here(PhaseApply, RoadLive, "A"), booted: "X", dflt: "X", boot: nextBoot, want: Foreign},

		{name: "staged, cut while preparing", record: stagedRecord(PhasePrepare, nil), booted: "A", dflt: "A", boot: nextBoot, want: Abort},
		{name: "staged, killed while preparing", record: stagedRecord(PhasePrepare, nil), booted: "A", dflt: "A", want: Abort},
		{name: "staged, killed before it was released", record: stagedRecord(PhaseBoot, nil), booted: "A", dflt: "A", want: Abort},
		{name: "staged and released, not rebooted", record: stagedRecord(PhaseBoot, nil), booted: "A", dflt: "A", released: "B", want: AwaitBoot},
		{name: "staged, and somebody staged another", record: stagedRecord(PhaseBoot, nil), booted: "A", dflt: "A", released: "X", want: Abort},
		{name: "staged, cut before ostree made it bootable", record: stagedRecord(PhaseBoot, nil), booted: "A", dflt: "A", boot: nextBoot, want: Abort},
		{name: "staged, ostree could not make it bootable", record: stagedRecord(PhaseBoot, nil), booted: "A", dflt: "A", boot: nextBoot, unfinished: "no space", want: Abort, failed: true},
		{name: "staged, cut after ostree made it bootable", record: stagedRecord(PhaseBoot, nil), booted: "B", dflt: "B", boot: nextBoot, bootable: "B", want: FirstBoot},
		{name: "staged, the boot loader fell back", record: stagedRecord(PhaseBoot, nil), booted: "A", dflt: "B", boot: nextBoot, bootable: "B", want: Returned, quarantine: true},
		{name: "staged, made bootable by somebody else's soft reboot", record: stagedRecord(PhaseBoot, nil), booted: "A", dflt: "B", boot: softBoot, bootable: "B", want: AwaitBoot},
		{name: "files alone, and somebody else's soft reboot", record: filesAlone(PhaseBoot, nil), booted: "A", dflt: "A", boot: softBoot, want: AwaitBoot},
		{name: "staged, another OS instead", record: stagedRecord(PhaseBoot, nil), booted: "X", dflt: "X", boot: nextBoot, want: Foreign},
		{name: "staged, one more boot", record: stagedRecord(PhaseProve, again), booted: "B", dflt: "B", boot: nextBoot, want: FirstBoot},
		{name: "staged, being proved", record: stagedRecord(PhaseProve, once), booted: "B", dflt: "B", want: AwaitProof},
		{name: "staged, out of attempts", record: stagedRecord(PhaseProve, often), booted: "B", dflt: "B", boot: nextBoot, want: GoBack, quarantine: true},
		{name: "staged, a person chose the old one", record: stagedRecord(PhaseProve, once), booted: "A", dflt: "B", boot: nextBoot, want: Returned, quarantine: true},
		{name: "staged, giving up, not rebooted", record: stagedRecord(PhaseUndo, giveUp), booted: "B", dflt: "B", want: GoBack, quarantine: true},
		{name: "staged, cut while giving up", record: stagedRecord(PhaseUndo, giveUp), booted: "B", dflt: "B", boot: nextBoot, want: GoBack, quarantine: true},
		{name: "staged, back on the old one", record: stagedRecord(PhaseUndo, giveUp), booted: "A", dflt: "A", boot: nextBoot, want: Returned, quarantine: true},

		{name: "files alone, cut while preparing", record: filesAlone(PhasePrepare, nil), booted: "A", dflt: "A", boot: nextBoot, want: Abort},
		{name: "files alone, decided", record: filesAlone(PhaseBoot, nil), booted: "A", dflt: "A", want: AwaitBoot},
		{name: "files alone, decided, after a boot", record: filesAlone(PhaseBoot, nil), booted: "A", dflt: "A", boot: nextBoot, want: FirstBoot},
		{name: "files alone, another OS", record: filesAlone(PhaseBoot, nil), booted: "X", dflt: "X", boot: nextBoot, want: Foreign},
		{name: "files alone, being proved", record: filesAlone(PhaseProve, once), booted: "A", dflt: "A", want: AwaitProof},
		{name: "files alone, cut while being proved", record: filesAlone(PhaseProve, once), booted: "A", dflt: "A", boot: nextBoot, want: FirstBoot},
		{name: "files alone, out of attempts", record: filesAlone(PhaseProve, often), booted: "A", dflt: "A", boot: nextBoot, want: GoBack, quarantine: true},
		{name: "files alone, giving up, not rebooted", record: filesAlone(PhaseUndo, giveUp), booted: "A", dflt: "A", want: GoBack, quarantine: true},
		{name: "files alone, taken back, after the boot", record: filesAlone(PhaseUndo, giveUp), booted: "A", dflt: "A", boot: nextBoot, want: Returned, quarantine: true},

		{name: "a phase of the future", record: switching("levitate", nil), booted: "A", dflt: "A", want: Foreign},
	} {
		t.Run(row.name, func(t *testing.T) {
			if row.boot == "" {
				row.boot = thisBoot
			}
			d := decide(row.record, situation{Booted: row.booted, Default: row.dflt, BootID: row.boot, Uptime: uptime,
				Staged: row.released, Bootable: []string{"A", row.bootable}, Unfinished: row.unfinished})
			if d.Do != row.want || d.Quarantine != row.quarantine || d.Failed != row.failed {
				t.Errorf("got %q (quarantine %v): %s; want %q (quarantine %v)", d.Do, d.Quarantine, d.Why, row.want, row.quarantine)
			}
			if d.Do != Nothing && d.Why == "" && row.record.Pending != nil && row.record.Pending.Phase != PhaseUndo {
				t.Error("no reason is given")
			}
		})
	}
}

// What the boot loader gave up is said to be that, unlike what a person may have left in the boot menu.
func TestReasonOfAReturnNamesWhoDecided(t *testing.T) {
	for _, row := range []struct {
		phase            Phase
		attempts, gaveUp int
		want             string
	}{
		{PhaseBoot, 0, 0, "the boot loader fell back or a person chose it"},
		{PhaseBoot, 0, 3, "the boot loader gave b up after 3 boots, of which none came up"},
		{PhaseProve, 2, 3, "the boot loader gave b up after 3 boots, of which 2 came up and none proved healthy"},
		{PhaseProve, 1, 0, "the boot loader fell back or a person chose it"},
	} {
		r := switching(row.phase, func(p *Pending) { p.Attempts = row.attempts })
		d := decide(r, situation{Booted: "A", Default: "B", BootID: nextBoot, GaveUp: row.gaveUp})
		if d.Do != Returned || !d.Quarantine || !strings.Contains(d.Why, row.want) {
			t.Errorf("%s, %d boots: %s (%v): %s", row.phase, row.gaveUp, d.Do, d.Quarantine, d.Why)
		}
	}
}

// Whatever the record and the boot, recovery never boots or undoes on a deployment that is neither the old nor the new.
func TestRecoveryTouchesNothingOnAnUnknownDeployment(t *testing.T) {
	for _, phase := range []Phase{PhasePrepare, PhaseApply, PhaseBoot, PhaseProve, PhaseUndo} {
		for _, road := range []Road{RoadSwitch, RoadStaged, RoadLive} {
			for _, boot := range []string{thisBoot, softBoot, nextBoot} {
				for _, dflt := range []string{"A", "B", "X"} {
					t.Run(fmt.Sprint(phase, road, boot, dflt), func(t *testing.T) {
						r := switching(phase, func(p *Pending) { p.Road = road })
						if d := decide(r, situation{Booted: "X", Default: dflt, BootID: boot}); d.Do != Foreign {
							t.Errorf("decided to %s", d.Do)
						}
					})
				}
			}
		}
	}
}

func TestBootIsNamedByTheKernelAndByWhatItWasStartedAgain(t *testing.T) {
	if got := BootID("k", 0); got != "k" {
		t.Errorf("a boot that no userspace followed is %q, which records of before know otherwise", got)
	}
	for _, c := range []struct {
		a, b string
		same bool
	}{{BootID("k", 0), BootID("k", 2), true}, {BootID("k", 1), BootID("k", 2), true}, {BootID("k", 1), BootID("l", 1), false}} {
		if sameKernel(c.a, c.b) != c.same || c.a == c.b {
			t.Errorf("%q and %q", c.a, c.b)
		}
		if got := switching(PhaseBoot, func(p *Pending) { p.BootID = c.b }).BootOf("k"); (got == c.b) != c.same {
			t.Errorf("a boot that nobody says more of than that its kernel is k is %q, the record knows %q", got, c.b)
		}
	}
	if got := (&Record{}).BootOf("k"); got != "k" {
		t.Errorf("a boot of k that no record knows is %q", got)
	}
}

// Reasons name what they are about, also where no configuration had made it, and say what can be done.
func TestReasonsNameDeploymentsWithoutAConfiguration(t *testing.T) {
	first, a := Revision{Deployment: "os/first.0"}, Revision{Config: "a", Deployment: "os/a.0"}
	preparing := switching(PhasePrepare, func(p *Pending) { p.Deployment = "" })
	for _, row := range []struct {
		record       *Record
		booted, dflt string
		want         string
	}{
		{&Record{Committed: &a, Previous: &first}, "os/first.0", "", "back from the deployment of a to os/first.0, which has no"},
		{&Record{Committed: &first, Previous: &a}, "os/a.0", "", "back from os/first.0, which has no configuration to the"},
		{&Record{Committed: &a}, "os/x.0", "", "changed the OS: boot that again, or apply a configuration to go on from"},
		{preparing, "os/x.0", "", "neither the committed A nor the pending one of b; something else changed"},
		{switching(PhaseBoot, nil), "A", "os/x.0", "dropped before it had booted: os/x.0 boots next, which a person"},
	} {
		if d := decide(row.record, situation{Booted: row.booted, Default: row.dflt, BootID: thisBoot}); !strings.Contains(d.Why, row.want) {
			t.Errorf("%q is not in %q", row.want, d.Why)
		}
	}
}
