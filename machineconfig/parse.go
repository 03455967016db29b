// SPDX-License-Identifier: Apache-2.0

package machineconfig

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	cjson "github.com/clarketm/json"
	"github.com/coreos/ignition/v2/config/util"
	"github.com/coreos/ignition/v2/config/v3_6/types"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/message"
)

// forceFile makes the agents of OpenShift skip their validation, where it exists. No configuration may have it.
const forceFile = "/run/machine-config-daemon-force"

// kernelDevel is the one extension whose packages fit only the default kernel.
const kernelDevel = "kernel-devel"

// maxID is the largest user or group id. For the kernel, the next higher id means to leave the owner unchanged.
const maxID = 1<<32 - 2

// extensions are the names that spec.extensions may hold.
var extensions = map[string]bool{
	"ipsec": true, "kerberos": true, kernelDevel: true, "sandboxed-containers": true, "sysstat": true,
	"two-node-ha": true, "usbguard": true,
}

// Parse validates one MachineConfig of any supported Ignition version, with or without spec.config. The object exists
// already, on a host or in a cluster: a field that does not exist is passed over, as it was when the object was
// accepted. The Config keeps mc as its Object and shares memory with it, so mc must not be changed afterwards. Errors
// name the object and every field that is wrong.
func Parse(mc *mcfgv1.MachineConfig) (*Config, error) {
	return parseExisting(mc, (*ignition).parse)
}

// ParseRendered does what Parse does, for a MachineConfig that Render made: those have Ignition 3. A program that calls
// no other parser of this package does not contain the converter of Ignition 2, which alone would double its size.
func ParseRendered(mc *mcfgv1.MachineConfig) (*Config, error) {
	return parseExisting(mc, (*ignition).parse3)
}

func parseExisting(mc *mcfgv1.MachineConfig, parse ignitionParser) (*Config, error) {
	s, _, err := (&Document{Object: mc}).parseWith(existing, parse)
	if err != nil {
		return nil, err
	}
	c, err := s.made()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.doc, err)
	}
	c.Object = mc
	if c.Former != "" && NamedBy(c.Name, c.Former) {
		c.Digest = c.Former // such a version rendered it, and named it by that digest
	}
	return c, nil
}

// Marshal returns the JSON document to store. Parse of that document gives the same Digest.
func (c *Config) Marshal() ([]byte, error) {
	out, err := json.Marshal(c.Object)
	if err != nil {
		return nil, fmt.Errorf("storing MachineConfig/%s: %w", c.Name, err)
	}
	return out, nil
}

// parsed is one validated document.
type parsed struct {
	doc  *Document
	spec mcfgv1.MachineConfigSpec
	// base reports whether the document is the base that others are merged over.
	base bool
	// minor is the minor version of Ignition 3 in which the document was written. cfg is always of the newest version.
	minor    int64
	cfg      types.Config
	contents contents
	// places are the texts that name values of a node.
	places places
}

// age says whether a document is new.
type age int

const (
	// offered documents are new: nothing has accepted them yet.
	offered age = iota
	// existing documents were accepted, by this version or by one that refused less. They have to stay readable.
	existing
)

// ignitionParser is one of the two parsers of an ignition.
type ignitionParser func(*ignition, age) (types.Config, contents, []string, error)

// parse validates all of a document. Each warning begins with the document.
func (d *Document) parse(age age) (*parsed, []string, error) {
	return d.parseWith(age, (*ignition).parse)
}

func (d *Document) parseWith(age age, parse ignitionParser) (*parsed, []string, error) {
	p := &parsed{doc: d, spec: d.Object.Spec}
	ign := d.ignition
	if ign == nil {
		var err error
		if ign, err = d.decode(); err != nil {
			return nil, nil, err
		}
	}
	var warnings []string
	if ign != nil {
		var err error
		p.minor = ign.minor
		if p.cfg, p.contents, warnings, err = parse(ign, age); err != nil {
			return nil, nil, d.fieldErrors(err)
		}
	}
	for i, w := range warnings {
		warnings[i] = d.String() + ": " + d.prefix() + w
	}
	if err := errors.Join(checkIgnition(&p.cfg), checkTogether(&p.cfg)); err != nil {
		return nil, nil, d.fieldErrors(err)
	}
	if err := checkSpec(&p.spec); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", d, errors.New(message.OneLine(err.Error())))
	}
	if err := p.place(); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", d, errors.New(message.OneLine(err.Error())))
	}
	return p, warnings, nil
}

