// SPDX-License-Identifier: Apache-2.0

package clusterapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"strings"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/go-logr/logr"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
)

// played is a cluster of nodes in memory.
type played struct {
	pools   []mcfgv1.MachineConfigPool
	nodes   []corev1.Node
	configs map[string]*mcfgv1.MachineConfig
	down    error
}

func (p *played) Pools(context.Context) ([]mcfgv1.MachineConfigPool, error) { return p.pools, p.down }
func (p *played) Nodes(context.Context) ([]corev1.Node, error)              { return p.nodes, p.down }
func (p *played) Config(_ context.Context, name string) (*mcfgv1.MachineConfig, error) {
	return p.configs[name], p.down
}

func (p *played) Write(_ context.Context, mc *mcfgv1.MachineConfig) error {
	if p.down == nil {
		var text bytes.Buffer
		if err := json.Indent(&text, mc.Spec.Config.Raw, "", " "); err != nil {
			return err
		}
		mc = mc.DeepCopy()
		mc.Spec.Config.Raw = text.Bytes() // an API server may write the same in another way
		p.configs[mc.Name] = mc
	}
	return p.down
}

// newPlayed is a cluster with the nodes of the machines m1 and m2 in the pool worker.
func newPlayed() *played {
	p := &played{configs: map[string]*mcfgv1.MachineConfig{}}
	for _, name := range []string{"worker", "infra", "master"} {
		pool := mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: name}}
		pool.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{api.NodeRole + name: ""}}
		pool.Spec.MachineConfigSelector = &metav1.LabelSelector{MatchLabels: map[string]string{api.Role: name}}
		p.pools = append(p.pools, pool)
	}
	for _, name := range []string{"m1", "m2"} {
		p.nodes = append(p.nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-" + name,
			Labels: map[string]string{api.NodeRole + "worker": ""}},
			Spec: corev1.NodeSpec{ProviderID: "lab://" + name},
			Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
				{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}})
	}
	return p
}

// render makes the pool's configuration of what the extension has written.
func (p *played) render(name string) {
	p.configs[name] = &mcfgv1.MachineConfig{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: *p.configs[prefix+"worker"].Spec.DeepCopy()}
	p.pools[0].Spec.Configuration.Name = name
}

// moves has a node say where it is.
func (p *played) moves(node int, config string, state api.State) {
	p.nodes[node].Annotations = map[string]string{
		api.CurrentConfig: config, api.DesiredConfig: config, api.StateKey: string(state)}
}

// document is a request that Cluster API's own types made, changed as a test says.
func document(t *testing.T, name string, changes ...string) []byte {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	if len(changes) == 0 {
		return text
	}
	if !strings.Contains(string(text), changes[0]) {
		t.Fatalf("%s is not in %s", changes[0], name)
	}
	return []byte(strings.NewReplacer(changes...).Replace(string(text)))
}

