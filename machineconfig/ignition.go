// SPDX-License-Identifier: Apache-2.0

package machineconfig

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/coreos/go-semver/semver"
	types2_3 "github.com/coreos/ignition/config/v2_3/types"
	"github.com/coreos/ignition/v2/config/util"
	types3_0 "github.com/coreos/ignition/v2/config/v3_0/types"
	types3_1 "github.com/coreos/ignition/v2/config/v3_1/types"
	types3_2 "github.com/coreos/ignition/v2/config/v3_2/types"
	types3_3 "github.com/coreos/ignition/v2/config/v3_3/types"
	types3_4 "github.com/coreos/ignition/v2/config/v3_4/types"
	types3_5 "github.com/coreos/ignition/v2/config/v3_5/types"
	"github.com/coreos/ignition/v2/config/v3_6"
	"github.com/coreos/ignition/v2/config/v3_6/types"
	"github.com/coreos/ignition/v2/config/validate"
	"github.com/coreos/vcontext/path"
	"github.com/coreos/vcontext/report"
	kjson "sigs.k8s.io/json"
)

// specialBits are setuid, setgid and sticky. Ignition applies them from 3.6 on, and drops them silently before.
const specialBits = 0o7000

// ignitionTypes makes the root of each supported version, by minor version of 3.
var ignitionTypes = []func() any{
	func() any { return new(types3_0.Config) },
	func() any { return new(types3_1.Config) },
	func() any { return new(types3_2.Config) },
	func() any { return new(types3_3.Config) },
	func() any { return new(types3_4.Config) },
	func() any { return new(types3_5.Config) },
	func() any { return new(types.Config) },
}

// ignition is one Ignition config that is being read. Its JSON is well formed and its fields have the right types.
type ignition struct {
	raw   []byte
	two   bool  // is of version 2, so it still has to be converted
	minor int64 // of version 3
	cfg   types.Config
	// exact means that Ignition's own parser would make the same cfg of raw, if raw is valid. This holds for the parts
	// that all versions have in common, so for nearly every document. Other documents take the library's chain of
	// translations, which parses the document once for each version.
	exact bool
}

// decodeIgnition reads an Ignition config of any version without checking its contents. Fields in errors are relative
// to the config.
func decodeIgnition(raw []byte) (*ignition, error) {
	ign := &ignition{raw: raw}
	unknown, err := kjson.UnmarshalStrict(raw, &ign.cfg)
	var version *semver.Version
	if err == nil && len(unknown) == 0 {
		version, err = semver.NewVersion(ign.cfg.Ignition.Version)
	} else {
		var v semver.Version
		if v, _, err = util.GetConfigVersion(raw); err == nil {
			version = &v
		}
		unknown = []error{errors.New("not all fields are known")}
	}
	if err != nil {
		if err := typeError(raw, new(struct {
			Ignition struct{ Version string }
		})); err != nil {
			return nil, err
		}
		if ign.cfg.Ignition.Version == "" {
			return nil, fmt.Errorf("ignition.version: is required: write %s", probable(raw))
		}
		return nil, fmt.Errorf("ignition.version: %q is not a version", ign.cfg.Ignition.Version)
	}
	stable := version.Patch == 0 && version.PreRelease == ""
	switch {
	case stable && version.Major == 2 && (version.Minor == 2 || version.Minor == 3):
		ign.two = true
		return ign, typeError(raw, new(types2_3.Config))
	case stable && version.Major == 3 && version.Minor <= types.MaxVersion.Minor:
		ign.minor = version.Minor
	default:
		return nil, fmt.Errorf("ignition.version: %s is not supported; 2.2.0, 2.3.0 and 3.0.0 to %s are",
			version, types.MaxVersion)
	}
	if ign.exact = len(unknown) == 0 && ign.common(); !ign.exact {
		return ign, typeError(raw, ignitionTypes[ign.minor]())
	}
	return ign, nil
}

// probable returns the version that a config without one probably has. Only configs of version 2 name file systems.
func probable(raw []byte) string {
	var c struct {
		Storage struct {
			Files []struct {
				Filesystem *string `json:"filesystem"`
			} `json:"files"`
		} `json:"storage"`
	}
	if json.Unmarshal(raw, &c) == nil && len(c.Storage.Files) > 0 && c.Storage.Files[0].Filesystem != nil {
		return "2.2.0, for storage.files[0].filesystem is a field of version 2"
	}
	return writtenVersion
}

