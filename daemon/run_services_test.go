// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/plan"
)

func TestWhatIsDoneAboutServicesIsToldInUpstreamsWords(t *testing.T) {
	for _, c := range []struct {
		acted              host.Acted
		kind, reason, text string
	}{
		{host.Acted{Type: plan.ActionReload, Service: "crio.service"}, corev1.EventTypeNormal, "ServiceReload",
			"Service crio.service was reloaded"},
		{host.Acted{Type: plan.ActionRestart, Service: "a.service"}, corev1.EventTypeNormal, "ServiceRestart",
			"Service a.service was restarted"},
		{host.Acted{Type: plan.ActionRestart, Service: "a.service", Stopped: true}, corev1.EventTypeNormal, "ServiceRestart",
			"Service a.service was stopped: its unit is gone"},
		{host.Acted{Type: plan.ActionReload, Service: "a.service", Error: "no"}, corev1.EventTypeWarning, "FailedServiceReload",
			"Reloading service a.service failed: no"},
		{host.Acted{Type: plan.ActionRestart, Service: "a.service", Error: "no"}, corev1.EventTypeWarning,
			"FailedServiceRestart", "Restarting service a.service failed: no"},
	} {
		if kind, reason, text := serviceEvent(c.acted); kind != c.kind || reason != c.reason || text != c.text {
			t.Errorf("%+v is told as %s %s %q", c.acted, kind, reason, text)
		}
	}
}
