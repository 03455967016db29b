// SPDX-License-Identifier: Apache-2.0

// Package template holds the template controller, with the render controller beside it, to what a real API server makes
// of them.
package template

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/controller/render"
	"github.com/noderefit/noderefit/controller/source"
	"github.com/noderefit/noderefit/controller/template"
	"github.com/noderefit/noderefit/test/lab/cluster"
)

const agent = "template-under-test"

// world is a control plane with the two controllers, the pools worker and infra, and a folder of templates.
type world struct {
	*cluster.Cluster
	t   *testing.T
	ctx context.Context //nolint:containedctx // of the test that the world is for
	dir string
	// templates stops the template controller, and starts it again.
	templates *process
}

// process is a controller that can be stopped and started.
type process struct {
	add  func(ctrl.Manager) error
	stop func() error // nil: it does not run
}

func begin(t *testing.T) *world {
	t.Helper()
	cluster.Need(t)
	ctx := cluster.UntilTheEnd(t)
	w := &world{cluster.New(t, cluster.Options{Controllers: true, Audit: true}), t, ctx, t.TempDir(), nil}
	logger := logr.Discard()
	ctrl.SetLogger(logger)
	klog.SetLogger(logger)
	w.templates = &process{add: (template.Options{Version: "v0.0.0-test", Sets: template.Sets{Dir: w.dir}}).Add}
	for _, p := range []*process{w.templates, {add: (render.Options{Version: "v0.0.0-test"}).Add}} {
		w.start(p)
		t.Cleanup(func() {
			if p.stop == nil {
				return
			}
			if err := p.stop(); err != nil {
				t.Error(err)
			}
		})
	}
	for _, name := range []string{"worker", "infra"} {
		p := &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: name}}
		p.Spec.MachineConfigSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: api.Role, Operator: metav1.LabelSelectorOpIn, Values: slices.Compact([]string{"worker", name})},
		}}
		_, err := w.MachineConfigs.MachineconfigurationV1().MachineConfigPools().Create(ctx, p, metav1.CreateOptions{})
		w.must(err)
	}
	return w
}

// start starts a controller.
func (w *world) start(p *process) {
	w.t.Helper()
	config := rest.CopyConfig(w.Config)
	config.UserAgent = agent
	scheme := runtime.NewScheme()
	w.must(errors.Join(clientgoscheme.AddToScheme(scheme), mcfgv1.Install(scheme)))
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:     scheme,
		Cache:      cache.Options{ByObject: source.CacheOptions()},
		Metrics:    metricsserver.Options{BindAddress: "0"},
		Controller: ctrlconfig.Controller{SkipNameValidation: new(true)},
	})
	w.must(err)
	w.must(p.add(mgr))
	done := make(chan error, 1)
	running, stop := context.WithCancel(w.ctx)
	go func() { done <- mgr.Start(running) }()
	p.stop = func() error {
		stop()
		return <-done
	}
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

// names are those of all MachineConfigs that were not rendered.
func (w *world) names() []string {
	w.t.Helper()
	list, err := w.MachineConfigs.MachineconfigurationV1().MachineConfigs().List(w.ctx, metav1.ListOptions{})
	w.must(err)
	var out []string
	for _, mc := range list.Items {
		if !strings.HasPrefix(mc.Name, "rendered-") {
			out = append(out, mc.Name)
		}
	}
	return out
}

func (w *world) config(name string) *mcfgv1.MachineConfig {
	w.t.Helper()
	mc, err := w.MachineConfigs.MachineconfigurationV1().MachineConfigs().Get(w.ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	w.must(err)
	return mc
}

func (w *world) controllerConfig() *mcfgv1.ControllerConfig {
	w.t.Helper()
	cc, err := w.MachineConfigs.MachineconfigurationV1().ControllerConfigs().Get(w.ctx, api.ControllerConfig,
		metav1.GetOptions{})
	w.must(err)
	return cc
}

// tell patches the ControllerConfig.
func (w *world) tell(patch string, args ...any) {
	w.t.Helper()
	_, err := w.MachineConfigs.MachineconfigurationV1().ControllerConfigs().Patch(w.ctx, api.ControllerConfig,
		types.MergePatchType, fmt.Appendf(nil, patch, args...), metav1.PatchOptions{})
	w.must(err)
}

// says waits until a condition of the ControllerConfig has a status and says all of these words, and none of nothing.
func (w *world) says(kind mcfgv1.ControllerConfigStatusConditionType, is corev1.ConditionStatus, words ...string) {
	w.t.Helper()
	w.until(fmt.Sprintf("%s is %s: %v", kind, is, words), func() (bool, any) {
		cc := w.controllerConfig()
		for _, c := range cc.Status.Conditions {
			if c.Type == kind {
				text := c.Reason + " " + c.Message
				return c.Status == is && cc.Status.ObservedGeneration == cc.Generation &&
					!slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(text, word) }), c
			}
		}
		return false, cc.Status
	})
}

