// SPDX-License-Identifier: Apache-2.0

package packaging

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/test/lab/cluster"
)

const chart = root + "/packaging/helm/noderefit"

// registry is a value that the chart is refused without. It is that of the images that kustomize is to replace.
const registry = "image.registry=registry.example.com/noderefit"

// objects reads the objects of a stream, by kind and name.
func objects(t *testing.T, stream string) map[string]map[string]any {
	t.Helper()
	all := map[string]map[string]any{}
	for decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(stream), 4096); ; {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(&object.Object)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(object.Object) == 0 {
			continue
		}
		key := strings.Join([]string{object.GetKind(), object.GetNamespace(), object.GetName()}, "/")
		if all[key] != nil {
			t.Errorf("%s is there twice", key)
		}
		all[key] = object.Object
	}
}

func kustomized(t *testing.T, dir string) map[string]map[string]any {
	t.Helper()
	cluster.Need(t)
	text, err := kubectl(t.Context(), &cluster.Cluster{}, "kustomize", root+"/packaging/kustomize/"+dir)
	if err != nil {
		t.Fatal(err)
	}
	return objects(t, text)
}

func helm(t *testing.T, args ...string) string {
	t.Helper()
	text, err := tool(context.WithoutCancel(t.Context()), "helm", args...)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestTheChartMakesWhatKustomizeMakes(t *testing.T) {
	inputs(t)
	for _, test := range []struct {
		dir  string
		args []string
	}{
		{"default", []string{"--set", "createNamespace=true"}},
		{"base", []string{"--set", "createNamespace=true,pools.create=false"}},
		{"monitored", []string{"--set", "createNamespace=true,monitoring.enabled=true"}},
		{"templated", []string{"--set", "createNamespace=true,templates.create=true"}},
		{"joining", []string{"--set", "createNamespace=true,server.enabled=true"}},
		{"paged", []string{"--set", "createNamespace=true,page.enabled=true"}},
	} {
		t.Run(test.dir, func(t *testing.T) {
			made := objects(t, helm(t, append([]string{"template", "noderefit", chart, "--set", registry}, test.args...)...))
			if diff := cmp.Diff(kustomized(t, test.dir), made); diff != "" {
				t.Errorf("kustomize (-) and the chart (+) differ:\n%s", diff)
			}
		})
	}
	t.Run("joining and monitored", func(t *testing.T) {
		// As docs/install.md says: a kustomization of one's own, with the components in this order.
		dir := t.TempDir()
		base, err := filepath.Abs(root + "/packaging/kustomize")
		if err != nil {
			t.Fatal(err)
		}
		there, err := filepath.Rel(dir, base)
		if err != nil {
			t.Fatal(err)
		}
		back, err := filepath.Rel(base, dir)
		if err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprintf("resources: [%[1]s/default]\ncomponents: [%[1]s/server, %[1]s/monitoring]\n", there)
		if err := os.WriteFile(dir+"/kustomization.yaml", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		made := objects(t, helm(t, "template", "noderefit", chart, "--set", registry, "--set",
			"createNamespace=true,server.enabled=true,monitoring.enabled=true"))
		if diff := cmp.Diff(kustomized(t, back), made); diff != "" {
			t.Errorf("kustomize (-) and the chart (+) differ:\n%s", diff)
		}
	})
	t.Run("crds", func(t *testing.T) {
		made := objects(t, helm(t, "show", "crds", chart))
		if diff := cmp.Diff(kustomized(t, "crds"), made); diff != "" {
			t.Errorf("kustomize (-) and the chart (+) differ:\n%s", diff)
		}
	})
}

func TestTheDefinitionsAreAllThere(t *testing.T) {
	inputs(t)
	files, err := api.CRDs.ReadDir("crds")
	if err != nil {
		t.Fatal(err)
	}
	if installed := kustomized(t, "crds"); len(installed) != len(files) {
		t.Errorf("kustomize installs %d definitions, and there are %d", len(installed), len(files))
	}
}

func TestTheChartsValuesArriveWhereTheyBelong(t *testing.T) {
	inputs(t)
	values := filepath.Join(t.TempDir(), "values.yaml")
	const text = `
image: {registry: example.org/x, tag: v1, pullPolicy: Always, pullSecrets: [{name: pull}]}
daemon: {resources: {limits: {memory: 1Gi}}, tolerations: [{key: a}], nodeSelector: {b: c}, maxUnavailable: 3}
controller: {replicas: 1, resources: null, tolerations: null, nodeSelector: {d: e}}
`
	if err := os.WriteFile(values, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	made := objects(t, helm(t, "template", "noderefit", chart, "--values", values))
	at := func(kind string, path ...string) any {
		name := map[string]string{"DaemonSet": api.Daemon, "Deployment": api.Controller}[kind]
		object := made[kind+"/"+api.Namespace+"/"+name]
		found, _, err := unstructured.NestedFieldNoCopy(object, path...)
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	container := func(kind string) map[string]any {
		all, ok := at(kind, "spec", "template", "spec", "containers").([]any)
		if !ok || len(all) != 1 {
			t.Fatalf("%s has containers %v", kind, all)
		}
		return all[0].(map[string]any)
	}
	secrets := []any{map[string]any{"name": "pull"}}
	for what, pair := range map[string][2]any{
		"image":         {"example.org/x/machine-config-daemon:v1", container("DaemonSet")["image"]},
		"policy":        {"Always", container("DaemonSet")["imagePullPolicy"]},
		"memory":        {map[string]any{"limits": map[string]any{"memory": "1Gi"}}, onlyLimits(container("DaemonSet"))},
		"secret":        {secrets, at("DaemonSet", "spec", "template", "spec", "imagePullSecrets")},
		"tolerations":   {[]any{map[string]any{"key": "a"}}, at("DaemonSet", "spec", "template", "spec", "tolerations")},
		"selector":      {"c", at("DaemonSet", "spec", "template", "spec", "nodeSelector", "b")},
		"unavailable":   {float64(3), at("DaemonSet", "spec", "updateStrategy", "rollingUpdate", "maxUnavailable")},
		"replicas":      {float64(1), at("Deployment", "spec", "replicas")},
		"no resources":  {nil, container("Deployment")["resources"]},
		"no toleration": {nil, at("Deployment", "spec", "template", "spec", "tolerations")},
	} {
		if diff := cmp.Diff(pair[0], pair[1]); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
	}
}

// What Helm itself puts among the values of a chart that is part of another is none of a person's mistakes. Neither is
// what takes a default back, or stops the controllers for a while.
func TestTheChartCanBePartOfAnother(t *testing.T) {
	inputs(t)
	parent := t.TempDir()
	whole, err := filepath.Abs(chart)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bash(t, parent, `mkdir charts && cp -rL "$CHART" charts/noderefit`, "CHART="+whole); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"Chart.yaml": "apiVersion: v2\nname: parent\nversion: 1.0.0\ndependencies:\n" +
			"  - {name: noderefit, version: '*', condition: noderefit.enabled}\n",
		"values.yaml": `
global: {region: x}
noderefit:
  enabled: true
  image: {registry: example.org/x}
  controller: {replicas: 0}
  daemon: {maxUnavailable: "2"}
`,
		// Helm gives a default back where the null is in the other chart's own values.
		"mine.yaml": `
noderefit:
  controller: {nodeSelector: {kubernetes.io/os: null, a: b}}
  daemon: {nodeSelector: {kubernetes.io/os: null}}
`,
	} {
		if err := os.WriteFile(filepath.Join(parent, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	made := objects(t, helm(t, "template", "x", parent, "--values", parent+"/mine.yaml"))
	at := func(key string, path ...string) any {
		found, _, err := unstructured.NestedFieldNoCopy(made[key], path...)
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	controller, daemon := "Deployment/"+api.Namespace+"/"+api.Controller, "DaemonSet/"+api.Namespace+"/"+api.Daemon
	for what, pair := range map[string][2]any{
		"replicas":    {float64(0), at(controller, "spec", "replicas")},
		"selector":    {map[string]any{"a": "b"}, at(controller, "spec", "template", "spec", "nodeSelector")},
		"no selector": {nil, at(daemon, "spec", "template", "spec", "nodeSelector")},
		"unavailable": {float64(2), at(daemon, "spec", "updateStrategy", "rollingUpdate", "maxUnavailable")},
	} {
		if diff := cmp.Diff(pair[0], pair[1]); diff != "" {
			t.Errorf("%s (-want +got): %s", what, diff)
		}
	}
	if left := objects(t, helm(t, "template", "x", parent, "--set", "noderefit.enabled=false")); len(left) != 0 {
		t.Errorf("without it there are %d objects", len(left))
	}
}

func TestThePageIsServedToTheNetworkWithACertificateOnly(t *testing.T) {
	inputs(t)
	const open = "page.enabled=true,page.bindAddress=:8798"
	if text, err := tool(t.Context(), "helm", "template", "noderefit", chart, "--set", registry, "--set", open); err == nil ||
		!strings.Contains(err.Error(), "page.certificateSecret is needed") {
		t.Errorf("without one: %v\n%s", err, text)
	}
	made := objects(t, helm(t, "template", "noderefit", chart, "--set", registry, "--set",
		open+",page.certificateSecret=page-tls,page.clusterName=my 'first' cluster: east"))
	controller := made["Deployment/"+api.Namespace+"/"+api.Controller]
	pod := func(path ...string) any {
		found, _, err := unstructured.NestedFieldNoCopy(controller, append([]string{"spec", "template", "spec"}, path...)...)
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	container := pod("containers").([]any)[0].(map[string]any)
	for what, pair := range map[string][2]any{
		"arguments": {container["args"], []any{
			"run", "--page-bind-address=:8798", "--page-cluster-name=my 'first' cluster: east",
			"--page-cert=/etc/ssl/page/tls.crt", "--page-key=/etc/ssl/page/tls.key",
		}},
		"mounts": {container["volumeMounts"], []any{
			map[string]any{"name": "page-certificate", "mountPath": "/etc/ssl/page", "readOnly": true},
		}},
		"volumes": {pod("volumes"), []any{map[string]any{
			"name": "page-certificate", "secret": map[string]any{"secretName": "page-tls", "defaultMode": float64(0o440)},
		}}},
		"group": {pod("securityContext", "fsGroup"), float64(65532)},
	} {
		if diff := cmp.Diff(pair[1], pair[0]); diff != "" {
			t.Errorf("%s (-want +got): %s", what, diff)
		}
	}
}

func onlyLimits(container map[string]any) map[string]any {
	resources, _ := container["resources"].(map[string]any)
	return map[string]any{"limits": resources["limits"]}
}

func TestTheChartIsClean(t *testing.T) {
	inputs(t)
	if said := helm(t, "lint", "--strict", chart, "--set", registry); !strings.Contains(said, "0 chart(s) failed") {
		t.Error(said)
	}
	// As it is given away: a link that a package can't hold would show here.
	packed := t.TempDir()
	helm(t, "package", chart, "--destination", packed)
	archives, err := filepath.Glob(filepath.Join(packed, "*.tgz"))
	if err != nil || len(archives) != 1 {
		t.Fatalf("found %v, %v", archives, err)
	}
	whole, unpacked := helm(t, "template", "x", chart, "--set", registry),
		helm(t, "template", "x", archives[0], "--set", registry)
	if diff := cmp.Diff(objects(t, whole), objects(t, unpacked)); diff != "" {
		t.Error(diff)
	}
}

// Helm itself installs it on an API server that has nothing of it, and takes all of it away but what people own.
func TestHelmInstallsAndUninstalls(t *testing.T) {
	inputs(t)
	c := cluster.New(t, cluster.Options{NoCRDs: true})
	flags := []string{"--kubeconfig", c.Kubeconfig, "--namespace", api.Namespace, "--set", registry}
	if text, err := kubectl(t.Context(), c, "apply", "--server-side", "--dry-run=server", "--warnings-as-errors", "-k",
		root+"/packaging/kustomize/crds"); err != nil {
		t.Errorf("the definitions are not taken without a warning: %v\n%s", err, text)
	}
	said := helm(t, append([]string{"install", "noderefit", chart, "--create-namespace"}, flags...)...)
	if !strings.Contains(said, "kubectl label node NAME node-role.kubernetes.io/worker=") {
		t.Errorf("the notes do not say how a node gets into a pool:\n%s", said)
	}
	helm(t, append([]string{"upgrade", "noderefit", chart, "--set", "controller.replicas=1"}, flags...)...)
	deployment, err := c.Client.AppsV1().Deployments(api.Namespace).Get(t.Context(), api.Controller, metav1.GetOptions{})
	if err != nil || *deployment.Spec.Replicas != 1 {
		t.Fatalf("got %v, %v; want one replica", deployment.Spec.Replicas, err)
	}
	b := &bench{c, t}
	_, err = b.install(t.Context(), "v0.1.0")
	b.refuses(err, "release noderefit of Helm in namespace "+api.Namespace+" has installed Noderefit here: go on with helm upgrade")
	helm(t, append([]string{"uninstall", "noderefit"}, flags[:4]...)...)
	for _, policy := range policies(t, c) {
		t.Errorf("policy %s is left", policy.Name)
	}
	pools, err := c.MachineConfigs.MachineconfigurationV1().MachineConfigPools().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, pool := range pools.Items {
		left = append(left, pool.Name)
	}
	slices.Sort(left)
	if diff := cmp.Diff([]string{"master", "worker"}, left); diff != "" {
		t.Error(fmt.Sprint("pools: ", diff))
	}
	// Another release finds the pools that were kept, in whatever namespace it is, and does not take them.
	pool := pools.Items[0].DeepCopy()
	pool.Spec.Paused = true
	if _, err := c.MachineConfigs.MachineconfigurationV1().MachineConfigPools().Update(t.Context(), pool,
		metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	flags[3] = "elsewhere"
	helm(t, append([]string{"install", "again", chart, "--create-namespace"}, flags...)...)
	helm(t, append([]string{"upgrade", "again", chart}, flags...)...)
	found, err := c.MachineConfigs.MachineconfigurationV1().MachineConfigPools().Get(t.Context(), pool.Name,
		metav1.GetOptions{})
	if err != nil || !found.Spec.Paused {
		t.Errorf("pool %s: %v; the release changed it: %+v", pool.Name, err, found.Spec)
	}
}

func TestTheChartRefusesWhatItDoesNotKnow(t *testing.T) {
	inputs(t)
	for _, test := range []struct{ set, says string }{
		{"createNamespace=true", "image.registry is not set: say where the images are"},
		{registry + ",page.enable=true", "additional properties 'enable' not allowed"},
		{registry + ",monitor.enabled=true", "additional properties 'monitor' not allowed"},
		{registry + ",controller.replicas=-1", "at '/controller/replicas': minimum"},
		{registry + ",daemon.maxUnavailable=some", "at '/daemon/maxUnavailable'"},
		{registry + ",daemon.maxUnavailable=0", "at '/daemon/maxUnavailable'"},
		{registry + ",enabled=perhaps", "at '/enabled': got string, want boolean"},
		{registry + ",daemon.nodeSelector.x=true", "at '/daemon/nodeSelector/x'"},
		{"image.registry=https://example.org/x", "at '/image/registry'"},
	} {
		if text, err := tool(t.Context(), "helm", "template", "noderefit", chart, "--set", test.set); err == nil ||
			!strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v\n%s; want %q", test.set, err, text, test.says)
		}
	}
}

// Every value of the chart's own is in its README, or the value that it belongs to.
func TestTheChartsREADMEHasItsValues(t *testing.T) {
	inputs(t)
	readme, err := os.ReadFile(chart + "/README.md")
	if err != nil {
		t.Fatal(err)
	}
	values, err := os.ReadFile(chart + "/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var all map[string]any
	if err := yaml.Unmarshal(values, &all); err != nil || len(all) == 0 {
		t.Fatal(err)
	}
	for name, value := range all {
		below, _ := value.(map[string]any)
		if below == nil {
			below = map[string]any{"": nil}
		}
		for key := range below {
			full := strings.TrimSuffix(name+"."+key, ".")
			if !strings.Contains(string(readme), "`"+full+"`") && !strings.Contains(string(readme), "`"+name+".*`") {
				t.Errorf("README.md of the chart has no %s", full)
			}
		}
	}
}
