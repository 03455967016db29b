// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/google/go-cmp/cmp"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	certv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/noderefit/noderefit/api"
)

// request is an issued request for the certificate of a node, as a kubelet makes it with a bootstrap token.
func request(t *testing.T, name, node string, at time.Time, groups ...string) *certv1.CertificateSigningRequest {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "system:node:" + node},
	}, key)
	if err != nil {
		t.Fatal(err)
	}
	return &certv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(at)},
		Spec: certv1.CertificateSigningRequestSpec{
			Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), Username: "system:bootstrap:abcdef",
			Groups: append([]string{"system:bootstrappers"}, groups...), SignerName: certv1.KubeAPIServerClientKubeletSignerName,
		},
		Status: certv1.CertificateSigningRequestStatus{Certificate: []byte("issued")},
	}
}

// by returns a request as another user has made it.
func by(user string, q *certv1.CertificateSigningRequest) *certv1.CertificateSigningRequest {
	q.Spec.Username = user
	return q
}

func poolOf(name, key string) *mcfgv1.MachineConfigPool {
	p := &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: name}}
	p.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{key: ""}}
	p.Spec.Configuration.Name = "rendered-" + name + "-a"
	return p
}

// joining is a cluster with the pools worker, infra and master, and with what a test has besides.
type joining struct {
	*reconciler

	said chan string
	now  time.Time
}

func newJoining(t *testing.T, objects ...client.Object) *joining {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(mcfgv1.Install(scheme), corev1.AddToScheme(scheme), certv1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	objects = append(objects, poolOf("worker", api.NodeRole+"worker"), poolOf("infra", api.NodeRole+"infra"),
		poolOf("master", api.NodeRole+"control-plane"))
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithStatusSubresource(&mcfgv1.MachineConfigPool{}).
		WithIndex(&certv1.CertificateSigningRequest{}, "spec.signerName", func(o client.Object) []string {
			return []string{o.(*certv1.CertificateSigningRequest).Spec.SignerName}
		}).Build()
	b := &behind{Client: c}
	r := newReconciler(b)
	r.client = c // of a cache that is up to date
	j := &joining{reconciler: r, said: make(chan string, 100), now: t0.Add(time.Minute)}
	r.events = &events.FakeRecorder{Events: j.said}
	r.now = func() time.Time { return j.now }
	return j
}

// look has the controller look, and returns a node's labels and the events about labels.
func (j *joining) look(t *testing.T, node string) (map[string]string, string) {
	t.Helper()
	if _, err := j.Reconcile(t.Context(), reconcile.Request{}); err != nil {
		t.Fatal(err)
	}
	n := &corev1.Node{}
	if err := j.live.Get(t.Context(), client.ObjectKey{Name: node}, n); err != nil {
		t.Fatal(err)
	}
	return n.Labels, j.heard()
}

// heard returns the events about labels since the last call, each in a line.
func (j *joining) heard() string {
	var said []string
	for {
		select {
		case event := <-j.said:
			if strings.Contains(event, "Labelled") {
				said = append(said, event)
			}
			continue
		default:
		}
		return strings.Join(said, "\n")
	}
}

// registered is a Node as its kubelet has registered it at t0.
func registered(name string, labels map[string]string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(t0),
		Labels: maps.Clone(labels)}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	return n
}

