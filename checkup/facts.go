// SPDX-License-Identifier: Apache-2.0

package checkup

import (
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/intake"
)

// fact is something that was read, or why it could not be read.
type fact[T any] struct {
	is  T
	err error
}

// facts are what the checks judge. An object that the cluster does not have is nil, without an error.
type facts struct {
	pre bool
	// now is the API server's time: leases are compared with it.
	now       time.Time
	plugin    string
	namespace string

	server fact[*version.Info]
	// served are the resources of the groups that the checks ask for, as resource.group.
	served fact[map[string]bool]
	// lacks are the rights that an installation needs and the caller does not have.
	lacks       fact[[]right]
	ns          fact[*corev1.Namespace]
	definitions fact[map[string]*apiextensionsv1.CustomResourceDefinition]
	nodes       fact[[]corev1.Node]
	workloads   fact[[]workload]
	pods        fact[[]corev1.Pod]
	deployment  fact[*appsv1.Deployment]
	daemonSet   fact[*appsv1.DaemonSet]
	lease       fact[*coordinationv1.Lease]
	admission   fact[map[string]*admissionv1.ValidatingAdmissionPolicy]
	bindings    fact[map[string]*admissionv1.ValidatingAdmissionPolicyBinding]
	pools       fact[[]mcfgv1.MachineConfigPool]
	states      fact[[]mcfgv1.MachineConfigNode]
	policies    fact[[]api.RolloutPolicy]
	streams     fact[[]api.OSStream]
	// unread are the objects with fields that our types can't hold.
	unread []intake.Unread
	// images are the images that an installation would use, each with the error of asking the registry for it.
	images []image
	// probes are the answers of the probed hosts, by node; nil if no host was probed.
	probes map[string]probed
}

// workload is a Deployment or DaemonSet of the cluster, by its metadata alone.
type workload struct {
	kind string
	metav1.ObjectMeta
}

// image is an image with the error of asking its registry; nil if the registry has the image.
type image struct {
	reference string
	err       error
}

// probed is what the probe of one host reported.
type probed struct {
	host host
	// err is why the probe did not report.
	err error
	// pull reports whether err is that the image could not be pulled.
	pull bool
}
