// SPDX-License-Identifier: Apache-2.0

package house

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/build"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestWhatNoOtherPackageUsesIsNotExported(t *testing.T) {
	t.Parallel()
	house := &universe{module: module, dir: root}
	house.load(t, tree(t))
	if len(house.packages) == 0 {
		t.Fatal("found no package to check")
	}
	product := func(dir string) bool { return dir != "test" && !strings.HasPrefix(dir, "test/") }
	for _, offender := range house.unused(product) {
		t.Error(offender)
	}
}

func TestOnlyWhatNoOtherPackageUsesIsListed(t *testing.T) {
	t.Parallel()
	sources := map[string]string{
		"go.mod": "module example.org/m\n",
		"a/a.go": `package a

import "io"

// Used, and Spoken as people get one of it.
func Used() Spoken { return Spoken{} }

type Spoken struct{}

func (Spoken) Called() {}
func (Spoken) Idle()   {}

// Error makes it an error, Read an io.Reader.
func (Spoken) Error() string            { return "" }
func (Spoken) Read([]byte) (int, error) { return 0, io.EOF }

type (
	Kind   int
	Unused struct{}
)

const (
	One Kind = iota
	Two
)

const Lonely = 1

func Tested() { OnlyHere() }
func OnlyHere() {}
`,
		"a/a_test.go": "package a\n\nfunc init() { OnlyHere(); _ = Lonely }\n",
		"b/b.go":      "package b\n\nimport \"example.org/m/a\"\n\nfunc init() { a.Used().Called(); _ = a.One }\n",
		"c/c_test.go": "package c\n\nimport \"example.org/m/a\"\n\nfunc init() { a.Tested() }\n",
		"test/t.go":   "package test\n\nfunc Unused() {}\n",
	}
	u := &universe{module: "example.org/m", dir: t.TempDir()}
	for file, text := range sources {
		at := filepath.Join(u.dir, file)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	u.load(t, sortedKeys(sources))
	var got []string
	for _, line := range u.unused(func(dir string) bool { return dir != "test" }) {
		_, line, _ = strings.Cut(line, ": ")
		got = append(got, strings.TrimSuffix(line, " is exported, and no other package uses it"))
	}
	if diff := cmp.Diff([]string{"Lonely", "OnlyHere", "Spoken.Idle", "Unused"}, got); diff != "" {
		t.Error(diff)
	}
}

// universe is the packages of a module, with the types of all that they say. Where a package of the module imports
// another one, both mean the same object.
type universe struct {
	module, dir string
	files       *token.FileSet
	packages    map[string]*types.Package // by import path
	sources     map[string]*sources
	generated   map[string]bool // files
	libraries   types.Importer
	used        map[types.Object]bool
	usedNames   map[string]bool // by files that are no part of this build, or no Go: there names are all there is to see
	interfaces  map[*types.Interface]bool
}

// sources are the files of one directory: those of the package, those of its tests, and those of tests beside it.
type sources struct{ package_, inside, beside []*ast.File }

// load reads and checks all packages of these files.
func (u *universe) load(t *testing.T, all []string) {
	t.Helper()
	u.files, u.packages, u.sources = token.NewFileSet(), map[string]*types.Package{}, map[string]*sources{}
	u.generated, u.used, u.usedNames = map[string]bool{}, map[types.Object]bool{}, map[string]bool{}
	u.interfaces = map[*types.Interface]bool{}
	var others []string // modules in folders of this one
	for _, file := range all {
		if dir, name := path.Split(file); name == "go.mod" && dir != "" {
			others = append(others, dir)
		}
	}
	for _, file := range all {
		switch {
		case inTestdata(file):
		case strings.HasSuffix(file, ".go"):
			u.parse(t, file, slices.ContainsFunc(others, func(dir string) bool { return strings.HasPrefix(file, dir) }))
		case strings.HasSuffix(file, ".html"), strings.HasSuffix(file, ".tmpl"):
			u.readTemplate(t, file)
		}
	}
	u.libraries = u.exportData(t)
	for _, at := range sortedKeys(u.sources) {
		if _, err := u.Import(at); err != nil {
			t.Fatal(err)
		}
	}
	for at, s := range u.sources {
		// Tests may mean what only other tests of theirs declare, and are not what is judged here: errors are left out.
		u.check(at, slices.Concat(s.package_, s.inside), func(error) {})
		u.check(at+"_test", s.beside, func(error) {})
	}
	u.useInterfaces()
}

// parse reads a file. Where it is no part of this build, or of another module, its names are all that is looked at.
func (u *universe) parse(t *testing.T, file string, other bool) {
	t.Helper()
	parsed, err := parser.ParseFile(u.files, filepath.Join(u.dir, file), nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatalf("parsing %s: %v", file, err)
	}
	dir, name := path.Split(file)
	matches, err := build.Default.MatchFile(filepath.Join(u.dir, dir), name)
	if err != nil {
		t.Fatal(err)
	}
	if !matches || other {
		ast.Inspect(parsed, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				u.usedNames[s.Sel.Name] = true
			}
			return true
		})
		return
	}
	u.generated[file] = ast.IsGenerated(parsed)
	at := path.Join(u.module, dir)
	s := u.sources[at]
	if s == nil {
		s = &sources{}
		u.sources[at] = s
	}
	switch {
	case !strings.HasSuffix(file, "_test.go"):
		s.package_ = append(s.package_, parsed)
	case strings.HasSuffix(parsed.Name.Name, "_test"):
		s.beside = append(s.beside, parsed)
	default:
		s.inside = append(s.inside, parsed)
	}
}

