// SPDX-License-Identifier: Apache-2.0

package template

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"

	"github.com/noderefit/noderefit/api"
)

// made is a MachineConfig as the controller makes it of a ControllerConfig.
func made(name, spec string) *mcfgv1.MachineConfig {
	return madeOf(controllerConfig("1"), name, spec)
}

func madeOf(cc *mcfgv1.ControllerConfig, name, spec string) *mcfgv1.MachineConfig {
	mc := &mcfgv1.MachineConfig{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{api.Role: "worker"}}}
	mc.Spec.Config.Raw = []byte(spec)
	own(cc, mc, "v1")
	return mc
}

func controllerConfig(uid string) *mcfgv1.ControllerConfig {
	cc := config("", api.Templates, "own")
	cc.UID = types.UID("uid-" + uid)
	return cc
}

func TestDecide(t *testing.T) {
	with := func(f func(*mcfgv1.MachineConfig)) *mcfgv1.MachineConfig {
		mc := made("00-worker", `{"a":1}`)
		f(mc)
		return mc
	}
	foreign := &mcfgv1.MachineConfig{ObjectMeta: metav1.ObjectMeta{Name: "00-worker"}}
	copied := made("00-worker", `{"a":1}`)
	copied.Name = "00-mine"
	mine := made("00-mine", `{"a":1}`)
	for _, test := range []struct {
		what   string
		wanted []*mcfgv1.MachineConfig
		found  []*mcfgv1.MachineConfig
		events []string
		says   string
		taken  string
	}{
		{"nothing is there", []*mcfgv1.MachineConfig{made("00-worker", `{"a":1}`)}, nil, []string{eventMade}, "", ""},
		{"all is as it should be, spelt otherwise", []*mcfgv1.MachineConfig{made("00-worker", `{"a":1}`)},
			[]*mcfgv1.MachineConfig{with(func(mc *mcfgv1.MachineConfig) {
				mc.Spec.Config.Raw, mc.Spec.KernelArguments = []byte(` { "a" : 1 } `), []string{}
				mc.Labels["own"], mc.Annotations["own"], mc.ResourceVersion = "x", "y", "5"
			})}, nil, "", ""},
		{"the templates have changed", []*mcfgv1.MachineConfig{made("00-worker", `{"a":2}`)},
			[]*mcfgv1.MachineConfig{made("00-worker", `{"a":1}`)}, []string{eventChanged}, "templates", ""},
		{"somebody changed the spec", []*mcfgv1.MachineConfig{made("00-worker", `{"a":1}`)},
			[]*mcfgv1.MachineConfig{with(func(mc *mcfgv1.MachineConfig) { mc.Spec.Config.Raw = []byte(`{"a":"hunter2"}`) })},
			[]string{eventRestored}, "changed its spec", ""},
		{"somebody added a kernel argument", []*mcfgv1.MachineConfig{made("00-worker", `{"a":1}`)},
			[]*mcfgv1.MachineConfig{with(func(mc *mcfgv1.MachineConfig) { mc.Spec.KernelArguments = []string{"quiet"} })},
			[]string{eventRestored}, "changed its spec", ""},
		{"somebody gave it to another role", []*mcfgv1.MachineConfig{made("00-worker", `{"a":1}`)},
			[]*mcfgv1.MachineConfig{with(func(mc *mcfgv1.MachineConfig) { mc.Labels[api.Role] = "infra" })},
			[]string{eventRestored}, "changed its labels", ""},
		{"another version of the controller", []*mcfgv1.MachineConfig{made("00-worker", `{"a":1}`)},
			[]*mcfgv1.MachineConfig{with(func(mc *mcfgv1.MachineConfig) { mc.Annotations[api.GeneratedBy] = "v0" })},
			[]string{eventChanged}, "version", ""},
		{"the ControllerConfig was made again", []*mcfgv1.MachineConfig{made("00-worker", `{"a":1}`)},
			[]*mcfgv1.MachineConfig{madeOf(controllerConfig("0"), "00-worker", `{"a":1}`)},
			[]string{eventChanged}, "another object", ""},
		{"somebody took the owner away", []*mcfgv1.MachineConfig{made("00-worker", `{"a":1}`)},
			[]*mcfgv1.MachineConfig{with(func(mc *mcfgv1.MachineConfig) { mc.OwnerReferences = nil })},
			[]string{eventChanged}, "", ""},
		{"the templates no longer have it", nil, []*mcfgv1.MachineConfig{made("00-worker", `{"a":1}`)},
			[]string{eventGone}, "no such", ""},
		{"a copy of one is not ours to remove", nil, []*mcfgv1.MachineConfig{copied}, nil, "", ""},
		{"nor to take over", []*mcfgv1.MachineConfig{mine}, []*mcfgv1.MachineConfig{copied}, nil, "", "00-mine"},
		{"somebody else has one of the names: half of a set is made of none",
			[]*mcfgv1.MachineConfig{made("00-worker", `{"a":1}`), made("01-worker-x", `{}`)},
			[]*mcfgv1.MachineConfig{foreign}, nil, "", "00-worker"},
	} {
		t.Run(test.what, func(t *testing.T) {
			d := decide(test.wanted, test.found)
			var events []string
			for _, c := range d.changes {
				events = append(events, c.event)
				if !strings.Contains(c.reason, test.says) || strings.Contains(c.reason, "hunter2") {
					t.Errorf("says %s", c.reason)
				}
				if c.to == nil {
					continue
				}
				if o := metav1.GetControllerOf(c.to); o == nil || o.UID != controllerConfig("1").UID ||
					len(c.to.OwnerReferences) != 1 || c.to.Labels[api.Role] != "worker" || !ours(c.to) {
					t.Errorf("makes %v", c.to.ObjectMeta)
				}
			}
			if !slices.Equal(events, test.events) || strings.Join(d.taken, " ") != test.taken {
				t.Errorf("got %v, taken %v", events, d.taken)
			}
		})
	}
}

