// SPDX-License-Identifier: Apache-2.0

// Package rollout computes what RolloutPolicies let pools do at a moment. The package is pure. Policies, pools with
// their nodes and the time go in, and the rules of each pool come out. Nothing is remembered from one call to the next.
// So a controller that has just started finds the same rules as the one before it. So do kubectl refit and the
// simulator.
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

// Kind is the kind of the objects that this package reads.
const Kind = "RolloutPolicy"

// policy is a RolloutPolicy that was read.
type policy struct {
	name     string
	created  time.Time
	spec     *api.RolloutPolicySpec
	selector labels.Selector // nil: the policy has none
	stages   []stage
	calendar *calendar // nil: always open
	// stagingTimes are when nodes stage ahead; nil means always.
	stagingTimes *calendar
	// rebootTimes are when nodes reboot; nil means always.
	rebootTimes *calendar
	// problem is why the policy makes no sense; nil if it makes sense.
	problem error
	// blind reports whether the policy's selection of pools can't be read. Such a policy applies to all pools.
	blind bool
	// last is the last order of each pool's nodes, as indices into Pool.Nodes.
	last map[string][]int
}

type stage struct {
	name     string
	selector labels.Selector
	spec     *api.RolloutStage
}

// restStage is the name of the stage for nodes that no other stage takes.
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
			errs = append(errs, fmt.Errorf("spec.stages[%d].name: %s is reserved for the nodes that no stage selects", i,
				restStage))
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
	errs = append(errs, p.readStaging(), p.readReboots())
	p.problem = errors.Join(errs...)
	return p
}

// Check returns what is wrong with a policy, by field, and nil if nothing is. Where the schema is in force, it refuses
// most of these errors before.
func Check(object *api.RolloutPolicy) error { return read(object).problem }

// checkShare refuses anything but a number from 1 or a percentage from 1% to 100%.
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

// share returns how many of a pool's nodes v means, at least 1. If v is nil, share returns otherwise.
func share(v *intstr.IntOrString, nodes int, roundUp bool, otherwise int) int {
	if v == nil {
		return otherwise
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(v, nodes, roundUp)
	if err != nil {
		return otherwise // a policy with such a value holds its pools
	}
	return max(n, 1)
}

func (p *policy) selects(pool *progress.Pool) bool { return p.takes(pool.Name, pool.Labels) }

func (p *policy) takes(pool string, of map[string]string) bool {
	return p.blind || slices.Contains(p.spec.Pools, pool) || p.selector != nil && p.selector.Matches(labels.Set(of))
}

// Selects reports whether a policy selects a pool with this name and these labels.
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

// NewBook reads the policies. answers has the answers to the questions of their gates.
func NewBook(policies []api.RolloutPolicy, answers Answers) *Book {
	b := &Book{answers: answers}
	for i := range policies {
		b.policies = append(b.policies, read(&policies[i]))
	}
	slices.SortFunc(b.policies, func(a, c *policy) int { return cmp.Compare(a.name, c.name) })
	return b
}

// Answered sets the answers that the book judges by from now on.
func (b *Book) Answered(answers Answers) { b.answers = answers }

// Follow sets the rules of all of a cluster's pools at a time, after progress.Share. self is the node of the
// controller, which goes last; empty if it is not known.
func (b *Book) Follow(pools []*progress.Pool, now time.Time, self string) {
	by := map[string]*progress.Pool{}
	for _, p := range pools {
		by[p.Name] = p
	}
	b.asked = nil
	var judges []*judge
	judged := map[string]*judge{}
	for _, p := range pools {
		switch mine := b.of(p); len(mine) {
		case 0:
			p.Rules = b.without(p)
			keep(p, &p.Rules, now)
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
			p.Rules = progress.Rules{Policy: mine[0].name, FailureBudget: budget} // kept asks by this budget
			p.Rules.Hold, p.Rules.Orders, p.Rules.Note = conflict(p, mine), kept(p), mine[0].note()
			p.Rules.Note.FailureBudget = new(intstr.FromInt(budget))
			keep(p, &p.Rules, now)
		}
	}
	for _, j := range judges {
		j.depend()
		j.rules.Hold = cmp.Or(b.circle(j.pool, by), j.rules.Hold)
		j.letBack()
		j.pool.Rules = j.rules
		judged[j.pool.Name] = j
	}
	for _, p := range pools {
		b.followReboots(p, judged[p.Name], by, now, self)
	}
	for _, p := range pools {
		withhold(p)
		noteTrials(p, now)
	}
}

// withhold holds a pool whose OSStream withholds the pool's release, whatever a policy or a person's bypass lets it do.
func withhold(p *progress.Pool) {
	w := p.Withheld
	if w == nil {
		return
	}
	p.Rules.Hold = &progress.Hold{
		Verdict: progress.Withheld, Blocking: &progress.Object{Kind: "OSStream", Name: w.Stream},
		Because: fmt.Sprintf("no further node goes to release %s: %s", w.Version, w.Reason),
		Do:      "wait for the next release; see kubectl refit streams " + w.Stream,
	}
}

// Asked returns the questions that are open, as of the last Follow.
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

// circle returns a hold if a pool waits for itself by way of other pools, and nil if it does not.
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
		Because: "spec.dependsOn is circular: " + strings.Join(way, " waits for "),
		Do:      "remove one of these dependencies",
	}
}

// Finding is a problem of a policy itself, or the report that the policy has none.
type Finding struct {
	Policy string
	// Reason is a reason of condition api.RolloutReady. Message explains it in a sentence.
	Reason, Message string
	// NextWindow is when a window opens; zero if one is open, or if none will open.
	NextWindow time.Time
	// Pools are the pools that the policy selects, sorted by name.
	Pools []*progress.Pool
}

// Findings returns the finding of each policy, after the pools have their rules.
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
