// SPDX-License-Identifier: Apache-2.0

package render

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/test/lab/cluster"
)

const (
	degraded = mcfgv1.MachineConfigPoolRenderDegraded
	pending  = mcfgv1.MachineConfigPoolConditionType(api.PoolRenderPending)
	yes, no  = corev1.ConditionTrue, corev1.ConditionFalse
)

// Each test has a pool of its own, so that they can share a control plane.
func TestRender(t *testing.T) { //nolint:tparallel // a control plane is enough for one machine
	w := begin(t, cluster.Options{Controllers: true})
	w.control()
	for name, test := range map[string]func(*world){
		"MachineConfigsBecomeThePoolsConfiguration": becomesTheConfiguration,
		"APoolWaitsForItsFirstMachineConfig":        waitsForTheFirst,
		"WhatDoesNotParseIsNamedAndChangesNothing":  doesNotParse,
		"WhatCanNotBeReachedIsNamed":                canNotBeReached,
		"AnUnfinishedKubeletConfigIsWaitedFor":      isWaitedFor,
		"APinHoldsUntilSomethingElseIsRendered":     pinHolds,
		"WhatNothingNeedsGoes":                      unneededGoes,
		"ANodeCanGiveBackWhatWasDeleted":            givenBack,
		"WhatWasTamperedWithIsMadeAgain":            tampered,
		"WhatCanNotBeDeletedIsNamed":                lingers,
		"ANodeKeepsTheConfigurationOfADeletedPool":  deletedPool,
		"ConditionsOfOthersSurvive":                 othersSurvive,
		"TheDriftPolicyIsCarriedAndIsNoRollout":     carriesDriftPolicy,
		"APoolThatDemandsSignaturesWaitsForOne":     heldUntilSigned,
		"ThePoolSaysWhichValuesAreNamed":            namesValues,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(w.in(t))
		})
	}
}

func becomesTheConfiguration(w *world) {
	w.addPool("one")
	w.put("50-one-a", "one", file("/etc/a", "1"))
	w.put("60-one-b", "one", file("/etc/b", "1"))
	w.put("50-other", "other", file("/etc/c", "1"))
	name := w.moved("one", "")
	w.until("both are in it", func() (bool, any) {
		name = w.pool("one").Spec.Configuration.Name
		sources := w.pool("one").Spec.Configuration.Source
		return len(sources) == 2 && sources[0].Name == "50-one-a" && sources[1].Name == "60-one-b", sources
	})
	rendered := w.config(name)
	if ok, said := w.genuine(name); !ok {
		w.t.Errorf("digest is %v, name %s", said, name)
	}
	if owner(rendered) != w.pool("one").UID {
		w.t.Errorf("owners: %v", rendered.OwnerReferences)
	}
	if rendered.Annotations["machineconfiguration.openshift.io/generated-by-controller-version"] != "v0.0.0-test" {
		w.t.Errorf("annotations: %v", rendered.Annotations)
	}
	w.says("one", degraded, no)
	w.says("one", pending, no)
	w.event("one", "RenderedConfigGenerated", name)

	// The same content under another spelling is the same configuration, and a deleted one comes back.
	version := w.pool("one").Spec.Configuration
	spec := file("/etc/a", "1")
	spec.Config.Raw = []byte(strings.Replace(string(spec.Config.Raw), "data:,1", "data:;base64,MQ==", 1))
	w.put("50-one-a", "one", spec)
	w.always("the name stays", 2*time.Second, func() (bool, any) {
		return w.pool("one").Spec.Configuration.Name == version.Name, w.pool("one").Spec.Configuration
	})
	w.remove(name)
	w.until("it is made again", func() (bool, any) { return w.genuine(name) })
}

func waitsForTheFirst(w *world) {
	w.addPool("bare")
	w.says("bare", pending, yes, api.NoMachineConfigs, api.Role+"=bare")
	w.says("bare", degraded, no)
	w.shows("noderefit_pool_render_pending", "bare", 0)
	w.put("50-bare", "bare", file("/etc/a", "1"))
	first := w.moved("bare", "")
	w.says("bare", pending, no)
	w.remove("50-bare")
	w.says("bare", degraded, yes, api.NoMachineConfigs, api.Role+"=bare", first)
	if name := w.pool("bare").Spec.Configuration.Name; name != first {
		w.t.Errorf("the pool moved to %s", name)
	}
}

