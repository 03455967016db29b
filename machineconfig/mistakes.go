// SPDX-License-Identifier: Apache-2.0

package machineconfig

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/coreos/ignition/v2/config/v3_6/types"
)

// usualModes are the modes that people write.
var usualModes = []int{
	0o400, 0o440, 0o444, 0o500, 0o550, 0o555, 0o600, 0o640, 0o644, 0o660, 0o664, 0o666, 0o700, 0o710, 0o711, 0o750, 0o755,
	0o770, 0o775, 0o777, 0o1777, 0o2750, 0o2755, 0o2770, 0o2775, 0o4755, 0o6755,
}

// octalMeant returns how a mode was probably meant: JSON has no octal numbers, and YAML takes 644 for a decimal
// one. The result is "" for a mode that makes sense.
func octalMeant(mode int) string {
	meant, err := strconv.ParseInt(strconv.Itoa(mode), 8, 0)
	if err != nil || slices.Contains(usualModes, mode) || !slices.Contains(usualModes, int(meant)) {
		return ""
	}
	return fmt.Sprintf("%d is decimal, and %#o in octal; for %#o write %d, or in YAML %#o",
		mode, mode, meant, meant, meant)
}

// modes calls a function for each mode of a config that is not one of usualModes, with the field and the path.
func modes(cfg *types.Config, each func(field string, mode int)) {
	one := func(list string, i int, path string, mode *int) {
		if mode != nil && !slices.Contains(usualModes, *mode) {
			each(fmt.Sprintf("storage.%s[%d].mode (%s)", list, i, path), *mode)
		}
	}
	for i, f := range cfg.Storage.Files {
		one("files", i, f.Path, f.Mode)
	}
	for i, d := range cfg.Storage.Directories {
		one("directories", i, d.Path, d.Mode)
	}
}

// unusedKey begins the library's message about a field that it does not know.
const unusedKey = "unused key"

const noSuchField = "there is no such field"

// emptyFile returns what to say of a field that stands in place of a file's contents.
func emptyFile(name string) string {
	const source = "; its contents stand in source, as a data URL: data:,text"
	if name == "inline" || name == "local" {
		return name + " is a field of Butane, so the file would be empty here" + source
	}
	return noSuchField + ", so the file would be empty" + source
}

// unusedField returns what to say of a field that an Ignition config does not have. The field is the last of a place.
// emptied is true where a file would have no contents for it.
func unusedField(cfg *types.Config, at []any) (text string, emptied bool) {
	if len(at) == 0 {
		return unusedKey, false
	}
	name := fmt.Sprint(at[len(at)-1])
	kind := reflect.TypeFor[types.Config]()
	value := reflect.ValueOf(cfg).Elem()
	for _, step := range at[:len(at)-1] {
		kind, value = descend(kind, value, step)
		if kind == nil {
			return noSuchField, false
		}
	}
	if kind == reflect.TypeFor[types.Resource]() && at[0] == "storage" && at[1] == "files" {
		sourced := false
		if value.IsValid() {
			r, ok := reflect.TypeAssert[types.Resource](value)
			sourced = ok && r.Source != nil
		}
		if !sourced {
			return emptyFile(name), true
		}
	}
	if kind.Kind() != reflect.Struct {
		return noSuchField, false
	}
	if near := nearest(name, fieldNames(kind)); near != "" {
		return noSuchField + "; did you mean " + near + "?", false
	}
	return noSuchField, false
}

// descend returns the type, and the value as far as there is one, of a field or an element of a list. The type is nil
// where there is no such field.
func descend(kind reflect.Type, value reflect.Value, step any) (reflect.Type, reflect.Value) {
	for kind.Kind() == reflect.Pointer {
		kind = kind.Elem()
		if value.IsValid() {
			value = value.Elem()
		}
	}
	switch i, is := step.(int); {
	case is && kind.Kind() == reflect.Slice:
		if value.IsValid() && i < value.Len() {
			return kind.Elem(), value.Index(i)
		}
		return kind.Elem(), reflect.Value{}
	case kind.Kind() == reflect.Struct:
		for _, f := range reflect.VisibleFields(kind) {
			if jsonName(f) == fmt.Sprint(step) {
				if value.IsValid() {
					return f.Type, value.FieldByIndex(f.Index)
				}
				return f.Type, value
			}
		}
	}
	return nil, reflect.Value{}
}

func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

func fieldNames(kind reflect.Type) (names []string) {
	for _, f := range reflect.VisibleFields(kind) {
		if name := jsonName(f); name != "" {
			names = append(names, name)
		}
	}
	return names
}

// nearest returns the name that was probably meant: the one with the fewest wrong letters, of which there may be two.
// It returns "" where no name is near.
func nearest(name string, names []string) string {
	best, least := "", 3
	for _, n := range names {
		if d := distance(strings.ToLower(name), strings.ToLower(n)); d < least && 2*d < len(n) {
			best, least = n, d
		}
	}
	return best
}

// distance returns how many letters have to be put in, left out or replaced to make b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := before
			if a[i] != b[j] {
				cost = 1 + min(before, row[j], row[j+1])
			}
			before, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}

// misspelt returns the pool of which a name is a misspelling. The result is "" for the name of another pool: pools are
// named alike, such as worker, worker2, worker-a and worker-b, or cpu and gpu. So one word of at least five letters is
// misspelt, and the other words are the same.
func misspelt(pool string, pools []string) string {
	words := func(name string) []string {
		letters := strings.Map(func(r rune) rune {
			if '0' <= r && r <= '9' {
				return -1
			}
			return r
		}, name)
		return strings.FieldsFunc(letters, func(r rune) bool { return r == '-' || r == '.' })
	}
	as := words(pool)
	for _, known := range pools {
		like, wrong := words(known), 0
		if len(as) != len(like) {
			continue
		}
		for i := range as {
			switch {
			case as[i] == like[i]:
			case len(like[i]) >= 5 && nearest(as[i], like[i:i+1]) != "":
				wrong++
			default:
				wrong += 2
			}
		}
		if wrong == 1 {
			return known
		}
	}
	return ""
}

// mistaken returns the kind that was probably meant where a document has a kind that is nearly right. Kinds of the same
// group, such as MachineConfigNode, are not nearly right.
func (k Kinds) mistaken(kind string) string {
	if strings.HasPrefix(kind, "MachineOS") { // kinds of OpenShift that Noderefit has no use for
		return ""
	}
	known := []string{kindConfig, kindPool, kindConfig + "List", kindPool + "List"}
	for gvk := range k {
		known = append(known, gvk.Kind)
	}
	slices.Sort(known)
	return nearest(kind, known)
}
