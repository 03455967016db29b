// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

func TestAPinHoldsUntilTheMachineConfigsMakeSomethingElseHoweverOftenThePoolGoesBack(t *testing.T) {
	const one, two, three = "rendered-worker-one", "rendered-worker-two", "rendered-worker-three"
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for name, test := range map[string]struct {
		present string
		pin     *api.Pin
		to      string
		want    api.Pin
	}{
		"once":                                  {three, nil, "", api.Pin{Config: two, From: three}},
		"again, before the controller followed": {three, &api.Pin{Config: two, From: three}, one, api.Pin{Config: one, From: three}},
		"again":                                 {two, &api.Pin{Config: two, From: three}, "", api.Pin{Config: one, From: three}},
		"and forward":                           {one, &api.Pin{Config: one, From: three}, two, api.Pin{Config: two, From: three}},
	} {
		t.Run(name, func(t *testing.T) {
			p := &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: "worker", Annotations: map[string]string{
				api.HistoryKey: api.Encode([]string{two, one}),
			}}}
			p.Spec.Configuration.Name = test.present
			if test.pin != nil {
				p.Annotations[api.PinKey] = api.Encode(test.pin)
			}
			test.want.Since = now
			if to, pin, err := rollback(p, progress.NewPool(p, nil), test.to, now); err != nil || to != test.want.Config || pin != test.want {
				t.Errorf("to %s, pin %+v, %v; want %+v", to, pin, err, test.want)
			}
		})
	}
}
