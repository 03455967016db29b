// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/pmezard/go-difflib/difflib"
	"golang.org/x/crypto/ssh"

	"github.com/noderefit/noderefit/machineconfig"
)

// Diff is how an item that a Change names differs, for people to read.
type Diff struct {
	Kind Kind `json:"kind"`
	// Path is the path, the unit, the drop-in as unit/drop-in, or the user.
	Path string `json:"path"`
	// Diff is a line for each attribute that changes, and a unified diff of the contents. Each line ends.
	Diff string `json:"diff"`
	// Masked means that the contents may be a secret. Diff then has only their sizes.
	Masked bool `json:"masked"`
}

// diffContext is the number of lines of context. diffMaxLines is the most lines that the two sides may have together to
// be compared. The time for a comparison grows with their square. It is about a second at the limit, if every other
// line differs.
const (
	diffContext  = 3
	diffMaxLines = 10000
)

// Diffs shows what changes in files, directories, links, units, drop-ins, SSH keys and passwords, in the order of
// changes. changes are those from current to desired; current is nil for a host that was never configured. A change of
// another kind has no Diff, since the change itself shows everything.
func Diffs(current, desired *machineconfig.Config, changes []Change) []Diff {
	if current == nil {
		current = &machineconfig.Config{}
	}
	from, to := newContents(current), newContents(desired)
	out := []Diff{}
	for _, c := range changes {
		d := Diff{Kind: c.Kind, Path: cmp.Or(c.Path, c.Name, c.User)}
		switch c.Kind {
		case Password:
			d.Masked = true
			d.Diff = head(c.object(), c.Op) + "contents masked: the hash of a password\n"
		case User, Kargs, KernelType, Extensions, OSImage:
			continue
		default:
			d.Diff, d.Masked = compareSides(label(c), c.Op, from.side(c), to.side(c))
		}
		out = append(out, d)
	}
	return out
}

// label returns the name of an item in the heads of a diff.
func label(c Change) string {
	const units = "/etc/systemd/system/"
	switch c.Kind {
	case Unit:
		return units + c.Name
	case Dropin:
		unit, name, _ := strings.Cut(c.Name, "/")
		return units + unit + ".d/" + name
	case SSHKeys:
		return c.object()
	default:
		return c.Path
	}
}

// contents finds the items of a configuration by their keys.
type contents struct {
	config      *machineconfig.Config
	files       map[string]*machineconfig.File
	directories map[string]*machineconfig.Directory
	links       map[string]*machineconfig.Link
	units       map[string]*machineconfig.Unit
	users       map[string]*machineconfig.User
}

func newContents(c *machineconfig.Config) contents {
	return contents{
		config:      c,
		files:       byKey(c.Files, func(f *machineconfig.File) string { return f.Path }),
		directories: byKey(c.Directories, func(d *machineconfig.Directory) string { return d.Path }),
		links:       byKey(c.Links, func(l *machineconfig.Link) string { return l.Path }),
		units:       byKey(c.Units, func(u *machineconfig.Unit) string { return u.Name }),
		users:       byKey(c.Users, func(u *machineconfig.User) string { return u.Name }),
	}
}

func byKey[T any](things []T, key func(*T) string) map[string]*T {
	out := make(map[string]*T, len(things))
	for i := range things {
		out[key(&things[i])] = &things[i]
	}
	return out
}

// side is an item in one of the two configurations.
type side struct {
	there      bool
	attributes []attribute
	text       string
	withheld   string // why the text must not be shown
	shown      string // replaces the text, if it is not empty
	unknown    bool   // the text is the host's, and not known
}

type attribute struct{ name, value string }

func (c contents) side(change Change) side {
	switch change.Kind {
	case File:
		if f, ok := c.files[change.Path]; ok {
			s := side{
				there: true, attributes: []attribute{mode(f.Mode), owner(f.Owner)},
				text: string(f.Contents), withheld: c.config.Withheld(f),
			}
			if f.Reference != nil {
				s.text = ""
				s.attributes = append(s.attributes, attribute{"contents from", f.Reference.String()})
			}
			if s.unknown = f.NoContents; s.unknown {
				s.attributes = append(s.attributes, attribute{"contents", "as on the host"})
			}
			return s
		}
	case Directory:
		if d, ok := c.directories[change.Path]; ok {
			return side{there: true, attributes: []attribute{mode(d.Mode), owner(d.Owner)}}
		}
	case Link:
		if l, ok := c.links[change.Path]; ok {
			kind := map[bool]string{true: "hard link to", false: "link to"}[l.Hard]
			return side{there: true, attributes: []attribute{{kind, printed(l.Target)}, owner(l.Owner)}}
		}
	case Unit:
		if u, ok := c.units[change.Name]; ok {
			return side{
				there: true, attributes: []attribute{{"enabled", said(u.Enabled)}, {"masked", said(u.Mask)}},
				text: u.Contents, withheld: machineconfig.WithheldText(u.Contents),
			}
		}
	case Dropin:
		unit, name, _ := strings.Cut(change.Name, "/")
		if u, ok := c.units[unit]; ok {
			at := slices.IndexFunc(u.Dropins, func(d machineconfig.Dropin) bool { return d.Name == name })
			if at >= 0 {
				text := u.Dropins[at].Contents
				return side{there: text != "", text: text, withheld: machineconfig.WithheldText(text)}
			}
		}
	case SSHKeys:
		if u, ok := c.users[change.User]; ok && len(u.Keys) > 0 {
			text := strings.Join(u.Keys, "\n") + "\n"
			shown, known := fingerprints(u.Keys)
			why := machineconfig.WithheldText(text)
			if why == "" && !known {
				why = "a line of the file is not a public key"
			}
			return side{there: true, text: text, withheld: why, shown: shown}
		}
	default:
	}
	return side{}
}

