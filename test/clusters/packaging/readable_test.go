// SPDX-License-Identifier: Apache-2.0

package packaging

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	gvk "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/intake"
	"github.com/noderefit/noderefit/test/lab/cluster"
)

// witnesses are values of every kind that JSON has, at and beyond the edges of what Go's types hold.
var witnesses = []string{
	`1`, `-1`, `0`, `2147483648`, `-2147483649`, `1099511627776`, `4294967296`, `9223372036854775807`,
	`9223372036854775808`, `-9223372036854775809`, `1e30`, `1e400`, `1.0`, `1.5`, `1e3`, `3e9`, `1e12`, `2147483648.0`, `-3e9`,
	`""`, `"abc"`, `"1"`, `"10%"`, `"1e400"`, `"9e99999"`, `"1Ki"`, `"1.5Gi"`, `"99999999999999999999Ei"`, `"-1"`, `"+"`, `"."`,
	`"1h"`, `"1h30m"`, `"1d"`, `"99999999h"`, `"0s"`, `"1"`, `"1.5h"`, `"9999999999s"`, `"-1s"`,
	`"2026-01-02T03:04:05Z"`, `"2026-01-02T03:04:05"`, `"2026-01-02t03:04:05z"`, `"2026-01-02T23:59:60Z"`,
	`"2026-01-02T03:04:05+99:99"`, `"2026-01-02T24:00:00Z"`, `"2026-01-02T03:04:05.123456789012Z"`, `"2026-02-30T03:04:05Z"`,
	`"2026-01-02T03:04:05+0200"`, `"2026-01-02 03:04:05Z"`, `"2026-01-02T03:04:05,5Z"`, `"12026-01-02T03:04:05Z"`, `"2026-01-02T03:04:05.Z"`,
	`"YWJj"`, `"YWI"`, `"YWJj\n"`, `"Y W J j"`, `"YW-_"`,
	`true`, `false`, `"true"`, `null`, `[]`, `[1]`, `["a"]`, `{}`, `{"a":1}`, `{"a":"b"}`,
}

// gap is a field of a definition with a value that the definition admits and its Go type can't hold.
type gap struct {
	crd     *apiextensionsv1.CustomResourceDefinition
	schema  *apiextensions.JSONSchemaProps
	path    string
	witness string
	kind    reflect.Type
}

func (g gap) String() string {
	return fmt.Sprintf("%s %s: %s", g.crd.Spec.Names.Kind, g.path, g.witness)
}

// broken are those of a field's own rules that a value breaks.
func broken(s *apiextensions.JSONSchemaProps, value any) field.ErrorList {
	if len(s.XValidations) == 0 {
		return nil
	}
	structural, err := schema.NewStructural(s)
	if err != nil {
		panic(err)
	}
	wrong, _ := cel.NewValidator(structural, false, celconfig.PerCallLimit).
		Validate(context.Background(), nil, structural, value, nil, celconfig.RuntimeCELCostBudget)
	return wrong
}

func jsonName(f reflect.StructField) (name string, inline bool) {
	tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return tag, f.Anonymous && tag == ""
}

func fieldOf(t reflect.Type, name string) (reflect.Type, bool) {
	for f := range t.Fields() {
		tag, inline := jsonName(f)
		if inline {
			ft := f.Type
			for ft.Kind() == reflect.Pointer {
				ft = ft.Elem()
			}
			if found, ok := fieldOf(ft, name); ok {
				return found, true
			}
		}
		if tag == name {
			return f.Type, true
		}
	}
	return nil, false
}

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

