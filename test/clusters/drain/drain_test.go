// SPDX-License-Identifier: Apache-2.0

package drain

import (
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	kubectldrain "k8s.io/kubectl/pkg/drain"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/drain"
	"github.com/noderefit/noderefit/test/lab/cluster"
)

func TestARouterWhoseReplacementFindsNoNodeIsExplained(t *testing.T) {
	cluster.Need(t)
	s := sceneIn(t, cluster.New(t, whole), "openshift-ingress")
	for _, name := range []string{"okd-master-01", "okd-master-02", "okd-master-03"} {
		s.check(s.cluster.AddNode(s.Context(), name, map[string]string{api.NodeRole + "master": ""}))
	}
	s.check(s.cluster.AddNode(s.Context(), "okd-worker-01", map[string]string{api.NodeRole + "worker": ""}))
	s.deploy("router-default", 2, func(p *corev1.PodSpec) {
		p.NodeSelector = map[string]string{api.NodeRole + "worker": ""}
	})
	s.budget("router-default", "router-default", 1, 1)

	const placement = "0 of 4 nodes could take it: 1 is unschedulable (okd-worker-01, being drained), " +
		"3 do not match the pod's node selector (node-role.kubernetes.io/worker)"
	forecast, err := s.drainer("okd-worker-01").Forecast(s.Context(), nil)
	s.check(err)
	if forecast.Left != 2 || len(forecast.Waiting) != 2 {
		t.Fatalf("the forecast is %+v", forecast)
	}
	for _, w := range forecast.Waiting {
		if w.Placement != placement || w.Budget != "router-default" || w.Allowed != 1 ||
			w.Message != "2 pods that count against it are on this node, more than it allows to go" {
			t.Errorf("the forecast warns of %+v", w)
		}
	}
	if n := s.node("okd-worker-01"); n.Spec.Unschedulable {
		t.Error("the forecast cordoned the node")
	}

	s.cordon("okd-worker-01")
	d := s.drain("okd-worker-01", nil)
	report := d.waits(api.DrainWaitBudget)
	var replacement string
	for _, p := range s.pods("router-default") {
		if p.Spec.NodeName == "" {
			replacement = p.Name
		}
	}
	// What the scheduler says comes a moment after the first refusal, and into the next look at it.
	scheduler := "replacement " + replacement + " is Pending: 0/4 nodes are available: 1 node(s) were unschedulable, " +
		"3 node(s) didn't match Pod's node affinity/selector"
	s.until("the scheduler is quoted", func() bool {
		report = d.last()
		// Until the budget's controller has counted, the API server has less to say about its refusal.
		return len(report.Waiting) == 1 && strings.Contains(report.Waiting[0].Message, scheduler) &&
			strings.HasPrefix(report.Waiting[0].Message, "The disruption budget router-default needs 1 healthy pods and has 1 currently; ")
	})
	w := report.Waiting[0]
	if report.Left != 1 || w.Namespace != "openshift-ingress" || w.Budget != "router-default" || w.Allowed != 0 ||
		w.Placement != placement || w.Why != api.DrainWaitBudget {
		t.Errorf("the drain waits for %+v", report)
	}
	t.Log(drain.Sentence(w))

	d.cancel(errCancelled)
	if err := d.ends(time.Second); !errors.Is(err, errCancelled) {
		t.Errorf("the drain ended with %v", err)
	}
	// Before the first eviction of the next attempt it is what the published log shows: one runs, one is Pending, none may go.
	forecast, err = s.drainer("okd-worker-01").Forecast(s.Context(), nil)
	s.check(err)
	if len(forecast.Waiting) != 1 || forecast.Waiting[0].Placement != placement || forecast.Waiting[0].Allowed != 0 ||
		!strings.HasPrefix(forecast.Waiting[0].Message, scheduler) {
		t.Errorf("the forecast is %+v", forecast)
	}
}

