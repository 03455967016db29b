// SPDX-License-Identifier: Apache-2.0

package contents

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	"golang.org/x/sys/unix"

	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/ostree"
)

// TestMain makes the certificate of httptest's servers one that this machine trusts.
func TestMain(m *testing.M) {
	s := httptest.NewTLSServer(nil)
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	s.Close()
	dir, err := os.MkdirTemp("", "contents")
	if err != nil {
		panic(err)
	}
	file := filepath.Join(dir, "ca.pem")
	if err := os.WriteFile(file, cert, 0o600); err != nil {
		panic(err)
	}
	os.Setenv("SSL_CERT_FILE", file)
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// fixed is when the files of the tests changed.
var fixed = time.Unix(1, 0)

// newStore returns a store on an empty tree.
func newStore(t *testing.T) *Store {
	t.Helper()
	root, err := files.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	return &Store{Root: root, Say: func(string) {}}
}

func sha(data []byte) string {
	sum := sha512.Sum512(data)
	return "sha512-" + hex.EncodeToString(sum[:])
}

// config returns a configuration with one file by reference.
func config(r machineconfig.Reference) *machineconfig.Config {
	return &machineconfig.Config{Name: "worker", Files: []machineconfig.File{{Path: "/opt/tool", Reference: &r}}}
}

func names(t *testing.T, s *Store) []string {
	t.Helper()
	all, err := s.Root.ReadDir(Dir)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func serve(t *testing.T, handler http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewTLSServer(handler)
	t.Cleanup(s.Close)
	return s
}

func TestContentsAreFetchedVerifiedAndKept(t *testing.T) {
	data := bytes.Repeat([]byte("noderefit "), 100_000)
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = z.Write(data)
	_ = z.Close()
	asked := 0
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		asked++
		switch r.URL.Path {
		case "/plain":
			_, _ = w.Write(data)
		case "/packed":
			_, _ = w.Write(packed.Bytes())
		case "/elsewhere":
			http.Redirect(w, r, "/plain", http.StatusFound)
		}
	})
	for _, c := range []machineconfig.Reference{
		{Source: s.URL + "/plain", Hash: sha(data)},
		{Source: s.URL + "/packed", Hash: sha(data), Gzip: true},
		{Source: s.URL + "/elsewhere", Hash: sha(data)},
	} {
		t.Run(strings.TrimPrefix(c.Source, s.URL), func(t *testing.T) {
			store, cfg := newStore(t), config(c)
			if len(Lacking(store.Fill(cfg))) != 1 {
				t.Fatal("the host has the contents before they were fetched")
			}
			if err := store.Fetch(t.Context(), cfg); err != nil {
				t.Fatal(err)
			}
			full := store.Fill(cfg)
			if len(Lacking(full)) != 0 || !bytes.Equal(full.Files[0].Contents, data) {
				t.Fatalf("%d bytes were kept, not the %d that are there", len(full.Files[0].Contents), len(data))
			}
			if cfg.Files[0].Contents != nil {
				t.Error("the configuration itself was changed")
			}
			if kept := names(t, store); !slices.Equal(kept, []string{c.Hash}) {
				t.Errorf("the store has %v", kept)
			}
			before := asked
			if err := store.Fetch(t.Context(), cfg); err != nil || asked != before {
				t.Errorf("kept contents were asked for again: %v", err)
			}
		})
	}
}