func doesNotParse(w *world) {
	const secret = "hunter2"
	w.addPool("bad")
	w.put("50-bad-good", "bad", file("/etc/a", "1"))
	good := w.moved("bad", "")
	w.says("bad", degraded, no)
	w.put("60-bad", "bad", mcfgv1.MachineConfigSpec{Config: runtime.RawExtension{Raw: []byte(
		`{"ignition":{"version":"3.4.0"},"passwd":{"users":[{"name":"core","passwordHash":"` + secret + `:"}]}}`)}})
	c := w.says("bad", degraded, yes, "MachineConfig/60-bad", "spec.config.passwd.users[0].passwordHash", good)
	w.shows("noderefit_pool_render_degraded", "bad", 1)
	if strings.Contains(c.Message, secret) {
		w.t.Errorf("shows content: %s", c.Message)
	}
	if name := w.pool("bad").Spec.Configuration.Name; name != good {
		w.t.Errorf("the pool moved to %s", name)
	}
	w.remove("60-bad")
	w.says("bad", degraded, no)
	w.shows("noderefit_pool_render_degraded", "bad", 0)
	if name := w.pool("bad").Spec.Configuration.Name; name != good {
		w.t.Errorf("the pool moved to %s", name)
	}
}

func canNotBeReached(w *world) {
	w.addPool("far")
	w.put("50-far", "far", file("/etc/a", "1"))
	good := w.moved("far", "")
	w.put("60-far-fips", "far", mcfgv1.MachineConfigSpec{FIPS: true})
	w.says("far", degraded, yes, "Unreconcilable", "MachineConfig/60-far-fips: fips", good)
	if name := w.pool("far").Spec.Configuration.Name; name != good {
		w.t.Errorf("the pool moved to %s", name)
	}
	w.put("60-far-fips", "far", file("/etc/b", "1"))
	w.moved("far", good)
	w.says("far", degraded, no)
}

func isWaitedFor(w *world) {
	kubelets := w.MachineConfigs.MachineconfigurationV1().KubeletConfigs()
	w.addPool("gate")
	w.put("50-gate", "gate", file("/etc/a", "1"))
	first := w.moved("gate", "")
	k, err := kubelets.Create(w.ctx, &mcfgv1.KubeletConfig{
		ObjectMeta: metav1.ObjectMeta{Name: "small"},
		Spec: mcfgv1.KubeletConfigSpec{
			MachineConfigPoolSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"pool": "gate"}},
		},
	}, metav1.CreateOptions{})
	w.must(err)
	w.says("gate", pending, yes, "KubeletConfig/small since ", "no condition yet")
	w.shows("noderefit_pool_render_pending", "gate", 1)
	w.put("50-gate", "gate", file("/etc/a", "2"))
	status := func(kind mcfgv1.KubeletConfigStatusConditionType, is corev1.ConditionStatus, message string) {
		w.t.Helper()
		k.Status.ObservedGeneration = k.Generation
		k.Status.Conditions = append(k.Status.Conditions, mcfgv1.KubeletConfigCondition{
			Type: kind, Status: is, Message: message, LastTransitionTime: metav1.Now(),
		})
		k, err = kubelets.UpdateStatus(w.ctx, k, metav1.UpdateOptions{})
		w.must(err)
	}
	status(mcfgv1.KubeletConfigFailure, no, "Error: maxPods must be a number")
	w.says("gate", pending, yes, "KubeletConfig/small since ", "Failure is False: Error: maxPods must be a number")
	w.always("nothing is rendered", time.Second, func() (bool, any) {
		return w.pool("gate").Spec.Configuration.Name == first, w.pool("gate").Spec.Configuration
	})
	status(mcfgv1.KubeletConfigAccepted, yes, "")
	second := w.moved("gate", first)
	w.says("gate", pending, no)

	// What a node has had can be gone back to, whatever is unfinished.
	w.addNode("gate-node", map[string]string{api.CurrentConfig: first})
	status(mcfgv1.KubeletConfigFailure, no, "Error: maxPods must be a number")
	w.says("gate", pending, yes, "KubeletConfig/small since ")
	w.put("50-gate", "gate", file("/etc/a", "1"))
	if name := w.moved("gate", second); name != first {
		w.t.Errorf("the pool has %s and not %s", name, first)
	}
	w.says("gate", pending, yes, "KubeletConfig/small since ")
	w.must(kubelets.Delete(w.ctx, "small", metav1.DeleteOptions{}))
}

