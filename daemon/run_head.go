// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	mcfgclient "github.com/openshift/client-go/machineconfiguration/clientset/versioned"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/drain"
	"github.com/noderefit/noderefit/hands"
	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/plan"
	"github.com/noderefit/noderefit/transaction"
)

// HeadOptions are what a head works with.
type HeadOptions struct {
	// Node is the name of the Node that the host is.
	Node string
	// Boot is the ID of the kernel's boot, which the kubelet reports too. Where it is not known, the clock decides of
	// which boot a report is.
	Boot string

	Kube     kubernetes.Interface
	Configs  mcfgclient.Interface
	Metadata metadata.Interface

	Hands   Hands
	Senses  Senses
	Drainer Drainer
	// Verifier, where there is one, is asked whether the host still matches: now and then, and when the Monitor, where
	// there is one, says that something has changed.
	Verifier Verifier
	Monitor  Monitor
	// Deliverer, where there is one, gets the ControllerConfig of the cluster, which is watched then.
	Deliverer Deliverer
	// Asker, where there is one, is asked before the node is disrupted.
	Asker Asker
	// Verdict is how long the Hands let the host take to prove healthy after a boot; the host's own default where it is
	// zero.
	Verdict time.Duration

	Log     *zap.Logger
	Metrics *Metrics
}

// The paces of the loop. Everything that it waits for wakes it up; these are for what was missed.
const (
	restPace    = 10 * time.Minute // between two looks at a host at rest
	workPace    = 20 * time.Second // and at one that is on its way
	statusLimit = 90 * time.Second // for one look
	drainLong   = time.Hour        // after which a drain that waits is worth a warning
	drainAgain  = 4 * time.Hour    // between two of those
	heldShown   = time.Minute      // after which the Node says what an update waits for, and how often that may change
	drainQuiet  = 15 * time.Second // for which a drain that only waits for pods to end says nothing
	verifyFirst = 5 * time.Second  // after the start
	verifyPace  = 30 * time.Minute
	unstagePace = time.Minute      // between two tries to let go of what was staged
	wordPace    = 15 * time.Second // between two words about the Node to the verdict on the host
	wordFresh   = 20 * time.Second // how old the latest one may be when an apply begins
	restorePace = 30 * time.Second // between two tries to give a configuration back
	blindFor    = 2 * time.Minute  // how long a host may not answer, such as while it shuts down
	endLimit    = time.Second      // for operations to notice that the head ends
	turnLimit   = 5 * time.Minute  // for one turn, in which a few requests may wait until a dead connection is noticed
)

// Head is the node's state machine: it reads what is desired from the Node, has the hands make it so, and says how far
// it is. It keeps nothing that it could not find out again: the Node's annotations, the ledger in them and the host's
// record are its memory.
type Head struct {
	o       HeadOptions
	log     *zap.Logger
	metrics *Metrics
	cluster *cluster

	bell     chan struct{}
	statuses chan hostAnswer
	ended    chan jobEnd
	drains   chan api.Drain
	words    chan error
	restored chan restoreEnd
	delivers chan deliverEnd

	// The host, as it was last read; read says that it was since the last operation ended.
	host      *host.Status
	hostSince time.Time
	read      bool
	asking    bool
	late      bool // the answer that is being waited for was asked for before an operation ended
	askAt     time.Time
	blind     *failure

	way       way
	job       *job
	verifyAt  time.Time
	drift     driftState
	delivery  deliveryState
	ahead     aheadState
	repairAt  time.Time // when something is to be written back that is not yet
	restoring bool
	restoreAt time.Time

	nodeWrites, objectWrites, restores writes
	object                             machineConfigNode
	telling                            bool       // the host is being told whether the node is ready
	told                               bool       // what the watch said of that when it was last told
	tellAt                             time.Time  // when it is told again
	spoke                              time.Time  // when it was last told, or the API server had nothing to say
	hold                               drain.Hold // on the node, when it was last looked at
	open                               bool       // the node has taken pods since it was last drained
	opened                             bool       // the host was told that
	openAt                             time.Time  // when it is told again
	drain                              *api.Drain // the latest drain, or what one would wait for; see waiting
	complainAt                         time.Time  // when people are warned, or warned again, of a drain that waits
	held                               heldText
	drainHold, lastHold                *api.DrainHold // that is in force; and the last that was
	heldSaid                           bool           // the Node has shown the one in force
	lateSaid                           time.Time      // the limit of a drain that people were told of last
	stop                               *api.HookStop  // the hook that has said no last, also to the head before
	unread                             string         // what was last logged of annotations that can't be read
	phase                              Phase
	entered                            time.Time
}

