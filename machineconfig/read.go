// SPDX-License-Identifier: Apache-2.0

package machineconfig

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/noderefit/noderefit/values"
)

const (
	kindConfig = "MachineConfig"
	kindPool   = "MachineConfigPool"
)

// suffixes are the suffixes of the files that are read from a directory.
var suffixes = map[string]bool{".yaml": true, ".yml": true, ".json": true, ".bu": true, ".ign": true}

// Document is one MachineConfig and its origin. Several goroutines must not use it at once.
type Document struct {
	Object *mcfgv1.MachineConfig
	// Origin is the file and the number of the document in that file: "a.yaml, document 2". It is empty for an object of a
	// cluster.
	Origin string
	// Bare marks an Ignition config, or a Butane config that makes an Ignition config. It has no labels, so it belongs to
	// every pool that is rendered. Its name is the name of its file without the suffix. From the second document on, "-2"
	// and so on follow.
	Bare bool

	ignition *ignition // decoded when the document was read
}

// String names the document as in messages: MachineConfig/50-a (a.yaml, document 2).
func (d *Document) String() string {
	switch {
	case d.Bare:
		return "Ignition config " + d.Origin
	case d.Origin == "":
		return kindConfig + "/" + d.Object.Name
	default:
		return fmt.Sprintf("%s/%s (%s)", kindConfig, d.Object.Name, d.Origin)
	}
}

// prefix returns the prefix of the fields of the document's Ignition config.
func (d *Document) prefix() string {
	if d.Bare {
		return ""
	}
	return "spec.config."
}

// fieldErrors puts the document before errors of its Ignition config, which are one on each line, and spells each field
// in full.
func (d *Document) fieldErrors(err error) error {
	return fmt.Errorf("%s: %s", d, strings.ReplaceAll(d.prefix()+err.Error(), "\n", "; "+d.prefix()))
}

// PoolDocument is one MachineConfigPool and its origin.
type PoolDocument struct {
	Object *mcfgv1.MachineConfigPool
	Origin string
}

func (p *PoolDocument) String() string {
	if p.Origin == "" {
		return kindPool + "/" + p.Object.Name
	}
	return fmt.Sprintf("%s/%s (%s)", kindPool, p.Object.Name, p.Origin)
}

// Object is an object of Kubernetes.
type Object interface {
	metav1.Object
	runtime.Object
}

// Kinds are further kinds that are read beside MachineConfigs and MachineConfigPools. Each has a function that returns
// an empty object.
type Kinds map[schema.GroupVersionKind]func() Object

// find returns the kind of that name.
func (k Kinds) find(kind string) (schema.GroupVersionKind, bool) {
	for gvk := range k {
		if gvk.Kind == kind {
			return gvk, true
		}
	}
	return schema.GroupVersionKind{}, false
}

// OtherDocument is an object of one of the Kinds.
type OtherDocument struct {
	Object Object
	Kind   string
	Origin string
	// JSON is the document as it was read.
	JSON []byte
}

func (o *OtherDocument) String() string {
	if o.Origin == "" {
		return o.id()
	}
	return fmt.Sprintf("%s (%s)", o.id(), o.Origin)
}

// id returns the kind, the namespace if the object has one, and the name.
func (o *OtherDocument) id() string {
	if namespace := o.Object.GetNamespace(); namespace != "" {
		return o.Kind + "/" + namespace + "/" + o.Object.GetName()
	}
	return o.Kind + "/" + o.Object.GetName()
}

// Documents are the documents found in files, in the order of reading.
type Documents struct {
	Configs []*Document
	Pools   []*PoolDocument
	Others  []*OtherDocument
	// Doubts are the warnings of Read about input that may be a mistake. What is passed over is none of them: a directory
	// may have other files.
	Doubts []string
}

