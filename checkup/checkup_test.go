// SPDX-License-Identifier: Apache-2.0

package checkup

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	"sigs.k8s.io/yaml"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/intake"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const digest = "rendered-worker-0123456789abcdef0123456789abcdef"

// well are the facts of an installation of v0.3.0 in which nothing is wrong: one pool with two nodes.
func well(t *testing.T) *facts {
	t.Helper()
	f := &facts{now: now, plugin: "v0.3.1", namespace: api.Namespace}
	f.server.is = &version.Info{Major: "1", Minor: "36", GitVersion: "v1.36.3"}
	f.served.is = map[string]bool{
		"validatingadmissionpolicies.admissionregistration.k8s.io":       true,
		"validatingadmissionpolicybindings.admissionregistration.k8s.io": true,
	}
	f.ns.is = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: api.Namespace,
		Labels: map[string]string{enforceLabel: "privileged"}}}
	f.definitions.is = map[string]*apiextensionsv1.CustomResourceDefinition{}
	for name, own := range ownDefinitions() {
		crd := own.DeepCopy()
		if crd.Labels == nil {
			crd.Labels = map[string]string{}
		}
		crd.Labels[versionLabel] = "v0.3.0"
		crd.Status.Conditions = []apiextensionsv1.CustomResourceDefinitionCondition{{
			Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue,
		}}
		f.definitions.is[name] = crd
	}
	one, two, holder, seconds, renewed := int32(1), int32(2), "node-1_x", int32(15),
		metav1.NewMicroTime(now.Add(-3*time.Second))
	f.deployment.is = &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Replicas: &one}}
	f.deployment.is.Status.ReadyReplicas = 1
	f.deployment.is.Spec.Replicas = &two
	f.deployment.is.Status.ReadyReplicas = 2
	f.daemonSet.is = &appsv1.DaemonSet{}
	f.lease.is = &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{
		HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: &renewed,
	}}
	f.admission.is = map[string]*admissionv1.ValidatingAdmissionPolicy{}
	f.bindings.is = map[string]*admissionv1.ValidatingAdmissionPolicyBinding{}
	for _, name := range api.AdmissionPolicies {
		f.admission.is[name] = &admissionv1.ValidatingAdmissionPolicy{}
		f.bindings.is[name] = &admissionv1.ValidatingAdmissionPolicyBinding{
			Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
				PolicyName: name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
			},
		}
	}
	p := mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: "worker"}}
	p.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{api.NodeRole + "worker": ""}}
	p.Spec.Configuration.Name = digest
	f.pools.is = []mcfgv1.MachineConfigPool{p}
	for _, name := range []string{"a", "b"} {
		f.nodes.is = append(f.nodes.is, testNode(name, "Debian GNU/Linux 13 (trixie)"))
		f.pods.is = append(f.pods.is, testPod(api.Daemon, name, "v0.3.0"))
		s := mcfgv1.MachineConfigNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
		s.Spec.ConfigVersion.Desired = digest
		f.states.is = append(f.states.is, s)
	}
	f.pods.is = append(f.pods.is, testPod(api.Controller, "a", "v0.3.0"))
	return f
}

func testNode(name, os string) corev1.Node {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: map[string]string{api.NodeRole + "worker": ""},
		Annotations: map[string]string{
			api.CurrentConfig: digest, api.DesiredConfig: digest, api.StateKey: string(api.Done),
		},
	}}
	n.Status.NodeInfo = corev1.NodeSystemInfo{OSImage: os, Architecture: "amd64"}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	return n
}

func testPod(app, node, version string) corev1.Pod {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: app + "-" + node, Namespace: api.Namespace, Labels: map[string]string{"k8s-app": app},
	}}
	p.Spec.NodeName = node
	p.Spec.Containers = []corev1.Container{{Name: "c",
		Image: "registry.example.com:5000/" + app + ":" + version + "@sha256:0"}}
	p.Status.Phase = corev1.PodRunning
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	return p
}

// fresh are the facts of a cluster without Noderefit.
func fresh(t *testing.T) *facts {
	t.Helper()
	f := well(t)
	f.pre = true
	f.ns.is, f.daemonSet.is = nil, nil
	for name := range f.definitions.is {
		f.definitions.is[name] = nil
	}
	return f
}

