// SPDX-License-Identifier: Apache-2.0

package render

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/controller/defined"
	"github.com/noderefit/noderefit/machineconfig"
)

// served is what a cluster says of its definitions.
type served struct {
	client.Reader

	missing []string
	made    time.Time
	// others were made at other times.
	others map[string]time.Time
	asked  int
}

func (s *served) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	s.asked++
	if slices.Contains(s.missing, key.Name) {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "customresourcedefinitions"}, key.Name)
	}
	made, is := s.others[key.Name]
	if !is {
		made = s.made
	}
	o.SetCreationTimestamp(metav1.NewTime(made))
	return nil
}

func digested(pool, digit string) string { return "rendered-" + pool + "-" + strings.Repeat(digit, 32) }

// A ControllerConfig, or the mirrors of one kind, is no MachineConfig of its own: without it the same MachineConfigs say
// less.
func TestWhatIsMadeOfFewerDefinitionsIsNotRenderedWhicheverMachineConfigsThereAre(t *testing.T) {
	pool := &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: "worker"}}
	pool.Spec.Configuration.Name = "rendered-worker-a"
	moves := input{pool: pool, rendering: &rendering{config: &machineconfig.Config{Name: "rendered-worker-b"}}}
	stays := input{pool: pool, rendering: &rendering{config: &machineconfig.Config{Name: "rendered-worker-a"}}}
	cluster := &served{made: time.Now().Add(-time.Hour)}
	r := &reconciler{live: cluster, defined: map[string]*defined.Watch{}, whole: map[string]string{}, rested: map[string]time.Time{}, optional: []*optionalKind{
		{gvk: mcfgv1.GroupVersion.WithKind(kindControllerConfig), watching: true}}}
	away := func(in input) string {
		t.Helper()
		why, err := r.away(t.Context(), in, nil)
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
	cluster.missing = []string{definitions[kindControllerConfig].name}
	if why := away(moves); !strings.Contains(why, "controllerconfigs") || !strings.Contains(why, "is missing") {
		t.Errorf("where one is missing: %q", why)
	}
	asked = cluster.asked
	if why := away(stays); why != "" || cluster.asked != asked {
		t.Errorf("what changes nothing is asked about: %q", why)
	}
}