func TestANewNodeGetsTheRoleThatItsTokenWasForAndNoOther(t *testing.T) {
	const infra, worker = api.PoolGroup + "infra", api.PoolGroup + "worker"
	role := func(roles ...string) map[string]string {
		out := map[string]string{}
		for _, r := range roles {
			out[api.NodeRole+r] = ""
		}
		return out
	}
	before := t0.Add(-time.Minute)
	ask := func(groups ...string) []*certv1.CertificateSigningRequest {
		return []*certv1.CertificateSigningRequest{request(t, "first", "new", before, groups...)}
	}
	changed := func(change func(*certv1.CertificateSigningRequest)) []*certv1.CertificateSigningRequest {
		out := ask(infra)
		change(out[0])
		return out
	}
	for name, test := range map[string]struct {
		has      map[string]string
		told     string // where the node was sent before
		requests []*certv1.CertificateSigningRequest
		want     map[string]string
		says     string
	}{
		"the pool of its group":            {requests: ask(infra), want: role("infra"), says: "pool infra"},
		"beside another role":              {has: role("worker"), requests: ask(infra), want: role("worker", "infra"), says: "pool infra"},
		"the pool worker":                  {requests: ask(worker), want: role("worker"), says: "pool worker"},
		"a token for any pool":             {requests: ask("system:bootstrappers:kubeadm:default-node-token")},
		"no request at all":                {},
		"a node that was sent somewhere":   {told: "rendered-worker-a", has: role("worker"), requests: ask(infra), want: role("worker")},
		"a pool that there is not":         {requests: ask(api.PoolGroup + "gpu"), says: "MachineConfigPool/gpu"},
		"the control plane":                {requests: ask(api.PoolGroup + "master"), says: "by hand"},
		"a token for two pools":            {requests: ask(infra, worker), says: "several pools"},
		"a role that is set otherwise":     {has: map[string]string{api.NodeRole + "infra": "x"}, requests: ask(infra), want: map[string]string{api.NodeRole + "infra": "x"}, says: `is "x" already`},
		"a node of the control plane":      {has: role("control-plane"), requests: ask(infra), want: role("control-plane"), says: `pool "master"`},
		"another machine asked afterwards": {requests: []*certv1.CertificateSigningRequest{request(t, "late", "new", t0.Add(time.Second), infra)}},
		"a request of long before":         {requests: []*certv1.CertificateSigningRequest{request(t, "old", "new", t0.Add(-2*time.Hour), infra)}},
		"the request of another node":      {requests: []*certv1.CertificateSigningRequest{request(t, "other", "other", before, infra)}},
		"a request that was not granted": {requests: changed(func(q *certv1.CertificateSigningRequest) {
			q.Status.Certificate = nil
		})},
		"a request without a bootstrap token": {requests: changed(func(q *certv1.CertificateSigningRequest) {
			q.Spec.Username = "system:node:new"
		})},
		"a request that can't be read": {requests: changed(func(q *certv1.CertificateSigningRequest) {
			q.Spec.Request = []byte("?")
		})},
		"two tokens that differ": {requests: []*certv1.CertificateSigningRequest{
			request(t, "one", "new", before, infra), request(t, "two", "new", before),
		}, says: "same pool (infra)"},
		"another user, who asked for the same name": {requests: []*certv1.CertificateSigningRequest{
			request(t, "one", "new", before, infra), by("system:serviceaccount:kube-system:joiner", request(t, "two", "new", before)),
		}, says: "same pool (infra)"},
		"another user alone": {requests: []*certv1.CertificateSigningRequest{
			by("system:serviceaccount:kube-system:joiner", request(t, "one", "new", before, infra)),
		}},
		"two requests with one token": {requests: []*certv1.CertificateSigningRequest{
			request(t, "one", "new", before, infra), request(t, "two", "new", before, infra),
		}, want: role("infra"), says: "pool infra"},
	} {
		t.Run(name, func(t *testing.T) {
			n := registered("new", test.has)
			if test.told != "" {
				n.Annotations = map[string]string{api.DesiredConfig: test.told, api.CurrentConfig: test.told}
			}
			objects := []client.Object{n}
			for _, q := range test.requests {
				objects = append(objects, q)
			}
			j := newJoining(t, objects...)
			labels, said := j.look(t, "new")
			if diff := cmp.Diff(test.want, labels); diff != "" && len(test.want)+len(labels) > 0 {
				t.Errorf("labels (-want +got):\n%s", diff)
			}
			if (said == "") != (test.says == "") || !strings.Contains(said, test.says) {
				t.Errorf("it says %q, want %q", said, test.says)
			}
			if again, said := j.look(t, "new"); !maps.Equal(again, labels) || said != "" {
				t.Errorf("another look gives %v, and says %q", again, said)
			}
		})
	}
}

