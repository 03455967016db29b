// SPDX-License-Identifier: Apache-2.0

package operators

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	ignition "github.com/coreos/ignition/v2/config/v3_2/types"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/test/lab/fakehost"
)

// What the node tuning operator writes on nodes and MachineConfigs.
const (
	bootcmdline = "tuned.openshift.io/bootcmdline"
	generatedBy = "tuned.openshift.io/generated-by-controller-version"
)

// baseKubelet brings the kubelet's configuration that PerformanceProfiles come on top of.
var baseKubelet = file("/etc/kubernetes/kubelet.conf", ";base64,"+base64.StdEncoding.EncodeToString([]byte(
	`{"kind":"KubeletConfiguration","apiVersion":"kubelet.config.k8s.io/v1beta1",`+
		`"containerRuntimeEndpoint":"unix:///run/crio/crio.sock","nodeStatusUpdateFrequency":"20s",`+
		`"shutdownGracePeriod":"40s","shutdownGracePeriodCriticalPods":"10s","logging":{"verbosity":2}}`)))

// tuning makes the calls of the node tuning operator: of its TuneD part (pkg/operator) and of its controller of
// PerformanceProfiles (pkg/performanceprofile).
type tuning struct{ *lab }

// poolOf finds the pool of a node by the pools' node selectors. A custom pool comes before worker.
func (n tuning) poolOf(node string) string {
	n.t.Helper()
	pools := &mcfgv1.MachineConfigPoolList{}
	n.must(n.List(n.ctx, pools))
	own := labels.Set(n.getNode(node).Labels)
	var found []string
	for _, p := range pools.Items {
		selector, err := metav1.LabelSelectorAsSelector(p.Spec.NodeSelector)
		n.must(err)
		if !selector.Empty() && selector.Matches(own) && p.Name != api.PoolWorker {
			found = append(found, p.Name)
		}
	}
	if len(found) != 1 {
		n.t.Fatalf("node %s is of the custom pools %v", node, found)
	}
	return found[0]
}

// syncArguments gives the pool the kernel arguments that TuneD has computed, and on which all its nodes agree.
func (n tuning) syncArguments() string {
	n.t.Helper()
	nodes := &corev1.NodeList{}
	n.must(n.List(n.ctx, nodes, client.MatchingLabels{api.NodeRole + n.pool: ""}))
	var wanted []string
	for _, node := range nodes.Items {
		got := strings.Fields(node.Annotations[bootcmdline])
		if wanted = got; !slices.Equal(got, strings.Fields(nodes.Items[0].Annotations[bootcmdline])) {
			n.t.Fatalf("nodes disagree: %v", got)
		}
	}
	name := "50-nto-" + n.pool //nolint:misspell // the operator's own prefix
	mc := config(name, n.pool, `{"ignition":{"config":{"replace":{"verification":{}}},"proxy":{},`+
		`"security":{"tls":{}},"timeouts":{},"version":"3.2.0"},"passwd":{},"storage":{},"systemd":{}}`)
	mc.Annotations = map[string]string{generatedBy: "v4"}
	mc.Spec.KernelArguments = wanted
	found := &mcfgv1.MachineConfig{}
	if n.gone(found, mc.Name) {
		n.must(n.Create(n.ctx, mc))
		return mc.Name
	}
	if !slices.Equal(found.Spec.KernelArguments, wanted) {
		found.Annotations, found.Spec.KernelArguments, found.Spec.Config = mc.Annotations, wanted, mc.Spec.Config
		n.must(n.Update(n.ctx, found))
	}
	return mc.Name
}

// prune deletes the operator's MachineConfigs that no profile needs, which it knows by their annotation.
func (n tuning) prune(needed ...string) {
	n.t.Helper()
	list := &mcfgv1.MachineConfigList{}
	n.must(n.List(n.ctx, list))
	for i := range list.Items {
		mc := &list.Items[i]
		if _, ours := mc.Annotations[generatedBy]; ours && !slices.Contains(needed, mc.Name) {
			n.must(n.Delete(n.ctx, mc))
		}
	}
}

func (n tuning) compute(arguments string) {
	n.t.Helper()
	for node := range n.hosts {
		n.annotate(n.getNode(node), bootcmdline, arguments)
	}
}

