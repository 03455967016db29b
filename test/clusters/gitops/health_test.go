// SPDX-License-Identifier: Apache-2.0

package gitops

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"

	"github.com/noderefit/noderefit/api"
)

func TestHealth(t *testing.T) {
	l := newLab(t)
	for _, test := range []struct {
		name string
		run  func(*lab)
	}{
		{"APoolIsNotCurrentForWhatItHadBefore", notCurrentForTheOld},
		{"APoolThatSaysNothingElseIsCurrentAgain", sameAgain},
		{"AFailureIsOverAsSoonAsItIsCorrected", corrected},
		{"ObjectsThatPoolsAreMadeOf", parts},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(l.in(t)) })
	}
}

// seen is what somebody reads who looks at a pool all the time.
type seen struct {
	verdict kstatus.Status
	config  string // that all nodes have
	said    string
	after   time.Duration
}

// follow looks at every version of a pool from when change is made until one is wanted.
func (l *lab) follow(pool string, change func(), last func(seen) bool) []seen {
	l.t.Helper()
	before := l.get("MachineConfigPool", pool)
	watch, err := l.dynamic.Resource(resource("MachineConfigPool")).Watch(l.ctx, metav1.ListOptions{
		FieldSelector: "metadata.name=" + pool, ResourceVersion: before.GetResourceVersion(),
	})
	l.must(err)
	defer watch.Stop()
	change()
	start := time.Now()
	var out []seen
	for timeout := time.After(patience); ; {
		select {
		case e := <-watch.ResultChan():
			o, ok := e.Object.(*unstructured.Unstructured)
			if !ok {
				l.t.Fatalf("watching pool %s: %v", pool, e.Object)
			}
			got := l.verdict(o)
			config, _, _ := unstructured.NestedString(o.Object, "status", "configuration", "name")
			out = append(out, seen{got.Status, config, got.Message, time.Since(start)})
			if last(out[len(out)-1]) {
				return out
			}
		case <-timeout:
			l.t.Fatalf("pool %s does not get there: %v", pool, out)
		}
	}
}

func (l *lab) configOf(pool string) string {
	l.t.Helper()
	name, _, err := unstructured.NestedString(l.get("MachineConfigPool", pool).Object, "status", "configuration", "name")
	l.must(err)
	return name
}

func notCurrentForTheOld(l *lab) {
	created := l.applyText(poolText("old"))
	if got := l.verdict(l.get("MachineConfigPool", "old")); got.Status != kstatus.InProgressStatus {
		l.t.Errorf("just made: %s (%s)", got.Status, got.Message)
	}
	if created.GetGeneration() != 1 {
		l.t.Errorf("generation %d", created.GetGeneration())
	}
	l.node("old-1", "old")
	l.node("old-2", "old")
	l.applyText(fileText("50-old", "old", "/etc/old", "1"))
	l.becomes("MachineConfigPool", "old", kstatus.CurrentStatus)
	extra := fileText("60-old", "old-extra", "/etc/more", "1")
	l.applyText(extra)
	for i, change := range []struct {
		name string
		make func()
	}{
		{"a MachineConfig is changed", func() { l.applyText(fileText("50-old", "old", "/etc/old", "2")) }},
		{"two are added one after the other", func() {
			l.applyText(fileText("51-old", "old", "/etc/a", "1"))
			l.applyText(fileText("52-old", "old", "/etc/b", "1"))
		}},
		{"one is deleted", func() {
			l.must(l.dynamic.Resource(resource("MachineConfig")).Delete(l.ctx, "51-old", metav1.DeleteOptions{}))
		}},
		{"the pool selects others as well", func() {
			pool := parse(l.t, poolText("old"))
			l.must(unstructured.SetNestedMap(pool.Object, map[string]any{"matchExpressions": []any{map[string]any{
				"key": api.Role, "operator": "In", "values": []any{"old", "old-extra"},
			}}}, "spec", "machineConfigSelector"))
			l.apply(pool)
		}},
	} {
		was := l.configOf("old")
		versions := l.follow("old", change.make, func(s seen) bool {
			return s.verdict == kstatus.CurrentStatus && s.config != was
		})
		for j, s := range versions[:len(versions)-1] {
			// Two changes may be two configurations, of which the first was current while it was all there was.
			if s.verdict != kstatus.InProgressStatus {
				l.t.Errorf("%s: version %d after it is %s with %s: %v", change.name, j, s.verdict, s.config, versions)
			}
		}
		if versions[0].after > 5*time.Second {
			l.t.Errorf("%s: nobody could tell for %s", change.name, versions[0].after)
		}
		l.t.Logf("%d: %s: InProgress after %s, Current after %s, %d versions", i, change.name, versions[0].after,
			versions[len(versions)-1].after, len(versions))
	}
}