// Strict returns the error of documents that there are doubts about, where none are allowed.
func Strict(doubts []string) error {
	if len(doubts) == 0 {
		return nil
	}
	return fmt.Errorf("flag --strict: %s", strings.Join(doubts, "; "))
}

// stdin is the path of the standard input.
const stdin = "-"

// Butane translates a Butane config to JSON or YAML: Translate of package butane. The files that the config includes
// are below dir. The doubts are warnings.
type Butane func(doc []byte, dir string) (out []byte, doubts []string, err error)

// Read reads files, "-" for the standard input, and directories, recursively and in lexical order. Documents are only
// parsed: Merge checks the selected documents. The warnings name everything that is skipped.
func Read(butane Butane, paths ...string) (*Documents, []string, error) {
	return Kinds(nil).Read(butane, paths...)
}

// Read reads as the function Read does, and takes documents of the Kinds too.
func (k Kinds) Read(butane Butane, paths ...string) (*Documents, []string, error) {
	r := &reader{translate: butane, kinds: k}
	for _, p := range paths {
		if err := r.path(p); err != nil {
			return nil, r.warnings, err
		}
	}
	if again := r.docs.Again(); len(again) > 0 {
		return nil, r.warnings, again[0]
	}
	return &r.docs, r.warnings, nil
}

// Again returns an error for each document whose kind and name an earlier one has.
func (d *Documents) Again() (again []error) {
	seen := map[string]fmt.Stringer{}
	check := func(key string, this fmt.Stringer) {
		if first, ok := seen[key]; ok {
			again = append(again, fmt.Errorf("%s: metadata.name: the same name as %s", this, first))
			return
		}
		seen[key] = this
	}
	for _, c := range d.Configs {
		check(kindConfig+"/"+c.Object.Name, c)
	}
	for _, p := range d.Pools {
		check(kindPool+"/"+p.Object.Name, p)
	}
	for _, o := range d.Others {
		check(o.id(), o)
	}
	return again
}

// ReadConfig reads a file with exactly one MachineConfig, Ignition config or Butane config. A document without a name
// is named after its digest. The values of a node that it names have to be in it.
func ReadConfig(butane Butane, path string) (*Config, []string, error) {
	return Resolve(func([]values.Placeholder) (map[string]string, error) { return nil, nil }).ReadConfig(butane, path)
}

// ReadConfig reads as the function ReadConfig does. It asks for the values that the document names and does not have.
func (resolve Resolve) ReadConfig(butane Butane, path string) (*Config, []string, error) {
	d, warnings, err := ReadDocument(butane, path)
	if err != nil {
		return nil, warnings, err
	}
	p, more, err := d.parse(offered)
	warnings = append(warnings, more...)
	if err != nil {
		return nil, warnings, err
	}
	if len(p.places) > 0 {
		if err := p.resolve(resolve); err != nil {
			return nil, warnings, fmt.Errorf("%s: %w", d, err)
		}
	}
	c, err := p.made()
	if err != nil {
		return nil, warnings, fmt.Errorf("%s: %w", d, err)
	}
	if d.Bare {
		d.Object.Name = "config-" + c.Digest[:nameDigits]
		c.Name = d.Object.Name
	}
	c.Object = d.Object
	return c, warnings, nil
}

// ReadDocument reads a file with exactly one configuration, such as the base of Render.
func ReadDocument(butane Butane, path string) (*Document, []string, error) {
	r := &reader{translate: butane}
	if err := r.file(path); err != nil {
		return nil, r.warnings, err
	}
	if n := len(r.docs.Configs); n != 1 {
		return nil, r.warnings, fmt.Errorf("reading %s: there should be exactly one MachineConfig, Ignition or Butane "+
			"document, there are %d", path, n)
	}
	for _, p := range r.docs.Pools {
		r.warn("%s: a pool is ignored here", p)
	}
	return r.docs.Configs[0], r.warnings, nil
}

type reader struct {
	translate Butane
	kinds     Kinds

	docs     Documents
	warnings []string
	// bare counts the documents without a name in the file that is being read.
	bare int
}