func TestAnInterruptedFetchGoesOn(t *testing.T) {
	data := bytes.Repeat([]byte("0123456789"), 200_000)
	var ranges []string
	var changed bool
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		ranges = append(ranges, r.Header.Get("Range"))
		if changed {
			http.ServeContent(w, r, "", fixed, bytes.NewReader(data))
			return
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(data)))
		_, _ = w.Write(data[:len(data)/2])
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	store, cfg := newStore(t), config(machineconfig.Reference{Source: s.URL + "/a", Hash: sha(data)})
	err := store.Fetch(t.Context(), cfg)
	if ostree.ClassOf(err) != ostree.Retryable || !strings.Contains(err.Error(), "/opt/tool from "+s.URL+"/a") {
		t.Fatalf("an interruption is said as %v (%s)", err, ostree.ClassOf(err))
	}
	ranges, changed = nil, true
	if err := store.Fetch(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	if want := []string{fmt.Sprintf("bytes=%d-", len(data)/2)}; !slices.Equal(ranges, want) {
		t.Errorf("asked for %q, not %q", ranges, want)
	}
	// The program was killed right after the last byte.
	store, ranges = newStore(t), nil
	if err := store.Root.MkdirAll(Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(store.Root.Path(), Dir, partPrefix+sha(data)), data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := store.Fetch(t.Context(), cfg); err != nil || len(ranges) != 1 {
		t.Errorf("a whole part: asked for %q, %v", ranges, err)
	}
	// What is there already may be of another version of the file, and a longer one.
	for _, older := range [][]byte{[]byte("an older version"), bytes.Repeat([]byte("older"), len(data))} {
		store = newStore(t)
		if err := store.Root.MkdirAll(Dir, 0o700); err != nil {
			t.Fatal(err)
		}
		part := filepath.Join(store.Root.Path(), Dir, partPrefix+sha(data))
		if err := os.WriteFile(part, older, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := store.Fetch(t.Context(), cfg); err != nil {
			t.Errorf("a part of an older version was not dropped: %v", err)
		}
	}
}

func TestWhatCantBeFetchedIsNamedAndLeavesNothing(t *testing.T) {
	data := []byte("x")
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/gone":
			http.NotFound(w, r)
		case "/busy":
			w.WriteHeader(http.StatusServiceUnavailable)
		case "/plainly":
			http.Redirect(w, r, "http://"+r.Host+"/other", http.StatusFound)
		case "/round":
			http.Redirect(w, r, "/round", http.StatusFound)
		case "/huge":
			w.Header().Set("Content-Length", fmt.Sprint(int64(maxBytes)+1))
			w.WriteHeader(http.StatusOK)
		default:
			_, _ = w.Write([]byte("something else"))
		}
	})
	away := httptest.NewTLSServer(nil)
	away.Close()
	for _, c := range []struct {
		name   string
		source string
		gzip   bool
		class  ostree.Class
		says   string
	}{
		{"another hash", s.URL + "/other", false, ostree.Invalid, "and " + sha(data) + " is wanted"},
		{"no gzip", s.URL + "/other", true, ostree.Invalid, "not compressed by gzip"},
		{"no such file", s.URL + "/gone", false, ostree.NeedsAdmin, "404 Not Found"},
		{"a busy server", s.URL + "/busy", false, ostree.Retryable, "503 Service Unavailable"},
		{"no server", away.URL + "/a", false, ostree.Retryable, "connection refused"},
		{"a redirect without TLS", s.URL + "/plainly", false, ostree.NeedsAdmin, "which is not https"},
		{"redirects for ever", s.URL + "/round", false, ostree.NeedsAdmin, "more than 5 times"},
		{"too large", s.URL + "/huge", false, ostree.Invalid, "larger than the limit of 4096 MiB"},
	} {
		t.Run(c.name, func(t *testing.T) {
			store := newStore(t)
			cfg := config(machineconfig.Reference{Source: c.source, Hash: sha(data), Gzip: c.gzip})
			err := store.Fetch(t.Context(), cfg)
			if err == nil {
				t.Fatal("accepted")
			}
			for _, want := range []string{"/opt/tool", c.source, c.says} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in: %v", want, err)
				}
			}
			if got := ostree.ClassOf(err); got != c.class {
				t.Errorf("the class of %q is %s, not %s", err, got, c.class)
			}
			if len(Lacking(store.Fill(cfg))) != 1 {
				t.Error("the host has the contents all the same")
			}
		})
	}
}

