// SPDX-License-Identifier: Apache-2.0

package drain

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/noderefit/noderefit/api"
)

// A watch may be behind: a pod that was bound just before the cordon is on the node, and the watch does not have it yet.
func TestADrainIsOverWhenTheAPIServerSaysThatNothingIsLeft(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: corev1.NodeSpec{Unschedulable: true}}
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "late", Namespace: "shop", UID: types.UID("late")}}
	pod.Spec.NodeName = "n"
	client := fake.NewClientset(node)
	var there atomic.Bool
	var asked atomic.Int32
	there.Store(true)
	confirmed := make(chan struct{})
	client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		list := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}
		switch n := asked.Add(1); n {
		case 1:
			return true, list, nil // that of the watch
		case 4: // one last question asks twice where it finds a pod that it does not know
			close(confirmed)
		}
		if there.Load() {
			list.Items = []corev1.Pod{pod}
		}
		return true, list, nil
	})
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
