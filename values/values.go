// SPDX-License-Identifier: Apache-2.0

// Package values puts values of a node into the text of a configuration. A placeholder names a value and its type:
//
//	@{prefix:values/address}
//
// Everything here is a function of its arguments. A value is quoted for the place where it stands, and a value that
// can't be quoted there is refused. What a value says is never read for placeholders again.
package values

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

const (
	open   = "@{"
	escape = "@@{" // stands for the two characters of open
)

// Limits of one value and of one text, in bytes.
const (
	longestValue = 1024
	longestKey   = 253
)

// Placeholder is a value that a text names: its type, and the key of the value.
type Placeholder struct{ Type, Key string }

// String returns the placeholder as TYPE:KEY.
func (p Placeholder) String() string { return p.Type + ":" + p.Key }

// types are the types of values, each with its test.
var types = map[string]func(string) bool{
	"hostname": isHostname,
	"address":  func(v string) bool { a, err := netip.ParseAddr(v); return err == nil && a.Zone() == "" },
	"prefix":   func(v string) bool { _, err := netip.ParsePrefix(v); return err == nil },
	"number": func(v string) bool {
		n, err := strconv.ParseInt(v, 10, 64)
		return err == nil && strconv.FormatInt(n, 10) == v
	},
	"mac":       func(v string) bool { return mac().MatchString(v) },
	"interface": isInterface,
	"path":      isPath,
	"word":      isWord,
	"text":      isText,
}

// textType is the one type whose values have characters that a place may have to quote.
const textType = "text"

