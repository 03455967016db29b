// SPDX-License-Identifier: Apache-2.0

package packaging

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"golang.org/x/sync/errgroup"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/test/lab/cluster"
)

const (
	renderedName  = "rendered-worker-0123456789abcdef0123456789abcdef"
	renderedOther = "rendered-worker-00000000000000000000000000000000"
)

const nodeValuesPath = "/apis/noderefit.dev/v1alpha1/nodevalues"

// roleLabel puts a MachineConfig into the pool worker.
var roleLabel = map[string]string{api.Role: api.PoolWorker}

func TestADaemonMayDoItsWork(t *testing.T) {
	c := installed(t)
	makeNamespace(t, admin(t, c), "work")
	makePod(t, admin(t, c), "work", "here", ours)
	eventuallyKnown(t, as(t, c, api.Daemon, theirs), "work", "here")
	allow(t, as(t, c, api.Daemon, ours), map[string]attempt{
		"say where its node is": patchNode(ours, `{"metadata":{"annotations":{%q:"x",%q:"Working",%q:null}}}`,
			api.CurrentConfig, api.StateKey, api.Reason),
		"cordon its node": patchNode(ours, `{"spec":{"unschedulable":true},"metadata":{"annotations":{%q:"{}"}}}`,
			api.CordonKey),
		"uncordon its node": patchNode(ours, `{"spec":{"unschedulable":null},"metadata":{"annotations":{%q:null}}}`,
			api.CordonKey),
		"keep its MachineConfigNode": func(ctx context.Context, who clients) error {
			for _, step := range []attempt{
				applyMCN(ours, ours), applyMCN(ours, ours), applyMCNStatus(ours),
				patchMCN(ours, `{"metadata":{"annotations":{%q:"{}"}}}`, api.DrainKey),
			} {
				if err := step(ctx, who); err != nil {
					return err
				}
			}
			return nil
		},
		"give a rendered configuration back": createMC(renderedName, nil, ours),
		"evict a pod of its node":            evict(c, "work", "here"),
		"take its node out of the load balancers, and give it back": func(ctx context.Context, who clients) error {
			const label = `{"metadata":{"labels":{%q:%s},"annotations":{%q:%s}}}`
			return errors.Join(patchNode(ours, label, api.ExcludeLabel, `""`, api.ExcludedKey, `"{}"`)(ctx, who),
				patchNode(ours, label, api.ExcludeLabel, "null", api.ExcludedKey, "null")(ctx, who))
		},
		"read a PinnedImageSet by its name": func(ctx context.Context, who clients) error {
			_, err := who.mc.MachineconfigurationV1().PinnedImageSets().Get(ctx, "none", metav1.GetOptions{})
			return ignoreNotFound(err)
		},
		"write an event about its node": createEvent("Node", ours),
	})
}

// A lift comes from people by way of the controller. The daemon takes it away once it is used up, together with what it
// has to say then, and can neither ask for one nor turn it to something else.
func TestADaemonTakesAUsedLiftAwayAndMakesNone(t *testing.T) {
	c := installed(t)
	lift := func(node, config string) attempt {
		return patchNode(node, `{"metadata":{"annotations":{%q:%q}}}`, api.Lift, config)
	}
	if err := lift(theirs, renderedName)(t.Context(), as(t, c, api.Controller, "")); err != nil {
		t.Fatal(err)
	}
	daemon := as(t, c, api.Daemon, theirs)
	refuse(t, daemon, "does not change these annotations", map[string]attempt{
		"lift something else": lift(theirs, renderedOther),
	})
	allow(t, daemon, map[string]attempt{
		"report, and take the lift away": patchNode(theirs, `{"metadata":{"annotations":{%q:"Done",%q:"",%q:null,%q:null}}}`,
			api.StateKey, api.Reason, api.QuarantinedKey, api.Lift),
	})
	refuse(t, daemon, "does not change these annotations", map[string]attempt{
		"lift it again": lift(theirs, renderedName),
	})
}

// What a node is to do comes from the pool controller; what became of it, from the node.
func TestADaemonSaysWhatItHasStagedAndGivesItselfNoOrders(t *testing.T) {
	c := installed(t)
	note := func(key, value string) attempt {
		return patchNode(ours, `{"metadata":{"annotations":{%q:%q}}}`, key, value)
	}
	daemon := as(t, c, api.Daemon, ours)
	allow(t, daemon, map[string]attempt{"what it has staged": note(api.StagedKey, `{"config":"x"}`)})
	refuse(t, daemon, "does not change these annotations", map[string]attempt{
		"an order":   note(api.OrdersKey, `{"stage":{"config":"x"}}`),
		"an arrival": note(api.ArrivedKey, `{"config":"x"}`),
	})
	controller := as(t, c, api.Controller, "")
	allow(t, controller, map[string]attempt{"an order": note(api.OrdersKey, `{"stage":{"config":"x"}}`)})
	refuse(t, controller, "does not change these annotations", map[string]attempt{
		"what it has staged": note(api.StagedKey, `{"config":"y"}`),
	})
	refuse(t, daemon, "does not change these annotations", map[string]attempt{
		"another order": note(api.OrdersKey, `{"stage":{"config":"y"}}`),
	})
}

