// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"context"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/rollout"
)

var now = time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)

func asker(t *testing.T, objects ...client.Object) *Asker {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(&batchv1.Job{}).Build()
	return New(c, func() time.Time { return now })
}

// ofNode is a question about node n at configuration B.
func ofNode(how api.Gate) rollout.Ask {
	how.Name = "g"
	return rollout.Ask{
		Question: rollout.Question{
			Policy: "p", Pool: "worker", Config: "B", Node: "n", Gate: "g", Arrived: "2026-03-02T11:00:00Z",
		},
		How: &how, Nodes: []string{"n"},
	}
}

// says asks once and compares: an empty answer is a yes.
func says(t *testing.T, a *Asker, ask rollout.Ask, want string) {
	t.Helper()
	got, err := a.evaluate(t.Context(), ask)
	if err != nil {
		got = "error: " + err.Error()
	}
	if want == "" && got != "" || !strings.Contains(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func aNode(annotations map[string]string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Annotations: annotations}}
}

func TestPrometheusHasToGiveSamplesOfWhichNoneIsZero(t *testing.T) {
	t.Parallel()
	const vector = `{"resultType":"vector","result":[%s]}`
	for name, c := range map[string]struct {
		data, want string
		status     int
	}{
		"one that is not":       {data: fmt.Sprintf(vector, `{"metric":{"job":"a"},"value":[1,"1"]}`)},
		"negative ones count":   {data: fmt.Sprintf(vector, `{"metric":{},"value":[1,"-0.5"]}`)},
		"a scalar":              {data: `{"resultType":"scalar","result":[1,"2"]}`},
		"none":                  {data: fmt.Sprintf(vector, ""), want: "the query gives nothing"},
		"a scalar that is zero": {data: `{"resultType":"scalar","result":[1,"0"]}`, want: "the query gives 0"},
		"one of two is zero": {
			data: fmt.Sprintf(vector, `{"metric":{"job":"a"},"value":[1,"1"]},{"metric":{"job":"b"},"value":[1,"0"]}`),
			want: `the query gives 0 for {job="b"}`,
		},
		"one is not a number": {
			data: fmt.Sprintf(vector, `{"metric":{},"value":[1,"NaN"]}`), want: "the query gives NaN",
		},
		"a range":    {data: `{"resultType":"matrix","result":[]}`, want: "error: the query gives a matrix"},
		"an error":   {status: http.StatusUnprocessableEntity, want: "error: asking http"},
		"no answers": {status: http.StatusUnauthorized, want: "error: asking http"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if q := r.FormValue("query"); r.URL.Path != "/prom/api/v1/query" || q != `up{node="n"} > 0` {
					t.Errorf("%s asks %q", r.URL, q)
				}
				w.Header().Set("Content-Type", "application/json")
				if c.status != 0 {
					w.WriteHeader(c.status)
					fmt.Fprint(w, `{"status":"error","errorType":"execution","error":"no"}`)
					return
				}
				fmt.Fprintf(w, `{"status":"success","data":%s}`, c.data)
			}))
			defer server.Close()
			says(t, asker(t), ofNode(api.Gate{Prometheus: &api.PrometheusGate{
				URL: server.URL + "/prom", Query: `up{node="$(NODE)"} > 0`,
			}}), c.want)
		})
	}
}

func TestPrometheusIsAskedWithTheTokenAndTrustOfItsSecret(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer s3cret" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		fmt.Fprint(w, `{"status":"success","data":{"resultType":"scalar","result":[1,"1"]}}`)
	}))
	server.Config.ErrorLog = nil
	defer server.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	secret := func(name string, data map[string][]byte) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: api.Namespace, Name: name}, Data: data}
	}
	a := asker(t, secret("all", map[string][]byte{tokenKey: []byte("s3cret\n"), caKey: ca}),
		secret("stranger", map[string][]byte{tokenKey: []byte("s3cret")}),
		secret("nobody", map[string][]byte{caKey: ca}),
		secret("empty", nil))
	for name, want := range map[string]string{
		"all": "", "stranger": "certificate", "nobody": "asking https", "empty": "it has neither token nor ca.crt",
		"gone": "reading Secret " + api.Namespace + "/gone",
	} {
		says(t, a, ofNode(api.Gate{Prometheus: &api.PrometheusGate{URL: server.URL, Query: "1", SecretName: name}}), want)
	}
}

func TestTheTokenIsForTheServerAlone(t *testing.T) {
	t.Parallel()
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got := r.Header.Get("Authorization"); got != "" {
			t.Errorf("another server is told %q", got)
		}
		fmt.Fprint(w, `{"status":"success","data":{"resultType":"scalar","result":[1,"1"]}}`)
	}))
	defer other.Close()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL+r.URL.Path, http.StatusTemporaryRedirect)
	}))
	defer server.Close()
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: api.Namespace, Name: "reader"}, Data: map[string][]byte{tokenKey: []byte("s3cret")},
	}
	says(t, asker(t, secret), ofNode(api.Gate{Prometheus: &api.PrometheusGate{
		URL: server.URL, Query: "1", SecretName: "reader",
	}}), "")
}

