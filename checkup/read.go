// SPDX-License-Identifier: Apache-2.0

package checkup

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"golang.org/x/sync/errgroup"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/intake"
)

// Cluster is the API server, with the rights of the person who asks.
type Cluster struct {
	kube kubernetes.Interface
	// plain gets JSON, of which intake removes what our types can't hold.
	plain   rest.Interface
	intake  *intake.Intake
	clock   *clock
	options Options
}

// Options are the settings of a Cluster.
type Options struct {
	// Plugin is the program's version.
	Plugin string
	// Namespace is the namespace of the agents and the controller.
	Namespace string
}

// Requests of one command come in a burst: some dozens, whatever the size of the cluster.
const (
	requestsPerSecond = 100
	requestBurst      = 200
)

// Connect makes the clients for a Cluster. It makes no requests.
func Connect(cfg *rest.Config, o Options) (*Cluster, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS, cfg.Burst = requestsPerSecond, requestBurst
	cfg.UserAgent = "kubectl-refit/" + o.Plugin
	c := &Cluster{intake: intake.New(), clock: &clock{}, options: o}
	cfg.Wrap(c.intake.Transport)
	cfg.Wrap(c.clock.transport)
	plain, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("connecting to the cluster: %w", err)
	}
	c.plain = plain.Discovery().RESTClient()
	// A thousand nodes are some ten MB of JSON, and less in this encoding.
	cfg = rest.CopyConfig(cfg)
	cfg.ContentType = runtime.ContentTypeProtobuf
	cfg.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	if c.kube, err = kubernetes.NewForConfig(cfg); err != nil {
		return nil, fmt.Errorf("connecting to the cluster: %w", err)
	}
	return c, nil
}

// clock reads the time of the API server from its answers.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) transport(next http.RoundTripper) http.RoundTripper { return ticking{c, next} }

type ticking struct {
	clock *clock
	next  http.RoundTripper
}

func (t ticking) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := t.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if at, err := http.ParseTime(answer.Header.Get("Date")); err == nil {
		t.clock.set(at)
	}
	return answer, nil
}

// WrappedRoundTripper returns the next transport. By this method client-go finds the transport that connects.
func (t ticking) WrappedRoundTripper() http.RoundTripper { return t.next }

func (c *clock) set(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = at
}

func (c *clock) read() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.now.IsZero() {
		return time.Now()
	}
	return c.now
}

// Check reads the cluster and judges it. Before an installation, only what an installation needs is checked. The error
// is that the API server does not answer at all.
func (c *Cluster) Check(ctx context.Context, o CheckOptions) (Document, error) {
	f := &facts{pre: o.Pre, plugin: c.options.Plugin, namespace: c.options.Namespace}
	f.server.is, f.server.err = c.kube.Discovery().ServerVersion()
	if f.server.err != nil && !apierrors.IsForbidden(f.server.err) {
		return Document{}, fmt.Errorf("asking the API server for its version: %w", f.server.err)
	}
	c.read(ctx, f)
	if o.Pre {
		f.images = askRegistry(ctx, o.Registry, c.options.Plugin, o.Tag)
		if o.probes() {
			f.probes = c.probe(ctx, o, f)
		}
	}
	if err := ctx.Err(); err != nil {
		return Document{}, fmt.Errorf("checking the cluster: %w", err)
	}
	f.now, f.unread = c.clock.read(), c.intake.Unread()
	return judge(f), nil
}

// CheckOptions are the choices of a person who checks a cluster.
type CheckOptions struct {
	Pre bool
	// Registry is where an installation would pull its images from, and Tag the version of these; empty: the plugin's.
	Registry, Tag string
	// Probe runs a pod on a node of each kind of host, or on Nodes.
	Probe bool
	Nodes []string
}

func (o CheckOptions) probes() bool { return o.Probe || len(o.Nodes) > 0 }

