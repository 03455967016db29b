// SPDX-License-Identifier: Apache-2.0

package run

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/drain"
	"github.com/noderefit/noderefit/osimage"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/test/lab/cluster"
	"github.com/noderefit/noderefit/test/lab/fakehost"
)

func TestUpdateWithReboot(t *testing.T) {
	n := newNode(t)
	n.pod("web", nil)
	// What the head says of the configuration before is no part of the update.
	n.until("the MachineConfigNode says what is there", func() bool {
		c := n.mcn(mcfgv1.MachineConfigNodeUpdated)
		return c.Status == metav1.ConditionTrue
	})
	began := len(n.requests())
	b := n.render([]string{"quiet"}, "b")
	n.host.Change(func(s *fakehost.Script) {
		s.AskNode = true
		s.Delays = map[string]time.Duration{fakehost.Apply: time.Second, fakehost.Boot: time.Second}
	})
	applied, seen := n.keeps(fakehost.Apply), make(chan struct{})
	goDown := sync.OnceFunc(func() { close(seen) })
	t.Cleanup(goDown)
	n.host.Change(func(s *fakehost.Script) { s.Gone = func() { <-seen } })
	start := time.Now()
	n.desire(b)
	n.until("it applies", func() bool { return n.host.Counts()[fakehost.Apply] == 1 })
	if a, err := api.ReadNode(n.get()); err != nil || a.Rebooting {
		t.Error("it says that it reboots while the host only prepares for that")
	}
	applied()
	n.wait("drained and rebooting", func(o *corev1.Node, a api.Node) bool {
		return a.Rebooting && o.Spec.Unschedulable && a.Cordon != nil && a.Cordon.Config == b &&
			o.Annotations[api.LastAppliedDrain] == "drain-"+b && a.State == api.Working
	})
	goDown()
	o := n.waitState(api.Done, b)
	read, _ := api.ReadNode(o)
	if o.Spec.Unschedulable || read.Cordon != nil || read.Rebooting || read.Previous != n.a ||
		o.Annotations[api.LastAppliedDrain] != "uncordon-"+b {
		t.Errorf("after the update: %+v, unschedulable %t", o.Annotations, o.Spec.Unschedulable)
	}
	if c := n.host.Counts(); n.host.Boots() != 1 || c[fakehost.Apply] != 1 || c[fakehost.Stage] != 1 {
		t.Errorf("boots %d, operations %v, want one of each", n.host.Boots(), c)
	}
	n.until("the MachineConfigNode says so", func() bool {
		c := n.mcn(mcfgv1.MachineConfigNodeUpdated)
		return c.Status == metav1.ConditionTrue && strings.Contains(c.Message, b+": reboot, because of")
	})
	object, err := n.MachineConfigs.MachineconfigurationV1().MachineConfigNodes().Get(n.ctx(), n.name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	took := time.Since(start)
	if u, ok := progress.LastUpdate(object); !ok || !u.Rebooted || u.Took < 2*time.Second || u.Took > took+time.Second {
		t.Errorf("a last update of %+v, %t; it took less than %s\n%+v", u, ok, took, object)
	}
	n.until("the events say so", func() bool { return n.hasEvents("Cordon", "Reboot", "Uncordon", "NodeDone") })

	// What an update costs the API server is part of what is promised (P7).
	counts := map[string]int{}
	for _, r := range n.requests()[began:] {
		counts[strings.TrimSuffix(r.Verb+" "+r.Object.Resource+"/"+r.Object.Subresource, "/")]++
	}
	total, writes := 0, 0
	for what, count := range counts {
		t.Logf("%3d %s", count, what)
		total += count
		if verb, _, _ := strings.Cut(what, " "); verb == "patch" || verb == "create" || verb == "update" {
			writes += count
		}
	}
	t.Logf("%3d requests, %d of them writes, for an update with one pod and a reboot", total, writes)
	if got := counts["patch nodes"]; got > 5 {
		t.Errorf("%d patches of the Node", got)
	}
	if got := counts["patch machineconfignodes/status"]; got > 7 {
		t.Errorf("%d patches of the MachineConfigNode's status", got)
	}
	if got := counts["patch machineconfignodes"]; got > 1 {
		t.Errorf("%d patches of the MachineConfigNode itself", got)
	}
	if total > 40 {
		t.Errorf("%d requests for one update", total)
	}
}

// The reboot stops the agent too, and may do so before it has said anything of it.
func TestHeadThatTheRebootStops(t *testing.T) {
	n := newNode(t)
	b := n.render([]string{"quiet"}, "b")
	proving := make(chan struct{})
	n.host.Change(func(s *fakehost.Script) {
		s.Gone = func() {
			// A machine takes longer to go down than an event to be sent, where there is one to send.
			for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
				if n.hasEvents("Reboot") {
					break
				}
			}
			n.kill()
		}
		s.Back = n.start
		s.Fault = func(operation, _ string) error {
			if operation == fakehost.Prove {
				<-proving
			}
			return nil
		}
	})
	n.desire(b)
	n.wait("drained and not rebooting any more", func(o *corev1.Node, a api.Node) bool {
		return n.host.Boots() == 1 && o.Annotations[api.LastAppliedDrain] == "drain-"+b && !a.Rebooting &&
			a.State == api.Working && o.Spec.Unschedulable
	})
	n.until("an event says so", func() bool { return n.hasEvents("Reboot") })
	close(proving)
	o := n.waitState(api.Done, b)
	if read, _ := api.ReadNode(o); read.Rebooting || o.Spec.Unschedulable || n.host.Boots() != 1 {
		t.Errorf("after the update: %v, unschedulable %t, %d boots", o.Annotations, o.Spec.Unschedulable, n.host.Boots())
	}
}

