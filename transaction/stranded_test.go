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

// twoDeployments has the older one booted and the newer one to boot.
type twoDeployments struct{ oneDeployment }

func (twoDeployments) Status(context.Context) ([]ostree.Deployment, error) {
	return []ostree.Deployment{{ID: "B", Default: true}, {ID: "A", Booted: true}}, nil
}

// reboots counts.
type reboots struct {
	Services
	n int
}

func (r *reboots) Reboot(context.Context) error {
	r.n++
	return nil
}

func TestSoftRebootThatLedNowhereIsFollowedByAFullOne(t *testing.T) {
	for _, c := range []struct {
		what   string
		soft   SoftReboot
		boot   string
		reboot bool
	}{
		{"it led nowhere", SoftStarted, softBoot, true},
		{"it is still to come", SoftStarted, thisBoot, false},
		{"it was somebody else's", SoftPlanned, softBoot, false},
	} {
		services := &reboots{}
		e := &Engine{Root: host(t, nil), Deployments: twoDeployments{}, Services: services, BootID: c.boot, Now: time.Now,
			Uptime: func() time.Duration { return 0 }, Say: func(string, string) {}}
		r := switching(PhaseBoot, func(p *Pending) { p.SoftReboot = c.soft })
		out, err := e.Recover(t.Context(), r)
		if err != nil || out.Rebooting != c.reboot || (services.n == 1) != c.reboot || r.Pending == nil {
			t.Errorf("%s: %+v, %v: %d reboots", c.what, out, err, services.n)
		}
	}
}
