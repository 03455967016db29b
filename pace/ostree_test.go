// SPDX-License-Identifier: Apache-2.0

package pace

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// The real ostree, whose client is libcurl, and libcurl's own program show the proxy its password, with and without
// TLS.
func TestARealOSTreeAndCurlShowThePassword(t *testing.T) {
	ostree, curl := program(t, "ostree"), program(t, "curl")
	p, err := Listen(t.Context(), 16<<20, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	dir := t.TempDir()
	run := func(argv ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
		cmd.Env = append(os.Environ(), Environment(p.In(t.Context()))...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%q: %v: %s", argv, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	tree, there, here := filepath.Join(dir, "tree"), "--repo="+filepath.Join(dir, "there"), "--repo="+filepath.Join(dir, "here")
	if err := os.MkdirAll(tree, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(tree, "os-release"), []byte("ID=testos\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	run(ostree, there, "init", "--mode=archive")
	run(ostree, there, "commit", "-b", "os", "--tree=dir="+tree)
	run(ostree, here, "init", "--mode=bare-user-only")
	var asked atomic.Int64 // the client fetches several files at once
	files := http.FileServer(http.Dir(filepath.Join(dir, "there")))
	serve := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { asked.Add(1); files.ServeHTTP(w, r) })
	plain, secret := httptest.NewServer(serve), httptest.NewTLSServer(serve)
	defer plain.Close()
	defer secret.Close()
	for name, url := range map[string]string{"plain": plain.URL, "secret": secret.URL} {
		asked.Store(0)
		run(ostree, here, "remote", "add", "--no-gpg-verify", "--set=tls-permissive=true", name, url)
		run(ostree, here, "pull", name, "os")
		if got := run(ostree, here, "cat", name+":os", "/os-release"); got != "ID=testos" || asked.Load() == 0 {
			t.Errorf("%s: %q, after %d questions", name, got, asked.Load())
		}
		if got := run(curl, "-sSfk", url+"/refs/heads/os"); len(got) != 64 {
			t.Errorf("%s: %q", name, got)
		}
	}
	// Without the password they get nothing: the proxy is where they went.
	at := address(t, p)
	at.User = nil
	if out, err := exec.CommandContext(t.Context(), curl, "-sSfkx", at.String(), secret.URL).CombinedOutput(); err == nil ||
		!strings.Contains(string(out), "407") {
		t.Errorf("%v: %s", err, out)
	}
}
