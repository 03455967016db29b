// SPDX-License-Identifier: Apache-2.0

package transaction

import (
	"flag"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
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

func TestMain(m *testing.M) {
	flag.BoolFunc("update", "write the decisions of the code into the tables below testdata", func(string) error {
		return flag.Set("rewrite", "true")
	})
	m.Run()
}

func TestRecoveryDecidesFromRecordAndBootedDeployment(t *testing.T) {
	datadriven.RunTest(t, "testdata/recovery.txt", func(t *testing.T, row *datadriven.TestData) string {
		t.Helper()
		r, s := situationOf(t, row.CmdArgs)
		d := decide(r, s)
		said := string(d.Do)
		if d.Quarantine {
			said += ", quarantine"
		}
		if d.Failed {
			said += ", failed"
		}
		if d.Why != "" {
			said += "\n" + d.Why
		}
		return said + "\n"
	})
}

// situationOf reads the words of a row.
func situationOf(t *testing.T, words []datadriven.CmdArg) (*Record, situation) {
	t.Helper()
	const uptime = time.Hour
	s := situation{BootID: thisBoot, Uptime: uptime, Bootable: []string{"A"}}
	r, p := &Record{}, &Pending{}
	texts := map[string]*string{"booted": &s.Booted, "default": &s.Default, "staged": &s.Staged,
		"returning": &r.Returning, "unfinished": &s.Unfinished, "because": &p.Reason, "soft-reboot": (*string)(&p.SoftReboot)}
	for _, word := range words {
		value := strings.Join(word.Vals, ", ")
		if text := texts[word.Key]; text != nil {
			*text = value
			continue
		}
		var err error
		switch word.Key {
		case "committed":
			value = strings.TrimPrefix(value, "tree")
			r.Committed = &Revision{Config: strings.ToLower(value), Digest: "aa", Deployment: value}
		case "previous":
			r.Previous = &Revision{Config: strings.ToLower(value), Deployment: value}
		case "road":
			p.Road, r.Pending = Road(value), p
		case "phase":
			p.Phase = Phase(value)
		case "files-alone":
			p.Deployment = "A"
		case "attempts":
			p.Attempts, err = strconv.Atoi(value)
		case "left":
			p.Deadline, err = time.ParseDuration(value)
			p.Deadline += uptime
		case "reread":
			p.Reread = thisBoot
		case "quarantine":
			p.Quarantine = true
		case "boot":
			s.BootID = map[string]string{"next": nextBoot, "after-a-soft-reboot": softBoot}[value]
		case "bootable":
			s.Bootable = append(s.Bootable, value)
		default:
			t.Fatalf("nothing reads the word %s", word)
		}
		if err != nil || s.BootID == "" {
			t.Fatalf("%s: %v", word, err)
		}
	}
	if r.Pending != nil {
		r.Committed = &Revision{Config: "a", Digest: "aa", Deployment: "A"}
		complete(p)
	}
	return r, s
}

// complete adds what is the same in all rows, by the road of the update.
func complete(p *Pending) {
	p.Config, p.Digest, p.From, p.BootID, p.MaxAttempts, p.Timeout = "b", "bb", "A", thisBoot, 3, time.Minute
	switch {
	case p.Road == RoadTree, p.Road == RoadInPlace:
		p.From = ""
	case p.Road == RoadLive:
		p.Deployment = p.From
	case p.Phase != PhasePrepare && p.Deployment == "":
		p.Deployment = "B"
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

// Where an update leads, no person and no other program has chosen the deployment, also while the host goes back.
func TestWhereAnUpdateLeads(t *testing.T) {
	t.Parallel()
	pending := func(road Road, phase Phase) *Record {
		return &Record{Committed: &Revision{Deployment: "A"},
			Pending: &Pending{Revision: Revision{Deployment: "B"}, From: "A", Road: road, Phase: phase}}
	}
	for _, c := range []struct {
		what   string
		record *Record
		leads  string
	}{
		{"at rest", &Record{Committed: &Revision{Deployment: "A"}, Previous: &Revision{Deployment: "B"}}, ""},
		{"on a host without ostree", &Record{Pending: &Pending{Phase: PhaseUndo, Road: RoadInPlace}}, ""},
		{"returning", &Record{Committed: &Revision{Deployment: "B"}, Returning: "A"}, "A"},
		{"before the boot", pending(RoadSwitch, PhaseBoot), "B"},
		{"before the verdict", pending(RoadStaged, PhaseProve), "B"},
		{"on the way back", pending(RoadSwitch, PhaseUndo), "AB"}, // A is the default a moment after the record says so
		{"on the way back from another program's", pending(RoadReboot, PhaseUndo), "AB"},
	} {
		got := ""
		for _, d := range []string{"", "A", "B", "C"} {
			if c.record.LeadsTo(d) {
				got += d
				if d == "" {
					got += "none"
				}
			}
		}
		if got != c.leads {
			t.Errorf("%s: leads to %q, want %q", c.what, got, c.leads)
		}
	}
}
