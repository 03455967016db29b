// SPDX-License-Identifier: Apache-2.0

package render

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/controller/kubeletconfig"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/test/lab/cluster"
)

const (
	kubeletConf = "/etc/kubernetes/kubelet.conf"
	kubeletBase = "%7B%22kind%22:%22KubeletConfiguration%22,%22apiVersion%22:%22kubelet.config.k8s.io%2Fv1beta1%22," +
		"%22maxPods%22:250%7D"
)

// putKubelet makes a KubeletConfig for a pool, or changes it.
func (w *world) putKubelet(name, pool, config string) {
	w.t.Helper()
	text := fmt.Sprintf(`{"apiVersion":"machineconfiguration.openshift.io/v1","kind":"KubeletConfig",
		"metadata":{"name":%q},
		"spec":{"machineConfigPoolSelector":{"matchLabels":{"pool":%q}},"kubeletConfig":%s}}`, name, pool, config)
	_, err := w.MachineConfigs.MachineconfigurationV1().KubeletConfigs().Patch(w.ctx, name, types.ApplyPatchType,
		[]byte(text), metav1.PatchOptions{FieldManager: "test", Force: new(true)})
	w.must(err)
}

// kubeletSays waits until the last condition of a KubeletConfig has a status and says all of these words.
func (w *world) kubeletSays(name string, is corev1.ConditionStatus, words ...string) *mcfgv1.KubeletConfig {
	w.t.Helper()
	var k *mcfgv1.KubeletConfig
	w.until(fmt.Sprintf("KubeletConfig %s says %s %q", name, is, words), func() (bool, any) {
		var err error
		k, err = w.MachineConfigs.MachineconfigurationV1().KubeletConfigs().Get(w.ctx, name, metav1.GetOptions{})
		w.must(err)
		if len(k.Status.Conditions) == 0 || k.Status.ObservedGeneration < k.Generation {
			return false, k.Status
		}
		last := k.Status.Conditions[len(k.Status.Conditions)-1]
		return last.Type == mcfgv1.KubeletConfigAccepted && last.Status == is &&
			!slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(last.Message, word) }), k.Status
	})
	return k
}

// rendered waits until a file in what a pool is rendered to has these words, and not those.
func (w *world) rendered(pool, path string, words []string, without ...string) {
	w.t.Helper()
	w.until(fmt.Sprintf("%s of pool %s has %q and not %q", path, pool, words, without), func() (bool, any) {
		name := w.pool(pool).Spec.Configuration.Name
		if name == "" {
			return false, "nothing is rendered"
		}
		mc := w.config(name)
		if mc == nil {
			return false, name + " is gone"
		}
		c, err := machineconfig.Parse(mc)
		w.must(err)
		for _, f := range c.Files {
			if f.Path == path {
				has := func(word string) bool { return strings.Contains(string(f.Contents), word) }
				return !slices.ContainsFunc(words, func(s string) bool { return !has(s) }) &&
					!slices.ContainsFunc(without, has), string(f.Contents)
			}
		}
		return len(words) == 0, "it is not there"
	})
}

func TestKubeletConfigs(t *testing.T) { //nolint:tparallel // a control plane is enough for one machine
	w := begin(t, cluster.Options{Controllers: true})
	w.control(kubeletconfig.Add)
	for name, test := range map[string]func(*world){
		"TheyReachThePoolAndGo":              reachesThePool,
		"AWrongOneSaysSoAndHoldsNothingUp":   wrongHoldsNothingUp,
		"SeveralMergeAndReachSeveralPools":   severalMerge,
		"WhatSomebodyElseMadeIsTheirs":       foreignStays,
		"AnUpdateOfThePoolIsRenderedOnce":    renderedOnce,
		"AHostOfKubeadmsKeepsItsCredentials": kubeadms,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(w.in(t))
		})
	}
}

