// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	diff "github.com/google/go-cmp/cmp"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/rollout"
)

func TestRandomRolloutsKeepTheirPolicies(t *testing.T) { //nolint:tparallel // the group of parts ends before the count
	t.Parallel()
	seeds := walks
	if testing.Short() {
		seeds = walks / 10
	}
	var finished, back atomic.Int64
	t.Run("seeds", func(t *testing.T) {
		const parts = 8
		for part := range parts {
			t.Run(strconv.Itoa(part), func(t *testing.T) {
				t.Parallel()
				for seed := part; seed < seeds; seed += parts {
					w := newWalk(uint64(seed))
					if err := w.run(); err != nil {
						t.Fatalf("seed %d: %v\npolicy: %s\nmaxUnavailable: %s\n%s", seed, err, api.Encode(w.policy.Spec),
							w.object.Spec.MaxUnavailable, w.story)
					}
					finished.Add(int64(rank(w.finished)))
					back.Add(int64(rank(w.gates.failed)))
				}
			})
		}
	})
	t.Logf("%d of %d rollouts reached every node, %d went back; the others stopped at failures",
		finished.Load(), seeds, back.Load())
	if finished.Load() < int64(seeds)/4 || back.Load() < int64(seeds)/50 {
		t.Error("too few rollouts come to an end: the test shows nothing about progress")
	}
}

// walk is one made-up rollout: a policy, a fleet, and chance.
type walk struct {
	chance  *rand.Rand
	object  *mcfgv1.MachineConfigPool
	policy  api.RolloutPolicy
	nodes   []progress.Node
	now     time.Time
	windows [][2]time.Time // in which nodes may begin; nil: always
	// cumulated are how many nodes the stages up to each have, and soaks how long each soaks.
	cumulated []int
	soaks     []time.Duration
	budget    int
	came      int // nodes that joined
	// ready is since when a node has been at the target and ready, as seen from outside.
	ready map[string]time.Time
	// outcomes is how the target ends on a node, other than well.
	outcomes map[string]api.State
	failed   map[string]bool
	// joined are the nodes that came with the target.
	joined map[string]bool
	// sick are the nodes whose members of etcd are not ready; nil: it is no control plane.
	sick     map[string]bool
	gates    gateWorld
	seed     uint64
	calm     bool // nothing more is broken
	finished bool
	story    string

	staging staging
}

func newWalk(seed uint64) *walk {
	w := &walk{
		chance: rand.New(rand.NewPCG(seed, 1)), now: t0, ready: map[string]time.Time{}, outcomes: map[string]api.State{},
		seed: seed, failed: map[string]bool{}, joined: map[string]bool{}, object: &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: "worker"}},
	}
	count := 1 + w.chance.IntN(12)
	for i := range count {
		w.nodes = append(w.nodes, progress.Node{
			Name: fmt.Sprintf("n-%02d", i), Zone: fmt.Sprintf("z%d", w.chance.IntN(3)), Labels: map[string]string{},
			Created: t0.Add(-time.Hour), ReadySince: t0.Add(-time.Hour),
			Node: api.Node{Current: "A", Desired: "A", State: api.Done},
		})
	}
	most := intstr.FromInt32(1 + w.chance.Int32N(4))
	w.object.Spec.MaxUnavailable = &most
	w.object.Spec.Configuration.Name = "B"
	w.object.Status.Configuration.Name = "A"
	w.policy = api.RolloutPolicy{ObjectMeta: metav1.ObjectMeta{Name: "random"}}
	if w.one(4) {
		w.object.Name, w.sick = api.PoolMaster, map[string]bool{}
	}
	w.policy.Spec.Pools = []string{w.object.Name}
	w.policy.Spec.MinReadySeconds = w.chance.Int32N(3) * 60
	w.makeStages()
	w.makeGates()
	w.makeWindows()
	w.makeStaging(seed)
	w.budget = 1
	if w.one(2) {
		w.budget = 1 + w.chance.IntN(3)
		v := intstr.FromInt32(int32(w.budget))
		w.policy.Spec.FailureBudget = &v
	}
	for _, n := range w.nodes {
		if w.one(12) {
			w.outcomes[n.Name] = api.RolledBack
		}
	}
	return w
}

