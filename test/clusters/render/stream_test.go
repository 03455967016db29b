// SPDX-License-Identifier: Apache-2.0

package render

import (
	"fmt"
	"strings"
	"testing"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/noderefit/noderefit/test/lab/cluster"
)

func TestAPoolsOSImageStreamIsTheBaseOfItsConfiguration(t *testing.T) {
	w := begin(t, cluster.Options{})
	image := func(name string) mcfgv1.ImageDigestFormat {
		return mcfgv1.ImageDigestFormat(fmt.Sprintf("r.example/%s@sha256:%s", name, strings.Repeat("a", 64)))
	}
	streams := w.MachineConfigs.MachineconfigurationV1().OSImageStreams()
	made, err := streams.Create(w.ctx, &mcfgv1.OSImageStream{
		ObjectMeta: metav1.ObjectMeta{Name: "cluster"}, Spec: mcfgv1.OSImageStreamSpec{DefaultStream: "old"},
	}, metav1.CreateOptions{})
	w.must(err)
	made.Status = mcfgv1.OSImageStreamStatus{DefaultStream: "old", AvailableStreams: []mcfgv1.OSImageStreamSet{
		{Name: "old", OSImage: image("old"), OSExtensionsImage: image("old-extensions")},
		{Name: "new", OSImage: image("new"), OSExtensionsImage: image("new-extensions")},
	}}
	_, err = streams.UpdateStatus(w.ctx, made, metav1.UpdateOptions{})
	w.must(err)
	w.addPool("worker")
	w.put("50-worker", "worker", file("/etc/motd", "hello"))
	w.control()
	images := func(name string) string {
		spec := w.config(name).Spec
		return spec.OSImageURL + " " + spec.BaseOSExtensionsContainerImage
	}
	named := func(stream string) {
		patch := fmt.Sprintf(`{"spec":{"osImageStream":{"name":%q}}}`, stream)
		_, err := w.MachineConfigs.MachineconfigurationV1().MachineConfigPools().Patch(w.ctx, "worker", types.MergePatchType,
			[]byte(patch), metav1.PatchOptions{})
		w.must(err)
	}
	c, cluster := w.objects(), metav1.ObjectMeta{Name: "cluster"}
	offline := func() {
		w.offline(c, "worker", &mcfgv1.OSImageStream{ObjectMeta: cluster},
			&mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: "worker"}})
	}
	before := w.moved("worker", "")
	offline()
	if got := images(before); got != fmt.Sprint(image("old"), " ", image("old-extensions")) {
		t.Errorf("by the default stream: %s", got)
	}
	named("new")
	after := w.moved("worker", before)
	if got := images(after); got != fmt.Sprint(image("new"), " ", image("new-extensions")) {
		t.Errorf("by its own stream: %s", got)
	}
	offline()
	named("none")
	w.says("worker", mcfgv1.MachineConfigPoolRenderDegraded, corev1.ConditionTrue, "NoSuchOSImageStream", `"none"`, "old, new")
	if now := w.pool("worker").Spec.Configuration.Name; now != after {
		t.Errorf("the pool has %s, and had %s", now, after)
	}
	named("new")
	w.says("worker", mcfgv1.MachineConfigPoolRenderDegraded, corev1.ConditionFalse)
}
