// SPDX-License-Identifier: Apache-2.0

// Package intake repairs the API server's answers object by object. A definition may admit values that our Go types
// can't hold. One such value makes the answer about all objects of the kind useless to a client. Here the unreadable
// field is removed from that one object, the object is marked (api.UnreadableKey), and all others pass unchanged. A
// marked object never looks deleted: it keeps its name, its labels and all that can be read. A program that decides by
// a marked object leaves alone what belongs to the object.
package intake

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	configv1 "github.com/openshift/api/config/v1"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	operatorv1alpha1 "github.com/openshift/api/operator/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kjson "sigs.k8s.io/json"

	"github.com/noderefit/noderefit/api"
)

// Kinds are the Go types with which our programs read objects of definitions.
var Kinds = map[schema.GroupVersionKind]any{
	mcfgv1.GroupVersion.WithKind("MachineConfig"):                      mcfgv1.MachineConfig{},
	mcfgv1.GroupVersion.WithKind("MachineConfigPool"):                  mcfgv1.MachineConfigPool{},
	mcfgv1.GroupVersion.WithKind("MachineConfigNode"):                  mcfgv1.MachineConfigNode{},
	mcfgv1.GroupVersion.WithKind("KubeletConfig"):                      mcfgv1.KubeletConfig{},
	mcfgv1.GroupVersion.WithKind("ContainerRuntimeConfig"):             mcfgv1.ContainerRuntimeConfig{},
	mcfgv1.GroupVersion.WithKind("ControllerConfig"):                   mcfgv1.ControllerConfig{},
	configv1.GroupVersion.WithKind("ImageDigestMirrorSet"):             configv1.ImageDigestMirrorSet{},
	configv1.GroupVersion.WithKind("ImageTagMirrorSet"):                configv1.ImageTagMirrorSet{},
	configv1.GroupVersion.WithKind("Image"):                            configv1.Image{},
	configv1.GroupVersion.WithKind("ClusterImagePolicy"):               configv1.ClusterImagePolicy{},
	configv1.GroupVersion.WithKind("ImagePolicy"):                      configv1.ImagePolicy{},
	operatorv1alpha1.GroupVersion.WithKind("ImageContentSourcePolicy"): operatorv1alpha1.ImageContentSourcePolicy{},
	api.GroupVersion.WithKind("NodeHook"):                              api.NodeHook{},
	api.GroupVersion.WithKind("RolloutPolicy"):                         api.RolloutPolicy{},
}

// Unread is an object with fields that can't be read.
type Unread struct {
	// Path is the object's path at the API server.
	Path string
	// GVK and Name are the object's kind and name.
	GVK  schema.GroupVersionKind
	Name string
	// Problem names each field, and why it can't be read.
	Problem string
}

// Intake mends answers, and remembers the objects that it mended. The zero value is not usable.
type Intake struct {
	kinds map[schema.GroupVersionKind]reflect.Type

	mu     sync.Mutex
	unread map[string]Unread
}

// New returns an intake of the given kinds, or of all kinds if none is given. A program gives the kinds whose mark it
// checks.
func New(kinds ...schema.GroupVersionKind) *Intake {
	if len(kinds) == 0 {
		kinds = slices.Collect(maps.Keys(Kinds))
	}
	in := &Intake{kinds: map[schema.GroupVersionKind]reflect.Type{}, unread: map[string]Unread{}}
	for _, kind := range kinds {
		in.kinds[kind] = reflect.TypeOf(Kinds[kind])
	}
	return in
}

// Unread returns the objects that could not be read when they were last seen, sorted by path.
func (in *Intake) Unread() []Unread {
	in.mu.Lock()
	defer in.mu.Unlock()
	return slices.SortedFunc(maps.Values(in.unread), func(a, b Unread) int { return cmp.Compare(a.Path, b.Path) })
}

// Transport returns a transport that mends the answers of next before the client receives them. It is for
// rest.Config.Wrap.
func (in *Intake) Transport(next http.RoundTripper) http.RoundTripper { return &transport{in, next} }

type transport struct {
	in   *Intake
	next http.RoundTripper
}

// RoundTrip mends the answer to a request for one of the kinds. Writing a mended object as a whole would delete the
// removed fields, so such a request is refused before it is sent.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	p, ours := parsePath(r.URL.Path)
	if !ours {
		return t.next.RoundTrip(r)
	}
	if err := refuseMended(r, p); err != nil {
		return nil, err
	}
	answer, err := t.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode == http.StatusNotFound && p.name != "" {
		t.in.forget(p.object(p.name))
	}
	media, _, _ := mime.ParseMediaType(answer.Header.Get("Content-Type"))
	if media != "application/json" || answer.StatusCode >= http.StatusMultipleChoices {
		return answer, nil
	}
	if watching, _ := strconv.ParseBool(r.URL.Query().Get("watch")); watching {
		answer.Body = &stream{in: t.in, path: p, body: answer.Body, frames: json.NewDecoder(answer.Body)}
		answer.ContentLength = -1
		answer.Header.Del("Content-Length")
		return answer, nil
	}
	data, err := io.ReadAll(answer.Body)
	if err := cmp.Or(answer.Body.Close(), err); err != nil {
		return nil, fmt.Errorf("reading the answer to %s %s: %w", r.Method, r.URL.Path, err)
	}
	data = t.in.document(data, p)
	answer.Body, answer.ContentLength = io.NopCloser(bytes.NewReader(data)), int64(len(data))
	answer.Header.Set("Content-Length", strconv.Itoa(len(data)))
	return answer, nil
}