// read reads all facts at once. The number of requests does not depend on the number of nodes.
func (c *Cluster) read(ctx context.Context, f *facts) {
	g := &errgroup.Group{}
	readers := []func(context.Context, *facts){c.readServed, c.readNamespace, c.readDefinitions, c.readNodes,
		c.readWorkloads}
	if f.pre {
		readers = append(readers, c.readRights, c.readDaemonSet)
	} else {
		readers = append(readers, c.readPods, c.readDeployment, c.readDaemonSet, c.readLease, c.readAdmission, c.readBindings,
			c.readPools, c.readStates, c.readPolicies, c.readStreams)
	}
	for _, reader := range readers {
		g.Go(func() error { reader(ctx, f); return nil })
	}
	_ = g.Wait() // each reader keeps its error in its fact
}

// groupVersions are the groups whose resources the checks ask for.
var groupVersions = []string{"admissionregistration.k8s.io/v1", "config.openshift.io/v1", "upgrade.cattle.io/v1"}

func (c *Cluster) readServed(ctx context.Context, f *facts) {
	f.served.is = map[string]bool{}
	for _, gv := range groupVersions {
		list, err := get[metav1.APIResourceList](ctx, c, "/apis/"+gv)
		if err != nil {
			f.served.err = fmt.Errorf("asking which resources of %s are served: %w", gv, err)
			return
		}
		group, _, _ := strings.Cut(gv, "/")
		if list != nil {
			for _, r := range list.APIResources {
				f.served.is[r.Name+"."+group] = true
			}
		}
	}
}

func (c *Cluster) readNamespace(ctx context.Context, f *facts) {
	ns, err := c.kube.CoreV1().Namespaces().Get(ctx, f.namespace, metav1.GetOptions{})
	if err == nil {
		f.ns.is = ns
	}
	f.ns.err = present(err, "reading Namespace %s", f.namespace)
}

func (c *Cluster) readDefinitions(ctx context.Context, f *facts) {
	var mu sync.Mutex
	f.definitions.is = map[string]*apiextensionsv1.CustomResourceDefinition{}
	g, inner := errgroup.WithContext(ctx)
	for name := range ownDefinitions() {
		g.Go(func() error {
			crd, err := get[apiextensionsv1.CustomResourceDefinition](inner, c,
				"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/"+name)
			if err != nil {
				return fmt.Errorf("reading CustomResourceDefinition %s: %w", name, err)
			}
			mu.Lock()
			defer mu.Unlock()
			f.definitions.is[name] = crd
			return nil
		})
	}
	f.definitions.err = g.Wait()
}

