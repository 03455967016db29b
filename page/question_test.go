// SPDX-License-Identifier: Apache-2.0

package page

import (
	"bytes"
	"compress/gzip"
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/noderefit/noderefit/progress"
)

func TestNodesAreFoundByWordsAndState(t *testing.T) {
	t.Parallel()
	h := busyCluster().handler()
	for _, test := range []struct {
		path string
		want []string
	}{
		{"/page/?q=worker", []string{"worker-2", "worker-3", "worker-4", "worker-1"}},
		{"/page/?q=WORKER-3", []string{"worker-3"}},
		{"/page/?q=checkout", []string{"worker-2"}},
		{"/page/?q=draining", []string{"worker-2"}},
		{"/page/?q=eeeeeeee", []string{"edge-1"}},
		{"/page/?q=++gpu+dddd+", []string{"gpu-1", "gpu-2"}},
		{"/page/?q=gpu+checkout", nil},
		{"/page/?state=Waiting", []string{"gpu-2", "worker-3", "worker-4", "edge-1"}},
		{"/page/?state=RolledBack", []string{"gpu-1"}},
		{"/page/?q=worker&state=Updated", []string{"worker-1"}},
		{"/page/pools/worker?q=1", []string{"worker-1"}},
		{"/page/pools/worker?q=gpu", nil},
		{"/page/pools/worker?state=Updating", []string{"worker-2"}},
		{"/page/?q=%20", nil}, // the first page as it is
	} {
		page := get(t, h, test.path)
		if !strings.Contains(test.path, "%20") {
			if diff := cmp.Diff(test.want, listed(page)); diff != "" {
				t.Errorf("%s: found are not (-) but (+)\n%s", test.path, diff)
			}
			continue
		}
		contains(t, test.path, page.text(), "2 pools need a person", "Nodes of no pool")
	}
	// Those that need a person are pools' nodes as their badges say.
	page := get(t, h, "/page/?state="+stateTrouble)
	contains(t, "the page", page.text(), "Nodes that match", "2 of 8 nodes", "All nodes")
	if diff := cmp.Diff([]string{"gpu-1", "worker-2"}, listed(page)); diff != "" {
		t.Errorf("those that need a person are not (-) but (+)\n%s", diff)
	}
}

func TestWhatWasAskedForIsKept(t *testing.T) {
	t.Parallel()
	h := largeCluster(many*2 + 50).handler()
	page := get(t, h, "/page/pools/large?q=node&state=Waiting&tz=Europe/Berlin&refresh=off")
	links := map[string]string{}
	for _, a := range page.all(called("a")) {
		links[a.text()] = a.attribute("href")
	}
	for name, want := range map[string]string{
		"Next":               "/page/pools/large?page=2&q=node&refresh=off&state=Waiting&tz=Europe%2FBerlin",
		"Refresh every 15 s": "/page/pools/large?q=node&state=Waiting&tz=Europe%2FBerlin",
		"All nodes":          "/page/pools/large?refresh=off&tz=Europe%2FBerlin",
		"node-00180":         "/page/nodes/node-00180?refresh=off&tz=Europe%2FBerlin",
		"Noderefit":          "/page/?refresh=off&tz=Europe%2FBerlin",
	} {
		if links[name] != want {
			t.Errorf("%s leads to %q, not to %q", name, links[name], want)
		}
	}
	// What a form does not show it sends along unseen.
	var forms []string
	for _, form := range page.all(called("form")) {
		values := url.Values{}
		for _, input := range form.all(called("input")) {
			values.Set(input.attribute("name"), input.attribute("value"))
		}
		forms = append(forms, form.attribute("method")+" "+form.attribute("action")+"?"+values.Encode())
	}
	if diff := cmp.Diff([]string{
		"get /page/pools/large?q=node&refresh=off&tz=Europe%2FBerlin",
		"get /page/pools/large?q=node&refresh=off&state=Waiting&tz=Europe%2FBerlin",
	}, forms); diff != "" {
		t.Errorf("the forms send not (-) but (+)\n%s", diff)
	}
	var chosen []string
	for _, option := range page.all(called("option")) {
		for _, a := range option.Attr {
			if a.Key == "selected" {
				chosen = append(chosen, option.text())
			}
		}
	}
	if diff := cmp.Diff([]string{"Waiting"}, chosen); diff != "" {
		t.Errorf("the state shown is not (-) but (+)\n%s", diff)
	}
}

func TestTimesAreInTheZoneThatIsAskedFor(t *testing.T) {
	t.Parallel()
	f := busyCluster()
	h := f.handler()
	contains(t, "UTC", get(t, h, "/page/").text(), "As of 2026-11-22 12:00 UTC", "Since 2026-11-22 11:48 UTC (12m)")
	contains(t, "Berlin", get(t, h, "/page/?tz=Europe/Berlin").text(), "As of 2026-11-22 13:00 CET",
		"Since 2026-11-22 12:48 CET (12m)")
	read := func(context.Context) (View, error) { return f.View, nil }
	own := New(Options{Now: func() time.Time { return noon }, Read: read, Zone: time.FixedZone("HERE", 3600)})
	contains(t, "the default", get(t, own, "/page/").text(), "As of 2026-11-22 13:00 HERE")
	contains(t, "the default by its name", get(t, own, "/page/?tz=HERE").text(), "As of 2026-11-22 13:00 HERE")
	contains(t, "another", get(t, own, "/page/?tz=UTC").text(), "As of 2026-11-22 12:00 UTC")
}