func (r *reader) warn(format string, args ...any) {
	r.warnings = append(r.warnings, fmt.Sprintf(format, args...))
}

func (r *reader) doubt(format string, args ...any) {
	r.warn(format, args...)
	r.docs.Doubts = append(r.docs.Doubts, r.warnings[len(r.warnings)-1])
}

func (r *reader) path(p string) error {
	if p == stdin {
		data, err := io.ReadAll(os.Stdin)
		if err != nil {
			return fmt.Errorf("reading documents from the standard input: %w", err)
		}
		return r.data("standard input", data)
	}
	info, err := os.Stat(p)
	if err != nil {
		return fmt.Errorf("reading documents: %w", err)
	}
	if !info.IsDir() {
		return r.file(p)
	}
	err = filepath.WalkDir(p, func(at string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case at == p:
			return nil
		case strings.HasPrefix(entry.Name(), "."):
			// A mounted ConfigMap keeps its own versions in entries that begin with two dots. Its documents are linked beside
			// them.
			if !strings.HasPrefix(entry.Name(), "..") {
				r.warn("%s: hidden, passed over", at)
			}
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		case entry.IsDir():
			return nil
		}
		info, err := os.Stat(at)
		switch {
		case err != nil:
			return err
		case info.IsDir():
			r.warn("%s: a link to a directory, not followed", at)
			return nil
		case !info.Mode().IsRegular():
			r.warn("%s: not a regular file, passed over", at)
			return nil
		case !suffixes[filepath.Ext(at)]:
			r.warn("%s: passed over, as it ends with none of .yaml, .yml, .json, .bu, .ign", at)
			return nil
		}
		return r.file(at)
	})
	if _, ok := errors.AsType[*fs.PathError](err); ok {
		return fmt.Errorf("reading documents: %w", err)
	}
	return err
}

func (r *reader) file(name string) error {
	data, err := os.ReadFile(name)
	if err != nil {
		return fmt.Errorf("reading documents: %w", err)
	}
	return r.data(name, data)
}

// data reads the documents of one file.
func (r *reader) data(name string, data []byte) error {
	r.bare = 0
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	ext := filepath.Ext(name)
	if ext == ".bu" {
		return r.each(name, splitYAML(data), func(origin string, doc []byte) error { return r.butane(name, origin, doc) })
	}
	if ext == ".json" || ext == ".ign" || bytes.HasPrefix(bytes.TrimLeft(data, " \t\r\n"), []byte("{")) {
		docs, err := splitJSON(data)
		if err == nil {
			return r.each(name, docs, func(origin string, doc []byte) error { return r.json(name, origin, doc) })
		}
		// In a file with a YAML suffix a brace may also begin a flow mapping.
		if ext == ".json" || ext == ".ign" {
			return fmt.Errorf("reading %s, document %d: %w", name, len(docs)+1, err)
		}
	}
	return r.each(name, splitYAML(data), func(origin string, doc []byte) error {
		var head struct {
			Variant string          `json:"variant"`
			Kind    json.RawMessage `json:"kind"`
		}
		raw, err := yaml.YAMLToJSONStrict(doc)
		if err != nil && bytes.Contains(doc, []byte("\n\t")) && aboutTabs.MatchString(err.Error()) {
			return fmt.Errorf("reading %s: %w: YAML is indented by spaces, not by tabs", origin, err)
		}
		if err != nil {
			return fmt.Errorf("reading %s: %w", origin, err)
		}
		if string(raw) == "null" {
			return nil
		}
		if err := json.Unmarshal(raw, &head); err == nil && head.Kind == nil && head.Variant != "" {
			return r.butane(name, origin, doc)
		}
		return r.json(name, origin, raw)
	})
}

// aboutTabs matches what the library says where a tab indents a line.
var aboutTabs = regexp.MustCompile("tab character|cannot start any token")

