// SPDX-License-Identifier: Apache-2.0

// Package checkup judges a cluster: whether Noderefit can be installed there, and whether an installation works. Each
// check is a row of a table. A row has what to read and a pure judgement of the facts:
//
//	c, err := checkup.Connect(config, checkup.Options{Plugin: version, Namespace: api.Namespace})
//	...
//	doc, err := c.Check(ctx, checkup.CheckOptions{Pre: true})
//	...
//	err = doc.WriteText(os.Stdout)
package checkup

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/message"
	"github.com/noderefit/noderefit/progress"
)

// Severity is how much a finding matters.
type Severity string

// The severities, from the least. Note is a fact to know, and Warning a fact that a person should look at. With Failed,
// an installation does not work, or must not be made.
const (
	OK      Severity = "OK"
	Note    Severity = "Note"
	Warning Severity = "Warning"
	Failed  Severity = "Failed"
)

var severities = []Severity{OK, Note, Warning, Failed}

func (s Severity) rank() int { return slices.Index(severities, s) }

// sign is the severity at the beginning of a line.
func (s Severity) sign() string {
	return map[Severity]string{OK: "✓", Note: "·", Warning: "!", Failed: "✗"}[s]
}

// Finding is one thing that a check found.
type Finding struct {
	Severity Severity         `json:"severity"`
	Object   *progress.Object `json:"object,omitempty"`
	Says     string           `json:"says"`
	// Do is what a person can do about it; empty if nothing is to be done.
	Do string `json:"do,omitempty"`
}

// about returns the finding with its object.
func (f Finding) about(kind, namespace, name string) Finding {
	f.Object = &progress.Object{Kind: kind, Namespace: namespace, Name: name}
	return f
}

func found(s Severity, do, format string, args ...any) Finding {
	return Finding{Severity: s, Says: message.OneLine(fmt.Sprintf(format, args...)), Do: do}
}

// unknown is the finding of a check that lacks a fact. A missing right is named.
func unknown(what string, err error) Finding {
	do := "see that the API server answers, and check again"
	text := err.Error()
	if forbidden(err) {
		do = "have the right granted, or have a person with the right check; ClusterRole noderefit-view has the rights " +
			"for a check"
	}
	return found(Warning, do, "%s: not known: %s", what, text)
}

// Result is the outcome of one check.
type Result struct {
	Name     string    `json:"name"`
	Severity Severity  `json:"severity"`
	Says     string    `json:"says"`
	Findings []Finding `json:"findings"`
}

// documentVersion is the version in documents whose readers know them by a number. It changes with api.DocumentVersion.
const documentVersion = 1

// Document is the outcome of all checks, and its JSON.
type Document struct {
	api.Header

	Version  int      `json:"version"`
	Pre      bool     `json:"pre"`
	Severity Severity `json:"severity"`
	Checks   []Result `json:"checks"`
	// Manifest has the MachineConfigs that mask other managers of the nodes, as YAML; empty if none is needed.
	Manifest string `json:"manifest,omitempty"`
}

// check is one row: a name, when the check is made, and its judgement.
type check struct {
	name  string
	pre   bool // before an installation
	after bool // of an installation
	// judge returns what the check found, and a summary for the case that nothing is wrong.
	judge func(f *facts) (summary string, findings []Finding)
}

// checks has every check once, in the order of the output. A check that says why later ones fail comes before them.
var checks = []check{
	{"server", true, true, judgeServer},
	{"features", true, true, judgeFeatures},
	{"openshift", true, true, judgeOpenShift},
	{"rights", true, false, judgeRights},
	{"namespace", true, true, judgeNamespace},
	{"definitions", true, true, judgeDefinitions},
	{"nodes", true, false, judgeNodes},
	{"managers", true, true, judgeManagers},
	{"images", true, false, judgeImages},
	{"versions", false, true, judgeVersions},
	{"admission", false, true, judgeAdmission},
	{"controller", false, true, judgeController},
	{"leader", false, true, judgeLeader},
	{"agents", false, true, judgeAgents},
	{"policies", false, true, judgePolicies},
	{"pools", false, true, judgePools},
	{"alerts", false, true, judgeAlerts},
}

// judge makes all checks for which the facts were read.
func judge(f *facts) Document {
	doc := Document{Header: api.NewHeader("Check"), Version: documentVersion, Pre: f.pre, Severity: OK, Checks: []Result{}}
	for _, c := range checks {
		if f.pre && !c.pre || !f.pre && !c.after {
			continue
		}
		says, findings := c.judge(f)
		r := Result{Name: c.name, Severity: OK, Says: says, Findings: slices.Clone(findings)}
		slices.SortStableFunc(r.Findings, func(a, b Finding) int { return cmp.Compare(b.Severity.rank(), a.Severity.rank()) })
		if len(findings) > 0 {
			r.Severity = r.Findings[0].Severity
		}
		if r.Findings == nil {
			r.Findings = []Finding{}
		}
		doc.Checks = append(doc.Checks, r)
		if r.Severity.rank() > doc.Severity.rank() {
			doc.Severity = r.Severity
		}
	}
	doc.Manifest = maskManifest(f)
	return doc
}

// Err returns an error that names the checks that failed, and nil if none did. If strict, a warning counts too.
func (d Document) Err(strict bool) error {
	least := Failed
	if strict {
		least = Warning
	}
	var names []string
	for _, c := range d.Checks {
		if c.Severity.rank() >= least.rank() {
			names = append(names, c.Name)
		}
	}
	switch len(names) {
	case 0:
		return nil
	case 1:
		return fmt.Errorf("the check %s failed", names[0])
	}
	return fmt.Errorf("%d checks failed: %s", len(names), strings.Join(names, ", "))
}

// shown is how many findings of one check people see. JSON has all.
const shown = 10

// WriteText writes a line for each check, and below it what is not OK.
func (d Document) WriteText(w io.Writer) error {
	var b strings.Builder
	for _, c := range d.Checks {
		fmt.Fprintf(&b, "%s %-12s %s\n", c.Severity.sign(), c.Name, c.Says)
		for i, f := range c.Findings {
			if i == shown {
				fmt.Fprintf(&b, "    and %d more; -o json has all\n", len(c.Findings)-shown)
				break
			}
			f.write(&b)
		}
	}
	b.WriteString("\n" + d.sentence() + "\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func (f Finding) write(b *strings.Builder) {
	fmt.Fprintf(b, "  %s ", f.Severity.sign())
	if f.Object != nil {
		fmt.Fprintf(b, "%s: ", f.Object)
	}
	b.WriteString(f.Says + "\n")
	if f.Do != "" && f.Severity != OK {
		b.WriteString("    do: " + f.Do + "\n")
	}
}

// sentence sums the document up.
func (d Document) sentence() string {
	count := map[Severity]int{}
	for _, c := range d.Checks {
		count[c.Severity]++
	}
	text := "Noderefit works here"
	if d.Pre {
		text = "Noderefit can be installed here"
	}
	switch {
	case count[Failed] > 0 && d.Pre:
		text = "Noderefit must not be installed here yet"
	case count[Failed] > 0:
		text = "Noderefit does not work as it should"
	}
	return fmt.Sprintf("%s: %d failed, %d with warnings, %d fine", text, count[Failed], count[Warning],
		count[OK]+count[Note])
}

// objects counts things in words.
func objects(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	if stem, ok := strings.CutSuffix(thing, "y"); ok {
		return fmt.Sprintf("%d %sies", n, stem)
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
