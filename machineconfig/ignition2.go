// SPDX-License-Identifier: Apache-2.0

package machineconfig

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/coreos/ign-converter/translate/v23tov30"
	"github.com/coreos/ignition/config/v2_3"
	"github.com/coreos/ignition/config/v2_3/types"
	"github.com/coreos/ignition/config/validate/report"
)

// convertIgnition2 converts a config of version 2.2 or 2.3 to 3.0. In version 2 later entries may repeat earlier ones,
// which version 3 refuses. So repeated files, units and users are first merged as version 2 would have applied them.
func convertIgnition2(raw []byte, age age) (*ignition, []string, error) {
	cfg, rpt, err := v2_3.Parse(raw)
	warnings, fatal := []string(nil), unplaced(raw)
	for _, e := range rpt.Entries {
		if len(fatal) > 0 && (e.Message == noFilesystem || e.Message == notAbsolute) {
			continue // the report has this message for each field beside the missing field
		}
		at, said, emptied := placeOf(raw, e), e.Message, false
		if key, unknown := strings.CutPrefix(said, unusedKey2); unknown {
			said = noSuchField
			if emptied = emptied2(raw, at); emptied {
				said = emptyFile(key)
			}
		}
		text := at + ": " + said
		if e.Kind == report.EntryError || emptied && age == offered {
			fatal = append(fatal, text)
		} else {
			warnings = append(warnings, text)
		}
	}
	if err != nil && len(fatal) == 0 {
		fatal = []string{err.Error()}
	}
	if len(fatal) > 0 {
		return nil, warnings, errors.New(strings.Join(fatal, "\n"))
	}
	if err := onRoot(cfg); err != nil {
		return nil, warnings, err
	}
	dedupe2(&cfg)
	v3, err := v23tov30.Translate(cfg, nil)
	if err != nil {
		return nil, warnings, fmt.Errorf("ignition: converting from version 2: %s",
			strings.Join(strings.Fields(err.Error()), " "))
	}
	out, err := json.Marshal(v3)
	if err != nil {
		return nil, warnings, fmt.Errorf("ignition: converting from version 2: %w", err)
	}
	ign, err := decodeIgnition(out)
	if err != nil {
		return nil, warnings, fmt.Errorf("ignition: converting from version 2: %w", err)
	}
	return ign, warnings, nil
}

// The messages of version 2 about an entry without a place.
const (
	noFilesystem = "no filesystem specified"
	notAbsolute  = "path not absolute"
)

// unplaced returns the entries without a file system or without an absolute path, by field.
func unplaced(raw []byte) (wrong []string) {
	type node struct {
		Filesystem string `json:"filesystem"`
		Path       string `json:"path"`
	}
	var doc struct {
		Storage struct {
			Files       []node `json:"files"`
			Directories []node `json:"directories"`
			Links       []node `json:"links"`
		} `json:"storage"`
	}
	_ = json.Unmarshal(raw, &doc) // a value of another type has its own error
	for _, list := range []struct {
		name  string
		nodes []node
	}{{"files", doc.Storage.Files}, {"directories", doc.Storage.Directories}, {"links", doc.Storage.Links}} {
		for i, n := range list.nodes {
			of := ""
			if n.Path != "" {
				of = " (" + n.Path + ")"
			}
			if n.Filesystem == "" {
				wrong = append(wrong, fmt.Sprintf("storage.%s[%d].filesystem%s: %s", list.name, i, of, noFilesystem))
			}
			if !strings.HasPrefix(n.Path, "/") {
				wrong = append(wrong, fmt.Sprintf("storage.%s[%d].path%s: %s", list.name, i, of, notAbsolute))
			}
		}
	}
	return wrong
}

// unusedKey2 begins the library's message about a field of version 2 that it does not know.
const unusedKey2 = "Config has unrecognized key: " //nolint:misspell // the library's spelling

var contentsOf = regexp.MustCompile(`^storage\.files\[(\d+)\]\.(contents|append)`)

// emptied2 reports whether an unknown field stands where a file has no other contents.
func emptied2(raw []byte, at string) bool {
	part := contentsOf.FindStringSubmatch(at)
	if part == nil {
		return false
	}
	var doc struct {
		Storage struct {
			Files []struct {
				Contents struct {
					Source *string `json:"source"`
				} `json:"contents"`
			} `json:"files"`
		} `json:"storage"`
	}
	_ = json.Unmarshal(raw, &doc) // a value of another type has its own error
	i, err := strconv.Atoi(part[1])
	return err == nil && i < len(doc.Storage.Files) && doc.Storage.Files[i].Contents.Source == nil
}

// placeOf spells the place of an entry of a report like errors about version 3, such as storage.files[3].mode (/etc/x).
func placeOf(raw []byte, e report.Entry) string {
	at := ""
	if e.Line > 0 {
		at = fieldAt(raw, offset(raw, e.Line, e.Column))
	}
	if at == "" {
		return "ignition"
	}
	if name := nameIn(raw, at); name != "" {
		at += " (" + name + ")"
	}
	return at
}

