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
	"github.com/noderefit/noderefit/kube"
	"github.com/noderefit/noderefit/message"
)

// The intervals of delivering certificates. A changed ControllerConfig is delivered at once, also after failures.
const (
	deliverFirst = 5 * time.Second // between a failure and the next try, doubled each time
	deliverLast  = 30 * time.Minute
)

// watchControllerConfig watches the one ControllerConfig. A cluster without this kind, or without the right to read it,
// has nothing to deliver; such an error does not mean that the API server is away.
func (c *cluster) watchControllerConfig(ctx context.Context) error {
	only := fields.OneTermEqualSelector(metav1.ObjectNameField, api.ControllerConfig).String()
	c.certs = cache.NewSharedIndexInformer(kube.Selected(c.kube.ControllerConfigs(), only), &mcfgv1.ControllerConfig{},
		0, cache.Indexers{})
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
			c.log.Warn("watching the ControllerConfig failed: certificates are not delivered", zap.Error(err))
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
	report deliveryReport
	seen   *mcfgv1.ControllerConfig // the ControllerConfig to which sum belongs
	sum    []byte
	tried  []byte // digest of the last delivery, successful or not
	done   bool
	tries  int
	retry  time.Time
}

// recall takes over the report of an earlier head.
func (s *deliveryState) recall(n *api.Node) {
	if !s.report.known {
		s.report.synced, s.report.undelivered = n.Synced, n.Undelivered
	}
}

// see takes over the ControllerConfig; nil: the cluster has none.
func (s *deliveryState) see(cc *mcfgv1.ControllerConfig) error {
	if s.seen == cc { // a changed object comes as a new one from the watch
		return nil
	}
	s.seen, s.sum = cc, nil
	if cc == nil {
		return nil
	}
	spec, err := json.Marshal([]any{cc.Spec, cc.Annotations})
	if err != nil {
		return err
	}
	sum := sha256.Sum256(spec)
	s.sum = sum[:]
	return nil
}

// changed reports whether the ControllerConfig has changed since the last delivery.
func (s *deliveryState) changed() bool { return !bytes.Equal(s.sum, s.tried) }

// ended takes over the result of a delivery. version is that of the ControllerConfig. A delivery that other work on the
// host keeps out counts as a failure only after several tries.
func (s *deliveryState) ended(version string, d *host.Delivery, err error, now time.Time) {
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

// mayDeliver reports whether the files of the host are at rest: no operation is under way that could be taken back, or
// that compares the host. A drain may take days, and does not hold up a delivery; nor does the pull of an OS.
func (h *Head) mayDeliver(v *situation) bool {
	if !v.exists || v.host == nil || v.pending() || v.host.Config.Committed == "" {
		return false
	}
	return h.job == nil || slices.Contains([]Phase{PhaseDrain, PhaseStage, phaseAhead}, h.job.phase)
}

func (h *Head) deliverDue(v *situation) time.Time {
	s := &h.delivery
	is := h.o.Deliverer != nil && s.sum != nil && h.mayDeliver(v)
	if s.changed() {
		return v.from(is, v.now)
	}
	return v.from(is && !s.done, s.retry)
}

// deliver brings the renewed files of the ControllerConfig to the host, beside the configuration: a paused pool or a
// cordoned node does not matter.
func (h *Head) deliver(ctx context.Context, _ *situation) work {
	s := &h.delivery
	if s.changed() {
		s.tried, s.done, s.tries, s.retry = s.sum, false, 0, time.Time{}
	}
	cc := s.seen
	return func() func() {
		d, err := h.delivered(ctx, cc)
		return func() { h.finishDelivery(cc.ResourceVersion, d, err) }
	}
}

func (h *Head) delivered(ctx context.Context, cc *mcfgv1.ControllerConfig) (*host.Delivery, error) {
	if err := undeliverable(cc); err != nil {
		return nil, err
	}
	r := hands.DeliverRequest{Name: fmt.Sprintf("ControllerConfig %s, version %s", cc.Name, cc.ResourceVersion)}
	var err error
	if r.Config, err = json.Marshal(cc); err != nil {
		return nil, err
	}
	if r.Policy, err = h.cluster.policy(ctx); err != nil {
		return nil, err
	}
	return h.o.Deliverer.Deliver(ctx, r)
}

// finishDelivery takes over the result of a delivery. version is that of the ControllerConfig.
func (h *Head) finishDelivery(version string, d *host.Delivery, err error) {
	h.delivery.ended(version, d, err, time.Now())
	if err != nil && !errors.Is(err, context.Canceled) {
		h.log.Warn("delivering certificates", zap.String("controllerConfig", version), zap.Error(err))
	}
	if d == nil || len(d.Paths()) == 0 {
		return
	}
	paths := d.Paths()
	h.log.Info("delivered certificates", zap.String("controllerConfig", version), zap.Strings("paths", paths))
	h.cluster.announce(corev1.EventTypeNormal, "CertificatesDelivered",
		"Wrote the certificates of ControllerConfig "+api.ControllerConfig+" to the host, beside its configuration: "+
			strings.Join(paths, ", "))
}

// announceDelivery announces a failed delivery, each reason once.
func (h *Head) announceDelivery(was, is *api.Undelivered, node *corev1.Node) {
	if is != nil && (was == nil || was.Reason != is.Reason) {
		h.cluster.event(node, corev1.EventTypeWarning, "CertificatesNotDelivered", is.Reason)
	}
}
