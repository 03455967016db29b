// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/drain"
	"github.com/noderefit/noderefit/hands"
	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/kube"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/plan"
	"github.com/noderefit/noderefit/transaction"
)

// HeadOptions are the options of a head.
type HeadOptions struct {
	// Node is the name of the host's Node.
	Node string
	// Boot is the ID of the kernel's boot, which the kubelet reports too. Where the ID is not known, the clock decides to
	// which boot a report belongs.
	Boot string

	// Kube is the API server.
	Kube *kube.Client

	Hands   Hands
	Senses  Senses
	Drainer Drainer
	// Verifier, where present, compares the host with its configuration: from time to time, and when the Monitor, where
	// present, announces a change.
	Verifier Verifier
	Monitor  Monitor
	// Deliverer, where present, gets the cluster's ControllerConfig, which is watched then.
	Deliverer Deliverer
	// Asker, where present, is asked before the node is disrupted.
	Asker Asker
	// Rebooter, where present, is asked what wants a reboot of the host.
	Rebooter Rebooter
	// Pinner, where present, keeps the images of PinnedImageSets.
	Pinner Pinner
	// Verdict is how long the Hands let the host take to prove healthy after a boot; zero: the host's own default.
	Verdict time.Duration

	Log     *zap.Logger
	Metrics *Metrics
}

// The intervals of the loop. Every awaited change wakes the loop; the intervals are for missed changes.
const (
	restPace    = 10 * time.Minute // between two reads of a host at rest
	workPace    = 20 * time.Second // between two reads of a host on its way
	statusLimit = 90 * time.Second // for one read
	drainLong   = time.Hour        // after which a drain that waits deserves a warning
	drainAgain  = 4 * time.Hour    // between two of these warnings
	heldShown   = time.Minute      // after which the Node shows what an update waits for, and how often it may change
	drainQuiet  = 15 * time.Second // for which a drain that only waits for pods to end reports nothing
	verifyFirst = 5 * time.Second  // after the start
	verifyPace  = 30 * time.Minute
	unstagePace = time.Minute      // between two tries to remove the staged OS
	wordPace    = 15 * time.Second // between two reports on the Node to the verdict on the host
	wordFresh   = 20 * time.Second // how old the latest report may be when an apply begins
	restorePace = 30 * time.Second // between two tries to restore a configuration
	blindFor    = 2 * time.Minute  // how long a host may stay silent, as during its shutdown
	endLimit    = time.Second      // for operations to notice the end of the head
	turnLimit   = 5 * time.Minute  // for one turn, in which some requests may wait until a dead connection is noticed
)

// Head is the node's state machine. It reads the desired configuration from the Node, lets the hands apply that
// configuration, and reports the progress. Head keeps nothing that it could not find out again: the Node's annotations,
// the ledger in them and the host's record are its memory.
type Head struct {
	o       HeadOptions
	log     *zap.Logger
	metrics *Metrics
	cluster *cluster

	bell    chan struct{}
	ended   chan end        // of the work beside the loop; there is room for every end, so that no end waits
	running map[string]bool // the chores that run beside the loop

	// The host, as last read; read reports whether that was after the end of the last operation.
	host      *host.Status
	hostSince time.Time
	read      bool
	late      bool // the awaited answer was requested before an operation ended
	askAt     time.Time
	blind     *failure

	way      way
	job      *job
	verifyAt time.Time
	wantedAt time.Time // when everything that may want a reboot is asked again
	// compared is the configuration that was committed when the last comparison began. One that failed keeps its pace.
	compared  string
	drift     driftState
	delivery  deliveryState
	ahead     aheadState
	pins      pinsState
	restoreAt time.Time

	nodeWrites, objectWrites, restores writes
	object                             machineConfigNode
	told                               bool       // the readiness that the watch showed at the last report
	tellAt                             time.Time  // when the next report is due
	spoke                              time.Time  // when the host last got a report, or the API server gave none
	hold                               drain.Hold // on the node, when last read
	open                               bool       // the node has taken pods since its last drain
	opened                             bool       // the host has a report of that
	openAt                             time.Time  // when that report is due again
	drain                              *api.Drain // the latest drain, or the forecast of one; see waiting
	complainAt                         time.Time  // when the next warning about a waiting drain is due
	held                               heldText
	drainHold, lastHold                *api.DrainHold // the one in force; and the last one
	heldSaid                           bool           // the Node has shown the hold in force
	lateSaid                           time.Time      // the limit of a drain that was announced last
	stop                               *api.HookStop  // the hook that refused last, also under an earlier head
	unread                             string         // the last log line about annotations that can't be read
	phase                              Phase
	entered                            time.Time
}

