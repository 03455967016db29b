// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"errors"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	regserver "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// side is a registry, and how often it was asked for anything.
type side struct {
	host  string
	asked atomic.Int64
	away  atomic.Bool  // every answer is an error
	fails atomic.Int64 // the number of blobs until it is away
}

func newSide(t *testing.T) *side {
	t.Helper()
	s := &side{}
	registry := regserver.New(regserver.Logger(zap.NewStdLog(zap.NewNop())))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.asked.Add(1)
		if strings.Contains(r.URL.Path, "/blobs/") && s.fails.Load() > 0 && s.fails.Add(-1) == 0 {
			s.away.Store(true)
		}
		if s.away.Load() {
			http.Error(w, "away", http.StatusForbidden)
			return
		}
		registry.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	s.host = strings.TrimPrefix(server.URL, "http://")
	return s
}

// push puts an image of one layer into the registry, and returns its digest.
func (s *side) push(t *testing.T, at string) string {
	t.Helper()
	image, err := random.Image(2000, 2)
	if err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(s.host + "/" + at)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, image); err != nil {
		t.Fatal(err)
	}
	return hashOf(t, image)
}

// pushIndex puts an image for three platforms into the registry, and returns its digest.
func (s *side) pushIndex(t *testing.T, at string) string {
	t.Helper()
	index, err := random.Index(1000, 2, 3)
	if err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(s.host + "/" + at)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(ref, index); err != nil {
		t.Fatal(err)
	}
	return hashOf(t, index)
}

func hashOf(t *testing.T, of interface{ Digest() (v1.Hash, error) }) string {
	t.Helper()
	h, err := of.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return h.String()
}

// has returns the digest that a reference has in the registry, "" for none. All layers are read.
func (s *side) has(t *testing.T, at string) string {
	t.Helper()
	ref, err := name.ParseReference(s.host + "/" + at)
	if err != nil {
		t.Fatal(err)
	}
	d, err := remote.Get(ref)
	if err != nil {
		return ""
	}
	images := []func() (v1.Image, error){d.Image}
	if d.MediaType.IsIndex() {
		index, err := d.ImageIndex()
		if err != nil {
			t.Fatal(err)
		}
		manifest, err := index.IndexManifest()
		if err != nil {
			t.Fatal(err)
		}
		images = nil
		for _, m := range manifest.Manifests {
			images = append(images, func() (v1.Image, error) { return index.Image(m.Digest) })
		}
	}
	for _, open := range images {
		image, err := open()
		if err != nil {
			t.Fatalf("%s: %v", at, err)
		}
		layers, err := image.Layers()
		if err != nil {
			t.Fatalf("%s: %v", at, err)
		}
		for _, layer := range layers {
			r, err := layer.Compressed()
			if err != nil {
				t.Fatalf("%s: %v", at, err)
			}
			r.Close()
		}
	}
	return d.Digest.String()
}

func quiet(string, ...any) {}

