// SPDX-License-Identifier: Apache-2.0

package gitops

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/butane"
	"github.com/noderefit/noderefit/machineconfig"
)

const example = root + "/docs/examples/gitops"

// documents are the objects of all YAML files below a folder of the example repository.
func documents(t *testing.T, dir string) []*unstructured.Unstructured {
	t.Helper()
	var out []*unstructured.Unstructured
	files, err := filepath.Glob(filepath.Join(example, dir, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %v, %v", dir, files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for part := range strings.SplitSeq(string(text), "\n---\n") {
			if o := parse(t, part); o.GetKind() != "Kustomization" || o.GroupVersionKind().Group != "kustomize.config.k8s.io" {
				out = append(out, o)
			}
		}
	}
	return out
}

func TestNobodyFightsOverFields(t *testing.T) {
	l := newLab(t)
	objects := documents(t, "machines")
	objects = append(objects, controllerConfig(t), parse(t, fileText("01-worker-kubelet", "worker",
		"/etc/kubernetes/kubelet.conf", "%7B%22kind%22:%22KubeletConfiguration%22,"+
			"%22apiVersion%22:%22kubelet.config.k8s.io%2Fv1beta1%22%7D")), parse(t, `
apiVersion: machineconfiguration.openshift.io/v1
kind: ContainerRuntimeConfig
metadata: {name: infra}
spec:
  machineConfigPoolSelector: {matchLabels: {example.com/pool: infra}}
  containerRuntimeConfig: {logLevel: debug}
`))
	l.node("infra-1", "infra")
	l.node("worker-1", "worker")
	all := func() {
		for _, o := range objects {
			l.apply(o)
		}
	}
	// As often as can be, while the controllers do all that they have to do about it.
	for range 10 {
		all()
	}
	l.becomes("MachineConfigPool", "infra", kstatus.CurrentStatus)
	l.becomes("MachineConfigPool", "worker", kstatus.CurrentStatus)
	for _, o := range objects {
		l.becomes(o.GetKind(), o.GetName(), kstatus.CurrentStatus)
	}
	l.until("the pool has what was made of all objects, each by its own controller in its own time", func() (bool, any) {
		sources, _, err := unstructured.NestedSlice(l.get("MachineConfigPool", "infra").Object, "spec", "configuration", "source")
		l.must(err)
		text := fmt.Sprint(sources)
		made := func(suffix string) bool { return strings.Contains(text, "-generated-"+suffix) }
		return made("kubelet") && made("containerruntime") && made("registries"), text
	})
	l.becomes("MachineConfigPool", "infra", kstatus.CurrentStatus)
	before := l.versions(objects)
	all()
	if diff := cmp.Diff(before, l.versions(objects)); diff != "" {
		t.Errorf("it was applied as it was, and is another version (-was +is):\n%s", diff)
	}

	for _, dir := range []string{"staging", "production"} {
		_, err := l.Kubectl(l.ctx, "apply", "--server-side", "--dry-run=server", "--field-manager="+manager,
			"-k", filepath.Join(example, "clusters", dir))
		l.must(err)
	}
	t.Run("WhatControllersWriteIsTheirs", func(t *testing.T) { theirs(l.in(t), objects) })
	t.Run("WhatPeopleDoWithTheProgramStays", func(t *testing.T) { peoples(l.in(t), objects) })
	t.Run("WhatIsAppliedIsWhatIsThere", func(t *testing.T) { sameAsApplied(l.in(t), objects) })
	t.Run("PruningEnds", func(t *testing.T) { pruned(l.in(t), objects) })
}

func (l *lab) versions(objects []*unstructured.Unstructured) map[string]string {
	l.t.Helper()
	out := map[string]string{}
	for _, o := range objects {
		out[o.GetKind()+"/"+o.GetName()] = l.get(o.GetKind(), o.GetName()).GetResourceVersion()
	}
	return out
}