// common reports whether the config uses only the parts that every 3.x version spells, means and checks in the same
// way.
func (ign *ignition) common() bool {
	resource := func(r types.Resource) bool {
		return r.HTTPHeaders == nil && (ign.minor > 0 || r.Verification.Hash == nil)
	}
	mode := func(m *int) bool {
		return ign.minor == types.MaxVersion.Minor || m == nil || *m&specialBits == 0
	}
	c := &ign.cfg
	if !onlyCommon(c) {
		return false
	}
	for i := range c.Passwd.Users {
		if c.Passwd.Users[i].ShouldExist != nil && ign.minor < 2 {
			return false
		}
	}
	for i := range c.Storage.Files {
		f := &c.Storage.Files[i]
		if !mode(f.Mode) || !resource(f.Contents) {
			return false
		}
		for _, a := range f.Append {
			if !resource(a) {
				return false
			}
		}
	}
	for i := range c.Storage.Directories {
		if !mode(c.Storage.Directories[i].Mode) {
			return false
		}
	}
	for i := range c.Storage.Links {
		if util.NilOrEmpty(c.Storage.Links[i].Target) {
			return false
		}
	}
	return true
}

// withoutCommon returns the config without its files, directories, links, units and users.
func withoutCommon(cfg *types.Config) types.Config {
	rest := *cfg
	rest.Ignition.Version = ""
	rest.Passwd.Users = nil
	rest.Storage.Files, rest.Storage.Directories, rest.Storage.Links = nil, nil, nil
	rest.Systemd.Units = nil
	return rest
}

func onlyCommon(cfg *types.Config) bool {
	return reflect.ValueOf(withoutCommon(cfg)).IsZero()
}

// parse validates as Ignition does. It returns the config as one of 3.6, the decoded contents of its files, and
// warnings. The error has one line for each wrong field.
func (ign *ignition) parse(age age) (types.Config, contents, []string, error) {
	if ign.two {
		three, warnings, err := convertIgnition2(ign.raw, age)
		if err != nil {
			return types.Config{}, nil, warnings, err
		}
		cfg, decoded, more, err := three.parse3(age)
		return cfg, decoded, append(warnings, more...), err
	}
	return ign.parse3(age)
}

// parse3 does what parse does, for a config of version 3.
func (ign *ignition) parse3(age age) (types.Config, contents, []string, error) {
	if ign.two {
		return types.Config{}, nil, nil, errors.New("ignition.version: of a rendered MachineConfig must be 3")
	}
	if ign.exact {
		ign.cfg.Ignition.Version = types.MaxVersion.String()
		decoded, known, problems := decodeContents(&ign.cfg)
		warnings, err := judge(&ign.cfg, validateIgnition(&ign.cfg, known), problems, age)
		return ign.cfg, decoded, warnings, err
	}
	raw, back := withoutImages(ign.raw, &ign.cfg)
	cfg, rpt, err := v3_6.ParseCompatibleVersion(raw)
	back(&cfg)
	// Only the names in messages use the result, so it may be incomplete.
	_ = json.Unmarshal(ign.raw, &ign.cfg)
	problems := ign.droppedBits()
	if err != nil {
		if !rpt.IsFatal() {
			return cfg, nil, nil, err
		}
		_, err := judge(&ign.cfg, rpt, problems, age)
		return cfg, nil, nil, err
	}
	decoded, _, more := decodeContents(&cfg)
	warnings, err := judge(&ign.cfg, rpt, append(problems, more...), age)
	return cfg, decoded, warnings, err
}

// droppedBits returns problems for the modes that the library would silently change.
func (ign *ignition) droppedBits() (problems []string) {
	if ign.minor == types.MaxVersion.Minor {
		return nil
	}
	check := func(list string, i int, path string, mode *int) {
		if mode == nil || *mode&specialBits == 0 || *mode&^0o7777 != 0 {
			return
		}
		why := fmt.Sprintf("setuid, setgid and sticky bits (%#o) need ignition.version %s", *mode, types.MaxVersion)
		if meant := octalMeant(*mode); meant != "" {
			why = meant
		}
		problems = append(problems, fmt.Sprintf("storage.%s[%d].mode (%s): %s", list, i, path, why))
	}
	for i, f := range ign.cfg.Storage.Files {
		check("files", i, f.Path, f.Mode)
	}
	for i, d := range ign.cfg.Storage.Directories {
		check("directories", i, d.Path, d.Mode)
	}
	return problems
}

