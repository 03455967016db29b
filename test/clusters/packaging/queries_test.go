// SPDX-License-Identifier: Apache-2.0

package packaging

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

//go:generate ../../../packaging/alerts/wrap.sh

const (
	rulesFile     = root + "/packaging/alerts/noderefit.rules.yaml"
	ruleObject    = root + "/packaging/kustomize/monitoring/prometheusrule.yaml"
	dashboardFile = root + "/packaging/dashboards/noderefit.json"
)

// rules are Prometheus' file of them.
type rules struct {
	Groups []struct {
		Name  string `json:"name"`
		Rules []struct {
			Record      string            `json:"record"`
			Alert       string            `json:"alert"`
			Expr        string            `json:"expr"`
			For         string            `json:"for"`
			Labels      map[string]string `json:"labels"`
			Annotations map[string]string `json:"annotations"`
		} `json:"rules"`
	} `json:"groups"`
}

// dashboard is the part of Grafana's that says what is shown.
type dashboard struct {
	Title      string `json:"title"`
	UID        string `json:"uid"`
	Templating struct {
		List []struct {
			Name  string `json:"name"`
			Query any    `json:"query"`
		} `json:"list"`
	} `json:"templating"`
	Panels []struct {
		ID      int    `json:"id"`
		Title   string `json:"title"`
		Type    string `json:"type"`
		GridPos struct{ X, Y, W, H int }
		Targets []struct {
			Expr string `json:"expr"`
		} `json:"targets"`
	} `json:"panels"`
}

func readYAML(t *testing.T, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err == nil {
		err = yaml.UnmarshalStrict(text, into)
	}
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

func readDashboard(t *testing.T) dashboard {
	t.Helper()
	text, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatalf("%s: %v", dashboardFile, err)
	}
	return d
}

func TestEachAlertFiresWhenItShouldAndOnlyThen(t *testing.T) {
	inputs(t)
	for _, args := range [][]string{
		{"check", "rules", "--lint=all", "--lint-fatal", rulesFile},
		{"test", "rules", root + "/packaging/alerts/noderefit.test.yaml"},
	} {
		if _, err := promtool(t.Context(), args...); err != nil {
			t.Error(err)
		}
	}
	var all rules
	readYAML(t, rulesFile, &all)
	tested, err := os.ReadFile(root + "/packaging/alerts/noderefit.test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range all.Groups {
		for _, rule := range group.Rules {
			if rule.Alert == "" {
				continue
			}
			if !strings.Contains(string(tested), "alertname: "+rule.Alert+"\n") {
				t.Errorf("%s has no test", rule.Alert)
			}
			if rule.Labels["severity"] == "" || rule.Annotations["summary"] == "" || rule.Annotations["description"] == "" {
				t.Errorf("%s lacks a severity, a summary or a description", rule.Alert)
			}
		}
	}
}

// Who is woken by an alert finds what to do by its link: a section of the page for each alert, and no other.
func TestEachAlertLeadsToItsSectionOfThePage(t *testing.T) {
	const page = "https://github.com/noderefit/noderefit/blob/main/docs/troubleshooting.md#"
	_, text, found := strings.Cut(read(t, root, "docs/troubleshooting.md"), "\n## Alerts\n")
	if !found {
		t.Fatal("the page has no section \"Alerts\"")
	}
	text, _, _ = strings.Cut(text, "\n## ")
	sections := map[string]string{}
	for i, section := range strings.Split("\n"+text, "\n### ") {
		if name, body, _ := strings.Cut(section, "\n"); i > 0 {
			sections[name] = strings.TrimSpace(body)
		}
	}
	var all rules
	readYAML(t, rulesFile, &all)
	for _, group := range all.Groups {
		for _, rule := range group.Rules {
			if rule.Alert == "" {
				continue
			}
			// The anchor of a heading of letters is the heading in small letters.
			if got, want := rule.Annotations["runbook_url"], page+strings.ToLower(rule.Alert); got != want {
				t.Errorf("%s leads to %q, want %s", rule.Alert, got, want)
			}
			if !strings.Contains(sections[rule.Alert], "](") && !strings.Contains(sections[rule.Alert], "kubectl") {
				t.Errorf("the section of %s names no command and no other section: %q", rule.Alert, sections[rule.Alert])
			}
			delete(sections, rule.Alert)
		}
	}
	for name := range sections {
		t.Errorf("no alert leads to the section %q", name)
	}
}

func TestTheOperatorsRulesAreTheRules(t *testing.T) {
	var plain rules
	var wrapped struct {
		APIVersion string         `json:"apiVersion"`
		Kind       string         `json:"kind"`
		Metadata   map[string]any `json:"metadata"`
		Spec       rules          `json:"spec"`
	}
	readYAML(t, rulesFile, &plain)
	readYAML(t, ruleObject, &wrapped)
	if diff := cmp.Diff(plain, wrapped.Spec); diff != "" {
		t.Errorf("make generate has not been run: %s", diff)
	}
}

