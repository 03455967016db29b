// SPDX-License-Identifier: Apache-2.0

// Package drain tests the package drain against a real API server, scheduler and controller manager.
package drain

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/drain"
	"github.com/noderefit/noderefit/kube"
	"github.com/noderefit/noderefit/test/lab/cluster"
)

// permissions are all that a drain needs.
var permissions = []rbacv1.PolicyRule{
	{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "list", "patch"}},
	{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list", "watch", "delete"}},
	{APIGroups: []string{""}, Resources: []string{"pods/eviction"}, Verbs: []string{"create"}},
	{APIGroups: []string{"apps"}, Resources: []string{"daemonsets"}, Verbs: []string{"get"}},
	{APIGroups: []string{"policy"}, Resources: []string{"poddisruptionbudgets"}, Verbs: []string{"list"}},
	{APIGroups: []string{"storage.k8s.io"}, Resources: []string{"volumeattachments"}, Verbs: []string{"get", "list"}},
	{APIGroups: []string{""}, Resources: []string{"persistentvolumeclaims"}, Verbs: []string{"get"}},
}

// suite has the cluster of all scenes that do not need one to themselves.
var suite = cluster.Suite{Options: whole}

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

// whole is a cluster in which a node does not become NotReady because the API server was away for a while: what is not
// ready may go, whatever a budget says.
var whole = cluster.Options{
	Controllers: true, Scheduler: true, Kwok: true, Audit: true, NoCRDs: true, GracePeriod: time.Minute,
}

// patience is how long a scene waits for anything.
const patience = time.Minute

// scene is a namespace, its nodes, and the client of whoever drains one of them.
type scene struct {
	testing.TB
	cluster *cluster.Cluster
	admin   kubernetes.Interface
	ns      string
	agent   string
	client  *kube.Client
}

// newScene makes a scene in the shared cluster, with nodes that only its own pods get onto.
func newScene(t testing.TB, ns string, nodes ...string) *scene {
	t.Helper()
	s := sceneIn(t, suite.Cluster(t), ns)
	for _, name := range nodes {
		s.check(s.cluster.AddNode(s.Context(), name, map[string]string{"scene": ns}))
	}
	return s
}

func sceneIn(t testing.TB, c *cluster.Cluster, ns string) *scene {
	t.Helper()
	ctx := t.Context()
	s := &scene{TB: t, cluster: c, admin: c.Client, ns: ns, agent: "drainer/" + ns}
	s.become("drainer", permissions)
	space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}
	_, err := s.admin.CoreV1().Namespaces().Create(ctx, space, metav1.CreateOptions{})
	s.check(err)
	s.until("the namespace takes pods", func() bool {
		_, err := s.admin.CoreV1().ServiceAccounts(ns).Get(ctx, "default", metav1.GetOptions{})
		return err == nil
	})
	return s
}

// become has the scene's client be somebody with those rights.
func (s *scene) become(name string, rules []rbacv1.PolicyRule) {
	s.Helper()
	config := rest.CopyConfig(s.cluster.Config)
	config.UserAgent, config.Impersonate.UserName = s.agent, name
	var err error
	s.client, err = kube.New(config)
	s.check(err)
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}},
	}
	_, err = s.admin.RbacV1().ClusterRoles().Create(s.Context(), role, metav1.CreateOptions{})
	s.made(err)
	_, err = s.admin.RbacV1().ClusterRoleBindings().Create(s.Context(), binding, metav1.CreateOptions{})
	s.made(err)
}

// mayNotDelete has the scene's client be an agent that nobody has let delete pods.
func (s *scene) mayNotDelete() {
	s.Helper()
	rules := slices.Clone(permissions)
	for i := range rules {
		rules[i].Verbs = slices.DeleteFunc(slices.Clone(rules[i].Verbs), func(v string) bool { return v == "delete" })
	}
	s.become("meek-drainer", rules)
	s.until("the agent may list pods", func() bool {
		_, err := s.client.Pods("").List(s.Context(), metav1.ListOptions{Limit: 1})
		return err == nil
	})
}

func (s *scene) check(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// made is check for what an earlier scene may have made.
func (s *scene) made(err error) {
	s.Helper()
	if !apierrors.IsAlreadyExists(err) {
		s.check(err)
	}
}

func (s *scene) until(what string, condition func() bool) {
	s.Helper()
	for deadline := time.Now().Add(patience); !condition(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.Fatalf("waited %s until %s", patience, what)
		}
	}
}

func (s *scene) kubectl(args ...string) {
	s.Helper()
	_, err := s.cluster.Kubectl(s.Context(), append([]string{"-n", s.ns}, args...)...)
	s.check(err)
}

func (s *scene) node(name string) *corev1.Node {
	s.Helper()
	n, err := s.admin.CoreV1().Nodes().Get(s.Context(), name, metav1.GetOptions{})
	s.check(err)
	return n
}

func (s *scene) template(app string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app}},
		Spec: corev1.PodSpec{
			NodeSelector: map[string]string{"scene": s.ns},
			Containers:   []corev1.Container{{Name: "c", Image: "registry.example/" + app}},
		},
	}
}

// deploy makes a Deployment and waits until its pods are ready.
func (s *scene) deploy(app string, replicas int32, change ...func(*corev1.PodSpec)) {
	s.Helper()
	template := s.template(app)
	for _, f := range change {
		f(&template.Spec)
	}
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: app},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: template.Labels}, Template: template,
		},
	}
	_, err := s.admin.AppsV1().Deployments(s.ns).Create(s.Context(), d, metav1.CreateOptions{})
	s.check(err)
	s.ready(app, int(replicas))
}

