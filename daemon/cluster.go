// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"sync"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/drain"
	"github.com/noderefit/noderefit/kube"
	"github.com/noderefit/noderefit/machineconfig"
)

// requestTimeout bounds each request that is not a watch: the loop waits for some of them.
const requestTimeout = 10 * time.Second

// clusterError is an error of the API server, or of the connection to the API server.
type clusterError struct{ err error }

func (e *clusterError) Error() string { return e.err.Error() }
func (e *clusterError) Unwrap() error { return e.err }

// away reports whether an error is about reaching the API server and not about the request.
func away(err error) bool {
	var u *url.Error
	var n net.Error
	return errors.As(err, &u) || errors.As(err, &n) || errors.Is(err, context.DeadlineExceeded) ||
		apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) || apierrors.IsServiceUnavailable(err) ||
		apierrors.IsTooManyRequests(err) || apierrors.IsInternalError(err) || apierrors.IsUnauthorized(err)
}

// cluster is the head's access to the cluster: its own Node and MachineConfigNode, and rendered configurations by name.
type cluster struct {
	name   string
	kube   *kube.Client
	log    *zap.Logger
	wake   func()
	events record.EventRecorder

	node    cache.SharedIndexInformer
	certs   cache.SharedIndexInformer // the ControllerConfig; nil: not watched
	watched map[string]*configWatch

	mu      sync.Mutex
	patched *corev1.Node // the result of our latest patch, until the watch shows it
	broken  time.Time    // when a watch last broke
	noted   time.Time    // when the log last reported that
}

// configWatch watches one MachineConfig's metadata.
type configWatch struct {
	informer cache.SharedIndexInformer
	stop     context.CancelFunc
}

// awayEvery is the interval at which the log reports that the API server can't be reached.
const awayEvery = 10 * time.Minute

// start begins to watch the Node. The recorder of events ends with ctx.
func (c *cluster) start(ctx context.Context) error {
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(c.kube.Events())
	c.events = broadcaster.NewRecorder(kube.Scheme, corev1.EventSource{Component: "machineconfigdaemon", Host: c.name})
	only := fields.OneTermEqualSelector(metav1.ObjectNameField, c.name).String()
	c.node = cache.NewSharedIndexInformer(kube.Selected(c.kube.Nodes(), only), &corev1.Node{}, 0, cache.Indexers{})
	if err := c.node.SetTransform(slim); err != nil {
		return err
	}
	return c.run(ctx, c.node)
}

// slim leaves out the unused parts: most of a Node are images and managed fields. The managed fields that name the
// owner of a cordon stay.
func slim(o any) (any, error) {
	if n, ok := o.(*corev1.Node); ok {
		n.ManagedFields = drain.CordonOwners(n.ManagedFields)
		n.Status.Images, n.Status.VolumesAttached, n.Status.VolumesInUse = nil, nil, nil
	}
	return o, nil
}

func (c *cluster) run(ctx context.Context, informer cache.SharedIndexInformer) error {
	return c.runHandling(ctx, informer, c.noteAway)
}

// runHandling does what run does, with another handler for a watch that breaks.
func (c *cluster) runHandling(ctx context.Context, informer cache.SharedIndexInformer, broken func(error)) error {
	err := informer.SetWatchErrorHandlerWithContext(
		func(_ context.Context, _ *cache.Reflector, err error) { broken(err) })
	if err != nil {
		return err
	}
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { c.wake() },
		UpdateFunc: func(any, any) { c.wake() },
		DeleteFunc: func(any) { c.wake() },
	}
	if _, err := informer.AddEventHandler(handler); err != nil {
		return err
	}
	go informer.RunWithContext(ctx)
	return nil
}

// noteAway logs that a watch broke, with a limit on the number of log lines.
func (c *cluster) noteAway(err error) {
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.broken = time.Now()
	if c.broken.Sub(c.noted) > awayEvery {
		c.noted = c.broken
		c.log.Warn("watching the cluster fails; operations on the host continue", zap.Error(err))
	}
}

