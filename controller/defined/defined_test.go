// SPDX-License-Identifier: Apache-2.0

package defined

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// answers is a reader that has one definition, or none.
type answers struct {
	client.Reader

	definition *metav1.ObjectMeta
	err        error
}

func (a *answers) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	switch {
	case a.err != nil:
		return a.err
	case a.definition == nil:
		return apierrors.NewNotFound(schema.GroupResource{Resource: "customresourcedefinitions"}, key.Name)
	}
	o.(*metav1.PartialObjectMetadata).ObjectMeta = *a.definition
	return nil
}

func TestObjectsAreNotWhatPeopleWantWhileTheirDefinitionIsAwayAndSoonAfter(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	a := &answers{}
	w := NewWatch(a, func() time.Time { return now })
	made := func(at time.Time) *metav1.ObjectMeta {
		return &metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(at)}
	}
	going := made(now.Add(-time.Hour))
	going.DeletionTimestamp = &metav1.Time{Time: now}
	for _, step := range []struct {
		name       string
		at         time.Duration
		definition *metav1.ObjectMeta
		err        error
		says       string
		object     time.Time
	}{
		{"new, and never seen away", 0, made(now), nil, "", time.Time{}},
		{"there for long", 0, made(now.Add(-time.Hour)), nil, "", time.Time{}},
		{"replaced within the second", 0, made(now.Add(-time.Second)), nil, "waited for until", now.Add(-time.Second)},
		{"on its way out", 0, going, nil, "is being deleted", time.Time{}},
		{"gone", time.Minute, nil, nil, "is missing", time.Time{}},
		{"the API server is away", time.Minute, nil, errors.New("no answer"), "", time.Time{}},
		{"made again", 2 * time.Minute, made(now.Add(2 * time.Minute)), nil, "waited for until 2026-03-01T12:07:00Z", time.Time{}},
		{"a while ago", 7*time.Minute - time.Second, made(now.Add(2 * time.Minute)), nil, "waited for until", time.Time{}},
		{"long enough ago", 7 * time.Minute, made(now.Add(2 * time.Minute)), nil, "", time.Time{}},
		{"replaced between two looks", 0, made(now.Add(-time.Second)), nil, "waited for until", now.Add(-time.Hour)},
		{"older than what is missing", time.Hour, made(now.Add(-time.Hour)), nil, "", now.Add(-time.Minute)},
		{"and forgotten", 3 * time.Minute, made(now.Add(2 * time.Minute)), nil, "", time.Time{}},
	} {
		start := now
		now = start.Add(step.at)
		a.definition, a.err = step.definition, step.err
		why, until, err := w.Away(t.Context(), "d.example.com", step.object)
		if (err != nil) != (step.err != nil) || (why == "") != (step.says == "") || !strings.Contains(why, step.says) ||
			(why != "") != until.After(now) {
			t.Errorf("%s: %q until %s, %v; want %q", step.name, why, until, err, step.says)
		}
		now = start
	}
}
