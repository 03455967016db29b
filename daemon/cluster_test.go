// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/noderefit/noderefit/kube"
)

// clientOf returns a client of an API server at a URL.
func clientOf(t *testing.T, url string) *kube.Client {
	t.Helper()
	client, err := kube.New(&rest.Config{Host: url, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// A proxy between the agent and the API server sends answers of its own, and none of them is about the document.
func TestAnAnswerThatIsNotTheAPIServersIsNoFaultOfTheConfiguration(t *testing.T) {
	const denied = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,
		"message":"machineconfigs is forbidden: no rights"}`
	for name, c := range map[string]struct {
		code       int
		kind, body string
		says       string
	}{
		"no right":          {403, "application/json", denied, "machineconfigs is forbidden: no rights"},
		"a page to log in":  {200, "text/html", "<html>Please log in</html>", "is not JSON"},
		"a page of a proxy": {502, "text/html", "<html>bad gateway</html>", "bad gateway"},
		"nothing":           {200, "application/json", "", "is not JSON"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", c.kind)
				w.WriteHeader(c.code)
				_, _ = io.WriteString(w, c.body)
			}))
			defer server.Close()
			one := &cluster{kube: clientOf(t, server.URL)}
			_, document := one.document(t.Context(), "rendered-worker-0123456789abcdef0123456789abcdef")
			_, policy := one.policy(t.Context())
			for _, err := range []error{document, policy} {
				var away *clusterError
				if !errors.As(err, &away) || !strings.Contains(err.Error(), c.says) {
					t.Errorf("%v, which is the API server's matter: %t; want %q", err, away != nil, c.says)
				}
			}
		})
	}
}