// Most pods take a few seconds to end: to say so and to take it back is not worth two writes.
func TestShortWaitForAPodsEndIsNotAnnounced(t *testing.T) {
	n := newNode(t)
	n.pod("slow", nil)
	pods, name := n.Client.CoreV1().Pods("default"), n.name+"-slow"
	finalizers := func(list string) {
		t.Helper()
		patch := fmt.Appendf(nil, `{"metadata":{"finalizers":%s}}`, list)
		if _, err := pods.Patch(n.ctx(), name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	finalizers(`["test.example.org/slow"]`)
	b := n.render([]string{"quiet"}, "b")
	n.desire(b)
	n.until("it ends", func() bool {
		p, err := pods.Get(n.ctx(), name, metav1.GetOptions{})
		return err == nil && p.DeletionTimestamp != nil
	})
	time.Sleep(3 * time.Second) //nolint:forbidigo // longer than until the drain's first report
	finalizers(`null`)
	n.waitState(api.Done, b)
	n.until("the MachineConfigNode says so", func() bool {
		return n.mcn(mcfgv1.MachineConfigNodeUpdated).Status == metav1.ConditionTrue
	})
	patches := 0
	for _, r := range n.requests() {
		if r.Verb == "patch" && r.Object.Resource == "machineconfignodes" && r.Object.Subresource == "" {
			patches++
		}
	}
	if patches != 2 {
		t.Errorf("%d patches of the MachineConfigNode itself, want one for each configuration", patches)
	}
}

// What was not ready before an update is not the update's fault: the host has to hear of it before it begins.
func TestNodeThatWasNotReadyBefore(t *testing.T) {
	n := freshNode(t, suite.Cluster(t), "broken-before")
	n.a = n.render(nil, "a")
	n.host.Commit(n.a, n.document(n.a))
	n.host.Change(func(s *fakehost.Script) { s.AskNode = true })
	n.silence()
	b := n.render([]string{"quiet"}, "b")
	n.desire(b)
	n.start()
	n.until("the host has proved it", func() bool { return n.host.Committed() == b })
	o := n.wait("waiting to be ready", func(_ *corev1.Node, a api.Node) bool {
		return a.Current == b && strings.Contains(a.Reason, "waiting for the node to be ready")
	})
	if !o.Spec.Unschedulable {
		t.Error("a node that is not ready was uncordoned")
	}
}

// requests are what this node's head has asked for.
func (n *node) requests() []cluster.Request {
	n.t.Helper()
	all, err := n.Requests()
	if err != nil {
		n.t.Fatal(err)
	}
	var own []cluster.Request
	for _, r := range all {
		if strings.HasPrefix(r.UserAgent, "head-"+n.name) {
			own = append(own, r)
		}
	}
	return own
}

func (n *node) hasEvents(reasons ...string) bool {
	list, err := n.Client.CoreV1().Events("default").List(n.ctx(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + n.name})
	if err != nil {
		return false
	}
	seen := map[string]bool{}
	for _, e := range list.Items {
		seen[e.Reason] = true
	}
	for _, r := range reasons {
		if !seen[r] {
			return false
		}
	}
	return true
}

func TestAtRestNothingIsAskedOrWritten(t *testing.T) {
	n := newNode(t)
	n.until("the MachineConfigNode is there", func() bool {
		return n.mcn(mcfgv1.MachineConfigNodeUpdated).Status == metav1.ConditionTrue
	})
	n.kill()
	before := len(n.requests())
	n.start()
	n.until("the new head watches", func() bool { return n.host.Counts()[fakehost.Status] >= 3 })
	var began int
	n.until("it has been silent for two seconds", func() bool {
		began = len(n.requests())
		time.Sleep(2 * time.Second) //nolint:forbidigo // that nothing happens has no condition to wait for
		return len(n.requests()) == began
	})
	time.Sleep(5 * time.Second) //nolint:forbidigo // as above
	for _, r := range n.requests()[began:] {
		t.Errorf("at rest: %s %s", r.Verb, r.URI)
	}
	for _, r := range n.requests()[before:] {
		if r.Verb == "patch" || r.Verb == "create" {
			t.Errorf("a head that starts at rest writes: %s %s", r.Verb, r.URI)
		}
	}
	for _, r := range n.requests() {
		if r.Verb == "list" && !strings.Contains(r.URI, "fieldSelector=") {
			t.Errorf("a collection is listed: %s", r.URI)
		}
	}
}

func TestLiveChangeDisruptsNobody(t *testing.T) {
	n := newNode(t)
	release := n.block() // which a drain would wait for
	defer release()
	policy := []byte(`{"apiVersion":"operator.openshift.io/v1","kind":"MachineConfiguration","metadata":{"name":"cluster"},` +
		`"spec":{"managementState":"Managed","irreconcilableValidationOverrides":{"storage":["Disks"]},"nodeDisruptionPolicy":{"files":[{"path":"/etc/test.conf","actions":[{"type":"None"}]}]}}}`)
	path := "/apis/operator.openshift.io/v1/machineconfigurations"
	rest := n.Client.CoreV1().RESTClient()
	if err := rest.Post().AbsPath(path).Body(policy).SetHeader("Content-Type", "application/json").Do(n.ctx()).Error(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rest.Delete().AbsPath(path + "/cluster").Do(n.ctx()).Error() }()
	began := len(n.requests())
	b := n.render(nil, "b")
	n.desire(b)
	o := n.waitState(api.Done, b)
	if n.host.Boots() != 0 || o.Annotations[api.DesiredDrain] != "" {
		t.Errorf("boots %d, annotations %v", n.host.Boots(), o.Annotations)
	}
	patches := 0
	for _, r := range n.requests()[began:] {
		if r.Verb == "patch" && r.Object.Resource == "nodes" {
			patches++
		}
	}
	t.Logf("%d patches of the Node for a live change", patches)
	if patches > 2 {
		t.Errorf("%d patches of the Node for a live change", patches)
	}

	// Another disk is for new machines, where the policy says so: nothing is done, and the MachineConfigNode tells of it.
	irreconcilable := func(want ...mcfgv1.IrreconcilableChangeDiff) {
		t.Helper()
		n.until("the MachineConfigNode says what is for new machines", func() bool {
			object, err := n.MachineConfigs.MachineconfigurationV1().MachineConfigNodes().Get(n.ctx(), n.name, metav1.GetOptions{})
			return err == nil && slices.Equal(object.Status.IrreconcilableChanges, want)
		})
	}
	irreconcilable()
	disked := rendered(t, nil, n.name+"-b")
	disked.Spec.Config.Raw = []byte(strings.Replace(string(disked.Spec.Config.Raw), `"storage":{`, `"storage":{"disks":[{"device":"/dev/sdb"}],`, 1))
	disked.Name = renamed(t, disked)
	if _, err := n.MachineConfigs.MachineconfigurationV1().MachineConfigs().Create(n.ctx(), disked, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	n.desire(disked.Name)
	o = n.waitState(api.Done, disked.Name)
	if n.host.Boots() != 0 || o.Annotations[api.DesiredDrain] != "" {
		t.Errorf("boots %d, annotations %v", n.host.Boots(), o.Annotations)
	}
	irreconcilable(mcfgv1.IrreconcilableChangeDiff{FieldPath: "spec.config.storage.disks", Diff: `+ {"device":"/dev/sdb"}`})
	n.restart()
	n.desire(b)
	n.waitState(api.Done, b)
	irreconcilable()
}

func TestAdoption(t *testing.T) {
	n := freshNode(t, suite.Cluster(t), "adoption")
	a := n.render([]string{"quiet"}, "a")
	n.start()
	n.until("the host was read", func() bool { return n.host.Counts()[fakehost.Status] > 0 })
	if o := n.get(); o.Annotations[api.StateKey] != "" || o.Annotations[api.CurrentConfig] != "" {
		t.Errorf("a node that nobody configured says %v", o.Annotations)
	}
	n.desire(a)
	o := n.waitState(api.Done, a)
	if n.host.Boots() != 0 || n.host.Counts()[fakehost.Stage] != 0 || o.Annotations[api.DesiredDrain] != "" {
		t.Errorf("adopting a host that matches: boots %d, operations %v, annotations %v", n.host.Boots(), n.host.Counts(), o.Annotations)
	}
}

func TestRetargetMidStage(t *testing.T) {
	n := newNode(t)
	b, c := n.render([]string{"quiet"}, "b"), n.render([]string{"quiet"}, "c")
	n.host.Change(func(s *fakehost.Script) { s.Delays = map[string]time.Duration{fakehost.Stage: time.Hour} })
	n.desire(b)
	n.until("it stages", func() bool { return n.host.Counts()[fakehost.Stage] == 1 })
	n.host.Change(func(s *fakehost.Script) { s.Delays = nil })
	begin := time.Now()
	n.desire(c)
	n.until("the other one is staged", func() bool { return n.host.Counts()[fakehost.Stage] == 2 })
	if took := time.Since(begin); took > unhurried {
		t.Errorf("retargeting took %s", took)
	}
	n.waitState(api.Done, c)
	if n.host.Boots() != 1 {
		t.Errorf("%d boots, want only the one into what was wanted last", n.host.Boots())
	}
}

func TestLongPullIsTold(t *testing.T) {
	n := newNode(t)
	b := n.render([]string{"quiet"}, "b")
	n.host.Change(func(s *fakehost.Script) {
		s.Delays = map[string]time.Duration{fakehost.Stage: time.Hour}
		s.Pulling = &osimage.Pulling{Since: time.Now().Add(-time.Hour).UTC().Format(time.RFC3339), Says: "layer 7 of 9"}
	})
	n.desire(b)
	n.wait("the Node says how far the pull is", func(_ *corev1.Node, is api.Node) bool {
		return is.State == api.Working && strings.Contains(is.Reason, "layer 7 of 9")
	})
	n.until("its MachineConfigNode does", func() bool {
		return strings.Contains(n.mcn(mcfgv1.MachineConfigNodeUpdatePrepared).Message, "layer 7 of 9")
	})
}

func TestRevertMidDrainGivesTheNodeBack(t *testing.T) {
	n := newNode(t)
	release := n.block()
	defer release()
	b := n.render([]string{"quiet"}, "b")
	n.desire(b)
	n.until("the drain says what it waits for", func() bool {
		c := n.mcn(mcfgv1.MachineConfigNodeUpdateDrained)
		return c.Status == metav1.ConditionUnknown && strings.Contains(c.Message, n.name+"-held")
	})
	n.until("people were warned", func() bool { return n.hasEvents("DrainWillWait") })
	begin := time.Now()
	n.desire(n.a)
	o := n.wait("given back", func(o *corev1.Node, a api.Node) bool {
		return a.State == api.Done && !o.Spec.Unschedulable && a.Cordon == nil
	})
	if took := time.Since(begin); took > unhurried {
		t.Errorf("going back took %s", took)
	}
	if n.host.Counts()[fakehost.Apply] != 0 || o.Annotations[api.CurrentConfig] != n.a {
		t.Errorf("operations %v, annotations %v", n.host.Counts(), o.Annotations)
	}
	n.until("the MachineConfigNode lists no pod any more", func() bool {
		m, err := n.MachineConfigs.MachineconfigurationV1().MachineConfigNodes().Get(n.ctx(), n.name, metav1.GetOptions{})
		return err == nil && m.Annotations[api.DrainKey] == ""
	})
}

func TestNothingDesiredMidDrainGivesTheNodeBack(t *testing.T) {
	n := newNode(t)
	release := n.block()
	defer release()
	n.desire(n.render([]string{"quiet"}, "b"))
	n.wait("cordoned", func(o *corev1.Node, _ api.Node) bool { return o.Spec.Unschedulable })
	n.patch(`{"metadata":{"annotations":{%q:null}}}`, api.DesiredConfig)
	n.wait("given back", func(o *corev1.Node, a api.Node) bool {
		return a.State == api.Done && !o.Spec.Unschedulable && a.Cordon == nil && a.Current == n.a
	})
}

func TestRetargetMidDrain(t *testing.T) {
	n := newNode(t)
	release := n.block()
	b, c := n.render([]string{"quiet"}, "b"), n.render([]string{"quiet"}, "c")
	n.desire(b)
	n.wait("cordoned", func(o *corev1.Node, _ api.Node) bool { return o.Spec.Unschedulable })
	n.desire(c)
	n.wait("cordoned for the other", func(_ *corev1.Node, a api.Node) bool {
		return a.Cordon != nil && a.Cordon.Config == c || a.Desired == c
	})
	release()
	n.waitState(api.Done, c)
	if n.host.Boots() != 1 || n.host.Committed() != c {
		t.Errorf("%d boots, on %s", n.host.Boots(), n.host.Committed())
	}
}

func TestRolledBackStaysUntilSomethingElseIsWanted(t *testing.T) {
	n := newNode(t)
	b := n.render([]string{"quiet"}, "b")
	n.host.Change(func(s *fakehost.Script) {
		s.Fault = func(operation, config string) error {
			if operation == fakehost.Prove && config == b {
				return fakehost.ErrBad
			}
			return nil
		}
	})
	n.desire(b)
	o := n.waitState(api.RolledBack, n.a)
	read, _ := api.ReadNode(o)
	if !strings.Contains(read.Reason, b) || !strings.Contains(read.Reason, fakehost.ErrBad.Error()) ||
		len(read.Quarantined) != 1 || read.Quarantined[0].Config != b {
		t.Errorf("rolled back: reason %q, quarantined %v", read.Reason, read.Quarantined)
	}
	n.wait("serving", func(o *corev1.Node, a api.Node) bool { return !o.Spec.Unschedulable && a.Cordon == nil })
	n.restartAndLook()
	if c := n.host.Counts(); c[fakehost.Apply] != 1 {
		t.Errorf("a quarantined configuration was tried again: %v", c)
	}

	// A lift is one more try, and fails here again: that is not tried for ever.
	n.patch(`{"metadata":{"annotations":{%q:%q}}}`, api.Lift, b)
	n.until("it was tried again", func() bool { return n.host.Counts()[fakehost.Apply] == 2 })
	n.wait("rolled back again, the lift used up", func(_ *corev1.Node, a api.Node) bool {
		return a.State == api.RolledBack && a.Lift == "" && !a.Quarantined[0].Since.Equal(read.Quarantined[0].Since)
	})
	n.desire(n.a)
	n.waitState(api.Done, n.a)
	if c := n.host.Counts(); c[fakehost.Apply] != 3 || n.host.Boots() != 4 {
		t.Errorf("healing by going back: %v, %d boots", c, n.host.Boots())
	}
}

func TestLiftedConfigurationThatIsGoodNow(t *testing.T) {
	n := newNode(t)
	b := n.render([]string{"quiet"}, "b")
	n.host.Change(func(s *fakehost.Script) {
		s.Fault = func(operation, _ string) error {
			if operation == fakehost.Prove {
				return fakehost.ErrBad
			}
			return nil
		}
	})
	n.desire(b)
	n.waitState(api.RolledBack, n.a)
	n.host.Change(func(s *fakehost.Script) { s.Fault = nil })
	n.patch(`{"metadata":{"annotations":{%q:%q}}}`, api.Lift, b)
	n.wait("there, and nothing left of it", func(_ *corev1.Node, a api.Node) bool {
		return a.State == api.Done && a.Current == b && a.Lift == "" && len(a.Quarantined) == 0
	})
}

// What failed is content: another pool's name for it helps it no more than the node's own, and a lift under that name does.
func TestContentThatFailedIsRefusedByAnotherPoolsNameUntilItIsLifted(t *testing.T) {
	n := newNode(t)
	worker := n.render([]string{"quiet"}, "b")
	mc := rendered(t, []string{"quiet"}, n.name+"-b")
	mc.Name = strings.Replace(worker, "worker", "infra", 1)
	if _, err := n.MachineConfigs.MachineconfigurationV1().MachineConfigs().Create(n.ctx(), mc, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	n.host.Change(func(s *fakehost.Script) {
		s.Fault = func(operation, config string) error {
			if operation == fakehost.Prove && config == worker {
				return fakehost.ErrBad
			}
			return nil
		}
	})
	n.desire(worker)
	n.waitState(api.RolledBack, n.a)
	n.desire(n.a)
	n.waitState(api.Done, n.a)
	boots := n.host.Boots()

	n.desire(mc.Name)
	n.wait("refusing it", func(_ *corev1.Node, a api.Node) bool {
		return a.State == api.RolledBack && strings.Contains(a.Reason, mc.Name) && strings.Contains(a.Reason, fakehost.ErrBad.Error())
	})
	n.kill()
	verified := n.host.Counts()[fakehost.Verify]
	n.start()
	n.until("the new head has nothing else to do", func() bool { return n.host.Counts()[fakehost.Verify] > verified })
	if o := n.get(); n.host.Boots() != boots || n.host.Committed() != n.a || o.Spec.Unschedulable {
		t.Errorf("it was tried: %v, on %s, %+v", n.host.Counts(), n.host.Committed(), o.Annotations)
	}

	n.patch(`{"metadata":{"annotations":{%q:%q}}}`, api.Lift, mc.Name)
	n.wait("there, and nothing left of it", func(_ *corev1.Node, a api.Node) bool {
		return a.State == api.Done && a.Current == mc.Name && a.Lift == "" && len(a.Quarantined) == 0
	})
}

func TestMissingConfigurationHealsWhenItAppears(t *testing.T) {
	n := newNode(t)
	mc := rendered(t, nil, n.name+"-late")
	n.desire(mc.Name)
	o := n.wait("degraded", func(_ *corev1.Node, a api.Node) bool { return a.State == api.Degraded })
	if reason := o.Annotations[api.Reason]; !strings.Contains(reason, mc.Name+" does not exist") {
		t.Errorf("reason %q", reason)
	}
	n.until("the MachineConfigNode says why", func() bool { return n.mcn(mcfgv1.MachineConfigNodeNodeDegraded).Reason == "ConfigMissing" })
	if _, err := n.MachineConfigs.MachineconfigurationV1().MachineConfigs().Create(n.ctx(), mc, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	n.waitState(api.Done, mc.Name)
}

func TestConfigurationThatLiesIsRefused(t *testing.T) {
	n := newNode(t)
	mc := rendered(t, nil, n.name+"-other")
	mc.Name = mc.Name[:len(mc.Name)-4] + "0000"
	if _, err := n.MachineConfigs.MachineconfigurationV1().MachineConfigs().Create(n.ctx(), mc, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	n.desire(mc.Name)
	n.wait("refusing", func(_ *corev1.Node, a api.Node) bool {
		return a.State == api.Degraded && strings.Contains(a.Reason, "the content does not match the digest in the name")
	})
	if c := n.host.Counts(); c[fakehost.Plan]+c[fakehost.Apply] != 0 {
		t.Errorf("the host saw it: %v", c)
	}
	n.desire(n.a)
	n.waitState(api.Done, n.a)
}

func TestDeletedCurrentConfigurationComesBack(t *testing.T) {
	n := newNode(t)
	configs := n.MachineConfigs.MachineconfigurationV1().MachineConfigs()
	if err := configs.Delete(n.ctx(), n.a, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	n.until("it is there again", func() bool {
		mc, err := configs.Get(n.ctx(), n.a, metav1.GetOptions{})
		return err == nil && mc.Annotations[api.RestoredFrom] == n.name && len(mc.OwnerReferences) == 0
	})
}

func TestDeletedConfigurationThatTheHostStillHasComesBack(t *testing.T) {
	n := newNode(t)
	b := n.render([]string{"quiet"}, "b")
	n.desire(b)
	n.waitState(api.Done, b)
	n.kill()
	configs := n.MachineConfigs.MachineconfigurationV1().MachineConfigs()
	if err := configs.Delete(n.ctx(), n.a, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	n.desire(n.a)
	n.start()
	n.waitState(api.Done, n.a)
	if mc, err := configs.Get(n.ctx(), n.a, metav1.GetOptions{}); err != nil || mc.Annotations[api.RestoredFrom] != n.name {
		t.Errorf("it was not given back: %v", err)
	}
}

func TestUncordonBySomebodyElse(t *testing.T) {
	n := newNode(t)
	release := n.block()
	b := n.render([]string{"quiet"}, "b")
	n.desire(b)
	n.wait("cordoned", func(o *corev1.Node, _ api.Node) bool { return o.Spec.Unschedulable })
	n.patch(`{"spec":{"unschedulable":false}}`)
	n.wait("cordoned again", func(o *corev1.Node, _ api.Node) bool { return o.Spec.Unschedulable })
	n.until("an event says so", func() bool { return n.saysOfUncordon("to drain the node again") })
	if n.host.Counts()[fakehost.Apply] != 0 {
		t.Error("applied with a pod that should be gone")
	}
	release()
	n.waitState(api.Done, b)
}

// saysOfUncordon looks for an event about somebody's uncordon.
func (n *node) saysOfUncordon(text string) bool {
	list, err := n.Client.CoreV1().Events("default").List(n.ctx(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + n.name})
	if err != nil {
		return false
	}
	for _, e := range list.Items {
		if e.Reason == "Cordon" && strings.HasPrefix(e.Message, "The node was uncordoned") && strings.Contains(e.Message, text) {
			return true
		}
	}
	return false
}

func TestUncordonDuringTheVerdict(t *testing.T) {
	n := newNode(t)
	b := n.render([]string{"quiet"}, "b")
	proved := n.keeps(fakehost.Prove)
	n.desire(b)
	n.until("it waits for its verdict", func() bool { return n.host.Counts()[fakehost.Prove] == 1 })
	n.patch(`{"spec":{"unschedulable":false}}`)
	n.wait("cordoned again", func(o *corev1.Node, a api.Node) bool { return drain.ReadHold(o) == drain.Ours && a.Current == n.a })
	proved()
	o := n.waitState(api.Done, b)
	if o.Spec.Unschedulable {
		t.Error("it was not given back")
	}
	n.until("an event says so", func() bool { return n.saysOfUncordon("can't be interrupted") })
}

// W14: a node that was drained, failed, and was uncordoned by a person must be drained again before it reboots.
func TestNoRebootAfterAnUncordonBetweenTries(t *testing.T) {
	n := newNode(t)
	b := n.render([]string{"quiet"}, "b")
	n.host.Change(func(s *fakehost.Script) {
		s.Fault = func(operation, config string) error {
			if operation == fakehost.Apply && config == b {
				return fakehost.ErrBad
			}
			return nil
		}
	})
	n.desire(b)
	n.wait("degraded and cordoned", func(o *corev1.Node, a api.Node) bool { return a.State == api.Degraded && o.Spec.Unschedulable })
	n.patch(`{"spec":{"unschedulable":false}}`)
	n.host.Change(func(s *fakehost.Script) {
		s.Fault = nil
		s.Gone = func() {
			if o := n.get(); drain.ReadHold(o) != drain.Ours {
				t.Errorf("it reboots while the node takes pods: %s", drain.ReadHold(o))
			}
		}
	})
	n.waitState(api.Done, b)
}

// What comes to a node while its host applies must be gone before that reboots.
func TestUncordonDuringTheApply(t *testing.T) {
	n := newNode(t)
	b := n.render([]string{"quiet"}, "b")
	n.host.Change(func(s *fakehost.Script) {
		s.Gone = func() {
			_, err := n.Client.CoreV1().Pods("default").Get(n.ctx(), n.name+"-late", metav1.GetOptions{})
			if o := n.get(); drain.ReadHold(o) != drain.Ours || !apierrors.IsNotFound(err) {
				t.Errorf("it reboots with hold %s, and the pod: %v", drain.ReadHold(o), err)
			}
		}
	})
	applied := n.keeps(fakehost.Apply)
	n.desire(b)
	n.until("it applies", func() bool { return n.host.Counts()[fakehost.Apply] == 1 })
	n.patch(`{"spec":{"unschedulable":false}}`)
	n.pod("late", nil)
	n.until("an event says so", func() bool { return n.saysOfUncordon("to drain the node again") })
	n.until("the host is told", func() bool { return n.host.Taken() != "" })
	applied()
	n.until("the host is asked again after the drain", func() bool { return n.host.Counts()[fakehost.Apply] == 2 })
	o := n.waitState(api.Done, b)
	if c := n.host.Counts(); c[fakehost.Apply] != 2 || n.host.Boots() != 1 || o.Spec.Unschedulable {
		t.Errorf("operations %v, %d boots, unschedulable %t", c, n.host.Boots(), o.Spec.Unschedulable)
	}
}

// A head that is not there can't know better than the drain that was made.
func TestHeadThatIsAwayHoldsUpNoApply(t *testing.T) {
	n := newNode(t)
	b := n.render([]string{"quiet"}, "b")
	n.host.Change(func(s *fakehost.Script) { s.Delays = map[string]time.Duration{fakehost.Apply: 2 * time.Second} })
	n.desire(b)
	n.until("it applies", func() bool { return n.host.Counts()[fakehost.Apply] == 1 })
	n.kill()
	n.patch(`{"spec":{"unschedulable":false}}`)
	n.until("it has booted", func() bool { return n.host.Boots() == 1 })
	n.start()
	n.waitState(api.Done, b)
	if c := n.host.Counts(); c[fakehost.Apply] != 1 {
		t.Errorf("operations %v", c)
	}
}

func TestCordonOfSomebodyElseStays(t *testing.T) {
	n := newNode(t)
	n.patch(`{"spec":{"unschedulable":true}}`)
	b := n.render([]string{"quiet"}, "b")
	n.desire(b)
	o := n.waitState(api.Done, b)
	if !o.Spec.Unschedulable || o.Annotations[api.CordonKey] != "" {
		t.Errorf("unschedulable %t, ledger %q", o.Spec.Unschedulable, o.Annotations[api.CordonKey])
	}
}

func TestDegradedHealsByGoingBack(t *testing.T) {
	n := newNode(t)
	b := n.render([]string{"quiet"}, "b")
	n.host.Change(func(s *fakehost.Script) {
		s.Fault = func(operation, config string) error {
			if operation == fakehost.Apply && config == b {
				return fakehost.ErrBad
			}
			return nil
		}
	})
	n.desire(b)
	o := n.wait("degraded", func(_ *corev1.Node, a api.Node) bool { return a.State == api.Degraded })
	if !strings.Contains(o.Annotations[api.Reason], fakehost.ErrBad.Error()) {
		t.Errorf("reason %q", o.Annotations[api.Reason])
	}
	n.desire(n.a)
	o = n.waitState(api.Done, n.a)
	if o.Spec.Unschedulable || n.host.Boots() != 0 {
		t.Errorf("unschedulable %t, %d boots", o.Spec.Unschedulable, n.host.Boots())
	}
}

func TestRestartInEveryPhase(t *testing.T) {
	t.Parallel()
	delay := 1500 * time.Millisecond
	for _, phase := range []string{fakehost.Plan, fakehost.Stage, fakehost.Apply, fakehost.Boot, fakehost.Prove} {
		t.Run(phase, func(t *testing.T) {
			n := newNode(t)
			b := n.render([]string{"quiet"}, "b")
			n.host.Change(func(s *fakehost.Script) { s.Delays = map[string]time.Duration{phase: delay} })
			n.desire(b)
			n.until("it is there", func() bool { return n.host.Counts()[phase] > 0 })
			if took := n.kill(); took > unhurried {
				t.Errorf("the head took %s to end", took)
			}
			n.start()
			n.waitState(api.Done, b)
			if c := n.host.Counts(); n.host.Boots() != 1 || c[fakehost.Apply] > 2 || phase == fakehost.Stage && c[phase] != 1 {
				t.Errorf("%d boots, operations %v", n.host.Boots(), c)
			}
		})
	}
	t.Run("drain", func(t *testing.T) {
		n := newNode(t)
		release := n.block()
		b := n.render([]string{"quiet"}, "b")
		n.desire(b)
		n.until("it waits", func() bool { return n.mcn(mcfgv1.MachineConfigNodeUpdateDrained).Status == metav1.ConditionUnknown })
		cordon, since := n.get().Annotations[api.CordonKey], n.drain().Since
		n.kill()
		time.Sleep(2 * time.Second) //nolint:forbidigo // times have whole seconds
		n.start()
		n.until("it waits again", func() bool { return n.host.Counts()[fakehost.Plan] >= 2 })
		evictions := func() (count int) {
			for _, r := range n.requests() {
				if r.Object.Subresource == "eviction" {
					count++
				}
			}
			return count
		}
		before := evictions()
		n.until("it asks again", func() bool { return evictions() > before })
		if got := n.drain(); !got.Since.Equal(since) || got.Waiting[0].Since.After(since.Add(time.Second)) {
			t.Errorf("it waits since %s, and forgot that in a restart: %+v", since, got)
		}
		release()
		n.wait("rebooting under the same cordon", func(o *corev1.Node, a api.Node) bool {
			return a.Rebooting && o.Annotations[api.CordonKey] == cordon || a.Current == b
		})
		n.waitState(api.Done, b)
	})
}

func TestRetargetMidApplyWaitsAndSaysSo(t *testing.T) {
	n := newNode(t)
	b, c := n.render([]string{"quiet"}, "b"), n.render([]string{"quiet"}, "c")
	applied := n.keeps(fakehost.Apply)
	n.desire(b)
	n.until("it applies", func() bool { return n.host.Counts()[fakehost.Apply] == 1 })
	n.desire(c)
	n.wait("waiting", func(o *corev1.Node, a api.Node) bool {
		return a.State == api.Working && strings.Contains(a.Reason, "waits for the apply of "+b) && o.Spec.Unschedulable
	})
	applied()
	n.waitState(api.Done, c)
}

// drain is what the MachineConfigNode says of the drain.
func (n *node) drain() api.Drain {
	n.t.Helper()
	object, err := n.MachineConfigs.MachineconfigurationV1().MachineConfigNodes().Get(n.ctx(), n.name, metav1.GetOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	d, err := api.Decode[api.Drain](object.Annotations, api.DrainKey)
	if err != nil {
		n.t.Fatal(err)
	}
	return d
}

// One outage, and a node in each phase when it comes.
func TestAPIServerAwayInEveryPhase(t *testing.T) {
	const outage = 8 * time.Second
	control := cluster.New(t, cluster.Options{Controllers: true, Kwok: true})
	type update struct {
		*node

		b     string
		phase string
		lines int
		gets  int
	}
	var updates []*update
	for _, phase := range []string{fakehost.Plan, fakehost.Stage, "drain", fakehost.Apply, fakehost.Boot, fakehost.Prove} {
		n := settled(t, control, phase)
		updates = append(updates, &update{node: n, b: n.render([]string{"quiet"}, "b"), phase: phase})
	}
	release := updates[2].block()
	for _, u := range updates {
		u.host.Change(func(s *fakehost.Script) { s.Delays = map[string]time.Duration{u.phase: outage / 2} })
		u.desire(u.b)
	}
	for _, u := range updates {
		u.until(u.phase+" has begun", func() bool {
			if u.phase == "drain" {
				return u.mcn(mcfgv1.MachineConfigNodeUpdateDrained).Status == metav1.ConditionUnknown
			}
			return u.host.Counts()[u.phase] > 0
		})
		u.lines, u.gets = u.logs.total(), u.node.gets.total()
	}
	control.StopAPI()
	time.Sleep(outage) //nolint:forbidigo // the API server is away for so long
	for _, u := range updates {
		if got := u.node.gets.total() - u.gets; got > 6 {
			t.Errorf("%s: %d reads of the Node in %s without an API server", u.phase, got, outage)
		}
		if got := u.logs.total() - u.lines; got > 20 {
			t.Errorf("%s: %d lines of log in %s without an API server", u.phase, got, outage)
		}
	}
	if err := control.StartAPI(updates[0].ctx()); err != nil {
		t.Fatal(err)
	}
	release()
	for _, u := range updates {
		u.waitState(api.Done, u.b)
		if c := u.host.Counts(); u.host.Boots() != 1 || c[fakehost.Apply] != 1 || c[fakehost.Stage] != 1 {
			t.Errorf("%s: %d boots, operations %v: something was done again", u.phase, u.host.Boots(), c)
		}
	}
}

func TestNodeDeletedMidUpdate(t *testing.T) {
	n := newNode(t)
	b := n.render([]string{"quiet"}, "b")
	n.host.Change(func(s *fakehost.Script) { s.Delays = map[string]time.Duration{fakehost.Boot: 2 * time.Second} })
	n.desire(b)
	n.until("it reboots", func() bool { return n.host.Counts()[fakehost.Boot] == 1 })
	if err := n.Client.CoreV1().Nodes().Delete(n.ctx(), n.name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	n.until("the host is done", func() bool { return n.host.Committed() == b })
	if err := n.AddNode(n.ctx(), n.name, nil); err != nil {
		t.Fatal(err)
	}
	n.desire(b)
	o := n.waitState(api.Done, b)
	if o.Spec.Unschedulable || n.host.Boots() != 1 {
		t.Errorf("unschedulable %t, %d boots", o.Spec.Unschedulable, n.host.Boots())
	}
}

func TestUnreconcilableServes(t *testing.T) {
	n := newNode(t)
	mc := rendered(t, nil, n.name+"-fips")
	mc.Spec.FIPS = true
	mc.Name = renamed(t, mc)
	if _, err := n.MachineConfigs.MachineconfigurationV1().MachineConfigs().Create(n.ctx(), mc, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	n.desire(mc.Name)
	o := n.wait("unreconcilable", func(_ *corev1.Node, a api.Node) bool { return a.State == api.Unreconcilable })
	if !strings.Contains(o.Annotations[api.Reason], "fips") || o.Spec.Unschedulable {
		t.Errorf("reason %q, unschedulable %t", o.Annotations[api.Reason], o.Spec.Unschedulable)
	}
	n.desire(n.a)
	n.waitState(api.Done, n.a)
}
