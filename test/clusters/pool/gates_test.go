// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/noderefit/noderefit/api"
)

// health is a ConfigMap that gates ask for, and says whether it says that all is well.
func (l *lab) health(well bool) {
	l.t.Helper()
	maps := l.Client.CoreV1().ConfigMaps(metav1.NamespaceDefault)
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "health"}, Data: map[string]string{"well": fmt.Sprint(well)}}
	if _, err := maps.Update(l.ctx, m, metav1.UpdateOptions{}); err == nil {
		return
	}
	if _, err := maps.Create(l.ctx, m, metav1.CreateOptions{}); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() {
		if err := maps.Delete(context.Background(), m.Name, metav1.DeleteOptions{}); err != nil {
			l.t.Error(err)
		}
	})
}

// healthGate asks for it, with what else is to be said of the gate.
func healthGate(more string) string {
	return `{"name":"healthy","cel":{"apiVersion":"v1","kind":"ConfigMap","namespace":"default","name":"health",
		"expression":"object.data.well == 'true' && nodes.all(n, n.metadata.name != '')"}` + more + `}`
}

func canaryWith(gate string) string {
	return `{"pools":["worker"],"stages":[{"name":"canary","nodes":1,"gates":[` + gate + `]}]}`
}

// saysNo waits until the gate was asked: no deadline counts from before.
func (l *lab) saysNo() {
	l.t.Helper()
	l.heldBy("worker", "GateClosed", "the expression is false for ConfigMap health")
}

func (l *lab) governed(name, spec string) {
	l.t.Helper()
	l.mustPolicy(name, spec)
	l.until("the policy is read", func() bool { return l.ready(name) == "True "+api.RolloutInForce })
}

func TestACanaryThatFailsItsGateGoesBackAndTheRolloutStops(t *testing.T) {
	l, c := workers(t, 4, "2")
	l.health(false)
	l.governed("careful", canaryWith(healthGate(`,"deadlineSeconds":600,"onDeadline":"RollBack"`)))
	l.target("worker", configB)

	const closed = "gate healthy of stage canary is closed: the expression is false for ConfigMap health in default"
	l.heldBy("worker", "GateClosed", closed)
	l.event("worker", "Held", closed)
	l.explained("w-3", "GateClosed", closed)
	l.explained("worker", "GateClosed", "the nodes go back")
	l.measures(c, `noderefit_pool_gates_closed{gate="healthy",policy="careful",pool="worker"}`, "1")
	l.until("the policy says so", func() bool {
		gates := l.getPolicy("careful").Status.Gates
		return len(gates) == 1 && gates[0].Stage == "canary" && !gates[0].Passed && gates[0].Config == configB
	})
	l.told(map[string][]string{"w-0": {configB}})

	// At the deadline it goes back, and who asks meanwhile hears why.
	l.agents.hold("w-0", true)
	l.setClock(time.Now().Add(11 * time.Minute))
	const failed = "gate healthy of stage canary was closed at its deadline"
	l.until("it is quarantined", func() bool {
		return strings.HasPrefix(l.condition("worker", api.PoolQuarantined), "True "+configB+" is offered to no node: "+failed)
	})
	l.explained("worker", "Quarantined", "1 node still to go back to "+configA)
	l.agents.hold("w-0", false)
	l.explained("w-0", "Quarantined", failed)
	l.explained("w-3", "Quarantined", failed)
	l.event("worker", "Quarantined", failed)
	l.event("worker", "RollingBack", "Node w-0 goes back from "+configB+" to "+configA+": gate healthy")
	l.until("the metrics say so", func() bool { return c.metric(t, `noderefit_pool_quarantined{pool="worker"}`) == "1" })
	if out := l.refit("quarantine", "list"); !strings.Contains(out, configB) || !strings.Contains(out, "of stage canary") {
		t.Errorf("quarantine list:\n%s", out)
	}
	l.told(map[string][]string{"w-0": {configB, configA}})

	// Lifted, it has its time anew.
	l.refit("quarantine", "lift", "worker")
	l.heldBy("worker", "GateClosed", closed)
	l.health(true)
	l.updated("worker", configB)
	l.told(map[string][]string{
		"w-0": {configB, configA, configB}, "w-1": {configB}, "w-2": {configB}, "w-3": {configB},
	})
}