// decodeContents decodes the contents of every file. known has the sources that the library need not check again. Each
// problem begins with the field. Decoding stops after the file with which compressed contents grow too large.
func decodeContents(cfg *types.Config) (decoded contents, known map[*string]bool, problems []string) {
	var dec contentsDecoder
	decoded = make(contents, len(cfg.Storage.Files))
	known = make(map[*string]bool, len(cfg.Storage.Files))
	one := func(res types.Resource, field, path string) {
		if dec.expanded > maxExpanded {
			return
		}
		data, certain, err := dec.resource(res)
		if err != nil {
			known[res.Source] = certain // the library's complaint would be another one
			name, rest, _ := strings.Cut(err.Error(), ": ")
			problems = append(problems, fmt.Sprintf("%s.%s (%s): %s", field, name, path, rest))
			return
		}
		if res.Source != nil {
			decoded[res.Source] = data
			known[res.Source] = certain
		}
	}
	for i := range cfg.Storage.Files {
		f := &cfg.Storage.Files[i]
		at := "storage.files[" + strconv.Itoa(i) + "]"
		one(f.Contents, at+".contents", f.Path)
		if !util.NilOrEmpty(f.Contents.Source) && fetched(*f.Contents.Source) {
			if why := judged(f.Path); why != "" {
				problems = append(problems, fmt.Sprintf("%s.contents.source (%s): %s", at, f.Path, why))
			}
		}
		for j, a := range f.Append {
			one(a, fmt.Sprintf("%s.append[%d]", at, j), f.Path)
			if !util.NilOrEmpty(a.Source) && fetched(*a.Source) {
				problems = append(problems, fmt.Sprintf("%s.append[%d].source (%s): appended contents must be in the document "+
					"itself as a data: URL", at, j, f.Path))
			}
		}
	}
	return decoded, known, problems
}

// validateIgnition has the library validate the config, except the sources of files that are known to be valid.
func validateIgnition(cfg *types.Config, known map[*string]bool) report.Report {
	light := *cfg
	light.Ignition.Version = types.MaxVersion.String() // every version that reaches this point is supported
	light.Storage.Files = slices.Clone(cfg.Storage.Files)
	short := "data:,"
	replace := func(source *string) *string {
		if known[source] {
			return &short
		}
		return source
	}
	for i := range light.Storage.Files {
		f := &light.Storage.Files[i]
		f.Contents.Source = replace(f.Contents.Source)
		f.Append = slices.Clone(f.Append)
		for j := range f.Append {
			f.Append[j].Source = replace(f.Append[j].Source)
		}
	}
	if clean(&light) {
		return report.Report{}
	}
	return validate.ValidateWithContext(light, nil)
}

// clean applies the library's own rules, type by type, to a config that uses only the common parts. The library finds
// its rules by reflection, which takes several times as long as the rules themselves. So only configs that do not pass
// here go through the library.
func clean(cfg *types.Config) bool {
	at := path.New("json")
	ok := func(r report.Report) bool { return len(r.Entries) == 0 }
	if !ok(cfg.Validate(at)) || !ok(cfg.Ignition.Validate(at)) || !ok(cfg.Storage.Validate(at)) {
		return false
	}
	// The rule of a list of units concerns instances of templates. It compiles an expression each time.
	instance := func(u types.Unit) bool { return strings.Contains(u.Name, "@") }
	if slices.ContainsFunc(cfg.Systemd.Units, instance) && !ok(cfg.Systemd.Validate(at)) {
		return false
	}
	n := len(cfg.Storage.Files) + len(cfg.Storage.Directories) + len(cfg.Storage.Links)
	paths := make(map[string]bool, n)
	node := func(n *types.Node) bool {
		again := paths[n.Path]
		paths[n.Path] = true
		return !again && ok(n.Validate(at)) && ok(n.User.Validate(at)) && ok(n.Group.Validate(at))
	}
	resource := func(r *types.Resource) bool {
		return r.HTTPHeaders == nil && ok(r.Validate(at)) && ok(r.Verification.Validate(at))
	}
	for i := range cfg.Storage.Files {
		f := &cfg.Storage.Files[i]
		if !node(&f.Node) || !ok(f.Validate(at)) || !resource(&f.Contents) {
			return false
		}
		for j := range f.Append {
			if !resource(&f.Append[j]) {
				return false
			}
		}
	}
	for i := range cfg.Storage.Directories {
		if d := &cfg.Storage.Directories[i]; !node(&d.Node) || !ok(d.Validate(at)) {
			return false
		}
	}
	for i := range cfg.Storage.Links {
		if !node(&cfg.Storage.Links[i].Node) {
			return false
		}
	}
	for i := range cfg.Systemd.Units {
		u := &cfg.Systemd.Units[i]
		if !ok(u.Validate(at)) || !distinct(u.Dropins) {
			return false
		}
		for j := range u.Dropins {
			if !ok(u.Dropins[j].Validate(at)) {
				return false
			}
		}
	}
	for i := range cfg.Passwd.Users {
		u := &cfg.Passwd.Users[i]
		if repeats(u.SSHAuthorizedKeys) || repeats(u.Groups) {
			return false
		}
	}
	return distinct(cfg.Systemd.Units) && distinct(cfg.Passwd.Users)
}

