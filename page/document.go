// SPDX-License-Identifier: Apache-2.0

package page

import (
	"cmp"
	"fmt"
	"html/template"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/message"
	"github.com/noderefit/noderefit/progress"
)

// The content of a page, for its template.
type (
	document struct {
		Title, Style, Version, Summary, Docs string
		// Way are the pages that lead here, the first page first and this page last.
		Way []crumb
		At  stamp
		// Refresh is after how many seconds the browser loads the page again, unless the page is Still. Toggle is the link to
		// the other mode.
		Refresh  int
		Still    bool
		Toggle   string
		Warnings []string
		// Zone is the time zone. Path, Kept and All are for forms: where they lead, the parameters for all pages, and those
		// of this page.
		Zone, Path string
		Kept, All  url.Values
		// Filter is nil on pages without nodes to choose from. Found are the nodes that were chosen of all pools.
		Filter *filterPart
		Found  *nodeList
		Pools  []poolPart
		Stray  nodeList
		Node   *nodePage
	}

	crumb struct{ Name, Link string }

	filterPart struct {
		Text, State string
		States      []string
		// On means that only some nodes are listed. Clear is the link to all.
		On    bool
		Clear string
	}

	// answerPart is progress.Answer for readers.
	answerPart struct {
		Verdict string
		Mood    mood
		Since   stamp
		Until   stamp
		Because string
		Do      string
		Waits   string
		Output  []string
		// More is where the documentation has more about the verdict.
		More string
	}

	poolPart struct {
		answerPart

		Name, Link  string
		Target      string
		Updated, Of int
		Bar         bar
		Facts       []fact
		Quarantined []quarantinePart
		Rollouts    []rolloutPart
		Nodes       nodeList
	}

	fact struct{ Name, Text string }

	quarantinePart struct {
		// Where is the node on which the configuration failed, or the gate.
		Config, Where, Reason string
		Since                 stamp
	}

	// nodeList is a page of nodes. Done counts the omitted nodes with nothing to report. Waiting counts the omitted nodes
	// that only wait for their pool. More counts the nodes without room on the page. All counts the nodes of which the
	// listed ones were chosen.
	nodeList struct {
		Groups        []nodeGroup
		Done, Waiting int
		More          int
		From, To      int
		Of, All       int
		Earlier, Next string
		// Pools: the nodes are of several pools.
		Pools bool
	}

	// nodeGroup are the nodes that wait for the same. Above: the pool's own answer, which stands above, is about them.
	nodeGroup struct {
		answerPart

		Above bool
		Nodes []nodePart
	}

	nodePart struct {
		Name, Link, Phase, Config string
		Mood                      mood
		At                        stamp
		Pool, PoolLink            string
	}

	// stamp is a time, in full and as an age.
	stamp struct{ Full, Machine, Age string }
)

// mood is how urgent a verdict is for people, and also the name of its colour. Each mood has a word and a sign as well,
// because some readers can't tell colours apart.
type mood string

const (
	good    mood = "good"
	busy    mood = "busy"
	waits   mood = "waits"
	trouble mood = "trouble"
)

var functions = template.FuncMap{
	"sign": func(m mood) string {
		return map[mood]string{good: "✓", busy: "↻", waits: "○", trouble: "!"}[m]
	},
}

// moodOf returns the mood of a verdict. A verdict that is not known to be harmless needs people.
func moodOf(v progress.Verdict) mood {
	switch v {
	case progress.UpToDate:
		return good
	case progress.Updating, progress.Rebooting, progress.NotTakenUp, progress.GoingBack:
		return busy
	case progress.Paused, progress.HeldByPerson, progress.Skipped, progress.Trying,
		progress.WaitsForPool, progress.OutsideWindow, progress.WaitsForStage, progress.Soaking,
		progress.StagingAhead, progress.GateClosed,
		progress.WaitsForTurn, progress.NotOffered, progress.RenderPending, progress.NotRendered, progress.NoNodes,
		progress.NoPool:
		return waits
	default:
		return trouble
	}
}

var moods = []mood{trouble, busy, waits, good}

// docs is where the documentation is.
const docs = "https://github.com/noderefit/noderefit/blob/main/docs/"

// seeMore returns where the documentation has more about a verdict.
func seeMore(v progress.Verdict) string {
	for i := range progress.Verdicts {
		if m := &progress.Verdicts[i]; m.Verdict == v {
			return docs + "troubleshooting.md#" + cmp.Or(m.See, "every-verdict")
		}
	}
	return ""
}

