// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	regserver "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"go.uber.org/zap"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/registries"
	"github.com/noderefit/noderefit/releases"
)

// server is a registry, or whatever else answers. It notes the requests, and can be away.
type server struct {
	*httptest.Server
	mu       sync.Mutex
	requests []string
	away     bool
	// password is what the server asks for, "" for nothing.
	password string
}

func serve(t *testing.T, h http.Handler) *server {
	t.Helper()
	s := &server{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.requests = append(s.requests, r.Method+" "+r.URL.Path)
		away, password := s.away, s.password
		s.mu.Unlock()
		if _, given, _ := r.BasicAuth(); password != "" && given != password {
			w.Header().Set("WWW-Authenticate", `Basic realm="r"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if away {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *server) host() string { return strings.TrimPrefix(s.URL, "http://") }

// asked returns the requests since the last call.
func (s *server) asked() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.requests
	s.requests = nil
	return out
}

func (s *server) change(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// build returns an image of a version for architectures.
func build(t *testing.T, version string, arches ...string) remote.Taggable {
	t.Helper()
	var adds []mutate.IndexAddendum
	for _, arch := range arches {
		config := &v1.ConfigFile{OS: "linux", Architecture: arch, Created: v1.Time{Time: time.Unix(1700000000, 0)}}
		config.Config.Labels = map[string]string{labelVersion: version}
		config.RootFS.Type = "layers"
		image, err := mutate.ConfigFile(empty.Image, config)
		if err != nil {
			t.Fatal(err)
		}
		if len(arches) == 1 {
			return image
		}
		adds = append(adds, mutate.IndexAddendum{
			Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
		})
	}
	return mutate.AppendManifests(empty.Index, adds...)
}

func push(t *testing.T, to string, what remote.Taggable) {
	t.Helper()
	ref, err := name.ParseReference(to)
	if err != nil {
		t.Fatal(err)
	}
	pusher, err := remote.NewPusher()
	if err == nil {
		err = pusher.Push(t.Context(), ref, what)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func offered(t *testing.T, f *fetcher, q question) *releases.Offer {
	t.Helper()
	o, err := f.offer(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func versions(o *releases.Offer) (out []string) {
	for _, r := range o.Releases {
		out = append(out, r.Version)
	}
	return out
}

func TestATagThatStaysCostsOneRequest(t *testing.T) {
	t.Parallel()
	s := serve(t, regserver.New(regserver.Logger(zap.NewStdLog(zap.NewNop()))))
	push(t, s.host()+"/os:stable", build(t, "1.0", "amd64", "arm64"))
	s.asked()
	f, q := newFetcher(), question{source: &api.OSStreamSource{Tag: &api.TagSource{Image: s.host() + "/os:stable"}}}
	o := offered(t, f, q)
	r := o.Releases[0]
	if !o.Latest || r.Version != "1.0" || r.Since.Unix() != 1700000000 || r.Images["amd64"] != r.Images["arm64"] ||
		!strings.HasPrefix(r.Images["arm64"], s.host()+"/os@sha256:") {
		t.Errorf("%+v", o)
	}
	s.asked()
	for range 3 {
		offered(t, f, q)
		if asked := s.asked(); !slices.Equal(asked, []string{"HEAD /v2/os/manifests/stable"}) {
			t.Errorf("nothing has changed, and the registry was asked %q", asked)
		}
	}
	push(t, s.host()+"/os:stable", build(t, "1.1", "amd64"))
	if o = offered(t, f, q); o.Releases[0].Version != "1.1" || o.Releases[0].Images["arm64"] != "" {
		t.Errorf("%+v", o)
	}
}

func TestVersionsThatStayCostOneRequest(t *testing.T) {
	t.Parallel()
	s := serve(t, regserver.New(regserver.Logger(zap.NewStdLog(zap.NewNop()))))
	for _, v := range []string{"v1.0.0", "v1.2.0", "v1.10.0", "v2.0.0", "latest"} {
		push(t, s.host()+"/a/os:"+v, build(t, v, "amd64"))
	}
	f, q := newFetcher(), question{source: &api.OSStreamSource{Versions: &api.VersionsSource{
		Repository: s.host() + "/a/os", Range: "<2",
	}}}
	o := offered(t, f, q)
	if !slices.Equal(versions(o), []string{"v1.0.0", "v1.2.0", "v1.10.0"}) {
		t.Errorf("%s", versions(o))
	}
	s.asked()
	offered(t, f, q)
	if asked := s.asked(); !slices.Equal(asked, []string{"GET /v2/a/os/tags/list"}) {
		t.Errorf("nothing has changed, and the registry was asked %q", asked)
	}

	// The next leader knows of the status alone what a tag named.
	push(t, s.host()+"/a/os:v1.10.0", build(t, "pushed again", "amd64"))
	for _, r := range o.Releases {
		q.listed = append(q.listed, api.OSStreamRelease{Version: r.Version, Images: named(r.Images)})
	}
	if next := offered(t, newFetcher(), q); next.Releases[2].Images["amd64"] != o.Releases[2].Images["amd64"] {
		t.Errorf("%+v, and before %+v", next.Releases, o.Releases)
	}
	q.listed[2].Images = map[string]string{"amd64": "elsewhere.example/os@" + releases.Digest(o.Releases[0].Images["amd64"])}
	if next := offered(t, newFetcher(), q); next.Releases[2].Images["amd64"] == o.Releases[0].Images["amd64"] {
		t.Error("the digest of another repository's image counts")
	}
	q.listed[2].Images = map[string]string{"amd64": s.host() + "/a/os@sha256:" + strings.Repeat("0", 64)}
	if next := offered(t, newFetcher(), q); next.Releases[2].Images["amd64"] == o.Releases[2].Images["amd64"] {
		t.Errorf("the registry no longer has the image of the status, and the release is %+v", next.Releases[2])
	}
	s.change(func() { s.away = true })
	if next, err := newFetcher().offer(t.Context(), q); err == nil {
		t.Errorf("the registry is away, and offers %+v", next)
	}
}

func TestAnImageThatMakesNoSenseIsBounded(t *testing.T) {
	t.Parallel()
	s := serve(t, regserver.New(regserver.Logger(zap.NewStdLog(zap.NewNop()))))
	var arches []string
	for i := range 10 * mostPlatforms {
		arches = append(arches, fmt.Sprint("a", i))
	}
	push(t, s.host()+"/os:many", build(t, "1.0\x1b[2J"+strings.Repeat("1", 200), arches...))
	q := question{source: &api.OSStreamSource{Tag: &api.TagSource{Image: s.host() + "/os:many"}}}
	r := offered(t, newFetcher(), q).Releases[0]
	if !strings.HasPrefix(r.Version, "sha256:") || len(r.Images) != mostPlatforms {
		t.Errorf("%+v", r)
	}
}

func TestARegistryThatWasAwayOrHasAnotherTokenServerIsAskedAgain(t *testing.T) {
	t.Parallel()
	registry, token := regserver.New(regserver.Logger(zap.NewStdLog(zap.NewNop()))), ""
	var s *server
	s = serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		now := token
		s.mu.Unlock()
		switch {
		case now == "", r.Header.Get("Authorization") == "Bearer "+now:
			registry.ServeHTTP(w, r)
		case r.URL.Path == "/"+now:
			fmt.Fprintf(w, `{"token":%q}`, now)
		default:
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s/%s",service="r"`, s.URL, now))
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	push(t, s.host()+"/os:stable", build(t, "1.0", "amd64"))
	f, q := newFetcher(), question{source: &api.OSStreamSource{Tag: &api.TagSource{Image: s.host() + "/os:stable"}}}
	s.change(func() { s.away, token = true, "one" })
	if _, err := f.offer(t.Context(), q); err == nil {
		t.Fatal("a registry that is away answers")
	}
	s.change(func() { s.away = false })
	offered(t, f, q)
	s.change(func() { token = "two" })
	if _, err := f.offer(t.Context(), q); err == nil {
		t.Fatal("the library follows a registry to another token server: the puller need not be made anew")
	}
	offered(t, f, q)
}

func TestAMirrorIsAskedFirstAndTheImageKeepsItsName(t *testing.T) {
	t.Parallel()
	s, mirror := serve(t, regserver.New(regserver.Logger(zap.NewStdLog(zap.NewNop())))), serve(t, regserver.New(regserver.Logger(zap.NewStdLog(zap.NewNop()))))
	image := build(t, "1.0", "amd64")
	push(t, mirror.host()+"/copy/os:stable", image)
	f, q := newFetcher(), question{source: &api.OSStreamSource{Tag: &api.TagSource{Image: s.host() + "/a/os:stable"}}}
	q.mirrors = []registries.Source{{Scope: s.host() + "/a", Mirrors: []registries.Mirror{
		{Location: mirror.host() + "/copy", Digests: true, Tags: true},
	}}}
	o := offered(t, f, q)
	if at := o.Releases[0].Images["amd64"]; !strings.HasPrefix(at, s.host()+"/a/os@") || len(s.asked()) > 0 {
		t.Errorf("the image is %s", at)
	}
}

func TestAPullSecretOpensTheRegistry(t *testing.T) {
	t.Parallel()
	s := serve(t, regserver.New(regserver.Logger(zap.NewStdLog(zap.NewNop()))))
	push(t, s.host()+"/a/os:stable", build(t, "1.0", "amd64"))
	s.change(func() { s.password = "secret" })
	f, q := newFetcher(), question{source: &api.OSStreamSource{Tag: &api.TagSource{Image: s.host() + "/a/os:stable"}}}
	if _, err := f.offer(t.Context(), q); err == nil || !strings.Contains(err.Error(), "401") {
		t.Errorf("without the secret: %v", err)
	}
	secret := func(password string) []byte {
		return fmt.Appendf(nil, `{"auths":{%q:{"auth":%q},%q:{"auth":"x"}}}`, s.host()+"/a",
			base64.StdEncoding.EncodeToString([]byte("u:"+password)), "https://elsewhere.example/v1/")
	}
	q.secret = secret("secret")
	offered(t, f, q)
	q.secret = []byte("oops")
	if _, err := f.offer(t.Context(), q); err == nil || strings.Contains(err.Error(), "oops") {
		t.Errorf("a secret that can't be read: %v", err)
	}
}

func TestACredentialGoesToItsOwnRegistry(t *testing.T) {
	t.Parallel()
	quiet := regserver.Logger(zap.NewStdLog(zap.NewNop()))
	var sent []string
	var elsewhere *server
	elsewhere = serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		elsewhere.change(func() { sent = append(sent, r.Header.Get("Authorization")) })
		http.NotFound(w, r)
	}))
	registry := regserver.New(quiet)
	s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/blobs/") && r.Method == http.MethodGet {
			http.Redirect(w, r, elsewhere.URL+"/blob", http.StatusTemporaryRedirect)
			return
		}
		registry.ServeHTTP(w, r)
	}))
	push(t, s.host()+"/a/os:stable", build(t, "1.0", "amd64"))
	s.change(func() { s.password = "secret" })
	q := question{source: &api.OSStreamSource{Tag: &api.TagSource{Image: s.host() + "/a/os:stable"}}}
	q.secret = fmt.Appendf(nil, `{"auths":{%q:{"username":"u","password":"secret"}}}`, s.host())
	q.mirrors = []registries.Source{{Scope: s.host(), Mirrors: []registries.Mirror{{Location: elsewhere.host(), Digests: true, Tags: true}}}}
	if _, err := newFetcher().offer(t.Context(), q); err == nil {
		t.Error("the blob is not there")
	}
	if len(sent) < 3 || slices.ContainsFunc(sent, func(a string) bool { return a != "" }) {
		t.Errorf("the mirror and the host of the blobs were sent %q", sent)
	}
}

