// SPDX-License-Identifier: Apache-2.0

package intake

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"

	"github.com/noderefit/noderefit/api"
)

const (
	pools = "/apis/machineconfiguration.openshift.io/v1/machineconfigpools"
	// beyond is more than any Go type of the field holds.
	beyond = "1099511627776"
)

func pool(name, spec, status string) string {
	return fmt.Sprintf(`{"apiVersion":"machineconfiguration.openshift.io/v1","kind":"MachineConfigPool",`+
		`"metadata":{"name":%q,"resourceVersion":"7","labels":{"a":"b"}},"spec":%s,"status":%s}`, name, spec, status)
}

func list(items ...string) string {
	return `{"apiVersion":"machineconfiguration.openshift.io/v1","kind":"MachineConfigPoolList",` +
		`"metadata":{"resourceVersion":"9","continue":"more"}, "items": [ ` + strings.Join(items, " , ") + ` ]}`
}

// server answers every request with a body.
func server(t *testing.T, in *Intake, status int, body string) (*http.Client, string) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(s.Close)
	return &http.Client{Transport: in.Transport(http.DefaultTransport)}, s.URL
}

func get(t *testing.T, c *http.Client, url string) []byte {
	t.Helper()
	answer, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	if n := answer.ContentLength; n >= 0 && n != int64(len(data)) {
		t.Errorf("Content-Length is %d, and %d bytes came", n, len(data))
	}
	return data
}

func TestOneItemThatCanNotBeReadLeavesTheOthersAsTheyAre(t *testing.T) {
	in := New()
	good, other := pool("a", `{"paused":true,"maxUnavailable":"10%"}`, `{}`), pool("z", `{}`, `{"machineCount":3}`)
	bad := pool("b", `{"maxUnavailable":`+beyond+`,"paused":true,"nodeSelector":{"matchLabels":{"x":"y"}}}`, `{"machineCount":2}`)
	c, url := server(t, in, http.StatusOK, list(good, bad, other))
	var got mcfgv1.MachineConfigPoolList
	data := get(t, c, url+pools)
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(data, []byte(good)) || !bytes.Contains(data, []byte(other)) || got.Continue != "more" {
		t.Errorf("what could be read was changed: %s", data)
	}
	b := got.Items[1]
	if b.Name != "b" || b.ResourceVersion != "7" || b.Labels["a"] != "b" || !b.Spec.Paused || b.Status.MachineCount != 2 ||
		b.Spec.NodeSelector.MatchLabels["x"] != "y" || b.Spec.MaxUnavailable != nil {
		t.Errorf("of what can't be read there is %+v", b)
	}
	const want = "spec.maxUnavailable can't be read: cannot unmarshal number 1099511627776 into Go value of type int32"
	if err := api.Unreadable(&b); err == nil || err.Error() != want {
		t.Errorf("it says %v", err)
	}
	unread := in.Unread()
	if len(unread) != 1 || unread[0].Path != pools+"/b" || unread[0].Problem != want || unread[0].GVK.Kind != "MachineConfigPool" {
		t.Errorf("the intake knows of %+v", unread)
	}
}

func TestAnAnswerThatCanBeReadPassesByteByByte(t *testing.T) {
	body := list(pool("a", `{"maxUnavailable": 1 }`, `{}`), pool("b", `{}`, `{}`))
	c, url := server(t, New(), http.StatusOK, body)
	if got := get(t, c, url+pools); string(got) != body {
		t.Errorf("got %s", got)
	}
}

func TestAWatchGoesOnPastWhatCanNotBeRead(t *testing.T) {
	in := New()
	event := func(kind, object string) string { return `{"type":"` + kind + `","object":` + object + "}\n" }
	bad := pool("b", `{"maxUnavailable":`+beyond+`}`, `{}`)
	bookmark := event("BOOKMARK", `{"kind":"MachineConfigPool","apiVersion":"machineconfiguration.openshift.io/v1","metadata":{"resourceVersion":"9"}}`)
	c, url := server(t, in, http.StatusOK, event("ADDED", pool("a", `{}`, `{}`))+event("MODIFIED", bad)+bookmark+
		event("DELETED", bad)+event("ADDED", pool("z", `{}`, `{}`)))
	frames := json.NewDecoder(bytes.NewReader(get(t, c, url+pools+"?watch=true")))
	var names []string
	for frames.More() {
		var e struct {
			Type   string
			Object mcfgv1.MachineConfigPool
		}
		if err := frames.Decode(&e); err != nil {
			t.Fatal(err)
		}
		names = append(names, e.Type+" "+e.Object.Name)
		if marked := api.Unreadable(&e.Object) != nil; marked != (e.Object.Name == "b") {
			t.Errorf("%s is marked: %v", e.Object.Name, marked)
		}
	}
	if want := []string{"ADDED a", "MODIFIED b", "BOOKMARK ", "DELETED b", "ADDED z"}; !reflect.DeepEqual(names, want) {
		t.Errorf("events %q, want %q", names, want)
	}
	if unread := in.Unread(); len(unread) > 0 {
		t.Errorf("what was deleted is still known: %+v", unread)
	}
}

