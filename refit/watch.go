// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/cli"
	"github.com/noderefit/noderefit/message"
	"github.com/noderefit/noderefit/progress"
)

// coalesce is how long events are gathered before they are handled: a change often comes as several events.
const coalesce = 100 * time.Millisecond

// A Watch is a rollout that is followed.
type Watch struct {
	Out io.Writer
	// Env returns the variables that describe the terminal, if Out is one.
	Env func(string) string
	// In is where the person who watches presses keys; nil, or no terminal: nobody does.
	In *os.File
	// Pools are the pools to follow. Empty means all.
	Pools []string
	// Nodes are labels of the nodes to show. Nil means all.
	Nodes labels.Selector
	// Timeout is how long the pools may take. Zero means any time.
	Timeout time.Duration
	// Zone is the time zone of the person who watches; nil: UTC.
	Zone *time.Location
	// Settle is how long pools that are updated or stopped from the beginning must stay so.
	Settle time.Duration
}

// Watch follows a rollout until the pools are updated, which is no error, or stop.
func (c *Cluster) Watch(ctx context.Context, w Watch) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// The first read fails with an error that the watches would only retry for ever.
	r, err := c.report(ctx)
	if err != nil {
		return err
	}
	if _, err := chosen(r, w.Pools); err != nil {
		return err
	}
	if len(r.Pools()) == 0 {
		return errNoPools
	}
	f := &follower{out: w.Out, only: w.Pools, nodesOnly: w.Nodes, settle: w.Settle, zone: w.Zone, policies: c.known}
	if w.Timeout > 0 {
		var end context.CancelFunc
		ctx, end = context.WithTimeoutCause(ctx, w.Timeout, timedOut(w.Timeout))
		defer end()
	}
	if f.screen = terminal(f.out, w.Env); f.screen != nil {
		c.warnings = f.screen.beside(c.warnings)
		if f.keyboard = typed(w.In); f.keyboard != nil {
			defer f.keyboard.restore()
			f.hands, f.results = c, make(chan result)
			f.screen.raw = true
		}
	}
	return f.follow(ctx, c.follow(ctx))
}

// stores are the objects that the watches keep.
type stores struct {
	pools, nodes, states cache.SharedIndexInformer
	rules                atomic.Pointer[func([]*progress.Pool)]
	changed              chan struct{}
}

// ruled is how often the policies are read, because windows open and soaks end without an event.
const ruled = 15 * time.Second

// rule keeps the rules up to date until ctx ends. An error is reported once, and the last rules stay.
func (s *stores) rule(ctx context.Context, c *Cluster) {
	said := false
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		rules, err := c.rules(ctx)
		switch {
		case err == nil:
			s.rules.Store(&rules)
			s.ring()
		case ctx.Err() == nil && !said:
			said = true
			c.warn("%s", rulesUnknown(err))
		}
	}, ruled)
}

// ring makes the follower check everything again.
func (s *stores) ring() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// follow starts the watches, which run until ctx ends.
func (c *Cluster) follow(ctx context.Context) *stores {
	s := &stores{changed: make(chan struct{}, 1)}
	nodes := c.kube.CoreV1().Nodes()
	s.nodes = s.start(ctx, c, &corev1.Node{},
		func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return nodes.List(ctx, o) }, nodes.Watch)
	pools := c.refit.MachineconfigurationV1().MachineConfigPools()
	s.pools = s.start(ctx, c, &mcfgv1.MachineConfigPool{},
		func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return pools.List(ctx, o) }, pools.Watch)
	states := c.refit.MachineconfigurationV1().MachineConfigNodes()
	s.states = s.start(ctx, c, &mcfgv1.MachineConfigNode{},
		func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return states.List(ctx, o) }, states.Watch)
	go s.rule(ctx, c)
	return s
}

func (s *stores) start(ctx context.Context, c *Cluster, object runtime.Object, lists cache.ListWithContextFunc,
	watches cache.WatchFuncWithContext,
) cache.SharedIndexInformer {
	lw := &cache.ListWatch{ListWithContextFunc: lists, WatchFuncWithContext: watches}
	informer := cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(lw, c.kube), object, 0, nil)
	said := false
	// Both calls fail only after the informer has started.
	_ = informer.SetTransform(trim)
	_ = informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, _ *cache.Reflector, err error) {
		if ctx.Err() == nil && !said && !errors.Is(err, io.EOF) {
			said = true
			c.warn("a watch broke off and is tried again: %s", Describe(err))
		}
	})
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { s.ring() }, UpdateFunc: func(any, any) { s.ring() }, DeleteFunc: func(any) { s.ring() },
	})
	go informer.RunWithContext(ctx)
	return informer
}