// away reports whether an error is due to an API server that is away, as far as this process can tell. A watch that
// broke lately makes every error suspect.
func (c *cluster) away(err error) bool {
	const lately = 90 * time.Second // longer than the longest pause of a watch between two tries
	c.mu.Lock()
	defer c.mu.Unlock()
	return away(err) || time.Since(c.broken) < lately
}

// current returns the Node as last seen; nil: the Node does not exist, or was not seen yet.
func (c *cluster) current() *corev1.Node {
	var seen *corev1.Node
	if all := c.node.GetStore().List(); len(all) == 1 {
		seen, _ = all[0].(*corev1.Node)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.patched == nil || seen == nil || seen.UID != c.patched.UID {
		c.patched = nil
		return seen
	}
	newer, err := resourceversion.CompareResourceVersion(seen.ResourceVersion, c.patched.ResourceVersion)
	if err != nil || newer >= 0 {
		c.patched = nil
		return seen
	}
	return c.patched
}

// report writes the report r to the Node, in one patch, and returns the Node before and after. Both are the same where
// nothing was to be written.
func (c *cluster) report(ctx context.Context, node *corev1.Node, r *nodeReport) (*corev1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	nodes := c.kube.Nodes()
	before := node
	if _, there := node.Annotations[api.Lift]; there && r.drops(api.Lift) && r.cordon != keepCordon {
		// The lift is removed in a patch of its own. The changes that go with a cordon are written even if the Node has
		// changed meanwhile.
		var err error
		if node, err = c.annotate(ctx, node, drain.Annotations{api.Lift: nil}); err != nil {
			return before, err
		}
		delete(r.annotations, api.Lift)
	}
	var after *corev1.Node
	var err error
	switch r.cordon {
	case takeCordon:
		after, err = drain.Cordon(ctx, nodes, node, r.entry, r.annotations)
	case dropCordon:
		config := cmp.Or(node.Annotations[api.DesiredConfig], node.Annotations[api.CurrentConfig])
		after, err = drain.Uncordon(ctx, nodes, node, config, r.annotations)
	case keepCordon:
		after, err = c.annotate(ctx, node, r.missing(node.Annotations))
	}
	if err == nil && r.configured {
		after, err = c.takePods(ctx, after)
	}
	if err != nil {
		return before, err
	}
	if after != before {
		_, _ = slim(after)
		c.mu.Lock()
		c.patched = after
		c.mu.Unlock()
	}
	return after, nil
}

// takePods removes the startup taint, and no other taint. The patch fails if the Node has changed since it was read, so
// that no taint set meanwhile is lost.
func (c *cluster) takePods(ctx context.Context, node *corev1.Node) (*corev1.Node, error) {
	left := slices.DeleteFunc(slices.Clone(node.Spec.Taints), func(t corev1.Taint) bool {
		return t.Key == api.StartupTaint
	})
	if len(left) == len(node.Spec.Taints) {
		return node, nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": node.UID, "resourceVersion": node.ResourceVersion},
		"spec":     map[string]any{"taints": left},
	})
	if err != nil {
		return nil, err
	}
	options := metav1.PatchOptions{FieldManager: api.Daemon}
	after, err := c.kube.Nodes().Patch(ctx, node.Name, types.MergePatchType, patch, options)
	if err != nil {
		return nil, fmt.Errorf("taking taint %s from node %s: %w", api.StartupTaint, node.Name, err)
	}
	return after, nil
}

func (c *cluster) annotate(ctx context.Context, node *corev1.Node, a drain.Annotations) (*corev1.Node, error) {
	if len(a) == 0 {
		return node, nil
	}
	// The uid: a Node that was deleted and created again must not get the report about the Node before.
	meta := map[string]any{"uid": node.UID, "annotations": a}
	if _, lift := a[api.Lift]; lift {
		meta["resourceVersion"] = node.ResourceVersion // only the lift that was seen is used up, not a later one
	}
	patch, err := json.Marshal(map[string]any{"metadata": meta})
	if err != nil {
		return nil, err
	}
	options := metav1.PatchOptions{FieldManager: api.Daemon}
	after, err := c.kube.Nodes().Patch(ctx, node.Name, types.MergePatchType, patch, options)
	if err != nil {
		return nil, fmt.Errorf("patching node %s: %w", node.Name, err)
	}
	return after, nil
}

