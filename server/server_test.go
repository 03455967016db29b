// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/coreos/ignition/v2/config/v3_5"
	"github.com/coreos/ignition/v2/config/v3_5/types"
	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/vincent-petithory/dataurl"
	authv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/machineconfig"
)

const (
	ignition35 = ignitionType + ";version=3.5.0, */*;q=0.1"
	secret     = "abcdef.0123456789abcdef"
)

// source is a Source in memory, and counts.
type source struct {
	pools   map[string]*mcfgv1.MachineConfigPool
	configs map[string]*mcfgv1.MachineConfig
	down    error
}

func (s source) Pool(_ context.Context, name string) (*mcfgv1.MachineConfigPool, error) {
	if s.down != nil {
		return nil, behind{s.down}
	}
	if p := s.pools[name]; p != nil {
		return p, nil
	}
	return nil, &unknownPoolError{Pool: name}
}

func (s source) Config(
	_ context.Context, _ *mcfgv1.MachineConfigPool, name string,
) (*mcfgv1.MachineConfig, string, error) {
	c := s.configs[name]
	if c == nil {
		return nil, "", unavailable{errors.New("no MachineConfig " + name)}
	}
	version, err := versionOf(c)
	return c, version, err
}

func (s source) Version(ctx context.Context, pool *mcfgv1.MachineConfigPool, name string) (string, error) {
	_, version, err := s.Config(ctx, pool, name)
	return version, err
}

func config(name, ignition string) *mcfgv1.MachineConfig {
	mc := &mcfgv1.MachineConfig{ObjectMeta: metav1.ObjectMeta{Name: name}}
	mc.Spec.Config.Raw = []byte(ignition)
	mc.Spec.KernelArguments = []string{"a=1"}
	return mc
}

func pool(name, config string) *mcfgv1.MachineConfigPool {
	p := &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: name}}
	p.Spec.Configuration.Name = config
	return p
}

func example() source {
	const text = `{"ignition":{"version":"3.5.0"},"kernelArguments":{"shouldExist":["foo=bar"]},
		"storage":{"files":[{"path":"/etc/motd","contents":{"source":"data:,hello"}}]}}`
	return source{
		pools:   map[string]*mcfgv1.MachineConfigPool{"worker": pool("worker", "rendered-worker-a")},
		configs: map[string]*mcfgv1.MachineConfig{"rendered-worker-a": config("rendered-worker-a", text)},
	}
}

func get(t *testing.T, h http.Handler, method, path string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, http.NoBody)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestPathsMethodsAndStatus(t *testing.T) {
	from := example()
	from.pools["inexpressible"] = pool("inexpressible", "rendered-inexpressible-a")
	from.configs["rendered-inexpressible-a"] = config("rendered-inexpressible-a",
		`{"ignition":{"version":"3.5.0"},"kernelArguments":{"shouldNotExist":["foo=bar"]}}`)
	s := New(Options{Source: from, Gate: Gate{Open: true}, Log: logr.Discard()})
	down := example()
	down.down = errors.New("10.0.0.1 refuses")
	away := New(Options{Source: down, Gate: Gate{Open: true}, Log: logr.Discard()})
	for _, test := range []struct {
		handler              http.Handler
		method, path, accept string
		code                 int
		says                 string
	}{
		{s, "GET", "/healthz", "", 200, ""},
		{s, "HEAD", "/healthz", "", 200, ""},
		{s, "POST", "/healthz", "", 405, ""},
		{s, "GET", "/config/worker", ignition35, 200, "/etc/motd"},
		{s, "PUT", "/config/worker", ignition35, 405, ""},
		{s, "DELETE", "/config/worker", ignition35, 405, ""},
		{s, "GET", "/config/nobody", ignition35, 404, "nobody"},
		{s, "GET", "/config/", ignition35, 404, ""},
		{s, "GET", "/config/a/worker", ignition35, 404, ""},
		{s, "GET", "/config", ignition35, 404, ""},
		{s, "GET", "/", "", 404, ""},
		{s, "GET", "/metrics", "", 404, ""},
		{s, "GET", "/config/worker", ignitionType + ";version=9.0.0", 400, "9.0.0"},
		{s, "GET", "/config/worker", ignitionType + ";version=3.2.0", 200, `"3.2.0"`},
		{s, "GET", "/config/worker", "", 200, `"2.2.0"`},
		{s, "GET", "/config/inexpressible", ignitionType + ";version=3.2.0", 406, "kernelArguments"},
		{s, "GET", "/config/inexpressible", ignition35, 200, "shouldNotExist"},
		{away, "GET", "/config/worker", ignition35, 503, "log"},
	} {
		w := get(t, test.handler, test.method, test.path, "Accept", test.accept)
		if w.Code != test.code || !strings.Contains(w.Body.String(), test.says) {
			t.Errorf("%s %s (%s): %d %s; want %d, %q", test.method, test.path, test.accept, w.Code, w.Body, test.code,
				test.says)
		}
		if strings.Contains(w.Body.String(), "10.0.0.1") {
			t.Error("what is behind the server is told to a stranger")
		}
	}
}

