// SPDX-License-Identifier: Apache-2.0

// Package fakehost is a host without a machine. It keeps the promises that the head relies on, and does no work. Its
// state outlives heads and its own reboots. Plans are real.
package fakehost

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/hands"
	"github.com/noderefit/noderefit/hooks"
	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/osimage"
	"github.com/noderefit/noderefit/plan"
	"github.com/noderefit/noderefit/provision"
	"github.com/noderefit/noderefit/signature"
	"github.com/noderefit/noderefit/transaction"
)

// The names of the operations in Script and Counts.
const (
	Status  = "status"
	Plan    = "plan"
	Stage   = "stage"
	Unstage = "unstage"
	Apply   = "apply"
	Boot    = "boot"  // the time that the machine is away
	Prove   = "prove" // the time from the boot to the verdict
	Verify  = "verify"
	Repair  = "repair"
	Ask     = "before-drain"
	Wanted  = "wants-reboot"
	Reboot  = "reboot"
	Pull    = "pull" // an OS, for a stage
)

// Script is the behaviour of a host. Host.Change may change it at any time.
type Script struct {
	// Delays are the durations of operations; without an entry an operation takes no time.
	Delays map[string]time.Duration
	// Fault, where set, is called at the end of an operation. Its error is the error of the operation. An error for Prove
	// is a negative verdict.
	Fault func(operation, config string) error
	// Gone is called when the machine goes down, and Back when the machine runs again. The host's own goroutine calls
	// them.
	Gone, Back func()
	// AskNode makes a verdict wait until the head has reported that the Node is ready. It does not wait if the head
	// reported before the update that the Node was not ready.
	AskNode bool
	// Drift is the drift that Verify finds.
	Drift []host.Drift
	// Forced is what Verify reports about a force file, which Repair removes.
	Forced bool
	// Pulling is what the host's status shows while the host stages.
	Pulling *osimage.Pulling
	// Foreign is what others have staged: an update that reboots removes that.
	Foreign []string
	// Wanted is why the host wants a reboot.
	Wanted *api.RebootWanted
	// OS is the digest of the OS that a stage brings to the disk; empty: the configurations have no OS.
	OS string
	// Trust has the trust directory of a host that demands signatures, nil for another host.
	Trust signature.Tree
}

// Host is the machine. It implements daemon.Hands, Senses and Verifier, and is safe for concurrent use.
type Host struct {
	mu      sync.Mutex
	script  Script
	counts  map[string]int
	changed chan struct{}
	touched chan struct{}
	watched []string

	configs                      map[string][]byte
	made                         map[string]json.RawMessage // what the machine was made with, where that is known
	committed, previous, pending string
	phase                        transaction.Phase
	state                        transaction.State
	reason                       string
	since                        time.Time
	quarantined                  []transaction.Quarantined
	staged                       string // the digest of the configuration that was, or is being, brought to the disk
	stagedOS                     string // the OS that is on the disk, once the stage has ended
	order                        *api.StageOrder
	ready                        bool
	unready                      bool   // the latest report is that the node is not ready
	broken                       bool   // the node was not ready when the update began
	taken                        string // why the node is not held, in the last report to an apply
	rebooted                     *api.Rebooted
	asIs, left                   bool // a reboot without a change; a reboot that is left to people
	boots                        int
	operation, staging           *operation
	told                         hooks.Document // in the latest Ask or Apply
}

// operation is a running apply or stage, no matter which caller waits for it.
type operation struct {
	config string
	stop   func() // stops a stage
	done   chan struct{}
	result *host.Result
	err    error
}

// New returns a host that was never configured.
func New(script Script) *Host {
	return &Host{script: script, counts: map[string]int{}, changed: make(chan struct{}, 1),
		touched: make(chan struct{}, 1), configs: map[string][]byte{}}
}

// Commit gives the host a committed configuration.
func (h *Host) Commit(name string, document []byte) {
	h.set(func() {
		h.configs[name] = document
		if made, err := parse(document); err == nil && h.made == nil {
			h.made = made.Provision
		}
		h.committed, h.state, h.since = name, transaction.Done, time.Now()
	})
}

// Change changes the host's behaviour.
func (h *Host) Change(change func(*Script)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(&h.script)
}

// Counts returns how often each operation was begun.
func (h *Host) Counts() map[string]int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.counts)
}

// Boots returns how often the machine has rebooted.
func (h *Host) Boots() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.boots
}

// Committed returns the configuration that the host proved.
func (h *Host) Committed() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.committed
}

