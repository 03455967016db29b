// SPDX-License-Identifier: Apache-2.0

package transaction

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Road is how a host gets from one configuration to the next.
type Road string

const (
	// RoadSwitch: a deployment made by hand carries OS, arguments and /etc; the boot loader's default is the commit.
	RoadSwitch Road = "switch"
	// RoadStaged: rpm-ostree's staged deployment carries OS and arguments, and ostree makes it boot at an orderly
	// shutdown; the files are applied on the first boot. A change of files alone has no deployment: it waits for the next
	// boot.
	RoadStaged Road = "staged"
	// RoadLive: the running system changes, because nothing in the change needs a boot; the boot record is the commit.
	RoadLive Road = "live"
	// RoadTree: no ostree; the journal carries everything and the boot record is the commit.
	RoadTree Road = "tree"
)

// situation is what recovery decides from, besides the boot record.
type situation struct {
	Booted  string // deployment, "" on a host without ostree
	Default string // deployment that boots next
	BootID  string // see BootID
	Uptime  time.Duration
	// Staged is the deployment that ostree makes bootable at the next orderly shutdown, "" where none is or it is locked.
	Staged string
	// Bootable are the deployments that have a boot entry.
	Bootable []string
	// Unfinished says why ostree could not make bootable what was staged at the last shutdown; only on the staged road.
	Unfinished string
	// GaveUp is after how many boots the boot loader has left the default for the deployment before it, 0 if it has not.
	GaveUp int
}

// BootID names a boot: by the kernel's id, and by how often the userspace was started again since (a soft reboot).
func BootID(kernel string, softReboots uint32) string {
	if softReboots == 0 {
		return kernel
	}
	return fmt.Sprintf("%s+%d", kernel, softReboots)
}

// BootOf is the last boot of a kernel that a pending transaction knows.
func (r *Record) BootOf(kernel string) string {
	if r.Pending != nil && sameKernel(r.Pending.BootID, kernel) {
		return r.Pending.BootID
	}
	return kernel
}

// sameKernel reports whether two BootIDs are of one run of the kernel: the boot loader was not asked in between.
func sameKernel(a, b string) bool {
	a, _, _ = strings.Cut(a, "+")
	b, _, _ = strings.Cut(b, "+")
	return a == b
}

// Todo is what recovery does.
type Todo string

// What recovery can do.
const (
	Nothing     Todo = "nothing"
	Abort       Todo = "abort"        // drop what was being prepared
	RollForward Todo = "roll forward" // finish a change that was decided and needs no boot
	UndoHere    Todo = "undo"         // finish taking back such a change
	AwaitBoot   Todo = "await boot"   // decided; this is still the boot before
	BootFully   Todo = "boot fully"   // decided, and a soft reboot came up on the one before: boot with a new kernel
	FirstBoot   Todo = "first boot"   // of the pending deployment: roll its journal forward, start the clock
	AwaitProof  Todo = "await proof"  // the verdict is at work
	GoBack      Todo = "go back"      // the pending deployment is bad: boot the one before
	Returned    Todo = "returned"     // we are back on the one before: undo the journal, drop pending
	WentBack    Todo = "went back"    // a person booted the deployment before the committed one
	Foreign     Todo = "foreign"      // a deployment that we know nothing of: touch nothing
)

// Decision is what to do, and why in words for people.
type Decision struct {
	Do  Todo
	Why string
	// Quarantine means that the pending revision is to be refused from now on.
	Quarantine bool
	// Failed means that what was decided could not be carried out, and may not be the next time either.
	Failed bool
}

