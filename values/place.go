// SPDX-License-Identifier: Apache-2.0

package values

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"reflect"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v2"
)

// Place is where a text stands. It decides how values are quoted.
type Place string

// The places.
const (
	Path     Place = "a path"
	File     Place = "a file of no known format"
	Unit     Place = "a systemd file"
	KeyFile  Place = "a key file of NetworkManager"
	YAML     Place = "a YAML or JSON file"
	Argument Place = "a kernel argument"
)

// unitSuffixes are the suffixes of files that systemd's programs read.
var unitSuffixes = map[string]bool{
	".service": true, ".socket": true, ".timer": true, ".mount": true, ".automount": true, ".path": true, ".slice": true,
	".target": true, ".network": true, ".netdev": true, ".link": true, ".swap": true,
}

// PlaceOf returns the place that the contents of a file are, by its path.
func PlaceOf(name string) Place {
	switch ext := path.Ext(name); {
	case ext == ".nmconnection":
		return KeyFile
	case ext == ".yaml" || ext == ".yml" || ext == ".json":
		return YAML
	case unitSuffixes[ext], ext == ".conf" && strings.Contains(name, "/systemd/"):
		return Unit
	}
	return File
}

func (p Place) quotes() bool { return p != Path && p != File }

// before returns the literal text of pieces from the last line break on. Placeholders count as one letter. In a systemd
// file a line goes on behind a \ at its end.
func (p Place) before(pieces []piece) string {
	var b strings.Builder
	for _, one := range pieces {
		if one.named != nil {
			b.WriteString("x")
		} else {
			b.WriteString(one.literal)
		}
	}
	text := b.String()
	if p == Unit {
		text = strings.ReplaceAll(text, "\\\n", " ")
	}
	return text[strings.LastIndexByte(text, '\n')+1:]
}

// right reports whether a place on a line is right of the first =.
func right(line string) bool {
	return strings.Contains(line, "=") && !strings.ContainsAny(line[:1], "#;[")
}

// misplaced returns why a value may not stand behind that much of a line, "" where it may. A value never chooses the
// name of a setting or of an argument.
func (p Place) misplaced(kind, line string) string {
	switch p {
	case Argument:
		if line == "" || isSpace(rune(line[len(line)-1])) && strings.Count(line, `"`)%2 == 0 {
			return "a value may not begin a kernel argument"
		}
	case Unit, KeyFile:
		comment := kind != textType && strings.HasPrefix(line, "#")
		if !right(line) && !comment {
			return "a value stands behind a = in " + string(p)
		}
	default:
	}
	return ""
}

// fill returns the pieces with their values, which have passed the tests of their types.
func (p Place) fill(pieces []piece, given map[string]string) (string, error) {
	var b strings.Builder
	for i, one := range pieces {
		if one.named == nil {
			b.WriteString(one.literal)
			continue
		}
		value := given[one.named.Key]
		var err error
		switch p {
		case YAML:
			value = quoteYAML(one.named, value, p.before(pieces[:i]), pieces[i+1].literal)
		case Unit:
			value, err = quoteUnit(one.named, value, p.before(pieces[:i]))
		case KeyFile:
			value, err = quoteKey(one.named, value)
		case Argument:
			err = fitsArgument(one.named, value, p.before(pieces[:i]))
		case Path:
			if strings.Contains(value, "/") || value == "." || value == ".." {
				err = &invalidError{*one.named, "is not one part of a path"}
			}
		case File:
		}
		if err != nil {
			return "", err
		}
		b.WriteString(value)
	}
	out := b.String()
	switch p {
	case YAML:
		return out, sameTree(pieces, given, out)
	case Path:
		if path.Clean(out) != out {
			return "", fmt.Errorf("%s is not a clean path", out)
		}
	default:
	}
	return out, nil
}

