// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/noderefit/noderefit/progress"
)

// Look is how a text is written for people.
type Look struct {
	Now time.Time
	// Wide shows whole names, more columns and all nodes. All shows all nodes.
	Wide, All bool

	paper paper
}

// NewLook returns the look of an output: colours and a width if the output is a terminal, neither if it is not.
func NewLook(out io.Writer, env func(string) string, now time.Time) Look {
	l := Look{Now: now, paper: paper{utf8: true}}
	if s := terminal(out, env); s != nil {
		l.paper = s.paper
		l.paper.width, l.paper.height = s.size()
	}
	return l
}

// large is the number of nodes above which a pool's updated nodes are only counted.
const large = 20

// WriteText writes the status for people. What a pool or a node waits for comes first.
func (d StatusDocument) WriteText(w io.Writer, l Look) error {
	if len(d.Pools) == 0 {
		fmt.Fprintln(w, "There are no MachineConfigPools. kubectl refit check says whether Noderefit is installed here.")
		if len(d.Nodes) == 0 {
			return nil
		}
	} else if err := d.poolTable(l).write(w, l); err != nil {
		return err
	}
	shown, summary := d.summary(l)
	for _, line := range summary {
		fmt.Fprintln(w, "\n"+line)
	}
	if len(shown) > 0 {
		fmt.Fprintln(w)
		if err := nodeTable(shown, len(d.Pools) != 1, l).write(w, l); err != nil {
			return err
		}
	}
	return d.writeDrift(w, l)
}

func (d StatusDocument) poolTable(l Look) *table {
	t := &table{}
	estimates := slices.ContainsFunc(d.Pools, func(p poolRow) bool { return p.TimeLeft != nil })
	for _, p := range d.Pools {
		config := short(p.Configuration)
		if l.Wide {
			config = p.Configuration
		}
		t.row("POOL", p.Name, bold)
		t.cell("WAITS FOR", dash(p.WaitsFor), "")
		t.cell("STATUS", string(p.Verdict), tint(p.Verdict))
		t.cell("SINCE", age(l.Now, p.Since), "")
		t.cell("UPDATED", fmt.Sprintf("%d/%d", p.Updated, p.Machines), "")
		if estimates {
			t.cell("LEFT", dash(p.TimeLeft.String()), "")
		}
		if l.Wide {
			t.cell("READY", fmt.Sprint(p.Ready), "")
			t.cell("UNAVAILABLE", fmt.Sprint(p.Unavailable), "")
			t.cell("DEGRADED", fmt.Sprint(p.Degraded), "")
			t.cell("PAUSED", map[bool]string{true: "yes", false: "no"}[p.Paused], "")
		}
		t.cell("CONFIG", dash(config), "")
	}
	return t
}

func nodeTable(nodes []nodeRow, pools bool, l Look) *table {
	t := &table{}
	name := short
	if l.Wide {
		name = func(config string) string { return config }
	}
	for _, n := range nodes {
		t.row("NODE", n.Name, "")
		t.cell("WAITS FOR", dash(n.WaitsFor), "")
		t.cell("PHASE", n.Phase, tint(n.Verdict))
		t.cell("SINCE", age(l.Now, n.Since), "")
		if pools {
			t.cell("POOL", dash(n.Pool), "")
		}
		if l.Wide {
			t.cell("STATUS", string(n.Verdict), "")
		}
		t.cell("CONFIG", way(n, name), "")
	}
	return t
}

// tint returns the colour of a verdict: green where all is well, red where a person has to act.
func tint(v progress.Verdict) string {
	a := progress.Answer{Verdict: v}
	switch {
	case v == progress.UpToDate:
		return green
	case a.Stops():
		return red
	}
	return yellow
}

