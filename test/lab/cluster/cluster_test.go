// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
)

// shared is the cluster of all tests that leave of it what there was, once a test has wanted it.
var shared *Cluster

func TestMain(m *testing.M) {
	code := m.Run()
	if shared != nil {
		_ = shared.Stop()
	}
	os.Exit(code)
}

// full returns a context for one test and the shared cluster, which has every part.
func full(t *testing.T) (context.Context, *Cluster) {
	t.Helper()
	Need(t)
	if shared == nil {
		begin := time.Now()
		c, err := Start(t.Context(), Options{Controllers: true, Scheduler: true, Kwok: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("up in %v", time.Since(begin).Round(10*time.Millisecond))
		shared = c
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	t.Cleanup(cancel)
	return ctx, shared
}

// forget removes nodes after the test, from what the next ones find.
func forget(t *testing.T, c *Cluster, nodes ...string) {
	t.Helper()
	t.Cleanup(func() {
		for _, name := range nodes {
			err := c.Client.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				t.Error(err)
			}
		}
	})
}

// until waits for a condition, and says what did not come.
func until(ctx context.Context, t *testing.T, what string, condition func() (bool, error)) {
	t.Helper()
	for {
		done, err := condition()
		if done && err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("waiting until %s: %v; at the end: %v", what, context.Cause(ctx), err)
		case <-time.After(poll):
		}
	}
}

// deploy makes a Deployment whose pods bear the label app, for nodes that do so too.
func deploy(ctx context.Context, t *testing.T, c *Cluster, app string, replicas int32) {
	t.Helper()
	labels := map[string]string{"app": app}
	_, err := c.Client.AppsV1().Deployments("default").Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: app},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					NodeSelector: labels,
					Containers:   []corev1.Container{{Name: "c", Image: "registry.example/app"}},
				},
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// running waits until an app has as many pods ready, and returns them.
func running(ctx context.Context, t *testing.T, c *Cluster, app string, want int32) []corev1.Pod {
	t.Helper()
	until(ctx, t, fmt.Sprintf("%d pods of %s are ready", want, app), func() (bool, error) {
		d, err := c.Client.AppsV1().Deployments("default").Get(ctx, app, metav1.GetOptions{})
		return err == nil && d.Status.ReadyReplicas == want, err
	})
	pods, err := c.Client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=" + app})
	if err != nil {
		t.Fatal(err)
	}
	return pods.Items
}

func TestPodsRunWhereTheSchedulerPutsThemAndABudgetHoldsAgainstEviction(t *testing.T) {
	ctx, c := full(t)
	if err := c.AddNodes(ctx, KwokNodes("web", 2, map[string]string{"app": "web"})...); err != nil {
		t.Fatal(err)
	}
	forget(t, c, "web-0", "web-1")
	deploy(ctx, t, c, "web", 2)
	two := intstr.FromInt32(2)
	budgets := c.Client.PolicyV1().PodDisruptionBudgets("default")
	_, err := budgets.Create(ctx, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: &two, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pods := running(ctx, t, c, "web", 2)
	until(ctx, t, "the budget counts both pods", func() (bool, error) {
		b, err := budgets.Get(ctx, "web", metav1.GetOptions{})
		return err == nil && b.Status.CurrentHealthy == 2 && b.Status.ObservedGeneration == b.Generation, err
	})

	eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pods[0].Name, Namespace: "default"}}
	err = c.Client.PolicyV1().Evictions("default").Evict(ctx, eviction)
	if !apierrors.IsTooManyRequests(err) {
		t.Fatalf("evicting a pod that the budget does not spare: %v, want it refused for now", err)
	}
	out, err := c.Kubectl(ctx, "scale", "deployment/web", "--replicas=3")
	if err != nil || !strings.Contains(out, "scaled") {
		t.Fatalf("kubectl scale: %q, %v", out, err)
	}
	until(ctx, t, "the budget lets a pod go", func() (bool, error) {
		err := c.Client.PolicyV1().Evictions("default").Evict(ctx, eviction)
		return err == nil, err
	})
	if _, err := c.Kubectl(ctx, "get", "pod", "no-such-pod"); err == nil || !strings.Contains(err.Error(), "NotFound") {
		t.Errorf("kubectl on what is not there: %v, want its words", err)
	}
}