// decode reads the Ignition part of the object. It returns nil where the object has no Ignition part.
func (d *Document) decode() (*ignition, error) {
	raw := d.Object.Spec.Config.Raw
	if raw == nil && d.Object.Spec.Config.Object != nil {
		var err error
		if raw, err = json.Marshal(d.Object.Spec.Config.Object); err != nil {
			return nil, fmt.Errorf("%s: spec.config: %w", d, err)
		}
	}
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	var whole map[string]json.RawMessage
	if wrong, is := errors.AsType[*json.UnmarshalTypeError](json.Unmarshal(raw, &whole)); is {
		return nil, fmt.Errorf("%s: spec.config: should be an object, is %s", d, wrong.Value)
	}
	ign, err := decodeIgnition(raw)
	if err != nil {
		return nil, d.fieldErrors(err)
	}
	return ign, nil
}

// checkIgnition checks single entries against the rules that this project has beyond Ignition's own. Fields are
// relative to the Ignition config. Each error is on a line of its own.
func checkIgnition(cfg *types.Config) error {
	var w wrongs
	for i, m := range cfg.Ignition.Config.Merge {
		if util.NotEmpty(m.Source) {
			w.add("ignition.config.merge[%d].source: the whole configuration must be in the document itself", i)
		}
	}
	if util.NotEmpty(cfg.Ignition.Config.Replace.Source) {
		w.add("ignition.config.replace.source: the whole configuration must be in the document itself")
	}
	checkStorage(&cfg.Storage, &w)
	checkUnits(cfg.Systemd.Units, &w)
	checkUsers(cfg.Passwd.Users, &w)
	for i := range cfg.Passwd.Groups {
		w.id(fmt.Sprintf("passwd.groups[%d].gid", i), cfg.Passwd.Groups[i].Name, cfg.Passwd.Groups[i].Gid)
	}
	return errors.Join(w...)
}

// wrongs collects the errors of a document.
type wrongs []error

func (w *wrongs) add(format string, args ...any) { *w = append(*w, fmt.Errorf(format, args...)) }

// id checks the id of a user or group. The id may be nil.
func (w *wrongs) id(field, of string, id *int) {
	if id != nil && (*id < 0 || *id > maxID) {
		w.add("%s (%s): %d is not an id, which are 0 to %d", field, of, *id, maxID)
	}
}

// node checks the properties that files, directories and links have in common.
func (w *wrongs) node(list string, i int, n *types.Node) {
	at := fmt.Sprintf("storage.%s[%d].", list, i)
	switch p := n.Path; {
	case p == forceFile:
		w.add("%spath (%s): may not be made by a configuration", at, p)
	case strings.ContainsRune(p, 0):
		w.add("%spath (%s): contains a NUL character", at, p)
	case p == "/" && list != "directories":
		w.add("%spath (%s): is the root directory", at, p)
	}
	w.id(at+"user.id", n.Path, n.User.ID)
	w.id(at+"group.id", n.Path, n.Group.ID)
}

func checkStorage(s *types.Storage, w *wrongs) {
	for i := range s.Files {
		w.node("files", i, &s.Files[i].Node)
	}
	for i := range s.Directories {
		w.node("directories", i, &s.Directories[i].Node)
	}
	for i := range s.Links {
		l := &s.Links[i]
		w.node("links", i, &l.Node)
		switch {
		case util.NilOrEmpty(l.Target):
			w.add("storage.links[%d].target (%s): is required", i, l.Path)
		case strings.ContainsRune(*l.Target, 0):
			w.add("storage.links[%d].target (%s): contains a NUL character", i, l.Path)
		}
	}
}

func checkUnits(units []types.Unit, w *wrongs) {
	for i := range units {
		u := &units[i]
		if why := badFileName(u.Name); why != "" {
			w.add("systemd.units[%d].name (%s): %s", i, u.Name, why)
		}
		for j := range u.Dropins {
			if why := badFileName(u.Dropins[j].Name); why != "" {
				w.add("systemd.units[%d].dropins[%d].name (%s of %s): %s", i, j, u.Dropins[j].Name, u.Name, why)
			}
		}
	}
}

