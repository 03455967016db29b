// SPDX-License-Identifier: Apache-2.0

package render

import (
	"errors"
	"strings"
	"testing"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/machineconfig"
)

// document is a MachineConfig for workers; config is Ignition without its version and braces.
func document(t *testing.T, name, config string, set ...func(*mcfgv1.MachineConfigSpec)) *mcfgv1.MachineConfig {
	t.Helper()
	mc := &mcfgv1.MachineConfig{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{api.Role: "worker"}}}
	if config != "" {
		mc.Spec.Config = runtime.RawExtension{Raw: []byte(`{"ignition":{"version":"3.4.0"},` + config + `}`)}
	}
	for _, f := range set {
		f(&mc.Spec)
	}
	return mc
}

const (
	chrony = `"storage":{"files":[{"path":"/etc/chrony.conf","contents":{"source":"data:,a"}}]}`
	disks  = `"storage":{"disks":[{"device":"/dev/sdb","wipeTable":true}]}`
	wiped  = `"storage":{"disks":[{"device":"/dev/sdb","wipeTable":false}]}`
)

func fips(s *mcfgv1.MachineConfigSpec) { s.FIPS = true }

func workers(config string) *mcfgv1.MachineConfigPool {
	p := &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: "worker"}}
	p.Spec.MachineConfigSelector = &metav1.LabelSelector{MatchLabels: map[string]string{api.Role: "worker"}}
	p.Spec.Configuration.Name = config
	return p
}

// hadBefore are workers that have a configuration although they are to have none.
func hadBefore(config string) *mcfgv1.MachineConfigPool {
	p := workers("")
	p.Status.Configuration.Name = config
	return p
}

func render(t *testing.T, sources ...*mcfgv1.MachineConfig) *rendering {
	t.Helper()
	r, failure := renderPool(workers(""), sources, nil)
	if failure != nil {
		t.Fatal(failure.message)
	}
	return r
}