// A source may not say how much comes. The rest of the disk stays free for the node's pods all the same.
func TestFetchingLeavesTheReserveOnTheDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("to mount a file system takes root")
	}
	data := make([]byte, 30<<20)
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = z.Write(data)
	_ = z.Close()
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush() // without a length
		if r.URL.Path == "/packed" {
			_, _ = w.Write(packed.Bytes())
			return
		}
		_, _ = w.Write(data)
	})
	for _, size := range []int{16 << 20, 40 << 20} {
		for _, r := range []machineconfig.Reference{{Source: s.URL + "/plain"}, {Source: s.URL + "/packed", Gzip: true}} {
			store := newStore(t)
			if err := unix.Mount("tmpfs", store.Root.Path(), "tmpfs", 0, fmt.Sprintf("size=%d", reserve+size)); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Unmount(store.Root.Path(), unix.MNT_DETACH) })
			root, err := files.Open(store.Root.Path())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = root.Close() })
			store.Root, r.Hash = root, sha(data)
			err = store.Fetch(t.Context(), config(r))
			if size > len(data) {
				if err != nil {
					t.Errorf("%s: %v", r.Source, err)
				}
				continue
			}
			left, reading := root.ReadDir(Dir)
			if ostree.ClassOf(err) != ostree.NeedsAdmin || !errors.Is(err, unix.ENOSPC) || reading != nil {
				t.Errorf("%s: %v, %v", r.Source, err, reading)
			}
			for _, name := range left {
				if size, _, err := root.SizeAndTime(Dir + "/" + name); err != nil || size > 0 {
					t.Errorf("%s: %d bytes of %s are left, %v", r.Source, size, name, err)
				}
			}
		}
	}
}

// push puts an image with those layers into a registry, and returns its digest.
func push(t *testing.T, s *httptest.Server, repository string, layers ...[]byte) string {
	t.Helper()
	send := func(method, at, kind string, body []byte) {
		req, err := http.NewRequestWithContext(t.Context(), method, s.URL+"/v2/"+repository+at, bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", kind)
		resp, err := s.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode >= 300 {
			t.Fatalf("%s %s: %s", method, at, resp.Status)
		}
	}
	digest := func(b []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(b)) }
	of := func(kind string, b []byte) map[string]any {
		send(http.MethodPost, "/blobs/uploads/?digest="+digest(b), "application/octet-stream", b)
		return map[string]any{"mediaType": kind, "digest": digest(b), "size": len(b)}
	}
	m := map[string]any{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": of("application/vnd.oci.empty.v1+json", []byte("{}"))}
	list := []any{}
	for _, l := range layers {
		list = append(list, of("application/octet-stream", l))
	}
	m["layers"] = list
	data, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	send(http.MethodPut, "/manifests/"+digest(data), "application/vnd.oci.image.manifest.v1+json", data)
	index, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
		"manifests": []any{
			map[string]any{"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": digest(data), "size": len(data),
				"platform": map[string]any{"os": "linux", "architecture": runtime.GOARCH}}}})
	if err != nil {
		t.Fatal(err)
	}
	send(http.MethodPut, "/manifests/"+digest(index), "application/vnd.oci.image.index.v1+json", index)
	send(http.MethodPut, "/manifests/index", "application/vnd.oci.image.index.v1+json", index)
	return digest(data) + " " + digest(index)
}

