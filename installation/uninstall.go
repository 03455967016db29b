// SPDX-License-Identifier: Apache-2.0

package installation

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/noderefit/noderefit/api"
)

// toUninstall is what an uninstallation needs.
func toUninstall() []right {
	return append(rights("get", "list", "delete", "patch"),
		right{Resource: "nodes", Verb: "list"}, right{Resource: "nodes", Verb: "update"},
		right{Resource: "pods", Verb: "create", Namespace: api.Namespace},
		right{Resource: "pods", Verb: "deletecollection", Namespace: api.Namespace},
		right{Group: "machineconfiguration.openshift.io", Resource: "kubeletconfigs", Verb: "patch"},
		right{Group: "machineconfiguration.openshift.io", Resource: "containerruntimeconfigs", Verb: "patch"})
}

// removal is an uninstallation with what it needs.
type removal struct {
	Removal

	objects []*unstructured.Unstructured
	noted   *record
	nodes   []corev1.Node
}

// Uninstall removes an installation from the cluster and from the hosts. What a command that was killed has left is
// removed when the command is given again. confirm gets what goes, and returns an error where people say no; nil does
// not ask.
func (c *Cluster) Uninstall(ctx context.Context, want Removal, dryRun bool, confirm func(what string) error) error {
	r, err := c.planRemoval(ctx, want)
	if err != nil {
		return err
	}
	what := r.text()
	if dryRun {
		c.say("kubectl refit uninstall would do this, in this order; nothing is changed:")
		for _, line := range what {
			c.say("%s", line)
		}
		return nil
	}
	if confirm != nil {
		if err := confirm(strings.Join(what, "\n")); err != nil {
			return err
		}
	}
	if err := c.remove(ctx, r); err != nil {
		return fmt.Errorf("%w; what was removed is gone: kubectl refit uninstall goes on from there", err)
	}
	c.say("Noderefit is removed")
	return nil
}

// planRemoval decides, before anything is touched.
func (c *Cluster) planRemoval(ctx context.Context, want Removal) (*removal, error) {
	if err := c.may(ctx, toUninstall()); err != nil {
		return nil, err
	}
	before, err := c.record(ctx)
	if err != nil {
		return nil, err
	}
	if before == nil {
		before = &record{Version: want.Release.Version}
	}
	values, err := want.Values(before.Values)
	if err != nil {
		return nil, err
	}
	objects, err := want.Release.Render(values)
	if err != nil {
		return nil, err
	}
	there, err := c.look(ctx, installs(objects))
	if err != nil {
		return nil, err
	}
	nodes, err := c.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing Nodes: %w", err)
	}
	if err := decideUninstall(there, nodes.Items, want); err != nil {
		return nil, err
	}
	noted := &record{Version: before.Version, From: before.From, Phase: removing, Values: values,
		Objects: union(before.Objects, refs(objects))}
	return &removal{want, objects, noted, nodes.Items}, nil
}

// text says what goes, a line for each part, in the order in which it goes.
func (r *removal) text() []string {
	workloads, rest, definitions := r.leaves(r.noted.Objects)
	names := func(all []reference) string {
		var out []string
		for _, ref := range all {
			out = append(out, ref.String())
		}
		return some(out)
	}
	lines := []string{"the controllers, the agents and the server: " + names(workloads)}
	if hosts := r.hosts(); r.KeepNodes {
		lines = append(lines, "hosts and Nodes stay as they are")
	} else {
		lines = append(lines, fmt.Sprintf("on %d hosts the agent, its units and its record, and what Noderefit has written "+
			"to their Nodes; files, units and OS of a configuration stay", len(hosts)))
	}
	lines = append(lines, fmt.Sprintf("%d accounts, rights and policies: %s", len(rest), names(rest)))
	if len(definitions) > 0 {
		lines = append(lines, fmt.Sprintf("%d definitions, with all pools, MachineConfigs and policies", len(definitions)))
	} else {
		lines = append(lines, "the definitions stay, with all pools, MachineConfigs and policies; --delete-configuration "+
			"removes them")
	}
	return append(lines, "the namespace "+api.Namespace+", unless something else is in it")
}

// hosts are the nodes that Noderefit has written to.
func (r *removal) hosts() []corev1.Node {
	return slices.DeleteFunc(slices.Clone(r.nodes), func(n corev1.Node) bool { return !managed(&n) })
}

