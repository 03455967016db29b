// SPDX-License-Identifier: Apache-2.0

package imagemirror

import (
	"slices"
	"strings"
	"testing"
	"time"

	configv1 "github.com/openshift/api/config/v1"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/controller/source"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/registries"
)

func pool(name string, roles ...string) *mcfgv1.MachineConfigPool {
	p := &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: name}}
	p.Spec.MachineConfigSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: api.Role, Operator: metav1.LabelSelectorOpIn, Values: roles},
	}}
	return p
}

func config(t *testing.T, name, role, path, contents string) *mcfgv1.MachineConfig {
	t.Helper()
	raw, err := source.Ignition([]source.File{{Path: path, Contents: []byte(contents)}}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return source.Config(role, name, raw)
}

func names(configs []*mcfgv1.MachineConfig) string {
	var out []string
	for _, mc := range configs {
		out = append(out, strings.TrimSuffix(strings.TrimPrefix(mc.Name, "99-"), "-generated-registries"))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func TestEachPoolGetsTheMirrorsOnce(t *testing.T) {
	stale := config(t, "99-gone-generated-registries", "gone", registries.Path, "")
	stale.Annotations = map[string]string{api.GeneratedBy: "v1"}
	mine := config(t, "99-mine-generated-registries", "mine", registries.Path, "")
	byWorker := config(t, "99-plain-generated-registries", "plain", registries.Path, "")
	byWorker.Annotations = stale.Annotations
	w := &source.World{
		Pools: []*mcfgv1.MachineConfigPool{
			pool("worker", "worker"), pool("infra", "worker", "infra"), pool("plain", "worker"), pool("odd", "nobody"),
		},
		Configs: []*mcfgv1.MachineConfig{stale, mine, byWorker},
	}
	o := icsp("tmp", "quay.io", "m")
	out := decide([]*origin{o}, w, "v1")
	if names(out.write) != "infra worker" || names(out.remove) != "gone plain" {
		t.Errorf("write %s, remove %s", names(out.write), names(out.remove))
	}
	if len(o.pools) != 1 || !strings.Contains(o.pools["odd"].Error(), "MachineConfigPool/odd: spec.machineConfigSelector") {
		t.Errorf("got %v", o.pools)
	}
	out = decide([]*origin{icsp("tmp", "quay.io")}, w, "v1")
	if names(out.write) != "" || names(out.remove) != "gone plain" {
		t.Errorf("without mirrors: write %s, remove %s", names(out.write), names(out.remove))
	}
}

func TestWhatIsWrongWithAPoolIsToldAndLeavesTheOthersAlone(t *testing.T) {
	for what, test := range map[string]struct {
		config *mcfgv1.MachineConfig
		want   string
	}{
		"no TOML": {config(t, "50-r", "worker", registries.Path, "a = 1\nSECRET ="),
			"MachineConfigPool/worker: /etc/containers/registries.conf as its MachineConfigs bring it: line 2"},
		"behind ours": {config(t, "99-worker-r", "worker", registries.Path, ""),
			"MachineConfig/99-worker-r brings /etc/containers/registries.conf too, and wins by its name"},
		"hosts of its own": {config(t, "50-r", "worker", "/etc/containerd/certs.d/quay.io/hosts.toml", ""),
			"bring /etc/containerd/certs.d/quay.io/hosts.toml"},
	} {
		p := pool("worker", "worker")
		p.Annotations = map[string]string{api.Runtime: "containerd"}
		o := icsp("tmp", "quay.io", "m")
		out := decide([]*origin{o}, &source.World{
			Pools: []*mcfgv1.MachineConfigPool{p, pool("master", "master")}, Configs: []*mcfgv1.MachineConfig{test.config},
		}, "v1")
		if err := o.pools["worker"]; err == nil || !strings.Contains(err.Error(), test.want) ||
			strings.Contains(err.Error(), "SECRET") || names(out.write) != "master" {
			t.Errorf("%s: %v, write %s", what, err, names(out.write))
		}
	}
}

func TestWhatIsWrongCountsAsItWasAcceptedAndTheRestGoesOn(t *testing.T) {
	pools := []*mcfgv1.MachineConfigPool{pool("worker", "worker")}
	before := decide([]*origin{icsp("good", "quay.io", "m"), icsp("bad", "docker.io", "n")}, &source.World{Pools: pools}, "v1")
	if len(before.write) != 1 {
		t.Fatalf("made %s", names(before.write))
	}
	made := before.write[0].DeepCopy()
	made.Annotations[api.GeneratedBy] = "v1"
	base := config(t, "60-worker-registries", "worker", registries.Path, "[[registry]]\nlocation = 'bad.example'\nblocked = true\n")
	good, bad := icsp("good", "quay.io", "m", "more"), icsp("bad", "https://docker.io", "n")
	out := decide([]*origin{good, bad}, &source.World{
		Pools: append(pools, pool("infra", "infra")), Configs: []*mcfgv1.MachineConfig{base, made},
	}, "v1")
	if names(out.write) != "infra worker" || out.remove != nil || good.unmade() || !bad.unmade() {
		t.Fatalf("write %s, remove %s; good: %v, bad: %v", names(out.write), names(out.remove), good.err, bad.err)
	}
	for _, mc := range out.write {
		c, err := machineconfig.Parse(mc)
		if err != nil {
			t.Fatal(err)
		}
		text := string(source.Contents(c, registries.Path))
		want := []string{"'docker.io'", "'quay.io'", "'more'"}
		if strings.HasPrefix(mc.Name, "99-worker") {
			want = append(want, "'bad.example'")
		}
		for _, what := range want {
			if !strings.Contains(text, what) {
				t.Errorf("%s lacks %s: %s", mc.Name, what, text)
			}
		}
	}
	// Taking the wrong one away takes its mirrors away.
	gone := decide([]*origin{good}, &source.World{Pools: pools, Configs: []*mcfgv1.MachineConfig{made}}, "v1")
	if len(gone.write) != 1 || strings.Contains(gone.write[0].Annotations[api.AcceptedKey], "docker.io") {
		t.Errorf("without it: %v", gone.write)
	}
}

func TestWhileSomethingIsWrongWhatIsOfUnknownOriginStays(t *testing.T) {
	made := config(t, "99-worker-generated-registries", "worker", registries.Path, "")
	made.Annotations = map[string]string{api.GeneratedBy: "v1"}
	good, bad, nothing := icsp("good", "quay.io", "m"), icsp("bad", "https://quay.io", "m"), icsp("nothing", "q@")
	for _, origins := range [][]*origin{{bad, good}, {nothing}} {
		out := decide(origins, &source.World{
			Pools: []*mcfgv1.MachineConfigPool{pool("worker", "worker")}, Configs: []*mcfgv1.MachineConfig{made},
		}, "v1")
		if out.write != nil || out.remove != nil || good.unmade() || !origins[0].unmade() {
			t.Errorf("write %s, remove %s, %v", names(out.write), names(out.remove), good.err)
		}
	}
}

func TestTheNoteKeepsItsTimeWhileItSaysTheSame(t *testing.T) {
	first, later := time.Unix(60, 0).UTC(), time.Unix(120, 0).UTC()
	o := idms("a", "quay.io", configv1.NeverContactSource)
	note := o.note(first)
	if want := `{"reason":"spec.imageDigestMirrors[0].mirrorSourcePolicy: NeverContactSource without mirrors would leave ` +
		`nowhere to pull from","generation":0,"since":"1970-01-01T00:01:00Z"}`; note != want {
		t.Errorf("got %s, want %s", note, want)
	}
	o.object.SetAnnotations(map[string]string{api.UnmadeKey: note})
	if again := o.note(later); again != note {
		t.Errorf("later it is %s", again)
	}
	o.err = nil
	o.fail("worker", errTest("no"))
	if other := o.note(later); !strings.Contains(other, "1970-01-01T00:02:00Z") || !strings.Contains(other, `"pools":["worker"]`) {
		t.Errorf("something else is %s", other)
	}
}

type errTest string

func (e errTest) Error() string { return string(e) }