// set changes the record and announces the change.
func (h *Host) set(change func()) {
	h.mu.Lock()
	change()
	h.mu.Unlock()
	select {
	case h.changed <- struct{}{}:
	default:
	}
}

// begin counts an operation and returns its duration.
func (h *Host) begin(operation string) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.counts[operation]++
	return h.script.Delays[operation]
}

func (h *Host) fault(operation, config string) error {
	h.mu.Lock()
	fault := h.script.Fault
	h.mu.Unlock()
	if fault == nil {
		return nil
	}
	return fault(operation, config)
}

func wait(ctx context.Context, d time.Duration) error {
	if d == 0 {
		return ctx.Err()
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// do carries out an operation that only reads.
func (h *Host) do(ctx context.Context, operation, config string) error {
	if err := wait(ctx, h.begin(operation)); err != nil {
		return err
	}
	return h.fault(operation, config)
}

// Status reads the state of the host.
func (h *Host) Status(ctx context.Context) (*host.Status, error) {
	if err := h.do(ctx, Status, ""); err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.status(), nil
}

func (h *Host) status() *host.Status {
	s := &host.Status{State: h.state, Phase: string(h.phase), Reason: h.reason, OS: host.OSOstree, Staged: h.staged,
		StagedOS: h.stagedOS, Quarantined: slices.Clone(h.quarantined)}
	s.RebootWanted, s.Rebooted, s.NeedsReboot = h.script.Wanted, h.rebooted, h.left
	if h.asIs {
		s.Transaction = &transaction.Progress{Road: transaction.RoadReboot, Phase: h.phase}
	}
	if now, err := parse(h.configs[h.committed]); err == nil && h.made != nil {
		s.Irreconcilable = provision.Compare(h.made, now.Provision)
	}
	s.Config.Committed, s.Config.Pending, s.Config.Previous = h.committed, h.pending, h.previous
	if !h.since.IsZero() {
		s.Since = h.since.Format(time.RFC3339)
	}
	if h.staging != nil {
		s.Pulling = h.script.Pulling
	}
	return s
}

func parse(document []byte) (*machineconfig.Config, error) {
	mc := &mcfgv1.MachineConfig{}
	if err := json.Unmarshal(document, mc); err != nil {
		return nil, err
	}
	return machineconfig.Parse(mc)
}

// Plan returns the real plan from the host's configuration.
func (h *Host) Plan(ctx context.Context, r hands.Request) (*plan.Plan, error) {
	if err := h.do(ctx, Plan, r.Name); err != nil {
		return nil, err
	}
	return h.plan(r)
}

func (h *Host) plan(r hands.Request) (*plan.Plan, error) {
	desired, err := parse(r.Config)
	if err != nil {
		return nil, err
	}
	o := plan.Options{SkipOS: r.Beside}
	if r.Policy != nil {
		if o.Policy, err = plan.ParsePolicy(r.Policy); err != nil {
			return nil, err
		}
	}
	h.mu.Lock()
	document, trust, committed := h.configs[h.committed], h.script.Trust, h.committed == r.Name
	h.mu.Unlock()
	if trust != nil && !committed {
		if why := signature.Refusal(trust, desired); why != "" {
			p := &plan.Plan{Desired: desired.Name}
			p.Refuse(signature.Field, why)
			return p, nil
		}
	}
	if document == nil {
		// The machine already matches its first configuration, as after provisioning.
		o.Satisfied = func(plan.Change) bool { return true }
		return plan.Make(nil, desired, o)
	}
	current, err := parse(document)
	if err != nil {
		return nil, err
	}
	p, err := plan.Make(current, desired, o)
	if err == nil && p.Reboot {
		h.mu.Lock()
		p.Lost = slices.Clone(h.script.Foreign)
		h.mu.Unlock()
	}
	return p, err
}

// Stage takes its time, and continues when its caller goes away.
func (h *Host) Stage(ctx context.Context, r hands.Request) error {
	o := h.stage(r)
	select {
	case <-o.done:
		return o.err
	case <-ctx.Done():
		if errors.Is(context.Cause(ctx), hands.ErrSuperseded) {
			o.stop()
		}
		return ctx.Err()
	}
}

func (h *Host) stage(r hands.Request) *operation {
	h.mu.Lock()
	defer h.mu.Unlock()
	if o := h.staging; o != nil {
		if o.config == r.Name {
			return o
		}
		o.stop()
	}
	ctx, stop := context.WithCancel(context.Background())
	o := &operation{config: r.Name, done: make(chan struct{}), stop: stop}
	h.staging = o
	digest := ""
	if cfg, err := parse(r.Config); err == nil {
		digest = cfg.Digest
	}
	there := h.staged == digest && h.stagedOS != "" && r.Order != nil
	h.staged, h.order = digest, r.Order
	h.counts[Stage]++
	os := h.script.OS
	if r.Beside {
		os = ""
	}
	if os != "" && !there {
		h.counts[Pull]++
		h.stagedOS = ""
	}
	delay := h.script.Delays[Stage]
	go func() {
		defer stop()
		if o.err = wait(ctx, delay); o.err == nil {
			o.err = h.fault(Stage, r.Name)
		}
		h.mu.Lock()
		if h.staging == o {
			h.staging = nil
			if o.err == nil && !there {
				h.stagedOS = os
			}
		}
		h.mu.Unlock()
		close(o.done)
	}()
	return o
}

// Unstage stops a running stage, and removes what was staged.
func (h *Host) Unstage(ctx context.Context) error {
	h.mu.Lock()
	o := h.staging
	h.mu.Unlock()
	if o != nil {
		o.stop()
		<-o.done
	}
	if err := h.do(ctx, Unstage, ""); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.pending != "" {
		return &host.Refused{Err: fmt.Errorf("%s is under way: %s", h.pending, h.phase)}
	}
	h.staged, h.stagedOS = "", ""
	return nil
}

// Order returns the policy's order of the latest stage; nil: the stage had no order.
func (h *Host) Order() *api.StageOrder {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.order
}

// Staged returns the digest of the configuration that was, or is being, brought to the disk and is not committed yet.
func (h *Host) Staged() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.staged
}

// Apply continues when ctx ends.
func (h *Host) Apply(ctx context.Context, r hands.Request) (*host.Result, error) {
	o, err := h.attach(r)
	if err != nil {
		return nil, err
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-o.done:
		return o.result, o.err
	}
}

func (h *Host) attach(r hands.Request) (*operation, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if o := h.operation; o != nil {
		if o.config != r.Name {
			return nil, &host.Refused{Err: fmt.Errorf("an apply of %s is at work on this host", o.config)}
		}
		return o, nil
	}
	h.counts[Apply]++
	h.told = r.Document
	o := &operation{config: r.Name, done: make(chan struct{})}
	h.operation = o
	go func() {
		o.result, o.err = h.apply(r)
		h.mu.Lock()
		h.operation = nil
		if o.result != nil {
			o.result.Status = h.status()
		}
		h.mu.Unlock()
		close(o.done)
	}()
	return o, nil
}

func (h *Host) apply(r hands.Request) (*host.Result, error) {
	if h.bootsLeft(r) {
		return &host.Result{Reboot: host.RebootStarted}, nil
	}
	if done, err := h.unfinished(r); done || err != nil {
		return &host.Result{Reboot: host.RebootStarted}, err
	}
	if err := h.quarantine(r); err != nil {
		return nil, err
	}
	if err := h.strict(r); err != nil {
		return nil, err
	}
	p, err := h.plan(r)
	if err == nil {
		err = host.Unreconcilable(p)
	}
	if err != nil {
		return nil, err
	}
	if r.Beside && len(p.Lost) > 0 {
		return nil, &host.Refused{Err: errors.New("others have staged an OS")}
	}
	before := h.state
	h.set(func() { h.pending, h.phase, h.state = r.Name, transaction.PhasePrepare, transaction.Working })
	h.mu.Lock()
	delay := h.script.Delays[Apply]
	h.broken = h.unready
	h.mu.Unlock()
	_ = wait(context.Background(), delay)
	if err := h.fault(Apply, r.Name); err != nil {
		h.set(func() {
			h.pending, h.phase, h.state, h.reason, h.since = "", "", transaction.Degraded, err.Error(), time.Now()
		})
		return nil, err
	}
	h.mu.Lock()
	taken := h.taken
	h.mu.Unlock()
	if taken != "" {
		h.set(func() { h.pending, h.phase, h.state = "", "", before })
		return nil, &host.Refused{Err: errors.New(taken)}
	}
	h.mu.Lock()
	h.configs[r.Name] = r.Config
	h.mu.Unlock()
	if !p.Reboot {
		h.settle(r.Name)
		return &host.Result{Plan: p, Reboot: host.RebootNone}, nil
	}
	h.set(func() { h.phase, h.left = transaction.PhaseBoot, r.NoReboot })
	if r.NoReboot {
		return &host.Result{Plan: p, Reboot: host.RebootNeeded}, nil
	}
	h.ordered(r)
	go h.reboot(r.Name)
	return &host.Result{Plan: p, Reboot: host.RebootStarted}, nil
}

// bootsLeft boots a committed configuration whose reboot was left to people, or withdraws it for another one.
func (h *Host) bootsLeft(r hands.Request) bool {
	h.mu.Lock()
	left, pending := h.left, h.pending
	h.mu.Unlock()
	switch {
	case !left || pending == r.Name && r.NoReboot:
		return false
	case pending != r.Name:
		h.set(func() { h.left, h.pending, h.phase, h.state = false, "", "", transaction.Done })
		return false
	}
	h.set(func() { h.left = false })
	h.ordered(r)
	go h.reboot(r.Name)
	return true
}

// ordered notes the order that the reboot of an update carries out.
func (h *Host) ordered(r hands.Request) {
	if r.Reboot != nil {
		h.set(func() {
			h.rebooted = &api.Rebooted{ID: r.Reboot.ID, Why: r.Reboot.Why, Begun: time.Now().UTC().Truncate(time.Second)}
		})
	}
}

// unfinished reports whether the reboot of an earlier apply of this configuration is still to come. Any other update
// that is under way is a *host.Refused.
func (h *Host) unfinished(r hands.Request) (bool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.pending == "":
		return false, nil
	case h.pending == r.Name && h.phase == transaction.PhaseBoot:
		return true, nil
	}
	return false, &host.Refused{Err: fmt.Errorf("%s is under way: %s", h.pending, h.phase)}
}

