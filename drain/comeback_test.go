// SPDX-License-Identifier: Apache-2.0

package drain

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/noderefit/noderefit/api"
)

// podOf is a pod of a controller of its own kind; one that insists tolerates everything.
func podOf(name, controller string, insists bool) *corev1.Pod {
	p := podNamed(name)
	yes := true
	p.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: "apps.example.com/v1", Kind: "DaemonSet", UID: types.UID(controller), Controller: &yes,
	}}
	if insists {
		p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	}
	return p
}

func TestAPodThatComesBackIsEvictedAFewTimesAndThenStays(t *testing.T) {
	for _, c := range []struct {
		what      string
		insists   bool
		evictions int
		how       string
	}{
		{"what tolerates the cordon", true, 2, "the pod tolerates the cordon and comes back each time"},
		{"what is put there", false, 4, "the pod is put onto the cordoned node and comes back each time"},
	} {
		q := newQueue(nil)
		generation, asked, last := 0, 0, -1
		for s := range 600 {
			now := noon.Add(time.Duration(s) * time.Second)
			pod := podOf(fmt.Sprintf("agent-%d", generation), "agents", c.insists)
			q.observe([]*corev1.Pod{pod}, now)
			if q.left() == 0 {
				break
			}
			for _, d := range q.due(now) {
				if s-last < 10 && last >= 0 {
					t.Errorf("%s is evicted %d s after the one before", c.what, s-last)
				}
				q.ask(d, now)
				q.answer(d.pod.UID, nil)
				generation, asked, last = generation+1, asked+1, s
			}
		}
		report := q.report("b", noon, noon)
		if asked != c.evictions || report.Left != 0 || len(report.Waiting) != 1 {
			t.Fatalf("%s: %d evictions, and then %+v", c.what, asked, report)
		}
		if w := report.Waiting[0]; w.Why != api.DrainWaitComesBack || !strings.HasPrefix(w.Message, c.how) {
			t.Errorf("%s is reported as %+v", c.what, w)
		}
		again := newQueue(nil)
		maps.Copy(again.gone, q.settled())
		again.observe([]*corev1.Pod{podOf("agent-later", "agents", c.insists)}, noon)
		if again.left() != 0 {
			t.Errorf("%s is evicted again by the next drain for the same configuration", c.what)
		}
	}
}

func TestPodsThatComeBackAtOnceAreAllEvicted(t *testing.T) {
	q := newQueue(nil)
	wave := func(n int) (pods []*corev1.Pod) {
		for i := range 20 {
			pods = append(pods, podOf(fmt.Sprintf("web-%d-%d", n, i), "web", false))
		}
		return pods
	}
	q.observe(wave(0), noon)
	for n := 1; n <= 2; n++ { // somebody uncordoned the node for a moment, twice
		q.observe(wave(n), noon.Add(time.Duration(n)*time.Minute))
		if due := q.due(noon.Add(time.Duration(n)*time.Minute + 30*time.Second)); len(due) != 20 || q.left() != 20 {
			t.Errorf("%d are evicted, %d are left", len(due), q.left())
		}
	}
}

func TestOnlyWhatCameBackIsGivenTime(t *testing.T) {
	q := newQueue(nil)
	q.observe([]*corev1.Pod{podOf("a", "one", true), podOf("b", "one", true)}, noon)
	q.observe([]*corev1.Pod{podOf("b", "one", true), podOf("c", "one", true), podOf("d", "two", true)}, noon)
	if due := q.due(noon); names(due) != "b d" {
		t.Errorf("%q are due", names(due))
	}
	w := q.report("b", noon, noon).Waiting
	if len(w) != 1 || w[0].Name != "c" ||
		w[0].Message != "the pod tolerates the cordon and comes back; to be evicted again at 2026-03-01T12:00:10Z" {
		t.Errorf("it waits for %+v", w)
	}
	if due := q.due(noon.Add(10 * time.Second)); names(due) != "b c d" {
		t.Errorf("%q are due", names(due))
	}
}
