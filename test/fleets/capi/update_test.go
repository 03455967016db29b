// SPDX-License-Identifier: Apache-2.0

package capi

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/noderefit/noderefit/test/lab/fleet"
)

// begin makes the pool and the Cluster, and waits until its workers are there with the first template.
func (l *stand) begin(ctx context.Context, t *testing.T) {
	t.Helper()
	must(t, l.Apply(ctx, thePool))
	at, err := url.Parse(l.Config.Host)
	must(t, err)
	authority, err := os.ReadFile(filepath.Join(filepath.Dir(l.Kubeconfig), "ca.crt"))
	must(t, err)
	key, err := os.ReadFile(filepath.Join(filepath.Dir(l.Kubeconfig), "ca.key"))
	must(t, err)
	server, err := l.Client.Discovery().ServerVersion()
	must(t, err)
	l.template(ctx, t, "first", file("/etc/app.conf", "first"))
	version := server.GitVersion
	must(t, l.Apply(ctx, fmt.Sprintf(theCluster, at.Hostname(), at.Port(), encoded(authority), encoded(key), version)),
		l.Apply(ctx, fmt.Sprintf(deployment, version, "first", "{maxSurge: 0, maxUnavailable: 1}")))
	l.upToDate(ctx, t, "first")
}

// template makes a template of bootstrap data.
func (l *stand) template(ctx context.Context, t *testing.T, name, more string) {
	t.Helper()
	must(t, l.Apply(ctx, fmt.Sprintf(template, name, more)))
}

// file is a file of a template.
func file(path, content string) string {
	return fmt.Sprintf("      - {path: %s, content: %s}", path, content)
}

// command is a command of a template, behind its files.
const command = "\n      preKubeadmCommands: [\"true\"]"

// rollTo has the workers use another template.
func (l *stand) rollTo(ctx context.Context, t *testing.T, name string) {
	t.Helper()
	_, err := l.Kubectl(ctx, "-n", namespace, "patch", "machinedeployment", "workers", "--type=merge", "-p",
		`{"spec":{"template":{"spec":{"bootstrap":{"configRef":{"name":"`+name+`"}}}}}}`)
	must(t, err)
}

// upToDate waits until all workers are of one template, and nothing is on its way.
func (l *stand) upToDate(ctx context.Context, t *testing.T, template string) {
	t.Helper()
	until(ctx, t, "the MachineDeployment is up to date with "+template, func(ctx context.Context) (bool, string, error) {
		md, err := l.get(ctx, "MachineDeployment", "workers")
		if err != nil {
			return false, "", err
		}
		machines, err := l.workers(ctx)
		if err != nil {
			return false, "", err
		}
		done := len(machines) == 2
		for _, count := range []string{"replicas", "upToDateReplicas", "readyReplicas", "availableReplicas"} {
			n, _, _ := unstructured.NestedInt64(md.Object, "status", count)
			done = done && n == 2
		}
		for _, is := range []string{"RollingOut", "ScalingUp", "ScalingDown"} {
			done = done && condition(md, is).status == "False"
		}
		for i := range machines {
			m := &machines[i]
			_, updating := m.GetAnnotations()[updateInProgress]
			from, err := l.from(ctx, m)
			if err != nil {
				return false, "", err
			}
			done = done && !updating && from == template && condition(m, "UpToDate").status == "True"
		}
		return done, fmt.Sprint(md.Object["status"]), nil
	})
}

// What Cluster API notes on a Machine that is updated in place, and on what was made from a template.
const (
	updateInProgress = "in-place-updates.internal.cluster.x-k8s.io/update-in-progress"
	clonedFrom       = "cluster.x-k8s.io/cloned-from-name"
)

// from returns the name of the template that a Machine's bootstrap configuration is of.
func (l *stand) from(ctx context.Context, m *unstructured.Unstructured) (string, error) {
	config, err := l.get(ctx, "KubeadmConfig", m.GetName())
	return config.GetAnnotations()[clonedFrom], err
}