func conditions(s mcfgv1.ControllerConfigStatus) map[mcfgv1.ControllerConfigStatusConditionType]corev1.ConditionStatus {
	out := map[mcfgv1.ControllerConfigStatusConditionType]corev1.ConditionStatus{}
	for _, c := range s.Conditions {
		out[c.Type] = c.Status
	}
	return out
}

// Nobody waits for what a ControllerConfig without templates would make.
func TestWhatKstatusReadsOfAControllerConfig(t *testing.T) {
	at := func(generation int64, s mcfgv1.ControllerConfigStatus) kstatus.Status {
		cc := controllerConfig("1")
		cc.Generation, cc.Status = generation, s
		object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(cc)
		if err != nil {
			t.Fatal(err)
		}
		got, err := kstatus.Compute(&unstructured.Unstructured{Object: object})
		if err != nil {
			t.Fatal(err)
		}
		return got.Status
	}
	cc, now := controllerConfig("1"), metav1.Now()
	cc.Generation = 7
	bad := status(cc, outcome{reasonTemplates, "a:1: wrong"}, 0, now)
	cc.Status = bad
	without := withdrawn(cc)
	for name, test := range map[string]struct{ got, want kstatus.Status }{
		"nobody has looked":  {at(7, mcfgv1.ControllerConfigStatus{ObservedGeneration: -1}), kstatus.InProgressStatus},
		"changed since":      {at(8, status(cc, outcome{}, 6, now)), kstatus.InProgressStatus},
		"all is made":        {at(7, status(cc, outcome{}, 6, now)), kstatus.CurrentStatus},
		"at work":            {at(7, status(cc, outcome{reasonRunning, "6 of 6"}, 0, now)), kstatus.InProgressStatus},
		"templates are bad":  {at(7, bad), kstatus.FailedStatus},
		"it names none more": {at(7, without), kstatus.CurrentStatus},
	} {
		if test.got != test.want {
			t.Errorf("%s: %s, want %s", name, test.got, test.want)
		}
	}
}