func TestOurKindsAreServed(t *testing.T) {
	ctx, c := full(t)
	pools, err := c.MachineConfigs.MachineconfigurationV1().MachineConfigPools().List(ctx, metav1.ListOptions{})
	if err != nil || len(pools.Items) != 0 {
		t.Fatalf("listing pools: %v, %v", pools, err)
	}
	nodes, err := c.MachineConfigs.MachineconfigurationV1().MachineConfigNodes().List(ctx, metav1.ListOptions{})
	if err != nil || len(nodes.Items) != 0 {
		t.Fatalf("listing machine config nodes: %v, %v", nodes, err)
	}
}

func TestATokenOfANodeSaysSo(t *testing.T) {
	ctx, c := full(t)
	if err := c.AddNode(ctx, "a", nil); err != nil {
		t.Fatal(err)
	}
	forget(t, c, "a")
	for _, test := range []struct{ node, want string }{{"a", "a"}, {"", ""}} {
		config, _, err := c.ServiceAccountConfig(ctx, "noderefit", "machine-config-daemon", test.node)
		if err != nil {
			t.Fatal(err)
		}
		review, err := kubernetes.NewForConfigOrDie(config).AuthenticationV1().SelfSubjectReviews().Create(ctx,
			&authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		user := review.Status.UserInfo
		if user.Username != "system:serviceaccount:noderefit:machine-config-daemon" {
			t.Errorf("the token is that of %q", user.Username)
		}
		claim := strings.Join(user.Extra["authentication.kubernetes.io/node-name"], " ")
		if claim != test.want {
			t.Errorf("node %q: the token claims node %q in %v", test.node, claim, user.Extra)
		}
	}
}

func TestTheAPIServerComesBackWithWhatItHad(t *testing.T) {
	Need(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := New(t, Options{Audit: true, NoCRDs: true})
	nodes := c.Client.CoreV1().Nodes()
	if _, err := nodes.Create(ctx, KwokNode("a", nil), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.StopAPI()
	if _, err := nodes.Get(ctx, "a", metav1.GetOptions{}); err == nil {
		t.Fatal("an API server that is stopped answers")
	}
	if err := c.StartAPI(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := nodes.Get(ctx, "a", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	requests, err := c.Requests()
	if err != nil {
		t.Fatal(err)
	}
	created := 0
	for _, r := range requests {
		if r.Verb == "create" && r.Object.Resource == "nodes" && r.User.Username == "admin" && r.Response.Code == 201 {
			created++
		}
	}
	if created != 1 {
		t.Errorf("the log of %d requests has %d that created a node, want 1", len(requests), created)
	}
}

func TestAControlPlaneThatCannotBePreparedIsStopped(t *testing.T) {
	Need(t)
	var unprepared *Cluster
	s := &Suite{Lent: 1, dir: t.TempDir(), free: make(chan *Cluster, 1)}
	s.Prepare = func(_ context.Context, c *Cluster) error {
		unprepared = c
		return os.ErrPermission
	}
	if c, err := s.lend(t.Context()); c != nil || !errors.Is(err, os.ErrPermission) {
		t.Errorf("a control plane: %t, %v", c != nil, err)
	}
	if version, err := unprepared.Client.Discovery().ServerVersion(); err == nil {
		t.Errorf("an API server of %s runs on", version)
		_ = unprepared.Stop()
	}
}

func TestASuiteThatLendsNoControlPlaneSaysSo(t *testing.T) {
	if _, err := (&Suite{free: make(chan *Cluster)}).lend(t.Context()); err == nil || !strings.Contains(err.Error(), "Lent") {
		t.Error(err)
	}
}

func TestClustersSideBySideDoNotCollide(t *testing.T) {
	Need(t)
	const several = 3
	type started struct {
		c   *Cluster
		err error
	}
	all := make(chan started)
	for range several {
		go func() {
			c, err := Start(t.Context(), Options{NoCRDs: true})
			all <- started{c, err}
		}()
	}
	for i := range several {
		s := <-all
		if s.err != nil {
			t.Error(s.err)
			continue
		}
		t.Cleanup(func() {
			if err := s.c.Stop(); err != nil {
				t.Error(err)
			}
		})
		nodes := s.c.Client.CoreV1().Nodes()
		name := fmt.Sprintf("only-%d", i)
		if _, err := nodes.Create(t.Context(), KwokNode(name, nil), metav1.CreateOptions{}); err != nil {
			t.Error(err)
		}
		if list, err := nodes.List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 1 {
			t.Errorf("the cluster of %s has nodes %v, %v", name, list, err)
		}
	}
}