// settled waits until there are these MachineConfigs, all made, and the pools have them.
func (w *world) settled(names ...string) {
	w.t.Helper()
	w.until(fmt.Sprintf("there are %v", names), func() (bool, any) {
		is := w.names()
		return slices.Equal(is, names), is
	})
	w.says(mcfgv1.TemplateControllerCompleted, corev1.ConditionTrue)
	w.says(mcfgv1.TemplateControllerFailing, corev1.ConditionFalse)
	var workers []string
	for _, name := range names {
		if mc := w.config(name); mc.Labels[api.Role] == "worker" {
			workers = append(workers, name)
		}
		if o := metav1.GetControllerOf(w.config(name)); o == nil || o.UID != w.controllerConfig().UID {
			w.t.Errorf("%s has the owner %v", name, o)
		}
	}
	for _, pool := range []string{"worker", "infra"} {
		w.until(fmt.Sprintf("pool %s has %v", pool, workers), func() (bool, any) {
			var sources []string
			for _, s := range w.pool(pool).Spec.Configuration.Source {
				sources = append(sources, s.Name)
			}
			return slices.Equal(sources, workers), sources
		})
	}
}

func (w *world) pool(name string) *mcfgv1.MachineConfigPool {
	w.t.Helper()
	p, err := w.MachineConfigs.MachineconfigurationV1().MachineConfigPools().Get(w.ctx, name, metav1.GetOptions{})
	w.must(err)
	return p
}

// event waits for one about a MachineConfig.
func (w *world) event(config, reason, words string) {
	w.t.Helper()
	w.until("there is an event "+reason+" about "+config, func() (bool, any) {
		list, err := w.Client.CoreV1().Events("").List(w.ctx, metav1.ListOptions{})
		w.must(err)
		var said []string
		for _, e := range list.Items {
			said = append(said, e.InvolvedObject.Name+" "+e.Reason+" "+e.Message)
			if e.InvolvedObject.Name == config && e.Reason == reason && strings.Contains(e.Message, words) {
				return true, nil
			}
		}
		return false, said
	})
}

// template writes one into the set "own".
func (w *world) template(path, text string) {
	w.t.Helper()
	path = filepath.Join(w.dir, "own", path)
	w.must(os.MkdirAll(filepath.Dir(path), 0o755))
	w.must(os.WriteFile(path, []byte(text), 0o600))
}

var kubeadm = []string{
	"00-master", "00-worker", "01-master-container-runtime", "01-master-kubelet", "01-worker-container-runtime",
	"01-worker-kubelet",
}

func TestTemplatesOnAControlPlane(t *testing.T) {
	w := begin(t)
	text, err := os.ReadFile("../../../packaging/kustomize/templates/controllerconfig.yaml")
	w.must(err)
	manifest := filepath.Join(t.TempDir(), "controllerconfig.yaml")
	without := strings.Replace(string(text), "noderefit.dev/templates: kubeadm-1", "noderefit.dev/templates: ''", 1)
	w.must(os.WriteFile(manifest, []byte(without), 0o600))
	_, err = w.Kubectl(w.ctx, "apply", "--server-side", "-f", manifest)
	w.must(err)

	for _, step := range []struct {
		name string
		do   func(*world)
	}{
		{"AControllerConfigThatNamesNoTemplatesChangesNothing", changesNothing},
		{"TheTemplatesBecomeThePoolsConfiguration", become},
		{"WhatSomebodyChangesIsPutBackAndSaid", putBack},
		{"WhatSomebodyChangesReachesNoPoolBeforeItIsPutBack", reachesNoPool},
		{"WhatSomebodyDeletesComesBack", comesBack},
		{"AWrongTemplateIsNamedAndChangesNothing", wrongTemplate},
		{"AnotherSetReplacesTheFirst", anotherSet},
		{"AForeignMachineConfigIsNotTakenOver", notTakenOver},
		{"WithoutTemplatesWhatWasMadeStays", stays},
		{"WhatWasMadeGoesWithTheControllerConfig", goes},
		{"NoSecretWasEverAskedFor", noSecrets},
		{"ItSaysThatItBeginsBeforeItMakesAny", saysBefore},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.do(&world{w.Cluster, t, w.ctx, w.dir, w.templates}) }) {
			return
		}
	}
}

func changesNothing(w *world) {
	w.until("somebody has looked", func() (bool, any) { return len(w.pool("worker").Status.Conditions) > 0, nil })
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if names := w.names(); len(names) > 0 || len(w.controllerConfig().Status.Conditions) > 0 {
			w.t.Fatalf("made %v, says %v", names, w.controllerConfig().Status.Conditions)
		}
	}
}