// one is true once in so many times.
func (w *walk) one(in int) bool { return w.chance.IntN(in) == 0 }

func (w *walk) makeStages() {
	total := 0
	for i := range w.chance.IntN(3) {
		size := 1 + w.chance.IntN(3)
		v := intstr.FromInt32(int32(size))
		soak := w.chance.Int32N(4) * 300
		stage := api.RolloutStage{Name: fmt.Sprintf("s%d", i), Nodes: &v, SoakSeconds: soak}
		if w.one(3) {
			most := intstr.FromInt32(1 + w.chance.Int32N(3))
			stage.MaxUnavailable = &most
		}
		w.policy.Spec.Stages = append(w.policy.Spec.Stages, stage)
		total += size
		w.cumulated, w.soaks = append(w.cumulated, total), append(w.soaks, time.Duration(soak)*time.Second)
	}
}

func (w *walk) makeWindows() {
	if w.one(2) {
		return
	}
	zone := []string{"", "Europe/Berlin", "Asia/Kolkata", "America/St_Johns"}[w.chance.IntN(4)]
	there, err := time.LoadLocation(zone)
	if err != nil {
		there = time.UTC // the policy names the zone, too, and is refused
	}
	w.policy.Spec.Windows = &api.RolloutWindows{
		TimeZone: zone, OnClose: []api.WindowClose{"", api.CloseTakesBackDraining, api.CloseFinishes}[w.chance.IntN(3)],
	}
	begin := w.now.Add(time.Duration(w.chance.IntN(60)) * time.Minute)
	for range 12 {
		end := begin.Add(time.Duration(20+w.chance.IntN(100)) * time.Minute)
		w.windows = append(w.windows, [2]time.Time{begin, end})
		w.policy.Spec.Windows.Open = append(w.policy.Spec.Windows.Open, api.Window{
			From: begin.In(there).Format("2006-01-02T15:04:05"), Until: end.In(there).Format("2006-01-02T15:04:05"),
		})
		begin = end.Add(time.Duration(30+w.chance.IntN(300)) * time.Minute)
	}
	// At the end it is open for good, so that whatever is held can come to its end.
	w.windows = append(w.windows, [2]time.Time{begin, begin.AddDate(1, 0, 0)})
	w.policy.Spec.Windows.Open = append(w.policy.Spec.Windows.Open, api.Window{
		From: begin.In(there).Format("2006-01-02T15:04:05"), Until: begin.AddDate(1, 0, 0).In(there).Format("2006-01-02T15:04:05"),
	})
}

func (w *walk) open() bool {
	return w.windows == nil || slices.ContainsFunc(w.windows, func(o [2]time.Time) bool {
		return !w.now.Before(o[0]) && w.now.Before(o[1])
	})
}

const (
	wildTurns = 60
	calmTurns = 3000
)

func (w *walk) run() error {
	for turn := range wildTurns + calmTurns {
		w.calm = turn >= wildTurns
		w.gates.unasked = !w.calm && w.one(5)
		p, d, err := w.decide()
		if err != nil {
			return err
		}
		if err := w.remember(p); err != nil {
			return err
		}
		if p.Complete() {
			w.finished = true
			return nil
		}
		// A controller may die after any of its writes.
		steps := d.Steps
		if !w.calm && w.one(4) {
			steps = steps[:w.chance.IntN(len(steps)+1)]
		}
		if err := w.check(steps); err != nil {
			return err
		}
		for _, s := range steps {
			w.take(s)
		}
		if w.calm {
			// The controller looks again at once after each of its writes: no time passes until it has nothing to say.
			for again := 0; ; again++ {
				if again == 8 {
					return fmt.Errorf("it goes on telling nodes things: %+v", d.Steps)
				}
				if p, d, err = w.decide(); err != nil {
					return err
				}
				if err := w.remember(p); err != nil {
					return err
				}
				if p.Complete() {
					w.finished = true
					return nil
				}
				if len(d.Steps) == 0 {
					break
				}
				if err := w.check(d.Steps); err != nil {
					return err
				}
				for _, s := range d.Steps {
					w.take(s)
				}
			}
			steps = nil
		}
		if err := w.pass2(p, len(d.Steps) > 0); err != nil {
			return err
		}
		if w.calm && (len(w.failed) > 0 || w.stopped(p)) && len(steps) == 0 && w.still() {
			return nil // it stopped at failures or gates, as it should
		}
	}
	return fmt.Errorf("nothing was in the way, and it did not come to an end")
}

