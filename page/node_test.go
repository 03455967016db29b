// SPDX-License-Identifier: Apache-2.0

package page

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
)

func TestAWantedRebootIsOnThePages(t *testing.T) {
	t.Parallel()
	f := busyCluster()
	for i := range f.Nodes {
		if n := &f.Nodes[i]; n.Name == "master-1" {
			n.Annotations[api.RebootWantedKey] = api.Encode(api.RebootWanted{Reasons: []api.RebootReason{{Kind: api.RebootPackages,
				Message: "System restart required", Packages: []string{"libc6"}, Since: noon.Add(-2 * time.Hour)}}})
		}
	}
	h := f.handler()
	for where, text := range map[string]string{
		"the pool": section(t, get(t, h, "/page/"), "master").text(), "the node": get(t, h, "/page/nodes/master-1").text(),
	} {
		contains(t, where, text, "RebootWanted", "a reboot: System restart required (libc6) Since 2026-11-22 10:00 UTC")
	}
}

func TestANodesPageSaysAllOfIt(t *testing.T) {
	t.Parallel()
	f := busyCluster()
	for i := range f.Nodes {
		n := &f.Nodes[i]
		if n.Name != "worker-2" {
			continue
		}
		n.CreationTimestamp = metav1.NewTime(noon.AddDate(0, -1, 0))
		n.Spec.Unschedulable = true
		n.Labels[api.Zone] = "west"
		n.Annotations[api.CordonKey] = api.Encode(api.Cordon{By: api.Daemon, Reason: "update", Since: noon.Add(-13 * time.Minute)})
		n.Annotations[api.HoldKey] = api.Encode(api.NodeHold{By: "jane", Why: "looking at it", Since: noon.Add(-time.Minute)})
	}
	said := f.States["worker-2"]
	said.Annotations[api.UpdateKey] = api.Encode(api.Update{Config: rendered("worker", "b"), Since: noon.Add(-14 * time.Minute)})
	said.Status.Conditions = append(said.Status.Conditions, metav1.Condition{
		Type: string(mcfgv1.MachineConfigNodeUpdatePrepared), Status: metav1.ConditionTrue, Reason: "Prepared",
		Message: "reboot, because of file /etc/x", LastTransitionTime: metav1.NewTime(noon.Add(-13 * time.Minute)),
	})
	h := f.handler()
	page := get(t, h, "/page/nodes/worker-2")
	text := page.text()
	contains(t, "worker-2", text, "worker-2 ! Draining", "of pool worker",
		"the drain for "+rendered("worker", "b")+" waits: pod shop/checkout-7d9 is held by PodDisruptionBudget checkout",
		"Blocked by PodDisruptionBudget shop/checkout", "What to do give the pod's workload another ready replica",
		"Has "+rendered("worker", "a")+" Is to have "+rendered("worker", "b")+" The pool's the same",
		"Agent's state Working", "Cordoned by "+api.Daemon+": update", "Held by jane: looking at it", "Zone west",
		"shop/checkout-7d9 12m DisruptionBudget: PodDisruptionBudget checkout allows 0",
		"Drained ↻ Unknown 12m", "UpdatePrepared ✓ True 13m Prepared reboot, because of file /etc/x",
	)
	var history []string
	for _, li := range page.all(func(e *element) bool { return e.Data == "ol" })[0].all(called("li")) {
		history = append(history, li.text())
	}
	want := []string{
		"2026-11-22 11:59 UTC 60s jane held the node: looking at it.",
		"2026-11-22 11:48 UTC 12m The drain began.",
		"2026-11-22 11:48 UTC 12m Drained is under way.",
		"2026-11-22 11:47 UTC 13m " + api.Daemon + " cordoned the node: update.",
		"2026-11-22 11:47 UTC 13m UpdatePrepared became true.",
		"2026-11-22 11:46 UTC 14m The update to bbbbbbbb began.",
		"2026-11-22 11:00 UTC 60m Pool worker was to have bbbbbbbb.",
		"2026-10-22 12:00 UTC 31d The Node was made.",
	}
	if strings.Join(history, "\n") != strings.Join(want, "\n") {
		t.Errorf("its history is\n%s\nnot\n%s", strings.Join(history, "\n"), strings.Join(want, "\n"))
	}
	// There is a way to it, and back.
	if got := get(t, h, "/page/").all(func(e *element) bool { return e.attribute("href") == "/page/nodes/worker-2" }); len(got) != 1 {
		t.Errorf("the first page leads to it %d times", len(got))
	}
	for _, back := range []string{"/page/", "/page/pools/worker"} {
		if got := page.all(func(e *element) bool { return e.attribute("href") == back }); len(got) == 0 {
			t.Errorf("nothing leads back to %s", back)
		}
	}

	contains(t, "gpu-1", get(t, h, "/page/nodes/gpu-1").text(), "gpu-1 ! RolledBack",
		"Quarantined Configuration Failed on Since Reason "+rendered("gpu", "d")+" gpu-1 60m health check nvidia-smi: exit 9")
	contains(t, "master-1", get(t, h, "/page/nodes/master-1").text(), "✓ Updated", "Updated ✓ True")
	contains(t, "lost-1", get(t, h, "/page/nodes/lost-1").text(), "○ Unmanaged", "no MachineConfigPool selects the node",
		"Has none Is to have none", "There is no MachineConfigNode of this name: the agent has not reported.")
}

func TestANodeThatIsNotThereHasNoPage(t *testing.T) {
	t.Parallel()
	h := busyCluster().handler()
	for path, want := range map[string]string{
		"/page/nodes/none":                         "There is no Node none.",
		"/page/nodes/..%2f..%2fetc":                "There is no Node ../../etc.",
		"/page/nodes/%3Cscript%3Ealert(1)%3C/a":    "There is no page",
		"/page/nodes/%3Cscript%3Ealert(1)":         "There is no Node <script>alert(1).",
		"/page/nodes/" + strings.Repeat("a", 5000): "There is no Node aaaa",
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody))
		body := parse(t, w)
		if w.Code != http.StatusNotFound {
			t.Errorf("%.40s: %d", path, w.Code)
		}
		contains(t, path, body.text(), want)
		if len(body.all(called("script"))) > 0 {
			t.Errorf("%s: there is a script", path)
		}
	}
}

// What agents and people write need not be what it should be.
func TestANodesPageStandsGarbage(t *testing.T) {
	t.Parallel()
	f := &fixture{}
	f.pool("worker", "x")
	f.node("n", "worker", "", "", "Nonsense", func(n *corev1.Node) {
		for _, key := range []string{
			api.CordonKey, api.HoldKey, api.QuarantinedKey, api.DriftKey, api.StagedKey, api.DrainHeldKey, api.UndeliveredKey,
		} {
			n.Annotations[key] = `{"since":7`
		}
	})
	f.says("n", "x", "", "Perhaps", time.Time{}, map[string]string{api.DrainKey: "[", api.UpdateKey: "[", api.HookStopKey: "["})
	contains(t, "the page", get(t, f.handler(), "/page/nodes/n").text(), "Agent's state Nonsense", "Perhaps")
}
