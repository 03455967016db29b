// SPDX-License-Identifier: Apache-2.0

// Package notifications tells people and their systems about rollouts, as RolloutPolicies ask: by events of Kubernetes,
// CloudEvents to webhooks, and silences in an Alertmanager. The package runs beside the pool controller and holds
// nothing up. A notification first goes into the policy's status, and the present leader delivers it from there.
package notifications

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/retry"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/notify"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/rollout"
)

// Name is the controller's name on the command line and in logs.
const Name = "notifications"

const (
	// debounce is the time in which several changes become one look.
	debounce = time.Second
	// pace is how often the controller asks what nodes wait for, and whether a wait has become long.
	pace = time.Minute
	// couriers is the number of webhooks served at a time. A webhook that does not answer occupies one courier.
	couriers = 8
)

// Setup is what the controller needs besides the cluster.
type Setup struct {
	// Now is the clock that tells how long nodes have waited; nil means the machine's clock.
	Now func() time.Time
	// Version is the version that servers see in requests.
	Version string
}

// Add adds the controller to a manager. The cluster has to have RolloutPolicies.
func (s Setup) Add(mgr ctrl.Manager) error {
	d := &desk{
		client: mgr.GetClient(), live: mgr.GetAPIReader(), events: mgr.GetEventRecorder("machineconfigcontroller-" + Name),
		now: s.Now, agent: api.Controller + "/" + s.Version, counts: newCounts(),
	}
	if d.now == nil {
		d.now = time.Now
	}
	if err := metrics.Registry.Register(d.counts); err != nil {
		return fmt.Errorf("adding controller %s: registering metrics: %w", Name, err)
	}
	return errors.Join(
		ctrl.NewControllerManagedBy(mgr).Named(Name).
			Watches(&api.RolloutPolicy{}, soon(one), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
			Watches(&mcfgv1.MachineConfigPool{}, soon(one)).Watches(&corev1.Node{}, soon(one)).
			Complete(&editor{desk: d}),
		builder.TypedControllerManagedBy[lane](mgr).Named(Name+"-webhooks").
			Watches(&api.RolloutPolicy{}, handler.TypedEnqueueRequestsFromMapFunc(lanes)).
			WithOptions(controller.TypedOptions[lane]{MaxConcurrentReconciles: couriers}).
			Complete(&courier{desk: d}),
		ctrl.NewControllerManagedBy(mgr).Named(Name+"-silences").
			Watches(&api.RolloutPolicy{}, soon(named), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
			Watches(&mcfgv1.MachineConfigPool{}, soon(d.silencing),
				builder.WithPredicates(predicate.GenerationChangedPredicate{})).
			Watches(&corev1.Node{}, soon(d.silencing)).
			Complete(&silencer{desk: d, settled: map[string]settled{}}),
	)
}

// one returns a single name, which represents the whole cluster.
func one(context.Context, client.Object) []string { return []string{""} }

func named(_ context.Context, o client.Object) []string { return []string{o.GetName()} }

// silencing returns the names of the policies that have an Alertmanager.
func (d *desk) silencing(ctx context.Context, _ client.Object) []string {
	var list api.RolloutPolicyList
	if err := d.client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil // the cache has not synced yet, and will report each policy as new
	}
	var names []string
	for i := range list.Items {
		if n := list.Items[i].Spec.Notifications; n != nil && n.Alertmanager != nil {
			names = append(names, list.Items[i].Name)
		}
	}
	return names
}

// soon asks for a look at some names a little later, so that many events cause one look.
func soon(which func(context.Context, client.Object) []string) handler.EventHandler {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	ask := func(ctx context.Context, o client.Object, q queue) {
		for _, name := range which(ctx, o) {
			q.AddAfter(reconcile.Request{NamespacedName: types.NamespacedName{Name: name}}, debounce)
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) { ask(ctx, e.Object, q) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) { ask(ctx, e.ObjectNew, q) },
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) { ask(ctx, e.Object, q) },
	}
}

// desk is what the editor, the couriers and the silencer share.
type desk struct {
	client client.Client
	live   client.Reader
	events events.EventRecorder
	now    func() time.Time
	agent  string
	counts *counts
}

// scene is the cluster at a moment, with its policies applied.
type scene struct {
	pools    map[string]*mcfgv1.MachineConfigPool
	policies map[string]*api.RolloutPolicy
	findings []rollout.Finding
	view     progress.View
	report   *progress.Report
}

