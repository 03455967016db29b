// SPDX-License-Identifier: Apache-2.0

package operators

import (
	"encoding/json"
	"fmt"
	"reflect"
	"testing"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/noderefit/noderefit/api"
)

// What the SR-IOV network operator writes on nodes and pools.
const (
	// sriovState is an annotation of nodes and of pools, with other values.
	sriovState    = "sriovnetwork.openshift.io/state"
	drainIdle     = "Idle"
	drainRequired = "Drain_Required"
	poolPaused    = "Paused"
	poolIdle      = "Idle"
)

// sriov makes the calls of the SR-IOV network operator on OpenShift (pkg/orchestrator, and the controllers of
// SriovNetworkPoolConfig and SriovOperatorConfig).
type sriov struct{ *lab }

// poolOf finds the pool of a node: the owner of the MachineConfig that the node is to have.
func (s sriov) poolOf(node string) string {
	s.t.Helper()
	desired := s.getNode(node).Annotations[api.DesiredConfig]
	if desired == "" {
		s.t.Fatalf("node %s has no annotation %s", node, api.DesiredConfig)
	}
	mc := &mcfgv1.MachineConfig{}
	s.must(s.Get(s.ctx, client.ObjectKey{Name: desired}, mc))
	for _, owner := range mc.OwnerReferences {
		if owner.Kind == "MachineConfigPool" {
			return owner.Name
		}
	}
	s.t.Fatalf("MachineConfig %s has no pool among its owners: %v", desired, mc.OwnerReferences)
	return ""
}