// A node that joins is kept free of pods by a taint until its agent says that it is configured.
func TestADaemonTakesItsStartupTaintAwayAndNoOther(t *testing.T) {
	c := installed(t)
	taints := func(node, list string) attempt { return patchNode(node, `{"spec":{"taints":[%s]}}`, list) }
	startup := `{"key":"` + api.StartupTaint + `","effect":"NoSchedule"}`
	const other = `{"key":"example.com/gpu","effect":"NoSchedule"}`
	root := admin(t, c)
	for _, node := range []string{ours, theirs} {
		if err := taints(node, startup+","+other)(t.Context(), root); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for _, node := range []string{ours, theirs} {
			if err := patchNode(node, `{"spec":{"taints":null}}`)(context.WithoutCancel(t.Context()), root); err != nil {
				t.Error(err)
			}
		}
	})
	daemon := as(t, c, api.Daemon, ours)
	refuse(t, daemon, "takes its startup taint away, only", map[string]attempt{
		"take another taint away":       taints(ours, startup),
		"take all taints away":          patchNode(ours, `{"spec":{"taints":null}}`),
		"exchange it for another":       taints(ours, other+`,{"key":"x","effect":"NoExecute"}`),
		"make it another by its effect": taints(ours, `{"key":"`+api.StartupTaint+`","effect":"NoExecute"},`+other),
	})
	refuse(t, daemon, "its own Node only", map[string]attempt{"take another node's away": taints(theirs, other)})
	// The node's own controller puts taints there meanwhile, which are to stay.
	allow(t, daemon, map[string]attempt{"take its own away": taintNode(ours, api.StartupTaint, false)})
	refuse(t, daemon, "takes its startup taint away, only", map[string]attempt{"put it back": taints(ours, other+","+startup)})
}

func TestADaemonIsRefusedWhatIsNotItsNodes(t *testing.T) {
	c := installed(t)
	root := admin(t, c)
	makeNamespace(t, root, "boundary")
	makePod(t, root, "boundary", "there", theirs)
	makePod(t, root, "boundary", "here", ours)
	makePod(t, root, "boundary", "nowhere", "")
	for _, try := range []attempt{applyMCN(theirs, theirs), createMC(renderedOther, nil, "")} {
		if err := try(t.Context(), root); err != nil {
			t.Fatal(err)
		}
	}
	daemon := as(t, c, api.Daemon, ours)
	eventuallyKnown(t, daemon, "boundary", "there")

	annotate := func(key string) attempt { return patchNode(ours, `{"metadata":{"annotations":{%q:"x"}}}`, key) }
	refuse(t, daemon, "its own Node only, and this token is bound to ours", map[string]attempt{
		"cordon another node":   patchNode(theirs, `{"spec":{"unschedulable":true}}`),
		"annotate another node": patchNode(theirs, `{"metadata":{"annotations":{%q:"x"}}}`, api.StateKey),
	})
	refuse(t, daemon, "no labels, finalizers or owners", map[string]attempt{
		"give its node a role":      patchNode(ours, `{"metadata":{"labels":{"node-role.kubernetes.io/master":""}}}`),
		"give its node a finalizer": patchNode(ours, `{"metadata":{"finalizers":["example.com/x"]}}`),
	})
	refuse(t, daemon, "takes its startup taint away, only", map[string]attempt{
		"taint its node":          patchNode(ours, `{"spec":{"taints":[{"key":"x","effect":"NoExecute"}]}}`),
		"say who made its node":   patchNode(ours, `{"spec":{"providerID":"x"}}`),
		"give its node a network": patchNode(ours, `{"spec":{"podCIDR":"10.9.0.0/24","podCIDRs":["10.9.0.0/24"]}}`),
	})
	refuse(t, daemon, "does not change these annotations", map[string]attempt{
		"annotate its node with something else": annotate("example.com/x"),
		"say how it is to be drained":           annotate(api.OrdersKey),
		"choose its own configuration":          annotate(api.DesiredConfig),
		"lift a quarantine":                     annotate(api.Lift),
		"say that there is no other node":       annotate(api.ControlPlaneTopology),
		"choose its own values":                 annotate(api.ValuesKey),
		"choose its NodeValues":                 annotate(api.EntriesKey),
		"choose its pinned images":              annotate(api.PinOrderKey),
		"give itself a value":                   annotate(api.ValuePrefix + "address"),
	})
	refuse(t, daemon, "MachineConfigNode of its own node only, and this token is bound to ours", map[string]attempt{
		"update another's MachineConfigNode": patchMCN(theirs, `{"metadata":{"annotations":{"x":"x"}}}`),
		"speak for another node":             applyMCNStatus(theirs),
		"make a MachineConfigNode":           applyMCN("third", "third"),
	})
	refuse(t, daemon, "rendered MachineConfigs only", map[string]attempt{
		"configure the pool":      createMC("99-worker", roleLabel, ours),
		"make any MachineConfig":  createMC("99-mine", nil, ours),
		"call something rendered": createMC("rendered-99", nil, ours),
	})
	refuse(t, daemon, "select by its labels", map[string]attempt{
		"make a rendered configuration that a pool selects": createMC(
			"rendered-worker-11111111111111111111111111111111", roleLabel, ours),
	})
	lasting := func(meta metav1.ObjectMeta) attempt {
		meta.Name = "rendered-worker-66666666666666666666666666666666"
		return createMCWith(meta, ours)
	}
	refuse(t, daemon, "no MachineConfig with finalizers or owners", map[string]attempt{
		"make what can not be deleted": lasting(metav1.ObjectMeta{Finalizers: []string{"example.com/x"}}),
		"make what another owns": lasting(metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "v1", Kind: "Node", Name: theirs, UID: "11111111-1111-1111-1111-111111111111"},
		}}),
	})
	if err := applyMCN(ours, ours)(t.Context(), daemon); err != nil {
		t.Fatal(err)
	}
	refuse(t, daemon, "no finalizers of its MachineConfigNode", map[string]attempt{
		"keep its MachineConfigNode for ever": patchMCN(ours, `{"metadata":{"finalizers":["example.com/x"]}}`),
	})
	refuse(t, daemon, api.RestoredFrom, map[string]attempt{
		"not say who gave it back": createMC("rendered-worker-22222222222222222222222222222222", nil, ""),
		"say that another did":     createMC("rendered-worker-22222222222222222222222222222222", nil, theirs),
	})
	refuse(t, daemon, "pods of its own node only, and this pod is on theirs", map[string]attempt{
		"evict a pod of another node": evict(c, "boundary", "there"),
	})
	refuse(t, daemon, "pods of its own node only, and this pod is on none", map[string]attempt{
		"evict a pod of no node": evict(c, "boundary", "nowhere"),
	})
	refuse(t, daemon, "by its uid which pod it evicts", map[string]attempt{
		"evict whatever has a name":    evictExactly("boundary", "here", ""),
		"evict what had a name before": evictExactly("boundary", "here", "11111111-1111-1111-1111-111111111111"),
	})
	refuse(t, daemon, "events about its own node only", map[string]attempt{
		"write an event about another node": createEvent("Node", theirs),
		"write an event about a pool":       createEvent("MachineConfigPool", ours),
	})
	for name, node := range map[string]string{"about-ours": ours, "about-theirs": theirs} {
		makeEvent(t, root, name, node)
	}
	allow(t, daemon, map[string]attempt{
		"count an event about its node": patchEvent("about-ours", `{"count":2}`),
	})
	refuse(t, daemon, "changes events about its own node only", map[string]attempt{
		"take another node's event": patchEvent("about-theirs", `{"involvedObject":{"name":%q},"message":"x"}`, ours),
	})
	refuse(t, daemon, "writes events about its own node only", map[string]attempt{
		"rewrite another node's event":   patchEvent("about-theirs", `{"message":"x"}`),
		"give another node its event":    patchEvent("about-ours", `{"involvedObject":{"name":%q}}`, theirs),
		"make its event one of a pool's": patchEvent("about-ours", `{"involvedObject":{"kind":"MachineConfigPool"}}`),
	})
	refuse(t, daemon, "", map[string]attempt{
		"say how its node is":          patchNodeStatus(ours),
		"delete its MachineConfigNode": deleteMCN(ours),
		"change a rendered one":        patchMC(renderedOther),
		"delete a rendered one":        deleteMC(renderedOther),
		"pause a pool":                 patchPool("worker", `{"spec":{"paused":true}}`),
		"release a pool whose policy is away": patchPool("worker", `{"metadata":{"annotations":{%q:null}}}`,
			api.RolloutPolicyKey),
		"lift the quarantine of a pool": patchPool("worker", `{"metadata":{"annotations":{%q:"[]"}}}`, api.LiftedKey),
		"delete its node": func(ctx context.Context, who clients) error {
			return who.kube.CoreV1().Nodes().Delete(ctx, ours, metav1.DeleteOptions{})
		},
		"delete a pod of its node": func(ctx context.Context, who clients) error {
			return who.kube.CoreV1().Pods("boundary").Delete(ctx, "here", metav1.DeleteOptions{})
		},
		"run a pod": func(ctx context.Context, who clients) error {
			return createPod(ctx, who, "boundary", "mine", ours)
		},
		"read the NodeValues of its node": func(ctx context.Context, who clients) error {
			return who.kube.CoreV1().RESTClient().Get().AbsPath(nodeValuesPath, ours).Do(ctx).Error()
		},
		"read all PinnedImageSets": func(ctx context.Context, who clients) error {
			_, err := who.mc.MachineconfigurationV1().PinnedImageSets().List(ctx, metav1.ListOptions{})
			return err
		},
		"read all NodeValues": func(ctx context.Context, who clients) error {
			return who.kube.CoreV1().RESTClient().Get().AbsPath(nodeValuesPath).Do(ctx).Error()
		},
		"read secrets": func(ctx context.Context, who clients) error {
			_, err := who.kube.CoreV1().Secrets("").List(ctx, metav1.ListOptions{})
			return err
		},
		"make itself a token": func(ctx context.Context, who clients) error {
			_, err := who.kube.CoreV1().ServiceAccounts(api.Namespace).CreateToken(ctx, api.Controller,
				&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
			return err
		},
	})
}

