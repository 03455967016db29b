// SPDX-License-Identifier: Apache-2.0

package render

import (
	"context"
	"strings"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/noderefit/noderefit/controller/defined"
	"github.com/noderefit/noderefit/machineconfig"
)

// lacking is a cluster without some definitions.
type lacking struct {
	client.Reader

	names []string
	asked int
}

func (l *lacking) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	l.asked++
	for _, name := range l.names {
		if name == key.Name {
			return apierrors.NewNotFound(schema.GroupResource{Resource: "customresourcedefinitions"}, name)
		}
	}
	o.SetCreationTimestamp(metav1.NewTime(time.Now().Add(-time.Hour)))
	return nil
}

// A ControllerConfig, or the mirrors of one kind, is no MachineConfig of its own: without it the same MachineConfigs say
// less.
func TestWhatIsMadeOfFewerDefinitionsIsNotRenderedWhicheverMachineConfigsThereAre(t *testing.T) {
	pool := &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: "worker"}}
	pool.Spec.Configuration.Name = "rendered-worker-a"
	moves := input{pool: pool, rendering: &rendering{config: &machineconfig.Config{Name: "rendered-worker-b"}}}
	stays := input{pool: pool, rendering: &rendering{config: &machineconfig.Config{Name: "rendered-worker-a"}}}
	cluster := &lacking{}
	r := &reconciler{live: cluster, defined: map[string]*defined.Watch{}, whole: map[string]string{}, optional: []*optionalKind{
		{gvk: mcfgv1.GroupVersion.WithKind(kindControllerConfig), watching: true}}}
	away := func(in input) string {
		t.Helper()
		why, err := r.away(t.Context(), in)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(why, "; ")
	}
	if why := away(moves); why != "" {
		t.Errorf("where all definitions are there: %s", why)
	}
	asked := cluster.asked
	if why := away(moves); why != "" || cluster.asked != asked {
		t.Errorf("what was made of all definitions is asked about again: %q", why)
	}
	moves.rendering = &rendering{config: &machineconfig.Config{Name: "rendered-worker-c"}}
	cluster.names = []string{definitions[kindControllerConfig]}
	if why := away(moves); !strings.Contains(why, "controllerconfigs") || !strings.Contains(why, "is missing") {
		t.Errorf("where one is missing: %q", why)
	}
	asked = cluster.asked
	if why := away(stays); why != "" || cluster.asked != asked {
		t.Errorf("what changes nothing is asked about: %q", why)
	}
}