// said is a condition.
type said struct{ status, reason, message string }

// condition returns a condition of an object, empty if it has none.
func condition(o *unstructured.Unstructured, kind string) said {
	all, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, c := range all {
		c, _ := c.(map[string]any)
		if c["type"] == kind {
			return said{fmt.Sprint(c["status"]), fmt.Sprint(c["reason"]), fmt.Sprint(c["message"])}
		}
	}
	return said{}
}

// workers returns the Machines of the MachineDeployment.
func (l *stand) workers(ctx context.Context) ([]unstructured.Unstructured, error) {
	all, err := l.list(ctx, "Machine")
	return slices.DeleteFunc(all, func(m unstructured.Unstructured) bool {
		return m.GetLabels()["cluster.x-k8s.io/deployment-name"] != "workers"
	}), err
}

// same is what stays of machines that are updated in place: Machines, their Nodes, and the boots of nothing else.
func (l *stand) same(ctx context.Context, t *testing.T) map[string]string {
	t.Helper()
	machines, err := l.workers(ctx)
	must(t, err)
	out := map[string]string{}
	for i := range machines {
		m := &machines[i]
		node, _, err := unstructured.NestedString(m.Object, "status", "nodeRef", "name")
		must(t, err)
		_, n, err := l.Says(ctx, node)
		must(t, err)
		out[m.GetName()] = fmt.Sprintf("Machine %s, Node %s %s", m.GetUID(), n.Name, n.UID)
	}
	return out
}

// has fails the test unless the host of a machine has a text in a file.
func (l *stand) has(ctx context.Context, t *testing.T, machine, path, want string) {
	t.Helper()
	got, err := l.Node(machine).Output(ctx, "cat", path)
	if err != nil || got != want {
		t.Errorf("%s of %s has %q, want %q: %v", path, machine, got, want, err)
	}
}

// watched notes what the Machines' conditions Updating say.
type watched struct {
	mu   sync.Mutex
	says map[string][]said // by Machine, without repetitions
	end  func()
}

func (l *stand) watch(ctx context.Context) *watched {
	ctx, cancel := context.WithCancel(ctx)
	w, ended := &watched{says: map[string][]said{}}, make(chan struct{})
	w.end = func() { cancel(); <-ended }
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			if machines, err := l.list(ctx, "Machine"); err == nil {
				w.note(machines)
			}
			select {
			case <-ctx.Done():
			case <-time.After(poll):
			}
		}
	}()
	return w
}

func (w *watched) note(machines []unstructured.Unstructured) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range machines {
		name, now := machines[i].GetName(), condition(&machines[i], "Updating")
		if before := w.says[name]; len(before) == 0 || before[len(before)-1] != now {
			w.says[name] = append(before, now)
		}
	}
}

// of returns what the condition of one Machine said, in order.
func (w *watched) of(machine string) []said {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.says[machine])
}

// The scenarios share one Cluster, one after the other.
func TestClusterAPI(t *testing.T) {
	l := newStand(t)
	ctx := t.Context()
	l.begin(ctx, t)
	for _, scenario := range []struct {
		name string
		run  func(context.Context, *testing.T, *stand)
	}{
		{"a changed file is made in place", inPlace},
		{"with no machine to be missing, there is one more for a while", oneMore},
		{"what cannot be made in place is made by new machines", replaced},
		{"a machine whose update fails its verdict", failed},
	} {
		if !t.Run(scenario.name, func(t *testing.T) { scenario.run(ctx, t, l) }) {
			t.FailNow() // what a scenario leaves behind is not what the next one begins with
		}
	}
}

