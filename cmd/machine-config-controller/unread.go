// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/noderefit/noderefit/intake"
)

// unreadPace is the time between two checks of unreadable objects.
const unreadPace = 5 * time.Second

// unread reports objects that can't be read. A new one is reported by the log and an event, and by a metric as long as
// it is unreadable. Each is read again at every check. So an object that was deleted or corrected while no watch ran is
// forgotten.
type unread struct {
	in     *intake.Intake
	api    rest.Interface
	events events.EventRecorder
	log    logr.Logger
	said   map[string]string
	gauge  *prometheus.Desc
}

func newUnread(in *intake.Intake, mgr ctrl.Manager) (*unread, error) {
	kube, err := kubernetes.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return nil, fmt.Errorf("connecting to look for unreadable objects: %w", err)
	}
	return &unread{
		in: in, api: kube.CoreV1().RESTClient(), events: mgr.GetEventRecorder("machineconfigcontroller-intake"),
		log:  mgr.GetLogger(),
		said: map[string]string{},
		gauge: prometheus.NewDesc("noderefit_unreadable_object",
			"Objects with fields that can't be read, which are left alone with all that depends on them.",
			[]string{"kind", "name"}, nil),
	}, nil
}

func (u *unread) Describe(to chan<- *prometheus.Desc) { to <- u.gauge }

func (u *unread) Collect(to chan<- prometheus.Metric) {
	for _, o := range u.in.Unread() {
		to <- prometheus.MustNewConstMetric(u.gauge, prometheus.GaugeValue, 1, o.GVK.Kind, o.Name)
	}
}

// NeedLeaderElection returns false: every process reports its unreadable objects, because each has its own watches.
func (u *unread) NeedLeaderElection() bool { return false }

// Start checks until the process ends.
func (u *unread) Start(ctx context.Context) error {
	tick := time.NewTicker(unreadPace)
	defer tick.Stop()
	for {
		u.look(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (u *unread) look(ctx context.Context) {
	for _, o := range u.in.Unread() {
		// The answer goes through the intake, which forgets objects that are readable again or gone.
		_, err := u.api.Get().AbsPath(o.Path).DoRaw(ctx)
		if err != nil && !apierrors.IsNotFound(err) {
			u.log.V(1).Info("looking at an object that can't be read", "object", o.Path, "error", err.Error())
		}
	}
	now := map[string]string{}
	for _, o := range u.in.Unread() {
		now[o.Path] = o.Problem
		if u.said[o.Path] == o.Problem {
			continue
		}
		u.log.Info("an object can't be read and is left alone", "kind", o.GVK.Kind, "name", o.Name, "problem", o.Problem)
		about := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: o.Name}}
		about.SetGroupVersionKind(o.GVK)
		u.events.Eventf(about, nil, corev1.EventTypeWarning, "Unreadable", "Read",
			"%s: the object, and all that depends on it, is left alone until it is corrected", o.Problem)
	}
	u.said = now
}
