// SPDX-License-Identifier: Apache-2.0

package transaction

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestWhichWayABootHasTaken(t *testing.T) {
	t.Parallel()
	const line = "BOOT_IMAGE=/vmlinuz root=LABEL=root noderefit.kexec=12ab quiet\n"
	for what, c := range map[string]struct {
		way        Way
		boot, line string
		took       Method
		why        string
	}{
		"by kexec":       {Way{Asked: MethodKexec, Started: MethodKexec, Token: "12ab"}, "k2", line, MethodKexec, ""},
		"a reset":        {Way{Asked: MethodKexec, Started: MethodKexec, Token: "12ab"}, "k2", "quiet", MethodFull, "started as Kexec"},
		"an older kexec": {Way{Asked: MethodKexec, Started: MethodKexec, Token: "12"}, "k2", line, MethodFull, "started as Kexec"},
		"a full reboot of a kernel that kexec had started": {Way{Asked: MethodKexec, Started: MethodFull, Why: "no kexec"},
			"k2", line, MethodFull, "no kexec"},
		"a soft one":            {Way{Asked: MethodSoft, Started: MethodSoft}, "k1+1", "", MethodSoft, ""},
		"the power was cut":     {Way{Asked: MethodSoft, Started: MethodSoft}, "k2", "", MethodFull, "started as Soft"},
		"somebody's soft one":   {Way{Asked: MethodCommand, Started: MethodCommand}, "k1+1", "", MethodSoft, "started as Command"},
		"a command":             {Way{Asked: MethodCommand, Started: MethodCommand}, "k2", "", MethodCommand, ""},
		"a command that failed": {Way{Asked: MethodCommand, Started: MethodFull, Why: "exit 1"}, "k2", "", MethodFull, "exit 1"},
	} {
		w := c.way
		w.Boot = "k1"
		if w.arrive(c.boot, c.line); w.Took != c.took || (w.Why == "") != (c.why == "") || !strings.Contains(w.Why, c.why) {
			t.Errorf("%s: %q, %q; want %q, %q", what, w.Took, w.Why, c.took, c.why)
		}
	}
}

// byKexec is the way of a host in thisBoot that has loaded a kernel.
func byKexec() *Way {
	return &Way{Asked: MethodKexec, Started: MethodKexec, Token: "12ab", Boot: thisBoot}
}

func TestARebootThatDoesNotComeLeavesNoKernelAndNoWay(t *testing.T) {
	t.Parallel()
	boot := func(r *Record) { *r = *switching(PhaseBoot, nil) }
	disown := func(ctx context.Context, e *Engine, r *Record) error { return e.Disown(ctx, r) }
	order := func(r *Record) { *r = Record{Pending: &Pending{Phase: PhaseBoot, Road: RoadReboot}} }
	for what, c := range map[string]struct {
		is    func(r *Record)
		end   func(ctx context.Context, e *Engine, r *Record) error
		boot  string
		loads bool // a kernel may be loaded
	}{
		"withdrawn": {boot, func(ctx context.Context, e *Engine, r *Record) error {
			return e.recoverAbort(ctx, r, Decision{Do: Abort, Why: "x"})
		}, thisBoot, true},
		"revoked": {boot, func(ctx context.Context, e *Engine, r *Record) error {
			why := errors.New("x")
			if err := e.abort(ctx, r, nil, why); !errors.Is(err, why) {
				return err
			}
			return nil
		}, thisBoot, true},
		"disowned":            {boot, disown, thisBoot, true},
		"an order, withdrawn": {order, func(ctx context.Context, e *Engine, r *Record) error { return e.WithdrawReboot(ctx, r, "x") }, thisBoot, true},
		"an order, refused": {order, func(ctx context.Context, e *Engine, r *Record) error {
			return e.RefuseReboot(ctx, r, Rebooted{}, errors.New("x"))
		}, thisBoot, true},
		"an order, disowned": {order, disown, thisBoot, true},
		"left to people":     {boot, func(ctx context.Context, e *Engine, r *Record) error { return e.LeaveReboot(ctx, r) }, thisBoot, true},
		"a return, left to people": {func(r *Record) { r.Returning = "A" }, func(ctx context.Context, e *Engine, r *Record) error {
			return e.LeaveReboot(ctx, r)
		}, thisBoot, true},
		"left to people before": {func(r *Record) { boot(r); r.Pending.NoReboot = true }, func(ctx context.Context, e *Engine, r *Record) error {
			return e.LeaveReboot(ctx, r)
		}, thisBoot, true},
		"refused by a program": {func(r *Record) { boot(r); r.Pending.SoftReboot = SoftStarted }, func(ctx context.Context, e *Engine, r *Record) error {
			if err := e.BlockReboot(ctx, r, true, "x"); r.Pending.SoftReboot != SoftPlanned {
				return errors.Join(err, errors.New("the soft reboot counts as tried"))
			}
			return nil
		}, thisBoot, true},
		"a return that came to nothing": {func(r *Record) { r.Returning = "A" }, func(ctx context.Context, e *Engine, r *Record) error {
			_, err := e.Recover(ctx, r)
			return err
		}, thisBoot, true},
		"after a soft reboot":    {boot, disown, softBoot, true},
		"after another kernel's": {boot, disown, nextBoot, false},
		"a default that has gone": {boot, func(ctx context.Context, e *Engine, r *Record) error {
			_, err := e.Recover(ctx, r)
			return err
		}, thisBoot, true},
	} {
		unloaded := 0
		e := &Engine{Root: host(t, map[string]string{StateDir + "/x": ""}), Deployments: oneDeployment("A"), BootID: c.boot, Now: time.Now,
			Uptime: func() time.Duration { return 0 }, Say: func(string, string) {}, UnloadKernel: func(context.Context) error { unloaded++; return nil }}
		r := &Record{}
		c.is(r)
		r.Way = byKexec()
		err := c.end(t.Context(), e, r)
		if err != nil || (unloaded == 1) != c.loads || unloaded > 1 {
			t.Errorf("%s: unloaded %d times, %v", what, unloaded, err)
		}
		if now, err := e.store().Load(); err != nil || now.Way != nil || now.Pending != nil && !now.Pending.NoReboot {
			t.Errorf("%s: %+v, %+v, %v", what, now.Way, now.Pending, err)
		}
	}
}