// CloseIdleConnections closes the idle connections of the next transport, as clients expect.
func (t *transport) CloseIdleConnections() {
	if c, ok := t.next.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// WrappedRoundTripper returns the next transport. By this method client-go finds the transport that connects.
func (t *transport) WrappedRoundTripper() http.RoundTripper { return t.next }

// refuseMended refuses a request that makes or replaces an object with the mark.
func refuseMended(r *http.Request, p path) error {
	if r.Method != http.MethodPut && r.Method != http.MethodPost || p.sub != "" || r.GetBody == nil {
		return nil
	}
	body, err := r.GetBody()
	if err != nil {
		return err
	}
	defer body.Close()
	data, err := io.ReadAll(body)
	if err != nil {
		return err
	}
	var object metav1.PartialObjectMetadata
	if !bytes.Contains(data, []byte(api.UnreadableKey)) || json.Unmarshal(data, &object) != nil {
		return nil
	}
	if problem, marked := object.Annotations[api.UnreadableKey]; marked {
		return fmt.Errorf("writing %s: the object has fields that can't be read, and writing would lose them: %s",
			p.object(object.Name), problem)
	}
	return nil
}

// path is the path of a request about one of the kinds. All kinds are of the whole cluster.
type path struct{ collection, name, sub string }

func (p path) object(name string) string { return p.collection + "/" + name }

func parsePath(text string) (path, bool) {
	at := strings.Index(text, "/apis/") // a server may be reached under a prefix
	if at < 0 {
		return path{}, false
	}
	parts := strings.Split(strings.Trim(text[at:], "/"), "/")
	if len(parts) < 4 || len(parts) > 6 || !groupVersions[schema.GroupVersion{Group: parts[1], Version: parts[2]}] {
		return path{}, false
	}
	p := path{collection: text[:at] + "/" + strings.Join(parts[:4], "/")}
	if len(parts) > 4 {
		p.name = parts[4]
	}
	if len(parts) > 5 {
		p.sub = parts[5]
	}
	return p, true
}

var groupVersions = func() map[schema.GroupVersion]bool {
	out := map[schema.GroupVersion]bool{}
	for gvk := range Kinds {
		out[gvk.GroupVersion()] = true
	}
	return out
}()

// stream mends the events of a watch, one at a time.
type stream struct {
	in     *Intake
	path   path
	body   io.Closer
	frames *json.Decoder
	ready  bytes.Buffer
}

func (s *stream) Read(to []byte) (int, error) {
	for s.ready.Len() == 0 {
		var frame json.RawMessage
		if err := s.frames.Decode(&frame); err != nil {
			return 0, err
		}
		s.ready.Write(s.in.event(frame, s.path))
		s.ready.WriteByte('\n')
	}
	return s.ready.Read(to)
}

func (s *stream) Close() error { return s.body.Close() }

func (in *Intake) event(frame []byte, p path) []byte {
	var e struct {
		Type   string          `json:"type"`
		Object json.RawMessage `json:"object"`
	}
	if err := json.Unmarshal(frame, &e); err != nil || e.Type == "ERROR" || e.Type == "BOOKMARK" {
		return frame
	}
	mended, changed := in.object(e.Object, p)
	if e.Type == "DELETED" {
		in.forget(p.object(head(e.Object).Metadata.Name))
	}
	if !changed {
		return frame
	}
	e.Object = mended
	out, err := json.Marshal(e)
	if err != nil {
		return frame
	}
	return out
}

// document mends a list or an object.
func (in *Intake) document(data []byte, p path) []byte {
	h := head(data)
	if !strings.HasSuffix(h.Kind, "List") {
		mended, _ := in.object(data, p)
		return mended
	}
	gvk := schema.FromAPIVersionAndKind(h.APIVersion, strings.TrimSuffix(h.Kind, "List"))
	if in.kinds[gvk] == nil {
		return data
	}
	var out bytes.Buffer
	done := 0
	for start, end := range items(data) {
		mended, changed := in.object(data[start:end], p)
		if changed {
			out.Write(data[done:start])
			out.Write(mended)
			done = end
		}
	}
	if done == 0 {
		return data
	}
	out.Write(data[done:])
	return out.Bytes()
}

// items returns the ranges of a list's items in its bytes. It holds one item at a time, besides the list itself.
func items(list []byte) func(yield func(int, int) bool) {
	return func(yield func(int, int) bool) {
		d := json.NewDecoder(bytes.NewReader(list))
		if _, err := d.Token(); err != nil {
			return
		}
		for d.More() {
			key, err := d.Token()
			if err != nil {
				return
			}
			var value json.RawMessage
			if key != "items" {
				if err := d.Decode(&value); err != nil {
					return
				}
				continue
			}
			if open, err := d.Token(); err != nil || open != json.Delim('[') {
				return
			}
			for d.More() {
				value = value[:0]
				if err := d.Decode(&value); err != nil {
					return
				}
				end := int(d.InputOffset())
				if !yield(end-len(value), end) {
					return
				}
			}
			return
		}
	}
}

// header has the common fields of all objects.
type header struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name string `json:"name"`
	} `json:"metadata"`
}