// way is what is known about the way from the host's configuration to the desired one. It is forgotten when either
// configuration changes.
type way struct {
	from, to, lift string
	bootc          bool // another manager has the OS
	request        hands.Request
	plan           *plan.Plan
	staged         bool
	order          string // the ordered reboot
	asked          bool   // the hooks have agreed
	askedWith      string // the cluster's hooks when the hooks were last asked
	signatures     string // of the desired configuration when the last plan began
	drained        time.Time
	rebooting      time.Time
	unstageAt      time.Time // no other try to remove the staged OS before this time
	failure        *failure
	overwrites     bool     // an event has announced that the update overwrites drift
	warned         []string // the warnings of the plan that events have announced
}

// writes paces the tries to report to an API server that does not answer. Only the latest report is ever written.
type writes struct {
	tries int
	next  time.Time
	text  string // the last error, so that the log has each error once
}

// NewHead returns a head; Run runs it.
func NewHead(o HeadOptions) *Head {
	if o.Metrics == nil {
		o.Metrics = NewMetrics()
	}
	h := &Head{o: o, log: o.Log.With(zap.String("node", o.Node)), metrics: o.Metrics,
		bell: make(chan struct{}, 1), ended: make(chan end, len(chores)+1), running: map[string]bool{}}
	h.cluster = &cluster{name: o.Node, kube: o.Kube, log: h.log, wake: h.ring,
		watched: map[string]*configWatch{}}
	return h
}

func (h *Head) ring() {
	select {
	case h.bell <- struct{}{}:
	default:
	}
}

// Run runs until ctx ends. Operations on the host continue then.
func (h *Head) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := h.cluster.start(ctx); err != nil {
		return err
	}
	if h.o.Deliverer != nil {
		if err := h.cluster.watchControllerConfig(ctx); err != nil {
			return err
		}
	}
	h.verifyAt = time.Now().Add(jitter(verifyFirst))
	h.wantedAt = h.verifyAt
	var touched <-chan struct{}
	if h.o.Monitor != nil && h.o.Verifier != nil {
		touched = h.o.Monitor.Touched()
	}
	for {
		h.metrics.expect(turnLimit)
		pause := h.turn(ctx)
		h.metrics.expect(pause + turnLimit)
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			h.leave()
			return nil
		case <-h.bell:
		case <-h.o.Senses.Changed():
			h.askAt = time.Time{}
		case <-touched:
			h.touch(time.Now())
		case e := <-h.ended:
			h.take(e)
		case <-timer.C:
		}
		timer.Stop()
	}
}

// leave gives the operation the time to notice the end.
func (h *Head) leave() {
	if h.job == nil {
		return
	}
	h.job.cancel(nil)
	limit := time.After(endLimit)
	for {
		select {
		case e := <-h.ended:
			if e.of == string(h.job.phase) {
				return
			}
		case <-limit:
			return
		}
	}
}

// turn examines everything, does what is due, and returns the time until more is due, if nothing happens meanwhile.
func (h *Head) turn(ctx context.Context) time.Duration {
	if h.job != nil {
		h.hear(h.job)
	}
	var v *situation
	// Each step of the loop changes the facts of the next decision; a step that does not is the last.
	for range phases {
		node := h.cluster.current()
		v = h.situation(node, time.Now())
		p := decide(v)
		h.enter(v, p.name)
		h.follow(ctx, v)
		h.do(ctx, v, whileAny)
		if !h.clear(v, p) {
			break
		}
		again := h.say(ctx, node, v, p.name)
		h.do(ctx, v, whileFree)
		h.start(ctx, v, p)
		if !again {
			break
		}
	}
	h.tellObject(ctx)
	return h.pause(v, time.Now())
}