// event writes an event about the Node.
func (c *cluster) event(node *corev1.Node, kind, reason, message string) {
	// Events about nodes have always had the node's name as their uid: kubectl describe finds them by that uid.
	ref := &corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: node.Name, UID: types.UID(node.Name)}
	c.events.Event(ref, kind, reason, api.ShortReason(message))
}

// announce writes an event about the Node, where the Node is known.
func (c *cluster) announce(kind, reason, message string) {
	if node := c.current(); node != nil {
		c.event(node, kind, reason, message)
	}
}

// watchConfigs watches the MachineConfigs of these names and no others.
func (c *cluster) watchConfigs(ctx context.Context, names ...string) {
	for i := range names {
		names[i] = api.Rendered(names[i])
	}
	for name, w := range c.watched {
		if !slices.Contains(names, name) {
			w.stop()
			delete(c.watched, name)
		}
	}
	for _, name := range names {
		if name == "" || c.watched[name] != nil {
			continue
		}
		only := fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
		informer := cache.NewSharedIndexInformer(kube.Selected(c.kube.Metadata.Resource(machineConfigs), only),
			&metav1.PartialObjectMetadata{}, 0, cache.Indexers{})
		watch, stop := context.WithCancel(ctx)
		if err := c.run(watch, informer); err != nil {
			c.log.Error("watching a configuration", zap.String("config", name), zap.Error(err))
		}
		c.watched[name] = &configWatch{informer: informer, stop: stop}
	}
}

// presence is what is known about the existence of an object.
type presence int

const (
	presenceUnknown presence = iota
	present
	gone
)

// watch returns the watch of a configuration, or of the pool's that a node's own was made of.
func (c *cluster) watch(config string) *configWatch { return c.watched[api.Rendered(config)] }

func (c *cluster) config(name string) presence {
	w := c.watch(name)
	switch {
	case w == nil || !w.informer.HasSynced():
		return presenceUnknown
	case len(w.informer.GetStore().ListKeys()) > 0:
		return present
	}
	return gone
}

// driftPolicy returns the drift policy in the annotations of a watched configuration. A policy that can't be read
// counts as the careful one.
func (c *cluster) driftPolicy(config string) api.DriftPolicy {
	return c.watch(config).driftPolicy(api.Rendered(config))
}

// annotations returns the annotations of a watched configuration, nil where the configuration does not exist.
func (w *configWatch) annotations(config string) map[string]string {
	if w == nil {
		return nil
	}
	object, _, err := w.informer.GetStore().GetByKey(config)
	if err != nil {
		return nil
	}
	meta, is := object.(*metav1.PartialObjectMetadata)
	if !is {
		return nil
	}
	return meta.Annotations
}

// known waits until the annotations of a configuration are known.
func (w *configWatch) known(ctx context.Context, config string) error {
	wait, cancel := context.WithTimeout(ctx, policyPatience)
	defer cancel()
	if !cache.WaitForCacheSync(wait.Done(), w.informer.HasSynced) {
		return &clusterError{fmt.Errorf("watching MachineConfig %s: %w", config, context.DeadlineExceeded)}
	}
	return nil
}

// hooksText returns the hooks in the annotations of a watched configuration.
func (c *cluster) hooksText(config string) string {
	return c.watch(config).annotations(api.Rendered(config))[api.HooksKey]
}

// signatures returns the signatures in the annotations of a watched configuration.
func (c *cluster) signatures(config string) string {
	return c.watch(config).annotations(api.Rendered(config))[api.SignaturesKey]
}

func (w *configWatch) driftPolicy(config string) api.DriftPolicy {
	p, err := api.ParseDriftPolicy(w.annotations(config)[api.DriftPolicyKey])
	if err != nil {
		return api.Careful()
	}
	return p
}

var machineConfigs = mcfgv1.GroupVersion.WithResource("machineconfigs")

const machineConfigPath = "/apis/machineconfiguration.openshift.io/v1/machineconfigs/"

// policyPath is the path of the cluster's one MachineConfiguration.
const policyPath = "/apis/operator.openshift.io/v1/machineconfigurations/cluster"

