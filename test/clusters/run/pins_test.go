// SPDX-License-Identifier: Apache-2.0

package run

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/pins"
	"github.com/noderefit/noderefit/test/lab/cluster"
	"github.com/noderefit/noderefit/test/lab/fakeruntime"
)

func pinnable(letter string) string {
	return "quay.io/shop/" + letter + "@sha256:" + strings.Repeat(letter, 64)
}

// withRuntime gives the node a runtime, and starts its head anew with that.
func (n *node) withRuntime() *fakeruntime.Runtime {
	n.t.Helper()
	root, err := os.MkdirTemp("", "pins") // a socket's path may not be long
	n.must(err)
	n.t.Cleanup(func() { _ = os.RemoveAll(root) })
	n.must(os.MkdirAll(root+"/var", 0o755))
	runtime, err := fakeruntime.Start(root)
	n.must(err)
	n.t.Cleanup(runtime.Close)
	host, err := pins.New(root)
	n.must(err)
	n.t.Cleanup(func() {
		n.kill()
		_ = host.Close()
	})
	_, err = n.Client.CoreV1().Nodes().Patch(n.ctx(), n.name, types.MergePatchType,
		[]byte(`{"status":{"nodeInfo":{"containerRuntimeVersion":"containerd://2.0"}}}`), metav1.PatchOptions{}, "status")
	n.must(err)
	n.until("the node says its runtime", func() bool {
		return n.get().Status.NodeInfo.ContainerRuntimeVersion == "containerd://2.0"
	})
	n.kill()
	n.pinner = host
	n.start()
	return runtime
}

// set makes or changes a PinnedImageSet.
func (n *node) set(name string, images ...string) *mcfgv1.PinnedImageSet {
	n.t.Helper()
	sets := n.MachineConfigs.MachineconfigurationV1().PinnedImageSets()
	set := &mcfgv1.PinnedImageSet{ObjectMeta: metav1.ObjectMeta{Name: name}}
	old, err := sets.Get(n.ctx(), name, metav1.GetOptions{})
	if err == nil {
		set = old
	} else if !apierrors.IsNotFound(err) {
		n.t.Fatal(err)
	}
	set.Spec.PinnedImages = nil
	for _, image := range images {
		set.Spec.PinnedImages = append(set.Spec.PinnedImages, mcfgv1.PinnedImageRef{Name: mcfgv1.ImageDigestFormat(image)})
	}
	if old.ResourceVersion == "" {
		set, err = sets.Create(n.ctx(), set, metav1.CreateOptions{})
	} else {
		set, err = sets.Update(n.ctx(), set, metav1.UpdateOptions{})
	}
	n.must(err)
	return set
}

// pins does what the pinnedimages controller does.
func (n *node) pins(pull bool, sets ...*mcfgv1.PinnedImageSet) *api.PinOrder {
	n.t.Helper()
	o := &api.PinOrder{Sets: []api.PinnedSet{}, Pull: pull, Since: time.Now().UTC().Truncate(time.Second), MinFreeMebibytes: 1}
	for _, set := range sets {
		o.Sets = append(o.Sets, api.NewPinnedSet(set))
	}
	n.patch(`{"metadata":{"annotations":{%q:%q}}}`, api.PinOrderKey, api.Encode(o))
	return o
}

// pinned waits until the node says that it has all images of an order, while it serves.
func (n *node) pinned(o *api.PinOrder) {
	n.t.Helper()
	n.wait("one that has all its images", func(object *corev1.Node, a api.Node) bool {
		return a.Pinned.Keeps(o) && a.State == api.Done && !object.Spec.Unschedulable
	})
}

func (n *node) statusOf(set string) (out mcfgv1.MachineConfigNodeStatusPinnedImageSet) {
	object, err := n.MachineConfigs.MachineconfigurationV1().MachineConfigNodes().Get(n.ctx(), n.name, metav1.GetOptions{})
	if err != nil {
		return out
	}
	for _, s := range object.Status.PinnedImageSets {
		if s.Name == set {
			out = s
		}
	}
	return out
}

