// SPDX-License-Identifier: Apache-2.0

package house

import (
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"
)

// traces is the page that names a test for each thing that people know from the machine-config-operator.
const traces = "test/where-it-is.md"

// pages are the Markdown pages of the tree, by their paths.
func pages(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, file := range tree(t) {
		if filepath.Ext(file) != ".md" || inTestdata(file) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		out[file] = string(text)
	}
	if len(out) == 0 {
		t.Fatal("found no page to check")
	}
	return out
}

func TestLinksOfThePagesLeadSomewhere(t *testing.T) {
	all := pages(t)
	exists := func(file string) bool {
		_, err := os.Stat(filepath.Join(root, file))
		return err == nil
	}
	for _, wrong := range checkLinks(all, exists) {
		t.Error(wrong)
	}
}

func TestTestsThatThePagesNameAreThere(t *testing.T) {
	functions := map[string]bool{} // "folder TestName"
	declared := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	for _, file := range tree(t) {
		if !strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range declared.FindAllStringSubmatch(string(text), -1) {
			functions[filepath.ToSlash(filepath.Dir(file))+" "+match[1]] = true
		}
	}
	all := pages(t)
	if named := checkTests(map[string]string{traces: all[traces]}, map[string]bool{}); len(named) == 0 {
		t.Fatalf("%s names no test: nothing was checked", traces)
	}
	for _, wrong := range checkTests(all, functions) {
		t.Error(wrong)
	}
}

// kured has the flags of kured's command.
var kured = strings.Fields(`
	--alert-filter-match-only --alert-filter-regexp --alert-firing-only --annotate-nodes --blocking-pod-selector
	--concurrency --drain-delay --drain-grace-period --drain-pod-selector --drain-timeout --ds-name --ds-namespace
	--end-time --force-reboot --lock-annotation --lock-release-delay --lock-ttl --log-format --message-template-drain
	--message-template-reboot --message-template-uncordon --metrics-host --metrics-port --node-id --notify-url --period
	--post-reboot-node-labels --pre-reboot-node-labels --prefer-no-schedule-taint --prometheus-url --reboot-command
	--reboot-days --reboot-delay --reboot-method --reboot-sentinel --reboot-sentinel-command --reboot-signal
	--skip-wait-for-delete-timeout --slack-channel --slack-hook-url --slack-username --start-time --time-zone`)

// The page for people who come from kured has each of its flags, and another page has the test of each.
func TestEveryFlagOfKuredHasItsPlaceAndItsTest(t *testing.T) {
	const page = "docs/coming-from-kured.md"
	all := pages(t)
	for _, wrong := range checkFlags(kured, all[page], false) {
		t.Errorf("%s: %s", page, wrong)
	}
	for _, wrong := range checkFlags(kured, all[traces], true) {
		t.Errorf("%s: %s", traces, wrong)
	}
}

// zincati has the settings of zincati's TOML, and the values of those that choose between ways.
var zincati = []string{
	"agent.timing.steady_interval_secs", "cincinnati.base_url", "identity.group", "identity.node_uuid",
	"identity.rollout_wariness", "updates.allow_downgrade", "updates.enabled", "updates.fleet_lock.base_url",
	"updates.periodic.time_zone", "updates.periodic.window", "days", "start_time", "length_minutes",
	`updates.strategy = "immediate"`, `updates.strategy = "periodic"`, `updates.strategy = "fleet_lock"`,
	`updates.strategy = "marker_file"`,
}

// The page for people who come from zincati has each of its settings, and another page has the test of each.
func TestEverySettingOfZincatiHasItsPlaceAndItsTest(t *testing.T) {
	const page = "docs/coming-from-zincati.md"
	all := pages(t)
	for _, wrong := range checkFlags(zincati, all[page], false) {
		t.Errorf("%s: %s", page, wrong)
	}
	for _, wrong := range checkFlags(zincati, all[traces], true) {
		t.Errorf("%s: %s", traces, wrong)
	}
}