func waiting(p *corev1.Pod, reason, message string) {
	p.Status.Phase = corev1.PodPending
	p.Status.Conditions[0].Status = corev1.ConditionFalse
	p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(now.Add(-time.Minute))
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "c", Image: p.Spec.Containers[0].Image,
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}},
	}}
}

func poolIs(f *facts, of mcfgv1.MachineConfigPoolConditionType, reason, message string, ago time.Duration) {
	f.pools.is[0].Status.Conditions = append(f.pools.is[0].Status.Conditions, mcfgv1.MachineConfigPoolCondition{
		Type: of, Status: corev1.ConditionTrue, Reason: reason, Message: message,
		LastTransitionTime: metav1.NewTime(now.Add(-ago)),
	})
}

var refused = apierrors.NewForbidden(schema.GroupResource{Resource: "things"}, "",
	errors.New(`user "x" cannot list resource "things"`))

// row is a change of the facts, and what the checks say then: each other check stays OK.
type row struct {
	what   string
	change func(f *facts)
	// want are "check Severity" of each check that is more than OK.
	want []string
	// says are parts of the text.
	says []string
}

func TestAnInstallationIsJudged(t *testing.T) {
	t.Parallel()
	judgeRows(t, well, []row{
		{"all is well", func(*facts) {}, nil, []string{"2 of 2 nodes in pools report", "Noderefit works here: 0 failed"}},
		{"an old server", func(f *facts) { f.server.is.Minor = "31+" }, []string{"server Failed"},
			[]string{"needs Kubernetes 1.32", "upgrade the cluster"}},
		{"a server that says nothing", func(f *facts) { f.server.is.Minor = "x" }, []string{"server Warning"},
			[]string{"cannot be read"}},
		{"no admission policies served", func(f *facts) { clear(f.served.is) }, []string{"features Failed"},
			[]string{"--runtime-config"}},
		{"an OpenShift", func(f *facts) { f.served.is["clusterversions.config.openshift.io"] = true },
			[]string{"openshift Failed"}, []string{"the cluster is an OpenShift"}},
		{"no namespace", func(f *facts) { f.ns.is = nil }, []string{"namespace Failed"}, []string{"does not exist"}},
		{"a definition is missing", func(f *facts) { f.definitions.is["nodehooks.noderefit.dev"] = nil },
			[]string{"definitions Failed", "alerts Warning"}, []string{"nodehooks.noderefit.dev: the definition is missing",
				"NoderefitDefinitionMissing would fire"}},
		{"a definition without a field", func(f *facts) {
			spec := f.definitions.is["rolloutpolicies.noderefit.dev"].Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
			delete(spec.Properties, "notReady")
		}, []string{"definitions Failed"}, []string{"lacks what this version of the plugin knows: spec.notReady",
			"crds.yaml"}},
		{"a definition that is not served",
			func(f *facts) { f.definitions.is["nodehooks.noderefit.dev"].Status.Conditions = nil },
			[]string{"definitions Failed"}, []string{"is not established"}},
		{"somebody else's definition", func(f *facts) {
			crd := f.definitions.is["machineconfigpools.machineconfiguration.openshift.io"]
			status := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["status"]
			status.Default = nil
			crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["status"] = status
		}, []string{"openshift Failed"}, []string{"not Noderefit's"}},
		{"kured", func(f *facts) {
			f.workloads.is = []workload{{"DaemonSet", metav1.ObjectMeta{Namespace: "kube-system", Name: "kured"}},
				{"Deployment", metav1.ObjectMeta{Namespace: "shop", Name: "web"}}}
		}, []string{"managers Warning"}, []string{"DaemonSet kube-system/kured: kured reboots nodes"}},
		{"an older controller", func(f *facts) { f.pods.is[2] = testPod(api.Controller, "a", "v0.1.9") },
			[]string{"versions Warning"}, []string{"definitions v0.3.0 with controller v0.1.9",
				"agents v0.3.0 with controller v0.1.9", "plugin v0.3.1 with controller v0.1.9"}},
		{"an agent of another minor version", func(f *facts) { f.pods.is[1] = testPod(api.Daemon, "b", "v0.2.0") }, nil,
			[]string{"agents v0.2.0 (1), v0.3.0 (1)"}},
		{"a policy is missing", func(f *facts) { f.admission.is["machine-config-daemon-node"] = nil },
			[]string{"admission Failed", "alerts Warning"},
			[]string{"ValidatingAdmissionPolicy machine-config-daemon-node: the policy is missing: the credentials of any node"}},
		{"a binding is missing", func(f *facts) { delete(f.bindings.is, "readable-conditions") },
			[]string{"admission Failed", "alerts Warning"},
			[]string{"ValidatingAdmissionPolicyBinding readable-conditions: the binding is missing",
				"NoderefitPoliciesMissing"}},
		{"a binding that only warns", func(f *facts) {
			f.bindings.is["readable-conditions"].Spec.ValidationActions = []admissionv1.ValidationAction{admissionv1.Warn}
		}, []string{"admission Failed"}, []string{"does not deny"}},
		{"a binding for one namespace", func(f *facts) {
			f.bindings.is["readable-conditions"].Spec.MatchResources = &admissionv1.MatchResources{}
		}, []string{"admission Failed"}, []string{"restricted by matchResources"}},
		{"a binding of another policy", func(f *facts) { f.bindings.is["readable-conditions"].Spec.PolicyName = "x" },
			[]string{"admission Failed"}, []string{"is for the policy x"}},
		{"a policy that lets through", func(f *facts) {
			ignore := admissionv1.Ignore
			f.admission.is["readable-conditions"].Spec.FailurePolicy = &ignore
		}, []string{"admission Failed"}, []string{"failurePolicy is Ignore"}},
		{"no controller", func(f *facts) { f.deployment.is = nil }, []string{"controller Failed", "alerts Warning"},
			[]string{"NoderefitControllerDown"}},
		{"a controller that is not ready", func(f *facts) { f.deployment.is.Status.ReadyReplicas = 1 },
			[]string{"controller Warning"}, []string{"1 of 2"}},
		{"a controller without its image", func(f *facts) { waiting(&f.pods.is[2], "ImagePullBackOff", "not found") },
			[]string{"controller Warning"},
			[]string{"Pod openshift-machine-config-operator/machine-config-controller-a: the image registry.example.com:5000/machine-config-controller:v0.3.0@sha256:0 cannot be pulled: not found"}},
		{"a controller that no node takes", func(f *facts) {
			p := &f.pods.is[2]
			p.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
				Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/2 nodes are available",
			}}}
		}, []string{"controller Warning"}, []string{"no node takes the pod: 0/2 nodes"}},
		{"nobody leads", func(f *facts) { f.lease.is = nil }, []string{"leader Failed"}, []string{"no controller leads"}},
		{"the leader is gone", func(f *facts) { f.lease.is.Spec.RenewTime.Time = now.Add(-time.Minute) },
			[]string{"leader Failed"}, []string{"node-1_x has not renewed its lease for 1m0s"}},
		{"no agent on a node", func(f *facts) { f.pods.is = f.pods.is[1:] }, []string{"agents Failed"},
			[]string{"Node a: no pod of the agent", "1 of 2 nodes"}},
		{"an agent without its image", func(f *facts) { waiting(&f.pods.is[0], "ErrImagePull", "no such host") },
			[]string{"agents Failed", "alerts Note"}, []string{"Node a: the agent does not run: the image", "no such host",
				"NoderefitDaemonDown would fire in 14m0s"}},
		{"an agent that has not reported", func(f *facts) { delete(f.nodes.is[0].Annotations, api.StateKey) },
			[]string{"agents Warning"}, []string{"its agent has not reported its state yet", "some seconds"}},
		{"an agent that lags", func(f *facts) { f.states.is[0].Spec.ConfigVersion.Desired = "rendered-worker-old" },
			[]string{"agents Warning"}, []string{"still reports on rendered-worker-old"}},
		{"a node that was told nothing yet", func(f *facts) { clear(f.nodes.is[0].Annotations) }, nil, []string{"2 of 2"}},
		{"agents as services of the hosts", func(f *facts) { f.daemonSet.is, f.pods.is = nil, f.pods.is[2:] },
			[]string{"agents Note"}, []string{"services of the hosts", "2 of 2"}},
		{"one agent is a service of its host", func(f *facts) {
			f.daemonSet.is.Spec.Template.Spec.NodeSelector = map[string]string{"pods": "yes"}
			f.nodes.is[1].Labels["pods"] = "yes"
			f.pods.is = f.pods.is[1:]
		}, nil, []string{"2 of 2"}},
		{"a service of its host that is not there", func(f *facts) {
			f.daemonSet.is.Spec.Template.Spec.NodeSelector = map[string]string{"pods": "yes"}
			clear(f.nodes.is[0].Annotations)
			f.pods.is = f.pods.is[1:]
		}, []string{"agents Failed"}, []string{"Node a: no agent reports", "systemctl status"}},
		{"no node in a pool", func(f *facts) { clear(f.nodes.is[0].Labels); clear(f.nodes.is[1].Labels) },
			[]string{"agents Note"}, []string{"no pool has a node"}},
		{"a policy that is wrong", func(f *facts) {
			f.policies.is = []api.RolloutPolicy{{ObjectMeta: metav1.ObjectMeta{Name: "night"}}}
			f.policies.is[0].Status.Conditions = []metav1.Condition{{Type: api.RolloutReady, Status: metav1.ConditionFalse,
				Reason: "InvalidSpec", Message: "spec.windows[0]"}}
		}, []string{"policies Failed"},
			[]string{"RolloutPolicy night: the policy is not in force (InvalidSpec): spec.windows[0]"}},
		{"a policy that nobody judged", func(f *facts) { f.policies.is = []api.RolloutPolicy{{}} },
			[]string{"policies Warning"}, []string{"no controller has judged"}},
		{"a pool without a configuration", func(f *facts) { f.pools.is[0].Spec.Configuration.Name = "" },
			[]string{"pools Warning"}, []string{"0 of 1 pool have"}},
		{"a pool without MachineConfigs", func(f *facts) {
			f.pools.is[0].Spec.Configuration.Name = ""
			poolIs(f, api.PoolRenderPending, api.NoMachineConfigs, "none", 2*time.Hour)
		}, []string{"pools Note"}, []string{"waits for its first MachineConfig"}},
		{"a pool that is quarantined", func(f *facts) {
			poolIs(f, api.PoolQuarantined, "Quarantined", "failed on a",
				time.Hour)
		},
			[]string{"pools Failed", "alerts Warning"}, []string{"Quarantined: failed on a", "NoderefitPoolStopped would fire"}},
		{"no pools", func(f *facts) { f.pools.is = nil }, []string{"agents Note", "pools Warning"},
			[]string{"there are no MachineConfigPools"}},
		{"an object with a field that can't be read", func(f *facts) {
			f.unread = []intake.Unread{{GVK: mcfgv1.GroupVersion.WithKind("MachineConfigPool"), Name: "worker",
				Problem: "spec.paused is a string"}}
		}, []string{"pools Failed", "alerts Warning"}, []string{"NoderefitObjectUnreadable"}},
		{"a node that rolled back", func(f *facts) { f.nodes.is[0].Annotations[api.StateKey] = string(api.RolledBack) },
			[]string{"alerts Warning"}, []string{"NoderefitNodeRolledBack would fire", "kubectl refit explain node/a"}},
		{"a reboot that failed", func(f *facts) {
			f.nodes.is[0].Annotations[api.RebootedKey] = api.Encode(api.Rebooted{ID: "1", Begun: now.Add(-time.Hour),
				Ended: now.Add(-time.Hour / 2), Failed: "the kubelet is not healthy"})
		}, []string{"alerts Warning"}, []string{"NoderefitRebootFailed would fire: the kubelet is not healthy"}},
		{"a host that wants a reboot", func(f *facts) {
			f.nodes.is[0].Annotations[api.RebootWantedKey] = api.Encode(api.RebootWanted{Reasons: []api.RebootReason{
				{Kind: api.RebootConfiguration, Message: "b is committed", Since: now.Add(-30 * 24 * time.Hour)},
				{Kind: api.RebootPackages, Message: "libc6 asks for it", Since: now.Add(-6 * 24 * time.Hour)}}})
		}, []string{"alerts Note"}, []string{"NoderefitRebootWanted would fire in 24h0m0s: the host wants a reboot: libc6"}},
		{"a pool that is held", func(f *facts) { poolIs(f, "Held", "GateFailed", "closed", time.Hour) },
			[]string{"alerts Warning"}, []string{"NoderefitRolloutHeld would fire: closed"}},
		{"a source of releases that is away", func(f *facts) {
			f.streams.is = []api.OSStream{{ObjectMeta: metav1.ObjectMeta{Name: "fedora"}}, {}}
			f.streams.is[0].Status.Conditions = []metav1.Condition{{Type: api.StreamSource, Status: metav1.ConditionFalse,
				Message: "connection refused", LastTransitionTime: metav1.NewTime(now.Add(-2 * time.Hour))}}
		}, []string{"alerts Warning"}, []string{"NoderefitReleaseSourceAway would fire: connection refused",
			"kubectl refit streams fedora"}},
		{"a pool that waits for its window", func(f *facts) { poolIs(f, "Held", "OutsideWindow", "later", time.Hour) },
			nil, []string{"0 alerts would fire"}},
		{"drift", func(f *facts) {
			f.nodes.is[0].Annotations[api.DriftKey] = api.Encode(api.Drift{Config: digest,
				Items: []api.DriftItem{{Kind: "file", Since: now.Add(-time.Hour / 2)}}})
		}, []string{"alerts Note"}, []string{"NoderefitConfigDrift would fire in 30m0s: 1 thing"}},
		{"a drain that waits", func(f *facts) {
			f.states.is[0].Annotations = map[string]string{api.DrainKey: api.Encode(api.Drain{Left: 2,
				Since: now.Add(-2 * time.Hour), Waiting: []api.WaitingPod{{}}})}
		}, []string{"alerts Warning"}, []string{"MCCDrainError would fire: the drain waits for 2 pods"}},
		{"a node that is not ready", func(f *facts) {
			f.nodes.is[0].Status.Conditions[0] = corev1.NodeCondition{Type: corev1.NodeReady,
				Status: corev1.ConditionUnknown, LastTransitionTime: metav1.NewTime(now.Add(-time.Hour))}
		}, []string{"alerts Warning"}, []string{"KubeletHealthState would fire"}},
		{"a caller who may not list nodes", func(f *facts) { f.nodes.is, f.nodes.err = nil, refused },
			[]string{"agents Warning", "alerts Note"}, []string{`user "x" cannot list`, "noderefit-view", "not judged"}},
		{"a caller who may read nothing", func(f *facts) {
			*f = facts{now: now, plugin: "v0.3.1", namespace: api.Namespace}
			for _, err := range []*error{&f.server.err, &f.served.err, &f.ns.err, &f.definitions.err, &f.nodes.err,
				&f.workloads.err, &f.pods.err, &f.deployment.err,
				&f.daemonSet.err, &f.lease.err, &f.admission.err, &f.bindings.err, &f.pools.err, &f.states.err, &f.policies.err,
				&f.streams.err} {
				*err = refused
			}
		}, []string{"server Warning", "features Warning", "openshift Warning", "namespace Warning", "definitions Warning",
			"managers Warning", "admission Warning",
			"controller Warning", "leader Warning", "agents Warning", "policies Warning", "pools Warning", "alerts Note"},
			[]string{"0 failed, 12 with warnings"}},
	})
}

