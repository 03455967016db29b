// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/hands"
	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/message"
)

// The intervals of delivering certificates. A changed ControllerConfig is delivered at once, whatever failed before.
const (
	deliverFirst = 5 * time.Second // between a failure and the next try, doubled each time
	deliverLast  = 30 * time.Minute
)

// watchControllerConfig watches the one ControllerConfig. A cluster without this kind, or without the right to read it,
// has nothing to deliver; such an error does not mean that the API server is away.
func (c *cluster) watchControllerConfig(ctx context.Context) error {
	only := fields.OneTermEqualSelector(metav1.ObjectNameField, api.ControllerConfig).String()
	lw := cache.NewFilteredListWatchFromClient(c.configs.MachineconfigurationV1().RESTClient(), "controllerconfigs", "",
		func(o *metav1.ListOptions) { o.FieldSelector = only })
	c.certs = cache.NewSharedIndexInformer(lw, &mcfgv1.ControllerConfig{}, 0, cache.Indexers{})
	if err := c.certs.SetTransform(slimControllerConfig); err != nil {
		return err
	}
	noted := false
	return c.runHandling(ctx, c.certs, func(err error) {
		if !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
			c.noteAway(err)
			return
		}
		if !noted {
			noted = true
			c.log.Warn("watching the ControllerConfig: certificates are not delivered", zap.Error(err))
		}
	})
}

// slimControllerConfig keeps the fields that are delivered.
func slimControllerConfig(o any) (any, error) {
	cc, is := o.(*mcfgv1.ControllerConfig)
	if !is {
		return o, nil
	}
	s := cc.Spec
	return &mcfgv1.ControllerConfig{
		TypeMeta: metav1.TypeMeta{APIVersion: mcfgv1.GroupVersion.String(), Kind: "ControllerConfig"},
		ObjectMeta: metav1.ObjectMeta{Name: cc.Name, UID: cc.UID, ResourceVersion: cc.ResourceVersion,
			Generation: cc.Generation, Annotations: unreadableMark(cc)},
		Spec: mcfgv1.ControllerConfigSpec{
			KubeAPIServerServingCAData: s.KubeAPIServerServingCAData, CloudProviderCAData: s.CloudProviderCAData,
			AdditionalTrustBundle: s.AdditionalTrustBundle, ImageRegistryBundleData: s.ImageRegistryBundleData,
			ImageRegistryBundleUserData: s.ImageRegistryBundleUserData,
			InternalRegistryPullSecret:  s.InternalRegistryPullSecret,
		},
	}, nil
}

// unreadableMark returns the annotation by which a ControllerConfig is marked as not wholly readable; nil: it is
// readable.
func unreadableMark(cc *mcfgv1.ControllerConfig) map[string]string {
	if said := cc.Annotations[api.UnreadableKey]; said != "" {
		return map[string]string{api.UnreadableKey: said}
	}
	return nil
}

// undeliverable returns the reason why a ControllerConfig is not delivered: one of its fields can't be read, and would
// be taken for a removed one.
func undeliverable(cc *mcfgv1.ControllerConfig) error {
	for _, field := range []string{"spec.kubeAPIServerServingCAData", "spec.cloudProviderCAData",
		"spec.additionalTrustBundle", "spec.imageRegistryBundleData", "spec.imageRegistryBundleUserData",
		"spec.internalRegistryPullSecret"} {
		if api.UnreadableField(cc, field) {
			return fmt.Errorf("ControllerConfig/%s: %w", cc.Name, api.Unreadable(cc))
		}
	}
	return nil
}

// controllerConfig returns the delivered part of the ControllerConfig; nil: the cluster has none, or it was not seen
// yet.
func (c *cluster) controllerConfig() *mcfgv1.ControllerConfig {
	if c.certs == nil {
		return nil
	}
	for _, o := range c.certs.GetStore().List() {
		if cc, is := o.(*mcfgv1.ControllerConfig); is && cc.Name == api.ControllerConfig {
			return cc
		}
	}
	return nil
}

// deliveryReport is the Node's report on the delivery.
type deliveryReport struct {
	known       bool   // otherwise the Node's annotations count
	synced      string // empty: nothing was delivered yet
	undelivered *api.Undelivered
}

func (d deliveryReport) report(r *nodeReport) {
	if !d.known {
		return
	}
	if d.synced != "" {
		r.set(api.SyncedControllerConfig, d.synced)
	}
	if d.undelivered != nil {
		r.set(api.UndeliveredKey, api.Encode(d.undelivered))
	} else {
		r.drop(api.UndeliveredKey)
	}
}

// deliveryState is what the head knows about the delivery.
type deliveryState struct {
	report  deliveryReport
	running bool
	seen    *mcfgv1.ControllerConfig // the ControllerConfig to which sum belongs
	sum     []byte
	tried   []byte // digest of the last delivery, successful or not
	done    bool
	tries   int
	retry   time.Time
}

