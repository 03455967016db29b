// SPDX-License-Identifier: Apache-2.0

// Package rollout says what RolloutPolicies let pools do at a moment. It is pure: policies, pools with their nodes and
// the time go in, the rules of each pool come out, and nothing is remembered from one time to the next. So a controller
// that has just started says what the one before it would have said, and so do kubectl refit and the simulator.
package rollout

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/message"
	"github.com/noderefit/noderefit/progress"
)

// Kind of the objects that this package reads.
const Kind = "RolloutPolicy"

// policy is a RolloutPolicy that was read.
type policy struct {
	name     string
	created  time.Time
	spec     *api.RolloutPolicySpec
	selector labels.Selector // nil: none
	stages   []stage
	calendar *calendar // nil: always open
	// stagingTimes are when nodes stage ahead; nil: always.
	stagingTimes *calendar
	// problem is why it makes no sense; nil: it does.
	problem error
	// blind: it can't be read for which pools it is, so it is for all.
	blind bool
	// last is how the nodes of each pool were sorted last, by their places in it.
	last map[string][]int
}

type stage struct {
	name     string
	selector labels.Selector
	spec     *api.RolloutStage
}

// restStage is the name of the stage of the nodes that no other takes.
const restStage = "rest"

// read reads a policy as far as it makes sense.
func read(object *api.RolloutPolicy) *policy {
	p := &policy{name: object.Name, created: object.CreationTimestamp.Time, spec: &object.Spec}
	var err error
	errs := []error{api.Unreadable(object)}
	p.blind = api.UnreadableField(object, "spec.pools") || api.UnreadableField(object, "spec.poolSelector")
	if object.Spec.PoolSelector != nil {
		if p.selector, err = metav1.LabelSelectorAsSelector(object.Spec.PoolSelector); err != nil {
			errs = append(errs, fmt.Errorf("spec.poolSelector: %w", err))
		}
	}
	for i := range object.Spec.Stages {
		spec := &object.Spec.Stages[i]
		s := stage{name: spec.Name, spec: spec, selector: labels.Everything()}
		if s.name == restStage {
			errs = append(errs, fmt.Errorf("spec.stages[%d].name: %s is that of the nodes that no other takes", i, restStage))
		}
		if spec.NodeSelector != nil {
			if s.selector, err = metav1.LabelSelectorAsSelector(spec.NodeSelector); err != nil {
				errs = append(errs, fmt.Errorf("spec.stages[%d].nodeSelector: %w", i, err))
				s.selector = labels.Nothing()
			}
		}
		errs = append(errs, checkShare(fmt.Sprintf("spec.stages[%d].nodes", i), spec.Nodes),
			checkShare(fmt.Sprintf("spec.stages[%d].maxUnavailable", i), spec.MaxUnavailable),
			checkGates(fmt.Sprintf("spec.stages[%d].gates", i), spec.Gates, true))
		p.stages = append(p.stages, s)
	}
	errs = append(errs, checkShare("spec.failureBudget", object.Spec.FailureBudget),
		checkGates("spec.gates", object.Spec.Gates, false))
	errs = append(errs, checkDrain(object.Spec.Drain)...)
	if p.calendar, err = readCalendar(object.Spec.Windows); err != nil {
		errs = append(errs, err)
	}
	errs = append(errs, p.readStaging())
	p.problem = errors.Join(errs...)
	return p
}

// Check says what is wrong with a policy, by field; nil: nothing. The schema says most of it where it is in force.
func Check(object *api.RolloutPolicy) error { return read(object).problem }

