// SPDX-License-Identifier: Apache-2.0

package installation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/message"
)

// manager owns the fields that the plugin applies.
const manager = "kubectl-refit-installation"

// pollEvery is how often a wait looks at its object.
const pollEvery = 200 * time.Millisecond

// Cluster is the API server, with the rights of the person who asks.
type Cluster struct {
	kube    kubernetes.Interface
	objects dynamic.Interface
	mapper  meta.ResettableRESTMapper
	out     io.Writer
}

// Connect makes the clients for a Cluster, and makes no requests. out gets a line for each step.
func Connect(cfg *rest.Config, version string, out io.Writer) (*Cluster, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS, cfg.Burst = 100, 200
	cfg.UserAgent = "kubectl-refit/" + version
	// The policy for pools warns of what the plugin does not change.
	cfg.WarningHandler = rest.NoWarnings{}
	c := &Cluster{out: out}
	var errs [2]error
	c.kube, errs[0] = kubernetes.NewForConfig(cfg)
	c.objects, errs[1] = dynamic.NewForConfig(cfg)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("connecting to the cluster: %w", err)
	}
	c.mapper = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(c.kube.Discovery()))
	return c, nil
}

// say writes a line for people.
func (c *Cluster) say(format string, args ...any) {
	fmt.Fprintln(c.out, message.OneLine(fmt.Sprintf(format, args...)))
}

// client returns the client for an object.
func (c *Cluster) client(ref reference) (dynamic.ResourceInterface, error) {
	mapping, err := c.mapper.RESTMapping(ref.gvk().GroupKind(), ref.Version)
	if meta.IsNoMatchError(err) {
		c.mapper.Reset()
		mapping, err = c.mapper.RESTMapping(ref.gvk().GroupKind(), ref.Version)
	}
	if err != nil {
		return nil, err
	}
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		return c.objects.Resource(mapping.Resource).Namespace(ref.Namespace), nil
	}
	return c.objects.Resource(mapping.Resource), nil
}

// get reads an object, nil where it or its kind is not there.
func (c *Cluster) get(ctx context.Context, ref reference) (*unstructured.Unstructured, error) {
	client, err := c.client(ref)
	if meta.IsNoMatchError(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", ref, err)
	}
	object, err := client.Get(ctx, ref.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", ref, err)
	}
	return object, nil
}

// apply makes an object what it shall be.
func (c *Cluster) apply(ctx context.Context, object *unstructured.Unstructured) error {
	at := refOf(object)
	client, err := c.client(at)
	if err == nil {
		_, err = client.Apply(ctx, at.Name, object, metav1.ApplyOptions{FieldManager: manager, Force: true})
	}
	if err != nil {
		return fmt.Errorf("applying %s: %w", at, err)
	}
	return nil
}

// create makes an object of people's, and reports whether it was missing.
func (c *Cluster) create(ctx context.Context, object *unstructured.Unstructured) (made bool, err error) {
	ref := refOf(object)
	client, err := c.client(ref)
	if err == nil {
		_, err = client.Create(ctx, object, metav1.CreateOptions{FieldManager: manager})
	}
	if apierrors.IsAlreadyExists(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("making %s: %w", ref, err)
	}
	return true, nil
}

// await waits until a condition holds, and says what is waited for whenever that is something new.
func (c *Cluster) await(ctx context.Context, what string,
	look func(context.Context) (done bool, instead string, err error),
) error {
	said := ""
	for {
		done, instead, err := look(ctx)
		switch {
		case done && err == nil:
			return nil
		case ctx.Err() != nil:
		case err != nil && !transient(err):
			return err
		case err != nil:
			instead = err.Error()
		}
		if instead != said && instead != "" && ctx.Err() == nil {
			c.say("  %s: %s", what, instead)
			said = instead
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s (%s): %w", what, said, context.Cause(ctx))
		case <-time.After(pollEvery):
		}
	}
}

// transient reports whether an error of a read goes by itself.
func transient(err error) bool {
	return !apierrors.IsForbidden(err) && !apierrors.IsUnauthorized(err) && !apierrors.IsBadRequest(err)
}

// record returns the ConfigMap with the record; nil: there is none.
func (c *Cluster) record(ctx context.Context) (*record, error) {
	cm, err := c.kube.CoreV1().ConfigMaps(api.Namespace).Get(ctx, recordName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading ConfigMap %s/%s: %w", api.Namespace, recordName, err)
	}
	r := &record{}
	if err := json.Unmarshal([]byte(cm.Data[recordField]), r); err != nil {
		return nil, fmt.Errorf("reading ConfigMap %s/%s, field data.%s: %w; delete the ConfigMap, and install again",
			api.Namespace, recordName, recordField, err)
	}
	return r, nil
}

const recordField = "record.json"

// note writes the record.
func (c *Cluster) note(ctx context.Context, r *record) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("writing the record of the installation: %w", err)
	}
	cm := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{
			"name": recordName, "namespace": api.Namespace,
			"labels": map[string]any{partOfLabel: partOfValue, versionLabel: label(r.Version)},
		},
		"data": map[string]any{recordField: string(data)},
	}}
	return c.apply(ctx, cm)
}

// label makes a version a value that a label can have.
func label(version string) string { return strings.ReplaceAll(version, "+", "_") }

// right is what somebody has to be allowed.
type right struct{ Group, Resource, Verb, Namespace string }