func TestWhatWasCorrectedOrIsGoneIsForgotten(t *testing.T) {
	for name, answer := range map[string]struct {
		status int
		body   string
	}{
		"corrected": {http.StatusOK, pool("b", `{"maxUnavailable":1}`, `{}`)},
		"gone":      {http.StatusNotFound, `{"kind":"Status","apiVersion":"v1","status":"Failure"}`},
	} {
		t.Run(name, func(t *testing.T) {
			in := New()
			c, url := server(t, in, http.StatusOK, pool("b", `{"maxUnavailable":`+beyond+`}`, `{}`))
			get(t, c, url+pools+"/b")
			if len(in.Unread()) != 1 {
				t.Fatal("it was not seen")
			}
			c, url = server(t, in, answer.status, answer.body)
			get(t, c, url+pools+"/b")
			if unread := in.Unread(); len(unread) > 0 {
				t.Errorf("still known: %+v", unread)
			}
		})
	}
}

func TestAMarkThatCameWithAnObjectIsTakenAway(t *testing.T) {
	forged := strings.Replace(pool("a", `{}`, `{}`), `"labels"`, `"annotations":{"`+api.UnreadableKey+`":"spec x"},"labels"`, 1)
	c, url := server(t, New(), http.StatusOK, forged)
	if got := get(t, c, url+pools+"/a"); bytes.Contains(got, []byte(api.UnreadableKey)) {
		t.Errorf("got %s", got)
	}
}

func TestAMendedObjectIsNotWrittenAsAWhole(t *testing.T) {
	c, url := server(t, New(), http.StatusOK, `{}`)
	const marked = `{"metadata":{"annotations":{"` + api.UnreadableKey + `":"spec.x can't be read"}}}`
	const about = `{"metadata":{"annotations":{"note":"` + api.UnreadableKey + `"}},"spec":{"a":"` + api.UnreadableKey + `"}}`
	for name, one := range map[string]struct {
		method, path, body string
		refused            bool
	}{
		"replaced":                   {http.MethodPut, pools + "/b", marked, true},
		"made again":                 {http.MethodPost, pools, marked, true},
		"its status":                 {http.MethodPut, pools + "/b/status", marked, false},
		"a text that names the mark": {http.MethodPut, pools + "/b", about, false},
	} {
		r, err := http.NewRequestWithContext(t.Context(), one.method, url+one.path, strings.NewReader(one.body))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := c.Do(r)
		if err == nil {
			answer.Body.Close()
		}
		if (err != nil) != one.refused {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestOfAStatusTheWriterIsToSayItAnew(t *testing.T) {
	bad := pool("b", `{}`, `{"conditions":[{"type":"Updated","status":"True","lastTransitionTime":[1]},`+
		`{"type":"Degraded","status":"False","lastTransitionTime":"2026-01-02T03:04:05+99:99"}]}`)
	mended, problem := mend([]byte(bad), reflect.TypeFor[mcfgv1.MachineConfigPool]())
	var p mcfgv1.MachineConfigPool
	if err := json.Unmarshal(mended, &p); err != nil {
		t.Fatal(err)
	}
	if len(p.Status.Conditions) != 2 || p.Status.Conditions[1].Type != "Degraded" || !p.Status.Conditions[1].LastTransitionTime.IsZero() {
		t.Errorf("conditions are %+v", p.Status.Conditions)
	}
	if api.Unreadable(&p) != nil || strings.Count(problem, "lastTransitionTime can't be read") != 2 {
		t.Errorf("%q; by it nothing is decided: %v", problem, api.Unreadable(&p))
	}
}

func TestWhatIsNoneOfTheKindsIsLeftAlone(t *testing.T) {
	for path, body := range map[string]string{
		"/api/v1/nodes": list(pool("b", `{"maxUnavailable":`+beyond+`}`, `{}`)),
		pools:           `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","items":[{"metadata":{"name":"a"}}]}`,
		pools + "/b":    `not JSON`,
	} {
		c, url := server(t, New(), http.StatusOK, body)
		if got := get(t, c, url+path); string(got) != body {
			t.Errorf("%s: got %s", path, got)
		}
	}
}

// BenchmarkList is what it costs to look at a list that can be read.
func BenchmarkList(b *testing.B) {
	items := make([]string, 0, 2000)
	for i := range 2000 {
		items = append(items, pool(fmt.Sprintf("pool-%d", i), `{"maxUnavailable":1,"machineConfigSelector":{"matchLabels":{"a":"b"}}}`, `{"machineCount":3}`))
	}
	data := []byte(list(items...))
	in := New()
	p, _ := parsePath(pools)
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		in.document(data, p)
	}
}