func TestDecide(t *testing.T) {
	good := render(t, document(t, "50-chrony", chrony))
	name := good.config.Name
	pin := func(config, from string) *api.Pin { return &api.Pin{Config: config, From: from} }
	tests := map[string]struct {
		in                      input
		target, reason, pending string
		degraded, publish       bool
		unpinned, known         bool
		message                 string
	}{
		"a new configuration is published and set": {
			in:     input{pool: workers("rendered-worker-old"), rendering: good},
			target: name, publish: true, known: true, reason: reasonRendered,
		},
		"what does not merge leaves the pool alone": {
			in:       input{pool: workers("rendered-worker-old"), failure: &failure{reasonRenderFailed, "MachineConfig/a"}},
			degraded: true, known: true, reason: reasonRenderFailed,
			message: "MachineConfig/a; the pool keeps rendered-worker-old",
		},
		"what can't be reached leaves the pool alone": {
			in: input{pool: workers("rendered-worker-old"), rendering: good,
				failure: &failure{reasonUnreconcilable, "no way"}},
			degraded: true, known: true, reason: reasonUnreconcilable, message: "no way; the pool keeps rendered-worker-old",
		},
		"a pool that never had MachineConfigs waits for the first": {
			in:      input{pool: workers(""), failure: &failure{api.NoMachineConfigs, "nothing matches a=b"}},
			pending: "nothing matches a=b", known: true, reason: api.NoMachineConfigs,
		},
		"a pool that selects none any more keeps what it has": {
			in: input{pool: workers("rendered-worker-old"),
				failure: &failure{api.NoMachineConfigs, "nothing matches a=b"}},
			degraded: true, known: true, reason: api.NoMachineConfigs,
			message: "nothing matches a=b; the pool keeps rendered-worker-old",
		},
		"a pool whose nodes have a configuration lost it from its specification alone": {
			in: input{pool: hadBefore("rendered-worker-old"),
				failure: &failure{api.NoMachineConfigs, "nothing matches a=b"}},
			degraded: true, known: true, reason: api.NoMachineConfigs, message: "nothing matches a=b",
		},
		"a first MachineConfig that does not merge is a failure": {
			in:       input{pool: workers(""), failure: &failure{reasonRenderFailed, "MachineConfig/a"}},
			degraded: true, known: true, reason: reasonRenderFailed, message: "MachineConfig/a",
		},
		"unfinished parts are waited for in the open, and the last word on rendering stands": {
			in:      input{pool: workers("rendered-worker-old"), waiting: []string{"KubeletConfig/small since x: y"}},
			pending: "not rendered until this is finished: KubeletConfig/small since x: y",
		},
		"a pin holds while the same is rendered": {
			in:     input{pool: workers(name), rendering: good, pin: pin("rendered-worker-old", name)},
			target: "rendered-worker-old", known: true, reason: api.RenderPinned,
			message: "pinned to rendered-worker-old since 0001-01-01T00:00:00Z, until the MachineConfigs render to something " +
				"else than " + name,
		},
		"a pin is over once something else is rendered": {
			in:     input{pool: workers("rendered-worker-old"), rendering: good, pin: pin("rendered-worker-old", "rendered-x")},
			target: name, publish: true, unpinned: true, known: true, reason: reasonRendered,
		},
		"a pin stays while the something else can't be reached": {
			in: input{pool: workers("rendered-worker-old"), rendering: good, pin: pin("rendered-worker-old", "rendered-x"),
				failure: &failure{reasonUnreconcilable, "no way"}},
			degraded: true, known: true, reason: reasonUnreconcilable, message: "no way; the pool keeps rendered-worker-old",
		},
		"a pin is followed while nothing can be rendered": {
			in: input{pool: workers(name), pin: pin("rendered-worker-old", name),
				failure: &failure{reasonRenderFailed, "bad"}},
			target: "rendered-worker-old", degraded: true, known: true, reason: reasonRenderFailed,
			message: "bad; pinned to rendered-worker-old since 0001-01-01T00:00:00Z, until the MachineConfigs render to " +
				"something else than " + name,
		},
		"a pin is followed while parts are unfinished": {
			in:     input{pool: workers(name), pin: pin("rendered-worker-old", name), waiting: []string{"x"}},
			target: "rendered-worker-old", known: true, reason: api.RenderPinned, pending: "not rendered until this is finished: x",
			message: "pinned to rendered-worker-old since 0001-01-01T00:00:00Z, until the MachineConfigs render to something " +
				"else than " + name,
		},
		"a pin to what is not there is said, and the pool keeps what it has": {
			in: input{pool: workers(name), rendering: good, pin: pin("rendered-worker-old", name),
				pinErr: errors.New("MachineConfig/rendered-worker-old: is not there")},
			degraded: true, known: true, reason: reasonPinUnusable,
			message: "can't pin pool worker: MachineConfig/rendered-worker-old: is not there; the pool keeps " + name,
		},
		"an outdated pin to what is not there goes": {
			in: input{pool: workers("rendered-worker-old"), rendering: good, pin: pin("rendered-worker-gone", "rendered-x"),
				pinErr: errors.New("is not there")},
			target: name, publish: true, unpinned: true, known: true, reason: reasonRendered,
		},
		"a pin that nobody can read holds the pool where it is": {
			in:       input{pool: workers("rendered-worker-old"), rendering: good, pinErr: errors.New("annotation: garbled")},
			degraded: true, known: true, reason: reasonPinUnusable,
			message: "can't pin pool worker: annotation: garbled; the pool keeps rendered-worker-old",
		},
	}
	for what, test := range tests {
		t.Run(what, func(t *testing.T) {
			out := decide(test.in)
			if out.target != test.target || out.publish != test.publish || (out.unpin != "") != test.unpinned {
				t.Errorf("target %q, publish %t, unpin %q", out.target, out.publish, out.unpin)
			}
			pending := out.conditions[0]
			if pending.Type != api.PoolRenderPending || pending.Message != test.pending ||
				(pending.Status == corev1.ConditionTrue) != (test.pending != "") {
				t.Errorf("%s is %s: %s", pending.Type, pending.Status, pending.Message)
			}
			if known := len(out.conditions) == 2; known != test.known {
				t.Fatalf("conditions: %v", out.conditions)
			} else if !known {
				return
			}
			c := out.conditions[1]
			if c.Type != mcfgv1.MachineConfigPoolRenderDegraded || (c.Status == corev1.ConditionTrue) != test.degraded ||
				c.Reason != test.reason || c.Message != test.message {
				t.Errorf("%s is %s, %s: %s", c.Type, c.Status, c.Reason, c.Message)
			}
		})
	}
}

func TestSourcesAreListedByNameAndRenderedOnesAreNone(t *testing.T) {
	r := render(t, document(t, "60-b", chrony), document(t, "50-a", ""))
	got := r.references()
	if len(got) != 2 || got[0].Name != "50-a" || got[1].Name != "60-b" || got[0].Kind != "MachineConfig" ||
		got[0].APIVersion != "machineconfiguration.openshift.io/v1" {
		t.Errorf("got %v", got)
	}
	if machineconfig.PoolOf(r.config.Name) != "worker" {
		t.Errorf("%s is not told apart from a source", r.config.Name)
	}
}

