// SPDX-License-Identifier: Apache-2.0

package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A pattern that fits no test would make the short run shorter without a word.
func TestEachPatternOfTheSampleFitsATest(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(root, "test/sample.txt"))
	if err != nil {
		t.Fatal(err)
	}
	lines := 0
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		lines++
		if len(fields) != 2 {
			t.Errorf("%q is not a suite and a pattern", line)
			continue
		}
		names := testsOf(t, filepath.Join(root, "test", fields[0]))
		top, _, _ := strings.Cut(fields[1], "/")
		for one := range strings.SplitSeq(strings.Trim(top, "^()$"), "|") {
			pattern, err := regexp.Compile("^(?:" + one + ")")
			if err != nil {
				t.Errorf("%s: %v", line, err)
				continue
			}
			fits := false
			for _, name := range names {
				fits = fits || pattern.MatchString(name) && (one == "." || name == one)
			}
			if !fits {
				t.Errorf("test/%s has no test %s", fields[0], one)
			}
		}
	}
	if lines == 0 {
		t.Error("there is no sample")
	}
}

// testsOf lists the tests of a folder by name.
func testsOf(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, name := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range parsed.Decls {
			if f, is := decl.(*ast.FuncDecl); is && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") {
				names = append(names, f.Name.Name)
			}
		}
	}
	return names
}