func TestAFlagWithoutItsRowIsFound(t *testing.T) {
	page := "`--c` is gone.\n| `--a`, `--b` | here | `x TestX` |\n| there | `--c` | `x TestX` |\n| `--d` | none | |\n" +
		"| `e.f = 1` of `g` | here | `x TestX` |\n"
	for tested, want := range map[bool][]string{false: {"no row has --c", "no row has e.f = 2"},
		true: {"no row has --c", "the row of --d names no test", "no row has e.f = 2"}} {
		if got := checkFlags([]string{"--a", "--b", "--c", "--d", "e.f", "e.f = 1", "e.f = 2", "g"}, page, tested); !slices.Equal(got, want) {
			t.Errorf("tested %t: found %q, want %q", tested, got, want)
		}
	}
}

// The page of capabilities has a row for each thing that was compared, and each row has its test.
func TestEveryCapabilityHasItsRowAndItsTest(t *testing.T) {
	const page = "docs/capabilities.md"
	text := pages(t)[page]
	for section, rows := range map[string]int{"What tools of this field do": 64, "What no tool had": 31} {
		for _, wrong := range checkRows(text, section, rows) {
			t.Errorf("%s: %s: %s", page, section, wrong)
		}
	}
}

func TestACapabilityWithoutItsRowOrItsTestIsFound(t *testing.T) {
	page := "## One\n| 1 | a | here | `x TestX` |\n| 2 | b | here | `x TestX` |\n### More\n" +
		"| 2 | b | `x TestX` | none |\n| 4 | d | not yet | none |\n| 7 | e | here | `x TestX` |\n" +
		"## Two\n| 3 | c | here | `x TestX` |\n"
	want := []string{
		"row 2 names no test, and does not say \"not yet\"", "2 rows have the number 2", "0 rows have the number 3",
		"row 7 is one too many",
	}
	if got := checkRows(page, "One", 4); !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
	if got := checkRows(page, "Three", 1); !slices.Equal(got, []string{"there is no such section"}) {
		t.Errorf("found %q", got)
	}
}

// The decisions are on a page for each area, and people find them through the index.
func TestTheIndexOfDecisionsHasEverySection(t *testing.T) {
	checked := 0
	all := pages(t)
	for _, file := range sortedKeys(all) {
		if !strings.HasPrefix(file, "docs/decisions-") {
			continue
		}
		for _, section := range anchors(all[file])[1:] {
			checked++
			if to := "](" + path.Base(file) + "#" + section + ")"; !strings.Contains(all["docs/decisions.md"], to) {
				t.Errorf("docs/decisions.md has no link to %s#%s", file, section)
			}
		}
	}
	if checked == 0 {
		t.Fatal("found no page of decisions to check")
	}
}

func TestALinkToNothingIsFound(t *testing.T) {
	got := checkLinks(map[string]string{
		"README.md": "[a](docs/a.md) [gone](docs/gone.md)\n[b](docs/a.md#the-b-and-a) [no](docs/a.md#b)\n" +
			"    [code](nowhere.md)\n```\n[code](nowhere.md)\n```\n[web](https://example.com/x.md) `[code](nowhere.md)`\n",
		"docs/a.md": "# The `b`, and *a*!\n[up](../README.md) [self](#the-b-and-a) [folder](../docs)\n# Twice\n# Twice\n" +
			"[second](#twice-1) [third](#twice-2)\n[broken\nover lines](gone.md)\n",
	}, func(file string) bool { return file == "docs" })
	want := []string{
		"README.md: docs/gone.md leads nowhere", "README.md: docs/a.md#b leads nowhere",
		"docs/a.md: #twice-2 leads nowhere", "docs/a.md: gone.md leads nowhere",
	}
	if !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
}

func TestATestThatIsNotThereIsFound(t *testing.T) {
	got := checkTests(map[string]string{"a.md": "`files TestA`, `test/x TestB` and `TestC`"}, map[string]bool{"files TestA": true})
	if want := []string{"a.md: there is no test/x TestB"}; !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
}

var (
	link    = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	fence   = regexp.MustCompile("(?ms)^```.*?^```")
	block   = regexp.MustCompile(`(?m)^ {4,}.*$`)
	span    = regexp.MustCompile("`[^`\n]*`")
	heading = regexp.MustCompile(`(?m)^#+ +(.+)$`)
	aTest   = regexp.MustCompile("`([a-z0-9/]+ Test\\w+)`")
	aRow    = regexp.MustCompile(`(?m)^\| ([0-9]+) \|.*\|([^|\n]+)\|$`)
)

