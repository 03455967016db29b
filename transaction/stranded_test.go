// SPDX-License-Identifier: Apache-2.0

package transaction

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/noderefit/noderefit/ostree"
)

// oneDeployment is a host on which somebody has removed all deployments but the booted one.
type oneDeployment string

func (id oneDeployment) Status(context.Context) ([]ostree.Deployment, error) {
	return []ostree.Deployment{{ID: string(id), Booted: true, Default: true}}, nil
}

func (oneDeployment) Materialise(context.Context, ostree.Request) (ostree.Deployment, error) {
	return ostree.Deployment{}, errors.ErrUnsupported
}
func (oneDeployment) SetDefault(context.Context, string) error { return errors.ErrUnsupported }
func (oneDeployment) Discard(context.Context, string) error    { return errors.ErrUnsupported }

func TestWhatCannotGoBackIsNotDoneWithoutAVerdict(t *testing.T) {
	bad := errors.New("x.service failed")
	for _, c := range []struct {
		what                          string
		refused                       bool // by a verdict
		verdicts                      []error
		quarantined, unproved, isDone bool
	}{
		{"a verdict said no", true, nil, true, true, false},
		{"somebody asked to go back", false, nil, false, true, false},
		{"and then a verdict says yes", false, []error{nil}, false, false, true},
		{"and then a verdict says no", false, []error{bad}, true, true, false},
	} {
		root := host(t, map[string]string{StateDir + "/configs/x": ""})
		e := &Engine{Root: root, Deployments: oneDeployment("B"), Now: time.Now, Say: func(string, string) {}}
		r := switching(PhaseProve, nil)
		if err := e.GoBack(t.Context(), r, "asked", c.refused); !errors.Is(err, ErrStranded) {
			t.Fatalf("%s: %v", c.what, err)
		}
		for _, verdict := range c.verdicts {
			if err := e.Judge(r, verdict); err != nil {
				t.Fatal(err)
			}
		}
		e.Fail(r, Done, errors.New("")) // whoever finds nothing to do
		r, err := e.store().Load()
		if err != nil {
			t.Fatal(err)
		}
		if got := r.Quarantine("bb") != nil; r.Pending != nil || r.Committed.Config != "b" || got != c.quarantined ||
			r.Committed.Unproved != c.unproved || (r.State == Done) != c.isDone {
			t.Errorf("%s: %+v, committed %+v", c.what, r, r.Committed)
		}
	}
}