// walk looks at every field of a schema beside the Go type that reads it.
func walk(path string, s *apiextensions.JSONSchemaProps, t reflect.Type, found func(path, witness string)) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if path != "" {
		try(path, s, t, found)
	}
	if reflect.PointerTo(t).Implements(unmarshaler) {
		return
	}
	switch t.Kind() {
	case reflect.Struct:
		for name := range s.Properties {
			p := s.Properties[name]
			if path == "" && (name == "metadata" || name == "apiVersion" || name == "kind") {
				continue
			}
			ft, ok := fieldOf(t, name)
			if !ok {
				continue // the type ignores it
			}
			walk(strings.TrimPrefix(path+"."+name, "."), &p, ft, found)
		}
	case reflect.Map:
		if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
			walk(path+"{}", s.AdditionalProperties.Schema, t.Elem(), found)
		}
	case reflect.Slice:
		if s.Items != nil && s.Items.Schema != nil {
			walk(path+"[]", s.Items.Schema, t.Elem(), found)
		}
	}
}

// try finds the values that the API server's own validation of a field takes and the type doesn't.
func try(path string, s *apiextensions.JSONSchemaProps, t reflect.Type, found func(path, witness string)) {
	v, _, err := validation.NewSchemaValidator(s)
	if err != nil {
		panic(err)
	}
	for _, w := range witnesses {
		var value any
		if err := kjson.UnmarshalCaseSensitivePreserveInts([]byte(w), &value); err != nil {
			continue
		}
		if value == nil && !s.Nullable {
			continue
		}
		if !v.Validate(value).IsValid() || len(broken(s, value)) > 0 {
			continue
		}
		sent, err := json.Marshal(value)
		if err != nil {
			panic(err) // it was JSON
		}
		if err := kjson.UnmarshalCaseSensitivePreserveInts(sent, reflect.New(t).Interface()); err != nil {
			found(path, w)
		}
	}
}

// definition is that of a kind that our programs read, and the type by which they do.
type definition struct {
	crd    *apiextensionsv1.CustomResourceDefinition
	schema *apiextensions.JSONSchemaProps
	kind   reflect.Type
}

// definitions are those of all kinds that our programs read.
func definitions(t *testing.T) []definition {
	t.Helper()
	files, err := api.CRDs.ReadDir("crds")
	if err != nil {
		t.Fatal(err)
	}
	var out []definition
	for _, file := range files {
		data, err := api.CRDs.ReadFile("crds/" + file.Name())
		if err != nil {
			t.Fatal(err)
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.Unmarshal(data, crd); err != nil {
			t.Fatal(err)
		}
		for _, v := range crd.Spec.Versions {
			kind := intake.Kinds[gvk.GroupVersionKind{Group: crd.Spec.Group, Version: v.Name, Kind: crd.Spec.Names.Kind}]
			if kind == nil {
				continue
			}
			s := &apiextensions.JSONSchemaProps{}
			err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(v.Schema.OpenAPIV3Schema, s, nil)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, definition{crd, s, reflect.TypeOf(kind)})
		}
	}
	if len(out) != len(intake.Kinds) {
		t.Errorf("of %d kinds that are read, %d have a definition", len(intake.Kinds), len(out))
	}
	return out
}

// gaps are all of them, of all kinds that our programs read.
func gaps(t *testing.T) []gap {
	t.Helper()
	var out []gap
	for _, d := range definitions(t) {
		walk("", d.schema, d.kind, func(path, witness string) {
			out = append(out, gap{d.crd, d.schema, path, witness, d.kind})
		})
	}
	return out
}

// object is one that has a gap, and besides it what its definition requires.
func (g gap) object(name string) map[string]any { return withGaps(name, g) }

