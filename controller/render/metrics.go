// SPDX-License-Identifier: Apache-2.0

package render

import (
	"errors"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/api"
)

var (
	// osImageURLOverride has upstream's name.
	osImageURLOverride = poolMetric("os_image_url_override",
		"1 where a MachineConfig of the pool asks for another OS image than the cluster's default, else 0.")
	renderDegraded = poolMetric("noderefit_pool_render_degraded",
		"1 where the pool's MachineConfigs make no configuration, else 0.")
	renderPending = poolMetric("noderefit_pool_render_pending",
		"1 where something that the pool's configuration is made of is not finished or was refused, else 0.")
)

func poolMetric(name, help string) *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{"pool"})
}

// register adds the metrics. Several managers in one process, as in a test, share them.
func register(to prometheus.Registerer) error {
	for _, g := range []*prometheus.GaugeVec{osImageURLOverride, renderDegraded, renderPending} {
		err := to.Register(g)
		if _, there := errors.AsType[prometheus.AlreadyRegisteredError](err); err != nil && !there {
			return err
		}
	}
	return nil
}

// forget drops the metrics of a pool.
func forget(pool string) {
	for _, g := range []*prometheus.GaugeVec{osImageURLOverride, renderDegraded, renderPending} {
		g.DeleteLabelValues(pool)
	}
}

// show sets the metrics of a pool to its conditions. A pool that waits for its first MachineConfig, or is about to be
// rendered, needs no repair and does not count.
func show(pool string, conditions []mcfgv1.MachineConfigPoolCondition) {
	var degraded, pending float64
	for _, c := range conditions {
		switch {
		case c.Status != corev1.ConditionTrue:
		case c.Type == mcfgv1.MachineConfigPoolRenderDegraded:
			degraded = 1
		case c.Type == api.PoolRenderPending && c.Reason != api.NoMachineConfigs && c.Reason != api.Rendering:
			pending = 1
		}
	}
	renderDegraded.WithLabelValues(pool).Set(degraded)
	renderPending.WithLabelValues(pool).Set(pending)
}
