// SPDX-License-Identifier: Apache-2.0

package run

import (
	"fmt"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/test/lab/fakehost"
	"github.com/noderefit/noderefit/test/lab/spoil"
)

// spoiledSoon is what an update takes at most whose requests are delayed and tried again.
const spoiledSoon = 3 * time.Minute

// A quarter of all requests of the head fails in one of eight ways. Each update goes through all the same, once.
func TestAHeadGoesOnWhereAQuarterOfItsRequestsIsSpoiled(t *testing.T) {
	n := newNode(t)
	n.kill()
	proxy, err := spoil.Start(t.Context(), n.Config, 25, 4)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		n.kill()
		if err := proxy.Stop(); err != nil {
			t.Error(err)
		}
	})
	n.via = proxy.Config
	n.start()
	n.pod("web", nil)
	for i, kargs := range [][]string{{"one"}, nil} {
		to := n.render(kargs, fmt.Sprintf("spoiled-%d", i))
		n.desire(to)
		n.within(spoiledSoon, to+" is there", func() bool {
			o := n.get()
			a, err := api.ReadNode(o)
			return err == nil && a.State == api.Done && a.Current == to && !o.Spec.Unschedulable && a.Cordon == nil
		})
		if c := n.host.Counts(); n.host.Boots() != i+1 || c[fakehost.Apply] != i+1 || n.host.Committed() != to {
			t.Errorf("after %d updates: %d boots, operations %v", i+1, n.host.Boots(), c)
		}
	}
	n.within(spoiledSoon, "the MachineConfigNode says so", func() bool {
		return n.mcn(mcfgv1.MachineConfigNodeUpdated).Status == metav1.ConditionTrue
	})
	if seen, _ := proxy.Spoiled(); seen < 30 {
		t.Errorf("%d requests: too few to show anything", seen)
	}
	t.Log(proxy)
}

func TestAMachineConfigNodeThatIsDeletedComesBackWithTheNextUpdate(t *testing.T) {
	n := newNode(t)
	nodes := n.MachineConfigs.MachineconfigurationV1().MachineConfigNodes()
	there := func() bool { return n.mcn(mcfgv1.MachineConfigNodeUpdated).Status == metav1.ConditionTrue }
	n.until("the MachineConfigNode is there", there)
	if err := nodes.Delete(n.ctx(), n.name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	b := n.render([]string{"quiet"}, "b")
	n.host.Change(func(s *fakehost.Script) {
		s.Gone = func() { _ = nodes.Delete(n.ctx(), n.name, metav1.DeleteOptions{}) }
	})
	n.desire(b)
	n.waitState(api.Done, b)
	n.until("the MachineConfigNode is there again", there)
	if c := n.host.Counts(); n.host.Boots() != 1 || c[fakehost.Apply] != 1 {
		t.Errorf("%d boots, operations %v", n.host.Boots(), c)
	}
}