// each calls one for each document with its origin. A file with one document is not numbered.
func (r *reader) each(name string, docs [][]byte, one func(origin string, doc []byte) error) error {
	for i, doc := range docs {
		origin := name
		if len(docs) > 1 {
			origin = fmt.Sprintf("%s, document %d", name, i+1)
		}
		if err := one(origin, doc); err != nil {
			return err
		}
	}
	return nil
}

// splitJSON splits a stream of JSON values. With an error it returns the values before the error. Nearly every file is
// one value, and as large as a whole configuration. One pass finds this without a copy.
func splitJSON(data []byte) (docs [][]byte, err error) {
	if json.Valid(data) {
		return [][]byte{bytes.TrimSpace(data)}, nil
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	for {
		var doc json.RawMessage
		switch err := dec.Decode(&doc); {
		case err == io.EOF:
			return docs, nil
		case err != nil:
			return docs, err
		}
		docs = append(docs, doc)
	}
}

// splitYAML splits at the lines that begin with three dashes. A part with only comments or nothing is not a document.
func splitYAML(data []byte) (docs [][]byte) {
	var doc []byte
	content := false
	flush := func() {
		if content {
			docs = append(docs, doc)
		}
		doc, content = nil, false
	}
	for line := range bytes.Lines(data) {
		rest, dashes := bytes.CutPrefix(line, []byte("---"))
		if dashes && (len(rest) == 0 || strings.IndexByte(" \t\r\n", rest[0]) >= 0) {
			flush()
			// A document may begin on the line with the dashes.
			line = append([]byte("   "), rest...)
		}
		if text := bytes.TrimSpace(line); len(text) > 0 && text[0] != '#' {
			content = true
		}
		doc = append(doc, line...)
	}
	flush()
	return docs
}

// kindOf reads a JSON object until its kind is clear. In nearly every document this is at the beginning.
func kindOf(doc []byte) (apiVersion, kind string, ignition, object bool) {
	dec := json.NewDecoder(bytes.NewReader(doc))
	if tok, err := dec.Token(); err != nil || tok != json.Delim('{') {
		return "", "", false, false
	}
	for dec.More() && (apiVersion == "" || kind == "") {
		key, err := dec.Token()
		if err != nil {
			break
		}
		var into any = new(json.RawMessage)
		switch key {
		case "apiVersion":
			into = &apiVersion
		case "kind":
			into = &kind
		case "ignition":
			return "", "", true, true
		}
		if err := dec.Decode(into); err != nil {
			break
		}
	}
	return apiVersion, kind, false, true
}

func (r *reader) json(name, origin string, doc []byte) error {
	apiVersion, kind, isIgnition, isObject := kindOf(doc)
	gvk, other := r.kinds.find(kind)
	_, listed := r.kinds.find(strings.TrimSuffix(kind, "List"))
	switch {
	case !isObject:
		return fmt.Errorf("reading %s: a document must be an object", origin)
	case isIgnition:
		return r.ignition(name, origin, doc)
	case kind == "":
		return fmt.Errorf("reading %s: kind: is required, unless the document is an Ignition config", origin)
	case kind == "List" || kind == kindConfig+"List" || kind == kindPool+"List" || listed && !other:
		var list struct {
			Items []json.RawMessage `json:"items"`
		}
		if err := typeError(doc, &list); err != nil {
			return fmt.Errorf("reading %s: %w", origin, err)
		}
		for i, item := range list.Items {
			if err := r.json(name, fmt.Sprintf("%s, item %d", origin, i+1), item); err != nil {
				return err
			}
		}
		return nil
	case other && apiVersion != gvk.GroupVersion().String():
		return fmt.Errorf("reading %s: apiVersion: of a %s must be %s, is %q", origin, kind, gvk.GroupVersion(), apiVersion)
	case other:
		o := &OtherDocument{Object: r.kinds[gvk](), Kind: kind, Origin: origin, JSON: doc}
		err := r.strict(doc, o.Object, o)
		if err == nil {
			r.docs.Others = append(r.docs.Others, o)
		}
		return err
	case kind != kindConfig && kind != kindPool && r.kinds.mistaken(kind) != "":
		return fmt.Errorf("reading %s: kind: there is no %s; did you mean %s?", origin, kind, r.kinds.mistaken(kind))
	case kind != kindConfig && kind != kindPool:
		r.warn("%s: passed over, as its kind is %s", origin, kind)
		return nil
	case apiVersion != mcfgv1.GroupVersion.String():
		return fmt.Errorf("reading %s: apiVersion: of a %s must be %s, is %q", origin, kind, mcfgv1.GroupVersion, apiVersion)
	case kind == kindPool:
		pool := &PoolDocument{Object: new(mcfgv1.MachineConfigPool), Origin: origin}
		if err := r.strict(doc, pool.Object, pool); err != nil {
			return err
		}
		r.docs.Pools = append(r.docs.Pools, pool)
		return nil
	default:
		d := &Document{Object: new(mcfgv1.MachineConfig), Origin: origin}
		if err := r.strict(doc, d.Object, d); err != nil {
			return err
		}
		return r.add(d)
	}
}

// strict decodes an object. A field that its kind does not have is misspelt, and so an error. Metadata and status are
// excepted: clusters of other versions write them themselves.
func (r *reader) strict(doc []byte, into Object, object fmt.Stringer) error {
	unknown, err := kjson.UnmarshalStrict(doc, into)
	if err != nil {
		if typed := typeError(doc, into); typed != nil {
			err = typed
		}
		return fmt.Errorf("reading %s: %w", object, err)
	}
	var wrong []string
	for _, u := range unknown {
		text := u.Error()
		if strings.Contains(text, `"metadata.`) || strings.Contains(text, `"status.`) {
			r.doubt("%s: %s", object, text)
			continue
		}
		wrong = append(wrong, text)
	}
	if len(wrong) > 0 {
		return fmt.Errorf("reading %s: %s", object, strings.Join(wrong, "; "))
	}
	if into.GetName() == "" {
		return fmt.Errorf("reading %s: metadata.name: is required", object)
	}
	if len(validation.IsDNS1123Subdomain(into.GetName())) > 0 {
		return fmt.Errorf("reading %s: metadata.name: %q is not a name: %s", object, into.GetName(), NameRule)
	}
	return nil
}

// NameRule says what the name of an object may be.
const NameRule = "write small letters, digits, - and ., and begin and end with a letter or a digit"

// ignition reads an Ignition config as a MachineConfig without labels.
func (r *reader) ignition(name, origin string, raw []byte) error {
	r.bare++
	base := filepath.Base(name)
	base = strings.TrimSuffix(base, filepath.Ext(base))
	if r.bare > 1 {
		base = fmt.Sprintf("%s-%d", base, r.bare)
	}
	d := &Document{Object: newObject(base), Origin: origin, Bare: true}
	d.Object.Spec.Config.Raw = raw
	return r.add(d)
}

func (r *reader) add(d *Document) error {
	var err error
	if d.ignition, err = d.decode(); err != nil {
		return fmt.Errorf("reading %w", err)
	}
	r.docs.Configs = append(r.docs.Configs, d)
	return nil
}

// butane translates a Butane config. The files that it includes are in the same directory.
func (r *reader) butane(name, origin string, doc []byte) error {
	out, doubts, err := r.translate(doc, filepath.Dir(name))
	for _, d := range doubts {
		r.doubt("Butane config %s: %s", origin, d)
	}
	var raw []byte
	if err == nil {
		raw, err = yaml.YAMLToJSON(out)
	}
	if err != nil {
		return fmt.Errorf("reading Butane config %s: %w", origin, err)
	}
	return r.json(name, origin, raw)
}
