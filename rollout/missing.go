// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/noderefit/noderefit/progress"
)

// emptyStages returns a text for each stage without a node in the pool. Stages that hold the pool come first: those
// that soak or have gates. Without their nodes nothing would be proved, and the next stage would begin all the same.
func (p *policy) emptyStages(pool *progress.Pool) (texts []string, holds bool) {
	if pool.Left.Any() {
		return nil, false // each stage has a node, or no node would be left out
	}
	var others []string
	for _, s := range p.stages {
		if s.spec.NodeSelector == nil || len(pool.Nodes) == 0 || slices.ContainsFunc(pool.Nodes, func(n progress.Node) bool {
			return s.selector.Matches(labels.Set(n.Labels))
		}) {
			continue
		}
		text := fmt.Sprintf("stage %s has no node in pool %s: none matches its nodeSelector, %s", s.name, pool.Name,
			metav1.FormatLabelSelector(s.spec.NodeSelector))
		if s.spec.SoakSeconds > 0 || len(s.spec.Gates) > 0 {
			texts = append(texts, text)
		} else {
			others = append(others, text)
		}
	}
	return append(texts, others...), len(texts) > 0
}

// findMissing holds the pool if it has no node of a stage that has something to prove.
func (j *judge) findMissing() {
	texts, holds := j.emptyStages(j.pool)
	if !holds || j.bypassed {
		return
	}
	j.missing = &progress.Hold{
		Verdict: progress.PolicyUnusable, Blocking: policyObject(j.name), Because: texts[0],
		Do: fmt.Sprintf("label a node of the pool, or correct it (kubectl edit rolloutpolicy %s)%s", j.name, j.orBypass()),
	}
}
