// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/controller/defined"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/rollout"
)

// behind is a client whose reads are answered from a cache that stands still, until it is told to catch up.
type behind struct {
	client.Client

	pools   mcfgv1.MachineConfigPoolList
	nodes   corev1.NodeList
	patches []string
}

func (b *behind) catchUp(t *testing.T) {
	t.Helper()
	b.pools, b.nodes = mcfgv1.MachineConfigPoolList{}, corev1.NodeList{}
	if err := b.Client.List(t.Context(), &b.pools); err != nil {
		t.Fatal(err)
	}
	if err := b.Client.List(t.Context(), &b.nodes); err != nil {
		t.Fatal(err)
	}
}

func (b *behind) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	switch list := list.(type) {
	case *mcfgv1.MachineConfigPoolList:
		b.pools.DeepCopyInto(list)
	case *corev1.NodeList:
		b.nodes.DeepCopyInto(list)
	}
	return nil
}

func (b *behind) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.PatchOption) error {
	if _, ok := o.(*corev1.Node); ok {
		b.patches = append(b.patches, o.GetName())
	}
	return b.Client.Patch(ctx, o, p, opts...)
}

func newBehind(t *testing.T, names ...string) *behind {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := mcfgv1.Install(scheme); err != nil {
		t.Fatal(err)
	}
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	pool := &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: "worker"}}
	pool.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{api.NodeRole + "worker": ""}}
	pool.Spec.Configuration.Name = "rendered-worker-b"
	objects := []client.Object{pool}
	for _, name := range names {
		objects = append(objects, readyNode(name))
	}
	b := &behind{Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithStatusSubresource(pool).Build()}
	b.catchUp(t)
	return b
}

func readyNode(name string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{api.NodeRole + "worker": ""}}}
	n.Annotations = map[string]string{
		api.CurrentConfig: "rendered-worker-a", api.DesiredConfig: "rendered-worker-a", api.StateKey: string(api.Done),
	}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	return n
}

func newReconciler(b *behind) *reconciler {
	return &reconciler{
		client: b, live: b.Client, events: events.NewFakeRecorder(100), report: newReport(),
		now: time.Now, nodes: freshest[*corev1.Node]{}, pools: freshest[*mcfgv1.MachineConfigPool]{},
		defined: defined.NewWatch(b.Client, time.Now),
	}
}

func reconcileNow(t *testing.T, r *reconciler) {
	t.Helper()
	if _, err := r.Reconcile(t.Context(), reconcile.Request{}); err != nil {
		t.Fatal(err)
	}
}

func TestACacheThatIsBehindRepeatsNothing(t *testing.T) {
	b := newBehind(t, "a", "b", "c")
	r := newReconciler(b)
	for range 3 {
		reconcileNow(t, r)
	}
	if diff := cmp.Diff([]string{"a", "b", "c"}, b.patches); diff != "" {
		t.Errorf("one is sent and two are tainted, once; patched (-want +got):\n%s", diff)
	}
	b.catchUp(t)
	reconcileNow(t, r)
	if len(b.patches) != 3 {
		t.Errorf("patched %v", b.patches)
	}
}

func TestANewLeaderWhoseCacheIsBehindRepeatsNothing(t *testing.T) {
	b := newBehind(t, "a", "b", "c")
	reconcileNow(t, newReconciler(b))
	b.patches = nil
	reconcileNow(t, newReconciler(b))
	if len(b.patches) != 0 {
		t.Errorf("patched %v", b.patches)
	}
}