// withGaps is an object that has gaps of its kind, all of them, and besides them what its definition requires.
func withGaps(name string, gaps ...gap) map[string]any {
	g := gaps[0]
	out := sample(g.schema).(map[string]any)
	out["apiVersion"], out["kind"] = g.crd.Spec.Group+"/"+g.crd.Spec.Versions[0].Name, g.crd.Spec.Names.Kind
	out["metadata"] = map[string]any{"name": name}
	// What rules ask for, and not the types.
	spec, _ := out["spec"].(map[string]any)
	switch g.crd.Spec.Names.Kind {
	case "ControllerConfig":
		for _, name := range []string{"infra", "dns"} {
			embedded := spec[name].(map[string]any)
			embedded["apiVersion"], embedded["kind"] = "config.openshift.io/v1", "Infrastructure"
			embedded["metadata"] = map[string]any{"name": "cluster"}
		}
	case "MachineConfigNode":
		spec["node"] = map[string]any{"name": name}
	case "RolloutPolicy":
		spec["pools"] = []any{"worker"}
	case "ClusterImagePolicy", "ImagePolicy":
		spec["scopes"] = []any{"a.example"}
		spec["policy"] = map[string]any{"rootOfTrust": map[string]any{
			"policyType": "PublicKey", "publicKey": map[string]any{"keyData": cluster.PublicKey},
		}}
	}
	for _, g := range gaps {
		// As it is written: 1e12 is another number to a policy than 1000000000000.
		put(out, g.schema, strings.Split(g.path, "."), json.RawMessage(g.witness))
	}
	if status, _ := out["status"].(map[string]any); status["internalReleaseImage"] != nil {
		image := status["internalReleaseImage"].(map[string]any)
		image["releases"].([]any)[0].(map[string]any)["name"] = "ocp-release-bundle-4.20.1-x86_64"
	}
	return out
}

func put(into map[string]any, s *apiextensions.JSONSchemaProps, path []string, value any) {
	name, list := strings.CutSuffix(path[0], "[]")
	p := s.Properties[name]
	if len(path) == 1 {
		into[name] = value
		return
	}
	if list {
		item, _ := sample(p.Items.Schema).(map[string]any)
		if there, _ := into[name].([]any); len(there) > 0 {
			item, _ = there[0].(map[string]any)
		}
		put(item, p.Items.Schema, path[1:], value)
		into[name] = []any{item}
		return
	}
	next, ok := into[name].(map[string]any)
	if !ok {
		next = sample(&p).(map[string]any)
		into[name] = next
	}
	put(next, &p, path[1:], value)
}

// sample is the least that a schema takes.
func sample(s *apiextensions.JSONSchemaProps) any {
	switch {
	case s.Default != nil:
		return runtime.DeepCopyJSONValue(*s.Default)
	case len(s.Enum) > 0:
		return s.Enum[0]
	}
	switch s.Type {
	case "object":
		out := map[string]any{}
		for _, name := range s.Required {
			p := s.Properties[name]
			out[name] = sample(&p)
		}
		return out
	case "array":
		if s.MinItems != nil && *s.MinItems > 0 {
			return []any{sample(s.Items.Schema)}
		}
		return []any{}
	case "integer", "number":
		return int64(1)
	case "boolean":
		return false
	}
	switch s.Format {
	case "uri":
		return "https://a.example"
	case "date-time":
		return "2026-01-02T03:04:05Z"
	case "byte":
		return "YWJj"
	}
	return "a"
}

// What a definition admits and no program reads is refused where it is written, and where it is there nevertheless, the
// rest of the object is read.
func TestWhatNoProgramReadsIsMendedByField(t *testing.T) {
	in := intake.New()
	for _, g := range gaps(t) {
		data, err := json.Marshal(g.object("x"))
		if err != nil {
			t.Fatal(err)
		}
		mended, problem := in.Mend(data)
		if err := kjson.UnmarshalCaseSensitivePreserveInts(mended, reflect.New(g.kind).Interface()); err != nil {
			t.Errorf("%s: %v", g, err)
		}
		if want := strings.ReplaceAll(g.path, "[]", "[0]"); !strings.HasPrefix(problem, want) {
			t.Errorf("%s: the field is named as %q", g, problem)
		}
	}
}

// ask has the API server do something to an object, and returns its words where it refuses.
func ask(t *testing.T, c *cluster.Cluster, verb, path string, body any, dry bool, sub ...string) string {
	t.Helper()
	data, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	r := c.Client.CoreV1().RESTClient().Verb(verb).AbsPath(append([]string{path}, sub...)...)
	switch verb {
	case "PATCH":
		r = r.SetHeader("Content-Type", string(types.MergePatchType)).Body(data)
	case "POST", "PUT":
		r = r.SetHeader("Content-Type", "application/json").Body(data)
	}
	if dry {
		r = r.Param("dryRun", "All")
	}
	if answer, err := r.DoRaw(t.Context()); err != nil {
		return err.Error() + " " + string(answer)
	}
	return ""
}