// way is what is known of the way from what the host has to what is desired. It is forgotten when either changes.
type way struct {
	from, to, lift string
	request        hands.Request
	plan           *plan.Plan
	staged         bool
	asked          bool   // the hooks have said yes
	askedWith      string // which hooks the cluster had when they were last asked
	drained        time.Time
	rebooting      time.Time
	unstageAt      time.Time // before this it is not tried again to let go of what was staged
	failure        *failure
	overwrites     bool // people were told that it overwrites drift
}

// writes paces the tries to say something to an API server that does not listen. Only the latest is ever said.
type writes struct {
	tries int
	next  time.Time
	text  string // of the last error, so that the log has each once
}

// NewHead returns a head; Run runs it.
func NewHead(o HeadOptions) *Head {
	if o.Metrics == nil {
		o.Metrics = NewMetrics()
	}
	h := &Head{o: o, log: o.Log.With(zap.String("node", o.Node)), metrics: o.Metrics,
		bell: make(chan struct{}, 1), statuses: make(chan hostAnswer, 1), ended: make(chan jobEnd, 1),
		drains: make(chan api.Drain, 1), words: make(chan error, 1), restored: make(chan restoreEnd, 1),
		delivers: make(chan deliverEnd, 1)}
	h.cluster = &cluster{name: o.Node, kube: o.Kube, configs: o.Configs, meta: o.Metadata, log: h.log, wake: h.ring,
		watched: map[string]*configWatch{}}
	return h
}

func (h *Head) ring() {
	select {
	case h.bell <- struct{}{}:
	default:
	}
}

// Run goes on until ctx ends. What is under way on the host then goes on.
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
		case a := <-h.statuses:
			h.readHost(a)
		case e := <-h.ended:
			h.finish(e)
		case d := <-h.drains:
			if h.job != nil && h.job.phase == PhaseDrain && h.job.config == d.Config {
				h.draining(d)
			}
		case err := <-h.words:
			h.vouched(err)
		case e := <-h.restored:
			h.finishRestore(e)
		case e := <-h.delivers:
			h.finishDelivery(e)
		case <-timer.C:
		}
		timer.Stop()
	}
}

// leave gives operations the time to notice.
func (h *Head) leave() {
	if h.job == nil {
		return
	}
	h.job.cancel(nil)
	select {
	case <-h.ended:
	case <-time.After(endLimit):
	}
}

// turn looks at everything, does what is due and returns how long nothing is, if nothing happens.
func (h *Head) turn(ctx context.Context) time.Duration {
	// Each step of the loop changes what is decided by; a step that does not is the last.
	for range phases {
		now := time.Now()
		node := h.cluster.current()
		h.ask(ctx, now)
		v := h.situation(node, now)
		h.complain(now)
		h.follow(ctx, v)
		p := decide(v)
		h.enter(v, p.name)
		h.vouch(ctx, v, p.name)
		h.warnHost(ctx, v)
		if !h.clear(v, p) {
			break
		}
		again := h.say(ctx, node, v, p.name)
		h.deliver(ctx, v)
		h.start(ctx, v, p)
		if !again {
			break
		}
	}
	h.tellObject(ctx)
	return h.pause(time.Now())
}

