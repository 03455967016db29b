// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/noderefit/noderefit/message"
	"github.com/noderefit/noderefit/plan"
)

// commentLimit is how long a comment on GitHub may be, in characters. Other servers accept more. It is counted in
// bytes, which are never fewer.
const commentLimit = 65536

// mostListed is the largest number of entries in a list of a summary, so that the summary fits.
const mostListed = 20

// WriteMarkdown writes the plan as a comment of a pull request. Contents are shown as far as they fit. The summary is
// always whole.
func (d *PlanDocument) WriteMarkdown(w io.Writer) error {
	_, err := io.WriteString(w, d.comment(commentLimit))
	return err
}

func (d *PlanDocument) comment(limit int) string {
	const cut = "\n_Cut to fit into a comment: of %s less is shown than there is. `--diff all` without `-o markdown` " +
		"shows all._\n"
	c := comment{}
	c.summary(d)
	c.room = limit - c.text.Len() - len(cut) - len("9999999 differences")
	for _, g := range d.Groups {
		c.details(g)
	}
	if c.cut > 0 {
		fmt.Fprintf(&c.text, cut, number(c.cut, "difference"))
	}
	return c.text.String()
}

// comment is a text that is being written.
type comment struct {
	text strings.Builder
	room int // for details
	cut  int // how many details were cut or left out
}

func (c *comment) line(format string, args ...any) {
	fmt.Fprintf(&c.text, format+"\n", args...)
}

// list writes a list with a title, if the list has entries.
func (c *comment) list(title string, entries []string) {
	if len(entries) == 0 {
		return
	}
	c.line("\n**%s**\n", title)
	for _, e := range entries[:min(len(entries), mostListed)] {
		c.line("- %s", escaped(e))
	}
	if more := len(entries) - mostListed; more > 0 {
		c.line("- and %d more", more)
	}
}

func (c *comment) summary(d *PlanDocument) {
	// The first line lets the author of a comment find the comment again.
	c.line("<!-- kubectl refit plan %s -->", d.Pool)
	c.line("### Pool %s: %s\n", code(d.Pool), escaped(d.summary()))
	c.line("%s → %s\n", code(cmp.Or(d.Current, "(nothing rendered)")), code(d.Desired))
	if err := d.obstacle(); err != nil {
		c.line("**No node would go:** %s\n", escaped(message.OneLine(err.Error())))
	}
	if len(d.Groups) == 0 {
		c.line("The pool has no nodes.")
	} else {
		c.line("| nodes | from | would | because | pods held |\n|---|---|---|---|---|")
	}
	for _, g := range d.Groups {
		what, why := g.actions()
		c.line("| %s: %s | %s | %s | %s | %s |", number(len(g.Nodes), "node"), escaped(some(g.Nodes, 5)),
			code(cmp.Or(g.Current, "(never configured)")), what, why, d.heldOf(g))
	}
	if d.Counts.Going > 0 {
		c.line("\nOrder, %s: %s", d.atATime(), escaped(some(d.Order, 10)))
		c.line("\n%s.", escaped(d.duration()))
	}
	c.list("Notes", d.Notes)
	c.list("Warnings", d.Warnings)
	c.list("Without these MachineConfigs", d.Deleted)
	c.budgets(d.Budgets)
}

// budgets lists the budgets that block the drain.
func (c *comment) budgets(held []heldPod) {
	if len(held) == 0 {
		return
	}
	c.line("\n**In the way of the drain as things are**\n")
	c.line("| node | pod | budget | allows | elsewhere |\n|---|---|---|---|---|")
	for _, h := range held[:min(len(held), mostListed)] {
		c.line("| %s | %s | %s | %d | %s |", escaped(h.Node), escaped(h.Namespace+"/"+h.Pod), escaped(h.Budget), h.Allowed,
			escaped(h.Placement))
	}
	if more := len(held) - mostListed; more > 0 {
		c.line("\nand %s more", number(more, "pod"))
	}
}

// heldOf returns how many pods budgets hold on the nodes of a group.
func (d *PlanDocument) heldOf(g planGroup) string {
	if d.Counts.HeldPods == nil {
		return "not known"
	}
	n := 0
	for _, h := range d.Budgets {
		if slices.Contains(g.Nodes, h.Node) {
			n++
		}
	}
	return strconv.Itoa(n)
}

