// SPDX-License-Identifier: Apache-2.0

package drain

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/api"
)

func TestAPodThatToleratesTheCordonAndComesBackIsLeftAtLast(t *testing.T) {
	t.Parallel()
	s := newScene(t, "comeback", "comeback-0")
	s.deploy("agent", 1, func(p *corev1.PodSpec) {
		p.NodeSelector = map[string]string{corev1.LabelHostname: "comeback-0"}
		p.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	})
	s.deploy("web", 2)
	// The drain would be over where the node is empty before the agent's next pod is there.
	s.budget("web", "web", 2, 0)
	s.cordon("comeback-0")
	d := s.drain("comeback-0", nil)
	d.says(api.DrainWaitComesBack, "to be evicted again at ")
	const stays = "the pod tolerates the cordon and comes back each time; the drain leaves it"
	d.says(api.DrainWaitComesBack, stays)
	s.kubectl("delete", "poddisruptionbudget", "web")
	s.check(d.ends(time.Minute))
	var agents int
	for _, r := range s.requests() {
		if kindOf(r) == "create pods/eviction" && strings.HasPrefix(r.Object.Name, "agent-") {
			agents++
		}
	}
	if agents != 2 {
		t.Errorf("a pod that comes back was evicted %d times", agents)
	}
	s.ready("agent", 1)
	last := d.last()
	if last.Left != 0 || len(last.Waiting) != 1 || last.Waiting[0].Why != api.DrainWaitComesBack ||
		!strings.Contains(last.Waiting[0].Message, stays) {
		t.Errorf("the last report is %+v", last)
	}
	for _, name := range s.on("comeback-0") {
		if !strings.HasPrefix(name, "agent-") {
			t.Errorf("%s is still there", name)
		}
	}
}

// says waits until the drain tells of a pod that it waits for why, with a part of the message.
func (d *draining) says(why, part string) {
	d.scene.Helper()
	d.scene.until("the drain says "+part, func() bool {
		d.goesOn(0)
		return slices.ContainsFunc(d.last().Waiting, func(w api.WaitingPod) bool {
			return w.Why == why && strings.Contains(w.Message, part)
		})
	})
}