// sheet is what a page is made from: a cluster that was read, and what the reader asked for.
type sheet struct {
	*state
	question

	home string
}

func (s *sheet) poolPath(pool string) string { return s.home + "pools/" + url.PathEscape(pool) }
func (s *sheet) nodePath(node string) string { return s.home + "nodes/" + url.PathEscape(node) }

// state is a cluster that was read, with all the answers.
type state struct {
	view    View
	now     time.Time
	report  *progress.Report
	objects map[string]*mcfgv1.MachineConfigPool
	answers map[string]progress.Answer // of nodes, by name
	pools   map[string]progress.Answer
}

func newState(v View, now time.Time) *state {
	s := &state{
		view: v, now: now, report: progress.NewReport(v.View), objects: map[string]*mcfgv1.MachineConfigPool{},
		answers: make(map[string]progress.Answer, len(v.Nodes)), pools: map[string]progress.Answer{},
	}
	for i := range v.Pools {
		s.objects[v.Pools[i].Name] = &v.Pools[i]
	}
	for i := range v.Nodes {
		s.answers[v.Nodes[i].Name], _ = s.report.ExplainNode(v.Nodes[i].Name)
	}
	for _, name := range s.report.Pools() {
		s.pools[name], _ = s.report.ExplainPool(name)
	}
	return s
}

// summary returns one sentence about all pools.
func (s *state) summary() string {
	count := map[mood]int{}
	updated, nodes := 0, 0
	for _, name := range s.report.Pools() {
		p, _ := s.report.Pool(name)
		updated, nodes = updated+p.Updated, nodes+p.Machines
		count[moodOf(s.pools[name].Verdict)]++
	}
	texts := map[mood][2]string{
		trouble: {"needs a person", "need a person"}, busy: {"is on its way", "are on their way"}, waits: {"waits", "wait"},
		good: {"is up to date", "are up to date"},
	}
	var parts []string
	for _, m := range moods {
		if n := count[m]; n > 0 {
			parts = append(parts, fmt.Sprintf("%s %s", number(n, "pool"), texts[m][min(n, 2)-1]))
		}
	}
	if len(parts) == 0 {
		return "No MachineConfigPool selects nodes yet."
	}
	return fmt.Sprintf("%d of %s updated; %s.", updated, number(nodes, "node"), strings.Join(parts, ", "))
}

func number(n int, of string) string {
	if n == 1 {
		return "1 " + of
	}
	return fmt.Sprintf("%d %ss", n, of)
}

func (s *sheet) stamp(at time.Time) stamp {
	if at.IsZero() {
		return stamp{}
	}
	out := stamp{Full: at.In(s.zone).Format("2006-01-02 15:04 MST"), Machine: at.UTC().Format(time.RFC3339)}
	if at.After(s.now) {
		out.Age = "in " + duration.HumanDuration(at.Sub(s.now))
	} else {
		out.Age = duration.HumanDuration(s.now.Sub(at))
	}
	return out
}

// said returns a sentence with times in the reader's time zone.
func (s *sheet) said(text string) string { return message.LocalTimes(text, s.zone) }

func (s *sheet) answer(a progress.Answer) answerPart {
	out := answerPart{
		Verdict: string(a.Verdict), Mood: moodOf(a.Verdict), Since: s.stamp(a.Since), Until: s.stamp(a.Until),
		Because: s.said(a.Because), Do: s.said(a.Do), Output: a.Output,
		More: seeMore(a.Verdict),
	}
	// Nothing waits for a quarantined configuration: it is what failed. And no node waits for itself.
	failed := a.Verdict == progress.Quarantined || a.Verdict == progress.RolledBack
	if a.Blocking != nil && *a.Blocking != a.Subject && !failed {
		out.Waits = a.Blocking.String()
	}
	return out
}

// names returns the names of the pools, first those that need a person.
func (s *state) names() []string {
	order := func(name string) int { return slices.Index(moods, moodOf(s.pools[name].Verdict)) }
	return slices.SortedStableFunc(slices.Values(s.report.Pools()), func(a, b string) int { return order(a) - order(b) })
}

