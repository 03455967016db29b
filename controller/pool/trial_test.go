// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/rollout"
)

// tries is a fleet whose people have nodes try things at any moment: while a rollout is on its way, while the pool is
// paused, with clocks that jump and nodes that fail.
type tries struct {
	chance *rand.Rand
	object *mcfgv1.MachineConfigPool
	nodes  []progress.Node
	now    time.Time
	wild   bool
	// tried are the configurations that were tried so far. fails are those on which a node fails.
	tried, begun int
	fails        map[string]bool
	story        string
}

func newTries(seed uint64) *tries {
	w := &tries{
		chance: rand.New(rand.NewPCG(seed, 2)), now: t0, fails: map[string]bool{},
		object: &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: "worker"}},
	}
	most := intstr.FromInt32(1 + w.chance.Int32N(3))
	w.object.Spec.MaxUnavailable = &most
	w.object.Spec.Configuration.Name, w.object.Status.Configuration.Name = "A", "A"
	for i := range 1 + w.chance.IntN(6) {
		w.nodes = append(w.nodes, progress.Node{
			Name: fmt.Sprintf("n-%d", i), Labels: map[string]string{}, Created: t0.Add(-time.Hour),
			ReadySince: t0.Add(-time.Hour), Node: api.Node{Current: "A", Desired: "A", State: api.Done},
		})
	}
	return w
}

func (w *tries) one(in int) bool { return w.chance.IntN(in) == 0 }

func (w *tries) tell(format string, args ...any) {
	w.story += w.now.Format("02 15:04:05 ") + fmt.Sprintf(format, args...) + "\n"
}

// people do something: they order a trial, end one, pause or resume the pool, change its target, or set the clock.
func (w *tries) people() {
	n := &w.nodes[w.chance.IntN(len(w.nodes))]
	switch w.chance.IntN(9) {
	case 0, 1, 2:
		w.tried++
		config := fmt.Sprintf("X%d", w.tried)
		w.fails[config] = w.one(4)
		n.Trial = &api.Trial{
			Config: config, From: w.object.Spec.Configuration.Name, Since: w.now.Add(time.Duration(w.tried)), Bypass: w.one(2),
			Seconds: w.chance.IntN(4000),
		}
		w.tell("%s is to try %s", n.Name, config)
	case 3:
		n.Trial = nil
		w.tell("%s has no order", n.Name)
	case 4:
		w.object.Spec.Paused = !w.object.Spec.Paused
		w.tell("paused %t", w.object.Spec.Paused)
	case 5:
		w.object.Spec.Configuration.Name = [...]string{"A", "B", "C"}[w.chance.IntN(3)]
		w.tell("the target is %s", w.object.Spec.Configuration.Name)
	case 6:
		if t := n.Tried; t != nil && t.Ended.IsZero() { // somebody applies to the pool what a node tries
			w.object.Spec.Configuration.Name = t.Config
			w.tell("the target is %s", t.Config)
		}
	case 7:
		jump := time.Duration(w.chance.IntN(600)-300) * time.Hour
		w.now = w.now.Add(jump)
		w.tell("the clock jumps by %s", jump)
	case 8:
		n.NotReady = [...]string{"", "Ready=Unknown"}[w.chance.IntN(2)]
	}
}

// live has the agent of a node take a step.
func (w *tries) live(n *progress.Node) {
	switch {
	case n.Desired == n.Current && (n.State != api.Done || n.Cordoned):
		n.State, n.Cordoned, n.Cordon = api.Done, false, nil
	case n.Desired == n.Current || n.State == api.RolledBack && n.FailedOn(n.Desired), w.one(3):
	case n.State != api.Working:
		n.State = api.Working
	case !n.Cordoned:
		n.Cordoned, n.Cordon = true, &api.Cordon{By: api.Daemon, Config: n.Desired, Since: w.now}
	default:
		n.Cordoned, n.Cordon = false, nil
		if w.fails[n.Desired] {
			n.State, n.Reason = api.RolledBack, "no"
			n.Quarantined = append(n.Quarantined, api.Quarantine{Config: n.Desired, Reason: "no", Since: w.now})
			w.tell("%s failed on %s", n.Name, n.Desired)
			return
		}
		n.Previous, n.Current, n.State = n.Current, n.Desired, api.Done
		w.tell("%s arrived at %s", n.Name, n.Current)
	}
}

