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
	// watchErrorsApart is longer than the time between two tries to read a kind: half a minute to wait and the minute
	// after which the API server gives up.
	watchErrorsApart = 3 * time.Minute
	// watchToldAfter is how long a kind can not be read before people are told.
	watchToldAfter = time.Minute
	// eventError is how many bytes of an error an event has, which takes 1,024 in all.
	eventError = 700
)

// watches know the kinds that can not be read. While a kind was never read, the leader decides nothing; a kind that
// can not be read any more stays what the controllers have read before.
type watches struct {
	events events.EventRecorder
	log    logr.Logger
	now    func() time.Time
	gauge  *prometheus.Desc

	mu      sync.Mutex
	failing map[string]watchFailure
}

// watchFailure is since when a kind can not be read, when that was last tried, and whether people were told.
type watchFailure struct {
	since, last time.Time
	told        bool
}

// newWatches is made before the manager, which has the recorder of events and the log.
func newWatches() *watches {
	return &watches{
		now: time.Now, failing: map[string]watchFailure{},
		gauge: prometheus.NewDesc("noderefit_watch_failing",
			"Kinds whose objects can not be read from the API server.", []string{"kind"}, nil),
	}
}

// tell gives the watches what they tell people with.
func (w *watches) tell(mgr ctrl.Manager) {
	w.events, w.log = mgr.GetEventRecorder("machineconfigcontroller-watches"), mgr.GetLogger()
}

// Describe is prometheus'.
func (w *watches) Describe(to chan<- *prometheus.Desc) { to <- w.gauge }

// Collect is prometheus'.
func (w *watches) Collect(to chan<- prometheus.Metric) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for kind, f := range w.failing {
		if w.now().Sub(f.last) < watchErrorsApart {
			to <- prometheus.MustNewConstMetric(w.gauge, prometheus.GaugeValue, 1, kind)
		}
	}
}

// failed is told of each try to list or to watch a kind that has failed.
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
	effect := "until that works, this controller decides nothing"
	if read {
		effect = "until that works, this controller goes by what it has read before"
	}
	at := since.UTC().Format(time.RFC3339)
	w.log.Error(err, "reading the objects of a kind: "+effect, "kind", kind, "since", at)
	about := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: api.Namespace, Name: api.Controller}}
	w.events.Eventf(about, nil, corev1.EventTypeWarning, "WatchFails", "Read",
		"reading %s fails since %s; %s: %s", kind, at, effect, message.Cut(message.OneLine(err.Error()), eventError))
}

// note remembers a failure, and reports since when there are such, and whether to tell people for the first time.
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

// unreadableKind reports whether an error means that a kind cannot be read. The end of a watch is no such error. Nor is a
// missing definition of a kind that was read before: noderefit_definition_missing reports that.
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

// watchedKind is the kind of what is watched. Of a watch of metadata the error alone knows it, as a resource.
func watchedKind(description string, err error) string {
	kind := description[strings.LastIndexAny(description, ".= ")+1:]
	var status apierrors.APIStatus
	if kind != "PartialObjectMetadata" || !errors.As(err, &status) || status.Status().Details == nil {
		return kind
	}
	return cmp.Or(status.Status().Details.Kind, kind)
}