func TestAClusterIsJudgedBeforeAnInstallation(t *testing.T) {
	t.Parallel()
	judgeRows(t, fresh, []row{
		{"Debian alone", func(*facts) {}, []string{"nodes Note"}, []string{
			`2 nodes (a, b) with "Debian GNU/Linux 13 (trixie)": seems to have no ostree`, "Noderefit can be installed here",
			"the installation makes it", "not installed yet"}},
		{"a caller without rights", func(f *facts) { f.lacks.is = neededRights("x")[:2] }, []string{"rights Failed",
			"nodes Note"},
			[]string{"you may not create namespaces", "you may not patch namespaces", "must not be installed here yet"}},
		{"a caller who may not escalate", func(f *facts) {
			f.lacks.is = []right{{verb: "escalate", group: "rbac.authorization.k8s.io", resource: "clusterroles"}}
		},
			[]string{"rights Warning", "nodes Note"}, []string{"you may not escalate clusterroles.rbac.authorization.k8s.io"}},
		{"a namespace that refuses", func(f *facts) {
			f.ns.is = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{enforceLabel: "restricted"}}}
		}, []string{"namespace Failed", "nodes Note"}, []string{"kubectl label namespace " + api.Namespace + " --overwrite"}},
		{"a namespace without a label", func(f *facts) { f.ns.is = &corev1.Namespace{} }, []string{"namespace Note",
			"nodes Note"}, []string{"own default decides"}},
		{"a machine-config-operator", func(f *facts) {
			f.workloads.is = []workload{{"Deployment", metav1.ObjectMeta{Namespace: api.Namespace,
				Name: "machine-config-operator"}}}
		}, []string{"openshift Failed", "nodes Note", "managers Warning"}, []string{"a machine-config-operator runs here"}},
		{"Fedora CoreOS", func(f *facts) { f.nodes.is[0] = testNode("a", "Fedora CoreOS 43.20260101.3.0") },
			[]string{"nodes Note", "managers Warning"}, []string{"seems to have rpm-ostree",
				"1 node (a) seem to have zincati.service", "--manifest | kubectl apply"}},
		{"Talos", func(f *facts) { f.nodes.is[0] = testNode("a", "Talos (v1.9.0)") }, []string{"nodes Warning"},
			[]string{"keep the node out of all pools"}},
		{"another architecture", func(f *facts) { f.nodes.is[0].Status.NodeInfo.Architecture = "s390x" },
			[]string{"nodes Warning"}, []string{"architecture s390x"}},
		{"an image that is missing", func(f *facts) {
			f.images = []image{{"r/x:v1", nil}, {"r/y:v1",
				errors.New("no such image")}}
		},
			[]string{"nodes Note", "images Failed"}, []string{"r/y:v1 cannot be pulled from here: no such image"}},
		{"a probed host with zincati", func(f *facts) {
			f.nodes.is[0] = testNode("a", "Fedora CoreOS 43")
			f.probes = map[string]probed{"a": {host: host{ostree: true, rpmOSTree: true, systemd: true,
				units: map[string]string{api.UnitZincati: "enabled"}}}}
		}, []string{"nodes Note", "managers Warning"}, []string{"Node a: rpm-ostree: OS images",
			"Node a: zincati.service is enabled", "2 nodes, 1 looked at"}},
		{"a probed host where zincati is masked", func(f *facts) {
			f.nodes.is[0] = testNode("a", "Fedora CoreOS 43")
			f.probes = map[string]probed{"a": {host: host{ostree: true, rpmOSTree: true, systemd: true,
				units: map[string]string{api.UnitZincati: "masked"}}}}
		}, []string{"nodes Note"}, nil},
		{"a probe that could not pull", func(f *facts) {
			f.probes = map[string]probed{"a": {err: errors.New("ErrImagePull: x"), pull: true}}
		}, []string{"nodes Note", "images Failed"}, []string{"Node a: the node cannot pull the image"}},
		{"a probe that did not report", func(f *facts) { f.probes = map[string]probed{"a": {err: errCutShort}} },
			[]string{"nodes Warning"}, []string{"the host was not looked at: the probe's report is cut short"}},
		{"a host without systemd", func(f *facts) { f.probes = map[string]probed{"a": {}} }, []string{"nodes Failed"},
			[]string{"no systemd"}},
		{"bootc without podman", func(f *facts) {
			f.probes = map[string]probed{"a": {host: host{ostree: true, bootc: true, systemd: true}}}
		}, []string{"nodes Warning"}, []string{"install podman"}},
	})
}