func TestHeadHasTheLengthAndNoBody(t *testing.T) {
	s := New(Options{Source: example(), Gate: Gate{Open: true}, Log: logr.Discard()})
	whole := get(t, s, "GET", "/config/worker", "Accept", ignition35)
	head := get(t, s, "HEAD", "/config/worker", "Accept", ignition35)
	if head.Body.Len() != 0 || head.Code != 200 {
		t.Errorf("HEAD: %d with %d bytes", head.Code, head.Body.Len())
	}
	for _, w := range []*httptest.ResponseRecorder{whole, head} {
		if got := w.Header().Get("Content-Length"); got != strconv.Itoa(whole.Body.Len()) {
			t.Errorf("Content-Length %s, the body has %d", got, whole.Body.Len())
		}
		if got := w.Header().Get("Content-Type"); got != "application/json" {
			t.Errorf("Content-Type %s", got)
		}
	}
}

// OpenShift's server appended kernel arguments to the object in its cache, once more with each request.
func TestAnyNumberOfRequestsGetTheSameAndChangeNothing(t *testing.T) {
	from := example()
	before := from.configs["rendered-worker-a"].DeepCopy()
	pools := from.pools["worker"].DeepCopy()
	s := New(Options{Source: from, Gate: Gate{Open: true}, Log: logr.Discard(), DaemonImage: "registry.example.com/x:1"})
	first := get(t, s, "GET", "/config/worker", "Accept", ignition35).Body.String()
	var group sync.WaitGroup
	for i := range 20 {
		group.Go(func() {
			accept := ignition35
			if i%2 == 0 {
				accept = ignitionType + ";version=3.3.0"
			}
			w := get(t, s, "GET", "/config/worker", "Accept", accept)
			if i%2 == 1 && w.Body.String() != first {
				t.Errorf("request %d got something else", i)
			}
		})
	}
	group.Wait()
	if diff := cmp.Diff(before, from.configs["rendered-worker-a"]); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(pools, from.pools["worker"]); diff != "" {
		t.Error(diff)
	}
}

func TestWhatIsAppended(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte("apiVersion: v1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	from := example()
	from.configs["rendered-worker-a"].ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "x"}}
	s := New(Options{Source: from, Gate: Gate{Open: true}, Log: logr.Discard(), BootstrapKubeconfig: kubeconfig,
		DaemonImage: "registry.example.com/x:1"})
	served := parse(t, get(t, s, "GET", "/config/worker", "Accept", ignition35))
	var paths []string
	contents := map[string]string{}
	for _, f := range served.Storage.Files {
		paths = append(paths, f.Path+" "+strconv.FormatInt(int64(valueOf(f.Mode)), 8))
		text, err := dataurl.DecodeString(*f.Contents.Source)
		if err != nil {
			t.Fatal(err)
		}
		contents[f.Path] = string(text.Data)
	}
	if diff := cmp.Diff([]string{
		"/etc/motd 0", "/etc/machine-config-daemon/node-annotations.json 644", "/etc/kubernetes/kubeconfig 600",
		"/etc/ignition-machine-config-encapsulated.json 600",
	}, paths); diff != "" {
		t.Error(diff)
	}
	var annotations map[string]string
	if err := json.Unmarshal([]byte(contents[annotationsPath]), &annotations); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{
		"machineconfiguration.openshift.io/currentConfig": "rendered-worker-a",
		"machineconfiguration.openshift.io/desiredConfig": "rendered-worker-a",
		"machineconfiguration.openshift.io/state":         "Done",
	}, annotations); diff != "" {
		t.Error(diff)
	}
	var whole mcfgv1.MachineConfig
	if err := json.Unmarshal([]byte(contents[api.EncapsulatedPath]), &whole); err != nil {
		t.Fatal(err)
	}
	want, err := machineconfig.Parse(from.configs["rendered-worker-a"])
	if err != nil {
		t.Fatal(err)
	}
	got, err := machineconfig.Parse(&whole)
	if err != nil {
		t.Fatal(err)
	}
	if got.Digest != want.Digest || got.Name != want.Name || whole.ManagedFields != nil || whole.Kind != "MachineConfig" {
		t.Errorf("the encapsulated configuration is another: %+v", whole)
	}
	var units []string
	for _, u := range served.Systemd.Units {
		units = append(units, u.Name)
	}
	if diff := cmp.Diff([]string{"machine-config-daemon-pull.service", api.FirstbootUnit}, units); diff != "" {
		t.Error(diff)
	}

	if err := os.Remove(kubeconfig); err != nil {
		t.Fatal(err)
	}
	if w := get(t, s, "GET", "/config/worker", "Accept", ignition35); w.Code != http.StatusServiceUnavailable ||
		strings.Contains(w.Body.String(), kubeconfig) {
		t.Errorf("without the kubeconfig: %d %s", w.Code, w.Body)
	}
}