func TestANodeThatWasToldSomethingElseMeanwhileIsNotOverruled(t *testing.T) {
	b := newBehind(t, "a")
	r := newReconciler(b)
	r.looked = true // so that nothing is read past the cache
	n := readyNode("a")
	if err := b.Get(t.Context(), client.ObjectKeyFromObject(n), n); err != nil {
		t.Fatal(err)
	}
	n.Annotations[api.DesiredConfig] = "rendered-worker-x"
	if err := b.Update(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Reconcile(t.Context(), reconcile.Request{}); err == nil {
		t.Error("it did not notice")
	}
	if err := b.Get(t.Context(), client.ObjectKeyFromObject(n), n); err != nil {
		t.Fatal(err)
	}
	if got := n.Annotations[api.DesiredConfig]; got != "rendered-worker-x" {
		t.Errorf("it is sent to %s", got)
	}
}

// What an API server answers to a JSON patch, test/clusters/pool asks a real one.
func TestOnlyWhatIsNotAsDecidedIsTriedAgainAtOnce(t *testing.T) {
	node := schema.GroupResource{Resource: "nodes"}
	wrong := field.ErrorList{field.Invalid(field.NewPath("metadata", "annotations"), "", "too long")}
	for _, test := range []struct {
		name string
		err  error
		want bool
	}{
		{"somebody wrote", apierrors.NewConflict(node, "a", nil), true},
		{"a test failed", apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", node, "", "", 0, false), true},
		{"not valid", apierrors.NewInvalid(schema.GroupKind{Kind: "Node"}, "a", wrong), false},
		{"not allowed", apierrors.NewForbidden(node, "a", nil), false},
		{"not an answer", io.ErrUnexpectedEOF, false},
	} {
		if got := onlyConflicts([]error{fmt.Errorf("telling: %w", test.err)}); got != test.want {
			t.Errorf("%s: got %v", test.name, got)
		}
	}
}

func TestAThousandTaintsAreNotOneLook(t *testing.T) {
	var names []string
	for i := range told + 10 {
		names = append(names, fmt.Sprintf("n-%03d", i))
	}
	b := newBehind(t, names...)
	r := newReconciler(b)
	result, err := r.Reconcile(t.Context(), reconcile.Request{})
	if err != nil || result.RequeueAfter != debounce || len(b.patches) != told+1 || b.patches[0] != "n-000" {
		t.Fatalf("%d were told, %+v, %v", len(b.patches), result, err)
	}
	if result, err = r.Reconcile(t.Context(), reconcile.Request{}); err != nil || !result.IsZero() || len(b.patches) != len(names) {
		t.Errorf("%d were told, %+v, %v", len(b.patches), result, err)
	}
}

func TestTheStatesOfNodesMakeOnlySoManySeries(t *testing.T) {
	r := newReport()
	r.nodes = map[string]seen{}
	pool := &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: "worker"}}
	p := progress.NewPool(pool, []progress.Node{node(t, "new - -"), node(t, "odd A Oddly"), node(t, "a A Done")})
	before := time.Now().Unix()
	r.take(&world{pools: []member{{pool, p}}})
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(r)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, family := range families {
		if family.GetName() != "mco_state" {
			continue
		}
		for _, m := range family.GetMetric() {
			got[m.GetLabel()[0].GetValue()] = m.GetLabel()[3].GetValue()
			if m.GetGauge().GetValue() < float64(before) {
				t.Errorf("%s since %v", m.GetLabel()[0].GetValue(), m.GetGauge().GetValue())
			}
		}
	}
	if diff := cmp.Diff(map[string]string{"odd": "Unknown", "a": "Done"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestNothingIsWrittenWhereNothingChanged(t *testing.T) {
	b := newBehind(t, "a", "b")
	r := newReconciler(b)
	reconcileNow(t, r)
	b.catchUp(t)
	reconcileNow(t, r) // the first look's own writes are in the status now
	b.catchUp(t)
	before := b.pools.Items[0].ResourceVersion
	b.patches = nil
	reconcileNow(t, r)
	b.catchUp(t)
	if after := b.pools.Items[0].ResourceVersion; after != before || len(b.patches) != 0 {
		t.Errorf("the pool went from version %s to %s; patched %v", before, after, b.patches)
	}
}

func TestAHeartbeatIsNoChange(t *testing.T) {
	read := func(change func(*corev1.Node)) *corev1.Node {
		n := readyNode("a")
		n.Annotations["volumes.kubernetes.io/controller-managed-attach-detach"] = "true"
		n.Status.Images = []corev1.ContainerImage{{Names: []string{"registry.example/app"}}}
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeMemoryPressure})
		change(n)
		out, err := strip(n)
		if err != nil {
			t.Fatal(err)
		}
		return out.(*corev1.Node)
	}
	old := read(func(*corev1.Node) {})
	for name, test := range map[string]struct {
		change func(*corev1.Node)
		want   bool
	}{
		"nothing":     {func(*corev1.Node) {}, false},
		"a heartbeat": {func(n *corev1.Node) { n.Status.Conditions[0].LastHeartbeatTime = metav1.Now(); n.ResourceVersion = "9" }, false},
		"images":      {func(n *corev1.Node) { n.Status.Images = nil }, false},
		"memory":      {func(n *corev1.Node) { n.Status.Conditions[1].Status = corev1.ConditionTrue }, false},
		"another's annotation": {func(n *corev1.Node) {
			n.Annotations["volumes.kubernetes.io/controller-managed-attach-detach"] = "false"
		}, false},
		"not ready":   {func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionFalse }, true},
		"a state":     {func(n *corev1.Node) { n.Annotations[api.StateKey] = "Working" }, true},
		"a ledger":    {func(n *corev1.Node) { n.Annotations[api.CordonKey] = "{}" }, true},
		"a cordon":    {func(n *corev1.Node) { n.Spec.Unschedulable = true }, true},
		"a taint":     {func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "x"}} }, true},
		"a label":     {func(n *corev1.Node) { n.Labels["x"] = "y" }, true},
		"another one": {func(n *corev1.Node) { n.UID = "2" }, true},
	} {
		if got := nodeChanged.Update(event.UpdateEvent{ObjectOld: old, ObjectNew: read(test.change)}); got != test.want {
			t.Errorf("%s: looked at %v, want %v", name, got, test.want)
		}
	}
}