// get returns an object as stored in the API server. A proxy in between may answer with pages of its own: these prove
// nothing about the object.
func (c *cluster) get(ctx context.Context, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	data, err := c.kube.Raw(ctx, path)
	if err == nil && !json.Valid(data) {
		err = errors.New("the answer is not JSON: is there a proxy before the API server?")
	}
	return data, err
}

// errMissing returns the error for a desired configuration that does not exist.
func errMissing(name string) error {
	return &typedError{reason: reasonConfigMissing, err: fmt.Errorf("MachineConfig %s does not exist", name)}
}

// document reads a rendered configuration, and checks that it is whole and that its content fits its name.
func (c *cluster) document(ctx context.Context, name string) ([]byte, error) {
	name = api.Rendered(name)
	data, err := c.get(ctx, machineConfigPath+url.PathEscape(name))
	if apierrors.IsNotFound(err) {
		return nil, errMissing(name)
	}
	if err != nil {
		return nil, &clusterError{fmt.Errorf("reading MachineConfig %s: %w", name, err)}
	}
	return data, checkConfig(name, data)
}

// policy reads the cluster's MachineConfiguration; nil: the cluster has none.
func (c *cluster) policy(ctx context.Context) ([]byte, error) {
	data, err := c.get(ctx, policyPath)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, &clusterError{fmt.Errorf("reading MachineConfiguration cluster: %w", err)}
	}
	return data, nil
}

// checkConfig checks that the content of a rendered configuration fits its name. The values of a node, in the host's
// copy, are no part of the content.
func checkConfig(name string, document []byte) error {
	mc := &mcfgv1.MachineConfig{}
	if err := json.Unmarshal(document, mc); err != nil {
		return &typedError{reason: reasonConfigInvalid, err: fmt.Errorf("MachineConfig %s: %w", name, err)}
	}
	cfg, err := machineconfig.ParseRendered(machineconfig.Unfilled(mc))
	if err != nil {
		return &typedError{reason: reasonConfigInvalid, err: fmt.Errorf("MachineConfig %s: %w", name, err)}
	}
	if mc.Name != name || !machineconfig.NamedBy(name, cfg.Digest) {
		return &typedError{reason: reasonConfigMismatch, err: fmt.Errorf(
			"MachineConfig %s: the content does not match the digest in the name; the object was changed or written by hand",
			name)}
	}
	return nil
}

// restore creates a deleted configuration again from the host's copy. It reports whether it has created the object:
// another node may have been quicker.
func (c *cluster) restore(ctx context.Context, name string, document []byte) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	name = api.Rendered(name)
	if err := checkConfig(name, document); err != nil {
		return false, fmt.Errorf("the host's copy: %w", err)
	}
	mc := &mcfgv1.MachineConfig{}
	if err := json.Unmarshal(document, mc); err != nil {
		return false, err
	}
	mc = machineconfig.Unfilled(mc)
	// The render controller sets the owners: those in the copy may be objects that are gone.
	mc.ObjectMeta = metav1.ObjectMeta{Name: name, Labels: mc.Labels, Annotations: mc.Annotations}
	metav1.SetMetaDataAnnotation(&mc.ObjectMeta, api.RestoredFrom, c.name)
	options := metav1.CreateOptions{FieldManager: api.Daemon}
	_, err := c.kube.MachineConfigs().Create(ctx, mc, options)
	if apierrors.IsAlreadyExists(err) {
		return false, nil
	}
	return err == nil, err
}

// machineConfigNode reads our MachineConfigNode; nil: it does not exist.
func (c *cluster) machineConfigNode(ctx context.Context) (*mcfgv1.MachineConfigNode, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	n, err := c.kube.MachineConfigNodes().Get(ctx, c.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return n, err
}

// applyMachineConfigNode writes our MachineConfigNode as wanted, or its status.
func (c *cluster) applyMachineConfigNode(ctx context.Context, wanted any, subresources ...string,
) (*mcfgv1.MachineConfigNode, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	patch, err := json.Marshal(wanted)
	if err != nil {
		return nil, err
	}
	force := true
	options := metav1.PatchOptions{FieldManager: api.Daemon, Force: &force}
	return c.kube.MachineConfigNodes().Patch(ctx, c.name, types.ApplyYAMLPatchType, patch, options, subresources...)
}