// ownDefinitions are the definitions that this program knows, by name.
var ownDefinitions = sync.OnceValue(func() map[string]*apiextensionsv1.CustomResourceDefinition {
	out := map[string]*apiextensionsv1.CustomResourceDefinition{}
	files, err := fs.Glob(api.CRDs, "crds/*.yaml")
	for _, file := range files {
		var data []byte
		if data, err = api.CRDs.ReadFile(file); err != nil {
			break
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err = yaml.Unmarshal(data, crd); err != nil {
			break
		}
		out[crd.Name] = crd
	}
	if err != nil {
		panic(fmt.Sprintf("reading the program's own definitions: %v", err)) // they are part of the program
	}
	return out
})

// fromCache lists the objects in the API server's memory, which are at most moments old.
var fromCache = metav1.ListOptions{ResourceVersion: "0"}

func (c *Cluster) readNodes(ctx context.Context, f *facts) {
	list, err := c.kube.CoreV1().Nodes().List(ctx, fromCache)
	if err != nil {
		f.nodes.err = fmt.Errorf("listing Nodes: %w", err)
		return
	}
	f.nodes.is = list.Items
}

func (c *Cluster) readWorkloads(ctx context.Context, f *facts) {
	for kind, resource := range map[string]string{"DaemonSet": "daemonsets", "Deployment": "deployments"} {
		data, err := c.plain.Get().AbsPath("/apis/apps/v1/"+resource).Param("resourceVersion", fromCache.ResourceVersion).
			SetHeader("Accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1").Do(ctx).Raw()
		var list metav1.PartialObjectMetadataList
		if err == nil {
			err = json.Unmarshal(data, &list)
		}
		if err != nil {
			f.workloads.err = fmt.Errorf("listing %ss: %w", kind, err)
			return
		}
		for i := range list.Items {
			f.workloads.is = append(f.workloads.is, workload{kind, list.Items[i].ObjectMeta})
		}
	}
}

// right is a right that an installation needs.
type right struct{ verb, group, resource, namespace string }

func (r right) String() string {
	text := r.verb + " " + r.resource
	if r.group != "" {
		text += "." + r.group
	}
	if r.namespace != "" {
		text += " in namespace " + r.namespace
	}
	return text
}

// neededRights are the rights of an installation. RBAC refuses roles that grant more than their author has, unless the
// author may escalate and bind.
func neededRights(namespace string) []right {
	var out []right
	for _, r := range []right{
		{resource: "namespaces"},
		{group: "apiextensions.k8s.io", resource: "customresourcedefinitions"},
		{group: "rbac.authorization.k8s.io", resource: "clusterroles"},
		{group: "rbac.authorization.k8s.io", resource: "clusterrolebindings"},
		{group: "admissionregistration.k8s.io", resource: "validatingadmissionpolicies"},
		{group: "admissionregistration.k8s.io", resource: "validatingadmissionpolicybindings"},
		{group: mcfgv1.GroupName, resource: "machineconfigpools"},
		{group: "apps", resource: "deployments", namespace: namespace},
		{group: "apps", resource: "daemonsets", namespace: namespace},
		{group: "policy", resource: "poddisruptionbudgets", namespace: namespace},
		{group: "networking.k8s.io", resource: "networkpolicies", namespace: namespace},
		{resource: "serviceaccounts", namespace: namespace},
		{group: "rbac.authorization.k8s.io", resource: "roles", namespace: namespace},
		{group: "rbac.authorization.k8s.io", resource: "rolebindings", namespace: namespace},
	} {
		for _, verb := range []string{"create", "patch"} {
			r.verb = verb
			out = append(out, r)
		}
	}
	for _, resource := range []string{"clusterroles", "roles"} {
		for _, verb := range []string{"bind", "escalate"} {
			out = append(out, right{verb: verb, group: "rbac.authorization.k8s.io", resource: resource})
		}
	}
	return out
}

func (c *Cluster) readRights(ctx context.Context, f *facts) {
	all, err := c.may(ctx, right{verb: "*", group: "*", resource: "*"})
	if err != nil || all { // an administrator is asked once
		f.lacks.err = err
		return
	}
	needed := neededRights(f.namespace)
	has := make([]bool, len(needed))
	g, inner := errgroup.WithContext(ctx)
	for i, r := range needed {
		g.Go(func() (err error) { has[i], err = c.may(inner, r); return err })
	}
	if f.lacks.err = g.Wait(); f.lacks.err != nil {
		return
	}
	for i, r := range needed {
		if !has[i] {
			f.lacks.is = append(f.lacks.is, r)
		}
	}
}

func (c *Cluster) may(ctx context.Context, r right) (bool, error) {
	review, err := c.kube.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx,
		&authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb: r.verb, Group: r.group, Resource: r.resource, Namespace: r.namespace,
			}},
		}, metav1.CreateOptions{})
	if err != nil {
		return false, fmt.Errorf("asking whether you may %s: %w", r, err)
	}
	return review.Status.Allowed, nil
}

// ofNoderefit are the labels of our pods.
var ofNoderefit = "k8s-app in (" + strings.Join([]string{api.Controller, api.Daemon, serverName}, ", ") + ")"

// serverName is the name of the server, and the label of its pods.
const serverName = "machine-config-server"

func (c *Cluster) readPods(ctx context.Context, f *facts) {
	list, err := c.kube.CoreV1().Pods(f.namespace).List(ctx, metav1.ListOptions{
		LabelSelector: ofNoderefit, ResourceVersion: fromCache.ResourceVersion,
	})
	if err != nil {
		f.pods.err = fmt.Errorf("listing Pods in namespace %s: %w", f.namespace, err)
		return
	}
	f.pods.is = list.Items
}

func (c *Cluster) readDeployment(ctx context.Context, f *facts) {
	d, err := c.kube.AppsV1().Deployments(f.namespace).Get(ctx, api.Controller, metav1.GetOptions{})
	if err == nil {
		f.deployment.is = d
	}
	f.deployment.err = present(err, "reading Deployment %s/%s", f.namespace, api.Controller)
}

