// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/noderefit/noderefit/api"
)

// policiesPace is the time between two checks of the policies.
const policiesPace = 10 * time.Minute

// guard reports policies that are missing. Without them everything works. But the credentials of any node can change
// any other node, and objects are accepted that hold a pool up.
type guard struct {
	from    client.Reader // the API server itself: a dozen small objects every ten minutes do not need a watch
	log     logr.Logger
	missing prometheus.Gauge
}

func newGuard(from client.Reader, log logr.Logger) *guard {
	return &guard{from: from, log: log, missing: prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "noderefit_admission_policies_missing",
		Help: "Missing admission policies, which limit Noderefit's accounts or refuse unreadable objects.",
	})}
}

// Start checks until ctx ends.
func (g *guard) Start(ctx context.Context) error {
	for {
		g.look(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(policiesPace):
		}
	}
}

// look keeps the last known state where the API server does not answer.
func (g *guard) look(ctx context.Context) {
	var missing []string
	for _, name := range api.AdmissionPolicies {
		enforced, err := g.enforced(ctx, name)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			g.log.Error(err, "looking whether the admission policies are there")
			return
		}
		if !enforced {
			missing = append(missing, name)
		}
	}
	g.missing.Set(float64(len(missing)))
	if len(missing) > 0 {
		g.log.Info("admission policies are missing. Without the policies of an account, any node's credentials can "+
			"change objects of others. Without readable-…, the API server takes objects that the "+
			"controllers cannot read", "policies", missing)
	}
}

func (g *guard) enforced(ctx context.Context, name string) (bool, error) {
	for kind, object := range map[string]client.Object{
		"ValidatingAdmissionPolicy":        &admissionv1.ValidatingAdmissionPolicy{},
		"ValidatingAdmissionPolicyBinding": &admissionv1.ValidatingAdmissionPolicyBinding{},
	} {
		err := g.from.Get(ctx, client.ObjectKey{Name: name}, object)
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("reading %s/%s: %w", kind, name, err)
		}
	}
	return true, nil
}
