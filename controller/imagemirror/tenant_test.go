// SPDX-License-Identifier: Apache-2.0

package imagemirror

import (
	"fmt"
	"strings"
	"testing"
	"time"

	configv1 "github.com/openshift/api/config/v1"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/controller/source"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/registries"
)

// signedBy is what a policy demands by a key.
func signedBy(key string) configv1.ImageSigstoreVerificationPolicy {
	return configv1.ImageSigstoreVerificationPolicy{RootOfTrust: configv1.PolicyRootOfTrust{
		PolicyType: configv1.PublicKeyRootOfTrust, PublicKey: &configv1.ImagePolicyPublicKeyRootOfTrust{KeyData: []byte(key)},
	}}
}

func imagePolicy(namespace, name, key string, scopes ...configv1.ImageScope) *origin {
	p := &configv1.ImagePolicy{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}}
	p.Spec = configv1.ImagePolicySpec{Scopes: scopes, Policy: signedBy(key)}
	return namespacedPolicy(p)
}

func clusterImagePolicy(name, key string, scopes ...configv1.ImageScope) *origin {
	p := &configv1.ClusterImagePolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	p.Spec = configv1.ClusterImagePolicySpec{Scopes: scopes, Policy: signedBy(key)}
	return clusterPolicy(p)
}

const goodKey = "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"

// text is a file of the first MachineConfig that is written.
func (d decision) text(t *testing.T, path string) string {
	t.Helper()
	if len(d.write) == 0 {
		t.Fatal("nothing is written")
	}
	c, err := machineconfig.Parse(d.write[0])
	if err != nil {
		t.Fatal(err)
	}
	return string(source.Contents(c, path))
}

func TestATenantsMistakeHoldsNobodyUp(t *testing.T) {
	w := &source.World{Pools: []*mcfgv1.MachineConfigPool{pool("worker", "worker")}}
	bad, good := imagePolicy("shop", "p", "no key", "quay.io/shop"), icsp("m", "quay.io", "m.example")
	out := decide([]*origin{bad, good}, w, "v1")
	if names(out.write) != "worker" || good.unmade() || bad.err == nil || out.text(t, "/etc/crio/policies/shop.json") != "" {
		t.Errorf("wrote %s; %v, %v", names(out.write), bad.err, good.err)
	}
	// Where a runtime can't have it, the rest goes on too.
	w.Pools[0].Annotations = map[string]string{api.Runtime: "containerd"}
	for namespace, others := range map[string][]*origin{"one": {icsp("m", "quay.io", "m.example")}, "none": nil} {
		o := imagePolicy("shop", "p", goodKey, "quay.io/shop")
		out := decide(append(others, o), w, "v1")
		if names(out.write) != "worker" || o.pools["worker"] == nil {
			t.Errorf("%s: wrote %s, %v", namespace, names(out.write), o.pools)
		}
	}
}

// What the pool's MachineConfigs bring can be in the way of one namespace, or of all.
func TestATenantsDemandThatAPoolCantMeetHoldsNothingUp(t *testing.T) {
	for _, c := range []struct {
		what, config, path, contents string
		others                       bool // whether another namespace gets its policy
	}{
		{"the file of the namespace", "50-a", "/etc/crio/policies/shop.json", "{}", true},
		{"the same file, later", "99-z", "/etc/crio/policies/shop.json", "{}", true},
		{"where the signatures are", "50-a", "/etc/containers/registries.d/a.yaml", "docker: {quay.io/shop: {}}", true},
		{"a policy.json that can't be read", "50-a", registries.PolicyPath, "none", false},
		{"a later policy.json", "99-z", registries.PolicyPath, `{"default":[{"type":"reject"}]}`, false},
	} {
		w := &source.World{Pools: []*mcfgv1.MachineConfigPool{pool("worker", "worker")}}
		w.Configs = append(w.Configs, config(t, c.config, "worker", c.path, c.contents))
		mirror, shop := icsp("m", "quay.io", "m.example"), imagePolicy("shop", "p", goodKey, "quay.io/shop")
		other := imagePolicy("other", "p", goodKey, "quay.io/other")
		out := decide([]*origin{shop, mirror, other}, w, "v1")
		if names(out.write) != "worker" || mirror.unmade() || shop.pools["worker"] == nil || other.unmade() == c.others {
			t.Errorf("%s: wrote %q, mirror %v, shop %v, other %v", c.what, names(out.write), mirror.pools, shop.pools, other.pools)
			continue
		}
		if !strings.Contains(out.text(t, registries.Path), "m.example") || out.text(t, "/etc/crio/policies/shop.json") != "" ||
			(out.text(t, "/etc/crio/policies/other.json") != "") != c.others {
			t.Errorf("%s: made %s", c.what, out.write[0].Spec.Config.Raw)
		}
		// With nothing left that counts, nothing is kept.
		w.Configs = append(w.Configs, out.write[0])
		out = decide([]*origin{imagePolicy("shop", "p", goodKey, "quay.io/shop")}, w, "v1")
		if names(out.write) != "" || names(out.remove) != "worker" {
			t.Errorf("%s: without the mirror, wrote %q and removed %q", c.what, names(out.write), names(out.remove))
		}
	}
}

