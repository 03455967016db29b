// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"context"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/noderefit/noderefit/api"
)

// tooMany is a number that the definition of a pool admits, and that no Go type of it holds.
const tooMany = `{"spec":{"maxUnavailable":1099511627776}}`

// raw sends a patch whose answer no client here could read.
func (l *lab) raw(resource, name, patch string, sub ...string) {
	l.t.Helper()
	path := "/apis/" + mcfgv1.GroupVersion.String() + "/" + resource + "/" + name
	_, err := l.Client.CoreV1().RESTClient().Patch(types.MergePatchType).AbsPath(append([]string{path}, sub...)...).
		Body([]byte(patch)).DoRaw(l.ctx)
	if err != nil {
		l.t.Fatal(err)
	}
}

// says is what kubectl finds by a path in an object.
func (l *lab) says(object, jsonpath string) string {
	l.t.Helper()
	out, err := l.Kubectl(context.Background(), "get", object, "-o", "jsonpath="+jsonpath)
	if err != nil {
		l.t.Fatal(err)
	}
	return out
}

// motd has every pool of the test ask for a file with a text.
func (l *lab) motd(text string, pools ...string) {
	l.t.Helper()
	configs := l.MachineConfigs.MachineconfigurationV1().MachineConfigs()
	for _, pool := range pools {
		mc := &mcfgv1.MachineConfig{ObjectMeta: metav1.ObjectMeta{
			Name: "50-" + pool, Labels: map[string]string{api.Role: pool},
		}}
		mc.Spec.Config.Raw = []byte(`{"ignition":{"version":"3.4.0"},"storage":{"files":[{"path":"/etc/motd",` +
			`"contents":{"source":"data:,` + text + `"}}]}}`)
		_ = configs.Delete(l.ctx, mc.Name, metav1.DeleteOptions{})
		if _, err := configs.Create(l.ctx, mc, metav1.CreateOptions{}); err != nil {
			l.t.Fatal(err)
		}
		l.t.Cleanup(func() { _ = configs.Delete(context.Background(), mc.Name, metav1.DeleteOptions{}) })
	}
}

func selectsRole(p *mcfgv1.MachineConfigPool) {
	p.Spec.MachineConfigSelector = &metav1.LabelSelector{MatchLabels: map[string]string{api.Role: p.Name}}
}

// movedOn waits until a node has another configuration than the one given, and says which.
func (l *lab) movedOn(node, from string) string {
	l.t.Helper()
	var now string
	l.until("node "+node+" has left "+from, func() bool {
		now = l.stand(node).Current
		return now != from && l.stand(node).Settled()
	})
	return now
}

func TestAPoolThatCanNotBeReadStopsNoOther(t *testing.T) {
	l := newLab(t)
	path, err := refit()
	if err != nil {
		t.Fatal(err)
	}
	ask := func(args ...string) string {
		out, _ := exec.Command(path, append(args, "--kubeconfig="+l.Kubeconfig)...).CombinedOutput()
		return string(out)
	}
	l.node("w-0", "worker", "rendered-worker-a")
	l.node("p-0", "pb", "rendered-pb-a")
	l.pool("worker", "", selectsRole)
	l.pool("pb", "", selectsRole)
	l.motd("one", "worker", "pb")
	c := l.alone("--controllers=pool,render")
	worker, pb := l.movedOn("w-0", "rendered-worker-a"), l.movedOn("p-0", "rendered-pb-a")
	l.eye.forget()

	const problem = "spec.maxUnavailable can't be read: cannot unmarshal number 1099511627776 into Go value of type int32"
	l.raw("machineconfigpools", "pb", tooMany)
	l.motd("two", "worker", "pb")
	worker = l.movedOn("w-0", worker)
	named := func() {
		t.Helper()
		l.until("the pool names the field", func() bool {
			const degraded = `{.status.conditions[?(@.type=="Degraded")]['status','message']}`
			const rendered = `{.status.conditions[?(@.type=="RenderDegraded")]['status','reason','message']}`
			return strings.Contains(l.says("mcp/pb", degraded), "True") &&
				strings.Contains(l.says("mcp/pb", degraded), problem) &&
				strings.Contains(l.says("mcp/pb", rendered), "True Unreadable MachineConfigPool/pb: "+problem)
		})
		l.until("a metric counts it", func() bool {
			return c.metric(t, `noderefit_unreadable_object{kind="MachineConfigPool",name="pb"}`) == "1"
		})
	}
	named()
	l.until("an event tells of it", func() bool {
		out, err := l.Kubectl(l.ctx, "get", "events", "-A", "--field-selector=involvedObject.name=pb,reason=Unreadable")
		return err == nil && strings.Contains(out, "MachineConfigPool/pb") || strings.Contains(out, "machineconfigpool/pb")
	})
	if got := ask("explain", "pb"); !strings.Contains(got, problem) || !strings.Contains(got, "blocking: MachineConfigPool pb") {
		t.Errorf("kubectl refit explain pb says:\n%s", got)
	}
	if got := ask("status"); !strings.Contains(got, "worker") || !strings.Contains(got, "pb") {
		t.Errorf("kubectl refit status says:\n%s", got)
	}

	// A list is another way than a watch: one that has just started goes it.
	c.stop(t, syscall.SIGTERM)
	l.motd("three", "worker", "pb")
	c = l.alone("--controllers=pool,render")
	l.movedOn("w-0", worker)
	named()
	if told, _, _ := l.eye.seen(); len(told["p-0"]) > 0 || l.stand("p-0").Current != pb {
		t.Errorf("the node of the pool that can't be read was told %v", told["p-0"])
	}

	l.raw("machineconfigpools", "pb", `{"spec":{"maxUnavailable":1}}`)
	l.movedOn("p-0", pb)
	l.until("it is all over", func() bool {
		return c.metric(t, `noderefit_unreadable_object{kind="MachineConfigPool",name="pb"}`) == "" &&
			strings.HasPrefix(l.condition("pb", mcfgv1.MachineConfigPoolDegraded), "False") &&
			strings.HasPrefix(l.condition("pb", mcfgv1.MachineConfigPoolRenderDegraded), "False")
	})
}

// A status is its writer's: what can't be read of one is written anew, also where the rest of it is as it should be.
func TestAStatusThatCanNotBeReadIsWrittenAnew(t *testing.T) {
	l := newLab(t)
	l.node("w-0", "worker", "rendered-worker-a")
	l.pool("worker", "rendered-worker-a")
	l.mustPolicy("plain", `{"pools":["worker"]}`)
	c := l.alone()
	l.until("the policy is in force", func() bool { return strings.HasPrefix(l.ready("plain"), "True") })
	// It has no windows, so that there is no next one: as the field reads where it can't be read.
	_, err := l.Client.CoreV1().RESTClient().Patch(types.MergePatchType).AbsPath(policiesPath, "plain", "status").
		Body([]byte(`{"status":{"nextWindow":"2026-01-02T03:04:05+99:99"}}`)).DoRaw(l.ctx)
	if err != nil {
		t.Fatal(err)
	}
	l.mustPatchNode("w-0", `{"metadata":{"annotations":{"`+api.Reason+`":"so that the controller looks"}}}`)
	l.until("the time that can't be read is gone", func() bool {
		return l.says("rolloutpolicy/plain", "{.status.nextWindow}") == ""
	})
	l.until("no metric counts it", func() bool {
		return c.metric(t, `noderefit_unreadable_object{kind="RolloutPolicy",name="plain"}`) == ""
	})
}
