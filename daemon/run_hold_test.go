// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/transaction"
)

// listener is a host that records the reports on the hold of its node.
type listener struct {
	Senses

	words []bool
}

func (l *listener) NodeHeld(_ context.Context, held bool, _ string) error {
	l.words = append(l.words, held)
	return nil
}

func TestHostIsToldThatItsNodeIsNotHeldUntilItIsDrainedAgain(t *testing.T) {
	nodeAs := func(unschedulable, ledger bool) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{api.DesiredConfig: cfgB}}}
		n.Spec.Unschedulable = unschedulable
		if ledger {
			n.Annotations[api.CordonKey] = api.Encode(api.Cordon{By: api.Daemon, Config: cfgB, Since: then})
		}
		return n
	}
	ours, lost, theirs := nodeAs(true, true), nodeAs(false, true), nodeAs(true, false)
	preparing := hostAt(cfgA, cfgB, transaction.PhasePrepare, transaction.Working)
	type step struct {
		node  *corev1.Node
		after time.Duration
		told  int // the number of reports so far
	}
	cases := []struct {
		name  string
		host  *host.Status
		job   *job
		steps []step
	}{
		{"uncordoned while it applies", preparing, &job{phase: PhaseApply, config: cfgB},
			[]step{{ours, 0, 0}, {lost, 0, 1}, {ours, 0, 1}, {ours, 2 * wordPace, 2}, {ours, 4 * wordPace, 3}}},
		{"uncordoned before its record says anything", hostAt(cfgA, "", "", transaction.Done), &job{phase: PhaseApply, config: cfgB},
			[]step{{ours, 0, 0}, {lost, 0, 1}, {ours, 2 * wordPace, 2}}},
		{"taken over by somebody else", preparing, &job{phase: PhaseApply, config: cfgB},
			[]step{{ours, 0, 0}, {theirs, 0, 1}}},
		{"somebody else's from the beginning", preparing, &job{phase: PhaseApply, config: cfgB}, []step{{theirs, 0, 0}}},
		{"uncordoned while no head was there", preparing, nil, []step{{lost, 0, 1}, {ours, 2 * wordPace, 2}}},
		{"a head that finds it cordoned", preparing, nil, []step{{ours, 0, 0}, {ours, time.Hour, 0}}},
		{"uncordoned after the boot", hostAt(cfgB, "", "", transaction.Done), nil, []step{{ours, 0, 0}, {nodeAs(false, false), 0, 0}}},
	}
	warn := row(t, "warn the host")
	for _, c := range cases {
		h, _ := quietHead(t)
		l := &listener{}
		h.o.Senses, h.host, h.job = l, c.host, c.job
		h.way = way{from: cfgA, to: cfgB, plan: rebootPlan(), staged: true, drained: then}
		if c.host.Config.Committed == cfgB {
			h.way = way{from: cfgB, to: cfgB}
		}
		for i, s := range c.steps {
			now := then.Add(s.after)
			warn.begin(t.Context(), h, h.situation(s.node, now))
			if len(l.words) != s.told {
				t.Errorf("%s, step %d: told %d times, want %d", c.name, i, len(l.words), s.told)
			}
		}
		for _, held := range l.words {
			if held {
				t.Errorf("%s: told that it is held", c.name)
			}
		}
		h.finish(jobEnd{job: &job{phase: PhaseDrain, config: h.way.to, cancel: func(error) {}}})
		told := len(l.words)
		if warn.begin(t.Context(), h, h.situation(ours, then.Add(2*time.Hour))); len(l.words) != told {
			t.Errorf("%s: told again after the drain", c.name)
		}
	}
}