var field = regexp.MustCompile(`\.([A-Z]\w*)`)

func (u *universe) readTemplate(t *testing.T, file string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(u.dir, file))
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range field.FindAllStringSubmatch(string(text), -1) {
		u.usedNames[found[1]] = true
	}
}

// exportData imports what is outside the module, from what the compiler has written of it.
func (u *universe) exportData(t *testing.T) types.Importer {
	t.Helper()
	outside := map[string]bool{}
	for _, s := range u.sources {
		for _, f := range slices.Concat(s.package_, s.inside, s.beside) {
			for _, spec := range f.Imports {
				at := strings.Trim(spec.Path.Value, "\"")
				if at != u.module && !strings.HasPrefix(at, u.module+"/") && at != "C" && at != "unsafe" {
					outside[at] = true
				}
			}
		}
	}
	list := exec.CommandContext(t.Context(), "go", append([]string{"list", "-export", "-json=ImportPath,Export"},
		sortedKeys(outside)...)...)
	list.Dir = u.dir
	var stderr bytes.Buffer
	list.Stderr = &stderr
	out, err := list.Output()
	if err != nil {
		t.Fatalf("listing the packages of libraries: %v\n%s", err, &stderr)
	}
	export := map[string]string{}
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var pkg struct {
			ImportPath string `json:"ImportPath"` //nolint:tagliatelle // the go command's own spelling
			Export     string `json:"Export"`     //nolint:tagliatelle // likewise
		}
		if err := decoder.Decode(&pkg); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("reading the list of packages: %v", err)
		}
		export[pkg.ImportPath] = pkg.Export
	}
	return importer.ForCompiler(u.files, "gc", func(at string) (io.ReadCloser, error) { return os.Open(export[at]) })
}

// Import makes it a types.Importer.
func (u *universe) Import(at string) (*types.Package, error) {
	if p := u.packages[at]; p != nil {
		return p, nil
	}
	s := u.sources[at]
	if s == nil {
		return u.libraries.Import(at)
	}
	var wrong []error
	p := u.check(at, s.package_, func(err error) { wrong = append(wrong, err) })
	u.packages[at] = p
	return p, errors.Join(wrong...)
}

// check has the types of one package found out, and notes what it uses of others.
func (u *universe) check(at string, files []*ast.File, wrong func(error)) *types.Package {
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}, Types: map[ast.Expr]types.TypeAndValue{}}
	// What is wrong with a test of another package's insides is said by the compiler; here the rest counts.
	p, _ := (&types.Config{Importer: u, Error: wrong}).Check(at, u.files, files, info)
	for _, o := range info.Uses {
		if o.Pkg() == nil || o.Pkg() == p || o.Pkg().Path() == at {
			continue
		}
		switch o := o.(type) {
		case *types.Func:
			u.used[o.Origin()] = true
		case *types.Var:
			u.used[o.Origin()] = true
		default:
			u.used[o] = true
		}
	}
	for _, tv := range info.Types {
		if i, ok := tv.Type.Underlying().(*types.Interface); ok && tv.IsType() {
			u.interfaces[i] = true
		}
	}
	return p
}

// unused lists the exported names of packages at the top level, and exported methods, that no other package uses.
func (u *universe) unused(in func(dir string) bool) []string {
	var out []string
	for _, at := range sortedKeys(u.packages) {
		p := u.packages[at]
		if dir := strings.TrimPrefix(strings.TrimPrefix(at, u.module), "/"); p.Name() == "main" || !in(dir) {
			continue
		}
		spoken := spoken(p)
		for _, name := range p.Scope().Names() {
			o := p.Scope().Lookup(name)
			if o.Exported() && !u.used[o] && !spoken[o] && !u.exempt(o) {
				out = append(out, u.say(o, name))
			}
			named, ok := o.Type().(*types.Named)
			if _, isType := o.(*types.TypeName); !isType || !ok {
				continue
			}
			for m := range named.Methods() {
				if m.Exported() && !u.used[m] && !shadows(named, m) && !u.exempt(m) {
					out = append(out, u.say(m, name+"."+m.Name()))
				}
			}
		}
	}
	return out
}

func (u *universe) say(o types.Object, name string) string {
	at := u.files.Position(o.Pos())
	file, _ := filepath.Rel(u.dir, at.Filename)
	return fmt.Sprintf("%s:%d: %s is exported, and no other package uses it", file, at.Line, name)
}