// recall takes over the report of an earlier head.
func (s *deliveryState) recall(n *api.Node) {
	if !s.report.known {
		s.report.synced, s.report.undelivered = n.Synced, n.Undelivered
	}
}

// due reports whether the content with this digest is to be delivered now.
func (s *deliveryState) due(sum []byte, now time.Time) bool {
	if s.running {
		return false
	}
	if !bytes.Equal(sum, s.tried) {
		s.tried, s.done, s.tries, s.retry = sum, false, 0, time.Time{}
	}
	return !s.done && !now.Before(s.retry)
}

// ended takes over the result of a delivery. version is that of the ControllerConfig. A delivery that other work on the
// host keeps out counts as a failure only after several tries.
func (s *deliveryState) ended(version string, d *host.Delivery, err error, now time.Time) {
	s.running = false
	if err == nil {
		s.done, s.tries = true, 0
		s.report.known, s.report.undelivered = true, nil
		if s.report.synced == "" || d != nil && len(d.Paths()) > 0 {
			s.report.synced = version
		}
		return
	}
	s.tries++
	s.retry = now.Add(jitter(min(deliverFirst<<min(s.tries-1, 10), deliverLast)))
	if errors.As(err, new(*host.Refused)) && s.tries < 4 || errors.Is(err, context.Canceled) {
		return
	}
	u := &api.Undelivered{Reason: api.ShortReason(message.OneLine(err.Error())), Since: now.UTC().Truncate(time.Second)}
	if was := s.report.undelivered; was != nil {
		u.Since = was.Since
	}
	s.report.known, s.report.undelivered = true, u
}

// deliverEnd is the result of a delivery.
type deliverEnd struct {
	version  string
	delivery *host.Delivery
	err      error
}

// mayDeliver reports whether the files of the host are at rest: no operation is under way that could be taken back, or
// that compares the host. A drain may take days, and does not hold up a delivery; nor does the pull of an OS.
func (h *Head) mayDeliver(v *situation) bool {
	if !v.exists || v.host == nil || v.pending() || v.host.Config.Committed == "" {
		return false
	}
	return h.job == nil || slices.Contains([]Phase{PhaseDrain, PhaseStage, phaseAhead}, h.job.phase)
}

// deliver brings the renewed files of the ControllerConfig to the host, beside the configuration: a paused pool or a
// cordoned node does not matter.
func (h *Head) deliver(ctx context.Context, v *situation) {
	cc := h.cluster.controllerConfig()
	if h.o.Deliverer == nil || cc == nil || !h.mayDeliver(v) {
		return
	}
	if h.delivery.seen != cc { // a changed object comes as a new one from the watch
		spec, err := json.Marshal([]any{cc.Spec, cc.Annotations})
		if err != nil {
			h.log.Error("reading the ControllerConfig", zap.Error(err))
			return
		}
		sum := sha256.Sum256(spec)
		h.delivery.seen, h.delivery.sum = cc, sum[:]
	}
	if !h.delivery.due(h.delivery.sum, v.now) {
		return
	}
	document, err := json.Marshal(cc)
	if err != nil {
		h.log.Error("reading the ControllerConfig", zap.Error(err))
		return
	}
	h.delivery.running = true
	name := fmt.Sprintf("ControllerConfig %s, version %s", cc.Name, cc.ResourceVersion)
	r := hands.DeliverRequest{Name: name, Config: document}
	go func() {
		e := deliverEnd{version: cc.ResourceVersion}
		if e.err = undeliverable(cc); e.err == nil {
			r.Policy, e.err = h.cluster.policy(ctx)
		}
		if e.err == nil {
			e.delivery, e.err = h.o.Deliverer.Deliver(ctx, r)
		}
		h.delivers <- e
	}()
}

// finishDelivery takes over the result of a delivery.
func (h *Head) finishDelivery(e deliverEnd) {
	h.delivery.ended(e.version, e.delivery, e.err, time.Now())
	if e.err != nil && !errors.Is(e.err, context.Canceled) {
		h.log.Warn("delivering certificates", zap.String("controllerConfig", e.version), zap.Error(e.err))
	}
	node := h.cluster.current()
	if e.delivery == nil || len(e.delivery.Paths()) == 0 || node == nil {
		return
	}
	paths := e.delivery.Paths()
	h.log.Info("delivered certificates", zap.String("controllerConfig", e.version), zap.Strings("paths", paths))
	h.cluster.event(node, corev1.EventTypeNormal, "CertificatesDelivered",
		"Wrote the certificates of ControllerConfig "+api.ControllerConfig+" to the host, beside its configuration: "+
			strings.Join(paths, ", "))
}

// announceDelivery announces a failed delivery, each reason once.
func (h *Head) announceDelivery(was, is *api.Undelivered, node *corev1.Node) {
	if is != nil && (was == nil || was.Reason != is.Reason) {
		h.cluster.event(node, corev1.EventTypeWarning, "CertificatesNotDelivered", is.Reason)
	}
}