// Drains are forced only where somebody has bound the role for it, and on the token's node alone.
func TestADaemonThatMayForceDrainsDeletesPodsOfItsNodeAlone(t *testing.T) {
	c := installed(t)
	root := admin(t, c)
	makeNamespace(t, root, "force")
	for name, node := range map[string]string{"here": ours, "there": theirs, "nowhere": ""} {
		makePod(t, root, "force", name, node)
	}
	bindings := c.Client.RbacV1().ClusterRoleBindings()
	_, err := bindings.Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "force-drain"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "machine-config-daemon-force-drain"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: api.Namespace, Name: api.Daemon}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	daemon := as(t, c, api.Daemon, ours)
	// The API server takes notice of a binding, or that it is gone, a moment later.
	until := func(ctx context.Context, may bool) {
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
			err := deletePod("force", "missing")(ctx, daemon)
			if apierrors.IsNotFound(err) == may {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("may it delete pods: want %t, got %v", may, err)
			}
		}
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if err := bindings.Delete(ctx, "force-drain", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		until(ctx, false)
	})
	until(t.Context(), true)
	refuse(t, daemon, "deletes pods of its own node only, and this token is bound to ours", map[string]attempt{
		"delete another node's pod": deletePod("force", "there"),
		"delete a pod of no node":   deletePod("force", "nowhere"),
	})
	refuse(t, as(t, c, api.Daemon, ""), "this token is bound to none", map[string]attempt{
		"delete a pod": deletePod("force", "here"),
	})
	allow(t, daemon, map[string]attempt{"delete a pod of its node": deletePod("force", "here")})
}

func TestADaemonWithoutANodeIsRefused(t *testing.T) {
	c := installed(t)
	root := admin(t, c)
	makeNamespace(t, root, "unbound")
	makePod(t, root, "unbound", "here", ours)
	eventuallyKnown(t, as(t, c, api.Daemon, theirs), "unbound", "here")
	unbound := as(t, c, api.Daemon, "")
	for says, attempts := range map[string]map[string]attempt{
		"this token is bound to none": {
			"annotate a node":          patchNode(ours, `{"metadata":{"annotations":{%q:"x"}}}`, api.StateKey),
			"make a MachineConfigNode": applyMCN(ours, ours),
		},
		"this token is bound to no node": {
			"give a configuration back": createMC("rendered-worker-33333333333333333333333333333333", nil, ""),
			"evict a pod":               evict(c, "unbound", "here"),
			"evict a pod not there":     evictExactly("unbound", "missing", ""),
		},
		"events about its own node only": {"write an event": createEvent("Node", "")},
	} {
		refuse(t, unbound, says, attempts)
	}
}

