// SPDX-License-Identifier: Apache-2.0

package page

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// BenchmarkLook5000 is what one look at a cluster of 5,000 nodes costs, which is shared by all who ask within a second.
func BenchmarkLook5000(b *testing.B) {
	f := largeCluster(5000)
	for b.Loop() {
		newState(f.View, noon)
	}
}

func BenchmarkFirstPage5000(b *testing.B) { benchmark(b, "/page/") }
func BenchmarkPoolPage5000(b *testing.B)  { benchmark(b, "/page/pools/large?page=3") }

// benchmark makes a page of a cluster of 5,000 nodes that was looked at.
func benchmark(b *testing.B, path string) {
	b.Helper()
	f := largeCluster(5000)
	looked := newHandler(Options{Now: func() time.Time { return noon }})
	looked.last.Store(&seen{state: newState(f.View, noon)})
	h := looked.routes()
	r := httptest.NewRequestWithContext(b.Context(), http.MethodGet, path, http.NoBody)
	bytes := 0
	for b.Loop() {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != http.StatusOK {
			b.Fatal(w.Code)
		}
		n, _ := io.Copy(io.Discard, w.Body)
		bytes = int(n)
	}
	b.ReportMetric(float64(bytes), "bytes")
}