// summary returns the nodes that get a line, and for each large pool a line that counts its nodes by their verdicts.
func (d StatusDocument) summary(l Look) (shown []nodeRow, lines []string) {
	members := map[string]int{}
	for _, n := range d.Nodes {
		members[n.Pool]++
	}
	counts := map[string]map[progress.Verdict]int{}
	for _, n := range d.Nodes {
		if l.All || l.Wide || n.Pool == "" || members[n.Pool] <= large {
			shown = append(shown, n)
			continue
		}
		if counts[n.Pool] == nil {
			counts[n.Pool] = map[progress.Verdict]int{}
		}
		counts[n.Pool][n.Verdict]++
		if !n.rests() {
			shown = append(shown, n)
		}
	}
	for _, pool := range slices.Sorted(maps.Keys(counts)) {
		order := slices.SortedFunc(maps.Keys(counts[pool]), func(a, b progress.Verdict) int {
			if by := counts[pool][b] - counts[pool][a]; by != 0 {
				return by
			}
			return strings.Compare(string(a), string(b))
		})
		parts := make([]string, len(order))
		for i, v := range order {
			parts[i] = fmt.Sprintf("%d %s", counts[pool][v], v)
		}
		line := fmt.Sprintf("%s of pool %s: %s", number(members[pool], "node"), pool, strings.Join(parts, ", "))
		if n := counts[pool][progress.UpToDate]; n > 0 {
			line += "; --all lists them too"
		}
		lines = append(lines, line)
	}
	return shown, lines
}

// writeDrift lists the drift of hosts, and what to do about it.
func (d StatusDocument) writeDrift(w io.Writer, l Look) error {
	t := &table{}
	for _, n := range d.Nodes {
		if n.Drift == nil {
			continue
		}
		row := func(what, since, back string) {
			t.row("DRIFTED NODE", n.Name, "")
			t.cell("WHAT", what, "")
			t.cell("SINCE", since, "")
			t.cell("WRITTEN BACK", back, "")
		}
		for _, i := range n.Drift.Items {
			back := "-"
			if i.Repairs > 0 {
				back = fmt.Sprintf("%dx, again %s", i.Repairs, i.Again.UTC().Format(time.RFC3339))
			}
			row(i.String(), age(l.Now, i.Since), back)
		}
		if n.Drift.More > 0 {
			row(fmt.Sprintf("and %d more", n.Drift.More), "-", "-")
		}
	}
	if len(t.rows) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	if err := t.write(w, l); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w, "Undo it on the host, or put it into a MachineConfig: see kubectl refit explain node/NAME.")
	return err
}

// table is a table for people. A column is as wide as its widest cell.
type table struct {
	heads []string
	rows  [][]span
}

// row begins a row with its first cell.
func (t *table) row(head, text, colour string) {
	t.rows = append(t.rows, nil)
	t.cell(head, text, colour)
}

func (t *table) cell(head, text, colour string) {
	last := len(t.rows) - 1
	if last == 0 {
		t.heads = append(t.heads, head)
	}
	t.rows[last] = append(t.rows[last], span{text, colour})
}

const gap = "  "

// The first two columns of a table are a name and what it waits for. On a narrow terminal they give way to these
// widths, then the last column is left out, and then they give way further.
const (
	nameGood, nameLeast = 20, 12
	waitGood, waitLeast = 32, 9
)

// narrowed returns the widths of the columns that are shown on a terminal.
func narrowed(widths []int, room int) []int {
	over := func() int {
		total := len(gap) * (len(widths) - 1)
		for _, width := range widths {
			total += width
		}
		return total - room
	}
	give := func(column, least int) {
		widths[column] = min(widths[column], max(widths[column]-max(over(), 0), least))
	}
	give(0, nameGood)
	give(1, waitGood)
	if over() > 0 {
		widths = widths[:len(widths)-1]
	}
	give(0, nameLeast)
	give(1, waitLeast)
	return widths
}

func (t *table) write(w io.Writer, l Look) error {
	widths := make([]int, len(t.heads))
	for i, head := range t.heads {
		widths[i] = columns(head)
		for _, row := range t.rows {
			row[i].text = l.paper.plain(row[i].text)
			widths[i] = max(widths[i], columns(row[i].text))
		}
	}
	if l.paper.width > 0 && !l.Wide {
		widths = narrowed(widths, l.paper.width-1)
	}
	var b strings.Builder
	for r := range len(t.rows) + 1 {
		var line strings.Builder
		for i, head := range t.heads[:len(widths)] {
			cell := span{head, ""}
			if r > 0 {
				cell = t.rows[r-1][i]
			}
			text := l.paper.middle(cell.text, widths[i])
			line.WriteString(l.paper.paint(text, cell.colour))
			if i < len(widths)-1 {
				line.WriteString(strings.Repeat(" ", widths[i]-columns(text)) + gap)
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}