func become(w *world) {
	w.tell(`{"metadata":{"annotations":{%q:"kubeadm-1"}}}`, api.Templates)
	w.settled(kubeadm...)
	w.event("00-worker", "TemplateApplied", "")
	kubelet := string(w.config("01-worker-kubelet").Spec.Config.Raw)
	w.tell(`{"metadata":{"annotations":{"templates.noderefit.dev/kubelet":"/opt/bin/kubelet"}}}`)
	w.event("01-worker-kubelet", "TemplateChanged", "")
	if is := string(w.config("01-worker-kubelet").Spec.Config.Raw); is == kubelet {
		w.t.Error("the value did not arrive")
	}
	w.settled(kubeadm...)
}

func putBack(w *world) {
	was := w.config("00-worker")
	_, err := w.MachineConfigs.MachineconfigurationV1().MachineConfigs().Patch(w.ctx, "00-worker", types.MergePatchType,
		[]byte(`{"spec":{"kernelArguments":["hunter2"]},"metadata":{"labels":{"own":"x"}}}`), metav1.PatchOptions{})
	w.must(err)
	w.until("it is as it was", func() (bool, any) {
		is := w.config("00-worker")
		return len(is.Spec.KernelArguments) == 0 && string(is.Spec.Config.Raw) == string(was.Spec.Config.Raw) &&
			is.Labels["own"] == "x", is
	})
	w.event("00-worker", "TemplateRestored", "changed its spec")
}

// reachesNoPool has nobody there who would put it back, so that it is not a matter of who is quicker.
func reachesNoPool(w *world) {
	had := ""
	w.until("the pool has what was made last", func() (bool, any) {
		had = w.pool("worker").Spec.Configuration.Name
		return strings.Contains(string(w.config(had).Spec.Config.Raw), "/opt/bin/kubelet"), had
	})
	w.must(w.templates.stop())
	w.templates.stop = nil
	_, err := w.MachineConfigs.MachineconfigurationV1().MachineConfigs().Patch(w.ctx, "00-worker", types.MergePatchType,
		[]byte(`{"spec":{"kernelArguments":["hunter2"]}}`), metav1.PatchOptions{})
	w.must(err)
	pending := func(is corev1.ConditionStatus, words string) {
		w.t.Helper()
		w.until(fmt.Sprintf("the pool's RenderPending is %s: %s", is, words), func() (bool, any) {
			for _, c := range w.pool("worker").Status.Conditions {
				if string(c.Type) == api.PoolRenderPending && c.Status == is && strings.Contains(c.Message, words) {
					return true, nil
				}
			}
			return false, w.pool("worker").Status.Conditions
		})
	}
	pending(corev1.ConditionTrue, "MachineConfig/00-worker: the object was changed")
	if is := w.pool("worker").Spec.Configuration.Name; is != had {
		w.t.Errorf("the pool went from %s to %s", had, is)
	}
	w.start(w.templates)
	pending(corev1.ConditionFalse, "")
	list, err := w.MachineConfigs.MachineconfigurationV1().MachineConfigs().List(w.ctx, metav1.ListOptions{})
	w.must(err)
	for _, mc := range list.Items {
		if slices.Contains(mc.Spec.KernelArguments, "hunter2") {
			w.t.Errorf("%s has it", mc.Name)
		}
	}
	if is := w.pool("worker").Spec.Configuration.Name; is != had {
		w.t.Errorf("the pool went from %s to %s", had, is)
	}
}

func comesBack(w *world) {
	was := w.config("01-worker-kubelet").UID
	w.must(w.MachineConfigs.MachineconfigurationV1().MachineConfigs().Delete(w.ctx, "01-worker-kubelet",
		metav1.DeleteOptions{}))
	w.until("it is made again", func() (bool, any) {
		mc := w.config("01-worker-kubelet")
		return mc != nil && mc.UID != was, nil
	})
	w.settled(kubeadm...)
}

const file = "path: /etc/own\nmode: 0600\ncontents:\n  inline: "

func wrongTemplate(w *world) {
	had := w.pool("worker").Spec.Configuration.Name
	w.template("worker/00-worker/_base/files/own.yaml", file+"hunter2\nmoed: hunter2\n")
	w.tell(`{"metadata":{"annotations":{%q:"own","templates.noderefit.dev/kubelet":null}}}`, api.Templates)
	w.says(mcfgv1.TemplateControllerFailing, corev1.ConditionTrue, "TemplatesInvalid",
		"worker/00-worker/_base/files/own.yaml: line 5 as rendered: moed")
	w.says(mcfgv1.TemplateControllerCompleted, corev1.ConditionFalse)
	if names := w.names(); !slices.Equal(names, kubeadm) {
		w.t.Errorf("there are %v", names)
	}
	w.until("the pool says what it waits for", func() (bool, any) {
		for _, c := range w.pool("worker").Status.Conditions {
			if string(c.Type) == api.PoolRenderPending && c.Status == corev1.ConditionTrue &&
				strings.Contains(c.Message, "ControllerConfig/"+api.ControllerConfig) && strings.Contains(c.Message, "own.yaml") {
				return !strings.Contains(c.Message, "hunter2"), c
			}
		}
		return false, w.pool("worker").Status.Conditions
	})
	if is := w.pool("worker").Spec.Configuration.Name; is != had {
		w.t.Errorf("the pool went from %s to %s", had, is)
	}
	for _, c := range w.controllerConfig().Status.Conditions {
		if strings.Contains(c.Message, "hunter2") {
			w.t.Errorf("shows what was rendered: %s", c.Message)
		}
	}
}