func pathOf(crd *apiextensionsv1.CustomResourceDefinition) string {
	of := "/apis/" + crd.Spec.Group + "/" + crd.Spec.Versions[0].Name + "/"
	if crd.Spec.Scope == apiextensionsv1.NamespaceScoped {
		of += "namespaces/" + metav1.NamespaceDefault + "/"
	}
	return of + crd.Spec.Names.Plural
}

func TestWhatNoProgramReadsIsRefusedByField(t *testing.T) {
	c := installed(t)
	for i, g := range gaps(t) {
		name := fmt.Sprintf("gap-%d", i)
		if g.crd.Spec.Names.Kind == "ControllerConfig" {
			name = api.ControllerConfig
		}
		path := pathOf(g.crd)
		whole := g.object(name)
		var said string
		if strings.HasPrefix(g.path, "spec") {
			said = ask(t, c, "POST", path, whole, true)
		} else {
			bare := maps.Clone(whole)
			delete(bare, "status")
			if said := ask(t, c, "POST", path, bare, false); said != "" {
				t.Errorf("%s: making it: %s", g, said)
				continue
			}
			said = ask(t, c, "PATCH", path, map[string]any{"status": whole["status"]}, true, name, "status")
			if said := ask(t, c, "DELETE", path, nil, false, name); said != "" {
				t.Errorf("%s: %s", g, said)
			}
		}
		field, _, _ := strings.Cut(g.path, "[")
		if !strings.Contains(said, "ValidatingAdmissionPolicy 'readable-") || !strings.Contains(said, strings.Split(field, ".")[1]) {
			t.Errorf("%s: it is answered with %q", g, said)
		}
	}
}

// nullables are the fields of a schema that may be null.
func nullables(path string, s *apiextensions.JSONSchemaProps, found func(path string)) {
	if s.Nullable {
		found(path)
	}
	for name := range s.Properties {
		p := s.Properties[name]
		nullables(strings.TrimPrefix(path+"."+name, "."), &p, found)
	}
	if s.Items != nil && s.Items.Schema != nil {
		nullables(path+"[]", s.Items.Schema, found)
	}
}

// shipped are objects of definitions in documents that come with the project.
func shipped(t *testing.T) []map[string]any {
	t.Helper()
	var out []map[string]any
	for _, file := range []string{
		"packaging/kustomize/templates/controllerconfig.yaml", "packaging/kustomize/pools/pools.yaml",
		"docs/examples/gitops/machines/pool-worker.yaml", "docs/examples/gitops/machines/pool-infra.yaml",
		"docs/examples/gitops/machines/kubelet-infra.yaml", "test/demo/rollout/10-pool.yaml",
	} {
		data, err := os.ReadFile(root + "/" + file)
		if err != nil {
			t.Fatal(err)
		}
		found := 0
		for document := range strings.SplitSeq(string(data), "\n---\n") {
			var object map[string]any
			if err := yaml.Unmarshal([]byte(document), &object); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			version, _ := object["apiVersion"].(string)
			kind, _ := object["kind"].(string)
			if intake.Kinds[gvk.FromAPIVersionAndKind(version, kind)] == nil {
				continue
			}
			if kind != "ControllerConfig" {
				object["metadata"].(map[string]any)["name"] = fmt.Sprintf("shipped-%d", len(out))
			}
			out = append(out, object)
			found++
		}
		if found == 0 {
			t.Errorf("%s has no object that is read", file)
		}
	}
	return out
}