func head(data []byte) header {
	var h header
	_ = json.Unmarshal(data, &h) // data that is no object gives an empty header, which is not of our kinds
	return h
}

// Mend returns an object as a client receives it, and its fields that can't be read.
func (in *Intake) Mend(data []byte) (mended []byte, problem string) {
	h := head(data)
	kind := in.kinds[schema.FromAPIVersionAndKind(h.APIVersion, h.Kind)]
	if kind == nil {
		return data, ""
	}
	return mend(data, kind)
}

// object mends one object, and records whether it can be read. A correct object is returned unchanged.
func (in *Intake) object(data []byte, p path) ([]byte, bool) {
	h := head(data)
	gvk := schema.FromAPIVersionAndKind(h.APIVersion, h.Kind)
	kind := in.kinds[gvk]
	if kind == nil {
		return data, false
	}
	mended, problem := mend(data, kind)
	at := p.object(h.Metadata.Name)
	if problem == "" {
		in.forget(at)
	} else {
		in.note(Unread{Path: at, GVK: gvk, Name: h.Metadata.Name, Problem: problem})
	}
	return mended, len(mended) != len(data) || problem != ""
}

func (in *Intake) note(u Unread) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.unread[u.Path] = u
}

func (in *Intake) forget(path string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	delete(in.unread, path)
}

// mend removes from an object the values that a Go type can't hold, and marks the object. An object that the type can
// hold is returned unchanged, without a problem, except for a mark that came with it, which is removed.
func mend(data []byte, t reflect.Type) (mended []byte, problem string) {
	whole := decode(data, t)
	if whole == nil && !bytes.Contains(data, []byte(api.UnreadableKey)) {
		return data, ""
	}
	var object map[string]any
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &object); err != nil {
		return data, "" // no object; the client reports that
	}
	metadata, _ := object["metadata"].(map[string]any)
	if metadata == nil {
		return data, ""
	}
	annotations, _ := metadata["annotations"].(map[string]any)
	if annotations == nil {
		annotations = map[string]any{}
	}
	delete(annotations, api.UnreadableKey)
	if whole != nil {
		var problems []string
		prune(object, t, "", func(field string, err error) {
			problems = append(problems, fmt.Sprintf("%s can't be read: %s", field, strings.TrimPrefix(err.Error(), "json: ")))
		})
		slices.Sort(problems)
		problem = strings.Join(problems, api.UnreadableSeparator)
		annotations[api.UnreadableKey] = problem
	}
	metadata["annotations"] = annotations
	out, err := json.Marshal(object)
	if err != nil {
		return data, ""
	}
	return out, problem
}

func decode(data []byte, t reflect.Type) error {
	return kjson.UnmarshalCaseSensitivePreserveInts(data, reflect.New(t).Interface())
}

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

// prune removes the smallest parts of value that t can't hold, and reports whether the rest can be held.
func prune(value any, t reflect.Type, field string, found func(string, error)) bool {
	whole := fits(value, t)
	if whole == nil {
		return true
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if !reflect.PointerTo(t).Implements(unmarshaler) {
		switch v := value.(type) {
		case map[string]any:
			for name, part := range v {
				if inner := member(t, name); inner != nil && !prune(part, inner, join(field, name), found) {
					delete(v, name)
				}
			}
		case []any:
			if t.Kind() == reflect.Slice {
				for i, part := range v {
					if !prune(part, t.Elem(), fmt.Sprintf("%s[%d]", field, i), found) {
						v[i] = nil
					}
				}
			}
		}
		if fits(value, t) == nil {
			return true
		}
	}
	found(field, whole)
	return false
}

func fits(value any, t reflect.Type) error {
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return decode(data, t)
}

func join(field, name string) string { return strings.TrimPrefix(field+"."+name, ".") }

// member returns the type of the field of a JSON object with that name, nil where t has no such field.
func member(t reflect.Type, name string) reflect.Type {
	switch t.Kind() {
	case reflect.Map:
		return t.Elem()
	case reflect.Struct:
		for f := range t.Fields() {
			key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if key == name {
				return f.Type
			}
			if f.Anonymous && key == "" {
				inner := f.Type
				for inner.Kind() == reflect.Pointer {
					inner = inner.Elem()
				}
				if found := member(inner, name); found != nil {
					return found
				}
			}
		}
	default:
	}
	return nil
}
