// SPDX-License-Identifier: Apache-2.0

package drain

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/drain"
)

// stuck is a scene with a node whose one pod a budget keeps.
func stuck(t *testing.T, ns string) *scene {
	t.Helper()
	s := newScene(t, ns, ns+"-0")
	s.deploy("web", 1)
	s.budget("web", "web", 1, 0)
	s.cordon(ns + "-0")
	return s
}

func TestALimitWithRetryIsSaidAndTheDrainGoesOn(t *testing.T) {
	t.Parallel()
	s := stuck(t, "retry")
	begin := time.Now()
	d := s.drainBy("retry-0", drain.Request{Policy: &api.DrainPolicy{TimeoutSeconds: 2, OnTimeout: api.DrainRetries}})
	report := d.waits(api.DrainWaitBudget)
	if report.Phase != api.DrainEvicts || report.OnTimeout != api.DrainRetries || report.PhaseSince.IsZero() ||
		!report.Limit.Equal(report.PhaseSince.Add(2*time.Second)) {
		t.Errorf("it says %+v", report)
	}
	d.goesOn(time.Until(begin.Add(10 * time.Second)))
	s.kubectl("delete", "pdb", "web")
	s.check(d.ends(time.Minute))
}

func TestALimitWithHoldEndsTheDrainAndSaysWhatItWaitedFor(t *testing.T) {
	t.Parallel()
	s := stuck(t, "hold")
	policy := &api.DrainPolicy{TimeoutSeconds: 3, OnTimeout: api.DrainHolds}
	err := s.drainBy("hold-0", drain.Request{Policy: policy}).ends(time.Minute)
	timeout, is := errors.AsType[*drain.TimeoutError](err)
	if !is || timeout.Phase != api.DrainEvicts || !strings.Contains(timeout.Waits, "is held by PodDisruptionBudget web") {
		t.Fatalf("the drain ended with %v", err)
	}
	if len(s.on("hold-0")) != 1 {
		t.Error("the pod is gone")
	}

	// Another process goes by what the one before it said, where that is about the same try.
	last := &api.Drain{Config: "rendered-b", Since: time.Now().Add(-time.Hour), Phase: api.DrainEvicts,
		PhaseSince: time.Now().Add(-time.Hour)}
	again := s.drainBy("hold-0", drain.Request{Policy: policy, Last: last, Cordoned: time.Now().Add(-time.Minute)})
	if report := again.waits(api.DrainWaitBudget); report.PhaseSince.Before(time.Now().Add(-time.Minute)) {
		t.Errorf("the limit counts since %v, before the node was cordoned", report.PhaseSince)
	}
	again.cancel(errCancelled)
}

func TestALimitWithForceDeletesWhatRefusesAndNothingBefore(t *testing.T) {
	t.Parallel()
	s := stuck(t, "force")
	d := s.drainBy("force-0", drain.Request{Policy: &api.DrainPolicy{TimeoutSeconds: 8, OnTimeout: api.DrainForces}})
	d.waits(api.DrainWaitBudget)
	d.goesOn(4 * time.Second)
	if len(d.last().Forced) > 0 {
		t.Errorf("%v are deleted before the limit", d.last().Forced)
	}
	name := s.on("force-0")[0]
	s.check(d.ends(time.Minute))
	if left := s.on("force-0"); len(left) > 0 {
		t.Errorf("%v are still there", left)
	}
	kinds, text := tally(s.requests())
	if kinds["delete pods"] != 1 {
		t.Errorf("it did %s", text)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	said := slices.ContainsFunc(d.reports, func(r api.Drain) bool { return slices.Contains(r.Forced, "force/"+name) })
	if !said {
		t.Errorf("that %s was deleted is not said: %+v", name, d.reports)
	}
}

func TestForceWithoutTheRightToDeleteNamesItAndGoesOnWhenTheBudgetIsGone(t *testing.T) {
	t.Parallel()
	s := stuck(t, "meek")
	s.mayNotDelete()
	d := s.drainBy("meek-0", drain.Request{Policy: &api.DrainPolicy{TimeoutSeconds: 2, OnTimeout: api.DrainForces}})
	s.until("it says which right it takes", func() bool {
		d.goesOn(0)
		w := d.last().Waiting
		return len(w) == 1 && w[0].Why == api.DrainWaitBudget && w[0].Budget == "web" &&
			strings.Contains(w[0].Message, "machine-config-daemon-force-drain")
	})
	s.kubectl("delete", "pdb", "web")
	s.check(d.ends(time.Minute))
	if left := s.on("meek-0"); len(left) > 0 || len(d.last().Forced) > 0 {
		t.Errorf("%v are left, %v were deleted", left, d.last().Forced)
	}
}

func TestPodsThatAPolicySkipsStay(t *testing.T) {
	t.Parallel()
	s := newScene(t, "skip", "skip-0")
	s.deploy("web", 1)
	s.deploy("cache", 1)
	s.budget("cache", "cache", 1, 0)
	s.cordon("skip-0")
	policy := &api.DrainPolicy{SkipPodSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{"app": "cache"}}}}
	forecast, err := s.drainer("skip-0").Forecast(s.Context(), policy)
	s.check(err)
	if forecast.Left != 1 || len(forecast.Waiting) > 0 {
		t.Errorf("the forecast is %+v", forecast)
	}
	s.check(s.drainBy("skip-0", drain.Request{Policy: policy}).ends(time.Minute))
	if left := s.on("skip-0"); len(left) != 1 || !strings.HasPrefix(left[0], "cache-") {
		t.Errorf("%v are left", left)
	}
}

