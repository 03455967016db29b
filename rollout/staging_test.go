// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

// staging is pool worker at target B, of nodes as node writes them, with more words: asked, staged=digest ("none" for
// none), unable=how many tries, the last of them a minute ago; moving to the target is written A>B.
func staging(t *testing.T, nodes ...string) *progress.Pool {
	t.Helper()
	var plain []string
	more := map[string][]string{}
	for _, text := range nodes {
		words := strings.Fields(text)
		if len(words) == 1 {
			words = append(words, "A", "Done")
		}
		isOurs := func(w string) bool {
			return w == "asked" || strings.HasPrefix(w, "staged=") || strings.HasPrefix(w, "unable=")
		}
		for _, w := range words {
			if isOurs(w) {
				more[words[0]] = append(more[words[0]], w)
			}
		}
		plain = append(plain, strings.Join(slices.DeleteFunc(words, isOurs), " "))
	}
	p := pool(t, "worker", plain...)
	for i := range p.Nodes {
		n := &p.Nodes[i]
		for _, w := range more[n.Name] {
			key, value, _ := strings.Cut(w, "=")
			if key != "unable" {
				n.Orders.Stage = &api.StageOrder{Config: "B"}
			}
			switch key {
			case "staged":
				n.Staged = &api.Staged{Config: "B", Digest: strings.TrimPrefix(value, "none"), Since: now}
			case "unable":
				n.Staged = &api.Staged{Config: "B", Error: "the disk is full", Tries: len(value), Since: now.Add(-time.Minute)}
			}
		}
	}
	return p
}

// asked are the nodes that are asked to stage.
func asked(p *progress.Pool) string {
	var out []string
	for _, n := range p.Nodes {
		if p.Rules.Orders[n.Name].Stage != nil {
			out = append(out, n.Name)
		}
	}
	return strings.Join(out, " ")
}

