// SPDX-License-Identifier: Apache-2.0

package installation

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/noderefit/noderefit/api"
)

// Change is what people ask for.
type Change struct {
	Release *Release
	// Values makes the values of those that the record has.
	Values func(base Values) (Values, error)
}

// Install installs a release. What an installation that was killed has done already is done again, which changes
// nothing.
func (c *Cluster) Install(ctx context.Context, want Change) error {
	version := want.Release.Version
	if err := c.may(ctx, toInstall()); err != nil {
		return err
	}
	before, err := c.record(ctx)
	if err != nil {
		return err
	}
	base := Values{}
	if before != nil {
		base = before.Values
	}
	values, err := want.Values(base)
	if err != nil {
		return err
	}
	objects, err := want.Release.Render(values)
	if err != nil {
		return err
	}
	there, err := c.look(ctx, installs(objects))
	if err != nil {
		return err
	}
	definitions, err := c.definitions(ctx, objects)
	if err != nil {
		return err
	}
	changed := before != nil && !sameValues(values, before.Values)
	if err := decideInstall(there, definitions, version, changed); err != nil {
		return err
	}
	if err := c.ready(want.Release, objects); err != nil {
		return err
	}
	c.say("installing Noderefit %s", version)
	noted := &record{Version: version, Phase: installing, Values: values, Objects: refs(objects)}
	if err := c.run(ctx, objects, noted); err != nil {
		return fmt.Errorf("%w; what was done stays, and kubectl refit install goes on from there", err)
	}
	c.say("Noderefit %s is installed", version)
	return nil
}

// sameValues compares values as a record holds them, which knows one kind of numbers.
func sameValues(a, b Values) bool {
	one, errOne := json.Marshal(a)
	other, errOther := json.Marshal(b)
	return len(a) == 0 && len(b) == 0 || errOne == nil && errOther == nil && bytes.Equal(one, other)
}

// ready refuses what can't end well, before anything is touched.
func (c *Cluster) ready(release *Release, objects []*unstructured.Unstructured) error {
	version, err := c.kube.Discovery().ServerVersion()
	if err != nil {
		return fmt.Errorf("reading the cluster's version: %w", err)
	}
	if err := release.takes(version.GitVersion); err != nil {
		return err
	}
	for _, object := range objects {
		// Of its kinds, these alone are neither Kubernetes' nor ours.
		if stages[stageOf(object)].name != "monitoring" {
			continue
		}
		if _, err := c.client(refOf(object)); meta.IsNoMatchError(err) {
			return fmt.Errorf("value monitoring.enabled: the cluster has no kind %s: install Prometheus' operator first",
				object.GetKind())
		} else if err != nil {
			return fmt.Errorf("reading the kind %s: %w", object.GetKind(), err)
		}
	}
	return nil
}

// run takes the stages one after the other. Each says what it did, and waits until it works.
func (c *Cluster) run(ctx context.Context, objects []*unstructured.Unstructured, noted *record) error {
	for at, stage := range stages {
		count, made := 0, 0
		for _, object := range objects {
			if stageOf(object) != at {
				continue
			}
			count++
			if newer, err := c.newerThere(ctx, object, noted.Version); err != nil {
				return err
			} else if newer {
				continue
			}
			if !stage.kept {
				if err := c.apply(ctx, object); err != nil {
					return err
				}
			} else if is, err := c.create(ctx, object); err != nil {
				return err
			} else if is {
				made++
			}
		}
		// The record is there before anything else but the namespace that it is in: from then on the installation is known.
		if stage.name == "namespace" {
			if err := c.note(ctx, noted); err != nil {
				return err
			}
		}
		if count == 0 {
			continue
		}
		if err := c.settle(ctx, at, objects); err != nil {
			return err
		}
		switch {
		case stage.kept && made < count:
			c.say("%s: %d made, %d were there and stay as they are", stage.name, made, count-made)
		default:
			c.say("%s: %d applied", stage.name, count)
		}
	}
	done := *noted
	done.Phase = installed
	return c.note(ctx, &done)
}