// The administrator who acts as the daemon has no node either.
func TestWhoActsAsTheDaemonWithoutANodeIsRefused(t *testing.T) {
	c := installed(t)
	config := rest.CopyConfig(c.Config)
	config.Impersonate.UserName = "system:serviceaccount:" + api.Namespace + ":" + api.Daemon
	refuse(t, clientsOf(t, config), "bound to none", map[string]attempt{
		"annotate a node": patchNode(ours, `{"metadata":{"annotations":{%q:"x"}}}`, api.StateKey),
	})
}

// The token of a DaemonSet's pod is bound to the pod, and says its node all the same.
func TestTheTokenOfAPodIsOfItsNode(t *testing.T) {
	c := installed(t)
	root := admin(t, c)
	pod, err := root.kube.CoreV1().Pods(api.Namespace).Create(t.Context(), podOf(api.Daemon, ours), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	token, err := root.kube.CoreV1().ServiceAccounts(api.Namespace).CreateToken(t.Context(), api.Daemon,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			BoundObjectRef: &authenticationv1.BoundObjectReference{
				APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID,
			},
		}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config := rest.AnonymousClientConfig(c.Config)
	config.BearerToken = token.Status.Token
	daemon := clientsOf(t, config)
	allow(t, daemon, map[string]attempt{
		"annotate its node": patchNode(ours, `{"metadata":{"annotations":{%q:"x"}}}`, api.StateKey),
	})
	refuse(t, daemon, "bound to ours", map[string]attempt{
		"annotate another": patchNode(theirs, `{"metadata":{"annotations":{%q:"x"}}}`, api.StateKey),
	})
}

// Each eviction by a daemon is judged against all the pods of the namespace, so a big one is worth a look.
func TestAnEvictionAmongAThousandPodsIsJudgedInTime(t *testing.T) {
	c := installed(t)
	root := admin(t, c)
	makeNamespace(t, root, "crowd")
	var group errgroup.Group
	group.SetLimit(16)
	for i := range 1000 {
		group.Go(func() error { return createPod(t.Context(), root, "crowd", fmt.Sprintf("pod-%d", i), theirs) })
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	makePod(t, root, "crowd", "here", ours)
	daemon := as(t, c, api.Daemon, ours)
	eventuallyKnown(t, as(t, c, api.Daemon, theirs), "crowd", "here")
	refuse(t, daemon, "this pod is on theirs", map[string]attempt{"another node's": evict(c, "crowd", "pod-999")})
	started := time.Now()
	if err := evict(c, "crowd", "here")(t.Context(), daemon); err != nil {
		t.Fatal(err)
	}
	took := time.Since(started)
	t.Logf("evicting one of 1,001 pods took %v", took)
	if took > 10*time.Second { // the API server gives its admission no more by default
		t.Errorf("evicting one of 1,001 pods took %v", took)
	}
}

func TestTheControllerMayDoItsWork(t *testing.T) {
	c := installed(t)
	const name = "rendered-worker-44444444444444444444444444444444"
	allow(t, as(t, c, api.Controller, ""), map[string]attempt{
		"choose a node's configuration": patchNode(theirs, `{"metadata":{"annotations":{%q:"x",%q:"y",%q:"z"}}}`,
			api.DesiredConfig, api.Lift, api.ControlPlaneTopology),
		"taint and untaint a node": func(ctx context.Context, who clients) error {
			if err := taintNode(theirs, api.UpdateInProgressTaint, true)(ctx, who); err != nil {
				return err
			}
			return taintNode(theirs, api.UpdateInProgressTaint, false)(ctx, who)
		},
		"make and delete what it renders": func(ctx context.Context, who clients) error {
			if err := createMC(name, nil, "")(ctx, who); err != nil {
				return err
			}
			return deleteMC(name)(ctx, who)
		},
		"make, change and delete what it makes of KubeletConfigs": made(ofObject("KubeletConfig",
			"99-worker-generated-kubelet-1"), "99-worker-generated-kubelet-1"),
		"make, change and delete what it makes of ContainerRuntimeConfigs": made(ofObject("ContainerRuntimeConfig",
			"99-worker-generated-containerruntime"), "99-worker-generated-containerruntime"),
		"own again what it made of KubeletConfigs": made(createMCWith(metav1.ObjectMeta{
			Name: "99-worker-generated-kubelet-2", Annotations: map[string]string{api.GeneratedBy: "v1", api.AcceptedKey: "{}"},
		}, ""), "99-worker-generated-kubelet-2"),
		"make, change and delete what it makes of mirrors": made(createMCWith(
			generatedBy("99-worker-generated-registries"), ""), "99-worker-generated-registries"),
		"make, change and delete what it makes of OSStreams": made(createMCWith(
			generatedBy("99-worker-generated-osstream"), ""), "99-worker-generated-osstream"),
		"make, change and delete what it makes of templates": made(createMCWith(
			ofTemplates("00-worker", "00-worker"), ""), "00-worker"),
		"say what became of a ControllerConfig": func(ctx context.Context, who clients) error {
			_, err := who.mc.MachineconfigurationV1().ControllerConfigs().Patch(ctx, api.ControllerConfig,
				types.MergePatchType, []byte(`{"status":{"observedGeneration":1}}`), metav1.PatchOptions{}, "status")
			if apierrors.IsNotFound(err) { // there is none, and it was not refused
				return nil
			}
			return err
		},
		"say which disruption policies are in force": func(ctx context.Context, who clients) error {
			at := "/apis/operator.openshift.io/v1/machineconfigurations/cluster/status"
			err := who.kube.CoreV1().RESTClient().Patch(types.MergePatchType).AbsPath(at).
				Body([]byte(`{"status":{"observedGeneration":1}}`)).Do(ctx).Error()
			if apierrors.IsNotFound(err) { // there is none, and it was not refused
				return nil
			}
			return err
		},
		"remember what was told of a rollout": func(ctx context.Context, who clients) error {
			at := "/apis/noderefit.dev/v1alpha1/rolloutpolicies/none/status"
			err := who.kube.CoreV1().RESTClient().Patch(types.MergePatchType).AbsPath(at).
				Body([]byte(`{"status":{"notifications":{}}}`)).Do(ctx).Error()
			return ignoreNotFound(err)
		},
		"judge NodeValues, and note them on a Node": func(ctx context.Context, who clients) error {
			rest := who.kube.CoreV1().RESTClient()
			return errors.Join(rest.Get().AbsPath(nodeValuesPath).Do(ctx).Error(),
				ignoreNotFound(rest.Patch(types.MergePatchType).AbsPath(nodeValuesPath, "none", "status").
					Body([]byte(`{"status":{"observedGeneration":1}}`)).Do(ctx).Error()),
				patchNode(theirs, `{"metadata":{"annotations":{%q:"{}"}}}`, api.EntriesKey)(ctx, who),
				patchNode(theirs, `{"metadata":{"annotations":{%q:null}}}`, api.EntriesKey)(ctx, who))
		},
		"read PinnedImageSets, and tell a Node of them": func(ctx context.Context, who clients) error {
			_, err := who.mc.MachineconfigurationV1().PinnedImageSets().List(ctx, metav1.ListOptions{})
			return errors.Join(err, patchNode(theirs, `{"metadata":{"annotations":{%q:"{}"}}}`, api.PinOrderKey)(ctx, who),
				patchNode(theirs, `{"metadata":{"annotations":{%q:null}}}`, api.PinOrderKey)(ctx, who))
		},
		"ask what a node waits for": func(ctx context.Context, who clients) error {
			_, err := who.mc.MachineconfigurationV1().MachineConfigNodes().Get(ctx, "none", metav1.GetOptions{})
			return ignoreNotFound(err)
		},
		"look for the members of etcd": func(ctx context.Context, who clients) error {
			_, err := who.kube.CoreV1().Pods(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{LabelSelector: "component=etcd"})
			return errors.Join(err, who.kube.CoreV1().RESTClient().Get().AbsPath(progress.EtcdReadyPath).Do(ctx).Error())
		},
		"quarantine what failed": patchPool("worker", `{"metadata":{"annotations":{%q:"[]"}}}`, api.PoolQuarantineKey),
		"note a pool's policy":   patchPool("worker", `{"metadata":{"annotations":{%q:"{}"}}}`, api.RolloutPolicyKey),
		"look for definitions": func(ctx context.Context, who clients) error {
			var errs []error
			for _, name := range []string{
				"machineconfigs.machineconfiguration.openshift.io", "machineconfigpools.machineconfiguration.openshift.io",
				"kubeletconfigs.machineconfiguration.openshift.io", "pinnedimagesets.machineconfiguration.openshift.io",
				"rolloutpolicies.noderefit.dev",
			} {
				errs = append(errs, who.kube.CoreV1().RESTClient().Get().
					AbsPath("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", name).Do(ctx).Error())
			}
			return errors.Join(errs...)
		},
	})
}

// ignoreNotFound is for what is not there, and was not refused.
func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// made makes, changes and deletes a MachineConfig.
func made(create attempt, name string) attempt {
	return func(ctx context.Context, who clients) error {
		err := create(ctx, who)
		for _, then := range []attempt{patchMC(name), deleteMC(name)} {
			// What is owned by an object that is not there is collected at any moment, and was not refused.
			if more := then(ctx, who); !apierrors.IsNotFound(more) {
				err = errors.Join(err, more)
			}
		}
		return err
	}
}

// generatedBy is a MachineConfig that says that a controller made it.
func generatedBy(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Annotations: map[string]string{api.GeneratedBy: "v1"}}
}

// ofTemplates is a MachineConfig that says that it was made of templates under a name.
func ofTemplates(name, as string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Annotations: map[string]string{api.MadeAs: as + "/0123"}}
}