// theirs looks at what the controllers have written into what people apply: it is owned by them, and an apply, or a
// change of the rest, leaves it there.
func theirs(l *lab, objects []*unstructured.Unstructured) {
	for _, o := range objects {
		for _, entry := range l.get(o.GetKind(), o.GetName()).GetManagedFields() {
			text := string(entry.FieldsV1.GetRawBytes())
			mine := entry.Manager == manager
			if mine != (entry.Operation == metav1.ManagedFieldsOperationApply) {
				l.t.Errorf("%s/%s: %s has fields by %s", o.GetKind(), o.GetName(), entry.Manager, entry.Operation)
			}
			for _, field := range []string{
				`"f:configuration":{`, `"f:` + api.RenderedGeneration + `"`, `"f:` + api.NameSuffix + `"`, `"f:finalizers"`,
				`"f:status"`,
			} {
				if mine && strings.Contains(text, field) {
					l.t.Errorf("%s/%s: the repository has %s", o.GetKind(), o.GetName(), field)
				}
			}
		}
	}
	read := func() (string, []any) {
		pool := l.get("MachineConfigPool", "infra")
		name, _, err := unstructured.NestedString(pool.Object, "spec", "configuration", "name")
		l.must(err)
		sources, _, err := unstructured.NestedSlice(pool.Object, "spec", "configuration", "source")
		l.must(err)
		return name, sources
	}
	name, sources := read()
	if name == "" || len(sources) == 0 {
		l.t.Fatalf("%q, %v", name, sources)
	}
	pool := only(l.t, objects, "MachineConfigPool", "infra").DeepCopy()
	l.must(unstructured.SetNestedField(pool.Object, int64(2), "spec", "maxUnavailable"))
	l.apply(pool)
	l.becomes("MachineConfigPool", "infra", kstatus.CurrentStatus)
	if now, of := read(); now != name || len(of) != len(sources) {
		l.t.Errorf("spec.configuration was %s, is %s", name, now)
	}
	l.apply(only(l.t, objects, "MachineConfigPool", "infra"))
	l.becomes("MachineConfigPool", "infra", kstatus.CurrentStatus)
	if k := l.get("KubeletConfig", "infra"); len(k.GetFinalizers()) != 1 {
		l.t.Errorf("finalizers: %v", k.GetFinalizers())
	}
}