// changes are all ways in which an object is written: as a whole, by a patch of what it says of itself, and its status.
func changes(t *testing.T, c *cluster.Cluster, path string, whole map[string]any) error {
	t.Helper()
	name := whole["metadata"].(map[string]any)["name"].(string)
	read := func() map[string]any {
		var object map[string]any
		data, err := c.Client.CoreV1().RESTClient().Get().AbsPath(path, name).DoRaw(t.Context())
		if err == nil {
			err = json.Unmarshal(data, &object)
		}
		if err != nil {
			t.Fatal(err)
		}
		return object
	}
	bare := maps.Clone(whole)
	delete(bare, "status")
	if said := ask(t, c, "POST", path, bare, false); said != "" {
		return fmt.Errorf("making it: %s", said)
	}
	defer ask(t, c, "DELETE", path, nil, false, name)
	label := map[string]any{"metadata": map[string]any{"labels": map[string]any{"a": "b"}}}
	if said := ask(t, c, "PATCH", path, label, false, name); said != "" {
		return fmt.Errorf("labelling it: %s", said)
	}
	object := read()
	object["metadata"].(map[string]any)["annotations"] = map[string]any{"a": "b"}
	if said := ask(t, c, "PUT", path, object, false, name); said != "" {
		return fmt.Errorf("writing it: %s", said)
	}
	if whole["kind"] == "MachineConfig" {
		return nil // it has no status
	}
	object = read()
	if object["status"] = whole["status"]; whole["status"] == nil {
		object["status"] = map[string]any{"observedGeneration": 1}
	}
	if whole["kind"] == "ControllerConfig" && whole["status"] == nil {
		object["status"].(map[string]any)["controllerCertificates"] = []any{map[string]any{
			"bundleFile": "a", "signer": "b", "subject": "c", "notAfter": "2026-01-02T03:04:05Z",
		}}
	}
	if said := ask(t, c, "PUT", path, object, false, name, "status"); said != "" {
		return fmt.Errorf("writing its status: %s", said)
	}
	return nil
}

func TestObjectsThatProgramsReadAreTaken(t *testing.T) {
	c := installed(t)
	for _, object := range shipped(t) {
		at := gvk.FromAPIVersionAndKind(object["apiVersion"].(string), object["kind"].(string))
		path := "/apis/" + at.Group + "/" + at.Version + "/" + strings.ToLower(at.Kind) + "s"
		if err := changes(t, c, path, object); err != nil {
			t.Errorf("%s %v: %v", at.Kind, object["metadata"], err)
		}
	}
	nulls := 0
	for _, d := range definitions(t) {
		nullables("", d.schema, func(path string) {
			g := gap{d.crd, d.schema, path, "null", d.kind}
			name := fmt.Sprintf("null-%d", nulls)
			if d.crd.Spec.Names.Kind == "ControllerConfig" {
				name = api.ControllerConfig
			}
			nulls++
			if err := changes(t, c, pathOf(d.crd), g.object(name)); err != nil {
				t.Errorf("%s: %v", g, err)
			}
		})
	}
	if nulls == 0 {
		t.Error("no field may be null")
	}
}