func TestADrainOutlivesTheAPIServer(t *testing.T) {
	s := newScene(t, "outage", "outage-0")
	s.deploy("web", 1)
	s.budget("web", "web", 1, 0)
	s.cordon("outage-0")
	d := s.drain("outage-0", nil)
	before := d.waits(api.DrainWaitBudget)
	s.cluster.StopAPI()
	d.waits(api.DrainWaitError)
	s.check(s.cluster.StartAPI(s.Context()))
	after := d.waits(api.DrainWaitBudget)
	if !after.Since.Equal(before.Since) || !after.Waiting[0].Since.Equal(before.Waiting[0].Since) {
		t.Errorf("it waits since %v, and did since %v", after, before)
	}
	s.kubectl("delete", "pdb", "web")
	s.check(d.ends(time.Minute))
}

func TestABudgetIsHonoured(t *testing.T) {
	t.Parallel()
	s := newScene(t, "budget", "budget-0")
	s.deploy("web", 4)
	s.budget("web", "web", 3, 1)
	s.check(s.cluster.AddNode(s.Context(), "budget-1", map[string]string{"scene": s.ns}))
	fewest := s.watchReady("web", 4)

	s.cordon("budget-0")
	d := s.drain("budget-0", nil)
	s.check(d.ends(time.Minute))
	if left := s.on("budget-0"); len(left) > 0 {
		t.Errorf("%v are still there", left)
	}
	if n := fewest(); n < 3 {
		t.Errorf("%d pods were ready at one time, the budget says 3", n)
	}
	kinds, text := tally(s.requests())
	t.Logf("a drain of 4 pods through a budget of 1: %s", text)
	if kinds["create pods/eviction"] > 12 {
		t.Errorf("%d evictions for 4 pods", kinds["create pods/eviction"])
	}
}

// watchReady watches how many pods of an app are ready; what it returns ends that and says how many there were at the
// worst moment.
func (s *scene) watchReady(app string, now int) (fewest func() int) {
	s.Helper()
	list, err := s.admin.CoreV1().Pods(s.ns).List(s.Context(), metav1.ListOptions{LabelSelector: "app=" + app})
	s.check(err)
	w, err := s.admin.CoreV1().Pods(s.ns).Watch(s.Context(), metav1.ListOptions{
		LabelSelector: "app=" + app, ResourceVersion: list.ResourceVersion,
	})
	s.check(err)
	ready := map[string]bool{}
	for _, p := range list.Items {
		ready[p.Name] = isReady(&p)
	}
	worst := make(chan int, 1)
	go func() {
		least := now
		for event := range w.ResultChan() {
			if p, ok := event.Object.(*corev1.Pod); ok {
				ready[p.Name] = isReady(p) && event.Type != "DELETED"
			}
			count := 0
			for _, yes := range ready {
				if yes {
					count++
				}
			}
			least = min(least, count)
		}
		worst <- least
	}()
	return func() int {
		w.Stop()
		return <-worst
	}
}