// A change that comes to the same configuration is announced and taken back.
func sameAgain(l *lab) {
	l.applyText(poolText("same"))
	l.node("same-1", "same")
	l.applyText(fileText("50-same", "same", "/etc/same", "1"))
	l.becomes("MachineConfigPool", "same", kstatus.CurrentStatus)
	was := l.configOf("same")
	moved := false
	l.follow("same", func() { l.applyText(fileText("40-same", "same", "/etc/same", "0")) }, func(s seen) bool {
		moved = moved || s.verdict == kstatus.InProgressStatus
		return moved && s.verdict == kstatus.CurrentStatus
	})
	if now := l.configOf("same"); now != was {
		l.t.Errorf("from %s to %s", was, now)
	}
}

func corrected(l *lab) {
	l.applyText(poolText("bad"))
	l.node("bad-1", "bad")
	l.applyText(fileText("50-bad", "bad", "/etc/bad", "1"))
	l.becomes("MachineConfigPool", "bad", kstatus.CurrentStatus)
	l.applyText(fileText("50-bad", "bad", "relative/path", "1"))
	l.becomes("MachineConfigPool", "bad", kstatus.FailedStatus)
	versions := l.follow("bad", func() { l.applyText(fileText("50-bad", "bad", "/etc/bad", "2")) }, func(s seen) bool {
		return s.verdict == kstatus.CurrentStatus
	})
	for _, s := range versions[:len(versions)-1] {
		if s.verdict != kstatus.InProgressStatus {
			l.t.Errorf("it was corrected, and still %s: %s", s.verdict, s.said)
		}
	}
	l.obey.hold(true)
	l.applyText(fileText("50-bad", "bad", "/etc/bad", "3"))
	l.until("the node is told", func() (bool, any) {
		n, err := l.Client.CoreV1().Nodes().Get(l.ctx, "bad-1", metav1.GetOptions{})
		l.must(err)
		return n.Annotations[api.DesiredConfig] != n.Annotations[api.CurrentConfig], n.Annotations
	})
	if got := l.verdict(l.get("MachineConfigPool", "bad")); got.Status != kstatus.InProgressStatus {
		l.t.Errorf("a node is on its way: %s: %s", got.Status, got.Message)
	}
	l.obey.hold(false)
	l.becomes("MachineConfigPool", "bad", kstatus.CurrentStatus)
}

func parts(l *lab) {
	l.applyText(poolText("parts"))
	l.applyText(fileText("01-parts", "parts", "/etc/kubernetes/kubelet.conf", "%7B%22kind%22:%22KubeletConfiguration%22,"+
		"%22apiVersion%22:%22kubelet.config.k8s.io%2Fv1beta1%22%7D"))
	for kind, texts := range map[string][2]string{
		"KubeletConfig":          {kubeletText("parts", "parts", 99), kubeletText("parts", "parts", -1)},
		"ContainerRuntimeConfig": {runtimeText("debug"), runtimeText("loud")},
	} {
		l.applyText(texts[0])
		if got := l.verdict(l.get(kind, "parts")); got.Status == kstatus.FailedStatus {
			l.t.Errorf("%s, just made: %s", kind, got.Message)
		}
		l.becomes(kind, "parts", kstatus.CurrentStatus)
		l.applyText(texts[1])
		l.becomes(kind, "parts", kstatus.FailedStatus)
		l.becomes("MachineConfigPool", "parts", kstatus.FailedStatus)
		l.applyText(texts[0])
		l.becomes(kind, "parts", kstatus.CurrentStatus)
		l.becomes("MachineConfigPool", "parts", kstatus.CurrentStatus)
	}
}

func runtimeText(level string) string {
	return fmt.Sprintf(`
apiVersion: machineconfiguration.openshift.io/v1
kind: ContainerRuntimeConfig
metadata: {name: parts}
spec:
  machineConfigPoolSelector: {matchLabels: {pool: parts}}
  containerRuntimeConfig: {logLevel: %s}
`, level)
}
