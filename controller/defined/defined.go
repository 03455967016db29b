// SPDX-License-Identifier: Apache-2.0

// Package defined reports whether a CustomResourceDefinition is there. Deleting a definition deletes all of its
// objects, so people did not decide that the kind has no objects. After a definition is made again, people need some
// minutes to apply the objects again.
package defined

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// grace is how long the objects of a definition are awaited after it was made again.
const grace = 5 * time.Minute

// Watch knows which definitions were away. Only one goroutine may use it at a time.
type Watch struct {
	from client.Reader
	now  func() time.Time
	lost map[string]bool
}

// NewWatch returns a watch that asks the API server itself.
func NewWatch(from client.Reader, now func() time.Time) *Watch {
	return &Watch{from: from, now: now, lost: map[string]bool{}}
}

// Away returns why the objects of a definition are not what people want, and the latest time to ask again. why is empty
// when they are. name is the name of the definition, such as machineconfigs.machineconfiguration.openshift.io. made is
// when a missing object was made, or was there; zero if that is not known.
//
// A definition that is younger than that, or was made within the same second, was made again. The object was deleted
// with the former definition then, even if the definition was away only briefly.
func (w *Watch) Away(ctx context.Context, name string, made time.Time) (why string, until time.Time, err error) {
	definition := &metav1.PartialObjectMetadata{}
	definition.SetGroupVersionKind(schema.GroupVersionKind{
		Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition",
	})
	err = w.from.Get(ctx, client.ObjectKey{Name: name}, definition)
	missing := apierrors.IsNotFound(err)
	if err != nil && !missing {
		return "", time.Time{}, fmt.Errorf("reading CustomResourceDefinition/%s: %w", name, err)
	}
	soon := w.now().Add(grace)
	if !missing && !made.IsZero() && !definition.CreationTimestamp.Time.Before(made) {
		w.lost[name] = true
	}
	switch back := definition.CreationTimestamp.Add(grace); {
	case missing:
		w.lost[name] = true
		return "CustomResourceDefinition/" + name + " is missing: install it, and apply its objects again", soon, nil
	case definition.DeletionTimestamp != nil:
		w.lost[name] = true
		return "CustomResourceDefinition/" + name + " is being deleted: install it, and apply its objects again", soon, nil
	case w.lost[name] && w.now().Before(back):
		return fmt.Sprintf("CustomResourceDefinition/%s was made again: its objects are waited for until %s", name,
			back.UTC().Format(time.RFC3339)), back, nil
	}
	delete(w.lost, name)
	return "", time.Time{}, nil
}

// Lost reports whether a definition was away at the last question, or was made again less than grace ago.
func (w *Watch) Lost() bool { return len(w.lost) > 0 }

// Back tells the watch that the objects of all definitions are there again. An object that is missing from now on was
// deleted by people.
func (w *Watch) Back() { clear(w.lost) }