// A controller that has just started remembers nothing: what it sees is what the nodes have, and what the pool had.
func TestAControllerThatBeginsRendersNothingOfAPart(t *testing.T) {
	t.Parallel()
	now := time.Now()
	const long, recent = -24 * time.Hour, -time.Minute
	whole, other := digested("worker", "a"), digested("worker", "b")
	on := func(made time.Duration, current, desired string) corev1.Node {
		return corev1.Node{ObjectMeta: metav1.ObjectMeta{
			CreationTimestamp: metav1.NewTime(now.Add(made)),
			Annotations:       map[string]string{api.CurrentConfig: current, api.DesiredConfig: desired},
		}}
	}
	const kubelet = "99-worker-generated-kubelet"
	for name, c := range map[string]struct {
		nodes    []corev1.Node
		config   string        // what the pool has
		pool     time.Duration // when the pool was made
		sources  []string      // what that was made of
		selected []string      // what the rendering is made of
		renders  string
		made     time.Duration // when the definitions were
		others   map[string]time.Time
		missing  []string
		kinds    map[string]bool // whether they are watched
		says     string          // empty: it is rendered
	}{
		"a fresh cluster":                             {pool: recent, made: recent, renders: other},
		"nodes without a configuration":               {nodes: []corev1.Node{on(long, "", "")}, pool: recent, made: recent, renders: other},
		"nodes that come from another pool":           {nodes: []corev1.Node{on(long, digested("infra", "a"), digested("infra", "a"))}, pool: recent, made: recent, renders: other},
		"nodes that came after the definitions":       {nodes: []corev1.Node{on(recent+time.Second, whole, whole)}, pool: recent, made: recent, renders: other},
		"a pool that people made again":               {nodes: []corev1.Node{on(long, whole, whole)}, pool: recent, made: long, renders: other},
		"made again, and a part":                      {nodes: []corev1.Node{on(long, whole, whole)}, pool: recent, made: recent, renders: other, says: "machineconfigs"},
		"made again, and all":                         {nodes: []corev1.Node{on(long, whole, whole)}, pool: recent, made: recent, renders: whole},
		"made again, and another, after all the time": {nodes: []corev1.Node{on(long, whole, whole)}, pool: recent, made: -6 * time.Minute, renders: other},
		"made again in the middle of a rollout":       {nodes: []corev1.Node{on(long, whole, whole), on(long, other, other)}, pool: recent, made: recent, renders: other, says: "machineconfigs"},
		"made again while a node was on its way":      {nodes: []corev1.Node{on(long, other, whole)}, pool: recent, made: recent, renders: other, says: "machineconfigs"},

		"the definition of pools alone was made again": {
			nodes: []corev1.Node{on(long, whole, whole)}, pool: recent, made: long - time.Hour, renders: other,
			others: map[string]time.Time{poolDefinition: now.Add(recent)}, says: poolDefinition,
		},
		"a pool that loses one of its MachineConfigs": {
			config: whole, pool: long, sources: []string{"50-a", "60-b"}, selected: []string{"50-a"}, made: recent, renders: other,
			says: "machineconfigs",
		},
		"one that people took away": {
			config: whole, pool: long, sources: []string{"50-a", "60-b"}, selected: []string{"50-a"}, made: long - time.Hour, renders: other,
		},
		"a pool that gets one more": {
			config: whole, pool: long, sources: []string{"50-a"}, selected: []string{"50-a", "60-b"}, made: recent, renders: other,
		},
		"a pool of a backup, with its configuration": {
			nodes: []corev1.Node{on(long, whole, whole)}, config: whole, pool: recent / 2, sources: []string{"50-a", "60-b"},
			selected: []string{"50-a"}, made: recent, renders: other, says: "machineconfigs",
		},
		"what KubeletConfigs made is gone with their kind": {
			config: whole, pool: long, sources: []string{"50-a", kubelet}, selected: []string{"50-a"}, made: long - time.Hour, renders: other,
			missing: []string{definitions[kindKubeletConfig].name}, kinds: map[string]bool{kindKubeletConfig: false},
			says: "kubeletconfigs.machineconfiguration.openshift.io is missing",
		},
		"a cluster without the kind": {
			config: whole, pool: long, sources: []string{"50-a"}, selected: []string{"50-a"}, made: long - time.Hour, renders: other,
			missing: []string{definitions[kindKubeletConfig].name}, kinds: map[string]bool{kindKubeletConfig: false},
		},
		"one kind of mirrors of three": {
			config: whole, pool: long, sources: []string{"50-a", "99-worker-generated-registries"}, selected: []string{"50-a"},
			made: long - time.Hour, renders: other, missing: []string{definitions["ImageTagMirrorSet"].name},
			kinds: map[string]bool{"ImageDigestMirrorSet": true, "ImageTagMirrorSet": false},
		},
		"a cluster that has no kind of mirrors": {
			config: whole, pool: long, sources: []string{"50-a", "99-worker-generated-registries"}, selected: []string{"50-a"},
			made: long - time.Hour, renders: other, kinds: map[string]bool{"ImageDigestMirrorSet": false, "ImageTagMirrorSet": false},
			missing: []string{definitions["ImageDigestMirrorSet"].name, definitions["ImageTagMirrorSet"].name},
		},
		"what KubeletConfigs made says less": {
			config: whole, pool: long, sources: []string{"50-a", kubelet}, selected: []string{"50-a", kubelet}, made: recent, renders: other,
			kinds: map[string]bool{kindKubeletConfig: true}, says: "kubeletconfigs",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{
				Name: "worker", CreationTimestamp: metav1.NewTime(now.Add(c.pool)),
			}}
			pool.Spec.Configuration.Name = c.config
			for _, name := range c.sources {
				pool.Spec.Configuration.Source = append(pool.Spec.Configuration.Source, corev1.ObjectReference{Name: name})
			}
			in := input{pool: pool, rendering: &rendering{config: &machineconfig.Config{Name: c.renders}}}
			for _, name := range c.selected {
				in.rendering.selected = append(in.rendering.selected,
					&machineconfig.Document{Object: &mcfgv1.MachineConfig{ObjectMeta: metav1.ObjectMeta{Name: name}}})
			}
			r := &reconciler{
				live: &served{made: now.Add(c.made), others: c.others, missing: c.missing}, defined: map[string]*defined.Watch{}, whole: map[string]string{}, rested: map[string]time.Time{},
			}
			for kind, watching := range c.kinds {
				r.optional = append(r.optional, &optionalKind{gvk: mcfgv1.GroupVersion.WithKind(kind), watching: watching})
			}
			for range 2 { // a second look says the same
				why, err := r.away(t.Context(), in, c.nodes)
				if got := strings.Join(why, "; "); err != nil || (got == "") != (c.says == "") || !strings.Contains(got, c.says) {
					t.Errorf("%q, %v; want %q", got, err, c.says)
				}
			}
		})
	}
}

// Once all is back, what goes is what people take away, however young a definition is.
func TestWhatPeopleTakeAwayOnceAllIsBackIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	now := time.Now()
	definition := now.Add(-time.Minute)
	for name, c := range map[string]struct {
		made time.Time // when the MachineConfigs were that the pool has
		held bool
	}{
		"all are back":                           {definition.Add(time.Second), false},
		"a cache that has what was there before": {definition.Add(-time.Hour), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{
				Name: "worker", CreationTimestamp: metav1.NewTime(now.Add(-24 * time.Hour)),
			}}
			whole := digested("worker", "a")
			pool.Spec.Configuration.Name = whole
			pool.Spec.Configuration.Source = []corev1.ObjectReference{{Name: "50-a"}, {Name: "60-b"}}
			of := func(config string, names ...string) input {
				r := &rendering{config: &machineconfig.Config{Name: config}}
				for _, name := range names {
					r.selected = append(r.selected, &machineconfig.Document{Object: &mcfgv1.MachineConfig{
						ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(c.made)},
					}})
				}
				return input{pool: pool, rendering: r}
			}
			r := &reconciler{live: &served{made: definition}, defined: map[string]*defined.Watch{}, whole: map[string]string{},
				rested: map[string]time.Time{}}
			if why, err := r.away(t.Context(), of(whole, "50-a", "60-b"), nil); err != nil || len(why) > 0 {
				t.Fatalf("at rest: %v, %v", why, err)
			}
			why, err := r.away(t.Context(), of(digested("worker", "b"), "50-a"), nil)
			if err != nil || len(why) > 0 != c.held {
				t.Errorf("%v, %v", why, err)
			}
		})
	}
}