// A pool may be made after its first node. A label that a person takes away from a node that has its place stays away.
func TestANodeIsLabelledAsSoonAsItsPoolExistsAndNotAgain(t *testing.T) {
	j := newJoining(t, registered("new", nil), request(t, "first", "new", t0.Add(-time.Minute), api.PoolGroup+"gpu"))
	if labels, said := j.look(t, "new"); len(labels) > 0 || !strings.Contains(said, "MachineConfigPool/gpu") {
		t.Fatalf("without the pool: %v, %q", labels, said)
	}
	if err := j.client.Create(t.Context(), poolOf("gpu", api.NodeRole+"gpu")); err != nil {
		t.Fatal(err)
	}
	labels, said := j.look(t, "new")
	if _, has := labels[api.NodeRole+"gpu"]; !has || !strings.Contains(said, "node-role.kubernetes.io/gpu") {
		t.Fatalf("with the pool: %v, %q", labels, said)
	}
	n := &corev1.Node{}
	if err := j.live.Get(t.Context(), client.ObjectKey{Name: "new"}, n); err != nil {
		t.Fatal(err)
	}
	n.Annotations = map[string]string{api.DesiredConfig: "rendered-gpu-a"}
	n.Labels = nil
	if err := j.client.Update(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	if labels, said := j.look(t, "new"); len(labels) > 0 || said != "" {
		t.Errorf("after the label was taken away: %v, %q", labels, said)
	}
}

// Without a new node the API server is not asked for requests. A node that can't be known is told nothing while it is new, since it may belong to
// another pool than it seems.
func TestOnlyNewNodesAreAskedAbout(t *testing.T) {
	j := newJoining(t, registered("new", map[string]string{api.NodeRole + "worker": ""}))
	j.live = silent{j.live}
	told := func() string {
		t.Helper()
		n := &corev1.Node{}
		if err := j.client.Get(t.Context(), client.ObjectKey{Name: "new"}, n); err != nil {
			t.Fatal(err)
		}
		return n.Annotations[api.DesiredConfig]
	}
	if _, err := j.Reconcile(t.Context(), reconcile.Request{}); err == nil || !strings.Contains(err.Error(), "requests for certificates") {
		t.Errorf("it says %v", err)
	}
	if to := told(); to != "" {
		t.Errorf("the node was sent to %s before its pool was known", to)
	}
	if said := j.heard(); !strings.HasPrefix(said, "Warning NotLabelled ") || !strings.Contains(said, "it is silent") {
		t.Errorf("an event says %q", said)
	}
	if _, err := j.Reconcile(t.Context(), reconcile.Request{}); err == nil {
		t.Error("the API server gave no requests, and there is no error")
	}
	if said := j.heard(); said != "" {
		t.Errorf("the event is there again: %q", said)
	}
	j.now = t0.Add(2 * time.Hour)
	reconcileNow(t, j.reconciler)
	if told() == "" {
		t.Error("the node is new no more, and was not sent anywhere")
	}
}

// A label that the API server refuses is told once for each text. What another writer has changed meanwhile is no news:
// the next look takes that into account.
func TestARefusedLabelIsToldOnce(t *testing.T) {
	j := newJoining(t, registered("new", nil), request(t, "first", "new", t0.Add(-time.Minute), api.PoolGroup+"infra"))
	node := corev1.Resource("nodes")
	refuse := apierrors.NewConflict(node, "new", errors.New("it has changed"))
	r := j.client
	j.client = interceptor.NewClient(r.(client.WithWatch), interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, more ...client.PatchOption) error {
			if _, is := o.(*corev1.Node); is {
				return refuse
			}
			return c.Patch(ctx, o, p, more...)
		}})
	for _, step := range []struct{ because, says string }{
		{"", ""}, {"a policy", "a policy"}, {"a policy", ""}, {"a webhook", "a webhook"},
	} {
		if step.because != "" {
			refuse = apierrors.NewForbidden(node, "new", errors.New(step.because))
		}
		_, _ = j.Reconcile(t.Context(), reconcile.Request{})
		if said := j.heard(); (said == "") != (step.says == "") || !strings.Contains(said, step.says) {
			t.Errorf("refused because of %q: an event says %q, want %q", step.because, said, step.says)
		}
	}
	j.client = r
	if labels, said := j.look(t, "new"); len(labels) != 1 || !strings.HasPrefix(said, "Normal Labelled ") {
		t.Errorf("not refused any more: %v, %q", labels, said)
	}
}