func TestABlockedDrainAsksSeldomEndsAtOnceAndGoesOnWhenReleased(t *testing.T) {
	t.Parallel()
	s := newScene(t, "blocked", "blocked-0")
	s.deploy("web", 3)
	s.budget("web", "web", 3, 0)
	s.check(s.cluster.AddNode(s.Context(), "blocked-1", map[string]string{"scene": s.ns}))
	s.cordon("blocked-0")

	forecast, err := s.drainer("blocked-0").Forecast(s.Context(), nil)
	s.check(err)
	if len(forecast.Waiting) != 3 || forecast.Waiting[0].Allowed != 0 ||
		!strings.Contains(forecast.Waiting[0].Placement, "could take it (blocked-1)") {
		t.Errorf("the forecast is %+v", forecast)
	}
	d := s.drain("blocked-0", nil)
	report := d.waits(api.DrainWaitBudget, api.DrainWaitBudget, api.DrainWaitBudget)
	if w := report.Waiting[0]; w.Budget != "web" || w.Allowed != 0 || w.Placement == "" {
		t.Errorf("the drain waits for %+v", w)
	}
	d.goesOn(12 * time.Second) // what is counted is requests in a time
	begin := time.Now()
	d.cancel(errCancelled)
	if err := d.ends(5 * time.Second); !errors.Is(err, errCancelled) {
		t.Errorf("the drain ended with %v", err)
	}
	if took := time.Since(begin); took > time.Second {
		t.Errorf("it took %s to cancel the drain", took)
	}
	s.evictionsAreSeldom(3)
	if left := s.on("blocked-0"); len(left) != 3 {
		t.Errorf("only %v are there", left)
	}

	again := s.drain("blocked-0", &report)
	taken := again.waits(api.DrainWaitBudget, api.DrainWaitBudget, api.DrainWaitBudget)
	if !taken.Since.Equal(report.Since) || !taken.Waiting[2].Since.Equal(report.Waiting[2].Since) {
		t.Errorf("it waits since %v, and did since %v", taken.Since, report.Since)
	}
	s.kubectl("scale", "deployment", "web", "--replicas=6")
	s.check(again.ends(time.Minute))
	if left := s.on("blocked-0"); len(left) > 0 {
		t.Errorf("%v are still there", left)
	}
}

// evictionsAreSeldom fails where a pod was asked for twice within the delay, or the pods of a closed budget oftener than
// one of them each delay after the first time.
func (s *scene) evictionsAreSeldom(pods int) {
	s.Helper()
	asked := map[string]time.Time{}
	evictions := slices.DeleteFunc(s.requests(), func(r cluster.Request) bool { return kindOf(r) != "create pods/eviction" })
	for _, r := range evictions {
		if last, ok := asked[r.Object.Name]; ok && r.Received.Sub(last) < drain.RetryDelay-200*time.Millisecond {
			s.Errorf("pod %s was asked for twice within %s", r.Object.Name, r.Received.Sub(last))
		}
		asked[r.Object.Name] = r.Received
	}
	span := evictions[len(evictions)-1].Received.Sub(evictions[0].Received)
	s.Logf("%d evictions in %s for %d pods behind a closed budget", len(evictions), span.Round(time.Millisecond), pods)
	if len(asked) != pods || len(evictions) > pods+int(span/drain.RetryDelay)+1 {
		s.Errorf("%d evictions in %s for %d pods behind one budget", len(evictions), span, pods)
	}
}

// stubborn makes a node that nobody plays, and pods there that end only when they are removed.
func (s *scene) stubborn(node string, pods ...string) {
	s.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
	_, err := s.admin.CoreV1().Nodes().Create(s.Context(), n, metav1.CreateOptions{})
	s.check(err)
	for _, name := range pods {
		pod := s.bare(name, node, nil)
		pod.Status.Phase = corev1.PodRunning
		_, err = s.admin.CoreV1().Pods(s.ns).UpdateStatus(s.Context(), pod, metav1.UpdateOptions{})
		s.check(err)
	}
}

// bare puts a pod of no controller onto a node.
func (s *scene) bare(name, node string, annotations map[string]string) *corev1.Pod {
	s.Helper()
	template := s.template(name)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: template.Labels, Annotations: annotations}, Spec: template.Spec,
	}
	pod.Spec.NodeSelector, pod.Spec.NodeName = nil, node
	pod, err := s.admin.CoreV1().Pods(s.ns).Create(s.Context(), pod, metav1.CreateOptions{})
	s.check(err)
	return pod
}

func (s *scene) end(pod string) { s.kubectl("delete", "pod", pod, "--force", "--grace-period=0") }

