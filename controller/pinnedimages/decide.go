// SPDX-License-Identifier: Apache-2.0

package pinnedimages

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/controller/source"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/rollout"
)

// world is what the controller sees.
type world struct {
	sets     []mcfgv1.PinnedImageSet
	nodes    []corev1.Node
	pools    []mcfgv1.MachineConfigPool
	policies []api.RolloutPolicy
}

// decision is what Nodes and pools are to say, by their names.
type decision struct {
	// orders are the orders of Nodes; nil: the Node is to have none. A Node that is not here stays as it is.
	orders map[string]*api.PinOrder
	pools  map[string]poolState
	// left is when a node that belongs to no pool any more was told of its sets; zero: each such node was told to let go.
	left time.Time
}

// poolState is how far a pool's nodes are.
type poolState struct {
	// wrong is why the pool's sets are not known, or which nodes fail; empty: nothing is wrong.
	wrong string
	// policy is the note of a policy that is not there, because of which orders stay as they are; nil otherwise.
	policy *api.PolicyNote
	// sets is how many sets the pool has, and told reports whether a node has an order for images.
	sets             int
	told             bool
	nodes, keep, fit int64 // all nodes; those that have all images; those of them that are ready
}

const (
	// mostSets is how many sets a pool may have: as many as a MachineConfigNode reports on.
	mostSets = 100
	// mostImages is how many images they may have together: each node compares all of them with its runtime.
	mostImages = 2000
	// namedNodes is how many failing nodes a condition names.
	namedNodes = 8
)

// member is a node of a pool, with what its annotations say of images.
type member struct {
	name string
	// ready reports whether the kubelet reports, and able whether the agent is free to pull.
	ready, able bool
	order       *api.PinOrder
	pinned      *api.Pinned
}

// decide gives each node the sets of its pool, and lets so many nodes of a pool pull at once as its policy says.
func decide(w world, now time.Time) decision {
	out := decision{orders: map[string]*api.PinOrder{}, pools: map[string]poolState{}}
	members := progress.NewMembership(w.pools)
	unread := slices.ContainsFunc(w.pools, func(p mcfgv1.MachineConfigPool) bool { return members.Problem(p.Name) != "" })
	nodes := map[string][]member{}
	for i := range w.nodes {
		n := &w.nodes[i]
		if len(w.sets) == 0 && n.Annotations[api.PinOrderKey] == "" {
			continue // most clusters have no sets, and reading all annotations of a Node takes long
		}
		m := read(n)
		pool, conflict := members.Of(n)
		switch {
		case conflict != nil: // which sets the node is to have is not known
		case pool != "":
			nodes[pool] = append(nodes[pool], m)
		case unread: // the node may belong to the pool whose selector can't be read
		case m.order != nil:
			out.orders[n.Name] = without(m, now)
			if len(m.order.Sets) > 0 {
				out.left = m.order.Since
			}
		}
	}
	for i := range w.pools {
		pool := &w.pools[i]
		of := nodes[pool.Name]
		slices.SortFunc(of, func(a, b member) int { return cmp.Compare(a.name, b.name) })
		sets, wrong := setsOf(pool, w.sets)
		var pulling rollout.Pulling
		var policy *api.PolicyNote
		if wrong == "" && len(sets) > 0 {
			pulling, policy = rollout.PullingOf(w.policies, pool, len(of), now)
		}
		if wrong == "" && policy == nil {
			pulling.Open = pulling.Open && !pool.Spec.Paused
			maps.Copy(out.orders, ordersOf(of, sets, pulling, now))
		}
		s := stateOf(of, len(sets), wrong, now)
		s.policy = policy
		out.pools[pool.Name] = s
	}
	return out
}

func read(n *corev1.Node) member {
	// What can't be read counts as missing: the node is told anew.
	is := progress.ReadNode(n)
	return member{n.Name, is.NotReady == "", is.AtRest(), is.Pins, is.Pinned}
}

// without returns the order of a node that is to have no sets; nil once the node has let go of all.
func without(m member, now time.Time) *api.PinOrder {
	if m.order == nil || len(m.order.Sets) == 0 && m.pinned.Keeps(m.order) {
		return nil
	}
	return &api.PinOrder{Sets: []api.PinnedSet{}, Since: since(m, nil, now)}
}