func (s sriov) pause(p *mcfgv1.MachineConfigPool, yes bool) {
	s.t.Helper()
	s.must(s.Patch(s.ctx, p, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"paused":%t}}`, yes))))
}

// beforeDrain pauses the pool of a node, and reports whether the drain may begin.
func (s sriov) beforeDrain(node string) bool {
	s.t.Helper()
	name := s.poolOf(node)
	p := &mcfgv1.MachineConfigPool{}
	s.must(s.Get(s.ctx, client.ObjectKey{Name: name}, p))
	moving := func() bool { return p.Spec.Configuration.Name != p.Status.Configuration.Name }
	if p.Annotations[sriovState] == poolPaused {
		if !p.Spec.Paused {
			if p.Spec.Configuration.Name == "" || p.Status.Configuration.Name == "" || moving() {
				return false
			}
			s.pause(p, true)
		}
		return true
	}
	if moving() {
		return false
	}
	s.annotate(p, sriovState, poolPaused)
	s.pause(p, true)
	p = &mcfgv1.MachineConfigPool{}
	s.must(s.Get(s.ctx, client.ObjectKey{Name: name}, p))
	if moving() {
		s.pause(p, false)
		s.annotate(p, sriovState, poolIdle)
		return false
	}
	return true
}

// afterDrain resumes the pool of a node when no other node of the pool is in a drain of the operator's.
func (s sriov) afterDrain(node string) {
	s.t.Helper()
	p := &mcfgv1.MachineConfigPool{}
	s.must(s.Get(s.ctx, client.ObjectKey{Name: s.poolOf(node)}, p))
	if value, is := p.Annotations[sriovState]; !is || value == poolIdle {
		return
	}
	selector, err := metav1.LabelSelectorAsSelector(p.Spec.NodeSelector)
	s.must(err)
	nodes := &corev1.NodeList{}
	s.must(s.List(s.ctx, nodes, &client.ListOptions{LabelSelector: selector}))
	for _, n := range nodes.Items {
		if value, is := n.Annotations[sriovState]; n.Name != node && is && value != drainIdle {
			return
		}
	}
	s.pause(p, false)
	s.annotate(p, sriovState, poolIdle)
}

// drain is what the operator does to a node between beforeDrain and afterDrain: it cordons, and the other way round.
func (s sriov) drain(node string, begins bool) {
	s.t.Helper()
	n := s.getNode(node)
	s.annotate(n, sriovState, map[bool]string{true: drainRequired, false: drainIdle}[begins])
	s.must(s.Patch(s.ctx, n, client.RawPatch(types.StrategicMergePatchType,
		fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, begins))))
}

func TestTheSRIOVOperatorPausesAPoolForAsLongAsItDrains(t *testing.T) {
	s := sriov{newLab(t, "sriov", "sriov-1", "sriov-2")}
	was := s.getPool().Status.Configuration.Name
	for node := range s.hosts {
		if got := s.poolOf(node); got != s.pool {
			t.Errorf("node %s is of pool %q", node, got)
		}
	}
	if !s.beforeDrain("sriov-1") {
		t.Fatal("the pool is at rest, and the operator may not drain")
	}
	if p := s.getPool(); conditions(p) != atRest || p.Status.UpdatedMachineCount != 2 || !p.Spec.Paused {
		t.Errorf("the pool is paused, and has nothing to do: %s, %+v", conditions(p), p.Status)
	}
	s.drain("sriov-1", true)
	s.until("the pool counts the cordoned node", func() (bool, any) {
		p := s.getPool()
		return p.Status.UnavailableMachineCount == 1, p.Status
	})

	// A change that comes meanwhile waits, and the operator can see that it does.
	s.add(config("50-sriov", s.pool, file("/etc/sriov", ",1")))
	to := s.moved(was)
	s.until("the pool says that it waits", func() (bool, any) {
		p := s.getPool()
		return condition(p, mcfgv1.MachineConfigPoolUpdated) == corev1.ConditionFalse, conditions(p)
	})
	if !s.beforeDrain("sriov-2") {
		t.Error("the operator has paused the pool, and may not drain its second node")
	}
	s.drain("sriov-2", true)
	s.drain("sriov-1", false)
	s.afterDrain("sriov-1")
	if p := s.getPool(); !p.Spec.Paused {
		t.Error("the operator drains a second node, and has resumed the pool")
	}
	for node := range s.hosts {
		if a := s.getNode(node).Annotations; a[api.DesiredConfig] != was {
			t.Errorf("node %s was sent to %s while its pool was paused", node, a[api.DesiredConfig])
		}
	}
	s.drain("sriov-2", false)
	s.afterDrain("sriov-2")
	if p := s.getPool(); p.Spec.Paused || p.Annotations[sriovState] != poolIdle {
		t.Errorf("paused %t, %v", p.Spec.Paused, p.Annotations)
	}
	s.updated(to)
	for node, host := range s.hosts {
		if n := s.getNode(node); n.Spec.Unschedulable || host.Boots() != 1 {
			t.Errorf("node %s: unschedulable %t, %d boots", node, n.Spec.Unschedulable, host.Boots())
		}
	}
}

func TestTheSRIOVOperatorWaitsForARolloutUnderWay(t *testing.T) {
	s := sriov{newLab(t, "sriov-busy", "sriov-busy-1", "sriov-busy-2")}
	was := s.getPool().Status.Configuration.Name
	let := s.holdUpdates()
	s.add(config("50-sriov-busy", s.pool, file("/etc/sriov", ",1")))
	to := s.moved(was)
	s.until("the pool says that it is updating", func() (bool, any) {
		p := s.getPool()
		return conditions(p) == updating, conditions(p)
	})
	if s.beforeDrain("sriov-busy-1") {
		t.Error("a rollout is under way, and the operator may drain")
	}
	if p := s.getPool(); p.Spec.Paused || p.Annotations[sriovState] != "" {
		t.Errorf("the operator has left traces: paused %t, %v", p.Spec.Paused, p.Annotations)
	}
	let()
	s.updated(to)
	if !s.beforeDrain("sriov-busy-1") {
		t.Error("the rollout is over, and the operator may not drain")
	}
	s.afterDrain("sriov-busy-1")
	if p := s.getPool(); p.Spec.Paused {
		t.Error("the pool is still paused")
	}
}

// sync brings the cluster the operator's MachineConfig: it creates, replaces, or leaves alone what says the same. The
// result is the version of the object.
func (s sriov) sync(mc *mcfgv1.MachineConfig) string {
	s.t.Helper()
	found := &mcfgv1.MachineConfig{}
	if s.gone(found, mc.Name) {
		s.must(s.Create(s.ctx, mc))
		return mc.ResourceVersion
	}
	var is, wanted any
	s.must(json.Unmarshal(found.Spec.Config.Raw, &is))
	s.must(json.Unmarshal(mc.Spec.Config.Raw, &wanted))
	if reflect.DeepEqual(is, wanted) {
		return found.ResourceVersion
	}
	mc.ResourceVersion = found.ResourceVersion
	s.must(s.Update(s.ctx, mc))
	return mc.ResourceVersion
}

func TestTheSRIOVOperatorsMachineConfigsComeAndGo(t *testing.T) {
	s := sriov{newLab(t, "sriov-mc", "sriov-mc-1")}
	was := s.getPool().Status.Configuration.Name
	offload := func(text string) *mcfgv1.MachineConfig {
		return config("00-"+s.pool+"-ovs-hw-offload", s.pool, `{"ignition":{"version":"3.2.0"},"storage":{"files":[
			{"path":"/usr/local/bin/configure-switchdev.sh","contents":{"source":"data:,`+text+`","verification":{}},
			"mode":493,"overwrite":true}]},
			"systemd":{"units":[{"name":"switchdev-configuration.service","enabled":true,
			"contents":"[Unit]\nBefore=NetworkManager.service\n[Service]\nType=oneshot\n`+
			`ExecStart=/usr/local/bin/configure-switchdev.sh\n[Install]\nWantedBy=network-online.target\n"},
			{"name":"NetworkManager.service","dropins":[{"name":"10-switchdev.conf",
			"contents":"[Unit]\nAfter=switchdev-configuration.service\n"}]}]}}`)
	}
	name := offload("").Name
	first := s.sync(offload("1"))
	rendered := s.pickedUp(name)
	s.updated(rendered)
	if again := s.sync(offload("1")); again != first {
		t.Errorf("the same content is another version: %s after %s", again, first)
	}
	if p := s.getPool(); !has(p.Status.Configuration, name) || p.Spec.Configuration.Name != rendered {
		t.Errorf("%+v", p.Status.Configuration)
	}
	s.sync(offload("2"))
	s.updated(s.moved(rendered))
	s.must(s.Delete(s.ctx, offload("")))
	s.updated(was)
	if p := s.getPool(); has(p.Status.Configuration, name) {
		t.Errorf("%+v", p.Status.Configuration)
	}
}