// exempt reports whether a name is left as it is: what a generator writes, types of package api, which other people's
// programs use too, members of an enumeration, what templates use, and methods that libraries ask for by interfaces that
// no import leads to.
func (u *universe) exempt(o types.Object) bool {
	file, _ := filepath.Rel(u.dir, u.files.Position(o.Pos()).Filename)
	if u.generated[file] || u.usedNames[o.Name()] {
		return true
	}
	switch o := o.(type) {
	case *types.TypeName:
		return o.Pkg().Name() == "api"
	case *types.Const:
		named, ok := o.Type().(*types.Named)
		return ok && named.Obj().Pkg() == o.Pkg()
	case *types.Func:
		return o.Signature().Recv() != nil && slices.Contains([]string{"Unwrap", "Is", "As", "WrappedRoundTripper"}, o.Name())
	}
	return false
}

// useInterfaces notes the methods by which a type of the module is what an interface asks for, its own ones and those of
// what it embeds. The interface is one that is written in the module, or one of a library that it depends on.
func (u *universe) useInterfaces() {
	all := maps.Clone(u.interfaces)
	seen := map[*types.Package]bool{}
	var visit func(p *types.Package)
	visit = func(p *types.Package) {
		if seen[p] {
			return
		}
		seen[p] = true
		for _, name := range p.Scope().Names() {
			if o, ok := p.Scope().Lookup(name).(*types.TypeName); ok {
				if i, ok := o.Type().Underlying().(*types.Interface); ok {
					all[i] = true
				}
			}
		}
		for _, imported := range p.Imports() {
			visit(imported)
		}
	}
	for _, p := range u.packages {
		visit(p)
	}
	for _, p := range u.packages {
		for _, name := range p.Scope().Names() {
			if o, ok := p.Scope().Lookup(name).(*types.TypeName); ok && !types.IsInterface(o.Type()) {
				u.useMethods(types.NewMethodSet(types.NewPointer(o.Type())), all)
			}
		}
	}
}

// useMethods compares by names alone, so that it holds for interfaces with type parameters too.
func (u *universe) useMethods(methods *types.MethodSet, interfaces map[*types.Interface]bool) {
	own := map[string]*types.Func{}
	for m := range methods.Methods() {
		if f, ok := m.Obj().(*types.Func); ok {
			own[f.Name()] = f.Origin()
		}
	}
	for i := range interfaces {
		found := make([]*types.Func, 0, i.NumMethods())
		for m := range i.Methods() {
			if f := own[m.Name()]; f != nil {
				found = append(found, f)
			}
		}
		if len(found) == i.NumMethods() {
			for _, f := range found {
				u.used[f] = true
			}
		}
	}
}

// shadows reports whether a method takes the place of one that its type would have of what it embeds.
func shadows(t *types.Named, m *types.Func) bool {
	s, ok := t.Underlying().(*types.Struct)
	if !ok {
		return false
	}
	for f := range s.Fields() {
		if o, _, _ := types.LookupFieldOrMethod(f.Type(), true, m.Pkg(), m.Name()); f.Embedded() && o != nil {
			return true
		}
	}
	return false
}

// spoken are the types of a package that those meet who use it: in the signatures of what it exports, and in fields.
func spoken(p *types.Package) map[types.Object]bool {
	found := map[types.Object]bool{}
	seen := map[types.Type]bool{}
	var visit func(t types.Type)
	visit = func(t types.Type) {
		if seen[t] {
			return
		}
		seen[t] = true
		switch t := t.(type) {
		case *types.Alias:
			found[t.Obj()] = true
			visit(types.Unalias(t))
		case *types.Named:
			if t.Obj().Pkg() == p {
				found[t.Obj()] = true
			}
			for a := range t.TypeArgs().Types() {
				visit(a)
			}
		case *types.Pointer:
			visit(t.Elem())
		case *types.Slice:
			visit(t.Elem())
		case *types.Array:
			visit(t.Elem())
		case *types.Chan:
			visit(t.Elem())
		case *types.Map:
			visit(t.Key())
			visit(t.Elem())
		case *types.Signature:
			visit(t.Params())
			visit(t.Results())
		case *types.Tuple:
			for v := range t.Variables() {
				visit(v.Type())
			}
		case *types.Struct:
			for f := range t.Fields() {
				if f.Exported() {
					visit(f.Type())
				}
			}
		case *types.Interface:
			for m := range t.Methods() {
				visit(m.Type())
			}
		}
	}
	for _, name := range p.Scope().Names() {
		o := p.Scope().Lookup(name)
		if !o.Exported() {
			continue
		}
		named, ok := o.Type().(*types.Named)
		if _, isType := o.(*types.TypeName); !isType || !ok {
			visit(o.Type())
			continue
		}
		visit(named.Underlying())
		for m := range named.Methods() {
			if m.Exported() {
				visit(m.Signature())
			}
		}
	}
	return found
}
