// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"strings"
	"testing"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

func TestEtcdHoldsTheControlPlaneWhateverIsBypassed(t *testing.T) {
	t.Parallel()
	etcd := &progress.Etcd{Members: []progress.EtcdMember{
		{Namespace: "kube-system", Pod: "etcd-a", Node: "a"},
		{Namespace: "kube-system", Pod: "etcd-b", Node: "b", Trouble: "crashed"},
		{Namespace: "kube-system", Pod: "etcd-x", Node: "x"},
	}}
	for name, c := range map[string]struct {
		spec api.RolloutPolicySpec
		pool string
		held string
	}{
		"as it is":      {api.RolloutPolicySpec{}, "master", "a:EtcdUnhealthy"},
		"required":      {api.RolloutPolicySpec{ControlPlane: &api.ControlPlanePolicy{Etcd: api.EtcdRequired}}, "master", "a:EtcdUnhealthy"},
		"nothing said":  {api.RolloutPolicySpec{ControlPlane: &api.ControlPlanePolicy{}}, "master", "a:EtcdUnhealthy"},
		"ignored":       {api.RolloutPolicySpec{ControlPlane: &api.ControlPlanePolicy{Etcd: api.EtcdIgnored}}, "master", ""},
		"other nodes":   {api.RolloutPolicySpec{}, "worker", ""},
		"other members": {api.RolloutPolicySpec{}, "control-plane", "a:EtcdUnhealthy"},
	} {
		for _, bypassed := range []bool{false, true} {
			p := pool(t, c.pool, "a A Done", "b A Done", "x B Done")
			p.Etcd = etcd
			if bypassed {
				p.Bypass = &api.Bypass{Config: "B"}
			}
			follow([]api.RolloutPolicy{policyOf(c.spec, c.pool)}, p)
			if got := held(p); got != c.held {
				t.Errorf("%s: %q, want %q", name, got, c.held)
			}
			if c.held != "" && p.Rules.Next.IsZero() {
				t.Errorf("%s: nobody looks again", name)
			}
		}
	}
	p := pool(t, "master", "a A Done", "b A Done")
	p.Etcd = etcd
	follow(nil, p)
	if got := held(p); got != "" {
		t.Errorf("without a policy: %q", got)
	}
	// A repair is no reason to lose etcd.
	p = poolThatFailed(t, "master", []api.Quarantine{{Config: "B", Gate: "smoke", Reason: "no", Since: now}},
		"a B Done", "b B Done", "x A Done")
	p.Previous, p.Etcd = "A", etcd
	follow([]api.RolloutPolicy{policyOf(api.RolloutPolicySpec{}, "master")}, p)
	if got := held(p); !p.GoesBack() || got != "a:EtcdUnhealthy x:EtcdUnhealthy" {
		t.Errorf("on the way back: %q", got)
	} else if back := p.Backwards(); held(&back) != "a:EtcdUnhealthy x:EtcdUnhealthy" {
		t.Errorf("as the way back is chosen: %q", held(&back))
	}
	// All have arrived, one of them without its member: it is not over before that is back, and never asked after it.
	p = pool(t, "master", "a B Done", "b B Done", "x B Done")
	p.Previous, p.Etcd = "A", etcd
	follow([]api.RolloutPolicy{policyOf(api.RolloutPolicySpec{}, "master")}, p)
	if u := p.Rules.Unproved; p.Complete() || u == nil || u.Verdict != progress.EtcdUnhealthy || p.Rules.Next.IsZero() {
		t.Errorf("at the end: %+v", u)
	}
	p.Previous = "B"
	follow([]api.RolloutPolicy{policyOf(api.RolloutPolicySpec{}, "master")}, p)
	if !p.Complete() {
		t.Errorf("after the end: %+v", p.Rules.Unproved)
	}
	// A node that has the target leaves it where it is to try something else.
	p = pool(t, "master", "a B Done", "b B Done", "x B Done")
	p.Previous, p.Etcd = "B", etcd
	p.Nodes[0].Trial = &api.Trial{Config: "C", From: "B", Since: now, Bypass: true}
	follow([]api.RolloutPolicy{policyOf(api.RolloutPolicySpec{}, "master")}, p)
	if s := p.TrialStep(&p.Nodes[0], now); s.Send != "" || !strings.Contains(s.Waits, "crashed") || !p.Complete() {
		t.Errorf("a trial: %+v", s)
	}
	if note := p.Rules.Trials["a"]; !strings.Contains(note, "crashed") {
		t.Errorf("says of the trial: %q", note)
	}
	// Nor does it go back meanwhile, and it says so.
	p.Nodes[0].Trial, p.Nodes[0].Current, p.Nodes[0].Desired = nil, "C", "C"
	p.Nodes[0].Tried = &api.Tried{Config: "C", From: "B", Begun: now, Ended: now, Because: "its time is over"}
	follow([]api.RolloutPolicy{policyOf(api.RolloutPolicySpec{}, "master")}, p)
	kept := p.Rules.Kept["a"]
	if s := p.TrialStep(&p.Nodes[0], now); s.Send != "" || !strings.Contains(s.Waits, "crashed") {
		t.Errorf("the way back: %+v", s)
	} else if kept == nil || !strings.Contains(kept.Because, "crashed") || !strings.Contains(kept.Do, "etcd-b") {
		t.Errorf("says of the way back: %+v", kept)
	}
	// A node of another pool of the control plane without a member counts.
	p, arbiter := pool(t, "master", "a A Done", "x A Done"), pool(t, "arbiter", "c B Done")
	p.Etcd = &progress.Etcd{Members: []progress.EtcdMember{{Node: "a"}, {Node: "x"}}}
	follow([]api.RolloutPolicy{policyOf(api.RolloutPolicySpec{}, "master")}, p, arbiter)
	if got := held(p); got != "a:EtcdUnhealthy x:EtcdUnhealthy" {
		t.Errorf("without a member on c: %q", got)
	}
}

func TestWhoDoesNotWatchEtcdGoesByWhatTheControllerReports(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		reported *progress.Hold
		policies []api.RolloutPolicy
		held     string
	}{
		"etcd": {
			&progress.Hold{Verdict: progress.EtcdUnhealthy, Because: "etcd-b crashed"},
			[]api.RolloutPolicy{policyOf(api.RolloutPolicySpec{}, "master")}, "a:EtcdUnhealthy",
		},
		"no policy any more": {&progress.Hold{Verdict: progress.EtcdUnhealthy, Because: "etcd-b crashed"}, nil, ""},
		"what it can find out itself": {
			&progress.Hold{Verdict: progress.OutsideWindow},
			[]api.RolloutPolicy{policyOf(api.RolloutPolicySpec{}, "master")}, "",
		},
		"nothing": {nil, []api.RolloutPolicy{policyOf(api.RolloutPolicySpec{}, "master")}, ""},
	} {
		p := pool(t, "master", "a A Done")
		p.Reported = c.reported
		NewBook(c.policies, Unasked).FollowReported([]*progress.Pool{p}, now, "")
		if got := held(p); got != c.held {
			t.Errorf("%s: %q, want %q", name, got, c.held)
		}
	}
}
