// SPDX-License-Identifier: Apache-2.0

package transaction

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/plan"
	"github.com/noderefit/noderefit/systemd"
)

// unitGoes reports whether steps take a unit away: after the steps its file is absent or a link, as a mask is. back
// asks the same of the way back, on which the steps restore what was there before.
func unitGoes(steps []step, unit string, back bool) bool {
	i := slices.IndexFunc(steps, func(s step) bool { return s.Path == path.Join(systemd.UnitDir, unit) })
	if i < 0 {
		return false
	}
	if back {
		return goes(steps[i].Before)
	}
	return goes(steps[i].After)
}

// UnitGoes reports whether wants take a unit away.
func UnitGoes(wants []files.Want, unit string) bool {
	at := path.Join(systemd.UnitDir, unit)
	return slices.ContainsFunc(wants, func(w files.Want) bool { return w.Path == at && goes(w.Node) })
}

func goes(n files.Node) bool { return n.Type == files.Absent || n.Type == files.Symlink }

// because adds to the error of an action the change that asked for the action.
func because(err error, a plan.Action) error {
	if a.Because == "" {
		return err
	}
	return fmt.Errorf("%w, for %s", err, a.Because)
}

// afterActions adds to a verdict the actions that were carried out before it, and the changes that asked for them.
func afterActions(verdict error, actions []plan.Action) error {
	const told = 3
	var done []string
	for _, a := range actions {
		if a.Service != "" {
			done = append(done, fmt.Sprintf("%s %s for %s", a.Type, a.Service, a.Because))
		}
	}
	if len(done) == 0 {
		return verdict
	}
	if more := len(done) - told; more > 0 {
		done = append(done[:told], fmt.Sprintf("and %d more", more))
	}
	return fmt.Errorf("%w, after %s", verdict, strings.Join(done, "; "))
}
