// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/binding"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/test/lab/cluster"
)

// receiver is a webhook that reads CloudEvents strictly, and can be away.
type receiver struct {
	t       *testing.T
	server  *httptest.Server
	address string
	token   string // that has to be sent; empty: none

	mu    sync.Mutex
	kinds []string
	news  []api.RolloutNews
	ids   map[string]bool
	order []string
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{t: t, ids: map[string]bool{}, address: cluster.FreeAddress(t)}
	t.Cleanup(r.goAway)
	return r
}

// comeUp has it listen; with TLS it has a certificate of its own.
func (r *receiver) comeUp(secure bool) {
	r.t.Helper()
	listener, err := net.Listen("tcp", r.address)
	if err != nil {
		r.t.Fatal(err)
	}
	r.server = httptest.NewUnstartedServer(r)
	r.server.Listener.Close()
	r.server.Listener = listener
	if secure {
		r.server.StartTLS()
	} else {
		r.server.Start()
	}
}

func (r *receiver) goAway() {
	if r.server != nil {
		r.server.Close()
		r.server = nil
	}
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	if r.token != "" && request.Header.Get("Authorization") != "Bearer "+r.token {
		http.Error(w, "who are you?", http.StatusUnauthorized)
		return
	}
	event, err := binding.ToEvent(request.Context(), cehttp.NewMessageFromHttpRequest(request))
	if err == nil {
		err = event.Validate()
	}
	var news api.RolloutNews
	if err == nil {
		err = json.Unmarshal(event.Data(), &news)
	}
	if err != nil {
		r.t.Errorf("the webhook was sent no CloudEvent: %v", err)
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ids[event.ID()] {
		return // at least once: a receiver leaves out what it has
	}
	r.ids[event.ID()] = true
	r.kinds = append(r.kinds, strings.TrimPrefix(event.Type(), "dev.noderefit.rollout."))
	r.news = append(r.news, news)
	r.order = append(r.order, fmt.Sprint(event.Extensions()["sequence"]))
}

func (r *receiver) got() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.IsSorted(r.order) {
		r.t.Errorf("the sequence is %v", r.order)
	}
	return strings.Join(r.kinds, " ")
}

func (r *receiver) last() api.RolloutNews {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.news) == 0 {
		return api.RolloutNews{}
	}
	return r.news[len(r.news)-1]
}

// hears waits until it was told of so much, and of no more.
func (l *lab) hears(r *receiver, want string) {
	l.t.Helper()
	l.until("the webhook hears "+want, func() bool {
		got := r.got()
		if !strings.HasPrefix(want+" ", got+" ") && got != "" {
			l.t.Fatalf("the webhook heard %q, want %q", got, want)
		}
		return got == want
	})
}

// telling starts a controller that tells, too.
func (l *lab) telling() *controller {
	l.t.Helper()
	return l.alone("--controllers=notifications")
}

// tellers is a pool of so many nodes, all at configuration A, and a policy with such notifications.
func tellers(t *testing.T, count int, notifications string) (*lab, *controller) {
	t.Helper()
	l := newLab(t)
	for i := range count {
		l.node(fmt.Sprintf("w-%d", i), "worker", configA)
	}
	l.pool("worker", configA)
	c := l.telling()
	l.updated("worker", configA)
	l.eye.forget()
	l.mustPolicy("careful", `{"pools":["worker"],"notifications":`+notifications+`}`)
	l.until("the pool is known to those who tell", func() bool {
		n := l.getPolicy("careful").Status.Notifications
		return n != nil && len(n.Pools) == 1 && n.Pools[0].Done
	})
	return l, c
}

// policyCondition is one of the policy, as "status message".
func (l *lab) policyCondition(kind string) string {
	l.t.Helper()
	for _, c := range l.getPolicy("careful").Status.Conditions {
		if c.Type == kind {
			return strings.TrimSpace(string(c.Status) + " " + c.Message)
		}
	}
	return ""
}

var alertmanager = sync.OnceValues(func() (string, error) {
	path := filepath.Join(suite.Dir(), "alertmanager")
	cmd := exec.Command("go", "-C", "../../../tools/alertmanager", "build", "-buildvcs=false", "-o", path,
		"github.com/prometheus/alertmanager/cmd/alertmanager")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building Alertmanager: %w\n%s", err, out)
	}
	return path, nil
})

