// SPDX-License-Identifier: Apache-2.0

package house

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

const clientGo = "client-go"

// Folder names that say nothing about what lives in them.
var vague = []string{"util", "utils", "common", "pkg", "internal"}

// row is what one top-level folder may import.
type row struct {
	noGo       bool
	everything bool
	folders    []string // client-go among them where the row grants it
}

// table is the house: every top-level folder by name.
type table map[string]row

// parseTable reads the one table of a Markdown page whose header starts with "folder" and ends with "may import".
func parseTable(page string) (table, error) {
	t := table{}
	var above []string // what "all of the above" stands for at this row
	inside := false
	for number, line := range strings.Split(page, "\n") {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		switch {
		case !strings.HasPrefix(line, "|"):
			inside = false
		case cells[0] == "folder" && cells[len(cells)-1] == "may import":
			if len(t) > 0 {
				return nil, fmt.Errorf("line %d: a second table of folders", number+1)
			}
			inside = true
		case inside && strings.HasPrefix(cells[0], "---"):
		case inside:
			name, ok := folderName(cells[0])
			if !ok {
				return nil, fmt.Errorf("line %d: %q is no folder such as `files/`", number+1, cells[0])
			}
			if _, twice := t[name]; twice {
				return nil, fmt.Errorf("line %d: %s has two rows", number+1, name)
			}
			r, err := parseGrant(cells[len(cells)-1], above)
			if err != nil {
				return nil, fmt.Errorf("line %d: %s: %w", number+1, name, err)
			}
			t[name] = r
			above = append(append(above, name), r.folders...)
		}
	}
	if len(t) == 0 {
		return nil, fmt.Errorf("no table with the columns folder and may import")
	}
	for name, r := range t {
		for _, f := range r.folders {
			if _, ok := t[f]; !ok && f != clientGo {
				return nil, fmt.Errorf("%s: may import %s, which has no row", name, f)
			}
		}
	}
	return t, nil
}

func folderName(cell string) (string, bool) {
	name, ok := strings.CutPrefix(cell, "`")
	if !ok {
		return "", false
	}
	name, ok = strings.CutSuffix(name, "/`")
	return name, ok && name != "" && !strings.ContainsAny(name, "/`")
}

func parseGrant(cell string, above []string) (row, error) {
	switch cell {
	case "libraries only":
		return row{}, nil
	case "everything":
		return row{everything: true}, nil
	case "no Go code":
		return row{noGo: true}, nil
	case "all of the above":
		return row{folders: slices.Clone(above)}, nil
	}
	var r row
	for f := range strings.SplitSeq(cell, ",") {
		name := strings.Trim(strings.TrimSpace(f), "`")
		if name == "" || "`"+name+"`" != strings.TrimSpace(f) {
			return row{}, fmt.Errorf("%q grants neither folders nor one of the fixed phrases", cell)
		}
		r.folders = append(r.folders, name)
	}
	return r, nil
}

// source is a Go file: its path below the root of the project, and what it imports.
type source struct {
	file    string
	imports []string
}

// checkFolders says which paths (of files, below the root) stand in a folder that the house does not have. What a
// testdata folder holds is somebody else's tree, and may be called anything.
func checkFolders(t table, files []string) []string {
	found := map[string]bool{}
	for _, f := range files {
		dirs := strings.Split(path.Dir(f), "/")
		if dirs[0] != "." && !strings.HasPrefix(dirs[0], ".") {
			if _, ok := t[dirs[0]]; !ok {
				found[fmt.Sprintf("%s/: has no row in the table", dirs[0])] = true
			}
		}
		for i, d := range dirs {
			if d == "testdata" {
				break
			}
			if slices.Contains(vague, d) {
				found[fmt.Sprintf("%s/: is called %s, which says nothing", strings.Join(dirs[:i+1], "/"), d)] = true
			}
		}
	}
	return sorted(found)
}

// checkImports says which imports the table does not grant. module is the project's own import path.
func checkImports(t table, module string, sources []source) []string {
	found := map[string]bool{}
	for _, s := range sources {
		folder, _, below := strings.Cut(s.file, "/")
		r, ok := t[folder]
		switch {
		case !below:
			found[fmt.Sprintf("%s: Go code at the root of the project", s.file)] = true
			continue
		case !ok || r.noGo:
			found[fmt.Sprintf("%s: %s/ may hold no Go code", s.file, folder)] = true
			continue
		}
		for _, imported := range s.imports {
			to, ok := target(module, imported)
			if ok && to != folder && !r.everything && !slices.Contains(r.folders, to) {
				found[fmt.Sprintf("%s: %s/ may not import %s (%s)", s.file, folder, to, imported)] = true
			}
		}
	}
	return sorted(found)
}

// checkReach says which packages reach client-go although their folder may not. deps is, for each package of the
// project by import path, all that it depends on.
func checkReach(t table, module string, deps map[string][]string) []string {
	found := map[string]bool{}
	for pkg, all := range deps {
		folder, ok := target(module, pkg)
		if r := t[folder]; !ok || r.everything || slices.Contains(r.folders, clientGo) {
			continue
		}
		for _, dep := range all {
			if to, _ := target(module, dep); to == clientGo {
				found[fmt.Sprintf("%s: depends on client-go, which %s/ may not", pkg, folder)] = true
			}
		}
	}
	return sorted(found)
}

// target is what the table calls an import: a folder of the project or client-go, and false for any other library.
func target(module, imported string) (string, bool) {
	if below, ok := strings.CutPrefix(imported, module+"/"); ok {
		folder, _, _ := strings.Cut(below, "/")
		return folder, true
	}
	if imported == "k8s.io/client-go" || strings.HasPrefix(imported, "k8s.io/client-go/") {
		return clientGo, true
	}
	return "", false
}

// licensed reports whether a source file names the licence where tools look for it: on the first line, after a
// script's #! line and a build constraint.
func licensed(text string) bool {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "#!"), strings.HasPrefix(line, "//go:build "), line == "":
		default:
			return line == "// SPDX-License-Identifier: Apache-2.0" || line == "# SPDX-License-Identifier: Apache-2.0"
		}
	}
	return false
}

func sorted(set map[string]bool) []string {
	var all []string
	for s := range set {
		all = append(all, s)
	}
	slices.Sort(all)
	return all
}
