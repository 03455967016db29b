// SPDX-License-Identifier: Apache-2.0

// Package fakeruntime plays containerd at its socket, as far as images are pulled and pinned. test/fleets/pods holds it
// to what the real one does.
package fakeruntime

import (
	"encoding/base64"
	"encoding/binary"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
)

// Socket is where the runtime listens, below the root of its host.
const Socket = "/run/containerd/containerd.sock"

// Runtime is a container runtime. Its registry has the images that Offer names.
type Runtime struct {
	server *http.Server

	mu     sync.Mutex
	offers map[string]bool
	has    map[string]map[string]string // the labels of the images that were pulled
	asked  map[string]int               // the calls, by their method
	hold   chan struct{}                // not nil: pulls wait until it is closed
	hidden map[string]bool              // the images that it has and does not name
	noPins bool                         // whether it does not say what is pinned
	login  string                       // the user and the password that the registry asks for; empty: it asks for none
}

// Start plays a runtime on the host whose root is at a directory.
func Start(root string) (*Runtime, error) {
	at := filepath.Join(root, Socket)
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return nil, err
	}
	listener, err := net.Listen("unix", at)
	if err != nil {
		return nil, err
	}
	plain := new(http.Protocols)
	plain.SetUnencryptedHTTP2(true)
	r := &Runtime{offers: map[string]bool{}, has: map[string]map[string]string{}, asked: map[string]int{},
		hidden: map[string]bool{}}
	r.server = &http.Server{Handler: http.HandlerFunc(r.serve), Protocols: plain}
	go func() { _ = r.server.Serve(listener) }()
	return r, nil
}

// Close ends the runtime. Its socket is gone.
func (r *Runtime) Close() { _ = r.server.Close() }

// Offer puts images into the registry.
func (r *Runtime) Offer(images ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, image := range images {
		r.offers[image] = true
	}
}

// Guard has the registry ask for a user and a password.
func (r *Runtime) Guard(user, password string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.login = user + ":" + password
}

// Hold has pulls wait until the function that it returns is called.
func (r *Runtime) Hold() (goOn func()) {
	on := make(chan struct{})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hold = on
	return sync.OnceFunc(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.hold = nil
		close(on)
	})
}

// Hide has the runtime not name an image that it has, as where it keeps the image under another name.
func (r *Runtime) Hide(image string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hidden[image] = true
}

// HidePins has the runtime not say what is pinned, as runtimes do that know no pins.
func (r *Runtime) HidePins() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.noPins = true
}

// Remove removes an image, as people and the kubelet do.
func (r *Runtime) Remove(image string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.has, image)
}

// Labels returns the labels of an image; nil: the runtime does not have it.
func (r *Runtime) Labels(image string) map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.has[image])
}

// Label sets a label of an image.
func (r *Runtime) Label(image, key, value string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.has[image][key] = value
}

// Asked returns how often a method was called.
func (r *Runtime) Asked(method string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asked[method]
}

func (r *Runtime) serve(w http.ResponseWriter, q *http.Request) {
	body, err := io.ReadAll(q.Body)
	method := q.URL.Path[strings.LastIndex(q.URL.Path, "/")+1:]
	w.Header().Set("Content-Type", "application/grpc")
	w.Header().Set("Trailer", "Grpc-Status, Grpc-Message")
	code, text, answer := "12", "unknown method "+q.URL.Path, []byte(nil)
	if err == nil && len(body) >= 5 {
		code, text, answer = r.call(q, method, body[5:])
	}
	if code == "0" {
		_, _ = w.Write(append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(answer))), answer...))
	} else {
		w.WriteHeader(http.StatusOK)
	}
	w.Header().Set("Grpc-Status", code)
	w.Header().Set("Grpc-Message", strings.ReplaceAll(text, " ", "%20"))
}