func TestTheLayerOfAnImageIsFetched(t *testing.T) {
	var demand string // the registry's challenge, "" for none
	auth := "Basic " + base64.StdEncoding.EncodeToString([]byte("joe:secret"))
	token := "Basic " + base64.StdEncoding.EncodeToString([]byte(":token"))
	taken := func(r *http.Request) bool {
		return slices.Contains([]string{auth, token}, r.Header.Get("Authorization"))
	}
	reg := registry.New()
	var s *httptest.Server
	s = serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/token" && taken(r) &&
			r.URL.Query().Get("scope") == "repository:tools/kubelet:pull":
			_, _ = w.Write([]byte(`{"token":"t"}`))
		case r.URL.Path == "/token":
			w.WriteHeader(http.StatusForbidden)
		case demand == "Basic" && !taken(r):
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
		case demand == "Bearer" && r.Header.Get("Authorization") != "Bearer t":
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+s.URL+`/token",service="reg"`)
			w.WriteHeader(http.StatusUnauthorized)
		default:
			reg.ServeHTTP(w, r)
		}
	})
	layer := []byte("the kubelet")
	one, index, _ := strings.Cut(push(t, s, "tools/kubelet", layer), " ")
	two, _, _ := strings.Cut(push(t, s, "tools/kubelet", layer, []byte("more")), " ")
	host := strings.TrimPrefix(s.URL, "https://")
	kept := fmt.Sprintf("sha256-%x", sha256.Sum256(layer))
	loginOf := func(auth string) string {
		return `{"auths":{"` + host + `/tools":{"auth":"` + strings.TrimPrefix(auth, "Basic ") + `"}}}`
	}
	login := loginOf(auth)
	mirror := func(more string) string {
		return "[[registry]]\nlocation=\"quay.example\"\n" + more + "\n[[registry.mirror]]\nlocation=\"" + host + "\"\n"
	}
	for _, c := range []struct {
		name, source, hash, demand, login, conf string
		says                                    string
	}{
		{name: "by its digest", source: host + "/tools/kubelet@" + one},
		{name: "by the digest of an index", source: host + "/tools/kubelet@" + index},
		{name: "with a hash too", source: host + "/tools/kubelet@" + one, hash: sha(layer)},
		{name: "with a wrong hash", source: host + "/tools/kubelet@" + one, hash: sha([]byte("x")), says: "is wanted"},
		{name: "two layers", source: host + "/tools/kubelet@" + two, says: "has 2 layers"},
		{name: "another digest", source: host + "/tools/kubelet@sha256:" + strings.Repeat("0", 64), says: "404"},
		{name: "with a password", source: host + "/tools/kubelet@" + one, demand: "Basic", login: login},
		{name: "with a token", source: host + "/tools/kubelet@" + one, demand: "Bearer", login: login},
		{name: "with a password and no user", source: host + "/tools/kubelet@" + one, demand: "Basic", login: loginOf(token)},
		{name: "with a token and no user", source: host + "/tools/kubelet@" + one, demand: "Bearer", login: loginOf(token)},
		{name: "without a login", source: host + "/tools/kubelet@" + one, demand: "Basic", says: "demands credentials"},
		{name: "with a token that is refused", source: host + "/tools/kubelet@" + one, demand: "Bearer", says: "403"},
		{name: "from a mirror", source: "quay.example/tools/kubelet@" + one, conf: mirror("")},
		{name: "from the mirror of a blocked place", source: "quay.example/tools/kubelet@" + one, conf: mirror("blocked=true")},
		{name: "from a blocked place", source: "quay.example/tools/kubelet@" + one,
			conf: "[[registry]]\nlocation=\"quay.example\"\nblocked=true\n", says: "quay.example/tools/kubelet is blocked"},
		{name: "from a blocked mirror", source: "quay.example/tools/kubelet@" + one,
			conf: mirror("blocked=true") + "[[registry]]\nlocation=\"" + host + "/tools\"\nblocked=true\n", says: "is blocked"},
	} {
		t.Run(c.name, func(t *testing.T) {
			store := newStore(t)
			for path, text := range map[string]string{"/etc/ostree/auth.json": c.login, "/etc/containers/registries.conf": c.conf} {
				at := filepath.Join(store.Root.Path(), path)
				if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
					t.Fatal(err)
				}
				if text == "" {
					continue
				}
				if err := os.WriteFile(at, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			demand = c.demand
			defer func() { demand = "" }()
			cfg := config(machineconfig.Reference{Source: "oci://" + c.source, Hash: c.hash})
			err := store.Fetch(t.Context(), cfg)
			if c.says != "" {
				if err == nil || !strings.Contains(err.Error(), c.says) {
					t.Fatalf("%q is not in: %v", c.says, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := store.Fill(cfg).Files[0].Contents; !bytes.Equal(got, layer) {
				t.Errorf("kept %q", got)
			}
			if c.hash == "" && !slices.Contains(names(t, store), kept) {
				t.Errorf("the bytes are not kept by their content: %v", names(t, store))
			}
			if err := store.Sweep(cfg); err != nil || len(Lacking((&Store{Root: store.Root}).Fill(cfg))) != 0 {
				t.Errorf("what a configuration has was swept: %v", err)
			}
		})
	}
}

// A token may end before a long fetch does.
func TestAFetchGoesOnWithAnotherToken(t *testing.T) {
	layer := bytes.Repeat([]byte("0123456789"), 200_000)
	tokens, cut := 0, true
	reg := registry.New()
	var s *httptest.Server
	s = serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/token":
			tokens++
			_, _ = fmt.Fprintf(w, `{"token":"%d"}`, tokens)
		case r.Method == http.MethodGet && r.Header.Get("Authorization") != fmt.Sprintf("Bearer %d", tokens):
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+s.URL+`/token"`)
			w.WriteHeader(http.StatusUnauthorized)
		case cut && strings.Contains(r.URL.Path, "/blobs/") && r.Method == http.MethodGet:
			cut = false
			tokens++ // nobody has that one
			w.Header().Set("Content-Length", fmt.Sprint(len(layer)))
			_, _ = w.Write(layer[:len(layer)/2])
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		default:
			reg.ServeHTTP(w, r)
		}
	})
	digest, _, _ := strings.Cut(push(t, s, "tools/kubelet", layer), " ")
	source := "oci://" + strings.TrimPrefix(s.URL, "https://") + "/tools/kubelet@" + digest
	store, cfg := newStore(t), config(machineconfig.Reference{Source: source})
	if err := store.Fetch(t.Context(), cfg); err != nil || tokens != 3 || cut {
		t.Errorf("%d tokens, cut %t: %v", tokens, !cut, err)
	}
	if got := store.Fill(cfg).Files[0].Contents; !bytes.Equal(got, layer) {
		t.Errorf("%d bytes were kept", len(got))
	}
}