// actions returns what a group would do and by which rules, for two cells of a table.
func (g planGroup) actions() (what, why string) {
	switch {
	case g.Plan == nil:
		return "nothing: no plan", escaped(g.Error)
	case len(g.Plan.Unreconcilable) > 0:
		u := g.Plan.Unreconcilable[0]
		return "nothing: it can't get there", escaped(u.Field + ": " + u.Reason)
	case len(g.Plan.Changes) == 0:
		return "change nothing", ""
	case len(g.Plan.Actions) == 0:
		return "need no action", ""
	}
	var whats, whys []string
	for _, a := range g.Plan.Actions {
		word := strings.TrimSpace(string(a.Type) + " " + a.Service)
		if a.Type == plan.ActionReboot || a.Type == plan.ActionDrain {
			word = "**" + word + "**"
		} else {
			word = escaped(word)
		}
		if n := len(whys); n > 0 && whys[n-1] == escaped(a.Because) {
			whats[n-1] += ", " + word
			continue
		}
		whats, whys = append(whats, word), append(whys, escaped(a.Because))
	}
	return strings.Join(whats, "<br>"), strings.Join(whys, "<br>")
}

// details shows the changes of a group, folded.
func (c *comment) details(g planGroup) {
	if g.Plan == nil || len(g.Plan.Changes) == 0 && len(g.Plan.Unreconcilable) == 0 {
		return
	}
	const end = "\n</details>\n"
	title := fmt.Sprintf("\n<details><summary>%s from %s: %s</summary>\n", number(len(g.Nodes), "node"),
		code(cmp.Or(g.Current, "(never configured)")), number(len(g.Plan.Changes), "change"))
	var text strings.Builder
	// A write to a builder never fails.
	_ = g.Plan.WriteText(&text)
	if c.room < len(title)+len(end) {
		c.cut += 1 + len(g.Diffs)
		return
	}
	c.room -= len(title) + len(end)
	c.text.WriteString(title)
	c.fence("text", text.String())
	for _, d := range g.Diffs {
		c.fence("diff", d.Diff)
	}
	c.text.WriteString(end)
}

// fence shows a text unchanged, or as much of its beginning as fits.
func (c *comment) fence(language, text string) {
	const (
		more  = "… cut here\n"
		least = 3 // lines: a shorter beginning is of no use
	)
	whole := fenced(language, text)
	if len(whole) <= c.room {
		c.room -= len(whole)
		c.text.WriteString(whole)
		return
	}
	c.cut++
	room := c.room - (len(whole) - len(text)) - len(more)
	size, lines := 0, 0
	for line := range strings.Lines(text) {
		if size+len(line) > room {
			break
		}
		size += len(line)
		lines++
	}
	if lines >= least {
		part := fenced(language, text[:size]+more)
		c.room -= len(part)
		c.text.WriteString(part)
	}
}

// fenced puts a fence around a text that no part of the text can end.
func fenced(language, text string) string {
	longest, run := 0, 0
	for _, r := range text {
		if run++; r != '`' {
			run = 0
		}
		longest = max(longest, run)
	}
	mark := strings.Repeat("`", max(3, longest+1))
	return "\n" + mark + language + "\n" + strings.TrimSuffix(text, "\n") + "\n" + mark + "\n"
}

// code shows a name as code.
func code(name string) string { return "<code>" + escaped(name) + "</code>" }

// escaped returns a text without effect on Markdown, HTML or a table, on one line.
func escaped(text string) string {
	var out strings.Builder
	for _, r := range text {
		switch {
		case unicode.IsLetter(r), unicode.IsDigit(r), strings.ContainsRune(" .,:;/()=+-'%→…", r):
			out.WriteRune(r)
		case unicode.IsSpace(r):
			out.WriteByte(' ')
		case r == '@', r == '#':
			// A page makes links to people and issues in the text.
			fmt.Fprintf(&out, "&#%d;<!-- -->", r)
		case unicode.IsPrint(r):
			fmt.Fprintf(&out, "&#%d;", r)
		default:
			fmt.Fprintf(&out, "U+%04X", r)
		}
	}
	return out.String()
}