func TestNodesAreAskedToStageAsManyAtATimeAsMay(t *testing.T) {
	t.Parallel()
	closed := &api.RolloutWindows{Open: []api.Window{{Cron: "0 22 * * *", DurationMinutes: 60}}}
	finish := &api.RolloutWindows{Open: closed.Open, OnClose: api.CloseFinishes}
	for name, c := range map[string]struct {
		spec   api.RolloutStaging
		nodes  []string
		change func(*progress.Pool)
		asked  string
		next   time.Duration // until the rules change; 0: they do not
	}{
		"one at a time in a small pool": {nodes: []string{"a A Done", "b A Done"}, asked: "a"},
		"a tenth of a large one": {
			nodes: strings.Split("a b c d e f g h i j k l m n o p q r s t", " "), asked: "a b",
		},
		"as many as the policy says": {
			spec: api.RolloutStaging{MaxConcurrent: number("2")}, nodes: []string{"a A Done", "b A Done", "c A Done"}, asked: "a b",
		},
		"a percentage is rounded down": {
			spec: api.RolloutStaging{MaxConcurrent: number("50%")}, nodes: []string{"a A Done", "b A Done", "c A Done"}, asked: "a",
		},
		"one that has staged makes room, and keeps what it has": {
			nodes: []string{"a A Done staged=x", "b A Done", "c A Done"}, asked: "a b",
		},
		"one that is at it does not": {nodes: []string{"a A Done", "b A Done asked"}, asked: "b"},
		"one that stages on its way does not": {
			nodes: []string{"a A Done", "b A>B Working"}, asked: "",
		},
		"the order is taken back of one that could not": {
			nodes: []string{"a A Done asked unable=xx", "b A Done"}, asked: "", next: time.Minute,
		},
		"it makes room until it is due": {nodes: []string{"a A Done unable=xx", "b A Done"}, asked: "b", next: time.Minute},
		"it is due and was asked already": {
			nodes: []string{"a A Done asked unable=x", "b A Done"}, asked: "a",
		},
		"it is due again": {nodes: []string{"a A Done unable=x"}, asked: "a"},
		"those that never tried come first": {
			nodes: []string{"a A Done unable=x", "b A Done"}, asked: "b",
		},
		"the order is taken back of one that is not ready": {nodes: []string{"a A Done asked notready", "b A Done"}, asked: ""},
		"it makes room": {nodes: []string{"a A Done notready", "b A Done"}, asked: "b"},
		"one on which it failed has no use for it": {
			nodes: []string{"a A Done failed=B", "b A Done"}, asked: "b",
			change: func(p *progress.Pool) { p.Rules.FailureBudget = 2 },
		},
		"a node that is there needs none": {nodes: []string{"a B Done staged=x", "b A Done"}, asked: "b"},
		"no window of staging is open": {
			spec: api.RolloutStaging{Windows: closed}, nodes: []string{"a A Done", "b A Done asked", "c A Done staged=x"}, asked: "c",
			next: 10 * time.Hour,
		},
		"those that are at it finish": {
			spec: api.RolloutStaging{Windows: finish}, nodes: []string{"a A Done", "b A Done asked", "c A Done staged=x"}, asked: "b c",
			next: 10 * time.Hour,
		},
		"a paused pool keeps what it has and asks nobody": {
			nodes: []string{"a A Done", "b A Done staged=x"}, asked: "b",
			change: func(p *progress.Pool) { p.Paused = true },
		},
		"nothing is staged that is quarantined": {
			nodes: []string{"a A Done", "b A Done staged=x", "c A>B RolledBack failed=B"}, asked: "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := staging(t, c.nodes...)
			spec := api.RolloutPolicySpec{Staging: &c.spec}
			if c.change != nil {
				c.change(p)
			}
			if p.Rules.FailureBudget > 0 {
				spec.FailureBudget = number("2")
			}
			follow([]api.RolloutPolicy{policyOf(spec)}, p)
			if got := asked(p); got != c.asked {
				t.Errorf("asked: %q, want %q", got, c.asked)
			}
			if next := p.Rules.Next; c.next == 0 && !next.IsZero() || c.next > 0 && !next.Equal(now.Add(c.next)) {
				t.Errorf("looked at again at %s, want in %s", next, c.next)
			}
		})
	}
}

func TestANodeIsToldTheLimits(t *testing.T) {
	t.Parallel()
	p := staging(t, "a A Done")
	follow([]api.RolloutPolicy{policyOf(api.RolloutPolicySpec{Staging: &api.RolloutStaging{
		MinFreeMebibytes: 1024, IOWeight: 10, CPUWeight: 20,
	}})}, p)
	want := api.StageOrder{Config: "B", MinFreeMebibytes: 1024, IOWeight: 10, CPUWeight: 20}
	if got := p.Rules.Orders["a"].Stage; got == nil || *got != want {
		t.Errorf("got %+v", got)
	}
}

func TestASlipInAPolicyHasNobodyLetGoOfWhatIsStaged(t *testing.T) {
	t.Parallel()
	slip := policyOf(api.RolloutPolicySpec{Staging: &api.RolloutStaging{MaxConcurrent: number("none")}})
	other := policyOf(api.RolloutPolicySpec{Staging: &api.RolloutStaging{}})
	other.Name = "other"
	for _, policies := range [][]api.RolloutPolicy{{slip}, {policyOf(api.RolloutPolicySpec{}), other}} {
		p := staging(t, "a A Done staged=x", "b A Done asked", "c A Done", "d B Done asked")
		follow(policies, p)
		if got := asked(p); got != "a b" || p.Rules.Hold == nil || p.Rules.Hold.Verdict != progress.PolicyUnusable {
			t.Errorf("asked: %q, hold %+v", got, p.Rules.Hold)
		}
	}
	p := staging(t, "a A Done staged=x")
	follow([]api.RolloutPolicy{policyOf(api.RolloutPolicySpec{})}, p)
	if got := asked(p); got != "" {
		t.Errorf("without staging in the policy, asked: %q", got)
	}
}

