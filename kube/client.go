// SPDX-License-Identifier: Apache-2.0

// Package kube is the agent's client of the API server. The clients are those of client-go, for the few kinds that an
// agent needs:
//
//	client, err := kube.New(config)
//	...
//	node, err := client.Nodes().Get(ctx, name, metav1.GetOptions{})
//
// A clientset has the kinds of all API groups. These are two thirds of a program that the kernel keeps in the memory of
// each node.
package kube

import (
	"context"
	"net/http"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/gentype"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"
)

// Scheme has the kinds that a Client reads and writes.
var Scheme = newScheme()

var parameters = runtime.NewParameterCodec(Scheme)

func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, policyv1.AddToScheme, storagev1.AddToScheme,
		mcfgv1.Install} {
		utilruntime.Must(add(scheme))
	}
	return scheme
}

// Client reads and writes the kinds that an agent needs.
type Client struct {
	core, policy, storage, configs rest.Interface

	// Metadata reads the metadata of objects of any kind.
	Metadata metadata.Interface
}

// New returns a client. It makes no request. All requests together keep the limits of the configuration.
func New(config *rest.Config) (*Client, error) {
	shared := rest.CopyConfig(config)
	if shared.UserAgent == "" {
		shared.UserAgent = rest.DefaultKubernetesUserAgent()
	}
	if shared.RateLimiter == nil && shared.QPS > 0 {
		shared.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(shared.QPS, max(shared.Burst, 1))
	}
	transport, err := rest.HTTPClientFor(shared)
	if err != nil {
		return nil, err
	}
	c := &Client{}
	for _, group := range []struct {
		client  *rest.Interface
		path    string
		version schema.GroupVersion
	}{
		{&c.core, "/api", corev1.SchemeGroupVersion},
		{&c.policy, "/apis", policyv1.SchemeGroupVersion},
		{&c.storage, "/apis", storagev1.SchemeGroupVersion},
		{&c.configs, "/apis", mcfgv1.GroupVersion},
	} {
		if *group.client, err = clientFor(shared, transport, group.path, group.version); err != nil {
			return nil, err
		}
	}
	c.Metadata, err = metadata.NewForConfigAndClient(metadata.ConfigFor(shared), transport)
	return c, err
}

func clientFor(shared *rest.Config, transport *http.Client, path string, version schema.GroupVersion,
) (rest.Interface, error) {
	config := rest.CopyConfig(shared)
	config.GroupVersion, config.APIPath = &version, path
	codecs := rest.CodecFactoryForGeneratedClient(Scheme, serializer.NewCodecFactory(Scheme))
	config.NegotiatedSerializer = codecs.WithoutConversion()
	return rest.RESTClientForConfigAndClient(config, transport)
}

// Nodes returns the client of Nodes.
func (c *Client) Nodes() *gentype.ClientWithList[*corev1.Node, *corev1.NodeList] {
	return gentype.NewClientWithList("nodes", c.core, parameters, "",
		func() *corev1.Node { return &corev1.Node{} }, func() *corev1.NodeList { return &corev1.NodeList{} },
		gentype.PrefersProtobuf[*corev1.Node]())
}

// Pods returns the client of the pods of a namespace, or of all namespaces where it is empty.
func (c *Client) Pods(namespace string) *gentype.ClientWithList[*corev1.Pod, *corev1.PodList] {
	return gentype.NewClientWithList("pods", c.core, parameters, namespace,
		func() *corev1.Pod { return &corev1.Pod{} }, func() *corev1.PodList { return &corev1.PodList{} },
		gentype.PrefersProtobuf[*corev1.Pod]())
}

// Evict asks once for the eviction of a pod. The caller handles a refusal: the client does not try again.
func (c *Client) Evict(ctx context.Context, eviction *policyv1.Eviction) error {
	return c.core.Post().Namespace(eviction.Namespace).Resource("pods").Name(eviction.Name).SubResource("eviction").
		MaxRetries(0).Body(eviction).Do(ctx).Error()
}

