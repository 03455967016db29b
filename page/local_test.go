// SPDX-License-Identifier: Apache-2.0

package page

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestNobodyElseSeesALocalPage(t *testing.T) {
	t.Parallel()
	f := busyCluster()
	o := Options{
		Now: func() time.Time { return noon }, Read: func(context.Context) (View, error) { return f.View, nil },
	}
	h, path := Local(o)
	_, other := Local(o)
	if path == other || len(path) < 26+len("//page/") || !strings.HasSuffix(path, "/page/") {
		t.Fatalf("two processes have the paths %s and %s", path, other)
	}
	base := strings.TrimSuffix(path, "page/")
	secret := strings.Trim(base, "/")
	const here = "127.0.0.1:4711"
	for _, test := range []struct {
		method, host, path string
		code               int
	}{
		{"GET", here, path, 200},
		{"HEAD", here, path, 200},
		{"GET", "localhost:4711", path, 200},
		{"GET", "LocalHost:9000", path, 200}, // forwarded with ssh
		{"GET", "[::1]:4711", path, 200},
		{"GET", "127.0.0.1", path, 200},
		{"GET", here, path + "pools/worker", 200},
		{"GET", here, path + "nodes/worker-1?tz=UTC", 200},
		{"GET", here, base, 302},
		{"GET", here, strings.TrimSuffix(base, "/"), 302},
		{"GET", here, strings.TrimSuffix(path, "/"), 302},
		{"GET", here, path + "pools/none", 404},

		// Another user of the machine, who knows the port.
		{"GET", here, "/", 404},
		{"GET", here, "/page/", 404},
		{"GET", here, stylePath, 404},
		{"GET", here, other, 404},
		{"GET", here, path[:len(path)-8] + "/page/", 404},
		{"GET", here, strings.ToLower(path), 404},
		{"GET", here, "//" + secret + "/page/", 404},
		{"GET", here, "/x/.." + path, 404},
		{"GET", here, "/" + secret + "x/page/", 404},

		// A web site that had its name resolved to this machine, and has even learnt the path.
		{"GET", "evil.example:4711", path, 421},
		{"GET", "127.0.0.1.evil.example:4711", path, 421},
		{"GET", "localhost.evil.example", path, 421},
		{"GET", "localhost.:4711", path, 421},
		{"GET", "0.0.0.0:4711", path, 421},
		{"GET", "192.168.1.7:4711", path, 421},
		{"GET", "", path, 421},
		{"GET", "evil.example", "/", 421},

		{"POST", here, path, 405},
		{"OPTIONS", here, path, 405},
		{"DELETE", here, "/", 405},
	} {
		r := httptest.NewRequestWithContext(t.Context(), test.method, "http://x"+test.path, http.NoBody)
		r.Host = test.host
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		what := test.method + " " + test.host + " " + test.path
		if w.Code != test.code {
			t.Errorf("%s: %d, not %d", what, w.Code, test.code)
		}
		if w.Code >= 400 && !strings.HasPrefix(test.path, path) && strings.Contains(w.Body.String(), secret) ||
			w.Code != 200 && strings.Contains(w.Body.String(), "worker-") {
			t.Errorf("%s: the answer gives away\n%s", what, w.Body)
		}
		for name, want := range map[string]string{
			"Content-Security-Policy": policy, "Referrer-Policy": "no-referrer", "Cross-Origin-Resource-Policy": "same-origin",
			"Access-Control-Allow-Origin": "", "Set-Cookie": "",
		} {
			if got := w.Header().Get(name); got != want && !strings.Contains(test.path, "style-") {
				t.Errorf("%s: %s is %q, not %q", what, name, got, want)
			}
		}
	}
}

func TestAllLinksOfALocalPageStayBelowItsPath(t *testing.T) {
	t.Parallel()
	f := busyCluster()
	h, path := Local(Options{
		Now: func() time.Time { return noon }, Read: func(context.Context) (View, error) { return f.View, nil },
	})
	seen, next := map[string]bool{path: true}, []string{path}
	for len(next) > 0 {
		at := next[0]
		next = next[1:]
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, at, http.NoBody)
		r.Host = "localhost"
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != http.StatusOK {
			t.Errorf("%s: %d", at, w.Code)
		}
		if !strings.HasPrefix(w.Header().Get("Content-Type"), "text/html") {
			continue
		}
		for _, e := range parse(t, w).all(func(*element) bool { return true }) {
			for _, name := range []string{"href", "action"} {
				to := e.attribute(name)
				switch {
				case to == "" || strings.HasPrefix(to, docs):
				case !strings.HasPrefix(to, path):
					t.Errorf("%s: <%s> leads to %s", at, e.Data, to)
				case !seen[to]:
					seen[to] = true
					next = append(next, to)
				}
			}
		}
	}
	if len(seen) < 10 {
		t.Errorf("the pages lead to %d others only", len(seen))
	}
}