func judgeRows(t *testing.T, from func(t *testing.T) *facts, rows []row) {
	t.Helper()
	for _, r := range rows {
		f := from(t)
		r.change(f)
		doc := judge(f)
		var got []string
		for _, c := range doc.Checks {
			if c.Severity != OK {
				got = append(got, c.Name+" "+string(c.Severity))
			}
			for _, finding := range c.Findings {
				if finding.Severity.rank() >= Warning.rank() && finding.Do == "" {
					t.Errorf("%s: %s: %q says nothing to do", r.what, c.Name, finding.Says)
				}
			}
		}
		var text strings.Builder
		if err := doc.WriteText(&text); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, r.want) {
			t.Errorf("%s: %v, want %v\n%s", r.what, got, r.want, &text)
		}
		for _, part := range r.says {
			if !strings.Contains(text.String(), part) {
				t.Errorf("%s: lacks %q:\n%s", r.what, part, &text)
			}
		}
		fails := slices.ContainsFunc(r.want, func(w string) bool { return strings.HasSuffix(w, string(Failed)) })
		warns := fails || slices.ContainsFunc(r.want, func(w string) bool { return strings.HasSuffix(w, string(Warning)) })
		if (doc.Err(false) != nil) != fails || (doc.Err(true) != nil) != warns {
			t.Errorf("%s: %v; strict: %v", r.what, doc.Err(false), doc.Err(true))
		}
	}
}