// peoples does what kubectl refit does to a pool besides, and what the pool controller remembers.
func peoples(l *lab, objects []*unstructured.Unstructured) {
	pools := l.dynamic.Resource(resource("MachineConfigPool"))
	said := map[string]string{
		api.LiftedKey: `[{"config":"rendered-infra-x","failures":[{"node":"n","since":"2026-01-01T00:00:00Z"}]}]`,
	}
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}},"spec":{"paused":true}}`, api.LiftedKey, said[api.LiftedKey])
	_, err := pools.Patch(l.ctx, "infra", types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: "kubectl-refit"})
	l.must(err)
	l.apply(only(l.t, objects, "MachineConfigPool", "infra"))
	pool := l.get("MachineConfigPool", "infra")
	paused, _, err := unstructured.NestedBool(pool.Object, "spec", "paused")
	l.must(err)
	if !paused || pool.GetAnnotations()[api.LiftedKey] != said[api.LiftedKey] {
		l.t.Errorf("paused %v, %v", paused, pool.GetAnnotations())
	}
	// A repository that says itself whether the pool is paused is told, rather than having its way in silence.
	both := only(l.t, objects, "MachineConfigPool", "infra").DeepCopy()
	l.must(unstructured.SetNestedField(both.Object, false, "spec", "paused"))
	if _, err := pools.Apply(l.ctx, "infra", both, metav1.ApplyOptions{FieldManager: manager}); !apierrors.IsConflict(err) ||
		!strings.Contains(err.Error(), ".spec.paused") {
		l.t.Errorf("spec.paused: %v", err)
	}
	_, err = pools.Patch(l.ctx, "infra", types.MergePatchType, []byte(`{"spec":{"paused":null}}`),
		metav1.PatchOptions{FieldManager: "kubectl-refit"})
	l.must(err)
}

// defaulted are fields that the API server fills in, by kind: what docs/gitops.md has Argo CD ignore.
var defaulted = map[string][]string{
	"MachineConfiguration": {"spec.logLevel", "spec.operatorLogLevel"},
}

// sameAsApplied compares what people wrote with what a dry run says would be there, in all that is theirs to say.
func sameAsApplied(l *lab, objects []*unstructured.Unstructured) {
	for _, o := range objects {
		would := l.apply(o, metav1.ApplyOptions{FieldManager: manager, DryRun: []string{metav1.DryRunAll}})
		is := l.get(o.GetKind(), o.GetName())
		if would.GetGeneration() != is.GetGeneration() {
			l.t.Errorf("%s/%s would change", o.GetKind(), o.GetName())
		}
		wrote, _, err := unstructured.NestedMap(o.Object, "spec")
		l.must(err)
		there, _, err := unstructured.NestedMap(would.Object, "spec")
		l.must(err)
		var more []string
		for key := range maps.Keys(there) {
			_, known := wrote[key]
			if !known && (o.GetKind() != "MachineConfigPool" || key != "configuration") {
				more = append(more, "spec."+key)
			}
		}
		slices.Sort(more)
		if diff := cmp.Diff(defaulted[o.GetKind()], more); diff != "" {
			l.t.Errorf("%s/%s has fields that nobody wrote (-documented +found):\n%s", o.GetKind(), o.GetName(), diff)
		}
		for key, value := range wrote {
			if diff := cmp.Diff(value, there[key]); diff != "" {
				l.t.Errorf("%s/%s spec.%s (-written +there):\n%s", o.GetKind(), o.GetName(), key, diff)
			}
		}
	}
}

// pruned deletes everything in the order that is worst for finalizers: what things were made for first.
func pruned(l *lab, objects []*unstructured.Unstructured) {
	order := []string{"MachineConfigPool", "MachineConfig"}
	objects = slices.SortedStableFunc(slices.Values(objects), func(a, b *unstructured.Unstructured) int {
		return slices.Index(order, b.GetKind()) - slices.Index(order, a.GetKind())
	})
	start := time.Now()
	for _, o := range objects {
		l.must(l.dynamic.Resource(resource(o.GetKind())).Delete(l.ctx, o.GetName(), metav1.DeleteOptions{}))
	}
	for _, o := range objects {
		l.until(o.GetKind()+"/"+o.GetName()+" is gone", func() (bool, any) {
			is := l.get(o.GetKind(), o.GetName())
			if is == nil {
				return true, nil
			}
			return false, is.GetFinalizers()
		})
	}
	l.t.Logf("%d objects are gone after %s", len(objects), time.Since(start))
}

func only(t *testing.T, objects []*unstructured.Unstructured, kind, name string) *unstructured.Unstructured {
	t.Helper()
	for _, o := range objects {
		if o.GetKind() == kind && o.GetName() == name {
			return o
		}
	}
	t.Fatalf("no %s/%s", kind, name)
	return nil
}

// controllerConfig is the one that the installation brings, without its templates.
func controllerConfig(t *testing.T) *unstructured.Unstructured {
	t.Helper()
	text, err := os.ReadFile(root + "/packaging/kustomize/templates/controllerconfig.yaml")
	if err != nil {
		t.Fatal(err)
	}
	o := parse(t, string(text))
	o.SetAnnotations(nil)
	return o
}

func TestTheExampleSaysTwiceTheSame(t *testing.T) {
	t.Parallel()
	sources, err := filepath.Glob(example + "/butane/*.bu")
	if err != nil || len(sources) == 0 {
		t.Fatal(sources, err)
	}
	for _, source := range sources {
		made := filepath.Join(example, "machines", strings.TrimSuffix(filepath.Base(source), ".bu")+".yaml")
		var digests []string
		for _, path := range []string{source, made} {
			c, warnings, err := machineconfig.ReadConfig(butane.Translate, path)
			if err != nil || len(warnings) > 0 {
				t.Fatal(err, warnings)
			}
			digests = append(digests, c.Name+" "+c.Digest)
		}
		if digests[0] != digests[1] {
			t.Errorf("%s is %s, and %s is %s", source, digests[0], made, digests[1])
		}
	}
}

// What is Argo CD's, Flux's and the pipelines' own is read, and refers to what is there.
func TestTheExampleIsWhole(t *testing.T) {
	t.Parallel()
	kinds := map[string]int{}
	for _, dir := range []string{"argocd", "flux", "ci"} {
		for _, o := range documents(t, dir) {
			kinds[o.GetKind()]++
			path, found, err := unstructured.NestedString(o.Object, "spec", "path")
			if err != nil {
				t.Fatal(err)
			}
			if o.GetKind() == "Application" {
				path, found, err = unstructured.NestedString(o.Object, "spec", "source", "path")
			}
			if _, missing := os.Stat(filepath.Join(example, path)); err != nil || found && missing != nil {
				t.Errorf("%s/%s: %v, %v", o.GetKind(), o.GetName(), err, missing)
			}
		}
	}
	want := map[string]int{"Application": 1, "ConfigMap": 1, "GitRepository": 1, "Kustomization": 1, "": 2}
	if diff := cmp.Diff(want, kinds); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