// attach has a volume attached to a node.
func (s *scene) attach(name, volume, node string) {
	s.Helper()
	_, err := s.admin.StorageV1().VolumeAttachments().Create(s.Context(), &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: "disk.example.com", NodeName: node,
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &volume},
		},
	}, metav1.CreateOptions{})
	s.check(err)
	s.Cleanup(func() {
		none := int64(0)
		_ = s.admin.StorageV1().VolumeAttachments().Delete(context.Background(), name,
			metav1.DeleteOptions{GracePeriodSeconds: &none})
	})
}

func (s *scene) detach(name string) {
	s.Helper()
	s.check(s.admin.StorageV1().VolumeAttachments().Delete(s.Context(), name, metav1.DeleteOptions{}))
}

// claim is bound to a volume, and used by pods of an app that stays.
func (s *scene) claim(name, volume string) {
	s.Helper()
	_, err := s.admin.CoreV1().PersistentVolumeClaims(s.ns).Create(s.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			VolumeName: volume, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany},
			StorageClassName: new(string),
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceStorage: resource.MustParse("1Gi"),
			}},
		},
	}, metav1.CreateOptions{})
	s.check(err)
}

func TestADrainWaitsForItsVolumesAndForNoOthers(t *testing.T) {
	t.Parallel()
	s := newScene(t, "volumes", "volumes-0", "volumes-1")
	s.claim("kept", "pv-kept")
	s.pod("stays", "volumes-0", "kept")
	s.attach("a-gone", "pv-gone", "volumes-0")
	s.attach("a-kept", "pv-kept", "volumes-0")
	s.attach("a-elsewhere", "pv-elsewhere", "volumes-1")
	s.cordon("volumes-0")
	policy := &api.DrainPolicy{
		WaitForVolumeDetachSeconds: 600, OnTimeout: api.DrainHolds,
		SkipPodSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{"app": "stays"}}},
	}
	d := s.drainBy("volumes-0", drain.Request{Policy: policy})
	s.until("it waits for the volume", func() bool { return len(d.last().Volumes) > 0 })
	report := d.last()
	if report.Phase != api.DrainDetaches || len(report.Volumes) != 1 || report.Volumes[0].Volume != "pv-gone" ||
		report.Left != 0 || report.Limit.IsZero() {
		t.Errorf("it waits for %+v", report)
	}
	if text := drain.StepText(&report); text != "volumes are still attached to the node: PersistentVolume pv-gone" {
		t.Errorf("it says %q", text)
	}
	d.goesOn(2 * time.Second)
	s.detach("a-gone")
	s.check(d.ends(time.Minute))
}