// strict refuses a host that has drifted if the request is strict and the host has no force file. Otherwise the apply
// overwrites the drift and removes the force file.
func (h *Host) strict(r hands.Request) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r.Strict && !h.script.Forced && len(h.script.Drift) > 0 {
		return &host.DriftError{Config: h.committed, Drift: slices.Clone(h.script.Drift)}
	}
	h.script.Drift, h.script.Forced = nil, false
	return nil
}

func (h *Host) quarantine(r hands.Request) error {
	cfg, err := parse(r.Config)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	at := slices.IndexFunc(h.quarantined, func(q transaction.Quarantined) bool { return q.Digest == cfg.Digest })
	switch {
	case at < 0 || h.committed == r.Name:
		return nil
	case !r.Lift:
		return &host.UnreachableError{Err: fmt.Errorf("%s is quarantined: %s", r.Name, h.quarantined[at].Reason)}
	}
	h.quarantined = slices.Delete(h.quarantined, at, at+1)
	return nil
}

func (h *Host) settle(name string) {
	h.set(func() {
		if h.committed != name {
			h.previous = h.committed
		}
		h.committed, h.pending, h.phase, h.state, h.reason, h.since = name, "", "", transaction.Done, "", time.Now()
		if o := h.rebooted; o != nil && o.Ended.IsZero() {
			over := *o
			over.Ended = time.Now().UTC().Truncate(time.Second)
			h.rebooted = &over
		}
		h.staged, h.stagedOS = "", ""
	})
}

