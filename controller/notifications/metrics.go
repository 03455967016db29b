// SPDX-License-Identifier: Apache-2.0

package notifications

import "github.com/prometheus/client_golang/prometheus"

// The results of a try.
const (
	delivered     = "delivered"
	failed        = "failed"
	droppedResult = "dropped"
)

// alertmanager is the receiver that is not a webhook. A webhook's name can't have an upper-case letter.
const alertmanager = "Alertmanager"

// counts has the metrics.
type counts struct {
	total    *prometheus.CounterVec
	failing  *prometheus.GaugeVec
	silenced *prometheus.GaugeVec
}

func newCounts() *counts {
	return &counts{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "noderefit_notifications_total",
			Help: "Notifications by what became of a try to deliver them.",
		}, []string{"policy", "webhook", "result"}),
		failing: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "noderefit_notification_failing",
			Help: "Whether the last try to tell a webhook or the Alertmanager failed.",
		}, []string{"policy", "receiver"}),
		silenced: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "noderefit_silenced_nodes",
			Help: "Nodes whose alerts are silent while they are updated.",
		}, []string{"policy"}),
	}
}

// Describe implements prometheus.Collector.
func (c *counts) Describe(out chan<- *prometheus.Desc) {
	c.total.Describe(out)
	c.failing.Describe(out)
	c.silenced.Describe(out)
}

// Collect implements prometheus.Collector.
func (c *counts) Collect(out chan<- prometheus.Metric) {
	c.total.Collect(out)
	c.failing.Collect(out)
	c.silenced.Collect(out)
}

func (c *counts) tried(l lane, result string) {
	c.total.WithLabelValues(l.Policy, l.Webhook, result).Inc()
	c.failing.WithLabelValues(l.Policy, l.Webhook).Set(number(result == failed))
}

func (c *counts) idle(l lane) { c.failing.DeleteLabelValues(l.Policy, l.Webhook) }

// dropped counts notifications for which the status had no room.
func (c *counts) dropped(policy string, count int) {
	if count > 0 {
		c.total.WithLabelValues(policy, "", droppedResult).Add(float64(count))
	}
}

// silence sets how many nodes are silent. Less than 0 means that the policy has no Alertmanager.
func (c *counts) silence(policy string, nodes int, failing bool) {
	if nodes < 0 {
		c.silenced.DeleteLabelValues(policy)
		c.failing.DeleteLabelValues(policy, alertmanager)
		return
	}
	c.silenced.WithLabelValues(policy).Set(float64(nodes))
	c.failing.WithLabelValues(policy, alertmanager).Set(number(failing))
}

func number(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