// checkShare refuses what is neither a number from 1 nor a percentage from 1% to 100%.
func checkShare(field string, v *intstr.IntOrString) error {
	if v == nil {
		return nil
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(v, 100, false)
	if err != nil || n < 1 || v.Type == intstr.String && n > 100 {
		return fmt.Errorf("%s: %q is neither a number from 1 nor a percentage from 1%% to 100%%", field, v.String())
	}
	return nil
}

// share is how many of a pool's nodes v is, at least 1; otherwise where nothing is said.
func share(v *intstr.IntOrString, nodes int, roundUp bool, otherwise int) int {
	if v == nil {
		return otherwise
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(v, nodes, roundUp)
	if err != nil {
		return otherwise // such a policy holds its pools
	}
	return max(n, 1)
}

func (p *policy) selects(pool *progress.Pool) bool { return p.takes(pool.Name, pool.Labels) }

func (p *policy) takes(pool string, of map[string]string) bool {
	return p.blind || slices.Contains(p.spec.Pools, pool) || p.selector != nil && p.selector.Matches(labels.Set(of))
}

// Selects says whether a policy is one of a pool with such a name and labels.
func Selects(object *api.RolloutPolicy, pool string, of map[string]string) bool {
	return read(object).takes(pool, of)
}

// Book is all policies of a cluster.
type Book struct {
	policies []*policy
	answers  Answers
	// lost says why the policy of a pool is not there, though nobody deleted it; nil: no policy is lost.
	lost  func(*progress.Pool) string
	asked []Ask
}

// NewBook reads the policies, and judges by answers to what their gates ask.
func NewBook(policies []api.RolloutPolicy, answers Answers) *Book {
	b := &Book{answers: answers}
	for i := range policies {
		b.policies = append(b.policies, read(&policies[i]))
	}
	slices.SortFunc(b.policies, func(a, c *policy) int { return cmp.Compare(a.name, c.name) })
	return b
}

// Answered has the book judge by these answers from now on.
func (b *Book) Answered(answers Answers) { b.answers = answers }

// Follow sets the rules of all of a cluster's pools at a time, after progress.Share. Self is the node that the
// controller runs on, which goes last; empty: it is not known.
func (b *Book) Follow(pools []*progress.Pool, now time.Time, self string) {
	by := map[string]*progress.Pool{}
	for _, p := range pools {
		by[p.Name] = p
	}
	b.asked = nil
	var judges []*judge
	for _, p := range pools {
		switch mine := b.of(p); len(mine) {
		case 0:
			p.Rules = b.without(p)
		case 1:
			j := &judge{policy: mine[0], pool: p, all: by, now: now, self: self, answers: b.answers}
			j.rule()
			p.Rules = j.rules
			judges = append(judges, j)
			b.asked = append(b.asked, j.asked...)
		default:
			budget := 1
			for _, m := range mine {
				budget = max(budget, share(m.spec.FailureBudget, p.Machines, false, 1))
			}
			p.Rules = progress.Rules{Policy: mine[0].name, FailureBudget: budget} // by which kept asks
			p.Rules.Hold, p.Rules.Orders, p.Rules.Note = conflict(p, mine), kept(p), mine[0].note()
		}
	}
	for _, j := range judges {
		j.depend()
		j.rules.Hold = cmp.Or(b.circle(j.pool, by), j.rules.Hold)
		j.letBack()
		j.pool.Rules = j.rules
	}
}

// Asked are the questions that are open, as of the last Follow.
func (b *Book) Asked() []Ask { return b.asked }

func (b *Book) of(p *progress.Pool) []*policy {
	var mine []*policy
	for _, candidate := range b.policies {
		if candidate.selects(p) {
			mine = append(mine, candidate)
		}
	}
	return mine
}

func conflict(p *progress.Pool, mine []*policy) *progress.Hold {
	var names []string
	for _, m := range mine {
		names = append(names, m.name)
	}
	return &progress.Hold{
		Verdict: progress.PolicyUnusable, Blocking: policyObject(mine[0].name),
		Because: fmt.Sprintf("%d RolloutPolicies select pool %s: %s", len(mine), p.Name, strings.Join(names, ", ")),
		Do:      "have only one of them select it",
	}
}

func policyObject(name string) *progress.Object { return &progress.Object{Kind: Kind, Name: name} }

// circle is a hold where a pool waits for itself by way of others; nil: it does not.
func (b *Book) circle(p *progress.Pool, by map[string]*progress.Pool) *progress.Hold {
	way := []string{p.Name}
	seen := map[string]bool{}
	var walk func(name string) bool
	walk = func(name string) bool {
		other := by[name]
		if other == nil || seen[name] {
			return false
		}
		seen[name] = true
		for _, q := range b.of(other) {
			for _, next := range q.spec.DependsOn {
				way = append(way, next)
				if next == p.Name || walk(next) {
					return true
				}
				way = way[:len(way)-1]
			}
		}
		return false
	}
	if !walk(p.Name) {
		return nil
	}
	return &progress.Hold{
		Verdict: progress.PolicyUnusable, Blocking: policyObject(b.of(p)[0].name),
		Because: "spec.dependsOn goes round in a circle: " + strings.Join(way, " waits for "),
		Do:      "take one of these out",
	}
}

// Finding is what is to be said of a policy itself.
type Finding struct {
	Policy string
	// Reason is one of those of condition api.RolloutReady, Message says it in a sentence.
	Reason, Message string
	// NextWindow is when a window opens; zero: one is open, or there is none.
	NextWindow time.Time
	// Pools are those that it selects, sorted by name.
	Pools []*progress.Pool
}

// Findings are what is to be said of each policy, once the pools have their rules.
func (b *Book) Findings(pools []*progress.Pool) []Finding {
	var out []Finding
	for _, p := range b.policies {
		f := Finding{Policy: p.name, Reason: api.RolloutInForce, Message: "the policy is in force"}
		there := map[string]bool{}
		var missing []string
		for _, pool := range pools {
			there[pool.Name] = true
			if !p.selects(pool) {
				continue
			}
			f.Pools = append(f.Pools, pool)
			f.NextWindow = pool.Rules.NextWindow
			some, holds := p.emptyStages(pool)
			missing = append(missing, some...)
			if holds && f.Reason == api.RolloutInForce {
				f.Reason = api.RolloutNoNodes
			}
			if h := pool.Rules.Hold; h != nil && h.Verdict == progress.PolicyUnusable && !slices.Contains(missing, h.Because) {
				f.Reason, f.Message = api.RolloutInvalid, h.Because
				if len(b.of(pool)) > 1 {
					f.Reason = api.RolloutConflict
				}
			}
		}
		slices.SortFunc(f.Pools, func(a, c *progress.Pool) int { return cmp.Compare(a.Name, c.Name) })
		if len(missing) > 0 {
			f.Message = strings.Join(missing[:min(len(missing), 5)], "; ")
			if f.Reason == api.RolloutInForce {
				f.Message = "the policy is in force; " + f.Message
			}
		}
		if f.Reason == api.RolloutInForce {
			if i := slices.IndexFunc(p.spec.Pools, func(name string) bool { return !there[name] }); i >= 0 {
				f.Reason = api.RolloutNoPool
				f.Message = fmt.Sprintf("spec.pools[%d]: there is no MachineConfigPool %s", i, p.spec.Pools[i])
			}
		}
		if p.problem != nil {
			f.Reason, f.Message = api.RolloutInvalid, message.OneLine(p.problem.Error())
		}
		out = append(out, f)
	}
	return out
}