func TestDoneMeansGone(t *testing.T) {
	t.Parallel()
	s := newScene(t, "slow")
	s.stubborn("slow-0", "slow")
	s.cordon("slow-0")
	d := s.drain("slow-0", nil)
	report := d.waits(api.DrainWaitTerminating)
	if w := report.Waiting[0]; w.Name != "slow" || !strings.Contains(w.Message, "30 s after it was evicted") {
		t.Errorf("the drain waits for %+v", w)
	}
	d.goesOn(3 * time.Second)
	s.end("slow")
	s.check(d.ends(5 * time.Second))
	if kinds, text := tally(s.requests()); kinds["create pods/eviction"] != 1 || kinds["get pods"] > 0 {
		t.Errorf("waiting for one pod took %s", text)
	}
}

// guard has the API server ask a webhook about each eviction in the scene. allow says whether it may be.
func (s *scene) guard(allow func(name string) bool) {
	s.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{
			UID: review.Request.UID, Allowed: allow(review.Request.Name), Result: &metav1.Status{Message: "the shop is open"},
		}
		if err := json.NewEncoder(w).Encode(review); err != nil {
			s.Error(err)
		}
	}))
	s.Cleanup(server.Close)
	none, fail, url := admissionregistrationv1.SideEffectClassNone, admissionregistrationv1.Fail, server.URL
	config := &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: s.ns},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "evictions.example.com", SideEffects: &none, FailurePolicy: &fail, AdmissionReviewVersions: []string{"v1"},
			ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: &url, CABundle: pem.EncodeToMemory(
				&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: s.ns}},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule: admissionregistrationv1.Rule{
					APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods/eviction"},
				},
			}},
		}},
	}
	webhooks := s.admin.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	_, err := webhooks.Create(s.Context(), config, metav1.CreateOptions{})
	s.check(err)
	s.until("the webhook is asked", func() bool {
		nobody := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: "nobody"}}
		err := s.admin.PolicyV1().Evictions(s.ns).Evict(s.Context(), nobody)
		return err != nil && strings.Contains(err.Error(), "the shop is open")
	})
}

func TestAWebhookThatSaysNoIsAskedAgain(t *testing.T) {
	t.Parallel()
	s := newScene(t, "webhook", "webhook-0")
	var open atomic.Bool
	s.guard(func(string) bool { return open.Load() })
	s.deploy("web", 1)
	s.cordon("webhook-0")
	d := s.drain("webhook-0", nil)
	report := d.waits(api.DrainWaitRefused)
	if w := report.Waiting[0]; !strings.Contains(w.Message, "the shop is open") || w.Budget != "" {
		t.Errorf("the drain waits for %+v", w)
	}
	open.Store(true)
	s.check(d.ends(20 * time.Second))
}

func TestAPodThatCameBackElsewhereIsLeftAlone(t *testing.T) {
	t.Parallel()
	s := newScene(t, "elsewhere")
	asked, answer := make(chan struct{}), make(chan struct{})
	s.guard(func(name string) bool {
		if name == "db" {
			asked <- struct{}{}
			<-answer
		}
		return name == "db"
	})
	s.stubborn("elsewhere-0", "db", "other")
	s.stubborn("elsewhere-1")
	s.cordon("elsewhere-0")
	d := s.drain("elsewhere-0", nil)
	<-asked // between the request and its effect the pod goes by itself, and one of its name is made on another node
	s.end("db")
	s.bare("db", "elsewhere-1", nil)
	close(answer)
	s.until("the eviction is answered", func() bool {
		return slices.ContainsFunc(s.requests(), func(r cluster.Request) bool {
			return kindOf(r) == "create pods/eviction" && r.Object.Name == "db"
		})
	})
	d.waits(api.DrainWaitRefused)
	for _, p := range s.pods("db") {
		if p.DeletionTimestamp != nil {
			t.Error("a pod of another node was evicted")
		}
	}
}

