// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"fmt"
	"strings"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
)

const pinnedSets = "pinnedimagesets"

// pinnedSet makes a PinnedImageSet of the pool worker, and returns what the API server says.
func (l *lab) pinnedSet(name string, images ...string) error {
	l.t.Helper()
	set := &mcfgv1.PinnedImageSet{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{api.Role: "worker"}}}
	for _, image := range images {
		set.Spec.PinnedImages = append(set.Spec.PinnedImages, mcfgv1.PinnedImageRef{Name: mcfgv1.ImageDigestFormat(image)})
	}
	_, err := l.MachineConfigs.MachineconfigurationV1().PinnedImageSets().Create(l.ctx, set, metav1.CreateOptions{})
	return err
}

// pulls does what the agent of a node does with its order.
func (l *lab) pulls(node string, missing int, why string) {
	l.t.Helper()
	o := l.stand(node).Pins
	if o == nil {
		l.t.Fatalf("node %s has no order", node)
	}
	l.mustPatchNode(node, fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, api.PinnedKey, api.Encode(api.Pinned{
		Order: o.Digest(), Images: len(o.Sets), Missing: missing, Error: why, Since: time.Now().UTC().Truncate(time.Second)})))
}

func (l *lab) mayPull() (out []string) {
	l.t.Helper()
	for _, name := range []string{"w-0", "w-1"} {
		if o := l.stand(name).Pins; o != nil && o.Pull {
			out = append(out, name)
		}
	}
	return out
}

func TestARolloutWaitsForPinnedImagesAndNotForEver(t *testing.T) {
	l := newLab(t)
	image := "quay.io/shop/a@sha256:" + strings.Repeat("a", 64)
	for _, name := range []string{"w-0", "w-1"} {
		l.node(name, "worker", "rendered-worker-a")
		l.reports(name)
	}
	l.pool("worker", "rendered-worker-a", maxUnavailable("2"), func(p *mcfgv1.MachineConfigPool) {
		p.Spec.MachineConfigSelector = &metav1.LabelSelector{MatchLabels: map[string]string{api.Role: "worker"}}
	})
	l.mustPolicy("pinned", `{"pools":["worker"],"staging":{"minFreeMebibytes":512,"waitForPinnedImages":{"timeoutSeconds":7200}}}`)
	for _, bad := range []string{"quay.io/shop/a:latest", "a@sha256:" + strings.Repeat("a", 64), "quay.io/a@sha256:abc"} {
		if err := l.pinnedSet("bad", bad); err == nil {
			t.Errorf("%s is taken for an image by digest", bad)
		}
	}
	if err := l.pinnedSet("base", image); err != nil {
		t.Fatal(err)
	}
	l.alone("--controllers=pool,pinnedimages")
	l.until("one node may pull", func() bool { return fmt.Sprint(l.mayPull()) == "[w-0]" && l.stand("w-1").Pins != nil })
	if o := l.stand("w-0").Pins; o.MinFreeMebibytes != 512 || len(o.Sets) != 1 || o.Sets[0].Name != "base" {
		t.Errorf("the node is told %+v", o)
	}

	l.target("worker", configB)
	l.explained("node/w-1", "StagingAhead", "")
	l.pulls("w-0", 0, "")
	l.proves("w-0", configB)
	l.until("the next node may pull", func() bool { return len(l.mayPull()) == 2 })
	l.pulls("w-1", 1, image+": pulling it: no route to host")
	l.explained("node/w-1", "CannotStage", "1 of 1 images are missing (tries: 1): "+image+": pulling it: no route to host")
	l.until("the pool names the node", func() bool {
		p := l.getPool("worker").Status
		return strings.Contains(l.condition("worker", mcfgv1.MachineConfigPoolPinnedImageSetsDegraded), "node w-1: "+image) &&
			len(p.PoolSynchronizersStatus) == 1 && p.PoolSynchronizersStatus[0].UpdatedMachineCount == 1 &&
			p.PoolSynchronizersStatus[0].MachineCount == 2
	})
	if n := l.stand("w-1"); n.Desired != "rendered-worker-a" || !n.Serving() {
		t.Errorf("the node without its images was sent to %s, serving %t", n.Desired, n.Serving())
	}
	l.setClock(time.Now().Add(2*time.Hour + time.Minute))
	l.proves("w-1", configB)

	// The sets go with their definition, and no person decided that.
	before := l.getNode("w-0").Annotations[api.PinOrderKey]
	defer l.define([]string{pinnedSets})
	l.undefine(pinnedSets)
	l.define([]string{pinnedSets})
	l.until("no set is left", func() bool {
		list, err := l.MachineConfigs.MachineconfigurationV1().PinnedImageSets().List(l.ctx, metav1.ListOptions{})
		return err == nil && len(list.Items) == 0
	})
	l.change("worker", `{"metadata":{"labels":{"looked":"at"}}}`)
	l.target("worker", "rendered-worker-c") // proved nowhere before the controllers have looked again
	l.until("the node goes on", func() bool { return l.stand("w-0").Desired == "rendered-worker-c" })
	if now := l.getNode("w-0").Annotations[api.PinOrderKey]; now != before {
		t.Errorf("without the definition the node is told %s, before %s", now, before)
	}
}

func TestANodeLetsGoOfImagesThatAreNotWantedAnyMore(t *testing.T) {
	l := newLab(t)
	l.node("w-0", "worker", "rendered-worker-a")
	l.node("w-1", "worker", "rendered-worker-a")
	l.pool("worker", "rendered-worker-a", func(p *mcfgv1.MachineConfigPool) {
		p.Spec.MachineConfigSelector = &metav1.LabelSelector{MatchLabels: map[string]string{api.Role: "worker"}}
	})
	if err := l.pinnedSet("base", "quay.io/shop/a@sha256:"+strings.Repeat("a", 64)); err != nil {
		t.Fatal(err)
	}
	l.alone("--controllers=pinnedimages")
	l.until("the node is told", func() bool { return l.stand("w-0").Pins != nil })
	l.pulls("w-0", 0, "")
	if err := l.MachineConfigs.MachineconfigurationV1().PinnedImageSets().Delete(l.ctx, "base", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	l.until("the node is told to let go", func() bool {
		o := l.stand("w-0").Pins
		return o != nil && len(o.Sets) == 0
	})
	l.pulls("w-0", 0, "")
	l.until("the node has no order any more", func() bool { return l.stand("w-0").Pins == nil })
}
