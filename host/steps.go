// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/noderefit/noderefit/agent"
	"github.com/noderefit/noderefit/contents"
	"github.com/noderefit/noderefit/sysext"
	"github.com/noderefit/noderefit/transaction"
)

// step is a row of the table of an update's work on the host.
type step struct {
	name string
	// does is the work of the step, and undo the work that takes it back when a later step fails; "": there is nothing to
	// take back.
	does, undo string
	// stages means that the verb stage does the step too. only means that apply leaves the step out.
	stages, only bool
	// roads are the roads that have the step; empty: all.
	roads []transaction.Road
	// when is the condition of the step in words, and applies is the condition itself; nil: always.
	when    string
	applies func(*Host, *attempt) bool
	do      func(*Host, context.Context, *attempt) error
	// fails is what the record shows after the step has failed in an apply.
	fails failing
	// points are the fault points in the step, as listed in docs/architecture.md.
	points []string
}

// failing is what a failed step leaves in the record.
type failing int

const (
	failsSilently failing = iota // nothing: the host is unchanged
	failsBefore                  // Unreconcilable or Degraded; nothing after drift or a refusal
	failsAfter                   // the same, where the transaction itself has not recorded more
)

// The roads with a boot, those of them with a deployment, and those without a boot.
var (
	booting   = []transaction.Road{transaction.RoadSwitch, transaction.RoadStaged, transaction.RoadInPlace}
	deploying = []transaction.Road{transaction.RoadSwitch, transaction.RoadStaged}
	running   = []transaction.Road{transaction.RoadLive, transaction.RoadTree}
)