func TestTheTuningOperatorSetsKernelArguments(t *testing.T) {
	n := tuning{newLab(t, "tuned", "tuned-1", "tuned-2")}
	was := n.getPool().Status.Configuration.Name
	for node := range n.hosts {
		if got := n.poolOf(node); got != n.pool {
			t.Errorf("node %s is of pool %q", node, got)
		}
	}
	n.compute("skew_tick=1 nohz=on isolcpus=managed_irq,2-3")
	name := n.syncArguments()
	first := n.pickedUp(name)
	n.updated(first)
	n.arguments(first, "skew_tick=1", "nohz=on", "isolcpus=managed_irq,2-3")
	n.compute("skew_tick=1 nohz=off")
	n.syncArguments()
	second := n.moved(first)
	n.updated(second)
	n.arguments(second, "skew_tick=1", "nohz=off")
	// A rendered configuration has the annotations of none of its sources: the operator would delete it.
	n.prune(name)
	n.updated(second)
	n.prune()
	n.updated(was)
}

// arguments compares the kernel arguments of a rendered configuration.
func (n tuning) arguments(rendered string, want ...string) {
	n.t.Helper()
	mc := &mcfgv1.MachineConfig{}
	n.must(n.Get(n.ctx, client.ObjectKey{Name: rendered}, mc))
	if !slices.Equal(mc.Spec.KernelArguments, want) {
		n.t.Errorf("kernel arguments %q, want %q", mc.Spec.KernelArguments, want)
	}
}

var profiles = schema.GroupVersionKind{Group: "performance.openshift.io", Version: "v2", Kind: "PerformanceProfile"}

// define installs the definition of PerformanceProfiles, of which only that they own something matters here.
func (n tuning) define() {
	n.t.Helper()
	cl, err := apiextensions.NewForConfig(n.Config)
	n.must(err)
	crds := cl.ApiextensionsV1().CustomResourceDefinitions()
	crd := &apiextensionsv1.CustomResourceDefinition{}
	crd.Name = "performanceprofiles." + profiles.Group
	crd.Spec = apiextensionsv1.CustomResourceDefinitionSpec{
		Group: profiles.Group, Scope: apiextensionsv1.ClusterScoped,
		Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "performanceprofiles", Kind: profiles.Kind},
		Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
			Name: profiles.Version, Served: true, Storage: true, Schema: &apiextensionsv1.CustomResourceValidation{
				OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"},
			},
		}},
	}
	if _, err = crds.Create(n.ctx, crd, metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		n.must(err)
	}
	n.until("PerformanceProfiles are served", func() (bool, any) {
		_, err := n.Cluster.Client.Discovery().ServerResourcesForGroupVersion(profiles.GroupVersion().String())
		return err == nil, err
	})
}

// profile is a PerformanceProfile as its controller sees it.
type profile struct {
	tuning

	owner *unstructured.Unstructured
}

func (n tuning) newProfile(name string) *profile {
	n.t.Helper()
	n.define()
	owner := &unstructured.Unstructured{}
	owner.SetGroupVersionKind(profiles)
	owner.SetName(name)
	n.must(n.Create(n.ctx, owner))
	return &profile{n, owner}
}

func (p *profile) own(o client.Object) {
	o.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(p.owner, profiles)})
}

// machineConfig returns the profile's MachineConfig, serialised from Ignition's types.
func (p *profile) machineConfig(text string) *mcfgv1.MachineConfig {
	p.t.Helper()
	c := ignition.Config{Ignition: ignition.Ignition{Version: "3.2.0"}}
	source := "data:text/plain;charset=utf-8;base64," + text
	c.Storage.Files = []ignition.File{{
		Node: ignition.Node{Path: "/usr/local/bin/hugepages-allocation.sh", User: ignition.NodeUser{}},
		FileEmbedded1: ignition.FileEmbedded1{
			Mode: new(0o700), Contents: ignition.Resource{Source: &source},
		},
	}}
	c.Systemd.Units = []ignition.Unit{{
		Name: "hugepages-allocation.service", Enabled: new(true),
		Contents: new("[Unit]\nBefore=kubelet.service\n[Service]\nType=oneshot\n" +
			"ExecStart=/usr/local/bin/hugepages-allocation.sh\n[Install]\nWantedBy=multi-user.target\n"),
	}}
	raw, err := json.Marshal(c)
	p.must(err)
	mc := config("50-performance-"+p.owner.GetName(), p.pool, string(raw))
	mc.Spec.KernelType = "realtime"
	mc.Spec.KernelArguments = []string{"hugepagesz=1G", "hugepages=4"}
	p.own(mc)
	return mc
}