func pinHolds(w *world) {
	w.addPool("pinned")
	w.put("50-pinned", "pinned", file("/etc/a", "1"))
	first := w.moved("pinned", "")
	w.annotate("pool", "pinned", map[string]any{api.HistoryKey: api.Encode([]string{first})})
	w.put("50-pinned", "pinned", file("/etc/a", "2"))
	second := w.moved("pinned", first)

	missing := "rendered-pinned-" + strings.Repeat("0", 32)
	w.annotate("pool", "pinned", map[string]any{
		api.PinKey: api.Encode(api.Pin{Config: missing, From: second, Since: time.Now()}),
	})
	w.says("pinned", degraded, yes, missing+": is not there", second)

	w.annotate("pool", "pinned", map[string]any{
		api.PinKey: api.Encode(api.Pin{Config: first, From: second, Since: time.Now()}),
	})
	if name := w.moved("pinned", second); name != first {
		w.t.Fatalf("pinned to %s, is %s", first, name)
	}
	w.says("pinned", degraded, no, "Pinned", "pinned to "+first, second)
	w.always("it stays", 3*time.Second, func() (bool, any) {
		return w.pool("pinned").Spec.Configuration.Name == first && w.config(second) != nil, w.pool("pinned").Spec
	})

	w.put("50-pinned", "pinned", file("/etc/a", "3"))
	third := w.moved("pinned", first)
	if p := w.pool("pinned"); third == second || p.Annotations[api.PinKey] != "" {
		w.t.Errorf("moved to %s with annotations %v", third, p.Annotations)
	}
	w.says("pinned", degraded, no, "Rendered")
	w.event("pinned", "PinRemoved", first, third)
}

func unneededGoes(w *world) {
	w.addPool("gc")
	w.put("50-gc", "gc", file("/etc/a", "1"))
	first := w.moved("gc", "")
	w.addNode("gc-node", map[string]string{api.CurrentConfig: first, api.DesiredConfig: first})
	w.put("50-gc", "gc", file("/etc/a", "2"))
	second := w.moved("gc", first)
	w.annotate("pool", "gc", map[string]any{api.HistoryKey: api.Encode([]string{second, first})})
	w.annotate("node", "gc-node", map[string]any{api.CurrentConfig: second, api.DesiredConfig: second,
		api.PreviousConfig: first})
	there := func() (bool, any) { return w.config(first) != nil, "gone" }
	w.always("history and a node need it", 2*retention, there)
	w.annotate("pool", "gc", map[string]any{api.HistoryKey: nil})
	w.always("a node needs it", 2*retention, there)
	w.annotate("node", "gc-node", map[string]any{api.PreviousConfig: second})
	w.until("it goes", func() (bool, any) { return w.config(first) == nil, "there" })
	if w.config(second) == nil {
		w.t.Error("what the pool has went too")
	}
	w.put("50-gc", "gc", file("/etc/a", "1"))
	if name := w.moved("gc", second); name != first {
		w.t.Errorf("going back made %s and not %s", name, first)
	}
	if ok, said := w.genuine(first); !ok {
		w.t.Error(said)
	}
}

func givenBack(w *world) {
	w.addPool("back")
	w.put("50-back", "back", file("/etc/a", "1"))
	first := w.moved("back", "")
	w.addNode("back-node", map[string]string{api.CurrentConfig: first})
	w.put("50-back", "back", file("/etc/a", "2"))
	second := w.moved("back", first)
	spec, other := w.config(first).Spec, w.config(second).Spec

	w.remove(first)
	w.always("nobody can make it of MachineConfigs", time.Second, func() (bool, any) {
		return w.config(first) == nil, "there"
	})
	w.giveBack(first, "back-node", spec)
	w.until("it is the pool's", func() (bool, any) { return owner(w.config(first)) == w.pool("back").UID, "not" })

	w.remove(first)
	w.giveBack(first, "back-node", other)
	w.until("one that lies goes", func() (bool, any) { return w.config(first) == nil, "there" })
	w.event("back", "RenderedConfigRefused", first)
}