// situation collects everything that is known, and forgets what belongs to another way.
func (h *Head) situation(node *corev1.Node, now time.Time) *situation {
	v := &situation{now: now, verdict: cmp.Or(h.o.Verdict, api.DefaultVerdictTimeout)}
	if node != nil {
		v.exists, v.hold = true, drain.ReadHold(node)
		_, v.excluded = node.Labels[api.ExcludeLabel]
		v.ready, _ = nodeWord(node, h.o.Boot, now, transaction.Uptime())
		var err error
		if v.node, err = api.ReadNode(node); err != nil && err.Error() != h.unread {
			h.unread = err.Error()
			h.log.Warn("reading the node's annotations", zap.Error(err))
		}
		h.drift.recall(v.node.Drift)
		v.drift = h.drift.report
		h.delivery.recall(&v.node)
		v.delivery = h.delivery.report
	}
	if h.blind != nil && now.Sub(h.blind.since) > blindFor {
		v.failure = h.blind
		return v
	}
	if h.host == nil {
		return v
	}
	v.host, v.hostSince = h.host, h.hostSince
	h.ahead.see(v, h.read)
	h.pins.see(v, atRest(h.phase))
	if w := (way{from: h.host.Config.Committed, to: v.node.Desired, lift: v.node.Lift,
		bootc: v.node.Bootc}); v.exists && (w.to != h.way.to || w.from != h.way.from || w.bootc != h.way.bootc ||
		w.lift != h.way.lift && w.lift != "") {
		if h.way.to != "" && h.way.to != w.to {
			h.drain = nil
		}
		h.way = w
	}
	if id := v.ordered(); id != h.way.order {
		h.way.order, h.way.asked, h.way.drained, h.way.failure = id, false, time.Time{}, nil
	}
	if v.hold == drain.Lost || v.hold == drain.Free || v.hold == drain.Theirs && h.hold == drain.Ours {
		h.way.drained, h.open = time.Time{}, true
	}
	h.hold = v.hold
	if f := h.way.failure; f != nil && f.reason == reasonConfigMissing && h.cluster.config(h.way.to) == present {
		f.retry = now
	}
	if f := h.way.failure; f != nil && f.reason == reasonDrift && !h.strict(v) {
		f.retry = now
	}
	if f := h.way.failure; f != nil && f.kind == failHeld && f.reason != reasonDrainHeld &&
		h.cluster.hooksText(h.way.to) != h.way.askedWith {
		f.retry = now
	}
	if f := h.way.failure; f != nil && f.kind == failUnreconcilable &&
		h.cluster.signatures(h.way.to) != h.way.signatures {
		f.retry = now
	}
	h.followHold(v)
	if h.job != nil && h.job.phase == PhaseApply {
		if v.applying = h.job.config == v.node.Desired; !v.applying {
			v.other = h.job
		}
	}
	h.missReboot(v)
	since, says := h.holds()
	v.held = h.held.next(since, says, now)
	v.asked = h.way.asked || h.o.Asker == nil
	v.plan, v.staged, v.drained, v.rebooting, v.failure =
		h.way.plan, h.way.staged, h.way.drained, h.way.rebooting, h.way.failure
	v.followOrder()
	return v
}

// missReboot gives up a reboot that does not come: the host is still where it was when the reboot began.
func (h *Head) missReboot(v *situation) {
	began := h.way.rebooting
	if began.IsZero() || v.now.Sub(began) < host.RebootPatience || !v.inPhase(transaction.PhaseBoot) {
		return
	}
	h.metrics.rebootsFailed.Inc()
	h.way.rebooting, h.way.drained = time.Time{}, time.Time{}
	text := fmt.Sprintf("the reboot that was ordered at %s has not begun within %s: on the host, systemctl list-jobs and "+
		"systemd-inhibit show what delays the reboot", began.UTC().Format(time.RFC3339), host.RebootPatience)
	h.way.failure = fail(h.way.failure, PhaseApply, failDegraded, reasonRebooting, text, v.now)
	h.log.Warn("rebooting", zap.String("config", h.way.to), zap.String("error", text))
}

// follow chooses the watched configurations, takes over the ControllerConfig, and forgets the reports to a host that
// waits for none.
func (h *Head) follow(ctx context.Context, v *situation) {
	if !h.hears(v) {
		h.tellAt, h.spoke = time.Time{}, time.Time{}
	}
	if err := h.delivery.see(h.cluster.controllerConfig()); err != nil {
		h.log.Error("reading the ControllerConfig", zap.Error(err))
	}
	if v.host != nil && v.exists {
		h.cluster.watchConfigs(ctx, v.rendered(), v.node.Desired)
	}
}

