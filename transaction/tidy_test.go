// SPDX-License-Identifier: Apache-2.0

package transaction

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/noderefit/noderefit/ostree"
)

// shelf is a host's deployments, of which the booted one can't be removed, nor what stands on a full disk.
type shelf []ostree.Deployment

const onFullDisk = "full"

func (s *shelf) Status(context.Context) ([]ostree.Deployment, error) { return slices.Clone(*s), nil }

func (s *shelf) Discard(_ context.Context, id string) error {
	if slices.ContainsFunc(*s, func(d ostree.Deployment) bool { return d.ID == id && d.Booted }) {
		return errors.New("it is the one that runs")
	}
	if slices.ContainsFunc(*s, func(d ostree.Deployment) bool { return d.ID == id && d.Version == onFullDisk }) {
		return errors.New("no space left on device")
	}
	*s = slices.DeleteFunc(*s, func(d ostree.Deployment) bool { return d.ID == id })
	return nil
}

func (*shelf) Materialise(context.Context, ostree.Request) (ostree.Deployment, error) {
	return ostree.Deployment{}, errors.ErrUnsupported
}
func (*shelf) SetDefault(context.Context, string) error { return errors.ErrUnsupported }

func (s *shelf) ids() []string {
	var ids []string
	for _, d := range *s {
		ids = append(ids, d.ID)
	}
	return ids
}

// Somebody may have booted one that had failed, or pinned one that has had its day.
func TestDeploymentsOfOursThatSomebodyBootedOrPinnedStay(t *testing.T) {
	s := &shelf{{ID: "booted", Booted: true}, {ID: "pinned", Pinned: true}, {ID: "left"}, {ID: "foreign"}}
	root := host(t, map[string]string{StateDir + "/configs/x": ""})
	e := &Engine{Root: root, Deployments: s, Now: time.Now, Say: func(string, string) {}}
	r := &Record{Discard: []string{"left", "pinned", "booted", "gone"}}
	for range 2 {
		if err := e.Tidy(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		if got := s.ids(); !slices.Equal(got, []string{"booted", "pinned", "foreign"}) {
			t.Errorf("there are %v", got)
		}
		if !slices.Equal(r.Discard, []string{"pinned", "booted"}) {
			t.Errorf("to be removed are %v", r.Discard)
		}
	}
	(*s)[0].Booted, (*s)[1].Pinned = false, false
	if err := e.Tidy(t.Context(), r); err != nil || len(r.Discard) > 0 || !slices.Equal(s.ids(), []string{"foreign"}) {
		t.Errorf("%v; there are %v, to be removed are %v", err, s.ids(), r.Discard)
	}
	r, err := e.store().Load()
	if err != nil || len(r.Discard) > 0 {
		t.Errorf("%v; the record has %v", err, r.Discard)
	}
}

func TestWhatSomethingElseHasChangedIsForgottenOnceThatIsUndone(t *testing.T) {
	s := &shelf{{ID: "A", Booted: true, Default: true}, {ID: "X"}, {ID: "Y"}}
	root := host(t, map[string]string{StateDir + "/configs/x": ""})
	e := &Engine{Root: root, Deployments: s, Now: time.Now, Say: func(string, string) {},
		Uptime: func() time.Duration { return time.Minute }}
	boot := func(id string) *Record {
		t.Helper()
		for i := range *s {
			(*s)[i].Booted = (*s)[i].ID == id
		}
		r, err := e.store().Load()
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // at the boot, and by an apply
			if _, err := e.Recover(t.Context(), r); err != nil {
				t.Fatal(err)
			}
		}
		return r
	}
	was := Standing{State: RolledBack, Reason: "x.service failed", Since: time.Unix(1, 0).UTC()}
	if err := e.store().save(&Record{Committed: &Revision{Config: "a", Deployment: "A"}, Standing: was}); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"X", "Y", "A"} {
		r := boot(id)
		if own := id == "A"; (r.Standing == was) != own || (r.State == Degraded) == own {
			t.Errorf("on %s it is %+v", id, r.Standing)
		}
	}
	// What failed meanwhile is nothing that a boot undoes.
	r := boot("X")
	e.Fail(r, Degraded, errors.New("no space"))
	if r = boot("A"); r.State != Degraded || r.Reason != "no space" {
		t.Errorf("it is %+v", r.Standing)
	}
}

func TestWhatCannotBeRemovedIsSaidUntilItIs(t *testing.T) {
	s := &shelf{{ID: "A", Booted: true, Default: true}, {ID: "B", Version: onFullDisk}}
	root := host(t, map[string]string{StateDir + "/configs/x": ""})
	e := &Engine{Root: root, Deployments: s, Now: time.Now, Say: func(string, string) {},
		Uptime: func() time.Duration { return time.Minute }}
	interrupted := switching(PhaseBoot, nil)
	if err := e.store().save(interrupted); err != nil {
		t.Fatal(err)
	}
	recovered := func() (*Record, error) {
		t.Helper()
		r, err := e.store().Load()
		if err != nil {
			t.Fatal(err)
		}
		_, err = e.Recover(t.Context(), r)
		if r, loadErr := e.store().Load(); loadErr == nil {
			return r, err
		}
		return r, err
	}
	if r, err := recovered(); err == nil || r.State != Degraded || !strings.Contains(r.Reason, "no space left") || r.Pending == nil {
		t.Errorf("%v; it is %+v", err, r.Standing)
	}
	(*s)[1].Version = ""
	if r, err := recovered(); err != nil || r.State != Done || r.Pending != nil || len(*s) != 1 {
		t.Errorf("%v; it is %+v", err, r.Standing)
	}
}
