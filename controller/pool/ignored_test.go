// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"strings"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

func TestFieldsWithoutEffectAreNamed(t *testing.T) {
	object := poolAt("B")
	said := func() mcfgv1.MachineConfigPoolCondition {
		object.Status = status(object, progress.NewPool(object, nil), time.Unix(5, 0))
		return find(&object.Status, api.Ignored)
	}
	if c := said(); c.Type != "" {
		t.Errorf("a pool without them says %+v", c)
	}
	object.Spec.PinnedImageSets = []mcfgv1.PinnedImageSetRef{{Name: "heavy"}}
	c := said()
	if c.Status != corev1.ConditionTrue || c.Reason != api.NotSupported ||
		!strings.Contains(c.Message, "spec.pinnedImageSets (heavy)") {
		t.Errorf("the pool says %+v", c)
	}
	if d := find(&object.Status, mcfgv1.MachineConfigPoolDegraded); d.Status == corev1.ConditionTrue {
		t.Errorf("nothing is held up by them, and the pool is Degraded: %s", d.Message)
	}
	object.Spec.PinnedImageSets = nil
	if c := said(); c.Status != corev1.ConditionFalse || c.Message != "" {
		t.Errorf("once they are gone it says %+v", c)
	}
}