// The kernel that stays loaded is tried again by each recovery, until it can be unloaded or another kernel runs.
func TestAKernelThatStaysLoadedIsTriedAgain(t *testing.T) {
	t.Parallel()
	for what, way := range map[string]*Way{
		"the reboot did not come": byKexec(),
		"a soft reboot came":      {Asked: MethodKexec, Started: MethodKexec, Token: "12ab", Boot: thisBoot, Took: MethodSoft},
	} {
		stuck, said := errors.New("not permitted:\nkexec"), ""
		e := &Engine{Root: host(t, map[string]string{StateDir + "/x": ""}), Deployments: oneDeployment("A"), BootID: thisBoot,
			Now: time.Now, Uptime: func() time.Duration { return 0 }, Say: func(_, what string) { said = what },
			UnloadKernel: func(context.Context) error { return stuck }}
		r := &Record{Pending: &Pending{Phase: PhaseBoot, Road: RoadReboot}, Way: way}
		err := e.WithdrawReboot(t.Context(), r, "x")
		if now, loading := e.store().Load(); err != nil || loading != nil || now.Way.Loaded(thisBoot) != "12ab" ||
			said != "not permitted:; kexec" {
			t.Fatalf("%s: %+v, %q, %v, %v", what, now.Way, said, err, loading)
		}
		stuck = nil
		_, err = e.Recover(t.Context(), r)
		if now, loading := e.store().Load(); err != nil || loading != nil || now.Way.Loaded(thisBoot) != "" ||
			(now.Way == nil) != (way.Took == "") {
			t.Errorf("%s: %+v, %v, %v", what, now.Way, err, loading)
		}
	}
}

// The reboot of people has no way of the agent's: that of an earlier reboot would be told of theirs.
func TestNoEarlierWayIsToldOfARebootThatIsLeftToPeople(t *testing.T) {
	t.Parallel()
	e := &Engine{Root: host(t, map[string]string{StateDir + "/x": ""}), BootID: nextBoot, Now: time.Now}
	r := switching(PhaseBoot, nil)
	r.Way = byKexec()
	r.Way.Took = MethodKexec
	err := e.LeaveReboot(t.Context(), r)
	if now, loading := e.store().Load(); err != nil || loading != nil || now.Way != nil || !now.Pending.NeedsReboot() {
		t.Errorf("%+v, %v, %v", now, err, loading)
	}
}

func TestAWayIsKnownWhereverTheBootLed(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		boot    string
		pending *Pending
		took    Method
	}{
		"the update was dropped":       {nextBoot, nil, MethodFull},
		"the deployment before booted": {nextBoot, switching(PhaseBoot, nil).Pending, MethodFull},
		"somebody's soft reboot":       {softBoot, switching(PhaseBoot, nil).Pending, MethodSoft},
		"no boot yet":                  {thisBoot, switching(PhaseBoot, nil).Pending, ""},
		"a full boot is to follow":     {softBoot, switching(PhaseBoot, func(p *Pending) { p.SoftReboot = SoftStarted }).Pending, ""},
	} {
		e := &Engine{Root: host(t, map[string]string{StateDir + "/x": ""}), BootID: c.boot,
			Deployments: &restless{shelf: &shelf{{ID: "B", Default: true}, {ID: "A", Booted: true}}}, Now: time.Now,
			Uptime: func() time.Duration { return 0 }, Say: func(string, string) {}}
		r := &Record{Committed: &Revision{Config: "a", Deployment: "A"}, Pending: c.pending, Way: byKexec()}
		saving := e.store().save(r)
		_, err := e.Recover(t.Context(), r)
		now, loading := e.store().Load()
		if err = errors.Join(saving, err, loading); err != nil || now.Way == nil || now.Way.Took != c.took || (now.Way.Why == "") != (c.took == "") {
			t.Errorf("%s: %+v, %v; want %q", what, now.Way, err, c.took)
		}
		if c.took == "" {
			continue
		}
		e.BootID = "a later one"
		if e.arrived(now); now.Way.Took != c.took {
			t.Errorf("%s: a later boot made it %q", what, now.Way.Took)
		}
	}
}
