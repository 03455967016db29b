// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
)

func TestHowLongALastUpdateTook(t *testing.T) {
	const (
		updated  = mcfgv1.MachineConfigNodeUpdated
		prepared = mcfgv1.MachineConfigNodeUpdatePrepared
		rebooted = mcfgv1.MachineConfigNodeUpdateRebooted
	)
	type times map[mcfgv1.StateProgress]int
	at := func(minute int) time.Time { return began.Add(time.Duration(minute) * time.Minute) }
	for _, test := range []struct {
		name   string
		times  times // of the conditions, in minutes
		change func(*mcfgv1.MachineConfigNode)
		want   *Update
	}{
		{"with a reboot", times{updated: 7, prepared: 7, rebooted: 7}, nil, &Update{7 * time.Minute, true}},
		{"without one", times{updated: 2, prepared: 2, rebooted: -90}, nil, &Update{2 * time.Minute, false}},
		{"it has never said a word of reboots", times{updated: 2, prepared: 2}, nil, &Update{2 * time.Minute, false}},
		{"it was not well after the update", times{updated: 500, prepared: 7, rebooted: 7}, nil, nil},
		{"a clock that went back", times{updated: -1, prepared: -1}, nil, nil},
		{"it is on its way", times{updated: 7, prepared: 7}, func(s *mcfgv1.MachineConfigNode) {
			s.Status.Conditions[0].Status = metav1.ConditionFalse
		}, nil},
		{"it is elsewhere", times{updated: 7, prepared: 7}, func(s *mcfgv1.MachineConfigNode) {
			s.Status.ConfigVersion.Current = renderedA
		}, nil},
		{"it never said when it began", times{updated: 7, prepared: 7}, func(s *mcfgv1.MachineConfigNode) {
			s.Annotations = nil
		}, nil},
		{"what it says can't be read", times{updated: 7, prepared: 7}, func(s *mcfgv1.MachineConfigNode) {
			s.Annotations[api.UpdateKey] = "{"
		}, nil},
		{"it has no status", nil, func(s *mcfgv1.MachineConfigNode) { s.Status.ConfigVersion = nil }, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			state := &mcfgv1.MachineConfigNode{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
				api.UpdateKey: api.Encode(api.Update{Config: renderedB, Since: began}),
			}}}
			state.Status.ConfigVersion = &mcfgv1.MachineConfigNodeStatusMachineConfigVersion{Current: renderedB}
			for _, kind := range []mcfgv1.StateProgress{updated, prepared, rebooted} {
				status := map[bool]metav1.ConditionStatus{true: metav1.ConditionTrue, false: metav1.ConditionFalse}[kind == updated]
				if minute, ok := test.times[kind]; ok {
					state.Status.Conditions = append(state.Status.Conditions, metav1.Condition{
						Type: string(kind), Status: status, LastTransitionTime: metav1.NewTime(at(minute)),
					})
				}
			}
			if test.change != nil {
				test.change(state)
			}
			got, ok := LastUpdate(state)
			if ok != (test.want != nil) || ok && got != *test.want {
				t.Errorf("%+v, %t; want %+v", got, ok, test.want)
			}
		})
	}
	if _, ok := LastUpdate(nil); ok {
		t.Error("a node without a MachineConfigNode has an update")
	}
}

func TestARolloutIsEstimatedByUpdatesOfItsKind(t *testing.T) {
	const m = time.Minute
	past := []Update{{3 * m, true}, {20 * m, true}, {4 * m, true}, {m, false}, {2 * m, false}}
	for _, test := range []struct {
		name                       string
		rebooting, others, atATime int
		past                       []Update
		want                       *Estimate
	}{
		{"one node", 1, 0, 1, past, &Estimate{1, 4 * m, 20 * m, 3}},
		{"one after the other", 5, 0, 1, past, &Estimate{5, 20 * m, 100 * m, 3}},
		{"two at a time, the last one alone", 5, 0, 2, past, &Estimate{5, 12 * m, 60 * m, 3}},
		{"more at a time than there are", 2, 0, 10, past, &Estimate{2, 4 * m, 20 * m, 3}},
		{"without reboots, the middle of two", 0, 2, 1, past, &Estimate{2, 3 * m, 4 * m, 2}},
		{"some of each", 2, 1, 1, past, &Estimate{3, 8*m + 90*time.Second, 42 * m, 5}},
		{"nothing is known", 1, 0, 1, nil, nil},
		{"nothing is known of one kind", 1, 1, 1, past[:3], nil},
		{"nothing goes", 0, 0, 1, past, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, ok := Forecast(test.rebooting, test.others, test.atATime, test.past)
			if ok != (test.want != nil) || ok && got != *test.want {
				t.Errorf("%+v, %t; want %+v", got, ok, test.want)
			}
		})
	}
}