func TestTheEntryOfTheLongestNameCounts(t *testing.T) {
	t.Parallel()
	entry := func(name string) string {
		return fmt.Sprintf(`%q:{"username":%q,"password":"p"}`, name, name)
	}
	keys, err := keychainOf(fmt.Appendf(nil, `{"auths":{%s,%s,%s,"broken":{"auth":"x"}}}`, entry("r.example"), entry("r.example/a"),
		entry("docker.io")))
	if err != nil {
		t.Fatal(err)
	}
	for at, want := range map[string]string{
		"r.example/os": "r.example", "r.example/a/os": "r.example/a", "r.example/ab": "r.example",
		"docker.io/library/os": "docker.io", "other.example/os": "",
	} {
		repo, err := name.NewRepository(at)
		if err != nil {
			t.Fatal(err)
		}
		with, err := keys.Resolve(repo)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := with.Authorization(); err != nil || got.Username != want {
			t.Errorf("%s: %+v %v, want %s", at, got, err, want)
		}
	}
}

// documents serves documents with ETags.
func documents(t *testing.T, of map[string]string) *server {
	t.Helper()
	var s *server
	s = serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		text, there := of[r.URL.Path+"?"+r.URL.RawQuery]
		if !there {
			text, there = of[r.URL.Path]
		}
		s.mu.Unlock()
		etag := fmt.Sprintf("%q", fmt.Sprintf("%x", sha256.Sum256([]byte(text))))
		w.Header().Set("ETag", etag)
		switch {
		case !there:
			http.NotFound(w, r)
		case r.Header.Get("If-None-Match") == etag:
			w.WriteHeader(http.StatusNotModified)
		default:
			fmt.Fprint(w, text)
		}
		s.mu.Lock()
		s.requests[len(s.requests)-1] += " " + r.Header.Get("If-None-Match")
		s.mu.Unlock()
	}))
	return s
}

