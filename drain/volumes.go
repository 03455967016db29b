// SPDX-License-Identifier: Apache-2.0

package drain

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/pager"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/kube"
)

const (
	// volumesEvery is how often each awaited volume is read.
	volumesEvery = 5 * time.Second
	// volumesPage is how many of the cluster's attachments are read with one request.
	volumesPage = 500
)

// volumes are the volumes that the evicted pods have left attached to the node. Attachments can't be listed by their
// node. So all attachments of the cluster are read once, and then each of the node's own by its name.
type volumes struct {
	client *kube.Client
	node   string
	listed bool
	left   []api.WaitingVolume
	next   time.Time
}

// detached reports whether no volume is left, except those of pods that stay.
func (v *volumes) detached(ctx context.Context, staying []*corev1.Pod, now time.Time) (bool, error) {
	if v.listed && now.Before(v.next) {
		return len(v.left) == 0, nil
	}
	v.next = now.Add(volumesEvery)
	if !v.listed {
		if err := v.list(ctx, staying); err != nil {
			return false, err
		}
		v.listed = true
		return len(v.left) == 0, nil
	}
	var left []api.WaitingVolume
	for _, w := range v.left {
		a, err := v.client.Attachments().Get(ctx, w.Attachment, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			continue
		case err != nil:
			return false, fmt.Errorf("reading VolumeAttachment %s: %w", w.Attachment, err)
		case a.Spec.NodeName == v.node:
			left = append(left, waitingVolume(a))
		}
	}
	v.left = left
	return len(left) == 0, nil
}

// list finds the node's attachments.
func (v *volumes) list(ctx context.Context, staying []*corev1.Pod) error {
	kept, err := v.kept(ctx, staying)
	if err != nil {
		return err
	}
	pages := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return v.client.Attachments().List(ctx, o)
	})
	pages.PageSize, pages.PageBufferSize = volumesPage, 0
	v.left = nil
	err = pages.EachListItem(ctx, metav1.ListOptions{}, func(o runtime.Object) error {
		a, is := o.(*storagev1.VolumeAttachment)
		if !is || a.Spec.NodeName != v.node {
			return nil
		}
		if w := waitingVolume(a); w.Volume == "" || !kept[w.Volume] {
			v.left = append(v.left, w)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("listing VolumeAttachments: %w", err)
	}
	slices.SortFunc(v.left, func(a, b api.WaitingVolume) int { return strings.Compare(a.Attachment, b.Attachment) })
	return nil
}

// kept returns the PersistentVolumes of pods.
func (v *volumes) kept(ctx context.Context, pods []*corev1.Pod) (map[string]bool, error) {
	out := map[string]bool{}
	for _, pod := range pods {
		for _, volume := range pod.Spec.Volumes {
			var name string
			switch {
			case volume.PersistentVolumeClaim != nil:
				name = volume.PersistentVolumeClaim.ClaimName
			case volume.Ephemeral != nil:
				name = pod.Name + "-" + volume.Name
			default:
				continue
			}
			claim, err := v.client.Claims(pod.Namespace).Get(ctx, name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("reading PersistentVolumeClaim %s/%s: %w", pod.Namespace, name, err)
			}
			out[claim.Spec.VolumeName] = true
		}
	}
	return out, nil
}

func waitingVolume(a *storagev1.VolumeAttachment) api.WaitingVolume {
	w := api.WaitingVolume{Attachment: a.Name}
	if name := a.Spec.Source.PersistentVolumeName; name != nil {
		w.Volume = *name
	}
	if failed := a.Status.DetachError; failed != nil {
		w.Message = api.ShortReason(failed.Message)
	}
	return w
}
