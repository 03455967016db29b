// SPDX-License-Identifier: Apache-2.0

package installation

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestWhatIsInstalledInto(t *testing.T) {
	t.Parallel()
	done, begun := &record{Version: "v0.1.0", Phase: installed}, &record{Version: "v0.1.0", Phase: installing}
	for name, test := range map[string]struct {
		found   found
		there   []string // the versions of definitions
		version string
		changed bool
		refused string
	}{
		"nothing is there":                   {version: "v0.1.0"},
		"older definitions are left":         {there: []string{"v0.1.0", ""}, version: "v0.2.0"},
		"newer definitions are left":         {there: []string{"v0.1.0", "v0.2.0"}, version: "v0.1.0", refused: "install v0.2.0 or a newer version"},
		"newer ones stay after a way back":   {found: found{record: done}, there: []string{"v0.2.0"}, version: "v0.1.0"},
		"an OpenShift":                       {found: found{openShift: "its API has x"}, refused: "this cluster is an OpenShift: its API has x"},
		"an MCO of its own":                  {found: found{strangers: []string{"Deployment a/b"}}, refused: "Deployment a/b does not belong to Noderefit"},
		"Helm's":                             {found: found{helm: &helmRelease{"x", "y"}}, refused: "go on with helm upgrade x --namespace y"},
		"kubectl's":                          {found: found{others: []string{"Role a"}}, refused: "(Role a): go on with kubectl apply"},
		"the same again":                     {found: found{record: done}, version: "v0.1.0"},
		"the same, with other values":        {found: found{record: done}, version: "v0.1.0", changed: true, refused: "is installed already, with other values"},
		"another version":                    {found: found{record: done}, version: "v0.2.0", refused: "is installed already, and this program is v0.2.0"},
		"a killed one goes on":               {found: found{record: begun}, version: "v0.1.0"},
		"a killed one gets other values":     {found: found{record: begun}, version: "v0.1.0", changed: true},
		"a killed one, with another version": {found: found{record: begun}, version: "v0.2.0", refused: "this program is v0.2.0"},
		"an upgrade has begun": {
			found: found{record: &record{Version: "v0.1.0", Phase: upgrading}}, version: "v0.1.0",
			refused: "has begun and has not ended: go on with kubectl refit upgrade",
		},
		"an object that somebody applied": {found: found{record: done, others: []string{"Role a"}}, version: "v0.1.0"},
	} {
		err := decideInstall(&test.found, test.there, test.version, test.changed)
		if test.refused == "" && err != nil || test.refused != "" && (err == nil || !strings.Contains(err.Error(), test.refused)) {
			t.Errorf("%s: %v, want %q", name, err, test.refused)
		}
	}
}

func TestWhoIsBehindAnObject(t *testing.T) {
	t.Parallel()
	object := func(change func(*unstructured.Unstructured)) *unstructured.Unstructured {
		o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "X"}}
		o.SetName("x")
		o.SetLabels(map[string]string{partOfLabel: partOfValue})
		o.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: "kubectl"}})
		change(o)
		return o
	}
	var f found
	f.add(object(func(o *unstructured.Unstructured) {
		o.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: manager}})
	}))
	if f.helm != nil || len(f.others)+len(f.strangers) > 0 {
		t.Errorf("the plugin's own: %+v", f)
	}
	f.add(object(func(o *unstructured.Unstructured) { o.SetLabels(nil) }))
	f.add(object(func(o *unstructured.Unstructured) {
		o.SetAnnotations(map[string]string{helmName: "r", helmNamespace: "n"})
	}))
	f.add(object(func(*unstructured.Unstructured) {}))
	if !slices.Equal(f.strangers, []string{"X x"}) || *f.helm != (helmRelease{"r", "n"}) || !slices.Equal(f.others, []string{"X x"}) {
		t.Errorf("%+v", f)
	}
}

// Each object of the chart, with all that it can have, has its stage, and goes in after what it needs.
func TestEveryObjectHasItsStage(t *testing.T) {
	t.Parallel()
	release, err := NewRelease("v0.1.0", "example.org/x")
	if err != nil {
		t.Fatal(err)
	}
	values, err := ReadValues(nil, nil, []string{
		"server.enabled=true,monitoring.enabled=true,page.enabled=true,templates.create=true",
	}, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := release.Render(values)
	if err != nil {
		t.Fatal(err)
	}
	last, seen := 0, map[int]bool{}
	for _, object := range objects {
		at := stageOf(object)
		if at == len(stages) || at < last {
			t.Errorf("%s is of stage %d, after one of %d", nameOf(object), at, last)
		}
		last, seen[at] = at, true
	}
	if len(seen) != len(stages) {
		t.Errorf("of %d stages the chart has objects for %v", len(stages), seen)
	}
}

func TestAReleaseTakesTheKubernetesThatItsChartTakes(t *testing.T) {
	t.Parallel()
	release, err := NewRelease("dev", "")
	if err != nil {
		t.Fatal(err)
	}
	for version, fits := range map[string]bool{
		"v1.32.0": true, "v1.36.3": true, "v1.33.4-gke.1245000": true, "v1.32.1+k3s1": true, "v1.31.9": false, "unknown": false,
	} {
		if err := release.takes(version); (err == nil) != fits {
			t.Errorf("%s: %v", version, err)
		}
	}
}