// steps are the steps of the verbs apply and stage, in order. Until the step "commit" the host is wholly on its old
// configuration. Everything slow comes before "stage", and so does every refusal that is possible before the first
// write.
var steps = []step{
	{name: "recover", do: (*Host).recoverUnfinished,
		does:   "finish unfinished work; withdraw a commit that has not booted when another configuration is asked for",
		points: []string{"withdrawn", "discard"}},
	{name: "refuse another update", do: (*Host).refuseAnother, stages: true, only: true,
		does: "refuse to compose while another update may need both deployments"},
	{name: "refuse content", do: (*Host).refuse, stages: true,
		does: "refuse content that failed its verdict on this host, or that lacks a signature which the host demands"},
	{name: "contents", do: (*Host).fetchContents, stages: true, fails: failsBefore, undo: "kept for the next try",
		when:    "contents are by reference, and not on the host",
		applies: func(_ *Host, a *attempt) bool { return len(contents.Lacking(a.cfg)) > 0 },
		does:    "fetch and verify contents; refuse first what cannot be carried out"},
	{name: "read", do: (*Host).read, stages: true, fails: failsBefore,
		does: "read the host's configuration, deployment and drift"},
	{name: "compile", do: (*Host).compileWants, stages: true, fails: failsBefore,
		does: "turn the configuration into paths on this host"},
	{name: "plan", do: (*Host).makePlan, stages: true, fails: failsBefore,
		does: "find the changes, and the actions that they need"},
	{name: "refuse unreachable", do: (*Host).refuseUnreachable, stages: true, fails: failsBefore,
		does: "refuse a plan that cannot be carried out on this host"},
	{name: "stay", do: (*Host).stayOn, stages: true, when: "nothing changes", applies: nothingChanges,
		does: "ask for the verdict, if the configuration has none yet; then the update is over"},
	{name: "other managers", do: (*Host).refuseManagers, stages: true, fails: failsBefore,
		does: "refuse a host that another program updates or reboots"},
	{name: "choose the road", do: (*Host).chooseRoad, stages: true, fails: failsBefore,
		does: "switch, staged, live, in place or tree; refuse paths that the road cannot write"},
	{name: "inhibitors", do: (*Host).refuseInhibited, stages: true, roads: booting, fails: failsBefore,
		when:    "the agent starts the reboot",
		applies: func(h *Host, a *attempt) bool { return !a.options.NoReboot && h.services != nil },
		does:    "refuse while an inhibitor blocks reboots"},
	{name: "return", do: (*Host).goTo, stages: true, roads: deploying, fails: failsBefore,
		when: "no deployment can be made, and the configuration has a deployment", applies: returns,
		does: "make that deployment the default, and boot it; recovery after the boot does the rest"},
	{name: "compose", do: (*Host).prepareOS, stages: true, roads: deploying, fails: failsBefore,
		when: "the OS changes", applies: composes, undo: "kept for the next try",
		does: "bring the OS to the disk, under the lock of staging"},
	{name: "kernel arguments", do: (*Host).chooseArguments, stages: true, roads: booting, fails: failsBefore,
		does: "decide the arguments of the new deployment, or the boot loader's files, and which arguments are ours"},
	{name: "judge", do: (*Host).judgeOS, stages: true, roads: deploying, fails: failsBefore,
		when: "the OS changes", applies: composes,
		does: "refuse an OS that would not boot with these arguments, or that leaves no way back"},
	{name: "system extensions", do: (*Host).judgeExtensions, stages: true, fails: failsBefore,
		when: "there are any", applies: func(_ *Host, a *attempt) bool { return len(sysext.Of(a.cfg)) > 0 },
		does: "refuse extensions that the OS which is to run would not merge"},
	{name: "space", do: (*Host).findSpace, stages: true, roads: deploying, fails: failsBefore,
		does: "refuse a deployment without enough space, and paths that do not survive the boot"},
	{name: "check", do: (*Host).check, stages: true, only: true,
		does: "try what apply would write; the verb stage ends here"},
	{name: "hooks", do: (*Host).askHooks, when: "a person asks for an update that disrupts", applies: asksHooks,
		does: "run the hooks that run before a drain"},
	{name: "keep hooks", do: (*Host).keepHooksOf, undo: "removed with the verdict",
		when: "the update reboots", applies: func(_ *Host, a *attempt) bool { return a.update.reboot },
		does: "keep the hooks that run after the boot"},
	{name: "own units", do: (*Host).installOwn, fails: failsAfter,
		when: "the system runs", applies: func(h *Host, _ *attempt) bool { return h.services != nil },
		does: "install the program, and the units that recover and prove"},
	{name: "baseline", do: (*Host).takeBaseline, fails: failsAfter,
		does: "record failed units, and the state of the services that the update touches"},
	{name: "stage", do: (*Host).stageFiles, fails: failsAfter, undo: "abort: the journal is dropped",
		does:   "write the journal and each new file beside its path",
		points: []string{"recorded", "begin", "stage PATH", "left out", "staged"}},
	{name: "materialise", do: (*Host).materialise, roads: booting, fails: failsAfter,
		undo:   "abort: the deployment is discarded",
		does:   "make the deployment, with the configuration in its /etc, and check that the deployment can boot",
		points: []string{"materialise", "deployed", "noted", "etc PATH", "etc written", "materialised"}},
	{name: "commit", do: (*Host).commit, fails: failsAfter, undo: "withdraw, go back, or undo the journal",
		does: "decide, by one rename: make the new deployment the default, or write the decision to the record, and then " +
			"the boot loader's files",
		points: []string{"prepared", "pending", "counted", "fallback", "loader PATH", "committed"}},
	{name: "take effect", do: (*Host).takeEffect, roads: running, fails: failsAfter,
		undo:   "undo the journal, and act again",
		does:   "rename the files, reload and restart, prove, settle",
		points: []string{"apply PATH", "applied", "daemon-reload", "act SERVICE", "settle", "settled"}},
	{name: "reboot", do: (*Host).rebootInto, fails: failsAfter, undo: "withdraw, while it has not booted",
		when:    "the update boots",
		applies: func(h *Host, a *attempt) bool { return a.boots() || a.update.reboot && h.live },
		does:    "boot the committed configuration, unless the node has taken pods meanwhile",
		points:  []string{"left to people", "reboot recorded", "kernel loaded"}},
	{name: "clear the force file", do: (*Host).clearForce,
		does: "remove the file that asked for the update despite drift"},
	{name: "release the OS", do: (*Host).releaseOS,
		when: "no deployment was made of the OS", applies: func(_ *Host, a *attempt) bool { return !a.update.deploys },
		does: "remove the composed OS, which no deployment needs"},
}

// proveStep is the name of the step that an apply, too, takes for an update that waits for its verdict.
const proveStep = "prove"

