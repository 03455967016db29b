// SPDX-License-Identifier: Apache-2.0

package page

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/noderefit/noderefit/progress"
)

// stray returns the nodes of no pool.
func (s *sheet) stray() nodeList { return s.list(s.report.Stray(), "", many, 0) }

// found returns the nodes of all pools that the reader asked for.
func (s *sheet) found() *nodeList {
	names := make([]string, len(s.view.Nodes))
	for i := range s.view.Nodes {
		names[i] = s.view.Nodes[i].Name
	}
	out := s.list(names, "", many, s.page)
	out.Pools = true
	for i := range out.Groups {
		for j := range out.Groups[i].Nodes {
			one := &out.Groups[i].Nodes[j]
			if _, one.Pool, _ = s.report.Node(one.Name); one.Pool != "" {
				one.PoolLink = s.to(s.poolPath(one.Pool))
			}
		}
	}
	return &out
}

// list returns nodes in the order of their moods: those that need a person first, those up to date last. Nodes that
// wait for the same stand together. Page 0 has the first nodes that have an answer of their own, and counts the others.
// Other pages have the nodes that the reader asked for. pool is the pool whose answer stands above the list; empty:
// none does.
func (s *sheet) list(names []string, pool string, limit, page int) nodeList {
	out := nodeList{All: len(names)}
	names = slices.Clone(names)
	if page > 0 {
		names = slices.DeleteFunc(names, func(name string) bool { return !s.wanted(name) })
	} else {
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
	s.sort(names)
	out.Of = len(names)
	from := min(max(page-1, 0)*limit, len(names))
	to := min(from+limit, len(names))
	out.From, out.To = from+1, to
	out.Groups = s.groups(names[from:to], pool)
	if page == 0 {
		out.More = len(names) - to
		return out
	}
	if from > 0 {
		out.Earlier = s.turned(paramPage, strconv.Itoa(page-1))
	}
	if to < len(names) {
		out.Next = s.turned(paramPage, strconv.Itoa(page+1))
	}
	return out
}

// wanted reports whether the reader asked for a node.
func (s *sheet) wanted(name string) bool {
	a := s.answers[name]
	switch s.phase {
	case "":
	case stateTrouble:
		if moodOf(a.Verdict) != trouble || a.OfPool() { // it is the pool that needs a person
			return false
		}
	default:
		if s.phaseOf(name) != s.phase {
			return false
		}
	}
	if len(s.find) == 0 {
		return true
	}
	n, pool, _ := s.report.Node(name)
	at, _ := s.report.At(name)
	all := []string{name, pool, n.Zone, n.Current, n.Desired, at, string(a.Verdict)}
	if a.Blocking != nil {
		all = append(all, a.Blocking.String())
	}
	text := strings.ToLower(strings.Join(all, "\n"))
	return !slices.ContainsFunc(s.find, func(word string) bool { return !strings.Contains(text, word) })
}

// phaseOf returns the phase of a node; empty: the node belongs to no pool.
func (s *sheet) phaseOf(name string) string {
	n, pool, _ := s.report.Node(name)
	object := s.objects[pool]
	if object == nil {
		return ""
	}
	return string(n.Phase(object.Spec.Configuration.Name))
}

// sort puts nodes into the order in which people read them, with those together that wait for the same.
func (s *sheet) sort(names []string) {
	type place struct {
		mood  int
		pool  int    // 1: the node waits for its pool
		first string // name of the group's first node
	}
	groups := map[string]string{}
	slices.Sort(names)
	places := make(map[string]place, len(names))
	for _, name := range names {
		a := s.answers[name]
		key := groupOf(a)
		if _, known := groups[key]; !known {
			groups[key] = name
		}
		at := place{slices.Index(moods, moodOf(a.Verdict)), 0, groups[key]}
		if a.OfPool() {
			at.pool = 1
		}
		places[name] = at
	}
	slices.SortFunc(names, func(a, b string) int {
		x, y := places[a], places[b]
		return cmp.Or(x.mood-y.mood, x.pool-y.pool, s.answers[a].Verdict.Compare(s.answers[b].Verdict),
			strings.Compare(x.first, y.first), strings.Compare(a, b))
	})
}

// groupOf returns a key that nodes have in common which wait for the same. What their answers say of a single node
// stands beside the node: its phase and its configurations.
func groupOf(a progress.Answer) string {
	key := []string{string(a.Verdict)}
	switch {
	case plain(a):
	case a.OfPool():
		if a.Blocking != nil {
			key = append(key, a.Blocking.String())
		}
	default:
		key = append(key, a.Because, a.Do, strings.Join(a.Output, "\n"))
	}
	return strings.Join(key, "\n")
}

// plain reports whether an answer says no more than the node's phase and configuration. An answer of a node that is up
// to date may go on, for example with who holds the node.
func plain(a progress.Answer) bool { return a.Fine() && !strings.Contains(a.Because, "; ") }

// groups returns nodes that were sorted. A pool's answer that stands above is not repeated.
func (s *sheet) groups(names []string, pool string) []nodeGroup {
	var out []nodeGroup
	last := ""
	for _, name := range names {
		a := s.answers[name]
		if key := groupOf(a); len(out) == 0 || key != last {
			last = key
			out = append(out, s.group(a, pool))
		}
		g := &out[len(out)-1]
		g.Nodes = append(g.Nodes, s.node(name))
		// What a node says of its place in the order is no answer of the others.
		if said := s.said(a.Because); a.OfPool() && !g.Above && len(said) < len(g.Because) {
			g.Because = said
		}
	}
	return out
}

// group returns a group with the answer of one of its nodes.
func (s *sheet) group(a progress.Answer, pool string) nodeGroup {
	out := nodeGroup{answerPart: s.answer(a)}
	if plain(a) {
		out.Because = map[progress.Verdict]string{
			progress.UpToDate: "all is as configured", progress.Updating: "nothing blocks them",
		}[a.Verdict]
	}
	if pool == "" {
		return out
	}
	above := s.pools[pool]
	failed := a.Verdict == progress.RolledBack && above.Verdict == progress.Quarantined
	repeated := a.Verdict == above.Verdict && !a.Fine() && strings.Contains(above.Because, a.Because)
	if out.Above = failed || repeated; out.Above {
		out.Because, out.Waits, out.Do, out.Output = "", "", "", nil
	}
	return out
}

func (s *sheet) node(name string) nodePart {
	n, _, _ := s.report.Node(name)
	phase, since := s.report.At(name)
	a := s.answers[name]
	if since.IsZero() {
		since = a.Since
	}
	return nodePart{
		Name: name, Link: s.to(s.nodePath(name)), Phase: phase, Mood: moodOf(a.Verdict), Config: way(n), At: s.stamp(since),
	}
}