// ask asks as Cluster API does, and wants a response with the given code.
func ask(t *testing.T, e *Extension, path string, body []byte, code int) response {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/"+hooksVersion+"/"+path, bytes.NewReader(body))
	w := httptest.NewRecorder()
	e.ServeHTTP(w, r)
	if w.Code != code {
		t.Fatalf("%s: %d %s, want %d", path, w.Code, w.Body, code)
	}
	var out response
	if code == http.StatusOK {
		if err := json.Unmarshal(w.Body.Bytes(), &out); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func TestDiscoveryNamesWhatIsAnswered(t *testing.T) {
	e := New(newPlayed(), Options{Namespace: "fleet", Cluster: "prod"}, logr.Discard())
	out := ask(t, e, "discovery", document(t, "discovery"), http.StatusOK)
	if out.Kind != "DiscoveryResponse" || out.APIVersion != hooksVersion || out.Status != success || len(out.Handlers) != 3 {
		t.Fatalf("%+v", out)
	}
	for _, h := range out.Handlers {
		path := strings.ToLower(h.RequestHook.Hook) + "/" + h.Name
		if got := ask(t, e, path, document(t, h.Name), http.StatusOK); got.Kind != h.RequestHook.Hook+"Response" {
			t.Errorf("%s: %+v", path, got)
		}
	}
}

func TestRequestsAreBounded(t *testing.T) {
	e := New(newPlayed(), Options{Namespace: "fleet", Cluster: "prod"}, logr.Discard())
	ask(t, e, "updatemachine/update-machine", []byte(`{"desired":`), http.StatusBadRequest)
	ask(t, e, "updatemachine/other", nil, http.StatusNotFound)
	large := `{"settings":{"a":"` + strings.Repeat("x", requestLimit) + `"}}`
	ask(t, e, "updatemachine/update-machine", []byte(large), http.StatusRequestEntityTooLarge)
	w := httptest.NewRecorder()
	e.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/"+hooksVersion+"/discovery", http.NoBody))
	if w.Code != http.StatusMethodNotAllowed {
		t.Errorf("GET: %d", w.Code)
	}
	for range atOnce {
		e.places <- struct{}{}
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	w = httptest.NewRecorder()
	e.ServeHTTP(w, httptest.NewRequestWithContext(gone, http.MethodPost, "/"+hooksVersion+"/discovery", http.NoBody))
	if w.Code != http.StatusServiceUnavailable {
		t.Errorf("more at once than there is room for: %d", w.Code)
	}
}

// What is answered to be made in place is what makes the current object the desired one, as Cluster API applies it.
func TestChangesOfFilesAreMadeInPlaceAndAllElseIsLeft(t *testing.T) {
	const content = `"content": "2"`
	for name, test := range map[string]struct {
		changes []string
		prepare func(*played)
		says    string // why there is no patch
	}{
		"a file has changed, and one came":   {},
		"a path that is there twice":         {changes: []string{"/etc/b", "/etc/a"}, says: "/etc/a is there twice"},
		"a template of cloud-init":           {changes: []string{content, `"content": "{{ ds.meta_data.hostname }}"`}, says: "template"},
		"a comment of a template":            {changes: []string{content, `"content": "a{# b"`}, says: "template"},
		"a path that is a template":          {changes: []string{"/etc/b", "/etc/{{ v1.name }}"}, says: "template"},
		"a path with a tab":                  {changes: []string{"/etc/b", `/etc/b\tc`}, says: "tab"},
		"a path that YAML cuts":              {changes: []string{"/etc/b", "/etc/b #c"}, says: "/etc/b #c"},
		"a file that is appended to":         {changes: []string{content, content + `,"append":true`}, says: "appended"},
		"a file of another owner":            {changes: []string{content, content + `,"owner":"etcd:etcd"`}, says: "owner is etcd"},
		"a compressed file":                  {changes: []string{content, content + `,"encoding":"gzip+base64"`}, says: "encoding"},
		"a file that is no base64":           {changes: []string{content, content + `,"encoding":"base64"`}, says: "not base64"},
		"permissions that are none":          {changes: []string{content, content + `,"permissions":"rw"`}, says: "permissions"},
		"a path that no configuration takes": {changes: []string{"/etc/b", "etc/b"}, says: "etc/b"},
		"another Cluster":                    {changes: []string{`"clusterName": "prod"`, `"clusterName": "other"`}, says: "Cluster fleet/prod"},
		"another namespace":                  {changes: []string{`"namespace": "fleet"`, `"namespace": "guests"`}, says: "not of guests/prod"},
		"no pool":                            {changes: []string{"noderefit.dev/pool", "example.com/pool"}, says: "noderefit.dev/pool"},
		"a pool that there is not":           {changes: []string{`"noderefit.dev/pool": "worker"`, `"noderefit.dev/pool": "gpu"`}, says: "MachineConfigPool/gpu"},
		"another kind of bootstrap":          {changes: []string{`"kind": "KubeadmConfig`, `"kind": "RKE2Config`}, says: "KubeadmConfig"},
		"a pool that selects others": {prepare: func(p *played) {
			p.pools[0].Spec.MachineConfigSelector.MatchLabels[api.Role] = "other"
		}, says: "selects no MachineConfigs"},
		"a MachineConfig of somebody else": {prepare: func(p *played) {
			p.configs[prefix+"worker"] = &mcfgv1.MachineConfig{ObjectMeta: metav1.ObjectMeta{Name: prefix + "worker"}}
		}, says: "one MachineDeployment alone"},
		"a file that is a secret": {changes: []string{content, content + `,"permissions":"0600"`}, says: "/etc/a is a secret"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlayed()
			if test.prepare != nil {
				test.prepare(p)
			}
			e := New(p, Options{Namespace: "fleet", Cluster: "prod"}, logr.Discard())
			for _, hook := range []struct{ path, name, object string }{
				{"canupdatemachine", "can-update-machine", "bootstrapConfig"},
				{"canupdatemachineset", "can-update-machine-set", "bootstrapConfigTemplate"},
			} {
				body := document(t, hook.name, test.changes...)
				out := ask(t, e, hook.path+"/"+hook.name, body, http.StatusOK)
				got := out.BootstrapConfigPatch
				if hook.object == "bootstrapConfigTemplate" {
					got = out.BootstrapConfigTemplatePatch
				}
				if out.Status != success || (got == nil) != (test.says != "") || !strings.Contains(out.Message, test.says) {
					t.Fatalf("%s: %+v, want %q", hook.name, out, test.says)
				}
				if got != nil {
					patched(t, body, hook.object, got)
				}
			}
		})
	}
}

// patched applies a patch to the current object, and wants the desired one.
func patched(t *testing.T, body []byte, object string, p *patch) {
	t.Helper()
	var q change[map[string]json.RawMessage]
	if err := json.Unmarshal(body, &q); err != nil {
		t.Fatal(err)
	}
	decoded, err := jsonpatch.DecodePatch(p.Patch)
	if err != nil || p.PatchType != "JSONPatch" {
		t.Fatalf("%s %s: %v", p.PatchType, p.Patch, err)
	}
	text, err := decoded.Apply(q.Current[object])
	if err != nil {
		t.Fatal(err)
	}
	var got, want any
	if err := errors.Join(json.Unmarshal(text, &got), json.Unmarshal(q.Desired[object], &want)); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the patch makes\n%v\nand not\n%v", got, want)
	}
}

func TestWhereNoFileChangesNothingIsMadeInPlace(t *testing.T) {
	out := newStand(t).can(files("1", ""), files("1", ""))
	if out.Status != success || out.BootstrapConfigTemplatePatch != nil || !strings.Contains(out.Message, "no file has changed") {
		t.Errorf("%+v", out)
	}
}

func TestFilesThatGoNeedANewMachine(t *testing.T) {
	a, b := file{Path: "/a", Content: "1"}, file{Path: "/b", Content: "2"}
	if changed, err := changes([]file{a, b}, []file{a}); err == nil || changed != nil || !strings.Contains(err.Error(), "/b goes") {
		t.Errorf("%v, %v", changed, err)
	}
	if changed, err := changes([]file{a, b}, []file{b, a}); err != nil || changed != nil {
		t.Errorf("another order: %v, %v", changed, err)
	}
	if _, err := changes(make([]file, filesAtMost+1), nil); err == nil || !strings.Contains(err.Error(), "at most") {
		t.Errorf("too many files: %v", err)
	}
}

// Files are on a host as they would be on a new machine: Cluster API hands contents to cloud-init as blocks of YAML.
func TestContentsAreWhatCloudInitWrites(t *testing.T) {
	for content, want := range map[string]string{
		"": "", "a": "a\n", "a\n": "a\n", "a\n\n": "a\n", "\na: b\n  c\n#d": "\na: b\n  c\n#d\n", "a\r\nb": "a\nb\n",
		"  a\n  b": "a\nb\n", "a\n\tb ": "a\n\tb \n", "\ta\nb": "\ta\nb\n", "\t": "\t\n",
		"\n \n  \ta\n  b": "\n\n\ta\nb\n", "  a\n# b": "a\n", "\r\n\ta": "\n\ta\n",
	} {
		h, err := file{Path: "/a", Content: content}.express()
		if err != nil || string(h.contents) != want {
			t.Errorf("%q is %q, want %q: %v", content, h.contents, want, err)
		}
	}
	for _, content := range []string{"  a\nb", "a\x01", "  \ta\nb", "  a\n\tb", "  \n\ta", "  a\nb: c", "a\r---",
		"a\u0085..."} {
		if h, err := (file{Path: "/a", Content: content}).express(); err == nil {
			t.Errorf("%q is %q, and is no block of YAML", content, h.contents)
		}
	}
	h, err := file{Path: "/a", Encoding: "base64", Content: "Y Q\t=\n=\r\n"}.express()
	if err != nil || string(h.contents) != "a" {
		t.Errorf("base64: %q, %v", h.contents, err)
	}
	for _, blank := range []string{"\u00a0", "\u2003", "\u3000"} {
		if h, err := (file{Path: "/a", Encoding: "base64", Content: "YQ==" + blank}).express(); err == nil {
			t.Errorf("base64 with %q is %q, and cloud-init refuses it", blank, h.contents)
		}
	}
}