// rendered returns the host's committed configuration where that is a rendered one, and "" otherwise.
func (v *situation) rendered() string {
	if current := v.host.Config.Committed; machineconfig.PoolOf(current) != "" {
		return current
	}
	return ""
}

// enter records that the node has reached another phase. Phases without an operation are logged and timed here.
func (h *Head) enter(v *situation, p Phase) {
	if p == h.phase {
		return
	}
	if h.phase == PhaseProve || h.phase == PhaseReboot || h.phase == PhaseSettle {
		h.passed(h.phase, v.node.Desired, v.now.Sub(h.entered), outcomeDone, nil)
	}
	if p == PhaseDone || p == PhaseRolledBack || p == PhaseHold || p == PhaseUnconfigured || p == PhaseReturn {
		h.log.Info("phase", zap.String("phase", string(p)), zap.String("config", v.node.Desired))
	}
	if worked := slices.Contains(road, h.phase) && !atRest(h.phase); atRest(p) && (worked || h.drift.unseen) {
		h.verifyAt, h.drift.unseen = v.now, false // changes during the update were not announced
	}
	rested := h.resting()
	h.phase, h.entered = p, v.now
	if soon := v.now.Add(workPace); rested && !h.resting() && h.askAt.After(soon) {
		h.askAt = soon
	}
}

func (h *Head) passed(p Phase, config string, took time.Duration, outcome string, err error) {
	h.metrics.passed(p, outcome, took)
	fields := []zap.Field{zap.String("phase", string(p)), zap.String("config", config),
		zap.Duration("took", took.Round(time.Millisecond)), zap.String("outcome", outcome)}
	if err != nil {
		fields = append(fields, zap.Error(err))
	}
	h.log.Info("phase", fields...)
}

// clear reports whether no operation for another purpose is in the way. Such an operation is cancelled where possible.
func (h *Head) clear(v *situation, p phase) bool {
	if h.job == nil {
		// After an operation the host has to be read again.
		return h.read || v.host == nil
	}
	switch {
	case (h.job.phase == phaseVerify || h.job.phase == phaseRepair) && atRest(p.name),
		h.job.phase == phaseUnstage && h.job.config == v.node.Desired && atRest(p.name),
		h.job.phase == phaseAhead && atRest(p.name) && v.stages(h.job):
		return true
	case h.job.phase == phaseAhead && h.job.config == v.node.Desired:
		h.job.cancel(nil) // stage joins the host's command; a command with a floor starts again without one
		return false
	case h.overtaken(v):
	case h.job.config == v.node.Desired && (h.job.phase == p.name || h.job.phase == PhaseDrain && p.name == PhaseCordon):
		return true
	case h.job.phase == PhaseApply:
		// An apply can't be stopped, and the host's record about it is true meanwhile.
		return h.read && (h.job.config == v.node.Desired || !p.job)
	}
	h.job.cancel(hands.ErrSuperseded)
	return false
}

// say writes the Node's report, and reports whether that changes the facts of the next decision.
func (h *Head) say(ctx context.Context, node *corev1.Node, v *situation, p Phase) bool {
	reason := ""
	if c := degraded(v, p); c.Status == "True" {
		reason = c.Reason
	}
	h.metrics.show(v.ready, v.node.State, v.node.Desired, reason)
	h.metrics.drifted(v.drift)
	h.metrics.delivered(v.delivery.undelivered)
	if v.host != nil {
		h.metrics.wanted(v.host.RebootWanted)
	}
	h.metrics.held(h.stopped(v, p))
	h.metrics.drainHeld(v.drainHold)
	r := reportNode(v, p)
	h.object.want(h, v, p)
	if r == nil || v.now.Before(h.nodeWrites.next) {
		return false
	}
	after, err := h.cluster.report(ctx, node, r)
	if ctx.Err() != nil {
		return false
	}
	if h.wrote(&h.nodeWrites, "reporting on the node", err); err != nil {
		return false
	}
	if after == node {
		return false
	}
	h.announce(v, p, node, after)
	return true
}