func (s *scene) ready(app string, want int) {
	s.Helper()
	s.until(fmt.Sprintf("%d pods of %s are ready", want, app), func() bool {
		return len(slices.DeleteFunc(s.pods(app), func(p corev1.Pod) bool { return !isReady(&p) })) == want
	})
}

func isReady(p *corev1.Pod) bool {
	return p.DeletionTimestamp == nil && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

func (s *scene) pods(app string) []corev1.Pod {
	s.Helper()
	list, err := s.admin.CoreV1().Pods(s.ns).List(s.Context(), metav1.ListOptions{LabelSelector: "app=" + app})
	s.check(err)
	return list.Items
}

// on are the names of the scene's pods on a node.
func (s *scene) on(node string) []string {
	s.Helper()
	list, err := s.admin.CoreV1().Pods(s.ns).List(s.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	s.check(err)
	var names []string
	for _, p := range list.Items {
		names = append(names, p.Name)
	}
	return names
}

// budget makes a PodDisruptionBudget and waits until it is known what it allows.
func (s *scene) budget(name, app string, minAvailable, allowed int32) {
	s.Helper()
	least := intstr.FromInt32(minAvailable)
	b := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: &least, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
		},
	}
	_, err := s.admin.PolicyV1().PodDisruptionBudgets(s.ns).Create(s.Context(), b, metav1.CreateOptions{})
	s.check(err)
	s.allows(name, allowed)
}

func (s *scene) allows(name string, allowed int32) {
	s.Helper()
	s.until(fmt.Sprintf("budget %s allows %d", name, allowed), func() bool {
		b, err := s.admin.PolicyV1().PodDisruptionBudgets(s.ns).Get(s.Context(), name, metav1.GetOptions{})
		s.check(err)
		return b.Status.ObservedGeneration == b.Generation && b.Status.CurrentHealthy > 0 &&
			b.Status.DisruptionsAllowed == allowed
	})
}

func (s *scene) cordon(node string) {
	s.Helper()
	entry := api.Cordon{By: api.Daemon, Config: "rendered-b", Reason: "update", Since: time.Now()}
	_, err := drain.Cordon(s.Context(), s.client.Nodes(), s.node(node), entry, nil)
	s.check(err)
}

func (s *scene) drainer(node string) *drain.Drainer {
	return &drain.Drainer{Client: s.client, Node: node}
}

// draining is a drain that runs.
type draining struct {
	scene  *scene
	cancel context.CancelCauseFunc
	done   chan error

	mu      sync.Mutex
	reports []api.Drain
}

var errCancelled = errors.New("another configuration is wanted")

func (s *scene) drain(node string, last *api.Drain) *draining {
	return s.drainBy(node, drain.Request{Last: last})
}

func (s *scene) drainBy(node string, r drain.Request) *draining {
	r.Config = "rendered-b"
	ctx, cancel := context.WithCancelCause(s.Context())
	d := &draining{scene: s, cancel: cancel, done: make(chan error, 1)}
	go func() { d.done <- s.drainer(node).Run(ctx, r, d.report) }()
	s.Cleanup(func() { cancel(nil) })
	return d
}

func (d *draining) report(r api.Drain) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.reports = append(d.reports, r)
}

func (d *draining) last() api.Drain {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.reports) == 0 {
		return api.Drain{}
	}
	return d.reports[len(d.reports)-1]
}

// waits waits until the drain says that it waits for pods, each for a reason.
func (d *draining) waits(why ...string) api.Drain {
	d.scene.Helper()
	d.scene.until("the drain waits for "+strings.Join(why, ", "), func() bool {
		var got []string
		for _, w := range d.last().Waiting {
			got = append(got, w.Why)
		}
		d.goesOn(0)
		return slices.Equal(got, why)
	})
	return d.last()
}

// goesOn fails where the drain ends within a time.
func (d *draining) goesOn(during time.Duration) {
	d.scene.Helper()
	select {
	case err := <-d.done:
		d.scene.Fatalf("the drain is over: %v", err)
	case <-time.After(during):
	}
}

// ends waits for the end of the drain.
func (d *draining) ends(within time.Duration) error {
	d.scene.Helper()
	select {
	case err := <-d.done:
		return err
	case <-time.After(within):
		d.scene.Fatalf("the drain is not over after %s; it waits for %+v", within, d.last())
		return nil
	}
}

// requests are what the scene's own client has asked the API server, as "verb resource", oldest first.
func (s *scene) requests() []cluster.Request {
	s.Helper()
	all, err := s.cluster.Requests()
	s.check(err)
	return slices.DeleteFunc(all, func(r cluster.Request) bool { return r.UserAgent != s.agent })
}

func kindOf(r cluster.Request) string {
	kind := r.Verb + " " + r.Object.Resource
	if r.Object.Subresource != "" {
		kind += "/" + r.Object.Subresource
	}
	return kind
}

func tally(requests []cluster.Request) (map[string]int, string) {
	kinds := map[string]int{}
	for _, r := range requests {
		kinds[kindOf(r)]++
	}
	var text []string
	for kind, n := range kinds {
		text = append(text, fmt.Sprintf("%d %s", n, kind))
	}
	slices.Sort(text)
	return kinds, strings.Join(text, ", ")
}

// pod makes a pod of its own on a node that uses a claim.
func (s *scene) pod(app, node, claim string) {
	s.Helper()
	template := s.template(app)
	template.Spec.NodeName = node
	template.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
	}}}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: app, Labels: template.Labels}, Spec: template.Spec}
	_, err := s.admin.CoreV1().Pods(s.ns).Create(s.Context(), p, metav1.CreateOptions{})
	s.check(err)
}