func TestTheLastStageFailsItsGateAndAllGoBack(t *testing.T) {
	l, _ := workers(t, 3, "1")
	l.health(false)
	l.governed("careful", `{"pools":["worker"],"stages":[{"name":"all","gates":[`+
		healthGate(`,"deadlineSeconds":600,"onDeadline":"RollBack"`)+`]}]}`)
	l.target("worker", configB)
	l.heldBy("worker", "GateClosed", "gate healthy of stage all is closed")
	l.explained("worker", "GateClosed", "all 3 nodes have "+configB)
	l.saysNo()
	if got := l.getPool("worker").Status.Configuration.Name; got != configA {
		t.Errorf("the pool counts as updated to %s before its gates have passed", got)
	}
	l.change("worker", `{"spec":{"paused":true}}`)
	l.setClock(time.Now().Add(11 * time.Minute))
	l.explained("w-2", "GoingBack", "the node goes back to "+configA+" when its turn comes")
	l.change("worker", `{"spec":{"paused":false}}`)
	l.until("all are back", func() bool {
		return l.stand("w-0").Updated(configA) && l.stand("w-1").Updated(configA) && l.stand("w-2").Updated(configA)
	})
	if _, _, most := l.eye.seen(); most > 1 {
		t.Errorf("%d nodes were out of service at a time", most)
	}
}

func TestAtItsDeadlineAGateIsSkippedOrHolds(t *testing.T) {
	l, _ := workers(t, 2, "1")
	l.health(false)
	l.governed("skips", canaryWith(healthGate(`,"deadlineSeconds":600,"onDeadline":"Skip"`)))
	l.target("worker", configB)
	l.saysNo()
	l.heldBy("worker", "GateClosed", "the gate is skipped at")
	l.setClock(time.Now().Add(11 * time.Minute))
	l.updated("worker", configB)

	if err := l.Client.CoreV1().RESTClient().Delete().AbsPath(policiesPath, "skips").Do(l.ctx).Error(); err != nil {
		t.Fatal(err)
	}
	l.governed("holds", canaryWith(healthGate(`,"deadlineSeconds":600`)))
	l.target("worker", configA)
	l.saysNo()
	l.heldBy("worker", "GateClosed", "its deadline is at")
	l.setClock(time.Now().Add(30 * time.Minute))
	l.heldBy("worker", "GateFailed", "its deadline was at")
	l.explained("worker", "GateFailed", "gate healthy of stage canary is closed")
	if got := l.condition("worker", api.Stalled); !strings.HasPrefix(got, "True ") {
		t.Errorf("Stalled: %s", got)
	}
	l.health(true)
	l.updated("worker", configA)
}