func save(t *testing.T, dir string, c Contents) *List {
	t.Helper()
	list, err := Save(t.Context(), dir, c, quiet)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func signatureOf(at, digest string) string {
	return at + ":" + strings.Replace(digest, ":", "-", 1) + ".sig"
}

func TestABundleCarriesImagesSignaturesAndFilesToAnotherRegistry(t *testing.T) {
	from, to := newSide(t), newSide(t)
	tagged := from.push(t, "noderefit/machine-config-daemon:v1.2.3")
	platforms := from.pushIndex(t, "os/node:stable")
	signature := from.push(t, signatureOf("os/node", platforms))
	dir := filepath.Join(t.TempDir(), "bundle")
	saved := save(t, dir, Contents{
		Version: "v1.2.3",
		Images:  []string{from.host + "/os/node@" + platforms, from.host + "/noderefit/machine-config-daemon:v1.2.3"},
		Files:   map[string][]byte{"manifests/a.yaml": []byte("a: 1\n")},
	})
	read, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(saved, read); diff != "" {
		t.Errorf("the list that was read differs: %s", diff)
	}
	want := []Image{
		{Name: from.host + "/noderefit/machine-config-daemon:v1.2.3", Digest: tagged},
		{Name: from.host + "/os/node@" + platforms, Digest: platforms, Signature: signature},
	}
	if diff := cmp.Diff(want, read.Images); diff != "" {
		t.Errorf("images: %s", diff)
	}
	from.away.Store(true)
	for range 2 { // a second time changes nothing
		if _, err := Load(t.Context(), dir, to.host+"/mirror/", quiet); err != nil {
			t.Fatal(err)
		}
		for at, digest := range map[string]string{
			"mirror/noderefit/machine-config-daemon:v1.2.3": tagged,
			"mirror/os/node@" + platforms:                   platforms,
			"mirror/" + signatureOf("os/node", platforms):   signature,
		} {
			if got := to.has(t, at); got != digest {
				t.Errorf("%s is %q, want %s", at, got, digest)
			}
		}
	}
}

func TestABundleThatWasStoppedIsNoneUntilItIsSavedToItsEnd(t *testing.T) {
	from := newSide(t)
	from.push(t, "a:1")
	from.push(t, "b:1")
	dir := filepath.Join(t.TempDir(), "bundle")
	both := Contents{Images: []string{from.host + "/a:1", from.host + "/b:1"}}
	from.fails.Store(4) // in the middle of the second image
	if _, err := Save(t.Context(), dir, both, quiet); err == nil || !strings.Contains(err.Error(), "saving the image "+from.host) {
		t.Fatalf("saving from a registry that goes away: %v", err)
	}
	if _, err := Load(t.Context(), dir, "127.0.0.1:1", quiet); err == nil || !strings.Contains(err.Error(), "save it again") {
		t.Errorf("loading half a bundle: %v", err)
	}
	from.away.Store(false)
	before := map[string]fs.FileInfo{}
	for _, blob := range blobs(t, dir) {
		before[blob] = stat(t, blob)
	}
	save(t, dir, both)
	kept := 0
	for blob, info := range before {
		if os.SameFile(info, stat(t, blob)) && info.ModTime().Equal(stat(t, blob).ModTime()) {
			kept++
		}
	}
	if kept < 3 {
		t.Errorf("of %d blobs %d were not written again", len(before), kept)
	}
	if err := loaded(t, dir); err != nil {
		t.Error(err)
	}
}

// loaded loads a bundle into a registry of its own.
func loaded(t *testing.T, dir string) error {
	t.Helper()
	_, err := Load(t.Context(), dir, newSide(t).host, quiet)
	return err
}

// A power cut leaves files of the right size with other bytes.
func TestSavingAgainHealsBlobsAndRemovesWhatIsNotWantedAnyMore(t *testing.T) {
	from := newSide(t)
	from.push(t, "a:1")
	from.push(t, "b:1")
	dir := filepath.Join(t.TempDir(), "bundle")
	save(t, dir, Contents{Images: []string{from.host + "/a:1", from.host + "/b:1"}, Files: map[string][]byte{"old": nil}})
	all := blobs(t, dir)
	for _, blob := range all {
		if err := os.WriteFile(blob, make([]byte, stat(t, blob).Size()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	save(t, dir, Contents{Images: []string{from.host + "/a:1"}})
	if now := blobs(t, dir); len(now) != len(all)/2 {
		t.Errorf("%d blobs of two images, then %d of one", len(all), len(now))
	}
	if _, err := os.Stat(filepath.Join(dir, "files/old")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a former file: %v", err)
	}
	if err := loaded(t, dir); err != nil {
		t.Error(err)
	}
}

func TestSavingTouchesNothingThatIsOfNoBundle(t *testing.T) {
	from := newSide(t)
	from.push(t, "a:1")
	one := Contents{Images: []string{from.host + "/a:1"}, Files: map[string][]byte{"a": []byte("a")}}
	saved := filepath.Join(t.TempDir(), "saved")
	save(t, saved, one)
	for what, c := range map[string]struct{ begin, remove, link, to, want string }{
		"a layout of another tool": {saved, listName, "", "", "has no bundle.json"},
		"files without a list":     {"", "", "", "", "has no bundle.json"},
		"blobs that lead away":     {saved, "", "blobs/other", "away", "neither a file nor a directory"},
		"a list that leads away":   {saved, "", unfinished, "away/precious", "neither a file nor a directory"},
		"a blob that leads away":   {saved, "", "blobs/sha256/x", "away/precious", "neither a file nor a directory"},
	} {
		dir := filepath.Join(t.TempDir(), "bundle")
		away := filepath.Join(filepath.Dir(dir), "away")
		precious := filepath.Join(away, "precious")
		if c.begin == "" {
			away = filepath.Join(dir, filesDir)
			precious = filepath.Join(away, "precious")
		} else if err := os.CopyFS(dir, os.DirFS(c.begin)); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.MkdirAll(away, 0o755), os.WriteFile(precious, []byte("p"), 0o600)); err != nil {
			t.Fatal(err)
		}
		var err error
		if c.remove != "" {
			err = os.Remove(filepath.Join(dir, c.remove))
		}
		if c.link != "" {
			err = errors.Join(err, os.Symlink(filepath.Join(filepath.Dir(dir), c.to), filepath.Join(dir, c.link)))
		}
		if err != nil {
			t.Fatal(err)
		}
		before := len(find(t, dir))
		if _, err := Save(t.Context(), dir, Contents{}, quiet); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", what, err)
		}
		if info, err := os.Stat(precious); err != nil || info.Size() == 0 || c.link == "" && len(find(t, dir)) != before {
			t.Errorf("%s: of %d files %d are left: %v", what, before, len(find(t, dir)), err)
		}
	}
}

// find returns all that is below a directory.
func find(t *testing.T, dir string) (all []string) {
	t.Helper()
	if err := filepath.WalkDir(dir, func(at string, _ fs.DirEntry, err error) error {
		all = append(all, at)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

// A command that is killed leaves the list beside its place, and blobs under the names of others.
func TestSavingGoesOnAfterAKillWhereverTheDirectoryIs(t *testing.T) {
	from := newSide(t)
	from.push(t, "a:1")
	one := Contents{Images: []string{from.host + "/a:1"}}
	dir := filepath.Join(t.TempDir(), "bundle[1]")
	want := save(t, dir, one)
	list := filepath.Join(dir, listName)
	err := os.Rename(list, list+".new")
	for _, blob := range find(t, filepath.Join(dir, "blobs"))[2:] {
		err = errors.Join(err, os.WriteFile(blob, make([]byte, stat(t, blob).Size()), 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, save(t, dir, one)); diff != "" {
		t.Error(diff)
	}
	if err := loaded(t, dir); err != nil {
		t.Error(err)
	}
}

func stat(t *testing.T, path string) fs.FileInfo {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

func blobs(t *testing.T, dir string) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(dir, "blobs/*/*"))
	if err != nil || len(all) == 0 {
		t.Fatalf("%d blobs: %v", len(all), err)
	}
	return all
}

func TestADamagedBundleIsRefusedBeforeAnythingIsCopied(t *testing.T) {
	from := newSide(t)
	from.pushIndex(t, "os:1")
	contents := Contents{Images: []string{from.host + "/os:1"}, Files: map[string][]byte{"a": []byte("a")}}
	whole := filepath.Join(t.TempDir(), "bundle")
	save(t, whole, contents)
	paths := append(blobs(t, whole), filepath.Join(whole, "files/a"))
	for _, path := range paths {
		for what, damage := range map[string]func(string) error{
			"is missing":     os.Remove,
			"has the digest": func(p string) error { return os.WriteFile(p, []byte("{}"), 0o600) },
		} {
			dir := filepath.Join(t.TempDir(), "bundle")
			if err := os.CopyFS(dir, os.DirFS(whole)); err != nil {
				t.Fatal(err)
			}
			rel, err := filepath.Rel(whole, path)
			if err != nil {
				t.Fatal(err)
			}
			if err := damage(filepath.Join(dir, rel)); err != nil {
				t.Fatal(err)
			}
			to := newSide(t)
			_, err = Load(t.Context(), dir, to.host, quiet)
			if err == nil || !strings.Contains(err.Error(), what) || !strings.Contains(err.Error(), rel) || to.asked.Load() > 0 {
				t.Errorf("%s %s: %v, and the registry was asked %d times", rel, what, err, to.asked.Load())
			}
		}
	}
}

// endless is a blob that never ends.
type endless struct{ read atomic.Int64 }

func (e *endless) Read(p []byte) (int, error) {
	e.read.Add(int64(len(p)))
	return len(p), nil
}

func TestARegistryThatLiesMakesNoBundle(t *testing.T) {
	from := newSide(t)
	image, other := from.push(t, "a:1"), from.push(t, "b:1")
	behind, err := url.Parse("http://" + from.host)
	if err != nil {
		t.Fatal(err)
	}
	for what, lie := range map[string]func(w http.ResponseWriter, r *http.Request, blob *endless) bool{
		"another image": func(_ http.ResponseWriter, r *http.Request, _ *endless) bool {
			r.URL.Path = strings.Replace(r.URL.Path, "a/manifests/"+image, "b/manifests/"+other, 1)
			return false
		},
		"endless blobs": func(w http.ResponseWriter, r *http.Request, blob *endless) bool {
			if !strings.Contains(r.URL.Path, "/blobs/") {
				return false
			}
			_, _ = io.Copy(w, blob)
			return true
		},
	} {
		var blob endless
		forward := httputil.NewSingleHostReverseProxy(behind)
		liar := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !lie(w, r, &blob) {
				forward.ServeHTTP(w, r)
			}
		}))
		t.Cleanup(liar.Close)
		dir := filepath.Join(t.TempDir(), "bundle")
		at := strings.TrimPrefix(liar.URL, "http://") + "/a@" + image
		_, err := Save(t.Context(), dir, Contents{Images: []string{at}}, quiet)
		if err == nil || !strings.Contains(err.Error(), "saving the image "+at) {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := Read(dir); err == nil || blob.read.Load() > 64<<20 {
			t.Errorf("%s: a list was written, or %d bytes were read", what, blob.read.Load())
		}
	}
}

// kubectl apply takes all files of a directory, whether the list has them or not.
func TestABundleWithMoreThanItsListNamesIsRefused(t *testing.T) {
	from := newSide(t)
	from.push(t, "os:1")
	contents := Contents{Images: []string{from.host + "/os:1"}, Files: map[string][]byte{"manifests/a.yaml": []byte("a")}}
	for want, change := range map[string]func(dir string) error{
		"evil.yaml is not in bundle.json": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "files/manifests/evil.yaml"), nil, 0o600)
		},
		"a.yaml is neither a file nor a directory": func(dir string) error {
			file := filepath.Join(dir, "files/manifests/a.yaml")
			return errors.Join(os.Rename(file, dir+".yaml"), os.Symlink(dir+".yaml", file))
		},
		"oci-layout is neither a file nor a directory": func(dir string) error {
			file := filepath.Join(dir, "oci-layout")
			return errors.Join(os.Remove(file), os.Symlink("/dev/zero", file))
		},
		"index.json is larger than": func(dir string) error {
			return os.Truncate(filepath.Join(dir, "index.json"), largest+1)
		},
		"bundle.json is larger than": func(dir string) error {
			return os.Truncate(filepath.Join(dir, listName), largest+1)
		},
	} {
		dir := filepath.Join(t.TempDir(), "bundle")
		save(t, dir, contents)
		if err := change(dir); err != nil {
			t.Fatal(err)
		}
		to := newSide(t)
		_, err := Load(t.Context(), dir, to.host, quiet)
		if err == nil || !strings.Contains(err.Error(), want) || to.asked.Load() > 0 {
			t.Errorf("want %q: %v, and the registry was asked %d times", want, err, to.asked.Load())
		}
	}
}

func TestWhatIsNoBundleIsRefusedByName(t *testing.T) {
	from := newSide(t)
	from.push(t, "a/os:1")
	other := newSide(t)
	other.push(t, "a/os:1")
	for what, c := range map[string]struct {
		images []string
		files  map[string][]byte
		want   string
	}{
		"no tag":        {[]string{from.host + "/a/os"}, nil, "neither a tag nor a digest says which one"},
		"no reference":  {[]string{"A//b:1"}, nil, "image A//b:1"},
		"not there":     {[]string{from.host + "/a/os:2"}, nil, "saving the image " + from.host + "/a/os:2"},
		"path climbs":   {nil, map[string][]byte{"../x": nil}, `"../x" is no path within a bundle`},
		"path is whole": {nil, map[string][]byte{"/x": nil}, `"/x" is no path within a bundle`},
	} {
		_, err := Save(t.Context(), filepath.Join(t.TempDir(), "b"), Contents{Images: c.images, Files: c.files}, quiet)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "thesis.txt"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Save(t.Context(), dir, Contents{}, quiet); err == nil || !strings.Contains(err.Error(), "thesis.txt, which is of no bundle") {
		t.Errorf("saving into a directory with other files: %v", err)
	}
	twice := filepath.Join(t.TempDir(), "b")
	save(t, twice, Contents{Images: []string{from.host + "/a/os:1", other.host + "/a/os:1"}})
	if err := loaded(t, twice); err == nil || !strings.Contains(err.Error(), "two images of the bundle would be") {
		t.Errorf("two images of one name: %v", err)
	}
	for what, text := range map[string]string{
		"another kind":  `{"apiVersion":"cli.noderefit.dev/v1","kind":"Plan"}`,
		"climbing path": `{"apiVersion":"cli.noderefit.dev/v1","kind":"Bundle","files":[{"path":"files/../../x","digest":""}]}`,
		"bad digest":    `{"apiVersion":"cli.noderefit.dev/v1","kind":"Bundle","images":[{"name":"x/y:1","digest":"sha256:1"}]}`,
		"garbage":       "\x00",
	} {
		if err := os.WriteFile(filepath.Join(twice, listName), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(twice); err == nil || !strings.Contains(err.Error(), listName+" of the bundle "+twice) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestMirrorsHaveNodesPullFromTheRegistryOfTheBundle(t *testing.T) {
	sum := "sha256:" + strings.Repeat("0", 64)
	list := &List{Images: []Image{
		{Name: "quay.io/os/node@" + sum, Digest: sum},
		{Name: "quay.io/os/extensions:v1", Digest: sum},
		{Name: "registry.of.yours/same:v1", Digest: sum},
		{Name: "registry.example/noderefit/machine-config-daemon:v1", Digest: sum},
		{Name: "registry.example/noderefit/machine-config-controller:v1", Digest: sum},
		{Name: "registry.example/noderefit/machine-config-server:v1", Digest: sum},
	}}
	got, err := list.Mirrors("registry.of.yours")
	if err != nil {
		t.Fatal(err)
	}
	want := `---
apiVersion: config.openshift.io/v1
kind: ImageDigestMirrorSet
metadata:
  name: noderefit-bundle
spec:
  imageDigestMirrors:
  - mirrors:
    - registry.of.yours/os/extensions
    source: quay.io/os/extensions
  - mirrors:
    - registry.of.yours/os/node
    source: quay.io/os/node
---
apiVersion: config.openshift.io/v1
kind: ImageTagMirrorSet
metadata:
  name: noderefit-bundle
spec:
  imageTagMirrors:
  - mirrors:
    - registry.of.yours/os/extensions
    source: quay.io/os/extensions
`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Error(diff)
	}
}

// Nodes know Docker Hub as docker.io, and registries by their hosts alone.
func TestMirrorsAndRegistriesHaveTheNamesThatNodesKnow(t *testing.T) {
	sum := "sha256:" + strings.Repeat("0", 64)
	list := &List{Images: []Image{
		{Name: "docker.io/os/node@" + sum, Digest: sum},
		{Name: "noderefit/machine-config-daemon:v1", Digest: sum},
	}}
	for to, want := range map[string]string{
		"registry.of.yours": "registry.of.yours/noderefit",
		"docker.io/mirror/": "docker.io/mirror/noderefit",
		"localhost":         "localhost/noderefit",
		"box:5000/a":        "box:5000/a/noderefit",
	} {
		if got := list.Registry(to); got != want {
			t.Errorf("the registry of an installation loaded into %s is %q, want %q", to, got, want)
		}
		got, err := list.Mirrors(to)
		if err != nil || !strings.Contains(string(got), "\n    source: docker.io/os/node\n") {
			t.Errorf("mirrors of %s: %s%v", to, got, err)
		}
	}
	for _, to := range []string{"mirror", "box/mirror", "https://registry.of.yours", "/", "registry.of.yours/Upper"} {
		if _, err := list.Mirrors(to); err == nil || !strings.Contains(err.Error(), "registry "+to+": ") {
			t.Errorf("mirrors of %s: %v", to, err)
		}
		if _, err := list.targets(to); err == nil || !strings.Contains(err.Error(), "registry "+to+": ") {
			t.Errorf("targets of %s: %v", to, err)
		}
	}
}

func TestImagesOfMachineConfigsAreWantedAndThoseOfNoRegistryAreNamed(t *testing.T) {
	sum := "sha256:" + strings.Repeat("0", 64)
	var c Contents
	for url, want := range map[string]string{
		"quay.io/os/node:stable":                                 "quay.io/os/node:stable",
		"quay.io/os/node:stable@" + sum:                          "quay.io/os/node@" + sum,
		"ostree-unverified-registry:quay.io/os/node:stable":      "quay.io/os/node:stable",
		"ostree-image-signed:docker://quay.io/os/node@" + sum:    "quay.io/os/node@" + sum,
		"ostree-unverified-image:registry:quay.io/os/node:1":     "quay.io/os/node:1",
		"ostree-remote-registry:keys:quay.io/os/node:1":          "quay.io/os/node:1",
		"ostree-remote-image:keys:docker://box:5000/node@" + sum: "box:5000/node@" + sum,
		"ostree-unverified-registry:os/node:1":                   "os/node:1",
		"localhost/node:1":                                       "localhost/node:1",
		"box:5000/node:1@" + sum:                                 "box:5000/node@" + sum,
		"os/node@" + sum:                                         "os/node@" + sum,
		"ostree-images.example/node:1":                           "ostree-images.example/node:1",
		"fedora:fedora/x86_64/coreos/stable":                     "",
		"fedora:fedora/2.5/stable":                               "",
		"fedora/2.5/stable":                                      "",
		sum[7:]:                                                  "",
		"ostree-image-signed:oci-archive:/a@b.example/x:1":       "",
		"ostree-unverified-image:dir:/quay.io/x":                 "",
		"ostree-unverified-image:containers-storage:localhost/x": "",
		"": "",
	} {
		c = Contents{}
		mc := &mcfgv1.MachineConfig{ObjectMeta: metav1.ObjectMeta{Name: "os"}, Spec: mcfgv1.MachineConfigSpec{OSImageURL: url}}
		if err := c.Add(mc); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(c.Images, ","); got != want {
			t.Errorf("%s: wanted are %q, want %q", url, got, want)
		}
		if left := len(c.Left) == 1 && strings.Contains(c.Left[0], "MachineConfig os: osImageURL"); left != (url != "" && want == "") {
			t.Errorf("%s: left are %q", url, c.Left)
		}
	}
	c = Contents{}
	mc := &mcfgv1.MachineConfig{ObjectMeta: metav1.ObjectMeta{Name: "os"}, Spec: mcfgv1.MachineConfigSpec{
		OSImageURL: "quay.io/a:1", BaseOSExtensionsContainerImage: "quay.io/b:1",
	}}
	if err := c.Add(mc); err != nil || !slices.Equal(c.Images, []string{"quay.io/a:1", "quay.io/b:1"}) {
		t.Errorf("%q, %v", c.Images, err)
	}
	mc.Spec.OSImageURL = "quay.io/a:"
	if err := c.Add(mc); err == nil || !strings.Contains(err.Error(), "MachineConfig os: osImageURL: ") {
		t.Error(err)
	}
}

func TestFilesOfPathsAreCarriedUnderTheNamesThatTheyHave(t *testing.T) {
	dir := t.TempDir()
	for _, at := range []string{"a.yaml", "more/a.yaml", "more/deep/b.yaml", "other/a.yaml"} {
		at = filepath.Join(dir, at)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte("a"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	var c Contents
	for _, at := range []string{"a.yaml", "more/"} {
		if err := c.AddPath(filepath.Join(dir, at)); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"manifests/a.yaml", "manifests/more/a.yaml", "manifests/more/deep/b.yaml"}
	if got := slices.Sorted(maps.Keys(c.Files)); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	for name, link := range map[string]string{"link.yaml": "../a.yaml", "link": "../more", ".git": "../more", ".b.yaml": "../a.yaml"} {
		if err := os.Symlink(link, filepath.Join(dir, "other", name)); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(filepath.Join(dir, "other"))
	for _, at := range []string{".", "../other", "../other/../other/."} {
		c := Contents{}
		if err := c.AddPath(at); err != nil {
			t.Error(err)
		}
		want := []string{"manifests/other/a.yaml", "manifests/other/link.yaml"}
		if got := slices.Sorted(maps.Keys(c.Files)); !slices.Equal(got, want) {
			t.Errorf("%s has %q, want %q", at, got, want)
		}
	}
	t.Chdir(filepath.Join(dir, "more/deep"))
	up := Contents{}
	if err := up.AddPath(".."); err != nil || len(up.Files) != 2 {
		t.Errorf("the directory above: %d files, %v", len(up.Files), err)
	}
	err := c.AddPath(filepath.Join(dir, "other/a.yaml"))
	if err == nil || !strings.Contains(err.Error(), "two files of the bundle would be manifests/a.yaml") {
		t.Errorf("two files of one name: %v", err)
	}
	if err := c.AddPath(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
}
