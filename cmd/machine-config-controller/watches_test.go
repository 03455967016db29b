// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/cache"
)

// listServer is an API server that has no KubeletConfig, or answers with another status.
func listServer(t *testing.T, answer *atomic.Int32) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		code := int(answer.Load())
		if code == http.StatusOK && r.URL.Query().Get("sendInitialEvents") != "" {
			code = http.StatusUnprocessableEntity // a list comes by itself, as before Kubernetes 1.34
		}
		if code != http.StatusOK {
			w.WriteHeader(code)
			_ = json.NewEncoder(w).Encode(metav1.Status{
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
				Status:   metav1.StatusFailure, Code: int32(code), Message: "kubeletconfigs can not be listed here",
			})
			return
		}
		if r.URL.Query().Get("watch") != "" {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return
		}
		fmt.Fprint(w, `{"apiVersion":"machineconfiguration.openshift.io/v1","kind":"KubeletConfigList",`+
			`"metadata":{"resourceVersion":"7"},"items":[]}`)
	}))
	t.Cleanup(server.Close)
	return server
}

// failingKinds is what the metric says, as lines.
func failingKinds(t *testing.T, w *watches) string {
	t.Helper()
	registry := prometheus.NewRegistry()
	if err := registry.Register(w); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for _, f := range families {
		for _, m := range f.GetMetric() {
			fmt.Fprintf(&out, "%s{%s=%s} %v\n", f.GetName(), m.GetLabel()[0].GetName(), m.GetLabel()[0].GetValue(),
				m.GetGauge().GetValue())
		}
	}
	return out.String()
}

func TestAKindThatCanNotBeListedIsNamedUntilItCan(t *testing.T) {
	var answer atomic.Int32
	answer.Store(http.StatusForbidden)
	server := listServer(t, &answer)
	recorder := events.NewFakeRecorder(10)
	w := newWatches()
	w.events, w.log = recorder, logr.Discard()
	var ahead atomic.Int64
	w.now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	scheme := runtime.NewScheme()
	if err := mcfgv1.Install(scheme); err != nil {
		t.Fatal(err)
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(mcfgv1.GroupVersion.WithKind("KubeletConfig"), meta.RESTScopeRoot)
	c, err := cache.New(&rest.Config{Host: server.URL}, cache.Options{
		Scheme: scheme, Mapper: mapper, DefaultWatchErrorHandler: w.failed,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Start(ctx) }()
	defer func() { stop(); <-ended; server.CloseClientConnections() }()
	informer, err := c.GetInformer(ctx, &mcfgv1.KubeletConfig{}, cache.BlockUntilSynced(false))
	if err != nil {
		t.Fatal(err)
	}
	wait := func(what string, done func() bool) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); !done(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: the metric says %q", what, failingKinds(t, w))
			}
		}
	}
	const line = "noderefit_watch_failing{kind=KubeletConfig} 1\n"
	wait("it can not be listed", func() bool { return failingKinds(t, w) == line })
	ahead.Store(int64(watchToldAfter))
	wait("an event says why", func() bool {
		select {
		case said := <-recorder.Events:
			if !strings.Contains(said, "WatchFails") || !strings.Contains(said, "KubeletConfig") ||
				!strings.Contains(said, "can not be listed here") {
				t.Errorf("the event says %s", said)
			}
			return true
		default:
			return false
		}
	})
	answer.Store(http.StatusOK)
	wait("it is listed", informer.HasSynced)
	ahead.Store(int64(watchToldAfter + watchErrorsApart + time.Minute))
	if lines := failingKinds(t, w); lines != "" {
		t.Errorf("it was listed, and fails still: %s", lines)
	}
}

func TestWhichErrorsAreOfAKindThatCanNotBeRead(t *testing.T) {
	resource := schema.GroupResource{Group: "g", Resource: "things"}
	for name, c := range map[string]struct {
		err         error
		read, never bool
	}{
		"forbidden":                       {err: apierrors.NewForbidden(resource, "", errors.New("no")), read: true, never: true},
		"a webhook that converts is away": {err: apierrors.NewInternalError(errors.New("conversion webhook")), read: true, never: true},
		"what can not be decoded":         {err: errors.New("json: cannot unmarshal"), read: true, never: true},
		"a definition that is gone":       {err: apierrors.NewNotFound(resource, ""), read: false, never: true},
		"a watch that ended":              {err: io.EOF},
		"a watch that was cut":            {err: fmt.Errorf("watching: %w", io.ErrUnexpectedEOF)},
		"a version that is too old":       {err: apierrors.NewResourceExpired("too old")},
	} {
		if unreadableKind(c.err, true) != c.read || unreadableKind(c.err, false) != c.never {
			t.Errorf("%s: read before %v, never read %v; want %v, %v", name, unreadableKind(c.err, true),
				unreadableKind(c.err, false), c.read, c.never)
		}
	}
	about := fmt.Errorf("listing: %w", &apierrors.StatusError{ErrStatus: metav1.Status{
		Details: &metav1.StatusDetails{Kind: "things"},
	}})
	for description, want := range map[string]string{
		"*v1.KubeletConfig": "KubeletConfig", "*v1.PartialObjectMetadata": "things", "g/v1, Kind=Thing": "Thing",
	} {
		if got := watchedKind(description, about); got != want {
			t.Errorf("%s: %s, want %s", description, got, want)
		}
	}
}
