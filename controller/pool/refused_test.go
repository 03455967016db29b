// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/noderefit/noderefit/api"
)

// refusing is a client whose writes of Nodes are refused.
type refusing struct{ *behind }

func (r refusing) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.PatchOption) error {
	if _, node := o.(*corev1.Node); node {
		return errors.New(`failed calling webhook "w.example.com"`)
	}
	return r.behind.Patch(ctx, o, p, opts...)
}

// A pool that is made again under the name of one that was deleted has refused nothing, and has its own events.
func TestWhatWasSaidOfADeletedPoolIsForgotten(t *testing.T) {
	b := newBehind(t, "a", "b")
	r := newReconciler(b)
	r.client = refusing{b}
	said := make(chan string, 100)
	r.events = &events.FakeRecorder{Events: said}
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	r.now = func() time.Time { return now }
	r.self = "a"
	look := func() (refused, deferred int) {
		t.Helper()
		_, _ = r.Reconcile(t.Context(), reconcile.Request{}) // the error is what this is about
		for {
			select {
			case event := <-said:
				switch {
				case strings.Contains(event, api.PoolWritesRefused):
					refused++
					if !strings.Contains(event, "writes have failed since 2026-03-01T12:00:00Z: ") ||
						!strings.Contains(event, "w.example.com") {
						t.Errorf("the event says %s", event)
					}
				case strings.Contains(event, "DeferringOperatorNodeUpdate"):
					deferred++
				}
			default:
				return refused, deferred
			}
		}
	}
	if _, deferred := look(); deferred != 1 {
		t.Fatalf("that the own node waits is said %d times", deferred)
	}
	now = now.Add(refusedLong)
	if refused, _ := look(); refused != 1 {
		t.Fatalf("the refusal is said %d times", refused)
	}
	pool := b.pools.Items[0].DeepCopy()
	if err := b.Delete(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	b.catchUp(t)
	look()
	if len(r.refused) > 0 || len(r.deferred) > 0 {
		t.Errorf("of pools that are gone it remembers %v, %v", r.refused, r.deferred)
	}
	pool.ResourceVersion = ""
	if err := b.Create(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	b.catchUp(t)
	now = now.Add(time.Hour)
	if refused, deferred := look(); refused != 0 || deferred != 1 {
		t.Errorf("of a pool that was just made, refused writes are said %d times, that the own node waits %d times", refused,
			deferred)
	}
}