// trim drops the large fields that are not used.
func trim(object any) (any, error) {
	if accessor, ok := object.(metav1.Object); ok {
		accessor.SetManagedFields(nil)
	}
	if n, ok := object.(*corev1.Node); ok {
		n.Status.Images = nil
	}
	return object, nil
}

func (s *stores) synced(ctx context.Context) bool {
	return cache.WaitForCacheSync(ctx.Done(), s.pools.HasSynced, s.nodes.HasSynced)
}

// report returns what the stores have, and the view that it was made of.
func (s *stores) report() (*progress.Report, progress.View) {
	var v progress.View
	for _, o := range s.pools.GetStore().List() {
		if p, ok := o.(*mcfgv1.MachineConfigPool); ok {
			v.Pools = append(v.Pools, *p)
		}
	}
	for _, o := range s.nodes.GetStore().List() {
		if n, ok := o.(*corev1.Node); ok {
			v.Nodes = append(v.Nodes, *n)
		}
	}
	if s.states.HasSynced() {
		v.States = map[string]*mcfgv1.MachineConfigNode{}
		for _, o := range s.states.GetStore().List() {
			if n, ok := o.(*mcfgv1.MachineConfigNode); ok {
				v.States[n.Name] = n
			}
		}
	}
	if rules := s.rules.Load(); rules != nil {
		v.Follow = *rules
	}
	return progress.NewReport(v), v
}

// follower shows a rollout on a screen, or prints the changes from one report to the next.
type follower struct {
	out    io.Writer
	screen *screen // nil: print lines
	only   []string
	settle time.Duration
	// nodesOnly are the labels of the nodes to show; nil: all.
	nodesOnly labels.Selector
	// zone is the time zone of the person who watches; nil: UTC.
	zone *time.Location
	// policies returns the RolloutPolicies that were read last, for estimates; nil: no estimate is made.
	policies func() []api.RolloutPolicy
	// lefts are the estimates by pool, and estimated when they were made.
	lefts     map[string]string
	estimated time.Time
	// keyboard and the fields below are for a person who presses keys. keyboard is nil without one.
	keyboard *keyboard
	hands    hands
	results  chan result
	desk     desk
	targets  []target // of the lines of the last picture
	// day is the day of the last line.
	day string

	pools map[string]poolMark
	nodes map[string]nodeMark
	// worked are the pools that were seen at work: their end is believed at once.
	worked map[string]bool
	// ended is since when all pools are at an end. It is zero while a pool is not.
	ended time.Time
}

type poolMark struct {
	target, verdict, waits, hold string
	since                        time.Time
}

type nodeMark struct {
	phase, waits string
	since        time.Time // of the phase
	left         time.Time // when the node was last at rest
}

func (f *follower) follow(ctx context.Context, s *stores) error {
	if !s.synced(ctx) {
		return f.interrupted(ctx, nil)
	}
	f.pools, f.nodes, f.worked = map[string]poolMark{}, map[string]nodeMark{}, map[string]bool{}
	settled := time.NewTimer(0)
	defer settled.Stop()
	var older <-chan time.Time // a picture shows how long things last
	if f.screen != nil {
		second := time.NewTicker(time.Second)
		defer second.Stop()
		older = second.C
	}
	var pressed <-chan []key
	if f.keyboard != nil {
		pressed = f.keyboard.keys
	}
	for {
		r, v := s.report()
		now := time.Now()
		f.estimate(r, v, now)
		f.show(r, now)
		if wait, ended := f.atEnd(r, now); ended && wait <= 0 && !f.desk.open() {
			f.leave(r, now)
			return f.result(r, now)
		} else if ended && wait > 0 {
			settled.Reset(wait)
		}
		select {
		case <-ctx.Done():
			return f.interrupted(ctx, r)
		case <-settled.C:
		case <-older:
		case keys := <-pressed:
			if f.pressed(ctx, keys) {
				return f.left(r, errQuit)
			}
		case done := <-f.results:
			width, _ := f.screen.size()
			f.desk = f.desk.outcome(done.of, done.text, done.err, width-1)
		case <-s.changed:
			select {
			case <-ctx.Done():
			case <-time.After(coalesce):
			}
		}
	}
}

// estimateEvery is how often the time that is left is estimated: an estimate follows the decisions of the controller
// through the rest of the rollout.
const estimateEvery = 5 * time.Second

// estimate estimates how long the rollouts on the screen still take.
func (f *follower) estimate(r *progress.Report, v progress.View, now time.Time) {
	if f.screen == nil || f.policies == nil || now.Sub(f.estimated) < estimateEvery {
		return
	}
	f.estimated, f.lefts = now, map[string]string{}
	for _, name := range f.names(r) {
		f.lefts[name] = left(r, v, f.policies(), name, now).String()
	}
}

// timedOut is the cause of a watch that took too long.
type timedOut time.Duration

