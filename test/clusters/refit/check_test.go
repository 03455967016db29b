// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/test/lab/cluster"
)

// checked are the severities of a check's JSON, by check.
func (l *lab) checked(r result) map[string]string {
	l.t.Helper()
	var doc struct {
		Version int
		Checks  []struct{ Name, Severity string }
	}
	if err := json.Unmarshal([]byte(r.stdout), &doc); err != nil || doc.Version != 1 {
		l.t.Fatalf("version %d, %v\n%s%s", doc.Version, err, r.stdout, r.stderr)
	}
	out := map[string]string{}
	for _, c := range doc.Checks {
		out[c.Name] = c.Severity
	}
	return out
}

// expect compares severities with those of some checks, as "check Severity".
func (l *lab) expect(r result, want ...string) {
	l.t.Helper()
	got := l.checked(r)
	for _, w := range want {
		name, severity, _ := strings.Cut(w, " ")
		if got[name] != severity {
			l.t.Errorf("%s is %q, want %s\n%s", name, got[name], severity, r.stdout)
		}
	}
}

func TestAClusterIsCheckedBeforeAndAfterAnInstallation(t *testing.T) {
	cluster.Need(t)
	c := cluster.New(t, cluster.Options{Audit: true, NoCRDs: true})
	l := &lab{c, t, t.Context(), time.Now()}

	// A fresh control plane.
	n := cluster.KwokNode("check-1", map[string]string{api.NodeRole + "worker": ""})
	n.Status.NodeInfo = corev1.NodeSystemInfo{OSImage: "Fedora CoreOS 43.20260101.3.0", Architecture: "amd64"}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	status := n.Status.DeepCopy()
	made, err := l.Client.CoreV1().Nodes().Create(l.ctx, n, metav1.CreateOptions{})
	l.must(err)
	made.Status = *status
	_, err = l.Client.CoreV1().Nodes().UpdateStatus(l.ctx, made, metav1.UpdateOptions{})
	l.must(err)
	pre := l.refit("check", "--pre").ok(t)
	t.Log("\n" + pre.stdout)
	for _, part := range []string{"Noderefit can be installed here", "1 node (check-1) seem to have zincati.service",
		"do: "} {
		if !strings.Contains(pre.stdout, part) {
			t.Errorf("lacks %q:\n%s", part, pre.stdout)
		}
	}
	l.refit("check", "--pre", "--strict").fails(t, 1, "managers")
	if r := l.refit("check", "--pre", "--manifest").ok(t); !strings.Contains(r.stdout, "name: 50-worker-mask-updaters") {
		t.Error(r.stdout)
	}
	r := l.refit("check", "--pre", "--as=nobody", "-o", "json")
	if r.code != 1 {
		t.Errorf("exit code %d", r.code)
	}
	l.expect(r, "server OK", "rights Failed", "nodes Warning", "definitions Warning")
	l.refit("check", "--manifest").fails(t, 2, "--pre")
	l.refit("check", "-o", "dot").fails(t, 2)
	l.expect(l.refit("check", "-o", "json"), "namespace Failed", "definitions Failed", "controller Failed",
		"leader Failed")

	// The same with what is installed; what the controllers and kubelets would say is missing.
	for _, args := range [][]string{
		{"apply", "--server-side", "-k", "../../../packaging/kustomize/crds"},
		{"wait", "--for=condition=Established", "--timeout=1m", "crd", "--all"},
		{"apply", "--server-side", "-k", "../../../packaging/kustomize/default"},
	} {
		if _, err := l.Kubectl(l.ctx, args...); err != nil {
			t.Fatal(err)
		}
	}
	before := l.countRequests()
	r = l.refit("check", "-o", "json")
	if requests := l.countRequests() - before; requests > 40 {
		t.Errorf("%d requests", requests)
	}
	l.expect(r, "namespace OK", "definitions OK", "admission OK", "controller Failed", "agents Failed",
		"pools Warning", "policies OK")
	t.Log("\n" + l.refit("check").stdout)
	_, err = l.Kubectl(l.ctx, "delete", "validatingadmissionpolicybinding", "machine-config-daemon-node")
	l.must(err)
	r = l.refit("check", "-o", "json")
	l.expect(r, "admission Failed")
	if !strings.Contains(r.stdout, "NoderefitPoliciesMissing would fire") {
		t.Error(r.stdout)
	}
	v := l.refit("version").ok(t)
	t.Log("\n" + v.stdout)
	for _, part := range []string{"plugin", "definitions", "controller", "server       Kubernetes v1."} {
		if !strings.Contains(v.stdout, part) {
			t.Errorf("lacks %q:\n%s", part, v.stdout)
		}
	}
}

// countRequests counts the plugin's requests so far.
func (l *lab) countRequests() int {
	l.t.Helper()
	all, err := l.Requests()
	l.must(err)
	n := 0
	for _, q := range all {
		if strings.HasPrefix(q.UserAgent, "kubectl-refit/") && q.Response.Code != http.StatusTooManyRequests {
			n++
		}
	}
	return n
}
