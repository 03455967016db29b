// SPDX-License-Identifier: Apache-2.0

package pinnedimages

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/controller/defined"
)

// definitions has all definitions but one, or can't be read.
type definitions struct {
	client.Reader

	gone   string
	unread error
}

func (d definitions) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	if d.unread != nil {
		return d.unread
	}
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

func TestPoolsSayWhyTheirNodesKeepImagesWhileSetsAreAway(t *testing.T) {
	t.Parallel()
	w := cluster(1, set("base", "worker", "a"))
	w.step()
	w.says(0, 0, "")
	w.pools = append(w.pools, mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: "empty"}})
	scheme := runtime.NewScheme()
	if err := errors.Join(mcfgv1.Install(scheme), corev1.AddToScheme(scheme), api.Install(scheme)); err != nil {
		t.Fatal(err)
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(&w.nodes[0], &w.pools[0], &w.pools[1]).
		WithStatusSubresource(&mcfgv1.MachineConfigPool{}).Build()
	r := &reconciler{client: c, now: func() time.Time { return now },
		defined: defined.NewWatch(definitions{gone: setDefinition}, func() time.Time { return now })}
	condition := func(pool string) string {
		t.Helper()
		if err := r.look(t.Context(), func(client.Object) bool { return true }); err != nil {
			t.Fatal(err)
		}
		var is mcfgv1.MachineConfigPool
		if err := c.Get(t.Context(), client.ObjectKey{Name: pool}, &is); err != nil {
			t.Fatal(err)
		}
		for _, c := range is.Status.Conditions {
			if c.Type == mcfgv1.MachineConfigPoolPinnedImageSetsDegraded {
				return string(c.Status) + ": " + c.Message
			}
		}
		return ""
	}
	order := func() string {
		t.Helper()
		var is corev1.Node
		if err := c.Get(t.Context(), client.ObjectKey{Name: "w-00"}, &is); err != nil {
			t.Fatal(err)
		}
		return is.Annotations[api.PinOrderKey]
	}
	before := order()
	if got := condition("worker"); !strings.HasPrefix(got, "True: nodes keep the images that they have: "+
		"CustomResourceDefinition/"+setDefinition+" is missing") || order() != before {
		t.Errorf("the pool says %q, and the node is told %s", got, order())
	}
	if got := condition("empty"); got != "" {
		t.Errorf("a pool without images says %q", got)
	}
	// The definition is made again, and its sets are not.
	r.defined = defined.NewWatch(definitions{}, func() time.Time { return now })
	if got := condition("worker"); got != "False: " || order() == before {
		t.Errorf("where people deleted the sets the pool says %q, and the node is told %s", got, order())
	}
}

// The pool controller takes the note of a deleted policy away a moment after this controller has looked.
func TestAPoolMissesAPolicyThatWentWithItsDefinitionAndNoOther(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		from  definitions
		since time.Duration
		says  string
		fails bool
	}{
		"a person deleted the policy":      {definitions{}, 0, "", false},
		"its note stays":                   {definitions{}, time.Minute, "WritesRefused", false},
		"it went with its definition":      {definitions{gone: policyDefinition}, 0, policyDefinition + " is missing", false},
		"the definition can't be read now": {definitions{unread: errors.New("no answer")}, 0, "no answer", true},
	} {
		w := cluster(1, set("base", "worker", "a"))
		w.pools[0].Annotations = map[string]string{api.RolloutPolicyKey: api.Encode(api.PolicyNote{Name: "careful"})}
		at := now
		clock := func() time.Time { return at }
		r := &reconciler{now: clock, defined: defined.NewWatch(definitions{}, clock)}
		if err := r.missPolicies(t.Context(), decide(w, now)); err != nil {
			t.Fatal(err)
		}
		to := decide(w, now)
		at, r.defined = now.Add(test.since), defined.NewWatch(test.from, clock)
		err := r.missPolicies(t.Context(), to)
		said := to.pools["worker"].wrong
		if (err != nil) != test.fails || (said == "") != (test.says == "") || !strings.Contains(said, test.says) ||
			len(to.orders) > 0 {
			t.Errorf("%s: the pool says %q, and the orders are %v; %v", name, said, to.orders, err)
		}
	}
}
