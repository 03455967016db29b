// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bytes"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/transaction"
)

var writeDocs = flag.Bool("update", false, "write the tables of steps into docs/architecture.md")

const page = "../docs/architecture.md"

// People read the page to understand an update: its tables are these.
func TestTheStepsOfAnUpdateAreThoseOfTheDocs(t *testing.T) {
	var want strings.Builder
	for _, part := range stepTables {
		want.WriteString("| " + part.title + " | does | when | roads | undone by | fault points |\n|---|---|---|---|---|---|\n")
		for _, s := range part.table {
			points := ""
			if len(s.points) > 0 {
				points = "`" + strings.Join(s.points, "`, `") + "`"
			}
			want.WriteString("| " + strings.Join(append(s.cells(), points), " | ") + " |\n")
		}
		want.WriteString("\n")
	}
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- steps: go test ./host -run Steps -update -->\n", "<!-- end of steps -->"
	before, rest, ok := strings.Cut(string(data), begin)
	got, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the steps", page)
	}
	if got == want.String() {
		return
	}
	if *writeDocs {
		if err := os.WriteFile(page, []byte(before+begin+want.String()+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Errorf("%s is not as the tables are; go test ./host -run Steps -update writes them:\n%s", page, want.String())
}

// A reader of the table knows where an update can be interrupted.
func TestEveryFaultPointLiesInAStep(t *testing.T) {
	known := map[string]bool{"mend prepared": true, "mend decided": true, "mend applying": true} // points of the verb repair
	for _, part := range stepTables {
		for _, s := range part.table {
			for _, p := range s.points {
				known[strings.TrimRight(p, "PATHSERVIC")] = true
			}
		}
	}
	call := regexp.MustCompile(`fault\("([^"]+)"`)
	sources, err := filepath.Glob("../transaction/*.go")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, name := range sources {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range call.FindAllStringSubmatch(string(text), -1) {
			found[m[1]] = true
		}
	}
	if len(found) < 30 {
		t.Fatalf("only %d fault points found", len(found))
	}
	for _, p := range slices.Sorted(maps.Keys(found)) {
		if !known[p] {
			t.Errorf("fault point %q lies in no step", p)
		}
	}
}

func TestStepsArePrinted(t *testing.T) {
	var out bytes.Buffer
	if err := WriteSteps(&out); err != nil {
		t.Fatal(err)
	}
	for _, part := range stepTables {
		names := map[string]bool{}
		for _, s := range part.table {
			if !strings.Contains(out.String(), "\n"+s.name+" ") || s.does == "" || names[s.name] {
				t.Errorf("%q is missing, says nothing, or is there twice in\n%s", s.name, &out)
			}
			if (s.applies == nil) != (s.when == "") {
				t.Errorf("%q has a condition without words, or words without a condition", s.name)
			}
			names[s.name] = true
		}
	}
}

// A table with a refusal after the first write would leave files behind.
func TestAllThatRefusesComesBeforeTheFirstWrite(t *testing.T) {
	first := slices.IndexFunc(steps, func(s step) bool { return s.name == "stage" })
	for i, s := range steps {
		if strings.HasPrefix(s.does, "refuse") && i > first {
			t.Errorf("%q refuses after %q", s.name, steps[first].name)
		}
		if s.stages && i > first {
			t.Errorf("the verb stage takes step %q", s.name)
		}
	}
}

// Alerts for people depend on the record of a failed step.
func TestTheRecordSaysOfAFailedStepWhatItDidBefore(t *testing.T) {
	want := map[failing]string{
		failsSilently: "recover, refuse another update, refuse content, stay, check, hooks, keep hooks, " +
			"clear the force file, release the OS",
		failsBefore: "contents, read, compile, plan, refuse unreachable, other managers, choose the road, inhibitors, return, " +
			"compose, kernel arguments, judge, system extensions, space",
		failsAfter: "own units, baseline, stage, materialise, commit, take effect, reboot",
	}
	got := map[failing][]string{}
	for _, s := range steps {
		got[s.fails] = append(got[s.fails], s.name)
	}
	for fails, names := range want {
		if text := strings.Join(got[fails], ", "); text != names {
			t.Errorf("%d: %s, want %s", fails, text, names)
		}
	}
}

// A step on a road that no update is on would never be taken.
func TestEveryRoadOfAStepIsARoad(t *testing.T) {
	all := []transaction.Road{transaction.RoadSwitch, transaction.RoadStaged, transaction.RoadInPlace, transaction.RoadLive,
		transaction.RoadTree}
	for _, part := range stepTables {
		for _, s := range part.table {
			for _, r := range s.roads {
				if !slices.Contains(all, r) {
					t.Errorf("%q is on the road %q", s.name, r)
				}
			}
		}
	}
}
