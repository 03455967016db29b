// SPDX-License-Identifier: Apache-2.0

package pinnedimages

import (
	"context"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/noderefit/noderefit/controller/defined"
)

// definitions has all definitions but one.
type definitions struct {
	client.Reader

	gone string
}

func (d definitions) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	if key.Name == d.gone {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "customresourcedefinitions"}, key.Name)
	}
	o.SetCreationTimestamp(metav1.NewTime(now.Add(-time.Hour)))
	return nil
}

// An uninstallation deletes objects and definitions in any order.
func TestNoNodeLetsGoWhereSetsOrPoolsAreAway(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		gone   string // a definition
		change func(w *world)
		says   string
	}{
		"nothing":            {"", func(*world) {}, ""},
		"a set was deleted":  {"", func(w *world) { w.sets = nil }, ""},
		"no pool at all":     {"", func(w *world) { w.pools = nil }, "there are no MachineConfigPools"},
		"a pool was deleted": {"", func(w *world) { w.pools[0].Name, w.pools[0].Spec.NodeSelector = "other", nil }, ""},
		"sets went with their definition": {setDefinition, func(w *world) { w.sets = nil },
			"CustomResourceDefinition/" + setDefinition + " is missing"},
		"a pool went with the definition": {poolDefinition,
			func(w *world) { w.pools[0].Name, w.pools[0].Spec.NodeSelector = "other", nil },
			"CustomResourceDefinition/" + poolDefinition + " is missing"},
	} {
		w := cluster(1, set("base", "worker", "a"))
		w.step()
		test.change(&w)
		r := &reconciler{defined: defined.NewWatch(definitions{gone: test.gone}, func() time.Time { return now })}
		why, err := r.away(t.Context(), w, decide(w, now))
		if err != nil || (why == "") != (test.says == "") || !strings.Contains(why, test.says) {
			t.Errorf("%s: %q, %v", name, why, err)
		}
	}
}
