// SPDX-License-Identifier: Apache-2.0

package stream

import "github.com/prometheus/client_golang/prometheus"

var alreadyRegistered prometheus.AlreadyRegisteredError

// gauges has the metrics.
type gauges struct{ away, withheld *prometheus.GaugeVec }

func newGauges() *gauges {
	return &gauges{
		away: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "noderefit_osstream_source_away",
			Help: "Whether the source of an OSStream did not answer when it was asked last.",
		}, []string{"stream"}),
		withheld: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "noderefit_osstream_withheld",
			Help: "Whether no further node of a pool goes to the release that was chosen for it.",
		}, []string{"stream", "pool"}),
	}
}

// Describe implements prometheus.Collector.
func (g *gauges) Describe(out chan<- *prometheus.Desc) {
	g.away.Describe(out)
	g.withheld.Describe(out)
}

// Collect implements prometheus.Collector.
func (g *gauges) Collect(out chan<- prometheus.Metric) {
	g.away.Collect(out)
	g.withheld.Collect(out)
}

func (g *gauges) say(streams []*followed) {
	g.away.Reset()
	g.withheld.Reset()
	for _, s := range streams {
		g.away.WithLabelValues(s.Name).Set(number(s.away != nil))
		for _, p := range s.Status.Pools {
			g.withheld.WithLabelValues(s.Name, p.Name).Set(number(p.Withheld != ""))
		}
	}
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