// startAlertmanager starts a real one, and says where it is.
func (l *lab) startAlertmanager() string {
	l.t.Helper()
	path, err := alertmanager()
	if err != nil {
		l.t.Fatal(err)
	}
	dir, address := l.t.TempDir(), cluster.FreeAddress(l.t)
	config := filepath.Join(dir, "alertmanager.yml")
	if err := os.WriteFile(config, []byte("route: {receiver: none}\nreceivers: [{name: none}]\n"), 0o600); err != nil {
		l.t.Fatal(err)
	}
	cmd := exec.Command(path, "--config.file="+config, "--storage.path="+dir, "--web.listen-address="+address,
		"--cluster.listen-address=")
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		l.t.Fatal(err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	url := "http://" + address
	l.until("the Alertmanager is ready", func() bool {
		answer, err := http.Get(url + "/-/ready")
		if err != nil {
			return false
		}
		defer answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	})
	return url
}

// silenced asks the Alertmanager for the silences that are in force, and returns what they match, sorted, and their ids.
func (l *lab) silenced(url string) (matches string, ids []string) {
	l.t.Helper()
	answer, err := http.Get(url + "/api/v2/silences")
	if err != nil {
		l.t.Fatal(err)
	}
	defer answer.Body.Close()
	var list []struct {
		ID       string
		Status   struct{ State string }
		Matchers []struct{ Name, Value string }
	}
	if err := json.NewDecoder(answer.Body).Decode(&list); err != nil {
		l.t.Fatal(err)
	}
	var words []string
	for _, s := range list {
		if s.Status.State == "expired" {
			continue
		}
		ids = append(ids, s.ID)
		var terms []string
		for _, m := range s.Matchers {
			terms = append(terms, m.Name+"="+strings.TrimSuffix(m.Value, "(:[0-9]+)?"))
		}
		slices.Sort(terms)
		words = append(words, strings.Join(terms, ","))
	}
	slices.Sort(words)
	slices.Sort(ids)
	return strings.Join(words, " "), ids
}

func (l *lab) silent(url, want string) {
	l.t.Helper()
	l.until("these are silent: "+want, func() bool {
		got, _ := l.silenced(url)
		return got == want
	})
}

func TestARolloutIsToldAndItsNodesAreSilentAcrossARestart(t *testing.T) {
	l := newLab(t)
	r, quiet := newReceiver(t), l.startAlertmanager()
	r.comeUp(false)
	for i := range 2 {
		l.node(fmt.Sprintf("w-%d", i), "worker", configA)
	}
	l.pool("worker", configA)
	c := l.telling()
	l.updated("worker", configA)
	l.mustPolicy("careful", fmt.Sprintf(`{"pools":["worker"],"notifications":{"cluster":"prod",
		"webhooks":[{"name":"chat","url":"http://%s/hook"}],
		"alertmanager":{"url":%q,"matchLabels":{"cluster":"prod"}}}}`, r.address, quiet))
	l.until("the Alertmanager was reached", func() bool { return l.policyCondition(api.RolloutSilenced) == "True" })
	l.agents.hold("w-0", true)
	l.target("worker", configB)
	l.hears(r, "started")
	if got := r.last(); got.Pool != "worker" || got.From != configA || got.To != configB || got.Cluster != "prod" ||
		!slices.Equal(got.Nodes, []string{"w-0"}) || got.Machines != 2 {
		t.Errorf("it was told %+v", got)
	}
	held := "cluster=prod,instance=w-0 cluster=prod,node=w-0"
	l.silent(quiet, held)
	_, before := l.silenced(quiet)
	l.measures(c, `noderefit_silenced_nodes{policy="careful"}`, "1")

	c.stop(t, syscall.SIGKILL)
	c = l.telling()
	l.measures(c, `noderefit_silenced_nodes{policy="careful"}`, "1") // the next controller has found the silences
	if got, after := l.silenced(quiet); got != held || !slices.Equal(before, after) {
		t.Errorf("after a restart %s, %v; before %v", got, after, before)
	}
	l.agents.hold("w-1", true)
	l.agents.hold("w-0", false)
	l.silent(quiet, "cluster=prod,instance=w-1 cluster=prod,node=w-1")
	l.agents.hold("w-1", false)
	l.updated("worker", configB)
	l.hears(r, "started done")
	l.silent(quiet, "")
	l.until("nothing waits", func() bool {
		// What was heard is in the status a moment later.
		n := l.getPolicy("careful").Status.Notifications
		return l.policyCondition(api.RolloutNotified) == "True" && len(n.Undelivered) == 0
	})
}

func TestAWebhookThatIsDownHoldsUpNothingAndMissesNothing(t *testing.T) {
	r := newReceiver(t)
	l, c := tellers(t, 2, fmt.Sprintf(`{"webhooks":[{"name":"chat","url":"http://%s/t0k3n"}],"alertmanager":{"url":"http://%s"}}`,
		r.address, cluster.FreeAddress(t)))
	l.target("worker", configB)
	l.updated("worker", configB)
	l.until("the policy says that it reaches no Alertmanager", func() bool {
		return strings.HasPrefix(l.policyCondition(api.RolloutSilenced), "False GET http://")
	})
	l.until("the policy says so", func() bool {
		return strings.HasPrefix(l.policyCondition(api.RolloutNotified), "False webhook chat: POST http://"+r.address+": ")
	})
	l.event("careful", "NotificationFailed", "webhook chat")
	l.until("the metrics say so", func() bool {
		return c.metric(t, `noderefit_notification_failing{policy="careful",receiver="chat"}`) == "1"
	})
	l.until("all of it waits", func() bool {
		return len(l.getPolicy("careful").Status.Notifications.Undelivered) == 2
	})
	c.stop(t, syscall.SIGKILL)
	c = l.telling()
	r.comeUp(false)
	l.hears(r, "started done")
	l.until("the policy says so", func() bool { return l.policyCondition(api.RolloutNotified) == "True" })
	l.until("the metrics say so", func() bool {
		return c.metric(t, `noderefit_notifications_total{policy="careful",result="delivered",webhook="chat"}`) == "2"
	})
	l.target("worker", configA)
	l.updated("worker", configA)
	l.hears(r, "started done started done")
}

func TestAFailureIsToldToThoseWhoWantToKnow(t *testing.T) {
	all, some := newReceiver(t), newReceiver(t)
	some.token = "let me in"
	all.comeUp(false)
	some.comeUp(true)
	l, _ := tellers(t, 2, fmt.Sprintf(`{"webhooks":[{"name":"all","url":"http://%s"},
		{"name":"some","url":"https://%s","events":["NeedsYou"],"secretRef":{"name":"pager"}}]}`, all.address, some.address))
	l.namespace()
	quiet := l.startAlertmanager()
	if err := l.Client.CoreV1().RESTClient().Patch(types.MergePatchType).AbsPath(policiesPath, "careful").
		Body(fmt.Appendf(nil, `{"spec":{"notifications":{"alertmanager":{"url":%q}}}}`, quiet)).Do(l.ctx).Error(); err != nil {
		t.Fatal(err)
	}
	l.agents.ends(configB, api.RolledBack)
	l.agents.hold("w-0", true)
	l.target("worker", configB)
	l.silent(quiet, "instance=w-0 node=w-0")
	l.agents.hold("w-0", false)
	l.silent(quiet, "") // who failed is heard
	l.hears(all, "started rolledback needsyou")
	if got := all.last(); got.Reason != "Quarantined" || got.Object != "MachineConfig "+configB || got.Failed != 1 ||
		!strings.Contains(got.Because, "kubelet is down") || !strings.Contains(got.Do, "quarantine lift worker") {
		t.Errorf("it was told %+v", got)
	}
	l.event("worker", "RolledBack", "failed on node w-0")
	l.event("worker", "Quarantined", "failed on node w-0")
	l.until("what the Secret is missing is said", func() bool {
		return strings.Contains(l.policyCondition(api.RolloutNotified), "webhook some: reading Secret "+api.Namespace+"/pager")
	})

	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: some.server.Certificate().Raw})
	secret := fmt.Sprintf(`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"pager"},"data":{"token":%q,"ca.crt":%q}}`,
		base64.StdEncoding.EncodeToString([]byte(some.token)), base64.StdEncoding.EncodeToString(ca))
	force := true
	if _, err := l.Client.CoreV1().Secrets(api.Namespace).Patch(l.ctx, "pager", types.ApplyPatchType, []byte(secret),
		metav1.PatchOptions{FieldManager: "test", Force: &force}); err != nil {
		t.Fatal(err)
	}
	l.hears(some, "needsyou")
	l.until("nothing waits", func() bool { return l.policyCondition(api.RolloutNotified) == "True" })
}