func TestTwoBudgetsOverOnePodAreBothNamed(t *testing.T) {
	t.Parallel()
	s := newScene(t, "two", "two-0")
	s.deploy("web", 1)
	s.budget("all", "web", 0, 1)
	s.budget("web", "web", 0, 1)
	s.cordon("two-0")
	d := s.drain("two-0", nil)
	report := d.waits(api.DrainWaitBudget)
	if w := report.Waiting[0]; w.Budget != "all, web" || !strings.Contains(w.Message, "more than one PodDisruptionBudget") {
		t.Errorf("the drain waits for %+v", w)
	}
	s.kubectl("delete", "pdb", "all")
	s.check(d.ends(20 * time.Second))
}

func TestACordonOfSomebodyElseStays(t *testing.T) {
	t.Parallel()
	s := newScene(t, "theirs", "theirs-0", "theirs-1")
	s.deploy("web", 1)
	name := s.pods("web")[0].Spec.NodeName
	old := s.node(name)
	s.kubectl("cordon", name)
	// Decided on what was, this would claim the node; the API server refuses it, and it is decided anew.
	entry := api.Cordon{By: api.Daemon, Config: "rendered-b", Reason: "update", Since: time.Now()}
	working, done := string(api.Working), string(api.Done)
	nodes := s.client.Nodes()
	n, err := drain.Cordon(s.Context(), nodes, old, entry, drain.Annotations{api.StateKey: &working})
	s.check(err)
	if drain.ReadHold(n) != drain.Theirs || n.Annotations[api.StateKey] != working {
		t.Errorf("the hold is %s, the annotations are %v", drain.ReadHold(n), n.Annotations)
	}
	d := s.drain(name, nil)
	s.check(d.ends(20 * time.Second))
	n, err = drain.Uncordon(s.Context(), nodes, old, "rendered-b", drain.Annotations{api.StateKey: &done})
	s.check(err)
	if drain.ReadHold(n) != drain.Theirs || n.Annotations[api.StateKey] != done ||
		n.Annotations[api.LastAppliedDrain] != "uncordon-rendered-b" {
		t.Errorf("the hold is %s, the annotations are %v", drain.ReadHold(n), n.Annotations)
	}
}

func TestOurOwnCordonComesAndGoesInOnePatchEach(t *testing.T) {
	t.Parallel()
	s := newScene(t, "ours", "ours-0")
	nodes, entry := s.client.Nodes(), api.Cordon{By: api.Daemon, Config: "b", Since: time.Now()}
	n, err := drain.Cordon(s.Context(), nodes, s.node("ours-0"), entry, drain.Drained("b"))
	s.check(err)
	if drain.ReadHold(n) != drain.Ours || n.Annotations[api.LastAppliedDrain] != "drain-b" {
		t.Errorf("the hold is %s, the annotations are %v", drain.ReadHold(n), n.Annotations)
	}
	n, err = drain.Cordon(s.Context(), nodes, n, entry, drain.Drained("b"))
	s.check(err)
	n, err = drain.Uncordon(s.Context(), nodes, n, "b", nil)
	s.check(err)
	if _, ok := n.Annotations[api.CordonKey]; ok || drain.ReadHold(n) != drain.Free {
		t.Errorf("the hold is %s, the annotations are %v", drain.ReadHold(n), n.Annotations)
	}
	// The node may have moved in between by itself, which costs one more each.
	if kinds, text := tally(s.requests()); kinds["patch nodes"] != 2+kinds["get nodes"] {
		t.Errorf("it took %s", text)
	}
}