func TestTheDashboardIsInOrder(t *testing.T) {
	d := readDashboard(t)
	if d.Title == "" || d.UID == "" || len(d.Panels) == 0 {
		t.Fatal("the dashboard has no title, uid or panel")
	}
	seen := map[int]bool{}
	taken := map[[2]int]string{}
	for _, panel := range d.Panels {
		if seen[panel.ID] || panel.Title == "" {
			t.Errorf("panel %d %q has no title, or the id of another", panel.ID, panel.Title)
		}
		seen[panel.ID] = true
		if panel.Type != "row" && len(panel.Targets) == 0 {
			t.Errorf("panel %q shows nothing", panel.Title)
		}
		at := panel.GridPos
		if at.W < 1 || at.H < 1 || at.X < 0 || at.X+at.W > 24 {
			t.Errorf("panel %q does not fit the grid: %+v", panel.Title, at)
		}
		for x := at.X; x < at.X+at.W; x++ {
			for y := at.Y; y < at.Y+at.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" {
					t.Fatalf("panel %q lies over %q", panel.Title, other)
				}
				taken[[2]int{x, y}] = panel.Title
			}
		}
	}
}

// rare are metrics, with their labels, that are exposed only where something is wrong. The tests of the pools see them,
// and those of the controller's program.
var rare = map[string]map[string]bool{
	"noderefit_node_overdue":         {"node": true, "pool": true},
	"noderefit_node_reboot_wanted":   {"node": true, "pool": true, "kind": true},
	"noderefit_node_reboot_failed":   {"node": true, "pool": true},
	"noderefit_unreadable_object":    {"kind": true, "name": true},
	"noderefit_watch_failing":        {"kind": true},
	"noderefit_osstream_source_away": {"stream": true},
}

// checkQueries looks whether every metric and label that a rule or a panel asks for is exposed.
func checkQueries(t *testing.T, exposed exposition) {
	t.Helper()
	asked := map[string]string{}
	var all rules
	readYAML(t, rulesFile, &all)
	for _, group := range all.Groups {
		for _, rule := range group.Rules {
			asked[rule.Alert+rule.Record] = rule.Expr
		}
	}
	d := readDashboard(t)
	for _, panel := range d.Panels {
		for _, target := range panel.Targets {
			asked[panel.Title+": "+target.Expr] = target.Expr
		}
	}
	for _, variable := range d.Templating.List {
		if query, ok := variable.Query.(string); ok && strings.HasPrefix(query, "label_values") {
			asked["variable "+variable.Name] = query
		}
	}
	for by, query := range asked {
		found := metricsIn(query)
		if len(found) == 0 {
			t.Errorf("%s: found no metric in %s", by, query)
		}
		for name, labels := range found {
			has, known := exposed[name]
			if name == "up" {
				has, known = map[string]bool{}, true
			} else if labels, is := rare[name]; is && !known {
				has, known = labels, true
			}
			if !known {
				t.Errorf("%s: nothing exposes %s", by, name)
				continue
			}
			for _, label := range labels {
				if !has[label] && !slices.Contains(scraped, label) {
					t.Errorf("%s: %s has no label %s", by, name, label)
				}
			}
		}
	}
}

// scraped are the labels that scraping adds, as packaging/kustomize/monitoring/podmonitor.yaml says.
var scraped = []string{"job", "instance", "namespace", "pod", "container", "node"}

var (
	quoted    = regexp.MustCompile(`"[^"]*"`)
	variables = regexp.MustCompile(`\$\w+`)
	grouping  = regexp.MustCompile(`\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)`)
	duration  = regexp.MustCompile(`\[[^\]]*\]`)
	selector  = regexp.MustCompile(`([a-zA-Z_:][a-zA-Z0-9_:]*)\s*(\{[^}]*\})?(\s*\()?`)
	matcher   = regexp.MustCompile(`([a-zA-Z_]\w*)\s*(=~|!~|!=|=)`)
	words     = []string{"and", "or", "unless", "bool", "offset"}
)

// metricsIn finds the metrics of a query, each with the labels that it is selected by. It knows as much of the language
// as our own queries use.
func metricsIn(query string) map[string][]string {
	if inner, ok := strings.CutPrefix(query, "label_values("); ok {
		name, label, _ := strings.Cut(strings.TrimSuffix(inner, ")"), ",")
		found := metricsIn(name)
		for metric := range found {
			found[metric] = append(found[metric], strings.TrimSpace(label))
		}
		return found
	}
	query = quoted.ReplaceAllString(query, `""`)
	query = variables.ReplaceAllString(query, "")
	query = duration.ReplaceAllString(query, "")
	query = grouping.ReplaceAllString(query, "")
	found := map[string][]string{}
	for _, m := range selector.FindAllStringSubmatch(query, -1) {
		name, labels, call := m[1], m[2], m[3]
		if call != "" || slices.Contains(words, name) {
			continue
		}
		found[name] = append(found[name], []string{}...)
		for _, l := range matcher.FindAllStringSubmatch(labels, -1) {
			found[name] = append(found[name], l[1])
		}
	}
	return found
}

func TestMetricsAreFoundInQueries(t *testing.T) {
	for query, want := range map[string]map[string][]string{
		`sum by (node) (a_total{x="b c",y=~"$z"}) > 0 and on (node) rate(b[5m]) == 1`: {"a_total": {"x", "y"}, "b": nil},
		`histogram_quantile(0.9, sum by (le) (rate(h_bucket[1h])))`:                   {"h_bucket": nil},
		`label_values(mco_machine_count, pool)`:                                       {"mco_machine_count": {"pool"}},
		`absent(up{job="x"} == 1)`:                                                    {"up": {"job"}},
	} {
		if diff := cmp.Diff(want, metricsIn(query)); diff != "" {
			t.Errorf("%s: %s", query, diff)
		}
	}
}