func TestRenderFailureNamesDocumentAndFieldAndNoContent(t *testing.T) {
	const secret = "hunter2"
	tests := map[string]struct {
		mc   *mcfgv1.MachineConfig
		want string
	}{
		"contents": {document(t, "50-bad",
			`"storage":{"files":[{"path":"/etc/a","contents":{"source":"data:;base64,`+secret+`!"}}]}`),
			"spec.config.storage.files"},
		"compression": {document(t, "50-bad",
			`"storage":{"files":[{"path":"/etc/a","contents":{"compression":"gzip","source":"data:,`+secret+`"}}]}`),
			"spec.config.storage.files"},
		"password hash": {document(t, "50-bad", `"passwd":{"users":[{"name":"core","passwordHash":"`+secret+`:"}]}`),
			"spec.config.passwd.users[0].passwordHash"},
		"kernel type": {document(t, "50-bad", "", func(s *mcfgv1.MachineConfigSpec) { s.KernelType = "fast" }),
			"spec.kernelType"},
		"unit": {document(t, "50-bad", `"systemd":{"units":[{"name":"a.service","contents":"[Service\n`+secret+`"}]}`),
			"spec.config.systemd.units"},
		"not JSON": {&mcfgv1.MachineConfig{
			ObjectMeta: metav1.ObjectMeta{Name: "50-bad", Labels: map[string]string{api.Role: "worker"}},
			Spec:       mcfgv1.MachineConfigSpec{Config: runtime.RawExtension{Raw: []byte(`["` + secret + `"]`)}},
		}, "spec.config"},
	}
	for what, test := range tests {
		t.Run(what, func(t *testing.T) {
			_, failure := renderPool(workers(""), []*mcfgv1.MachineConfig{document(t, "40-good", chrony), test.mc}, nil)
			if failure == nil {
				t.Fatal("rendered")
			}
			if !strings.Contains(failure.message, "MachineConfig/50-bad") || !strings.Contains(failure.message, test.want) {
				t.Errorf("got %s", failure.message)
			}
			if strings.Contains(failure.message, secret) {
				t.Errorf("shows content: %s", failure.message)
			}
		})
	}
}

func TestNothingSelectedIsAFailureThatSaysWhatWasLookedFor(t *testing.T) {
	_, failure := renderPool(workers(""), []*mcfgv1.MachineConfig{{}}, nil)
	if failure == nil || failure.reason != api.NoMachineConfigs ||
		!strings.Contains(failure.message, api.Role+"=worker") {
		t.Errorf("got %v", failure)
	}
}

func TestAnOtherImageThanTheDefaultIsAnOverride(t *testing.T) {
	base := &machineconfig.Document{Object: &mcfgv1.MachineConfig{Spec: mcfgv1.MachineConfigSpec{OSImageURL: "base"}}}
	image := func(url string) func(*mcfgv1.MachineConfigSpec) {
		return func(s *mcfgv1.MachineConfigSpec) { s.OSImageURL = url }
	}
	tests := map[string]struct {
		base *machineconfig.Document
		set  func(*mcfgv1.MachineConfigSpec)
		want bool
	}{
		"the default":    {base, image(""), false},
		"the same":       {base, image("base"), false},
		"another":        {base, image("own"), true},
		"without a base": {nil, image("own"), false},
	}
	for what, test := range tests {
		r, failure := renderPool(workers(""), []*mcfgv1.MachineConfig{document(t, "50-a", "", test.set)}, test.base)
		if failure != nil || r.overridden() != test.want {
			t.Errorf("%s: got %v, %v", what, r, failure)
		}
	}
}