// bootSteps are the steps of the agent's units in the boot after a commit.
var bootSteps = []step{
	{name: "recover", do: (*Host).recoverBooted,
		does: "find out which deployment has booted; write the files, on the staged road, in place, into a transient /etc",
		undo: "go back",
		points: []string{"first boot", "clock", "etc begun", "etc PATH", "etc written", "etc staged", "etc recorded",
			"reread", "loader PATH", "again", "apply PATH", "applied", "daemon-reload", "act SERVICE"}},
	{name: "own units", do: (*Host).ownUnits, when: "an update is under way",
		applies: func(_ *Host, a *attempt) bool { return a.record.Pending != nil },
		does:    "restore the units that the verdict needs"},
	{name: proveStep, do: (*Host).askVerdict, when: "an update waits for its verdict", applies: awaitsVerdict,
		does: "run all checks until all pass or the deadline is over", points: []string{"prove"}},
	{name: "settle", do: (*Host).settle, when: "the verdict is yes",
		applies: func(_ *Host, a *attempt) bool { return a.judged && a.verdict == nil },
		does:    "make the configuration the committed one, and remove what only the old one needed",
		points:  []string{"settle", "uncounted", "settled"}},
	{name: "go back", do: (*Host).goBack, when: "the verdict is no, or none in time",
		applies: func(_ *Host, a *attempt) bool { return a.judged && a.verdict != nil },
		does:    "make the old deployment the default, undo the journal, quarantine the content, and reboot",
		points: []string{"give up", "given up", "return", "returning", "recounted", "default", "moved",
			"default is the old one", "undo PATH", "undone", "loader PATH", "taken back", "unhealthy",
			"dropped", "returned", "rolled back", "discard"}},
}

// carryOut takes the steps of a table, in their order, until one fails or the attempt is over.
func (h *Host) carryOut(ctx context.Context, table []step, a *attempt) error {
	defer a.end()
	for _, s := range table {
		if a.over {
			return nil
		}
		if !s.is(h, a) {
			continue
		}
		if err := s.do(h, ctx, a); err != nil {
			if a.verb == agent.ApplyVerb.Name {
				h.note(s.fails, a.record, err)
			}
			return err
		}
	}
	return nil
}

// is reports whether a step belongs to an attempt.
func (s *step) is(h *Host, a *attempt) bool {
	switch {
	case a.verb == agent.StageVerb.Name && !s.stages, a.verb == agent.ApplyVerb.Name && s.only:
		return false
	case len(s.roads) > 0 && !slices.Contains(s.roads, a.update.road):
		return false
	}
	return s.applies == nil || s.applies(h, a)
}

// note records that a step has failed.
func (h *Host) note(fails failing, r *transaction.Record, err error) {
	unreachable := errors.As(err, new(*UnreachableError))
	switch fails {
	case failsBefore:
		switch {
		case unreachable:
			h.engine().Fail(r, transaction.Unreconcilable, err)
		case !errors.As(err, new(*DriftError)) && !errors.As(err, new(*Refused)):
			h.engine().Fail(r, transaction.Degraded, err)
		}
	case failsAfter:
		switch {
		case r.Pending != nil || r.State == transaction.RolledBack || errors.Is(err, transaction.ErrNotHeld):
		case unreachable:
			h.engine().Fail(r, transaction.Unreconcilable, err)
		default:
			h.engine().Fail(r, transaction.Degraded, err)
		}
	}
}

// WriteSteps prints the steps of an update on the host: before its boot, and in the boot.
func WriteSteps(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, part := range stepTables {
		if part.title != stepTables[0].title {
			fmt.Fprintln(tw, "\t\t\t\t")
		}
		fmt.Fprintf(tw, "%s\tDOES\tWHEN\tROADS\tUNDONE BY\n", strings.ToUpper(part.title))
		for _, s := range part.table {
			fmt.Fprintln(tw, strings.Join(s.cells(), "\t"))
		}
	}
	return tw.Flush()
}

// stepTables are the two tables with their titles.
var stepTables = []struct {
	title string
	table []step
}{{"step", steps}, {"in the boot", bootSteps}}

// cells returns the columns of a printed row.
func (s *step) cells() []string {
	var roads []string
	for _, r := range s.roads {
		roads = append(roads, string(r))
	}
	when := s.when
	if s.only {
		when = strings.TrimPrefix(when+", in stage alone", ", ")
	}
	return []string{s.name, s.does, when, strings.Join(roads, ", "), s.undo}
}