// checkLinks returns a line for each link of a page, other than to the web, to a file or heading that is not there.
func checkLinks(pages map[string]string, exists func(file string) bool) (wrong []string) {
	for _, file := range sortedKeys(pages) {
		text := span.ReplaceAllString(block.ReplaceAllString(fence.ReplaceAllString(pages[file], ""), ""), "")
		for _, match := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(match[1], "://") {
				continue
			}
			target, anchor, within := strings.Cut(match[1], "#")
			to := file
			if target != "" {
				to = path.Join(path.Dir(file), target)
			}
			page, isPage := pages[to]
			if (!isPage && !exists(to)) || (within && !slices.Contains(anchors(page), anchor)) {
				wrong = append(wrong, fmt.Sprintf("%s: %s leads nowhere", file, match[1]))
			}
		}
	}
	return wrong
}

// anchors are the names by which GitHub makes the headings of a page reachable.
func anchors(page string) (out []string) {
	seen := map[string]int{}
	for _, match := range heading.FindAllStringSubmatch(fence.ReplaceAllString(page, ""), -1) {
		name := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-', r == '_', unicode.IsLetter(r), unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, match[1])
		if n := seen[name]; n > 0 {
			out = append(out, fmt.Sprintf("%s-%d", name, n))
		} else {
			out = append(out, name)
		}
		seen[name]++
	}
	return out
}

// checkTests returns a line for each test that a page names, with its folder, and that functions does not have.
func checkTests(pages map[string]string, functions map[string]bool) (wrong []string) {
	for _, file := range sortedKeys(pages) {
		for _, match := range aTest.FindAllStringSubmatch(pages[file], -1) {
			if !functions[match[1]] {
				wrong = append(wrong, fmt.Sprintf("%s: there is no %s", file, match[1]))
			}
		}
	}
	return wrong
}

// checkFlags returns a line for each flag or setting, alone or with its value, that is in the first cell of no row of a
// page's tables; or whose row names no test, where rows have to.
func checkFlags(flags []string, page string, tested bool) (wrong []string) {
	rows := map[string]string{}
	for line := range strings.Lines(page) {
		if cells := strings.SplitN(line, "|", 3); len(cells) == 3 && cells[0] == "" {
			for _, code := range span.FindAllString(cells[1], -1) {
				whole := strings.Trim(code, "`")
				name, _, _ := strings.Cut(whole, " ")
				rows[whole], rows[name] = cells[2], cells[2]
			}
		}
	}
	for _, flag := range flags {
		row, found := rows[flag]
		switch {
		case !found:
			wrong = append(wrong, "no row has "+flag)
		case tested && !aTest.MatchString(row):
			wrong = append(wrong, "the row of "+flag+" names no test")
		}
	}
	return wrong
}

// checkRows returns a line for each number from 1 to last that not exactly one row of a section has, for each row beyond,
// and for each row whose last cell names no test, unless the row says "not yet".
func checkRows(page, section string, last int) (wrong []string) {
	_, text, found := strings.Cut("\n"+page, "\n## "+section+"\n")
	if !found {
		return []string{"there is no such section"}
	}
	text, _, _ = strings.Cut(text, "\n## ")
	rows := map[int]int{}
	var beyond []string
	for _, match := range aRow.FindAllStringSubmatch(text, -1) {
		number, err := strconv.Atoi(match[1])
		if err != nil || number < 1 || number > last {
			beyond = append(beyond, fmt.Sprintf("row %s is one too many", match[1]))
			continue
		}
		rows[number]++
		if !aTest.MatchString(match[2]) && !strings.Contains(match[0], "not yet") {
			wrong = append(wrong, fmt.Sprintf("row %d names no test, and does not say \"not yet\"", number))
		}
	}
	for number := 1; number <= last; number++ {
		if rows[number] != 1 {
			wrong = append(wrong, fmt.Sprintf("%d rows have the number %d", rows[number], number))
		}
	}
	return append(wrong, beyond...)
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