func TestSweepLeavesWhatConfigurationsHave(t *testing.T) {
	store := newStore(t)
	if err := store.Root.MkdirAll(Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	a, b := []byte("a"), []byte("b")
	for name, data := range map[string][]byte{sha(a): a, sha(b): b, partPrefix + sha(a): a, partPrefix + "sha512-c": b} {
		if err := os.WriteFile(filepath.Join(store.Root.Path(), Dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := store.Sweep(nil, config(machineconfig.Reference{Hash: sha(a)})); err != nil {
		t.Fatal(err)
	}
	want := []string{partPrefix + sha(a), sha(a)}
	slices.Sort(want)
	if got := names(t, store); !slices.Equal(got, want) {
		t.Errorf("the store has %v, not %v", got, want)
	}
	// A file that the host has at its place needs no copy in the store.
	cfg := config(machineconfig.Reference{Hash: sha(b)})
	if len(Lacking(store.Fill(cfg))) != 1 {
		t.Error("swept contents are still there")
	}
	if err := os.MkdirAll(filepath.Join(store.Root.Path(), "opt"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(store.Root.Path(), "opt/tool"), b, 0o600); err != nil {
		t.Fatal(err)
	}
	if len(Lacking(store.Fill(cfg))) != 0 {
		t.Error("the file at its path does not count")
	}
}

// A file that is mapped must not be cut: the kernel would end the process. So a user's own file is never taken.
func TestAFileThatOtherUsersCanChangeIsNotTakenForContents(t *testing.T) {
	data := []byte("tool")
	for _, exposed := range []bool{false, true} {
		s := newStore(t)
		if err := s.Root.MkdirAll("/opt", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(s.Root.Path(), "opt/tool"), data, 0o600); err != nil {
			t.Fatal(err)
		}
		if exposed {
			if err := os.Chmod(filepath.Join(s.Root.Path(), "opt"), 0o777); err != nil {
				t.Fatal(err)
			}
		}
		filled := s.Fill(config(machineconfig.Reference{Source: "https://x/tool", Hash: sha(data)}))
		if taken := filled.Files[0].Contents != nil; taken == exposed {
			t.Errorf("others can change the file: %t, and it was taken: %t", exposed, taken)
		}
	}
}

// A host that lacks a large file is asked for its contents several times in one verb.
func TestAFileOfTheHostIsReadOnce(t *testing.T) {
	for _, there := range []string{"wanted", "another version"} {
		store := newStore(t)
		if err := os.WriteFile(filepath.Join(store.Root.Path(), "tool"), []byte(there), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg := config(machineconfig.Reference{Source: "https://x/tool", Hash: sha([]byte("wanted"))})
		cfg.Files[0].Path = "/tool"
		for range 3 {
			if lacks := len(Lacking(store.Fill(cfg))) > 0; lacks != (there != "wanted") {
				t.Errorf("%s: lacking %v", there, lacks)
			}
		}
		maps, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(maps, []byte(store.Root.Path()+"/tool\n")); n != 1 {
			t.Errorf("%s: read %d times", there, n)
		}
	}
}