func (t timedOut) Error() string { return "timed out after " + time.Duration(t).String() }

// InterruptedError is the end of a watch by a person or a program, before the end of the rollout.
type InterruptedError struct {
	code int
	text string
}

func (e InterruptedError) Error() string { return e.text }

// ExitStatus returns the exit code that a shell gives a program that ends by the signal.
func (e InterruptedError) ExitStatus() int { return e.code }

// interrupted returns the error of a watch that ends before the rollout. It names what the rollout waits for.
func (f *follower) interrupted(ctx context.Context, r *progress.Report) error {
	return f.left(r, context.Cause(ctx))
}

// left returns the error of a watch that ends before the rollout for a cause.
func (f *follower) left(r *progress.Report, cause error) error {
	f.leave(r, time.Now())
	text := "the rollout goes on: " + f.unfinished(r)
	if s, ok := errors.AsType[cli.SignalError](cause); ok {
		return InterruptedError{s.Code(), "watch ended by signal (" + s.Signal.String() + "); " + text}
	}
	return fmt.Errorf("watching: %w; %s", cause, text)
}

// unfinished says of each pool that is not updated why that is so.
func (f *follower) unfinished(r *progress.Report) string {
	if r == nil {
		return "the cluster has not answered yet"
	}
	var waits []string
	for _, name := range f.names(r) {
		done, _ := r.Ended(name)
		p, _ := r.Pool(name)
		a, ok := r.ExplainPool(name)
		if done || !ok {
			continue
		}
		text := fmt.Sprintf("pool %s has updated %s nodes (%s)", name, count(p), a.Verdict)
		if a.Blocking != nil {
			text += " and waits for " + a.Blocking.String()
		}
		waits = append(waits, text+": "+a.Because)
	}
	if len(waits) == 0 {
		return "all pools look updated, and watch had not seen that for long enough"
	}
	return strings.Join(waits, "; ")
}

func (f *follower) names(r *progress.Report) []string {
	if len(f.only) > 0 {
		return f.only
	}
	return r.Pools()
}

// atEnd reports whether all pools are at an end, and how long that end is still uncertain.
func (f *follower) atEnd(r *progress.Report, now time.Time) (time.Duration, bool) {
	sure := true
	for _, name := range f.names(r) {
		done, ended := r.Ended(name)
		if !ended {
			f.ended = time.Time{}
			f.worked[name] = true
			return 0, false
		}
		sure = sure && done && f.worked[name]
	}
	if f.ended.IsZero() {
		f.ended = now
	}
	if sure {
		return 0, true
	}
	return f.ended.Add(f.settle).Sub(now), true
}

// result returns an error where a pool has stopped before its end.
func (f *follower) result(r *progress.Report, now time.Time) error {
	var stopped []string
	for _, name := range f.names(r) {
		if done, _ := r.Ended(name); done {
			continue
		}
		a, ok := r.ExplainPool(name)
		if !ok {
			stopped = append(stopped, fmt.Sprintf("pool %s is gone", name))
			continue
		}
		if f.screen == nil {
			f.line(now, r, name, "", string(a.Verdict), "", a.Because)
		}
		stopped = append(stopped, fmt.Sprintf("pool %s goes no further (%s): %s", name, a.Verdict, a.Sentence()))
	}
	if len(f.names(r)) == 0 {
		return errNoPools
	}
	if len(stopped) > 0 {
		return errors.New(strings.Join(stopped, "; "))
	}
	return nil
}

// errNoPools is the error where there is nothing to follow: most probably this is another cluster than was meant.
var errNoPools = errors.New("the cluster has no MachineConfigPools, so nothing is rolled out here; is it the right " +
	"one (kubectl config current-context)?")

// show shows the progress of the rollout.
func (f *follower) show(r *progress.Report, now time.Time) {
	if f.screen == nil {
		f.print(r, now)
		return
	}
	f.screen.draw(func(p paper) (lines []string) {
		p.only, p.zone = f.nodesOnly, f.zone
		p.left = func(pool string) string { return f.lefts[pool] }
		if f.keyboard == nil {
			return picture(r, f.names(r), now, p)
		}
		lines, f.targets = f.desk.picture(p, func(p paper) []drawn { return draw(r, f.names(r), now, p) })
		return lines
	})
}

// print writes a line for each change.
func (f *follower) print(r *progress.Report, now time.Time) {
	for _, name := range f.names(r) {
		p, ok := r.Pool(name)
		if !ok {
			continue
		}
		f.printPool(r, p, now)
		for _, n := range p.Nodes {
			if shown(f.nodesOnly, n) {
				f.printNode(r, name, n, now)
			}
		}
		f.printEnd(r, p, now)
	}
}