// before writes objects while no policy of what is readable is in force, as they were written before there were any.
func before(t *testing.T, c *cluster.Cluster, write func()) {
	t.Helper()
	bindings := c.Client.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings()
	pools := "/apis/machineconfiguration.openshift.io/v1/machineconfigpools"
	until := func(refused bool) {
		t.Helper()
		witness := map[string]any{
			"apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfigPool",
			"metadata": map[string]any{"name": "witness"}, "spec": map[string]any{"maxUnavailable": int64(1) << 40},
		}
		for started := time.Now(); (ask(t, c, "POST", pools, witness, true) != "") != refused; time.Sleep(20 * time.Millisecond) {
			if time.Since(started) > time.Minute {
				t.Fatalf("the policies are in force still or not again: want them refuse: %v", refused)
			}
		}
	}
	all, err := bindings.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	lifted := slices.DeleteFunc(all.Items, func(b admissionv1.ValidatingAdmissionPolicyBinding) bool {
		return !strings.HasPrefix(b.Name, "readable-")
	})
	for _, b := range lifted {
		if err := bindings.Delete(t.Context(), b.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	defer func() {
		for _, b := range lifted {
			b.ResourceVersion, b.UID = "", ""
			if _, err := bindings.Create(t.Context(), &b, metav1.CreateOptions{}); err != nil {
				t.Error(err)
			}
		}
		until(true)
	}()
	until(false)
	write()
}

// What can't be read and was there before the policies holds nothing up: neither the labels nor another field of the
// spec or the status. Another value of the kind is refused as ever.
func TestWhatWasThereBeforeHoldsNoChangeUp(t *testing.T) {
	c := installed(t)
	first := map[string]map[string]gap{}
	of := map[string][]gap{}
	for _, g := range gaps(t) {
		kind := g.crd.Spec.Names.Kind
		if first[kind] == nil {
			first[kind] = map[string]gap{}
		}
		if _, known := first[kind][g.path]; !known {
			first[kind][g.path] = g
			of[kind] = append(of[kind], g)
		}
	}
	olds := map[string]map[string]any{}
	before(t, c, func() {
		for kind, gaps := range of {
			name := "old-" + strings.ToLower(kind)
			if kind == "ControllerConfig" {
				name = api.ControllerConfig
			}
			whole, path := withGaps(name, gaps...), pathOf(gaps[0].crd)
			bare := maps.Clone(whole)
			delete(bare, "status")
			if said := ask(t, c, "POST", path, bare, false); said != "" {
				t.Errorf("%s: %s", kind, said)
				continue
			}
			t.Cleanup(func() {
				_ = c.Client.CoreV1().RESTClient().Delete().AbsPath(path, name).Do(context.WithoutCancel(t.Context())).Error()
			})
			if whole["status"] != nil {
				if said := ask(t, c, "PATCH", path, map[string]any{"status": whole["status"]}, false, name, "status"); said != "" {
					t.Errorf("%s: %s", kind, said)
				}
			}
			olds[kind] = whole
		}
	})
	spec := map[string]map[string]any{
		"ControllerConfig": {"clusterDNSIP": "10.0.0.10"}, "MachineConfigPool": {"paused": true},
		"RolloutPolicy": {"pools": []any{"worker", "infra"}}, "KubeletConfig": {"logLevel": 3},
		"ContainerRuntimeConfig": {"containerRuntimeConfig": map[string]any{"logLevel": "info"}},
		"MachineConfigNode":      {"pool": map[string]any{"name": "infra"}},
		"ClusterImagePolicy":     {"scopes": []any{"b.example"}}, "ImagePolicy": {"scopes": []any{"b.example"}},
	}
	for kind, whole := range olds {
		if spec[kind] == nil {
			t.Errorf("%s has nothing of its spec to be changed", kind)
		}
		path, name := pathOf(of[kind][0].crd), whole["metadata"].(map[string]any)["name"].(string)
		for what, said := range map[string]string{
			"label":  ask(t, c, "PATCH", path, map[string]any{"metadata": map[string]any{"labels": map[string]any{"a": "b"}}}, false, name),
			"spec":   ask(t, c, "PATCH", path, map[string]any{"spec": spec[kind]}, false, name),
			"status": ask(t, c, "PATCH", path, map[string]any{"status": map[string]any{"observedGeneration": 7}}, false, name, "status"),
		} {
			if said != "" {
				t.Errorf("%s: changing its %s: %s", kind, what, said)
			}
		}
	}
	pool := pathOf(of["MachineConfigPool"][0].crd)
	worse := map[string]any{"spec": map[string]any{"maxUnavailable": int64(1) << 41}}
	if said := ask(t, c, "PATCH", pool, worse, true, "old-machineconfigpool"); !strings.Contains(said, "maxUnavailable") {
		t.Errorf("another number that is not read: %q", said)
	}
	worse = map[string]any{"status": map[string]any{"certExpirys": []any{
		map[string]any{"bundle": "a", "subject": "b", "expiry": "2026-01-02T03:04:05+98:98"},
	}}}
	if said := ask(t, c, "PATCH", pool, worse, true, "old-machineconfigpool", "status"); !strings.Contains(said, "certExpirys") {
		t.Errorf("another time that is not read: %q", said)
	}
}