func (c *Cluster) readDaemonSet(ctx context.Context, f *facts) {
	d, err := c.kube.AppsV1().DaemonSets(f.namespace).Get(ctx, api.Daemon, metav1.GetOptions{})
	if err == nil {
		f.daemonSet.is = d
	}
	f.daemonSet.err = present(err, "reading DaemonSet %s/%s", f.namespace, api.Daemon)
}

func (c *Cluster) readLease(ctx context.Context, f *facts) {
	l, err := c.kube.CoordinationV1().Leases(f.namespace).Get(ctx, api.Controller, metav1.GetOptions{})
	if err == nil {
		f.lease.is = l
	}
	f.lease.err = present(err, "reading Lease %s/%s", f.namespace, api.Controller)
}

func (c *Cluster) readAdmission(ctx context.Context, f *facts) {
	list, err := c.kube.AdmissionregistrationV1().ValidatingAdmissionPolicies().List(ctx, fromCache)
	if err != nil {
		f.admission.err = fmt.Errorf("listing ValidatingAdmissionPolicies: %w", err)
		return
	}
	f.admission.is = map[string]*admissionv1.ValidatingAdmissionPolicy{}
	for i := range list.Items {
		f.admission.is[list.Items[i].Name] = &list.Items[i]
	}
}

func (c *Cluster) readBindings(ctx context.Context, f *facts) {
	list, err := c.kube.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().List(ctx, fromCache)
	if err != nil {
		f.bindings.err = fmt.Errorf("listing ValidatingAdmissionPolicyBindings: %w", err)
		return
	}
	f.bindings.is = map[string]*admissionv1.ValidatingAdmissionPolicyBinding{}
	for i := range list.Items {
		f.bindings.is[list.Items[i].Name] = &list.Items[i]
	}
}

func (c *Cluster) readPools(ctx context.Context, f *facts) {
	f.pools.is, f.pools.err = items[mcfgv1.MachineConfigPoolList](ctx, c, "MachineConfigPools",
		"/apis/machineconfiguration.openshift.io/v1/machineconfigpools",
		func(l *mcfgv1.MachineConfigPoolList) []mcfgv1.MachineConfigPool { return l.Items })
	slices.SortFunc(f.pools.is, func(a, b mcfgv1.MachineConfigPool) int { return strings.Compare(a.Name, b.Name) })
}

func (c *Cluster) readStates(ctx context.Context, f *facts) {
	f.states.is, f.states.err = items[mcfgv1.MachineConfigNodeList](ctx, c, "MachineConfigNodes",
		"/apis/machineconfiguration.openshift.io/v1/machineconfignodes",
		func(l *mcfgv1.MachineConfigNodeList) []mcfgv1.MachineConfigNode { return l.Items })
}

func (c *Cluster) readPolicies(ctx context.Context, f *facts) {
	f.policies.is, f.policies.err = items[api.RolloutPolicyList](ctx, c, "RolloutPolicies",
		"/apis/noderefit.dev/v1alpha1/rolloutpolicies", func(l *api.RolloutPolicyList) []api.RolloutPolicy { return l.Items })
}

func (c *Cluster) readStreams(ctx context.Context, f *facts) {
	f.streams.is, f.streams.err = items[api.OSStreamList](ctx, c, "OSStreams",
		"/apis/noderefit.dev/v1alpha1/osstreams", func(l *api.OSStreamList) []api.OSStream { return l.Items })
}

// get reads an object as JSON. It returns nil where there is no such object.
func get[T any](ctx context.Context, c *Cluster, path string) (*T, error) {
	data, err := c.plain.Get().AbsPath(path).Do(ctx).Raw()
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	into := new(T)
	if err := json.Unmarshal(data, into); err != nil {
		return nil, fmt.Errorf("reading the answer to %s: %w", path, err)
	}
	return into, nil
}

// items reads a list; it is empty where the cluster does not have the kind.
func items[L, T any](ctx context.Context, c *Cluster, kind, path string, of func(*L) []T) ([]T, error) {
	list, err := get[L](ctx, c, path)
	if err != nil {
		return nil, fmt.Errorf("listing %s: %w", kind, err)
	}
	if list == nil {
		return nil, nil
	}
	return of(list), nil
}

// present returns the error of reading an object; nil where there is no such object.
func present(err error, format string, args ...any) error {
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf(format+": %w", append(args, err)...)
}

func forbidden(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) }
