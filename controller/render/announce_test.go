// SPDX-License-Identifier: Apache-2.0

package render

import (
	"testing"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/noderefit/noderefit/api"
)

// An announcement that comes up after the rendering that already knew of the change would stand for ever.
func TestNothingIsAnnouncedThatIsOver(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := mcfgv1.Install(scheme); err != nil {
		t.Fatal(err)
	}
	pool := &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: "worker", Generation: 3}}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(pool).WithStatusSubresource(pool).Build()
	r := &reconciler{cached: c, live: c, concluded: map[string]int{}}
	read := func() *mcfgv1.MachineConfigPool {
		is := &mcfgv1.MachineConfigPool{}
		if err := c.Get(t.Context(), client.ObjectKey{Name: "worker"}, is); err != nil {
			t.Fatal(err)
		}
		return is
	}
	announce := func() {
		if err := r.announce(t.Context(), "worker"); err != nil {
			t.Fatal(err)
		}
	}
	conclude := func(seen int) {
		done := []mcfgv1.MachineConfigPoolCondition{{Type: api.PoolRenderPending, Status: "False", Reason: reasonFinished}}
		if err := r.conclude(t.Context(), read(), done, seen); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []struct {
		what string
		do   func()
		want string
	}{
		{"a change is announced", func() { r.changes.note("worker"); announce() }, api.Rendering},
		{"it was rendered", func() { conclude(1) }, reasonFinished},
		{
			"a rendering that does not know of the latest change leaves it announced",
			func() { r.changes.note("worker"); conclude(1) }, api.Rendering,
		},
		{"one that does ends it", func() { conclude(2) }, reasonFinished},
		{"an announcement that comes late is none", announce, reasonFinished},
	} {
		step.do()
		for _, c := range read().Status.Conditions {
			if c.Type == api.PoolRenderPending && c.Reason != step.want {
				t.Errorf("%s: %q, want %q", step.what, c.Reason, step.want)
			}
		}
	}
}
