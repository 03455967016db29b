// SPDX-License-Identifier: Apache-2.0

// Package render holds the render controller, and those that make MachineConfigs for it of other objects, to what a
// real API server makes of them.
package render

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/controller/render"
	"github.com/noderefit/noderefit/controller/source"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/test/lab/cluster"
)

// retention is how long the controller under test keeps what nothing needs.
const retention = 2 * time.Second

const testVersion = "v0.0.0-test"

// world is a control plane with these controllers.
type world struct {
	*cluster.Cluster
	t   *testing.T
	ctx context.Context //nolint:containedctx // of the test that the world is for
}

// begin starts a control plane, and a controller unless the test does that itself.
func begin(t *testing.T, options cluster.Options) *world {
	t.Helper()
	cluster.Need(t)
	return &world{cluster.New(t, options), t, cluster.UntilTheEnd(t)}
}

// in is the same world for a test within the test.
func (w *world) in(t *testing.T) *world {
	t.Helper()
	return &world{w.Cluster, t, w.ctx}
}

// control runs the render controller, and others that are added in the same way, until the test is over, or stop is
// called.
func (w *world) control(others ...func(ctrl.Manager, string) error) (stop func()) {
	w.t.Helper()
	logger := logr.Discard()
	ctrl.SetLogger(logger)
	klog.SetLogger(logger)
	scheme := runtime.NewScheme()
	w.must(errors.Join(clientgoscheme.AddToScheme(scheme), mcfgv1.Install(scheme)))
	mgr, err := ctrl.NewManager(rest.CopyConfig(w.Config), ctrl.Options{
		Scheme:     scheme,
		Cache:      cache.Options{ByObject: source.CacheOptions()},
		Metrics:    metricsserver.Options{BindAddress: "0"},
		Controller: ctrlconfig.Controller{SkipNameValidation: new(true)},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.must((render.Options{Version: testVersion, Retention: retention}).Add(mgr))
	for _, add := range others {
		w.must(add(mgr, testVersion))
	}
	ctx, cancel := context.WithCancel(w.ctx)
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
	}
	w.t.Cleanup(stop)
	return stop
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// until waits for a condition, whose second result says what holds instead.
func (w *world) until(what string, condition func() (done bool, instead any)) {
	w.t.Helper()
	cluster.Until(w.ctx, w.t, what, condition)
}

// always looks at a condition for a while.
func (w *world) always(what string, long time.Duration, condition func() (ok bool, said any)) {
	w.t.Helper()
	for end := time.Now().Add(long); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if ok, said := condition(); !ok {
			w.t.Fatalf("%s: no longer: %v", what, said)
		}
	}
}

// addPool adds a pool that selects the MachineConfigs whose role is its name.
func (w *world) addPool(name string) {
	w.t.Helper()
	p := &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"pool": name}}}
	p.Spec.MachineConfigSelector = &metav1.LabelSelector{MatchLabels: map[string]string{api.Role: name}}
	p.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{api.NodeRole + name: ""}}
	_, err := w.MachineConfigs.MachineconfigurationV1().MachineConfigPools().Create(w.ctx, p, metav1.CreateOptions{})
	w.must(err)
}

func (w *world) pool(name string) *mcfgv1.MachineConfigPool {
	w.t.Helper()
	p, err := w.MachineConfigs.MachineconfigurationV1().MachineConfigPools().Get(w.ctx, name, metav1.GetOptions{})
	w.must(err)
	return p
}

// file is a spec with one file.
func file(path, contents string) mcfgv1.MachineConfigSpec {
	config := fmt.Sprintf(`{"ignition":{"version":"3.4.0"},
		"storage":{"files":[{"path":%q,"contents":{"source":"data:,%s"}}]}}`, path, contents)
	return mcfgv1.MachineConfigSpec{Config: runtime.RawExtension{Raw: []byte(config)}}
}

// put makes or changes a MachineConfig of a pool.
func (w *world) put(name, pool string, spec mcfgv1.MachineConfigSpec) {
	w.t.Helper()
	mcs := w.MachineConfigs.MachineconfigurationV1().MachineConfigs()
	mc := &mcfgv1.MachineConfig{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{api.Role: pool}}, Spec: spec,
	}
	_, err := mcs.Create(w.ctx, mc, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		var old *mcfgv1.MachineConfig
		old, err = mcs.Get(w.ctx, name, metav1.GetOptions{})
		w.must(err)
		mc.ResourceVersion = old.ResourceVersion
		_, err = mcs.Update(w.ctx, mc, metav1.UpdateOptions{})
	}
	w.must(err)
}

func (w *world) remove(name string) {
	w.t.Helper()
	w.must(w.MachineConfigs.MachineconfigurationV1().MachineConfigs().Delete(w.ctx, name, metav1.DeleteOptions{}))
}