// wrote paces the next write, and logs each error once.
func (h *Head) wrote(w *writes, what string, err error) {
	if err == nil {
		*w = writes{}
		return
	}
	w.tries++
	w.next = time.Now().Add(jitter(nextTry(w.tries)))
	if text := err.Error(); !away(err) && text != w.text {
		h.log.Warn(what, zap.Error(err))
		w.text = text
	}
}

// announce announces what a patch did, once, because the event comes after the patch.
func (h *Head) announce(v *situation, p Phase, before, after *corev1.Node) {
	was, _ := api.ReadNode(before)
	is, _ := api.ReadNode(after)
	say := func(kind, reason, format string, args ...any) {
		h.cluster.event(after, kind, reason, fmt.Sprintf(format, args...))
	}
	switch {
	case drain.ReadHold(before) == drain.Lost && drain.ReadHold(after) == drain.Ours:
		next := "to drain the node again"
		switch {
		case p == PhaseCordon && v.applying:
			next = "to drain the node again, unless its host was about to reboot already"
		case p != PhaseCordon:
			next = "but the update can't be interrupted any more, and pods that came to the node are not drained"
		}
		say(corev1.EventTypeWarning, "Cordon",
			"The node was uncordoned during the update to %s: the agent cordoned the node again, %s", is.Desired, next)
	case p == PhaseCordon && !before.Spec.Unschedulable && after.Spec.Unschedulable:
		say(corev1.EventTypeNormal, "Cordon", "Cordoned the node for the update to %s: %s", is.Desired, disruption(v.plan))
	case before.Spec.Unschedulable && !after.Spec.Unschedulable:
		say(corev1.EventTypeNormal, "Uncordon", "Uncordoned the node")
	}
	if is.Rebooting && !was.Rebooting {
		say(corev1.EventTypeNormal, "Reboot", "Node will reboot into %s: %s", is.Desired, disruption(v.plan))
	}
	if drained := "drain-" + is.Desired; p == PhaseProve && !v.bootsAsIs() &&
		after.Annotations[api.LastAppliedDrain] == drained && before.Annotations[api.LastAppliedDrain] != drained {
		say(corev1.EventTypeNormal, "Reboot", "Node has rebooted into %s, before the agent could announce the reboot",
			is.Desired)
	}
	h.announceDrift(was.Drift, is.Drift, after)
	h.announceStaged(was.Staged, is.Staged, after)
	h.announcePins(was, is, after)
	h.announceWanted(before, after)
	h.announceWay(was.RebootWay, is.RebootWay, after)
	h.announceDelivery(was.Undelivered, is.Undelivered, after)
	if is.State == was.State && is.Reason == was.Reason {
		return
	}
	switch is.State {
	case api.Done:
		if was.State != api.Done {
			say(corev1.EventTypeNormal, "NodeDone", "Node is on %s", is.Current)
		}
	case api.Unreconcilable:
		say(corev1.EventTypeWarning, "FailedToReconcile", "%s", is.Reason)
	case api.Degraded:
		event := "UpdateFailed"
		if f := v.failure; f != nil && f.reason == reasonDrift {
			event = "PreflightConfigDriftCheckFailed"
		}
		say(corev1.EventTypeWarning, event, "%s", is.Reason)
	case api.RolledBack:
		say(corev1.EventTypeWarning, "RolledBack", "%s", is.Reason)
	case api.Working:
	}
}

// announceServices announces the actions on the node's services, in upstream's words.
func (h *Head) announceServices(r *host.Result) {
	if r == nil {
		return
	}
	for _, a := range r.Acted {
		h.cluster.announce(serviceEvent(a))
	}
}

// serviceEvent returns the event about an action on a service.
func serviceEvent(a host.Acted) (kind, reason, text string) {
	reason, doing, done := "ServiceReload", "Reloading", "reloaded"
	if a.Type == plan.ActionRestart {
		reason, doing, done = "ServiceRestart", "Restarting", "restarted"
	}
	switch {
	case a.Error != "":
		return corev1.EventTypeWarning, "Failed" + reason, fmt.Sprintf("%s service %s failed: %s", doing, a.Service, a.Error)
	case a.Stopped:
		return corev1.EventTypeNormal, reason, fmt.Sprintf("Service %s was stopped: its unit is gone", a.Service)
	}
	return corev1.EventTypeNormal, reason, fmt.Sprintf("Service %s was %s", a.Service, done)
}