// see reads the cluster from the cache. see returns nil if no policies exist.
func (d *desk) see(ctx context.Context) (*scene, error) {
	var policies api.RolloutPolicyList
	if err := d.client.List(ctx, &policies); err != nil {
		return nil, fmt.Errorf("listing RolloutPolicies: %w", err)
	}
	if len(policies.Items) == 0 {
		return nil, nil
	}
	var pools mcfgv1.MachineConfigPoolList
	var nodes corev1.NodeList
	if err := d.client.List(ctx, &pools, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing MachineConfigPools: %w", err)
	}
	if err := d.client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing Nodes: %w", err)
	}
	s := &scene{pools: map[string]*mcfgv1.MachineConfigPool{}, policies: map[string]*api.RolloutPolicy{}}
	for i := range pools.Items {
		s.pools[pools.Items[i].Name] = &pools.Items[i]
	}
	for i := range policies.Items {
		s.policies[policies.Items[i].Name] = &policies.Items[i]
	}
	book, now := rollout.NewBook(policies.Items, rollout.Reported(policies.Items)), d.now()
	s.view = progress.View{Pools: pools.Items, Nodes: nodes.Items, Follow: func(states []*progress.Pool) {
		book.FollowReported(states, now, "")
		s.findings = book.Findings(states)
	}}
	s.report = progress.NewReport(s.view)
	return s, nil
}

// change writes a change of a policy's status. mutate gets the object as the API server has it. change does nothing if
// the object of that name is no longer the same one.
func (d *desk) change(ctx context.Context, name string, uid types.UID, mutate func(*api.RolloutPolicy)) error {
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		var p api.RolloutPolicy
		if err := d.live.Get(ctx, client.ObjectKey{Name: name}, &p); err != nil {
			return err
		}
		if p.UID != uid {
			return nil
		}
		before := p.DeepCopy()
		mutate(&p)
		if equality.Semantic.DeepEqual(before.Status, p.Status) {
			return nil
		}
		return d.client.Status().Patch(ctx, &p, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	})
	if err = client.IgnoreNotFound(err); err != nil {
		return fmt.Errorf("RolloutPolicy %s: remembering what was told: %w", name, err)
	}
	return nil
}

// access returns how to reach a server. The Secret is read each time: it may have changed, and the controller keeps no
// copy.
func (d *desk) access(ctx context.Context, url string, ref *api.NotificationSecret) (notify.Access, error) {
	a := notify.Access{URL: url, Agent: d.agent}
	if ref == nil {
		return a, nil
	}
	key := client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}
	if key.Namespace == "" {
		key.Namespace = api.Namespace
	}
	var secret corev1.Secret
	err := d.live.Get(ctx, key, &secret)
	switch {
	case apierrors.IsForbidden(err):
		return a, fmt.Errorf("the controller may not read Secret %s: docs/notifications.md says how it is allowed to", key)
	case err != nil:
		return a, fmt.Errorf("reading Secret %s: %w", key, err)
	}
	a.Token, a.CA = strings.TrimSpace(string(secret.Data[api.SecretToken])), secret.Data[api.SecretCA]
	if a.Token == "" && len(a.CA) == 0 {
		return a, fmt.Errorf("neither %s nor %s is in Secret %s", api.SecretToken, api.SecretCA, key)
	}
	return a, nil
}

// condition sets a condition of a policy. The condition is False because of message, and True if message is empty.
func condition(p *api.RolloutPolicy, kind, good, bad, message string, now time.Time) (became bool) {
	message = notify.Short(message)
	c := metav1.Condition{
		Type: kind, Status: metav1.ConditionTrue, Reason: good, Message: message, ObservedGeneration: p.Generation,
		LastTransitionTime: metav1.NewTime(now.Truncate(time.Second)),
	}
	if message != "" {
		c.Status, c.Reason = metav1.ConditionFalse, bad
	}
	before := meta.FindStatusCondition(p.Status.Conditions, kind)
	became = before == nil || before.Status != c.Status
	meta.SetStatusCondition(&p.Status.Conditions, c)
	return became
}

const (
	// A failed try is repeated after firstPause. The pause doubles up to lastPause.
	firstPause = time.Second
	lastPause  = 5 * time.Minute
)

// tries remembers when something that failed is tried again.
type tries[K comparable] struct {
	mu   sync.Mutex
	last map[K]try
}

type try struct {
	pause time.Duration
	next  time.Time
	why   string
}

// wait returns for how long something is not to be tried yet.
func (t *tries[K]) wait(what K) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return time.Until(t.last[what].next)
}

// failed notes a failure and returns after which time to try again.
func (t *tries[K]) failed(what K, why string) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.last == nil {
		t.last = map[K]try{}
	}
	pause := min(max(2*t.last[what].pause, firstPause), lastPause)
	t.last[what] = try{pause: pause, next: time.Now().Add(pause), why: why}
	return pause
}

func (t *tries[K]) worked(what K) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.last, what)
}

// reasons returns why the last tries failed, for everything that failed.
func (t *tries[K]) reasons() map[K]string {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := map[K]string{}
	for what, one := range t.last {
		out[what] = one.why
	}
	return out
}
