// SPDX-License-Identifier: Apache-2.0

package drain

import (
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
	s.cordon("comeback-0")
	d := s.drain("comeback-0", nil)
	report := d.waits(api.DrainWaitComesBack)
	if w := report.Waiting[0]; !strings.Contains(w.Message, "to be evicted again at ") {
		t.Errorf("the drain waits for %+v", w)
	}
	s.check(d.ends(time.Minute))
	if kinds, text := tally(s.requests()); kinds["create pods/eviction"] != 4 {
		t.Errorf("a drain of 3 pods, one of which comes back, took %s", text)
	}
	s.ready("agent", 1)
	last := d.last()
	if last.Left != 0 || len(last.Waiting) != 1 || last.Waiting[0].Why != api.DrainWaitComesBack ||
		!strings.Contains(last.Waiting[0].Message, "it tolerates the cordon and comes back each time; it stays") {
		t.Errorf("the last report is %+v", last)
	}
	for _, name := range s.on("comeback-0") {
		if !strings.HasPrefix(name, "agent-") {
			t.Errorf("%s is still there", name)
		}
	}
}