// config is a MachineConfig, nil if it is not there.
func (w *world) config(name string) *mcfgv1.MachineConfig {
	w.t.Helper()
	mc, err := w.MachineConfigs.MachineconfigurationV1().MachineConfigs().Get(w.ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	w.must(err)
	return mc
}

// moved waits until a pool has another configuration, and returns its name.
func (w *world) moved(pool, from string) (name string) {
	w.t.Helper()
	w.until("pool "+pool+" leaves "+from, func() (bool, any) {
		p := w.pool(pool)
		name = p.Spec.Configuration.Name
		return name != "" && name != from, p.Status.Conditions
	})
	return name
}

// says waits until a condition of a pool has a status and says all of these words.
func (w *world) says(pool string, kind mcfgv1.MachineConfigPoolConditionType, is corev1.ConditionStatus,
	words ...string) mcfgv1.MachineConfigPoolCondition {
	w.t.Helper()
	var found mcfgv1.MachineConfigPoolCondition
	w.until(fmt.Sprintf("%s of pool %s is %s: %v", kind, pool, is, words), func() (bool, any) {
		conditions := w.pool(pool).Status.Conditions
		i := slices.IndexFunc(conditions, func(c mcfgv1.MachineConfigPoolCondition) bool { return c.Type == kind })
		if i < 0 {
			return false, conditions
		}
		found = conditions[i]
		for _, word := range words {
			if !strings.Contains(found.Reason+" "+found.Message, word) {
				return false, found
			}
		}
		return found.Status == is, found
	})
	return found
}

// shows waits until a metric of a pool has a value.
func (w *world) shows(metric, pool string, value float64) {
	w.t.Helper()
	w.until(fmt.Sprintf("%s of %s is %v", metric, pool, value), func() (bool, any) {
		families, err := metrics.Registry.Gather()
		w.must(err)
		for _, family := range families {
			for _, m := range family.Metric {
				if family.GetName() == metric && m.Label[0].GetValue() == pool {
					return m.GetGauge().GetValue() == value, m.GetGauge().GetValue()
				}
			}
		}
		return false, "it is not there"
	})
}

// event waits for one of a reason about a pool.
func (w *world) event(pool, reason string, words ...string) {
	w.t.Helper()
	w.until("there is an event "+reason, func() (bool, any) {
		list, err := w.Client.CoreV1().Events("").List(w.ctx, metav1.ListOptions{})
		w.must(err)
		var said []string
		for _, e := range list.Items {
			if e.InvolvedObject.Name == pool && e.Reason == reason {
				said = append(said, e.Message)
			}
		}
		return slices.ContainsFunc(said, func(s string) bool {
			return !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(s, word) })
		}), said
	})
}

// annotate sets annotations of a pool or a node; nil removes one.
func (w *world) annotate(kind, name string, annotations map[string]any) {
	w.t.Helper()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	w.must(err)
	switch kind {
	case "node":
		_, err = w.Client.CoreV1().Nodes().Patch(w.ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	case "machineconfigs":
		_, err = w.MachineConfigs.MachineconfigurationV1().MachineConfigs().Patch(w.ctx, name, types.MergePatchType,
			patch, metav1.PatchOptions{})
	default:
		_, err = w.MachineConfigs.MachineconfigurationV1().MachineConfigPools().Patch(w.ctx, name, types.MergePatchType,
			patch, metav1.PatchOptions{})
	}
	w.must(err)
}

func (w *world) addNode(name string, annotations map[string]string) {
	w.t.Helper()
	_, err := w.Client.CoreV1().Nodes().Create(w.ctx,
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}}, metav1.CreateOptions{})
	w.must(err)
}

// giveBack does what a node does that has a rendered configuration which the cluster lost.
func (w *world) giveBack(name, node string, spec mcfgv1.MachineConfigSpec) {
	w.t.Helper()
	mc := &mcfgv1.MachineConfig{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{api.RestoredFrom: node}}, Spec: spec,
	}
	_, err := w.MachineConfigs.MachineconfigurationV1().MachineConfigs().Create(w.ctx, mc, metav1.CreateOptions{})
	w.must(err)
}

// genuine says that a rendered configuration is there and has the content that its name says.
func (w *world) genuine(name string) (bool, any) {
	w.t.Helper()
	mc := w.config(name)
	if mc == nil {
		return false, "it is not there"
	}
	c, err := machineconfig.Parse(mc)
	w.must(err)
	return strings.HasSuffix(name, "-"+c.Digest[:32]), c.Digest
}

func owner(mc *mcfgv1.MachineConfig) types.UID {
	if mc == nil || len(mc.OwnerReferences) != 1 {
		return ""
	}
	return mc.OwnerReferences[0].UID
}