// since returns when a node was told of these sets, or of the first ones since the node last had all images. A time of
// the future is corrected.
func since(m member, sets []api.PinnedSet, now time.Time) time.Time {
	if o := m.order; o != nil && !o.Since.After(now) && (slices.Equal(o.Sets, sets) ||
		len(o.Sets) > 0 && len(sets) > 0 && !m.pinned.Keeps(o)) {
		return o.Since
	}
	return stamp(now)
}

func stamp(now time.Time) time.Time { return now.UTC().Truncate(time.Second) }

// setsOf returns the sets of a pool: those that the pool names, and then those that its selector of MachineConfigs
// selects. wrong is why they are not known.
func setsOf(pool *mcfgv1.MachineConfigPool, all []mcfgv1.PinnedImageSet) (out []api.PinnedSet, wrong string) {
	selector, err := metav1.LabelSelectorAsSelector(pool.Spec.MachineConfigSelector)
	if err != nil {
		return nil, fmt.Sprintf("spec.machineConfigSelector: %v", err)
	}
	if api.UnreadableField(pool, "spec.pinnedImageSets") || api.UnreadableField(pool, "spec.machineConfigSelector") {
		return nil, api.Unreadable(pool).Error()
	}
	by := map[string]*mcfgv1.PinnedImageSet{}
	var selected []string
	for i := range all {
		by[all[i].Name] = &all[i]
		if !selector.Empty() && selector.Matches(labels.Set(all[i].Labels)) {
			selected = append(selected, all[i].Name)
		}
	}
	var names []string
	for _, named := range pool.Spec.PinnedImageSets {
		names = append(names, named.Name)
	}
	slices.Sort(selected)
	seen := map[string]bool{}
	names = slices.DeleteFunc(append(names, selected...), func(name string) bool {
		before := seen[name]
		seen[name] = true
		return before
	})
	if len(names) > mostSets {
		return nil, fmt.Sprintf("the pool has %d PinnedImageSets, and may have %d: bring images together in fewer sets",
			len(names), mostSets)
	}
	images := 0
	for _, name := range names {
		set := by[name]
		if set == nil {
			return nil, fmt.Sprintf("spec.pinnedImageSets names PinnedImageSet/%s, and there is none: nodes keep the images "+
				"that they have; make the set, or take its name out of the pool", name)
		}
		if err := api.Unreadable(set); err != nil {
			return nil, fmt.Sprintf("PinnedImageSet/%s: %v", name, err)
		}
		out = append(out, api.NewPinnedSet(set))
		images += len(set.Spec.PinnedImages)
	}
	if images > mostImages {
		return nil, fmt.Sprintf("the pool's PinnedImageSets have %d images, and may have %d: nodes keep the images that "+
			"they have; take images out", images, mostImages)
	}
	return out, ""
}

const (
	// turnLimit is how long a node may be without news before its place to pull goes to another node: an image may take
	// 30 minutes. longestTurn is how long a node has its place at most, whatever it reports.
	turnLimit   = time.Hour
	longestTurn = 24 * time.Hour
)

// pulling reports whether the node was let pull these sets.
func (m member) pulling(sets []api.PinnedSet) bool {
	return m.order != nil && m.order.Pull && slices.Equal(m.order.Sets, sets)
}

// late returns why a node whose turn began is not waited for; empty: the node is. An agent's clock may be ahead.
func (m member) late(begun, now time.Time) string {
	news := begun
	if m.pinned.About(m.order) && m.pinned.Since.After(begun) && !m.pinned.Since.After(now) {
		news = m.pinned.Since
	}
	switch {
	case now.Sub(news) >= turnLimit:
		return "no news of its images since " + news.UTC().Format(time.RFC3339)
	case now.Sub(begun) >= longestTurn:
		return "its images have not come since " + begun.UTC().Format(time.RFC3339)
	}
	return ""
}

// stuck returns why a node lacks images for long and reports no failure; empty: it is not so.
func (m member) stuck(now time.Time) string {
	switch o := m.order; {
	case o == nil || len(o.Sets) == 0:
	case o.Pull && m.able && !o.PullSince.IsZero():
		return m.late(o.PullSince, now)
	case !m.able && now.Sub(o.Since) >= turnLimit:
		return "its agent is not at rest, or its kubelet does not report, and it lacks images since " +
			o.Since.UTC().Format(time.RFC3339)
	}
	return ""
}