func TestPins(t *testing.T) {
	n := newNode(t)
	runtime := n.withRuntime()
	a, b, c := pinnable("a"), pinnable("b"), pinnable("c")
	runtime.Offer(a, b)
	base := n.set(n.name, a, b)

	o := n.pins(false, base)
	n.wait("one that waits for its turn", func(_ *corev1.Node, is api.Node) bool {
		return is.Pinned.About(o) && is.Pinned.Missing == 2 && is.Pinned.Error == ""
	})
	if runtime.Asked("PullImage") > 0 || n.mcn(mcfgv1.MachineConfigNodePinnedImageSetsProgressing).Status != metav1.ConditionTrue {
		t.Error("before its turn the node pulls, or does not say that images are missing")
	}
	n.pinned(n.pins(true, base))
	n.waitEvent("ImagesPinned", "All 2 images")
	n.until("the MachineConfigNode has the generation", func() bool {
		return n.statusOf(n.name) == mcfgv1.MachineConfigNodeStatusPinnedImageSet{Name: n.name, CurrentGeneration: 1, DesiredGeneration: 1}
	})
	for _, image := range []string{a, b} {
		if l := runtime.Labels(image); l["io.cri-containerd.pinned"] != "pinned" || l["noderefit.dev/pinned"] != "true" {
			t.Errorf("%s has the labels %v", image, l)
		}
	}

	// Another head finds all as it is, and pulls what was removed meanwhile.
	runtime.Remove(a)
	pulls := runtime.Asked("PullImage")
	n.restart()
	n.until("the image is back", func() bool { return runtime.Labels(a)["noderefit.dev/pinned"] == "true" })
	if got := runtime.Asked("PullImage") - pulls; got != 1 {
		t.Errorf("%d images were pulled", got)
	}

	// One that can't be pulled is named, and the node serves.
	base = n.set(n.name, a, c)
	o = n.pins(true, base)
	n.wait("one that names what failed", func(object *corev1.Node, is api.Node) bool {
		return is.Pinned.Fails(o) && is.Pinned.Missing == 1 && strings.Contains(is.Pinned.Error, c+": pulling it: ") &&
			strings.Contains(is.Pinned.Error, "not found") && is.State == api.Done && !object.Spec.Unschedulable
	})
	n.waitEvent("PinningFailed", c)
	n.until("the MachineConfigNode names it", func() bool {
		s := n.statusOf(n.name)
		return s.CurrentGeneration == 1 && s.DesiredGeneration == 2 && s.LastFailedGeneration == 2 &&
			strings.Contains(s.LastFailedGenerationError, "not found") &&
			n.mcn(mcfgv1.MachineConfigNodePinnedImageSetsDegraded).Status == metav1.ConditionTrue
	})
	if l := runtime.Labels(b); l == nil || len(l) != 1 {
		t.Errorf("what is not wanted any more has the labels %v", l)
	}
	// A floor that the disk does not have.
	o.MinFreeMebibytes = 1 << 24
	o.Pull, o.Sets = true, append(o.Sets[:0:0], api.NewPinnedSet(n.set(n.name, a, b, c)))
	runtime.Remove(b)
	n.patch(`{"metadata":{"annotations":{%q:%q}}}`, api.PinOrderKey, api.Encode(o))
	n.wait("one below the floor", func(_ *corev1.Node, is api.Node) bool {
		return is.Pinned.Fails(o) && strings.Contains(is.Pinned.Error, "have to stay free on the file system of /var")
	})
}

func TestPinsStay(t *testing.T) {
	n := newNode(t)
	runtime := n.withRuntime()
	a, b, c := pinnable("a"), pinnable("b"), pinnable("c")
	runtime.Offer(a, b, c)
	base := n.set(n.name, a)
	n.pinned(n.pins(true, base))

	// A set that can't be read takes nothing back: it went with its definition, or the API server is away.
	gone := *base
	gone.Name += "-gone"
	labelled := runtime.Asked("Update")
	n.pins(true, &gone)
	n.until("the set that is gone was asked for", func() bool {
		return slices.ContainsFunc(n.requests(), func(r cluster.Request) bool {
			return r.Verb == "get" && r.Object.Resource == "pinnedimagesets" && r.Object.Name == gone.Name
		})
	})
	n.pinned(n.pins(true, n.set(n.name, a, c)))
	if got := runtime.Asked("Update") - labelled; got != 1 {
		t.Errorf("labels were changed %d times, for one image more", got)
	}
	n.patch(`{"metadata":{"annotations":{%q:null}}}`, api.PinOrderKey)
	n.wait("one that says nothing", func(_ *corev1.Node, is api.Node) bool { return is.Pinned == nil })
	if l := runtime.Labels(a); l["noderefit.dev/pinned"] != "true" {
		t.Errorf("without an order the image has the labels %v", l)
	}

	// An update comes first: a pull that is under way ends, and begins anew behind it.
	goOn := runtime.Hold()
	defer goOn()
	base = n.set(n.name, a, b)
	o := n.pins(true, base)
	n.until("the pull has begun", func() bool { return runtime.Asked("PullImage") == 3 })
	config := n.render([]string{"quiet"}, "b")
	n.desire(config)
	n.waitState(api.Done, config)
	goOn()
	n.pinned(o)

	// With an order for no sets the node lets go of its images, and deletes none.
	n.pinned(n.pins(true))
	for _, image := range []string{a, b} {
		if l := runtime.Labels(image); l == nil || l["noderefit.dev/pinned"] != "" || l["io.cri-containerd.pinned"] != "" {
			t.Errorf("%s has the labels %v", image, l)
		}
	}
	runtime.Close()
	o = n.pins(true, base)
	n.wait("one that names its runtime", func(_ *corev1.Node, is api.Node) bool {
		return is.Pinned.Fails(o) && is.Pinned.Missing == 2 && strings.Contains(is.Pinned.Error, "containerd")
	})
}
