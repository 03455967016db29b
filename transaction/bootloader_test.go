// SPDX-License-Identifier: Apache-2.0

package transaction

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"
)

// loaded is a host without ostree: two files of its boot loader, of which the boots have their arguments from the
// first, and which arguments this boot has. Its power can go once, before or after each write.
type loaded struct {
	reboots

	files        [2]bool // whether a file is of the new side
	runs         bool    // whether this boot is of the new side
	deaf         bool    // the boot loader has its arguments from elsewhere
	moments, cut int
}

// moment stops the program where the power goes.
func (l *loaded) moment() {
	if l.moments++; l.moments == l.cut {
		panic(errOff)
	}
}

// powered does something until it is over, or until the power goes.
func powered(do func() error) (err error) {
	defer func() {
		if off := recover(); off != nil && off != any(errOff) {
			panic(off)
		}
	}()
	return do()
}

func (l *loaded) Write(_ context.Context, _ []byte, old bool, before func(string) error) error {
	for i, is := range l.files {
		if is != old {
			continue
		}
		if err := before(fmt.Sprint(i)); err != nil {
			return err
		}
		l.moment()
		l.files[i] = !old
		l.moment()
	}
	return nil
}

func (l *loaded) State(_ []byte, old bool) (written, booted bool, err error) {
	return !slices.Contains(l.files[:], old), l.runs != old, nil
}

func (l *loaded) Forget([]byte) error { return nil }

// Whichever write the power goes at, all files of the boot loader are of the side that the record names in the end, and
// so is the boot that was proved.
func TestTheBootLoadersFilesEndOnTheSideOfTheRecord(t *testing.T) {
	for _, c := range []struct {
		what          string
		deaf, healthy bool
		want          string
		state         State
		boots         int // without a cut; one more may be the price of a cut
	}{
		{"good", false, true, "b", Done, 1},
		{"bad", false, false, "", RolledBack, 2},
		{"the boot loader does not take the arguments", true, true, "", RolledBack, 5},
	} {
		for cut := 0; ; cut++ {
			l := &loaded{deaf: c.deaf, cut: cut}
			e := &Engine{Root: inMemory(t), BootLoader: l, Services: l, BootID: "boot-0", Now: time.Now,
				Uptime: func() time.Duration { return time.Minute }, Say: func(string, string) {}}
			boots, err := l.run(t.Context(), e, c.healthy)
			r, loading := e.store().Load()
			if err = errors.Join(err, loading); err != nil || r.Pending != nil {
				t.Fatalf("%s, cut %d: %d boots, %+v, %v", c.what, cut, boots, r, err)
			}
			side := c.want == "b"
			if r.From() != c.want || r.State != c.state || l.files != [2]bool{side, side} || l.runs != side ||
				boots > c.boots && cut == 0 || boots > c.boots+1 {
				t.Errorf("%s, cut %d: %d boots, %+v: files %v, runs %t", c.what, cut, boots, r, l.files, l.runs)
			}
			if l.moments < cut {
				break
			}
		}
	}
}

// run takes the host through an update to its rest.
func (l *loaded) run(ctx context.Context, e *Engine, healthy bool) (boots int, err error) {
	err = powered(func() error {
		return carryOut(ctx, e.NewStaged(&Record{}, Staged{Road: RoadInPlace, Update: Update{Loader: []byte("{}"),
			Revision: Revision{Config: "b", Digest: "bb"}, Document: []byte("{}"), Timeout: time.Hour}}))
	})
	for more := true; more && err == nil && boots < 12; {
		boots++
		l.runs, e.BootID, more = l.files[0] && !l.deaf, fmt.Sprintf("boot-%d", boots), true
		err = powered(func() (err error) {
			more, err = l.turn(ctx, e, healthy)
			return err
		})
	}
	return boots, err
}

// turn is what the agent does in a boot; more reports whether another one follows.
func (l *loaded) turn(ctx context.Context, e *Engine, healthy bool) (more bool, err error) {
	r, err := e.store().Load()
	if err != nil {
		return false, err
	}
	out, err := e.Recover(ctx, r)
	if err != nil || out.Rebooting || r.Pending == nil {
		return out.Rebooting, err
	}
	if healthy && l.runs {
		return false, e.Settle(r)
	}
	return true, e.GoBack(ctx, r, "x.service failed", true)
}

// A host boots once more for its arguments, and not for ever.
func TestAnotherBootIsForArgumentsThatThisOneHasNot(t *testing.T) {
	yes := [2]bool{true, true}
	for _, c := range []struct {
		what     string
		old      bool
		l        loaded
		reread   string
		attempts int
		again    bool
		refused  bool
	}{
		{"the boot has them", false, loaded{files: yes, runs: true}, "", 1, false, false},
		{"the boot has them, and a file does not", false, loaded{files: [2]bool{true, false}, runs: true}, "", 3, false, false},
		{"a cut before the files were written", false, loaded{}, "", 1, true, false},
		{"written, and the boot loader missed it", false, loaded{files: yes}, "", 3, true, false},
		{"written, and the boot loader missed it again", false, loaded{files: yes}, "boot-1", 2, true, false},
		{"the boot loader never takes them", false, loaded{files: yes}, "boot-1", 3, false, true},
		{"not written for as long", false, loaded{}, "boot-1", 3, true, false},
		{"back", true, loaded{}, "", 3, false, false},
		{"on the way back, not written", true, loaded{files: yes, runs: true}, "", 3, true, false},
		{"on the way back, missed", true, loaded{runs: true}, "", 2, true, false},
		{"the boot loader never gives them up", true, loaded{runs: true}, "", 3, false, true},
	} {
		p := &Pending{Attempts: c.attempts, MaxAttempts: 3, Reread: c.reread}
		why, refused, err := (&Engine{BootLoader: &c.l}).unbooted(p, &journal{Loader: []byte("{}")}, c.old)
		if err != nil || (why != "") != c.again || refused != c.refused {
			t.Errorf("%s: %q, refused %t, %v", c.what, why, refused, err)
		}
	}
}