func TestAReportOfOursIsNoChangeOfAPool(t *testing.T) {
	read := func(change func(*mcfgv1.MachineConfigPool)) *mcfgv1.MachineConfigPool {
		p := poolAt("A")
		change(p)
		return p
	}
	old := read(func(*mcfgv1.MachineConfigPool) {})
	for name, test := range map[string]struct {
		change func(*mcfgv1.MachineConfigPool)
		want   bool
	}{
		"our report": {func(p *mcfgv1.MachineConfigPool) { p.Status.MachineCount = 3; p.ResourceVersion = "9" }, false},
		"render's report": {func(p *mcfgv1.MachineConfigPool) {
			p.Status.Conditions = []mcfgv1.MachineConfigPoolCondition{
				{Type: mcfgv1.MachineConfigPoolRenderDegraded, Status: corev1.ConditionTrue, Message: "x"},
			}
		}, true},
		"a specification": {func(p *mcfgv1.MachineConfigPool) { p.Generation++ }, true},
		"a lift":          {with(api.LiftedKey, "[]"), true},
	} {
		if got := poolChanged.Update(event.UpdateEvent{ObjectOld: old, ObjectNew: read(test.change)}); got != test.want {
			t.Errorf("%s: looked at %v, want %v", name, got, test.want)
		}
	}
}

// What one look at a cluster costs: at the beginning of a rollout, when all nodes are to be told that they will go, and
// in the middle of one, by the policy that the documentation begins with.
func BenchmarkLook(b *testing.B) {
	for _, size := range []int{100, 1000, 5000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) { benchmarkLook(b, size, nil, func(*corev1.Node) {}) })
	}
	b.Run("told.5000", func(b *testing.B) { benchmarkLook(b, 5000, nil, tainted) })
	policy := documented(b)
	policy.ResourceVersion = "1"
	orders := api.Encode(api.Orders{Drain: policy.Spec.Drain, Stage: &api.StageOrder{
		Config: "rendered-worker-b", MinFreeMebibytes: policy.Spec.Staging.MinFreeMebibytes, IOWeight: policy.Spec.Staging.IOWeight,
	}})
	b.Run("policy.5000", func(b *testing.B) {
		benchmarkLook(b, 5000, []api.RolloutPolicy{policy}, func(n *corev1.Node) {
			tainted(n)
			n.Annotations[api.OrdersKey] = orders
			n.Annotations[api.StagedKey] = api.Encode(api.Staged{Config: "rendered-worker-b", Since: t0})
		})
	})
}

// tainted has a Node as it is once it was told that it will go.
func tainted(n *corev1.Node) {
	n.Spec.Taints = []corev1.Taint{{Key: api.UpdateInProgressTaint, Effect: corev1.TaintEffectPreferNoSchedule}}
}

// processor is the time that this process has had on processors. The clock depends on what else the machine does.
func processor(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// benchmarkLook looks at so many nodes of which a tenth is on its way and nothing changes.
func benchmarkLook(b *testing.B, size int, policies []api.RolloutPolicy, prepare func(*corev1.Node)) {
	pool := &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: "worker"}}
	pool.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{api.NodeRole + "worker": ""}}
	pool.Spec.Configuration.Name = "rendered-worker-b"
	nodes := make(map[string]*corev1.Node, size)
	for i := range size {
		n := readyNode(fmt.Sprintf("n-%04d", i))
		n.Labels[api.Zone], n.ResourceVersion = fmt.Sprintf("z%d", i%3), "1"
		if i < size/10 {
			n.Annotations[api.DesiredConfig], n.Annotations[api.StateKey] = "rendered-worker-b", "Working"
			n.Annotations[api.CordonKey] = api.Encode(api.Cordon{By: api.Daemon, Since: t0})
		}
		prepare(n)
		nodes[n.Name] = n
	}
	read := readings{}
	look := func() {
		w := assemble([]*mcfgv1.MachineConfigPool{pool}, read.sorted(nodes), &read, policies, nil, rollout.Unasked, "", t0)
		o := w.options(0)
		o.Told = told
		decide(w.pools[0].state, o)
		status(pool, w.pools[0].state, time.Time{})
	}
	look() // the first one reads all
	b.ReportAllocs()
	used := processor(b)
	for b.Loop() {
		look()
	}
	b.ReportMetric(float64(processor(b)-used)/float64(b.N)/1e6, "cpu-ms/op")
}

func TestANodeIsReadAgainWhenItIsAnother(t *testing.T) {
	r := readings{}
	n := readyNode("a")
	n.UID, n.ResourceVersion = "one", "5"
	for _, step := range []struct {
		name   string
		change func()
		again  bool
	}{
		{"at first", func() {}, true},
		{"nothing", func() {}, false},
		{"it has changed", func() { n.ResourceVersion = "6" }, true},
		{"it was made anew", func() { n.UID = "two" }, true},
		{"no version says how it is", func() { n.ResourceVersion = "" }, true},
		{"nor now", func() {}, true},
	} {
		step.change()
		before := n.Annotations[api.CurrentConfig]
		n.Annotations[api.CurrentConfig] = step.name
		got := r.of(n).node.Current
		if again := got == step.name; again != step.again {
			t.Errorf("%s: it has %s, want that it is read again: %t", step.name, got, step.again)
		}
		if !step.again {
			n.Annotations[api.CurrentConfig] = before
		}
	}
}
