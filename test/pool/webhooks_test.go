// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"context"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
)

// hangs has the API server ask a webhook that does not answer about all writes of a resource that fit a condition, in
// CEL, and returns what ends that.
func (l *lab) hangs(group, version, condition string, resources ...string) (end func()) {
	l.t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then it is seen that the client has gone
		<-r.Context().Done()
	}))
	l.t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	none, fail, url := admissionregistrationv1.SideEffectClassNone, admissionregistrationv1.Fail, server.URL
	config := &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "hangs"},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "hangs.example.com", SideEffects: &none, FailurePolicy: &fail, AdmissionReviewVersions: []string{"v1"},
			TimeoutSeconds: new(int32(1)),
			ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: &url, CABundle: pem.EncodeToMemory(
				&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})},
			MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "c", Expression: condition}},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{
					admissionregistrationv1.Create, admissionregistrationv1.Update, admissionregistrationv1.Delete},
				Rule: admissionregistrationv1.Rule{
					APIGroups: []string{group}, APIVersions: []string{version}, Resources: resources,
				},
			}},
		}},
	}
	webhooks := l.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	if _, err := webhooks.Create(l.ctx, config, metav1.CreateOptions{}); err != nil {
		l.t.Fatal(err)
	}
	end = func() {
		_ = webhooks.Delete(context.Background(), config.Name, metav1.DeleteOptions{})
	}
	l.t.Cleanup(end)
	return end
}

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
	for i, c := range []struct {
		name, group, version, condition string
		resources                       []string
		named                           func() bool
	}{
		{
			"Nodes", "", "v1", "true", []string{"nodes"},
			func() bool { return strings.Contains(l.refit("explain", "worker"), says) },
		}, {
			"rendered MachineConfigs", ours, "v1", `request.name.startsWith("rendered-")`, []string{"machineconfigs"},
			func() bool { return strings.Contains(l.refit("explain", "worker"), says) },
		}, {
			"MachineConfigPools", ours, "v1", "true", []string{"machineconfigpools", "machineconfigpools/status"},
			func() bool {
				return strings.Contains(l.mustKubectl("get", "events", "-A", "--field-selector=involvedObject.name=worker"), says)
			},
		}, {"Events", "events.k8s.io", "v1", "true", []string{"events"}, nil},
	} {
		end := l.hangs(c.group, c.version, c.condition, c.resources...)
		time.Sleep(2 * time.Second) //nolint:forbidigo // the API server reads it later, and no write would say so
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
	end := l.hangs("coordination.k8s.io", "v1", `request.namespace == "`+api.Namespace+`"`, "leases")
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
