// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"context"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/noderefit/noderefit/api"
	product "github.com/noderefit/noderefit/refit"
)

const streams = "/apis/noderefit.dev/v1alpha1/osstreams"

// busy is a cluster at work: another client changes an object after each of the first reads of this one.
type busy struct {
	next   http.RoundTripper
	path   string
	left   atomic.Int32
	change func()
}

func (b *busy) RoundTrip(q *http.Request) (*http.Response, error) {
	answer, err := b.next.RoundTrip(q)
	if err == nil && q.Method == http.MethodGet && q.URL.Path == b.path && b.left.Add(-1) >= 0 {
		b.change()
	}
	return answer, err
}

// During a rollout the controllers write pools, nodes and streams every few seconds. A person's change must not fail
// for that.
func TestAChangeIsMadeAgainWhenItsObjectHasChangedMeanwhile(t *testing.T) {
	l := newLab(t)
	old, now := l.two("busy", "/etc/busy", "1", "2")
	l.pool("busy", now, old, nil)
	l.node("busy-1", "busy", old, old, api.Done, nil)
	server := l.Client.CoreV1().RESTClient()
	l.must(server.Post().AbsPath(streams).Body([]byte(`{"apiVersion":"noderefit.dev/v1alpha1","kind":"OSStream",
		"metadata":{"name":"busy"},"spec":{"pools":["busy"],"source":{"tag":{"image":"r.example/os:stable"}}}}`)).
		Do(l.ctx).Error())
	t.Cleanup(func() { _ = server.Delete().AbsPath(streams, "busy").Do(context.Background()).Error() })
	l.must(server.Patch(types.MergePatchType).AbsPath(streams, "busy", "status").Body([]byte(
		`{"status":{"releases":[{"version":"4","since":"2026-01-01T00:00:00Z"}]}}`)).Do(l.ctx).Error())

	for path, change := range map[string]func(*product.Cluster) (string, error){
		"/apis/machineconfiguration.openshift.io/v1/machineconfigpools/busy": func(c *product.Cluster) (string, error) {
			return c.Pause(l.ctx, "busy")
		},
		"/api/v1/nodes/busy-1": func(c *product.Cluster) (string, error) {
			return c.Hold(l.ctx, "busy-1", "a trace is running", time.Hour)
		},
		streams + "/busy": func(c *product.Cluster) (string, error) {
			return c.ApproveRelease(l.ctx, "busy", "4", "tested")
		},
	} {
		t.Run(path, func(t *testing.T) {
			at := &busy{path: path, change: func() {
				patch := []byte(`{"metadata":{"annotations":{"meanwhile":"` + time.Now().String() + `"}}}`)
				l.must(server.Patch(types.MergePatchType).AbsPath(path).Body(patch).Do(l.ctx).Error())
			}}
			at.left.Store(3)
			config := rest.CopyConfig(l.Config)
			config.Wrap(func(next http.RoundTripper) http.RoundTripper {
				at.next = next
				return at
			})
			c, err := product.Connect(config, product.Options{Namespace: api.Namespace, Warnings: io.Discard})
			l.must(err)
			if said, err := change(c); err != nil || said == "" {
				t.Errorf("said %q, %v", said, err)
			}
			if left := at.left.Load(); left > 0 {
				t.Errorf("%d changes meanwhile did not happen: the test shows nothing", left)
			}
		})
	}
}