func TestACordonThatReplacedOursStays(t *testing.T) {
	t.Parallel()
	s := newScene(t, "replaced", "replaced-0")
	s.cordon("replaced-0")
	if n := s.node("replaced-0"); drain.ReadHold(n) != drain.Ours {
		t.Fatalf("the hold is %s", drain.ReadHold(n))
	}
	s.kubectl("cordon", "replaced-0") // that is no change
	if n := s.node("replaced-0"); drain.ReadHold(n) != drain.Ours {
		t.Errorf("the hold is %s", drain.ReadHold(n))
	}
	s.kubectl("uncordon", "replaced-0")
	if n := s.node("replaced-0"); drain.ReadHold(n) != drain.Lost {
		t.Errorf("the hold is %s", drain.ReadHold(n))
	}
	s.kubectl("cordon", "replaced-0")
	n, err := drain.Uncordon(s.Context(), s.client.Nodes(), s.node("replaced-0"), "rendered-b", nil)
	s.check(err)
	if _, ok := n.Annotations[api.CordonKey]; ok || drain.ReadHold(n) != drain.Theirs {
		t.Errorf("the hold is %s, the annotations are %v", drain.ReadHold(n), n.Annotations)
	}
	s.kubectl("uncordon", "replaced-0")
	s.cordon("replaced-0")
	if n := s.node("replaced-0"); drain.ReadHold(n) != drain.Ours {
		t.Errorf("after all of it the hold is %s", drain.ReadHold(n))
	}
}

func TestANodeThatWasDeletedIsNotDrainedForItsSuccessor(t *testing.T) {
	t.Parallel()
	s := newScene(t, "deleted")
	s.stubborn("deleted-0", "slow")
	s.cordon("deleted-0")
	old := s.node("deleted-0")
	d := s.drain("deleted-0", nil)
	d.waits(api.DrainWaitTerminating)
	s.kubectl("delete", "node", "deleted-0")
	s.end("slow")
	if err := d.ends(5 * time.Second); !apierrors.IsNotFound(err) {
		t.Errorf("the drain ended with %v", err)
	}
	s.stubborn("deleted-0")
	_, err := drain.Uncordon(s.Context(), s.client.Nodes(), old, "rendered-b", nil)
	if !apierrors.IsConflict(err) || !strings.Contains(err.Error(), "deleted and came back") {
		t.Errorf("the uncordon of the one before ended with %v", err)
	}
}

func TestAnUncordonInBetweenEndsTheDrain(t *testing.T) {
	t.Parallel()
	s := newScene(t, "uncordon", "uncordon-0")
	s.deploy("web", 1)
	s.budget("web", "web", 1, 0)
	s.cordon("uncordon-0")
	d := s.drain("uncordon-0", nil)
	d.waits(api.DrainWaitBudget)
	s.kubectl("uncordon", "uncordon-0")
	if hold := drain.ReadHold(s.node("uncordon-0")); hold != drain.Lost {
		t.Errorf("the hold is %s", hold)
	}
	s.kubectl("scale", "deployment", "web", "--replicas=3") // they land on the node, and must not be chased
	if err := d.ends(20 * time.Second); !errors.Is(err, drain.ErrUncordoned) {
		t.Fatalf("the drain ended with %v", err)
	}
	s.ready("web", 3)
	s.cordon("uncordon-0")
	if hold := drain.ReadHold(s.node("uncordon-0")); hold != drain.Ours {
		t.Errorf("the hold is %s", hold)
	}
	s.check(s.cluster.AddNode(s.Context(), "uncordon-1", map[string]string{"scene": s.ns}))
	s.check(s.drain("uncordon-0", nil).ends(time.Minute))
}

func TestAnUncordonedNodeIsNeverDrained(t *testing.T) {
	t.Parallel()
	s := newScene(t, "never")
	s.stubborn("never-0", "slow")
	if err := s.drain("never-0", nil).ends(5 * time.Second); !errors.Is(err, drain.ErrUncordoned) {
		t.Errorf("before the first eviction the drain ended with %v", err)
	}
	s.cordon("never-0")
	d := s.drain("never-0", nil)
	d.waits(api.DrainWaitTerminating)
	s.kubectl("uncordon", "never-0")
	s.end("slow")
	if err := d.ends(5 * time.Second); !errors.Is(err, drain.ErrUncordoned) {
		t.Errorf("after the last eviction the drain ended with %v", err)
	}
}

