// SPDX-License-Identifier: Apache-2.0

package packaging

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/runtime"
	gvk "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/intake"
)

// witnesses are values of every kind that JSON has, at and beyond the edges of what Go's types hold.
var witnesses = []string{
	`1`, `-1`, `0`, `2147483648`, `-2147483649`, `1099511627776`, `4294967296`, `9223372036854775807`,
	`9223372036854775808`, `-9223372036854775809`, `1e30`, `1e400`, `1.0`, `1.5`, `1e3`,
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

// gaps are all of them, of all kinds that our programs read.
func gaps(t *testing.T) []gap {
	t.Helper()
	files, err := api.CRDs.ReadDir("crds")
	if err != nil {
		t.Fatal(err)
	}
	var out []gap
	read := map[string]bool{}
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
			read[crd.Spec.Names.Kind] = true
			s := &apiextensions.JSONSchemaProps{}
			err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(v.Schema.OpenAPIV3Schema, s, nil)
			if err != nil {
				t.Fatal(err)
			}
			of := reflect.TypeOf(kind)
			walk("", s, of, func(path, witness string) { out = append(out, gap{crd, s, path, witness, of}) })
		}
	}
	if len(read) != len(intake.Kinds) {
		t.Errorf("of %d kinds that are read, %d have a definition", len(intake.Kinds), len(read))
	}
	return out
}

// object is one that has a gap, and besides it what its definition requires.
func (g gap) object(name string) map[string]any {
	out := sample(g.schema).(map[string]any)
	out["apiVersion"], out["kind"] = g.crd.Spec.Group+"/"+g.crd.Spec.Versions[0].Name, g.crd.Spec.Names.Kind
	out["metadata"] = map[string]any{"name": name}
	// What rules ask for, and not the types.
	switch spec := out["spec"].(map[string]any); g.crd.Spec.Names.Kind {
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
	}
	var value any
	if err := kjson.UnmarshalCaseSensitivePreserveInts([]byte(g.witness), &value); err != nil {
		panic(err)
	}
	put(out, g.schema, strings.Split(g.path, "."), value)
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

func TestWhatNoProgramReadsIsRefusedByField(t *testing.T) {
	c := installed(t)
	ask := func(verb, path string, body any, dry bool, sub ...string) string {
		data, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		r := c.Client.CoreV1().RESTClient().Verb(verb).AbsPath(append([]string{path}, sub...)...).
			SetHeader("Content-Type", map[string]string{"PATCH": string(types.MergePatchType)}[verb])
		if verb != "DELETE" {
			r = r.Body(data)
		}
		if verb == "POST" {
			r = r.SetHeader("Content-Type", "application/json")
		}
		if dry {
			r = r.Param("dryRun", "All")
		}
		if answer, err := r.DoRaw(t.Context()); err != nil {
			return err.Error() + " " + string(answer)
		}
		return ""
	}
	for i, g := range gaps(t) {
		name := fmt.Sprintf("gap-%d", i)
		if g.crd.Spec.Names.Kind == "ControllerConfig" {
			name = api.ControllerConfig
		}
		path := "/apis/" + g.crd.Spec.Group + "/" + g.crd.Spec.Versions[0].Name + "/" + g.crd.Spec.Names.Plural
		whole := g.object(name)
		var said string
		if strings.HasPrefix(g.path, "spec") {
			said = ask("POST", path, whole, true)
		} else {
			bare := maps.Clone(whole)
			delete(bare, "status")
			if said := ask("POST", path, bare, false); said != "" {
				t.Errorf("%s: making it: %s", g, said)
				continue
			}
			said = ask("PATCH", path, map[string]any{"status": whole["status"]}, true, name, "status")
			if said := ask("DELETE", path, nil, false, name); said != "" {
				t.Errorf("%s: %s", g, said)
			}
		}
		field, _, _ := strings.Cut(g.path, "[")
		if !strings.Contains(said, "ValidatingAdmissionPolicy 'readable-") || !strings.Contains(said, strings.Split(field, ".")[1]) {
			t.Errorf("%s: it is answered with %q", g, said)
		}
	}
}