var (
	mac      = pattern(`^[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){5}$`)
	hostname = pattern(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*$`)
	device   = pattern(`^[A-Za-z0-9_][A-Za-z0-9._-]*$`)
	aKey     = pattern(`^[A-Za-z0-9._:/@+-]+$`)
	// plain are the characters that mean themselves in a shell, in a unit, in YAML beside others, and on a command line.
	plain = pattern(`^[A-Za-z0-9._:/@+=,-]*$`)
)

// pattern returns an expression that is compiled where it is first used: the program of the host starts in every boot.
func pattern(expression string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) })
}

func isHostname(v string) bool { return len(v) <= 253 && hostname().MatchString(v) }

func isInterface(v string) bool {
	return len(v) <= 15 && v != "." && v != ".." && device().MatchString(v)
}

func isPath(v string) bool {
	return strings.HasPrefix(v, "/") && path.Clean(v) == v && plain().MatchString(v[1:])
}

func isWord(v string) bool {
	return v != "" && plain().MatchString(v) && !strings.ContainsAny(v[:1], "-:@+=,") &&
		!slices.Contains(strings.Split(v, "/"), "..")
}

func isText(v string) bool {
	return v != "" && !strings.ContainsFunc(v, func(r rune) bool {
		return r < ' ' || r >= 0x7f && r < 0xa0 || r == 0xfffd ||
			r == 0x2028 || r == 0x2029
	})
}

// sources are the beginnings of keys with a name behind them. The key name, and the key zone, have none.
var sources = []string{"addresses/", "labels/", "annotations/", entrySource, hostSource}

// entrySource begins the keys of entries: of a NodeValues, or of a file on a host without a cluster.
const entrySource = "values/"

// hostSource begins the keys of facts that the host itself tells.
const hostSource = "host/"

// ParsePlaceholder reads TYPE:KEY.
func ParsePlaceholder(text string) (Placeholder, error) {
	kind, key, _ := strings.Cut(text, ":")
	p := Placeholder{kind, key}
	switch {
	case types[kind] == nil:
		return p, fmt.Errorf("placeholder %q: the type is none of %s", text,
			strings.Join(slices.Sorted(maps.Keys(types)), ", "))
	case len(key) > longestKey || !aKey().MatchString(key):
		return p, fmt.Errorf("placeholder %q: the key is no key: letters, digits and ._:/@+-", text)
	case key != "name" && key != "zone" && !slices.ContainsFunc(sources, func(s string) bool {
		return strings.HasPrefix(key, s) && len(key) > len(s)
	}):
		return p, fmt.Errorf("placeholder %q: the key is none of name, zone, %sNAME", text, strings.Join(sources, "NAME, "))
	}
	return p, nil
}

// piece is a part of a text: literal, or a placeholder.
type piece struct {
	literal string
	named   *Placeholder
}

func split(text string) ([]piece, error) {
	var out []piece
	literal := ""
	for {
		at := strings.Index(text, open)
		if at < 0 {
			return append(out, piece{literal: literal + text}), nil
		}
		if at > 0 && text[at-1] == '@' {
			literal += text[:at-1] + open
			text = text[at+len(open):]
			continue
		}
		rest := text[at+len(open):]
		end := strings.IndexAny(rest, "}\n")
		if end < 0 || rest[end] == '\n' {
			return nil, fmt.Errorf("a placeholder begins with %s and has no end on its line; write %s for the two characters",
				open, escape)
		}
		p, err := ParsePlaceholder(rest[:end])
		if err != nil {
			return nil, err
		}
		out = append(out, piece{literal: literal + text[:at]}, piece{named: &p})
		literal, text = "", rest[end+1:]
	}
}

// Named reports whether a text has placeholders, or their escape.
func Named(text string) bool { return strings.Contains(text, open) }

// In returns the placeholders of a text at a place. An error is about a placeholder that can't be read, or that can't
// be quoted at this place whatever its value is.
func In(text string, place Place) ([]Placeholder, error) {
	_, named, err := read(text, place)
	return named, err
}

// read returns the pieces of a text as well.
func read(text string, place Place) ([]piece, []Placeholder, error) {
	pieces, err := split(text)
	if err != nil {
		return nil, nil, err
	}
	var named []Placeholder
	for i, p := range pieces {
		if p.named == nil {
			continue
		}
		if p.named.Type == textType && !place.quotes() {
			return nil, nil, fmt.Errorf("placeholder %s: %s has no known quoting for a text; use the type word", p.named, place)
		}
		if why := place.misplaced(p.named.Type, place.before(pieces[:i])); why != "" {
			return nil, nil, fmt.Errorf("placeholder %s: %s", p.named, why)
		}
		named = append(named, *p.named)
	}
	return pieces, named, nil
}

// MissingError names the values that a node does not have.
type MissingError struct{ Keys []string }

func (e *MissingError) Error() string {
	return "the node has no value for " + strings.Join(e.Keys, ", ")
}

// invalidError is about a value that the place or the type refuses.
type invalidError struct {
	Placeholder Placeholder
	Reason      string
}

func (e *invalidError) Error() string {
	return fmt.Sprintf("the value of %s %s", e.Placeholder.Key, e.Reason)
}

// check checks a value against its type.
func (p Placeholder) check(value string) error {
	switch {
	case len(value) > longestValue:
		return &invalidError{p, fmt.Sprintf("is longer than %d bytes", longestValue)}
	case types[p.Type] == nil || !types[p.Type](value):
		return &invalidError{p, "is not of the type " + p.Type}
	}
	return nil
}

// Expand returns the text with the values of its placeholders, quoted for the place. It fails with a MissingError or an
// invalidError.
func Expand(text string, place Place, given map[string]string) (string, error) {
	pieces, named, err := read(text, place)
	if err != nil {
		return "", err
	}
	var missing []string
	for _, p := range named {
		value, is := given[p.Key]
		if !is {
			missing = append(missing, p.Key)
			continue
		}
		if err := p.check(value); err != nil {
			return "", err
		}
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		return "", &MissingError{slices.Compact(missing)}
	}
	return place.fill(pieces, given)
}

// Digest returns 8 hex digits of values: what stands behind the name of a configuration that was made with them. Facts
// of the host are left out, since only the host knows them.
func Digest(given map[string]string) string {
	told := maps.Clone(given)
	maps.DeleteFunc(told, func(k, _ string) bool { return strings.HasPrefix(k, hostSource) })
	if told == nil {
		told = map[string]string{}
	}
	text, err := json.Marshal(told) // in the order of the keys
	if err != nil {
		panic(err) // strings alone
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:4])
}

// Sort orders placeholders and drops repeated ones.
func Sort(list []Placeholder) []Placeholder {
	slices.SortFunc(list, func(a, b Placeholder) int {
		return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Type, b.Type))
	})
	return slices.Compact(list)
}