func TestTheControllerIsRefusedWhatIsNotItsOwn(t *testing.T) {
	c := installed(t)
	root := admin(t, c)
	makeNamespace(t, root, "kept")
	makePod(t, root, "kept", "pod", ours)
	for _, prepare := range []attempt{
		createMC("50-theirs", roleLabel, ""), createMCWith(ofTemplates("50-copied", "00-worker"), ""),
		createMC("99-worker-generated-kubelet", roleLabel, ""), createMC("99-worker-generated-registries", roleLabel, ""),
	} {
		if err := prepare(t.Context(), root); err != nil {
			t.Fatal(err)
		}
	}
	controller := as(t, c, api.Controller, "")
	refuse(t, controller, "no labels, finalizers or owners", map[string]attempt{
		"label a node": patchNode(theirs, `{"metadata":{"labels":{"node-role.kubernetes.io/master":""}}}`),
	})
	refuse(t, controller, "does not change these annotations", map[string]attempt{
		"say where a node is": patchNode(theirs, `{"metadata":{"annotations":{%q:"x"}}}`, api.CurrentConfig),
		"give a node a value": patchNode(theirs, `{"metadata":{"annotations":{%q:"x"}}}`, api.ValuePrefix+"address"),
	})
	refuse(t, controller, "UpdateInProgress:PreferNoSchedule only", map[string]attempt{
		"cordon a node": patchNode(theirs, `{"spec":{"unschedulable":true}}`),
		"taint it hard": patchNode(theirs, `{"spec":{"taints":[{"key":%q,"effect":"NoExecute"}]}}`,
			api.UpdateInProgressTaint),
		"taint it anyhow":  patchNode(theirs, `{"spec":{"taints":[{"key":"x","effect":"PreferNoSchedule"}]}}`),
		"say who made one": patchNode(theirs, `{"spec":{"providerID":"x"}}`),
	})
	refuse(t, controller, "rendered MachineConfigs only, and those that it made", map[string]attempt{
		"configure a pool":                                   createMC("99-controller", roleLabel, ""),
		"change somebody's config":                           patchMC("50-theirs"),
		"delete somebody's config":                           deleteMC("50-theirs"),
		"change somebody's config of a name of its own":      patchMC("99-worker-generated-kubelet"),
		"delete somebody's config of a name of its own":      deleteMC("99-worker-generated-kubelet"),
		"change somebody's registries":                       patchMC("99-worker-generated-registries"),
		"delete somebody's registries":                       deleteMC("99-worker-generated-registries"),
		"make a release without a mark":                      createMC("99-controller-generated-osstream", roleLabel, ""),
		"generate something else":                            createMCWith(generatedBy("99-worker-generated-ssh"), ""),
		"make one of no KubeletConfig":                       createMCWith(generatedBy("99-infra-generated-kubelet"), ""),
		"make one of a KubeletConfig by another name":        ofObject("KubeletConfig", "50-of-kubelet"),
		"make one of a KubeletConfig by another kind's name": ofObject("KubeletConfig", "99-infra-generated-containerruntime"),
		"make one too many":                                  ofObject("KubeletConfig", "99-infra-generated-kubelet-10"),
		"delete somebody's copy":                             deleteMC("50-copied"),
		"change somebody's copy":                             patchMC("50-copied"),
		"take somebody's config over": func(ctx context.Context, who clients) error {
			_, err := who.mc.MachineconfigurationV1().MachineConfigs().Patch(ctx, "50-theirs", types.MergePatchType,
				fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"50-theirs/0123"}}}`, api.MadeAs), metav1.PatchOptions{})
			return err
		},
	})
	refuse(t, controller, "", map[string]attempt{
		"say how a node is":          patchNodeStatus(theirs),
		"update a MachineConfigNode": applyMCNStatus(theirs),
		"evict a pod":                evict(c, "kept", "pod"),
		"run a pod": func(ctx context.Context, who clients) error {
			return createPod(ctx, who, "kept", "mine", "")
		},
		"make NodeValues": func(ctx context.Context, who clients) error {
			return who.kube.CoreV1().RESTClient().Post().AbsPath(nodeValuesPath).Body([]byte(`{"apiVersion":` +
				`"noderefit.dev/v1alpha1","kind":"NodeValues","metadata":{"name":"theirs"},"spec":{"values":{}}}`)).Do(ctx).Error()
		},
		"delete a MachineConfigPool": deletePool("worker"),
		"change the disruption policies": func(ctx context.Context, who clients) error {
			return who.kube.CoreV1().RESTClient().Patch(types.MergePatchType).
				AbsPath("/apis/operator.openshift.io/v1/machineconfigurations/cluster").
				Body([]byte(`{"spec":{"nodeDisruptionPolicy":{"files":[]}}}`)).Do(ctx).Error()
		},
		"change what templates are made of": func(ctx context.Context, who clients) error {
			_, err := who.mc.MachineconfigurationV1().ControllerConfigs().Patch(ctx, api.ControllerConfig,
				types.MergePatchType, []byte(`{"spec":{"osImageURL":"x"}}`), metav1.PatchOptions{})
			return err
		},
		"read the secrets of its own": readSecrets(api.Namespace),
		"read a secret by its name, which nobody allowed": func(ctx context.Context, who clients) error {
			_, err := who.kube.CoreV1().Secrets(api.Namespace).Get(ctx, "pager", metav1.GetOptions{})
			return err
		},
		"delete a node": func(ctx context.Context, who clients) error {
			return who.kube.CoreV1().Nodes().Delete(ctx, theirs, metav1.DeleteOptions{})
		},
	})
}

// A Node that was never sent anywhere has just joined, and gets the roles of its token's pool. Nothing else of its labels
// is the controller's, and no label of any other Node is.
func TestTheControllerGivesRolesOfWorkersToNodesThatHaveJustJoined(t *testing.T) {
	c := installed(t)
	const joined, placed = "has-joined", "has-its-place"
	for name, annotations := range map[string]map[string]string{
		joined: nil, placed: {api.DesiredConfig: renderedName, api.CurrentConfig: renderedName},
	} {
		if _, err := c.Client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name,
			Annotations: annotations, Labels: map[string]string{"example.com/rack": "r1", api.NodeRole + "worker": ""},
		}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	controller := as(t, c, api.Controller, "")
	const label = `{"metadata":{"labels":{%q:%s}}}`
	refuse(t, controller, "no labels, finalizers or owners", map[string]attempt{
		"a role for a node that has its place": patchNode(placed, label, api.NodeRole+"infra", `""`),
		"a role of the control plane":          patchNode(joined, label, api.NodeRole+"control-plane", `""`),
		"a role of masters":                    patchNode(joined, label, api.NodeRole+"master", `""`),
		"a role of arbiters":                   patchNode(joined, label, api.NodeRole+"arbiter", `""`),
		"a label of another domain":            patchNode(joined, label, "example.com/pool", `"infra"`),
		"a host name":                          patchNode(joined, label, "kubernetes.io/hostname", `"x"`),
		"another value of a label":             patchNode(joined, label, "example.com/rack", `"r2"`),
		"another value of a role":              patchNode(joined, label, api.NodeRole+"worker", `"x"`),
		"a label is taken away":                patchNode(joined, label, "example.com/rack", "null"),
		"a role is taken away":                 patchNode(joined, label, api.NodeRole+"worker", "null"),
		"a finalizer beside a role": patchNode(joined,
			`{"metadata":{"labels":{%q:""},"finalizers":["example.com/kept"]}}`, api.NodeRole+"infra"),
	})
	allow(t, controller, map[string]attempt{
		"list the requests for certificates": func(ctx context.Context, who clients) error {
			_, err := who.kube.CertificatesV1().CertificateSigningRequests().List(ctx, metav1.ListOptions{})
			return err
		},
		"a role for a node that has just joined": patchNode(joined, label, api.NodeRole+"infra", `""`),
	})
	refuse(t, controller, "", map[string]attempt{
		"approve a request": func(ctx context.Context, who clients) error {
			return who.kube.CertificatesV1().RESTClient().Put().Resource("certificatesigningrequests").Name("x").
				SubResource("approval").Body([]byte(`{"apiVersion":"certificates.k8s.io/v1",` +
				`"kind":"CertificateSigningRequest","metadata":{"name":"x"}}`)).Do(ctx).Error()
		},
	})
}

// What MachineConfigs are made of is people's: the controller notes what became of it.
func TestTheControllerNotesWhatBecameOfWhatMachineConfigsAreMadeOf(t *testing.T) {
	c := installed(t)
	const group = "/apis/machineconfiguration.openshift.io/v1/"
	const signed = `{"scopes":["a.example"],"policy":{"rootOfTrust":{"policyType":"PublicKey","publicKey":{"keyData":"` + cluster.PublicKey + `"}}}}`
	sources := map[string]string{ // paths of objects, each with a spec
		"/apis/config.openshift.io/v1/imagedigestmirrorsets":              "{}",
		"/apis/config.openshift.io/v1/imagetagmirrorsets":                 "{}",
		"/apis/config.openshift.io/v1/images":                             "{}",
		"/apis/config.openshift.io/v1/clusterimagepolicies":               signed,
		"/apis/config.openshift.io/v1/namespaces/default/imagepolicies":   signed,
		"/apis/operator.openshift.io/v1alpha1/imagecontentsourcepolicies": "{}",
		group + "containerruntimeconfigs":                                 `{"containerRuntimeConfig":{}}`,
		group + "kubeletconfigs":                                          "{}",
	}
	patch := func(path, patch string) attempt {
		return func(ctx context.Context, who clients) error {
			return who.kube.CoreV1().RESTClient().Patch(types.MergePatchType).AbsPath(path).Body([]byte(patch)).Do(ctx).Error()
		}
	}
	kinds := map[string]string{
		"imagedigestmirrorsets": "ImageDigestMirrorSet", "imagetagmirrorsets": "ImageTagMirrorSet",
		"imagecontentsourcepolicies": "ImageContentSourcePolicy", "containerruntimeconfigs": "ContainerRuntimeConfig",
		"kubeletconfigs": "KubeletConfig", "images": "Image", "clusterimagepolicies": "ClusterImagePolicy",
		"imagepolicies": "ImagePolicy",
	}
	controller := as(t, c, api.Controller, "")
	for at, spec := range sources {
		t.Run(path.Base(at), func(t *testing.T) {
			version, _, _ := strings.Cut(strings.TrimPrefix(path.Dir(at), "/apis/"), "/namespaces/")
			body := fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":"theirs"},"spec":%s}`, version,
				kinds[path.Base(at)], spec)
			err := admin(t, c).kube.CoreV1().RESTClient().Post().AbsPath(at).Body([]byte(body)).Do(t.Context()).Error()
			if err != nil {
				t.Fatal(err)
			}
			one := at + "/theirs"
			note := map[string]attempt{
				"say what is wrong": patch(one, fmt.Sprintf(`{"metadata":{"annotations":{%q:"x"}}}`, api.UnmadeKey)),
			}
			if path.Base(at) == "imagepolicies" { // only the status of a tenant's object is written
				refuse(t, controller, "cannot patch resource", note)
				return
			}
			allow(t, controller, note)
			refuse(t, controller, "does not change what people asked for", map[string]attempt{
				"ask for something else": patch(one, `{"spec":{"x":null,"imageDigestMirrors":[],"imageTagMirrors":[],`+
					`"repositoryDigestMirrors":[],"containerRuntimeConfig":{"logLevel":"debug"},"logLevel":9,`+
					`"scopes":["b.example"],"registrySources":{"insecureRegistries":["b.example"]}}}`),
				"ask for it elsewhere": patch(one, `{"metadata":{"labels":{"x":"y"}}}`),
			})
			refuse(t, controller, "does not change these annotations and finalizers", map[string]attempt{
				"note something else": patch(one, `{"metadata":{"annotations":{"example.com/x":"y"}}}`),
				"keep it for ever":    patch(one, `{"metadata":{"finalizers":["example.com/x"]}}`),
			})
			refuse(t, controller, "", map[string]attempt{"delete it": func(ctx context.Context, who clients) error {
				return who.kube.CoreV1().RESTClient().Delete().AbsPath(one).Do(ctx).Error()
			}})
		})
	}
	const condition = `{"status":{"conditions":[{"type":"Applied","status":"True","reason":"Rendered","message":"",` +
		`"lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`
	allow(t, controller, map[string]attempt{
		"say that a policy is applied": patch("/apis/config.openshift.io/v1/clusterimagepolicies/theirs/status", condition),
		"say it of a namespace's policy": patch("/apis/config.openshift.io/v1/namespaces/default/imagepolicies/theirs/status",
			condition),
	})
	for kind, what := range map[string]string{"containerruntimeconfigs": "containerruntime", "kubeletconfigs": "kubelet"} {
		one := group + kind + "/theirs"
		allow(t, controller, map[string]attempt{
			"say what is made of it": patch(one, fmt.Sprintf(
				`{"metadata":{"annotations":{%q:"1"},"finalizers":["99-worker-generated-%s-1"]}}`, api.NameSuffix, what)),
		})
		refuse(t, controller, "does not change these annotations and finalizers", map[string]attempt{
			"have it stand elsewhere": patch(one, fmt.Sprintf(`{"metadata":{"annotations":{%q:"2"}}}`, api.NameSuffix)),
		})
		allow(t, controller, map[string]attempt{
			"say how it is":             patch(one+"/status", `{"status":{"observedGeneration":1}}`),
			"say that nothing is of it": patch(one, `{"metadata":{"finalizers":null}}`),
		})
	}
}

