// SPDX-License-Identifier: Apache-2.0

package pool

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
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/controller/defined"
	"github.com/noderefit/noderefit/progress"
)

// definition answers for the definition of RolloutPolicies, by its age when the question comes; zero: it is missing.
type definition struct {
	client.Reader

	age time.Duration
	err error
}

func (d definition) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	if d.err != nil {
		return d.err
	}
	if d.age == 0 {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "customresourcedefinitions"}, key.Name)
	}
	o.SetCreationTimestamp(metav1.NewTime(time.Now().Add(-d.age)))
	return nil
}

// A controller that begins has seen no policy. It goes by the note on the pool, and by when the definition was made.
func TestAControllerThatBeginsHoldsPoolsWhosePolicyWentWithItsDefinition(t *testing.T) {
	t.Parallel()
	now := time.Now()
	note := api.Encode(api.PolicyNote{Name: "careful", Created: now.Add(-time.Hour)})
	for name, c := range map[string]struct {
		note       string
		definition definition
		governed   bool
		policies   []api.RolloutPolicy
		says       string // empty: the pool is not held
	}{
		"no definition": {note: note, says: "rolloutpolicies.noderefit.dev is missing: install it"},
		"no definition, as the cluster never had it": {},
		"one that came since":                        {note: note, definition: definition{age: 2 * time.Hour}, says: "only since the controller started"},
		"made again":                                 {note: note, definition: definition{age: time.Minute}, governed: true, says: "was made again"},
		"made again a while ago":                     {note: note, definition: definition{age: 6 * time.Minute}, governed: true},
		"older than the policy that is deleted":      {note: note, definition: definition{age: 2 * time.Hour}, governed: true},
		"the API server does not say":                {note: note, definition: definition{err: errors.New("no answer")}, governed: true, says: "no answer"},
		"a note that can't be read":                  {note: "oops", says: "is missing"},
		"a note that can't be read, and no wish":     {note: "oops", definition: definition{age: time.Hour}, governed: true},
		"the policy is there, and for another pool": {
			note: note, definition: definition{age: time.Minute}, governed: true,
			policies: []api.RolloutPolicy{{ObjectMeta: metav1.ObjectMeta{Name: "careful"}, Spec: api.RolloutPolicySpec{Pools: []string{"x"}}}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBehind(t, "a")
			there := b.Client // which is not behind
			if err := api.Install(there.Scheme()); err != nil {
				t.Fatal(err)
			}
			pool := &mcfgv1.MachineConfigPool{}
			if err := there.Get(t.Context(), client.ObjectKey{Name: "worker"}, pool); err != nil {
				t.Fatal(err)
			}
			if c.note != "" {
				pool.Annotations = map[string]string{api.RolloutPolicyKey: c.note}
			}
			if err := there.Update(t.Context(), pool); err != nil {
				t.Fatal(err)
			}
			for i := range c.policies {
				if err := there.Create(t.Context(), &c.policies[i]); err != nil {
					t.Fatal(err)
				}
			}
			r := newReconciler(b)
			r.client, r.governed, r.defined = there, c.governed, defined.NewWatch(c.definition, time.Now)
			for range 2 {
				reconcileNow(t, r)
			}
			if err := there.Get(t.Context(), client.ObjectKey{Name: "worker"}, pool); err != nil {
				t.Fatal(err)
			}
			held := find(&pool.Status, api.PoolHeld)
			if (held.Status == corev1.ConditionTrue) != (c.says != "") || !strings.Contains(held.Message, c.says) {
				t.Errorf("held: %s %s: %q", held.Status, held.Reason, held.Message)
			}
			if c.says != "" && held.Reason != string(progress.PolicyUnusable) {
				t.Errorf("held for %s", held.Reason)
			}
			node := &corev1.Node{}
			if err := there.Get(t.Context(), client.ObjectKey{Name: "a"}, node); err != nil {
				t.Fatal(err)
			}
			if sent := node.Annotations[api.DesiredConfig] == "rendered-worker-b"; sent == (c.says != "") {
				t.Errorf("the node is sent: %v", sent)
			}
			want := ""
			if c.says != "" {
				want = c.note
			}
			if got := pool.Annotations[api.RolloutPolicyKey]; got != want {
				t.Errorf("the note is %q, want %q", got, want)
			}
		})
	}
}

func TestAPoolNotesItsPolicyWhereThatChanges(t *testing.T) {
	t.Parallel()
	two := intstr.FromInt32(2)
	note := &api.PolicyNote{Name: "careful", Created: t0, FailureBudget: &two}
	const text = `{"name":"careful","created":"2026-03-01T03:00:00Z","failureBudget":2}`
	for name, c := range map[string]struct {
		have  string
		rules progress.Rules
		want  any // what is written; nil: nothing
	}{
		"a first policy":        {"", progress.Rules{Policy: "careful", Note: note}, text},
		"the same":              {text, progress.Rules{Policy: "careful", Note: note}, nil},
		"another":               {`{"name":"bold"}`, progress.Rules{Policy: "careful", Note: note}, text},
		"what can't be read":    {"oops", progress.Rules{Policy: "careful", Note: note}, text},
		"none, and never one":   {"", progress.Rules{}, nil},
		"none any more":         {text, progress.Rules{}, "null"},
		"away":                  {text, progress.Rules{Policy: "careful"}, nil},
		"away, and not legible": {"oops", progress.Rules{Policy: "(unknown)"}, nil},
	} {
		pool := poolAt("A")
		metav1.SetMetaDataAnnotation(&pool.ObjectMeta, api.RolloutsKey, api.Encode([]api.PastRollout{{Config: pool.Spec.Configuration.Name, Ended: t0}}))
		if c.have != "" {
			pool.Annotations[api.RolloutPolicyKey] = c.have
		}
		state := progress.NewPool(pool, nodes(t, "a A Done"))
		state.Rules = c.rules
		want := ""
		switch c.want {
		case nil:
		case "null":
			want = `{"metadata":{"annotations":{"noderefit.dev/rollout-policy":null},"resourceVersion":"12"}}`
		default:
			want = `{"metadata":{"annotations":{"noderefit.dev/rollout-policy":` + quoted(text) + `},"resourceVersion":"12"}}`
		}
		if got := string(annotationPatch(pool, state, t0)); got != want {
			t.Errorf("%s:\ngot  %s\nwant %s", name, got, want)
		}
	}
}