func (r right) String() string {
	text := r.Verb + " " + r.Resource
	if r.Group != "" {
		text += "." + r.Group
	}
	if r.Namespace != "" {
		text += " in namespace " + r.Namespace
	}
	return text
}

// may refuses what the person who asks has no rights for, before anything is touched.
func (c *Cluster) may(ctx context.Context, rights []right) error {
	var missing []string
	for _, r := range rights {
		reviews := c.kube.AuthorizationV1().SelfSubjectAccessReviews()
		review, err := reviews.Create(ctx, &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
				Group: r.Group, Resource: r.Resource, Verb: r.Verb, Namespace: r.Namespace,
			}},
		}, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("asking the cluster for your rights: %w", err)
		}
		if !review.Status.Allowed {
			missing = append(missing, r.String())
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("nothing was changed: you may not %s; the ClusterRole cluster-admin may",
			strings.Join(missing, ", "))
	}
	return nil
}

// needed are the resources whose objects an installation has, but those of Prometheus' operator.
var needed = []right{
	{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"},
	{Resource: "namespaces"},
	{Resource: "configmaps", Namespace: api.Namespace},
	{Resource: "serviceaccounts", Namespace: api.Namespace},
	{Group: "rbac.authorization.k8s.io", Resource: "clusterroles"},
	{Group: "rbac.authorization.k8s.io", Resource: "clusterrolebindings"},
	{Group: "rbac.authorization.k8s.io", Resource: "roles", Namespace: api.Namespace},
	{Group: "rbac.authorization.k8s.io", Resource: "rolebindings", Namespace: api.Namespace},
	{Group: "admissionregistration.k8s.io", Resource: "validatingadmissionpolicies"},
	{Group: "admissionregistration.k8s.io", Resource: "validatingadmissionpolicybindings"},
	{Group: "policy", Resource: "poddisruptionbudgets", Namespace: api.Namespace},
	{Group: "networking.k8s.io", Resource: "networkpolicies", Namespace: api.Namespace},
	{Group: "machineconfiguration.openshift.io", Resource: "machineconfigpools"},
	{Group: "machineconfiguration.openshift.io", Resource: "controllerconfigs"},
	{Group: "apps", Resource: "deployments", Namespace: api.Namespace},
	{Group: "apps", Resource: "daemonsets", Namespace: api.Namespace},
	{Resource: "pods", Namespace: api.Namespace},
}

// rights are what verbs on the objects of an installation need.
func rights(verbs ...string) []right {
	var out []right
	for _, r := range needed {
		for _, verb := range verbs {
			r.Verb = verb
			out = append(out, r)
		}
	}
	return out
}

// toInstall is what an installation needs. Rights that are given to accounts have to be held: escalate
// and bind.
func toInstall() []right {
	out := rights("get", "list", "create", "patch")
	for _, verb := range []string{"escalate", "bind"} {
		out = append(out, right{Group: "rbac.authorization.k8s.io", Resource: "clusterroles", Verb: verb},
			right{Group: "rbac.authorization.k8s.io", Resource: "roles", Verb: verb, Namespace: api.Namespace})
	}
	return out
}

// look reads what a cluster has, for the decisions.
func (c *Cluster) look(ctx context.Context, objects []reference) (*found, error) {
	f := &found{}
	var err error
	if f.openShift, err = c.openShift(); err != nil {
		return nil, err
	}
	if f.record, err = c.record(ctx); err != nil {
		return nil, err
	}
	for _, ref := range slices.Concat(workloads, objects) {
		object, err := c.get(ctx, ref)
		if err != nil {
			return nil, err
		}
		if object != nil {
			f.add(object)
		}
	}
	return f, nil
}

// add notes who is behind an object.
func (f *found) add(object *unstructured.Unstructured) {
	name := nameOf(object)
	annotations := object.GetAnnotations()
	switch {
	case object.GetLabels()[partOfLabel] != partOfValue:
		if !slices.Contains(f.strangers, name) {
			f.strangers = append(f.strangers, name)
		}
	case annotations[helmName] != "":
		f.helm = &helmRelease{annotations[helmName], annotations[helmNamespace]}
	case !slices.ContainsFunc(object.GetManagedFields(), byPlugin):
		if !slices.Contains(f.others, name) {
			f.others = append(f.others, name)
		}
	}
}

func byPlugin(m metav1.ManagedFieldsEntry) bool { return m.Manager == manager }

// Annotations of what Helm has made.
const (
	helmName      = "meta.helm.sh/release-name"
	helmNamespace = "meta.helm.sh/release-namespace"
)

// openShift says by what a cluster is known for an OpenShift. Some of our own definitions are in the group
// config.openshift.io: it is the ClusterVersion that only an OpenShift has.
func (c *Cluster) openShift() (string, error) {
	list, err := c.kube.Discovery().ServerResourcesForGroupVersion("config.openshift.io/v1")
	if apierrors.IsNotFound(err) || discovery.IsGroupDiscoveryFailedError(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("reading which APIs the cluster has: %w", err)
	}
	for _, r := range list.APIResources {
		if r.Name == "clusterversions" || r.Name == "clusteroperators" {
			return "its API has " + r.Name + ".config.openshift.io", nil
		}
	}
	return "", nil
}

// appPods chooses the pods of a workload.
func appPods(app string) metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: "k8s-app=" + app}
}