// What the API server finds wrong with the expressions of a policy it says in the policy's status, and nowhere else.
func TestThePoliciesAreOfTheRightTypes(t *testing.T) {
	c := installed(t)
	installed := policies(t, c)
	if len(installed) == 0 {
		t.Fatal("no policy is installed")
	}
	for _, policy := range installed {
		for ; policy.Status.ObservedGeneration != policy.Generation; time.Sleep(50 * time.Millisecond) {
			seen, err := c.Client.AdmissionregistrationV1().ValidatingAdmissionPolicies().Get(t.Context(), policy.Name,
				metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			policy = *seen
		}
		if policy.Status.TypeChecking == nil {
			continue
		}
		for _, warning := range policy.Status.TypeChecking.ExpressionWarnings {
			t.Errorf("%s: %s: %s", policy.Name, warning.FieldRef, warning.Warning)
		}
	}
}

func policies(t *testing.T, c *cluster.Cluster) []admissionv1.ValidatingAdmissionPolicy {
	t.Helper()
	list, err := c.Client.AdmissionregistrationV1().ValidatingAdmissionPolicies().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// eventuallyKnown waits until who, whose node the pod is not on, is refused its eviction: the policies are in force,
// and what the API server judges by has the pod.
func eventuallyKnown(t *testing.T, who clients, namespace, name string) {
	t.Helper()
	request := eviction(namespace, name, "")
	request.DeleteOptions.DryRun = []string{metav1.DryRunAll}
	for started := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		err := who.kube.PolicyV1().Evictions(namespace).Evict(t.Context(), request)
		if apierrors.IsForbidden(err) {
			return
		}
		if time.Since(started) > 30*time.Second {
			t.Fatalf("the eviction of %s/%s by another node's daemon is not refused: %v", namespace, name, err)
		}
	}
}

// A controller tells by this list whether a silent node has answered: no account may write what is the other's word.
func TestThePoliciesTellTheAgentsAnnotationsFromTheControllers(t *testing.T) {
	key := regexp.MustCompile(`'((?:machineconfiguration\.openshift\.io|noderefit\.dev)/[A-Za-z-]*[A-Za-z])'`)
	of := []string{api.ControlPlaneTopology, api.DesiredConfig, api.ArrivedKey, api.AwaitedKey, api.Lift, api.EntriesKey, api.OrdersKey, api.PinOrderKey,
		api.RebootKey, api.TriedKey, api.ValuesKey}
	people := []string{api.HoldKey, api.TrialKey} // the controller's list has what it may write, the agent's what it may not
	for account, want := range map[string][]string{"daemon": slices.Sorted(slices.Values(slices.Concat(of, people))), "controller": of} {
		file := root + "/packaging/kustomize/base/objects/policy-" + account + ".yaml"
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(text), "- name: foreign\n")
		foreign, _, _ := strings.Cut(rest, "validations:")
		var named []string
		for _, match := range key.FindAllStringSubmatch(foreign, -1) {
			named = append(named, match[1])
		}
		slices.Sort(named)
		if !slices.Equal(named, want) {
			t.Errorf("%s names the annotations %v, want %v", file, named, want)
		}
	}
	for _, of := range slices.Concat(of, people, []string{api.AskPrefix + "gate", "example.com/answer"}) {
		if api.OfAgent(of) {
			t.Errorf("%s counts as the agent's word", of)
		}
	}
	for _, of := range []string{api.CurrentConfig, api.Reason, api.StagedKey, "noderefit.dev/of-a-later-release"} {
		if !api.OfAgent(of) {
			t.Errorf("%s does not count as the agent's word", of)
		}
	}
}