func TestAJobOpensItsGateWhenItCompletes(t *testing.T) {
	l, _ := workers(t, 2, "1")
	jobs, all := l.Client.BatchV1().Jobs(metav1.NamespaceDefault), metav1.ListOptions{LabelSelector: api.JobGateLabel}
	cron := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: "smoke"}}
	cron.Spec.Schedule, cron.Spec.Suspend = "0 0 1 1 *", new(true)
	job := &cron.Spec.JobTemplate.Spec
	job.ManagedBy = new("noderefit.dev/test") // it ends as the test says
	job.Template.Spec = corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "i"}},
	}
	crons := l.Client.BatchV1().CronJobs(metav1.NamespaceDefault)
	if _, err := crons.Create(l.ctx, cron, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, now := context.Background(), metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)}
		if err := crons.Delete(ctx, cron.Name, now); err != nil {
			t.Error(err)
		}
		if err := jobs.DeleteCollection(ctx, now, all); err != nil {
			t.Error(err)
		}
	})
	l.governed("tested", canaryWith(`{"name":"smoke","job":{"namespace":"default","cronJob":"smoke"}}`))
	l.target("worker", configB)
	l.heldBy("worker", "GateClosed", "gate smoke of stage canary is closed: Job default/gate-smoke-")
	var list *batchv1.JobList
	l.until("there is one Job", func() bool {
		var err error
		if list, err = jobs.List(l.ctx, all); err != nil {
			t.Fatal(err)
		}
		return len(list.Items) == 1
	})
	status, err := json.Marshal(map[string]any{"status": batchv1.JobStatus{
		StartTime: new(metav1.Now()), CompletionTime: new(metav1.Now()), Succeeded: 1,
		Conditions: []batchv1.JobCondition{
			{Type: batchv1.JobSuccessCriteriaMet, Status: corev1.ConditionTrue},
			{Type: batchv1.JobComplete, Status: corev1.ConditionTrue},
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := jobs.Patch(l.ctx, list.Items[0].Name, types.MergePatchType, status, metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	l.updated("worker", configB)
	if list, err := jobs.List(l.ctx, all); err != nil || len(list.Items) != 1 {
		t.Errorf("%d Jobs were made, %v", len(list.Items), err)
	}
}

func TestANodeTakesItsPlaceUntilItsAnnotationIsAnswered(t *testing.T) {
	const key = "storage.example.com/healthy"
	l, _ := workers(t, 2, "1")
	say := func(node string) {
		t.Helper()
		l.mustPatchNode(node, `{"metadata":{"annotations":{"`+key+`":"yes"}}}`)
	}
	// Said before anybody asked.
	say("w-0")
	say("w-1")
	l.governed("asks", `{"pools":["worker"],"gates":[{"name":"storage","annotation":{"key":"`+key+`","value":"yes"}}]}`)
	l.target("worker", configB)
	asked := func(node string) {
		t.Helper()
		l.until(node+" is asked", func() bool {
			n := l.getNode(node)
			return strings.HasPrefix(n.Annotations[api.AskPrefix+"storage"], configB+" ") && n.Annotations[key] == ""
		})
	}
	asked("w-0")
	const closed = "gate storage of node w-0 is closed: node w-0: asked by noderefit.dev/ask-storage"
	l.explained("w-0", "GateClosed", closed)
	l.explained("w-1", "WaitsForTurn", closed)
	l.heldBy("worker", "GateClosed", closed)
	l.told(map[string][]string{"w-0": {configB}})
	say("w-0")
	asked("w-1")
	// All are there, and it is not over.
	l.heldBy("worker", "GateClosed", "gate storage of node w-1 is closed")
	say("w-1")
	l.updated("worker", configB)
	l.heldBy("worker", "", "")
}

func TestAGateThatMakesNoSenseIsRefusedByField(t *testing.T) {
	l := newLab(t)
	l.alone()
	const cel = `"cel":{"apiVersion":"v1","kind":"Pod","expression":"true"}`
	for name, c := range map[string]struct{ gate, want string }{
		"two-questions": {`{"name":"g",` + cel + `,"hostCheck":{"name":"x"}}`, "spec.gates[0]: Invalid value"},
		"no-question":   {`{"name":"g"}`, "exactly one of cel, prometheus"},
		"no-deadline":   {`{"name":"g",` + cel + `,"onDeadline":"Skip"}`, "spec.gates[0].onDeadline: "},
		"on-what":       {`{"name":"g",` + cel + `,"deadlineSeconds":1,"onDeadline":"Panic"}`, "spec.gates[0].onDeadline: Unsupported"},
		"no-address":    {`{"name":"g","prometheus":{"url":"prometheus:9090","query":"1"}}`, "spec.gates[0].prometheus.url: "},
		"password":      {`{"name":"g","prometheus":{"url":"http://a:b@c","query":"1"}}`, "spec.gates[0].prometheus.url: "},
		"both-selected": {
			`{"name":"g","cel":{"apiVersion":"v1","kind":"Pod","name":"x","labelSelector":{},"expression":"true"}}`,
			"spec.gates[0].cel.labelSelector: ",
		},
		"own-answer": {`{"name":"g","annotation":{"key":"noderefit.dev/lift"}}`, "spec.gates[0].annotation.key: "},
		"kubelets":   {`{"name":"g","annotation":{"key":"node.alpha.kubernetes.io/ttl"}}`, "spec.gates[0].annotation.key: "},
		"drivers":    {`{"name":"g","annotation":{"key":"csi.volume.kubernetes.io/nodeid"}}`, "spec.gates[0].annotation.key: "},
		"clusters":   {`{"name":"g","annotation":{"key":"cluster.x-k8s.io/machine"}}`, "spec.gates[0].annotation.key: "},
		"kinds":      {`{"name":"g","annotation":{"key":"k8s.io/x"}}`, "spec.gates[0].annotation.key: "},
		"agents":     {`{"name":"g","annotation":{"key":"machineconfiguration.openshift.io/reason"}}`, "spec.gates[0].annotation.key: "},
		"a-path":     {`{"name":"g","hostCheck":{"name":"../x"}}`, "spec.gates[0].hostCheck.name: "},
	} {
		err := l.policy(name, `{"pools":["worker"],"gates":[`+c.gate+`]}`)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
	l.mustPolicy("own-key", `{"pools":["none"],"gates":[{"name":"g","annotation":{"key":"my-k8s.io/kubernetes.io.ok"}}]}`)
	// What the schema can't see.
	l.mustPolicy("syntax", `{"pools":["worker"],"gates":[{"name":"g","cel":{"apiVersion":"v1","kind":"Pod","expression":"nodes.x("}}]}`)
	l.until("the policy says so", func() bool {
		for _, c := range l.getPolicy("syntax").Status.Conditions {
			if c.Type == api.RolloutReady && c.Status == metav1.ConditionFalse {
				return c.Reason == api.RolloutInvalid && strings.Contains(c.Message, "spec.gates[0].cel.expression: ")
			}
		}
		return false
	})
}