// down acts as a reboot: the programs on the machine end, and after a while the machine is back.
func (h *Host) down() {
	h.mu.Lock()
	gone, back, delay := h.script.Gone, h.script.Back, h.script.Delays[Boot]
	h.counts[Boot]++
	h.ready, h.unready, h.taken = false, false, ""
	h.mu.Unlock()
	if gone != nil {
		gone()
	}
	_ = wait(context.Background(), delay)
	h.mu.Lock()
	h.boots++
	h.mu.Unlock()
	if back != nil {
		back()
	}
}

func (h *Host) reboot(name string) {
	h.down()
	h.set(func() { h.phase = transaction.PhaseProve })
	_ = wait(context.Background(), h.begin(Prove))
	err := h.fault(Prove, name)
	for err == nil && h.waitsForNode() {
		_ = wait(context.Background(), 20*time.Millisecond)
	}
	if err == nil {
		h.settle(name)
		return
	}
	h.set(func() { h.phase, h.reason = transaction.PhaseUndo, err.Error() })
	h.down()
	h.set(func() { h.rollBack(name, err) })
}

func (h *Host) waitsForNode() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.script.AskNode && !h.ready && !h.broken
}

func (h *Host) rollBack(name string, why error) {
	digest := ""
	if cfg, err := parse(h.configs[name]); err == nil {
		digest = cfg.Digest
	}
	h.quarantined = append(h.quarantined,
		transaction.Quarantined{Config: name, Digest: digest, Reason: why.Error(), Since: time.Now()})
	h.pending, h.phase, h.state, h.reason, h.since = "", "", transaction.RolledBack, why.Error(), time.Now()
	h.staged, h.stagedOS = "", ""
}

