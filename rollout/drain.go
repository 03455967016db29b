// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
)

// drain orders the agents of nodes that have not arrived to drain and reboot by the policy. Such nodes get a taint at
// the same time, so the order costs no write of its own.
func (j *judge) drain() {
	if j.spec.Drain == nil && j.spec.RebootMethod == "" {
		return
	}
	if j.rules.Orders == nil {
		j.rules.Orders = make(map[string]api.Orders, len(j.pool.Nodes))
	}
	back := j.pool.GoesBack()
	for i := range j.pool.Nodes {
		n := &j.pool.Nodes[i]
		if back || !n.Updated(j.pool.Target) {
			o := j.rules.Orders[n.Name]
			o.Drain, o.RebootMethod = j.spec.Drain, j.spec.RebootMethod
			j.rules.Orders[n.Name] = o
		}
	}
}

// checkDrain checks a drain policy for errors that the schema can't find.
func checkDrain(p *api.DrainPolicy) []error {
	if p == nil {
		return nil
	}
	var errs []error
	for i := range p.SkipPodSelectors {
		s := &p.SkipPodSelectors[i]
		if _, err := metav1.LabelSelectorAsSelector(s); err != nil {
			errs = append(errs, fmt.Errorf("spec.drain.skipPodSelectors[%d]: %w", i, err))
		} else if len(s.MatchLabels) == 0 && len(s.MatchExpressions) == 0 {
			errs = append(errs, fmt.Errorf("spec.drain.skipPodSelectors[%d]: the selector matches every pod", i))
		}
	}
	switch p.OnTimeout {
	case "", api.DrainRetries, api.DrainHolds, api.DrainForces:
	default:
		errs = append(errs, fmt.Errorf("spec.drain.onTimeout: %q is not one of Retry, Hold and Force", p.OnTimeout))
	}
	return errs
}