func TestAllNodesOfAStageHaveToSayYes(t *testing.T) {
	t.Parallel()
	for _, count := range []int{fewNodes, fewNodes + 1} {
		ask := ofNode(api.Gate{HostCheck: &api.HostCheckGate{Name: "x"}})
		ask.Node, ask.Stage, ask.Nodes = "", "canary", nil
		var objects []client.Object
		for i := range count {
			n := aNode(map[string]string{api.ChecksKey: api.Encode(api.Checks{Config: "B", Said: map[string]string{"x": ""}})})
			n.Name = fmt.Sprintf("n-%02d", i)
			ask.Nodes, objects = append(ask.Nodes, n.Name), append(objects, n)
		}
		a := asker(t, objects...)
		says(t, a, ask, "")
		cel := ask
		cel.How = &api.Gate{CEL: &api.CELGate{
			APIVersion: "v1", Kind: "Node", Expression: fmt.Sprintf("nodes.size() == %d && objects.size() == %[1]d", count),
		}}
		says(t, a, cel, "")
		if err := a.client.Delete(t.Context(), objects[0]); err != nil {
			t.Fatal(err)
		}
		says(t, a, ask, "error: ")
	}
}

func TestAnAnnotationAnswersTheQuestionThatWasAsked(t *testing.T) {
	t.Parallel()
	const key, asks = "storage.example.com/healthy", api.AskPrefix + "g"
	a := asker(t, aNode(map[string]string{key: "yes", "other": "stays"}))
	ask := ofNode(api.Gate{Annotation: &api.AnnotationGate{Key: key, Value: "yes"}})
	read := func() map[string]string {
		t.Helper()
		var n corev1.Node
		if err := a.client.Get(t.Context(), client.ObjectKey{Name: "n"}, &n); err != nil {
			t.Fatal(err)
		}
		return n.Annotations
	}
	answer := func(value string) {
		t.Helper()
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, key, value)
		if err := a.client.Patch(t.Context(), aNode(nil), client.RawPatch("application/merge-patch+json", patch)); err != nil {
			t.Fatal(err)
		}
	}
	// What stands there was said to somebody else.
	says(t, a, ask, "has not answered yet")
	if got := read(); got[asks] != "B 2026-03-02T11:00:00Z" || got[key] != "" || got["other"] != "stays" {
		t.Errorf("asked: %v", got)
	}
	says(t, a, ask, "has not answered yet")
	answer("no")
	says(t, a, ask, `says "no", and not "yes"`)
	answer("yes")
	says(t, a, ask, "")
	// It arrived anew: the answer is an old one.
	ask.Arrived = "2026-03-02T11:30:00Z"
	says(t, a, ask, "has not answered yet")
	if got := read(); got[asks] != "B 2026-03-02T11:30:00Z" || got[key] != "" {
		t.Errorf("asked anew: %v", got)
	}
	// Without a value the answer names the question.
	ask.How.Annotation.Value = ""
	answer("yes")
	says(t, a, ask, "and not")
	answer("B 2026-03-02T11:30:00Z")
	says(t, a, ask, "")
}

func TestAHostCheckCountsForItsConfiguration(t *testing.T) {
	t.Parallel()
	checks := func(config string) string {
		return api.Encode(api.Checks{Config: config, At: now, Said: map[string]string{"10-disk.sh": "", "20-gpu": "no device"}})
	}
	for _, c := range []struct{ said, name, want string }{
		{checks("B"), "10-disk.sh", ""},
		{checks("B"), "20-gpu", "node n: check 20-gpu said no: no device"},
		{checks("B"), "30-none", "there is no check 30-none in its verdict"},
		{checks("A"), "10-disk.sh", "has not reported the checks of B"},
		{"{", "10-disk.sh", "node n: "},
	} {
		a := asker(t, aNode(map[string]string{api.ChecksKey: c.said}))
		says(t, a, ofNode(api.Gate{HostCheck: &api.HostCheckGate{Name: c.name}}), c.want)
	}
	says(t, asker(t), ofNode(api.Gate{HostCheck: &api.HostCheckGate{Name: "x"}}), "error: reading node n")
}