// Budgets returns the client of a namespace's PodDisruptionBudgets.
func (c *Client) Budgets(namespace string,
) *gentype.ClientWithList[*policyv1.PodDisruptionBudget, *policyv1.PodDisruptionBudgetList] {
	return gentype.NewClientWithList("poddisruptionbudgets", c.policy, parameters, namespace,
		func() *policyv1.PodDisruptionBudget { return &policyv1.PodDisruptionBudget{} },
		func() *policyv1.PodDisruptionBudgetList { return &policyv1.PodDisruptionBudgetList{} },
		gentype.PrefersProtobuf[*policyv1.PodDisruptionBudget]())
}

// Attachments returns the client of VolumeAttachments.
func (c *Client) Attachments() *gentype.ClientWithList[*storagev1.VolumeAttachment, *storagev1.VolumeAttachmentList] {
	return gentype.NewClientWithList("volumeattachments", c.storage, parameters, "",
		func() *storagev1.VolumeAttachment { return &storagev1.VolumeAttachment{} },
		func() *storagev1.VolumeAttachmentList { return &storagev1.VolumeAttachmentList{} },
		gentype.PrefersProtobuf[*storagev1.VolumeAttachment]())
}

// Claims returns the client of a namespace's PersistentVolumeClaims.
func (c *Client) Claims(namespace string) *gentype.Client[*corev1.PersistentVolumeClaim] {
	return gentype.NewClient("persistentvolumeclaims", c.core, parameters, namespace,
		func() *corev1.PersistentVolumeClaim { return &corev1.PersistentVolumeClaim{} },
		gentype.PrefersProtobuf[*corev1.PersistentVolumeClaim]())
}

// MachineConfigs returns the client of MachineConfigs.
func (c *Client) MachineConfigs() *gentype.Client[*mcfgv1.MachineConfig] {
	return gentype.NewClient("machineconfigs", c.configs, parameters, "",
		func() *mcfgv1.MachineConfig { return &mcfgv1.MachineConfig{} })
}

// MachineConfigNodes returns the client of MachineConfigNodes.
func (c *Client) MachineConfigNodes() *gentype.Client[*mcfgv1.MachineConfigNode] {
	return gentype.NewClient("machineconfignodes", c.configs, parameters, "",
		func() *mcfgv1.MachineConfigNode { return &mcfgv1.MachineConfigNode{} })
}

// ControllerConfigs returns the client of ControllerConfigs.
func (c *Client) ControllerConfigs() *gentype.ClientWithList[*mcfgv1.ControllerConfig, *mcfgv1.ControllerConfigList] {
	return gentype.NewClientWithList("controllerconfigs", c.configs, parameters, "",
		func() *mcfgv1.ControllerConfig { return &mcfgv1.ControllerConfig{} },
		func() *mcfgv1.ControllerConfigList { return &mcfgv1.ControllerConfigList{} })
}

// Raw returns the bytes of the object at a path, as the API server has sent them. An error has the API server's words.
func (c *Client) Raw(ctx context.Context, path string) ([]byte, error) {
	result := c.configs.Get().AbsPath(path).Do(ctx)
	if err := result.Error(); err != nil {
		return nil, err // with the message of its Status, which Raw leaves out
	}
	return result.Raw()
}

// lister lists and watches objects of one kind.
type lister[L runtime.Object] interface {
	List(ctx context.Context, o metav1.ListOptions) (L, error)
	Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
}

// Selected returns what an informer lists and watches: the objects that a field selector selects.
func Selected[L runtime.Object](objects lister[L], fields string) cache.ListerWatcher {
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = fields
			return objects.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = fields
			return objects.Watch(ctx, o)
		},
	}, objects)
}

// Events returns where a recorder sends its events.
func (c *Client) Events() record.EventSink { return events{c.core} }

// events writes each event to its own namespace.
type events struct{ core rest.Interface }

func (e events) Create(event *corev1.Event) (*corev1.Event, error) {
	return e.do(e.core.Post(), event.Namespace, event)
}

func (e events) Update(event *corev1.Event) (*corev1.Event, error) {
	return e.do(e.core.Put().Name(event.Name), event.Namespace, event)
}

func (e events) Patch(event *corev1.Event, data []byte) (*corev1.Event, error) {
	return e.do(e.core.Patch(types.StrategicMergePatchType).Name(event.Name), event.Namespace, data)
}

func (events) do(r *rest.Request, namespace string, body any) (*corev1.Event, error) {
	out := &corev1.Event{}
	err := r.Namespace(namespace).Resource("events").Body(body).Do(context.Background()).Into(out)
	return out, err
}