func checkUsers(users []types.PasswdUser, w *wrongs) {
	for i := range users {
		u := &users[i]
		if why := badUserName(u.Name); why != "" {
			w.add("passwd.users[%d].name (%s): %s", i, u.Name, why)
		}
		w.id(fmt.Sprintf("passwd.users[%d].uid", i), u.Name, u.UID)
		// The message never contains the hash.
		if u.PasswordHash != nil && strings.ContainsAny(*u.PasswordHash, ":\r\n\x00") {
			w.add("passwd.users[%d].passwordHash (%s): contains a colon or a line break", i, u.Name)
		}
		for j, k := range u.SSHAuthorizedKeys {
			if strings.ContainsRune(string(k), 0) {
				w.add("passwd.users[%d].sshAuthorizedKeys[%d] (%s): contains a NUL character", i, j, u.Name)
			}
		}
	}
}

func badFileName(name string) string {
	switch {
	case strings.ContainsAny(name, "/\x00"):
		return "is not the name of a file"
	case len(name) > 255:
		return "is longer than 255 bytes"
	}
	return ""
}

func badUserName(name string) string {
	switch {
	case name == "":
		return "is required"
	case name == "." || name == ".." || name[0] == '-' || strings.ContainsAny(name, "/: \t\r\n\x00"):
		return "is not a user name"
	}
	return ""
}

// checkTogether finds entries that cannot all exist on one host, but that Ignition allows.
func checkTogether(cfg *types.Config) error {
	leaves := make(map[string]string, len(cfg.Storage.Files))
	for i := range cfg.Storage.Files {
		leaves[cfg.Storage.Files[i].Path] = "file"
	}
	var errs []error
	below := func(list string, i int, p string) {
		for dir := path.Dir(p); dir != "/" && dir != "."; dir = path.Dir(dir) {
			if kind := leaves[dir]; kind != "" {
				errs = append(errs, fmt.Errorf("storage.%s[%d].path (%s): lies below %s, which is a %s", list, i, p, dir, kind))
			}
		}
	}
	for i := range cfg.Storage.Files {
		below("files", i, cfg.Storage.Files[i].Path)
	}
	for i := range cfg.Storage.Directories {
		below("directories", i, cfg.Storage.Directories[i].Path)
	}
	for i := range cfg.Storage.Links {
		below("links", i, cfg.Storage.Links[i].Path)
	}
	return errors.Join(errs...)
}

// checkSpec checks that a node can apply the fields beside spec.config.
func checkSpec(spec *mcfgv1.MachineConfigSpec) error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	switch spec.KernelType {
	case "", KernelDefault, KernelRealtime, Kernel64kPages:
	default:
		wrong("spec.kernelType: %q is not one of %s, %s, %s", spec.KernelType, KernelDefault, KernelRealtime, Kernel64kPages)
	}
	for i, name := range spec.Extensions {
		switch {
		case !extensions[name]:
			wrong("spec.extensions[%d]: %q is not one of %s", i, name, strings.Join(slices.Sorted(maps.Keys(extensions)), ", "))
		case name == kernelDevel && spec.KernelType != "" && spec.KernelType != KernelDefault:
			wrong("spec.extensions[%d]: %s needs the default kernel, spec.kernelType is %s", i, name, spec.KernelType)
		}
	}
	for i, arg := range spec.KernelArguments {
		switch {
		case strings.Count(arg, `"`)%2 != 0:
			wrong("spec.kernelArguments[%d]: unbalanced quote in %q", i, arg)
		case strings.ContainsRune(arg, 0):
			wrong("spec.kernelArguments[%d]: contains a NUL character", i)
		}
	}
	return errors.Join(errs...)
}