// newerThere reports whether an object is a definition of which the cluster has a newer version, as after a way back.
// Older definitions would drop fields of objects.
func (c *Cluster) newerThere(ctx context.Context, object *unstructured.Unstructured, version string) (bool, error) {
	if stages[stageOf(object)].name != "definitions" {
		return false, nil
	}
	live, err := c.get(ctx, refOf(object))
	if err != nil || live == nil {
		return false, err
	}
	return newer(live.GetLabels()[versionLabel], version), nil
}

// settle waits until the objects of a stage are in force.
func (c *Cluster) settle(ctx context.Context, at int, objects []*unstructured.Unstructured) error {
	for _, object := range objects {
		if stageOf(object) != at {
			continue
		}
		ref := refOf(object)
		judge := judges[ref.Kind]
		if judge == nil {
			continue
		}
		err := c.await(ctx, ref.String(), func(ctx context.Context) (bool, string, error) {
			live, err := c.get(ctx, ref)
			if err != nil || live == nil {
				return false, "it is gone", err
			}
			done, instead := judge(live)
			if !done && ref.Kind == "DaemonSet" && number(live, "status", "observedGeneration") >= live.GetGeneration() {
				absent, alone := c.absent(ctx, ref.Name, number(live, "status", "desiredNumberScheduled"))
				if alone {
					c.say("  %s: these nodes are not ready, and not waited for: %s", ref, some(absent))
					return true, "", nil
				}
				if len(absent) > 0 {
					instead += "; not ready, and counted by maxUnavailable: " + some(absent)
				}
			}
			if !done && ref.Kind != "CustomResourceDefinition" {
				instead = strings.TrimSuffix(instead+"; "+c.stuck(ctx, ref.Name), "; ")
			}
			return done, instead, nil
		})
		if err != nil {
			return err
		}
	}
	c.mapper.Reset()
	return nil
}

// judges say of a kind's objects whether they are in force, and what is the case instead.
var judges = map[string]func(*unstructured.Unstructured) (done bool, instead string){
	"CustomResourceDefinition": established,
	"Deployment":               deployed,
	"DaemonSet":                onEachNode,
}

func established(crd *unstructured.Unstructured) (bool, string) {
	all, _, _ := unstructured.NestedSlice(crd.Object, "status", "conditions")
	for _, one := range all {
		condition, _ := one.(map[string]any)
		switch {
		case condition["type"] == "Established" && condition["status"] == "True":
			return true, ""
		case condition["type"] == "NamesAccepted" && condition["status"] == "False":
			return false, fmt.Sprintf("its names are not accepted: %v", condition["message"])
		}
	}
	return false, "not established yet"
}

// number reads an integer of an object, 0 where there is none.
func number(object *unstructured.Unstructured, path ...string) int64 {
	n, _, _ := unstructured.NestedInt64(object.Object, path...)
	return n
}

func deployed(d *unstructured.Unstructured) (bool, string) {
	want := number(d, "spec", "replicas")
	updated, available := number(d, "status", "updatedReplicas"), number(d, "status", "availableReplicas")
	seen := number(d, "status", "observedGeneration") >= d.GetGeneration()
	done := seen && updated >= want && available >= want && number(d, "status", "replicas") == updated
	return done, fmt.Sprintf("%d of %d are ready", min(updated, available), want)
}

func onEachNode(d *unstructured.Unstructured) (bool, string) {
	want := number(d, "status", "desiredNumberScheduled")
	updated, available := number(d, "status", "updatedNumberScheduled"), number(d, "status", "numberAvailable")
	done := number(d, "status", "observedGeneration") >= d.GetGeneration() && updated >= want && available >= want
	return done, fmt.Sprintf("%d of %d nodes are ready", min(updated, available), want)
}

// stuck names the first pod of a workload that can't start, and why; empty: none is known.
func (c *Cluster) stuck(ctx context.Context, app string) string {
	pods, err := c.kube.CoreV1().Pods(api.Namespace).List(ctx, appPods(app))
	if err != nil {
		return ""
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		for _, status := range pod.Status.ContainerStatuses {
			if w := status.State.Waiting; w != nil && w.Reason != "ContainerCreating" && w.Reason != "PodInitializing" {
				return fmt.Sprintf("pod %s on node %s: %s", pod.Name, pod.Spec.NodeName, cmp.Or(w.Message, w.Reason))
			}
		}
	}
	return ""
}