func anotherSet(w *world) {
	w.template("worker/00-worker/_base/files/own.yaml", file+"'{{ .ClusterDNSIP }}'\n")
	w.tell(`{"spec":{"clusterDNSIP":"10.96.0.99"}}`) // a folder is looked at once a minute, an object at once
	w.settled("00-worker")
	w.event("01-worker-kubelet", "TemplateRemoved", "")
	if !strings.Contains(string(w.config("00-worker").Spec.Config.Raw), "10.96.0.99") {
		w.t.Errorf("got %s", w.config("00-worker").Spec.Config.Raw)
	}
}

func notTakenOver(w *world) {
	foreign := &mcfgv1.MachineConfig{ObjectMeta: metav1.ObjectMeta{Name: "01-worker-mine"}}
	foreign.Spec.Config.Raw = []byte(`{"ignition":{"version":"3.4.0"}}`)
	mcs := w.MachineConfigs.MachineconfigurationV1().MachineConfigs()
	_, err := mcs.Create(w.ctx, foreign, metav1.CreateOptions{})
	w.must(err)
	w.template("worker/01-worker-mine/_base/files/mine.yaml", strings.Replace(file, "own", "mine", 1)+"x\n")
	w.template("worker/01-worker-other/_base/files/other.yaml", strings.Replace(file, "own", "other", 1)+"x\n")
	w.tell(`{"spec":{"clusterDNSIP":"10.96.0.98"}}`)
	w.says(mcfgv1.TemplateControllerFailing, corev1.ConditionTrue, "NameTaken", "MachineConfig/01-worker-mine")
	if names := w.names(); !slices.Equal(names, []string{"00-worker", "01-worker-mine"}) {
		w.t.Errorf("half of a set was made: %v", names)
	}
	if mc := w.config("01-worker-mine"); len(mc.OwnerReferences) > 0 || len(mc.Annotations) > 0 {
		w.t.Errorf("was taken over: %v", mc.ObjectMeta)
	}
	w.must(mcs.Delete(w.ctx, "01-worker-mine", metav1.DeleteOptions{}))
	w.settled("00-worker", "01-worker-mine", "01-worker-other")
}

func stays(w *world) {
	w.tell(`{"metadata":{"annotations":{%q:null}}}`, api.Templates)
	w.until("nobody is waited for", func() (bool, any) {
		c := w.controllerConfig().Status.Conditions
		return len(c) == 0, c
	})
	if names := w.names(); len(names) != 3 {
		w.t.Errorf("there are %v", names)
	}
	w.tell(`{"metadata":{"annotations":{%q:"own"}}}`, api.Templates)
	w.settled("00-worker", "01-worker-mine", "01-worker-other")
}

func goes(w *world) {
	w.must(w.MachineConfigs.MachineconfigurationV1().ControllerConfigs().Delete(w.ctx, api.ControllerConfig,
		metav1.DeleteOptions{}))
	w.until("all is gone", func() (bool, any) { // the garbage collector can take a while to learn of our kinds
		names := w.names()
		return len(names) == 0, names
	})
}

func noSecrets(w *world) {
	requests, err := w.Requests()
	w.must(err)
	ours := 0
	for _, r := range requests {
		if !strings.HasPrefix(r.UserAgent, agent) {
			continue
		}
		ours++
		if r.Object.Resource == "secrets" {
			w.t.Errorf("asked for secrets: %+v", r)
		}
	}
	if ours == 0 {
		w.t.Error("nothing of ours was logged")
	}
}

// What is half made must not be rendered, and the render controller goes by the status.
func saysBefore(w *world) {
	requests, err := w.Requests()
	w.must(err)
	said := false
	for _, r := range requests {
		switch {
		case !strings.HasPrefix(r.UserAgent, agent):
		case r.Object.Resource == "controllerconfigs" && r.Object.Subresource == "status":
			said = true
		case r.Object.Resource == "machineconfigs" && r.Verb == "create":
			if !said {
				w.t.Errorf("%s before it was said", r.URI)
			}
			return
		}
	}
	w.t.Error("none was ever made")
}