func (f *follower) printPool(r *progress.Report, p progress.Pool, now time.Time) {
	was, known := f.pools[p.Name]
	is := poolMark{target: p.Target, since: was.since, verdict: was.verdict, hold: was.hold}
	a, _ := r.ExplainPool(p.Name)
	if known && was.target != is.target || !known {
		is.since = now
		f.line(now, r, p.Name, "", "Target", "", cmp.Or(p.Target, "none was rendered yet: "+a.Because))
	}
	if p.Paused {
		is.waits = "paused"
	}
	if is.waits != was.waits {
		f.line(now, r, p.Name, "", map[bool]string{true: "Paused", false: "Resumed"}[p.Paused], "", "")
	}
	f.printHold(r, p, now, &is)
	f.pools[p.Name] = is
}

// printHold writes a line for what holds a whole pool, such as a window, a soak or a gate, with the time at which the
// hold ends where that is known, and a line when the hold is over.
func (f *follower) printHold(r *progress.Report, p progress.Pool, now time.Time, mark *poolMark) {
	hold := p.Rules.Hold
	if p.Updated == p.Machines {
		hold = p.Rules.Unproved
	}
	what, detail := "", ""
	if hold != nil && !p.Paused {
		what = string(hold.Verdict)
		if !hold.Until.IsZero() {
			what += " until " + hold.Until.UTC().Format(time.RFC3339)
		}
		detail = what + ": " + hold.Because
	}
	switch what {
	case mark.hold:
		return
	case "":
		f.line(now, r, p.Name, "", "Released", "", "no longer "+mark.hold)
	default:
		f.line(now, r, p.Name, "", "Held", "", detail)
	}
	mark.hold = what
}

// printEnd comes after the nodes' lines, so that the last line is the last event.
func (f *follower) printEnd(r *progress.Report, p progress.Pool, now time.Time) {
	mark := f.pools[p.Name]
	verdict := "working"
	if done, ended := r.Ended(p.Name); ended {
		verdict = map[bool]string{true: "updated", false: "stopped"}[done]
	}
	if verdict == "updated" && mark.verdict != verdict {
		took := ""
		if mark.verdict != "" {
			took = "all took " + seconds(now.Sub(mark.since))
		}
		f.line(now, r, p.Name, "", "Updated", took, p.Target)
	}
	mark.verdict = verdict
	f.pools[p.Name] = mark
}

func (f *follower) printNode(r *progress.Report, pool string, n progress.Node, now time.Time) {
	a, _ := r.ExplainNode(n.Name)
	was, known := f.nodes[n.Name]
	is := nodeMark{since: was.since, left: was.left}
	is.phase, _ = r.At(n.Name)
	if !a.Fine() && !a.OfPool() {
		is.waits = blocking(a)
	}
	rests := resting(is.phase)
	took := ""
	if !known || was.phase != is.phase {
		is.since = now
		if !was.left.IsZero() {
			took = was.phase + " took " + seconds(now.Sub(was.since))
		}
		if is.phase == string(progress.PhaseUpdated) && !was.left.IsZero() {
			took += ", all " + seconds(now.Sub(was.left))
		}
	}
	if rests {
		is.left = time.Time{}
	} else if is.left.IsZero() {
		is.left = now
	}
	// A node at rest at the beginning is no news, nor is a new target of the whole pool.
	moved := was.phase != is.phase && (!rests || !was.left.IsZero())
	if moved || was.waits != is.waits {
		detail := ""
		if is.waits != "" {
			detail = "waits for " + is.waits + ": " + a.Because
		}
		if a.Verdict == progress.RolledBack || a.Verdict == progress.Degraded || a.Verdict == progress.Unreconcilable {
			detail = a.Because
		}
		f.line(now, r, pool, n.Name, is.phase, took, detail)
	}
	f.nodes[n.Name] = is
}

// line writes the time, pool with progress, node, phase, how long the phase before took, and the rest.
func (f *follower) line(now time.Time, r *progress.Report, pool, node, phase, took, detail string) {
	p, _ := r.Pool(pool)
	widest := 0
	for _, n := range p.Nodes {
		widest = max(widest, len(n.Name))
	}
	if took != "" {
		took = "(" + took + ")"
	}
	now = now.In(cmp.Or(f.zone, time.UTC))
	if day := now.Format("2006-01-02 MST"); day != f.day {
		f.day = day
		fmt.Fprintln(f.out, day)
	}
	text := fmt.Sprintf("%s  %s %d/%d  %-*s  %-11s %-24s %s", now.Format(time.TimeOnly), pool, p.Updated, p.Machines,
		widest, cmp.Or(node, "-"), phase, took, message.LocalTimes(detail, f.zone))
	fmt.Fprintln(f.out, strings.TrimRight(text, " "))
}

func seconds(d time.Duration) string {
	if d < 10*time.Second {
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}