func TestAWrongPolicyDemandsWhatItDemandedBefore(t *testing.T) {
	w := &source.World{Pools: []*mcfgv1.MachineConfigPool{pool("worker", "worker")}}
	before := decide([]*origin{clusterImagePolicy("c", goodKey, "quay.io/os"), imagePolicy("shop", "p", goodKey, "quay.io/shop")}, w, "v1")
	made := before.write[0].DeepCopy()
	made.Annotations[api.GeneratedBy] = "v1"
	w.Configs = []*mcfgv1.MachineConfig{made}
	out := decide([]*origin{clusterImagePolicy("c", "", "quay.io/other"), imagePolicy("shop", "p", "", "quay.io/x"),
		icsp("m", "quay.io", "m.example")}, w, "v1")
	for _, path := range []string{registries.PolicyPath, "/etc/crio/policies/shop.json"} {
		if is, want := out.text(t, path), before.text(t, path); is != want || is == "" {
			t.Errorf("%s is\n%s\nwant\n%s", path, is, want)
		}
	}
	if !strings.Contains(out.text(t, registries.Path), "m.example") {
		t.Error("the mirror waits for the policies")
	}
}

func TestATooLongNoteIsLeftOutAndWhatWasMadeStays(t *testing.T) {
	w := &source.World{Pools: []*mcfgv1.MachineConfigPool{pool("worker", "worker")}}
	key := strings.Repeat(goodKey, 100)
	var origins []*origin
	for i := range 60 {
		origins = append(origins, clusterImagePolicy(fmt.Sprintf("p%d", i), key, "quay.io/os"))
	}
	out := decide(origins, w, "v1")
	if len(out.write) != 1 || out.write[0].Annotations[api.AcceptedKey] != "" {
		t.Fatalf("wrote %s with a note of %d bytes", names(out.write), len(out.write[0].Annotations[api.AcceptedKey]))
	}
	made := out.write[0].DeepCopy()
	w.Configs = []*mcfgv1.MachineConfig{made}
	out = decide([]*origin{clusterImagePolicy("a", "", "quay.io/os")}, w, "v1")
	if out.write != nil || out.remove != nil {
		t.Errorf("write %s, remove %s", names(out.write), names(out.remove))
	}
}

func TestConditionsSayWhatBecameOfAPolicy(t *testing.T) {
	first, later := metav1.NewTime(time.Unix(60, 0)), metav1.NewTime(time.Unix(120, 0))
	for _, c := range []struct {
		what            string
		change          func(*origin)
		reason, message string
	}{
		{"good", func(*origin) {}, reasonRendered, ""},
		{"wrong", func(o *origin) { o.err = errTest("a\nb"); o.fail("worker", errTest("c")) }, reasonInvalid, "a; b; c"},
		{"not for a pool", func(o *origin) { o.fail("worker", errTest("c")); o.beside = errTest("x") }, reasonPool, "x; c"},
		{"overridden", func(o *origin) { o.beside = errTest("x") }, reasonConflicts, "x"},
	} {
		o := imagePolicy("shop", "p", goodKey, "quay.io/shop")
		o.object.SetGeneration(3)
		c.change(o)
		had := []metav1.Condition{{Type: "Theirs", Status: "True"}}
		got := o.conditions(o.conditions(had, first), later)
		good := c.reason == reasonRendered
		for kind, want := range map[string]bool{conditionApplied: good, conditionPending: !good, conditionStalled: !good} {
			is := meta.FindStatusCondition(got, kind)
			if is == nil || (is.Status == metav1.ConditionTrue) != want || is.Reason != c.reason || is.Message != c.message ||
				is.ObservedGeneration != 3 || !is.LastTransitionTime.Equal(&first) {
				t.Errorf("%s: %s is %+v", c.what, kind, is)
			}
		}
		if !meta.IsStatusConditionTrue(got, "Theirs") {
			t.Errorf("%s: another program's condition is gone", c.what)
		}
	}
}