// What is being made may never be finished, so it must not be in the way of going back.
func TestWhileSomethingIsUnfinishedThePoolCanGoBackOnly(t *testing.T) {
	good := render(t, document(t, "50-chrony", chrony))
	name := good.config.Name
	on := func(config string) []corev1.Node {
		return []corev1.Node{
			{ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{api.CurrentConfig: "rendered-worker-old"}}},
			{ObjectMeta: metav1.ObjectMeta{Name: "b", Annotations: map[string]string{api.CurrentConfig: config}}},
		}
	}
	remembers := func(history string) *mcfgv1.MachineConfigPool {
		p := workers("rendered-worker-bad")
		p.Annotations = map[string]string{api.HistoryKey: history}
		return p
	}
	for what, c := range map[string]struct {
		pool   *mcfgv1.MachineConfigPool
		nodes  []corev1.Node
		target string
	}{
		"nobody had it":                 {workers("rendered-worker-bad"), on("rendered-worker-bad"), ""},
		"the pool has it":               {hadBefore(name), nil, name},
		"the pool had it":               {remembers(api.Encode([]string{"rendered-worker-x", name})), nil, name},
		"a node still has it":           {workers("rendered-worker-bad"), on(name), name},
		"the history can not be read":   {remembers("oops"), on(""), ""},
		"another pool's has the like":   {workers("rendered-worker-bad"), on("rendered-infra" + name[len("rendered-worker"):]), ""},
		"it is to be the pool's by now": {workers(name), on("rendered-worker-old"), ""},
	} {
		in := input{pool: c.pool, waiting: []string{"KubeletConfig/small since x: y"}, rendering: good}
		in.hold(nil, c.nodes)
		out := decide(in)
		if out.target != c.target || out.publish != (c.target != "") {
			t.Errorf("%s: target %q and not %q", what, out.target, c.target)
		}
		if pending := out.conditions[0]; pending.Status != corev1.ConditionTrue || pending.Reason != reasonUnfinished {
			t.Errorf("%s: %+v", what, pending)
		}
	}
	in := input{pool: workers("rendered-worker-bad"), waiting: []string{"x"}, failure: &failure{reasonRenderFailed, "a"}}
	if in.hold(nil, nil); in.failure != nil {
		t.Error("what is not finished has failed")
	}
}

// MachineConfigs that go with their definition go one by one: on the way they make what the pool had before.
func TestWhileADefinitionIsAwayNothingOfLessIsRendered(t *testing.T) {
	good := render(t, document(t, "50-chrony", chrony))
	pool := workers("rendered-worker-later")
	pool.Annotations = map[string]string{api.HistoryKey: api.Encode([]string{good.config.Name})}
	in := input{pool: pool, rendering: good}
	in.hold([]string{"CustomResourceDefinition/x is missing"}, nil)
	out := decide(in)
	if out.target != "" || out.publish {
		t.Errorf("the pool goes to %s", out.target)
	}
	if pending := out.conditions[0]; pending.Status != corev1.ConditionTrue || !strings.Contains(pending.Message, "is missing") {
		t.Errorf("%+v", pending)
	}
	// A person who goes back by a pin does not wait.
	in = input{pool: pool, rendering: good, pin: &api.Pin{Config: "rendered-worker-x", From: "rendered-worker-later"}}
	in.hold([]string{"CustomResourceDefinition/x is missing"}, nil)
	if out := decide(in); out.target != "rendered-worker-x" {
		t.Errorf("pinned, the pool goes to %q", out.target)
	}
}

func TestWhatWasRefusedIsNamedAndHoldsNothingUp(t *testing.T) {
	name := "rendered-worker-" + strings.Repeat("1", 32)
	in := input{
		pool: workers("rendered-worker-old"), refused: []string{"KubeletConfig/small since x: y"},
		rendering: &rendering{config: &machineconfig.Config{Name: name}},
	}
	out := decide(in)
	if pending := out.conditions[0]; out.target != name || !out.publish || pending.Status != corev1.ConditionTrue ||
		pending.Reason != api.PartRefused || !strings.Contains(pending.Message, "KubeletConfig/small since x: y") {
		t.Errorf("%+v", out)
	}
}

// What Ignition only warns of is said where people look, and is over with its cause.
func TestADoubtfulDocumentIsSaidByThePool(t *testing.T) {
	doubtful := render(t, document(t, "50-a", `"storage":{"file":[]}`))
	said := func(pool *mcfgv1.MachineConfigPool, r *rendering) string {
		for _, c := range decide(input{pool: pool, rendering: r}).conditions {
			if c.Type == api.PoolRenderWarning {
				return string(c.Status) + " " + c.Message
			}
		}
		return "nothing"
	}
	const want = "True MachineConfig/50-a: spec.config.storage.file: there is no such field; did you mean files?"
	if got := said(workers(""), doubtful); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	pool := workers("")
	good := render(t, document(t, "50-a", chrony))
	if got := said(pool, good); got != "nothing" {
		t.Errorf("without a doubt: %q", got)
	}
	pool.Status.Conditions = []mcfgv1.MachineConfigPoolCondition{{Type: api.PoolRenderWarning, Status: corev1.ConditionTrue}}
	if got := said(pool, good); got != "False " {
		t.Errorf("when it was corrected: %q", got)
	}
	if got := said(pool, nil); got != "nothing" {
		t.Errorf("while nothing is rendered it stands: %q", got)
	}
}
