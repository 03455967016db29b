// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// Controllers poll by this: a manifest has an ETag, and the answer to a request with the ETag has no manifest.
func TestARegistryNotesWhatItIsAskedAndKnowsETags(t *testing.T) {
	t.Parallel()
	r := NeedRegistry(t)
	front := httptest.NewServer(r)
	t.Cleanup(front.Close)
	digest, err := PushRelease(t.Context(), strings.TrimPrefix(front.URL, "http://")+"/a/os:stable", "1")
	if err != nil {
		t.Fatal(err)
	}
	r.Asked()
	etag := ""
	for _, want := range []int{http.StatusOK, http.StatusNotModified} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodHead, front.URL+"/v2/a/os/manifests/stable", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Accept", "application/vnd.docker.distribution.manifest.v2+json")
		request.Header.Set("User-Agent", "test")
		if etag != "" {
			request.Header.Set("If-None-Match", etag)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("%s, not %d", response.Status, want)
		}
		asked := r.Asked()
		if len(asked) != 1 || asked[0].Agent != "test" || asked[0].Conditional != (etag != "") || asked[0].Status != want {
			t.Errorf("noted: %+v", asked)
		}
		if etag == "" {
			if got := response.Header.Get("Docker-Content-Digest"); got != digest {
				t.Errorf("the digest is %s, not %s", got, digest)
			}
			etag = response.Header.Get("ETag")
		}
	}
}