func distinct[T util.Keyed](list []T) bool {
	seen := make(map[string]bool, len(list))
	for _, e := range list {
		seen[e.Key()] = true
	}
	return len(seen) == len(list)
}

func repeats[T comparable](list []T) bool {
	seen := make(map[T]bool, len(list))
	for _, e := range list {
		seen[e] = true
	}
	return len(seen) < len(list)
}

// internals begins a warning of the library about itself: the library can't report lines and columns, which are not
// used here.
const internals = "context tree does not match content tree"

// judge turns a report and further problems into warnings and one error. In an existing document, a field that empties
// a file is a warning.
func judge(cfg *types.Config, rpt report.Report, problems []string, age age) (warnings []string, err error) {
	var fatal []string
	for _, e := range rpt.Entries {
		if strings.HasPrefix(e.Message, internals) {
			continue
		}
		said, emptied := e.Message, false
		if strings.HasPrefix(said, unusedKey) {
			said, emptied = unusedField(cfg, e.Context.Path)
		}
		text := field(cfg, e.Context) + ": " + strings.ReplaceAll(said, "\n", " ")
		if e.Kind.IsFatal() || emptied && age == offered {
			fatal = append(fatal, text)
		} else {
			warnings = append(warnings, text)
		}
	}
	seen := map[string]bool{}
	for _, text := range fatal {
		name, _, _ := strings.Cut(text, " ")
		seen[name] = true
	}
	for _, text := range problems {
		// A problem that the library has already refused needs no second explanation.
		if name, _, _ := strings.Cut(text, " "); !seen[name] {
			fatal = append(fatal, text)
		}
	}
	for i, text := range fatal {
		fatal[i] = explained(cfg, text)
	}
	if len(fatal) > 0 {
		return warnings, errors.New(strings.Join(fatal, "\n"))
	}
	modes(cfg, func(field string, mode int) {
		if why := octalMeant(mode); why != "" {
			warnings = append(warnings, field+": "+why)
		}
	})
	return append(warnings, doubtfulUsers(cfg.Passwd.Users)...), nil
}

// doubtfulUsers returns a warning for each key that is no line of an authorized_keys, and for each password that is
// not hashed. The warnings quote neither.
func doubtfulUsers(users []types.PasswdUser) (warnings []string) {
	for i, u := range users {
		for k, key := range u.SSHAuthorizedKeys {
			if text := strings.TrimSpace(string(key)); text != "" && !keyType.MatchString(text) {
				warnings = append(warnings, fmt.Sprintf("passwd.users[%d].sshAuthorizedKeys[%d] (%s): is no public key; write a "+
					"line such as: ssh-ed25519 AAAA... name", i, k, u.Name))
			}
		}
		if u.PasswordHash != nil && *u.PasswordHash != "" && !hashed.MatchString(*u.PasswordHash) {
			warnings = append(warnings, fmt.Sprintf("passwd.users[%d].passwordHash (%s): is no hash, so no password would fit; "+
				"make one, for example with mkpasswd", i, u.Name))
		}
	}
	return warnings
}

var (
	keyType = regexp.MustCompile(`(?m)(^|\s)(ssh|ecdsa|sk-ssh|sk-ecdsa)-\S+\s+\S|^#`)
	// hashed matches crypt(5)'s forms, and those that lock an account.
	hashed = regexp.MustCompile(`^([$_!*]|[./0-9A-Za-z]{13}$)`)
)