func inPlace(ctx context.Context, t *testing.T, l *stand) {
	t.Helper()
	before := l.same(ctx, t)
	w := l.watch(ctx)
	l.template(ctx, t, "second", file("/etc/app.conf", "second"))
	l.rollTo(ctx, t, "second")
	until(ctx, t, "a Machine says that it is updated", func(ctx context.Context) (bool, string, error) {
		machines, err := l.workers(ctx)
		return slices.ContainsFunc(machines, func(m unstructured.Unstructured) bool {
			return condition(&m, "Updating").status == "True"
		}), fmt.Sprint(len(machines)), err
	})
	l.upToDate(ctx, t, "second")
	w.end()
	if after := l.same(ctx, t); !maps.Equal(before, after) {
		t.Errorf("there are %v, before there were %v", after, before)
	}
	for name := range before {
		l.has(ctx, t, name, "/etc/app.conf", "second\n")
		l.has(ctx, t, name, "/etc/always.conf", "always\n")
		says := w.of(name)
		t.Logf("%s: %v", name, says)
		if last := says[len(says)-1]; last.status != "False" ||
			!slices.ContainsFunc(says, func(s said) bool { return s.status == "True" && s.reason == "InPlaceUpdating" }) {
			t.Errorf("Updating of %s said %v", name, says)
		}
	}
}

// By default no machine may be missing in a rollout. Cluster API makes one more machine then, which boots with the new
// files, and updates the others in place.
func oneMore(ctx context.Context, t *testing.T, l *stand) {
	t.Helper()
	before := l.same(ctx, t)
	l.rolling(ctx, t, 1, 0)
	w := l.watch(ctx)
	l.template(ctx, t, "more", file("/etc/app.conf", "more"))
	l.rollTo(ctx, t, "more")
	until(ctx, t, "there is one more Machine", func(ctx context.Context) (bool, string, error) {
		machines, err := l.workers(ctx)
		return len(machines) == 3, fmt.Sprint(len(machines)), err
	})
	l.upToDate(ctx, t, "more")
	w.end()
	l.rolling(ctx, t, 0, 1)
	updated := 0
	for name := range before {
		if slices.ContainsFunc(w.of(name), func(s said) bool { return s.reason == "InPlaceUpdating" }) {
			updated++
		}
	}
	if updated == 0 {
		t.Errorf("no Machine was updated in place: %v", w.says)
	}
	for name := range l.same(ctx, t) {
		l.has(ctx, t, name, "/etc/app.conf", "more\n")
	}
}

// rolling sets how many machines a rollout may have more, and how many may be missing.
func (l *stand) rolling(ctx context.Context, t *testing.T, more, missing int) {
	t.Helper()
	_, err := l.Kubectl(ctx, "-n", namespace, "patch", "machinedeployment", "workers", "--type=merge", "-p", fmt.Sprintf(
		`{"spec":{"rollout":{"strategy":{"rollingUpdate":{"maxSurge":%d,"maxUnavailable":%d}}}}}`, more, missing))
	must(t, err)
}

func replaced(ctx context.Context, t *testing.T, l *stand) {
	t.Helper()
	before := l.same(ctx, t)
	w := l.watch(ctx)
	l.template(ctx, t, "third", file("/etc/app.conf", "third")+command)
	l.rollTo(ctx, t, "third")
	until(ctx, t, "all Machines are others", func(ctx context.Context) (bool, string, error) {
		machines, err := l.workers(ctx)
		return !slices.ContainsFunc(machines, func(m unstructured.Unstructured) bool { return before[m.GetName()] != "" }),
			fmt.Sprint(len(machines)), err
	})
	l.upToDate(ctx, t, "third")
	w.end()
	for name := range l.same(ctx, t) {
		l.has(ctx, t, name, "/etc/app.conf", "third\n")
	}
	for name := range before {
		if says := w.of(name); slices.ContainsFunc(says, func(s said) bool { return s.reason == "InPlaceUpdating" }) {
			t.Errorf("Updating of %s said %v", name, says)
		}
		if _, _, err := l.Says(ctx, name); err == nil {
			t.Errorf("Node %s is still there", name)
		}
	}
}