// file returns the meaning of a file of the document.
func (p *parsed) file(f *types.File) (File, error) {
	file := File{
		Path: f.Path, Mode: 0o644, Owner: owner(f.Node),
		Contents: p.contents[f.Contents.Source], Append: len(f.Append) > 0,
		NoContents: f.Contents.Source == nil && len(f.Append) == 0,
	}
	if f.Mode != nil {
		file.Mode = uint32(*f.Mode)
	}
	if !util.NilOrEmpty(f.Contents.Source) && fetched(*f.Contents.Source) {
		var err error
		if file.Reference, err = referable(f.Contents); err != nil {
			return file, fmt.Errorf("storage.files (%s).contents.%w", f.Path, err)
		}
	}
	if file.Append {
		file.Contents = slices.Clone(file.Contents)
		for _, a := range f.Append {
			file.Contents = append(file.Contents, p.contents[a.Source]...)
		}
	}
	return file, nil
}

// config returns the meaning of a document as a Config.
func (p *parsed) config() (*Config, error) {
	c := &Config{
		OSImageURL:      p.spec.OSImageURL,
		ExtensionsImage: p.spec.BaseOSExtensionsContainerImage,
		KernelType:      cmp.Or(p.spec.KernelType, KernelDefault),
		FIPS:            p.spec.FIPS,
		Extensions:      unique(p.spec.Extensions),
		Provision:       map[string]json.RawMessage{},
	}
	for _, arg := range p.spec.KernelArguments {
		c.KernelArguments = append(c.KernelArguments, splitArguments(arg)...)
	}
	cfg := &p.cfg
	for i := range cfg.Storage.Files {
		file, err := p.file(&cfg.Storage.Files[i])
		if err != nil {
			return nil, err
		}
		c.Files = append(c.Files, file)
	}
	for i := range cfg.Storage.Directories {
		d := &cfg.Storage.Directories[i]
		dir := Directory{Path: d.Path, Mode: 0o755, Owner: owner(d.Node)}
		if d.Mode != nil {
			dir.Mode = uint32(*d.Mode)
		}
		c.Directories = append(c.Directories, dir)
	}
	for i := range cfg.Storage.Links {
		l := &cfg.Storage.Links[i]
		c.Links = append(c.Links, Link{Path: l.Path, Target: *l.Target, Hard: util.IsTrue(l.Hard), Owner: owner(l.Node)})
	}
	for i := range cfg.Systemd.Units {
		u := &cfg.Systemd.Units[i]
		unit := Unit{Name: u.Name, Contents: value(u.Contents), Enabled: u.Enabled, Mask: u.Mask}
		for _, d := range u.Dropins {
			unit.Dropins = append(unit.Dropins, Dropin{Name: d.Name, Contents: value(d.Contents)})
		}
		slices.SortFunc(unit.Dropins, func(a, b Dropin) int { return cmp.Compare(a.Name, b.Name) })
		c.Units = append(c.Units, unit)
	}
	for i := range cfg.Passwd.Users {
		user, err := account(&cfg.Passwd.Users[i])
		if err != nil {
			return nil, err
		}
		c.Users = append(c.Users, user)
	}
	slices.SortFunc(c.Files, func(a, b File) int { return cmp.Compare(a.Path, b.Path) })
	slices.SortFunc(c.Directories, func(a, b Directory) int { return cmp.Compare(a.Path, b.Path) })
	slices.SortFunc(c.Links, func(a, b Link) int { return cmp.Compare(a.Path, b.Path) })
	slices.SortFunc(c.Units, func(a, b Unit) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(c.Users, func(a, b User) int { return cmp.Compare(a.Name, b.Name) })
	if err := c.provision(cfg); err != nil {
		return nil, err
	}
	extra, err := firstBoot(cfg)
	if err != nil {
		return nil, err
	}
	c.places, c.Placeholders = p.places.sorted(), p.places.named()
	c.Digest = digest(c, extra, false)
	if slices.ContainsFunc(c.Files, func(f File) bool { return f.NoContents }) {
		c.Former = digest(c, extra, true)
	}
	return c, nil
}

func owner(n types.Node) Owner {
	return Owner{UID: n.User.ID, GID: n.Group.ID, User: value(n.User.Name), Group: value(n.Group.Name)}
}

func value(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// account separates the fields of a user that can be changed on a running host from those that can't. A key may have
// line breaks around it, and one string may hold several keys, because upstream writes them out unchecked.
func account(u *types.PasswdUser) (User, error) {
	user := User{Name: u.Name, PasswordHash: u.PasswordHash, Other: map[string]json.RawMessage{}}
	for _, k := range u.SSHAuthorizedKeys {
		for line := range strings.Lines(string(k)) {
			if line = strings.TrimSpace(line); line != "" {
				user.Keys = append(user.Keys, line)
			}
		}
	}
	user.Keys = unique(user.Keys)
	rest := *u
	rest.Name, rest.PasswordHash, rest.SSHAuthorizedKeys = "", nil, nil
	raw, err := json.Marshal(rest)
	if err == nil {
		err = json.Unmarshal(raw, &user.Other)
	}
	if err != nil {
		return User{}, fmt.Errorf("passwd.users (%s): %w", u.Name, err)
	}
	delete(user.Other, "name")
	return user, nil
}

// provision collects the settings that only Ignition can apply, each list ordered by the key of its entries.
func (c *Config) provision(cfg *types.Config) error {
	put := func(field string, empty bool, v any) error {
		if empty {
			return nil
		}
		raw, err := cjson.Marshal(v)
		if err != nil {
			return fmt.Errorf("%s: %w", field, err)
		}
		c.Provision[field] = raw
		return nil
	}
	s := &cfg.Storage
	k := &cfg.KernelArguments
	return errors.Join(
		put("storage.disks", len(s.Disks) == 0, byKey(s.Disks)),
		put("storage.filesystems", len(s.Filesystems) == 0, byKey(s.Filesystems)),
		put("storage.raid", len(s.Raid) == 0, byKey(s.Raid)),
		put("storage.luks", len(s.Luks) == 0, byKey(s.Luks)),
		put("passwd.groups", len(cfg.Passwd.Groups) == 0, byKey(cfg.Passwd.Groups)),
		put("kernelArguments", len(k.ShouldExist)+len(k.ShouldNotExist) == 0, k),
	)
}

func byKey[T util.Keyed](list []T) []T {
	return slices.SortedStableFunc(slices.Values(list), func(a, b T) int { return cmp.Compare(a.Key(), b.Key()) })
}

// firstBoot returns the parts of a document that only the Ignition that makes a machine uses. They have no place in
// Config: proxies, timeouts, certificate authorities, and files that must not replace a file of the OS image.
func firstBoot(cfg *types.Config) ([]byte, error) {
	var keep []string
	for i := range cfg.Storage.Files {
		if f := &cfg.Storage.Files[i]; util.IsFalse(f.Overwrite) && f.Contents.Source != nil {
			keep = append(keep, f.Path)
		}
	}
	for i := range cfg.Storage.Directories {
		if d := &cfg.Storage.Directories[i]; util.IsTrue(d.Overwrite) {
			keep = append(keep, d.Path)
		}
	}
	for i := range cfg.Storage.Links {
		if l := &cfg.Storage.Links[i]; util.IsTrue(l.Overwrite) {
			keep = append(keep, l.Path)
		}
	}
	slices.Sort(keep)
	ign := cfg.Ignition
	ign.Version = ""
	raw, err := cjson.Marshal(ign)
	if err != nil {
		return nil, fmt.Errorf("ignition: %w", err)
	}
	return append(raw, strings.Join(keep, "\x00")...), nil
}

// unique keeps the first of equal strings.
func unique(in []string) []string {
	seen := make(map[string]bool, len(in))
	var out []string
	for _, s := range in {
		if !seen[s] {
			seen[s] = true
			out = append(out, s)
		}
	}
	return out
}

// splitArguments splits at white space outside double quotes, as the kernel does with its command line.
func splitArguments(line string) []string {
	quoted := false
	return strings.FieldsFunc(line, func(r rune) bool {
		if r == '"' {
			quoted = !quoted
		}
		return !quoted && (r == ' ' || r >= '\t' && r <= '\r')
	})
}

// newObject returns an empty MachineConfig with all fields that the API requires.
func newObject(name string) *mcfgv1.MachineConfig {
	return &mcfgv1.MachineConfig{
		TypeMeta:   metav1.TypeMeta{APIVersion: mcfgv1.GroupVersion.String(), Kind: kindConfig},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       mcfgv1.MachineConfigSpec{KernelArguments: []string{}, Extensions: []string{}},
	}
}