// kubeletConfig returns the profile's KubeletConfig, serialised from the kubelet's types: fields without a value are
// written too. extra are fields of the profile's annotation for experiments.
func (p *profile) kubeletConfig(extra map[string]any) *mcfgv1.KubeletConfig {
	p.t.Helper()
	raw, err := json.Marshal(&kubeletv1beta1.KubeletConfiguration{
		TypeMeta:         metav1.TypeMeta{APIVersion: kubeletv1beta1.SchemeGroupVersion.String(), Kind: "KubeletConfiguration"},
		CPUManagerPolicy: "static", CPUManagerReconcilePeriod: metav1.Duration{Duration: 5 * time.Second},
		TopologyManagerPolicy: "best-effort", ReservedSystemCPUs: "0-1",
		KubeReserved: map[string]string{"memory": "500Mi"}, SystemReserved: map[string]string{"memory": "500Mi"},
		EvictionHard: map[string]string{
			"memory.available": "100Mi", "nodefs.available": "10%", "imagefs.available": "15%", "nodefs.inodesFree": "5%",
		},
	})
	p.must(err)
	all := map[string]any{}
	p.must(json.Unmarshal(raw, &all))
	maps.Copy(all, extra)
	raw, err = json.Marshal(all)
	p.must(err)
	k := &mcfgv1.KubeletConfig{ObjectMeta: metav1.ObjectMeta{Name: "performance-" + p.owner.GetName()}}
	k.Spec.MachineConfigPoolSelector = &metav1.LabelSelector{MatchLabels: map[string]string{api.Role: p.pool}}
	k.Spec.KubeletConfig = &runtime.RawExtension{Raw: raw}
	p.own(k)
	return k
}

// apply creates or updates the profile's objects, as each turn of its controller does. The result is their versions.
func (p *profile) apply(mc *mcfgv1.MachineConfig, k *mcfgv1.KubeletConfig) [2]string {
	p.t.Helper()
	foundMC, foundKC := &mcfgv1.MachineConfig{}, &mcfgv1.KubeletConfig{}
	if p.gone(foundMC, mc.Name) {
		p.must(p.Create(p.ctx, mc))
		foundMC = mc
	} else {
		foundMC.Spec = mc.Spec
		p.must(p.Update(p.ctx, foundMC))
	}
	p.until("KubeletConfig "+k.Name+" is written", func() (bool, any) {
		if p.gone(foundKC, k.Name) {
			p.must(p.Create(p.ctx, k))
			foundKC = k
			return true, nil
		}
		foundKC.Spec = k.Spec
		err := p.Update(p.ctx, foundKC)
		return err == nil, err
	})
	return [2]string{foundMC.ResourceVersion, foundKC.ResourceVersion}
}

// kubeletFailure returns what the operator takes for the failure of its KubeletConfig: the message of the condition that
// has changed last, where that one is Failure.
func (p *profile) kubeletFailure() string {
	p.t.Helper()
	k := &mcfgv1.KubeletConfig{}
	p.must(p.Get(p.ctx, client.ObjectKey{Name: "performance-" + p.owner.GetName()}, k))
	var last *mcfgv1.KubeletConfigCondition
	for i, c := range k.Status.Conditions {
		if last == nil || last.LastTransitionTime.Before(&c.LastTransitionTime) {
			last = &k.Status.Conditions[i]
		}
	}
	if last == nil || last.Type != mcfgv1.KubeletConfigFailure {
		return ""
	}
	return last.Message
}

// poolFailure returns what the operator reports of a pool that is degraded.
func poolFailure(p *mcfgv1.MachineConfigPool) string {
	var said []string
	for _, c := range p.Status.Conditions {
		if (c.Type == mcfgv1.MachineConfigPoolNodeDegraded || c.Type == mcfgv1.MachineConfigPoolRenderDegraded) &&
			c.Status == corev1.ConditionTrue {
			said = append(said, c.Reason, c.Message)
		}
	}
	return strings.Join(said, " ")
}

// delete deletes the profile's objects in the operator's order, and returns when none is left.
func (p *profile) delete() {
	p.t.Helper()
	name := p.owner.GetName()
	k, mc := &mcfgv1.KubeletConfig{}, &mcfgv1.MachineConfig{}
	p.until("nothing of the profile is left", func() (bool, any) {
		for _, o := range []struct {
			client.Object

			name string
		}{{k, "performance-" + name}, {mc, "50-performance-" + name}} {
			if !p.gone(o.Object, o.name) {
				p.must(client.IgnoreNotFound(p.Delete(p.ctx, o.Object)))
			}
		}
		return p.gone(k, "performance-"+name) && p.gone(mc, "50-performance-"+name), k.Finalizers
	})
	p.must(p.Delete(p.ctx, p.owner))
}