func valueOf(i *int) int {
	if i == nil {
		return 0
	}
	return *i
}

func parse(t *testing.T, w *httptest.ResponseRecorder) types.Config {
	t.Helper()
	if w.Code != http.StatusOK {
		t.Fatalf("%d: %s", w.Code, w.Body)
	}
	served, rpt, err := v3_5.Parse(w.Body.Bytes())
	if err != nil {
		t.Fatalf("Ignition refuses what is served: %v: %s", err, rpt.String())
	}
	return served
}

func TestNewNodesGetWhatANodeHasProved(t *testing.T) {
	const a, b = "rendered-w-00000000000000000000000000000001", "rendered-w-00000000000000000000000000000002"
	bad := api.Encode([]api.Quarantine{{Config: b, Node: "n"}})
	for _, test := range []struct {
		name         string
		spec, status string
		updated      int32
		stale        bool
		quarantined  string
		want         string
	}{
		{name: "everything is where it should be", spec: a, status: a, updated: 3, want: a},
		{name: "the rollout has begun, nobody has proved it", spec: b, status: a, want: a},
		{name: "a node has proved it", spec: b, status: a, updated: 1, want: b},
		{name: "the count is of the configuration before", spec: b, status: a, updated: 3, stale: true, want: a},
		{name: "proved on one node, failed on another", spec: b, status: a, updated: 1, quarantined: bad, want: a},
		{name: "the first of a pool, which no node has", spec: a, want: a},
		{name: "the first of a pool, which failed", spec: b, quarantined: bad},
		{name: "a quarantine that can't be read", spec: b, status: a, updated: 1, quarantined: "{", want: a},
		{name: "nothing rendered yet"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := pool("w", test.spec)
			p.Generation, p.Status.ObservedGeneration = 2, 2
			if test.stale {
				p.Status.ObservedGeneration = 1
			}
			p.Status.Configuration.Name, p.Status.UpdatedMachineCount = test.status, test.updated
			if test.quarantined != "" {
				p.Annotations = map[string]string{api.PoolQuarantineKey: test.quarantined}
			}
			got, err := choose(p)
			if got != test.want || (err == nil) != (test.want != "") {
				t.Errorf("got %s, %v; want %s", got, err, test.want)
			}
			if err != nil && status(err) != http.StatusServiceUnavailable {
				t.Errorf("Ignition would give up: %d", status(err))
			}
		})
	}
}

// reviewer knows tokens by their owner's groups.
type reviewer struct {
	groups map[string][]string
	down   error
	asked  int
}

func (r *reviewer) Create(_ context.Context, review *authv1.TokenReview, _ metav1.CreateOptions) (*authv1.TokenReview, error) {
	r.asked++
	if r.down != nil {
		return nil, r.down
	}
	groups, known := r.groups[review.Spec.Token]
	return &authv1.TokenReview{Status: authv1.TokenReviewStatus{Authenticated: known,
		User: authv1.UserInfo{Groups: groups}}}, nil
}