// The kubelet of a lab host refuses to start with this file (see test/lab/cluster). The pool sends its nodes there in
// its own order. So the node that tries the files may be another one than that of the Machine which has asked.
func failed(ctx context.Context, t *testing.T, l *stand) {
	t.Helper()
	before := l.same(ctx, t)
	l.template(ctx, t, "fourth", file("/etc/app.conf", "fourth")+"\n"+file("/etc/kubernetes/kubelet.conf", "fail")+command)
	l.rollTo(ctx, t, "fourth")
	var victim string
	until(ctx, t, "a Machine has failed", func(ctx context.Context) (bool, string, error) {
		machines, err := l.workers(ctx)
		for i := range machines {
			if says := condition(&machines[i], "Updating"); says.status == "True" && says.reason == "InPlaceUpdateFailed" {
				victim = machines[i].GetName()
			}
		}
		return victim != "", "none has", err
	})
	t.Logf("the Machine %s has failed", victim)
	l.askedAgain(ctx, t, victim, 10)
	log, err := os.ReadFile(filepath.Join(l.dir, "extension.log"))
	if err != nil || !strings.Contains(string(log), "which went back: systemd units: failed: [kubelet.service]") {
		t.Errorf("the extension does not say why: %s, %v", log, err)
	}
	must(t, l.WaitPool(ctx, "worker", "back", fleet.Updated(2)))
	if after := l.same(ctx, t); !maps.Equal(before, after) {
		t.Errorf("there are %v, before there were %v", after, before)
	}
	for name := range before {
		l.has(ctx, t, name, "/etc/app.conf", "third\n")
		_, _, exit, err := l.Node(name).Exec(ctx, nil, "test", "-e", "/etc/kubernetes/kubelet.conf")
		if err != nil || exit == 0 {
			t.Errorf("the file that failed is still on %s: %d, %v", name, exit, err)
		}
	}

	l.template(ctx, t, "fifth", file("/etc/app.conf", "fifth")+"\n"+file("/etc/kubernetes/kubelet.conf", "works")+command)
	l.rollTo(ctx, t, "fifth")
	until(ctx, t, "there is a MachineSet for the corrected template", func(ctx context.Context) (bool, string, error) {
		sets, err := l.list(ctx, "MachineSet")
		return slices.ContainsFunc(sets, func(s unstructured.Unstructured) bool {
			name, _, _ := unstructured.NestedString(s.Object, "spec", "template", "spec", "bootstrap", "configRef", "name")
			return name == "fifth"
		}), fmt.Sprint(len(sets)), err
	})
	l.askedAgain(ctx, t, victim, 3)
	if after := l.same(ctx, t); !maps.Equal(before, after) {
		t.Errorf("there are %v, before there were %v", after, before)
	}
	_, err = l.Kubectl(ctx, "-n", namespace, "delete", "machine", victim, "--wait=false")
	must(t, err)
	l.upToDate(ctx, t, "fifth")
	after := l.same(ctx, t)
	if after[victim] != "" || len(after) != 2 {
		t.Errorf("there are %v, and %s was deleted", after, victim)
	}
	for name := range before {
		if name != victim && after[name] != before[name] {
			t.Errorf("%s was to be updated in place; there are %v", name, after)
		}
	}
	for name := range after {
		l.has(ctx, t, name, "/etc/app.conf", "fifth\n")
	}
}

// askedAgain waits until Cluster API has asked about a Machine that failed so many times more.
func (l *stand) askedAgain(ctx context.Context, t *testing.T, machine string, times int) {
	t.Helper()
	first := -1
	until(ctx, t, fmt.Sprintf("Cluster API has asked %d times more", times), func(context.Context) (bool, string, error) {
		log, err := os.ReadFile(filepath.Join(l.dir, "extension.log"))
		asked := strings.Count(string(log), "delete Machine "+namespace+"/"+machine)
		if first < 0 {
			first = asked
		}
		return asked >= first+times, fmt.Sprint(asked), err
	})
}
