// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/test/fleets/scale"
	"github.com/noderefit/noderefit/test/lab"
)

// asksEvery is the interval at which the stream's source is asked: the shortest that an OSStream can have.
const asksEvery = 10 * time.Second

// followed is a registry that an OSStream of a cluster follows.
type followed struct {
	registry *lab.Registry
	front    *httptest.Server
	dir      string
	stop     context.CancelFunc
}

func (s *followed) Close() error {
	s.front.Close()
	s.stop()
	return lab.RemoveTree(s.dir)
}

// follow has the pool of a cluster without nodes follow a tag, and waits until the release is part of the pool's
// configuration.
func follow(ctx context.Context, f *scale.Fleet) (s *followed, err error) {
	s = &followed{}
	if s.dir, err = os.MkdirTemp("", "noderefit-bench-"); err != nil {
		return nil, err
	}
	running, stop := context.WithCancel(ctx)
	s.stop = stop
	if s.registry, err = lab.StartRegistry(running, s.dir); err != nil {
		stop()
		return nil, errors.Join(err, lab.RemoveTree(s.dir))
	}
	s.front = httptest.NewServer(s.registry)
	if err := s.stream(ctx, f); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *followed) stream(ctx context.Context, f *scale.Fleet) error {
	repository := strings.TrimPrefix(s.front.URL, "http://") + "/os"
	digest, err := lab.PushRelease(ctx, repository+":stable", "1")
	if err != nil {
		return err
	}
	body := fmt.Appendf(nil, `{"apiVersion":"noderefit.dev/v1alpha1","kind":"OSStream","metadata":{"name":"os"},"spec":{
		"pools":[%q],"intervalSeconds":%d,"source":{"tag":{"image":"%s:stable"}}}}`, api.PoolWorker,
		int(asksEvery.Seconds()), repository)
	rest := f.Client.CoreV1().RESTClient()
	err = rest.Post().AbsPath("/apis/noderefit.dev/v1alpha1/osstreams").Body(body).Do(ctx).Error()
	if err != nil {
		return err
	}
	configs := f.MachineConfigs.MachineconfigurationV1()
	for {
		p, err := configs.MachineConfigPools().Get(ctx, api.PoolWorker, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if name := p.Spec.Configuration.Name; name != "" {
			mc, err := configs.MachineConfigs().Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if mc.Spec.OSImageURL == repository+"@"+digest {
				return nil
			}
		}
		if err := sleep(ctx, time.Second); err != nil {
			return fmt.Errorf("waiting for the pool to follow %s: %w", repository, err)
		}
	}
}

// polls reports the requests to the registry while nothing changed.
func (s *followed) polls(r *report) {
	asked := slices.DeleteFunc(s.registry.Asked(), func(a lab.Asked) bool {
		return !strings.Contains(a.Agent, api.Controller)
	})
	// Up to the second look the requests are those for a new image.
	tag := func(a lab.Asked) bool {
		return a.Method == http.MethodHead && strings.HasSuffix(a.Path, "/manifests/stable")
	}
	first := slices.IndexFunc(asked, tag)
	second := -1
	if first >= 0 {
		second = slices.IndexFunc(asked[first+1:], tag)
	}
	if second < 0 {
		r.note(false, "stream.requests", "the registry was not asked twice", true)
		return
	}
	asked = asked[first+1+second:]
	bad := 0
	for i, a := range asked {
		early := i > 0 && a.At.Sub(asked[i-1].At) < asksEvery-time.Second
		if !tag(a) || !a.Conditional || a.Status != http.StatusNotModified || early {
			bad++
		}
	}
	if intervals := asked[len(asked)-1].At.Sub(asked[0].At).Seconds() / asksEvery.Seconds(); intervals > 0 {
		r.figure("stream.requests", float64(len(asked)-1)/intervals, "requests/interval")
	}
	r.note(bad == 0, "stream.requests", fmt.Sprintf("%d requests while nothing changed, %d of them more than a "+
		"conditional request an interval", len(asked), bad), true)
}