// The patch of a label rests on a node that was never sent anywhere, whatever annotations the node had.
func TestALabelIsForANodeThatIsStillNew(t *testing.T) {
	missing := map[string]string{api.NodeRole + "infra": ""}
	for name, test := range map[string]struct {
		was, is map[string]string
		good    bool
	}{
		"no annotations":              {nil, nil, true},
		"other annotations":           {map[string]string{"a": "b"}, map[string]string{"a": "c"}, true},
		"sent meanwhile":              {map[string]string{"a": "b"}, map[string]string{api.DesiredConfig: "rendered-worker-a"}, false},
		"sent, without an annotation": {nil, map[string]string{api.DesiredConfig: "rendered-worker-a"}, false},
	} {
		n := registered("new", nil)
		n.Annotations = test.was
		patch, err := jsonpatch.DecodePatch(labelPatch(n, missing))
		if err != nil {
			t.Fatal(err)
		}
		n.Annotations = test.is
		text, err := json.Marshal(n)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := patch.Apply(text); (err == nil) != test.good {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRequestsAreReadToTheirLastPage(t *testing.T) {
	before := t0.Add(-time.Minute)
	j := newJoining(t, registered("new", nil))
	j.live = paged{j.live, []*certv1.CertificateSigningRequest{
		request(t, "another", "other", before), request(t, "first", "new", before, api.PoolGroup+"infra"),
		request(t, "last", "new", before),
	}}
	if labels, said := j.look(t, "new"); len(labels) > 0 || !strings.Contains(said, "same pool (infra)") {
		t.Errorf("with requests that differ: %v, %q", labels, said)
	}
}

// paged is an API server that gives requests for certificates one by one.
type paged struct {
	client.Reader

	requests []*certv1.CertificateSigningRequest
}

func (p paged) List(ctx context.Context, list client.ObjectList, o ...client.ListOption) error {
	requests, is := list.(*certv1.CertificateSigningRequestList)
	if !is {
		return p.Reader.List(ctx, list, o...)
	}
	var asked client.ListOptions
	asked.ApplyOptions(o)
	at := len(asked.Continue)
	requests.Items = []certv1.CertificateSigningRequest{*p.requests[at]}
	if at++; at < len(p.requests) {
		requests.Continue = strings.Repeat("+", at)
	}
	return nil
}

// silent is an API server that gives no requests for certificates.
type silent struct{ client.Reader }

func (s silent) List(ctx context.Context, list client.ObjectList, o ...client.ListOption) error {
	if _, is := list.(*certv1.CertificateSigningRequestList); is {
		return errors.New("it is silent")
	}
	return s.Reader.List(ctx, list, o...)
}

func TestSelectorsThatNameMoreThanRolesOfWorkersGiveNoLabels(t *testing.T) {
	in := func(key string, values ...string) metav1.LabelSelectorRequirement {
		return metav1.LabelSelectorRequirement{Key: key, Operator: metav1.LabelSelectorOpIn, Values: values}
	}
	exists := metav1.LabelSelectorRequirement{Key: api.NodeRole + "infra", Operator: metav1.LabelSelectorOpExists}
	for name, test := range map[string]struct {
		selector *metav1.LabelSelector
		want     map[string]string
		fails    string
	}{
		"none":           {nil, nil, "missing"},
		"an empty one":   {&metav1.LabelSelector{}, nil, "no label"},
		"any role":       {&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{exists}}, map[string]string{exists.Key: ""}, ""},
		"a value":        {&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{in(exists.Key, "x"), exists}}, map[string]string{exists.Key: "x"}, ""},
		"one of two":     {&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{in(exists.Key, "x", "y")}}, nil, "no label"},
		"a label of own": {&metav1.LabelSelector{MatchLabels: map[string]string{"example.com/pool": "infra"}}, nil, "example.com/pool is not"},
		"a host's name":  {&metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/hostname": "x"}}, nil, "kubernetes.io/hostname is not"},
		"master":         {&metav1.LabelSelector{MatchLabels: map[string]string{api.NodeRole + "master": ""}}, nil, "role of workers"},
	} {
		got, err := selected(test.selector)
		if diff := cmp.Diff(test.want, got); diff != "" || (err == nil) != (test.fails == "") ||
			err != nil && !strings.Contains(err.Error(), test.fails) {
			t.Errorf("%s: %v, want %q (-want +got):\n%s", name, err, test.fails, diff)
		}
	}
}
