// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/message"
)

const (
	// watchErrorsApart is longer than the time between two tries to read a kind. client-go waits for half a minute, and
	// the API server gives up after a minute.
	watchErrorsApart = 3 * time.Minute
	// watchToldAfter is how long reading a kind has to fail before an event and the log report the failure.
	watchToldAfter = time.Minute
	// eventError is the number of bytes of an error in an event. The text of an event has at most 1,024 bytes.
	eventError = 700
)

// watches collects the kinds that cannot be read. As long as a kind was never read, the leader decides nothing. After a
// first reading, the controllers keep the objects of the last reading.
type watches struct {
	events events.EventRecorder
	log    logr.Logger
	now    func() time.Time
	gauge  *prometheus.Desc

	mu      sync.Mutex
	failing map[string]watchFailure
}

// watchFailure has the begin of a kind's failures, the time of the last failure, and whether an event reported them.
type watchFailure struct {
	since, last time.Time
	told        bool
}

// newWatches returns watches without events and log. The manager brings both later: see tell.
func newWatches() *watches {
	return &watches{
		now: time.Now, failing: map[string]watchFailure{},
		gauge: prometheus.NewDesc("noderefit_watch_failing",
			"Kinds whose objects can not be read from the API server.", []string{"kind"}, nil),
	}
}

// tell sets the recorder of events and the log.
func (w *watches) tell(mgr ctrl.Manager) {
	w.events, w.log = mgr.GetEventRecorder("machineconfigcontroller-watches"), mgr.GetLogger()
}

// Describe implements prometheus.Collector.
func (w *watches) Describe(to chan<- *prometheus.Desc) { to <- w.gauge }

// Collect implements prometheus.Collector.
func (w *watches) Collect(to chan<- prometheus.Metric) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for kind, f := range w.failing {
		if w.now().Sub(f.last) < watchErrorsApart {
			to <- prometheus.MustNewConstMetric(w.gauge, prometheus.GaugeValue, 1, kind)
		}
	}
}

// failed handles the error of a list or a watch of a kind.
func (w *watches) failed(ctx context.Context, r *toolscache.Reflector, err error) {
	toolscache.DefaultWatchErrorHandler(ctx, r, err)
	read := r.LastSyncResourceVersion() != ""
	if !unreadableKind(err, read) {
		return
	}
	kind, since, tell := w.note(watchedKind(r.TypeDescription(), err))
	if !tell {
		return
	}
	effect := "until the watch works, this controller decides nothing"
	if read {
		effect = "until the watch works, this controller uses what it read before"
	}
	at := since.UTC().Format(time.RFC3339)
	w.log.Error(err, "reading the objects of a kind: "+effect, "kind", kind, "since", at)
	about := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: api.Namespace, Name: api.Controller}}
	w.events.Eventf(about, nil, corev1.EventTypeWarning, "WatchFails", "Read",
		"reading %s fails since %s; %s: %s", kind, at, effect, message.Cut(message.OneLine(err.Error()), eventError))
}

// note remembers a failure. It returns the kind, the begin of the kind's failures, and whether to report them now.
func (w *watches) note(kind string) (string, time.Time, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.now()
	f, known := w.failing[kind]
	if !known || now.Sub(f.last) >= watchErrorsApart {
		f = watchFailure{since: now}
	}
	tell := !f.told && now.Sub(f.since) >= watchToldAfter
	f.last, f.told = now, f.told || tell
	w.failing[kind] = f
	return kind, f.since, tell
}

// unreadableKind reports whether an error means that a kind cannot be read. The end of a watch is no such error. Nor is
// a missing definition of a kind that was read before: noderefit_definition_missing reports that.
func unreadableKind(err error, read bool) bool {
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF),
		apierrors.IsResourceExpired(err), apierrors.IsGone(err):
		return false
	case apierrors.IsNotFound(err):
		return !read
	}
	return true
}

// watchedKind returns the kind that a reflector watches. For a watch of metadata, only the error has the resource.
func watchedKind(description string, err error) string {
	kind := description[strings.LastIndexAny(description, ".= ")+1:]
	var status apierrors.APIStatus
	if kind != "PartialObjectMetadata" || !errors.As(err, &status) || status.Status().Details == nil {
		return kind
	}
	return cmp.Or(status.Status().Details.Kind, kind)
}