func tampered(w *world) {
	w.addPool("liar")
	w.put("50-liar", "liar", file("/etc/a", "1"))
	name := w.moved("liar", "")
	change := func(name string) {
		w.t.Helper()
		mc := w.config(name)
		mc.Spec.KernelArguments = []string{"evil"}
		_, err := w.MachineConfigs.MachineconfigurationV1().MachineConfigs().Update(w.ctx, mc, metav1.UpdateOptions{})
		w.must(err)
		if ok, _ := w.genuine(name); ok {
			w.t.Fatal("the change is none")
		}
	}
	w.says("liar", degraded, no)
	change(name)
	w.until("it is what its name says", func() (bool, any) { return w.genuine(name) })
	w.event("liar", "RenderedConfigRefused", name)

	// One that no MachineConfigs make any more goes, for a node that has it to give back.
	w.addNode("liar-node", map[string]string{api.CurrentConfig: name})
	w.put("50-liar", "liar", file("/etc/a", "2"))
	w.moved("liar", name)
	change(name)
	w.until("it goes", func() (bool, any) { return w.config(name) == nil, "there" })
}

// lingers has somebody make an object under the name of what a pool is about to render, so that it can't be deleted.
func lingers(w *world) {
	w.addPool("stay")
	w.put("50-stay", "stay", file("/etc/a", "1"))
	first := w.moved("stay", "")
	w.put("50-stay", "stay", file("/etc/a", "2"))
	second := w.moved("stay", first)
	w.until("nothing needs it", func() (bool, any) { return w.config(first) == nil, "there" })

	mcs := w.MachineConfigs.MachineconfigurationV1().MachineConfigs()
	_, err := mcs.Create(w.ctx, &mcfgv1.MachineConfig{
		ObjectMeta: metav1.ObjectMeta{Name: first, Finalizers: []string{"example.com/stay"}}, Spec: file("/etc/a", "evil"),
	}, metav1.CreateOptions{})
	w.must(err)
	w.put("50-stay", "stay", file("/etc/a", "1"))
	w.says("stay", degraded, yes, "PublishFailed", first, "being deleted", "example.com/stay")
	if name := w.pool("stay").Spec.Configuration.Name; name != second {
		w.t.Errorf("the pool has %s and did not keep %s", name, second)
	}

	_, err = mcs.Patch(w.ctx, first, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`),
		metav1.PatchOptions{})
	w.must(err)
	if name := w.moved("stay", second); name != first {
		w.t.Errorf("the pool has %s and not %s", name, first)
	}
	w.says("stay", degraded, no)
	if ok, said := w.genuine(first); !ok {
		w.t.Error(said)
	}
}

func deletedPool(w *world) {
	w.addPool("left")
	w.put("50-left", "left", file("/etc/a", "1"))
	name := w.moved("left", "")
	spec := w.config(name).Spec
	w.addNode("left-node", map[string]string{api.CurrentConfig: name})
	w.must(w.MachineConfigs.MachineconfigurationV1().MachineConfigPools().Delete(w.ctx, "left", metav1.DeleteOptions{}))
	w.until("it goes with its owner", func() (bool, any) { return w.config(name) == nil, "there" })
	w.giveBack(name, "left-node", spec)
	w.always("a node needs it", 3*retention, func() (bool, any) { return w.config(name) != nil, "gone" })

	w.addPool("left")
	w.until("a new pool has it", func() (bool, any) { return owner(w.config(name)) == w.pool("left").UID, "not" })
	w.must(w.MachineConfigs.MachineconfigurationV1().MachineConfigPools().Delete(w.ctx, "left", metav1.DeleteOptions{}))
	w.until("it goes with its owner", func() (bool, any) { return w.config(name) == nil, "there" })
	w.giveBack(name, "left-node", spec)
	w.must(w.Client.CoreV1().Nodes().Delete(w.ctx, "left-node", metav1.DeleteOptions{}))
	w.until("nobody needs it", func() (bool, any) { return w.config(name) == nil, "there" })
}

func othersSurvive(w *world) {
	w.addPool("both")
	w.put("50-both", "both", file("/etc/a", "1"))
	w.moved("both", "")
	pools := w.MachineConfigs.MachineconfigurationV1().MachineConfigPools()
	var busy sync.WaitGroup
	busy.Go(func() {
		for i := range 40 {
			for {
				p, err := pools.Get(w.ctx, "both", metav1.GetOptions{})
				if err != nil {
					w.t.Error(err)
					return
				}
				p.Status.Conditions = append(p.Status.Conditions, mcfgv1.MachineConfigPoolCondition{
					Type: mcfgv1.MachineConfigPoolConditionType(fmt.Sprintf("Other%d", i)), Status: yes,
				})
				if _, err = pools.UpdateStatus(w.ctx, p, metav1.UpdateOptions{}); err == nil {
					break
				} else if !apierrors.IsConflict(err) {
					w.t.Error(err)
					return
				}
			}
		}
	})
	for i := range 5 {
		w.put("60-both", "both", mcfgv1.MachineConfigSpec{KernelType: "fast"})
		w.says("both", degraded, yes, "spec.kernelType")
		w.put("60-both", "both", file("/etc/b", fmt.Sprint(i)))
		w.says("both", degraded, no)
	}
	busy.Wait()
	if conditions := w.pool("both").Status.Conditions; len(conditions) != 44 {
		w.t.Errorf("%d conditions are left: %v", len(conditions), conditions)
	}
}

func TestAClusterWithoutTheOptionalKindsWorksAndTheyAreSeenWhenTheyCome(t *testing.T) {
	w := begin(t, cluster.Options{Without: []string{
		"controllerconfigs", "kubeletconfigs", "containerruntimeconfigs", "machineconfigurations", "machineconfignodes",
		"imagedigestmirrorsets", "imagetagmirrorsets", "imagecontentsourcepolicies", "images", "clusterimagepolicies",
		"imagepolicies",
	}})
	w.control(disruptionPolicies)
	w.addPool("plain")
	w.put("50-plain", "plain", file("/etc/a", "1"))
	first := w.moved("plain", "")
	w.put("60-plain", "plain", mcfgv1.MachineConfigSpec{FIPS: true})
	w.says("plain", degraded, yes, "MachineConfig/60-plain: fips")
	w.remove("60-plain")
	w.says("plain", degraded, no)

	text, err := api.CRDs.ReadFile("crds/controllerconfigs.yaml")
	w.must(err)
	controllerConfigs := &apiextensionsv1.CustomResourceDefinition{}
	w.must(yaml.Unmarshal(text, controllerConfigs))
	client, err := apiextensions.NewForConfig(w.Config)
	w.must(err)
	_, err = client.ApiextensionsV1().CustomResourceDefinitions().Create(w.ctx, controllerConfigs, metav1.CreateOptions{})
	w.must(err)
	w.addControllerConfig("registry.example/os@sha256:1")
	w.put("50-plain", "plain", file("/etc/a", "2"))
	second := w.moved("plain", first)
	w.until("the default image is in it", func() (bool, any) {
		second = w.pool("plain").Spec.Configuration.Name
		image := w.config(second).Spec.OSImageURL
		return image == "registry.example/os@sha256:1", image
	})
	w.put("60-plain", "plain", mcfgv1.MachineConfigSpec{OSImageURL: "registry.example/own@sha256:2"})
	third := w.moved("plain", second)
	if w.config(third).Annotations["machineconfiguration.openshift.io/os-image-url-overridden"] != "true" {
		t.Errorf("annotations: %v", w.config(third).Annotations)
	}
	w.event("plain", "OSImageURLOverridden", third, "registry.example/os@sha256:1", "registry.example/own@sha256:2")
}

// addControllerConfig adds the smallest ControllerConfig that the schema takes. It is written by hand because the
// object of the Go type has empty fields that the schema does not.
func (w *world) addControllerConfig(image string) {
	w.t.Helper()
	var object map[string]any
	w.must(json.Unmarshal([]byte(`{
		"apiVersion": "machineconfiguration.openshift.io/v1", "kind": "ControllerConfig",
		"metadata": {"name": "machine-config-controller"},
		"spec": {
			"additionalTrustBundle": null, "baseOSContainerImage": "`+image+`", "cloudProviderCAData": null,
			"cloudProviderConfig": "", "clusterDNSIP": "10.0.0.10", "images": {}, "ipFamilies": "IPv4",
			"kubeAPIServerServingCAData": "YQ==", "osImageURL": "", "releaseImage": "", "rootCAData": "YQ==", "proxy": null,
			"network": null, "dns": null, "infra": null, "internalRegistryPullSecret": null
		}
	}`), &object))
	client, err := dynamic.NewForConfig(w.Config)
	w.must(err)
	resource := client.Resource(schema.GroupVersionResource{
		Group: "machineconfiguration.openshift.io", Version: "v1", Resource: "controllerconfigs",
	})
	w.until("the ControllerConfig is taken", func() (bool, any) {
		_, err := resource.Create(w.ctx, &unstructured.Unstructured{Object: object}, metav1.CreateOptions{})
		return err == nil, err
	})
}

// Nodes watch their configurations and not their pool: what it says about drift comes to them by these.
func carriesDriftPolicy(w *world) {
	w.addPool("drifts")
	w.put("50-drifts", "drifts", file("/etc/a", "1"))
	first := w.moved("drifts", "")
	policy := func(name string) string { return w.config(name).Annotations[api.DriftPolicyKey] }
	if got := policy(first); got != "" {
		w.t.Errorf("by default: %s", got)
	}
	w.annotate("machineconfigpools", "drifts", map[string]any{api.DriftPolicyKey: "repair"})
	w.until("it is carried", func() (bool, any) { return policy(first) == `{"policy":"repair"}`, policy(first) })
	if now := w.pool("drifts").Spec.Configuration.Name; now != first {
		w.t.Errorf("another policy is another configuration: %s", now)
	}
	if ok, said := w.genuine(first); !ok {
		w.t.Errorf("it is not what its name says any more: %v", said)
	}
	// A new one has it from its beginning, the old one still.
	w.put("50-drifts", "drifts", file("/etc/a", "2"))
	second := w.moved("drifts", first)
	for _, name := range []string{first, second} {
		if got := policy(name); got != `{"policy":"repair"}` {
			w.t.Errorf("%s: %q", name, got)
		}
	}
	// One that can't be read is taken with care, on all of them.
	w.annotate("machineconfigpools", "drifts", map[string]any{api.DriftPolicyKey: "heal"})
	for _, name := range []string{first, second} {
		w.until("care is taken", func() (bool, any) {
			return policy(name) == `{"policy":"report","updates":"strict"}`, policy(name)
		})
	}
	w.annotate("machineconfigpools", "drifts", map[string]any{api.DriftPolicyKey: nil})
	w.until("it is gone", func() (bool, any) { return policy(second) == "", policy(second) })
}

func namesValues(w *world) {
	w.addPool("valued")
	w.put("50-valued", "valued", file("/etc/rack", "@%7Bword:labels/rack%7D"))
	plain := w.moved("valued", "")
	named := func() api.NamedValues {
		v, err := api.Decode[api.NamedValues](w.pool("valued").Annotations, api.NamedValuesKey)
		w.must(err)
		return v
	}
	if v := named(); v.Config != "" {
		w.t.Errorf("nobody asked for placeholders, and there is %v", v)
	}
	w.annotate("machineconfigs", "50-valued", map[string]any{"noderefit.dev/placeholders": "true"})
	name := w.moved("valued", plain)
	if v := named(); v.Config != name || len(v.Values) != 1 || v.Values[0] != "word:labels/rack" {
		w.t.Errorf("%s names %v", name, v)
	}
	if ok, said := w.genuine(name); !ok {
		w.t.Errorf("it is not what its name says: %v", said)
	}
	w.annotate("machineconfigs", "50-valued", map[string]any{"noderefit.dev/placeholders": nil})
	if again := w.moved("valued", name); again != plain || named().Config != "" {
		w.t.Errorf("back at %s, not %s, which names %v", again, plain, named())
	}
	// A value that can't be quoted where it stands is refused here.
	w.put("50-valued", "valued", file("/etc/rack", "@%7Btext:labels/rack%7D"))
	w.annotate("machineconfigs", "50-valued", map[string]any{"noderefit.dev/placeholders": "true"})
	w.says("valued", degraded, yes, "50-valued", "/etc/rack", "use the type word")
}
