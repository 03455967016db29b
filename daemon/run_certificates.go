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

// The paces of delivering certificates. A ControllerConfig that changes is delivered at once, whatever failed before.
const (
	deliverFirst = 5 * time.Second // between a failure and the next try, doubled each time
	deliverLast  = 30 * time.Minute
)

// watchControllerConfig watches the one ControllerConfig. A cluster that has no such kind, or does not let us read it,
// has nothing to deliver, and is no cluster that is away.
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

// slimControllerConfig keeps what is delivered.
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

// unreadableMark is what of a ControllerConfig's annotations says that it can't be read as a whole; nil: it can.
func unreadableMark(cc *mcfgv1.ControllerConfig) map[string]string {
	if said := cc.Annotations[api.UnreadableKey]; said != "" {
		return map[string]string{api.UnreadableKey: said}
	}
	return nil
}

// undeliverable is why what a ControllerConfig says is not delivered: a part of it can't be read, and would be taken
// for one that is to go.
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

// controllerConfig is what of it is delivered; nil: there is none, or it was not seen yet.
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

// deliveryReport is what the Node is to say of what is delivered.
type deliveryReport struct {
	known       bool   // otherwise the Node says what is known
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

// deliveryState is what the head knows of what is delivered.
type deliveryState struct {
	report  deliveryReport
	running bool
	seen    *mcfgv1.ControllerConfig // the one that sum is of
	sum     []byte
	tried   []byte // digest of what was delivered last, or could not be
	done    bool
	tries   int
	retry   time.Time
}

// recall takes what a head before us has said.
func (s *deliveryState) recall(n *api.Node) {
	if !s.report.known {
		s.report.synced, s.report.undelivered = n.Synced, n.Undelivered
	}
}

// due says whether what has this digest is to be delivered now.
func (s *deliveryState) due(sum []byte, now time.Time) bool {
	if s.running {
		return false
	}
	if !bytes.Equal(sum, s.tried) {
		s.tried, s.done, s.tries, s.retry = sum, false, 0, time.Time{}
	}
	return !s.done && !now.Before(s.retry)
}

// ended takes what became of delivering. version is that of the ControllerConfig. That something else was at work on
// the host is a failure only once it has been so for long.
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

// deliverEnd is what became of it.
type deliverEnd struct {
	version  string
	delivery *host.Delivery
	err      error
}

// mayDeliver says whether the host is at rest as far as its files go: nothing is decided that could be taken back, and
// nobody compares it. A drain may take days, and holds nothing up; nor does an OS that is being pulled.
func (h *Head) mayDeliver(v *situation) bool {
	if !v.exists || v.host == nil || v.pending() || v.host.Config.Committed == "" {
		return false
	}
	return h.job == nil || slices.Contains([]Phase{PhaseDrain, PhaseStage, phaseAhead}, h.job.phase)
}

// deliver has the host take what the ControllerConfig has that is renewed beside the configurations: whether the pool
// is paused and the node is cordoned does not matter.
func (h *Head) deliver(ctx context.Context, v *situation) {
	cc := h.cluster.controllerConfig()
	if h.o.Deliverer == nil || cc == nil || !h.mayDeliver(v) {
		return
	}
	if h.delivery.seen != cc { // what is watched comes as another object when it has changed
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

// finishDelivery takes what became of it.
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

// announceDelivery tells people what could not be delivered, of each reason once.
func (h *Head) announceDelivery(was, is *api.Undelivered, node *corev1.Node) {
	if is != nil && (was == nil || was.Reason != is.Reason) {
		h.cluster.event(node, corev1.EventTypeWarning, "CertificatesNotDelivered", is.Reason)
	}
}