// remove removes everything, in an order in which nothing that is gone is needed by what is left.
func (c *Cluster) remove(ctx context.Context, r *removal) error {
	workloads, rest, definitions := r.leaves(r.noted.Objects)
	// Pods clean the hosts: their namespace has to be there, also where Helm has removed it.
	for _, object := range inStage("namespace", r.objects) {
		if err := c.apply(ctx, object); err != nil {
			return err
		}
	}
	if err := c.note(ctx, r.noted); err != nil {
		return err
	}
	if err := c.discard(ctx, "workloads", workloads); err != nil {
		return err
	}
	left, err := c.podsGone(ctx)
	if err != nil {
		return err
	}
	if err := c.release(ctx); err != nil {
		return err
	}
	if !r.KeepNodes {
		if err := c.cleanHosts(ctx, r.hosts(), r.objects, left); err != nil {
			return err
		}
	}
	if err := c.discard(ctx, "accounts, rights and policies", rest); err != nil {
		return err
	}
	if err := c.discard(ctx, "definitions", definitions); err != nil {
		return err
	}
	if err := errLeft(left); err != nil {
		return err
	}
	return c.removeNamespace(ctx, r)
}

// discard removes objects, and waits until they are gone.
func (c *Cluster) discard(ctx context.Context, what string, all []reference) error {
	count := 0
	for _, ref := range all {
		live, err := c.removable(ctx, ref)
		if err != nil {
			return err
		}
		if live == nil {
			continue
		}
		if err := c.delete(ctx, ref, live.GetUID()); err != nil {
			return err
		}
		count++
	}
	for _, ref := range all {
		err := c.await(ctx, ref.String(), func(ctx context.Context) (bool, string, error) {
			live, err := c.get(ctx, ref)
			if err != nil || live == nil || live.GetDeletionTimestamp() == nil { // the last: it is somebody else's
				return err == nil, "", err
			}
			return false, strings.TrimSuffix("it is being removed; "+holding(live), "; "), nil
		})
		if err != nil {
			return err
		}
	}
	if count > 0 {
		c.say("%s: %d removed", what, count)
	}
	return nil
}

// holding says what keeps an object that is being removed, as far as its conditions and finalizers tell.
func holding(object *unstructured.Unstructured) string {
	conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	var out []string
	for _, one := range conditions {
		c, _ := one.(map[string]any)
		if kind, _ := c["type"].(string); c["status"] == "True" && strings.HasPrefix(kind, "Namespace") {
			out = append(out, fmt.Sprint(c["message"]))
		}
	}
	if all := object.GetFinalizers(); len(all) > 0 {
		out = append(out, "finalizers: "+strings.Join(all, ", "))
	}
	return strings.Join(out, "; ")
}

// delete removes the object that was seen.
func (c *Cluster) delete(ctx context.Context, ref reference, uid types.UID) error {
	client, err := c.client(ref)
	if err == nil {
		background := metav1.DeletePropagationBackground
		err = client.Delete(ctx, ref.Name, metav1.DeleteOptions{
			PropagationPolicy: &background, Preconditions: &metav1.Preconditions{UID: &uid},
		})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("removing %s: %w", ref, err)
	}
	return nil
}

// podsGone waits for the pods of the workloads on nodes that are ready. It returns the other nodes, with their pods:
// these go when the node comes back, or is deleted.
func (c *Cluster) podsGone(ctx context.Context) (map[string]string, error) {
	stays := map[string]string{}
	for _, app := range []string{api.Controller, api.Daemon, api.Server} {
		err := c.await(ctx, "the pods of "+app, func(ctx context.Context) (bool, string, error) {
			pods, err := c.kube.CoreV1().Pods(api.Namespace).List(ctx, appPods(app))
			if err != nil || len(pods.Items) == 0 {
				return err == nil, "", err
			}
			nodes, err := c.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
			if err != nil {
				return false, "", err
			}
			stay, waits, orphans := podsOn(pods.Items, nodes.Items)
			for _, pod := range orphans { // no kubelet ends them, and the cluster takes a minute
				now := metav1.DeleteOptions{GracePeriodSeconds: new(int64)}
				err := c.kube.CoreV1().Pods(api.Namespace).Delete(ctx, pod, now)
				if err != nil && !apierrors.IsNotFound(err) {
					return false, "", fmt.Errorf("removing pod %s, whose Node is gone: %w", pod, err)
				}
			}
			if len(waits)+len(orphans) == 0 {
				maps.Copy(stays, stay)
			}
			return len(waits)+len(orphans) == 0, some(waits), nil
		})
		if err != nil {
			return nil, err
		}
	}
	return stays, nil
}