// fingerprints returns authorized keys as people compare them, one line each: options, kind, fingerprint and comment,
// never the key. fingerprints leaves out lines that are no keys, and known is false then.
func fingerprints(keys []string) (text string, known bool) {
	var out strings.Builder
	known = true
	for line := range strings.SplitSeq(strings.Join(keys, "\n"), "\n") {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		key, comment, options, _, err := ssh.ParseAuthorizedKey([]byte(line))
		if err != nil {
			known = false
			continue
		}
		words := []string{key.Type(), ssh.FingerprintSHA256(key)}
		if len(options) > 0 {
			words = slices.Insert(words, 0, strings.Join(options, ","))
		}
		if comment != "" {
			words = append(words, comment)
		}
		out.WriteString(strings.Join(words, " ") + "\n")
	}
	return out.String(), known
}

func mode(m uint32) attribute { return attribute{"mode", fmt.Sprintf("%04o", m)} }

func owner(o machineconfig.Owner) attribute {
	name := func(id *int, name string) string {
		if id != nil {
			return strconv.Itoa(*id)
		}
		return cmp.Or(name, "root")
	}
	return attribute{"owner", printed(name(o.UID, o.User) + ":" + name(o.GID, o.Group))}
}

const notSaid = "not said"

func said(b *bool) string {
	if b == nil {
		return notSaid
	}
	return map[bool]string{true: "yes", false: "no"}[*b]
}

// head returns the two lines that a unified diff begins with.
func head(name string, op Op) string {
	from, to := printed(name), printed(name)
	switch op {
	case Add:
		from = "/dev/null"
	case Remove:
		to = "/dev/null"
	case Modify:
	}
	return "--- " + from + "\n+++ " + to + "\n"
}

// compareSides returns what differs, and whether the texts were masked.
func compareSides(name string, op Op, from, to side) (string, bool) {
	var out strings.Builder
	out.WriteString(head(name, op))
	out.WriteString(attributes(from.attributes, to.attributes))
	if from.text == to.text || to.unknown {
		return out.String(), false
	}
	if why := cmp.Or(to.withheld, from.withheld); why != "" {
		fmt.Fprintf(&out, "contents masked: %s -> %s: %s\n", size(from), size(to), why)
		return out.String(), true
	}
	was, is := cmp.Or(from.shown, from.text), cmp.Or(to.shown, to.text)
	switch {
	case !readable(was) || !readable(is):
		fmt.Fprintf(&out, "not text: %s -> %s\n", digest(from), digest(to))
	case strings.Count(was, "\n")+strings.Count(is, "\n") > diffMaxLines:
		fmt.Fprintf(&out, "too long to compare: %s -> %s\n", digest(from), digest(to))
	default:
		// Only the builder could fail, and it never does.
		_ = difflib.WriteUnifiedDiff(&out, difflib.UnifiedDiff{
			A: splitLines(was), B: splitLines(is), Context: diffContext,
		})
	}
	return out.String(), false
}

// attributes returns the attributes that differ, one line each.
func attributes(from, to []attribute) string {
	var out strings.Builder
	for _, a := range from {
		if len(to) > 0 && !slices.ContainsFunc(to, func(b attribute) bool { return b.name == a.name }) {
			fmt.Fprintf(&out, "was %s: %s\n", a.name, a.value)
		}
	}
	for _, b := range to {
		at := slices.IndexFunc(from, func(a attribute) bool { return a.name == b.name })
		switch {
		case at < 0 && b.value != notSaid:
			fmt.Fprintf(&out, "%s: %s\n", b.name, b.value)
		case at < 0:
		case from[at].value != b.value:
			fmt.Fprintf(&out, "%s: %s -> %s\n", b.name, from[at].value, b.value)
		}
	}
	return out.String()
}

func size(s side) string {
	if !s.there {
		return "nothing"
	}
	return fmt.Sprintf("%d bytes", len(s.text))
}

func digest(s side) string {
	if !s.there {
		return "nothing"
	}
	return fmt.Sprintf("%d bytes, sha256 %x", len(s.text), sha256.Sum256([]byte(s.text)))
}

// splitLines returns the lines of a text, each with its end. If the last line has no end, an added line says so, as in
// any diff.
func splitLines(text string) []string {
	out := slices.Collect(strings.Lines(text))
	if n := len(out); n > 0 && !strings.HasSuffix(out[n-1], "\n") {
		out[n-1] += "\n\\ No newline at end of file\n"
	}
	return out
}

// readable reports whether a terminal or a page shows a text as it is. Nothing in such a text moves the cursor, changes
// the direction of writing or is invisible.
func readable(text string) bool {
	text = strings.ReplaceAll(text, "\r\n", "\n")
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool {
		return r != '\n' && r != '\t' && !unicode.IsPrint(r)
	})
}

// printed returns any name on one line.
func printed(name string) string {
	if readable(name) && !strings.ContainsAny(name, "\n\t") {
		return name
	}
	return strconv.Quote(name)
}