// Config returns the host's copy of a configuration.
func (h *Host) Config(_ context.Context, name string) ([]byte, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	document, ok := h.configs[name]
	if !ok {
		return nil, fmt.Errorf("reading the host's copy of %s: %w", name, fs.ErrNotExist)
	}
	return document, nil
}

// NodeReady takes the API server's report on the node.
func (h *Host) NodeReady(_ context.Context, ready bool, _ string, _ time.Time) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ready, h.unready = ready, !ready
	return nil
}

// NodeHeld takes the head's report. A report from before the boot does not count.
func (h *Host) NodeHeld(_ context.Context, held bool, why string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.taken = why
	if held {
		h.taken = ""
	}
	return nil
}

// Taken returns why the node is not held, in the latest report to an apply; empty: the node is held.
func (h *Host) Taken() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.taken
}

// Changed delivers when the record may have changed.
func (h *Host) Changed() <-chan struct{} { return h.changed }

// Verify finds the script's drift.
func (h *Host) Verify(ctx context.Context) (*host.Verification, error) {
	if err := h.do(ctx, Verify, ""); err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return &host.Verification{Config: h.committed, Drift: slices.Clone(h.script.Drift), Forced: h.script.Forced,
		Paths: []string{"/etc/test.conf"}}, nil
}

// Ask returns the answer of the hooks: the script's fault.
func (h *Host) Ask(ctx context.Context, r hands.Request) error {
	h.mu.Lock()
	h.told = r.Document
	h.mu.Unlock()
	return h.do(ctx, Ask, r.Name)
}

// RebootWanted asks what the script says.
func (h *Host) RebootWanted(ctx context.Context) error { return h.do(ctx, Wanted, "") }

// Reboot reboots the host once. It continues when ctx ends.
func (h *Host) Reboot(_ context.Context, r hands.Request) (*host.Result, error) {
	h.mu.Lock()
	over := h.rebooted != nil && h.rebooted.ID == r.Reboot.ID
	if !over {
		h.counts[Reboot]++
		h.rebooted = &api.Rebooted{ID: r.Reboot.ID, Why: r.Reboot.Why, Begun: time.Now().UTC().Truncate(time.Second)}
	}
	h.mu.Unlock()
	if over {
		return &host.Result{Reboot: host.RebootNone}, nil
	}
	h.set(func() {
		h.pending, h.phase, h.state, h.asIs = h.committed, transaction.PhaseBoot, transaction.Working, true
	})
	go func() {
		h.down()
		h.set(func() { h.phase = transaction.PhaseProve })
		_ = wait(context.Background(), h.begin(Prove))
		err := h.fault(Prove, h.Committed())
		h.set(func() {
			h.pending, h.phase, h.state, h.asIs, h.reason = "", "", transaction.Done, false, ""
			o := *h.rebooted
			if o.Ended = time.Now().UTC().Truncate(time.Second); err != nil {
				h.state, h.reason, o.Failed = transaction.Degraded, err.Error(), err.Error()
			}
			h.rebooted = &o
		})
	}()
	return &host.Result{Reboot: host.RebootStarted}, nil
}

// Told returns the hooks of the latest Ask or Apply.
func (h *Host) Told() hooks.Document {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.told
}

// Repair removes the requested drift, and the force file.
func (h *Host) Repair(ctx context.Context, r hands.RepairRequest) (*host.Result, error) {
	if err := h.do(ctx, Repair, strings.Join(r.Subjects, ",")); err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.script.Forced = false
	h.script.Drift = slices.DeleteFunc(slices.Clone(h.script.Drift), func(d host.Drift) bool {
		return len(r.Subjects) == 0 || slices.Contains(r.Subjects, d.Kind+" "+d.Path+d.Name+d.User)
	})
	return &host.Result{Reboot: host.RebootNone, Status: h.status()}, nil
}

// Drift makes the host drift, and announces it as a Monitor does.
func (h *Host) Drift(drift ...host.Drift) {
	h.Change(func(s *Script) { s.Drift = drift })
	h.Touch()
}

// Touch announces that something may have changed.
func (h *Host) Touch() {
	select {
	case h.touched <- struct{}{}:
	default:
	}
}

// Watch sets the watched paths.
func (h *Host) Watch(paths []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.watched = paths
}

// Watched returns the watched paths.
func (h *Host) Watched() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.watched
}

// Touched delivers when something may have changed.
func (h *Host) Touched() <-chan struct{} { return h.touched }

// Blind returns nil: every change is announced.
func (h *Host) Blind() error { return nil }

// ErrBad is an error for scripts.
var ErrBad = errors.New("kubelet.service has failed")