func (w *tries) look() (progress.Pool, decision) {
	nodes := append([]progress.Node(nil), w.nodes...)
	p := progress.NewPool(w.object, nodes)
	pools := []*progress.Pool{&p}
	progress.Share(pools)
	rollout.NewBook(nil, rollout.Unasked).Follow(pools, w.now, "")
	return p, decide(p, bounds{Now: w.now})
}

// step is one look of the controller, and what comes of it.
func (w *tries) step() error {
	p, d := w.look()
	before := 0
	for i := range w.nodes {
		before += rank(w.nodes[i].Unavailable())
	}
	for _, s := range d.Steps {
		for i := range w.nodes {
			n := &w.nodes[i]
			if n.Name != s.Node {
				continue
			}
			if s.sends() {
				w.tell("%s > %s", n.Name, s.Desired)
			}
			if s.sends() && s.Desired != n.Current && p.Paused && n.Serving() && !n.Moving() {
				return fmt.Errorf("%s is sent to %s in a paused pool", n.Name, s.Desired)
			}
			if t := s.Tried; t != nil && n.Tried != nil && t.Ordered.Equal(n.Tried.Ordered) && t.Begun.After(n.Tried.Begun) {
				return fmt.Errorf("the trial of %s begins anew: %+v", n.Name, t)
			}
			if s.sends() && s.Tried != nil && s.Desired == s.Tried.Config && s.Tried.Ended.IsZero() {
				w.begun++
			}
			n.Desired, n.Lift, n.Tainted, n.Arrived, n.Tried, n.Awaited = s.Desired, s.Lift, s.Tainted, s.Arrived, s.Tried, s.Awaited
		}
	}
	out := 0
	for i := range w.nodes {
		out += rank(w.nodes[i].Unavailable())
	}
	if out > p.MaxUnavailable && out > before {
		return fmt.Errorf("%d nodes are out of service, %d before, and %d may be", out, before, p.MaxUnavailable)
	}
	for _, n := range w.nodes {
		if t := n.Tried; t != nil && t.Ended.IsZero() && t.Until.Sub(w.now) > api.LongestTrial {
			return fmt.Errorf("%s keeps %s until %s", n.Name, t.Config, t.Until)
		}
	}
	return nil
}

func (w *tries) run() error {
	for w.wild = true; w.wild; w.wild = !w.one(60) {
		if w.one(2) {
			w.people()
		}
		if err := w.step(); err != nil {
			return err
		}
		w.now = w.now.Add(time.Duration(w.chance.IntN(15)) * time.Minute)
		for i := range w.nodes {
			w.live(&w.nodes[i])
		}
	}
	// From now on people leave it alone. Each trial that runs ends by itself, and the pool gets to its target.
	w.object.Spec.Paused = false
	target := w.object.Spec.Configuration.Name
	delete(w.fails, target)
	for i := range w.nodes {
		w.nodes[i].NotReady, w.nodes[i].Quarantined = "", nil
	}
	for range 2000 {
		p, d := w.look()
		if len(d.Steps) == 0 && p.Complete() {
			waiting := false
			for _, n := range w.nodes {
				waiting = waiting || n.Trial != nil && (n.Tried == nil || !n.Tried.Ordered.Equal(n.Trial.Since))
				if !n.Updated(target) {
					return fmt.Errorf("the pool is complete, and %s has %s", n.Name, n.Current)
				}
			}
			if !waiting {
				return nil
			}
		}
		if err := w.step(); err != nil {
			return err
		}
		w.now = w.now.Add(10 * time.Minute)
		for i := range w.nodes {
			w.live(&w.nodes[i])
		}
	}
	return fmt.Errorf("the pool does not come to %s: %+v", target, w.nodes)
}

func TestWhateverPeopleHaveNodesTryThePoolGetsToItsTarget(t *testing.T) {
	t.Parallel()
	begun := 0
	seeds := 1000
	if testing.Short() {
		seeds = 200
	}
	for seed := range seeds {
		w := newTries(uint64(seed))
		if err := w.run(); err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, w.story)
		}
		begun += w.begun
	}
	if begun < seeds {
		t.Errorf("%d trials began: the test shows nothing", begun)
	}
}