func (r *Runtime) call(q *http.Request, method string, body []byte) (code, text string, answer []byte) {
	cri := strings.HasPrefix(q.URL.Path, "/runtime.v1.ImageService/")
	if !cri && q.Header.Get("Containerd-Namespace") != "k8s.io" {
		return "9", "namespace is required", nil
	}
	r.mu.Lock()
	r.asked[method]++
	hold := r.hold
	r.mu.Unlock()
	if method == "PullImage" && hold != nil {
		select {
		case <-hold:
		case <-q.Context().Done():
			return "1", "context canceled", nil
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch method {
	case "ListImages":
		return "0", "", r.list()
	case "ImageFsInfo":
		return "0", "", nested(1, nested(2, text1("/var")))
	case "PullImage":
		image, auth := inner(inner(body, 1), 1), inner(body, 2)
		switch {
		case r.login != "" && r.login != loginOf(auth):
			return "2", "failed to authorize the pull", nil
		case !r.offers[string(image)]:
			return "5", "failed to resolve image: " + string(image) + ": not found", nil
		case r.has[string(image)] == nil:
			r.has[string(image)] = map[string]string{"io.cri-containerd.image": "managed"}
		}
		return "0", "", text1("sha256:id")
	case "List":
		for _, name := range slices.Sorted(maps.Keys(r.has)) {
			if r.has[name]["noderefit.dev/pinned"] == "true" {
				answer = append(answer, nested(1, text1(name))...)
			}
		}
		return "0", "", answer
	case "Get":
		name := string(inner(body, 1))
		if r.has[name] == nil {
			return "5", "image " + name + ": not found", nil
		}
		return "0", "", nested(1, append(text1(name), nested(3, text1("application/vnd.oci.image.manifest.v1+json"))...))
	case "Update":
		if image := inner(body, 1); inner(image, 3) == nil {
			panic(http.ErrAbortHandler) // containerd 1.7 ends with a panic
		}
		return r.update(body)
	}
	return "12", "unknown method " + method, nil
}

// loginOf returns USER:PASSWORD of an AuthConfig as containerd reads the fields: a password without a user counts in
// field auth alone. The result is "" where there is neither.
func loginOf(auth []byte) string {
	if user := inner(auth, 1); len(user) > 0 {
		return string(user) + ":" + string(inner(auth, 2))
	}
	plain, err := base64.StdEncoding.DecodeString(string(inner(auth, 3)))
	if err != nil {
		return ""
	}
	return string(plain)
}

func (r *Runtime) list() (out []byte) {
	for _, name := range slices.Sorted(maps.Keys(r.has)) {
		if r.hidden[name] {
			continue
		}
		image := nested(3, []byte(name))
		if r.has[name]["io.cri-containerd.pinned"] == "pinned" && !r.noPins {
			image = protowire.AppendVarint(protowire.AppendTag(image, 8, protowire.VarintType), 1)
		}
		out = append(out, nested(1, image)...)
	}
	return out
}

// update sets the labels that the mask names, and removes those without a value.
func (r *Runtime) update(body []byte) (code, text string, answer []byte) {
	image := inner(body, 1)
	labels := r.has[string(inner(image, 1))]
	if labels == nil {
		return "5", "image " + string(inner(image, 1)) + ": not found", nil
	}
	given := map[string]string{}
	for _, entry := range fields(image, 2) {
		given[string(inner(entry, 1))] = string(inner(entry, 2))
	}
	for _, path := range fields(inner(body, 2), 1) {
		key := strings.TrimPrefix(string(path), "labels.")
		if labels[key] = given[key]; given[key] == "" {
			delete(labels, key)
		}
	}
	return "0", "", nested(1, image)
}

func nested(field protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, field, protowire.BytesType), value)
}

func text1(value string) []byte { return nested(1, []byte(value)) }

// fields returns the values of a field of a message.
func fields(m []byte, of protowire.Number) (out [][]byte) {
	for len(m) > 0 {
		field, kind, n := protowire.ConsumeTag(m)
		if n < 0 {
			return out
		}
		m = m[n:]
		size := protowire.ConsumeFieldValue(field, kind, m)
		if size < 0 {
			return out
		}
		if value, n := protowire.ConsumeBytes(m); field == of && kind == protowire.BytesType && n > 0 {
			out = append(out, value)
		}
		m = m[size:]
	}
	return out
}

// inner returns the first value of a field of a message.
func inner(m []byte, of protowire.Number) []byte {
	if all := fields(m, of); len(all) > 0 {
		return all[0]
	}
	return nil
}
