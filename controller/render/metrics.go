// SPDX-License-Identifier: Apache-2.0

package render

import "github.com/prometheus/client_golang/prometheus"

// osImageURLOverride has upstream's name.
var osImageURLOverride = prometheus.NewGaugeVec(prometheus.GaugeOpts{
	Name: "os_image_url_override",
	Help: "1 where a MachineConfig of the pool asks for another OS image than the cluster's default, else 0.",
}, []string{"pool"})