// decide is recovery's decision table (docs/architecture.md): a pure function of the boot record and the situation.
func decide(r *Record, s situation) Decision {
	p := r.Pending
	if p == nil {
		return decideSettled(r, s)
	}
	if s.Booted != p.From && (s.Booted != p.Deployment || p.Deployment == "") {
		return Decision{Do: Foreign, Why: fmt.Sprintf(
			"booted deployment %s is neither the committed %s nor the pending %s; %s",
			s.Booted, p.From, cmp.Or(p.Deployment, "one of "+p.Config), elsewhere)}
	}
	onNew := !p.deploys() || s.Booted == p.Deployment
	switch p.Phase {
	case PhasePrepare:
		return Decision{Do: Abort, Why: p.cutEarly()}
	case PhaseApply:
		return Decision{Do: RollForward, Why: fmt.Sprintf("update to %s was interrupted after it was decided", p.Config)}
	case PhaseUndo:
		switch {
		case p.Road != RoadSwitch && p.Road != RoadStaged:
			return Decision{Do: UndoHere, Why: p.Reason, Quarantine: p.Quarantine}
		case onNew && (p.deploys() || s.BootID == p.BootID):
			return Decision{Do: GoBack, Why: p.Reason, Quarantine: p.Quarantine}
		}
		return Decision{Do: Returned, Why: p.Reason, Quarantine: p.Quarantine}
	case PhaseBoot:
		switch {
		case !p.deploys() && sameKernel(s.BootID, p.BootID):
			return Decision{Do: AwaitBoot, Why: fmt.Sprintf("%s is committed and waits for the reboot", p.Config)}
		case onNew:
			return Decision{Do: FirstBoot, Why: fmt.Sprintf("first boot of %s", p.Config)}
		case p.Road == RoadStaged:
			return decideStaged(p, s)
		case s.Default != p.Deployment && s.Default != p.From && s.Default != "":
			return Decision{Do: Abort, Why: fmt.Sprintf("update to %s was dropped before it had booted: %s boots next, "+
				"which a person or another program has chosen", p.Config, s.Default)}
		case s.Default != p.Deployment:
			return Decision{Do: Abort, Why: p.cutEarly()}
		case sameKernel(s.BootID, p.BootID) && s.BootID != p.BootID && p.SoftReboot == SoftStarted:
			return Decision{Do: BootFully,
				Why: fmt.Sprintf("the soft reboot into %s came up on the deployment before", p.Config)}
		case sameKernel(s.BootID, p.BootID):
			return Decision{Do: AwaitBoot, Why: fmt.Sprintf("%s is committed and waits for the reboot", p.Config)}
		}
		return Decision{Do: Returned, Quarantine: true, Why: p.unproved(s)}
	case PhaseProve:
		switch {
		case !onNew:
			return Decision{Do: Returned, Quarantine: true, Why: p.unproved(s)}
		case s.BootID != p.BootID && p.Attempts >= p.MaxAttempts:
			return Decision{Do: GoBack, Quarantine: true,
				Why: fmt.Sprintf("%s was booted %d times and never proved healthy", p.Config, p.Attempts)}
		case s.BootID != p.BootID:
			return Decision{Do: FirstBoot,
				Why: fmt.Sprintf("boot %d of %s, which is not proved yet", p.Attempts+1, p.Config)}
		case s.Uptime > p.Deadline:
			return Decision{Do: GoBack, Quarantine: true,
				Why: fmt.Sprintf("%s did not prove healthy within %s", p.Config, p.Timeout)}
		}
		return Decision{Do: AwaitProof, Why: fmt.Sprintf("%s is being proved", p.Config)}
	}
	return Decision{Do: Foreign, Why: fmt.Sprintf("boot record is in a phase %q that this binary does not know", p.Phase)}
}

// decideStaged decides about a staged deployment while the one before runs. At the shutdown it either has become
// bootable whole, or is gone.
func decideStaged(p *Pending, s situation) Decision {
	switch {
	case slices.Contains(s.Bootable, p.Deployment) && sameKernel(s.BootID, p.BootID): // by a person's soft reboot
		return Decision{Do: AwaitBoot, Why: fmt.Sprintf("%s is committed and waits for the reboot", p.Config)}
	case slices.Contains(s.Bootable, p.Deployment):
		return Decision{Do: Returned, Quarantine: true, Why: p.unproved(s)}
	case s.BootID == p.BootID && s.Staged == p.Deployment:
		return Decision{Do: AwaitBoot, Why: fmt.Sprintf("%s is committed and waits for the reboot", p.Config)}
	case s.BootID == p.BootID:
		return Decision{Do: Abort, Why: p.cutEarly()}
	case s.Unfinished != "":
		return Decision{Do: Abort, Failed: true, Why: fmt.Sprintf(
			"at the shutdown ostree could not make the deployment of %s bootable: %s", p.Config, s.Unfinished)}
	}
	return Decision{Do: Abort, Why: fmt.Sprintf("update to %s was lost: the machine went down before ostree had made its "+
		"deployment bootable; nothing changed", p.Config)}
}

// deploys reports whether the update has a deployment of its own.
func (p *Pending) deploys() bool {
	return p.Road == RoadSwitch || p.Road == RoadStaged && p.Deployment != p.From
}

func (p *Pending) cutEarly() string {
	return fmt.Sprintf("update to %s was interrupted before it was decided; nothing changed", p.Config)
}

func (p *Pending) unproved(s situation) string {
	switch {
	case s.GaveUp == 0:
		return fmt.Sprintf("the machine booted the deployment before %s again before it was proved: "+
			"the boot loader fell back or a person chose it", p.Config)
	case p.Attempts == 0:
		return fmt.Sprintf("the boot loader gave %s up after %d boots, of which none came up", p.Config, s.GaveUp)
	}
	return fmt.Sprintf("the boot loader gave %s up after %d boots, of which %d came up and none proved healthy",
		p.Config, s.GaveUp, p.Attempts)
}

func decideSettled(r *Record, s situation) Decision {
	c := r.Committed
	switch {
	case c == nil || c.Deployment == s.Booted || c.Deployment == "": // the last: the journal carried all of it
		return Decision{Do: Nothing}
	case r.Previous != nil && r.Previous.Deployment == s.Booted && s.Booted != "":
		return Decision{Do: WentBack, Why: fmt.Sprintf(
			"a person or the boot loader went back from %s to %s", c.deployed(), r.Previous.deployed())}
	}
	return Decision{Do: Foreign, Why: fmt.Sprintf(
		"booted deployment %s is not the one of the committed configuration (%s); %s", s.Booted, c.Deployment, elsewhere)}
}

// elsewhere is what a person can do about a deployment that is not ours.
const elsewhere = "something else changed the OS: boot that again, or apply a configuration to go on from this one"

// deployed names the deployment of a revision for people.
func (r *Revision) deployed() string {
	if r.Config == "" {
		return r.Deployment + ", which has no configuration"
	}
	return "the deployment of " + r.Config
}