// still says that no node is on its way.
func (w *walk) still() bool {
	return !slices.ContainsFunc(w.nodes, func(n progress.Node) bool { return n.Moving() })
}

// decide makes the decision, and makes it again as a controller would that has just started and lists nodes in another
// order.
func (w *walk) decide() (progress.Pool, decision, error) {
	look := func(nodes []progress.Node) (progress.Pool, decision) {
		p := progress.NewPool(w.object, nodes)
		pools := []*progress.Pool{&p}
		progress.Share(pools)
		p.Etcd = w.etcd()
		rollout.NewBook([]api.RolloutPolicy{w.policy}, w.answer).Follow(pools, w.now, "")
		return p, decide(p, bounds{Now: w.now})
	}
	p, d := look(slices.Clone(w.nodes))
	if w.one(8) {
		other := slices.Clone(w.nodes)
		w.chance.Shuffle(len(other), func(i, j int) { other[i], other[j] = other[j], other[i] })
		if _, again := look(other); !diff.Equal(d, again) {
			return p, d, fmt.Errorf("another controller decides otherwise: %s", diff.Diff(d, again))
		}
	}
	return p, d, nil
}

// check holds what is about to be said to the promises, by what was seen from outside and not by what the rules say.
func (w *walk) check(steps []nodeStep) error {
	if err := w.checkStaging(steps); err != nil {
		return err
	}
	out, going := 0, 0
	begun := map[string]bool{}
	for _, n := range w.nodes {
		out += rank(n.Unavailable() || w.gated(n))
		going += rank(n.Desired == "B" && !w.joined[n.Name])
	}
	before := out
	for _, s := range steps {
		n := w.nodes[w.index(s.Node)]
		if s.sends() && s.Desired == "A" && n.Current == "B" && n.Desired == "B" {
			out += rank(!n.Unavailable()) // it goes back
		}
		if others := w.sickBeside(n.Name); s.sends() && s.Desired != n.Current && others > 0 {
			return fmt.Errorf("%s is sent to %s while %d other members of etcd are not ready", n.Name, s.Desired, others)
		}
		if !s.sends() || s.Desired != "B" || n.Current == "B" {
			continue
		}
		if w.gates.failed {
			return fmt.Errorf("%s is sent although a gate had the configuration taken back", n.Name)
		}
		begun[n.Name] = true
		going++
		out += rank(!n.Unavailable())
		if !w.open() {
			return fmt.Errorf("%s is sent at %s, outside all windows", n.Name, w.now)
		}
		if w.failed[n.Name] {
			return fmt.Errorf("%s is sent although it failed there", n.Name)
		}
	}
	switch limit := w.limit(going); {
	case out > limit && out > before:
		return fmt.Errorf("%d nodes are out of service with those sent, %d before, and %d may be", out, before, limit)
	case len(begun) > 0 && len(w.failed) >= w.budget:
		return fmt.Errorf("%v are sent although it failed on %d nodes and the budget is %d", begun, len(w.failed), w.budget)
	case len(begun) > 0:
		return cmp.Or(w.soaked(going), w.pastGates(going))
	}
	return nil
}

// limit is how many nodes may be out of service once so many are at the target or on their way there: what the pool says,
// or the stage that has the last of their places.
func (w *walk) limit(going int) int {
	if w.sick != nil {
		return 1 // of the control plane never two
	}
	if !w.gates.failed {
		for i, size := range w.cumulated {
			if most := w.policy.Spec.Stages[i].MaxUnavailable; going <= size && most != nil {
				return most.IntValue()
			} else if going <= size {
				break
			}
		}
	}
	return w.object.Spec.MaxUnavailable.IntValue()
}

