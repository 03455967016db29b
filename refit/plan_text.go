// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/noderefit/noderefit/message"
	"github.com/noderefit/noderefit/plan"
)

// The limits of the differences on a terminal, unless all are asked for: lines of one difference, lines of a group of
// nodes, and characters of a line.
const (
	shortDiff  = 40
	shortGroup = 400
	shortLine  = 200
)

// WriteText writes the plan for people, with all differences in files, or their beginnings. Times are in a zone.
func (d *PlanDocument) WriteText(w io.Writer, all bool, zone *time.Location) error {
	fmt.Fprintf(w, "pool %s: %s -> %s\n", d.Pool, cmp.Or(d.Current, "(nothing rendered)"), d.Desired)
	fmt.Fprintln(w, d.summary())
	for _, name := range d.Deleted {
		fmt.Fprintln(w, "without MachineConfig "+name)
	}
	for _, n := range d.Notes {
		fmt.Fprintln(w, "note: "+message.LocalTimes(n, zone))
	}
	for _, g := range d.Groups {
		fmt.Fprintf(w, "\n%s: %s\n", number(len(g.Nodes), "node"), some(g.Nodes, 5))
		if g.Plan == nil {
			fmt.Fprintln(w, "  no plan: "+g.Error)
			continue
		}
		if err := g.write(w, all); err != nil {
			return err
		}
	}
	if len(d.Groups) == 0 {
		fmt.Fprintln(w, "\nThe pool has no nodes.")
	}
	if d.Counts.Going > 0 {
		fmt.Fprintf(w, "\nOrder, %s: %s\n", d.atATime(), some(d.Order, 10))
		fmt.Fprintln(w, d.duration())
	}
	if len(d.Budgets) == 0 {
		return nil
	}
	fmt.Fprintln(w, "\nIn the way of the drain as things are:")
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "  NODE\tPOD\tBUDGET\tALLOWS\tELSEWHERE")
	for _, h := range d.Budgets {
		fmt.Fprintf(tw, "  %s\t%s/%s\t%s\t%d\t%s\n", h.Node, h.Namespace, h.Pod, h.Budget, h.Allowed, h.Placement)
	}
	return tw.Flush()
}

// write writes the plan of a group, indented.
func (g planGroup) write(w io.Writer, all bool) error {
	var text strings.Builder
	if err := g.Plan.WriteText(&text); err != nil {
		return err
	}
	if len(g.Diffs) > 0 {
		text.WriteString("\nDifferences:\n")
		for _, line := range differences(g.Diffs, all) {
			text.WriteString(indented(line+"\n", "  "))
		}
	}
	for line := range strings.Lines(text.String()) {
		fmt.Fprint(w, indented(line, "  "))
	}
	return nil
}

// indented returns a line with an indent, unless the line is empty.
func indented(line, indent string) string {
	if line == "\n" {
		return line
	}
	return indent + line
}

// differences returns the lines of diffs for a terminal.
func differences(diffs []plan.Diff, all bool) []string {
	var out []string
	for i, d := range diffs {
		if i > 0 {
			out = append(out, "")
		}
		if !all && len(out) >= shortGroup {
			return append(out, fmt.Sprintf("… %s: --diff all shows them", number(len(diffs)-i, "more difference")))
		}
		lines := strings.Split(strings.TrimSuffix(d.Diff, "\n"), "\n")
		if all {
			out = append(out, lines...)
			continue
		}
		for _, line := range lines[:min(len(lines), shortDiff)] {
			if utf8.RuneCountInString(line) > shortLine {
				line = string([]rune(line)[:shortLine]) + "…"
			}
			out = append(out, line)
		}
		if more := len(lines) - shortDiff; more > 0 {
			out = append(out, fmt.Sprintf("… %s: --diff all shows them", number(more, "more line")))
		}
	}
	return out
}

// summary returns the amount of work in one sentence.
func (d *PlanDocument) summary() string {
	c := d.Counts
	text := fmt.Sprintf("%d of %s would go: %d drained, %d rebooted",
		c.Going, number(c.Nodes, "node"), c.Drained, c.Reboots)
	if c.HeldPods != nil {
		text += fmt.Sprintf("; budgets hold %s now", number(*c.HeldPods, "pod"))
	}
	return text
}

func number(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// some returns the first of many names.
func some(names []string, most int) string {
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