func TestSentencesHaveTheTimesOfWhoReads(t *testing.T) {
	t.Parallel()
	s := &sheet{state: &state{now: noon}, question: question{zone: time.FixedZone("HERE", 3600)}}
	a := s.answer(progress.Answer{
		Verdict: progress.OutsideWindow, Do: "wait until 2026-11-22T12:00:00Z",
		Because: "held since 2026-11-22T12:00:00Z; the next one opens at 2026-11-22T21:00:00+00:00",
	})
	if want := "held since 2026-11-22T13:00:00+01:00; the next one opens at 2026-11-22T21:00:00+00:00"; a.Because != want {
		t.Errorf("%q; want %q", a.Because, want)
	}
	if want := "wait until 2026-11-22T13:00:00+01:00"; a.Do != want {
		t.Errorf("%q; want %q", a.Do, want)
	}
}

func TestAnAddressThatMakesNoSenseIsRefused(t *testing.T) {
	t.Parallel()
	h := busyCluster().handler()
	for query, want := range map[string]string{
		"q=" + strings.Repeat("x", longestFind+1): "reading q: a text of up to 100 bytes finds nodes",
		"q=%ff%fe":                         "reading q: a text of up to 100 bytes finds nodes",
		"state=Broken":                     `reading state: "Broken" is none of NeedsPerson, Updated, Updating, Degraded, RolledBack, Waiting`,
		"tz=Mars/Olympus":                  `reading tz: "Mars/Olympus" is no time zone`,
		"tz=Local":                         `reading tz: "Local" is no time zone`,
		"tz=localtime":                     `reading tz: "localtime" is no time zone`,
		"tz=../../etc/passwd":              "is no time zone",
		"tz=" + strings.Repeat("A/", 2000): "is no time zone",
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/page/?"+query, http.NoBody))
		body := parse(t, w)
		if w.Code != http.StatusBadRequest || refreshes(body) != nil {
			t.Errorf("%.40s: %d, refreshed %v", query, w.Code, refreshes(body))
		}
		contains(t, query, body.text(), want)
	}
}

func TestATitleSaysWhichClusterItIs(t *testing.T) {
	t.Parallel()
	f := busyCluster()
	read := func(context.Context) (View, error) { return f.View, nil }
	named := New(Options{Now: func() time.Time { return noon }, Read: read, Cluster: "production"})
	for path, want := range map[string][2]string{
		"/page/":               {"production – Noderefit", "production"},
		"/page/pools/gpu":      {"Pool gpu – production – Noderefit", "production / Pool gpu"},
		"/page/nodes/worker-2": {"Node worker-2 – production – Noderefit", "production / Pool worker / Node worker-2"},
		"/page/nodes/lost-1":   {"Node lost-1 – production – Noderefit", "production / Node lost-1"},
	} {
		page := get(t, named, path)
		got := [2]string{page.all(called("title"))[0].text(), page.all(called("h1"))[0].text()}
		if got != want {
			t.Errorf("%s is called %q, not %q", path, got, want)
		}
	}
	unnamed := get(t, f.handler(), "/page/pools/gpu")
	if got := unnamed.all(called("title"))[0].text(); got != "Pool gpu – Noderefit" {
		t.Errorf("without a name it is called %q", got)
	}
}

// A proxy compresses a page before it sends it.
func TestAPageOfManyNodesIsSmall(t *testing.T) {
	t.Parallel()
	const most = 16 << 10
	h := largeCluster(500).handler()
	for _, path := range []string{"/page/", "/page/pools/large", "/page/pools/large?page=3", "/page/?q=node"} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody))
		var out bytes.Buffer
		z := gzip.NewWriter(&out)
		if _, err := z.Write(w.Body.Bytes()); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		if w.Code != http.StatusOK || out.Len() > most {
			t.Errorf("%s: %d with %d bytes, compressed %d of %d", path, w.Code, w.Body.Len(), out.Len(), most)
		}
		t.Logf("%s: %d bytes, compressed %d", path, w.Body.Len(), out.Len())
	}
}

func TestAClusterThatHangsIsAPageToo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reads := 0
		h := New(Options{Now: time.Now, Read: func(ctx context.Context) (View, error) {
			reads++
			<-ctx.Done()
			return View{}, ctx.Err()
		}})
		begun := time.Now()
		codes := make(chan int)
		for range 5 {
			go func() {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/page/", http.NoBody))
				codes <- w.Code
			}()
		}
		for range 5 {
			if code := <-codes; code != http.StatusServiceUnavailable {
				t.Errorf("the answer is %d", code)
			}
		}
		if took := time.Since(begun); took != readLimit || reads != 1 {
			t.Errorf("five readers wait for %s, and the cluster is asked %d times", took, reads)
		}
	})
}

// Whoever leaves does not take the answer of the others along.
func TestAReaderWhoLeavesEndsNoRead(t *testing.T) {
	t.Parallel()
	gone, leave := context.WithCancel(t.Context())
	h := New(Options{Now: time.Now, Read: func(ctx context.Context) (View, error) {
		leave()
		return busyCluster().View, ctx.Err()
	}})
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(gone, http.MethodGet, "/page/", http.NoBody))
	if w.Code != http.StatusOK {
		t.Errorf("the answer is %d", w.Code)
	}
}