// soaked says whether so many nodes may be at the target or on their way there: there have to be nodes for all places of
// the stages before, each of which was ready for as long as its place soaks. Which node has which place is not asked.
func (w *walk) soaked(going int) error {
	passed := 0
	for passed < len(w.cumulated) && going > w.cumulated[passed] {
		passed++
	}
	for _, soak := range w.soaks[:passed] {
		places, before := 0, 0
		for i, size := range w.cumulated[:passed] {
			if w.soaks[i] >= soak {
				places += size - before
			}
			before = size
		}
		count := len(w.failed)
		for _, since := range w.ready {
			count += rank(w.now.Sub(since) >= soak)
		}
		if count < places {
			return fmt.Errorf("%d nodes are sent, and for %d places of stages that soak for %s there are %d nodes that have",
				going, places, soak, count)
		}
	}
	return nil
}

func (w *walk) index(name string) int {
	return slices.IndexFunc(w.nodes, func(n progress.Node) bool { return n.Name == name })
}

func (w *walk) tell(format string, args ...any) {
	w.story += w.now.Format("15:04 ") + fmt.Sprintf(format, args...) + "\n"
}

func (w *walk) take(s nodeStep) {
	n := &w.nodes[w.index(s.Node)]
	if s.sends() {
		w.tell("%s > %s %s", n.Name, s.Desired, s.Held)
	}
	n.Desired, n.Lift, n.Tainted, n.Arrived = s.Desired, s.Lift, s.Tainted, s.Arrived
	n.Orders = s.Orders
}

// pass lets time pass: to the next moment at which the rules change, or some minutes, in which every node gets on. After
// a decision that told nodes something there is another one before the rules change by themselves.
func (w *walk) pass(p progress.Pool, told bool) {
	step := time.Duration(1+w.chance.IntN(10)) * time.Minute
	if next := p.Rules.Next; !next.IsZero() && !told && w.still() && w.calm && !w.stagesStill() {
		step = next.Sub(w.now)
	}
	w.now = w.now.Add(step)
	w.approve(p)
	w.comeAndGo()
	for i := range w.nodes {
		w.stage(&w.nodes[i])
		w.live(&w.nodes[i])
	}
}

// quiet says that nothing of a node changes by itself: no event will come.
func (w *walk) quiet(p progress.Pool) bool {
	if len(w.sick) > 0 || w.gates.unasked {
		return false
	}
	if h := p.Rules.Hold; h != nil && h.Verdict == progress.NeedsApproval {
		return false
	}
	for _, n := range w.nodes {
		if n.NotReady != "" || n.Desired == n.Current && (n.State != api.Done || n.Cordoned) {
			return false
		}
		if n.Desired != n.Current && n.State != api.RolledBack {
			return false
		}
		if n.Orders.Stage == nil && n.Staged.Is("B") || n.Orders.Stage != nil && !n.Staged.Is("B") {
			return false
		}
	}
	return true
}

// pass2 is pass, but where nothing happens by itself only the rules' own next time has anybody look.
func (w *walk) pass2(p progress.Pool, told bool) error {
	if !w.calm || !w.quiet(p) || len(w.failed) > 0 || w.stopped(p) || len(p.Rules.Gated)+len(p.Rules.Closed) > 0 || p.Rules.Unproved != nil {
		w.pass(p, told)
		return nil
	}
	if p.Rules.Next.IsZero() {
		return fmt.Errorf("at %s nobody would look again: hold %+v holds %v soaking %v", w.now, p.Rules.Hold, p.Rules.Holds, p.Rules.Soaking)
	}
	w.now = p.Rules.Next
	return nil
}

