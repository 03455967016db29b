// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
)

func TestAPolicyThatCanNotBeReadHoldsItsPools(t *testing.T) {
	object := &api.RolloutPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
	object.Spec.Pools = []string{"worker"}
	for problem, all := range map[string]bool{
		"spec.stages[0].nodes can't be read: x": false,
		"spec.pools[0] can't be read: x":        true,
		"spec can't be read: x":                 true,
	} {
		object.Annotations = map[string]string{api.UnreadableKey: problem}
		if err := Check(object); err == nil || !strings.Contains(err.Error(), problem) {
			t.Errorf("%q: what is wrong is %v", problem, err)
		}
		if !Selects(object, "worker", nil) || Selects(object, "infra", nil) != all {
			t.Errorf("%q: it is for worker: %v, for infra: %v", problem, Selects(object, "worker", nil), Selects(object, "infra", nil))
		}
	}
}
