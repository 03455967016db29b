// SPDX-License-Identifier: Apache-2.0

package page

import (
	"cmp"
	"fmt"
	"html/template"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

// The content of a page, for its template.
type (
	document struct {
		Title, Style, Home, Version, Summary string
		At                                   stamp
		// Refresh is after how many seconds the browser loads the page again, unless the page is Still. Toggle is the link to
		// the other mode.
		Refresh  int
		Still    bool
		Toggle   string
		Warnings []string
		// Alone means that the page shows one pool.
		Alone bool
		Pools []poolPart
		Stray nodeList
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
	}

	poolPart struct {
		answerPart

		Name, Link   string
		Target       string
		Updated, Of  int
		Bar          bar
		Facts        []fact
		Quarantined  []quarantinePart
		Rollouts     []rolloutPart
		Nodes        nodeList
		SeveralPages bool
	}

	fact struct{ Name, Text string }

	quarantinePart struct {
		// Where is the node on which the configuration failed, or the gate.
		Config, Where, Reason string
		Since                 stamp
	}

	// nodeList is a page of nodes. Done counts the omitted nodes with nothing to report. Waiting counts the omitted nodes
	// that only wait for their pool. More counts the nodes without room on the page.
	nodeList struct {
		Nodes         []nodePart
		Done, Waiting int
		More          int
		From, To, Of  int
		Earlier, Next string
	}

	nodePart struct {
		answerPart

		Name, Phase, Config string
		At                  stamp
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
	case progress.Paused, progress.HeldByPerson, progress.Skipped,
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
		return "There are no MachineConfigPools."
	}
	return fmt.Sprintf("%d of %s updated; %s.", updated, number(nodes, "node"), strings.Join(parts, ", "))
}

func number(n int, of string) string {
	if n == 1 {
		return "1 " + of
	}
	return fmt.Sprintf("%d %ss", n, of)
}

func (s *state) stamp(at time.Time) stamp {
	if at.IsZero() {
		return stamp{}
	}
	out := stamp{Full: at.UTC().Format("2006-01-02 15:04 UTC"), Machine: at.UTC().Format(time.RFC3339)}
	if at.After(s.now) {
		out.Age = "in " + duration.HumanDuration(at.Sub(s.now))
	} else {
		out.Age = duration.HumanDuration(s.now.Sub(at))
	}
	return out
}

func (s *state) answer(a progress.Answer) answerPart {
	out := answerPart{
		Verdict: string(a.Verdict), Mood: moodOf(a.Verdict), Since: s.stamp(a.Since), Until: s.stamp(a.Until),
		Because: a.Because, Do: a.Do, Output: a.Output,
	}
	if a.Blocking != nil {
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
func (s *state) pool(name string, limit, page int) poolPart {
	p, _ := s.report.Pool(name)
	out := poolPart{
		answerPart: s.answer(s.pools[name]), Name: name, Link: pagesPath + "/pools/" + url.PathEscape(name), Target: p.Target,
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
	// An unreadable annotation was never written by us, and is no reason to show nothing.
	known, _ := api.Decode[[]api.PastRollout](s.objects[name].Annotations, api.RolloutsKey)
	out.Rollouts = s.rollouts(known, p)
	names := make([]string, len(p.Nodes))
	for i := range p.Nodes {
		names[i] = p.Nodes[i].Name
	}
	out.Nodes = s.list(names, out.Link, limit, page)
	out.SeveralPages = out.Nodes.Earlier != "" || out.Nodes.Next != ""
	return out
}

// facts returns the settings of a pool.
func (s *state) facts(p progress.Pool) []fact {
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
func (s *state) rules(p progress.Pool) []fact {
	var out []fact
	if h := p.Rules.Hold; h != nil && h.Verdict != s.pools[p.Name].Verdict {
		out = append(out, fact{"No node begins", string(h.Verdict) + ": " + h.Because})
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

func (s *state) stray() nodeList { return s.list(s.report.Stray(), "", many, 0) }

// list returns nodes in the order of their moods: those that need a person first, those up to date last, or not at all.
func (s *state) list(names []string, link string, limit, page int) nodeList {
	order := func(name string) int { return slices.Index(moods, moodOf(s.answers[name].Verdict)) }
	names = slices.Clone(names)
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Or(order(a)-order(b), strings.Compare(a, b)) })
	var out nodeList
	if page == 0 {
		names = slices.DeleteFunc(names, func(name string) bool {
			a := s.answers[name]
			switch {
			case moodOf(a.Verdict) == good:
				out.Done++
			case a.OfPool():
				out.Waiting++
			default:
				return false
			}
			return true
		})
	}
	out.Of = len(names)
	from := min(max(page-1, 0)*limit, len(names))
	to := min(from+limit, len(names))
	out.From, out.To = from+1, to
	for _, name := range names[from:to] {
		out.Nodes = append(out.Nodes, s.node(name))
	}
	if page == 0 {
		out.More = len(names) - to
		return out
	}
	if from > 0 {
		out.Earlier = link + "?page=" + strconv.Itoa(page-1)
	}
	if to < len(names) {
		out.Next = link + "?page=" + strconv.Itoa(page+1)
	}
	return out
}

func (s *state) node(name string) nodePart {
	n, _, _ := s.report.Node(name)
	phase, since := s.report.At(name)
	a := s.answers[name]
	if since.IsZero() {
		since = a.Since
	}
	return nodePart{answerPart: s.answer(a), Name: name, Phase: phase, Config: way(n), At: s.stamp(since)}
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
