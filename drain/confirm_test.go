// SPDX-License-Identifier: Apache-2.0

package drain

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/noderefit/noderefit/api"
)

// podServer answers the requests of a drain of node n, which is cordoned. pods returns the answer to each list of pods.
// The watch says nothing.
func podServer(pods func() []corev1.Pod) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		switch q := r.URL.Query(); {
		case r.URL.Path == "/api/v1/nodes/n":
			write(w, corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
				ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: corev1.NodeSpec{Unschedulable: true}})
		case r.URL.Path != "/api/v1/pods":
			panic(r.URL.Path)
		case q.Has("sendInitialEvents"): // an API server that is too old for such a watch
			write(w, apierrors.NewInvalid(schema.GroupKind{}, "watch", nil))
		case q.Get("watch") != "":
			w.Header().Set("Content-Type", "application/json")
			if err := http.NewResponseController(w).Flush(); err != nil {
				panic(err)
			}
			<-r.Context().Done()
		default:
			write(w, corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"},
				ListMeta: metav1.ListMeta{ResourceVersion: "1"}, Items: pods()})
		}
	}
}

// A watch may be behind: a pod that was bound just before the cordon is on the node, and the watch does not have it yet.
func TestADrainIsOverWhenTheAPIServerSaysThatNothingIsLeft(t *testing.T) {
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "late", Namespace: "shop", UID: types.UID("late")}}
	pod.Spec.NodeName = "n"
	var there atomic.Bool
	var asked atomic.Int32
	there.Store(true)
	confirmed := make(chan struct{})
	client := clientOf(t, podServer(func() []corev1.Pod {
		switch asked.Add(1) {
		case 1:
			return nil // that of the watch
		case 3:
			close(confirmed)
		}
		if there.Load() {
			return []corev1.Pod{pod}
		}
		return nil
	}))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	over := make(chan error, 1)
	go func() {
		d := &Drainer{Client: client, Node: "n"}
		over <- d.Run(ctx, Request{Config: "rendered-worker-b"}, func(api.Drain) {})
	}()
	select {
	case err := <-over:
		t.Fatalf("the drain is over (%v) with a pod on the node, after %d lists", err, asked.Load())
	case <-confirmed:
	}
	there.Store(false)
	if err := <-over; err != nil {
		t.Fatal(err)
	}
}