// explained adds to a message of the library what to do, where the message alone does not say so.
func explained(cfg *types.Config, text string) string {
	switch {
	case strings.HasSuffix(text, ": invalid url scheme"):
		return text + "; the contents stand here themselves, as a data URL: data:,text"
	case strings.HasSuffix(text, ": invalid compression method"):
		return text + "; write gzip, or leave compression out"
	case strings.HasSuffix(text, ": invalid systemd drop-in extension"):
		return text + "; let the name end with .conf"
	case strings.HasSuffix(text, ": path is not fully simplified"):
		return text + "; leave out a slash at the end, and // and .."
	case strings.HasSuffix(text, ": illegal file mode"):
		modes(cfg, func(field string, mode int) {
			if why := octalMeant(mode); why != "" && field+": illegal file mode" == text {
				text += "; " + why
			}
		})
	}
	return text
}

// field spells the place of an entry of a report, such as storage.files[3].mode (/etc/x).
func field(cfg *types.Config, at path.ContextPath) string {
	var b strings.Builder
	for _, e := range at.Path {
		switch e := e.(type) {
		case int:
			fmt.Fprintf(&b, "[%d]", e)
		default:
			if b.Len() > 0 {
				b.WriteByte('.')
			}
			fmt.Fprint(&b, e)
		}
	}
	if name := entryName(cfg, at.Path); name != "" {
		fmt.Fprintf(&b, " (%s)", name)
	}
	if b.Len() == 0 {
		return "ignition"
	}
	return b.String()
}

// entryName returns the path or name of the list entry in which a place of a report lies.
func entryName(cfg *types.Config, at []any) string {
	if len(at) < 3 {
		return ""
	}
	section, _ := at[0].(string)
	list, _ := at[1].(string)
	i, ok := at[2].(int)
	if !ok || i < 0 {
		return ""
	}
	switch {
	case section == "storage" && list == "files" && i < len(cfg.Storage.Files):
		return cfg.Storage.Files[i].Path
	case section == "storage" && list == "directories" && i < len(cfg.Storage.Directories):
		return cfg.Storage.Directories[i].Path
	case section == "storage" && list == "links" && i < len(cfg.Storage.Links):
		return cfg.Storage.Links[i].Path
	case section == "systemd" && list == "units" && i < len(cfg.Systemd.Units):
		return cfg.Systemd.Units[i].Name
	case section == "passwd" && list == "users" && i < len(cfg.Passwd.Users):
		return cfg.Passwd.Users[i].Name
	}
	return ""
}

// typeError returns the error that keeps JSON from being decoded into a value, with the field where it happened.
func typeError(raw []byte, into any) error {
	err := json.Unmarshal(raw, into)
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		if at := fieldAt(raw, wrong.Offset); at != "" {
			return fmt.Errorf("%s: should be %s, is %s", at, jsonKind(wrong.Type), wrong.Value)
		}
	}
	return err
}

func jsonKind(t reflect.Type) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.Bool:
		return "a boolean"
	case reflect.String:
		return "a string"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "an object"
	default:
		return "an integer"
	}
}

// fieldAt returns the field at an offset in a JSON document, such as spec.config.storage.files[3].mode.
func fieldAt(raw []byte, offset int64) string {
	type level struct {
		list bool
		n    int
		key  string
	}
	var stack []level
	spell := func() string {
		var b strings.Builder
		for _, l := range stack {
			if l.list {
				fmt.Fprintf(&b, "[%d]", l.n)
				continue
			}
			if b.Len() > 0 && l.key != "" {
				b.WriteByte('.')
			}
			b.WriteString(l.key)
		}
		return b.String()
	}
	wantKey := false
	dec := json.NewDecoder(bytes.NewReader(raw))
	// next moves on after the end of a value.
	next := func() {
		if len(stack) > 0 {
			top := &stack[len(stack)-1]
			top.n++
			wantKey = !top.list
		}
	}
	for {
		tok, err := dec.Token()
		if err != nil {
			return spell()
		}
		if key, ok := tok.(string); ok && wantKey {
			stack[len(stack)-1].key = key
			wantKey = false
			continue
		}
		delim, _ := tok.(json.Delim)
		if delim != '}' && delim != ']' && dec.InputOffset() >= offset {
			return spell()
		}
		switch delim {
		case '{', '[':
			stack = append(stack, level{list: delim == '['})
			wantKey = delim == '{'
		case '}', ']':
			stack = stack[:len(stack)-1]
			next()
		default:
			next()
		}
	}
}
