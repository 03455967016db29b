// SPDX-License-Identifier: Apache-2.0

package schemas

import (
	"bytes"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/invopop/jsonschema"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/bundle"
	"github.com/noderefit/noderefit/checkup"
	"github.com/noderefit/noderefit/controller/pool"
	"github.com/noderefit/noderefit/hands"
	"github.com/noderefit/noderefit/plan"
	"github.com/noderefit/noderefit/refit"
	"github.com/noderefit/noderefit/test/lab"
)

var update = flag.Bool("update", false, "write the schemas that the types give")

// documents are the types of all documents, by kind.
var documents = map[string]reflect.Type{
	"Approval":         reflect.TypeFor[refit.Approved](),
	"Bundle":           reflect.TypeFor[bundle.List](),
	"Check":            reflect.TypeFor[checkup.Document](),
	"Diff":             reflect.TypeFor[refit.Difference](),
	"Explanation":      reflect.TypeFor[refit.Explanation](),
	"HostRebootWanted": reflect.TypeFor[hands.WantedDocument](),
	"HostHooks":        reflect.TypeFor[hands.HooksDocument](),
	"HostPlan":         reflect.TypeFor[hands.PlanDocument](),
	"HostResult":       reflect.TypeFor[hands.ResultDocument](),
	"HostStatus":       reflect.TypeFor[hands.StatusDocument](),
	"HostVerification": reflect.TypeFor[hands.VerificationDocument](),
	"Plan":             reflect.TypeFor[refit.PlanDocument](),
	"Quarantine":       reflect.TypeFor[refit.Quarantines]().Elem(),
	"Status":           reflect.TypeFor[refit.StatusDocument](),
	"Stream":           reflect.TypeFor[refit.Streams]().Elem(),
	"TimelineEntry":    reflect.TypeFor[pool.TimelineEntry](),
	"Versions":         reflect.TypeFor[checkup.Versions](),
}

// module is the path of the project's module.
const module = "github.com/noderefit/noderefit"

func TestTheSchemasAreWhatTheTypesGive(t *testing.T) {
	root, err := lab.Repository()
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(root) // comments are found by the path below the module
	want := map[string]string{}
	for kind, of := range documents {
		want[File(kind)] = generate(t, kind, of)
	}
	files, err := filepath.Glob(filepath.Join(Dir, "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		for _, f := range files {
			if err := os.Remove(f); err != nil {
				t.Fatal(err)
			}
		}
		for name, text := range want {
			if err := os.WriteFile(filepath.Join(Dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		return
	}
	got := map[string]string{}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		got[filepath.Base(f)] = string(text)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("docs/schemas are old: go test ./test/schemas -update\n%s", diff)
	}
}

func TestTheTableOfCommandsHasEverySchema(t *testing.T) {
	t.Parallel()
	root, err := lab.Repository()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, Dir, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for kind := range documents {
		if !bytes.Contains(text, []byte("["+kind+"]("+File(kind)+") |")) {
			t.Errorf("%s/README.md has no row for %s", Dir, kind)
		}
	}
}

// generate returns the schema of a type of documents.
func generate(t *testing.T, kind string, of reflect.Type) string {
	t.Helper()
	types := map[string]reflect.Type{}
	r := &jsonschema.Reflector{
		Anonymous: true, AllowAdditionalProperties: true, ExpandedStruct: true,
		Namer: func(of reflect.Type) string {
			if of.Name() == "" || of.PkgPath() == "" {
				return ""
			}
			if other, has := types[of.Name()]; has && other != of {
				t.Errorf("%s: %s and %s have one name", kind, other, of)
			}
			types[of.Name()] = of
			return ""
		},
	}
	r.ReflectFromType(of) // for the types
	read := map[string]bool{}
	for _, each := range types {
		dir, ours := strings.CutPrefix(each.PkgPath(), module+"/")
		if !ours || read[dir] {
			continue
		}
		read[dir] = true
		if err := r.AddGoComments(module, dir); err != nil {
			t.Fatal(err)
		}
	}
	s := r.ReflectFromType(of)
	s.Title = kind
	refine(t, s, of)
	for _, name := range slices.Sorted(maps.Keys(s.Definitions)) {
		refine(t, s.Definitions[name], types[name])
	}
	for name, value := range map[string]string{"apiVersion": api.DocumentVersion, "kind": kind} {
		p, has := s.Properties.Get(name)
		if !has {
			t.Fatalf("%s has no %s", kind, name)
		}
		p.Const = value
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(s); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// marshals are the types that say themselves what their JSON is, and have a schema that allows it.
var marshals = []reflect.Type{reflect.TypeFor[time.Time](), reflect.TypeFor[plan.Change]()}

// refine adds to the schema of a struct which fields may be null, and makes its descriptions speak of fields.
func refine(t *testing.T, s *jsonschema.Schema, of reflect.Type) {
	t.Helper()
	for of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	if of.Implements(reflect.TypeFor[json.Marshaler]()) && !slices.Contains(marshals, of) {
		t.Errorf("%s: says itself what its JSON is", of)
	}
	s.Description = line(s.Description)
	if of.Kind() != reflect.Struct || s.Properties == nil {
		return
	}
	for _, f := range reflect.VisibleFields(of) {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		p, has := s.Properties.Get(name)
		if !has || f.Anonymous {
			continue
		}
		p.Description = line(p.Description)
		if rest, begins := strings.CutPrefix(p.Description, f.Name+" "); begins {
			p.Description = name + " " + rest
		}
		if f.Type.Kind() == reflect.Pointer && options == "" {
			value := *p
			value.Description = ""
			s.Properties.Set(name, &jsonschema.Schema{
				Description: p.Description, OneOf: []*jsonschema.Schema{&value, {Type: "null"}},
			})
		}
	}
}

// line returns a text on one line.
func line(text string) string { return strings.Join(strings.Fields(text), " ") }

func TestADocumentThatIsNotAsItsSchemaSaysIsFound(t *testing.T) {
	t.Parallel()
	const good = `{"apiVersion":"cli.noderefit.dev/v1","kind":"HostHooks","hooks":[]}`
	for name, c := range map[string]struct{ output, says string }{
		"as it should be": {good, ""},
		"a list":          {"[" + good + "," + good + "]", ""},
		"an empty list":   {"[]", ""},
		"no JSON":         {"error", "reading the output as JSON"},
		"two documents":   {good + good, "reading the output as JSON"},
		"no version":      {`{"kind":"HostHooks","hooks":[]}`, "apiVersion <nil>"},
		"no kind":         {`{"apiVersion":"cli.noderefit.dev/v1","hooks":[]}`, `kind ""`},
		"no such kind":    {`{"apiVersion":"cli.noderefit.dev/v1","kind":"Other"}`, "the schema of Other"},
		"a missing field": {`{"apiVersion":"cli.noderefit.dev/v1","kind":"HostHooks"}`, "missing property 'hooks'"},
		"no list but null": {
			`{"apiVersion":"cli.noderefit.dev/v1","kind":"HostHooks","hooks":null}`, "got null, want array",
		},
		"a field too many": {
			`{"apiVersion":"cli.noderefit.dev/v1","kind":"HostHooks","hooks":[],"more":1}`, "'more' not allowed",
		},
		"a field too many further in": {
			`{"apiVersion":"cli.noderefit.dev/v1","kind":"HostHooks","hooks":[{"when":"a","path":"b","limit":"c","more":1}]}`,
			"'more' not allowed",
		},
	} {
		err := Check([]byte(c.output))
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, should say %q", name, err, c.says)
		}
	}
}