func pullspec(digit int) string {
	return fmt.Sprintf("quay.io/fedora/fedora-coreos@sha256:%064x", digit)
}

func TestAGraphIsAskedForEachArchitectureAndOnlyForWhatHasChanged(t *testing.T) {
	t.Parallel()
	graph := func(payload string) string {
		return fmt.Sprintf(`{"nodes":[{"version":"44.20260101.3.0","payload":%q,"metadata":{}}],"edges":[]}`, payload)
	}
	at := "/v1/graph?basearch=%s&oci=true&rollout_wariness=0&stream=stable"
	of := map[string]string{
		fmt.Sprintf(at, "x86_64"): graph(pullspec(1)), fmt.Sprintf(at, "aarch64"): graph("abc"),
		"/releases.json": fmt.Sprintf(`{"releases":[{"version":"44.20260101.3.0","oci-images":[
			{"architecture":"aarch64","image":"quay.io/fedora/fedora-coreos:stable","digest-ref":%q}]}]}`, pullspec(2)),
	}
	s := documents(t, of)
	f := newFetcher()
	q := question{arches: []string{"amd64", "arm64"}, source: &api.OSStreamSource{FedoraCoreOS: &api.FedoraCoreOSSource{
		Stream: "stable", GraphURL: s.URL + "/v1/graph", ReleasesURL: s.URL + "/releases.json",
	}}}
	r := offered(t, f, q).Releases[0]
	if r.Images["amd64"] != pullspec(1) || r.Images["arm64"] != pullspec(2) || r.Problem != "" {
		t.Errorf("%+v", r)
	}
	s.asked()
	again := offered(t, f, q).Releases[0]
	asked := s.asked()
	if len(asked) != 3 || again.Images["arm64"] != pullspec(2) ||
		slices.ContainsFunc(asked, func(one string) bool { return strings.HasSuffix(one, " ") }) {
		t.Errorf("%+v by %q", again, asked)
	}
	s.change(func() { of[fmt.Sprintf(at, "x86_64")] = graph(pullspec(3)) })
	if r = offered(t, f, q).Releases[0]; r.Images["amd64"] != pullspec(3) {
		t.Errorf("after a change: %+v", r)
	}
}