func TestANodeThatWaitsForLongIsTold(t *testing.T) {
	r := newReceiver(t)
	r.comeUp(false)
	l, _ := tellers(t, 2, fmt.Sprintf(`{"webhooks":[{"name":"chat","url":"http://%s","events":["Blocked","Done"]}]}`, r.address))
	l.agents.hold("w-0", true)
	l.target("worker", configB)
	l.until("it is drained", func() bool { return l.stand("w-0").Cordoned })
	start := time.Now()
	l.setClock(start.Add(14 * time.Minute))
	l.setClock(start.Add(17 * time.Minute))
	l.hears(r, "blocked")
	if got := r.last(); !slices.Equal(got.Nodes, []string{"w-0"}) || got.Reason != "NotTakenUp" || got.Do == "" {
		t.Errorf("it was told %+v", got)
	}
	l.event("worker", "Blocked", "node w-0 waits since")
	l.agents.hold("w-0", false)
	l.hears(r, "blocked done")
}

func TestNotificationsThatMakeNoSenseAreRefusedByField(t *testing.T) {
	l := newLab(t)
	for spec, says := range map[string]string{
		`{}`:                          "webhooks or alertmanager is needed",
		`{"webhooks":[{"name":"a"}]}`: "spec.notifications.webhooks[0].url",
		`{"webhooks":[{"name":"a","url":"x.y"}]}`:                                                   "has to be an http or https URL",
		`{"webhooks":[{"name":"a","url":"ftp://x.y"}]}`:                                             "has to be an http or https URL",
		`{"webhooks":[{"name":"a","url":"http:///x"}]}`:                                             "has to be an http or https URL",
		`{"webhooks":[{"name":"A","url":"http://x"}]}`:                                              "spec.notifications.webhooks[0].name",
		`{"webhooks":[{"name":"a","url":"http://x"},{"name":"a","url":"http://y"}]}`:                "Duplicate value",
		`{"webhooks":[{"name":"a","url":"http://x","events":["Never"]}]}`:                           "spec.notifications.webhooks[0].events[0]",
		`{"webhooks":[{"name":"a","url":"http://x","secretRef":{"name":"s"}}]}`:                     "url has to be https",
		`{"alertmanager":{"url":"http://x","secretRef":{"name":"s"}}}`:                              "url has to be https",
		`{"alertmanager":{"url":"x"}}`:                                                              "spec.notifications.alertmanager.url",
		`{"alertmanager":{"url":"http://x","labels":["a-b"]}}`:                                      "spec.notifications.alertmanager.labels[0]",
		`{"alertmanager":{"url":"http://x","matchLabels":{"a-b":"c"}}}`:                             "has to map names of labels to values",
		`{"alertmanager":{"url":"http://x","silenceMinutes":1}}`:                                    "spec.notifications.alertmanager.silenceMinutes",
		`{"alertmanager":{"url":"http://x","silenceMinutes":60,"maxMinutes":30}}`:                   "maxMinutes has to be at least silenceMinutes",
		`{"cluster":"a b","webhooks":[{"name":"a","url":"http://x"}]}`:                              "spec.notifications.cluster",
		`{"webhooks":[{"name":"a","url":"https://x","secretRef":{"name":"s","namespace":"../x"}}]}`: "spec.notifications.webhooks[0].secretRef.namespace",
	} {
		err := l.policy("wrong", `{"pools":["a"],"notifications":`+spec+`}`)
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v; want an error that says %s", spec, err, says)
		}
	}
}