// comeAndGo has nodes deleted, and join with what machines get: the target, once a node has it. A failure that nobody
// reports any more would be remembered by the pool, which is not what is shown here.
func (w *walk) comeAndGo() {
	if w.calm || !w.one(15) {
		return
	}
	if i := w.chance.IntN(len(w.nodes)); len(w.nodes) > 1 && w.one(2) && !w.failed[w.nodes[i].Name] {
		w.tell("%s is deleted", w.nodes[i].Name)
		delete(w.ready, w.nodes[i].Name)
		delete(w.sick, w.nodes[i].Name)
		w.nodes = slices.Delete(w.nodes, i, i+1)
		return
	}
	w.came++
	config := "A"
	if slices.ContainsFunc(w.nodes, func(n progress.Node) bool { return n.Current == "B" }) && !w.gates.failed {
		config = "B"
	}
	n := progress.Node{
		Name: fmt.Sprintf("j-%02d", w.came), Zone: "z0", Labels: map[string]string{}, Created: w.now, ReadySince: w.now,
		Node: api.Node{Current: config, Desired: config, State: api.Done},
	}
	w.joined[n.Name] = config == "B"
	w.nodes = append(w.nodes, n)
	w.tell("%s joins with %s", n.Name, config)
}

// live has a node's agent take a step, and its kubelet fail or come back.
func (w *walk) live(n *progress.Node) {
	w.sicken(n)
	switch {
	case n.NotReady != "" && (w.calm || w.one(3)):
		n.NotReady, n.ReadySince = "", w.now
		if n.Current == "B" && n.State == api.Done && !w.joined[n.Name] {
			w.ready[n.Name] = w.now
		}
	case n.NotReady == "" && !w.calm && w.one(25):
		n.NotReady = "Ready=Unknown"
		delete(w.ready, n.Name)
		return
	case n.NotReady != "":
		return
	}
	switch {
	case n.Desired == n.Current && (n.State != api.Done || n.Cordoned):
		n.State, n.Cordoned, n.Cordon, n.Drained = api.Done, false, nil, ""
	case n.Desired == n.Current || n.State == api.RolledBack:
	case n.State != api.Working:
		n.State = api.Working
	case !n.Cordoned:
		n.Cordoned, n.Cordon = true, &api.Cordon{By: api.Daemon, Config: n.Desired, Since: w.now}
	case w.one(2): // the drain takes a while
	default:
		w.end(n)
	}
}

// end is the end of an update on a node.
func (w *walk) end(n *progress.Node) {
	n.Cordoned, n.Cordon = false, nil
	if n.Desired == "B" && w.outcomes[n.Name] == api.RolledBack {
		n.State, n.Reason = api.RolledBack, "no"
		n.Quarantined = append(n.Quarantined, api.Quarantine{Config: "B", Reason: "no", Since: w.now})
		w.failed[n.Name] = true
		w.tell("%s rolled back", n.Name)
		return
	}
	n.Previous, n.Current, n.State = n.Current, n.Desired, api.Done
	if n.Current == "B" {
		w.ready[n.Name] = w.now
	} else {
		delete(w.ready, n.Name)
	}
	w.tell("%s arrived at %s", n.Name, n.Current)
}

// sicken has the member of etcd on a node fail, or come back: it is away while its node is, or is drained.
func (w *walk) sicken(n *progress.Node) {
	switch {
	case w.sick == nil:
	case n.NotReady != "" || n.Cordoned:
		w.sick[n.Name] = true
	case w.sick[n.Name] && (w.calm || w.one(3)):
		delete(w.sick, n.Name)
	case !w.calm && w.one(20):
		w.sick[n.Name] = true
	}
}

func (w *walk) sickBeside(node string) int {
	others := 0
	for name := range w.sick {
		others += rank(name != node)
	}
	return others
}

// etcd is what the controller sees of the members.
func (w *walk) etcd() *progress.Etcd {
	if w.sick == nil {
		return nil
	}
	e := &progress.Etcd{}
	for _, n := range w.nodes {
		m := progress.EtcdMember{Namespace: "kube-system", Pod: "etcd-" + n.Name, Node: n.Name}
		if w.sick[n.Name] {
			m.Trouble = "it is not ready"
		}
		e.Members = append(e.Members, m)
	}
	return e
}
