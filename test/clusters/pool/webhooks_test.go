// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/noderefit/noderefit/api"
)

// requested counts the requests of our controllers since a time.
func (l *lab) requested(since time.Time) int {
	l.t.Helper()
	requests, err := l.Requests()
	if err != nil {
		l.t.Fatal(err)
	}
	count := 0
	for _, r := range requests {
		if strings.HasPrefix(r.UserAgent, api.Controller) && r.Received.After(since) && r.Verb != "watch" &&
			r.Object.Resource != "leases" {
			count++
		}
	}
	return count
}

// anEvent is the path of an event that is there.
func (l *lab) anEvent() string {
	l.t.Helper()
	list, err := l.Client.CoreV1().Events(metav1.NamespaceDefault).List(l.ctx, metav1.ListOptions{Limit: 1})
	if err != nil || len(list.Items) == 0 {
		l.t.Fatalf("there is no event: %v", err)
	}
	return "/apis/events.k8s.io/v1/namespaces/default/events/" + list.Items[0].Name
}

// A webhook whose server is gone refuses every write after its timeout.
func TestWritesThatAWebhookHoldsUpAreNamedAndGoOnAfterIt(t *testing.T) {
	l := newLab(t)
	const says = "hangs.example.com"
	for _, name := range []string{"w-0", "w-1"} {
		l.node(name, "worker", "rendered-worker-a")
	}
	l.pool("worker", "", selectsRole)
	l.motd("0", "worker")
	l.alone("--controllers=pool,render")
	there := l.movedOn("w-1", "rendered-worker-a")
	l.updated("worker", there)
	const ours = "machineconfiguration.openshift.io"
	const v1 = "/apis/" + ours + "/v1/"
	for i, c := range []struct {
		name, group, version, condition string
		resources                       []string
		probe                           func() string // the object whose writes show that the API server asks the webhook
		named                           func() bool
	}{
		{
			"Nodes", "", "v1", "true", []string{"nodes"}, func() string { return "/api/v1/nodes/w-1" },
			func() bool { return strings.Contains(l.refit("explain", "worker"), says) },
		}, {
			"rendered MachineConfigs", ours, "v1", `request.name.startsWith("rendered-")`, []string{"machineconfigs"},
			func() string { return v1 + "machineconfigs/" + there },
			func() bool { return strings.Contains(l.refit("explain", "worker"), says) },
		}, {
			"MachineConfigPools", ours, "v1", "true", []string{"machineconfigpools", "machineconfigpools/status"},
			func() string { return v1 + "machineconfigpools/worker" },
			func() bool {
				return strings.Contains(l.mustKubectl("get", "events", "-A", "--field-selector=involvedObject.name=worker"), says)
			},
		}, {"Events", "events.k8s.io", "v1", "true", []string{"events"}, l.anEvent, nil},
	} {
		end := l.Hang(l.t, c.group, c.version, c.condition, c.resources...)
		l.until(c.name+": the API server asks the webhook", func() bool {
			err := l.Client.CoreV1().RESTClient().Patch(types.MergePatchType).AbsPath(c.probe()).Param("dryRun", metav1.DryRunAll).
				Body([]byte(`{"metadata":{"labels":{"probe":"x"}}}`)).Do(l.ctx).Error()
			return err != nil && strings.Contains(err.Error(), says)
		})
		begin := time.Now()
		l.motd(string(rune('1'+i)), "worker")
		if c.named == nil {
			there = l.movedOn("w-1", there)
		} else {
			l.until(c.name+": people are told", c.named)
			l.until("some time is over", func() bool { return time.Since(begin) > 20*time.Second })
			if n := l.requested(begin); n > 60 {
				t.Errorf("%s: %d requests in %s", c.name, n, time.Since(begin))
			} else {
				t.Logf("%s: %d requests in %s", c.name, n, time.Since(begin).Round(time.Second))
			}
			if n := l.stand("w-1"); n.Current != there {
				t.Errorf("%s: a node moved to %s", c.name, n.Current)
			}
			end()
			there = l.movedOn("w-1", there)
		}
		end()
		l.updated("worker", there)
		l.until(c.name+": it is said no more", func() bool { return !strings.Contains(l.refit("explain", "worker"), says) })
	}
}

// Who can't renew its lease must not go on, as another may have it. The next process takes it once that is possible.
func TestALeaseThatAWebhookHoldsUpEndsItsHolderAndIsTakenAgain(t *testing.T) {
	l := newLab(t)
	l.node("w-0", "worker", "rendered-worker-a")
	l.pool("worker", "rendered-worker-b")
	l.namespace()
	first := l.controller()
	l.updated("worker", "rendered-worker-b")
	end := l.Hang(l.t, "coordination.k8s.io", "v1", `request.namespace == "`+api.Namespace+`"`, "leases")
	begin := time.Now()
	ended := make(chan error, 1)
	go func() { ended <- first.cmd.Wait() }()
	select {
	case <-ended:
		first.stopped = true
	case <-time.After(patience):
		t.Fatal("it leads without a lease")
	}
	second := l.controller()
	l.target("worker", "rendered-worker-c")
	time.Sleep(5 * time.Second) //nolint:forbidigo // nothing announces that nothing happens
	if n := l.stand("w-0"); n.Desired != "rendered-worker-b" {
		t.Errorf("without a lease a node was sent to %s", n.Desired)
	}
	if n := l.requested(begin); n > 100 {
		t.Errorf("%d requests in %s", n, time.Since(begin))
	}
	end()
	l.updated("worker", "rendered-worker-c")
	second.stop(t, syscall.SIGTERM)
}