func TestANodeWaitsUntilItHasStaged(t *testing.T) {
	t.Parallel()
	p := staging(t, "a A Done staged=x", "b A Done", "c A Done unable=x", "d A Degraded", "e A Done notready", "f A>C Working")
	follow([]api.RolloutPolicy{policyOf(api.RolloutPolicySpec{Staging: &api.RolloutStaging{}})}, p)
	if got := held(p); got != "b:StagingAhead c:CannotStage f:StagingAhead" {
		t.Errorf("held: %q", got)
	}
	if h := p.Rules.Holds["c"]; !strings.Contains(h.Because, "the disk is full") || !h.Until.Equal(now) {
		t.Errorf("%+v", h)
	}
	p = staging(t, "a A Done", "b A Done")
	p.Bypass = &api.Bypass{Config: "B"}
	p.Approval = &api.Approval{Config: "B", Digest: "y"}
	follow([]api.RolloutPolicy{policyOf(api.RolloutPolicySpec{Approval: &api.RolloutApproval{}})}, p)
	if got := held(p); got != "" || asked(p) != "a" || p.Rules.Orders["a"].Stage.Digest != "" {
		t.Errorf("bypassed, and held: %q, asked: %+v", got, p.Rules.Orders)
	}
}

func TestAPoolWaitsForAnApproval(t *testing.T) {
	t.Parallel()
	const (
		b     = "rendered-worker-bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
		other = "rendered-infra-bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
	)
	approved := func(config, digest string) *api.Approval {
		return &api.Approval{Config: config, Digest: digest, By: "ann", Since: now}
	}
	yes, no := true, false
	for name, c := range map[string]struct {
		approval *api.Approval
		required *bool
		nodes    []string
		windows  *api.RolloutWindows
		held     string // the verdict of the first node; empty: none
		says     string
		digest   string // that nodes are told
	}{
		"nodes stage still":         {nodes: []string{"a A Done staged=x", "b A Done", "c A Done"}, held: "StagingAhead", says: "staged on 1 of 3 nodes"},
		"it is staged":              {nodes: []string{"a A Done staged=x", "b A Done staged=x"}, held: "NeedsApproval", says: "staged on 2 of 2 nodes, and waits for an approval"},
		"it is said to be required": {required: &yes, nodes: []string{"a A Done staged=x"}, held: "NeedsApproval"},
		"it is not required":        {required: &no, nodes: []string{"a A Done staged=x"}},
		"some could not": {
			nodes: []string{"a A Done staged=x", "b A Done unable=x"}, held: "NeedsApproval",
			says: "staged on 1 of 1 nodes, and waits for an approval; b could not stage it and stay as they are: node b: the disk is full",
		},
		"nobody can stage it":                    {nodes: []string{"a A Done notready"}, held: "StagingAhead", says: "0 of 0"},
		"it was approved and then all went away": {approval: approved(b, "x"), nodes: []string{"a A Done notready"}, digest: "x"},
		"nobody waits for those that are away":   {nodes: []string{"a A Done staged=x", "b A Done notready"}, held: "NeedsApproval"},
		"it is approved":                         {approval: approved(b, "x"), nodes: []string{"a A Done staged=x"}, digest: "x"},
		"the same content was approved":          {approval: approved(other, "x"), nodes: []string{"a A Done staged=x"}, digest: "x"},
		"no OS was approved":                     {approval: approved(b, ""), nodes: []string{"a A Done staged=none"}},
		"another digest was approved": {
			approval: approved(b, "y"), nodes: []string{"a A Done staged=x"}, held: "NeedsApproval", says: "that by ann is for y", digest: "y",
		},
		"something else was approved": {approval: approved("A", "x"), nodes: []string{"a A Done staged=x"}, held: "NeedsApproval"},
		"it was approved too early": {
			approval: approved(b, "x"), nodes: []string{"a A Done staged=x", "b A Done"}, held: "StagingAhead", digest: "x",
		},
		"nodes have staged different things": {
			nodes: []string{"a A Done staged=x", "b A Done staged=y", "c A Done staged=y"}, held: "NeedsApproval",
			says: "x on a, y on b and 1 more",
		},
		"neither of different things was approved": {
			approval: approved(b, "z"), nodes: []string{"a A Done staged=x", "b A Done staged=y"}, held: "NeedsApproval",
			says: "x on a, y on b", digest: "z",
		},
		"no OS was approved of different things": {
			approval: approved(b, ""), nodes: []string{"a A Done staged=x", "b A Done staged=y"}, held: "NeedsApproval",
			says: "x on a, y on b",
		},
		"one of the others has staged something else": {
			approval: approved(b, "x"), nodes: []string{"a A Done staged=x", "b A Done staged=x", "c A Done staged=y"}, digest: "x",
		},
		"it has staged something else itself": {
			approval: approved(b, "x"), nodes: []string{"a A Done staged=y", "b A Done staged=x", "c A Done staged=x"},
			held: "NeedsApproval", says: "it has staged y", digest: "x",
		},
		"one comes late": {approval: approved(b, "x"), nodes: []string{"a A Done staged=x", "b A>B Working", "c A Done"}, digest: "x"},
		"one comes late with something else": {
			approval: approved(b, "x"), nodes: []string{"a A Done staged=y", "b A>B Working staged=x"}, held: "NeedsApproval",
			says: "it has staged y", digest: "x",
		},
		"nothing was approved of what is under way": {nodes: []string{"a A Done staged=x", "b A>B Working staged=x"}, held: "NeedsApproval"},
		"it is approved and no window is open": {
			approval: approved(b, "x"), nodes: []string{"a A Done staged=x"}, held: "OutsideWindow", digest: "x",
			windows: &api.RolloutWindows{Open: []api.Window{{Cron: "0 22 * * *", DurationMinutes: 60}}},
		},
		"an approval is asked for before a window opens": {
			nodes: []string{"a A Done staged=x"}, held: "NeedsApproval",
			windows: &api.RolloutWindows{Open: []api.Window{{Cron: "0 22 * * *", DurationMinutes: 60}}},
		},
		"all are there": {nodes: []string{"a B Done"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := staging(t, c.nodes...)
			p.Target, p.Approval = b, c.approval
			for i := range p.Nodes {
				rename(&p.Nodes[i], b)
			}
			follow([]api.RolloutPolicy{policyOf(api.RolloutPolicySpec{
				Approval: &api.RolloutApproval{Required: c.required}, Windows: c.windows,
			})}, p)
			verdict, h := "", p.Held(&p.Nodes[0])
			if h != nil {
				verdict = string(h.Verdict)
				if !strings.Contains(h.Because, c.says) || h.Do == "" {
					t.Errorf("%+v", h)
				}
			}
			if verdict != c.held {
				t.Errorf("held by %q, want %q: %+v", verdict, c.held, h)
			}
			if o := p.Rules.Orders["a"].Stage; o != nil && o.Digest != c.digest {
				t.Errorf("told to go to %q, want %q", o.Digest, c.digest)
			}
		})
	}
}

// rename gives B its name as a rendered configuration.
func rename(n *progress.Node, b string) {
	for _, at := range []*string{&n.Current, &n.Desired} {
		if *at == "B" {
			*at = b
		}
	}
	if n.Orders.Stage != nil {
		n.Orders.Stage = &api.StageOrder{Config: b}
	}
	if n.Staged != nil {
		n.Staged.Config = b
	}
}

func TestWindowsOfStagingThatMakeNoSenseAreRefusedByField(t *testing.T) {
	t.Parallel()
	for field, spec := range map[string]api.RolloutStaging{
		"spec.staging.windows.timeZone": {Windows: &api.RolloutWindows{TimeZone: "Middle/Earth"}},
		"spec.staging.maxConcurrent":    {MaxConcurrent: number("0%")},
	} {
		p := policyOf(api.RolloutPolicySpec{Staging: &spec})
		if err := Check(&p); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}