var listEntry = regexp.MustCompile(`^(\w+)\.(\w+)\[(\d+)\]`)

// nameIn returns the path or name of the list entry in which a place lies. It is empty for an entry without both.
func nameIn(raw []byte, at string) string {
	part := listEntry.FindStringSubmatch(at)
	if part == nil {
		return ""
	}
	var doc map[string]json.RawMessage
	var section map[string]json.RawMessage
	var list []struct {
		Path string `json:"path"`
		Name string `json:"name"`
	}
	if json.Unmarshal(raw, &doc) != nil || json.Unmarshal(doc[part[1]], &section) != nil {
		return ""
	}
	_ = json.Unmarshal(section[part[2]], &list) // a value of another type has its own error
	if i, err := strconv.Atoi(part[3]); err == nil && i < len(list) {
		return cmp.Or(list[i].Path, list[i].Name)
	}
	return ""
}

// offset returns the offset of a line and column, both counted from one.
func offset(raw []byte, line, column int) int64 {
	at := 0
	for ; line > 1; line-- {
		n := bytes.IndexByte(raw[at:], '\n')
		if n < 0 {
			break
		}
		at += n + 1
	}
	return int64(at + column)
}

// onRoot refuses entries on a file system other than the root, because version 3 has no name for such file systems.
func onRoot(cfg types.Config) error {
	check := func(list string, i int, n types.Node) error {
		if n.Filesystem != "root" {
			return fmt.Errorf("storage.%s[%d].filesystem (%s): must be \"root\", is %q", list, i, n.Path, n.Filesystem)
		}
		return nil
	}
	var errs []error
	for i, f := range cfg.Storage.Files {
		errs = append(errs, check("files", i, f.Node))
	}
	for i, d := range cfg.Storage.Directories {
		errs = append(errs, check("directories", i, d.Node))
	}
	for i, l := range cfg.Storage.Links {
		errs = append(errs, check("links", i, l.Node))
	}
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// dedupe2 merges repeated entries. It keeps the last file, directory or link at a path. A unit has its last contents,
// with the drop-ins of all its entries (the last of each name). A user has the last entry, with the keys of all
// entries.
func dedupe2(cfg *types.Config) {
	if r := cfg.Ignition.Config.Replace; r != nil && r.Source == "" {
		cfg.Ignition.Config.Replace = nil
	}
	cfg.Storage.Files = lastBy(cfg.Storage.Files, func(f types.File) string { return f.Path })
	cfg.Storage.Directories = lastBy(cfg.Storage.Directories, func(d types.Directory) string { return d.Path })
	cfg.Storage.Links = lastBy(cfg.Storage.Links, func(l types.Link) string { return l.Path })

	at := map[string]int{}
	units := []types.Unit{}
	for _, u := range cfg.Systemd.Units {
		if u.Enable && u.Enabled == nil {
			enabled := true
			u.Enabled = &enabled
		}
		u.Enable = false
		i, ok := at[u.Name]
		if !ok {
			at[u.Name] = len(units)
			units = append(units, u)
			continue
		}
		had := &units[i]
		had.Dropins = append(slices.Clip(had.Dropins), u.Dropins...)
		if u.Contents != "" {
			had.Contents = u.Contents
		}
		if u.Enabled != nil {
			had.Enabled = u.Enabled
		}
		had.Mask = had.Mask || u.Mask
	}
	for i := range units {
		units[i].Dropins = lastBy(units[i].Dropins, func(d types.SystemdDropin) string { return d.Name })
	}
	cfg.Systemd.Units = units

	clear(at)
	users := []types.PasswdUser{}
	for _, u := range cfg.Passwd.Users {
		i, ok := at[u.Name]
		if !ok {
			at[u.Name] = len(users)
			users = append(users, u)
			continue
		}
		had := users[i]
		u.SSHAuthorizedKeys = append(slices.Clip(had.SSHAuthorizedKeys), u.SSHAuthorizedKeys...)
		if u.PasswordHash == nil {
			u.PasswordHash = had.PasswordHash
		}
		users[i] = u
	}
	for i := range users {
		u := &users[i]
		u.SSHAuthorizedKeys = lastBy(u.SSHAuthorizedKeys, func(k types.SSHAuthorizedKey) string { return string(k) })
	}
	cfg.Passwd.Users = users
}

// lastBy keeps the last entry of each key, at the place of the first entry.
func lastBy[T any](list []T, key func(T) string) []T {
	at := make(map[string]int, len(list))
	var out []T
	for _, e := range list {
		k := key(e)
		if i, ok := at[k]; ok {
			out[i] = e
			continue
		}
		at[k] = len(out)
		out = append(out, e)
	}
	return out
}