// withSecret is the example with a pool whose configuration has a file of root's alone.
func withSecret() source {
	from := example()
	from.pools["secret"] = pool("secret", "rendered-secret-a")
	from.configs["rendered-secret-a"] = config("rendered-secret-a", `{"ignition":{"version":"3.5.0"},"storage":{"files":[
		{"path":"/etc/key","mode":384,"contents":{"source":"data:,hush-hush"}},
		{"path":"/etc/key2","mode":384,"contents":{"source":"data:,hush-hush"}}]}}`)
	return from
}

func TestWhatHoldsASecretIsForWhoMayReadItAndTheRestForEverybody(t *testing.T) {
	dir := t.TempDir()
	tokens, kubeconfig := filepath.Join(dir, "tokens"), filepath.Join(dir, "kubeconfig")
	if err := errors.Join(
		os.WriteFile(tokens, []byte("# of the rack\n"+secret+"\n\nanother-long-enough-token\n"), 0o600),
		os.WriteFile(kubeconfig, []byte("token: "+secret+"\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	known := map[string][]string{"boot": {"system:bootstrappers", "system:authenticated"}, "pod": {"system:serviceaccounts"}}
	review := &reviewer{groups: known}
	for _, test := range []struct {
		name   string
		gate   Gate
		header string
		code   int // of what holds a secret
		open   int // of what holds none
	}{
		{"nobody is told secrets by default", Gate{}, "", 401, 200},
		{"nor with any token", Gate{}, "Bearer " + secret, 401, 401},
		{"everybody, when asked for", Gate{Open: true}, "", 200, 200},
		{"everybody, whatever is shown", Gate{Open: true}, "Bearer x", 200, 200},
		{"without a token where some are taken", Gate{TokenFile: tokens}, "", 401, 200},
		{"a token of the file", Gate{TokenFile: tokens}, "Bearer " + secret, 200, 200},
		{"the scheme in any case", Gate{TokenFile: tokens}, "bearer another-long-enough-token", 200, 200},
		{"the beginning of a token", Gate{TokenFile: tokens}, "Bearer " + secret[:20], 401, 401},
		{"a comment is no token", Gate{TokenFile: tokens}, "Bearer # of the rack", 401, 401},
		{"another scheme", Gate{TokenFile: tokens}, "Basic " + secret, 401, 401},
		{"an empty token", Gate{TokenFile: tokens}, "Bearer ", 401, 401},
		{"a file that is gone", Gate{TokenFile: tokens + "x"}, "Bearer " + secret, 503, 503},
		{"a file that is gone, and no token", Gate{TokenFile: tokens + "x"}, "", 401, 200},
		{"a bootstrap token", Gate{Reviewer: review, Groups: []string{"system:bootstrappers"}}, "Bearer boot", 200, 200},
		{"a pod's token", Gate{Reviewer: review, Groups: []string{"system:bootstrappers"}}, "Bearer pod", 403, 403},
		{"an unknown token", Gate{Reviewer: review, Groups: []string{"system:bootstrappers"}}, "Bearer x", 401, 401},
		{"no API server", Gate{Reviewer: &reviewer{down: errors.New("away")}}, "Bearer boot", 503, 503},
		{"a giant", Gate{Reviewer: &reviewer{down: errors.New("asked")}}, "Bearer " + strings.Repeat("x", 9000), 401, 401},
	} {
		t.Run(test.name, func(t *testing.T) {
			var log strings.Builder
			s := New(Options{Source: withSecret(), Gate: test.gate, BootstrapKubeconfig: kubeconfig,
				Log: funcr.New(func(prefix, args string) { log.WriteString(prefix + args + "\n") }, funcr.Options{Verbosity: 9})})
			header := []string{"Accept", ignition35}
			if test.header != "" {
				header = append(header, "Authorization", test.header)
			}
			for pool, want := range map[string]int{"secret": test.code, "worker": test.open} {
				w := get(t, s, "GET", "/config/"+pool, header...)
				if w.Code != want {
					t.Errorf("%s: got %d %s, want %d", pool, w.Code, w.Body, want)
				}
				if w.Code == http.StatusUnauthorized && !strings.HasPrefix(w.Header().Get("WWW-Authenticate"), "Bearer") {
					t.Error("a 401 without a challenge")
				}
				if w.Code != http.StatusOK {
					if text := w.Body.String(); strings.Contains(text, "hush") || strings.Count(text, "\n") != 1 {
						t.Errorf("a stranger is told %q", text)
					}
					continue
				}
				joins := slices.ContainsFunc(parse(t, w).Storage.Files, func(f types.File) bool { return f.Path == kubeconfigPath })
				if may := test.code == http.StatusOK; joins != may {
					t.Errorf("%s: what to join with is in the answer: %v, want %v", pool, joins, may)
				}
			}
			if w := get(t, s, "HEAD", "/config/secret", header...); w.Code != test.code {
				t.Errorf("HEAD: %d, want %d", w.Code, test.code)
			}
			if w := get(t, s, "GET", "/healthz"); w.Code != 200 {
				t.Errorf("/healthz: %d", w.Code)
			}
			if _, token, ok := strings.Cut(test.header, " "); ok && len(token) > 4 && strings.Contains(log.String(), token) {
				t.Errorf("the token is in the log: %s", &log)
			}
			if strings.Contains(log.String(), "hello") || strings.Contains(log.String(), "hush") {
				t.Errorf("contents are in the log: %s", &log)
			}
		})
	}
}

func TestWhoIsRefusedIsToldWhatTheSecretIsAndWhatToDo(t *testing.T) {
	const found = "rendered-secret-a holds a secret, spec.config.storage.files[0] (/etc/key): its mode 0600 keeps other " +
		"users from reading it (and 1 more); "
	for _, test := range []struct {
		gate Gate
		says string
	}{
		{Gate{}, "this server has no way to check credentials"},
		{Gate{TokenFile: "/x"}, "show a token (Authorization: Bearer); "},
		{Gate{Reviewer: &reviewer{}}, "show a token (Authorization: Bearer); "},
		{Gate{Certificates: true}, "show a client certificate; "},
		{Gate{TokenFile: "/x", Certificates: true}, "show a token (Authorization: Bearer) or a client certificate; "},
	} {
		s := New(Options{Source: withSecret(), Gate: test.gate, Log: logr.Discard()})
		w := get(t, s, "GET", "/config/secret", "Accept", ignition35)
		if text := w.Body.String(); w.Code != 401 || !strings.HasPrefix(text, "error: "+found+test.says) ||
			!strings.Contains(text, "--allow-unauthenticated") {
			t.Errorf("%d %s; want %s", w.Code, text, test.says)
		}
	}
}

// OpenShift's server makes them arguments of the MachineConfig, which is another then than its name says.
func TestKernelArgumentsThatIgnitionIsTooOldForAreLeftToFirstboot(t *testing.T) {
	from := example()
	want, err := machineconfig.Parse(from.configs["rendered-worker-a"])
	if err != nil {
		t.Fatal(err)
	}
	s := New(Options{Source: from, Log: logr.Discard()})
	for accept, left := range map[string]string{ignition35: "", ignitionType + ";version=3.2.0": `["foo=bar"]`} {
		for range 3 {
			w := get(t, s, "GET", "/config/worker", "Accept", accept)
			var served types.Config
			if err := json.Unmarshal(w.Body.Bytes(), &served); err != nil || w.Code != 200 {
				t.Fatalf("%d %s: %v", w.Code, w.Body, err)
			}
			if has := len(served.KernelArguments.ShouldExist) > 0; has != (left == "") {
				t.Errorf("%s: %+v", accept, served.KernelArguments)
			}
			files := served.Storage.Files
			text, err := dataurl.DecodeString(*files[len(files)-1].Contents.Source)
			if err != nil {
				t.Fatal(err)
			}
			var whole mcfgv1.MachineConfig
			if err := json.Unmarshal(text.Data, &whole); err != nil {
				t.Fatal(err)
			}
			got, err := machineconfig.Parse(&whole)
			if err != nil || got.Digest != want.Digest || whole.Annotations[api.LeftArguments] != left {
				t.Errorf("%s: %v, the same %v, left %q", accept, err, got.Digest == want.Digest, whole.Annotations)
			}
		}
	}
}

func TestATokenFileSaysWhatIsWrongWithItAndNotTheToken(t *testing.T) {
	for _, text := range []string{"short\n", "# nothing\n", "with white space in it\n", ""} {
		file := filepath.Join(t.TempDir(), "tokens")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		err := CheckTokens(file)
		if err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("%q: %v", text, err)
		}
		if err != nil && strings.Contains(text, "with") && strings.Contains(err.Error(), "with white space in") {
			t.Errorf("the token is in the error: %v", err)
		}
	}
}

func TestMetricsCountByPoolsThatThereAre(t *testing.T) {
	s := New(Options{Source: example(), Gate: Gate{Open: true}, Log: logr.Discard()})
	length := float64(get(t, s, "GET", "/config/worker", "Accept", ignition35).Body.Len())
	for _, path := range []string{"/config/x", "/config/y", "/config/" + secret} {
		get(t, s, "GET", path, "Accept", ignition35)
	}
	registry := prometheus.NewRegistry()
	if err := registry.Register(s); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			name := strings.TrimPrefix(f.GetName(), "noderefit_server_")
			for _, l := range m.Label {
				name += " " + l.GetValue()
			}
			got[name] = m.Counter.GetValue() + m.Gauge.GetValue()
		}
	}
	if diff := cmp.Diff(map[string]float64{"requests_total 200 worker": 1, "requests_total 404 ": 3,
		"answers_made_total": 1, "answers_bytes": length}, got); diff != "" {
		t.Error(diff)
	}
}