// quoteUnit doubles what systemd would expand, and refuses what would end a word or a quoted text.
func quoteUnit(p *Placeholder, value, line string) (string, error) {
	if p.Type != textType {
		return strings.ReplaceAll(value, "%", "%%"), nil
	}
	if at := strings.IndexAny(value, `"'\`); at >= 0 {
		return "", &invalidError{*p, fmt.Sprintf("has %q, which can't be quoted in a unit", value[at])}
	}
	name, _, _ := strings.Cut(line, "=")
	name = strings.TrimSpace(name)
	quoted := strings.Count(line, `"`)%2 == 1
	if !quoted && name != "Description" && strings.ContainsAny(value, " ;#\t") {
		return "", &invalidError{*p, `has a space or ; and does not stand between "`}
	}
	if strings.TrimSpace(value) != value && !quoted {
		return "", &invalidError{*p, "begins or ends with a space"}
	}
	value = strings.ReplaceAll(value, "%", "%%")
	if strings.HasPrefix(name, "Exec") {
		value = strings.ReplaceAll(value, "$", "$$")
	}
	return value, nil
}

// quoteKey quotes for GLib's key files. A ; separates the entries of lists, and no quoting of it works for both.
func quoteKey(p *Placeholder, value string) (string, error) {
	if p.Type != textType {
		return value, nil
	}
	if strings.Contains(value, ";") {
		return "", &invalidError{*p, "has ;, which separates entries in a key file"}
	}
	value = strings.ReplaceAll(value, `\`, `\\`)
	if rest := strings.TrimLeft(value, " "); rest != value {
		value = strings.Repeat(`\s`, len(value)-len(rest)) + rest
	}
	if rest := strings.TrimRight(value, " "); rest != value {
		value = rest + strings.Repeat(`\s`, len(value)-len(rest))
	}
	return value, nil
}

// fitsArgument refuses what the kernel would read as more than one argument. To the kernel the byte 0xa0 is a space
// too, and letters of UTF-8 have such bytes.
func fitsArgument(p *Placeholder, value, line string) error {
	switch {
	case strings.Contains(value, `"`):
		return &invalidError{*p, `has ", which can't be quoted in a kernel argument`}
	case strings.ContainsFunc(value, func(r rune) bool { return r > '~' }):
		return &invalidError{*p, "has a character that is not ASCII, which parts kernel arguments"}
	case strings.ContainsFunc(value, isSpace) && strings.Count(line, `"`)%2 == 0:
		return &invalidError{*p, `has a space and does not stand between "`}
	}
	return nil
}

func isSpace(r rune) bool { return r == ' ' || r >= '\t' && r <= '\r' }

// quoteYAML quotes for the scalar that a placeholder stands in. sameTree finds out whether that was right.
func quoteYAML(p *Placeholder, value, line, after string) string {
	inner := func() string {
		text, err := json.Marshal(value)
		if err != nil {
			panic(err) // a string
		}
		return string(text)
	}
	head := strings.TrimRight(line, " ")
	end := strings.TrimLeft(after, " ")
	whole := (head == "" || strings.ContainsAny(head[len(head)-1:], ":-,[{")) &&
		(end == "" || strings.ContainsAny(end[:1], "\r\n,]}#"))
	switch {
	case strings.Count(strings.ReplaceAll(line, `\"`, ""), `"`)%2 == 1:
		text := inner()
		return text[1 : len(text)-1]
	case whole && p.Type != "number":
		return inner()
	case strings.Count(line, `'`)%2 == 1:
		return strings.ReplaceAll(value, "'", "''")
	}
	return value
}

// sameTree compares the filled text with what its author wrote: the same documents, with the values in scalars. A value
// that would be read as anything else is refused.
func sameTree(pieces []piece, given map[string]string, filled string) error {
	numbers := map[string]int{}
	var marks []string
	var b strings.Builder
	for i, p := range pieces {
		if p.named == nil {
			b.WriteString(p.literal)
			continue
		}
		mark, value := fmt.Sprintf("noderefitValue%dMark", i), given[p.named.Key]
		marks = append(marks, mark, value)
		line := YAML.before(pieces[:i])
		if n, err := strconv.Atoi(value); err == nil && p.named.Type == "number" && !strings.HasSuffix(line, `"`) &&
			!strings.HasSuffix(line, "'") {
			numbers[mark] = n
		}
		b.WriteString(mark)
	}
	want, err := documents(b.String())
	if err != nil {
		return fmt.Errorf("reading the file as YAML: %w", err)
	}
	have, err := documents(filled)
	if err != nil {
		return errors.New("with the node's values the file is no YAML; put the placeholder between \"")
	}
	// A value that is a key beside it would take the key's place: the trees have another number of keys then.
	if keys(want) == keys(have) && reflect.DeepEqual(marked(want, numbers, strings.NewReplacer(marks...)), any(have)) {
		return nil
	}
	return errors.New("a value changes the meaning of the YAML around it; put the placeholder between \"")
}

// keys returns how many keys the maps of a document have.
func keys(node any) int {
	n := 0
	switch in := node.(type) {
	case []any:
		for _, one := range in {
			n += keys(one)
		}
	case map[any]any:
		for _, one := range in {
			n += 1 + keys(one)
		}
	}
	return n
}

func documents(text string) ([]any, error) {
	var out []any
	for d := yaml.NewDecoder(strings.NewReader(text)); ; {
		var one any
		err := d.Decode(&one)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		out = append(out, one)
	}
}

// marked returns what a node of a document with marks should be with the values.
func marked(node any, numbers map[string]int, values *strings.Replacer) any {
	switch n := node.(type) {
	case string:
		if number, is := numbers[n]; is {
			return number
		}
		return values.Replace(n)
	case []any:
		out := make([]any, len(n))
		for i := range n {
			out[i] = marked(n[i], numbers, values)
		}
		return out
	case map[any]any:
		out := make(map[any]any, len(n))
		for k, v := range n {
			out[marked(k, numbers, values)] = marked(v, numbers, values)
		}
		return out
	}
	return node
}