func TestVolumesHaveALimitOfTheirOwn(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		ns   string
		then api.DrainTimeout
	}{{"attached-hold", api.DrainHolds}, {"attached-force", api.DrainForces}} {
		t.Run(string(c.then), func(t *testing.T) {
			t.Parallel()
			s := newScene(t, c.ns, c.ns+"-0")
			s.attach(c.ns, "pv-"+c.ns, c.ns+"-0")
			s.cordon(c.ns + "-0")
			policy := &api.DrainPolicy{WaitForVolumeDetachSeconds: 3, OnTimeout: c.then}
			err := s.drainBy(c.ns+"-0", drain.Request{Policy: policy}).ends(time.Minute)
			timeout, is := errors.AsType[*drain.TimeoutError](err)
			switch {
			case c.then == api.DrainForces:
				s.check(err)
			case !is || timeout.Phase != api.DrainDetaches || !strings.Contains(timeout.Waits, "pv-"+c.ns):
				t.Errorf("the drain ended with %v", err)
			}
		})
	}
}

func TestLoadBalancersHaveTheirTimeBeforeTheFirstEviction(t *testing.T) {
	t.Parallel()
	s := newScene(t, "balanced", "balanced-0")
	s.deploy("web", 1)
	s.cordon("balanced-0")
	excluded := time.Now().Add(-time.Second) // another process was here for a second
	d := s.drainBy("balanced-0", drain.Request{
		Policy: &api.DrainPolicy{ExcludeFromLoadBalancersSeconds: 6}, Excluded: excluded,
	})
	s.until("it says what it waits for", func() bool { return d.last().Phase == api.DrainExcludes })
	if report := d.last(); !report.Limit.Equal(excluded.Add(6*time.Second)) || drain.StepText(&report) == "" {
		t.Errorf("it says %+v", report)
	}
	d.goesOn(time.Until(excluded.Add(5 * time.Second)))
	if kinds, text := tally(s.requests()); kinds["create pods/eviction"] > 0 || len(s.on("balanced-0")) != 1 {
		t.Errorf("it did not wait: %s", text)
	}
	s.check(d.ends(time.Minute))
	if time.Now().Before(excluded.Add(6 * time.Second)) {
		t.Error("it is over before load balancers had their time")
	}
}

// The label says who put it there only by the annotation beside it, which whoever uncordons the node reads.
func TestANodeIsGivenBackToLoadBalancersByWhoeverUncordonsIt(t *testing.T) {
	t.Parallel()
	s := newScene(t, "label", "label-0", "label-1")
	nodes := s.client.Nodes()
	entry := api.Cordon{By: api.Daemon, Config: "rendered-b", Reason: "update", Since: time.Now()}
	text := api.Encode(api.Exclusion{Since: time.Now().UTC().Truncate(time.Second)})
	ask := drain.Annotations{api.ExcludedKey: &text}

	n, err := drain.Cordon(s.Context(), nodes, s.node("label-0"), entry, ask)
	s.check(err)
	if _, out := n.Labels[api.ExcludeLabel]; !out || n.Annotations[api.ExcludedKey] != text {
		t.Fatalf("it is not out of the load balancers: %v %v", n.Labels, n.Annotations)
	}
	later := api.Encode(api.Exclusion{Since: time.Now().Add(time.Hour)})
	n, err = drain.Cordon(s.Context(), nodes, n, entry, drain.Annotations{api.ExcludedKey: &later})
	s.check(err)
	if n.Annotations[api.ExcludedKey] != text {
		t.Error("the time begins anew")
	}
	n, err = drain.Uncordon(s.Context(), nodes, s.node("label-0"), "rendered-b", nil)
	s.check(err)
	_, out := n.Labels[api.ExcludeLabel]
	if _, said := n.Annotations[api.ExcludedKey]; out || said || n.Spec.Unschedulable {
		t.Errorf("it was not given back: %v %v", n.Labels, n.Annotations)
	}

	s.kubectl("label", "node", "label-1", api.ExcludeLabel+"=by-hand")
	n, err = drain.Cordon(s.Context(), nodes, s.node("label-1"), entry, ask)
	s.check(err)
	if _, said := n.Annotations[api.ExcludedKey]; said {
		t.Error("a label of somebody else's is claimed")
	}
	n, err = drain.Uncordon(s.Context(), nodes, n, "rendered-b", nil)
	s.check(err)
	if n.Labels[api.ExcludeLabel] != "by-hand" {
		t.Errorf("somebody else's label is %q", n.Labels[api.ExcludeLabel])
	}
}