// situation puts together everything that is known, and forgets what is about another way.
func (h *Head) situation(node *corev1.Node, now time.Time) *situation {
	v := &situation{now: now, verdict: cmp.Or(h.o.Verdict, api.DefaultVerdictTimeout)}
	if node != nil {
		v.exists, v.hold = true, drain.ReadHold(node)
		_, v.excluded = node.Labels[api.ExcludeLabel]
		v.ready, _ = nodeWord(node, h.o.Boot, now, host.Uptime())
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
	if w := (way{from: h.host.Config.Committed, to: v.node.Desired, lift: v.node.Lift}); v.exists &&
		(w.to != h.way.to || w.from != h.way.from || w.lift != h.way.lift && w.lift != "") {
		if h.way.to != "" && h.way.to != w.to {
			h.drain = nil
		}
		h.way = w
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
	return v
}

// missReboot gives a reboot up that does not come: the host still is where it was when it began.
func (h *Head) missReboot(v *situation) {
	began := h.way.rebooting
	if began.IsZero() || v.now.Sub(began) < host.RebootPatience || !v.inPhase(transaction.PhaseBoot) {
		return
	}
	h.metrics.rebootsFailed.Inc()
	h.way.rebooting, h.way.drained = time.Time{}, time.Time{}
	text := fmt.Sprintf("the host was told to reboot at %s and did not within %s: systemctl list-jobs and "+
		"systemd-inhibit on the host say what holds it up", began.UTC().Format(time.RFC3339), host.RebootPatience)
	h.way.failure = fail(h.way.failure, PhaseApply, failDegraded, reasonRebooting, text, v.now)
	h.log.Warn("rebooting", zap.String("config", h.way.to), zap.String("error", text))
}

// follow keeps what goes on beside the phases: which configurations are watched, and a current configuration that
// somebody deleted.
func (h *Head) follow(ctx context.Context, v *situation) {
	if v.host == nil || !v.exists {
		return
	}
	current := v.host.Config.Committed
	if machineconfig.PoolOf(current) == "" {
		current = ""
	}
	h.cluster.watchConfigs(ctx, current, v.node.Desired)
	if h.cluster.config(current) == gone && !h.restoring && !v.now.Before(h.restoreAt) {
		h.restoring = true
		go func() { h.restored <- h.restore(ctx, current) }()
	}
}

// enter notes that the node has come to another phase. What is no operation is logged and timed here.
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
		h.verifyAt, h.drift.unseen = v.now, false // changes on the way here were told to nobody
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

// clear says whether nothing that was begun for something else stands in the way. What can be cancelled is.
func (h *Head) clear(v *situation, p phase) bool {
	if h.job == nil {
		// After an operation the host is not what it was.
		return h.read || v.host == nil
	}
	switch {
	case (h.job.phase == phaseVerify || h.job.phase == phaseRepair) && atRest(p.name),
		h.job.phase == phaseUnstage && h.job.config == v.node.Desired && atRest(p.name),
		h.job.phase == phaseAhead && atRest(p.name) && v.stages(h.job):
		return true
	case h.job.phase == phaseAhead && h.job.config == v.node.Desired:
		h.job.cancel(nil) // what runs on the host goes on, and is met there; one with a floor begins anew without it
		return false
	case h.overtaken(v):
	case h.job.config == v.node.Desired && (h.job.phase == p.name || h.job.phase == PhaseDrain && p.name == PhaseCordon):
		return true
	case h.job.phase == PhaseApply:
		// It can't be stopped, and what the host's record says of it meanwhile is true.
		return h.read && (h.job.config == v.node.Desired || !p.job)
	}
	h.job.cancel(hands.ErrSuperseded)
	return false
}

// say writes what the Node is to say, and says whether that changes what is decided by.
func (h *Head) say(ctx context.Context, node *corev1.Node, v *situation, p Phase) bool {
	reason := ""
	if c := degraded(v, p); c.Status == "True" {
		reason = c.Reason
	}
	h.metrics.show(v.ready, v.node.State, v.node.Desired, reason)
	h.metrics.drifted(v.drift)
	h.metrics.delivered(v.delivery.undelivered)
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

// wrote paces what is written next, and logs each error once.
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

// announce tells people what a patch did, once, because it is said when it is done.
func (h *Head) announce(v *situation, p Phase, before, after *corev1.Node) {
	was, _ := api.ReadNode(before)
	is, _ := api.ReadNode(after)
	say := func(kind, reason, format string, args ...any) {
		h.cluster.event(after, kind, reason, fmt.Sprintf(format, args...))
	}
	switch {
	case drain.ReadHold(before) == drain.Lost && drain.ReadHold(after) == drain.Ours:
		next := "to drain it again"
		switch {
		case p == PhaseCordon && v.applying:
			next = "to drain it again, unless its host was about to reboot already"
		case p != PhaseCordon:
			next = "but the update can't be interrupted any more, and what came to the node is not drained"
		}
		say(corev1.EventTypeWarning, "Cordon",
			"Somebody uncordoned the node during the update to %s: cordoned it again, %s", is.Desired, next)
	case p == PhaseCordon && !before.Spec.Unschedulable && after.Spec.Unschedulable:
		say(corev1.EventTypeNormal, "Cordon", "Cordoned the node for the update to %s: %s", is.Desired, disruption(v.plan))
	case before.Spec.Unschedulable && !after.Spec.Unschedulable:
		say(corev1.EventTypeNormal, "Uncordon", "Uncordoned the node")
	}
	if is.Rebooting && !was.Rebooting {
		say(corev1.EventTypeNormal, "Reboot", "Node will reboot into %s: %s", is.Desired, disruption(v.plan))
	}
	if drained := "drain-" + is.Desired; p == PhaseProve && after.Annotations[api.LastAppliedDrain] == drained &&
		before.Annotations[api.LastAppliedDrain] != drained {
		say(corev1.EventTypeNormal, "Reboot", "Node has rebooted into %s, before it could be said", is.Desired)
	}
	h.announceDrift(was.Drift, is.Drift, after)
	h.announceStaged(was.Staged, is.Staged, after)
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

// announceServices tells people what was done about the node's services, in upstream's words.
func (h *Head) announceServices(r *host.Result) {
	node := h.cluster.current()
	if r == nil || node == nil {
		return
	}
	for _, a := range r.Acted {
		kind, reason, text := serviceEvent(a)
		h.cluster.event(node, kind, reason, text)
	}
}

// serviceEvent is what an event says of something that was done about a service.
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

// pause returns how long nothing is due.
func (h *Head) pause(now time.Time) time.Duration {
	until := h.askAt
	sooner := func(t time.Time) {
		if t.After(now) && t.Before(until) {
			until = t
		}
	}
	if h.asking {
		until = now.Add(statusLimit) // the answer wakes us
	}
	if h.o.Verifier != nil && atRest(h.phase) && h.job == nil && h.read {
		for _, due := range []time.Time{h.verifyAt, h.repairAt} {
			if !due.IsZero() && !due.After(now) {
				until = now // since the turn began
			}
			sooner(due)
		}
	}
	if !h.delivery.running && !h.delivery.done {
		sooner(h.delivery.retry)
	}
	if h.way.failure != nil && h.job == nil {
		sooner(h.way.failure.retry)
	}
	if h.job == nil {
		sooner(h.ahead.retry)
		if r := h.ahead.report; r != nil && r.Error != "" {
			sooner(r.Since.Add(api.StageRetry(r.Tries)))
		}
	}
	if !h.telling {
		sooner(h.tellAt)
	}
	sooner(h.openAt)
	if h.job != nil && h.job.phase == PhaseDrain && h.waiting() != nil {
		sooner(h.complainAt)
		sooner(h.waiting().Since.Add(drainQuiet))
		sooner(h.waiting().Limit)
	}
	if h.job != nil {
		sooner(h.held.due)
	}
	if h.job == nil {
		sooner(h.way.unstageAt)
	}
	sooner(h.nodeWrites.next)
	sooner(h.objectWrites.next)
	if h.cluster.config(h.way.from) == gone && !h.restoring {
		sooner(h.restoreAt)
	}
	return max(until.Sub(now), 10*time.Millisecond)
}