func TestTheTuningOperatorAppliesAPerformanceProfile(t *testing.T) {
	p := tuning{newLab(t, "performance", "performance-1", "performance-2")}.newProfile("cnf")
	was := p.getPool().Status.Configuration.Name
	let := p.holdUpdates()
	versions := p.apply(p.machineConfig("MQo="), p.kubeletConfig(nil))
	p.pickedUp("50-performance-cnf")
	rendered := p.pickedUp("99-" + p.pool + "-generated-kubelet")
	if p.pickedUp("50-performance-cnf") != rendered {
		t.Error("the profile's two objects are rendered one after the other")
	}
	p.until("the pool is updating", func() (bool, any) {
		pool := p.getPool()
		return conditions(pool) == updating && pool.Status.UnavailableMachineCount == 1 &&
			pool.Status.Configuration.Name == was, pool.Status
	})
	let()
	p.updated(rendered)
	p.kubelet(rendered)
	if said := p.kubeletFailure(); said != "" {
		t.Errorf("the KubeletConfig has failed: %s", said)
	}

	// Another turn of the controller changes nothing.
	if again := p.apply(p.machineConfig("MQo="), p.kubeletConfig(nil)); again[0] != versions[0] {
		t.Errorf("the same MachineConfig is another version: %s after %s", again[0], versions[0])
	}
	p.updated(rendered)

	t.Run("AKubeletConfigThatIsWrongIsDegradedUntilItIsRight", func(t *testing.T) {
		p := &profile{tuning{p.in(t)}, p.owner}
		wrong := p.kubeletConfig(map[string]any{"noSuchField": true})
		p.apply(p.machineConfig("MQo="), wrong)
		p.until("the operator sees the failure", func() (bool, any) {
			said := p.kubeletFailure()
			return strings.Contains(said, "noSuchField"), said
		})
		p.apply(p.machineConfig("MQo="), p.kubeletConfig(nil))
		p.until("the operator sees that it is over", func() (bool, any) {
			said := p.kubeletFailure()
			return said == "", said
		})
		p.updated(rendered)
	})
	t.Run("ANodeThatFailsIsToldByThePool", func(t *testing.T) {
		p := &profile{tuning{p.in(t)}, p.owner}
		failing := errors.New("no room for the kernel")
		for _, host := range p.hosts {
			host.Change(func(s *fakehost.Script) {
				s.Fault = func(operation, _ string) error {
					if operation == fakehost.Stage {
						return failing
					}
					return nil
				}
			})
		}
		p.apply(p.machineConfig("Mgo="), p.kubeletConfig(nil))
		p.until("the operator sees a degraded pool", func() (bool, any) {
			pool := p.getPool()
			return strings.Contains(poolFailure(pool), failing.Error()) && pool.Status.DegradedMachineCount > 0 &&
				condition(pool, mcfgv1.MachineConfigPoolDegraded) == corev1.ConditionTrue, pool.Status
		})
		for _, host := range p.hosts {
			host.Change(func(s *fakehost.Script) { s.Fault = nil })
		}
	})
	p.delete()
	p.updated(was)
}

// kubelet looks at what the nodes' kubelets are given: the profile's fields on top of those of the base, which the
// profile does not mean to change.
func (p *profile) kubelet(rendered string) {
	p.t.Helper()
	mc := &mcfgv1.MachineConfig{}
	p.must(p.Get(p.ctx, client.ObjectKey{Name: rendered}, mc))
	c, err := machineconfig.Parse(mc)
	p.must(err)
	got := &kubeletv1beta1.KubeletConfiguration{}
	for _, f := range c.Files {
		if f.Path == "/etc/kubernetes/kubelet.conf" {
			p.must(json.Unmarshal(f.Contents, got))
		}
	}
	want := got.DeepCopy()
	want.ContainerRuntimeEndpoint = "unix:///run/crio/crio.sock"
	want.NodeStatusUpdateFrequency = metav1.Duration{Duration: 20 * time.Second}
	want.ShutdownGracePeriod = metav1.Duration{Duration: 40 * time.Second}
	want.ShutdownGracePeriodCriticalPods = metav1.Duration{Duration: 10 * time.Second}
	want.Logging.Verbosity = 2
	want.CPUManagerPolicy, want.ReservedSystemCPUs = "static", "0-1"
	if !equality.Semantic.DeepEqual(got, want) {
		p.t.Errorf("the kubelet gets %+v", got)
	}
}