func reachesThePool(w *world) {
	w.addPool("kc")
	w.put("01-kc-kubelet", "kc", file(kubeletConf, kubeletBase))
	first := w.moved("kc", "")
	w.putKubelet("kc", "kc", `{"protectKernelDefaults":false,"registryPullQPS":0}`)
	k := w.kubeletSays("kc", yes)
	name := "99-kc-generated-kubelet"
	if !slices.Equal(k.Finalizers, []string{name}) || k.Annotations[api.NameSuffix] != "" {
		w.t.Errorf("%+v", k.ObjectMeta)
	}
	w.rendered("kc", kubeletConf, []string{`"maxPods": 250`, `"protectKernelDefaults": false`, `"registryPullQPS": 0`})
	w.says("kc", pending, no)
	w.says("kc", degraded, no)
	sources := w.pool("kc").Spec.Configuration.Source
	if !slices.ContainsFunc(sources, func(r corev1.ObjectReference) bool { return r.Name == name }) {
		w.t.Errorf("the pool is made of %v", sources)
	}
	mc := w.config(name)
	if owner(mc) != k.UID || mc.Annotations[api.GeneratedBy] != testVersion {
		w.t.Errorf("%+v", mc.ObjectMeta)
	}
	w.remove(name)
	w.until("it is made again", func() (bool, any) { return w.config(name) != nil, "gone" })

	w.must(w.MachineConfigs.MachineconfigurationV1().KubeletConfigs().Delete(w.ctx, "kc", metav1.DeleteOptions{}))
	w.until("it is gone", func() (bool, any) {
		_, err := w.MachineConfigs.MachineconfigurationV1().KubeletConfigs().Get(w.ctx, "kc", metav1.GetOptions{})
		return apierrors.IsNotFound(err) && w.config(name) == nil, err
	})
	w.until("the pool is back", func() (bool, any) {
		return w.pool("kc").Spec.Configuration.Name == first, w.pool("kc").Spec.Configuration
	})
}

func wrongHoldsNothingUp(w *world) {
	w.addPool("wrong")
	w.put("50-wrong", "wrong", file("/etc/a", "1"))
	w.moved("wrong", "")
	w.putKubelet("wrong", "wrong", `{"maxPods":99}`)
	w.kubeletSays("wrong", yes)
	const dropin = "/etc/kubernetes/kubelet.conf.d/90-kubeletconfig.conf"
	w.rendered("wrong", dropin, []string{`"maxPods": 99`})

	w.putKubelet("wrong", "wrong", `{"maxPodz":5,"syncFrequency":"soon"}`)
	w.kubeletSays("wrong", no, `spec.kubeletConfig: unknown field "maxPodz"`, "spec.kubeletConfig: syncFrequency: ")
	w.says("wrong", pending, yes, api.PartRefused, "KubeletConfig/wrong since ", `unknown field "maxPodz"`)
	w.shows("noderefit_pool_render_pending", "wrong", 1)
	w.put("50-wrong", "wrong", file("/etc/a", "2"))
	w.rendered("wrong", "/etc/a", []string{"2"})
	w.rendered("wrong", dropin, []string{`"maxPods": 99`})
	w.says("wrong", degraded, no)

	w.putKubelet("wrong", "wrong", `{"maxPods":98}`)
	w.kubeletSays("wrong", yes)
	w.rendered("wrong", dropin, []string{`"maxPods": 98`})
	w.says("wrong", pending, no)
}

