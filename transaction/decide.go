// SPDX-License-Identifier: Apache-2.0

package transaction

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Road is the way from one configuration of a host to the next.
type Road string

const (
	// RoadSwitch: a deployment made by hand carries OS, arguments and /etc; the commit is a change of the boot loader's
	// default.
	RoadSwitch Road = "switch"
	// RoadStaged: rpm-ostree's staged deployment carries OS and arguments, and ostree makes it bootable at an orderly
	// shutdown. The files are applied on the first boot. A change of files alone has no deployment and waits for the next
	// boot.
	RoadStaged Road = "staged"
	// RoadLive: the running system changes, because nothing in the change needs a boot. The commit is a write of the boot
	// record.
	RoadLive Road = "live"
	// RoadInPlace: the host has no ostree, and the change needs a boot. The journal carries everything, the commit is a
	// write of the boot record, and the files are applied in the next boot.
	RoadInPlace Road = "in-place"
	// RoadTree: the host has no ostree, and nothing in the change needs a boot, or the host does not run. The journal
	// carries everything, and the commit is a write of the boot record.
	RoadTree Road = "tree"
	// RoadReboot: nothing changes but the boot, which leads to the same deployment or to one that others have made.
	RoadReboot Road = "reboot"
)

// Deploys reports whether the road is for hosts with ostree.
func (r Road) Deploys() bool { return r != RoadInPlace && r != RoadTree }

// Promises returns what an update with a reboot keeps on that road, in words for people. arguments means that the host
// can be given kernel arguments.
func Promises(road Road, arguments bool) string {
	const back = " change in one boot, whatever is cut, and are proved in it; all of it comes back after a no"
	switch {
	case road == RoadSwitch:
		return "OS, kernel arguments and files" + back
	case road == RoadStaged:
		return "OS, kernel arguments and files" + back + "; a cut before the shutdown is over loses the update"
	case road == RoadInPlace && arguments:
		return "kernel arguments and files" + back + "; a host that does not get as far as recovery needs a person"
	case road == RoadInPlace:
		return "files" + back + "; a host that does not get as far as recovery needs a person; no kernel arguments"
	case road == RoadTree:
		return "files change at once, wholly or not at all, whatever is cut; nothing is proved"
	}
	return "changes without a reboot alone"
}

// situation is the input of recovery's decision, besides the boot record.
type situation struct {
	Booted  string // deployment, "" on a host without ostree
	Default string // deployment that boots next
	BootID  string // see BootID
	Uptime  time.Duration
	// Staged is the deployment that ostree makes bootable at the next orderly shutdown. It is "" where no deployment is
	// staged, or where the staged one is locked.
	Staged string
	// Bootable are the deployments that have a boot entry.
	Bootable []string
	// Unfinished is the reason why ostree could not make the staged deployment bootable at the last shutdown. Only the
	// staged road has it.
	Unfinished string
	// GaveUp is the number of boots after which the boot loader left the default for the deployment before it; 0: it did
	// not.
	GaveUp int
}

// BootID names a boot, by the kernel's id and the number of soft reboots since (restarts of the userspace).
func BootID(kernel string, softReboots uint32) string {
	if softReboots == 0 {
		return kernel
	}
	return fmt.Sprintf("%s+%d", kernel, softReboots)
}

// BootOf returns the last boot of a kernel that the pending transaction knows.
func (r *Record) BootOf(kernel string) string {
	if r.Pending != nil && sameKernel(r.Pending.BootID, kernel) {
		return r.Pending.BootID
	}
	return kernel
}

// sameKernel reports whether two BootIDs belong to one run of the kernel: the boot loader did not run in between.
func sameKernel(a, b string) bool {
	a, _, _ = strings.Cut(a, "+")
	b, _, _ = strings.Cut(b, "+")
	return a == b
}

// Todo is an action of recovery.
type Todo string

// The actions of recovery.
const (
	Nothing     Todo = "nothing"
	Abort       Todo = "abort"        // drop what was being prepared
	RollForward Todo = "roll forward" // finish a decided change that needs no boot
	UndoHere    Todo = "undo"         // finish undoing such a change
	AwaitBoot   Todo = "await boot"   // decided; the host still runs the boot before
	BootFully   Todo = "boot fully"   // decided, but a soft reboot came up on the deployment before: boot a new kernel
	FirstBoot   Todo = "first boot"   // the pending deployment booted: roll its journal forward, start the clock
	AwaitProof  Todo = "await proof"  // the verdict is being asked for
	GoBack      Todo = "go back"      // the pending deployment is bad: boot the deployment before
	Returned    Todo = "returned"     // the host is back on the deployment before: undo the journal, drop pending
	WentBack    Todo = "went back"    // a person booted the deployment before the committed one
	Foreign     Todo = "foreign"      // the deployment is unknown to the record: touch nothing
)

// Decision is an action of recovery, and the reason in words for people.
type Decision struct {
	Do  Todo
	Why string
	// Quarantine means that the pending revision is refused from now on.
	Quarantine bool
	// Failed means that the decided update could not be carried out, and may fail again the next time.
	Failed bool
}

// decide returns the row of recovery's decision table (docs/architecture.md) that applies: a pure function of the boot
// record and the situation.
func decide(r *Record, s situation) Decision {
	p := r.Pending
	if p == nil {
		return decideSettled(r, s)
	}
	if p.Road == RoadReboot {
		return decideReboot(p, s)
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
		return Decision{Do: RollForward, Why: fmt.Sprintf("update to %s was interrupted after its commit", p.Config)}
	case PhaseUndo:
		switch {
		case !p.deploys() && !p.filesBoot():
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

// decideStaged decides about a staged deployment while the deployment before runs. The shutdown has either made the
// staged deployment bootable as a whole, or lost it.
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
	return p.Road == RoadSwitch || (p.Road == RoadStaged || p.Road == RoadReboot) && p.Deployment != p.From
}

// filesBoot reports whether the boot of the same deployment, or of a host without deployments, applies the update's
// files.
func (p *Pending) filesBoot() bool {
	return p.Road == RoadInPlace || p.Road == RoadStaged && p.Deployment == p.From
}

func (p *Pending) cutEarly() string {
	return fmt.Sprintf("update to %s was interrupted before its commit; nothing changed", p.Config)
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
	case c == nil || c.Deployment == s.Booted || c.Deployment == "": // "": the journal carried the whole update
		return Decision{Do: Nothing}
	case r.Previous != nil && r.Previous.Deployment == s.Booted && s.Booted == r.Returning && s.Booted != "":
		return Decision{Do: WentBack, Why: fmt.Sprintf("an update went back from %s to %s, because no new deployment "+
			"could be made", c.deployed(), r.Previous.deployed())}
	case r.Previous != nil && r.Previous.Deployment == s.Booted && s.Booted != "":
		return Decision{Do: WentBack, Why: fmt.Sprintf(
			"a person or the boot loader went back from %s to %s", c.deployed(), r.Previous.deployed())}
	}
	return Decision{Do: Foreign, Why: fmt.Sprintf(
		"booted deployment %s is not the one of the committed configuration (%s); %s", s.Booted, c.Deployment, elsewhere)}
}

// elsewhere tells a person what to do about a deployment that the record does not know.
const elsewhere = "something else changed the OS: boot that again, or apply a configuration to go on from this one"

// deployed names the deployment of a revision for people.
func (r *Revision) deployed() string {
	if r.Config == "" {
		return r.Deployment + ", which has no configuration"
	}
	return "the deployment of " + r.Config
}