func TestAJobIsMadeOnceAndItsEndIsTheAnswer(t *testing.T) {
	t.Parallel()
	cron := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Namespace: "tests", Name: "smoke", UID: "1"}}
	cron.Spec.JobTemplate.Labels = map[string]string{"team": "a"}
	cron.Spec.JobTemplate.Spec.Template.Spec.Containers = []corev1.Container{{Name: "c", Image: "i"}}
	a := asker(t, cron)
	ask := ofNode(api.Gate{Job: &api.JobGate{Namespace: "tests", CronJob: "smoke"}})
	says(t, a, ask, "has begun")
	says(t, a, ask, "has not ended yet")
	var jobs batchv1.JobList
	if err := a.client.List(t.Context(), &jobs); err != nil || len(jobs.Items) != 1 {
		t.Fatalf("%d jobs, %v", len(jobs.Items), err)
	}
	job := &jobs.Items[0]
	if job.Labels[api.JobGateLabel] != "g" || job.Labels["team"] != "a" || job.Annotations[api.JobGateLabel+"-node"] != "n" ||
		*job.Spec.TTLSecondsAfterFinished != keptJob || job.Spec.Template.Spec.Containers[0].Image != "i" ||
		len(job.OwnerReferences) != 1 {
		t.Errorf("made: %+v", job)
	}
	end := func(kind batchv1.JobConditionType) {
		t.Helper()
		job.Status.Conditions = []batchv1.JobCondition{{Type: kind, Status: corev1.ConditionTrue, Reason: "Why", Message: "this"}}
		if err := a.client.Status().Update(t.Context(), job); err != nil {
			t.Fatal(err)
		}
	}
	end(batchv1.JobFailed)
	says(t, a, ask, "failed: Why: this")
	end(batchv1.JobComplete)
	says(t, a, ask, "")
	// The same of other content, or of what arrived anew, is another Job.
	again := ask
	again.Arrived = "2026-03-02T11:30:00Z"
	says(t, a, again, "has begun")
	again.How = &api.Gate{Job: &api.JobGate{Namespace: "tests", CronJob: "none"}}
	again.Config = "C"
	says(t, a, again, "error: reading CronJob tests/none")
}

func TestOneQuestionIsAskedAtATimeAndAgainWhenItsAnswerIsOld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := asker(t, aNode(map[string]string{"k": "no", api.AskPrefix + "g": "B 2026-03-02T11:00:00Z"}))
		var asked atomic.Int32
		a.client = interceptor.NewClient(a.client.(client.WithWatch), interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object,
				options ...client.GetOption,
			) error {
				asked.Add(1)
				return c.Get(ctx, key, o, options...)
			},
		})
		a.now = time.Now
		ask := ofNode(api.Gate{Annotation: &api.AnnotationGate{Key: "k", Value: "yes"}})
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _ = a.Start(ctx) }()
		a.Ask([]rollout.Ask{ask}, func(rollout.Question) rollout.Answer {
			return rollout.Answer{Passed: true, At: time.Now(), Since: time.Now().Add(-time.Hour)}
		})
		if got := a.Answer(ask.Question); got.Passed || !got.At.IsZero() {
			t.Errorf("before it was asked: %+v", got)
		}
		<-a.Changed()
		got := a.Answer(ask.Question)
		if got.Passed || got.Closed.IsZero() || !strings.Contains(got.Message, `says "no"`) {
			t.Errorf("it passed before this process: %+v", got)
		}
		time.Sleep(stale - 2*pause) //nolint:forbidigo // the bubble's clock
		if n := asked.Load(); n != 1 {
			t.Errorf("asked %d times while the answer was fresh", n)
		}
		time.Sleep(4 * pause) //nolint:forbidigo // the bubble's clock
		if n := asked.Load(); n != 2 {
			t.Errorf("asked %d times when it was old", n)
		}
		a.Ask(nil, rollout.Unasked)
		time.Sleep(2 * stale) //nolint:forbidigo // the bubble's clock
		if n := asked.Load(); n != 2 || !a.Answer(ask.Question).At.IsZero() {
			t.Errorf("asked %d times when nobody wants to know", n)
		}
		cancel()
		synctest.Wait()
	})
}

func TestAnAnswerRemembersSinceWhenItIsAsItIs(t *testing.T) {
	t.Parallel()
	later := now.Add(time.Hour)
	passed := rollout.Answer{Passed: true, At: now, Since: now}
	refused := rollout.Answer{Message: "no", At: now, Since: now}
	for name, c := range map[string]struct {
		last, before rollout.Answer
		message      string
		want         rollout.Answer
	}{
		"the first":             {want: rollout.Answer{Passed: true, At: later, Since: later, First: later}},
		"the same":              {last: passed, want: rollout.Answer{Passed: true, At: later, Since: now}},
		"it opens":              {last: refused, want: rollout.Answer{Passed: true, At: later, Since: later}},
		"it closes":             {last: passed, message: "x", want: rollout.Answer{Message: "x", At: later, Since: later, Closed: later}},
		"still no":              {last: refused, message: "x", want: rollout.Answer{Message: "x", At: later, Since: now}},
		"as before the restart": {before: refused, message: "x", want: rollout.Answer{Message: "x", At: later, Since: now}},
	} {
		if got := follow(c.last, c.before, c.message, later); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}