func severalMerge(w *world) {
	for _, pool := range []string{"several", "other"} {
		w.addPool(pool)
		w.put("01-"+pool+"-kubelet", pool, file(kubeletConf, kubeletBase))
	}
	_, err := w.MachineConfigs.MachineconfigurationV1().MachineConfigPools().Patch(w.ctx, "other", types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"pool":"several"}}}`), metav1.PatchOptions{})
	w.must(err)
	w.putKubelet("b-several", "several", `{"podPidsLimit":4096,"maxPods":100}`)
	w.kubeletSays("b-several", yes)
	w.putKubelet("a-several", "several", `{"maxPods":50}`)
	if k := w.kubeletSays("a-several", yes); k.Annotations[api.NameSuffix] != "1" {
		w.t.Errorf("it stands at %v", k.Annotations)
	}
	for _, pool := range []string{"several", "other"} {
		w.rendered(pool, kubeletConf, []string{`"maxPods": 50`, `"podPidsLimit": 4096`})
	}
	w.putKubelet("b-several", "several", `{"podPidsLimit":1024}`)
	w.rendered("several", kubeletConf, []string{`"maxPods": 50`, `"podPidsLimit": 1024`})
	_, err = w.MachineConfigs.MachineconfigurationV1().MachineConfigPools().Patch(w.ctx, "other", types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"pool":"other"}}}`), metav1.PatchOptions{})
	w.must(err)
	w.rendered("other", kubeletConf, []string{`"maxPods":250`}, "podPidsLimit")
	w.until("its finalizer is gone with it", func() (bool, any) {
		k := w.kubeletSays("a-several", yes)
		return slices.Equal(k.Finalizers, []string{"99-several-generated-kubelet-1"}), k.Finalizers
	})
}

func foreignStays(w *world) {
	w.addPool("foreign")
	w.put("99-foreign-generated-kubelet", "foreign", file("/etc/a", "theirs"))
	w.moved("foreign", "")
	w.putKubelet("foreign", "foreign", `{"maxPods":99}`)
	w.kubeletSays("foreign", no, "MachineConfig/99-foreign-generated-kubelet", "rename or delete it")
	w.rendered("foreign", "/etc/a", []string{"theirs"})
	w.remove("99-foreign-generated-kubelet")
	w.kubeletSays("foreign", yes)
}

// renderedOnce changes a KubeletConfig and what it comes on top of together.
func renderedOnce(w *world) {
	w.addPool("once")
	w.put("01-once-kubelet", "once", file(kubeletConf, kubeletBase))
	w.moved("once", "")
	w.putKubelet("once", "once", `{"podPidsLimit":4096}`)
	w.kubeletSays("once", yes)
	w.rendered("once", kubeletConf, []string{`"maxPods": 250`, "4096"})
	before := w.pool("once").Spec.Configuration.Name
	w.put("01-once-kubelet", "once", file(kubeletConf, strings.Replace(kubeletBase, "250", "240", 1)))
	w.putKubelet("once", "once", `{"podPidsLimit":1024}`)
	after := w.moved("once", before)
	w.rendered("once", kubeletConf, []string{`"maxPods": 240`, "1024"})
	if now := w.pool("once").Spec.Configuration.Name; now != after {
		w.t.Errorf("it was rendered to %s first", after)
	}
}

func kubeadms(w *world) {
	w.addPool("kubeadm")
	w.put("50-kubeadm", "kubeadm", file(kubeletConf, "%7B%22kind%22:%22Config%22,%22apiVersion%22:%22v1%22%7D"))
	w.putKubelet("kubeadm", "kubeadm", `{"maxPods":99}`)
	w.kubeletSays("kubeadm", no, "MachineConfig/50-kubeadm", "kind has to be KubeletConfiguration")
	w.rendered("kubeadm", kubeletConf, []string{`"Config"`})
}

func TestAClusterWithoutKubeletConfigsIsServedAllTheSame(t *testing.T) {
	w := begin(t, cluster.Options{})
	client, err := apiextensions.NewForConfig(w.Config)
	w.must(err)
	crds := client.ApiextensionsV1().CustomResourceDefinitions()
	const name = "kubeletconfigs.machineconfiguration.openshift.io"
	w.must(crds.Delete(w.ctx, name, metav1.DeleteOptions{}))
	w.until(name+" is gone", func() (bool, any) {
		_, err := crds.Get(w.ctx, name, metav1.GetOptions{})
		return apierrors.IsNotFound(err), err
	})
	stop := w.control(kubeletconfig.Add)
	w.addPool("plain")
	w.put("50-plain", "plain", file("/etc/a", "1"))
	w.moved("plain", "")
	stop()
}