// furnish puts onto a node each kind of pod that a drain tells apart.
func (s *scene) furnish(node string) {
	s.Helper()
	template := s.template("agent")
	set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "agent"}, Spec: appsv1.DaemonSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: template.Labels}, Template: template}}
	_, err := s.admin.AppsV1().DaemonSets(s.ns).Create(s.Context(), set, metav1.CreateOptions{})
	s.check(err)
	s.deploy("web", 1, func(p *corev1.PodSpec) {
		p.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	})
	for name, annotations := range map[string]map[string]string{
		"bare": nil, "static": {corev1.MirrorPodAnnotationKey: "digest"},
	} {
		s.bare(name, node, annotations)
	}
	s.ready("agent", 1)
}

func TestWhatBelongsToTheNodeStays(t *testing.T) {
	t.Parallel()
	s := newScene(t, "kinds", "kinds-0")
	s.furnish("kinds-0")
	s.cordon("kinds-0")
	s.check(s.drain("kinds-0", nil).ends(20 * time.Second))
	left := s.on("kinds-0")
	if len(left) != 2 || !strings.HasPrefix(left[0], "agent-") || left[1] != "static" {
		t.Errorf("%v are left", left)
	}
}

func TestADrainCostsARequestEachPod(t *testing.T) {
	t.Parallel()
	const pods = 20
	s := newScene(t, "cost", "cost-0")
	s.furnish("cost-0")
	s.deploy("shop", pods-2)
	s.cordon("cost-0")
	forecast, err := s.drainer("cost-0").Forecast(s.Context(), nil)
	s.check(err)
	if forecast.Left != pods || len(forecast.Waiting) > 0 {
		t.Errorf("the forecast is %+v", forecast)
	}
	kinds, total := s.cost("cost-0")
	if kinds["create pods/eviction"] != pods || total > pods+7 {
		t.Errorf("%d requests for %d pods", total, pods)
	}
}

// cost drains a node and says what that asked of the API server, by kind and in all.
func (s *scene) cost(node string) (kinds map[string]int, total int) {
	s.Helper()
	before := len(s.requests())
	s.check(s.drain(node, nil).ends(time.Minute))
	var text string
	s.until("all is logged", func() bool { // a watch is, when it has ended
		kinds, text = tally(s.requests()[before:])
		return kinds["watch pods"] > 0
	})
	total = len(s.requests()) - before
	s.Logf("%d pods with %d requests: %s", kinds["create pods/eviction"], total, text)
	return kinds, total
}

// BenchmarkDrain counts what a pod that goes costs in requests to the API server, beside kubectl's own drain of as many.
func BenchmarkDrain(b *testing.B) {
	const pods = 50
	s := newScene(b, "bench", "bench-0")
	s.deploy("shop", pods)
	config := rest.CopyConfig(s.cluster.Config)
	config.UserAgent = "kubectl/bench"
	kubectl := &kubectldrain.Helper{
		Ctx: s.Context(), Client: kubernetes.NewForConfigOrDie(config), Force: true, IgnoreAllDaemonSets: true,
		DeleteEmptyDirData: true, GracePeriodSeconds: -1, EvictErrorRetryDelay: drain.RetryDelay,
		Out: io.Discard, ErrOut: io.Discard,
	}
	ours := 0
	for b.Loop() {
		s.cordon("bench-0")
		_, n := s.cost("bench-0")
		ours += n
		s.kubectl("uncordon", "bench-0")
		s.ready("shop", pods)
		s.cordon("bench-0")
		s.check(kubectldrain.RunNodeDrain(kubectl, "bench-0"))
		s.kubectl("uncordon", "bench-0")
		s.ready("shop", pods)
	}
	theirs := *s
	theirs.agent = config.UserAgent
	b.ReportMetric(float64(ours)/float64(b.N*pods), "requests/pod")
	b.ReportMetric(float64(len(theirs.requests()))/float64(b.N*pods), "kubectl-requests/pod")
}