// heard are the warnings of an API server.
type heard struct{ text []string }

func (h *heard) HandleWarningHeader(_ int, _, text string) { h.text = append(h.text, text) }

// Who is warned of each pool stops to read warnings. The API server itself judges here, and keeps nothing.
func TestOnlyACustomPoolThatLosesTheWorkersConfigurationIsWarnedAbout(t *testing.T) {
	c := installed(t)
	said := &heard{}
	config := rest.CopyConfig(c.Config)
	config.WarningHandler = said
	pools := clientsOf(t, config).mc.MachineconfigurationV1().MachineConfigPools()
	role := func(operator metav1.LabelSelectorOperator, values ...string) metav1.LabelSelectorRequirement {
		return metav1.LabelSelectorRequirement{Key: api.Role, Operator: operator, Values: values}
	}
	labels := func(role string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{api.Role: role}}
	}
	expressions := func(all ...metav1.LabelSelectorRequirement) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchExpressions: all}
	}
	both := labels("worker")
	both.MatchExpressions = []metav1.LabelSelectorRequirement{role(metav1.LabelSelectorOpIn, "infra")}
	other := &metav1.LabelSelector{MatchLabels: map[string]string{"team": "infra"}}
	warned := func(pool string, selector *metav1.LabelSelector) bool {
		said.text = nil
		_, err := pools.Create(t.Context(), &mcfgv1.MachineConfigPool{
			ObjectMeta: metav1.ObjectMeta{Name: pool},
			Spec:       mcfgv1.MachineConfigPoolSpec{MachineConfigSelector: selector},
		}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
		return strings.Contains(strings.Join(said.text, " "), "selects no MachineConfig with the role worker")
	}
	for deadline := time.Now().Add(time.Minute); !warned("infra", nil); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the policy does not come into force")
		}
	}
	for name, test := range map[string]struct {
		pool     string
		selector *metav1.LabelSelector
		warned   bool
	}{
		"by label":                            {"infra", labels("worker"), false},
		"by expression":                       {"infra", expressions(role(metav1.LabelSelectorOpIn, "worker", "infra")), false},
		"all but some":                        {"infra", expressions(role(metav1.LabelSelectorOpNotIn, "gpu")), false},
		"any role":                            {"infra", expressions(role(metav1.LabelSelectorOpExists)), false},
		"everything":                          {"infra", &metav1.LabelSelector{}, false},
		"the pool worker itself":              {"worker", labels("gpu"), false},
		"another role by label":               {"infra", labels("infra"), true},
		"another role by expression":          {"infra", expressions(role(metav1.LabelSelectorOpIn, "infra")), true},
		"not the worker's":                    {"infra", expressions(role(metav1.LabelSelectorOpNotIn, "worker")), true},
		"no role":                             {"infra", expressions(role(metav1.LabelSelectorOpDoesNotExist)), true},
		"two roles, of which one is worker's": {"infra", both, true},
		"another label":                       {"infra", other, true},
		"nothing":                             {"infra", nil, true},
	} {
		if is := warned(test.pool, test.selector); is != test.warned {
			t.Errorf("%s: warned: %t, want %t: %q", name, is, test.warned, said.text)
		}
	}
}