func TestTheStatusSaysWhetherAllIsMade(t *testing.T) {
	cc := controllerConfig("1")
	cc.Generation = 7
	cc.Status.Conditions = []mcfgv1.ControllerConfigStatusCondition{{Type: "Other", Status: corev1.ConditionTrue}}
	then := metav1.NewTime(time.Unix(1000, 0))
	good := status(cc, outcome{}, 6, then)
	if c := conditions(good); c[mcfgv1.TemplateControllerCompleted] != corev1.ConditionTrue || len(c) != 6 ||
		c[mcfgv1.TemplateControllerFailing] != corev1.ConditionFalse || good.ObservedGeneration != 7 {
		t.Errorf("got %+v", good)
	}
	cc.Status = good
	busy := status(cc, outcome{reasonRunning, "6 of 6 MachineConfigs have to be written"}, 0, then)
	if c := conditions(busy); c[mcfgv1.TemplateControllerCompleted] != corev1.ConditionFalse ||
		c[mcfgv1.TemplateControllerRunning] != corev1.ConditionTrue ||
		c[mcfgv1.TemplateControllerFailing] != corev1.ConditionFalse {
		t.Errorf("got %+v", busy)
	}
	bad := status(cc, outcome{reasonTemplates, "a:1: wrong"}, 0, metav1.NewTime(time.Unix(2000, 0)))
	if c := conditions(bad); c[mcfgv1.TemplateControllerCompleted] != corev1.ConditionFalse ||
		c[mcfgv1.TemplateControllerFailing] != corev1.ConditionTrue {
		t.Errorf("got %+v", bad)
	}
	for _, c := range bad.Conditions {
		switch c.Type {
		case mcfgv1.TemplateControllerFailing:
			if c.Reason != reasonTemplates || c.Message != "a:1: wrong" || !c.LastTransitionTime.After(then.Time) {
				t.Errorf("got %+v", c)
			}
		case mcfgv1.TemplateControllerRunning:
			if !c.LastTransitionTime.Equal(&then) {
				t.Errorf("its time moves without it: %+v", c)
			}
		}
	}
	cc.Status = bad
	if again := status(cc, outcome{reasonTemplates, "a:1: wrong"}, 0, metav1.Now()); !equality.Semantic.DeepEqual(bad, again) {
		t.Errorf("was %+v, is %+v", bad, again)
	}
	if c := conditions(withdrawn(cc)); len(c) != 1 || c["Other"] != corev1.ConditionTrue {
		t.Errorf("without templates: %v", c)
	}
}

// bundle are certificates as PEM, one for each name.
func bundle(t *testing.T, names ...string) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	var out []byte
	for i, name := range names {
		c := &x509.Certificate{
			SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
			NotBefore: time.Unix(int64(i), 0), NotAfter: time.Unix(int64(1000+i), 0),
		}
		der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	return out
}

func TestCertificatesAreListedWithWhenTheyEnd(t *testing.T) {
	cc := controllerConfig("1")
	cc.Spec.KubeAPIServerServingCAData = bundle(t, "old", "new")
	cc.Spec.RootCAData = []byte("hunter2")
	cc.Spec.CloudProviderCAData = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("hunter2")})
	cc.Spec.AdditionalTrustBundle = append(bundle(t, "good"),
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("hunter2")})...)
	cc.Spec.ImageRegistryBundleUserData = []mcfgv1.ImageRegistryBundle{{File: "a.example..5000", Data: bundle(t, "registry")}}
	s := status(cc, outcome{}, 6, metav1.Now())
	var got []string
	for _, c := range s.ControllerCertificates {
		got = append(got, c.BundleFile+" "+c.Subject+" "+c.NotAfter.UTC().Format("04:05"))
	}
	want := []string{
		"KubeAPIServerServingCAData CN=old 16:40", "KubeAPIServerServingCAData CN=new 16:41",
		"AdditionalTrustBundle CN=good 16:40", "a.example..5000 CN=registry 16:40",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	for _, c := range s.Conditions {
		if strings.Contains(c.Message, "hunter2") {
			t.Errorf("shows what is in a bundle: %s", c.Message)
		}
		if c.Type != mcfgv1.TemplateControllerCompleted {
			continue
		}
		for _, field := range []string{"spec.rootCAData", "spec.cloudProviderCAData", "spec.additionalTrustBundle"} {
			if c.Status != corev1.ConditionTrue || !strings.Contains(c.Message, field) {
				t.Errorf("got %+v, which lacks %s", c, field)
			}
		}
	}
}
