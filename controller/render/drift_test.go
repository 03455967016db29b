// SPDX-License-Identifier: Apache-2.0

package render

import (
	"testing"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
)

func TestWhatOfADriftPolicyIsCarriedToTheNodes(t *testing.T) {
	for _, c := range []struct {
		text   string
		paused bool
		want   string
	}{
		{"", false, ""},
		{"", true, ""},
		{"report", false, `{"policy":"report"}`},
		{"repair", false, `{"policy":"repair"}`},
		{"repair", true, `{"policy":"repair","paused":true}`},
		{"updates: strict", true, `{"updates":"strict"}`},
		{"exceptions: [{path: /etc/x, policy: repair}]", true,
			`{"exceptions":[{"path":"/etc/x","policy":"repair"}],"paused":true}`},
		{`{"policy":"repair","paused":true}`, false, `{"policy":"repair"}`},
		{"heal", false, `{"policy":"report","updates":"strict"}`},
	} {
		pool := &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: "worker",
			Annotations: map[string]string{api.DriftPolicyKey: c.text}}, Spec: mcfgv1.MachineConfigPoolSpec{Paused: c.paused}}
		if got := carriedPolicy(pool); got != c.want {
			t.Errorf("%q, paused %t: %s, want %s", c.text, c.paused, got, c.want)
		}
	}
}
