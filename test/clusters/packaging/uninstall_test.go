// SPDX-License-Identifier: Apache-2.0

package packaging

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/installation"
)

func (b *bench) uninstall(ctx context.Context, want installation.Removal, dryRun bool) (string, error) {
	b.t.Helper()
	c, said, release := b.plugin(b.Config, "v0.2.0", nil)
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute) // the cluster removes a namespace in its own time
	defer cancel()
	want.Change = installation.Change{Release: release, Values: set()}
	err := c.Uninstall(ctx, want, dryRun, nil)
	return said.String(), err
}

// hosts ends the pods of uninstallations as kubelets do whose hosts are clean, but on nodes that have a reason.
func (b *bench) hosts(ctx context.Context, reasons map[string]string) {
	pods := b.Client.CoreV1().Pods(api.Namespace)
	for ; ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
		list, err := pods.List(ctx, metav1.ListOptions{LabelSelector: "noderefit.dev/uninstall"})
		if err != nil {
			continue
		}
		for i := range list.Items {
			p := &list.Items[i]
			p.Status.Phase = corev1.PodSucceeded
			if reasons[p.Spec.NodeName] != "" {
				p.Status.Phase, p.Status.Message = corev1.PodFailed, reasons[p.Spec.NodeName]
			}
			_, _ = pods.UpdateStatus(ctx, p, metav1.UpdateOptions{}) // a conflict is for the next turn
		}
	}
}

// annotate makes a node one that Noderefit has been at work on.
func (b *bench) annotate(name, desired, current string) {
	b.t.Helper()
	patch := `{"metadata":{"annotations":{"` + api.DesiredConfig + `":"` + desired + `","` + api.CurrentConfig + `":"` + current +
		`","` + api.StateKey + `":"Done"}}}`
	if text, err := kubectl(b.t.Context(), b.Cluster, "patch", "node/"+name, "--type=merge", "--patch", patch); err != nil {
		b.t.Fatalf("%v\n%s", err, text)
	}
}

// uninstalls has an installation removed: refused, stopped at each write, with a dead node, and to the last object.
func (b *bench) uninstalls(t *testing.T, empty map[string]string) {
	t.Helper()
	ctx := t.Context()
	before := b.state()
	b.annotate("worker-0", "rendered-worker-b", "rendered-worker-a")
	_, err := b.uninstall(ctx, installation.Removal{}, false)
	b.refuses(err, "nodes are in the middle of an update: worker-0 (on its way to rendered-worker-b); wait for them")
	said, err := b.uninstall(ctx, installation.Removal{Force: true}, true)
	for _, want := range []string{"the controllers, the agents and the server: Deployment " + api.Namespace + "/" + api.Controller +
		", DaemonSet", "on 1 hosts the agent", "the definitions stay"} {
		if err != nil || !strings.Contains(said, want) {
			t.Errorf("%v\n%s; want %q", err, said, want)
		}
	}
	if diff := cmp.Diff(before, b.state()); diff != "" {
		t.Errorf("what was refused, or only said, changed objects:\n%s", diff)
	}
	b.annotate("worker-0", "rendered-worker-a", "rendered-worker-a")
	nodes := b.Client.CoreV1().Nodes()
	worker, err := nodes.Get(ctx, "worker-0", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	worker.Spec.Unschedulable = true
	worker.Spec.Taints = append(worker.Spec.Taints, corev1.Taint{Key: api.StartupTaint, Effect: corev1.TaintEffectNoSchedule},
		corev1.Taint{Key: "example.org/theirs", Effect: corev1.TaintEffectPreferNoSchedule})
	worker.Annotations[api.CordonKey] = `{"by":"noderefit","config":"rendered-worker-a","reason":"update","since":"2026-01-01T00:00:00Z"}`
	worker.Annotations["example.org/theirs"] = "stays"
	if _, err := nodes.Update(ctx, worker, metav1.UpdateOptions{FieldManager: api.Daemon}); err != nil {
		t.Fatal(err)
	}
	dead := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "dead-0", Annotations: map[string]string{api.StateKey: "Done"},
		Labels: map[string]string{"kubernetes.io/os": "windows"}}} // no pod of ours is bound to it, as one is to the node off
	if _, err := nodes.Create(ctx, dead, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	kept, stop := context.WithCancel(ctx)
	defer stop()
	go b.hosts(kept, nil)
	left := ""
	b.killedOften("v0.2.0", func(ctx context.Context, c *installation.Cluster, r *installation.Release) error {
		err := c.Uninstall(ctx, installation.Removal{Change: installation.Change{Release: r, Values: set()}}, false, nil)
		if err != nil && strings.Contains(err.Error(), "these hosts were left as they are") {
			left, err = err.Error(), nil
		}
		return err
	})
	for _, want := range []string{"node dead-0: it is not ready; node off: it is not ready, and pod machine-config-daemon-",
		"; mend what is named, and run kubectl refit uninstall again"} {
		if !strings.Contains(left, want) {
			t.Errorf("left: %s; want %q", left, want)
		}
	}
	for _, name := range []string{"dead-0", "off"} {
		if err := nodes.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if said, err := b.uninstall(ctx, installation.Removal{}, false); err != nil || !strings.HasSuffix(said, "Noderefit is removed\n") {
		t.Fatalf("%v\n%s", err, said)
	}
	b.onlyHas(t, empty, "CustomResourceDefinition", "MachineConfigPool", "ControllerConfig", "MachineConfig")
	if worker, err = nodes.Get(ctx, "worker-0", metav1.GetOptions{}); err != nil || worker.Spec.Unschedulable ||
		len(worker.Spec.Taints) != 1 || worker.Annotations["example.org/theirs"] != "stays" {
		t.Errorf("%v: %+v %v", err, worker.Spec, worker.Annotations)
	}
	if ours := slices.DeleteFunc(slices.Collect(maps.Keys(worker.Annotations)), func(k string) bool { return !api.Owned(k) }); len(ours) > 0 {
		t.Errorf("the Node still has %v", ours)
	}
	if said, err := b.uninstall(ctx, installation.Removal{DeleteConfiguration: true}, false); err != nil {
		t.Fatalf("with the configuration: %v\n%s", err, said)
	}
	b.onlyHas(t, empty)
	_, err = b.Client.CoreV1().Namespaces().Get(ctx, api.Namespace, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("the namespace: %v", err)
	}
}

// onlyHas wants no object more than those of a state, but those of the kinds.
func (b *bench) onlyHas(t *testing.T, state map[string]string, kinds ...string) {
	t.Helper()
	for _, o := range b.listed() {
		kind := o.GetKind()
		if _, was := state[name(&o)]; was || kind == "Pod" || kind == "Node" || slices.Contains(kinds, kind) {
			continue
		}
		t.Errorf("left: %s %s", name(&o), owner(&o))
	}
}

func owner(o *unstructured.Unstructured) string {
	for _, m := range o.GetManagedFields() {
		return "of " + m.Manager
	}
	return ""
}
