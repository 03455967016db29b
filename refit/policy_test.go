// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"strings"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

// Who rolls back and bypasses in one line is faster than the render controller.
func TestWhatIsBypassedOrApprovedIsWhatThePoolWasRolledBackTo(t *testing.T) {
	t.Parallel()
	p := &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: "worker", Annotations: map[string]string{}}}
	p.Spec.Configuration.Name = "bad"
	for _, c := range []struct {
		pin, config, bypassErr, approveErr string
	}{
		{"", "bad", "", ""},
		{api.Encode(api.Pin{Config: "good", From: "bad"}), "good", "", "the rollback of pool worker to good has not reached"},
		{api.Encode(api.Pin{Config: "bad", From: "worse"}), "bad", "", ""},
		{"oops", "", "MachineConfigPool worker", "MachineConfigPool worker"},
	} {
		if c.pin != "" {
			p.Annotations[api.PinKey] = c.pin
		}
		ch, _, err := bypass(p, "ann", "down", time.Now())
		if c.bypassErr == "" {
			if err != nil {
				t.Fatalf("pin %s: %v", c.pin, err)
			}
			text, _ := ch.annotations[api.BypassKey].(string)
			got, err := api.Decode[api.Bypass](map[string]string{api.BypassKey: text}, api.BypassKey)
			if err != nil || got.Config != c.config {
				t.Errorf("pin %s: %+v, %v", c.pin, got, err)
			}
		} else if err == nil || !strings.Contains(err.Error(), c.bypassErr) {
			t.Errorf("pin %s: %v", c.pin, err)
		}
		err = unpinned(p)
		if (err == nil) != (c.approveErr == "") || err != nil && !strings.Contains(err.Error(), c.approveErr) {
			t.Errorf("pin %s: approve: %v", c.pin, err)
		}
	}
}

func TestABypassOfNothingIsRefused(t *testing.T) {
	t.Parallel()
	rules := progress.Rules{Policy: "careful"}
	done := progress.Counts{Machines: 2, Updated: 2, Ready: 2}
	for name, c := range map[string]struct {
		state progress.Pool
		pin   string
		err   string
	}{
		"no policy":                   {state: progress.Pool{Target: "bad"}, err: "no RolloutPolicy is in force for pool worker"},
		"a policy":                    {state: progress.Pool{Target: "bad", Rules: rules, Counts: progress.Counts{Machines: 2}}},
		"a policy that is lost":       {state: progress.Pool{Target: "bad", Noted: &api.PolicyNote{Name: "careful"}}},
		"all are there":               {state: progress.Pool{Target: "bad", Rules: rules, Counts: done}, err: "all nodes of pool worker have bad"},
		"all are there, before gates": {state: progress.Pool{Target: "bad", Rules: progress.Rules{Policy: "careful", Unproved: &progress.Hold{}}, Counts: done}},
		"a rollback that is to come":  {state: progress.Pool{Target: "bad", Rules: rules, Counts: done}, pin: "good"},
		"a rendering that is to come": {state: progress.Pool{Target: "bad", Rules: rules, Counts: done, Rendering: true}},
	} {
		p := &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: "worker"}}
		c.state.Name = "worker"
		if c.pin != "" {
			p.Annotations = map[string]string{api.PinKey: api.Encode(api.Pin{Config: c.pin, From: "bad"})}
		}
		err := bypassable(p, c.state)
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v, want %q", name, err, c.err)
		}
	}
}
