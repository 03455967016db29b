// SPDX-License-Identifier: Apache-2.0

package transaction

import (
	"errors"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/plan"
)

func TestAUnitGoesWhereItsFileDoesOrAMaskComes(t *testing.T) {
	t.Parallel()
	steps := []step{
		{Path: "/etc/systemd/system/new.service", Before: files.Node{Type: files.Absent}, After: files.Node{Type: files.Regular}},
		{Path: "/etc/systemd/system/old.service", Before: files.Node{Type: files.Regular}, After: files.Node{Type: files.Absent}},
		{Path: "/etc/systemd/system/same.service", Before: files.Node{Type: files.Regular}, After: files.Node{Type: files.Regular}},
		{Path: "/etc/systemd/system/masked.service", Before: files.Node{Type: files.Regular},
			After: files.Node{Type: files.Symlink, Target: "/dev/null"}},
		{Path: "/etc/systemd/system/multi-user.target.wants/gone.service", Before: files.Node{Type: files.Symlink},
			After: files.Node{Type: files.Absent}},
	}
	for unit, want := range map[string]struct{ there, back bool }{
		"new.service": {false, true}, "old.service": {true, false}, "same.service": {false, false},
		"masked.service": {true, false}, "gone.service": {false, false}, "other.service": {false, false},
	} {
		if got := unitGoes(steps, unit, false); got != want.there {
			t.Errorf("%s goes: %t", unit, got)
		}
		if got := unitGoes(steps, unit, true); got != want.back {
			t.Errorf("%s goes on the way back: %t", unit, got)
		}
	}
	wants := []files.Want{{Path: steps[1].Path, Node: steps[1].After}, {Path: steps[0].Path, Node: steps[0].After}}
	if !UnitGoes(wants, "old.service") || UnitGoes(wants, "new.service") || UnitGoes(wants, "other.service") {
		t.Error("what is wanted says something else")
	}
}

func TestAnErrorOfAnActionNamesWhatAskedForIt(t *testing.T) {
	t.Parallel()
	why := errors.New("restarting b.service: no")
	restart := plan.Action{Type: plan.ActionRestart, Service: "b.service", Because: "file /etc/b: policy for file /etc/b"}
	if got := because(why, restart); !errors.Is(got, why) || !strings.HasSuffix(got.Error(), "no, for file /etc/b: policy for file /etc/b") {
		t.Error(got)
	}
	got := afterActions(why, []plan.Action{{Type: plan.ActionDaemonReload}, restart})
	if !errors.Is(got, why) || !strings.HasSuffix(got.Error(), ", after Restart b.service for file /etc/b: policy for file /etc/b") {
		t.Error(got)
	}
	if got := afterActions(why, []plan.Action{restart, restart, restart, restart, restart}); !strings.HasSuffix(got.Error(), "; and 2 more") ||
		strings.Count(got.Error(), "Restart") != 3 {
		t.Error(got)
	}
	if got := afterActions(why, []plan.Action{{Type: plan.ActionNone}}); got.Error() != why.Error() {
		t.Error(got)
	}
}