// pool returns the part of a page about one pool, with up to limit of its nodes. They are the nodes of the page with
// that number, counted from 1. Page 0 has the first nodes that have a verdict of their own to report.
func (s *sheet) pool(name string, limit, page int) poolPart {
	p, _ := s.report.Pool(name)
	out := poolPart{
		answerPart: s.answer(s.pools[name]), Name: name, Link: s.to(s.poolPath(name)), Target: p.Target,
		Updated: p.Updated, Of: p.Machines, Bar: phases(p), Facts: s.facts(p),
	}
	// The page of the other pool shows a failure there, unless this pool is to have the same content.
	elsewhere := slices.DeleteFunc(slices.Clone(p.Elsewhere), func(q api.Quarantine) bool {
		return !api.SameContent(q.Config, p.Target)
	})
	for _, q := range slices.Concat(p.Quarantined, elsewhere) {
		where := q.Node
		if q.Gate != "" {
			where = "gate " + q.Gate
		}
		out.Quarantined = append(out.Quarantined, quarantinePart{q.Config, where, q.Reason, s.stamp(q.Since)})
	}
	if len(out.Quarantined) == 1 && s.pools[name].Verdict == progress.Quarantined {
		out.Quarantined = nil // the answer has said all of it
	}
	// An unreadable annotation was never written by us, and is no reason to show nothing.
	known, _ := api.Decode[[]api.PastRollout](s.objects[name].Annotations, api.RolloutsKey)
	out.Rollouts = s.rollouts(known, p)
	names := make([]string, len(p.Nodes))
	for i := range p.Nodes {
		names[i] = p.Nodes[i].Name
	}
	out.Nodes = s.list(names, name, limit, page)
	return out
}

// facts returns the settings of a pool.
func (s *sheet) facts(p progress.Pool) []fact {
	out := []fact{{"Out of service at a time", number(p.MaxUnavailable, "node")}}
	if !p.Rules.NextWindow.IsZero() {
		at := s.stamp(p.Rules.NextWindow)
		out = append(out, fact{"Next window", at.Full + " (" + at.Age + ")"})
	}
	if p.Rules.Policy != "" {
		out = append(out, fact{"RolloutPolicy", p.Rules.Policy})
	}
	if p.Rules.Stage != "" {
		out = append(out, fact{"Stage at work", p.Rules.Stage})
	}
	if p.Rules.FailureBudget > 0 {
		out = append(out, fact{"Failure budget", fmt.Sprintf("%d of %s used", len(p.Failed()),
			number(p.Rules.FailureBudget, "node"))})
	}
	if p.Paused {
		out = append(out, fact{"Paused", "by spec.paused"})
	}
	if b := p.Bypass; b != nil && p.Rules.Policy != "" && api.SameContent(b.Config, p.Target) {
		out = append(out, fact{"Bypassed", "by " + b.By + ": " + b.Why})
	}
	return append(out, s.rules(p)...)
}

// rules returns what the pool's policy waits for. This is shown even while the pool's answer has another subject, such
// as a node on its way.
func (s *sheet) rules(p progress.Pool) []fact {
	var out []fact
	if h := p.Rules.Hold; h != nil && h.Verdict != s.pools[p.Name].Verdict {
		out = append(out, fact{"No node begins", string(h.Verdict) + ": " + s.said(h.Because)})
	}
	var gates []string
	for _, gate := range slices.Sorted(maps.Keys(p.Rules.Closed)) {
		if p.Rules.Closed[gate] > 0 {
			gates = append(gates, gate)
		}
	}
	if len(gates) > 0 {
		out = append(out, fact{"Closed gates", strings.Join(gates, ", ")})
	}
	a := p.Rules.Staging
	if a == nil || p.Updated == p.Machines {
		return out
	}
	staged := fmt.Sprintf("on %d of %s", len(a.Staged), number(a.Of, "node"))
	if len(a.Unable) > 0 {
		staged += fmt.Sprintf("; %d could not", len(a.Unable))
	}
	out = append(out, fact{"Staged ahead", staged})
	switch {
	case a.Approval != nil:
		out = append(out, fact{"Approved", "by " + a.Approval.By})
	case a.Required:
		out = append(out, fact{"Approved", "not yet"})
	}
	return out
}

// way returns the configuration of a node, and its next one.
func way(n progress.Node) string {
	if n.Desired == "" || n.Desired == n.Current {
		return short(n.Current)
	}
	return short(n.Current) + " → " + short(n.Desired)
}

// shortDigits is how many digits of a digest distinguish the configurations of one cluster at a glance.
const shortDigits = 8

// short returns the beginning of a rendered configuration's digest, because the pool is named beside it.
func short(config string) string {
	content := api.Content(config)
	if content == config {
		return cmp.Or(config, "–")
	}
	return content[:shortDigits]
}