func TestAnAnswerThatIsTooLargeIsRefused(t *testing.T) {
	t.Parallel()
	s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for range 17 {
			_, _ = w.Write(make([]byte, 1<<20))
		}
	}))
	q := question{source: &api.OSStreamSource{Cincinnati: &api.CincinnatiSource{URL: s.URL, Channel: "a"}}}
	if _, err := newFetcher().offer(t.Context(), q); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Error(err)
	}
}

func TestAnswersWithoutAnEndAreRefused(t *testing.T) {
	t.Parallel()
	page := fmt.Sprintf(`{"name":"os","tags":["%s"]}`, strings.Repeat("x", largest/2))
	s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"1"`)
		w.Header().Set("Link", fmt.Sprintf(`</v2/os/tags/list?last=%s1>; rel="next"`, r.URL.Query().Get("last")))
		fmt.Fprint(w, page)
	}))
	f, q := newFetcher(), question{source: &api.OSStreamSource{Versions: &api.VersionsSource{Repository: s.host() + "/os", Range: "1"}}}
	if _, err := f.offer(t.Context(), q); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Error(err)
	}
	held := 0
	for _, a := range f.transport.kept {
		held += len(a.body)
	}
	if held > mostKept {
		t.Errorf("%d bytes of answers are kept", held)
	}
}

// The environment of a process is read once for its proxies, so another process asks.
func TestASourceIsAskedByTheProxyOfTheEnvironment(t *testing.T) {
	t.Parallel()
	q := question{source: &api.OSStreamSource{Cincinnati: &api.CincinnatiSource{URL: "http://graph.example/graph"}}}
	if os.Getenv("STREAM_HAS_A_PROXY") != "" {
		if o := offered(t, newFetcher(), q); !slices.Equal(versions(o), []string{"1"}) {
			t.Errorf("%+v", o)
		}
		return
	}
	proxy := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Host != "graph.example" {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		fmt.Fprintf(w, `{"nodes":[{"version":"1","payload":%q}]}`, pullspec(1))
	}))
	again := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	again.Env = append(os.Environ(), "STREAM_HAS_A_PROXY=1", "HTTP_PROXY="+proxy.URL, "http_proxy=", "NO_PROXY=", "no_proxy=")
	if out, err := again.CombinedOutput(); err != nil || !slices.Equal(proxy.asked(), []string{"GET /graph"}) {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestARedirectDoesNotLeaveTLS(t *testing.T) {
	t.Parallel()
	plain := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"nodes":[{"version":"1","payload":%q}]}`, pullspec(1))
	}))
	secure := httptest.NewTLSServer(http.RedirectHandler(plain.URL, http.StatusFound))
	t.Cleanup(secure.Close)
	f := newFetcher()
	f.transport.next = secure.Client().Transport
	q := question{source: &api.OSStreamSource{Cincinnati: &api.CincinnatiSource{URL: secure.URL}}}
	if o, err := f.offer(t.Context(), q); err == nil || !strings.Contains(err.Error(), "redirects to") || len(plain.asked()) > 0 {
		t.Errorf("%+v %v", o, err)
	}
}