func TestEveryAlertIsJudgedOrLeftToPrometheus(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../packaging/alerts/noderefit.rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var rules struct {
		Groups []struct {
			Rules []struct{ Alert, For string }
		}
	}
	if err := yaml.Unmarshal(data, &rules); err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			if r.Alert != "" {
				want[r.Alert] = true
			}
		}
	}
	got := map[string]bool{}
	for _, a := range alerts {
		got[a.name] = true
	}
	if !maps.Equal(got, want) || len(alerts) != len(want) {
		t.Errorf("%v, want %v", sortedNames(got), sortedNames(want))
	}
}

func TestSkewsOfOneMinorVersionAreSupported(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		part, of Part
		a, b     string
		want     bool
	}{
		{Definitions, Controller, "v0.3.0", "v0.3.9", true},
		{Definitions, Controller, "v0.4.0", "v0.3.0", true},
		{Definitions, Controller, "v0.5.0", "v0.3.0", false},
		{Definitions, Controller, "v0.2.9", "v0.3.0", false},
		{Definitions, Agents, "v0.2.9", "v0.3.0", false},
		{Agents, Controller, "v0.2.0", "v0.3.0", true},
		{Agents, Controller, "v0.4.0", "v0.3.0", true},
		{Agents, Controller, "v0.1.0", "v0.3.0", false},
		{Agents, Controller, "v0.5.0", "v0.3.0", false},
		{plugin, Controller, "v1.0.0", "v0.9.0", false},
		{plugin, Controller, "v0.4.0-rc.1", "v0.3.0", true},
		{plugin, Controller, "dev", "v0.3.0", true},
		{plugin, Controller, "v0.3.0", "", true},
	} {
		got := Skews(map[Part][]string{c.part: {c.a}, c.of: {c.b}})
		if (len(got) == 0) != c.want {
			t.Errorf("%s %s with %s %s: %v", c.part, c.a, c.of, c.b, got)
		}
	}
}

func TestThePageHasTheSupportedSkews(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/upgrade.md")
	if err != nil {
		t.Fatal(err)
	}
	table := "| part | may be older than | by | may be newer by |\n|---|---|---|---|\n"
	for _, row := range skews {
		table += fmt.Sprintf("| %s | %s | %d | %d |\n", row.part, row.of, row.older, row.newer)
	}
	if !strings.Contains(string(text), "\n"+table+"\n") {
		t.Errorf("docs/upgrade.md lacks the table:\n%s", table)
	}
}

func TestTheVersionIsThatOfTheLabelOrOfTheImage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ label, image, want string }{
		{"v0.1.0", "r/x:v2", "v0.1.0"},
		{"", "r/x:v2", "v2"},
		{"", "r:5000/x", ""},
		{"", "r:5000/x:v2@sha256:ab", "v2"},
		{"", "r/x@sha256:ab", ""},
		{"", "r/x:latest", ""},
		{"", "", ""},
	} {
		if got := versionOf(map[string]string{versionLabel: c.label}, c.image); got != c.want {
			t.Errorf("%q and %q: %q, want %q", c.label, c.image, got, c.want)
		}
	}
}