// ordersOf returns the orders of a pool's nodes. A node that fails, can't pull or says nothing makes room for others,
// and may go on.
func ordersOf(of []member, sets []api.PinnedSet, limits rollout.Pulling, now time.Time) map[string]*api.PinOrder {
	out := map[string]*api.PinOrder{}
	if len(sets) == 0 {
		for _, m := range of {
			if m.order != nil {
				out[m.name] = without(m, now)
			}
		}
		return out
	}
	busy := 0
	var next []*api.PinOrder
	for _, m := range of {
		o := &api.PinOrder{Sets: sets, MinFreeMebibytes: limits.MinFreeMebibytes, Since: since(m, sets, now)}
		out[m.name] = o
		switch {
		case m.pinned.Keeps(o):
			o.Pull = true
		case limits.Stop:
		case m.pulling(sets):
			o.Pull, o.PullSince = true, m.order.PullSince
			if o.PullSince.IsZero() || o.PullSince.After(now) {
				o.PullSince = stamp(now)
			}
			if m.able && !m.pinned.Fails(o) && m.late(o.PullSince, now) == "" {
				busy++
			}
		case m.able:
			next = append(next, o)
		}
	}
	if limits.Open {
		for _, o := range next[:max(0, min(len(next), limits.Most-busy))] {
			o.Pull, o.PullSince = true, stamp(now)
		}
	}
	return out
}

func stateOf(of []member, sets int, wrong string, now time.Time) poolState {
	s := poolState{wrong: wrong, sets: sets, nodes: int64(len(of))}
	var failing []string
	for _, m := range of {
		s.told = s.told || m.order != nil
		switch {
		case m.pinned.Keeps(m.order):
			s.keep++
			if m.ready {
				s.fit++
			}
		case m.pinned.Fails(m.order):
			failing = append(failing, fmt.Sprintf("node %s: %s", m.name, m.pinned.Error))
		default:
			if why := m.stuck(now); why != "" {
				failing = append(failing, fmt.Sprintf("node %s: %s", m.name, why))
			}
		}
	}
	if more := len(failing) - namedNodes; more > 0 {
		failing = append(failing[:namedNodes], fmt.Sprintf("%d more nodes", more))
	}
	if s.wrong == "" {
		s.wrong = strings.Join(failing, "; ")
	}
	return s
}

// hold leaves all orders as they are. Pools that have sets, or nodes with an order, say why.
func (d *decision) hold(why string) {
	d.orders = nil
	for name, s := range d.pools {
		if s.told || s.sets > 0 {
			s.wrong = "nodes keep the images that they have: " + why
			d.pools[name] = s
		}
	}
}

// lost returns a set that nodes were told of and that is not there any more, and when a node was told of it.
func lost(w world) (name string, told time.Time) {
	there := map[string]bool{}
	for i := range w.sets {
		there[w.sets[i].Name] = true
	}
	for i := range w.nodes {
		if w.nodes[i].Annotations[api.PinOrderKey] == "" {
			continue
		}
		m := read(&w.nodes[i])
		if m.order == nil {
			continue
		}
		for _, set := range m.order.Sets {
			if !there[set.Name] {
				return set.Name, m.order.Since
			}
		}
	}
	return "", time.Time{}
}

// show brings a pool's status up to date, and reports whether that changes anything. A pool that never had sets says
// nothing of them.
func show(status *mcfgv1.MachineConfigPoolStatus, s poolState, generation int64, now time.Time) bool {
	c := mcfgv1.MachineConfigPoolCondition{Type: mcfgv1.MachineConfigPoolPinnedImageSetsDegraded,
		Status: corev1.ConditionFalse}
	said := slices.ContainsFunc(status.Conditions, func(old mcfgv1.MachineConfigPoolCondition) bool {
		return old.Type == c.Type
	})
	if s.sets == 0 && s.wrong == "" && !said && len(status.PoolSynchronizersStatus) == 0 {
		return false
	}
	if s.wrong != "" {
		c.Status, c.Reason, c.Message = corev1.ConditionTrue, "PrefetchFailed", api.ShortReason(s.wrong)
	}
	changed := source.SetPoolConditions(&status.Conditions, metav1.NewTime(now), c)
	before := status.PoolSynchronizersStatus
	status.PoolSynchronizersStatus = nil
	if s.sets > 0 {
		status.PoolSynchronizersStatus = []mcfgv1.PoolSynchronizerStatus{{
			PoolSynchronizerType: mcfgv1.PinnedImageSets, MachineCount: s.nodes, UpdatedMachineCount: s.keep,
			ReadyMachineCount: s.fit, AvailableMachineCount: s.keep, UnavailableMachineCount: s.nodes - s.keep,
			ObservedGeneration: generation,
		}}
	}
	return changed || !slices.Equal(before, status.PoolSynchronizersStatus)
}
