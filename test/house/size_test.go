// SPDX-License-Identifier: Apache-2.0

package house

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What fits into the head of a reader: a package in an afternoon, a function on a screen. Tests are not counted, as a
// table of cases is long and still easy.
const (
	packageLimit  = 6000 // lines of all files but the tests
	functionLimit = 80   // lines, from func to the brace that ends it
)

func TestNoPackageAndNoFunctionIsTooLong(t *testing.T) {
	t.Parallel()
	lengths := map[string]int{}
	var wrong []string
	for _, file := range tree(t) {
		if !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") || inTestdata(file) {
			continue
		}
		files := token.NewFileSet()
		parsed, err := parser.ParseFile(files, filepath.Join(root, file), nil, parser.ParseComments)
		if err != nil {
			t.Fatalf("parsing %s: %v", file, err)
		}
		if ast.IsGenerated(parsed) {
			continue
		}
		lengths[path.Dir(file)] += files.File(parsed.FileStart).LineCount()
		wrong = append(wrong, longFunctions(files, parsed, file, functionLimit)...)
	}
	if len(lengths) == 0 {
		t.Fatal("found no Go file to check")
	}
	for _, offender := range append(wrong, longPackages(lengths, packageLimit)...) {
		t.Error(offender)
	}
}

// longFunctions lists the functions of a file that have more lines than limit.
func longFunctions(files *token.FileSet, parsed *ast.File, file string, limit int) []string {
	var wrong []string
	for _, decl := range parsed.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok {
			continue
		}
		first := files.Position(f.Pos()).Line
		if lines := files.Position(f.End()).Line - first + 1; lines > limit {
			wrong = append(wrong, fmt.Sprintf("%s:%d: %s has %d lines, more than %d", file, first, f.Name.Name, lines, limit))
		}
	}
	return wrong
}

// longPackages lists the packages that have more lines than limit, by their lengths.
func longPackages(lengths map[string]int, limit int) []string {
	var wrong []string
	for dir, lines := range lengths {
		if lines > limit {
			wrong = append(wrong, fmt.Sprintf("%s: the package has %d lines, more than %d", dir, lines, limit))
		}
	}
	slices.Sort(wrong)
	return wrong
}

func TestWhatIsTooLongIsListedWithItsLines(t *testing.T) {
	t.Parallel()
	const text = "package a\n\n// f has a comment, which is not of its lines.\nfunc f() {\n\tg()\n}\n\nfunc g() {}\n\n" +
		"func (t *t) h() {\n\tf()\n\tg()\n}\n\ntype t struct {\n\ta int\n\tb int\n\tc int\n}\n"
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, "a.go", text, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"a/a.go:10: h has 4 lines, more than 3"}
	if diff := cmp.Diff(want, longFunctions(files, parsed, "a/a.go", 3)); diff != "" {
		t.Error(diff)
	}
	want = []string{"a: the package has 12 lines, more than 10", "c: the package has 11 lines, more than 10"}
	if diff := cmp.Diff(want, longPackages(map[string]int{"c": 11, "b": 10, "a": 12}, 10)); diff != "" {
		t.Error(diff)
	}
}
