// SPDX-License-Identifier: Apache-2.0

package transaction

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// An order is carried out only by a boot that was proved.
func TestAnOrderWithoutItsRebootIsToldAsFailed(t *testing.T) {
	for what, end := range map[string]func(ctx context.Context, e *Engine, r *Record) error{
		"another configuration is asked for": func(ctx context.Context, e *Engine, r *Record) error {
			return e.Withdraw(ctx, r, "withdrawn")
		},
		"something else has changed the OS": func(ctx context.Context, e *Engine, r *Record) error {
			err := e.Disown(ctx, r)
			e.setState(r, Done, "")
			return err
		},
	} {
		e := &Engine{Root: host(t, nil), BootID: thisBoot, Now: time.Now, Say: func(string, string) {}}
		r := switching(PhaseBoot, func(p *Pending) { p.Road, p.Deployment, p.From = RoadInPlace, "", "" })
		err := errors.Join(e.Root.MkdirAll(StateDir, 0o700), e.TakeReboot(r, &Rebooted{ID: "one"}, nil), end(t.Context(), e, r))
		if o := r.Rebooted; err != nil || r.Pending != nil || o == nil || o.ID != "one" || o.Ended.IsZero() || o.Failed == "" {
			t.Errorf("%s: %+v, %v", what, o, err)
		}
	}
}

func TestAnOrderThatEndedStaysAsItEnded(t *testing.T) {
	e := &Engine{Root: host(t, nil), BootID: thisBoot, Now: time.Now, Say: func(string, string) {}}
	r := &Record{Rebooted: &Rebooted{ID: "before", Ended: time.Unix(1, 0)}}
	r.Pending = &Pending{Phase: PhaseBoot, Road: RoadReboot}
	err := errors.Join(e.Root.MkdirAll(StateDir, 0o700), e.WithdrawReboot(t.Context(), r, "an inhibitor blocks it"))
	if o := r.Rebooted; err != nil || r.Pending != nil || o.ID != "before" || o.Failed != "" {
		t.Errorf("%+v, %v", o, err)
	}
}

// A host that was not healthy is Done after a verdict alone, and by the baseline from before it was not.
func TestAnUnhealthyHostIsNotDoneByAnotherReboot(t *testing.T) {
	good := Baseline{KubeletActive: true, KubeletHealthy: true}
	for _, c := range []struct {
		what string
		end  func(e *Engine, r *Record) error
		want State
	}{
		{"healthy", func(e *Engine, r *Record) error { return e.Settle(r) }, Done},
		{"withdrawn", func(e *Engine, r *Record) error { return e.WithdrawReboot(t.Context(), r, "withdrawn") }, Degraded},
		{"unhealthy again", func(e *Engine, r *Record) error { return e.GoBack(t.Context(), r, "kubelet", true) }, Degraded},
	} {
		e := &Engine{Root: host(t, nil), BootID: thisBoot, Now: time.Now, Say: func(string, string) {}}
		r := &Record{Standing: Standing{State: Degraded}, Rebooted: &Rebooted{Ended: time.Unix(1, 0), Baseline: &good}}
		if err := e.BeginReboot(t.Context(), r, Reboot{}); err != nil || !r.Pending.Baseline.KubeletHealthy {
			t.Errorf("%s: %v, is proved by %+v", c.what, err, r.Pending.Baseline)
		}
		if err := c.end(e, r); err != nil || r.State != c.want || (r.Rebooted.Baseline == nil) != (c.want == Done) {
			t.Errorf("%s: %v, %s: %s, %+v", c.what, err, r.State, r.Reason, r.Rebooted)
		}
	}
}

// A head that finds a host RolledBack does not send it to the same configuration again.
func TestARebootKeepsThatTheHostRolledBack(t *testing.T) {
	before := Standing{State: RolledBack, Reason: "a person asked for it", Since: time.Unix(1, 0).UTC()}
	for what, end := range map[string]func(e *Engine, r *Record) error{
		"healthy":   func(e *Engine, r *Record) error { return e.Settle(r) },
		"withdrawn": func(e *Engine, r *Record) error { return e.WithdrawReboot(t.Context(), r, "withdrawn") },
	} {
		e := &Engine{Root: host(t, nil), BootID: thisBoot, Now: time.Now, Say: func(string, string) {}}
		r := &Record{Standing: before}
		err := errors.Join(e.BeginReboot(t.Context(), r, Reboot{}), e.BeginReboot(t.Context(), r, Reboot{}), end(e, r))
		if o := r.Rebooted; err != nil || r.Standing != before || o.Ended.IsZero() || o.TakenBack {
			t.Errorf("%s: %v, %+v, %+v", what, err, r.Standing, o)
		}
	}
}

// What wants a boot is not answered by an update that restarted the userspace alone.
func TestAnOrderKnowsThatItsUpdateRestartedTheUserspace(t *testing.T) {
	e := &Engine{Root: host(t, nil), BootID: thisBoot, Now: time.Now, Say: func(string, string) {}}
	r := switching(PhaseBoot, func(p *Pending) { p.SoftReboot = SoftPlanned })
	err := errors.Join(e.Root.MkdirAll(StateDir, 0o700), e.TakeReboot(r, &Rebooted{ID: "one"}, nil))
	for _, c := range []struct {
		how  SoftReboot
		soft bool
	}{{SoftStarted, true}, {"", false}} {
		if err = errors.Join(err, e.BootBy(r, c.how)); err != nil || r.Rebooted.Soft != c.soft {
			t.Errorf("%q: %+v, %v", c.how, r.Rebooted, err)
		}
	}
	r.Rebooted.Ended = time.Unix(1, 0)
	if err := e.BootBy(r, SoftStarted); err != nil || r.Rebooted.Soft {
		t.Errorf("an order that is over: %+v, %v", r.Rebooted, err)
	}
}

// A committed update whose reboot was left to people stays so where a person's order does not begin. The next boot, of
// another cause, is no boot of that order.
func TestAnOrderThatDoesNotBeginLeavesTheRebootToPeople(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		left bool
		id   string
		over bool
	}{
		"a person's, left to people":    {true, "", true},
		"a person's, after an update":   {false, "", false},
		"the agent's, given once more":  {true, "one", false},
		"the agent's, after the update": {false, "one", false},
	} {
		e := &Engine{Root: host(t, nil), BootID: "b1", Now: time.Now, Say: func(string, string) {}}
		r := &Record{Pending: &Pending{Road: RoadSwitch, Phase: PhaseBoot, NoReboot: c.left}}
		left := r.Pending.NeedsReboot()
		err := errors.Join(e.Root.MkdirAll(StateDir, 0o700),
			e.TakeReboot(r, &Rebooted{ID: c.id, Why: "a test"}, func() (Baseline, error) { return Baseline{}, nil }),
			e.BlockReboot(t.Context(), r, left, "a program blocks it"))
		now, loading := e.store().Load()
		if err := errors.Join(err, loading); err != nil {
			t.Fatal(err)
		}
		if now.Pending.NeedsReboot() != c.over || now.Rebooted.Ended.IsZero() == c.over ||
			strings.Contains(now.Rebooted.Failed, "a program blocks it") != c.over ||
			strings.HasPrefix(now.Reason, needsReboot) != c.over {
			t.Errorf("%s: %+v, %+v, %q", what, now.Pending, now.Rebooted, now.Reason)
		}
	}
}