func TestACustomPoolIsServedItsOwnConfigurationAndAnUnknownOneNothing(t *testing.T) {
	from := example()
	from.pools["infra"] = pool("infra", "rendered-infra-a")
	from.configs["rendered-infra-a"] = config("rendered-infra-a", `{"ignition":{"version":"3.5.0"}}`)
	s := New(Options{Source: from, Gate: Gate{Open: true}, Log: logr.Discard()})
	served := parse(t, get(t, s, "GET", "/config/infra", "Accept", ignition35))
	text, err := dataurl.DecodeString(*served.Storage.Files[0].Contents.Source)
	if err != nil || !strings.Contains(string(text.Data), "rendered-infra-a") {
		t.Errorf("%v: %s", err, text)
	}
	if w := get(t, s, "GET", "/config/gpu", "Accept", ignition35); w.Code != 404 || !strings.Contains(w.Body.String(), "gpu") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func TestATokenOfAPoolIsForThatPoolAloneAndIsWhatTheMachineJoinsWith(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	const file = `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://api.example.com:6443"}}]
users: [{name: u, user: {token: of-everybody}}, {name: other, user: {username: root, password: hush}}]
contexts: [{name: x, context: {cluster: c, user: u}}, {name: z, context: {cluster: c, user: other}}]
current-context: x
`
	const boot = "system:bootstrappers"
	review := &reviewer{groups: map[string][]string{
		"infra": {boot, boot + ":kubeadm:default-node-token", api.PoolGroup + "infra"}, "any": {boot},
		"both": {boot, api.PoolGroup + "infra", api.PoolGroup + "worker"},
	}}
	from := example()
	from.pools["infra"] = pool("infra", "rendered-infra-a")
	from.configs["rendered-infra-a"] = config("rendered-infra-a", `{"ignition":{"version":"3.5.0"}}`)
	s := New(Options{Source: from, Gate: Gate{Reviewer: review, Groups: []string{boot}}, BootstrapKubeconfig: kubeconfig,
		Log: logr.Discard()})
	ask := func(token, pool string) *httptest.ResponseRecorder {
		return get(t, s, "GET", "/config/"+pool, "Accept", ignition35, "Authorization", "Bearer "+token)
	}
	if err := os.WriteFile(kubeconfig, []byte("token: of-everybody"), 0o600); err != nil {
		t.Fatal(err)
	}
	if w := ask("infra", "infra"); w.Code != http.StatusServiceUnavailable || strings.Contains(w.Body.String(), "of-everybody") {
		t.Errorf("with a file that is no kubeconfig: %d %s", w.Code, w.Body)
	}
	if err := os.WriteFile(kubeconfig, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		token, pool string
		code        int
		says        string // of a refusal, or the token that the machine joins with
	}{
		{"infra", "infra", 200, "infra"},
		{"infra", "worker", 403, "for the pool infra, as its group " + api.PoolGroup + "infra says"},
		{"infra", "nobody", 403, "for the pool infra"},
		{"any", "infra", 200, "of-everybody"},
		{"any", "worker", 200, "of-everybody"},
		{"both", "infra", 403, "several pools, infra, worker"},
		{"both", "worker", 403, "several pools"},
	} {
		w := ask(test.token, test.pool)
		if w.Code != test.code || w.Code != 200 && !strings.Contains(w.Body.String(), test.says) {
			t.Errorf("%s asks for %s: %d %s, want %d with %s", test.token, test.pool, w.Code, w.Body, test.code, test.says)
		}
		if w.Code != 200 {
			continue
		}
		files := parse(t, w).Storage.Files
		at := slices.IndexFunc(files, func(f types.File) bool { return f.Path == kubeconfigPath })
		if at < 0 {
			t.Fatalf("%s: there is nothing to join with", test.token)
		}
		text, err := dataurl.DecodeString(*files[at].Contents.Source)
		if err != nil {
			t.Fatal(err)
		}
		joins, err := clientcmd.RESTConfigFromKubeConfig(text.Data)
		if err != nil || joins.BearerToken != test.says || joins.Host != "https://api.example.com:6443" {
			t.Errorf("%s joins with %+v, %v", test.token, joins, err)
		}
		if test.token == "infra" && (strings.Contains(string(text.Data), "hush") || strings.Contains(string(text.Data), "of-")) {
			t.Errorf("a machine of one pool gets the credentials of others: %s", text.Data)
		}
	}
}

func TestAClustersConfigurationThatIsNotWhatItsNameSaysIsNotServed(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := mcfgv1.Install(scheme); err != nil {
		t.Fatal(err)
	}
	read := func(ignition string) *machineconfig.Document {
		mc := config("50-a", ignition)
		return &machineconfig.Document{Object: mc}
	}
	whole, _, err := machineconfig.Merge("worker", []*machineconfig.Document{
		read(`{"ignition":{"version":"3.5.0"},"storage":{"files":[{"path":"/etc/a","contents":{"source":"data:,a"}}]}}`),
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	changed := whole.Object.DeepCopy()
	changed.Spec.KernelArguments = []string{"init=/bin/sh"}
	for _, test := range []struct {
		mc   *mcfgv1.MachineConfig
		code int
	}{{whole.Object, 200}, {changed, 500}} {
		c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(test.mc.DeepCopy(), pool("worker", whole.Name)).Build()
		s := New(Options{Source: &Cluster{Pools: c, Configs: c}, Gate: Gate{Open: true}, Log: logr.Discard()})
		if w := get(t, s, "GET", "/config/worker", "Accept", ignition35); w.Code != test.code {
			t.Errorf("got %d %s, want %d", w.Code, w.Body, test.code)
		}
		if w := get(t, s, "GET", "/config/infra", "Accept", ignition35); w.Code != 404 {
			t.Errorf("got %d %s, want 404", w.Code, w.Body)
		}
	}
	// A configuration that somebody deleted comes back: Ignition is to try again.
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(pool("worker", whole.Name)).Build()
	s := New(Options{Source: &Cluster{Pools: c, Configs: c}, Gate: Gate{Open: true}, Log: logr.Discard()})
	if w := get(t, s, "GET", "/config/worker", "Accept", ignition35); w.Code != 503 {
		t.Errorf("got %d %s, want 503", w.Code, w.Body)
	}
}

func TestWhoShowsNothingGetsNothingWhereThatIsRequired(t *testing.T) {
	tokens := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(tokens, []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		gate   Gate
		header []string
		code   int
		known  bool // by the log
	}{
		{"a stranger", Gate{Closed: true, TokenFile: tokens}, nil, 401, false},
		{"a token", Gate{Closed: true, TokenFile: tokens}, []string{"Authorization", "Bearer " + secret}, 200, true},
		{"a stranger, where nothing is required", Gate{TokenFile: tokens}, nil, 200, false},
		{"a stranger, where everybody gets everything", Gate{Open: true}, nil, 200, false},
	} {
		var log strings.Builder
		s := New(Options{Source: example(), Gate: c.gate,
			Log: funcr.NewJSON(func(text string) { log.WriteString(text) }, funcr.Options{})})
		w := get(t, s, "GET", "/config/worker", append([]string{"Accept", ignition35}, c.header...)...)
		if w.Code != c.code || c.code != 200 && strings.Contains(w.Body.String(), "motd") {
			t.Errorf("%s: %d %s", c.name, w.Code, w.Body)
		}
		if known := strings.Contains(log.String(), `"authenticated":true`); known != c.known {
			t.Errorf("%s: the log says authenticated: %t: %s", c.name, known, log.String())
		}
		if health := get(t, s, "GET", "/healthz"); health.Code != 200 {
			t.Errorf("%s: health %d", c.name, health.Code)
		}
	}
}