// podsOn returns the nodes that are not ready and have one of the pods. waits are the pods that end by themselves,
// orphans those whose Node is gone.
func podsOn(pods []corev1.Pod, nodes []corev1.Node) (stay map[string]string, waits, orphans []string) {
	ready := map[string]bool{}
	for i := range nodes {
		ready[nodes[i].Name] = nodeReady(&nodes[i])
	}
	stay = map[string]string{}
	for i := range pods {
		p := &pods[i]
		switch on, known := ready[p.Spec.NodeName]; {
		case on || p.Spec.NodeName == "":
			waits = append(waits, p.Name)
		case known:
			stay[p.Spec.NodeName] = "it is not ready, and pod " + p.Name + " can't end"
		default:
			orphans = append(orphans, p.Name)
		}
	}
	return stay, waits, orphans
}

// release removes the controllers' finalizers from what people own: nobody is there to do so when people delete it.
func (c *Cluster) release(ctx context.Context) error {
	for _, kind := range []string{"KubeletConfig", "ContainerRuntimeConfig"} {
		ref := reference{Group: "machineconfiguration.openshift.io", Version: "v1", Kind: kind}
		client, err := c.client(ref)
		if meta.IsNoMatchError(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("reading %ss: %w", kind, err)
		}
		list, err := client.List(ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("listing %ss: %w", kind, err)
		}
		for i := range list.Items {
			object := &list.Items[i]
			kept := slices.DeleteFunc(object.GetFinalizers(), func(f string) bool { return strings.Contains(f, "-generated-") })
			if len(kept) == len(object.GetFinalizers()) {
				continue
			}
			object.SetFinalizers(kept)
			if _, err := client.Update(ctx, object, metav1.UpdateOptions{FieldManager: manager}); err != nil &&
				!apierrors.IsNotFound(err) {
				return fmt.Errorf("removing the finalizers of %s: %w", nameOf(object), err)
			}
		}
	}
	return nil
}

// removeNamespace removes the namespace with the record in it, or the record alone where the namespace is somebody
// else's or has something of others in it.
func (c *Cluster) removeNamespace(ctx context.Context, r *removal) error {
	leases := c.kube.CoordinationV1().Leases(api.Namespace)
	if err := leases.Delete(ctx, api.Controller, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("removing the Lease %s: %w", api.Controller, err)
	}
	others, err := c.others(ctx)
	if err != nil {
		return err
	}
	ours := inStage("namespace", r.objects)
	if len(ours) > 0 && len(others) == 0 {
		if err := c.discard(ctx, "namespace", refs(ours)); err != nil {
			return err
		}
		if live, err := c.get(ctx, refOf(ours[0])); err != nil || live == nil {
			return err
		}
	}
	if len(others) > 0 {
		c.say("namespace %s stays: it has %s", api.Namespace, some(others))
	}
	err = c.kube.CoreV1().ConfigMaps(api.Namespace).Delete(ctx, recordName, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("removing ConfigMap %s/%s: %w", api.Namespace, recordName, err)
	}
	return nil
}

// others names what is in the namespace and not of Noderefit.
func (c *Cluster) others(ctx context.Context) ([]string, error) {
	var out []string
	for _, ref := range []reference{
		{Version: "v1", Kind: "Pod"}, {Version: "v1", Kind: "ConfigMap"}, {Version: "v1", Kind: "Secret"},
		{Version: "v1", Kind: "Service"}, {Version: "v1", Kind: "PersistentVolumeClaim"},
	} {
		ref.Namespace = api.Namespace
		client, err := c.client(ref)
		if err != nil {
			return nil, fmt.Errorf("reading %ss: %w", ref.Kind, err)
		}
		list, err := client.List(ctx, metav1.ListOptions{LabelSelector: partOfLabel + "!=" + partOfValue})
		if err != nil {
			return nil, fmt.Errorf("listing %ss in namespace %s: %w", ref.Kind, api.Namespace, err)
		}
		for i := range list.Items {
			if ref.Kind != "ConfigMap" || list.Items[i].GetName() != "kube-root-ca.crt" {
				out = append(out, nameOf(&list.Items[i]))
			}
		}
	}
	return out, nil
}
