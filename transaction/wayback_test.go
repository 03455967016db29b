// SPDX-License-Identifier: Apache-2.0

package transaction

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/noderefit/noderefit/plan"
	"github.com/noderefit/noderefit/systemd"
)

func TestAnUpdateThatNothingMovesOnIsNamedWithItsCause(t *testing.T) {
	loaded := func(name, active string) systemd.Facts {
		return systemd.Facts{Name: name, Load: "loaded", Active: active, Result: "exit-code"}
	}
	masked := func(name string) systemd.Facts { return systemd.Facts{Name: name, Load: "masked", Active: "inactive"} }
	queued := loaded(plan.RecoverUnit, "inactive")
	queued.Queued = true
	skipped := loaded(plan.RecoverUnit, "inactive")
	skipped.Skipped = true
	p := func(phase Phase) *Pending {
		return &Pending{Revision: Revision{Config: "b", Deployment: "B"}, Phase: phase, Road: RoadSwitch, From: "A",
			BootID: "one", Deadline: time.Minute}
	}
	for name, c := range map[string]struct {
		pending *Pending
		sight   Sight
		says    []string // none: it goes on
	}{
		"nothing is pending": {nil, Sight{BootID: "two"}, nil},
		"the reboot is to come": {p(PhaseBoot), Sight{BootID: "one", Booted: "A", Recover: masked(plan.RecoverUnit),
			Prove: masked(plan.ProveUnit)}, nil},
		"booted, recovery waits":   {p(PhaseBoot), Sight{BootID: "two", Booted: "B", Recover: queued}, nil},
		"booted, recovery runs":    {p(PhaseBoot), Sight{BootID: "two", Booted: "B", Recover: loaded("r", "activating")}, nil},
		"booted, the verdict runs": {p(PhaseBoot), Sight{BootID: "two", Booted: "B", Prove: loaded("p", "active")}, nil},
		"booted, recovery masked": {p(PhaseBoot), Sight{BootID: "two", Booted: "B", Recover: masked(plan.RecoverUnit),
			Prove: masked(plan.ProveUnit)}, []string{"has booted b", plan.RecoverUnit + " is masked", plan.ProveUnit + " is masked"}},
		"booted, recovery failed": {p(PhaseBoot), Sight{BootID: "two", Booted: "B", Maintenance: "emergency.target",
			Recover: loaded(plan.RecoverUnit, "failed"), Prove: loaded(plan.ProveUnit, "failed")},
			[]string{plan.RecoverUnit + " failed (exit-code)", "emergency.target"}},
		"booted, recovery skipped": {p(PhaseBoot), Sight{BootID: "two", Booted: "B", Recover: skipped,
			Prove: loaded(plan.ProveUnit, "failed")}, []string{"a condition"}},
		"back, and not recovered": {p(PhaseBoot), Sight{BootID: "two", Booted: "A", Recover: masked(plan.RecoverUnit),
			Prove: masked(plan.ProveUnit)}, []string{"the configuration before b"}},
		"a soft reboot came up on the one before": {p(PhaseBoot), Sight{BootID: "one+1", Booted: "A",
			Recover: masked(plan.RecoverUnit), Prove: masked(plan.ProveUnit)}, nil},
		"proving in time": {p(PhaseProve), Sight{BootID: "one", Booted: "B", Uptime: time.Minute,
			Prove: masked(plan.ProveUnit)}, nil},
		"the deadline passed": {p(PhaseProve), Sight{BootID: "one", Booted: "B", Uptime: 3 * time.Minute,
			Prove: masked(plan.ProveUnit)}, []string{"deadline of b passed 2m0s ago", plan.ProveUnit + " is masked"}},
		"the deadline passed, and it still asks": {p(PhaseProve), Sight{BootID: "one", Booted: "B", Uptime: 3 * time.Minute,
			Prove: loaded(plan.ProveUnit, "active")}, []string{plan.ProveUnit + " is active"}},
		"another boot of it": {p(PhaseProve), Sight{BootID: "two", Booted: "B", Recover: masked(plan.RecoverUnit),
			Prove: masked(plan.ProveUnit)}, []string{"has booted b"}},
		"going back": {p(PhaseUndo), Sight{BootID: "two", Booted: "A"}, nil},
	} {
		got := Stuck(c.pending, c.sight)
		if (got == "") != (len(c.says) == 0) {
			t.Errorf("%s: %q", name, got)
		}
		for _, s := range c.says {
			if !strings.Contains(got, s) {
				t.Errorf("%s: %q does not say %q", name, got, s)
			}
		}
		if len(c.says) > 0 && !strings.Contains(got, "machine-config-daemon rollback") {
			t.Errorf("%s: %q does not say what to do", name, got)
		}
	}
}

func TestWhatTheAgentNeedsOfAHostIsJudgedByName(t *testing.T) {
	whole := func() Means {
		argv := []string{"/usr/bin/env", "agent", "prove"}
		return Means{Command: map[string][]string{plan.ProveUnit: argv}, Written: map[string]error{"/etc": nil},
			Units: []systemd.Facts{{Name: plan.ProveUnit, Load: "loaded", File: "/etc/systemd/system/" + plan.ProveUnit, Argv: argv},
				{Name: "reboot.target", Load: "loaded", File: "/usr/lib/systemd/system/reboot.target"}}}
	}
	m := whole()
	if err := m.Judge(); err != nil {
		t.Error(err)
	}
	for says, spoil := range map[string]func(*Means){
		"reboot.target is masked":                func(m *Means) { m.Units[1].Load = "masked" },
		plan.ProveUnit + " is not-found":         func(m *Means) { m.Units[0].Load = "not-found" },
		"is the unit of /run/systemd/system/x":   func(m *Means) { m.Units[0].File = "/run/systemd/system/x" },
		`runs "/bin/true"`:                       func(m *Means) { m.Units[0].Argv = []string{"/bin/true"} },
		"runs other commands first":              func(m *Means) { m.Units[0].Before = 1 },
		"runs as nobody":                         func(m *Means) { m.Units[0].User = "nobody" },
		"runs in /var/empty":                     func(m *Means) { m.Units[0].Root = "/var/empty" },
		"/boot is covered":                       func(m *Means) { m.Covered = []string{"/boot"} },
		"/etc/x is not as the agent has left it": func(m *Means) { m.Differing = []string{"/etc/x"} },
		"reloading systemd: generators hang":     func(m *Means) { m.Reload = errors.New("reloading systemd: generators hang") },
		"writing to /etc: read-only file system": func(m *Means) { m.Written["/etc"] = errors.New("read-only file system") },
	} {
		m := whole()
		spoil(&m)
		if err := m.Judge(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v does not say %q", err, says)
		}
	}
}
